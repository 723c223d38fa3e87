"""A driver that writes exactly once to a real cluster, without Spark: step by step."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from spark_kbatch.opening.stores import begin_job
from spark_kbatch.options.write import parse_write_options
from spark_kbatch.spark.writer import KBatchStreamWriter, KBatchWriter, TaskMessage
from tests.support.spark_streams import SparkCheckpoint

PREFIX = "orders-to-shipped"


class Driver:
    """One run of a query, or of a batch job, of which each step may be called by itself."""

    def __init__(self, address: str, **options: Any) -> None:
        given = {
            "kafka.bootstrap.servers": address,
            "kafka.retry.backoff.ms": 1, "kafka.reconnect.backoff.ms": 1,
            "kafka.reconnect.backoff.max.ms": 5,
            "delivery.guarantee": "exactly-once", "transactional.id.prefix": PREFIX, "topic": "shipped",
        } | {key.replace("_", "."): value for key, value in options.items()}  # fmt: skip
        self.options = parse_write_options(
            {key: str(value) for key, value in given.items() if value is not None}
        )

    def planned(self, *, is_micro_batch: bool = True) -> bytes:
        """Return the job as it goes to tasks, which takes over."""
        return pickle.dumps(begin_job(self.options, is_micro_batch=is_micro_batch))

    def staged(
        self,
        planned: bytes,
        values: Sequence[str],
        query_id: str | None,
        topics: Sequence[str] = (),
    ) -> TaskMessage:
        """Run a task, and return its message; `topics` has one for each row, if rows name theirs."""
        columns = {"value": [*values]} | ({"topic": [*topics]} if topics else {})
        rows = [pa.record_batch(columns)] if values else []
        message = TaskMessage(pickle.loads(planned).stage(rows, query_id=query_id, run_id="run"))
        return pickle.loads(pickle.dumps(message))  # type: ignore[no-any-return]

    def commit(self, messages: Sequence[Any], number: int, checkpoint: str = "") -> None:
        """Commit a micro-batch, in a process of its own."""
        job = begin_job(self.options, is_micro_batch=True)
        KBatchStreamWriter(job, checkpoint=checkpoint).commit([*messages], number)

    def micro_batch(self, checkpoint: SparkCheckpoint, end: int, *, is_noted: bool = True) -> None:
        """Run one micro-batch of numbers below `end`, in two tasks."""
        planned = checkpoint.plan(end)
        values = [str(number) for number in range(planned.start, planned.end)]
        job = self.planned()
        messages = [
            self.staged(job, values[task::2], checkpoint.query_id) for task in range(2)
        ]  # fmt: skip
        self.commit(messages, planned.number, str(checkpoint.folder))
        if is_noted:
            checkpoint.note(planned.number)

    def batch(self, values: Sequence[str]) -> None:
        """Run a batch job."""
        job = self.planned(is_micro_batch=False)
        KBatchWriter(pickle.loads(job)).commit([self.staged(job, values, None)])
