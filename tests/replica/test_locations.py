"""Locations of a cluster's files: copies, moved folders, file systems, modes, names from cluster.json."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from spark_kbatch import Cluster
from spark_kbatch.errors import ConfigError, KafkaStorageError, UnknownTopicOrPartitionError
from spark_kbatch.files import Files, LockFile
from tests.support import builders
from tests.support.disk import Disk, DiskFiles
from tests.support.faults import open_files, run_child

# Log dirs that lie elsewhere.


def a_cluster_on_disks(folder: Path) -> Cluster:
    return Cluster(
        str(folder / "home"), create=True, log_dirs=[folder / "disk-0", folder / "disk-1"]
    )


def test_a_copy_of_the_folder_that_shares_its_log_dirs_is_refused(tmp_path: Path) -> None:
    home = a_cluster_on_disks(tmp_path).path
    copy = shutil.copytree(home, tmp_path / "copy")
    with pytest.raises(
        ConfigError, match=f"copy is a copy of the kbatch cluster at {home}"
    ) as told:
        Cluster(str(copy))
    assert f"rename or remove {home} first" in str(told.value)

    home.rename(tmp_path / "away")
    Cluster(str(copy)).create_topic("t")
    with pytest.raises(
        ConfigError, match=f"away is a former PATH of the cluster that is at {copy}"
    ):
        Cluster(str(tmp_path / "away"))


def test_the_folder_may_be_moved_and_have_other_names(tmp_path: Path) -> None:
    home = a_cluster_on_disks(tmp_path).path
    link = tmp_path / "link"
    link.symlink_to(home)
    Cluster(str(link)).create_topic("one")
    Cluster(str(home)).create_topic("two")
    moved = home.rename(tmp_path / "moved")
    assert Cluster(str(moved)).topic_names() == ["one", "two"]


def test_what_is_no_name_of_a_folder_is_damage(tmp_path: Path) -> None:
    cluster_file = a_cluster_on_disks(tmp_path).path / "cluster.json"
    stored = json.loads(cluster_file.read_text())
    cluster_file.write_text(json.dumps(stored | {"path": "\ud800"}))

    with pytest.raises(KafkaStorageError, match=r"cluster.json is damaged: path is .*ud800"):
        Cluster(str(cluster_file.parent))


def test_another_cluster_where_it_was_is_not_in_the_way(tmp_path: Path) -> None:
    home = a_cluster_on_disks(tmp_path).path
    moved = home.rename(tmp_path / "moved")
    Cluster(str(home), create=True)
    Cluster(str(moved))


def test_a_copy_of_a_cluster_whose_logs_lie_in_its_folder_is_a_cluster(tmp_path: Path) -> None:
    cluster = Cluster(str(tmp_path / "home"), create=True)
    cluster.create_topic("t")
    copy = Cluster(str(shutil.copytree(cluster.path, tmp_path / "copy")))
    copy.create_topic("another")
    assert cluster.topic_names() == ["t"]


@pytest.mark.parametrize("name", ["documents", "broker-1", "broker-0-old"])
def test_a_log_dir_with_another_name_is_refused(tmp_path: Path, name: str) -> None:
    path = Cluster(str(tmp_path / "cluster"), create=True).path / "cluster.json"
    fields = json.loads(path.read_text())
    fields["log_dirs"][0]["path"] = str(tmp_path / name)
    path.write_text(json.dumps(fields))
    with pytest.raises(
        KafkaStorageError, match=f"{name}; expected a folder that is named broker-0"
    ):
        Cluster(str(path.parent))


# File systems.


class IgnoresCase(Files):
    """A disk that ignores the case of names."""

    def _there(self, path: Path) -> Path:
        if path.parent.is_dir():
            for found in path.parent.iterdir():
                if found.name.lower() == path.name.lower():
                    return found
        return path

    def exists(self, path: Path) -> bool:
        return super().exists(self._there(path))

    def fingerprint(self, path: Path) -> Any:
        return super().fingerprint(self._there(path))

    def read(self, path: Path, position: int = 0, size: int | None = None) -> bytes:
        return super().read(self._there(path), position, size)


def test_where_case_is_ignored_a_topics_name_does_not_differ_by_it_alone(tmp_path: Path) -> None:
    cluster = Cluster(str(tmp_path / "cluster"), create=True, files=IgnoresCase())
    cluster.create_topic("events", partitions=2)
    with pytest.raises(ConfigError, match="topic 'Events' cannot be created beside 'events'"):
        cluster.create_topic("Events")
    with pytest.raises(UnknownTopicOrPartitionError, match="topic 'EVENTS' does not exist"):
        cluster.topic("EVENTS")
    assert cluster.topic("events").partitions == 2
    assert cluster.topic_names() == ["events"]


def test_where_case_counts_it_is_a_difference(tmp_path: Path) -> None:
    cluster = Cluster(str(tmp_path / "cluster"), create=True)
    cluster.create_topic("events", partitions=2)
    assert cluster.create_topic("Events").partitions == 1
    assert cluster.topic_names() == ["Events", "events"]


class RecordLocksDoNotExclude(Files):
    def lock_byte(self, file: LockFile, position: int, *, wait: bool = True) -> bool:
        return True


class FlockDoesNotExclude(Files):
    def flock(self, path: Path, *, wait: bool = True) -> LockFile:
        return self.open_for_locks(path)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        pytest.param(
            RecordLocksDoNotExclude(), "record locks do not exclude others", id="record locks"
        ),
        pytest.param(FlockDoesNotExclude(), "flock does not exclude others", id="flock"),
    ],
)
def test_locks_that_do_not_exclude_others_are_found_out(
    tmp_path: Path, files: Files, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        Cluster(str(tmp_path / "cluster"), create=True, files=files)
    assert not open_files(tmp_path)


def test_a_cluster_that_was_made_is_on_disk_with_all_its_parents(tmp_path: Path) -> None:
    disk = Disk()
    files = DiskFiles(disk)
    path = files.mount / "new" / "folders" / "cluster"
    Cluster(str(path), create=True, files=files, log_dirs=[files.mount / "new" / "disk"])
    for seed in range(20):
        after = DiskFiles(disk.after_power_loss(random.Random(seed)))
        assert Cluster(str(path), files=after).topic_names() == []
        assert after.is_dir(files.mount / "new" / "disk" / "staging-0")
        assert after.is_dir(files.mount / "new" / "disk" / "mirror-0")


@pytest.mark.parametrize("mask", [0o002, 0o022, 0o077])
def test_the_umask_decides_who_may_read_and_write(tmp_path: Path, mask: int) -> None:
    def work() -> None:
        os.umask(mask)
        cluster = builders.a_cluster(tmp_path)
        builders.write(cluster, {("events", 0): [builders.batch()]})
        builders.staged(cluster, {("events", 0): [builders.batch()]})

    assert os.waitpid(run_child(work), 0)[1] == 0
    cluster = tmp_path / "cluster"
    modes = {(path.is_dir(), path.stat().st_mode & 0o777) for path in cluster.rglob("*")}
    assert modes == {(True, 0o777 & ~mask), (False, 0o666 & ~mask)}
