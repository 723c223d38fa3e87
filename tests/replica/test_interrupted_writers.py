"""Several disks beside writers that died or took turns, and beside deletions that not all disks have seen."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any, NoReturn

import pytest

from spark_kbatch import Cluster
from spark_kbatch.cluster.offsets_store import OffsetsStore
from spark_kbatch.commit.coordinator import Coordinator, Overwrite
from spark_kbatch.errors import (
    KafkaStorageError,
    NotLeaderOrFollowerError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.log.checkpoints import read_leader_epochs
from spark_kbatch.log.state import LogState
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.replica.manager import ACKS_LEADER, ReplicaManager
from spark_kbatch.replica.partition import Partition
from spark_kbatch.replica.view import Look, PartitionView
from tests.support import builders
from tests.support.crashes import another_boot
from tests.support.disk_states import (
    PATH,
    Case,
    come_back,
    disks_come_back,
    disks_go_away,
    take_image,
)
from tests.support.failing_disks import (
    BROKEN,
    EVENTS,
    FULL,
    Killed,
    append,
    bytes_of,
    held,
    partition,
    with_clock,
)
from tests.support.reference import Record, encode_batch
from tests.support.store import store_of
from tests.support.stored_groups import store

BIG, OTHER = TopicPartition("big", 0), TopicPartition("other", 0)


# Beside a commit whose process has died.


def die(*_: object, **__: object) -> NoReturn:
    raise Killed


def decide_and_die(cluster: Cluster, clock: object, *topics: str) -> None:
    """Commit a batch to each topic, and die once that is decided."""
    batch = encode_batch([Record(0, 1, None, b"job")])
    staged = builders.staged(cluster, {(topic, 0): [batch] for topic in topics}, flush=True)
    coordinator = Coordinator(store_of(cluster).manager, clock, adopt_min_bytes=1 << 20, flush=True)
    coordinator._flip = die
    with pytest.raises(Killed):
        coordinator.commit(staged, transactional_id=builders.JOB)


def test_a_commit_that_dies_beside_a_repair_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "cluster"
    with Cluster(path, create=True) as cluster:
        for topic in ("events", "other"):
            cluster.create_topic(topic)
        reports = iter(cluster.repair())
        next(reports)
        decide_and_die(cluster, lambda: 1, "events", "other")
        assert [one.damaged for one in reports if one.damaged] == []
    with Cluster(path) as cluster:
        for tp in (EVENTS, OTHER):
            assert held(cluster, tp) == [b"job"]
            assert append(cluster, b"next", tp) == 1


def test_a_commit_that_died_waits_for_a_topic_whose_file_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "cluster"
    with Cluster(path, create=True) as cluster:
        for topic in ("events", "other"):
            cluster.create_topic(topic, replication_factor=3)
        decide_and_die(cluster, lambda: 1, "events", "other")
    file = path / "topics" / "events.json"
    file.unlink()
    with Cluster(path) as cluster:
        with pytest.raises(UnknownTopicOrPartitionError, match="repair"):
            append(cluster, b"next", OTHER)
        assert not [one for report in cluster.repair() for one in report.damaged]
        for tp in (EVENTS, OTHER):
            assert append(cluster, b"next", tp) == 1
            assert held(cluster, tp) == [b"job", b"next"]


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_commit_that_a_power_loss_brings_back_changes_nothing_in_topics_that_are_gone(
    tmp_path: Path, is_made_again: bool, replicas: int
) -> None:
    """It was completed and not flushed, and one of its topics was deleted since."""
    path = tmp_path / "cluster"
    with Cluster(path, create=True) as cluster:
        for topic in ("events", "other"):
            cluster.create_topic(topic, replication_factor=replicas)
        decide_and_die(cluster, lambda: 1, "events", "other")
        files = [*path.glob("broker-*/__transaction_state-0/kbatch.state")]
        decided = [file.read_bytes() for file in files]
        assert append(cluster, b"next", OTHER) == 1
        cluster.delete_topic("events")
        if is_made_again:
            cluster.create_topic("events", replication_factor=replicas)
            assert append(cluster, b"new") == 0
    for file, data in zip(files, decided, strict=True):
        file.write_bytes(data)

    with Cluster(path) as cluster:
        assert append(cluster, b"again", OTHER) == 2
        decide_and_die(cluster, lambda: 1, "other")
        assert append(cluster, b"last", OTHER) == 4
        assert held(cluster, OTHER) == [b"job", b"next", b"again", b"job", b"last"]
        assert not [one for report in cluster.repair() for one in report.damaged]
        if is_made_again:
            assert held(cluster) == [b"new"]
            cluster.delete_topic("events")
        cluster.create_topic("events")
        assert held(cluster) == []


def test_a_repair_begins_no_log_where_that_of_a_deleted_topic_of_its_name_began(
    tmp_path: Path,
) -> None:
    path = tmp_path / "cluster"
    with Cluster(path, create=True) as cluster:
        cluster.create_topic("events")
        for overwrite in (None, Overwrite(cluster.topic("events"), delete_delay_ms=0)):
            batch = encode_batch([Record(0, 1, None, b"job")])
            staged = builders.staged(cluster, {("events", 0): [batch]}, flush=True)
            manager = store_of(cluster).manager
            coordinator = Coordinator(manager, lambda: 1, adopt_min_bytes=1 << 20, flush=True)
            coordinator.commit(staged, transactional_id=builders.JOB, overwrite=overwrite)
        cluster.delete_topic("events")
        cluster.create_topic("events")
        for value in (b"a", b"b", b"c"):
            append(cluster, value)
    (path / "broker-0/events-0/kbatch.state").unlink()

    with Cluster(path) as cluster:
        assert len([*cluster.repair()]) > 0
        assert held(cluster) == [b"a", b"b", b"c"]


def test_a_record_that_was_truncated_is_no_duplicate_when_it_is_sent_again() -> None:
    """The log has grown to the same end since, and a plain record went in before."""
    case = Case(0)
    sent = builders.idempotent_batch(base_sequence=0, value=b"sent")
    process = case.process
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(ReplicaManager, "replicate", lambda *_, **__: None)
        found = builders.append_records(process, {tuple(EVENTS): sent}, flush=True, required_acks=1)
    assert found[EVENTS].base_offset == 2
    other = with_clock(process, case.clock)
    disks_go_away(case, 0)
    assert append(other, b"instead") == 2
    disks_come_back(case, 0)
    assert other.replicate() == []
    disks_go_away(case, 1, 2)
    other.replicate()

    assert append(process, b"plain") == 3
    again = builders.append_records(process, {tuple(EVENTS): sent}, flush=True)[EVENTS]
    assert (again.error, again.base_offset) == (None, 4)
    assert held(process) == [b"first", b"second", b"instead", b"plain", b"sent"]


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_commit_that_dies_before_an_unclean_election_is_finished(dry_run: bool) -> None:
    case = Case(0)
    for topic in ("big", "other"):
        case.process.create_topic(topic, replication_factor=3)
    disks_go_away(case, 1, 2)
    decide_and_die(case.process, case.clock, "big", "other")

    assert with_clock(case.process, case.clock).elect_unclean("big", dry_run=dry_run) == []

    disks_come_back(case, 1, 2)
    for tp in (BIG, OTHER):
        found = with_clock(case.process, case.clock)
        assert held(found, tp) == [b"job"]
        assert append(found, b"next", tp) == 1


@pytest.mark.parametrize("given_up", [EVENTS, OTHER])
def test_a_commit_is_read_elsewhere_after_an_election_gave_up_its_part_of_a_topic(
    given_up: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(2)
    case.process.create_topic("other", replication_factor=3)
    disks_go_away(case, 2)
    append(case.process, b"missed", EVENTS)
    append(case.process, b"missed", OTHER)
    decide_and_die(case.process, case.clock, "events", "other")
    disks_come_back(case, 2)
    disks_go_away(case, 0, 1)
    electing = with_clock(case.process, case.clock)
    (lost,) = electing.elect_unclean(given_up.topic)
    assert lost.topic_partition == given_up

    disks_come_back(case, 0, 1)
    looks, look = itertools.count(), PartitionView.look

    def counted(view: PartitionView, avoid: Container[int] = ()) -> Look:
        assert next(looks) < 1000, "the reader does not come to an end"
        return look(view, avoid)

    monkeypatch.setattr(PartitionView, "look", counted)
    before = {EVENTS: [b"first", b"second"], OTHER: []}
    whole = {tp: [*values, b"missed", b"job"] for tp, values in before.items()}
    expected = whole | {given_up: before[given_up]}
    reading = with_clock(case.process, case.clock)
    assert {tp: held(reading, tp) for tp in expected} == expected
    for tp, values in expected.items():
        assert append(reading, b"next", tp) == len(values)
    assert reading.replicate() == []
    reading = with_clock(reading, case.clock)
    assert {tp: held(reading, tp) for tp in expected} == {
        tp: [*values, b"next"] for tp, values in expected.items()
    }


@pytest.mark.parametrize("fails", [0, 2])
def test_a_commit_is_on_all_who_stay_after_a_disk_failed_while_it_was_placed(
    fails: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(0)
    case.process.alter_topic("events", {"min.insync.replicas": 3})
    for _ in range(2):
        case.append()
    place, has_failed = Partition._placed_locked, list[bool]()

    def failing(self: Partition, *given: Any) -> dict[int, LogState]:
        placed = place(self, *given)
        if self.topic_partition == EVENTS and not has_failed:
            has_failed.append(True)
            case.disks.fail(case.disk(fails), BROKEN)
            self.view.failed(fails, OSError(5, "broken"))
            del placed[fails]
        return placed

    monkeypatch.setattr(Partition, "_placed_locked", failing)
    batch = encode_batch([Record(0, 1, None, b"job")])
    staged = builders.staged(case.process, {("events", 0): [batch]}, flush=True)
    coordinator = Coordinator(
        store_of(case.process).manager, case.clock, adopt_min_bytes=0, flush=True, acks=ACKS_LEADER
    )
    coordinator.commit(staged, transactional_id=builders.JOB)

    for node in {0, 1, 2} - {fails}:
        others = {0, 1, 2} - {node, fails}
        assert bytes_of(case.process, node).count(b"job") == 1
        disks_go_away(case, *others)
        assert held(with_clock(case.process, case.clock)) == [*case.values, b"job"]
        disks_come_back(case, *others)


def commit_unseen(case: Case, value: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit a record to `other`, both of whose disks fail when it is to be shown."""
    flip = Partition.flip_locked

    def fail_first(self: Partition, *given: Any, **named: Any) -> None:
        if self.topic_partition == OTHER and not case.disks.failing:
            case.disks.fail(case.disk(0), BROKEN)
            case.disks.fail(case.disk(1), BROKEN)
        flip(self, *given, **named)

    batch = encode_batch([Record(0, 1, None, value)])
    staged = builders.staged(case.process, {("other", 0): [batch]}, flush=True)
    coordinator = Coordinator(
        store_of(case.process).manager, case.clock, adopt_min_bytes=0, flush=True
    )
    with monkeypatch.context() as patches:
        patches.setattr(Partition, "flip_locked", fail_first)
        coordinator.commit(staged, transactional_id=builders.JOB)


@pytest.mark.parametrize("segment_bytes", [1 << 20, 1000])
@pytest.mark.parametrize("is_unclean", [False, True])
def test_what_was_kept_of_a_commit_takes_no_later_record_away(
    segment_bytes: int, is_unclean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All disks failed when it was to be shown, and one of them comes back as an image from before it."""
    case = Case(1)
    config = TopicConfig(segment_bytes=segment_bytes)
    case.process.create_topic("other", replication_factor=2, config=config)
    assert case.process.topic("other").replicas_of(0) == (0, 1)
    append(case.process, b"a", OTHER)
    take_image(case)
    small = [b"%d" % number for number in range(8)]
    for value in small:
        append(case.process, value, OTHER)
    job = b"job" * 300
    commit_unseen(case, job, monkeypatch)
    assert partition(case.process, OTHER).view.state().unwritten.keys() == {0, 1}

    for node in (0, 1):
        case.disks.mend(case.disk(node))
    come_back(case)
    process = with_clock(case.process, case.clock)
    assert append(process, b"x", OTHER) == 10
    assert partition(process, OTHER).view.state().unwritten == {}
    disks_go_away(case, 0)
    process = with_clock(process, case.clock)
    if is_unclean:
        process.elect_unclean("other")
    values = [b"a", *small, job, b"x"]
    assert held(process, OTHER) == values
    assert append(process, b"y", OTHER) == 11
    disks_come_back(case, 0)
    assert process.replicate() == []
    assert held(with_clock(process, case.clock), OTHER) == [*values, b"y"]


def test_an_unclean_election_forces_nothing_on_an_image_that_it_does_not_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case(1)
    case.process.create_topic("other", replication_factor=2)
    append(case.process, b"a", OTHER)
    take_image(case)
    append(case.process, b"b", OTHER)
    commit_unseen(case, b"job", monkeypatch)
    for node in (0, 1):
        case.disks.mend(case.disk(node))
    come_back(case)
    disks_go_away(case, 0)

    process = with_clock(case.process, case.clock)
    (lost,) = process.elect_unclean("other")
    assert lost.topic_partition == OTHER
    assert held(process, OTHER) == [b"a"]
    assert append(process, b"c", OTHER) == 1
    disks_come_back(case, 0)
    assert process.replicate() == []
    assert held(with_clock(process, case.clock), OTHER) == [b"a", b"c"]


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_groups_survive_a_server_that_is_killed_while_it_rewrites_them(every: int) -> None:
    for step in range(0, 200, every):
        case = Case(0)
        store(case.process, "a-group", {("events", 0): 1})
        offsets = OffsetsStore(store_of(case.process))
        offsets.load()
        offsets._log._is_made = True
        case.disks.kill_at = step
        try:
            offsets._log._rewrite()
            break
        except Killed:
            case.disks.kill_at = None
            again = OffsetsStore(store_of(with_clock(case.process, case.clock)))
            assert again.load().offsets, step
    assert step > 20


# Machines that append in turn: a machine cannot tell the other one from its own restart.


def delete_all(case: Case) -> None:
    case.process.delete_records({EVENTS: len(case.values)})
    case.start = len(case.values)


def expire_all(case: Case) -> None:
    case.process.alter_topic("events", {"retention.bytes": 0})
    case.process.collect_garbage()
    case.process.alter_topic("events", {"retention.bytes": -1})
    case.start = len(case.values)


def append_in_turn(case: Case, turns: int) -> None:
    for number in range(turns):
        with another_boot() if number % 2 else contextlib.nullcontext():
            case.append(b"turn %d" % number)


def leader_epochs(case: Case) -> list[list[tuple[int, int]]]:
    logs = [partition(case.process).view.log_of(node) for node in range(3)]
    return [read_leader_epochs(log.files, log.directory) for log in logs]


@pytest.mark.parametrize("delete", [delete_all, expire_all, Case.overwrite])
def test_the_epochs_of_turns_go_with_their_records(delete: Callable[[Case], object]) -> None:
    case = Case(0)
    append_in_turn(case, 7)
    before = leader_epochs(case)
    assert before[0] == before[1] == before[2]
    assert len(before[0]) == 7

    delete(case)
    case.append(b"afterwards")
    after = leader_epochs(case)
    assert after == [before[0][-1:]] * 3
    case.read()
    append_in_turn(case, 3)
    case.ensure_whole()


def test_whether_an_append_survived_is_not_told_by_an_epoch_that_went_with_its_records() -> None:
    case = Case(0)
    append_in_turn(case, 7)
    view = partition(case.process).view
    assert view.reaches(3, leader_epoch=1) == (True, None)

    delete_all(case)
    is_decided, error = view.reaches(3, leader_epoch=1)
    assert is_decided
    assert isinstance(error, NotLeaderOrFollowerError)


def test_an_image_with_what_power_loss_took_is_not_taken_for_what_came_in_its_place() -> None:
    """All replicas are equal after the loss; only the leader epoch tells that the image is not."""
    case = Case(1)
    case.append(b"lost", flush=False)
    take_image(case)
    case.disks.disk = case.disks.disk.after_power_loss_of("disk-0", "disk-1", "disk-2")
    assert case.values.pop() == b"lost"
    with another_boot():
        case.open()
        case.append(b"instead")
        come_back(case)
        case.append(b"next")
        assert b"lost" not in bytes_of(case.process, 1)
        case.ensure_whole()


def test_what_was_shown_is_waited_for_if_all_but_the_one_that_is_away_lost_it() -> None:
    case = Case(2)
    case.append(b"third", flush=False)
    for node in (0, 1):
        partition(case.process).view.log_of(node).flush_state()
    disks_go_away(case, 2)
    case.disks.disk = case.disks.disk.after_power_loss_of("disk-0", "disk-1")
    with another_boot():
        process = with_clock(case.process, case.clock)
        with pytest.raises(KafkaStorageError, match="mount the disk of node 2"):
            append(process, b"instead")
        disks_come_back(case, 2)
        process = case.process = with_clock(case.process, case.clock)
        assert process.replicate() == []
        case.append(b"next")
        case.ensure_whole()


def test_a_disk_is_replaced_after_a_process_that_died_within_that() -> None:
    case = Case(2)
    for step in range(400):
        case.disks.take_away(case.own)
        case.wait()
        case.process.replicate()  # so that it has left everywhere
        case.disks.kill_at = step
        try:
            case.replace()
            break
        except Killed:
            case.disks.kill_at = None
        case.wait()
        case.process = with_clock(case.process, case.clock)
        if not store_of(case.process).manager.dirs.is_online(case.node):
            case.replace()
        case.wait()
    case.disks.kill_at = None
    case.wait()
    assert 10 < step < 399
    case.ensure_whole()


# Records that some replicas have deleted, and others not.


def test_what_an_unclean_leader_got_stays_though_others_had_deleted_beyond_it() -> None:
    case = Case(2)
    process = case.process
    process.alter_topic("events", {"min.insync.replicas": 1})
    disks_go_away(case, 2)
    deleted = [append(process, b"deleted %d" % number) for number in range(8)]
    process.delete_records({EVENTS: deleted[-1]})
    disks_go_away(case, 0, 1)
    disks_come_back(case, 2)
    process = case.process = with_clock(process, case.clock)
    process.elect_unclean("events")
    new = [b"new %d" % number for number in range(4)]
    for value in new:
        append(process, value)

    disks_come_back(case, 0, 1)
    process.replicate()
    assert held(with_clock(process, case.clock))[-4:] == new
    append(process, b"later")
    assert held(with_clock(process, case.clock))[-5:] == [*new, b"later"]
    assert len({bytes_of(process, node) for node in range(3)}) == 1


def test_readers_wait_for_no_one_while_records_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(0)
    last = [append(case.process, b"%d" % number) for number in range(4)][-1]
    delete, seen = Partition._delete_on_followers_locked, list[list[bytes | None]]()

    def read_then(*given: Any, **named: Any) -> Any:
        """Read once the followers have deleted, and the leader has not."""
        found = delete(*given, **named)
        with monkeypatch.context() as patches:
            patches.setattr(ReplicaManager, "replicate", lambda *_, **__: pytest.fail("it waits"))
            seen.append(held(with_clock(case.process, case.clock)))
        return found

    monkeypatch.setattr(Partition, "_delete_on_followers_locked", read_then)
    case.process.delete_records({EVENTS: last})

    assert seen == [[b"3"]]


@pytest.mark.parametrize("is_mended", [True, False])
def test_a_disk_that_missed_a_topics_file_gets_it_or_is_not_in_sync(is_mended: bool) -> None:
    case = Case(1)
    case.disks.fail(case.own / "mirror-1", FULL)
    case.process.create_topic("other", replication_factor=3)
    if is_mended:
        case.disks.mend(case.own / "mirror-1")
    append(case.process, b"a", OTHER)
    assert (1 in partition(case.process, OTHER).view.state().isr) == is_mended

    case.disks.mend(case.own / "mirror-1")
    case.wait()
    assert case.process.replicate() == []
    assert partition(case.process, OTHER).view.state().isr == (0, 1, 2)
    for place in (PATH, case.disk(0), case.disk(2)):
        case.disks.take_away(place)
    case.open(without_nodes=[0, 2])
    assert held(case.process, OTHER) == [b"a"]


def test_a_process_that_stays_copies_who_is_in_sync_to_a_disk_that_was_full() -> None:
    case = Case(2)
    case.process.create_topic("other", replication_factor=2)
    case.disks.fail(case.own, FULL)
    disks_go_away(case, 0)
    append(case.process, b"missed", OTHER)  # so that a file says who is in sync
    disks_come_back(case, 0)
    append(case.process, b"next", OTHER)
    case.process.replicate()

    case.disks.mend(case.own)
    case.wait()
    assert case.process.replicate() == []
    name = "partitions/other/0.json"
    assert case.disks.read(case.own / "mirror-2" / name) == case.disks.read(PATH / name)


def test_a_repair_beside_a_leader_that_is_away_shows_what_was_acknowledged() -> None:
    case = Case(0)
    config = TopicConfig(min_insync_replicas=2)
    case.process.create_topic("other", replication_factor=2, config=config)
    append(case.process, b"acknowledged", OTHER)
    leader = partition(case.process, OTHER).view.state().leader
    disks_go_away(case, leader)

    assert not any(one.damaged for one in with_clock(case.process, case.clock).repair())

    assert held(with_clock(case.process, case.clock), OTHER) == [b"acknowledged"]
