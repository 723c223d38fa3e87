"""Pages of commits: what a job wrote, who wrote it and when, as far back as one asks, at a bounded cost."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.terminal import iso_time
from spark_kbatch.web import commits
from spark_kbatch.web.site import size_shown
from tests.support import bucket_jobs
from tests.support.bucket_jobs import QUERY
from tests.support.bucket_objects import AllCounted, a_bucket
from tests.support.pages import Visitor, shown
from tests.support.shown_numbers import charts, table, text_of


def wrote(cluster: Cluster, counts: Mapping[int, int], **how: Any) -> None:
    """Write so many records by partition as `bucket_jobs.wrote` does."""
    values = {partition: ["v"] * count for partition, count in counts.items()}
    bucket_jobs.wrote(cluster.address, values, **how)


@pytest.fixture(params=["folder", "bucket"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    with (
        Cluster(tmp_path / "cluster", create=True) if request.param == "folder" else a_bucket()
    ) as cluster:
        cluster.create_topic("events", partitions=2)
        cluster.create_topic("more")
        yield cluster


def test_commits_are_listed_with_their_job_records_and_time(cluster: Cluster) -> None:
    wrote(cluster, {0: 2, 1: 3})
    wrote(cluster, {1: 7}, number=0)
    wrote(cluster, {0: 1200}, topic="more")

    newest, batch, job = cluster.history()
    with shown(cluster) as pages:
        page = Visitor(pages).get("/commits").text

    assert table(page, "Commit") == [
        [
            str(one.number), iso, what, f"{one.author.user}, app", "append", topics, records,
            size_shown(one.size_in_bytes),
        ]
        for one, iso, what, topics, records in (
            (newest, _iso(newest.time_ms), f"job {newest.transactional_id}", "more", "1,200"),
            (batch, _iso(batch.time_ms), f"micro-batch 0 of query {QUERY}", "events", "7"),
            (job, _iso(job.time_ms), f"job {job.transactional_id}", "events", "5"),
        )
    ]  # fmt: skip
    drawn = charts(page)["commits"]
    assert [round(height, 1) for _, _, height in drawn.bars] == [3.3, 4.7, 800]
    assert drawn.bars[-1][0] == f"Commit {newest.number}: 1,200"
    assert drawn.values[-1] == "1,500"


def _iso(time_ms: int) -> str:
    return iso_time(time_ms) or ""


def test_one_commit_has_its_offsets_by_partition(cluster: Cluster) -> None:
    wrote(cluster, {0: 2, 1: 3})
    wrote(cluster, {1: 7}, number=4)
    number = next(cluster.history()).number

    with shown(cluster) as pages:
        page = Visitor(pages).get(f"/commits/{number}").text

    assert ["events", "1", "3", "9", "10"] in table(page, "Topic")
    for said in (
        f"What micro-batch 4 of query {QUERY}",
        f"Query {QUERY}",
        "Application app",
        "Records 7",
        "Mode append",
    ):
        assert said in text_of(page)


def test_a_filter_shows_commits_to_one_topic_and_the_topic_leads_there(cluster: Cluster) -> None:
    for topic in ("events", "more", "events"):
        wrote(cluster, {0: 1}, topic=topic)
    numbers = [str(one.number) for one in cluster.history()]

    with shown(cluster) as pages:
        visitor = Visitor(pages)
        found = [row[0] for row in table(visitor.get("/commits?topic=events").text, "Commit")]
        none = visitor.get("/commits?topic=%3Cb%3Enone").text
        topic = visitor.get("/topics/events").text

    assert found == [numbers[0], numbers[2]]
    assert "There is no commit that touched “&lt;b&gt;none” among the 100 newest." in none
    assert 'href="/commits?topic=events"' in topic
    if cluster.has("disks"):  # which cost nothing there
        assert len(charts(topic)["commits"].bars) == 2
    else:
        assert "commits" not in charts(topic)


def test_older_commits_are_a_page_further_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "LOOKED_AT", 3)
    for topic in ("more", "events", "events", "events", "events", "events", "events", "more"):
        wrote(cluster, {0: 1}, topic=topic)
    numbers = [one.number for one in cluster.history()]
    of_more = [one.number for one in cluster.history("more")]

    with shown(cluster) as pages:
        visitor = Visitor(pages)
        assert _walked(visitor, "/commits") == numbers
        assert _walked(visitor, "/commits?topic=more") == of_more
        beyond = visitor.get("/commits?before=99999999999999999").text
        odd = visitor.get("/commits?before=-1x").text

    newest = [str(number) for number in numbers[:3]]
    assert [row[0] for row in table(beyond, "Commit")] == newest
    assert [row[0] for row in table(odd, "Commit")] == newest


def _walked(visitor: Visitor, address: str) -> list[int]:
    found = []
    for _ in range(20):
        page = visitor.get(address).text
        if "<table>" in page:
            found += [int(row[0]) for row in table(page, "Commit")]
        older = re.search(r'href="([^"]*)" rel="next">Older', page)
        if older is None:
            return found
        address = unescape(older[1])
    raise AssertionError("there is no end")


def test_a_commit_that_is_not_there_is_not_found(cluster: Cluster) -> None:
    wrote(cluster, {0: 1})
    with shown(cluster) as pages:
        visitor = Visitor(pages)
        for number in ("99", "9" * 30, "-1", "9" * 5000, "x"):
            answer = visitor.ask(f"/commits/{number}")
            assert answer.status == 404
            assert f"There is no commit {number}" in answer.text
        if not cluster.has("disks"):
            entry_of_a_topic = 0
            assert visitor.ask(f"/commits/{entry_of_a_topic}").status == 404


def test_hostile_names_of_queries_and_applications_are_text(tmp_path: Path) -> None:
    with Cluster(tmp_path / "c", create=True) as cluster:
        cluster.create_topic("events")
        wrote(cluster, {0: 1}, number=0, query_id="<script>\x1b[2J", application_id="'\"><img src=x>")  # fmt: skip
        with shown(cluster) as pages:
            visitor = Visitor(pages)
            listed, one = visitor.get("/commits").text, visitor.get("/commits/0").text

    for page in (listed, one):
        assert "<script" not in page
        assert "<img" not in page
        assert "\x1b" not in page
        assert r"micro-batch 0 of query <script>\x1b[2J" in text_of(page)
    assert "'\"><img src=x>" in table(listed, "Commit")[0][3]


def test_a_place_without_commits_says_so(tmp_path: Path) -> None:
    with Cluster(tmp_path / "c", create=True) as cluster:
        with shown(cluster) as pages:
            assert "There are no commits yet." in Visitor(pages).get("/commits").text
        with cluster.serve() as server, spark_kbatch.connect(server.bootstrap_servers) as remote:
            with shown(remote) as pages:
                visitor = Visitor(pages)
                assert 'href="/commits"' not in visitor.get("/").text
                answer = visitor.ask("/commits")
    assert answer.status == 400
    assert "there are no commits of Spark jobs in 127.0.0.1" in answer.text


def test_a_page_of_a_buckets_commits_reads_a_bounded_number_of_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commits, "LOOKED_AT", 8)
    objects = AllCounted()
    with a_bucket(objects, "events") as cluster:
        wrote(cluster, {0: 1})
        number = next(cluster.history()).number
        for _ in range(40):
            with cluster.producer() as producer:  # an entry that is no commit of a job
                producer.send("events", value="v")
        with shown(cluster) as pages:
            pages._samples.close()  # its samples ask too
            visitor = Visitor(pages)
            page = visitor.get("/commits").text
            objects.taken()
            visitor.get("/commits?before=30")
            of_a_page = objects.taken()
            visitor.get(f"/commits/{number}")
            of_a_commit = objects.taken()
            walked = _walked(visitor, "/commits")

    assert "There is no commit among the 8 newest." in page
    assert walked == [number]
    looks_for_news = 2
    assert sum(of_a_page.values()) <= 8 + looks_for_news
    assert sum(of_a_commit.values()) <= 1 + looks_for_news
    assert not any("data" in asked for asked in (*of_a_page, *of_a_commit))
