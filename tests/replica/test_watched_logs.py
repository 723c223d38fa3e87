"""What other processes append is found by few reads, whatever number of partitions is waited for."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest

from spark_kbatch import Cluster
from spark_kbatch.files import Files
from spark_kbatch.model import TopicPartition
from spark_kbatch.replica.delayed_fetch import LOOKS_MAX, WatchedLogs
from tests.support import builders
from tests.support.store import store_of

MANY = 4 * LOOKS_MAX


class CountingFiles(Files):
    """Files that count the states that are read."""

    read = 0

    def read_each(self, paths: list[str], size: int) -> Iterator[bytes]:
        self.read += len(paths)
        return super().read_each(paths, size)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("watched")
    with builders.a_cluster(folder, topics={"few": 3, "many": MANY}) as cluster:
        yield cluster


@pytest.fixture
def files() -> CountingFiles:
    return CountingFiles()


@pytest.fixture
def watched(cluster: Cluster, files: CountingFiles) -> WatchedLogs:
    manager = store_of(cluster).manager
    return WatchedLogs(files, manager.metadata.paths, manager.all_of)


def partitions(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]


def append(cluster: Cluster, topic_partition: TopicPartition) -> None:
    builders.append_records(cluster, {topic_partition: builders.batch(n=1)})


def looks_until_found(
    watched: WatchedLogs, asked: list[TopicPartition]
) -> tuple[int, list[object]]:
    for looks in range(1, MANY):
        if found := watched.changed(asked):
            return looks, [*found]
    raise AssertionError("a change is not found")


def test_what_is_asked_for_the_first_time_counts_as_changed(watched: WatchedLogs) -> None:
    few = partitions("few", 3)
    assert watched.changed(few[:2]) == few[:2]
    assert watched.changed(few) == few[2:]
    assert watched.changed(few) == []
    missing = TopicPartition("missing", 0)
    assert watched.changed([*few, missing]) == [missing]


def test_a_change_of_few_partitions_is_found_at_once(
    cluster: Cluster, watched: WatchedLogs
) -> None:
    few = partitions("few", 3)
    watched.changed(few)
    append(cluster, few[1])
    assert watched.changed(few) == [few[1]]
    assert watched.changed(few) == []


def test_a_look_at_thousands_of_partitions_reads_a_fixed_number_of_states(
    watched: WatchedLogs, files: CountingFiles
) -> None:
    many = partitions("many", MANY)
    assert watched.changed(many) == many
    files.read = 0
    for _ in range(10):
        assert watched.changed(many) == []
    assert files.read <= 10 * (LOOKS_MAX + 1)


def test_what_is_kept_of_each_partition_takes_little_memory(watched: WatchedLogs) -> None:
    many = partitions("many", MANY)
    tracemalloc.start()
    try:
        watched.changed(many)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < MANY * 3000


@pytest.mark.parametrize("number", [0, 1, MANY // 2, MANY - 1])
def test_a_change_of_one_of_thousands_is_found_when_its_turn_comes_and_then_at_once(
    cluster: Cluster, watched: WatchedLogs, number: int
) -> None:
    many = partitions("many", MANY)
    watched.changed(many)
    append(cluster, many[number])
    looks, found = looks_until_found(watched, many)
    assert found == [many[number]]
    assert looks <= 6
    append(cluster, many[number])
    assert looks_until_found(watched, many) == (1, [many[number]])


def test_a_commit_is_found_at_once_whatever_its_partitions(
    cluster: Cluster, watched: WatchedLogs
) -> None:
    many = partitions("many", MANY)
    watched.changed(many)
    extents = builders.staged(cluster, {("many", MANY - 1): [builders.batch(n=1)]})
    builders.commit(cluster, extents)
    assert watched.changed(many) == many


def test_a_topic_that_is_deleted_or_recreated_is_a_change(
    cluster: Cluster, watched: WatchedLogs
) -> None:
    cluster.create_topic("passing", partitions=1)
    passing = partitions("passing", 1)
    watched.changed(passing)
    cluster.delete_topic("passing")
    assert watched.changed(passing) == passing
    cluster.create_topic("passing", partitions=1)
    assert watched.changed(passing) == passing
