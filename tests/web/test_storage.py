"""The pages of what keeps the records: disks and garbage; a bucket's ledger."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from urllib.parse import quote

import pytest

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.bucket.maintenance import Maintenance, describe
from spark_kbatch.files import Files
from spark_kbatch.ledger.entries import TopicCreation
from spark_kbatch.model import TopicPartition
from spark_kbatch.opening.stores import store_of
from spark_kbatch.store.reports import (
    AbandonedJob,
    DeletedTopic,
    Deletion,
    Garbage,
    NotRemoved,
    Waiting,
)
from spark_kbatch.terminal import iso_time
from spark_kbatch.web import site, storage
from spark_kbatch.web.site import size_shown
from tests.support import builders
from tests.support.bucket_jobs import commit_batch, commit_micro_batch
from tests.support.bucket_objects import AgingObjects, AllCounted, a_bucket, opened_again
from tests.support.hostile_places import NAMES, write_entry
from tests.support.pages import Visitor, shown


@pytest.fixture
def three_disks(tmp_path: Path) -> Cluster:
    disks = [tmp_path / f"disk-{number}" for number in range(3)]
    cluster = Cluster(tmp_path / "cluster", create=True, log_dirs=disks)
    cluster.create_topic("events", 2, replication_factor=3)
    with cluster.producer() as producer:
        for number in range(20):
            producer.send("events", key=str(number), value="v")
    return cluster


def test_log_dirs_are_shown_with_what_they_hold(three_disks: Cluster) -> None:
    with shown(three_disks) as pages:
        page = Visitor(pages).get("/storage").words

    assert "3 log dirs" in page
    for one in three_disks.log_dirs():
        assert f"{one.path} {one.node_id} online {one.replicas} {one.leaders} 0" in page
    assert "not in sync None." in page
    assert page.count("iB") >= 6  # free, and size, of each


def test_a_lost_disk_and_the_partitions_that_lack_it_are_named(three_disks: Cluster) -> None:
    lost = Path(three_disks.log_dirs()[1].path)
    shutil.rmtree(lost)

    with shown(three_disks) as pages:
        page = Visitor(pages).get("/storage").words

    assert f"{lost} 1 offline:" in page
    lagging = page.partition("Replicas, by node")[2]
    assert "events-0" in lagging
    assert "events-1" in lagging
    count = len(three_disks.replicas(three_disks.topic_names(internal=True)))
    assert lagging.count("(not in sync: ") == count
    assert lagging.count("(leader)") == count


class WritesCounted(Files):
    """Files that count what is written to which."""

    def __init__(self) -> None:
        self.written = list[Path]()

    def write(self, path: Path, *rest: object) -> None:
        self.written.append(path)
        super().write(path, *rest)  # type: ignore[arg-type]


def test_a_look_at_disks_writes_nothing(tmp_path: Path) -> None:
    files = WritesCounted()
    cluster = builders.a_cluster(tmp_path, files=files)
    files.written.clear()

    with shown(cluster) as pages:
        visitor = Visitor(pages)
        visitor.get("/storage?garbage=1")
        assert files.written == []

    cluster.log_dirs()
    assert files.written != []  # as `kbatch log-dirs` does


def test_a_log_dir_that_may_not_be_written_to_is_told_without_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = builders.a_cluster(tmp_path)
    monkeypatch.setattr(Files, "may_write", lambda _files, _path: False)

    with shown(cluster) as pages:
        assert "read-only: this process may not write there" in Visitor(pages).get("/storage").words


def test_garbage_is_looked_for_when_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"events": 1, "gone": 1})
    builders.append_records(cluster, {("gone", 0): builders.batch(n=1)})
    cluster.delete_topic("gone")
    looks, collect = list[bool](), Cluster.collect_garbage
    monkeypatch.setattr(
        Cluster,
        "collect_garbage",
        lambda self, **given: looks.append(given["dry_run"]) or collect(self, **given),
    )

    with shown(cluster) as pages:
        visitor = Visitor(pages)
        assert "Look for garbage" in visitor.get("/storage").text
        assert looks == []
        page = visitor.get("/storage?garbage=1").words

    assert looks == [True]
    assert "deleted topic gone" in page
    (waiting,) = cluster.collect_garbage(dry_run=True).waiting
    assert iso_time(waiting.until_ms) in page


def test_each_kind_of_garbage_is_named_and_no_more_of_it_than_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = builders.a_cluster(tmp_path)
    tp, job = TopicPartition("events", 0), AbandonedJob("a-job", 2048, 5)
    found = Garbage(
        {tp: Deletion(5, (0,), 1536, ("old.log",)), TopicPartition("idle", 0): Deletion(0, (), 0, ())},
        [job] * (storage.SHOWN + 2),
        [NotRemoved(Path("odd"), "no folder <of> ours")],
        [DeletedTopic("gone", "id", 0, (), ())],
        {"broken": "no JSON"},
        [Waiting("overwritten", "a topic", 1024, 0, 0)],
        {TopicPartition("away", 1): "no disk"},
    )  # fmt: skip
    monkeypatch.setattr(Cluster, "collect_garbage", lambda _cluster, **_given: found)

    with shown(cluster) as pages:
        page = Visitor(pages).get("/storage?garbage=1").words.partition("Kept until ")[2]

    gc = "the next kbatch gc"
    staged = f"staged by a job that never committed a-job 2.0 KiB {gc} " * storage.SHOWN
    assert (
        page.split()
        == (
            f"expired segments events-0 1.5 KiB {gc} files of segments deleted earlier events-0 not told {gc} "
            f"{staged} staged by a job that never committed and 2 more deleted topic gone not told {gc} "
            "overwritten a topic 1.0 KiB 1970-01-01T00:00:00.000Z staged odd not told no folder <of> ours "
            "not looked at away-1 not told no disk not looked at broken not told no JSON"
        ).split()
    )


def test_where_there_is_no_garbage_the_page_says_so(tmp_path: Path) -> None:
    with shown(builders.a_cluster(tmp_path)) as pages:
        page = Visitor(pages).get("/storage?garbage=1").words

    assert "There is none." in page
    assert "Kept until" not in page


def test_a_buckets_page_tells_what_its_ledger_knows(tmp_path: Path) -> None:
    objects = AllCounted()
    with a_bucket(objects, "events", "more", partitions=3) as cluster:
        for number in range(30):
            commit_micro_batch(cluster.address, number, ["a value"])
        with shown(cluster) as pages:
            page = Visitor(pages).get("/storage").words
        all_told = describe(store_of(cluster).ledger)

    entries = len(objects.names_of("ledger"))
    assert f"Entries {entries}, the last one of {iso_time(all_told.last_entry_ms)}" in page
    assert f"Not maintained since {iso_time(all_told.unmaintained_since_ms)}" in page
    checkpoint = max(int(one[-20:]) for one in objects.names_of("checkpoints"))
    assert f"Since the newest checkpoint {entries - 1 - checkpoint} entries" in page
    assert "The last 20 entries" in page
    assert "micro-batch 29 of" in page
    assert "micro-batch 5 of" not in page
    assert re.search(
        rf" {entries - 1} \d{{4}}-\S+ job app a-query \S+@\S+ 1 record", page
    )  # who, and where


def shown_objects(cluster: Cluster) -> tuple[int, str, int, str]:
    """Return what a first look says: how many objects are read and their bytes, and the same of those that wait."""
    with opened_again(cluster) as again, shown(again) as pages:
        page = Visitor(pages).get("/storage").words
    found = re.search(
        r"Read (\d+) objects? with (\S+ \S+) of batches Waits to be deleted at least (\d+) objects? with (\S+ \S+),",
        page,
    )
    assert found, page
    return int(found[1]), found[2], int(found[3]), found[4]


def test_a_buckets_page_tells_its_objects_and_what_waits_without_a_list() -> None:
    objects = AllCounted()
    with a_bucket(objects, "events", "more", "gone", partitions=3) as cluster:
        for number in range(40):
            commit_micro_batch(cluster.address, number, ["a value"])
        commit_batch(cluster.address, [["other"]], topic="more")
        told = describe(store_of(cluster).ledger)
        size = size_shown(told.referenced.size_in_bytes)
        assert shown_objects(cluster) == (41, size, 0, "0 Bytes")

        Maintenance(cluster.address).run(run_extents=2)
        told = describe(store_of(cluster).ledger)
        assert (told.referenced.objects, told.waiting.objects) == (2, 40)
        assert shown_objects(cluster) == (
            2,
            size_shown(told.referenced.size_in_bytes),
            40,
            size_shown(told.waiting.size_in_bytes),
        )
        commit_batch(cluster.address, [["in its place"]], topic="more", overwrite=True)
        assert shown_objects(cluster)[::2] == (2, 41)


def test_what_a_collection_has_deleted_does_not_wait() -> None:
    objects = AgingObjects()
    with a_bucket(objects, "events") as cluster:
        for number in range(40):
            commit_micro_batch(cluster.address, number, ["a value"])
        Maintenance(cluster.address).run(run_extents=2)
        for _ in range(2):
            objects.clock_ms += 15 * 86_400_000
            Maintenance(cluster.address).run()
        told = describe(store_of(cluster).ledger)
        assert (told.referenced.objects, told.waiting.objects) == (1, 0)
        assert shown_objects(cluster)[::2] == (1, 0)


def test_a_buckets_page_says_how_many_topics_take_more_requests_than_a_look_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [1000.0]
    monkeypatch.setattr(site, "monotonic_s", lambda: now_s[0])
    names = [f"topic-{number:02}" for number in range(60)]
    with a_bucket(AllCounted(), *names) as cluster:
        for name in names:
            commit_batch(cluster.address, [["a value"]], topic=name)
        with opened_again(cluster) as again, shown(again) as pages:
            visitor = Visitor(pages)
            first = visitor.get("/storage").words
            for _ in range(3):
                now_s[0] += 60
                last = visitor.get("/storage").words

    assert re.search(
        "those of [0-9]+ topics more: look again Waits to be deleted not told yet", first
    )
    assert "Read 60 objects with" in last
    assert "at least 0 objects" in last


@pytest.mark.parametrize("name", NAMES)
def test_a_topic_that_somebody_has_named_past_all_checks_is_text_of_an_error(name: str) -> None:
    cluster = a_bucket(None, "events")
    write_entry(cluster, TopicCreation("ab" * 8, name, (0,)))
    with shown(cluster) as pages:
        visitor = Visitor(pages)
        for address in ("/", f"/topics/{quote(name, '')}", "/groups", "/metrics", "/storage"):
            page = visitor.ask(address)
            assert page.status in (404, 500), address
            assert not re.search(r"<script|<img|<svg|<iframe|<base|<meta http", page.text), address
        assert "is damaged: content.name is" in page.words
        assert visitor.ask("/ready").status == 503
        assert visitor.ask("/health").status == 200


def test_a_place_that_does_not_tell_has_no_such_page(three_disks: Cluster, tmp_path: Path) -> None:
    logs = shutil.copytree(Path(three_disks.log_dirs()[0].path), tmp_path / "logs")
    with (
        three_disks.serve() as server,
        spark_kbatch.connect(server.bootstrap_servers) as brokers,
        spark_kbatch.open(logs) as of_a_broker,
        spark_kbatch.open("memory://nothing-kept", create=True) as in_memory,
    ):
        for cluster in (brokers, of_a_broker, in_memory):
            with shown(cluster) as pages:
                visitor = Visitor(pages)
                assert "/storage" not in visitor.get("/").text
                assert visitor.ask("/storage").status == 404
