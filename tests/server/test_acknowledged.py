"""What a client is told is stored is in the log: once and in order, whatever happens between client and log.

A schedule is drawn from a seed: a producer sends records, and meanwhile the partition's lock is held, Produce
requests are refused, delayed or dropped, connections break, and the server is killed and started again. An
idempotent producer's records are in the log at most once and in order, and all that are acknowledged are
there. A plain producer's may be there several times. `tests.support.draws` has how many are run, and how to repeat one.
"""

from __future__ import annotations

import abc
import json
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import confluent_kafka
import pytest

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.errors import KBatchError
from spark_kbatch.model import ReadRange, TopicPartition
from spark_kbatch.record.header import BatchHeader, walk
from tests.support import draws
from tests.support.faulty_server import FaultyServer
from tests.support.kafka import Kafka
from tests.support.kafka_fixtures import kafka
from tests.support.proxies import Proxies, Proxy
from tests.support.store import store_of

__all__ = ["kafka"]

RECORDS, PARTITIONS = 60, 2
DELIVERY_TIMEOUT_S = 20
AT_ONCE = 6  # schedules, each with a server of its own
RETRIABLE = (
    "REQUEST_TIMED_OUT", "NOT_ENOUGH_REPLICAS", "KAFKA_STORAGE_ERROR", "NOT_LEADER_OR_FOLLOWER",
    "CORRUPT_MESSAGE", "UNKNOWN_TOPIC_OR_PARTITION",
)  # fmt: skip
REFUSED_FOR_GOOD = ("MESSAGE_TOO_LARGE", "INVALID_RECORD", "UNKNOWN_SERVER_ERROR")


class Acknowledged(NamedTuple):
    """A record that the client was told is stored."""

    partition: int
    value: bytes
    offset: int | None  # which librdkafka does not know of all


class Sending(abc.ABC):
    """A producer that sends RECORDS records and notes what it is told."""

    is_idempotent: bool
    splits_batches = False  # that are too large for the broker, under new sequence numbers

    def __init__(self, address: str, topic: str, rng: random.Random) -> None:
        self.address, self.topic, self.rng = address, topic, rng
        self.request_timeout_ms = rng.choice([1000, 1000, 3000])
        self.acknowledged: list[Acknowledged] = []
        self.errors: list[object] = []

    @abc.abstractmethod
    def run(self) -> None:
        """Send all, slowly, and wait until each is delivered or has failed."""

    def each(self) -> Iterator[tuple[int, bytes]]:
        """Yield partitions and values, with pauses."""
        for number in range(RECORDS):
            yield number % PARTITIONS, b"%03d" % number
            time.sleep(self.rng.choice([0, 0, 0.02, 0.1]))


class Librdkafka(Sending):
    is_idempotent = True
    more: ClassVar[dict[str, object]] = {"enable.idempotence": True}

    def run(self) -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.address, "linger.ms": 0, "log_level": 0,
                "batch.num.messages": self.rng.choice([1, 3]), "reconnect.backoff.max.ms": 100,
                "request.timeout.ms": self.request_timeout_ms, "retry.backoff.ms": 20,
                "socket.timeout.ms": self.request_timeout_ms + self.rng.choice([300, 3000]),
                "delivery.timeout.ms": DELIVERY_TIMEOUT_S * 1000,
            } | self.more
        )  # fmt: skip
        for partition, value in self.each():
            producer.produce(self.topic, value, partition=partition, on_delivery=self._delivered)
            producer.poll(0)
        assert producer.flush(2 * DELIVERY_TIMEOUT_S) == 0

    def _delivered(self, error: Any, message: Any) -> None:
        if error:
            self.errors.append(error)
        else:
            found = message.partition(), message.value(), message.offset()
            self.acknowledged.append(Acknowledged(*found))


class PlainLibrdkafka(Librdkafka):
    is_idempotent = False
    more: ClassVar[dict[str, object]] = {"max.in.flight": 1}


class Ours(Sending):
    is_idempotent = True

    def run(self) -> None:
        config = {
            "linger.ms": 0, "batch.size": self.rng.choice([1, 300]), "retry.backoff.ms": 20,
            "request.timeout.ms": self.request_timeout_ms, "enable.idempotence": self.is_idempotent,
            "delivery.timeout.ms": DELIVERY_TIMEOUT_S * 1000,
            "max.in.flight.requests.per.connection": 5 if self.is_idempotent else 1,
        }  # fmt: skip
        with spark_kbatch.connect(self.address) as cluster, cluster.producer(**config) as producer:
            sent = [
                (one, producer.send(self.topic, one[1], partition=one[0])) for one in self.each()
            ]
            for (partition, value), future in sent:
                try:
                    offset = future.result(2 * DELIVERY_TIMEOUT_S).offset
                except KBatchError as error:
                    self.errors.append(error)
                    continue
                self.acknowledged.append(Acknowledged(partition, value, offset))


class PlainOurs(Ours):
    is_idempotent = False


class Java(Sending):
    """Kafka's producer in Java, by its own tool, which prints a line for each record."""

    is_idempotent = True
    splits_batches = True
    command: Callable[..., list[str]]

    def run(self) -> None:
        done = subprocess.run(self.command(self), capture_output=True, text=True, check=False)
        for line in done.stdout.splitlines():
            told = json.loads(line)
            if told["name"] == "producer_send_success":
                found = told["partition"], told["value"].encode(), told["offset"]
                self.acknowledged.append(Acknowledged(*found))
            elif told["name"] == "producer_send_error":
                self.errors.append(told["exception"])
        assert '"shutdown_complete"' in done.stdout, done.stdout + done.stderr


class PlainJava(Java):
    is_idempotent = False


class Site:
    """A cluster with a server and a proxy before it, for one schedule after the other."""

    def __init__(self, folder: Path, proxy: Proxy) -> None:
        self.proxy = proxy
        self.cluster = Cluster(str(folder / "cluster"), create=True)
        self.server = FaultyServer(self.cluster.path, folder / "log", "--advertise", proxy.address)
        self.proxy.target = self.server.address
        self.acknowledged = 0  # records, in all schedules

    def meanwhile(self, rng: random.Random, topic: str, over: threading.Event) -> list[str]:
        """Do what the seed says until the producer is done; return what was done."""
        done: list[str] = []
        while not over.wait(rng.uniform(0, 0.4)):
            if len(done) > 6:
                over.wait()
                break
            done.append(self._one(rng, topic))
        return done

    def _one(self, rng: random.Random, topic: str) -> str:
        times = rng.randint(1, 4)
        match rng.choice(
            ["lock", "lock", "lock", "fail", "fail", "refuse", "delay", "drop", "break", "kill"]
        ):
            case "lock":
                held_s = rng.choice([0.1, 0.5, 1.2, 2.5])
                partition = TopicPartition(topic, rng.randrange(PARTITIONS))
                with store_of(self.cluster).manager.locks.partitions([partition]):
                    time.sleep(held_s)
                return f"hold {partition} for {held_s} s"
            case "fail":
                code = rng.choice(RETRIABLE)
                self.server.next_requests(fail=code, times=times)
                return f"answer {times} with {code}"
            case "refuse":
                code = rng.choice(REFUSED_FOR_GOOD)
                self.server.next_requests(fail=code)
                return f"answer 1 with {code}"
            case "delay":
                delay_s = rng.choice([0.2, 0.7, 2.0])
                self.server.next_requests(delay=delay_s, times=times)
                return f"delay {times} by {delay_s} s"
            case "drop":
                self.server.next_requests(drop=True, times=times)
                return f"drop {times}"
            case "break":
                self.proxy.drop()
                return "break connections"
            case _:
                self.server.kill()
                time.sleep(rng.choice([0, 0.2]))
                self.server.start()
                return "kill"

    def run(self, kind: type[Sending], seed: int) -> None:
        """Run one schedule, and check what is in the log."""
        rng, topic = random.Random(f"{kind.__name__}-{seed}"), f"{kind.__name__}-{seed}"
        self.cluster.create_topic(topic, partitions=PARTITIONS)
        sending = kind(self.proxy.address, topic, random.Random(rng.random()))
        over, errors = threading.Event(), list[BaseException]()

        def send() -> None:
            try:
                sending.run()
            except BaseException as error:  # noqa: BLE001  raised below
                errors.append(error)
            finally:
                over.set()

        thread = threading.Thread(target=send)
        thread.start()
        done = self.meanwhile(rng, topic, over)
        thread.join()
        try:
            for error in errors:
                raise error
            self._check(sending, topic, done)
        except BaseException as error:
            error.add_note(
                f"{kind.__name__}: {draws.again(seed)}; "
                f"request.timeout.ms={sending.request_timeout_ms}: {'; '.join(done)}"
            )
            raise

    def _check(self, sending: Sending, topic: str, done: Sequence[str]) -> None:
        self.acknowledged += len(sending.acknowledged)
        table = self.cluster.read(topic, columns=["partition", "value"]).read_all()
        found = list(zip(*table.to_pydict().values(), strict=True))
        for partition in range(PARTITIONS):
            log = [value for number, value in found if number == partition]
            told = [one for one in sending.acknowledged if one.partition == partition]
            assert {one.value for one in told} <= {*log}, "acknowledged, and not in the log"
            for one in told:
                if one.offset is not None and one.offset >= 0:
                    assert log[one.offset] == one.value
            first = list(dict.fromkeys(log))
            # It takes for granted that what is too large was not stored before its answer was lost, and sends
            # the parts after what was in flight.
            was_split = sending.splits_batches and any("MESSAGE_TOO_LARGE" in one for one in done)
            if sending.is_idempotent and log != first and not was_split:
                # After a batch was refused for good Kafka's clients take a new epoch, and send again under it
                # what they had no answer for: no broker can tell that from new records.
                assert sending.errors, "a record is in the log twice"
                assert not isinstance(sending, Ours), "a record is in the log twice"
                epochs = self._epochs(TopicPartition(topic, partition))
                stored = list(zip(epochs, log, strict=True))
                assert len({*stored}) == len(stored), "a record is in the log twice in an epoch"
            # librdkafka's plain producer sends what follows before what it sends again, and Kafka's tool
            # sends several requests at a time. An attempt over a broken connection may be stored after all,
            # late, though its record was refused for good when it was sent again.
            if isinstance(sending, Ours) and not sending.is_idempotent:
                first = [value for value in first if value in {one.value for one in told}]
            if isinstance(sending, Ours) or (
                sending.is_idempotent and not was_split and self._begins_at_zero(partition, topic)
            ):
                assert first == sorted(first, key=int), "records are not in order"

    def _begins_at_zero(self, partition: int, topic: str) -> bool:
        """Return True if the first batch of each epoch has the sequence 0.

        As any broker does, the server takes each sequence as the first one of a producer that it does not know.
        So of batches in flight one may be stored whose predecessors were refused, and come later.
        """
        first: dict[int, int] = {}
        for header in self._headers(TopicPartition(topic, partition)):
            first.setdefault(header.producer_epoch, header.base_sequence)
        return not any(first.values())

    def _epochs(self, topic_partition: TopicPartition) -> list[int]:
        """Return the producer epoch of each record in a partition."""
        return [
            header.producer_epoch
            for header in self._headers(topic_partition)
            for _ in range(header.last_offset_delta + 1)
        ]

    def _headers(self, topic_partition: TopicPartition) -> list[BatchHeader]:
        log = store_of(self.cluster).manager.log(topic_partition)
        data = log.read(log.state(), ReadRange(0, 1 << 30)).data
        return [header for _, header in walk(data)]


def run_schedules(folder: Path, kinds: Sequence[type[Sending]], count: int) -> None:
    """Run `count` schedules, if no other number is asked for, of each kind of producer in turn."""
    drawn = draws.seeds(count)
    seeds = iter(drawn)
    mutex = threading.Lock()

    def work(site: Site) -> None:
        with site.cluster, site.server:
            while True:
                with mutex:
                    seed = next(seeds, None)
                if seed is None:
                    return
                site.run(kinds[seed % len(kinds)], seed)

    with Proxies() as proxies, ThreadPoolExecutor(AT_ONCE) as pool:
        sites = []
        for number in range(min(AT_ONCE, len(drawn))):
            (folder / str(number)).mkdir()
            sites.append(Site(folder / str(number), proxies.open()))
        for one in [*map(pool.submit, [work] * len(sites), sites)]:
            one.result()
    assert any(site.acknowledged for site in sites)


KINDS = [Librdkafka, Librdkafka, PlainLibrdkafka, Ours, Ours, PlainOurs]


def test_what_is_acknowledged_is_in_the_log_once_and_in_order(tmp_path: Path) -> None:
    run_schedules(tmp_path, KINDS, 6)


@pytest.mark.slow
def test_what_is_acknowledged_in_many_schedules_is_in_the_log(tmp_path: Path) -> None:
    run_schedules(tmp_path, KINDS, 72)


@pytest.mark.slow
@pytest.mark.interop
def test_what_kafkas_own_producer_is_told_is_in_the_log(tmp_path: Path, kafka: Kafka) -> None:
    def command(sending: Sending) -> list[str]:
        config = tmp_path / f"{sending.topic}.properties"
        settings = {
            "enable.idempotence": str(sending.is_idempotent).lower(), "linger.ms": 0,
            "retries": 2**31 - 1,
            "batch.size": sending.rng.choice([0, 200]), "retry.backoff.ms": 20,
            "request.timeout.ms": sending.request_timeout_ms, "reconnect.backoff.max.ms": 100,
            "delivery.timeout.ms": DELIVERY_TIMEOUT_S * 1000,
        }  # fmt: skip
        config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return kafka.command(
            "org.apache.kafka.tools.VerifiableProducer", "--bootstrap-server", sending.address,
            "--topic", sending.topic, "--max-messages", RECORDS, "--throughput", 30,
            "--acks", -1, "--producer.config", config, memory="64m",
        )  # fmt: skip

    kinds = [
        type(kind.__name__, (kind,), {"command": staticmethod(command)})
        for kind in (Java, Java, PlainJava)
    ]
    # Up to seven events in each: the rarest kinds come more than thirty times.
    run_schedules(tmp_path, kinds, 60)
