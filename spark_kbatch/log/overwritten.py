"""`kbatch.overwritten`: the offset ranges of a partition that commits have overwritten.

    [[start offset, end offset (exclusive), commit number, time from which files may be deleted], ...]

JSON, oldest first, the time in ms. It is no cache: nothing else tells until when an overwritten range may be
read. An overwrite moves the log start to the log's end and starts a segment there. A range that was resolved
before may still be read while its segments exist, and they stay until the delete delay has passed; after that
the entry names the commit. Of more than a thousand entries the oldest ones go whose time has come; if all still
wait, neighbours whose times lie close together become one, with the later time and commit, unless records between
them were deleted.

    1. the file is replaced and flushed   while the commit is placed: the entry does not count yet
    2. the log start moves                with the commit: now the entry counts, since it ends at or
                                          below the log start
    3. the segments are deleted           by `retention`, after the delay

A failed commit leaves an entry that ends above the log start. So such entries are removed before the log
start moves in any other way. Writers hold the partition's lock.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from spark_kbatch.errors import KafkaStorageError
from spark_kbatch.files import Files
from spark_kbatch.log.state import LogState
from spark_kbatch.stored_json import parse_rows

OVERWRITTEN_FILE = "kbatch.overwritten"
_ENTRIES_MAX = 1000


class Overwritten(NamedTuple):
    """The range of a partition's offsets that one commit has overwritten."""

    start_offset: int
    end_offset: int  # exclusive
    commit: int
    delete_ms: int  # from then on files may be deleted

    @property
    def why_gone(self) -> str:
        """A clause for errors about an offset in the range."""
        return f"commit {self.commit} has overwritten it"


def add_entry(
    files: Files, directory: Path, state: LogState, *, commit: int, now_ms: int, delete_ms: int
) -> None:
    """Record in `kbatch.overwritten` that a commit will overwrite all that the log now holds.

    This is step 1.
    """
    start, end = state.log_start_offset, state.log_end_offset
    if start < end:
        entries = _bounded(_decided(files, directory, state), now_ms)
        _write(files, directory, [*entries, Overwritten(start, end, commit, delete_ms)])


def drop_undecided(files: Files, directory: Path, state: LogState) -> None:
    """Remove the entries of failed commits from `kbatch.overwritten`, before the log start moves.

    `state` is the log's before that.
    """
    decided = _decided(files, directory, state)
    if len(decided) < len(_read(files, directory)):
        _write(files, directory, decided)


def find(files: Files, directory: Path, state: LogState, offset: int) -> Overwritten | None:
    """Return the `kbatch.overwritten` entry of the commit that has overwritten `offset`; None if none has."""
    decided = _decided(files, directory, state)
    return next((one for one in decided if one.start_offset <= offset < one.end_offset), None)


def held_from(files: Files, directory: Path, state: LogState, now_ms: int) -> int | None:
    """Return the lowest overwritten offset whose files may not be deleted yet, if there is one.

    These files are kept although they are below the log start.
    """
    return min((one.start_offset for one in held(files, directory, state, now_ms)), default=None)


def held(files: Files, directory: Path, state: LogState, now_ms: int) -> list[Overwritten]:
    """Return the overwritten ranges whose files may not be deleted yet, oldest first."""
    return [one for one in _decided(files, directory, state) if one.delete_ms > now_ms]


def _decided(files: Files, directory: Path, state: LogState) -> list[Overwritten]:
    entries = _read(files, directory)
    return [one for one in entries if one.end_offset <= state.log_start_offset]


def _bounded(entries: list[Overwritten], now_ms: int) -> list[Overwritten]:
    """Return entries that hold the same files, or some for a little longer, with room for one more."""
    excess = len(entries) + 1 - _ENTRIES_MAX
    if excess <= 0:
        return entries
    over = [one for one in entries if one.delete_ms <= now_ms][:excess]
    entries = [one for one in entries if one not in over]
    return entries if len(over) == excess else _joined(entries, now_ms)


def _joined(entries: list[Overwritten], now_ms: int) -> list[Overwritten]:
    """Return entries in which neighbours are one whose times lie close together.

    Time is divided into spans of a power of two, at most half as many up to the last entry's time as there may
    be entries. What is joined lies in one span, so no file is held for much longer, however often this is done.
    If the two oldest were joined each time, the first one's time would never come.
    """
    last_ms = max(one.delete_ms for one in entries)
    span_bits = ((last_ms - now_ms) // (_ENTRIES_MAX // 2)).bit_length()
    joined = entries[:1]
    for one in entries[1:]:
        before = joined[-1]
        # What comes after files that stay, stays with them.
        one = one._replace(delete_ms=max(one.delete_ms, before.delete_ms))
        is_near = one.delete_ms >> span_bits == before.delete_ms >> span_bits
        if is_near and one.start_offset == before.end_offset:
            joined[-1] = one._replace(start_offset=before.start_offset)
        else:
            joined.append(one)
    return joined


def _read(files: Files, directory: Path) -> list[Overwritten]:
    try:
        path = directory / OVERWRITTEN_FILE
        return [Overwritten(*row) for row in parse_rows(files.read(path), path, int, int, int, int)]
    except FileNotFoundError:
        return []
    except KafkaStorageError:
        return []  # damaged: files may be deleted, and no commit is named


def _write(files: Files, directory: Path, entries: Sequence[Overwritten]) -> None:
    files.replace(directory / OVERWRITTEN_FILE, json.dumps(entries).encode())
