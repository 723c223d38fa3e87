"""Upkeep of a cluster: garbage, history, repair, log dirs, export to a broker."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Literal

import click

from spark_kbatch.cli.output import (
    counted,
    iso_time,
    new_table,
    print_json,
    print_line,
    print_table,
)
from spark_kbatch.cli.parameters import json_option
from spark_kbatch.cli.places import folder_argument
from spark_kbatch.cluster.cluster import Cluster
from spark_kbatch.commit.history import Commit
from spark_kbatch.errors import UnknownTopicOrPartitionError
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.write import STAGING_RETENTION_MS
from spark_kbatch.terminal import cell, visible

_RETENTION_NOTE = """\
A broker deletes segments whose newest record is older than the topic's retention.ms (7 days unless set),
starting 30 seconds after it is started. To keep older records, set retention.ms=-1 on the topic before
the export: kafka-configs.sh --alter --entity-type topics --entity-name TOPIC
--add-config retention.ms=-1"""


@click.command()
@folder_argument
@click.argument("names", metavar="[TOPIC]...", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@click.option(
    "--staging-retention-ms",
    type=click.IntRange(0),
    default=STAGING_RETENTION_MS,
    show_default=True,
    help="How long a job's files may go without a write before the job counts as dead.",
)
@json_option
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
            print_json({"topic": tp.topic, "partition": tp.partition, **deletion._asdict()})
        for abandoned in garbage.abandoned_jobs:
            print_json(abandoned._asdict())
        for path_kept, why in garbage.not_removed:
            print_json({"not_removed": str(path_kept), "why": why})
        for deleted in garbage.deleted_topics:
            print_json({"deleted_topic": deleted.topic, "topic_id": deleted.topic_id})
        for name, why in garbage.damaged_topics.items():
            print_json({"damaged_topic": name, "why": why})
        return
    outcome = "would be deleted" if dry_run else "deleted"
    for tp, deletion in deletions:
        if deletion.segments:
            gone = f"{counted(deletion.segments, 'segment')} of {deletion.size_in_bytes:,} bytes"
            start = "would start" if dry_run else "starts"
            first = f"it {start} at offset {deletion.log_start_offset}"
            print_line(visible(f"{tp}: {gone} {outcome}; {first}"))
        if deletion.files:
            files = f"{counted(deletion.files, 'file')} of segments deleted earlier"
            print_line(visible(f"{tp}: {files} {outcome}"))
    for abandoned in garbage.abandoned_jobs:
        days = abandoned.age_ms / 86_400_000
        staged = f"staged by {abandoned.transaction}, {days:.1f} days ago"
        print_line(visible(f"{staged}: {abandoned.size_in_bytes:,} bytes {outcome}"))
    for path_kept, why in garbage.not_removed:
        print_line(visible(f"{path_kept} not deleted: {why}"))
    for deleted in garbage.deleted_topics:
        print_line(visible(f"files of the deleted topic {deleted.topic} {outcome}"))
    for name, why in garbage.damaged_topics.items():
        print_line(visible(f"topic {name} is left out: {why}"))
    done = deletions or garbage.abandoned_jobs or garbage.deleted_topics
    if not (done or garbage.damaged_topics):
        print_line("Nothing to delete.")


@click.command()
@folder_argument
@click.argument("number", metavar="[COMMIT]", type=click.IntRange(0), required=False)
@click.option("--topic", "-t", help="List only commits to this topic.")
@click.option("--limit", "-n", type=click.IntRange(1), help="Stop after this many commits.")
@json_option
def history(
    path: str, number: int | None, topic: str | None, limit: int | None, as_json: bool
) -> None:
    """List the commits of Spark jobs at PATH, newest first.

    With the number of a COMMIT, print where all partitions of its topics ended after it, as JSON for the
    option endingOffsets.
    """
    cluster = Cluster(path)
    if number is not None:
        print_line(visible(cluster.find_commit(number).ending_offsets(topic)))
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
            print_json(commit.as_json())
        return
    table = new_table(f"Commits of {cluster.path}")
    for heading in ("commit", "time", "mode", "by", "topics", "records", "bytes"):
        justify: Literal["left", "right"] = (
            "right" if heading in ("commit", "records", "bytes") else "left"
        )
        table.add_column(heading, justify=justify, overflow="fold")
    for commit in commits:
        table.add_row(
            str(commit.number),
            iso_time(commit.time_ms),
            commit.mode,
            cell(_name(commit)),
            cell(", ".join(commit.topics)),
            f"{commit.records_count:,}",
            f"{commit.size_in_bytes:,}",
        )
    print_table(table, if_empty=f"{cluster.path} has no commits yet.")


def _name(commit: Commit) -> str:
    """Return who made a commit: the user, and the application or transaction."""
    author = commit.author
    if commit.sequence >= 0:
        return f"{author.user}, {commit.transactional_id} {commit.sequence}"
    return ", ".join(part for part in (author.user, author.application_id) if part)


@click.command()
@folder_argument
@click.argument("topic")
@click.option("--to", "log_dir", required=True, metavar="DIR", help="One of the broker's log.dirs.")
@json_option
def export(path: str, topic: str, log_dir: str, as_json: bool) -> None:
    """Copy the records of TOPIC into the log dir of a stopped Kafka broker.

    The broker must have the topic already, with the same number of partitions and no records. Once it is
    started, it serves what is committed here now, at the same offsets.
    """
    exported = Cluster(path).export(topic, to=log_dir)
    if as_json:
        for row in exported:
            print_json(
                {"topic": topic, "partition": row.topic_partition.partition}
                | {
                    name: value
                    for name, value in row._asdict().items()
                    if name != "topic_partition"
                }
            )
    else:
        table = new_table(f"Topic {topic} in {log_dir}")
        headings = ("partition", "first offset", "next offset", "records", "segments", "bytes")
        for heading in headings:
            table.add_column(heading, justify="right")
        for tp, start, end, segments_count, size in exported:
            numbers = (tp.partition, start, end, end - start, segments_count, size)
            table.add_row(*(f"{number:,}" for number in numbers))
        print_table(table)
    click.echo(_RETENTION_NOTE, err=True)


@click.command()
@folder_argument
@click.argument("names", metavar="[TOPIC[-PARTITION]]...", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Only show what would be repaired.")
@json_option
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
            print_json({"topic": topic, "partition": partition, **rest})
            continue
        start, end = report.log_start_offset, report.log_end_offset
        state = "ok" if not report.found and not report.damaged else "repaired"
        if report.damaged:
            state = "damaged"
        elif report.found and dry_run:
            state = "can be repaired"
        offsets = f"offsets {start} to {end}" if start >= 0 else "offsets unknown"
        print_line(visible(f"{report.topic_partition}: {state}, {offsets}"))
        for sentence in (*report.found, *report.damaged):
            print_line(visible(f"  {sentence}"))
    if damaged:
        sys.exit(1)


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


@click.command("log-dirs")
@folder_argument
@click.option("--replicate", is_flag=True, help="First bring replicas that lag back in sync.")
@click.option("--replace", type=click.IntRange(0), metavar="NODE", help="Replace the lost log dir of this node by the empty directory at its path.")  # fmt: skip
@json_option
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
    table = new_table(f"Log dirs of {cluster.path}")
    for heading in ("node", "replicas", "leaders", "not in sync"):
        table.add_column(heading, justify="right")
    table.add_column("path", overflow="fold")
    table.add_column("state", overflow="fold")
    for row in found:
        if as_json:
            print_json(row._asdict())
        numbers = (row.node_id, row.replicas, row.leaders, row.not_in_sync)
        state = "online" if row.why_offline is None else f"offline: {row.why_offline}"
        table.add_row(*map(str, numbers), cell(row.path), cell(state))
    if not as_json:
        print_table(table)
    if any(row.why_offline is not None or row.not_in_sync for row in found):
        sys.exit(1)
