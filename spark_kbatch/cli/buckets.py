"""Commands for a bucket: its store, what has happened in it, its upkeep, and its recovery."""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.cli.output import (
    LOOK,
    Table,
    confirm,
    dry_run_option,
    print_json,
    print_line,
    progress_bar,
    yes_option,
)
from spark_kbatch.cli.parameters import examples, json_option, refuse_beside
from spark_kbatch.cli.paths import (
    bucket_argument,
    client_options,
    ensure_bucket,
    open_readable,
    path_argument,
)
from spark_kbatch.cli.stopping import asked_to_stop
from spark_kbatch.errors import (
    CommitError,
    ConfigError,
    CorruptLedgerError,
    CorruptRecordError,
    ObjectAccessDeniedError,
    ObjectStoreError,
)
from spark_kbatch.options.object_store import StoreOptions, parse_store_options
from spark_kbatch.options.paths import bucket_scheme
from spark_kbatch.terminal import counted, iso_time, visible
from spark_kbatch.web.metrics import Exposition

if TYPE_CHECKING:
    from spark_kbatch.bucket.history import AuditLog
    from spark_kbatch.bucket.maintenance import BucketDescription, Maintained, Merged, Stored
    from spark_kbatch.bucket.probe import TriedStore
    from spark_kbatch.bucket.recovery import Chain, LostRange
    from spark_kbatch.bucket.store import BucketStore
    from spark_kbatch.ledger.audit import AuditEntry


_NUMBER = re.compile(r"[0-9]{1,20}")
_ID = re.compile(r"[0-9a-f]{32}")


@click.command(
    epilog=examples(
        "kbatch check s3://my-bucket/events", "kbatch check s3://my-bucket/events --trial"
    )
)
@bucket_argument
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
def check(path: str, trial: bool, minutes: float, client: Mapping[str, str], as_json: bool) -> None:
    """Try what the store of a bucket lets you do.

    PATH is its URL. Each right is tried, with an object of its own, and named as the store's policies name it.
    Where they suffice, the store itself is tried as before a cluster is created. The exit code is 1 if this process
    cannot read, or if the store would lose commits.
    With --trial the report that is printed in the end has no name of yours in it, so that it can be
    shown to others.
    """
    if trial:
        refuse_beside("--trial", trial, "--json")
        _try_for(path, parse_store_options(client, path, alone=True), minutes)
        return
    from spark_kbatch.bucket.probe import READING, try_store  # noqa: PLC0415  only for a bucket

    found = try_store(path, parse_store_options(client, path, alone=True))
    if as_json:
        rights = [
            {
                "right": one.what, "name": one.name, "needed_for": one.needed_for,
                "is_allowed": one.is_allowed, "refusal": one.refusal,
            }
            for one in found.rights
        ]  # fmt: skip
        print_json(
            {
                "rights": rights, "faults": None if found.faults is None else [*found.faults],
                "cluster_id": found.cluster_id or None, "entries": found.entries, "left": found.left or None,
            }
        )  # fmt: skip
    else:
        _print_check(path, found)
    if found.faults or not found.may(READING):
        sys.exit(1)


def _try_for(path: str, store: StoreOptions, minutes: float) -> None:
    from spark_kbatch.bucket import trial  # noqa: PLC0415  only for a bucket

    found, rounds = trial.StoreTrial(path, store), max(round(minutes * 60 / trial.ROUND_S), 1)
    click.echo(visible(trial.announcement(rounds)), err=True)
    found.run(rounds)
    for line in found.report_lines(spark_kbatch.__version__):
        print_line(visible(line))
    if found.faults or not found.ahead_ms:
        sys.exit(1)


def _print_check(path: str, found: TriedStore) -> None:
    table = Table(f"Rights at {path}")
    table.add_words("right", "allowed", "needed for")
    for right in found.rights:
        table.add_row(right.name, "yes" if right.is_allowed else "no", right.needed_for)
    table.print()
    for line in _check_lines(found):
        print_line(visible(line))
    for right in found.rights:
        if not right.is_allowed:
            click.echo(visible(f"{right.name} is missing: {right.refusal}"), err=True)


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


@click.command(
    epilog=examples(
        "kbatch ledger s3://my-bucket/events -n 20",
        "kbatch ledger s3://my-bucket/events 0f343b0931126a20f133d67c2b018a3b",
    )
)
@bucket_argument
@click.argument("entry", metavar="[ENTRY]", required=False)
@click.option("--max-entries", "-n", type=click.IntRange(1), metavar="N", help="List only the last N entries.")  # fmt: skip
@client_options
@json_option
def ledger(
    path: str, entry: str | None, max_entries: int | None, client: Mapping[str, str], as_json: bool
) -> None:
    """List what has happened in a bucket, newest first.

    PATH is its URL. With the number or the id of an ENTRY, as an error about an unknown outcome names them, say whether it is there;
    the exit code is 1 if it is not.
    """
    from spark_kbatch.bucket.history import AuditLog  # noqa: PLC0415  only for a bucket

    refuse_beside("ENTRY", entry, "--max-entries")
    audit_log = AuditLog(path, parse_store_options(client, path, alone=True))
    found = (
        itertools.islice(audit_log.newest_first(), max_entries)
        if entry is None
        else [_looked_up(audit_log, entry)]
    )
    if as_json:
        for one in found:
            print_json(_audit_entry_as_json(one))
        return
    table = Table(f"Ledger of {audit_log.address}")
    table.add_numbers("entry")
    table.add_words("time", "kind")
    table.add_texts("by", "what")
    table.add_words("id")
    for one in found:
        time, kind = iso_time(one.entry.time_ms), one.entry.content.kind
        table.add_row(
            one.entry.number, time, kind, one.entry.by or None, one.what, one.entry.entry_id
        )
    table.print(if_empty=f"{audit_log.address} has no entries yet.")


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


def _audit_entry_as_json(one: AuditEntry) -> dict[str, Any]:
    entry = one.entry
    return {
        "entry": entry.number, "time": iso_time(entry.time_ms), "kind": entry.content.kind, "by": entry.by or None,
        "what": one.what, "records": dict(one.records), "id": entry.entry_id,
    }  # fmt: skip


@click.command(
    epilog=examples(
        "kbatch maintain s3://my-bucket/events --dry-run",
        "kbatch maintain s3://my-bucket/events --every 600",
    )
)
@bucket_argument
@click.option("--every", type=click.FloatRange(min=1), metavar="SECONDS", help="Go on with a round every so many seconds, until SIGINT or SIGTERM.")  # fmt: skip
@click.option("--erase", metavar="TOPIC", help="Delete TOPIC, and rewrite what other topics have in the same objects, so that all of its bytes are deleted in time.")  # fmt: skip
@dry_run_option
@yes_option
@client_options
@json_option
def maintain(
    path: str,
    every: float | None,
    erase: str | None,
    dry_run: bool,
    yes: bool,
    client: Mapping[str, str],
    as_json: bool,
) -> None:
    """Merge small objects of a bucket, and delete garbage.

    PATH is its URL. Retention is kept too. A round can be stopped anywhere and run anywhere, beside jobs and beside other rounds. What nothing refers to any
    more is deleted about a week later, when no reader and no job can need it. Objects that are lost or
    damaged are reported, and all else is done; then the exit code is 1. Where the ledger is so
    damaged that no one can write, nothing is done, and all that can be seen is reported.
    """
    from spark_kbatch.bucket.maintenance import Maintenance  # noqa: PLC0415  only for a bucket

    if every is not None and dry_run:
        raise click.UsageError("--every and --dry-run do not go together")
    if erase is not None and (dry_run or every is not None):
        raise click.UsageError("--erase goes with neither --dry-run nor --every")
    store = parse_store_options(client, path, alone=True)
    with _telling_damage(path, store):
        maintenance = Maintenance(path, store)
    if erase is not None:
        if not yes:
            confirm([f"{path}: topic {erase} with all its records"], "erase", "erased")
        with _progress(path, hidden=as_json) as on_progress:
            maintenance.erase(erase, on_progress=on_progress)
        if not as_json:
            print_line(visible(f"{erase} is deleted. Its bytes go in a week, if maintenance runs."))
    stop = asked_to_stop() if every is not None else None
    while True:
        try:
            with _telling_damage(path, store), _progress(path, hidden=as_json) as on_progress:
                done = maintenance.run(dry_run=dry_run, on_progress=on_progress)
        except (
            CommitError,
            CorruptRecordError,
            ObjectAccessDeniedError,  # as of a function for credentials that fails once
            ObjectStoreError,
        ) as error:
            if stop is None:
                raise
            click.echo(visible(f"kbatch: {error}; the next round tries again"), err=True)
        else:
            if as_json:
                print_json(_maintained_as_json(done))
            else:
                for line in _maintained_lines(done, dry_run=dry_run):
                    print_line(visible(line))
            for sentence in done.damaged:
                click.echo(visible(f"kbatch: {sentence}; it is left as it is"), err=True)
            if done.damaged and stop is None:
                sys.exit(1)
        if stop is None or stop.wait(every):
            return


@contextlib.contextmanager
def _telling_damage(path: str, store: StoreOptions) -> Iterator[None]:
    """Tell all that can be seen of a bucket whose ledger is damaged, before the error."""
    try:
        yield
    except CorruptLedgerError:
        from spark_kbatch.bucket.mending import BucketRepair  # noqa: PLC0415  only for a bucket

        for sentence in BucketRepair(path, store, dry_run=True).seen():
            click.echo(visible(f"kbatch: {sentence}"), err=True)
        raise


@click.command(
    epilog=examples(
        "kbatch describe s3://my-bucket/events",
        "kbatch describe s3://my-bucket/events --prometheus",
    )
)
@path_argument
@click.option(
    "--prometheus",
    is_flag=True,
    help="Print metrics in the text format of Prometheus: of a bucket, and of all partitions and "
    "consumer groups; PATH may be a folder or HOST:PORT too.",
)
@client_options
@json_option
def describe(path: str, prometheus: bool, client: Mapping[str, str], as_json: bool) -> None:
    """Show what there is in a bucket.

    PATH is its URL. Shown are its ledger, its data, and what waits to be merged or deleted.
    """
    refuse_beside("--prometheus", prometheus or None, "--json")
    if prometheus and not bucket_scheme(path):
        with open_readable(path, client, None) as cluster:
            click.echo(Exposition(cluster).text()[1], nl=False)
        return
    ensure_bucket(click.get_current_context(), click.get_current_context().command.params[0], path)
    from spark_kbatch.bucket.maintenance import describe as found_in  # noqa: PLC0415  only for a bucket

    with contextlib.closing(_opened(path, client)) as store:
        found = found_in(store.ledger)
        if prometheus:
            click.echo(Exposition(Cluster.over(store), bucket=found).text()[1], nl=False)
            return
    if as_json:
        print_json(_description_as_json(found))
        return
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
    for name, text in shown.items():
        print_line(visible(f"{name:14}{text}"))


@click.command(epilog=examples("kbatch upgrade s3://my-bucket/events"))
@bucket_argument
@client_options
def upgrade(path: str, client: Mapping[str, str]) -> None:
    """Let writers use the newest format in a bucket.

    PATH is its URL. Processes of versions that do not know the new format still read what they know, and write no more: upgrade
    these first. There is no way back.
    """
    from spark_kbatch.ledger.entries import FORMAT, NewFormat  # noqa: PLC0415  only for a bucket

    with contextlib.closing(_opened(path, client)) as store:
        entry = store.ledger.commit(
            lambda state: NewFormat(FORMAT) if state.format < FORMAT else None, by="upgrade"
        )
    if entry is None:
        print_line(f"Nothing to do: the format is {FORMAT}, the newest that this version knows.")
    else:
        print_line(f"The format is {FORMAT} from entry {entry.number} on.")


def _opened(path: str, client: Mapping[str, str]) -> BucketStore:
    from spark_kbatch.bucket.store import BucketStore  # noqa: PLC0415  as above

    return BucketStore(path, parse_store_options(client, path, alone=True))


def _stored(found: Stored) -> str:
    return f"{counted(found.objects, 'object')}, {found.size_in_bytes:,} bytes"


def _description_as_json(found: BucketDescription) -> dict[str, Any]:
    return {
        **found._asdict(),
        "entries_since_checkpoint": found.entries_since_checkpoint,
        **{name: getattr(found, name)._asdict() for name in ("referenced", "waiting", "ledger")},
        "most_small": str(found.most_small) if found.most_small else None,
    }


@contextlib.contextmanager
def _progress(path: str, *, hidden: bool) -> Iterator[Callable[[Merged, int], object]]:
    """Show a progress bar of the bytes to merge; yield its update function."""
    with progress_bar(f"Maintaining {path}", hidden=hidden) as show:

        def update(merged: Merged, total_bytes: int) -> None:
            show(merged.size_in_bytes, total_bytes, counted(merged.segments, "segment"))

        yield update


def _maintained_as_json(done: Maintained) -> dict[str, Any]:
    return {
        "starts": {str(tp): offset for tp, offset in done.starts.items()},
        "merged": done.merged._asdict(),
        "collected": done.collected._asdict(),
        "damaged": done.damaged,
    }


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


@click.command(epilog=examples("kbatch recover s3://my-replica/events --dry-run"))
@bucket_argument
@yes_option
@click.option("--dry-run", is_flag=True, help="Only show what would be recovered, and what is lost.")  # fmt: skip
@click.option(
    "--whole",
    is_flag=True,
    help="Recover also where nothing is known to be lost, which stops all streams.",
)
@client_options
@json_option
def recover(
    path: str,
    yes: bool,
    dry_run: bool,
    whole: bool,
    client: Mapping[str, str],
    as_json: bool,
) -> None:
    """Recover a cluster from a replica of its bucket.

    PATH is the replica's URL, to which nothing is copied any more. The newest state of which all is
    there becomes a cluster with a new id; what came after it is lost, and is listed first. Offsets stay, and topics
    get new ids: streams that have read from the lost cluster stop, and do not mix its records with new ones.
    Whoever still writes to it is refused from then on. Nothing is deleted.
    """
    from spark_kbatch.bucket.recovery import Recovery  # noqa: PLC0415  only for a bucket

    recovery = Recovery(path, parse_store_options(client, path, alone=True))
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
    elif not as_json:
        for line in lines:
            print_line(visible(line))
    new_id = None
    if not dry_run:
        with progress_bar(f"Recovering {path}", hidden=as_json) as show:

            def update(done: int, total: int) -> None:
                show(done, total, counted(done, "object"))

            new_id = recovery.recover(update)
            chain = recovery.chain
    if as_json:
        print_json({**_chain_as_json(chain), "new_cluster_id": new_id})
    elif new_id is not None:
        print_line(
            visible(
                f"The cluster at {recovery.address} is {new_id} now. What was there stays below "
                f"{recovery.address}/{chain.cluster_id}/ until you delete it."
            )
        )


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
    for number, what in chain.undone.items():
        yield f"Lost is also entry {number:,}: {what}."
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


def _chain_as_json(chain: Chain) -> dict[str, Any]:
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
