"""Disks that fail one by one, and a cluster on them with a clock that tests set."""

from __future__ import annotations

import errno
import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_kbatch import Cluster
from spark_kbatch.catalog.metadata import Metadata
from spark_kbatch.files import Files
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.replica.manager import ReplicaManager
from spark_kbatch.replica.partition import Partition
from spark_kbatch.store.reports import ReplicaInfo
from tests.support import builders
from tests.support.disk import Disk, DiskFiles, Node
from tests.support.faults import Faults, Unflushed
from tests.support.reference import Record, encode_batch
from tests.support.store import store_of

EVENTS = TopicPartition("events", 0)

# The errno that every operation, or every change, raises.
BROKEN, FULL, READ_ONLY = errno.EIO, errno.ENOSPC, errno.EROFS


class FailingFolders(Faults):
    """A mixin: folders fail on demand; `kill_at` ends a process as SIGKILL would.

    A process here is a separate `Cluster`; after `Killed` its writes are still there.
    """

    def __init__(self, *disk: Any) -> None:
        super().__init__(None, *disk)
        self.failing: dict[Path, int] = {}  # errno by folder
        self.kill_at: int | None = None  # steps from now
        self.look_at: int | None = None  # as well: then `look` is called, once
        self.look: Callable[[], object] = lambda: None
        self.hanging: Path | None = None
        self.is_waited_for, self.hangs_no_more = threading.Event(), threading.Event()

    def hang(self, folder: Path) -> None:
        """Let whoever comes to a folder wait there until it is mended."""
        self.is_waited_for.clear()
        self.hangs_no_more.clear()
        self.hanging = folder

    def fail(self, folder: Path, error: int) -> None:
        # Replaced whole, because other threads look at it.
        self.failing = {**self.failing, folder: error}

    def mend(self, folder: Path) -> None:
        self.failing = {one: error for one, error in self.failing.items() if one != folder}
        self.hanging = None
        self.hangs_no_more.set()

    def _check(self, path: Path, *, changes: bool) -> None:
        if self.hanging is not None and _is_within(path, self.hanging):
            self.is_waited_for.set()
            self.hangs_no_more.wait()
        for folder, error in self.failing.items():
            if (changes or error == BROKEN) and _is_within(path, folder):
                raise OSError(error, os.strerror(error), str(path))

    def _step(
        self, name: str, where: Path | int, partly: Callable[[float], object] | None = None
    ) -> None:
        path = where if isinstance(where, Path) else self.path_of(where)
        self.steps.append(name)
        if self.look_at is not None:
            self.look_at -= 1
            if self.look_at < 0:
                self.look_at = None
                self.look()
        if self.kill_at is not None:
            self.kill_at -= 1
            if self.kill_at < 0:
                if partly is not None:
                    partly(0.5)
                raise Killed
        self._check(path, changes=True)

    def opened(self, path: Path, *, write: bool = False):  # type: ignore[no-untyped-def]
        self._check(path, changes=write)
        return super(Faults, self).opened(path, write=write)

    def list(self, directory: Path) -> list[str]:
        self._check(directory, changes=False)
        return super().list(directory)

    def read(self, path: Path, position: int = 0, size: int | None = None) -> bytes:
        self._check(path, changes=False)
        return super().read(path, position, size)

    def fingerprint(self, path: Path) -> tuple[int, ...] | None:
        self._check(path, changes=False)
        return super().fingerprint(path)

    def size(self, path: Path) -> int:
        self._check(path, changes=False)
        return super().size(path)

    def exists(self, path: Path) -> bool:
        self._check(path, changes=False)
        return super().exists(path)

    def version(self, directory: Path) -> tuple[int, int]:
        self._check(directory, changes=False)
        return super().version(directory)


def _is_within(path: Path, folder: Path) -> bool:
    """Return what `path.is_relative_to` does, in a tenth of its time: it is asked for each operation."""
    return path == folder or str(path).startswith(f"{folder}/")


class Disks(FailingFolders, Unflushed):
    """Folders of this machine as disks."""

    # What hands do to disks is no step of a process.

    def has(self, folder: Path) -> bool:
        return folder.exists()

    def take_away(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)

    def mount_at(self, folder: Path, target: Path) -> None:
        folder.rename(target)

    def clone(self, folder: Path, target: Path) -> None:
        shutil.copytree(folder, target)


class MemoryDisks(FailingFolders, DiskFiles):
    """Folders of a disk in memory as disks, each of which may lose what was not flushed."""

    def __init__(self) -> None:
        super().__init__(Disk())

    def path_of(self, descriptor: int) -> Path:
        return DiskFiles.path_of(self, descriptor)

    def has(self, folder: Path) -> bool:
        return folder.name in self.disk.root.entries

    def take_away(self, folder: Path) -> None:
        for entries in self._names():
            entries.pop(folder.name, None)

    def mount_at(self, folder: Path, target: Path) -> None:
        for entries in self._names():
            if folder.name in entries:  # Of a folder that was just made nothing may be flushed.
                entries[target.name] = entries.pop(folder.name)

    def clone(self, folder: Path, target: Path) -> None:
        node = self.disk.root.entries[folder.name].settled_copy(self.disk)
        for entries in self._names():
            entries[target.name] = node

    def _names(self) -> list[dict[str, Node]]:
        return [self.disk.root.entries, self.disk.root.flushed_entries]

    def lose_power(self, rng: random.Random) -> None:
        """Lose what was not flushed, on some disks all of it and on others nothing."""
        self.disk = self.disk.after_power_loss(rng, apart=True)


class Killed(BaseException):
    """The end of a process; none of our code may catch it."""


class Clock:
    """A clock that tests set; the time of day may be set back against it."""

    def __init__(self) -> None:
        self.now_ms = builders.FIRST_TIMESTAMP_MS
        self.set_back_ms = 0

    def __call__(self) -> int:
        return self.now_ms

    def time_of_day(self) -> int:
        return self.now_ms - self.set_back_ms


def a_replicated_cluster(
    folder: Path,
    files: Files,
    *,
    partitions: int = 1,
    replicas: int = 3,
    config: TopicConfig | None = None,
) -> Cluster:
    """Create a cluster with the topic `events`; each replica has a folder beside it, from disk-0 on."""
    dirs = [folder / f"disk-{number}" for number in range(replicas)]
    cluster = Cluster(str(folder / "cluster"), create=True, log_dirs=dirs, files=files)
    cluster.create_topic(
        "events", partitions=partitions, replication_factor=replicas, config=config
    )
    return cluster


def with_clock(cluster: Cluster, clock: Clock) -> Cluster:
    """Open the cluster as another process would, with this clock; nothing runs in the background."""
    again = Cluster(str(cluster.path), files=store_of(cluster).files)
    metadata = Metadata(store_of(cluster).files, cluster.path)
    metadata.cluster_file.ensure_exists()
    store_of(again).manager = ReplicaManager(
        store_of(cluster).files, metadata, clock.time_of_day, monotonic_ms=clock, uses_threads=False
    )
    store_of(again).snapshots._manager = store_of(again).manager
    return again


def replicas(cluster: Cluster, topic_partition: TopicPartition = EVENTS) -> list[ReplicaInfo]:
    return partition(cluster, topic_partition).view.describe()


def partition(cluster: Cluster, topic_partition: TopicPartition = EVENTS) -> Partition:
    return store_of(cluster).manager.partition(topic_partition)


def isr(cluster: Cluster) -> tuple[int, ...]:
    return partition(cluster).view.state().isr


def bytes_of(cluster: Cluster, node_id: int, topic_partition: TopicPartition = EVENTS) -> bytes:
    """Return the bytes of all batches that a replica holds."""
    directory = store_of(cluster).metadata.cluster_file.log_directory(topic_partition, node_id)
    files = store_of(cluster).files
    names = sorted(name for name in files.list(directory) if name.endswith(".log"))
    return b"".join(files.read(directory / name) for name in names)


def append(cluster: Cluster, value: bytes, to: TopicPartition = EVENTS) -> int:
    """Append one record, flushed; return its offset, or raise its error."""
    data = encode_batch([Record(0, 1, None, value)])
    found = builders.append_records(cluster, {tuple(to): data}, flush=True)[to]
    if found.error is not None:
        raise found.error
    return found.base_offset


def held(cluster: Cluster, of: TopicPartition = EVENTS) -> list[bytes | None]:
    return [record.value for record in builders.contents(cluster)[of]]
