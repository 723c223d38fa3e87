"""The extents of a partition, offset by offset, with those that index objects list.

An append whose extents are in an index is loaded when it is looked at, and the last ones stay in
memory.
"""

from __future__ import annotations

import bisect
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from spark_kbatch.bucket.objects import Objects, range_of, read_twice
from spark_kbatch.errors import CorruptLedgerError
from spark_kbatch.ledger.extents import (
    Change,
    DataExtent,
    IndexRange,
    PartitionAppend,
    unpack_index,
)

_INDEX_BYTES_KEPT = 16 << 20


class PlacedExtent(NamedTuple):
    """An extent, and which offsets are read from it: all of its own, or those that nothing later covers."""

    extent: DataExtent
    base_offset: int  # of its first record
    leader_epoch: int  # that readers stamp; FINAL_EPOCH where offsets and epochs are final
    start_offset: int
    next_offset: int

    @property
    def whole(self) -> PlacedExtent:
        """The same extent with all of its offsets."""
        end = self.base_offset + self.extent.span
        return self._replace(start_offset=self.base_offset, next_offset=end)


class Placements:
    """The extents of a cluster's partitions. Thread-safe."""

    def __init__(self, objects: Objects) -> None:
        """Set up; `objects` are the cluster's."""
        self._indexes = _Indexes(objects)

    def of(
        self, changes: Sequence[Change], start_offset: int, next_offset: int
    ) -> Iterator[PlacedExtent]:
        """Yield the extents with offsets of a range, in order.

        Args:
            changes: what is at each offset of the partition.
            start_offset, next_offset: the range.

        Raises as `Objects.get_range`, and CorruptLedgerError.
        """
        first = bisect.bisect_right(changes, start_offset, key=lambda one: one.next_offset)
        for change in changes[first:]:
            if change.start_offset >= next_offset:
                return
            for placed in self.whole(change):
                if placed.next_offset > start_offset and placed.start_offset < next_offset:
                    yield placed

    def load_indexes(
        self,
        changes: Iterable[Change],
        executor: Executor | None = None,
        *,
        at_most: int | None = None,
    ) -> int:
        """Load the extents of several changes, so that each index object is asked for once.

        Return how many index objects these are in.

        Args:
            changes: of any partitions.
            executor: asks for several at a time; without one they are asked for one by one.
            at_most: how many index objects to ask for; None for all.
        """
        return self._indexes.load((one.append for one in changes), executor, at_most)

    def whole(self, change: Change) -> Iterator[PlacedExtent]:
        """Yield all extents of a change, in order; raises as `of`."""
        append = change.append
        offset = append.base_offset
        for extent in self._indexes.extents(append):
            start, end = offset, offset + extent.span
            offset = end
            clipped = max(start, change.start_offset), min(end, change.next_offset)
            if clipped[0] < clipped[1]:
                yield PlacedExtent(extent, start, append.leader_epoch, *clipped)


class _Indexes:
    """Extents that index objects list; the last ones that were asked for stay in memory. Thread-safe."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._lock = threading.Lock()  # guards what follows; no other is taken while it is held
        self._found: OrderedDict[IndexRange, tuple[DataExtent, ...]] = OrderedDict()
        self._size = 0  # of their bytes in the objects

    def extents(self, append: PartitionAppend) -> tuple[DataExtent, ...]:
        """Return the extents of an append.

        Raises:
            CorruptLedgerError: they do not fit the append, or the index is damaged or missing.
        """
        if not isinstance(append.placed, IndexRange):
            return append.placed
        with self._lock:
            found = self._found.get(append.placed)
            if found is not None:
                self._found.move_to_end(append.placed)
                return found
        return self._add(append, self._range(append.placed))

    def _range(self, at: IndexRange) -> bytes | None:
        return range_of(self._objects, at.name, at.position, at.size_in_bytes)

    def load(
        self, appends: Iterable[PartitionAppend], executor: Executor | None, at_most: int | None
    ) -> int:
        """Load the extents of several appends, with one request for each index object; return their number."""
        missing: dict[str, list[tuple[IndexRange, PartitionAppend]]] = {}
        for append in appends:
            at = append.placed
            if isinstance(at, IndexRange) and at not in self._found:
                missing.setdefault(at.name, []).append((at, append))
        run = map if executor is None else executor.map
        for _ in run(lambda item: self._load(*item), [*missing.items()][:at_most]):
            pass  # raises what it raised
        return len(missing)

    def _load(self, name: str, wanted: Sequence[tuple[IndexRange, PartitionAppend]]) -> None:
        start = min(at.position for at, _ in wanted)
        end = max(at.position + at.size_in_bytes for at, _ in wanted)
        data = range_of(self._objects, name, start, end - start)
        for at, append in wanted:
            first = at.position - start
            self._add(append, data and data[first : first + at.size_in_bytes])

    def _add(self, append: PartitionAppend, data: bytes | None) -> tuple[DataExtent, ...]:
        at = append.placed
        assert isinstance(at, IndexRange)
        if data is None:
            raise CorruptLedgerError(at.name, "it is missing, and an entry refers to it")
        _, found = read_twice(data, lambda data: unpack_index(data, at), lambda: self._range(at))
        totals = sum(one.span for one in found), sum(one.records_count for one in found)
        if totals != (append.span, append.records_count):
            raise CorruptLedgerError(
                at.name,
                f"its extents have {totals[0]} offsets and {totals[1]} records; the entry that names them has "
                f"{append.span} and {append.records_count}",
            )
        with self._lock:
            if at not in self._found:
                self._found[at] = found
                self._size += at.size_in_bytes
            while self._size > _INDEX_BYTES_KEPT and len(self._found) > 1:
                last, _ = self._found.popitem(last=False)
                self._size -= last.size_in_bytes
        return found
