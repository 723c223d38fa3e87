"""Pages and metrics of a topic with a marker, and aborted records, in each partition."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from tests.support import builders
from tests.support.client_transactions import (
    GAPS_END,
    GAPS_OFFSETS,
    GIVEN,
    ClientTransactions,
    leave_gaps,
)
from tests.support.pages import Visitor, shown
from tests.support.shown_numbers import table
from tests.web.test_metrics import scraped
from tests.web.test_records import link_of, offsets, page, values

OPEN_FROM = GAPS_END
RECORDS = "/topics/events/records"
ROWS = [(partition, offset) for partition in (0, 1) for offset in GAPS_OFFSETS]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """Return a cluster with gaps in both partitions of its topic, and an open transaction in the first."""
    cluster = builders.a_cluster(tmp_path, topics={"events": 2})
    leave_gaps(cluster, "events")
    ClientTransactions(cluster, 6000).send(("events", 0), b"open 1", b"open 2")
    cluster.alter_group_offsets("behind", {("events", 0): 0, ("events", 1): 2})
    return cluster


@pytest.fixture
def visitor(cluster: Cluster) -> Iterator[Visitor]:
    with shown(cluster) as pages:
        yield Visitor(pages)


def test_pages_of_topics_count_offsets(visitor: Visitor) -> None:
    assert table(visitor.get("/").text, "Topic")[0][:3] == ["events", "2", str(2 * GAPS_END + 2)]
    topic = visitor.get("/topics/events")
    assert f"2 partitions, {2 * GAPS_END + 2} offsets" in topic.words
    assert [row[1:4] for row in table(topic.text, "Partition")] == [
        ["0", f"{GAPS_END + 2} (2 held back by an open transaction)", str(GAPS_END + 2)], ["0", str(GAPS_END), str(GAPS_END)],
    ]  # fmt: skip


def test_lags_are_in_offsets(visitor: Visitor) -> None:
    assert f"lag {2 * GAPS_END} offsets" in visitor.get("/groups/group?id=behind").words


def test_records_are_counted_where_they_are_shown(visitor: Visitor) -> None:
    newest = page(visitor, RECORDS)
    assert sorted(offsets(newest)) == ROWS
    assert f"{len(ROWS)} records, the newest first" in newest.get_text()


def test_links_lead_over_markers_to_each_record_once(visitor: Visitor) -> None:
    content = page(visitor, RECORDS, partitions=1, start=0, count=10)
    assert values(content) == [value.decode() for value in GIVEN]
    first = page(visitor, f"{RECORDS}/1/2", 404)
    assert offsets(page(visitor, str(link_of(first, "Records from it on")))) == [(1, 6)]
    assert sorted(offsets(page(visitor, str(link_of(first, "Records before it"))))) == [
        (1, 0),
        (1, 1),
    ]


@pytest.mark.parametrize("offset", [2, 3, 5])
def test_an_offset_without_a_record_says_why(visitor: Visitor, offset: int) -> None:
    content = page(visitor, f"{RECORDS}/1/{offset}", 404).get_text()
    assert "is of a transaction that was aborted, or that transaction" in content


def test_markers_are_no_records_in_metrics(cluster: Cluster) -> None:
    found = scraped(cluster)

    assert cluster.metrics()["BrokerTopicMetrics"]["MessagesInPerSec"]["Count"] == 2 * 5 + 2 + 2, (
        "the last two are the group's"
    )
    end = found("kafka_log_log_logendoffset", topic="events", partition="1")
    lag = found("kafka_consumergroup_lag", consumergroup="behind", topic="events", partition="1")
    assert (end, lag) == (GAPS_END, GAPS_END - 2)
