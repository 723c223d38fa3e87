"""Kafka's `.txnindex` file: the aborted transactions of a segment, those whose ABORT marker it holds.

    position  bytes  field
           0      2  version               0
           2      8  producer_id
          10      8  first_offset          of the transaction's first batch in the partition
          18      8  last_offset           of the marker; strictly increasing
          26      8  last_stable_offset    of the log once the marker was in it

Entries of 34 bytes, big-endian, no header and no checksum; a partial entry at the end does not count. The
file is created with its first entry; committed transactions have none. The data may be in segments before
the marker's: so a search starts in the segment that is read, and continues until an entry says that
everything below the wanted end was decided by then.

Source: Kafka storage/.../log/TransactionIndex.java, AbortedTxn.java.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

from spark_kbatch.files import Files
from spark_kbatch.model import AbortedTransaction

SUFFIX = ".txnindex"

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0
ENTRY_SIZE = _ENTRY.size
assert ENTRY_SIZE == 34


def transaction_index_path(directory: Path, base_offset: int) -> Path:
    """Return the path of the `.txnindex` file of the segment that starts at `base_offset`."""
    return directory / f"{base_offset:020d}{SUFFIX}"


def pack(aborted: AbortedTransaction) -> bytes:
    """Return the bytes of one `.txnindex` entry, an aborted transaction."""
    return _ENTRY.pack(_VERSION, *aborted)


def unpack(data: bytes, base_offset: int) -> list[AbortedTransaction] | None:
    """Parse the bytes of a `.txnindex` file; None if they cannot be those of a segment at `base_offset`.

    Source: TransactionIndex.sanityCheck, which checks only the last offset.
    """
    found: list[AbortedTransaction] = []
    previous = base_offset - 1
    for version, *fields in _ENTRY.iter_unpack(data[: len(data) // ENTRY_SIZE * ENTRY_SIZE]):
        entry = AbortedTransaction(*fields)
        if (
            version != _VERSION
            or entry.producer_id < 0
            or not 0 <= entry.first_offset < entry.last_offset
            or entry.last_offset <= previous
            or not 0 <= entry.last_stable_offset <= entry.last_offset + 1
        ):
            return None
        previous = entry.last_offset
        found.append(entry)
    return found


def read(files: Files, directory: Path, base_offset: int) -> list[AbortedTransaction] | None:
    """Read the `.txnindex` file of a segment: empty if there is none, None if it is damaged."""
    try:
        data = files.read(transaction_index_path(directory, base_offset))
    except FileNotFoundError:
        return []
    return unpack(data, base_offset)


def append(
    files: Files, directory: Path, base_offset: int, entries: Sequence[AbortedTransaction]
) -> Path:
    """Append aborted transactions to a segment's `.txnindex` file, without a flush; return its path."""
    path = transaction_index_path(directory, base_offset)
    size = files.size(path) if files.exists(path) else 0
    files.write(path, size // ENTRY_SIZE * ENTRY_SIZE, b"".join(map(pack, entries)))
    return path


def truncate(files: Files, directory: Path, base_offset: int, offset: int) -> None:
    """Remove the `.txnindex` entries of markers at `offset` and above; all entries if the file is damaged."""
    path = transaction_index_path(directory, base_offset)
    if files.exists(path):
        entries = unpack(files.read(path), base_offset) or []
        kept = sum(entry.last_offset < offset for entry in entries)
        if kept * ENTRY_SIZE < files.size(path):
            files.truncate(path, kept * ENTRY_SIZE)


def collect(
    segments: Iterable[Iterable[AbortedTransaction]], offset: int, end_offset: int
) -> list[AbortedTransaction]:
    """Return the aborted transactions that may have batches in [offset, end_offset).

    Args:
        segments: the entries of each, from the segment that holds `offset` on; taken while needed.
    Source: LocalLog.collectAbortedTransactions, TransactionIndex.collectAbortedTxns.
    """
    found = []
    for entries in segments:
        for entry in entries:
            if entry.last_offset >= offset and entry.first_offset < end_offset:
                found.append(entry)
            if entry.last_stable_offset >= end_offset:
                return found
    return found
