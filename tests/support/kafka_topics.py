"""Topics on a real broker, written by clients in C and Java, with everything that a broker's log may hold."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping

from confluent_kafka import Producer, TopicPartition

from tests.support.kafka import Broker, Kafka
from tests.support.logs_for_kafka import odd_records
from tests.support.reference import CODECS, Record
from tests.support.waiting import until

BROKER_SETTINGS = {
    "log_cleaner_backoff_ms": 100,
    # Otherwise log start offsets are not written to a file for a minute.
    "log_flush_start_offset_checkpoint_interval_ms": 100,
    "log_initial_task_delay_ms": 500,
    "log_retention_check_interval_ms": 500,
}
# A segment holds records of this time; those of `odd_records` are 100 ms apart.
SEGMENT_MS = 30_000
RECORDS = 1500
_NULL = "<null>"
_KEEP = {"retention_ms": -1, "segment_ms": SEGMENT_MS, "index_interval_bytes": 600}


def fill(kafka: Kafka, broker: Broker) -> Mapping[str, int]:
    """Write all topics; return their partition counts by name."""
    _by_librdkafka(broker)
    _by_java(kafka, broker)
    _stamped(broker)
    _trimmed(broker)
    _transactional(broker)
    _compacted(broker)
    return {
        "librdkafka": len(CODECS), "java": len(CODECS), "stamped": len(CODECS), "trimmed": 1,
        "transactional": 2, "compacted": 1,
    }  # fmt: skip


def _producer(broker: Broker, **options: object) -> Producer:
    settings = {"bootstrap.servers": broker.address, "batch.size": 3000, "linger.ms": 5}
    return Producer(settings | {name.replace("_", "."): value for name, value in options.items()})


def _send(producer: Producer, topic: str, records: Iterable[Record], partition: int = 0) -> None:
    """Send records; on return the broker has them."""
    for record in records:
        producer.produce(
            topic, record.value, record.key, partition,
            timestamp=record.timestamp, headers=list(record.headers),
        )  # fmt: skip
    assert producer.flush(60) == 0


def _by_librdkafka(broker: Broker) -> None:
    """Write a topic with a partition per codec; every other producer is idempotent."""
    broker.create_topic("librdkafka", partitions=len(CODECS), **_KEEP)
    for partition, codec in enumerate(CODECS):
        producer = _producer(broker, compression_type=codec, enable_idempotence=partition % 2 == 0)
        _send(producer, "librdkafka", odd_records(RECORDS, seed=partition), partition)


def _by_java(kafka: Kafka, broker: Broker) -> None:
    """Write one codec after the other to all partitions, with the console's idempotent producer."""
    broker.create_topic("java", partitions=len(CODECS), index_interval_bytes=600)
    for number, codec in enumerate(CODECS):
        lines = [as_line(record) for record in odd_records(500, seed=number)]
        kafka.run(
            "org.apache.kafka.tools.ConsoleProducer",
            "--bootstrap-server", broker.address, "--topic", "java", "--compression-codec", codec,
            "--batch-size", 3000, "--property", "parse.key=true", "--property", "parse.headers=true",
            "--property", f"null.marker={_NULL}",
            stdin="".join(lines),
        )  # fmt: skip


def as_line(record: Record) -> str:
    """A record as the console's producer parses it: headers, key and value."""

    def text(value: bytes | None) -> str:
        return _NULL if value is None else value.decode()

    headers = ",".join(f"{name}:{text(value)}" for name, value in record.headers if name)
    return f"{headers or _NULL}\t{text(record.key)}\t{text(record.value)}\n"


def _stamped(broker: Broker) -> None:
    """Write a topic with a partition per codec in which the broker sets the timestamps."""
    partitions = len(CODECS)
    broker.create_topic("stamped", partitions=partitions, message_timestamp_type="LogAppendTime")
    for partition, codec in enumerate(CODECS):
        _send(_producer(broker, compression_type=codec), "stamped", odd_records(200), partition)


def _trimmed(broker: Broker) -> None:
    """Write a topic whose first records were deleted, up to the middle of a batch."""
    broker.create_topic("trimmed", **_KEEP)
    _send(_producer(broker), "trimmed", odd_records(RECORDS))
    client = broker.admin()
    for future in client.delete_records([TopicPartition("trimmed", 0, 705)]).values():
        future.result(timeout=60)
    checkpoint = broker.log_dir / "log-start-offset-checkpoint"
    until(lambda: "trimmed 0 705\n" in checkpoint.read_text())
    # Until the segments before it are deleted, the broker searches them for times and finds nothing.
    logs = broker.directory("trimmed")
    until(lambda: sum(int(path.stem) <= 705 for path in logs.glob("*.log")) == 1)


def _transactional(broker: Broker) -> None:
    """Write two concurrent transactions at a time, committed and aborted, with other records between them.

    The last one is never ended.
    """
    broker.create_topic("transactional", partitions=2, **_KEEP)
    first, second = _transactions(broker, "first"), _transactions(broker, "second")
    plain = _producer(broker)
    records = iter(odd_records(3000))

    def send(producer: Producer, count: int) -> None:
        for partition in range(2):
            _send(producer, "transactional", _next(records, count), partition)

    for number in range(12):
        for producer in (first, second):
            producer.begin_transaction()
            send(producer, 20)
        send(plain, 5)
        for producer, aborts in ((first, number % 3 == 0), (second, number % 2 == 0)):
            send(producer, 20)
            (producer.abort_transaction if aborts else producer.commit_transaction)(60)
    first.begin_transaction()
    send(first, 10)
    send(plain, 5)
    second.begin_transaction()
    send(second, 10)
    second.commit_transaction(60)


def _transactions(broker: Broker, name: str) -> Producer:
    # By default the broker aborts a transaction after a minute.
    producer = _producer(broker, transactional_id=name, transaction_timeout_ms=900_000)
    producer.init_transactions(60)
    return producer


def _next(records: Iterator[Record], count: int) -> list[Record]:
    return [next(records) for _ in range(count)]


def _compacted(broker: Broker) -> None:
    """Write few keys in many versions, tombstones and aborted transactions; return after the cleaner has run."""
    broker.create_topic(
        "compacted", cleanup_policy="compact", segment_ms=1000, min_cleanable_dirty_ratio=0.01,
        index_interval_bytes=600,
    )  # fmt: skip
    plain, transactions = _producer(broker, compression_type="zstd"), _transactions(broker, "c")
    # The timestamps give each version its own segment; none is earlier than the markers between versions.
    now_ms = time.time_ns() // 1_000_000
    for version in range(30):
        timestamp = now_ms + 2000 * version
        records = [
            Record(
                0, timestamp, b"key %d" % key, None if (key + version) % 7 == 0 else b"%d" % version
            )
            for key in range(version % 5, 50, 1 + version % 3)
        ]
        if version % 4 == 0:
            transactions.begin_transaction()
            _send(transactions, "compacted", records)
            aborts = version % 8 == 0
            (transactions.abort_transaction if aborts else transactions.commit_transaction)(60)
        else:
            _send(plain, "compacted", records)
    until(lambda: _cleaned_to(broker, "compacted") >= _last_base_offset(broker, "compacted"))


def _cleaned_to(broker: Broker, topic: str) -> int:
    text = (broker.log_dir / "cleaner-offset-checkpoint").read_text()
    lines = [line.split() for line in text.splitlines()]
    return next((int(line[2]) for line in lines if line[:2] == [topic, "0"]), -1)


def _last_base_offset(broker: Broker, topic: str) -> int:
    return max(int(path.stem) for path in broker.directory(topic).glob("*.log"))
