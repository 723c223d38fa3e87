"""The history of commits to a bucket: as of the same jobs into a folder, whatever else is written between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import spark_kbatch
from spark_kbatch import Cluster, Commit, TopicPartition
from spark_kbatch.bucket import history
from spark_kbatch.bucket.garbage import GarbageCollector
from spark_kbatch.errors import ConfigError
from spark_kbatch.store.store import Store
from tests.support.bucket_jobs import commit_batch, wrote
from tests.support.bucket_objects import CountingObjects, a_bucket, a_url


def jobs_into(cluster: Cluster) -> None:
    place = cluster.address
    cluster.create_topic("events", partitions=2)
    cluster.create_topic("more")
    wrote(place, {0: ["a", "b"], 1: ["c"]})
    wrote(place, {1: ["d"]}, number=0)
    with cluster.producer() as producer:
        producer.send("events", "e", partition=1).result()
    wrote(place, {0: ["f"]}, number=1)
    wrote(place, {0: ["f"]}, number=1)  # again
    cluster.create_partitions("events", 3)
    wrote(place, {2: ["g"], 0: ["h", "i"]})
    wrote(place, {0: ["x"]}, topic="more")
    wrote(place, {1: ["j"]}, overwrite=True)


def told(commit: Commit) -> dict[str, Any]:
    found = commit.as_json()
    for of_place in ("commit", "time", "bytes", "user"):
        del found[of_place]
    if commit.sequence < 0:
        del found["transactional_id"]  # of one job, by chance
    return found


def test_it_tells_of_the_same_jobs_what_a_folders_does(tmp_path: Path) -> None:
    with (
        spark_kbatch.open(tmp_path / "folder", create=True) as folder,
        spark_kbatch.open(a_url(), create=True) as bucket,
    ):
        for cluster in (folder, bucket):
            jobs_into(cluster)

        found = [*bucket.history()]

        assert [*map(told, found)] == [*map(told, folder.history())]
        assert len(found) == 6
        assert all(commit.size_in_bytes > 0 for commit in found)
        assert [one.number for one in bucket.history("more")] == [found[1].number]
        assert bucket.find_commit(found[-1].number) == found[-1]
        assert found[-1].ending_offsets() == '{"events": {"0": 2, "1": 1}}'


def test_a_part_of_it_reads_no_later_entries(tmp_path: Path) -> None:
    objects = CountingObjects()
    with (
        spark_kbatch.open(tmp_path / "folder", create=True) as folder,
        a_bucket(objects) as bucket,
    ):
        for cluster in (folder, bucket):
            jobs_into(cluster)
        of_folder, found = [*folder.history()], [*bucket.history()]
        numbers = [one.number for one in found]
        objects.taken()

        for place, every in ((folder, of_folder), (bucket, found)):
            start, end = every[4].number, every[1].number
            part = [*place.history(numbers=range(start, end))]
            assert [*map(without_ends, part)] == [*map(without_ends, every[2:5])]
            next_number = every[0].number + 1
            assert place.commit_numbers() == range(place.first_commit(), next_number)
            assert [*place.history(numbers=range(next_number))] == every
            assert not [*place.history(numbers=range(next_number, next_number + 9))]
            assert not [*place.history(numbers=range(0))]

        # Its ends are known in a folder.
        assert [*folder.history(numbers=range(1, 2))] == [of_folder[-2]]
        objects.taken()
        (overwriting,) = bucket.history(numbers=range(numbers[0], numbers[0] + 1))
        assert overwriting == found[0]  # the newest
        cost = objects.taken()
        (one,) = bucket.history(numbers=range(numbers[4], numbers[4] + 1))
        assert objects.taken() == cost == {"get ledger": 2}  # it, and a look for news
    assert one.ends.items() < found[4].ends.items()
    assert {*one.offsets} == {*one.ends}


def test_the_topics_of_an_overwrite_without_records_are_known_without_later_entries() -> None:
    with a_bucket(CountingObjects(), "events") as cluster:
        wrote(cluster.address, {0: ["a"]})
        wrote(cluster.address, {0: []}, overwrite=True)
        wrote(cluster.address, {0: ["b"]})
        newest, overwriting, _ = cluster.history()

        (found,) = cluster.history(numbers=range(overwriting.number, newest.number))

    assert overwriting.records_count == 0
    assert found == overwriting
    assert found.topics == ["events"]


def without_ends(commit: Commit) -> Commit:
    return commit._replace(ends={})


def test_a_topic_that_was_deleted_may_have_its_id_for_a_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with a_bucket(CountingObjects(), "events") as cluster:
        topic = cluster.topic("events")
        commit_batch(cluster.address, [["a", "b"]])
        cluster.delete_topic("events")
        cluster.create_topic("events")
        commit_batch(cluster.address, [["c"]])

        newest, oldest = cluster.history()
        monkeypatch.setattr(history, "_WINDOW", 1)  # its creation is not seen yet
        _, unnamed = cluster.history()

    assert newest.ends == {TopicPartition("events", 0): 1}
    assert oldest.ends == {TopicPartition("events", 0): 2}
    assert unnamed.ends == {TopicPartition(topic.topic_id, 0): 2}


def test_it_starts_where_entries_were_collected() -> None:
    with a_bucket(CountingObjects(), "events") as cluster:
        for value in "abcd":
            commit_batch(cluster.address, [[value]])
        numbers = [one.number for one in cluster.history()]
        store: Store = cluster._store
        ledger = store.ledger._ledger  # type: ignore[attr-defined]
        ledger.make_checkpoint()
        collector = GarbageCollector(ledger)
        collector._bury(0, numbers[2])

        assert [one.number for one in cluster.history()] == numbers[:2]
        assert cluster.first_commit() == numbers[2] + 1
        with pytest.raises(ConfigError, match=f"commit {numbers[3]} is no longer kept"):
            cluster.find_commit(numbers[3])
        with pytest.raises(ConfigError, match="there is no commit 99"):
            cluster.find_commit(99)
