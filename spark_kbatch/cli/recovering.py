"""`kbatch recover`: begins a new cluster with what a replica of a bucket has whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from spark_kbatch.cli.confirming import LOOK, confirm, yes_option
from spark_kbatch.cli.output import counted, iso_time, print_json, print_line
from spark_kbatch.cli.parameters import examples, json_option
from spark_kbatch.cli.paths import bucket_argument, client_options
from spark_kbatch.cli.progress import progress_bar
from spark_kbatch.errors import ConfigError
from spark_kbatch.options.object_store import parse_store_options
from spark_kbatch.terminal import visible

if TYPE_CHECKING:
    from spark_kbatch.bucket.recovery import Chain, LostRange


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
    lines = [*_lines(chain)]
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
        print_json({**_as_json(chain), "new_cluster_id": new_id})
    elif new_id is not None:
        print_line(
            visible(
                f"The cluster at {recovery.address} is {new_id} now. What was there stays below "
                f"{recovery.address}/{chain.cluster_id}/ until you delete it."
            )
        )


def _lines(chain: Chain) -> Iterator[str]:
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


def _as_json(chain: Chain) -> dict[str, Any]:
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
