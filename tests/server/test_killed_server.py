"""A `kbatch serve` that is killed or stopped under load and started again loses and duplicates nothing.

Three kinds of idempotent producers, members of groups, a client that commits offsets, and Spark jobs run
all the time. Jobs do not need the server; some of them are never committed.

One kill by default, 10 with `make soak`; `tests.support.draws` has more, and how to repeat a run.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import gc
import itertools
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiokafka
import confluent_kafka
import kafka
import pytest

from spark_kbatch import Cluster
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import TopicConfig
from tests.support import builders, draws
from tests.support.clients.librdkafka import Librdkafka
from tests.support.killed_children import kills
from tests.support.reference import Record, encode_batch
from tests.support.served import Served
from tests.support.waiting import until

# kafka-python leaves the socket of a connection that is refused to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning")


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """Collect these sockets here, where the warning is ignored, and not in whatever test comes later."""
    yield
    gc.collect()


TOPIC, PARTITIONS = "events", 2
JOB_ROWS = 50
# A member keeps its membership while the server is down for this long.
SESSION_TIMEOUT_MS = 60_000
DELIVERY_TIMEOUT_S = 120
UNACKNOWLEDGED_MAX = 2000
RESTARTS = 3


class Load:
    """Threads that work until they are stopped; an error in one of them fails the test."""

    def __init__(self) -> None:
        self._is_over = threading.Event()
        self._errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def start(self, work: Callable[[int], object], pause_s: float) -> None:
        """Call `work(n)` for n = 0, 1, .. with a pause between."""

        def run() -> None:
            try:
                for n in itertools.count():
                    if self._is_over.wait(pause_s):
                        return
                    work(n)
            except BaseException as error:  # noqa: BLE001  the test raises it
                self._errors.append(error)

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(DELIVERY_TIMEOUT_S)
            assert not thread.is_alive()
        if error is None:
            self.check()

    def check(self) -> None:
        for error in self._errors:
            raise error


class IdempotentProducer(abc.ABC):
    """A producer that remembers what it sent, and the places that the server acknowledged."""

    def __init__(self) -> None:
        self.sent: set[bytes] = set()
        self.places: dict[bytes, tuple[int, int]] = {}  # partition and offset
        self.errors: list[Any] = []

    def send(self, number: int) -> None:
        """Send some records, unless many are not acknowledged yet."""
        if len(self.sent) - len(self.places) < UNACKNOWLEDGED_MAX:
            for n in range(20):
                value = f"{type(self).__name__}-{number}-{n}".encode()
                self.sent.add(value)
                self._send(value, n % PARTITIONS)

    @abc.abstractmethod
    def _send(self, value: bytes, partition: int) -> None: ...

    @abc.abstractmethod
    def finish(self) -> None:
        """Wait for all acknowledgements."""


class ByLibrdkafka(IdempotentProducer):
    def __init__(self, address: str) -> None:
        super().__init__()
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "linger.ms": 2,
                "delivery.timeout.ms": DELIVERY_TIMEOUT_S * 1000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )

    def send(self, number: int) -> None:
        super().send(number)
        self._producer.poll(0)

    def _send(self, value: bytes, partition: int) -> None:
        self._producer.produce(TOPIC, value, partition=partition, on_delivery=self._delivered)

    def _delivered(self, error: Any, message: Any) -> None:
        if error:
            self.errors.append(error)
        else:
            self.places[message.value()] = message.partition(), message.offset()

    def finish(self) -> None:
        assert self._producer.flush(DELIVERY_TIMEOUT_S) == 0


class ByAioKafka(IdempotentProducer):
    """aiokafka's producer, with its loop in a thread."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._producer = self._do(self._started(address))

    async def _started(self, address: str) -> Any:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=address, enable_idempotence=True, linger_ms=2, retry_backoff_ms=50
        )
        await producer.start()
        return producer

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DELIVERY_TIMEOUT_S)

    def _send(self, value: bytes, partition: int) -> None:
        self._do(self._sent(value, partition))

    async def _sent(self, value: bytes, partition: int) -> None:
        future = await self._producer.send(TOPIC, value, partition=partition)
        future.add_done_callback(lambda done: self._delivered(value, done))

    def _delivered(self, value: bytes, done: asyncio.Future[Any]) -> None:
        if error := done.exception():
            self.errors.append(error)
        else:
            self.places[value] = done.result().partition, done.result().offset

    def finish(self) -> None:
        self._do(self._producer.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DELIVERY_TIMEOUT_S)
        self._loop.close()


class ByKafkaPython(IdempotentProducer):
    def __init__(self, address: str) -> None:
        super().__init__()
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=address, enable_idempotence=True, acks="all", linger_ms=2,
            delivery_timeout_ms=DELIVERY_TIMEOUT_S * 1000, retry_backoff_ms=50,
            reconnect_backoff_max_ms=200,
        )  # fmt: skip

    def _send(self, value: bytes, partition: int) -> None:
        future = self._producer.send(TOPIC, value, partition=partition)
        future.add_callback(lambda done: self._delivered(value, done))
        future.add_errback(self.errors.append)

    def _delivered(self, value: bytes, done: Any) -> None:
        self.places[value] = done.partition, done.offset

    def finish(self) -> None:
        self._producer.flush(DELIVERY_TIMEOUT_S)
        self._producer.close()


class GroupReader:
    """kafka-python's consumer in a group of its own, which commits by itself.

    Its `commit` raises while the server is down.
    """

    def __init__(self, address: str) -> None:
        self._consumer = kafka.KafkaConsumer(
            TOPIC, bootstrap_servers=address, group_id="reader", auto_offset_reset="earliest",
            session_timeout_ms=SESSION_TIMEOUT_MS, auto_commit_interval_ms=100,
            reconnect_backoff_max_ms=200,
        )  # fmt: skip
        self.records: list[tuple[int, int, bytes]] = []

    def read(self, _: int = 0) -> int:
        """Read what there is; return how much that is by now."""
        # Without a server a look for its coordinator may fail, and is to be tried again.
        with contextlib.suppress(kafka.errors.KafkaConnectionError):
            for some in self._consumer.poll(timeout_ms=100).values():
                self.records += [(one.partition, one.offset, one.value) for one in some]
        return len(self.records)

    def finish(self) -> None:
        self._consumer.close()


class OffsetCommits:
    """Commits 1, 2, 3, .. for one partition of a group without members."""

    def __init__(self, address: str) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "offsets",
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self.attempted = self.acknowledged = 0

    def commit(self, number: int) -> None:
        self.attempted = number + 1
        place = confluent_kafka.TopicPartition(TOPIC, 0, self.attempted)
        with contextlib.suppress(confluent_kafka.KafkaException):
            self._consumer.commit(offsets=[place], asynchronous=False)
            self.acknowledged = self.attempted

    def check(self) -> None:
        """Check the commits against a server that was killed in between."""
        first = self.acknowledged
        place = confluent_kafka.TopicPartition(TOPIC, 0)
        (found,) = self._consumer.committed([place], timeout=60)
        assert found.error is None
        assert first <= max(found.offset, 0) <= self.attempted

    def finish(self) -> None:
        self._consumer.close()


class Jobs:
    """Spark jobs, each with rows for all partitions. Every third is never committed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.committed: list[int] = []

    def run(self, number: int) -> None:
        is_committed = number % 3 != 2
        label = b"job" if is_committed else b"uncommitted"
        batches = {
            (TOPIC, p): [
                encode_batch(
                    [
                        Record(row, 0, b"%d" % row, b"%s-%d-%d-%d" % (label, number, p, row))
                        for row in range(JOB_ROWS)
                    ]
                )
            ]
            for p in range(PARTITIONS)
        }
        transaction = f"{number:032x}"
        extents = builders.staged(self._cluster, batches, transaction=transaction)
        if is_committed:
            builders.commit(self._cluster, extents, transaction=transaction)
            self.committed.append(number)

    def rows_committed(self) -> set[bytes]:
        return {
            b"job-%d-%d-%d" % (number, p, row)
            for number in self.committed
            for p in range(PARTITIONS)
            for row in range(JOB_ROWS)
        }


def ensure_ending_the_server_loses_nothing(
    folder: Path, count: int, end: Callable[[Served], None]
) -> None:
    """Let clients and jobs work while the server ends and starts so often."""
    rng = random.Random(draws.FIRST)
    cluster = builders.a_cluster(
        folder, topics={TOPIC: PARTITIONS}, config=TopicConfig(retention_ms=-1)
    )
    jobs = Jobs(cluster)
    with (
        cluster,
        Served(cluster.path, folder / "server.log") as server,
        Librdkafka(server.address).member(
            "group", TOPIC, session_timeout_ms=SESSION_TIMEOUT_MS
        ) as member,
        contextlib.ExitStack() as readers,
    ):
        reader = GroupReader(server.address)
        readers.callback(reader.finish)
        with contextlib.ExitStack() as writers, Load() as load:
            producers: list[IdempotentProducer] = [
                kind(server.address) for kind in (ByLibrdkafka, ByAioKafka, ByKafkaPython)
            ]
            commits = OffsetCommits(server.address)
            for one in (*producers, commits):
                writers.callback(one.finish)
            for producer in producers:
                load.start(producer.send, 0.005)
            load.start(jobs.run, 0.1)
            load.start(commits.commit, 0.01)
            load.start(reader.read, 0)
            for _ in range(count):
                progress(load, lambda: len(member.records), "the group reads")
                progress(load, lambda: len(reader.records), "the other group reads")
                for producer in producers:
                    sent = producer.places
                    progress(load, lambda sent=sent: len(sent), "a producer sends")  # type: ignore[misc]
                time.sleep(rng.uniform(0, 0.3))
                end(server)
                time.sleep(rng.choice([0, rng.uniform(0, 0.3)]))
                server.start()
                commits.check()

        found = builders.contents(cluster)
        log = {p: found[TopicPartition(TOPIC, p)] for p in range(PARTITIONS)}
        total = sum(map(len, log.values()))
        until(lambda: len(member.records) >= total, "the group reads everything")
        assert member.rebalances == 1
        until(lambda: reader.read() >= total, "the other group reads everything")

    for producer in producers:
        assert producer.errors == []
        assert {*producer.places} == producer.sent
        for value, (partition, offset) in producer.places.items():
            assert log[partition][offset].value == value
    for logged in log.values():
        assert [record.offset for record in logged] == [*range(len(logged))]
    values = Counter(record.value for records in log.values() for record in records)
    assert values.most_common(1)[0][1] == 1
    assert {*values} == jobs.rows_committed().union(*(one.sent for one in producers))
    stored = {(p, record.offset, record.value) for p, records in log.items() for record in records}
    for records in (member.records, reader.records):
        consumed = Counter(records)
        assert consumed.most_common(1)[0][1] == 1
        assert {*consumed} == stored


def progress(load: Load, count: Callable[[], int], what: str) -> None:
    """Wait until a count has grown."""
    before = count()

    def has_grown() -> bool:
        load.check()
        return count() > before

    until(has_grown, what)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    for name in ("aiokafka", "kafka"):
        caplog.set_level(logging.CRITICAL, name)


def test_a_killed_server_loses_and_duplicates_nothing(tmp_path: Path) -> None:
    with kills(1) as count:
        ensure_ending_the_server_loses_nothing(tmp_path, count, Served.kill)


def test_a_server_that_is_stopped_and_started_loses_no_request_of_clients_that_retry(
    tmp_path: Path,
) -> None:
    ensure_ending_the_server_loses_nothing(tmp_path, RESTARTS, Served.stop)

    said = (tmp_path / "server.log").read_text()
    assert "goes on after its end" not in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_server_that_is_killed_often_loses_and_duplicates_nothing(tmp_path: Path) -> None:
    with kills(10) as count:
        ensure_ending_the_server_loses_nothing(tmp_path, count, Served.kill)
