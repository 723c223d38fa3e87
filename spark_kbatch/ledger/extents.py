"""Places of a partition's batches: extents in objects, and appends of offsets that they make up.

An extent is a run of whole batches in one object. An append is what one entry added to a
partition: a base offset, and either its extents, or the place in an index object that lists them.
Batches lie in their objects with offsets from 0 within their extent, or with final ones in a
segment; either way the first offset of an extent is the append's base offset and the spans of the
extents before it. Span and count are kept apart, as the log that a mirror copies may have gaps.

An append in JSON, with names of objects replaced by their place in a list that is stored beside it:

    [partition, base offset, span, records, leader epoch, extents]

    extents   [[object, position, size, span, records, first time, last time], ...]
       or     [object, position, size, sum]       of the index that lists them

An index has, for each of its appends, one line of JSON and its sum: {"extents": [...], "objects":
[...]}, sorted by topic id and partition.

Later entries may replace what lies at some offsets: by merged batches, in the whole of the range that they
cover. So what is at an offset is what the last entry says that covers it; `overlaid` finds it.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias

from spark_kbatch.errors import CorruptLedgerError
from spark_kbatch.ledger import names
from spark_kbatch.ledger.checksummed_json import sum_of
from spark_kbatch.ledger.codec import (
    STORED_NAME,
    Form,
    NameTable,
    ObjectReader,
    form_of,
    pack,
    sequence,
    text,
    unpack,
    whole,
)
from spark_kbatch.model import INT_MAX, LONG_MAX
from spark_kbatch.options.topic import PARTITIONS_MAX

NO_TIME = -1  # of batches whose records have none
FINAL_EPOCH = -1  # in place of a leader epoch: the batches have their own, as in a segment

_EXTENTS_MAX = 1_000_000  # of one append

TopicId: TypeAlias = Annotated[str, text(names.TOPIC_ID)]
StoredName: TypeAlias = Annotated[str, STORED_NAME]
Positive: TypeAlias = Annotated[int, whole(1)]
Time: TypeAlias = Annotated[int, whole(NO_TIME)]
PartitionNumber: TypeAlias = Annotated[int, whole(0, PARTITIONS_MAX - 1)]
LeaderEpoch: TypeAlias = Annotated[int, whole(FINAL_EPOCH, INT_MAX)]


class DataExtent(NamedTuple):
    """Whole batches of one partition, back to back in one object."""

    name: StoredName  # of the object
    position: int
    size_in_bytes: Positive
    span: Positive  # of offsets
    records_count: int
    first_ms: Time  # least time of a record; NO_TIME if none has one
    last_ms: Time  # greatest

    @property
    def fault(self) -> str:
        """What it should be and is not; empty if nothing is wrong with it."""
        is_sound = self.records_count <= self.span and self.first_ms <= self.last_ms
        return "" if is_sound else "an extent within its bounds"


class IndexRange(NamedTuple):
    """The place of an append's extents in an index object."""

    name: StoredName  # of the object
    position: int
    size_in_bytes: Positive
    crc: str  # of these bytes


Extents: TypeAlias = Annotated[
    tuple[DataExtent, ...], sequence(form_of(DataExtent), least=1, most=_EXTENTS_MAX)
]
_INDEX, _LISTED = form_of(IndexRange), form_of(Extents)


def _read_placed(value: Any, reader: ObjectReader) -> Any:
    is_index = isinstance(value, list) and type(value[0] if value else None) is int
    return (_INDEX if is_index else _LISTED).read(value, reader)


def _write_placed(value: Any, table: NameTable) -> Any:
    return (_INDEX if isinstance(value, IndexRange) else _LISTED).write(value, table)


Placed: TypeAlias = Annotated[
    tuple[DataExtent, ...] | IndexRange, Form(_read_placed, _write_placed)
]


class PartitionAppend(NamedTuple):
    """Consecutive offsets of one partition that one entry added, and where their batches are."""

    partition: PartitionNumber
    base_offset: int
    span: Positive
    records_count: int
    leader_epoch: LeaderEpoch  # that readers stamp into the batches; FINAL_EPOCH for none
    placed: Placed

    @property
    def fault(self) -> str:
        """What it should be and is not; empty if nothing is wrong with it."""
        extents = [self] if isinstance(self.placed, IndexRange) else self.placed
        sums = sum(one.span for one in extents), sum(one.records_count for one in extents)
        if not self.records_count <= self.span <= LONG_MAX - self.base_offset:
            return "an append within its bounds"
        is_sound = sums == (self.span, self.records_count)
        return (
            "" if is_sound else f"extents of {self.span} offsets and {self.records_count} records"
        )

    @property
    def next_offset(self) -> int:
        """The offset after the append."""
        return self.base_offset + self.span

    @property
    def objects(self) -> list[str]:
        """Names of the objects that the append refers to, each once; of an index, that one alone."""
        if isinstance(self.placed, IndexRange):
            return [self.placed.name]
        return [*dict.fromkeys(extent.name for extent in self.placed)]


class Change(NamedTuple):
    """A range of offsets of a partition, and the append that it is read from since an entry."""

    number: int  # of the entry
    start_offset: int
    next_offset: int
    append: PartitionAppend  # covers at least the range


Appends: TypeAlias = Mapping[TopicId, Sequence[PartitionAppend]]


@dataclass(frozen=True)
class IndexedExtents:
    """The extents of one append, as an index has them."""

    extents: Extents

    has_objects: ClassVar = True


def overlaid(changes: Iterable[Change]) -> dict[int, list[Change]]:
    """Return what is at each offset of a topic, by partition: ranges in order, none of which overlap.

    Args:
        changes: in the order of entries; a later one counts where two cover the same offset.
    """
    found: dict[int, list[Change]] = {}
    for change in changes:
        ranges = found.setdefault(change.append.partition, [])
        if not ranges or ranges[-1].next_offset <= change.start_offset:
            ranges.append(change)
        else:
            _replace(ranges, change)
    return found


def within(changes: Sequence[Change], start_offset: int, end_offset: int) -> list[Change]:
    """Return what is in a range of offsets; changes at its edges are cut."""
    first = bisect.bisect_right(changes, start_offset, key=lambda one: one.next_offset)
    last = bisect.bisect_left(changes, end_offset, key=lambda one: one.start_offset)
    return [
        one._replace(
            start_offset=max(one.start_offset, start_offset),
            next_offset=min(one.next_offset, end_offset),
        )
        for one in changes[first:last]
    ]


def _replace(ranges: list[Change], change: Change) -> None:
    """Put a range in place of whatever it covers, of which parts may stay before and after it."""
    first = bisect.bisect_right(ranges, change.start_offset, key=lambda one: one.next_offset)
    last = bisect.bisect_left(ranges, change.next_offset, key=lambda one: one.start_offset)
    put = [change]
    if first < last:
        before, after = ranges[first], ranges[last - 1]
        if before.start_offset < change.start_offset:
            put.insert(0, before._replace(next_offset=change.start_offset))
        if after.next_offset > change.next_offset:
            put.append(after._replace(start_offset=change.next_offset))
    ranges[first:last] = put


def pack_index(name: str, appends: Appends) -> tuple[bytes, dict[str, list[PartitionAppend]]]:
    """Return the content of an index object, and the same appends placed in it.

    Args:
        name: of the index.
        appends: with extents, of objects of the job that the index is of.
    """
    data, placed = bytearray(), dict[str, list[PartitionAppend]]()
    for topic_id in sorted(appends):
        for append in sorted(appends[topic_id], key=lambda one: one.partition):
            assert not isinstance(append.placed, IndexRange)
            folders = {*map(names.folder_of, append.objects)}
            assert folders == {names.folder_of(name)}, "one job, one index"
            line = pack(IndexedExtents(append.placed))
            at = IndexRange(name, len(data), len(line), sum_of(line))
            placed.setdefault(topic_id, []).append(append._replace(placed=at))
            data += line
    return bytes(data), placed


def unpack_index(data: bytes, at: IndexRange) -> tuple[DataExtent, ...]:
    """Return the extents of one append, from its range of an index object.

    Raises:
        CorruptLedgerError: these are not the bytes that the entry names.
    """
    found = unpack(IndexedExtents, data, at.name)
    if sum_of(data) != at.crc:
        raise CorruptLedgerError(
            at.name, f"it has the sum {sum_of(data)}, and the entry names the sum {at.crc}"
        )
    # The entry's number was checked against the name of the index alone.
    for extent in found.extents:
        if names.folder_of(extent.name) != names.folder_of(at.name):
            raise CorruptLedgerError(
                at.name,
                f"{extent.name} in it is not of the objects of the job that the index is of",
            )
    return found.extents


def start_entries(appends: Mapping[str, Iterable[PartitionAppend]]) -> Iterator[tuple[str, int]]:
    """Yield the name of each object that appends refer to, and the number in it."""
    for of_topic in appends.values():
        for append in of_topic:
            for name in append.objects:
                yield name, names.start_entry(name)
