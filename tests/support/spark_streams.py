"""Streaming queries without Spark: its checkpoint on disk, and the writer and jobs that it calls.

What is here does as Spark does, step by step, so that a test may stop it between any two steps:

    plan      `offsets/N` is created once, with the time; a restart repeats it if `commits/N` is missing
    stage     a task stages the rows from where N - 1 ended to where N ends
    commit    another writer object commits what was staged
    note      `commits/N` is created

Source: Spark sql/core/.../streaming/runtime/MicroBatchExecution.scala.
"""

from __future__ import annotations

import json
import pickle
import shutil
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from spark_kbatch.opening.stores import begin_job
from spark_kbatch.options.remote import is_address
from spark_kbatch.options.write import WriteOptions, parse_write_options
from spark_kbatch.spark.writer import KBatchStreamWriter, KBatchWriter, TaskMessage
from spark_kbatch.store.job import WriteJob

PREFIX = "a-query"
Rows = Callable[[int, int], Sequence[str]]  # the values of a source from an offset to another


class PlannedBatch(NamedTuple):
    """A micro-batch as a driver has it in memory."""

    number: int
    start: int
    end: int
    content: str  # of its file


class SparkCheckpoint:
    """A checkpoint's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / "metadata").exists():
            for name in ("offsets", "commits"):
                (folder / name).mkdir(parents=True)
            (folder / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))

    @property
    def query_id(self) -> str:
        return str(json.loads((self.folder / "metadata").read_text())["id"])

    def newest(self, kind: str) -> int:
        folder = self.folder / kind
        return max((int(path.name) for path in folder.glob("[0-9]*")), default=-1)

    def plan(self, available: int, now: str = "") -> PlannedBatch:
        """Return the micro-batch that is to be repeated, or plan the next one."""
        number, committed = self.newest("offsets"), self.newest("commits")
        if number == committed:
            number += 1
            time = now or uuid.uuid4().hex  # no two are planned at one time
            lines = ["v1", json.dumps({"batchTimestampMs": time}), json.dumps({"log": available})]
            (self.folder / "offsets").mkdir(exist_ok=True)
            (self.folder / "offsets" / str(number)).write_text("\n".join(lines))
        content = (self.folder / "offsets" / str(number)).read_text()
        return PlannedBatch(number, self._end(number - 1), self._end(number), content)

    def note(self, number: int) -> None:
        (self.folder / "commits").mkdir(exist_ok=True)
        (self.folder / "commits" / str(number)).write_text("v1\n{}")

    def copied_to(self, folder: Path) -> SparkCheckpoint:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder, folder)
        return SparkCheckpoint(folder)

    def _end(self, number: int) -> int:
        if number < 0:
            return 0
        lines = (self.folder / "offsets" / str(number)).read_text().split("\n")
        return int(json.loads(lines[2])["log"])


class SparkDriver:
    """One run of a query, or a batch job; what it writes is one column of values.

    By default it has the prefix PREFIX, which a real cluster, HOST:PORT, knows it by.
    """

    def __init__(self, address: str, topic: str | None, **options: Any) -> None:
        given = {"delivery.guarantee": "exactly-once", "transactional.id.prefix": PREFIX}
        given |= (
            {"kafka.bootstrap.servers": address, "num.partitions": "1"}
            if is_address(address)
            else {"path": address, "flush": "false"}
        )
        given |= {"topic": topic} if topic else {}
        given |= {key.replace("_", "."): str(value) for key, value in options.items()}
        self.options: WriteOptions = parse_write_options(given)
        self.run_id = str(uuid.uuid4())

    def stage(self, values: Sequence[str], query_id: str | None) -> Any:
        """Stage rows in one task of a micro-batch, and return the messages that the commit gets."""
        return self._staged(begin_job(self.options, is_micro_batch=True), values, query_id)

    def _staged(self, job: WriteJob, values: Sequence[str], query_id: str | None) -> Any:
        rows = [pa.record_batch({"value": [*values]})] if values else []
        ids = {"application_id": "app", "query_id": query_id, "run_id": self.run_id}
        staged = pickle.loads(pickle.dumps(job)).stage(rows, **ids)
        return pickle.loads(pickle.dumps([TaskMessage(staged)]))

    def commit(self, messages: Any, number: int, checkpoint: str) -> None:
        """Commit a micro-batch, in a process of its own."""
        job = begin_job(self.options, is_micro_batch=True)
        KBatchStreamWriter(job, checkpoint=checkpoint).commit(messages, number)

    def micro_batch(
        self,
        checkpoint: SparkCheckpoint,
        available: int,
        rows: Rows,
        *,
        is_read: bool = True,
        is_noted: bool = True,
    ) -> PlannedBatch:
        """Run one micro-batch; unless `is_noted`, the driver dies before it notes that it is committed."""
        planned = checkpoint.plan(available)
        messages = self.stage(rows(planned.start, planned.end), checkpoint.query_id)
        self.commit(messages, planned.number, str(checkpoint.folder) if is_read else "")
        if is_noted:
            checkpoint.note(planned.number)
        return planned

    def batch(self, values: Sequence[str], query_id: str | None = None) -> None:
        """Run a batch job, within a micro-batch's `foreachBatch` if a query is given."""
        job = begin_job(self.options)
        KBatchWriter(job).commit(self._staged(job, values, query_id))
