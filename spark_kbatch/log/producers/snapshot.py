"""Kafka's `.snapshot` file, big-endian: a log's producer state as of the offset in the file's name.

    position  bytes  field
           0      2  version                   1
           2      4  CRC-32C of position 6 to the end
           6      4  number of entries
          10         entries of 46 bytes:
                  8  producer_id
                  2  producer_epoch
                  4  last_sequence             of its last batch; -1 if it has none in this epoch
                  8  last_offset               of that batch; -1 for none
                  4  offset_delta              last offset - base offset of that batch; 0 for none
                  8  timestamp                 largest of its last batch or marker, ms
                  4  coordinator_epoch         -1 if none of its transactions has ended
                  8  txn_first_offset          of its open transaction; -1 for none

Of the up to five batches that are remembered only the last one is stored: so a log that was loaded from a
snapshot recognises one duplicate per producer. A damaged file counts as missing, which costs a longer
replay: so a snapshot is written in place, without a flush of its own.

Source: Kafka storage/.../log/ProducerStateManager.java, resources/message/ProducerSnapshot.json.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from spark_kbatch.files import Files
from spark_kbatch.log.producers.state import BatchMetadata, ProducerEntry
from spark_kbatch.record import checksums
from spark_kbatch.record.header import NO_SEQUENCE, increment_sequence

SUFFIX = ".snapshot"

_HEAD = struct.Struct(">hIi")
_CRC_COVERS_FROM = 6
_ENTRY = struct.Struct(">qhiqiqiq")
_VERSION = 1
assert _HEAD.size == 10
assert _ENTRY.size == 46


def snapshot_path(directory: Path, offset: int) -> Path:
    """Return the path of the producer `.snapshot` file as of `offset`, exclusive."""
    return directory / f"{offset:020d}{SUFFIX}"


def snapshot_offset_of(name: str) -> int | None:
    """Return the offset in the name of a producer `.snapshot` file; None for any other name."""
    stem, dot, end = name.partition(".")
    return int(stem) if f"{dot}{end}" == SUFFIX and len(stem) == 20 and stem.isdigit() else None


def snapshot_offsets(files: Files, directory: Path) -> list[int]:
    """Return the offsets of all producer snapshots in a log's directory, valid or not, ascending."""
    offsets = map(snapshot_offset_of, files.list(directory))
    return sorted(offset for offset in offsets if offset is not None)


def stray_snapshots(offsets: Iterable[int], segment_base_offsets: Collection[int]) -> list[int]:
    """Return the offsets of the producer snapshots that a log with these segments does not need.

    A snapshot belongs to the segment that starts at its offset. Of those after the last segment the newest
    stays: it was written when the log was closed.
    Source: ProducerStateManager.removeStraySnapshots.
    """
    without_segment = sorted(set(offsets).difference(segment_base_offsets))
    if without_segment and without_segment[-1] >= max(segment_base_offsets, default=0):
        without_segment.pop()
    return without_segment


def pack(entries: Mapping[int, ProducerEntry]) -> bytes:
    """Return the bytes of a producer `.snapshot` file, with the producers in the order of their ids."""
    body = b"".join(
        _pack_entry(producer_id, entry) for producer_id, entry in sorted(entries.items())
    )
    counted = struct.pack(">i", len(entries)) + body
    return struct.pack(">hI", _VERSION, checksums.crc32c(counted)) + counted


def _pack_entry(producer_id: int, entry: ProducerEntry) -> bytes:
    last = entry.batches[-1] if entry.batches else BatchMetadata(-1, -1, -1, 0, -1)
    first_offset = -1 if entry.txn_first_offset is None else entry.txn_first_offset
    return _ENTRY.pack(
        producer_id, entry.producer_epoch, last.last_sequence, last.last_offset, last.offset_delta,
        entry.last_timestamp, entry.coordinator_epoch, first_offset,
    )  # fmt: skip


def unpack(data: bytes) -> dict[int, ProducerEntry] | None:
    """Parse the bytes of a producer `.snapshot` file into entries by producer id; None if not valid."""
    if len(data) < _HEAD.size:
        return None
    version, crc, count = _HEAD.unpack_from(data)
    if (
        version != _VERSION
        or count < 0
        or len(data) != _HEAD.size + count * _ENTRY.size
        or crc != checksums.crc32c(data[_CRC_COVERS_FROM:])
    ):
        return None
    return dict(_unpack_entry(fields) for fields in _ENTRY.iter_unpack(data[_HEAD.size :]))


def _unpack_entry(fields: tuple[int, ...]) -> tuple[int, ProducerEntry]:
    (
        producer_id, producer_epoch, last_sequence, last_offset, offset_delta, timestamp,
        coordinator_epoch, first_offset,
    ) = fields  # fmt: skip
    first_sequence = NO_SEQUENCE
    if last_sequence >= 0:
        first_sequence = increment_sequence(last_sequence, -offset_delta)
    last = BatchMetadata(first_sequence, last_sequence, last_offset, offset_delta, timestamp)
    return producer_id, ProducerEntry(
        producer_epoch,
        (last,) if last_offset >= 0 else (),
        coordinator_epoch,
        timestamp,
        first_offset if first_offset >= 0 else None,
        last_append_ms=timestamp,
    )


def write_snapshot(
    files: Files, directory: Path, offset: int, entries: Mapping[int, ProducerEntry]
) -> Path:
    """Write the producer `.snapshot` file as of `offset`, without a flush; return its path."""
    path = snapshot_path(directory, offset)
    files.remove(path)
    files.write(path, 0, pack(entries))
    return path


def newest_snapshot(
    files: Files, directory: Path, offsets: Iterable[int]
) -> tuple[int, dict[int, ProducerEntry]] | None:
    """Return offset and producers of the newest valid `.snapshot` file among `offsets`; None if none is."""
    for offset in sorted(offsets, reverse=True):
        try:
            entries = unpack(files.read(snapshot_path(directory, offset)))
        except FileNotFoundError:
            continue
        if entries is not None:
            return offset, entries
    return None
