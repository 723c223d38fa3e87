"""The staging area of tasks: finished batches in files that no reader looks at yet.

    staging-0/TRANSACTION/driver          by this a task checks that PATH is shared
    staging-0/TRANSACTION/ATTEMPT/shared  the first batches of every partition
    staging-0/TRANSACTION/ATTEMPT/ID-P.N  further batches of one partition, each file at most a
                                          segment; ID is the topic's id, since its name may be as
                                          long as a file's name can be

Each batch is staged once for each replica of its partition, in the staging-N beside that replica's
broker-N. If a disk fails it is left out: its replica gets what is staged for another one.

A partition's batches go to the shared file until they pass `shared_bytes_max`, because a file for each
task and partition would be too many. Further batches go to files of their own, which the commit
renames instead of copying if they are large. Only a bounded number of these files is open at a time.
ATTEMPT is a random id, and its directory is created exclusively: Spark's attempt numbers repeat, and a
late attempt may still be writing when another one is committed.

A job that dies leaves its directory. Only time can tell that it is dead: when no file of TRANSACTION
was written to for staging.retention.ms, the next commit of any job or `kbatch gc` removes it. A job
that wakes up later gets an error that names the option. No committed data is lost by this: it is in
the logs.

An attempt of a micro-batch that fails before a task has staged something leaves one, too, and a query may
fail again and again. So where there are many, a commit looks at some of them, and the next one at others.
"""

from __future__ import annotations

import contextlib
import logging
import random
import re
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeAlias

from spark_kbatch.errors import KafkaStorageError, StagedFilesGoneError
from spark_kbatch.files import AppendFile, Buffer, Files
from spark_kbatch.model import LONG_MAX, TopicPartition
from spark_kbatch.options.topic import Topic
from spark_kbatch.store.reports import AbandonedJob, NotRemoved, Waiting

logger = logging.getLogger(__name__)

_RANDOM_ID = re.compile(r"[0-9a-f]{32}")


class Extent(NamedTuple):
    """Staged batches of one partition that lie back to back in one file, in the order written."""

    topic: str
    topic_id: str
    partition_count: int
    partition: int
    node_id: int
    file: str  # relative to staging-N of the node
    position: int
    size_in_bytes: int
    records_count: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that the staged batches are for."""
        return TopicPartition(self.topic, self.partition)

    @property
    def attempt(self) -> str:
        """The attempt of a task that staged this extent: TRANSACTION/ATTEMPT, the same on all nodes."""
        return self.file.rpartition("/")[0]


class ReplicatedStaging:
    """The writer of one task attempt's staged files, once for each replica.

    It is not thread-safe.
    """

    def __init__(self, new_staging: Callable[[int, str], Staging]) -> None:
        """Stage the files of one task attempt.

        Args:
            new_staging: creates the `Staging` of a node and an attempt; raises if its disk is offline.
        """
        self._new_staging, self._attempt = new_staging, uuid.uuid4().hex
        self._by_node: dict[int, Staging] = {}
        self._failed: dict[int, Exception] = {}
        self._replicas: dict[TopicPartition, tuple[int, ...]] = {}  # of what was staged

    def send(self, topic: Topic, partition: int, batch: Buffer, records_count: int) -> None:
        """Stage one finished batch; the buffer may be reused on return.

        Raises:
            KafkaStorageError, OSError: the disks of all replicas of a partition have failed.
        """
        replicas = topic.replicas_of(partition)
        self._replicas[TopicPartition(topic.name, partition)] = replicas
        for node_id in replicas:
            if node_id not in self._failed:
                try:
                    if node_id not in self._by_node:
                        self._by_node[node_id] = self._new_staging(node_id, self._attempt)
                    self._by_node[node_id].send(topic, partition, batch, records_count)
                except (OSError, KafkaStorageError) as error:
                    self._leave_out(node_id, error)
        # Also where the disk had failed before.
        self._ensure_staged(replicas)

    def finish(self) -> list[Extent]:
        """Close every staged file and return its extents; nothing may be sent after this.

        Returns:
            What was staged: for each partition the same extents for each of its replicas, except those
            whose disks failed.

        Raises:
            KafkaStorageError, OSError: the disks of all replicas of a partition have failed.
        """
        extents = []
        for node_id, staging in list(self._by_node.items()):
            try:
                extents += staging.finish()
            except (OSError, KafkaStorageError) as error:
                self._leave_out(node_id, error)
        return extents

    def abandon(self) -> None:
        """Remove what this task attempt has staged, because the task failed."""
        for staging in self._by_node.values():
            with contextlib.suppress(OSError):
                staging.abandon()

    def _leave_out(self, node_id: int, error: Exception) -> None:
        self._failed[node_id] = error
        staging = self._by_node.pop(node_id, None)
        if staging is not None:
            with contextlib.suppress(OSError):
                staging.abandon()
        for replicas in self._replicas.values():
            if node_id in replicas:
                self._ensure_staged(replicas)
        logger.warning("nothing is staged on node %d: %s", node_id, error)

    def _ensure_staged(self, replicas: Sequence[int]) -> None:
        if all(node_id in self._failed for node_id in replicas):
            raise self._failed[replicas[-1]]


class OpenFiles:
    """The open files of a task, whose number is limited; the last ones written stay open.

    It is not thread-safe.
    """

    def __init__(self, most: int = 64) -> None:
        self._most = most
        self._files: OrderedDict[AppendFile, None] = OrderedDict()  # the last used one last

    def make_room(self, file: AppendFile | None = None) -> None:
        """Release file descriptors, those unused longest first, until there is room for one more."""
        if file is not None and file in self._files:
            self._files.move_to_end(file)
            return
        while len(self._files) >= self._most:
            self._files.popitem(last=False)[0].release_descriptor()
        if file is not None:
            self._files[file] = None

    def forget(self, file: AppendFile) -> None:
        """Take a file that was closed out of the open ones."""
        self._files.pop(file, None)


class Staging:
    """The writer of one task attempt's staged files on one disk.

    It is not thread-safe.
    """

    def __init__(
        self,
        files: Files,
        staging_dir: Path,
        transaction: str,
        *,
        shared_bytes_max: int,
        flush: bool,
        node_id: int = 0,
        attempt: str = "",
        open_files: OpenFiles | None = None,
    ) -> None:
        """Stage the files of one task attempt.

        Args:
            files: the disk.
            staging_dir: staging-N of the node.
            transaction: the job's random id.
            shared_bytes_max: how many bytes of each partition go to the shared file.
            flush: whether `finish` flushes everything to disk.
            node_id: of the disk.
            attempt: a random id; generated if not given.
            open_files: shared with the task's other disks.
        """
        self._files, self._staging_dir, self._node_id = files, staging_dir, node_id
        self._attempt_dir = staging_dir / transaction / (attempt or uuid.uuid4().hex)
        self._shared_bytes_max, self._flush = shared_bytes_max, flush
        self._made = False
        self._shared: AppendFile | None = None
        self._own: dict[TopicPartition, AppendFile] = {}
        self._names: dict[AppendFile, str] = {}  # relative to the staging directory
        self._open_files = open_files or OpenFiles()
        self._shared_bytes: dict[TopicPartition, int] = {}
        self._files_made: dict[TopicPartition, int] = {}
        self._extents: list[Extent] = []
        self._last: dict[TopicPartition, int] = {}  # index of the partition's last extent

    def send(self, topic: Topic, partition: int, batch: Buffer, records_count: int) -> None:
        """Stage one finished batch; the buffer may be reused on return.

        Raises:
            KafkaStorageError: the attempt's directory was removed.
        """
        topic_partition = TopicPartition(topic.name, partition)
        try:
            file = self._file_for(topic, topic_partition, len(batch))
            position = file.append(batch)
        except FileNotFoundError:
            raise gone(self._attempt_dir) from None
        name = self._names[file]
        last = self._last.get(topic_partition)
        if last is not None:
            extent = self._extents[last]
            if extent.file == name and extent.position + extent.size_in_bytes == position:
                self._extents[last] = extent._replace(
                    size_in_bytes=extent.size_in_bytes + len(batch),
                    records_count=extent.records_count + records_count,
                )
                return
        self._last[topic_partition] = len(self._extents)
        self._extents.append(
            Extent(
                topic=topic.name,
                topic_id=topic.topic_id,
                partition_count=topic.partitions,
                partition=partition,
                node_id=self._node_id,
                file=name,
                position=position,
                size_in_bytes=len(batch),
                records_count=records_count,
            )
        )

    def finish(self) -> list[Extent]:
        """Close every staged file and return its extents; nothing may be sent after this.

        Raises:
            KafkaStorageError: the attempt's directory was removed.
        """
        try:
            for file in self._all_files():
                self._close(file, flush=self._flush)
        except FileNotFoundError:
            raise gone(self._attempt_dir) from None
        if self._made and not self._files.exists(self._attempt_dir):
            raise gone(self._attempt_dir)
        if self._flush and self._made:
            self._files.flush([self._attempt_dir, self._attempt_dir.parent])
        self._shared, self._own = None, {}
        return self._extents

    def abandon(self) -> None:
        """Remove what this task attempt has staged on the disk, because the task failed."""
        for file in self._all_files():
            self._close(file, flush=False)
        self._shared, self._own = None, {}
        self._files.remove_dir(self._attempt_dir)

    def _all_files(self) -> list[AppendFile]:
        return [*self._own.values(), *([self._shared] if self._shared else [])]

    def _close(self, file: AppendFile, *, flush: bool) -> None:
        self._open_files.forget(file)
        file.close(flush=flush)

    def _create(self, name: str) -> AppendFile:
        file = AppendFile(self._files, self._attempt_dir / name)
        self._names[file] = str(file.path.relative_to(self._staging_dir))
        return file

    def _file_for(self, topic: Topic, topic_partition: TopicPartition, size: int) -> AppendFile:
        if not self._made:
            self._files.ensure_no_link(self._attempt_dir.parent, self._staging_dir.parent)
            self._files.make_dir(self._attempt_dir, exclusive=True)
            self._made = True
        shared_bytes = self._shared_bytes.get(topic_partition, 0)
        if shared_bytes < self._shared_bytes_max:
            self._shared_bytes[topic_partition] = shared_bytes + size
            if self._shared is None:
                self._shared = self._create("shared")
            return self._shared
        own = self._own.get(topic_partition)
        if own is None or own.size_in_bytes + size > topic.known_config.segment_bytes:
            if own is not None:
                self._close(own, flush=self._flush)
            number = self._files_made.get(topic_partition, 0)
            self._files_made[topic_partition] = number + 1
            self._open_files.make_room()
            name = f"{topic.topic_id}-{topic_partition.partition}.{number}"
            own = self._own[topic_partition] = self._create(name)
        self._open_files.make_room(own)
        return own


def gone(path: Path) -> StagedFilesGoneError:
    """Return the error that staged files were removed before their job could commit."""
    return StagedFilesGoneError(
        f"{path}, which a task of this job staged, is gone: a job's files are removed, by the next "
        "commit of any job or by `kbatch gc`, when none was written to for staging.retention.ms; set "
        "it higher for all jobs, and run this one again"
    )


# What one task staged for a partition: the same batches on each of these nodes.
Copies: TypeAlias = Mapping[int, Sequence[Extent]]


class Total(NamedTuple):
    """The number and size of staged records, each replicated batch counted once."""

    records_count: int
    size_in_bytes: int


def staged_by_partition(
    extents: Iterable[Extent], replaced: Topic | None
) -> dict[TopicPartition, list[Copies]]:
    """Group what the tasks staged by the partition to place it in, in the order of tasks.

    Args:
        extents: what the tasks staged.
        replaced: a topic whose partitions are all included, even those without staged batches.
    """
    found: dict[TopicPartition, dict[str, dict[int, list[Extent]]]] = {}
    if replaced is not None:
        found = {TopicPartition(replaced.name, number): {} for number in range(replaced.partitions)}
    for extent in extents:
        copies = found.setdefault(extent.topic_partition, {}).setdefault(extent.attempt, {})
        copies.setdefault(extent.node_id, []).append(extent)
    return {tp: [*by_attempt.values()] for tp, by_attempt in found.items()}


def one_of(copies: Copies) -> Sequence[Extent]:
    """Return the extents of one replica, given all replicas' copies of the same batches."""
    return next(iter(copies.values()))


def total(staged: Iterable[Copies]) -> Total:
    """Return the number and size of the records that several tasks staged."""
    records_count = size_in_bytes = 0
    for extent in chain.from_iterable(map(one_of, staged)):
        records_count += extent.records_count
        size_in_bytes += extent.size_in_bytes
    return Total(records_count, size_in_bytes)


def abandoned_jobs(
    files: Files, staging_dir: Path, *, retention_ms: int, now_ms: int, most: int | None = None
) -> tuple[list[AbandonedJob], list[NotRemoved]]:
    """Return the jobs that staged nothing for `retention_ms`, and paths there that no job creates.

    A folder that no job creates is left alone: cluster.json may come from anyone and name any folder.

    Args:
        most: how many jobs to look at; if there are more, at others each time.
    """
    found, strays = [], []
    if files.is_link(staging_dir):
        return [], [NotRemoved(staging_dir, "it is a symbolic link")]
    names = files.list(staging_dir)
    if most is not None and len(names) > most:
        names = random.sample(names, most)
    for name in names:
        path = staging_dir / name
        try:
            if not (_RANDOM_ID.fullmatch(name) and _is_folder(files, path)):
                strays.append(NotRemoved(path, "it is not what a job makes there"))
                continue
            size_in_bytes, newest_ms = _size_and_time(files, path, now_ms - retention_ms)
            if now_ms - newest_ms < retention_ms:
                continue
            others = [one for one in files.list(path) if one != Probe.NAME]
            strange = [one for one in others if not _is_folder(files, path / one)]
        except FileNotFoundError:
            continue  # its job has ended meanwhile
        except OSError as error:
            strays.append(NotRemoved(path, str(error)))
            continue
        if strange:
            why = f"it holds {strange[0]}, which no job makes there"
            strays.append(NotRemoved(path, why))
        else:
            found.append(AbandonedJob(name, size_in_bytes, now_ms - newest_ms))
    return found, strays


def waiting_jobs(
    files: Files, staging_dir: Path, *, retention_ms: int, now_ms: int
) -> list[Waiting]:
    """Return the jobs whose staged files are too young to go; one that runs is among them."""
    found = []
    for name in files.list(staging_dir):
        path = staging_dir / name
        with contextlib.suppress(OSError):  # its job has ended meanwhile
            if _RANDOM_ID.fullmatch(name) and _is_folder(files, path):
                size_in_bytes, newest_ms = _size_and_time(files, path, LONG_MAX)
                if now_ms - newest_ms < retention_ms:
                    until_ms = newest_ms + retention_ms
                    found.append(Waiting("staged", name, size_in_bytes, newest_ms, until_ms))
    return found


def staged_size(files: Files, staging_dir: Path) -> int:
    """Return the bytes that jobs have staged and not committed yet, or never will; 0 if they cannot be read."""
    try:
        return _size_and_time(files, staging_dir, LONG_MAX)[0]
    except OSError:
        return 0


def remove_abandoned_jobs(
    files: Files, staging_dir: Path, *, retention_ms: int, now_ms: int, most: int | None = None
) -> tuple[list[AbandonedJob], list[NotRemoved]]:
    """Remove the files of abandoned jobs; return the jobs removed, and what was not.

    The arguments are those of `abandoned_jobs`.
    """
    gone, kept = [], []
    found, strays = abandoned_jobs(
        files, staging_dir, retention_ms=retention_ms, now_ms=now_ms, most=most
    )
    for abandoned in found:
        path = staging_dir / abandoned.transaction
        try:
            files.remove_dir(path)
        except OSError as error:
            kept.append(NotRemoved(path, str(error)))
        else:
            gone.append(abandoned)
    return gone, strays + kept


def _is_folder(files: Files, path: Path) -> bool:
    return files.is_dir(path) and not files.is_link(path)


def _size_and_time(files: Files, folder: Path, old_ms: int) -> tuple[int, int]:
    """Return a folder's size and latest change; once that is after `old_ms`, the size is partial."""
    # The folder comes first: of a job that has just started nothing else is looked at.
    size_in_bytes, newest_ms = 0, files.modified_ms(folder)
    for name in files.list(folder) if newest_ms <= old_ms else ():
        path = folder / name
        with contextlib.suppress(FileNotFoundError):
            if files.is_link(path):
                continue
            if files.is_dir(path):
                size, modified_ms = _size_and_time(files, path, old_ms)
            else:
                size, modified_ms = files.size(path), files.modified_ms(path)
            size_in_bytes, newest_ms = size_in_bytes + size, max(newest_ms, modified_ms)
        if newest_ms > old_ms:
            break
    return size_in_bytes, newest_ms


class Probe:
    """A file that the driver writes so that each task can check that it sees the same folder.

    The object travels to the tasks.
    """

    NAME = "driver"

    def __init__(self, transaction_dir: Path, mark: str) -> None:
        self.transaction_dir, self.mark = transaction_dir, mark

    @classmethod
    def leave(cls, files: Files, transaction_dir: Path) -> Probe:
        """Write the probe's file on the driver, once per job."""
        probe = cls(transaction_dir, uuid.uuid4().hex)
        files.ensure_no_link(transaction_dir, transaction_dir.parents[1])
        files.make_dir(transaction_dir)
        files.write(transaction_dir / cls.NAME, 0, probe.mark.encode())
        return probe

    def ensure_seen(self, files: Files) -> None:
        """Check, before a task writes, that it sees the file that the driver wrote.

        Raises:
            KafkaStorageError: the driver's file is not here.
        """
        path = self.transaction_dir / self.NAME
        try:
            seen = files.read(path).decode() == self.mark
        except OSError:
            seen = False
        if not seen:
            raise KafkaStorageError(
                f"this executor does not see {path}, which the driver made: the folder is not shared "
                "between driver and executors, or the job has ended, or wrote nothing for longer than "
                "staging.retention.ms; give a path on a file system that all of them mount at the "
                "same place"
            )
