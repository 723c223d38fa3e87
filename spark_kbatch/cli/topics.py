"""Topics: list, delete, add partitions, change settings."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from spark_kbatch.cli.output import new_table, print_json, print_line, print_table, text_of
from spark_kbatch.cli.parameters import foreign_end_option, json_option, settings_given
from spark_kbatch.cluster.broker_logs import BrokerLogs
from spark_kbatch.cluster.cluster import Cluster
from spark_kbatch.cluster.readable import damaged_topics, skipping_deleted
from spark_kbatch.errors import CorruptRecordError, KafkaStorageError, KBatchError
from spark_kbatch.model import GroupOffset, PartitionInfo, TopicPartition
from spark_kbatch.opening import open_for_reading
from spark_kbatch.options.topic import Topic, ensure_not_internal, topic_key
from spark_kbatch.replica.view import ReplicaInfo
from spark_kbatch.terminal import cell, visible

logger = logging.getLogger(__name__)

_KEYS_NOTE = """\
Existing records stay where they are. New records are spread over all partitions, so that
records with equal keys may lie in two partitions: those from before in another one."""

_REPLICA_COLUMNS = ("leader", "isr", "lag")


@click.command()
@click.argument("path")
@click.argument("names", metavar="[TOPIC]...", nargs=-1)
@click.option(
    "--internal", is_flag=True, help="Include internal topics, whose names start with '__'."
)
@foreign_end_option
@json_option
def topics(
    path: str, names: Sequence[str], internal: bool, foreign_end: str, as_json: bool
) -> None:
    """List the topics at PATH, a cluster or a real broker's log dir, with offsets and sizes by partition."""
    cluster = open_for_reading(path, foreign_end=foreign_end)

    def look(
        names: Sequence[str],
    ) -> tuple[list[Topic], list[PartitionInfo], Mapping[TopicPartition, Sequence[ReplicaInfo]]]:
        topics = [cluster.topic(name) for name in names]
        return topics, cluster.describe(names), _replicas(cluster, topics)

    damaged: Mapping[str, KafkaStorageError] = {}
    if names:
        chosen, partitions, replicas = look(names)
    else:
        every = cluster.topic_names(internal=internal)
        damaged = damaged_topics(cluster, every)
        sound = [name for name in every if name not in damaged]
        chosen, partitions, replicas = skipping_deleted(cluster, sound, look)
    groups = _groups_by_partition(cluster)
    if as_json:
        for topic in chosen:
            rows = [
                {
                    "partition": row.topic_partition.partition,
                    **row.offsets._asdict(),
                    "size_in_bytes": row.size_in_bytes,
                    **_replication(replicas.get(row.topic_partition)),
                    **_groups_as_json(groups.get(row.topic_partition)),
                }
                for row in partitions
                if row.topic_partition.topic == topic.name
            ]
            print_json({"topic": topic.name, "topic_id": topic.topic_id, "partitions": rows})
        _raise_first(damaged)
        return
    table = new_table(f"Topics of {cluster.path}")
    table.add_column("topic", overflow="fold")
    for heading in ("partition", "first offset", "next offset", "records", "bytes"):
        table.add_column(heading, justify="right")
    replication = [_replication(replicas.get(row.topic_partition)) for row in partitions]
    if any(replication):
        for heading in _REPLICA_COLUMNS:
            table.add_column(heading)
    has_groups = any(row.topic_partition in groups for row in partitions)
    if has_groups:
        table.add_column("lag of groups", overflow="fold")
    for row, shown_replicas in zip(partitions, replication, strict=True):
        start, end = row.offsets.log_start_offset, row.offsets.high_watermark
        numbers = (row.topic_partition.partition, start, end, end - start, row.size_in_bytes)
        shown = [
            text_of(shown_replicas[name]) if shown_replicas else ""
            for name in _REPLICA_COLUMNS
            if any(replication)
        ]
        of_groups = groups.get(row.topic_partition, {})
        lags = ", ".join(f"{group}: {text_of(one.lag)}" for group, one in of_groups.items())
        topic_cell = cell(row.topic_partition.topic)
        numbers_shown = (f"{number:,}" for number in numbers)
        table.add_row(topic_cell, *numbers_shown, *shown, *[cell(lags)] * has_groups)
    if chosen or not damaged:
        print_table(table, if_empty=f"{cluster.path} has no topics yet.")
    _raise_first(damaged)


def _raise_first(damaged: Mapping[str, KafkaStorageError]) -> None:
    """Raise an error for topics that were left out, if there are any."""
    for error in damaged.values():
        raise error


def _replicas(
    cluster: Cluster | BrokerLogs, topics: Iterable[Topic]
) -> dict[TopicPartition, list[ReplicaInfo]]:
    """Return the replicas of topics that have several."""
    if isinstance(cluster, BrokerLogs):
        return {}
    return cluster.replicas([topic.name for topic in topics if topic.replication_factor > 1])


def _replication(replicas: Sequence[ReplicaInfo] | None) -> dict[str, Any]:
    """Return which replica leads and which are in sync; nothing if there is only one."""
    if replicas is None:
        return {}
    return {
        "leader": next(replica.node_id for replica in replicas if replica.is_leader),
        "replicas": [replica.node_id for replica in replicas],
        "isr": [replica.node_id for replica in replicas if replica.in_sync],
        "lag": max(replica.lag for replica in replicas),
        "offline": [replica.node_id for replica in replicas if replica.why_offline is not None],
    }


def _groups_by_partition(
    cluster: Cluster | BrokerLogs,
) -> dict[TopicPartition, dict[str, GroupOffset]]:
    """Return offsets of groups, by group id, for each partition; an error is only logged."""
    found: dict[TopicPartition, dict[str, GroupOffset]] = {}
    if isinstance(cluster, BrokerLogs):
        return found
    try:
        groups = cluster.groups()
    except (KafkaStorageError, CorruptRecordError) as error:
        logger.warning("consumer groups are not shown: %s", error)
        return found
    for group in groups:
        for tp, one in group.offsets.items():
            if one.committed_offset is not None:
                found.setdefault(tp, {})[group.group_id] = one
    return found


def _groups_as_json(groups: Mapping[str, GroupOffset] | None) -> dict[str, Any]:
    if not groups:
        return {}
    return {
        "groups": {
            name: {"committed_offset": one.committed_offset, "lag": one.lag}
            for name, one in groups.items()
        }
    }


@click.command("delete-topic")
@click.argument("path")
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@json_option
def delete_topic(path: str, names: Sequence[str], yes: bool, dry_run: bool, as_json: bool) -> None:
    """Delete topics with all their records.

    They are gone at once. Their files are deleted later, by `kbatch gc` or a commit, when the topic's
    file.delete.delay.ms has passed.
    """
    cluster = Cluster(path)
    names = list(dict.fromkeys(names))
    found = {name: _contents(cluster, name) for name in names}
    if not (yes or dry_run):
        for name, contents in found.items():
            click.echo(visible(f"topic {name}: {_summary(contents)}"), err=True)
        click.confirm("Delete?", abort=True, err=True)
    for name, contents in found.items():
        if not dry_run:
            cluster.delete_topic(name)
        if as_json:
            print_json({"topic": name, **contents, "deleted": not dry_run})
        else:
            outcome = "would be deleted" if dry_run else "deleted"
            print_line(visible(f"topic {name} {outcome}: {_summary(contents)}"))


def _contents(cluster: Cluster, name: str) -> dict[str, int | None]:
    """Return what a topic holds; None for what its logs, if unreadable, do not tell. Refuse internal topics."""
    ensure_not_internal(name)
    partitions = cluster.topic(name).partitions
    try:
        rows = cluster.describe([name])
    except (KBatchError, OSError):
        return {"partitions": partitions, "records": None, "size_in_bytes": None}
    records = sum(row.offsets.high_watermark - row.offsets.log_start_offset for row in rows)
    size = sum(row.size_in_bytes for row in rows)
    return {"partitions": partitions, "records": records, "size_in_bytes": size}


def _summary(contents: Mapping[str, int | None]) -> str:
    partitions, records, size = contents.values()
    held = f"{partitions} partition{'s' * (partitions != 1)}"
    if records is None:
        return f"{held}, whose logs cannot be read"
    return f"{held}, {records:,} record{'s' * (records != 1)}, {size:,} bytes"


@click.command("create-partitions")
@click.argument("path")
@click.argument("topic")
@click.argument("total", type=click.IntRange(1))
@json_option
def create_partitions(path: str, topic: str, total: int, as_json: bool) -> None:
    """Add partitions to TOPIC, so that it has TOTAL partitions."""
    grown = Cluster(path).create_partitions(topic, total)
    if as_json:
        print_json({"topic": topic, "partitions": grown.partitions})
    else:
        print_line(visible(f"topic {topic} has {grown.partitions} partitions"))
    click.echo(_KEYS_NOTE, err=True)


@click.command("alter-topic")
@click.argument("path")
@click.argument("topic")
@click.option("--set", "given", metavar="KEY=VALUE", multiple=True, callback=settings_given, help="Set KEY to VALUE; may be repeated.")  # fmt: skip
@click.option("--reset", metavar="KEY", multiple=True, help="Reset KEY to its default; may be repeated.")  # fmt: skip
@json_option
def alter_topic(
    path: str, topic: str, given: dict[str, str], reset: Sequence[str], as_json: bool
) -> None:
    """Change settings of TOPIC, and print all of its settings."""
    twice = sorted(set(map(topic_key, given)) & set(map(topic_key, reset)))
    if twice:
        raise click.UsageError(f"{twice[0]!r} is given to both --set and --reset")
    cluster, changes = Cluster(path), given | dict.fromkeys(reset)
    topic_now = cluster.alter_topic(topic, changes) if changes else cluster.topic(topic)
    settings = {topic_key(name): value for name, value in asdict(topic_now.config).items()}
    if as_json:
        print_json({"topic": topic, "config": settings})
    else:
        for key, value in settings.items():
            print_line(visible(f"{key}={value}"))
