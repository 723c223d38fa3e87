"""A transactional producer's coordinators, transactions, and consumer group offsets committed in them.

    transactions = Transactions(client, "a-name", timeout_ms=60_000)
    transactions.take_over()                       # InitProducerId: ends what an earlier process began
    transactions.committed()                       # OffsetFetch, once the group's offsets are stable
    transactions.add_partitions(partitions)        # AddPartitionsToTxn, before the first Produce
    transactions.add_offsets(offsets)              # AddOffsetsToTxn, TxnOffsetCommit
    transactions.end(commit=True)                  # EndTxn

One name is both the transactional id and the group. The process that calls `take_over` last fences the others:
the cluster answers their requests with INVALID_PRODUCER_EPOCH or PRODUCER_FENCED, which `is_fenced` knows.

Each call goes on until it is answered, or default.api.timeout.ms have passed: coordinators that move or
load, and transactions whose markers are still being written, are asked again. All of these requests may be
repeated: the coordinator compares producer id, epoch and outcome.

Offsets are committed without a member of the group (generation -1), as KIP-447 has it; `committed` waits
until no transaction that is being ended has offsets of the group, which needs OffsetFetch 7 (Kafka 2.5).

Source: Kafka clients/.../producer/internals/TransactionManager.java; core/.../coordinator/transaction;
KIP-98, KIP-360, KIP-447.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from spark_kbatch.errors import (
    ApiError,
    ConfigError,
    KBatchError,
    RequestTimedOutError,
)
from spark_kbatch.model import TopicPartition, numbers_by_topic
from spark_kbatch.producer.idempotence import Sequences
from spark_kbatch.remote.client import RETRIABLE, Client
from spark_kbatch.store.groups import OffsetAndMetadata
from spark_kbatch.wire.connections import Node
from spark_kbatch.wire.errors import ErrorCode, code_of, error_of
from spark_kbatch.wire.protocol import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    ApiKey,
    DescribeGroupsRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    MetadataRequest,
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
)

logger = logging.getLogger(__name__)

_GROUP, _TRANSACTION = 0, 1  # kinds of coordinators
_FENCED = {
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
}
# The answers of a broker that does not let a client write transactions, and of one that has none.
_NO_TRANSACTIONS = {
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.UNSUPPORTED_VERSION,
}
_ANOTHER_COORDINATOR = {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}
_SHORT_PAUSE_MS = 20  # markers of a transaction are written within milliseconds
_ATTEMPT_MS = 10_000  # after which another broker may have become the coordinator
_REQUIRE_STABLE_SINCE = 7  # OffsetFetch
# Rights of a client, as brokers tell them: bits of Kafka's AclOperation.
_READ, _WRITE, _NOT_TOLD = 1 << 3, 1 << 4, -(2**31)
_NEXT_EPOCH_SINCE = 3  # InitProducerId


@contextlib.contextmanager
def refusals_explained(transactions: Transactions) -> Iterator[None]:
    """Turn the errors of a cluster that lets a client write no transactions into ones that say what to do.

    Raises:
        ConfigError: it refuses them, or those that take so long.
    """
    place = transactions.client.options
    try:
        yield
    except ApiError as error:
        if error.code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            raise ConfigError(
                f"option 'transaction.timeout.ms' is {transactions.timeout_ms}; accepted by {place}: at most "
                "its brokers' transaction.max.timeout.ms"
            ) from error
        if error.code not in _NO_TRANSACTIONS:
            raise
        raise ConfigError(
            f"{place} does not let this client write transactions as {transactions.name!r} "
            f"({error.name}): allow it to write and describe that transactional id"
        ) from error


def is_fenced(error: KBatchError) -> bool:
    """Return True if an error means that the producer was fenced by a newer one or timed out."""
    return code_of(error) in _FENCED


class Transactions:
    """The transactions of one transactional id, and the offsets of the group of the same name.

    Not thread-safe.
    """

    def __init__(
        self, client: Client, name: str, *, timeout_ms: int, coordinator: Node | None = None
    ) -> None:
        """Set up for a transactional id, without sending a request.

        Args:
            client: of the cluster.
            name: the transactional id, and the group whose offsets are committed.
            timeout_ms: after which the cluster aborts a transaction that was begun and not ended.
            coordinator: which is asked at this address alone; None for the one that the cluster tells.
        """
        self._only_coordinator = coordinator
        self.name = name
        self.go_on_as(-1, -1)
        self.client, self.timeout_ms = client, timeout_ms
        self._coordinators: dict[tuple[int, str], Node] = {}  # by kind and name
        self._partitions: set[TopicPartition] = set()  # of the current transaction, perhaps
        self._added: set[TopicPartition] = set()  # those that certainly are
        self._has_offsets = False

    @property
    def is_open(self) -> bool:
        """Whether partitions or offsets were added to a transaction that has not ended."""
        return bool(self._partitions) or self._has_offsets

    def take_over(self) -> None:
        """Get a producer id and epoch, fencing other producers of this transactional id.

        Their open transaction is aborted.
        """
        self._init_producer_id(-1, -1)

    def renew(self) -> None:
        """Get the next epoch, in which sequence numbers start again, unless another producer has taken over.

        An error that `is_fenced` knows says that one has.
        """
        self._init_producer_id(self.producer_id, self.producer_epoch)

    def _init_producer_id(self, producer_id: int, epoch: int) -> None:
        request = InitProducerIdRequest(
            transactional_id=self.name,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
        )

        def body(version: int) -> InitProducerIdRequest:
            if producer_id >= 0 and version < _NEXT_EPOCH_SINCE:
                raise ConfigError(
                    f"{self.client.options} is older than Kafka 2.5: after a transaction that was aborted "
                    "its producer cannot go on; close it, and open another one"
                )
            return request

        answer = self._ask(_TRANSACTION, ApiKey.INIT_PRODUCER_ID, body, _own_error)
        self.go_on_as(answer.producer_id, answer.producer_epoch)
        self._forget()

    def go_on_as(self, producer_id: int, producer_epoch: int) -> None:
        """Use the id and epoch with which another process has taken over, fencing no one."""
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self._sequences = Sequences(lambda: producer_id, transactional_epoch=producer_epoch)

    def sequences(self) -> Sequences:
        """Return sequence numbers for the batches of the producer id and epoch that there are now.

        They go on from transaction to transaction, and start again in another epoch.
        """
        return self._sequences

    def committed(
        self,
        group_id: str | None = None,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        stable: bool = True,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return committed offsets of a group.

        It waits until no open transaction has others for these partitions, unless `stable` is False.

        Args:
            group_id: by default the group of the same name.
            partitions: by default those that have a committed offset; one whose first offset is pending has none.
            stable: whether to wait.

        Raises:
            ConfigError: the cluster is too old to say when they are stable.
        """

        def body(version: int) -> Any:
            if version < _REQUIRE_STABLE_SINCE:
                raise ConfigError(
                    f"{self.client.options} is older than Kafka 2.5: it does not tell whether the "
                    "offsets of a transaction that is being ended are committed"
                )
            topic = OffsetFetchRequest.OffsetFetchRequestTopic
            topics = None
            if partitions is not None:
                topics = [
                    topic(name=name, partition_indexes=numbers)
                    for name, numbers in numbers_by_topic(sorted(partitions)).items()
                ]
            return OffsetFetchRequest(
                group_id=group_id or self.name, topics=topics, require_stable=stable
            )

        def errors(answer: Any) -> Iterable[int]:
            yield answer.error_code
            for topic in answer.topics:
                for one in topic.partitions:
                    yield one.error_code

        answer = self._ask(
            _GROUP, ApiKey.OFFSET_FETCH, body, errors, _REQUIRE_STABLE_SINCE, group_id=group_id
        )
        return {
            TopicPartition(topic.name, one.partition_index): OffsetAndMetadata(
                one.committed_offset, one.metadata or "", one.committed_leader_epoch
            )
            for topic in answer.topics
            for one in topic.partitions
            if one.committed_offset >= 0
        }

    def ensure_usable(self, topics: Iterable[str]) -> None:
        """Check, without changing anything, what a transaction with offsets needs.

        Brokers that do not tell the rights of a client (Kafka 2.2 and older) let it pass.

        Raises:
            ConfigError: the cluster is too old; or a right is missing, which it names.
            KBatchError: the client may not even see the transactional id or the group.
        """
        # A new cluster first creates the topic of transactions.
        wanted = FindCoordinatorRequest(key=self.name, key_type=_TRANSACTION)
        self._ask(_TRANSACTION, ApiKey.FIND_COORDINATOR, wanted, _own_error, last_version=3)
        self.committed(stable=False)  # what a dead driver has left open is ended later
        described = DescribeGroupsRequest(groups=[self.name], include_authorized_operations=True)
        (group,) = self._ask(_GROUP, ApiKey.DESCRIBE_GROUPS, described, _errors_of_groups).groups
        asked = [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        body = MetadataRequest(
            topics=asked,
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
        )
        answer = self.client.request(ApiKey.METADATA, body)
        for what, wanted, told in (
            (f"consumer group {self.name!r}", {"read": _READ}, group.authorized_operations),
            *(
                (
                    f"topic {one.name!r}",
                    {"read": _READ, "write": _WRITE},
                    one.topic_authorized_operations,
                )
                for one in answer.topics
                if not one.error_code
            ),
        ):
            for right, bit in wanted.items():
                if told != _NOT_TOLD and not told & bit:
                    raise ConfigError(
                        f"{self.client.options} does not let this client {right} {what}, which a transaction "
                        "with offsets of a group needs; allow it"
                    )

    def add_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions to the open transaction, or begin one with them."""
        new = set(partitions) - self._added
        if not new:
            return
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        body = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=[
                topic(name=name, partitions=numbers)
                for name, numbers in numbers_by_topic(sorted(new)).items()
            ],
        )

        def errors(answer: Any) -> Iterable[int]:
            for topic in answer.results_by_topic_v3_and_below:
                for one in topic.results_by_partition:
                    # Another partition's error says why.
                    if one.partition_error_code != ErrorCode.OPERATION_NOT_ATTEMPTED:
                        yield one.partition_error_code

        # From here on it may have been added, whatever the answer.
        self._partitions |= new
        self._ask(_TRANSACTION, ApiKey.ADD_PARTITIONS_TO_TXN, body, errors)
        self._added |= new

    def add_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group_id: str | None = None
    ) -> None:
        """Commit offsets of a group in the open transaction, or begin one with them.

        Args:
            offsets: by partition.
            group_id: by default the group of the same name.
        """
        group_id = group_id or self.name
        body = AddOffsetsToTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            group_id=group_id,
        )
        self._has_offsets = True
        self._ask(_TRANSACTION, ApiKey.ADD_OFFSETS_TO_TXN, body, _own_error)
        topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        commit = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=group_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            topics=[
                topic(
                    name=name,
                    partitions=[
                        topic.TxnOffsetCommitRequestPartition(
                            partition_index=number,
                            committed_offset=offsets[TopicPartition(name, number)].offset,
                            committed_leader_epoch=offsets[
                                TopicPartition(name, number)
                            ].leader_epoch,
                            committed_metadata=offsets[TopicPartition(name, number)].metadata,
                        )
                        for number in numbers
                    ],
                )
                for name, numbers in numbers_by_topic(sorted(offsets)).items()
            ],
        )

        def errors(answer: Any) -> Iterable[int]:
            for topic in answer.topics:
                for one in topic.partitions:
                    yield one.error_code

        self._ask(_GROUP, ApiKey.TXN_OFFSET_COMMIT, commit, errors, group_id=group_id)

    def end(self, *, commit: bool, timeout_ms: int | None = None) -> None:
        """Commit or abort the open transaction, if there is one.

        Args:
            commit: or else abort.
            timeout_ms: for all attempts; None for default.api.timeout.ms.
        """
        if not self.is_open:
            return
        body = EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            committed=commit,
        )
        try:
            self._ask(_TRANSACTION, ApiKey.END_TXN, body, _own_error, timeout_ms=timeout_ms)
        except ApiError as error:
            # What was to begin it was refused, or not answered: there is nothing to abort.
            if commit or error.code != ErrorCode.INVALID_TXN_STATE:
                raise
        self._forget()

    def _forget(self) -> None:
        self._partitions, self._added, self._has_offsets = set(), set(), False

    def _ask(
        self,
        kind: int,
        api_key: ApiKey,
        body: Any,
        errors: Callable[[Any], Iterable[int]],
        last_version: int | None = None,
        timeout_ms: int | None = None,
        group_id: str | None = None,
    ) -> Any:
        """Send a request to the group or transaction coordinator until it answers without an error.

        Raises:
            RequestTimedOutError: there was no such answer in time.
            KBatchError: an error that no retry mends, one that `is_fenced` knows among them.
        """
        client, key = self.client, group_id or self.name
        if timeout_ms is None:
            timeout_ms = client.options.default_api_timeout_ms
        deadline_ms, attempts = client.monotonic_ms() + timeout_ms, 0
        while True:
            left_ms = max(1, deadline_ms - client.monotonic_ms())
            found = ErrorCode.NONE
            error: KBatchError
            try:
                answer = client.request(
                    api_key,
                    body,
                    node=self._coordinator(kind, left_ms, key),
                    last_version=last_version,
                    timeout_ms=min(left_ms, _ATTEMPT_MS),
                )
                found = next((ErrorCode(code) for code in errors(answer) if code), found)
                if not found:
                    return answer
                error = error_of(found, f"{api_key.name} of {self.name!r}")
            except RETRIABLE as failed:
                error = failed
            if found in _ANOTHER_COORDINATOR or not found:
                self._coordinators.pop((kind, key), None)
            if not isinstance(error, RETRIABLE):
                raise error
            logger.debug("%s of %s is tried again: %s", api_key.name, self.name, error)
            short = found == ErrorCode.CONCURRENT_TRANSACTIONS
            client.wait(_SHORT_PAUSE_MS if short else client.backoff.pause_ms(attempts))
            attempts += 1
            if client.monotonic_ms() >= deadline_ms:
                raise RequestTimedOutError(
                    f"{api_key.name} of {self.name!r} was not answered by {client.options} within "
                    f"{timeout_ms} ms: {error}"
                )

    def _coordinator(self, kind: int, timeout_ms: int, key: str | None = None) -> Node:
        key = key or self.name
        known = self._only_coordinator or self._coordinators.get((kind, key))
        if known is not None:
            return known
        body = FindCoordinatorRequest(key=key, key_type=kind)
        answer = self.client.request(
            ApiKey.FIND_COORDINATOR, body, last_version=3, timeout_ms=timeout_ms
        )
        if answer.error_code:
            asked = f"FIND_COORDINATOR of {key!r}"
            raise error_of(answer.error_code, asked + f": {answer.error_message or ''}")
        found = self._coordinators[kind, key] = Node(answer.node_id, answer.host, answer.port)
        return found


def _errors_of_groups(answer: Any) -> Iterable[int]:
    return (one.error_code for one in answer.groups)


def _own_error(answer: Any) -> Iterable[int]:
    yield answer.error_code
