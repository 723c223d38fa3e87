"""Reads of a real broker, and of its log dir while it runs and later, equal what it serves other clients."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer

import spark_kbatch
from tests.support import builders, kafka_clients, kafka_topics, network_reads
from tests.support.kafka import Broker, Kafka
from tests.support.logs_for_kafka import odd_records
from tests.support.reference import Record
from tests.support.waiting import until

pytestmark = pytest.mark.interop

TOPICS = ("librdkafka", "java", "stamped", "trimmed", "transactional", "compacted")
ISOLATION_LEVELS = ("read_committed", "read_uncommitted")


class Written(NamedTuple):
    broker: Broker
    partitions: Mapping[str, int]  # by topic
    served: Mapping[tuple[str, str], dict[int, list[Record]]]  # by topic and isolation level
    found: Mapping[
        tuple[str, str], dict[int, dict[int, int]]
    ]  # the same keys; offsets by time, partition


@pytest.fixture(scope="module")
def written(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    folder = tmp_path_factory.mktemp("written")
    with Broker(kafka, folder, **kafka_topics.BROKER_SETTINGS) as broker:
        partitions = kafka_topics.fill(kafka, broker)
        served = {
            (topic, level): kafka_clients.read(broker, topic, range(count), isolation_level=level)
            for topic, count in partitions.items()
            for level in ISOLATION_LEVELS
        }
        found = {
            (topic, level): dict(
                zip(
                    times := times_of(served[topic, "read_uncommitted"]),
                    kafka_clients.offsets_by_time(
                        broker, topic, range(partitions[topic]), times, isolation_level=level
                    ),
                    strict=True,
                )
            )
            for topic, level in served
        }
        yield Written(broker, partitions, served, found)


def times_of(records: Mapping[int, list[Record]]) -> list[int]:
    """Return some of the records' times, and one after all of them."""
    times = sorted({record.timestamp for held in records.values() for record in held})
    return [0, *times[:: len(times) // 20 + 1], times[-1], times[-1] + 1]


@pytest.fixture(scope="module")
def stopped(written: Written) -> Written:
    written.broker.stop()
    return written


def ours(path: Path, topic: str, isolation_level: str, **options: str) -> dict[int, list[Record]]:
    """Read a topic with this package, by partition."""
    with spark_kbatch.open(str(path), **options) as logs:
        found: dict[int, list[Record]] = {tp.partition: [] for tp in logs.partitions(topic)}
        for batch in logs.read(topic, isolation_level=isolation_level):
            numbers = batch.column("partition").to_pylist()
            for partition, record in zip(numbers, builders.as_read(batch), strict=True):
                found[partition].append(record)
    return found


def test_the_topics_hold_every_kind_of_record(written: Written) -> None:
    committed, all_of = (
        {topic: written.served[topic, level] for topic in TOPICS} for level in ISOLATION_LEVELS
    )
    assert tuple(written.partitions) == TOPICS
    assert sum(map(len, all_of["java"].values())) == 2500
    for records in all_of["librdkafka"].values():
        assert len(records) == kafka_topics.RECORDS
    assert all_of["trimmed"][0][0].offset == 705
    for partition in range(2):
        aborted = 40 * 4 + 40 * 6
        left_open = 10 + 5 + 10
        found = len(all_of["transactional"][partition])
        assert found == len(committed["transactional"][partition]) + aborted + left_open
    offsets = [record.offset for record in all_of["compacted"][0]]
    assert len(offsets) < offsets[-1] / 3
    assert None in {record.value for record in all_of["compacted"][0]}
    assert len(list(written.broker.directory("librdkafka").glob("*.log"))) > 3


@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
@pytest.mark.parametrize("topic", TOPICS)
def test_a_running_brokers_log_dir_reads_as_it_is_served(
    written: Written, topic: str, isolation_level: str
) -> None:
    found = ours(written.broker.log_dir, topic, isolation_level)

    assert found == written.served[topic, isolation_level]


@pytest.mark.parametrize("fetch_bytes", [None, 2000], ids=["large fetches", "small fetches"])
@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
@pytest.mark.parametrize("topic", TOPICS)
def test_a_running_broker_is_read_over_the_network_as_another_client_reads_it(
    written: Written, topic: str, isolation_level: str, fetch_bytes: int | None
) -> None:
    options = {} if fetch_bytes is None else {"max_partition_fetch_bytes": str(fetch_bytes)}

    found = network_reads.read(
        written.broker.address, topic, isolation_level=isolation_level, **options
    )

    assert found == written.served[topic, isolation_level]


@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
@pytest.mark.parametrize("topic", TOPICS)
def test_offsets_by_time_over_the_network_are_those_that_another_client_finds(
    written: Written, topic: str, isolation_level: str
) -> None:
    expected = written.found[topic, isolation_level]

    found = network_reads.offsets_by_time(
        written.broker.address, topic, written.partitions[topic], expected,
        isolation_level=isolation_level,
    )  # fmt: skip

    assert dict(zip(expected, found, strict=True)) == expected


@pytest.mark.parametrize("topic", TOPICS)
def test_a_copy_made_while_the_broker_ran_reads_as_it_was_served(
    written: Written, tmp_path: Path, topic: str
) -> None:
    def copy(source: str, target: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # The broker replaces its checkpoints.
            shutil.copy2(source, target)

    shutil.copytree(written.broker.log_dir, tmp_path / "copy", copy_function=copy)

    found = ours(tmp_path / "copy", topic, "read_committed")

    assert found == written.served[topic, "read_committed"]


@pytest.mark.parametrize("foreign_end", ["log", "checkpoint"])
@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
@pytest.mark.parametrize("topic", TOPICS)
def test_a_stopped_brokers_log_dir_reads_as_it_was_served(
    stopped: Written, topic: str, isolation_level: str, foreign_end: str
) -> None:
    found = ours(stopped.broker.log_dir, topic, isolation_level, foreign_end=foreign_end)

    assert found == stopped.served[topic, isolation_level]


@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
@pytest.mark.parametrize("topic", TOPICS)
def test_offsets_by_time_are_those_that_the_broker_found(
    stopped: Written, topic: str, isolation_level: str
) -> None:
    logs = spark_kbatch.open(str(stopped.broker.log_dir))

    for time, expected in stopped.found[topic, isolation_level].items():
        wanted = dict.fromkeys(logs.partitions(topic), time)
        found = logs.list_offsets(wanted, isolation_level=isolation_level)
        assert {
            tp.partition: record.offset if record else -1 for tp, record in found.items()
        } == expected


@pytest.mark.parametrize(("topic", "kind"), [("librdkafka", 0), ("stamped", 1)])
def test_the_timestamp_type_is_known(stopped: Written, topic: str, kind: int) -> None:
    with spark_kbatch.open(str(stopped.broker.log_dir)) as logs:
        batches = logs.read(topic, columns=["timestampType"])
        found = {n for batch in batches for n in batch.column("timestampType").to_pylist()}

    assert found == {kind}


def test_reading_changes_nothing_in_the_log_dir(stopped: Written) -> None:
    def looks() -> dict[Path, tuple[int, int]]:
        return {
            path: (path.stat().st_size, path.stat().st_mtime_ns)
            for path in stopped.broker.log_dir.rglob("*")
        }

    before = looks()
    for topic in TOPICS:
        ours(stopped.broker.log_dir, topic, "read_committed")

    assert looks() == before


def test_logs_of_a_killed_broker_read_as_it_serves_them_after_a_restart(
    kafka: Kafka, tmp_path: Path
) -> None:
    broker = Broker(kafka, tmp_path).start()
    broker.create_topic("events", retention_ms=-1)
    producer = Producer(
        {"bootstrap.servers": broker.address, "linger.ms": 1, "batch.size": 2000, "log_level": 0}
    )
    for record in odd_records(20_000):
        producer.produce("events", record.value, record.key, 0, timestamp=record.timestamp)
    log = broker.directory("events") / f"{0:020d}.log"
    until(lambda: log.stat().st_size > 200_000)
    broker.kill()
    # It would send the rest to the next broker at this address.
    producer.purge()
    assert producer.flush(60) == 0
    del producer

    found = ours(tmp_path / "data", "events", "read_committed")

    with broker:
        assert kafka_clients.read(broker, "events", [0]) == found
