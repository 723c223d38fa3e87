"""Consumer groups of a cluster, or in a broker's logs: their members, committed offsets and lag.

They are read from `__consumer_offsets`, so it does not matter whether a server or broker runs. What
only that knows is missing: a rebalance in progress, and members that have died silently since.

In a broker's logs the last record of each key counts, up to the high watermark, as for a broker
that loads them. An offset that was committed in a transaction counts once its commit marker is
there; one that is still open hides nothing after it. Expired offsets are there until the broker has
removed them.

Source: Kafka group-coordinator/.../OffsetMetadataManager.java replay, replayEndTransactionMarker.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from spark_kbatch.cluster.group_records import (
    CommittedOffset,
    GroupKey,
    GroupMetadata,
    MemberMetadata,
    OffsetKey,
    unpack_newer_key,
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
from spark_kbatch.commit.internal_topics import CONSUMER_OFFSETS
from spark_kbatch.errors import (
    ConfigError,
    CorruptRecordError,
    GroupIdNotFoundError,
    GroupNotEmptyError,
    KafkaStorageError,
    ServerRunningError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.log.foreign.log_dir import ForeignLogDir
from spark_kbatch.model import (
    ConsumerGroup,
    GroupMember,
    IsolationLevel,
    OffsetRange,
    TopicPartition,
)
from spark_kbatch.options.remote import parse_client_options
from spark_kbatch.record.scalar import PlainRecord
from spark_kbatch.store.groups import committed, described_member, with_ends
from spark_kbatch.store.source import Source
from spark_kbatch.store.store import NO_IDS, CheckOffsets, Groups

logger = logging.getLogger(__name__)


class FolderGroups(Groups):
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
        contents = load_groups(self._parts)
        return self._held(contents, group_id)

    def _held(self, contents: StoredGroups, group_id: str) -> dict[TopicPartition, int]:
        topics = TopicsOfRequest(self._parts)
        return {
            tp: value.offset
            for tp, value in contents.offsets.get(group_id, {}).items()
            if not topics.is_gone(tp, value)
        }

    def alter_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        topic_ids: Mapping[str, str] = NO_IDS,
        check: CheckOffsets | None = None,
    ) -> None:
        """Set the offsets at which a group without members continues, which need not exist.

        Raises:
            UnknownTopicOrPartitionError: a partition does not exist.
            GroupNotEmptyError, ServerRunningError, KafkaStorageError: as `_change`.
        """
        # An offset that is stored with the id of a topic that is gone is not read again.
        ids = {
            tp: topic_ids.get(tp.topic) or self._parts.manager.partition(tp).topic.topic_id
            for tp in offsets
        }

        def changes(contents: StoredGroups) -> list[Change]:
            if check is not None:
                check(self._held(contents, group_id))
            now_ms = self._parts.manager.now_ms()
            return [
                (
                    OffsetKey(group_id, *tp),
                    CommittedOffset(offset, commit_timestamp=now_ms, topic_id=ids[tp]),
                )
                for tp, offset in offsets.items()
            ]

        self._change(
            group_id,
            changes,
            lambda served: served.alter_offsets(group_id, offsets, topic_ids, check),
        )

    def delete(self, group_id: str) -> None:
        """Delete a group without members, and its offsets, those too that transactions have.

        Raises:
            GroupIdNotFoundError: there is no such group.
            GroupNotEmptyError, ServerRunningError, KafkaStorageError: as `_change`.
            KafkaStorageError, CorruptRecordError: the log of transactions cannot be read.
        """

        def changes(contents: StoredGroups) -> list[Change]:
            from spark_kbatch.cluster.transactions.log import TransactionLog  # noqa: PLC0415  rare
            from spark_kbatch.cluster.transactions.state import (  # noqa: PLC0415  as above
                without_offsets_of,
            )

            log = TransactionLog(self._parts, flush=True)
            pending = [one for one in log.load().transactions.values() if one.offsets.get(group_id)]
            for one in pending:
                log.append(without_offsets_of(one, group_id, one.offsets[group_id]))
            found: list[Change] = [
                (OffsetKey(group_id, *tp), None) for tp in contents.offsets.get(group_id, ())
            ]
            if group_id in contents.groups:
                found.append((GroupKey(group_id), None))
            if not found and not pending:
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


class ForeignGroups(Groups):
    """The consumer groups in a broker's log dir, which are only read; a `store.Groups`."""

    def __init__(self, path: Path, log_dir: ForeignLogDir, source: Source) -> None:
        self._path, self._log_dir, self._source = path, log_dir, source

    def groups(self) -> list[ConsumerGroup]:
        """Return all groups in the partitions of `__consumer_offsets` that are here, sorted by id.

        The end of a partition that is not here, but on another disk or broker, is not known.

        Raises:
            CorruptRecordError: records of `__consumer_offsets` are missing or damaged.
        """
        contents, held = StoredGroups(), self._log_dir.partitions(CONSUMER_OFFSETS.topic)
        if held[-1].partition >= len(held):
            logger.warning(
                "%s has partitions %s of %s: groups in the others are not shown, which are in "
                "other log dirs of the broker or of its cluster",
                self._path,
                ", ".join(str(one.partition) for one in held),
                CONSUMER_OFFSETS.topic,
            )
        for topic_partition in held:
            try:
                for record in self._last_of_each_key(topic_partition):
                    contents.apply_record(record)
            except CorruptRecordError as error:
                raise replace(error, path=error.path or f"{self._path}/{topic_partition}") from None
        here = frozenset(self._log_dir.partitions())

        def is_gone(tp: TopicPartition, at: CommittedOffset) -> bool:
            """Return True if the topic was deleted, and created again, since the commit."""
            known = at.topic_id if tp in here else ""  # one that is not here may be elsewhere
            return known != "" and self._log_dir.topic_id(tp) not in ("", known)

        return with_ends(
            _described(contents, is_gone),
            lambda wanted: _ends(self._source, [tp for tp in wanted if tp in here]),
        )

    def _last_of_each_key(self, topic_partition: TopicPartition) -> list[PlainRecord]:
        """Return the last record of each key in a partition, in the order of their offsets."""
        from spark_kbatch.consumer.reading import read_range  # noqa: PLC0415  loads pyarrow

        edges = self._source.views([topic_partition])[topic_partition].offsets
        undecided = self._log_dir.log(topic_partition).not_committed()
        wanted = OffsetRange(topic_partition, edges.log_start_offset, edges.high_watermark)
        batches = read_range(
            self._source, wanted, ["offset", "key", "value"], IsolationLevel.READ_UNCOMMITTED
        )
        latest = {
            record.key: record
            for rows in batches
            for record in map(PlainRecord, *(column.to_pylist() for column in rows))
            if record.offset not in undecided
        }
        return sorted(latest.values())

    def alter_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        topic_ids: Mapping[str, str] = NO_IDS,
        check: CheckOffsets | None = None,
    ) -> NoReturn:
        """Raise ConfigError: a broker's logs are only read."""
        raise ConfigError(
            f"group {group_id!r} cannot be changed in {self._path}: it is a Kafka broker's log "
            "directory, which kbatch only reads; copy its topics with `kbatch mirror "
            "--keep-offsets`, and set offsets in the copy with `kbatch groups reset`, or hand the "
            "topics to a broker and use Kafka's kafka-consumer-groups; docs/broker-logs.md shows "
            "how to take all groups along"
        )

    def delete(self, group_id: str) -> NoReturn:
        """Raise ConfigError: a broker's logs are only read."""
        self.alter_offsets(group_id, {})


def read_groups(parts: FolderParts) -> list[ConsumerGroup]:
    """Return all groups of a cluster as stored last, sorted; offsets of deleted topics are left out.

    Their ends are not looked up. Takes no lock and writes nothing: a server may run meanwhile.

    Raises:
        KafkaStorageError, CorruptRecordError: the log cannot be read.
    """
    contents = load_groups(parts)
    return _described(contents, TopicsOfRequest(parts).is_gone)


def _described(
    contents: StoredGroups, is_gone: Callable[[TopicPartition, CommittedOffset], bool]
) -> list[ConsumerGroup]:
    """Return all groups in `__consumer_offsets`, sorted by id, before the ends of logs are known.

    Of a group of the newer protocols (`group.protocol=consumer`) neither members nor generation are
    told, as by a real cluster.

    Args:
        contents: of `__consumer_offsets`.
        is_gone: returns True if a committed offset is of a topic that is gone: it is left out.
    """
    found = []
    keys = [*filter(None, map(unpack_newer_key, contents.others))]
    newer = {group_id: GroupMetadata(kind, -1, None, None, -1) for group_id, kind, _ in keys}
    inhabited = {group_id for group_id, _, is_member in keys if is_member}
    for group_id in sorted({*contents.groups, *contents.offsets, *newer}):
        metadata = (
            contents.groups.get(group_id)
            or newer.get(group_id)
            or GroupMetadata("", 0, None, None, -1)
        )
        offsets = {
            tp: committed(value.offset, value.metadata, value.commit_timestamp)
            for tp, value in sorted(contents.offsets.get(group_id, {}).items())
            if not is_gone(tp, value)
        }
        found.append(
            ConsumerGroup(
                group_id,
                "Stable" if metadata.members or group_id in inhabited else "Empty",
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
