"""Produce, answered with the result of each partition's batch; InitProducerId, with an id for an idempotent producer.

Versions of Produce below 3 are offered and refused: without them librdkafka believes that the server does
not accept compressed batches.

An id for which a lock is not free is refused with a retriable code, that with which Kafka says that it has no
ids for now.

Source: KafkaApis.handleProduceRequest; ProduceRequest.validateRecords; Kafka
transaction-coordinator/.../TransactionCoordinator handleInitProducerId.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any

from spark_kbatch.clock import monotonic_s
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.errors import InvalidTimestampError, KBatchError, LockTimeoutError
from spark_kbatch.files import Buffer
from spark_kbatch.model import CODECS, AppendResult, TopicPartition
from spark_kbatch.options.topic import INTERNAL_PREFIX
from spark_kbatch.record.header import MAGIC, MAGIC_POSITION, RECORD_BATCH_OVERHEAD, unpack
from spark_kbatch.replica.manager import ACKS_ALL, ACKS_LEADER, ACKS_NONE
from spark_kbatch.server.appends import Append, Appends
from spark_kbatch.server.outcomes import Outcomes, shortened
from spark_kbatch.server.requests import HANG_UP, NAME_SHOWN_MAX, Received, Respond
from spark_kbatch.server.topic_names import TopicNames, id_of
from spark_kbatch.server.transactions.requests import TransactionRequests
from spark_kbatch.server.unwritten_batches import IdempotentBatch, idempotent_batch
from spark_kbatch.wire.errors import ErrorCode, code_of
from spark_kbatch.wire.protocol import InitProducerIdResponse, ProduceRequest, ProduceResponse

_Topic = ProduceResponse.TopicProduceResponse
_Partition = _Topic.PartitionProduceResponse

_FIRST_VERSION = 3
_FIRST_WITH_ZSTD = 7
_FEW = 32  # partitions
_NAMED_TWICE = ErrorCode.INVALID_REQUEST, "the partition is named twice in the request"
_TOLD_AGAIN_AFTER_S = 600.0
# What of a server's own, rather than of a request, is in the way.
_NOT_STORED = {
    ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
}  # fmt: skip
# Answers to retries of idempotent producers, which these mend by themselves.
_MENDED_BY_CLIENTS = {
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.UNKNOWN_PRODUCER_ID,
}  # fmt: skip
_TAKES_WITHIN_S = 10.0  # an id; clients wait for 30 s
_FIRST_WITH_IDS = 3  # version of InitProducerId


class ProduceHandler:
    """Handler of Produce and InitProducerId requests; thread-safe."""

    def __init__(
        self,
        parts: FolderParts,
        appends: Appends,
        outcomes: Outcomes,
        names: TopicNames,
        transactions: TransactionRequests,
    ) -> None:
        """Append by these queues."""
        self._parts, self._appends, self._outcomes, self._names = parts, appends, outcomes, names
        self._transactions = transactions
        self._manager = parts.manager

    def produce(self, received: Received, respond: Respond) -> None:
        """Queue the batches; answer once each is appended or refused."""
        request: ProduceRequest = received.body
        answer = _ProduceAnswer(received, respond, self._outcomes, self._names)
        refused = _refused(received)
        deadline_s = monotonic_s() + max(request.timeout_ms, 0) / 1000
        appends: dict[TopicPartition, Append] = {}
        unknown: Mapping[TopicPartition, Exception] = {}
        if not refused and _is_of_many(request):
            named = (
                TopicPartition(topic.name, one.index)
                for topic in request.topic_data
                for one in topic.partition_data
            )
            unknown = self._manager.unknown(named)
        for topic, of_topic in zip(request.topic_data, answer.topics, strict=True):
            refused_topic = refused or _refused_topic(topic.name)
            topic_id = id_of(topic.topic_id, received.version)
            slots = of_topic.partition_responses
            for partition, slot in zip(topic.partition_data, slots, strict=True):
                data: Buffer = b"" if partition.records is None else partition.records
                topic_partition = TopicPartition(topic.name, partition.index)
                batch = idempotent_batch(topic_partition, data)
                refusal = refused_topic or _refused_batch(data, received.version)
                if not refusal and topic_partition in appends:
                    refusal = _NAMED_TWICE
                problem, first = unknown.get(topic_partition), None
                if problem is None and batch is not None:
                    problem = first = received.unwritten.error(batch)
                if not refusal and problem is not None:
                    refusal = self._names.code_of(problem, topic_id), str(problem)
                if refusal:
                    if batch is not None:
                        received.unwritten.answered(batch, refusal[0])
                    if first is None:  # else the log has that one's error
                        answer.tell(topic_partition, *refusal)
                    answer.refuse(slot, *refusal)
                    continue
                appends[topic_partition] = Append(
                    data, request.acks, request.timeout_ms, deadline_s,
                    answer.part(slot, batch, topic_partition, topic_id),
                    peer=received.peer, topic_id=topic_id,
                )  # fmt: skip
        # Nothing is answered until all batches to append are known.
        for topic_partition, append in appends.items():
            self._appends.append(topic_partition, append)
        answer.done_with_one()

    def init_producer_id(self, received: Received, respond: Respond) -> None:
        """Answer InitProducerId: a new id, with epoch 0, or that of a transactional id in its next epoch."""
        transactional_id = received.body.transactional_id
        error, producer_id, epoch = ErrorCode.NONE, -1, -1
        if transactional_id == "" or _names_half(received):
            error = ErrorCode.INVALID_REQUEST
        else:
            deadline = monotonic_s() + _TAKES_WITHIN_S
            try:
                if transactional_id is None:
                    producer_id, epoch = self._parts.new_producer_id(deadline=deadline), 0
                else:
                    error, producer = self._transactions.start_producer(received, deadline=deadline)
                    producer_id, epoch = producer
            except (OSError, KBatchError) as problem:
                error = code_of(problem)
                if isinstance(problem, LockTimeoutError):
                    error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                self._outcomes.warn_once(
                    f"no producer id for {received.client_host}: {problem}",
                    again_after_s=_TOLD_AGAIN_AFTER_S,
                )
        respond(
            InitProducerIdResponse(error_code=error, producer_id=producer_id, producer_epoch=epoch)
        )


class _ProduceAnswer:
    """The response to one Produce request, sent when the last partition's result is known."""

    def __init__(
        self, received: Received, respond: Respond, outcomes: Outcomes, names: TopicNames
    ) -> None:
        request: ProduceRequest = received.body
        self.topics = [
            _Topic(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    _Partition(index=one.index, base_offset=-1) for one in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
        self._acks, self._respond, self._unwritten = request.acks, respond, received.unwritten
        self._outcomes, self._names = outcomes, names
        self._sender = received.client_id[:NAME_SHOWN_MAX], received.client_host
        self._mutex = threading.Lock()  # guards _missing
        self._missing = 1  # parts, and the handler itself
        self._last_message = ""

    def part(
        self,
        slot: Any,
        batch: IdempotentBatch | None,
        topic_partition: TopicPartition,
        topic_id: str,
    ) -> Any:
        """Return the callback that puts the result of a partition's batch into the response."""
        self._missing += 1

        def answer(result: AppendResult) -> None:
            if result.error is not None:
                slot.error_code = self._names.code_of(result.error, topic_id)
                slot.error_message = str(result.error)
                slot.record_errors = _record_errors(result.error)
                self.tell(topic_partition, slot.error_code, slot.error_message)
            else:
                slot.base_offset = result.base_offset
                slot.log_append_time_ms = result.log_append_time
                slot.log_start_offset = result.log_start_offset
            if batch is not None:
                self._unwritten.answered(batch, slot.error_code)
            self.done_with_one()

        return answer

    def tell(self, topic_partition: TopicPartition, error: ErrorCode, message: str) -> None:
        """Log why records are not stored: clients show little of it, and of what they try again nothing."""
        if error in _MENDED_BY_CLIENTS:
            return
        client_id, host = self._sender
        own = (topic_partition, message) if error in _NOT_STORED else None
        self._outcomes.warn_once(
            f"records of client {client_id!r} at {host} for {shortened(str(topic_partition))} are not stored, "
            f"{error.name}: {shortened(message)}",
            again_after_s=_TOLD_AGAIN_AFTER_S,
            about=own or (topic_partition.topic, error),
        )

    def refuse(self, slot: Any, error: ErrorCode, message: str) -> None:
        """Put an error into the response; its message only once, as long as it is the same."""
        slot.error_code = error
        if message != self._last_message:
            slot.error_message = self._last_message = message

    def done_with_one(self) -> None:
        """Count one partition's result as known; send the Produce response if it was the last."""
        with self._mutex:
            self._missing -= 1
            if self._missing:
                return
        if self._unwritten.is_full:
            self._respond(HANG_UP)
            return
        if self._acks != ACKS_NONE:
            self._respond(ProduceResponse(responses=self.topics))
            return
        # Without an answer the end of the connection is the error: the client looks up leaders again.
        failed = any(one.error_code for topic in self.topics for one in topic.partition_responses)
        self._respond(HANG_UP if failed else None)


def _record_errors(error: Exception) -> list[Any]:
    """Return the errors of single records, by which clients tell these from others of their batch."""
    if not isinstance(error, InvalidTimestampError):
        return []
    return [
        _Partition.BatchIndexAndErrorMessage(
            batch_index=number,
            batch_index_error_message=str(
                dataclasses.replace(error, timestamp_ms=time, records=())
            ),
        )
        for number, time in error.records
    ]


def _refused(received: Received) -> tuple[ErrorCode, str] | None:
    """Return the error that refuses a Produce request as a whole; None if there is none."""
    request = received.body
    if received.version < _FIRST_VERSION:
        return (
            ErrorCode.UNSUPPORTED_VERSION,
            f"Produce is understood from version {_FIRST_VERSION} on",
        )
    if request.transactional_id is None and any(
        _is_transactional(one.records or b"")
        for topic in request.topic_data
        for one in topic.partition_data
    ):
        return (
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "the request has a transactional batch, and no transactional id",
        )
    if request.acks not in (ACKS_ALL, ACKS_LEADER, ACKS_NONE):
        return ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {request.acks}; accepted: -1, 0 and 1"
    return None


def _is_transactional(data: Buffer) -> bool:
    is_whole = len(data) >= RECORD_BATCH_OVERHEAD and data[MAGIC_POSITION] == MAGIC
    return is_whole and unpack(data).is_transactional


def _names_half(received: Received) -> bool:
    """Return True if a request names a producer id without an epoch, or the reverse."""
    if received.version < _FIRST_WITH_IDS:
        return False
    body = received.body
    return bool((body.producer_id == -1) != (body.producer_epoch == -1))


def _is_of_many(request: ProduceRequest) -> bool:
    """Return True if a request names so many partitions that unknown ones are to be found together.

    That looks at the disk, which the event loop must not: it handles no such request.
    """
    return sum(len(one.partition_data) for one in request.topic_data) > _FEW


def _refused_topic(topic: str) -> tuple[ErrorCode, str] | None:
    """Return the error that refuses all batches for a topic; None if there is none."""
    if topic.startswith(INTERNAL_PREFIX):
        return (
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic {topic!r} is the cluster's own; write to another",
        )
    return None


def _refused_batch(data: Buffer, version: int) -> tuple[ErrorCode, str] | None:
    """Return the error that refuses a partition's batch before it is queued; None if it is accepted."""
    if not data:
        return ErrorCode.INVALID_RECORD, "there is no batch; send one for each partition"
    if version < _FIRST_WITH_ZSTD and len(data) >= RECORD_BATCH_OVERHEAD:
        if unpack(data).codec == CODECS["zstd"]:
            return (
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                f"zstd is understood from version {_FIRST_WITH_ZSTD} of Produce on",
            )
    return None
