"""Commands for the upkeep of a cluster: gc, history, verify, repair, log-dirs."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from spark_kbatch import Cluster, Commit
from spark_kbatch.cli.output import (
    LOOK,
    Table,
    confirm,
    dry_run_option,
    print_json,
    print_line,
    progress_bar,
    unshown,
    yes_option,
)
from spark_kbatch.cli.parameters import examples, json_option, refuse_beside
from spark_kbatch.cli.paths import (
    client_options,
    complete_topic,
    ensure_goes_with,
    folder_argument,
    open_cluster,
    stored_argument,
)
from spark_kbatch.errors import KBatchError, UnknownTopicOrPartitionError
from spark_kbatch.model import NO_PARTITION, TopicPartition
from spark_kbatch.opening.stores import given_up_by_restore, open_for_reading
from spark_kbatch.options.object_store import parse_store_options
from spark_kbatch.options.paths import bucket_scheme
from spark_kbatch.options.write import STAGING_RETENTION_MS
from spark_kbatch.store.reports import Waiting
from spark_kbatch.terminal import counted, iso_time, visible

if TYPE_CHECKING:
    from spark_kbatch.bucket.mending import BucketRepair
    from spark_kbatch.store.reports import Garbage, GivenUp, RepairReport


@click.command(epilog=examples("kbatch gc my-cluster --dry-run"))
@folder_argument
@click.argument("names", metavar="[TOPIC]...", nargs=-1, shell_complete=complete_topic)
@dry_run_option
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
    """Delete expired segments and abandoned files.

    Abandoned files are those of jobs that never committed, and of topics that were deleted. A partition
    that cannot be used, such as one on an offline disk, is skipped, and the exit code is 1.
    """
    with progress_bar(f"Collecting garbage of {path}", hidden=as_json):
        garbage = Cluster(path).collect_garbage(
            names or None, staging_retention_ms=staging_retention_ms, dry_run=dry_run
        )
    for row, lines in _garbage_told(garbage, dry_run=dry_run):
        if as_json:
            print_json(row)
        else:
            for line in lines:
                print_line(visible(line))
    has_deleted = (
        any(one.segments or one.files for one in garbage.partitions.values())
        or garbage.abandoned_jobs
        or garbage.deleted_topics
    )
    if not (as_json or has_deleted or garbage.damaged_topics or garbage.skipped):
        print_line("Nothing to delete yet." if garbage.waiting else "Nothing to delete.")
    for tp, why in garbage.skipped.items():
        if as_json:
            print_json({"skipped": str(tp), "why": why})
        else:
            click.echo(visible(f"kbatch: {tp} is skipped: {why}"), err=True)
    if garbage.skipped or garbage.damaged_topics:
        sys.exit(1)


def _garbage_told(
    garbage: Garbage, *, dry_run: bool
) -> Iterator[tuple[dict[str, Any], Sequence[str]]]:
    """Yield what is deleted or kept, each as an object for JSON and as lines."""
    outcome = "would be deleted" if dry_run else "deleted"
    for tp, deletion in garbage.partitions.items():
        lines = []
        if deletion.segments:
            gone = (
                f"{counted(len(deletion.segments), 'segment')} of {deletion.size_in_bytes:,} bytes"
            )
            start = "would start" if dry_run else "starts"
            first = f"it {start} at offset {deletion.log_start_offset}"
            lines.append(f"{tp}: {gone} {outcome}; {first}")
        if deletion.files:
            files = f"{counted(len(deletion.files), 'file')} of segments deleted earlier"
            lines.append(f"{tp}: {files} {outcome}")
        if lines:
            yield {"topic": tp.topic, "partition": tp.partition, **deletion._asdict()}, lines
    for abandoned in garbage.abandoned_jobs:
        days = abandoned.age_ms / 86_400_000
        staged = f"staged by {abandoned.transaction}, {days:.1f} days ago"
        yield abandoned._asdict(), [f"{staged}: {abandoned.size_in_bytes:,} bytes {outcome}"]
    for path, why in garbage.not_removed:
        yield {"not_removed": str(path), "why": why}, [f"{path} not deleted: {why}"]
    for deleted in garbage.deleted_topics:
        line = f"files of the deleted topic {deleted.topic} {outcome}"
        yield {"deleted_topic": deleted.topic, "topic_id": deleted.topic_id}, [line]
    for name, why in garbage.damaged_topics.items():
        yield {"damaged_topic": name, "why": why}, [f"topic {name} is left out: {why}"]
    for one in garbage.waiting:
        row: dict[str, Any] = {
            "waiting": one.what,
            **dict(zip(one._fields[1:], one[1:], strict=True)),
        }
        yield row, [_kept(one)]


def _kept(waiting: Waiting) -> str:
    """Return a sentence about files that are kept for now."""
    what, name, size_in_bytes, written_ms, until_ms = waiting
    until = f"kept until {iso_time(until_ms)}"
    if what == "overwritten":
        return (
            f"overwritten records of {name}: {size_in_bytes:,} bytes, for running readers {until}"
        )
    if what != "staged":
        of = f"{'files of the deleted topic' if what == 'deleted topic' else 'deleted segments of'} {name}"
        return f"{of}: {size_in_bytes:,} bytes, {until}"
    age_s = max(int(time.time()) - written_ms // 1000, 0)
    ago = (
        f"{age_s} s"
        if age_s < 120
        else f"{age_s // 60} min"
        if age_s < 7200
        else f"{age_s // 3600} h"
    )
    return f"staged by {name}: {size_in_bytes:,} bytes, last written {ago} ago, {until}"


@click.command(epilog=examples("kbatch history my-cluster -n 10", "kbatch history my-cluster 42"))
@stored_argument
@click.argument("number", metavar="[COMMIT]", type=click.IntRange(0), required=False)
@click.option("--topic", "-t", metavar="TOPIC", help="List only commits to this topic.")
@click.option(
    "--max-commits", "-n", type=click.IntRange(1), metavar="N", help="List only the last N commits."
)
@client_options
@json_option
def history(
    path: str,
    number: int | None,
    topic: str | None,
    max_commits: int | None,
    client: Mapping[str, str],
    as_json: bool,
) -> None:
    """List commits of Spark jobs, newest first.

    PATH may be the URL of a bucket, where a commit has the number of its entry in the ledger. With the number of a
    COMMIT, print where all partitions of its topics ended after it, as JSON for the
    option endingOffsets.
    """
    refuse_beside("COMMIT", number, "--max-commits")
    cluster = open_cluster(path, client)
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
    commits = itertools.islice(cluster.history(topic), max_commits)
    if as_json:
        for commit in commits:
            print_json(_commit_as_json(commit))
        return
    table = Table(f"Commits of {cluster.address}")
    table.add_numbers("commit")
    table.add_words("time", "mode")
    table.add_texts("by", "topics")
    table.add_numbers("records", "bytes")
    for commit in commits:
        table.add_row(
            commit.number,
            iso_time(commit.time_ms),
            commit.mode,
            _name(commit) or None,
            list(commit.topics),
            commit.records_count,
            commit.size_in_bytes if commit.size_in_bytes >= 0 else None,
        )
    table.print(if_empty=f"{cluster.address} has no commits yet.")


def _commit_as_json(commit: Commit) -> dict[str, Any]:
    stored = commit.as_json()
    size = {"size_in_bytes": stored.pop("bytes")}
    return {**stored, "time": iso_time(commit.time_ms), **size}


def _name(commit: Commit) -> str:
    """Return who made a commit: the user, and the application or transaction."""
    author = commit.author
    if commit.sequence >= 0:
        return f"{author.user}, {commit.transactional_id} {commit.sequence}"
    return ", ".join(part for part in (author.user, author.application_id) if part)


@click.command(
    epilog=examples(
        "kbatch repair my-cluster --dry-run",
        "kbatch repair s3://my-bucket/events --dry-run",
    )
)
@stored_argument
@click.argument("names", metavar="[TOPIC[-PARTITION]]...", nargs=-1, shell_complete=complete_topic)
@click.option("--dry-run", is_flag=True, help="Only show what would be repaired.")
@client_options
@json_option
def repair(
    path: str, names: Sequence[str], dry_run: bool, client: Mapping[str, str], as_json: bool
) -> None:
    """Repair damaged logs, and report what was done.

    Logs are repaired as far as their batches allow: a lost kbatch.state, indexes, leader epochs and partition.metadata are rebuilt. A log that lost its
    state ends before its first damaged batch; the rest is kept in files whose names end in .damaged.
    Without names, all topics are checked. The exit code is 1 if batches are damaged beyond repair, or the disk of
    a partition's only replica is away.

    PATH may be the URL of a bucket to which no one writes meanwhile: its ledger and checkpoints are repaired as far
    as others tell what they said, and damaged batches are written again from where they were before a merge. What
    cannot be repaired so is left as it is.
    """
    ensure_goes_with(path, client)
    cluster = _bucket(path, client, dry_run=dry_run) if bucket_scheme(path) else Cluster(path)
    chosen = [tp for name in names for tp in _partitions_named(cluster, name)]
    if_found = "can be repaired" if dry_run else "repaired"
    if isinstance(cluster, Cluster):
        is_damaged = False
        reports = cluster.repair(chosen or None, dry_run=dry_run)
    else:
        is_damaged = _repair_ledger(cluster, if_found, as_json=as_json)
        reports = cluster.repair(chosen or None)
    done = _with_progress(reports, f"Repairing {path}", cluster, chosen, hidden=as_json)
    for report in done:
        _print_report(report, _state(report, if_found), as_json=as_json)
    if is_damaged or any(report.damaged or report.offline for report in done):
        sys.exit(1)


def _bucket(path: str, client: Mapping[str, str], *, dry_run: bool) -> BucketRepair:
    """Look at a bucket without opening its cluster, which its ledger may be too damaged for."""
    from spark_kbatch.bucket.mending import BucketRepair  # noqa: PLC0415  only for a bucket

    return BucketRepair(path, parse_store_options(client, path, alone=True), dry_run=dry_run)


def _repair_ledger(bucket: BucketRepair, if_found: str, *, as_json: bool) -> bool:
    """Repair a bucket's ledger, and print how it is; return whether it stays damaged."""
    ledger = bucket.ledger()
    state = "damaged" if ledger.damaged else if_found if ledger.found else "ok"
    if as_json:
        print_json({"ledger": state, "found": ledger.found, "damaged": ledger.damaged})
    else:
        print_line(visible(f"ledger: {state}, entries 0 to {ledger.last_entry}"))
        for sentence in (*ledger.found, *ledger.damaged):
            print_line(visible(f"  {sentence}"))
    return bool(ledger.damaged)


def _state(report: RepairReport, if_found: str) -> str:
    """Return the state of a partition in words; `if_found` if there is something to repair."""
    if report.damaged:
        return "damaged"
    if report.found:
        return if_found
    return "a replica is offline" if report.offline else "ok"


@click.command(epilog=examples("kbatch verify my-cluster", "kbatch verify s3://my-bucket/events"))
@stored_argument
@click.argument("names", metavar="[TOPIC[-PARTITION]]...", nargs=-1, shell_complete=complete_topic)
@client_options
@json_option
def verify(path: str, names: Sequence[str], client: Mapping[str, str], as_json: bool) -> None:
    """Check everything that is stored, and change nothing.

    That is the CRC of each batch, offsets, indexes, states, the files of topics, leader epochs, that in-sync
    replicas have the same batches, and the records of commits and consumer groups. What is wrong is listed,
    with what `kbatch repair` would do, and so are replicas whose disks are away; then the exit code is 1.
    Without names, everything is checked. PATH may be the log dir of a real broker, or the URL of a bucket: there
    it is each batch that the ledger refers to, and all that its checkpoints name. Where the ledger
    is damaged, that is listed too, and checked is what can still be told.
    """
    ensure_goes_with(path, client)
    cluster = (
        _bucket(path, client, dry_run=True)
        if bucket_scheme(path)
        else open_for_reading(path, client=client)
    )
    chosen = [tp for name in names for tp in _partitions_named(cluster, name)]
    reports = cluster.verify(chosen or None)
    done = _with_progress(reports, f"Checking {path}", cluster, chosen, hidden=as_json)
    wrong = [report for report in done if report.found or report.damaged]
    away = [report for report in done if report.offline]
    told = [report for report in done if report in wrong or report in away]
    for report in done if as_json else told:
        _print_report(report, _state(report, "can be repaired"), as_json=as_json)
    if not as_json:
        wrong = [report for report in wrong if report.topic_partition != NO_PARTITION]
        checked = counted(sum(one.topic_partition != NO_PARTITION for one in done), "partition")
        faults = counted(len(wrong), "partition") if wrong else "none"
        offline = f", {counted(len(away), 'partition')} with an offline replica" if away else ""
        print_line(f"{checked} checked: {faults} with faults{offline}.")
    if told:
        sys.exit(1)


def _with_progress(
    reports: Iterable[RepairReport],
    title: str,
    cluster: Cluster | BucketRepair,
    chosen: Sequence[TopicPartition],
    *,
    hidden: bool,
) -> list[RepairReport]:
    """Collect the reports of a verify or repair, with a progress bar of partitions on a terminal."""
    found = []
    with progress_bar(title, hidden=hidden) as on_progress:
        total = None
        if on_progress is not unshown:
            with contextlib.suppress(KBatchError):
                total = len(chosen) or sum(
                    len(cluster.partitions(name)) for name in cluster.topic_names(internal=True)
                )
        for report in reports:
            found.append(report)
            on_progress(len(found), total, counted(len(found), "partition"))
    return found


def _print_report(report: RepairReport, state: str, *, as_json: bool) -> None:
    if as_json:
        topic, partition = report.topic_partition
        rest = dict(zip(report._fields[1:], report[1:], strict=True))
        print_json({"topic": topic, "partition": partition, **rest})
        return
    start, end = report.log_start_offset, report.log_end_offset
    offsets = f"offsets {start} to {end}" if start >= 0 else "offsets unknown"
    is_ledger = report.topic_partition == NO_PARTITION
    line = f"ledger: {state}" if is_ledger else f"{report.topic_partition}: {state}, {offsets}"
    print_line(visible(line))
    for sentence in (*report.found, *report.damaged, *report.offline):
        print_line(visible(f"  {sentence}"))


def _partitions_named(cluster: Cluster | BucketRepair, name: str) -> list[TopicPartition]:
    """Return a topic's partitions for its name, or one partition for a name such as "events-0"."""
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


def _restored(
    path: str,
    log_dirs: str,
    without_nodes: tuple[int, ...],
    *,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> Cluster | None:
    """Return the cluster at PATH, restored from its log dirs; what is given up for that is asked and told.

    In a dry run it is only told, and None is returned.
    """
    lost = None
    if without_nodes:
        lost = given_up_by_restore(path, log_dirs, without_nodes)
    if dry_run:
        _print_given_up(lost or [], dry_run=True, as_json=as_json)
        return None
    if lost is not None and not yes:
        nodes = ", ".join(map(str, without_nodes))
        _ask_to_give_up(
            lost, f"changes that only node {nodes} knows: of topics, leaders and commits"
        )
    cluster = Cluster(path, create=True, log_dirs=log_dirs, without_nodes=without_nodes)
    _print_given_up(lost or [], as_json=as_json)
    return cluster


def _ask_to_give_up(lost: Sequence[GivenUp], *others: str) -> None:
    lines = [*others, *(f"{one.topic_partition}: {_what_is_lost(one)}" for one in lost)]
    if lines:
        confirm(lines, "give this up", "given up", LOOK)


def _print_given_up(
    lost: Sequence[GivenUp], *, dry_run: bool = False, as_json: bool = False
) -> None:
    if dry_run and not lost and not as_json:
        print_line("nothing would be given up")
    for one in lost:
        if as_json:
            offsets = {"first_offset": one.first_offset, "end_offset": one.end_offset}
            what = one.topic_partition._asdict() | offsets
            print_json({"would_be_given_up" if dry_run else "given_up": what})
        else:
            outcome = "would be given up" if dry_run else "given up"
            line = f"{one.topic_partition}: {outcome}: {_what_is_lost(one)}"
            click.echo(visible(line), err=True)


def _what_is_lost(lost: GivenUp) -> str:
    nodes = f"node{'s' * (len(lost.nodes) != 1)} {', '.join(map(str, lost.nodes))}"
    end = "not known" if lost.end_offset is None else str(lost.end_offset)
    if lost.first_offset is None:
        return f"all records of {nodes}; their end offset is {end}"
    return f"offsets {lost.first_offset} to {end} (exclusive), which only {nodes} may have"


@click.command(
    "log-dirs",
    epilog=examples("kbatch log-dirs my-cluster", "kbatch log-dirs my-cluster --replace 1"),
)
@folder_argument
@click.option("--replicate", is_flag=True, help="First bring replicas that lag back in sync.")
@click.option("--replace", type=click.IntRange(0), metavar="NODE", help="Replace the lost log dir of this node with the empty directory at its path.")  # fmt: skip
@click.option("--unclean", is_flag=True, help="With --replace: give up records of which the lost log dir may have had the only copy.")  # fmt: skip
@click.option("--elect-unclean", metavar="TOPIC", help="Let replicas that are not in sync lead, where no in-sync one can be used: records that only those had are given up.")  # fmt: skip
@click.option("--restore", metavar="DIR,DIR,...", help="Restore PATH, which is lost or old, from the folders that the cluster has its log dirs in.")  # fmt: skip
@click.option("--without-node", type=click.IntRange(0), multiple=True, metavar="NODE", help="With --restore: give up the log dir of this node, which is lost for good; may be repeated.")  # fmt: skip
@yes_option
@click.option("--dry-run", is_flag=True, help="Only show what --unclean, --elect-unclean or --without-node would give up.")  # fmt: skip
@click.option("--metrics", is_flag=True, help="Print metrics too, as a line of JSON, under a broker's names.")  # fmt: skip
@json_option
def log_dirs(
    path: str,
    replicate: bool,
    replace: int | None,
    unclean: bool,
    elect_unclean: str | None,
    restore: str | None,
    without_node: tuple[int, ...],
    yes: bool,
    dry_run: bool,
    metrics: bool,
    as_json: bool,
) -> None:
    """Show log dirs: their state, and what they hold.

    The state is online, full, read-only or offline: each is looked at and written to. Staged bytes are those of jobs
    that have not committed: they run, or were killed. The exit code is 1 if one is not online, or a replica is not in
    sync.

    --unclean, --elect-unclean and --without-node give records up: they list them, and ask first. Where stdin is no
    terminal they need --yes.
    """
    if without_node and restore is None:
        raise click.UsageError("--without-node goes with --restore")
    if unclean and replace is None:
        raise click.UsageError("--unclean goes with --replace")
    if dry_run and [restore, replace, elect_unclean].count(None) != 2:
        raise click.UsageError(
            "--dry-run goes with one of --replace, --elect-unclean and --restore"
        )
    if restore is None:
        cluster = Cluster(path)
    else:
        restored = _restored(path, restore, without_node, yes=yes, dry_run=dry_run, as_json=as_json)
        if restored is None:
            return
        cluster = restored
    if dry_run:
        lost = (
            []
            if replace is None
            else cluster.replace_log_dir(replace, unclean=unclean, dry_run=True)
        )
        if elect_unclean is not None:
            lost += cluster.elect_unclean(elect_unclean, dry_run=True)
        _print_given_up(lost, dry_run=True, as_json=as_json)
        return
    if replace is not None:
        if unclean and not yes:
            _ask_to_give_up(cluster.replace_log_dir(replace, unclean=True, dry_run=True))
        _print_given_up(cluster.replace_log_dir(replace, unclean=unclean), as_json=as_json)
    if elect_unclean is not None:
        if not yes:
            _ask_to_give_up(cluster.elect_unclean(elect_unclean, dry_run=True))
        lost = cluster.elect_unclean(elect_unclean)
        for one in lost:
            click.echo(f"{one.topic_partition}: a replica that was not in sync leads", err=True)
        _print_given_up(lost, as_json=as_json)
    if replicate or replace is not None:
        cluster.replicate()
    found = cluster.log_dirs()
    table = Table(f"Log dirs of {cluster.path}")
    table.add_numbers("node", "replicas", "leaders", "not in sync", "staged bytes")
    table.add_texts("path", "state")
    for row in found:
        if as_json:
            print_json(row._asdict())
        state = row.state if row.why_offline is None else f"{row.state}: {row.why_offline}"
        table.add_row(
            row.node_id,
            row.replicas,
            row.leaders,
            row.not_in_sync,
            row.staged_size_in_bytes,
            str(row.path),
            state,
        )
    if not as_json:
        table.print()
    if metrics:
        print_json({"metrics": cluster.metrics()})
    if any(row.why_offline is not None or row.not_in_sync for row in found):
        sys.exit(1)
