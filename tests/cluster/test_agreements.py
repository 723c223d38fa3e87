"""All tasks of an action get the same answer, and old answers do not slow reads down."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_kbatch.cluster import folder_store
from spark_kbatch.cluster.folder_store import KEPT_MS, Agreements
from spark_kbatch.errors import KafkaStorageError
from spark_kbatch.files import Buffer, Files
from spark_kbatch.model import TopicPartition
from tests.support.faults import ReadOnlyFiles

ANSWER = {TopicPartition("clicks", 0): (0, 7), TopicPartition("clicks", 1): (3, 9)}
MINUTE_MS = 60 * 1000


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now_ms = time.time_ns() // 1_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "snapshots"
    folder.mkdir()
    return folder


@pytest.fixture
def clock() -> Clock:
    return Clock()


def agreements(path: Path, clock: Callable[[], int], files: Files | None = None) -> Agreements:
    return Agreements(files or Files(), path, clock)


def not_asked() -> dict[TopicPartition, tuple[int, int]]:
    raise AssertionError


def answers(path: Path) -> list[str]:
    return sorted(file.stem for file in (path / "by-name").iterdir())


def files_in(path: Path) -> int:
    return sum(file.is_file() for file in path.rglob("*"))


def age(path: Path, clock: Clock) -> None:
    """Set the files' times to the clock's, which has moved on since they were written."""
    for file in path.rglob("*.json"):
        os.utime(file, (clock.now_ms / 1000, clock.now_ms / 1000))


def test_every_task_gets_the_first_answer(path: Path, clock: Clock) -> None:
    assert agreements(path, clock).agree("action", lambda: ANSWER) == ANSWER
    assert agreements(path, clock).agree("action", not_asked) == ANSWER
    assert agreements(path, clock).agree("another", dict) == {}
    assert answers(path) == ["action", "another"]


def test_tasks_that_answer_at_the_same_time_agree(path: Path, clock: Clock) -> None:
    together = threading.Barrier(8)
    found = []

    def ask(number: int) -> None:
        def resolve() -> dict[TopicPartition, tuple[int, int]]:
            together.wait()
            return {TopicPartition("clicks", 0): (0, number)}

        found.append(agreements(path, clock).agree("action", resolve))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(answer == found[0] for answer in found)
    assert files_in(path) == 2


def test_each_task_resolves_for_itself_if_nothing_can_be_written(path: Path, clock: Clock) -> None:
    alone = agreements(path, clock, ReadOnlyFiles())
    assert alone.agree("action", lambda: ANSWER) == ANSWER
    assert alone.agree("action", dict) == {}


class FullFiles(Files):
    """A disk that has no room for the first files that are written."""

    def __init__(self, refused: int) -> None:
        self.refused = refused

    def write_at(self, descriptor: int, position: int, data: Buffer) -> None:
        self.refused -= 1
        if self.refused >= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write_at(descriptor, position, data)


def test_on_a_full_disk_a_task_fails_and_says_what_to_do(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another task may find room, and store what it has looked up later."""
    monkeypatch.setattr(folder_store, "sleep_ms", lambda _: None)
    with pytest.raises(KafkaStorageError, match=r"No space left.*give offsets as numbers"):
        agreements(path, clock, FullFiles(refused=9)).agree("action", lambda: ANSWER)
    assert files_in(path) == 0
    assert agreements(path, clock).agree("action", dict) == {}


def test_on_a_disk_that_was_full_for_a_moment_tasks_agree(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_store, "sleep_ms", lambda _: None)
    assert agreements(path, clock, FullFiles(refused=3)).agree("action", lambda: ANSWER) == ANSWER
    assert agreements(path, clock).agree("action", not_asked) == ANSWER
    assert files_in(path) == 2


def test_a_task_that_may_only_read_takes_an_existing_answer(path: Path, clock: Clock) -> None:
    agreements(path, clock).agree("action", lambda: ANSWER)
    clock.now_ms += 30 * MINUTE_MS
    assert agreements(path, clock, ReadOnlyFiles()).agree("action", not_asked) == ANSWER


def test_an_answer_is_removed_when_no_task_has_asked_for_six_hours(
    path: Path, clock: Clock
) -> None:
    agreements(path, clock).agree("first", lambda: ANSWER)
    age(path, clock)
    clock.now_ms += KEPT_MS - MINUTE_MS
    agreements(path, clock).agree("second", lambda: ANSWER)
    age(path / "by-time" / str(clock.now_ms // (10 * MINUTE_MS)), clock)
    assert answers(path) == ["first", "second"]
    clock.now_ms += 12 * MINUTE_MS
    agreements(path, clock).agree("third", lambda: ANSWER)
    assert answers(path) == ["second", "third"]
    assert files_in(path) == 4
    assert agreements(path, clock).agree("first", dict) == {}


def test_an_answer_stays_while_tasks_ask_for_it(path: Path, clock: Clock) -> None:
    """The tasks of a long stage ask over a whole day."""
    agreements(path, clock).agree("long", lambda: ANSWER)
    age(path, clock)
    for hour in range(24):
        clock.now_ms += 60 * MINUTE_MS
        assert agreements(path, clock).agree("long", not_asked) == ANSWER
        agreements(path, clock).agree(f"other {hour}", lambda: ANSWER)
    assert "long" in answers(path)
    clock.now_ms += KEPT_MS + 20 * MINUTE_MS
    for number in range(2):
        agreements(path, clock).agree(f"last {number}", lambda: ANSWER)
    assert "long" not in answers(path)


def test_a_partly_written_answer_does_not_replace_the_one_that_counts(
    path: Path, clock: Clock
) -> None:
    """A task died before it linked its answer, and another task gave the one that counts."""
    old = path / "by-time" / str(clock.now_ms // (10 * MINUTE_MS)) / "0123.action.json"
    old.parent.mkdir(parents=True)
    old.write_text("[]")
    os.utime(old, (clock.now_ms / 1000, clock.now_ms / 1000))
    clock.now_ms += KEPT_MS - 5 * MINUTE_MS
    agreements(path, clock).agree("action", lambda: ANSWER)
    clock.now_ms += 20 * MINUTE_MS
    agreements(path, clock).agree("another", lambda: ANSWER)
    assert not old.exists()
    assert agreements(path, clock).agree("action", not_asked) == ANSWER


class CountingFiles(Files):
    """Files that count listings, lookups of times, and removals."""

    def __init__(self) -> None:
        self.looks = self.removed = self.listed = 0

    def list(self, directory: Path) -> list[str]:
        names = super().list(directory)
        self.listed += len(names)
        return names

    def modified_ms(self, path: Path) -> int:
        self.looks += 1
        return super().modified_ms(path)

    def remove(self, path: Path) -> None:
        self.removed += 1
        super().remove(path)


def test_a_read_costs_the_same_however_many_answers_there_are(path: Path, clock: Clock) -> None:
    for number in range(400):
        agreements(path, clock).agree(f"earlier {number}", lambda: ANSWER)
    files = CountingFiles()
    agreements(path, clock, files).agree("now", lambda: ANSWER)
    assert (files.looks, files.removed) == (1, 0)
    assert files.listed <= 2

    age(path, clock)
    clock.now_ms += KEPT_MS + 20 * MINUTE_MS
    files = CountingFiles()
    agreements(path, clock, files).agree("later", lambda: ANSWER)
    assert files.removed == 200  # two names each
    for number in range(5):
        agreements(path, clock).agree(f"last {number}", lambda: ANSWER)
    assert len(answers(path)) == 6


class CountedReads(Files):
    """Files that count reads."""

    reads = 0

    def read(self, path: Path, position: int = 0, size: int | None = None) -> bytes:
        self.reads += 1
        return super().read(path, position, size)


def test_tasks_of_one_process_read_an_answer_once(path: Path, clock: Clock) -> None:
    files = CountedReads()
    agreements(path, clock).agree("action", lambda: ANSWER)
    files.reads = 0
    for _ in range(50):
        assert agreements(path, clock, files).agree("action", not_asked) == ANSWER
    assert files.reads <= 1


def test_an_answer_that_replaced_a_removed_one_is_read(path: Path, clock: Clock) -> None:
    for end in range(20):
        answer = {TopicPartition("clicks", 0): (0, end)}
        assert agreements(path, clock).agree("action", lambda found=answer: found) == answer  # type: ignore[misc]
        (path / "by-name" / "action.json").unlink()


def test_only_a_few_answers_are_cached(path: Path, clock: Clock) -> None:
    for number in range(30):
        agreements(path, clock).agree(f"action-{number}", lambda: ANSWER)
    assert 0 < len(folder_store._read_last) <= folder_store._REMEMBERED
    files = CountedReads()
    assert agreements(path, clock, files).agree("action-0", not_asked) == ANSWER
    assert files.reads == 1


def test_an_answer_read_from_the_cache_still_counts_as_in_use(path: Path, clock: Clock) -> None:
    agreements(path, clock).agree("action", lambda: ANSWER)
    for _ in range(8):
        clock.now_ms += KEPT_MS // 2
        assert agreements(path, clock).agree("action", not_asked) == ANSWER
        agreements(path, clock).agree(f"another-{clock.now_ms}", dict)
