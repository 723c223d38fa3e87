"""A program that commits jobs until it is killed: `python -m tests.support.committing_jobs PATH TOPIC NOTES SEED`.

Each job has rows for all partitions of the topic, `JOB-ROW`. The name of each job that is committed becomes a
line of NOTES. Some jobs, whose names begin with `uncommitted`, are staged and never committed.
"""

from __future__ import annotations

import random
import sys
import uuid
from pathlib import Path

from spark_kbatch import Cluster
from tests.support import builders
from tests.support.reference import Record, encode_batch

ROWS = 60  # of a job in each partition


def main(path: str, topic: str, notes: str, seed: str) -> None:
    """Commit jobs, with batches, files and flushes of different kinds."""
    rng = random.Random(seed)
    with Cluster(path) as cluster, Path(notes).open("a") as file:
        partitions = cluster.topic(topic).partitions
        while True:
            transaction = uuid.UUID(int=rng.getrandbits(128)).hex
            is_committed = rng.random() < 0.8
            job = f"{'job' if is_committed else 'uncommitted'}{transaction}"
            rows_of_a_batch = rng.choice((7, ROWS))
            options = {
                "adopt_min_bytes": rng.choice((1024, 8 << 20)),
                "flush": rng.random() < 0.2,
            }
            batches = {(topic, p): _batches(job, rows_of_a_batch) for p in range(partitions)}
            extents = builders.staged(cluster, batches, transaction=transaction, **options)
            if is_committed:
                builders.commit(cluster, extents, transaction=transaction, **options)
                file.write(f"{job}\n")
                file.flush()


def _batches(job: str, rows_of_a_batch: int) -> list[bytes]:
    rows = [f"{job}-{row}".encode() for row in range(ROWS)]
    parts = [rows[at : at + rows_of_a_batch] for at in range(0, ROWS, rows_of_a_batch)]
    return [encode_batch([Record(n, 0, None, v) for n, v in enumerate(part)]) for part in parts]


if __name__ == "__main__":
    main(*sys.argv[1:])
