"""Log dirs and replicas as an operator sees them, and what the operator does about them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.cli.main import cli
from spark_kbatch.errors import ConfigError
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.replica.administration import LogDirInfo
from tests.support import builders
from tests.support.builders import append_records, batch
from tests.support.failing_disks import EVENTS, Disks, a_replicated_cluster

COPIED = TopicPartition("__transaction_state", 0)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return a_replicated_cluster(tmp_path, Disks())


def lose(cluster: Cluster, node_id: int) -> None:
    shutil.rmtree(cluster.path.parent / f"disk-{node_id}")
    append_records(cluster, {EVENTS: batch()})


def run(*words: str) -> tuple[int, list[dict[str, Any]]]:
    done = CliRunner().invoke(cli, [*words, "--json"])
    return done.exit_code, [json.loads(line) for line in done.stdout.splitlines()]


def test_log_dirs_that_are_sound_are_all_online(cluster: Cluster) -> None:
    append_records(cluster, {EVENTS: batch()})
    code, rows = run("log-dirs", str(cluster.path))

    assert code == 0
    assert rows == [
        LogDirInfo(
            node, str(cluster.path.parent / f"disk-{node}/broker-{node}"), None,
            3, 3 if node == 0 else 0, 0, 0, "online",
        )._asdict()
        for node in range(3)
    ]  # fmt: skip


def test_one_that_is_lost_is_shown_and_replaced(cluster: Cluster) -> None:
    append_records(cluster, {EVENTS: batch()})
    lose(cluster, 0)
    code, rows = run("log-dirs", str(cluster.path))
    assert code == 1
    assert "No such file or directory" in rows[0]["why_offline"]
    assert [row["not_in_sync"] for row in rows] == [2, 0, 0]
    code, (*same, told) = run("log-dirs", str(cluster.path), "--metrics")
    assert (code, same) == (1, rows)
    assert told["metrics"]["ReplicaManager"]["UnderReplicatedPartitions"] == 3
    assert told["metrics"]["LogManager"]["OfflineLogDirectoryCount"] == 1
    (topic,) = run("topics", str(cluster.path))[1]
    (row,) = topic["partitions"]
    assert (row["leader"], row["replicas"], row["isr"]) == (1, [0, 1, 2], [1, 2])
    assert (row["lag"], row["offline"]) == (0, [0])

    code, rows = run("log-dirs", str(cluster.path), "--replace", "0")
    assert code == 0
    assert [row["not_in_sync"] for row in rows] == [0, 0, 0]
    assert Cluster(str(cluster.path))._parts.manager.partition(COPIED).view.state().isr == (0, 1, 2)
    assert len(builders.contents(cluster)[EVENTS]) == 6


def test_a_replica_whose_state_is_damaged_is_named_once_and_shown_as_unreadable(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    [info, *_] = cluster.replicas("events")[EVENTS]
    log = cluster.path.parent / f"disk-{info.node_id}/broker-{info.node_id}/{EVENTS}"
    (log / "kbatch.state").write_bytes(bytes(8192))

    for _ in range(2):
        [shown] = (one for one in cluster.replicas("events")[EVENTS] if one.node_id == info.node_id)
        assert (shown.log_end_offset, shown.why_offline) == (-1, "its log cannot be read")

    said = [one for one in caplog.messages if one.startswith(f"{EVENTS} on node {info.node_id}: ")]
    assert len(said) == 1


def test_the_lag_of_a_replica_is_in_offsets(cluster: Cluster) -> None:
    append_records(cluster, {EVENTS: batch(n=2)})
    log = cluster._parts.manager.partition(EVENTS)._log_of(0)
    builders.append(log, batch(n=5))

    assert [replica.lag for replica in cluster.replicas(["events"])[EVENTS]] == [0, 5, 5]


@pytest.mark.parametrize(
    ("node_id", "reason"),
    [(0, "is online"), (1, "is not empty: it holds something"), (3, "there is no node 3")],
)
def test_only_a_log_dir_that_is_lost_is_replaced_and_by_an_empty_one(
    cluster: Cluster, node_id: int, reason: str
) -> None:
    lose(cluster, 1)
    (cluster.path.parent / "disk-1/broker-1/something").mkdir(parents=True)
    with pytest.raises(ConfigError, match=reason):
        cluster.replace_log_dir(node_id)


def test_replicate_names_what_cannot_be_in_sync(cluster: Cluster) -> None:
    lose(cluster, 2)

    assert cluster.replicate(["events"]) == [EVENTS]


def test_min_insync_replicas_is_a_setting_of_the_topic(tmp_path: Path) -> None:
    path = str(tmp_path / "cluster")
    made = spark_kbatch.open(path, create=True, log_dirs=[tmp_path / "a", tmp_path / "b"])
    assert isinstance(made, Cluster)
    topic = made.create_topic("strict", replication_factor=2, config={"min.insync.replicas": "2"})

    assert topic.config == TopicConfig(min_insync_replicas=2)
    assert Cluster(path).topic("strict") == topic
