"""Encoding and decoding of ProduceRequest and ProduceResponse, versions 0 to 12, flexible from 9 on.

    request                         since      response                         since
    transactional_id  string, null  3          topics
    acks              int16                      topic              string
    timeout_ms        int32                      partitions
    topics                                         partition          int32
      topic           string                       error_code         int16
      partitions                                   base_offset        int64
        partition     int32                        log_append_time_ms int64          2
        records       null                         log_start_offset   int64          5
                                                   record_errors                     8
                                                     batch_index      int32
                                                     message          string, null
                                                   error_message      string, null   8
                                                   current_leader     tag 0          10
                                               throttle_time_ms       int32          1
                                               node_endpoints         tag 0          10

Records are the adjacent batches of one partition. They are never copied: a decoded request refers to its
frame, and an encoded one has them as separate pieces.

Source: Kafka clients/src/main/resources/common/message/ProduceRequest.json, ProduceResponse.json.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import partial

from spark_kbatch.record.checksums import Buffer
from spark_kbatch.wire.leaders import (
    CurrentLeader,
    NodeEndpoint,
    TaggedReaders,
    encoded_endpoints,
    encoded_leader,
    read_endpoints,
    read_leader,
)
from spark_kbatch.wire.primitives import Reader, Writer
from spark_kbatch.wire.topics import read_topics, write_topics

_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_PRODUCED = struct.Struct(">ihq")
_TAGGED_SINCE = 10
_LEADER: TaggedReaders = {0: ("current_leader", read_leader)}
_ENDPOINTS: TaggedReaders = {0: ("node_endpoints", read_endpoints)}


@dataclass(slots=True)
class ProducePartition:
    """A partition in a ProduceRequest, with the record batches to append to it."""

    partition: int
    records: Buffer | None  # adjacent batches


@dataclass(slots=True)
class ProduceTopic:
    """A topic in a ProduceRequest, with the record batches for its partitions."""

    topic: str
    partitions: list[ProducePartition]


@dataclass(slots=True)
class ProduceRequest:
    """Kafka's ProduceRequest: record batches to append, by topic and partition, with acks and time-out."""

    acks: int  # -1 for all in-sync replicas; 0 for no response
    timeout_ms: int
    topics: list[ProduceTopic]
    transactional_id: str | None = None

    @staticmethod
    def flexible_version_q(version: int) -> bool:
        """Return True if the version is flexible."""
        return version >= 9

    @classmethod
    def decode(cls, reader: Reader, version: int) -> ProduceRequest:
        """Decode the body of a ProduceRequest; its records refer to the reader's frame, without a copy."""
        transactional_id = reader.nullable_string("transactional_id") if version >= 3 else None
        acks, timeout_ms = reader.unpack(_ACKS_AND_TIMEOUT, "acks to timeout_ms")
        topics = read_topics(reader, ProduceTopic, _read_partition, 5)
        reader.tagged_fields("body")
        return cls(acks, timeout_ms, topics, transactional_id)

    def encode(self, writer: Writer, version: int) -> None:
        """Encode the body of a ProduceRequest."""
        if version >= 3:
            writer.string(self.transactional_id)
        writer.pack(_ACKS_AND_TIMEOUT, self.acks, self.timeout_ms)
        write_topics(writer, self.topics, partial(_write_partition, writer))
        writer.tagged_fields()


@dataclass(slots=True)
class RecordError:
    """A record that kept its batch from being appended."""

    batch_index: int  # of the record, in its batch
    message: str | None


@dataclass(slots=True)
class ProducePartitionResponse:
    """A partition in a ProduceResponse: the base offset of its appended batches, or the error."""

    partition: int
    error_code: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1  # -1 if the records keep their own times
    log_start_offset: int = -1
    record_errors: list[RecordError] = field(default_factory=list)
    error_message: str | None = None
    current_leader: CurrentLeader | None = None


@dataclass(slots=True)
class ProduceTopicResponse:
    """A topic in a ProduceResponse, with the results of its partitions."""

    topic: str
    partitions: list[ProducePartitionResponse]


@dataclass(slots=True)
class ProduceResponse:
    """Kafka's ProduceResponse: base offsets or errors, by topic and partition."""

    topics: list[ProduceTopicResponse]
    throttle_time_ms: int = 0
    node_endpoints: list[NodeEndpoint] = field(default_factory=list)

    @classmethod
    def decode(cls, reader: Reader, version: int) -> ProduceResponse:
        """Decode the body of a ProduceResponse."""

        def read_partition(reader: Reader) -> ProducePartitionResponse:
            return _read_partition_response(reader, version)

        topics = read_topics(reader, ProduceTopicResponse, read_partition, _PRODUCED.size)
        throttle_time_ms = reader.int32("throttle_time_ms") if version >= 1 else 0
        tags = reader.tagged_fields("body", _ENDPOINTS if version >= _TAGGED_SINCE else {})
        return cls(topics, throttle_time_ms, **tags)

    def encode(self, writer: Writer, version: int) -> None:
        """Encode the body of a ProduceResponse."""
        write_topics(writer, self.topics, partial(_write_partition_response, writer, version))
        if version >= 1:
            writer.int32(self.throttle_time_ms)
        has_endpoints = version >= _TAGGED_SINCE and self.node_endpoints
        writer.tagged_fields({0: encoded_endpoints(self.node_endpoints)} if has_endpoints else {})


def _read_partition(reader: Reader) -> ProducePartition:
    partition = reader.int32("topics.partitions.partition")
    records = reader.nullable_view("topics.partitions.records")
    reader.tagged_fields("topics.partitions")
    return ProducePartition(partition, records)


def _write_partition(writer: Writer, one: ProducePartition) -> None:
    writer.int32(one.partition)
    writer.records(one.records)
    writer.tagged_fields()


def _read_partition_response(reader: Reader, version: int) -> ProducePartitionResponse:
    one = ProducePartitionResponse(*reader.unpack(_PRODUCED, "topics.partitions"))
    if version >= 2:
        one.log_append_time_ms = reader.int64("topics.partitions.log_append_time_ms")
    if version >= 5:
        one.log_start_offset = reader.int64("topics.partitions.log_start_offset")
    if version >= 8:
        one.record_errors = reader.array(_read_error, 5, "topics.partitions.record_errors")
        one.error_message = reader.nullable_string("topics.partitions.error_message")
    tags = reader.tagged_fields("topics.partitions", _LEADER if version >= _TAGGED_SINCE else {})
    one.current_leader = tags.get("current_leader")
    return one


def _read_error(reader: Reader) -> RecordError:
    batch_index = reader.int32("record_errors.batch_index")
    message = reader.nullable_string("record_errors.message")
    reader.tagged_fields("record_errors")
    return RecordError(batch_index, message)


def _write_partition_response(writer: Writer, version: int, one: ProducePartitionResponse) -> None:
    writer.pack(_PRODUCED, one.partition, one.error_code, one.base_offset)
    if version >= 2:
        writer.int64(one.log_append_time_ms)
    if version >= 5:
        writer.int64(one.log_start_offset)
    if version >= 8:
        writer.array_length(len(one.record_errors))
        for error in one.record_errors:
            writer.int32(error.batch_index)
            writer.string(error.message)
            writer.tagged_fields()
        writer.string(one.error_message)
    if version >= _TAGGED_SINCE and one.current_leader is not None:
        writer.tagged_fields({0: encoded_leader(one.current_leader)})
    else:
        writer.tagged_fields()
