"""The same topics in several places: on a broker, on a server of ours, in a folder.

A broker is for `format("kafka")` and for `format("kbatch")`, a server of ours for the first of them, a folder
for the second. A test takes a `Site`, and so the format's name, as its parameter, and claims the same of all.
Records come from the site's own producer, not from Spark.
"""

from __future__ import annotations

import abc
import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession, functions
from pyspark.sql.streaming import DataStreamReader, DataStreamWriter

from spark_kbatch import Cluster
from tests.support.kafka import START_TIMEOUT_S, Broker

FIRST_TIMESTAMP_MS = 1_700_000_000_000


class Message(NamedTuple):
    value: str | None
    key: str | None = None
    timestamp: int = FIRST_TIMESTAMP_MS
    headers: Sequence[tuple[str, bytes | None]] = ()


class Read(NamedTuple):
    partition: int
    offset: int
    value: str | None


class Site(abc.ABC):
    """A place that holds topics."""

    format: str
    servers: str  # what `kafka.bootstrap.servers` is given

    @abc.abstractmethod
    def create_topic(self, topic: str, *, partitions: int = 1) -> None:
        """Create a topic; on return it can be written."""

    @abc.abstractmethod
    def has_topic(self, topic: str) -> bool:
        """Return True if the topic exists."""

    @abc.abstractmethod
    def send(self, topic: str, messages: Mapping[int, Sequence[str | Message]]) -> None:
        """Send messages by partition, in order; on return all are there."""

    @abc.abstractmethod
    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Delete all records below an offset, by partition."""

    # Spark code as users write it, with the format's name as the only difference.

    def read(self, spark: SparkSession, **options: Any) -> DataFrame:
        """Load a batch read; write `__` for a dot in an option's key."""
        reader = spark.read.format(self.format).option("kafka.bootstrap.servers", self.servers)
        return reader.options(**_dotted(options)).load()

    def read_stream(self, spark: SparkSession, **options: Any) -> DataStreamReader:
        """Return a stream reader; options as for `read`."""
        reader = spark.readStream.format(self.format)
        return reader.option("kafka.bootstrap.servers", self.servers).options(**_dotted(options))

    def write(self, frame: DataFrame, *, mode: str = "append", **options: Any) -> None:
        """Save a frame; options as for `read`."""
        writer: DataFrameWriter = frame.write.format(self.format).mode(mode)
        writer.option("kafka.bootstrap.servers", self.servers).options(**_dotted(options)).save()

    def write_stream(self, frame: DataFrame, **options: Any) -> DataStreamWriter:
        """Return a stream writer; options as for `read`."""
        writer = frame.writeStream.format(self.format)
        return writer.option("kafka.bootstrap.servers", self.servers).options(**_dotted(options))


def _dotted(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key.replace("__", "."): value for key, value in options.items()}


class OnBroker(Site):
    """A broker, with Spark's own connector."""

    format = "kafka"

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.servers = broker.address

    def create_topic(self, topic: str, *, partitions: int = 1) -> None:
        self._broker.create_topic(topic, partitions=partitions)

    def has_topic(self, topic: str) -> bool:
        return topic in self._admin().list_topics(timeout=START_TIMEOUT_S).topics

    def send(self, topic: str, messages: Mapping[int, Sequence[str | Message]]) -> None:
        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 5})
        for partition, message in _each(messages):
            producer.produce(
                topic, message.value, message.key, partition,
                timestamp=message.timestamp, headers=list(message.headers),
            )  # fmt: skip
        assert producer.flush(60) == 0

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        client = self._admin()
        wanted = [TopicPartition(topic, p, offset) for p, offset in before.items()]
        for future in client.delete_records(wanted).values():
            future.result(timeout=START_TIMEOUT_S)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.servers, "log_level": 0})


class OnRealCluster(OnBroker):
    """A broker, with this package."""

    format = "kbatch"


class OnServer(OnBroker):
    """A server of ours in the broker's place, with Spark's own connector."""

    def __init__(self, folder: Path) -> None:
        self._cluster = Cluster(str(folder), create=True)
        # As for the broker; a connector that asks for a topic too early is not to make it.
        self._server = self._cluster.serve(auto_create=False)
        self.servers = self._server.bootstrap_servers

    def create_topic(self, topic: str, *, partitions: int = 1) -> None:
        self._cluster.create_topic(topic, partitions=partitions)

    def close(self) -> None:
        """End the server."""
        self._cluster.close()


class InFolder(Site):
    """A folder, with this package."""

    format = "kbatch"

    def __init__(self, folder: Path) -> None:
        self._cluster = Cluster(str(folder), create=True)
        self.servers = str(folder)

    def create_topic(self, topic: str, *, partitions: int = 1) -> None:
        self._cluster.create_topic(topic, partitions=partitions)

    def has_topic(self, topic: str) -> bool:
        return topic in self._cluster.topic_names()

    def send(self, topic: str, messages: Mapping[int, Sequence[str | Message]]) -> None:
        with self._cluster.producer(flush=False) as producer:
            for partition, message in _each(messages):
                producer.send(
                    topic, value=message.value, key=message.key, partition=partition,
                    timestamp=message.timestamp, headers=list(message.headers),
                )  # fmt: skip

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        _delete_records(self._cluster, topic, before)


def _delete_records(cluster: Cluster, topic: str, before: Mapping[int, int]) -> None:
    cluster.delete_records({(topic, p): offset for p, offset in before.items()})  # type: ignore[misc]


def _each(messages: Mapping[int, Sequence[str | Message]]) -> Iterator[tuple[int, Message]]:
    for partition, those in messages.items():
        for one in those:
            yield partition, Message(one) if isinstance(one, str) else one


def rows(frame: DataFrame) -> list[Read]:
    """Collect the rows, sorted by partition and offset."""
    chosen = frame.select("partition", "offset", functions.col("value").cast("string"))
    return sorted(Read(*row) for row in chosen.collect())


def values(frame: DataFrame) -> list[str]:
    """Collect the values, sorted."""
    return sorted(row.value or "" for row in rows(frame))


@contextlib.contextmanager
def refused(*said: str) -> Iterator[None]:
    """Ensure that the block is refused with an error that has all of `said`, in any case."""
    # Spark's own connector raises Java's errors; errors of a source in Python are wrapped by Spark.
    with pytest.raises((PySparkException, Py4JJavaError)) as caught:
        yield
    for part in said:
        assert re.search(part, str(caught.value), re.IGNORECASE), (part, str(caught.value))
