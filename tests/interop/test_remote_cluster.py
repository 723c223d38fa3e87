"""Plain Python and the command line against real brokers; Kafka's other clients say what is so."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

import spark_kbatch
from spark_kbatch.cli.main import cli
from spark_kbatch.errors import (
    ConfigError,
    OffsetOutOfRangeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import ConsumerGroup, TopicPartition
from spark_kbatch.remote.client import close_idle_clients
from tests.support.kafka import Broker
from tests.support.kafka_clients import read
from tests.support.kafka_cluster import BrokerCluster

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SOON_S = 60


@pytest.fixture(autouse=True)
def _empty_pool() -> Iterator[None]:
    yield
    close_idle_clients()


def settings_of(servers: str, topic: str) -> dict[str, str | None]:
    """Return the settings of a topic as librdkafka finds them."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": servers})
    found = admin.describe_configs([resource])
    return {name: one.value for name, one in found[resource].result(SOON_S).items()}


def test_topics_are_created_changed_emptied_and_deleted(shared_broker: Broker, topic: str) -> None:
    servers = shared_broker.address
    with spark_kbatch.connect(servers) as cluster:
        config = {"retention.ms": 86_400_000, "cleanup_policy": "compact,delete"}
        made = cluster.create_topic(topic, partitions=2, config=config)
        assert (made.partitions, made.replication_factor, len(made.topic_id)) == (2, 1, 22)
        assert dict(made.settings) == settings_of(servers, topic)
        assert made.settings["cleanup.policy"] == "compact,delete"
        assert cluster.create_topic(topic, exist_ok=True, config=config) == made
        with pytest.raises(TopicAlreadyExistsError, match=r"retention\.ms=86400000"):
            cluster.create_topic(topic, exist_ok=True, config={"retention.ms": 5})

        changed = cluster.alter_topic(
            topic, {"retention.ms": None, "cleanup.policy": "delete", "segment_bytes": 2**21}
        )
        assert dict(changed.settings) == settings_of(servers, topic)
        assert (changed.settings["cleanup.policy"], changed.settings["segment.bytes"]) == ("delete", str(2**21))  # fmt: skip
        with pytest.raises(ConfigError, match=r"retention\.ms"):
            cluster.alter_topic(topic, {"retention.ms": "soon"})
        with pytest.raises(ConfigError, match=r"nothing\.at\.all"):
            cluster.create_topic(f"{topic}-2", config={"nothing.at.all": 1})

        assert cluster.create_partitions(topic, 3).partitions == 3
        with cluster.producer() as producer:
            producer.send_arrow(
                topic, {"value": list("abcdef"), "partition": [0, 0, 1, 1, 2, 2]}
            ).result(SOON_S)
        with pytest.raises(OffsetOutOfRangeError, match="offsets 0 to 2"):
            cluster.delete_records({(topic, 0): 3, (topic, 1): 1})
        deleted = cluster.delete_records({(topic, 0): 1, (topic, 1): -1})
        assert deleted == {(topic, 0): 1, (topic, 1): 2}
        left = {p: [one.value for one in found] for p, found in read(shared_broker, topic, range(3)).items()}  # fmt: skip
        assert left == {0: [b"b"], 1: [], 2: [b"e", b"f"]}
        assert sorted(cluster.read(topic).read_all()["value"].to_pylist()) == [b"b", b"e", b"f"]
        assert [one.offsets.log_start_offset for one in cluster.describe(topic)] == [1, 2, 0]

        assert cluster.delete_topic(topic).topic_id == made.topic_id
        assert topic not in cluster.topic_names()
        with pytest.raises(UnknownTopicOrPartitionError):
            cluster.topic(topic)
        assert cluster.create_topic(topic).topic_id != made.topic_id
        with pytest.raises(ConfigError, match="INVALID_REPLICATION_FACTOR"):
            cluster.create_topic(f"{topic}-2", replication_factor=2)


def joined(servers: str, group: str, topic: str, **options: Any) -> Consumer:
    """Return a member of a group that has read a record, committed its offset, and stays."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest",
            "enable.auto.commit": False, "client.id": "member", **options,
        }
    )  # fmt: skip
    consumer.subscribe([topic])
    end = time.monotonic() + SOON_S
    while (message := consumer.poll(1)) is None or message.error():
        assert time.monotonic() < end, "no record came"
    consumer.commit(message, asynchronous=False)
    return consumer


def find(groups: list[ConsumerGroup], group_id: str) -> ConsumerGroup:
    (found,) = (one for one in groups if one.group_id == group_id)
    return found


def test_groups_of_both_protocols_are_found_on_all_brokers(
    brokers: BrokerCluster, topic: str
) -> None:
    """Names of many groups, so that each of three brokers coordinates some of them."""
    servers, tp = brokers.servers, TopicPartition(topic, 0)
    with spark_kbatch.connect(servers) as cluster:
        cluster.create_topic(topic, partitions=1, replication_factor=3)
        with cluster.producer() as producer:
            producer.send_arrow(topic, {"value": list("abc")}).result(SOON_S)
        idle = [f"{topic}-{n}" for n in range(6)]
        for name in idle:
            joined(servers, name, topic).close()
        classic = joined(servers, "classic-" + topic, topic)
        newer = joined(servers, "newer-" + topic, topic, **{"group.protocol": "consumer"})
        try:
            found = cluster.groups()
        finally:
            classic.close()
            newer.close()

    for name in idle:
        assert (find(found, name).state, find(found, name).lag) == ("Empty", 2)
    one = find(found, "classic-" + topic)
    assert (one.state, one.protocol_type, one.lag) == ("Stable", "consumer", 2)
    assert [(member.client_id, member.partitions) for member in one.members] == [("member", (tp,))]
    assert one.offsets[tp][:3] == (1, 3, 2)
    one = find(found, "newer-" + topic)
    assert (one.state, one.members, one.lag) == ("Stable", (), 2)


def test_the_command_line_shows_leaders_and_replicas(brokers: BrokerCluster, topic: str) -> None:
    brokers.create_topic(topic, partitions=3)
    leaders = brokers.leaders(topic)

    done = CliRunner().invoke(cli, ["topics", brokers.servers, topic, "--json"])
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)["partitions"]
    assert {one["partition"]: one["leader"] for one in shown} == leaders
    assert all(sorted(one["isr"]) == sorted(one["replicas"]) for one in shown)

    # Where no replica is left in sync, no broker can be asked; the others are listed at once.
    with spark_kbatch.connect(brokers.servers) as cluster:
        single = cluster.create_topic(f"{topic}-single", partitions=3, replication_factor=1)
        lost = single.leaders.index(3) if 3 in single.leaders else 0
        brokers.kill(single.leaders[lost])
        end = time.monotonic() + SOON_S
        while cluster.topic(single.name).leaders[lost] != -1:
            assert time.monotonic() < end, "the partition still has a leader"
            time.sleep(0.2)
        start = time.monotonic()
        done = CliRunner().invoke(cli, ["topics", brokers.servers, single.name, "--json"])
        took_s = time.monotonic() - start
    assert done.exit_code == 0, (done.output, done.exception)
    ends = {one["partition"]: one["high_watermark"] for one in json.loads(done.stdout)["partitions"]}  # fmt: skip
    assert ends[lost] is None
    assert sum(end == 0 for end in ends.values()) >= 1
    assert took_s < SOON_S / 2
