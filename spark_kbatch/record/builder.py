"""An open batch: rows go in while there is room, then it is closed into its final bytes.

    builder = RecordBatchBuilder(memory, start, capacity, write_limit=16384)
    written = builder.append(columns, rows)     # as many as fit, in order
    builder.close()
    builder.data                                # header, CRC, records: what a log stores

The write limit is compared with what the batch will take: its bytes so far, times what a codec is
expected to leave of them, and the next record uncompressed. A first record is taken whatever its
size. What lies in memory is uncompressed until `close`, so a builder for a codec has more capacity
than its limit.

The interface says nothing of the format's version; the bytes are V2.

Source: Kafka clients/.../record/MemoryRecordsBuilder.java, CompressionRatioEstimator.java.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from spark_kbatch import kernels
from spark_kbatch.kernels import (
    BASE_TIMESTAMP,
    MAX_TIMESTAMP,
    POSITION,
    RECORDS_COUNT,
    SCALE_ONE,
    START,
)
from spark_kbatch.record import compression, plain
from spark_kbatch.record import header as batch_header
from spark_kbatch.record.columns import Array, Columns
from spark_kbatch.record.header import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD,
)
from spark_kbatch.record.plain import Header

# A record takes at most this many bytes beside its key, value and headers.
RECORD_OVERHEAD_MAX = 5 + 1 + 10 + 5 + 5 + 5 + 1

_ESTIMATION_FACTOR = 1.05  # what an expected ratio may be too good


class RecordBatchBuilder:
    """One batch in memory[start : start + capacity]. Not thread-safe."""

    __slots__ = (
        "_codec", "_end", "_is_open", "_level", "_limit", "_takes_more", "data", "memory", "row",
    )  # fmt: skip

    def __init__(
        self,
        memory: Array,
        start: int,
        capacity: int,
        *,
        write_limit: int | None = None,
        codec: int = 0,
        level: int | None = None,
        compression_ratio: float = 1.0,
    ) -> None:
        """An empty batch.

        Args:
            memory: uint8, shared with other builders.
            capacity: bytes that the batch may take in `memory`, compressed or not.
            write_limit: bytes that it should take when closed; the capacity by default.
            compression_ratio: expected, compressed / uncompressed.
        """
        self.memory, self._codec, self._level = memory, codec, level
        self._limit = capacity if write_limit is None else write_limit
        self._end, self._is_open, self._takes_more = start + capacity, True, True
        scale = int(compression_ratio * _ESTIMATION_FACTOR * SCALE_ONE) if codec else SCALE_ONE
        first = start + RECORD_BATCH_OVERHEAD
        # A row of write_records.
        self.row = [
            first, self._limit, NO_TIMESTAMP, NO_TIMESTAMP, 0, start, self._end, scale
        ]  # fmt: skip
        self.data: memoryview = memoryview(b"")  # the whole batch, once closed

    @property
    def records_count(self) -> int:
        """Records so far."""
        return self.row[RECORDS_COUNT]

    @property
    def uncompressed_size(self) -> int:
        """Bytes of header and records in memory."""
        return self.row[POSITION] - self.row[START]

    @property
    def estimated_size_in_bytes(self) -> int:
        """What the batch will take when closed, or takes since it is."""
        return self._estimate(self.row[POSITION]) if self._is_open else len(self.data)

    @property
    def max_timestamp(self) -> int:
        """The largest of all records, ms; -1 where there is none."""
        return self.row[MAX_TIMESTAMP]

    @property
    def is_closed(self) -> bool:
        """Whether its bytes are final."""
        return not self._is_open

    @property
    def is_full(self) -> bool:
        """Whether no further record has room, whatever its size."""
        return not self._takes_more or (
            self.records_count > 0 and self._limit <= self.estimated_size_in_bytes
        )

    def has_room_for(self, record_size: int) -> bool:
        """Whether a record of so many bytes, its length included, goes in."""
        position = self.row[POSITION]
        if not self._takes_more or position + record_size > self._end:
            return False
        return self.records_count == 0 or self._estimate(position) + record_size <= self._limit

    def append(self, columns: Columns, rows: Array) -> int:
        """Append the given rows (int32), as many as fit; returns how many."""
        return self.fill([self], columns, rows) if self._takes_more else 0

    @staticmethod
    def fill(builders: Sequence[RecordBatchBuilder], columns: Columns, rows: Array) -> int:
        """Append the given rows to the first builder, then the second, while they fit; how many did.

        All are open and lie in one memory; all but the first are empty. One call, because a call
        costs as much as some hundred records.
        """
        batches = np.array([builder.row for builder in builders])
        written = kernels.write_records(
            rows, columns.timestamps, *columns.key, *columns.value,
            columns.headers.data, columns.headers.bounds, builders[0].memory, batches,
        )  # fmt: skip
        for builder, row in zip(builders, batches.tolist(), strict=True):
            builder.row = row
        return int(written)

    def append_record(
        self,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header] = (),
    ) -> bool:
        """Append one record; False where it has no room."""
        row = self.row
        count = row[RECORDS_COUNT]
        base_timestamp = row[BASE_TIMESTAMP] if count else timestamp
        record = plain.encode_record(timestamp - base_timestamp, count, key, value, headers)
        if not self.has_room_for(len(record)):
            return False
        position = row[POSITION]
        self.memory.data[position : position + len(record)] = record
        row[POSITION], row[RECORDS_COUNT] = position + len(record), count + 1
        row[BASE_TIMESTAMP] = base_timestamp
        row[MAX_TIMESTAMP] = max(row[MAX_TIMESTAMP], timestamp)
        return True

    def close_for_appends(self) -> None:
        """Take nothing more; `close` makes the bytes final."""
        self._takes_more = False

    def close(
        self,
        *,
        base_offset: int = 0,
        leader_epoch: int = -1,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
    ) -> None:
        """Compress the records and write header and CRC; `data` is the batch from now on.

        It stays uncompressed where the codec makes more of it than the capacity.
        """
        row = self.row
        start, end, codec = row[START], row[POSITION], 0
        first = start + RECORD_BATCH_OVERHEAD
        memory = self.memory.data
        # Not where there are no records, nor more than any reader accepts uncompressed.
        if self._codec and 0 < end - first <= compression.MAX_DECOMPRESSED_SIZE:
            section = compression.compress(self._codec, memory[first:end], level=self._level)
            if first + len(section) <= self._end:
                codec, end = self._codec, first + len(section)
                memory[first:end] = section
        self._is_open = self._takes_more = False
        self.data = memory[start:end]
        batch_header.seal(
            self.data,
            size_in_bytes=end - start,
            records_count=row[RECORDS_COUNT],
            base_timestamp=row[BASE_TIMESTAMP],
            max_timestamp=row[MAX_TIMESTAMP],
            attributes=codec,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )

    def abort(self) -> None:
        """Give the batch up: nothing goes in any more and there is no data."""
        self._is_open = self._takes_more = False
        self.data = memoryview(b"")

    def actual_compression_ratio(self) -> float:
        """Compressed / uncompressed bytes of the records of a closed batch; 1 for none."""
        uncompressed = self.uncompressed_size - RECORD_BATCH_OVERHEAD
        if uncompressed == 0:
            return 1.0
        return (len(self.data) - RECORD_BATCH_OVERHEAD) / uncompressed

    def _estimate(self, position: int) -> int:
        records = position - self.row[START] - RECORD_BATCH_OVERHEAD
        return RECORD_BATCH_OVERHEAD + (records * self.row[-1]) // SCALE_ONE


def capacity_for(write_limit: int, compression_ratio: float, capacity_max: int) -> int:
    """Bytes of records, uncompressed, that a batch of `write_limit` bytes is expected to hold."""
    scale = compression_ratio * _ESTIMATION_FACTOR
    wanted = int(max(write_limit, write_limit / max(scale, 1e-6)))
    return max(write_limit, min(wanted, capacity_max))


def size_upper_bound(columns: Columns, row: int) -> int:
    """What a batch that holds only this row takes at the most, before compression.

    Source: AbstractRecords.estimateSizeInBytesUpperBound.
    """
    total = RECORD_BATCH_OVERHEAD + RECORD_OVERHEAD_MAX
    for spans in (columns.key, columns.value, columns.headers):
        if len(spans.bounds):
            total += int(spans.bounds[row + 1]) - int(spans.bounds[row])
    return total


class CompressionRatioEstimator:
    """What a codec is expected to leave of a topic's records. Thread-safe.

    Quick to get worse, slow to get better: a batch that comes out larger than expected may be too
    large for its topic, one that comes out smaller is only smaller.
    """

    _IMPROVING_STEP, _DETERIORATING_STEP = 0.005, 0.05

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _ratios
        self._ratios: dict[tuple[str, int], float] = {}

    def estimation(self, topic: str, codec: int) -> float:
        """Compressed / uncompressed; 1 for a topic without batches."""
        return self._ratios.get((topic, codec), 1.0)

    def update(self, topic: str, codec: int, observed: float) -> None:
        """Take in what a closed batch came to."""
        with self._lock:
            current = self.estimation(topic, codec)
            if observed > current:
                current = max(current + self._DETERIORATING_STEP, observed)
            elif observed < current:
                current = max(current - self._IMPROVING_STEP, observed)
            self._ratios[topic, codec] = current

    def reset(self, topic: str, codec: int, ratio: float) -> None:
        """Expect `ratio` from now on: a batch had to be split."""
        with self._lock:
            self._ratios[topic, codec] = ratio
