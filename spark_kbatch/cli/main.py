"""The `kbatch` command.

    kbatch topics PATH [TOPIC ...]     list topics, with offsets and sizes by partition
    kbatch consume PATH TOPIC          print records, one per line
    kbatch delete-records PATH TOPIC PARTITION:OFFSET ...
                                       delete all records below an offset
    kbatch delete-topic PATH TOPIC ... delete topics with all their records
    kbatch create-partitions PATH TOPIC TOTAL
                                       add partitions to a topic
    kbatch alter-topic PATH TOPIC      change or show a topic's settings
    kbatch gc PATH [TOPIC ...]         delete expired segments and files of jobs that never committed
    kbatch history PATH [COMMIT]       list commits of Spark jobs; the ending offsets of one
    kbatch export PATH TOPIC --to DIR  copy a topic into a stopped broker's log dir
    kbatch offsets PATH TOPIC          find offsets by time, or of a consumer group
    kbatch serve PATH                  serve a cluster to any Kafka client
    kbatch groups PATH [GROUP]         list consumer groups; the members and offsets of one
    kbatch repair PATH [TOPIC ...]     repair damaged logs
    kbatch log-dirs PATH               show log dirs, and replicas that are not in sync
    kbatch demo [PATH]                 write, read and check a year of flights

With --json, stdout has nothing but JSON objects, one per line. Exit codes:

    0: done
    1: failed, stderr says why; also where repair or log-dirs finds something that needs attention
    2: usage error
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import itertools
import logging
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

import click
from rich.console import Console
from rich.table import Table

from spark_kbatch import __version__
from spark_kbatch.cluster.broker_logs import BrokerLogs
from spark_kbatch.cluster.cluster import Cluster
from spark_kbatch.cluster.readable import damaged_topics, skipping_deleted
from spark_kbatch.commit.history import Commit
from spark_kbatch.errors import (
    ConfigError,
    CorruptRecordError,
    KafkaStorageError,
    KBatchError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import INT_MAX, IsolationLevel, PartitionInfo, TopicPartition
from spark_kbatch.opening import open_for_reading, open_reader
from spark_kbatch.options.server import REPLICATION_FACTOR_MAX, parse_address
from spark_kbatch.options.topic import PARTITIONS_MAX, Topic, ensure_not_internal, topic_key
from spark_kbatch.options.write import (
    FOREIGN_ENDS,
    MAX_DECOMPRESSED_BATCH_BYTES,
    STAGING_RETENTION_MS,
)
from spark_kbatch.replica.view import ReplicaInfo
from spark_kbatch.terminal import LogFormatter, cell, field, to_json, visible

if TYPE_CHECKING:
    from spark_kbatch.cluster.groups import ConsumerGroup, GroupOffset

logger = logging.getLogger(__name__)

_foreign_end = click.option(
    "--foreign-end",
    type=click.Choice(FOREIGN_ENDS),
    default="log",
    show_default=True,
    help="Where to end in a real broker's logs: after the last valid batch, or at the high watermark of its checkpoint.",
)
_isolation_level = click.option(
    "--isolation-level",
    type=click.Choice([level.value for level in IsolationLevel]),
    default=IsolationLevel.READ_COMMITTED.value,
    show_default=True,
    help="Whether to read only committed records of a real broker's transactions.",
)
_as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")


def _offset_or(word: str) -> Callable[[click.Context, click.Parameter, str], int | str]:
    """Return an option's callback that accepts an offset, or a word in place of one."""

    def convert(_context: click.Context, _parameter: click.Parameter, text: str) -> int | str:
        if text == word:
            return text
        if text.isascii() and text.isdigit():
            return int(text)
        raise click.BadParameter(f"{text!r} is neither an offset nor {word!r}")

    return convert


class _Commands(click.Group):
    """Commands whose usage errors show the user's arguments escaped."""

    def make_context(self, *words: Any, **settings: Any) -> click.Context:
        """Parse the options of `kbatch` itself."""
        with _arguments_escaped():
            return super().make_context(*words, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        """Parse a command's arguments, and run it."""
        with _arguments_escaped():
            return super().invoke(ctx)


@contextlib.contextmanager
def _arguments_escaped() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        message = error.format_message()
        if message.isprintable() or (error.ctx and message == error.ctx.get_help()):
            raise
        raise click.UsageError(visible(message), error.ctx) from None


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kbatch")
def cli() -> None:
    """Inspect and manage Kafka logs that Spark wrote, with no broker running."""


@cli.command()
@click.argument("path")
@click.argument("names", metavar="[TOPIC]...", nargs=-1)
@click.option(
    "--internal", is_flag=True, help="Include internal topics, whose names start with '__'."
)
@_foreign_end
@_as_json
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
            _print_json({"topic": topic.name, "topic_id": topic.topic_id, "partitions": rows})
        _raise_first(damaged)
        return
    table = _table(f"Topics of {cluster.path}")
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
            _shown(shown_replicas[name]) if shown_replicas else ""
            for name in _REPLICA_COLUMNS
            if any(replication)
        ]
        of_groups = groups.get(row.topic_partition, {})
        lags = ", ".join(f"{group}: {_shown(one.lag)}" for group, one in of_groups.items())
        topic_cell = cell(row.topic_partition.topic)
        numbers_shown = (f"{number:,}" for number in numbers)
        table.add_row(topic_cell, *numbers_shown, *shown, *[cell(lags)] * has_groups)
    if chosen or not damaged:
        _print_table(table, if_empty=f"{cluster.path} has no topics yet.")
    _raise_first(damaged)


def _raise_first(damaged: Mapping[str, KafkaStorageError]) -> None:
    """Raise an error for topics that were left out, if there are any."""
    for error in damaged.values():
        raise error


@cli.command()
@click.argument("path")
@click.argument("topic")
@click.option("--partition", "-p", "partitions", type=click.IntRange(0), multiple=True, help="Print only this partition; may be repeated.")  # fmt: skip
@click.option(
    "--start",
    callback=_offset_or("earliest"),
    default="earliest",
    show_default=True,
    help="Offset to start at.",
)
@click.option(
    "--end",
    callback=_offset_or("latest"),
    default="latest",
    show_default=True,
    help="Offset to stop before.",
)
@click.option("--max-records", "-n", type=click.IntRange(1), help="Stop after this many records.")
@click.option(
    "--max-decompressed-batch-bytes",
    type=click.IntRange(1, INT_MAX),
    default=MAX_DECOMPRESSED_BATCH_BYTES,
    show_default=True,
    help="Largest size that one compressed batch may expand to; a larger one is an error.",
)
@_isolation_level
@_foreign_end
@_as_json
def consume(
    path: str,
    topic: str,
    partitions: Sequence[int],
    start: int | str,
    end: int | str,
    max_records: int | None,
    max_decompressed_batch_bytes: int,
    isolation_level: str,
    foreign_end: str,
    as_json: bool,
) -> None:
    r"""Print the records of TOPIC, partition by partition, in offset order.

    A line has partition, offset, time, key, value and headers, separated by tabs. Null is \N. Characters
    that are not printable are escaped (\t, \n, \x1b, \u202e), as are bytes that are not UTF-8 (\xff)
    and backslashes (\\); in headers also "=" and ",". With --json, bytes that are not UTF-8 are
    {"base64": "..."}.
    """
    records = _records(
        path, foreign_end, topic, partitions, start, end, isolation_level,
        max_decompressed_batch_bytes,
    )  # fmt: skip
    shown = _as_object if as_json else _as_line
    for number, record in enumerate(records, 1):
        _print(shown(record))
        if number == max_records:
            break


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


@cli.command("delete-records")
@click.argument("path")
@click.argument("topic")
@click.argument(
    "offsets",
    metavar="PARTITION:OFFSET...",
    nargs=-1,
    required=True,
    callback=_partition_and_offset,
)
@_as_json
def delete_records(path: str, topic: str, offsets: dict[int, int], as_json: bool) -> None:
    """Delete all records below an offset in partitions of TOPIC; -1 deletes all records."""
    wanted = {TopicPartition(topic, partition): offset for partition, offset in offsets.items()}
    for tp, offset in sorted(Cluster(path).delete_records(wanted).items()):
        if as_json:
            _print_json({"topic": topic, "partition": tp.partition, "log_start_offset": offset})
        else:
            _print(visible(f"{tp} starts at offset {offset}"))


@cli.command("delete-topic")
@click.argument("path")
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@_as_json
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
            _print_json({"topic": name, **contents, "deleted": not dry_run})
        else:
            outcome = "would be deleted" if dry_run else "deleted"
            _print(visible(f"topic {name} {outcome}: {_summary(contents)}"))


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


@cli.command("create-partitions")
@click.argument("path")
@click.argument("topic")
@click.argument("total", type=click.IntRange(1))
@_as_json
def create_partitions(path: str, topic: str, total: int, as_json: bool) -> None:
    """Add partitions to TOPIC, so that it has TOTAL partitions."""
    grown = Cluster(path).create_partitions(topic, total)
    if as_json:
        _print_json({"topic": topic, "partitions": grown.partitions})
    else:
        _print(visible(f"topic {topic} has {grown.partitions} partitions"))
    click.echo(_KEYS_NOTE, err=True)


def _setting(
    _context: click.Context, _parameter: click.Parameter, words: Sequence[str]
) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (key and equals):
            raise click.BadParameter(f"{word!r} is not KEY=VALUE, such as retention.ms=86400000")
        if key in found:
            raise click.BadParameter(f"{key!r} is given twice")
        found[key] = value
    return found


@cli.command("alter-topic")
@click.argument("path")
@click.argument("topic")
@click.option("--set", "given", metavar="KEY=VALUE", multiple=True, callback=_setting, help="Set KEY to VALUE; may be repeated.")  # fmt: skip
@click.option("--reset", metavar="KEY", multiple=True, help="Reset KEY to its default; may be repeated.")  # fmt: skip
@_as_json
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
        _print_json({"topic": topic, "config": settings})
    else:
        for key, value in settings.items():
            _print(visible(f"{key}={value}"))


def _time_or_edge(_context: click.Context, _parameter: click.Parameter, text: str) -> int | str:
    """Parse a time in ms or ISO 8601 (UTC unless it has a zone), or a word in place of one."""
    if text in ("earliest", "latest", "max-timestamp"):
        return text.replace("-", "_")
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a time; accepted: earliest, latest, max-timestamp, milliseconds since "
            "1970, or a time such as 2024-10-25T08:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return (moment - _EPOCH) // datetime.timedelta(milliseconds=1)


@cli.command()
@click.argument("path")
@click.argument("names", metavar="[TOPIC]...", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@click.option(
    "--staging-retention-ms",
    type=click.IntRange(0),
    default=STAGING_RETENTION_MS,
    show_default=True,
    help="How long a job's files may go without a write before the job counts as dead.",
)
@_as_json
def gc(
    path: str, names: Sequence[str], dry_run: bool, staging_retention_ms: int, as_json: bool
) -> None:
    """Delete expired segments, files of jobs that never committed, and files of deleted topics at PATH."""
    garbage = Cluster(path).collect_garbage(
        names or None, staging_retention_ms=staging_retention_ms, dry_run=dry_run
    )
    deletions = [(tp, d) for tp, d in garbage.partitions.items() if d.segments or d.files]
    if as_json:
        for tp, deletion in deletions:
            _print_json({"topic": tp.topic, "partition": tp.partition, **deletion._asdict()})
        for abandoned in garbage.abandoned_jobs:
            _print_json(abandoned._asdict())
        for path_kept, why in garbage.not_removed:
            _print_json({"not_removed": str(path_kept), "why": why})
        for deleted in garbage.deleted_topics:
            _print_json({"deleted_topic": deleted.topic, "topic_id": deleted.topic_id})
        for name, why in garbage.damaged_topics.items():
            _print_json({"damaged_topic": name, "why": why})
        return
    outcome = "would be deleted" if dry_run else "deleted"
    for tp, deletion in deletions:
        if deletion.segments:
            gone = f"{_count(deletion.segments, 'segment')} of {deletion.size_in_bytes:,} bytes"
            start = "would start" if dry_run else "starts"
            first = f"it {start} at offset {deletion.log_start_offset}"
            _print(visible(f"{tp}: {gone} {outcome}; {first}"))
        if deletion.files:
            files = f"{_count(deletion.files, 'file')} of segments deleted earlier"
            _print(visible(f"{tp}: {files} {outcome}"))
    for abandoned in garbage.abandoned_jobs:
        days = abandoned.age_ms / 86_400_000
        staged = f"staged by {abandoned.transaction}, {days:.1f} days ago"
        _print(visible(f"{staged}: {abandoned.size_in_bytes:,} bytes {outcome}"))
    for path_kept, why in garbage.not_removed:
        _print(visible(f"{path_kept} not deleted: {why}"))
    for deleted in garbage.deleted_topics:
        _print(visible(f"files of the deleted topic {deleted.topic} {outcome}"))
    for name, why in garbage.damaged_topics.items():
        _print(visible(f"topic {name} is left out: {why}"))
    done = deletions or garbage.abandoned_jobs or garbage.deleted_topics
    if not (done or garbage.damaged_topics):
        _print("Nothing to delete.")


@cli.command()
@click.argument("path")
@click.argument("topic")
@click.option("--time", "-t", "wanted", callback=_time_or_edge, default="latest", show_default=True, help="Milliseconds since 1970, an ISO 8601 time, earliest, latest or max-timestamp.")  # fmt: skip
@click.option("--group", "-g", help="Print this consumer group's committed offsets instead.")
@_isolation_level
@_foreign_end
@_as_json
def offsets(
    path: str,
    topic: str,
    wanted: int | str,
    group: str | None,
    isolation_level: str,
    foreign_end: str,
    as_json: bool,
) -> None:
    """Print, for each partition of TOPIC, the first offset whose record has the given time or a later one.

    A line has partition, offset and the record's time, separated by tabs; "-" where there is none.
    latest stands for the offset of the next record, max-timestamp for the record with the largest time.

    With --group, a line has partition, committed offset, the offset of the next record, and the lag, which
    is the difference; "-" where the group has committed nothing.
    """
    cluster = open_for_reading(path, foreign_end=foreign_end)
    if group is not None:
        _print_offsets_of_group(cluster, topic, group, as_json)
        return
    asked = dict.fromkeys(cluster.partitions(topic), wanted)
    found = cluster.list_offsets(asked, isolation_level=isolation_level)
    for topic_partition, record in sorted(found.items()):
        offset, timestamp = record or (None, -1)
        row = {
            "partition": topic_partition.partition,
            "offset": offset,
            "timestamp": _time(timestamp),
        }
        if as_json:
            _print_json(row)
        else:
            _print("\t".join(map(_shown, row.values())))


@cli.command()
@click.argument("path")
@click.argument("number", metavar="[COMMIT]", type=click.IntRange(0), required=False)
@click.option("--topic", "-t", help="List only commits to this topic.")
@click.option("--limit", "-n", type=click.IntRange(1), help="Stop after this many commits.")
@_as_json
def history(
    path: str, number: int | None, topic: str | None, limit: int | None, as_json: bool
) -> None:
    """List the commits of Spark jobs at PATH, newest first.

    With the number of a COMMIT, print where all partitions of its topics ended after it, as JSON for the
    option endingOffsets.
    """
    cluster = Cluster(path)
    if number is not None:
        _print(visible(cluster.find_commit(number).ending_offsets(topic)))
        return
    if topic is not None and next(cluster.history(topic), None) is None:
        # Only where nothing was committed: commits to a topic that was deleted are listed.
        cluster.topic(topic)
    first = cluster.first_commit()
    if first > 0:
        message = f"the history starts at commit {first}: earlier commits were deleted"
        click.echo(message, err=True)
    commits = itertools.islice(cluster.history(topic), limit)
    if as_json:
        for commit in commits:
            _print_json(commit.as_json())
        return
    table = _table(f"Commits of {cluster.path}")
    for heading in ("commit", "time", "mode", "by", "topics", "records", "bytes"):
        justify: Literal["left", "right"] = (
            "right" if heading in ("commit", "records", "bytes") else "left"
        )
        table.add_column(heading, justify=justify, overflow="fold")
    for commit in commits:
        table.add_row(
            str(commit.number),
            _time(commit.time_ms),
            commit.mode,
            cell(_name(commit)),
            cell(", ".join(commit.topics)),
            f"{commit.records_count:,}",
            f"{commit.size_in_bytes:,}",
        )
    _print_table(table, if_empty=f"{cluster.path} has no commits yet.")


def _name(commit: Commit) -> str:
    """Return who made a commit: the user, and the application or transaction."""
    author = commit.author
    if commit.sequence >= 0:
        return f"{author.user}, {commit.transactional_id} {commit.sequence}"
    return ", ".join(part for part in (author.user, author.application_id) if part)


@cli.command()
@click.argument("path")
@click.argument("topic")
@click.option("--to", "log_dir", required=True, metavar="DIR", help="One of the broker's log.dirs.")
@_as_json
def export(path: str, topic: str, log_dir: str, as_json: bool) -> None:
    """Copy the records of TOPIC into the log dir of a stopped Kafka broker.

    The broker must have the topic already, with the same number of partitions and no records. Once it is
    started, it serves what is committed here now, at the same offsets.
    """
    exported = Cluster(path).export(topic, to=log_dir)
    if as_json:
        for row in exported:
            _print_json(
                {"topic": topic, "partition": row.topic_partition.partition}
                | {
                    name: value
                    for name, value in row._asdict().items()
                    if name != "topic_partition"
                }
            )
    else:
        table = _table(f"Topic {topic} in {log_dir}")
        headings = ("partition", "first offset", "next offset", "records", "segments", "bytes")
        for heading in headings:
            table.add_column(heading, justify="right")
        for tp, start, end, segments_count, size in exported:
            numbers = (tp.partition, start, end, end - start, segments_count, size)
            table.add_row(*(f"{number:,}" for number in numbers))
        _print_table(table)
    click.echo(_RETENTION_NOTE, err=True)


@cli.command()
@click.argument("path")
@click.argument("names", metavar="[TOPIC[-PARTITION]]...", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Only show what would be repaired.")
@_as_json
def repair(path: str, names: Sequence[str], dry_run: bool, as_json: bool) -> None:
    """Repair logs as far as their batches allow, and report what was done.

    A lost kbatch.state, indexes, leader epochs and partition.metadata are rebuilt. A log that lost its
    state ends before its first damaged batch; the rest is kept in files whose names end in .deleted.
    Without names, all topics are checked. The exit code is 1 if batches are damaged beyond repair.
    """
    cluster = Cluster(path)
    chosen = [tp for name in names for tp in _partitions_named(cluster, name)]
    damaged = False
    for report in cluster.repair(chosen or None, dry_run=dry_run):
        damaged = damaged or bool(report.damaged)
        if as_json:
            topic, partition = report.topic_partition
            rest = dict(zip(report._fields[1:], report[1:], strict=True))
            _print_json({"topic": topic, "partition": partition, **rest})
            continue
        start, end = report.log_start_offset, report.log_end_offset
        state = "ok" if not report.found and not report.damaged else "repaired"
        if report.damaged:
            state = "damaged"
        elif report.found and dry_run:
            state = "can be repaired"
        offsets = f"offsets {start} to {end}" if start >= 0 else "offsets unknown"
        _print(visible(f"{report.topic_partition}: {state}, {offsets}"))
        for sentence in (*report.found, *report.damaged):
            _print(visible(f"  {sentence}"))
    if damaged:
        sys.exit(1)


@cli.command("log-dirs")
@click.argument("path")
@click.option("--replicate", is_flag=True, help="First bring replicas that lag back in sync.")
@click.option("--replace", type=click.IntRange(0), metavar="NODE", help="Replace the lost log dir of this node by the empty directory at its path.")  # fmt: skip
@_as_json
def log_dirs(path: str, replicate: bool, replace: int | None, as_json: bool) -> None:
    """Show the log dirs of the cluster at PATH: which are offline, and what they hold.

    The exit code is 1 if a log dir is offline or a replica is not in sync.
    """
    cluster = Cluster(path)
    if replace is not None:
        cluster.replace_log_dir(replace)
    if replicate or replace is not None:
        cluster.replicate()
    found = cluster.log_dirs()
    table = _table(f"Log dirs of {cluster.path}")
    for heading in ("node", "replicas", "leaders", "not in sync"):
        table.add_column(heading, justify="right")
    table.add_column("path", overflow="fold")
    table.add_column("state", overflow="fold")
    for row in found:
        if as_json:
            _print_json(row._asdict())
        numbers = (row.node_id, row.replicas, row.leaders, row.not_in_sync)
        state = "online" if row.why_offline is None else f"offline: {row.why_offline}"
        table.add_row(*map(str, numbers), cell(row.path), cell(state))
    if not as_json:
        _print_table(table)
    if any(row.why_offline is not None or row.not_in_sync for row in found):
        sys.exit(1)


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


def _partitions_named(cluster: Cluster, name: str) -> list[TopicPartition]:
    """Return the partitions of a topic, or the one that is called `name`."""
    topic, _, number = name.rpartition("-")
    if name not in cluster.topic_names(internal=True) and topic and number.isdecimal():
        partitions = cluster.partitions(topic)
        if int(number) >= len(partitions):
            raise UnknownTopicOrPartitionError(
                f"partition {name} does not exist: topic {topic!r} has partitions 0 to "
                f"{len(partitions) - 1}"
            )
        return [partitions[int(number)]]
    return cluster.partitions(name)


def _address(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[str, int]:
    try:
        return parse_address("--listen", text, any_port=True)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None


def _advertised(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> str | None:
    try:
        if text is not None:
            parse_address("--advertise", text)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None
    return text


_OPTIONS_OF_SERVE = {
    "auto.create.topics.enable": "--no-auto-create",
    "num.partitions": "--num-partitions",
    "default.replication.factor": "--replication-factor",
    "flush": "--flush",
}  # by their keys


@cli.command()
@click.argument("path")
@click.option("--listen", default="127.0.0.1:9092", show_default=True, metavar="HOST:PORT", callback=_address, help="Address to listen on; port 0 for any free port.")  # fmt: skip
@click.option("--advertise", metavar="HOST:PORT", callback=_advertised, help="Address that clients connect to, if not the one that they have reached.")  # fmt: skip
@click.option("--auto-create/--no-auto-create", default=True, show_default=True, help="Whether a topic is created when a client asks for it.")  # fmt: skip
@click.option("--num-partitions", type=click.IntRange(1, PARTITIONS_MAX), default=1, show_default=True, help="Number of partitions of such a topic.")  # fmt: skip
@click.option("--replication-factor", type=click.IntRange(1, REPLICATION_FACTOR_MAX), default=1, show_default=True, help="Number of its replicas, each in its own log dir.")  # fmt: skip
@click.option("--flush", is_flag=True, help="Flush batches to disk before they are acknowledged.")
@click.option("--set", "given", metavar="KEY=VALUE", multiple=True, callback=_setting, help="Set another option of the server; may be repeated.")  # fmt: skip
@click.option("--create", is_flag=True, help="Create the cluster if there is none.")
@_as_json
def serve(
    path: str,
    listen: tuple[str, int],
    advertise: str | None,
    auto_create: bool,
    num_partitions: int,
    replication_factor: int,
    flush: bool,
    given: dict[str, str],
    create: bool,
    as_json: bool,
) -> None:
    """Serve the cluster at PATH to any Kafka client, until SIGINT or SIGTERM.

    Prints the address once clients can connect. There is no authentication, so by default only this
    machine can connect. Spark jobs and producers on PATH go on beside the server.
    """
    for key in given:
        if topic_key(key) in _OPTIONS_OF_SERVE:
            raise click.UsageError(f"{key!r} is given by {_OPTIONS_OF_SERVE[topic_key(key)]}")
    options: dict[str, Any] = dict(given)
    asked_to_end = threading.Event()

    def end(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)  # so that a second signal ends the process at once
        asked_to_end.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    with (
        Cluster(path, create=create) as cluster,
        cluster.serve(
            *listen,
            advertise=advertise,
            auto_create=auto_create,
            num_partitions=num_partitions,
            replication_factor=replication_factor,
            flush=flush,
            **options,
        ) as server,
    ):
        names = cluster.topic_names()
        if as_json:
            _print_json(
                {
                    "path": str(cluster.path),
                    "bootstrap_servers": server.bootstrap_servers,
                    "host": server.host,
                    "port": server.port,
                    "topics": names,
                }
            )
        else:
            shown = f"{_count(names, 'topic')} of {cluster.path}"
            _print(visible(f"Serving {shown} at {server.bootstrap_servers}; Ctrl+C ends it."))
        asked_to_end.wait()


@cli.command()
@click.argument("path")
@click.argument("group", metavar="[GROUP]", required=False)
@_as_json
def groups(path: str, group: str | None, as_json: bool) -> None:
    """List the consumer groups of the cluster at PATH, with how many records each is behind.

    With the name of a GROUP, show its members, and its offset and lag in each partition. A server need not
    run: groups are shown as they were stored last, which a rebalance may be changing now.
    """
    cluster = Cluster(path)
    running = cluster.running_server()
    server = None if running is None else running.bootstrap_servers
    found = cluster.groups() if group is None else [_group(cluster, group)]
    if as_json:
        for one in found:
            _print_json({**_group_as_json(one), "server": server})
        return
    where = "not served now" if server is None else f"served at {server}"
    if group is not None:
        _print_group(found[0], where)
        return
    table = _table(f"Consumer groups of {cluster.path}, {where}")
    for heading in ("group", "state", "topics"):
        table.add_column(heading, overflow="fold")
    for heading in ("members", "lag"):
        table.add_column(heading, justify="right")
    for one in found:
        names = ", ".join(dict.fromkeys(tp.topic for tp in one.offsets))
        numbers = (f"{len(one.members):,}", f"{one.lag:,}")
        table.add_row(cell(one.group_id), one.state, cell(names or "-"), *numbers)
    _print_table(table, if_empty=f"{cluster.path} has no consumer groups; it is {where}.")


def _group(cluster: Cluster, group_id: str) -> ConsumerGroup:
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
                "commit_timestamp": _time(one.commit_timestamp),
            }
            for tp, one in group.offsets.items()
        ],
    }


def _print_group(group: ConsumerGroup, where: str) -> None:
    """Print the members of a group, and its offsets, as two tables."""
    title = f"Group {group.group_id}: {group.state}, generation {group.generation}, {where}"
    offsets = _table(title)
    offsets.add_column("topic", overflow="fold")
    for heading in ("partition", "committed offset", "next offset", "lag"):
        offsets.add_column(heading, justify="right")
    offsets.add_column("committed at", overflow="fold")
    for tp, one in group.offsets.items():
        numbers = (tp.partition, one.committed_offset, one.log_end_offset, one.lag)
        shown = ("-" if number is None else f"{number:,}" for number in numbers)
        at = _shown(_time(one.commit_timestamp))
        offsets.add_row(cell(tp.topic), *shown, at)
    _print_table(offsets, if_empty=f"{title}; it has no partitions.")
    if group.members:
        members = _table("Members")
        for heading in ("member", "instance", "client", "host", "partitions"):
            members.add_column(heading, overflow="fold")
        for member in group.members:
            names = ", ".join(map(str, member.partitions)) or "-"
            words = (member.member_id, member.instance_id or "-", member.client_id)
            members.add_row(*map(cell, (*words, member.client_host, names)))
        _print_table(members)


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


def _print_offsets_of_group(
    cluster: Cluster | BrokerLogs, topic: str, group_id: str, as_json: bool
) -> None:
    if isinstance(cluster, BrokerLogs):
        raise ConfigError(f"{cluster.path} is not a cluster; --group is for a cluster's groups")
    partitions = cluster.partitions(topic)
    group = _group(cluster, group_id)
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
            _print_json(row)
        else:
            _print("\t".join(map(_shown, row.values())))


@cli.command()
@click.argument("path", required=False)
def demo(path: str | None) -> None:
    """Write a year of flights to a log at PATH with Spark, read it back, and check it."""
    from spark_kbatch.spark import demo as demo_module  # noqa: PLC0415  the other commands need no Spark

    demo_module.main(path)


def main() -> None:
    """Run the command; print a known error as one line and exit with code 1."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter())
    logging.basicConfig(handlers=[handler])
    try:
        cli.main(prog_name="kbatch", standalone_mode=True)
    except (KBatchError, OSError, ImportError) as error:
        click.echo(visible(f"kbatch: {error}"), err=True)
        sys.exit(1)


_RETENTION_NOTE = """\
A broker deletes segments whose newest record is older than the topic's retention.ms (7 days unless set),
starting 30 seconds after it is started. To keep older records, set retention.ms=-1 on the topic before
the export: kafka-configs.sh --alter --entity-type topics --entity-name TOPIC
--add-config retention.ms=-1"""

_KEYS_NOTE = """\
Existing records stay where they are. New records are spread over all partitions, so that
records with equal keys may lie in two partitions: those from before in another one."""

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_REPLICA_COLUMNS = ("leader", "isr", "lag")
_COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")


def _records(
    path: str,
    foreign_end: str,
    topic: str,
    partitions: Sequence[int],
    start: int | str,
    end: int | str,
    isolation_level: str,
    max_decompressed_batch_bytes: int,
) -> Iterator[dict[str, Any]]:
    reader = open_reader(path, foreign_end=foreign_end)
    ranges = reader.offset_ranges(
        topic,
        partitions=partitions or None,
        start=start,
        end=end,
        isolation_level=isolation_level,
    )
    isolation = IsolationLevel(isolation_level)
    for wanted in ranges:
        rows = (
            row
            for batch in reader.read_range(
                wanted,
                _COLUMNS[1:],
                isolation,
                max_decompressed_batch_bytes=max_decompressed_batch_bytes,
            )
            for row in batch.to_pylist()
        )
        for row in rows:
            headers = row["headers"] or []
            yield {
                "partition": wanted.topic_partition.partition,
                "offset": row["offset"],
                "timestamp": _time(row["timestamp"]),
                "key": row["key"],
                "value": row["value"],
                "headers": [(header["key"], header["value"]) for header in headers],
            }


def _as_line(record: dict[str, Any]) -> str:
    edges = (_shown(record[name]) for name in _COLUMNS[:3])
    headers = ", ".join(f"{field(k, '=,')}={field(v, ',')}" for k, v in record["headers"])
    return "\t".join((*edges, field(record["key"]), field(record["value"]), headers or "-"))


def _as_object(record: dict[str, Any]) -> str:
    headers = [[key, _text(value)] for key, value in record["headers"]]
    texts = {"key": _text(record["key"]), "value": _text(record["value"]), "headers": headers}
    return to_json(record | texts)


def _count(things: Sequence[object], noun: str) -> str:
    return f"{len(things):,} {noun}{'s' * (len(things) != 1)}"


def _time(timestamp_ms: int) -> str | None:
    """Return ISO 8601 in UTC with milliseconds; the number itself past year 9999; None for no time."""
    if timestamp_ms == -1:
        return None
    try:
        moment = datetime.datetime.fromtimestamp(timestamp_ms / 1000, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _text(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _shown(value: Any) -> str:
    """Return a number, time or list as text; "-" for none."""
    if value is None:
        return "-"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    return str(value)


def _table(title: str) -> Table:
    return Table(title=cell(title, "table.title"), title_justify="left")


def _print_table(table: Table, *, if_empty: str = "") -> None:
    if table.rows or not if_empty:
        Console().print(table)
    else:
        _print(visible(if_empty))


def _print_json(value: dict[str, Any]) -> None:
    _print(to_json(value))


def _print(line: str) -> None:
    """Print a line whose parts went through `terminal`."""
    click.echo(line)
