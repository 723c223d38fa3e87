"""A read-only check of one partition of a cluster in a bucket: every extent, and every batch in it.

    ledger     what is at each offset, without holes, from the start offset to the end
    extent     its object is there, with as many records as the ledger says
    batch      its CRC, its offsets

The ledger itself is checked whenever it is read.
"""

from __future__ import annotations

from collections.abc import Iterator

from spark_kbatch.bucket.batch_stream import BatchStream, MissingObjectError
from spark_kbatch.bucket.objects import Objects
from spark_kbatch.bucket.placement import PlacedExtent
from spark_kbatch.errors import CorruptLedgerError, CorruptRecordError
from spark_kbatch.log.repair import RepairReport
from spark_kbatch.model import LogOffsets, TopicPartition


def check(
    objects: Objects,
    topic_partition: TopicPartition,
    offsets: LogOffsets,
    extents: Iterator[PlacedExtent],
) -> RepairReport:
    """Check a partition, and report what is wrong.

    Args:
        objects: of the cluster.
        topic_partition: which.
        offsets: where it starts and ends.
        extents: all of it, in order.

    Raises:
        ObjectStoreError, ObjectAccessDeniedError: the store fails.
    """
    damaged: list[str] = []
    start, end = offsets.log_start_offset, offsets.log_end_offset
    expected = start
    try:
        for placed in extents:
            if placed.start_offset != expected:
                damaged.append(f"nothing is at the offsets {expected} to {placed.start_offset - 1}")
            expected = placed.next_offset
            damaged += faults(objects, placed)
    except CorruptLedgerError as error:
        damaged.append(f"what is from offset {expected} on is not known: {error}")
    else:
        if expected != end:
            damaged.append(f"nothing is at the offsets {expected} to {end - 1}")
    return RepairReport(topic_partition, start, end, (), tuple(damaged))


def faults(objects: Objects, placed: PlacedExtent) -> Iterator[str]:
    """Yield what is wrong with one extent, which is read from its start."""
    whole, count = placed.whole, 0
    try:
        for read in BatchStream(objects, [whole], whole.start_offset).checked():
            count += sum(header.records_count for _, header in read.batches)
    except CorruptRecordError as error:
        yield f"offsets {whole.start_offset} to {whole.next_offset - 1}: {error}"
        return
    except MissingObjectError as error:
        yield f"offsets {whole.start_offset} to {whole.next_offset - 1}: {error} is missing"
        return
    if count != placed.extent.records_count:
        yield (
            f"offsets {whole.start_offset} to {whole.next_offset - 1}: {placed.extent.name} has {count} records "
            f"from byte {placed.extent.position} on, and the ledger says {placed.extent.records_count}"
        )
