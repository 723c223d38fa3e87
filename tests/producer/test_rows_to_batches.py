"""Rows -> batches: nothing lost, nothing moved, no batch and no pool too large."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kbatch.errors import RecordTooLargeError
from spark_kbatch.model import AppendResult, TopicPartition
from spark_kbatch.options.producer import ProducerConfig
from spark_kbatch.options.topic import Topic, TopicConfig
from spark_kbatch.producer.memory import BatchMemory
from spark_kbatch.producer.producer import Producer
from spark_kbatch.record import codec
from spark_kbatch.record.builder import RecordBatchBuilder
from spark_kbatch.store.transport import Answer, SendRequest
from tests.support import builders, reference
from tests.support.accumulators import bytes_in_use
from tests.support.builders import to_records
from tests.support.reference import Record

PARTITIONS = 3
MEMORY = 64 * 1024


class Kept:
    """A transport that keeps the batches it gets."""

    def __init__(self) -> None:
        self.batches: dict[int, list[bytes]] = defaultdict(list)

    def send(self, request: SendRequest, on_answer: Callable[[Answer], None]) -> None:
        answer = {}
        for batch in request.batches:
            self.batches[batch.topic_partition.partition].append(bytes(batch.data))
            answer[batch.topic_partition] = AppendResult()
        assert len(answer) == len(request.batches)
        on_answer(answer)

    def records(self, partition: int) -> list[Record]:
        found = []
        for data in self.batches[partition]:
            rows = codec.decode(data).select(["key", "value", "timestamp", "headers"])
            found += [record._replace(offset=0) for record in to_records(rows)]
        return found


NOW_MS = builders.FIRST_TIMESTAMP_MS


def a_producer(
    transport: Kept,
    *,
    max_message_bytes: int = 1 << 20,
    place: Callable[[pa.Array, int], list[int]] | None = None,
    **options: object,
) -> Producer:
    topic = Topic("events", "id", PARTITIONS, TopicConfig(max_message_bytes=max_message_bytes))
    settings = {"linger_ms": None, "enable_idempotence": False, "retries": 0} | options
    config = ProducerConfig(partitioner_class=place, **settings)  # type: ignore[arg-type]
    return Producer(config, transport, lambda _: topic, lambda: NOW_MS, inline=True, seed=1)


def as_sent(rows: pa.RecordBatch) -> list[Record]:
    return [record._replace(offset=0) for record in to_records(rows)]


@given(
    seed=st.integers(0, 1000),
    count=st.integers(0, 300),
    cuts=st.lists(st.integers(0, 300), max_size=6),
    batch_size=st.sampled_from([1, 100, 500, 2000, 16384]),
    compression=st.sampled_from(["none", "zstd", "snappy"]),
    singles=st.booleans(),
)
def test_each_partition_has_its_rows_in_order_however_they_are_cut(
    seed: int, count: int, cuts: list[int], batch_size: int, compression: str, singles: bool
) -> None:
    rows = builders.rows(n=count, seed=seed, nulls=0.2, headers=2)
    placed = pa.array([(seed + 7 * i * i) % PARTITIONS for i in range(count)], pa.int32())
    kept = Kept()
    with a_producer(
        kept, batch_size=batch_size, buffer_memory=MEMORY, compression_type=compression
    ) as producer:
        bounds = sorted({0, count, *(min(cut, count) for cut in cuts)})
        for number, (start, end) in enumerate(itertools.pairwise(bounds)):
            piece = rows.slice(start, end - start)
            if singles and number % 2:
                for at, record in enumerate(to_records(piece)):
                    producer.send(
                        "events",
                        record.value,
                        record.key,
                        headers=[(k, v) for k, v in record.headers],
                        partition=placed[start + at].as_py(),
                        timestamp=record.timestamp,
                    )
            else:
                partition = placed.slice(start, end - start)
                producer.append(piece.append_column("partition", partition), "events")
    # The plain model: each record goes to the partition that it names.
    expected: dict[int, list[Record]] = {partition: [] for partition in range(PARTITIONS)}
    for partition, record in zip(placed.to_pylist(), as_sent(rows), strict=True):
        expected[partition].append(record)
    for partition, records in expected.items():
        assert kept.records(partition) == records
        for data in kept.batches[partition]:
            header = reference.read_header(data)
            assert header.records_count == 1 or compression != "none" or len(data) <= batch_size
    assert bytes_in_use(producer._pool) == 0


def test_a_batch_that_is_too_large_for_its_topic_is_split() -> None:
    """Rows that compress worse than the rows before them make a batch larger than expected."""
    good = pa.RecordBatch.from_pydict({"value": [b"v" * 100] * 20_000})
    bad = builders.rows(n=400, seed=3)
    kept = Kept()
    limited = Limited(kept, 4000)
    with a_producer(
        limited, batch_size=4000, max_message_bytes=4000, compression_type="zstd"
    ) as producer:
        for rows in (good, bad):
            rows = rows.append_column("partition", pa.array([0] * rows.num_rows, pa.int32()))
            producer.append(rows, "events")
    assert limited.refused > 0
    values = [record.value for record in kept.records(0)]
    assert values == [b"v" * 100] * 20_000 + [record.value for record in to_records(bad)]
    assert all(len(data) <= 4000 for data in kept.batches[0])


class Limited(Kept):
    """A transport that refuses batches over a limit, as a log does."""

    def __init__(self, kept: Kept, limit: int) -> None:
        self._kept, self._limit = kept, limit
        self.refused = 0

    def send(self, request: SendRequest, on_answer: Callable[[Answer], None]) -> None:
        fits = [batch for batch in request.batches if len(batch.data) <= self._limit]
        answer: dict[TopicPartition, AppendResult] = {}
        self._kept.send(request._replace(batches=fits), answer.update)
        for batch in request.batches:
            if batch not in fits:
                self.refused += 1
                error = RecordTooLargeError(
                    "a batch", len(batch.data), self._limit, "max.message.bytes"
                )
                answer[batch.topic_partition] = AppendResult(error=error)
        on_answer(answer)


def test_a_record_that_no_batch_takes_stops_the_writer_with_its_size() -> None:
    producer = a_producer(Limited(Kept(), 2000), max_message_bytes=2000)
    with pytest.raises(
        RecordTooLargeError, match=r"takes 30\d\d bytes, more than max.message.bytes=2000"
    ):
        producer.append(pa.RecordBatch.from_pydict({"value": [b"v" * 3000]}), "events")
    producer.close(timeout=0)


def test_a_record_larger_than_the_memory_is_refused_at_once() -> None:
    producer = a_producer(Kept(), buffer_memory=MEMORY)
    with pytest.raises(RecordTooLargeError, match=r"buffer\.memory"):
        producer.append(pa.RecordBatch.from_pydict({"value": [b"v" * 2 * MEMORY]}), "events")
    future = producer.send("events", b"v" * 2 * MEMORY)
    assert isinstance(future.exception(), RecordTooLargeError)
    producer.close()


def test_batches_that_compress_well_keep_within_a_small_memory() -> None:
    kept = Kept()
    rows = pa.RecordBatch.from_pydict({"value": [b"v" * 200] * 20_000})
    with a_producer(
        kept, batch_size=40_000, buffer_memory=MEMORY, compression_type="zstd"
    ) as producer:
        for first in range(0, rows.num_rows, 1000):
            producer.append(rows.slice(first, 1000), "events")
    assert sum(len(kept.records(partition)) for partition in range(PARTITIONS)) == rows.num_rows


@pytest.mark.parametrize(
    ("batch_size", "value_bytes"), [(1, 20), (1000, 1100)], ids=["one byte", "less than a record"]
)
@pytest.mark.parametrize("partitions", [1, PARTITIONS], ids=["one partition", "several"])
def test_where_no_record_fits_batch_size_about_as_many_batches_are_made_as_there_are_records(
    monkeypatch: pytest.MonkeyPatch, batch_size: int, value_bytes: int, partitions: int
) -> None:
    made = 0
    try_builders = BatchMemory.try_builders

    def counted(*arguments: Any) -> list[RecordBatchBuilder]:
        nonlocal made
        builders = try_builders(*arguments)
        made += len(builders)
        return builders

    monkeypatch.setattr(BatchMemory, "try_builders", counted)
    transport, count = Kept(), 600
    values = [b"%08d" % number + b"v" * value_bytes for number in range(count)]
    partition = pa.array([number % partitions for number in range(count)], pa.int32())
    with a_producer(transport, batch_size=batch_size) as producer:
        producer.append(pa.record_batch({"value": values, "partition": partition}), "events")
    assert made < 4 * count
    for number in range(partitions):
        found = [record.value for record in transport.records(number)]
        assert found == values[number::partitions]


@pytest.mark.parametrize("seed", range(3))
def test_records_of_any_size_beside_each_other_keep_their_order(seed: int) -> None:
    rng = random.Random(f"sizes {seed}")
    sizes = [rng.choice([0, 50, 300, 1500, 5000, 40_000]) for _ in range(300)]
    values = [b"%04d" % number + rng.randbytes(size) for number, size in enumerate(sizes)]
    partition = pa.array([rng.randrange(PARTITIONS) for _ in values], pa.int32())
    transport = Kept()
    with a_producer(transport, batch_size=1000, buffer_memory=1 << 18) as producer:
        producer.append(pa.record_batch({"value": values, "partition": partition}), "events")
    for number in range(PARTITIONS):
        wanted = [v for v, p in zip(values, partition.to_pylist(), strict=True) if p == number]
        assert [record.value for record in transport.records(number)] == wanted
