"""Everything that can be read from a log's files, damaged or not, for a person to inspect.

    .log                       batches, and what lies between them
    .index .timeindex          entries
    .txnindex .snapshot        aborted transactions; producers
    kbatch.state               its two slots
    kbatch.producers           producers
    all others                 lines of text

A damaged batch does not end the look: it goes on with the next batch that is valid. Nothing here writes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.files import Files
from spark_kbatch.log import state
from spark_kbatch.log.producers import saved, snapshot, transaction_index
from spark_kbatch.log.producers.state import ProducerEntry
from spark_kbatch.log.segment import INDEX_ENTRY, TIME_INDEX_ENTRY
from spark_kbatch.log.segment_scan import Allowance, find_batch
from spark_kbatch.record import codec
from spark_kbatch.record.control import read_marker
from spark_kbatch.record.header import (
    MAX_OFFSET,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    ensure_valid,
    header_at,
)

_ZEROS_READ = 1 << 20
_TEXT_BYTES_MAX = 16 << 20
_SLOTS = {0: "first", state.SLOT_DISTANCE: "second"}


class DumpedBatch(NamedTuple):
    """One record batch of a .log file, or one message of V0 or V1, and what is wrong with it."""

    position: int
    header: BatchHeader
    data: bytes
    fault: str | None  # why it is damaged

    def records(self) -> pa.RecordBatch:
        """Return the batch's records as Arrow rows; raises CorruptRecordError."""
        return codec.decode(self.data)

    def marker(self) -> str | None:
        """Describe the transaction marker in a control batch; return None for other or damaged batches."""
        if not self.header.is_control or self.fault:
            return None
        found = read_marker(self.data, 0, self.header)
        if found is None:
            return "control record"
        outcome = "abort" if found.is_abort else "commit"
        return f"{outcome} marker of coordinator epoch {found.coordinator_epoch}"


class Gap(NamedTuple):
    """A byte range of a .log file that holds no batch: damage, or the zeros of a preallocated file."""

    position: int
    end_position: int
    what: str
    is_damage: bool  # False for the zeros of a preallocated file


def batches(files: Files, path: Path) -> Iterator[DumpedBatch | Gap]:
    """Yield the batches of a .log file, and the gaps between them, from its start to its end."""
    with files.opened(path) as descriptor:
        size = files.descriptor_size(descriptor)
        allowance, position = Allowance(0), 0

        def read(at: int, count: int) -> bytes:
            buffer = bytearray(min(count, size - at))
            held = files.pread_into(descriptor, at, memoryview(buffer))
            return bytes(memoryview(buffer)[:held])

        def after(damage: int) -> int:
            """Return the position of the next valid batch after damage, or the end of the file."""
            found = find_batch(files, descriptor, damage, size, range(MAX_OFFSET), allowance)
            return size if found is None else found[0]

        while position < size:
            head = read(position, RECORD_BATCH_OVERHEAD)
            try:
                header = header_at(head, 0, len(head), room=size - position)
            except CorruptRecordError as error:
                if not any(head) and _is_zero(read, position, size):
                    yield Gap(position, size, "zeros, as in a preallocated file", is_damage=False)
                    return
                end = after(position)
                yield Gap(position, end, _why(error), is_damage=True)
                position = end
                continue
            data, fault = read(position, header.size_in_bytes), None
            try:
                ensure_valid(data, 0, header)
            except CorruptRecordError as error:
                fault = _why(error)
            yield DumpedBatch(position, header, data, fault)
            end = position + header.size_in_bytes
            if fault is not None:
                found = after(position)
                # Its length may be what is wrong; then the next valid batch is not where it ends.
                if found != end:
                    if end < found:
                        yield Gap(end, found, "no valid batch", is_damage=True)
                    end = found
            position = end


def _why(error: CorruptRecordError) -> str:
    return f"{error.what}: expected {error.expected}, found {error.found}"


def _is_zero(read: Callable[[int, int], bytes], position: int, size: int) -> bool:
    while position < size:
        data = read(position, _ZEROS_READ)
        if data.strip(b"\0"):
            return False
        position += len(data)
    return True


class DumpedEntry(NamedTuple):
    """An entry of a log file other than a .log, such as an index; or the fault found in its place."""

    values: Mapping[str, Any]
    fault: str | None = None


def entries(files: Files, path: Path) -> Iterator[DumpedEntry]:
    """Yield the entries of a log file other than a .log, such as an index, snapshot or checkpoint."""
    data = files.read(path)
    base = int(path.stem) if path.stem.isdecimal() else 0
    if path.suffix == ".index":
        yield from _fixed(data, INDEX_ENTRY, lambda key, at: {"offset": base + key, "position": at})
    elif path.suffix == ".timeindex":
        yield from _fixed(
            data, TIME_INDEX_ENTRY, lambda key, at: {"timestamp": key, "offset": base + at}
        )
    elif path.suffix == ".txnindex":
        found = transaction_index.unpack(data, base)
        if found is None:
            yield DumpedEntry({}, "not a valid index of aborted transactions")
        for one in found or []:
            yield DumpedEntry(one._asdict())
    elif path.suffix == ".snapshot":
        yield from _producers(snapshot.unpack(data), "not a valid snapshot of producers")
    elif path.name == saved.PRODUCERS_FILE:
        content = saved.unpack(data)
        if content is not None:
            yield DumpedEntry({"offset": content.offset, "batch_position": content.batch_position})
        yield from _producers(content and content.entries, "not a valid file of producers")
    elif path.name == state.STATE_FILE:
        for position, name in _SLOTS.items():
            slot = state.unpack(data[position : position + state.SLOT_SIZE])
            if slot is None:
                yield DumpedEntry({"slot": name}, "not valid")
            else:
                yield DumpedEntry({"slot": name, **slot._asdict(), "boot_id": slot.boot_id.hex()})
    elif len(data) > _TEXT_BYTES_MAX or b"\0" in data:
        yield DumpedEntry({"bytes": len(data)}, "not a file that is known here")
    else:
        for line in data.decode(errors="surrogateescape").splitlines():
            yield DumpedEntry({"line": line})


def _fixed(
    data: bytes, entry: struct.Struct, named: Callable[[int, int], Mapping[str, Any]]
) -> Iterator[DumpedEntry]:
    whole = len(data) // entry.size * entry.size
    # A broker preallocates an index: zeros follow the last entry. The first entry may be zero itself.
    end = -(-len(data[:whole].rstrip(b"\0")) // entry.size) * entry.size
    before: tuple[int, int] | None = None
    for position in range(0, max(end, min(whole, entry.size)), entry.size):
        key, at = entry.unpack_from(data, position)
        grows = before is None or before < (key, at)
        before = key, at
        yield DumpedEntry(named(key, at), None if grows else "does not grow")
    if entry.size < whole and end < whole:
        yield DumpedEntry({"zero_entries": (whole - max(end, entry.size)) // entry.size})
    if whole < len(data):
        yield DumpedEntry({"bytes": len(data) - whole}, "not a whole entry")


def _producers(found: Mapping[int, ProducerEntry] | None, fault: str) -> Iterator[DumpedEntry]:
    if found is None:
        yield DumpedEntry({}, fault)
    for producer_id, one in (found or {}).items():
        last = one.batches[-1] if one.batches else None
        yield DumpedEntry(
            {
                "producer_id": producer_id,
                "producer_epoch": one.producer_epoch,
                "coordinator_epoch": one.coordinator_epoch,
                "last_sequence": one.last_sequence,
                "last_offset": None if last is None else last.last_offset,
                "last_timestamp": one.last_timestamp,
                "transaction_first_offset": one.txn_first_offset,
            }
        )
