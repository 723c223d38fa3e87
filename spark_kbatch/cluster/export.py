"""A topic's committed records, copied into the log dir of a stopped Kafka broker.

    export_topic(manager, snapshots.replicas, "events", Path("/var/lib/kafka/data"))

The topic must exist there, with the same number of partitions and no records. For each partition the
broker finds, when it starts:

    events-0/
      N.log .index .timeindex    the segments, from the batch that holds the log start offset;
                                 leader epoch 0, as a new topic has on a broker; no producer ids: the
                                 broker would give the same ids to producers of its own, and take
                                 their batches for duplicates of these. They end before the first
                                 transaction that is open; in place of markers and of what was aborted
                                 are batches without records, as compaction leaves them
      leader-epoch-checkpoint    epoch 0 starts at the first of them
      partition.metadata         the topic's id on that broker, unchanged

and in the log dir no recovery point or high watermark of these partitions, and the log start offset
if it lies within the first batch. The marker of a clean shutdown stays, since all indexes are there;
without one the broker checks every batch itself.

What a crash leaves, by step:

    1  look          nothing was changed
    2  stage         directories `events-0.TOPIC-ID-new-delete`, which the next export replaces and a
                     broker removes: to it they belong to a topic that is being deleted
    3  checkpoints   also, log start offsets of empty partitions: where they start
    4  swap          some partitions have their records and others none, or one is between its names:
                     the next export refuses, and says that the topic must be recreated
    5  cleanup       a complete export; the broker removes `events-0.TOPIC-ID-old-delete`

The log dir's lock is held throughout, exclusively, as a broker holds it.

Source: Kafka storage/.../log/LogLoader.java, LogManager.java, UnifiedLog.parseTopicPartitionName.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from spark_kbatch.catalog.metadata import Metadata
from spark_kbatch.consumer.reading import without_aborted
from spark_kbatch.errors import ConfigError, CorruptRecordError
from spark_kbatch.files import Files
from spark_kbatch.log.checkpoints import (
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    read_meta_properties,
    read_offset_checkpoint,
    read_partition_metadata,
    write_leader_epochs,
    write_offset_checkpoint,
    write_partition_metadata,
)
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.segment import SegmentIndexer, segment_at
from spark_kbatch.log.state import STATE_FILE, LogState
from spark_kbatch.model import IsolationLevel, ReadRange
from spark_kbatch.record.header import (
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL,
    BatchHeader,
    LogRead,
    assign,
    ensure_valid,
    rewrite,
    unpack,
    without_records,
)
from spark_kbatch.record.legacy import first_offset
from spark_kbatch.replica.manager import ReplicaManager
from spark_kbatch.replica.view import Replicas
from spark_kbatch.store.reports import ExportedPartition

LEADER_EPOCH = 0
_READ_BYTES = 8 * 1024 * 1024
_TOPIC_LENGTH_MAX = 200  # in names that also hold a topic id; a file's name has at most 255 bytes


def export_topic(
    manager: ReplicaManager, replicas: Replicas, topic: str, log_dir: Path
) -> list[ExportedPartition]:
    """Copy all partitions of a topic, as of one moment, into a broker's log dir.

    Args:
        manager: of the cluster.
        replicas: how readers see partitions.
        topic: to export.
        log_dir: one of `log.dirs` of a stopped broker.

    Returns:
        What each partition holds there; all of it is flushed to disk.

    Raises:
        UnknownTopicOrPartitionError: no such topic here.
        ConfigError: the log dir cannot take the topic; says why and what to do.
        LogDirLockedError: the broker is running.
        CorruptRecordError: a batch of ours is damaged. Nothing was changed, as for all of these.
        KafkaStorageError: a file there is not what a broker writes.
    """
    partitions = manager.partitions(topic)
    target = _Target(manager.files, log_dir, topic, len(partitions))
    target.ensure_log_dir()
    with manager.locks.exclusive_log_dir(log_dir):
        target.ensure_empty()
        try:
            exported = [
                _stage(log, state, target.new(tp.partition))
                for tp, (_, log, state) in sorted(replicas(partitions).items())
            ]
            target.write_checkpoints(exported)
        except BaseException:
            target.clean_up()
            raise
        target.swap()
        target.clean_up()
    return exported


class _Target:
    """A topic in a broker's log dir into which an export writes.

    All but `ensure_log_dir` need the log dir's lock.
    """

    def __init__(self, files: Files, log_dir: Path, topic: str, partitions_count: int) -> None:
        self._files, self._log_dir, self._topic = files, log_dir, topic
        self._partitions = range(partitions_count)
        self._topic_id = ""

    def ensure_log_dir(self) -> None:
        """Check that the folder to export into is a broker's log dir.

        Raises:
            ConfigError: it is not.
            KafkaStorageError: its meta.properties is damaged.
        """
        log_dir = self._log_dir
        if Metadata(self._files, log_dir.parent).cluster_file.exists():
            raise ConfigError(f"{log_dir} is the log dir of a kbatch cluster, not of a broker")
        try:
            read_meta_properties(self._files, log_dir)
        except (FileNotFoundError, NotADirectoryError):
            raise ConfigError(
                f"{log_dir} is not the log dir of a broker, it has no {META_PROPERTIES}: give one of "
                "the folders that log.dirs names in the broker's settings, formatted with "
                "kafka-storage.sh format"
            ) from None

    def ensure_empty(self) -> None:
        """Check that the broker has this topic, with these partitions and no records.

        Raises:
            ConfigError: says what is there instead.
        """
        topic, log_dir, count = self._topic, self._log_dir, len(self._partitions)
        names = self._files.list(log_dir)
        found = [p for p in self._partitions if f"{topic}-{p}" in names]
        ids = {self._ensure_partition_empty(self._directory(p)) for p in found}
        if len(found) < count:
            missing = min(set(self._partitions).difference(found))
            raise ConfigError(
                f"{log_dir} has no directory {topic}-{missing}: create topic {topic!r} on the broker "
                f"with {count} partitions, all of them in this log dir, then stop the broker; if it "
                "has the topic already, start it once, and it creates the directory"
            )
        if f"{topic}-{count}" in names:
            raise ConfigError(
                f"topic {topic!r} has more than {count} partitions in {log_dir}, but {count} here; "
                "recreate it there with the same number"
            )
        if len(ids) > 1:
            raise ConfigError(
                f"the partitions of topic {topic!r} in {log_dir} are of {len(ids)} topics, by their "
                "ids: remove those of deleted topics"
            )
        (self._topic_id,) = ids
        self.remove_aside()

    def _ensure_partition_empty(self, directory: Path) -> str:
        """Check that a partition of the broker has no records, and return its topic's id."""
        names = self._files.list(directory)
        full = [n for n in names if n.endswith(".log") and self._files.size(directory / n)]
        if full or STATE_FILE in names:
            raise ConfigError(
                f"{directory} holds records already ({(full or [STATE_FILE])[0]}): export needs a new "
                "topic; delete it on the broker and create it again, also after an interrupted export, "
                "or rename one of the two"
            )
        try:
            return read_partition_metadata(self._files, directory)
        except FileNotFoundError as error:
            raise ConfigError(
                f"{error.filename} is missing, which names the topic of the directory: start the broker "
                "once, and it writes the file"
            ) from None

    def new(self, partition: int) -> Path:
        """Create the directory in which a partition is staged, with its topic id but no segments yet."""
        directory = self._aside(partition, "new")
        self._files.make_dir(directory)
        write_partition_metadata(self._files, directory, self._topic_id)
        return directory

    def write_checkpoints(self, exported: Sequence[ExportedPartition]) -> None:
        """Update the checkpoint files of the broker's log dir for the exported partitions."""
        checkpoints = {
            name: read_offset_checkpoint(self._files, self._log_dir, name)
            for name in (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_START_OFFSETS)
        }
        for name, before in checkpoints.items():
            after = {tp: offset for tp, offset in before.items() if tp.topic != self._topic}
            if name == LOG_START_OFFSETS:
                after |= {
                    p.topic_partition: p.log_start_offset for p in exported if p.log_start_offset
                }
            if after != before:
                write_offset_checkpoint(self._files, self._log_dir, name, after)

    def swap(self) -> None:
        """Replace the broker's empty partition directories by the staged ones."""
        for p in self._partitions:
            self._files.rename(self._directory(p), self._aside(p, "old"))
            self._files.rename(self._aside(p, "new"), self._directory(p))
        self._files.flush([self._log_dir])

    def clean_up(self) -> None:
        """Remove the export's temporary directories, ignoring errors.

        What cannot be removed is left to a broker, or the next export.
        """
        with contextlib.suppress(OSError):
            self.remove_aside()

    def remove_aside(self) -> None:
        """Remove the temporary directories of this export, or of an interrupted one."""
        for p in self._partitions:
            for what in ("new", "old"):
                self._files.remove_dir(self._aside(p, what))

    def _directory(self, partition: int) -> Path:
        return self._log_dir / f"{self._topic}-{partition}"

    def _aside(self, partition: int, what: str) -> Path:
        topic = self._topic[:_TOPIC_LENGTH_MAX]
        return self._log_dir / f"{topic}-{partition}.{self._topic_id}-{what}-delete"


def _stage(log: PartitionLog, state: LogState, directory: Path) -> ExportedPartition:
    """Copy a partition's committed batches into segments in `directory`."""
    files, interval_bytes = log.files, log.config.index_interval_bytes
    offset, end_offset, source = state.log_start_offset, state.last_stable_offset, ""
    segments: list[_Segment] = []
    buffer = bytearray(_READ_BYTES)
    while offset < end_offset:
        asked = ReadRange(offset, _READ_BYTES, IsolationLevel.READ_COMMITTED, buffer=buffer)
        read = log.read(state, asked)
        if read.path != source:
            source = read.path
            base_offset = first_offset(read.data, *read.batches[0])
            segments.append(_Segment(files, directory, base_offset, interval_bytes))
        offset = segments[-1].append(read, end_offset)
    if not segments:
        segments.append(_Segment(files, directory, offset, interval_bytes))
    for segment in segments:
        segment.finish()
    write_leader_epochs(files, directory, [(LEADER_EPOCH, segments[0].base_offset)])
    files.flush([directory])
    return ExportedPartition(
        log.topic_partition,
        state.log_start_offset,
        end_offset,
        len(segments),
        sum(segment.size_in_bytes for segment in segments),
    )


class _Segment:
    """A log segment written for the broker, with indexes built from its batches."""

    def __init__(
        self, files: Files, directory: Path, base_offset: int, interval_bytes: int
    ) -> None:
        self.base_offset, self.size_in_bytes = base_offset, 0
        self._files, self._segment = files, segment_at(directory, base_offset)
        self._indexer = SegmentIndexer(base_offset, interval_bytes=interval_bytes)
        for path in self._segment.paths:
            files.write(path, 0, b"")

    def append(self, read: LogRead, end_offset: int) -> int:
        """Append the batches below `end_offset` to the segment, and return the next offset.

        They are changed in place.
        """
        written, next_offset = bytearray(), end_offset
        try:
            decided = {position for position, _ in without_aborted(read)}
            for position, header in read.batches:
                if header.base_offset >= end_offset:
                    break
                ensure_valid(read.data, position, header)
                data = read.data[position : position + header.size_in_bytes]
                if header.is_control or position not in decided:
                    data = memoryview(without_records(header.last_offset_delta + 1))
                    header = unpack(data)._replace(base_offset=header.base_offset)
                at = self.size_in_bytes + len(written)
                if header.magic == MAGIC:
                    _as_a_broker_writes(data, header)
                if header.magic == MAGIC or header.is_wrapper:
                    self._indexer.add(header, at)
                else:
                    self._indexer.add_messages(data, header, at)
                written += data
                next_offset = header.next_offset
        except CorruptRecordError as error:
            raise error.at(read.path, read.position) from None
        self._files.write(self._segment.log, self.size_in_bytes, written)
        self.size_in_bytes += len(written)
        return next_offset

    def finish(self) -> None:
        """Write the indexes and flush the segment."""
        self._indexer.add_time_entry()
        self._files.write(self._segment.offset_index, 0, self._indexer.index)
        self._files.write(self._segment.time_index, 0, self._indexer.time_index)
        self._files.flush(self._segment.paths)


def _as_a_broker_writes(batch: memoryview, header: BatchHeader) -> None:
    if header.producer_id != NO_PRODUCER_ID:
        rewrite(
            batch,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH,
            base_sequence=NO_SEQUENCE,
            attributes=header.attributes & ~TRANSACTIONAL,
        )
    assign(batch, 0, base_offset=header.base_offset, leader_epoch=LEADER_EPOCH)
