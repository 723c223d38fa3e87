"""Spark's jobs with secrets in their options, which print all they can: `python -m tests.support.secret_jobs FOLDER`.

The jobs come on stdin, so that no argument has a secret. The event log, checkpoints and all else go to FOLDER.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

from tests.conftest import REPOSITORY, spark_builder

EXCEPTION = "== an exception =="
JOB_ROWS = 10


class Job(NamedTuple):
    """A topic that is written, read and followed, with options of `format("kbatch")`."""

    name: str
    topic: str
    options: Mapping[str, str]


def for_spark(servers: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a source or sink."""
    return {"kafka.bootstrap.servers": servers} | {f"kafka.{k}": v for k, v in options.items()}


def run_jobs(jobs: Iterable[Job], folder: Path) -> tuple[str, dict[Path, str]]:
    """Run jobs in a process of their own; return what it printed on stdout, and all texts that are in the folder then."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.secret_jobs", str(folder)],
        input=json.dumps([one._asdict() for one in jobs]), capture_output=True, text=True, check=False, timeout=600,
        cwd=REPOSITORY, env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (folder / "stdout").write_text(done.stdout)
    (folder / "stderr").write_text(done.stderr)
    files = [path for path in folder.rglob("*") if path.is_file()]
    return done.stdout, {path: path.read_bytes().decode(errors="replace") for path in files}


def ensure_in_no_text(secrets: Sequence[str], texts: Mapping[Path, str]) -> None:
    """Check that no secret is in any text."""
    for path, text in texts.items():
        for secret in secrets:
            place = text.find(secret)
            assert place < 0, f"{path}: {text[max(0, place - 400) : place]}"


def main(folder: Path) -> None:
    """Run the jobs, which may fail."""
    logging.basicConfig(stream=sys.stderr)
    for name in ("spark_kbatch", "kafka"):
        logging.getLogger(name).setLevel(logging.DEBUG)
    events = folder / "events"
    events.mkdir()
    spark = (
        spark_builder(folder / "warehouse").config("spark.log.level", "DEBUG")
        .config("spark.eventLog.enabled", "true").config("spark.eventLog.dir", str(events))
        .config("spark.eventLog.compress", "false").getOrCreate()
    )  # fmt: skip
    for given in json.load(sys.stdin):
        job = Job(**given)
        for run in (write, read, follow):
            show(run, spark, job, folder)
    spark.stop()


def show(
    run: Callable[[SparkSession, Job, Path], None], spark: SparkSession, job: Job, folder: Path
) -> None:
    """Run a part of a job, and print what it raises."""
    try:
        run(spark, job, folder)
    except Exception as error:  # noqa: BLE001  whatever it is
        print(EXCEPTION, job.name, repr(error))
        traceback.print_exception(error, file=sys.stdout)


def write(spark: SparkSession, job: Job, folder: Path) -> None:
    """Write numbered rows."""
    frame = spark.range(JOB_ROWS).selectExpr("CAST(id AS STRING) AS value")
    frame.write.format("kbatch").mode("append").options(**job.options, topic=job.topic).save()


def read(spark: SparkSession, job: Job, folder: Path) -> None:
    """Read the topic, and explain the plan in all ways; the same in SQL."""
    frame = spark.read.format("kbatch").options(**job.options, subscribe=job.topic).load()
    for mode in ("simple", "extended", "codegen", "cost", "formatted"):
        frame.explain(mode=mode)
    # As docs/kafka-cluster.md says: Spark shows the options of a reader where a view of it is made.
    spark.conf.set("spark.sql.redaction.options.regex", "(?i)url|keystore[.]key")
    frame.createOrReplaceTempView("records")
    spark.conf.unset("spark.sql.redaction.options.regex")
    spark.sql("DESCRIBE EXTENDED records").show(100, truncate=False)
    spark.sql("EXPLAIN EXTENDED SELECT COUNT(*) FROM records").show(100, truncate=False)
    frame.show()


def follow(spark: SparkSession, job: Job, folder: Path) -> None:
    """Copy the topic to another, as a stream."""
    frame = (
        spark.readStream.format("kbatch").options(**job.options, subscribe=job.topic)
        .option("startingOffsets", "earliest").load()
    )  # fmt: skip
    query = (
        frame.select("value").writeStream.format("kbatch")
        .options(**job.options, topic="to-" + job.topic)
        .option("checkpointLocation", str(folder / "checkpoints" / job.name))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    query.explain(extended=True)
    print(query.lastProgress)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
