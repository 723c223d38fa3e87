"""Calls of the public API as somebody writes them who checks types strictly; never run."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from pathlib import Path
from typing import assert_type

import spark_kbatch
from spark_kbatch import (
    ArrowFuture,
    Cluster,
    Commit,
    LogOffsets,
    OffsetAndTimestamp,
    PartitionInfo,
    Producer,
    RecordFuture,
    RecordMetadata,
    RemoteTopic,
    Topic,
    TopicAlreadyExistsError,
    TopicConfig,
    TopicPartition,
)


def opens(path: Path, create: bool) -> None:
    assert_type(spark_kbatch.open("x", create=True), Cluster)
    assert_type(spark_kbatch.open(path, create=True, log_dirs=[path, "b"]), Cluster)
    assert_type(spark_kbatch.open(path, create=True, log_dirs="a,b"), Cluster)
    assert_type(spark_kbatch.open(path), Cluster)
    assert_type(spark_kbatch.open(path, create=create), Cluster)
    assert_type(spark_kbatch.open(path, foreign_end="checkpoint"), Cluster)
    with spark_kbatch.open(path) as topics:
        assert_type(topics, Cluster)


def topics(cluster: Cluster) -> None:
    made = cluster.create_topic("t", partitions=2, config={"retention.ms": 5}, exist_ok=True)
    assert_type(made, Topic)
    cluster.create_topic("t", num_partitions=1, config=TopicConfig(retention_ms=5))
    try:
        cluster.create_topic("t", replication_factor=2)
    except TopicAlreadyExistsError as error:
        assert_type(error.topic, str)
    assert_type(cluster.topics(), list[Topic])
    assert_type(cluster.topic_names(), list[str])
    assert_type(cluster.partitions("t"), list[TopicPartition])
    (info,) = cluster.describe("t")
    assert_type(info, PartitionInfo)
    assert_type(info.offsets, LogOffsets)
    cluster.describe({"t", "u"})


def records(cluster: Cluster) -> None:
    """All of these are there for both."""
    for batch in cluster.read("t", partitions=range(2), start={0: 5, 1: "earliest"}, end="latest"):
        print(batch.num_rows)
    print(cluster.read("t", columns=("value",)).read_all())
    midnight = datetime.datetime(2024, 10, 25, tzinfo=datetime.UTC)
    cluster.read(
        ["t", "u"], start=midnight, end={TopicPartition("t", 0): 5, TopicPartition("u", 0): 7}
    )
    cluster.read(re.compile("^t"), start={("t", 0): midnight, ("t2", 0): 5}, text="replace")
    cluster.read({"t", "u"}, last=10, text=True)
    found = cluster.list_offsets({("t", 0): 1735689600000, ("t", 1): "latest"})
    assert_type(found, dict[TopicPartition, OffsetAndTimestamp | None])
    cluster.list_offsets(dict.fromkeys(cluster.partitions("t"), "earliest"))
    edges = {tp: found.offset for tp, found in found.items() if found is not None}
    cluster.delete_records(edges)
    cluster.delete_records({("t", 0): -1})
    cluster.repair([("t", 0), TopicPartition("t", 1)])
    cluster.export("t", to=Path("logs"))
    commits: Iterator[Commit] = cluster.history()
    print(next(commits).number)
    cluster.close()


def sends(cluster: Cluster) -> None:
    cluster.producer({"linger.ms": 5, "acks": "all"}, batch_size=16_384).close()
    options: dict[str, str] = {}
    cluster.producer(**options).close()
    with cluster.producer(acks="all", linger_ms=5) as producer:
        assert_type(producer, Producer)
        future = producer.send("t", key="k", value=b"v", headers={"h": b"x"}, callback=told)
        assert_type(future, RecordFuture)
        assert_type(future.result(5).offset, int)
        producer.send("t", headers=[("h", b"x"), ("g", None)], partition=1, timestamp=5)
        producer.send("t", timestamp=datetime.datetime.now(datetime.UTC))
        producer.send("t", timestamp_ms=5)  # type: ignore[arg-type]
        rows = producer.send_arrow("t", {"value": ["a"]})
        assert_type(rows, ArrowFuture)
        assert_type(rows.exception(timeout=1.5), Exception | None)
        producer.flush(5)


def connects(servers: list[str]) -> None:
    """The words of a real cluster are those of one in a folder."""
    spark_kbatch.connect(servers, {"security.protocol": "SSL"}, client_rack="a")
    with spark_kbatch.connect("host:9092", request_timeout_ms=5000) as cluster:
        assert_type(cluster, Cluster)
        topic = cluster.topic("t")
        assert_type(topic, Topic)
        if isinstance(topic, RemoteTopic):
            assert_type(topic.settings["retention.ms"], str | None)
        for batch in cluster.read("t", start={0: 5, 1: "earliest"}, columns=["value"]):
            print(batch.num_rows)
        found = cluster.list_offsets({("t", 0): "latest"})
        assert_type(found, dict[TopicPartition, OffsetAndTimestamp | None])
        assert_type(cluster.delete_records({("t", 0): -1}), dict[TopicPartition, int])
        assert_type([one.lag for one in cluster.groups()], list[int])
        with cluster.producer(acks="all", linger_ms=5) as producer:
            assert_type(producer, Producer)


def told(metadata: RecordMetadata | None, error: Exception | None) -> None:
    print(metadata.offset if metadata is not None else error)
