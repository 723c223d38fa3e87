"""`__client_transactions`: the state of each transactional id, on disk and in memory.

    TransactionLog        for the one server of a cluster, or who keeps others from it
    read_transactions     for all processes, whether a server runs or not

It is a `StateLog`. Each process that writes it is a coordinator with an epoch of its own, one higher than that
of the one before, which is stored before anything else and is in each marker. It takes the next epoch once a minute,
and then notes it in cluster.json. A higher epoch there, or in a partition's marker, says that the log is old: so that is
noticed for images that are older than a minute, however long a server runs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from spark_kbatch.clock import monotonic_ms, monotonic_s
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.cluster.state_log import KeyAndValue, StateLog, read_contents
from spark_kbatch.cluster.transactions import records
from spark_kbatch.cluster.transactions.state import ProducerIdAndEpoch, TransactionMetadata
from spark_kbatch.commit.internal_topics import CLIENT_TRANSACTIONS
from spark_kbatch.errors import KBatchError
from spark_kbatch.record.control import EndTransactionMarker, encode_marker
from spark_kbatch.record.scalar import PlainRecord

logger = logging.getLogger(__name__)

NO_EPOCH = -1
ADVICE = "run `kbatch repair`, and if that cannot mend the log, `kbatch transactions new-log`, with no server running"
_EPOCH_MS = 60_000  # for which a coordinator keeps its epoch
_PATIENCE_S = 1.0  # with the lock that noting it takes


@dataclass
class StoredTransactions:
    """The contents of `__client_transactions`: the state of each transactional id, and the coordinator's epoch."""

    transactions: dict[str, TransactionMetadata] = field(default_factory=dict)
    coordinator_epoch: int = NO_EPOCH
    noted_epoch: int = field(default=NO_EPOCH, compare=False)  # by cluster.json

    @property
    def is_old(self) -> bool:
        """Whether this is an older image of the log, or nothing in place of a lost one."""
        return self.coordinator_epoch < self.noted_epoch

    def apply(self, transaction: TransactionMetadata) -> None:
        """Set the state of a transactional id."""
        self.transactions[transaction.transactional_id] = transaction

    def forget(self, transactional_ids: Iterable[str]) -> None:
        """Remove transactional ids."""
        for one in transactional_ids:
            self.transactions.pop(one, None)

    def apply_record(self, record: PlainRecord) -> None:
        """Apply a record of `__client_transactions`; raises CorruptRecordError if it is damaged."""
        transactional_id = records.unpack_key(record.key or b"")
        if record.value is None:
            self.forget([transactional_id])
            return
        value = records.unpack(transactional_id, record.value)
        if isinstance(value, TransactionMetadata):
            self.apply(value)
        else:
            self.coordinator_epoch = value

    def packed(self) -> Iterator[KeyAndValue]:
        """Yield the keys and values of records that hold all these contents, to rewrite the log from."""
        if self.coordinator_epoch != NO_EPOCH:
            yield records.pack_epoch(self.coordinator_epoch)
        yield from map(records.pack, self.transactions.values())


class TransactionLog:
    """The log of one coordinator, and its contents in memory. It is used by one thread at a time."""

    def __init__(self, parts: FolderParts, *, flush: bool, timeout_ms: int = 5_000) -> None:
        """Start with empty contents; `load` reads them.

        Args:
            parts: the cluster.
            flush: whether appends are on disk before they are acknowledged.
            timeout_ms: the longest that an append may take.
        """
        self._parts, self._flush, self._now_ms = parts, flush, parts.manager.now_ms
        self._log = StateLog(parts, CLIENT_TRANSACTIONS, StoredTransactions, timeout_ms=timeout_ms)
        self._next_epoch_ms = 0  # on the monotonic clock; until then the epoch is its own

    @property
    def contents(self) -> StoredTransactions:
        """The contents of the log, as of the last load or append."""
        return self._log.contents

    def load(self) -> StoredTransactions:
        """Read all of the log into `contents`, and return them; raises as `read_transactions`."""
        self._next_epoch_ms = 0
        noted_epoch = self._parts.metadata.cluster_file.coordinator_epoch()
        self._log.load().noted_epoch = noted_epoch
        return self.contents

    def append(self, transaction: TransactionMetadata) -> None:
        """Append the state of a transactional id, and apply it to `contents`.

        Raises:
            KBatchError: it is not stored; after a RequestTimedOutError it may be.
        """
        self.start_epoch()
        self._log.append(
            [records.pack(transaction)], lambda: self.contents.apply(transaction), flush=self._flush
        )

    def forget(self, transactional_ids: Sequence[str]) -> None:
        """Remove transactional ids; raises as `append`."""
        self._log.append(
            _tombstones(transactional_ids),
            lambda: self.contents.forget(transactional_ids),
            flush=self._flush,
        )

    def marker(self, producer: ProducerIdAndEpoch, *, is_commit: bool) -> bytearray:
        """Return this coordinator's marker, which ends a producer's transaction in a partition."""
        return encode_marker(
            EndTransactionMarker(not is_commit, self.contents.coordinator_epoch),
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            timestamp_ms=self._now_ms(),
        )

    def start_epoch(self) -> None:
        """Store an epoch of this coordinator's own, before it is used; raises as `append`."""
        if monotonic_ms() >= self._next_epoch_ms:
            self._start_epoch(NO_EPOCH, ())

    def start_again(self, above: int) -> None:
        """Forget all transactional ids, in an epoch above that of any marker; raises as `append`."""
        # In one batch: with its epoch alone, an old log would count as the newest.
        self._start_epoch(above, [*self.contents.transactions])

    def _start_epoch(self, above: int, forgotten: Sequence[str]) -> None:
        now_ms = monotonic_ms()
        epoch = max(self.contents.coordinator_epoch, self.contents.noted_epoch, above) + 1

        def apply() -> None:
            self.contents.forget(forgotten)
            self.contents.coordinator_epoch = epoch

        # Flushed: a marker of this epoch may outlive a loss of power.
        self._log.append([records.pack_epoch(epoch), *_tombstones(forgotten)], apply, flush=True)
        self._next_epoch_ms = now_ms + _EPOCH_MS
        self._note()

    def forget_if_old(self) -> None:
        """Forget all ids if the log is old: epochs, and what they end, would come twice; raises as `append`.

        No transaction may be open in a partition.
        """
        if self.contents.is_old:
            logger.warning(
                "the log of transactions is old, of epoch %d, and was last written in epoch %d: it forgets its %d "
                "transactional ids, and each producer starts with a new id",
                self.contents.coordinator_epoch, self.contents.noted_epoch, len(self.contents.transactions),
            )  # fmt: skip
            self.start_again(NO_EPOCH)

    def _note(self) -> None:
        # After the log has it: an epoch that is noted alone would make the newest log an old one.
        epoch, metadata = self.contents.coordinator_epoch, self._parts.metadata
        try:
            with self._parts.manager.locks.metadata(deadline=monotonic_s() + _PATIENCE_S):
                metadata.cluster_file.set_coordinator_epoch(epoch)
            self.contents.noted_epoch = epoch
        except (OSError, KBatchError) as error:
            logger.warning("an older image of transactions may not be noticed: %s", error)


def _tombstones(transactional_ids: Iterable[str]) -> list[KeyAndValue]:
    return [(records.pack_key(one), None) for one in transactional_ids]


def read_transactions(parts: FolderParts) -> StoredTransactions:
    """Return the contents of `__client_transactions`.

    Raises:
        KafkaStorageError, CorruptRecordError: it cannot be read, or its topic's file is lost.
    """
    # Before the log, which gets each epoch first.
    noted_epoch = parts.metadata.cluster_file.coordinator_epoch()
    found = read_contents(parts, CLIENT_TRANSACTIONS, StoredTransactions)[0]
    found.noted_epoch = noted_epoch
    return found
