"""Limits of micro-batches: maxOffsetsPerTrigger, and waiting for minOffsetsPerTrigger."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kbatch.consumer.stream_planner import TriggerDelay, rate_limited
from spark_kbatch.model import TopicPartition

P = [TopicPartition("a", number) for number in range(10)]
LONG_MAX = 2**63 - 1


def ends(limit: int, *ranges: tuple[int, int]) -> list[int]:
    """Return the limited ends of partitions with these starts and ends."""
    start = {P[i]: first for i, (first, _) in enumerate(ranges)}
    end = {P[i]: last for i, (_, last) in enumerate(ranges)}
    limited = rate_limited(limit, start, end)
    assert list(limited) == list(end)
    return list(limited.values())


def test_the_limit_is_shared_by_size_and_a_small_partition_does_not_starve() -> None:
    assert ends(10, (0, 101), (0, 11), (0, 1)) == [8, 1, 1]
    assert ends(10, (8, 101), (1, 11), (1, 1)) == [17, 2, 1]


def test_fewer_offsets_than_the_limit_are_all_read() -> None:
    assert ends(100, (0, 7), (3, 5), (9, 9)) == [7, 5, 9]


def test_the_largest_limit_covers_the_largest_ranges() -> None:
    assert ends(LONG_MAX, (5, 10), (5, 7)) == [10, 7]
    assert ends(LONG_MAX, (5, LONG_MAX), (LONG_MAX, LONG_MAX)) == [LONG_MAX, LONG_MAX]


def test_a_partition_without_new_data_keeps_its_end_even_if_it_is_before_its_start() -> None:
    assert ends(1, (5, 5), (5, 3), (0, 100)) == [5, 3, 1]


def test_without_any_new_data_there_is_no_division_by_zero() -> None:
    assert ends(1, (5, 5), (7, 7)) == [5, 7]


@given(
    limit=st.integers(1, 10**6),
    ranges=st.lists(
        st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)).map(lambda r: (r[0], sum(r))),
        min_size=1,
        max_size=10,
    ),
)
def test_shares_stay_within_their_ranges_and_add_up_to_about_the_limit(
    limit: int, ranges: list[tuple[int, int]]
) -> None:
    limited = ends(limit, *ranges)
    taken = [end - start for end, (start, _) in zip(limited, ranges, strict=True)]
    available = [end - start for start, end in ranges]

    assert all(0 <= one <= most for one, most in zip(taken, available, strict=True))
    assert all(one > 0 for one, most in zip(taken, available, strict=True) if most)
    assert sum(taken) <= limit + len(ranges)
    assert sum(taken) >= min(limit, sum(available)) - len(ranges)


# Waiting.


def test_the_first_trigger_never_waits() -> None:
    for now_ms in (10**12, 5):  # even if the clock starts at 0 when the machine boots
        assert not TriggerDelay(100, 60_000).waits({P[0]: 0}, {P[0]: 1}, now_ms)


@pytest.mark.parametrize(
    ("end", "waits"), [(14, True), (15, False)], ids=["one too few", "just enough"]
)
def test_later_triggers_wait_for_enough_offsets(end: int, waits: bool) -> None:
    delay = TriggerDelay(15, 60_000)
    delay.waits({}, {}, now_ms=10**12)

    assert delay.waits({P[0]: 5, P[1]: 3}, {P[0]: 10, P[1]: 3 + end - 5}, 10**12 + 1) is waits


@pytest.mark.parametrize(
    ("later_ms", "waits"), [(59_999, True), (60_000, False)], ids=["too early", "just long enough"]
)
def test_a_wait_ends_after_the_maximum_delay(later_ms: int, waits: bool) -> None:
    delay = TriggerDelay(15, 60_000)
    delay.waits({}, {}, now_ms=10**12)

    assert delay.waits({P[0]: 0}, {P[0]: 1}, 10**12 + later_ms) is waits


def test_the_delay_counts_from_the_last_trigger_not_from_the_last_check() -> None:
    delay = TriggerDelay(15, 60_000)
    delay.waits({}, {}, now_ms=10**12)
    few, enough = {P[0]: 1}, {P[0]: 15}

    assert delay.waits({P[0]: 0}, few, 10**12 + 50_000)
    assert not delay.waits({P[0]: 0}, enough, 10**12 + 55_000)
    assert delay.waits({P[0]: 15}, {P[0]: 16}, 10**12 + 110_000)
    assert not delay.waits({P[0]: 15}, {P[0]: 16}, 10**12 + 115_000)


def test_offsets_of_a_new_partition_count_from_zero() -> None:
    delay = TriggerDelay(15, 60_000)
    delay.waits({}, {}, now_ms=10**12)

    assert delay.waits({P[0]: 0}, {P[0]: 0, P[1]: 14}, 10**12)
    assert not delay.waits({P[0]: 0}, {P[0]: 0, P[1]: 15}, 10**12)
