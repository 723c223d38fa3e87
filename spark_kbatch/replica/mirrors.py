"""Copies of PATH's few JSON files, beside each log dir that is not in PATH.

    DISK/mirror-N/                         beside DISK/broker-N
      cluster.json  topics/TOPIC.json  partitions/TOPIC/P.json      as in PATH

A file is written in PATH first, then to each disk that takes it. One that did not take it has an older
copy, or none: so of several the newest counts, by the number that each writer raises. A file that PATH
has lost is read from there, and all are put back when the cluster is opened with the names of its log
dirs. What was written to PATH alone when both were lost at once is gone.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from spark_kbatch.errors import KafkaStorageError
from spark_kbatch.files import Files
from spark_kbatch.stored_json import parse

logger = logging.getLogger(__name__)

GENERATION = "generation"  # of a file that has no other number
_NUMBERS = ("partition_epoch", GENERATION)


def mirror_of(log_dir: Path) -> Path:
    """Of the log dir broker-N: mirror-N beside it."""
    return log_dir.with_name(log_dir.name.replace("broker", "mirror"))


class Mirrors:
    """The mirrors of one cluster, by the folders in which they are."""

    def __init__(self, files: Files, folders: Iterable[Path]) -> None:
        self._files, self.folders = files, tuple(folders)

    def write(self, name: PurePath, data: bytes) -> None:
        """Copy a file of PATH, by its name there, to where that can be done."""
        for folder in self.folders:
            try:
                # A disk that is not mounted is no place for it.
                if self._files.exists(folder):
                    self._files.make_dir((folder / name).parent)
                    self._files.replace(folder / name, data)
            except OSError as error:
                logger.warning("%s is not copied: %s", folder / name, error)

    def read(
        self, name: PurePath, counts: Callable[[Mapping[str, Any]], bool] | None = None
    ) -> dict[str, Any] | None:
        """Return the newest copy of a file, of those that count; None if there is none."""
        found = []
        for folder in self.folders:
            try:
                value = parse(self._files.read(folder / name), folder / name).values
            except (OSError, KafkaStorageError):
                continue  # Another disk may have a better one.
            if counts is None or counts(value):
                found.append(value)
        return max(found, key=_number, default=None)

    def list(self, directory: str) -> set[str]:
        """The names of the files in one of PATH's directories that some mirror has."""
        found: set[str] = set()
        for folder in self.folders:
            with contextlib.suppress(OSError):
                found.update(self._files.list(folder / directory))
        return {name for name in found if name.endswith(".json")}

    def names(self) -> Sequence[PurePath]:
        """Of all files that some mirror has, cluster.json last."""
        found = {name for folder in self.folders for name in self._below(folder, PurePath())}
        return sorted(found, key=lambda name: (name.parent == PurePath(), name))

    def _below(self, folder: Path, name: PurePath) -> Iterator[PurePath]:
        try:
            entries = self._files.list(folder / name)
        except OSError:
            return
        for entry in entries:
            if self._files.is_dir(folder / name / entry):
                yield from self._below(folder, name / entry)
            elif entry.endswith(".json"):
                yield name / entry


def _number(value: dict[str, Any]) -> int:
    numbers = [value[key] for key in _NUMBERS if isinstance(value.get(key), int)]
    return max(numbers, default=-1)
