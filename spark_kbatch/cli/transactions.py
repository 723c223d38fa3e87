"""Commands on the transactions of Kafka's clients: list them, abort one, decide what the log does not have, and start a lost log again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from spark_kbatch.cli.output import (
    Table,
    delete_each,
    dry_run_option,
    is_json,
    json_option,
    number,
    show,
    text,
    text_of,
    word,
    yes_option,
)
from spark_kbatch.cli.parameters import examples
from spark_kbatch.cli.paths import complete_topic, folder_argument
from spark_kbatch.errors import ConfigError
from spark_kbatch.opening.stores import open_transactions
from spark_kbatch.terminal import counted, iso_time

if TYPE_CHECKING:
    from spark_kbatch.cluster.transactions.administration import Opened
    from spark_kbatch.cluster.transactions.checking import OpenTransaction
    from spark_kbatch.cluster.transactions.state import TransactionMetadata


@click.command(
    epilog=examples(
        "kbatch transactions my-cluster", "kbatch transactions my-cluster billing --json"
    )
)
@folder_argument
@click.argument("transactional_id", metavar="[ID]", required=False)
@json_option
def transactions(path: str, transactional_id: str | None) -> None:
    """List transactions of clients, and what they hold.

    Each transactional id has its last transaction, with a state of Kafka's. Until an open one is ended, readers of
    committed records wait at its first record in each partition: so many offsets are held back, from that one on.
    Consumers of groups that it has offsets of wait, too, if they ask for stable ones, as Java's do. With a
    transactional ID, show the partitions of its transaction, and these offsets.

    A server ends a transaction at its time-out, and if none runs, so does a reader or a job that finds it.
    `kbatch transactions abort` does not wait for that. A transaction without an id, in state Hanging, is one that the
    log of transactions does not have, because it is lost, damaged or older than the topics: no one ends it but
    `kbatch transactions decide`.
    """
    opened = open_transactions(path)
    found, running = opened.shown(), opened.parts.running_server()
    server = None if running is None else running.bootstrap_servers
    if transactional_id is not None:
        found = [_find(found, transactional_id, path)]
    rows = [{**_as_json(*one), "server": server} for one in found]
    where = "not served now" if server is None else f"served at {server}"
    title = f"Transactions of {opened.parts.path}, {where}"
    show(title, _ALL, rows, f"{path} has no transactions of clients; it is {where}.")
    if transactional_id is None or is_json():
        return
    title = f"Partitions and offsets of groups in the transaction of {transactional_id}"
    inside = [*rows[0]["partitions"], *rows[0]["offsets"]]
    Table(title, _ONE, inside).print(if_empty="It has no partitions and no offsets of groups.")


def _held_back(row: Mapping[str, Any]) -> list[str]:
    return [
        f"{one['topic']}-{one['partition']}: {one['held_back']} from {text_of(one['start_offset'])}"
        for one in row["partitions"]
    ]


def _waiting(row: Mapping[str, Any]) -> list[str]:
    return sorted({one["group"] for one in row["offsets"]})


_ALL = (
    text("transactional id"),
    number("producer id"),
    number("epoch", "producer_epoch"),
    word("state"),
    word("started", "start_timestamp"),
    number("time-out ms", "timeout_ms"),
    text("held back", _held_back),
    text("groups that wait", _waiting),
)
_ONE = (
    text("topic"),
    number("partition"),
    number("start offset"),
    number("held back"),
    word("last record", "last_timestamp"),
    text("group"),
    number("pending offset", "committed_offset"),
)


@click.command(
    "transactions abort", epilog=examples("kbatch transactions abort my-cluster billing --dry-run")
)
@folder_argument
@click.argument("names", metavar="ID...", nargs=-1, required=True)
@yes_option
@dry_run_option(help="Only show what would be done.")
@json_option
def abort(path: str, names: Sequence[str], yes: bool, dry_run: bool) -> None:
    """Abort open transactions of transactional IDs.

    Their records are never read as committed, and their producers are fenced: they get an error. One that is decided
    is ended as decided. If a server of PATH runs, it is asked to do it; else this command does, and no server starts
    meanwhile.
    """
    opened = open_transactions(path)
    shown = opened.shown()
    chosen = {name: _find(shown, name, path) for name in names}
    for name, (one, _) in chosen.items():
        if not one.is_active:
            raise ConfigError(
                f"transactional id {name!r} has no open transaction: its state is {one.status.shown}"
            )
    delete_each(
        "transaction",
        {name: (_held(*at.values()), _as_json(one, at)) for name, (one, at) in chosen.items()},
        opened.abort,
        yes=yes,
        dry_run=dry_run,
        verb=("abort", "aborted"),
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
@dry_run_option(help="Only show what would be done.")
@json_option
def decide(
    path: str,
    decision: str,
    producer_id: int,
    topic: str | None,
    partition: int | None,
    yes: bool,
    dry_run: bool,
) -> None:
    """Abort or commit hanging transactions.

    The log of transactions does not have them, and `kbatch transactions` shows them in state Hanging. If their
    records are to count, because the application had committed them, commit; else abort. No server of PATH may run:
    end it first. The log is then as new as the partitions, and a server goes on with it.
    """
    opened = open_transactions(path)
    chosen = {
        f"of producer {producer_id} in {tp}": at
        for one, opened_at in opened.shown()
        if not one.transactional_id and one.producer.producer_id == producer_id
        for tp, at in opened_at.items()
        if topic in (None, tp.topic) and partition in (None, tp.partition)
    }
    if not chosen:
        raise ConfigError(
            f"producer {producer_id} has no transaction there that is to be decided; `kbatch transactions` shows "
            "those in state Hanging"
        )
    delete_each(
        "transaction",
        {
            name: (_held(at), {**at.topic_partition._asdict(), "producer_id": producer_id})
            for name, at in chosen.items()
        },
        lambda name: opened.decide(chosen[name], is_commit=decision == "commit"),
        yes=yes,
        dry_run=dry_run,
        verb=("commit", "committed") if decision == "commit" else ("abort", "aborted"),
    )


@click.command(
    "transactions new-log", epilog=examples("kbatch transactions new-log my-cluster --dry-run")
)
@folder_argument
@yes_option
@dry_run_option(help="Only show what would be done.")
@json_option
def new_log(path: str, yes: bool, dry_run: bool) -> None:
    """Start a new log of transactions for a lost one.

    That is for a log that is gone or damaged, and that `kbatch repair` leaves so: meanwhile a server has no
    transactions. No server of PATH may run. The old log is kept in a directory whose name ends in -stray. The new one
    knows of no transactional id, and of no offsets of groups that waited for a commit. Nothing is decided: each
    transaction that is still open is in state Hanging, for `kbatch transactions decide`. After the last one, or if
    there is none, a server has transactions again.
    """
    opened = open_transactions(path)
    opened.ensure_lost()
    held = [at for _, of_one in opened.shown() for at in of_one.values()]
    row = {"held_back": sum(at.held_back for at in held)}
    delete_each(
        "log",
        {"of transactions": (f"{_held(*held)}, to be decided", row)},
        lambda _: opened.start_log(),
        yes=yes,
        dry_run=dry_run,
        verb=("replace", "replaced"),
    )


def _find(
    found: Sequence[tuple[TransactionMetadata, Opened]], transactional_id: str, path: str
) -> tuple[TransactionMetadata, Opened]:
    names = [one.transactional_id for one, _ in found]
    if not transactional_id or transactional_id not in names:
        raise ConfigError(
            f"transactional id {transactional_id!r} is not known in {path}; its ids: "
            f"{', '.join(filter(None, names)) or 'none'}"
        )
    return found[names.index(transactional_id)]


def _held(*opened: OpenTransaction) -> str:
    count = counted(sum(one.held_back for one in opened), "offset")
    return f"{count} held back in {counted(len(opened), 'partition')}"


def _as_json(one: TransactionMetadata, opened: Opened) -> dict[str, Any]:
    """Return a transaction for JSON; what is no number or text in it, `partitions` and `offsets`, is at the end."""
    is_known = bool(one.transactional_id)
    return {
        "transactional_id": one.transactional_id or None,
        "producer_id": one.producer.producer_id,
        "producer_epoch": one.producer.epoch,
        "state": one.status.shown if is_known else "Hanging",
        "start_timestamp": iso_time(one.start_ms),
        "timeout_ms": one.timeout_ms if is_known else None,
        "partitions": [
            {
                **tp._asdict(),
                "start_offset": opened[tp].first_offset if tp in opened else None,
                "held_back": opened[tp].held_back if tp in opened else 0,
                "last_timestamp": iso_time(opened[tp].last_timestamp) if tp in opened else None,
            }
            for tp in sorted({*one.partitions, *opened})
        ],
        "offsets": [
            {"group": group, **tp._asdict(), "committed_offset": pending.offset}
            for group, of_group in one.offsets.items()
            for tp, pending in of_group.items()
        ],
    }
