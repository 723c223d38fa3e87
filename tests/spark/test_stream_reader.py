"""Streaming queries read topics as they do Kafka's: what Spark itself has to show, on few queries.

The rules of planning are in tests/test_stream_planner.py, with what does not apply.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery

import spark_kbatch
from spark_kbatch import Cluster

pytestmark = pytest.mark.spark

# Whether Spark tells a source where the query is, and what it may take.
TELLS_WHERE_IT_IS = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2)


class Reading:
    """A query over topics of one cluster, whose micro-batches are collected."""

    def __init__(self, spark: SparkSession, tmp_path: Path, **topics: int) -> None:
        self.spark, self.path = spark, tmp_path / "cluster"
        self.checkpoint = tmp_path / "checkpoint"
        self.cluster: Cluster = spark_kbatch.open(str(self.path), create=True)
        for name, partitions in topics.items():
            self.cluster.create_topic(name, partitions=partitions)
        self.batches: list[list[Row]] = []
        self.tasks: list[int] = []

    def send(self, topic: str, *values: str | None, partition: int = 0, **record: Any) -> None:
        with self.cluster.producer() as producer:
            for value in values:
                producer.send(topic, value=value, partition=partition, **record)

    def load(self, **options: Any) -> DataFrame:
        defaults = {"subscribe": "t", "startingOffsets": "earliest"}
        given = {key: one for key, one in (defaults | options).items() if one is not None}
        return self.spark.readStream.format("kbatch").options(**given).load(str(self.path))

    def start(self, frame: DataFrame, **trigger: Any) -> StreamingQuery:
        def collect(rows: DataFrame, _: int) -> None:
            self.tasks.append(rows.rdd.getNumPartitions())
            self.batches.append(rows.collect())

        return (
            frame.writeStream.foreachBatch(collect)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(**(trigger or {"availableNow": True}))
            .start()
        )

    def run(self, frame: DataFrame | None = None, **options: Any) -> list[list[str]]:
        """The values of the batches that a run to what is available now makes."""
        self.batches = []
        self.start(self.load(**options) if frame is None else frame).awaitTermination()
        return self.values()

    def logged(self) -> list[str]:
        """The offsets in the checkpoint, batch by batch, as they stand there."""
        files = sorted(
            (self.checkpoint / "offsets").glob("[0-9]*"), key=lambda file: int(file.name)
        )
        return [file.read_text().splitlines()[-1] for file in files]

    def values(self) -> list[list[str]]:
        return [
            sorted(bytes(row.value).decode() for row in batch if row.value is not None)
            for batch in self.batches
        ]


@pytest.fixture
def reading(spark: SparkSession, tmp_path: Path) -> Reading:
    return Reading(spark, tmp_path, t=2)


def test_every_record_is_read_once_over_restarts(reading: Reading) -> None:
    reading.send("t", "a", "b")
    reading.send("t", "c", partition=1)
    assert reading.run() == [["a", "b", "c"]]
    assert reading.run() == []
    reading.send("t", "d")
    assert reading.run() == [["d"]]


def test_rows_have_the_columns_of_sparks_kafka_source(reading: Reading) -> None:
    headers = [("h", b"1"), ("h", None)]
    with reading.cluster.producer() as producer:
        producer.send("t", None, b"k", partition=1, timestamp_ms=1234, headers=headers)
        producer.send("t", b"v", None, partition=1, timestamp_ms=-1)
    frame = reading.load(includeHeaders=True)
    reading.run(frame.withColumn("timestamp", F.unix_millis("timestamp")))

    rows = sorted(reading.batches[0], key=lambda row: row.offset)
    assert [row.asDict(recursive=True) for row in rows] == [
        {
            "key": b"k", "value": None, "topic": "t", "partition": 1, "offset": 0,
            "timestamp": 1234, "timestampType": 0,
            "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
        },
        {
            "key": None, "value": b"v", "topic": "t", "partition": 1, "offset": 1,
            "timestamp": -1, "timestampType": 0, "headers": None,
        },
    ]  # fmt: skip


def test_only_the_columns_that_are_named_come_and_as_many_tasks_as_are_asked_for(
    reading: Reading,
) -> None:
    reading.send("t", *"abcdef")
    frame = (
        reading.spark.readStream.format("kbatch").schema("offset long, value binary")
        .options(subscribe="t", startingOffsets="earliest", minPartitions=4)
        .load(str(reading.path))
    )  # fmt: skip

    assert reading.run(frame) == [["a", "b", "c", "d", "e", "f"]]
    assert reading.batches[0][0].asDict().keys() == {"offset", "value"}
    assert reading.tasks == [4]


# Triggers.


@pytest.mark.skipif(not TELLS_WHERE_IT_IS, reason="Spark before 4.2 knows no limits there")
def test_available_now_reads_in_limited_batches_and_ends(reading: Reading) -> None:
    reading.send("t", *map(str, range(15)))
    frame = reading.load(maxOffsetsPerTrigger=5, minOffsetsPerTrigger=3)
    query = reading.start(frame)
    query.awaitTermination()

    assert [len(batch) for batch in reading.batches] == [5, 5, 5]
    ids = json.dumps({"t": reading.cluster.topic("t").topic_id})
    assert reading.logged() == [
        f'{{"t": {{"0": 5, "1": 0}}, "@kbatch": {{"ids": {ids}, "initial": {{"t": {{"0": 0, "1": 0}}}}}}}}',
        f'{{"t": {{"0": 10, "1": 0}}, "@kbatch": {{"ids": {ids}}}}}',
        f'{{"t": {{"0": 15, "1": 0}}, "@kbatch": {{"ids": {ids}}}}}',
    ]
    latest = [json.loads(one["sources"][0]["latestOffset"])["t"] for one in query.recentProgress]
    assert latest == [{"0": 15, "1": 0}] * 3


@pytest.mark.skipif(TELLS_WHERE_IT_IS, reason="Spark 4.2 and later know limits there")
def test_available_now_reads_everything_in_one_batch_before_4_2(reading: Reading) -> None:
    reading.send("t", *"abcde")
    assert reading.run(maxOffsetsPerTrigger=2) == [["a", "b", "c", "d", "e"]]
    reading.send("t", *"fghij")
    assert reading.run(maxOffsetsPerTrigger=2) == [["f", "g", "h", "i", "j"]]


def test_once_takes_no_notice_of_limits(reading: Reading) -> None:
    reading.send("t", *"abcde")
    frame = reading.load(maxOffsetsPerTrigger=2, minOffsetsPerTrigger=1)
    reading.start(frame, once=True).awaitTermination()

    assert reading.values() == [["a", "b", "c", "d", "e"]]


def test_running_query_reads_what_comes_also_in_topics_that_are_new(reading: Reading) -> None:
    reading.send("t", "before")
    frame = reading.load(subscribe=None, subscribePattern="t", startingOffsets="latest")
    query = reading.start(frame, processingTime="0 seconds")
    query.processAllAvailable()
    reading.send("t", "a")
    query.processAllAvailable()
    reading.cluster.create_topic("t2")
    reading.send("t2", "b")
    query.processAllAvailable()
    query.stop()

    assert [batch for batch in reading.values() if batch] == [["a"], ["b"]]


# From a checkpoint.


@pytest.mark.slow
def test_first_batch_that_was_not_committed_begins_where_it_began(reading: Reading) -> None:
    """Spark asks anew where the query begins, and `latest` is past the batch's end by then."""
    reading.send("t", "before")
    assert reading.run(startingOffsets="latest") == [[]]
    for file in (reading.checkpoint / "commits").iterdir():
        file.unlink()
    reading.send("t", "a")

    batches = reading.run(startingOffsets="latest")
    if not TELLS_WHERE_IT_IS:
        # Spark 4.1 ends such a run behind the batch that it repeats.
        batches += reading.run(startingOffsets="latest")
    assert batches == [[], ["a"]]


@pytest.mark.slow
def test_starting_offsets_of_a_query_with_a_checkpoint_need_not_fit_any_more(
    reading: Reading,
) -> None:
    options = {"assign": '{"t":[0]}', "subscribe": None, "startingOffsets": '{"t":{"0":1}}'}
    reading.send("t", "a", "b")
    assert reading.run(**options) == [["b"]]
    reading.send("t", "c")
    reading.send("t", "d", partition=1)

    assert reading.run(startingOffsets='{"t":{"0":1}}') == [["c", "d"]]


# What users build on it.


def test_records_are_counted_in_windows_by_their_time(reading: Reading) -> None:
    for minute, value in ((0, "a"), (1, "a"), (7, "b"), (30, "late for none")):
        reading.send("t", value, timestamp_ms=minute * 60_000)
    windows = (
        reading.load()
        .withWatermark("timestamp", "5 minutes")
        .groupBy(F.window("timestamp", "5 minutes"), F.col("value").cast("string").alias("word"))
        .count()
        .select(F.unix_seconds("window.start").alias("start"), "word", "count")
    )
    reading.start(windows).awaitTermination()

    found = {tuple(row) for batch in reading.batches for row in batch}
    assert found == {(0, "a", 2), (300, "b", 1)}


@pytest.mark.slow
def test_one_source_used_twice_and_another_one_idle_go_together(reading: Reading) -> None:
    reading.cluster.create_topic("idle")
    reading.send("t", "a", "b")

    def frame() -> DataFrame:
        source = reading.load()
        return source.union(source).union(reading.load(subscribe="idle"))

    assert reading.run(frame()) == [["a", "a", "b", "b"]]
    reading.send("idle", "c")
    assert reading.run(frame()) == [["c"]]


def test_logs_of_a_broker_are_read_as_they_grow(reading: Reading, tmp_path: Path) -> None:
    cluster, reading.path = reading.path, tmp_path / "broker"
    for value in "ab":
        reading.send("t", value)
        shutil.copytree(cluster / "broker-0", reading.path, dirs_exist_ok=True)
        assert reading.run() == [[value]]


# Errors.


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param(
            {"endingOffsets": "latest"}, ["'endingOffsets' is for batch reads"], id="an end"
        ),
        pytest.param(
            {"startingTimestamp": 10**15}, ["No offset matched", "startingTimestamp"], id="no time"
        ),
    ],
)
def test_query_fails_with_what_is_wrong(
    reading: Reading, options: dict[str, Any], said: list[str]
) -> None:
    reading.send("t", "a")
    query = reading.start(reading.load(**options))
    with pytest.raises(StreamingQueryException) as error:
        query.awaitTermination()

    assert all(part in str(error.value) for part in ["ConfigError", *said])


def test_load_refuses_options_that_neither_a_batch_nor_a_stream_has(reading: Reading) -> None:
    with pytest.raises(AnalysisException, match=r"minOffsetsPerTrigger.*maxOffsetsPerTrigger"):
        reading.load(minOffsetsPerTrigger=20, maxOffsetsPerTrigger=15)
