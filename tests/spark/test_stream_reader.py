"""Streaming queries over topics: few, for what only Spark itself can show.

The rules of planning are tested in tests/consumer/test_stream_planner.py.
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery

import spark_kbatch
from spark_kbatch import Cluster
from tests.conftest import SPARK
from tests.support.log_histories import History

pytestmark = pytest.mark.spark

# Whether Spark passes the query's current offset and limits to a source.
TELLS_WHERE_IT_IS = SPARK >= (4, 2)
DEADLINE_S = 120


class Reading:
    """A query over topics of one cluster, whose micro-batches are collected."""

    def __init__(
        self, spark: SparkSession, tmp_path: Path, *, bucket: bool = False, **topics: int
    ) -> None:
        self.spark, self.checkpoint = spark, tmp_path / "checkpoint"
        self.path: Path | str = (
            f"file+bucket://{tmp_path}/bucket" if bucket else tmp_path / "cluster"
        )
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
        """Run an AvailableNow query; return the values of each batch."""
        self.batches = []
        self.start(self.load(**options) if frame is None else frame).awaitTermination()
        return self.values()

    def logged(self) -> list[str]:
        """Return the offsets in the checkpoint, batch by batch, unparsed."""
        files = sorted(
            (self.checkpoint / "offsets").glob("[0-9]*"), key=lambda file: int(file.name)
        )
        return [file.read_text().splitlines()[-1] for file in files]

    def await_batches(self, query: StreamingQuery, count: int) -> None:
        """Wait until there are `count` batches."""
        deadline = time.monotonic() + DEADLINE_S
        while len(self.batches) < count:
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline, self.values()
            query.awaitTermination(0.1)

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
        producer.send("t", None, b"k", partition=1, timestamp=1234, headers=headers)
        producer.send("t", b"v", None, partition=1, timestamp=-1)
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


def test_a_stream_has_the_requested_columns_and_number_of_tasks(
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


@pytest.mark.slow
def test_500_partitions_of_4_records_share_16_tasks_of_a_stream(
    spark: SparkSession, tmp_path: Path
) -> None:
    reading = Reading(spark, tmp_path, t=500)
    with reading.cluster.producer(flush=False) as producer:
        for partition, value in itertools.product(range(500), "abcd"):
            producer.send("t", value, partition=partition)

    reading.run()
    assert [(row.partition, row.offset) for row in reading.batches[0]] == [
        *itertools.product(range(500), range(4))
    ]
    assert reading.tasks == [16]


# Triggers.


@pytest.mark.skipif(not TELLS_WHERE_IT_IS, reason="Spark before 4.2 has no limits here")
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


@pytest.mark.skipif(TELLS_WHERE_IT_IS, reason="Spark 4.2 and later have limits here")
def test_available_now_reads_everything_in_one_batch_before_4_2(reading: Reading) -> None:
    reading.send("t", *"abcde")
    assert reading.run(maxOffsetsPerTrigger=2) == [["a", "b", "c", "d", "e"]]
    reading.send("t", *"fghij")
    assert reading.run(maxOffsetsPerTrigger=2) == [["f", "g", "h", "i", "j"]]


def test_once_ignores_limits(reading: Reading) -> None:
    reading.send("t", *"abcde")
    frame = reading.load(maxOffsetsPerTrigger=2, minOffsetsPerTrigger=1)
    reading.start(frame, once=True).awaitTermination()

    assert reading.values() == [["a", "b", "c", "d", "e"]]


@pytest.mark.slow
def test_a_batch_waits_for_enough_offsets_or_for_the_delay(reading: Reading) -> None:
    reading.send("t", "a")
    frame = reading.load(minOffsetsPerTrigger=5, maxTriggerDelay="10h")
    query = reading.start(frame, processingTime="0 seconds")
    query.processAllAvailable()
    reading.send("t", "b", "c")
    query.processAllAvailable()
    assert reading.values() == [["a"]]
    reading.send("t", "d", "e", partition=1)
    reading.send("t", "f")
    query.processAllAvailable()
    query.stop()
    assert reading.values() == [["a"], ["b", "c", "d", "e", "f"]]

    reading.send("t", "g")
    frame = reading.load(minOffsetsPerTrigger=5, maxTriggerDelay="100ms")
    query = reading.start(frame, processingTime="0 seconds")
    query.processAllAvailable()
    reading.send("t", "h")
    reading.await_batches(query, 4)
    query.stop()
    assert reading.values()[2:] == [["g"], ["h"]]


@pytest.mark.slow
@pytest.mark.skipif(not TELLS_WHERE_IT_IS, reason="Spark before 4.2 gives the first batch no limit")
def test_a_batch_waits_for_enough_offsets_and_keeps_to_the_maximum(reading: Reading) -> None:
    reading.send("t", *"abcdefg")
    frame = reading.load(minOffsetsPerTrigger=3, maxOffsetsPerTrigger=4, maxTriggerDelay="10h")
    query = reading.start(frame, processingTime="0 seconds")
    query.processAllAvailable()
    reading.send("t", "h")
    query.processAllAvailable()
    query.stop()

    assert reading.values() == [["a", "b", "c", "d"], ["e", "f", "g"]]
    reading.batches = []
    reading.start(frame, once=True).awaitTermination()
    assert reading.values() == [["h"]]


def test_a_running_query_reads_new_records_and_new_topics(reading: Reading) -> None:
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


# Topics that change.


def test_topics_of_a_pattern_come_and_go_while_the_query_runs(reading: Reading) -> None:
    frame = reading.load(subscribe=None, subscribePattern="t.*", failOnDataLoss=False)
    reading.send("t", "a")
    query = reading.start(frame, processingTime="0 seconds")
    query.processAllAvailable()
    reading.cluster.delete_topic("t")
    query.processAllAvailable()  # nothing is left to read
    reading.cluster.create_topic("t2", partitions=1)
    reading.send("t2", "b")
    query.processAllAvailable()
    reading.cluster.create_partitions("t2", 2)
    reading.send("t2", "c", partition=1)
    reading.cluster.create_topic("t", partitions=1)
    reading.send("t", "d")
    query.processAllAvailable()
    query.stop()

    first, second, *later = (batch for batch in reading.values() if batch)
    assert (first, second) == (["a"], ["b"])
    assert sorted(itertools.chain(*later)) == ["c", "d"]  # the query goes on between the two sends
    topics = [sorted(json.loads(end).keys() - {"@kbatch"}) for end in reading.logged()]
    assert (topics[0], topics[-1]) == (["t"], ["t", "t2"])
    assert [] not in topics


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True], ids=["deleted", "recreated"])
def test_a_deleted_topic_fails_the_query_if_loss_is_not_accepted(
    reading: Reading, again: bool
) -> None:
    options = {"subscribe": None, "subscribePattern": "t.*"}
    reading.cluster.create_topic("t2")
    reading.send("t", "a", "b")
    assert reading.run(**options) == [["a", "b"]]
    reading.cluster.delete_topic("t")
    if again:
        reading.cluster.create_topic("t", partitions=2)
        reading.send("t", "c")
    reading.send("t2", "d")
    why = "t-0 from offset 2 .*deleted and created again" if again else "t-0, t-1.* they are gone"
    with pytest.raises(
        StreamingQueryException, match=f"(?s)DataLossError: .*{why}.*failOnDataLoss"
    ):
        reading.run(**options)

    assert reading.run(**options, failOnDataLoss=False) == [["c", "d"] if again else ["d"]]


@pytest.mark.slow
@pytest.mark.parametrize("fail", [False, True], ids=["loss-is-accepted", "nothing-is-deleted"])
def test_a_query_reads_everything_once_while_topics_are_created_grown_and_deleted(
    reading: Reading, fail: bool
) -> None:
    """Changes are random, so deleted rows may have been read or not."""
    rng, values = random.Random(1), iter(range(10**6))
    sent: dict[str, set[str]] = {"t": set()}
    deleted: set[str] = set()

    def send() -> None:
        name, count = rng.choice(sorted(sent)), rng.randrange(1, 20)
        some = [str(next(values)) for _ in range(count)]
        partition = rng.randrange(reading.cluster.topic(name).partitions)
        reading.send(name, *some, partition=partition)
        sent[name] |= set(some)

    def create() -> None:
        name = f"t{rng.randrange(5)}"
        if name not in sent:
            reading.cluster.create_topic(name)
            sent[name] = set()

    def grow() -> None:
        name = rng.choice(sorted(sent))
        count = reading.cluster.topic(name).partitions
        reading.cluster.create_partitions(name, count + 1)

    def delete() -> None:
        if len(sent) > 1:
            name = rng.choice(sorted(sent))
            deleted.update(sent.pop(name))
            reading.cluster.delete_topic(name)

    steps = [send, send, create, grow] if fail else [send, send, create, grow, delete]
    frame = reading.load(
        subscribe=None, subscribePattern="t", failOnDataLoss=fail, maxOffsetsPerTrigger=30
    )
    query = reading.start(frame, processingTime="0 seconds")
    for _ in range(60):
        rng.choice(steps)()
        if rng.random() < 0.2:
            query.processAllAvailable()
    query.processAllAvailable()
    query.stop()

    found = [value for batch in reading.values() for value in batch]
    assert len(set(found)) == len(found) > 0
    kept = set().union(*sent.values())
    assert kept <= set(found) <= kept | deleted
    assert bool(deleted) != fail


@pytest.mark.slow
def test_a_query_goes_on_over_micro_batches_without_visible_rows(
    reading: Reading, tmp_path: Path
) -> None:
    """A broker's log has one committed transaction, one aborted, and one that is open at first."""
    reading.path = tmp_path / "broker"
    (reading.path / "t-0").mkdir(parents=True)
    log = reading.path / "t-0" / f"{0:020d}.log"
    history = History()
    for producer, abort in ((1, False), (2, True)):
        history.append(producer, transactional=True, n=3)
        history.end(producer, abort=abort)
    history.append(3, transactional=True, n=2)
    log.write_bytes(b"".join(batch.data for batch in history.written))
    uncommitted = {"kafka.isolation.level": "read_uncommitted"}

    assert reading.run() == [["0", "1", "2"]]
    assert reading.run() == []
    history.end(3, abort=False)
    log.write_bytes(b"".join(batch.data for batch in history.written))
    assert reading.run() == [["8", "9"]]
    reading.checkpoint = tmp_path / "another"
    assert reading.run(**uncommitted) == [["0", "1", "2", "4", "5", "6", "8", "9"]]


# From a checkpoint.


@pytest.mark.slow
def test_an_uncommitted_first_batch_is_repeated_from_the_same_start(reading: Reading) -> None:
    """Spark asks again where the query starts, and `latest` is past the batch's end by then."""
    reading.send("t", "before")
    assert reading.run(startingOffsets="latest") == [[]]
    for file in (reading.checkpoint / "commits").iterdir():
        file.unlink()
    reading.send("t", "a")

    batches = reading.run(startingOffsets="latest")
    if not TELLS_WHERE_IT_IS:
        # Spark before 4.2 ends such a run after the repeated batch.
        batches += reading.run(startingOffsets="latest")
    assert batches == [[], ["a"]]


@pytest.mark.slow
def test_starting_offsets_of_a_query_with_a_checkpoint_are_not_checked(
    reading: Reading,
) -> None:
    options = {"assign": '{"t":[0]}', "subscribe": None, "startingOffsets": '{"t":{"0":1}}'}
    reading.send("t", "a", "b")
    assert reading.run(**options) == [["b"]]
    reading.send("t", "c")
    reading.send("t", "d", partition=1)

    assert reading.run(startingOffsets='{"t":{"0":1}}') == [["c", "d"]]


# Queries that users build.


@pytest.mark.slow
def test_records_are_counted_in_windows_by_their_time(reading: Reading) -> None:
    for minute, value in ((0, "a"), (1, "a"), (7, "b"), (30, "late for none")):
        reading.send("t", value, timestamp=minute * 60_000)
    windows = (
        reading.load()
        .withWatermark("timestamp", "5 minutes")
        .groupBy(F.window("timestamp", "5 minutes"), F.col("value").cast("string").alias("word"))
        .count()
        .select(F.unix_seconds("window.start").alias("start"), "word", "count")
    )
    query = reading.start(windows, processingTime="0 seconds")
    query.processAllAvailable()  # Before Spark 4.2 no window ends after an AvailableNow run.
    query.stop()

    found = {tuple(row) for batch in reading.batches for row in batch}
    assert found == {(0, "a", 2), (300, "b", 1)}


@pytest.mark.slow
def test_a_source_used_twice_works_beside_an_idle_one(reading: Reading) -> None:
    reading.cluster.create_topic("idle")
    reading.send("t", "a", "b")

    def frame() -> DataFrame:
        source = reading.load()
        return source.union(source).union(reading.load(subscribe="idle"))

    assert reading.run(frame()) == [["a", "a", "b", "b"]]
    reading.send("idle", "c")
    assert reading.run(frame()) == [["c"]]


@pytest.mark.slow
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
            {"startingTimestamp": 10**15},
            ["No offset matched", "startingTimestamp"],
            id="no time",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_error_of_a_failed_query_says_what_is_wrong(
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
