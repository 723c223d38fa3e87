"""Reads from a server with Kafka's own clients: librdkafka, and the Java console consumer."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    TopicPartition,
)

from tests.support.kafka import Kafka
from tests.support.reference import Record

TIMEOUT_S = 30
_NULL = "<null>"
_END = "<end>\n"


class Listens(Protocol):
    """A broker, or another server that clients connect to."""

    @property
    def address(self) -> str:
        """HOST:PORT."""


class Address(NamedTuple):
    """The address of a server."""

    address: str


def consumer(broker: Listens, **options: object) -> Consumer:
    """Return a consumer that starts at given offsets and reports the end of each partition."""
    return Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "interop",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
        }
        | {name.replace("_", "."): value for name, value in options.items()}
    )


def read(
    broker: Listens, topic: str, partitions: Iterable[int], **options: object
) -> dict[int, list[Record]]:
    """Read all records of these partitions with librdkafka."""
    found: dict[int, list[Record]] = {p: [] for p in partitions}
    unfinished = set(found)
    client = consumer(broker, **options)
    try:
        client.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in found])
        deadline = time.monotonic() + TIMEOUT_S
        while unfinished:
            assert time.monotonic() < deadline, f"partitions {unfinished} have no end"
            for message in client.consume(1000, timeout=0.1):
                if message.error():
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    unfinished.discard(message.partition())
                    continue
                kind, timestamp = message.timestamp()
                found[message.partition()].append(
                    Record(
                        message.offset(),
                        -1 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
                        message.key(),
                        message.value(),
                        tuple(message.headers() or ()),
                    )
                )
    finally:
        client.close()
    return found


def read_by_console(
    kafka: Kafka,
    broker: Listens,
    topic: str,
    count: int,
    *,
    isolation: str = "read_uncommitted",
    partition: int | None = None,
    offset: int = 0,
) -> dict[int, list[Record]]:
    """Read `count` records of a topic, or of one partition from an offset on, with the Java client.

    Their bytes must be text.
    """
    shown = {
        "print.timestamp": "true",
        "print.partition": "true",
        "print.offset": "true",
        "print.headers": "true",
        "print.key": "true",
        "key.separator": "|",
        "headers.separator": ",",
        "null.literal": _NULL,
        "line.separator": _END,
    }
    words = [f"--property={name}={value}" for name, value in shown.items()]
    if partition is None:
        words.append("--from-beginning")
    else:
        words += ["--partition", str(partition), "--offset", str(offset)]
    printed = kafka.run(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "--bootstrap-server", broker.address, "--topic", topic,
        "--isolation-level", isolation, "--max-messages", count, "--timeout-ms", 1000 * TIMEOUT_S,
        *words,
    )  # fmt: skip
    found: dict[int, list[Record]] = {}
    for partition, record in map(_from_console, printed.split(_END)[:-1]):
        found.setdefault(partition, []).append(record)
    return {p: sorted(records) for p, records in found.items()}


def _from_console(line: str) -> tuple[int, Record]:
    timestamp, partition, offset, headers, key, value = line.split("|")
    return int(partition.removeprefix("Partition:")), Record(
        int(offset.removeprefix("Offset:")),
        -1 if timestamp == "NO_TIMESTAMP" else int(timestamp.partition(":")[2]),
        _bytes(key),
        _bytes(value),
        tuple(_headers(headers)),
    )


def _headers(text: str) -> Iterator[tuple[str, bytes | None]]:
    if text != "NO_HEADERS":
        for header in text.split(","):
            name, _, value = header.partition(":")
            yield name, _bytes(value)


def _bytes(text: str) -> bytes | None:
    return None if text == _NULL else text.encode()


def offsets_by_time(
    broker: Listens,
    topic: str,
    partitions: Iterable[int],
    times_ms: Iterable[int],
    **options: object,
) -> Iterator[dict[int, int]]:
    """Look up the offsets of times with librdkafka, by partition; -1 if no record is as late."""
    client = consumer(broker, **options)
    try:
        for time_ms in times_ms:
            wanted = [TopicPartition(topic, p, time_ms) for p in partitions]
            found = client.offsets_for_times(wanted, timeout=TIMEOUT_S)
            yield {one.partition: one.offset for one in found}
    finally:
        client.close()


def offsets_by_shell(kafka: Kafka, broker: Listens, topic: str, time_ms: int) -> dict[int, int]:
    """Look up offsets with the Java client; a partition without an answer is absent. -3 asks for the latest time."""
    printed = kafka.run(
        "org.apache.kafka.tools.GetOffsetShell",
        "--bootstrap-server", broker.address, "--topic", topic, f"--time={time_ms}",
    )  # fmt: skip
    lines = [line.split(":") for line in printed.splitlines()]
    return {int(partition): int(offset) for _, partition, offset in lines if offset}
