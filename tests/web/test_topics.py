"""The page of topics, and that of one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.model import TopicPartition
from spark_kbatch.web.topics import TOPICS_SHOWN
from tests.support import builders
from tests.support.open_transactions import leave_open
from tests.support.pages import Visitor, shown


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    disks = [tmp_path / f"disk-{number}" for number in range(2)]
    cluster = Cluster(tmp_path / "cluster", create=True, log_dirs=disks)
    cluster.create_topic("orders", 2, replication_factor=2, config={"retention.ms": 1000})
    cluster.create_topic("clicks")
    with cluster.producer() as producer:
        for number in range(20):
            producer.send("orders", key=str(number), value="v")
    return cluster


def test_topics_are_listed_with_partitions_offsets_and_sizes(cluster: Cluster) -> None:
    with shown(cluster) as pages:
        page = Visitor(pages).get("/").words

    (clicks,) = cluster.describe("clicks")
    size = sum(one.size_in_bytes for one in cluster.describe("orders"))
    assert clicks.size_in_bytes == 0
    assert "2 topics" in page
    assert "clicks 1 0" in page
    assert "orders 2 20" in page
    assert f"{size / 1024:.1f} KiB" in page or f"{size} Bytes" in page
    assert "__consumer_offsets" not in page


def test_a_name_is_searched_for_and_internal_topics_are_shown_if_asked(cluster: Cluster) -> None:
    with cluster.producer(transactional_id="t") as producer:
        producer.begin_transaction()
        producer.send("orders", value="v")
        producer.commit_transaction()
    with shown(cluster) as pages:
        visitor = Visitor(pages)
        some, none = visitor.get("/?name=ORD").words, visitor.get("/?name=nothing").words
        internal = visitor.get("/?internal=1").words

    assert "1 topic " in some
    assert "orders" in some
    assert "clicks" not in some
    assert "No topic has" in none
    for name in cluster.topic_names(internal=True):
        assert name in internal


def test_many_topics_are_shown_a_page_at_a_time(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "many", create=True)
    for number in range(TOPICS_SHOWN + 1):
        cluster.create_topic(f"topic-{number:03}")
    with shown(cluster) as pages:
        visitor = Visitor(pages)
        first, second = visitor.get("/").text, visitor.get("/?page=2").text
        beyond = visitor.get("/?page=99").text

    assert first.count('href="/topics/topic-') == TOPICS_SHOWN
    assert f"topic-{TOPICS_SHOWN}" not in first
    assert second.count('href="/topics/topic-') == 1
    assert f"topic-{TOPICS_SHOWN}" in second
    assert second == beyond


def test_a_topic_has_its_partitions_with_offsets_sizes_and_settings(cluster: Cluster) -> None:
    with shown(cluster) as pages:
        page = Visitor(pages).get("/topics/orders").words

    for one in cluster.describe("orders"):
        offsets = one.offsets
        numbers = (
            f"{one.topic_partition.partition} {offsets.log_start_offset} {offsets.high_watermark}"
        )
        assert f"{numbers} {offsets.high_watermark - offsets.log_start_offset}" in page
    assert "2 partitions, 20 offsets" in page
    assert "retention.ms 1000 given" in page
    assert "retention.bytes -1 default" in page


def test_replicas_are_shown_and_one_that_is_not_in_sync(cluster: Cluster) -> None:
    with shown(cluster) as pages:
        assert "not in sync" not in Visitor(pages).get("/topics/orders").words
    lost = cluster.log_dirs()[1]
    shutil.rmtree(lost.path)
    with shown(cluster) as pages:
        visitor = Visitor(pages)
        page, single = visitor.get("/topics/orders").words, visitor.get("/topics/clicks").words

    assert page.count("(leader)") == 2
    assert page.count(f"{lost.node_id} (not in sync: ") == 2
    assert "Replicas" not in single


def test_what_an_open_transaction_holds_back_is_shown_beside_the_end_of_its_partition(
    tmp_path: Path,
) -> None:
    with builders.a_cluster(tmp_path, topics={"events": 2}) as cluster:
        leave_open(cluster, TopicPartition("events", 1), n=3)
        with shown(cluster) as pages:
            page = Visitor(pages).get("/topics/events").words

    assert page.count("held back by an open transaction") == 1
    assert "3 (3 held back by an open transaction)" in page


def test_a_topic_that_is_not_there_is_a_sentence(cluster: Cluster) -> None:
    with shown(cluster) as pages:
        found = Visitor(pages).ask("/topics/order")

    assert found.status == 404
    assert "topic 'order' does not exist" in found.words
    assert "orders" in found.words
