"""The sender: drains batches from the accumulator, sends them, and handles the answers.

    send_ready    answers -> expired batches -> ready nodes -> drain -> requests   in the caller's thread
    run_until     the same, and the nodes' input and output, until something holds    in the caller's thread
    start         a thread that does so whenever something is due                  one per producer

A producer without linger.ms needs no thread: the caller that appends calls `send_ready` when a batch is full.
Nor does one of finished batches, such as a mirror: the caller that adds them calls `run_until`.

A round sends one request to each node that leads a partition with batches to send, whose connection takes
one now, and that has answered all but max.in.flight.requests.per.connection - 1 of its requests. So a node
that is slow, or gone, keeps only its own partitions waiting. An embedded log is one node, which leads all
partitions and is always ready (`OneNode`); a cluster's nodes are behind `Nodes`, which also does their
input and output, in the sender's thread, while the sender waits.

    answer                                  the batch
    no error                                succeeds
    it was written before                   succeeds; its offset is unknown
    a run is refused, by which no batch     is sent again at once, alone: the others may be sound; it fails if an
      was written                           earlier attempt may be in the log, which knows it in the run alone
    too large, of several records           is split, unless it came finished, or an earlier attempt may be in the
                                            log; its children are sent at once
    retriable, and there is time            is retried after a pause, before younger ones
    a lock that was not free                is retried; `retries` does not count this attempt
    anything else                           fails

With acks 0 no answer is awaited. An answer after request.timeout.ms, or a second answer, changes nothing.
A batch's memory is reused once every request that may still read it is answered. A partition keeps its
order if retries are numbered (`idempotence`), or if max.in.flight.requests.per.connection is 1, which
mutes a partition until its answer.

Source: Kafka clients/producer/internals/Sender.java.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from spark_kbatch.errors import (
    KafkaStorageError,
    KBatchError,
    LockTimeoutError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    OutcomeUnknownError,
    ProducerClosedError,
    RecordTooLargeError,
    RequestTimedOutError,
    RetriableError,
)
from spark_kbatch.model import AppendResult, TopicPartition
from spark_kbatch.producer.accumulator import RecordAccumulator
from spark_kbatch.producer.batch import NO_OFFSET, ProducerBatch
from spark_kbatch.producer.idempotence import Sequences
from spark_kbatch.producer.metrics import ProducerMetrics
from spark_kbatch.store.transport import (
    NEVER_MS,
    Answer,
    LeaderOf,
    Node,
    Nodes,
    ProduceBatch,
    SendRequest,
    Transport,
)

logger = logging.getLogger(__name__)


_SAID_AGAIN_AFTER_MS = 10_000  # why batches of any partition are retried
_PAUSE_MS = 100  # after an error in the sender itself; also the longest that `close` sleeps


class OneNode:
    """The single node of a transport without a network: it leads all partitions and is always ready."""

    leader_of: LeaderOf | None = None
    why_unreachable: Exception | None = None

    def __init__(self) -> None:
        # Free once woken, until the sleeper has seen it. Neither an Event, whose own lock an interrupt in
        # `set` could leave taken for ever, nor a SimpleQueue: in Python 3.11, its `get` may wait for ever
        # if the thread loses the processor just after it has read the clock.
        self._wake = threading.Lock()
        self._wake.acquire()

    def take_refusal(self) -> Exception | None:
        """Return None."""

    def is_ready(self, node: Node) -> bool:
        """Return True."""
        return True

    def delay_ms(self, node: Node) -> int:
        """Return 0."""
        return 0

    def poll(self, timeout_ms: int) -> None:
        """Sleep until woken; return at once if that happened before."""
        if timeout_ms <= 0:
            self._wake.acquire(blocking=False)
        else:
            self._wake.acquire(timeout=min(timeout_ms / 1000, threading.TIMEOUT_MAX))

    def wake_up(self) -> None:
        """End the sleep."""
        if self._wake.locked():
            with suppress(RuntimeError):  # another thread was faster
                self._wake.release()

    def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class SenderConfig:
    """The producer's options that concern the sender."""

    acks: int
    retries: int
    request_timeout_ms: int
    max_request_size: int
    max_in_flight: int


class _InFlight:
    """A request that is not yet answered."""

    def __init__(self, batches: list[ProducerBatch], node: Node | None, sent_ms: int) -> None:
        self.batches, self.node, self.sent_ms = batches, node, sent_ms
        self.is_answered = False  # or given up
        self.may_be_read = True

    def results(self, answer: Answer | Exception) -> Iterator[tuple[ProducerBatch, AppendResult]]:
        """Yield each batch with its result."""
        next_offsets: dict[TopicPartition, int] = {}  # where runs go on
        for batch in self.batches:
            topic_partition = batch.topic_partition
            result = _result_of(answer, topic_partition)
            if result.base_offset >= 0:
                offset = next_offsets.get(topic_partition, result.base_offset)
                next_offsets[topic_partition] = offset + batch.records_count
                result = AppendResult(offset, *result[1:])
            yield batch, result

    def is_run(self, batch: ProducerBatch) -> bool:
        """Return True if the request has several batches of this one's partition."""
        return self._batches_of[batch.topic_partition] > 1

    @cached_property
    def _batches_of(self) -> Counter[TopicPartition]:
        """The number of batches by partition; asked for after errors only."""
        found = Counter[TopicPartition]()
        for batch in self.batches:
            found[batch.topic_partition] += len(batch.builder.parts)
        return found


class Sender:
    """The sender of one producer's batches, from the accumulator to a transport.

    One thread at a time may call `send_ready` and `run_once`.
    """

    def __init__(
        self,
        accumulator: RecordAccumulator,
        transport: Transport,
        config: SenderConfig,
        monotonic_ms: Callable[[], int],
        *,
        nodes: Nodes | None = None,
        sequences: Sequences | None = None,
        on_topic_error: Callable[[str], None] | None = None,
        metrics: ProducerMetrics | None = None,
    ) -> None:
        """Set up.

        Args:
            accumulator: that batches come from.
            transport: that they go to.
            config: the producer's options.
            monotonic_ms: the clock.
            nodes: of the transport; one by default.
            sequences: for idempotence.
            on_topic_error: called with the topic of each batch whose answer is an error.
            metrics: that an earlier sender has counted in.
        """
        self._nodes = nodes or OneNode()
        self._on_topic_error = on_topic_error
        self._accumulator, self._transport, self._config = accumulator, transport, config
        self._monotonic_ms, self._sequences = monotonic_ms, sequences
        self.metrics = metrics or ProducerMetrics(monotonic_ms())
        self._looked_ms = -1  # when expired and ready batches were last looked for
        self._in_flight: list[_InFlight] = []
        self._read_late: list[_InFlight] = []  # given up, not answered
        self._answers: deque[tuple[_InFlight, Answer | Exception]] = deque()
        self._thread: threading.Thread | None = None
        self._is_closing = self._is_forced = False
        self._ending = threading.RLock()  # held by the one that takes the last answers
        self._why_unsent: Exception | None = None  # what keeps all batches from being sent
        self._why_retried: Exception | None = None  # until the next batch is written
        self._said_ms = -_SAID_AGAIN_AFTER_MS
        # Of a batch that failed, or of a record that got into none.
        self.first_error: Exception | None = None
        # If set, what is not in flight fails with it, and so does what would be sent again.
        self.why_given_up: KBatchError | None = None

    def send_ready(self) -> None:
        """Handle answers, and send every batch that may be sent."""
        while self._send_a_round():
            pass

    def _send_a_round(self) -> bool:
        """Handle answers, and send a request to each ready node; return whether there was one to send."""
        # Read for each round: a busy producer always has another one, and time goes on.
        now_ms = self._monotonic_ms()
        self._take_answers(now_ms)
        if self.why_given_up is not None:
            raise self.why_given_up
        if now_ms != self._looked_ms:
            self._expire(now_ms)
            self._looked_ms = now_ms
        nodes = self._nodes_to_send_to(now_ms) if self._accumulator.has_undrained else ()
        if not nodes:
            return False
        if self._sequences is not None:
            self._sequences.prepare()
            # It may have waited for an answer, and connections have changed meanwhile.
            nodes = [one for one in nodes if one is None or self._is_ready(one, now_ms)]
        has_sent = False
        for node in nodes:
            has_sent |= self._send_to(node, now_ms)
        return has_sent

    def _nodes_to_send_to(self, now_ms: int) -> Collection[Node | None]:
        leader_of = self._nodes.leader_of
        if leader_of is None:
            return (None,) if self._has_room(None) else ()
        refusal = self._nodes.take_refusal()
        if refusal is not None:
            for batch in self._accumulator.take_all(leader_of):
                self._fail(batch, refusal)
        nodes = self._accumulator.ready_nodes(now_ms, leader_of).nodes
        return [one for one in nodes if self._has_room(one) and self._is_ready(one, now_ms)]

    def _is_ready(self, node: Node, now_ms: int) -> bool:
        """Return whether a node can be sent a request now; fail its batches if it refuses this client for good."""
        try:
            return self._nodes.is_ready(node)
        except (KBatchError, OSError) as error:
            if _is_passing(error):
                raise
            leader_of, most = self._nodes.leader_of, self._config.max_request_size
            while drained := self._accumulator.drain(now_ms, most, node, leader_of):
                for batch in drained:
                    self._fail(batch, error)
            return False

    def _send_to(self, node: Node | None, now_ms: int) -> bool:
        """Send one request to a node; return whether there was anything to send."""
        drained = self._accumulator.drain(
            now_ms, self._config.max_request_size, node, self._nodes.leader_of
        )
        for batch in drained:
            if not batch.builder.is_closed:
                self._fail(batch, batch.error or RuntimeError("a drained batch is still open"))
        batches = []
        for batch in drained:
            if batch.is_done:  # failed above, or aborted by a close while it was compressed
                self._accumulator.complete(batch)
            else:
                batches.append(batch)
        if batches:
            self._send(batches, node, now_ms)
        return bool(drained)

    def run_once(self) -> int:
        """Handle answers and send every batch that may be sent; return in how many ms to call again."""
        try:
            self.send_ready()
            # As of that time: a batch that has become ready since is due, it waits for no answer.
            next_batch_ms = self._looked_ms + self._next_batch_delay_ms(self._looked_ms)
        except (KBatchError, OSError) as error:
            is_new = str(error) != str(self._why_unsent)  # said once, not at each attempt
            self._why_unsent = error
            if _is_passing(error):
                if is_new:
                    logger.warning("nothing can be sent at the moment, retrying: %s", error)
            else:
                for batch in self._accumulator.take_all():
                    self._fail(batch, error)
            return _PAUSE_MS
        self._why_unsent = None
        due = [request.sent_ms + self._config.request_timeout_ms for request in self._in_flight]
        due += [self._accumulator.expiry_ms(batch) for batch in self._batches_in_flight()]
        due.append(self._accumulator.next_expiry_ms())
        due.append(next_batch_ms)
        return 0 if self._answers else max(min(due) - self._monotonic_ms(), 0)

    def _next_batch_delay_ms(self, now_ms: int) -> int:
        """Return in how many ms the next batch may be sent, if no answer or append comes before."""
        # What is ready and was not sent waits for answers, or has become ready just now.
        of_ready = NEVER_MS if self._in_flight else 1
        leader_of = self._nodes.leader_of
        if leader_of is None:
            if not self._has_room(None):
                return NEVER_MS
            is_ready, delay = self._accumulator.ready(now_ms)
            return of_ready if is_ready else delay
        nodes, delay = self._accumulator.ready_nodes(now_ms, leader_of)
        for node in nodes:
            if self._has_room(node):
                try:
                    is_ready = self._nodes.is_ready(node)
                except (KBatchError, OSError):
                    return 1  # It is of this node's batches alone: the next round sees to that.
                delay = min(delay, of_ready if is_ready else self._nodes.delay_ms(node))
        return delay

    @property
    def why_waiting(self) -> Exception | None:
        """The error for which batches wait, and are tried again; None if there is none."""
        known = self._why_unsent or self._why_retried
        return known or (self._nodes.why_unreachable if self._has_work else None)

    @property
    def is_current_thread(self) -> bool:
        """Whether the caller is a callback of the sender's own thread."""
        return self._thread is threading.current_thread()

    @property
    def requests_in_flight(self) -> int:
        """The number of requests that are not yet answered."""
        return len(self._in_flight)

    def run_until(self, is_done: Callable[[], bool]) -> None:
        """Send and receive in the caller's thread, at least once, until `is_done`."""
        has_ended = False
        while not has_ended:
            delay_ms = self.run_once()
            has_ended = is_done()
            self._nodes.poll(0 if has_ended else min(delay_ms, _PAUSE_MS))

    def start(self) -> None:
        """Run in a separate thread until `close`."""
        self._thread = threading.Thread(target=self._run, name="kbatch-sender", daemon=True)
        self._thread.start()

    def wake_up(self) -> None:
        """Make the thread look for work now."""
        if self._thread is not None:
            self._nodes.wake_up()

    def close(self, timeout: float | None) -> None:
        """Send what is left, within `timeout` seconds, and stop.

        Batches that have not ended by then fail with ProducerClosedError. Several threads may call it: each
        waits for the end, and the first whose time is up has the rest fail.
        """
        if self._thread is None:
            with self._ending:
                self._end(timeout)
            return
        if timeout != 0:
            self._accumulator.close()
            self._is_closing = True
            if not self.is_current_thread:
                self.wake_up()
                self._thread.join(timeout)
        self._is_forced = True
        self.wake_up()
        # A callback that closes is called within an answer, of which all counts: `_run` has the rest fail.
        if not self.is_current_thread:
            self._thread.join(1)
            self._abort_rest()

    def _end(self, timeout: float | None) -> None:
        """Do as `close`, without a thread."""
        if timeout != 0 and not self._is_forced:
            self._accumulator.close()
            self.run_until(lambda: not self._has_work)
        if not self._is_forced:
            self._is_forced = True
            self._nodes.close()
            self._abort_rest()

    def _abort_rest(self) -> None:
        thread = self._thread
        is_sending = thread is not None and thread.is_alive() and not self.is_current_thread
        # No one waits here: callbacks run, and may wait for who closes too.
        if not is_sending and self._ending.acquire(blocking=False):
            try:
                # What was written counts, even if the thread had no time left to see it.
                self._take_answers(self._monotonic_ms())
            finally:
                self._ending.release()
        self._accumulator.abort_incomplete(
            ProducerClosedError("the producer was closed before the record was delivered"),
            is_sending=is_sending,
        )

    @property
    def _has_work(self) -> bool:
        # With acks 0 no one waits for an answer, but a connection may still be writing.
        is_writing = self._config.acks == 0 and bool(self._read_late)
        waits = bool(self._in_flight) or bool(self._answers) or is_writing
        return waits or self._accumulator.has_undrained

    def _has_room(self, node: Node | None) -> bool:
        """Return True if the limit of requests in flight lets another request be sent to the node."""
        limit = self._config.max_in_flight
        return len(self._in_flight) < limit or (
            sum(request.node == node for request in self._in_flight) < limit
        )

    def _batches_in_flight(self) -> list[ProducerBatch]:
        """Return the batches of unanswered requests that have not ended."""
        return [b for request in self._in_flight for b in request.batches if not b.is_done]

    def _run(self) -> None:
        try:
            while not self._is_forced and (not self._is_closing or self._has_work):
                try:
                    self._nodes.poll(0)
                    delay_ms = self.run_once()
                    if delay_ms > 0 and not (self._is_closing and not self._has_work):
                        self._nodes.poll(delay_ms)
                except Exception:
                    logger.exception("the sender continues after an unexpected error")
                    time.sleep(_PAUSE_MS / 1000)
        finally:
            self._nodes.close()
            if (
                self._is_forced
            ):  # Who closed may have found this thread at work, and left some to it.
                self._abort_rest()

    # Out.

    def _send(self, batches: list[ProducerBatch], node: Node | None, now_ms: int) -> None:
        request = _InFlight(batches, node, now_ms)
        for batch in batches:
            batch.readers += 1
            if self._config.max_in_flight == 1:
                self._accumulator.mute(batch.topic_partition)
        self._in_flight.append(request)
        self.metrics.sent(batches, now_ms)
        sent = SendRequest(
            self._config.acks,
            self._config.request_timeout_ms,
            [
                ProduceBatch(b.topic, b.topic_partition, part.data, part.records_count)
                for b in batches
                for part in b.builder.parts
            ],
            node,
        )

        def on_answer(answer: Answer) -> None:
            self._answers.append((request, answer))
            self.wake_up()

        try:
            self._transport.send(sent, on_answer)
        except Exception as error:  # noqa: BLE001  any error fails these batches, not the sender
            self._answers.append((request, error))
        if self._config.acks == 0:
            self._give_up(request)
            for batch in batches:
                self._succeed(batch, AppendResult())

    # In.

    def _take_answers(self, now_ms: int) -> None:
        while self._answers:
            request, answer = self._answers.popleft()
            if request.may_be_read:
                request.may_be_read = False
                if request in self._read_late:
                    self._read_late.remove(request)
                for batch in request.batches:
                    for one in (batch, *batch.heirs):
                        one.readers -= 1
                        if one.is_done:
                            self._accumulator.deallocate(one)
            if not request.is_answered:
                self._finish(request)
                self.metrics.answered(now_ms - request.sent_ms, now_ms)
                for batch, result in request.results(answer):
                    is_run = result.error is not None and request.is_run(batch)
                    try:
                        self._complete(batch, result, now_ms, is_run=is_run)
                    except Exception as failure:  # noqa: BLE001  fails this batch, not the others
                        self._fail(batch, failure)
        for request in [*self._in_flight]:
            if now_ms - request.sent_ms >= self._config.request_timeout_ms:
                self._give_up(request)
                error = RequestTimedOutError(
                    f"a request was not answered within request.timeout.ms="
                    f"{self._config.request_timeout_ms}"
                )
                for batch in request.batches:
                    is_run = request.is_run(batch)
                    self._complete(batch, AppendResult(error=error), now_ms, is_run=is_run)

    def _finish(self, request: _InFlight) -> None:
        request.is_answered = True
        self._in_flight.remove(request)
        if self._config.max_in_flight == 1:
            for batch in request.batches:
                self._accumulator.unmute(batch.topic_partition)

    def _give_up(self, request: _InFlight) -> None:
        """Stop waiting for a request's answer; the transport may still read its batches."""
        self._finish(request)
        if request.may_be_read:
            self._read_late.append(request)

    def _complete(
        self, batch: ProducerBatch, result: AppendResult, now_ms: int, *, is_run: bool
    ) -> None:
        error = result.error
        if error is not None and self._on_topic_error is not None:
            self._on_topic_error(batch.topic.name)
        if batch.is_done:
            if error is None and self._sequences is not None and batch.has_sequence:
                self._sequences.completed(batch)
            return
        if error is None:
            self._succeed(batch, result)
        elif (
            is_run
            and _is_refusal(error)
            and not batch.must_stay_whole
            and not self._can_retry(batch, result, now_ms)
        ):
            self._accumulator.dissolve(batch)
        elif _is_too_large(error) and batch.can_be_split:
            if self._sequences is not None:
                self._sequences.remove(batch)
            count = self._accumulator.split_and_reenqueue(batch)
            self.metrics.split(now_ms)
            logger.info("splitting a batch of %s into %d: %s", batch.topic_partition, count, error)
            self._accumulator.complete(batch)
        elif self._is_forced and isinstance(error, RetriableError):
            pass  # `close` ends it
        elif self._can_retry(batch, result, now_ms):
            self._say_retried(batch, error, now_ms)
            batch.error = error
            batch.is_in_doubt |= _may_be_written(error)
            self.metrics.retried(batch.records_count, now_ms)
            is_attempt = not isinstance(
                error, LockTimeoutError
            )  # without the lock nothing was tried
            self._accumulator.reenqueue(batch, now_ms, is_attempt=is_attempt)
        else:
            self._fail(batch, error)

    def _say_retried(self, batch: ProducerBatch, error: Exception, now_ms: int) -> None:
        """Log a retry; of a disk or replicas that may be missing for long, as a warning now and then."""
        level = logging.INFO
        if not isinstance(error, LockTimeoutError):
            self._why_retried = error
        if isinstance(error, (KafkaStorageError, NotEnoughReplicasError)):
            if now_ms - self._said_ms >= _SAID_AGAIN_AFTER_MS:
                self._said_ms, level = now_ms, logging.WARNING
        logger.log(level, "retrying a batch of %s: %s", batch.topic_partition, error)

    def _succeed(self, batch: ProducerBatch, result: AppendResult) -> None:
        self._why_retried = None
        if self._sequences is not None and batch.has_sequence:
            self._sequences.completed(batch)
        self.metrics.written(batch, result.base_offset)
        batch.done(result.base_offset, result.log_append_time)
        self._accumulator.complete(batch)

    def _fail(self, batch: ProducerBatch, error: Exception) -> None:
        self.first_error = self.first_error or error
        self.metrics.failed(batch.records_count, self._monotonic_ms())
        if self._sequences is not None:
            self._sequences.failed(batch)
        batch.done(NO_OFFSET, error=error)
        self._accumulator.complete(batch)

    def _can_retry(self, batch: ProducerBatch, result: AppendResult, now_ms: int) -> bool:
        error = result.error
        if self._is_forced or not _is_transient(error):
            return False
        if isinstance(error, LockTimeoutError):  # until delivery.timeout.ms: `_expire`
            return True
        if batch.attempts >= self._config.retries or self._accumulator.is_expired(batch, now_ms):
            return False
        if self._sequences is not None and batch.has_sequence:
            return self._sequences.can_retry(batch, result)
        return isinstance(error, RetriableError)

    def _expire(self, now_ms: int) -> None:
        late = [b for b in self._batches_in_flight() if self._accumulator.is_expired(b, now_ms)]
        for batch in (*late, *self._accumulator.expired(now_ms)):
            cause = batch.error or self._why_unsent or self._nodes.why_unreachable
            why = f"; the last attempt failed: {cause}" if cause is not None else ""
            error = RequestTimedOutError(
                f"{batch.records_count} records for {batch.topic_partition} were not delivered "
                f"within delivery.timeout.ms{why}"
            )
            error.__cause__ = cause
            self._fail(batch, error)


def _is_passing(error: Exception) -> bool:
    return isinstance(error, (RetriableError, OSError)) and _is_transient(error)


def _result_of(answer: Answer | Exception, topic_partition: TopicPartition) -> AppendResult:
    if isinstance(answer, Exception):
        return AppendResult(error=answer)
    if topic_partition not in answer:
        return AppendResult(error=RequestTimedOutError(f"no answer for {topic_partition}"))
    return answer[topic_partition]


def _is_transient(error: Exception | None) -> bool:
    """Return False if a retriable error is marked as permanent, so that waiting cannot help.

    `_can_retry` decides on errors that are not retriable.
    """
    return not isinstance(error, RetriableError) or error.is_transient


def _is_refusal(error: Exception) -> bool:
    """Return True if an error means that nothing was written, because a batch is invalid."""
    is_unknown = isinstance(error, (RetriableError, OutcomeUnknownError))
    return isinstance(error, KBatchError) and not is_unknown


def _may_be_written(error: Exception) -> bool:
    """Return False if an error means that the batch was not written, and will not be."""
    if isinstance(error, NotEnoughReplicasError):
        return isinstance(error, NotEnoughReplicasAfterAppendError)
    return isinstance(error, RetriableError) and not isinstance(error, LockTimeoutError)


def _is_too_large(error: Exception) -> bool:
    return isinstance(error, RecordTooLargeError) and error.option == "max.message.bytes"
