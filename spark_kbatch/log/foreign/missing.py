"""Evidence that a broker's log once had records that are missing, which is more than a torn tail.

    a checkpoint       it had reached its recovery point, and its high watermark
    a segment's trace  its index is there, or a .log file under another name, and its .log is not;
                       an empty index at the log's end is none
    no log             its last file starts neither with a valid batch nor with the start of one, as
                       a crash may leave it, or is the only one; and it is neither empty nor zeros

A gap between two segments is no evidence: compaction leaves such gaps.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.files import Files
from spark_kbatch.log.segment import RELATIVE_OFFSET_MAX, Segment, log_name
from spark_kbatch.log.segment_scan import SegmentEnd
from spark_kbatch.record.header import MAGIC, MAGIC_POSITION

PACKED_BYTES = 6  # of a file tell what it is packed with
_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ\x00": "xz"}
_TRACE = re.compile(
    r"([0-9]{20})(\.index|\.timeindex|.*\.log.*)(?<!\.deleted)(?<!\.cleaned)(?<!\.swap)"
)
_LOOKED_AT_BYTES = 1 << 20
_REMEDY = "foreign.end=log (--foreign-end log) leaves out what is missing"


def packed_as(head: bytes) -> str:
    """Return what a file is packed with, by its first bytes; empty if with nothing known here."""
    return next((name for magic, name in _PACKED.items() if head.startswith(magic)), "")


def traces(names: Iterable[str]) -> dict[int, str]:
    """Return the segments without a .log of which something else is there, by base offset.

    Of several files the one is named under whose name the records may be.
    """
    found = {
        matched[1]: name
        for name in sorted(names, key=lambda name: ".log" in name)
        if (matched := _TRACE.fullmatch(name))
    }
    # A broker renames the .log first when it deletes a segment.
    held = {name[:20] for name in names if name[20:] in (".log", ".log.deleted")}
    return {int(stem): name for stem, name in sorted(found.items()) if stem not in held}


def find_missing(
    files: Files,
    directory: Path,
    segments: Sequence[Segment],
    lost: Mapping[int, str],
    end: SegmentEnd,
    reached: tuple[int, str],
) -> list[CorruptRecordError]:
    """Return an error for each range of offsets that is missing, ascending.

    Args:
        files: the disk.
        directory: of the partition.
        segments: that are there, up to the one with the log's end.
        lost: what `traces` returned.
        end: of the last segment.
        reached: an offset that the log had reached, and the checkpoint that says so.

    Returns:
        Errors with the offset from which records are missing, and the next one that is there, or
        the log's end; that is -1 where it is not known.
    """
    start, found = end.next_offset, dict[int, CorruptRecordError]()
    last_known = reached[0] if reached[0] > max([start, *lost]) else -1
    for base, name in lost.items():
        # Of several beside each other, the first one tells.
        following = next((s.base_offset for s in segments if s.base_offset > base), last_known)
        head = files.read(directory / name, 0, _LOOKED_AT_BYTES)
        if base == start and ".log" not in name and not head.strip(b"\0"):
            continue  # of a roll at the log's end: no record is known to have been there
        packed = packed_as(head)
        error = CorruptRecordError(
            f"the file is missing, and {name} is there"
            f"{packed and f', which is {packed}: unpack it first'}; {_REMEDY}",
            str(directory / log_name(base)),
            0,
            offset=base,
            next_offset=following,
        )
        found.setdefault(following, error)
    no_log = "" if end.fault is None or end.position else _why_no_log(files, segments)
    if no_log or reached[0] > start:
        ends = f"{reached[1]} has offset {reached[0]}, and the log ends at {start}"
        why = (
            end.fault
            and f" ({end.fault.what}: expected {end.fault.expected}, found {end.fault.found})"
        )
        path = segments[-1].log if segments else directory / log_name(start)
        error = CorruptRecordError(
            f"{no_log or ends}{why or ''}; {_REMEDY}",
            str(path),
            end.position,
            offset=start,
            next_offset=last_known,
        )
        found.setdefault(last_known, error)
    return [*found.values()]


def end_of(missing: CorruptRecordError) -> int:
    """Return the offset up to which records are missing, at least; exclusive."""
    return max(missing.next_offset, missing.offset + 1)


def _why_no_log(files: Files, segments: Sequence[Segment]) -> str:
    """Return why the last file, which starts with no valid batch, is no log.

    Empty if a crash may have left it.
    """
    head = files.read(segments[-1].log, 0, _LOOKED_AT_BYTES)
    (offset,) = struct.unpack(">q", head[:8].ljust(8, b"\0"))
    is_magic = head[MAGIC_POSITION : MAGIC_POSITION + 1] <= bytes([MAGIC])
    may_be_torn = is_magic and 0 <= offset - segments[-1].base_offset <= RELATIVE_OFFSET_MAX
    if not head.strip(b"\0") or (may_be_torn and len(segments) > 1):
        return ""
    return (
        f"this is {packed}: unpack it first"
        if (packed := packed_as(head))
        else "it starts with no valid batch"
    )
