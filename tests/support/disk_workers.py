"""Processes that use a cluster's folder until they are killed: `python -m tests.support.disk_workers WORK PATH NOTES`.

Each writes down what it was told, line by line. An error is nothing to them: they try again, with other records.

    produce   records of an idempotent producer     VALUE PARTITION OFFSET, of each that is acknowledged
    plain     of one that is not                    the same
    commit    jobs                                  JOB, of each that is committed
    read      reads, from the start or after the    PARTITION OFFSET VALUE, of each record that was read
              last one
"""

from __future__ import annotations

import itertools
import random
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TextIO

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.errors import DataLossError, KBatchError, OffsetOutOfRangeError
from tests.support import builders
from tests.support.reference import Record, encode_batch

TOPIC, PARTITIONS = "events", 2
ROWS_OF_A_JOB = 40
_AT_ONCE, _PAUSE_S = 10, 0.02


def produce(path: str, notes: TextIO, *, is_idempotent: bool = True) -> None:
    """Send records."""
    name = uuid.uuid4().hex[:8]
    numbers = itertools.count()
    with (
        spark_kbatch.open(path) as cluster,
        cluster.producer(acks="all", enable_idempotence=is_idempotent) as producer,
    ):
        while True:
            sent: list[tuple[str, Future]] = []  # type: ignore[type-arg]
            for number in itertools.islice(numbers, _AT_ONCE):
                value = f"{'i' if is_idempotent else 'p'}-{name}-{number}"
                future = producer.send(TOPIC, value=value, partition=number % PARTITIONS)
                sent.append((value, future))
            producer.flush()
            for value, future in sent:
                if future.exception() is None:
                    found = future.result()
                    notes.write(f"{value} {found.partition} {found.offset}\n")
            notes.flush()
            time.sleep(_PAUSE_S)


def plain(path: str, notes: TextIO) -> None:
    """Send records without idempotence."""
    produce(path, notes, is_idempotent=False)


def commit(path: str, notes: TextIO) -> None:
    """Commit jobs of some batches each, copied or renamed into place."""
    rng = random.Random()
    with Cluster(path) as cluster:
        while True:
            transaction = uuid.uuid4().hex
            options = {"adopt_min_bytes": rng.choice((512, 8 << 20)), "flush": rng.random() < 0.2}
            rows = [
                Record(row, 0, None, f"j-{transaction}-{row}".encode())
                for row in range(ROWS_OF_A_JOB)
            ]
            batches = {(TOPIC, p): [encode_batch(rows)] for p in range(PARTITIONS)}
            extents = builders.staged(cluster, batches, transaction=transaction, **options)
            if rng.random() < 0.8:
                builders.commit(cluster, extents, transaction=transaction, **options)
                notes.write(f"{transaction}\n")
                notes.flush()
            time.sleep(_PAUSE_S)


def read(path: str, notes: TextIO) -> None:
    """Read new records again and again."""
    positions: dict[int, int] = dict.fromkeys(range(PARTITIONS), 0)
    while True:
        with spark_kbatch.open(path) as cluster:
            try:
                _read(cluster, notes, positions)
            except (DataLossError, OffsetOutOfRangeError) as error:
                notes.write(f"lost {positions} {error!r}\n".replace("\n", " ") + "\n")
                notes.flush()
                raise


def _read(cluster: Cluster, notes: TextIO, positions: dict[int, int]) -> None:
    for _ in range(50):
        columns = ["partition", "offset", "value"]
        for batch in cluster.read(TOPIC, columns=columns, start=positions):
            for partition, offset, value in zip(*batch.to_pydict().values(), strict=True):
                notes.write(f"{partition} {offset} {value.decode()}\n")
                positions[partition] = offset + 1
        notes.flush()
        time.sleep(_PAUSE_S)


WORKS: Mapping[str, Callable[[str, TextIO], None]] = {
    "produce": produce, "plain": plain, "commit": commit, "read": read,
}  # fmt: skip


def _main(name: str, path: str, notes_path: str) -> None:
    with Path(notes_path).open("a") as notes:
        while True:
            try:
                WORKS[name](path, notes)
            except (OSError, KBatchError) as error:
                print(
                    f"{time.monotonic():.3f} {type(error).__name__}: {error}",
                    file=sys.stderr,
                    flush=True,
                )
                if isinstance(error, (DataLossError, OffsetOutOfRangeError)):
                    raise
            time.sleep(0.1)


if __name__ == "__main__":
    _main(*sys.argv[1:])
