"""Maintenance of a bucket: what is merged, what retention drops, what is deleted, and what never is."""

from __future__ import annotations

import itertools
import random
import re
import threading
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from spark_kbatch import Cluster, TopicPartition
from spark_kbatch.bucket import maintenance as maintaining
from spark_kbatch.bucket import merging, reading, shared_ledger
from spark_kbatch.bucket.garbage import GarbageCollector
from spark_kbatch.bucket.maintenance import Maintenance, describe
from spark_kbatch.bucket.merging import RUN_BYTES, SMALL_BYTES, MergeRun
from spark_kbatch.bucket.placement import PlacedExtent
from spark_kbatch.bucket.store import BucketStore
from spark_kbatch.clock import now_ms
from spark_kbatch.errors import (
    KBatchError,
    RefusedEntryError,
    UnsupportedLedgerError,
)
from spark_kbatch.ledger import names
from spark_kbatch.ledger.entries import Entry, NewFormat, Replacement, Rewrite, encode
from spark_kbatch.ledger.extents import FINAL_EPOCH, DataExtent, PartitionAppend
from tests.support import draws
from tests.support.bucket_jobs import commit_batch
from tests.support.bucket_objects import AgingObjects, Died, a_bucket, opened_again, values
from tests.support.long_use import DAY_MS, PARTITIONS, RECORDS, Day, LongUse

EVENTS = TopicPartition("events", 0)


@pytest.fixture
def objects() -> AgingObjects:
    return AgingObjects()


@pytest.fixture
def cluster(objects: AgingObjects) -> Iterator[Cluster]:
    with a_bucket(objects, "events") as cluster:
        yield cluster


def send(cluster: Cluster, *sent: str, topic: str = "events", time_ms: int | None = None) -> None:
    """Send records, each by an entry and an object of its own."""
    with cluster.producer(linger_ms=0, maintain_ms=0) as producer:
        for value in sent:
            producer.send(topic, value, partition=0, timestamp=time_ms).result()


def id_of(objects: AgingObjects) -> str:
    return next(one.name for one in objects.list("") if "/" in one.name).partition("/")[0]


def maintenance(cluster: Cluster) -> Maintenance:
    return Maintenance(cluster._store.address)


def numbered(count: int, first: int = 0) -> list[str]:
    return [f"{at}" for at in range(first, first + count)]


# What is merged.


def placed(first: int, *, span: int = 10, size: int = 100, epoch: int = 0) -> PlacedExtent:
    extent = DataExtent(f"data/{first}", 0, size, span, span, 1, 2)
    return PlacedExtent(extent, first, epoch, first, first + span)


def found(*extents: PlacedExtent, run_extents: int = 3) -> list[tuple[int, int]]:
    runs: Iterator[MergeRun] = merging.small_runs("t", 0, iter(extents), 1, run_extents=run_extents)
    return [(run.start_offset, run.next_offset) for run in runs]


def test_small_extents_that_follow_each_other_are_a_run() -> None:
    assert found(placed(0), placed(10), placed(20)) == [(0, 30)]
    assert found(placed(0), placed(10)) == []


def test_a_large_extent_ends_a_run_and_stays() -> None:
    large = placed(30, size=SMALL_BYTES)
    after = [placed(40), placed(50), placed(60)]
    assert found(placed(0), placed(10), placed(20), large, *after) == [(0, 30), (40, 70)]


def test_few_extents_with_many_bytes_are_a_run() -> None:
    count = RUN_BYTES // (SMALL_BYTES - 1) + 1
    extents = [placed(10 * at, size=SMALL_BYTES - 1) for at in range(count)]
    assert found(*extents, run_extents=1000) == [(0, 10 * count)]


def test_segments_are_merged_with_segments_only() -> None:
    segments = [placed(10 * at, epoch=FINAL_EPOCH) for at in range(2)]
    assert found(*segments, placed(20), placed(30)) == []
    assert found(*segments, placed(20, epoch=FINAL_EPOCH)) == [(0, 30)]


def test_an_extent_that_is_read_in_part_is_not_merged() -> None:
    cut = placed(0)._replace(start_offset=4)
    assert found(cut, placed(10), placed(20)) == []
    assert found(cut, placed(10), placed(20), placed(30)) == [(10, 40)]


def test_merged_records_are_the_same_by_fewer_requests(
    cluster: Cluster, objects: AgingObjects
) -> None:
    send(cluster, *numbered(30))
    objects.taken()
    assert [*values(opened_again(cluster))] == numbered(30)
    before = objects.taken()["get data"]

    done = maintenance(cluster).run(run_extents=10)

    assert done.merged[:2] == (1, 30)
    objects.taken()
    assert [*values(opened_again(cluster))] == numbered(30)
    after = objects.taken()
    assert (before, after["get segments"], after.get("get data", 0)) == (30, 1, 0)
    send(cluster, "30")
    assert [*values(cluster)] == numbered(31)


def test_reads_by_offset_and_time_find_the_same_in_a_segment(cluster: Cluster) -> None:
    for at in range(12):
        send(cluster, f"{at}", time_ms=1000 * (at + 1))

    def looked_up() -> list[object]:
        other = opened_again(cluster)
        view = other._store.views([EVENTS])[EVENTS]
        times = [view.offset_for_timestamp(ms, end_offset=12) for ms in (0, 5000, 5001, 12_000)]
        return [times, [*values(other)]]

    before = looked_up()
    maintenance(cluster).run(run_extents=5)

    assert looked_up() == before


def test_segments_are_merged_again_once_there_are_enough(
    cluster: Cluster, objects: AgingObjects
) -> None:
    for first in range(0, 12, 4):
        send(cluster, *numbered(4, first))
        assert maintenance(cluster).run(run_extents=3).merged.segments == 1
    assert maintenance(cluster).run(run_extents=3).merged[:2] == (1, 3)

    assert [*values(opened_again(cluster))] == numbered(12)
    assert len(objects.names_of("segments")) == 4


def test_a_damaged_batch_is_not_merged(cluster: Cluster, objects: AgingObjects) -> None:
    send(cluster, *numbered(3))
    name = next(one.name for one in objects.list("") if "/data/" in one.name)
    data = bytearray(objects.get(name) or b"")
    data[-1] ^= 1
    objects.put(name, bytes(data))

    (damaged,) = maintenance(cluster).run(run_extents=2).damaged
    assert re.search(r"data/.*CRC-32C", damaged)
    assert objects.names_of("segments") == []


def test_a_segment_that_the_store_damages_replaces_nothing(
    cluster: Cluster, objects: AgingObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(cluster, *numbered(3))
    real = type(objects).put

    def put(self: AgingObjects, name: str, data: bytes) -> None:
        real(self, name, data[:-1] + b"?" if "/segments/" in name else data)

    monkeypatch.setattr(AgingObjects, "put", put)

    (damaged,) = maintenance(cluster).run(run_extents=2).damaged
    assert "segment" in damaged
    assert [*values(opened_again(cluster))] == numbered(3)


def test_a_topic_that_is_deleted_meanwhile_is_left_out(cluster: Cluster) -> None:
    send(cluster, *numbered(3))
    other = maintenance(cluster)
    runs = other.runs(run_extents=2)
    cluster.delete_topic("events")

    assert other.merge(runs).segments == 0


def test_two_that_merge_the_same_do_no_harm(cluster: Cluster) -> None:
    send(cluster, *numbered(6))
    one, two = maintenance(cluster), maintenance(cluster)
    runs = one.runs(run_extents=2), two.runs(run_extents=2)

    assert one.merge(runs[0]).segments == two.merge(runs[1]).segments == 1
    assert [*values(opened_again(cluster))] == numbered(6)


def test_a_topic_that_is_moved_in_again_under_its_id_keeps_its_own_records(
    objects: AgingObjects,
) -> None:
    with a_bucket(objects, "others", "events") as cluster:
        send(cluster, *numbered(3), topic="others")
        send(cluster, *numbered(3))
        merger, events = maintenance(cluster), cluster.topic("events").topic_id
        runs = sorted(merger.runs(run_extents=2), key=lambda run: run.topic_id == events)

        cluster.delete_topic("events")
        store = cluster._store
        assert isinstance(store, BucketStore)
        store.catalog.create_moved_topic("events", events, [0], {})
        send(cluster, *numbered(5, 100))

        assert merger.merge(runs).segments == 1
        assert [*values(opened_again(cluster))] == numbered(5, 100)


def test_a_damaged_batch_stops_neither_its_neighbours_nor_the_collection(
    objects: AgingObjects,
) -> None:
    with a_bucket(objects, "events", partitions=3) as cluster:
        with cluster.producer(linger_ms=0, maintain_ms=0) as producer:
            for value in numbered(10):
                rows = {"value": [value * 100] * 3, "partition": [0, 1, 2]}
                producer.send_arrow("events", rows).result()
        name = objects.names_of("data")[5]
        objects.put(name, objects.content(name)[:-1] + b"?")

        for _ in range(2):
            assert len(maintenance(cluster).run(run_extents=5).damaged) == 1
            assert len(objects.names_of("segments")) == 2
        assert [*values(opened_again(cluster), partitions=[0])] == [one * 100 for one in numbered(10)]  # fmt: skip
        objects.clock_ms += 9 * DAY_MS
        assert len(maintenance(cluster).run(run_extents=5).damaged) == 1
        assert maintenance(cluster)._ledger.follow().gc_boundary > 0


def test_as_many_ranges_as_one_entry_holds_are_committed_by_it() -> None:
    rng, topic_id = random.Random(1), "aB3dEfGh1jKlMnOpQrStUv"

    def replaced(partition: int) -> Rewrite:
        name = names.segment_name(topic_id, partition, 50_000, names.random_id(rng))
        extent = DataExtent(name, 0, 60_000, 100, 100, 1_700_000_000_000, 1_700_000_000_999)
        append = PartitionAppend(partition, 1_200_000, 100, 100, FINAL_EPOCH, (extent,))
        return Rewrite(partition, 1_200_000, 1_200_100, (append,))

    groups = [*merging._entries([replaced(partition) for partition in range(2000)])]

    assert sum(map(len, groups)) == 2000
    for ranges in groups:
        content = Replacement({topic_id: tuple(ranges)})
        encode(Entry(50_001, names.random_id(rng), names.random_id(rng), 1, content, "maintain"))


def test_a_version_that_may_not_write_deletes_nothing(
    cluster: Cluster, objects: AgingObjects
) -> None:
    send(cluster, "a")
    store = cluster._store
    assert isinstance(store, BucketStore)
    older = maintenance(cluster)
    store.ledger.commit(lambda _: NewFormat(2))

    with pytest.raises(UnsupportedLedgerError, match="writers need format 2"):
        older.collect()
    assert older.collect(dry_run=True).objects == 0


def test_a_reader_of_many_pieces_warns_once_and_names_the_command(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reading, "_PIECES_MAX", 5)
    send(cluster, *numbered(5))
    assert [*values(cluster)] == numbered(5)
    assert not caplog.messages
    send(cluster, "5")
    for _ in range(2):
        assert [*values(cluster)] == numbered(6)

    (message,) = caplog.messages
    assert "topic 'events' is in 6 pieces" in message
    assert f"`kbatch gc {cluster._store.address}`" in message


# After commits.


def wait_for_merges() -> None:
    for thread in threading.enumerate():
        if thread.name == "kbatch-maintain":
            thread.join(60)


def produce(cluster: Cluster, count: int, **options: int) -> None:
    with cluster.producer(linger_ms=0, **options) as producer:
        for value in numbered(count):
            producer.send("events", value, partition=0).result()
    wait_for_merges()


def test_a_producer_merges_once_in_a_hundred_commits(
    cluster: Cluster, objects: AgingObjects
) -> None:
    produce(cluster, 99)
    assert objects.names_of("segments") == []
    produce(cluster, 105, maintain_ms=60_000)

    assert len(objects.names_of("segments")) in (1, 2)
    assert [*values(opened_again(cluster))] == [*numbered(99), *numbered(105)]


def test_many_producers_of_one_commit_each_merge_in_turns(
    cluster: Cluster, objects: AgingObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = itertools.count()
    own_chance = SimpleNamespace(Random=lambda: random.Random(next(seeds)))
    monkeypatch.setattr(shared_ledger, "random", own_chance)
    for _ in range(400):
        with opened_again(cluster) as own:
            produce(own, 1, maintain_ms=60_000)

    assert len(objects.names_of("segments")) >= 2
    found = describe(opened_again(cluster)._store.ledger)
    assert found.small_extents < 200
    assert [*values(opened_again(cluster))] == [*numbered(1)] * 400


def test_a_producer_without_time_to_maintain_merges_nothing(
    cluster: Cluster, objects: AgingObjects
) -> None:
    produce(cluster, 105, maintain_ms=0)

    assert objects.names_of("segments") == []


def test_a_job_merges_after_its_commit_if_it_has_time_for_it(
    cluster: Cluster, objects: AgingObjects
) -> None:
    send(cluster, *numbered(110))
    url = str(cluster._store.address)

    commit_batch(url, [["a"]])
    assert objects.names_of("segments") == []
    commit_batch(url, [["b"]], maintain_ms=60_000)

    assert len(objects.names_of("segments")) == 1
    assert [*values(opened_again(cluster))] == [*numbered(110), "a", "b"]


def test_a_job_whose_merge_fails_is_committed(cluster: Cluster, objects: AgingObjects) -> None:
    send(cluster, *numbered(100))
    name = objects.names_of("data")[0]
    objects.put(name, b"?" * len(objects.content(name)))

    commit_batch(str(cluster._store.address), [["a"]], maintain_ms=60_000)

    assert objects.names_of("segments") == []
    assert [*values(opened_again(cluster), partitions=[0], start=100)] == ["a"]


def test_only_what_fits_into_the_time_is_merged() -> None:
    def run(partition: int, first: int, count: int) -> MergeRun:
        extents = (placed(10 * at, size=100) for at in range(first, first + count))
        return MergeRun("t", partition, tuple(extents), 1)

    def extents_within(runs: list[MergeRun], left_ms: float) -> list[int]:
        return [len(one.extents) for one in maintaining.within(runs, left_ms)]

    in_same_objects = [run(0, 0, 400), run(1, 0, 400)]
    for left_ms, found in ((10_000, [400] * 2), (2100, [200] * 2), (600, [50] * 2), (100, []), (-1, [])):  # fmt: skip
        assert extents_within(in_same_objects, left_ms) == found
    in_others = [run(number, 1000 * number, 100) for number in range(5)]
    for left_ms, found in ((10_000, [100] * 5), (2100, [100] * 2), (600, [50]), (100, []), (-1, [])):  # fmt: skip
        assert extents_within(in_others, left_ms) == found


def test_a_job_reads_each_object_that_it_merges_once_for_all_partitions(
    objects: AgingObjects,
) -> None:
    with a_bucket(objects, "events", partitions=3) as cluster:
        rows = {"value": ["a", "b", "c"], "partition": [0, 1, 2]}
        with cluster.producer(linger_ms=0, maintain_ms=0) as producer:
            for _ in range(100):
                producer.send_arrow("events", rows).result()
        objects.taken()

        commit_batch(str(cluster._store.address), [["a"]], maintain_ms=60_000)

        assert len(objects.names_of("segments")) == 3
        assert objects.taken()["get data"] <= 101
        merged = opened_again(cluster)
        assert Counter(values(merged, partitions=range(3))) == {"a": 101, "b": 100, "c": 100}


# Erasure.


def test_an_erased_topics_bytes_go_and_its_neighbours_stay(
    cluster: Cluster, objects: AgingObjects
) -> None:
    cluster.create_topic("mine")
    with cluster.producer(linger_ms=1000) as producer:  # all in one object
        for at in range(4):
            producer.send("events", f"{at}", partition=0)
            producer.send("mine", f"secret {at}")
    assert len(objects.names_of("data")) == 1
    send(cluster, *numbered(70, 4))  # with a checkpoint

    maintenance(cluster).erase("mine")

    assert cluster.topic_names() == ["events"]
    assert [*values(opened_again(cluster))] == numbered(74)
    objects.clock_ms += 8 * DAY_MS
    maintenance(cluster).run()
    assert not any(b"secret" in objects.content(one.name) for one in objects.list(""))
    assert [*values(opened_again(cluster))] == numbered(74)


def is_there(objects: AgingObjects, secret: bytes) -> bool:
    return any(secret in objects.content(one.name) for one in objects.list(""))


@pytest.mark.parametrize("moved", ["merged", "deleted"])
def test_bytes_of_an_erased_topic_go_that_are_not_read_any_more(
    cluster: Cluster, objects: AgingObjects, moved: str
) -> None:
    cluster.create_topic("mine")
    for at in range(4):
        with cluster.producer(linger_ms=1000) as producer:  # both in one object
            producer.send("events", f"{at}", partition=0)
            producer.send("mine", f"secret {at}")
    upkeep = maintenance(cluster)
    if moved == "merged":
        assert (
            upkeep.merge(upkeep.runs([cluster.topic("mine").topic_id], run_extents=2)).extents == 4
        )
    else:
        cluster.delete_records({("mine", 0): 4})

    upkeep.erase("mine")
    objects.clock_ms += 8 * DAY_MS
    maintenance(cluster).run()

    assert not is_there(objects, b"secret")
    assert [*values(opened_again(cluster))] == numbered(4)


def test_of_topics_that_share_nothing_with_an_erased_one_nothing_is_rewritten(
    cluster: Cluster,
) -> None:
    cluster.create_topic("mine")
    send(cluster, *numbered(4))
    send(cluster, "secret", topic="mine")

    assert maintenance(cluster).erase("mine") == maintaining.Merged()


def test_an_erasure_rewrites_large_neighbours_in_pieces(
    cluster: Cluster, objects: AgingObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "SEGMENT_BYTES", 200)
    cluster.create_topic("mine")
    for at in range(6):
        with cluster.producer(linger_ms=1000) as producer:  # both in one object
            producer.send("events", f"{at}", partition=0)
            producer.send("mine", "secret")

    merged = maintenance(cluster).erase("mine")

    assert (merged.extents, merged.segments) == (6, 3)
    assert [*values(opened_again(cluster))] == numbered(6)


def test_an_erasure_that_was_stopped_is_done_again(
    cluster: Cluster, objects: AgingObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic("mine")
    with cluster.producer(linger_ms=1000) as producer:  # all in one object
        producer.send("events", "0", partition=0)
        producer.send("mine", "secret")

    with monkeypatch.context() as patch:
        patch.setattr(merging.Merger, "merge", die)
        with pytest.raises(Died):
            maintenance(cluster).erase("mine")
    assert sorted(cluster.topic_names()) == ["events", "mine"]
    send(cluster, *numbered(70, 1))  # with a checkpoint
    maintenance(cluster).erase("mine")

    objects.clock_ms += 8 * DAY_MS
    maintenance(cluster).run()
    assert not any(b"secret" in objects.content(one.name) for one in objects.list(""))
    assert [*values(opened_again(cluster))] == numbered(71)


def die(*_: object) -> NoReturn:
    raise Died


def test_an_erasure_that_cannot_rewrite_its_neighbours_deletes_nothing(
    cluster: Cluster, objects: AgingObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic("mine")
    with cluster.producer(linger_ms=1000) as producer:
        producer.send("events", "0", partition=0)
        producer.send("mine", "secret")
    monkeypatch.setattr(Maintenance, "merge", lambda *_, **__: maintaining.Merged())

    with pytest.raises(RefusedEntryError, match="'mine' is not erased"):
        maintenance(cluster).erase("mine")
    assert sorted(cluster.topic_names()) == ["events", "mine"]


def test_an_erasure_that_deletes_whole_objects_is_found(
    cluster: Cluster, objects: AgingObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: what a topic's objects have of its neighbours is not rewritten before they go."""

    def erase(self: Maintenance, topic: str) -> None:
        topic_id = self._ledger.follow().topic(topic).topic_id
        self._ledger.objects.delete(self._merger.objects_of(topic_id))
        self._delete(topic_id, self._ledger.state.number)

    monkeypatch.setattr(Maintenance, "erase", erase)
    with pytest.raises((AssertionError, KBatchError)):
        test_an_erased_topics_bytes_go_and_its_neighbours_stay(cluster, objects)


# Retention.


def test_retention_by_time_drops_extents_all_of_whose_records_are_old(
    cluster: Cluster, objects: AgingObjects
) -> None:
    objects.clock_ms = now_ms()
    send(cluster, "a", "b", time_ms=1_700_000_000_000)
    send(cluster, "c", "d")  # as of now
    cluster.alter_topic("events", {"retention.ms": DAY_MS})

    assert maintenance(cluster).run(dry_run=True).starts == {EVENTS: 2}
    assert [*values(opened_again(cluster))] == ["a", "b", "c", "d"]
    assert maintenance(cluster).run().starts == {EVENTS: 2}
    assert [*values(opened_again(cluster))] == ["c", "d"]
    assert maintenance(cluster).run().starts == {}


def test_retention_by_size_keeps_as_many_bytes(cluster: Cluster, objects: AgingObjects) -> None:
    send(cluster, *numbered(5))
    size = sum(
        len(objects.get(one.name) or b"") for one in objects.list("") if "/data/" in one.name
    )
    cluster.alter_topic("events", {"retention.bytes": size // 5 * 2})

    assert maintenance(cluster).run().starts == {EVENTS: 3}
    assert [*values(opened_again(cluster))] == ["3", "4"]


@pytest.mark.parametrize("change", ["settings", "topic"])
def test_retention_goes_by_settings_that_still_count(
    cluster: Cluster, objects: AgingObjects, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    objects.clock_ms = now_ms()
    send(cluster, "a", "b", time_ms=1_700_000_000_000)
    cluster.alter_topic("events", {"retention.ms": DAY_MS})
    upkeep, before = maintenance(cluster), cluster.topic("events")
    retained_from = maintaining.retained_from

    def changed_meanwhile(*given: Any) -> int:
        if change == "settings":
            cluster.alter_topic("events", {"retention.ms": -1})
        else:
            cluster.delete_topic("events")
            store = BucketStore(cluster._store.address)
            config = {"retention.ms": str(DAY_MS)}
            store.catalog.create_moved_topic("events", before.topic_id, (0, 0, 0), config)
            send(opened_again(cluster), "c", "d")
        return retained_from(*given)

    with monkeypatch.context() as patch:
        patch.setattr(maintaining, "retained_from", changed_meanwhile)
        upkeep.retain()

    expected = ["a", "b"] if change == "settings" else ["c", "d"]
    assert [*values(opened_again(cluster))] == expected


def test_without_retention_nothing_is_dropped(cluster: Cluster) -> None:
    send(cluster, "a", time_ms=1)

    assert maintenance(cluster).run().starts == {}


# Garbage.


def sent_long_ago(cluster: Cluster, objects: AgingObjects, count: int) -> None:
    """Write records, merge them, and let eight days pass, in which something else happens."""
    send(cluster, *numbered(count))
    maintenance(cluster).run(run_extents=10)
    objects.clock_ms += 8 * DAY_MS


def test_what_was_merged_is_deleted_once_the_horizon_has_passed_it(
    cluster: Cluster, objects: AgingObjects
) -> None:
    sent_long_ago(cluster, objects, 140)
    assert len(objects.names_of("data")) == 140

    would_be = maintenance(cluster).run(dry_run=True)
    assert len(objects.names_of("data")) == 140
    done = maintenance(cluster).run()

    assert would_be.collected == done.collected
    assert done.collected.objects == 140
    assert objects.names_of("data") == []
    assert [*values(opened_again(cluster))] == numbered(140)


def test_what_was_merged_stays_for_readers_that_planned_before(
    cluster: Cluster, objects: AgingObjects
) -> None:
    send(cluster, *numbered(140))
    objects.clock_ms += 8 * DAY_MS
    maintenance(cluster).run(run_extents=10)
    objects.clock_ms += DAY_MS

    maintenance(cluster).run(run_extents=10)

    assert len(objects.names_of("data")) == 140


def test_entries_become_tombstones_and_old_checkpoints_go(
    cluster: Cluster, objects: AgingObjects
) -> None:
    for first in range(0, 400, 100):
        send(cluster, *numbered(100, first))
        objects.clock_ms += 8 * DAY_MS
        done = maintenance(cluster).run(run_extents=50)
    assert done.collected.tombstones > 0
    entries = [len(objects.get(name) or b"") for name in objects.names_of("ledger")]
    assert max(entries[: done.collected.tombstones]) < 350 < max(entries)

    assert maintenance(cluster).run(run_extents=50).collected.tombstones == 0
    assert [*values(opened_again(cluster))] == numbered(400)


def test_what_a_failed_job_left_is_deleted_and_what_is_staged_now_is_not(
    cluster: Cluster, objects: AgingObjects
) -> None:
    cluster_id = id_of(objects)
    old = f"{cluster_id}/data/ab/{2:020d}-{'ab' * 16}/{'cd' * 16}"
    new = f"{cluster_id}/data/ab/{500:020d}-{'ab' * 16}/{'cd' * 16}"
    objects.put(old, b"left")
    objects.put(new, b"staged")
    send(cluster, *numbered(70))  # with a checkpoint
    objects.clock_ms += 8 * DAY_MS

    maintenance(cluster).run()

    assert objects.get(old) is None
    assert objects.get(new) == b"staged"
    assert [*values(opened_again(cluster))] == numbered(70)


def test_an_object_that_is_none_of_ours_is_left_alone(
    cluster: Cluster, objects: AgingObjects
) -> None:
    cluster_id = id_of(objects)
    objects.put(f"{cluster_id}/data/notes.txt", b"mine")
    send(cluster, *numbered(70))
    objects.clock_ms += 8 * DAY_MS

    maintenance(cluster).run()

    assert objects.get(f"{cluster_id}/data/notes.txt") == b"mine"


def test_a_quiet_cluster_gets_no_more_entries(cluster: Cluster, objects: AgingObjects) -> None:
    send(cluster, *numbered(70))
    for _ in range(4):
        objects.clock_ms += 30 * DAY_MS
        maintenance(cluster).run()
    count = len(objects.names_of("ledger"))
    objects.clock_ms += 300 * DAY_MS
    maintenance(cluster).run()

    assert len(objects.names_of("ledger")) == count


@pytest.mark.parametrize("count", [3, 70])
def test_what_was_deleted_last_goes_though_nothing_else_happens(
    cluster: Cluster, objects: AgingObjects, count: int
) -> None:
    """Before the first checkpoint, or between two of them."""
    send(cluster, *numbered(count))
    objects.clock_ms += 8 * DAY_MS
    maintenance(cluster).run()
    cluster.create_topic("other")
    cluster.delete_topic("events")
    objects.clock_ms += 8 * DAY_MS

    would_be = maintenance(cluster).run(dry_run=True)
    done = maintenance(cluster).run()

    assert would_be.collected == done.collected
    assert done.collected.objects == count
    assert objects.names_of("data") == []
    assert opened_again(cluster).topic_names() == ["other"]


def test_a_process_collects_once_for_a_horizon(cluster: Cluster, objects: AgingObjects) -> None:
    send(cluster, *numbered(3))
    objects.clock_ms += 8 * DAY_MS
    upkeep = maintenance(cluster)
    upkeep.run()
    objects.taken()
    upkeep.run()

    assert "list data" not in objects.taken()


def test_of_a_cluster_in_use_whoever_moved_the_horizon_collects(
    cluster: Cluster, objects: AgingObjects
) -> None:
    send(cluster, *numbered(40))
    objects.clock_ms += 8 * DAY_MS
    send(cluster, *numbered(20, 40))
    assert maintenance(cluster).run().collected.horizon > 40
    objects.taken()

    maintenance(cluster).run()

    asked = objects.taken()
    assert "list data" not in asked
    assert asked["get ledger"] < 30  # of more than 60


def test_what_a_collection_left_that_was_stopped_goes_with_the_next_horizon(
    cluster: Cluster, objects: AgingObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent_long_ago(cluster, objects, 130)
    send(
        opened_again(cluster), *numbered(5)
    )  # no checkpoint is after them, until the last ones come
    upkeep = maintenance(cluster)
    upkeep.merge(upkeep.runs(run_extents=5))
    objects.clock_ms += 4 * DAY_MS
    send(opened_again(cluster), *numbered(10))
    maintenance(cluster).run()
    objects.clock_ms += 4 * DAY_MS
    monkeypatch.setattr(GarbageCollector, "_references", die)
    with pytest.raises(Died):
        maintenance(cluster).run()
    monkeypatch.undo()
    send(opened_again(cluster), "more")
    assert maintenance(cluster).run().collected.objects == 0
    objects.clock_ms += 8 * DAY_MS

    done = maintenance(cluster).run()

    assert done.collected.objects == 5
    found = [*values(opened_again(cluster))]
    assert found == [*numbered(130), *numbered(5), *numbered(10), "more"]


def test_old_agreements_are_deleted(cluster: Cluster, objects: AgingObjects) -> None:
    cluster_id = id_of(objects)
    objects.put(f"{cluster_id}/agreements/19675/action", b"old")
    objects.clock_ms += 8 * DAY_MS
    objects.put(f"{cluster_id}/agreements/19683/action", b"young")
    objects.clock_ms += 2 * DAY_MS

    assert maintenance(cluster).run().collected.agreements == 1
    assert [one.rpartition("/")[0][-5:] for one in objects.names_of("agreements")] == ["19683"]


# Deaths.


@pytest.mark.parametrize(
    "step", [13, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "each"]
)
def test_maintenance_may_die_at_any_request(
    cluster: Cluster, objects: AgingObjects, step: int
) -> None:
    cluster.create_topic("short", config={"retention.bytes": 100})
    for first in range(0, 100, 50):
        send(cluster, *numbered(50, first))
        send(cluster, *numbered(5), topic="short")
        maintenance(cluster).run(run_extents=20)
        objects.clock_ms += 8 * DAY_MS
    send(cluster, *numbered(50, 100))
    before = objects.copied()
    deaths = 0
    while True:
        objects.restore(before)
        objects.left = deaths
        try:
            maintenance(cluster).run(run_extents=20)
        except Died:
            deaths += step
        else:
            break
        finally:
            objects.left = -1
        assert [*values(opened_again(cluster))] == numbered(150), deaths
        done = maintenance(cluster).run(run_extents=20)
        assert [*values(opened_again(cluster))] == numbered(150), deaths
        assert done.collected.horizon > 0
    assert deaths > 100


# Weeks.


def test_after_a_while_each_day_is_like_the_one_before() -> None:
    use = LongUse(
        every_ms=1_200_000,
        tasks=2,
        days=18,
        maintained_every_ms=7_200_000,
        retention_ms=2 * DAY_MS,
        staging_timeout_ms=DAY_MS,
    )
    ensure_flat(use, use.run()[8:])


@pytest.mark.slow
def test_a_year_at_a_commit_each_fifty_minutes() -> None:
    """What grows by 0.06 % a day is found, however often it is used each day: in `make soak` five times less."""
    use = LongUse(
        every_ms=3_000_000 // draws.many(1),
        tasks=1,
        days=365,
        maintained_every_ms=18_000_000 // draws.many(1),
        dies_every_ms=18_000_000 // draws.many(1),
        retention_ms=14 * DAY_MS,
        staging_timeout_ms=7 * DAY_MS,
    )
    ensure_flat(use, use.run()[30:])


@pytest.mark.slow
def test_ten_days_at_eight_tasks_each_fifty_seconds() -> None:
    """There are 14,000 extents at a time, so that merges of each size come."""
    use = LongUse(
        every_ms=50_000 // draws.many(1),
        tasks=8,
        days=10,
        maintained_every_ms=3_000_000 // draws.many(1),
        retention_ms=DAY_MS,
        staging_timeout_ms=DAY_MS,
    )
    ensure_flat(use, use.run()[3:])


def ensure_flat(use: LongUse, days: list[Day]) -> None:
    """Check that nothing grows over some days, of each half of which the mean counts."""
    half = len(days) // 2
    # Bytes come and go with large merges, whose rhythm is not that of days.
    most = {"objects": 1.1, "size_in_bytes": 1.25, "whole_entries": 1.1, "requests": 1.1}
    for what, factor in most.items():
        early, late = (
            sum(getattr(day, what) for day in some) / len(some)
            for some in (days[:half], days[half:])
        )
        assert late < factor * early, f"{what} grows from {early:.0f} to {late:.0f}: {days}"
    per_day = DAY_MS // use.every_ms * use.tasks * PARTITIONS * RECORDS
    assert all(abs(day.read - per_day) <= per_day // 10 for day in days)
