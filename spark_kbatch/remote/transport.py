"""A producer's transport to a real cluster, which sends finished batches to the partition leaders.

    drained batches of one leader -> one Produce request, whose pieces are the batches' own memory -> broker

It is also the sender's `Nodes`: which broker leads a partition, whether that takes a request now, and all input
and output, which the sender's thread does while it waits. So nothing waits for one broker but what that broker
leads. Metadata is asked for in the same way, when a leader is not known, after an error that another leader may
explain, and after a lost connection; from whichever broker is free. A broker that refuses a batch because it no
longer leads the partition may name the one that does.

A client is leased from the pool of the process when the transport is made, and goes back when it is closed, which
the sender's thread does at its end. In transactions it is that of the transactions, and so is the producer's id.

Else a producer that ends leaves its id, with the sequence number of each partition, to the next one
of the process to the same cluster: a cluster remembers a producer id for a day after its last
write, and a Spark worker runs many short tasks. Two producers at the same time have different ids.
A forked child takes its own. Another cluster may come to answer at the same address, such as a
broker for tests that starts with an empty disk each time. It gives the same ids to others, and
would take their batches for repetitions of each other. So an id goes with the id of its cluster,
which the next producer compares.

    answer of a broker                      the sender gets
    DUPLICATE_SEQUENCE_NUMBER               success: the batch was written before; its offset is not known
    MESSAGE_TOO_LARGE                       RecordTooLargeError, upon which it splits the batch
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    UNKNOWN_PRODUCER_ID,
    INVALID_PRODUCER_EPOCH                  errors upon which it may take a new epoch
    UNKNOWN_TOPIC_OR_PARTITION              a retriable error: brokers learn of topics one after another
    anything else                           the error that the table of codes names

Source: Kafka clients/producer/internals/Sender.java, ProducerMetadata.java; clients/NetworkClient.java
(DefaultMetadataUpdater); clients/producer/internals/TransactionManager.java; producer.id.expiration.ms; KIP-951.
"""

from __future__ import annotations

import logging
import os
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from spark_kbatch.clock import monotonic_ms
from spark_kbatch.errors import (
    DisconnectedError,
    InvalidProducerEpochError,
    KBatchError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
    RetriableApiError,
    UnknownProducerIdError,
    UnsupportedVersionError,
)
from spark_kbatch.model import CODECS, AppendResult, TopicPartition
from spark_kbatch.options.remote import ClusterOptions
from spark_kbatch.producer.idempotence import Sequences
from spark_kbatch.record.header import unpack
from spark_kbatch.remote.client import bootstrap_nodes, leased
from spark_kbatch.remote.metadata import ClusterMetadata, MetadataCache, TopicMetadata
from spark_kbatch.remote.transactions import Transactions
from spark_kbatch.store.transport import NEVER_MS, Answer, LeaderOf, ProduceBatch, SendRequest
from spark_kbatch.wire.backoff import ExponentialBackoff
from spark_kbatch.wire.connections import Node, State
from spark_kbatch.wire.errors import ErrorCode, error_of
from spark_kbatch.wire.protocol import (
    OF_CLIENTS,
    PRODUCE_MAX_VERSION_OF_TRANSACTIONS,
    PRODUCE_MIN_VERSION,
    ApiKey,
    InitProducerIdRequest,
    MetadataRequest,
    ProduceRequest,
)
from spark_kbatch.wire.records import produce_request

logger = logging.getLogger(__name__)

OnAnswer = Callable[[Answer], None]

_FIRST_WITH_ZSTD = 7  # version of Produce
_POLL_MAX_MS = 60_000  # selectors do not take NEVER_MS
# Another leader may explain these, so leaders are looked up again.
_OF_OLD_METADATA = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REPLICA_NOT_AVAILABLE, ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.LISTENER_NOT_FOUND, ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID,
}  # fmt: skip


class _KnownMetadata(NamedTuple):
    """A topic's metadata as last looked up, and when to look it up again."""

    topic: TopicMetadata
    asks_again_ms: int


class _Leader(NamedTuple):
    """The broker that leads a partition, and its leader epoch."""

    node: Node
    epoch: int  # -1 if the cluster does not tell


@dataclass
class _ProducerIdentity:
    """A producer id with its sequence numbers, and the cluster that gave it."""

    sequences: Sequences
    cluster_id: str = ""  # if it is known


class BrokerTransport:
    """A producer's connection to one real cluster: sends its batches, and finds partition leaders.

    For one thread, but for some methods.
    """

    def __init__(
        self,
        options: ClusterOptions,
        *,
        request_timeout_ms: int | None = None,
        transactions: Transactions | None = None,
    ) -> None:
        """Lease a client of the cluster, and a producer id that an earlier producer left, if any.

        Args:
            options: of the cluster.
            request_timeout_ms: how long to wait for a producer id at a time; the cluster's by default.
            transactions: whose client and producer id are used instead, by the thread that sends.
        """
        self._options = options
        self._request_timeout_ms = request_timeout_ms or options.request_timeout_ms
        self._leases = ExitStack()
        if transactions is None:
            self._client = self._leases.enter_context(leased(options))
            self._identity = self._leases.enter_context(
                _passed_on_identity(options, self._new_producer_id)
            )
        else:
            self._client = transactions.client
            self._identity = _ProducerIdentity(transactions.sequences())
        self._transactions = transactions
        self._last_version = PRODUCE_MAX_VERSION_OF_TRANSACTIONS if transactions else None
        self._connections = self._client.connections
        self.sequences = self._identity.sequences
        # Another cluster's brokers may have taken the place of those that gave an inherited id.
        self._has_inherited_id = self.sequences.has_id
        self._met: set[Node] = set()
        self._doubtful: set[Node] = set()
        self._leaders: dict[TopicPartition, _Leader] = {}
        self._unreachable: set[Node] = set()  # to which a connection failed or was lost
        self._topic_ids: dict[str, str] = {}
        self._topics: dict[str, _KnownMetadata] = {}
        # Of other threads.
        self._told: deque[ClusterMetadata] = deque()
        self._asked_for: deque[str] = deque()
        # Metadata.
        self._max_age_ms = options.metadata_max_age_ms
        self._cache = MetadataCache(self._max_age_ms)
        self._bootstrap = bootstrap_nodes(options)
        self._refused: KBatchError | None = None  # why no broker could be asked, if that is final
        self.unknown_topics: set[str] = set()  # to the cluster, as last looked up
        self._wanted: set[str] = set()  # topics whose leaders are to be looked up
        self._is_asking = False
        self._asked_times = 0  # without an answer that tells everything
        self._next_ask_ms = 0
        self._backoff = ExponentialBackoff(
            options.retry_backoff_ms, options.retry_backoff_max_ms, random.random
        )

    # Leaders.

    @property
    def leader_of(self) -> LeaderOf | None:
        """Function that returns a partition's leader; if it is not known, None, and looks it up."""
        return self._leader_of

    def _leader_of(self, topic_partition: TopicPartition) -> Node | None:
        leader = self._leaders.get(topic_partition)
        if leader is None:
            self._wanted.add(topic_partition.topic)
            return None
        return leader.node

    def _lead(self, topic_partition: TopicPartition, leader: _Leader) -> None:
        """Note a partition's leader, unless a leader of a newer epoch is known."""
        known = self._leaders.get(topic_partition)
        if known is None or not 0 <= leader.epoch < known.epoch:
            self._leaders[topic_partition] = leader

    def tell(self, metadata: ClusterMetadata) -> None:
        """Pass on to the sender's thread metadata that another client has just read.

        Any thread may call this.
        """
        self._note_topics(metadata)
        self._told.append(metadata)

    def topic(self, name: str) -> TopicMetadata | None:
        """Return a topic's metadata as last looked up, or None if it never was.

        Any thread may call this.

        If that is metadata.max.age.ms ago, it is looked up again.
        """
        known = self._topics.get(name)
        if known is None:
            return None
        now_ms = monotonic_ms()
        if now_ms >= known.asks_again_ms:
            self._topics[name] = known._replace(asks_again_ms=now_ms + self._max_age_ms)
            self._asked_for.append(name)
            self.wake_up()
        return known.topic

    def _note_topics(self, metadata: ClusterMetadata) -> None:
        asks_again_ms = monotonic_ms() + self._max_age_ms
        for name, topic in metadata.topics.items():
            self._topics[name] = _KnownMetadata(topic, asks_again_ms)

    def _note_leaders(self, metadata: ClusterMetadata) -> None:
        for name, topic in metadata.topics.items():
            if self._topic_ids.setdefault(name, topic.topic_id) != topic.topic_id:
                # It was recreated, and its epochs start again.
                self._topic_ids[name] = topic.topic_id
                for one in [*self._leaders]:
                    if one.topic == name:
                        del self._leaders[one]
            for partition in topic.partitions:
                node = metadata.nodes.get(partition.leader)
                topic_partition = TopicPartition(name, partition.partition)
                if node is not None:
                    self._lead(topic_partition, _Leader(node, partition.leader_epoch))
                else:  # `leader_of` asks again
                    self._leaders.pop(topic_partition, None)

    def _hear_other_threads(self) -> None:
        while self._told:
            metadata = self._told.popleft()
            self._note_cluster(metadata.cluster_id)
            self._note_leaders(metadata)
        while self._asked_for:
            self._wanted.add(self._asked_for.popleft())

    # Nodes.

    def take_refusal(self) -> Exception | None:
        """Return, once, the error for which no broker can be asked for leaders, if that is final; else None."""
        refused, self._refused = self._refused, None
        return refused

    def is_ready(self, node: Any) -> bool:
        """Return True if a broker can be sent a request now; otherwise start to connect to it.

        Raises:
            KBatchError: it refuses this client, or the other way round, for good.
        """
        self._meet(node)
        is_ready = self._connections.ready(node)
        if not is_ready:
            refused = self._connections.refusal(node)
            if refused is not None:
                raise refused
            if self._connections.last_error(node) is not None:
                self._unreachable.add(node)
        return is_ready and node not in self._doubtful

    def _meet(self, node: Node) -> None:
        """Hold back batches to a new broker until its cluster id is known, if the producer id is inherited.

        It is sent nothing before metadata has shown which cluster this is.
        """
        if self._has_inherited_id and node not in self._met:
            self._met.add(node)
            if self._connections.state(node) is State.DISCONNECTED:
                self._doubtful.add(node)
                self._unreachable.add(node)  # so that its topics are looked up

    def _note_cluster(self, cluster_id: str) -> None:
        known = self._identity.cluster_id
        if cluster_id and known and cluster_id != known and self.sequences.has_id:
            logger.info("%s is another cluster than before: a new producer id", self._options)
            self.sequences.forget_id()
        self._identity.cluster_id = cluster_id or known

    def delay_ms(self, node: Any) -> int:
        """Return the milliseconds until a broker may be connected to or, if it throttles, sent requests."""
        is_held_back = node in self._doubtful and self._connections.can_send(node)
        return NEVER_MS if is_held_back else self._connections.delay_ms(node)

    def poll(self, timeout_ms: int) -> None:
        """Send and receive on all connections, until something has happened or the time is up."""
        self._hear_other_threads()
        self._connections.poll(min(timeout_ms, self._ask_for_leaders(), _POLL_MAX_MS))

    def wake_up(self) -> None:
        """End the `poll` that waits, or else the next one, at once.

        Any thread may call this.
        """
        self._connections.wakeup()

    def close(self) -> None:
        """Return the client and the producer id to their pools.

        Connections with requests in flight are closed.
        """
        self._leases.close()

    # Batches.

    def send(self, request: SendRequest, on_answer: OnAnswer) -> None:
        """Send one Produce request to its broker, which must be ready.

        In a transaction, partitions are added to it first.

        Raises:
            DisconnectedError: the connection was lost meanwhile.
            as `Transactions.add_partitions`.
        """
        transactions, node = self._transactions, cast("Node", request.node)
        if transactions is not None:
            transactions.add_partitions(batch.topic_partition for batch in request.batches)
            if not self._connections.ready(node):
                raise DisconnectedError(str(node), "it was lost meanwhile")
        body = produce_request(
            request.acks,
            request.timeout_ms,
            {batch.topic_partition: batch.data for batch in request.batches},
            None if transactions is None else transactions.name,
        )

        def body_of(version: int) -> ProduceRequest:
            _ensure_version(version, request.batches)
            return body

        def on_complete(answer: Any, error: KBatchError | None) -> None:
            on_answer(self._results(request, answer, error))

        self._connections.send(
            node,
            ApiKey.PRODUCE,
            body_of,
            on_complete,
            last_version=self._last_version,
            timeout_ms=max(request.timeout_ms, 1),
        )

    def _results(self, request: SendRequest, answer: Any, error: KBatchError | None) -> Answer:
        batches = {batch.topic_partition: batch for batch in request.batches}
        if error is not None:
            self._look_up(batch.topic.name for batch in request.batches)
            return dict.fromkeys(batches, AppendResult(error=error))
        if answer is None:  # with acks 0
            return dict.fromkeys(batches, AppendResult())
        results = {}
        for topic in answer.responses:
            for one in topic.partition_responses:
                topic_partition = TopicPartition(topic.name, one.index)
                if topic_partition in batches:
                    results[topic_partition] = _result(batches[topic_partition], one)
                    if one.error_code in _OF_OLD_METADATA:
                        self._note_move(topic_partition, one, answer.node_endpoints)
        return results

    def _note_move(self, topic_partition: TopicPartition, one: Any, endpoints: Any) -> None:
        hint = one.current_leader
        nodes = {at.node_id: Node(at.node_id, at.host, at.port) for at in endpoints}
        node = None if hint is None else nodes.get(hint.leader_id)
        known = self._leaders.get(topic_partition)
        if hint is not None and node and (known is None or hint.leader_epoch > known.epoch):
            self._leaders[topic_partition] = _Leader(node, hint.leader_epoch)
        else:
            self._look_up([topic_partition.topic])

    # Metadata.

    def _look_up(self, topics: Iterable[str]) -> None:
        self._wanted.update(topics)

    def _ask_for_leaders(self) -> int:
        """Send a Metadata request for unknown leaders; return the ms until this is due again."""
        if self._unreachable:
            led = (tp.topic for tp, one in self._leaders.items() if one.node in self._unreachable)
            self._look_up(led)
            self._unreachable.clear()
        if not self._wanted or self._is_asking:
            return NEVER_MS
        left_ms = self._next_ask_ms - monotonic_ms()
        if left_ms > 0:
            return left_ms
        node, delay_ms = self._node_to_ask()
        if node is None:
            return delay_ms
        asked, self._wanted = frozenset(self._wanted), set()
        self._is_asking = True

        def on_complete(answer: Any, error: KBatchError | None) -> None:
            self._is_asking = False
            self._take_metadata(asked, answer, error)

        body = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(asked)],
            allow_auto_topic_creation=False,
        )
        try:
            self._connections.send(
                node,
                ApiKey.METADATA,
                body,
                on_complete,
                timeout_ms=self._options.request_timeout_ms,
            )
        except BaseException:
            self._is_asking, self._wanted = False, self._wanted | asked
            raise
        return NEVER_MS

    @property
    def why_unreachable(self) -> KBatchError | None:
        """The error for which a broker cannot be connected to; None if there is none.

        Any thread may ask.
        """
        return next(filter(None, map(self._connections.last_error, self._known_nodes())), None)

    def _known_nodes(self) -> list[Node]:
        # Copied in one step: any thread may ask why no broker can be reached.
        leaders = (leader.node for leader in list(self._leaders.values()))
        return [*dict.fromkeys([*self._cache.nodes.values(), *leaders]), *self._bootstrap]

    def _node_to_ask(self) -> tuple[Node | None, int]:
        """Return the least busy broker for a Metadata request, or None and the ms until the next try.

        If none is connected, this starts to connect to one.
        """
        connections, nodes = self._connections, self._known_nodes()
        self._refused = None
        able = [node for node in nodes if connections.can_send(node)]
        if able:
            return min(able, key=connections.in_flight_count), 0
        busy = [node for node in nodes if connections.state(node) is not State.DISCONNECTED]
        if busy:  # Throttled, writing, or being connected to: the first two are not worth another connection.
            return None, min(map(connections.delay_ms, busy))
        # The one whose pause ends first; the bootstrap servers after those that the cluster named.
        refusals = [connections.refusal(node) for node in nodes]
        self._refused = refusals[0] if all(refusals) else None
        node = min(nodes, key=connections.connection_delay_ms)
        delay_ms = connections.connection_delay_ms(node)
        if not delay_ms:
            connections.ready(node)
        return None, max(delay_ms, 1) if connections.state(node) is State.DISCONNECTED else NEVER_MS

    def _take_metadata(self, asked: frozenset[str], answer: Any, error: KBatchError | None) -> None:
        now_ms = monotonic_ms()
        tells_all = False
        if error is None and not getattr(answer, "error_code", 0):
            metadata, errors = self._cache.update(asked, answer, now_ms)
            self._note_cluster(metadata.cluster_id)
            self._doubtful.clear()
            self._note_topics(metadata)
            self._note_leaders(metadata)
            self.unknown_topics -= metadata.topics.keys()
            self.unknown_topics |= errors.unknown
            tells_all = asked <= metadata.topics.keys()
            self._wanted.update(errors.transient)
        else:
            logger.info("no metadata of %s: %s", self._options, error or answer.error_code)
            self._wanted |= asked
        self._asked_times = 0 if tells_all else self._asked_times + 1
        self._next_ask_ms = now_ms + int(self._backoff.pause_ms(max(self._asked_times - 1, 0)))

    # Producer ids.

    def _new_producer_id(self) -> int:
        """Return a new producer id that the cluster assigns (InitProducerId).

        Raises:
            KBatchError: there was no answer in time, or the cluster refuses.
        """
        answer = self._client.request(
            ApiKey.INIT_PRODUCER_ID,
            InitProducerIdRequest(
                transactional_id=None,
                transaction_timeout_ms=2**31 - 1,  # without a transactional id it means nothing
                producer_id=-1,
                producer_epoch=-1,
            ),
            timeout_ms=self._request_timeout_ms,
        )
        if answer.error_code:
            raise error_of(answer.error_code, f"asked {self._options} for a producer id")
        return int(answer.producer_id)


# Of producers that have ended. Needs no lock: append and pop are atomic.
_free_identities: dict[ClusterOptions, list[_ProducerIdentity]] = {}


@contextmanager
def _passed_on_identity(
    options: ClusterOptions, new_producer_id: Callable[[], int]
) -> Iterator[_ProducerIdentity]:
    """Yield the producer id of a producer that has ended, or a new one, and keep it for the next one.

    Args:
        options: of the cluster.
        new_producer_id: asks the cluster for an id, when the first batch needs one.
    """
    process_id = os.getpid()
    free = _free_identities.setdefault(options, [])
    try:
        identity = free.pop()
        identity.sequences = identity.sequences.passed_on(new_producer_id)
    except IndexError:
        identity = _ProducerIdentity(Sequences(new_producer_id))
    try:
        yield identity
    finally:
        if os.getpid() == process_id:
            free.append(identity)


os.register_at_fork(after_in_child=_free_identities.clear)


def _ensure_version(version: int, batches: Iterable[ProduceBatch]) -> None:
    """Raise UnsupportedVersionError if a broker's version of Produce is too old for these batches.

    Raises:
        UnsupportedVersionError: it is too old.
    """
    needed = PRODUCE_MIN_VERSION
    if version < _FIRST_WITH_ZSTD and any(
        unpack(batch.data).codec == CODECS["zstd"] for batch in batches
    ):
        needed = _FIRST_WITH_ZSTD
    if version < needed:
        ours = OF_CLIENTS[ApiKey.PRODUCE].last
        raise UnsupportedVersionError(ApiKey.PRODUCE, "PRODUCE", version, (needed, ours))


def _result(batch: ProduceBatch, one: Any) -> AppendResult:
    """Return the outcome of one batch, from its partition's part of a Produce response."""
    if one.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
        is_duplicate = one.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER
        return AppendResult(
            base_offset=-1 if is_duplicate else one.base_offset,
            log_append_time=one.log_append_time_ms,
            log_start_offset=one.log_start_offset,
        )
    return AppendResult(log_start_offset=one.log_start_offset, error=_error(batch, one))


def _error(batch: ProduceBatch, one: Any) -> KBatchError:
    name, code = str(batch.topic_partition), one.error_code
    match code:
        case ErrorCode.MESSAGE_TOO_LARGE:
            what = f"a batch of {batch.records_count} records for topic {batch.topic.name!r}"
            return RecordTooLargeError(what, len(batch.data), -1, "max.message.bytes")
        case ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            header = unpack(batch.data)
            return OutOfOrderSequenceError(name, header.producer_id, -1, header.base_sequence)
        case ErrorCode.UNKNOWN_PRODUCER_ID:
            return UnknownProducerIdError(name, unpack(batch.data).producer_id)
        case ErrorCode.INVALID_PRODUCER_EPOCH:
            header = unpack(batch.data)
            return InvalidProducerEpochError(name, header.producer_id, -1, header.producer_epoch)
    said = [one.error_message, *(error.batch_index_error_message for error in one.record_errors)]
    text = "; ".join([f"a batch for {name}", *(text for text in said if text)])
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return RetriableApiError(code, "UNKNOWN_TOPIC_OR_PARTITION", text)
    return error_of(code, text)
