"""The lag that a query's progress tells."""

from __future__ import annotations

import json
from typing import Any

import pytest

import spark_kbatch
from spark_kbatch import ConfigError, Lag, TopicPartition, lag
from tests.support.numbered_topics import FakeTopics, log
from tests.support.stream_queries import Query

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
MARKED = {"@kbatch": {"log_ends": True}}


def source(end: Any, latest: Any, description: str = "PythonMicroBatchStream@1") -> dict[str, Any]:
    """Return a source of a progress, as `query.lastProgress` has it: offsets are text."""
    return {
        "description": description,
        "startOffset": "null",
        "endOffset": json.dumps(end),
        "latestOffset": json.dumps(latest),
    }


def progress(*sources: dict[str, Any]) -> dict[str, Any]:
    return {"name": "q", "batchId": 7, "sources": [*sources]}


def reported(query: Query) -> dict[str, Any]:
    """Run one trigger, and return its progress."""
    query.batch()
    return progress(source(query.committed, query.planner.report_latest()))


def test_the_lag_is_what_a_limit_has_left_in_each_partition() -> None:
    query = Query(FakeTopics(a=[log(40), log(20)]), maxOffsetsPerTrigger=30)

    assert lag(reported(query)) == Lag(10, 20, 15.0, {A0: 20, A1: 10})
    assert lag(reported(query)) == Lag(0, 0, 0.0, {A0: 0, A1: 0})


def test_the_lag_of_a_query_that_waits_for_more_grows() -> None:
    topics = FakeTopics(a=[log(20)])
    query = Query(topics, minOffsetsPerTrigger=10)
    reported(query)
    topics.append("a-0", 9)

    assert query.batch() is None
    assert lag(progress(source(query.committed, query.planner.report_latest()))) == Lag(
        9, 9, 9.0, {A0: 9}
    )


def test_a_recreated_topic_is_behind_by_all_that_it_has() -> None:
    end = {"a": {"0": 50}, "@kbatch": {"ids": {"a": "old"}}}
    latest = {"a": {"0": 8}, "@kbatch": {"ids": {"a": "new"}, "log_ends": True}}

    assert lag(progress(source(end, latest))) == Lag(8, 8, 8.0, {A0: 8})


def test_a_new_partition_that_waits_is_behind_by_all_that_it_has() -> None:
    latest = {"a": {"0": 5, "1": 3}} | MARKED

    assert lag(progress(source({"a": {"0": 5}}, latest))) == Lag(0, 3, 1.5, {A0: 0, A1: 3})


def test_a_query_that_has_read_past_the_last_stable_offset_is_not_behind() -> None:
    assert lag(progress(source({"a": {"0": 9}}, {"a": {"0": 5}} | MARKED))) == Lag(
        0, 0, 0.0, {A0: 0}
    )


def test_sources_are_taken_together_and_the_slower_reader_of_a_partition_counts() -> None:
    first = source({"a": {"0": 4}}, {"a": {"0": 10}} | MARKED)
    second = source({"a": {"0": 9}, "b": {"0": 0}}, {"a": {"0": 10}, "b": {"0": 2}} | MARKED)
    of_files = source({"logOffset": 0}, None, "FileStreamSource[file:/notes]")
    of_rate = source(17, 17, "RateStreamV2[rowsPerSecond=1]")

    assert lag(progress(first, of_files, second, of_rate)) == Lag(2, 6, 4.0, {A0: 6, B0: 2})
    assert lag(second) == Lag(1, 2, 1.5, {A0: 1, B0: 2})


def test_sparks_own_connector_has_the_lag_that_its_metrics_say() -> None:
    of_kafka = source(
        {"a": {"0": 4, "1": 7}}, {"a": {"0": 10, "1": 8}}, "KafkaV2[Subscribe[a]]"
    ) | {
        "metrics": {
            "minOffsetsBehindLatest": "1",
            "maxOffsetsBehindLatest": "6",
            "avgOffsetsBehindLatest": "3.5",
        }
    }
    found = lag(progress(of_kafka))

    assert found is not None
    for name, number in of_kafka["metrics"].items():
        assert getattr(found, name) == float(number)


@pytest.mark.parametrize(
    "told",
    [
        pytest.param(None, id="no micro-batch yet"),
        pytest.param(progress(), id="no source"),
        pytest.param(progress(source(None, None)), id="nothing planned"),
        pytest.param(progress(source({"a": {"0": 4}}, None)), id="planned by an earlier run"),
        pytest.param(
            progress(source({"a": {"0": 4}}, None) | {"latestOffset": "None"}), id="an event's"
        ),
        pytest.param(progress(source({"logOffset": 3}, None)), id="files"),
        pytest.param(progress(source({"shards": {"s-1": 3}}, {"s": {"s-1": 4}})), id="others"),
        pytest.param(
            progress(source({"a": {"0": 3}}, {"a": {"0": 4}}, "EventHubs")), id="like ours"
        ),
    ],
)
def test_a_progress_that_tells_no_lag_has_none(told: Any) -> None:
    assert lag(told) is None


def test_sources_of_others_are_passed_over() -> None:
    others = source({"hub": {"0": 3}}, None, "EventHubs")
    ours = source({"a": {"0": 4}}, {"a": {"0": 6}, **MARKED})

    assert lag(progress(others, ours)) == lag(progress(ours)) == Lag(2, 2, 2.0, {A0: 2})


def test_all_forms_of_a_progress_tell_the_same() -> None:
    end, latest = {"a": {"0": 4}}, {"a": {"0": 10}} | MARKED
    as_text = progress(source(end, latest))
    as_objects = progress({"endOffset": end, "latestOffset": latest})

    for one in (as_text, as_objects, json.loads(json.dumps(as_text)), as_text["sources"][0]):
        assert lag(one) == Lag(6, 6, 6.0, {A0: 6})


def test_before_4_2_the_lag_is_refused_because_it_would_always_be_0() -> None:
    """Spark 4.1 reports the end of the micro-batch as latestOffset, which has no mark."""
    query = Query(FakeTopics(a=[log(40)]), maxOffsetsPerTrigger=5)
    end = query.next_end()

    with pytest.raises(ConfigError, match=r"before Spark 4\.2.* 'commit\.group\.id'"):
        lag(progress(source(end, end)))


@pytest.mark.parametrize("wrong", ["{}", 7, [], {"sources": 3}, {"sources": ["a"]}, {"a": 1}])
def test_what_is_no_progress_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"progress is .*; accepted: query\.lastProgress"):
        spark_kbatch.lag(wrong)
