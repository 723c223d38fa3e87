"""A read-only check of one partition of a cluster in a bucket: every extent, and every batch in it.

    ledger     what is at each offset, without holes, from the start offset to the end
    index      it is there, and whole
    extent     its object is there, with as many records as the ledger says
    batch      its CRC, its offsets

Each fault is reported, and what comes after it is checked all the same. The entries of the ledger are
checked whenever they are read; `mending` checks checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from spark_kbatch.bucket.batch_stream import BatchStream, MissingObjectError
from spark_kbatch.bucket.extents import Change
from spark_kbatch.bucket.objects import Objects
from spark_kbatch.bucket.placement import PlacedExtent, Placements
from spark_kbatch.errors import CorruptLedgerError, CorruptRecordError

_NOTHING = "nothing is there"


class Fault(NamedTuple):
    """Offsets that cannot be read."""

    start_offset: int
    next_offset: int
    why: str
    name: str = ""  # of the object that is wrong, if there is to be one
    records_count: int = 0  # as far as that is known

    def __str__(self) -> str:
        return f"offsets {self.start_offset} to {self.next_offset - 1}: {self.why}"


def faults(
    placements: Placements,
    changes: Iterable[Change],
    edges: tuple[int, int],
    why_not: Callable[[PlacedExtent], str],
) -> Iterator[Fault]:
    """Yield what cannot be read of a range of a partition, in order.

    Args:
        placements: of the cluster.
        changes: what is at each offset of the range.
        edges: start and end of the range.
        why_not: returns what is wrong with one extent; empty if nothing is.

    Raises:
        ObjectStoreError, ObjectAccessDeniedError: the store fails.
        Other errors, as `why_not`.
    """
    expected, end = edges
    for change in changes:
        if change.start_offset > expected:
            yield Fault(expected, change.start_offset, _NOTHING)
        expected = change.next_offset
        try:
            placed = [*placements.whole(change)]
        except CorruptLedgerError as error:
            why, count = f"{error.name}: {error.reason}", change.stretch.records_count
            yield Fault(change.start_offset, expected, why, error.name, count)
            continue
        for one in placed:
            why, extent = why_not(one), one.extent
            if why:
                yield Fault(
                    one.start_offset, one.next_offset, why, extent.name, extent.records_count
                )
    if expected < end:
        yield Fault(expected, end, _NOTHING)


def why_damaged(objects: Objects, placed: PlacedExtent) -> str:
    """Return what is wrong with one extent, which is read from its start; empty if nothing is."""
    whole, count = placed.whole, 0
    try:
        for read in BatchStream(objects, [whole], whole.start_offset).checked():
            count += sum(header.records_count for _, header in read.batches)
    except CorruptRecordError as error:
        return str(error)
    except MissingObjectError as error:
        return f"{error} is missing"
    extent = placed.extent
    if count == extent.records_count:
        return ""
    return (
        f"{extent.name} has {count} records from byte {extent.position} on, and the ledger says "
        f"{extent.records_count}"
    )
