"""Takes batches out of the accumulator, hands them to a transport, and deals with the answers.

    send_ready    answers -> expired batches -> drain -> requests       whoever calls it
    start         a thread that does so whenever something is due       one per producer

A producer whose batches wait for no time needs no thread: who appends calls `send_ready` when a batch
is full.

    answer                                  the batch
    no error                                succeeded
    too large, of several records           is split; its children go at once
    can be retried, and there is time       goes again after a pause, before younger ones
    a lock that was not free                likewise, and that is no attempt that `retries` counts
    anything else                           failed

With acks 0 nobody waits for the answer. An answer that comes after request.timeout.ms, or twice,
changes nothing; the memory of a batch is used again when every request that may still read it was
answered. A partition keeps its order where retries are numbered (`sequences`) or where
max.in.flight.requests.per.connection is 1, which mutes a partition until its answer.

Source: Kafka clients/producer/internals/Sender.java.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from spark_kbatch.errors import (
    KBatchError,
    LockTimeoutError,
    ProducerClosedError,
    RecordTooLargeError,
    RequestTimedOutError,
    RetriableError,
)
from spark_kbatch.model import AppendResult, TopicPartition
from spark_kbatch.options.topic import Topic
from spark_kbatch.producer.accumulator import NEVER_MS, RecordAccumulator
from spark_kbatch.producer.batch import NO_OFFSET, ProducerBatch
from spark_kbatch.producer.idempotence import Sequences

logger = logging.getLogger(__name__)


_PAUSE_MS = 100  # after an error of the sender's own; the longest that `close` sleeps


class ProduceBatch(NamedTuple):
    """One finished batch of a request."""

    topic: Topic
    topic_partition: TopicPartition
    data: memoryview  # stays as it is until the request is answered
    records_count: int


class ProduceRequest(NamedTuple):
    """What a transport is given: at most one batch of each partition."""

    acks: int  # -1, 0, 1
    timeout_ms: int
    batches: Sequence[ProduceBatch]


Answer = Mapping[TopicPartition, AppendResult]


class Transport(Protocol):
    """Where finished batches go."""

    def send(self, request: ProduceRequest, on_answer: Callable[[Answer], None]) -> None:
        """Take a request, and answer it once, now or later, from any thread.

        What is raised counts as the answer for every batch.
        """


@dataclass(frozen=True)
class SenderConfig:
    """What the sender is told of its producer's options."""

    acks: int
    retries: int
    request_timeout_ms: int
    max_request_size: int
    max_in_flight: int


class _InFlight:
    """A request that is not answered."""

    def __init__(self, batches: list[ProducerBatch], sent_ms: int) -> None:
        self.batches, self.sent_ms = batches, sent_ms
        self.is_answered = False  # also where nobody waits any more
        self.may_be_read = True


class Sender:
    """Sends one producer's batches. `send_ready` and `run_once` are for one thread at a time."""

    def __init__(
        self,
        accumulator: RecordAccumulator,
        transport: Transport,
        config: SenderConfig,
        monotonic_ms: Callable[[], int],
        *,
        sequences: Sequences | None = None,
        on_topic_error: Callable[[str], None] | None = None,
    ) -> None:
        """Set up; `on_topic_error` is told the topic of each batch that has an error for an answer."""
        self._on_topic_error = on_topic_error
        self._accumulator, self._transport, self._config = accumulator, transport, config
        self._monotonic_ms, self._sequences = monotonic_ms, sequences
        self._looked_ms = -1  # when it was looked last what is expired and what may go
        self._in_flight: list[_InFlight] = []
        self._read_late: list[_InFlight] = []  # given up, not answered
        self._answers: deque[tuple[_InFlight, Answer | Exception]] = deque()
        # Not an event: an interrupt in `set` may leave its lock taken for ever.
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closing = self._is_forced = False
        self._why_unsent: Exception | None = None  # what keeps all batches from being sent
        self.first_error: Exception | None = None  # of a batch that failed

    def send_ready(self) -> None:
        """Take answers, and send what may go."""
        while self._send_one_request():
            pass

    def _send_one_request(self) -> bool:
        """Take answers, and send what may go in one request; whether anything did."""
        # Asked each time: a busy producer always has another request, and time goes on.
        now_ms = self._monotonic_ms()
        self._take_answers(now_ms)
        if now_ms != self._looked_ms:
            self._expire(now_ms)
            self._looked_ms = now_ms
        if not self._has_room or not self._accumulator.has_undrained:
            return False
        if self._sequences is not None:
            self._sequences.prepare()
        drained = self._accumulator.drain(now_ms, self._config.max_request_size)
        for batch in drained:
            if not batch.builder.is_closed:
                self._fail(batch, batch.error or RuntimeError("a batch that is drained is open"))
        batches = [batch for batch in drained if batch.builder.is_closed]
        if batches:
            self._send(batches, now_ms)
        return bool(drained)

    def run_once(self) -> int:
        """As `send_ready`; after how many ms to come again unless woken."""
        try:
            self.send_ready()
        except (KBatchError, OSError) as error:
            logger.warning("no producer id can be had: %s", error)
            self._why_unsent = error
            if not _is_transient(error):
                for batch in self._accumulator.take_all():
                    self._fail(batch, error)
            return _PAUSE_MS
        self._why_unsent = None
        due = [request.sent_ms + self._config.request_timeout_ms for request in self._in_flight]
        due += [self._accumulator.expiry_ms(batch) for batch in self._batches_in_flight()]
        due.append(self._accumulator.next_expiry_ms())
        if self._has_room:
            # As of then: what time has made ready since is due, it does not wait for an answer.
            is_ready, delay = self._accumulator.ready(self._looked_ms)
            if is_ready:
                # It waits for answers that are under way, or has just become so.
                delay = NEVER_MS if self._in_flight else 1
            due.append(self._looked_ms + delay)
        return 0 if self._answers else max(min(due) - self._monotonic_ms(), 0)

    def start(self) -> None:
        """Run in a thread of its own until `close`."""
        self._thread = threading.Thread(target=self._run, name="kbatch-sender", daemon=True)
        self._thread.start()

    def wake_up(self) -> None:
        """Have the thread look again now."""
        if self._thread is not None and self._wakes.empty():
            self._wakes.put(None)

    def close(self, timeout: float | None) -> bool:
        """Send what is left, within so many seconds, and end; whether all of it has ended.

        What has not ended then fails with ProducerClosedError.
        """
        if timeout != 0:
            self._send_rest(timeout)
        all_ended = not self._has_work
        self._is_forced = True
        self.wake_up()
        if self._thread is not None and self._thread is not threading.current_thread():
            # One that is inside a transport is not waited for; what it holds is not used again.
            self._thread.join(1)
        self._accumulator.abort_incomplete(
            ProducerClosedError("the producer was closed before the record was delivered")
        )
        return all_ended

    def _send_rest(self, timeout: float | None) -> None:
        self._accumulator.close()
        self._is_closing = True
        if self._thread is None:
            while self._has_work:
                delay_ms = self.run_once()
                if self._has_work:
                    time.sleep(min(delay_ms, _PAUSE_MS) / 1000)
        elif self._thread is not threading.current_thread():
            self.wake_up()
            self._thread.join(timeout)

    @property
    def _has_work(self) -> bool:
        return self._accumulator.has_undrained or bool(self._in_flight) or bool(self._answers)

    @property
    def _has_room(self) -> bool:
        return len(self._in_flight) < self._config.max_in_flight

    def _batches_in_flight(self) -> list[ProducerBatch]:
        """Those that have not ended."""
        return [b for request in self._in_flight for b in request.batches if not b.is_done]

    def _run(self) -> None:
        while not self._is_forced and (not self._is_closing or self._has_work):
            if not self._wakes.empty():
                self._sleep(0)
            try:
                delay_ms = self.run_once()
            except Exception:
                logger.exception("the sender goes on after an error of its own")
                delay_ms = _PAUSE_MS
            if delay_ms > 0 and not (self._is_closing and not self._has_work):
                self._sleep(delay_ms)

    def _sleep(self, delay_ms: int) -> None:
        """Return when woken, at once where that was before."""
        timeout = min(delay_ms, threading.TIMEOUT_MAX * 1000 - 1) / 1000
        with suppress(queue.Empty):
            self._wakes.get(block=timeout > 0, timeout=timeout)

    # Out.

    def _send(self, batches: list[ProducerBatch], now_ms: int) -> None:
        request = _InFlight(batches, now_ms)
        for batch in batches:
            batch.readers += 1
            if self._config.max_in_flight == 1:
                self._accumulator.mute(batch.topic_partition)
        self._in_flight.append(request)
        sent = ProduceRequest(
            self._config.acks,
            self._config.request_timeout_ms,
            [
                ProduceBatch(b.topic, b.topic_partition, b.builder.data, b.records_count)
                for b in batches
            ],
        )

        def on_answer(answer: Answer) -> None:
            self._answers.append((request, answer))
            self.wake_up()

        try:
            self._transport.send(sent, on_answer)
        except Exception as error:  # noqa: BLE001  whatever it is, it is these batches' fate
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
                    batch.readers -= 1
                    if batch.is_done:
                        self._accumulator.deallocate(batch)
            if not request.is_answered:
                self._finish(request)
                for batch in request.batches:
                    result = _result_of(answer, batch.topic_partition)
                    try:
                        self._complete(batch, result, now_ms)
                    except Exception as failure:  # noqa: BLE001  its fate; the others have theirs
                        self._fail(batch, failure)
        for request in [*self._in_flight]:
            if now_ms - request.sent_ms >= self._config.request_timeout_ms:
                self._give_up(request)
                error = RequestTimedOutError(
                    f"a request was not answered within request.timeout.ms="
                    f"{self._config.request_timeout_ms}"
                )
                for batch in request.batches:
                    self._complete(batch, AppendResult(error=error), now_ms)

    def _finish(self, request: _InFlight) -> None:
        request.is_answered = True
        self._in_flight.remove(request)
        if self._config.max_in_flight == 1:
            for batch in request.batches:
                self._accumulator.unmute(batch.topic_partition)

    def _give_up(self, request: _InFlight) -> None:
        """Wait no longer for its answer; its memory may still be read."""
        self._finish(request)
        if request.may_be_read:
            self._read_late.append(request)

    def _complete(self, batch: ProducerBatch, result: AppendResult, now_ms: int) -> None:
        error = result.error
        if error is not None and self._on_topic_error is not None:
            self._on_topic_error(batch.topic.name)
        if batch.is_done:
            if error is None and self._sequences is not None and batch.has_sequence:
                self._sequences.completed(batch)
            return
        if error is None:
            self._succeed(batch, result)
        elif _is_too_large(error) and batch.records_count > 1:
            if self._sequences is not None:
                self._sequences.remove(batch)
            count = self._accumulator.split_and_reenqueue(batch)
            logger.info("a batch of %s was split into %d: %s", batch.topic_partition, count, error)
            self._accumulator.complete(batch)
        elif self._can_retry(batch, result, now_ms):
            logger.info("a batch of %s goes again: %s", batch.topic_partition, error)
            batch.error = error
            is_attempt = not isinstance(error, LockTimeoutError)  # which it did not come to
            self._accumulator.reenqueue(batch, now_ms, is_attempt=is_attempt)
        else:
            self._fail(batch, error)

    def _succeed(self, batch: ProducerBatch, result: AppendResult) -> None:
        if self._sequences is not None and batch.has_sequence:
            self._sequences.completed(batch)
        batch.done(result.base_offset, result.log_append_time)
        self._accumulator.complete(batch)

    def _fail(self, batch: ProducerBatch, error: Exception) -> None:
        self.first_error = self.first_error or error
        if self._sequences is not None:
            self._sequences.failed(batch)
        batch.done(NO_OFFSET, error=error)
        self._accumulator.complete(batch)

    def _can_retry(self, batch: ProducerBatch, result: AppendResult, now_ms: int) -> bool:
        error = result.error
        if self._is_forced or not _is_transient(error):
            return False
        if isinstance(error, LockTimeoutError):  # `_expire` says that it was all that went wrong
            return True
        if batch.attempts >= self._config.retries or self._accumulator.is_expired(batch, now_ms):
            return False
        if self._sequences is not None and batch.has_sequence:
            return self._sequences.can_retry(batch, result)
        return isinstance(error, RetriableError)

    def _expire(self, now_ms: int) -> None:
        late = [b for b in self._batches_in_flight() if self._accumulator.is_expired(b, now_ms)]
        for batch in (*late, *self._accumulator.expired(now_ms)):
            cause = batch.error or self._why_unsent
            why = f"; the last attempt failed: {cause}" if cause is not None else ""
            error = RequestTimedOutError(
                f"{batch.records_count} records for {batch.topic_partition} were not delivered "
                f"within delivery.timeout.ms{why}"
            )
            error.__cause__ = cause
            self._fail(batch, error)


def _result_of(answer: Answer | Exception, topic_partition: TopicPartition) -> AppendResult:
    if isinstance(answer, Exception):
        return AppendResult(error=answer)
    if topic_partition not in answer:
        return AppendResult(error=RequestTimedOutError(f"no answer for {topic_partition}"))
    return answer[topic_partition]


def _is_transient(error: Exception | None) -> bool:
    """Whether it is worth waiting; what is no RetriableError is for `_can_retry` to judge."""
    return not isinstance(error, RetriableError) or error.is_transient


def _is_too_large(error: Exception) -> bool:
    return isinstance(error, RecordTooLargeError) and error.option == "max.message.bytes"
