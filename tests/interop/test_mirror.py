"""Mirrors between a folder and a real broker, killed again and again: each record once, in order.

What is in the broker is read by librdkafka, with records of transactions that were committed.
"""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from confluent_kafka import OFFSET_BEGINNING, TIMESTAMP_NOT_AVAILABLE, KafkaError, Producer
from confluent_kafka import TopicPartition as Place

import spark_kbatch
from spark_kbatch.model import CODECS, TopicPartition
from tests.support import builders, draws, kafka_topics
from tests.support.kafka import Broker, Kafka
from tests.support.kafka_clients import consumer
from tests.support.killed_mirror import killed_runs
from tests.support.reference import Record, encode_messages
from tests.support.store import reader_of

pytestmark = [pytest.mark.interop, pytest.mark.slow]

PARTITIONS = 4
RECORDS = draws.at_least(700_000)  # more than the killed processes copy, which take ten steps each
BATCH_RECORDS = 500
KILLS = 30
TIMEOUT_S = 600
START_MS = 1_700_000_000_000


class Digest(NamedTuple):
    """What tells whether two logs hold the same records in the same order, whatever their offsets."""

    records_count: int
    digest: str


def digest(records: Iterable[Record]) -> Digest:
    found, count = hashlib.sha256(), 0
    for record in records:
        fields = [record.key, record.value]
        fields += [part for key, value in record.headers for part in (key.encode(), value)]
        found.update(struct.pack(">qi", record.timestamp, len(fields)))
        for field in fields:
            found.update(struct.pack(">i", -1 if field is None else len(field)) + (field or b""))
        count += 1
    return Digest(count, found.hexdigest())


def in_folder(path: Path, topic: str) -> list[Digest]:
    """Return what each partition of a topic in a folder holds; its offsets have no gaps."""

    def records(tp: TopicPartition) -> Iterator[Record]:
        for wanted in reader_of(topics).offset_ranges(topic, partitions=[tp.partition]):
            assert wanted.start == 0
            count = 0
            names = ["key", "value", "offset", "timestamp", "timestamp_type", "headers"]
            for arrow_batch in reader_of(topics).read_range(wanted, names):
                found = builders.as_read(arrow_batch)
                assert [r.offset for r in found] == list(range(count, count + len(found)))
                count += len(found)
                yield from found
            assert count == wanted.end

    with spark_kbatch.open(path) as topics:
        return [digest(records(tp)) for tp in topics.partitions(topic)]


def in_broker(broker: Broker, topic: str, partitions: int) -> list[Digest]:
    """Return what a consumer of committed records reads of each partition."""
    return [digest(_consumed(broker, topic, number)) for number in range(partitions)]


def _consumed(broker: Broker, topic: str, partition: int) -> Iterator[Record]:
    client = consumer(broker, isolation_level="read_committed")
    try:
        client.assign([Place(topic, partition, OFFSET_BEGINNING)])
        deadline, last = time.monotonic() + TIMEOUT_S, -1
        while True:
            assert time.monotonic() < deadline
            for message in client.consume(10_000, timeout=0.5):
                if message.error():
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    return
                assert message.offset() > last
                last = message.offset()
                kind, timestamp = message.timestamp()
                yield Record(
                    last,
                    -1 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
                    message.key(),
                    message.value(),
                    tuple(message.headers() or ()),
                )
    finally:
        client.close()


def rows(numbers: range, *, headers: bool) -> pa.RecordBatch:
    """Return numbered rows: nulls, empty values, headers, times that go back."""
    columns = {
        "key": [None if n % 7 == 0 else b"key %d" % (n % 1000) for n in numbers],
        "value": [
            None if n % 11 == 0 else b"" if n % 13 == 0 else b"value %d" % n * (n % 5)
            for n in numbers
        ],
        "timestamp": [START_MS + n ^ 5 for n in numbers],
        "headers": [
            [{"key": "n", "value": b"%d" % n}, {"key": "null", "value": None}]
            if headers and n % 3 == 0
            else None
            for n in numbers
        ],
    }
    return pa.RecordBatch.from_pydict(columns, schema=builders.ROWS_SCHEMA)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A broker's log dir: a sixth of the records with each codec, and a sixth in messages of V1."""
    each = RECORDS // PARTITIONS
    for partition in range(PARTITIONS):
        directory = tmp_path / "logs" / f"events-{partition}"
        directory.mkdir(parents=True)
        with (directory / f"{0:020d}.log").open("wb") as log:
            for number in range(0, each, BATCH_RECORDS):
                kind = number // BATCH_RECORDS % (len(CODECS) + 1)
                first = partition * each + number  # no two records are the same
                numbers = range(first, first + min(BATCH_RECORDS, each - number))
                if kind < len(CODECS):
                    codec = [*CODECS][kind]
                    of_batch = rows(numbers, headers=True)
                    log.write(builders.encode(of_batch, compression=codec, base_offset=number))
                else:
                    old = builders.to_records(rows(numbers, headers=False), number)
                    log.write(encode_messages(old, magic=1, codec=number % 3))
    return tmp_path / "logs"


def test_a_folder_reaches_a_broker_exactly_once_through_kills(
    kafka: Kafka, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = in_folder(folder, "events")
    assert sum(one.records_count for one in wanted) == RECORDS
    with Broker(kafka, tmp_path / "broker", log_retention_ms=-1) as broker:
        began = time.monotonic()
        steps = killed_runs(1, KILLS, folder, broker.address, "events", folder=tmp_path)
        took = time.monotonic() - began

        assert in_broker(broker, "events", PARTITIONS) == wanted
        with capsys.disabled():
            print(f"\n{RECORDS:,} records, {KILLS} kills, {steps} steps, {took:.0f} s")


def _in_transactions(broker: Broker) -> None:
    """Write records in four partitions: of transactions, every fourth aborted, and of none."""
    broker.create_topic("bulk", partitions=PARTITIONS, retention_ms=-1)
    options = {"bootstrap.servers": broker.address, "linger.ms": 20, "batch.size": 32_000}
    producers = [
        Producer({**options, "transactional.id": f"bulk-{codec}", "compression.type": codec})
        for codec in CODECS
    ]
    for producer in producers:
        producer.init_transactions(60)
    number, count = 0, 25_000
    while number < RECORDS:
        producer = producers[number // count % len(producers)]
        producer.begin_transaction()
        for n in range(number, number + count):
            producer.produce(
                "bulk", b"value %d" % n, None if n % 7 == 0 else b"key %d" % (n % 1000),
                n % PARTITIONS, timestamp=START_MS + n,
                headers=[("n", b"%d" % n)] if n % 3 == 0 else [],
            )  # fmt: skip
            if n % 1000 == 0:
                producer.poll(0)
        producer.flush(60)
        aborts = number // count % 4 == 3
        (producer.abort_transaction if aborts else producer.commit_transaction)(60)
        number += count


def test_a_broker_reaches_a_folder_exactly_once_through_kills(
    kafka: Kafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = kafka_topics.BROKER_SETTINGS
    with Broker(kafka, tmp_path / "broker", **settings, log_retention_ms=-1) as broker:
        counts = dict(kafka_topics.fill(kafka, broker))
        _in_transactions(broker)
        counts = {"bulk": PARTITIONS} | counts
        wanted = {topic: in_broker(broker, topic, count) for topic, count in counts.items()}
        topics, began = ",".join(counts), time.monotonic()
        steps = killed_runs(2, KILLS, broker.address, tmp_path / "target", topics, folder=tmp_path)
        took = time.monotonic() - began

    found = {topic: in_folder(tmp_path / "target", topic) for topic in counts}
    assert found == wanted
    records = sum(one.records_count for of in found.values() for one in of)
    assert records > RECORDS * 0.7
    with capsys.disabled():
        print(f"\n{records:,} records, {KILLS} kills, {steps} steps, {took:.0f} s")
