"""Metrics of producers, clusters and servers, and the line that a commit logs."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest

import spark_kbatch
from spark_kbatch import TopicPartition, UnknownTopicOrPartitionError
from spark_kbatch.producer.metrics import ProducerMetrics
from spark_kbatch.store.commits import Author, Commit
from tests.support import builders

SOON = 20.0
KAFKAS = {  # names of the producer-metrics that there are
    "batch-size-avg", "batch-size-max", "batch-split-rate", "batch-split-total", "buffer-available-bytes",
    "buffer-total-bytes", "compression-rate-avg", "outgoing-byte-rate", "outgoing-byte-total",
    "record-error-rate", "record-error-total", "record-queue-time-avg", "record-queue-time-max",
    "record-retry-rate", "record-retry-total", "record-send-rate", "record-send-total", "record-size-avg",
    "records-per-request-avg", "request-latency-avg", "request-latency-max", "request-rate",
    "request-total", "requests-in-flight", "waiting-threads",
}  # fmt: skip


def test_a_producers_metrics_are_what_it_has_written(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"events": 2, "gone": 1})
    with cluster.producer(compression_type="zstd", flush=False, retries=0) as producer:
        before = producer.metrics()
        assert before.keys() == KAFKAS
        assert (before["record-send-total"], before["batch-size-avg"]) == (0, None)
        rows = {"value": ["the same text, again and again"] * 20_000}
        producer.send_arrow("events", rows).result(SOON)
        late = producer.send("gone", "a")
        assert late.exception(SOON) is None
        producer.flush()
        found = {name: value or 0.0 for name, value in producer.metrics().items()}
        size = sum(one.size_in_bytes for one in cluster.describe(["events", "gone"]))
        assert found["record-send-total"] == 20_001
        assert found["record-send-rate"] == pytest.approx(20_001 / 30)
        assert found["outgoing-byte-total"] == size
        assert found["compression-rate-avg"] < 0.1
        assert found["batch-size-avg"] <= found["batch-size-max"] <= size
        assert found["record-size-avg"] > 30
        assert found["requests-in-flight"] == found["record-error-total"] == 0
        assert found["buffer-available-bytes"] == found["buffer-total-bytes"] > 0
        cluster.delete_topic("gone")
        assert isinstance(producer.send("events", bytes(2 << 20)).exception(SOON), Exception)
        assert producer.metrics()["record-error-total"] == 0  # it was not sent
        shutil.rmtree(cluster.path / "broker-0" / "events-0")
        assert producer.send("events", "x", partition=0).exception(SOON) is not None
        assert producer.metrics()["record-error-total"] == 1
    assert json.loads(json.dumps(producer.metrics()))["record-send-total"] >= 20_001


def test_a_producers_rates_forget_what_is_a_minute_old() -> None:
    metrics = ProducerMetrics(0)
    metrics.failed(90, 0)
    assert metrics.as_dict(1000)["record-error-rate"] == 3.0
    metrics.failed(30, 45_000)
    assert metrics.as_dict(45_000)["record-error-rate"] == pytest.approx(120 / 45)
    assert metrics.as_dict(59_999)["record-error-rate"] == pytest.approx(120 / 59.999)
    assert metrics.as_dict(60_000)["record-error-rate"] == 1.0
    assert metrics.as_dict(200_000)["record-error-rate"] == 0.0
    assert metrics.as_dict(200_000)["record-error-total"] == 120
    metrics.answered(5, 200_000)
    metrics.answered(15, 231_000)
    found = metrics.as_dict(231_000)
    assert (found["request-latency-avg"], found["request-latency-max"]) == (10, 15)


def test_a_clusters_metrics_name_what_needs_attention(tmp_path: Path) -> None:
    disks = [tmp_path / name for name in "abc"]
    with spark_kbatch.open(tmp_path / "cluster", create=True, log_dirs=disks) as cluster:
        cluster.create_topic("safe", replication_factor=3, config={"min.insync.replicas": 3})
        cluster.create_topic("single", partitions=3)
        with cluster.producer(acks=1, flush=False) as producer:
            producer.send_arrow("single", {"value": ["a", "b"], "partition": [0, 0]}).result(SOON)
        rows = cluster.read("single", columns=["value"]).read_all().num_rows
        metrics = cluster.metrics()
        assert metrics["ReplicaManager"] | {"PartitionCount": 0} == {
            "PartitionCount": 0, "UnderReplicatedPartitions": 0, "UnderMinIsrPartitionCount": 0,
            "OfflineReplicaCount": 0,
        }  # fmt: skip
        size = cluster.describe(["single"])[0].size_in_bytes
        assert metrics["Log"]["single-0"] == {
            "LogStartOffset": 0, "LogEndOffset": 2, "NumLogSegments": 1, "Size": size,
        }  # fmt: skip
        topics = metrics["BrokerTopicMetrics"]
        assert topics["MessagesInPerSec"]["Count"] == rows == 2
        assert topics["BytesInPerSec"]["Count"] == topics["BytesOutPerSec"]["Count"] == size
        assert topics["TotalProduceRequestsPerSec"]["Count"] == 1
        assert topics["FailedProduceRequestsPerSec"]["Count"] == 0

        shutil.rmtree(disks[1])
        metrics = cluster.metrics()
        internal = (
            sum(len(cluster.partitions(name)) for name in cluster.topic_names(internal=True)) - 4
        )
        assert metrics["KafkaController"]["GlobalPartitionCount"] == 4 + internal
        assert metrics["KafkaController"]["OfflinePartitionsCount"] == 1  # single-1
        assert metrics["LogManager"]["OfflineLogDirectoryCount"] == 1
        assert metrics["ReplicaManager"]["UnderMinIsrPartitionCount"] == 2  # safe-0, single-1
        assert metrics["ReplicaManager"]["UnderReplicatedPartitions"] == 2 + internal
        assert metrics["Log"]["single-1"]["Size"] is None
        json.dumps(metrics)


def test_a_servers_metrics_count_requests_by_their_kind(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"events": 1})
    with cluster.serve() as server:
        with spark_kbatch.connect(server.bootstrap_servers) as remote:
            with remote.producer() as producer:
                producer.send_arrow("events", {"value": ["a", "b", "c"]}).result(SOON)
            assert remote.read("events").read_all().num_rows == 3
            with pytest.raises(UnknownTopicOrPartitionError):
                remote.read("nothing")
        metrics = server.metrics()
    assert metrics["BrokerTopicMetrics"]["MessagesInPerSec"]["Count"] == 3
    assert metrics["BrokerTopicMetrics"]["BytesOutPerSec"]["Count"] > 0
    assert metrics["RequestMetrics"].keys() >= {"Produce", "Fetch", "Metadata", "ListOffsets"}
    for of_kind in metrics["RequestMetrics"].values():
        times = of_kind["TotalTimeMs"]
        assert 0 <= times["Mean"] <= times["Max"] < 1000 * SOON
        assert times["Count"] <= of_kind["RequestsPerSec"]["Count"]
    assert metrics["RequestMetrics"]["Produce"]["RequestsPerSec"]["Count"] == 1
    assert metrics["socket-server-metrics"]["connection-creation-total"] >= 1
    assert server.metrics()["socket-server-metrics"]["connection-count"] == 0


def test_a_commit_logs_one_line_that_says_what_it_did(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"events": 2, "more": 9})
    with caplog.at_level(logging.INFO, logger="spark_kbatch"):
        for topic, count in (("events", 2), ("more", 9)):
            builders.write(cluster, {(topic, one): [builders.batch(n=3)] for one in range(count)})
    lines = [
        one.getMessage() for one in caplog.records if one.name == "spark_kbatch.commit.coordinator"
    ]
    assert len(lines) == 2
    size = len(builders.batch(n=3))
    assert (
        f": 6 records, {2 * size} bytes, offsets events-0 0 to 2, events-1 0 to 2, in 0."
        in lines[0]
    )
    assert "more-7 0 to 2, ... in all 9 partitions of 1 topic, in 0." in lines[1]


@pytest.mark.parametrize(
    ("sequence", "query_id", "words"),
    [
        (-1, "", "commit 4, job j: 7 records"),
        (3, "", "commit 4, transaction 3 of j: 7 records"),
        (3, "q", "commit 4, micro-batch 3 of query q: 7 records"),
    ],
    ids=["a job", "a numbered job", "a micro-batch"],
)
def test_a_commits_summary_says_whose_it_is(sequence: int, query_id: str, words: str) -> None:
    offsets = {TopicPartition("t", 0): (5, 12)}
    commit = Commit(4, 0, False, "j", sequence, Author(query_id=query_id), 7, 99, offsets, {})
    assert commit.summary() == f"{words}, 99 bytes, offsets t-0 5 to 11"
