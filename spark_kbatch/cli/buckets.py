"""Commands that a bucket alone has: what its store lets one do, its format, and its recovery."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

import spark_kbatch
from spark_kbatch.cli.output import (
    LOOK,
    Table,
    confirm,
    dry_run_option,
    is_json,
    json_option,
    print_line,
    progress_bar,
    tell,
    warn,
    word,
    yes_option,
)
from spark_kbatch.cli.parameters import examples, refuse_beside
from spark_kbatch.cli.paths import BUCKET, Place, client_options, place_argument
from spark_kbatch.errors import ConfigError
from spark_kbatch.opening.stores import store_of
from spark_kbatch.terminal import counted, iso_time, visible

if TYPE_CHECKING:
    from spark_kbatch.bucket.probe import TriedStore
    from spark_kbatch.bucket.recovery import Chain, LostRange


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
    from spark_kbatch.bucket.entries import FORMAT, NewFormat  # noqa: PLC0415  only for a bucket

    with place.open() as cluster:
        entry = store_of(cluster).ledger.commit(
            lambda state: NewFormat(FORMAT) if state.format < FORMAT else None, by="upgrade"
        )
    if entry is None:
        print_line(f"Nothing to do: the format is {FORMAT}, the newest that this version knows.")
    else:
        print_line(f"The format is {FORMAT} from entry {entry.number} on.")


@click.command(epilog=examples("kbatch recover s3://my-replica/events --dry-run"))
@place_argument(BUCKET)
@yes_option
@dry_run_option("what would be recovered, and what is lost")
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
        with progress_bar(f"Recovering {place.path}") as show:

            def update(done: int, total: int) -> None:
                show(done, total, counted(done, "object"))

            new_id = recovery.recover(update)
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
