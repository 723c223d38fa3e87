"""A loop over new records of a real broker, and its group beside Kafka's own tool and consumers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

import spark_kbatch
from spark_kbatch import Cluster, TopicPartition
from spark_kbatch.errors import GroupNotEmptyError, UnknownTopicOrPartitionError
from tests.support import draws, more_in_soak
from tests.support.clients.java import JavaTools
from tests.support.followed_topics import Followed
from tests.support.kafka import Broker, Kafka
from tests.support.waiting import until

pytestmark = pytest.mark.interop

SECONDS = 600


@pytest.fixture
def cluster(shared_broker: Broker) -> Iterator[Cluster]:
    with spark_kbatch.open(shared_broker.address) as cluster:
        yield cluster


def send(cluster: Cluster, topic: str, *values: str) -> None:
    with cluster.producer() as producer:
        for value in values:
            producer.send(topic, value, partition=0)


def values(batches: Any) -> list[str]:
    return [one for batch in batches for one in batch.column("value").to_pylist()]


def test_kafkas_tool_shows_the_group_and_members_bar_the_loop(
    cluster: Cluster, shared_broker: Broker, kafka: Kafka, tmp_path: Path
) -> None:
    topic = group = "followed"
    cluster.create_topic(topic)
    given: dict[str, Any] = {"group": group, "start": "earliest", "text": True, "timeout": 5}
    send(cluster, topic, "a", "b")
    assert values(cluster.follow(topic, **given)) == ["a", "b"]
    send(cluster, topic, "c")
    printed = JavaTools(shared_broker.address, kafka, tmp_path).run(
        "consumer.group.ConsumerGroupCommand", "--describe", "--group", group
    )
    assert re.search(rf"{topic}\s+0\s+2\s+3\s+1\s", printed), printed

    records = cluster.follow(topic, **given)
    assert values([next(records)]) == ["c"]
    consumer = Consumer(
        {"bootstrap.servers": shared_broker.address, "group.id": group, "session.timeout.ms": 6000}
    )
    consumer.subscribe([topic])
    until(lambda: consumer.poll(0.1) is None and consumer.assignment(), "it is a member")
    with pytest.raises(GroupNotEmptyError, match="has members: stop them first"):
        next(records)
    with pytest.raises(GroupNotEmptyError, match="has members: stop them first"):
        cluster.follow(topic, **given)
    consumer.close()
    assert cluster.follow(topic, **given).positions[TopicPartition(topic, 0)] in (2, 3)


def test_a_topic_that_is_recreated_is_not_read_on(cluster: Cluster) -> None:
    topic = "followed-again"
    cluster.create_topic(topic)
    send(cluster, topic, "a")
    given: dict[str, Any] = {"start": "earliest", "text": True, "timeout": 5}
    named, by_pattern = (cluster.follow(one, **given) for one in (topic, re.compile(f"^{topic}$")))
    assert values([next(named), next(by_pattern)]) == ["a", "a"]
    cluster.delete_topic(topic)
    until(lambda: topic not in cluster.topic_names(), "it is gone")
    cluster.create_topic(topic)
    send(cluster, topic, "b", "c", "d")
    with pytest.raises(UnknownTopicOrPartitionError, match="deleted and created again"):
        next(named)
    assert values(by_pattern) == ["b", "c", "d"]


@pytest.mark.more_in_soak
def test_a_group_has_each_record_once_and_again_only_after_a_kill(
    cluster: Cluster, shared_broker: Broker, tmp_path: Path
) -> None:
    seconds, rounds = (draws.at_least(SECONDS), 20) if more_in_soak.is_soak() else (1, 3)
    Followed(shared_broker.address, cluster, tmp_path).run(seconds, rounds=rounds)
