"""Scans of one `.log` file that trust nothing but its bytes: neither an index nor a recorded size.

    read_batches      read the whole batches at a position
    find_end          find where the whole valid batches end
    find_batch        find the next valid batch after damage
    find_next         the same, if the batch after it confirms its offsets
    valid_batch_at    check if a valid batch starts at a position, as an index entry says

Offsets increase from batch to batch and stay within 2^31 of the segment's base offset; compaction may
have left gaps. Nothing here writes.

Source: Kafka storage/.../log/LogSegment.recover, clients/.../record/FileLogInputStream.java.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.files import Files
from spark_kbatch.log.segment import RELATIVE_OFFSET_MAX
from spark_kbatch.record.header import (
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    LogRead,
    ensure_valid,
    header_at,
    walk,
    whole_size,
)

_CHUNK_BYTES = 1 << 20
_FIRST_CHUNK_BYTES = 4 * 1024  # after damage, which may be in every 100 bytes
_CHUNKS_GROW = 4
_PROBE_BYTES = 64 * 1024
# How far after damage the next batch is searched for. Few batches are larger, and a preallocated tail
# of zeros may be a gigabyte.
_SEARCHED_BYTES = 16 * 1024 * 1024
# How much of what looks like a batch is checked on the way: this many bytes, and this many more for each
# byte that the search has advanced. More looks like batches only if someone made it so.
_TRIED_BYTES = 256 * 1024 * 1024
_TRIED_BYTES_PER_BYTE = 4
_BASE_OFFSET = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_LENGTH_POSITION = 8
_BASE_OFFSET_FAULT = "base offset"


class SegmentEnd(NamedTuple):
    """The end of a segment's valid batches, and the damage found up to there and after it."""

    position: int  # after the last whole valid batch
    next_offset: int  # after its last offset; the segment's base offset if there is none
    last: tuple[int, int] | None  # base offset and position of that batch
    fault: CorruptRecordError | None  # in the bytes after it; None if there are none
    damaged: tuple[CorruptRecordError, ...] = ()  # invalid batches before the end
    resumed: tuple[
        tuple[int, int], ...
    ] = ()  # as `last`, of batches after damage that lost offsets


def read_batches(
    files: Files,
    descriptor: int,
    path: Path,
    position: int,
    end_position: int,
    *,
    max_bytes: int,
    at_least: int,
    buffer: bytearray | None = None,
) -> LogRead:
    """Read whole batches of a `.log` file from `position` on, where one starts.

    Args:
        end_position: bytes from there on do not count.
        max_bytes: the first batch is returned even if it is larger.
        at_least: what the first base offset must be at least.
        buffer: used for the result if it is large enough.

    Raises:
        CorruptRecordError: impossible sizes, magic bytes or offsets in what was read or in the base
            offset after it; a batch that is truncated by `end_position`. CRCs are not checked.
    """
    found: list[tuple[int, BatchHeader]] = []
    view, size = memoryview(b""), 0
    try:
        view, size = _read_whole(files, descriptor, position, end_position, max_bytes, buffer)
        for at, header in walk(view, 0, size or len(view)):
            _ensure_grows(at, header.base_offset, at_least)
            at_least = header.next_offset
            found.append((at, header))
        if position + size < end_position:
            following = _read(files, descriptor, position + size, _BASE_OFFSET.size)
            if len(following) == _BASE_OFFSET.size:
                _ensure_grows(size, _BASE_OFFSET.unpack(following)[0], at_least)
    except CorruptRecordError as error:
        found, size = _sure(str(path), position, view, found, error)
    return LogRead(str(path), position, view[:size], found)


def _sure(
    path: str,
    position: int,
    view: memoryview,
    found: list[tuple[int, BatchHeader]],
    error: CorruptRecordError,
) -> tuple[list[tuple[int, BatchHeader]], int]:
    """Return the certain batches before a read error, and where they end; raise it if there are none.

    The last one may be what is damaged: in its length, which its CRC shows, or in its offset, which
    nothing shows. So it is left out unless it is the only one; then the next read decides.
    """
    if len(found) > 1:
        found = found[:-1]
    elif not found or error.what == _BASE_OFFSET_FAULT:
        raise error.at(path, position) from None
    else:
        try:
            ensure_valid(view, *found[0])
        except CorruptRecordError as before:
            raise before.at(path, position) from None
    at, header = found[-1]
    return found, at + header.size_in_bytes


def _ensure_grows(position: int, found: int, at_least: int) -> None:
    if found < at_least:
        raise CorruptRecordError(
            _BASE_OFFSET_FAULT, position=position, expected=f"{at_least} or more", found=found
        )


def valid_batch_at(
    files: Files, descriptor: int, position: int, end_position: int
) -> BatchHeader | None:
    """Return the header of the valid batch, or older message, at `position`; None if there is none."""
    if not 0 <= position < end_position:
        return None
    try:
        view, size = _read_whole(files, descriptor, position, end_position, _PROBE_BYTES)
        header = header_at(view, 0, size or len(view))
        ensure_valid(view, 0, header)
    except CorruptRecordError:
        return None
    return header


def find_end(
    files: Files,
    path: Path,
    base_offset: int,
    position: int,
    end_position: int,
    *,
    trusted_below: int,
) -> SegmentEnd:
    """Find where the valid batches of a segment end, checking offsets and CRCs from `position` on.

    A batch starts at `position`.

    Args:
        base_offset: the segment's.
        end_position: the size of the file.
        trusted_below: an invalid batch below this offset stays in the log if a whole valid one
            follows not far after it, and reading it is an error. Any other ends the segment.
    """
    offset_max = base_offset + RELATIVE_OFFSET_MAX
    next_offset, last = base_offset, None
    allowance = Allowance(position)
    damaged: list[CorruptRecordError] = []
    resumed: list[tuple[int, int]] = []

    def ended(fault: CorruptRecordError | None) -> SegmentEnd:
        return SegmentEnd(position, next_offset, last, fault, tuple(damaged), tuple(resumed))

    with files.opened(path) as descriptor:
        while True:
            misplaced = None
            try:
                for at, header in _valid_batches(files, descriptor, path, position, end_position):
                    if not next_offset <= header.base_offset <= header.last_offset <= offset_max:
                        misplaced = header
                        raise CorruptRecordError(
                            _BASE_OFFSET_FAULT, path=str(path), position=at,
                            expected=f"{next_offset} to {offset_max}", found=header.base_offset,
                        )  # fmt: skip
                    last, next_offset = (header.base_offset, at), header.next_offset
                    position = at + header.size_in_bytes
            except CorruptRecordError as error:
                fault = error
            else:
                return ended(None)
            if next_offset >= trusted_below:
                return ended(fault)
            # Where offsets decrease, the batch before may be the wrong one: the next one decides.
            lowest = min(next_offset, misplaced.next_offset) if misplaced else next_offset
            following = find_batch(
                files, descriptor, position, end_position, range(lowest, offset_max + 1), allowance
            )
            if following is None:
                return ended(fault)
            position, header = following
            if header.base_offset < next_offset:
                next_offset = lowest
            elif header.base_offset > next_offset:
                resumed.append((header.base_offset, position))
            damaged.append(fault)


class Allowance:
    """A limit on the bytes that a search for the next valid batch checks, so that it stays linear."""

    def __init__(self, position: int) -> None:
        self._begin, self._left = position, _TRIED_BYTES

    def spend(self, position: int, size: int) -> bool:
        """Return True if a candidate batch of `size` bytes at `position` may be checked, and charge it."""
        earned = (position - self._begin) * _TRIED_BYTES_PER_BYTE
        if size > self._left + earned:
            return False
        self._left -= size
        return True


def find_batch(
    files: Files,
    descriptor: int,
    position: int,
    end_position: int,
    offsets: range,
    allowance: Allowance,
) -> tuple[int, BatchHeader] | None:
    """Find the next whole valid batch after `position` that has all its offsets in `offsets`."""

    def found_at(at: int, head: memoryview) -> tuple[int, BatchHeader] | None:
        size = _size_of_first(head)
        if not 0 < size <= end_position - at or not allowance.spend(at, size):
            return None
        header = valid_batch_at(files, descriptor, at, at + size)
        fits = header and header.base_offset in offsets and header.last_offset in offsets
        return (at, header) if header and fits else None

    found = None
    size = _size_of_first(_read(files, descriptor, position, LOG_OVERHEAD))
    if 0 < size < end_position - position:
        at = position + size
        found = found_at(at, _read(files, descriptor, at, LOG_OVERHEAD))
    # The length may be what is damaged, so search for a batch at every position.
    stop = min(end_position, position + _SEARCHED_BYTES)
    position += 1
    chunk_bytes = _FIRST_CHUNK_BYTES
    while found is None and position < stop:
        view = _read(files, descriptor, position, min(chunk_bytes, stop - position))
        data = bytes(view)
        at = data.find(MAGIC, MAGIC_POSITION)
        while found is None and at >= 0:
            start = at - MAGIC_POSITION
            (base_offset,) = _BASE_OFFSET.unpack_from(data, start)
            if base_offset in offsets:
                found = found_at(position + start, view[start:])
            at = data.find(MAGIC, at + 1)
        position += max(len(data) - MAGIC_POSITION, 1)
        chunk_bytes = min(chunk_bytes * _CHUNKS_GROW, _CHUNK_BYTES)
    return found


def find_next(
    files: Files,
    descriptor: int,
    position: int,
    end_position: int,
    offsets: range,
    *,
    is_dense: bool,
) -> tuple[int, BatchHeader] | None:
    """Find the next valid batch after damage whose offsets its follower confirms.

    No CRC covers a base offset, so a batch with a wrong one is part of the damage.

    Args:
        position: of a batch that is damaged, or of the one before it.
        offsets: that the batch may have, up to the end of the segment.
        is_dense: whether there are no gaps between batches.
    """
    allowance = Allowance(position)
    while found := find_batch(files, descriptor, position, end_position, offsets, allowance):
        position, header = found
        following = position + header.size_in_bytes
        data = _read(files, descriptor, following, _BASE_OFFSET.size)
        after = offsets.stop
        if following + len(data) <= end_position and len(data) == _BASE_OFFSET.size:
            after = _BASE_OFFSET.unpack(data)[0]
        if after == header.next_offset or (after > header.next_offset and not is_dense):
            return found
    return None


def _valid_batches(
    files: Files, descriptor: int, path: Path, position: int, end_position: int
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of whole batches with a valid CRC; raise at the first that has none."""
    chunk_bytes = _FIRST_CHUNK_BYTES
    while position < end_position:
        try:
            view, size = _read_whole(files, descriptor, position, end_position, chunk_bytes)
            for at, header in walk(view, 0, size or len(view)):
                try:
                    ensure_valid(view, at, header)
                except CorruptRecordError as error:
                    # Of messages that are walked as one batch, those before the error are valid.
                    for sound_at, sound in walk(view, at, error.position):
                        yield position + sound_at, sound
                    raise
                yield position + at, header
        except CorruptRecordError as error:
            raise error.at(str(path), position) from None
        position += size
        chunk_bytes = min(chunk_bytes * _CHUNKS_GROW, _CHUNK_BYTES)


def _read_whole(
    files: Files,
    descriptor: int,
    position: int,
    end_position: int,
    max_bytes: int,
    buffer: bytearray | None = None,
) -> tuple[memoryview, int]:
    """Read at least one whole batch at `position`; return the bytes and the size of whole batches in them."""
    room = end_position - position
    at_once = max(max_bytes, RECORD_BATCH_OVERHEAD)
    view = _read(files, descriptor, position, min(at_once, room), buffer)
    if not view:
        raise CorruptRecordError("file is truncated", position=0, expected=f"{room} bytes", found=0)
    size = whole_size(view)
    if size == 0 and len(view) < _size_of_first(view) <= room:
        view = _read(files, descriptor, position, _size_of_first(view), buffer)
        size = whole_size(view)
    return view, size


def _size_of_first(view: memoryview) -> int:
    """Return the size that the batch at the start of `view` states; 0 if the view is too short."""
    if len(view) < LOG_OVERHEAD:
        return 0
    return LOG_OVERHEAD + int(_LENGTH.unpack_from(view, _LENGTH_POSITION)[0])


def _read(
    files: Files, descriptor: int, position: int, size: int, buffer: bytearray | None = None
) -> memoryview:
    if buffer is not None and len(buffer) >= size:
        view = memoryview(buffer)[:size]
    else:
        view = memoryview(bytearray(size))
    return view[: files.pread_into(descriptor, position, view)]
