"""The transport of a task: finished batches become staged files that nobody reads yet.

    staging-0/TRANSACTION/driver          how a task sees that PATH is shared
    staging-0/TRANSACTION/ATTEMPT/shared  the first batches of every partition
    staging-0/TRANSACTION/ATTEMPT/ID-P.N  further batches of one partition, each file at most a
                                          segment; ID is the topic's, since its name may be as
                                          long as a file's name can be

Each batch is staged once for each replica of its partition, in the staging-N beside that replica's
broker-N. A disk that fails meanwhile is left out: its replica gets what is staged for another one.

A partition's batches go to the shared file until they pass `shared_bytes_max`, so that many tasks times
many partitions do not make as many files; what comes then lies in files of its own, which the commit
renames instead of copying where they are large. Of these files a bounded number is open at a time. ATTEMPT is a random id and its directory is made exclusively: attempt
numbers of Spark repeat, and a late attempt may still write when another has been committed.

A job that dies leaves its directory. Whether one is dead cannot be told but by time: nobody has
written to any file of TRANSACTION for staging.retention.ms. Then the next commit removes it, or `kbatch
gc`; a job that wakes up later gets an error that names the option. Nothing is lost with it: what was
decided lies in the logs.
"""

from __future__ import annotations

import contextlib
import logging
import re
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeAlias

from spark_kbatch.commit.probe import Probe
from spark_kbatch.errors import KafkaStorageError
from spark_kbatch.files import AppendFile, Buffer, Files
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import Topic

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
        """Where they belong."""
        return TopicPartition(self.topic, self.partition)

    @property
    def attempt(self) -> str:
        """Who staged them: TRANSACTION/ATTEMPT, the same in the staging-N of all nodes."""
        return self.file.rpartition("/")[0]


class ReplicatedStaging:
    """One task attempt's staged files, once for each replica. Not thread-safe."""

    def __init__(self, new_staging: Callable[[int, str], Staging]) -> None:
        """`new_staging` makes that of a node, for an attempt; raises where its disk is offline."""
        self._new_staging, self._attempt = new_staging, uuid.uuid4().hex
        self._by_node: dict[int, Staging] = {}
        self._failed: dict[int, Exception] = {}
        self._replicas: dict[TopicPartition, tuple[int, ...]] = {}  # of what was staged

    def send(self, topic: Topic, partition: int, batch: Buffer, records_count: int) -> None:
        """Stage one finished batch; the buffer may be used again on return.

        Raises:
            KafkaStorageError, OSError: of something that was staged nothing is left.
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
        """Close every file; nothing may be sent after this.

        Returns:
            What was staged: of each partition the same extents for each of its replicas, but for
            those that failed.

        Raises:
            KafkaStorageError, OSError: of something that was staged nothing is left.
        """
        extents = []
        for node_id, staging in list(self._by_node.items()):
            try:
                extents += staging.finish()
            except (OSError, KafkaStorageError) as error:
                self._leave_out(node_id, error)
        return extents

    def abandon(self) -> None:
        """Remove what was staged: the task failed."""
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
    """The files of a task that have a descriptor: those that were written to last. Not thread-safe."""

    def __init__(self, most: int = 64) -> None:
        self._most = most
        self._files: OrderedDict[AppendFile, None] = OrderedDict()  # the last used one last

    def make_room(self, file: AppendFile | None = None) -> None:
        """Have fewer than `most` open, beside one that is about to be written to."""
        if file is not None and file in self._files:
            self._files.move_to_end(file)
            return
        while len(self._files) >= self._most:
            self._files.popitem(last=False)[0].release_descriptor()
        if file is not None:
            self._files[file] = None

    def forget(self, file: AppendFile) -> None:
        """Count a file no more that is closed."""
        self._files.pop(file, None)


class Staging:
    """What one task attempt stages on one disk. Not thread-safe."""

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
        """Set up.

        Args:
            staging_dir: staging-N of the node.
            shared_bytes_max: what of each partition goes to the shared file.
            flush: whether all is on disk when it is finished.
            attempt: a random id, made up where none is given.
            open_files: shared with the task's other disks.
        """
        self._files, self._staging_dir, self._node_id = files, staging_dir, node_id
        self._attempt_dir = staging_dir / transaction / (attempt or uuid.uuid4().hex)
        self._shared_bytes_max, self._flush = shared_bytes_max, flush
        self._made = False
        self._shared: AppendFile | None = None
        self._own: dict[TopicPartition, AppendFile] = {}
        self._open_files = open_files or OpenFiles()
        self._shared_bytes: dict[TopicPartition, int] = {}
        self._files_made: dict[TopicPartition, int] = {}
        self._extents: list[Extent] = []
        self._last: dict[TopicPartition, int] = {}  # index of the partition's last extent

    def send(self, topic: Topic, partition: int, batch: Buffer, records_count: int) -> None:
        """Stage one finished batch; the buffer may be used again on return.

        Raises:
            KafkaStorageError: the attempt's directory was removed.
        """
        topic_partition = TopicPartition(topic.name, partition)
        try:
            file = self._file_for(topic, topic_partition, len(batch))
            position = file.append(batch)
        except FileNotFoundError:
            raise gone(self._attempt_dir) from None
        name = str(file.path.relative_to(self._staging_dir))
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
        """Close every file; nothing may be sent after this.

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
        """Remove what was staged: the task failed."""
        for file in self._all_files():
            self._close(file, flush=False)
        self._shared, self._own = None, {}
        self._files.remove_dir(self._attempt_dir)

    def _all_files(self) -> list[AppendFile]:
        return [*self._own.values(), *([self._shared] if self._shared else [])]

    def _close(self, file: AppendFile, *, flush: bool) -> None:
        self._open_files.forget(file)
        file.close(flush=flush)

    def _file_for(self, topic: Topic, topic_partition: TopicPartition, size: int) -> AppendFile:
        if not self._made:
            self._files.make_dir(self._attempt_dir, exclusive=True)
            self._made = True
        shared_bytes = self._shared_bytes.get(topic_partition, 0)
        if shared_bytes < self._shared_bytes_max:
            self._shared_bytes[topic_partition] = shared_bytes + size
            if self._shared is None:
                self._shared = AppendFile(self._files, self._attempt_dir / "shared")
            return self._shared
        own = self._own.get(topic_partition)
        if own is None or own.size_in_bytes + size > topic.config.segment_bytes:
            if own is not None:
                self._close(own, flush=self._flush)
            number = self._files_made.get(topic_partition, 0)
            self._files_made[topic_partition] = number + 1
            path = self._attempt_dir / f"{topic.topic_id}-{topic_partition.partition}.{number}"
            self._open_files.make_room()
            own = self._own[topic_partition] = AppendFile(self._files, path)
        self._open_files.make_room(own)
        return own


def gone(path: Path) -> KafkaStorageError:
    """The error where something staged is not there any more."""
    return KafkaStorageError(
        f"{path}, which a task of this job has staged, is gone: what nobody has written to for "
        "staging.retention.ms is removed by the next commit of any job, and by `kbatch gc`; give all "
        "jobs more of it, and run this one again"
    )


# What one task has staged for a partition: the same batches for each of these nodes.
Copies: TypeAlias = Mapping[int, Sequence[Extent]]


class Total(NamedTuple):
    """How much there is, each copy counted once."""

    records_count: int
    size_in_bytes: int


def staged_by_partition(
    extents: Iterable[Extent], replaced: Topic | None
) -> dict[TopicPartition, list[Copies]]:
    """What is to be placed in each partition, in the order of tasks.

    Args:
        replaced: all of its partitions are there, also those that nothing was staged for.
    """
    found: dict[TopicPartition, dict[str, dict[int, list[Extent]]]] = {}
    if replaced is not None:
        found = {TopicPartition(replaced.name, number): {} for number in range(replaced.partitions)}
    for extent in extents:
        copies = found.setdefault(extent.topic_partition, {}).setdefault(extent.attempt, {})
        copies.setdefault(extent.node_id, []).append(extent)
    return {tp: [*by_attempt.values()] for tp, by_attempt in found.items()}


def one_of(copies: Copies) -> Sequence[Extent]:
    """What was staged, once."""
    return next(iter(copies.values()))


def total(staged: Iterable[Copies]) -> Total:
    """Of all that several tasks staged."""
    records_count = size_in_bytes = 0
    for extent in chain.from_iterable(map(one_of, staged)):
        records_count += extent.records_count
        size_in_bytes += extent.size_in_bytes
    return Total(records_count, size_in_bytes)


class AbandonedJob(NamedTuple):
    """What a job that is gone has staged."""

    transaction: str
    size_in_bytes: int
    age_ms: int  # since the last write to it


class NotRemoved(NamedTuple):
    """What was passed over, among what jobs have staged."""

    path: Path
    why: str


def abandoned_jobs(
    files: Files, staging_dir: Path, *, retention_ms: int, now_ms: int
) -> tuple[list[AbandonedJob], list[NotRemoved]]:
    """The transactions that nobody has written to for `retention_ms`; and what is none.

    A folder that no job makes is none: whoever wrote cluster.json may have named any folder.
    """
    found, strays = [], []
    for name in files.list(staging_dir):
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


def remove_abandoned_jobs(
    files: Files, staging_dir: Path, *, retention_ms: int, now_ms: int
) -> tuple[list[AbandonedJob], list[NotRemoved]]:
    """Remove them; what is gone, and what is not."""
    gone, kept = [], []
    found, strays = abandoned_jobs(files, staging_dir, retention_ms=retention_ms, now_ms=now_ms)
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
    """The bytes of all below a folder, and when something was last written; after `old_ms` no more."""
    # The folder comes first: of a job that has just begun nothing else is looked at.
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
