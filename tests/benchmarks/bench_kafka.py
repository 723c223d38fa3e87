"""A real broker: this package beside Spark's own connector, and beside other Python clients.

Unit: million rows a second, through a whole Spark job with local[2], and in plain Python; 16-byte keys,
4 partitions. The broker runs on the same cores, so beside each rate stand the CPU seconds per million
rows of Spark with its workers, and of the broker. Spark does not tell a Python data source which columns
a query needs, so rows are also read with key and value named by `schema`. Ceiling of that: a source that
yields as many ready-made batches. Peers: `format("kafka")`; confluent-kafka's
`consume`, whose messages are put into Arrow arrays, since that is what the other two return; kafkarrow;
kafka-python for records sent one by one; aiokafka for those that are awaited; Kafka's own producer for
batches of 16 KiB, its default, and how many of them a request has.

The rows of one key of 100,000 are read by a condition, `where`, beside the connector's rows and Spark's filter:
20 million rows, or KBATCH_BENCH_WHERE_ROWS.

A micro-batch of 100 rows, from topic to topic, is compared with the same on an embedded log: the ratio of
the two median times. So are micro-batches of 100 rows and of 16 MiB that are written exactly once, with those
that are at least once; beside them Spark's own connector, which is at least once.

`make bench-kafka`; needs Maven.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import confluent_kafka
import kafkarrow
import psutil
import pyarrow as pa
import pytest
from aiokafka import AIOKafkaProducer
from kafka import KafkaProducer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own convention

import spark_kbatch
from spark_kbatch.consumer.reading import PIECE_BYTES
from tests.support.bench_sessions import bench_session
from tests.support.interleaved import Candidate, Rates, bulk_rows, interleave
from tests.support.kafka import Broker, Kafka, WarmKafka
from tests.support.keyed_rows import ROWS_OF_A_KEY, WHERE_ROWS, keyed_rows, one_key, say_bytes
from tests.support.memory_folder import memory_folder
from tests.support.spark_sources import BareSource
from tests.support.speeds import WITH_BROKER, store_speeds
from tests.support.targets import Targets

PARTITIONS, MILLION = 4, 1_000_000
READ, WRITE = 2.5, 1.5  # times Spark's connector
NAMED = "kbatch, columns named"
DEFAULT_BATCH_SIZE, SMALL, SMALL_WRITE = 16_384, "kbatch, 16 KiB batches", 1.0  # Kafka's default
A_REQUEST = 0.9  # batches, times the Java client's
READY = "ready-made rows"
CONFLUENT, KAFKARROW = 10.0, 1.0
PYTHON, SEND = "kafka-python, to a broker", 2.0
AWAITED = 3.0  # times aiokafka
ONE_KEY, A_KEY = "kbatch, where", 8.0  # times Spark's connector and a filter
MICRO_BATCH = 1.2  # times an embedded log
MICRO_BATCHES, MICRO_BATCH_ROWS = 40, 100
EXACTLY_ONCE = 1.3  # times at least once
LARGE_MICRO_BATCHES, LARGE_ROWS = 12, 16 * 1024 * 1024 // (16 + 1000)  # of a key and a value


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with Spark's connector."""
    with bench_session(memory="3g", jars=tmp_path_factory.mktemp("jars")) as session:
        session.dataSource.register(BareSource)
        yield session


@pytest.fixture(scope="session")
def broker(kafka: Kafka) -> Iterator[Broker]:
    """A broker whose logs are in memory where the system has a file system there."""
    with (
        memory_folder() as folder,
        Broker(WarmKafka.of(kafka), folder, log_segment_delete_delay_ms=100) as found,
    ):
        yield found


def rows_of(spark: SparkSession, count: int, value_bytes: int) -> DataFrame:
    value = F.rpad(F.sha2(F.col("id").cast("string"), 512), value_bytes, "v").cast("binary")
    return spark.range(0, count, 1, PARTITIONS).select(
        F.lpad(F.hex("id"), 16, "k").cast("binary").alias("key"), value.alias("value")
    )


class Topics:
    """New topics, each deleted when the next one is made."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self.name = broker, ""
        self._admin = broker.admin()  # kept: a client that is dropped ends its requests

    def next(self) -> str:
        self.delete()
        self.name = f"written-{time.monotonic_ns()}"
        self._broker.create_topic(self.name, partitions=PARTITIONS)
        return self.name

    def delete(self) -> None:
        if self.name:
            for future in self._admin.delete_topics([self.name]).values():
                future.result(60)
        self.name = ""


def cpu_seconds(*processes: psutil.Process) -> float:
    """Return the CPU time of processes and all their descendants, ended ones that were waited for too."""
    times = [
        one.cpu_times()
        for process in processes
        for one in (process, *process.children(recursive=True))
    ]
    return sum(t.user + t.system + t.children_user + t.children_system for t in times)


class Job:
    """A Spark job, with the CPU seconds that each run takes on both sides."""

    def __init__(self, work: Callable[[], None], broker: Broker) -> None:
        assert broker.pid is not None
        self._work = work
        self._pytest, self._broker = psutil.Process(), psutil.Process(broker.pid)
        self._spark_s: list[float] = []
        self._broker_s: list[float] = []

    def run(self) -> None:
        spark_s, broker_s = self._spent_s()
        self._work()
        spark_after_s, broker_after_s = self._spent_s()
        self._spark_s.append(spark_after_s - spark_s)
        self._broker_s.append(broker_after_s - broker_s)

    def _spent_s(self) -> tuple[float, float]:
        broker_s = cpu_seconds(self._broker)
        return cpu_seconds(self._pytest) - broker_s, broker_s

    def cpu(self, millions: float) -> str:
        spark_s, broker_s = (
            statistics.median(times) / millions for times in (self._spark_s, self._broker_s)
        )
        return f"CPU seconds per million rows: Spark {spark_s:.2f}, broker {broker_s:.2f}"


@pytest.mark.parametrize(
    ("value_bytes", "count", "codec"),
    [
        pytest.param(100, 4 * MILLION, "none", id="100 bytes"),
        pytest.param(1000, MILLION, "none", id="1 KB"),
        pytest.param(100, 4 * MILLION, "zstd", id="100 bytes, zstd"),
    ],
)
def bench_through_spark(
    spark: SparkSession,
    broker: Broker,
    value_bytes: int,
    count: int,
    codec: str,
    targets: Targets,
) -> None:
    rows = rows_of(spark, count, value_bytes).persist()
    assert rows.count() == count
    topics, filled = Topics(broker), f"filled-{value_bytes}-{codec}"
    broker.create_topic(filled, partitions=PARTITIONS)
    topics.next()

    def write(source: str, topic: str, **options: str) -> None:
        sink = rows.write.format(source).mode("append").option("topic", topic).options(**options)
        sink.option("kafka.bootstrap.servers", broker.address).option(
            "kafka.compression.type", codec
        ).save()

    def read(source: str, schema: str) -> None:
        frame = spark.read.format(source).option("kafka.bootstrap.servers", broker.address)
        if schema:
            frame = frame.schema(schema)
        found = frame.option("subscribe", filled).load().select("key", "value")
        found.write.format("noop").mode("overwrite").save()

    write("kbatch", filled)
    millions = count / MILLION
    ready = spark.read.format("bare").options(
        rows=count, partitions=PARTITIONS, batchrows=PIECE_BYTES // (value_bytes + 20), valuebytes=value_bytes
    )  # fmt: skip
    reading = {
        name: Job(lambda name=name, schema=schema: read(name.split(",")[0], schema), broker)
        for name, schema in (
            ("kbatch", ""),
            (NAMED, "key binary, value binary"),
            ("kafka", ""),
        )
    }
    writing = {
        name: Job(lambda name=name: write(name, topics.name), broker)
        for name in ("kbatch", "kafka")
    }
    small = {"kafka.batch.size": str(DEFAULT_BATCH_SIZE)}
    writing[SMALL] = Job(lambda: write("kbatch", topics.name, **small), broker)
    reading[READY] = Job(lambda: ready.load().write.format("noop").mode("overwrite").save(), broker)
    reads = interleave(
        {name: Candidate(job.run, millions) for name, job in reading.items()}, rounds=7
    )
    writes = interleave(
        {name: Candidate(job.run, millions, topics.next) for name, job in writing.items()}, rounds=7
    )
    topics.delete()
    rows.unpersist()
    title = f"{value_bytes}-byte values, {codec}"
    of_reads = {("kbatch", "kafka"): READ, (NAMED, "kafka"): READ}
    targets.rates(reads, f"Read, {title}", "M rows/s", of_reads)
    of_writes = {("kbatch", "kafka"): WRITE, (SMALL, "kafka"): SMALL_WRITE}
    targets.rates(writes, f"Write, {title}", "M rows/s", of_writes)
    if (value_bytes, codec) == (100, "none"):
        found = {
            "read/kafka": reads.ratio("kbatch", "kafka"),
            "read named/kafka": reads.ratio(NAMED, "kafka"),
            "write/kafka": writes.ratio("kbatch", "kafka"),
        }
        store_speeds(WITH_BROKER, found)
    for what, jobs in (("read", reading), ("write", writing)):
        for name, job in jobs.items():
            targets.say(f"{what}, {name}: {job.cpu(millions)}")


def bench_one_key(spark: SparkSession, broker: Broker, targets: Targets) -> None:
    """The rows of one key: by a condition of the source, and by Spark's filter of the connector's rows."""
    topic = "keyed"
    # The rows' times are long ago.
    broker.create_topic(topic, partitions=PARTITIONS, retention_ms=-1)
    sink = keyed_rows(spark, 0, WHERE_ROWS).write.format("kbatch").mode("append")
    sink.option("kafka.bootstrap.servers", broker.address).option("topic", topic).save()
    key = one_key(7)

    def collect(source: str, **options: str) -> None:
        options |= {"kafka.bootstrap.servers": broker.address, "subscribe": topic}
        found = spark.read.format(source).options(**options).load()
        if not options.get("where"):
            found = found.filter(F.col("key") == F.lit(key.encode()))
        assert len(found.select("key", "value").collect()) == ROWS_OF_A_KEY

    where = f"key = '{key}'"
    jobs = {
        ONE_KEY: Job(lambda: collect("kbatch", where=where), broker),
        "kbatch and Spark's filter": Job(lambda: collect("kbatch"), broker),
        "kafka and Spark's filter": Job(lambda: collect("kafka"), broker),
    }
    millions = WHERE_ROWS / MILLION
    rates = interleave({name: Candidate(job.run, millions) for name, job in jobs.items()}, rounds=5)
    title = f"One key of {WHERE_ROWS // ROWS_OF_A_KEY:,}, {millions:g} M rows, none"
    wanted = {(ONE_KEY, "kafka and Spark's filter"): A_KEY}
    targets.rates(rates, title, "M rows/s", wanted)
    for name, job in jobs.items():
        targets.say(f"one key, {name}: {job.cpu(millions)}")
    if WHERE_ROWS >= 20 * MILLION:
        of_key = rates.ratio(ONE_KEY, "kafka and Spark's filter")
        store_speeds(WITH_BROKER, {"one key/kafka": of_key})
    with spark_kbatch.connect(broker.address) as cluster:
        say_bytes(cluster, topic, [where], targets)
        cluster.delete_topic(topic)


# Micro-batches.


class Stream(NamedTuple):
    """A query that copies rows from the topic `from` to the topic `to`."""

    servers: str  # or a folder
    format: str = "kbatch"
    options: Mapping[str, str] = {}  # of its sink


def micro_batch_ms(spark: SparkSession, stream: Stream, rows: int, folder: Path) -> float:
    """Return the median time of a micro-batch of as many rows, the first five apart."""
    both = {"kafka.bootstrap.servers": stream.servers, "maxOffsetsPerTrigger": str(rows)}
    source = spark.readStream.format(stream.format).options(**both).option("subscribe", "from")
    # Each run is a query of its own.
    own = {"transactional.id.prefix": folder.name} if stream.options else {}
    query = (
        source.option("startingOffsets", "earliest")
        .load()
        .select("key", "value")
        .writeStream.format(stream.format)
        .options(**stream.options, **own)
        .option("kafka.bootstrap.servers", stream.servers)
        .option("topic", "to")
        .option("checkpointLocation", str(folder))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    done = [one for one in query.recentProgress if one.numInputRows]
    assert len(done) > 6
    return statistics.median(one.durationMs["triggerExecution"] for one in done[5:])


def fill(rows: DataFrame, servers: str) -> None:
    """Write the rows of `from`."""
    sink = rows.write.format("kbatch").mode("append").option("kafka.bootstrap.servers", servers)
    sink.option("topic", "from").save()


def compared(
    spark: SparkSession,
    streams: Mapping[str, Stream],
    rows: int,
    folder: Path,
    targets: Targets,
) -> float:
    """Return how much longer a micro-batch of the first stream takes than one of the second, by rounds."""
    ratios = []
    for number in range(7):
        turns = [*streams.items()][:: 1 if number % 2 else -1]
        found = {
            name: micro_batch_ms(spark, stream, rows, folder / f"{number}-{name}")
            for name, stream in turns
        }
        targets.say(", ".join(f"{name} {found[name]:.0f} ms" for name in streams))
        first, second, *_ = (found[name] for name in streams)
        ratios.append(first / second)
    targets.say(f"ratios from {min(ratios):.2f} to {max(ratios):.2f}")
    return statistics.median(ratios)


def bench_micro_batches(
    spark: SparkSession, broker: Broker, tmp_path: Path, targets: Targets
) -> None:
    rows = rows_of(spark, MICRO_BATCHES * MICRO_BATCH_ROWS, 100).coalesce(1)
    cluster = spark_kbatch.open(tmp_path / "cluster", create=True)
    streams = {
        "a broker": Stream(broker.address),
        "an embedded log": Stream(str(tmp_path / "cluster")),
    }
    for name in ("from", "to"):
        broker.create_topic(name)
        cluster.create_topic(name, partitions=1)
    for stream in streams.values():
        fill(rows, stream.servers)
    found = compared(spark, streams, MICRO_BATCH_ROWS, tmp_path, targets)
    targets.at_most("a micro-batch of 100 rows, of one of an embedded log", found, MICRO_BATCH)
    delete(broker, "from", "to")


@pytest.mark.parametrize(
    ("rows", "batches", "value_bytes"),
    [
        pytest.param(LARGE_ROWS, LARGE_MICRO_BATCHES, 1000, id="16 MiB"),
        pytest.param(MICRO_BATCH_ROWS, MICRO_BATCHES, 100, id="100 rows"),
    ],
)
def bench_exactly_once(
    spark: SparkSession,
    broker: Broker,
    rows: int,
    batches: int,
    value_bytes: int,
    tmp_path: Path,
    targets: Targets,
) -> None:
    for name in ("from", "to"):
        broker.create_topic(name, partitions=PARTITIONS)
    fill(rows_of(spark, rows * batches, value_bytes), broker.address)
    exactly_once = {"delivery.guarantee": "exactly-once"}
    streams = {
        "exactly once": Stream(broker.address, options=exactly_once),
        "at least once": Stream(broker.address),
        "Spark's connector": Stream(broker.address, "kafka"),
    }
    found = compared(spark, streams, rows, tmp_path, targets)
    targets.at_most(
        f"a micro-batch of {rows:,} rows exactly once, of one at least once", found, EXACTLY_ONCE
    )
    delete(broker, "from", "to")


def delete(broker: Broker, *topics: str) -> None:
    admin = broker.admin()  # kept: a client that is dropped ends its requests
    for future in admin.delete_topics([*topics]).values():
        future.result(60)


# Plain Python.


def bench_default_batches(kafka: Kafka, broker: Broker, targets: Targets) -> None:
    """Batches of 16 KiB to one partition and to eight, whose peer is Kafka's own producer."""
    table = bulk_rows(10_000, key_bytes=16, value_bytes=84)

    def ours(topic: str) -> tuple[float, float]:
        with (
            spark_kbatch.connect(broker.address) as cluster,
            cluster.producer(batch_size=DEFAULT_BATCH_SIZE) as producer,
        ):
            started = time.perf_counter()
            for _ in range(MILLION // table.num_rows):
                producer.send_arrow(topic, table)
            producer.flush()
            return 1 / (time.perf_counter() - started), _batches_a_request(producer.metrics())

    def java(topic: str) -> tuple[float, float]:
        printed = kafka.run(
            "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", MILLION,
            "--record-size", 100, "--throughput", -1, "--print-metrics", "--producer-props",
            f"bootstrap.servers={broker.address}", "acks=all",
        )  # fmt: skip
        [rate] = re.findall(rf"^{MILLION} records sent, ([\d.]+) records/sec", printed, re.M)[-1:]
        named = re.findall(r"^producer-metrics:([a-z-]+):\{[^}]*\}\s*: ([\d.]+)$", printed, re.M)
        batches = _batches_a_request({name: float(number) for name, number in named})
        return float(rate) / MILLION, batches

    for partitions in (1, 8):
        topic = f"default-{partitions}"
        broker.create_topic(topic, partitions=partitions)
        found: dict[str, list[tuple[float, float]]] = {"kbatch": [], "Java": []}
        for _ in range(6):
            found["kbatch"].append(ours(topic))
            found["Java"].append(java(topic))
        rates = Rates({name: [rate for rate, _ in runs[1:]] for name, runs in found.items()})
        title = f"send_arrow to a broker, batches of 16 KiB, {partitions} partitions"
        targets.rates(rates, title, "M records/s", {("kbatch", "Java"): 1.0})
        mine, theirs = (statistics.median(count for _, count in runs) for runs in found.values())
        targets.say(f"batches a request: kbatch {mine:.2f}, Java {theirs:.2f}")
        what = f"batches a request, {partitions} partitions, of Java's"
        targets.at_least(what, mine / theirs, A_REQUEST)


def _batches_a_request(metrics: Mapping[str, float | None]) -> float:
    """Return how many batches a request has on average, from a producer's metrics."""
    bytes_of = metrics["outgoing-byte-total"] or 0.0
    requests, batch_size = metrics["request-total"], metrics["batch-size-avg"]
    assert requests
    assert batch_size
    return bytes_of / requests / batch_size


def bench_plain_python(spark: SparkSession, broker: Broker, targets: Targets) -> None:
    count, topic = 2 * MILLION, "plain"
    broker.create_topic(topic, partitions=PARTITIONS)
    sink = rows_of(spark, count, 100).write.format("kbatch").mode("append")
    sink.option("kafka.bootstrap.servers", broker.address).option("topic", topic).save()

    def ours() -> None:
        with spark_kbatch.connect(broker.address) as cluster:
            assert sum(batch.num_rows for batch in cluster.read(topic)) == count

    def confluent() -> None:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": broker.address, "group.id": "unused"}
        )
        starts = [confluent_kafka.TopicPartition(topic, p, 0) for p in range(PARTITIONS)]
        consumer.assign(starts)
        found = 0
        while found < count:
            messages = consumer.consume(10_000, timeout=10)
            pa.array([one.key() for one in messages], pa.binary())
            pa.array([one.value() for one in messages], pa.binary())
            found += len(messages)
        consumer.close()

    def arrow() -> None:
        manager = kafkarrow.ConsumerManager(
            config={"bootstrap.servers": broker.address},
            topics=[kafkarrow.SourceTopic.from_earliest(topic)],
        )
        found, deadline = 0, time.monotonic() + 300
        while found < count:
            assert time.monotonic() < deadline
            found += manager.poll(timeout_ms=1000).num_rows

    millions = count / MILLION
    rates = interleave(
        {
            "kbatch": Candidate(ours, millions),
            "confluent-kafka": Candidate(confluent, millions),
            "kafkarrow": Candidate(arrow, millions),
        },
        rounds=7,
    )
    targets.rates(
        rates,
        "Plain Python, to Arrow, 100-byte values",
        "M rows/s",
        {("kbatch", "confluent-kafka"): CONFLUENT, ("kbatch", "kafkarrow"): KAFKARROW},
    )


def bench_records_one_by_one(broker: Broker, memory_path: Path, targets: Targets) -> None:
    count, key, value = 100_000, b"k" * 16, b"v" * 100
    broker.create_topic("sent")
    cluster = spark_kbatch.open(memory_path / "cluster", create=True)
    cluster.create_topic("sent")

    def to_log() -> None:
        with cluster.producer(flush=False) as producer:
            for _ in range(count):
                producer.send("sent", value, key)

    def to_broker() -> None:
        with spark_kbatch.connect(broker.address) as remote, remote.producer() as producer:
            for _ in range(count):
                producer.send("sent", value, key)

    def kafka_python() -> None:
        producer = KafkaProducer(bootstrap_servers=broker.address)
        for _ in range(count):
            producer.send("sent", value, key)
        producer.close()

    millions = count / MILLION
    rates = interleave(
        {
            "kbatch, into a log": Candidate(to_log, millions),
            "kbatch, to a broker": Candidate(to_broker, millions),
            PYTHON: Candidate(kafka_python, millions),
        },
        rounds=7,
    )
    targets.rates(
        rates,
        "Plain Python, send() record by record, 100-byte values",
        "M records/s",
        {("kbatch, into a log", PYTHON): SEND, ("kbatch, to a broker", PYTHON): SEND},
    )


def bench_records_that_are_awaited(broker: Broker, targets: Targets) -> None:
    """A thousand tasks of one event loop, each of which sends a record once the one before is written."""
    count, tasks, key, value = 50_000, 1000, b"k" * 16, b"v" * 100
    broker.create_topic("awaited")

    async def in_tasks(send: Callable[[], Awaitable[object]]) -> None:
        async def task() -> None:
            for _ in range(count // tasks):
                await send()

        await asyncio.gather(*(task() for _ in range(tasks)))

    def kbatch() -> None:
        with (
            spark_kbatch.connect(broker.address) as remote,
            remote.producer(linger_ms=1) as producer,
        ):
            asyncio.run(in_tasks(lambda: producer.send("awaited", value, key)))

    async def in_aiokafka() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=broker.address, linger_ms=1, acks="all", enable_idempotence=True
        ) as producer:
            await in_tasks(lambda: producer.send_and_wait("awaited", value, key))

    millions = count / MILLION
    rates = interleave(
        {
            "kbatch": Candidate(kbatch, millions),
            "aiokafka": Candidate(lambda: asyncio.run(in_aiokafka()), millions),
        },
        rounds=7,
    )
    targets.rates(
        rates,
        "Plain Python, await send() in 1,000 tasks, 100-byte values",
        "M records/s",
        {("kbatch", "aiokafka"): AWAITED},
    )
