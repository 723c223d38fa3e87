"""A log of the cluster's own of which the last record of each key counts, beside its contents in memory.

    StateLog          for the one server of a cluster, or who keeps others from it: loads, appends, rewrites
    read_contents     for all processes, whether a server runs or not

The topic is created at first use, with one partition, because one server uses it. Its name starts with "__",
so it is internal: no user can write to it, and lists leave it out. It has as many replicas as
`__transaction_state`.

The contents are what the log says, in memory: the last value of each key. What is appended is applied to
them once it is in the log, and so they are what a load after a restart finds. When the log has grown by as
much as all of that takes, and by `REWRITE_BYTES` at least, it is rewritten from memory, as
`commit/internal_topics` does and under the partition's lock: a crash leaves the log as it was before or after.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, Protocol, TypeAlias, TypeVar

from spark_kbatch.catalog.paths import stray_of
from spark_kbatch.clock import monotonic_s
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.commit.internal_topics import (
    INTERNAL_TOPIC_CONFIG,
    TRANSACTION_STATE,
    read_records,
    rewrite_locked,
)
from spark_kbatch.errors import (
    KafkaStorageError,
    KBatchError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import AppendOrigin, AppendResult, TopicPartition
from spark_kbatch.record import scalar
from spark_kbatch.record.scalar import PlainRecord
from spark_kbatch.replica.administration import create_topic, delete_topic
from spark_kbatch.replica.manager import ACKS_ALL

logger = logging.getLogger(__name__)

REWRITE_BYTES = 1 << 20  # so that loading takes well under a second

KeyAndValue: TypeAlias = tuple[bytes, bytes | None]


class Contents(Protocol):
    """The state that the records of a log add up to."""

    def apply_record(self, record: PlainRecord) -> None:
        """Apply a record; raises CorruptRecordError if its key or value is damaged."""

    def packed(self) -> Iterable[KeyAndValue]:
        """Return the keys and values of records that hold all of it, to rewrite the log from."""


_Contents = TypeVar("_Contents", bound=Contents)


class StateLog(Generic[_Contents]):
    """A log of the cluster's own, and its contents in memory. It is used by one thread at a time."""

    def __init__(
        self,
        parts: FolderParts,
        topic_partition: TopicPartition,
        new_contents: Callable[[], _Contents],
        *,
        timeout_ms: int,
    ) -> None:
        """Start with empty contents; `load` reads them from the log.

        Args:
            parts: the cluster.
            topic_partition: the log.
            new_contents: makes empty ones.
            timeout_ms: the longest that an append may take.
        """
        self.contents = new_contents()
        self._parts, self._topic_partition, self._new = parts, topic_partition, new_contents
        self._timeout_ms = timeout_ms
        self._is_made = False
        # Whether the topic may be a new one, without what `contents` has.
        self._lacks_contents = False
        self._kept_bytes = self._grown_bytes = 0  # of the log: what was rewritten, and since then

    def load(self) -> _Contents:
        """Read all of the log into `contents`, and return them; raises as `read_contents`."""
        self.contents, self._kept_bytes, self._grown_bytes = read_contents(
            self._parts, self._topic_partition, self._new
        )
        self._lacks_contents = False
        return self.contents

    def append(
        self, records: Iterable[KeyAndValue], apply: Callable[[], object], *, flush: bool
    ) -> None:
        """Append records, all or none, and call `apply`, which changes the contents as they say.

        Raises:
            KBatchError: the records are not stored; after a RequestTimedOutError they may be.
        """
        batch = scalar.encode(records, self._parts.manager.now_ms())
        try:
            self._make_topic()
            self._append(batch, flush)
            apply()
            self._grown_bytes += len(batch)
            if self._grown_bytes >= max(REWRITE_BYTES, self._kept_bytes):
                self._try_rewrite()
        except OSError as error:
            if isinstance(error, KBatchError):
                raise
            raise KafkaStorageError.of(error) from error

    def _make_topic(self) -> None:
        if self._is_made:
            return
        deadline = monotonic_s() + self._timeout_ms / 1000
        if make_topic(self._parts, self._topic_partition, deadline):
            self._lacks_contents = True
        if self._lacks_contents and any(True for _ in self.contents.packed()):
            self._rewrite()  # The old topic is gone, with all that it held.
        self._is_made, self._lacks_contents = True, False

    def _append(self, batch: bytearray, flush: bool) -> None:
        entries = {self._topic_partition: batch}
        results = append_and_wait(self._parts, entries, timeout_ms=self._timeout_ms, flush=flush)
        error = results[self._topic_partition].error
        if isinstance(error, UnknownTopicOrPartitionError):
            self._is_made, self._lacks_contents = False, True  # whoever creates it again
        if error is not None:
            raise error

    def _try_rewrite(self) -> None:
        """Rewrite the log to hold current values alone; an error is only logged."""
        try:
            self._rewrite()
        except (OSError, KBatchError) as error:
            logger.warning("%s cannot be rewritten for now: %s", self._topic_partition, error)
            self._grown_bytes = 0  # retry after the log has grown by as much again

    def _rewrite(self) -> None:
        manager = self._parts.manager
        now_ms = manager.now_ms()
        commits = self._parts.commits
        deadline = monotonic_s() + self._timeout_ms / 1000
        locked = manager.locked([self._topic_partition], commits, deadline=deadline)
        with manager.writing(), locked:
            partition = manager.partition(self._topic_partition)
            packed = self.contents.packed()
            self._kept_bytes = rewrite_locked(partition, packed, now_ms)
            self._grown_bytes = 0


def append_and_wait(
    parts: FolderParts,
    entries: Mapping[TopicPartition, bytearray],
    *,
    timeout_ms: int,
    flush: bool,
    topic_ids: Mapping[TopicPartition, str] | None = None,
) -> Mapping[TopicPartition, AppendResult]:
    """Append batches of the cluster's own, wait until all in-sync replicas have them, and return the results.

    Raises:
        RequestTimedOutError: replicas did not acknowledge in time.
    """
    done = threading.Event()
    answered: dict[TopicPartition, AppendResult] = {}

    def on_complete(results: Mapping[TopicPartition, AppendResult]) -> None:
        answered.update(results)
        done.set()

    parts.manager.append_records(
        timeout_ms=timeout_ms,
        required_acks=ACKS_ALL,
        internal_topics_allowed=True,
        origin=AppendOrigin.COORDINATOR,
        entries_per_partition=entries,
        on_complete=on_complete,
        flush=flush,
        commits=parts.coordinator(flush=flush),
        topic_ids=topic_ids,
    )
    if not done.wait(timeout_ms / 1000):
        raise RequestTimedOutError(
            f"replicas of {', '.join(map(str, entries))} did not acknowledge within {timeout_ms} ms"
        )
    return answered


def make_topic(parts: FolderParts, topic_partition: TopicPartition, deadline: float) -> bool:
    """Create the topic of a log of the cluster's own; return False if it exists.

    Raises:
        LockTimeoutError: the metadata lock was not free by the deadline.
    """
    manager = parts.manager
    if parts.metadata.topics.find(topic_partition.topic) is not None:
        return False
    create_topic(
        manager,
        topic_partition.topic,
        partitions=1,
        config=INTERNAL_TOPIC_CONFIG,
        replication_factor=len(manager.partition(TRANSACTION_STATE).replicas),
        deadline=deadline,
    )
    return True


def set_aside(parts: FolderParts, topic_partition: TopicPartition) -> None:
    """Delete the topic of a log that cannot be read, and keep its directories, in names that end in `-stray`.

    The next append creates it again. A directory that is on no disk now, and comes back, is of a deleted topic.

    Raises:
        UnknownTopicOrPartitionError, KafkaStorageError: there is none, or its topic's file is lost.
    """
    partition = parts.manager.partition(topic_partition)
    with parts.manager.locks.partitions([topic_partition]):
        for node_id in partition.replicas:
            directory = partition.view.log_of(node_id).directory
            if parts.files.exists(directory):
                parts.files.rename(directory, stray_of(directory))
    delete_topic(parts.manager, parts.commits, topic_partition.topic)


def read_contents(
    parts: FolderParts, topic_partition: TopicPartition, new_contents: Callable[[], _Contents]
) -> tuple[_Contents, int, int]:
    """Read a log of the cluster's own; return its contents, and its bytes before and in the last segment.

    There is nothing in a log that was never made.

    Raises:
        KafkaStorageError, CorruptRecordError: it cannot be read, or its topic's file is lost.
    """
    while True:
        try:
            replica = parts.snapshots.replicas([topic_partition])[topic_partition]
        except UnknownTopicOrPartitionError:
            why_lost = parts.metadata.topics.why_lost(topic_partition.topic)
            if why_lost:
                raise KafkaStorageError(why_lost) from None
            return new_contents(), 0, 0
        _, log, state = replica
        contents = new_contents()
        try:
            for _ in read_records(log, state, state.log_start_offset, contents.apply_record):
                pass
        except (FileNotFoundError, KafkaStorageError):
            now = parts.snapshots.replicas([topic_partition])[topic_partition].state
            if now.log_start_offset == state.log_start_offset:
                raise
            continue  # The log was rewritten during the read.
        size = log.size_in_bytes(state)
        return contents, size - state.segment_size, state.segment_size
