"""A read-only check of all files in a partition's directory that a Kafka broker wrote.

    .log                  each batch's CRC; offsets that grow, from the segment's base offset on
    .index                each entry names a batch that is there, with that offset
    .timeindex .txnindex  whole entries, in order
    .snapshot             valid

What comes after the last valid batch of the last segment is no damage, as a broker that runs, or was
killed, leaves it; unless it is a batch that has all its bytes, and they are not as its CRC says.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from spark_kbatch.files import Files
from spark_kbatch.log.contents import DumpedBatch, Gap, batches, entries
from spark_kbatch.log.segment import Segment, base_offset_of, segment_at
from spark_kbatch.model import TopicPartition
from spark_kbatch.record import legacy
from spark_kbatch.store.reports import RepairReport

_OTHERS = (".timeindex", ".txnindex", ".snapshot")


def check(
    files: Files, directory: Path, topic_partition: TopicPartition, *, file: str = ""
) -> RepairReport:
    """Check the files of a broker's partition, or of one segment of it; report what is wrong.

    The segment is the one whose .log file is named `file`.
    """
    stem = file.partition(".")[0]
    names = [name for name in files.list(directory) if name.startswith(stem)]
    bases = sorted(base for base in map(base_offset_of, names) if base is not None)
    damaged: list[str] = []
    end = bases[0] if bases else 0
    for base in bases:
        segment = segment_at(directory, base)
        end, found = _check_segment(files, segment, max(base, end), is_last=base == bases[-1])
        damaged += found
    for name in sorted(names):
        if name.endswith(_OTHERS):
            damaged += _faults(files, directory / name)
    start = bases[0] if bases else 0
    return RepairReport(topic_partition, start, end, (), tuple(damaged))


def _check_segment(
    files: Files, segment: Segment, next_offset: int, *, is_last: bool
) -> tuple[int, list[str]]:
    """Check a segment's batches and `.index`; return the offset after the last valid batch, and faults."""
    path, damaged = segment.log, []
    indexed, faults = _index(files, segment)
    tail: list[str] = []  # after the last valid batch so far
    for found in batches(files, path):
        if isinstance(found, Gap) or found.fault is not None:
            if isinstance(found, DumpedBatch):
                damaged.append(f"{path}: position {found.position}: {found.fault}")
            elif found.is_damage:
                tail.append(f"{path}: position {found.position}: {found.what}")
            continue
        damaged += tail
        tail = []
        header = found.header
        base_offset = legacy.first_offset(memoryview(found.data), 0, header)
        if base_offset < next_offset:
            damaged.append(
                f"{path}: position {found.position}: base offset: expected {next_offset} or more, "
                f"found {base_offset}"
            )
        next_offset = max(next_offset, header.next_offset)
        wanted = indexed.pop(found.position, None)
        if wanted is not None and not base_offset <= wanted <= header.last_offset:
            faults.append(
                f"{segment.offset_index}: offset {wanted} is not at position {found.position}, where "
                f"offsets {base_offset} to {header.last_offset} are"
            )
    if not is_last:
        damaged += tail
    faults += [
        f"{segment.offset_index}: no valid batch at position {position}, where it has offset {offset}"
        for position, offset in itertools.islice(indexed.items(), 1)
    ]
    return next_offset, damaged + faults


def _index(files: Files, segment: Segment) -> tuple[dict[int, int], list[str]]:
    """Read an `.index` file; return its offsets by position, and what is wrong with it."""
    path, found = segment.offset_index, {}
    if not files.exists(path):
        return {}, []
    for one in entries(files, path):
        if "position" in one.values and any(one.values.values()):
            found[one.values["position"]] = one.values["offset"]
    if list(found) == [0]:  # one entry of a preallocated file
        found = {}
    return found, list(_faults(files, path))


def _faults(files: Files, path: Path) -> Iterator[str]:
    for one in entries(files, path):
        if one.fault is not None:
            values = ", ".join(f"{name} {value}" for name, value in one.values.items())
            yield f"{path}: {values}{': ' if values else ''}{one.fault}"
            return
