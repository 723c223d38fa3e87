"""Exactly once into three brokers that replicate, while leaders move and brokers are killed at each step."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import pytest

import spark_kbatch
from spark_kbatch.model import TopicPartition
from spark_kbatch.producer.transactional import TransactionalProducer
from spark_kbatch.remote.client import close_idle_clients
from spark_kbatch.remote.transactions import Transactions
from tests.support.committed_reader import CommittedReader
from tests.support.held_streams import (
    SLOW_EVERY,
    STEPS,
    HeldStreams,
    fill,
    hold,
    last_committed,
    release,
    topic_of,
)
from tests.support.kafka_cluster import BrokerCluster
from tests.support.standalone import standalone
from tests.support.waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.slow]

PARTITIONS = 3
TRANSACTIONS, OFFSETS = "__transaction_state", "__consumer_offsets"
TIMEOUT_S = 300
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
}


@pytest.fixture(autouse=True)
def _empty_pool() -> Iterator[None]:
    yield
    close_idle_clients()


# Faults


class Held(Protocol):
    """A transaction that is held somewhere."""

    reader: CommittedReader
    topic: str

    def go_on(self) -> None:
        """Let it go on."""

    def wait(self) -> None:
        """Wait until it has ended, or failed."""


def leaders_moved(brokers: BrokerCluster, held: Held) -> None:
    brokers.move_leaders(held.topic, TRANSACTIONS, OFFSETS)
    held.go_on()
    held.wait()


def coordinator_killed(brokers: BrokerCluster, held: Held) -> None:
    _killed(brokers, brokers.leaders(TRANSACTIONS)[0], held)


def leader_killed(brokers: BrokerCluster, held: Held) -> None:
    """Kill the leader of a partition, which coordinates nothing."""
    for topic in (TRANSACTIONS, OFFSETS):
        brokers.lead(topic, {0: 1})
    _killed(brokers, max(brokers.leaders(held.topic).values()), held)


def coordinator_killed_that_has_not_answered(brokers: BrokerCluster, held: Held) -> None:
    """Kill it when the transaction is committed, and the answer to EndTxn is on its way."""
    node, before = brokers.leaders(TRANSACTIONS)[0], len(held.reader.found[held.topic])
    proxy = brokers.proxies[node]
    proxy.stall()
    held.go_on()
    until(lambda: len(held.reader.found[held.topic]) > before, timeout_s=TIMEOUT_S)
    brokers.kill(node)
    proxy.drop()
    proxy.go_on()
    held.wait()
    brokers.restart(node)


def _killed(brokers: BrokerCluster, node: int, held: Held) -> None:
    brokers.kill(node)
    held.go_on()
    held.wait()
    brokers.restart(node)


Fault = Callable[[BrokerCluster, Held], None]  # ends with all brokers up


# Streams


class Stream:
    """A query of ten rows at a time, held at one step after the other, and started again if it fails."""

    def __init__(
        self,
        folder: Path,
        brokers: BrokerCluster,
        reader: CommittedReader,
        name: str,
        steps: Iterable[str] = (),
        conf: Mapping[str, str] | None = None,
    ) -> None:
        """Start it; it is held at each of the steps, in a micro-batch of its own."""
        self.topic, self.reader, self.errors = topic_of(name), reader, list[str]()
        self._folder, self._servers, self._name, self._conf = folder, brokers.servers, name, conf
        self._steps, self._number = iter(steps), -1
        self._hold_later()
        self._streams = self._started()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._streams.__exit__(kind, error, trace)

    def _started(self) -> HeldStreams:
        return HeldStreams(self._folder, self._servers, self._name, conf=self._conf)

    def _start_again(self, error: str) -> None:
        assert error, "it has ended too early"
        self.errors.append(error)
        self._streams.__exit__(None, None, None)
        self._streams = self._started()

    def _hold_later(self) -> None:
        for step in itertools.islice(self._steps, 1):
            hold(self._folder, self._name, step, self._number + 1)

    @property
    def committed(self) -> int:
        return last_committed(self._folder / self._name)

    def wait_until_held(self) -> None:
        while not self._streams.holds(self._name):
            self._start_again(self._streams.ended(self._name))
        self._number = self.committed + 1

    def go_on(self) -> None:
        self._hold_later()
        release(self._folder, self._name)

    def wait(self) -> None:
        self.wait_until_committed(self._number)

    def wait_until_committed(self, number: int) -> None:
        """Wait until a micro-batch is committed, or the query has failed."""
        self._streams.waited_for(self._name, lambda: self.committed >= number)

    def finish(self) -> None:
        """Wait until it has written everything."""
        while error := self._streams.ended(self._name):
            self._start_again(error)


AT_EACH_STEP: list[tuple[str, Fault]] = [
    *((step, leaders_moved) for step in STEPS),
    ("taken-over", coordinator_killed),
    ("partly-sent", coordinator_killed),
    ("partly-sent", leader_killed),
    ("sent", coordinator_killed),
    ("offsets-added", coordinator_killed_that_has_not_answered),
]


def test_stream_writes_each_row_once_whatever_brokers_do_at_each_step(
    brokers: BrokerCluster, tmp_path: Path
) -> None:
    numbers, topic = range(10 * (len(AT_EACH_STEP) + 2)), topic_of("stepwise")
    prepare(tmp_path, brokers, "stepwise", numbers)
    steps = [step for step, _ in AT_EACH_STEP]
    with (
        CommittedReader(brokers.direct, {topic: PARTITIONS}) as reader,
        Stream(tmp_path, brokers, reader, "stepwise", steps) as stream,
    ):
        for _, fault in AT_EACH_STEP:
            stream.wait_until_held()
            fault(brokers, stream)
        stream.finish()
        reader.ensure(topic, numbers)


def test_speculative_attempts_write_each_row_once_while_brokers_fail(
    brokers: BrokerCluster, tmp_path: Path
) -> None:
    numbers, topic = range(400), topic_of("speculative")
    prepare(tmp_path, brokers, "speculative", numbers, slow=True)
    with (
        standalone(tmp_path, workers=2) as spark,
        CommittedReader(brokers.direct, {topic: PARTITIONS}) as reader,
        Stream(tmp_path, brokers, reader, "speculative", conf=spark.conf | SPECULATION) as stream,
    ):
        for number in range(0, 35, 5):
            stream.wait_until_committed(number)
            if number % 15 == 10:
                brokers.kill(brokers.leaders(TRANSACTIONS)[0])
                stream.wait_until_committed(number + 3)
                brokers.recover()
            brokers.move_leaders(topic, TRANSACTIONS, OFFSETS)
        stream.finish()
        reader.ensure(topic, numbers)

    both = {int(path.name.split("-")[0]) for path in tmp_path.glob("speculative.tried/*-both")}
    assert both >= {number for number in range(40) if number % SLOW_EVERY == 1}


def prepare(
    folder: Path, brokers: BrokerCluster, name: str, numbers: range, **options: object
) -> None:
    fill(folder, numbers)
    options = {"maxOffsetsPerTrigger": 10} | options
    (folder / f"{name}.json").write_text(json.dumps(options))
    brokers.create_topic(topic_of(name), partitions=PARTITIONS)


# Producers


class Transaction:
    """A transaction of a producer, which goes on in a thread of its own."""

    def __init__(
        self,
        producer: TransactionalProducer,
        reader: CommittedReader,
        topic: str,
        number: int,
        end: Callable[[], None],
    ) -> None:
        self.topic, self.reader = topic, reader
        self.values = [b"%d-%d" % (number, each) for each in range(60)]
        self._producer, self._number, self._end = producer, number, end
        self._steps = self._stepwise()
        self._executor = ThreadPoolExecutor(1)

    def _stepwise(self) -> Iterator[str]:
        def send(values: list[bytes]) -> None:
            for each, value in enumerate(values):
                self._producer.send(self.topic, value, partition=each % PARTITIONS)

        self._producer.begin_transaction()
        yield "begun"
        send(self.values[:30])
        yield "sent"
        self._producer.flush()
        yield "written"
        send(self.values[30:])
        self._producer.send_offsets_to_transaction({(self.topic, 0): self._number}, self.topic)
        yield "ending"
        self._end()

    def hold(self, step: str) -> None:
        """Go on until a step."""
        for one in self._steps:
            if one == step:
                return

    def go_on(self) -> None:
        self._rest = self._executor.submit(lambda: [*self._steps])

    def wait(self) -> None:
        self._rest.result(TIMEOUT_S)
        self._executor.shutdown()


IN_TRANSACTIONS: list[tuple[str, Fault]] = [
    *((step, leaders_moved) for step in ("begun", "sent", "written", "ending")),
    ("sent", coordinator_killed),
    ("written", leader_killed),
    ("ending", coordinator_killed),
]


def test_producer_writes_each_transaction_once_or_not_at_all_whatever_brokers_do(
    brokers: BrokerCluster, topic: str
) -> None:
    brokers.create_topic(topic, partitions=PARTITIONS)
    wanted, numbers = list[bytes](), itertools.count()
    with (
        CommittedReader(brokers.direct, {topic: PARTITIONS}) as reader,
        spark_kbatch.connect(brokers.servers) as place,
        place.producer(
            transactional_id=topic, linger_ms=0, transaction_timeout_ms=300_000
        ) as producer,
    ):
        for end, faults in (
            (producer.commit_transaction, IN_TRANSACTIONS),
            (producer.abort_transaction, IN_TRANSACTIONS[:5]),
        ):
            for step, fault in faults:
                transaction = Transaction(producer, reader, topic, next(numbers), end)
                transaction.hold(step)
                fault(brokers, transaction)
                if faults is IN_TRANSACTIONS:
                    wanted += transaction.values
        reader.ensure(topic, wanted)
        assert reader.aborted(topic) > 0
        offsets = next(group.offsets for group in place.groups() if group.group_id == topic)
    assert offsets[TopicPartition(topic, 0)].committed_offset == len(IN_TRANSACTIONS) - 1


def test_producer_asks_again_for_a_commit_whose_answer_died_with_the_coordinator(
    brokers: BrokerCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers.create_topic(topic, partitions=PARTITIONS)
    held, going = threading.Event(), threading.Event()
    end = Transactions.end

    def holding(self: Transactions, *, commit: bool, timeout_ms: int | None = None) -> None:
        held.set()
        assert going.wait(TIMEOUT_S)
        end(self, commit=commit, timeout_ms=timeout_ms)

    with (
        CommittedReader(brokers.direct, {topic: PARTITIONS}) as reader,
        spark_kbatch.connect(brokers.servers) as place,
        place.producer(transactional_id=topic) as producer,
    ):
        transaction = Transaction(producer, reader, topic, 0, producer.commit_transaction)
        transaction.hold("ending")
        with monkeypatch.context() as patch:
            patch.setattr(Transactions, "end", holding)
            transaction.go_on()
            assert held.wait(TIMEOUT_S)
            transaction.go_on = going.set
            coordinator_killed_that_has_not_answered(brokers, transaction)
        following = Transaction(producer, reader, topic, 1, producer.commit_transaction)
        following.go_on()
        following.wait()
        reader.ensure(topic, transaction.values + following.values)
