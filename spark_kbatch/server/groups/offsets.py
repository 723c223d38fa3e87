"""Committed offsets of groups: OffsetCommit, TxnOffsetCommit, OffsetFetch, OffsetDelete, and expiry.

A group with members accepts offsets only from a member of its generation. A group without members accepts
them from clients that do not claim to be members (generation -1), such as consumers that assign partitions
themselves.

An offset is dropped
- if the group has no members: offsets.retention.minutes after it lost the last one;
- if the group never had members: that long after the partition's commit;
- if the group has members: that long after the commit, if it is no longer subscribed to the topic;
- at the time that the client asked for, if it did (versions 2 to 4 of OffsetCommit);
- with its topic. An offset carries the topic's id, so an offset of an earlier topic with the same name is
  not shown, whichever process deleted that topic, and is removed with the next check.

A group without members and offsets is dropped too.

Source: Kafka group-coordinator/.../OffsetMetadataManager.java, OffsetExpirationConditionImpl.java,
ClassicGroup.validateOffsetCommit, GroupCoordinatorShard.cleanupGroupMetadata; KIP-211.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from spark_kbatch.cluster.group_records import (
    NO_TIMESTAMP,
    CommittedOffset,
    GroupKey,
    OffsetKey,
)
from spark_kbatch.cluster.offsets_store import Change, OffsetsStore, TopicsOfRequest
from spark_kbatch.errors import KafkaStorageError, KBatchError
from spark_kbatch.log.steps import expiring_ms
from spark_kbatch.model import LONG_MAX, TopicPartition
from spark_kbatch.options.server import METADATA_BYTES_MAX, GroupConfig
from spark_kbatch.server.groups.group import (
    CONSUMER,
    GROUP_OBJECTS,
    NO_MEMBER_ID,
    OFFSET_OBJECTS,
    OFFSETS_BYTES_MAX,
    Group,
    GroupMemory,
    GroupState,
    size_of_texts,
)
from spark_kbatch.server.groups.membership import Memberships, code_of_append
from spark_kbatch.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

# From this version of OffsetCommit on, an unknown group has its own error.
_KNOWS_GROUP_ID_NOT_FOUND = 9
RETENTION_OF_BROKER = -1

Store: TypeAlias = Callable[[Sequence[Change]], ErrorCode]
# Of offsets of a group that transactions have; see `GroupCoordinator`.
PendingOf: TypeAlias = Callable[[str], Collection[TopicPartition] | ErrorCode]
DropPending: TypeAlias = Callable[[str, Collection[TopicPartition]], ErrorCode]


class Committing(NamedTuple):
    """The contents of an OffsetCommit request."""

    version: int
    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    retention_ms: int  # -1 for the broker's
    offsets: Mapping[TopicPartition, tuple[int, int, str]]  # offset, leader epoch, metadata
    is_transactional: bool = False


class CommittedOffsets:
    """The committed offsets of all consumer groups, and their expiry; not thread-safe."""

    def __init__(
        self,
        store: OffsetsStore,
        memberships: Memberships,
        config: GroupConfig,
        *,
        memory: GroupMemory,
        now_ms: Callable[[], int],
        pending_of: PendingOf,
        drop_pending: DropPending,
    ) -> None:
        self._memory = memory
        self._pending_of, self._drop_pending = pending_of, drop_pending
        self._store, self._groups, self._config = store, memberships.groups, config
        self._memberships, self._now_ms = memberships, now_ms

    def commit(
        self, committing: Committing, topics: TopicsOfRequest, store: Store | None = None
    ) -> dict[TopicPartition, ErrorCode]:
        """Store offsets, or have `store` do it; return the error for each partition."""
        answers, changes = self._accepted(committing, topics)
        try:
            error = (store or self.store)(changes)
        except KBatchError as failed:
            logger.warning("offsets of group %s are not stored: %s", committing.group_id, failed)
            error = code_of_append(failed)
        return {tp: answer or error for tp, answer in answers.items()}

    def store(self, changes: Sequence[Change]) -> ErrorCode:
        """Store offsets of groups, which are made if they do not exist; raises as `OffsetsStore.append`."""
        self._store.append(changes)
        for group_id in {key.group for key, _ in changes} - self._groups.keys():
            self._groups[group_id] = Group(group_id)
        return ErrorCode.NONE

    def _accepted(
        self, committing: Committing, topics: TopicsOfRequest
    ) -> tuple[dict[TopicPartition, ErrorCode], list[Change]]:
        """Return the error for each partition, and what is to be stored."""
        answers = dict.fromkeys(committing.offsets, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        topic_ids = {tp: _topic_id_of(topics, tp) for tp in committing.offsets}
        known = [tp for tp, topic_id in topic_ids.items() if topic_id is not None]
        if not known:
            return answers, []
        group = self._groups.get(committing.group_id)
        error = self._why_not_commit(group, committing)
        if error:
            return answers | dict.fromkeys(known, error), []
        if group is not None and group.state in (GroupState.STABLE, GroupState.PREPARING):
            self._memberships.keep_session(group, committing.member_id)
        now_ms = self._now_ms()
        expire_ms = NO_TIMESTAMP
        if committing.retention_ms != RETENTION_OF_BROKER:
            expire_ms = min(max(now_ms + committing.retention_ms, 0), LONG_MAX)
        changes: list[Change] = []
        of_group = self._store.contents.offsets.get(committing.group_id, {})
        # Most clients commit none, and a group may have thousands of offsets.
        has_metadata = any(metadata for _, _, metadata in committing.offsets.values())
        metadata_bytes = _metadata_bytes(of_group) if has_metadata else 0
        for tp in known:
            offset, leader_epoch, metadata = committing.offsets[tp]
            # As in Kafka the limit on "bytes" is one on Java's characters.
            size_in_bytes, characters = (
                metadata_size(metadata),
                len(metadata.encode("utf-16-le")) // 2,
            )
            if (
                characters > self._config.offset_metadata_max_bytes
                or size_in_bytes > METADATA_BYTES_MAX
            ):
                answers[tp] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            before = of_group.get(tp)
            more_metadata = size_in_bytes - (metadata_size(before.metadata) if before else 0)
            of_objects = OFFSET_OBJECTS if before is None else 0
            if not of_group and not changes:
                of_objects += size_of_texts(committing.group_id)
                if group is None:
                    of_objects += GROUP_OBJECTS + size_of_texts(committing.group_id)
            is_too_much = more_metadata > 0 and metadata_bytes + more_metadata > OFFSETS_BYTES_MAX
            if is_too_much or not self._memory.take(of_objects + more_metadata):
                answers[tp] = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
                continue
            metadata_bytes += more_metadata
            answers[tp] = ErrorCode.NONE
            # Later than what is stored: see `StoredGroups.not_overtaken`.
            stored_ms = before.commit_timestamp if before else NO_TIMESTAMP
            commit_ms = max(now_ms, min(stored_ms + 1, LONG_MAX))
            value = CommittedOffset(
                offset, leader_epoch, metadata, commit_ms, expire_ms, topic_ids[tp] or ""
            )
            changes.append((OffsetKey(committing.group_id, *tp), value))
        return answers, changes

    def _why_not_commit(self, group: Group | None, committing: Committing) -> ErrorCode:
        is_anyone, is_transactional = committing.generation < 0, committing.is_transactional
        if group is None:
            if is_anyone:
                return ErrorCode.NONE
            if committing.version >= _KNOWS_GROUP_ID_NOT_FOUND:
                return ErrorCode.GROUP_ID_NOT_FOUND
            return ErrorCode.ILLEGAL_GENERATION
        if is_anyone and group.state is GroupState.EMPTY:
            return ErrorCode.NONE
        if is_anyone and committing.member_id == NO_MEMBER_ID and committing.instance_id is None:
            # Clients from before KIP-447 do not say which member a transaction's offsets are of.
            return ErrorCode.NONE if is_transactional else ErrorCode.UNKNOWN_MEMBER_ID
        error = group.why_not_a_member(committing.member_id, committing.instance_id)
        if error:
            return error
        if committing.generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if group.state is GroupState.COMPLETING and not is_transactional:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def size_in_bytes(self) -> int:
        """Return the memory that all committed offsets take, about."""
        return sum(
            size_of_texts(group_id) + len(of_group) * OFFSET_OBJECTS + _metadata_bytes(of_group)
            for group_id, of_group in self._store.contents.offsets.items()
        )

    def stored(
        self, group_id: str, topic_partitions: Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return a group's offsets of these partitions, or all; partitions without one are left out.

        Some may be of topics that no longer exist.
        """
        of_group = self._store.contents.offsets.get(group_id, {})
        if topic_partitions is None:
            return dict(of_group)
        return {tp: found for tp in topic_partitions if (found := of_group.get(tp)) is not None}

    def delete(
        self, group_id: str, topic_partitions: Collection[TopicPartition], topics: TopicsOfRequest
    ) -> ErrorCode | dict[TopicPartition, ErrorCode]:
        """Drop a group's offsets of some partitions, from transactions too; return one error code, or one for each."""
        pending = self._pending_of(group_id)
        if isinstance(pending, ErrorCode):
            return pending
        group = self._groups.get(group_id, Group(group_id) if pending else None)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER:
            return ErrorCode.NON_EMPTY_GROUP
        of_group = self._store.contents.offsets.get(group_id, {})
        answers: dict[TopicPartition, ErrorCode] = {}
        changes: list[Change] = []
        for tp in topic_partitions:
            if _topic_id_of(topics, tp) is None and tp not in of_group:
                answers[tp] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif group.is_subscribed_to(tp.topic):
                answers[tp] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            else:
                answers[tp] = ErrorCode.NONE
                if tp in of_group:
                    changes.append((OffsetKey(group_id, *tp), None))
        dropped = [tp for tp, answer in answers.items() if answer is ErrorCode.NONE]
        if why_not := self._drop_pending(group_id, dropped):
            return why_not
        try:
            self._store.append(changes)
        except KBatchError as error:
            logger.warning("offsets of group %s are not deleted: %s", group_id, error)
            return code_of_append(error)
        return answers

    def delete_group(self, group_id: str) -> ErrorCode:
        """Drop a group without members, and its offsets, from transactions too; return the error to answer with."""
        pending = self._pending_of(group_id)
        if isinstance(pending, ErrorCode):
            return pending
        group = self._groups.get(group_id)
        if group is None and not pending:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group is not None and group.state is not GroupState.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        if (why_not := self._drop_pending(group_id, pending)) or group is None:
            return why_not
        try:
            self._drop(group_id, self._store.contents.offsets.get(group_id, {}))
        except KBatchError as error:
            logger.warning("group %s is not deleted: %s", group_id, error)
            return code_of_append(error)
        return ErrorCode.NONE

    def _drop(self, group_id: str, offsets: Iterable[TopicPartition]) -> None:
        changes: list[Change] = [(OffsetKey(group_id, *tp), None) for tp in offsets]
        if group_id in self._store.contents.groups:
            changes.append((GroupKey(group_id), None))
        self._store.append(changes)
        self._memberships.forget(group_id)

    def clean_up(self) -> None:
        """Drop offsets that have expired, and those of topics that do not exist."""
        for group_id in list(self._groups):
            try:
                self._clean_up_group(self._groups[group_id])
            except KBatchError as error:
                logger.warning("offsets of group %s do not expire for now: %s", group_id, error)

    def _clean_up_group(self, group: Group) -> None:
        offsets = self._store.contents.offsets.get(group.group_id, {})
        topics = self._store.topics()
        dropped = [
            tp
            for tp, value in offsets.items()
            if self._has_expired(group, tp, value)
            or (topics.is_gone(tp, value) and not topics.is_lost(tp))
        ]
        is_left = group.state is GroupState.EMPTY and not group.pending_joins
        if is_left and len(dropped) == len(offsets):
            self._drop(group.group_id, dropped)
            logger.info("group %s is dropped: it has no offsets", group.group_id)
        elif dropped:
            self._store.append([(OffsetKey(group.group_id, *tp), None) for tp in dropped])
        if dropped:
            logger.info("%d offsets of group %s are dropped", len(dropped), group.group_id)

    def _has_expired(
        self, group: Group, topic_partition: TopicPartition, value: CommittedOffset
    ) -> bool:
        since_ms = value.commit_timestamp
        if group.protocol_type is not None:
            if group.is_subscribed_to(topic_partition.topic):
                return False
            if group.state is GroupState.EMPTY:
                if group.state_timestamp != NO_TIMESTAMP:
                    since_ms = group.state_timestamp
            elif group.state is not GroupState.STABLE or group.subscribed_topics is None:
                return False
        if value.expire_timestamp != NO_TIMESTAMP:
            return expiring_ms(self._now_ms()) >= value.expire_timestamp
        return expiring_ms(self._now_ms()) - since_ms >= self._config.offsets_retention_ms


def metadata_size(metadata: str) -> int:
    """Return the bytes that an offset's metadata takes in an answer."""
    return len(metadata) if metadata.isascii() else len(metadata.encode())


def _metadata_bytes(offsets: Mapping[TopicPartition, CommittedOffset]) -> int:
    return sum(metadata_size(one.metadata) for one in offsets.values() if one.metadata)


def _topic_id_of(topics: TopicsOfRequest, topic_partition: TopicPartition) -> str | None:
    try:
        return topics.id_of(topic_partition)
    except KafkaStorageError as error:
        logger.warning("no offset of %s can be committed: %s", topic_partition, error)
        return None
