"""Encoding and decoding of the array of topics, each with its partitions, in Produce and Fetch messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from spark_kbatch.wire.primitives import Reader, Writer

_TOPIC_MIN_SIZE = 3  # bytes: a length or count each, and in flexible versions the tagged fields

Topic = TypeVar("Topic")
Partition = TypeVar("Partition")
PartitionWritten = TypeVar("PartitionWritten", covariant=True)


class OfTopic(Protocol[PartitionWritten]):
    """The interface of one topic in a Produce or Fetch message."""

    @property
    def topic(self) -> str:
        """The topic's name."""

    @property
    def partitions(self) -> Sequence[PartitionWritten]:
        """The message's entries for the topic's partitions."""


def read_topics(
    reader: Reader,
    topic_of: Callable[[str, list[Partition]], Topic],
    read_partition: Callable[[Reader], Partition],
    partition_min_size: int,
    field: str = "topics",
) -> list[Topic]:
    """Decode the array of topics in a Produce or Fetch message.

    Args:
        topic_of: returns a topic from its name and partitions.
        read_partition: reads one partition.
        partition_min_size: the smallest size of a partition in bytes.
        field: the array's name.
    """

    def read_topic(reader: Reader) -> Topic:
        topic = reader.string(f"{field}.topic")
        partitions = reader.array(read_partition, partition_min_size, f"{field}.partitions")
        reader.tagged_fields(field)
        return topic_of(topic, partitions)

    return reader.array(read_topic, _TOPIC_MIN_SIZE, field)


def write_topics(
    writer: Writer,
    topics: Sequence[OfTopic[Partition]],
    write_partition: Callable[[Partition], None],
) -> None:
    """Encode the array of topics in a Produce or Fetch message; `write_partition` encodes one partition."""
    writer.array_length(len(topics))
    for topic in topics:
        writer.string(topic.topic)
        writer.array_length(len(topic.partitions))
        for partition in topic.partitions:
            write_partition(partition)
        writer.tagged_fields()
