"""Maintenance of a bucket as a Spark job, whose tasks merge some partitions of a topic each."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_kbatch.bucket.maintenance import Maintained, Maintenance, Merged
from spark_kbatch.options import arguments
from spark_kbatch.options.object_store import StoreOptions, parse_store_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_SCHEMA = "segments bigint, extents bigint, size_in_bytes bigint"
_Task = tuple[str, set[tuple[int, int]]]  # topic id; partition and first offset of each run


def maintain(
    spark: SparkSession, url: str, store: Mapping[str, str] | None, *, dry_run: bool = False
) -> Maintained:
    """Do one round of maintenance, as `spark_kbatch.maintain` says."""
    given = arguments.options("store", store, "store.endpoint")
    options = parse_store_options(given, url, alone=True)
    maintenance = Maintenance(url, options)
    if dry_run:
        return maintenance.run(dry_run=True)
    starts = maintenance.retain()
    wanted: list[_Task] = [
        (runs[0].topic_id, {(run.partition, run.start_offset) for run in runs})
        for runs in maintenance.shares()
    ]
    merged = Merged()
    if wanted:
        tasks = spark.range(0, len(wanted), 1, len(wanted))
        merging = functools.partial(_merge, maintenance.address, options, wanted)
        try:
            rows = tasks.mapInArrow(merging, _SCHEMA).collect()
        except Exception:
            maintenance.collect()  # The error says what is damaged; all else is done.
            raise
        merged = Merged(*(sum(row[at] for row in rows) for at in range(3)))
    collected, damaged = maintenance.collect(), tuple(maintenance.damaged)
    for sentence in damaged:
        logger.warning("%s: %s; it is left as it is", url, sentence)
    return Maintained(starts, merged, collected, damaged)


def _merge(
    url: str,
    options: StoreOptions,
    wanted: list[_Task],
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Merge what is in `wanted` at the numbers that come."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            topic_id, starts = wanted[number]
            maintenance = Maintenance(url, options)
            runs = maintenance.runs([topic_id])
            merged = maintenance.merge(
                run for run in runs if (run.partition, run.start_offset) in starts
            )
            yield pa.RecordBatch.from_pydict(
                {name: [value] for name, value in merged._asdict().items()}
            )
