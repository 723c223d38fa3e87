"""What a log remembers of idempotent producers: enough to drop a batch that comes again.

Per producer id the epoch and the last five batches. Sequences count records, from 0 for each
(producer id, epoch), and go on at 0 after 2^31 - 1. A batch is

    a duplicate     its epoch, first and last sequence are those of a remembered batch: it is not
                    written again, the answer has the offsets of the first time
    fenced          its epoch is below the producer's
    in sequence     its first sequence follows the last one; is 0 in an epoch above the producer's;
                    is any where the producer is unknown
    out of order    otherwise; also a duplicate that is older than five batches

Held in memory only: whoever appends brings it up to date from the headers of batches that others
wrote meanwhile (`PartitionLog.append_as_leader`). Entries are replaced whole, so that a child forked
in the middle of an append has old ones or new ones.

Source: Kafka storage/.../log/ProducerStateManager.java, ProducerStateEntry.java,
ProducerAppendInfo.java.
"""

from __future__ import annotations

from typing import NamedTuple

from spark_kbatch.errors import InvalidProducerEpochError, OutOfOrderSequenceError
from spark_kbatch.model import TopicPartition
from spark_kbatch.record.header import BatchHeader

SEQUENCE_MAX = 2**31 - 1
BATCHES_REMEMBERED = 5  # as many requests as an idempotent producer may have in flight
PRODUCER_ID_EXPIRATION_MS = 86_400_000
_EXPIRATION_CHECK_MS = 600_000


def increment_sequence(sequence: int, count: int) -> int:
    """The sequence `count` records after `sequence`."""
    return (sequence + count) % (SEQUENCE_MAX + 1)


class BatchMetadata(NamedTuple):
    """One remembered batch."""

    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def base_offset(self) -> int:
        """Of its first record."""
        return self.last_offset - self.offset_delta


class ProducerEntry(NamedTuple):
    """One producer; `batches` from the oldest to the newest, never empty."""

    producer_epoch: int
    batches: tuple[BatchMetadata, ...]
    last_append_ms: int

    @property
    def last_sequence(self) -> int:
        """Of its newest record."""
        return self.batches[-1].last_sequence


class ProducerStates:
    """The producers of one log. Guarded by the partition's lock."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        *,
        expiration_ms: int = PRODUCER_ID_EXPIRATION_MS,
    ) -> None:
        self._topic_partition = topic_partition
        self._expiration_ms = expiration_ms
        self._entries: dict[int, ProducerEntry] = {}
        self._checked_ms = 0  # when entries were last looked through for old ones

    def __len__(self) -> int:
        return len(self._entries)

    def find_duplicate(self, header: BatchHeader) -> BatchMetadata | None:
        """The remembered batch that this one is."""
        entry = self._entries.get(header.producer_id)
        if entry is None or entry.producer_epoch != header.producer_epoch:
            return None
        sequences = header.base_sequence, _last_sequence(header)
        for batch in entry.batches:
            if (batch.first_sequence, batch.last_sequence) == sequences:
                return batch
        return None

    def ensure_follows(self, header: BatchHeader) -> None:
        """Check that the batch is in sequence.

        Raises:
            InvalidProducerEpochError: its epoch is fenced.
            OutOfOrderSequenceError: it is out of order.
        """
        entry = self._entries.get(header.producer_id)
        if entry is None:
            return
        if header.producer_epoch < entry.producer_epoch:
            raise InvalidProducerEpochError(
                str(self._topic_partition),
                header.producer_id,
                entry.producer_epoch,
                header.producer_epoch,
            )
        same_epoch = header.producer_epoch == entry.producer_epoch
        expected = increment_sequence(entry.last_sequence, 1) if same_epoch else 0
        if header.base_sequence != expected:
            raise OutOfOrderSequenceError(
                str(self._topic_partition), header.producer_id, expected, header.base_sequence
            )

    def add(self, header: BatchHeader, now_ms: int) -> None:
        """Remember a batch of an idempotent producer that is in the log, its offsets final.

        Doing so again changes nothing. Nothing is checked: what is in the log counts.
        """
        entry = self._entries.get(header.producer_id)
        batches = entry.batches if entry else ()
        if entry and entry.producer_epoch != header.producer_epoch:
            batches = ()
        elif batches and batches[-1].last_offset >= header.last_offset:
            return
        batch = BatchMetadata(
            header.base_sequence,
            _last_sequence(header),
            header.last_offset,
            header.last_offset_delta,
            header.max_timestamp,
        )
        self._entries[header.producer_id] = ProducerEntry(
            header.producer_epoch, (*batches, batch)[-BATCHES_REMEMBERED:], now_ms
        )

    def remove_expired(self, now_ms: int) -> None:
        """Forget producers that were idle for too long. Looks every ten minutes.

        Idle by the clock, where Kafka goes by record times: events may be old when they are written.
        """
        if 0 <= now_ms - self._checked_ms < _EXPIRATION_CHECK_MS:
            return
        self._checked_ms = now_ms
        self._entries = {
            producer_id: entry
            for producer_id, entry in self._entries.items()
            if now_ms - entry.last_append_ms < self._expiration_ms
        }


def _last_sequence(header: BatchHeader) -> int:
    return increment_sequence(header.base_sequence, header.last_offset_delta)
