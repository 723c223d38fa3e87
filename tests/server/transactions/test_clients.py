"""Transactional producers of Kafka's clients, unmodified: what is committed is there once, and nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import aiokafka
import confluent_kafka
import kafka
import pytest

from spark_kbatch import Cluster
from spark_kbatch.server.server import Server
from tests.support import builders
from tests.support.waiting import until

RECORDS, PARTITIONS = 400, 2
LONG_S = 60


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    topics = {"in": PARTITIONS, "out": PARTITIONS}
    with builders.a_cluster(tmp_path, topics=topics) as cluster:
        yield cluster


def values(cluster: Cluster, topic: str = "out") -> list[bytes]:
    found: list[bytes] = cluster.read(topic, columns=["value"]).read_all().column(0).to_pylist()
    return found


def of_librdkafka(address: str, name: str = "t") -> confluent_kafka.Producer:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": address, "transactional.id": name, "linger.ms": 1}
    )
    producer.init_transactions(LONG_S)
    return producer


def by_librdkafka(address: str) -> None:
    producer = of_librdkafka(address)
    for number in range(6):
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce("out", b"%d" % number, partition=partition)
        producer.flush(LONG_S)
        if number % 3 == 2:
            producer.abort_transaction(LONG_S)
        else:
            producer.commit_transaction(LONG_S)


def by_kafka_python(address: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=address, transactional_id="t")
    try:
        producer.init_transactions()
        for number in range(6):
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.send("out", b"%d" % number, partition=partition)
            producer.flush()
            if number % 3 == 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    finally:
        producer.close()


def by_aiokafka(address: str) -> None:
    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=address, transactional_id="t")
        await producer.start()
        try:
            for number in range(6):
                await producer.begin_transaction()
                for partition in range(PARTITIONS):
                    await producer.send_and_wait("out", b"%d" % number, partition=partition)
                if number % 3 == 2:
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()
        finally:
            await producer.stop()

    asyncio.run(run())


@pytest.mark.parametrize("write", [by_librdkafka, by_kafka_python, by_aiokafka])
def test_each_client_commits_and_aborts(cluster: Cluster, server: Server, write) -> None:  # type: ignore[no-untyped-def]
    write(server.bootstrap_servers)

    expected = Counter({b"%d" % number: PARTITIONS for number in (0, 1, 3, 4)})
    until(lambda: Counter(values(cluster)) == expected)
    uncommitted = cluster.read("out", isolation_level="read_uncommitted").read_all()
    assert uncommitted.num_rows == 6 * PARTITIONS


def test_a_second_producer_of_librdkafka_fences_the_first(cluster: Cluster, server: Server) -> None:
    first = of_librdkafka(server.bootstrap_servers)
    first.begin_transaction()
    first.produce("out", b"first")
    first.flush(LONG_S)
    second = of_librdkafka(server.bootstrap_servers)
    second.begin_transaction()
    second.produce("out", b"second")
    with pytest.raises(confluent_kafka.KafkaException) as fenced:
        first.commit_transaction(LONG_S)
    second.commit_transaction(LONG_S)

    assert fenced.value.args[0].code() == confluent_kafka.KafkaError._FENCED
    until(lambda: values(cluster) == [b"second"])


class Copying(threading.Thread):
    """A loop that reads `in` as a member of a group, and writes each record to `out`, in transactions with its offset."""

    def __init__(self, address: str, number: int) -> None:
        super().__init__()
        self._address, self._number = address, number
        self.is_over = threading.Event()
        self.start()

    def run(self) -> None:
        """Copy until it is over; a rebalance aborts a transaction, whose records are read again."""
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._address, "group.id": "copying", "enable.auto.commit": False,
                "auto.offset.reset": "earliest", "isolation.level": "read_committed",
                "session.timeout.ms": 6000, "heartbeat.interval.ms": 200,
            }
        )  # fmt: skip
        producer = of_librdkafka(self._address, f"copying-{self._number}")
        consumer.subscribe(["in"])
        while not self.is_over.is_set():
            messages = consumer.consume(20, 0.2)
            if not messages:
                continue
            producer.begin_transaction()
            try:
                for one in messages:
                    producer.produce("out", one.value(), partition=one.partition())
                producer.send_offsets_to_transaction(
                    consumer.position(consumer.assignment()),
                    consumer.consumer_group_metadata(),
                    LONG_S,
                )
                producer.commit_transaction(LONG_S)
            except confluent_kafka.KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                producer.abort_transaction(LONG_S)
                for one in consumer.committed(consumer.assignment(), LONG_S):
                    one.offset = max(one.offset, 0)
                    consumer.seek(one)
        consumer.close()


def test_a_loop_of_several_members_copies_each_record_once(
    cluster: Cluster, server: Server
) -> None:
    """Members come and go meanwhile."""
    source = confluent_kafka.Producer({"bootstrap.servers": server.bootstrap_servers})
    for number in range(RECORDS):
        source.produce("in", b"%d" % number, partition=number % PARTITIONS)
    source.flush(LONG_S)
    members = [Copying(server.bootstrap_servers, 0)]
    until(lambda: len(values(cluster)) >= RECORDS // 10, timeout_s=LONG_S)
    members.append(Copying(server.bootstrap_servers, 1))
    until(lambda: len(values(cluster)) >= RECORDS // 2, timeout_s=LONG_S)
    for number in range(RECORDS, 2 * RECORDS):
        source.produce("in", b"%d" % number, partition=number % PARTITIONS)
    source.flush(LONG_S)
    members[0].is_over.set()
    until(lambda: len(values(cluster)) >= 2 * RECORDS, timeout_s=LONG_S)
    for one in members:
        one.is_over.set()
        one.join()

    assert Counter(values(cluster)) == Counter(b"%d" % number for number in range(2 * RECORDS))
