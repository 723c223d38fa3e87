"""Images of disks that come back after topics were deleted or made again, and writers beside a commit that died."""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any, NoReturn

import pytest

from spark_kbatch import Cluster
from spark_kbatch.cluster.offsets_store import OffsetsStore
from spark_kbatch.commit import compaction, sequences, snapshot
from spark_kbatch.commit.coordinator import Coordinator, Overwrite
from spark_kbatch.errors import (
    ConfigError,
    KafkaStorageError,
    NotLeaderOrFollowerError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.log.checkpoints import read_leader_epochs
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.replica import administration
from spark_kbatch.replica.manager import ReplicaManager
from spark_kbatch.replica.partition import Partition
from spark_kbatch.replica.view import Look, PartitionView, Replica
from tests.support import builders
from tests.support.crashes import another_boot
from tests.support.disk_states import ASIDE, FOLDER, PATH, Case, come_back, take_image
from tests.support.failing_disks import (
    EVENTS,
    FULL,
    READ_ONLY,
    Killed,
    bytes_of,
    partition,
    replicas,
    with_clock,
)
from tests.support.reference import Record, encode_batch
from tests.support.store import reader_of, store_of
from tests.support.stored_groups import store

BIG, OTHER = TopicPartition("big", 0), TopicPartition("other", 0)


def append(cluster: Cluster, value: bytes, to: TopicPartition = EVENTS) -> int:
    data = encode_batch([Record(0, 1, None, value)])
    found = builders.append_records(cluster, {tuple(to): data}, flush=True)[to]
    if found.error is not None:
        raise found.error
    return found.base_offset


def append_to_leader_alone(case: Case, value: bytes) -> int:
    """Append with acks=1, and die before anyone is told."""
    data = encode_batch([Record(0, 1, None, value)])
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(ReplicaManager, "replicate", lambda *_, **__: None)
        found = builders.append_records(
            case.process, {tuple(EVENTS): data}, flush=True, required_acks=1
        )
    return found[EVENTS].base_offset


def held(cluster: Cluster, of: TopicPartition = EVENTS) -> list[bytes | None]:
    return [record.value for record in builders.contents(cluster)[of]]


def make_again(case: Case) -> None:
    """Delete the topic, and make another one of its name."""
    config = TopicConfig(segment_bytes=100, min_insync_replicas=2)
    case.process.delete_topic("events")
    case.process.create_topic("events", replication_factor=3, config=config)


def with_image_of_an_old_topic(node: int) -> Case:
    """Return a case with an image of a disk, on which a topic has records that was deleted and made again since."""
    case = Case(node)
    for number in range(5):
        case.append(b"old %d" % number)
    take_image(case)
    make_again(case)
    return case


def go_away(case: Case, *nodes: int) -> None:
    for node in nodes:
        case.disks.mount_at(case.disk(node), FOLDER / f"away{node}")
    case.wait()


def be_back(case: Case, *nodes: int) -> None:
    for node in nodes:
        case.disks.mount_at(FOLDER / f"away{node}", case.disk(node))
    case.wait()


def delete_all(case: Case) -> None:
    case.process.delete_records({EVENTS: len(case.values)})
    case.start = len(case.values)


def expire_all(case: Case) -> None:
    case.process.alter_topic("events", {"retention.bytes": 0})
    case.process.collect_garbage()
    case.process.alter_topic("events", {"retention.bytes": -1})
    case.start = len(case.values)


# Images with a topic that was deleted, under a topic of its name.


def test_a_leaders_image_of_a_deleted_topic_is_not_believed_by_a_process_that_stays() -> None:
    case = with_image_of_an_old_topic(0)
    assert [append(case.process, value) for value in (b"a", b"b")] == [0, 1]

    come_back(case)
    assert append(case.process, b"c") == 2

    case.wait()
    case.process.replicate()
    assert held(with_clock(case.process, case.clock)) == [b"a", b"b", b"c"]
    assert not any(b"old" in bytes_of(case.process, node) for node in range(3))


@pytest.mark.parametrize("with_log_start", [False, True])
def test_a_followers_image_of_a_deleted_topic_leaves_the_isr(with_log_start: bool) -> None:
    case = Case(1)
    if with_log_start:
        case.append(b"third")
        case.process.delete_records({EVENTS: 2})
    take_image(case)
    make_again(case)
    sent = [b"a", b"b", b"c", b"d"]
    for value in sent:
        append(case.process, value)

    come_back(case)
    append(case.process, b"e")

    case.process.replicate()
    found = with_clock(case.process, case.clock)
    assert held(found) == [*sent, b"e"]
    assert partition(found).view.state().isr == (0, 1, 2)
    go_away(case, 0, 2)
    assert held(with_clock(case.process, case.clock)) == [*sent, b"e"]


@pytest.mark.parametrize("node", [0, 1])
def test_an_empty_log_of_a_deleted_topic_is_not_taken_for_the_new_ones(node: int) -> None:
    """As they were made, logs of a topic and its successor are equal but for the topic's id."""
    case = Case(node)
    make_again(case)
    take_image(case)
    make_again(case)
    assert held(case.process) == []

    come_back(case)
    append(case.process, b"a")
    assert partition(case.process).view.state().isr == (0, 1, 2)
    go_away(case, *{0, 1, 2} - {node})
    assert held(with_clock(case.process, case.clock)) == [b"a"]


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize("sent", [[], [b"a", b"b"]])
def test_a_repair_takes_no_records_of_an_image_of_a_deleted_topic(
    sent: list[bytes], node: int
) -> None:
    case = with_image_of_an_old_topic(node)
    for value in sent:
        append(case.process, value)
    come_back(case)

    assert not any(one.damaged for one in with_clock(case.process, case.clock).repair())

    assert held(with_clock(case.process, case.clock)) == sent
    assert append(case.process, b"c") == len(sent)
    case.process.replicate()
    assert not any(b"old" in bytes_of(case.process, node) for node in range(3))
    assert partition(case.process).view.state().isr == (0, 1, 2)


def test_a_repair_waits_for_the_others_beside_an_image_of_a_deleted_topic() -> None:
    case = with_image_of_an_old_topic(0)
    append(case.process, b"a")
    come_back(case)
    go_away(case, 1, 2)

    reports = [*with_clock(case.process, case.clock).repair([EVENTS])]
    assert "no in-sync replica" in " ".join(what for one in reports for what in one.damaged)

    be_back(case, 1, 2)
    assert append(case.process, b"b") == 1
    assert held(with_clock(case.process, case.clock)) == [b"a", b"b"]


@pytest.mark.parametrize("leader", [0, 2])
def test_a_repair_lets_no_image_lead_beside_a_full_disk_that_has_more(leader: int) -> None:
    case = Case(2)
    take_image(case)
    if leader == 2:
        partition(case.process).elections.lead_alone_locked(2)
        case.process.replicate()
        take_image(case)
    case.append(b"third")
    come_back(case)
    case.disks.take_away(case.disk(1))
    case.disks.fail(case.disk(0), FULL)
    process = with_clock(case.process, case.clock)

    (report,) = process.repair([EVENTS])
    assert "whose log dir cannot be written" in " ".join(report.damaged)

    case.disks.mend(case.disk(0))
    case.wait()
    case.read()
    case.append(b"fourth")
    case.read()


def test_a_commit_that_an_image_has_as_decided_is_not_finished_in_the_topic_that_was_made_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was completed before its topic was deleted; the only disk that is left was put back without that."""
    case = Case(1)

    def die(*_: object, **__: object) -> NoReturn:
        raise Killed

    with monkeypatch.context() as patches:
        patches.setattr(Coordinator, "_flip", die)
        with pytest.raises(Killed):
            case.commit()
    take_image(case)
    case.open()
    case.process.delete_topic("events")
    come_back(case)
    case.process.create_topic("events", replication_factor=3)
    assert append(case.process, b"a") == 0

    go_away(case, 0, 2)
    process = with_clock(case.process, case.clock)
    assert held(process) == [b"a"]
    assert append(process, b"b") == 1
    be_back(case, 0, 2)
    process.replicate()
    assert held(process) == [b"a", b"b"]
    assert not [what for one in process.verify() for what in (*one.found, *one.damaged)]


def test_beside_an_image_of_a_deleted_topic_a_partition_is_given_up_with_its_last_disk() -> None:
    case = with_image_of_an_old_topic(2)
    append(case.process, b"a")
    come_back(case)
    for node in (0, 1):
        case.disks.take_away(case.disk(node))
    case.wait()
    process = with_clock(case.process, case.clock)

    for node in (0, 1):
        dry = process.replace_log_dir(node, unclean=True, dry_run=True)
        assert (EVENTS, None) in [(one.topic_partition, one.first_offset) for one in dry]
        found = process.replace_log_dir(node, unclean=True)
    assert [(one.topic_partition, one.first_offset) for one in found] == [(EVENTS, None)]

    process.replicate()
    assert held(process) == []
    assert append(process, b"c") == 0
    assert partition(process).view.state().isr == (0, 1, 2)


def test_an_unclean_election_takes_no_log_of_a_deleted_topic() -> None:
    case = with_image_of_an_old_topic(2)
    for value in (b"a", b"b"):
        append(case.process, value)
    case.disks.take_away(case.disk(2))
    case.disks.mount_at(ASIDE, case.disk(2))
    go_away(case, 0, 1)

    with pytest.raises(KafkaStorageError, match="no in-sync replica"):
        with_clock(case.process, case.clock).elect_unclean("events")

    be_back(case, 0, 1)
    assert held(with_clock(case.process, case.clock)) == [b"a", b"b"]


def with_image_of_a_deleted_topic(node: int) -> Case:
    """Return a case with a disk back as it was before a topic was deleted, of which nothing else is left."""
    case = Case(node)
    take_image(case)
    case.process.alter_topic("events", {"file.delete.delay.ms": 0})
    case.process.delete_topic("events")
    case.process.collect_garbage()
    assert case.disks.list(PATH / "deleted") == []
    come_back(case)
    return case


@pytest.mark.parametrize("does_repair", [False, True])
@pytest.mark.parametrize("is_opened_again", [False, True])
@pytest.mark.parametrize("node", [0, 1])
def test_a_topic_that_was_deleted_does_not_come_back_with_an_image_and_can_be_created(
    node: int, is_opened_again: bool, does_repair: bool
) -> None:
    case = with_image_of_a_deleted_topic(node)
    if is_opened_again:
        case.open()
    cluster = case.process
    if does_repair:
        for reports in (cluster.repair(dry_run=True), cluster.repair(), cluster.verify()):
            assert [one for one in reports if one.damaged or one.found] == []
    assert cluster.topic_names() == []
    with pytest.raises(UnknownTopicOrPartitionError, match="does not exist"):
        cluster.topic("events")

    cluster.create_topic("events", replication_factor=3)
    assert append(cluster, b"new") == 0
    assert held(with_clock(cluster, case.clock)) == [b"new"]
    assert cluster.replicate() == []
    names = case.disks.list(case.disk(node) / f"broker-{node}")
    assert sum(name.startswith("events-0.") and name.endswith("-stray") for name in names) == 1


def test_a_topic_that_was_deleted_by_mistake_is_there_again_with_its_file() -> None:
    case = with_image_of_a_deleted_topic(0)
    case.open()
    file = case.disks.read(case.disk(0) / "mirror-0" / "topics" / "events.stale")
    case.disks.replace(PATH / "topics" / "events.json", file)
    case.open()

    assert held(case.process) == [b"first", b"second"]
    assert case.process.replicate() == []
    assert append(case.process, b"third") == 2


def test_a_topic_is_not_made_under_the_id_of_one_whose_deletion_waits_for_a_disk() -> None:
    case = Case(2)
    cluster = case.process
    moved = store_of(cluster).make_moved_topic("moved", "", [0], {})
    go_away(case, 2)
    cluster.delete_topic("moved")

    with pytest.raises(KafkaStorageError, match="mount the log dirs that are away"):
        store_of(cluster).make_moved_topic("moved", moved.topic_id, [0], {})

    be_back(case, 2)
    again = store_of(cluster).make_moved_topic("moved", moved.topic_id, [0], {})
    assert again.topic_id == moved.topic_id
    cluster.create_topic("another")
    assert "moved" in cluster.topic_names()


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_planned_topic_is_not_made_on_the_mount_point_of_a_disk_that_is_away(
    replicas: int,
) -> None:
    case = Case(0)
    manager = store_of(case.process).manager
    planned = administration.plan_topic(
        manager, "planned", partitions=1, config=TopicConfig(), replication_factor=replicas
    )
    case.disks.mount_at(case.disk(0), ASIDE)
    case.disks.make_dir(case.disk(0))
    case.wait()

    with pytest.raises(KafkaStorageError, match="node 0, whose log dir is offline"):
        administration.create_planned_topic(manager, planned, level=logging.INFO)

    assert case.disks.list(case.disk(0)) == []


def test_a_partition_all_of_whose_disks_were_replaced_begins_anew() -> None:
    case = Case(0)
    cluster, two = case.process, TopicPartition("two", 0)
    cluster.create_topic("two", replication_factor=2)
    append(cluster, b"lost", two)
    for node in (0, 1):
        case.disks.take_away(case.disk(node))
    case.wait()

    for node in (0, 1):
        given_up = cluster.replace_log_dir(node, unclean=True)
        assert two in [one.topic_partition for one in given_up]
    case.wait()

    cluster.replicate()
    assert append(cluster, b"next", two) == 0
    cluster.replicate()
    assert held(with_clock(cluster, case.clock), two) == [b"next"]
    assert sorted(partition(cluster, two).view.state().isr) == [0, 1]


# An image of PATH's disk, and what is saved there of micro-batches.


def micro_batch(case: Case, number: int, *, query: str = "query", flush: bool = True) -> bool:
    """Commit a micro-batch; return False if it was skipped as a duplicate."""
    batch = encode_batch([Record(0, 1, None, b"%b %d" % (query.encode(), number))])
    folder = f"{query}-{number}"
    staged = builders.staged(
        case.process, {tuple(EVENTS): [batch]}, flush=flush, transaction=folder
    )
    coordinator = Coordinator(
        store_of(case.process).manager, case.clock, adopt_min_bytes=1 << 20, flush=flush
    )
    return coordinator.commit(staged, transactional_id=query, sequence=number)


def path_is_an_older_one(case: Case) -> None:
    """The image in ASIDE takes the place of PATH; no topic has changed meanwhile, so nothing tells that it is old."""
    case.disks.take_away(PATH)
    case.disks.clone(ASIDE, PATH)
    case.wait()
    case.open()


@pytest.mark.parametrize("flush", [True, False], ids=["flushed", "not flushed"])
@pytest.mark.parametrize("meanwhile", [1, 2, 30])
@pytest.mark.parametrize("before", [0, 1, 30])
def test_no_micro_batch_is_written_twice_after_an_older_image_of_path(
    before: int, meanwhile: int, flush: bool
) -> None:
    case = Case(0)
    micro_batch(case, 0, query="early", flush=flush)
    count = before + meanwhile
    for number in range(before):
        assert micro_batch(case, number, flush=flush)
    case.disks.clone(PATH, ASIDE)
    for number in range(before, count):
        assert micro_batch(case, number, flush=flush)
    micro_batch(case, 0, query="late", flush=flush)

    path_is_an_older_one(case)
    case.commit()  # of no stream, so no one has to know any sequence yet
    assert micro_batch(case, 0, query="another", flush=flush)

    found = held(case.process)
    for query, number in (("query", count - 1), ("query", before), ("early", 0), ("late", 0)):
        assert not micro_batch(case, number, query=query, flush=flush), query
    assert held(case.process) == found
    assert micro_batch(case, count, flush=flush)
    case.process.replicate()
    path_is_an_older_one(case)
    assert not micro_batch(case, count, flush=flush)


def test_no_micro_batch_is_written_twice_or_left_out_after_a_rewrite_and_an_older_image_of_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case(0)
    micro_batch(case, 5, query="expires")
    micro_batch(case, 0)
    case.disks.clone(PATH, ASIDE)
    case.clock.now_ms += 1000
    micro_batch(case, 1)
    monkeypatch.setattr(compaction, "REWRITE_BYTES", 1)
    manager = store_of(case.process).manager
    Coordinator(
        manager, case.clock, adopt_min_bytes=1 << 20, flush=True, id_expiration_ms=500
    ).commit(
        builders.staged(case.process, {tuple(EVENTS): [encode_batch([Record(0, 1, None, b"x")])]}),
        transactional_id="another",
        sequence=0,
    )

    path_is_an_older_one(case)
    assert not micro_batch(case, 1)
    assert micro_batch(case, 0, query="expires")


def test_what_is_scanned_of_the_log_on_other_disks_than_path_stays_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case, counts = Case(0), list[int]()
    scan = snapshot.last_of_each_id

    def counting(replica: Replica, first_offset: int) -> object:
        counts.append(replica.state.high_watermark - first_offset)
        return scan(replica, first_offset)

    monkeypatch.setattr(sequences, "last_of_each_id", counting)
    for number in range(60):
        assert micro_batch(case, number)
    assert max(counts) <= 42


@pytest.mark.parametrize("seeds", [1, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("not_flushed", [-1, 10])
def test_a_micro_batch_is_there_once_if_the_power_fails_while_sequences_are_saved(
    not_flushed: int, seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, cover = Case(0), sequences.LastSequences._cover
    for number in range(21):  # the next one notes how far the saved ones go
        micro_batch(case, number, flush=number != not_flushed)
    before = case.disks.disk.copy()
    for step in range(100):
        case.disks.disk = before.copy()

        def killed(*arguments: Any, step: int = step) -> None:
            case.disks.kill_at = step
            cover(*arguments)
            case.disks.kill_at = None

        with monkeypatch.context() as patch, contextlib.suppress(Killed):
            patch.setattr(sequences.LastSequences, "_cover", killed)
            micro_batch(case, 21)
            break
        case.disks.kill_at = None
        for seed in range(seeds):
            disk = case.disks.disk
            case.disks.disk = disk.after_power_loss(random.Random(seed))
            with another_boot():
                case.open()
                assert not micro_batch(case, 20), (step, seed)
                assert micro_batch(case, 21), (step, seed)
            case.disks.disk = disk
    assert step > 3


def with_lost_disks(replicas: int) -> Case:
    """Return a case with a topic whose only replica, or all replicas, are on disks that are empty now."""
    case = Case(0)
    case.process.create_topic("other", replication_factor=replicas)
    append(case.process, b"lost", OTHER)
    for node in range(replicas):
        case.disks.take_away(case.disk(node))
        case.disks.make_dir(case.disk(node))
    case.wait()
    for node in range(replicas - 1):
        case.process.replace_log_dir(node, unclean=True)
    case.wait()
    return case


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_replacement_of_the_last_replica_that_is_killed_is_finished_by_the_same_command(
    every: int, replicas: int
) -> None:
    node, finished = replicas - 1, 0
    for step in range(0, 1000, every):
        case = with_lost_disks(replicas)
        case.disks.kill_at = step
        try:
            case.process.replace_log_dir(node, unclean=True)
            break
        except Killed:
            case.disks.kill_at = None
        case.wait()
        again = with_clock(case.process, case.clock)
        with contextlib.suppress(ConfigError):  # All was done.
            given_up = again.replace_log_dir(node, unclean=True)
            assert OTHER in [one.topic_partition for one in given_up], step
            finished += 1
        case.wait()
        assert append(again, b"next", OTHER) == 0, step
        assert again.replicate() == [], step
        assert held(with_clock(again, case.clock), OTHER) == [b"next"], step
        with pytest.raises(ConfigError, match="is online"):
            again.replace_log_dir(node, unclean=True)
    assert finished > 20


def test_the_rest_of_a_replacement_is_given_up_by_name_as_all_of_it() -> None:
    case = with_lost_disks(1)
    cluster = case.process
    cluster.replace_log_dir(0, unclean=True)
    case.disks.remove_dir(case.disk(0) / "broker-0" / "other-0")  # as if killed before it was made
    case.wait()

    with pytest.raises(ConfigError, match="can be used of other-0"):
        cluster.replace_log_dir(0)
    (lost,) = cluster.replace_log_dir(0, unclean=True, dry_run=True)
    assert (lost.topic_partition, lost.first_offset) == (OTHER, None)
    assert cluster.replace_log_dir(0, unclean=True) == [lost]
    assert append(cluster, b"next", OTHER) == 0


# Images with records that were deleted.


def delete_with_records(case: Case) -> list[bytes]:
    case.process.delete_records({EVENTS: 2})
    return case.values[2:]


def delete_by_an_empty_overwrite(case: Case) -> list[bytes]:
    overwrite = Overwrite(case.process.topic("events"), delete_delay_ms=0)
    manager = store_of(case.process).manager
    coordinator = Coordinator(manager, case.clock, adopt_min_bytes=0, flush=True)
    coordinator.commit([], transactional_id=builders.JOB, overwrite=overwrite)
    return []


DELETIONS = pytest.mark.parametrize("delete", [delete_with_records, delete_by_an_empty_overwrite])
DISKS = pytest.mark.parametrize("node", [0, 1], ids=["leader", "follower"])


def with_image_of_deleted_records(
    node: int, delete: Callable[[Case], list[bytes]]
) -> tuple[Case, list[bytes]]:
    """Return a case in which a disk is an image of before a deletion, and the values that are left."""
    case = Case(node)
    case.append(b"third")
    take_image(case)
    left = delete(case)
    come_back(case)
    return case, left


def starts(case: Case) -> list[int]:
    view = partition(case.process).view
    return [view.log_of(node).state().log_start_offset for node in range(3)]


@DELETIONS
@DISKS
@pytest.mark.parametrize("can_elect", [True, False], ids=["elects", "only reads"])
def test_no_reader_gets_deleted_records_of_an_image(
    node: int, delete: Callable[[Case], list[bytes]], can_elect: bool
) -> None:
    case, left = with_image_of_deleted_records(node, delete)
    reader, before = with_clock(case.process, case.clock), starts(case)
    if not can_elect:
        snapshots = store_of(reader).snapshots
        snapshots._elect = snapshots._finish_deletions = lambda _: None
    assert held(reader) == left
    offsets = reader_of(reader).edges([EVENTS])[EVENTS]
    assert (offsets.log_start_offset, offsets.high_watermark) == (3 - len(left), 3)
    if not can_elect:
        assert starts(case) == before


@DELETIONS
@DISKS
def test_a_look_names_an_image_with_deleted_records_and_replicate_deletes_them(
    node: int, delete: Callable[[Case], list[bytes]]
) -> None:
    case, left = with_image_of_deleted_records(node, delete)
    assert [one.node_id for one in replicas(case.process) if not one.in_sync] == [node]
    assert [one.node_id for one in case.process.log_dirs() if one.not_in_sync] == [node]
    (found,) = [what for one in case.process.verify([EVENTS]) for what in one.found]
    says = "which leads, has offsets 0 to 3, others in sync have" if node == 0 else "is not in sync"
    assert f"replica on node {node}" in found
    assert says in found

    assert case.process.replicate() == []

    assert starts(case) == [3 - len(left)] * 3
    assert not [what for one in case.process.verify() for what in one.damaged + one.found]
    go_away(case, *({0, 1, 2} - {node}))
    assert held(with_clock(case.process, case.clock)) == left


@DELETIONS
@DISKS
def test_an_append_beside_an_image_brings_no_deleted_record_back(
    node: int, delete: Callable[[Case], list[bytes]]
) -> None:
    case, left = with_image_of_deleted_records(node, delete)
    assert append(case.process, b"next") == 3
    assert starts(case) == [3 - len(left)] * 3
    assert held(with_clock(case.process, case.clock)) == [*left, b"next"]


def test_a_deletion_counts_that_a_member_has_which_cannot_be_written_any_more() -> None:
    case = Case(0)
    go_away(case, 2)
    case.append(b"third")
    take_image(case)
    left = delete_with_records(case)
    come_back(case)
    case.disks.fail(case.disk(1), READ_ONLY)
    case.wait()
    case.process = with_clock(case.process, case.clock)
    assert held(case.process) == left
    case.process.alter_topic("events", {"min.insync.replicas": 1})
    assert append(case.process, b"next") == 3
    assert held(with_clock(case.process, case.clock)) == [*left, b"next"]


def test_a_leaders_image_that_had_not_shown_all_deletes_what_was_shown_and_deleted_since() -> None:
    case = Case(0)
    assert append_to_leader_alone(case, b"third") == 2
    take_image(case)
    case.process.replicate()
    case.process.delete_records({EVENTS: 3})
    come_back(case)
    assert case.process.replicate() == []
    assert starts(case) == [3, 3, 3]
    assert append(case.process, b"next") == 3
    assert held(with_clock(case.process, case.clock)) == [b"next"]


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


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_commit_that_dies_before_an_unclean_election_is_finished(dry_run: bool) -> None:
    case = Case(0)
    for topic in ("big", "other"):
        case.process.create_topic(topic, replication_factor=3)
    go_away(case, 1, 2)
    decide_and_die(case.process, case.clock, "big", "other")

    assert with_clock(case.process, case.clock).elect_unclean("big", dry_run=dry_run) == []

    be_back(case, 1, 2)
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
    go_away(case, 2)
    append(case.process, b"missed", EVENTS)
    append(case.process, b"missed", OTHER)
    decide_and_die(case.process, case.clock, "events", "other")
    be_back(case, 2)
    go_away(case, 0, 1)
    electing = with_clock(case.process, case.clock)
    (lost,) = electing.elect_unclean(given_up.topic)
    assert lost.topic_partition == given_up

    be_back(case, 0, 1)
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


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_groups_survive_a_server_that_is_killed_while_it_rewrites_them(every: int) -> None:
    for step in range(0, 200, every):
        case = Case(0)
        store(case.process, "a-group", {("events", 0): 1})
        offsets = OffsetsStore(store_of(case.process))
        offsets.load()
        offsets._is_made = True
        case.disks.kill_at = step
        try:
            offsets._rewrite()
            break
        except Killed:
            case.disks.kill_at = None
            again = OffsetsStore(store_of(with_clock(case.process, case.clock)))
            assert again.load().offsets, step
    assert step > 20


# Machines that append in turn: a machine cannot tell the other one from its own restart.


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
    go_away(case, 2)
    deleted = [append(process, b"deleted %d" % number) for number in range(8)]
    process.delete_records({EVENTS: deleted[-1]})
    go_away(case, 0, 1)
    be_back(case, 2)
    process = case.process = with_clock(process, case.clock)
    process.elect_unclean("events")
    new = [b"new %d" % number for number in range(4)]
    for value in new:
        append(process, value)

    be_back(case, 0, 1)
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


def test_a_process_that_stays_copies_who_is_in_sync_to_a_disk_that_was_full() -> None:
    case = Case(2)
    case.process.create_topic("other", replication_factor=2)
    case.disks.fail(case.own, FULL)
    go_away(case, 0)
    append(case.process, b"missed", OTHER)  # so that a file says who is in sync
    be_back(case, 0)
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
    go_away(case, leader)

    assert not any(one.damaged for one in with_clock(case.process, case.clock).repair())

    assert held(with_clock(case.process, case.clock), OTHER) == [b"acknowledged"]
