"""Maintenance of a bucket as a Spark job, whose tasks merge a partition of a topic each."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_kbatch.bucket.maintenance import Maintained, Maintenance, Merged
from spark_kbatch.options import arguments
from spark_kbatch.options.object_store import StoreOptions, parse_store_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEMA = "segments bigint, extents bigint, size_in_bytes bigint"
_PartitionOfTopic = tuple[str, int]  # topic id, partition


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
    wanted = sorted({(run.topic_id, run.partition) for run in maintenance.runs()})
    merged = Merged()
    if wanted:
        tasks = spark.range(0, len(wanted), 1, len(wanted))
        merging = functools.partial(_merge, maintenance.address, options, wanted)
        rows = tasks.mapInArrow(merging, _SCHEMA).collect()
        merged = Merged(*(sum(row[at] for row in rows) for at in range(3)))
    return Maintained(starts, merged, maintenance.collect())


def _merge(
    url: str,
    options: StoreOptions,
    wanted: list[_PartitionOfTopic],
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Merge the partitions whose numbers in `wanted` come."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            topic_id, partition = wanted[number]
            maintenance = Maintenance(url, options)
            runs = [one for one in maintenance.runs([topic_id]) if one.partition == partition]
            merged = maintenance.merge(runs)
            yield pa.RecordBatch.from_pydict(
                {name: [value] for name, value in merged._asdict().items()}
            )
