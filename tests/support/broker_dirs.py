"""Log directories as a broker leaves them, written from the format alone."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from spark_kbatch import Cluster
from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.files import Files
from spark_kbatch.model import LogOffsets, ReadRange, TopicPartition
from spark_kbatch.opening.stores import open_for_reading
from spark_kbatch.record.header import LogRead
from tests.support import builders
from tests.support.reference import Record, decode_batches, encode_batch, read_header, split_batches
from tests.support.store import reader_of

TOPIC_ID = "vPeOCWypqUOSepEvx0cbog"
FIRST_TIMESTAMP_MS = 1_600_000_000_000
TP = TopicPartition("t", 0)
LOG = "00000000000000000000.log"
INDEX = "00000000000000000000.index"


def a_batch(*offsets: int, value_bytes: int = 20) -> bytes:
    """Return a batch with records at these offsets; a record's content depends on its offset alone."""
    records = [
        Record(
            offset,
            FIRST_TIMESTAMP_MS + offset,
            b"key %d" % offset,
            b"value %d " % offset + b"." * value_bytes,
            (("h", b"%d" % offset),),
        )
        for offset in offsets
    ]
    return encode_batch(records, base_offset=offsets[0], leader_epoch=3)


def batches(first: int, end: int, *, n: int = 2, value_bytes: int = 20) -> list[bytes]:
    """Return batches of `n` records at the offsets [first, end)."""
    return [
        a_batch(*range(base, min(base + n, end)), value_bytes=value_bytes)
        for base in range(first, end, n)
    ]


def a_segment(
    directory: Path, base_offset: int, held: Sequence[bytes], *, index: bool = True
) -> Path:
    """Write a segment whose .index has an entry for each batch but the first; return the .log."""
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / f"{base_offset:020d}.log"
    log.write_bytes(b"".join(held))
    if index:
        entries, position = b"", 0
        for data in held:
            header = read_header(data)
            last_offset = header.base_offset + header.last_offset_delta
            if position:
                entries += struct.pack(">ii", last_offset - base_offset, position)
            position += len(data)
        log.with_suffix(".index").write_bytes(entries)
    return log


def a_partition(
    directory: Path, segments: Mapping[int, Sequence[bytes]], *, index: bool = True
) -> Path:
    """Write a partition's directory; return it."""
    for base_offset, held in segments.items():
        a_segment(directory, base_offset, held, index=index)
    (directory / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}")
    (directory / "leader-epoch-checkpoint").write_text("0\n1\n3 0\n")
    return directory


def checkpoint(log_dir: Path, name: str, lines: Mapping[str, int]) -> None:
    """Write one of the log dir's offset checkpoints; keys are `topic partition`."""
    entries = "".join(f"{key} {offset}\n" for key, offset in lines.items())
    (log_dir / f"{name}-offset-checkpoint").write_text(f"0\n{len(lines)}\n{entries}")


def records_in(held: Sequence[bytes]) -> list[Record]:
    """Return the records in these batches."""
    return [record for data in held for record in decode_batches(data)]


def read(
    path: Path,
    topic: str = "t",
    *,
    files: Files | None = None,
    foreign_end: str | None = None,
    **bounds: int,
) -> list[Record]:
    """Read a topic from PATH."""
    logs = open_for_reading(str(path), foreign_end=foreign_end, files=files)
    return builders.read_records(logs, topic, **bounds)


def up_to_damage(
    rows: Iterable[pa.RecordBatch],
) -> tuple[list[pa.RecordBatch], CorruptRecordError | None]:
    """Return what is read before an error about damage, and the error; None if there is none."""
    found = list[pa.RecordBatch]()
    try:
        for batch in rows:
            found.append(batch)
    except CorruptRecordError as error:
        return found, error
    return found, None


def whole_batches(data: bytes) -> list[bytes]:
    """Return the whole batches at the start of `data`; CRCs are not checked."""
    end = 0
    while len(data) - end >= 12:
        (length,) = struct.unpack_from(">i", data, end + 8)
        if length < 49 or end + 12 + length > len(data):
            break
        end += 12 + length
    return list(split_batches(data[:end]))


def listing(path: Path) -> dict[str, tuple[int, bytes]]:
    """Return every file below PATH, with its time and content."""
    found = {}
    for entry in sorted(path.rglob("*")):
        content = entry.read_bytes() if entry.is_file() else b""
        found[str(entry)] = (entry.stat().st_mtime_ns, content)
    return found


def end_of(path: Path, *, foreign_end: str | None = None) -> int:
    """Return the high watermark of t-0."""
    return (
        reader_of(open_for_reading(str(path), foreign_end=foreign_end))
        .edges([TP])[TP]
        .high_watermark
    )


def fetch(logs: Cluster, offset: int, *, max_bytes: int) -> tuple[LogRead, LogOffsets]:
    """Fetch from t-0."""
    return reader_of(logs).source.fetch(TP, ReadRange(offset, max_bytes))
