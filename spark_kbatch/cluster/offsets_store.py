"""Storage of groups, with their offsets and members, in `__consumer_offsets`.

    OffsetsStore       for the one server of a cluster, or who keeps others from it: loads, appends, rewrites
    load_groups        for all processes, whether a server runs or not

The topic is created at first use, with one partition, because one server coordinates all groups. Its name
starts with "__", so it is internal: no user can write to it, and lists leave it out. It has as many replicas
as `__transaction_state`.

`StoredGroups` is what the log says, in memory: the last value of each key. What is appended is applied to
it once it is in the log, and so it is what a load after a restart finds. When the log has grown by as
much as all of that takes, and by `REWRITE_BYTES` at least, it is rewritten from memory, as
`commit/internal_topics` does and under the partition's lock: a crash leaves the log as it was before or after.
Records of kinds that are not known here are kept as they are.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from spark_kbatch.clock import monotonic_ms, monotonic_s
from spark_kbatch.cluster import group_records
from spark_kbatch.cluster.group_records import (
    CommittedOffset,
    GroupKey,
    GroupMetadata,
    OffsetKey,
)
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.commit.internal_topics import (
    CONSUMER_OFFSETS,
    INTERNAL_TOPIC_CONFIG,
    TRANSACTION_STATE,
    read_records,
    rewrite_locked,
)
from spark_kbatch.errors import (
    InvalidTopicError,
    KafkaStorageError,
    KBatchError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import (
    AppendOrigin,
    AppendResult,
    TopicPartition,
)
from spark_kbatch.options.topic import Topic
from spark_kbatch.record import scalar
from spark_kbatch.record.scalar import PlainRecord
from spark_kbatch.replica.administration import create_topic
from spark_kbatch.replica.manager import ACKS_ALL

logger = logging.getLogger(__name__)

_APPEND_MS = 500  # an append that takes longer has waited
REWRITE_BYTES = 1 << 20  # so that loading takes well under a second

Change: TypeAlias = tuple[OffsetKey, CommittedOffset | None] | tuple[GroupKey, GroupMetadata | None]
_KeyAndValue: TypeAlias = tuple[bytes, bytes | None]


@dataclass
class StoredGroups:
    """The contents of `__consumer_offsets` in memory: the last value of each key."""

    groups: dict[str, GroupMetadata] = field(default_factory=dict)
    offsets: dict[str, dict[TopicPartition, CommittedOffset]] = field(default_factory=dict)
    others: dict[bytes, bytes] = field(default_factory=dict)  # records with unknown kinds of keys

    def apply(self, change: Change) -> None:
        """Set or remove the value of one group or committed offset in these contents."""
        key, value = change
        if isinstance(key, GroupKey):
            if isinstance(value, GroupMetadata):
                self.groups[key.group] = value
            else:
                self.groups.pop(key.group, None)
            return
        topic_partition = TopicPartition(key.topic, key.partition)
        if isinstance(value, CommittedOffset):
            self.offsets.setdefault(key.group, {})[topic_partition] = value
            return
        of_group = self.offsets.get(key.group, {})
        of_group.pop(topic_partition, None)
        if not of_group:
            self.offsets.pop(key.group, None)

    def apply_record(self, record: PlainRecord) -> None:
        """Apply a record of `__consumer_offsets` to these contents.

        Raises:
            CorruptRecordError: its key or value is damaged.
        """
        if record.key is None:
            return
        key = group_records.unpack_key(record.key)
        if isinstance(key, OffsetKey):
            offset = None if record.value is None else group_records.unpack_offset(record.value)
            self.apply((key, offset))
        elif isinstance(key, GroupKey):
            group = None if record.value is None else group_records.unpack_group(record.value)
            self.apply((key, group))
        elif record.value is None:
            self.others.pop(record.key, None)
        else:
            self.others[record.key] = record.value

    def packed(self) -> Iterator[_KeyAndValue]:
        """Yield the keys and values of records that hold all these contents, to rewrite the log from."""
        for group, metadata in self.groups.items():
            yield _packed((GroupKey(group), metadata))
        for group, offsets in self.offsets.items():
            for (topic, partition), value in offsets.items():
                yield _packed((OffsetKey(group, topic, partition), value))
        yield from self.others.items()


class TopicsOfRequest:
    """The topics of a cluster as one request finds them: each is looked up once. Not thread-safe."""

    def __init__(self, parts: FolderParts) -> None:
        self._topics = parts.metadata.topics
        self._found: dict[str, Topic | KafkaStorageError | None] = {}

    def look_up(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Look up the topics of these partitions, so that nothing later has to wait for the disk."""
        for tp in topic_partitions:
            self._find(tp.topic)

    def id_of(self, topic_partition: TopicPartition) -> str | None:
        """Return the id of a partition's topic; None if there is no such partition.

        Raises:
            KafkaStorageError: it cannot be looked up now.
        """
        topic = self._find(topic_partition.topic)
        if isinstance(topic, KafkaStorageError):
            raise topic.with_traceback(None)
        if topic is None or not 0 <= topic_partition.partition < topic.partitions:
            return None
        return topic.topic_id

    def is_lost(self, topic_partition: TopicPartition) -> bool:
        """Return True if the topic of a partition has lost its file, which a repair brings back."""
        return bool(self._topics.why_lost(topic_partition.topic))

    def is_gone(self, topic_partition: TopicPartition, committed: CommittedOffset) -> bool:
        """Return True if a committed offset is of a topic or partition that no longer exists."""
        try:
            topic_id = self.id_of(topic_partition)
        except KafkaStorageError:
            return False  # Its file is damaged, or the disk is away, but the topic exists.
        return topic_id is None or committed.topic_id not in ("", topic_id)

    def _find(self, name: str) -> Topic | KafkaStorageError | None:
        if name not in self._found:
            try:
                self._found[name] = self._topics.find(name)
            except InvalidTopicError:
                self._found[name] = None
            except KafkaStorageError as error:
                self._found[name] = error
            except OSError as error:
                self._found[name] = KafkaStorageError.of(error)
        return self._found[name]


class OffsetsStore:
    """The store of groups and offsets: it appends to `__consumer_offsets`, and holds its contents in memory.

    It is used by one thread at a time.
    """

    def __init__(
        self,
        parts: FolderParts,
        *,
        flush: bool = False,
        timeout_ms: int = 5_000,
        monotonic_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        """Start with empty contents; `load` reads them from `__consumer_offsets`.

        Args:
            parts: the cluster.
            flush: whether appends are on disk before they are acknowledged.
            timeout_ms: the longest that an append may take: offsets.commit.timeout.ms.
            monotonic_ms: the clock that measures `waited_ms`.
        """
        self.contents = StoredGroups()
        self.waited_ms = 0  # for which long appends have waited for the disk and for locks
        self._parts, self._flush, self._timeout_ms = parts, flush, timeout_ms
        self._monotonic_ms = monotonic_ms
        self._is_made = False
        self._lacks_contents = (
            False  # whether the topic may be a new one, without what `contents` has
        )
        self._kept_bytes = self._grown_bytes = 0  # of the log: what was rewritten, and since then

    def load(self) -> StoredGroups:
        """Read all of `__consumer_offsets` into `contents`, and return them; raises as `read_records`."""
        self.contents, self._kept_bytes, self._grown_bytes = load_groups(self._parts)
        self._lacks_contents = False
        return self.contents

    def append(self, changes: Sequence[Change]) -> None:
        """Append changes to `__consumer_offsets`, all or none, and apply them to `contents`.

        Raises:
            KBatchError: the changes are not stored; after a RequestTimedOutError they may be.
        """
        if not changes:
            return
        batch = scalar.encode(map(_packed, changes), self._parts.manager.now_ms())
        started_ms = self._monotonic_ms()
        try:
            self._make_topic()
            self._append(batch)
            for change in changes:
                self.contents.apply(change)
            self._grown_bytes += len(batch)
            if self._grown_bytes >= max(REWRITE_BYTES, self._kept_bytes):
                self._try_rewrite()
        except OSError as error:
            if isinstance(error, KBatchError):
                raise
            raise KafkaStorageError.of(error) from error
        finally:
            # What an append takes as a rule is no standstill, however many there are.
            self.waited_ms += max(self._monotonic_ms() - started_ms - _APPEND_MS, 0)

    def topics(self) -> TopicsOfRequest:
        """Return the topics of the cluster, for one request."""
        return TopicsOfRequest(self._parts)

    def _make_topic(self) -> None:
        if self._is_made:
            return
        deadline = monotonic_s() + self._timeout_ms / 1000
        if make_topic(self._parts, deadline):
            self._lacks_contents = True
        if self._lacks_contents and self.contents != StoredGroups():
            self._rewrite()  # The old topic is gone, with all that it held.
        self._is_made, self._lacks_contents = True, False

    def _append(self, batch: bytearray) -> None:
        done = threading.Event()
        answered: dict[TopicPartition, AppendResult] = {}

        def on_complete(results: Mapping[TopicPartition, AppendResult]) -> None:
            answered.update(results)
            done.set()

        self._parts.manager.append_records(
            timeout_ms=self._timeout_ms,
            required_acks=ACKS_ALL,
            internal_topics_allowed=True,
            origin=AppendOrigin.COORDINATOR,
            entries_per_partition={CONSUMER_OFFSETS: batch},
            on_complete=on_complete,
            flush=self._flush,
            commits=self._parts.coordinator(flush=self._flush),
        )
        if not done.wait(self._timeout_ms / 1000):
            raise RequestTimedOutError(
                f"replicas of {CONSUMER_OFFSETS} did not acknowledge within {self._timeout_ms} ms"
            )
        error = answered[CONSUMER_OFFSETS].error
        if isinstance(error, UnknownTopicOrPartitionError):
            self._is_made, self._lacks_contents = False, True  # whoever creates it again
        if error is not None:
            raise error

    def _try_rewrite(self) -> None:
        """Rewrite `__consumer_offsets` to hold current values alone; an error is only logged."""
        try:
            self._rewrite()
        except (OSError, KBatchError) as error:
            logger.warning("%s cannot be rewritten for now: %s", CONSUMER_OFFSETS, error)
            self._grown_bytes = 0  # retry after the log has grown by as much again

    def _rewrite(self) -> None:
        manager = self._parts.manager
        now_ms = manager.now_ms()
        commits = self._parts.commits
        deadline = monotonic_s() + self._timeout_ms / 1000
        locked = manager.locked([CONSUMER_OFFSETS], commits, deadline=deadline)
        with manager.writing(), locked:
            partition = manager.partition(CONSUMER_OFFSETS)
            packed = self.contents.packed()
            self._kept_bytes = rewrite_locked(partition, packed, now_ms)
            self._grown_bytes = 0


def make_topic(parts: FolderParts, deadline: float) -> bool:
    """Create `__consumer_offsets`; return False if it exists.

    Raises:
        LockTimeoutError: the metadata lock was not free by the deadline.
    """
    manager = parts.manager
    if parts.metadata.topics.find(CONSUMER_OFFSETS.topic) is not None:
        return False
    create_topic(
        manager,
        CONSUMER_OFFSETS.topic,
        partitions=1,
        config=INTERNAL_TOPIC_CONFIG,
        replication_factor=len(manager.partition(TRANSACTION_STATE).replicas),
        deadline=deadline,
    )
    return True


def load_groups(parts: FolderParts) -> tuple[StoredGroups, int, int]:
    """Read `__consumer_offsets`; return its contents, and its bytes before and in the last segment."""
    while True:
        try:
            replica = parts.snapshots.replicas([CONSUMER_OFFSETS])[CONSUMER_OFFSETS]
        except UnknownTopicOrPartitionError:
            why_lost = parts.metadata.topics.why_lost(CONSUMER_OFFSETS.topic)
            if why_lost:
                raise KafkaStorageError(why_lost) from None
            return StoredGroups(), 0, 0
        _, log, state = replica
        contents = StoredGroups()
        try:
            for _ in read_records(log, state, state.log_start_offset, contents.apply_record):
                pass
        except (FileNotFoundError, KafkaStorageError):
            now = parts.snapshots.replicas([CONSUMER_OFFSETS])[CONSUMER_OFFSETS].state
            if now.log_start_offset == state.log_start_offset:
                raise
            continue  # The log was rewritten during the read.
        size = log.size_in_bytes(state)
        return contents, size - state.segment_size, state.segment_size


def _packed(change: Change) -> _KeyAndValue:
    key, value = change
    if value is None:
        return group_records.pack_key(key), None
    if isinstance(value, CommittedOffset):
        return group_records.pack_key(key), group_records.pack_offset(value)
    return group_records.pack_key(key), group_records.pack_group(value)
