"""Replicas that are far behind, or of old formats."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.replica import followers
from spark_kbatch.replica import partition as partitions
from tests.support.failing_disks import EVENTS, partition
from tests.support.store import store_of

NODES = [0, 1, 2]
MIB = 1 << 20


def opened(home: Path) -> Cluster:
    return Cluster(home / "cluster", create=True, log_dirs=[home / f"disk-{n}" for n in NODES])


def send(cluster: Cluster, *values: str | bytes, codec: str = "none") -> None:
    with cluster.producer(acks="all", flush=False, compression_type=codec) as producer:
        for future in [producer.send("events", value=value) for value in values]:
            future.result()


def ensure_equal(cluster: Cluster) -> None:
    assert cluster.replicate() == []
    assert all(one.in_sync for one in cluster.replicas("events")[EVENTS])
    states = [partition(cluster).view.log_of(node).state() for node in NODES]
    assert len({(one.log_start_offset, one.log_end_offset) for one in states}) == 1
    assert not [what for one in cluster.verify() for what in (*one.damaged, *one.found)]


# A replica that is far behind.


@pytest.mark.parametrize("node", [0, 1], ids=["leader", "follower"])
@pytest.mark.parametrize("piece", [4 * MIB, pytest.param(64 * MIB, marks=pytest.mark.slow)])
def test_a_disk_that_lacks_more_than_is_copied_at_once_catches_up_beside_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: int, piece: int
) -> None:
    monkeypatch.setattr(partitions, "_CATCH_UP_BYTES", piece)
    monkeypatch.setattr(followers, "_COPY_BYTES", piece // 8)
    cluster = opened(tmp_path)
    cluster.create_topic("events", replication_factor=3)
    send(cluster, "first")
    disk = tmp_path / f"disk-{node}"
    disk.rename(tmp_path / "away")
    value = bytes(MIB - 1000)
    count = 3 * piece // MIB
    send(cluster, *[value] * count)
    (tmp_path / "away").rename(disk)

    again = opened(tmp_path)
    send(again, "second")  # copies a piece before and after it, and does not wait for the rest
    state = store_of(again).manager.partition(EVENTS).view.log_of(node).state()
    assert piece // MIB < state.log_end_offset < count
    assert not again.replicas("events")[EVENTS][node].in_sync
    send(again, "third")
    ensure_equal(again)
    found = again.read("events").read_all()["value"].to_pylist()
    assert [one for one in found if len(one) < MIB // 2] == [b"first", b"second", b"third"]
    assert len(found) == count + 3


# Old formats.


@pytest.mark.parametrize("version", ["0.9.0", "0.10.2"], ids=["v0", "v1"])
@pytest.mark.parametrize("codec", ["gzip", pytest.param("none", marks=pytest.mark.slow)])
def test_replicas_of_old_formats_survive_disks_that_go_and_come_back(
    tmp_path: Path, version: str, codec: str
) -> None:
    cluster = opened(tmp_path)
    config = TopicConfig(message_format_version=version)
    cluster.create_topic("events", replication_factor=3, config=config)
    sent: list[str] = []

    def send_more(cluster: Cluster) -> None:
        values = [f"value {len(sent) + n}" for n in range(5)]
        sent.extend(values)
        send(cluster, *values, codec=codec)

    send_more(cluster)
    shutil.copytree(tmp_path / "disk-0", tmp_path / "image")
    (tmp_path / "disk-1").rename(tmp_path / "away")
    send_more(cluster)
    shutil.rmtree(tmp_path / "disk-0")
    (tmp_path / "away").rename(tmp_path / "disk-1")
    cluster = opened(tmp_path)
    send_more(cluster)
    (tmp_path / "image").rename(tmp_path / "disk-0")  # as it was when it led
    cluster = opened(tmp_path)
    send_more(cluster)
    cluster.delete_records({EVENTS: 3})  # within a batch
    ensure_equal(cluster)
    shutil.rmtree(tmp_path / "disk-2")
    cluster = opened(tmp_path)
    cluster.replace_log_dir(2)
    ensure_equal(cluster)
    found = cluster.read("events").read_all()["value"].to_pylist()
    assert [value.decode() for value in found] == sent[3:]
