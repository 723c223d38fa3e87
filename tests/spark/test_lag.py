"""The lag of streaming queries, as Spark's progress and a listener tell it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import spark_kbatch
from spark_kbatch import ConfigError, Lag, LagListener, TopicPartition
from tests.spark.test_stream_reader import DEADLINE_S, TELLS_WHERE_IT_IS, Reading

pytestmark = pytest.mark.spark

since_4_2 = pytest.mark.skipif(not TELLS_WHERE_IT_IS, reason="Spark 4.2 and later tell the ends")
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
NONE = Lag(0, 0, 0.0, {T0: 0, T1: 0})


@pytest.fixture
def reading(spark: SparkSession, tmp_path: Path) -> Reading:
    return Reading(spark, tmp_path, t=2)


@pytest.fixture
def told(spark: SparkSession) -> Iterator[list[tuple[Any, Lag]]]:
    """What a listener hands out, of queries that are soon said to be idle."""
    found: list[tuple[Any, Lag]] = []
    listener = LagListener(spark, lambda progress, lag: found.append((progress, lag)))
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "100ms")
    spark.streams.addListener(listener)
    yield found
    spark.streams.removeListener(listener)
    spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def lags(query: StreamingQuery) -> list[Lag | None]:
    """Return the lag after each micro-batch with rows. A slow query adds a progress without any, as idle ones do."""
    return [spark_kbatch.lag(one) for one in query.recentProgress if one["numInputRows"]]


@since_4_2
def test_each_micro_batch_tells_what_it_has_left(
    reading: Reading, told: list[tuple[Any, Lag]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="spark_kbatch.spark.lag")
    reading.send("t", *"abcdefghij")
    query = reading.start(reading.load(maxOffsetsPerTrigger=4))
    query.awaitTermination()
    expected = [Lag(0, left, left / 2, {T0: left, T1: 0}) for left in (6, 2, 0)]

    assert lags(query) == expected
    assert spark_kbatch.lag(query.lastProgress) == NONE
    eventually(lambda: [lag for progress, lag in told if progress["id"] == query.id] != [])
    eventually(lambda: len(told) >= 3)
    assert [lag for _, lag in told[:3]] == expected
    assert [str(progress["id"]) for progress, _ in told[:3]] == [query.id] * 3
    assert (
        f"query {query.id}, micro-batch 0: 0 to 6 offsets behind the latest in 2 partitions, 3.0 on average"
        in caplog.messages
    )


@since_4_2
def test_a_query_that_waits_tells_its_growing_lag_while_it_is_idle(
    reading: Reading, told: list[tuple[Any, Lag]]
) -> None:
    reading.send("t", "a")
    query = reading.start(reading.load(minOffsetsPerTrigger=100), processingTime="0 seconds")
    try:
        eventually(lambda: NONE in [lag for _, lag in told])
        reading.send("t", "b", "c", partition=1)
        eventually(lambda: told[-1][1] == Lag(0, 2, 1.0, {T0: 0, T1: 2}))
        assert query.lastProgress is not None
        assert spark_kbatch.lag(query.lastProgress) == told[-1][1]
    finally:
        query.stop()
    assert reading.values() == [["a"]]


@pytest.mark.slow
@since_4_2
def test_a_restarted_query_tells_its_lag_again(reading: Reading) -> None:
    reading.send("t", "a", "b")
    reading.run()
    reading.send("t", "c", "d", "e")
    query = reading.start(reading.load(maxOffsetsPerTrigger=2))
    query.awaitTermination()

    assert lags(query) == [Lag(0, 1, 0.5, {T0: 1, T1: 0}), NONE]


@pytest.mark.skipif(TELLS_WHERE_IT_IS, reason="Spark 4.2 and later tell the ends")
def test_before_4_2_the_lag_is_refused(reading: Reading, spark: SparkSession) -> None:
    reading.send("t", *"abcde")
    query = reading.start(reading.load())
    query.awaitTermination()

    with pytest.raises(ConfigError, match=r"before Spark 4\.2.* 'commit\.group\.id'"):
        spark_kbatch.lag(query.lastProgress)
    with pytest.raises(ConfigError, match=r"before Spark 4\.2.* 'commit\.group\.id'"):
        LagListener(spark)


@pytest.mark.parametrize(
    "bucket", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["folder", "bucket"]
)
def test_a_query_is_shown_as_a_consumer_group(
    spark: SparkSession, tmp_path: Path, bucket: bool
) -> None:
    """With Spark before 4.2, the last micro-batch of a run is committed by the next run."""
    reading = Reading(spark, tmp_path, bucket=bucket, t=2)
    reading.send("t", *"abc")
    options = {"commit.group.id": "app"}
    reading.run(**options)
    reading.send("t", *"de")
    (group,) = reading.cluster.groups()

    assert (group.group_id, group.state) == ("app", "Empty")
    assert group.offsets[T0].committed_offset == (3 if TELLS_WHERE_IT_IS else 0)
    assert group.lag == (2 if TELLS_WHERE_IT_IS else 5)
    reading.run(**options)
    (group,) = reading.cluster.groups()
    assert group.offsets[T0].committed_offset == (5 if TELLS_WHERE_IT_IS else 3)


@since_4_2
def test_a_listener_takes_functions_alone(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match=r"on_lag is 3; accepted: a function"):
        LagListener(spark, 3)  # type: ignore[arg-type]
