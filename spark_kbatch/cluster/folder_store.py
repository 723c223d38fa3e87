"""A cluster in a folder, as a store of topics."""

from __future__ import annotations

import contextlib
import json
import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from spark_kbatch.clock import now_ms, sleep_ms
from spark_kbatch.cluster.catalog import FolderCatalog
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.commit.history import History
from spark_kbatch.consumer import planning
from spark_kbatch.consumer.same_topic import OwnSource, of_agreed
from spark_kbatch.errors import (
    CorruptRecordError,
    KafkaStorageError,
    OffsetOutOfRangeError,
)
from spark_kbatch.files import NO_ROOM, Files
from spark_kbatch.model import LogOffsets, PartitionInfo, ReadRange, TopicPartition
from spark_kbatch.options.read import ReadOptions
from spark_kbatch.options.topic import Topic
from spark_kbatch.options.write import WriteOptions
from spark_kbatch.record.header import LogRead
from spark_kbatch.replica.view import Replica
from spark_kbatch.store.os_errors import translating
from spark_kbatch.stored_json import parse_rows

if TYPE_CHECKING:
    from spark_kbatch.cluster.disks import FolderDisks
    from spark_kbatch.cluster.groups import FolderGroups
    from spark_kbatch.cluster.job import Job
    from spark_kbatch.cluster.upkeep import FolderUpkeep
    from spark_kbatch.producer.producer import Producer

logger = logging.getLogger(__name__)

# Of the offsets on which tasks agreed.
KEPT_MS = 6 * 3600 * 1000
_FOLDER_MS = 10 * 60 * 1000
_REMOVED_AT_ONCE = 100
_RETRIES, _PAUSE_MS = 3, 100  # on a full disk
_REMEMBERED = 4  # answers cached by a process; it runs the tasks of few actions at a time

Answer = Mapping[TopicPartition, tuple[int, int]]
# By path, with the file's fingerprint then. Needs no lock: the dict is never changed, only replaced.
_read_last: dict[Path, tuple[tuple[int, ...], Answer]] = {}


class FolderStore(OwnSource):
    """A cluster in a folder; a `store.Store`, and its own source. Thread-safe; keeps no file open."""

    ledger = None
    is_remote = False
    why_not = ""  # it has everything

    def __init__(self, parts: FolderParts) -> None:
        """Set up over the parts of the cluster, which is open."""
        self.parts = self.server = parts
        self.address = str(parts.path)
        self.catalog = FolderCatalog(parts)

    def close(self) -> None:
        """Make every later call raise ClosedError, including those of reads in progress."""
        self.parts.close()

    @property
    def cluster_id(self) -> str:
        """The cluster's id."""
        return self.parts.metadata.cluster_file.cluster_id()

    @property
    def groups(self) -> FolderGroups:
        """The consumer groups."""
        from spark_kbatch.cluster.groups import FolderGroups  # noqa: PLC0415  few processes ask for groups

        return FolderGroups(self.parts, self)

    @property
    def commits(self) -> History:
        """The commits of Spark jobs."""
        return History(self.parts.snapshots.replicas)

    @property
    def disks(self) -> FolderDisks:
        """The log dirs, with what lies there."""
        from spark_kbatch.cluster.disks import FolderDisks  # noqa: PLC0415  as above

        return FolderDisks(self.parts, self)

    @property
    def upkeep(self) -> FolderUpkeep:
        """The check and repair of all that is stored."""
        from spark_kbatch.cluster.upkeep import FolderUpkeep  # noqa: PLC0415  as above

        return FolderUpkeep(self.parts, self)

    def producer(self, config: Mapping[str, object], options: Mapping[str, object]) -> Producer:
        """Return a producer, which appends to the logs at once, or a transactional one, which commits jobs."""
        from spark_kbatch.cluster.transports import LocalLog  # noqa: PLC0415  few processes append
        from spark_kbatch.options.producer import parse_producer_options  # noqa: PLC0415
        from spark_kbatch.producer.producer import Producer  # noqa: PLC0415

        self.parts.metadata.cluster_file.ensure_exists()
        chosen = parse_producer_options(config, options)
        if chosen.transactional_id is not None:
            from spark_kbatch.producer.staged_transactions import (  # noqa: PLC0415  as above
                StagingProducer,
            )

            last_kept = self.parts.coordinator(flush=chosen.flush).last_kept
            return StagingProducer(self.address, chosen, self.begin_job, last_kept)
        find = self.catalog.finder(create=chosen.auto_create_topics_enable)
        return Producer(
            chosen,
            LocalLog(self.parts, flush=chosen.flush, level=chosen.compression_level),
            translating(find, self.address),
            now_ms,
            new_producer_id=self.parts.new_producer_id,
            takes_runs=True,
        )

    def begin_job(
        self, options: WriteOptions, *, overwrite: bool = False, is_micro_batch: bool = False
    ) -> Job:
        """Begin a job whose rows are visible once it is committed, all of them or none."""
        from spark_kbatch.cluster.job import Job  # noqa: PLC0415  as above

        return Job.begin(self.parts, options, overwrite=overwrite, is_micro_batch=is_micro_batch)

    # Topics.

    def topic_names(self, *, internal: bool = False) -> list[str]:
        """Return the sorted names of all topics, with internal ones only if `internal` is true."""
        return self.parts.metadata.topics.names(internal=internal)

    def topic(self, name: str) -> Topic:
        """Return the topic of this name, or raise an error if it does not exist.

        Raises the errors of `TopicFiles.topic`.
        """
        return self.parts.metadata.topics.topic(name)

    def _described(self, topics: Iterable[str]) -> list[PartitionInfo]:
        """Return offsets and sizes of all partitions of these topics, at one moment."""
        names = list(topics)
        partitions = [tp for topic in names for tp in self.parts.manager.partitions(topic)]
        known = self.parts.manager.all_of(partitions)
        found = self.parts.snapshots.replicas(partitions)
        try:
            rows = [
                PartitionInfo(tp, state.offsets, log.size_in_bytes(state))
                for tp, (_, log, state) in found.items()
            ]
        except KafkaStorageError:
            if self.parts.manager.all_of(partitions) == known:
                raise
            rows = []
        # A topic may have been deleted before its files were looked at, and created again.
        return rows if self.parts.manager.all_of(partitions) == known else self._described(names)

    def describe(self, topics: Iterable[str]) -> list[PartitionInfo]:
        """Return offsets and sizes of all partitions of these topics, at one moment.

        If some cannot be read, each is looked at alone, and these have their errors.

        Raises:
            KafkaStorageError, CorruptRecordError: none of them can be read.
        """
        names = list(topics)
        try:
            return self._described(names)
        except (KafkaStorageError, CorruptRecordError):
            every = [tp for name in names for tp in self.parts.manager.partitions(name)]
            rows = [self._described_alone(tp) for tp in every]
            if all(row.error for row in rows):
                raise
            return rows

    def _described_alone(self, topic_partition: TopicPartition) -> PartitionInfo:
        try:
            _, log, state = self.parts.snapshots.replicas([topic_partition])[topic_partition]
            return PartitionInfo(topic_partition, state.offsets, log.size_in_bytes(state))
        except (OSError, KafkaStorageError, CorruptRecordError) as error:
            why = str(self.parts.manager.or_offline(topic_partition, error))
            return PartitionInfo(topic_partition, LogOffsets(-1, -1, -1, -1), -1, why)

    # Reading.

    def views(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, Replica]:
        """Return a snapshot of each of these partitions' logs, all as of one moment.

        Readers take these, so transactions that hold them back are looked after.
        """
        wanted = list(partitions)
        found = self.parts.snapshots.replicas(wanted)
        if any(one.offsets.held_back for one in found.values()):
            from spark_kbatch.cluster.transactions.administration import (  # noqa: PLC0415  rare
                look_after,
            )

            if look_after(self.parts, found):
                return self.parts.snapshots.replicas(wanted)
        return found

    def why_gone(self, topic_partition: TopicPartition, offset: int) -> str:
        """Return which commit has overwritten an offset; empty if none has."""
        return self.parts.manager.why_gone(
            topic_partition, offset, replicas=self.parts.snapshots.replicas
        )

    def fetch(
        self, topic_partition: TopicPartition, asked: ReadRange
    ) -> tuple[LogRead, LogOffsets]:
        """Read batches from a partition's log, also in a range overwritten since it was resolved.

        Otherwise as `Fetcher.fetch`.
        """
        replicas = self.parts.snapshots.replicas
        try:
            return self.parts.manager.fetch(topic_partition, asked, replicas=replicas)
        except OffsetOutOfRangeError as error:
            if asked.offset >= error.log_start_offset:
                raise
        return self.parts.manager.fetch_overwritten(topic_partition, asked, replicas=replicas)

    def agreed_offsets(
        self, partitions: Collection[TopicPartition], options: ReadOptions, action: str
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return partitions' start and end offsets, on which all tasks of a Spark action agree.

        The first caller looks up all partitions, and others take its answer.
        """
        agreements = Agreements(
            self.parts.files, self.parts.metadata.paths.snapshots_dir, self.parts.manager.now_ms
        )
        agreed = agreements.agree(action, lambda: planning.current_offsets(options, self))
        return of_agreed(agreed, partitions, self.address)


class Agreements:
    """Offsets for `earliest` and `latest` on which the tasks of one Spark action agreed. Thread-safe.

        snapshots/by-name/NAME.json            the answer of the first task, linked into place; it is binding
        snapshots/by-time/N/ID.NAME.json       its second name; N counts periods of ten minutes

    An answer stays for six hours after a task last asked for it. The second name serves to remove it: a
    task that adds an answer looks for folders in by-time that are due, and removes up to a hundred names
    from them. So a read costs the same however many there were before, and no read lists all answers.

    A task that asks when the answer is gone looks up the offsets again. They may then be later than those
    of the other tasks of its action; that takes six hours in which no task of the action started to read.

    So does each task if it may not write there. But on a full disk the task fails: another one may find room a
    moment later, and what it stores is not what this one has looked up.

    A process caches the last answers that it read: each task of an action asks for one partition, and the
    answer has all of them.
    """

    def __init__(self, files: Files, directory: Path, now_ms: Callable[[], int]) -> None:
        self._files, self._directory, self._now_ms = files, directory, now_ms
        self._by_name, self._by_time = directory / "by-name", directory / "by-time"

    def agree(self, name: str, resolve: Callable[[], Answer]) -> Answer:
        """Return the offsets stored under a name, after resolving and storing them if there are none.

        If PATH cannot be written, each caller looks up for itself. Callers must not change the result.

        Raises:
            KafkaStorageError: there is no room to store them.
        """
        path = self._by_name / f"{name}.json"
        try:
            return self._read(path)
        except (FileNotFoundError, NotADirectoryError):
            resolved = resolve()
        retries = _RETRIES
        while True:
            try:
                self._add(path, resolved)
                return self._read(path)
            except OSError as error:
                # Once there is an answer it is binding, whatever went wrong afterwards.
                if self._files.exists(path):
                    return self._read(path)
                if error.errno not in NO_ROOM:
                    logger.info("each task looks up offsets for itself: %s", error)
                    return resolved
                if not retries:
                    raise KafkaStorageError(
                        "the tasks of this read cannot agree on what 'earliest' and 'latest' are, as there is "
                        f"no room to write it down: {error}; make room, or give offsets as numbers"
                    ) from error
            retries -= 1
            with contextlib.suppress(OSError):
                self._remove_old()
            sleep_ms(_PAUSE_MS)

    def _read(self, path: Path) -> Answer:
        # An answer is never overwritten: at its path is the same answer, or another file.
        identity = self._files.fingerprint(path)
        known, answer = _read_last.get(path, (None, {}))
        if identity is None or known != identity:
            rows = parse_rows(self._files.read(path), path, str, int, int, int)
            answer = {TopicPartition(topic, p): (start, end) for topic, p, start, end in rows}
            if identity is not None:
                _remember(path, identity, answer)
        now_ms = self._now_ms()
        if now_ms - self._files.modified_ms(path) > _FOLDER_MS:
            with contextlib.suppress(OSError):  # a read-only process cannot mark it as in use
                self._files.set_modified_ms(path, now_ms)
        return answer

    def _add(self, path: Path, resolved: Answer) -> None:
        files = self._files
        text = json.dumps([[*tp, *offsets] for tp, offsets in resolved.items()])
        second = self._folder() / f"{uuid.uuid4().hex}.{path.name}"
        for folder in (self._by_name, second.parent):
            files.ensure_no_link(folder, self._directory.parent)
            files.make_dir(folder)
        try:
            files.write(second, 0, text.encode())
            is_first = files.link(second, path)
        except OSError:
            with contextlib.suppress(OSError):
                files.remove(second)
            raise
        if is_first:
            self._remove_old()
        else:
            files.remove(second)

    def _folder(self) -> Path:
        return self._by_time / str(self._now_ms() // _FOLDER_MS)

    def _remove_old(self) -> None:
        """Remove stored offsets that no task has asked for in hours, a bounded number at a time."""
        files, oldest_ms = self._files, self._now_ms() - KEPT_MS
        left = _REMOVED_AT_ONCE
        for name in files.list(self._by_time):
            if not name.isdecimal() or (int(name) + 1) * _FOLDER_MS > oldest_ms:
                continue
            folder = self._by_time / name
            found = files.first_names(folder, left)
            for second in found:
                self._remove_if_old(folder / second, oldest_ms)
            left -= len(found)
            if left <= 0:
                return
            if not files.first_names(folder, 1):
                files.remove_dir(folder)

    def _remove_if_old(self, second: Path, oldest_ms: int) -> None:
        files = self._files
        path = self._by_name / second.name.partition(".")[2]
        with contextlib.suppress(FileNotFoundError):  # another task removes the same
            if files.modified_ms(second) >= oldest_ms:
                files.make_dir(self._folder())
                files.rename(second, self._folder() / second.name)
                return
            # A task that died before linking left no first name, and another answer may have it.
            if files.exists(path) and files.identity_at(path) == files.identity_at(second):
                files.remove(path)
            files.remove(second)


def _remember(path: Path, identity: tuple[int, ...], answer: Answer) -> None:
    global _read_last
    last = [(kept, value) for kept, value in _read_last.items() if kept != path]
    _read_last = dict([*last[1 - _REMEMBERED :], (path, (identity, answer))])
