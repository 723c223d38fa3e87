"""Transports around a real log that treat requests as networks and brokers do.

    FaultyTransport(log, [FAILED, LATE])        the first two requests have these fates
    FaultyTransport(log, drawn_fates(seed))     each has a random fate, drawn with the seed
    HeldTransport(log)                          the test decides the outcome of each, and when

Nothing is written after request.timeout.ms has passed. As long as a request may be read, they check that
its bytes stay unchanged.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum

from spark_kbatch.errors import InvalidRecordError, KafkaStorageError, RecordTooLargeError
from spark_kbatch.model import AppendResult
from spark_kbatch.record import codec
from spark_kbatch.store.transport import Answer, ProduceBatch, SendRequest, Transport

OnAnswer = Callable[[Answer], None]


class Fate(Enum):
    """An outcome of a request."""

    DELIVERED = "written and answered"
    FAILED = "not written, answered with a retriable error"
    FAILED_LATE = "not written, answered with a retriable error after a while"
    UNANSWERED = "written, never answered"
    LATE = "written, answered after a while, at times after request.timeout.ms"
    TWICE = "written, answered twice"
    OVERTAKEN = "written and answered after the request that follows it"
    RAISED = "written, but a retriable error is raised"
    SPLIT = "not written, batches of several records are too large"
    REFUSED = "not written, answered with a fatal error"
    BROKEN = "written, but a fatal error is raised"


FINAL = (Fate.REFUSED, Fate.BROKEN)
TRANSIENT = tuple(fate for fate in Fate if fate not in (Fate.DELIVERED, *FINAL))


def drawn_fates(seed: object, among: Sequence[Fate]) -> Iterator[Fate]:
    """Yield random fates; half of the requests are delivered."""
    rng = random.Random(f"fates {seed}")
    while True:
        yield Fate.DELIVERED if rng.random() < 0.5 else rng.choice(among)


class SentRequest:
    """A request that a transport received, with its bytes at that time."""

    def __init__(self, log: Transport, request: SendRequest, on_answer: OnAnswer) -> None:
        self._log, self._request, self._on_answer = log, request, on_answer
        self._bytes = [bytes(batch.data) for batch in request.batches]
        self._sent = time.monotonic()

    @property
    def batches(self) -> Sequence[ProduceBatch]:
        return self._request.batches

    @property
    def values(self) -> list[bytes]:
        """Return the values of all records, batch by batch."""
        return [value for data in self._bytes for value in _values(data)]

    @property
    def is_unchanged(self) -> bool:
        return self._bytes == [bytes(batch.data) for batch in self._request.batches]

    @property
    def may_be_written(self) -> bool:
        """Return True if there is time left to write, which takes the log a while."""
        return time.monotonic() - self._sent < 0.8 * self._request.timeout_ms / 1000

    def write(self, request: SendRequest | None = None) -> Answer:
        """Append the request's memory, as it is now, to the log; return the log's answer."""
        answers: list[Answer] = []
        self._log.send(request or self._request, answers.append)
        (answer,) = answers
        return answer

    def answer(self, answer: Answer) -> None:
        self._on_answer(answer)

    def deliver(self) -> None:
        self.answer(self.write())

    def fail(self, error: Exception) -> None:
        self.answer({batch.topic_partition: AppendResult(error=error) for batch in self.batches})

    def split(self) -> None:
        """Refuse batches of several records as too large, and deliver those of the other partitions."""
        large = {one.topic_partition: one for one in self.batches if one.records_count > 1}
        others = [one for one in self.batches if one.topic_partition not in large]
        answer = dict(self.write(self._request._replace(batches=others)))
        for tp, batch in large.items():
            error = RecordTooLargeError("a batch", len(batch.data), 1, "max.message.bytes")
            answer[tp] = AppendResult(error=error)
        self.answer(answer)


def _values(data: bytes) -> Iterable[bytes]:
    return codec.decode(data).column("value").to_pylist()  # type: ignore[no-any-return]


class FaultyTransport:
    """A transport whose requests have the given fates in turn; later ones are delivered."""

    def __init__(self, log: Transport, fates: Iterable[Fate], *, seed: object = 0) -> None:
        self._log, self._fates, self._random = log, iter(fates), random.Random(f"delays {seed}")
        self._lock = threading.Lock()  # guards _held
        self._held: SentRequest | None = None
        self._timers: list[threading.Timer] = []
        self._unanswered: list[SentRequest] = []
        self.doomed: set[bytes] = set()  # values of records whose fate was one of FINAL
        # Values of records that a log may have, as far as a producer knows.
        self._tried: set[bytes] = set()
        self.overwritten: list[SentRequest] = []  # while they could be read

    def send(self, request: SendRequest, on_answer: OnAnswer) -> None:
        sent = SentRequest(self._log, request, on_answer)
        fate = next(self._fates, Fate.DELIVERED)
        if fate is Fate.SPLIT and not self._tried.isdisjoint(sent.values):
            # It was not too large before, so it is not now; and what may have been written is not split.
            fate = Fate.DELIVERED
        if fate is not Fate.SPLIT:
            self._tried.update(sent.values)
        delay = self._random.uniform(0, 2) * request.timeout_ms / 1000
        if fate is Fate.OVERTAKEN:
            with self._lock:
                overtaken, self._held = self._held, sent
            self._after(request.timeout_ms / 2000, lambda: self._release(sent))
            self._deliver_overtaken(overtaken)
            return
        try:
            self._meet(fate, sent, delay)
        finally:
            self._release(self._held)

    def close(self) -> None:
        """Wait for pending work, and check the requests without an answer."""
        for timer in self._timers:
            timer.join()
        self._look(*self._unanswered)

    def _meet(self, fate: Fate, sent: SentRequest, delay: float) -> None:
        if fate in FINAL:
            self.doomed.update(sent.values)
        match fate:
            case Fate.DELIVERED:
                sent.deliver()
            case Fate.FAILED:
                sent.fail(KafkaStorageError("not written"))
            case Fate.FAILED_LATE:
                self._after(delay / 4, lambda: sent.fail(KafkaStorageError("not written")))
            case Fate.UNANSWERED:
                sent.write()
                self._unanswered.append(sent)
            case Fate.LATE:
                answer = sent.write()

                def answer_late() -> None:
                    self._look(sent)
                    sent.answer(answer)

                self._after(delay, answer_late)
            case Fate.TWICE:
                answer = sent.write()
                sent.answer(answer)
                sent.answer(answer)
            case Fate.RAISED:
                sent.write()
                raise KafkaStorageError("written")
            case Fate.SPLIT:
                sent.split()
            case Fate.REFUSED:
                sent.fail(InvalidRecordError("refused"))
            case Fate.BROKEN:
                sent.write()
                raise RuntimeError("broken")

    def _after(self, delay: float, work: Callable[[], None]) -> None:
        timer = threading.Timer(delay, work)
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def _release(self, sent: SentRequest | None) -> None:
        with self._lock:
            if sent is None or self._held is not sent:
                return
            self._held = None
        self._deliver_overtaken(sent)

    def _deliver_overtaken(self, sent: SentRequest | None) -> None:
        if sent is None:
            return
        self._look(sent)
        if sent.may_be_written:
            sent.deliver()
        else:
            self._unanswered.append(sent)

    def _look(self, *requests: SentRequest) -> None:
        self.overwritten += [sent for sent in requests if not sent.is_unchanged]


class HeldTransport:
    """A transport that keeps every request until the test decides its outcome."""

    def __init__(self, log: Transport) -> None:
        self._log = log
        self._changed = threading.Condition()
        self._sent: list[SentRequest] = []

    def send(self, request: SendRequest, on_answer: OnAnswer) -> None:
        with self._changed:
            self._sent.append(SentRequest(self._log, request, on_answer))
            self._changed.notify_all()

    @property
    def count(self) -> int:
        return len(self._sent)

    def request(self, number: int) -> SentRequest:
        """Wait for the request of this number, from 0, and return it."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._sent) > number, 30), (
                f"request {number} did not come"
            )
        return self._sent[number]


class Gate:
    """A transport that blocks while it is shut."""

    def __init__(self, log: Transport) -> None:
        self._log = log
        self._is_open = threading.Event()
        self.arrived = threading.Event()

    def open(self) -> None:
        self._is_open.set()

    def send(self, request: SendRequest, on_answer: OnAnswer) -> None:
        self.arrived.set()
        assert self._is_open.wait(20)
        self._log.send(request, on_answer)


class Silent:
    """A transport whose answer names no partition."""

    def send(self, request: SendRequest, on_answer: OnAnswer) -> None:
        on_answer({})
