"""`kbatch.producers`: a log's producer state as of an earlier end, saved to spare a replay of batches.

    position  bytes  field
           0      4  magic "KBPR"
           4      4  CRC-32C of position 8 to the end
           8      4  version                 1
          12      4  size_in_bytes           up to the last entry; the file may be longer
          16      8  offset                  where the log ended, exclusive
          24      8  segment_base_offset     of its active segment then
          32      8  segment_size            of that segment then
          40      8  batch_position          of its last batch
          48     61  header of that batch, as in the log
         109      4  number of entries
         113         entries:
                  8  producer_id
                  2  producer_epoch
                  4  coordinator_epoch       -1 if none of its transactions has ended
                  8  last_timestamp          largest of its last batch or marker, ms
                  8  last_append_ms          by the clock, or later if not known
                  8  txn_first_offset        of its open transaction; -1 for none
                  4  number of batches, of 28 bytes each, up to five:
                  4  first_sequence
                  4  last_sequence
                  8  last_offset
                  4  offset_delta
                  8  timestamp

Big-endian. Kafka's `.snapshot` holds only the last batch of each producer, and does not identify the log
it was made from; so it is usable only at the start of a segment, and this file anywhere. It is valid if
the log has the batch that it names, with exactly that header, which includes the offset, the leader epoch
and the CRC of the records. Without a valid file the replay takes longer, and that is all: so it is written
in place and not flushed. Brokers ignore it.

It is a cache: the first append of a process takes 3 ms, where the replay of a segment of 20,000 batches takes
155 ms, 8 us a batch. Short-lived writers, as Spark's commits and scripts are, pay that each time.
"""

from __future__ import annotations

import contextlib
import logging
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from spark_kbatch.files import Files
from spark_kbatch.log.producers.state import BatchMetadata, ProducerEntry
from spark_kbatch.model import BATCHES_REMEMBERED
from spark_kbatch.record import checksums
from spark_kbatch.record.header import RECORD_BATCH_OVERHEAD

logger = logging.getLogger(__name__)

PRODUCERS_FILE = "kbatch.producers"

_HEAD = struct.Struct(">4sIiiqqqq61si")
_CRC_COVERS_FROM = 8
_ENTRY = struct.Struct(">qhiqqqi")
_BATCH = struct.Struct(">iiqiq")
_MAGIC = b"KBPR"
_VERSION = 1
assert _HEAD.size == 113
assert _ENTRY.size == 42
assert _BATCH.size == 28
assert RECORD_BATCH_OVERHEAD == 61


class SavedProducers(NamedTuple):
    """The content of a `kbatch.producers` file: a log's producer state, and the last batch that it covers."""

    offset: int
    segment_base_offset: int
    segment_size: int
    batch_position: int
    batch_header: bytes
    entries: Mapping[int, ProducerEntry]


def pack(saved: SavedProducers) -> bytes:
    """Return the bytes of a `kbatch.producers` file."""
    parts = []
    for producer_id, entry in saved.entries.items():
        first_offset = -1 if entry.txn_first_offset is None else entry.txn_first_offset
        fields = (
            producer_id, entry.producer_epoch, entry.coordinator_epoch, entry.last_timestamp,
            entry.last_append_ms, first_offset, len(entry.batches),
        )  # fmt: skip
        parts.append(_ENTRY.pack(*fields))
        parts += (_BATCH.pack(*batch) for batch in entry.batches)
    body = b"".join(parts)
    head = _HEAD.pack(
        _MAGIC, 0, _VERSION, _HEAD.size + len(body), *saved[:5], len(saved.entries)
    )  # fmt: skip
    covered = head[_CRC_COVERS_FROM:] + body
    return struct.pack(">4sI", _MAGIC, checksums.crc32c(covered)) + covered


def unpack(data: bytes) -> SavedProducers | None:
    """Parse the bytes of a `kbatch.producers` file; return None if they are damaged."""
    if len(data) < _HEAD.size:
        return None
    magic, crc, version, size, *fields, header, count = _HEAD.unpack_from(data)
    if magic != _MAGIC or version != _VERSION or not _HEAD.size <= size <= len(data):
        return None
    if crc != checksums.crc32c(data[_CRC_COVERS_FROM:size]):
        return None
    entries, position = {}, _HEAD.size
    for _ in range(count):
        if position + _ENTRY.size > size:
            return None
        producer_id, epoch, coordinator_epoch, timestamp, append_ms, first_offset, batches = (
            _ENTRY.unpack_from(data, position)
        )
        position += _ENTRY.size
        end = position + batches * _BATCH.size
        if not (0 <= batches <= BATCHES_REMEMBERED and end <= size):
            return None
        entries[producer_id] = ProducerEntry(
            epoch,
            tuple(BatchMetadata(*batch) for batch in _BATCH.iter_unpack(data[position:end])),
            coordinator_epoch,
            timestamp,
            first_offset if first_offset >= 0 else None,
            append_ms,
        )
        position = end
    offset, base_offset, segment_size, position = fields
    return SavedProducers(offset, base_offset, segment_size, position, header, entries)


def write(files: Files, directory: Path, saved: SavedProducers) -> None:
    """Write a log's `kbatch.producers` file, without a flush."""
    files.write(directory / PRODUCERS_FILE, 0, pack(saved))


def read(files: Files, directory: Path) -> SavedProducers | None:
    """Read a log's `kbatch.producers` file; return None if it is missing, damaged or unreadable."""
    try:
        return unpack(files.read(directory / PRODUCERS_FILE))
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("the producers are read from the batches, which takes longer: %s", error)
        return None


def remove(files: Files, directory: Path) -> None:
    """Remove a log's `kbatch.producers` file after batches were removed from the log."""
    with contextlib.suppress(IsADirectoryError):  # which holds no producers
        files.remove(directory / PRODUCERS_FILE)
