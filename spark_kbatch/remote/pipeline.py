"""Delivery of a transactional producer's finished batches to the partition leaders, in order.

    pipeline.send(topic_partition, data, on_...)       waits while too much is on its way
    pipeline.drain()                                   waits until all is written

Each partition has a queue. A request to a leader takes the next batch of each of its partitions that has
one, and up to five requests of a connection are in flight. If a batch fails in a way that a retry mends
(its leader moved, the connection was lost), nothing more of its partition is sent until what is in flight has
ended; then those that failed are sent again in order, one at a time, before any new one. The batches have
sequence numbers, so that one that was written although its answer was lost is written once: a leader
remembers the last five of each producer. No more are in flight; and one at a time, because

    1. five batches are written, and their answers are lost
    2. all are sent again; the first fails once more, the others count as written
    3. a sixth is sent, and written: now the leader remembers the last five without the first
    4. the first is sent again, and refused as out of order

Source: Kafka clients/.../producer/internals/Sender.java, RecordAccumulator.java (drainBatchesForOneNode).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_kbatch.errors import (
    KBatchError,
    RequestTimedOutError,
    RetriableError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import BATCHES_REMEMBERED, TopicPartition
from spark_kbatch.record.checksums import Buffer
from spark_kbatch.remote.client import Client
from spark_kbatch.wire.connections import Node
from spark_kbatch.wire.errors import ErrorCode, error_of
from spark_kbatch.wire.protocol import (
    PRODUCE_MAX_VERSION_OF_TRANSACTIONS,
    ApiKey,
    ProduceRequest,
)
from spark_kbatch.wire.records import produce_request

logger = logging.getLogger(__name__)

_MOST_BYTES = 16 * 1024 * 1024  # on their way, before `send` waits
_REQUEST_BYTES = 8 * 1024 * 1024  # at which a request takes no further batch
_POLL_MS = 1_000
_WRITTEN = {ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER}


@dataclass(eq=False)
class _Batch:
    number: int  # in its partition
    data: Buffer


@dataclass(eq=False)
class _Queue:
    """One partition's batches that wait to be sent or failed, and the number in flight."""

    waiting: deque[_Batch] = field(default_factory=deque)
    in_flight: int = 0
    failed: list[_Batch] = field(default_factory=list)
    why: str = ""  # they failed
    not_before_ms: int = 0
    attempts: int = 0
    count: int = 0  # of batches so far
    next_number: int = 0  # of the first batch that was never sent
    again_below: int = 0  # batches below this number are sent one at a time

    def may_send(self, now_ms: int) -> bool:
        """Return True if the partition's next batch may be sent now."""
        if not self.waiting or self.failed or self.not_before_ms > now_ms:
            return False
        return self.in_flight < (1 if self.again_below else BATCHES_REMEMBERED)

    def take(self) -> _Batch:
        """Remove the partition's next batch from the queue, to be sent, and return it."""
        batch = self.waiting.popleft()
        self.in_flight += 1
        self.next_number = max(self.next_number, batch.number + 1)
        return batch

    def written(self) -> None:
        """Reset the partition's retry state after one of its batches was written."""
        self.attempts, self.why = 0, ""
        if not self.in_flight and (not self.waiting or self.waiting[0].number >= self.again_below):
            self.again_below = 0


class Pipeline:
    """Sender of one transactional producer's batches, which keeps the order within each partition.

    Not thread-safe; shares the client's thread.
    """

    def __init__(self, client: Client, transactional_id: str, *, timeout_ms: int) -> None:
        """Set up a pipeline without batches.

        Args:
            client: whose connections are used.
            transactional_id: of the producer.
            timeout_ms: how long `send` and `drain` wait without any batch being written.
        """
        self._client, self._transactional_id = client, transactional_id
        self._timeout_ms = timeout_ms
        self._queues: dict[TopicPartition, _Queue] = {}
        self._bytes = 0
        self._error: KBatchError | None = None
        self._progress_ms = 0  # when a batch was last written

    def send(self, topic_partition: TopicPartition, data: Buffer) -> None:
        """Queue a batch after others of its partition, and wait while too many bytes are not written.

        Raises:
            as `drain`, also for earlier batches.
        """
        queue = self._queues.setdefault(topic_partition, _Queue())
        queue.waiting.append(_Batch(queue.count, data))
        queue.count += 1
        self._bytes += len(data)
        self._wait_until(_MOST_BYTES)

    def drain(self) -> None:
        """Wait until the brokers have written all batches sent so far.

        Raises:
            RequestTimedOutError: none was written for too long; says why.
            KBatchError: a batch was refused; nothing more is sent.
        """
        self._wait_until(0)

    def _wait_until(self, most_bytes: int) -> None:
        client = self._client
        self._progress_ms = client.monotonic_ms()
        while True:
            self._raise_error()
            self._send_ready()
            if self._bytes <= most_bytes:
                break
            client.connections.poll(self._pause_ms())
            if client.monotonic_ms() - self._progress_ms > self._timeout_ms:
                raise self._timed_out()
        client.connections.poll(0)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _timed_out(self) -> RequestTimedOutError:
        waiting = [str(tp) for tp, queue in self._queues.items() if queue.waiting or queue.failed]
        why = "; ".join(sorted({queue.why for queue in self._queues.values() if queue.why}))
        return RequestTimedOutError(
            f"no batch was written to {self._client.options} for {self._timeout_ms} ms; batches wait for "
            f"{', '.join(waiting[:5]) or 'an answer'}{why and f': {why}'}"
        )

    def _pause_ms(self) -> int:
        now_ms = self._client.monotonic_ms()
        waits = [
            queue.not_before_ms - now_ms
            for queue in self._queues.values()
            if queue.waiting and queue.not_before_ms > now_ms
        ]
        return max(0, min([*waits, _POLL_MS, self._connection_pause_ms]))

    # Sending.

    _connection_pause_ms = _POLL_MS

    def _send_ready(self) -> None:
        """Send the next batches of all partitions whose leaders can take another Produce request."""
        now_ms = self._client.monotonic_ms()
        self._connection_pause_ms = _POLL_MS
        while True:
            by_leader: dict[Node, list[TopicPartition]] = {}
            for topic_partition, queue in self._queues.items():
                if queue.may_send(now_ms):
                    leader, _ = self._client.leader(topic_partition)
                    by_leader.setdefault(leader, []).append(topic_partition)
            sent = [
                # Looking up a leader may have brought answers.
                self._send_to(node, [one for one in of if self._queues[one].may_send(now_ms)])
                for node, of in by_leader.items()
            ]
            if not any(sent):
                return

    def _send_to(self, node: Node, partitions: list[TopicPartition]) -> bool:
        """Send these partitions' next batches in a Produce request to their leader, or connect to it."""
        connections = self._client.connections
        if not partitions:
            return False
        if not connections.can_send(node) and not connections.ready(node):
            refusal = connections.refusal(node)
            if refusal is not None:
                raise refusal
            error = connections.last_error(node)
            delay_ms = connections.delay_ms(node)
            if error is not None and delay_ms:
                # The partitions may have another leader by the next attempt.
                for one in partitions:
                    self._queues[one].why = str(error)
                self._client.invalidate()
                self._connection_pause_ms = min(self._connection_pause_ms, delay_ms)
            return False
        taken: dict[TopicPartition, _Batch] = {}
        size = 0
        for one in partitions:
            queue = self._queues[one]
            if size and size + len(queue.waiting[0].data) > _REQUEST_BYTES:
                continue
            taken[one] = queue.take()
            size += len(taken[one].data)
        connections.send(
            node,
            ApiKey.PRODUCE,
            self._request(taken),
            lambda answer, error: self._answered(node, taken, answer, error),
            last_version=PRODUCE_MAX_VERSION_OF_TRANSACTIONS,
        )
        # Those that were left out are taken first next time.
        for one in taken:
            self._queues[one] = self._queues.pop(one)
        return True

    def _request(self, taken: Mapping[TopicPartition, _Batch]) -> ProduceRequest:
        return produce_request(
            -1,
            self._client.options.request_timeout_ms,
            {topic_partition: batch.data for topic_partition, batch in taken.items()},
            self._transactional_id,
        )

    # Answers.

    def _answered(
        self,
        node: Node,
        taken: Mapping[TopicPartition, _Batch],
        answer: Any,
        error: KBatchError | None,
    ) -> None:
        codes: dict[TopicPartition, tuple[int, str]] = {}
        if error is None:
            codes = {
                TopicPartition(topic.name, one.index): (one.error_code, one.error_message or "")
                for topic in answer.responses
                for one in topic.partition_responses
            }
        for topic_partition, batch in taken.items():
            queue = self._queues[topic_partition]
            queue.in_flight -= 1
            if error is not None:
                self._failed(topic_partition, batch, error)
                continue
            code, message = codes.get(topic_partition, (ErrorCode.UNKNOWN_SERVER_ERROR, ""))
            if code in _WRITTEN:
                queue.written()
                self._bytes -= len(batch.data)
                self._progress_ms = self._client.monotonic_ms()
            elif code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and queue.failed:
                queue.failed.append(batch)  # a batch before it has failed
            else:
                text = f"a batch for {topic_partition} at {node}{message and f': {message}'}"
                self._failed(topic_partition, batch, error_of(code, text))
        for topic_partition in taken:
            self._maybe_send_again(self._queues[topic_partition])

    def _failed(self, topic_partition: TopicPartition, batch: _Batch, error: KBatchError) -> None:
        """Keep a failed batch, to send it again if its error is retriable, or else to end with the error."""
        queue = self._queues[topic_partition]
        queue.failed.append(batch)
        if not isinstance(error, (RetriableError, UnknownTopicOrPartitionError)):
            self._error = self._error or error
            return
        if not queue.why:
            logger.warning("a batch for %s is sent again: %s", topic_partition, error)
        queue.why = str(error)
        self._client.invalidate()

    def _maybe_send_again(self, queue: _Queue) -> None:
        if not queue.failed or queue.in_flight:
            return
        for batch in sorted(queue.failed, key=lambda one: one.number, reverse=True):
            queue.waiting.appendleft(batch)
        queue.failed, queue.again_below = [], queue.next_number
        pause_ms = self._client.backoff.pause_ms(queue.attempts)
        queue.attempts += 1
        queue.not_before_ms = self._client.monotonic_ms() + pause_ms
