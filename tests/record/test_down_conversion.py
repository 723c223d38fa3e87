"""V2 batches are converted to message sets, which get their offsets from a log."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kbatch.errors import ConfigError, InvalidRecordError
from spark_kbatch.record import codec
from spark_kbatch.record.down_conversion import assign_offsets, down_convert
from spark_kbatch.record.header import walk
from tests.support import builders, reference, strategies
from tests.support.reference import Record

with warnings.catch_warnings():
    # It reads its schemas with a deprecated function of importlib.resources.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.record.memory_records as kafka_python  # type: ignore[import-untyped]

MAGICS = [pytest.param(0, id="v0"), pytest.param(1, id="v1")]
CODECS = ["none", "gzip", "snappy", "lz4"]
COMPRESSED = CODECS[1:]
# The first example may compile kernels.
relaxed = settings(deadline=None)


def as_held(rows: pa.RecordBatch, magic: int, base_offset: int = 0) -> list[Record]:
    return [
        record if magic else record._replace(timestamp=-1)
        for record in builders.to_records(rows, base_offset)
    ]


def in_log(data: bytes | memoryview, base_offset: int) -> bytes:
    """The message set as a log stores it, entry by entry."""
    copy, out = memoryview(bytearray(data)), b""
    for position, header in walk(copy):
        held = copy[position : position + header.size_in_bytes]
        done, final = assign_offsets(held, header, base_offset)
        assert (final.base_offset, final.size_in_bytes) == (base_offset, len(done))
        base_offset = final.next_offset
        out += done
    return out


def read_by_kafka_python(data: bytes) -> Iterator[Record]:
    memory_records = kafka_python.MemoryRecords(data)
    while memory_records.has_next():
        batch = memory_records.next_batch()
        assert batch.validate_crc()
        for record in batch:
            assert record.validate_crc()
            timestamp = -1 if record.timestamp is None else record.timestamp
            yield Record(record.offset, timestamp, record.key, record.value)


without_headers = (
    strategies.arrow_rows()
    .filter(lambda rows: rows.num_rows > 0)
    .map(lambda rows: rows.drop_columns(["headers"]) if "headers" in rows.schema.names else rows)
)


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("compression", CODECS)
@relaxed
@given(rows=without_headers, base_offset=st.integers(0, 2**62))
def test_clients_and_reference_read_converted_messages(
    magic: int, compression: str, rows: pa.RecordBatch, base_offset: int
) -> None:
    converted = down_convert(builders.encode(rows, compression=compression), magic)
    data = in_log(converted.data, base_offset)

    expected = as_held(rows, magic, base_offset)
    assert reference.decode_messages(bytes(converted.data)) == as_held(rows, magic)
    assert reference.decode_messages(data) == expected
    assert builders.as_read(codec.decode(data)) == expected
    if magic or compression != "lz4":  # whose own reader of V0's lz4 wants frames of its writer
        assert list(read_by_kafka_python(data)) == expected


@pytest.mark.parametrize("magic", MAGICS)
def test_plain_messages_are_the_bytes_of_the_reference(magic: int) -> None:
    rows = builders.rows(n=300, nulls=0.3)
    converted = down_convert(builders.encode(rows), magic)
    records = as_held(rows, magic)
    assert bytes(converted.data) == reference.encode_messages(records, magic=magic)
    assert converted.largest == max(
        len(reference.encode_message(record, magic=magic)) for record in records
    )
    later = [record._replace(offset=record.offset + 7) for record in records]
    assert in_log(converted.data, 7) == reference.encode_messages(later, magic=magic)


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("compression", COMPRESSED)
def test_wrapper_has_the_offset_of_its_last_record_and_the_largest_time(
    magic: int, compression: str
) -> None:
    rows = builders.rows(n=50)
    converted = down_convert(builders.encode(rows, compression=compression), magic)
    ((_, header),) = walk(converted.data)
    ((_, stored),) = walk(in_log(converted.data, 100))

    assert (header.magic, header.codec) == (magic, reference.CODECS[compression])
    assert (header.last_offset, stored.last_offset) == (49, 149)
    times = rows.column("timestamp").to_pylist()
    assert header.max_timestamp == stored.max_timestamp == (max(times) if magic else -1)
    assert converted.largest == len(converted.data) < len(builders.encode(rows))


def test_compression_level_is_used() -> None:
    batch = builders.encode(builders.rows(n=1_000), compression="gzip")
    least, most = (len(down_convert(batch, 1, level=level).data) for level in (1, 9))
    assert most < least


@pytest.mark.parametrize("magic", MAGICS)
def test_headers_are_refused(magic: int) -> None:
    with pytest.raises(InvalidRecordError, match="has headers"):
        down_convert(builders.encode(builders.rows(headers=1)), magic)


@pytest.mark.parametrize("magic", MAGICS)
def test_zstd_is_refused(magic: int) -> None:
    with pytest.raises(ConfigError, match="zstd"):
        down_convert(builders.encode(builders.rows(), compression="zstd"), magic)
