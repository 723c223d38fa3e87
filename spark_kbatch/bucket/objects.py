"""The interface of an object store that a cluster in a bucket stands on, and a store in memory.

What is asked of a store: an object that was put is there at once for all, in `get` and in `list`; and of
several that create the same object one succeeds, and the others learn that. Nothing else is relied on: no
rename, no append, no change of an object that compares it first.
"""

from __future__ import annotations

import bisect
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple, Protocol, TypeVar

from spark_kbatch import clock
from spark_kbatch.errors import CorruptLedgerError, ObjectStoreError

_Read = TypeVar("_Read")

# Of a range.
_ATTEMPTS_MAX = 4
_PAUSE_MS = 100


class CreateAnswer(Enum):
    """The answer of a store to a create.

    Only CREATED is certain. EXISTS may be said of one's own object, if an earlier create of the same landed
    whose answer was lost; and by some stores where two creates meet, and neither lands. So the object has to
    be looked at.
    """

    CREATED = "created"
    EXISTS = "exists"  # or may exist: look
    UNKNOWN = "unknown"  # no answer, or a failure: it may be there now, or later, or never


def pause_by_chance(longest_ms: float, chance: Callable[[], float] = random.random) -> float:
    """Return a pause in ms before a failed request is repeated: half of the longest to all of it.

    So those who fail together do not all try again together. `chance` is evenly from [0, 1).
    """
    return longest_ms * (1 + chance()) / 2


class ObjectInfo(NamedTuple):
    """An object as a list shows it."""

    name: str
    size_in_bytes: int
    modified_ms: int  # by the store's clock


class Upload(Protocol):
    """An object that is written piece by piece, and that is there once it is finished. Not thread-safe."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes, which may be reused on return; raises as `Objects.put`."""

    def finish(self) -> None:
        """Put the object; raises as `Objects.put`."""

    def abandon(self) -> None:
        """Let go of what was written; the store may keep it for a while, where no one sees it."""


class RangeReader(Protocol):
    """Objects, or whatever has parts of them."""

    def get_range(self, name: str, position: int, size_in_bytes: int) -> bytes | None:
        """Return exactly that range of an object; None if there is no object.

        An answer that is shorter counts as a failure of the store.
        """

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects whose names start with a folder's name, in the order of names.

        Args:
            prefix: ends with "/".
            start_after: yield only names behind this one.
        """


class Objects(RangeReader, Protocol):
    """The objects under one prefix of a bucket, by their names below it. Thread-safe.

    Each method raises ObjectStoreError if the store fails or does not answer, and ObjectAccessDeniedError if
    it does not accept the credentials.
    """

    def get(self, name: str) -> bytes | None:
        """Return an object's content; None if there is none."""

    def get_many(self, names: Sequence[str]) -> list[bytes | None]:
        """Return the contents of several objects, asked for at the same time, None for those not there."""

    def create(self, name: str, data: bytes) -> CreateAnswer:
        """Create an object unless it exists; asks the store once."""

    def put(self, name: str, data: bytes) -> None:
        """Create an object, or replace it."""

    def copy(self, name: str, to: str) -> bool:
        """Copy an object within the store, in place of what has that name; False if there is none to copy."""

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects, of which some may be gone."""

    def upload(self, name: str) -> Upload:
        """Begin an object that is put in parts."""


class Folder:
    """The objects in a folder of other `Objects`."""

    def __init__(self, objects: Objects, prefix: str) -> None:
        """Show the objects whose names start with `prefix`, which ends with "/"."""
        self._objects, self._prefix = objects, prefix

    def get(self, name: str) -> bytes | None:
        """Return an object's content; None if there is none."""
        return self._objects.get(self._prefix + name)

    def get_many(self, names: Sequence[str]) -> list[bytes | None]:
        """Return the contents of several objects."""
        return self._objects.get_many([self._prefix + name for name in names])

    def get_range(self, name: str, position: int, size_in_bytes: int) -> bytes | None:
        """Return a range of an object."""
        return self._objects.get_range(self._prefix + name, position, size_in_bytes)

    def create(self, name: str, data: bytes) -> CreateAnswer:
        """Create an object unless it exists."""
        return self._objects.create(self._prefix + name, data)

    def put(self, name: str, data: bytes) -> None:
        """Create an object, or replace it."""
        self._objects.put(self._prefix + name, data)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield objects in the order of names."""
        after = self._prefix + start_after if start_after else ""
        for found in self._objects.list(self._prefix + prefix, after):
            yield found._replace(name=found.name.removeprefix(self._prefix))

    def copy(self, name: str, to: str) -> bool:
        """Copy an object, in the folder."""
        return self._objects.copy(self._prefix + name, self._prefix + to)

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects."""
        self._objects.delete(self._prefix + name for name in names)

    def upload(self, name: str) -> Upload:
        """Begin an object that is put in parts."""
        return self._objects.upload(self._prefix + name)


def range_of(objects: RangeReader, name: str, position: int, size_in_bytes: int) -> bytes | None:
    """Return a range of an object, less where the object ends before; None if there is none.

    A store that fails and an object that was cut short look alike: too little comes, or an error.
    So after a failure the list is asked how long the object is, until it answers once. Before that
    the object is not: a store in trouble gets one request for each attempt, and no more.

    Raises:
        ObjectStoreError: the store fails, in each of some attempts.
    """
    size, is_listed, failures = size_in_bytes, False, 0
    while True:
        try:
            if failures and not is_listed:
                listed = objects.list(name[: name.rfind("/") + 1], name[:-1])
                found = next((one for one in listed if one.name >= name), None)
                if found is None or found.name != name:
                    return None  # deleted, maybe since the first attempt
                size, is_listed = max(min(found.size_in_bytes - position, size), 0), True
            data = objects.get_range(name, position, size) if size else b""
            if data is None or len(data) == size:
                return data
            raise ObjectStoreError("get", name, f"{len(data)} bytes came of {size}")
        except ObjectStoreError:
            failures += 1
            if failures == _ATTEMPTS_MAX:
                raise
        clock.sleep_ms(pause_by_chance(_PAUSE_MS << (failures - 1)))


def create_or_get(
    objects: Objects,
    name: str,
    data: bytes,
    *,
    attempts: int,
    pause_ms: int,
    sleep_ms: Callable[[float], object],
) -> bytes:
    """Create an object unless it exists, and return what is there then.

    Args:
        objects: where.
        name: of the object.
        data: its content, if no one else was first.
        attempts: how often to ask a store that gives no answer.
        pause_ms: after the first attempt; doubles.
        sleep_ms: waits.

    Raises:
        ObjectStoreError: there was no answer to any attempt.
    """
    for attempt in range(attempts):
        if objects.create(name, data) is not CreateAnswer.UNKNOWN:
            found = objects.get(name)
            if found is not None:
                return found
        sleep_ms(pause_ms << attempt)
    raise ObjectStoreError("create", name, f"it gave no answer, {attempts} times")


def read_twice(
    data: bytes, read: Callable[[bytes], _Read], ask_again: Callable[[], bytes | None]
) -> tuple[bytes, _Read]:
    """Return the content of an object and what `read` makes of it, or else of a second answer.

    What has not its sum may be sound in the store, and damaged on its way, as by a proxy. So it
    is asked for once more before an error says that the ledger is corrupt, which stops all
    writers.

    Args:
        data: the first answer.
        read: raises CorruptLedgerError for what is damaged.
        ask_again: returns a second answer; None if the object is gone.

    Raises:
        CorruptLedgerError: both answers are damaged, or the object is gone.
    """
    try:
        return data, read(data)
    except CorruptLedgerError:
        again = ask_again()
        if again is None or again == data:
            raise
        return again, read(again)


class MemoryObjects:
    """Objects in the memory of this process, for tests; `Objects`."""

    def __init__(self, now_ms: Callable[[], int] = clock.latest_ms) -> None:
        self._now_ms = now_ms
        self._lock = threading.Lock()  # guards what follows; no value of _objects is ever changed
        self._objects: dict[str, tuple[bytes, int]] = {}  # content and time, by name
        self._names: list[str] = []  # sorted

    def get(self, name: str) -> bytes | None:
        """Return an object's content; None if there is none."""
        found = self._objects.get(name)
        return found[0] if found else None

    def get_many(self, names: Sequence[str]) -> list[bytes | None]:
        """Return the contents of several objects."""
        return [self.get(name) for name in names]

    def get_range(self, name: str, position: int, size_in_bytes: int) -> bytes | None:
        """Return a range of an object."""
        data = self.get(name)
        return None if data is None else data[position : position + size_in_bytes]

    def create(self, name: str, data: bytes) -> CreateAnswer:
        """Create an object unless it exists."""
        with self._lock:
            if name in self._objects:
                return CreateAnswer.EXISTS
            self._put(name, data)
            return CreateAnswer.CREATED

    def put(self, name: str, data: bytes) -> None:
        """Create an object, or replace it."""
        with self._lock:
            self._put(name, data)

    def _put(self, name: str, data: bytes) -> None:
        if name not in self._objects:
            bisect.insort(self._names, name)
        self._objects[name] = bytes(data), self._now_ms()

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield objects in the order of names; of those that change meanwhile, as they are then."""
        last = start_after
        if prefix > start_after:
            last = prefix  # no object has the name of a folder
        while True:
            with self._lock:
                at = bisect.bisect_right(self._names, last)
                if at == len(self._names) or not self._names[at].startswith(prefix):
                    return
                last = self._names[at]
                data, modified_ms = self._objects[last]
            yield ObjectInfo(last, len(data), modified_ms)

    def copy(self, name: str, to: str) -> bool:
        """Copy an object."""
        data = self.get(name)
        if data is not None:
            self.put(to, data)
        return data is not None

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects."""
        with self._lock:
            for name in names:
                if self._objects.pop(name, None) is not None:
                    del self._names[bisect.bisect_left(self._names, name)]

    def upload(self, name: str) -> Upload:
        """Begin an object that is put in parts."""
        return _MemoryUpload(self, name)


class _MemoryUpload:
    def __init__(self, objects: MemoryObjects, name: str) -> None:
        self._objects, self._name, self._data = objects, name, bytearray()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._data += data

    def finish(self) -> None:
        self._objects.put(self._name, bytes(self._data))

    def abandon(self) -> None:
        self._data.clear()
