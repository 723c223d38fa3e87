"""The consumer groups of a cluster: their members, committed offsets and lag.

They are read from `__consumer_offsets`, so it does not matter whether a server runs. What only a server
knows is missing: a rebalance in progress, and members that have died silently since.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence

from spark_kbatch.cluster.group_records import (
    CommittedOffset,
    GroupKey,
    GroupMetadata,
    MemberMetadata,
    OffsetKey,
)
from spark_kbatch.cluster.offsets_store import (
    Change,
    OffsetsStore,
    StoredGroups,
    TopicsOfRequest,
    load_groups,
)
from spark_kbatch.cluster.ownership import Ownership
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.errors import (
    GroupIdNotFoundError,
    GroupNotEmptyError,
    KafkaStorageError,
    ServerRunningError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import ConsumerGroup, GroupMember, TopicPartition
from spark_kbatch.options.remote import parse_client_options
from spark_kbatch.store.groups import committed, described_member, with_ends
from spark_kbatch.store.source import Source
from spark_kbatch.store.store import Groups


class FolderGroups:
    """The consumer groups of one cluster in a folder; `store.Groups`.

    If a server runs, here or in another process, changes are asked of it: it has the groups in memory.
    """

    def __init__(self, parts: FolderParts, source: Source) -> None:
        self._parts, self._source = parts, source

    def groups(self) -> list[ConsumerGroup]:
        """Return all groups, sorted by id; a rebalance that goes on is not in it.

        Raises the errors of `read_groups`.
        """
        return with_ends(read_groups(self._parts), functools.partial(_ends, self._source))

    def committed(self, group_id: str) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group, as stored last; raises as `read_groups`."""
        contents, _, _ = load_groups(self._parts)
        topics = TopicsOfRequest(self._parts)
        return {
            tp: value.offset
            for tp, value in contents.offsets.get(group_id, {}).items()
            if not topics.is_gone(tp, value)
        }

    def alter_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the offsets at which a group without members continues, which need not exist.

        Raises:
            UnknownTopicOrPartitionError: a partition does not exist.
            GroupNotEmptyError, ServerRunningError, KafkaStorageError: as `_change`.
        """
        ids = {tp: self._parts.manager.partition(tp).topic.topic_id for tp in offsets}

        def changes(_: StoredGroups) -> list[Change]:
            now_ms = self._parts.manager.now_ms()
            return [
                (
                    OffsetKey(group_id, *tp),
                    CommittedOffset(offset, commit_timestamp=now_ms, topic_id=ids[tp]),
                )
                for tp, offset in offsets.items()
            ]

        self._change(group_id, changes, lambda served: served.alter_offsets(group_id, offsets))

    def delete(self, group_id: str) -> None:
        """Delete a group without members, and its offsets.

        Raises:
            GroupIdNotFoundError: there is no such group.
            GroupNotEmptyError, ServerRunningError, KafkaStorageError: as `_change`.
        """

        def changes(contents: StoredGroups) -> list[Change]:
            found: list[Change] = [
                (OffsetKey(group_id, *tp), None) for tp in contents.offsets.get(group_id, ())
            ]
            if group_id in contents.groups:
                found.append((GroupKey(group_id), None))
            if not found:
                raise GroupIdNotFoundError(group_id, str(self._parts.metadata.path))
            return found

        self._change(group_id, changes, lambda served: served.delete(group_id))

    def _change(
        self,
        group_id: str,
        changes: Callable[[StoredGroups], list[Change]],
        ask: Callable[[Groups], object],
    ) -> None:
        """Store what `changes` makes of what is stored, or `ask` the server that runs.

        Raises:
            GroupNotEmptyError: the group has members, as it was stored last.
            ServerRunningError: a server runs, and where is not known.
            KafkaStorageError: it cannot be written.
        """
        try:
            ownership = Ownership(self._parts.metadata)  # until it is released no server starts
        except ServerRunningError as error:
            if not error.address:
                raise
            from spark_kbatch.remote.store import RemoteStore  # noqa: PLC0415  loads the network

            options = parse_client_options(error.address, {})
            with contextlib.closing(RemoteStore(options)) as server:
                ask(server.groups)
            return
        try:
            store = OffsetsStore(self._parts, flush=True)
            contents = store.load()
            group = contents.groups.get(group_id)
            if group is not None and group.members:
                raise GroupNotEmptyError(group_id, str(self._parts.metadata.path))
            store.append(changes(contents))
        finally:
            ownership.release()


def read_groups(parts: FolderParts) -> list[ConsumerGroup]:
    """Return all groups of a cluster as stored last, sorted; offsets of deleted topics are left out.

    Their ends are not looked up. Takes no lock and writes nothing: a server may run meanwhile.

    Raises:
        KafkaStorageError, CorruptRecordError: the log cannot be read.
    """
    contents, _, _ = load_groups(parts)
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
    return described_member(
        stored.member_id,
        stored.instance_id,
        stored.client_id,
        stored.client_host,
        stored.assignment,
    )


def _ends(source: Source, topic_partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the high watermarks of these partitions, without those that are gone or cannot be read."""
    try:
        return {
            tp: view.offsets.high_watermark for tp, view in source.views(topic_partitions).items()
        }
    except (UnknownTopicOrPartitionError, KafkaStorageError):
        if len(topic_partitions) == 1:
            return {}
    found: dict[TopicPartition, int] = {}
    for one in topic_partitions:
        found |= _ends(source, [one])
    return found
