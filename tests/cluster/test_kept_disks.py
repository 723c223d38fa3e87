"""A cluster on three disks that an earlier version wrote loses nothing with today's code, whatever fails first.

`data/disks/252fd4a.tar.xz` was written by the code of that commit: PATH and three disks, without reigns and
without copies of what partitions have. Disk 2 was away while ten of the fifty records of `events` were
written, and is not in sync; each partition of `alone` is on one disk. `252fd4a-code.tar.xz` is that code,
without docstrings, so that a process of it can go on beside today's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.errors import ConfigError

ARCHIVE = Path(__file__).parents[1] / "data/disks/252fd4a.tar.xz"
CODE = ARCHIVE.with_name("252fd4a-code.tar.xz")
WHERE_IT_WAS = "/srv/kept"
NODES = [0, 1, 2]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as tar:
        tar.extractall(tmp_path, filter="data")
    for file in tmp_path.rglob("cluster.json"):
        file.write_text(file.read_text().replace(WHERE_IT_WAS, str(tmp_path)))
    return tmp_path


def open_it(home: Path, *, create: bool = False) -> Cluster:
    disks = [home / f"disk-{node}" for node in NODES] if create else []
    return Cluster(home / "cluster", create=create, log_dirs=disks)


def events(cluster: Cluster) -> list[str]:
    found = cluster.read("events").read_all()["value"].to_pylist()
    return sorted(value.decode().strip() for value in found)


EXPECTED = sorted(f"event {number}" for number in range(50))


def ensure_whole(cluster: Cluster, *more: str) -> None:
    """Check that all disks have everything once they are filled up, and that writes go on."""
    assert cluster.replicate() == []
    assert not [what for one in cluster.verify() for what in (*one.damaged, *one.found)]
    with cluster.producer(acks="all") as producer:
        producer.send("events", value="later").result()
    assert events(cluster) == sorted([*EXPECTED, *more, "later"])
    assert len(cluster.read("alone").read_all()) == 40


def test_it_is_read_filled_up_and_written(home: Path) -> None:
    cluster = open_it(home)
    assert events(cluster) == EXPECTED
    assert [one.in_sync for one in cluster.replicas("events")["events", 0]] == [True, True, False]
    ensure_whole(cluster)


@pytest.mark.parametrize("node", NODES)
def test_a_disk_that_is_away_when_it_is_first_opened_comes_back(home: Path, node: int) -> None:
    disk = home / f"disk-{node}"
    disk.rename(home / "away")
    cluster = open_it(home)
    assert events(cluster) == EXPECTED
    with cluster.producer(acks="all") as producer:
        producer.send("events", value="meanwhile", partition=0).result()
    (home / "away").rename(disk)
    ensure_whole(open_it(home), "meanwhile")


@pytest.mark.parametrize("node", NODES)
def test_a_disk_that_is_lost_is_replaced_without_what_it_alone_had(home: Path, node: int) -> None:
    shutil.rmtree(home / f"disk-{node}")
    cluster = open_it(home)
    cluster.replace_log_dir(node, unclean=True)
    assert cluster.replicate() == []
    assert events(cluster) == EXPECTED
    alone = cluster.read("alone").read_all()["partition"].to_pylist()
    assert {*alone} == {*NODES} - {node}


def test_path_is_restored_from_disks_that_know_of_no_reign(home: Path) -> None:
    """Which replicas were in sync is told by their logs alone."""
    shutil.rmtree(home / "cluster")
    ensure_whole(open_it(home, create=True))


def test_a_restore_without_one_of_the_disks_is_refused(home: Path) -> None:
    shutil.rmtree(home / "cluster")
    (home / "disk-0").rename(home / "away")
    with pytest.raises(ConfigError, match="disk-0/broker-0 cannot be used"):
        open_it(home, create=True)
    (home / "away").rename(home / "disk-0")
    ensure_whole(open_it(home, create=True))


def test_a_path_as_it_was_before_is_brought_up_to_date(home: Path) -> None:
    shutil.copytree(home / "cluster", home / "backup")
    cluster = open_it(home)
    cluster.alter_topic("events", {"max.message.bytes": 1_111_111})
    with cluster.producer(acks="all") as producer:
        producer.send("events", value="meanwhile", partition=1).result()
    shutil.rmtree(home / "cluster")
    (home / "backup").rename(home / "cluster")
    again = open_it(home, create=True)
    assert again.topic("events").config.max_message_bytes == 1_111_111
    ensure_whole(again, "meanwhile")


# A process of that version still runs.

OLDER = """
import sys
from spark_kbatch import Cluster

cluster = Cluster(sys.argv[1])
print("open", flush=True)
for line in sys.stdin:
    command, word = line.split()
    if command == "append":
        with cluster.producer(acks="all") as producer:
            found = producer.send("events", value=word, partition=0).result().offset
    elif command == "alter":
        cluster.alter_topic("events", {"max.message.bytes": int(word)})
        found = cluster.topic("events").config.max_message_bytes
    else:
        found = len(cluster.read(word).read_all())
    print(found, flush=True)
"""


class Older:
    """A process of the earlier version, which has the cluster open."""

    def __init__(self, home: Path) -> None:
        with tarfile.open(CODE) as tar:
            tar.extractall(home / "code", filter="data")
        self._process = subprocess.Popen(
            [sys.executable, "-c", OLDER, str(home / "cluster")],
            env={**os.environ, "PYTHONPATH": str(home / "code")},
            cwd=home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "open"

    def does(self, command: str, word: str) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command} {word}\n")
        self._process.stdin.flush()
        return int(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def older(home: Path) -> Iterator[Older]:
    process = Older(home)
    yield process
    process.end()


def append(cluster: Cluster, value: str) -> int:
    with cluster.producer(acks="all") as producer:
        return producer.send("events", value=value, partition=0).result().offset


@pytest.mark.parametrize(("node", "path_is_lost"), [(0, True), (1, False)])
def test_a_process_of_the_earlier_version_goes_on_beside_todays(
    home: Path, older: Older, node: int, path_is_lost: bool
) -> None:
    """Also while a disk is away: each sees what the other wrote, and offsets follow each other."""
    sent = ["old-1", "new-1", "old-2", "new-2", "old-3", "new-3", "old-4"]
    disk, away = home / f"disk-{node}", home / "away"
    first = older.does("append", "old-1")
    cluster = open_it(home)
    offsets = [first, append(cluster, "new-1"), older.does("append", "old-2")]
    cluster.replicate()
    assert older.does("alter", "1222222") == 1_222_222
    cluster.alter_topic("events", {"max.message.bytes": 1_111_111})
    disk.rename(away)
    offsets += [append(cluster, "new-2"), older.does("append", "old-3"), append(cluster, "new-3")]
    away.rename(disk)
    offsets.append(older.does("append", "old-4"))
    assert offsets == [*range(first, first + len(sent))]
    assert older.does("read", "events") == len(EXPECTED) + len(sent)
    assert cluster.replicate() == []
    if path_is_lost:
        older.end()
        shutil.rmtree(home / "cluster")
        cluster = open_it(home, create=True)
    assert cluster.topic("events").config.max_message_bytes == 1_111_111
    ensure_whole(cluster, *sent)
