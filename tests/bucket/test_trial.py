"""A trial of a store: it finds stores that do not do what a ledger stands on, asks for no more than it says, and cleans up."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spark_kbatch.bucket import trial
from spark_kbatch.bucket.objects import MemoryObjects, ObjectInfo
from spark_kbatch.bucket.trial import StoreTrial
from spark_kbatch.cli.main import cli
from spark_kbatch.errors import ObjectStoreError
from spark_kbatch.options.object_store import NO_STORE_OPTIONS
from tests.bucket.test_probe import Careless, LosesAnswers, MayNotDelete, TwoSteps
from tests.support.bucket_objects import AllCounted, a_url


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "ROUND_S", 0.01)


class ReadsTheOld(MemoryObjects):
    """A store with a cache in front, which knows nothing of puts."""

    def __init__(self) -> None:
        super().__init__()
        self._read: dict[str, bytes] = {}

    def get(self, name: str) -> bytes | None:
        found = super().get(name)
        return found if found is None else self._read.setdefault(name, found)


class RangesBeginLate(MemoryObjects):
    def get_range(self, name: str, position: int, size_in_bytes: int) -> bytes | None:
        return super().get_range(name, position + 1, size_in_bytes)


class KeepsWhatWasDeleted(MemoryObjects):
    def delete(self, names: Iterable[str]) -> None:
        super().delete(name for name in names if not name.endswith("replaced"))


class ListsSizesThatWere(MemoryObjects):
    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        for one in super().list(prefix, start_after):
            yield one._replace(size_in_bytes=one.size_in_bytes - 1)


class ChangesWhatStands(MemoryObjects):
    """A store to which a create comes late, and that does not look then whether the name is free."""

    def put(self, name: str, data: bytes) -> None:
        super().put(name, data)
        lost_before = [one.name for one in self.list("probe/") if one.name.endswith("/lost")]
        for lost in lost_before if len(data) % 2 else ():
            super().put(lost, b"first" if self.get(lost) == b"second" else b"second")


class FailsNowAndThen(MemoryObjects):
    def __init__(self) -> None:
        super().__init__()
        self.puts = 0

    def put(self, name: str, data: bytes) -> None:
        self.puts += 1
        if self.puts == 2:
            raise ObjectStoreError("put", name, "503")
        super().put(name, data)


def tried(objects: MemoryObjects, rounds: int = 2) -> StoreTrial:
    found = StoreTrial(a_url(objects), NO_STORE_OPTIONS)
    found.run(rounds)
    return found


def test_a_store_that_is_right_passes_and_is_left_clean() -> None:
    objects = MemoryObjects()
    found = tried(objects, 3)
    assert (found.rounds, found.faults, found.errors, found.left) == (3, {}, {}, "")
    assert max(map(abs, found.ahead_ms)) < 10_000
    assert [*objects.list("")] == []


@pytest.mark.parametrize(
    ("objects", "fault"),
    [
        (TwoSteps(), "were told that they did"),
        (Careless(), "was created while it was there"),
        (ReadsTheOld(), "the next read does not show that"),
        (RangesBeginLate(), "a range of 000000/replaced is not what was put"),
        (KeepsWhatWasDeleted(), "was deleted, and is still seen"),
        (ListsSizesThatWere(), "a list does not show 000000/replaced as it was put"),
        (ChangesWhatStands(), "an object has changed after it was created"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_store_that_is_wrong_is_found(objects: MemoryObjects, fault: str) -> None:
    assert fault in "; ".join(tried(objects).faults)


def test_lost_answers_and_failures_are_counted_and_are_no_faults() -> None:
    lost = tried(LosesAnswers())
    assert (lost.faults, lost.unanswered, lost.landed) == ({}, 2, 2)
    failed = tried(FailsNowAndThen())
    assert (failed.faults, failed.errors, failed.rounds) == ({}, {"ObjectStoreError": 1}, 2)


def test_without_the_right_to_delete_it_is_told_what_stays() -> None:
    found = tried(MayNotDelete())
    assert re.fullmatch(r"probe/[0-9a-f]{32}/", found.left)
    assert found.errors == {"ObjectAccessDeniedError": 2}


def test_it_asks_for_no_more_than_it_says() -> None:
    objects, rounds = AllCounted(), 4
    tried(objects, rounds)
    asked = objects.taken()
    gets = sum(count for what, count in asked.items() if what.startswith("get"))
    puts = sum(asked.values()) - gets
    assert rounds * (trial.GETS_OF_ROUND - 2) <= gets <= rounds * trial.GETS_OF_ROUND
    # The list of what is deleted in the end is one more.
    assert rounds * (trial.PUTS_OF_ROUND - 1) < puts <= rounds * trial.PUTS_OF_ROUND + 1


def test_an_interrupted_trial_reports_what_it_has_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_ms: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trial, "sleep_ms", interrupted)
    objects = MemoryObjects()
    assert tried(objects, 5).rounds == 1
    assert [*objects.list("")] == []


def check(url: str, *options: str) -> Result:
    return CliRunner().invoke(cli, ["check", url, "--trial", *options])


def test_the_command_says_what_it_asks_for_and_prints_a_report_to_copy(tmp_path: Path) -> None:
    done = check(f"file+bucket://{tmp_path}/a-secret-place", "--minutes", "0.001")
    assert done.exit_code == 0, done.output
    assert "puts, creates and lists, and" in done.stderr
    lines = dict(re.split(r" {2,}", line, maxsplit=1) for line in done.stdout.splitlines())
    assert (lines["store"], lines["faults"], lines["errors"]) == ("file+bucket", "none", "none")
    assert "obstore" in lines["versions"]
    assert re.fullmatch(r"\d+: median .* ms, 99 % within .* ms, slowest .* ms", lines["create"])
    assert "secret" not in done.stdout

    wrong = check(a_url(Careless()), "--minutes", "0.001")
    assert wrong.exit_code == 1
    assert "was created while it was there" in wrong.stdout
    assert check(a_url(), "--json").exit_code == 2
