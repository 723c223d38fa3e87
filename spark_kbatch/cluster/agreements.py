"""Offsets for `earliest` and `latest` on which the tasks of one Spark action agreed.

    snapshots/by-name/NAME.json            the answer of the first task, linked into place; it is binding
    snapshots/by-time/N/ID.NAME.json       its second name; N counts periods of ten minutes

An answer stays for six hours after a task last asked for it. The second name serves to remove it: a
task that adds an answer looks for folders in by-time that are due, and removes up to a hundred names
from them. So a read costs the same however many there were before, and no read lists all answers.

A task that asks when the answer is gone looks up the offsets again. They may then be later than those
of the other tasks of its action; that takes six hours in which no task of the action started to read.

So does each task if it may not write there. But on a full disk the task fails: another one may find room a
moment later, and what it stores is not what this one has looked up.

A process caches the last answers that it read: each task of an action asks for one partition, and the
answer has all of them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from spark_kbatch.clock import sleep_ms
from spark_kbatch.errors import KafkaStorageError
from spark_kbatch.files import NO_ROOM, Files
from spark_kbatch.model import TopicPartition
from spark_kbatch.stored_json import parse_rows

logger = logging.getLogger(__name__)

KEPT_MS = 6 * 3600 * 1000
_FOLDER_MS = 10 * 60 * 1000
_REMOVED_AT_ONCE = 100
_RETRIES, _PAUSE_MS = 3, 100  # on a full disk
_REMEMBERED = 4  # answers cached by a process; it runs the tasks of few actions at a time

Answer = Mapping[TopicPartition, tuple[int, int]]
# By path, with the file's fingerprint then. Needs no lock: the dict is never changed, only replaced.
_read_last: dict[Path, tuple[tuple[int, ...], Answer]] = {}


class Agreements:
    """Store of the offsets that the first task of a Spark action resolved, for its other tasks.

    Thread-safe.
    """

    def __init__(self, files: Files, directory: Path, now_ms: Callable[[], int]) -> None:
        self._files, self._directory, self._now_ms = files, directory, now_ms
        self._by_name, self._by_time = directory / "by-name", directory / "by-time"

    def agree(self, name: str, resolve: Callable[[], Answer]) -> Answer:
        """Return the offsets stored under a name, after resolving and storing them if there are none.

        If PATH cannot be written, each caller looks up for itself. Callers must not change the result.

        Raises:
            KafkaStorageError: there is no room to store them.
        """
        path = self._by_name / f"{name}.json"
        try:
            return self._read(path)
        except (FileNotFoundError, NotADirectoryError):
            resolved = resolve()
        retries = _RETRIES
        while True:
            try:
                self._add(path, resolved)
                return self._read(path)
            except OSError as error:
                # Once there is an answer it is binding, whatever went wrong afterwards.
                if self._files.exists(path):
                    return self._read(path)
                if error.errno not in NO_ROOM:
                    logger.info("each task looks up offsets for itself: %s", error)
                    return resolved
                if not retries:
                    raise KafkaStorageError(
                        "the tasks of this read cannot agree on what 'earliest' and 'latest' are, as there is "
                        f"no room to write it down: {error}; make room, or give offsets as numbers"
                    ) from error
            retries -= 1
            with contextlib.suppress(OSError):
                self._remove_old()
            sleep_ms(_PAUSE_MS)

    def _read(self, path: Path) -> Answer:
        # An answer is never overwritten: at its path is the same answer, or another file.
        identity = self._files.fingerprint(path)
        known, answer = _read_last.get(path, (None, {}))
        if identity is None or known != identity:
            rows = parse_rows(self._files.read(path), path, str, int, int, int)
            answer = {TopicPartition(topic, p): (start, end) for topic, p, start, end in rows}
            if identity is not None:
                _remember(path, identity, answer)
        now_ms = self._now_ms()
        if now_ms - self._files.modified_ms(path) > _FOLDER_MS:
            with contextlib.suppress(OSError):  # a read-only process cannot mark it as in use
                self._files.set_modified_ms(path, now_ms)
        return answer

    def _add(self, path: Path, resolved: Answer) -> None:
        files = self._files
        text = json.dumps([[*tp, *offsets] for tp, offsets in resolved.items()])
        second = self._folder() / f"{uuid.uuid4().hex}.{path.name}"
        for folder in (self._by_name, second.parent):
            files.ensure_no_link(folder, self._directory.parent)
            files.make_dir(folder)
        try:
            files.write(second, 0, text.encode())
            is_first = files.link(second, path)
        except OSError:
            with contextlib.suppress(OSError):
                files.remove(second)
            raise
        if is_first:
            self._remove_old()
        else:
            files.remove(second)

    def _folder(self) -> Path:
        return self._by_time / str(self._now_ms() // _FOLDER_MS)

    def _remove_old(self) -> None:
        """Remove stored offsets that no task has asked for in hours, a bounded number at a time."""
        files, oldest_ms = self._files, self._now_ms() - KEPT_MS
        left = _REMOVED_AT_ONCE
        for name in files.list(self._by_time):
            if not name.isdecimal() or (int(name) + 1) * _FOLDER_MS > oldest_ms:
                continue
            folder = self._by_time / name
            found = files.first_names(folder, left)
            for second in found:
                self._remove_if_old(folder / second, oldest_ms)
            left -= len(found)
            if left <= 0:
                return
            if not files.first_names(folder, 1):
                files.remove_dir(folder)

    def _remove_if_old(self, second: Path, oldest_ms: int) -> None:
        files = self._files
        path = self._by_name / second.name.partition(".")[2]
        with contextlib.suppress(FileNotFoundError):  # another task removes the same
            if files.modified_ms(second) >= oldest_ms:
                files.make_dir(self._folder())
                files.rename(second, self._folder() / second.name)
                return
            # A task that died before linking left no first name, and another answer may have it.
            if files.exists(path) and files.identity_at(path) == files.identity_at(second):
                files.remove(path)
            files.remove(second)


def _remember(path: Path, identity: tuple[int, ...], answer: Answer) -> None:
    global _read_last
    last = [(kept, value) for kept, value in _read_last.items() if kept != path]
    _read_last = dict([*last[1 - _REMEMBERED :], (path, (identity, answer))])
