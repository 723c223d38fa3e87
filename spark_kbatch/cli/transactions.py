"""Commands on the transactions of Kafka's clients: list them, abort one, decide what the log does not know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from spark_kbatch.cli.output import Table, delete_each, print_json, print_line, yes_option
from spark_kbatch.cli.parameters import examples, json_option
from spark_kbatch.cli.paths import complete_topic, folder_argument
from spark_kbatch.errors import ConfigError
from spark_kbatch.opening.stores import open_transactions
from spark_kbatch.terminal import counted, iso_time

if TYPE_CHECKING:
    from spark_kbatch.cluster.transactions.administration import (
        FolderTransactions,
        ShownTransaction,
    )
    from spark_kbatch.cluster.transactions.checking import OpenTransaction

_OPEN = {"Ongoing", "PrepareCommit", "PrepareAbort"}  # states
_dry_run_option = click.option("--dry-run", is_flag=True, help="Only show what would be done.")
_ABORT, _COMMIT = ("abort", "aborted"), ("commit", "committed")


@click.command(
    epilog=examples(
        "kbatch transactions my-cluster", "kbatch transactions my-cluster billing --json"
    )
)
@folder_argument
@click.argument("transactional_id", metavar="[ID]", required=False)
@json_option
def transactions(path: str, transactional_id: str | None, as_json: bool) -> None:
    """List transactions of Kafka's clients, and what they hold back.

    Each transactional id has its last transaction, with a state of Kafka's. Until an open one is ended, readers of
    committed records wait at its first record in each partition: so many records are held back from that offset on.
    With a transactional ID, show its partitions, and offsets of groups that it commits.

    A server ends a transaction at its time-out, and if none runs, so does a reader or a job that finds it.
    `kbatch transactions abort` does not wait for that. A transaction without an id, in state Hanging, is one that the
    log of transactions does not have, because it is lost, damaged or older than the topics: no one ends it but
    `kbatch transactions decide`.
    """
    opened = open_transactions(path)
    found, server = opened.shown(), opened.served_at()
    if transactional_id is not None:
        found = [_find(found, transactional_id, opened)]
    if as_json:
        for one in found:
            print_json({**_as_json(one), "server": server})
        return
    where = "not served now" if server is None else f"served at {server}"
    if transactional_id is not None:
        _print_one(found[0], where)
        return
    table = Table(f"Transactions of {opened.address}, {where}")
    table.add_texts("transactional id")
    table.add_numbers("producer id", "epoch")
    table.add_words("state", "since")
    table.add_numbers("time-out ms")
    table.add_texts("records held back")
    for one in found:
        held = [
            f"{tp}: {0 if at is None else f'{at.held_back} from {at.first_offset}'}"
            for tp, at in one.partitions.items()
        ]
        since = iso_time(one.since_ms)
        table.add_row(one.transactional_id, *one.producer, one.state, since, one.timeout_ms, held)
    table.print(if_empty=f"{opened.address} has no transactions of clients; it is {where}.")


@click.command(
    "transactions abort", epilog=examples("kbatch transactions abort my-cluster billing --dry-run")
)
@folder_argument
@click.argument("names", metavar="ID...", nargs=-1, required=True)
@yes_option
@_dry_run_option
@json_option
def abort(path: str, names: Sequence[str], yes: bool, dry_run: bool, as_json: bool) -> None:
    """Abort the open transactions of transactional IDs, and fence their producers.

    Their records are never read as committed, and the producers get an error. One that is decided is ended as
    decided. If a server of PATH runs, it is asked to do it; else this command does, and no server starts meanwhile.
    """
    opened = open_transactions(path)
    shown = opened.shown()
    chosen = {name: _find(shown, name, opened) for name in names}
    for name, one in chosen.items():
        if one.state not in _OPEN:
            raise ConfigError(
                f"transactional id {name!r} has no open transaction: its state is {one.state}"
            )
    found = {
        name: (f"{_held(one)} held back, of producer {one.producer.producer_id}", _as_json(one))
        for name, one in chosen.items()
    }
    delete_each(
        "transaction",
        found,
        lambda name: opened.abort(chosen[name]),
        yes=yes,
        dry_run=dry_run,
        as_json=as_json,
        verb=_ABORT,
    )


@click.command(
    "transactions decide",
    epilog=examples("kbatch transactions decide my-cluster abort --producer-id 4000 --dry-run"),
)
@folder_argument
@click.argument("decision", type=click.Choice(["abort", "commit"]))
@click.option("--producer-id", type=click.IntRange(0), metavar="N", required=True, help="The producer whose transaction is open.")  # fmt: skip
@click.option("--topic", "-t", metavar="TOPIC", shell_complete=complete_topic, help="Only in this topic.")  # fmt: skip
@click.option("--partition", type=click.IntRange(0), metavar="N", help="Only in the partition of this number.")  # fmt: skip
@yes_option
@_dry_run_option
@json_option
def decide(
    path: str,
    decision: str,
    producer_id: int,
    topic: str | None,
    partition: int | None,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Abort or commit transactions that the log of transactions does not have.

    `kbatch transactions` shows them in state Hanging. If their records are to count, because the application had
    committed them, commit; else abort. No server of PATH may run: end it first. The log is then as new as the
    partitions, and a server goes on with it.
    """
    opened = open_transactions(path)
    chosen = {
        f"of producer {producer_id} in {tp}": at
        for one in opened.shown()
        if one.transactional_id is None and one.producer.producer_id == producer_id
        for tp, at in one.partitions.items()
        if at is not None and topic in (None, tp.topic) and partition in (None, tp.partition)
    }
    if not chosen:
        raise ConfigError(
            f"producer {producer_id} has no transaction there that is to be decided; `kbatch transactions` shows "
            "those in state Hanging"
        )
    is_commit = decision == "commit"
    delete_each(
        "transaction",
        {
            name: (_from(at), {**at.topic_partition._asdict(), "producer_id": producer_id})
            for name, at in chosen.items()
        },
        lambda name: opened.decide(chosen[name], is_commit=is_commit),
        yes=yes,
        dry_run=dry_run,
        as_json=as_json,
        verb=_COMMIT if is_commit else _ABORT,
    )


def _find(
    found: Sequence[ShownTransaction], transactional_id: str, opened: FolderTransactions
) -> ShownTransaction:
    names = [one.transactional_id for one in found if one.transactional_id is not None]
    if transactional_id not in names:
        raise ConfigError(
            f"transactional id {transactional_id!r} is not known in {opened.address}; its ids: "
            f"{', '.join(names) or 'none'}"
        )
    return found[names.index(transactional_id)]


def _held(one: ShownTransaction) -> str:
    return counted(sum(at.held_back for at in one.partitions.values() if at is not None), "record")


def _from(at: OpenTransaction) -> str:
    if at.first_offset < 0:
        return "nothing is open, but the log of transactions is older than the last marker"
    return f"{counted(at.held_back, 'record')} held back from offset {at.first_offset} on"


def _as_json(one: ShownTransaction) -> dict[str, Any]:
    return {
        "transactional_id": one.transactional_id,
        "producer_id": one.producer.producer_id,
        "producer_epoch": one.producer.epoch,
        "state": one.state,
        "start_timestamp": iso_time(one.since_ms),
        "timeout_ms": one.timeout_ms,
        "partitions": [
            {
                **tp._asdict(),
                "start_offset": None if at is None else at.first_offset,
                "held_back": 0 if at is None else at.held_back,
                "last_timestamp": None if at is None else iso_time(at.last_timestamp),
            }
            for tp, at in one.partitions.items()
        ],
        "offsets": [
            {"group": group, **tp._asdict(), "committed_offset": pending.offset}
            for group, of_group in one.offsets.items()
            for tp, pending in of_group.items()
        ],
    }


def _print_one(one: ShownTransaction, where: str) -> None:
    """Print the partitions of a transaction, and the offsets that it commits, as two tables."""
    shown = _as_json(one)
    since = f" since {shown['start_timestamp']}" if shown["start_timestamp"] else ""
    title = (
        f"Transaction {one.transactional_id}: {one.state}{since}, producer id {one.producer.producer_id}, "
        f"epoch {one.producer.epoch}, time-out {one.timeout_ms} ms, {where}"
    )
    partitions = Table(title)
    partitions.add_texts("topic")
    partitions.add_numbers("partition", "start offset", "records held back")
    partitions.add_words("last record")
    for row in shown["partitions"]:
        partitions.add_row(*row.values())
    partitions.print(if_empty=f"{title}; it has no partitions.")
    if shown["offsets"]:
        print_line("")
        offsets = Table("Offsets of groups, pending")
        offsets.add_texts("group", "topic")
        offsets.add_numbers("partition", "offset")
        for row in shown["offsets"]:
            offsets.add_row(*row.values())
        offsets.print()
