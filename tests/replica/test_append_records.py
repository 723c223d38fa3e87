"""Appends to several partitions at once: each is answered separately, beside jobs that commit."""

from __future__ import annotations

import errno
import os
import struct
import threading
import time
import warnings
from collections import Counter
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.cluster.job import coordinator_for
from spark_kbatch.commit import coordinator
from spark_kbatch.commit.internal_topics import TRANSACTION_STATE
from spark_kbatch.errors import (
    CommitError,
    ConfigError,
    CorruptRecordError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidRequiredAcksError,
    KafkaStorageError,
    LockTimeoutError,
    LogDirLockedError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.files import Buffer, Files, LockFile
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.state import STATE_FILE
from spark_kbatch.model import AppendOrigin, AppendResult, TopicPartition
from spark_kbatch.options.topic import Topic, TopicConfig
from spark_kbatch.options.write import parse_write_options
from spark_kbatch.record import scalar
from spark_kbatch.replica import administration
from tests.support import builders
from tests.support.builders import append_records, batch, contents, idempotent_batch, records_of
from tests.support.faults import (
    DiesAtTheCommitPoint,
    Fault,
    FaultyFiles,
    ReadOnlyFiles,
    StopsInTheFlip,
    died,
    is_commit_point,
    run_child,
)
from tests.support.reference import Record, encode_batch, split_batches, with_crc
from tests.support.soundness import ensure_sound
from tests.support.store import append_records as append_by
from tests.support.store import reader_of, store_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # by kafka-python, about itself
    import kafka.record.memory_records as kafka_python  # type: ignore[import-untyped]

EVENTS, OTHERS = TopicPartition("events", 0), TopicPartition("others", 0)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return builders.a_cluster(tmp_path, topics={"events": 2, "others": 2})


def another(cluster: Cluster, files: Files | None = None) -> Cluster:
    """Open the same cluster as another process would."""
    return Cluster(str(cluster.path), files=files)


def ensure_all_sound(cluster: Cluster) -> None:
    for topic in cluster.topics():
        for topic_partition in store_of(cluster).manager.partitions(topic.name):
            ensure_sound(store_of(cluster).manager.log(topic_partition))
    ensure_sound(store_of(cluster).manager.log(TRANSACTION_STATE))


# Answers.


@pytest.mark.parametrize("required_acks", [-1, 0, 1])
@pytest.mark.parametrize("flush", [False, True], ids=["not flushed", "flushed"])
def test_each_partition_is_answered_with_its_base_offset(
    cluster: Cluster, required_acks: int, flush: bool
) -> None:
    append_records(cluster, {("events", 1): batch(n=5)})
    entries: dict[tuple[str, int], Buffer] = {("others", 1): batch(n=2), ("events", 1): batch(n=3)}
    found = append_records(cluster, entries, required_acks=required_acks, flush=flush)

    assert found == {
        TopicPartition("others", 1): AppendResult(0, log_start_offset=0),
        TopicPartition("events", 1): AppendResult(5, log_start_offset=0),
    }
    expected = records_of([batch(n=5), batch(n=3)])
    assert contents(cluster)[TopicPartition("events", 1)] == expected
    ensure_all_sound(cluster)


def test_appends_of_nothing_are_answered(cluster: Cluster) -> None:
    assert append_records(cluster, {}) == {}


@pytest.mark.parametrize("required_acks", [-2, 2])
def test_other_acks_are_refused_for_every_partition(cluster: Cluster, required_acks: int) -> None:
    entries: dict[tuple[str, int], Buffer] = {("events", 0): batch(), ("no topic", 0): batch()}
    for result in append_records(cluster, entries, required_acks=required_acks).values():
        assert isinstance(result.error, InvalidRequiredAcksError)
        assert str(result.error).startswith(f"acks is {required_acks}; accepted: -1 ")
        assert result[:3] == (-1, -1, -1)
    assert contents(cluster)[EVENTS] == []


def test_one_partitions_error_does_not_stop_the_others(cluster: Cluster) -> None:
    damaged = bytearray(batch())
    damaged[-1] ^= 1
    idempotent = idempotent_batch(base_sequence=3, epoch=2)
    append_records(cluster, {("others", 0): idempotent, ("others", 1): idempotent})
    found = append_records(
        cluster,
        {
            ("__transaction_state", 0): batch(),
            ("events", 0): damaged,
            ("events", 1): batch(),
            ("events", 2): batch(),
            ("no-topic", 0): batch(),
            ("others", 0): idempotent_batch(base_sequence=5, epoch=2),
            ("others", 1): idempotent_batch(base_sequence=4, epoch=1),
        },
    )

    errors = {str(tp): type(result.error) for tp, result in found.items()}
    assert errors == {
        "__transaction_state-0": ConfigError,
        "events-0": CorruptRecordError,
        "events-1": type(None),
        "events-2": UnknownTopicOrPartitionError,
        "no-topic-0": UnknownTopicOrPartitionError,
        "others-0": OutOfOrderSequenceError,
        "others-1": InvalidProducerEpochError,
    }
    assert [len(records) for records in contents(cluster).values()] == [0, 3, 1, 1]
    ensure_all_sound(cluster)


def test_a_batch_that_a_log_does_not_take_leaves_no_trace(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, config=TopicConfig(max_message_bytes=300))
    before = store_of(cluster).manager.log(EVENTS).state()
    for data, kind in (
        (batch(n=9), RecordTooLargeError),
        (batch(n=1) + b"\0", InvalidRecordError),
        (b"", InvalidRecordError),
    ):
        assert isinstance(append_records(cluster, {EVENTS: data})[EVENTS].error, kind)
    assert store_of(cluster).manager.log(EVENTS).state() == before


def test_internal_topics_are_written_where_allowed(cluster: Cluster) -> None:
    administration.create_topic(
        store_of(cluster).manager, "__commits", partitions=1, config=TopicConfig()
    )
    place = ("__commits", 0)
    (refused,) = append_records(cluster, {place: batch()}).values()
    assert (
        str(refused.error)
        == "topic '__commits' is the cluster's own, which alone changes it; choose another"
    )
    (taken,) = append_records(
        cluster,
        {place: batch()},
        internal_topics_allowed=True,
        origin=AppendOrigin.COORDINATOR,
    ).values()
    assert taken == AppendResult(0, log_start_offset=0)


@pytest.mark.parametrize("outcome", ["taken", "refused", "failed"])
def test_the_buffer_is_as_it_was_and_free(cluster: Cluster, outcome: str) -> None:
    buffer = bytearray(batch())
    if outcome == "refused":
        buffer[-1] ^= 1
    before = bytes(buffer)
    files = FaultyFiles(Fault(3, errno.EIO) if outcome == "failed" else None)
    (result,) = append_records(another(cluster, files), {EVENTS: memoryview(buffer)}).values()

    assert (result.error is None) == (outcome == "taken")
    assert buffer == before
    buffer.clear()  # BufferError while anyone has a view of it


def test_a_broker_in_the_log_dir_is_every_partitions_error(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Files, "share_lock", lambda *_: False)
    for result in append_records(cluster, {EVENTS: batch(), OTHERS: batch()}).values():
        assert isinstance(result.error, LogDirLockedError)


# Locks that others hold.


def test_a_partition_whose_lock_is_held_does_not_stop_the_others(cluster: Cluster) -> None:
    last = TopicPartition("others", 1)
    with store_of(another(cluster)).manager.locks.partitions([EVENTS]):
        begun = time.monotonic()
        found = append_records(
            cluster, {EVENTS: batch(), OTHERS: batch(), last: batch()}, lock_timeout_ms=200
        )
        waited_s = time.monotonic() - begun
    assert 0.2 <= waited_s < 5
    error = found[EVENTS].error
    assert isinstance(error, LockTimeoutError)
    assert (error.lock, error.path) == ("events-0", str(cluster.path / "locks/events.lock"))
    assert [found[OTHERS].error, found[last].error] == [None, None]
    assert [len(records) for records in contents(cluster).values()] == [0, 0, 3, 3]
    assert append_records(cluster, {EVENTS: batch()})[EVENTS].error is None


def test_a_lock_that_is_let_go_in_time_is_taken(cluster: Cluster) -> None:
    held = store_of(another(cluster)).manager.locks.partitions([EVENTS, OTHERS])
    held.__enter__()
    timer = threading.Timer(0.1, held.__exit__, (None, None, None))
    timer.start()
    found = append_records(cluster, {EVENTS: batch(), OTHERS: batch()}, lock_timeout_ms=60_000)
    assert [result.error for result in found.values()] == [None, None]
    timer.join()


def test_an_append_waits_no_longer_for_a_lock_than_its_timeout(cluster: Cluster) -> None:
    answers: list[AppendResult] = []
    with store_of(another(cluster)).manager.locks.partitions([EVENTS]):
        append_by(
            store_of(cluster),
            timeout_ms=50,
            required_acks=-1,
            entries_per_partition={EVENTS: batch()},
            on_complete=lambda found: answers.extend(found.values()),
            flush=False,
        )
    assert [type(answer.error) for answer in answers] == [LockTimeoutError]


def test_an_append_waits_no_longer_for_a_committer_that_stands_still(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the commit lock, and has flipped this partition already."""
    monkeypatch.setattr(coordinator.Coordinator, "is_pending", lambda *_: True)
    with store_of(another(cluster)).manager.locks.commit():
        found = append_records(cluster, {EVENTS: batch()}, lock_timeout_ms=100)[EVENTS].error
    assert isinstance(found, LockTimeoutError)
    assert found.lock == "commit"


# What is wrong with a log.


def test_a_damaged_state_is_not_the_batchs_error(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    (store_of(cluster).manager.log(EVENTS).directory / STATE_FILE).write_bytes(bytes(8192))
    found = append_records(cluster, {EVENTS: batch(), OTHERS: batch()})
    assert isinstance(found[EVENTS].error, KafkaStorageError)
    assert "neither slot of the state is valid" in str(found[EVENTS].error)
    assert found[OTHERS].error is None


def test_a_log_shorter_than_recorded_is_not_appended_to(cluster: Cluster) -> None:
    append_records(cluster, {EVENTS: batch()}, flush=True)
    os.truncate(store_of(cluster).manager.log(EVENTS).directory / f"{0:020d}.log", 50)
    found = append_records(cluster, {EVENTS: batch()})[EVENTS].error
    assert isinstance(found, KafkaStorageError)
    assert "fewer than the" in str(found)


def test_on_a_read_only_mount_every_partition_is_answered(cluster: Cluster) -> None:
    read_only = another(cluster, ReadOnlyFiles())
    for result in append_records(read_only, {EVENTS: batch(), OTHERS: batch()}).values():
        assert isinstance(result.error, KafkaStorageError)
        assert "Read-only file system" in str(result.error)


def test_an_append_where_an_adoption_stopped_halfway_recreates_the_segments_file(
    cluster: Cluster,
) -> None:
    """It also flushes the directory, or a power loss would take the file."""
    extents = builders.staged(cluster, {EVENTS: [batch()]}, adopt_min_bytes=0)
    log = store_of(cluster).manager.log(EVENTS)
    dry_run = FaultyFiles()
    assert died(
        lambda: builders.commit(another(cluster, DiesAtTheRename()), extents, adopt_min_bytes=0)
    )
    assert not (log.directory / f"{0:020d}.log").exists()

    found = append_records(another(cluster, dry_run), {EVENTS: batch(n=2)}, flush=True)[EVENTS]
    assert found == AppendResult(0, log_start_offset=0)
    assert f"flush {log.directory}" in dry_run.steps
    assert contents(cluster)[EVENTS] == records_of([batch(n=2)])
    ensure_sound(log)


class DiesAtTheRename(FaultyFiles):
    """A process was killed between the two steps of adopting a staged file."""

    def rename(self, source: Path, target: Path) -> None:
        self.fault = Fault(len(self.steps))
        super().rename(source, target)


# Idempotence.


def test_all_threads_have_one_log_of_a_partition(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows the producers: with a log per thread, a retry in another thread would be written twice."""
    mine, both = another(cluster), threading.Barrier(2)
    find = store_of(mine).metadata.topics.topic
    looked: set[int] = set()

    def find_at_once(name: str) -> Topic:
        thread = threading.get_ident()
        if thread not in looked:  # The first to change something looks again.
            looked.add(thread)
            both.wait(10)
        return find(name)

    monkeypatch.setattr(store_of(mine).metadata.topics, "topic", find_at_once)
    found: list[PartitionLog] = []
    threads = [
        threading.Thread(target=lambda: found.append(store_of(mine).manager.log(EVENTS)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] is found[1]


def test_a_retry_after_a_lost_answer_keeps_one_copy(cluster: Cluster) -> None:
    producer_id = store_of(cluster).new_producer_id()
    batches = [
        idempotent_batch(producer_id=producer_id, base_sequence=3 * n, n=3) for n in range(5)
    ]
    first = [append_records(cluster, {EVENTS: data}) for data in batches]
    append_records(another(cluster), {EVENTS: batch(n=2)})
    again = [append_records(cluster, {EVENTS: data}, flush=True) for data in batches]

    assert again == first
    assert contents(cluster)[EVENTS] == records_of([*batches, batch(n=2)])
    ensure_all_sound(cluster)


def test_a_retry_finds_what_was_written_before_a_commit(cluster: Cluster) -> None:
    """The flush after the last write failed, and a job committed between that and the retry."""
    files = FaultyFiles()
    failing = another(cluster, files)
    steps = [0]
    for sequence in range(2):
        append_records(failing, {EVENTS: idempotent_batch(base_sequence=sequence)}, flush=True)
        steps.append(len(files.steps))
    files.fault = Fault(steps[2] + (steps[2] - steps[1]) - 1, errno.EIO)
    data = idempotent_batch(base_sequence=2)
    found = append_records(failing, {EVENTS: data}, flush=True)[EVENTS]
    assert files.steps[-1].startswith("flush")
    assert files.steps[-1].endswith(STATE_FILE)
    assert isinstance(found.error, KafkaStorageError)

    builders.write(cluster, {EVENTS: [batch(n=2)] * 3})
    found = append_records(failing, {EVENTS: data}, flush=True)[EVENTS]
    assert found == AppendResult(2, log_start_offset=0)
    assert len(contents(cluster)[EVENTS]) == 3 + 6


# Formats.


@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
def test_kafka_python_reads_what_was_appended(cluster: Cluster, codec: str) -> None:
    for seed in range(3):
        data = builders.batch(n=4, compression=codec, seed=seed)
        append_records(cluster, {EVENTS: data})
    append_records(cluster, {EVENTS: idempotent_batch(base_sequence=7, n=2)})
    stored = (store_of(cluster).manager.log(EVENTS).directory / f"{0:020d}.log").read_bytes()

    found, epochs = [], []
    batches = kafka_python.MemoryRecords(stored)
    while batches.has_next():
        one = batches.next_batch()
        assert one.validate_crc()
        epochs.append((one.leader_epoch, one.producer_id, one.base_sequence))
        found += [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in one]
    assert found == contents(cluster)[EVENTS]
    assert epochs == [(0, -1, -1)] * 3 + [(0, 7, 7)]


# Beside commits.


def an_undone_flip(cluster: Cluster, *, flips: int = 0, adopt_min_bytes: int = 8 << 20) -> None:
    """Commit a job of one batch in each partition, decided and flipped in only some of them."""
    places = [(topic.name, n) for topic in cluster.topics() for n in range(topic.partitions)]
    extents = builders.staged(
        cluster, {place: [batch(n=3)] for place in places}, adopt_min_bytes=adopt_min_bytes
    )
    with pytest.raises(CommitError) as error:
        builders.commit(
            another(cluster, StopsInTheFlip(flips)), extents, adopt_min_bytes=adopt_min_bytes
        )
    assert error.value.outcome == coordinator.COMMITTED


@pytest.mark.parametrize("adopt_min_bytes", [8 << 20, 0], ids=["copied", "renamed"])
@pytest.mark.parametrize("flips", range(5))
@pytest.mark.parametrize("there_before", [0, 1], ids=["empty", "not empty"])
def test_a_commit_decided_and_not_flipped_comes_first(
    cluster: Cluster, flips: int, adopt_min_bytes: int, there_before: int
) -> None:
    places = [("events", 0), ("events", 1), ("others", 0), ("others", 1)]
    for place in places[:there_before]:
        append_records(cluster, {place: batch(n=1)})
    an_undone_flip(cluster, flips=flips, adopt_min_bytes=adopt_min_bytes)
    found = append_records(cluster, {EVENTS: batch(n=2)})[EVENTS]

    assert found == AppendResult(3 + there_before, log_start_offset=0)
    everywhere = [[batch(n=1)]] * there_before + [[]] * (4 - there_before)
    expected = [records_of([*before, batch(n=3)]) for before in everywhere]
    expected[0] = records_of([*everywhere[0], batch(n=3), batch(n=2)])
    assert list(contents(cluster).values()) == expected
    # Rolling forward later takes nothing back.
    coordinator_for(
        store_of(cluster), parse_write_options({"path": str(cluster.path)})
    ).roll_forward()
    assert list(contents(cluster).values()) == expected
    ensure_all_sound(cluster)


def test_a_commit_that_is_decided_while_an_append_waits_for_its_lock_comes_first(
    cluster: Cluster,
) -> None:
    """The committer dies with the lock, for which the append has waited since before the commit point."""
    is_placed, is_waited_for = threading.Event(), threading.Event()

    class Committer(StopsInTheFlip):
        def write_at(self, descriptor: int, position: int, data: Buffer) -> None:
            if is_commit_point(descriptor):
                is_placed.set()
                assert is_waited_for.wait(10)
            super().write_at(descriptor, position, data)

    class Appender(Files):
        def lock_byte(self, file: LockFile, position: int, *, wait: bool = True) -> bool:
            is_taken = super().lock_byte(file, position, wait=wait)
            if not is_taken:
                is_waited_for.set()
            return is_taken

    extents = builders.staged(cluster, {EVENTS: [batch(n=3)]})
    outcomes: list[str] = []

    def commit() -> None:
        with pytest.raises(CommitError) as error:
            builders.commit(another(cluster, Committer(0)), extents)
        outcomes.append(error.value.outcome)

    thread = threading.Thread(target=commit)
    thread.start()
    assert is_placed.wait(10)
    found = append_records(another(cluster, Appender()), {EVENTS: batch(n=2)})[EVENTS]
    thread.join()

    assert outcomes == [coordinator.COMMITTED]
    assert found == AppendResult(3, log_start_offset=0)
    assert contents(cluster)[EVENTS] == records_of([batch(n=3), batch(n=2)])
    ensure_all_sound(cluster)


def test_an_append_elsewhere_does_not_wait_for_a_commit_that_is_under_way(
    cluster: Cluster,
) -> None:
    """The committer lives: it holds the locks of its own partitions and will flip them itself."""
    waiting, go_on = threading.Event(), threading.Event()

    class Waits(Files):
        def write_at(self, descriptor: int, position: int, data: Buffer) -> None:
            super().write_at(descriptor, position, data)
            if is_commit_point(descriptor):
                waiting.set()
                assert go_on.wait(10)

    committer = another(cluster, Waits())
    extents = builders.staged(cluster, {EVENTS: [batch(n=3)]})
    thread = threading.Thread(target=lambda: builders.commit(committer, extents))
    thread.start()
    assert waiting.wait(10)
    assert append_records(cluster, {OTHERS: batch(n=2)})[OTHERS].error is None
    go_on.set()
    thread.join()
    assert append_records(cluster, {EVENTS: batch(n=2)})[EVENTS].base_offset == 3


@pytest.mark.parametrize("adopt_min_bytes", [8 << 20, 0], ids=["copied", "renamed"])
def test_what_a_commit_left_that_was_not_decided_is_cut(
    tmp_path: Path, adopt_min_bytes: int
) -> None:
    """Even if it starts segments after those that the append starts."""
    config = TopicConfig(index_interval_bytes=1, segment_bytes=1500)
    cluster = builders.a_cluster(tmp_path, config=config)
    append_records(cluster, {EVENTS: batch()})
    job = [batch(n=n) for n in (3, 4, 3, 5, 2, 3)]
    extents = builders.staged(cluster, {EVENTS: job}, adopt_min_bytes=adopt_min_bytes)
    assert died(
        lambda: builders.commit(
            another(cluster, DiesAtTheCommitPoint()), extents, adopt_min_bytes=adopt_min_bytes
        )
    )
    ours = [batch(n=2, seed=seed) for seed in range(12)]
    for data in ours:
        assert append_records(cluster, {EVENTS: data})[EVENTS].error is None
    assert contents(cluster)[EVENTS] == records_of([batch(), *ours])
    builders.write(cluster, {EVENTS: [batch()]})  # which discards what that left in other logs
    ensure_all_sound(cluster)


PLACES = [("events", 0), ("events", 1), ("others", 0), ("others", 1)]
ROUNDS = 8


def one_record(key: str) -> bytes:
    return bytes(scalar.encode([(key.encode(), b"value")], builders.FIRST_TIMESTAMP_MS))


def append_and_commit(cluster: Cluster, name: str) -> None:
    """Append in turn to all partitions of both topics."""
    producer_id = store_of(cluster).new_producer_id()
    for n in range(ROUNDS):
        key = f"append {name} {n}"
        data = idempotent_batch(producer_id=producer_id, base_sequence=n, key=key.encode())
        for _ in range(2):  # the second time as a retry
            found = append_records(cluster, dict.fromkeys(PLACES[:: 1 - 2 * (n % 2)], data))
            assert [result.error for result in found.values()] == [None] * 4
        job = {place: [one_record(f"commit {name} {n}")] for place in PLACES}
        transaction = f"job-{name}-{n}".replace(" ", "-")
        extents = builders.staged(
            cluster, job, transaction=transaction, adopt_min_bytes=0 if n % 4 == 3 else 8 << 20
        )
        builders.commit(
            cluster, extents, transaction=transaction, adopt_min_bytes=0 if n % 4 == 3 else 8 << 20
        )


def test_processes_and_threads_append_and_commit_to_the_same_partitions(cluster: Cluster) -> None:
    def work(process: int) -> None:
        mine = another(cluster)
        failures: list[BaseException] = []

        def guarded(thread: int) -> None:
            try:
                append_and_commit(mine, f"{process} {thread}")
            except BaseException as error:  # noqa: BLE001  a thread's error would be lost
                failures.append(error)

        threads = [threading.Thread(target=guarded, args=(n,)) for n in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    children = {run_child(lambda n=n: work(n)) for n in range(2)}
    seen = []
    partitions = [TopicPartition(*place) for place in PLACES]
    while children:
        seen.append(reader_of(cluster).edges(partitions))
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended:
            children.remove(ended)
            assert status == 0
        time.sleep(0.002)

    found = contents(cluster)
    names = [
        f"{process} {thread} {n}" for process in "01" for thread in "01" for n in range(ROUNDS)
    ]
    written = sorted(f"{kind} {name}".encode() for kind in ("append", "commit") for name in names)
    for records in found.values():
        assert sorted(record.key or b"" for record in records) == written
        assert [record.offset for record in records] == list(range(len(written)))
    ensure_all_sound(cluster)
    # Every look found each job in all partitions, or in none.
    for edges in seen:
        below = Counter(
            record.key
            for tp in partitions
            for record in found[tp][: edges[tp].high_watermark]
            if record.key and record.key.startswith(b"commit")
        )
        assert set(below.values()) <= {4}


def test_a_forked_child_appends_beside_its_parent(cluster: Cluster) -> None:
    producer_id = store_of(cluster).new_producer_id()
    append_records(cluster, {EVENTS: idempotent_batch(producer_id=producer_id, base_sequence=0)})

    def work() -> None:
        mine = store_of(cluster).new_producer_id()
        for n in range(20):
            data = idempotent_batch(producer_id=mine, base_sequence=n)
            assert append_records(cluster, {EVENTS: data})[EVENTS].error is None

    child = run_child(work)
    for n in range(1, 21):
        data = idempotent_batch(producer_id=producer_id, base_sequence=n)
        assert append_records(cluster, {EVENTS: data})[EVENTS].error is None
    assert os.waitpid(child, 0)[1] == 0
    stored = (store_of(cluster).manager.log(EVENTS).directory / f"{0:020d}.log").read_bytes()
    assert len(list(split_batches(stored))) == 41
    ensure_all_sound(cluster)


# From the network.


def test_a_batch_from_the_network_is_appended_in_place_with_its_times_set_right(
    tmp_path: Path,
) -> None:
    cluster = builders.a_cluster(tmp_path)
    append_records(cluster, {EVENTS: batch(n=2)})
    records = [Record(at, 1000 + at, b"k", b"v") for at in range(3)]
    sent = bytearray(encode_batch(records))
    struct.pack_into(">q", sent, 35, 7)
    data = with_crc(bytes(sent))
    answer = append_records(cluster, {EVENTS: data}, origin=AppendOrigin.NETWORK)
    assert answer[EVENTS] == AppendResult(2, -1, 0)
    assert contents(cluster)[EVENTS][2:] == [one._replace(offset=one.offset + 2) for one in records]
    log = store_of(cluster).manager.log(EVENTS)
    ensure_sound(log)
    assert log.state().max_timestamp == max(one.timestamp for one in contents(cluster)[EVENTS])


def test_a_retry_from_the_network_is_a_duplicate(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    first, second = (idempotent_batch(base_sequence=at) for at in (0, 1))
    for _ in range(2):
        answers = [
            append_records(cluster, {EVENTS: data}, origin=AppendOrigin.NETWORK)[EVENTS]
            for data in (first, second)
        ]
        assert [(one.base_offset, one.error) for one in answers] == [(0, None), (1, None)]
    gap = idempotent_batch(base_sequence=9)
    answer = append_records(cluster, {EVENTS: gap}, origin=AppendOrigin.NETWORK)[EVENTS]
    assert isinstance(answer.error, OutOfOrderSequenceError)


def test_an_unsound_batch_from_the_network_writes_nothing_and_stops_no_other(
    tmp_path: Path,
) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"events": 1, "others": 1})
    sound = batch(n=3)
    unsound = with_crc(sound[:62] + b"\xff" + sound[63:])
    answer = append_records(cluster, {EVENTS: unsound, OTHERS: sound}, origin=AppendOrigin.NETWORK)
    assert isinstance(answer[EVENTS].error, InvalidRecordError)
    assert answer[OTHERS].error is None
    assert contents(cluster) == {EVENTS: [], OTHERS: records_of([sound])}
