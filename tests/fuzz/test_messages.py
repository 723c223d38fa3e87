"""Damaged messages of V0 and V1 are refused, or read as the reference reads them."""

from __future__ import annotations

import random
import struct

import pytest

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.record import codec
from tests.fuzz.test_batches import in_pieces, some_bytes
from tests.support import builders, reference
from tests.support.fuzz_rounds import ROUNDS, for_each_round, mutated
from tests.support.reference import CODECS, LOG_APPEND_TIME, Record


def some_messages(rng: random.Random, magic: int, codec_id: int) -> bytes:
    offset = rng.choice((0, 0, 5, 2**40))
    records = []
    for _ in range(rng.choice((1, 1, 3, 40))):
        time = rng.choice((-1, 0, 1_700_000_000_000 + rng.randrange(10**6))) if magic else -1
        records.append(Record(offset, time, some_bytes(rng), some_bytes(rng)))
        offset += rng.choice((1, 1, 1, 2, 70))
    return reference.encode_messages(
        records,
        magic=magic,
        codec=codec_id,
        log_append_time=rng.choice((None, None, 77)),
        wrapper_offset=rng.choice((None, None, 0)),
    )


def framed_again(data: bytes, magic: int) -> bytes:
    """The bytes as one message with a fitting size and CRC."""
    if len(data) < 18:
        return data
    size = struct.pack(">i", len(data) - 12)
    return reference.with_message_crc(data[:8] + size + data[12:16] + bytes([magic]) + data[17:])


def damaged_messages(rng: random.Random, magic: int, codec_id: int) -> bytes:
    if rng.random() < 0.3:
        return mutated(rng, some_messages(rng, magic, codec_id) + some_messages(rng, magic, 0))
    if codec_id == 0 or rng.random() < 0.3:
        return framed_again(mutated(rng, some_messages(rng, magic, codec_id)), magic)
    inner = mutated(rng, some_messages(rng, magic, 0))
    if rng.random() < 0.3:
        inner = framed_again(inner, magic)
    value = reference.compress_for(magic, codec_id, inner)
    attributes = codec_id | rng.choice((0, LOG_APPEND_TIME))
    offset = rng.choice((0, 100, 2**50))
    return reference.encode_message(
        Record(offset, 5, None, value), magic=magic, attributes=attributes
    )


@pytest.mark.parametrize("magic", [0, 1], ids=["v0", "v1"])
@pytest.mark.parametrize("codec_name", ["none", "gzip", "snappy", "lz4"])
def test_mutated_messages_are_read_as_the_reference_reads_them_or_refused(
    codec_name: str, magic: int
) -> None:
    outcomes = {"read": 0, "refused": 0}

    def one(rng: random.Random) -> None:
        damaged = damaged_messages(rng, magic, CODECS[codec_name])
        max_bytes = rng.choice((1, 40, 300))
        try:
            rows = codec.decode(damaged)
        except CorruptRecordError:
            outcomes["refused"] += 1
            with pytest.raises(CorruptRecordError):
                in_pieces(damaged, max_bytes)
            return
        outcomes["read"] += 1
        expected = reference.decode_messages(damaged, strict=False)
        assert builders.as_read(rows) == expected, damaged.hex()
        assert in_pieces(damaged, max_bytes) == expected, damaged.hex()

    for_each_round(f"messages-{codec_name}-{magic}", one)
    assert min(outcomes.values()) > ROUNDS // 100, outcomes
