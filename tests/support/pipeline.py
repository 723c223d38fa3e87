"""Edits of a wiki from JSON files to a report: `spark-submit pipeline.py INPUT FOLDER RECORDS`.

    INPUT/*.json  -> topic `edits`    the lines, by page
    topic `edits` -> topic `hours`    a stream: edits and bytes added, by channel and hour
    topic `hours` -> FOLDER/report    a batch: the hours' sums by channel, as JSON

Both topics are in FOLDER/cluster; the stream's checkpoint is FOLDER/checkpoint.
Its micro-batches have RECORDS records; before Spark 4.2 the first has all of them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it

BEFORE_4_2 = pyspark.__version__.startswith(("4.0.", "4.1."))
EDIT = "time timestamp, channel string, page string, added long"
HOUR = "channel string, hour timestamp, edits long, added long"
WATERMARK = "2 hours"  # a record may be this much older than the newest one


def ingest(spark: SparkSession, source: Path, cluster: Path) -> None:
    edits = spark.read.text(f"{source}/*.json")
    page, time = F.get_json_object("value", "$.page"), F.get_json_object("value", "$.time")
    (
        edits.select(page.alias("key"), "value", time.cast("timestamp").alias("timestamp"))
        .orderBy("timestamp")  # Tasks are committed in their order, but get files in any order.
        .write.format("kbatch")
        .options(**{"topic": "edits", "num.partitions": 4, "compression.type": "zstd"})
        .mode("append")
        .save(str(cluster))
    )


def sum_up_hours(spark: SparkSession, cluster: Path, checkpoint: Path, records: int) -> None:
    """Sum up each hour, leaving out hours that may still get edits."""
    edits = (
        spark.readStream.format("kbatch")
        .options(subscribe="edits", startingOffsets="earliest", maxOffsetsPerTrigger=records)
        .load(str(cluster))
    )
    hours = (
        edits.select(F.from_json(F.col("value").cast("string"), EDIT).alias("edit"), "timestamp")
        .withWatermark("timestamp", WATERMARK)
        .groupBy(F.window("timestamp", "1 hour"), "edit.channel")
        .agg(F.count("*").alias("edits"), F.sum("edit.added").alias("added"))
        .select("channel", F.col("window.start").alias("hour"), "edits", "added")
    )
    # Before Spark 4.2 such a run is one micro-batch, after which no window ends.
    trigger: dict[str, Any] = (
        {"processingTime": "0 seconds"} if BEFORE_4_2 else {"availableNow": True}
    )
    query = (
        hours.select(F.col("channel").alias("key"), F.to_json(F.struct("*")).alias("value"))
        .writeStream.format("kbatch")
        .options(**{"topic": "hours", "num.partitions": 2})
        .option("checkpointLocation", str(checkpoint))
        .outputMode("append")
        .trigger(**trigger)
        .start(str(cluster))
    )
    if BEFORE_4_2:
        query.processAllAvailable()
        query.stop()
    query.awaitTermination()


def report(spark: SparkSession, cluster: Path) -> DataFrame:
    rows = spark.read.format("kbatch").option("subscribe", "hours").load(str(cluster))
    hour = F.from_json(F.col("value").cast("string"), HOUR)
    return (
        rows.select(hour.alias("of"))
        .groupBy("of.channel")
        .agg(
            F.count("*").alias("hours"),
            F.sum("of.edits").alias("edits"),
            F.sum("of.added").alias("added"),
            F.max("of.hour").cast("string").alias("last"),
        )
    )


def main(source: Path, folder: Path, records: int) -> None:
    spark = SparkSession.builder.appName("pipeline").getOrCreate()
    cluster = folder / "cluster"
    ingest(spark, source, cluster)
    sum_up_hours(spark, cluster, folder / "checkpoint", records)
    report(spark, cluster).coalesce(1).write.json(str(folder / "report"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
