"""Appends with acks=all that wait until the in-sync replicas of their partitions have the records.

A partition is done once its high watermark passes the last record, or something is wrong with it: too few
replicas are in sync by then, another replica leads, no log dir can be used. The answer is given when all
partitions are done, or when the time is up: then the others are answered as timed out, though their
records stay in the log.

Source: Kafka core/.../server/DelayedProduce.scala.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from spark_kbatch.errors import RequestTimedOutError
from spark_kbatch.model import AppendResult, OnAppended, TopicPartition
from spark_kbatch.replica.partition import Appended
from spark_kbatch.replica.purgatory import DelayedOperation

IsDecided: TypeAlias = Callable[[TopicPartition, Appended], tuple[bool, Exception | None]]


class DelayedProduce(DelayedOperation):
    """An append to several partitions that waits until their in-sync replicas have it."""

    def __init__(
        self,
        timeout_ms: int,
        appended: Mapping[TopicPartition, Appended],
        is_decided: IsDecided,
        on_complete: OnAppended,
    ) -> None:
        """Set up the wait; `is_decided` returns whether one partition's append is decided, and its error."""
        super().__init__(timeout_ms)
        self._is_decided, self._answer = is_decided, on_complete
        self._results = {tp: one.result for tp, one in appended.items()}
        self._pending = {
            tp: one
            for tp, one in appended.items()
            if one.result.error is None and not one.is_decided
        }

    def is_satisfied(self) -> bool:
        """Return True once the append is decided in all of its partitions."""
        for topic_partition, one in list(self._pending.items()):
            decided, error = self._is_decided(topic_partition, one)
            if decided:
                del self._pending[topic_partition]
            if error is not None:
                self._results[topic_partition] = AppendResult(error=error)
        return not self._pending

    def on_complete(self) -> None:
        """Answer the append for all partitions, as timed out for those that are not decided."""
        for topic_partition in self._pending:
            self._results[topic_partition] = AppendResult(
                error=RequestTimedOutError(
                    f"the in-sync replicas of {topic_partition} did not have the records within "
                    f"{self.timeout_ms} ms; they are in the leader's log, and may still be committed"
                )
            )
        self._answer(self._results)
