"""A consumer of committed records that is up all the time, in a thread of its own.

    with CommittedReader(servers, {"shipped": 3}) as reader:
        ...
        reader.found["shipped"]                     # so far
        reader.ensure("shipped", range(100))        # waits: each once, and no other

It belongs to no group, so that nothing but its own position says what it reads next.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from confluent_kafka import OFFSET_BEGINNING, TopicPartition

from tests.support.kafka_clients import Address, consumer, read
from tests.support.waiting import until

_TIMEOUT_S = 60


class CommittedReader:
    """The values of some topics, in the order in which they became visible."""

    def __init__(self, servers: str, topics: Mapping[str, int]) -> None:
        """Start to read.

        Args:
            servers: HOST:PORT,...
            topics: their partition counts.
        """
        self.found: dict[str, list[bytes]] = defaultdict(list)
        self._servers, self._topics = Address(servers), topics
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _read(self) -> None:
        client = consumer(self._servers, isolation_level="read_committed")
        try:
            client.assign(
                [
                    TopicPartition(topic, number, OFFSET_BEGINNING)
                    for topic, count in self._topics.items()
                    for number in range(count)
                ]
            )
            while not self._is_over.is_set():
                for message in client.consume(500, timeout=0.05):
                    if not message.error():
                        self.found[message.topic()].append(message.value())
        finally:
            client.close()

    def ensure(self, topic: str, wanted: Iterable[object]) -> None:
        """Wait until these values, as text, were read, each once; another reader then finds no other."""
        values = Counter(one if isinstance(one, bytes) else str(one).encode() for one in wanted)
        with contextlib.suppress(AssertionError):
            until(lambda: len(self.found[topic]) >= values.total(), timeout_s=_TIMEOUT_S)
        at_the_end = self._all(topic, "read_committed")
        for found in (Counter(self.found[topic]), at_the_end):
            missing, more = values - found, found - values
            assert not missing, f"rows of {topic} that were not read: {missing}"
            assert not more, f"rows of {topic} that were read once too often: {more}"

    def aborted(self, topic: str) -> int:
        """Return how many records of a topic were written and are not visible."""
        written = self._all(topic, "read_uncommitted")
        return written.total() - self._all(topic, "read_committed").total()

    def _all(self, topic: str, isolation: str) -> Counter[bytes]:
        partitions = range(self._topics[topic])
        found = read(self._servers, topic, partitions, isolation_level=isolation)
        return Counter(record.value or b"" for records in found.values() for record in records)
