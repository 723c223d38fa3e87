"""Decoding of record batches of all formats to Arrow rows.

    decode_batches    bytes --walk--> headers --decompress--> kernel, CRC --> Arrow
    recompress        V2 batch --decompress, compress--> V2 batch
    inspect           V2 batch --decompress, by pieces--> kernel --> times of its records

What passes `inspect`, which a leader asks before it stores a batch, is read without an error. Its
memory stays at about one piece, whatever the batch expands to, unless a single record is larger.

Many small batches become one Arrow batch, and a large one becomes several. So memory is bounded, except
for the bytes of one batch and of one record.

Python does a fixed amount of work per batch. Everything per record is done by `kernels`, whose negative
codes become errors with a position here.

Source: Kafka clients/.../record/MemoryRecordsBuilder.java, DefaultRecordBatch.java.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.kernels import legacy as legacy_kernels
from spark_kbatch.kernels import records as record_kernels
from spark_kbatch.model import LONG_MAX
from spark_kbatch.options.write import MAX_DECOMPRESSED_BATCH_BYTES
from spark_kbatch.record import columns as arrow
from spark_kbatch.record import compression, legacy
from spark_kbatch.record import header as batch_header
from spark_kbatch.record.checksums import Buffer
from spark_kbatch.record.columns import Array
from spark_kbatch.record.header import (
    CODEC_MASK,
    CONTROL,
    LOG_APPEND_TIME,
    LOG_APPEND_TIME_TYPE,
    LOG_OVERHEAD,
    MAGIC,
    MAX_OFFSET,
    MIN_RECORD_SIZE,
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD,
    RECORDS_COUNT_POSITION,
    BatchHeader,
)

RECORD_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),  # ms; -1 for none
        ("timestamp_type", pa.int32()),  # 0 CreateTime, 1 LogAppendTime, -1 none (V0)
        ("headers", arrow.HEADERS_TYPE),
    ]
)

_SECTION_SIZE_MAX = 2**31 - 1  # positions in a records section are int32, as in Kafka

# A compressed batch that claims more records for its size than this ratio allows, at 7 bytes per record,
# is opened and checked even if its header would be enough.
_RECORD_BYTES_PER_BYTE = 32

# A batch this many times larger than a piece is divided. Finding where takes half the time of decoding.
_LARGE = 4

# About how many bytes of batches are decoded before their CRCs are checked: they are still in the cache.
_BYTES_AT_ONCE = 512 * 1024

# Of one record in a compressed batch, which is held until all of it is there. Kafka's clients limit it
# to their max.request.size before compression, which is 1 MiB by default.
RECORD_BYTES_MAX = 128 << 20

RECORD_FAULTS = {  # by the negative codes of kernels
    record_kernels.TRUNCATED: "a field reaches past the end of its record",
    record_kernels.BAD_VARINT: "a varint with too many bytes",
    record_kernels.BAD_LENGTH: "a record's length differs from the size of its fields",
    record_kernels.BAD_HEADER_COUNT: "a header count that its record cannot hold, or above "
    f"{record_kernels.HEADERS_MAX:,}",
    record_kernels.BAD_HEADER_KEY: "a header with a null key",
    record_kernels.TRAILING_BYTES: "bytes after the last record",
    record_kernels.BAD_OFFSET: "an offset delta that does not grow, or passes the batch's last one",
    record_kernels.RECORD_TOO_LARGE: "a record that is too large when decompressed",
}
_WHAT_OF_MESSAGES = {
    legacy_kernels.TRUNCATED: "a message is truncated",
    legacy_kernels.BAD_CRC: "CRC-32",
    legacy_kernels.BAD_LENGTH: "a message's size differs from the size of its key and value",
    legacy_kernels.BAD_OFFSET: "an offset that does not grow",
}


def decode(
    data: Buffer,
    *,
    columns: Sequence[str] = tuple(RECORD_SCHEMA.names),
    start_offset: int = 0,
    end_offset: int = MAX_OFFSET,
) -> pa.RecordBatch:
    """Decode the batches in `data` to Arrow rows, the records with offsets in [start_offset, end_offset).

    Args:
        data: whole batches, back to back. Only read; the result owns its memory.
        columns: names of RECORD_SCHEMA, in the order of the result.

    Returns:
        n rows in offset order. Control records are left out.

    Raises:
        CorruptRecordError: a wrong CRC, length, count or varint; carries the position.
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
            max_bytes=_SECTION_SIZE_MAX,
        )
    )
    schema = pa.schema([RECORD_SCHEMA.field(name) for name in columns])
    whole = pa.Table.from_batches(parts, schema).combine_chunks().to_batches()
    if len(whole) > 1:
        raise OverflowError("over 2 GiB in one column; use decode_batches")
    return whole[0] if whole else arrow.no_rows(schema)


def decode_batches(
    data: Buffer,
    batches: Iterable[tuple[int, BatchHeader]],
    *,
    columns: Sequence[str],
    start_offset: int = 0,
    end_offset: int = MAX_OFFSET,
    max_bytes: int,
    max_decompressed_batch_bytes: int = MAX_DECOMPRESSED_BATCH_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Decode batches at known positions to Arrow rows, as `decode` does, in pieces of about `max_bytes`.

    A piece ends with the batch that brings its uncompressed bytes to `max_bytes` or more. A batch of over
    four times as many becomes several pieces, each of which ends with such a record.

    Args:
        max_decompressed_batch_bytes: a compressed batch that holds more is an error.
    """
    only_offsets = set(columns) <= {"offset"}
    schema = pa.schema([RECORD_SCHEMA.field(name) for name in columns])
    piece = _Piece(data, schema)
    is_long, large_from = len(data) > _SECTION_SIZE_MAX, max_bytes * _LARGE
    next_offset = 0
    for position, header in batches:
        plain: Buffer | None = None
        shift = 0
        is_legacy = header.magic < MAGIC
        if is_legacy and header.attributes & CODEC_MASK:
            # Its first offset is known only once it is open, but is not below those before it.
            if header.last_offset < start_offset or next_offset >= end_offset:
                continue
            header, plain, shift = legacy.unwrap(
                data, position, header, limit=max_decompressed_batch_bytes
            )
        base_offset, length, _, _, _, attributes, last_delta, _, _, _, _, _, count = header
        next_offset = base_offset + last_delta + 1
        is_control = attributes & CONTROL and not is_legacy
        # Without the CRC only the header's offsets are believed, which the caller has checked against
        # the neighbouring batches. They are enough if there is a record at each offset, and if the
        # batch can hold so many: for plain records that was checked with the header.
        is_open = (
            not only_offsets
            or is_control
            or base_offset + count != next_offset
            or count * MIN_RECORD_SIZE > length * _RECORD_BYTES_PER_BYTE
        )
        # A batch whose count is 0 is empty, whatever bytes it has, as in Kafka.
        if next_offset <= start_offset or base_offset >= end_offset or is_control or not count:
            if is_open and not is_legacy:  # CRCs of messages do not cover offsets
                batch_header.ensure_valid(data, position, header)
            continue
        if is_open and plain is None and attributes & CODEC_MASK:
            plain = _decompressed(data, position, header, max_decompressed_batch_bytes)
        # Offsets that are made from the header alone take 8 bytes per record.
        size = 8 * count if not is_open else length if plain is None else len(plain)
        reader = (_MessageReader if is_legacy else _RecordReader) if is_open else None
        if piece.parts and (
            piece.reader != reader
            or piece.size + size > _SECTION_SIZE_MAX
            or (
                is_long and position + length - piece.parts[0][0] > _SECTION_SIZE_MAX - LOG_OVERHEAD
            )
        ):
            yield piece.to_arrow(start_offset, end_offset)
            piece = _Piece(data, schema)
        part = (position, header, plain, shift, 0)
        if size > large_from and not (is_legacy and plain is None):
            if piece.parts:
                yield piece.to_arrow(start_offset, end_offset)
                piece = _Piece(data, schema)
            yield from _in_pieces(data, schema, part, reader, start_offset, end_offset, max_bytes)
            continue
        piece.reader = reader
        piece.size += size
        piece.parts.append(part)
        if piece.size >= max_bytes:
            yield piece.to_arrow(start_offset, end_offset)
            piece = _Piece(data, schema)
    if piece.parts:
        yield piece.to_arrow(start_offset, end_offset)


def recompress(data: Buffer, header: BatchHeader, codec: int, *, limit: int) -> bytearray:
    """Return the one batch in `data` with its records compressed by another codec.

    The codec's default level is used.

    Args:
        limit: the most bytes of its records before compression.

    Raises:
        CorruptRecordError: they have more, or do not decompress.
    """
    plain = compression.decompress_at(
        header.codec, data, RECORD_BATCH_OVERHEAD, header.size_in_bytes, limit=limit
    )
    return batch_header.with_section(data, compression.compress(codec, plain), codec)


def _decompressed(data: Buffer, position: int, header: BatchHeader, limit: int) -> Buffer:
    """Check the CRC of a compressed batch and return its records, decompressed."""
    batch_header.ensure_valid(data, position, header)
    start, end = position + RECORD_BATCH_OVERHEAD, position + header.size_in_bytes
    plain = compression.decompress_at(header.codec, data, start, end, limit=limit)
    if header.records_count * MIN_RECORD_SIZE > len(plain):
        raise CorruptRecordError(
            "records count that the bytes cannot hold",
            position=position + RECORDS_COUNT_POSITION,
            expected=f"at most {len(plain) // MIN_RECORD_SIZE}",
            found=header.records_count,
        )
    return plain


def _in_pieces(
    data: Buffer,
    schema: pa.Schema,
    part: _Part,
    reader: type[_RecordReader] | None,
    start_offset: int,
    end_offset: int,
    max_bytes: int,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one large batch as several Arrow batches, each decoded when it is asked for."""
    if reader is None:
        runs = _runs_of_offsets(part, start_offset, end_offset, max_bytes)
    elif reader is _RecordReader:
        runs = _runs_of_records(data, part, max_bytes)
    else:
        runs = _runs_of_messages(part, max_bytes)
    next_offset = 0
    for run in runs:
        piece = _Piece(data, schema, next_offset)
        piece.reader = reader
        piece.parts.append(run)
        rows = piece.to_arrow(start_offset, end_offset)
        next_offset = piece.next_offset
        if rows.num_rows:
            yield rows
        if next_offset >= end_offset:
            return


def _runs_of_offsets(
    part: _Part, start_offset: int, end_offset: int, max_bytes: int
) -> Iterator[_Part]:
    """Divide a batch's offsets into runs of at most `max_bytes`, when only its header is needed.

    Offsets that are not wanted are left out.
    """
    position, header, plain, shift, start = part
    at, end = max(header.base_offset, start_offset), min(header.next_offset, end_offset)
    while at < end:
        count = min(max(max_bytes // 8, 1), end - at)
        run = header._replace(base_offset=at, last_offset_delta=count - 1, records_count=count)
        yield position, run, plain, shift, start
        at += count


def _runs_of_records(data: Buffer, part: _Part, max_bytes: int) -> Iterator[_Part]:
    """Divide the records of one V2 batch into runs of about `max_bytes` uncompressed bytes.

    A run ends with the record that brings it to `max_bytes`.
    """
    position, header, plain, shift, _ = part
    if plain is None:
        batch_header.ensure_valid(data, position, header)
        plain = memoryview(data)[position + RECORD_BATCH_OVERHEAD : position + header.size_in_bytes]
    flat = arrow.frozen(np.frombuffer(plain, np.uint8))
    runs = np.zeros((2, len(plain) // max_bytes + 1), np.int64)
    fault = np.zeros(1, np.int64)
    code = int(record_kernels.divide_records(flat, header.records_count, max_bytes, runs, fault))
    if code < 0:
        raise _corrupt_records(code, part, int(fault[0]))
    start, view = 0, memoryview(plain)
    for end, count in runs[:, :code].T.tolist():
        yield position, header._replace(records_count=count), view[start:end], shift, start
        start = end


def _runs_of_messages(part: _Part, max_bytes: int) -> Iterator[_Part]:
    """Divide the messages of a V0 or V1 wrapper into runs of at most about `max_bytes`.

    They were checked when the wrapper was opened.
    """
    position, header, plain, shift, _ = part
    assert plain is not None
    view, start = memoryview(plain), 0
    while start < len(view):
        end, count = legacy.run(view, start, max_bytes, header.magic)
        yield position, header._replace(records_count=count), view[start:end], shift, start
        start = end


# One batch of a piece: its position; its header; its records, if they do not lie in the source; what to
# add to the offsets in a wrapper; and where those records start among all of the batch. It is a plain
# tuple because creating a named one takes longer.
_Part = tuple[int, BatchHeader, Buffer | None, int, int]


class _Piece:
    """A group of batches that are decoded into one Arrow batch."""

    def __init__(self, data: Buffer, schema: pa.Schema, at_least: int = 0) -> None:
        """Start an empty group of batches, whose first offset must be `at_least` or more."""
        self._data, self._schema = data, schema
        self.next_offset = at_least  # after its rows, once they are read
        self.parts: list[_Part] = []
        self.reader: type[_RecordReader] | None = None  # None if headers are enough
        self.size = 0

    def to_arrow(self, start_offset: int, end_offset: int) -> pa.RecordBatch:
        """Decode the group's batches to Arrow rows, those with offsets in [start_offset, end_offset)."""
        columns = self._schema.names
        if self.reader is not None:
            reader = self.reader(self._data, self.parts, columns)
            reader.read()
            if len(reader.offsets) and reader.offsets[0] < self.next_offset:
                raise _corrupt_records(record_kernels.BAD_OFFSET, self.parts[0], 0)
            arrays, offsets = [reader.column(name) for name in columns], reader.offsets
        else:
            ranges = [np.arange(h.base_offset, h.next_offset) for _, h, _, _, _ in self.parts]
            offsets = np.concatenate(ranges)
            arrays = [arrow.number_array(offsets)] * len(columns)
        if arrays:
            rows = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        else:
            nothing = pa.Array.from_buffers(pa.struct([]), len(offsets), [None])
            rows = pa.RecordBatch.from_struct_array(nothing)
        first, end = 0, len(offsets)
        if end:
            self.next_offset = int(offsets[-1]) + 1
        if self.parts[0][1].base_offset < start_offset:
            first = int(np.searchsorted(offsets, start_offset))
        if self.parts[-1][1].last_offset >= end_offset:
            end = max(int(np.searchsorted(offsets, end_offset)), first)
        return rows if end - first == len(offsets) else rows.slice(first, end - first)


class _RecordReader:
    """A reader that decodes the records of some V2 batches into Arrow columns."""

    OVERHEAD = RECORD_BATCH_OVERHEAD  # bytes before a batch's records

    def __init__(self, source: Buffer, parts: list[_Part], columns: Sequence[str]) -> None:
        self._source, self._parts = source, parts
        # Twice as fast as np.array, which inspects its argument first.
        numbers = chain.from_iterable([header for _, header, _, _, _ in parts])
        self._fields = np.fromiter(numbers, np.int64).reshape(len(parts), -1).T
        positions = np.array([position for position, _, _, _, _ in parts], np.int64)
        joined, self._starts, self._sizes = _joined(
            source, parts, positions, self._field("batch_length"), self.OVERHEAD
        )
        self._data = arrow.frozen(np.frombuffer(joined, np.uint8))
        self._counts = self._field("records_count")
        count, size = int(self._counts.sum()), int(self._sizes.sum())
        self._numbers = arrow.empty((2, count), np.int64)
        self._headers = arrow.empty((2, count if "headers" in columns else 0), np.int32)
        self._bounds = arrow.empty((3, count + 1), np.int32)
        self._bounds[:, 0] = 0
        self._valid = arrow.empty((2, count), np.uint8)
        # Larger than needed, because either may take nearly all bytes.
        self._bytes = [arrow.empty(size if c in columns else 0, np.uint8) for c in ("key", "value")]
        self.offsets = self._numbers[0]

    def read(self) -> None:
        """Decode all records of the batches and check the batches' CRCs.

        The CRC comes second: the kernel, which checks everything it uses, has other work to do while
        bytes arrive from memory, and the CRC then finds them in the cache.

        Raises:
            CorruptRecordError: bytes that do not follow the format.
        """
        table = self._table(
            *map(self._field, ("base_offset", "last_offset_delta", "base_timestamp"))
        )
        count = len(self._parts)
        count_at_once = max(1, count * _BYTES_AT_ONCE // max(1, int(self._sizes.sum())))
        progress = np.zeros(5, np.int64)
        for first in range(0, count, count_at_once):
            end = min(first + count_at_once, count)
            code = record_kernels.read_records(
                self._data, table[first:end], self._numbers, self._headers,
                self._bounds, self._valid, self._bytes[0], self._bytes[1], progress,
            )  # fmt: skip
            batch_header.ensure_all_valid(
                self._source,
                [part[:2] for part in self._parts[first:end] if part[2] is None],
            )
            if code < 0:
                raise self._corrupt(int(code), first + int(progress[3]), int(progress[4]))
        self._set_log_append_times(self._field("attributes") & LOG_APPEND_TIME)

    def _field(self, name: str) -> Array:
        """Return one field of all headers, int64[k]."""
        field: Array = self._fields[BatchHeader._fields.index(name)]
        return field

    def _table(self, *facts: Array) -> Array:
        """Return a table of the batches for a kernel: their records' start, end and number, and `facts`.

        It is int64[k, ..].
        """
        columns = (self._starts, self._starts + self._sizes, self._counts, *facts)
        table = np.empty((len(self._starts), len(columns)), np.int64)
        for index, column in enumerate(columns):
            table[:, index] = column
        return table

    def _set_log_append_times(self, where: Array) -> None:
        """Set the timestamps of all records in the batches marked in `where` to the batch's append time."""
        if not where.any():
            return
        ends, times = np.cumsum(self._counts), self._field("max_timestamp")
        for index in np.flatnonzero(where):
            first = ends[index] - self._counts[index]
            self._numbers[1, first : ends[index]] = times[index]

    def column(self, name: str) -> pa.Array:
        """Return one column of RECORD_SCHEMA as an Arrow array, after `read`."""
        match name:
            case "offset":
                return arrow.number_array(self.offsets)
            case "timestamp":
                return arrow.number_array(self._numbers[1])
            case "key" | "value":
                index = 0 if name == "key" else 1
                bounds = self._bounds[index]
                data = self._bytes[index][: bounds[-1]]
                return arrow.binary_array(data, bounds, self._valid[index])
            case "timestamp_type":
                types = [header.timestamp_type for _, header, _, _, _ in self._parts]
                return arrow.number_array(np.repeat(np.array(types, np.int32), self._counts))
            case _:
                return self._headers_column()

    def _headers_column(self) -> pa.Array:
        count = int(self._bounds[2, -1])
        positions, bounds = arrow.empty((2, count), np.int32), arrow.empty((2, count + 1), np.int32)
        bounds[:, 0] = 0
        valid, fault = arrow.empty(count, np.uint8), np.zeros(1, np.int64)
        code = record_kernels.scan_headers(
            self._data, self._headers, self._bounds[2], positions, bounds, valid, fault
        )
        if code < 0:
            row = int(fault[0])
            ends = np.cumsum(self._counts)
            index = int(np.searchsorted(ends, row, side="right"))
            position = int(self._headers[0, row]) - int(self._starts[index])
            raise self._corrupt(int(code), index, position)
        keys, values = (self._gather(positions[i], bounds[i]) for i in (0, 1))
        return arrow.headers_array(
            self._bounds[2],
            arrow.string_array(keys, bounds[0]),
            arrow.binary_array(values, bounds[1], valid),
        )

    def _gather(self, positions: Array, bounds: Array) -> Array:
        data = arrow.empty(int(bounds[-1]), np.uint8)
        record_kernels.copy_spans(self._data, positions, bounds, data)
        return data

    def _corrupt(self, code: int, index: int, position: int) -> CorruptRecordError:
        return _corrupt_records(code, self._parts[index], position)


class _MessageReader(_RecordReader):
    """A reader that decodes V0 and V1 messages, plain or from wrappers, into Arrow columns."""

    OVERHEAD = 0

    def read(self) -> None:
        """Decode all V0 or V1 messages and check their CRCs.

        Raises:
            CorruptRecordError: bytes that do not follow the format.
        """
        fault = np.zeros(2, np.int64)
        shifts = np.array([shift for _, _, _, shift, _ in self._parts], np.int64)
        code = legacy_kernels.read_messages(
            self._data, self._table(shifts), self._numbers,
            self._bounds[:2], self._valid, self._bytes[0], self._bytes[1], fault,
        )  # fmt: skip
        if code < 0:
            raise self._corrupt(int(code), int(fault[0]), int(fault[1]))
        has_one_time = [
            plain is not None and header.timestamp_type == LOG_APPEND_TIME_TYPE
            for _, header, plain, _, _ in self._parts
        ]
        self._set_log_append_times(np.array(has_one_time))

    def _headers_column(self) -> pa.Array:
        return pa.nulls(len(self.offsets), arrow.HEADERS_TYPE)

    def _corrupt(self, code: int, index: int, position: int) -> CorruptRecordError:
        (at, _, plain, _, start), expected, found = self._parts[index], "", ""
        what = _WHAT_OF_MESSAGES[code]
        if code == legacy_kernels.BAD_CRC:
            crcs = batch_header.message_crcs(self._data.data, int(self._starts[index]) + position)
            expected, found = (f"{crc:#010x}" for crc in crcs)
        if plain is None:
            at += position
        else:
            what = f"{what}, {start + position} bytes into a wrapper's decompressed messages"
        return CorruptRecordError(what, position=at, expected=expected, found=found)


def _corrupt_records(code: int, part: _Part, position: int) -> CorruptRecordError:
    """Return the error for a negative code from a kernel that decodes records.

    `position` counts from the part's records.
    """
    what, (at, header, _, _, start) = RECORD_FAULTS[code], part
    position += start
    if header.codec:
        what = f"{what}, {position} bytes into its decompressed records"
        return CorruptRecordError(what, position=at)
    return CorruptRecordError(what, position=at + RECORD_BATCH_OVERHEAD + position)


def _joined(
    source: Buffer, parts: list[_Part], positions: Array, lengths: Array, overhead: int
) -> tuple[Buffer, Array, Array]:
    """Return bytes that hold the records of all batches, with the start and size of each batch's."""
    starts, sizes = positions + overhead, lengths + (LOG_OVERHEAD - overhead)
    if all(plain is None for _, _, plain, _, _ in parts):
        # Positions are int32, so they count from the first batch and not from the source's start.
        first, end = int(starts[0]), int(starts[-1] + sizes[-1])
        return memoryview(source)[first:end], starts - first, sizes
    pieces = [
        memoryview(source)[start : start + size] if plain is None else memoryview(plain)
        for (_, _, plain, _, _), start, size in zip(
            parts, starts.tolist(), sizes.tolist(), strict=True
        )
    ]
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    return (
        pieces[0] if len(pieces) == 1 else b"".join(pieces),
        np.cumsum(sizes) - sizes,
        sizes,
    )


class Times(NamedTuple):
    """The smallest and largest timestamp of a batch's records."""

    smallest: int  # that is not -1; -1 if none is
    largest: int  # -1 or more, as in Kafka


def inspect(data: Buffer, header: BatchHeader) -> Times:
    """Check every record of the one batch in `data`; return its smallest and largest timestamp.

    Its header and CRC were checked.

    Raises:
        CorruptRecordError: a record that the format does not allow, or whose offset delta is not its
            number; too few or too many records; more bytes than readers decompress by default.
    """
    facts = np.array([0, header.base_timestamp, NO_TIMESTAMP, LONG_MAX, 0], np.int64)
    try:
        _walk(memoryview(data)[RECORD_BATCH_OVERHEAD:], header, facts)
    except CorruptRecordError as error:
        raise error.at("", RECORD_BATCH_OVERHEAD) from None
    largest, smallest = int(facts[2]), int(facts[3])
    return Times(NO_TIMESTAMP if smallest == LONG_MAX else smallest, largest)


def _walk(view: memoryview, header: BatchHeader, facts: Array) -> None:
    """Check each record of a batch in `view`, which may be compressed, a piece at a time.

    Positions in errors count from its start.
    """
    count = header.records_count
    record_bytes_max = RECORD_BYTES_MAX if header.codec else len(view)
    rest = bytearray()  # of a piece, from the first record on that is not whole
    checked = 0  # bytes of the records before that
    for piece in compression.decompress_pieces(header.codec, view):
        if not piece:
            continue
        given: Buffer = piece
        if rest:
            rest += piece
            given = rest
        # The array is not kept: `rest` changes its size below.
        code = int(
            record_kernels.check_records(
                arrow.frozen(np.frombuffer(given, np.uint8)), count, record_bytes_max, facts
            )
        )
        size = int(facts[4])
        checked += size
        if code == count and size < len(given):
            code = record_kernels.TRAILING_BYTES
        if code < 0:
            what = f"record {facts[0]}: {RECORD_FAULTS[code]}"
            if header.codec:
                raise CorruptRecordError(f"{what}, {checked} bytes into the decompressed records")
            raise CorruptRecordError(what, position=checked)
        if given is rest:
            del rest[:size]
        else:
            rest += memoryview(given)[size:]
    found = int(facts[0])
    if found < count:
        raise CorruptRecordError("fewer whole records than it says", expected=count, found=found)
