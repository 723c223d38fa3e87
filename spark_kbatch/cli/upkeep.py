"""Commands that look after what is stored.

describe, history, verify, repair and gc do the same for each place: a folder or a bucket, and where
nothing is changed also what a broker left. What they show differs, as what there is does. log-dirs
is for disks; check, upgrade and recover are for buckets.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

import spark_kbatch
from spark_kbatch import Cluster, Commit
from spark_kbatch.cli.output import (
    LOOK,
    OnProgress,
    Row,
    Table,
    asked_to_stop,
    confirm,
    dry_run_option,
    is_json,
    json_option,
    look_option,
    number,
    print_json,
    print_line,
    progress_bar,
    show,
    tell,
    text,
    unshown,
    warn,
    word,
    yes_option,
)
from spark_kbatch.cli.parameters import ensure_beside, examples, refuse, refuse_beside
from spark_kbatch.cli.paths import (
    BUCKET,
    FOLDER,
    Place,
    client_options,
    complete_topic,
    folder_argument,
    place_argument,
    served_at,
)
from spark_kbatch.errors import (
    CommitError,
    ConfigError,
    CorruptLedgerError,
    CorruptRecordError,
    KafkaStorageError,
    KBatchError,
    ObjectAccessDeniedError,
    ObjectStoreError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import NO_PARTITION, TopicPartition
from spark_kbatch.opening.stores import given_up_by_restore, store_of
from spark_kbatch.options.write import STAGING_RETENTION_MS
from spark_kbatch.store.reports import RepairReport, Waiting
from spark_kbatch.terminal import counted, iso_time, visible
from spark_kbatch.web.metrics import Exposition

if TYPE_CHECKING:
    from spark_kbatch.bucket.history import AuditLog
    from spark_kbatch.bucket.maintenance import BucketDescription, Maintained, Merged, Stored
    from spark_kbatch.bucket.mending import BucketRepair
    from spark_kbatch.bucket.probe import TriedStore
    from spark_kbatch.bucket.recovery import Chain, LostRange
    from spark_kbatch.ledger.audit import AuditEntry
    from spark_kbatch.store.reports import Garbage, GivenUp

_NUMBER = re.compile(r"[0-9]{1,20}")
_ID = re.compile(r"[0-9a-f]{32}")

_names_argument = click.argument(
    "names", metavar="[TOPIC[-PARTITION]]...", nargs=-1, shell_complete=complete_topic
)


@click.command(
    epilog=examples(
        "kbatch describe my-cluster",
        "kbatch describe s3://my-bucket/events --prometheus",
    )
)
@place_argument()
@click.option(
    "--prometheus",
    is_flag=True,
    help="Print metrics in the text format of Prometheus: of all partitions and consumer groups, and "
    "of log dirs, or of a bucket.",
)
@client_options
@json_option
def describe(place: Place, prometheus: bool) -> None:
    """Show what there is in a cluster.

    Of a bucket that is its ledger, its data, and what waits to be merged or deleted. Of a folder it
    is how much there is, and the state of its log dirs, to which nothing is written. PATH may be a
    broker's log dir, or HOST:PORT of a real cluster.
    """
    refuse_beside("--prometheus", prometheus or None, "--json")
    with place.open() as cluster:
        found = None
        if place.is_in_bucket:
            from spark_kbatch.bucket.maintenance import describe as found_in  # noqa: PLC0415  only for a bucket

            found = found_in(store_of(cluster).ledger)
        if prometheus:
            click.echo(Exposition(cluster, bucket=found).text()[1], nl=False)
            return
        row, shown = _of_place(cluster) if found is None else _of_bucket(found)
    tell(row, *(f"{name:14}{what}" for name, what in shown.items()))


def _of_place(cluster: Cluster) -> tuple[Row, Mapping[str, str]]:
    """Return what there is in a place that is no bucket: for JSON, and in words by name."""
    store, partitions = store_of(cluster), cluster.describe(names := cluster.topic_names())
    sizes = [max(one.size_in_bytes, 0) for one in partitions]
    row: Row = {
        "cluster_id": store.cluster_id or None,
        "server": served_at(cluster),
        "topics": len(names),
        "partitions": len(partitions),
        "offsets": sum(one.offsets.offsets_count for one in partitions),
        "size_in_bytes": None if cluster.is_remote else sum(sizes),
        "groups": len(cluster.groups()) if cluster.has("groups") else None,
        "commits": len(cluster.commit_numbers()) if cluster.has("commits") else None,
    }
    shown = {
        name.replace("_", " "): f"{value:,}" if isinstance(value, int) else value
        for name, value in row.items()
        if value is not None
    }
    log_dirs = [] if store.disks is None else store.disks.log_dirs(writes=False)
    states = {f"log dir {one.node_id}": f"{one.state}, {one.path}" for one in log_dirs}
    return row | {"log_dirs": [one._asdict() for one in log_dirs]}, shown | states


def _of_bucket(found: BucketDescription) -> tuple[Row, Mapping[str, str]]:
    row = {
        **found._asdict(),
        "entries_since_checkpoint": found.entries_since_checkpoint,
        **{name: getattr(found, name)._asdict() for name in ("referenced", "waiting", "ledger")},
        "most_small": str(found.most_small) if found.most_small else None,
    }
    shown = {
        "cluster": found.cluster_id,
        "topics": f"{found.topics:,}, with {counted(found.partitions, 'partition')}",
        "ledger": f"{found.entries:,} entries, the last one of {iso_time(found.last_entry_ms)}",
        "checkpoint": f"entry {found.checkpoint:,}, with {found.entries_since_checkpoint:,} after it"
        if found.checkpoint >= 0
        else "none yet",
        "horizon": f"entry {found.horizon:,}, and the one after it is of "
        f"{iso_time(found.unmaintained_since_ms)}",
        "clock": f"of the last writer, {found.clock_ahead_ms / 1000:+,.1f} s from the store's",
        "read": _stored(found.referenced),
        "waiting": f"{_stored(found.waiting)}: being written, replaced, or left behind",
        "ledger's own": _stored(found.ledger),
    }
    if found.most_small is not None:
        shown["small pieces"] = f"{found.small_extents:,} in {found.most_small}, which has the most"
    return row, shown


def _stored(found: Stored) -> str:
    return f"{counted(found.objects, 'object')}, {found.size_in_bytes:,} bytes"


@click.command(
    epilog=examples("kbatch history my-cluster -n 10", "kbatch history s3://my-bucket/events --all")
)
@place_argument(FOLDER, BUCKET)
@click.argument("number", metavar="[COMMIT]", required=False)
@click.option("--all", "every", is_flag=True, help="List all that has happened in a bucket, which is each entry of its ledger; or show the ENTRY whose number or id is in the place of COMMIT.")  # fmt: skip
@click.option("--topic", "-t", metavar="TOPIC", help="List only commits to this topic.")
@click.option("--max-commits", "--max-entries", "-n", "most", type=click.IntRange(1), metavar="N", help="List only the last N.")  # fmt: skip
@client_options
@json_option
def history(
    place: Place, number: str | None, every: bool, topic: str | None, most: int | None
) -> None:
    """List commits of Spark jobs, newest first.

    PATH may be the URL of a bucket, where a commit has the number of its entry in the ledger. With the number of a
    COMMIT, print where all partitions of its topics ended after it, as JSON for the
    option endingOffsets.

    With --all, list all that has happened in a bucket: what, when and by whom. An error about an
    unknown outcome names an ENTRY by number and id: say whether that is there; the exit code is 1 if
    it is not.
    """
    refuse_beside("ENTRY" if every else "COMMIT", number, "--max-commits")
    if every:
        refuse_beside("--all", every, "--topic")
        _list_entries(place, number, most)
        return
    if number is not None and not _NUMBER.fullmatch(number):
        raise click.UsageError(f"{number!r} is no commit's number; --all is for ids of entries")
    cluster = place.open_own()
    if number is not None:
        print_line(visible(cluster.find_commit(int(number)).ending_offsets(topic)))
        return
    if topic is not None and next(cluster.history(topic), None) is None:
        # Only where nothing was committed: commits to a topic that was deleted are listed.
        cluster.topic(topic)
    if (first := cluster.first_commit()) > 0:
        warn(f"the history starts at commit {first}: earlier commits were deleted")
    commits = itertools.islice(cluster.history(topic), most)
    show(
        f"Commits of {cluster.address}",
        _COMMITS,
        map(_commit_row, commits),
        f"{cluster.address} has no commits yet.",
    )


def _commit_row(commit: Commit) -> Row:
    stored = commit.as_json()
    size = {"size_in_bytes": stored.pop("bytes")}
    return {**stored, "time": iso_time(commit.time_ms), **size}


def _made_by(commit: Row) -> str | None:
    if commit["sequence"] >= 0:
        return f"{commit['user']}, {commit['transactional_id']} {commit['sequence']}"
    return ", ".join(filter(None, (commit["user"], commit["application_id"]))) or None


_COMMITS = (
    number("commit"),
    word("time"),
    word("mode"),
    text("by", _made_by),
    text("topics", lambda commit: [*commit["ends"]]),
    number("records"),
    number("bytes", lambda commit: size if (size := commit["size_in_bytes"]) >= 0 else None),
)
_ENTRIES = (
    number("entry"),
    word("time"),
    word("kind"),
    text("by"),
    text("what"),
    word("id"),
)


def _list_entries(place: Place, entry: str | None, most: int | None) -> None:
    if not place.is_in_bucket:
        raise click.UsageError(
            "--all is for a bucket, whose ledger has all that happened; a folder keeps commits alone"
        )
    from spark_kbatch.bucket.history import AuditLog  # noqa: PLC0415  only for a bucket

    audit_log = AuditLog(place.path, place.store_options)
    found = (
        itertools.islice(audit_log.newest_first(), most)
        if entry is None
        else [_looked_up(audit_log, entry)]
    )
    show(
        f"Ledger of {audit_log.address}",
        _ENTRIES,
        map(_entry_row, found),
        f"{audit_log.address} has no entries yet.",
    )


def _looked_up(audit_log: AuditLog, entry: str) -> AuditEntry:
    if _ID.fullmatch(entry):
        found = audit_log.of_id(entry)
    elif _NUMBER.fullmatch(entry):
        found = audit_log.at(int(entry))
    else:
        raise click.UsageError(f"{entry!r} is no entry's number, and no id of 32 hex digits")
    if found is None:
        raise ConfigError(
            f"no entry of {audit_log.address} is {entry}; the ledger ends with entry {audit_log.last}. What a "
            "process wanted to write so is not committed, unless that process still runs"
        )
    return found


def _entry_row(one: AuditEntry) -> Row:
    entry = one.entry
    return {
        "entry": entry.number, "time": iso_time(entry.time_ms), "kind": entry.content.kind, "by": entry.by or None,
        "what": one.what, "records": dict(one.records), "id": entry.entry_id,
    }  # fmt: skip


@click.command(
    epilog=examples(
        "kbatch repair my-cluster --dry-run",
        "kbatch repair s3://my-bucket/events --dry-run",
    )
)
@place_argument(FOLDER, BUCKET)
@_names_argument
@dry_run_option(help="Only show what would be repaired.")
@client_options
@json_option
def repair(place: Place, names: Sequence[str], dry_run: bool) -> None:
    """Repair damaged logs, and report what was done.

    Logs are repaired as far as their batches allow: a lost kbatch.state, indexes, leader epochs and partition.metadata are rebuilt. A log that lost its
    state ends before its first damaged batch; the rest is kept in files whose names end in .damaged.
    Without names, all topics are checked. The exit code is 1 if batches are damaged beyond repair, or the disk of
    a partition's only replica is away.

    PATH may be the URL of a bucket to which no one writes meanwhile: its ledger and checkpoints are repaired as far
    as others tell what they said, and damaged batches are written again from where they were before a merge. What
    cannot be repaired so is left as it is.
    """
    done = list[RepairReport]()
    try:
        _look_after(place, names, done, is_check=False, dry_run=dry_run)
    finally:  # what was done is shown, even if the rest fails
        for report in done:
            _print_report(report, "can be repaired" if dry_run else "repaired")
    if any(report.damaged or report.offline for report in done):
        sys.exit(1)


@click.command(epilog=examples("kbatch verify my-cluster", "kbatch verify s3://my-bucket/events"))
@place_argument(FOLDER, BUCKET)
@_names_argument
@client_options
@json_option
def verify(place: Place, names: Sequence[str]) -> None:
    """Check everything that is stored, and change nothing.

    That is the CRC of each batch, offsets, indexes, states, the files of topics, leader epochs, that in-sync
    replicas have the same batches, and the records of commits and consumer groups. What is wrong is listed,
    with what `kbatch repair` would do, and so are replicas whose disks are away; then the exit code is 1.
    Without names, everything is checked. PATH may be the log dir of a real broker, or the URL of a bucket: there
    it is each batch that the ledger refers to, and all that its checkpoints name. Where the ledger
    is damaged, that is listed too, and checked is what can still be told.
    """
    done = list[RepairReport]()
    _look_after(place, names, done, is_check=True, dry_run=True)
    told = [report for report in done if report.found or report.damaged or report.offline]
    for report in done if is_json() else told:
        _print_report(report, "can be repaired")
    if not is_json():
        partitions = [one for one in done if one.topic_partition != NO_PARTITION]
        wrong = sum(bool(one.found or one.damaged) for one in partitions)
        away = sum(bool(one.offline) for one in partitions)
        faults = counted(wrong, "partition") if wrong else "none"
        offline = f", {counted(away, 'partition')} with an offline replica" if away else ""
        print_line(
            f"{counted(len(partitions), 'partition')} checked: {faults} with faults{offline}."
        )
    if told:
        sys.exit(1)


def _look_after(
    place: Place, names: Sequence[str], done: list[RepairReport], *, is_check: bool, dry_run: bool
) -> None:
    """Check or repair what is named, by default all, with a progress bar; add the reports."""
    place.ensure_fits()
    where: Cluster | BucketRepair
    if place.is_in_bucket:  # whose ledger may be too damaged for its cluster to be opened
        from spark_kbatch.bucket.mending import BucketRepair  # noqa: PLC0415  only for a bucket

        where = BucketRepair(place.path, place.store_options, dry_run=dry_run)
    else:
        where = place.open() if is_check else place.open_own()
    chosen = [tp for name in names for tp in _partitions_named(where, name)]
    if is_check:
        reports = where.verify(chosen or None)
    elif isinstance(where, Cluster):
        reports = where.repair(chosen or None, dry_run=dry_run)
    else:
        reports = itertools.chain(_of_ledger(where), where.repair(chosen or None))
    with progress_bar(f"{'Checking' if is_check else 'Repairing'} {place.path}") as on_progress:
        total = None
        if on_progress is not unshown:
            with contextlib.suppress(KBatchError):
                every = where.topic_names(internal=True)
                total = len(chosen) or sum(len(where.partitions(name)) for name in every)
        for report in reports:
            done.append(report)
            on_progress(len(done), total, counted(len(done), "partition"))


def _of_ledger(bucket: BucketRepair) -> Iterator[RepairReport]:
    """Repair a bucket's ledger, and report it; its entries are in the place of offsets."""
    last_entry, found, damaged = bucket.ledger()
    yield RepairReport(NO_PARTITION, 0, last_entry + 1, found, damaged)


def _print_report(report: RepairReport, if_found: str) -> None:
    """Print how a partition is; with `if_found` as its state if there is something to repair."""
    (topic, partition), start, end, found, damaged, offline = report
    away = "a replica is offline" if offline else "ok"
    state = "damaged" if damaged else if_found if found else away
    edges = f"offsets {start} to {end}" if start >= 0 else "offsets unknown"
    line = f"{report.topic_partition}: {state}, {edges}"
    row = {"topic": topic, "partition": partition, **report._asdict()}
    del row["topic_partition"]
    if report.topic_partition == NO_PARTITION:
        line = f"ledger: {state}"
        if start >= 0:  # after a repair
            line = f"{line}, entries 0 to {end - 1}"
            row = {"ledger": state, "found": found, "damaged": damaged}
    tell(row, line, *(f"  {sentence}" for sentence in (*found, *damaged, *offline)))


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


@click.command(
    epilog=examples("kbatch gc my-cluster --dry-run", "kbatch gc s3://my-bucket/events --every 600")
)
@place_argument(FOLDER, BUCKET)
@click.argument("names", metavar="[TOPIC]...", nargs=-1, shell_complete=complete_topic)
@click.option("--every", type=click.FloatRange(min=1), metavar="SECONDS", help="Go on with a round every so many seconds, until SIGINT or SIGTERM.")  # fmt: skip
@click.option("--erase", metavar="TOPIC", help="In a bucket: delete TOPIC, and rewrite what other topics have in the same objects, so that all of its bytes are deleted in time.")  # fmt: skip
@look_option
@click.option(
    "--staging-retention-ms",
    type=click.IntRange(0),
    default=STAGING_RETENTION_MS,
    show_default=True,
    help="In a folder: how long a job's files may go without a write before the job counts as dead.",
)
@yes_option
@client_options
@json_option
def gc(
    place: Place,
    names: Sequence[str],
    every: float | None,
    erase: str | None,
    dry_run: bool,
    staging_retention_ms: int,
    yes: bool,
) -> None:
    """Delete expired segments and abandoned files.

    Abandoned files are those of jobs that never committed, and of topics that were deleted. A partition
    that cannot be used, such as one on an offline disk, is skipped, and the exit code is 1.

    PATH may be the URL of a bucket, where a round also merges small objects. It can be stopped
    anywhere and run anywhere, beside jobs and beside other rounds. What nothing refers to any more
    is deleted about a week later, when no reader and no job can need it. Objects that are lost or
    damaged are reported, and all else is done; then the exit code is 1. Where the ledger is so
    damaged that no one can write, nothing is done, and all that can be seen is reported.
    """
    if every is not None and dry_run:
        raise click.UsageError("--every and --dry-run do not go together")
    if erase is not None and (dry_run or every is not None):
        raise click.UsageError("--erase goes with neither --dry-run nor --every")
    place.ensure_fits()
    if place.is_in_bucket:
        refuse("in a bucket", "--staging-retention-ms")
        if names:
            raise click.UsageError("in a bucket all topics are looked after: leave out TOPIC")
        run = _maintenance(place, erase, yes=yes, dry_run=dry_run)
    else:
        refuse("in a folder", "--erase")
        run = functools.partial(_collect, place.path, names, staging_retention_ms, dry_run=dry_run)
    stop = asked_to_stop() if every is not None else None
    while True:
        try:
            is_well = run()
        except (
            CommitError,
            CorruptRecordError,
            KafkaStorageError,
            ObjectAccessDeniedError,  # as of a function for credentials that fails once
            ObjectStoreError,
        ) as error:
            if stop is None:
                raise
            warn(f"kbatch: {error}; the next round tries again")
        else:
            if not is_well and stop is None:
                sys.exit(1)
        if stop is None or stop.wait(every):
            return


def _collect(path: str, names: Sequence[str], staging_retention_ms: int, *, dry_run: bool) -> bool:
    """Delete what a folder need not have, and tell it; return False if something was left out."""
    with progress_bar(f"Collecting garbage of {path}"):
        garbage = Cluster(path).collect_garbage(
            names or None, staging_retention_ms=staging_retention_ms, dry_run=dry_run
        )
    for row, lines in _garbage_told(garbage, dry_run=dry_run):
        tell(row, *lines)
    has_deleted = (
        any(one.segments or one.files for one in garbage.partitions.values())
        or garbage.abandoned_jobs
        or garbage.deleted_topics
    )
    if not (is_json() or has_deleted or garbage.damaged_topics or garbage.skipped):
        print_line("Nothing to delete yet." if garbage.waiting else "Nothing to delete.")
    for tp, why in garbage.skipped.items():
        tell({"skipped": str(tp), "why": why})
        if not is_json():
            warn(f"kbatch: {tp} is skipped: {why}")
    return not (garbage.skipped or garbage.damaged_topics)


def _garbage_told(garbage: Garbage, *, dry_run: bool) -> Iterator[tuple[Row, Sequence[str]]]:
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
        row = one._asdict()
        yield {"waiting": row.pop("what"), **row}, [_kept(one)]


def _kept(waiting: Waiting) -> str:
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


def _maintenance(
    place: Place, erase: str | None, *, yes: bool, dry_run: bool
) -> Callable[[], bool]:
    """Erase a topic of a bucket, if one is named, and return what does a round of its maintenance.

    That returns False if something is damaged.
    """
    from spark_kbatch.bucket.maintenance import Maintenance  # noqa: PLC0415  only for a bucket

    title = f"Maintaining {place.path}"
    with _telling_damage(place):
        maintenance = Maintenance(place.path, place.store_options)
    if erase is not None:
        if not yes:
            confirm([f"{place.path}: topic {erase} with all its records"], "erase", "erased")
        with progress_bar(title) as bar:
            maintenance.erase(erase, on_progress=_merging(bar))
        if not is_json():
            print_line(visible(f"{erase} is deleted. Its bytes go in a week, if maintenance runs."))

    def run() -> bool:
        with _telling_damage(place), progress_bar(title) as bar:
            done = maintenance.run(dry_run=dry_run, on_progress=_merging(bar))
        row = {
            "starts": {str(tp): offset for tp, offset in done.starts.items()},
            "merged": done.merged._asdict(),
            "collected": done.collected._asdict(),
            "damaged": done.damaged,
        }
        tell(row, *_maintained_lines(done, dry_run=dry_run))
        for sentence in done.damaged:
            warn(f"kbatch: {sentence}; it is left as it is")
        return not done.damaged

    return run


@contextlib.contextmanager
def _telling_damage(place: Place) -> Iterator[None]:
    """Tell all that can be seen of a bucket whose ledger is damaged, before the error."""
    try:
        yield
    except CorruptLedgerError:
        from spark_kbatch.bucket.mending import BucketRepair  # noqa: PLC0415  only for a bucket

        for sentence in BucketRepair(place.path, place.store_options, dry_run=True).seen():
            warn(f"kbatch: {sentence}")
        raise


def _merging(bar: OnProgress) -> Callable[[Merged, int], object]:
    return lambda merged, total_bytes: bar(
        merged.size_in_bytes, total_bytes, counted(merged.segments, "segment")
    )


def _maintained_lines(done: Maintained, *, dry_run: bool) -> Iterator[str]:
    would = "would be " if dry_run else ""
    for tp, offset in done.starts.items():
        yield f"{tp} {'would start' if dry_run else 'starts'} at offset {offset}."
    merged, collected = done.merged, done.collected
    if merged.segments:
        yield (
            f"{counted(merged.extents, 'extent')}, {merged.size_in_bytes:,} bytes, {would}merged into "
            f"{counted(merged.segments, 'segment')}."
        )
    if collected.objects:
        yield f"{counted(collected.objects, 'object')}, {collected.size_in_bytes:,} bytes, {would}deleted."
    rest = [
        counted(count, what)
        for count, what in (
            (collected.checkpoints, "checkpoint"),
            (collected.parts, "part"),
            (collected.agreements, "agreement"),
        )
        if count
    ]
    if rest:
        yield f"Of the ledger {' and '.join(rest)} {would}deleted."
    if collected.tombstones:
        yield f"Of the ledger's old entries {collected.tombstones:,} {would}shortened."
    if not (done.starts or merged.segments or any(collected[1:]) or done.damaged):
        yield "Nothing to do."


def _give_up(
    act: Callable[..., Sequence[GivenUp]], *others: str, asks: bool, dry_run: bool
) -> Sequence[GivenUp]:
    """Give records up, after the question, and tell which; in a dry run only tell.

    Args:
        act: does it, or with its argument `dry_run` only says what would be given up.
        others: what else would be.
        asks: whether to ask.
        dry_run: whether it is one.
    """
    if asks and not dry_run:
        lost = [f"{one.topic_partition}: {_what_is_lost(one)}" for one in act(dry_run=True)]
        if others or lost:
            confirm([*others, *lost], "give this up", "given up", LOOK)
    found, outcome = act(dry_run=dry_run), "would be given up" if dry_run else "given up"
    if dry_run and not found and not is_json():
        print_line("nothing would be given up")
    for one in found:
        if is_json():
            offsets = {"first_offset": one.first_offset, "end_offset": one.end_offset}
            print_json({outcome.replace(" ", "_"): one.topic_partition._asdict() | offsets})
        else:
            warn(f"{one.topic_partition}: {outcome}: {_what_is_lost(one)}")
    return found


def _restore(
    path: str, log_dirs: str, without_nodes: tuple[int, ...], *, yes: bool, dry_run: bool
) -> None:
    """Restore the cluster at PATH from its log dirs; in a dry run only tell what that gives up."""
    lost = given_up_by_restore(path, log_dirs, without_nodes) if without_nodes else None

    def act(*, dry_run: bool) -> Sequence[GivenUp]:
        if not dry_run:
            Cluster(path, create=True, log_dirs=log_dirs, without_nodes=without_nodes)
        return lost or []

    _give_up(
        act,
        f"changes that only node {', '.join(map(str, without_nodes))} knows: of topics, leaders and "
        "commits",
        asks=lost is not None and not yes,
        dry_run=dry_run,
    )


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
@dry_run_option(help="Only show what --unclean, --elect-unclean or --without-node would give up.")
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
) -> None:
    """Show log dirs: their state, and what they hold.

    The state is online, full, read-only or offline: each is looked at and written to. Staged bytes are those of jobs
    that have not committed: they run, or were killed. The exit code is 1 if one is not online, or a replica is not in
    sync.

    --unclean, --elect-unclean and --without-node give records up: they list them, and ask first. Where stdin is no
    terminal they need --yes.
    """
    ensure_beside("--without-node", "--restore")
    ensure_beside("--unclean", "--replace")
    if dry_run and [restore, replace, elect_unclean].count(None) != 2:
        raise click.UsageError(
            "--dry-run goes with one of --replace, --elect-unclean and --restore"
        )
    if restore is not None:
        _restore(path, restore, without_node, yes=yes, dry_run=dry_run)
        if dry_run:
            return
    cluster = Cluster(path)
    if replace is not None:
        act = functools.partial(cluster.replace_log_dir, replace, unclean=unclean)
        _give_up(act, asks=unclean and not yes, dry_run=dry_run)
    if elect_unclean is not None:
        act = functools.partial(cluster.elect_unclean, elect_unclean)
        for one in _give_up(act, asks=not yes, dry_run=dry_run):
            if not dry_run:
                warn(f"{one.topic_partition}: a replica that was not in sync leads")
    if dry_run:
        return
    if replicate or replace is not None:
        cluster.replicate()
    found = cluster.log_dirs()
    show(f"Log dirs of {cluster.path}", _LOG_DIRS, [row._asdict() for row in found])
    if metrics:
        print_json({"metrics": cluster.metrics()})
    if any(row.why_offline is not None or row.not_in_sync for row in found):
        sys.exit(1)


_LOG_DIRS = (
    number("node", "node_id"),
    number("replicas"),
    number("leaders"),
    number("not in sync"),
    number("staged bytes", "staged_size_in_bytes"),
    text("path"),
    text("state", lambda row: ": ".join(filter(None, (row["state"], row["why_offline"])))),
)


@click.command(
    epilog=examples(
        "kbatch check s3://my-bucket/events", "kbatch check s3://my-bucket/events --trial"
    )
)
@place_argument(BUCKET)
@click.option(
    "--trial",
    is_flag=True,
    help="Try the store itself for some minutes, with a number of requests that is printed first, "
    "and print a report.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(0, min_open=True),
    default=10.0,
    show_default=True,
    metavar="MINUTES",
    help="How long the trial lasts; what it asks for grows with it.",
)
@client_options
@json_option
def check(place: Place, trial: bool, minutes: float) -> None:
    """Try what the store of a bucket lets you do.

    PATH is its URL. Each right is tried, with an object of its own, and named as the store's policies name it.
    Where they suffice, the store itself is tried as before a cluster is created. The exit code is 1 if this process
    cannot read, or if the store would lose commits.
    With --trial the report that is printed in the end has no name of yours in it, so that it can be
    shown to others.
    """
    if trial:
        refuse_beside("--trial", trial, "--json")
        _try_for(place, minutes)
        return
    from spark_kbatch.bucket.probe import READING, try_store  # noqa: PLC0415  only for a bucket

    found = try_store(place.path, place.store_options)
    rights = [
        {
            "right": one.what, "name": one.name, "needed_for": one.needed_for,
            "is_allowed": one.is_allowed, "refusal": one.refusal,
        }
        for one in found.rights
    ]  # fmt: skip
    if not is_json():
        Table(f"Rights at {place.path}", _RIGHTS, rights).print()
    tell(
        {
            "rights": rights, "faults": None if found.faults is None else [*found.faults],
            "cluster_id": found.cluster_id or None, "entries": found.entries, "left": found.left or None,
        },
        *_check_lines(found),
    )  # fmt: skip
    for right in found.rights:
        if not (right.is_allowed or is_json()):
            warn(f"{right.name} is missing: {right.refusal}")
    if found.faults or not found.may(READING):
        sys.exit(1)


_RIGHTS = (
    word("right", "name"),
    word("allowed", lambda right: "yes" if right["is_allowed"] else "no"),
    word("needed for"),
)


def _try_for(place: Place, minutes: float) -> None:
    from spark_kbatch.bucket import trial  # noqa: PLC0415  only for a bucket

    rounds = max(round(minutes * 60 / trial.ROUND_S), 1)
    found = trial.StoreTrial(place.path, place.store_options)
    warn(trial.announcement(rounds))
    found.run(rounds)
    for line in found.report_lines(spark_kbatch.__version__):
        print_line(visible(line))
    if found.faults or not found.ahead_ms:
        sys.exit(1)


def _check_lines(found: TriedStore) -> Iterable[str]:
    if found.faults is None:
        yield "The store was not tried, for want of a right."
    elif found.faults:
        yield f"The store loses commits: {found.faults[0]}."
    else:
        yield "The store passed."
    if found.cluster_id:
        yield f"Cluster {found.cluster_id} is there, with {found.entries:,} entries."
    elif all(right.is_allowed for right in found.rights[:2]):
        yield "No cluster is there."
    if found.left:
        yield f"{found.left} stays there."
    yield "Parts of uploads that fail stay until a rule of the bucket removes them: let one do so after 8 days."


@click.command(epilog=examples("kbatch upgrade s3://my-bucket/events"))
@place_argument(BUCKET)
@client_options
def upgrade(place: Place) -> None:
    """Let writers use the newest format in a bucket.

    PATH is its URL. Processes of versions that do not know the new format still read what they know, and write no more: upgrade
    these first. There is no way back.
    """
    from spark_kbatch.ledger.entries import FORMAT, NewFormat  # noqa: PLC0415  only for a bucket

    with place.open() as cluster:
        entry = store_of(cluster).ledger.commit(
            lambda state: NewFormat(FORMAT) if state.format < FORMAT else None, by="upgrade"
        )
    print_line(
        f"Nothing to do: the format is {FORMAT}, the newest that this version knows."
        if entry is None
        else f"The format is {FORMAT} from entry {entry.number} on."
    )


@click.command(epilog=examples("kbatch recover s3://my-replica/events --dry-run"))
@place_argument(BUCKET)
@yes_option
@dry_run_option(help="Only show what would be recovered, and what is lost.")
@click.option(
    "--whole",
    is_flag=True,
    help="Recover also where nothing is known to be lost, which stops all streams.",
)
@client_options
@json_option
def recover(place: Place, yes: bool, dry_run: bool, whole: bool) -> None:
    """Recover a cluster from a replica of its bucket.

    PATH is the replica's URL, to which nothing is copied any more. The newest state of which all is
    there becomes a cluster with a new id; what came after it is lost, and is listed first. Offsets stay, and topics
    get new ids: streams that have read from the lost cluster stop, and do not mix its records with new ones.
    Whoever still writes to it is refused from then on. Nothing is deleted.
    """
    from spark_kbatch.bucket.recovery import Recovery  # noqa: PLC0415  only for a bucket

    recovery = Recovery(place.path, place.store_options)
    chain = recovery.chain
    lines = [*_chain_lines(chain)]
    if not (recovery.is_needed or dry_run or whole):
        raise ConfigError(
            f"the cluster at {recovery.address} is whole up to entry {chain.entry}, the last that "
            "is there: it can be used as it is, or after `kbatch repair`. If streams have read what "
            "never came to this replica, add --whole: topics get new ids, and all streams stop"
        )
    if not (yes or dry_run):
        confirm(lines, "recover", "recovered", LOOK)
    elif not is_json():
        for line in lines:
            print_line(visible(line))
    new_id = None
    if not dry_run:
        with progress_bar(f"Recovering {place.path}") as bar:
            new_id = recovery.recover(lambda done, total: bar(done, total, counted(done, "object")))
            chain = recovery.chain
    told = [
        f"The cluster at {recovery.address} is {new_id} now. What was there stays below "
        f"{recovery.address}/{chain.cluster_id}/ until you delete it."
    ]
    tell({**_chain_as_json(chain), "new_cluster_id": new_id}, *(told if new_id else ()))


def _chain_lines(chain: Chain) -> Iterator[str]:
    is_whole = "can be read, with holes," if chain.has_holes else "is whole"
    yield (
        f"Cluster {chain.cluster_id} {is_whole} up to entry {chain.entry:,}, of "
        f"{iso_time(chain.time_ms)}: {counted(chain.objects, 'object')}, {chain.size_in_bytes:,} bytes."
    )
    if chain.why:
        yield f"There it ends: {chain.why}."
    missing = chain.newest - chain.entry - chain.later
    if chain.newest > chain.entry:
        yield (
            f"Later entries up to {chain.newest:,} are lost, {chain.later:,} that can be read and {missing:,} "
            "that cannot."
        )
    for lost in chain.lost:
        yield _lost_line(lost)
    for entry, what in chain.undone.items():
        yield f"Lost is also entry {entry:,}: {what}."
    for query in chain.queries:
        left = (
            f"after micro-batch {query.last}" if query.last >= 0 else "as if it had written nothing"
        )
        yield (
            f"Query {query.query_id} has written micro-batches up to {query.lost}, and is known {left}: it does not "
            "write the lost ones again unless it begins with a new checkpoint."
        )
    if not (chain.lost or chain.undone or chain.queries):
        yield "Nothing is known to be lost; what had not come to the replica at all is known to no one here."


def _lost_line(lost: LostRange) -> str:
    start, last = lost.start_offset, lost.next_offset - 1
    line = f"{lost.topic_partition}: offsets {start} to {last} are lost"
    if lost.records_count and not lost.is_known:
        return f"{line}; what is left of entries tells of {counted(lost.records_count, 'record')}."
    return f"{line}: {counted(lost.records_count, 'record')}." if lost.records_count else f"{line}."


def _chain_as_json(chain: Chain) -> Row:
    return {
        "cluster_id": chain.cluster_id,
        "entry": chain.entry,
        "time": iso_time(chain.time_ms),
        "why": chain.why or None,
        "newest_entry": chain.newest,
        "objects": chain.objects,
        "size_in_bytes": chain.size_in_bytes,
        "lost": [
            {
                "topic": one.topic_partition.topic,
                "partition": one.topic_partition.partition,
                "first_offset": one.start_offset,
                "end_offset": one.next_offset,
                "records": one.records_count,
            }
            for one in chain.lost
        ],
        "undone": [{"entry": number, "what": what} for number, what in chain.undone.items()],
        "queries": [one._asdict() for one in chain.queries],
    }
