"""Replicated topics through Spark: jobs and streams go on, whichever disk is lost."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from spark_kbatch import Cluster
from tests.support.failing_disks import bytes_of
from tests.support.mounts import read_only
from tests.support.store import store_of

pytestmark = pytest.mark.spark

PARTITIONS = 2
BY_NUMBER = f"CAST(value % {PARTITIONS} AS INT) AS partition"


def rows(spark: SparkSession, start: int, end: int) -> DataFrame:
    return spark.range(start, end).selectExpr("CAST(id AS STRING) AS value", BY_NUMBER)


@pytest.fixture
def cluster(spark: SparkSession, tmp_path: Path) -> Cluster:
    """Create a cluster through a job's options."""
    options = {
        "topic": "events",
        "log.dirs": ",".join(str(tmp_path / f"disk-{node}") for node in range(3)),
        "replication.factor": 3,
        "num.partitions": PARTITIONS,
        "min.insync.replicas": 2,
        "kafka.acks": "all",
        "request.timeout.ms": 1000,
    }
    writer = rows(spark, 0, 20).write.format("kbatch").options(**options)
    writer.mode("append").save(str(tmp_path / "cluster"))
    return Cluster(str(tmp_path / "cluster"))


def values(spark: SparkSession, cluster: Cluster) -> list[int]:
    frame = spark.read.format("kbatch").option("subscribe", "events").load(str(cluster.path))
    return sorted(int(row.value) for row in frame.select("value").collect())


def isr(cluster: Cluster) -> list[list[int]]:
    found = cluster.replicas(["events", "__commits"]).values()
    return [sorted(one.node_id for one in replicas if one.in_sync) for replicas in found]


def let_join(cluster: Cluster) -> None:
    """Bring disks that have come back in sync now instead of with the next job."""
    store_of(cluster).manager.dirs.look_again()
    assert cluster.replicate() == []


def test_a_job_writes_to_every_replica_and_goes_on_without_a_disk(
    spark: SparkSession, cluster: Cluster
) -> None:
    assert isr(cluster) == [[0, 1, 2]] * 3
    shutil.rmtree(cluster.path.parent / "disk-0")
    assert values(spark, cluster) == list(range(20))

    write = rows(spark, 20, 30).write.format("kbatch").option("topic", "events").mode("append")
    write.save(str(cluster.path))
    assert values(spark, cluster) == list(range(30))
    assert isr(cluster) == [[1, 2]] * 3

    shutil.rmtree(cluster.path.parent / "disk-2")
    with pytest.raises(PySparkException, match=r"nothing is visible.*min\.insync\.replicas is 2"):
        write.option("request.timeout.ms", 0).save(str(cluster.path))
    write.option("acks", 1).save(str(cluster.path))
    assert values(spark, cluster) == sorted([*range(30), *range(20, 30)])


def test_options_must_name_the_existing_replicas(spark: SparkSession, cluster: Cluster) -> None:
    write = rows(spark, 0, 1).write.format("kbatch").option("topic", "events").mode("append")
    for option, value in (("replication.factor", "2"), ("log.dirs", "elsewhere")):
        with pytest.raises(PySparkException, match=rf"option '{option}' is .*exists with"):
            write.option(option, value).save(str(cluster.path))


@pytest.mark.slow
def test_a_stream_goes_on_while_disks_fail_and_come_back(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    stream = spark.readStream.schema("value STRING").text(str(source))
    write = (
        stream.selectExpr("value", BY_NUMBER).writeStream.format("kbatch").option("topic", "events")
    )
    write = write.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = write.trigger(processingTime="0 seconds").start(str(cluster.path))
    sent = 20

    def send(query: StreamingQuery) -> None:
        nonlocal sent
        (tmp_path / "aside").write_text("".join(f"{n}\n" for n in range(sent, sent + 10)))
        (tmp_path / "aside").rename(source / f"{sent}.txt")
        sent += 10
        query.processAllAvailable()

    disks = [tmp_path / f"disk-{node}" for node in range(3)]
    try:
        send(query)
        disks[0].rename(tmp_path / "lost")  # the leader's
        send(query)
        assert isr(cluster) == [[1, 2]] * 3
        (tmp_path / "lost").rename(disks[0])
        let_join(cluster)
        with read_only(disks[1]):
            send(query)
        shutil.rmtree(disks[2])
        send(query)
        cluster.replace_log_dir(2)
        let_join(cluster)
        send(query)
    finally:
        query.stop()

    assert query.exception() is None
    assert Counter(values(spark, cluster)) == Counter(range(sent))
    assert isr(cluster) == [[0, 1, 2]] * 3
    for tp in cluster.partitions("events"):
        assert len({bytes_of(cluster, node, tp) for node in range(3)}) == 1
