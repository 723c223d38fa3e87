"""The creation of clusters and topics: where they can be made, and what their files may say."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_kbatch import Cluster
from spark_kbatch.catalog.topic_files import TopicFiles
from spark_kbatch.errors import (
    ConfigError,
    InvalidTopicError,
    KafkaStorageError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.files import Files, LockFile
from spark_kbatch.options.read import parse_read_options
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.options.write import parse_write_options
from tests.conftest import REPOSITORY
from tests.support import builders
from tests.support.crashes import sample
from tests.support.faults import Fault, FaultyFiles, ReadOnlyFiles, died, run_child
from tests.support.store import reader_of, store_of
from tests.support.topics_of_writes import find_or_create_topic

CLUSTER_FOLDERS = {"broker-0", "locks", "snapshots", "staging-0", "topics"}


def create(path: Path, files: Files | None = None) -> Cluster:
    return Cluster(str(path), create=True, files=files)


# What is at PATH.


def a_file(path: Path) -> None:
    path.write_text("x")


def an_empty_folder(path: Path) -> None:
    path.mkdir()


def a_full_folder(path: Path) -> None:
    for name in ("data-1", "data-2", "data-3", "data-4"):
        (path / name).mkdir(parents=True)


def a_hidden_file(path: Path) -> None:
    path.mkdir()
    (path / ".git").write_text("x")


def nothing(path: Path) -> None:
    assert not path.exists()


PLACES = {
    "nothing": (nothing, "there is no such folder; write to it first"),
    "a file": (a_file, "it is a file, not a folder"),
    "an empty folder": (an_empty_folder, "the folder is empty; write to it first"),
    "a full folder": (a_full_folder, "the folder holds something else (data-1, data-2, data-3, ...)"),
    "a hidden file": (a_hidden_file, "the folder holds something else (.git)"),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_opening_says_what_is_there_instead_of_a_cluster(tmp_path: Path, place: str) -> None:
    path = tmp_path / "cluster"
    make, words = PLACES[place]
    make(path)
    with pytest.raises(ConfigError) as error:
        Cluster(str(path))

    assert str(error.value).startswith(f"no kbatch cluster at {path}: {words}")


@pytest.mark.parametrize("place", ["nothing", "an empty folder"])
def test_cluster_is_made_where_nothing_is(tmp_path: Path, place: str) -> None:
    path = tmp_path / "deep" / "cluster" if place == "nothing" else tmp_path / "cluster"
    PLACES[place][0](path)
    create(path).create_topic("events")

    assert {entry.name for entry in path.iterdir()} == CLUSTER_FOLDERS | {
        "cluster.json",
        "deleted",
        "spare",
    }
    assert not [entry for entry in (path / "locks").iterdir() if "probe" in entry.name]
    assert [topic.name for topic in Cluster(str(path)).topics()] == ["events"]


@pytest.mark.parametrize("place", ["a file", "a full folder", "a hidden file"])
def test_nothing_is_made_where_something_else_is(tmp_path: Path, place: str) -> None:
    path = tmp_path / "cluster"
    make, words = PLACES[place]
    make(path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError) as error:
        create(path)

    assert str(error.value) == (
        f"no kbatch cluster can be made at {path}: {words}; give a new or an empty folder"
    )
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("code", "words"),
    [
        pytest.param(errno.EROFS, "Read-only file system", id="EROFS"),
        pytest.param(errno.EACCES, "Permission denied", id="EACCES"),
        pytest.param(errno.ENOSPC, "No space left on device", id="ENOSPC"),
    ],
)
def test_folder_that_cannot_be_written_is_refused_with_the_reason(
    tmp_path: Path, code: int, words: str
) -> None:
    with pytest.raises(ConfigError) as error:
        create(tmp_path / "cluster", FaultyFiles(Fault(at=0, error=code, lasting=True)))

    assert f"no kbatch cluster can be made at {tmp_path / 'cluster'}: {words}; " in str(error.value)


class NoHardLinks(Files):
    def link(self, source: Path, target: Path) -> bool:
        raise OSError(errno.EPERM, "Operation not permitted", str(target))


class NoLocks(Files):
    def lock_byte(self, file: LockFile, position: int, *, wait: bool = True) -> bool:
        raise OSError(errno.ENOLCK, "No locks available")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        pytest.param(NoHardLinks(), "Operation not permitted", id="hard links"),
        pytest.param(NoLocks(), "No locks available", id="record locks"),
    ],
)
def test_file_system_without_what_is_needed_is_refused(
    tmp_path: Path, files: Files, words: str
) -> None:
    with pytest.raises(ConfigError, match=f"{words}; the folder must be on a POSIX file system"):
        create(tmp_path / "cluster", files)
    create(tmp_path / "cluster")


@pytest.mark.parametrize("folder", ["/Volumes/main/default/events", "/dbfs/events"])
def test_folders_of_databricks_are_refused_with_a_folder_that_works(folder: str) -> None:
    without_locks = FaultyFiles(Fault(at=0, error=errno.EOPNOTSUPP, lasting=True))
    with pytest.raises(ConfigError) as raised:
        create(Path(folder), without_locks)

    shown = str(raised.value).replace(folder, "/Volumes/main/default/events")
    assert shown in (REPOSITORY / "docs" / "compatibility.md").read_text(encoding="utf-8")


def test_cluster_on_a_read_only_mount_can_be_opened(tmp_path: Path) -> None:
    path = builders.a_cluster(tmp_path).path
    cluster = Cluster(str(path), create=True, files=ReadOnlyFiles())

    assert [topic.name for topic in cluster.topics()] == ["events"]


# Creating a cluster.


def in_processes(*works: Callable[[], object]) -> None:
    """Run all of these at once, each in a process of its own; all must succeed."""
    begin, begun = os.pipe()

    def wait_for(work: Callable[[], object]) -> Callable[[], object]:
        def waited() -> object:
            os.close(begun)
            os.read(begin, 1)  # returns when the parent closes its end
            return work()

        return waited

    children = [run_child(wait_for(work)) for work in works]
    os.close(begun)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    os.close(begin)
    assert statuses == [0] * len(works)


def test_two_processes_that_make_the_same_cluster_make_one(tmp_path: Path) -> None:
    def make(path: Path, name: str) -> Callable[[], None]:
        def work() -> None:
            cluster = create(path)
            cluster_id = json.loads((path / "cluster.json").read_text())["cluster_id"]
            (tmp_path / f"{path.name}.{name}").write_text(cluster_id)
            cluster.create_topic(name)

        return work

    for number in range(10):
        path = tmp_path / f"cluster-{number}"
        in_processes(make(path, "a"), make(path, "b"))
        cluster_id = json.loads((path / "cluster.json").read_text())["cluster_id"]

        assert [topic.name for topic in Cluster(str(path)).topics()] == ["a", "b"]
        assert {(tmp_path / f"{path.name}.{n}").read_text() for n in "ab"} == {cluster_id}
        assert f"cluster.id={cluster_id}\n" in (path / "broker-0/meta.properties").read_text()


@pytest.mark.more_in_soak
@pytest.mark.parametrize("torn", [False, True], ids=["before a step", "within a step"])
def test_creation_that_died_is_taken_over(tmp_path: Path, torn: bool) -> None:
    dry_run = FaultyFiles()
    create(tmp_path / "dry-run", dry_run)
    assert len(dry_run.steps) > 20
    for step in sample(range(len(dry_run.steps))):
        path = tmp_path / f"cluster-{step}"
        assert died(lambda path=path, step=step: create(path, FaultyFiles(Fault(step, torn=torn))))
        cluster = create(path)
        cluster.create_topic("events")
        builders.write(cluster, {("events", 0): [builders.batch()]})

        assert len(builders.contents(cluster)) == 1, dry_run.steps[step]


# What the files say.


@pytest.mark.parametrize(
    ("version", "advice"),
    [
        pytest.param(4, "upgrade spark-kbatch", id="later"),
        pytest.param(
            2,
            "let the version of spark-kbatch that wrote the cluster serve it, with `kbatch serve`, and copy its "
            "topics from there into a new one, with `kbatch mirror`",
            id="earlier",
        ),
    ],
)
def test_a_cluster_of_another_format_is_refused(tmp_path: Path, version: int, advice: str) -> None:
    path = builders.a_cluster(tmp_path).path
    described = json.loads((path / "cluster.json").read_text())
    (path / "cluster.json").write_text(json.dumps(described | {"version": version}))
    openers: list[Callable[[Path], Cluster]] = [create, Cluster]
    for use in openers:
        with pytest.raises(ConfigError) as error:
            use(path)

        assert str(error.value) == (
            f"{path}/cluster.json has format version {version}, and this release reads 3: {advice}"
        )


def test_a_cluster_of_another_format_is_not_restored(tmp_path: Path) -> None:
    path, disks = tmp_path / "cluster", [tmp_path / "disk-0", tmp_path / "disk-1"]
    Cluster(path, create=True, log_dirs=disks).create_topic("events")
    for disk in disks:
        (file,) = disk.glob("mirror-*/cluster.json")
        file.write_text(json.dumps(json.loads(file.read_text()) | {"version": 2}))
    shutil.rmtree(path)

    with pytest.raises(ConfigError, match=r"mirror-./cluster\.json has format version 2"):
        Cluster(path, create=True, log_dirs=disks)

    assert not path.exists()


DAMAGED = {
    "empty": b"",
    "cut off": b'{"version": 1, "topic_id": "',
    "not UTF-8": b'{"version": "\xff"}',
    "zeros": bytes(100),
    "a list": b"[]",
    "brackets": b"[" * 100_000,
}
MISSING = {
    "an empty object": b"{}",
    "no partitions": b'{"topic_id": "x", "config": {}}',
    "a setting of a later release": b'{"topic_id": "x", "partitions": 1, "config": {"x": 1}}',
    "a setting with a bad value": b'{"topic_id": "x", "partitions": 1, "config": {"cleanup.policy": 1}}',
    "a list of settings": b'{"topic_id": "x", "partitions": 1, "config": [1]}',
}


def test_settings_are_stored_by_kafkas_keys(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, config=TopicConfig(retention_ms=7))
    stored = json.loads((cluster.path / "topics" / "events.json").read_text())["config"]

    assert stored["retention.ms"] == 7
    assert stored["message.timestamp.type"] == "CreateTime"
    assert not any("_" in key for key in stored)


def stored_topic(cluster: Cluster, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((cluster.path / "topics" / f"{name}.json").read_text())
    return found


@pytest.mark.parametrize("factor", [1, 2, 3])
@pytest.mark.parametrize("partitions", [1, 2, 3, 4, 100])
def test_replicas_are_stored_as_the_rule_that_they_follow(
    tmp_path: Path, partitions: int, factor: int
) -> None:
    folders = [tmp_path / f"disk-{number}" for number in range(3)]
    for folder in folders:
        folder.mkdir()
    cluster = Cluster(str(tmp_path / "cluster"), create=True, log_dirs=folders)
    made = cluster.create_topic("events", partitions=partitions, replication_factor=factor)
    cycle = [[(p + n) % 3 for n in range(factor)] for p in range(min(partitions, 3))]

    assert stored_topic(cluster, "events")["replica_cycle"] == cycle
    assert Cluster(str(cluster.path)).topic("events") == made
    assert made.replicas == tuple(tuple(cycle[p % 3]) for p in range(partitions))


def test_replicas_that_follow_no_rule_are_stored_one_by_one(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"events": 3})
    topic = replace(cluster.topic("events"), replicas=((0,), (1,), (1,)))
    store_of(cluster).metadata.topics.write(topic)

    assert stored_topic(cluster, "events")["replica_cycle"] == [[0], [1], [1]]
    assert Cluster(str(cluster.path)).topic("events") == topic


class CountsReads(Files):
    """Counts how often a topic's file is read."""

    def __init__(self) -> None:
        self.reads = 0

    def read(self, path: Path, position: int = 0, size: int | None = None) -> bytes:
        self.reads += path.name == "events.json"
        return super().read(path, position, size)


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda c: builders.write(c, {("events", 7): [builders.batch()]}), id="commit"),
        pytest.param(
            lambda c: reader_of(c).plan(parse_read_options({"path": "/x", "subscribe": "events"})),
            id="plan",
        ),
        pytest.param(lambda c: c.describe(["events"]), id="describe"),
        pytest.param(lambda c: c.replicas(["events"]), id="replicas"),
        pytest.param(lambda c: c.collect_garbage(), id="collect garbage"),
        pytest.param(lambda c: list(c.repair()), id="repair"),
        pytest.param(lambda c: list(c.read("events")), id="read"),
    ],
)
def test_a_topics_file_is_read_once_however_many_partitions_it_has(
    tmp_path: Path, use: Callable[[Cluster], object]
) -> None:
    path, files = builders.a_cluster(tmp_path, topics={"events": 20}).path, CountsReads()
    use(Cluster(str(path), files=files))

    assert files.reads == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(
            {"partitions": 0}, "partitions is 0; expected a whole number from 1", id="none"
        ),
        pytest.param({"partitions": "x"}, "partitions is 'x'; expected", id="text"),
        pytest.param({"partitions": 10**6}, "partitions is 1000000; expected", id="too many"),
        pytest.param(
            {"replica_cycle": []}, "replica_cycle is a list of 0; expected", id="no nodes"
        ),
        pytest.param({"replica_cycle": [[0, 0]]}, "replica_cycle[0] is a list of 2", id="twice"),
        pytest.param({"topic_id": "../x"}, "topic_id is '../x'; expected", id="an id like a path"),
        pytest.param(
            {"config": {"index.interval.bytes": -1}},
            "config.index.interval.bytes is -1",
            id="setting",
        ),
        pytest.param(
            {"config": {"retention.ms": 1.5}},
            "config.retention.ms is 1.5; expected",
            id="no integer",
        ),
        pytest.param({"given": [1]}, "given is a list of 1; expected a list of texts", id="given"),
        pytest.param({"config": {"new": 1}}, "config.new is 1; expected a setting", id="unknown"),
        pytest.param(
            {"config": {"segment_bytes": 3000}},
            "config.segment_bytes is 3000; expected a setting",
            id="a field",
        ),
    ],
)
def test_a_value_that_makes_no_sense_is_named(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"events": 3})
    file = cluster.path / "topics" / "events.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(KafkaStorageError) as error:
        Cluster(str(cluster.path)).topic("events")

    assert str(error.value).startswith(f"{file} is damaged: {words}")


def test_a_replica_on_a_node_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    file = cluster.path / "topics" / "events.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"replica_cycle": [[7]]}))
    with pytest.raises(KafkaStorageError, match="names no log dir of node 7"):
        Cluster(str(cluster.path)).describe(["events"])


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_damaged_cluster_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = builders.a_cluster(tmp_path).path
    (path / "cluster.json").write_bytes(content)
    with pytest.raises(KafkaStorageError) as error:
        Cluster(str(path))

    assert str(error.value).startswith(f"{path / 'cluster.json'} is damaged: ")


@pytest.mark.parametrize("content", (DAMAGED | MISSING).values(), ids=DAMAGED | MISSING)
def test_damaged_topic_file_is_named(tmp_path: Path, content: bytes) -> None:
    cluster = builders.a_cluster(tmp_path)
    file = cluster.path / "topics" / "events.json"
    file.write_bytes(content)
    with pytest.raises(KafkaStorageError) as error:
        cluster.topics()

    assert str(error.value).startswith(f"{file} is damaged: ")


# Topics.


def test_topic_is_as_it_was_made(tmp_path: Path) -> None:
    config = TopicConfig(max_message_bytes=2_000, segment_bytes=1 << 20)
    made = create(tmp_path / "cluster").create_topic("events", partitions=3, config=config)
    found = store_of(Cluster(str(tmp_path / "cluster"))).metadata.topics.topic("events")

    assert found == made
    assert (found.name, found.partitions, found.config) == ("events", 3, config)


def test_topics_are_sorted_and_without_the_clusters_own(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"b": 1, "a.json": 1, "a": 1})

    assert store_of(cluster).metadata.topics.names() == ["a", "a.json", "b"]
    assert "__transaction_state" in store_of(cluster).metadata.topics.names(internal=True)


def test_no_topic_is_unknown_while_the_clusters_folder_is_away(tmp_path: Path) -> None:
    path, aside = tmp_path / "cluster", tmp_path / "aside"
    made = Cluster(path, create=True, log_dirs=[tmp_path / "disk"])
    with made as cluster, cluster.producer() as producer:
        cluster.create_topic("events")
        producer.send("events", value="one").result()
        path.rename(aside)
        with pytest.raises(KafkaStorageError, match="is gone: the folder was moved or deleted"):
            cluster.topic("events")
        with pytest.raises(KafkaStorageError, match="is gone"):
            cluster.topic_names()
        sent = producer.send("events", value="two")
        aside.rename(path)
        assert sent.result(10).offset == 1


def test_unknown_topic_is_refused_with_those_that_exist(tmp_path: Path) -> None:
    metadata = store_of(builders.a_cluster(tmp_path, topics={"clicks": 1, "views": 1})).metadata
    with pytest.raises(UnknownTopicOrPartitionError) as error:
        metadata.topics.topic("event")

    assert str(error.value) == (
        f"topic 'event' does not exist in {metadata.path}; its topics: clicks, views"
    )


def test_unknown_topic_among_many_is_refused_with_the_nearest(tmp_path: Path) -> None:
    topics = {f"other.{number}": 1 for number in range(20)} | {"orders.eu": 1}
    metadata = store_of(builders.a_cluster(tmp_path, topics=topics)).metadata
    with pytest.raises(
        UnknownTopicOrPartitionError, match=r"of its 21 topics the nearest are: orders\.eu, "
    ) as error:
        metadata.topics.topic("orders-eu")

    assert len(str(error.value).split(", ")) == 5


def test_topic_name_does_not_lead_out_of_the_cluster(tmp_path: Path) -> None:
    metadata = store_of(builders.a_cluster(tmp_path)).metadata
    with pytest.raises(InvalidTopicError):
        metadata.topics.find("../cluster")


def by_cluster(cluster: Cluster, name: str) -> Any:
    return cluster.create_topic(name)


def by_job(cluster: Cluster, name: str) -> Any:
    return find_or_create_topic(store_of(cluster), name, parse_write_options({"path": "/x"}))


@pytest.mark.parametrize("create", [by_cluster, by_job])
@pytest.mark.parametrize(("first", "second"), [("a.b", "a_b"), ("a_b.c", "a.b_c"), ("._", "_.")])
def test_a_name_that_kafkas_metrics_take_for_anothers_is_refused(
    tmp_path: Path, first: str, second: str, create: Callable[[Cluster, str], Any]
) -> None:
    cluster = Cluster(str(tmp_path / "cluster"), create=True)
    create(cluster, first)
    with pytest.raises(InvalidTopicError) as error:
        create(cluster, second)

    assert str(error.value) == (
        f"topic {second!r} cannot be created beside {first!r}: Kafka's metrics write '.' as '_'; "
        "choose another name"
    )
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)
    cluster.delete_topic(first)
    create(cluster, second)


def test_a_folder_that_has_two_such_names_goes_on_working(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(TopicFiles, "ensure_may_be_named", lambda *_: None)
        cluster = builders.a_cluster(tmp_path, topics={"a.b": 1, "a_b": 1})
    with Cluster(str(cluster.path)) as again, again.producer() as producer:
        for name in ("a.b", "a_b"):
            assert again.create_topic(name, exist_ok=True).name == name
            producer.send(name, name).result(10)
            again.create_partitions(name, 2)
            again.alter_topic(name, {"retention.ms": 1})
            assert again.read(name, columns=["value"]).read_all().num_rows == 1
        again.delete_topic("a.b")
        with pytest.raises(InvalidTopicError):
            again.create_topic("a.b")


def test_topic_that_exists_is_not_made_again(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    before = store_of(cluster).metadata.topics.topic("events")
    with pytest.raises(ConfigError, match="topic 'events' already exists"):
        cluster.create_topic("events", partitions=2)

    assert store_of(cluster).metadata.topics.topic("events") == before


EXISTING = TopicConfig(
    max_message_bytes=2_000, segment_bytes=1 << 20, message_format_version="0.10.2"
)


@pytest.mark.parametrize(
    ("key", "given", "existing"),
    [
        ("num.partitions", 3, 2),
        ("max.message.bytes", 3_000, 2_000),
        ("segment.bytes", 2**21, 2**20),
        ("message.format.version", "0.9.0", "0.10.2"),
    ],
    ids=["partitions", "message", "segment", "format"],
)
def test_existing_topic_with_other_settings_is_refused(
    tmp_path: Path, key: str, given: int | str, existing: int | str
) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"events": 2}, config=EXISTING)
    with pytest.raises(ConfigError) as error:
        find_or_create_topic(
            store_of(cluster), "events", parse_write_options({"path": "/x", key: str(given)})
        )

    assert str(error.value) == (
        f"option {key!r} is {given}, but topic 'events' exists with {existing}; leave the option out, "
        "or write to a new topic"
    )


def test_existing_topic_with_the_same_or_no_settings_is_taken(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"events": 2}, config=EXISTING)
    settings = {"num.partitions": "2", "max.message.bytes": "2000", "segment.bytes": str(1 << 20)}
    settings["message.format.version"] = "0.10.2"
    for options in ({}, settings):
        found = find_or_create_topic(
            store_of(cluster), "events", parse_write_options({"path": "/x", **options})
        )

        assert found == store_of(cluster).metadata.topics.topic("events")


def test_the_clusters_own_topic_cannot_be_written(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    with pytest.raises(ConfigError, match="topic '__transaction_state' is the cluster's own"):
        find_or_create_topic(
            store_of(cluster), "__transaction_state", parse_write_options({"path": "/x"})
        )
