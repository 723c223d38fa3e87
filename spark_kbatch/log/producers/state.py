"""The producer state of a log, in memory: recent batches, to find duplicates, until they expire; open transactions.

For each producer id: its epoch, the last five batches of that epoch, the epoch of the coordinator that
last ended one of its transactions, and where its open transaction started. Sequences count records, from 0
for each (producer id, epoch), and wrap to 0 after 2^31 - 1. A batch is

    a duplicate     if its epoch, first and last sequence are those of a remembered batch: it is not
                    written again, and the answer has the original offsets
    fenced          if its epoch is below the producer's
    in sequence     if its first sequence follows the last one; is 0 in an epoch above the producer's,
                    or after a marker that raised the epoch; or if the producer is unknown
    out of order    otherwise, including a duplicate of a batch before the last five

A transactional batch opens a transaction at its base offset unless its producer has one open, and a marker
ends it. Until the marker is below the high watermark the transaction is unstable, because a new leader
may not have the marker: the last stable offset stays at the first offset of the first such transaction.

All this is in memory; `snapshot` and `saved` write it to files, `replay` rebuilds it from batches. Entries
are replaced whole, as the last step, so that a child forked in the middle of an append may replay the same
batches and gets the same state.

A producer is removed when it has been idle for producer.id.expiration.ms and has no open transaction. Idle
time is by the clock, because events may be old when they are written; `replay` says how it is found where
batches were not seen to arrive.

Source: Kafka storage/.../log/ProducerStateManager.java, ProducerStateEntry.java,
ProducerAppendInfo.java.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from spark_kbatch.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from spark_kbatch.log.steps import expiring_ms
from spark_kbatch.model import BATCHES_REMEMBERED, AbortedTransaction, TopicPartition
from spark_kbatch.record.control import EndTransactionMarker
from spark_kbatch.record.header import (
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    increment_sequence,
)

PRODUCER_ID_EXPIRATION_MS = 86_400_000
NO_COORDINATOR_EPOCH = -1
_EXPIRATION_CHECK_MS = 600_000


class BatchMetadata(NamedTuple):
    """The sequences and offsets of a producer's recent batch, kept to detect duplicates of it."""

    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def base_offset(self) -> int:
        """Offset of the batch's first record."""
        return self.last_offset - self.offset_delta


class ProducerEntry(NamedTuple):
    """The state of one producer id in a log: its epoch, recent batches and open transaction.

    `batches` are of its epoch, from the oldest to the newest.
    """

    producer_epoch: int
    batches: tuple[BatchMetadata, ...] = ()
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    last_timestamp: int = NO_TIMESTAMP  # largest of its last batch or marker, ms
    txn_first_offset: int | None = None  # of its open transaction
    last_append_ms: int = 0  # by the clock, or a later time if that is not known

    @property
    def last_sequence(self) -> int:
        """Sequence of the producer's newest record in its epoch; -1 if there is none."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


class ProducerStates:
    """The producer state of one log, by producer id.

    Guarded by the partition's lock.
    """

    def __init__(self, topic_partition: TopicPartition) -> None:
        self._topic_partition = topic_partition
        self._entries: dict[int, ProducerEntry] = {}
        self._open: dict[int, int] = {}  # producer ids, by the first offset of their transaction
        # Marker offsets, by the first offset of transactions that are ended but still unstable.
        self._ended: dict[int, int] = {}
        self._checked_ms = 0  # when expired entries were last removed

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> Mapping[int, ProducerEntry]:
        """The state of each producer by its id, as a view that changes with the next append."""
        return self._entries

    def load(self, entries: Mapping[int, ProducerEntry], now_ms: int) -> None:
        """Load the producer entries of a snapshot, except for expired ones.

        Nothing may have been added before.
        """
        now_ms = expiring_ms(now_ms)
        for producer_id, entry in entries.items():
            if not self._is_expired(entry, now_ms):
                self._entries[producer_id] = entry
                if entry.txn_first_offset is not None:
                    self._open[entry.txn_first_offset] = producer_id

    # Before an append.

    def find_duplicate(self, header: BatchHeader) -> BatchMetadata | None:
        """Return the remembered batch of which this is a duplicate, by epoch and sequences, if any."""
        entry = self._entries.get(header.producer_id)
        if entry is None or entry.producer_epoch != header.producer_epoch:
            return None
        sequences = header.base_sequence, _last_sequence(header)
        for batch in entry.batches:
            if (batch.first_sequence, batch.last_sequence) == sequences:
                return batch
        return None

    def ensure_follows(self, header: BatchHeader) -> None:
        """Check that a data batch is in sequence, and transactional if its producer has an open transaction.

        Raises:
            InvalidProducerEpochError: its epoch is fenced.
            OutOfOrderSequenceError: it is out of order.
            InvalidTxnStateError: it is not transactional, but its producer has an open transaction.
        """
        entry = self._entries.get(header.producer_id)
        if entry is None:
            return
        self._ensure_not_fenced(header, entry)
        same_epoch = header.producer_epoch == entry.producer_epoch
        expected = increment_sequence(entry.last_sequence, 1) if same_epoch else 0
        if header.base_sequence != expected:
            raise OutOfOrderSequenceError(
                str(self._topic_partition), header.producer_id, expected, header.base_sequence
            )
        if entry.txn_first_offset is not None and not header.is_transactional:
            raise InvalidTxnStateError(
                str(self._topic_partition), header.producer_id, entry.txn_first_offset
            )

    def ensure_may_end(self, header: BatchHeader, marker: EndTransactionMarker) -> None:
        """Check that a transaction marker has neither a fenced producer epoch nor a fenced coordinator epoch.

        Raises:
            InvalidProducerEpochError: the producer's epoch is fenced.
            TransactionCoordinatorFencedError: the coordinator's epoch is fenced.
        """
        entry = self._entries.get(header.producer_id)
        if entry is None:
            return
        self._ensure_not_fenced(header, entry)
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise TransactionCoordinatorFencedError(
                str(self._topic_partition),
                header.producer_id,
                entry.coordinator_epoch,
                marker.coordinator_epoch,
            )

    def aborted_by(
        self, header: BatchHeader, marker: EndTransactionMarker
    ) -> AbortedTransaction | None:
        """Return the open transaction that this transaction marker aborts, or None if it aborts none."""
        entry = self._entries.get(header.producer_id)
        if not marker.is_abort or entry is None or entry.txn_first_offset is None:
            return None
        return AbortedTransaction(
            header.producer_id,
            entry.txn_first_offset,
            header.base_offset,
            self.last_stable_offset_with(header),
        )

    def last_stable_offset_with(self, header: BatchHeader) -> int:
        """Return the last stable offset that a log has once this batch is below its high watermark."""
        still_open = [first for first, owner in self._open.items() if owner != header.producer_id]
        entry = self._entries.get(header.producer_id)
        if not header.is_control:
            if entry is not None and entry.txn_first_offset is not None:
                still_open.append(entry.txn_first_offset)
            elif header.is_transactional:
                still_open.append(header.base_offset)
        return min(still_open, default=header.next_offset)

    def _ensure_not_fenced(self, header: BatchHeader, entry: ProducerEntry) -> None:
        if header.producer_epoch < entry.producer_epoch:
            raise InvalidProducerEpochError(
                str(self._topic_partition),
                header.producer_id,
                entry.producer_epoch,
                header.producer_epoch,
            )

    # After an append. Nothing is checked any more: what is in the log counts.

    def add(self, header: BatchHeader, now_ms: int) -> None:
        """Add a data batch that is in the log to its producer's entry.

        Its offsets are final; adding it again changes nothing.
        """
        entry = self._entries.get(header.producer_id) or ProducerEntry(header.producer_epoch)
        batches = entry.batches if entry.producer_epoch == header.producer_epoch else ()
        if batches and batches[-1].last_offset >= header.last_offset:
            return
        batch = BatchMetadata(
            header.base_sequence,
            _last_sequence(header),
            header.last_offset,
            header.last_offset_delta,
            header.max_timestamp,
        )
        first_offset = entry.txn_first_offset
        if first_offset is None and header.is_transactional:
            first_offset = header.base_offset
            self._open[first_offset] = header.producer_id
        self._entries[header.producer_id] = ProducerEntry(
            header.producer_epoch,
            (*batches, batch)[-BATCHES_REMEMBERED:],
            entry.coordinator_epoch,
            header.max_timestamp,
            first_offset,
            now_ms,
        )

    def end_transaction(
        self, header: BatchHeader, marker: EndTransactionMarker, now_ms: int
    ) -> AbortedTransaction | None:
        """End a producer's transaction by a marker in the log; return the transaction if it was aborted.

        If its producer has no open transaction, only the epochs change.
        """
        entry = self._entries.get(header.producer_id) or ProducerEntry(header.producer_epoch)
        aborted = self.aborted_by(header, marker)
        if entry.txn_first_offset is not None:
            self._open.pop(entry.txn_first_offset, None)
            self._ended[entry.txn_first_offset] = header.base_offset
        self._entries[header.producer_id] = ProducerEntry(
            header.producer_epoch,
            entry.batches if entry.producer_epoch == header.producer_epoch else (),
            marker.coordinator_epoch,
            header.max_timestamp,
            None,
            now_ms,
        )
        return aborted

    def last_stable_offset(self, high_watermark: int, at_least: int = 0) -> int:
        """Return the log's last stable offset, the exclusive end of its decided transactions.

        Each transaction before it has a marker, and that is below the high watermark.

        Args:
            high_watermark: of the log.
            at_least: what it was before, or the log's start.
        """
        ended = (first for first, marker in self._ended.items() if marker >= high_watermark)
        unstable = min((*self._open, *ended, high_watermark))
        return max(unstable, min(at_least, high_watermark))

    def forget_ended(self, high_watermark: int) -> None:
        """Drop ended transactions whose marker is below the high watermark."""
        self._ended = {
            first: marker for first, marker in self._ended.items() if marker >= high_watermark
        }

    def remove_expired(self, now_ms: int) -> None:
        """Remove producers idle for producer.id.expiration.ms or longer; checks at most every ten minutes."""
        if 0 <= now_ms - self._checked_ms < _EXPIRATION_CHECK_MS:
            return
        self._checked_ms, now_ms = now_ms, expiring_ms(now_ms)
        self._entries = {
            producer_id: entry
            for producer_id, entry in self._entries.items()
            if not self._is_expired(entry, now_ms)
        }

    def _is_expired(self, entry: ProducerEntry, now_ms: int) -> bool:
        idle_ms = now_ms - entry.last_append_ms
        return entry.txn_first_offset is None and idle_ms >= PRODUCER_ID_EXPIRATION_MS


def _last_sequence(header: BatchHeader) -> int:
    # A coordinator's own batches, for offsets committed in a transaction, have an id but no sequence.
    if header.base_sequence < 0:
        return NO_SEQUENCE
    return increment_sequence(header.base_sequence, header.last_offset_delta)
