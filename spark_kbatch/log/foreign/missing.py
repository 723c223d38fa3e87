"""Evidence that a broker's log once had records that are not there now, which is more than a torn tail.

    a checkpoint       it had reached its recovery point, and its high watermark
    a segment's trace  its index is there, or a .log file under another name, and its .log is not
    no log             its last file starts neither with a valid batch nor with the start of one, as a crash
                       may leave it, or is the only one; and it is neither empty nor zeros

A gap between two segments is no evidence: compaction leaves such gaps.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.files import Files
from spark_kbatch.log.segment import RELATIVE_OFFSET_MAX, log_name
from spark_kbatch.log.segment_scan import SegmentEnd
from spark_kbatch.record.header import MAGIC, MAGIC_POSITION

_TRACE = re.compile(r"([0-9]{20})(?:\.index|\.timeindex|.*\.log.*)")
_GOING = (".deleted", ".cleaned", ".swap")
_PACKED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
    b"PK\x03\x04": "zip",
}
_LOOKED_AT_BYTES = 1 << 20
_REMEDY = "foreign.end=log (--foreign-end log) leaves out what is missing"


class Missing(NamedTuple):
    """Offsets of a log that it once had, and the error for a read of them."""

    start: int
    stop: int  # at least; exclusive
    error: CorruptRecordError


def packed_as(files: Files, path: Path) -> str:
    """Return what a file is compressed with, by its first bytes; empty if by nothing that is known here."""
    head = files.read(path, 0, max(map(len, _PACKED)))
    return next((name for magic, name in _PACKED.items() if head.startswith(magic)), "")


def traces(names: Iterable[str]) -> dict[int, str]:
    """Return the segments without a .log of which something else is there: its name, by base offset."""
    every = set(names)
    # Of several, the one under which the records may be is named.
    found = sorted((name for name in every if not name.endswith(_GOING)), key=lambda n: ".log" in n)
    bases = {name: matched for name in found if (matched := _TRACE.fullmatch(name))}
    return {
        int(matched[1]): name
        for name, matched in bases.items()
        # A broker renames the .log first when it deletes a segment.
        if every.isdisjoint((f"{matched[1]}.log", f"{matched[1]}.log.deleted"))
    }


def missing_segments(
    files: Files, directory: Path, lost: Mapping[int, str], held: Sequence[int], reached: int
) -> list[Missing]:
    """Return what is missing with the segments of which `traces` has found something.

    Args:
        files: the disk.
        directory: of the partition.
        lost: what `traces` returned.
        held: base offsets of the segments that are there, ascending.
        reached: an offset that the log had reached.
    """
    found = list[Missing]()
    for base, name in sorted(lost.items()):
        following = next((one for one in held if one > base), None)
        stop = max(reached, base + 1) if following is None else following
        if found and found[-1].stop >= stop:
            continue  # it lies between the same two segments as the one before it
        packed = packed_as(files, directory / name)
        what = f"the file is missing, and {name} is there"
        what += f", which is {packed}: unpack it first" if packed else ""
        is_known = following is not None or reached > base
        found.append(_missing(directory / log_name(base), 0, what, base, stop, is_known=is_known))
    return found


def missing_tail(
    path: Path, end: SegmentEnd, reached: int, says: str, no_log: str
) -> Missing | None:
    """Return what is missing after a log's last valid batch; None if that is where it may end.

    Args:
        path: the last segment's .log.
        end: of that segment.
        reached: an offset that the log had reached.
        says: the checkpoint that says so.
        no_log: why the file is no log; empty if it is one.
    """
    fault, start = end.fault, end.next_offset
    if not no_log and reached <= start:
        return None
    why = f" ({fault.what}: expected {fault.expected}, found {fault.found})" if fault else ""
    what = no_log or f"{says} has offset {reached}, and the log ends at {start}"
    stop = max(reached, start + 1)
    return _missing(path, end.position, what + why, start, stop, is_known=reached > start)


def _missing(
    path: Path, position: int, what: str, start: int, stop: int, *, is_known: bool
) -> Missing:
    error = CorruptRecordError(what, str(path), position, remedy=_REMEDY)
    return Missing(
        start, stop, replace(error, offset=start, next_offset=stop) if is_known else error
    )


def why_no_log(files: Files, path: Path, base_offset: int, *, is_first: bool) -> str:
    """Return why a file that starts with no valid batch is no segment; empty if a crash may have left it.

    Args:
        files: the disk.
        path: the file.
        base_offset: of the segment.
        is_first: whether it is the first segment of its log, before which nothing is valid.
    """
    packed = packed_as(files, path)
    if packed:
        return f"this is {packed}: unpack it first"
    head = files.read(path, 0, _LOOKED_AT_BYTES)
    if not head.strip(b"\0"):
        return ""
    (offset,) = struct.unpack(">q", head[:8].ljust(8, b"\0"))
    is_magic = head[MAGIC_POSITION : MAGIC_POSITION + 1] <= bytes([MAGIC])
    may_be_torn = is_magic and 0 <= offset - base_offset <= RELATIVE_OFFSET_MAX
    return "" if may_be_torn and not is_first else "it does not start with a valid batch"
