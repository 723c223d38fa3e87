"""How many requests of a store things cost; docs/bucket-operations.md makes dollars of them."""

from __future__ import annotations

import pickle
import tracemalloc

import pytest

import spark_kbatch
from spark_kbatch.bucket.ledger import CHECKPOINT_EVERY
from spark_kbatch.bucket.objects import MemoryObjects
from spark_kbatch.bucket.store import BucketStore, StreamPoll
from spark_kbatch.ledger import names
from spark_kbatch.ledger.entries import LedgerCommit, TopicCreation
from spark_kbatch.ledger.extents import Appends, DataExtent, PartitionAppend, pack_index
from spark_kbatch.opening.stores import open_stream, open_topics
from spark_kbatch.options.read import parse_read_options, parse_stream_read_options
from tests.support.bucket_jobs import begun, rows, staged
from tests.support.bucket_ledgers import SetTime, a_ledger, a_place, grow
from tests.support.bucket_objects import AllCounted, a_bucket, a_url
from tests.support.request_costs import (
    requests_of_maintenance,
    requests_of_reader,
    requests_of_writer,
)

COLD_OPEN_MAX = 24


def copied(objects: MemoryObjects) -> AllCounted:
    """Return the same objects, whose requests are counted."""
    found = AllCounted()
    for one in MemoryObjects.list(objects, ""):
        data = MemoryObjects.get(objects, one.name)
        assert data is not None
        found.put(one.name, data)
    return found


def cold_open(objects: AllCounted) -> dict[str, int]:
    """Open a cluster as a new process does, and return what it asked for."""
    url = a_url(objects)
    objects.taken()
    BucketStore(url)
    return objects.taken()


@pytest.mark.parametrize("tasks", [1, 4, 20])
def test_a_micro_batch_costs_an_object_for_each_task_and_one_entry(tasks: int) -> None:
    objects = AllCounted()
    url = a_bucket(objects, "events")._store.address
    objects.taken()

    job = begun(url, is_micro_batch=True)
    messages = staged(job, *([f"{task}"] for task in range(tasks)), query_id="q")
    begun(url, is_micro_batch=True).commit_micro_batch(messages, 0)

    asked = objects.taken()
    assert asked["put data"] <= tasks + 1
    assert asked["create ledger"] == 1
    assert {name for name in asked if name.startswith(("put", "create"))} <= {
        "put data", "create ledger", "put hint",
    }  # fmt: skip


def test_a_micro_batch_of_many_partitions_costs_one_index_more() -> None:
    objects = AllCounted()
    url = a_bucket(objects, "events", partitions=600)._store.address
    objects.taken()

    job = begun(url, is_micro_batch=True)
    tasks = [[f"{number}" for number in range(600)]] * 3
    messages = [
        job.stage(rows(values, partition=[*range(len(values))]), query_id="q") for values in tasks
    ]
    begun(url, is_micro_batch=True).commit_micro_batch(messages, 0)

    asked = objects.taken()
    assert asked["put data"] == 3 + 1
    assert asked["create ledger"] == 1


def test_a_poll_of_an_idle_stream_costs_one_request() -> None:
    objects = AllCounted()
    cluster = a_bucket(objects, "events")
    with cluster.producer() as producer:
        producer.send("events", "a").result()
    given = {"path": cluster._store.address, "subscribe": "events", "startingOffsets": "earliest"}
    planner = open_stream(parse_stream_read_options({**given, "poll.ms": "0"}))
    end = planner.latest(planner.initial())
    objects.taken()

    for _ in range(10):
        end = planner.latest(end)
    assert objects.taken() == {"get ledger": 10}

    with cluster.producer() as producer:
        producer.send("events", "b").result()
    objects.taken()
    assert planner.latest(end) != end
    assert objects.taken() == {"get ledger": 1 + 2}  # the entry, and those after it


def test_a_stream_without_news_asks_seldom() -> None:
    objects, time = AllCounted(), SetTime()
    store = a_bucket(objects, "events")._store
    assert isinstance(store, BucketStore)
    poll = StreamPoll(store, 500, lambda: int(time.now_ms))
    objects.taken()

    def asked_in(seconds: int) -> int:
        """Ask for the source a hundred times a second, and return how often the store was asked."""
        objects.taken()
        for _ in range(100 * seconds):
            poll.source()
            time.now_ms += 10
        return sum(objects.taken().values())

    assert asked_in(2) <= 8
    assert asked_in(60) <= 60
    assert asked_in(60) <= 13

    with spark_kbatch.open(store.address) as other:
        other.create_topic("more")
    time.now_ms += 5000
    assert poll.source().topic_names() == ["events", "more"]
    assert asked_in(1) <= 5


@pytest.mark.parametrize("since", [0, 1, CHECKPOINT_EVERY - 1])
def test_a_cold_open_costs_few_requests_wherever_the_last_checkpoint_is(since: int) -> None:
    objects = a_place()
    grow(a_ledger(objects, every=CHECKPOINT_EVERY), 5 * CHECKPOINT_EVERY + since - 1)
    asked = cold_open(copied(objects))
    assert asked["get ledger"] == since + 2  # that of the checkpoint, and the one that is not there
    assert sum(asked.values()) <= COLD_OPEN_MAX


@pytest.mark.parametrize("count", [10, 10_000])
def test_a_cold_open_costs_few_requests_however_long_no_checkpoint_was_made(count: int) -> None:
    """Processes that make none, as all of them ended too early, leave it to the next that commits."""
    objects = a_place()
    grow(a_ledger(objects, every=10**9), count)
    grow(a_ledger(objects, every=CHECKPOINT_EVERY), 1)

    assert sum(cold_open(copied(objects)).values()) <= COLD_OPEN_MAX


def test_a_cold_open_costs_few_requests_with_many_topics_and_partitions() -> None:
    objects = a_place(SetTime())
    ledger = a_ledger(objects, every=10**9)
    for number in range(1000):
        topic = TopicCreation(f"{number:022d}", f"topic-{number}", (0,) * 100)
        ledger.commit(lambda _, new=topic: new)
    grow(a_ledger(objects, every=CHECKPOINT_EVERY), 11)

    counted = copied(objects)
    assert sum(cold_open(counted).values()) <= COLD_OPEN_MAX
    assert sum(cluster_topic.partitions for cluster_topic in _topics(counted)) == 100_002


def _topics(objects: AllCounted) -> list[object]:
    with BucketStore(a_url(objects))._ledger.state() as state:
        return [*state.topics.values()]


def test_a_day_of_streams_costs_what_it_is_meant_to() -> None:
    """Of 8 tasks every 10 s; the page has a table."""
    writer = requests_of_writer(8, 10)
    assert 9 <= writer.puts <= 9.5
    assert writer.gets <= 5
    assert writer.dollars_a_day(10) <= 0.43
    assert requests_of_reader(1, 600).dollars_a_day(600) <= 0.05
    assert requests_of_maintenance(8, 10).dollars_a_day(10) <= 0.09


# How much memory.


@pytest.mark.parametrize("with_index", [False, True], ids=["in entries", "in indexes"])
@pytest.mark.parametrize("commits", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_plan_over_100_000_extents_takes_64_mib_at_most(
    commits: int, *, with_index: bool
) -> None:
    objects = a_place(SetTime())
    ledger = a_ledger(objects, every=CHECKPOINT_EVERY)
    topic = TopicCreation("many-" + "0" * 17, "many", (0,) * 100)
    ledger.commit(lambda _: topic)
    for number in range(commits):
        name = names.data_name(ledger.state.number, *(f"{kind}{number:031d}" for kind in "ab"))
        appends: Appends = {
            topic.topic_id: [
                PartitionAppend(partition, 10 * number, 10, 10, 0, (DataExtent(name, 1000 * partition, 1000, 10, 10, 1, 1),))
                for partition in range(100)
            ]
        }  # fmt: skip
        if with_index:
            index = name.replace("/b", "/index-b")
            data, appends = pack_index(index, appends)
            ledger.objects.put(index, data)
        ledger.commit(lambda _, new=appends: LedgerCommit(new))
    options = parse_read_options({"path": a_url(objects), "subscribe": "many"})

    tracemalloc.start()
    try:
        tasks = open_topics(options).plan(options)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert sum(map(len, tasks)) >= 100
    assert peak <= (64 << 20) * commits / 1000 + (4 << 20)
    assert len(pickle.dumps(tasks)) < 1 << 20


def test_a_loop_over_new_records_asks_as_seldom_as_a_stream() -> None:
    objects = AllCounted()
    cluster = a_bucket(objects, "events")
    records = cluster.follow("events", timeout=3)
    objects.taken()
    assert list(records) == []
    assert sum(objects.taken().values()) <= 3 + 3 / 0.5 + 1  # after news, and then each half second
