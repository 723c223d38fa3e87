"""One batch from rows, and rows from batches.

    Columns --write_records--> records section --compress--> header + CRC             `finish`
    bytes --walk--> headers --CRC, decompress--> scan_records --copy_spans--> Arrow   `decode_batches`

Python does a fixed amount of work per batch; what is done per record is in `kernels`, whose
negative answers become errors with a position here.

Source: Kafka clients/.../record/MemoryRecordsBuilder.java, DefaultRecordBatch.java.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from spark_kbatch import kernels
from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.record import columns as arrow
from spark_kbatch.record import compression
from spark_kbatch.record import header as batch_header
from spark_kbatch.record.columns import Array, Columns
from spark_kbatch.record.compression import CODECS
from spark_kbatch.record.header import (
    LOG_APPEND_TIME_TYPE,
    MAX_OFFSET,
    MIN_RECORD_SIZE,
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    Buffer,
)

RECORD_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),  # ms; -1 for none
        ("timestamp_type", pa.int32()),  # 0 CreateTime, 1 LogAppendTime
        ("headers", arrow.HEADERS_TYPE),
    ]
)

MAX_SECTION_SIZE = 2**31 - 1  # positions in a records section are int32, as in Kafka

# A record takes at most this many bytes beside its key, value and headers; a header this many.
RECORD_OVERHEAD_MAX = 5 + 1 + 10 + 5 + 5 + 5 + 5
HEADER_OVERHEAD_MAX = 5 + 5

_WHAT = {
    kernels.TRUNCATED: "a field reaches past the end of its record",
    kernels.BAD_VARINT: "a varint with too many bytes",
    kernels.BAD_LENGTH: "a record's length differs from what its fields take",
    kernels.BAD_HEADER_COUNT: "a header count that its record cannot hold",
    kernels.BAD_HEADER_KEY: "a header with a null key",
    kernels.TRAILING_BYTES: "bytes behind the last record",
    kernels.BAD_OFFSET: "an offset delta that does not grow, or passes the batch's last",
}


def new_progress(limit: int, base_timestamp: int) -> Array:
    """What `write_records` moves on, for an empty batch of at most `limit` bytes."""
    return np.array([RECORD_BATCH_OVERHEAD, limit, base_timestamp, NO_TIMESTAMP, 0], np.int64)


def write_records(columns: Columns, rows: Array, out: Array, progress: Array) -> int:
    """Append the given rows (int32) to the batch in `out`, as many as fit; returns how many."""
    return int(
        kernels.write_records(
            rows, columns.timestamps, *columns.key, *columns.value,
            columns.headers.bounds, columns.headers.valid,
            columns.headers.keys.data, columns.headers.keys.bounds, *columns.headers.values,
            out, progress,
        )
    )  # fmt: skip


def size_upper_bound(columns: Columns, row: int) -> int:
    """What a batch that holds only this row takes at the most, before compression.

    Source: AbstractRecords.estimateSizeInBytesUpperBound.
    """

    def size(spans: arrow.Spans, first: int, last: int) -> int:
        return int(spans.bounds[last]) - int(spans.bounds[first]) if len(spans.bounds) else 0

    total = RECORD_BATCH_OVERHEAD + RECORD_OVERHEAD_MAX
    total += size(columns.key, row, row + 1) + size(columns.value, row, row + 1)
    if len(columns.headers.bounds):
        first, last = (int(b) for b in columns.headers.bounds[row : row + 2])
        total += (last - first) * HEADER_OVERHEAD_MAX
        total += size(columns.headers.keys, first, last) + size(columns.headers.values, first, last)
    return total


def finish(
    out: Array,
    progress: Array,
    *,
    codec: int,
    limit: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> memoryview:
    """Close the batch that `write_records` filled: compress, header, CRC.

    Args:
        out: the buffer that holds the records from position 61 on. Written to.
        limit: where the compressed batch would be larger than this, it stays uncompressed.

    Returns:
        The whole batch; a view of `out` unless it was compressed.
    """
    position = int(progress[kernels.POSITION])
    batch = out.data
    size = position
    # What is larger than any reader accepts uncompressed is not compressed.
    if codec and position - RECORD_BATCH_OVERHEAD <= compression.MAX_DECOMPRESSED_SIZE:
        section = compression.compress(codec, batch[RECORD_BATCH_OVERHEAD:position])
        if RECORD_BATCH_OVERHEAD + len(section) > limit >= position:
            codec = 0
        else:
            size = RECORD_BATCH_OVERHEAD + len(section)
            batch = memoryview(bytearray(RECORD_BATCH_OVERHEAD) + section)
    batch_header.seal(
        batch,
        size_in_bytes=size,
        records_count=int(progress[kernels.OFFSET_DELTA]),
        base_timestamp=int(progress[kernels.BASE_TIMESTAMP]),
        max_timestamp=int(progress[kernels.MAX_TIMESTAMP]),
        attributes=codec,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )
    return batch[:size]


def encode(
    rows: pa.RecordBatch, *, compression: str = "none", base_offset: int = 0, leader_epoch: int = 0
) -> bytes:
    """All rows as one batch.

    Args:
        rows: columns key, value (string or binary), timestamp (int64 ms or timestamp) and headers,
            each optional; a null or absent timestamp is written as -1.
    Source: MemoryRecordsBuilder.
    """

    def column(name: str) -> pa.Array | None:
        return rows.column(name) if name in rows.schema.names else None

    count = rows.num_rows
    columns = arrow.columns(
        count,
        key=column("key"),
        value=column("value"),
        timestamps=arrow.timestamps_ms(column("timestamp"), count, NO_TIMESTAMP),
        headers=column("headers"),
    )
    spans = (columns.key, columns.value, columns.headers.keys, columns.headers.values)
    size = RECORD_BATCH_OVERHEAD + count * RECORD_OVERHEAD_MAX + sum(len(s.data) for s in spans)
    size += HEADER_OVERHEAD_MAX * len(columns.headers.keys.bounds)
    out = np.empty(size, np.uint8)
    progress = new_progress(size, int(columns.timestamps[0]) if count else NO_TIMESTAMP)
    written = write_records(columns, np.arange(count, dtype=np.int32), out, progress)
    assert written == count
    codec = CODECS[compression] if count else 0
    return bytes(
        finish(
            out, progress, codec=codec, limit=0, base_offset=base_offset, leader_epoch=leader_epoch
        )
    )


def decode(
    data: Buffer,
    *,
    columns: Sequence[str] = tuple(RECORD_SCHEMA.names),
    start_offset: int = 0,
    end_offset: int = MAX_OFFSET,
) -> pa.RecordBatch:
    """Every record of `data` whose offset lies in [start_offset, end_offset).

    Args:
        data: whole batches, back to back. Only read; the result owns its memory.
        columns: which of RECORD_SCHEMA, in which order.

    Returns:
        n rows in offset order. Control records are left out.

    Raises:
        CorruptRecordError: CRC, length, count or varint does not hold; carries the position.
        OverflowError: over 2 GiB in one column.
    Source: DefaultRecordBatch.iterator, DefaultRecord.readFrom.
    """
    parts = list(
        decode_batches(
            data,
            batch_header.walk(data),
            columns=columns,
            start_offset=start_offset,
            end_offset=end_offset,
            max_bytes=MAX_SECTION_SIZE,
        )
    )
    schema = pa.schema([RECORD_SCHEMA.field(name) for name in columns])
    whole = pa.Table.from_batches(parts, schema).combine_chunks().to_batches()
    if len(whole) > 1:
        raise OverflowError("over 2 GiB in one column; use decode_batches")
    return whole[0] if whole else pa.RecordBatch.from_pylist([], schema)


def decode_batches(
    data: Buffer,
    batches: Iterable[tuple[int, BatchHeader]],
    *,
    columns: Sequence[str],
    start_offset: int = 0,
    end_offset: int = MAX_OFFSET,
    max_bytes: int,
) -> Iterator[pa.RecordBatch]:
    """As `decode`, for batches at known positions, in pieces.

    A piece ends behind the batch with which its uncompressed bytes pass `max_bytes`, so it holds
    at most that and one batch.
    """
    offsets_alone = set(columns) <= {"offset"}
    bytes_array = np.frombuffer(data, np.uint8)
    bytes_array.setflags(write=False)
    pending: list[_Section] = []
    size = 0
    for position, header in batches:
        # Nothing of the header but its offsets is believed without the CRC; those are checked
        # against the neighbours by whoever has read the batches.
        if offsets_alone and not header.is_control and has_every_offset(header):
            section = _Section(position, header, arrow.EMPTY_U8)
        else:
            batch_header.ensure_valid(data, position, header)
            section = None
        if (
            header.is_control
            or header.last_offset < start_offset
            or header.base_offset >= end_offset
        ):
            continue
        if section is None:
            section = _open_section(data, bytes_array, position, header)
        if pending and size + len(section.records) > MAX_SECTION_SIZE:
            yield _to_arrow(pending, columns, start_offset, end_offset)
            pending, size = [], 0
        pending.append(section)
        # 8 bytes a record stand for what is made of the header alone.
        size += len(section.records) + 8 * header.records_count
        if size >= max_bytes:
            yield _to_arrow(pending, columns, start_offset, end_offset)
            pending, size = [], 0
    if pending:
        yield _to_arrow(pending, columns, start_offset, end_offset)


def has_every_offset(header: BatchHeader) -> bool:
    """Whether the batch has a record at each of its offsets, so that they follow from the header."""
    return header.records_count == header.last_offset_delta + 1


class _Section(NamedTuple):
    """A batch and its uncompressed records; `records` is empty where they are not looked at."""

    position: int
    header: BatchHeader
    records: Array


def _open_section(data: Buffer, bytes_array: Array, position: int, header: BatchHeader) -> _Section:
    first, end = position + RECORD_BATCH_OVERHEAD, position + header.size_in_bytes
    if header.codec == 0 or header.records_count == 0:
        records = bytes_array[first:end]
    else:
        try:
            plain = compression.decompress(header.codec, memoryview(data)[first:end])
        except CorruptRecordError as error:
            raise error.at("", first) from None
        records = np.frombuffer(plain, np.uint8)
        records.setflags(write=False)
    if header.records_count * MIN_RECORD_SIZE > len(records):
        raise CorruptRecordError(
            "records count for the bytes there are",
            position=position + 57,
            expected=f"at most {len(records) // MIN_RECORD_SIZE}",
            found=header.records_count,
        )
    return _Section(position, header, records)


class _Found:
    """Where kernels put what they find in the records of some batches."""

    def __init__(self, count: int) -> None:
        def positions() -> Array:
            return np.empty(count, np.int32)

        def bounds() -> Array:
            made = np.empty(count + 1, np.int32)
            made[0] = 0
            return made

        self.offsets, self.timestamps = np.empty(count, np.int64), np.empty(count, np.int64)
        self.key = (positions(), bounds(), np.empty(count, np.uint8))
        self.value = (positions(), bounds(), np.empty(count, np.uint8))
        self.headers = (positions(), bounds())
        self.record_ends = positions()


def _to_arrow(
    sections: list[_Section], columns: Sequence[str], start_offset: int, end_offset: int
) -> pa.RecordBatch:
    found = _scan(sections)
    made: dict[str, Any] = {
        "offset": lambda: pa.array(found.offsets),
        "timestamp": lambda: pa.array(found.timestamps),
        "timestamp_type": lambda: pa.array(_timestamp_types(sections)),
        "key": lambda: _gather(sections, *found.key),
        "value": lambda: _gather(sections, *found.value),
        "headers": lambda: _headers(sections, found),
    }
    schema = pa.schema([RECORD_SCHEMA.field(name) for name in columns])
    rows = len(found.offsets)
    if schema.names:
        batch = pa.RecordBatch.from_arrays([made[name]() for name in columns], schema=schema)
    else:
        batch = pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
    first, end = 0, rows
    if sections[0].header.base_offset < start_offset:
        first = int(np.searchsorted(found.offsets, start_offset))
    if sections[-1].header.last_offset >= end_offset:
        end = max(int(np.searchsorted(found.offsets, end_offset)), first)
    return batch if end - first == rows else batch.slice(first, end - first)


def _scan(sections: list[_Section]) -> _Found:
    found = _Found(sum(section.header.records_count for section in sections))
    row = 0
    for position, header, records in sections:
        count = header.records_count
        if len(records) == 0 and count:
            found.offsets[row : row + count] = np.arange(header.base_offset, header.next_offset)
            row += count
            continue
        fault = np.zeros(1, np.int64)
        answer = kernels.scan_records(
            records, 0, count, header.base_offset, header.last_offset_delta, header.base_timestamp, row,
            found.offsets, found.timestamps, *found.key, *found.value, *found.headers,
            found.record_ends, fault,
        )  # fmt: skip
        if answer < 0:
            raise _corrupt(int(answer), int(fault[0]), position, header)
        if header.timestamp_type == LOG_APPEND_TIME_TYPE:
            found.timestamps[row : row + count] = header.max_timestamp
        row += count
    return found


def _corrupt(answer: int, fault: int, position: int, header: BatchHeader) -> CorruptRecordError:
    what = _WHAT[answer]
    if header.codec:
        return CorruptRecordError(
            f"{what}, {fault} bytes into its decompressed records", position=position
        )
    return CorruptRecordError(what, position=position + RECORD_BATCH_OVERHEAD + fault)


def _gather(sections: list[_Section], positions: Array, bounds: Array, valid: Array) -> pa.Array:
    """The bytes that the scan found, as an Arrow array of its own."""
    data = np.empty(int(bounds[-1]), np.uint8)
    row = 0
    for section in sections:
        count = section.header.records_count
        kernels.copy_spans(section.records, positions, bounds, row, count, data)
        row += count
    return arrow.binary_array(data, bounds, valid)


def _headers(sections: list[_Section], found: _Found) -> pa.Array:
    positions, bounds = found.headers
    count = int(bounds[-1])
    inner = _Found(count)
    row = 0
    for section in sections:
        fault = np.zeros(1, np.int64)
        records_count = section.header.records_count
        answer = kernels.scan_headers(
            section.records, row, records_count, positions, bounds, found.record_ends,
            inner.key[0], inner.key[1], *inner.value, fault,
        )  # fmt: skip
        if answer < 0:
            raise _corrupt(int(answer), int(fault[0]), section.position, section.header)
        row += records_count
    keys, values = (
        np.empty(int(inner.key[1][-1]), np.uint8),
        np.empty(int(inner.value[1][-1]), np.uint8),
    )
    row = 0
    for section in sections:
        first, end = int(bounds[row]), int(bounds[row + section.header.records_count])
        kernels.copy_spans(section.records, inner.key[0], inner.key[1], first, end - first, keys)
        kernels.copy_spans(
            section.records, inner.value[0], inner.value[1], first, end - first, values
        )
        row += section.header.records_count
    names = arrow.string_array(keys, inner.key[1])
    values_array = arrow.binary_array(values, inner.value[1], inner.value[2])
    return arrow.headers_array(bounds, names, values_array)


def _timestamp_types(sections: list[_Section]) -> Array:
    types = np.array([section.header.timestamp_type for section in sections], np.int32)
    return np.repeat(types, [section.header.records_count for section in sections])
