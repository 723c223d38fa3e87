"""Which copy of a cluster's JSON files counts when PATH or a disk is old, lost, or missed a change."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from spark_kbatch import Cluster, TopicPartition
from spark_kbatch.cli.main import cli
from spark_kbatch.errors import ConfigError, KafkaStorageError, KBatchError, LogDirLockedError
from spark_kbatch.files import Files
from spark_kbatch.replica.locks import Locks
from spark_kbatch.server.housekeeping import Housekeeping
from spark_kbatch.store.reports import GivenUp
from tests.support import builders
from tests.support.crashes import stride_of
from tests.support.failing_disks import Disks, Killed
from tests.support.reference import Record, encode_batch
from tests.support.store import store_of

EVENTS = TopicPartition("t", 0)
WAITS = {"delivery.timeout.ms": 4_000, "request.timeout.ms": 2_000}


def disks(folder: Path) -> list[Path]:
    return [folder / f"disk-{node}" for node in range(3)]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return a_home(tmp_path)


def a_home(folder: Path) -> Path:
    """Make a cluster on three disks in a folder, whose PATH is on none of them."""
    with a_cluster(folder) as cluster:
        cluster.create_topic("t", replication_factor=3, config={"min.insync.replicas": 2})
        send(cluster, "1", "2")
    return folder


def a_cluster(
    folder: Path, *, without_nodes: list[int] | None = None, files: Files | None = None
) -> Cluster:
    path, dirs = folder / "cluster", disks(folder)
    return Cluster(path, create=True, log_dirs=dirs, without_nodes=without_nodes, files=files)


def send(cluster: Cluster, *values: str) -> None:
    with cluster.producer(acks="all", **WAITS) as producer:
        for value in values:
            producer.send("t", value=value).result()


def read(cluster: Cluster) -> list[str]:
    found = cluster.read("t", columns=["value"]).read_all()["value"].to_pylist()
    return [value.decode() for value in found]


@contextmanager
def away(*folders: Path) -> Iterator[None]:
    """The disks, or PATH, are not mounted."""
    for folder in folders:
        folder.rename(folder.with_name(f"{folder.name}.away"))
    yield
    for folder in folders:
        if folder.exists():
            shutil.rmtree(folder)
        folder.with_name(f"{folder.name}.away").rename(folder)


def in_sync(cluster: Cluster) -> list[int]:
    return [one.node_id for one in cluster.replicas("t")[EVENTS] if one.in_sync]


def mirrored(folder: Path, node: int, name: str) -> Path:
    return disks(folder)[node] / f"mirror-{node}" / name


# A disk that missed a change.


def test_a_disk_that_missed_changes_has_them_once_the_cluster_is_opened(home: Path) -> None:
    with a_cluster(home) as cluster, away(disks(home)[1]):
        cluster.create_topic("while-away")
        cluster.alter_topic("t", {"max.message.bytes": 77_777})
    with a_cluster(home):
        for name in ("cluster.json", "topics/t.json", "topics/while-away.json"):
            assert mirrored(home, 1, name).read_bytes() == (home / "cluster" / name).read_bytes()


def test_a_disk_that_missed_changes_does_not_stand_in_for_a_file_that_path_has_lost(
    home: Path,
) -> None:
    with a_cluster(home) as cluster, away(*disks(home)[1:]):
        cluster.alter_topic("t", {"max.message.bytes": 77_777})
    (home / "cluster/topics/t.json").unlink()
    with a_cluster(home) as cluster:
        assert cluster.topic("t").config.max_message_bytes == 77_777
        assert "77777" in mirrored(home, 1, "topics/t.json").read_text()


def test_a_topic_that_an_older_image_of_a_disk_brings_is_not_taken_over(home: Path) -> None:
    with a_cluster(home) as cluster:
        cluster.create_topic("gone", config={"file.delete.delay.ms": 0})
        shutil.copytree(disks(home)[1], home / "image")
        cluster.delete_topic("gone")
        cluster.collect_garbage()
    shutil.rmtree(disks(home)[1])
    (home / "image").rename(disks(home)[1])
    with a_cluster(home) as cluster:
        assert cluster.topic_names() == ["t"]
        assert not mirrored(home, 1, "topics/gone.json").exists()
        assert mirrored(home, 1, "topics/gone.stale").exists()


def test_producer_ids_are_not_given_out_again_from_a_copy_that_was_refreshed(home: Path) -> None:
    with a_cluster(home) as cluster, away(disks(home)[1]):
        first = store_of(cluster).new_producer_id()
    with a_cluster(home):
        pass
    shutil.rmtree(home / "cluster")
    shutil.rmtree(disks(home)[0])
    with a_cluster(home, without_nodes=[0]) as cluster:
        assert store_of(cluster).new_producer_id() > first


def test_producer_ids_are_not_given_out_again_from_a_copy_that_missed_them(home: Path) -> None:
    with a_cluster(home) as cluster:
        with away(*disks(home)[1:]):
            store_of(cluster).new_producer_id()
        send(cluster, "3")  # by the next id; the disks are in sync again, their cluster.json is old
        assert in_sync(cluster) == [0, 1, 2]
    shutil.rmtree(home / "cluster")
    shutil.rmtree(disks(home)[0])
    with a_cluster(home, without_nodes=[0]) as cluster:
        store_of(cluster).new_producer_id()
        send(cluster, "4")
        assert read(cluster) == ["1", "2", "3", "4"]


def test_a_disk_that_missed_a_change_has_it_before_it_is_in_sync_again(home: Path) -> None:
    with a_cluster(home) as cluster:
        cluster.create_topic("gone", replication_factor=3)
    with a_cluster(home) as cluster:
        send(cluster, "3")
        with away(*disks(home)[1:]):
            cluster.delete_topic("gone")
            with cluster.producer(acks=1, **WAITS) as producer:
                producer.send("t", value="4").result()
            assert in_sync(cluster) == [0]
        send(cluster, "5")  # by the same process, which alone has the cluster open
        assert in_sync(cluster) == [0, 1, 2]
    shutil.rmtree(home / "cluster")
    shutil.rmtree(disks(home)[0])
    with a_cluster(home, without_nodes=[0]) as cluster:
        assert cluster.topic_names() == ["t"]
        assert read(cluster) == ["1", "2", "3", "4", "5"]


# PATH is lost.


def test_a_lost_path_is_restored_when_all_log_dirs_are_there(home: Path) -> None:
    shutil.rmtree(home / "cluster")
    with a_cluster(home) as cluster:
        send(cluster, "3")
        assert read(cluster) == ["1", "2", "3"]
        assert in_sync(cluster) == [0, 1, 2]


def test_a_lost_path_is_not_restored_while_a_log_dir_is_missing_unless_it_is_given_up(
    home: Path,
) -> None:
    shutil.rmtree(home / "cluster")
    with away(disks(home)[2]):
        with pytest.raises(ConfigError, match="disk-2/broker-2 cannot be used") as told:
            a_cluster(home)
        assert "--without-node 2` (without_nodes=[2])" in str(told.value)
        with a_cluster(home, without_nodes=[2]) as cluster:
            send(cluster, "3")
            assert read(cluster) == ["1", "2", "3"]
            assert in_sync(cluster) == [0, 1]


def test_a_disk_that_was_given_up_is_not_used_when_it_is_back(home: Path) -> None:
    with a_cluster(home) as cluster, away(*disks(home)[:2]):
        cluster.alter_topic("t", {"min.insync.replicas": 1})
        send(cluster, "of disk 2 alone")
    shutil.rmtree(home / "cluster")
    with away(disks(home)[2]), a_cluster(home, without_nodes=[2]) as cluster:
        send(cluster, "3")
    with a_cluster(home) as cluster:
        assert cluster.replicate() == [
            TopicPartition("__commits", 0), TopicPartition("__transaction_state", 0), EVENTS,
        ]  # fmt: skip
        assert read(cluster) == ["1", "2", "3"]
        assert "directory id" in str(cluster.log_dirs()[2].why_offline)
    data = (disks(home)[2] / "broker-2/t-0/00000000000000000000.log").read_bytes()
    assert b"of disk 2 alone" in data


def test_a_restored_cluster_has_the_leader_and_replicas_of_the_last_change(home: Path) -> None:
    with a_cluster(home) as cluster:
        with away(disks(home)[1]):
            send(cluster, "3", "4")
    shutil.rmtree(home / "cluster")
    shutil.rmtree(disks(home)[0])
    with a_cluster(home, without_nodes=[0]) as cluster:
        assert read(cluster) == ["1", "2", "3", "4"]
        cluster.replicate()
        assert in_sync(cluster) == [1, 2]


def test_a_new_cluster_at_a_lost_path_is_moved_away_before_the_lost_one_is_restored(
    home: Path,
) -> None:
    path = home / "cluster"
    named = ",".join(map(str, disks(home)))
    shutil.rmtree(path)
    Cluster(path, create=True).create_topic("new")
    restore = (
        f"move {path} away, then restore the lost one by `kbatch log-dirs {path} --restore {named}`"
    )
    refused = CliRunner().invoke(cli, ["log-dirs", str(path), "--restore", named])
    assert restore in str(refused.exception)
    with pytest.raises(ConfigError, match=re.escape(restore)):
        Cluster(path, create=True, log_dirs=disks(home))
    assert Cluster(path).topic_names() == ["new"]

    path.rename(home / "new")
    assert CliRunner().invoke(cli, ["log-dirs", str(path), "--restore", named]).exit_code == 0
    assert "new" not in Cluster(path).topic_names()


def test_a_cluster_is_not_created_on_the_log_dirs_of_another(home: Path) -> None:
    path, other = home / "cluster", home / "other"
    before = Cluster(path).topic_names()
    for without_nodes in (None, ()):
        with pytest.raises(ConfigError, match=f"those of the cluster at {path}: .* --restore"):
            Cluster(other, create=True, log_dirs=disks(home), without_nodes=without_nodes)
    assert not other.exists()
    assert Cluster(path).topic_names() == before


def test_a_cluster_is_restored_elsewhere_where_another_one_has_its_former_path(home: Path) -> None:
    path, other = home / "cluster", home / "other"
    before = Cluster(path).topic_names()
    shutil.rmtree(path)
    Cluster(path, create=True)
    with Cluster(other, create=True, log_dirs=disks(home)) as restored:
        assert restored.topic_names() == before


def test_a_refused_restore_leaves_nothing_at_path(home: Path) -> None:
    path, (first, *_) = home / "cluster", disks(home)
    shutil.rmtree(path)
    first.rename(home / "away")
    with pytest.raises(ConfigError, match="is lost or old"):
        Cluster(path, create=True, log_dirs=disks(home))
    with pytest.raises(ConfigError, match="there is nothing to restore"):
        Cluster(path, create=True, log_dirs=[home / "nowhere"], without_nodes=())
    assert not path.exists()


@pytest.mark.more_in_soak
def test_a_restore_that_was_killed_at_any_step_is_finished_by_the_next_one(home: Path) -> None:
    with a_cluster(home) as cluster:
        cluster.create_topic("gone", replication_factor=3)
        cluster.delete_topic("gone")
        with away(disks(home)[0]):
            send(cluster, "3")  # so that there is a file in partitions/
        cluster.replicate()
    killed, step = Disks(), 0
    while True:
        (home / "cluster").rename(home / f"lost-{step}")
        killed.kill_at = step
        try:
            a_cluster(home, files=killed).close()
            break
        except Killed:
            step += stride_of(3)
        with a_cluster(home) as cluster:
            assert read(cluster) == ["1", "2", "3"]
            assert cluster.topic_names() == ["t"]
            assert in_sync(cluster) == [0, 1, 2]
    assert step > 20


def test_nothing_is_created_where_there_is_nothing_to_restore(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is nothing to restore"):
        a_cluster(tmp_path, without_nodes=[])
    assert not (tmp_path / "cluster").exists()


def test_a_restore_waits_for_those_that_write_and_is_refused_while_they_do(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_kbatch.replica.locks._OTHERS_PATIENCE_S", 0.05)
    shutil.rmtree(home / "cluster")
    writes = Locks(Files(), home).log_dir(disks(home)[1] / "broker-1")
    with writes, pytest.raises(KBatchError, match=r"broker-1/\.lock is held by another program"):
        a_cluster(home)
    assert not (home / "cluster").exists()
    with a_cluster(home) as cluster:
        assert read(cluster) == ["1", "2"]


def test_a_restore_within_an_append_costs_no_record(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused while the append holds its locks; else one of the two goes after the other."""
    monkeypatch.setattr("spark_kbatch.replica.locks._OTHERS_PATIENCE_S", 0.005)
    path, outcomes = home / "cluster", set[str]()
    acknowledged = {0: b"1", 1: b"2"}

    def append(cluster: Cluster, value: bytes) -> None:
        batch = encode_batch([Record(0, builders.FIRST_TIMESTAMP_MS, None, value)])
        with contextlib.suppress(OSError, KBatchError):
            result = builders.append_records(cluster, {tuple(EVENTS): batch}, flush=True)[EVENTS]
            if result.error is None:
                assert result.base_offset not in acknowledged, "an offset is given again"
                acknowledged[result.base_offset] = value

    def restore() -> None:
        lost = home / f"lost-{len(acknowledged)}"
        path.rename(lost)
        try:
            restored = a_cluster(home)
        except LogDirLockedError:
            outcomes.add("refused")
            lost.rename(path)
        else:
            outcomes.add("restored")
            append(restored, b"by another process")
            restored.close()

    for at in range(0, 60, 3):
        files = Disks()
        with a_cluster(home, files=files) as cluster:
            files.look_at, files.look = at, restore
            append(cluster, b"append %d" % at)
            files.look_at = None
        with a_cluster(home) as cluster:
            found = {one.offset: one.value for one in builders.contents(cluster)[EVENTS]}
            assert found | acknowledged == found
    assert outcomes == {"refused", "restored"}


# PATH is old.


def test_an_old_path_is_brought_up_to_date_when_the_cluster_is_opened(home: Path) -> None:
    with a_cluster(home) as cluster, away(disks(home)[2]):
        send(cluster, "2a")  # so PATH has a file in partitions/
    shutil.copytree(home / "cluster", home / "backup")
    with a_cluster(home) as cluster:
        cluster.replicate()
        with away(disks(home)[0]):
            send(cluster, "3", "4")
            cluster.create_topic("later")
    shutil.rmtree(home / "cluster")
    (home / "backup").rename(home / "cluster")
    with a_cluster(home) as cluster:
        assert read(cluster) == ["1", "2", "2a", "3", "4"]
        send(cluster, "5")
        assert cluster.topic_names() == ["later", "t"]
        assert cluster.replicate() == []
        assert read(cluster) == ["1", "2", "2a", "3", "4", "5"]


def test_the_newest_file_of_a_partition_counts_though_nothing_else_has_changed(home: Path) -> None:
    with a_cluster(home) as cluster, away(disks(home)[2]):
        send(cluster, "2a")
    old = (home / "cluster/partitions/t/0.json").read_bytes()
    with a_cluster(home) as cluster:
        cluster.replicate()
        with away(disks(home)[0]):
            send(cluster, "3", "4")
    (home / "cluster/partitions/t/0.json").write_bytes(old)
    with a_cluster(home) as cluster:
        assert read(cluster) == ["1", "2", "2a", "3", "4"]
        send(cluster, "5")
        newest = json.loads((home / "cluster/partitions/t/0.json").read_text())
        assert newest["partition_epoch"] > json.loads(old)["partition_epoch"]


def test_a_process_at_a_former_path_does_not_write_any_more(home: Path) -> None:
    with a_cluster(home) as before:
        with away(home / "cluster"):
            a_cluster(home).close()
        with pytest.raises(KafkaStorageError, match="is older than the copy of its files"):
            send(before, "3")
        with pytest.raises(KafkaStorageError, match="is older than the copy of its files"):
            before.create_topic("later")
    with a_cluster(home) as cluster:
        send(cluster, "4")
        assert read(cluster) == ["1", "2", "4"]


def test_a_topic_that_an_old_path_misses_is_not_unknown(home: Path) -> None:
    with a_cluster(home) as cluster:
        shutil.copytree(home / "cluster", home / "backup")
        cluster.create_topic("later")
        (home / "cluster").rename(home / "lost")
        (home / "backup").rename(home / "cluster")
        for look in (lambda: cluster.topic("later"), cluster.topic_names):
            with pytest.raises(KafkaStorageError, match="is older than the copy of its files"):
                look()
        a_cluster(home).close()
        assert cluster.topic("later").partitions == 1


def test_a_process_that_replicates_does_not_follow_an_old_path(home: Path) -> None:
    with a_cluster(home) as cluster:
        shutil.copytree(home / "cluster", home / "backup")
        cluster.create_topic("later")
        (home / "cluster").rename(home / "lost")
        (home / "backup").rename(home / "cluster")
        with pytest.raises(KafkaStorageError, match="is older than the copy of its files"):
            cluster.replicate(["t"])
        Housekeeping(store_of(cluster), interval_ms=1000).run_once()
    with a_cluster(home) as cluster:
        assert cluster.topic_names() == ["later", "t"]


@pytest.mark.parametrize("count", range(1, 8))
def test_a_change_loses_nothing_though_an_old_path_is_put_in_place_meanwhile(
    home: Path, count: int
) -> None:
    class Swapping(Files):
        reads_left = count

        def read(self, path: Path) -> bytes:
            if path == home / "cluster/cluster.json" and (home / "backup").exists():
                self.reads_left -= 1
                if not self.reads_left:
                    (home / "cluster").rename(home / "lost")
                    (home / "backup").rename(home / "cluster")
            return super().read(path)

    with a_cluster(home, files=Swapping()) as cluster:
        shutil.copytree(home / "cluster", home / "backup")
        with a_cluster(home) as other:
            other.create_topic("later")
        with contextlib.suppress(KBatchError):
            cluster.create_topic("latest")
    with a_cluster(home) as cluster:
        assert {"later", "t"} <= {*cluster.topic_names()}


def test_topics_never_seem_to_be_gone_while_a_path_is_brought_up_to_date(home: Path) -> None:
    looks = list[object]()

    class Looking(Files):
        def rename(self, path: Path, other: Path) -> None:
            super().rename(path, other)
            with contextlib.suppress(KafkaStorageError):
                looks.append(cluster.topic("t"))
            looks.append(None)

    with a_cluster(home) as cluster:
        shutil.copytree(home / "cluster", home / "backup")
        cluster.create_topic("later")
        (home / "cluster").rename(home / "lost")
        (home / "backup").rename(home / "cluster")
        a_cluster(home, files=Looking()).close()
    assert len(looks) > 1


def test_nothing_is_made_in_place_of_a_path_that_went_away_during_an_append(home: Path) -> None:
    with a_cluster(home) as cluster:
        partition = store_of(cluster).manager.partition(EVENTS)
        with store_of(cluster).manager.locks.partitions([EVENTS]), away(home / "cluster"):
            with pytest.raises(FileNotFoundError):
                partition.elections.lead_alone_locked(1)
            assert not (home / "cluster").exists()
        send(cluster, "3")
        assert read(cluster) == ["1", "2", "3"]


def test_two_files_of_a_partition_with_one_number_and_other_content_are_named(home: Path) -> None:
    with a_cluster(home) as cluster, away(disks(home)[2]):
        send(cluster, "3")
    copy = mirrored(home, 1, "partitions/t/0.json")
    copy.write_text(json.dumps(json.loads(copy.read_text()) | {"leader": 1}))
    with a_cluster(home) as cluster, pytest.raises(KafkaStorageError, match="have the same number"):
        read(cluster)


# One disk, and several in PATH.


def test_a_cluster_within_path_has_neither_a_reign_nor_copies(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", create=True) as cluster:
        cluster.create_topic("t", replication_factor=2)
    assert "reign" not in json.loads((tmp_path / "cluster/cluster.json").read_text())


# Elections by request.


def test_a_replica_that_was_not_in_sync_leads_only_by_request(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with a_cluster(home) as cluster:
        cluster.alter_topic("t", {"min.insync.replicas": 1})
        with away(*disks(home)[:2]):
            send(cluster, "of disk 2 alone")
        shutil.rmtree(disks(home)[2])
        with pytest.raises(KBatchError):
            send(cluster, "3")
        with pytest.raises(KafkaStorageError, match="no in-sync replica"):
            read(cluster)

        expected = [GivenUp(EVENTS, first_offset=2, end_offset=None, nodes=(2,))]
        assert cluster.elect_unclean("t", dry_run=True) == expected
        with pytest.raises(KafkaStorageError, match="no in-sync replica"):
            read(cluster)
        assert cluster.elect_unclean("t") == expected
        assert "from offset 2 on; what only node 2 had is given up" in caplog.text
        (given_up,) = cluster.elect_unclean("__transaction_state")
        assert given_up.topic_partition == TopicPartition("__transaction_state", 0)
        send(cluster, "3")
        assert read(cluster) == ["1", "2", "3"]
        assert in_sync(cluster) == [0, 1]
        assert cluster.elect_unclean("t") == []
