"""One batch from rows, and rows from batches.

    rows --Columns, builder--> bytes                                             `encode`
    bytes --walk--> headers --decompress--> read_records, CRC --> Arrow   `decode_batches`

Python does a fixed amount of work per batch; what is done per record is in `kernels`, whose
negative answers become errors with a position here.

Source: Kafka clients/.../record/MemoryRecordsBuilder.java, DefaultRecordBatch.java.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from spark_kbatch import kernels
from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.record import columns as arrow
from spark_kbatch.record import compression
from spark_kbatch.record import header as batch_header
from spark_kbatch.record.builder import RECORD_OVERHEAD_MAX, RecordBatchBuilder
from spark_kbatch.record.columns import Array
from spark_kbatch.record.compression import CODECS
from spark_kbatch.record.header import (
    CODEC_MASK,
    CONTROL,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
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

# What is gone over at once between two looks at its CRC, so that it is still in the cache.
_BYTES_AT_ONCE = 512 * 1024

_WHAT = {
    kernels.TRUNCATED: "a field reaches past the end of its record",
    kernels.BAD_VARINT: "a varint with too many bytes",
    kernels.BAD_LENGTH: "a record's length differs from what its fields take",
    kernels.BAD_HEADER_COUNT: "a header count that its record cannot hold",
    kernels.BAD_HEADER_KEY: "a header with a null key",
    kernels.TRAILING_BYTES: "bytes behind the last record",
    kernels.BAD_OFFSET: "an offset delta that does not grow, or passes the batch's last",
}


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
    # Twice, so that there is room for what a codec makes larger.
    builder = RecordBatchBuilder(
        np.empty(2 * size, np.uint8).data, 0, 2 * size, codec=CODECS[compression] if count else 0
    )
    written = builder.append(columns)
    assert written == count
    builder.close(base_offset=base_offset, leader_epoch=leader_epoch)
    return bytes(builder.data)


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
    piece = _Piece(data, columns)
    for position, header in batches:
        base_offset, count, attributes = (
            header.base_offset, header.records_count, header.attributes,
        )  # fmt: skip
        last_offset = base_offset + header.last_offset_delta
        is_control = attributes & CONTROL != 0
        # Nothing of the header but its offsets is believed without the CRC; those are checked
        # against the neighbours by whoever has read the batches. They are enough where there is a
        # record at each of them.
        is_open = not offsets_alone or is_control or base_offset + count != last_offset + 1
        if last_offset < start_offset or base_offset >= end_offset or is_control:
            if is_open:
                batch_header.ensure_valid(data, position, header)
            continue
        # 8 bytes a record stand for offsets made of the header alone.
        plain, size = None, header.batch_length if is_open else 8 * count
        if is_open and attributes & CODEC_MASK and count:
            plain = _decompressed(data, position, header)
            size = len(plain)
        if piece.batches and (piece.is_open != is_open or piece.size + size > MAX_SECTION_SIZE):
            yield piece.to_arrow(start_offset, end_offset)
            piece = _Piece(data, columns)
        piece.is_open = is_open
        piece.size += size
        piece.batches.append((position, header))
        piece.plains.append(plain)
        if piece.size >= max_bytes:
            yield piece.to_arrow(start_offset, end_offset)
            piece = _Piece(data, columns)
    if piece.batches:
        yield piece.to_arrow(start_offset, end_offset)


def _decompressed(data: Buffer, position: int, header: BatchHeader) -> Buffer:
    """The records of a compressed batch, whose CRC was checked."""
    batch_header.ensure_valid(data, position, header)
    start = position + RECORD_BATCH_OVERHEAD
    try:
        plain = compression.decompress(
            header.codec, memoryview(data)[start : position + header.size_in_bytes]
        )
    except CorruptRecordError as error:
        raise error.at("", start) from None
    if header.records_count * MIN_RECORD_SIZE > len(plain):
        raise CorruptRecordError(
            "records count for the bytes there are",
            position=position + 57,
            expected=f"at most {len(plain) // MIN_RECORD_SIZE}",
            found=header.records_count,
        )
    return plain


class _Piece:
    """Batches that become one Arrow batch."""

    def __init__(self, data: Buffer, columns: Sequence[str]) -> None:
        self._data, self._columns = data, columns
        self.batches: list[tuple[int, BatchHeader]] = []
        self.plains: list[Buffer | None] = []  # their records, where they were compressed
        self.is_open = True  # whether their records are looked at
        self.size = 0

    def to_arrow(self, start_offset: int, end_offset: int) -> pa.RecordBatch:
        """The rows of all batches whose offset lies in [start_offset, end_offset)."""
        schema = pa.schema([RECORD_SCHEMA.field(name) for name in self._columns])
        if self.is_open:
            found = _Found(self._data, self.batches, self.plains, self._columns)
            found.read()
            arrays, offsets = [found.column(name) for name in self._columns], found.offsets
        else:
            ranges = [np.arange(h.base_offset, h.next_offset) for _, h in self.batches]
            offsets = np.concatenate(ranges)
            arrays = [pa.array(offsets)] * len(self._columns)
        if arrays:
            rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
        else:
            nothing = pa.array([{}] * len(offsets), pa.struct([]))
            rows = pa.RecordBatch.from_struct_array(nothing)
        first, end = 0, len(offsets)
        if self.batches[0][1].base_offset < start_offset:
            first = int(np.searchsorted(offsets, start_offset))
        if self.batches[-1][1].last_offset >= end_offset:
            end = max(int(np.searchsorted(offsets, end_offset)), first)
        return rows if end - first == len(offsets) else rows.slice(first, end - first)


class _Found:
    """What kernels find in the records of some batches of `source`."""

    def __init__(
        self,
        source: Buffer,
        batches: list[tuple[int, BatchHeader]],
        plains: list[Buffer | None],
        columns: Sequence[str],
    ) -> None:
        self._source, self._batches, self._plains = source, batches, plains
        self._data, self._table = _sections(source, batches, plains)
        starts, ends, counts = self._table[:, 0], self._table[:, 1], self._table[:, 2]
        count, size = int(counts.sum()), int((ends - starts).sum())
        self._numbers = np.empty((2, count), np.int64)
        self._headers = np.empty((2, count if "headers" in columns else 0), np.int32)
        self._bounds = np.empty((3, count + 1), np.int32)
        self._bounds[:, 0] = 0
        self._valid = np.empty((2, count), np.uint8)
        # Larger than needed; the pages that stay untouched cost nothing.
        self._bytes = [np.empty(size if c in columns else 0, np.uint8) for c in ("key", "value")]
        self.offsets = self._numbers[0]

    def read(self) -> None:
        """Go over all records and check the CRCs of their batches.

        The kernel checks whatever it uses, so that the bytes may come from memory to it, which has
        other work meanwhile, and to the CRC from the cache.

        Raises:
            CorruptRecordError: bytes that are not what the format says.
        """
        ends = self._table[:, 1] - self._table[:, 0]
        groups = np.cumsum(ends) // _BYTES_AT_ONCE
        edges = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(groups)]
        progress = np.zeros(5, np.int64)
        for first, end in itertools.pairwise(edges):
            answer = kernels.read_records(
                self._data, self._table[first:end], self._numbers, self._headers,
                self._bounds, self._valid, self._bytes[0], self._bytes[1], progress,
            )  # fmt: skip
            for index in range(first, end):
                if self._plains[index] is None:
                    batch_header.ensure_valid(self._source, *self._batches[index])
            if answer < 0:
                raise self._corrupt(int(answer), first + int(progress[3]), int(progress[4]))
        ends = np.cumsum(self._table[:, 2])
        for index, (_, header) in enumerate(self._batches):
            if header.attributes & LOG_APPEND_TIME:
                end = int(ends[index])
                self._numbers[1, end - header.records_count : end] = header.max_timestamp

    def column(self, name: str) -> pa.Array:
        """One column of RECORD_SCHEMA."""
        match name:
            case "offset":
                return arrow.int64_array(self.offsets)
            case "timestamp":
                return arrow.int64_array(self._numbers[1])
            case "key" | "value":
                index = 0 if name == "key" else 1
                bounds = self._bounds[index]
                data = self._bytes[index][: bounds[-1]]
                return arrow.binary_array(data, bounds, self._valid[index])
            case "timestamp_type":
                types = [header.timestamp_type for _, header in self._batches]
                return pa.array(np.repeat(np.array(types, np.int32), self._table[:, 2]))
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
            ends = np.cumsum(self._table[:, 2])
            index = int(np.searchsorted(ends, row, side="right"))
            position = int(self._headers[0, row]) - int(self._table[index, 0])
            raise self._corrupt(int(answer), index, position)
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

    def _corrupt(self, answer: int, index: int, position: int) -> CorruptRecordError:
        what, start = _WHAT[answer], self._batches[index][0]
        if self._plains[index] is not None:
            what = f"{what}, {position} bytes into its decompressed records"
            return CorruptRecordError(what, position=start)
        return CorruptRecordError(what, position=start + RECORD_BATCH_OVERHEAD + position)


def _sections(
    source: Buffer, batches: list[tuple[int, BatchHeader]], plains: list[Buffer | None]
) -> tuple[Array, Array]:
    """Bytes in which the records of all batches lie, and where: what `read_records` takes."""
    rows, parts, end = [], [], 0
    is_joined = any(plain is not None for plain in plains)
    for (position, header), plain in zip(batches, plains, strict=True):
        start = position + RECORD_BATCH_OVERHEAD
        stop = position + LOG_OVERHEAD + header.batch_length
        if is_joined:
            part = memoryview(source)[start:stop] if plain is None else memoryview(plain)
            parts.append(part)
            start, stop = end, end + len(part)
            end = stop
        rows.append(
            (start, stop, header.records_count, header.base_offset,
             header.last_offset_delta, header.base_timestamp)
        )  # fmt: skip
    joined = source if not is_joined else parts[0] if len(parts) == 1 else b"".join(parts)
    data = np.frombuffer(joined, np.uint8)
    data.setflags(write=False)
    return data, np.array(rows, np.int64)
