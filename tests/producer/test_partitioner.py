"""The partition that a row goes to: against Kafka's rule in plain Python, and what the rule leaves open."""

from __future__ import annotations

import sys
import types
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kbatch.errors import ConfigError, UnknownTopicOrPartitionError
from spark_kbatch.kernels import routing
from spark_kbatch.options.topic import Topic, TopicConfig
from spark_kbatch.producer import partitioner
from spark_kbatch.producer.partitioner import Partitioner, load_partitioner
from spark_kbatch.record import columns as arrow
from tests.support import builders, strategies
from tests.support.builders import to_records
from tests.support.partitioners import a_partitioner, murmur2, partition, topic
from tests.support.reference import Record, encode_bytes

relaxed = settings(deadline=None)

KEYS = pa.array([b"a", b"b", b"", b"key"])
COLUMNS = arrow.columns(4, key=KEYS, value=KEYS, timestamps=np.zeros(4, np.int64), headers=None)


VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"abc": 479470107,
    b"a-little-bit-long-string": -985981536,
    b"": 275646681,
}


class Model:
    """Kafka's rule, a record at a time."""

    def __init__(
        self,
        counts: Mapping[str, int],
        *,
        switch_bytes: int = 1000,
        seed: int = 0,
        ignore_keys: bool = False,
        queue_sizes: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self.counts, self.switch_bytes, self.ignore_keys = counts, switch_bytes, ignore_keys
        self.queue_sizes = queue_sizes or {}
        self.seeds = np.random.default_rng(seed)
        self.partition: dict[str, int] = {}
        self.given: dict[str, int] = {}
        self.state: dict[str, int] = {}

    def place(self, topic: str, own: int | None, record: Record) -> tuple[str, int]:
        count = self.counts[topic]
        if topic not in self.state:
            self.state[topic] = int(self.seeds.integers(1, 2**31 - 1))
            self.partition[topic], self.given[topic] = self.state[topic] % count, 0
        if own is not None:
            return topic, own
        if record.key is not None and not self.ignore_keys:
            return topic, (murmur2(record.key) & 0x7FFFFFFF) % count
        if self.given[topic] >= self.switch_bytes:
            self.state[topic] = self.state[topic] * 48271 % (2**31 - 1)
            wanted = self.tickets(topic)
            self.partition[topic] = wanted[self.state[topic] % len(wanted)]
            self.given[topic] = 0
        self.given[topic] += 10 + size_of(record)
        return topic, self.partition[topic]

    def tickets(self, topic: str) -> list[int]:
        """List each partition as often as its weight says."""
        sizes = self.queue_sizes.get(topic) or [0] * self.counts[topic]
        if len(set(sizes)) == 1:
            return list(range(len(sizes)))
        return [p for p, size in enumerate(sizes) for _ in range(max(sizes) + 1 - size)]


def size_of(record: Record) -> int:
    headers = sum(len(encode_bytes(k.encode())) + len(encode_bytes(v)) for k, v in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


@pytest.mark.parametrize("key", VECTORS, ids=lambda key: key.decode() or "empty")
def test_kafkas_own_vectors_hold(key: bytes) -> None:
    assert murmur2(key) == VECTORS[key]
    rows = pa.RecordBatch.from_pydict({"key": [key], "value": [b"v"]})
    for count in (1, 2, 3, 7, 50, 100_000):
        (place,) = partition(a_partitioner({"events": count}), rows)
        assert place == ("events", (VECTORS[key] & 0x7FFFFFFF) % count)


@pytest.mark.parametrize("size", range(201))
def test_a_single_key_is_hashed_as_kafka_does(size: int) -> None:
    key = np.random.default_rng(size).bytes(size)
    assert partitioner._hash(key) == murmur2(key) & 0x7FFFFFFF


@relaxed
@given(
    runs=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 50)), min_size=1, max_size=4),
    seed=st.integers(0, 2**32 - 1),
    first=st.integers(0, 20),
    count=st.sampled_from([1, 2, 3, 7, 8, 100]),
)
def test_keys_of_one_size_go_where_those_between_others_go(
    runs: list[tuple[int, int]], seed: int, first: int, count: int
) -> None:
    random = np.random.default_rng(seed)
    keys = [random.bytes(size) for size, rows_count in runs for _ in range(rows_count)]
    # A slice starts inside the column's bytes.
    rows = pa.RecordBatch.from_pydict({"key": keys, "value": keys}).slice(min(first, len(keys) - 1))
    expected = [
        ("events", (murmur2(key) & 0x7FFFFFFF) % count) for key in rows.column("key").to_pylist()
    ]
    assert partition(a_partitioner({"events": count}), rows) == expected


@relaxed
@given(
    keys=st.lists(st.binary(min_size=5, max_size=5), min_size=1, max_size=40),
    partitions=st.integers(1, 100_000),
    first_slot=st.integers(0, 1_000),
)
def test_any_number_of_partitions_divides_hashes_without_a_mistake(
    keys: list[bytes], partitions: int, first_slot: int
) -> None:
    key = arrow.spans(pa.array(keys, pa.binary()))
    slots, counts = np.empty(len(keys), np.int32), np.zeros(partitions, np.int64)
    routing.hash_keys(key.data, key.bounds, first_slot, slots, counts)
    expected = [(murmur2(key) & 0x7FFFFFFF) % partitions for key in keys]
    assert (slots - first_slot).tolist() == expected
    assert counts.tolist() == np.bincount(expected, minlength=partitions).tolist()


@pytest.mark.parametrize("partitions", [1, 2, 3, 7, 49, 1_000, 46_341, 10**6])
def test_many_hashes_are_divided_without_a_mistake(partitions: int) -> None:
    size, rows_count = 5, 16 * 10_000
    data = arrow.frozen(np.random.default_rng(partitions).integers(0, 256, size * rows_count, "u1"))
    bounds = arrow.frozen(np.arange(0, len(data) + 1, size, dtype=np.int32))
    hashes, found = np.empty(rows_count, np.int32), np.empty(rows_count, np.int32)
    routing.hash_keys(data, bounds, 0, hashes, np.empty(0, np.int64))
    routing.hash_keys(data, bounds, 0, found, np.zeros(partitions, np.int64))
    assert (found == hashes % partitions).all()


@relaxed
@given(data=st.data(), rows=strategies.arrow_rows(rows_max=40), seed=st.integers(0, 99))
def test_rows_go_where_the_model_sends_them_in_batches_or_one_by_one(
    data: st.DataObject, rows: pa.RecordBatch, seed: int
) -> None:
    counts = data.draw(
        st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(1, 9), min_size=1)
    )
    size = rows.num_rows
    topics = data.draw(st.lists(st.sampled_from(sorted(counts)), min_size=size, max_size=size))
    own = [data.draw(st.none() | st.integers(0, counts[name] - 1)) for name in topics]
    if data.draw(st.booleans()):
        own = [None] * size
    own_type = data.draw(st.sampled_from([pa.int32(), pa.int64(), pa.int16()]))
    topics_type = data.draw(st.sampled_from([pa.string(), pa.large_string()]))
    queue_sizes = {
        name: data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
        for name, count in counts.items()
        if data.draw(st.booleans())
    }
    switch_bytes = data.draw(st.sampled_from([1, 30, 1000]))
    ignore_keys = data.draw(st.booleans())

    model = Model(
        counts,
        switch_bytes=switch_bytes,
        seed=seed,
        ignore_keys=ignore_keys,
        queue_sizes=queue_sizes,
    )
    records = to_records(rows)
    expected = [model.place(*row) for row in zip(topics, own, records, strict=True)]

    def a_new_one() -> Partitioner:
        return a_partitioner(
            counts,
            switch_bytes=switch_bytes,
            seed=seed,
            ignore_keys=ignore_keys,
            queue_sizes=lambda topic: queue_sizes.get(topic.name),
        )

    partitioner = a_new_one()
    cut = data.draw(st.integers(0, size))
    places = []
    for start, end in ((0, cut), (cut, size)):
        chosen = None
        if any(own) or 0 in own or data.draw(st.booleans()):
            chosen = pa.array(own[start:end], own_type)
        here: pa.Array | str = pa.array(topics[start:end], topics_type)
        if len({*topics[start:end]}) == 1 and data.draw(st.booleans()):
            here = topics[start]
        places += partition(
            partitioner, rows.slice(start, end - start), topics=here, partitions=chosen
        )
    assert places == expected

    partitioner = a_new_one()
    places = []
    for name, chosen_one, record in zip(topics, own, records, strict=True):
        found, number = partitioner.partition_one(name, record.key, size_of(record), chosen_one)
        places.append((found.name, number))
    assert places == expected


def null_keys(count: int, *, value_bytes: int = 90) -> pa.RecordBatch:
    return builders.rows(n=count, value_bytes=value_bytes).drop_columns(["key"])


def test_rows_without_a_key_stay_together_until_switch_bytes_went_to_one_partition() -> None:
    partitioner = a_partitioner({"events": 16}, switch_bytes=1000)
    places = partition(partitioner, null_keys(2000))
    runs = [len(list(run)) for _, run in groupby(places)]
    assert len(runs) > 150
    # Ten rows of 90 bytes, and 10 for each, make 1000. The same partition may be drawn again.
    assert {length % 10 for length in runs} == {0}


def test_rows_without_a_key_spread_over_all_partitions() -> None:
    places = partition(a_partitioner({"events": 8}, switch_bytes=1000), null_keys(16_000))
    counts = Counter(places)
    assert len(counts) == 8
    assert min(counts.values()) > 0.5 * 16_000 / 8
    assert max(counts.values()) < 1.5 * 16_000 / 8


def test_a_null_key_is_as_good_as_an_absent_one_and_an_empty_one_is_a_key() -> None:
    keys = pa.array([None] * 50 + [b""], pa.binary())
    rows = pa.RecordBatch.from_pydict({"key": keys, "value": pa.array([b"v" * 90] * 51)})
    places = partition(a_partitioner({"events": 7}, switch_bytes=1000), rows)
    absent = partition(a_partitioner({"events": 7}, switch_bytes=1000), null_keys(50))
    assert places[:50] == absent
    assert places[50] == ("events", (VECTORS[b""] & 0x7FFFFFFF) % 7)


def test_where_rows_go_does_not_depend_on_how_they_are_cut_into_arrow_batches() -> None:
    rows = null_keys(300)
    whole = partition(a_partitioner({"events": 5}), rows)
    partitioner, parts = a_partitioner({"events": 5}), []
    for start in range(0, 300, 7):
        parts += partition(partitioner, rows.slice(start, 7))
    assert parts == whole


def test_tasks_with_other_seeds_begin_with_other_partitions() -> None:
    first = {partition(a_partitioner({"events": 50}, seed=s), null_keys(1))[0] for s in range(40)}
    assert len(first) > 20


@pytest.mark.parametrize("number", [-1, 4, 2**31 - 1], ids=["negative", "one too many", "huge"])
def test_a_partition_that_the_topic_does_not_have_is_refused_by_number(number: int) -> None:
    rows = builders.rows(n=3)
    partitioner = a_partitioner({"events": 4})
    with pytest.raises(ConfigError) as error:
        partition(partitioner, rows, partitions=pa.array([0, None, number], pa.int32()))
    has = "but topic 'events' has the partitions 0 to 3"
    assert str(error.value).startswith(f"column 'partition' holds {number}, {has}: leave ")
    for way_on in ('drop("partition")', "num.partitions", "`kbatch create-partitions`"):
        assert way_on in str(error.value)
    with pytest.raises(ConfigError) as error:
        partitioner.partition_one("events", b"key", 10, number)
    assert str(error.value) == f"partition is {number}, {has}"


def test_a_partition_that_no_int32_holds_is_refused() -> None:
    with pytest.raises(ConfigError, match="column 'partition' holds a number that is no partition"):
        partition(a_partitioner({"events": 4}), builders.rows(n=1), partitions=pa.array([2**40]))


def test_a_null_topic_is_refused() -> None:
    with pytest.raises(ConfigError, match="column 'topic' holds a null"):
        partition(a_partitioner({"a": 1}), builders.rows(n=2), topics=pa.array(["a", None]))


def test_only_topics_that_occur_are_asked_for_and_an_error_passes() -> None:
    asked = []

    def find(name: str) -> Topic:
        asked.append(name)
        if name == "missing":
            raise UnknownTopicOrPartitionError(name)
        return topic(name, 3)

    partitioner = Partitioner(find, switch_bytes=1000, seed=0)
    for _ in range(3):
        partition(partitioner, builders.rows(n=4), topics=pa.array(["a", "b", "a", "b"]))
        assert partitioner.partition_one("a", None, 10)[0] == topic("a", 3)
    assert {*asked} == {"a", "b"}
    with pytest.raises(UnknownTopicOrPartitionError):
        partition(partitioner, builders.rows(n=1), topics="missing")


def test_rows_go_by_what_a_topic_has_now_and_placed_ones_keep_their_slots() -> None:
    now = {"events": topic("events", 2)}
    partitioner = Partitioner(now.__getitem__, switch_bytes=1000, seed=0)
    before = partitioner.partition(COLUMNS, "events", None)
    places = [before.partitions[slot][1] for slot in before.slots]

    for partitions in (7, 3):
        now["events"] = replace(topic("events", partitions), topic_id=f"id-{partitions}")
        wanted = [(murmur2(key) & 0x7FFFFFFF) % partitions for key in KEYS.to_pylist()]
        rows = pa.RecordBatch.from_arrays([KEYS, KEYS], ["key", "value"])
        assert partition(partitioner, rows) == [("events", number) for number in wanted]
        assert partitioner.partition_one("events", KEYS[0].as_py(), 9)[1] == wanted[0]
    assert [before.partitions[slot][1] for slot in before.slots] == places


def test_an_altered_topic_keeps_its_slots() -> None:
    now = {"events": topic("events", 2)}
    partitioner = Partitioner(now.__getitem__, switch_bytes=1000, seed=0)
    partitioner.partition_one("events", b"key", 9)
    for limit in range(2000, 2100):
        altered = replace(topic("events", 2), config=TopicConfig(max_message_bytes=limit))
        now["events"] = altered
        placed = partitioner.partition(COLUMNS, "events", None)
        assert partitioner.partition_one("events", b"key", 9)[0] is altered
        assert placed.topics[0] is altered
        assert [of for of, _ in placed.partitions] == [altered] * 2


def test_no_rows_ask_for_nothing() -> None:
    assert partition(a_partitioner({}), builders.rows(n=1).slice(1), topics="missing") == []


def test_ignored_keys_go_to_the_sticky_partition_and_count_as_bytes() -> None:
    keyed = builders.rows(n=2000, key_bytes=30, value_bytes=60)
    places = partition(a_partitioner({"events": 16}, ignore_keys=True), keyed)
    assert places == partition(a_partitioner({"events": 16}), null_keys(2000))
    own = pa.array([3] * 2000)
    places = partition(a_partitioner({"events": 16}, ignore_keys=True), keyed, partitions=own)
    assert set(places) == {("events", 3)}


# Each row fills its partition, so that each row after the first chooses a new one.
ONE_ROW = 1


def drawn(rows_count: int, partitions: int, **options: Any) -> Counter[int]:
    partitioner = a_partitioner({"events": partitions}, switch_bytes=ONE_ROW, **options)
    return Counter(place for _, place in partition(partitioner, null_keys(rows_count)))


def ensure_shares(counts: Counter[int], shares: Sequence[int]) -> None:
    """Check shares by chi-squared, with a bound 5 standard deviations above its mean."""
    total, freedom = sum(counts.values()), len(shares) - 1
    expected = [share * total / sum(shares) for share in shares]
    off = sum((counts[p] - mean) ** 2 / mean for p, mean in enumerate(expected))
    assert off < freedom + 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("partitions", [2, 3, 8, 50, 1000])
def test_partitions_are_drawn_alike_where_queues_are_not_known(partitions: int) -> None:
    ensure_shares(drawn(100_000, partitions), [1] * partitions)


@pytest.mark.parametrize(
    ("sizes", "shares"),
    [
        ([0, 3, 1], [4, 1, 3]),
        ([5, 0], [1, 6]),
        ([0, 0, 0, 1], [2, 2, 2, 1]),
        ([100_000] * 9 + [0], [1] * 9 + [100_001]),
        ([*range(100)], [*range(100, 0, -1)]),
    ],
    ids=["three", "two", "one differs", "one is free", "a hundred"],
)
def test_a_partition_with_a_shorter_queue_is_drawn_more_often(
    sizes: list[int], shares: list[int]
) -> None:
    counts = drawn(100_000, len(sizes), queue_sizes=lambda name: sizes)
    if min(shares) * 100_000 / sum(shares) > 5:
        ensure_shares(counts, shares)
    else:
        assert counts[9] > 99_900


@pytest.mark.parametrize("sizes", [None, [0] * 8, [7] * 8], ids=["unknown", "empty", "equal"])
def test_queues_that_say_nothing_change_nothing(sizes: list[int] | None) -> None:
    assert drawn(1000, 8, queue_sizes=lambda name: sizes) == drawn(1000, 8)


def test_queues_are_not_looked_at_where_that_is_switched_off() -> None:
    asked = Asked({"events": [0, 9, 9, 9, 9, 9, 9, 9]})
    assert drawn(1000, 8, queue_sizes=asked, adaptive=False) == drawn(1000, 8)
    assert asked.names == []


class Asked:
    """Queue sizes, with a record of the topics that they were asked for."""

    def __init__(self, sizes: Mapping[str, Sequence[int]]) -> None:
        self.sizes, self.names = sizes, list[str]()

    def __call__(self, topic: Topic) -> Sequence[int] | None:
        self.names.append(topic.name)
        return self.sizes.get(topic.name)


def test_queues_are_asked_for_once_a_call_and_only_where_a_switch_may_come() -> None:
    asked = Asked({"a": [0, 1], "b": [0, 1]})
    partitioner = a_partitioner({"a": 2, "b": 2, "one": 1}, queue_sizes=asked)

    keyed = builders.rows(n=100)
    partition(partitioner, keyed, topics="a")
    partition(partitioner, null_keys(100), topics="a", partitions=pa.array([0] * 100))
    partition(partitioner, null_keys(100), topics="one")
    partition(partitioner, null_keys(9), topics="a")
    assert asked.names == []

    partition(partitioner, null_keys(100), topics=pa.array(["a", "b"] * 50))
    assert asked.names == ["a", "b"]
    asked.names.clear()
    for _ in range(20):
        partitioner.partition_one("b", None, 90)
        partitioner.partition_one("b", b"key", 90)
    assert asked.names == ["b", "b"]


def test_several_threads_together_place_rows_as_one_would() -> None:
    counts = {"a": 7, "b": 3}
    topics = pa.array(["a", "a", "b"] * 10)
    rows = null_keys(30)

    def places_of(partitioner: Partitioner) -> list[tuple[tuple[str, int], ...]]:
        return [tuple(partition(partitioner, rows, topics=topics)) for _ in range(100)]

    alone = a_partitioner(counts, switch_bytes=300)
    expected = [places for _ in range(8) for places in places_of(alone)]
    shared = a_partitioner(counts, switch_bytes=300)
    with ThreadPoolExecutor(8) as threads:
        futures = [threads.submit(places_of, shared) for _ in range(8)]
        found = [places for future in futures for places in future.result()]
    # The order of the threads is open, but not what each got.
    assert Counter(found) == Counter(expected)


def test_threads_that_bring_new_topics_find_each() -> None:
    names = [f"topic-{number}" for number in range(40)]
    asked: list[str] = []

    def find(name: str) -> Topic:
        asked.append(name)
        return topic(name, 1 + names.index(name) % 5)

    partitioner = Partitioner(find, switch_bytes=100, seed=0)

    def work(seed: int) -> None:
        order = np.random.default_rng(seed).permutation(names).tolist()
        rows = null_keys(len(names))
        for _ in range(5):
            partition(partitioner, rows, topics=pa.array(order))
            for name in order:
                found, number = partitioner.partition_one(name, None, 90)
                assert found.name == name
                assert number < found.partitions

    with ThreadPoolExecutor(8) as threads:
        for future in [threads.submit(work, seed) for seed in range(8)]:
            future.result()
    assert {*asked} == {*names}


def by_length(keys: pa.Array | None, partitions: int) -> pa.Array:
    """Keys of one size go to one partition."""
    if keys is None:
        return pa.array([partitions - 1])
    return pc.fill_null(pc.bit_wise_and(pc.binary_length(keys), partitions - 1), 0)


def test_a_custom_partitioner_is_asked_once_a_topic_for_rows_that_leave_it_open() -> None:
    asked: list[tuple[list[bytes | None], int]] = []

    def custom(keys: pa.Array | None, partitions: int) -> pa.Array:
        assert keys is not None
        assert keys.type == pa.binary()
        asked.append((keys.to_pylist(), partitions))
        return by_length(keys, partitions)

    keys = [b"", b"1", b"22", None, b"4444", b"55555", b"333"]
    rows = pa.RecordBatch.from_pydict({"key": keys, "value": [b"v"] * 7}).slice(1)
    topics = pa.array(["a", "b", "a", "a", "b", "c"])
    own = pa.array([None, None, None, 3, None, 0])
    counts = {"a": 4, "b": 2, "c": 1}
    places = partition(a_partitioner(counts, custom=custom), rows, topics=topics, partitions=own)
    assert places == [("a", 1), ("b", 0), ("a", 0), ("a", 3), ("b", 1), ("c", 0)]
    assert asked == [([b"1", None], 4), ([b"22", b"55555"], 2)]

    partitioner = a_partitioner(counts, custom=custom, ignore_keys=True)
    assert partition(partitioner, rows, topics="b") == [("b", n) for n in (1, 0, 0, 0, 1, 1)]
    assert partitioner.partition_one("a", b"333", 4) == (topic("a", 4), 3)
    assert partitioner.partition_one("a", None, 4) == (topic("a", 4), 0)
    assert partitioner.partition_one("a", b"333", 4, 2) == (topic("a", 4), 2)


def test_a_custom_partitioner_sees_the_key_column_as_it_is_given() -> None:
    seen: list[pa.Array | None] = []

    def custom(keys: pa.Array | None, partitions: int) -> np.ndarray[Any, Any]:
        seen.append(keys)
        return np.zeros(3, np.uint8)

    rows = builders.rows(n=3)
    texts = pa.array(["x", "y", "z"])
    partition(a_partitioner({"events": 2}, custom=custom), rows, keys=texts)
    partition(a_partitioner({"events": 2}, custom=custom), null_keys(3))
    assert seen == [texts, None]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (pa.array([0, 1, 2, None]), "a null for row 4; accepted: 0 to 3"),
        (pa.array([0, 4, -1, 2]), "4 for row 2; accepted: 0 to 3"),
        (np.array([0, 1, -1, 2]), "-1 for row 3; accepted: 0 to 3"),
        (np.array([2**64 - 1, 0, 0, 0], np.uint64), f"{2**64 - 1} for row 1; accepted: 0 to 3"),
        (pa.array([0, 1, 2]), "3 numbers for 4 rows; accepted: one for each row"),
        (pa.array([0.0] * 4), "a DoubleArray double; accepted: "),
        (np.zeros(4, np.bool_), "a ndarray bool; accepted: "),
        (np.zeros((4, 1), np.int64), "a ndarray int64; accepted: "),
        (pa.nulls(4), "a NullArray null; accepted: "),
        ([0, 0, 0, 0], "a list; accepted: a pyarrow Array or numpy array of integers"),
        (None, "a NoneType; accepted: "),
    ],
    ids=[
        "null", "too large", "negative", "huge", "too few", "floats", "booleans", "two dimensions",
        "only nulls", "list", "nothing",
    ],
)  # fmt: skip
def test_what_a_custom_partitioner_must_not_answer_is_refused(answer: Any, said: str) -> None:
    partitioner = a_partitioner({"events": 4}, custom=lambda keys, partitions: answer)
    with pytest.raises(ConfigError) as error:
        # Row 0 names its own partition.
        partition(partitioner, builders.rows(n=5), partitions=pa.array([1, *[None] * 4]))
    assert str(error.value).startswith(
        "option 'partitioner.class': tests.producer.test_partitioner"
    )
    assert f"for topic 'events', returned {said}" in str(error.value)


def test_an_error_of_a_custom_partitioner_passes_with_a_note() -> None:
    mine = KeyError("no such route")

    def routes(keys: pa.Array | None, partitions: int) -> pa.Array:
        raise mine

    partitioner = a_partitioner({"events": 4}, custom=routes)
    for call in (
        lambda: partition(partitioner, builders.rows(n=1)),
        lambda: partitioner.partition_one("events", b"key", 3),
    ):
        with pytest.raises(KeyError) as error:
            call()
        assert error.value is mine
        assert "routes, for topic 'events'" in mine.__notes__[-1]


@pytest.fixture
def user_module(monkeypatch: pytest.MonkeyPatch) -> str:
    class Router:
        route = staticmethod(by_length)

        def __call__(self, keys: pa.Array | None, partitions: int) -> pa.Array:
            return by_length(keys, partitions)

    package, module = types.ModuleType("acme"), types.ModuleType("acme.routing")
    vars(module).update(by_length=by_length, router=Router(), Router=Router, number=7)
    monkeypatch.setitem(sys.modules, "acme", package)
    monkeypatch.setitem(sys.modules, "acme.routing", module)
    return "acme.routing"


@pytest.mark.parametrize("path", [".by_length", ":by_length", ".router", ":Router.route"])
def test_a_partitioner_is_found_by_its_path(user_module: str, path: str) -> None:
    custom = load_partitioner(user_module + path)
    assert custom(None, 4).to_pylist() == [3]
    assert a_partitioner({"events": 4}, custom=custom).partition_one("events", b"22", 2)[1] == 2


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("acme.routing.missing", "cannot be imported (AttributeError: "),
        ("acme.nowhere.by_length", "cannot be imported (ModuleNotFoundError: "),
        ("acme.routing.number", "which is of type int;"),
        ("acme.routing.Router", "which is of type type;"),
        ("acme.routing:", "which names no module;"),
        (".relative", "which names no module;"),
        ("..relative.f", "cannot be imported (TypeError: "),
        ("by_length", "which names no module;"),
        ("", "which names no module;"),
    ],
    ids=lambda text: text or "empty",
)
def test_a_path_that_leads_to_no_function_is_refused(
    user_module: str, path: str, said: str
) -> None:
    with pytest.raises(ConfigError) as error:
        load_partitioner(path)
    assert str(error.value).startswith(f"option 'partitioner.class' is {path!r}, ")
    assert said in str(error.value)
    assert "accepted: 'package.module.function', a function of (keys, number of partitions)" in str(
        error.value
    )
