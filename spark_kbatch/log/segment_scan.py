"""One `.log` file of which only the bytes are sure: whole batches from a position on, and its end.

Nothing here believes an index or a recorded size, and nothing writes. `read_batches` reads what lies
at a position, `find_end` where the whole valid batches end, `is_batch_at` whether one begins there:
with that an index entry is a hint that can be tried.

Offsets grow from batch to batch and stay within 2^31 of the segment's base offset; they may have
gaps, which compaction leaves.

Source: Kafka storage/.../log/LogSegment.recover, clients/.../record/FileLogInputStream.java.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.log.files import Files
from spark_kbatch.log.segment import RELATIVE_OFFSET_MAX
from spark_kbatch.record.header import (
    LOG_OVERHEAD,
    BatchHeader,
    LogRead,
    ensure_valid,
    walk,
    whole_size,
)

_CHUNK_BYTES = 1 << 20
_PROBE_BYTES = 64 * 1024
_BASE_OFFSET = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_LENGTH_POSITION = 8
_BASE_OFFSET_FAULT = "base offset"


class SegmentEnd(NamedTuple):
    """Where the batches of a segment end."""

    position: int  # behind the last whole valid batch
    next_offset: int  # behind its offsets; the segment's base offset where there is none
    last: tuple[int, int] | None  # base offset and position of that batch; None where there is none
    fault: CorruptRecordError | None  # in the bytes behind; None where there are no bytes
    damaged: tuple[CorruptRecordError, ...] = ()  # batches before the end that do not hold


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
    """The whole batches that lie from `position` on, where one begins.

    Args:
        end_position: bytes from there on do not exist.
        max_bytes: the first batch is returned even when it is larger.
        at_least: the first base offset is this or more.
        buffer: used for the result where it is large enough.

    Raises:
        CorruptRecordError: sizes, magics or offsets that cannot be, in what was read or in the base
            offset behind it; a batch that is cut off by `end_position`. CRCs are not checked.
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
            behind = _read(files, descriptor, position + size, _BASE_OFFSET.size)
            if len(behind) == _BASE_OFFSET.size:
                _ensure_grows(size, _BASE_OFFSET.unpack(behind)[0], at_least)
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
    """The batches before an error, and where they end; raises where there are none.

    The last one may be what is wrong: about where it ends, which its CRC tells, or about its offset,
    which nothing tells. So it is not among them unless it is alone; then the next read decides.
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


def is_batch_at(
    files: Files,
    descriptor: int,
    path: Path,
    position: int,
    end_position: int,
    *,
    base_offset: int,
    up_to: int,
) -> bool:
    """Whether a whole valid batch whose first offset lies in [base_offset, up_to] begins there."""
    if not 0 <= position < end_position:
        return False
    try:
        read = read_batches(
            files, descriptor, path, position, end_position, max_bytes=_PROBE_BYTES, at_least=0
        )
        _, header = read.batches[0]
        ensure_valid(read.data, 0, header)
    except (CorruptRecordError, IndexError):
        return False
    return base_offset <= header.base_offset <= up_to


def find_end(
    files: Files,
    path: Path,
    base_offset: int,
    position: int,
    end_position: int,
    *,
    trusted_below: int,
) -> SegmentEnd:
    """Go over the batches from `position` on, where one begins, with their CRCs.

    Args:
        base_offset: the segment's.
        end_position: the size of the file.
        trusted_below: a batch below this offset that does not hold is left in the log where a whole
            valid one lies behind it; who reads it gets an error. Any other ends the segment.
    """
    next_offset, last = base_offset, None
    damaged: list[CorruptRecordError] = []
    with files.opened(path) as descriptor:
        while True:
            try:
                for at, header in _valid_batches(files, descriptor, path, position, end_position):
                    _ensure_in_segment(header, base_offset, next_offset)
                    last, next_offset = (header.base_offset, at), header.next_offset
                    position = at + header.size_in_bytes
            except CorruptRecordError as error:
                fault = error if error.path else error.at(str(path), position)
            else:
                return SegmentEnd(position, next_offset, last, None, tuple(damaged))
            behind = position + _size_of_first(_read(files, descriptor, position, LOG_OVERHEAD))
            follows = behind > position and is_batch_at(
                files, descriptor, path, behind, end_position,
                base_offset=next_offset, up_to=base_offset + RELATIVE_OFFSET_MAX,
            )  # fmt: skip
            if not (next_offset < trusted_below and follows):
                return SegmentEnd(position, next_offset, last, fault, tuple(damaged))
            damaged.append(fault)
            position = behind


def _valid_batches(
    files: Files, descriptor: int, path: Path, position: int, end_position: int
) -> Iterator[tuple[int, BatchHeader]]:
    """Whole batches whose CRC holds, up to the first of which that is not so: that raises."""
    while position < end_position:
        try:
            view, size = _read_whole(files, descriptor, position, end_position, _CHUNK_BYTES)
            for at, header in walk(view, 0, size or len(view)):
                ensure_valid(view, at, header)
                yield position + at, header
        except CorruptRecordError as error:
            raise error.at(str(path), position) from None
        position += size


def _ensure_in_segment(header: BatchHeader, base_offset: int, next_offset: int) -> None:
    if header.base_offset < next_offset or header.last_offset - base_offset > RELATIVE_OFFSET_MAX:
        raise CorruptRecordError(
            _BASE_OFFSET_FAULT,
            position=0,
            expected=f"{next_offset} to {base_offset + RELATIVE_OFFSET_MAX}",
            found=header.base_offset,
        )


def _read_whole(
    files: Files,
    descriptor: int,
    position: int,
    end_position: int,
    max_bytes: int,
    buffer: bytearray | None = None,
) -> tuple[memoryview, int]:
    """What lies at `position`, and how much of it is whole batches: one or more, if there is one."""
    room = end_position - position
    view = _read(files, descriptor, position, min(max_bytes, room), buffer)
    if not view:
        raise CorruptRecordError("file is cut off", position=0, expected=f"{room} bytes", found=0)
    size = whole_size(view)
    if size == 0 and len(view) < _size_of_first(view) <= room:
        view = _read(files, descriptor, position, _size_of_first(view), buffer)
        size = whole_size(view)
    return view, size


def _size_of_first(view: memoryview) -> int:
    """What the batch at the begin of `view` says about its size; 0 where it says nothing."""
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
