"""ListOffsets and OffsetForLeaderEpoch: starts and ends of partitions, and offsets by time.

Source: KafkaApis.handleListOffsetRequest, handleOffsetForLeaderEpochRequest; ReplicaManager.fetchOffset,
lastOffsetForLeaderEpoch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.errors import (
    FencedLeaderEpochError,
    KBatchError,
    UnknownLeaderEpochError,
)
from spark_kbatch.log.epochs import LeaderEpochCache
from spark_kbatch.model import EARLIEST, LATEST, MAX_TIMESTAMP, IsolationLevel, TopicPartition
from spark_kbatch.record.header import NO_TIMESTAMP
from spark_kbatch.replica.delayed_fetch import NO_EPOCH
from spark_kbatch.replica.view import Replica
from spark_kbatch.server.outcomes import code_of_existing
from spark_kbatch.server.requests import Received, Respond
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import ListOffsetsResponse, OffsetForLeaderEpochResponse

_EARLIEST_LOCAL = -4  # nothing is stored elsewhere, so it is the earliest
_LATEST_TIERED = -5  # of what is stored elsewhere, so there is none
# The first version of each, by time.
_SINCE = {EARLIEST: 1, LATEST: 1, MAX_TIMESTAMP: 7, _EARLIEST_LOCAL: 8, _LATEST_TIERED: 9}
_NOTHING = -1

Seen: TypeAlias = Mapping[TopicPartition, Replica | Exception]


class _Found(NamedTuple):
    offset: int = _NOTHING
    timestamp: int = NO_TIMESTAMP


class OffsetsHandler:
    """Handler of ListOffsets and OffsetForLeaderEpoch requests; thread-safe."""

    def __init__(self, parts: FolderParts) -> None:
        self._parts = parts

    # ListOffsets.

    def list_offsets(self, received: Received, respond: Respond) -> None:
        """Answer ListOffsets."""
        body = received.body
        committed = getattr(body, "isolation_level", 0)
        isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        asked = [
            TopicPartition(topic.name, one.partition_index)
            for topic in body.topics
            for one in topic.partitions
        ]
        twice = {tp for tp, count in Counter(asked).items() if count > 1}
        seen = self._look(asked)
        response = ListOffsetsResponse.ListOffsetsTopicResponse
        topics = []
        for topic in body.topics:
            partitions = []
            for one in topic.partitions:
                tp = TopicPartition(topic.name, one.partition_index)
                error, found, epoch = ErrorCode.INVALID_REQUEST, _Found(), NO_EPOCH
                if tp not in twice:
                    error, found, epoch = self._offset(seen[tp], one, isolation, received.version)
                partitions.append(
                    response.ListOffsetsPartitionResponse(
                        partition_index=one.partition_index,
                        error_code=error,
                        timestamp=found.timestamp,
                        offset=found.offset,
                        leader_epoch=epoch,
                    )
                )
            topics.append(response(name=topic.name, partitions=partitions))
        respond(ListOffsetsResponse(topics=topics))

    def _offset(
        self, seen: Replica | Exception, asked: Any, isolation: IsolationLevel, version: int
    ) -> tuple[ErrorCode, _Found, int]:
        time_ms = asked.timestamp
        if time_ms < 0 and version < _SINCE.get(time_ms, version + 1):
            return ErrorCode.UNSUPPORTED_VERSION, _Found(), NO_EPOCH
        if isinstance(seen, Exception):
            return code_of_existing(seen), _Found(), NO_EPOCH
        try:
            _ensure_epoch(seen, asked.current_leader_epoch)
            found = _at_time(seen, time_ms, isolation)
            epoch = _epoch_of(seen, found.offset)
        except (OSError, KBatchError) as error:
            return code_of_existing(error), _Found(), NO_EPOCH
        return ErrorCode.NONE, found, epoch

    # OffsetForLeaderEpoch.

    def offset_for_leader_epoch(self, received: Received, respond: Respond) -> None:
        """Answer OffsetForLeaderEpoch."""
        asked = [
            TopicPartition(topic.topic, one.partition)
            for topic in received.body.topics
            for one in topic.partitions
        ]
        left = dict(self._look(asked))
        response = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
        topics = []
        for topic in received.body.topics:
            partitions = []
            for one in topic.partitions:
                # Each is answered once: its epochs are read from a file.
                found = left.pop(TopicPartition(topic.topic, one.partition), None)
                if found is None:
                    continue
                error, epoch, end = _end_of_epoch(found, one)
                partitions.append(
                    response.EpochEndOffset(
                        partition=one.partition,
                        error_code=error,
                        leader_epoch=epoch,
                        end_offset=end,
                    )
                )
            topics.append(response(topic=topic.topic, partitions=partitions))
        respond(OffsetForLeaderEpochResponse(topics=topics))

    def _look(self, partitions: Iterable[TopicPartition]) -> Seen:
        """Return the replica to read of each partition, or the error of one that cannot be read."""
        wanted = dict.fromkeys(partitions)
        unknown = self._parts.manager.unknown(wanted)
        known = [tp for tp in wanted if tp not in unknown]
        try:
            found: Seen = self._replicas(known) if known else {}
        except (OSError, KBatchError):
            found = {tp: self._look_at(tp) for tp in known}
        return {**found, **unknown}

    def _look_at(self, topic_partition: TopicPartition) -> Replica | Exception:
        try:
            return self._replicas([topic_partition])[topic_partition]
        except (OSError, KBatchError) as error:
            return error

    def _replicas(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Replica]:
        return self._parts.snapshots.replicas(partitions, elect=self._parts.elect_soon)


def _at_time(seen: Replica, time_ms: int, isolation: IsolationLevel) -> _Found:
    end_offset = seen.offsets.end_offset(isolation)
    if time_ms in (EARLIEST, _EARLIEST_LOCAL):
        return _Found(seen.offsets.log_start_offset)
    if time_ms == LATEST:
        return _Found(end_offset)
    if time_ms == _LATEST_TIERED:
        return _Found()
    found = seen.offset_for_timestamp(time_ms, end_offset=end_offset)
    return _Found() if found is None else _Found(*found)


def _epoch_of(seen: Replica, offset: int) -> int:
    """Return the leader epoch of the batch at an offset, or the leader's if there is no batch yet."""
    if offset == _NOTHING:
        return NO_EPOCH
    if offset >= seen.state.log_end_offset:
        return seen.state.leader_epoch
    return LeaderEpochCache.read(seen.log.files, seen.log.directory).epoch_for(offset)


def _end_of_epoch(seen: Replica | Exception, asked: Any) -> tuple[ErrorCode, int, int]:
    if isinstance(seen, Exception):
        return code_of_existing(seen), NO_EPOCH, _NOTHING
    try:
        _ensure_epoch(seen, asked.current_leader_epoch)
        epochs = LeaderEpochCache.read(seen.log.files, seen.log.directory)
        entry = epochs.end_offset_for(asked.leader_epoch, seen.state.log_end_offset)
    except (OSError, KBatchError) as error:
        return code_of_existing(error), NO_EPOCH, _NOTHING
    return ErrorCode.NONE, entry.epoch, entry.start_offset


def _ensure_epoch(seen: Replica, known: int | None) -> None:
    """Check the leader epoch, if the client gives one; raise the same errors as a fetch."""
    current, name = seen.state.leader_epoch, str(seen.log.topic_partition)
    if known is None or known in (NO_EPOCH, current):
        return
    kind = FencedLeaderEpochError if known < current else UnknownLeaderEpochError
    raise kind(name, current, known)
