"""Every record of a batch is checked before it is stored: what passes can be read by anyone."""

from __future__ import annotations

import contextlib
import warnings
import zlib
from collections.abc import Iterator
from typing import Any

import aiokafka.record.default_records as aiokafka_records  # type: ignore[import-untyped]
import aiokafka.record.memory_records as aiokafka  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.record import codec, compression, scalar
from spark_kbatch.record.codec import Times, inspect
from spark_kbatch.record.header import unpack
from tests.support import builders, reference, strategies
from tests.support.reference import CODECS, HEADER_SIZE, Record, encode_record, encode_varint

with warnings.catch_warnings():
    # It reads its schemas with a deprecated function of importlib.resources.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.record.default_records as kafka_python_records  # type: ignore[import-untyped]

CODEC_IDS = [pytest.param(number, id=name) for name, number in CODECS.items()]
COMPRESSING = CODEC_IDS[1:]
ZSTD = CODECS["zstd"]
MIB = 1 << 20


def inspected(data: bytes | bytearray | memoryview) -> Times:
    return inspect(data, unpack(data))


def framed(body: bytes, count: int, *, codec_id: int = 0, base_timestamp: int = 0) -> bytes:
    """A batch that claims `count` records and has this body, which is compressed here."""
    return reference.frame_batch(
        reference.compress(codec_id, body),
        attributes=codec_id,
        base_timestamp=base_timestamp,
        last_offset_delta=count - 1,
        records_count=count,
    )


def body_of(*records: Record, base_timestamp: int = 0) -> bytes:
    return b"".join(
        encode_record(one, base_offset=0, base_timestamp=base_timestamp) for one in records
    )


def some_records(count: int, *, size: int = 20) -> list[Record]:
    return [
        Record(
            at,
            1000 + at,
            None if at % 3 == 0 else b"k%d" % at,
            None if at % 5 == 0 else b"v" * (at % size),
            (("h", b"x" * (at % 4)), ("i", None))[: at % 3],
        )
        for at in range(count)
    ]


# Whole batches.


@pytest.mark.parametrize("codec_id", CODEC_IDS)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_times_of_a_sound_batch_are_found_in_any_buffer(codec_id: int, kind: Any) -> None:
    data = reference.encode_batch(some_records(100), codec=codec_id)
    assert inspected(kind(data)) == Times(1000, 1099)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        pytest.param([5], Times(5, 5), id="one"),
        pytest.param([7, 3, 9, 4], Times(3, 9), id="not in order"),
        pytest.param([-1, -1], Times(-1, -1), id="none"),
        pytest.param([-1, 8, -1], Times(8, 8), id="none in some"),
        pytest.param([-5, -3], Times(-5, -1), id="before 1970, which Kafka's maximum leaves out"),
        pytest.param([2**62, -(2**62)], Times(-(2**62), 2**62), id="far apart"),
    ],
)
def test_the_smallest_and_the_largest_time_are_those_of_the_records(
    times: list[int], expected: Times
) -> None:
    body = body_of(*(Record(at, time, None, b"") for at, time in enumerate(times)))
    assert inspected(framed(body, len(times))) == expected


@pytest.mark.parametrize("codec_id", COMPRESSING)
def test_records_across_the_ends_of_pieces_are_found(codec_id: int) -> None:
    """A piece is 1 MiB at most, and 32 KiB with snappy."""
    sizes = [40_000, 3, 2 * MIB + 17, 0, 70_000, 1, 600_000, 900_000, 5]
    records = [Record(at, 10 + at, b"k", b"v" * size) for at, size in enumerate(sizes)]
    data = reference.frame_batch(
        compression.compress(codec_id, body_of(*records)),
        attributes=codec_id,
        last_offset_delta=len(sizes) - 1,
        records_count=len(sizes),
    )
    assert inspected(data) == Times(10, 10 + len(sizes) - 1)


@pytest.mark.parametrize("codec_id", COMPRESSING)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_pieces_may_end_anywhere(codec_id: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    body = body_of(*some_records(40))
    monkeypatch.setattr(
        compression,
        "decompress_pieces",
        lambda *_: (body[at : at + size] for at in range(0, len(body), size)),
    )
    assert inspected(framed(body, 40, codec_id=codec_id)) == Times(1000, 1039)
    with pytest.raises(CorruptRecordError, match="fewer whole records"):
        inspected(framed(body, 41, codec_id=codec_id))
    with pytest.raises(CorruptRecordError, match="record 39: bytes after the last record"):
        inspected(framed(body, 39, codec_id=codec_id))


# What is refused.


def record(*fields: bytes, length: int | None = None) -> bytes:
    body = b"".join(fields)
    return encode_varint(len(body) if length is None else length) + body


NULL, EMPTY, ZERO = encode_varint(-1), encode_varint(0), encode_varint(0)
GOOD = body_of(Record(0, 0, b"k", b"v"))
HEAD = (b"\0", ZERO, ZERO)  # attributes, timestamp delta, offset delta


@pytest.mark.parametrize("codec_id", [0, ZSTD], ids=["none", "zstd"])
@pytest.mark.parametrize(
    ("body", "count", "words"),
    [
        pytest.param(b"", 1, "fewer whole records than it says: expected 1, found 0", id="nothing"),
        pytest.param(GOOD, 2, "fewer whole records", id="one too few"),
        pytest.param(GOOD + GOOD, 1, "bytes after the last record", id="one too many"),
        pytest.param(GOOD + b"\0", 1, "bytes after the last record", id="a byte too many"),
        pytest.param(GOOD[:-1], 1, "fewer whole records", id="cut off"),
        pytest.param(GOOD + GOOD, 2, "record 1: an offset delta", id="the same offset twice"),
        pytest.param(body_of(Record(1, 0, None, None)), 1, "record 0: an offset delta", id="offset 1 first"),
        pytest.param(body_of(Record(0, 0, None, None), Record(2, 0, None, None)), 2, "record 1: an offset delta", id="a gap"),
        pytest.param(record(length=-1), 1, "a field reaches past", id="a length below 0"),
        pytest.param(record(), 1, "a field reaches past", id="a length of 0"),
        pytest.param(b"\xff" * 6, 1, "a varint with too many bytes", id="a length of six bytes"),
        pytest.param(record(b"\0", b"\x80" * 11), 1, "a varint with too many bytes", id="a time of eleven bytes"),
        pytest.param(record(b"\0", b"\x80"), 1, "a field reaches past", id="a time that is cut off"),
        pytest.param(record(b"\0", ZERO, b"\x80" * 6), 1, "a varint with too many bytes", id="an offset of six bytes"),
        pytest.param(record(*HEAD, encode_varint(9), b"key"), 1, "a field reaches past", id="a key past the record"),
        pytest.param(record(*HEAD, NULL, encode_varint(9), b"v"), 1, "a field reaches past", id="a value past the record"),
        pytest.param(record(*HEAD, NULL, NULL), 1, "a field reaches past", id="no header count"),
        pytest.param(record(*HEAD, NULL, NULL, NULL), 1, "a header count", id="a header count below 0"),
        pytest.param(record(*HEAD, NULL, NULL, encode_varint(2), b"\0\0\0"), 1, "a header count", id="more headers than bytes"),
        pytest.param(record(*HEAD, NULL, NULL, encode_varint(1), NULL, NULL), 1, "a header with a null key", id="a null header key"),
        pytest.param(record(*HEAD, NULL, NULL, encode_varint(1), encode_varint(5), b"kkk"), 1, "a field reaches past", id="a header key past the record"),
        pytest.param(record(*HEAD, NULL, NULL, encode_varint(1), EMPTY, encode_varint(5), b"v"), 1, "a field reaches past", id="a header value past the record"),
        pytest.param(record(*HEAD, NULL, NULL, ZERO, b"\0"), 1, "a record's length differs", id="a byte after no headers"),
        pytest.param(record(*HEAD, NULL, NULL, encode_varint(1), EMPTY, EMPTY, b"\0"), 1, "a record's length differs", id="a byte after the headers"),
    ],
)  # fmt: skip
def test_a_record_that_cannot_be_read_is_refused_with_its_number(
    body: bytes, count: int, words: str, codec_id: int
) -> None:
    data = framed(body, count, codec_id=codec_id)
    with pytest.raises(CorruptRecordError, match=words):
        inspected(data)


def test_the_error_names_the_position_of_the_record() -> None:
    sound = body_of(*some_records(3))
    with pytest.raises(CorruptRecordError) as error:
        inspected(framed(sound + b"\x0c", 4))
    assert (error.value.expected, error.value.found) == (4, 3)
    with pytest.raises(CorruptRecordError) as error:
        inspected(framed(sound + record(length=-1), 4))
    assert error.value.position == HEADER_SIZE + len(sound)
    with pytest.raises(CorruptRecordError, match=f"{len(sound)} bytes into the decompressed"):
        inspected(framed(sound + record(length=-1), 4, codec_id=ZSTD))


@pytest.mark.parametrize("codec_id", COMPRESSING)
def test_a_compressed_stream_that_is_truncated_or_damaged_is_refused(codec_id: int) -> None:
    body = reference.compress(codec_id, body_of(*some_records(50)))
    for wrong in (body[:-1], body[:9], b"\xff" * 20):
        data = reference.frame_batch(
            wrong, attributes=codec_id, last_offset_delta=49, records_count=50
        )
        with pytest.raises(CorruptRecordError):
            inspected(data)


# Bombs.


def bomb(size: int, codec_id: int) -> bytes:
    """`size` zeros, in a few KB."""
    if codec_id == ZSTD:
        return zstandard.ZstdCompressor(level=19).compress(bytes(size))
    stream = zlib.compressobj(9, wbits=31)
    return b"".join(stream.compress(bytes(MIB)) for _ in range(size // MIB)) + stream.flush()


@pytest.mark.parametrize("codec_id", [CODECS["gzip"], ZSTD], ids=["gzip", "zstd"])
@pytest.mark.parametrize(
    ("front", "words"),
    [
        pytest.param(b"", "record 0: a field reaches past", id="zeros"),
        pytest.param(GOOD, "bytes after the last record", id="after a record"),
    ],
)
def test_a_bomb_is_refused_at_its_first_piece(
    codec_id: int, front: bytes, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    pieces = compression.decompress_pieces

    def counted(*arguments: Any) -> Any:
        for piece in pieces(*arguments):
            sizes.append(len(piece))
            yield piece

    monkeypatch.setattr(compression, "decompress_pieces", counted)
    body = bomb(64 * MIB, codec_id)
    if front:
        body = reference.compress(codec_id, front) + body
    data = reference.frame_batch(body, attributes=codec_id, last_offset_delta=0, records_count=1)
    with pytest.raises(CorruptRecordError, match=words):
        inspected(data)
    assert sum(sizes) <= 2 * MIB


def test_a_compressed_record_is_refused_as_too_large_by_its_length_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = record(*HEAD, NULL, encode_varint(4000), b"v" * 4000, ZERO)
    monkeypatch.setattr(codec, "RECORD_BYTES_MAX", len(whole) - 2)
    assert inspected(framed(whole, 1, codec_id=ZSTD)) == Times(0, 0)
    for body in (encode_varint(len(whole) - 1), encode_varint(2**31 - 1) + whole):
        with pytest.raises(CorruptRecordError, match="record 0: a record that is too large"):
            inspected(framed(body, 1, codec_id=ZSTD))
    # What is not compressed is all there, so no limit is needed.
    assert inspected(framed(record(*HEAD, NULL, encode_varint(9000), b"v" * 9000, ZERO), 1))


# Properties.


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """A batch as the reference, kafka-python, aiokafka or our own builder writes it."""
    rows = draw(strategies.arrow_rows().filter(lambda rows: rows.num_rows > 0))
    codec_name = draw(st.sampled_from(list(CODECS)))
    writer = draw(st.sampled_from(["ours", "reference", "kafka-python", "aiokafka", "plain"]))
    records = builders.to_records(rows)
    if writer == "ours":
        return builders.encode(rows, compression=codec_name)
    if writer == "reference":
        return reference.encode_batch(records, codec=CODECS[codec_name])
    builder_class = {
        "kafka-python": kafka_python_records.DefaultRecordBatchBuilder,
        "aiokafka": aiokafka_records.DefaultRecordBatchBuilder,
        "plain": aiokafka_records._DefaultRecordBatchBuilderPy,
    }[writer]
    builder = builder_class(
        magic=2, compression_type=CODECS[codec_name], is_transactional=0, producer_id=-1,
        producer_epoch=-1, base_sequence=-1, batch_size=1 << 20,
    )  # fmt: skip
    for one in records:
        builder.append(
            offset=one.offset, timestamp=one.timestamp, key=one.key, value=one.value,
            headers=list(one.headers),
        )  # fmt: skip
    return bytes(builder.build())


def by_aiokafka(data: bytes) -> list[Record]:
    batch = aiokafka.MemoryRecords(data).next_batch()
    return [
        Record(one.offset, one.timestamp, one.key, one.value, tuple(one.headers)) for one in batch
    ]


@settings(deadline=None)
@given(batches())
def test_what_clients_write_is_accepted(data: bytes) -> None:
    records = builders.as_read(codec.decode(data))
    times = [one.timestamp for one in records if one.timestamp != -1]
    assert inspected(data) == Times(min(times, default=-1), max(times, default=-1))


@settings(deadline=None, max_examples=settings().max_examples * 2)
@given(st.data())
def test_what_is_accepted_with_one_byte_changed_is_read_by_everyone(data: st.DataObject) -> None:
    """The byte is one of the records before compression, so that the damage gets through."""
    sound = data.draw(batches())
    header = reference.read_header(sound)
    body = bytearray(reference.decompress(header.attributes & 7, sound[HEADER_SIZE:]))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] ^= data.draw(st.integers(1, 255))
    damaged = with_body(header, body)
    try:
        times = inspected(damaged)
    except CorruptRecordError:
        with pytest.raises(Exception):  # noqa: B017, PT011  of any kind, at the record or its offset
            assert_dense(codec.decode(damaged))
        return
    rows = codec.decode(damaged)
    assert_dense(rows)
    assert max([-1, *rows.column("timestamp").to_pylist()]) == times.largest
    for position in positions_of_attributes(body):
        body[position] = 0  # aiokafka reads the unused byte of attributes as a varint
    with contextlib.suppress(UnicodeDecodeError):  # of a header's key, which Java and we replace
        assert by_aiokafka(with_body(header, body)) == builders.as_read(rows)


def positions_of_attributes(body: bytearray) -> Iterator[int]:
    position = 0
    while position < len(body):
        size, position = scalar.read_varint(body, position)
        yield position
        position += size


def with_body(header: reference.BatchHeader, body: bytes | bytearray) -> bytes:
    codec_id = header.attributes & 7
    return reference.frame_batch(
        reference.compress(codec_id, bytes(body)),
        attributes=codec_id,
        base_timestamp=header.base_timestamp,
        last_offset_delta=header.last_offset_delta,
        max_timestamp=header.max_timestamp,
        records_count=header.records_count,
    )


def assert_dense(rows: pa.RecordBatch) -> None:
    assert rows.column("offset").to_pylist() == list(range(rows.num_rows))
