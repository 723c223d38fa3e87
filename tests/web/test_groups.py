"""Pages of consumer groups: the numbers are those of the place, whatever characters an id has."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.web import groups
from spark_kbatch.web.history import LAG
from spark_kbatch.web.serving import WebServer
from spark_kbatch.web.site import Site
from tests.support import builders, stored_groups
from tests.support.broker_dirs import a_partition, batches
from tests.support.bucket_objects import AllCounted, a_bucket
from tests.support.pages import Visitor, shown
from tests.support.shown_numbers import charts, table, text_of

HOSTILE = (
    "a/b", "..", "?x=1&id=2", "<script>alert(1)</script>", "\x1b[2J", "'\"", "ä\u202e", "100%2f", " ", "#",
    "a" * 200,
)  # fmt: skip


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    cluster = builders.a_cluster(tmp_path, topics={"events": 2, "more": 1})
    builders.append_records(cluster, {("events", 0): builders.batch(n=30)})
    app = stored_groups.member("app<b>", {"events": [0, 1]})
    stored_groups.store(cluster, "billing", {("events", 0): 12}, [app])
    stored_groups.store(cluster, "audit", {("events", 0): 30, ("more", 0): 0})
    return cluster


def test_groups_are_listed_with_state_members_and_lag(cluster: Cluster) -> None:
    with shown(cluster) as pages:
        rows = table(Visitor(pages).get("/groups").text, "Group")

    assert rows == [["audit", "Empty", "0", "2", "0"], ["billing", "Stable", "1", "2", "18"]]


def test_a_group_has_its_offsets_lag_and_members(cluster: Cluster) -> None:
    with shown(cluster) as pages:
        page = Visitor(pages).get("/groups/group?id=billing").text

    first, second = table(page, "Topic")
    assert first == ["events", "0", "12", "30", "18", "2023-11-14T22:13:20.000Z"]
    assert second == ["events", "1", "none", "0", "not known", ""]
    assert table(page, "Member") == [["app<b>-1", "app<b>", "127.0.0.1", "events-0, events-1"]]
    assert "Stable, 1 member, partitions assigned by range, generation 3; lag 18 offsets." in text_of(page)  # fmt: skip


@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_an_id_of_any_characters_leads_to_its_group(place: str, tmp_path: Path) -> None:
    with builders.a_cluster(tmp_path) if place == "folder" else a_bucket(None, "events") as cluster:
        with cluster.producer() as producer:
            for _ in range(50):
                producer.send("events", value="v")
        for number, group_id in enumerate(HOSTILE):
            cluster.alter_group_offsets(group_id, {("events", 0): number})
        with shown(cluster) as pages:
            visitor = Visitor(pages)
            listed = visitor.get("/groups").text
            found = {group_id: _asked(visitor, group_id) for group_id in HOSTILE}

    assert "<script" not in listed
    assert "\x1b" not in listed
    for number, group_id in enumerate(HOSTILE):
        address = f"/groups/group?id={quote(group_id, safe='').replace('%20', '+')}"
        assert f'href="{address}"' in listed
        assert found[group_id][0][2:5] == [f"{number}", "50", f"{50 - number}"]


def _asked(visitor: Visitor, group_id: str) -> list[list[str]]:
    page = visitor.get(f"/groups/group?id={quote(group_id, safe='')}").text
    assert "<script" not in page
    assert "\x1b" not in page
    return table(page, "Topic")


def test_an_unknown_group_is_not_found(cluster: Cluster) -> None:
    with shown(cluster) as pages:
        visitor = Visitor(pages)
        for query in ("?id=none", "", "?id=%ED%A0%80"):
            answer = visitor.ask(f"/groups/group{query}")
            assert answer.status == 404
            assert "does not exist" in answer.text


def test_many_groups_and_partitions_are_shown_a_page_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "GROUPS_SHOWN", 2)
    monkeypatch.setattr(groups, "PARTITIONS_SHOWN", 3)
    with builders.a_cluster(tmp_path, topics={"events": 7}) as cluster:
        for number in range(5):
            cluster.alter_group_offsets(f"g{number}", {("events", p): 0 for p in range(7)})
        with shown(cluster) as pages:
            visitor = Visitor(pages)
            names = [
                [row[0] for row in table(visitor.get(f"/groups?page={n}").text, "Group")]
                for n in (1, 2, 3, 99)
            ]
            page = visitor.get("/groups/group?id=g4&page=3").text

    assert names == [["g0", "g1"], ["g2", "g3"], ["g4"], ["g4"]]
    assert [row[1] for row in table(page, "Topic")] == ["6"]
    assert 'href="/groups/group?id=g4&amp;page=2" rel="prev"' in page


def test_lag_over_time_is_drawn_for_the_groups_that_are_furthest_behind(tmp_path: Path) -> None:
    with builders.a_cluster(tmp_path) as cluster:
        builders.append_records(cluster, {("events", 0): builders.batch(n=30)})
        for number in range(6):
            cluster.alter_group_offsets(f"g{number}", {("events", 0): number * 5})
        site = Site(cluster)
        with WebServer(site, "127.0.0.1", 0, token=None) as pages:
            visitor = Visitor(pages, None)
            site.samples.sample()
            cluster.alter_group_offsets("g0", {("events", 0): 30})
            site.samples.sample()
            of_all = charts(visitor.get("/groups").text)["lag"]
            of_one = charts(visitor.get("/groups/group?id=g1").text)["lag"]
            expected = site.samples.series(LAG, "g0")[1]["g0"]

    assert list(of_all.lines) == ["g1", "g2", "g3", "g4"]  # g0 has caught up
    assert of_all.table[1][1:] == ["25", "20", "15", "10"]
    assert [row[1] for row in of_one.table[1:]] == ["25"] * len(expected)
    assert expected[-2:] == [30, 0]


def test_a_place_without_groups_says_so(tmp_path: Path) -> None:
    a_partition(tmp_path / "events-0", {0: batches(0, 4)})
    with (
        spark_kbatch.open(tmp_path) as logs,
        spark_kbatch.open("memory://without-groups", create=True) as in_memory,
        builders.a_cluster(tmp_path / "x") as empty,
    ):
        for place in (logs, in_memory):
            with shown(place) as pages:
                visitor = Visitor(pages)
                assert 'href="/groups"' not in visitor.get("/").text
                answer = visitor.ask("/groups")
                assert answer.status == 400
                assert "no consumer groups are kept in" in answer.text
        with shown(empty) as pages:
            assert "There are no consumer groups." in Visitor(pages).get("/groups").text


def test_groups_of_a_real_cluster_are_shown_as_it_tells_them(cluster: Cluster) -> None:
    with cluster.serve() as server, spark_kbatch.connect(server.bootstrap_servers) as remote:
        with shown(remote) as pages:
            visitor = Visitor(pages)
            rows = {row[0]: row for row in table(visitor.get("/groups").text, "Group")}
            page = visitor.get("/groups/group?id=audit").text

    assert rows["audit"][3:] == ["2", "0"]
    assert table(page, "Topic")[0][:5] == ["events", "0", "30", "30", "0"]


def test_groups_of_a_bucket_cost_no_more_than_its_news() -> None:
    objects = AllCounted()
    with a_bucket(objects, "events") as cluster:
        cluster.alter_group_offsets("g", {("events", 0): 0})
        site = Site(cluster)
        site.samples.sample()
        objects.taken()
        site.samples.sample()
        of_a_sample = objects.taken()
        with WebServer(site, "127.0.0.1", 0, token=None) as pages:
            site.samples.close()
            objects.taken()
            Visitor(pages, None).get("/groups")
            of_a_look = objects.taken()

    assert sum(of_a_look.values()) <= 1
    assert sum(of_a_sample.values()) <= 3
    assert not any("data" in asked for asked in (*of_a_look, *of_a_sample))
