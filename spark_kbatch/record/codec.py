"""One batch from rows, and rows from batches.

    Columns --write_records--> records section --compress--> header + CRC             `finish`
    bytes --walk--> headers --CRC, decompress--> read_records --> Arrow   `decode_batches`

Python does a fixed amount of work per batch; what is done per record is in `kernels`, whose
negative answers become errors with a position here.

Source: Kafka clients/.../record/MemoryRecordsBuilder.java, DefaultRecordBatch.java.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

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

# A record takes at most this many bytes beside its key, value and headers.
RECORD_OVERHEAD_MAX = 5 + 1 + 10 + 5 + 5 + 5 + 1

_WHAT = {
    kernels.TRUNCATED: "a field reaches past the end of its record",
    kernels.BAD_VARINT: "a varint with too many bytes",
    kernels.BAD_LENGTH: "a record's length differs from what its fields take",
    kernels.BAD_HEADER_COUNT: "a header count that its record cannot hold",
    kernels.BAD_HEADER_KEY: "a header with a null key",
    kernels.TRAILING_BYTES: "bytes behind the last record",
    kernels.BAD_OFFSET: "an offset delta that does not grow, or passes the batch's last",
}


def new_batch(start: int, limit: int) -> list[int]:
    """What `write_records` moves on: an empty batch that may take `limit` bytes from `start` on."""
    return [start + RECORD_BATCH_OVERHEAD, start + limit, NO_TIMESTAMP, NO_TIMESTAMP, 0, start]


def write_records(columns: Columns, rows: Array, memory: Array, batches: Array) -> int:
    """Append the given rows (int32) to batches in `memory`, as many as fit; returns how many.

    Args:
        batches: int64[k, BATCH_COLUMNS], rows as `new_batch` makes them; the first may hold records.
            They are filled one after the other and moved on.
    """
    return int(
        kernels.write_records(
            rows, columns.timestamps, *columns.key, *columns.value,
            columns.headers.data, columns.headers.bounds, memory, batches,
        )
    )  # fmt: skip


def size_upper_bound(columns: Columns, row: int) -> int:
    """What a batch that holds only this row takes at the most, before compression.

    Source: AbstractRecords.estimateSizeInBytesUpperBound.
    """
    total = RECORD_BATCH_OVERHEAD + RECORD_OVERHEAD_MAX
    for spans in (columns.key, columns.value, columns.headers):
        if len(spans.bounds):
            total += int(spans.bounds[row + 1]) - int(spans.bounds[row])
    return total


def finish(
    memory: memoryview,
    batch: Sequence[int],
    *,
    codec: int,
    limit: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> memoryview:
    """Close a batch that `write_records` filled: compress, header, CRC.

    Args:
        memory: what the records were written to. Written to.
        batch: the batch's row.
        limit: where the compressed batch would be larger than this, it stays uncompressed.

    Returns:
        The whole batch; a view of `memory` unless it was compressed.
    """
    end, _, base_timestamp, max_timestamp, records_count, start = batch
    size = end - start
    whole = memory[start:end]
    # What is larger than any reader accepts uncompressed is not compressed.
    if codec and size - RECORD_BATCH_OVERHEAD <= compression.MAX_DECOMPRESSED_SIZE:
        section = compression.compress(codec, whole[RECORD_BATCH_OVERHEAD:])
        if RECORD_BATCH_OVERHEAD + len(section) > limit >= size:
            codec = 0
        else:
            size = RECORD_BATCH_OVERHEAD + len(section)
            whole = memoryview(bytearray(RECORD_BATCH_OVERHEAD) + section)
    else:
        codec = 0
    batch_header.seal(
        whole,
        size_in_bytes=size,
        records_count=records_count,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        attributes=codec,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )
    return whole


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
    spans = (columns.key, columns.value, columns.headers)
    size = RECORD_BATCH_OVERHEAD + count * RECORD_OVERHEAD_MAX + sum(len(s.data) for s in spans)
    memory = np.empty(size, np.uint8)
    batches = np.array([new_batch(0, size)])
    written = write_records(columns, np.arange(count, dtype=np.int32), memory, batches)
    assert written == count
    batch = finish(
        memory.data,
        batches[0].tolist(),
        codec=CODECS[compression] if count else 0,
        limit=0,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )
    return bytes(batch)


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
    piece = _Piece(data, bytes_array, columns, start_offset, end_offset)
    for position, header in batches:
        # Nothing of the header but its offsets is believed without the CRC; those are checked
        # against the neighbours by whoever has read the batches.
        is_open = not offsets_alone or header.is_control or not _has_every_offset(header)
        if is_open:
            batch_header.ensure_valid(data, position, header)
        if (
            header.is_control
            or header.last_offset < start_offset
            or header.base_offset >= end_offset
        ):
            continue
        section = _open_section(data, position, header, is_open)
        if piece.sections and (
            piece.sections[0].is_open != is_open or piece.size + section.size > MAX_SECTION_SIZE
        ):
            yield piece.to_arrow()
        piece.add(section)
        if piece.size >= max_bytes:
            yield piece.to_arrow()
    if piece.sections:
        yield piece.to_arrow()


def _has_every_offset(header: BatchHeader) -> bool:
    """Whether the batch has a record at each offset, so that they follow from its header."""
    return header.records_count == header.last_offset_delta + 1


class _Section(NamedTuple):
    """A batch, and where its uncompressed records lie."""

    position: int
    header: BatchHeader
    is_open: bool  # whether its records are looked at
    start: int  # in the data that was given, or in `plain`
    end: int
    plain: Buffer | None  # what was decompressed

    @property
    def size(self) -> int:
        """Of what is made of it; 8 bytes a record stand for offsets made of the header alone."""
        return max(self.end - self.start, 8 * self.header.records_count)


def _open_section(data: Buffer, position: int, header: BatchHeader, is_open: bool) -> _Section:
    start, end, plain = position + RECORD_BATCH_OVERHEAD, position + header.size_in_bytes, None
    if is_open and header.codec and header.records_count:
        try:
            plain = compression.decompress(header.codec, memoryview(data)[start:end])
        except CorruptRecordError as error:
            raise error.at("", start) from None
        start, end = 0, len(plain)
    if is_open and header.records_count * MIN_RECORD_SIZE > end - start:
        raise CorruptRecordError(
            "records count for the bytes there are",
            position=position + 57,
            expected=f"at most {(end - start) // MIN_RECORD_SIZE}",
            found=header.records_count,
        )
    return _Section(position, header, is_open, start, end, plain)


class _Piece:
    """Batches that become one Arrow batch; used again for the next one."""

    def __init__(
        self,
        data: Buffer,
        bytes_array: Array,
        columns: Sequence[str],
        start_offset: int,
        end_offset: int,
    ) -> None:
        self._data, self._bytes_array = data, bytes_array
        self._columns = columns
        self._start_offset, self._end_offset = start_offset, end_offset
        self.sections: list[_Section] = []
        self.size = 0

    def add(self, section: _Section) -> None:
        self.sections.append(section)
        self.size += section.size

    def to_arrow(self) -> pa.RecordBatch:
        """The rows of all sections; none are left."""
        sections, self.sections, self.size = self.sections, [], 0
        batch, offsets = self._rows(sections)
        first, end = 0, batch.num_rows
        if sections[0].header.base_offset < self._start_offset:
            first = int(np.searchsorted(offsets, self._start_offset))
        if sections[-1].header.last_offset >= self._end_offset:
            end = max(int(np.searchsorted(offsets, self._end_offset)), first)
        return batch if end - first == batch.num_rows else batch.slice(first, end - first)

    def _rows(self, sections: list[_Section]) -> tuple[pa.RecordBatch, Array]:
        schema = pa.schema([RECORD_SCHEMA.field(name) for name in self._columns])
        if sections[0].is_open:
            found = _Found(*self._join(sections), self._columns)
            found.read()
            arrays, offsets = [found.column(name) for name in self._columns], found.offsets
        else:
            ranges = [np.arange(s.header.base_offset, s.header.next_offset) for s in sections]
            offsets = np.concatenate(ranges)
            arrays = [pa.array(offsets)] * len(self._columns)
        if arrays:
            return pa.RecordBatch.from_arrays(arrays, schema=schema), offsets
        nothing = pa.array([{}] * len(offsets), pa.struct([]))
        return pa.RecordBatch.from_struct_array(nothing), offsets

    def _join(self, sections: list[_Section]) -> tuple[Array, list[_Section]]:
        """One array in which all sections lie, and where they lie in it."""
        if all(section.plain is None for section in sections):
            return self._bytes_array, sections
        parts, moved, end = [], [], 0
        for section in sections:
            source = section.plain if section.plain is not None else self._data
            parts.append(memoryview(source)[section.start : section.end])
            start, end = end, end + len(parts[-1])
            moved.append(section._replace(start=start, end=end))
        joined = np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), np.uint8)
        joined.setflags(write=False)
        return joined, moved


class _Found:
    """What kernels find in the records of some sections of `data`."""

    def __init__(self, data: Array, sections: list[_Section], columns: Sequence[str]) -> None:
        self._data, self._sections = data, sections
        count = sum(section.header.records_count for section in sections)
        size = sum(section.end - section.start for section in sections)
        self._numbers = np.empty((2, count), np.int64)
        self._headers = np.empty((2, count), np.int32)
        self._bounds = np.empty((3, count + 1), np.int32)
        self._bounds[:, 0] = 0
        self._valid = np.empty((2, count), np.uint8)
        # Larger than needed; the pages that stay untouched cost nothing.
        self._bytes = [np.empty(size if c in columns else 0, np.uint8) for c in ("key", "value")]
        self.offsets = self._numbers[0]

    def read(self) -> None:
        """Go over all records.

        Raises:
            CorruptRecordError: bytes that are not what the format says.
        """
        table = np.array(
            [
                (s.start, s.end, s.header.records_count, s.header.base_offset,
                 s.header.last_offset_delta, s.header.base_timestamp)
                for s in self._sections
            ],
            np.int64,
        )  # fmt: skip
        fault = np.zeros(2, np.int64)
        answer = kernels.read_records(
            self._data, table, self._numbers, self._headers, self._bounds, self._valid,
            self._bytes[0], self._bytes[1], fault,
        )  # fmt: skip
        if answer < 0:
            raise self._corrupt(int(answer), self._sections[int(fault[0])], int(fault[1]))
        row = 0
        for section in self._sections:
            count = section.header.records_count
            if section.header.timestamp_type == LOG_APPEND_TIME_TYPE:
                self._numbers[1, row : row + count] = section.header.max_timestamp
            row += count

    def column(self, name: str) -> pa.Array:
        """One column of RECORD_SCHEMA."""
        match name:
            case "offset":
                return pa.array(self.offsets)
            case "timestamp":
                return pa.array(self._numbers[1])
            case "key" | "value":
                index = 0 if name == "key" else 1
                bounds = self._bounds[index]
                data = self._bytes[index][: bounds[-1]]
                return arrow.binary_array(data, bounds, self._valid[index])
            case "timestamp_type":
                types = [section.header.timestamp_type for section in self._sections]
                counts = [section.header.records_count for section in self._sections]
                return pa.array(np.repeat(np.array(types, np.int32), counts))
            case _:
                return self._headers_column()

    def _headers_column(self) -> pa.Array:
        count = int(self._bounds[2, -1])
        positions, bounds = np.empty((2, count), np.int32), np.empty((2, count + 1), np.int32)
        bounds[:, 0] = 0
        valid, fault = np.empty(count, np.uint8), np.zeros(1, np.int64)
        answer = kernels.scan_headers(
            self._data, self._headers, self._bounds[2], positions, bounds, valid, fault
        )
        if answer < 0:
            row = int(fault[0])
            ends = np.cumsum([section.header.records_count for section in self._sections])
            section = self._sections[int(np.searchsorted(ends, row, side="right"))]
            position = int(self._headers[0, row]) - section.start
            raise self._corrupt(int(answer), section, position)
        keys, values = (self._gather(positions[i], bounds[i]) for i in (0, 1))
        return arrow.headers_array(
            self._bounds[2],
            arrow.string_array(keys, bounds[0]),
            arrow.binary_array(values, bounds[1], valid),
        )

    def _gather(self, positions: Array, bounds: Array) -> Array:
        data = np.empty(int(bounds[-1]), np.uint8)
        kernels.copy_spans(self._data, positions, bounds, data)
        return data

    def _corrupt(self, answer: int, section: _Section, position: int) -> CorruptRecordError:
        what = _WHAT[answer]
        if section.plain is not None:
            what = f"{what}, {position} bytes into its decompressed records"
            return CorruptRecordError(what, position=section.position)
        return CorruptRecordError(
            what, position=section.position + RECORD_BATCH_OVERHEAD + position
        )
