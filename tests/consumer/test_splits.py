"""Ranges are split as Spark's Kafka connector splits them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kbatch.consumer import planning, splits
from spark_kbatch.consumer.planning import DataLoss
from spark_kbatch.model import EARLIEST, LATEST, OffsetRange, TopicPartition
from spark_kbatch.options.read import parse_read_options
from tests.support.numbered_topics import ALog, TopicsInMemory

T = [TopicPartition("t", n) for n in range(3)]


def divided(
    *ranges: tuple[int, int], least: int | None = None, most: int | None = None
) -> list[list[tuple[int, int]]]:
    """Return the pieces of each range; each range is of another partition."""
    given_ranges = [OffsetRange(T[n], *one) for n, one in enumerate(ranges)]
    found = splits.divide(given_ranges, least, most)
    return [
        [piece[1:] for piece in found if piece.topic_partition == tp] for tp in T[: len(ranges)]
    ]


def sizes(pieces: list[tuple[int, int]]) -> list[int]:
    return [end - start for start, end in pieces]


# Cases of Spark's KafkaOffsetRangeCalculatorSuite.


def test_without_options_ranges_stay_whole_and_empty_ones_are_dropped() -> None:
    assert divided((1, 2), (1, 3)) == [[(1, 2)], [(1, 3)]]
    assert divided((1, 2), (1, 1)) == [[(1, 2)], []]


def test_as_many_ranges_as_min_partitions_stay_whole() -> None:
    assert divided((1, 2), (1, 2), (1, 2), least=3) == [[(1, 2)]] * 3
    assert divided((1, 5), (1, 9), least=1) == [[(1, 5)], [(1, 9)]]


def test_one_range_is_split_evenly_and_the_last_piece_gets_the_rest() -> None:
    assert divided((1, 5), least=4) == [[(1, 2), (2, 3), (3, 4), (4, 5)]]
    assert sizes(divided((1, 11), least=3)[0]) == [3, 3, 4]


def test_small_ranges_stay_whole_and_leave_their_share_to_large_ones() -> None:
    assert divided((1, 5), (1, 21), least=4) == [[(1, 5)], [(1, 7), (7, 14), (14, 21)]]
    assert divided((1, 2), (1, 1001), least=4) == [
        [(1, 2)],
        [(1, 334), (334, 667), (667, 1001)],
    ]
    assert divided((0, 1), (0, 1), (0, 10_000), least=6)[2] == [
        (0, 2500), (2500, 5000), (5000, 7500), (7500, 10_000),
    ]  # fmt: skip


def test_empty_ranges_take_no_share() -> None:
    assert divided((1, 1), (1, 21), least=4) == [[], [(1, 6), (6, 11), (11, 16), (16, 21)]]
    assert divided((1, 5), (1, 21), (1, 1), least=4)[1] == [(1, 7), (7, 14), (14, 21)]


def test_shares_rounded_up_make_more_pieces_than_requested_and_drop_nothing() -> None:
    first, second, third = divided((0, 10), (0, 10), (0, 1), least=6)
    assert (sizes(first), sizes(second), sizes(third)) == ([3, 3, 4], [3, 3, 4], [1])


def test_shares_are_proportional_to_size() -> None:
    assert [sizes(one) for one in divided((0, 10_000), (0, 15_000), (0, 20_000), least=9)] == [
        [5000] * 2,
        [5000] * 3,
        [5000] * 4,
    ]
    assert [len(one) for one in divided((0, 500), (0, 12_000), (0, 15_001), least=6)] == [1, 2, 3]


def test_max_records_splits_larger_ranges_only() -> None:
    assert divided((1, 5), (1, 2), (1, 6), most=4) == [[(1, 5)], [(1, 2)], [(1, 3), (3, 6)]]
    assert divided((1, 40), (1, 50), (1, 60), most=20) == [
        [(1, 20), (20, 40)],
        [(1, 17), (17, 33), (33, 50)],
        [(1, 20), (20, 40), (40, 60)],
    ]


def test_min_partitions_splits_the_pieces_that_max_records_leaves() -> None:
    assert divided((1, 40), least=1, most=20) == [[(1, 20), (20, 40)]]
    assert divided((1, 40), least=4, most=20) == [[(1, 10), (10, 20), (20, 30), (30, 40)]]


@given(
    ranges=st.lists(
        st.tuples(st.integers(0, 50), st.integers(0, 2**40)).map(lambda t: (t[0], t[0] + t[1])),
        min_size=1,
        max_size=3,
    ),
    least=st.none() | st.integers(1, 40),
    parts=st.none() | st.integers(1, 40),
)
def test_pieces_cover_their_range_without_gap_or_overlap(
    ranges: list[tuple[int, int]], least: int | None, parts: int | None
) -> None:
    most = None if parts is None else max(max(end - start for start, end in ranges) // parts, 1)
    for whole, pieces in zip(ranges, divided(*ranges, least=least, most=most), strict=True):
        assert all(size > 0 for size in sizes(pieces))
        if whole[0] == whole[1]:
            assert pieces == []
            continue
        assert [whole[0], *(end for _, end in pieces)] == [
            *(start for start, _ in pieces),
            whole[1],
        ]
        if most is not None:
            assert max(sizes(pieces)) <= most


# Plans, whose bounds may be resolved later.


APART = TopicsInMemory({})


def split(*logs: tuple[ALog, tuple[int, int]], **options: object) -> list[list[tuple[int, int]]]:
    texts = {key: str(value) for key, value in options.items()}
    ranges = [OffsetRange(T[n], *bounds) for n, (_, bounds) in enumerate(logs)]
    tasks = splits.tasks(
        ranges,
        {T[n]: log for n, (log, _) in enumerate(logs)},
        parse_read_options({"path": "/data", "subscribe": "t", **texts}),
        APART,
    )
    pieces = [piece for (piece,) in tasks]
    assert [piece.planned for piece in pieces] == [
        one for one in ranges for piece in pieces if piece.planned == one
    ]
    return [[piece.wanted[1:] for piece in pieces if piece.planned == one] for one in ranges]


ALL = (EARLIEST, LATEST)


def test_outer_bounds_stay_late_bound() -> None:
    assert split((ALog(0, 4), ALL), minPartitions=3) == [[(EARLIEST, 1), (1, 2), (2, LATEST)]]
    assert split((ALog(0, 100), ALL), (ALog(0, 3), ALL), minPartitions=4) == [
        [(EARLIEST, 33), (33, 66), (66, LATEST)],
        [ALL],
    ]


def test_ranges_of_offsets_are_split_as_they_are() -> None:
    assert split((ALog(0, 10), (1, 4)), minPartitions=3) == [[(1, 2), (2, 3), (3, 4)]]


def test_max_records_does_not_split_a_late_bound_range() -> None:
    assert split((ALog(0, 100), ALL), maxRecordsPerPartition=10) == [[ALL]]
    assert split((ALog(0, 100), (0, LATEST)), maxRecordsPerPartition=10) == [[(0, LATEST)]]
    assert split((ALog(0, 100), (0, 20)), maxRecordsPerPartition=10) == [[(0, 10), (10, 20)]]


def test_once_one_range_is_split_the_others_are_split_by_their_current_size() -> None:
    found = split((ALog(0, 20), (0, 20)), (ALog(0, 20), ALL), maxRecordsPerPartition=10)
    assert found == [[(0, 10), (10, 20)], [(EARLIEST, 10), (10, LATEST)]]


def test_a_range_that_is_empty_now_is_kept_for_later_records() -> None:
    assert split((ALog(5, 5), ALL), (ALog(0, 4), ALL), minPartitions=3) == [
        [ALL],
        [(EARLIEST, 1), (1, 2), (2, LATEST)],
    ]


def test_a_range_is_split_by_the_records_that_the_log_has_of_it() -> None:
    found = split((ALog(10, 20), (0, 2**63 - 1)), minPartitions=2, failOnDataLoss="false")
    assert found == [[(0, 15), (15, 2**63 - 1)]]


@pytest.mark.parametrize("least", [1, 2])
def test_ranges_are_not_split_if_there_are_as_many_as_requested(least: int) -> None:
    assert split((ALog(0, 90), ALL), (ALog(0, 3), ALL), minPartitions=least) == [[ALL], [ALL]]


# By bytes.


def test_a_range_of_many_bytes_is_split_by_bytes_unless_options_say_how() -> None:
    """Its outer bounds stay unchanged."""
    large = ALog(0, 300)

    assert split((large, ALL)) == [[(EARLIEST, 100), (100, 200), (200, LATEST)]]
    assert split((large, (30, 280))) == [[(30, 155), (155, 280)]]
    assert split((large, ALL), minPartitions=1) == [[ALL]]
    assert split((large, ALL), maxRecordsPerPartition=1000) == [[ALL]]


def test_a_range_of_few_bytes_is_not_split() -> None:
    assert split((ALog(0, 134), ALL), (ALog(7, 7), ALL)) == [[ALL], [ALL]]


@given(
    planned=st.tuples(st.integers(0, 50), st.integers(0, 50)).map(sorted),
    read=st.tuples(st.integers(0, 90), st.integers(0, 90)).map(sorted),
    least=st.none() | st.integers(1, 12),
)
def test_pieces_of_a_whole_partition_give_all_its_records_whatever_changes_before_the_read(
    planned: list[int], read: list[int], least: int | None
) -> None:
    whole = OffsetRange(T[0], *ALL)
    options = {} if least is None else {"minPartitions": least}
    (cuts,) = split((ALog(*planned), ALL), **options)
    found = [
        planning.resolve(OffsetRange(T[0], *cut), whole, *read, DataLoss(fail=True), lambda *_: "")
        for cut in cuts
    ]

    assert [offset for _, start, end in found for offset in range(start, end)] == list(range(*read))


# Small ranges share tasks.


def shared(*counts: int, **options: object) -> list[list[int]]:
    """Return the partitions of each task, for partitions of so many records of a million bytes."""
    texts = {key: str(value) for key, value in options.items()}
    wanted = [TopicPartition("t", n) for n in range(len(counts))]
    tasks = splits.tasks(
        [OffsetRange(one, EARLIEST, LATEST) for one in wanted],
        {one: ALog(0, count) for one, count in zip(wanted, counts, strict=True)},
        parse_read_options({"path": "/data", "subscribe": "t", **texts}),
        APART,
    )
    assert all(piece.wanted == piece.planned for task in tasks for piece in task)
    return [[piece.wanted.topic_partition.partition for piece in task] for task in tasks]


def test_small_ranges_share_at_least_sixteen_tasks_in_the_order_of_partitions() -> None:
    tasks = shared(*[0] * 100)
    assert len(tasks) == 16
    assert [n for task in tasks for n in task] == [*range(100)]
    assert {*map(len, tasks)} == {6, 7}
    assert shared(*[0] * 16) == [[n] for n in range(16)]
    assert len(shared(*[0] * 17)) == 16


def test_a_task_has_at_most_thirty_two_ranges_and_128_mib_of_cost() -> None:
    tasks = shared(*[0] * 1024)
    assert {*map(len, tasks)} == {32}
    of_2_mb = shared(*[2] * 500)
    cost = 2_000_000 + splits.RANGE_COST_BYTES
    assert max(len(task) * cost for task in of_2_mb) < splits.PIECE_BYTES + cost
    assert len(of_2_mb) == -(-500 * cost // splits.PIECE_BYTES)


def test_a_large_range_has_a_task_of_its_own_where_it_is_in_the_order() -> None:
    tasks = shared(*[0] * 20, 5, *[0] * 20)
    assert len(tasks) == 16
    assert [n for task in tasks for n in task if n != 20] == [*range(20), *range(21, 41)]
    assert [20] in tasks
    assert shared(*[5] * 40) == [[n] for n in range(40)]


def test_ranges_whose_size_is_not_told_are_small_by_their_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ALog, "bytes_between", lambda *_: None)
    monkeypatch.setattr(ALog, "split_points", lambda *_, **_others: [])
    assert {*map(len, shared(*[1000] * 512))} == {32}
    assert shared(*[1001] * 40) == [[n] for n in range(40)]


@pytest.mark.parametrize(
    "option", [{"shareTasks": False}, {"minPartitions": 1}, {"maxRecordsPerPartition": 5}], ids=str
)
def test_options_give_each_range_a_task_of_its_own(option: dict[str, object]) -> None:
    assert shared(*[0] * 40, **option) == [[n] for n in range(40)]


@given(st.lists(st.integers(0, 6), max_size=80))
def test_all_ranges_are_read_once_and_in_order_within_tasks(counts: list[int]) -> None:
    tasks = shared(*counts)
    assert sorted(n for task in tasks for n in task) == [*range(len(counts))]
    assert all(task == sorted(task) for task in tasks)
    assert len(tasks) >= min(len(counts), 16)
    assert all(len(task) == 1 or max(counts[n] for n in task) <= 4 for task in tasks)
