"""Encoding and decoding of FetchRequest and FetchResponse, versions 4 to 12, flexible from 12 on.

    request                               since    response                              since
    replica_id             int32                   throttle_time_ms         int32
    max_wait_ms            int32                   error_code               int16        7
    min_bytes              int32                   session_id               int32        7
    max_bytes              int32                   topics
    isolation_level        int8                      topic                  string
    session_id             int32          7          partitions
    session_epoch          int32          7            partition            int32
    topics                                             error_code           int16
      topic                string                      high_watermark       int64
      partitions                                       last_stable_offset   int64
        partition          int32                       log_start_offset     int64        5
        current_leader_epoch int32        9            diverging_epoch      tag 0        12
        fetch_offset       int64                       current_leader       tag 1        12
        last_fetched_epoch int32          12           aborted_transactions null
        log_start_offset   int64          5              producer_id        int64
        partition_max_bytes int32                        first_offset       int64
    forgotten_topics                      7            preferred_read_replica int32      11
      topic                string                      records              null
      partitions           int32s
    rack_id                string         11

Records are adjacent batches, of which the first may start before the requested offset. They are never
copied: a decoded response refers to its frame, and an encoded one has them as separate pieces. A response
has empty records instead of null, which clients do not expect.

Source: Kafka clients/src/main/resources/common/message/FetchRequest.json, FetchResponse.json.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from spark_kbatch.model import AbortedTransaction
from spark_kbatch.record.checksums import Buffer
from spark_kbatch.wire.leaders import CurrentLeader, TaggedReaders, encoded_leader, read_leader
from spark_kbatch.wire.primitives import Reader, Writer
from spark_kbatch.wire.topics import read_topics, write_topics

NO_SESSION = 0  # a session id
FINAL_SESSION_EPOCH = -1  # of a fetch outside any session

_LIMITS = struct.Struct(">iiiib")
_SESSION = struct.Struct(">ii")
_EPOCH = struct.Struct(">iq")
_ABORTED = struct.Struct(">qq")
_PARTITION_MIN_SIZE = 16
_RESPONSE_MIN_SIZE = 24


@dataclass(slots=True)
class FetchPartition:
    """A partition in a FetchRequest: the offset to read from, the byte limit and leader epochs."""

    partition: int
    fetch_offset: int
    partition_max_bytes: int
    current_leader_epoch: int = -1  # that the client knows of; -1 for none
    last_fetched_epoch: int = -1
    log_start_offset: int = -1  # of a follower


@dataclass(slots=True)
class FetchTopic:
    """A topic in a FetchRequest, with the partitions to read."""

    topic: str
    partitions: list[FetchPartition]


@dataclass(slots=True)
class ForgottenTopic:
    """A topic in a FetchRequest whose partitions are to be removed from the fetch session."""

    topic: str
    partitions: list[int]


@dataclass(slots=True)
class FetchRequest:
    """Kafka's FetchRequest: partitions with their offsets, byte limits, and how long to wait."""

    max_wait_ms: int
    min_bytes: int
    topics: list[FetchTopic]
    max_bytes: int = 2**31 - 1
    isolation_level: int = 0  # 0 for read_uncommitted, 1 for read_committed
    replica_id: int = -1  # of a follower
    session_id: int = NO_SESSION
    session_epoch: int = FINAL_SESSION_EPOCH
    forgotten_topics: list[ForgottenTopic] = field(default_factory=list)
    rack_id: str = ""

    @staticmethod
    def flexible_version_q(version: int) -> bool:
        """Return True if the version is flexible."""
        return version >= 12

    @classmethod
    def decode(cls, reader: Reader, version: int) -> FetchRequest:
        """Decode the body of a FetchRequest."""

        def read_partition(reader: Reader) -> FetchPartition:
            return _read_partition(reader, version)

        replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level = reader.unpack(
            _LIMITS, "replica_id to isolation_level"
        )
        one = cls(max_wait_ms, min_bytes, [], max_bytes, isolation_level, replica_id)
        if version >= 7:
            one.session_id, one.session_epoch = reader.unpack(_SESSION, "session_id, session_epoch")
        one.topics = read_topics(reader, FetchTopic, read_partition, _PARTITION_MIN_SIZE)
        if version >= 7:
            one.forgotten_topics = read_topics(
                reader, ForgottenTopic, _read_forgotten_partition, 4, "forgotten_topics"
            )
        if version >= 11:
            one.rack_id = reader.string("rack_id")
        reader.tagged_fields("body")
        return one

    def encode(self, writer: Writer, version: int) -> None:
        """Encode the body of a FetchRequest."""
        writer.pack(
            _LIMITS,
            self.replica_id,
            self.max_wait_ms,
            self.min_bytes,
            self.max_bytes,
            self.isolation_level,
        )
        if version >= 7:
            writer.pack(_SESSION, self.session_id, self.session_epoch)
        write_topics(writer, self.topics, partial(_write_partition, writer, version))
        if version >= 7:
            write_topics(writer, self.forgotten_topics, writer.int32)
        if version >= 11:
            writer.string(self.rack_id)
        writer.tagged_fields()


class EpochEndOffset(NamedTuple):
    """A FetchResponse's diverging epoch: where the log of the client starts to differ from the leader's."""

    epoch: int = -1
    end_offset: int = -1


@dataclass(slots=True)
class FetchPartitionResponse:
    """A partition in a FetchResponse: its record batches or error, and its offsets."""

    partition: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted_transactions: Sequence[AbortedTransaction] | None = None
    preferred_read_replica: int = -1
    records: Buffer | None = b""  # adjacent batches; null only from other servers
    diverging_epoch: EpochEndOffset | None = None
    current_leader: CurrentLeader | None = None


@dataclass(slots=True)
class FetchTopicResponse:
    """A topic in a FetchResponse, with the results of its partitions."""

    topic: str
    partitions: list[FetchPartitionResponse]


@dataclass(slots=True)
class FetchResponse:
    """Kafka's FetchResponse: record batches and errors, by topic and partition."""

    topics: list[FetchTopicResponse]
    throttle_time_ms: int = 0
    error_code: int = 0
    session_id: int = NO_SESSION

    @classmethod
    def decode(cls, reader: Reader, version: int) -> FetchResponse:
        """Decode the body of a FetchResponse; its records refer to the reader's frame, without a copy."""

        def read_partition(reader: Reader) -> FetchPartitionResponse:
            return _read_partition_response(reader, version)

        one = cls([], reader.int32("throttle_time_ms"))
        if version >= 7:
            one.error_code = reader.int16("error_code")
            one.session_id = reader.int32("session_id")
        one.topics = read_topics(reader, FetchTopicResponse, read_partition, _RESPONSE_MIN_SIZE)
        reader.tagged_fields("body")
        return one

    def encode(self, writer: Writer, version: int) -> None:
        """Encode a FetchResponse's body; its records are not copied, so they must not change until sent."""
        writer.int32(self.throttle_time_ms)
        if version >= 7:
            writer.int16(self.error_code)
            writer.int32(self.session_id)
        write_topics(writer, self.topics, partial(_write_partition_response, writer, version))
        writer.tagged_fields()


def _read_partition(reader: Reader, version: int) -> FetchPartition:
    partition = reader.int32("topics.partitions.partition")
    leader_epoch = reader.int32("topics.partitions.current_leader_epoch") if version >= 9 else -1
    fetch_offset = reader.int64("topics.partitions.fetch_offset")
    fetched_epoch = reader.int32("topics.partitions.last_fetched_epoch") if version >= 12 else -1
    log_start = reader.int64("topics.partitions.log_start_offset") if version >= 5 else -1
    max_bytes = reader.int32("topics.partitions.partition_max_bytes")
    reader.tagged_fields("topics.partitions")
    return FetchPartition(
        partition, fetch_offset, max_bytes, leader_epoch, fetched_epoch, log_start
    )


def _write_partition(writer: Writer, version: int, one: FetchPartition) -> None:
    writer.int32(one.partition)
    if version >= 9:
        writer.int32(one.current_leader_epoch)
    writer.int64(one.fetch_offset)
    if version >= 12:
        writer.int32(one.last_fetched_epoch)
    if version >= 5:
        writer.int64(one.log_start_offset)
    writer.int32(one.partition_max_bytes)
    writer.tagged_fields()


def _read_forgotten_partition(reader: Reader) -> int:
    return reader.int32("forgotten_topics.partitions")


def _read_diverging_epoch(reader: Reader) -> EpochEndOffset:
    epoch = EpochEndOffset(*reader.unpack(_EPOCH, "diverging_epoch"))
    reader.tagged_fields("diverging_epoch")
    return epoch


_TAGGED: TaggedReaders = {
    0: ("diverging_epoch", _read_diverging_epoch),
    1: ("current_leader", read_leader),
}


def _read_aborted_transaction(reader: Reader) -> AbortedTransaction:
    aborted = AbortedTransaction(*reader.unpack(_ABORTED, "aborted_transactions"))
    reader.tagged_fields("aborted_transactions")
    return aborted


def _read_partition_response(reader: Reader, version: int) -> FetchPartitionResponse:
    one = FetchPartitionResponse(
        reader.int32("topics.partitions.partition"),
        reader.int16("topics.partitions.error_code"),
        reader.int64("topics.partitions.high_watermark"),
        reader.int64("topics.partitions.last_stable_offset"),
    )
    if version >= 5:
        one.log_start_offset = reader.int64("topics.partitions.log_start_offset")
    one.aborted_transactions = reader.nullable_array(
        _read_aborted_transaction, _ABORTED.size, "topics.partitions.aborted_transactions"
    )
    if version >= 11:
        one.preferred_read_replica = reader.int32("topics.partitions.preferred_read_replica")
    one.records = reader.nullable_view("topics.partitions.records")
    tags = reader.tagged_fields("topics.partitions", _TAGGED)
    one.diverging_epoch = tags.get("diverging_epoch")
    one.current_leader = tags.get("current_leader")
    return one


def _write_partition_response(writer: Writer, version: int, one: FetchPartitionResponse) -> None:
    writer.int32(one.partition)
    writer.int16(one.error_code)
    writer.int64(one.high_watermark)
    writer.int64(one.last_stable_offset)
    if version >= 5:
        writer.int64(one.log_start_offset)
    aborted = one.aborted_transactions
    writer.array_length(-1 if aborted is None else len(aborted))
    for transaction in aborted or ():
        writer.pack(_ABORTED, transaction.producer_id, transaction.first_offset)
        writer.tagged_fields()
    if version >= 11:
        writer.int32(one.preferred_read_replica)
    writer.records(one.records)
    tags = {}
    if one.diverging_epoch is not None:
        tags[0] = _EPOCH.pack(*one.diverging_epoch) + b"\0"
    if one.current_leader is not None:
        tags[1] = encoded_leader(one.current_leader)
    writer.tagged_fields(tags)
