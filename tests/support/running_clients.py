"""Clients that run beside a test in threads of their own, and remember what they sent and read."""

from __future__ import annotations

import abc
import threading
from collections.abc import Collection
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError

from tests.support.waiting import TIMEOUT_S

UNACKNOWLEDGED_MAX = 500
QUICK = {
    "retry.backoff.ms": 20, "retry.backoff.max.ms": 100, "reconnect.backoff.max.ms": 100,
    "topic.metadata.refresh.interval.ms": 100, "log_level": 0,
}  # fmt: skip
# A topic that is deleted or grows starts a rebalance of the groups that read it.
_IN_A_REBALANCE = {
    KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._NO_OFFSET,
}  # fmt: skip


class Running(abc.ABC):
    """A client that works until it is stopped."""

    def __init__(self) -> None:
        self._is_over = threading.Event()
        self.errors: list[Any] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._is_over.wait(0.002):
                self._work()
            self._finish()
        except BaseException as error:  # noqa: BLE001  `stop` looks at it
            self.errors.append(error)

    @abc.abstractmethod
    def _work(self) -> None: ...

    @abc.abstractmethod
    def _finish(self) -> None: ...

    def stop(self) -> None:
        """Let it finish; nothing may have failed."""
        self._is_over.set()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()
        assert not self.errors, self.errors


class Producing(Running):
    """An idempotent producer of the values 0, 1, .., with zeros before them if they are to be longer."""

    def __init__(
        self, address: str, topic: str, *, partitions: int | None = None, value_bytes: int = 1
    ) -> None:
        """Send to all of these partitions in turn, or let the client choose among those that it knows."""
        self._topic, self._partitions, self._value_bytes = topic, partitions, value_bytes
        self.places: dict[
            bytes, tuple[int, int]
        ] = {}  # partition and offset of what is acknowledged
        self.sent = 0
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 1} | QUICK
        )
        super().__init__()

    def _work(self) -> None:
        if self.sent - len(self.places) < UNACKNOWLEDGED_MAX:
            value = b"%0*d" % (self._value_bytes, self.sent)
            chosen = {} if self._partitions is None else {"partition": self.sent % self._partitions}
            self._producer.produce(self._topic, value, on_delivery=self._delivered, **chosen)
            self.sent += 1
        self._producer.poll(0)

    def _delivered(self, error: Any, message: Any) -> None:
        if error:
            self.errors.append(error)
        else:
            self.places[message.value()] = message.partition(), message.offset()

    def _finish(self) -> None:
        assert self._producer.flush(TIMEOUT_S) == 0
        assert len(self.places) == self.sent


class Consuming(Running):
    """A member of a group, which reads from the start and commits what it has read."""

    def __init__(
        self, address: str, topic: str, group: str = "g", *, tolerated: Collection[int] = ()
    ) -> None:
        """Join a group; a commit may also fail with the `tolerated` errors."""
        self._tolerated = _IN_A_REBALANCE.union(tolerated)
        self.records: list[tuple[int, int, bytes]] = []  # partition, offset, value
        self.committed = 0  # times
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest",
                "enable.auto.commit": False, "heartbeat.interval.ms": 200,
            } | QUICK
        )  # fmt: skip
        self._consumer.subscribe([topic])
        super().__init__()

    def _work(self) -> None:
        messages = self._consumer.consume(500, timeout=0.05)
        found = [
            (one.partition(), one.offset(), one.value()) for one in messages if not one.error()
        ]
        self.records += found
        if found:
            try:
                self._consumer.commit(asynchronous=False)
                self.committed += 1
            except confluent_kafka.KafkaException as error:
                # The next commit makes up for it.
                if not error.args[0].retriable() and error.args[0].code() not in self._tolerated:
                    raise

    def _finish(self) -> None:
        self._consumer.close()
