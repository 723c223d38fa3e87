"""A query's lag, by its progress and as a consumer group, beside what Kafka's own tool and Spark's connector tell."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import spark_kbatch
from spark_kbatch import TopicPartition
from tests.support.clients.java import JavaTools
from tests.support.kafka import Broker, Kafka
from tests.support.parity_sites import OnBroker, OnRealCluster
from tests.support.waiting import until

pytestmark = pytest.mark.interop

# Spark, a broker and the tool's JVM are slow together.
PATIENCE_S = 240


class Watched:
    """A query over a topic with two partitions on a broker, that commits to the group of the same name.

    The micro-batches whose numbers are in `held` wait until `release` is called.
    """

    def __init__(
        self, spark: SparkSession, broker: Broker, kafka: Kafka, folder: Path, topic: str
    ) -> None:
        self.spark, self.site, self.topic = spark, OnRealCluster(broker), topic
        self.tools, self.checkpoint = JavaTools(broker.address, kafka, folder), folder / "c"
        self.held: set[int] = set()
        self.waiting: int | None = None
        self._released = threading.Event()
        self.site.create_topic(topic, partitions=2)

    def send(self, **counts: int) -> None:
        self.site.send(self.topic, {int(p[1:]): ["v"] * count for p, count in counts.items()})

    def start(self, trigger: Mapping[str, Any], **options: int) -> StreamingQuery:
        def each(rows: DataFrame, number: int) -> None:
            assert rows.count() >= 0
            if number in self.held:
                self.waiting = number
                self._released.wait(PATIENCE_S)

        self._released.clear()
        frame = self.site.read_stream(
            self.spark, subscribe=self.topic, startingOffsets="earliest",
            commit__group__id=self.topic, **options,
        ).load()  # fmt: skip
        stream = frame.writeStream.foreachBatch(each).trigger(**trigger)
        return stream.option("checkpointLocation", str(self.checkpoint)).start()

    def await_held(self, number: int) -> None:
        """Wait until a micro-batch that is held has started; the one before it has been reported by then."""
        until(lambda: self.waiting == number, f"micro-batch {number}", timeout_s=PATIENCE_S)

    def release(self) -> None:
        self.held.clear()
        self._released.set()

    def tool_tells(self, **counts: int) -> bool:
        """Return True once the tool tells these lags: a commit that takes more than a second goes on."""
        wanted = self.lag(**counts)
        until(lambda: self._by_tool() == wanted, f"{wanted}", timeout_s=PATIENCE_S)
        return True

    def _by_tool(self) -> dict[TopicPartition, int]:
        printed = self.tools.run(
            "consumer.group.ConsumerGroupCommand", "--describe", "--group", self.topic
        )
        rows = re.findall(rf"{self.topic}\s+(\d+)\s+\d+\s+\d+\s+(\d+)", printed)
        return self.lag(**{f"p{partition}": int(behind) for partition, behind in rows})

    def lag(self, **counts: int) -> dict[TopicPartition, int]:
        return {TopicPartition(self.topic, int(p[1:])): n for p, n in counts.items()}


@pytest.fixture
def watched(
    spark: SparkSession, shared_broker: Broker, kafka: Kafka, tmp_path: Path, topic: str
) -> Iterator[Watched]:
    watched = Watched(spark, shared_broker, kafka, tmp_path, topic)
    yield watched
    watched.release()
    for query in spark.streams.active:
        query.stop()


def by_progress(query: StreamingQuery) -> Mapping[TopicPartition, int] | None:
    found = spark_kbatch.lag(query.lastProgress)
    return None if found is None else found.by_partition


def test_runs_to_what_is_available_end_where_the_tool_sees_the_group(watched: Watched) -> None:
    for sent, left in (({"p0": 7, "p1": 3}, [7, 4, 0]), ({"p1": 2}, [0])):
        watched.send(**sent)
        query = watched.start({"availableNow": True}, maxOffsetsPerTrigger=4)
        query.awaitTermination()
        told = [spark_kbatch.lag(one) for one in query.recentProgress if one["numInputRows"]]

        assert [one and sum(one.by_partition.values()) for one in told] == left
        assert by_progress(query) == watched.lag(p0=0, p1=0)
        assert watched.tool_tells(p0=0, p1=0)


def test_a_running_an_idle_and_a_restarted_query_are_behind_as_the_tool_says(
    watched: Watched,
) -> None:
    """The start of a micro-batch that is held is the end of the last one that is reported."""
    always, limits = (
        {"processingTime": "0 seconds"},
        {"minOffsetsPerTrigger": 3, "maxOffsetsPerTrigger": 4},
    )
    watched.send(p0=6, p1=2)
    watched.held = {1}
    query = watched.start(always, **limits)
    watched.await_held(1)
    assert by_progress(query) == watched.lag(p0=3, p1=1)
    assert watched.tool_tells(p0=3, p1=1)

    watched.release()
    caught_up, waits = watched.lag(p0=0, p1=0), watched.lag(p0=0, p1=2)
    until(lambda: by_progress(query) == caught_up, "it catches up", timeout_s=PATIENCE_S)
    watched.send(p1=2)  # fewer than a micro-batch needs
    until(lambda: by_progress(query) == waits, "it tells what waits", timeout_s=PATIENCE_S)
    assert watched.tool_tells(p0=0, p1=2)

    query.stop()
    watched.send(p0=5)
    assert watched.tool_tells(p0=5, p1=2)
    watched.held = {3}
    query = watched.start(always, **limits)
    watched.await_held(3)
    assert by_progress(query) == watched.lag(p0=3, p1=1)
    assert watched.tool_tells(p0=3, p1=1)


def test_sparks_own_connector_is_behind_as_its_metrics_say(
    spark: SparkSession, shared_broker: Broker, tmp_path: Path, topic: str
) -> None:
    site = OnBroker(shared_broker)
    site.create_topic(topic, partitions=2)
    site.send(topic, {0: ["v"] * 7, 1: ["v"] * 3})
    frame = site.read_stream(
        spark, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=4
    ).load()
    query = (
        frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    told = [one for one in query.recentProgress if one["numInputRows"]]

    assert len(told) == 3
    for progress in told:
        found, metrics = spark_kbatch.lag(progress), progress["sources"][0]["metrics"]
        assert len(metrics) == 3
        assert {name: float(number) for name, number in metrics.items()} == {
            name: getattr(found, name) for name in metrics
        }
