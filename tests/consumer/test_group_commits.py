"""Commits of how far a query has read, with a group whose place is slow or refuses."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from spark_kbatch.consumer import group_commits
from spark_kbatch.consumer.group_commits import AGAIN_MS, RETRY_MS, GroupCommits
from spark_kbatch.errors import ApiError, GroupNotEmptyError
from spark_kbatch.model import ConsumerGroup, TopicPartition
from tests.support.numbered_topics import FakeTopics, log
from tests.support.stream_queries import Query

T = TopicPartition("t", 0)


class Place:
    """A place of groups that keeps what is committed; `now_ms` is its clock."""

    def __init__(self) -> None:
        self.commits: list[tuple[str, dict[TopicPartition, int]]] = []
        self.error: Exception | None = None
        self.tries = 0
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.now_ms = 10**12

    def groups(self) -> list[ConsumerGroup]:
        raise AssertionError

    def delete(self, group_id: str) -> None:
        raise AssertionError

    def alter_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        self.tries += 1
        assert self.may_answer.wait(60)
        if self.error is not None:
            raise self.error
        self.commits.append((group_id, dict(offsets)))

    def offsets(self) -> list[int]:
        return [found[T] for _, found in self.commits]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(group_commits, "WAIT_S", 60.0)  # a test's machine may be slow
    return Place()


def commits(place: Place, pause_ms: int = 0) -> GroupCommits:
    return GroupCommits("app", lambda: place, lambda: place.now_ms, pause_ms=pause_ms)


def test_offsets_are_committed_before_the_call_returns_and_only_when_they_change(
    place: Place,
) -> None:
    one = commits(place)
    for offset in (3, 3, 5, 5):
        one.commit({T: offset})
    one.commit({})

    assert place.commits == [("app", {T: 3}), ("app", {T: 5})]


def test_unchanged_offsets_are_committed_again_each_hour(place: Place) -> None:
    one = commits(place)
    one.commit({T: 3})
    place.now_ms += AGAIN_MS - 1
    one.commit({T: 3})
    assert place.offsets() == [3]

    place.now_ms += 1
    one.commit({T: 3})
    assert place.offsets() == [3, 3]


def test_a_pause_skips_all_but_the_first_and_the_last_commit(place: Place) -> None:
    one = commits(place, pause_ms=10_000)
    one.commit({T: 1})
    one.commit({T: 2})
    assert place.offsets() == [1]

    place.now_ms += 10_000
    one.commit({T: 3})
    one.commit({T: 4})
    one.commit({T: 5}, is_last=True)
    assert place.offsets() == [1, 3, 5]


def test_while_a_place_does_not_answer_no_call_waits_and_then_the_newest_offsets_are_committed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commits, "WAIT_S", 0.01)
    one = commits(place)
    place.may_answer.clear()
    one.commit({T: 1})
    monkeypatch.setattr(group_commits, "WAIT_S", 60.0)  # what a call would take that waits
    for offset in range(2, 100):
        one.commit({T: offset})
    assert place.tries == 1
    place.may_answer.set()
    one.commit({T: 100}, is_last=True)

    assert place.offsets() == [1, 100]


@pytest.mark.parametrize(
    "error",
    [GroupNotEmptyError("app", "broker:9092"), ApiError(30, "GROUP_AUTHORIZATION_FAILED", "")],
)
def test_a_refusal_is_warned_of_once_and_tried_again_each_minute(
    place: Place, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    one = commits(place)
    place.error = error
    for offset in range(4 * 60):  # a trigger a second, for four minutes
        one.commit({T: offset}, is_last=True)
        place.now_ms += RETRY_MS // 60
    assert place.tries == 4
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert "consumer group 'app' is not told" in warning.message
    assert str(error) in warning.message

    place.error = None
    one.commit({T: 300})
    assert place.offsets() == [300]
    assert "consumer group 'app' is told again" in caplog.messages[-1]


def test_another_kind_of_error_is_warned_of_too(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    one = commits(place)
    for error in (OSError("no such disk"), OSError("still none"), ZeroDivisionError("a fault")):
        place.error = error
        one.commit({T: 1})
        place.now_ms += RETRY_MS

    assert [text.split(": ")[1] for text in caplog.messages] == [
        "no such disk. The query goes on, and tries again each minute",
        "a fault. The query goes on, and tries again each minute",
    ]


# What the planner says is processed.


class Told:
    """What a planner has told, as the offsets of topic a."""

    def __init__(self, query: Query) -> None:
        self.found: list[tuple[dict[str, int], bool]] = []
        self.query = query
        self.attach()

    def attach(self) -> None:
        def note(offsets: Mapping[TopicPartition, int], is_last: bool) -> None:
            self.found.append(({str(tp): offset for tp, offset in offsets.items()}, is_last))

        self.query.planner._on_processed = note

    def last(self) -> Any:
        return self.found[-1]


def test_what_spark_says_it_is_at_is_processed() -> None:
    topics = FakeTopics(a=[log(20)])
    query = Query(topics, maxOffsetsPerTrigger=5)
    told = Told(query)
    query.next_end()
    assert told.last() == ({"a-0": 0}, False)
    query.plan()
    assert told.last() == ({"a-0": 0}, False)
    query.commit()
    query.next_end()
    assert told.last() == ({"a-0": 5}, False)


def test_a_batch_that_is_repeated_is_not_processed_yet() -> None:
    topics = FakeTopics(a=[log(20)])
    query = Query(topics, maxOffsetsPerTrigger=5)
    query.batch()
    query.next_end()
    query.restart()
    told = Told(query)
    query.plan()

    assert told.found == [({"a-0": 5}, False)]


def test_a_first_batch_that_is_repeated_is_told_of_where_it_started_then() -> None:
    """Spark asks for the initial offset again, and `latest` has moved by then."""
    topics = FakeTopics(a=[log(20)])
    query = Query(topics, startingOffsets="latest")
    query.start()
    topics.append("a-0", 5)
    query.next_end()
    topics.append("a-0", 5)
    query.restart()
    told = Told(query)
    query.plan()

    assert query.planner.initial()["a"] == {"0": 30}
    assert told.found == [({"a-0": 20}, False)]


def test_an_available_now_run_says_when_it_ends() -> None:
    query = Query(FakeTopics(a=[log(8)]), maxOffsetsPerTrigger=5)
    query.planner.prepare_for_available_now()
    told = Told(query)
    while query.batch():
        pass

    assert told.last() == ({"a-0": 8}, True)
    assert [is_last for _, is_last in told.found].count(True) == 1


def test_topics_that_are_gone_or_recreated_are_left_out() -> None:
    topics = FakeTopics(a=[log(8)], b=[log(3)])
    query = Query(topics, subscribe=None, subscribePattern=".", failOnDataLoss="false")
    query.batch()
    topics.delete("b")
    topics.delete("a")
    topics.create("a", log(2))
    told = Told(query)
    query.next_end()

    assert told.found == [({}, False)]


def test_without_a_current_offset_what_was_planned_last_is_processed() -> None:
    """Spark 4.1 says where it is only with a plan, and at a restart plans an end that may not be committed."""
    topics = FakeTopics(a=[log(8)])
    query = Query(topics)
    planner, told = query.planner, Told(query)
    first = planner.latest(None)
    planner.plan(planner.initial(), first)
    topics.append("a-0", 4)
    second = planner.latest(None)
    assert told.last() == ({"a-0": 8}, False)

    planner, told = query.restart().planner, Told(query)
    planner.plan(second, second)
    planner.latest(None)
    assert told.found == []
    planner.plan(first, second)
    assert told.last() == ({"a-0": 8}, False)
    planner.latest(None)
    assert told.last() == ({"a-0": 12}, False)
