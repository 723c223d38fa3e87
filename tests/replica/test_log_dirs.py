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
from spark_kbatch.errors import ConfigError, KafkaStorageError
from spark_kbatch.log.checkpoints import write_partition_metadata
from spark_kbatch.model import TopicPartition, random_id
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.store.reports import GivenUp, LogDirInfo
from tests.support import builders
from tests.support.builders import append_records, batch, staged
from tests.support.failing_disks import EVENTS, Disks, Killed, a_replicated_cluster, bytes_of
from tests.support.store import append_records as append_by
from tests.support.store import store_of

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
            3, 3 if node == 0 else 0, 0, 0, "online", 0,
        )._asdict()
        for node in range(3)
    ]  # fmt: skip


def test_what_jobs_have_staged_is_shown(cluster: Cluster) -> None:
    staged(cluster, {("events", 0): [batch(n=500)]})
    _, rows = run("log-dirs", str(cluster.path))

    for node, row in enumerate(rows):
        files = (cluster.path.parent / f"disk-{node}/staging-{node}").rglob("*")
        size = sum(one.stat().st_size for one in files if one.is_file())
        assert row["staged_size_in_bytes"] == size > 500


def test_one_that_is_lost_is_shown_and_replaced(cluster: Cluster) -> None:
    append_records(cluster, {EVENTS: batch()})
    lose(cluster, 0)
    code, rows = run("log-dirs", str(cluster.path))
    assert code == 1
    assert "No such file or directory" in rows[0]["why_offline"]
    assert [row["not_in_sync"] for row in rows] == [3, 0, 0]
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
    assert store_of(Cluster(str(cluster.path))).manager.partition(COPIED).view.state().isr == (
        0,
        1,
        2,
    )
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
    log = store_of(cluster).manager.partition(EVENTS)._log_of(0)
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


def test_a_replaced_disk_is_filled_though_nothing_was_appended_since_it_was_lost(
    cluster: Cluster,
) -> None:
    append_records(cluster, {EVENTS: batch()})
    shutil.rmtree(cluster.path.parent / "disk-1")
    assert [row["not_in_sync"] for row in run("log-dirs", str(cluster.path))[1]] == [0, 3, 0]
    again = Cluster(str(cluster.path))
    again.replace_log_dir(1)
    assert store_of(again).manager.partition(EVENTS).view.state().isr == (0, 2)
    assert again.replicate() == []

    assert all(one.not_in_sync == 0 for one in again.log_dirs())
    assert all(not report.damaged + report.found for report in again.verify())
    for node_id in (0, 2):
        shutil.rmtree(cluster.path.parent / f"disk-{node_id}")
    assert builders.contents(Cluster(str(cluster.path)))[EVENTS] == builders.records_of([batch()])


def test_a_replica_that_is_back_from_an_older_image_is_not_in_sync_until_it_has_caught_up(
    cluster: Cluster,
) -> None:
    append_records(cluster, {EVENTS: batch(n=2)})
    disk = cluster.path.parent / "disk-2"
    shutil.copytree(disk, disk.with_name("image"))
    append_records(cluster, {EVENTS: batch(n=3)})
    shutil.rmtree(disk)
    disk.with_name("image").rename(disk)
    again = Cluster(str(cluster.path))

    assert [one.in_sync for one in again.replicas("events")[EVENTS]] == [True, True, False]
    assert again.metrics()["ReplicaManager"]["UnderReplicatedPartitions"] == 1
    assert any("node 2 is not in sync" in what for one in again.verify() for what in one.found)
    assert again.replicate() == []
    assert [one.in_sync for one in again.replicas("events")[EVENTS]] == [True] * 3
    assert all(not report.damaged + report.found for report in again.verify())


def test_a_log_of_another_topic_is_moved_aside_and_made_again(cluster: Cluster) -> None:
    append_records(cluster, {EVENTS: batch()})
    log = cluster.path.parent / f"disk-2/broker-2/{EVENTS}"
    write_partition_metadata(store_of(cluster).files, log, random_id())
    assert [one.in_sync for one in cluster.replicas("events")[EVENTS]] == [True, True, False]
    assert cluster.replicate() == []

    assert [one.in_sync for one in cluster.replicas("events")[EVENTS]] == [True] * 3
    assert all(not report.damaged + report.found for report in cluster.verify())
    assert len([*log.parent.glob("events-0.*-stray/*.log")]) == 1


@pytest.mark.parametrize("appends_first", [True, False])
def test_a_leader_that_is_back_from_an_older_image_takes_nothing_from_the_others(
    cluster: Cluster, appends_first: bool
) -> None:
    batches = [batch(n=n + 2, seed=n) for n in range(4)]
    append_records(cluster, {EVENTS: batches[0]})
    disk = cluster.path.parent / "disk-0"
    shutil.copytree(disk, disk.with_name("image"))
    for data in batches[1:3]:
        append_records(cluster, {EVENTS: data})
    shutil.rmtree(disk)
    disk.with_name("image").rename(disk)
    again = Cluster(str(cluster.path))

    assert [one.in_sync for one in again.replicas("events")[EVENTS]] == [False, True, True]
    (report,) = again.verify([EVENTS])
    what = (
        "replica on node 0, which leads, has offsets 0 to 2, others in sync have 0 to 9: what was"
    )
    assert what in report.found[0]
    # Readers do not follow it.
    assert builders.contents(again)[EVENTS] == builders.records_of(batches[:3])
    if not appends_first:
        assert again.replicate() == []
        assert all(not one.damaged + one.found for one in again.verify())
    append_records(again, {EVENTS: batches[3]})
    assert again.replicate() == []
    assert builders.contents(again)[EVENTS] == builders.records_of(batches)
    assert all(not one.damaged + one.found for one in again.verify())


def test_the_only_copy_is_replaced_only_by_name(cluster: Cluster) -> None:
    cluster.create_topic("single", partitions=2)
    append_records(cluster, {("single", 1): batch()})
    shutil.rmtree(cluster.path.parent / "disk-1")
    path = str(cluster.path)
    done = CliRunner().invoke(cli, ["log-dirs", path, "--replace", "1"])
    assert done.exit_code == 1
    assert "can be used of single-1" in str(done.exception)
    assert not (cluster.path.parent / "disk-1").exists()

    assert cluster.replace_log_dir(1, unclean=True, dry_run=True) == [
        GivenUp(TopicPartition("single", 1), None, None, (1,))
    ]
    done = CliRunner().invoke(cli, ["log-dirs", path, "--replace", "1", "--unclean"], input="y\n")
    assert done.exit_code == 1
    assert "single-1: all records of node 1; their end offset is not known\n" in done.stderr
    assert "give --yes to give this up" in str(done.exception)
    assert not (cluster.path.parent / "disk-1").exists()

    code, (told, *_) = run("log-dirs", path, "--replace", "1", "--unclean", "--yes")
    assert code == 0
    assert told["given_up"]["topic"] == "single"
    again = Cluster(path)
    (result,) = append_records(again, {("single", 1): batch(n=2)}).values()
    assert (result.error, result.base_offset) == (None, 0)
    assert len(builders.contents(again)[TopicPartition("single", 1)]) == 2


@pytest.mark.parametrize("is_of_another_cluster", [False, True])
def test_another_disk_is_neither_read_nor_written_where_it_would_be_the_only_replica(
    cluster: Cluster, tmp_path: Path, is_of_another_cluster: bool
) -> None:
    cluster.create_topic("single", partitions=3)
    append_records(cluster, {("single", 1): batch()})
    disk, former = cluster.path.parent / "disk-1", cluster.path.parent / "former"
    if is_of_another_cluster:
        dirs = [tmp_path / f"other-{node}" for node in range(3)]
        with Cluster(tmp_path / "other", create=True, log_dirs=dirs) as other:
            other.create_topic("single", partitions=3)
            append_records(other, {("single", 1): batch(n=7)})
        disk.rename(former)
        dirs[1].rename(disk)
    else:
        shutil.copytree(disk, former)
        shutil.rmtree(disk)
        assert run("log-dirs", str(cluster.path), "--replace", "1", "--unclean", "--yes")[0] == 0
        shutil.rmtree(disk)
        shutil.copytree(former, disk)
    before = {file: file.read_bytes() for file in disk.rglob("*") if file.is_file()}
    if not is_of_another_cluster:  # Then its copies of the cluster's files are brought up to date.
        before = {file: data for file, data in before.items() if "broker-1" in file.parts}

    for one in (cluster, Cluster(cluster.path)):
        with pytest.raises(
            KafkaStorageError, match=r"single-1 has no in-sync replica.*another disk"
        ):
            one.read("single").read_all()
        (result,) = append_records(one, {("single", 1): batch()}).values()
        assert "another disk is mounted there" in str(result.error)
        with pytest.raises(KafkaStorageError, match="another disk"):
            one.delete_records({TopicPartition("single", 1): 1})
        with pytest.raises(KafkaStorageError, match="another disk"):
            builders.write(one, {("single", 1): [batch()]})
        (verified,) = [report for report in one.verify() if report.topic_partition == ("single", 1)]
        assert "another disk is mounted there" in verified.offline[0]
        (result,) = append_records(one, {("single", 0): batch()}).values()
        assert result.error is None
    if is_of_another_cluster:
        cluster.alter_topic("events", {"max.message.bytes": 77_777})
        cluster.create_topic("new", partitions=3)
        cluster.create_partitions("single", 6)
        cluster.replicate()
        cluster.delete_topic("events")
        assert {file: file.read_bytes() for file in disk.rglob("*") if file.is_file()} == before
    assert {file: file.read_bytes() for file in before} == before

    shutil.rmtree(disk)
    if is_of_another_cluster:
        former.rename(disk)
        assert len(builders.contents(Cluster(cluster.path))[TopicPartition("single", 1)]) == 3


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


def test_replicate_shows_records_whose_writer_died_after_its_answer(tmp_path: Path) -> None:
    cluster = a_replicated_cluster(tmp_path, Disks())

    def die(_: object) -> None:
        raise Killed

    with pytest.raises(Killed):
        append_by(store_of(cluster),
            timeout_ms=1000, required_acks=1, entries_per_partition={EVENTS: builders.batch(n=1)},
            on_complete=die, flush=False,
        )  # fmt: skip
    assert builders.contents(cluster)[EVENTS] == []

    assert cluster.replicate() == []
    assert len(builders.contents(cluster)[EVENTS]) == 1
    assert bytes_of(cluster, 0) == bytes_of(cluster, 1) == bytes_of(cluster, 2)
