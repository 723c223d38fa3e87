"""Which partition a row goes to: Kafka's rule once more in plain Python, and what it leaves open."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kbatch.config import Topic, TopicConfig
from spark_kbatch.errors import ConfigError, UnknownTopicOrPartitionError
from spark_kbatch.producer.partitioner import Partitioner
from spark_kbatch.record import columns as arrow
from tests import builders, strategies
from tests.builders import to_records

relaxed = settings(deadline=None)


def murmur2(data: bytes) -> int:
    """As Kafka's Utils.murmur2: a signed 32-bit number."""

    def times_m(number: int) -> int:
        return number * 0x5BD1E995 & 0xFFFFFFFF

    h = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        k = times_m(int.from_bytes(data[at : at + 4], "little"))
        h = times_m(h) ^ times_m(k ^ k >> 24)
    if whole < len(data):
        h = times_m(h ^ int.from_bytes(data[whole:], "little"))
    h = times_m(h ^ h >> 13)
    h ^= h >> 15
    return h - 2**32 if h >= 2**31 else h


VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"abc": 479470107,
    b"a-little-bit-long-string": -985981536,
    b"": 275646681,
}


def topic(name: str, partitions: int) -> Topic:
    return Topic(name, "id", partitions, TopicConfig())


def partition(
    partitioner: Partitioner,
    rows: pa.RecordBatch,
    *,
    topics: pa.Array | str = "events",
    partitions: pa.Array | None = None,
) -> list[tuple[str, int]]:
    """Each row's place, after checking that every row has one and keeps its order there."""

    def column(name: str) -> pa.Array | None:
        return rows.column(name) if name in rows.schema.names else None

    columns = arrow.columns(
        rows.num_rows,
        key=column("key"),
        value=column("value"),
        timestamps=arrow.timestamps_ms(None, rows.num_rows, 0),
        headers=None,
    )
    places: dict[int, tuple[str, int]] = {}
    for found, number, taken in partitioner.partition(columns, topics, partitions):
        assert len(taken)
        assert taken.tolist() == sorted(taken.tolist())
        assert 0 <= number < found.partitions
        for row in taken.tolist():
            assert places.setdefault(row, (found.name, number)) == (found.name, number)
    assert sorted(places) == list(range(rows.num_rows))
    return [places[row] for row in range(rows.num_rows)]


def a_partitioner(
    counts: dict[str, int], *, switch_bytes: int = 1000, seed: int = 0
) -> Partitioner:
    return Partitioner(lambda name: topic(name, counts[name]), switch_bytes=switch_bytes, seed=seed)


@pytest.mark.parametrize("key", VECTORS, ids=lambda key: key.decode() or "empty")
def test_kafkas_own_vectors_hold(key: bytes) -> None:
    assert murmur2(key) == VECTORS[key]
    rows = pa.RecordBatch.from_pydict({"key": [key], "value": [b"v"]})
    for count in (1, 2, 3, 7, 50, 100_000):
        (place,) = partition(a_partitioner({"events": count}), rows)
        assert place == ("events", (VECTORS[key] & 0x7FFFFFFF) % count)


@relaxed
@given(data=st.data(), rows=strategies.arrow_rows(rows_max=12), seed=st.integers(0, 99))
def test_rows_go_where_kafkas_default_partitioner_sends_them(
    data: st.DataObject, rows: pa.RecordBatch, seed: int
) -> None:
    counts = data.draw(
        st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(1, 9), min_size=1)
    )
    size = rows.num_rows
    topics = data.draw(st.lists(st.sampled_from(sorted(counts)), min_size=size, max_size=size))
    own = [data.draw(st.none() | st.integers(0, counts[name] - 1)) for name in topics]
    own_type = data.draw(st.sampled_from([pa.int32(), pa.int64(), pa.int16()]))
    topics_type = data.draw(st.sampled_from([pa.string(), pa.large_string()]))

    places = partition(
        a_partitioner(counts, seed=seed),
        rows,
        topics=pa.array(topics, topics_type),
        partitions=data.draw(st.sampled_from([None, pa.array(own, own_type)])),
    )
    if not places:
        return
    given_own = data.draw(st.booleans())
    places = partition(
        a_partitioner(counts, seed=seed),
        rows,
        topics=pa.array(topics, topics_type),
        partitions=pa.array(own, own_type) if given_own else None,
    )
    for place, name, chosen, record in zip(places, topics, own, to_records(rows), strict=True):
        assert place[0] == name
        if given_own and chosen is not None:
            assert place[1] == chosen
        elif record.key is not None:
            assert place[1] == (murmur2(record.key) & 0x7FFFFFFF) % counts[name]


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
    with pytest.raises(ConfigError) as error:
        partition(
            a_partitioner({"events": 4}), rows, partitions=pa.array([0, None, number], pa.int32())
        )
    assert str(error.value) == (
        f"column 'partition' holds {number}, but topic 'events' has the partitions 0 to 3"
    )


def test_a_partition_that_no_int32_holds_is_refused() -> None:
    with pytest.raises(ConfigError, match="column 'partition' holds a number that is no partition"):
        partition(a_partitioner({"events": 4}), builders.rows(n=1), partitions=pa.array([2**40]))


def test_a_null_topic_is_refused() -> None:
    with pytest.raises(ConfigError, match="column 'topic' holds a null"):
        partition(a_partitioner({"a": 1}), builders.rows(n=2), topics=pa.array(["a", None]))


def test_an_unknown_topic_is_asked_for_once_and_its_error_passes() -> None:
    asked = []

    def find(name: str) -> Topic:
        asked.append(name)
        if name == "missing":
            raise UnknownTopicOrPartitionError(name)
        return topic(name, 3)

    partitioner = Partitioner(find, switch_bytes=1000, seed=0)
    for _ in range(3):
        partition(partitioner, builders.rows(n=4), topics=pa.array(["a", "b", "a", "b"]))
    assert sorted(asked) == ["a", "b"]
    with pytest.raises(UnknownTopicOrPartitionError):
        partition(partitioner, builders.rows(n=1), topics="missing")


def test_no_rows_ask_for_nothing() -> None:
    assert partition(a_partitioner({}), builders.rows(n=1).slice(1), topics="missing") == []
