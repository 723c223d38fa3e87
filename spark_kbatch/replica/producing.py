"""Appends that wait for the replicas of their partitions.

A partition is done when its high watermark is behind the last record, or when something is wrong with
it: too few replicas in sync by then, another leader, no log dir that can be used. The answer goes out
when all are done, or when the time is over: then those that are not are answered as timed out, though
their records stay in the log.

Source: Kafka core/.../server/DelayedProduce.scala.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from spark_kbatch.errors import RequestTimedOutError
from spark_kbatch.model import AppendResult, TopicPartition
from spark_kbatch.replica.partition import Appended
from spark_kbatch.replica.purgatory import DelayedOperation

OnComplete: TypeAlias = Callable[[Mapping[TopicPartition, AppendResult]], object]
IsDecided: TypeAlias = Callable[[TopicPartition, Appended], tuple[bool, Exception | None]]


class DelayedProduce(DelayedOperation):
    """One append to several partitions."""

    def __init__(
        self,
        timeout_ms: int,
        appended: Mapping[TopicPartition, Appended],
        is_decided: IsDecided,
        on_complete: OnComplete,
    ) -> None:
        """`is_decided` tells whether an append is, and what is wrong with it then."""
        super().__init__(timeout_ms)
        self._is_decided, self._answer = is_decided, on_complete
        self._results = {tp: one.result for tp, one in appended.items()}
        self._pending = {
            tp: one
            for tp, one in appended.items()
            if one.result.error is None and not one.is_decided
        }

    def is_satisfied(self) -> bool:
        """Look at those that are pending."""
        for topic_partition, one in list(self._pending.items()):
            decided, error = self._is_decided(topic_partition, one)
            if decided:
                del self._pending[topic_partition]
            if error is not None:
                self._results[topic_partition] = AppendResult(error=error)
        return not self._pending

    def on_complete(self) -> None:
        """Answer for all partitions."""
        for topic_partition in self._pending:
            self._results[topic_partition] = AppendResult(
                error=RequestTimedOutError(
                    f"the in-sync replicas of {topic_partition} did not have the records within "
                    f"{self.timeout_ms} ms; they are in the leader's log, and may yet count"
                )
            )
        self._answer(self._results)
