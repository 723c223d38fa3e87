"""Topics that are deleted, get partitions, or are altered, while others read and write."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.catalog.log_dirs import RETRY_MS
from spark_kbatch.cluster.catalog import FolderCatalog
from spark_kbatch.commit.internal_topics import TRANSACTION_STATE
from spark_kbatch.errors import (
    ConfigError,
    FileSystemError,
    KafkaStorageError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.files import Files
from spark_kbatch.log.checkpoints import read_partition_metadata
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.segment import segment_at
from spark_kbatch.log.state import LogState
from spark_kbatch.model import LONG_MAX, AppendResult, TopicPartition
from spark_kbatch.opening.stores import open_for_reading
from spark_kbatch.options.topic import LOG_APPEND_TIME, TopicConfig
from spark_kbatch.producer.producer import REFRESH_MS
from spark_kbatch.replica.delayed_fetch import FetchInfo, FetchParams, FetchResult
from tests.support import builders
from tests.support.builders import append_records, batch, records_of
from tests.support.failing_disks import (
    BROKEN,
    Clock,
    Disks,
    a_replicated_cluster,
    isr,
    partition,
    with_clock,
)
from tests.support.faults import StopsInTheFlip
from tests.support.soundness import ensure_sound
from tests.support.store import reader_of, store_of

EVENTS = TopicPartition("events", 0)
OTHERS = TopicPartition("others", 0)
DAY_MS = 86_400_000


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """An open cluster that remembers what appends and reads leave there."""
    cluster = builders.a_cluster(tmp_path, topics={"events": 2, "others": 1})
    builders.write(cluster, {EVENTS: [batch()], ("events", 1): [batch()], OTHERS: [batch()]})
    assert append(cluster, EVENTS).error is None
    return cluster


def append(cluster: Cluster, topic_partition: TopicPartition, data: bytes = b"") -> AppendResult:
    return append_records(cluster, {topic_partition: data or batch()})[topic_partition]


def another(cluster: Cluster) -> Cluster:
    """Open the same cluster as another process would."""
    return Cluster(str(cluster.path), files=store_of(cluster).files)


def later(cluster: Cluster, ms: int = DAY_MS) -> Cluster:
    """Open the same cluster with a clock that is ahead."""
    now_ms: Callable[[], int] = store_of(cluster).manager.now_ms
    ahead = another(cluster)
    store_of(ahead).manager.now_ms = lambda: now_ms() + ms
    return ahead


def directories(cluster: Cluster, node: int = 0) -> list[str]:
    """Return the directories of a log dir; those of deleted topics without their unique part."""
    found = []
    for path in sorted(store_of(cluster).metadata.cluster_file.log_dir(node).path.iterdir()):
        if path.is_dir() and not path.name.startswith("__"):
            name, dot, ending = path.name.rpartition(".")
            assert not dot or len(ending) == len("-delete") + 32
            found.append(f"{name}-delete" if dot else path.name)
    return found


# Deleting.


def test_a_deleted_topic_is_gone_for_everyone_at_once(cluster: Cluster) -> None:
    other = another(cluster)
    deleted = cluster.topic("events")
    assert cluster.delete_topic("events") == deleted
    for found in (cluster, other, another(cluster)):
        uses: list[Callable[[Cluster], object]] = [
            lambda c: c.topic("events"),
            lambda c: c.describe(["events"]),
            lambda c: list(c.read("events")),
            lambda c: reader_of(c).edges([EVENTS]),
            lambda c: c.delete_records({EVENTS: 1}),
            lambda c: c.export("events", to="broker"),
            lambda c: c.replicas(["events"]),
            lambda c: c.collect_garbage(["events"]),
            lambda c: c.delete_topic("events"),
            lambda c: c.create_partitions("events", 9),
            lambda c: c.alter_topic("events", {}),
        ]
        assert found.topic_names() == ["others"]
        assert store_of(found).metadata.topics.find("events") is None
        assert list(builders.contents(found)) == [OTHERS]
        assert isinstance(append(found, EVENTS).error, UnknownTopicOrPartitionError)
        for use in uses:
            with pytest.raises(UnknownTopicOrPartitionError, match="'events' does not exist"):
                use(found)
    assert not (cluster.path / "topics" / "events.json").exists()


def test_its_directories_have_a_brokers_names_and_go_after_their_delay(cluster: Cluster) -> None:
    cluster.delete_topic("events")
    assert directories(cluster) == ["events-0-delete", "events-1-delete", "others-0"]
    builders.write(cluster, {OTHERS: [batch()]})
    assert cluster.collect_garbage().deleted_topics == []
    early = later(cluster, 59_000)
    assert early.collect_garbage().deleted_topics == []
    assert len(directories(cluster)) == 3

    late = later(cluster, 61_000)
    (garbage,) = late.collect_garbage(dry_run=True).deleted_topics
    assert garbage.topic == "events"
    assert len(directories(cluster)) == 3
    assert late.collect_garbage().deleted_topics == [garbage]
    assert directories(cluster) == ["others-0"]
    assert list((cluster.path / "deleted").iterdir()) == []


def test_a_reader_of_the_log_dir_as_a_brokers_finds_no_deleted_topic(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.delete_topic("events")
    shutil.copytree(cluster.path / "broker-0", tmp_path / "copy")
    logs = open_for_reading(str(tmp_path / "copy"))
    assert {*logs.topic_names(internal=True)} == {*cluster.topic_names(internal=True)}
    assert len(logs.read("others").read_all()) == 3


def test_a_commit_removes_them_too(cluster: Cluster) -> None:
    cluster.delete_topic("events")
    builders.write(later(cluster), {OTHERS: [batch()]})
    assert directories(cluster) == ["others-0"]


class _LocksSeen(Files):
    """Tries to take a cluster's locks while it removes a directory."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.locks_dir, self.removed = path / "locks", list[str]()

    def remove_dir(self, path: Path) -> None:
        if path.name.endswith("-delete") and self.exists(path):
            self.removed.append(path.name)
            for name in ("commit", "metadata"):
                lock = self.flock(self.locks_dir / name, wait=False)
                assert lock is not None, f"{name} is locked"
                lock.release()
        super().remove_dir(path)


@pytest.mark.parametrize("by", ["the deletion", "a commit", "collecting garbage"])
def test_no_one_waits_while_directories_are_removed(cluster: Cluster, by: str) -> None:
    files = _LocksSeen(cluster.path)
    if by == "the deletion":
        cluster.alter_topic("events", {"file.delete.delay.ms": 0})
        Cluster(str(cluster.path), files=files).delete_topic("events")
    else:
        cluster.delete_topic("events")
        late = later(Cluster(str(cluster.path), files=files))
        if by == "a commit":
            builders.write(late, {OTHERS: [batch()]})
        else:
            late.collect_garbage()
    assert len(files.removed) == 2
    assert directories(cluster) == ["others-0"]
    assert list((cluster.path / "deleted").iterdir()) == []


def test_a_commit_removes_some_of_many_directories(cluster: Cluster) -> None:
    cluster.create_topic("large", partitions=100)
    cluster.delete_topic("large")
    late = later(cluster)
    for left in (68, 36, 4, 0):
        builders.write(late, {OTHERS: [batch()]})
        found = [name for name in directories(cluster) if name.startswith("large")]
        assert len(found) == left
    assert list((cluster.path / "deleted").iterdir()) == []


def test_a_directory_that_another_removes_at_once_is_not_forgotten(cluster: Cluster) -> None:
    class Interrupted(Files):
        def remove_dir(self, path: Path) -> None:
            pass  # as where a file was gone: the other process has more to remove

    cluster.delete_topic("events")
    files = Interrupted()
    late = later(Cluster(str(cluster.path), files=files))
    assert late.collect_garbage().deleted_topics == []
    assert len(list((cluster.path / "deleted").iterdir())) == 1
    assert len(later(cluster).collect_garbage().deleted_topics) == 1
    assert directories(cluster) == ["others-0"]


def test_readers_remove_nothing(cluster: Cluster) -> None:
    cluster.delete_topic("events")
    late = later(cluster)
    list(late.read("others"))
    late.describe(["others"])
    assert len(directories(cluster)) == 3


@pytest.mark.parametrize("length", [210, 249])
def test_a_long_name_is_cut_as_a_broker_cuts_it(tmp_path: Path, length: int) -> None:
    name = "t" * length
    cluster = builders.a_cluster(tmp_path, topics={name: 12})
    cluster.delete_topic(name)
    found = sorted(path.name for path in (cluster.path / "broker-0").glob("t*"))
    assert len(found) == 12
    assert {len(one) for one in found} == {min(length + 43, 255), min(length + 42, 255)}
    assert all(name.startswith(one.rpartition("-")[0].rpartition("-")[0]) for one in found)
    later(cluster).collect_garbage()
    assert not list((cluster.path / "broker-0").glob("t*"))


def test_a_topic_of_the_same_name_is_another_one(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        producer.send("events", value="before", partition=1).result()
        first = cluster.delete_topic("events")
        second = cluster.create_topic("events", partitions=3)
        assert second.topic_id != first.topic_id
        time.sleep(2 * REFRESH_MS / 1000)
        # The producer continues in the topic that has the name now.
        assert producer.send("events", value="after", partition=1).result().offset == 0
    assert [len(records) for records in builders.contents(cluster).values()] == [0, 1, 0, 3]
    later(cluster).collect_garbage()
    assert [len(records) for records in builders.contents(another(cluster)).values()] == [
        0,
        1,
        0,
        3,
    ]


def test_a_topic_that_is_made_again_under_its_id_is_not_removed_as_deleted(
    cluster: Cluster,
) -> None:
    """As a mirror does."""
    moved = TopicPartition("moved", 0)
    first = FolderCatalog(store_of(cluster)).create_moved_topic("moved", "", [0], {})
    append(cluster, moved)
    cluster.delete_topic("moved")
    (record,) = (cluster.path / "deleted").iterdir()
    again = FolderCatalog(store_of(cluster)).create_moved_topic("moved", first.topic_id, [0], {})
    assert again.topic_id == first.topic_id
    assert append(cluster, moved).base_offset == 0
    assert directories(cluster) == ["events-0", "events-1", "moved-0", "others-0"]
    assert not record.exists()
    assert later(cluster).collect_garbage().deleted_topics == []
    assert len(builders.contents(another(cluster))[moved]) == 3


def test_topics_that_come_and_go_leave_nothing(cluster: Cluster) -> None:
    for _ in range(4):
        cluster.delete_topic("events")
        cluster.create_topic("events", partitions=2)
        append(cluster, EVENTS)
    assert len(directories(cluster)) == 3 + 4 * 2
    later(cluster).collect_garbage()
    assert directories(cluster) == ["events-0", "events-1", "others-0"]
    assert len(builders.contents(cluster)[EVENTS]) == 3


def test_names_that_look_alike_are_left_alone(tmp_path: Path) -> None:
    names = ["a", "a-0", "a-1", "a.0", "a-0-delete", "aa"]
    cluster = builders.a_cluster(tmp_path, topics=dict.fromkeys(names, 1))
    for name in names:
        append(cluster, TopicPartition(name, 0))
    for number, name in enumerate(names, 1):
        cluster.delete_topic(name)
        later(cluster).collect_garbage()
        left = builders.contents(another(cluster))
        assert [tp.topic for tp in left] == sorted(names[number:])
        assert all(len(records) == 3 for records in left.values())


@pytest.mark.parametrize("name", ["__commits", "__transaction_state"])
def test_topics_of_the_cluster_are_left_alone(cluster: Cluster, name: str) -> None:
    for change in (
        lambda: cluster.delete_topic(name),
        lambda: cluster.create_partitions(name, 2),
        lambda: cluster.alter_topic(name, {"segment.bytes": 2 << 20}),
    ):
        with pytest.raises(ConfigError, match="is the cluster's own"):
            change()


def test_a_producers_batches_for_a_deleted_topic_fail_at_once(cluster: Cluster) -> None:
    with cluster.producer(linger_ms=60_000) as producer:
        waiting = producer.send("events", value="v")
        kept = producer.send("others", value="v")
        another(cluster).delete_topic("events")
        began = time.monotonic()
        producer.flush()
        with pytest.raises(UnknownTopicOrPartitionError, match="'events' does not exist"):
            waiting.result(timeout=60)
        assert kept.result().offset == 3
        with pytest.raises(UnknownTopicOrPartitionError):
            producer.send("events", value="v")
        assert time.monotonic() - began < 30, "it waited for delivery.timeout.ms"


def test_a_fetch_that_waits_is_answered_when_its_topic_goes(cluster: Cluster) -> None:
    answers: list[FetchResult] = []
    done = threading.Event()

    def on_complete(results: dict[TopicPartition, FetchResult]) -> None:
        answers.extend(results.values())
        done.set()

    parts = store_of(cluster)
    parts.manager.fetch_messages(
        FetchParams(max_wait_ms=600_000),
        {EVENTS: FetchInfo(6, 1 << 20)},
        on_complete,
        replicas=parts.snapshots.replicas,
    )
    assert not answers
    cluster.delete_topic("events")
    assert done.wait(30)
    assert isinstance(answers[0].error, UnknownTopicOrPartitionError)


def test_a_read_under_way_ends_with_the_topic(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_kbatch.consumer.reading.FETCH_BYTES", 1)
    reading = iter(cluster.read("events"))
    next(reading)
    another(cluster).delete_topic("events")
    with pytest.raises(UnknownTopicOrPartitionError, match="'events' does not exist"):
        list(reading)


@pytest.mark.parametrize("partition", [0, 1])
def test_a_read_under_way_gets_no_records_of_a_recreated_topic(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, partition: int
) -> None:
    """The reader is within a partition in one case, and between two in the other."""
    monkeypatch.setattr("spark_kbatch.consumer.reading.FETCH_BYTES", 1)
    reading = iter(cluster.read("events", columns=["offset"]))
    taken = [next(reading) for _ in range(1 + partition)]
    other = another(cluster)
    other.delete_topic("events")
    other.create_topic("events", partitions=2)
    for number in range(2):
        assert append(other, TopicPartition("events", number), batch(n=100)).error is None
    with pytest.raises(UnknownTopicOrPartitionError, match="deleted and created again"):
        list(reading)
    assert [rows["offset"].to_pylist() for rows in taken] == [[0, 1, 2], [3, 4, 5]][: 1 + partition]


@pytest.mark.parametrize("recreated", [False, True])
def test_a_topic_that_goes_while_it_is_described_is_gone_or_the_new_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, recreated: bool
) -> None:
    size_in_bytes, other = PartitionLog.size_in_bytes, another(cluster)

    def size_of_what_goes(log: PartitionLog, state: LogState) -> int:
        monkeypatch.setattr(PartitionLog, "size_in_bytes", size_in_bytes)
        other.delete_topic("events")
        if recreated:
            other.create_topic("events", partitions=2)
        return size_in_bytes(log, state)

    builders.write(cluster, {EVENTS: [batch()]})
    monkeypatch.setattr(PartitionLog, "size_in_bytes", size_of_what_goes)
    if recreated:
        assert [row.size_in_bytes for row in cluster.describe(["events"])] == [0, 0]
    else:
        with pytest.raises(UnknownTopicOrPartitionError):
            cluster.describe(["events"])


def test_a_commit_that_was_decided_is_finished_first(cluster: Cluster) -> None:
    files = StopsInTheFlip(1)
    stopped = Cluster(str(cluster.path), files=files)
    with pytest.raises(Exception, match="is committed"):
        builders.write(stopped, {EVENTS: [batch(seed=5)], OTHERS: [batch(seed=6)]})
    another(cluster).delete_topic("events")
    assert builders.contents(cluster)[OTHERS] == records_of([batch(), batch(seed=6)])
    assert append(cluster, OTHERS).base_offset == 6
    ensure_sound(store_of(cluster).manager.log(TRANSACTION_STATE))


def test_history_still_tells_what_was_committed_to_it(cluster: Cluster) -> None:
    cluster.delete_topic("events")
    (commit,) = cluster.history()
    assert set(commit.topics) == {"events", "others"}
    builders.write(cluster, {OTHERS: [batch()]})
    assert len(list(cluster.history())) == 2


def test_a_deletion_that_cannot_be_decided_changes_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    stubborn = Cluster(str(cluster.path))

    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(13, "Permission denied", str(target))

    monkeypatch.setattr(store_of(stubborn).files, "rename", refuse)
    with pytest.raises(FileSystemError, match="Permission denied"):
        stubborn.delete_topic("events")
    assert len(builders.contents(cluster)[EVENTS]) == 6


def test_directories_that_cannot_be_renamed_keep_the_name_from_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Until they are renamed: a new topic's records would be removed with them."""
    stubborn = Cluster(str(cluster.path))
    rename = store_of(stubborn).files.rename

    def refuse(source: Path, target: Path) -> None:
        if target.name.endswith("-delete"):
            raise PermissionError(13, "Permission denied", str(target))
        rename(source, target)

    monkeypatch.setattr(store_of(stubborn).files, "rename", refuse)
    stubborn.delete_topic("events")
    assert "files of the deleted topic events cannot be removed for now" in caplog.text
    assert cluster.topic_names() == ["others"]
    with pytest.raises(KafkaStorageError, match="could not be renamed yet"):
        stubborn.create_topic("events")
    stubborn.create_topic("third")

    cluster.create_topic("events", partitions=2)
    assert builders.contents(cluster)[EVENTS] == []
    assert directories(cluster).count("events-0-delete") == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"topic": "../x"}',
        '{"topic": "events", "topic_id": "../../x", "delete_ms": 0, "named": [0], "nodes": [0]}',
    ],
    ids=["empty", "a list", "cut off", "no topic's name", "no topic's id"],
)
def test_a_damaged_note_of_a_deletion_is_said_and_left(
    cluster: Cluster, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (cluster.path / "deleted").mkdir(exist_ok=True)
    (cluster.path / "deleted" / "x.json").write_text(text)
    assert later(cluster).collect_garbage().deleted_topics == []
    assert "is damaged" in caplog.text
    assert (cluster.path / "deleted" / "x.json").exists()
    cluster.delete_topic("events")
    later(cluster).collect_garbage()
    assert directories(cluster) == ["others-0"]


def test_topics_that_do_not_exist_are_not_remembered(cluster: Cluster) -> None:
    other, manager = another(cluster), store_of(cluster).manager
    for each in (cluster, other):
        assert append(each, EVENTS).error is None
        for number in range(10):
            with pytest.raises(UnknownTopicOrPartitionError):
                each.topic(f"nothing-{number}")
    cluster.delete_topic("events")
    assert append(other, EVENTS).error is not None
    for one in (manager, store_of(other).manager):
        assert {tp.topic for tp in one._partitions} <= {
            "others",
            "__transaction_state",
            "__commits",
        }
        assert not [name for name in one.metadata.topics._known if "nothing" in name]
        assert "events" not in one.metadata.topics._known


def test_a_delay_without_end_keeps_the_files(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.alter_topic("events", {"file.delete.delay.ms": LONG_MAX})
    cluster.delete_topic("events")
    assert later(cluster).collect_garbage().deleted_topics == []
    assert len(directories(cluster)) == 3
    cluster.create_topic("events")
    assert len(store_of(cluster).metadata.deleted.all()) == 1
    assert not caplog.messages


@pytest.mark.parametrize("stray", ["a copy", "a directory", "a loop of links"])
def test_a_stray_file_in_deleted_stops_nothing(
    cluster: Cluster, stray: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.delete_topic("events")
    (known,) = (cluster.path / "deleted").iterdir()
    path = known.with_name("x.json")
    if stray == "a copy":
        path = known.with_name(f"{known.stem} (copy).json")
        shutil.copy(known, path)
    elif stray == "a directory":
        path.mkdir()
    else:
        path.symlink_to(path)
    late = later(cluster)
    late.alter_topic("others", {"retention.ms": 5})
    assert len(late.collect_garbage().deleted_topics) == 1
    assert late.collect_garbage().deleted_topics == []
    late.create_topic("events")
    late.delete_topic("events")
    assert directories(cluster) == ["events-0-delete", "others-0"]
    assert len([line for line in caplog.messages if path.name in line]) == 1, "it is said once"


def test_a_file_in_the_place_of_deleted_is_said(cluster: Cluster) -> None:
    path = cluster.path / "deleted"
    path.rmdir()
    path.write_text("")
    with pytest.raises(KafkaStorageError, match=f"{path} is not a folder; move it away"):
        cluster.delete_topic("events")
    assert cluster.collect_garbage().deleted_topics == []
    cluster.create_topic("more")
    assert cluster.topic_names() == ["events", "more", "others"]
    path.unlink()
    cluster.delete_topic("events")


# Several disks.


@pytest.fixture
def replicated(tmp_path: Path, disks: Disks, clock: Clock) -> Cluster:
    config = TopicConfig(min_insync_replicas=1)
    made = a_replicated_cluster(tmp_path, disks, config=config)
    cluster = with_clock(made, clock)
    for number in range(3):
        assert append(cluster, EVENTS, batch(seed=number)).error is None
    return cluster


def disk(cluster: Cluster, node: int) -> Path:
    return cluster.path.parent / f"disk-{node}"


def test_all_disks_forget_a_deleted_topic(replicated: Cluster, disks: Disks) -> None:
    disks.fail(disk(replicated, 0), BROKEN)
    assert append(replicated, EVENTS).error is None
    assert (replicated.path / "partitions" / "events" / "0.json").exists()
    disks.mend(disk(replicated, 0))
    again = Cluster(str(replicated.path), files=disks)
    again.delete_topic("events")
    for node in range(3):
        assert directories(again, node) == ["events-0-delete"]
        mirror = disk(replicated, node) / f"mirror-{node}"
        assert not (mirror / "topics" / "events.json").exists()
        assert not (mirror / "partitions" / "events").exists()
    assert not (replicated.path / "partitions" / "events").exists()
    later(again).collect_garbage()
    for node in range(3):
        assert directories(again, node) == []
        assert list((disk(replicated, node) / f"mirror-{node}" / "deleted").iterdir()) == []


def deleted_without(replicated: Cluster, disks: Disks, node: int) -> Cluster:
    """A topic that was deleted while a disk was broken that is back by now."""
    disks.fail(disk(replicated, node), BROKEN)
    Cluster(str(replicated.path), files=disks).delete_topic("events")
    disks.mend(disk(replicated, node))
    return Cluster(str(replicated.path), files=disks)


def test_a_disk_that_was_away_does_not_bring_a_deleted_topic_back(
    replicated: Cluster, disks: Disks
) -> None:
    back = deleted_without(replicated, disks, 1)  # which refreshes the copies of the disk
    assert not (disk(replicated, 1) / "mirror-1" / "topics" / "events.json").exists()
    assert directories(back, 1) == ["events-0"]
    assert back.topic_names() == []
    assert store_of(back).metadata.topics.find("events") is None
    assert isinstance(append(back, EVENTS).error, UnknownTopicOrPartitionError)

    back.collect_garbage()
    assert directories(back, 1) == ["events-0-delete"]
    later(back).collect_garbage()
    assert [directories(back, node) for node in range(3)] == [[], [], []]
    assert list((replicated.path / "deleted").iterdir()) == []


def test_a_disk_that_stays_away_is_not_forgotten(replicated: Cluster, disks: Disks) -> None:
    disks.fail(disk(replicated, 1), BROKEN)
    away = Cluster(str(replicated.path), files=disks)
    away.delete_topic("events")
    later(away).collect_garbage()
    (note,) = store_of(away).metadata.deleted.all()
    assert (note.named, note.nodes) == ((1,), (1,))
    assert not store_of(later(away)).manager.deletions.due(10**15), (
        "there is nothing that can be done"
    )


def test_a_new_topic_of_the_name_takes_nothing_from_a_disk_that_was_away(
    replicated: Cluster, disks: Disks
) -> None:
    disks.fail(disk(replicated, 1), BROKEN)
    away = Cluster(str(replicated.path), files=disks)
    away.delete_topic("events")
    made = away.create_topic("events", replication_factor=2)
    assert append(away, EVENTS, batch(seed=9)).error is None
    disks.mend(disk(replicated, 1))

    back = Cluster(str(replicated.path), files=disks)
    assert back.topic("events") == made
    assert builders.contents(back)[EVENTS] == records_of([batch(seed=9)])
    grown = back.create_partitions("events", 6)
    on_it = [p for p in range(6) if 1 in grown.replicas_of(p)]
    assert on_it
    for number in on_it:
        directory = disk(replicated, 1) / "broker-1" / f"events-{number}"
        assert read_partition_metadata(store_of(back).files, directory) == made.topic_id
    assert builders.contents(back)[EVENTS] == records_of([batch(seed=9)])


@pytest.mark.parametrize("recreated", [False, True])
def test_path_made_again_from_its_disks_has_no_deleted_topic(
    replicated: Cluster, disks: Disks, recreated: bool
) -> None:
    """Even if one of them was away and missed it."""
    back = deleted_without(replicated, disks, 1)
    made = None
    if recreated:
        made = back.create_topic("events", replication_factor=2, partitions=2)
    shutil.rmtree(replicated.path)
    folders = [disk(replicated, node) for node in range(3)]
    again = Cluster(str(replicated.path), create=True, log_dirs=folders, files=disks)
    assert again.topic_names() == (["events"] if recreated else [])
    assert store_of(again).metadata.topics.find("events") == made
    later(again).collect_garbage()
    assert list((replicated.path / "deleted").iterdir()) == []
    if recreated:
        assert append(again, EVENTS).base_offset == 0


def test_who_led_a_deleted_topic_says_nothing_of_a_new_one(
    replicated: Cluster, disks: Disks, clock: Clock
) -> None:
    disks.fail(disk(replicated, 0), BROKEN)
    assert append(replicated, EVENTS).error is None
    assert partition(replicated).view.state().leader == 1
    disks.mend(disk(replicated, 0))
    disks.fail(disk(replicated, 2), BROKEN)  # It still has the old leader in its mirror.
    away = Cluster(str(replicated.path), files=disks)
    away.delete_topic("events")
    away.create_topic("events", replication_factor=2)
    disks.mend(disk(replicated, 2))
    clock.now_ms += RETRY_MS
    back = with_clock(away, clock)
    assert (disk(replicated, 2) / "mirror-2" / "partitions" / "events" / "0.json").exists()
    assert partition(back).view.state().leader == 0
    assert isr(back) == (0, 1)
    assert append(back, EVENTS).base_offset == 0


def test_an_old_copy_of_an_altered_topic_does_not_win(replicated: Cluster, disks: Disks) -> None:
    disks.fail(disk(replicated, 0), BROKEN)
    away = Cluster(str(replicated.path), files=disks)
    away.alter_topic("events", {"max.message.bytes": 5000})
    disks.mend(disk(replicated, 0))
    shutil.rmtree(replicated.path)
    folders = [disk(replicated, node) for node in range(3)]
    again = Cluster(str(replicated.path), create=True, log_dirs=folders, files=disks)
    assert again.topic("events").config.max_message_bytes == 5000


# More partitions.


def test_new_partitions_are_empty_and_the_others_as_they_were(cluster: Cluster) -> None:
    before = builders.contents(cluster)
    grown = cluster.create_partitions("events", 5)
    assert (grown.partitions, cluster.topic("events")) == (5, grown)
    after = builders.contents(another(cluster))
    assert after == before | {TopicPartition("events", p): [] for p in (2, 3, 4)}
    for number in range(5):
        topic_partition = TopicPartition("events", number)
        assert append(another(cluster), topic_partition).error is None
        log = store_of(cluster).manager.log(topic_partition)
        assert read_partition_metadata(store_of(cluster).files, log.directory) == grown.topic_id
        ensure_sound(log)
    builders.write(cluster, {("events", 4): [batch()], ("events", 0): [batch()]})


def test_a_grown_topic_keeps_its_replicas_and_shares_the_new_ones_out(
    replicated: Cluster, disks: Disks
) -> None:
    cluster = Cluster(str(replicated.path), files=disks)
    cluster.create_topic("two", partitions=2, replication_factor=2)
    known = cluster.topic("two").replicas
    disks.fail(disk(replicated, 2), BROKEN)
    away = Cluster(str(replicated.path), files=disks)
    grown = away.create_partitions("two", 6)
    assert grown.replicas[:2] == known
    assert all({*nodes} == {0, 1} for nodes in grown.replicas[2:])
    assert another(cluster).topic("two") == grown
    assert append(away, TopicPartition("two", 5)).error is None


@pytest.mark.parametrize("total", [1, 2])
def test_a_total_that_is_no_increase_is_refused(cluster: Cluster, total: int) -> None:
    with pytest.raises(ConfigError, match=rf"has 2 partitions; {total} would not be an increase"):
        cluster.create_partitions("events", total)


def test_a_new_partition_is_not_created_over_an_existing_directory(cluster: Cluster) -> None:
    """A directory left by a crash would be empty; one with records is a user's."""
    directory = cluster.path / "broker-0" / "events-2"
    shutil.copytree(cluster.path / "broker-0" / "events-1", directory)
    with pytest.raises(KafkaStorageError, match="events-2"):
        cluster.create_partitions("events", 3)
    assert segment_at(directory, 0).log.stat().st_size > 0
    assert cluster.topic("events").partitions == 2


# Settings.


def test_writers_that_are_open_obey_altered_settings(cluster: Cluster) -> None:
    other = another(cluster)
    other.alter_topic("events", {"max.message.bytes": 1024})
    assert isinstance(append(cluster, EVENTS, batch(n=30)).error, RecordTooLargeError)
    other.alter_topic("events", {"max.message.bytes": None})
    assert append(cluster, EVENTS, batch(n=30)).error is None
    other.alter_topic("events", {"message.timestamp.type": "logappendtime"})
    assert append(cluster, EVENTS).log_append_time > 0
    builders.write(cluster, {EVENTS: [batch()]})
    ensure_sound(store_of(cluster).manager.log(EVENTS))


def test_a_setting_is_not_set_and_reset_at_once_in_two_spellings(cluster: Cluster) -> None:
    before = cluster.topic("events").config
    for config in (
        {"retention.ms": 5, "retention_ms": None},
        {"retention_ms": 5, "retention.ms": None},
    ):
        with pytest.raises(ConfigError, match=r"config names 'retention\.ms' twice"):
            cluster.alter_topic("events", config)
    assert cluster.topic("events").config == before


def test_only_what_is_named_is_altered(cluster: Cluster) -> None:
    first = cluster.alter_topic("events", {"retention.ms": 5, "segment.bytes": 1 << 20})
    second = cluster.alter_topic("events", {"retention.ms": None, "retention.bytes": 7})
    assert first.config == TopicConfig(retention_ms=5, segment_bytes=1 << 20)
    assert second.config == TopicConfig(retention_bytes=7, segment_bytes=1 << 20)
    assert another(cluster).topic("events") == second
    assert cluster.alter_topic("events", {}) == second


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"retention.mss": 5}, "unknown option 'retention.mss'.*'retention.ms'"),
        ({"retention.mss": None}, "unknown option 'retention.mss'.*'retention.ms'"),
        ({"retention.ms": "soon"}, "retention.ms"),
        ({"cleanup.policy": "compact"}, "compaction leaves gaps"),
        (
            {"message.format.version": "0.9.0"},
            "'message.format.version' of topic 'events'.*cannot be changed",
        ),
    ],
    ids=["unknown", "unknown, to its default", "a bad value", "compaction", "another format"],
)
def test_what_cannot_be_set_is_refused_and_nothing_is_altered(
    cluster: Cluster, changes: dict[str, object], words: str
) -> None:
    before = cluster.topic("events")
    with pytest.raises(ConfigError, match=words):
        cluster.alter_topic("events", {"retention.bytes": 1} | changes)
    assert cluster.topic("events") == before


def test_the_format_of_an_old_topic_cannot_be_reset(cluster: Cluster) -> None:
    cluster.create_topic("old", config={"message.format.version": "0.10.2"})
    with pytest.raises(ConfigError, match=r"is '0\.10\.2' and cannot be changed"):
        cluster.alter_topic("old", {"message.format.version": None})
    cluster.alter_topic("old", {"message.format.version": "0.10.1"})


def test_more_replicas_that_must_be_in_sync_take_nothing_back(
    replicated: Cluster, disks: Disks, clock: Clock
) -> None:
    """With fewer in sync the high watermark stands still; followers must know it before that."""
    cluster = with_clock(Cluster(str(replicated.path), files=disks), clock)
    disks.fail(disk(replicated, 2), BROKEN)
    assert append(cluster, EVENTS).error is None
    shown = reader_of(cluster).edges([EVENTS])[EVENTS].high_watermark
    cluster.alter_topic("events", {"min.insync.replicas": 3})
    disks.fail(disk(replicated, 0), BROKEN)
    clock.now_ms += RETRY_MS
    assert reader_of(with_clock(cluster, clock)).edges([EVENTS])[EVENTS].high_watermark == shown


def test_json_has_the_number_of_its_version(cluster: Cluster) -> None:
    """By that number the newest of several copies is known."""
    path = cluster.path / "topics" / "events.json"
    for number in range(3):
        assert json.loads(path.read_text())["generation"] == number
        cluster.alter_topic("events", {"retention.bytes": number})


def test_a_retry_of_old_events_after_a_change_is_not_appended_again(cluster: Cluster) -> None:
    data = builders.idempotent_batch(base_sequence=0)  # its records are older than a day
    first = append(cluster, EVENTS, data)
    cluster.alter_topic("events", {"retention.ms": 10**13})
    again = append(cluster, EVENTS, data)
    assert again.error is None
    assert again.base_offset == first.base_offset


def test_log_append_time_needs_a_format_with_times(cluster: Cluster) -> None:
    cluster.create_topic("old", config={"message.format.version": "0.9.0"})
    with pytest.raises(ConfigError, match="whose format has no timestamps"):
        cluster.alter_topic("old", {"message.timestamp.type": LOG_APPEND_TIME})
