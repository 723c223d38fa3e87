"""Topics with several replicas: Spark reads them, whatever disk is lost, and says that it cannot write."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import spark_kbatch
from spark_kbatch.cluster import Cluster

pytestmark = pytest.mark.spark


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    disks = [tmp_path / f"disk-{number}" for number in range(3)]
    made = spark_kbatch.open(str(tmp_path / "cluster"), create=True, log_dirs=disks)
    assert isinstance(made, Cluster)
    made.create_topic("events", partitions=2, replication_factor=3)
    with made.producer(flush=False) as producer:
        for number in range(20):
            producer.send("events", value=str(number), partition=number % 2)
    return made


def test_records_are_read_though_the_disk_of_a_leader_is_lost(
    spark: SparkSession, cluster: Cluster
) -> None:
    frame = spark.read.format("kbatch").option("subscribe", "events").load(str(cluster.path))
    assert frame.count() == 20
    shutil.rmtree(cluster.path.parent / "disk-0")

    values = {int(row.value) for row in frame.select("value").collect()}
    assert values == set(range(20))


def test_a_write_is_refused_with_what_to_do(spark: SparkSession, cluster: Cluster) -> None:
    rows = spark.range(1).selectExpr("CAST(id AS STRING) AS value")
    write = rows.write.format("kbatch").option("topic", "events").mode("append")
    with pytest.raises(PySparkException, match=r"topics whose only replica .*producer\(\)"):
        write.save(str(cluster.path))
    with pytest.raises(PySparkException, match=r"'replication.factor' is '3'; accepted: 1;"):
        write.option("replication.factor", 3).save(str(cluster.path))

    assert [
        found.high_watermark for found in cluster.edges(cluster.partitions("events")).values()
    ] == [10, 10]
