"""The partitions that a Kafka broker has at a path: a log dir, a partition's directory or a .log file.

    /var/lib/kafka-logs                             a log dir: directories named topic-N, checkpoints
    /var/lib/kafka-logs/events-0                    a partition; its log dir's checkpoints are used
    /var/lib/kafka-logs/events-0/000...000.log      one segment of it
    /tmp/copy                                       a folder with .log files: topic `copy`, partition 0
    /tmp/orders.log                                 a file: topic `orders`, partition 0

If a name is not of the form topic-N, the topic is the name without `.log`, with `_` for each character that
a topic name cannot have.

In a log dir `topic-N.ID-delete`, `-future` and `-stray` are not partitions, nor is any other name that is
not a topic and a number. Nothing is written, not even `.lock`: a broker may be running.

Source: Kafka storage/.../log/LocalLog.parseTopicPartitionName, core/.../log/LogManager.loadLogs.
"""

from __future__ import annotations

import itertools
import logging
import re
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from spark_kbatch import mutexes
from spark_kbatch.errors import ConfigError, InvalidTopicError, KafkaStorageError
from spark_kbatch.files import Files
from spark_kbatch.log.checkpoints import (
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    read_offset_checkpoint,
    read_partition_metadata,
)
from spark_kbatch.log.foreign.log import Checkpoints, ForeignLog
from spark_kbatch.log.foreign.missing import PACKED_BYTES, UNREADABLE, to_make_readable, traces
from spark_kbatch.model import (
    LogOffsets,
    OffsetAndTimestamp,
    ReadRange,
    TopicPartition,
    partition_of,
)
from spark_kbatch.options.topic import ensure_valid_topic
from spark_kbatch.record.header import LogRead

logger = logging.getLogger(__name__)

CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
WHAT_IS_LOOKED_FOR = (
    "a kbatch cluster has cluster.json, a Kafka broker's log dir has folders such as events-0, a "
    "partition's folder has files such as 00000000000000000000.log"
)

_LOG_DIR_FILES = frozenset({META_PROPERTIES, RECOVERY_POINTS, HIGH_WATERMARKS, LOG_START_OFFSETS})
_LOOKED_AT_FILES = 1000  # for archives, where nothing else is found
_LOGS = (".log", ".log.swap")
_PARTITION_FILES = frozenset({PARTITION_METADATA, LEADER_EPOCHS})

if TYPE_CHECKING:
    from spark_kbatch.store.reports import RepairReport


class ForeignLogDir:
    """The partitions that a Kafka broker has at one path, which are only read.

    Thread-safe; keeps nothing open.
    """

    def __init__(
        self, files: Files, path: Path, *, only: TopicPartition | None = None, file: str = ""
    ) -> None:
        """Set up reading of a log dir or one partition's directory; use `find`, which detects what is there.

        Args:
            files: the disk.
            path: the log dir, or the directory of the partition `only`.
            only: the only partition, if `path` is not a log dir.
            file: the only .log file of that partition that is read, if not all are.
        """
        self.files, self._path = files, path
        self._only, self._file = only, file
        self._mutex: threading.Lock  # guards _logs
        mutexes.make(self, "_mutex")
        self._logs: dict[TopicPartition, ForeignLog] = {}

    @classmethod
    def find(cls, files: Files, path: Path) -> ForeignLogDir | None:
        """Detect which partitions of a broker are at `path`; return None if it is nothing of a broker's.

        Raises:
            ConfigError: logs are there in an archive or as tiered segments; says what to do.
            OSError: it cannot be read.
        """
        if path.is_file():
            if path.suffix != ".log":
                _ensure_readable(files, path, [path])
                return None
            named = topic_partition_of(path.parent.name)
            return cls(files, path.parent, only=named or _named_after(path.stem), file=path.name)
        if not path.is_dir():
            return None
        names = files.list(path)
        if any(
            topic_partition_of(name) and _is_partition(files.list(path / name))
            for name in names
            if (path / name).is_dir()
        ):
            return cls(files, path)
        named = topic_partition_of(path.name)
        if traces(names) or any(n.endswith(_LOGS) and (path / n).is_file() for n in names):
            return cls(files, path, only=named or _named_after(path.name))
        if _LOG_DIR_FILES.intersection(names):
            return cls(files, path)
        if named and _is_partition(names):
            return cls(files, path, only=named)
        _ensure_readable(files, path, itertools.islice(path.rglob("*"), _LOOKED_AT_FILES))
        return None

    def partitions(self, topic: str | None = None) -> list[TopicPartition]:
        """Return all partitions at the path, or those of one topic, sorted."""
        if self._only is not None:
            return [self._only] if topic in (None, self._only.topic) else []
        found = []
        names = self.files.list(self._path)
        if topic is not None:
            # A broker may have thousands of other partitions, and a read asks for each of its topics.
            names = [name for name in names if name.rpartition("-")[0] == topic]
        for name in names:
            topic_partition = topic_partition_of(name)
            if topic_partition is not None and (self._path / name).is_dir():
                found.append(topic_partition)
            else:
                logger.debug("%s/%s is not a partition and is not read", self._path, name)
        return sorted(found)

    def log(self, topic_partition: TopicPartition) -> ForeignLog:
        """Return the log of one of the partitions at the path."""
        with self._mutex:
            log = self._logs.get(topic_partition)
            if log is None:
                directory = self._directory(topic_partition)
                log = ForeignLog(self.files, directory, topic_partition, file=self._file)
                self._logs[topic_partition] = log
            return log

    def check(self, topic_partition: TopicPartition) -> RepairReport:
        """Check all files of one of the partitions at the path; report what is wrong."""
        from spark_kbatch.log.foreign.check import check  # noqa: PLC0415  readers do not need it

        directory = self._directory(topic_partition)
        return check(self.files, directory, topic_partition, file=self._file)

    def topic_id(self, topic_partition: TopicPartition) -> str:
        """Read the topic's id in partition.metadata; empty if there is none, as before Kafka 2.8."""
        try:
            return read_partition_metadata(self.files, self._directory(topic_partition))
        except FileNotFoundError:
            return ""
        except KafkaStorageError as error:
            logger.warning("%s", error)
            return ""

    def views(
        self, topic_partitions: Iterable[TopicPartition], *, end: str | None
    ) -> dict[TopicPartition, ForeignLogView]:
        """Return a view of each of these partitions' logs, with its offsets as of now.

        Raises as `checkpoints`.
        """
        checkpoints = self.checkpoints(topic_partitions, end=end)
        return {tp: ForeignLogView(self.log(tp), found) for tp, found in checkpoints.items()}

    def read(
        self, topic_partition: TopicPartition, asked: ReadRange, *, end: str | None
    ) -> tuple[LogRead, LogOffsets]:
        """Read whole batches from a partition's log, as `ForeignLog.read` does.

        Raises as `checkpoints`.
        """
        return self.log(topic_partition).read(
            asked, lambda: self.checkpoints([topic_partition], end=end)[topic_partition]
        )

    def checkpoints(
        self, topic_partitions: Iterable[TopicPartition], *, end: str | None
    ) -> dict[TopicPartition, Checkpoints]:
        """Read what the checkpoint files of the broker's log dir say about these partitions now.

        A damaged one counts as empty, except that of the high watermarks where these are the end;
        there a partition without an entry has 0, as in a broker. They are read before the logs, so
        that the logs of a broker that runs have at least what they say.

        Args:
            topic_partitions: the partitions.
            end: the value of `foreign.end`; None where it is not given.

        Raises:
            ConfigError: the high watermarks are the end, and the file is missing.
            KafkaStorageError: that file is damaged.
        """
        log_dir = self._path if self._only is None else self._path.parent
        at_high_watermark = end == "checkpoint"
        if at_high_watermark and not self.files.exists(log_dir / HIGH_WATERMARKS):
            raise ConfigError(
                f"option 'foreign.end' is 'checkpoint', but {log_dir} has no {HIGH_WATERMARKS}, "
                "which a broker keeps in its log dir: use 'log', which reads to the last whole "
                "valid batch"
            )
        read = read_offset_checkpoint if at_high_watermark else _read
        high_watermarks = read(self.files, log_dir, HIGH_WATERMARKS)
        starts, recovery_points = (
            {} if self._file else _read(self.files, log_dir, name)
            for name in (LOG_START_OFFSETS, RECOVERY_POINTS)
        )
        # After a clean shutdown a broker checks nothing.
        is_clean = self.files.exists(log_dir / CLEAN_SHUTDOWN)
        return {
            tp: Checkpoints(
                None if is_clean else recovery_points.get(tp),
                starts.get(tp),
                high_watermarks.get(tp, 0) if at_high_watermark else None,
                max(
                    (recovery_points.get(tp, 0), RECOVERY_POINTS),
                    # One segment alone need not be the last one.
                    (0 if self._file else high_watermarks.get(tp, 0), HIGH_WATERMARKS),
                ),
                leaves_out=end == "log",
            )
            for tp in topic_partitions
        }

    def _directory(self, topic_partition: TopicPartition) -> Path:
        return self._path / str(topic_partition) if self._only is None else self._path


class ForeignLogView:
    """A broker's log with its offsets as of when the view was created."""

    def __init__(self, log: ForeignLog, checkpoints: Checkpoints) -> None:
        self._log = log
        _, self.offsets, end_offset, self.missing = log.look(checkpoints)
        self.readable = LogOffsets(*(min(one, end_offset) for one in self.offsets))

    def offset_for_timestamp(
        self, timestamp_ms: int, *, end_offset: int
    ) -> OffsetAndTimestamp | None:
        """Return the first record before `end_offset` with a timestamp of `timestamp_ms` or later."""
        return self._log.offset_for_timestamp(timestamp_ms, end_offset=end_offset)

    def start_by_time(self, timestamp_ms: int, *, end_offset: int) -> int:
        """Return the first offset of that time or a later one; `end_offset` if there is none."""
        found = self.offset_for_timestamp(timestamp_ms, end_offset=end_offset)
        return end_offset if found is None else found.offset

    def split_points(self, start_offset: int, end_offset: int, *, piece_bytes: int) -> list[int]:
        """Return offsets that split a range of the log into pieces of about equal size."""
        return self._log.split_points(start_offset, end_offset, piece_bytes=piece_bytes)

    def bytes_between(self, start_offset: int, end_offset: int) -> int | None:
        """Return about the size of a range of the log; None if it was deleted meanwhile."""
        return self._log.bytes_between(start_offset, end_offset)


def _read(files: Files, log_dir: Path, name: str) -> dict[TopicPartition, int]:
    try:
        return read_offset_checkpoint(files, log_dir, name)
    except KafkaStorageError as error:
        logger.warning("%s; it counts as empty", error)
        return {}


def topic_partition_of(name: str) -> TopicPartition | None:
    """Return the topic and partition of a directory named topic-N; None for any other name."""
    found = partition_of(name)
    try:
        return found and found._replace(topic=ensure_valid_topic(found.topic))
    except InvalidTopicError:
        return None


def _named_after(name: str) -> TopicPartition:
    topic = re.sub(r"[^a-zA-Z0-9._-]", "_", name)
    return TopicPartition(topic if topic.strip(".") else "_", 0)


def _ensure_readable(files: Files, path: Path, found: Iterable[Path]) -> None:
    """Refuse a PATH that has logs in archives, or in the folders of tiered storage.

    Raises:
        ConfigError: names the first of these files, and says what to do.
    """
    for one in found:
        if (one == path or UNREADABLE.fullmatch(one.name)) and one.is_file():
            what = to_make_readable(one, files.read(one, 0, PACKED_BYTES))
            if what:
                raise ConfigError(f"there is no log dir at {path} yet: {one} is {what}")


def _is_partition(names: list[str]) -> bool:
    return bool(traces(names)) or any(
        name.endswith(_LOGS) or name in _PARTITION_FILES for name in names
    )
