"""The requests of transactional producers, and those that show transactions.

    InitProducerId                            gives an id to a producer, and fences the one before it
    AddPartitionsToTxn, AddOffsetsToTxn       what the transaction is going to have
    TxnOffsetCommit                           a group's offsets, as of a member of its generation
    EndTxn                                    the decision
    ListTransactions, DescribeTransactions    states of ids
    DescribeProducers                         who has written to a partition, and has a transaction open there

After CONCURRENT_TRANSACTIONS, while a decision is carried out, clients ask again.

Source: KafkaApis.handleAddPartitionsToTxnRequest, handleTxnOffsetCommitRequest, handleEndTxnRequest,
handleDescribeProducersRequest; TransactionCoordinator.scala; TransactionStateManager.listTransactionStates.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from spark_kbatch.cluster.group_records import CommittedOffset, OffsetKey
from spark_kbatch.cluster.offsets_store import Change, TopicsOfRequest
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.cluster.transactions import state
from spark_kbatch.cluster.transactions.state import (
    NO_PRODUCER,
    ProducerIdAndEpoch,
    Status,
    Step,
    TransactionMetadata,
)
from spark_kbatch.errors import KBatchError, NotLeaderOrFollowerError
from spark_kbatch.model import TopicPartition, numbers_by_topic
from spark_kbatch.options.topic import INTERNAL_PREFIX
from spark_kbatch.record.header import NO_PRODUCER_ID
from spark_kbatch.server.groups.coordinator import GroupCoordinator
from spark_kbatch.server.groups.offsets import RETENTION_OF_BROKER, Committing
from spark_kbatch.server.outcomes import code_of_existing
from spark_kbatch.server.requests import Received, Respond
from spark_kbatch.server.transactions.coordinator import TransactionCoordinator, code_of_step
from spark_kbatch.wire.errors import ErrorCode, code_of
from spark_kbatch.wire.protocol import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
    ApiKey,
    DescribeProducersResponse,
    DescribeTransactionsResponse,
    EndTxnResponse,
    ListTransactionsResponse,
    TxnOffsetCommitResponse,
)

# From this version on, a client knows PRODUCER_FENCED.
_KNOWS_FENCED = {
    ApiKey.INIT_PRODUCER_ID: 4, ApiKey.ADD_PARTITIONS_TO_TXN: 2, ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2, ApiKey.TXN_OFFSET_COMMIT: 5,
}  # fmt: skip

# And this one TRANSACTION_ABORTABLE.
_TXN_OFFSET_COMMIT_KNOWS_ABORTABLE = 4

# In one answer: 5 MB of it; for other partitions the client has to ask again.
PRODUCERS_MAX = 100_000
_ASK_AGAIN = NotLeaderOrFollowerError("too many producers for one answer")


class TransactionRequests:
    """Handlers of the requests of transactions; thread-safe."""

    def __init__(
        self,
        parts: FolderParts,
        coordinator: TransactionCoordinator,
        groups: GroupCoordinator,
        *,
        timeout_max_ms: int,
    ) -> None:
        """Answer by this coordinator; `timeout_max_ms` is the longest that a transaction may be open."""
        self._parts, self._coordinator, self._groups = parts, coordinator, groups
        self._timeout_max_ms = timeout_max_ms

    # Transactions.

    def start_producer(
        self, received: Received, *, deadline: float
    ) -> tuple[ErrorCode, ProducerIdAndEpoch]:
        """Return the error, or the producer id and epoch, for an InitProducerId with a transactional id.

        Raises:
            KBatchError: no producer id can be had.
        """
        body = received.body
        name, timeout_ms = body.transactional_id, body.transaction_timeout_ms
        if not 0 < timeout_ms <= self._timeout_max_ms:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT, NO_PRODUCER
        named = ProducerIdAndEpoch(body.producer_id, body.producer_epoch)
        caller = None if named.producer_id == NO_PRODUCER_ID else named
        known = self._coordinator.known([name])
        if isinstance(known, ErrorCode):
            return known, NO_PRODUCER
        new_id = NO_PRODUCER_ID
        if state.needs_producer_id(known.get(name)):
            new_id = self._parts.new_producer_id(deadline=deadline)

        def next_state(known: TransactionMetadata | None, now_ms: int) -> Step:
            if new_id == NO_PRODUCER_ID and state.needs_producer_id(known):
                return ErrorCode.CONCURRENT_TRANSACTIONS  # Another start has had the last epoch.
            return state.start_producer(known, name, timeout_ms, caller, new_id, now_ms)

        step = self._coordinator.step(name, next_state)
        if isinstance(step, ErrorCode):
            return _known_to(received, step), NO_PRODUCER
        if step.is_decided:
            self._coordinator.carry_out(step, peer=received.peer)
            return ErrorCode.CONCURRENT_TRANSACTIONS, NO_PRODUCER
        return ErrorCode.NONE, step.producer

    def add_partitions(self, received: Received, respond: Respond) -> None:
        """Answer an AddPartitionsToTxn: all partitions are added, or none."""
        body = received.body
        topics = TopicsOfRequest(self._parts)
        errors: dict[TopicPartition, ErrorCode] = {}
        ids: dict[TopicPartition, str] = {}
        for topic in body.v3_and_below_topics:
            for number in topic.partitions:
                tp = TopicPartition(topic.name, number)
                errors[tp], ids[tp] = _writable(topics, tp)
        error = ErrorCode.OPERATION_NOT_ATTEMPTED
        if not any(errors.values()):
            name = body.v3_and_below_transactional_id
            producer = ProducerIdAndEpoch(
                body.v3_and_below_producer_id, body.v3_and_below_producer_epoch
            )

            def next_state(known: TransactionMetadata | None, now_ms: int) -> Step:
                return state.add_partitions(known, producer, ids, now_ms)

            error = _known_to(received, code_of_step(self._coordinator.step(name, next_state)))
        topic_of = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
        partition_of = topic_of.AddPartitionsToTxnPartitionResult
        codes = {tp: found or error for tp, found in errors.items()}
        results = [
            topic_of(
                name=name,
                results_by_partition=[
                    partition_of(partition_index=tp.partition, partition_error_code=codes[tp])
                    for tp in some
                ],
            )
            for name, some in _by_topic(codes)
        ]
        respond(AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results))

    def add_offsets(self, received: Received, respond: Respond) -> None:
        """Answer an AddOffsetsToTxn."""
        body = received.body
        producer = ProducerIdAndEpoch(body.producer_id, body.producer_epoch)

        def next_state(known: TransactionMetadata | None, now_ms: int) -> Step:
            return state.add_group(known, producer, body.group_id, now_ms)

        step = self._coordinator.step(body.transactional_id, next_state)
        respond(AddOffsetsToTxnResponse(error_code=_known_to(received, code_of_step(step))))

    def commit_offsets(self, received: Received, respond: Respond) -> None:
        """Answer a TxnOffsetCommit: its offsets are pending until the transaction is decided."""
        body = received.body
        producer = ProducerIdAndEpoch(body.producer_id, body.producer_epoch)
        offsets = {
            TopicPartition(topic.name, one.partition_index): (
                one.committed_offset, one.committed_leader_epoch, one.committed_metadata or "",
            )
            for topic in body.topics
            for one in topic.partitions
        }  # fmt: skip

        def store(changes: Sequence[Change]) -> ErrorCode:
            pending = {
                TopicPartition(key.topic, key.partition): value
                for key, value in changes
                if isinstance(key, OffsetKey) and isinstance(value, CommittedOffset)
            }

            def next_state(known: TransactionMetadata | None, now_ms: int) -> Step:
                return state.add_offsets(known, producer, body.group_id, pending, now_ms)

            error = code_of_step(self._coordinator.step(body.transactional_id, next_state))
            is_abortable = received.version >= _TXN_OFFSET_COMMIT_KNOWS_ABORTABLE
            if error is ErrorCode.INVALID_TXN_STATE and is_abortable:
                return ErrorCode.TRANSACTION_ABORTABLE
            return error

        committing = Committing(
            0, body.group_id, body.generation_id, body.member_id, body.group_instance_id,
            RETENTION_OF_BROKER, offsets, is_transactional=True,
        )  # fmt: skip
        errors = self._groups.commit(committing, store)
        topic_of = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
        partition_of = topic_of.TxnOffsetCommitResponsePartition
        topics = [
            topic_of(
                name=name,
                partitions=[
                    partition_of(
                        partition_index=tp.partition, error_code=_known_to(received, errors[tp])
                    )
                    for tp in some
                ],
            )
            for name, some in _by_topic(errors)
        ]
        respond(TxnOffsetCommitResponse(topics=topics))

    def end(self, received: Received, respond: Respond) -> None:
        """Answer an EndTxn once the decision is stored, and carry it out."""
        body = received.body
        producer = ProducerIdAndEpoch(body.producer_id, body.producer_epoch)

        def next_state(known: TransactionMetadata | None, now_ms: int) -> Step:
            return state.decide(known, producer, is_commit=body.committed, now_ms=now_ms)

        step = self._coordinator.step(body.transactional_id, next_state)
        if isinstance(step, TransactionMetadata) and step.is_decided:
            self._coordinator.carry_out(step, peer=received.peer)
        respond(EndTxnResponse(error_code=_known_to(received, code_of_step(step))))

    # What is shown.

    def list_transactions(self, received: Received, respond: Respond) -> None:
        """Answer a ListTransactions."""
        body = received.body
        shown = {one.shown for one in Status}
        states, producer_ids = {*body.state_filters}, {*body.producer_id_filters}
        every = self._coordinator.known(None)
        if isinstance(every, ErrorCode):
            respond(ListTransactionsResponse(error_code=every))
            return
        started_by_ms = self._parts.manager.now_ms() - body.duration_filter
        transaction = ListTransactionsResponse.TransactionState
        listed = [
            transaction(
                transactional_id=name,
                producer_id=one.producer.producer_id,
                transaction_state=one.status.shown,
            )
            for name, one in sorted(every.items())
            if (not states or one.status.shown in states)
            and (not producer_ids or one.producer.producer_id in producer_ids)
            and (body.duration_filter < 0 or one.start_ms < started_by_ms)
        ]
        respond(
            ListTransactionsResponse(
                error_code=ErrorCode.NONE,
                unknown_state_filters=[one for one in body.state_filters if one not in shown],
                transaction_states=listed,
            )
        )

    def describe_transactions(self, received: Received, respond: Respond) -> None:
        """Answer a DescribeTransactions."""
        asked = dict.fromkeys(received.body.transactional_ids)  # each is described once
        known = self._coordinator.known(asked)
        described = DescribeTransactionsResponse.TransactionState

        def answer_of(name: str) -> Any:
            missing = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if name else ErrorCode.INVALID_REQUEST
            one = known if isinstance(known, ErrorCode) else known.get(name, missing)
            if isinstance(one, ErrorCode):
                return described(error_code=one, transactional_id=name, transaction_state="")
            return described(
                error_code=ErrorCode.NONE,
                transactional_id=name,
                transaction_state=one.status.shown,
                transaction_timeout_ms=one.timeout_ms,
                transaction_start_time_ms=one.start_ms,
                producer_id=one.producer.producer_id,
                producer_epoch=one.producer.epoch,
                topics=[
                    described.TopicData(topic=topic, partitions=numbers)
                    for topic, numbers in numbers_by_topic(sorted(one.partitions)).items()
                ],
            )

        respond(DescribeTransactionsResponse(transaction_states=[*map(answer_of, asked)]))

    def describe_producers(self, received: Received, respond: Respond) -> None:
        """Answer a DescribeProducers: what the partitions themselves say, each once."""
        topic_of = DescribeProducersResponse.TopicResponse
        wanted = {
            TopicPartition(topic.name, number)
            for topic in received.body.topics
            for number in topic.partition_indexes
        }
        unknown = self._parts.manager.unknown(wanted)
        answered: dict[TopicPartition, Any] = {}
        left = PRODUCERS_MAX
        for tp in wanted:
            answered[tp] = self._producers(
                tp, unknown.get(tp) or (None if left > 0 else _ASK_AGAIN)
            )
            left -= len(answered[tp].active_producers)
        topics = [
            topic_of(name=name, partitions=[answered[tp] for tp in some])
            for name, some in _by_topic(answered)
        ]
        respond(DescribeProducersResponse(topics=topics))

    def _producers(self, topic_partition: TopicPartition, problem: Exception | None) -> Any:
        described = DescribeProducersResponse.TopicResponse.PartitionResponse
        producer = described.ProducerState
        number = topic_partition.partition
        entries: Mapping[int, Any] = {}
        if problem is None:
            try:
                replicas = self._parts.snapshots.replicas([topic_partition])
                _, log, log_state = replicas[topic_partition]
                entries = log.producers.states_of(log_state, self._parts.manager.now_ms()).entries
            except (OSError, KBatchError) as error:
                problem = error
        if problem is not None:
            code = code_of(problem)
            return described(partition_index=number, error_code=code, error_message=str(problem))
        return described(
            partition_index=number,
            error_code=ErrorCode.NONE,
            active_producers=[
                producer(
                    producer_id=producer_id,
                    producer_epoch=one.producer_epoch,
                    last_sequence=one.last_sequence,
                    last_timestamp=one.last_timestamp,
                    coordinator_epoch=one.coordinator_epoch,
                    current_txn_start_offset=(
                        -1 if one.txn_first_offset is None else one.txn_first_offset
                    ),
                )
                for producer_id, one in sorted(entries.items())
            ],
        )


def _writable(topics: TopicsOfRequest, topic_partition: TopicPartition) -> tuple[ErrorCode, str]:
    """Return why a partition cannot be added to a transaction, and the id of its topic."""
    if topic_partition.topic.startswith(INTERNAL_PREFIX):
        return ErrorCode.INVALID_TOPIC_EXCEPTION, ""
    try:
        topic_id = topics.id_of(topic_partition)
    except KBatchError as error:
        return code_of_existing(error), ""
    return ErrorCode.NONE if topic_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic_id or ""


def _by_topic(
    answered: Iterable[TopicPartition],
) -> Iterator[tuple[str, Iterator[TopicPartition]]]:
    """Yield topics, each with those of its partitions that an answer names."""
    return itertools.groupby(sorted(answered), attrgetter("topic"))


def _known_to(received: Received, error: ErrorCode) -> ErrorCode:
    """Return an error as a client of this version knows it."""
    is_old = received.version < _KNOWS_FENCED[ApiKey(received.api_key)]
    if error is ErrorCode.PRODUCER_FENCED and is_old:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error
