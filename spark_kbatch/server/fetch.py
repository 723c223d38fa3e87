"""Fetch: batches for clients, at once or when there are enough bytes.

A fetch that waits holds no thread: `replica/delayed_fetch` answers it. All that it keeps of its request are
the partitions, which are counted, whether they exist or not. Sessions are not offered (every answer has
session id 0), so each request names all its partitions.

Batches are read into memory before they are sent, and a client may receive them slowly. So a fetch reads
only as much as there is room for in `AnswerMemory`, but at least the first batch: all connections
together hold no more than that room and one batch each.

Source: KafkaApis.handleFetchRequest; KIP-951.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.errors import (
    FencedLeaderEpochError,
    InvalidTopicError,
    KBatchError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.log.checkpoints import EpochEntry
from spark_kbatch.model import IsolationLevel, TopicPartition
from spark_kbatch.options.topic import PARTITIONS_MAX
from spark_kbatch.replica.delayed_fetch import NO_EPOCH, FetchInfo, FetchParams, FetchResult
from spark_kbatch.server.memory import AnswerMemory
from spark_kbatch.server.metadata import NODE_ID
from spark_kbatch.server.peers import Peer
from spark_kbatch.server.refusals import refusal
from spark_kbatch.server.requests import Received, Respond
from spark_kbatch.server.topic_names import TopicNames, id_of
from spark_kbatch.wire.errors import ErrorCode, code_of
from spark_kbatch.wire.protocol import FetchRequest, FetchResponse

_Topic = FetchResponse.FetchableTopicResponse
_Partition = _Topic.PartitionData

_NO_SESSION = 0  # a session id
_FIRST_WITH_LEADERS = 16  # in answers (KIP-951)
_MIN_BYTES_MAX = 1 << 20  # an answer of this size is sent even if the client wants to wait for more
# A fetch waits on when its client is gone. Clients wait for half a second by default, and no longer than
# their request.timeout.ms, 30 s.
_MAX_WAIT_MS = 60_000
_WAITING_MAX = 100_000  # partitions that fetches wait for: above that, no more of them wait
_WAITING_OF_PEER_MAX = _WAITING_MAX // 2
_UNKNOWN = FetchResult(error=UnknownTopicOrPartitionError("no such partition"))


class FetchHandler:
    """Handler of Fetch requests, including those that wait for `min_bytes`; thread-safe."""

    def __init__(
        self,
        parts: FolderParts,
        memory: AnswerMemory,
        names: TopicNames,
        advertised: Callable[[Received], tuple[str, int]],
        *,
        max_bytes: int,
    ) -> None:
        """Limit each answer to `max_bytes`, unless its first batch is larger."""
        self._parts, self._memory, self._max_bytes = parts, memory, max_bytes
        self._names, self._advertised = names, advertised
        self._mutex = threading.Lock()  # guards the rest; innermost
        self._waiting: dict[
            _FetchAnswer, Callable[[], None]
        ] = {}  # functions that answer with what there is
        self._partitions = Counter[Peer | None]()  # of all these fetches, by their peers
        self._is_ending = False

    def handle(self, received: Received, respond: Respond) -> None:
        """Answer a Fetch request at once, or when there are `min_bytes` or `max_wait_ms` have passed."""
        request: FetchRequest = received.body
        error = _refused(request)
        if error:
            respond(refusal(received, error))
            return
        infos = _infos(request, received.version)
        answer = _FetchAnswer(
            tuple(infos), received, respond, self._names, self._advertised(received)
        )
        self._drop_unknown(infos)
        least = min(request.min_bytes, request.max_bytes, _MIN_BYTES_MAX)
        most = min(
            max(request.max_bytes, 0), self._max_bytes, sum(one.max_bytes for one in infos.values())
        )
        fetch = functools.partial(self._fetch, infos, answer, least, most)
        count = len(answer.partitions)
        with self._mutex:
            waits = not self._is_ending and request.max_wait_ms > 0
            waits &= self._partitions.total() + count <= _WAITING_MAX
            waits &= self._partitions[received.peer] + count <= _WAITING_OF_PEER_MAX
            if waits:
                self._waiting[answer] = functools.partial(fetch, 0)
                self._partitions[received.peer] += count
        answer.on_given = self._forget
        try:
            fetch(min(request.max_wait_ms, _MAX_WAIT_MS) if waits else 0)
        except BaseException:
            self._forget(answer)
            raise

    def end(self) -> None:
        """Answer all waiting fetches with what there is, and let no fetch wait from now on."""
        with self._mutex:
            self._is_ending = True
            waiting = list(self._waiting.values())
        for answer_now in waiting:
            answer_now()

    def _forget(self, answer: _FetchAnswer) -> None:
        with self._mutex:
            if self._waiting.pop(answer, None) is not None:
                self._partitions[answer.peer] -= len(answer.partitions)
                if not self._partitions[answer.peer]:
                    del self._partitions[answer.peer]

    def _drop_unknown(self, infos: dict[TopicPartition, FetchInfo]) -> None:
        """Drop the partitions that do not exist; as in Kafka, the others are waited for."""
        count = functools.cache(self._count_of_partitions)
        for tp, info in [*infos.items()]:
            if not 0 <= tp.partition < count(tp.topic, info.topic_id):
                del infos[tp]

    def _fetch(
        self,
        infos: Mapping[TopicPartition, FetchInfo],
        answer: _FetchAnswer,
        least: int,
        most: int,
        max_wait_ms: int,
    ) -> None:
        """Fetch at least and at most so many bytes, as far as there is memory for them."""
        with self._memory.reserved(most) as max_bytes:
            snapshots = self._parts.snapshots
            self._parts.manager.fetch_messages(
                FetchParams(max_wait_ms, least, max_bytes, answer.isolation),
                infos,
                answer.give,
                room=self._memory.room,
                replicas=functools.partial(snapshots.replicas, elect=self._parts.elect_soon),
            )

    def _count_of_partitions(self, name: str, topic_id: str) -> int:
        try:
            topic = self._parts.metadata.topics.find(name)
        except InvalidTopicError:
            return 0
        except (OSError, KBatchError):
            return PARTITIONS_MAX  # the read meets it again, and answers with it
        return 0 if topic is None or topic_id not in ("", topic.topic_id) else topic.partitions


class _FetchAnswer:
    """The response to one Fetch request, sent once: when there are enough bytes, or when the server ends."""

    def __init__(
        self,
        partitions: Sequence[TopicPartition],
        received: Received,
        respond: Respond,
        names: TopicNames,
        address: tuple[str, int],
    ) -> None:
        """Answer for `partitions`, in this order; those without a result do not exist.

        Each is there once, as in Kafka: otherwise a small request could have an answer of any size.
        """
        self.partitions, self.peer = partitions, received.peer
        self.isolation = _isolation_of(received.body)
        self._respond, self._names, self._address = respond, names, address
        self._version = received.version
        self._topic_ids = {one.topic: one.topic_id for one in received.body.topics}
        self._mutex = threading.Lock()  # guards _is_given
        self._is_given = False
        self.on_given: Callable[[_FetchAnswer], object] = lambda _: None

    def give(self, results: Mapping[TopicPartition, FetchResult]) -> None:
        """Send the results of all partitions as the Fetch response, unless it was sent already."""
        with self._mutex:
            if self._is_given:
                return
            self._is_given = True
        self.on_given(self)
        topics = [
            _Topic(
                topic=topic,
                topic_id=self._topic_ids[topic],
                partitions=[self._part(tp, results.get(tp, _UNKNOWN)) for tp in some],
            )
            for topic, some in itertools.groupby(self.partitions, lambda tp: tp.topic)
        ]
        nodes = []
        if any(one.current_leader for topic in topics for one in topic.partitions):
            host, port = self._address
            nodes = [FetchResponse.NodeEndpoint(node_id=NODE_ID, host=host, port=port)]
        self._respond(FetchResponse(responses=topics, node_endpoints=nodes))

    def _part(self, topic_partition: TopicPartition, result: FetchResult) -> Any:
        topic, partition = topic_partition
        is_committed = self.isolation is IsolationLevel.READ_COMMITTED
        if result.error is not None:
            topic_id = id_of(self._topic_ids[topic], self._version)
            return _Partition(
                partition_index=partition,
                error_code=self._names.code_of(result.error, topic_id),
                high_watermark=-1,
                current_leader=self._leader(result.error),
                aborted_transactions=[] if is_committed else None,
            )
        offsets = result.offsets
        assert offsets is not None
        return _Partition(
            partition_index=partition,
            high_watermark=offsets.high_watermark,
            last_stable_offset=offsets.last_stable_offset,
            log_start_offset=offsets.log_start_offset,
            aborted_transactions=result.read.aborted if is_committed else None,
            records=result.read.data,
            diverging_epoch=_diverging(result.diverging),
        )

    def _leader(self, error: Exception) -> Any:
        """Return the leader for a client that has an older epoch and need not look it up then."""
        if (
            self._version < _FIRST_WITH_LEADERS
            or code_of(error) is not ErrorCode.FENCED_LEADER_EPOCH
        ):
            return None
        assert isinstance(error, FencedLeaderEpochError)
        return _Partition.LeaderIdAndEpoch(leader_id=NODE_ID, leader_epoch=error.current)


def _diverging(entry: EpochEntry | None) -> Any:
    if entry is None:
        return None
    return _Partition.EpochEndOffset(epoch=entry.epoch, end_offset=entry.start_offset)


def _infos(request: FetchRequest, version: int) -> dict[TopicPartition, FetchInfo]:
    """Return what is asked of each partition."""
    return {
        TopicPartition(topic.topic, one.partition): FetchInfo(
            one.fetch_offset,
            max(one.partition_max_bytes, 0),
            max(one.current_leader_epoch, NO_EPOCH),
            max(one.last_fetched_epoch, NO_EPOCH),
            topic_id,
        )
        for topic in request.topics
        for topic_id in [id_of(topic.topic_id, version)]
        for one in topic.partitions
    }


def _isolation_of(request: FetchRequest) -> IsolationLevel:
    if request.isolation_level:
        return IsolationLevel.READ_COMMITTED
    return IsolationLevel.READ_UNCOMMITTED


def _refused(request: FetchRequest) -> ErrorCode:
    state = request.replica_state  # in place of the id from version 15 on
    if (request.replica_id if state is None else state.replica_id) >= 0:
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED  # a follower; there are none over the network
    if request.session_id != _NO_SESSION:
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    return ErrorCode.NONE
