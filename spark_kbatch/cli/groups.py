"""Consumer groups: their members, offsets and lag."""

from __future__ import annotations

from typing import Any

import click

from spark_kbatch.cli.output import (
    iso_time,
    new_table,
    print_json,
    print_line,
    print_table,
    text_of,
)
from spark_kbatch.cli.parameters import json_option
from spark_kbatch.cluster.broker_logs import BrokerLogs
from spark_kbatch.cluster.cluster import Cluster
from spark_kbatch.errors import ConfigError
from spark_kbatch.model import ConsumerGroup
from spark_kbatch.terminal import cell


@click.command()
@click.argument("path")
@click.argument("group", metavar="[GROUP]", required=False)
@json_option
def groups(path: str, group: str | None, as_json: bool) -> None:
    """List the consumer groups of the cluster at PATH, with how many records each is behind.

    With the name of a GROUP, show its members, and its offset and lag in each partition. A server need not
    run: groups are shown as they were stored last, which a rebalance may be changing now.
    """
    cluster = Cluster(path)
    running = cluster.running_server()
    server = None if running is None else running.bootstrap_servers
    found = cluster.groups() if group is None else [find_group(cluster, group)]
    if as_json:
        for one in found:
            print_json({**_group_as_json(one), "server": server})
        return
    where = "not served now" if server is None else f"served at {server}"
    if group is not None:
        _print_group(found[0], where)
        return
    table = new_table(f"Consumer groups of {cluster.path}, {where}")
    for heading in ("group", "state", "topics"):
        table.add_column(heading, overflow="fold")
    for heading in ("members", "lag"):
        table.add_column(heading, justify="right")
    for one in found:
        names = ", ".join(dict.fromkeys(tp.topic for tp in one.offsets))
        numbers = (f"{len(one.members):,}", f"{one.lag:,}")
        table.add_row(cell(one.group_id), one.state, cell(names or "-"), *numbers)
    print_table(table, if_empty=f"{cluster.path} has no consumer groups; it is {where}.")


def find_group(cluster: Cluster, group_id: str) -> ConsumerGroup:
    """Return a group by its id.

    Raises:
        ConfigError: there is no such group; names the existing ones.
    """
    found = {one.group_id: one for one in cluster.groups()}
    if group_id not in found:
        raise ConfigError(
            f"consumer group {group_id!r} does not exist in {cluster.path}; its groups: "
            f"{', '.join(found) or 'none'}"
        )
    return found[group_id]


def _group_as_json(group: ConsumerGroup) -> dict[str, Any]:
    return {
        "group": group.group_id,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "generation": group.generation,
        "lag": group.lag,
        "members": [one._asdict() for one in group.members],
        "offsets": [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                **one._asdict(),
                "commit_timestamp": iso_time(one.commit_timestamp),
            }
            for tp, one in group.offsets.items()
        ],
    }


def _print_group(group: ConsumerGroup, where: str) -> None:
    """Print the members of a group, and its offsets, as two tables."""
    title = f"Group {group.group_id}: {group.state}, generation {group.generation}, {where}"
    offsets = new_table(title)
    offsets.add_column("topic", overflow="fold")
    for heading in ("partition", "committed offset", "next offset", "lag"):
        offsets.add_column(heading, justify="right")
    offsets.add_column("committed at", overflow="fold")
    for tp, one in group.offsets.items():
        numbers = (tp.partition, one.committed_offset, one.log_end_offset, one.lag)
        shown = ("-" if number is None else f"{number:,}" for number in numbers)
        at = text_of(iso_time(one.commit_timestamp))
        offsets.add_row(cell(tp.topic), *shown, at)
    print_table(offsets, if_empty=f"{title}; it has no partitions.")
    if group.members:
        members = new_table("Members")
        for heading in ("member", "instance", "client", "host", "partitions"):
            members.add_column(heading, overflow="fold")
        for member in group.members:
            names = ", ".join(map(str, member.partitions)) or "-"
            words = (member.member_id, member.instance_id or "-", member.client_id)
            members.add_row(*map(cell, (*words, member.client_host, names)))
        print_table(members)


def print_offsets_of_group(
    cluster: Cluster | BrokerLogs, topic: str, group_id: str, as_json: bool
) -> None:
    """Print a line for each partition of a topic: committed offset, next offset and lag of a group."""
    if isinstance(cluster, BrokerLogs):
        raise ConfigError(f"{cluster.path} is not a cluster; --group is for a cluster's groups")
    partitions = cluster.partitions(topic)
    group = find_group(cluster, group_id)
    ends = cluster.list_offsets(dict.fromkeys(partitions, "latest"))
    for tp in partitions:
        one, end = group.offsets.get(tp), ends[tp]
        row = {
            "partition": tp.partition,
            "committed_offset": one and one.committed_offset,
            "log_end_offset": end and end.offset,
            "lag": one and one.lag,
        }
        if as_json:
            print_json(row)
        else:
            print_line("\t".join(map(text_of, row.values())))
