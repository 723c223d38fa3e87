"""A plan has the ranges that the options ask for, or an error says why it cannot have them."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from spark_kbatch.consumer import planning
from spark_kbatch.consumer.planning import DataLoss
from spark_kbatch.errors import (
    ConfigError,
    DataLossError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import EARLIEST, LATEST, OffsetRange, TopicPartition
from spark_kbatch.options.read import ReadOptions, parse_read_options, parse_stream_read_options
from tests.support.numbered_topics import ALog, TopicsInMemory

A0, A1, A2 = (TopicPartition("a", n) for n in range(3))
B0 = TopicPartition("b", 0)
FAIL = DataLoss(fail=True)


def some_topics() -> TopicsInMemory:
    """Three topics; offset 5 of a-0 has time 1005, and b-0 had three records, all deleted."""
    return TopicsInMemory(
        {A0: ALog(5, 20, 1000), A1: ALog(0, 0), A2: ALog(0, 7, 1000), B0: ALog(3, 3)}
    )


def unknown(_topic_partition: TopicPartition, _offset: int) -> str:
    """Return nothing, as where no commit has overwritten an offset."""
    return ""


def _texts(options: dict[str, Any]) -> dict[str, str]:
    return {k: json.dumps(v) if isinstance(v, dict) else str(v) for k, v in options.items()}


def asked(**options: Any) -> ReadOptions:
    """Return options of a batch read, of topic `a` by default; a dict becomes JSON."""
    selection = (
        {} if {"assign", "subscribe", "subscribePattern"} & options.keys() else {"subscribe": "a"}
    )
    return parse_read_options(_texts({"path": "/data", **selection, **options}))


def ranges(**options: Any) -> list[OffsetRange]:
    return planning.ranges(asked(**options), some_topics())


def partitions(**options: Any) -> list[TopicPartition]:
    return [one.topic_partition for one in ranges(**options)]


# Partitions.


def test_subscribe_reads_all_partitions_of_its_topics_in_order() -> None:
    assert partitions(subscribe="b,a") == [A0, A1, A2, B0]


def test_assign_reads_the_partitions_that_exist_and_leaves_out_the_others() -> None:
    assert partitions(assign={"a": [2, 3], "b": [0, 9]}) == [A2, B0]


@pytest.mark.parametrize("assign", [{}, {"a": []}, {"a": [7]}], ids=["none", "no number", "absent"])
def test_assign_without_an_existing_partition_reads_nothing(assign: dict[str, list[int]]) -> None:
    assert partitions(assign=assign) == []


@pytest.mark.parametrize("option", ["subscribe", "assign"])
def test_an_unknown_topic_is_an_error_that_names_the_option(option: str) -> None:
    value: Any = "a,nowhere" if option == "subscribe" else {"a": [0], "nowhere": [0]}
    with pytest.raises(UnknownTopicOrPartitionError) as error:
        ranges(**{option: value})

    assert str(error.value) == f"option {option!r}: topic 'nowhere' does not exist"


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        pytest.param("orders", ["eu-orders", "orders", "orders-eu"], id="found anywhere"),
        pytest.param("^orders$", ["orders"], id="anchored"),
        pytest.param("ORDERS", [], id="case counts"),
        pytest.param("(?i)ORDERS-", ["orders-eu"], id="case ignored on request"),
        pytest.param(" orders-.. ", ["orders-eu"], id="blanks around it"),
        pytest.param(".*", ["eu-orders", "orders", "orders-eu", "x"], id="everything but internal"),
        pytest.param("__", [], id="internal"),
    ],
)
def test_subscribe_pattern_reads_topics_whose_name_contains_a_match(
    pattern: str, names: list[str]
) -> None:
    held = ["orders", "orders-eu", "eu-orders", "x", "__transaction_state"]
    topics = TopicsInMemory({TopicPartition(name, 0): ALog(0, 1) for name in held})
    found = planning.ranges(asked(subscribePattern=pattern), topics)

    assert [one.topic_partition.topic for one in found] == names


def test_subscribe_pattern_leaves_out_a_topic_deleted_during_planning() -> None:
    class Deleting(TopicsInMemory):
        def topic_names(self, *, internal: bool = False) -> list[str]:
            names = super().topic_names(internal=internal)
            self.logs.pop(B0, None)
            return names

    found = planning.ranges(asked(subscribePattern="."), Deleting({A0: ALog(0, 1), B0: ALog(0, 1)}))

    assert [one.topic_partition for one in found] == [A0]


# Offsets.


def test_earliest_and_latest_stay_unresolved_and_no_log_is_read() -> None:
    topics = some_topics()

    assert planning.ranges(asked(), topics) == [OffsetRange(tp, -2, -1) for tp in (A0, A1, A2)]
    assert topics.looks == 0


def test_offsets_by_partition_are_used_as_they_are() -> None:
    assert ranges(
        startingOffsets={"a": {"0": 5, "1": -2, "2": 3}},
        endingOffsets={"a": {"0": -1, "1": 0, "2": 7}},
    ) == [OffsetRange(A0, 5, LATEST), OffsetRange(A1, EARLIEST, 0), OffsetRange(A2, 3, 7)]


def test_ranges_that_must_stay_empty_are_dropped() -> None:
    assert ranges(
        startingOffsets={"a": {"0": 9, "1": 0, "2": 3}},
        endingOffsets={"a": {"0": 9, "1": 0, "2": 4}},
    ) == [OffsetRange(A2, 3, 4)]


@pytest.mark.parametrize(
    ("named", "words"),
    [
        pytest.param({"a": {"0": 5}}, "a-0", id="one too few"),
        pytest.param(
            {"a": {"0": 5, "1": 0, "2": 0}, "b": {"0": 3}}, "a-0, a-1, a-2, b-0", id="one too many"
        ),
        pytest.param({}, "none", id="none"),
    ],
)
@pytest.mark.parametrize(
    "option",
    ["startingOffsets", "endingOffsets", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp"],
)
def test_json_must_name_exactly_the_partitions_that_are_read(
    option: str, named: dict[str, dict[str, int]], words: str
) -> None:
    with pytest.raises(ConfigError) as error:
        ranges(**{option: named})

    hint = {
        "startingOffsets": "; use -2 for earliest",  # a batch starts nowhere else
        "endingOffsets": "; use -1 for latest",
    }.get(option, "")
    assert str(error.value) == (
        f"option {option!r} must name exactly the partitions that are read; it names: {words}; "
        f"read are: a-0, a-1, a-2{hint}"
    )


def test_a_stream_that_names_other_partitions_is_told_both_numbers_that_stand_for_words() -> None:
    given = parse_stream_read_options(
        _texts({"path": "/data", "subscribe": "a", "startingOffsets": {"a": {"0": 5}}})
    )
    with pytest.raises(ConfigError, match=r"; use -2 for earliest and -1 for latest$"):
        planning.initial_offsets(given, some_topics())


def test_a_word_for_a_topic_stands_for_each_of_its_partitions_that_is_read() -> None:
    assert ranges(
        subscribePattern="^[ab]$",
        startingOffsets={"a": "earliest", "b": {"0": 3}},
        endingOffsets={"a": {"0": 9, "1": 0, "2": -1}, "b": "latest"},
    ) == [
        OffsetRange(A0, EARLIEST, 9),
        OffsetRange(A1, EARLIEST, 0),
        OffsetRange(A2, EARLIEST, LATEST),
        OffsetRange(B0, 3, LATEST),
    ]
    assert ranges(assign={"a": [2]}, startingOffsets={"a": "earliest"}) == [
        OffsetRange(A2, EARLIEST, LATEST)
    ]


@pytest.mark.parametrize(
    ("named", "words"),
    [
        pytest.param({"a": "earliest", "c": "earliest"}, "a-0, a-1, a-2, c", id="one too many"),
        pytest.param({"b": "earliest"}, "b", id="another"),
    ],
)
def test_a_word_for_a_topic_that_is_not_read_is_refused(named: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=f"it names: {words}; read are: a-0, a-1, a-2; use -2"):
        ranges(startingOffsets=named)


@pytest.mark.parametrize(
    ("start", "end", "lonely"),
    [
        pytest.param({"a": "earliest"}, {"b": "latest"}, "a, b", id="words"),
        pytest.param({"a": "earliest", "b": {"0": 3}}, {"a": "latest"}, "b-0", id="partitions"),
    ],
)
def test_start_and_end_name_the_same_topics(
    start: dict[str, Any], end: dict[str, Any], lonely: str
) -> None:
    with pytest.raises(ConfigError, match=f"only one of them names {lonely}$"):
        asked(startingOffsets=start, endingOffsets=end)


@pytest.mark.parametrize("offset", [pytest.param(4, id="below"), pytest.param(21, id="above")])
@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_the_error_for_an_offset_outside_the_log_names_the_option(option: str, offset: int) -> None:
    with pytest.raises(OffsetOutOfRangeError) as error:
        ranges(assign={"a": [0]}, **{option: {"a": {"0": offset}}})

    found = error.value
    assert (found.option, found.topic_partition, found.offset) == (option, "a-0", offset)
    assert (found.log_start_offset, found.log_end_offset) == (5, 20)
    assert str(found) == (
        f"option {option!r}: offset {offset} of a-0 is out of range: the log holds offsets 5 to 20 "
        "(exclusive)"
    )


@pytest.mark.parametrize("offset", [5, 20], ids=["log start", "high watermark"])
def test_an_offset_at_the_edge_of_the_log_is_accepted(offset: int) -> None:
    planned = ranges(assign={"a": [0]}, startingOffsets={"a": {"0": offset}})

    assert planned == [OffsetRange(A0, offset, LATEST)]


def test_an_offset_outside_the_log_is_a_warning_if_data_loss_is_accepted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        planned = ranges(assign={"a": [0]}, startingOffsets={"a": {"0": 4}}, failOnDataLoss="false")

    assert planned == [OffsetRange(A0, 4, LATEST)]
    assert "offset 4 of a-0 is out of range" in caplog.text


# Times.


def test_times_by_partition_are_inclusive_at_the_start_and_exclusive_at_the_end() -> None:
    assert ranges(
        assign={"a": [0, 2]},
        startingOffsetsByTimestamp={"a": {"0": 1007, "2": 0}},
        endingOffsetsByTimestamp={"a": {"0": 1010, "2": 1002}},
    ) == [OffsetRange(A0, 7, 10), OffsetRange(A2, 0, 2)]


def test_one_time_applies_to_every_partition() -> None:
    assert ranges(assign={"a": [0, 2]}, startingTimestamp=1006, endingTimestamp=1010) == [
        OffsetRange(A0, 6, 10),
        OffsetRange(A2, 6, 7),
    ]


@pytest.mark.parametrize(
    ("options", "planned"),
    [
        pytest.param(
            {"startingTimestamp": 1007, "endingOffsets": {"a": {"0": 9}}}, (7, 9), id="time, offset"
        ),
        pytest.param(
            {"startingOffsets": {"a": {"0": 6}}, "endingTimestamp": 1009}, (6, 9), id="offset, time"
        ),
        pytest.param({"startingTimestamp": 1007}, (7, LATEST), id="time alone, to latest"),
        pytest.param({"endingTimestamp": 1007}, (EARLIEST, 7), id="from earliest, to a time"),
    ],
)
def test_one_bound_may_be_a_time_and_the_other_an_offset(
    options: dict[str, Any], planned: tuple[int, int]
) -> None:
    assert ranges(assign={"a": [0]}, **options) == [OffsetRange(A0, *planned)]


@pytest.mark.parametrize("strategy", [None, "error", "ERROR"])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("startingTimestamp", 2**63 - 1),
        ("startingOffsetsByTimestamp", {"a": {"0": 1000, "1": 0, "2": 1000}}),
    ],
)
def test_a_start_later_than_all_records_is_an_error(
    option: str, value: Any, strategy: str | None
) -> None:
    options = {} if strategy is None else {"startingOffsetsByTimestampStrategy": strategy}
    with pytest.raises(ConfigError) as error:
        ranges(**{option: value}, **options)

    assert "No offset matched from request of topic-partition a-" in str(error.value)
    assert repr(option) in str(error.value)
    assert "startingOffsetsByTimestampStrategy" in str(error.value)


def test_with_strategy_latest_a_start_later_than_all_records_is_the_end_of_the_partition() -> None:
    assert ranges(startingTimestamp=1010, startingOffsetsByTimestampStrategy="latest") == [
        OffsetRange(A0, 10, LATEST),
        OffsetRange(A1, 0, LATEST),
        OffsetRange(A2, 7, LATEST),
    ]


def test_an_end_later_than_all_records_is_the_end_of_the_partition() -> None:
    assert ranges(assign={"a": [0, 2]}, endingTimestamp=2**63 - 1) == [
        OffsetRange(A0, EARLIEST, 20),
        OffsetRange(A2, EARLIEST, 7),
    ]


def test_times_are_looked_up_before_the_end_for_the_isolation_level() -> None:
    topics = TopicsInMemory({A0: ALog(0, 9, stable=6)})
    for isolation, end in (("read_committed", 6), ("read_uncommitted", 9)):
        options = {"endingTimestamp": 100, "isolation.level": isolation}
        assert planning.ranges(asked(**options), topics) == [OffsetRange(A0, EARLIEST, end)]
        options = {"startingTimestamp": 6, "isolation.level": isolation}
        if end == 9:
            assert planning.ranges(asked(**options), topics) == [OffsetRange(A0, 6, LATEST)]
        else:
            with pytest.raises(ConfigError, match="No offset matched"):
                planning.ranges(asked(**options), topics)


def test_all_offsets_are_looked_up_in_one_snapshot() -> None:
    topics = some_topics()
    planning.ranges(asked(subscribe="a,b", startingTimestamp=0, startingOffsetsByTimestampStrategy="latest", endingTimestamp=9), topics)  # fmt: skip

    assert topics.looks == 1


def test_a_start_that_resolves_to_an_offset_past_its_end_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        ranges(assign={"a": [2]}, startingOffsets={"a": {"2": 3}}, endingTimestamp=1001)

    assert str(error.value) == (
        "option 'startingOffsets': the resolved start offset 3 is greater than the resolved end "
        "offset 1, of 'endingTimestamp', for topic a partition 2"
    )


# Where a stream starts.


@pytest.mark.parametrize(
    ("options", "initial"),
    [
        pytest.param({}, (20, 7), id="latest"),
        pytest.param({"startingOffsets": "earliest"}, (5, 0), id="earliest"),
        pytest.param({"startingOffsets": {"a": {"0": -1, "2": 3}}}, (20, 3), id="offsets"),
        pytest.param({"startingOffsets": {"a": {"0": -2, "2": -1}}}, (5, 7), id="sentinels"),
        pytest.param({"startingTimestamp": 1006}, (6, 6), id="time"),
        pytest.param(
            {"startingOffsetsByTimestamp": {"a": {"0": 0, "2": 1001}}}, (5, 1), id="times"
        ),
    ],
)
def test_a_stream_starts_at_offsets_of_one_snapshot(
    options: dict[str, Any], initial: tuple[int, int]
) -> None:
    topics = some_topics()
    given = parse_stream_read_options(_texts({"path": "/data", "assign": {"a": [0, 2]}, **options}))

    assert planning.initial_offsets(given, topics) == dict(zip((A0, A2), initial, strict=True))
    assert topics.looks == 1


# Late binding.


@pytest.mark.parametrize(
    ("whole", "resolved"),
    [
        pytest.param((EARLIEST, LATEST), (5, 20), id="everything"),
        pytest.param((7, LATEST), (7, 20), id="to latest"),
        pytest.param((EARLIEST, 9), (5, 9), id="from earliest"),
        pytest.param((7, 9), (7, 9), id="numbers"),
        pytest.param((20, LATEST), (20, 20), id="an empty range"),
    ],
)
def test_resolve_replaces_earliest_and_latest_with_offsets(
    whole: tuple[int, int], resolved: tuple[int, int]
) -> None:
    wanted = OffsetRange(A0, *whole)

    assert planning.resolve(wanted, wanted, 5, 20, FAIL, unknown) == OffsetRange(A0, *resolved)


@pytest.mark.parametrize(
    "whole",
    [pytest.param((21, LATEST), id="past the end"), pytest.param((EARLIEST, 4), id="before it")],
)
def test_resolving_deleted_records_is_data_loss(
    whole: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    wanted = OffsetRange(A0, *whole)
    with pytest.raises(
        DataLossError, match="available: offsets 5 to 20, which option 'failOn"
    ) as error:
        planning.resolve(wanted, wanted, 5, 20, FAIL, unknown)
    assert error.value.asked.startswith("a-0 from offset ")

    with caplog.at_level(logging.WARNING):
        _, start, end = planning.resolve(wanted, wanted, 5, 20, DataLoss(fail=False), unknown)
    assert start == end
    assert "a-0 from offset" in caplog.text


@pytest.mark.parametrize(
    ("earliest", "latest", "pieces"),
    [
        pytest.param(0, 30, [(0, 10), (10, 20), (20, 30)], id="as it was planned"),
        pytest.param(5, 40, [(5, 10), (10, 20), (20, 40)], id="both ends moved on"),
        pytest.param(15, 40, [(15, 15), (15, 20), (20, 40)], id="a piece is gone"),
        pytest.param(35, 40, [(35, 35), (35, 35), (35, 40)], id="all planned records are gone"),
        pytest.param(0, 12, [(0, 10), (10, 12), (12, 12)], id="shorter than it was"),
        pytest.param(0, 0, [(0, 0), (0, 0), (0, 0)], id="empty"),
    ],
)
def test_pieces_of_a_late_bound_range_cover_all_records_at_the_time_of_the_read(
    earliest: int, latest: int, pieces: list[tuple[int, int]]
) -> None:
    planned = OffsetRange(A0, EARLIEST, LATEST)
    cuts = [(EARLIEST, 10), (10, 20), (20, LATEST)]
    found = [
        planning.resolve(OffsetRange(A0, *cut), planned, earliest, latest, FAIL, unknown)
        for cut in cuts
    ]

    assert found == [OffsetRange(A0, *piece) for piece in pieces]
