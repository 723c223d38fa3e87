"""The pages of what keeps the records: disks and garbage; a bucket's ledger."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.bucket.maintenance import describe
from spark_kbatch.files import Files
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
from spark_kbatch.web import storage
from tests.support import builders
from tests.support.bucket_jobs import commit_micro_batch
from tests.support.bucket_objects import AllCounted, a_bucket
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
