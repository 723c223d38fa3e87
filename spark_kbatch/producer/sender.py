"""Closes batches and hands them to where they go, which it sees only as a `Transport`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from spark_kbatch.config import Topic
from spark_kbatch.errors import RecordTooLargeError
from spark_kbatch.kernels import RECORDS_COUNT
from spark_kbatch.record import codec
from spark_kbatch.record.compression import CODECS


class Transport(Protocol):
    """Where finished batches go."""

    def send(self, topic: Topic, partition: int, batch: memoryview, records_count: int) -> None:
        """Take one batch; its memory is used again once this returns."""


class Sender:
    """Compresses, seals, checks the size, sends. Not thread-safe."""

    def __init__(self, transport: Transport, *, compression_type: str) -> None:
        self._transport = transport
        self._codec = CODECS[compression_type]

    def send(self, topic: Topic, partition: int, memory: memoryview, batch: Sequence[int]) -> None:
        """Close the batch, a row of `write_records`, that lies in `memory` and hand it on.

        Raises:
            RecordTooLargeError: larger than the topic takes, also when compressed.
        """
        limit = topic.config.max_message_bytes
        finished = codec.finish(memory, batch, codec=self._codec, limit=limit)
        if len(finished) > limit:
            raise RecordTooLargeError(
                f"a record for topic {topic.name!r}, as a batch of its own,", len(finished), limit,
                "max.message.bytes",
            )  # fmt: skip
        self._transport.send(topic, partition, finished, batch[RECORDS_COUNT])
