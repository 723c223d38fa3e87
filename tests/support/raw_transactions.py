"""A transactional producer that sends each request by itself, and looks at what a server and its logs have.

producer = RawProducer(client, "orders")
producer.start()
producer.add(EVENTS)
producer.produce(EVENTS, n=3)
producer.end(commit=True)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from spark_kbatch import Cluster
from spark_kbatch.cluster.transactions.log import read_transactions
from spark_kbatch.cluster.transactions.state import Status, TransactionMetadata
from spark_kbatch.model import TopicPartition
from spark_kbatch.wire import protocol
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import ApiKey
from tests.support import reference
from tests.support.builders import FIRST_TIMESTAMP_MS
from tests.support.raw_clients import RawClient, fetch, fetched, produce, produced
from tests.support.reference import Record
from tests.support.store import store_of
from tests.support.waiting import until

EVENTS, OTHER = TopicPartition("events", 0), TopicPartition("events", 1)
_TRANSACTIONAL = 0x10


class RawProducer:
    """A transactional producer over one connection; each method returns the error of its answer."""

    def __init__(
        self, client: RawClient, transactional_id: str = "t", *, timeout_ms: int = 30_000
    ) -> None:
        self._client, self.transactional_id, self.timeout_ms = client, transactional_id, timeout_ms
        self.producer_id, self.epoch = -1, -1
        self._next: Counter[TopicPartition] = Counter()  # sequences

    def ask_to_start(self, *, goes_on: bool = False, version: int = 5) -> ErrorCode:
        """Send an InitProducerId, as a new producer or as one that goes on after an error."""
        asked = protocol.InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=self.producer_id if goes_on else -1,
            producer_epoch=self.epoch if goes_on else -1,
        )
        answer = self._client.ask(ApiKey.INIT_PRODUCER_ID, version, asked)
        if not answer.error_code:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self._next.clear()
        return ErrorCode(answer.error_code)

    def start(self, *, goes_on: bool = False) -> RawProducer:
        """Start as a client does, which asks again while a transaction is being ended."""
        until(lambda: self.retried(self.ask_to_start(goes_on=goes_on)) is ErrorCode.NONE)
        return self

    @staticmethod
    def retried(error: ErrorCode) -> ErrorCode:
        """Return an error after which a client asks again, or none; any other one fails the test."""
        again = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        assert error in (ErrorCode.NONE, *again), error
        return error

    @property
    def _named(self) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id, "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }  # fmt: skip

    def ask_to_add(self, *partitions: TopicPartition, version: int = 3) -> list[ErrorCode]:
        """Send an AddPartitionsToTxn."""
        topic_of = protocol.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        named = {f"v3_and_below_{name}": value for name, value in self._named.items()}
        topics = [topic_of(name=topic, partitions=[number]) for topic, number in partitions]
        asked = protocol.AddPartitionsToTxnRequest(v3_and_below_topics=topics, **named)
        answer = self._client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, asked)
        return [
            ErrorCode(one.partition_error_code)
            for topic in answer.results_by_topic_v3_and_below
            for one in topic.results_by_partition
        ]

    def add(self, *partitions: TopicPartition) -> RawProducer:
        """Add partitions as a client does, which asks again while a transaction is being ended."""
        until(lambda: not any(map(self.retried, self.ask_to_add(*partitions))))
        return self

    def batch(self, topic_partition: TopicPartition, n: int = 1, value: bytes = b"v") -> bytes:
        """Return the next batch of this producer for a partition."""
        records = [Record(number, FIRST_TIMESTAMP_MS, None, value) for number in range(n)]
        sequence, self._next[topic_partition] = (
            self._next[topic_partition],
            self._next[topic_partition] + n,
        )
        return reference.encode_batch(
            records, producer_id=self.producer_id, producer_epoch=self.epoch,
            base_sequence=sequence, attributes_extra=_TRANSACTIONAL,
        )  # fmt: skip

    def produce(
        self, topic_partition: TopicPartition, n: int = 1, value: bytes = b"v"
    ) -> ErrorCode:
        """Send a Produce of one batch."""
        asked = produce(
            self.batch(topic_partition, n, value), *topic_partition,
            transactional_id=self.transactional_id,
        )  # fmt: skip
        return ErrorCode(produced(self._client.ask(ApiKey.PRODUCE, 11, asked)).error_code)

    def write(self, *partitions: TopicPartition, n: int = 1, value: bytes = b"v") -> RawProducer:
        """Add partitions, and send a batch to each."""
        self.add(*partitions)
        assert [self.produce(one, n, value) for one in partitions] == [ErrorCode.NONE] * len(
            partitions
        )
        return self

    def add_group(self, group_id: str, *, version: int = 4) -> ErrorCode:
        """Send an AddOffsetsToTxn."""
        asked = protocol.AddOffsetsToTxnRequest(group_id=group_id, **self._named)
        return ErrorCode(self._client.ask(ApiKey.ADD_OFFSETS_TO_TXN, version, asked).error_code)

    def commit_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        *,
        generation: int = -1,
        member_id: str = "",
        version: int = 4,
        metadata: str = "m",
    ) -> list[ErrorCode]:
        """Send a TxnOffsetCommit."""
        topic_of = protocol.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        partition_of = topic_of.TxnOffsetCommitRequestPartition
        topics = [
            topic_of(
                name=topic,
                partitions=[
                    partition_of(
                        partition_index=number, committed_offset=offset, committed_metadata=metadata
                    )
                ],
            )
            for (topic, number), offset in offsets.items()
        ]
        asked = protocol.TxnOffsetCommitRequest(
            group_id=group_id, generation_id=generation, member_id=member_id, topics=topics,
            **self._named,
        )  # fmt: skip
        answer = self._client.ask(ApiKey.TXN_OFFSET_COMMIT, version, asked)
        return [ErrorCode(one.error_code) for topic in answer.topics for one in topic.partitions]

    def ask_to_end(self, *, commit: bool, version: int = 4) -> ErrorCode:
        """Send an EndTxn."""
        asked = protocol.EndTxnRequest(committed=commit, **self._named)
        return ErrorCode(self._client.ask(ApiKey.END_TXN, version, asked).error_code)

    def end(self, *, commit: bool) -> RawProducer:
        """End the transaction."""
        assert self.ask_to_end(commit=commit) is ErrorCode.NONE
        return self


def state_of(cluster: Cluster, transactional_id: str = "t") -> TransactionMetadata:
    """Return the state of an id, as the log has it."""
    return read_transactions(store_of(cluster)).transactions[transactional_id]


def until_status(cluster: Cluster, status: Status, transactional_id: str = "t") -> None:
    """Wait until the log has an id in this state."""
    until(lambda: state_of(cluster, transactional_id).status is status, f"it is {status.name}")


def until_stable(cluster: Cluster, topic_partition: TopicPartition = EVENTS) -> None:
    """Wait until no transaction is open in a partition."""

    def is_stable() -> bool:
        state = store_of(cluster).manager.replica(topic_partition).state
        return state.last_stable_offset == state.high_watermark

    until(is_stable, f"{topic_partition} is stable")


def committed(
    client: RawClient, topic_partition: TopicPartition = EVENTS, *, level: int = 1
) -> Any:
    """Return the partition's part of a Fetch of committed records from its start."""
    asked = fetch(0, *topic_partition)
    asked.isolation_level = level
    return fetched(client.ask(ApiKey.FETCH, 12, asked))


def stable_offset(
    client: RawClient, group: str, topic_partition: TopicPartition, *, stable: bool = True
) -> tuple[ErrorCode, int]:
    """Return a group's offset as one of its consumers gets it, which waits while a transaction may change it.

    With `stable` False, as a client gets it that does not ask about transactions.
    """
    topic, number = topic_partition
    group_of = protocol.OffsetFetchRequest.OffsetFetchRequestGroup
    topics = [group_of.OffsetFetchRequestTopics(name=topic, partition_indexes=[number])]
    asked = protocol.OffsetFetchRequest(require_stable=stable)
    asked.groups = [group_of(group_id=group, topics=topics)]
    answer = client.ask(ApiKey.OFFSET_FETCH, 9, asked).groups[0]
    if answer.error_code:
        return ErrorCode(answer.error_code), -1
    one = answer.topics[0].partitions[0]
    return ErrorCode(one.error_code), one.committed_offset


def values(cluster: Cluster, *partitions: TopicPartition, committed: bool = True) -> list[bytes]:
    """Return the values in partitions as a program that reads the folder gets them."""
    level = "read_committed" if committed else "read_uncommitted"
    return [
        value.as_py()
        for topic, number in partitions or [EVENTS, OTHER]
        for rows in cluster.read(topic, partitions=[number], isolation_level=level)
        for value in rows.column("value")
    ]
