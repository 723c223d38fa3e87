"""Clients that nobody here wrote put records in and take them out again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka
import kafka
import pytest

from spark_kbatch.server.server import Server
from tests.support import builders

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
TOPIC = "events"


class Record(NamedTuple):
    """A record as a client has it."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


RECORDS = [
    Record(b"key", b"value"),
    Record(None, b"no key"),
    Record(b"tombstone", None),
    Record(b"", b""),
    Record(b"headers", b"value", (("h", b"1"), ("h", b"2"), ("empty", b""))),
    Record(b"large", b"x" * 100_000),
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with builders.a_cluster(tmp_path, topics={TOPIC: 1}) as cluster, cluster.serve() as server:
        yield server


def produced_by_kafka_python(server: Server, codec: str) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=server.bootstrap_servers,
        compression_type=None if codec == "none" else codec,
    )
    for record in RECORDS:
        producer.send(TOPIC, record.value, record.key, [*record.headers], partition=0)
    producer.flush(10)
    producer.close()


def produced_by_aiokafka(server: Server, codec: str) -> None:
    async def produce() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=server.bootstrap_servers,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=True,
        )
        await producer.start()
        for record in RECORDS:
            await producer.send(
                TOPIC, record.value, record.key, partition=0, headers=[*record.headers]
            )
        await producer.stop()

    asyncio.run(produce())


def produced_by_librdkafka(server: Server, codec: str) -> None:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": server.bootstrap_servers,
            "compression.type": codec,
            "enable.idempotence": True,
        }
    )
    failures: list[Any] = []
    for record in RECORDS:
        producer.produce(
            TOPIC,
            record.value,
            record.key,
            partition=0,
            headers=[*record.headers],
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(10) == 0
    assert failures == []


def consumed_by_kafka_python(server: Server) -> list[Record]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=server.bootstrap_servers, auto_offset_reset="earliest"
    )
    consumer.assign([kafka.TopicPartition(TOPIC, 0)])
    found: list[Record] = []
    while len(found) < len(RECORDS):
        for messages in consumer.poll(500).values():
            found += [Record(m.key, m.value, tuple(map(tuple, m.headers))) for m in messages]
    consumer.close()
    return found


def consumed_by_aiokafka(server: Server) -> list[Record]:
    async def consume() -> list[Record]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=server.bootstrap_servers, isolation_level="read_committed"
        )
        await consumer.start()
        consumer.assign([aiokafka.TopicPartition(TOPIC, 0)])
        await consumer.seek_to_beginning()
        found = [await consumer.getone() for _ in RECORDS]
        await consumer.stop()
        return [Record(one.key, one.value, tuple(one.headers)) for one in found]

    return asyncio.run(consume())


def consumed_by_librdkafka(server: Server) -> list[Record]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": server.bootstrap_servers, "group.id": "unused"}
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    found = consumer.consume(len(RECORDS), 10)
    consumer.close()
    return [Record(one.key(), one.value(), tuple(one.headers() or ())) for one in found]


PRODUCERS = [
    pytest.param(produced_by_kafka_python, id="kafka-python"),
    pytest.param(produced_by_aiokafka, id="aiokafka"),
    pytest.param(produced_by_librdkafka, id="librdkafka"),
]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("produce", PRODUCERS)
def test_what_one_client_produces_all_consume(server: Server, produce: Any, codec: str) -> None:
    produce(server, codec)

    assert consumed_by_kafka_python(server) == RECORDS
    assert consumed_by_aiokafka(server) == RECORDS
    assert consumed_by_librdkafka(server) == RECORDS
