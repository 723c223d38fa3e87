"""`kbatch.overwritten`: which offsets of a partition commits have overwritten.

    [[start offset, end offset (exclusive), number of the commit, time from which files may go], ...]

JSON, oldest first, the time in ms. An overwrite moves the log start to the log's end and begins a segment there. A range
that was resolved before may still be read while its segments exist, and they stay until their time
has come; after that the entry names the commit.

    1. the file, replaced and flushed     while the commit is placed: nobody believes it yet
    2. the log start moves                with the commit: now the entry counts, since it does not end
                                          above the log start
    3. the segments are deleted           by `retention`, once they are due

A commit that failed leaves an entry that ends above the log start. So whoever moves the log start in
any other way takes such entries out before. The caller holds the partition's lock to write.
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
_ENTRIES_MAX = 1000  # older ones only name commits of files that are long gone


class Overwritten(NamedTuple):
    """What one commit has overwritten."""

    start_offset: int
    end_offset: int  # exclusive
    commit: int
    delete_ms: int  # from then on files may go


def note(files: Files, directory: Path, state: LogState, *, commit: int, delete_ms: int) -> None:
    """Step 1: all that the log holds with this state will be overwritten."""
    start, end = state.log_start_offset, state.log_end_offset
    if start < end:
        entries = _decided(files, directory, state)
        entries = [*entries[1 - _ENTRIES_MAX :], Overwritten(start, end, commit, delete_ms)]
        _write(files, directory, entries)


def drop_undecided(files: Files, directory: Path, state: LogState) -> None:
    """Take out what failed commits have left, before the log start moves from where `state` has it."""
    decided = _decided(files, directory, state)
    if len(decided) < len(_read(files, directory)):
        _write(files, directory, decided)


def find(files: Files, directory: Path, state: LogState, offset: int) -> Overwritten | None:
    """Who has overwritten an offset."""
    decided = _decided(files, directory, state)
    return next((one for one in decided if one.start_offset <= offset < one.end_offset), None)


def held_from(files: Files, directory: Path, state: LogState, now_ms: int) -> int | None:
    """The offset from which on files stay though the log start is above it, if there is one."""
    return min(
        (one.start_offset for one in _decided(files, directory, state) if one.delete_ms > now_ms),
        default=None,
    )


def _decided(files: Files, directory: Path, state: LogState) -> list[Overwritten]:
    entries = _read(files, directory)
    return [one for one in entries if one.end_offset <= state.log_start_offset]


def _read(files: Files, directory: Path) -> list[Overwritten]:
    try:
        path = directory / OVERWRITTEN_FILE
        return [Overwritten(*row) for row in parse_rows(files.read(path), path, int, int, int, int)]
    except FileNotFoundError:
        return []
    except KafkaStorageError:
        return []  # It was damaged: files may go, and no commit is named.


def _write(files: Files, directory: Path, entries: Sequence[Overwritten]) -> None:
    files.replace(directory / OVERWRITTEN_FILE, json.dumps(entries).encode())
