"""A partition with several replicas: who leads, who is in sync, what is committed, and what is lost."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.catalog.log_dirs import RETRY_MS
from spark_kbatch.commit.coordinator import Coordinator, Overwrite
from spark_kbatch.errors import (
    ConfigError,
    KafkaStorageError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.files import Buffer
from spark_kbatch.log.epochs import LeaderEpochCache
from spark_kbatch.model import LATEST, AppendResult, TopicPartition
from spark_kbatch.options.topic import TopicConfig
from tests.support import builders
from tests.support.builders import append_records, batch, idempotent_batch, records_of
from tests.support.crashes import another_boot
from tests.support.failing_disks import (
    BROKEN,
    EVENTS,
    FULL,
    READ_ONLY,
    Clock,
    Disks,
    Killed,
    a_replicated_cluster,
    bytes_of,
    isr,
    partition,
    replicas,
    with_clock,
)
from tests.support.store import append_records as append_by
from tests.support.store import reader_of, store_of

BATCHES = [batch(n=n + 1, seed=n) for n in range(8)]


class FailsBehindTheLeader(Disks):
    """Disks of which node 1's fills up once the leader has what is appended."""

    folder: Path | None = None

    def write_at(self, descriptor: int, position: int, data: Buffer) -> None:
        super().write_at(descriptor, position, data)
        if self.folder is not None and len(data) > 200:
            self.fail(self.folder, FULL)


class FailsToFlush(Disks):
    """A disk that accepts writes and fails their flush."""

    folder: Path | None = None

    def flush_descriptor(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if self.folder is not None and path.is_relative_to(self.folder):
            raise OSError(BROKEN, os.strerror(BROKEN), str(path))
        super().flush_descriptor(descriptor)


@pytest.fixture
def disks() -> FailsBehindTheLeader:
    return FailsBehindTheLeader()


@pytest.fixture
def cluster(tmp_path: Path, disks: Disks, clock: Clock) -> Cluster:
    return with_clock(a_replicated_cluster(tmp_path, disks), clock)


def disk(cluster: Cluster, node_id: int) -> Path:
    return cluster.path.parent / f"disk-{node_id}"


def write(cluster: Cluster, *numbers: int, required_acks: int = -1) -> None:
    for number in numbers:
        (result,) = append_records(
            cluster, {EVENTS: BATCHES[number]}, required_acks=required_acks
        ).values()
        assert result.error is None, result.error


def ensure_holds(cluster: Cluster, *numbers: int) -> None:
    """Check that the topic has these batches, and that all in-sync replicas have the same bytes."""
    assert builders.contents(cluster)[EVENTS] == records_of([BATCHES[n] for n in numbers])
    copies = {bytes_of(cluster, node_id) for node_id in isr(cluster)}
    assert len(copies) == 1


def ensure_holds_from(cluster: Cluster, offset: int, *numbers: int) -> None:
    """Check that the topic has these batches and no others, the first record at an offset."""
    found = builders.contents(cluster)[EVENTS]
    wanted = records_of([BATCHES[n] for n in numbers])
    assert found == [one._replace(offset=one.offset + offset) for one in wanted]


def log_directory(cluster: Cluster, node_id: int) -> Path:
    return store_of(cluster).metadata.cluster_file.log_directory(EVENTS, node_id)


def high_watermark(cluster: Cluster) -> int:
    return reader_of(cluster).edges([EVENTS])[EVENTS].high_watermark


# In sync.


@pytest.mark.parametrize("required_acks", [-1, 1, 0])
def test_every_replica_has_the_same_bytes(cluster: Cluster, required_acks: int) -> None:
    write(cluster, 0, 1, 2, required_acks=required_acks)

    ensure_holds(cluster, 0, 1, 2)
    assert [bytes_of(cluster, node) for node in (0, 1)] == [bytes_of(cluster, 2)] * 2
    assert [row[1:5] for row in replicas(cluster)] == [
        (True, True, 6, 0), (False, True, 6, 0), (False, True, 6, 0)
    ]  # fmt: skip
    assert not (cluster.path / "partitions").exists()  # nothing has happened to any replica


def test_leaders_are_spread_over_the_log_dirs(tmp_path: Path) -> None:
    cluster = a_replicated_cluster(tmp_path, Disks(), partitions=4, replicas=2)
    cluster.create_topic("plain", partitions=3)

    assert cluster.topic("events").replicas == ((0, 1), (1, 0), (0, 1), (1, 0))
    assert cluster.topic("plain").replicas == ((0,), (1,), (0,))
    append_records(cluster, {("plain", 1): BATCHES[0]})
    assert bytes_of(cluster, 1, TopicPartition("plain", 1))


def test_replicas_are_made_in_path_where_the_cluster_has_no_log_dirs_elsewhere(
    tmp_path: Path,
) -> None:
    cluster = builders.a_cluster(tmp_path, files=Disks())
    topic = cluster.create_topic("copied", replication_factor=3)

    assert topic.replicas == ((0, 1, 2),)
    append_records(cluster, {("copied", 0): BATCHES[0], ("events", 0): BATCHES[0]})
    copies = [cluster.path / f"broker-{n}" / "copied-0" / f"{0:020d}.log" for n in range(3)]
    assert len({path.read_bytes() for path in copies}) == 1
    assert Cluster(str(cluster.path)).topic("copied") == topic


def test_more_replicas_than_log_dirs_are_refused(cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match=r"replication.factor is 4, more than the 3 log.dirs"):
        cluster.create_topic("copied", replication_factor=4)


def test_a_log_dir_of_another_cluster_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"are those of the cluster at .*: open that"):
        Cluster(str(tmp_path / "another"), create=True, log_dirs=[disk(cluster, 0)])


# A log dir fails.


@pytest.mark.parametrize("error", [BROKEN, FULL, READ_ONLY])
@pytest.mark.parametrize("node_id", [0, 1], ids=["leader", "follower"])
def test_a_log_dir_that_fails_stops_no_one_and_is_in_sync_again_when_it_is_back(
    cluster: Cluster, disks: Disks, clock: Clock, error: int, node_id: int
) -> None:
    write(cluster, 0)
    disks.fail(disk(cluster, node_id), error)
    write(cluster, 1, 2)
    state = partition(cluster).view.state()

    assert node_id not in state.isr
    assert (state.leader, state.leader_epoch) == (1 if node_id == 0 else 0, 1)
    ensure_holds(cluster, 0, 1, 2)
    disks.mend(disk(cluster, node_id))
    clock.now_ms += RETRY_MS
    write(cluster, 3)
    assert isr(cluster) == (0, 1, 2)
    assert partition(cluster).view.state().leader == state.leader
    ensure_holds(cluster, 0, 1, 2, 3)


def test_a_log_dir_is_back_in_time_where_the_time_of_day_was_set_back(
    cluster: Cluster, disks: Disks, clock: Clock
) -> None:
    disks.fail(disk(cluster, 1), BROKEN)
    write(cluster, 0)
    assert isr(cluster) == (0, 2)
    disks.mend(disk(cluster, 1))
    clock.set_back_ms = 3_600_000
    clock.now_ms += RETRY_MS
    write(cluster, 1)
    assert isr(cluster) == (0, 1, 2)


@pytest.mark.parametrize("node_id", [0, 2], ids=["leader", "follower"])
def test_a_log_dir_that_is_deleted_stays_offline_until_it_is_replaced(
    cluster: Cluster, clock: Clock, node_id: int
) -> None:
    write(cluster, 0, 1)
    shutil.rmtree(disk(cluster, node_id))
    assert builders.contents(cluster)[EVENTS] == records_of(BATCHES[:2])
    write(cluster, 2)
    clock.now_ms += RETRY_MS
    write(cluster, 3)
    assert node_id not in isr(cluster)
    assert "No such file" in str(replicas(cluster)[node_id].why_offline)
    with store_of(cluster).manager.locks.metadata():
        store_of(cluster).metadata.cluster_file.replace_log_dir(node_id)
    clock.now_ms += RETRY_MS
    write(cluster, 4)

    assert isr(cluster) == (0, 1, 2)
    ensure_holds(cluster, 0, 1, 2, 3, 4)


def test_another_disk_at_the_same_place_is_not_written_to(cluster: Cluster, clock: Clock) -> None:
    write(cluster, 0)
    folder = disk(cluster, 1)
    folder.rename(folder.with_name("unmounted"))
    (folder / "broker-1").mkdir(parents=True)  # what lies below a mount point
    write(cluster, 1)
    assert isr(cluster) == (0, 2)
    assert {path.name for path in (folder / "broker-1").iterdir()} <= {".lock"}
    shutil.rmtree(folder)
    folder.with_name("unmounted").rename(folder)
    clock.now_ms += RETRY_MS
    write(cluster, 2)

    assert isr(cluster) == (0, 1, 2)
    ensure_holds(cluster, 0, 1, 2)


@pytest.mark.parametrize("node_id", [0, 1], ids=["leader", "follower"])
def test_a_replica_whose_directory_is_gone_is_recreated_in_a_log_dir_of_ours(
    cluster: Cluster, node_id: int
) -> None:
    write(cluster, 0, 1)
    shutil.rmtree(disk(cluster, node_id) / f"broker-{node_id}" / "events-0")
    write(cluster, 2)
    write(cluster, 3)

    assert isr(cluster) == (0, 1, 2)
    ensure_holds(cluster, 0, 1, 2, 3)


@pytest.mark.parametrize("node_id", [0, 1], ids=["leader", "follower"])
def test_a_file_that_is_unlinked_is_noticed(cluster: Cluster, node_id: int) -> None:
    write(cluster, 0, 1)
    (disk(cluster, node_id) / f"broker-{node_id}" / "events-0" / f"{0:020d}.log").unlink()
    write(cluster, 2)
    write(cluster, 3)

    ensure_holds(cluster, 0, 1, 2, 3)


def test_all_but_one_log_dir_may_be_lost(cluster: Cluster) -> None:
    write(cluster, 0, 1)
    for node_id in (0, 2):
        shutil.rmtree(disk(cluster, node_id))

    assert builders.contents(cluster)[EVENTS] == records_of(BATCHES[:2])
    write(cluster, 2)
    assert isr(cluster) == (1,)
    ensure_holds(cluster, 0, 1, 2)


def test_without_any_in_sync_replica_the_partition_waits_for_one(
    cluster: Cluster, disks: Disks, clock: Clock
) -> None:
    write(cluster, 0)
    disks.fail(disk(cluster, 1), READ_ONLY)
    write(cluster, 1)
    for node_id in (0, 2):
        disks.fail(disk(cluster, node_id), BROKEN)
    (result,) = append_records(cluster, {EVENTS: BATCHES[2]}).values()
    assert isinstance(result.error, KafkaStorageError)
    assert "no in-sync replica that can be used: node 0: " in str(result.error)
    # Back alone it cannot lead: it lacks what was acknowledged without it.
    disks.mend(disk(cluster, 1))
    clock.now_ms += RETRY_MS
    assert isinstance(
        append_records(cluster, {EVENTS: BATCHES[2]})[EVENTS].error, KafkaStorageError
    )
    disks.mend(disk(cluster, 2))
    clock.now_ms += RETRY_MS
    write(cluster, 2)

    ensure_holds(cluster, 0, 1, 2)


def test_a_reader_goes_on_with_another_replica(cluster: Cluster, disks: Disks) -> None:
    write(cluster, 0, 1)
    disks.fail(disk(cluster, 0), BROKEN)

    assert builders.contents(cluster)[EVENTS] == records_of(BATCHES[:2])
    assert partition(cluster).view.state().leader == 1


def test_what_a_reader_was_shown_by_a_follower_stays(tmp_path: Path) -> None:
    """A writer died at any step, and its leader's disk failed with it; then that disk comes back alone."""
    shown = set()
    for step in range(20):
        disks = Disks()
        cluster = a_replicated_cluster(tmp_path / f"{step}", disks)
        write(cluster, 0)
        disks.kill_at = step
        with contextlib.suppress(Killed):
            write(cluster, 1)
        disks.kill_at = None
        disks.fail(disk(cluster, 0), BROKEN)
        found = builders.contents(Cluster(str(cluster.path), files=disks))[EVENTS]
        shown.add(len(found))

        disks.mend(disk(cluster, 0))
        for node in (1, 2):
            disks.fail(disk(cluster, node), BROKEN)
        with pytest.raises(KafkaStorageError, match="no in-sync replica"):
            builders.contents(Cluster(str(cluster.path), files=disks))
        for node in (1, 2):
            disks.mend(disk(cluster, node))
        assert builders.contents(Cluster(str(cluster.path), files=disks))[EVENTS] == found, step
    assert shown == {1, 3}


@pytest.mark.parametrize("uses_threads", [False, True], ids=["in turn", "at once"])
@pytest.mark.parametrize("node_id", [0, 1], ids=["leader", "follower"])
def test_a_replica_that_cannot_flush_leaves_and_nothing_is_there_twice(
    tmp_path: Path, clock: Clock, node_id: int, uses_threads: bool
) -> None:
    disks = FailsToFlush()
    cluster = a_replicated_cluster(tmp_path, disks)
    if not uses_threads:
        cluster = with_clock(cluster, clock)
    write(cluster, 0)
    disks.folder = disk(cluster, node_id)
    (result,) = append_records(cluster, {EVENTS: BATCHES[1]}, flush=True).values()

    assert (result.error, result.base_offset) == (None, 1)
    ensure_holds(cluster, 0, 1)
    assert isr(cluster) == tuple({0, 1, 2} - {node_id})

    disks.folder = None
    clock.now_ms += RETRY_MS
    store_of(cluster).manager.dirs.look_again()
    write(cluster, 2)
    ensure_holds(cluster, 0, 1, 2)
    assert isr(cluster) == (0, 1, 2)


# What was not acknowledged.


def test_what_only_the_old_leader_has_is_truncated_when_it_is_back(
    cluster: Cluster, disks: Disks, clock: Clock
) -> None:
    write(cluster, 0)
    for node_id in (1, 2):
        disks.fail(disk(cluster, node_id), FULL)
    disks.kill_at = 10**9
    leader = with_clock(cluster, clock)
    log = store_of(leader).manager.log(EVENTS)
    builders.append(log, BATCHES[1])  # as by a process that is killed before it copies
    log.write_state(log.state()._replace(high_watermark=1), flush=False)
    for node_id in (1, 2):
        disks.mend(disk(cluster, node_id))
    disks.fail(disk(cluster, 0), BROKEN)
    write(cluster, 2)
    disks.mend(disk(cluster, 0))
    clock.now_ms += RETRY_MS
    write(cluster, 3)

    assert isr(cluster) == (0, 1, 2)
    ensure_holds(cluster, 0, 2, 3)


def test_what_a_killed_leader_did_not_copy_is_copied_by_the_next_writer(
    cluster: Cluster, clock: Clock, disks: Disks
) -> None:
    write(cluster, 0)
    before = len(disks.steps)
    write(cluster, 1)
    steps = len(disks.steps) - before
    for step in range(steps + 1):
        victim = with_clock(cluster, clock)
        known = high_watermark(cluster)
        disks.kill_at = step
        try:
            write(victim, 1)
        except Killed:
            pass
        disks.kill_at = None
        assert high_watermark(cluster) >= known
        found = builders.contents(cluster)[EVENTS]
        write(cluster, 2)
        assert builders.contents(cluster)[EVENTS][: len(found)] == found
        assert isr(cluster) == (0, 1, 2)
        copies = {bytes_of(cluster, node_id) for node_id in range(3)}
        assert len(copies) == 1


def test_what_a_replica_alone_has_since_a_reboot_is_not_taken_for_what_came_in_its_place(
    cluster: Cluster, disks: Disks, clock: Clock
) -> None:
    """Power is lost during an append: a follower had flushed it, the leader not; then the follower is away."""
    write(cluster, 0)
    kept, image = log_directory(cluster, 0), cluster.path.parent / "flushed"
    shutil.copytree(kept, image)
    write(cluster, 1)
    shutil.rmtree(kept)
    image.rename(kept)
    with another_boot():
        for node_id in (1, 2):
            disks.fail(disk(cluster, node_id), BROKEN)
        again = with_clock(cluster, clock)
        write(again, 2)
        for node_id in (1, 2):
            disks.mend(disk(cluster, node_id))
        clock.now_ms += RETRY_MS
        write(again, 3)

        assert isr(again) == (0, 1, 2)
        ensure_holds(again, 0, 2, 3)


@pytest.mark.parametrize("has_more", [1, 2])
def test_of_the_replicas_that_are_left_the_one_that_has_most_leads(
    cluster: Cluster, disks: Disks, has_more: int
) -> None:
    write(cluster, 0)
    other = partition(cluster)._log_of(has_more)
    builders.append(other, BATCHES[1])  # as by a process that died after it had copied to one
    other.write_state(other.state()._replace(high_watermark=1), flush=False)
    disks.fail(disk(cluster, 0), BROKEN)
    write(cluster, 2)

    assert partition(cluster).view.state().leader == has_more
    ensure_holds(cluster, 0, 1, 2)


# Enough replicas.


class Answer:
    def __init__(self) -> None:
        self.results: list[Mapping[TopicPartition, AppendResult]] = []

    def __call__(self, results: Mapping[TopicPartition, AppendResult]) -> None:
        self.results.append(results)

    @property
    def error(self) -> Exception | None:
        ((result,),) = [list(results.values()) for results in self.results]
        return result.error


def send(cluster: Cluster, data: bytes, *, required_acks: int = -1) -> Answer:
    answer = Answer()
    append_by(
        store_of(cluster),
        timeout_ms=500,
        required_acks=required_acks,
        entries_per_partition={EVENTS: data},
        on_complete=answer,
        flush=False,
    )
    return answer


@pytest.fixture
def strict(tmp_path: Path, disks: Disks, clock: Clock) -> Cluster:
    config = TopicConfig(min_insync_replicas=2)
    return with_clock(a_replicated_cluster(tmp_path, disks, replicas=2, config=config), clock)


def test_with_too_few_in_sync_acks_all_writes_nothing_and_acks_one_is_not_seen(
    strict: Cluster, disks: FailsBehindTheLeader, clock: Clock
) -> None:
    write(strict, 0)
    disks.fail(disk(strict, 1), FULL)
    write(strict, 1, required_acks=1)
    assert isr(strict) == (0,)
    error = send(strict, BATCHES[2]).error
    assert isinstance(error, NotEnoughReplicasError)
    assert "in-sync replicas 0, and min.insync.replicas is 2: nothing is written" in str(error)
    ensure_holds(strict, 0)
    assert reader_of(strict).edges([EVENTS])[EVENTS] == (0, 1, 1, 3)
    disks.folder = None
    disks.mend(disk(strict, 1))
    clock.now_ms += RETRY_MS
    write(strict, 3)

    assert isr(strict) == (0, 1)
    ensure_holds(strict, 0, 1, 3)


def test_an_append_waits_for_a_replica_that_comes_back(
    strict: Cluster, disks: FailsBehindTheLeader, clock: Clock
) -> None:
    write(strict, 0)
    disks.folder = disk(strict, 1)
    answer = send(strict, BATCHES[1])
    assert answer.results == []
    store_of(strict).manager.delayed_produces.look()
    assert answer.results == []
    disks.folder = None
    disks.mend(disk(strict, 1))
    clock.now_ms += RETRY_MS // 3
    store_of(strict).manager.delayed_produces.look()
    assert answer.results == []
    store_of(strict).manager.dirs.look_again()
    store_of(strict).manager.delayed_produces.look()
    store_of(strict).manager.delayed_produces.look()

    assert answer.error is None
    ensure_holds(strict, 0, 1)


def test_an_append_that_waits_too_long_is_timed_out_and_stays(
    strict: Cluster, disks: FailsBehindTheLeader, clock: Clock
) -> None:
    disks.folder = disk(strict, 1)
    answer = send(strict, BATCHES[1])
    clock.now_ms += 500
    store_of(strict).manager.delayed_produces.look()

    assert isinstance(answer.error, RequestTimedOutError)
    assert len(store_of(strict).manager.delayed_produces) == 0
    disks.folder = None
    disks.mend(disk(strict, 1))
    clock.now_ms += RETRY_MS
    write(strict, 2)
    ensure_holds(strict, 1, 2)


def test_an_append_that_waits_is_told_when_another_leads(
    strict: Cluster, disks: FailsBehindTheLeader, clock: Clock
) -> None:
    write(strict, 0)
    disks.folder = disk(strict, 1)
    answer = send(strict, BATCHES[1])
    state, log = partition(strict).view.state(), partition(strict)._log_of(0)
    epoch = state.leader_epoch + 1
    after = state._replace(leader_epoch=epoch, partition_epoch=state.partition_epoch + 1)
    ends_before = (
        log.state().log_end_offset - 1
    )  # as if the new leader did not have the last record
    LeaderEpochCache.read(log.files, log.directory).assign(epoch, ends_before)
    store_of(strict).metadata.partition_states.write(EVENTS, after, strict.topic("events").topic_id)
    store_of(strict).manager.delayed_produces.look()

    assert isinstance(answer.error, NotLeaderOrFollowerError)
    assert "another leader, node 0" in str(answer.error)


@pytest.mark.parametrize("written", [0, 3], ids=["that is empty", "that reaches the offset"])
def test_an_append_that_waits_is_told_when_its_topic_was_created_again(
    strict: Cluster, disks: FailsBehindTheLeader, clock: Clock, written: int
) -> None:
    disks.folder = disk(strict, 1)
    answer = send(strict, BATCHES[1])
    assert answer.results == []
    disks.folder = None
    disks.mend(disk(strict, 1))
    store_of(strict).manager.dirs.look_again()
    other = Cluster(str(strict.path))
    other.delete_topic("events")
    other.create_topic("events", replication_factor=2)
    write(other, *range(written))
    store_of(strict).manager.delayed_produces.look()

    assert isinstance(answer.error, UnknownTopicOrPartitionError)
    assert "topic 'events' was deleted and created again" in str(answer.error)


# Idempotent producers.


def test_a_new_leader_knows_its_producers(cluster: Cluster, disks: Disks) -> None:
    for sequence in range(3):
        data = idempotent_batch(base_sequence=sequence)
        assert append_records(cluster, {EVENTS: data})[EVENTS].error is None
    disks.fail(disk(cluster, 0), BROKEN)
    again = append_records(cluster, {EVENTS: idempotent_batch(base_sequence=1)})[EVENTS]

    assert (again.error, again.base_offset) == (None, 1)
    assert (
        append_records(cluster, {EVENTS: idempotent_batch(base_sequence=3)})[EVENTS].error is None
    )
    assert high_watermark(cluster) == 4


# Deletion, files of other sizes.


def test_followers_begin_where_their_leader_does(
    cluster: Cluster, disks: Disks, clock: Clock
) -> None:
    write(cluster, 0, 1)
    disks.fail(disk(cluster, 2), BROKEN)
    write(cluster, 2)
    cluster.delete_records({EVENTS: 6})
    disks.mend(disk(cluster, 2))
    clock.now_ms += RETRY_MS
    write(cluster, 3)

    found = partition(cluster)
    starts = {found._log_of(node).state().log_start_offset for node in range(3)}
    assert (isr(cluster), starts) == ((0, 1, 2), {6})


@pytest.mark.parametrize("lags_from", [0, 1], ids=["nothing", "some records"])
@pytest.mark.parametrize("lags", [0, 1], ids=["leader", "follower"])
def test_a_replica_that_ends_below_a_log_start_within_a_batch_gets_in_sync(
    cluster: Cluster, disks: Disks, clock: Clock, lags: int, lags_from: int
) -> None:
    write(cluster, *range(lags_from))
    disks.fail(disk(cluster, lags), BROKEN)
    write(cluster, *range(lags_from, 4))
    cluster.delete_records({EVENTS: 8})  # of the batch from 6 to 9
    disks.mend(disk(cluster, lags))
    clock.now_ms += RETRY_MS
    epoch = partition(cluster).view.state().leader_epoch
    write(cluster, 4)
    write(cluster, 5)

    found = partition(cluster)
    assert (isr(cluster), found.view.state().leader_epoch) == ((0, 1, 2), epoch)
    states = [found._log_of(node).state() for node in range(3)]
    assert {(one.log_start_offset, one.log_end_offset) for one in states} == {(8, 21)}
    assert bytes_of(cluster, 2).endswith(bytes_of(cluster, lags))
    assert builders.contents(cluster)[EVENTS] == records_of(BATCHES[:6])[8:]
    assert cluster.replicate() == []


def delete_all(cluster: Cluster, _: Clock) -> None:
    cluster.delete_records({EVENTS: LATEST})


def let_all_expire(cluster: Cluster, clock: Clock) -> None:
    cluster.alter_topic("events", {"retention.ms": 1000})
    clock.now_ms += 10_000
    cluster.collect_garbage()
    cluster.alter_topic("events", {"retention.ms": -1})


def overwrite_with_nothing(cluster: Cluster, clock: Clock) -> None:
    committer = Coordinator(store_of(cluster).manager, clock, adopt_min_bytes=0, flush=False)
    overwrite = Overwrite(cluster.topic("events"), delete_delay_ms=0)
    committer.commit([], transactional_id=builders.JOB, overwrite=overwrite)


@pytest.mark.parametrize("empty", [delete_all, let_all_expire, overwrite_with_nothing])
def test_a_replica_that_ends_below_an_emptied_log_goes_on_where_its_leader_does(
    cluster: Cluster, disks: Disks, clock: Clock, empty: Callable[[Cluster, Clock], None]
) -> None:
    """It has epochs from before, which end below the log start."""
    write(cluster, 0, 1)
    disks.fail(disk(cluster, 0), BROKEN)
    write(cluster, 2)
    empty(cluster, clock)
    assert reader_of(cluster).edges([EVENTS])[EVENTS].log_start_offset == 6
    disks.mend(disk(cluster, 0))
    clock.now_ms += RETRY_MS
    assert cluster.replicate() == []
    leader = partition(cluster).view.state().leader
    write(cluster, 3)

    assert partition(cluster).view.state().leader == leader
    assert (isr(cluster), high_watermark(cluster)) == ((0, 1, 2), 10)
    ensure_holds_from(cluster, 6, 3)
    assert all(not report.damaged for report in cluster.verify())


def test_a_damaged_batch_that_only_a_new_replica_lacks_stops_no_append(cluster: Cluster) -> None:
    write(cluster, 0, 1, 2)
    for node_id in (0, 1):
        (path,) = log_directory(cluster, node_id).glob("*.log")
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.write_bytes(data)
    shutil.rmtree(log_directory(cluster, 2))
    write(cluster, 3)
    write(cluster, 4)

    assert isr(cluster) == (0, 1)
    assert cluster.replicate() == [EVENTS]


def test_segments_roll_in_every_replica(tmp_path: Path, disks: Disks, clock: Clock) -> None:
    config = TopicConfig(segment_bytes=1200, index_interval_bytes=1)
    cluster = with_clock(a_replicated_cluster(tmp_path, disks, config=config), clock)
    write(cluster, *range(8))

    ensure_holds(cluster, *range(8))
    assert (
        len(list(store_of(cluster).metadata.cluster_file.log_directory(EVENTS, 1).glob("*.log")))
        > 2
    )


def test_a_follower_that_alone_has_a_batch_and_leaves_is_truncated_when_it_is_back(
    tmp_path: Path, disks: Disks, clock: Clock
) -> None:
    cluster = with_clock(a_replicated_cluster(tmp_path, disks, replicas=2), clock)
    write(cluster, 0)
    # As by a process that is killed when the follower has recorded a batch, and the leader has not.
    builders.append(partition(cluster)._log_of(1), BATCHES[1])
    disks.fail(disk(cluster, 1), BROKEN)
    write(cluster, 2)
    disks.mend(disk(cluster, 1))
    clock.now_ms += RETRY_MS
    write(cluster, 3)
    assert isr(cluster) == (0, 1)
    ensure_holds(cluster, 0, 2, 3)


@pytest.mark.parametrize("is_given_up", [False, True])
def test_a_leader_that_lost_what_was_shown_waits_for_a_member_that_is_away(
    tmp_path: Path, disks: Disks, clock: Clock, is_given_up: bool
) -> None:
    cluster = with_clock(a_replicated_cluster(tmp_path, disks, replicas=2), clock)
    write(cluster, 0, 1)
    shown = high_watermark(cluster)
    (file,) = log_directory(cluster, 0).glob("*.log")
    os.truncate(file, file.stat().st_size - 5)  # a power loss took what was not flushed
    disks.fail(disk(cluster, 1), BROKEN)
    with another_boot():
        after = with_clock(cluster, clock)
        (refused,) = append_records(after, {EVENTS: BATCHES[2]}).values()
        assert f"events-0 was shown up to offset {shown}" in str(refused.error)
        assert "mount the disk of node 1" in str(refused.error)

        if is_given_up:
            assert [one.topic_partition for one in after.elect_unclean("events")] == [EVENTS]
            write(after, 2)
        disks.mend(disk(cluster, 1))
        clock.now_ms += RETRY_MS
        write(after, 3 if is_given_up else 2)
        assert isr(after) == (0, 1)
        ensure_holds(after, *((0, 2, 3) if is_given_up else (0, 1, 2)))
