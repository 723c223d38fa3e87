"""Offsets on which the tasks of an action agree, whichever day it is for each of them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest

from spark_kbatch import TopicPartition
from spark_kbatch.bucket.agreements import AgreedOffsets, agree
from spark_kbatch.bucket.objects import CreateAnswer, MemoryObjects
from spark_kbatch.errors import ConfigError, ObjectAccessDeniedError

EVENTS = TopicPartition("events", 0)
DAY_MS = 86_400_000
NOON = 20_000 * DAY_MS + DAY_MS // 2
MIDNIGHT = 20_001 * DAY_MS


def counted() -> Callable[[], AgreedOffsets]:
    """Return a function that returns a later offset each time."""
    numbers = itertools.count(1)
    return lambda: {EVENTS: (0, next(numbers))}


def test_the_first_answer_binds_all_and_each_action_has_its_own() -> None:
    objects, resolve = MemoryObjects(), counted()
    assert agree(objects, "a-1", resolve, NOON) == {EVENTS: (0, 1)}
    assert agree(objects, "a-1", resolve, NOON + 1) == {EVENTS: (0, 1)}
    assert agree(objects, "a-2", resolve, NOON) == {EVENTS: (0, 2)}
    assert [one.name for one in objects.list("agreements/20000/")] == [
        "agreements/20000/a-1",
        "agreements/20000/a-2",
    ]


def test_tasks_of_two_days_agree() -> None:
    for first, second in itertools.permutations((MIDNIGHT - 1, MIDNIGHT, MIDNIGHT + 1), 2):
        objects, resolve = MemoryObjects(), counted()
        assert agree(objects, "a", resolve, first) == {EVENTS: (0, 1)}
        assert agree(objects, "a", resolve, second) == {EVENTS: (0, 1)}


@pytest.mark.parametrize("days", [2, 3, 8])
def test_a_task_that_starts_days_later_agrees(days: int) -> None:
    objects, resolve = MemoryObjects(), counted()

    assert agree(objects, "a", resolve, NOON) == {EVENTS: (0, 1)}
    assert agree(objects, "a", resolve, NOON + days * DAY_MS) == {EVENTS: (0, 1)}


class MeetsAnother(MemoryObjects):
    """Objects in which another task asks after this one has found no answer."""

    def __init__(self, other: Callable[[MemoryObjects], object]) -> None:
        super().__init__()
        self.other: Callable[[MemoryObjects], object] | None = other

    def create(self, name: str, data: bytes) -> CreateAnswer:
        if self.other is not None:
            other, self.other = self.other, None
            other(self)
        return super().create(name, data)


@pytest.mark.parametrize("mine", [MIDNIGHT - 1, MIDNIGHT])
@pytest.mark.parametrize("theirs", [MIDNIGHT - 1, MIDNIGHT])
def test_tasks_that_ask_at_the_same_time_agree(mine: int, theirs: int) -> None:
    found, resolve = list[AgreedOffsets](), counted()
    objects = MeetsAnother(lambda objects: found.append(agree(objects, "a", resolve, theirs)))

    found.append(agree(objects, "a", resolve, mine))

    assert found[0] == found[1]


def test_a_task_that_stalls_over_midnight_agrees_with_one_long_after_it() -> None:
    found, resolve = list[AgreedOffsets](), counted()
    late = MIDNIGHT + 5 * 3_600_000
    objects = MeetsAnother(lambda objects: found.append(agree(objects, "a", resolve, late)))

    found.append(agree(objects, "a", resolve, MIDNIGHT - 600_000))

    assert found[0] == found[1]


def test_many_tasks_agree() -> None:
    objects, resolve, found = MemoryObjects(), counted(), list[AgreedOffsets]()
    threads = [
        threading.Thread(
            target=lambda at=at: found.append(agree(objects, "a", resolve, MIDNIGHT + at % 2 - 1))
        )
        for at in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(one == found[0] for one in found)


class ReadOnly(MemoryObjects):
    def create(self, name: str, data: bytes) -> CreateAnswer:
        raise ObjectAccessDeniedError("create", name, "403")


def test_without_the_right_to_write_offsets_have_to_be_numbers() -> None:
    with pytest.raises(ConfigError, match="give offsets as numbers"):
        agree(ReadOnly(), "a", counted(), NOON)
