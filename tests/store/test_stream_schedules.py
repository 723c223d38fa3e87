"""Random schedules of streams with crashes, zombies, restored and copied checkpoints; a failing seed runs again alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.store.repetitions import Attempt
from tests.support import draws
from tests.support.bucket_objects import CountingObjects, a_url
from tests.support.stream_schedules import Schedule

SEEDS = 30  # in which each fault below has to show
SEEDS_OF_SOAK = draws.seeds(2 * SEEDS, after=1000)


@pytest.fixture(params=["folder", "bucket"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    address = str(tmp_path / "cluster") if request.param == "folder" else a_url(CountingObjects())
    with spark_kbatch.open(address, create=True) as cluster:
        yield cluster


def schedules(cluster: Cluster, folder: Path, numbers: Iterable[int]) -> Counter[str]:
    """Run the schedules of some seeds, every second one with checkpoints that are not read; count outcomes."""
    found = Counter[str]()
    for number in numbers:
        schedule = Schedule(f"{number}", cluster, folder / f"{number}", is_read=number % 2 == 0)
        schedule.run()
        found.update(schedule.outcomes)
    return found


def test_no_repetition_is_refused_and_nothing_else_is_skipped(
    cluster: Cluster, tmp_path: Path
) -> None:
    outcomes = schedules(cluster, tmp_path, range(SEEDS // 2))
    assert min(outcomes[name] for name in ("written", "skipped", "refused")) >= 10


@pytest.mark.slow
@pytest.mark.parametrize("at", range(0, len(SEEDS_OF_SOAK), SEEDS))
def test_many_schedules(cluster: Cluster, tmp_path: Path, at: int) -> None:
    schedules(cluster, tmp_path, SEEDS_OF_SOAK[at : at + SEEDS])


def by_number_alone(attempt: Attempt, number: int, last: Any) -> str:
    return ""


def by_sums_alone(attempt: Attempt, number: int, last: Any) -> str:
    is_same = attempt.number == number and last is not None and last.sums == attempt.evidence.sums
    return "" if is_same else "other"


def by_digest_alone(attempt: Attempt, number: int, last: Any) -> str:
    is_same = last is not None and last.digest == attempt.evidence.digest
    return "" if is_same else "other"


def whatever_is_lower(attempt: Attempt, number: int, last: Any) -> str:
    return "" if attempt.number < number else REAL(attempt, number, last)


def in_any_topic(attempt: Attempt, number: int, last: Any) -> str:
    if last is None:
        return REAL(attempt, number, last)
    return REAL(attempt, number, last._replace(topic=attempt.evidence.topic))


def unknown_is_other(attempt: Attempt, number: int, last: Any) -> str:
    is_known = bool(last is not None and last.digest and attempt.evidence.digest)
    return REAL(attempt, number, last) or ("" if is_known else "unknown")


REAL = Attempt._why_other
FAULTS = [
    by_number_alone, by_sums_alone, by_digest_alone, whatever_is_lower, in_any_topic, unknown_is_other,
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_schedules_find_a_wrong_rule(
    fault: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Attempt, "_why_other", fault)
    with (
        spark_kbatch.open(a_url(CountingObjects()), create=True) as cluster,
        pytest.raises(AssertionError, match="expected"),
    ):
        schedules(cluster, tmp_path, range(SEEDS))
