"""Evidence that a broker's log once had records that are missing, which is more than a torn tail.

    a checkpoint       it had reached its recovery point, and its high watermark
    a segment's trace  its index is there, or its .log under another name, as of tiered storage, and
                       its .log is not; an empty index at the log's end is none
    no log             its last file starts neither with a valid batch nor with the start of one, as
                       a crash may leave it, or is the only one; and it is neither empty nor zeros

A gap between two segments is no evidence: compaction leaves such gaps.
"""

from __future__ import annotations

import re
import shlex
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.files import Files
from spark_kbatch.log.segment import RELATIVE_OFFSET_MAX, Segment, log_name
from spark_kbatch.log.segment_scan import SegmentEnd
from spark_kbatch.record.header import MAGIC, MAGIC_POSITION

PACKED_BYTES = 512  # of a file tell what it is packed with
# By how they start, and where: their names, what unpacks them, and the ending that it asks for.
_PACKED = {
    (b"\x1f\x8b", 0): ("gzip", "gzip -d", ".gz"),
    (b"\x28\xb5\x2f\xfd", 0): ("zstd", "zstd -d --rm", ".zst"),
    (b"\xfd7zXZ\x00", 0): ("xz", "xz -d", ".xz"),
    (b"\x04\x22\x4d\x18", 0): ("lz4", "lz4 -d --rm", ".lz4"),
    (b"BZh", 0): ("bzip2", "bzip2 -d", ".bz2"),
    (b"PK\x03\x04", 0): ("zip", "unzip", ""),
    (b"ustar", 257): ("tar", "tar -xf", ""),
}
_TAR = re.compile(r".*\.(tar\.\w+|tgz|tbz2?|txz|tzst)")
# Of tiered storage: as Aiven's plugin names them, and Confluent Server.
_TIERED = re.compile(r"[0-9]{20}(-[\w-]{22}\.log|_[0-9]+_v[0-9]+\.segment)")
UNREADABLE = re.compile(
    rf".*\.(gz|zst|xz|lz4|bz2|zip|tar)|{_TAR.pattern}|{_TIERED.pattern}"
)  # files that may have logs
_TRACE = re.compile(
    rf"{_TIERED.pattern}|[0-9]{{20}}"
    r"(\.index|\.timeindex|.*\.log.*)(?<!\.deleted)(?<!\.cleaned)(?<!\.swap)"
)
_LOOKED_AT_BYTES = 1 << 20
_REMEDY = "foreign.end=log (--foreign-end log) leaves out what is missing"


def to_make_readable(path: Path, head: bytes) -> str:
    """Return what keeps a file's records from being read, and the command that helps.

    Empty if the file is neither packed nor named as by tiered storage.

    Args:
        path: of the file.
        head: its first PACKED_BYTES bytes, or more.
    """
    file = shlex.quote(str(path))
    for (magic, position), (name, command, ending) in _PACKED.items():
        if head[position:].startswith(magic):
            if _TAR.fullmatch(path.name):
                command, ending = "tar -xf", ""
            if not path.name.endswith(ending):  # as such tools demand
                renamed = shlex.quote(f"{path}{ending}")
                command, file = f"mv {file} {renamed} && {command}", renamed
            return f"{name}: unpack it first, with `{command} {file}`"
    if _TIERED.fullmatch(path.name):
        to = shlex.quote(str(path.with_name(log_name(int(path.name[:20])))))
        return f"a segment of tiered storage: rename it, with `mv {file} {to}`"
    return ""


def traces(names: Iterable[str]) -> dict[int, str]:
    """Return the segments without a .log of which something else is there, by base offset.

    Of several files the one is named under whose name the records may be.
    """
    found = {
        name[:20]: name
        for name in sorted(names, key=lambda name: ".log" in name or "_v" in name)
        if _TRACE.fullmatch(name)
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
        if base == start and name.endswith("index") and not head.strip(b"\0"):
            continue  # of a roll at the log's end: no record is known to have been there
        what = to_make_readable(directory / name, head)
        error = CorruptRecordError(
            f"the file is missing, and {name} is there{what and f', which is {what}'}; {_REMEDY}",
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
    found = to_make_readable(segments[-1].log, head)
    return f"this is {found}" if found else "it starts with no valid batch"
