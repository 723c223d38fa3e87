"""Jobs of Spark that write to a bucket, without Spark: begun, staged and committed as it does it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from spark_kbatch.bucket.job import BucketJob
from spark_kbatch.opening.stores import begin_job
from spark_kbatch.options.write import parse_write_options
from spark_kbatch.store.job import StagedRows

QUERY = "a-query"


def begun(url: str, *, topic: str | None = "events", **options: Any) -> BucketJob:
    """Begin a job, and return it as a task or a commit gets it.

    Args:
        options: by keys with underscores; `overwrite` and `is_micro_batch` are not options.
    """
    how = {name: options.pop(name) for name in ("overwrite", "is_micro_batch") if name in options}
    given = {name.replace("_", "."): str(value) for name, value in options.items()}
    given |= {"path": url} | ({"topic": topic} if topic else {})
    job = pickle.loads(pickle.dumps(begin_job(parse_write_options(given), **how)))
    assert isinstance(job, BucketJob)
    return job


def rows(values: Sequence[str], **columns: Any) -> Iterator[pa.RecordBatch]:
    """Yield rows as a task gets them; partition 0 by default."""
    given = {"partition": [0] * len(values), **columns}
    yield pa.RecordBatch.from_pydict({"value": values, **given})


def staged(job: BucketJob, *tasks: Sequence[str], query_id: str | None = None) -> list[StagedRows]:
    """Stage the values of each task, and return what they tell the commit."""
    return [
        pickle.loads(pickle.dumps(job.stage(rows(values), application_id="app", query_id=query_id)))
        for values in tasks
    ]


def commit_batch(url: str, tasks: Sequence[Sequence[str]], **options: Any) -> None:
    """Write a batch job."""
    job = begun(url, **options)
    job.commit_batch(staged(job, *tasks))


def commit_micro_batch(url: str, number: int, *tasks: Sequence[str], **options: Any) -> None:
    """Write a micro-batch, with another job object for its commit, as Spark has it."""
    tasks_job = begun(url, is_micro_batch=True, **options)
    messages = staged(tasks_job, *tasks, query_id=QUERY)
    begun(url, is_micro_batch=True, **options).commit_micro_batch(messages, number)


def wrote(
    place: str,
    values: Mapping[int, Sequence[str]],
    *,
    number: int | None = None,
    topic: str = "events",
    overwrite: bool = False,
    query_id: str = QUERY,
    application_id: str = "app",
) -> None:
    """Write values by partition into any place, as a batch job, or as the micro-batch with a number."""
    options = parse_write_options({"path": place, "topic": topic, "flush": "false"})
    is_micro_batch = number is not None
    job = begin_job(options, overwrite=overwrite, is_micro_batch=is_micro_batch)
    messages = [
        job.stage(
            rows(some, partition=[partition] * len(some)),
            application_id=application_id,
            query_id=query_id if is_micro_batch else None,
        )
        for partition, some in values.items()
    ]
    messages = pickle.loads(pickle.dumps(messages))
    if number is None:
        job.commit_batch(messages)
    else:
        job.commit_micro_batch(messages, number)
