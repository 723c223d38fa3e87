"""A stream reads each record from its start on once, over restarts and new partitions, wherever it starts.

The cases are those of Spark's suite: each choice of topics with each kind of start, with and without failOnDataLoss.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.numbered_topics import FakeTopics, log
from tests.support.stream_queries import Query

PARTITIONS, RECORDS = 5, 3


def by_partition(*numbers: int) -> str:
    return json.dumps({"a": {str(n): number for n, number in enumerate(numbers)}})


@pytest.mark.parametrize("fail", ["true", "false"], ids=["loss-fails", "loss-is-accepted"])
@pytest.mark.parametrize(
    "topics_wanted",
    [
        pytest.param({"assign": '{"a":[0,1,2,3,4]}'}, id="assign"),
        pytest.param({"subscribe": "a"}, id="subscribe"),
        pytest.param({"subscribePattern": "^a"}, id="pattern"),
    ],
)
@pytest.mark.parametrize(
    ("start", "begins"),
    [
        pytest.param({"startingOffsets": "latest"}, [3, 3, 3, 3, 3], id="latest"),
        pytest.param({"startingOffsets": "earliest"}, [0, 0, 0, 0, 0], id="earliest"),
        pytest.param(
            {"startingOffsets": by_partition(-2, -1, 0, 1, 2)}, [0, 3, 0, 1, 2], id="offsets"
        ),
        pytest.param(
            {"startingOffsetsByTimestamp": by_partition(0, 2, 1, 0, 2)}, [0, 2, 1, 0, 2], id="times"
        ),
        pytest.param({"startingTimestamp": 1}, [1, 1, 1, 1, 1], id="one-time"),
    ],
)
def test_a_query_reads_each_record_from_its_start_on_once(
    start: dict[str, Any], begins: list[int], topics_wanted: dict[str, str], fail: str
) -> None:
    topics = FakeTopics(a=[log(RECORDS) for _ in range(PARTITIONS)])
    given = {"subscribe": None, "startingOffsets": None, "failOnDataLoss": fail}
    query = Query(topics, **(given | topics_wanted | start))
    first = query.batch()
    assert first == {f"a-{n}": (b, RECORDS) for n, b in enumerate(begins) if b < RECORDS}
    query.restart()
    assert query.batch() is None
    for n in range(PARTITIONS):
        topics.append(f"a-{n}", n)  # while the query is stopped
    query.restart()
    assert query.batch() == {f"a-{n}": (RECORDS, RECORDS + n) for n in range(1, PARTITIONS)}

    topics.logs["a"] += [log(n) for n in range(PARTITIONS)]
    topics.append("a-0", 1)
    new = {f"a-{PARTITIONS + n}": (0, n) for n in range(1, PARTITIONS)}
    assert query.batch() == {"a-0": (3, 4)} | ({} if "assign" in topics_wanted else new)
    query.restart()
    assert query.batch() is None


def test_a_query_starts_each_topic_where_its_word_says_and_new_topics_of_a_pattern_at_their_start() -> (
    None
):
    topics = FakeTopics(a=[log(3), log(3)], b=[log(3)], c=[log(3)])
    starts = {"a": "earliest", "b": "latest", "c": {"0": 1}}
    query = Query(topics, subscribe=None, subscribePattern=".", startingOffsets=json.dumps(starts))
    assert query.batch() == {"a-0": (0, 3), "a-1": (0, 3), "c-0": (1, 3)}

    topics.create("d", log(2))
    topics.append("b-0", 1)
    assert query.batch() == {"b-0": (3, 4), "d-0": (0, 2)}
