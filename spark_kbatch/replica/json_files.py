"""A cluster's JSON files in its folder PATH, and their copies (mirrors) beside log dirs on other disks.

    DISK/mirror-N/                         beside DISK/broker-N
      cluster.json  topics/TOPIC.json  partitions/TOPIC/P.json  deleted/ID.json      as in PATH

A file is replaced as a whole, so a reader sees the old one or the new one and needs no lock.

It is written in PATH first, then to each disk that accepts it. A disk that did not accept it has an older
copy, or none: so the newest copy counts, by the number that each writer raises. A file that PATH has lost
is read from its newest copy, and all are put back when the cluster is opened with the names of its log
dirs. What was written to PATH alone is lost if both are lost at once.

On a disk that is full no new file can be written beside the old one, but topics have to be altered and
deleted there, to make room. So PATH has one file more than it needs:

    PATH/spare      64 KiB, or at least the block of a JSON file

A file that finds no room is written into the spare, which takes its name; the file that it replaces is
the next spare. So others that write meanwhile take nothing away. The spare is made with the cluster, and
again by the next change of a topic that finds it lost, or small, and the disk with room. Losing it, as by
a crash while it is in use, does no harm as long as there is room. It is of no use on a file system that
copies what is overwritten, such as btrfs.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from spark_kbatch.errors import KafkaStorageError
from spark_kbatch.files import NO_ROOM, Files
from spark_kbatch.stored_json import as_bytes, parse

logger = logging.getLogger(__name__)

GENERATION = "generation"  # of a file that has no other number
_NUMBERS = ("partition_epoch", GENERATION)
_SPARE_BYTES = 2**16
_MIRRORED = {"cluster.json", "topics", "partitions", "deleted"}

Counts = Callable[[Mapping[str, Any]], bool]


class Mirrors:
    """A cluster's mirrors: folders on other disks with copies of its JSON files."""

    def __init__(self, files: Files, folders: Iterable[Path]) -> None:
        self._files, self.folders = files, tuple(folders)

    def write(self, name: PurePath, data: bytes) -> None:
        """Write a copy of a JSON file to each mirror that can be written."""
        for folder in self.folders:
            try:
                # Where a disk is not mounted nothing may be written to its mount point.
                if self._files.exists(folder):
                    self._files.make_dir((folder / name).parent)
                    self._files.replace(folder / name, data)
            except OSError as error:
                logger.warning("cannot copy to %s: %s", folder / name, error)

    def read(self, name: PurePath, counts: Counts | None = None) -> dict[str, Any] | None:
        """Return the newest mirrored copy of a JSON file that `counts` accepts; None if there is none."""
        found = []
        for folder in self.folders:
            try:
                value = parse(self._files.read(folder / name), folder / name).values
            except (OSError, KafkaStorageError):
                continue  # Another disk may have a good one.
            if counts is None or counts(value):
                found.append(value)
        return max(found, key=_number, default=None)

    def list(self, directory: str) -> set[str]:
        """Return the names of the JSON files that any mirror has in a directory such as topics/."""
        found: set[str] = set()
        for folder in self.folders:
            with contextlib.suppress(OSError):
                found.update(self._files.list(folder / directory))
        return {name for name in found if name.endswith(".json")}

    def names(self) -> Sequence[PurePath]:
        """Return the names of all files that any mirror has, cluster.json last."""
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


class JsonFiles:
    """The JSON files of one cluster, in its folder PATH and copied to its mirrors."""

    def __init__(self, files: Files, path: Path) -> None:
        self.files, self.path = files, path
        self.mirrors = Mirrors(files, ())

    def use_mirrors(self, folders: Iterable[Path]) -> None:
        """Set the mirror folders to copy JSON files to, once the cluster's log dirs are known."""
        self.mirrors = Mirrors(self.files, folders)

    def read(self, path: Path) -> dict[str, Any]:
        """Return the content of one of PATH's JSON files.

        Raises:
            FileNotFoundError: PATH does not have it.
            KafkaStorageError: it is damaged.
        """
        return parse(self.files.read(path), path).values

    def read_or_mirrored(self, path: Path, counts: Counts) -> dict[str, Any] | None:
        """Read a JSON file in PATH or, if it is lost, its newest mirrored copy that `counts` accepts."""
        try:
            return self.read(path)
        except FileNotFoundError:
            return self.mirrors.read(path.relative_to(self.path), counts)

    def write(self, path: Path, value: Mapping[str, Any]) -> None:
        """Replace one of PATH's JSON files, on disk on return, and its copies in the mirrors."""
        data = as_bytes(value)
        self.replace(path, data)
        self.mirrors.write(path.relative_to(self.path), data)

    def replace(self, path: Path, data: bytes) -> None:
        """Replace one of PATH's files, on disk on return, and in the spare file if the disk is full."""
        try:
            self.files.replace(path, data)
        except OSError as error:
            if error.errno not in NO_ROOM or not self.files.replace_with(self._spare, path, data):
                raise

    def keep_spare(self) -> None:
        """Make the spare file if it is lost or small, and the disk has room.

        The caller holds the metadata lock.
        """
        files, spare = self.files, self._spare
        if files.exists(spare) and files.size(spare) >= _SPARE_BYTES:
            return
        try:
            files.replace(spare, bytes(_SPARE_BYTES))
        except OSError:
            with contextlib.suppress(OSError):
                files.remove(spare.with_suffix(".tmp"))  # what fitted on the disk

    @property
    def _spare(self) -> Path:
        return self.path / "spare"

    def copy_all_to(self, mirror: Path) -> None:
        """Copy all of PATH's files to a new mirror."""
        if self.files.exists(mirror):  # A log dir in PATH has none.
            copies = Mirrors(self.files, [mirror])
            for name in Mirrors(self.files, [self.path]).names():
                if name.parts[0] in _MIRRORED:
                    copies.write(name, self.files.read(self.path / name))


def _number(value: dict[str, Any]) -> int:
    numbers = [value[key] for key in _NUMBERS if isinstance(value.get(key), int)]
    return max(numbers, default=-1)
