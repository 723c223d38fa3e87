"""What waits for a partition is appended together; each batch is answered as if it had come alone."""

from __future__ import annotations

import contextlib
import errno
import math
import random
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from spark_kbatch import Cluster
from spark_kbatch.commit.internal_topics import TRANSACTION_STATE
from spark_kbatch.errors import (
    KafkaStorageError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.files import Files
from spark_kbatch.log.append import LogAppender
from spark_kbatch.log.segment import segment_at
from spark_kbatch.log.state import STATE_FILE
from spark_kbatch.model import AppendOrigin, AppendResult, TopicPartition
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.replica.manager import ACKS_ALL
from spark_kbatch.replica.partition import Partition
from spark_kbatch.server import appends
from spark_kbatch.server.appends import Append, Appends
from spark_kbatch.server.peers import SlowWarnings
from spark_kbatch.wire.protocol import ApiKey
from tests.support import builders, draws
from tests.support.builders import FIRST_TIMESTAMP_MS, batch, idempotent_batch
from tests.support.crashes import Recording
from tests.support.disk import Disk, DiskFiles
from tests.support.faults import DISK_FAULTS, Fault, FaultyFiles, SimulatedProcess
from tests.support.garbage import garbage_of
from tests.support.log_histories import control_batch, data_batch
from tests.support.raw_clients import RawClient, produce, produced, request
from tests.support.reference import Record, encode_batch, with_crc
from tests.support.soundness import ensure_sound
from tests.support.store import store_of

EVENTS = TopicPartition("events", 0)


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine makes no group smaller."""
    monkeypatch.setattr(appends, "_CHECKS_S_MAX", math.inf)


PATH = "/simulated/cluster"


class Turns:
    """A pool whose tasks wait until a test has them done, as well as what is to be done later."""

    def __init__(self) -> None:
        self._tasks: deque[Callable[[], object]] = deque()

    def submit(self, run: Callable[[], object], owner: object = None) -> None:
        self._tasks.append(run)

    def later(self, _: float, run: Callable[[], object]) -> None:
        self._tasks.append(run)

    def take(self) -> None:
        while self._tasks:
            self.take_one()

    def take_one(self) -> None:
        self._tasks.popleft()()


def appended(
    cluster: Cluster,
    batches: Sequence[bytes],
    *,
    flush: bool = False,
    acks: int = ACKS_ALL,
    topic_ids: Sequence[str | None] = (),
) -> list[AppendResult]:
    """Have all of these wait for a partition, append them, and return what each is answered."""
    turns = Turns()
    queues = Appends(store_of(cluster), turns, turns.later, flush=flush, slow=SlowWarnings(-1))  # type: ignore[arg-type]
    answers: list[list[AppendResult]] = [[] for _ in batches]
    ids = topic_ids or [None] * len(batches)
    for data, answer, topic_id in zip(batches, answers, ids, strict=True):
        deadline_s = time.monotonic() + 60
        one = Append(data, acks, 60_000, deadline_s, answer.append, topic_id=topic_id)
        queues.append(EVENTS, one)
    turns.take()
    assert [len(answer) for answer in answers] == [1] * len(batches)
    return [answer for (answer,) in answers]


def appended_alone(cluster: Cluster, batches: Sequence[bytes]) -> list[AppendResult]:
    return [
        builders.append_records(cluster, {EVENTS: data}, origin=AppendOrigin.NETWORK)[EVENTS]
        for data in batches
    ]


def a_cluster(path: Path | str, files: Files | None = None, **config: object) -> Cluster:
    """Return a cluster whose topic has a batch, and whose clock stands."""
    cluster = Cluster(str(path), create=True, files=files or Files())
    cluster.create_topic("events", config=TopicConfig(**config))  # type: ignore[arg-type]
    store_of(cluster).manager.now_ms = lambda: FIRST_TIMESTAMP_MS + 1000
    appended_alone(cluster, [batch(n=1)])
    return cluster


def test_what_waits_is_written_and_flushed_once_and_each_has_its_offset(tmp_path: Path) -> None:
    files = FaultyFiles()
    cluster = a_cluster(tmp_path / "cluster", files)
    sent = [batch(n=2, seed=number) for number in range(10)]
    files.steps.clear()
    results = appended(cluster, sent, flush=True)
    assert results == [AppendResult(1 + 2 * number, -1, 0) for number in range(10)]
    log = store_of(cluster).manager.log(EVENTS)
    steps = Counter(files.steps)
    assert steps[f"write {log.directory / 'kbatch.state'}"] == 1
    assert steps[f"flush {segment_at(log.directory, 0).log}"] == 1
    assert builders.contents(cluster)[EVENTS] == builders.records_of([batch(n=1), *sent])
    ensure_sound(log)


@pytest.mark.parametrize("at", range(3))
def test_what_is_for_a_topic_with_another_id_is_refused_alone(tmp_path: Path, at: int) -> None:
    cluster = a_cluster(tmp_path / "cluster")
    ids = [cluster.topic("events").topic_id] * 3
    ids[at] = cluster.topic("__commits").topic_id
    sent = [batch(n=2, seed=number) for number in range(3)]
    results = appended(cluster, sent, topic_ids=ids)
    assert [result.error is not None for result in results] == [one == at for one in range(3)]
    assert isinstance(results[at].error, UnknownTopicOrPartitionError)
    kept = [one for number, one in enumerate(sent) if number != at]
    assert builders.contents(cluster)[EVENTS] == builders.records_of([batch(n=1), *kept])


def test_each_producers_numbers_are_checked_for_themselves(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path / "cluster")
    first, second, gap = (
        idempotent_batch(base_sequence=0, producer_id=1),
        idempotent_batch(base_sequence=0, producer_id=2, n=3),
        idempotent_batch(base_sequence=5, producer_id=3),
    )
    appended(cluster, [first, idempotent_batch(base_sequence=0, producer_id=3)])
    again, new, refused = appended(cluster, [first, second, gap])
    assert (again.base_offset, again.error) == (1, None)
    assert (new.base_offset, new.error) == (3, None)
    assert isinstance(refused.error, OutOfOrderSequenceError)
    (lost_answer,) = appended(cluster, [second])
    assert lost_answer.base_offset == 3
    (duplicate, duplicate_of_new) = appended(cluster, [first, second], flush=True)
    assert (duplicate.base_offset, duplicate_of_new.base_offset) == (1, 3)
    assert store_of(cluster).manager.log(EVENTS).state().log_end_offset == 6


class Senders:
    """Batches of a few clients, of which some are refused, repeated, or appended alone."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._next: Counter[int] = Counter()  # sequence, by producer id
        self._sent: list[bytes] = [idempotent_batch(base_sequence=0, producer_id=9)]

    def batches(self) -> list[bytes]:
        return [self._batch() for _ in range(self._rng.choice([1, 2, 5, 12, 70]))]

    def _batch(self) -> bytes:
        rng = self._rng
        n, producer_id = rng.choice([1, 1, 3]), rng.randrange(6)
        kind = rng.choices(
            ("plain", "numbered", "again", "gap", "old epoch", "unsound", "crc", "compressed", "large",
             "transactional", "control", "empty"),
            (6, 12, 2, 1, 1, 1, 1, 2, 1, 1, 1, 1),
        )[0]  # fmt: skip
        data = batch(n=n, seed=rng.randrange(1000))
        match kind:
            case "numbered":
                base_sequence = self._next[producer_id]
                self._next[producer_id] += n
                data = idempotent_batch(base_sequence=base_sequence, producer_id=producer_id, n=n)
                self._sent.append(data)
            case "again":
                data = rng.choice(self._sent[-8:])
            case "gap":
                base_sequence = self._next[producer_id] + 3
                data = idempotent_batch(base_sequence=base_sequence, producer_id=producer_id)
            case "old epoch":
                data = idempotent_batch(base_sequence=0, producer_id=producer_id, epoch=-1)
            case "unsound":
                data = with_crc(data[:62] + b"\xff" + data[63:])
            case "crc":
                data = data[:-1] + bytes([data[-1] ^ 1])
            case "compressed":
                data = batch(n=n, compression="zstd", seed=n)
            case "large":
                data = batch(n=1, value_bytes=1500)
            case "transactional":
                data = data_batch(base_offset=0, producer_id=producer_id, transactional=True)
            case "control":
                data = control_batch(struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 0))
            case "empty":
                data = encode_batch([])
        return data


CONFIGS = [
    pytest.param({}, id="plain"),
    pytest.param({"segment_bytes": 2000, "index_interval_bytes": 100}, id="small segments"),
    pytest.param({"message_timestamp_type": "LogAppendTime"}, id="append times"),
    pytest.param({"compression_type": "lz4"}, id="compressed again"),
    pytest.param({"max_message_bytes": 1000, "index_interval_bytes": 1}, id="small batches"),
]


def counts(cluster: Cluster) -> dict[str, int | float]:
    metrics = store_of(cluster).manager.topic_metrics.as_dict()
    return {name: values["Count"] for name, values in metrics.items()}


def ensure_as_alone(folder: Path, config: dict[str, object], seed: int) -> None:
    rng = random.Random(f"together {seed}")
    together, alone = (a_cluster(folder / name, **config) for name in ("together", "alone"))
    senders = Senders(rng)
    for number in range(4):
        batches = senders.batches()
        found, expected = appended(together, batches), appended_alone(alone, batches)
        assert [*map(repr, found)] == [*map(repr, expected)], f"seed {seed}, round {number}"
    logs = [store_of(one).manager.log(EVENTS) for one in (together, alone)]
    states = [log.state() for log in logs]
    bases = [log.segments.bases(state) for log, state in zip(logs, states, strict=True)]
    assert bases[0] == bases[1]
    for base in bases[0]:
        files = [segment_at(log.directory, base).log.read_bytes() for log in logs]
        assert files[0] == files[1]
    for name in (
        "log_end_offset", "last_stable_offset", "max_timestamp", "max_timestamp_offset", "recovery_point",
        "index_size", "time_index_size", "bytes_since_index_entry",
    ):  # fmt: skip
        assert getattr(states[0], name) == getattr(states[1], name), name
    known = [log.producers.states.entries for log in logs]
    assert repr(known[0]) == repr(known[1])
    assert counts(together) == counts(alone)
    for log in logs:
        ensure_sound(log)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("seed", range(8))
def test_whatever_waits_is_answered_and_stored_as_one_after_the_other(
    tmp_path: Path, config: dict[str, object], seed: int
) -> None:
    ensure_as_alone(tmp_path, config, seed)


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("seed", draws.seeds(40, after=8))
def test_whatever_waits_is_answered_as_one_after_the_other_for_many_seeds(
    tmp_path: Path, config: dict[str, object], seed: int
) -> None:
    ensure_as_alone(tmp_path, config, seed)


def test_a_topic_that_is_gone_is_the_answer_to_each(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path / "cluster")
    cluster.delete_topic("events")
    results = appended(cluster, [batch(seed=number) for number in range(3)])
    assert {type(result.error) for result in results} == {UnknownTopicOrPartitionError}


class Groups(list[int]):
    """How many batches were appended together, each time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        append_together = Partition.append_together_locked

        def counted(*args: Any, **named: Any) -> list[AppendResult]:
            results = append_together(*args, **named)
            self.append(len(results))
            return results

        monkeypatch.setattr(Partition, "append_together_locked", counted)


def test_what_is_refused_among_others_leaves_no_garbage(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path / "cluster")
    gap = idempotent_batch(base_sequence=5, producer_id=3)
    appended(cluster, [batch(n=1), idempotent_batch(base_sequence=0, producer_id=3)])
    appended(cluster, [batch(n=1), gap])
    assert garbage_of(lambda: appended(cluster, [batch(n=1), gap])) == 0


def test_an_answer_that_fails_stops_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, turns = a_cluster(tmp_path / "cluster"), Turns()
    queues = Appends(store_of(cluster), turns, turns.later, flush=False, slow=SlowWarnings(-1))  # type: ignore[arg-type]
    answers: list[AppendResult] = []

    def fail(_: AppendResult) -> None:
        raise RuntimeError("for a test")

    for answer in (fail, answers.append, answers.append):
        queues.append(EVENTS, Append(batch(n=1), ACKS_ALL, 1000, time.monotonic() + 60, answer))
    turns.take()
    assert [answer.base_offset for answer in answers] == [2, 3]
    assert "for a test" in caplog.text
    queues.append(EVENTS, Append(batch(n=1), ACKS_ALL, 1000, time.monotonic() + 60, answers.append))
    turns.take()
    assert answers[-1].base_offset == 4


class Charges:
    """A peer that counts the processor time of what is done for it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def charge(self, seconds: float) -> None:
        assert 0 <= seconds < 1
        self.seconds += seconds


def test_each_peer_is_charged_for_its_own_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, turns = a_cluster(tmp_path / "cluster"), Turns()
    manager = store_of(cluster).manager
    check, slow = manager.check, batch(n=1, seed=9)

    def checked(topic_partition: TopicPartition, data: bytes, topic_id: str | None) -> Any:
        until_s = time.thread_time() + (0.05 if data is slow else 0)
        while time.thread_time() < until_s:
            pass
        return check(topic_partition, data, topic_id)

    monkeypatch.setattr(manager, "check", checked)
    queues = Appends(store_of(cluster), turns, turns.later, flush=False, slow=SlowWarnings(-1))  # type: ignore[arg-type]
    peers = [Charges() for _ in range(3)]
    for peer, data in zip(peers, (batch(n=1), slow, batch(n=1)), strict=True):
        deadline_s = time.monotonic() + 60
        one = Append(data, ACKS_ALL, 1000, deadline_s, lambda _: None, peer)  # type: ignore[arg-type]
        queues.append(EVENTS, one)
    turns.take()
    assert peers[1].seconds >= 0.05
    assert all(0 < peer.seconds < 0.04 for peer in (peers[0], peers[2]))


def test_an_error_that_no_one_expects_is_the_answer_to_those_that_may_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = a_cluster(tmp_path / "cluster")
    gap = idempotent_batch(base_sequence=5, producer_id=3)
    appended(cluster, [idempotent_batch(base_sequence=0, producer_id=3)])
    transactional = data_batch(base_offset=0, producer_id=4, transactional=True)

    def fail(*_: object, **__: object) -> None:
        raise MemoryError("for a test")

    with monkeypatch.context() as patched:
        patched.setattr(LogAppender, "append_run", fail)
        results = appended(cluster, [batch(n=1), gap, batch(n=1), transactional, batch(n=1)])
    kinds = [type(result.error) for result in results]
    assert kinds[:3] == [MemoryError, OutOfOrderSequenceError, MemoryError]
    assert MemoryError not in kinds[3:]


def test_a_lock_that_cannot_be_let_go_leads_to_no_second_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = a_cluster(tmp_path / "cluster")
    partitions = type(store_of(cluster).manager.locks).partitions
    failures = [OSError(errno.EIO, "for a test")]

    @contextlib.contextmanager
    def failing(*args: Any, **named: Any) -> Iterator[None]:
        with partitions(*args, **named):
            yield
        if failures:
            raise failures.pop()

    monkeypatch.setattr(type(store_of(cluster).manager.locks), "partitions", failing)
    results = appended(cluster, [batch(n=1, seed=number) for number in range(3)])
    assert [(result.base_offset, result.error) for result in results] == [
        (1, None),
        (2, None),
        (3, None),
    ]
    assert len(builders.contents(cluster)[EVENTS]) == 4
    assert "for a test" in caplog.text


def test_a_topic_that_is_altered_meanwhile_is_appended_to_as_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = a_cluster(tmp_path / "cluster")
    manager = store_of(cluster).manager
    append_together = manager.append_together

    def later(*args: Any, **named: Any) -> int:
        monkeypatch.undo()
        cluster.alter_topic("events", {"max.message.bytes": "100"})
        return append_together(*args, **named)

    monkeypatch.setattr(manager, "append_together", later)
    results = appended(cluster, [batch(n=2, seed=number) for number in range(3)])
    assert {type(result.error) for result in results} == {RecordTooLargeError}


def test_a_damaged_state_of_the_commits_is_not_the_batches_error(tmp_path: Path) -> None:
    path = tmp_path / "cluster"
    a_cluster(path)
    builders.write(Cluster(str(path)), {("events", 0): [batch(n=1)]})
    state = store_of(Cluster(str(path))).manager.log(TRANSACTION_STATE).directory / STATE_FILE
    state.write_bytes(bytes(len(state.read_bytes())))
    results = appended(Cluster(str(path)), [batch(n=1), batch(n=1)])
    assert {type(result.error) for result in results} == {KafkaStorageError}


def test_batches_that_wait_for_a_lock_are_appended_once_it_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = Groups(monkeypatch)
    with builders.a_cluster(tmp_path) as cluster, cluster.serve() as server:
        clients = [RawClient(server) for _ in range(40)]
        with store_of(cluster).manager.locks.partitions([EVENTS]):
            for number, client in enumerate(clients):
                client.send(request(ApiKey.PRODUCE, 9, produce(batch(n=1, seed=number))))
            time.sleep(0.3)
        answers = [produced(client.receive(ApiKey.PRODUCE, 9)) for client in clients]
        for client in clients:
            client.socket.close()
        offsets = [answer.base_offset for answer in answers]
        assert sorted(offsets) == [*range(40)]
        values = [record.value for record in builders.contents(cluster)[EVENTS]]
    assert max(groups) > 1
    for number, offset in enumerate(offsets):
        (record,) = builders.records_of([batch(n=1, seed=number)])
        assert values[offset] == record.value


def test_what_is_told_that_nothing_is_written_is_not_written_when_the_lock_is_free(
    tmp_path: Path,
) -> None:
    """Those before and behind it wait on."""
    cluster, turns = a_cluster(tmp_path), Turns()
    queues = Appends(store_of(cluster), turns, turns.later, flush=False, slow=SlowWarnings(-1))  # type: ignore[arg-type]
    answers: list[list[AppendResult]] = [[], [], []]
    batches = [batch(n=1, seed=seed) for seed in (1, 2, 3)]
    for data, left_s, answer in zip(batches, (60, 0, 60), answers, strict=True):
        deadline_s = time.monotonic() + left_s
        queues.append(EVENTS, Append(data, ACKS_ALL, 60_000, deadline_s, answer.append))
    with store_of(cluster).manager.locks.partitions([EVENTS]):
        turns.take_one()
        assert [len(answer) for answer in answers] == [0, 1, 0]
    turns.take()

    assert [len(answer) for answer in answers] == [1, 1, 1]
    first, refused, last = (answer for (answer,) in answers)
    assert isinstance(refused.error, RequestTimedOutError)
    assert (first.base_offset, last.base_offset) == (1, 2)
    expected = builders.records_of([batch(n=1), batches[0], batches[2]])
    assert builders.contents(cluster)[EVENTS] == expected


# A disk that fails, and processes that die.

NEW = [
    encode_batch(
        [Record(0, FIRST_TIMESTAMP_MS, None, b"v%d" % number)],
        producer_id=number, producer_epoch=0, base_sequence=0,
    )
    for number in range(4)
]  # fmt: skip


def values(files: Files) -> list[bytes | None]:
    """Return the values of NEW that are there, in their order."""
    contents = builders.contents(Cluster(PATH, files=files))[EVENTS]
    return [record.value for record in contents][1:]


@pytest.fixture(scope="module")
def disk() -> Disk:
    disk = Disk()
    a_cluster(PATH, DiskFiles(disk), index_interval_bytes=1)
    disk.settled()
    return disk


def write(files: Files) -> None:
    results = appended(Cluster(PATH, files=files), NEW, flush=True)
    assert [result.error for result in results] == [None] * len(NEW)


@pytest.mark.parametrize("fault", DISK_FAULTS)
def test_after_an_error_of_the_disk_each_is_answered_and_a_retry_leaves_each_there_once(
    disk: Disk, fault: Fault
) -> None:
    for at, step in enumerate(Recording(disk, write).steps):
        files = SimulatedProcess(disk.copy(), Fault(at, fault.error, fault.torn, fault.lasting))
        cluster = Cluster(PATH, files=files)
        results = appended(cluster, NEW, flush=True)
        errors = [result.error for result in results]
        assert all(one is None or isinstance(one, KafkaStorageError) for one in errors), step
        there = values(DiskFiles(files.disk))
        assert len({*there}) == len(there)
        for number, result in enumerate(results):
            if result.error is None:
                assert there[result.base_offset - 1] == b"v%d" % number, f"{fault} at {step}"
        files.fault = None
        again = appended(cluster, NEW, flush=True)
        assert [result.error for result in again] == [None] * len(NEW)
        there = values(DiskFiles(files.disk))
        assert sorted(there) == [b"v%d" % number for number in range(len(NEW))]  # type: ignore[type-var]
        assert not files.open_files(), step
        ensure_sound(store_of(Cluster(PATH, files=DiskFiles(files.disk))).manager.log(EVENTS))


@pytest.mark.more_in_soak
def test_a_server_that_dies_at_any_step_leaves_all_that_were_acknowledged_and_each_whole(
    disk: Disk,
) -> None:
    recording = Recording(disk, write)
    for crash in [*recording.kills(), *recording.torn_kills(), *recording.power_losses()]:
        with crash.met():
            there = values(crash.files())
            assert there in ([], [b"v%d" % number for number in range(len(NEW))]), crash
            files = crash.files()
            write(files)
            assert len(values(files)) == len(NEW)
