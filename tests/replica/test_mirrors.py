"""PATH's own files are lost, and restored from the disks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.catalog.log_dirs import RETRY_MS
from spark_kbatch.errors import ConfigError
from tests.support import builders
from tests.support.builders import append_records, batch, records_of
from tests.support.failing_disks import (
    EVENTS,
    FULL,
    Clock,
    Disks,
    a_replicated_cluster,
    isr,
    partition,
    with_clock,
)
from tests.support.store import store_of

BATCHES = [batch(n=n + 1, seed=n) for n in range(4)]


@pytest.fixture
def cluster(tmp_path: Path, disks: Disks) -> Cluster:
    return a_replicated_cluster(tmp_path, disks)


def folders(cluster: Cluster) -> list[Path]:
    return [cluster.path.parent / f"disk-{node}" for node in range(3)]


def write(cluster: Cluster, number: int) -> None:
    assert append_records(cluster, {EVENTS: BATCHES[number]})[EVENTS].error is None


def again(cluster: Cluster) -> Cluster:
    path = str(cluster.path)
    return Cluster(path, create=True, log_dirs=folders(cluster), files=store_of(cluster).files)


def test_every_disk_has_what_path_has(cluster: Cluster) -> None:
    names = ("cluster.json", "topics/events.json", "topics/__transaction_state.json")
    for name in names:
        own = (cluster.path / name).read_bytes()
        copies = [folder / f"mirror-{node}" / name for node, folder in enumerate(folders(cluster))]
        assert [copy.read_bytes() for copy in copies] == [own] * 3


def test_path_is_made_again_from_the_newest_copies(cluster: Cluster, disks: Disks) -> None:
    write(cluster, 0)
    disks.fail(folders(cluster)[0], FULL)
    write(cluster, 1)  # another leads; the mirror on the failing disk misses it
    producer_id = store_of(cluster).new_producer_id()
    state, topic = partition(cluster).view.state(), cluster.topic("events")
    assert state.leader == 1
    disks.mend(folders(cluster)[0])
    shutil.rmtree(cluster.path)
    restored = again(cluster)

    assert partition(restored).view.state() == state
    assert restored.topic("events") == topic
    assert restored.topic_names() == ["events"]
    assert store_of(restored).new_producer_id() > producer_id
    assert builders.contents(restored)[EVENTS] == records_of(BATCHES[:2])
    write(restored, 2)
    assert isr(restored) == (0, 1, 2)


def test_a_file_that_path_has_lost_is_read_from_a_disk(cluster: Cluster, disks: Disks) -> None:
    disks.fail(folders(cluster)[0], FULL)
    write(cluster, 0)
    state = partition(cluster).view.state()
    shutil.rmtree(cluster.path / "partitions")
    (cluster.path / "topics/events.json").unlink()
    found = Cluster(str(cluster.path), files=disks)

    assert partition(found).view.state() == state
    assert builders.contents(cluster)[EVENTS] == records_of(BATCHES[:1])


def test_a_disk_that_is_replaced_gets_copies(cluster: Cluster) -> None:
    clock = Clock()
    cluster = with_clock(cluster, clock)
    shutil.rmtree(folders(cluster)[2])
    write(cluster, 0)
    clock.now_ms += RETRY_MS
    with store_of(cluster).manager.locks.metadata():
        store_of(cluster).metadata.cluster_file.replace_log_dir(2)

    copy = json.loads((folders(cluster)[2] / "mirror-2/partitions/events/0.json").read_text())
    assert copy["isr"] == [0, 1]


def test_a_disk_that_is_lost_is_not_touched_when_another_is_replaced(cluster: Cluster) -> None:
    for node in (1, 2):
        shutil.rmtree(folders(cluster)[node])
    write(cluster, 0)
    cluster.replace_log_dir(2)

    assert not folders(cluster)[1].exists()


def test_a_cluster_that_is_lost_may_be_made_again_elsewhere(cluster: Cluster) -> None:
    write(cluster, 0)
    shutil.rmtree(cluster.path)
    elsewhere = str(cluster.path.with_name("elsewhere"))
    found = Cluster(
        elsewhere, create=True, log_dirs=folders(cluster), files=store_of(cluster).files
    )

    assert builders.contents(found)[EVENTS] == records_of(BATCHES[:1])


def test_without_the_names_of_the_disks_a_lost_path_is_not_made_again(cluster: Cluster) -> None:
    shutil.rmtree(cluster.path)

    with pytest.raises(ConfigError, match="there is no such folder"):
        Cluster(str(cluster.path))


def test_a_cluster_within_path_has_no_mirrors(tmp_path: Path, disks: Disks) -> None:
    cluster = builders.a_cluster(tmp_path, files=disks)
    cluster.create_topic("copied", replication_factor=2)

    assert "generation" not in json.loads((cluster.path / "cluster.json").read_text())
    assert not list(cluster.path.parent.rglob("mirror-*"))
