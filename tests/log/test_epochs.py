"""Leader epochs: the rules of Kafka's own tests, and a comparison with a model of a log."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kbatch.files import Files
from spark_kbatch.log.checkpoints import read_leader_epochs
from spark_kbatch.log.epochs import LeaderEpochCache
from tests.support.faults import FaultyFiles

UNDEFINED = (-1, -1)


def a_cache(directory: Path, *entries: tuple[int, int]) -> LeaderEpochCache:
    cache = LeaderEpochCache(FaultyFiles(), directory, [])
    for entry in entries:
        cache.assign(*entry)
    return cache


@pytest.mark.parametrize(
    ("assigned", "expected"),
    [
        pytest.param([(0, 0), (2, 10)], [(0, 0), (2, 10)], id="newer"),
        pytest.param([(2, 10), (2, 15)], [(2, 10)], id="same-again"),
        pytest.param([(2, 10), (2, 5)], [(2, 5)], id="same-earlier"),
        pytest.param([(0, 0), (1, 0)], [(1, 0)], id="nothing-was-written"),
        pytest.param([(1, 5), (3, 9), (4, 12), (2, 9)], [(1, 5), (2, 9)], id="contradicts-two"),
        pytest.param([(3, 9), (1, 4)], [(1, 4)], id="older-before-all"),
    ],
)
def test_assigning_an_epoch_removes_what_contradicts_it(
    tmp_path: Path, assigned: list[tuple[int, int]], expected: list[tuple[int, int]]
) -> None:
    cache = a_cache(tmp_path, *assigned)
    assert list(cache.entries) == expected
    assert read_leader_epochs(Files(), tmp_path) == expected
    assert LeaderEpochCache.read(Files(), tmp_path).entries == cache.entries


@pytest.mark.parametrize("entry", [(-1, 0), (0, -1)])
def test_an_epoch_or_offset_below_zero_is_refused(tmp_path: Path, entry: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="0 or more"):
        a_cache(tmp_path, entry)


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        pytest.param(-1, UNDEFINED, id="undefined"),
        pytest.param(1, (1, 4), id="before-all"),
        pytest.param(2, (2, 6), id="known"),
        pytest.param(4, (3, 9), id="between"),
        pytest.param(7, (7, 100), id="latest"),
        pytest.param(8, UNDEFINED, id="after-all"),
    ],
)
def test_where_an_epoch_ends(tmp_path: Path, epoch: int, expected: tuple[int, int]) -> None:
    cache = a_cache(tmp_path, (2, 4), (3, 6), (7, 9))
    assert cache.end_offset_for(epoch, 100) == expected


def test_without_epochs_nothing_is_known(tmp_path: Path) -> None:
    cache = a_cache(tmp_path)
    assert cache.end_offset_for(0, 100) == UNDEFINED
    assert (cache.latest_epoch, cache.epoch_for(0)) == (-1, -1)


@pytest.mark.parametrize(
    ("end", "expected"),
    [(11, [(2, 6), (3, 8), (4, 10)]), (10, [(2, 6), (3, 8)]), (9, [(2, 6), (3, 8)]), (6, []), (0, [])],
)  # fmt: skip
def test_truncating_from_the_end(tmp_path: Path, end: int, expected: list[tuple[int, int]]) -> None:
    cache = a_cache(tmp_path, (2, 6), (3, 8), (4, 10))
    cache.truncate_from_end(end)
    assert list(cache.entries) == expected == read_leader_epochs(Files(), tmp_path)


@pytest.mark.parametrize(
    ("first", "expected"),
    [(5, [(2, 6), (3, 8), (4, 10)]), (7, [(2, 6), (3, 8), (4, 10)]), (8, [(3, 8), (4, 10)]), (99, [(4, 10)])],
)  # fmt: skip
def test_truncating_from_the_start_keeps_the_epoch_that_covers_it(
    tmp_path: Path, first: int, expected: list[tuple[int, int]]
) -> None:
    cache = a_cache(tmp_path, (2, 6), (3, 8), (4, 10))
    cache.truncate_from_start(first)
    assert list(cache.entries) == expected == read_leader_epochs(Files(), tmp_path)


def test_what_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    """It is flushed: another process may have written it and died before it was on disk."""
    a_cache(tmp_path, (2, 6))
    files = FaultyFiles()
    cache = LeaderEpochCache.read(files, tmp_path)
    cache.assign(2, 7)
    assert [step.partition(" ")[0] for step in files.steps] == ["flush", "flush"]
    files.steps.clear()
    cache.truncate_from_end(7)
    assert files.steps == []


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=12))
def test_epochs_tell_of_each_offset_which_leader_wrote_it(
    tmp_path_factory: pytest.TempPathFactory, leaders: list[tuple[int, int]]
) -> None:
    cache = a_cache(tmp_path_factory.mktemp("epochs"))
    epoch, by_offset = 0, list[int]()
    for further, records in leaders:
        epoch += further
        cache.assign(epoch, len(by_offset))
        by_offset += [epoch] * records

    assert [cache.epoch_for(offset) for offset in range(len(by_offset))] == by_offset
    for asked in range(epoch + 1):
        _, end = cache.end_offset_for(asked, len(by_offset))
        assert end == sum(leader <= asked for leader in by_offset)
