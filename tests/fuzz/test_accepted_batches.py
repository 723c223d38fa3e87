"""Damaged batches from the network are refused, or are read by everyone as the leader checked them."""

from __future__ import annotations

import random

import pytest

from spark_kbatch.errors import KBatchError
from spark_kbatch.log.validator import accept
from spark_kbatch.model import AppendOrigin, TopicPartition
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.record import codec
from tests.fuzz.test_batches import framed_again, some_bytes, wrapped
from tests.support import builders, reference
from tests.support.fuzz_rounds import ROUNDS, for_each_round, mutated
from tests.support.reference import CODECS, HEADER_SIZE, Record

NOW = 1_700_000_000_000


def a_batch(rng: random.Random, codec_id: int) -> bytes:
    records = [
        Record(
            offset,
            rng.choice((-1, 0, NOW, NOW + rng.randrange(10**6))),
            some_bytes(rng),
            some_bytes(rng),
            tuple((rng.choice(("", "a", "höhe")), some_bytes(rng)) for _ in range(rng.choice((0, 0, 0, 1, 3)))),
        )
        for offset in range(rng.choice((1, 1, 3, 40)))
    ]  # fmt: skip
    producer = (
        {} if rng.random() < 0.7 else {"producer_id": 9, "producer_epoch": 0, "base_sequence": 3}
    )
    return reference.encode_batch(records, codec=codec_id, **producer)


def damaged_inside(rng: random.Random, data: bytes, codec_id: int) -> bytes:
    """The batch with damage in its records before they were compressed."""
    header = reference.read_header(data)
    body = mutated(rng, reference.decompress(codec_id, data[HEADER_SIZE:]))
    return framed_again(reference.HEADER.pack(*header) + reference.compress(codec_id, body))


@pytest.mark.parametrize("codec_id", [pytest.param(number, id=name) for name, number in CODECS.items()])  # fmt: skip
def test_mutated_batches_are_refused_or_read_by_everyone(codec_id: int) -> None:
    outcomes = {"accepted": 0, "refused": 0}

    def one(rng: random.Random) -> None:
        data = a_batch(rng, codec_id)
        match rng.randrange(4):
            case 0:
                damaged = framed_again(mutated(rng, data))
            case 1:
                damaged = mutated(rng, data)
            case _:
                damaged = damaged_inside(rng, data, codec_id)
        config = TopicConfig(
            message_timestamp_before_max_ms=rng.choice((2**63 - 1, 10**6)),
            message_timestamp_after_max_ms=rng.choice((2**63 - 1, 10**6)),
            message_timestamp_type=rng.choice(("CreateTime", "LogAppendTime")),
        )
        try:
            accepted = accept(
                damaged, TopicPartition("events", 0), config, AppendOrigin.NETWORK, now_ms=NOW
            )
        except KBatchError:
            outcomes["refused"] += 1
            return
        outcomes["accepted"] += 1
        taken = bytes(accepted.data)
        header = reference.read_header(taken)
        assert reference.BatchHeader._make(accepted.header) == header, damaged.hex()
        expected = [wrapped(record) for record in reference.decode_batches(taken, strict=False)]
        assert builders.as_read(codec.decode(taken)) == expected, damaged.hex()
        times = [record.timestamp for record in expected]
        assert [record.offset for record in expected] == list(range(len(expected)))
        if not config.is_log_append_time:
            assert header.max_timestamp == max([-1, *times]), damaged.hex()
            earliest, latest = config.accepted_times(NOW)
            assert all(earliest <= time <= latest for time in times if time != -1), damaged.hex()

    for_each_round(f"accepted-{codec_id}", one)
    assert min(outcomes.values()) > ROUNDS // 50, outcomes
