"""A stream reads a topic while Kafka clients produce to it through a server, and batch jobs commit to it."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support import builders
from tests.support.clients.aio_kafka import AioKafka
from tests.support.clients.interface import Client
from tests.support.clients.kafka_python import KafkaPython
from tests.support.clients.librdkafka import Librdkafka
from tests.support.reference import Record
from tests.support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CLIENTS = Librdkafka, KafkaPython, AioKafka
TOPIC, PARTITIONS = "events", 3
ROUNDS, RECORDS = 4, 25  # of each client; records in each partition
JOBS, ROWS = 2, 50
DEADLINE_S = 120


class Producing(threading.Thread):
    """A client that produces to all partitions, in rounds."""

    def __init__(self, client: Client) -> None:
        super().__init__(daemon=True)
        self._client = client
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            for number in range(ROUNDS):
                first = number * RECORDS
                records = [
                    Record(n, 1_700_000_000_000, None, f"{self._client.name} {n}".encode())
                    for n in range(first, first + RECORDS)
                ]
                by_partition = dict.fromkeys(range(PARTITIONS), records)
                self._client.produce(TOPIC, by_partition, idempotent=True)
        except BaseException as error:  # noqa: BLE001  the test raises it
            self.error = error


def test_a_stream_reads_each_record_of_clients_and_jobs_once_and_in_order(
    spark: SparkSession, tmp_path: Path
) -> None:
    read: list[tuple[int, int, str]] = []  # partition, offset, value

    def collect(rows: DataFrame, _: int) -> None:
        wanted = rows.selectExpr("partition", "offset", "CAST(value AS STRING)")
        read.extend(map(tuple, wanted.collect()))

    with (
        builders.a_cluster(tmp_path, topics={TOPIC: PARTITIONS}) as cluster,
        cluster.serve() as server,
    ):
        frame = spark.readStream.format("kbatch").option("subscribe", TOPIC)
        query = (
            frame.option("startingOffsets", "earliest")
            .load(str(cluster.path))
            .writeStream.foreachBatch(collect)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            # Spark gives a worker ten seconds to start, which clients that keep the machine busy could use up.
            until(lambda: query.lastProgress or query.exception(), timeout_s=DEADLINE_S)
            clients = [Producing(client(server.bootstrap_servers)) for client in CLIENTS]
            for number in range(JOBS):
                rows = spark.range(number * ROWS, (number + 1) * ROWS, numPartitions=1)
                rows.selectExpr(
                    "concat('job ', id) AS value", "explode(array(0, 1, 2)) AS partition"
                ).write.format("kbatch").option("topic", TOPIC).mode("append").save(
                    str(cluster.path)
                )
            for one in clients:
                one.join(DEADLINE_S)
                assert one.error is None
            total = sum(info.offsets.high_watermark for info in cluster.describe(TOPIC))
            until(lambda: len(read) >= total or query.exception(), timeout_s=DEADLINE_S)
            assert query.exception() is None
            batches = query.lastProgress["batchId"]
        finally:
            query.stop()

    values = {f"{client.name} {n}" for client in CLIENTS for n in range(ROUNDS * RECORDS)}
    values |= {f"job {n}" for n in range(JOBS * ROWS)}
    assert batches > 1
    for number in range(PARTITIONS):
        records = [(offset, value) for partition, offset, value in read if partition == number]
        assert Counter(value for _, value in records) == Counter(values)
        assert sorted(offset for offset, _ in records) == [*range(len(values))]
        for name in (*(client.name for client in CLIENTS), "job"):
            numbers = [
                int(value.split()[1]) for _, value in sorted(records) if value.split()[0] == name
            ]
            assert numbers == sorted(numbers)
