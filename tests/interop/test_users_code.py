"""Code written for `format("kafka")` runs on both, with the format's name as its parameter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it

from tests.support.parity_sites import FIRST_TIMESTAMP_MS, Message, Site, values

pytestmark = pytest.mark.interop

MINUTE_MS = 60_000
SCHEMA = "wiki STRING, bytes INT"


def report(spark: SparkSession, source: str, servers: str, edits: str, counts: str) -> None:
    """Run a nightly job: the number of edits and bytes of each wiki in every five minutes."""
    frame = (
        spark.read.format(source)
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", edits)
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .option("failOnDataLoss", "false")
        .load()
    )
    parsed = frame.select(
        F.from_json(F.col("value").cast("string"), SCHEMA).alias("edit"), F.col("timestamp")
    ).select("edit.*", "timestamp")
    by_window = parsed.groupBy(F.window("timestamp", "5 minutes"), "wiki").agg(
        F.count("*").alias("edits"), F.sum("bytes").alias("bytes")
    )
    (
        by_window.select(
            F.col("wiki").alias("key"),
            F.to_json(
                F.struct(F.unix_millis("window.start").alias("start"), "wiki", "edits", "bytes")
            ).alias("value"),
        )
        .write.format(source)
        .option("kafka.bootstrap.servers", servers)
        .option("topic", counts)
        .mode("append")
        .save()
    )


def follow(
    spark: SparkSession, source: str, servers: str, edits: str, counts: str, checkpoint: Path
) -> None:
    """Run the same as a stream, for the windows that are over."""
    frame = (
        spark.readStream.format(source)
        .option("kafka.bootstrap.servers", servers)
        .option("kafka.security.protocol", "PLAINTEXT")
        .option("subscribe", edits)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 40)
        .load()
    )
    counted = (
        frame.select(
            F.from_json(F.col("value").cast("string"), SCHEMA).alias("edit"), F.col("timestamp")
        )
        .withWatermark("timestamp", "1 minute")
        .groupBy(F.window("timestamp", "5 minutes"), F.col("edit.wiki").alias("wiki"))
        .agg(F.count("*").alias("edits"), F.sum("edit.bytes").alias("bytes"))
    )
    query = (
        counted.select(
            F.col("wiki").alias("key"),
            F.to_json(
                F.struct(F.unix_millis("window.start").alias("start"), "wiki", "edits", "bytes")
            ).alias("value"),
        )
        .writeStream.format(source)
        .option("kafka.bootstrap.servers", servers)
        .option("topic", counts)
        .option("checkpointLocation", str(checkpoint))
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def send_edits(site: Site, topic: str) -> dict[tuple[int, str], tuple[int, int]]:
    """Send one edit per 10 seconds of 20 minutes; return edits and bytes by window and wiki."""
    sent: list[Message] = []
    expected: dict[tuple[int, str], tuple[int, int]] = {}
    start = FIRST_TIMESTAMP_MS - FIRST_TIMESTAMP_MS % (5 * MINUTE_MS)
    for n in range(120):
        time, wiki = start + n * 10_000, ("en", "de", "fr")[n % 3]
        value = json.dumps({"wiki": wiki, "bytes": n})
        sent.append(Message(value, wiki, time))
        window = (time - time % (5 * MINUTE_MS), wiki)
        edits, size = expected.get(window, (0, 0))
        expected[window] = (edits + 1, size + n)
    site.create_topic(topic, partitions=2)
    # In turn, so that both partitions are at the same time whenever a part of them has been read.
    site.send(topic, {p: sent[p::2] for p in range(2)})
    return expected


def counted(site: Site, spark: SparkSession, topic: str) -> dict[tuple[int, str], tuple[int, int]]:
    rows = [json.loads(value) for value in values(site.read(spark, subscribe=topic))]
    found = {(row["start"], row["wiki"]): (row["edits"], row["bytes"]) for row in rows}
    assert len(found) == len(rows), "no window occurs twice"
    return found


def test_a_batch_job_runs_on_both(spark: SparkSession, site: Site, topic: str) -> None:
    expected = send_edits(site, topic)
    site.create_topic("counts-" + topic)

    report(spark, site.format, site.servers, topic, "counts-" + topic)

    assert counted(site, spark, "counts-" + topic) == expected


def test_a_streaming_job_runs_on_both(
    spark: SparkSession, site: Site, topic: str, tmp_path: Path
) -> None:
    expected = send_edits(site, topic)
    site.create_topic("counts-" + topic)

    follow(spark, site.format, site.servers, topic, "counts-" + topic, tmp_path / "checkpoint")

    last = max(start for start, _ in expected)
    over = {window: sums for window, sums in expected.items() if window[0] < last}
    assert counted(site, spark, "counts-" + topic) == over
