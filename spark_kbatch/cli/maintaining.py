"""`kbatch maintain`, what a cluster in a bucket needs now and then, and `kbatch describe`, what there is in it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from spark_kbatch.cli.confirming import confirm, dry_run_option, yes_option
from spark_kbatch.cli.output import counted, iso_time, print_json, print_line
from spark_kbatch.cli.parameters import examples, json_option
from spark_kbatch.cli.paths import bucket_argument, client_options
from spark_kbatch.cli.progress import progress_bar
from spark_kbatch.cli.stopping import asked_to_stop
from spark_kbatch.errors import (
    CommitError,
    CorruptLedgerError,
    CorruptRecordError,
    ObjectAccessDeniedError,
    ObjectStoreError,
)
from spark_kbatch.options.object_store import StoreOptions, parse_store_options
from spark_kbatch.terminal import visible

if TYPE_CHECKING:
    from spark_kbatch.bucket.maintenance import BucketDescription, Maintained, Merged, Stored
    from spark_kbatch.bucket.store import BucketStore


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
                print_json(_as_json(done))
            else:
                for line in _lines(done, dry_run=dry_run):
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


@click.command(epilog=examples("kbatch describe s3://my-bucket/events"))
@bucket_argument
@client_options
@json_option
def describe(path: str, client: Mapping[str, str], as_json: bool) -> None:
    """Show what there is in a bucket.

    PATH is its URL. Shown are its ledger, its data, and what waits to be merged or deleted.
    """
    from spark_kbatch.bucket.maintenance import describe as found_in  # noqa: PLC0415  only for a bucket

    with contextlib.closing(_opened(path, client)) as store:
        found = found_in(store.ledger)
    if as_json:
        print_json(_description_as_json(found))
        return
    shown = {
        "cluster": found.cluster_id,
        "topics": f"{found.topics:,}, with {counted(found.partitions, 'partition')}",
        "ledger": f"{found.entries:,} entries, the last one of {iso_time(found.last_entry_ms)}",
        "checkpoint": f"entry {found.checkpoint:,}" if found.checkpoint >= 0 else "none yet",
        "horizon": f"entry {found.horizon:,}",
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
    from spark_kbatch.bucket.entries import FORMAT, NewFormat  # noqa: PLC0415  only for a bucket

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


def _as_json(done: Maintained) -> dict[str, Any]:
    return {
        "starts": {str(tp): offset for tp, offset in done.starts.items()},
        "merged": done.merged._asdict(),
        "collected": done.collected._asdict(),
        "damaged": done.damaged,
    }


def _lines(done: Maintained, *, dry_run: bool) -> Iterator[str]:
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
