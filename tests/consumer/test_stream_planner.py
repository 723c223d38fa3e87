"""Planning of a streaming query's micro-batches, over logs that are only offsets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kbatch.consumer.stream_planner import StreamOffset
from spark_kbatch.errors import (
    ConfigError,
    DataLossError,
    KafkaStorageError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import TopicPartition
from tests.support.numbered_topics import ALog, FakeTopics, log, tp
from tests.support.stream_queries import Query

MINUTE = 60_000


# Where a query starts.


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        pytest.param({"startingOffsets": None}, (20, 7), id="latest by default"),
        pytest.param({"startingOffsets": "laTest"}, (20, 7), id="latest"),
        pytest.param({"startingOffsets": "earLiEst"}, (5, 0), id="earliest"),
        pytest.param({"startingOffsets": '{"a":{"0":-2,"1":-1}}'}, (5, 7), id="sentinels"),
        pytest.param({"startingOffsets": '{"a":{"0":9,"01":0}}'}, (9, 0), id="numbers"),
        pytest.param({"startingTimestamp": "7"}, (7, 7), id="one time"),
        pytest.param({"startingOffsetsByTimestamp": '{"a":{"0":19,"1":0}}'}, (19, 0), id="times"),
    ],
)
def test_a_query_starts_where_the_options_say(
    options: dict[str, Any], offsets: tuple[int, int]
) -> None:
    topics = FakeTopics(a=[log(20, start=5), log(7)])
    if "startingTimestamp" in options:
        options = options | {"startingOffsetsByTimestampStrategy": "latest"}
    query = Query(topics, **options)

    assert query.start()["a"] == {"0": offsets[0], "1": offsets[1]}


def test_the_start_of_a_query_stays_fixed_while_records_arrive() -> None:
    """Spark asks for the start both before and after it asks for the end."""
    topics = FakeTopics(a=[log(20)])
    query = Query(topics, startingOffsets="latest")
    before = query.start()
    topics.append("a-0", 5)

    assert query.start() == before
    assert query.batch() == {"a-0": (20, 25)}


def test_a_time_later_than_all_records_is_an_error_or_the_end_of_the_partition() -> None:
    """With strategy `latest`, records that are written later are read."""
    topics = FakeTopics(a=[log(20), log(7)])
    query = Query(topics, startingTimestamp=10)
    with pytest.raises(ConfigError, match=r"No offset matched .* a-1 .*startingTimestamp"):
        query.next_end()

    query.restart(startingOffsetsByTimestampStrategy="latest")
    assert query.batch() == {"a-0": (10, 20)}
    topics.append("a-1", 2)
    assert query.batch() == {"a-1": (7, 9)}


def test_starting_offsets_must_name_exactly_the_partitions_read() -> None:
    query = Query(FakeTopics(a=[log(20), log(7)]), startingOffsets='{"a":{"0":1}}')

    with pytest.raises(ConfigError, match="must name exactly the partitions"):
        query.next_end()


def test_a_query_can_start_from_an_offset_that_another_reported() -> None:
    topics = FakeTopics(a=[log(20), log(7)])
    first = Query(topics, maxOffsetsPerTrigger=9)
    first.batch()
    second = Query(topics, startingOffsets=json.dumps(first.committed))

    assert second.start()["a"] == first.start()["a"] == {"0": 6, "1": 2}


@pytest.mark.parametrize("offset", [4, 21], ids=["below", "above"])
def test_a_starting_offset_outside_the_log_is_data_loss(
    offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    topics = FakeTopics(a=[log(20, start=5)])
    query = Query(topics, startingOffsets=json.dumps({"a": {"0": offset}}))
    with pytest.raises(OffsetOutOfRangeError, match=r"startingOffsets.*offsets 5 to 20"):
        query.next_end()

    query.restart(failOnDataLoss=False)
    query.batch()
    topics.append("a-0", 3)
    assert query.batch() == {"a-0": (20, 23)}
    assert f"offset {offset} of a-0 is out of range" in caplog.text


def test_the_error_for_an_unknown_topic_names_the_option() -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match=r"'subscribe'.*'nowhere'"):
        Query(FakeTopics(), subscribe="nowhere").next_end()


def test_assigned_partitions_that_do_not_exist_are_left_out() -> None:
    query = Query(FakeTopics(a=[log(2)]), subscribe=None, assign='{"a":[0,5]}')

    assert query.start()["a"] == {"0": 0}


# From one micro-batch to the next.


def test_every_record_is_read_once_over_batches_and_restarts() -> None:
    topics = FakeTopics(a=[log(3), log(1)])
    query = Query(topics)

    assert query.batch() == {"a-0": (0, 3), "a-1": (0, 1)}
    assert query.batch() is None
    topics.append("a-1", 4)
    assert query.batch() == {"a-1": (1, 5)}
    query.restart()
    assert query.batch() is None, "a restart repeats nothing"
    topics.append("a-0", 2)
    query.restart()
    assert query.batch() == {"a-0": (3, 5)}, "records written while the query was stopped are read"


def test_an_uncommitted_batch_is_planned_again_unchanged() -> None:
    topics = FakeTopics(a=[log(3)])
    query = Query(topics)
    query.batch()
    topics.append("a-0", 2)
    query.next_end()
    topics.append("a-0", 7)
    query.restart()

    assert query.batch() == {"a-0": (3, 5)}
    assert query.batch() == {"a-0": (5, 12)}


def test_a_first_batch_planned_again_has_the_same_start() -> None:
    """Spark asks for the initial offset again, and `latest` has moved on by then."""
    topics = FakeTopics(a=[log(3), log(0)])
    query = Query(topics, startingOffsets="latest")
    query.start()
    topics.append("a-0", 2)
    query.next_end()
    topics.append("a-0", 7)
    topics.append("a-1", 1)
    query.restart()

    assert query.batch() == {"a-0": (3, 5)}
    assert query.batch() == {"a-0": (5, 12), "a-1": (0, 1)}


@pytest.mark.parametrize("available_now", [False, True])
def test_a_first_batch_is_planned_again_though_the_options_no_longer_tell_its_start(
    available_now: bool,
) -> None:
    """The offsets in the options must name exactly the partitions, and there is one more by then."""
    topics = FakeTopics(a=[log(3)])
    query = Query(topics, startingOffsets='{"a":{"0":1}}')
    query.next_end()
    topics.logs["a"].append(log(1))
    query.restart()
    if available_now:
        query.planner.prepare_for_available_now()

    assert query.batches() == [{"a-0": (1, 3)}, {"a-1": (0, 1)}]


def test_a_first_batch_of_sparks_connector_is_not_planned_from_an_unknown_start() -> None:
    """Its end does not say where the query started."""
    topics = FakeTopics(a=[log(3), log(1)])
    query = Query(topics, startingOffsets='{"a":{"0":1}}')
    query.logged = {"a": {"0": 3}}

    with pytest.raises(ConfigError, match="must name exactly the partitions"):
        query.batch()


def test_a_first_batch_without_data_planned_again_loses_nothing() -> None:
    topics = FakeTopics(a=[log(3)])
    query = Query(topics, startingOffsets="latest")
    query.next_end()
    topics.append("a-0", 2)
    query.restart()

    assert query.batch() == {}
    assert query.batch() == {"a-0": (3, 5)}


def test_the_start_of_a_query_is_forgotten_once_the_query_has_moved_on() -> None:
    topics = FakeTopics(a=[log(3)])
    query = Query(topics, startingOffsets="latest")
    ends = []
    for count in (0, 2, 2):
        topics.append("a-0", count)
        query.batch()
        ends.append(query.start()["@kbatch"].get("initial"))

    assert ends == [{"a": {"0": 3}}, {"a": {"0": 3}}, None]


def test_without_new_data_the_offset_has_the_same_text() -> None:
    """For any other text Spark would run an empty batch."""
    topics = FakeTopics(b=[log(1)], a=[log(1) for _ in range(12)])
    query = Query(topics, subscribe="b,a")
    query.batch()

    assert query.next_end() is None


def test_new_partitions_of_a_topic_are_read_from_their_start() -> None:
    topics = FakeTopics(a=[log(3)])
    query = Query(topics, startingOffsets="latest")
    query.batch()
    topics.logs["a"] += [log(4), log(0)]
    topics.append("a-0", 1)

    assert query.batch() == {"a-0": (3, 4), "a-1": (0, 4)}
    topics.append("a-2", 1)
    assert query.batch() == {"a-2": (0, 1)}


def test_a_new_topic_that_matches_the_pattern_is_read_from_its_start() -> None:
    topics = FakeTopics(orders=[log(3)], __orders=[log(9)], other=[log(9)])
    query = Query(topics, subscribe=None, subscribePattern="ord", startingOffsets="latest")
    query.batch()
    topics.create("orders-eu", log(2))
    topics.create("more-orders", log(1))

    assert query.batch() == {"orders-eu-0": (0, 2), "more-orders-0": (0, 1)}


def test_a_pattern_that_matches_nothing_waits_for_a_topic() -> None:
    """Only one batch is planned without partitions."""
    topics = FakeTopics()
    query = Query(topics, subscribe=None, subscribePattern="ord")

    assert query.batch() == {}
    assert query.committed != {}
    assert query.batch() is None
    topics.create("orders", log(3))
    assert query.batch() == {"orders-0": (0, 3)}


def test_a_topic_subscribed_to_on_restart_is_read_from_its_start() -> None:
    query = Query(FakeTopics(a=[log(3)], b=[log(2)]), startingOffsets="latest")
    query.batch()
    query.restart(subscribe="a,b")

    assert query.batch() == {"b-0": (0, 2)}


# Limits.


def test_the_limit_holds_over_batches_and_restarts_unless_spark_asks_for_everything() -> None:
    topics = FakeTopics(a=[log(101), log(11), log(1)])
    query = Query(topics, maxOffsetsPerTrigger=10)

    assert query.batch() == {"a-0": (0, 8), "a-1": (0, 1), "a-2": (0, 1)}
    assert query.batch() == {"a-0": (8, 17), "a-1": (1, 2)}
    query.restart()
    assert query.batch() == {"a-0": (17, 26), "a-1": (2, 3)}
    assert query.batch(limited=False) == {"a-0": (26, 101), "a-1": (3, 11)}


def test_the_limit_for_new_partitions_counts_from_their_log_start() -> None:
    topics = FakeTopics(a=[log(0)])
    query = Query(topics, maxOffsetsPerTrigger=10, failOnDataLoss=False)
    query.batch()
    topics.logs["a"] += [log(1000, start=990), log(10)]

    assert query.batch() == {"a-1": (990, 995), "a-2": (0, 5)}


def test_a_batch_waits_for_enough_offsets_or_for_the_delay() -> None:
    topics = FakeTopics(a=[log(5)])
    query = Query(topics, minOffsetsPerTrigger=15, maxTriggerDelay="5s")

    assert query.batch() == {"a-0": (0, 5)}, "the first batch does not wait"
    topics.append("a-0", 14)
    assert query.batch() is None
    topics.append("a-0", 1)
    assert query.batch() == {"a-0": (5, 20)}
    topics.append("a-0", 1)
    assert query.batch() is None
    query.now_ms += 5_000
    assert query.batch() == {"a-0": (20, 21)}
    topics.append("a-0", 1)
    assert query.batch(limited=False) == {"a-0": (21, 22)}


def test_minimum_and_maximum_offsets_per_trigger_can_be_combined() -> None:
    topics = FakeTopics(a=[log(50)])
    query = Query(topics, minOffsetsPerTrigger=15, maxOffsetsPerTrigger=20, maxTriggerDelay="15m")

    assert [query.batch() for _ in range(3)] == [{"a-0": (0, 20)}, {"a-0": (20, 40)}, None]
    query.now_ms += 15 * MINUTE
    assert query.batch() == {"a-0": (40, 50)}


# Up to what is available now.


def test_available_now_reads_in_limited_batches_up_to_what_it_found_and_ends() -> None:
    """Even if fewer offsets are left than a batch would wait for."""
    topics = FakeTopics(a=[log(13)])
    query = Query(topics, maxOffsetsPerTrigger=5, minOffsetsPerTrigger=5, maxTriggerDelay="1h")
    query.planner.prepare_for_available_now()
    found = [query.batch()]
    topics.append("a-0", 100)
    topics.logs["a"].append(log(3))

    assert found + query.batches() == [{"a-0": (0, 5)}, {"a-0": (5, 10)}, {"a-0": (10, 13)}]
    query.restart(maxOffsetsPerTrigger=None).planner.prepare_for_available_now()
    assert query.batches() == [{"a-0": (13, 113), "a-1": (0, 3)}]


def an_available_now_query(*logs: ALog, **options: Any) -> Query:
    """Return a query that accepts data loss, after its first batch, of 5 offsets."""
    topics = FakeTopics(a=list(logs))
    query = Query(topics, maxOffsetsPerTrigger=5, failOnDataLoss=False, **options)
    query.planner.prepare_for_available_now()
    query.batch()
    return query


def test_available_now_fails_where_partitions_get_lost_between_batches() -> None:
    query = an_available_now_query(log(15))
    query.topics.delete("a")

    with pytest.raises(DataLossError, match=r"a-0 .*have been lost; available: no topic"):
        query.batch()


def test_available_now_fails_where_a_topic_is_recreated_between_batches() -> None:
    query = an_available_now_query(log(15))
    query.topics.create("a", log(20))

    with pytest.raises(DataLossError, match=r"a-0 .*have been lost"):
        query.batch()


def test_available_now_fails_where_offsets_shrink_between_batches() -> None:
    query = an_available_now_query(log(15))
    query.topics.logs["a"] = [log(9)]

    with pytest.raises(DataLossError, match="available offset which is less than its end"):
        query.batch()


def test_available_now_fails_on_an_end_that_is_not_its_own() -> None:
    query = an_available_now_query(log(15))
    start = StreamOffset.from_json(query.start())
    for offsets in ({tp("a-0"): 16}, {tp("a-0"): 15, tp("a-1"): 0}):
        with pytest.raises(DataLossError, match="what is available now"):
            query.planner.plan(query.start(), StreamOffset(offsets, start.ids).to_json())


def test_available_now_repeats_a_batch_of_an_earlier_run_unchanged() -> None:
    """It was planned before the run found what is available, with fewer partitions."""
    topics = FakeTopics(a=[log(15)])
    query = Query(topics)
    query.next_end()
    topics.logs["a"].append(log(3))
    query.restart().planner.prepare_for_available_now()

    assert query.batches() == [{"a-0": (0, 15)}, {"a-1": (0, 3)}]


# Committed reads.


def test_committed_reads_end_before_open_transactions() -> None:
    topics = FakeTopics(a=[log(15, undecided=5)])

    assert Query(topics).batch() == {"a-0": (0, 10)}
    uncommitted = Query(topics, **{"kafka.isolation.level": "READ_UNCOMMITTED"})
    assert uncommitted.batch() == {"a-0": (0, 15)}


def test_a_query_switched_to_committed_reads_waits_at_its_offset() -> None:
    topics = FakeTopics(a=[log(15, undecided=5)])
    query = Query(topics, **{"isolation.level": "read_uncommitted"})
    query.batch()
    query.restart(**{"isolation.level": "read_committed"})

    assert query.batch() is None
    topics.logs["a"] = [log(20, undecided=3)]
    assert query.batch() == {"a-0": (15, 17)}


# Tasks.


@pytest.mark.parametrize(
    ("options", "pieces"),
    [
        pytest.param({}, 1, id="by default"),
        pytest.param({"minPartitions": 1}, 1, id="at least 1"),
        pytest.param({"minPartitions": 4}, 4, id="at least 4"),
        pytest.param({"maxRecordsPerPartition": 30}, 4, id="at most 30 offsets"),
        pytest.param({"maxRecordsPerPartition": 100}, 1, id="at most 100 offsets"),
    ],
)
def test_a_micro_batch_is_split_as_the_options_say(options: dict[str, Any], pieces: int) -> None:
    topics = FakeTopics(a=[log(100)])
    query = Query(topics, **options)
    query.next_end()
    planned = query.plan()

    assert len(planned) == pieces
    assert {one.topic_id for one in planned} == {"id-1"}
    ends = [one.wanted.end for one in planned]
    assert [one.wanted.start for one in planned] == [0, *ends[:-1]]
    assert ends[-1] == 100


# Reports.


def test_an_end_that_is_the_start_is_returned_as_spark_passed_it() -> None:
    """Spark compares texts, and may have written its start in another order."""
    query = Query(FakeTopics(a=[log(3), log(3)]))
    query.batch()
    start = {"@kbatch": query.start()["@kbatch"], "a": {"1": 3, "0": 3}}

    assert query.planner.latest(start) is start


def test_the_latest_offset_is_reported_regardless_of_the_limit() -> None:
    query = Query(FakeTopics(a=[log(20)]), maxOffsetsPerTrigger=5)
    assert query.planner.report_latest() is None
    query.batch()

    assert query.planner.report_latest() == {
        "a": {"0": 20},
        "@kbatch": {"ids": {"a": "id-1"}, "log_ends": True},
    }


# Before 4.2 Spark does not pass its current offset when it asks for the end.


def test_without_a_current_offset_a_new_query_first_reads_everything_and_then_keeps_limits() -> (
    None
):
    topics = FakeTopics(a=[log(20)])
    planner = Query(topics, maxOffsetsPerTrigger=5).planner
    first = planner.latest(None)
    assert [one.wanted[1:] for (one,) in planner.plan(planner.initial(), first)] == [(0, 20)]

    topics.append("a-0", 20)
    second = planner.latest(None)
    assert [one.wanted[1:] for (one,) in planner.plan(first, second)] == [(20, 25)]
    third = planner.latest(None)
    assert [one.wanted[1:] for (one,) in planner.plan(second, third)] == [(25, 30)]


def test_without_a_current_offset_a_restarted_query_goes_on_after_the_last_offset_seen() -> None:
    topics = FakeTopics(a=[log(20)])
    before = Query(topics).planner
    seen = before.latest(None)
    topics.append("a-0", 20)
    planner = Query(topics, maxOffsetsPerTrigger=5, startingOffsets="latest").planner
    assert planner.plan(seen, seen) == []

    assert [one.wanted[1:] for (one,) in planner.plan(seen, planner.latest(None))] == [(20, 40)]


def test_without_a_current_offset_an_available_now_run_starts_at_its_checkpoint() -> None:
    """Restarted or not, such a run asks for the end first, before it knows a start."""
    topics = FakeTopics(a=[log(20)])
    checkpoint = Query(topics, startingOffsets="latest").planner.initial()
    topics.append("a-0", 5)
    planner = Query(topics, startingOffsets="latest").planner

    assert [one.wanted[1:] for (one,) in planner.plan(checkpoint, planner.latest(None))] == [
        (20, 25)
    ]


def test_without_a_current_offset_a_start_that_cannot_be_found_is_an_error_once_spark_asks_for_it() -> (
    None
):
    planner = Query(FakeTopics(a=[log(20)]), startingTimestamp=10**9).planner

    assert planner.latest(None)["a"] == {"0": 20}
    with pytest.raises(ConfigError, match="No offset matched"):
        planner.initial()


def test_without_a_current_offset_a_topic_that_is_named_again_is_read_on() -> None:
    """The first end of a run is logged, also if the options leave out what the query has read."""
    topics = FakeTopics(a=[log(3)], b=[log(3)])
    seen = Query(topics, subscribe="a,b").planner.latest(None)
    topics.append("a-0", 2)
    narrower = Query(topics, subscribe="b").planner
    logged = narrower.latest(None)
    with pytest.raises(DataLossError, match="name them again"):
        narrower.plan(seen, logged)

    planner = Query(topics, subscribe="a,b").planner
    target = planner.latest(None)
    assert planner.plan(seen, logged) == []
    assert [one.wanted for (one,) in planner.plan(logged, target)] == [(tp("a-0"), 3, 5)]


# While topics change.


class ChangingTopics(FakeTopics):
    """Topics of which one is recreated while its logs are looked at, `changes` times."""

    def __init__(self, changes: int) -> None:
        super().__init__(a=[log(3)])
        self.changes = changes

    def views(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, ALog]:
        views = super().views(partitions)
        if self.changes:
            self.changes -= 1
            self.create("a", log(5))
        return views


def test_offsets_are_never_paired_with_another_topics_id() -> None:
    topics = ChangingTopics(changes=3)

    assert Query(topics).start() == {
        "a": {"0": 0},
        "@kbatch": {"ids": {"a": topics.ids["a"]}, "initial": {"a": {"0": 0}}},
    }
    assert Query(topics).planner.latest({})["a"] == {"0": 5}


def test_topics_that_keep_changing_are_an_error() -> None:
    with pytest.raises(KafkaStorageError, match="faster than they can be looked at: a"):
        Query(ChangingTopics(changes=10**6)).next_end()


changes = st.lists(
    st.sampled_from(["append", "append", "grow", "create", "delete", "retain", "restart", "batch"])
    | st.sampled_from(["batch", "logged"]),
    max_size=40,
)


@given(changes, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_a_query_that_accepts_loss_survives_every_change_and_reads_nothing_twice(
    changes: list[str], random: Any
) -> None:
    """The ranges read from a partition of one topic id never go back."""
    topics = FakeTopics(**{"a-0": [log(3)]})
    query = Query(
        topics, subscribe=None, subscribePattern="^a", failOnDataLoss="false",
        maxOffsetsPerTrigger=random.choice([None, 1, 7]),
    )  # fmt: skip
    position: dict[tuple[str, str], int] = {}

    def read_a_batch() -> bool:
        if query.next_end() is None:
            return False
        for (partition, start, end), topic_id in query.plan():
            assert start >= position.get((topic_id, str(partition)), 0)
            assert start < end
            position[topic_id, str(partition)] = end
        query.commit()
        return True

    for change in changes:
        name = random.choice(sorted(topics.logs)) if topics.logs else ""
        if change == "create":
            topics.create(f"a-{random.randrange(3)}", log(random.randrange(5)))
        elif change == "restart":
            query.restart()
        elif change == "logged":
            query.next_end()
        elif change == "batch":
            read_a_batch()
        elif not name:
            continue
        elif change == "append":
            topics.append(f"{name}-{random.randrange(len(topics.logs[name]))}", 4)
        elif change == "grow":
            topics.logs[name].append(log(random.randrange(5)))
        elif change == "delete":
            topics.delete(name)
        else:
            topics.logs[name] = [replace(one, start=one.end) for one in topics.logs[name]]
    while read_a_batch():
        pass
    for name, logs in topics.logs.items():
        for number, found in enumerate(logs):
            end = position.get((topics.ids[name], f"{name}-{number}"), 0)
            assert end == found.end or found.start == found.end
