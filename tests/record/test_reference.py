"""The reference encoder and decoder against known bytes and independent clients."""

from __future__ import annotations

import struct
import warnings
from typing import Any

import pytest

from tests.support import builders, reference
from tests.support.reference import Record

with warnings.catch_warnings():
    # It reads its schemas with a deprecated function of importlib.resources.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.record.memory_records as kafka_python  # type: ignore[import-untyped]

TWO_RECORDS = [
    Record(0, 1_700_000_000_000, b"k", b"v", (("h", None),)),
    Record(1, 1_700_000_000_005, None, b""),
]
TWO_RECORDS_BATCH = bytes.fromhex(
    "0000000000000000 00000044 ffffffff 02 534caa82 0000 00000001 0000018bcfe56800 0000018bcfe56805"
    "ffffffffffffffff ffff ffffffff 00000002 16 00 00 00 026b 0276 02 0268 01 0c 00 0a 02 01 00 00"
)
COMMIT_MARKER = Record(42, 1_000, struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 7))
COMMIT_MARKER_BATCH = bytes.fromhex(
    "000000000000002a 00000042 ffffffff 02 113078b4 0030 00000000 00000000000003e8 00000000000003e8"
    "0000000000002328 0003 ffffffff 00000001 20 00 00 00 08 00000001 0c 000000000007 00"
)
CODECS = [pytest.param(codec, id=name) for name, codec in reference.CODECS.items()]


def test_crc32c_of_the_check_string_is_the_published_one() -> None:
    assert reference.crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (63, "7e"),
        (64, "8001"),
        (-64, "7f"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
        (2**63 - 1, "feffffffffffffffff01"),
        (-(2**63), "ffffffffffffffffff01"),
    ],
)
def test_varint_has_the_known_bytes(value: int, encoded: str) -> None:
    assert reference.encode_varint(value).hex() == encoded


def test_two_records_have_the_known_bytes() -> None:
    assert reference.encode_batch(TWO_RECORDS) == TWO_RECORDS_BATCH
    assert reference.decode_batches(TWO_RECORDS_BATCH) == TWO_RECORDS


def test_commit_marker_has_the_known_bytes() -> None:
    batch = reference.encode_batch(
        [COMMIT_MARKER],
        base_offset=42,
        producer_id=9000,
        producer_epoch=3,
        attributes_extra=0x30,
    )
    assert batch == COMMIT_MARKER_BATCH
    assert reference.decode_batches(batch) == [COMMIT_MARKER]


def test_smallest_record_takes_seven_bytes() -> None:
    encoded = reference.encode_record(Record(0, 0, None, None), base_offset=0, base_timestamp=0)
    assert encoded.hex() == "0c000000010100"


@pytest.mark.parametrize("codec", CODECS)
def test_decode_gives_what_was_encoded(codec: int) -> None:
    records = builders.to_records(builders.rows(n=50, nulls=0.3, headers=2), base_offset=7)
    batch = reference.encode_batch(records, base_offset=7, codec=codec)
    assert reference.decode_batches(batch + batch) == records * 2


@pytest.mark.parametrize("codec", CODECS)
def test_kafka_python_reads_reference_batches(codec: int) -> None:
    records = builders.to_records(builders.rows(n=50, nulls=0.3, headers=2), base_offset=7)
    batch: Any = kafka_python.MemoryRecords(
        reference.encode_batch(records, base_offset=7, codec=codec)
    ).next_batch()
    assert batch.validate_crc()
    read = [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch]
    assert read == records


def test_log_append_time_replaces_every_timestamp() -> None:
    batch = reference.encode_batch(TWO_RECORDS, attributes_extra=reference.LOG_APPEND_TIME)
    assert {record.timestamp for record in reference.decode_batches(batch)} == {1_700_000_000_005}


def test_batch_without_records_is_a_header() -> None:
    batch = reference.encode_batch([], codec=reference.ZSTD)
    assert (len(batch), reference.read_header(batch).length) == (61, 49)
    assert reference.decode_batches(batch) == []


@pytest.mark.parametrize("position", range(16, len(TWO_RECORDS_BATCH)))
def test_flipped_byte_is_refused(position: int) -> None:
    damaged = bytearray(TWO_RECORDS_BATCH)
    damaged[position] ^= 0x10
    with pytest.raises(AssertionError):
        reference.decode_batches(bytes(damaged))
