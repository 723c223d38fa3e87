"""A cluster's JSON files in its folder PATH, and their copies (mirrors) beside log dirs on other disks.

    DISK/mirror-N/                         beside DISK/broker-N
      cluster.json  topics/TOPIC.json  partitions/TOPIC/P.json  deleted/ID.json      as in PATH

A file is replaced as a whole, so a reader sees the old one or the new one and needs no lock. It is written
in PATH first, then to each disk that accepts it.

What a copy is worth is asked of the files, not remembered:

- cluster.json has a reign and a generation. A restored PATH begins a reign; each change of a topic, of a
  deletion or of the cluster raises the generation: in PATH before the change, in a mirror once it has all
  of the change. So a mirror is current if its cluster.json is PATH's, byte by byte, and only then does it
  stand in for a file that PATH has lost. One that missed a change is refreshed by the next holder of the
  metadata lock, or when the cluster is opened.
- A mirror with a higher reign or generation than PATH shows that PATH is old: a backup, or the former PATH
  of a cluster that was restored elsewhere meanwhile. It is refused by those that use it, and brought up to
  date when the cluster is opened: see `creation`.
- The files in partitions/ change without the metadata lock. Of each the copy with the highest number
  counts, wherever it lies, except in mirrors of an earlier reign: see `partition_states`.

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
from typing import Any, NamedTuple

from spark_kbatch.errors import KafkaStorageError
from spark_kbatch.files import NO_ROOM, Files
from spark_kbatch.stored_json import as_bytes, parse

logger = logging.getLogger(__name__)

GENERATION = "generation"  # of a file that has no other number
REIGN = "reign"
_CLUSTER_FILE, _CLUSTER_ID = "cluster.json", "cluster_id"
_NUMBERS = ("partition_epoch", GENERATION)
_SPARE_BYTES = 2**16
_BY_GENERATION = {"topics", "deleted"}  # besides cluster.json itself
_MIRRORED = {_CLUSTER_FILE, "partitions", *_BY_GENERATION}

Counts = Callable[[Mapping[str, Any]], bool]


class Version(NamedTuple):
    """Which of several copies of a cluster's cluster.json is the newest: the highest one."""

    reign: int
    generation: int


class Mirrors:
    """A cluster's mirrors: folders on other disks with copies of its JSON files."""

    def __init__(self, files: Files, folders: Iterable[Path]) -> None:
        self._files, self.folders = files, tuple(folders)

    def write(self, name: PurePath, data: bytes) -> set[Path]:
        """Write a copy of a JSON file to each mirror that can be written; return the others."""
        return {folder for folder in self.folders if not self._written(folder, name, data)}

    def _written(self, folder: Path, name: PurePath, data: bytes) -> bool:
        files, path = self._files, folder / name
        try:
            # Where a disk is not mounted nothing may be written to its mount point.
            if not files.exists(folder):
                return False
            files.ensure_no_link(path.parent, folder.parent)
            files.make_dir(path.parent)
            files.replace(path, data)
            # Also if another process made them: it may have died before it flushed.
            files.flush([folder / parent for parent in name.parent.parents])
        except OSError as error:
            logger.warning("cannot copy to %s: %s", path, error)
            return False
        return True

    def read(self, name: PurePath, counts: Counts | None = None) -> dict[str, Any] | None:
        """Return the newest mirrored copy of a JSON file that `counts` accepts; None if there is none."""
        found = [
            value
            for value in self.each(name).values()
            if value is not None and (counts is None or counts(value))
        ]
        return max(found, key=number_of, default=None)

    def each(self, name: PurePath) -> dict[Path, dict[str, Any] | None]:
        """Return the copy of a JSON file in each mirror; None if it is not there, damaged or unreadable."""
        found: dict[Path, dict[str, Any] | None] = {}
        for folder in self.folders:
            try:
                found[folder] = parse(self._files.read(folder / name), folder / name).values
            except (OSError, KafkaStorageError):
                found[folder] = None  # Another disk may have a good one.
        return found

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
        self._cluster_file = path / _CLUSTER_FILE
        self._copies: tuple[Path, ...] = ()  # of it, in the mirrors
        # Fingerprints of a PATH that was found to be the newest.
        self._looked_at: tuple[object, ...] = ()
        # These are guarded by the metadata lock.
        self._is_changing = False
        self._missed: set[Path] = set()  # mirrors that did not take a part of the change

    def use_mirrors(self, folders: Iterable[Path]) -> None:
        """Set the mirror folders to copy JSON files to, once the cluster's log dirs are known."""
        folders = tuple(folders)
        if folders != self.mirrors.folders:
            self.mirrors = Mirrors(self.files, folders)
            self._copies = tuple(folder / _CLUSTER_FILE for folder in folders)
            self._looked_at = ()

    # Which copies count.

    def current_mirrors(self) -> Mirrors:
        """Return the mirrors that have all of PATH's files as they are now."""
        if not self.mirrors.folders:
            return self.mirrors
        own = self._read_if_there(self._cluster_file)
        return Mirrors(
            self.files, [one for one in self.mirrors.folders if self._is_current(one, own)]
        )

    def _is_current(self, mirror: Path, own: bytes | None) -> bool:
        return own is not None and self._read_if_there(mirror / _CLUSTER_FILE) == own

    def reigning_mirrors(self) -> Mirrors:
        """Return the mirrors of PATH's cluster that are not of an earlier reign; they may have missed changes."""
        own = self.read(self._cluster_file)
        copies = self.mirrors.each(PurePath(_CLUSTER_FILE))
        return Mirrors(
            self.files,
            [
                folder
                for folder, copy in copies.items()
                if copy is not None
                and copy.get(_CLUSTER_ID) == own.get(_CLUSTER_ID)
                and version_of(copy).reign >= version_of(own).reign
            ],
        )

    def newer_mirror(self) -> Path | None:
        """Return a mirror that shows that PATH is old; None if PATH is the newest, as far as can be seen.

        Costs a few looks at files that have not changed since.
        """
        if not self._copies:
            return None
        looked_at = self.look()
        if looked_at == self._looked_at:
            return None
        data = self._read_if_there(self._cluster_file)
        if data is None:
            return None  # A cluster that is being created; or PATH is gone, as all else will say.
        newer = self._newer_than(parse(data, self._cluster_file).values)
        if newer is None:
            self._looked_at = looked_at
        return newer

    def _newer_than(self, own: Mapping[str, Any]) -> Path | None:
        for folder, copy in self.mirrors.each(PurePath(_CLUSTER_FILE)).items():
            is_ours = copy is not None and copy.get(_CLUSTER_ID) == own.get(_CLUSTER_ID)
            if is_ours and copy is not None and version_of(copy) > version_of(own):
                return folder
        return None

    def are_equal(self) -> bool:
        """Return True if all mirrors can be read and are current, so that PATH is the newest as well."""
        if not self._copies:
            return True
        looked_at, own = self.look(), self._read_if_there(self._cluster_file)
        if own is None or any(self._read_if_there(copy) != own for copy in self._copies):
            return False
        self._looked_at = looked_at
        return True

    def look(self) -> tuple[object, ...]:
        """Return what is equal as long as no copy of cluster.json changes."""
        return tuple(map(self._fingerprint, (self._cluster_file, *self._copies)))

    def ensure_newest(self) -> None:
        """Check that PATH is not an old one, by the copies that can be read.

        Raises:
            KafkaStorageError: it is. Clients of a server may try again, since another process may bring it up
                to date; in this process it is the user's to know.
        """
        self._refuse_if(self.newer_mirror())

    def _refuse_if(self, newer: Path | None) -> None:
        if newer is not None:
            error = KafkaStorageError(
                f"{self.path} is older than the copy of its files in {newer}: it was restored from a "
                "backup, or the cluster was opened at another path meanwhile; open it again, which brings "
                "it up to date"
            )
            error.is_transient = False
            raise error

    def _fingerprint(self, path: Path) -> object:
        try:
            return self.files.fingerprint(path)
        except OSError as error:
            return error.errno  # of a broken disk

    def _read_if_there(self, path: Path) -> bytes | None:
        try:
            return self.files.read(path)
        except OSError:
            return None

    # Changes. The caller holds the metadata lock.

    @contextlib.contextmanager
    def changing(self, value: Mapping[str, Any] | None = None) -> Iterator[None]:
        """Raise the generation in PATH, change files, and raise it in the mirrors that took all of that.

        A cluster without mirrors, or one that is being created, has no generation to raise.

        Args:
            value: the content of cluster.json, if that changes.

        Raises:
            KafkaStorageError: PATH is older than its copies.
        """
        has_cluster = bool(self.mirrors.folders) and self.files.exists(self._cluster_file)
        if self._is_changing or not has_cluster:
            yield
            return
        self.refresh()
        value = dict(self.read(self._cluster_file) if value is None else value)
        self._refuse_if(self._newer_than(value))  # An old PATH may have been put here meanwhile.
        reign, generation = version_of(value)
        value |= {REIGN: reign, GENERATION: generation + 1, "path": str(self.path)}
        data = as_bytes(value)
        self.replace(self._cluster_file, data)
        self._is_changing = True
        try:
            yield
        finally:
            self._is_changing = False
        self.copy(self._cluster_file, data)

    def write_cluster(self, value: Mapping[str, Any]) -> None:
        """Replace cluster.json, on disk on return; in the mirrors too, with all else that they have missed."""
        if not self.mirrors.folders:
            self.replace(self._cluster_file, as_bytes(value))
        elif self.files.exists(self._cluster_file):
            with self.changing(value):
                pass
        else:  # A new cluster begins to exist.
            first = {REIGN: 0, GENERATION: 0, "path": str(self.path)}
            self.write(self._cluster_file, dict(value) | first)

    def stale_mirrors(self) -> list[Path]:
        """Return the mirrors that can be read and are not current, except those of another cluster."""
        if not self.mirrors.folders:
            return []
        own = self._read_if_there(self._cluster_file)
        if own is None:
            return []
        values = parse(own, self._cluster_file).values
        found = []
        for folder, copy in self.mirrors.each(PurePath(_CLUSTER_FILE)).items():
            if copy is not None and copy.get(_CLUSTER_ID) != values.get(_CLUSTER_ID):
                continue
            if copy is not None and version_of(copy) > version_of(values):
                continue  # PATH is the one that is old.
            if not self._is_current(folder, own) and self._exists(folder):
                found.append(folder)
        return found

    def _exists(self, folder: Path) -> bool:
        try:
            return self.files.exists(folder)
        except OSError:
            return False  # of a broken disk

    def refresh(self) -> list[Path]:
        """Bring the mirrors that missed a change up to date, and return those that it failed for.

        The copies in partitions/ are not touched: these have locks of their own.

        Raises:
            KafkaStorageError: PATH is older than its copies.
        """
        self.ensure_newest()
        stale = self.stale_mirrors()
        current = [one for one in self.current_mirrors().folders if one not in stale]
        self._missed = set(self.mirrors.folders) - set(current)
        if stale:
            # Who wrote what is copied here may have died before it was flushed: then, after a power loss,
            # the mirrors would be newer than PATH.
            names = [self.path / name for name in sorted(_BY_GENERATION)]
            self.files.flush([self.path, *filter(self.files.exists, names)])
        for folder in stale:
            try:
                self._refresh(folder, current)
            except OSError as error:
                logger.warning("cannot refresh %s: %s", folder, error)
            else:
                self._missed.discard(folder)
                logger.info("%s has all that %s has again", folder, self.path)
        return [one for one in stale if one in self._missed]

    def _refresh(self, mirror: Path, current: Sequence[Path]) -> None:
        wanted: dict[PurePath, bytes] = {}
        for folder in (self.path, *current):  # A current one stands in for what PATH has lost.
            for name in self._by_generation(folder):
                if name not in wanted:
                    wanted[name] = self.files.read(folder / name)
        for name in self._by_generation(mirror):
            if name not in wanted:
                # It is of a topic that was deleted or never was: a disk may come from elsewhere.
                self.files.rename(mirror / name, (mirror / name).with_suffix(".stale"))
        wanted[PurePath(_CLUSTER_FILE)] = self.files.read(self._cluster_file)
        for name, data in wanted.items():
            if self._read_if_there(mirror / name) != data:
                if Mirrors(self.files, [mirror]).write(name, data):
                    raise OSError(f"{mirror / name} cannot be written")

    def _by_generation(self, folder: Path) -> Iterator[PurePath]:
        for directory in _BY_GENERATION:
            # A mirror is in a log dir's folder, which may be a link, as PATH may.
            self.files.ensure_no_link(
                folder / directory, folder if folder == self.path else folder.parent
            )
            with contextlib.suppress(FileNotFoundError):
                for name in self.files.list(folder / directory):
                    if name.endswith(".json"):
                        yield PurePath(directory, name)

    def missed(self, mirror: Path) -> None:
        """Note that a mirror did not take a part of the change."""
        self._missed.add(mirror)

    # Files.

    def read(self, path: Path) -> dict[str, Any]:
        """Return the content of one of PATH's JSON files.

        Raises:
            FileNotFoundError: PATH does not have it.
            KafkaStorageError: it is damaged.
        """
        return parse(self.files.read(path), path).values

    def read_or_mirrored(self, path: Path, counts: Counts) -> dict[str, Any] | None:
        """Read a JSON file in PATH or, if it is lost, its copy in a current mirror that `counts` accepts."""
        try:
            return self.read(path)
        except FileNotFoundError:
            return self.current_mirrors().read(path.relative_to(self.path), counts)

    def write(self, path: Path, value: Mapping[str, Any]) -> None:
        """Replace one of PATH's JSON files, on disk on return, and its copies in the mirrors."""
        with self.changing():
            data = as_bytes(value)
            self.replace(path, data)
            self.copy(path, data)

    def copy(self, path: Path, data: bytes) -> None:
        """Write a copy of one of PATH's files to the mirrors that took all of the change so far."""
        folders = [one for one in self.mirrors.folders if one not in self._missed]
        self._missed |= Mirrors(self.files, folders).write(path.relative_to(self.path), data)

    def replace(self, path: Path, data: bytes) -> None:
        """Replace one of PATH's files, on disk on return, and in the spare file if the disk is full."""
        self.files.ensure_no_link(path.parent, self.path)
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
            for name in Mirrors(self.files, [self.path]).names():  # cluster.json last
                if name.parts[0] in _MIRRORED:
                    if copies.write(name, self.files.read(self.path / name)):
                        return  # It is refreshed later.


def version_of(cluster: Mapping[str, Any]) -> Version:
    """Return the reign and the generation in the content of a cluster.json."""
    return Version(
        *(found if isinstance(found := cluster.get(key), int) else 0 for key in (REIGN, GENERATION))
    )


def number_of(value: Mapping[str, Any]) -> int:
    """Return the number in a JSON file that says which of several copies is the newest; -1 without one."""
    numbers = [value[key] for key in _NUMBERS if isinstance(value.get(key), int)]
    return max(numbers, default=-1)
