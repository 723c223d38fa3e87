"""How far a stream has read, as the offsets of a consumer group of the place that it reads."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import spark_kbatch
from spark_kbatch import Cluster, ConfigError, TopicPartition
from spark_kbatch.consumer import group_commits
from spark_kbatch.consumer.stream_planner import StreamPlanner
from spark_kbatch.model import GroupOffset
from spark_kbatch.opening.stores import ensure_selection_exists, open_stream
from spark_kbatch.options.read import (
    parse_batch_or_stream_options,
    parse_read_options,
    parse_stream_read_options,
)
from tests.support.broker_dirs import a_partition, batches
from tests.support.bucket_objects import AllCounted, a_bucket

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commits, "WAIT_S", 60.0)  # a test's machine may be slow


def options_of(address: str, **given: str) -> dict[str, str]:
    defaults = {"subscribe": "t", "startingOffsets": "earliest", "commit.group.id": "app"}
    key = "kafka.bootstrap.servers" if address.startswith("127.") else "path"
    return {key: address} | defaults | given


def a_run(address: str, **given: str) -> StreamPlanner:
    """Return the planner of a run with Trigger.AvailableNow."""
    planner = open_stream(parse_stream_read_options(options_of(address, **given)))
    planner.prepare_for_available_now()
    return planner


def read_all(planner: StreamPlanner, start: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run micro-batches as Spark does until there is nothing to read, and return where it ended."""
    start = start or planner.initial()
    while (end := planner.latest(start)) != start:
        planner.plan(start, end)
        start = end
    return start


def committed(cluster: Cluster, group_id: str = "app") -> dict[TopicPartition, GroupOffset]:
    return {one.group_id: dict(one.offsets) for one in cluster.groups()}[group_id]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    cluster = spark_kbatch.open(tmp_path / "cluster", create=True)
    cluster.create_topic("t", partitions=2)
    append(cluster, 5)
    return cluster


def append(cluster: Cluster, count: int) -> None:
    with cluster.producer() as producer:
        for _ in range(count):
            producer.send("t", value="v", partition=0)


def test_a_group_in_a_folder_is_where_the_query_is(cluster: Cluster) -> None:
    end = read_all(a_run(cluster.address, maxOffsetsPerTrigger="2"))
    append(cluster, 3)

    assert committed(cluster)[T0][:3] == (5, 8, 3)
    assert committed(cluster)[T1][:3] == (0, 0, 0)
    read_all(a_run(cluster.address), end)
    assert committed(cluster)[T0][:3] == (8, 8, 0)


def test_a_running_server_is_told_and_so_is_a_real_cluster(cluster: Cluster) -> None:
    with cluster.serve() as server:
        read_all(a_run(cluster.address))
        with spark_kbatch.connect(server.bootstrap_servers) as remote:
            assert committed(remote)[T0][:3] == (5, 5, 0)
            append(cluster, 3)
            read_all(a_run(server.bootstrap_servers, **{"commit.group.id": "other"}))
            assert committed(remote)[T0][:3] == (5, 8, 3)
            assert committed(remote, "other")[T0][:3] == (8, 8, 0)


def test_a_query_never_starts_from_the_group(cluster: Cluster) -> None:
    read_all(a_run(cluster.address))

    assert a_run(cluster.address).initial()["t"] == {"0": 0, "1": 0}


def test_a_query_goes_on_though_the_group_cannot_be_told(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("spark_kbatch.cluster.groups.FolderGroups.alter_offsets", refuse)

    assert read_all(a_run(cluster.address))["t"] == {"0": 5, "1": 0}
    (warning,) = (one for one in caplog.records if one.levelno == logging.WARNING)
    assert "consumer group 'app' is not told" in warning.message
    assert "Permission denied" in warning.message


def test_a_group_in_a_bucket_is_where_the_query_is() -> None:
    objects = AllCounted()
    bucket = a_bucket(objects, "t", partitions=2)
    append(bucket, 5)
    planner = a_run(bucket.address, maxOffsetsPerTrigger="2")
    objects.taken()
    end = read_all(planner)

    # The first commit, and the one at the end of the run; those between are not due.
    assert objects.taken()["create ledger"] == 2
    append(bucket, 3)
    assert committed(bucket)[T0][:3] == (5, 8, 3)
    assert committed(bucket)[T1][:3] == (0, 0, 0)
    read_all(a_run(bucket.address), end)
    assert committed(bucket)[T0][:3] == (8, 8, 0)


def test_a_brokers_logs_refuse_the_option_by_name(tmp_path: Path) -> None:
    a_partition(tmp_path / "t-0", {0: batches(0, 1)})
    options, is_batch = parse_batch_or_stream_options(options_of(str(tmp_path)))
    wanted = r"'commit\.group\.id' is 'app', and .* keeps no consumer groups: "

    ensure_selection_exists(options, is_batch=is_batch)  # for a batch it is no matter
    with pytest.raises(ConfigError, match=wanted):
        open_stream(options)


@pytest.mark.parametrize("given", ["", "  ", "x" * 32768])
def test_a_group_needs_a_name_that_kafka_can_store(given: str) -> None:
    with pytest.raises(ConfigError, match=r"'commit\.group\.id' is .*; accepted: a name of 1"):
        parse_stream_read_options(options_of("/data", **{"commit.group.id": given}))


def test_a_batch_ignores_the_option(caplog: pytest.LogCaptureFixture) -> None:
    parse_read_options(options_of("/data"))

    assert "option 'commit.group.id' is ignored in a batch read" in caplog.messages
