"""Places of a partition's batches: extents in objects, and stretches of offsets that they make up.

An extent is a run of whole batches in one object. A stretch is what one entry added to a partition: a base
offset, and either its extents, or the place in an index object that lists them. Batches lie in their objects
with offsets from 0 within their extent, or with final ones in a segment; either way the first offset of an
extent is the stretch's base offset and the spans of the extents before it. Span and count are kept apart,
as the log that a mirror copies may have gaps.

A stretch in JSON, with names of objects replaced by their place in a list that is stored beside it:

    [partition, base offset, span, records, leader epoch, extents]

    extents   [[object, position, size, span, records, first time, last time], ...]
       or     [object, position, size, sum]       of the index that lists them

An index has, for each of its stretches, one sealed line: {"extents": [...], "objects": [...]}, sorted by
topic id and partition.

Later entries may replace what lies at some offsets: by merged batches, in the whole of the range that they
cover. So what is at an offset is what the last entry says that covers it; `overlaid` finds it.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from spark_kbatch.errors import KBatchError
from spark_kbatch.ledger import names
from spark_kbatch.ledger.checksummed_json import seal, sum_of, unseal
from spark_kbatch.model import INT_MAX, LONG_MAX
from spark_kbatch.options.topic import PARTITIONS_MAX
from spark_kbatch.stored_json import StoredObject

NO_TIME = -1  # of batches whose records have none
FINAL_EPOCH = -1  # in place of a leader epoch: the batches have their own, as in a segment

_EXTENTS_MAX = 1_000_000  # of one stretch
_STRETCHES_MAX = 10_000_000
_EXTENT_FIELDS, _INDEX_FIELDS, _STRETCH_FIELDS = 7, 4, 6


class DataExtent(NamedTuple):
    """Whole batches of one partition, back to back in one object."""

    name: str  # of the object
    position: int
    size_in_bytes: int
    span: int  # of offsets
    records_count: int
    first_ms: int  # least time of a record; NO_TIME if none has one
    last_ms: int  # greatest


class IndexRange(NamedTuple):
    """The place of a stretch's extents in an index object."""

    name: str  # of the object
    position: int
    size_in_bytes: int
    crc: str  # of these bytes


Placed: TypeAlias = tuple[DataExtent, ...] | IndexRange


class Stretch(NamedTuple):
    """Consecutive offsets of one partition that one entry added, and where their batches are."""

    partition: int
    base_offset: int
    span: int
    records_count: int
    leader_epoch: int  # that readers stamp into the batches; FINAL_EPOCH for none
    placed: Placed

    @property
    def next_offset(self) -> int:
        """The offset after the stretch."""
        return self.base_offset + self.span

    @property
    def objects(self) -> list[str]:
        """Names of the objects that the stretch refers to, each once; of an index, that one alone."""
        if isinstance(self.placed, IndexRange):
            return [self.placed.name]
        return [*dict.fromkeys(extent.name for extent in self.placed)]


class Change(NamedTuple):
    """A range of offsets of a partition, and the stretch that it is read from since an entry."""

    number: int  # of the entry
    start_offset: int
    next_offset: int
    stretch: Stretch  # covers at least the range


Stretches: TypeAlias = Mapping[str, Sequence[Stretch]]  # by topic id


def overlaid(changes: Iterable[Change]) -> dict[int, list[Change]]:
    """Return what is at each offset of a topic, by partition: ranges in order, none of which overlap.

    Args:
        changes: in the order of entries; a later one counts where two cover the same offset.
    """
    found: dict[int, list[Change]] = {}
    for change in changes:
        ranges = found.setdefault(change.stretch.partition, [])
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


# In JSON.


class NameTable:
    """The list of names in place of which their numbers are stored."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    @property
    def names(self) -> list[str]:
        """The names by their numbers."""
        return [*self._numbers]

    def number(self, name: str) -> int:
        """Return the number of a name, a new one if it has none."""
        return self._numbers.setdefault(name, len(self._numbers))


def packed(stretch: Stretch, table: NameTable) -> list[Any]:
    """Return a stretch as JSON."""
    placed: list[Any]
    if isinstance(stretch.placed, IndexRange):
        placed = [table.number(stretch.placed.name), *stretch.placed[1:]]
    else:
        placed = [[table.number(extent.name), *extent[1:]] for extent in stretch.placed]
    return [*stretch[:-1], placed]


class StretchReader:
    """Stretches in the JSON of one object, checked as they are taken."""

    def __init__(self, found: StoredObject, key: str) -> None:
        """Read the names of objects at the key "objects"; `key` is where the stretches are, for errors."""
        self._found, self._key = found, key
        self._names: list[str] = found.texts("objects", count_max=_STRETCHES_MAX)
        for name in self._names:
            if names.began_at(name) < 0:
                raise found.damaged("objects", name, "names of data, indexes and segments")

    def stretch(self, value: Any) -> Stretch:
        """Return the stretch that a value of JSON is."""
        if not isinstance(value, list) or len(value) != _STRETCH_FIELDS:
            raise self._damaged(value, f"a stretch, of {_STRETCH_FIELDS} values")
        partition, base, span, count, epoch, placed = value
        self._ensure(partition, 0, PARTITIONS_MAX - 1)
        self._ensure(base, 0, LONG_MAX)
        self._ensure(span, 1, LONG_MAX - base)
        self._ensure(count, 0, span)
        self._ensure(epoch, FINAL_EPOCH, INT_MAX)
        return Stretch(partition, base, span, count, epoch, self._placed(placed, span, count))

    def extents(self, value: Any) -> tuple[DataExtent, ...]:
        """Return the extents that a value of JSON is."""
        if not isinstance(value, list) or not 0 < len(value) <= _EXTENTS_MAX:
            raise self._damaged(value, "a list of extents")
        return tuple(map(self._extent, value))

    def _placed(self, value: Any, span: int, count: int) -> Placed:
        if isinstance(value, list) and len(value) == _INDEX_FIELDS and type(value[0]) is int:
            number, position, size, crc = value
            self._ensure(position, 0, LONG_MAX)
            self._ensure(size, 1, LONG_MAX)
            if not isinstance(crc, str):
                raise self._damaged(crc, "a sum as text")
            return IndexRange(self._name(number), position, size, crc)
        found = self.extents(value)
        if (sum(one.span for one in found), sum(one.records_count for one in found)) != (
            span,
            count,
        ):
            raise self._damaged(value, f"extents of {span} offsets and {count} records")
        return found

    def _extent(self, value: Any) -> DataExtent:
        if not isinstance(value, list) or len(value) != _EXTENT_FIELDS:
            raise self._damaged(value, f"an extent, of {_EXTENT_FIELDS} values")
        if any(type(one) is not int or one > LONG_MAX for one in value):
            raise self._damaged(value, "whole numbers")
        number, position, size, span, count, first_ms, last_ms = value
        if not (
            position >= 0 and size >= 1 and span >= count >= 0 and last_ms >= first_ms >= NO_TIME
        ):
            raise self._damaged(value, "an extent within its bounds")
        self._ensure(span, 1, LONG_MAX)
        return DataExtent(self._name(number), position, size, span, count, first_ms, last_ms)

    def _name(self, number: Any) -> str:
        self._ensure(number, 0, len(self._names) - 1)
        return self._names[int(number)]

    def _ensure(self, value: Any, lowest: int, highest: int) -> None:
        if type(value) is not int or not lowest <= value <= highest:
            raise self._damaged(value, f"whole numbers, this one from {lowest} to {highest}")

    def _damaged(self, value: Any, expected: str) -> KBatchError:
        return self._found.damaged(self._key, value, expected)


def pack_index(name: str, stretches: Stretches) -> tuple[bytes, dict[str, list[Stretch]]]:
    """Return the content of an index object, and the same stretches placed in it.

    Args:
        name: of the index.
        stretches: with extents, of objects of the job that the index is of.
    """
    data, placed = bytearray(), dict[str, list[Stretch]]()
    for topic_id in sorted(stretches):
        for stretch in sorted(stretches[topic_id], key=lambda one: one.partition):
            table = NameTable()
            extents = packed(stretch, table)[-1]
            assert all(names.folder_of(one) == names.folder_of(name) for one in table.names), (
                "one job, one index"
            )
            line = seal({"objects": table.names, "extents": extents})
            at = IndexRange(name, len(data), len(line), sum_of(line))
            placed.setdefault(topic_id, []).append(stretch._replace(placed=at))
            data += line
    return bytes(data), placed


def unpack_index(data: bytes, at: IndexRange) -> tuple[DataExtent, ...]:
    """Return the extents of one stretch, from its range of an index object.

    Raises:
        CorruptLedgerError: these are not the bytes that the entry names.
    """
    found = unseal(data, at.name)
    if sum_of(data) != at.crc:
        raise found.damaged("extents", sum_of(data), f"the sum {at.crc} that the entry names")
    extents = StretchReader(found, "extents").extents(found.values.get("extents"))
    # The entry's number was checked against the name of the index alone.
    for extent in extents:
        if names.folder_of(extent.name) != names.folder_of(at.name):
            raise found.damaged("extents", extent.name, "objects of the job that the index is of")
    return extents


def began(stretches: Stretches) -> Iterator[tuple[str, int]]:
    """Yield the name of each object that stretches refer to, and the number in it."""
    for of_topic in stretches.values():
        for stretch in of_topic:
            for name in stretch.objects:
                yield name, names.began_at(name)
