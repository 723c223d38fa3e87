"""`kbatch.state`: the file that decides what one replica's log holds, in two slots, big-endian.

    position  bytes  field
           0      4  magic "KBST"
           4      4  version                   1
           8      8  sequence                  one higher with every write; the slot with the higher one counts
          16      8  log_start_offset
          24      8  log_end_offset
          32      8  high_watermark
          40      8  last_stable_offset
          48      4  leader_epoch
          52      8  segment_base_offset       of the active segment, as are the next seven
          60      8  segment_size
          68      8  index_size
          76      8  time_index_size
          84      8  max_timestamp             largest so far, -1 for none
          92      8  max_timestamp_offset      last offset of the batch that has it
         100      8  bytes_since_index_entry
         108      8  recovery_point            every offset below it is on disk
         116      8  prepare_offset            of the last PrepareCommit; -1 in all other topics
         124     16  boot_id                   of the machine that wrote the slot
         140      4  CRC-32C of position 0 to 140

Slot 0 is at position 0 of the file, slot 1 at 4096. A state is written to slot sequence % 2, so that the
state before it stays intact. Writing in place is not atomic for a reader without a lock: if it finds a
half-written slot it reads again, and uses the other slot alone only if this one stays invalid.
"""

from __future__ import annotations

import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.files import Files
from spark_kbatch.model import LogOffsets
from spark_kbatch.record import checksums

STATE_FILE = "kbatch.state"

_SLOT = struct.Struct(">4siqqqqqiqqqqqqqqq16s")
_CRC, _I32 = struct.Struct(">I"), struct.Struct(">i")
_MAGIC = b"KBST"
_VERSION = 1
SLOT_DISTANCE = 4096
_READ_SIZE = SLOT_DISTANCE + _SLOT.size + _CRC.size
_ATTEMPTS = 20
_PAUSE_S = 0.001
_BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")  # Linux has it
_SYSCTL = Path("/usr/sbin/sysctl")  # macOS has it

SLOT_SIZE = _SLOT.size + _CRC.size
assert SLOT_SIZE == 144


class LogState(NamedTuple):
    """The recorded state of a log: its offsets, leader epoch, and the sizes of its active segment's files.

    It is the content of one slot. A new state replaces it as a whole.
    """

    sequence: int
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_stable_offset: int
    leader_epoch: int
    segment_base_offset: int
    segment_size: int
    index_size: int
    time_index_size: int
    max_timestamp: int
    max_timestamp_offset: int
    bytes_since_index_entry: int
    recovery_point: int
    prepare_offset: int
    boot_id: bytes

    @property
    def offsets(self) -> LogOffsets:
        """The log's start offset, high watermark, last stable offset and end offset."""
        return LogOffsets(
            self.log_start_offset, self.high_watermark, self.last_stable_offset, self.log_end_offset
        )

    @property
    def has_pending_commit(self) -> bool:
        """Whether the last record is a PrepareCommit: the commit is decided, not yet complete."""
        return self.prepare_offset >= 0 and self.prepare_offset + 1 == self.log_end_offset

    @property
    def is_distinct(self) -> bool:
        """Whether the state tells the log from another topic's, by a timestamp: new logs are equal."""
        return self.max_timestamp >= 0


def has_more(state: LogState, other: LogState) -> bool:
    """Return True if a log was written further than another one: in a later epoch, or to a higher end."""
    return written_to(state) > written_to(other)


def written_to(state: LogState) -> tuple[int, int]:
    """Return how far a log was written, to compare it with others of its partition: epoch, then end."""
    return state.leader_epoch, state.log_end_offset


def is_behind(state: LogState, member: LogState) -> bool:
    """Return True if a leader's log lacks something of an in-sync member's: records, or a deletion of records."""
    return has_more(member, state) or member.log_start_offset > state.log_start_offset


def empty_state(first_offset: int = 0) -> LogState:
    """Return the state of a new log, whose first record gets that offset."""
    return LogState(
        sequence=0,
        log_start_offset=first_offset,
        log_end_offset=first_offset,
        high_watermark=first_offset,
        last_stable_offset=first_offset,
        leader_epoch=0,
        segment_base_offset=first_offset,
        segment_size=0,
        index_size=0,
        time_index_size=0,
        max_timestamp=-1,
        max_timestamp_offset=-1,
        bytes_since_index_entry=0,
        recovery_point=first_offset,
        prepare_offset=-1,
        boot_id=boot_id(),
    )


def is_of_new_log(state: LogState) -> bool:
    """Return True if a state may be the one that a log was created with, in either slot."""
    return state.sequence <= 1 and state.log_start_offset == state.log_end_offset


def pack(state: LogState) -> bytes:
    """Return the bytes of one slot of `kbatch.state`."""
    body = _SLOT.pack(_MAGIC, _VERSION, *state)
    return body + _CRC.pack(checksums.crc32c(body))


@lru_cache(maxsize=256)  # most states are read several times
def unpack(data: bytes) -> LogState | None:
    """Parse the bytes of one slot of `kbatch.state`; return None if they are not valid."""
    if len(data) < SLOT_SIZE:
        return None
    body, (crc,) = data[: _SLOT.size], _CRC.unpack_from(data, _SLOT.size)
    magic, version, *fields = _SLOT.unpack(body)
    if magic != _MAGIC or version != _VERSION or crc != checksums.crc32c(body):
        return None
    return LogState(*fields)


def write_state(files: Files, directory: Path, state: LogState, *, flush: bool) -> None:
    """Write a log's new state to one of the two slots of `kbatch.state`.

    The caller holds the partition's lock, and has flushed the data if need be.

    Args:
        flush: whether to flush the slot.
    """
    position = state.sequence % 2 * SLOT_DISTANCE
    with files.opened(_path(directory), write=True) as descriptor:
        files.write_at(descriptor, position, pack(state))
        if flush:
            files.flush_descriptor(descriptor)


def flush_state(files: Files, directory: Path) -> None:
    """Flush both slots of a log's `kbatch.state` to disk."""
    files.flush([_path(directory)])


def create_state(files: Files, directory: Path, state: LogState) -> None:
    """Replace a log's `kbatch.state` with a file with `state` in both slots.

    See `both_slots` for its content.
    """
    files.replace(_path(directory), both_slots(state))


def both_slots(state: LogState) -> bytes:
    """Return the content of a `kbatch.state` file with `state` in both slots.

    So both are valid from the start.
    """
    first = pack(state).ljust(SLOT_DISTANCE, b"\0")
    return first + pack(state._replace(sequence=state.sequence + 1))


def read_slots(files: Files, directory: Path) -> bytes:
    """Read both slots of a log's `kbatch.state` as raw bytes; one may be half-written.

    Raises:
        FileNotFoundError: there is no such log.
    """
    return files.read(_path(directory), 0, _READ_SIZE)


def compact(data: bytes) -> bytes:
    """Return what `read_slots` returned without the bytes between the slots, which are most of it.

    What is kept to be compared with later reads is kept so.
    """
    return data[:SLOT_SIZE] + data[SLOT_DISTANCE:]


def read_state(files: Files, directory: Path, data: bytes | None = None) -> LogState:
    """Read a log's state from the newest valid slot of its `kbatch.state`.

    Takes no lock.

    Args:
        data: what `read_slots` has just returned, if it was called.

    Raises:
        FileNotFoundError: there is no such log.
        CorruptRecordError: neither slot is valid, even when read again.
    """
    for attempt in range(_ATTEMPTS):
        if data is None or attempt:
            data = read_slots(files, directory)
        slots = [unpack(data[:SLOT_SIZE]), unpack(data[SLOT_DISTANCE:])]
        valid = [slot for slot in slots if slot is not None]
        if len(valid) == 2 or (valid and attempt == _ATTEMPTS - 1):
            return max(valid)
        time.sleep(_PAUSE_S)
    raise CorruptRecordError(
        "neither slot of the state is valid; `kbatch repair` rebuilds it from the batches",
        path=str(_path(directory)),
        position=0,
        expected="a matching CRC",
    )


def read_high_watermarks(files: Files, directories: Sequence[str]) -> Iterator[int | None]:
    """Yield the high watermarks of many logs, in order, without creating an object for each.

    Yield None if it takes more than one read: the log is gone, the slot is half-written, or the state is
    of another boot and the log has to be checked.
    """
    booted, head = boot_id(), _MAGIC + _I32.pack(_VERSION)
    paths = [f"{directory}/{STATE_FILE}" for directory in directories]
    for data in files.read_each(paths, _READ_SIZE):
        # Sequence numbers are not negative, so their bytes sort as they do.
        at = 0 if data[8:16] > data[SLOT_DISTANCE + 8 : SLOT_DISTANCE + 16] else SLOT_DISTANCE
        body, crc = data[at : at + _SLOT.size], data[at + _SLOT.size : at + SLOT_SIZE]
        is_valid = (
            len(crc) == _CRC.size
            and body.startswith(head)
            and body.endswith(booted)
            and checksums.crc32c(body) == int.from_bytes(crc)
        )
        yield int.from_bytes(body[32:40]) if is_valid else None


def read_all_slots(files: Files, directories: Sequence[str]) -> Iterator[bytes]:
    """Yield the raw `kbatch.state` slots of each of many logs, in order; b"" for one that cannot be read.

    They are as from `read_slots`.
    """
    return files.read_each([f"{directory}/{STATE_FILE}" for directory in directories], _READ_SIZE)


def is_whole(files: Files, directory: Path) -> bool:
    """Return True if both slots of a log's `kbatch.state` are valid.

    The caller holds the partition's lock.
    """
    return len(valid_slots(files, directory)) == 2


def valid_slots(files: Files, directory: Path) -> list[LogState]:
    """Return the states in those slots of a log's `kbatch.state` that are valid just now.

    Raises as `read_slots` does.
    """
    data = read_slots(files, directory)
    slots = unpack(data[:SLOT_SIZE]), unpack(data[SLOT_DISTANCE:])
    return [slot for slot in slots if slot is not None]


def _path(directory: Path) -> Path:
    return _path_in(str(directory))


@lru_cache(maxsize=4096)  # by str, which compares faster than Path
def _path_in(directory: str) -> Path:
    return Path(directory) / STATE_FILE


@cache
def boot_id() -> bytes:
    """Return an id of the machine's current boot: what was not flushed before it may be lost."""
    if _BOOT_ID_FILE.exists():
        return uuid.UUID(_BOOT_ID_FILE.read_text().strip()).bytes
    started = _sysctl("kern.bootsessionuuid") or _sysctl("kern.boottime")
    return uuid.uuid5(uuid.NAMESPACE_OID, f"{sys.platform}-{uuid.getnode()}-{started}").bytes


def _sysctl(name: str) -> str:
    """Return a macOS sysctl value, such as the machine's boot time; an empty string if unavailable."""
    try:
        done = subprocess.run(
            [_SYSCTL, "-n", name],
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    # kern.boottime is "{ sec = 1700000000, usec = 123 } Tue Nov 14 ...": the rest depends on the locale.
    return done.stdout.partition("}")[0].strip() if done.returncode == 0 else ""
