"""Rows -> batches: nothing lost, nothing moved, no batch and no pool too large."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kbatch.config import Topic, TopicConfig
from spark_kbatch.errors import RecordTooLargeError
from spark_kbatch.producer.accumulator import RecordAccumulator
from spark_kbatch.producer.buffer_pool import BufferPool
from spark_kbatch.producer.sender import Sender
from spark_kbatch.record import columns as arrow
from spark_kbatch.record.columns import Columns, frozen
from tests import builders, reference, strategies
from tests.builders import to_records

relaxed = settings(deadline=None)
HEADER_SIZE = reference.HEADER_SIZE


class Sent:
    """A transport that keeps what it is given."""

    def __init__(self) -> None:
        self.batches: dict[tuple[str, int], list[bytes]] = defaultdict(list)

    def send(self, topic: Topic, partition: int, batch: memoryview, records_count: int) -> None:
        data = bytes(batch)
        assert reference.read_header(data).records_count == records_count > 0
        self.batches[topic.name, partition].append(data)

    def sizes(self, topic: str = "events", partition: int = 0) -> list[int]:
        return [len(data) for data in self.batches[topic, partition]]


class WatchedPool(BufferPool):
    """Fails when it hands out memory that is in use, or more than its total."""

    def __init__(self, *, total_memory: int, poolable_size: int) -> None:
        super().__init__(total_memory=total_memory, poolable_size=poolable_size)
        self.held: dict[int, int] = {}  # where -> bytes

    def try_allocate(self, size_in_bytes: int) -> int | None:
        start = super().try_allocate(size_in_bytes)
        if start is not None:
            end = start + size_in_bytes
            assert 0 <= start < end <= len(self.memory) <= self.total_memory
            assert all(end <= s or s + size <= start for s, size in self.held.items())
            self.held[start] = size_in_bytes
        return start

    def deallocate(self, start: int, size_in_bytes: int) -> None:
        assert self.held.pop(start) == size_in_bytes
        # Whoever still reads it shall notice.
        self.memory[start : start + size_in_bytes] = 0xA5
        super().deallocate(start, size_in_bytes)


def an_accumulator(
    sent: Sent, *, batch_size: int = 1000, buffer_memory: int = 10_000, compression: str = "none"
) -> RecordAccumulator:
    accumulator = RecordAccumulator(
        Sender(sent, compression_type=compression),
        batch_size=batch_size,
        buffer_memory=buffer_memory,
    )
    pool = accumulator._pool
    accumulator._pool = WatchedPool(
        total_memory=pool.total_memory, poolable_size=pool.poolable_size
    )
    return accumulator


def a_topic(name: str = "events", *, max_message_bytes: int = 1 << 20) -> Topic:
    return Topic(name, "id", 4, TopicConfig(max_message_bytes=max_message_bytes))


def columns_of(rows: pa.RecordBatch) -> Columns:
    def column(name: str) -> pa.Array | None:
        return rows.column(name) if name in rows.schema.names else None

    return arrow.columns(
        rows.num_rows,
        key=column("key"),
        value=column("value"),
        timestamps=arrow.timestamps_ms(column("timestamp"), rows.num_rows, -1),
        headers=column("headers"),
    )


def append(accumulator: RecordAccumulator, rows: pa.RecordBatch, topic: Topic) -> None:
    numbers = frozen(np.arange(rows.num_rows, dtype=np.int32))
    accumulator.append(topic, 0, columns_of(rows), numbers)


@relaxed
@given(
    data=st.data(),
    tables=st.lists(strategies.arrow_rows(rows_max=12), max_size=4),
    batch_size=st.sampled_from([1, 61, 100, 300, 1000, 16384]),
    buffer_memory=st.sampled_from([2000, 5000, 40_000]),
    compression=st.sampled_from(["none", "none", "zstd", "lz4"]),
)
def test_each_partition_gets_its_records_in_order_in_batches_of_at_most_batch_size(
    data: st.DataObject,
    tables: list[pa.RecordBatch],
    batch_size: int,
    buffer_memory: int,
    compression: str,
) -> None:
    sent, topic = Sent(), a_topic()
    accumulator = an_accumulator(
        sent, batch_size=batch_size, buffer_memory=buffer_memory, compression=compression
    )
    expected = defaultdict(list)
    for rows in tables:
        count = rows.num_rows
        places = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
        records = to_records(rows)
        for partition in sorted(set(places)):
            taken = [row for row in range(count) if places[row] == partition]
            numbers = frozen(np.array(taken, np.int32))
            accumulator.append(topic, partition, columns_of(rows), numbers)
            expected["events", partition] += [records[row] for row in taken]
    accumulator.flush()

    assert accumulator._pool.in_use == 0
    assert sent.batches.keys() == expected.keys()
    for place, batches in sent.batches.items():
        assert builders.records_of(batches) == [
            record._replace(offset=offset) for offset, record in enumerate(expected[place])
        ]
        for batch in batches:
            alone = reference.read_header(batch).records_count == 1
            assert alone or compression != "none" or len(batch) <= batch_size


def test_batches_are_as_full_as_batch_size_allows() -> None:
    sent, rows = Sent(), builders.rows(n=100, value_bytes=100)
    accumulator = an_accumulator(sent, batch_size=2000)
    append(accumulator, rows, a_topic())
    accumulator.flush()
    record_size = (sent.sizes()[0] - HEADER_SIZE) // 15
    assert all(2000 - record_size <= size <= 2000 for size in sent.sizes()[:-1])


def test_the_same_rows_in_many_appends_make_the_same_batches() -> None:
    rows = builders.rows(n=100)
    once, often = Sent(), Sent()
    for sent, step in ((once, 100), (often, 3)):
        accumulator = an_accumulator(sent)
        for start in range(0, 100, step):
            append(accumulator, rows.slice(start, step), a_topic())
        accumulator.flush()
    assert once.batches == often.batches


def test_nothing_appended_sends_nothing() -> None:
    sent = Sent()
    accumulator = an_accumulator(sent)
    append(accumulator, builders.rows(n=1).slice(1), a_topic())
    accumulator.flush()
    assert not sent.batches


def test_when_memory_is_in_use_the_fullest_batch_goes() -> None:
    sent, topic = Sent(), a_topic()
    accumulator = an_accumulator(sent, batch_size=1000, buffer_memory=3000)
    for partition, count in ((0, 2), (1, 5), (2, 1)):
        numbers = frozen(np.arange(count, dtype=np.int32))
        accumulator.append(topic, partition, columns_of(builders.rows(n=count)), numbers)
    assert not sent.batches

    accumulator.append(topic, 3, columns_of(builders.rows(n=1)), frozen(np.zeros(1, np.int32)))
    assert list(sent.batches) == [("events", 1)]


@pytest.mark.parametrize("batch_size", [1, 100_000], ids=["tiny", "larger than the memory"])
def test_any_batch_size_works_with_any_memory(batch_size: int) -> None:
    sent, rows = Sent(), builders.rows(n=50)
    accumulator = an_accumulator(sent, batch_size=batch_size, buffer_memory=2000)
    append(accumulator, rows, a_topic())
    accumulator.flush()
    assert builders.records_of(sent.batches["events", 0]) == to_records(rows)
    if batch_size > 2000:
        assert max(sent.sizes()) <= 1000  # each of two partitions has a buffer at least


# Records that are too large for something.


def a_row(value_bytes: int) -> pa.RecordBatch:
    return builders.rows(n=1, value_bytes=value_bytes)


def test_a_record_larger_than_batch_size_goes_alone_and_in_its_place() -> None:
    sent = Sent()
    accumulator = an_accumulator(sent, batch_size=500)
    sizes = [100, 5000, 100, 100, 3000, 3000, 100]
    for size in sizes:
        append(accumulator, a_row(size), a_topic())
    accumulator.flush()
    records = builders.records_of(sent.batches["events", 0])
    assert [len(record.value or b"") for record in records] == sizes
    counts = [reference.read_header(data).records_count for data in sent.batches["events", 0]]
    assert counts == [1, 1, 2, 1, 1, 1]


def test_a_batch_may_have_max_message_bytes_and_not_one_more() -> None:
    sent, limit = Sent(), 3000
    accumulator = an_accumulator(sent, batch_size=500)
    append(accumulator, a_row(1000), a_topic())
    accumulator.flush()
    fits = 1000 + limit - sent.sizes()[0]
    append(accumulator, a_row(fits), a_topic(max_message_bytes=limit))
    assert sent.sizes() == [sent.sizes()[0], limit]

    with pytest.raises(RecordTooLargeError) as error:
        append(accumulator, a_row(fits + 1), a_topic(max_message_bytes=limit))
    assert (error.value.size_in_bytes, error.value.limit) == (limit + 1, limit)
    assert error.value.option == "max.message.bytes"
    assert "'events'" in str(error.value)
    assert f"{limit + 1} bytes, more than max.message.bytes={limit}" in str(error.value)
    assert accumulator._pool.in_use == 0


def test_a_smaller_max_message_bytes_makes_smaller_batches() -> None:
    sent = Sent()
    accumulator = an_accumulator(sent, batch_size=5000)
    append(accumulator, builders.rows(n=60), a_topic(max_message_bytes=700))
    accumulator.flush()
    assert 500 < max(sent.sizes()) <= 700


def test_a_record_that_is_small_enough_once_compressed_is_taken() -> None:
    sent = Sent()
    accumulator = an_accumulator(sent, batch_size=500, compression="zstd")
    rows = pa.RecordBatch.from_pydict({"value": [b"x" * 5000]})
    append(accumulator, rows, a_topic(max_message_bytes=1024))
    assert max(sent.sizes()) < 200
    assert builders.records_of(sent.batches["events", 0])[0].value == b"x" * 5000


def test_a_record_larger_than_the_memory_is_refused_with_both_numbers() -> None:
    sent = Sent()
    accumulator = an_accumulator(sent, buffer_memory=10_000)
    append(accumulator, a_row(100), a_topic())
    with pytest.raises(RecordTooLargeError) as error:
        append(accumulator, a_row(10_000), a_topic())
    assert error.value.size_in_bytes > error.value.limit == 10_000
    assert error.value.option == "buffer.memory"

    accumulator.flush()
    assert accumulator._pool.in_use == 0
    assert len(builders.records_of(sent.batches["events", 0])) == 1


def test_a_transport_that_fails_gets_its_error_back_and_the_memory_is_free() -> None:
    class Full(Sent):
        def send(self, *_: object) -> None:
            raise OSError("full")

    accumulator = an_accumulator(Full(), batch_size=500)
    append(accumulator, a_row(10), a_topic())
    with pytest.raises(OSError, match="full"):
        accumulator.flush()
    with pytest.raises(OSError, match="full"):
        append(accumulator, a_row(5000), a_topic())  # which goes at once
    assert accumulator._pool.in_use == 0


# The pool.


@relaxed
@given(
    steps=st.lists(st.tuples(st.booleans(), st.sampled_from([100, 100, 100, 1, 250, 700, 1000]))),
)
def test_the_pool_hands_out_what_is_free_side_by_side(steps: list[tuple[bool, int]]) -> None:
    pool = WatchedPool(total_memory=1050, poolable_size=100)
    for is_return, size in steps:
        if is_return and pool.held:
            start = sorted(pool.held)[size % len(pool.held)]
            pool.deallocate(start, pool.held[start])
        elif not is_return:
            taken = {b for s, n in pool.held.items() for b in range(s // 100, -(-(s + n) // 100))}
            wanted = -(-size // 100)
            fits = any(
                taken.isdisjoint(range(first, first + wanted)) for first in range(11 - wanted)
            )
            assert (pool.try_allocate(size) is not None) == fits
        assert pool.in_use == 100 * sum(-(-size // 100) for size in pool.held.values())


def test_a_buffer_that_was_given_back_is_used_again() -> None:
    pool = BufferPool(total_memory=1000, poolable_size=100)
    first = pool.try_allocate(100)
    assert first is not None
    pool.deallocate(first, 100)
    assert pool.try_allocate(100) == first
