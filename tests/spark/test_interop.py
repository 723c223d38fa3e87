"""Python clients of Kafka decode the `.log` files that Spark wrote."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiokafka.record.memory_records as aiokafka  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.conftest import few
from tests.support import builders
from tests.support.frames import frame_of, save
from tests.support.reference import CODECS, Record, decode_batches

with warnings.catch_warnings():
    # It reads its schemas with a function of importlib.resources that is to go.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.record.memory_records as kafka_python  # type: ignore[import-untyped]

pytestmark = pytest.mark.spark

PARTITIONS = 2


def by_kafka_python(data: bytes) -> Iterator[Any]:
    batches = kafka_python.MemoryRecords(data)
    while batch := batches.next_batch():
        assert batch.validate_crc()
        yield from batch


def by_aiokafka(data: bytes) -> Iterator[Any]:
    batches = aiokafka.MemoryRecords(data)
    while batches.has_next():
        batch = batches.next_batch()
        assert batch.validate_crc()
        yield from batch


READERS: list[Callable[[bytes], Iterator[Any]]] = [by_kafka_python, by_aiokafka, decode_batches]


@pytest.mark.parametrize("adopt_min_bytes", [0, 8 << 20], ids=["renamed", "copied"])
@pytest.mark.parametrize("compression", few([*CODECS], 2))
def test_clients_read_the_rows_from_the_log_files(
    spark: SparkSession, tmp_path: Path, compression: str, adopt_min_bytes: int
) -> None:
    rows = [
        builders.rows(n=1500, value_bytes=1000, nulls=0.1, headers=2, seed=seed)
        for seed in range(2)
    ]
    for batch in rows:
        numbers = pa.array((row % PARTITIONS for row in range(batch.num_rows)), pa.int32())
        save(
            frame_of(spark, batch.append_column("partition", numbers)), tmp_path, topic="t",
            num_partitions=PARTITIONS, compression_type=compression, batch_size=50_000,
            segment_bytes=1 << 20, adopt_min_bytes=adopt_min_bytes,
        )  # fmt: skip

    for number in range(PARTITIONS):
        written = pa.concat_batches(
            batch.take(list(range(number, batch.num_rows, PARTITIONS))) for batch in rows
        )
        files = sorted((tmp_path / "broker-0" / f"t-{number}").glob("*.log"))
        assert len(files) > 1 or compression != "none"
        for read in READERS:
            found = []
            for file in files:
                assert int(file.stem) == len(found)
                found += [
                    Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers))
                    for r in read(file.read_bytes())
                ]
            assert found == builders.to_records(written)
