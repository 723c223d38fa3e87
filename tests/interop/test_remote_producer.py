"""Our producer and a real Kafka: what librdkafka reads back, whatever became of the producer's requests."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from spark_kbatch.errors import RecordTooLargeError
from spark_kbatch.model import CODECS
from spark_kbatch.options.producer import parse_producer_options
from spark_kbatch.options.remote import parse_cluster_options
from spark_kbatch.options.write import parse_write_options
from spark_kbatch.producer.producer import Producer
from spark_kbatch.remote.client import close_idle_clients
from spark_kbatch.remote.job import RemoteJob
from spark_kbatch.remote.producer import open_producer
from tests.support.kafka import Broker
from tests.support.kafka_clients import Address, read
from tests.support.kafka_cluster import BrokerCluster

pytestmark = [pytest.mark.interop, pytest.mark.slow]

PARTITIONS = 3


@pytest.fixture(autouse=True)
def _empty_pool() -> Iterator[None]:
    yield
    close_idle_clients()


def producer_to(servers: str, **options: Any) -> Producer:
    cluster = parse_cluster_options({"bootstrap_servers": servers}, alone=True)
    return open_producer(cluster, parse_producer_options(options), seed=1)


def create(broker: Broker, topic: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=config)])[topic].result(30)


def rows(count: int) -> pa.Table:
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.table(
        {
            "key": [None, b"", b"key"] * count,
            "value": [b"value %d" % n if n % 3 else None for n in range(3 * count)],
            "partition": pa.array([1] * 3 * count, pa.int32()),
            "headers": pa.array(
                [[], [{"key": "h", "value": None}], [{"key": "h", "value": b"1"}] * 2] * count,
                headers,
            ),
        }
    )


@pytest.mark.parametrize("codec", CODECS)
def test_rows_with_nulls_and_headers_are_read_back_in_order_and_once(
    shared_broker: Broker, topic: str, codec: str
) -> None:
    create(shared_broker, topic)
    table = rows(1000)
    with producer_to(shared_broker.address, compression_type=codec) as producer:
        offsets = producer.send_arrow(topic, table).result(60).column("offset").to_pylist()
        single = producer.send(topic, "v", "k", headers={"h": b"x"}, timestamp=5, partition=2)
        assert single.result(60).offset == 0
    found = read(shared_broker, topic, range(PARTITIONS))
    assert offsets == [one.offset for one in found[1]] == list(range(3000))
    assert [one.key for one in found[1]] == table.column("key").to_pylist()
    assert [one.value for one in found[1]] == table.column("value").to_pylist()
    assert [one.headers for one in found[1][:3]] == [(), (("h", None),), (("h", b"1"),) * 2]
    assert found[2][0][1:] == (5, b"k", b"v", (("h", b"x"),))


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_acks_delivers_everything(shared_broker: Broker, topic: str, acks: str) -> None:
    create(shared_broker, topic)
    values = [b"%05d" % n for n in range(5000)]
    with producer_to(shared_broker.address, acks=acks, batch_size=2000) as producer:
        for value in values:
            producer.send(topic, value, partition=0)
    deadline = time.monotonic() + 30
    while len(found := read(shared_broker, topic, [0])[0]) < len(values):
        assert time.monotonic() < deadline, "with acks 0 the broker may still be at it"
    # What is sent again without sequence numbers may come behind what was in flight.
    in_order = sorted if acks == "1" else list
    assert in_order(one.value for one in found) == values


def test_batches_that_the_broker_finds_too_large_are_split(
    shared_broker: Broker, topic: str
) -> None:
    create(shared_broker, topic, **{"max.message.bytes": "20000"})
    values = [random.Random(n).randbytes(1000) for n in range(300)]
    with producer_to(shared_broker.address, batch_size=100_000, linger_ms=1000) as producer:
        futures = [producer.send(topic, value, partition=0) for value in values]
        too_large = producer.send(topic, b"v" * 30_000, partition=1)
        producer.flush(60)
        assert [future.result(0).offset for future in futures] == list(range(300))
        assert isinstance(too_large.exception(0), RecordTooLargeError)
    assert [one.value for one in read(shared_broker, topic, [0])[0]] == values


def test_topic_is_created_by_a_job_that_names_its_partitions(
    shared_broker: Broker, topic: str
) -> None:
    given = {
        "kafka.bootstrap.servers": shared_broker.address,
        "topic": topic,
        "num.partitions": "3",
        "retention.ms": "86400000",
    }
    for number in range(3):
        job = RemoteJob.begin(parse_write_options(given))
        table = pa.table({"value": [b"%d" % number], "partition": pa.array([0], pa.int32())})
        job.commit_micro_batch([job.stage(table.to_batches())], number)
    found = read(shared_broker, topic, range(PARTITIONS))
    assert [one.value for one in found[0]] == [b"0", b"1", b"2"]


def trouble(brokers: BrokerCluster, topic: str, is_over: threading.Event) -> None:
    """Lose answers of requests that were executed, and move leaders, until it is over."""
    rng = random.Random(1)
    while not is_over.is_set():
        proxy = brokers.proxies[rng.choice([1, 2, 3])]
        proxy.stall()  # brokers go on executing, and no answer arrives
        time.sleep(rng.uniform(0.05, 0.3))
        proxy.drop()
        proxy.go_on()
        if rng.random() < 0.2:
            brokers.move_leaders(topic)
        time.sleep(rng.uniform(0.05, 0.3))


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_lost_answers_and_moved_leaders_lose_and_repeat_nothing(
    brokers: BrokerCluster, topic: str, codec: str
) -> None:
    brokers.create_topic(topic, partitions=PARTITIONS)
    sent: dict[int, list[bytes]] = {p: [] for p in range(PARTITIONS)}
    is_over = threading.Event()
    thread = threading.Thread(target=trouble, args=(brokers, topic, is_over))
    thread.start()
    try:
        with producer_to(brokers.servers, compression_type=codec, batch_size=2000) as producer:
            futures = []
            for n in range(30_000):
                value = b"%050d" % n
                sent[n % PARTITIONS].append(value)
                futures.append(producer.send(topic, value, partition=n % PARTITIONS))
                if n % 100 == 0:
                    time.sleep(0.05)
            producer.flush(120)
            assert {type(future.exception(0)) for future in futures} == {type(None)}
    finally:
        is_over.set()
        thread.join()
    found = read(Address(brokers.direct), topic, range(PARTITIONS))
    assert {p: [one.value for one in records] for p, records in found.items()} == sent
