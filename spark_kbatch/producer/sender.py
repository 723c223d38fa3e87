"""Closes batches and hands them to where they go, which it sees only as a `Transport`."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from spark_kbatch.config import Topic
from spark_kbatch.errors import RecordTooLargeError
from spark_kbatch.kernels import OFFSET_DELTA
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

    def send(
        self,
        topic: Topic,
        partition: int,
        buffer: np.ndarray[Any, Any],
        progress: np.ndarray[Any, Any],
    ) -> None:
        """Close the batch that lies in `buffer` and hand it on.

        Raises:
            RecordTooLargeError: larger than the topic takes, also when compressed.
        """
        limit = topic.config.max_message_bytes
        batch = codec.finish(buffer, progress, codec=self._codec, limit=limit)
        records_count = int(progress[OFFSET_DELTA])
        if len(batch) > limit:
            raise RecordTooLargeError(
                f"a record for topic {topic.name!r}, as a batch of its own,", len(batch), limit,
                "max.message.bytes",
            )  # fmt: skip
        self._transport.send(topic, partition, batch, records_count)
