"""The transactions of a cluster as a whole: what is shown of them, and who ends them where no server runs.

    FolderTransactions    shows, aborts and decides: `kbatch transactions`
    look_after            for those who find readers held back, or may: tells by which transaction, and ends
                          those whose time is up if no server does

Readers, committers of jobs and `kbatch gc` look after transactions. Else a server that does not come back would
hold all readers of committed records back for ever: a stream that waits at an open transaction commits nothing,
so that no one else would end it. The time is the folder's, and what the clock was set by does not count at once
(`log/steps`). Nothing is aborted while the log is older than a partition (`checking`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from spark_kbatch.clock import monotonic_ms
from spark_kbatch.cluster.ownership import Ownership
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.cluster.state_log import set_aside
from spark_kbatch.cluster.transactions.checking import (
    OpenTransaction,
    all_open_transactions,
    ensure_newest,
    last_epoch,
    open_transactions,
)
from spark_kbatch.cluster.transactions.ending import idle_transactions
from spark_kbatch.cluster.transactions.log import (
    ADVICE,
    StoredTransactions,
    TransactionLog,
    read_transactions,
)
from spark_kbatch.cluster.transactions.state import ProducerIdAndEpoch, TransactionMetadata
from spark_kbatch.commit.internal_topics import CLIENT_TRANSACTIONS
from spark_kbatch.errors import (
    ConfigError,
    CorruptRecordError,
    KafkaStorageError,
    KBatchError,
    ServerRunningError,
)
from spark_kbatch.log.steps import expiring_ms
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.remote import parse_client_options
from spark_kbatch.store.reports import RepairReport

logger = logging.getLogger(__name__)

_TOLD_AFTER_MS = _LOOK_MS = 60_000

# Each is replaced or added to as a whole, so that a race of two threads only costs a look, or a second line.
_next_look_ms: dict[Path, int] = {}
_told: set[tuple[TopicPartition, ProducerIdAndEpoch, int]] = set()

Opened: TypeAlias = Mapping[TopicPartition, OpenTransaction]


class FolderTransactions:
    """The transactions of the clients of one cluster in a folder."""

    def __init__(self, parts: FolderParts) -> None:
        self.parts = parts

    def shown(self) -> Sequence[tuple[TransactionMetadata, Opened]]:
        """Return the last transaction of each id, sorted, with the partitions where it is open.

        After them come those that the log does not have, without an id, and with the time of their last batch as
        start. If the log cannot be read, that is all of them, with a warning. Takes no lock.
        """
        try:
            stored = read_transactions(self.parts)
        except (KafkaStorageError, CorruptRecordError) as error:
            logger.warning("the log of transactions cannot be read: %s; %s", error, ADVICE)
            stored = StoredTransactions()
        opened: dict[tuple[str, ProducerIdAndEpoch], dict[TopicPartition, OpenTransaction]] = {}
        for one in all_open_transactions(self.parts, stored):
            owner = (
                one.owner
                if one.is_known and one.owner
                else TransactionMetadata("", one.producer, -1)
            )
            opened.setdefault(owner[:2], {})[one.topic_partition] = one
        known = [(one, opened.pop(one[:2], {})) for _, one in sorted(stored.transactions.items())]
        return known + [
            (
                TransactionMetadata(
                    *by, -1, start_ms=max(one.last_timestamp for one in at.values())
                ),
                at,
            )
            for by, at in opened.items()
        ]

    def abort(self, name: str) -> None:
        """Abort the transaction of an id, and fence its producer; if a server runs, by that.

        Raises:
            KBatchError: it is not ended, or not in all partitions; doing it again does no harm.
        """
        try:
            with idle_transactions(self.parts) as transactions:
                ensure_newest(all_open_transactions(self.parts, transactions.log.contents))
                transactions.abort(name)
        except ServerRunningError as error:
            if not error.address:
                raise
            from spark_kbatch.remote.client import bootstrap_nodes, leased  # noqa: PLC0415  loads the network
            from spark_kbatch.remote.transactions import Transactions  # noqa: PLC0415

            options = parse_client_options(error.address, {})
            (server,) = bootstrap_nodes(options)
            with leased(options) as client:
                # A producer that starts ends what the one before it has left. What the server tells clients may be
                # an address that this host does not reach; no maximum is below this time-out.
                Transactions(client, name, timeout_ms=1, coordinator=server).take_over()

    def decide(self, chosen: OpenTransaction, *, is_commit: bool) -> None:
        """End a transaction that the log does not have, in its partition.

        Raises:
            ServerRunningError: a server runs.
            ConfigError: it is not there any more.
            KBatchError: it is not ended; doing it again does no harm.
        """
        at = chosen.topic_partition
        with idle_transactions(self.parts) as transactions:
            for one in open_transactions(self.parts, transactions.log.contents, [at]):
                if one[:4] == chosen[:4] and not one.is_known:  # up to the first offset
                    transactions.end_unknown(one, is_commit=is_commit)
                    return
        raise ConfigError(
            f"the transaction of producer {chosen.producer.producer_id} in {at} is not there any more"
        )

    def ensure_lost(self) -> None:
        """Check that the log cannot be read, nor repaired.

        Raises:
            ConfigError: it can.
            UnknownTopicOrPartitionError, KafkaStorageError: its topic's file is lost or damaged.
        """
        try:
            read_transactions(self.parts)
        except (KafkaStorageError, CorruptRecordError):
            self.parts.manager.partition(CLIENT_TRANSACTIONS)
            report = self._repair(dry_run=True)
            if report.damaged:
                return
            raise ConfigError(
                f"the log of transactions is not lost: {'; '.join(report.found + report.offline)}; "
                f"see `kbatch repair {self.parts.path}`"
            ) from None
        raise ConfigError(
            "the log of transactions can be read, so it is kept; `kbatch transactions` shows what it has"
        )

    def start_log(self) -> None:
        """Set the log aside, and start a new one, for which each open transaction is to be decided.

        Raises:
            ConfigError: as `ensure_lost`.
            ServerRunningError: a server runs.
            KBatchError: it is not started; nothing is decided.
        """
        ownership = Ownership(self.parts.metadata)
        try:
            self._repair(dry_run=False)  # Another replica may be whole, which shows only then.
            self.ensure_lost()
            set_aside(self.parts, CLIENT_TRANSACTIONS)
            log = TransactionLog(self.parts, flush=True)
            log.start_again(above=last_epoch(self.parts))
        finally:
            ownership.release()

    def _repair(self, *, dry_run: bool) -> RepairReport:
        from spark_kbatch.cluster.upkeep import ClusterRepair  # noqa: PLC0415  loads numpy

        repair = ClusterRepair(self.parts.manager, self.parts.commits, dry_run=dry_run)
        return next(repair.run([CLIENT_TRANSACTIONS], {}, skip_deleted=False))


def look_after(parts: FolderParts, topic_partitions: Iterable[TopicPartition]) -> bool:
    """Look at the transactions that are open in partitions; return True if some were ended.

    If readers are held back there, a process looks once a minute, or when the next one's time is up. Errors are
    logged.
    """
    if monotonic_ms() < _next_look_ms.get(parts.path, 0):
        return False
    try:
        replicas = parts.snapshots.replicas(topic_partitions)
        held = [tp for tp, one in replicas.items() if one.offsets.held_back]
        return bool(held) and _look_after(parts, held)
    except (OSError, KBatchError) as error:
        logger.warning("transactions in %s cannot be ended for now: %s", parts.path, error)
        return False


def _look_after(parts: FolderParts, held: Iterable[TopicPartition]) -> bool:
    _next_look_ms[parts.path] = monotonic_ms() + _LOOK_MS
    stored = read_transactions(parts)
    now_ms = expiring_ms(parts.manager.now_ms())
    # Of all: this process does not look again before, whatever it reads.
    every = stored.transactions.values()
    is_due = any(one.is_due(now_ms) for one in every)
    left = [one.start_ms + one.timeout_ms - now_ms for one in every if one.is_open]
    for one in open_transactions(parts, stored, held):
        owner = one.owner if one.is_known else None
        if owner is None:
            is_due |= one.may_abort
        _tell(one, None if owner is None else now_ms - owner.start_ms)
    _next_look_ms[parts.path] = monotonic_ms() + min([_LOOK_MS, *(one for one in left if one > 0)])
    return is_due and parts.running_server() is None and _end_due(parts, now_ms)


def _tell(one: OpenTransaction, open_ms: int | None) -> None:
    """Log once who holds readers back, if for long; None for one that the log does not have, whose start no one knows."""
    key = one.topic_partition, one.producer, one.first_offset
    is_young = open_ms is not None and open_ms < _TOLD_AFTER_MS
    if is_young or one.first_offset < 0 or key in _told:
        return
    _told.add(key)
    logger.warning(
        "readers of committed records wait in %s from offset %d on: a transaction of producer id %d, epoch %d, "
        "transactional id %s, is %s; see `kbatch transactions`",
        one.topic_partition, one.first_offset, *one.producer,
        repr(one.owner.transactional_id) if one.owner is not None else "not known",
        "hanging" if open_ms is None else f"open for {open_ms // 1000} s",
    )  # fmt: skip


def _end_due(parts: FolderParts, now_ms: int) -> bool:
    """End transactions that are decided or whose time is up; return False if nothing may be ended.

    Raises:
        ServerRunningError: a server has just been started.
        KBatchError: not all are ended.
    """
    with idle_transactions(parts, patience_s=0) as transactions:
        contents = transactions.log.contents
        found = all_open_transactions(parts, contents)
        ensure_newest(found)
        for one in [*contents.transactions.values()]:
            if one.is_due(now_ms):
                transactions.abort(one.transactional_id)
                logger.warning(
                    "the transaction of transactional id %r is ended, as no server runs: it was in state %s, with a "
                    "time-out of %d ms",
                    one.transactional_id, one.status.shown, one.timeout_ms,
                )  # fmt: skip
        for unknown in found:
            if unknown.may_abort and not unknown.is_known:
                transactions.end_unknown(unknown, is_commit=False)
    return True
