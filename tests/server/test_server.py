"""A server starts, is found, and ends."""

from __future__ import annotations

from pathlib import Path

import kafka
import pytest
from kafka.admin import KafkaAdminClient

from spark_kbatch.errors import ServerRunningError
from tests.support import builders


def test_clients_see_the_cluster_and_its_topics(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"events": 3})

    with cluster.serve() as server:
        admin = KafkaAdminClient(bootstrap_servers=server.bootstrap_servers)
        (node,) = admin.describe_cluster()["brokers"]
        found = {topic["name"]: topic for topic in admin.describe_topics(["events"])}
        names = admin.list_topics()
        admin.close()

    assert f"{node['host']}:{node['port']}" == server.bootstrap_servers
    assert [one["leader_id"] for one in found["events"]["partitions"]] == [1, 1, 1]
    assert "events" in names


def test_a_topic_is_created_when_a_producer_asks_for_it(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics={})

    with cluster.serve(num_partitions=2) as server:
        producer = kafka.KafkaProducer(
            bootstrap_servers=server.bootstrap_servers, enable_idempotence=False
        )
        found = producer.partitions_for("new")
        producer.close()

    assert found == {0, 1}
    assert cluster.topic("new").partitions == 2


def test_a_second_server_is_refused_and_names_the_first(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)

    with cluster.serve() as server:
        with pytest.raises(ServerRunningError) as raised:
            builders.Cluster(cluster.path).serve()
        assert server.bootstrap_servers in str(raised.value)
    with cluster.serve():
        pass
