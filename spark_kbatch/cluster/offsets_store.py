"""Storage of groups, with their offsets and members, in `__consumer_offsets`.

    OffsetsStore       for the one server of a cluster, or who keeps others from it: loads, appends, rewrites
    load_groups        for all processes, whether a server runs or not

It is a `StateLog`, whose contents are `StoredGroups`. Records of kinds that are not known here are kept as
they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from spark_kbatch.clock import monotonic_ms
from spark_kbatch.cluster import group_records
from spark_kbatch.cluster.group_records import (
    CommittedOffset,
    GroupKey,
    GroupMetadata,
    OffsetKey,
)
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.cluster.state_log import KeyAndValue, StateLog, read_contents
from spark_kbatch.commit.internal_topics import CONSUMER_OFFSETS
from spark_kbatch.errors import InvalidTopicError, KafkaStorageError
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import Topic
from spark_kbatch.record.scalar import PlainRecord

_APPEND_MS = 500  # an append that takes longer has waited

Change: TypeAlias = tuple[OffsetKey, CommittedOffset | None] | tuple[GroupKey, GroupMetadata | None]


@dataclass
class StoredGroups:
    """The contents of `__consumer_offsets` in memory: the last value of each key."""

    groups: dict[str, GroupMetadata] = field(default_factory=dict)
    offsets: dict[str, dict[TopicPartition, CommittedOffset]] = field(default_factory=dict)
    others: dict[bytes, bytes] = field(default_factory=dict)  # records with unknown kinds of keys

    def apply_all(self, changes: Iterable[Change]) -> None:
        """Set or remove the values of several groups and offsets."""
        for change in changes:
            self.apply(change)

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

    def not_overtaken(self, changes: Iterable[Change]) -> list[Change]:
        """Return these changes without the offsets that their groups have committed again since.

        A decision of long ago may be carried out again, too. The times tell, since what a server is sent later for
        a partition has a later time than what is stored there, also where the clock was set back.
        """
        return [change for change in changes if not self._is_overtaken(*change)]

    def _is_overtaken(self, key: OffsetKey | GroupKey, value: object) -> bool:
        if not isinstance(key, OffsetKey) or not isinstance(value, CommittedOffset):
            return False
        now = self.offsets.get(key.group, {}).get(TopicPartition(key.topic, key.partition))
        return now is not None and now.commit_timestamp >= value.commit_timestamp

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

    def packed(self) -> Iterator[KeyAndValue]:
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
        self.waited_ms = 0  # for which long appends have waited for the disk and for locks
        self._parts, self._flush, self._monotonic_ms = parts, flush, monotonic_ms
        self._log = StateLog(parts, CONSUMER_OFFSETS, StoredGroups, timeout_ms=timeout_ms)

    @property
    def contents(self) -> StoredGroups:
        """The contents of the log, as of the last load or append."""
        return self._log.contents

    def load(self) -> StoredGroups:
        """Read all of `__consumer_offsets` into `contents`, and return them; raises as `read_contents`."""
        return self._log.load()

    def append(self, changes: Sequence[Change]) -> None:
        """Append changes to `__consumer_offsets`, all or none, and apply them to `contents`.

        Raises:
            KBatchError: the changes are not stored; after a RequestTimedOutError they may be.
        """
        if not changes:
            return
        started_ms = self._monotonic_ms()
        try:
            self._log.append(
                map(_packed, changes), lambda: self.contents.apply_all(changes), flush=self._flush
            )
        finally:
            # What an append takes as a rule is no standstill, however many there are.
            self.waited_ms += max(self._monotonic_ms() - started_ms - _APPEND_MS, 0)

    def topics(self) -> TopicsOfRequest:
        """Return the topics of the cluster, for one request."""
        return TopicsOfRequest(self._parts)


def load_groups(parts: FolderParts) -> StoredGroups:
    """Return the contents of `__consumer_offsets`; raises as `read_contents`."""
    return read_contents(parts, CONSUMER_OFFSETS, StoredGroups)[0]


def _packed(change: Change) -> KeyAndValue:
    key, value = change
    if value is None:
        return group_records.pack_key(key), None
    if isinstance(value, CommittedOffset):
        return group_records.pack_key(key), group_records.pack_offset(value)
    return group_records.pack_key(key), group_records.pack_group(value)
