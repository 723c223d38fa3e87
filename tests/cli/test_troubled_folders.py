"""`kbatch topics` and `log-dirs` where a partition cannot be read, or a disk is full, read-only or gone."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.errors import KafkaStorageError
from tests.support.answers import kbatch_answering
from tests.support.small_disk import fill, kbatch, on_small_disk


def test_topics_shows_the_other_partitions_and_how_to_repair_one(tmp_path: Path) -> None:
    path = tmp_path / "cluster"
    with spark_kbatch.open(path, create=True) as cluster, cluster.producer() as producer:
        for name in ("events", "others"):
            cluster.create_topic(name, partitions=2)
            producer.send(name, value="v", partition=1).result()
    (path / "broker-0/events-0/kbatch.state").unlink()

    done = kbatch("topics", path)
    assert done.returncode == 1
    sums = [line.split("\t") for line in done.stdout.splitlines()[1:]]
    assert sums == [["events", "2", "-", "-"], ["others", "2", "1", "69"]]
    done = kbatch("topics", path, "-v")
    assert done.returncode == 1
    assert [line.split("\t") for line in done.stdout.splitlines()[1:]] == [
        ["events", "0", "-", "-", "-", "-"],
        ["events", "1", "0", "1", "1", "69"],
        ["others", "0", "0", "0", "0", "0"],
        ["others", "1", "0", "1", "1", "69"],
    ]
    assert done.stderr.startswith("kbatch: events-0 cannot be read: ")
    assert "is missing: run `kbatch repair`" in done.stderr
    (events, _) = map(json.loads, kbatch("topics", path, "--json").stdout.splitlines())
    assert "run `kbatch repair`" in events["partitions"][0]["error"]
    assert events["partitions"][1]["high_watermark"] == 1

    lost, sound = Cluster(path).describe("events")
    assert (lost.offsets.high_watermark, lost.size_in_bytes) == (-1, -1)
    assert "run `kbatch repair`" in lost.error
    assert (sound.offsets.high_watermark, sound.error) == (1, "")
    assert "repaired" in kbatch("repair", path).stdout
    assert kbatch("topics", path).returncode == 0


def test_a_topic_of_which_nothing_can_be_read_is_an_error(tmp_path: Path) -> None:
    with spark_kbatch.open(tmp_path / "cluster", create=True) as cluster:
        cluster.create_topic("events")
        (tmp_path / "cluster/broker-0/events-0/kbatch.state").unlink()
        with pytest.raises(KafkaStorageError, match="run `kbatch repair`"):
            cluster.describe("events")


def states(path: Path) -> list[tuple[int, str]]:
    """Return the exit code and the state of each log dir, which the table and the JSON agree on."""
    table, objects = kbatch("log-dirs", path), kbatch("log-dirs", path, "--json")
    found = [json.loads(line) for line in objects.stdout.splitlines()]
    for line, one in zip(table.stdout.splitlines()[1:], found, strict=True):
        why = one["why_offline"]
        assert line.endswith(one["state"] if why is None else f"{one['state']}: {why}"), table
    assert table.returncode == objects.returncode, table
    return [(table.returncode, one["state"]) for one in found]


def one_disk(disk: Path) -> None:
    path = disk / "cluster"
    spark_kbatch.open(path, create=True).create_topic("events")
    assert states(path) == [(0, "online")]
    filler = fill(disk)
    assert states(path) == [(1, "full")]
    filler.unlink()
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    assert states(path) == [(1, "read-only")]


def two_disks(disk: Path) -> None:
    path, disks = disk.parent / "cluster", [disk, disk.parent / "disk-2"]
    cluster = spark_kbatch.open(path, create=True, log_dirs=disks)
    cluster.create_topic("events", replication_factor=2)
    assert states(path) == [(0, "online"), (0, "online")]
    filler = fill(disk)
    assert states(path) == [(1, "full"), (1, "online")]
    filler.unlink()
    shutil.rmtree(disk / "broker-0")
    assert states(path) == [(1, "offline"), (1, "online")]


@pytest.mark.parametrize("work", [one_disk, two_disks])
def test_log_dirs_tells_what_a_disk_can_do(work, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    on_small_disk(work, tmp_path, size="24m")


# The way back, by the commands that errors name.


def on_three_disks(folder: Path) -> Path:
    """Make a cluster with one record; PATH is on the first of its disks."""
    disks = [folder / f"disk-{node}" for node in range(3)]
    path = disks[0] / "cluster"
    with spark_kbatch.open(path, create=True, log_dirs=disks) as cluster:
        cluster.create_topic("events", replication_factor=3, config={"min.insync.replicas": 2})
        with cluster.producer(acks="all") as producer:
            producer.send("events", value="one").result()
    return path


def in_sync(path: Path) -> list[bool]:
    (replicas,) = Cluster(path).replicas("events").values()
    return [one.in_sync for one in replicas]


def test_a_disk_that_is_lost_with_path_is_given_up_and_replaced(tmp_path: Path) -> None:
    path = on_three_disks(tmp_path)
    disks = ",".join(str(tmp_path / f"disk-{node}") for node in range(3))
    shutil.rmtree(path.parent)  # the disk of PATH and node 0
    refused = kbatch("log-dirs", path, "--restore", disks)
    assert refused.returncode == 1
    assert f"`kbatch log-dirs {path} --restore {disks} --without-node 0`" in refused.stderr

    restore = ("log-dirs", path, "--restore", disks, "--without-node", "0")
    refused = kbatch(*restore)
    assert refused.returncode == 1
    changes = "changes that only node 0 knows: of topics, leaders and commits"
    assert f"{changes}\n" in refused.stderr
    assert not (path / "cluster.json").exists()
    restored = kbatch(*restore, "--yes")
    assert "offline" in restored.stdout
    assert kbatch("consume", path, "events", "--format", "%s").stdout.split() == ["one"]
    replaced = kbatch("log-dirs", path, "--replace", "0")
    assert replaced.returncode == 0, replaced
    assert in_sync(path) == [True, True, True]


def test_an_operator_elects_a_replica_that_was_not_in_sync(tmp_path: Path) -> None:
    path = on_three_disks(tmp_path)
    with Cluster(path) as cluster:
        cluster.alter_topic("events", {"min.insync.replicas": 1})
        for node in (1, 2):
            (tmp_path / f"disk-{node}").rename(tmp_path / f"away-{node}")
        with cluster.producer(acks="all") as producer:
            producer.send("events", value="two").result()
    for node in (1, 2):
        (tmp_path / f"away-{node}").rename(tmp_path / f"disk-{node}")
    shutil.rmtree(tmp_path / "disk-0/broker-0")
    refused = kbatch("consume", path, "events", "--format", "%s")
    assert refused.returncode == 1
    assert "events-0 has no in-sync replica that can be used: node 0" in refused.stderr

    elect = ("log-dirs", path, "--elect-unclean", "events")
    lost = "offsets 1 to not known (exclusive), which only node 0 may have"
    looked = kbatch(*elect, "--dry-run")
    assert (looked.returncode, looked.stdout) == (0, "")
    assert looked.stderr.endswith(f"events-0: would be given up: {lost}\n")
    for answered in (kbatch(*elect), kbatch_answering("n\n", *elect)):
        assert (answered.returncode, answered.stdout) == (1, "")
        assert f"events-0: {lost}\n" in answered.stderr
        assert kbatch("consume", path, "events").returncode == 1
    done = kbatch_answering("y\n", *elect)
    assert "events-0: a replica that was not in sync leads" in done.stderr
    assert f"events-0: given up: {lost}\n" in done.stderr
    assert kbatch("consume", path, "events", "--format", "%s").stdout.split() == ["one"]
    replaced = kbatch("log-dirs", path, "--replace", "0")
    assert replaced.returncode == 0, replaced
    assert in_sync(path) == [True, True, True]


def test_what_a_restore_gives_up_is_told_before_by_partition(tmp_path: Path) -> None:
    path = on_three_disks(tmp_path)
    with Cluster(path) as cluster, cluster.producer() as producer:
        cluster.create_topic("single", partitions=3)
        for partition in range(3):
            producer.send("single", value="v", partition=partition).result()
        cluster.alter_topic("events", {"min.insync.replicas": 1})
        for node in (1, 2):
            (tmp_path / f"disk-{node}").rename(tmp_path / f"away-{node}")
        producer.send("events", value="two").result()
    (tmp_path / "away-1").rename(tmp_path / "disk-1")
    assert kbatch("log-dirs", path).returncode == 1  # refreshes the copy on disk 1
    with Cluster(path) as cluster, cluster.producer() as producer:
        producer.send("events", value="three").result()
    (tmp_path / "away-2").rename(tmp_path / "disk-2")
    (tmp_path / "disk-0").rename(tmp_path / "away-0")
    (tmp_path / "disk-1").rename(tmp_path / "away-1")
    disks = ",".join(str(tmp_path / f"disk-{node}") for node in range(3))
    words = ("--restore", disks, "--without-node", "0", "--without-node", "1", "--json")
    refused = kbatch("log-dirs", path, *words)
    assert refused.returncode == 1
    assert "single-0: all records of node 0; their end offset is not known\n" in refused.stderr
    assert "single-1: all records of node 1; their end offset is not known\n" in refused.stderr
    assert "single-2" not in refused.stderr
    looked = kbatch("log-dirs", path, *words, "--dry-run")
    first, *_ = (json.loads(line) for line in looked.stdout.splitlines())
    assert first["would_be_given_up"]["topic"] == "single"
    assert not (path / "cluster.json").exists()
    done = kbatch("log-dirs", path, *words, "--yes")
    first, *_ = (json.loads(line) for line in done.stdout.splitlines())
    assert first == {
        "given_up": {"topic": "single", "partition": 0, "first_offset": None, "end_offset": None}
    }
    assert kbatch("consume", path, "single", "-p", "2", "--format", "%s").stdout == "v"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--without-node", "0"], "--without-node goes with --restore"),
        (["--unclean"], "--unclean goes with --replace"),
        (["--dry-run"], "--dry-run goes with one of --replace, --elect-unclean and --restore"),
    ],
)
def test_an_option_without_the_one_it_goes_with_is_refused(
    tmp_path: Path, given: list[str], said: str
) -> None:
    done = kbatch("log-dirs", tmp_path / "nowhere", *given)
    assert done.returncode == 2
    assert said in done.stderr
