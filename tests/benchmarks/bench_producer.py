"""How fast does the whole producer take rows: partition, accumulate, encode, hand over?

Unit: million records a second, one core; 16-byte keys, 100-byte values, 8 partitions by key, batches
of 1 MiB as a Spark task has them, uncompressed, with CRC, to a transport that only looks where the
bytes lie. Ceilings: memcpy of the encoded bytes between two arrays; encoding alone, which neither
partitions rows nor hands batches over. Peer: confluent-kafka's `produce`, which copies each record into
librdkafka's queue and encodes none of them; its callbacks and its broker are not there.

Then plain Python's `send_arrow`, 10,000 rows at a time, into an embedded log in memory that is not flushed:
with Kafka's default batch.size of 16 KiB, whose ceiling are batches of 1 MiB. Before and after a change:
`make bench`, then read the ratios.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from confluent_kafka import Producer as ConfluentProducer

from spark_kbatch import Cluster
from spark_kbatch.clock import now_ms
from spark_kbatch.kernels import records as record_kernels
from spark_kbatch.kernels import routing
from spark_kbatch.model import AppendResult
from spark_kbatch.options.producer import ProducerConfig
from spark_kbatch.options.topic import Topic, TopicConfig
from spark_kbatch.producer.producer import Producer
from spark_kbatch.store.transport import Answer, SendRequest
from tests.benchmarks.bench_codec import encode_all
from tests.support.interleaved import Candidate, bulk_rows, interleave
from tests.support.targets import Targets

ROWS = 4_000_000
ROWS_AT_ONCE = 10_000  # as Spark hands them to a writer
PEER_ROWS = 200_000
LOG_ROWS = 400_000
BATCH_SIZE = 1024 * 1024
TARGETS = {("producer", "encode alone"): 0.55, ("producer", "confluent-kafka"): 20.0}
LOG_TARGETS = {("16 KiB batches", "1 MiB batches"): 0.45}
LOG_RATE = 2.5  # million records a second with batches of 16 KiB


class Nowhere:
    """A transport that takes whatever comes."""

    def __init__(self) -> None:
        self.records = self.bytes = 0

    def send(self, request: SendRequest, on_answer: Callable[[Answer], None]) -> None:
        for batch in request.batches:
            self.records += batch.records_count
            self.bytes += len(batch.data)
        on_answer({batch.topic_partition: AppendResult() for batch in request.batches})


def produce(batches: list[pa.RecordBatch]) -> Nowhere:
    transport = Nowhere()
    topic = Topic("events", "id", 8, TopicConfig())
    config = ProducerConfig(
        batch_size=BATCH_SIZE, linger_ms=None, enable_idempotence=False, max_request_size=2**31 - 1
    )
    with Producer(config, transport, lambda _: topic, now_ms, inline=True) as producer:
        for rows in batches:
            producer.append(rows, "events")
    return transport


def confluent_produce(rows: list[tuple[bytes, bytes]]) -> None:
    producer = ConfluentProducer(
        {
            "bootstrap.servers": "127.0.0.1:1",
            "queue.buffering.max.messages": 2 * len(rows),
            "queue.buffering.max.kbytes": 1024 * 1024,
            "log_level": 0,
        }
    )
    for key, value in rows:
        producer.produce("events", value, key)
    producer.purge()


def bench_producer(targets: Targets) -> None:
    record_kernels.load()
    routing.load()
    rows = bulk_rows(ROWS, key_bytes=16, value_bytes=100)
    batches = [rows.slice(first, ROWS_AT_ONCE) for first in range(0, ROWS, ROWS_AT_ONCE)]
    sent = produce(batches)
    assert sent.records == ROWS
    source, target = np.zeros(sent.bytes, np.uint8), np.zeros(sent.bytes, np.uint8)
    source[:] = 1
    peer_rows = list(
        zip(*(rows.column(c)[:PEER_ROWS].to_pylist() for c in ("key", "value")), strict=True)
    )
    memory = np.empty(8 * BATCH_SIZE, np.uint8).data
    rates = interleave(
        {
            "memcpy": Candidate(lambda: np.copyto(target, source), ROWS / 1e6),
            "encode alone": Candidate(
                lambda: encode_all(rows, memory, batch_size=BATCH_SIZE), ROWS / 1e6
            ),
            "producer": Candidate(lambda: produce(batches), ROWS / 1e6),
            "confluent-kafka": Candidate(lambda: confluent_produce(peer_rows), PEER_ROWS / 1e6),
        },
        rounds=9,
    )
    targets.rates(rates, "Rows to finished batches, 8 partitions, one core", "M records/s", TARGETS)


def bench_default_batches(memory_path: Path, targets: Targets) -> None:
    table = bulk_rows(ROWS_AT_ONCE, key_bytes=16, value_bytes=100)
    cluster = Cluster(str(memory_path / "cluster"), create=True)
    for topic in ("small", "large"):
        # Old segments are deleted meanwhile: it all has to fit into memory.
        cluster.create_topic(
            topic, config={"retention.bytes": str(64 << 20), "segment.bytes": str(32 << 20)}
        )

    def send(topic: str, batch_size: int) -> None:
        with cluster.producer(batch_size=batch_size, flush=False) as producer:
            for _ in range(0, LOG_ROWS, ROWS_AT_ONCE):
                producer.send_arrow(topic, table)

    units = LOG_ROWS / 1e6
    rates = interleave(
        {
            "16 KiB batches": Candidate(lambda: send("small", 16 * 1024), units),
            "1 MiB batches": Candidate(lambda: send("large", 1024 * 1024), units),
        },
        rounds=9,
    )
    title = "send_arrow into a log, one partition, flush off"
    targets.rates(rates, title, "M records/s", LOG_TARGETS)
    targets.at_least("16 KiB batches", rates.median("16 KiB batches"), LOG_RATE, " M records/s")
