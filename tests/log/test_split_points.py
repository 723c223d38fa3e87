"""Split points lie within the range, divide it about evenly, and are valid whatever the index says."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kbatch.files import Files
from spark_kbatch.log.lookup import SegmentViews, split_points
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.segment import SegmentView, segment_at
from spark_kbatch.log.state import LogState
from spark_kbatch.options.topic import TopicConfig
from tests.support import builders

RECORDS, BATCHES = 5, 60


@pytest.fixture(scope="module", params=["one segment", "many segments"])
def log(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PartitionLog:
    """Return 60 batches of 5 records and equal size, all but the first of each segment indexed."""
    batches = [builders.batch(n=RECORDS, value_bytes=100, base_offset=0) for _ in range(BATCHES)]
    size = len(batches[0])
    config = TopicConfig(
        index_interval_bytes=0,
        segment_bytes=7 * size if request.param == "many segments" else 1 << 30,
    )
    made = builders.a_log(tmp_path_factory.mktemp("cuts"), batches=0, config=config)
    builders.append(made, *batches)
    return made


def cut(log: PartitionLog, state: LogState, start: int, end: int, pieces: float) -> list[int]:
    """Split a range into that many pieces, if all offsets take the same space."""
    batch_bytes = log.size_in_bytes(state) // BATCHES
    room = (end - start) / RECORDS * batch_bytes
    return log.split_points(state, start, end, piece_bytes=int(room / pieces * 1.1) + 1)


@given(
    bounds=st.lists(st.integers(0, RECORDS * BATCHES), min_size=2, max_size=2).map(sorted),
    pieces=st.integers(1, 400),
)
@settings(deadline=None)
def test_split_points_ascend_within_the_range_and_lie_between_batches(
    log: PartitionLog, bounds: list[int], pieces: int
) -> None:
    start, end = bounds
    cuts = cut(log, log.state(), start, end, pieces)

    assert all(a < b for a, b in itertools.pairwise([start, *cuts, end])) or start == end
    assert all(offset % RECORDS == 0 for offset in cuts)


@pytest.mark.parametrize("pieces", [2, 3, 5])
@pytest.mark.parametrize(("start", "end"), [(0, 300), (40, 300), (35, 260)])
def test_pieces_take_about_as_many_bytes_each(
    log: PartitionLog, start: int, end: int, pieces: int
) -> None:
    cuts = cut(log, log.state(), start, end, pieces)
    sizes = [b - a for a, b in itertools.pairwise([start, *cuts, end])]

    assert len(sizes) == pieces
    assert max(sizes) - min(sizes) <= 3 * RECORDS


def test_the_size_of_a_range_is_that_of_its_batches(log: PartitionLog) -> None:
    state = log.state()
    whole = log.size_in_bytes(state)
    assert log.bytes_between(state, 0, 300) == whole
    for start, end in [(0, 150), (40, 300), (35, 260), (100, 105)]:
        found = log.bytes_between(state, start, end)
        assert found is not None
        assert abs(found - whole * (end - start) // 300) <= 2 * whole // BATCHES
    assert log.bytes_between(state, 100, 100) == 0


def test_a_small_range_is_not_split(log: PartitionLog) -> None:
    state = log.state()
    assert log.split_points(state, 0, 300, piece_bytes=log.size_in_bytes(state)) == []
    assert log.split_points(state, 100, 100, piece_bytes=1) == []


@pytest.mark.parametrize(
    "index",
    [b"", bytes(800), b"\xff" * 801, b"\x00\x00\x00\x01\x7f\xff\xff\xff" * 100],
    ids=["missing", "zeros", "garbage", "positions past the end"],
)
def test_a_damaged_index_makes_worse_split_points_but_no_wrong_ones(
    tmp_path: Path, index: bytes
) -> None:
    config = TopicConfig(index_interval_bytes=0, segment_bytes=1 << 20)
    made = builders.a_log(tmp_path, batches=0, config=config)
    builders.append(
        made, *[builders.batch(n=RECORDS, value_bytes=2000) for _ in range(BATCHES * 3)]
    )
    state = made.state()
    bases = made.segments.bases(state)
    assert len(bases) > 1
    for base in bases:
        path = segment_at(made.directory, base).offset_index
        if index:
            path.write_bytes(index)
        else:
            path.unlink()
    end = state.log_end_offset
    cuts = made.split_points(state, 3, end, piece_bytes=1 << 19)

    assert all(a < b for a, b in itertools.pairwise([3, *cuts, end]))


def test_a_segment_that_is_deleted_meanwhile_has_no_split_points() -> None:
    def deleted(at: int) -> SegmentView:
        raise FileNotFoundError(at)

    assert split_points(Files(), SegmentViews([0, 10], deleted), 0, 20, 1) == []
