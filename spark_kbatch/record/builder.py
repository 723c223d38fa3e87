"""Building V2 record batches: rows are appended while there is room, then the batch is closed.

    builder = RecordBatchBuilder(memory, start, capacity, write_limit=16384)
    next_row = builder.append(columns)          # as many as fit, in order
    builder.close()
    builder.data                                # header, CRC, records: what a log stores

The write limit is compared with the batch's expected size when closed: the bytes of its records and of
the next one, times the expected compression ratio. (Kafka counts the next one uncompressed.) So the
limit is a position in memory, at which the batch is full. A first record is accepted whatever its
size. Records are uncompressed in memory until `close`, so with a codec the capacity is larger than the
limit.

Source: Kafka clients/.../record/MemoryRecordsBuilder.java, CompressionRatioEstimator.java.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence

import numpy as np

from spark_kbatch.kernels import records as record_kernels
from spark_kbatch.kernels.records import (
    BASE_TIMESTAMP,
    BATCH_COLUMNS,
    END,
    INDEX,
    MAX_TIMESTAMP,
    POSITION,
    RECORDS_COUNT,
    SLOT,
    STOP,
)
from spark_kbatch.options.write import MAX_DECOMPRESSED_BATCH_BYTES
from spark_kbatch.record import compression, scalar
from spark_kbatch.record import header as batch_header
from spark_kbatch.record.columns import EMPTY_I32, Array, Columns
from spark_kbatch.record.header import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD,
)
from spark_kbatch.record.scalar import Header

# The most bytes that a record takes in addition to its key, value and headers.
RECORD_OVERHEAD_MAX = 5 + 1 + 10 + 5 + 5 + 5 + 1

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
SPARE_SLOT = -1

_STATE = struct.Struct(f"={BATCH_COLUMNS}q")
NO_BATCH_INDEXES = np.empty(0, np.int32)
_ESTIMATION_FACTOR = 1.05  # by how much an expected ratio may be too good


class RecordBatchBuilder:
    """An open V2 record batch in memory[start : start + capacity], to which rows are appended.

    Not thread-safe.
    """

    # Initial values. They are set here and not in __init__, which runs for every batch.
    takes_more = True  # while it has room
    is_closed = False
    data = memoryview(b"")  # the whole batch, once closed

    def __init__(
        self,
        memory: memoryview,
        start: int,
        capacity: int,
        *,
        write_limit: int | None = None,
        codec: int = 0,
        level: int | None = None,
        compression_ratio: float = 1.0,
        attributes: int = 0,
        slot: int = 0,
        state: memoryview[int] | None = None,
    ) -> None:
        """Start an empty batch.

        Args:
            memory: shared with other builders; each has a part of its own.
            capacity: bytes that the batch may take in `memory`, compressed or not.
            write_limit: bytes that it should have when closed; the capacity by default.
            compression_ratio: expected, compressed / uncompressed.
            attributes: of its header, besides the codec.
            slot: of the rows that `fill` appends to this batch; with SPARE_SLOT, of the first slot
                whose batch is full.
            state: int64[8], where write_records keeps its numbers until the batch is closed.
        """
        self.memory = memory
        self.start = start
        self._codec = codec
        self._level = level
        self.attributes = attributes
        self._scale = compression_ratio * _ESTIMATION_FACTOR if codec else 1.0
        first = start + RECORD_BATCH_OVERHEAD
        stop = end = start + capacity
        if write_limit is not None:
            limit = max(write_limit - RECORD_BATCH_OVERHEAD, 0)
            stop = min(first + int(limit / self._scale), end)
        empty = [first, stop, NO_TIMESTAMP, NO_TIMESTAMP, 0, end, slot, 0]
        # One batch's row of write_records' `batches`.
        self.state: list[int] | memoryview[int] = empty
        if state is not None:
            _STATE.pack_into(state, 0, *empty)
            self.state = state

    @classmethod
    def finished(cls, data: memoryview, records_count: int) -> RecordBatchBuilder:
        """Return a closed builder of a batch that was encoded elsewhere."""
        builder = cls(data, 0, len(data))
        builder.takes_more, builder.is_closed, builder.data = False, True, data
        builder.state[RECORDS_COUNT] = records_count
        return builder

    @property
    def parts(self) -> Sequence[RecordBatchBuilder]:
        """The batches that this stands for: itself."""
        return (self,)

    @property
    def records_count(self) -> int:
        """Number of records so far."""
        return self.state[RECORDS_COUNT]

    @property
    def capacity(self) -> int:
        """Bytes of memory that the batch has."""
        return self.state[END] - self.start

    @property
    def room(self) -> int:
        """Bytes of records that the batch has room for before it reaches its write limit."""
        return self.state[STOP] - self.state[POSITION]

    @property
    def uncompressed_size(self) -> int:
        """Size in bytes of the batch's header and uncompressed records."""
        return self.state[POSITION] - self.start

    @property
    def estimated_size_in_bytes(self) -> int:
        """Expected size of the batch when closed, or its size once it is."""
        if self.is_closed:
            return len(self.data)
        records = self.uncompressed_size - RECORD_BATCH_OVERHEAD
        return RECORD_BATCH_OVERHEAD + int(records * self._scale)

    @property
    def max_timestamp(self) -> int:
        """Largest timestamp of the records, ms; -1 if there is none."""
        return self.state[MAX_TIMESTAMP]

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another record, whatever its size."""
        state = self.state
        return not self.takes_more or (state[RECORDS_COUNT] > 0 and state[POSITION] >= state[STOP])

    def has_room_for(self, record_size: int) -> bool:
        """Return True if there is room for a record of this size, its length field included."""
        state = self.state
        last = state[STOP] if state[RECORDS_COUNT] else state[END]
        return self.takes_more and state[POSITION] + record_size <= last

    def append(self, columns: Columns, first_row: int = 0) -> int:
        """Append rows from `first_row` on, as many as fit; return the row after the last of them."""
        return fill([self], columns, first_row) if self.takes_more else first_row

    def append_record(
        self,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header] = (),
    ) -> bool:
        """Append one record; return False if there is no room for it.

        Raises:
            ValueError: the timestamp does not fit into an int64; the batch is unchanged.
        """
        state = self.state
        count = state[RECORDS_COUNT]
        base_timestamp = state[BASE_TIMESTAMP] if count else timestamp
        record = scalar.encode_record(timestamp - base_timestamp, count, key, value, headers)
        if not self.has_room_for(len(record)):
            return False
        if not INT64_MIN <= timestamp <= INT64_MAX:
            raise ValueError(f"timestamp {timestamp} does not fit into an int64")
        position = state[POSITION]
        self.memory[position : position + len(record)] = record
        state[BASE_TIMESTAMP] = base_timestamp
        state[MAX_TIMESTAMP] = max(state[MAX_TIMESTAMP], timestamp)
        # The record counts from here on, so everything that may fail comes before.
        state[POSITION], state[RECORDS_COUNT] = position + len(record), count + 1
        return True

    def close_for_appends(self) -> None:
        """Accept no more records; `close` makes the bytes final."""
        self.takes_more = False

    def close(
        self,
        *,
        base_offset: int = 0,
        leader_epoch: int = -1,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
    ) -> None:
        """Finish the batch: compress its records and write its header and CRC.

        From now on `data` is the batch. The batch stays uncompressed if it would not fit into the
        capacity.
        """
        self.takes_more = False  # even if the rest fails
        self._own_state()
        position, _, base_timestamp, max_timestamp, records_count, *_ = self.state
        data, codec = self.memory[self.start : position], 0
        if self._codec:
            data, codec = self._compressed(data)
        self.data = data
        self.is_closed = True
        batch_header.seal(
            data,
            records_count,
            base_timestamp,
            max_timestamp,
            codec | self.attributes,
            base_offset,
            leader_epoch,
            producer_id,
            producer_epoch,
            base_sequence,
        )

    def _compressed(self, data: memoryview) -> tuple[memoryview, int]:
        """Compress the records in place, if they fit; return the batch and its codec."""
        # Not if there are no records, or more bytes than a reader accepts after decompression.
        if 0 < len(data) - RECORD_BATCH_OVERHEAD <= MAX_DECOMPRESSED_BATCH_BYTES:
            first = self.start + RECORD_BATCH_OVERHEAD
            section = compression.compress(
                self._codec, data[RECORD_BATCH_OVERHEAD:], level=self._level
            )
            end = first + len(section)
            if end <= self.state[END]:
                self.memory[first:end] = section
                return self.memory[self.start : end], self._codec
        return data, 0

    def abort(self) -> None:
        """Discard the batch: it accepts no more records and has no data."""
        self._own_state()
        self.takes_more = False
        self.is_closed = True
        self.data = memoryview(b"")

    def _own_state(self) -> None:
        """Copy the batch's counters out of shared memory, which is used again for another batch."""
        self.state = [*self.state]

    def actual_compression_ratio(self) -> float:
        """Return a closed batch's compression ratio, compressed / uncompressed; 1 if it has no records."""
        uncompressed = self.uncompressed_size - RECORD_BATCH_OVERHEAD
        if uncompressed == 0:
            return 1.0
        return (len(self.data) - RECORD_BATCH_OVERHEAD) / uncompressed


class BuilderRun:
    """Full batches of one partition that were built together, as one: they have one end.

    It has what a `RecordBatchBuilder` has for those that close, send and release it.
    """

    takes_more, is_full, is_closed = False, True, False

    def __init__(self, parts: Sequence[RecordBatchBuilder]) -> None:
        self.parts = parts
        # As they take no more records, this changes when they are closed.
        self.records_count = self.uncompressed_size = self.estimated_size_in_bytes = 0
        for part in parts:
            part.close_for_appends()
            self.records_count += part.records_count
            self.uncompressed_size += part.uncompressed_size
            self.estimated_size_in_bytes += part.estimated_size_in_bytes

    def close(
        self,
        *,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
    ) -> None:
        """Finish the batches, whose sequence numbers follow each other; those that were finished stay as they are."""
        for part in self.parts:
            if not part.is_closed:
                part.close(
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    base_sequence=base_sequence,
                )
            base_sequence = batch_header.sequence_after(base_sequence, part.records_count)
        self.estimated_size_in_bytes = sum(len(part.data) for part in self.parts)
        self.is_closed = True

    def abort(self) -> None:
        """Discard the batches."""
        for part in self.parts:
            part.abort()
        self.is_closed = True


def fill(
    builders: Sequence[RecordBatchBuilder],
    columns: Columns,
    first_row: int = 0,
    *,
    slots: Array = EMPTY_I32,
    slots_count: int = 1,
    batch_of: Array = NO_BATCH_INDEXES,
) -> int:
    """Append rows in order, as many as fit, each to the open batch of its partition (its slot).

    One call serves all builders, because a call costs as much as a few hundred records.

    Args:
        builders: open, in one memory, at most one per slot. Those with SPARE_SLOT are empty and
            come last; one that is used gets the slot of its rows.
        first_row: where to start.
        slots: int32[n], each row's; empty if all rows have slot 0.
        batch_of: int32[n], receives the index of each row's builder; may be empty.

    Returns:
        The first row that had no room, or the number of rows.
    """
    flat: list[int] = []  # twice as fast to turn into an array as a list of lists
    current, spares = [-1] * slots_count, []
    for index, builder in enumerate(builders):
        slot = builder.state[SLOT]
        if slot >= 0:
            current[slot] = index
        else:
            spares.append(index)
        builder.state[INDEX] = index
        flat += builder.state
    batches = np.array(flat, np.int64)
    next_row = write(
        builders[0].memory, batches, columns, first_row, slots, np.array(current, np.int64), spares,
        batch_of,
    )  # fmt: skip
    states = batches.tolist()
    for index, builder in enumerate(builders):
        builder.state = states[index * BATCH_COLUMNS : (index + 1) * BATCH_COLUMNS]
    return next_row


def write(
    memory: memoryview,
    batches: Array,
    columns: Columns,
    first_row: int,
    slots: Array,
    current: Array,
    spares: Sequence[int],
    batch_of: Array,
) -> int:
    """Call write_records for rows of `columns`; return the first row that had no room."""
    return int(
        record_kernels.write_records(
            slots, first_row, columns.timestamps, *columns.key, *columns.value,
            columns.headers.data, columns.headers.bounds, np.frombuffer(memory, np.uint8), batches,
            current, np.array(spares, np.int64), batch_of,
        )
    )  # fmt: skip


def capacity_for(write_limit: int, compression_ratio: float, capacity_max: int) -> int:
    """Return how many bytes of uncompressed records a batch of `write_limit` compressed bytes should hold."""
    scale = compression_ratio * _ESTIMATION_FACTOR
    wanted = int(max(write_limit, write_limit / max(scale, 1e-6)))
    return max(write_limit, min(wanted, capacity_max))


def size_upper_bound(columns: Columns, row: int) -> int:
    """Return the most bytes that a batch with only this row takes, before compression.

    Source: AbstractRecords.estimateSizeInBytesUpperBound.
    """
    total = RECORD_BATCH_OVERHEAD + RECORD_OVERHEAD_MAX
    for spans in (columns.key, columns.value, columns.headers):
        if len(spans.bounds):
            total += int(spans.bounds[row + 1]) - int(spans.bounds[row])
    return total


def size_upper_bounds(columns: Columns, first_row: int, last_row: int) -> Array:
    """Return the most bytes that a batch with only one row takes, for each row in [first_row, last_row).

    These are the `size_upper_bound` of the rows that exist, as int64[n].
    """
    count = min(last_row, columns.rows_count) - first_row
    totals = np.full(count, RECORD_BATCH_OVERHEAD + RECORD_OVERHEAD_MAX, np.int64)
    for spans in (columns.key, columns.value, columns.headers):
        if len(spans.bounds):
            totals += np.diff(spans.bounds[first_row : first_row + count + 1])
    return totals


class CompressionRatioEstimator:
    """An estimator of compression ratios per topic and codec, from those of closed batches.

    Thread-safe. Quick to get worse, slow to get better: a batch that comes out larger than expected may
    be too large for its topic; one that comes out smaller merely wastes space.
    """

    _IMPROVING_STEP, _DETERIORATING_STEP = 0.005, 0.05

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _ratios
        self._ratios: dict[tuple[str, int], float] = {}

    def estimation(self, topic: str, codec: int) -> float:
        """Return a topic's expected compression ratio, compressed / uncompressed; 1 without batches."""
        return self._ratios.get((topic, codec), 1.0)

    def update(self, topic: str, codec: int, observed: float) -> None:
        """Move a topic's expected compression ratio toward the ratio of a closed batch."""
        with self._lock:
            current = self.estimation(topic, codec)
            if observed > current:
                current = max(current + self._DETERIORATING_STEP, observed)
            elif observed < current:
                current = max(current - self._IMPROVING_STEP, observed)
            self._ratios[topic, codec] = current

    def reset(self, topic: str, codec: int, ratio: float) -> None:
        """Set a topic's expected compression ratio, after a batch had to be split."""
        with self._lock:
            self._ratios[topic, codec] = ratio
