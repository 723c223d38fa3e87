"""A partition's directory as readable text, decoded with struct alone: nothing here imports the package.

    00000000000000000000.index
      base + 2 at 154
    00000000000000000000.log
      0: offsets 0 to 2, 3 records in 154 bytes, magic 2, leader epoch 0, none, no producer
        0 1700000000000 342f5d0a3a5e... a95ba95b
    00000000000000000000.timeindex
      1700000000002 at base + 2
    kbatch.state
      slot 0: KBST version 1, sequence 4, log_start_offset 0, log_end_offset 7, ...

A batch's line starts with its position; a record's has its offset, timestamp, key, value and headers. What
differs from run to run (ids, the boot id, checksums) is left out. Texts over 12 characters are shortened.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from tests.support.reference import decode_batches, read_header, split_batches

_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_INDEX_ENTRY, _TIME_ENTRY = struct.Struct(">ii"), struct.Struct(">qi")
_SLOT = struct.Struct(">4siqqqqqiqqqqqqqqq16s")
_SLOT_FIELDS = (
    "sequence", "log_start_offset", "log_end_offset", "high_watermark", "last_stable_offset",
    "leader_epoch", "segment_base_offset", "segment_size", "index_size", "time_index_size",
    "max_timestamp", "max_timestamp_offset", "bytes_since_index_entry", "recovery_point",
    "prepare_offset",
)  # fmt: skip
_SLOT_POSITIONS = (0, 4096)
_SHOWN_MAX = 12


def dump(directory: Path) -> str:
    """Return the directory's files as text, by name."""
    return "".join(
        f"{path.name}{_indented(_lines(path))}\n" for path in sorted(directory.iterdir())
    )


def _indented(lines: Iterator[str]) -> str:
    return "".join(f"\n  {line}" for line in lines)


def _lines(path: Path) -> Iterator[str]:
    data = path.read_bytes()
    match path.suffix, path.name:
        case ".log", _:
            yield from _batches(data)
        case ".index", _:
            for offset, position in _INDEX_ENTRY.iter_unpack(data):
                yield f"base + {offset} at {position}"
        case ".timeindex", _:
            for timestamp, offset in _TIME_ENTRY.iter_unpack(data):
                yield f"{timestamp} at base + {offset}"
        case _, "kbatch.state":
            yield from _slots(data)
        case _, "leader-epoch-checkpoint":
            yield from data.decode().splitlines()
        case _:
            yield f"{len(data)} bytes" if data else "empty"


def _batches(data: bytes) -> Iterator[str]:
    position = 0
    for batch in split_batches(data):
        header = read_header(batch)
        last = header.base_offset + header.last_offset_delta
        who = "no producer"
        if header.producer_id >= 0:
            who = (
                f"producer {header.producer_id} epoch {header.producer_epoch} "
                f"sequence {header.base_sequence}"
            )
        yield (
            f"{position}: offsets {header.base_offset} to {last}, "
            f"{header.records_count} records in {len(batch)} bytes, magic {header.magic}, "
            f"leader epoch {header.leader_epoch}, {_CODECS[header.attributes & 7]}, {who}"
        )
        for record in decode_batches(batch):
            yield (
                f"  {record.offset} {record.timestamp} {_shown(record.key)} {_shown(record.value)}"
                + "".join(f" {name}={_shown(content)}" for name, content in record.headers)
            )
        position += len(batch)


def _slots(data: bytes) -> Iterator[str]:
    for number, position in enumerate(_SLOT_POSITIONS):
        magic, version, *fields, _boot_id = _SLOT.unpack_from(data, position)
        values = ", ".join(
            f"{name} {value}" for name, value in zip(_SLOT_FIELDS, fields, strict=True)
        )
        yield f"slot {number}: {magic.decode()} version {version}, {values}"


def _shown(data: bytes | None) -> str:
    if data is None:
        return "null"
    text = data.decode("ascii", "backslashreplace")
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."
