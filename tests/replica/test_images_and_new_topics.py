"""Images of disks that come back after topics, or records, were deleted or made again."""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from spark_kbatch.cluster.catalog import FolderCatalog
from spark_kbatch.commit import sequences, snapshot
from spark_kbatch.commit.coordinator import Coordinator, Overwrite
from spark_kbatch.errors import (
    ConfigError,
    KafkaStorageError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.replica import administration
from spark_kbatch.replica.manager import ReplicaManager
from spark_kbatch.replica.view import Replica
from tests.support import builders
from tests.support.crashes import another_boot
from tests.support.disk_states import (
    ASIDE,
    PATH,
    Case,
    come_back,
    disks_come_back,
    disks_go_away,
    take_image,
)
from tests.support.failing_disks import (
    EVENTS,
    FULL,
    READ_ONLY,
    Killed,
    append,
    bytes_of,
    held,
    partition,
    replicas,
    with_clock,
)
from tests.support.reference import Record, encode_batch
from tests.support.store import reader_of, store_of

OTHER = TopicPartition("other", 0)


def append_to_leader_alone(case: Case, value: bytes) -> int:
    """Append with acks=1, and die before anyone is told."""
    data = encode_batch([Record(0, 1, None, value)])
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(ReplicaManager, "replicate", lambda *_, **__: None)
        found = builders.append_records(
            case.process, {tuple(EVENTS): data}, flush=True, required_acks=1
        )
    return found[EVENTS].base_offset


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
    disks_go_away(case, 0, 2)
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
    disks_go_away(case, *{0, 1, 2} - {node})
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
    disks_go_away(case, 1, 2)

    reports = [*with_clock(case.process, case.clock).repair([EVENTS])]
    assert "no in-sync replica" in " ".join(what for one in reports for what in one.damaged)

    disks_come_back(case, 1, 2)
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

    disks_go_away(case, 0, 2)
    process = with_clock(case.process, case.clock)
    assert held(process) == [b"a"]
    assert append(process, b"b") == 1
    disks_come_back(case, 0, 2)
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
    disks_go_away(case, 0, 1)

    with pytest.raises(KafkaStorageError, match="no in-sync replica"):
        with_clock(case.process, case.clock).elect_unclean("events")

    disks_come_back(case, 0, 1)
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


@pytest.mark.parametrize("is_away", [True, False], ids=["before", "after"])
def test_a_topic_is_not_made_under_the_id_of_one_whose_deletion_waits_for_a_disk(
    is_away: bool,
) -> None:
    case = Case(2)
    cluster = case.process
    moved = FolderCatalog(store_of(cluster)).create_moved_topic("moved", "", [0], {})
    if is_away:
        disks_go_away(case, 2)
    cluster.delete_topic("moved")
    if not is_away:
        disks_go_away(case, 2)

    with pytest.raises(KafkaStorageError, match="mount the log dirs that are away"):
        FolderCatalog(store_of(cluster)).create_moved_topic("moved", moved.topic_id, [0], {})

    disks_come_back(case, 2)
    again = FolderCatalog(store_of(cluster)).create_moved_topic("moved", moved.topic_id, [0], {})
    assert again.topic_id == moved.topic_id
    assert store_of(cluster).metadata.deleted.all() == []
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
    monkeypatch.setattr(sequences, "REWRITE_BYTES", 1)
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


@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.slow)])
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
    disks_go_away(case, *({0, 1, 2} - {node}))
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


@pytest.mark.parametrize("deleted", [3, 6])
@pytest.mark.parametrize("by", ["reader", "replicate", "append"])
def test_what_an_image_deleted_before_an_unclean_election_says_nothing(
    by: str, deleted: int
) -> None:
    case = Case(1)
    case.process.alter_topic("events", {"min.insync.replicas": 1})
    disks_go_away(case, 0, 2)
    for number in range(4):
        append(case.process, b"given up %d" % number)
    case.process.delete_records({EVENTS: deleted})
    take_image(case)
    disks_go_away(case, 1)
    disks_come_back(case, 0, 2)
    process = with_clock(case.process, case.clock)
    process.elect_unclean("events")
    disks_come_back(case, 1)
    process.replicate()
    for value in (b"x", b"y"):
        append(process, value)
    come_back(case)

    if by == "replicate":
        process.replicate()
    elif by == "append":
        append(process, b"z")
    expected = [b"first", b"second", b"x", b"y", *([b"z"] if by == "append" else [])]
    for one in (process, with_clock(process, case.clock)):
        assert held(one) == expected
    assert process.replicate() == []
    assert held(with_clock(process, case.clock)) == expected
    assert starts(case) == [0, 0, 0]


def test_a_deletion_counts_that_a_member_has_which_cannot_be_written_any_more() -> None:
    case = Case(0)
    disks_go_away(case, 2)
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
