"""Admin clients see each log dir: its room, and the size and lag of every replica in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_kbatch import Cluster
from spark_kbatch.server.log_dirs import LogDirsHandler
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import ApiKey, DescribeLogDirsRequest
from tests.support import builders
from tests.support.asking import ask
from tests.support.raw_clients import RawClient, produce, produced
from tests.support.store import store_of

TOPIC = DescribeLogDirsRequest.DescribableLogDirTopic
BATCH = builders.batch(n=3)
Sizes = dict[tuple[str, int], tuple[int, int]]  # size and lag, by partition


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    with Cluster(tmp_path / "cluster", create=True, log_dirs=folders) as cluster:
        cluster.create_topic("both", 2, replication_factor=2)
        cluster.create_topic("one", 1)
        builders.append_records(cluster, {("both", 1): BATCH})
        yield cluster


def described(
    cluster: Cluster, topics: dict[str, list[int]] | None = None, version: int = 4
) -> list[Any]:
    """Return the results for all log dirs, in their order."""
    asked = topics
    if topics is not None:
        asked = [TOPIC(topic=name, partitions=numbers) for name, numbers in topics.items()]  # type: ignore[assignment]
    handler = LogDirsHandler(store_of(cluster))
    answer = ask(handler.describe_log_dirs, ApiKey.DESCRIBE_LOG_DIRS, version, topics=asked)
    assert answer.error_code == ErrorCode.NONE
    return list(answer.results)


def sizes(result: Any) -> Sizes:
    found = {
        (topic.name, one.partition_index): (one.partition_size, one.offset_lag)
        for topic in result.topics
        for one in topic.partitions
    }
    assert not any(one.is_future_key for topic in result.topics for one in topic.partitions)
    return found


@pytest.mark.parametrize("version", range(1, 5))
def test_each_log_dir_has_its_room_and_its_replicas(cluster: Cluster, version: int) -> None:
    results = described(cluster, version=version)

    assert [one.log_dir for one in results] == [one.path for one in cluster.log_dirs()]
    for one in results:
        assert one.error_code == ErrorCode.NONE
        found = sizes(one)
        assert (found["both", 0], found["both", 1]) == ((0, 0), (len(BATCH), 0))
        usage = shutil.disk_usage(one.log_dir)
        if version >= 4:
            assert one.total_bytes == usage.total
            assert 0 < one.usable_bytes <= usage.total
        else:
            assert (one.total_bytes, one.usable_bytes) == (-1, -1)
    assert sum(("one", 0) in sizes(one) for one in results) == 1  # one replica, in one of them
    assert any(name.startswith("__") for one in results for name, _ in sizes(one))


def test_only_partitions_that_are_named_and_exist_are_described(cluster: Cluster) -> None:
    first, second = described(cluster, {"both": [1, 7], "none": [0], "a b": [0]})

    assert sizes(first) == sizes(second) == {("both", 1): (len(BATCH), 0)}


def test_no_named_partition_leaves_the_room_of_the_log_dirs(cluster: Cluster) -> None:
    for one in described(cluster, {}):
        assert (one.error_code, one.topics) == (ErrorCode.NONE, [])
        assert one.total_bytes > 0


def test_a_log_dir_that_is_away_has_an_error_and_the_replica_that_missed_records_a_lag(
    cluster: Cluster, tmp_path: Path
) -> None:
    away = (tmp_path / "b").rename(tmp_path / "away")
    builders.append_records(cluster, {("both", 1): BATCH})
    first, second = described(cluster)
    assert sizes(first)["both", 1] == (2 * len(BATCH), 0)
    assert second.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert (second.topics, second.total_bytes, second.usable_bytes) == ([], -1, -1)

    away.rename(tmp_path / "b")
    store_of(cluster).manager.dirs.look_again()
    first, second = described(cluster)
    assert (first.error_code, second.error_code) == (0, 0)
    assert sizes(second)["both", 1] == (len(BATCH), 3)


def test_a_topic_that_cannot_be_read_hides_no_other(cluster: Cluster, tmp_path: Path) -> None:
    (cluster.path / "topics" / "one.json").write_text("{")

    found = [sizes(one) for one in described(cluster)]

    assert all(("both", 1) in one and ("one", 0) not in one for one in found)


def test_what_a_client_has_stored_is_in_the_size_at_once(cluster: Cluster) -> None:
    with cluster.serve() as server, RawClient(server) as client:
        before = by_client(client)
        assert produced(client.ask(ApiKey.PRODUCE, 9, produce(BATCH, topic="one"))).error_code == 0
        after = by_client(client)

    assert after["one", 0][0] - before["one", 0][0] == len(BATCH)


def by_client(client: RawClient) -> Sizes:
    answer = client.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(topics=None))
    return {key: size for one in answer.results for key, size in sizes(one).items()}
