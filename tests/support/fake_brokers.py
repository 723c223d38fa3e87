"""Brokers of a cluster in memory, whose logs are those of an embedded one: a transport and its nodes.

Each broker takes requests in their order, over one connection, and appends what it leads. Connections break,
before or after a request is executed; leaders move, and the client learns of it some time after it was refused;
brokers are slow. A request that was given up may still be executed: its bytes are the broker's.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from spark_kbatch.errors import DisconnectedError, NotLeaderOrFollowerError
from spark_kbatch.model import AppendResult, TopicPartition
from spark_kbatch.store.transport import Answer, LeaderOf, SendRequest, Transport

OnAnswer = Callable[[Answer], None]


class _Broker:
    """One broker, and the client's connection to it."""

    def __init__(self) -> None:
        self.connection = 0  # a number that is new after each loss
        self.ready_s = 0.0  # when it may be connected to again
        self.busy_until_s = 0.0
        self.in_flight: dict[int, tuple[SendRequest, OnAnswer]] = {}


class FakeBrokers:
    """A transport of a producer to a few brokers."""

    why_unreachable: Exception | None = None

    def __init__(
        self,
        log: Transport,
        partitions: Sequence[TopicPartition],
        *,
        nodes: int = 3,
        seed: object = 0,
        faults: float = 0.0,
        delay_s: float = 0.002,
    ) -> None:
        """Divide the partitions among the brokers.

        Args:
            log: that all of them append to.
            partitions: of all topics.
            nodes: the number of brokers.
            seed: of all that is random.
            faults: the share of requests that meet one.
            delay_s: the longest time for one request.
        """
        self._log, self._random = log, random.Random(f"brokers {seed}")
        self._faults, self._delay_s = faults, delay_s
        self._brokers = {node: _Broker() for node in range(nodes)}
        self.leaders = {tp: index % nodes for index, tp in enumerate(partitions)}
        self._believed: dict[TopicPartition, int | None] = dict(self.leaders)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._wakes = threading.Event()
        self.silent: set[int] = set()  # brokers that answer nothing
        self.requests: list[tuple[int, SendRequest]] = []
        self.most_in_flight: Counter[int] = Counter()
        # How many of its requests the producer waits for; a connection breaks a moment after it gives one up.
        self.awaited: Callable[[int], int] = lambda node: len(self._brokers[node].in_flight)
        self.violations: list[str] = []
        self.is_closed = False

    # The producer's side.

    @property
    def leader_of(self) -> LeaderOf | None:
        return self._believed.get

    def take_refusal(self) -> Exception | None:
        return None

    def is_ready(self, node: Any) -> bool:
        return time.monotonic() >= self._brokers[node].ready_s

    def delay_ms(self, node: Any) -> int:
        left_s = self._brokers[node].ready_s - time.monotonic()
        return max(int(left_s * 1000), 1) if left_s > 0 else 0

    def wake_up(self) -> None:
        self._wakes.set()

    def close(self) -> None:
        self.is_closed = True

    def poll(self, timeout_ms: int) -> None:
        deadline_s = time.monotonic() + min(timeout_ms, 1000) / 1000
        next_s = self._events[0][0] if self._events else deadline_s
        self._wakes.wait(max(min(next_s, deadline_s) - time.monotonic(), 0))
        self._wakes.clear()
        while self._events and self._events[0][0] <= time.monotonic():
            heapq.heappop(self._events)[2]()

    def send(self, request: SendRequest, on_answer: OnAnswer) -> None:
        node: Any = request.node
        broker = self._brokers[node]
        if not self.is_ready(node):
            self.violations.append(f"{node} was not ready")
        wrong = [b for b in request.batches if self._believed[b.topic_partition] != node]
        if wrong or not request.batches:
            self.violations.append(f"{node} was sent {wrong}")
        number = next(self._numbers)
        broker.in_flight[number] = request, on_answer
        self.requests.append((node, request))
        self.most_in_flight[node] = max(self.most_in_flight[node], self.awaited(node))
        taken = request._replace(
            batches=[b._replace(data=memoryview(bytes(b.data))) for b in request.batches]
        )
        self._meet(node, number, taken)

    # The brokers' side.

    def move(self, topic_partition: TopicPartition, node: int) -> None:
        """Make another broker the leader; the client believes in the old one until it is refused."""
        self.leaders[topic_partition] = node

    def _meet(self, node: int, number: int, request: SendRequest) -> None:
        broker, rng = self._brokers[node], self._random
        connection = broker.connection
        timeout_s = request.timeout_ms / 1000
        self._at(time.monotonic() + timeout_s, lambda: self._expire(node, number))
        if node in self.silent:
            return
        fault = (
            rng.choice(["lost", "dropped", "slow", "move"]) if rng.random() < self._faults else ""
        )
        if fault == "move":
            self.move(
                rng.choice(request.batches).topic_partition, rng.randrange(len(self._brokers))
            )
        if fault == "dropped":
            self._at(broker.busy_until_s, lambda: self._lose(node, connection))
            return
        takes_s = rng.uniform(0, self._delay_s) + (timeout_s * rng.uniform(0, 2)) * (
            fault == "slow"
        )
        broker.busy_until_s = max(broker.busy_until_s, time.monotonic()) + takes_s

        def execute() -> None:
            answer = self._execute(node, request)
            if fault == "lost":
                self._lose(node, connection)
            elif number in broker.in_flight:
                self._learn(answer)
                broker.in_flight.pop(number)[1](answer)

        self._at(broker.busy_until_s, execute)

    def _execute(self, node: int, request: SendRequest) -> Answer:
        led = [b for b in request.batches if self.leaders[b.topic_partition] == node]
        answers: list[Answer] = [{}]
        if led:
            self._log.send(request._replace(batches=led), answers.append)
        refused = {b.topic_partition for b in request.batches} - {b.topic_partition for b in led}
        error = NotLeaderOrFollowerError(f"{node} does not lead it")
        return dict(answers[-1]) | dict.fromkeys(refused, AppendResult(error=error))

    def _learn(self, answer: Answer) -> None:
        """Let the client learn of new leaders; for a while it may know none."""
        for topic_partition, result in answer.items():
            if isinstance(result.error, NotLeaderOrFollowerError):
                if self._random.random() < 0.5:
                    self._believed[topic_partition] = None
                later_s = time.monotonic() + self._random.uniform(0, 0.01)
                self._at(later_s, lambda tp=topic_partition: self._believe(tp))  # type: ignore[misc]

    def _believe(self, topic_partition: TopicPartition) -> None:
        self._believed[topic_partition] = self.leaders[topic_partition]

    def _expire(self, node: int, number: int) -> None:
        if number in self._brokers[node].in_flight:
            self._lose(node, self._brokers[node].connection)

    def _lose(self, node: int, connection: int) -> None:
        """Break the connection, unless that has happened before."""
        broker = self._brokers[node]
        if broker.connection != connection:
            return
        broker.connection += 1
        broker.ready_s = time.monotonic() + self._random.uniform(0, 0.01)
        lost, broker.in_flight = broker.in_flight, {}
        for request, on_answer in lost.values():
            error = DisconnectedError(str(node), "it broke")
            on_answer({b.topic_partition: AppendResult(error=error) for b in request.batches})

    def _at(self, when_s: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when_s, next(self._numbers), do))
