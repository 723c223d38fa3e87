"""Reads of a cluster in a bucket: one moment, and what becomes of a read while others write."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from spark_kbatch import Cluster, TopicPartition
from spark_kbatch.bucket import staging
from spark_kbatch.bucket.store import BucketStore
from spark_kbatch.errors import (
    CorruptRecordError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.ledger import names
from spark_kbatch.ledger.entries import Replacement, Rewrite
from spark_kbatch.ledger.extents import FINAL_EPOCH, DataExtent, PartitionAppend
from spark_kbatch.model import OffsetRange, ReadRange
from spark_kbatch.store.source import Fetcher
from tests.support.bucket_jobs import commit_batch
from tests.support.bucket_objects import CountingObjects, a_bucket, opened_again, values
from tests.support.reference import Record, encode_batch

EVENTS = TopicPartition("events", 0)
ALL = ReadRange(0, 1 << 20)


@pytest.fixture
def objects() -> CountingObjects:
    return CountingObjects()


@pytest.fixture
def cluster(objects: CountingObjects) -> Iterator[Cluster]:
    with a_bucket(objects, "events") as cluster:
        yield cluster


def store_of(cluster: Cluster) -> BucketStore:
    store = cluster._store
    assert isinstance(store, BucketStore)
    return store


def send(cluster: Cluster, *sent: str) -> None:
    """Send records, each by an entry and an object of its own."""
    with cluster.producer(linger_ms=0) as producer:
        for value in sent:
            producer.send("events", value, partition=0).result()


Fetching = Callable[[Cluster, int], Fetcher]


@pytest.fixture
def a_fetcher() -> Iterator[Fetching]:
    """Return a function that returns a fetcher of the offsets below an end, open until the test ends."""
    with contextlib.ExitStack() as stack:

        def opened(cluster: Cluster, end: int) -> Fetcher:
            topic_id = cluster.topic("events").topic_id
            wanted = OffsetRange(EVENTS, 0, end)
            return stack.enter_context(store_of(cluster).fetcher(wanted, topic_id))

        yield opened


def fetched(fetcher: Fetcher, offset: int) -> list[int]:
    read, _ = fetcher.fetch(EVENTS, ALL._replace(offset=offset))
    return [header.base_offset for _, header in read.batches]


def test_views_are_as_of_one_moment_and_do_not_grow(cluster: Cluster) -> None:
    cluster.create_partitions("events", 2)
    other = opened_again(cluster)
    send(cluster, "a", "b")
    views = store_of(other).views([EVENTS, TopicPartition("events", 1)])
    send(cluster, "c")

    assert [view.offsets.high_watermark for view in views.values()] == [2, 0]
    assert views[EVENTS].split_points(0, 9, piece_bytes=1) == [1]
    assert store_of(other).views([EVENTS])[EVENTS].offsets.high_watermark == 3


def test_what_another_process_wrote_is_read_at_once(cluster: Cluster) -> None:
    other = opened_again(cluster)
    send(cluster, "a")
    assert [*values(other)] == ["a"]
    other.create_topic("more")
    assert cluster.topic_names() == ["events", "more"]


def test_a_read_goes_on_where_it_ended_without_asking_for_the_state(
    cluster: Cluster, objects: CountingObjects, a_fetcher: Fetching
) -> None:
    send(cluster, "a", "b", "c")
    fetcher = a_fetcher(cluster, 4)
    objects.taken()

    offsets, at = [], 0
    while at < 3:
        offsets += fetched(fetcher, at)
        at = offsets[-1] + 1

    assert offsets == [0, 1, 2]
    assert objects.taken() == {"get data": 3}


def test_a_range_is_read_with_two_looks_at_the_ledger(
    cluster: Cluster, objects: CountingObjects
) -> None:
    send(cluster, *"abcd")
    objects.taken()
    topic_id = store_of(cluster).catalog.topic("events", max_age_ms=60_000).topic_id

    read = cluster._reader.read_range(OffsetRange(EVENTS, 0, 4), ["value"], topic_id=topic_id)

    assert sum(batch.num_rows for batch in read) == 4
    assert objects.taken() == {"get data": 4, "get ledger": 2}


# While others write.


def test_records_deleted_under_a_reader_are_out_of_range_once_their_objects_are_gone(
    cluster: Cluster, objects: CountingObjects, a_fetcher: Fetching
) -> None:
    send(cluster, "a", "b", "c")
    fetcher = a_fetcher(cluster, 3)
    opened_again(cluster).delete_records({EVENTS: 2})
    objects.delete(data_in_order(objects)[:2])

    with pytest.raises(OffsetOutOfRangeError) as raised:
        fetched(fetcher, 0)

    assert (raised.value.log_start_offset, raised.value.log_end_offset) == (2, 3)
    assert fetched(fetcher, 2) == [2]


def test_an_object_that_is_missing_is_named(
    cluster: Cluster, objects: CountingObjects, a_fetcher: Fetching
) -> None:
    send(cluster, "a", "b")
    _, second = data_in_order(objects)
    objects.delete([second])

    fetcher = a_fetcher(cluster, 2)
    assert fetched(fetcher, 0) == [0]
    with pytest.raises(CorruptRecordError, match="the object is missing") as raised:
        fetched(fetcher, 1)

    assert second.endswith(raised.value.path)


def data_in_order(objects: CountingObjects) -> list[str]:
    return sorted(
        objects.names_of("data"), key=lambda name: names.start_entry(name.partition("/")[2])
    )


def test_a_range_that_was_merged_under_a_reader_is_read_from_the_segment(
    cluster: Cluster, objects: CountingObjects, a_fetcher: Fetching
) -> None:
    send(cluster, "a", "b", "c")
    fetcher = a_fetcher(cluster, 3)
    merge(opened_again(cluster), ["a", "b", "c"])
    objects.delete(objects.names_of("data"))

    assert fetched(fetcher, 0) == [0]
    assert [*values(cluster)] == ["a", "b", "c"]


def test_an_index_that_was_merged_under_a_reader_is_not_needed_any_more(
    cluster: Cluster,
    objects: CountingObjects,
    a_fetcher: Fetching,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staging, "INDEX_BYTES_MIN", 1)
    for value in "abc":
        commit_batch(str(cluster._store.address), [[value]])
    fetcher = a_fetcher(cluster, 3)
    merge(opened_again(cluster), ["a", "b", "c"])
    indexes = [name for name in objects.names_of("data") if "index-" in name]
    assert len(indexes) == 3
    objects.delete(indexes)

    assert fetched(fetcher, 0) == [0]


def merge(cluster: Cluster, merged: list[str]) -> None:
    """Put the records of the topic into one segment, and replace what is there by it."""
    ledger, topic_id = store_of(cluster).ledger, cluster.topic("events").topic_id
    data = encode_batch([Record(at, 1, None, one.encode()) for at, one in enumerate(merged)])
    job = ledger.begin_job()
    name = names.segment_name(topic_id, 0, job.start_entry, job.job_id)
    ledger.objects.put(name, data)
    count = len(merged)
    extent = DataExtent(name, 0, len(data), count, count, 1, 1)
    append = PartitionAppend(0, 0, count, count, FINAL_EPOCH, (extent,))
    content = Replacement({topic_id: (Rewrite(0, 0, count, (append,)),)})
    ledger.commit(lambda _state: content)


def test_a_reader_of_a_topic_that_was_deleted_is_told_so_by_its_last_fetch(
    cluster: Cluster, a_fetcher: Fetching
) -> None:
    send(cluster, "a", "b")
    fetcher = a_fetcher(cluster, 2)
    assert fetched(fetcher, 0) == [0]
    other = opened_again(cluster)
    other.delete_topic("events")
    with pytest.raises(UnknownTopicOrPartitionError, match="does not exist"):
        fetched(fetcher, 1)

    other.create_topic("events")
    with pytest.raises(UnknownTopicOrPartitionError, match="created again"):
        fetched(fetcher, 1)


def test_a_fetch_at_the_end_sees_what_has_come(cluster: Cluster, a_fetcher: Fetching) -> None:
    send(cluster, "a")
    fetcher = a_fetcher(cluster, 9)
    assert fetched(fetcher, 0) == [0]
    assert fetched(fetcher, 1) == []
    send(opened_again(cluster), "b")
    assert fetched(fetcher, 1) == [1]
    with pytest.raises(OffsetOutOfRangeError):
        fetched(fetcher, 3)


# Checkpoints.


def test_extents_are_found_in_checkpoints_and_in_entries_after_them(cluster: Cluster) -> None:
    sent = [f"{at}" for at in range(70)]  # a checkpoint is made by entry 64
    send(cluster, *sent)

    assert [*values(opened_again(cluster))] == sent
    assert [*values(cluster)] == sent
    cluster.delete_records({EVENTS: 68})
    assert [*values(opened_again(cluster))] == ["68", "69"]
