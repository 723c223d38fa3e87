"""The probe passes a store that does what it has to, and finds those that do not."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from spark_kbatch.bucket.objects import CreateAnswer, MemoryObjects, ObjectInfo
from spark_kbatch.bucket.probe import CREATORS, probe
from spark_kbatch.bucket.real_objects import RealObjects
from spark_kbatch.errors import ObjectAccessDeniedError


class TwoSteps(MemoryObjects):
    """A store that checks whether a name is free, and then puts the object."""

    def create(self, name: str, data: bytes) -> CreateAnswer:
        if self.get(name) is not None:
            return CreateAnswer.EXISTS
        time.sleep(0.01)
        self.put(name, data)
        return CreateAnswer.CREATED


class Careless(MemoryObjects):
    """A store that knows no conditions."""

    def create(self, name: str, data: bytes) -> CreateAnswer:
        self.put(name, data)
        return CreateAnswer.CREATED


class RemembersAbsence(MemoryObjects):
    """A store with a cache in front that also remembers what was not there."""

    def __init__(self) -> None:
        super().__init__()
        self.absent: set[str] = set()

    def get(self, name: str) -> bytes | None:
        found = None if name in self.absent else super().get(name)
        if found is None:
            self.absent.add(name)
        return found


class ListsLate(MemoryObjects):
    """A store whose lists show what was there at first."""

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        return iter(())


class MayNotDelete(MemoryObjects):
    """A store that lets this process write, and not delete."""

    def delete(self, names: Iterable[str]) -> None:
        raise ObjectAccessDeniedError("delete", next(iter(names)), "no right to it")


class LosesAnswers(MemoryObjects):
    """A store that creates one object only, and whose answers are all lost."""

    def create(self, name: str, data: bytes) -> CreateAnswer:
        super().create(name, data)
        return CreateAnswer.UNKNOWN


class TellsTheWrongOne(MemoryObjects):
    """A store that tells a loser that it has won."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[str, int] = {}
        self.count_lock = threading.Lock()

    def create(self, name: str, data: bytes) -> CreateAnswer:
        with self.count_lock:
            super().create(name, data)
            self.asked[name] = self.asked.get(name, 0) + 1
            is_second = self.asked[name] == 2
        return CreateAnswer.CREATED if is_second else CreateAnswer.EXISTS


def found_in(objects: MemoryObjects) -> str:
    return "; ".join(probe(objects, random.Random(1)))


def test_a_store_that_creates_once_passes_and_is_left_clean() -> None:
    objects = MemoryObjects()

    assert probe(objects, random.Random(1)) == []
    assert [*objects.list("probe/")] == []


def test_a_folder_passes(tmp_path: Path) -> None:
    assert probe(RealObjects(tmp_path.as_uri()), random.Random(1)) == []


def test_lost_answers_are_no_fault_of_the_store() -> None:
    assert found_in(LosesAnswers()) == ""


@pytest.mark.parametrize(
    ("objects", "found"),
    [
        (TwoSteps(), f"of {CREATORS} processes that created"),
        (Careless(), "was created while it was there"),
        (RemembersAbsence(), "is not seen after its creation"),
        (ListsLate(), "is not in a list"),
        (TellsTheWrongOne(), "is not the one whose content is there"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_store_that_fails_is_found(objects: MemoryObjects, found: str) -> None:
    assert found in found_in(objects)


def test_a_writer_need_not_be_let_delete() -> None:
    assert probe(MayNotDelete(), random.Random(1)) == []
