"""Batches with a right CRC and wrong numbers, or that expand enormously."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from crc32c import crc32c

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.kernels import records as record_kernels
from spark_kbatch.record import codec
from spark_kbatch.record.header import MAX_OFFSET, unpack, walk
from spark_kbatch.record.scalar import times
from tests.support import reference
from tests.support.builders import as_read
from tests.support.reference import CODECS, HEADER, LOG_APPEND_TIME, Record, encode_varint

COLUMNS = codec.RECORD_SCHEMA.names
ZSTD = CODECS["zstd"]
MIB = 1 << 20


def framed(body: bytes, records_count: int, *, codec_id: int = 0, base_offset: int = 0) -> bytes:
    """A batch of any size with this body, which is compressed already, and the right CRC."""
    size = 61 - 12 + len(body)
    fields = [0, 2, 0, codec_id, records_count - 1, 5, 5, -1, -1, -1, records_count]
    head = HEADER.pack(base_offset, size, *fields)
    fields[2] = crc32c(body, crc32c(head[21:]))
    return HEADER.pack(base_offset, size, *fields) + body


def in_pieces(data: bytes, max_bytes: int, **wanted: Any) -> Iterator[pa.RecordBatch]:
    return codec.decode_batches(
        data, walk(data), **{"columns": COLUMNS, "max_bytes": max_bytes, **wanted}
    )


def some_records(count: int, value_bytes: int = 10) -> list[Record]:
    return [
        Record(
            7 + 2 * at,
            1000 + at,
            None if at % 3 == 0 else b"k%d" % at,
            None if at % 5 == 0 else b"v" * (at % value_bytes),
            (("h", b"x" * (at % 4)),) * (at % 3),
        )
        for at in range(count)
    ]


# Counts


@pytest.mark.parametrize("columns", [["offset"], [], COLUMNS], ids=["offset", "none", "all"])
@pytest.mark.parametrize("codec_id", [CODECS["gzip"], ZSTD], ids=["gzip", "zstd"])
def test_a_records_count_that_the_bytes_cannot_hold_is_refused(
    codec_id: int, columns: list[str]
) -> None:
    data = framed(reference.compress(codec_id, b"\x0c" * 7), 300_000_000, codec_id=codec_id)

    with pytest.raises(CorruptRecordError, match="records count"):
        list(in_pieces(data, 4 * MIB, columns=columns))


def test_offsets_from_a_header_alone_come_in_pieces() -> None:
    count = 700_000
    data = framed(bytes(count * 7 // 32 + 1), count, codec_id=ZSTD, base_offset=9)

    def offsets(**wanted: Any) -> list[pa.Array]:
        return [rows.column(0) for rows in in_pieces(data, MIB, columns=["offset"], **wanted)]

    pieces = offsets()
    assert max(map(len, pieces)) == MIB // 8
    assert pa.chunked_array(pieces).equals(pa.chunked_array([range(9, 9 + count)], pa.int64()))
    assert pa.chunked_array(offsets(start_offset=200_000, end_offset=600_000)).equals(
        pa.chunked_array([range(200_000, 600_000)], pa.int64())
    )
    assert offsets(start_offset=9 + count) == []


@pytest.mark.parametrize("codec_id", [pytest.param(number, id=name) for name, number in CODECS.items()])  # fmt: skip
@pytest.mark.parametrize("columns", [["offset"], COLUMNS], ids=["offset", "all"])
def test_a_batch_without_records_is_empty_whatever_bytes_it_has(
    codec_id: int, columns: list[str]
) -> None:
    record = reference.encode_batch([Record(20, 5, b"k", b"v")], base_offset=20)
    empty = framed(b"no records, and no codec's bytes", 0, codec_id=codec_id)
    empty = reference.with_crc(empty[:23] + bytes(4) + empty[27:])
    data = empty + record

    assert reference.decode_batches(empty) == []
    assert sum(rows.num_rows for rows in in_pieces(data, MIB, columns=columns)) == 1
    damaged = data[: len(empty) - 1] + b"?" + record
    with pytest.raises(CorruptRecordError, match="CRC-32C"):
        list(in_pieces(damaged, MIB, columns=columns))


def a_record(headers_count: int, headers: bytes) -> bytes:
    body = b"\0\0\0\1\1" + encode_varint(headers_count) + headers
    return encode_varint(len(body)) + body


def test_more_headers_than_a_record_has_room_for_are_refused_before_they_take_memory() -> None:
    room = 100_000
    data = framed(a_record(room // 2 + 1, bytes(room)), 1)
    before = pa.total_allocated_bytes()

    with pytest.raises(CorruptRecordError, match="header count"):
        codec.decode(data)
    assert pa.total_allocated_bytes() == before
    held = codec.decode(framed(a_record(room // 2, b"\0\1" * (room // 2)), 1))
    assert len(held.column("headers")[0]) == room // 2


def test_headers_by_the_million_are_refused_if_they_are_read() -> None:
    count = record_kernels.HEADERS_MAX + 1
    plain = a_record(count, b"\0\1" * count)
    data = framed(zstandard.compress(plain, 1), 1, codec_id=ZSTD)

    with pytest.raises(CorruptRecordError, match="above 16,777,216"):
        codec.decode(data)
    assert codec.decode(data, columns=["offset", "value"]).num_rows == 1


# Large batches become several pieces


@pytest.mark.parametrize("codec_id", [pytest.param(number, id=name) for name, number in CODECS.items()])  # fmt: skip
@pytest.mark.parametrize("extra", [0, LOG_APPEND_TIME], ids=["create-time", "append-time"])
@pytest.mark.parametrize("max_bytes", [7, 500])
def test_a_large_batch_in_pieces_has_the_same_rows(
    codec_id: int, extra: int, max_bytes: int
) -> None:
    data = b"".join(
        reference.encode_batch(
            [record._replace(offset=record.offset + shift) for record in some_records(count)],
            base_offset=shift,
            codec=codec_id,
            attributes_extra=extra,
        )
        for count, shift in ((2, 0), (300, 100), (1, 2000), (90, 3000))
    )
    whole = codec.decode(data)

    pieces = list(in_pieces(data, max_bytes))
    assert as_read(pa.Table.from_batches(pieces).combine_chunks().to_batches()[0]) == as_read(whole)
    assert len(pieces) > 4
    for start, end in ((0, 150), (151, 152), (300, 3100), (3181, MAX_OFFSET)):
        cut = [
            record
            for rows in in_pieces(data, max_bytes, start_offset=start, end_offset=end)
            for record in as_read(rows)
        ]
        assert cut == [record for record in as_read(whole) if start <= record.offset < end]


@pytest.mark.parametrize("magic", [0, 1], ids=["v0", "v1"])
@pytest.mark.parametrize("max_bytes", [1, 100, 2000])
def test_a_large_wrapper_in_pieces_has_the_same_rows(magic: int, max_bytes: int) -> None:
    records = [r._replace(headers=(), timestamp=r.timestamp if magic else -1) for r in some_records(400)]  # fmt: skip
    data = reference.encode_messages(records, magic=magic, codec=1)

    pieces = list(in_pieces(data, max_bytes))

    assert [record for rows in pieces for record in as_read(rows)] == records
    assert len(pieces) > 3


def test_memory_is_bounded_however_much_a_batch_expands() -> None:
    """11 bytes of a record become 40 in Arrow, one piece at a time."""
    count = 300_000
    record = [b"\0\0" + encode_varint(at) + b"\1\1\0" for at in range(count)]
    body = b"".join(encode_varint(len(one)) + one for one in record)
    data = framed(zstandard.compress(body, 1), count, codec_id=ZSTD)
    before, most, rows_count = pa.total_allocated_bytes(), 0, 0

    for rows in in_pieces(data, MIB // 8):
        most = max(most, pa.total_allocated_bytes() - before)
        rows_count += rows.num_rows
    assert rows_count == count
    assert most < 2 * MIB


def test_a_large_batch_with_a_wrong_crc_gives_no_piece() -> None:
    data = bytearray(reference.encode_batch(some_records(400)))
    data[-1] ^= 1

    with pytest.raises(CorruptRecordError, match="CRC-32C"):
        next(in_pieces(bytes(data), 100))


@pytest.mark.parametrize("codec_name", ["none", "zstd"])
@pytest.mark.parametrize(
    ("damage", "error"),
    [
        pytest.param(lambda body: body + b"\0", "bytes after the last record", id="more"),
        pytest.param(lambda body: body[:-1], "past the end", id="less"),
        pytest.param(lambda body: body + body[-14:], "past the end|after the last", id="a-tail"),
        pytest.param(lambda body: b"\xff" * 9 + body, "too many bytes", id="long-varint"),
        pytest.param(lambda body: b"\x01" + body, "past the end", id="negative-length"),
    ],
)
def test_a_large_batch_whose_records_do_not_fit_is_an_error(
    codec_name: str, damage: Any, error: str
) -> None:
    records = some_records(300)
    body = b"".join(reference.encode_record(r, base_offset=7, base_timestamp=5) for r in records)
    codec_id = CODECS[codec_name]
    data = reference.frame_batch(
        reference.compress(codec_id, damage(body)),
        base_offset=7, attributes=codec_id, last_offset_delta=600, records_count=300,
    )  # fmt: skip

    with pytest.raises(CorruptRecordError, match=error) as raised:
        list(in_pieces(data, 300))
    at = raised.value.position
    assert at == 0 if codec_name == "zstd" else 61 <= at <= len(data)


@pytest.mark.parametrize("codec_name", ["none", "zstd"])
def test_offsets_that_fall_from_one_piece_to_the_next_are_an_error(codec_name: str) -> None:
    records = [Record(at, 5, b"k", b"v") for at in range(40)]
    one = [reference.encode_record(r, base_offset=0, base_timestamp=5) for r in records]
    body = b"".join([*one[:20], *one[10:30]])
    codec_id = CODECS[codec_name]
    data = reference.frame_batch(
        reference.compress(codec_id, body),
        attributes=codec_id, last_offset_delta=600, records_count=40,
    )  # fmt: skip

    with pytest.raises(CorruptRecordError, match="does not grow") as raised:
        list(in_pieces(data, len(b"".join(one[:5]))))
    where = len(b"".join(one[:20]))
    if codec_name == "none":
        assert raised.value.position == 61 + where
    else:
        assert f"{where} bytes into its decompressed records" in str(raised.value)


# Limits


@pytest.mark.parametrize("columns", [["value"], COLUMNS], ids=["value", "all"])
@pytest.mark.parametrize("codec_name", ["gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_the_decompressed_size_of_a_batch_is_limited_by_an_option(
    magic: int, codec_name: str, columns: list[str]
) -> None:
    if magic < 2 and codec_name == "zstd":
        return  # which the formats have not
    records = [r._replace(headers=()) for r in some_records(400)]
    if magic < 2:
        data = reference.encode_messages(records, magic=magic, codec=CODECS[codec_name])
        size = len(reference.encode_messages(records, magic=magic))
    else:
        data = reference.encode_batch(records, codec=CODECS[codec_name])
        size = len(reference.encode_batch(records)) - 61

    def read(limit: int) -> int:
        pieces = in_pieces(data, MIB, columns=columns, max_decompressed_batch_bytes=limit)
        return sum(rows.num_rows for rows in pieces)

    assert read(size) == 400
    with pytest.raises(CorruptRecordError, match=r"max\.decompressed\.batch\.bytes"):
        read(size - 1)


def test_positions_in_the_data_may_pass_31_bits() -> None:
    batch = reference.encode_batch(some_records(20))
    at = 2**31 - 200
    data = mmap.mmap(-1, at + len(batch))
    data[at:] = batch

    pieces = codec.decode_batches(data, [(at, unpack(batch))], columns=COLUMNS, max_bytes=4 * MIB)
    assert [record for rows in pieces for record in as_read(rows)] == some_records(20)


def test_a_batch_far_from_the_last_one_is_a_piece_of_its_own() -> None:
    batches = [reference.encode_batch(some_records(2), base_offset=at) for at in (0, 7)]
    at = 2**31 - 50
    data = mmap.mmap(-1, at + len(batches[1]))
    data[: len(batches[0])] = batches[0]
    data[at:] = batches[1]
    found = [(0, unpack(batches[0])), (at, unpack(batches[1]))]

    pieces = list(codec.decode_batches(data, found, columns=["offset", "headers"], max_bytes=MIB))
    assert [rows.num_rows for rows in pieces] == [2, 2]


def test_a_varint_without_an_end_is_refused_in_the_time_of_ten_bytes() -> None:
    data = framed(b"\x80" * (4 * MIB), 1)

    with pytest.raises(CorruptRecordError, match="over ten bytes"):
        list(times(data, 0, unpack(data)))
