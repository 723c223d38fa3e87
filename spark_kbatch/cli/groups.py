"""`kbatch groups`: shows consumer groups, with their members, offsets and lag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from spark_kbatch import BrokerLogs, Cluster
from spark_kbatch.cli.output import (
    Table,
    iso_time,
    print_json,
    print_line,
    text_of,
)
from spark_kbatch.cli.parameters import json_option
from spark_kbatch.cli.paths import client_options, is_remote, name_of, open_cluster, path_argument
from spark_kbatch.errors import ConfigError
from spark_kbatch.model import ConsumerGroup

if TYPE_CHECKING:
    from spark_kbatch import RemoteCluster


@click.command()
@path_argument
@click.argument("group", metavar="[GROUP]", required=False)
@client_options
@json_option
def groups(path: str, group: str | None, client: Mapping[str, str], as_json: bool) -> None:
    """List consumer groups, and how far each is behind.

    With the name of a GROUP, show its members, and its offset and lag in each partition. A server need not
    run: groups are shown as they were stored last, which a rebalance may be changing now. PATH may be
    HOST:PORT of a real cluster.
    """
    cluster = open_cluster(path, client)
    server = _served_at(cluster)
    found = cluster.groups() if group is None else [find_group(cluster, group)]
    if as_json:
        for one in found:
            print_json({**_group_as_json(one), "server": server})
        return
    where = "not served now" if server is None else f"served at {server}"
    if group is not None:
        _print_group(found[0], where)
        return
    title = name_of(cluster) if is_remote(cluster) else f"{name_of(cluster)}, {where}"
    table = Table(f"Consumer groups of {title}")
    table.add_texts("group", "state", "topics")
    table.add_numbers("members", "lag")
    for one in found:
        names = list(dict.fromkeys(tp.topic for tp in one.offsets))
        table.add_row(one.group_id, one.state, names, len(one.members), one.lag)
    table.print(if_empty=f"{name_of(cluster)} has no consumer groups; it is {where}.")


def _served_at(cluster: Cluster | RemoteCluster) -> str | None:
    if not isinstance(cluster, Cluster):
        return cluster.bootstrap_servers
    running = cluster.running_server()
    return None if running is None else running.bootstrap_servers


def find_group(cluster: Cluster | RemoteCluster, group_id: str) -> ConsumerGroup:
    """Return the consumer group with this id, or raise an error that names the existing ones.

    Raises:
        ConfigError: there is no such group; names the existing ones.
    """
    found = {one.group_id: one for one in cluster.groups()}
    if group_id not in found:
        raise ConfigError(
            f"consumer group {group_id!r} does not exist in {name_of(cluster)}; its groups: "
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
    generation = f", generation {group.generation}" if group.generation >= 0 else ""  # if told
    title = f"Group {group.group_id}: {group.state}{generation}, {where}"
    offsets = Table(title)
    offsets.add_texts("topic")
    offsets.add_numbers("partition", "committed offset", "next offset", "lag")
    offsets.add_words("committed at")
    for tp, one in group.offsets.items():
        numbers = (one.committed_offset, one.log_end_offset, one.lag)
        offsets.add_row(*tp, *numbers, iso_time(one.commit_timestamp))
    offsets.print(if_empty=f"{title}; it has no partitions.")
    if group.members:
        print_line("")
        members = Table("Members")
        members.add_texts("member", "instance", "client", "host", "partitions")
        for member in group.members:
            words = (member.member_id, member.instance_id or None, member.client_id)
            members.add_row(*words, member.client_host, list(member.partitions))
        members.print()


def print_offsets_of_group(
    cluster: Cluster | BrokerLogs | RemoteCluster, topic: str, group_id: str, as_json: bool
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
