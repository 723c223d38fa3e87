"""Third-party admin clients: kafka-python's, and librdkafka's through confluent-kafka."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import confluent_kafka.admin as librdkafka
import kafka.admin as kafka_python
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from kafka import errors as kafka_errors
from kafka.structs import TopicPartition as KafkaPythonPartition

from spark_kbatch import Cluster
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.server.server import Server
from tests.support import builders

TIMEOUT_S = 10
NEWEST = 2  # the offset of the last of the records, which is the latest, too


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    cluster = builders.a_cluster(tmp_path, topics={"events": 1})
    builders.append_records(cluster, {("events", 0): builders.batch()})
    return cluster


def start_of(cluster: Cluster, topic: str) -> int:
    (info,) = cluster.describe([topic])
    return info.offsets.log_start_offset


def test_kafka_pythons_admin_client_does_all_it_can(cluster: Cluster, server: Server) -> None:
    admin = kafka_python.KafkaAdminClient(bootstrap_servers=server.bootstrap_servers)
    events = KafkaPythonPartition("events", 0)
    try:
        admin.create_topics(
            [kafka_python.NewTopic("new", 2, 1, topic_configs={"retention.ms": "1000"})]
        )
        with pytest.raises(kafka_errors.TopicAlreadyExistsError, match="already exists"):
            admin.create_topics([kafka_python.NewTopic("new", 2, 1)])
        with pytest.raises(kafka_errors.InvalidConfigurationError, match="compaction"):
            admin.create_topics(
                [kafka_python.NewTopic("kept", 1, 1, topic_configs={"cleanup.policy": "compact"})]
            )
        assert cluster.topic("new").config == TopicConfig(retention_ms=1000)

        admin.create_partitions({"new": kafka_python.NewPartitions(5)})
        assert cluster.topic("new").partitions == 5

        resource = kafka_python.ConfigResource("TOPIC", "new", configs={"segment.bytes": "2097152"})
        admin.alter_configs([resource])
        shown = admin.describe_configs([kafka_python.ConfigResource("TOPIC", "new")])
        assert cluster.topic("new").config.segment_bytes == 2 << 20
        found = {name: one["value"] for name, one in shown["topic"]["new"].items()}
        assert found == {"retention.ms": "1000", "segment.bytes": "2097152"}
        node = admin.describe_configs(
            [kafka_python.ConfigResource("BROKER", "1")], config_filter="all"
        )
        assert node["broker"]["1"]["num.partitions"]["value"] == "1"

        admin.delete_records({events: 2})
        assert start_of(cluster, "events") == 2

        admin.delete_topics(["new"])
        assert cluster.topic_names() == ["events"]

        held, size = {}, cluster.metrics()["Log"]["events-0"]["Size"]
        for one in admin.describe_log_dirs()[0]["log_dirs"]:
            held |= {topic["name"]: topic["partitions"] for topic in one["topics"]}
        assert [one["partition_size"] for one in held["events"]] == [size]
        found = admin.list_partition_offsets({events: kafka_python.OffsetSpec.MAX_TIMESTAMP})
        assert found[events].offset == NEWEST
    finally:
        admin.close()


def done(futures: dict[Any, Future[Any]]) -> dict[Any, Any]:
    return {key: future.result(TIMEOUT_S) for key, future in futures.items()}


def refused(futures: dict[Any, Future[Any]]) -> KafkaError:
    (future,) = futures.values()
    with pytest.raises(KafkaException) as raised:
        future.result(TIMEOUT_S)
    return raised.value.args[0]


def test_librdkafkas_admin_client_does_all_it_can(cluster: Cluster, server: Server) -> None:
    admin = librdkafka.AdminClient({"bootstrap.servers": server.bootstrap_servers, "log_level": 0})
    kind = librdkafka.ResourceType.TOPIC

    def change(key: str, value: str | None, operation: Any) -> librdkafka.ConfigResource:
        entry = librdkafka.ConfigEntry(key, value, incremental_operation=operation)
        return librdkafka.ConfigResource(kind, "new", incremental_configs=[entry])

    operations = librdkafka.AlterConfigOpType
    done(admin.create_topics([librdkafka.NewTopic("new", 2, config={"retention.ms": "1000"})]))
    error = refused(admin.create_topics([librdkafka.NewTopic("new", 2)]))
    assert (error.code(), "already exists" in error.str()) == (
        KafkaError.TOPIC_ALREADY_EXISTS,
        True,
    )
    error = refused(admin.create_topics([librdkafka.NewTopic("more", 1, replication_factor=3)]))
    assert error.code() == KafkaError.INVALID_REPLICATION_FACTOR
    done(admin.create_topics([librdkafka.NewTopic("tried", 1)], validate_only=True))
    assigned = librdkafka.NewTopic("assigned", 2, replica_assignment=[[1], [1]])
    done(admin.create_topics([assigned]))
    assert cluster.topic("new").config == TopicConfig(retention_ms=1000)
    assert cluster.topic_names() == ["assigned", "events", "new"]

    done(admin.create_partitions([librdkafka.NewPartitions("new", 5)]))
    error = refused(admin.create_partitions([librdkafka.NewPartitions("new", 4)]))
    assert (cluster.topic("new").partitions, error.code()) == (5, KafkaError.INVALID_PARTITIONS)

    done(admin.incremental_alter_configs([change("segment.bytes", "2097152", operations.SET)]))
    error = refused(admin.incremental_alter_configs([change("segment.ms", "5", operations.APPEND)]))
    assert error.code() == KafkaError.INVALID_CONFIG
    (shown,) = done(admin.describe_configs([librdkafka.ConfigResource(kind, "new")])).values()
    assert (shown["segment.bytes"].value, shown["segment.bytes"].is_default) == ("2097152", False)
    assert (shown["segment.ms"].value, shown["segment.ms"].is_default) == (str(2**63 - 1), True)
    done(admin.incremental_alter_configs([change("segment.bytes", None, operations.DELETE)]))
    assert cluster.topic("new").config == TopicConfig(retention_ms=1000)
    node = librdkafka.ConfigResource(librdkafka.ResourceType.BROKER, "1")
    (shown,) = done(admin.describe_configs([node])).values()
    assert (shown["num.partitions"].value, shown["num.partitions"].is_read_only) == ("1", True)

    found = done(admin.delete_records([TopicPartition("events", 0, 2)]))
    assert [one.low_watermark for one in found.values()] == [2]
    assert start_of(cluster, "events") == 2

    latest = librdkafka.OffsetSpec.max_timestamp()
    (found,) = done(admin.list_offsets({TopicPartition("events", 0): latest})).values()
    assert found.offset == NEWEST

    done(admin.delete_topics(["new", "assigned"]))
    assert refused(admin.delete_topics(["new"])).code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert cluster.topic_names() == ["events"]
