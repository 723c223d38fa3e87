"""Damaged batches are refused, or read as the reference reads them."""

from __future__ import annotations

import random

import pytest

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.record import codec
from spark_kbatch.record.header import walk
from tests.support import builders, reference
from tests.support.fuzz_rounds import ROUNDS, for_each_round, mutated
from tests.support.reference import CODECS, HEADER_SIZE, LOG_APPEND_TIME, Record

_CONTROL = 0x20


def a_batch(rng: random.Random, codec_id: int) -> bytes:
    offset = rng.choice((0, 0, 5, 2**40))
    records = []
    for _ in range(rng.choice((0, 1, 1, 3, 40))):
        headers = tuple((rng.choice(("", "a", "höhe")), some_bytes(rng)) for _ in range(rng.choice((0, 0, 0, 1, 3))))  # fmt: skip
        time = rng.choice((-1, 0, 1_700_000_000_000, 1_700_000_000_000 + rng.randrange(10**6)))
        records.append(Record(offset, time, some_bytes(rng), some_bytes(rng), headers))
        offset += rng.choice((1, 1, 1, 2, 70))
    return reference.encode_batch(
        records,
        base_offset=records[0].offset if records else offset,
        codec=codec_id,
        attributes_extra=rng.choice((0, 0, 0, LOG_APPEND_TIME, 0x10, 0x40)),
        producer_id=rng.choice((-1, 9)),
    )


def some_bytes(rng: random.Random) -> bytes | None:
    size = rng.choice((-1, 0, 1, 15, 63, 64, 200))
    return None if size < 0 else rng.randbytes(1) * size


def framed_again(data: bytes) -> bytes:
    """The batch with a fitting length and CRC, so that a reader gets to the damage."""
    if len(data) < HEADER_SIZE:
        return data
    size = (len(data) - reference.LOG_OVERHEAD).to_bytes(4, "big")
    return reference.with_crc(data[:8] + size + data[12:16] + b"\x02" + data[17:])


def with_another_count(rng: random.Random, data: bytes) -> bytes:
    """The batch with an arbitrary records count and a last offset delta that fits it."""
    count = rng.choice((0, 1, 2, 10**5, 3 * 10**8))
    delta = max(count - 1, 0).to_bytes(4, "big")
    numbers = data[:23] + delta + data[27:57] + count.to_bytes(4, "big") + data[61:]
    return framed_again(numbers)


def read_by_reference(data: bytes) -> list[Record]:
    """The records except for those of control batches; any kind of error if they are refused."""
    return [
        record
        for part in reference.split_batches(data)
        if not reference.read_header(part).attributes & _CONTROL
        for record in reference.decode_batches(part, strict=False)
    ]


@pytest.mark.parametrize("codec_id", [pytest.param(number, id=name) for name, number in CODECS.items()])  # fmt: skip
def test_mutated_batches_are_read_as_the_reference_reads_them_or_refused(codec_id: int) -> None:
    outcomes = {"read": 0, "refused": 0}

    def one(rng: random.Random) -> None:
        data = b"".join(a_batch(rng, codec_id) for _ in range(rng.choice((1, 1, 2))))
        damaged = mutated(rng, data)
        if rng.random() < 0.8:
            damaged = framed_again(damaged)
        if rng.random() < 0.2 and len(damaged) >= HEADER_SIZE:
            damaged = with_another_count(rng, damaged)
        max_bytes = rng.choice((1, 40, 300))
        offsets = offsets_alone(damaged, max_bytes)
        try:
            rows = codec.decode(damaged)
        except CorruptRecordError:
            outcomes["refused"] += 1
            assert not is_empty_to_the_reference(damaged), damaged.hex()
            with pytest.raises(CorruptRecordError):
                in_pieces(damaged, max_bytes)
            return
        outcomes["read"] += 1
        expected = [wrapped(record) for record in read_by_reference(damaged)]
        assert builders.as_read(rows) == expected, damaged.hex()
        assert in_pieces(damaged, max_bytes) == expected, damaged.hex()
        assert offsets == [record.offset for record in expected], damaged.hex()

    for_each_round(f"batches-{codec_id}", one)
    assert min(outcomes.values()) > ROUNDS // 50, outcomes


def in_pieces(data: bytes, max_bytes: int) -> list[Record]:
    """The records, decoded in the smallest possible pieces."""
    pieces = codec.decode_batches(
        data, walk(data), columns=codec.RECORD_SCHEMA.names, max_bytes=max_bytes
    )
    return [record for rows in pieces for record in builders.as_read(rows)]


def offsets_alone(data: bytes, max_bytes: int) -> list[int] | None:
    """The offsets if only they are read, never more than the bytes can hold; None if refused."""
    found: list[int] = []
    try:
        for rows in codec.decode_batches(data, walk(data), columns=["offset"], max_bytes=max_bytes):
            found += rows.column("offset").to_pylist()
            assert len(found) <= 5 * len(data), data.hex()
    except CorruptRecordError:
        return None
    return found


def is_empty_to_the_reference(data: bytes) -> bool:
    """True for whole valid batches without any record, whatever bytes they have."""
    try:
        headers = [reference.read_header(part) for part in reference.split_batches(data)]
        return not reference.decode_batches(data) and all(
            header.records_count == 0 <= header.last_offset_delta
            and 0 <= header.base_offset < 2**62
            for header in headers
        )
    except Exception:  # noqa: BLE001  any kind, if it refuses
        return False


def wrapped(record: Record) -> Record:
    """The record with its time wrapped around to 64 bits, as in Java."""
    return record._replace(timestamp=(record.timestamp + 2**63) % 2**64 - 2**63)
