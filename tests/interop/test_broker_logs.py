"""The log dir of a real broker reads as the broker serves it: while it runs, and after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

import spark_kbatch
from tests import builders
from tests.interop import clients, topics
from tests.interop.kafka import Broker, Kafka
from tests.reference import Record

pytestmark = pytest.mark.interop

TOPICS = ("librdkafka", "java", "stamped", "trimmed", "transactional", "compacted")
ISOLATION_LEVELS = ("read_committed", "read_uncommitted")


class Written(NamedTuple):
    broker: Broker
    partitions: Mapping[str, int]  # by topic
    served: Mapping[tuple[str, str], dict[int, list[Record]]]  # by topic and isolation level


@pytest.fixture(scope="module")
def written(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    folder = tmp_path_factory.mktemp("written")
    with Broker(kafka, folder, **topics.BROKER_SETTINGS) as broker:
        partitions = topics.fill(kafka, broker)
        served = {
            (topic, level): clients.read(broker, topic, range(count), isolation_level=level)
            for topic, count in partitions.items()
            for level in ISOLATION_LEVELS
        }
        yield Written(broker, partitions, served)


@pytest.fixture(scope="module")
def stopped(written: Written) -> Written:
    written.broker.stop()
    return written


def ours(path: Path, written: Written, topic: str, isolation_level: str) -> dict[int, list[Record]]:
    """What we read of a topic, by partition."""
    found: dict[int, list[Record]] = {p: [] for p in range(written.partitions[topic])}
    with spark_kbatch.open(str(path)) as logs:
        for batch in logs.read(topic, isolation_level=isolation_level):
            numbers = batch.column("partition").to_pylist()
            for partition, record in zip(numbers, builders.as_read(batch), strict=True):
                found[partition].append(record)
    return found


def test_the_topics_hold_what_they_are_for(written: Written) -> None:
    committed, all_of = (
        {topic: written.served[topic, level] for topic in TOPICS} for level in ISOLATION_LEVELS
    )
    assert tuple(written.partitions) == TOPICS
    assert sum(map(len, all_of["java"].values())) == 2500
    for records in all_of["librdkafka"].values():
        assert len(records) == topics.RECORDS
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
    found = ours(written.broker.log_dir, written, topic, isolation_level)

    assert found == written.served[topic, isolation_level]


@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
@pytest.mark.parametrize("topic", TOPICS)
def test_a_stopped_brokers_log_dir_reads_as_it_was_served(
    stopped: Written, topic: str, isolation_level: str
) -> None:
    found = ours(stopped.broker.log_dir, stopped, topic, isolation_level)

    assert found == stopped.served[topic, isolation_level]
