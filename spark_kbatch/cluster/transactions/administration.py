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
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from spark_kbatch.clock import monotonic_ms
from spark_kbatch.cluster.group_records import CommittedOffset
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.cluster.transactions.checking import (
    OpenTransaction,
    all_open_transactions,
    open_transactions,
)
from spark_kbatch.cluster.transactions.ending import idle_transactions
from spark_kbatch.cluster.transactions.log import NO_EPOCH, StoredTransactions, read_transactions
from spark_kbatch.cluster.transactions.state import NO_START, Producer
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

logger = logging.getLogger(__name__)

HANGING = "Hanging"  # Kafka's word for a transaction that no coordinator will end
_TOLD_AFTER_MS = _LOOK_MS = 60_000

# Each is replaced or added to as a whole, so that a race of two threads only costs a look, or a second line.
_next_look_ms: dict[Path, int] = {}
_told: set[tuple[TopicPartition, Producer, int]] = set()


class ShownTransaction(NamedTuple):
    """The last transaction of a transactional id, or one that the coordinator's log does not have."""

    transactional_id: str | None  # None if the log does not have it
    producer: Producer
    state: str
    since_ms: int  # its start; of one that the log does not have, its last batch
    timeout_ms: int | None
    partitions: Mapping[TopicPartition, OpenTransaction | None]  # None where nothing is written
    offsets: Mapping[str, Mapping[TopicPartition, CommittedOffset]]  # that are pending, by group


class FolderTransactions:
    """The transactions of the clients of one cluster in a folder."""

    def __init__(self, parts: FolderParts) -> None:
        self._parts = parts
        self.address = str(parts.path)

    def served_at(self) -> str | None:
        """Return the address of the server that runs, and ends transactions by itself."""
        running = self._parts.running_server()
        return None if running is None else running.bootstrap_servers

    def shown(self) -> list[ShownTransaction]:
        """Return the last transaction of each id, sorted, and then those that the log does not have.

        Takes no lock. If the log cannot be read, all are of the second kind, with a warning.
        """
        try:
            stored = read_transactions(self._parts)
        except (KafkaStorageError, CorruptRecordError) as error:
            logger.warning("the log of transactions cannot be read: %s; see `kbatch repair`", error)
            stored = StoredTransactions()
        opened: dict[str | Producer, dict[TopicPartition, OpenTransaction]] = {}
        for one in all_open_transactions(self._parts, stored):
            by = one.owner.transactional_id if one.owner and one.is_known else one.producer
            opened.setdefault(by, {})[one.topic_partition] = one
        known = [
            ShownTransaction(
                name,
                one.producer,
                one.status.shown,
                one.start_ms if one.is_open or one.is_decided else NO_START,
                one.timeout_ms,
                {**dict.fromkeys(one.partitions), **opened.pop(name, {})},
                one.offsets,
            )
            for name, one in sorted(stored.transactions.items())
        ]
        unknown = [
            ShownTransaction(
                None, by, HANGING, max(one.last_timestamp for one in found.values()), None, found, {},
            )
            for by, found in opened.items()
            if isinstance(by, Producer)
        ]  # fmt: skip
        return known + unknown

    def abort(self, one: ShownTransaction) -> None:
        """Abort the transaction of an id, and fence its producer; if a server runs, by that.

        Raises:
            KBatchError: it is not ended, or not in all partitions; doing it again does no harm.
        """
        name = one.transactional_id
        assert name is not None
        try:
            with idle_transactions(self._parts) as transactions:
                found = all_open_transactions(self._parts, transactions.log.contents)
                epochs = (other.coordinator_epoch for other in found)
                transactions.log.start_epoch(above=max(epochs, default=NO_EPOCH))
                transactions.abort(name)
        except ServerRunningError as error:
            if not error.address:
                raise
            from spark_kbatch.remote.client import leased  # noqa: PLC0415  loads the network
            from spark_kbatch.remote.transactions import Transactions  # noqa: PLC0415

            with leased(parse_client_options(error.address, {})) as client:
                # A producer that starts ends what the one before it has left.
                Transactions(client, name, timeout_ms=one.timeout_ms or _LOOK_MS).take_over()

    def decide(self, chosen: OpenTransaction, *, is_commit: bool) -> None:
        """End a transaction that the log does not have, in its partition.

        Raises:
            ServerRunningError: a server runs.
            ConfigError: it is not there any more.
            KBatchError: it is not ended; doing it again does no harm.
        """
        at = chosen.topic_partition
        with idle_transactions(self._parts) as transactions:
            for one in open_transactions(self._parts, transactions.log.contents, [at]):
                if one[:4] == chosen[:4] and not one.is_known:  # up to the first offset
                    transactions.end_unknown(one, is_commit=is_commit)
                    return
        raise ConfigError(
            f"the transaction of producer {chosen.producer.producer_id} in {at} is not there any more"
        )


def look_after(parts: FolderParts, topic_partitions: Iterable[TopicPartition]) -> bool:
    """Look at the transactions that are open in partitions; return True if some were ended.

    If readers are held back there, a process looks once a minute, or when the next one's time is up. Errors are
    logged.
    """
    if monotonic_ms() < _next_look_ms.get(parts.path, 0):
        return False
    try:
        held = [
            tp
            for tp, one in parts.snapshots.replicas(topic_partitions).items()
            if one.state.last_stable_offset < one.state.high_watermark
        ]
        return bool(held) and _look_after(parts, held)
    except (OSError, KBatchError) as error:
        logger.warning("transactions in %s cannot be ended for now: %s", parts.path, error)
        return False


def _look_after(parts: FolderParts, held: Iterable[TopicPartition]) -> bool:
    _next_look_ms[parts.path] = monotonic_ms() + _LOOK_MS
    stored = read_transactions(parts)
    now_ms = expiring_ms(parts.manager.now_ms())
    is_due, left_ms = False, _LOOK_MS
    for one in open_transactions(parts, stored, held):
        owner = one.owner if one.is_known else None
        if owner is None:
            is_due |= one.may_abort
        else:
            is_due |= owner.is_due(now_ms)
            left_ms = min(left_ms, max(owner.start_ms + owner.timeout_ms - now_ms, 0) or _LOOK_MS)
        _tell(one, now_ms - (one.last_timestamp if owner is None else owner.start_ms))
    _next_look_ms[parts.path] = monotonic_ms() + left_ms
    return is_due and parts.running_server() is None and _end_due(parts, now_ms)


def _tell(one: OpenTransaction, open_ms: int) -> None:
    key = one.topic_partition, one.producer, one.first_offset
    if open_ms < _TOLD_AFTER_MS or one.first_offset < 0 or key in _told:
        return
    _told.add(key)
    if one.owner is not None and one.is_known:
        whose = f"the transaction of transactional id {one.owner.transactional_id!r}"
        what = "it is ended at its time-out, or by `kbatch transactions abort`"
    else:
        whose = "a transaction that the log of transactions does not have"
        what = "see `kbatch transactions`"
    logger.warning(
        "readers of committed records wait in %s from offset %d on, for %s (producer id %d, epoch %d), "
        "open for %d s: %s",
        one.topic_partition, one.first_offset, whose, *one.producer, open_ms // 1000, what,
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
        beyond = sorted({str(one.topic_partition) for one in found if one.is_beyond})
        if beyond:
            raise KafkaStorageError(
                f"the log of transactions is lost, damaged or older than {', '.join(beyond)}; decide with "
                "`kbatch transactions`"
            )
        for one in [*contents.transactions.values()]:
            if one.is_due(now_ms):
                transactions.abort(one.transactional_id)
                logger.warning(
                    "the transaction of transactional id %r was %s: no server runs, and %s",
                    one.transactional_id,
                    *(
                        ("aborted", f"it was open for more than {one.timeout_ms} ms")
                        if one.is_open
                        else ("ended", f"it was in state {one.status.shown}")
                    ),
                )
        for unknown in found:
            if unknown.may_abort and not unknown.is_known:
                transactions.end_unknown(unknown, is_commit=False)
    return True
