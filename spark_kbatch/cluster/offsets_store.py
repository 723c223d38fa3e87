"""Storage of groups, with their offsets and members, in `__consumer_offsets`.

    OffsetsStore       for the one server of a cluster: loads, appends, rewrites
    read_groups        for all other processes, whether a server runs or not
    alter_offsets, delete_group
                       for all other processes, while no server runs

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

import contextlib
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
    MemberMetadata,
    OffsetKey,
)
from spark_kbatch.cluster.ownership import Ownership
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.commit.internal_topics import (
    CONSUMER_OFFSETS,
    INTERNAL_TOPIC_CONFIG,
    TRANSACTION_STATE,
    read_records,
    rewrite_locked,
)
from spark_kbatch.errors import (
    GroupIdNotFoundError,
    GroupNotEmptyError,
    InvalidTopicError,
    KafkaStorageError,
    KBatchError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import (
    AppendOrigin,
    AppendResult,
    ConsumerGroup,
    GroupMember,
    TopicPartition,
)
from spark_kbatch.options.topic import Topic
from spark_kbatch.record import scalar
from spark_kbatch.record.scalar import PlainRecord
from spark_kbatch.replica.administration import create_topic
from spark_kbatch.replica.manager import ACKS_ALL
from spark_kbatch.store.groups import committed
from spark_kbatch.wire import assignment

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
        self.contents, self._kept_bytes, self._grown_bytes = _load(self._parts)
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
        commits = self._parts.coordinator(flush=True)
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


# Reading and writing without a server.


def read_groups(parts: FolderParts) -> list[ConsumerGroup]:
    """Return all groups of a cluster as stored last, sorted; offsets of deleted topics are left out.

    Their ends are not looked up. Takes no lock and writes nothing: a server may run meanwhile.

    Raises:
        KafkaStorageError, CorruptRecordError: the log cannot be read.
    """
    contents, _, _ = _load(parts)
    topics = TopicsOfRequest(parts)
    found = []
    for group_id in sorted({*contents.groups, *contents.offsets}):
        metadata = contents.groups.get(group_id) or GroupMetadata("", 0, None, None, -1)
        offsets = {
            tp: committed(value.offset, value.metadata, value.commit_timestamp)
            for tp, value in sorted(contents.offsets.get(group_id, {}).items())
            if not topics.is_gone(tp, value)
        }
        found.append(
            ConsumerGroup(
                group_id,
                "Stable" if metadata.members else "Empty",
                metadata.protocol_type,
                metadata.protocol or "",
                metadata.generation,
                tuple(map(_member, metadata.members)),
                offsets,
            )
        )
    return found


def _member(stored: MemberMetadata) -> GroupMember:
    return GroupMember(
        stored.member_id,
        stored.instance_id,
        stored.client_id,
        stored.client_host.removeprefix("/"),  # which Java writes
        assignment.partitions(stored.assignment),
    )


def alter_offsets(parts: FolderParts, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Store committed offsets of a group without members, which need not exist, while no server runs.

    Raises:
        ServerRunningError: a server runs, and has the groups in its memory; says where.
        GroupNotEmptyError: the group has members, as it was stored last.
        UnknownTopicOrPartitionError: a partition does not exist.
        KafkaStorageError: the offsets cannot be written.
    """
    ids = {tp: parts.manager.partition(tp).topic.topic_id for tp in offsets}
    with _without_members(parts, group_id) as store:
        now_ms = parts.manager.now_ms()
        store.append(
            [
                (
                    OffsetKey(group_id, *tp),
                    CommittedOffset(offset, commit_timestamp=now_ms, topic_id=ids[tp]),
                )
                for tp, offset in offsets.items()
            ]
        )


def delete_group(parts: FolderParts, group_id: str) -> None:
    """Drop a group without members, and its offsets, while no server runs.

    Raises:
        ServerRunningError: a server runs, and has the groups in its memory; says where.
        GroupNotEmptyError: the group has members, as it was stored last.
        GroupIdNotFoundError: there is no such group.
        KafkaStorageError: it cannot be written.
    """
    with _without_members(parts, group_id) as store:
        offsets = store.contents.offsets.get(group_id, ())
        changes: list[Change] = [(OffsetKey(group_id, *tp), None) for tp in offsets]
        if group_id in store.contents.groups:
            changes.append((GroupKey(group_id), None))
        if not changes:
            raise GroupIdNotFoundError(group_id, str(parts.metadata.path))
        store.append(changes)


@contextlib.contextmanager
def _without_members(parts: FolderParts, group_id: str) -> Iterator[OffsetsStore]:
    """Yield what is stored of groups, of which this one has no members; until the end no server starts."""
    ownership = Ownership(parts.metadata)
    try:
        store = OffsetsStore(parts, flush=True)
        group = store.load().groups.get(group_id)
        if group is not None and group.members:
            raise GroupNotEmptyError(group_id, str(parts.metadata.path))
        yield store
    finally:
        ownership.release()


def _load(parts: FolderParts) -> tuple[StoredGroups, int, int]:
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
