"""A disk in memory that is fast to copy and knows what would survive a power loss.

    disk = Disk()
    files = DiskFiles(disk)                   # one process's view of it
    a_cluster(files.mount, files=files)
    crashed = disk.copy()                     # as the next process finds it if this one is killed
    crashed = disk.after_power_loss(rng)      # as the next boot finds it

Changes that were not flushed may survive or not, each on its own:

    bytes       a sector is as after the last flush of its file, or after any write since then
    sizes       as after the last flush, after any write since then, or anything in between; a sector
                that was lost is zero if it is new
    names       created, removed and renamed since their directory was flushed, or not; a rename is one
                change, and a flush of either directory covers it. A flush of a file covers its bytes, but
                not its name.

Waiting for a lock blocks the thread; `Disk.waiting` lists the waiting threads.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from spark_kbatch.files import Buffer, Files, LockFile

SECTOR = 512
BLOCK = 4096  # what a disk with a limit gives out
_LOSING = [0.0, 0.3, 0.3, 0.6, 1.0]  # shares of what was not flushed


class Node:
    """A file or a directory, regardless of its names."""

    def __init__(self, number: int, *, is_dir: bool) -> None:
        self.number, self.is_dir = number, is_dir
        self.modified_ns = time.time_ns()
        self.changes = 0
        self.data = bytearray()
        self.images: list[bytes] = [b""]  # as flushed, and after each change since
        self.entries: dict[str, Node] = {}
        self.flushed_entries: dict[str, Node] = {}
        self.flock_holder: LockFile | None = None
        self.byte_holders: dict[int, LockFile] = {}

    def changed(self) -> None:
        self.modified_ns = time.time_ns()
        self.changes += 1
        if not self.is_dir:
            self.images.append(bytes(self.data))

    def settled_copy(self, disk: Disk) -> Node:
        """Return a copy of all that is here, as if flushed."""
        twin = disk.new_node(is_dir=self.is_dir)
        twin.data, twin.images = bytearray(self.data), [bytes(self.data)]
        twin.entries = {name: one.settled_copy(disk) for name, one in self.entries.items()}
        twin.flushed_entries = dict(twin.entries)
        return twin


class Renaming:
    """A change of names that is not on disk yet; for a new or a removed file, one end is None."""

    def __init__(
        self, node: Node, source: tuple[Node, str] | None, target: tuple[Node, str] | None
    ) -> None:
        self.node, self.source, self.target = node, source, target

    def carry_out(self) -> None:
        if self.source and self.source[0].flushed_entries.get(self.source[1]) is self.node:
            del self.source[0].flushed_entries[self.source[1]]
        if self.target:
            self.target[0].flushed_entries[self.target[1]] = self.node

    def is_in(self, directory: Node) -> bool:
        return directory in [end[0] for end in (self.source, self.target) if end]


class Disk:
    """A disk in memory. Thread-safe like a file system: each call is one step."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.root = self.new_node(is_dir=True)
        self.unflushed_names: list[Renaming] = []
        self.changed = threading.Condition(threading.RLock())
        self.waiting: list[DiskFiles] = []
        self.blocks_max: int | None = None  # that all files together may have; None for no limit
        self.descriptors: dict[int, tuple[Node, Path]] = {}
        self.free_descriptors = itertools.count(1_000_000)  # numbers that the system does not use

    def new_node(self, *, is_dir: bool) -> Node:
        return Node(next(self._numbers), is_dir=is_dir)

    def blocks_left(self) -> int:
        """Return how many blocks of a disk with a limit no file has."""
        assert self.blocks_max is not None
        held = {node for node, _ in self.descriptors.values()}
        todo = [self.root]
        while todo:
            node = todo.pop()
            held.add(node)
            todo += node.entries.values()
        return self.blocks_max - sum(-(-len(node.data) // BLOCK) for node in held)

    def flush(self, node: Node) -> None:
        if not node.is_dir:
            node.images = [bytes(node.data)]
            return
        kept = []
        for change in self.unflushed_names:
            if not change.is_in(node):
                kept.append(change)
                continue
            change.carry_out()
            if change.source:
                # An earlier rename of the file no longer counts.
                kept = [k for k in kept if (k.node, k.target) != (change.node, change.source)]
        self.unflushed_names = kept

    def copy(self) -> Disk:
        """Return a copy, without the processes."""
        return self._copied(flushed=False)

    def after_power_loss(self, rng: random.Random, *, apart: bool = False) -> Disk:
        """Return a disk after a power loss: with all changes, only flushed ones, or anything between.

        With `apart` each folder at the top is a disk of its own, so loses more or less than the others.
        """
        struck = self._copied(flushed=True)
        losing, tops = rng.choice(_LOSING), struck._tops() if apart else {}
        of_top = {top: rng.choice(_LOSING) for top in sorted(set(tops.values()))}
        struck._lose(rng, losing, tops, of_top)
        return struck.copy().settled()

    def after_power_loss_of(self, *tops: str) -> Disk:
        """Return a disk of which these folders at the top have lost all that was not flushed."""
        struck = self._copied(flushed=True)
        struck._lose(random.Random(0), 0.0, struck._tops(), dict.fromkeys(tops, 1.0))
        return struck.copy().settled()

    def _lose(
        self,
        rng: random.Random,
        losing: float,
        tops: Mapping[Node, str],
        of_top: Mapping[str, float],
    ) -> None:
        for change in self.unflushed_names:
            if rng.random() >= of_top.get(tops.get(change.node, ""), losing):
                change.carry_out()
        for node in self.nodes():
            node.entries = node.flushed_entries
            of_node = of_top.get(tops.get(node, ""), losing)
            node.data = bytearray(_survivor(node.images, rng, of_node))

    def _tops(self) -> dict[Node, str]:
        """Return the name of the folder at the top that each node is in."""
        found: dict[Node, str] = {}
        todo = [(node, name) for name, node in self.root.entries.items()]
        while todo:
            node, name = todo.pop()
            if node not in found:
                found[node] = name
                below = [*node.entries.values(), *node.flushed_entries.values()]
                todo += [(child, name) for child in below]
        return found

    def settled(self) -> Disk:
        """Make everything count as flushed; return this disk."""
        self.unflushed_names = []
        for node in self.nodes():
            node.flushed_entries = dict(node.entries)
            node.images = [bytes(node.data)]
        return self

    def nodes(self) -> list[Node]:
        """Return all nodes that a name leads to, or led to when it was flushed."""
        found: dict[Node, None] = {}
        todo = [self.root, *(change.node for change in self.unflushed_names)]
        while todo:
            node = todo.pop()
            if node not in found:
                found[node] = None
                todo += [*node.entries.values(), *node.flushed_entries.values()]
        return list(found)

    def _copied(self, *, flushed: bool) -> Disk:
        copy = Disk()
        copy._numbers = itertools.count(next(self._numbers))
        copy.blocks_max = self.blocks_max
        twins = {}
        for node in self.nodes():
            twin = twins[node] = Node(node.number, is_dir=node.is_dir)
            twin.modified_ns, twin.changes = node.modified_ns, node.changes
            twin.data, twin.images = bytearray(node.data), list(node.images)
        for node, twin in twins.items():
            twin.entries = {name: twins[child] for name, child in node.entries.items()}
            twin.flushed_entries = {n: twins[child] for n, child in node.flushed_entries.items()}
        copy.root = twins[self.root]

        def moved(end: tuple[Node, str] | None) -> tuple[Node, str] | None:
            return end and (twins[end[0]], end[1])

        for change in self.unflushed_names:
            ends = [end[0] for end in (change.source, change.target) if end]
            if all(end in twins for end in ends):
                copy.unflushed_names.append(
                    Renaming(twins[change.node], moved(change.source), moved(change.target))
                )
        return copy

    def contents(self, *, flushed: bool = False) -> dict[str, bytes | None]:
        """Return every path with its bytes; None for a directory."""
        found: dict[str, bytes | None] = {}

        def walk(node: Node, path: str) -> None:
            found[path] = None if node.is_dir else bytes(node.images[0] if flushed else node.data)
            for name, child in (node.flushed_entries if flushed else node.entries).items():
                walk(child, f"{path}/{name}")

        walk(self.root, "")
        return found


def _survivor(images: list[bytes], rng: random.Random, losing: float) -> bytes:
    """Return possible contents of a file whose first image is on disk, and which was then changed to the others."""

    def chosen() -> bytes:
        return images[-1] if rng.random() >= losing else rng.choice(images[:-1] or images)

    if len(set(images)) == 1:
        return images[0]
    size = len(chosen())
    if rng.random() < losing / 3:
        size = rng.randint(*sorted((len(images[0]), len(images[-1]))))
    out = bytearray(size)
    for at in range(0, size, SECTOR):
        part = chosen()[at : min(at + SECTOR, size)]
        out[at : at + len(part)] = part
    return bytes(out)


class _LockFile(LockFile):
    def __init__(self, files: DiskFiles, descriptor: int, path: Path) -> None:
        self.files, self.descriptor, self.path = files, descriptor, path

    def release(self) -> None:
        if self.descriptor >= 0:
            self.files.release_locks(self)
            self.descriptor = -1


class DiskFiles(Files):
    """One process's view of a disk, mounted at `mount`."""

    def __init__(self, disk: Disk, mount: str = "/simulated") -> None:
        self.disk, self.mount = disk, Path(mount)
        self._mount = mount

    # Names.

    def _find(self, path: Path) -> Node | None:
        node: Node | None = self.disk.root
        for part in _parts(str(path), self._mount):
            node = node.entries.get(part) if node else None
        return node

    def _node(self, path: Path) -> Node:
        node = self._find(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        return node

    def _directory(self, path: Path) -> Node:
        node = self._node(path)
        if not node.is_dir:
            raise _error(errno.ENOTDIR, path)
        return node

    def _file(self, path: Path) -> Node:
        node = self._node(path)
        if node.is_dir:
            raise _error(errno.EISDIR, path)
        return node

    def _rename(
        self, node: Node, source: tuple[Node, str] | None, target: tuple[Node, str] | None
    ) -> None:
        if source:
            del source[0].entries[source[1]]
            source[0].changed()
        if target:
            target[0].entries[target[1]] = node
            target[0].changed()
        self.disk.unflushed_names.append(Renaming(node, source, target))

    def _made(self, path: Path, *, is_dir: bool = False) -> Node:
        directory = self._directory(path.parent)
        node = self.disk.new_node(is_dir=is_dir)
        self._rename(node, None, (directory, path.name))
        return node

    def _unlink(self, path: Path) -> None:
        directory = self._directory(path.parent)
        self._rename(directory.entries[path.name], (directory, path.name), None)

    def _open(self, node: Node, path: Path) -> int:
        descriptor = next(self.disk.free_descriptors)
        self.disk.descriptors[descriptor] = node, path
        return descriptor

    def open_files(self) -> list[str]:
        """Return the open files of all processes that use this disk."""
        return sorted(str(path) for _, path in self.disk.descriptors.values())

    def path_of(self, descriptor: int) -> Path:
        """Return the path by which an open file was opened."""
        return self.disk.descriptors[descriptor][1]

    # Reading.

    def exists(self, path: Path) -> bool:
        with self.disk.changed:
            return self._find(path) is not None

    def is_dir(self, path: Path) -> bool:
        with self.disk.changed:
            node = self._find(path)
            return node is not None and node.is_dir

    def is_link(self, path: Path) -> bool:
        return False

    def list(self, directory: Path) -> list[str]:
        with self.disk.changed:
            return sorted(self._directory(directory).entries)

    def first_names(self, directory: Path, count: int) -> Sequence[str]:
        with self.disk.changed:
            exists = self._find(directory) is not None
            return list(self._directory(directory).entries)[:count] if exists else []

    def sizes(self, directory: Path, names: Iterable[str]) -> Sequence[int]:
        paths = [directory / name for name in names]
        return [self.size(path) if self.exists(path) else -1 for path in paths]

    def holds(self, directory: Path, name: str) -> bool:
        return self.exists(directory / name)

    def version(self, directory: Path) -> tuple[int, int]:
        with self.disk.changed:
            node = self._node(directory)
            return node.number, node.changes

    def fingerprint(self, path: Path) -> tuple[int, ...] | None:
        with self.disk.changed:
            node = self._find(path)
            return None if node is None else (node.number, node.changes, node.modified_ns)

    def size(self, path: Path) -> int:
        with self.disk.changed:
            return len(self._node(path).data)

    def links(self, descriptor: int) -> int:
        with self.disk.changed:
            node = self.disk.descriptors[descriptor][0]
            return sum(child is node for one in self.disk.nodes() for child in one.entries.values())

    def is_full(self, path: Path) -> bool:
        with self.disk.changed:
            return self.disk.blocks_max is not None and self.disk.blocks_left() * BLOCK < 2**24

    def descriptor_size(self, descriptor: int) -> int:
        with self.disk.changed:
            return len(self.disk.descriptors[descriptor][0].data)

    def identity(self, descriptor: int) -> tuple[int, int]:
        return 0, self.disk.descriptors[descriptor][0].number

    def identity_at(self, path: Path) -> tuple[int, int]:
        with self.disk.changed:
            return 0, self._node(path).number

    def modified_ms(self, path: Path) -> int:
        with self.disk.changed:
            return self._node(path).modified_ns // 1_000_000

    def read(self, path: Path, position: int = 0, size: int | None = None) -> bytes:
        with self.disk.changed:
            data = self._file(path).data
            return bytes(data[position : len(data) if size is None else position + size])

    def pread_into(self, descriptor: int, position: int, buffer: memoryview) -> int:
        with self.disk.changed:
            data = self.disk.descriptors[descriptor][0].data
            part = data[position : position + len(buffer)]
            buffer[: len(part)] = part
            return len(part)

    @contextlib.contextmanager
    def opened(self, path: Path, *, write: bool = False) -> Iterator[int]:
        with self.disk.changed:
            descriptor = self._open(self._file(path) if write else self._node(path), path)
        try:
            yield descriptor
        finally:
            self.close(descriptor)

    def close(self, descriptor: int) -> None:
        with self.disk.changed:
            del self.disk.descriptors[descriptor]

    # Writing.

    def create(self, path: Path) -> int:
        with self.disk.changed:
            if self._find(path) is not None:
                raise _error(errno.EEXIST, path)
            return self._open(self._made(path), path)

    def write_at(self, descriptor: int, position: int, data: Buffer) -> None:
        with self.disk.changed:
            node, path = self.disk.descriptors[descriptor]
            if self.disk.blocks_max is not None:
                more = -(-(position + len(data)) // BLOCK) - -(-len(node.data) // BLOCK)
                if more > 0 and more > self.disk.blocks_left():
                    raise _error(errno.ENOSPC, path)
            if len(data):
                node.data.extend(bytes(max(position - len(node.data), 0)))
                node.data[position : position + len(data)] = data
                node.changed()

    @contextlib.contextmanager
    def made(self, path: Path) -> Iterator[int]:
        with self.disk.changed:
            node = self._find(path) or self._made(path)
            descriptor = self._open(node, path)
        try:
            yield descriptor
        finally:
            self.close(descriptor)

    def truncate(self, path: Path, size: int) -> None:
        with self.disk.changed:
            node = self._file(path)
            del node.data[size:]
            node.data.extend(bytes(size - len(node.data)))
            node.changed()

    def rename(self, source: Path, target: Path) -> None:
        with self.disk.changed:
            node, to = self._node(source), self._directory(target.parent)
            replaced = to.entries.get(target.name)
            if node.is_dir and replaced is not None and replaced.entries:
                raise _error(errno.ENOTEMPTY, target)
            self._rename(node, (self._directory(source.parent), source.name), (to, target.name))

    def set_modified_ms(self, path: Path, time_ms: int) -> None:
        with self.disk.changed:
            self._node(path).modified_ns = time_ms * 1_000_000

    def set_descriptor_modified_ns(self, descriptor: int, time_ns: int) -> None:
        with self.disk.changed:
            self.disk.descriptors[descriptor][0].modified_ns = time_ns

    def link(self, source: Path, target: Path) -> bool:
        with self.disk.changed:
            if self._find(target) is not None:
                return False
            self._rename(self._file(source), None, (self._directory(target.parent), target.name))
            return True

    def remove(self, path: Path) -> None:
        with self.disk.changed:
            if self._find(path) is not None:
                self._file(path)
                self._unlink(path)

    def make_dir(self, path: Path, *, exclusive: bool = False) -> None:
        with self.disk.changed:
            if self._find(path) is not None:
                if exclusive or not self.is_dir(path):
                    raise _error(errno.EEXIST, path)
                return
            if self._find(path.parent) is None:
                DiskFiles.make_dir(self, path.parent)
            self._made(path, is_dir=True)

    def remove_dir(self, path: Path) -> None:
        with self.disk.changed:
            if self._find(path) is None:
                return
            for name, node in list(self._node(path).entries.items()):
                if node.is_dir:
                    DiskFiles.remove_dir(self, path / name)
                else:
                    self._unlink(path / name)
            self._unlink(path)

    def flush_descriptor(self, descriptor: int) -> None:
        with self.disk.changed:
            self.disk.flush(self.disk.descriptors[descriptor][0])

    # Locks.

    def _wait(self, is_free: Callable[[], bool]) -> None:
        self.disk.waiting.append(self)
        self.disk.changed.notify_all()
        try:
            assert self.disk.changed.wait_for(is_free, timeout=60), "no one releases a lock"
        finally:
            self.disk.waiting.remove(self)

    def flock(self, path: Path, *, wait: bool = True) -> LockFile | None:
        with self.disk.changed:
            while True:
                node = self._find(path) or self._made(path)
                if node.flock_holder is None:
                    break
                if not wait:
                    return None
                self._wait(lambda node=node: node.flock_holder is None)
            node.flock_holder = _LockFile(self, self._open(node, path), path)
            return node.flock_holder

    def release_locks(self, file: LockFile) -> None:
        """Release the locks of a file."""
        with self.disk.changed:
            node = self.disk.descriptors[file.descriptor][0]
            if node.flock_holder is file:
                node.flock_holder = None
            for position in [one for one, holder in node.byte_holders.items() if holder is file]:
                del node.byte_holders[position]
            self.close(file.descriptor)
            self.disk.changed.notify_all()

    def is_at(self, file: LockFile) -> bool:
        with self.disk.changed:
            found = self.disk.descriptors.get(file.descriptor)
            return found is not None and self._find(file.path) is found[0]

    def open_for_locks(self, path: Path, before_made: Callable[[], object] = bool) -> LockFile:
        with self.disk.changed:
            if self._find(path) is None:
                before_made()
            node = self._find(path) or self._made(path)
            return _LockFile(self, self._open(node, path), path)

    def lock_byte(self, file: LockFile, position: int, *, wait: bool = True) -> bool:
        with self.disk.changed:
            holders = self.disk.descriptors[file.descriptor][0].byte_holders
            if holders.get(position) not in (None, file):
                if not wait:
                    return False
                self._wait(lambda: position not in holders)
            holders[position] = file
            return True

    def share_lock(self, file: LockFile) -> bool:
        return True  # no broker runs here

    take_lock = share_lock


@functools.lru_cache(maxsize=10_000)
def _parts(path: str, mount: str) -> list[str]:
    assert path.startswith(mount), f"{path} is not on this disk"
    return path[len(mount) + 1 :].split("/") if path != mount else []


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
