"""Checks that hold for every log, made from outside, with the reference decoder and as Kafka's tools do.

`ensure_sound` checks for a log that was just written that
- the files are those that the state names, and as long as it says;
- batches are adjacent, without gaps in their offsets, with valid CRCs and the checkpoint's epochs;
- each .index entry is (last offset, position) of a batch, as DumpLogSegments compares;
- .timeindex entries are strictly increasing, and each names a batch and its largest timestamp, which no
  earlier batch has reached; the last entry of a rolled segment has its largest timestamp.

Source: Kafka tools/.../DumpLogSegments.java.
"""

from __future__ import annotations

import struct
from pathlib import Path

from aiokafka.record.util import calc_crc32c

from spark_kbatch.files import Files
from spark_kbatch.log.checkpoints import read_leader_epochs
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.state import read_state
from tests.support import reference
from tests.support.reference import CRC_START, BatchHeader


def ensure_sound(log: PartitionLog) -> None:
    """Check the log; the AssertionError says what is wrong."""
    files = log.files
    state = read_state(files, log.directory)
    epochs = dict(read_leader_epochs(files, log.directory))
    names = [Path(name) for name in files.list(log.directory)]
    stems = sorted({name.stem for name in names if name.stem.isdigit()})
    assert int(stems[-1]) == state.segment_base_offset
    active = log.directory / stems[-1]
    sizes = [files.size(active.with_suffix(end)) for end in (".log", ".index", ".timeindex")]
    assert sizes == [state.segment_size, state.index_size, state.time_index_size]

    offset = int(stems[0])
    assert offset <= state.log_start_offset
    for stem in stems:
        assert int(stem) == offset, "a segment is named after its first offset"
        rolled = stem != stems[-1]
        offset = _ensure_sound_segment(files, log.directory / stem, epochs, rolled=rolled)
    assert offset == state.log_end_offset == state.high_watermark == state.last_stable_offset


def _ensure_sound_segment(files: Files, stem: Path, epochs: dict[int, int], *, rolled: bool) -> int:
    base = int(stem.name)
    batches = _batches(files.read(stem.with_suffix(".log")), base, epochs)
    for relative, position in struct.iter_unpack(">ii", files.read(stem.with_suffix(".index"))):
        assert batches[position][0] == base + relative, "an index entry names a batch's last offset"
    by_last_offset = dict(batches.values())
    largest = -1
    for time, relative in struct.iter_unpack(">qi", files.read(stem.with_suffix(".timeindex"))):
        assert time > largest, "times grow"
        largest = time
        assert by_last_offset[base + relative] == time
        before = [t for last, t in by_last_offset.items() if last < base + relative]
        assert max(before, default=-1) < time, "the first batch with the largest time so far"
    if rolled:
        assert largest == max(by_last_offset.values())
    return max(by_last_offset, default=base - 1) + 1


def _batches(log: bytes, base: int, epochs: dict[int, int]) -> dict[int, tuple[int, int]]:
    """Return (last offset, largest timestamp) of the batches, by position."""
    found, position, offset = {}, 0, base
    for data in reference.split_batches(log):
        header: BatchHeader = reference.read_header(data)
        assert header.base_offset == offset, "offsets have no gap"
        assert header.crc == calc_crc32c(data[CRC_START:])
        assert epochs[header.leader_epoch] <= offset
        last_offset = offset + header.last_offset_delta
        found[position] = last_offset, header.max_timestamp
        position, offset = position + len(data), last_offset + 1
    return found
