"""Markers are read as Kafka writes them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.record.control import EndTransactionMarker, read_marker
from spark_kbatch.record.header import RECORD_BATCH_OVERHEAD, unpack
from tests.support import reference
from tests.support.log_histories import control_batch, marker_batch

COMMIT_MARKER = bytes.fromhex(
    "000000000000002a00000042ffffffff02113078b400300000000000000000000003e800000000000003e8"
    "00000000000023280003ffffffff000000012000000008000000010c00000000000700"
)


def marker_of(batch: bytes) -> EndTransactionMarker | None:
    return read_marker(batch, 0, unpack(batch))


def test_a_marker_that_kafka_wrote_is_read() -> None:
    assert marker_of(COMMIT_MARKER) == EndTransactionMarker(is_abort=False, coordinator_epoch=7)
    assert unpack(COMMIT_MARKER).is_control
    assert unpack(COMMIT_MARKER).is_transactional


@pytest.mark.parametrize("abort", [True, False], ids=["abort", "commit"])
@pytest.mark.parametrize("epoch", [0, 9, 2**31 - 1])
def test_a_marker_says_how_the_transaction_ended_and_who_decided(abort: bool, epoch: int) -> None:
    written = marker_batch(base_offset=5, producer_id=1, abort=abort, coordinator_epoch=epoch)
    assert marker_of(written) == EndTransactionMarker(abort, epoch)


@pytest.mark.parametrize("kind", [2, 3, 4, 5, 6, 7, -1])
def test_other_control_records_end_nothing(kind: int) -> None:
    assert marker_of(control_batch(struct.pack(">hh", 0, kind), b"")) is None


def test_a_control_batch_emptied_by_compaction_ends_nothing() -> None:
    emptied = reference.encode_batch([], producer_id=7, producer_epoch=0, attributes_extra=0x30)
    assert marker_of(emptied) is None


def test_a_later_version_is_read_as_the_first() -> None:
    batch = control_batch(struct.pack(">hhi", 5, 0, 1), struct.pack(">hiq", 3, 8, 99))
    assert marker_of(batch) == EndTransactionMarker(is_abort=True, coordinator_epoch=8)


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        pytest.param(None, b"\0" * 6, "key", id="null key"),
        pytest.param(b"\0\0\0", b"\0" * 6, "key", id="short key"),
        pytest.param(b"\xff\xff\0\0", b"\0" * 6, "key", id="negative key version"),
        pytest.param(b"\0\0\0\1", None, "value", id="null value"),
        pytest.param(b"\0\0\0\1", b"\0" * 5, "value", id="short value"),
        pytest.param(b"\0\0\0\1", b"\xff\xff\0\0\0\0", "value", id="negative value version"),
    ],
)
def test_a_malformed_control_record_is_refused(
    key: bytes | None, value: bytes | None, what: str
) -> None:
    with pytest.raises(CorruptRecordError, match=f"{what} of .*: expected .* found"):
        marker_of(control_batch(key, value))


@pytest.mark.parametrize("position", [pytest.param(4, id="key"), pytest.param(9, id="value")])
def test_a_part_that_is_longer_than_its_record_is_refused(position: int) -> None:
    section = bytearray(COMMIT_MARKER[RECORD_BATCH_OVERHEAD:])
    assert section[position] in (2 * 4, 2 * 6)  # the part's length, as a varint
    section[position] = 2 * 40
    longer = reference.frame_batch(bytes(section), attributes=0x30, producer_id=7, records_count=1)

    with pytest.raises(CorruptRecordError, match=r"length of a record .* found a field"):
        marker_of(longer)


@pytest.mark.parametrize("position", range(17, 78))
def test_a_flipped_byte_is_found(position: int) -> None:
    damaged = bytearray(COMMIT_MARKER)
    damaged[position] ^= 0x55
    with pytest.raises(CorruptRecordError):
        marker_of(bytes(damaged))


@given(st.binary(max_size=40), st.integers(-1, 3))
def test_any_record_is_read_or_refused(section: bytes, records_count: int) -> None:
    batch = reference.frame_batch(
        section, attributes=0x30, producer_id=7, records_count=records_count
    )
    try:
        marker_of(batch)
    except CorruptRecordError:
        pass
