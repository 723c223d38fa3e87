"""Streaming queries when records that they have not read are gone."""

from __future__ import annotations

import pytest

from spark_kbatch.errors import DataLossError, UnknownTopicOrPartitionError
from tests.support.numbered_topics import FakeTopics, log
from tests.support.stream_queries import Query


def ensure_fails_then_goes_on(
    query: Query, message: str, expected: dict[str, tuple[int, int]] | None
) -> None:
    with pytest.raises(DataLossError, match=message) as error:
        query.batch()
    assert "failOnDataLoss" in str(error.value)

    query.restart(failOnDataLoss="false")
    assert query.batch() == expected


def test_a_recreated_topic_is_data_loss_and_then_read_from_its_start() -> None:
    """Even if it is longer than the old one, so that only its id tells them apart."""
    topics = FakeTopics(a=[log(3)])
    query = Query(topics)
    query.batch()
    topics.delete("a")
    topics.create("a", log(7))

    ensure_fails_then_goes_on(
        query, "a-0 from offset 3.*deleted and created again", {"a-0": (0, 7)}
    )


def test_the_limit_for_a_recreated_topic_counts_from_its_log_start() -> None:
    topics = FakeTopics(a=[log(10)])
    query = Query(topics, failOnDataLoss="false")
    query.batch()
    topics.create("a", log(30))
    query.restart(maxOffsetsPerTrigger=5)

    assert query.batch() == {"a-0": (0, 5)}


def test_a_topic_recreated_before_its_first_batch_is_read_from_its_start() -> None:
    topics = FakeTopics(a=[log(5)])
    query = Query(topics, startingOffsets="latest", failOnDataLoss="false")
    query.start()
    topics.create("a", log(7))
    query.next_end()
    query.restart()

    assert query.batch() == {"a-0": (0, 7)}


def test_a_topic_recreated_after_a_batch_was_logged_is_data_loss() -> None:
    topics = FakeTopics(a=[log(3)])
    query = Query(topics)
    query.batch()
    topics.append("a-0", 2)
    query.next_end()
    topics.delete("a")
    topics.create("a", log(7))

    ensure_fails_then_goes_on(query, "topic-partitions a-0 .*they are gone", {})
    assert query.batch() == {"a-0": (0, 7)}


def test_a_log_that_ends_before_the_querys_offset_is_data_loss() -> None:
    """It may be a broker's log whose topic has no id, or one whose end was lost."""
    topics = FakeTopics(a=[log(3)])
    topics.ids["a"] = ""
    query = Query(topics)
    query.batch()
    topics.logs["a"] = [log(2)]

    ensure_fails_then_goes_on(query, "a-0 .*offset was changed from 3 to 2", {})
    topics.append("a-0", 2)
    assert query.batch() == {"a-0": (2, 4)}


def test_a_deleted_topic_of_a_pattern_is_data_loss_and_then_left_out() -> None:
    topics = FakeTopics(a1=[log(3)], a2=[log(3)])
    query = Query(topics, subscribe=None, subscribePattern="a.*")
    query.batch()
    topics.delete("a1")
    topics.append("a2-0", 1)

    ensure_fails_then_goes_on(
        query, "a1-0 .*gone.*available: topic-partitions a2-0", {"a2-0": (3, 4)}
    )
    topics.create("a3", log(1))
    assert query.batch() == {"a3-0": (0, 1)}


def test_a_topic_that_the_options_leave_out_since_a_restart_is_not_called_gone() -> None:
    topics = FakeTopics(a=[log(3)], b=[log(3)], c=[log(3)])
    query = Query(topics, subscribe="a,b,c")
    query.batch()
    topics.append("b-0", 1)
    topics.delete("c")
    topics.create("c", log(9))
    query.restart(subscribe="b")

    left_out = "cannot be read: .* options of this run leave them out"
    with pytest.raises(DataLossError, match=f"topic-partitions a-0 {left_out}"):
        query.batch()
    query.topics.ids["c"] = ""
    ensure_fails_then_goes_on(query, f"topic-partitions a-0, c-0 {left_out}", {"b-0": (3, 4)})


def test_a_topic_that_was_recreated_and_then_left_out_is_called_gone() -> None:
    topics = FakeTopics(a=[log(3)], b=[log(3)])
    query = Query(topics, subscribe="a,b")
    query.batch()
    topics.create("b", log(9))
    query.restart(subscribe="a")

    ensure_fails_then_goes_on(query, "topic-partitions b-0 cannot be read: they are gone", {})


def test_a_topic_that_is_named_again_after_a_run_without_it_is_read_on() -> None:
    topics = FakeTopics(a=[log(3)], b=[log(3)])
    query = Query(topics, subscribe="a,b")
    query.batch()
    query.restart(subscribe="b")
    with pytest.raises(DataLossError, match="name them again"):
        query.batch()

    query.restart(subscribe="a,b")
    topics.append("b-0", 1)
    assert query.batches() == [{"b-0": (3, 4)}]


def a_query_that_has_logged_an_end_without_a() -> Query:
    """Return a query that has read 3 records of each `a` and `b`, and was stopped in its next batch."""
    topics = FakeTopics(a=[log(3)], b=[log(3)])
    query = Query(topics, subscribe="a,b")
    query.batch()
    topics.append("a-0", 2)
    topics.append("b-0", 1)
    query.restart(subscribe="b", failOnDataLoss="false").next_end()
    return query


@pytest.mark.parametrize("fail", ["true", "false"], ids=["loss-fails", "loss-is-accepted"])
def test_a_topic_that_a_logged_end_leaves_out_is_read_on_when_it_is_named_again(fail: str) -> None:
    query = a_query_that_has_logged_an_end_without_a()
    query.restart(subscribe="a,b", failOnDataLoss=fail)

    assert [query.batch(), query.batch()] == [{"b-0": (3, 4)}, {}]
    query.restart()
    assert query.batches() == [{"a-0": (3, 5)}]


def test_a_run_that_dies_after_it_has_logged_what_it_named_again_reads_nothing_twice() -> None:
    query = a_query_that_has_logged_an_end_without_a()
    query.restart(subscribe="a,b")
    assert query.batch() == {"b-0": (3, 4)}
    query.next_end()

    query.restart()
    assert query.batch() == {}
    assert query.batches() == [{"a-0": (3, 5)}]


def test_a_topic_that_is_deleted_after_it_was_named_again_is_left_out() -> None:
    query = a_query_that_has_logged_an_end_without_a()
    query.restart(subscribe="a,b", failOnDataLoss="false")
    assert [query.batch(), query.batch()] == [{"b-0": (3, 4)}, {}]

    query.topics.delete("a")
    assert query.batches() == [{}]


def test_a_deleted_subscribed_topic_fails_the_query_unless_loss_is_accepted() -> None:
    topics = FakeTopics(a=[log(3)], b=[log(3)])
    query = Query(topics, subscribe="a,b")
    query.batch()
    topics.delete("a")
    with pytest.raises(UnknownTopicOrPartitionError, match="'subscribe'"):
        query.batch()

    query.restart(failOnDataLoss="false")
    topics.append("b-0", 1)
    assert query.batch() == {"b-0": (3, 4)}
    topics.create("a", log(1))
    assert query.batch() == {"a-0": (0, 1)}


def test_there_is_no_batch_if_no_topic_is_left() -> None:
    topics = FakeTopics(a=[log(3)])
    query = Query(topics, subscribe=None, subscribePattern="a", failOnDataLoss=False)
    query.batch()
    before = query.committed
    topics.delete("a")

    assert query.batch() is None
    assert query.committed == before


def test_a_new_partition_that_has_lost_its_first_records_is_data_loss() -> None:
    topics = FakeTopics(a=[log(3)])
    query = Query(topics)
    query.batch()
    topics.logs["a"].append(log(9, start=4))

    ensure_fails_then_goes_on(
        query, "new partition a-1 from offset 0.*starts at 4", {"a-1": (4, 9)}
    )


def test_a_new_partition_whose_records_are_gone_is_read_no_further_than_planned() -> None:
    topics = FakeTopics(a=[log(3)])
    query = Query(topics, failOnDataLoss=False)
    query.batch()
    topics.logs["a"].append(log(4))
    query.next_end()
    topics.logs["a"][1] = log(9, start=6)
    query.restart()

    assert query.batch() == {}
