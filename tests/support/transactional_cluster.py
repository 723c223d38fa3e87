"""A cluster of one broker that knows transactions, in memory: what a real one keeps, and faults on top.

    with TransactionalCluster(faults=Faults(seed=1)) as cluster: ...
    cluster.committed("events")      # what a consumer of committed records sees, by partition

It checks what a broker checks: producer epochs, sequence numbers, that a partition was added to the transaction.
A fault loses a request or its answer, or answers with an error that a client is to retry.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from spark_kbatch.model import EARLIEST
from spark_kbatch.wire.connections import Node
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
    ApiKey,
    CreateTopicsResponse,
    DeleteTopicsResponse,
    DescribeConfigsResponse,
    DescribeGroupsResponse,
    EndTxnResponse,
    FetchResponse,
    FindCoordinatorResponse,
    InitProducerIdResponse,
    ListGroupsResponse,
    ListOffsetsResponse,
    MetadataResponse,
    OffsetFetchResponse,
    ProduceResponse,
    Request,
    TxnOffsetCommitResponse,
)
from tests.support.log_histories import marker_batch
from tests.support.reference import Record, decode_batches, read_header
from tests.support.wire_servers import LoopbackServer

TRANSACTIONAL = 0x10
HANG_UP = "hang up"
READ, WRITE = 1 << 3, 1 << 4  # of Kafka's AclOperation

_COORDINATORS = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
_ERRORS = {
    ApiKey.PRODUCE: (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS),
    ApiKey.INIT_PRODUCER_ID: (*_COORDINATORS, ErrorCode.CONCURRENT_TRANSACTIONS),
    ApiKey.ADD_PARTITIONS_TO_TXN: (*_COORDINATORS, ErrorCode.CONCURRENT_TRANSACTIONS),
    ApiKey.ADD_OFFSETS_TO_TXN: (*_COORDINATORS, ErrorCode.CONCURRENT_TRANSACTIONS),
    ApiKey.TXN_OFFSET_COMMIT: _COORDINATORS,
    ApiKey.END_TXN: (*_COORDINATORS, ErrorCode.CONCURRENT_TRANSACTIONS),
    ApiKey.OFFSET_FETCH: (*_COORDINATORS, ErrorCode.UNSTABLE_OFFSET_COMMIT),
    ApiKey.FIND_COORDINATOR: (ErrorCode.COORDINATOR_NOT_AVAILABLE,),
}


class Faults:
    """Faults of a share of all requests, the same for the same seed and order of requests."""

    def __init__(self, *, seed: int = 0, share: float = 0.0) -> None:
        self._random, self._share = random.Random(seed), share

    def pick(self, api_key: int) -> str | int | None:
        """Return "lost", "unanswered", an error code, or None for no fault."""
        if self._random.random() >= self._share:
            return None
        return self._random.choice(["lost", "unanswered", *_ERRORS.get(ApiKey(api_key), ())])


class _Batch(NamedTuple):
    """A batch with its offsets; a marker is one, too."""

    transaction: int
    base_offset: int
    data: bytes
    is_marker: bool = False

    @property
    def last_offset(self) -> int:
        return self.base_offset + read_header(self.data).last_offset_delta


@dataclass
class _Log:
    """One partition: batches in order, each with its transaction; and what its leader knows of producers."""

    batches: list[_Batch] = field(default_factory=list)
    end: int = 0
    next_sequence: dict[tuple[int, int], int] = field(default_factory=dict)
    last: dict[tuple[int, int], list[tuple[int, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )


@dataclass
class _Producer:
    """A transactional id, as the coordinator knows it."""

    producer_id: int
    epoch: int = -1
    renewed: tuple[int, int] = -1, -1  # the id and epoch for which the epoch was given, if any
    transaction: int | None = None  # its number
    partitions: set[tuple[str, int]] = field(default_factory=set)
    has_offsets: bool = False
    # By group and partition.
    offsets: dict[str, dict[tuple[str, int], tuple[int, str]]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    last_outcome: bool | None = None


class TransactionalCluster:
    """One broker on loopback."""

    def __init__(self, *, faults: Faults | None = None, max_message_bytes: int = 1_000_000) -> None:
        self.faults = faults or Faults()
        self.max_message_bytes = max_message_bytes
        self.topics: dict[str, list[_Log]] = {}
        self.topic_ids: dict[str, uuid.UUID] = {}
        self.offsets: dict[str, dict[tuple[str, int], tuple[int, str]]] = defaultdict(dict)
        self.leader_epochs: dict[tuple[str, str, int], int] = {}  # by group and partition
        self.ended: dict[int, bool] = {}  # transactions: whether they were committed
        self.refusals: dict[int, int] = {}  # error codes for all requests of a kind
        self.on_request: Callable[[Request], object] = lambda request: None
        self.max_timeout_ms = 900_000
        self.rights: dict[str, int] = {}  # of topics and groups, by name; all by default
        self.leaders: list[Node] = []  # where partitions are, with ids from 2 on; by default here
        self._producers: dict[str, _Producer] = {}
        self._transactions = 0
        self._lock = threading.Lock()
        self._server = LoopbackServer(self._answer)
        self.address = f"{self._server.node.host}:{self._server.node.port}"

    def __enter__(self) -> TransactionalCluster:
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.close()

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic."""
        self.topics[name] = [_Log() for _ in range(partitions)]
        self.topic_ids[name] = uuid.uuid4()

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and what groups have committed for it, as a real cluster does."""
        del self.topics[name], self.topic_ids[name]
        for offsets in self.offsets.values():
            for place in [one for one in offsets if one[0] == name]:
                del offsets[place]

    def committed(self, topic: str) -> list[list[Record]]:
        """Return the records of ended transactions that were committed, by partition."""
        return [
            [
                record
                for one in log.batches
                if self.ended.get(one.transaction) and not one.is_marker
                for record in decode_batches(one.data)
            ]
            for log in self.topics[topic]
        ]

    @property
    def has_open_transaction(self) -> bool:
        """Whether any transaction waits for its end."""
        return any(one.transaction is not None for one in self._producers.values())

    # Answers.

    def _answer(self, request: Request) -> Any:
        self.on_request(request)
        with self._lock:
            fault = self.faults.pick(request.api_key)
            if fault == "lost":
                return HANG_UP
            code = fault if isinstance(fault, int) else self.refusals.get(request.api_key, 0)
            handler: Callable[[Any, int], Any] = {
                ApiKey.METADATA: self._metadata,
                ApiKey.FIND_COORDINATOR: self._coordinator,
                ApiKey.CREATE_TOPICS: self._create_topics,
                ApiKey.DELETE_TOPICS: self._delete_topics,
                ApiKey.DESCRIBE_CONFIGS: self._configs,
                ApiKey.LIST_OFFSETS: self._list_offsets,
                ApiKey.FETCH: self._fetch,
                ApiKey.INIT_PRODUCER_ID: self._init_producer_id,
                ApiKey.ADD_PARTITIONS_TO_TXN: self._add_partitions,
                ApiKey.ADD_OFFSETS_TO_TXN: self._add_offsets,
                ApiKey.PRODUCE: self._produce,
                ApiKey.TXN_OFFSET_COMMIT: self._commit_offsets,
                ApiKey.END_TXN: self._end,
                ApiKey.OFFSET_FETCH: self._fetch_offsets,
                ApiKey.LIST_GROUPS: self._list_groups,
                ApiKey.DESCRIBE_GROUPS: self._groups,
            }[ApiKey(request.api_key)]
            answer = handler(request.body, code)
            return HANG_UP if fault == "unanswered" else answer

    def _metadata(self, body: Any, code: int) -> Any:
        wanted = [*self.topics] if body.topics is None else [one.name for one in body.topics]
        topic = MetadataResponse.MetadataResponseTopic
        node = self._server.node
        return MetadataResponse(
            brokers=[
                MetadataResponse.MetadataResponseBroker(node_id=n, host=one.host, port=one.port)
                for n, one in enumerate([node, *self.leaders], 1)
            ],
            cluster_id="a-cluster",
            controller_id=1,
            topics=[
                topic(
                    error_code=0 if name in self.topics else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    name=name,
                    topic_id=self.topic_ids.get(name),
                    topic_authorized_operations=self.rights.get(name, READ | WRITE),
                    partitions=[
                        topic.MetadataResponsePartition(
                            error_code=0, partition_index=number,
                            leader_id=1 + len(self.leaders), leader_epoch=len(self.leaders),
                            replica_nodes=[1], isr_nodes=[1],
                        )
                        for number in range(len(self.topics.get(name, [])))
                    ],
                )
                for name in wanted
            ],
        )  # fmt: skip

    def _coordinator(self, body: Any, code: int) -> Any:
        node = self._server.node
        return FindCoordinatorResponse(error_code=code, node_id=1, host=node.host, port=node.port)

    def _groups(self, body: Any, code: int) -> Any:
        group = DescribeGroupsResponse.DescribedGroup
        return DescribeGroupsResponse(
            groups=[
                group(
                    error_code=code, group_id=name, group_state="Empty",
                    authorized_operations=self.rights.get(name, READ),
                )
                for name in body.groups
            ]
        )  # fmt: skip

    def _create_topics(self, body: Any, code: int) -> Any:
        created = []
        for one in body.topics:
            exists = one.name in self.topics
            if not exists:
                self.create_topic(one.name, max(1, one.num_partitions))
            created.append(
                CreateTopicsResponse.CreatableTopicResult(
                    name=one.name, error_code=ErrorCode.TOPIC_ALREADY_EXISTS if exists else 0
                )
            )
        return CreateTopicsResponse(topics=created)

    def _delete_topics(self, body: Any, code: int) -> Any:
        names = {topic_id: name for name, topic_id in self.topic_ids.items()}
        result = DeleteTopicsResponse.DeletableTopicResult
        answers = []
        for one in body.topics:
            if (name := names.get(one.topic_id)) is not None:
                self.delete_topic(name)
            gone = 0 if name is not None else ErrorCode.UNKNOWN_TOPIC_ID
            answers.append(result(name=name, topic_id=one.topic_id, error_code=gone))
        return DeleteTopicsResponse(responses=answers)

    def _list_groups(self, body: Any, code: int) -> Any:
        group = ListGroupsResponse.ListedGroup
        return ListGroupsResponse(
            error_code=code,
            groups=[
                group(group_id=name, protocol_type="", group_state="Empty")
                for name, offsets in self.offsets.items()
                if offsets
            ],
        )

    def _configs(self, body: Any, code: int) -> Any:
        result = DescribeConfigsResponse.DescribeConfigsResult
        return DescribeConfigsResponse(
            results=[
                result(
                    error_code=0,
                    resource_type=one.resource_type,
                    resource_name=one.resource_name,
                    configs=[
                        result.DescribeConfigsResourceResult(
                            name="max.message.bytes", value=str(self.max_message_bytes)
                        )
                    ],
                )
                for one in body.resources
            ]
        )

    def _list_offsets(self, body: Any, code: int) -> Any:
        topic = ListOffsetsResponse.ListOffsetsTopicResponse
        return ListOffsetsResponse(
            topics=[
                topic(
                    name=of.name,
                    partitions=[
                        topic.ListOffsetsPartitionResponse(
                            partition_index=one.partition_index,
                            error_code=0,
                            timestamp=-1,
                            leader_epoch=0,
                            offset=0
                            if one.timestamp == EARLIEST
                            else self._end_of(
                                self.topics[of.name][one.partition_index], body.isolation_level
                            ),
                        )
                        for one in of.partitions
                    ],
                )
                for of in body.topics
            ]
        )

    def _end_of(self, log: _Log, isolation: int) -> int:
        """Return where a log ends for an isolation level, 1 for READ_COMMITTED."""
        undecided = [one.base_offset for one in log.batches if one.transaction not in self.ended]
        return min(undecided, default=log.end) if isolation else log.end

    def _fetch(self, body: Any, code: int) -> Any:
        topic = FetchResponse.FetchableTopicResponse
        return FetchResponse(
            responses=[
                topic(
                    topic=of.topic,
                    partitions=[
                        self._fetched(
                            self.topics[of.topic][one.partition], one, body.isolation_level
                        )
                        for one in of.partitions
                    ],
                )
                for of in body.topics
            ]
        )

    def _fetched(self, log: _Log, asked: Any, isolation: int) -> Any:
        end = self._end_of(log, isolation)
        found = [
            each
            for each in log.batches
            if each.base_offset < end and each.last_offset >= asked.fetch_offset
        ]
        aborted = {
            (read_header(each.data).producer_id, each.base_offset)
            for each in found
            if not self.ended.get(each.transaction, True) and not each.is_marker
        }
        part_of = FetchResponse.FetchableTopicResponse.PartitionData
        return part_of(
            partition_index=asked.partition,
            high_watermark=log.end,
            last_stable_offset=self._end_of(log, 1),
            records=b"".join(each.data for each in found),
            aborted_transactions=[
                part_of.AbortedTransaction(producer_id=producer_id, first_offset=offset)
                for producer_id, offset in sorted(aborted)
            ],
        )

    # Transactions.

    def _init_producer_id(self, body: Any, code: int) -> Any:
        if body.transaction_timeout_ms > self.max_timeout_ms:
            code = ErrorCode.INVALID_TRANSACTION_TIMEOUT
        if code:
            return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
        name = body.transactional_id
        producer = self._producers.setdefault(name, _Producer(1000 + len(self._producers)))
        asked = body.producer_id, body.producer_epoch
        if asked[0] >= 0 and asked == producer.renewed:  # its answer was lost
            return InitProducerIdResponse(
                error_code=0, producer_id=producer.producer_id, producer_epoch=producer.epoch
            )
        if asked[0] >= 0 and asked != (producer.producer_id, producer.epoch):
            return InitProducerIdResponse(
                error_code=ErrorCode.PRODUCER_FENCED, producer_id=-1, producer_epoch=-1
            )
        self._finish(name, producer, commit=False)
        producer.renewed = asked
        producer.epoch += 1
        producer.last_outcome = None
        return InitProducerIdResponse(
            error_code=0, producer_id=producer.producer_id, producer_epoch=producer.epoch
        )

    def _finish(self, name: str, producer: _Producer, *, commit: bool) -> None:
        if producer.transaction is not None:
            self.ended[producer.transaction] = commit
            for topic, number in producer.partitions:
                if topic not in self.topics:
                    continue
                log = self.topics[topic][number]
                marker = marker_batch(
                    base_offset=log.end, producer_id=producer.producer_id, abort=not commit
                )
                log.batches.append(_Batch(producer.transaction, log.end, marker, is_marker=True))
                log.end += 1
            if commit:
                for group, offsets in producer.offsets.items():
                    self.offsets[group].update(offsets)
        producer.transaction, producer.partitions = None, set()
        producer.has_offsets, producer.offsets = False, defaultdict(dict)

    def _checked(self, name: str, producer_id: int, epoch: int, code: int) -> int:
        producer = self._producers[name]
        if code:
            return code
        known = (producer.producer_id, producer.epoch)
        return 0 if (producer_id, epoch) == known else ErrorCode.PRODUCER_FENCED

    def _begin(self, name: str) -> _Producer:
        producer = self._producers[name]
        if producer.transaction is None:
            producer.transaction = self._transactions
            self._transactions += 1
        return producer

    def _add_partitions(self, body: Any, code: int) -> Any:
        name = body.v3_and_below_transactional_id
        code = self._checked(
            name, body.v3_and_below_producer_id, body.v3_and_below_producer_epoch, code
        )
        places = {
            (topic.name, one) for topic in body.v3_and_below_topics for one in topic.partitions
        }
        if not code:
            self._begin(name).partitions |= places
        topic = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
        return AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=[
                topic(
                    name=of,
                    results_by_partition=[
                        topic.AddPartitionsToTxnPartitionResult(
                            partition_index=one, partition_error_code=code
                        )
                    ],
                )
                for of, one in sorted(places)
            ]
        )

    def _add_offsets(self, body: Any, code: int) -> Any:
        name = body.transactional_id
        code = self._checked(name, body.producer_id, body.producer_epoch, code)
        if not code:
            self._begin(name).has_offsets = True
        return AddOffsetsToTxnResponse(error_code=code)

    def _commit_offsets(self, body: Any, code: int) -> Any:
        name, group = body.transactional_id, body.group_id
        code = self._checked(name, body.producer_id, body.producer_epoch, code)
        producer = self._producers[name]
        if not code and not producer.has_offsets:
            code = ErrorCode.INVALID_TXN_STATE
        topic = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
        answers = []
        for of in body.topics:
            for one in of.partitions:
                if not code:
                    found = (one.committed_offset, one.committed_metadata)
                    producer.offsets[group][of.name, one.partition_index] = found
                    self.leader_epochs[group, of.name, one.partition_index] = (
                        one.committed_leader_epoch
                    )
                result = topic.TxnOffsetCommitResponsePartition(
                    partition_index=one.partition_index, error_code=code
                )
                answers.append(topic(name=of.name, partitions=[result]))
        return TxnOffsetCommitResponse(topics=answers)

    def _end(self, body: Any, code: int) -> Any:
        name = body.transactional_id
        code = self._checked(name, body.producer_id, body.producer_epoch, code)
        if not code:
            producer = self._producers[name]
            if producer.transaction is None and producer.last_outcome != body.committed:
                code = ErrorCode.INVALID_TXN_STATE
            else:
                self._finish(name, producer, commit=body.committed)
                producer.last_outcome = body.committed
        return EndTxnResponse(error_code=code)

    def _produce(self, body: Any, code: int) -> Any:
        of_topic = ProduceResponse.TopicProduceResponse
        topics = []
        for topic in body.topic_data:
            results = [
                of_topic.PartitionProduceResponse(
                    index=one.index,
                    error_code=code or self._append(body.transactional_id, topic.name, one),
                )
                for one in topic.partition_data
            ]
            topics.append(of_topic(name=topic.name, partition_responses=results))
        return ProduceResponse(responses=topics)

    def _append(self, name: str, topic: str, one: Any) -> int:
        if topic not in self.topics:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        producer, log = self._producers[name], self.topics[topic][one.index]
        data = bytes(one.records)
        header = read_header(data)
        assert header.attributes & TRANSACTIONAL
        assert len(decode_batches(data)) == header.records_count
        if len(data) > self.max_message_bytes:
            return ErrorCode.MESSAGE_TOO_LARGE
        if (header.producer_id, header.producer_epoch) != (producer.producer_id, producer.epoch):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        who = (header.producer_id, header.producer_epoch)
        if (header.base_sequence, header.records_count) in log.last[who][-5:]:
            return ErrorCode.DUPLICATE_SEQUENCE_NUMBER
        if header.base_sequence != log.next_sequence.get(who, 0):
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if producer.transaction is None or (topic, one.index) not in producer.partitions:
            return ErrorCode.INVALID_TXN_STATE
        log.next_sequence[who] = header.base_sequence + header.records_count
        log.last[who].append((header.base_sequence, header.records_count))
        placed = log.end.to_bytes(8, "big") + data[8:]
        log.batches.append(_Batch(producer.transaction, log.end, placed))
        log.end += header.records_count
        return ErrorCode.NONE

    def _fetch_offsets(self, body: Any, code: int) -> Any:
        group_id = body.group_id
        found = self.offsets[group_id]
        pending = any(one.offsets.get(group_id) for one in self._producers.values())
        if body.require_stable and pending:
            code = code or ErrorCode.UNSTABLE_OFFSET_COMMIT
        topic = OffsetFetchResponse.OffsetFetchResponseTopic
        return OffsetFetchResponse(
            error_code=code,
            topics=[
                topic(
                    name=name,
                    partitions=[
                        topic.OffsetFetchResponsePartition(
                            partition_index=number, committed_offset=offset,
                            committed_leader_epoch=self.leader_epochs[group_id, name, number],
                            metadata=metadata, error_code=0,
                        )
                    ],
                )
                for (name, number), (offset, metadata) in sorted(found.items())
            ],
        )  # fmt: skip
