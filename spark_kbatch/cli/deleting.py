"""Commands that delete topics, or the first records of partitions, after asking for confirmation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import click

from spark_kbatch import Cluster
from spark_kbatch.cli.confirming import LOOK, confirm, dry_run_option, yes_option
from spark_kbatch.cli.output import counted, print_json, print_line
from spark_kbatch.cli.parameters import examples, json_option
from spark_kbatch.cli.paths import (
    client_options,
    complete_topic,
    open_cluster,
    path_argument,
    topic_argument,
)
from spark_kbatch.cli.topics import led_offsets
from spark_kbatch.errors import (
    ConfigError,
    KafkaStorageError,
    KBatchError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import ensure_not_internal
from spark_kbatch.terminal import visible


@click.command("delete-topic", epilog=examples("kbatch delete-topic my-cluster readings --dry-run"))
@path_argument
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topic)
@yes_option
@dry_run_option
@client_options
@json_option
def delete_topic(
    path: str,
    names: Sequence[str],
    yes: bool,
    dry_run: bool,
    client: Mapping[str, str],
    as_json: bool,
) -> None:
    """Delete topics with all their records.

    They are gone at once. Their files are deleted later, by `kbatch gc` or a commit, when the topic's
    file.delete.delay.ms has passed. PATH may be HOST:PORT of a real cluster.
    """
    cluster = open_cluster(path, client)
    names = list(dict.fromkeys(names))
    found = {name: _contents(cluster, name) for name in names}
    if not (yes or dry_run):
        lines = [f"topic {name}: {_summary(contents)}" for name, contents in found.items()]
        confirm(lines, "delete", "deleted", LOOK)
    for name, contents in found.items():
        if not dry_run:
            cluster.delete_topic(name)
        if as_json:
            print_json({"topic": name, **contents, "deleted": not dry_run})
        else:
            outcome = "would be deleted" if dry_run else "deleted"
            print_line(visible(f"topic {name} {outcome}: {_summary(contents)}"))


def _contents(cluster: Cluster, name: str) -> dict[str, int | None]:
    """Return a topic's numbers of partitions, records and bytes; None where its logs cannot be read.

    Internal topics are refused.
    """
    if cluster.is_remote:
        return _contents_remotely(cluster, name)
    ensure_not_internal(name)
    partitions = cluster.topic(name).partitions
    try:
        rows = cluster.describe([name])
    except (KBatchError, OSError):
        return {"num_partitions": partitions, "records": None, "size_in_bytes": None}
    if any(row.error for row in rows):
        return {"num_partitions": partitions, "records": None, "size_in_bytes": None}
    records = sum(row.offsets.high_watermark - row.offsets.log_start_offset for row in rows)
    size = sum(row.size_in_bytes for row in rows)
    return {"num_partitions": partitions, "records": records, "size_in_bytes": size}


def _contents_remotely(cluster: Cluster, name: str) -> dict[str, int | None]:
    topic = cluster.topic(name)
    _ensure_changeable(cluster, name)
    edges = led_offsets(cluster, [topic])
    records = sum(one.high_watermark - one.log_start_offset for one in edges.values())
    return {
        "num_partitions": topic.partitions,
        "records": records if len(edges) == topic.partitions else None,
        "size_in_bytes": None,
    }


def _ensure_changeable(cluster: Cluster, name: str) -> None:
    """Refuse a real cluster's own topic before the question, and in a dry run."""
    if name not in cluster.topic_names():
        raise ConfigError(f"topic {name!r} is the cluster's own, which alone changes it")


def _summary(contents: Mapping[str, int | None]) -> str:
    partitions, records, size = contents.values()
    held = f"{partitions} partition{'s' * (partitions != 1)}"
    if records is None:
        return f"{held}, whose logs cannot be read"
    held = f"{held}, {counted(records, 'record')}"
    return held if size is None else f"{held}, {size:,} bytes"


def _partition_and_offset(
    _context: click.Context, _parameter: click.Parameter, words: Sequence[str]
) -> dict[int, int]:
    found: dict[int, int] = {}
    for word in words:
        matched = re.fullmatch(r"([0-9]{1,10}):(-1|[0-9]{1,19})", word)
        if matched is None:
            raise click.BadParameter(f"{word!r} is not PARTITION:OFFSET, such as 0:1500, or 0:-1")
        partition, offset = map(int, matched.groups())
        if found.setdefault(partition, offset) != offset:
            raise click.BadParameter(f"partition {partition} is given twice")
    return found


@click.command(
    "delete-records",
    epilog=examples("kbatch delete-records my-cluster readings 0:1500 1:-1 --dry-run"),
)
@path_argument
@topic_argument
@click.argument(
    "offsets",
    metavar="PARTITION:OFFSET...",
    nargs=-1,
    required=True,
    callback=_partition_and_offset,
)
@yes_option
@dry_run_option
@client_options
@json_option
def delete_records(
    path: str,
    topic: str,
    offsets: dict[int, int],
    yes: bool,
    dry_run: bool,
    client: Mapping[str, str],
    as_json: bool,
) -> None:
    """Delete the first records of partitions of TOPIC.

    These are the records below OFFSET; -1 deletes all records. PATH may be HOST:PORT of a real cluster.
    """
    cluster = open_cluster(path, client)
    found = _records_below(cluster, topic, offsets)
    if not (yes or dry_run):
        lines = [
            f"{tp}: {counted(count, 'record')} below offset {start}"
            for tp, (start, count) in found.items()
        ]
        confirm(lines, "delete", "deleted", LOOK)
    starts = {tp: start for tp, (start, _) in found.items()}
    if not dry_run:
        starts = cluster.delete_records(starts)
    for tp, (_, count) in found.items():
        if as_json:
            row = {"topic": topic, "partition": tp.partition, "log_start_offset": starts[tp]}
            print_json({**row, "records": count, "deleted": not dry_run})
            continue
        start = "would start" if dry_run else "starts"
        outcome = "would be deleted" if dry_run else "deleted"
        print_line(
            visible(f"{tp} {start} at offset {starts[tp]}: {counted(count, 'record')} {outcome}")
        )


def _records_below(
    cluster: Cluster, topic: str, offsets: Mapping[int, int]
) -> dict[TopicPartition, tuple[int, int]]:
    """Return each partition's new log start offset, and how many of its offsets would be deleted.

    Raises:
        OffsetOutOfRangeError: an offset is above the high watermark.
        UnknownTopicOrPartitionError: a partition does not exist.
        ConfigError: the topic is internal.
    """
    if not cluster.is_remote:
        ensure_not_internal(topic)
    else:
        _ensure_changeable(cluster, cluster.topic(topic).name)
    rows = cluster.describe([topic])
    for row in rows:
        if row.error and row.topic_partition.partition in offsets:
            raise KafkaStorageError(row.error)
    edges = {row.topic_partition: row.offsets for row in rows}
    found = {}
    for partition, offset in sorted(offsets.items()):
        tp = TopicPartition(topic, partition)
        if tp not in edges:
            raise UnknownTopicOrPartitionError(
                f"partition {tp} does not exist: topic {topic!r} has partitions 0 to {len(edges) - 1}"
            )
        first, end = edges[tp].log_start_offset, edges[tp].high_watermark
        if offset > end:
            raise OffsetOutOfRangeError(str(tp), offset, first, end)
        start = end if offset < 0 else max(offset, first)
        found[tp] = start, start - first
    return found
