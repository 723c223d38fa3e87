"""Brokers fail, move and slow down during jobs: every record comes once, in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import spark_kbatch
from tests.support.kafka_clients import Address, read
from tests.support.kafka_cluster import BrokerCluster
from tests.support.paced import Pace
from tests.support.reference import producer_ids
from tests.support.waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.slow]

PARTITIONS = 3
PER_PARTITION = 30_000
JOB_TIMEOUT_S = 300
# Small requests, so that there are many of them.
FETCHES = {"kafka.max.partition.fetch.bytes": "65536", "kafka.fetch.max.bytes": "65536"}


# Faults. Each ends with all brokers up, and comes to all topics of a job at once.


def leaders_moved(brokers: BrokerCluster, *topics: str) -> None:
    for _ in range(4):
        move_leaders(brokers, topics)
        time.sleep(1)


def one_killed_and_restarted(brokers: BrokerCluster, *topics: str) -> None:
    brokers.kill(2)
    time.sleep(2)
    brokers.restart(2)
    move_leaders(brokers, topics)  # so that it leads again


def one_slow(brokers: BrokerCluster, *topics: str) -> None:
    brokers.proxies[3].delay_s = 1.0
    time.sleep(5)  # several requests of each connection, one after the other
    brokers.proxies[3].go_on()


def connections_dropped(brokers: BrokerCluster, *topics: str) -> None:
    for _ in range(6):
        for proxy in brokers.proxies.values():
            proxy.drop()
            time.sleep(0.3)


def all_restarted_in_turn(brokers: BrokerCluster, *topics: str) -> None:
    brokers.restart_all_in_turn()
    move_leaders(brokers, topics)


def move_leaders(brokers: BrokerCluster, topics: Iterable[str]) -> None:
    for topic in topics:
        brokers.move_leaders(topic)


Fault = Callable[..., None]  # of the brokers and the topics
FAULTS = (leaders_moved, one_killed_and_restarted, one_slow, connections_dropped, all_restarted_in_turn)  # fmt: skip
each_fault = pytest.mark.parametrize(
    "fault", [pytest.param(fault, id=fault.__name__.replace("_", "-")) for fault in FAULTS]
)


@pytest.fixture
def background() -> Iterator[Callable[..., Future[Any]]]:
    """Run a function while the test goes on."""
    with ThreadPoolExecutor(1) as executor:
        yield executor.submit


@pytest.fixture
def pace(background: Callable[..., Future[Any]], tmp_path: Path) -> Iterator[Pace]:
    """The pace of a job in the background, which hurries when the test ends."""
    with Pace(tmp_path / "pace") as pace:
        yield pace


# Jobs


def fill(brokers: BrokerCluster, topic: str, per_partition: int = PER_PARTITION) -> None:
    """Create a topic whose records are numbered, by partition."""
    brokers.create_topic(topic, partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": brokers.direct, "enable.idempotence": True})
    for partition in range(PARTITIONS):
        for value in numbered(per_partition):
            producer.produce(topic, value, partition=partition)
            producer.poll(0)
    assert producer.flush(60) == 0


def numbered(count: int) -> list[bytes]:
    return [b"%0100d" % n for n in range(count)]


def source(spark: SparkSession, brokers: BrokerCluster, topic: str) -> DataFrame:
    reader = spark.read.format("kbatch").option("kafka.bootstrap.servers", brokers.servers)
    return reader.option("subscribe", topic).options(**FETCHES).load()


def save(frame: DataFrame, brokers: BrokerCluster, topic: str) -> None:
    spark_kbatch.register(frame.sparkSession)  # for this thread
    writer = frame.write.format("kbatch").mode("append").option("topic", topic)
    writer.option("kafka.bootstrap.servers", brokers.servers).option("kafka.batch.size", 4000).save()  # fmt: skip


def stored(brokers: BrokerCluster, topic: str) -> dict[int, list[bytes]]:
    """Return the values of each partition, as another make of client reads them from the brokers."""
    found = read(Address(brokers.direct), topic, range(PARTITIONS))
    return {p: [record.value or b"" for record in records] for p, records in found.items()}


def by_partition(table: pa.Table) -> dict[int, tuple[list[int], list[bytes]]]:
    """Return the offsets and values of each partition, in the order in which they were read."""
    found = {}
    for p in range(PARTITIONS):
        rows = table.filter(pa.compute.equal(table["partition"], p))
        found[p] = (rows["offset"].to_pylist(), rows["value"].to_pylist())
    return found


def rows_of_tasks(spark: SparkSession) -> DataFrame:
    """Return rows for all partitions from each of three tasks, numbered within the task."""
    numbers = spark.range(0, PARTITIONS * PER_PARTITION, 1, numPartitions=3)
    return numbers.selectExpr(
        "CONCAT(spark_partition_id(), ':', LPAD(id, 100, '0')) AS value",
        f"CAST(id % {PARTITIONS} AS INT) AS partition",
    )


def expected_of_tasks() -> dict[tuple[int, int], list[int]]:
    """Return what each task of `rows_of_tasks` sends to each partition."""
    return {
        (task, p): [
            n for n in range(task * PER_PARTITION, (task + 1) * PER_PARTITION) if n % PARTITIONS == p
        ]
        for task in range(3) for p in range(PARTITIONS)
    }  # fmt: skip


def by_task(found: Mapping[int, list[bytes]]) -> dict[tuple[int, int], list[int]]:
    """Return the numbers from each task in each partition, in the order in which they are stored."""
    numbers: dict[tuple[int, int], list[int]] = {}
    for p, values in found.items():
        for value in values:
            task, _, number = value.partition(b":")
            numbers.setdefault((int(task), p), []).append(int(number))
    return numbers


# Batches


@each_fault
def test_a_batch_read_gets_every_record_once_and_in_order(
    spark: SparkSession, brokers: BrokerCluster, topic: str, pace: Pace, fault: Fault,
    background: Callable[..., Future[Any]],
) -> None:  # fmt: skip
    fill(brokers, topic)
    frame = source(spark, brokers, topic).select("partition", "offset", "value")
    job = background(frame.mapInArrow(pace.slowly, frame.schema).toArrow)
    pace.started(2, job)

    fault(brokers, topic)
    assert not job.done()
    pace.hurry()

    expected = (list(range(PER_PARTITION)), numbered(PER_PARTITION))
    assert by_partition(job.result(JOB_TIMEOUT_S)) == dict.fromkeys(range(PARTITIONS), expected)


@each_fault
def test_a_batch_write_stores_every_row_once_and_in_the_order_of_its_task(
    spark: SparkSession, brokers: BrokerCluster, topic: str, pace: Pace, fault: Fault,
    background: Callable[..., Future[Any]],
) -> None:  # fmt: skip
    brokers.create_topic(topic, partitions=PARTITIONS)
    rows = rows_of_tasks(spark)
    job = background(save, rows.mapInArrow(pace.slowly, rows.schema), brokers, topic)
    pace.started(2, job)

    fault(brokers, topic)
    assert not job.done()
    pace.hurry()
    job.result(JOB_TIMEOUT_S)

    assert by_task(stored(brokers, topic)) == expected_of_tasks()


# Streams

MICRO_BATCHES = 100


def copying(
    spark: SparkSession, brokers: BrokerCluster, topic: str, checkpoint: Path, **options: Any
) -> DataStreamWriter:
    """Return a stream that copies a topic to another."""
    frame = (
        spark.readStream.format("kbatch").option("kafka.bootstrap.servers", brokers.servers)
        .option("subscribe", topic).option("startingOffsets", "earliest").options(**options).load()
    )  # fmt: skip
    return (
        frame.select("partition", "key", "value").writeStream.format("kbatch")
        .option("kafka.bootstrap.servers", brokers.servers).option("topic", "to-" + topic)
        .option("checkpointLocation", str(checkpoint))
    )  # fmt: skip


# A core has one worker that reads and one that writes; Spark may change which does what.
WORKERS = 4


def test_a_hundred_micro_batches_take_one_producer_id_per_worker_at_most(
    spark: SparkSession, brokers: BrokerCluster, topic: str, tmp_path: Path
) -> None:
    fill(brokers, topic, 1000)
    brokers.create_topic("to-" + topic, partitions=PARTITIONS)

    stream = copying(spark, brokers, topic, tmp_path / "checkpoint", maxOffsetsPerTrigger=30)
    query = stream.trigger(availableNow=True).start()
    query.awaitTermination()

    sizes = [one.numInputRows for one in query.recentProgress if one.numInputRows]
    assert sizes == [30] * MICRO_BATCHES
    assert stored(brokers, "to-" + topic) == dict.fromkeys(range(PARTITIONS), numbered(1000))
    assert 1 <= len(producer_ids(brokers.files("to-" + topic))) <= WORKERS


def test_a_stream_copies_every_record_once_and_in_order_whatever_the_brokers_do(
    spark: SparkSession, brokers: BrokerCluster, topic: str, tmp_path: Path,
    background: Callable[..., Future[Any]],
) -> None:  # fmt: skip
    """A producer goes on sending until all faults and a hundred micro-batches are over."""
    for name in (topic, "to-" + topic):
        brokers.create_topic(name, partitions=PARTITIONS)
    is_over = threading.Event()
    sent = background(send_until, brokers, topic, is_over)
    query = copying(spark, brokers, topic, tmp_path / "checkpoint").start()
    try:
        for fault in FAULTS:
            fault(brokers, topic, "to-" + topic)
            assert query.isActive, query.exception()
        until(lambda: query.lastProgress["batchId"] >= MICRO_BATCHES, timeout_s=JOB_TIMEOUT_S)
    finally:
        is_over.set()
    count = sent.result(JOB_TIMEOUT_S)
    query.processAllAvailable()
    query.stop()

    assert stored(brokers, "to-" + topic) == dict.fromkeys(range(PARTITIONS), numbered(count))
    assert 1 <= len(producer_ids(brokers.files("to-" + topic))) <= WORKERS


# One broker that does not answer


def test_a_silent_broker_does_not_hold_back_what_is_written_to_the_others(
    spark: SparkSession, brokers: BrokerCluster, topic: str, pace: Pace,
    background: Callable[..., Future[Any]],
) -> None:  # fmt: skip
    """Broker p + 1 leads partition p."""
    brokers.create_topic(topic, partitions=PARTITIONS)
    rows = rows_of_tasks(spark)
    job = background(save, rows.mapInArrow(pace.slowly, rows.schema), brokers, topic)
    until(lambda: all(end > 0 for end in brokers.ends(topic)))

    brokers.proxies[2].stall()
    pace.hurry()
    # Two of the three tasks run at a time, on two cores; the third waits for one of them to end.
    until(lambda: brokers.ends(topic)[0] >= 20_000 and brokers.ends(topic)[2] >= 20_000)
    assert not job.done()
    assert brokers.ends(topic)[1] < 20_000
    brokers.proxies[2].go_on()
    job.result(JOB_TIMEOUT_S)

    assert by_task(stored(brokers, topic)) == expected_of_tasks()


def test_a_silent_broker_does_not_hold_back_tasks_that_read_from_others(
    spark: SparkSession, brokers: BrokerCluster, topic: str, pace: Pace,
    background: Callable[..., Future[Any]],
) -> None:  # fmt: skip
    fill(brokers, topic)
    frame = source(spark, brokers, topic).select("partition", "offset", "value")
    job = background(frame.mapInArrow(pace.slowly, frame.schema).toArrow)
    pace.started(2, job)

    brokers.proxies[2].stall()
    pace.hurry()
    pace.ended(2, job)  # of three, on two cores
    assert not job.done()
    brokers.proxies[2].go_on()

    expected = (list(range(PER_PARTITION)), numbered(PER_PARTITION))
    assert by_partition(job.result(JOB_TIMEOUT_S)) == dict.fromkeys(range(PARTITIONS), expected)


# Plain Python


def test_a_producer_and_a_reader_lose_repeat_and_reorder_nothing_whatever_the_brokers_do(
    brokers: BrokerCluster, topic: str
) -> None:
    """They have topics of their own, and meet the same faults."""
    written = "to-" + topic
    brokers.create_topic(written, partitions=PARTITIONS)
    fill(brokers, topic)
    is_over = threading.Event()
    with ThreadPoolExecutor(2) as executor:
        sent = executor.submit(send_until, brokers, written, is_over)
        found = executor.submit(read_until, brokers, topic, is_over)
        try:
            for fault in FAULTS:
                fault(brokers, topic, written)
                assert not sent.done()
                assert not found.done()
        finally:
            is_over.set()

        count = sent.result(JOB_TIMEOUT_S)
        assert count > 1000
        assert stored(brokers, written) == dict.fromkeys(range(PARTITIONS), numbered(count))
        expected = (list(range(PER_PARTITION)), numbered(PER_PARTITION))
        read_ = by_partition(found.result(JOB_TIMEOUT_S))
        assert read_ == dict.fromkeys(range(PARTITIONS), expected)


def send_until(brokers: BrokerCluster, topic: str, is_over: threading.Event) -> int:
    """Send numbered records to all partitions until it is over; return how many each has."""
    count = 0
    with spark_kbatch.connect(brokers.servers) as cluster, cluster.producer() as producer:
        while not is_over.is_set():
            for partition in range(PARTITIONS):
                producer.send(topic, value=b"%0100d" % count, partition=partition)
            count += 1
            time.sleep(0.001)
    return count


def read_until(brokers: BrokerCluster, topic: str, is_over: threading.Event) -> pa.Table:
    """Read a topic slowly until it is over, and then the rest."""
    found = []
    with spark_kbatch.connect(brokers.servers, **{"max.partition.fetch.bytes": "16384"}) as cluster:
        for batch in cluster.read(topic):
            found.append(batch.select(["partition", "offset", "value"]))
            is_over.wait(0.5)
        is_over.wait()
    return pa.Table.from_batches(found)


def test_a_silent_broker_does_not_hold_back_what_a_producer_sends_to_the_others(
    brokers: BrokerCluster, topic: str
) -> None:
    brokers.create_topic(topic, partitions=PARTITIONS)
    with spark_kbatch.connect(brokers.servers) as cluster, cluster.producer() as producer:
        for partition in range(PARTITIONS):
            producer.send(topic, value=b"%0100d" % 0, partition=partition).result(60)
        brokers.proxies[2].stall()
        sent = {
            p: [producer.send(topic, value=value, partition=p) for value in numbered(5001)[1:]]
            for p in range(PARTITIONS)
        }
        for p in (0, 2):
            for one in sent[p]:
                one.result(20)
        assert not any(one.done() for one in sent[1])
        brokers.proxies[2].go_on()
        for one in sent[1]:
            one.result(60)

    assert stored(brokers, topic) == dict.fromkeys(range(PARTITIONS), numbered(5001))
