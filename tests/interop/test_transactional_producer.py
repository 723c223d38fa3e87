"""Our transactional producer and a real Kafka, read by librdkafka with committed records alone, up all the time."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import confluent_kafka as librdkafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import spark_kbatch
from spark_kbatch.errors import ProducerFencedError
from spark_kbatch.producer.transactional import TransactionalProducer
from spark_kbatch.remote.client import close_idle_clients
from tests.conftest import REPOSITORY
from tests.support.committed_reader import CommittedReader
from tests.support.kafka import Broker

pytestmark = [pytest.mark.interop, pytest.mark.slow]

PARTITIONS = 3
TRANSACTIONS = 60
# Writes a transaction, and waits within it until it is killed.
CHILD = """
import sys, time
import spark_kbatch
address, topic = sys.argv[1:]
producer = spark_kbatch.connect(address).producer(transactional_id=topic)
producer.begin_transaction()
producer.send(topic, "of the dead", partition=0).result(60)
producer.send_offsets_to_transaction({(topic, 0): 99}, topic)
print("written", flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _empty_pool() -> Iterator[None]:
    yield
    close_idle_clients()


@pytest.fixture
def place(shared_broker: Broker, topic: str) -> Iterator[spark_kbatch.Cluster]:
    admin = AdminClient({"bootstrap.servers": shared_broker.address})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    with spark_kbatch.connect(shared_broker.address) as place:
        yield place


def reader(broker: Broker, topic: str) -> CommittedReader:
    return CommittedReader(broker.address, {topic: PARTITIONS})


def offset_of_group(broker: Broker, topic: str) -> int:
    admin = AdminClient({"bootstrap.servers": broker.address})
    wanted = [librdkafka.ConsumerGroupTopicPartitions(topic, [librdkafka.TopicPartition(topic, 0)])]
    answer = admin.list_consumer_group_offsets(wanted)[topic].result(30)
    return int(answer.topic_partitions[0].offset)


def test_each_record_of_a_committed_transaction_is_read_once_and_no_other(
    shared_broker: Broker, place: spark_kbatch.Cluster, topic: str
) -> None:
    rng, wanted, last = random.Random(1), list[bytes](), -1001
    with (
        reader(shared_broker, topic) as seen,
        place.producer(transactional_id=topic, compression_type="lz4", batch_size=500) as producer,
    ):
        for number in range(TRANSACTIONS):
            values = [b"%d-%d" % (number, each) for each in range(rng.randrange(200))]
            producer.begin_transaction()
            for value in values:
                producer.send(topic, value, key=value)
            producer.send_offsets_to_transaction({(topic, 0): number}, topic)
            if rng.random() < 0.3:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
                wanted += values
                last = number
            known = producer.committed_offsets(topic)
            assert known.get(spark_kbatch.TopicPartition(topic, 0), -1001) == last
        seen.ensure(topic, wanted)

    assert offset_of_group(shared_broker, topic) == last


def test_what_a_killed_process_wrote_is_never_read(
    shared_broker: Broker, place: spark_kbatch.Cluster, topic: str
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, shared_broker.address, topic],
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        text=True,
    )
    with child, reader(shared_broker, topic) as seen:
        assert child.stdout is not None
        assert child.stdout.readline() == "written\n"
        os.kill(child.pid, signal.SIGKILL)
        with place.producer(transactional_id=topic) as producer, producer.transaction():
            producer.send(topic, "of the living", partition=0)
        seen.ensure(topic, ["of the living"])

    assert offset_of_group(shared_broker, topic) < 0


def test_librdkafka_and_this_producer_fence_each_other(
    shared_broker: Broker, place: spark_kbatch.Cluster, topic: str
) -> None:
    other = librdkafka.Producer(
        {"bootstrap.servers": shared_broker.address, "transactional.id": topic}
    )
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(topic, b"1", partition=0)
    with reader(shared_broker, topic) as seen:
        with place.producer(transactional_id=topic) as producer, producer.transaction():
            producer.send(topic, "2", partition=0)
        with pytest.raises(librdkafka.KafkaException):
            other.commit_transaction(30)

        ours = place.producer(transactional_id=topic)
        ours.begin_transaction()
        ours.send(topic, "3", partition=0).result(30)
        newer = librdkafka.Producer(
            {"bootstrap.servers": shared_broker.address, "transactional.id": topic}
        )
        newer.init_transactions(30)
        newer.begin_transaction()
        newer.produce(topic, b"4", partition=0)
        newer.commit_transaction(30)
        with pytest.raises(ProducerFencedError, match="another one of its name has taken over"):
            ours.commit_transaction()
        ours.close()
        seen.ensure(topic, [2, 4])


def test_a_transaction_that_takes_too_long_is_aborted_and_says_so(
    shared_broker: Broker, place: spark_kbatch.Cluster, topic: str
) -> None:
    producer = place.producer(transactional_id=topic, transaction_timeout_ms=1000)
    assert isinstance(producer, TransactionalProducer)
    producer.begin_transaction()
    producer.send(topic, "late", partition=0).result(30)
    time.sleep(15)  # a broker looks for such transactions every 10 s
    with pytest.raises(ProducerFencedError, match=r"longer than transaction\.timeout\.ms=1000"):
        producer.commit_transaction()
    producer.close()
    with reader(shared_broker, topic) as seen:
        with place.producer(transactional_id=topic) as next_one, next_one.transaction():
            next_one.send(topic, "next", partition=0)
        seen.ensure(topic, ["next"])
