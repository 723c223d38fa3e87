"""Commands for a bucket: what its store lets this process do, and what has happened there."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from spark_kbatch.cli.output import Table, iso_time, print_json, print_line
from spark_kbatch.cli.parameters import examples, json_option, refuse_beside
from spark_kbatch.cli.paths import bucket_argument, client_options
from spark_kbatch.errors import ConfigError
from spark_kbatch.options.object_store import parse_store_options
from spark_kbatch.terminal import visible

if TYPE_CHECKING:
    from spark_kbatch.bucket.happenings import Happening, Happenings
    from spark_kbatch.bucket.probe import TriedStore

_NUMBER = re.compile(r"[0-9]{1,20}")
_ID = re.compile(r"[0-9a-f]{32}")


@click.command(epilog=examples("kbatch check s3://my-bucket/events"))
@bucket_argument
@client_options
@json_option
def check(path: str, client: Mapping[str, str], as_json: bool) -> None:
    """Try what the store of a bucket lets you do.

    PATH is its URL. Each right is tried, with an object of its own, and named as the store's policies name it.
    Where they suffice, the store itself is tried as before a cluster is created. The exit code is 1 if this process
    cannot read, or if the store would lose commits.
    """
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
    from spark_kbatch.bucket.happenings import Happenings  # noqa: PLC0415  only for a bucket

    refuse_beside("ENTRY", entry, "--max-entries")
    happenings = Happenings(path, parse_store_options(client, path, alone=True))
    found = (
        itertools.islice(happenings.newest_first(), max_entries)
        if entry is None
        else [_looked_up(happenings, entry)]
    )
    if as_json:
        for one in found:
            print_json(_happening_as_json(one))
        return
    table = Table(f"Ledger of {happenings.address}")
    table.add_numbers("entry")
    table.add_words("time", "kind")
    table.add_texts("by", "what")
    table.add_words("id")
    for one in found:
        time, kind = iso_time(one.entry.time_ms), one.entry.content.kind
        table.add_row(
            one.entry.number, time, kind, one.entry.by or None, one.what, one.entry.entry_id
        )
    table.print(if_empty=f"{happenings.address} has no entries yet.")


def _looked_up(happenings: Happenings, entry: str) -> Happening:
    if _ID.fullmatch(entry):
        found = happenings.of_id(entry)
    elif _NUMBER.fullmatch(entry):
        found = happenings.at(int(entry))
    else:
        raise click.UsageError(f"{entry!r} is no entry's number, and no id of 32 hex digits")
    if found is None:
        raise ConfigError(
            f"no entry of {happenings.address} is {entry}; the ledger ends with entry {happenings.last}. What a "
            "process wanted to write so is not committed, unless that process still runs"
        )
    return found


def _happening_as_json(one: Happening) -> dict[str, Any]:
    entry = one.entry
    return {
        "entry": entry.number, "time": iso_time(entry.time_ms), "kind": entry.content.kind, "by": entry.by or None,
        "what": one.what, "records": dict(one.records), "id": entry.entry_id,
    }  # fmt: skip
