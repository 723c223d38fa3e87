"""The batches of a range of offsets, from the objects in which their extents are.

    extents     in the order of offsets
    windows     at most WINDOW_BYTES of one object: part of an extent, or several that are neighbours
    reads       whole batches, with their final offsets and leader epochs written into them

Some windows are read ahead, by threads, so that memory is bounded by their number. Who decodes the
batches checks their CRCs. Offsets are checked here: no CRC covers where a batch begins. An extent
with as many records as offsets has no gaps, so each of its batches begins where the one before
ended; in another one, at least not before that.

An object that was cut short is damaged where it ends, and not a failure of the store.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import NamedTuple

from spark_kbatch.bucket.objects import RangeReader, range_of
from spark_kbatch.bucket.placement import PlacedExtent
from spark_kbatch.errors import CorruptRecordError, KBatchError
from spark_kbatch.ledger.extents import FINAL_EPOCH
from spark_kbatch.model import LONG_MAX
from spark_kbatch.record.header import (
    MAGIC,
    MAGIC_POSITION,
    BatchHeader,
    LogRead,
    assign,
    ensure_all_valid,
    walk,
    whole_size,
)

WINDOW_BYTES = 4 << 20
WINDOWS_AHEAD = 2
_GAP_BYTES_MAX = 64 << 10  # between two extents that are read by one request all the same


@contextlib.contextmanager
def request_threads(count: int) -> Iterator[Executor]:
    """Return threads for requests; those that were not begun by the end are dropped, and none is waited for."""
    executor = ThreadPoolExecutor(count, "kbatch-bucket")
    try:
        yield executor
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


class MissingObjectError(KBatchError):
    """An object with batches is not there, or not any more."""


class _ExtentPart(NamedTuple):
    """A part of an extent, by positions in its object."""

    placed: PlacedExtent
    position: int
    end_position: int

    @property
    def is_last(self) -> bool:
        """Whether the extent ends with it."""
        extent = self.placed.extent
        return self.end_position == extent.position + extent.size_in_bytes


class _ReadWindow(NamedTuple):
    """A part of an object that one request reads."""

    name: str
    position: int
    end_position: int
    parts: Sequence[_ExtentPart]


def windows(extents: Iterable[PlacedExtent]) -> Iterator[_ReadWindow]:
    """Yield what to read, request by request."""
    parts: list[_ExtentPart] = []
    for placed in extents:
        position = placed.extent.position
        end = position + placed.extent.size_in_bytes
        while position < end:
            if parts and not _has_room(parts, placed.extent.name, position):
                yield _window(parts)
                parts = []
            start = parts[0].position if parts else position
            part = _ExtentPart(placed, position, min(end, start + WINDOW_BYTES))
            parts.append(part)
            position = part.end_position
    if parts:
        yield _window(parts)


def _has_room(parts: Sequence[_ExtentPart], name: str, position: int) -> bool:
    first, last = parts[0], parts[-1]
    return (
        first.placed.extent.name == name
        and 0 <= position - last.end_position <= _GAP_BYTES_MAX
        and position - first.position < WINDOW_BYTES
    )


def _window(parts: Sequence[_ExtentPart]) -> _ReadWindow:
    name = parts[0].placed.extent.name
    return _ReadWindow(name, parts[0].position, parts[-1].end_position, parts)


def read_window(objects: RangeReader, window: _ReadWindow) -> bytes:
    """Return a part of an object, less where it was cut short; as `range_of`.

    Raises:
        MissingObjectError: there is no such object.
        ObjectStoreError: the store fails.
    """
    size = window.end_position - window.position
    data = range_of(objects, window.name, window.position, size)
    if data is None:
        raise MissingObjectError(window.name)
    return data


class _StoredBatch(NamedTuple):
    """One batch, with its final offset and epoch in the header, but not in its bytes."""

    name: str  # of the object
    position: int
    data: memoryview
    header: BatchHeader


class _Run:
    """Batches that are returned together: they lie back to back in one object."""

    def __init__(self, first: _StoredBatch) -> None:
        self._name, self._position = first.name, first.position
        self._data, self._batches = bytearray(), list[tuple[int, BatchHeader]]()
        self.add(first)

    def goes_on_with(self, batch: _StoredBatch) -> bool:
        return (
            (self._name, self._position + len(self._data)) == (batch.name, batch.position)
            and len(self._data) < WINDOW_BYTES
            # Ranges that were replaced may end within a batch. Then the next read begins there.
            and batch.header.base_offset >= self._batches[-1][1].next_offset
        )

    def add(self, batch: _StoredBatch) -> None:
        position, header = len(self._data), batch.header
        self._data += batch.data
        assign(
            self._data,
            position,
            base_offset=header.base_offset,
            leader_epoch=header.partition_leader_epoch,
        )
        self._batches.append((position, header))

    def read(self) -> LogRead:
        return LogRead(self._name, self._position, memoryview(self._data), self._batches)


class BatchStream:
    """An iterator over the batches of some extents. Not thread-safe."""

    def __init__(
        self,
        objects: RangeReader,
        extents: Iterable[PlacedExtent],
        start_offset: int,
        *,
        executor: Executor | None = None,
    ) -> None:
        """Set up; nothing is read before the first batches are taken.

        Args:
            objects: of the cluster.
            extents: in the order of offsets.
            start_offset: batches that end before it are left out.
            executor: reads ahead; if none is given, nothing is read ahead.
        """
        self.next_offset = start_offset  # after the batches that were taken
        self._why_no_more: KBatchError | None = None  # extents, as an index cannot be read
        self._objects, self._executor = objects, executor
        self._extents = self._known(extents)
        self._start_offset = start_offset
        self._reads = self._read()
        self._left: LogRead | None = None  # that was read, and not taken

    def take(self, max_bytes: int, *, min_one_batch: bool = True) -> LogRead | None:
        """Return the next batches, as many as were read together and fit; None at the end.

        Args:
            max_bytes: how many bytes to return.
            min_one_batch: whether the first one is returned even if it is larger; else nothing may be.

        Raises:
            CorruptRecordError: a size or an offset that cannot be; with the object's name and the position.
            MissingObjectError, ObjectStoreError: as `read_window`.
        """
        read = self._left or next(self._reads, None)
        if read is None:
            return None
        taken, self._left = _divided(read, max_bytes, min_one_batch=min_one_batch)
        if taken.batches:
            self.next_offset = taken.batches[-1][1].next_offset
        return taken

    def checked(self) -> Iterator[LogRead]:
        """Yield all batches, with their CRCs checked; raises as `take`, and CorruptRecordError for a wrong one."""
        while (read := self.take(LONG_MAX)) is not None:
            try:
                ensure_all_valid(read.data, read.batches)
            except CorruptRecordError as error:
                raise error.at(read.path, read.position) from None
            yield read

    def _known(self, extents: Iterable[PlacedExtent]) -> Iterator[PlacedExtent]:
        """Yield the extents up to an error, which is raised once they are read."""
        try:
            yield from extents
        except KBatchError as error:
            self._why_no_more = error

    def _read(self) -> Iterator[LogRead]:
        run: _Run | None = None
        why = None
        try:
            for batch in self._batches():
                if run is None:
                    run = _Run(batch)
                elif run.goes_on_with(batch):
                    run.add(batch)
                else:
                    yield run.read()
                    run = _Run(batch)
        except KBatchError as error:
            why = error  # after what was read before it
        if run is not None:
            yield run.read()
        if why := why or self._why_no_more:
            raise why

    def _batches(self) -> Iterator[_StoredBatch]:
        rest = b""  # of a batch that the part before ends in
        expected = 0  # where the next batch begins
        for window, data in self._windows():
            for part in window.parts:
                first = part.position - window.position
                size = part.end_position - part.position
                piece = memoryview(rest + data[first : first + size])
                position = part.position - len(rest)
                is_cut = len(data) < first + size
                whole = len(piece) if part.is_last and not is_cut else whole_size(piece)
                rest = bytes(piece[whole:])
                if part.position == part.placed.extent.position:
                    expected = part.placed.base_offset
                try:
                    for at, header in walk(piece, 0, whole):
                        final = _final(header, part.placed, at, expected)
                        expected = final.next_offset
                        if self._is_wanted(final, part.placed):
                            batch = piece[at : at + header.size_in_bytes]
                            yield _StoredBatch(window.name, position + at, batch, final)
                except CorruptRecordError as error:
                    raise error.at(window.name, position) from None
                if is_cut:
                    end = window.position + len(data)
                    raise CorruptRecordError(
                        "the object was cut short", window.name, end, part.end_position, end
                    )

    def _is_wanted(self, header: BatchHeader, placed: PlacedExtent) -> bool:
        start = max(self._start_offset, placed.start_offset)
        return header.next_offset > start and header.base_offset < placed.next_offset

    def _windows(self) -> Iterator[tuple[_ReadWindow, bytes]]:
        if self._executor is None:
            for window in windows(self._extents):
                yield window, read_window(self._objects, window)
            return
        ahead: deque[tuple[_ReadWindow, Future[bytes]]] = deque()
        for window in windows(self._extents):
            ahead.append((window, self._executor.submit(read_window, self._objects, window)))
            if len(ahead) > WINDOWS_AHEAD:
                first, coming = ahead.popleft()
                yield first, coming.result()
        for first, coming in ahead:
            yield first, coming.result()


def _final(header: BatchHeader, placed: PlacedExtent, position: int, expected: int) -> BatchHeader:
    """Return a batch's header with its final offset and epoch.

    Args:
        header, position: of the batch.
        placed: the extent that it is in.
        expected: the offset after the batch before it.

    Raises:
        CorruptRecordError: it is not of the current format, lies outside of its extent, or begins
            where it cannot.
    """
    if header.magic != MAGIC:
        raise CorruptRecordError(
            "magic byte", position=position + MAGIC_POSITION, expected=MAGIC, found=header.magic
        )
    is_final = placed.leader_epoch == FINAL_EPOCH
    base = header.base_offset if is_final else placed.base_offset + header.base_offset
    extent, end_offset = placed.extent, placed.base_offset + placed.extent.span
    is_dense = extent.span == extent.records_count
    if base != expected if is_dense else base < expected:
        raise CorruptRecordError(
            "base offset of a batch",
            position=position,
            expected=f"{expected}" if is_dense else f"{expected} or more",
            found=base,
        )
    if base + header.last_offset_delta >= end_offset:
        raise CorruptRecordError(
            "offsets outside of the batch's extent",
            position=position,
            expected=f"{placed.base_offset} to {end_offset - 1}",
            found=f"{base} to {base + header.last_offset_delta}",
        )
    return header if is_final else header.with_base_offset(base, placed.leader_epoch)


def _divided(
    read: LogRead, max_bytes: int, *, min_one_batch: bool
) -> tuple[LogRead, LogRead | None]:
    """Return the batches of a read that fit, and the others, if there are any."""
    count = 0
    for position, header in read.batches:
        if position + header.size_in_bytes > max_bytes and not (min_one_batch and count == 0):
            break
        count += 1
    if count == len(read.batches):
        return read, None
    size = read.batches[count][0]
    left = [(position - size, header) for position, header in read.batches[count:]]
    return (
        read._replace(data=read.data[:size], batches=read.batches[:count]),
        LogRead(read.path, read.position + size, read.data[size:], left),
    )
