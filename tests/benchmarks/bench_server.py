"""How fast is `kbatch serve` for clients that no one here wrote?

Peer: a Kafka broker of Apache's, on the same machine, with the same clients and topics of one partition,
uncompressed, with 100-byte values; rounds alternate between the two.

    Java produces      ProducerPerformance: batch.size 64 KiB, linger 5 ms, acks=all; records a second
    Java consumes      ConsumerPerformance; records a second of fetching
    librdkafka reads   confluent-kafka's `consume`; records a second
    one record         from `produce` to its acknowledgement, linger 0, acks=all; ms
    readiness          from the start of the command, which creates a cluster, to the first answer; s
    memory             resident: before the first record, and at the end; MiB
"""

from __future__ import annotations

import contextlib
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import kafka as kafka_python
import psutil

from tests.support.interleaved import Rates
from tests.support.kafka import Broker, Kafka, WarmKafka
from tests.support.targets import Targets

ROUNDS, RECORDS, SINGLE_RECORDS = 7, 1_000_000, 2_000
MiB = 1 << 20
OURS, PEER = "kbatch serve", "Kafka's broker"
RATIO = 0.8
LIMITS = {
    "p50": (1.5, " ms"),
    "p99": (10.0, " ms"),
    "ready": (1.0, " s"),
    "idle": (150.0, " MiB"),
    "loaded": (400.0, " MiB"),
}
TOOLS = "org.apache.kafka.tools"


@contextlib.contextmanager
def served(path: Path) -> Iterator[tuple[psutil.Process, str, float]]:
    """Start the command; yield its process, its address, and after how many seconds it answered."""
    run = "from spark_kbatch.cli.main import main; main()"
    words = ["serve", str(path), "--create", "--json", "--listen", "127.0.0.1:0"]
    command = [sys.executable, "-c", run, *words]
    started = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = json.loads(process.stdout.readline())["bootstrap_servers"]
            client = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "g"})
            client.list_topics(timeout=10)
            seconds = time.monotonic() - started
            client.close()
            yield psutil.Process(process.pid), address, seconds
        finally:
            process.kill()


def java_produces(kafka: Kafka, address: str, topic: str) -> float:
    printed = kafka.run(
        f"{TOOLS}.ProducerPerformance", "--topic", topic, "--num-records", RECORDS, "--record-size",
        100, "--throughput", -1, "--producer-props", f"bootstrap.servers={address}", "acks=all",
        "batch.size=65536", "linger.ms=5",
    )  # fmt: skip
    [(count, rate)] = re.findall(r"^(\d+) records sent, ([\d.]+) records/sec.*max", printed, re.M)[
        -1:
    ]
    assert int(count) == RECORDS
    return float(rate)


def java_consumes(kafka: Kafka, address: str, topic: str) -> float:
    printed = kafka.run(
        f"{TOOLS}.ConsumerPerformance", "--bootstrap-server", address, "--topic", topic,
        "--messages", RECORDS, "--group", f"perf-{time.time_ns()}", "--timeout", 60_000,
    )  # fmt: skip
    heading, *_, line = printed.strip().splitlines()
    columns = dict(zip(heading.split(", "), line.split(", "), strict=True))
    assert int(columns["data.consumed.in.nMsg"]) >= RECORDS
    return float(columns["fetch.nMsg.sec"])


def librdkafka_reads(address: str, topic: str) -> float:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "unused"})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    started, found = time.perf_counter(), 0
    while found < RECORDS:
        found += len(consumer.consume(10_000, timeout=10))
    seconds = time.perf_counter() - started
    consumer.close()
    return found / seconds


def single_records_ms(address: str, topic: str) -> list[float]:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": address, "linger.ms": 0, "acks": "all"}
    )
    times = []
    for number in range(SINGLE_RECORDS + 100):
        started = time.perf_counter()
        producer.produce(topic, b"v" * 100)
        assert producer.flush(10) == 0
        if number >= 100:
            times.append((time.perf_counter() - started) * 1000)
    return times


def bench_server(kafka: Kafka, tmp_path: Path, memory_path: Path, targets: Targets) -> None:
    warm = WarmKafka.of(kafka)
    rates: dict[str, dict[str, list[float]]] = {
        name: {OURS: [], PEER: []}
        for name in ("Java produces", "Java consumes", "librdkafka reads")
    }
    singles: dict[str, list[float]] = {OURS: [], PEER: []}
    with (
        served(memory_path / "cluster") as (process, ours, ready),
        Broker(warm, memory_path / "kafka") as broker,
    ):
        idle = process.memory_info().rss / MiB
        for number in range(ROUNDS + 1):
            topic = f"events-{number}"
            both = {OURS: ours, PEER: broker.address}
            for name, address in [*both.items()][:: 1 if number % 2 else -1]:
                broker.create_topic(topic) if name == PEER else create(ours, topic)
                found = {
                    "Java produces": java_produces(warm, address, topic),
                    "Java consumes": java_consumes(warm, address, topic),
                    "librdkafka reads": librdkafka_reads(address, topic),
                }
                milliseconds = single_records_ms(address, topic)
                if number:
                    for what, rate in found.items():
                        rates[what][name].append(rate)
                    singles[name] += milliseconds
        loaded = process.memory_info().rss / MiB

    starts = [ready]
    for number in range(ROUNDS - 1):
        with served(memory_path / f"started-{number}") as (_, _, seconds):
            starts.append(seconds)
    found = {
        **{f"p{at}": statistics.quantiles(singles[OURS], n=100)[at - 1] for at in (50, 99)},
        "ready": statistics.median(starts), "idle": idle, "loaded": loaded,
    }  # fmt: skip
    for what, by_name in rates.items():
        targets.rates(Rates(by_name), what, "records/s", {(OURS, PEER): RATIO})
    for name, value in found.items():
        targets.at_most(name, value, LIMITS[name][0], LIMITS[name][1])
    for at in (50, 99):
        value = statistics.quantiles(singles[PEER], n=100)[at - 1]
        targets.say(f"p{at} of {PEER}: {value:,.2f} ms")


def create(address: str, topic: str) -> None:
    admin = kafka_python.KafkaAdminClient(bootstrap_servers=address)
    admin.create_topics([kafka_python.admin.NewTopic(topic, 1, 1)])
    admin.close()
