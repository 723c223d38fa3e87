"""Commits, deletions, retention and lost disks beside transactions of clients that are open."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.commit.coordinator import Coordinator, Overwrite
from spark_kbatch.errors import OffsetOutOfRangeError
from spark_kbatch.model import LogOffsets
from spark_kbatch.options.topic import TopicConfig
from tests.consumer.test_stream_reads import Stream
from tests.support import builders, draws
from tests.support.client_transactions import ClientTransactions, now_ms
from tests.support.faults import ReadOnlyFiles
from tests.support.memory_folder import memory_folder
from tests.support.reference import Record, encode_batch
from tests.support.store import store_of

EVENTS = ("events", 0)
CLIENTS = 5001, 5002, 5003
STEPS = 40


def run_job(
    cluster: Cluster, values: dict[tuple[str, int], list[bytes]], *, overwrite: bool = False
) -> None:
    """Commit a job that writes these values; with `overwrite`, in place of all that the topic `events` has."""
    batches = {
        place: [encode_batch([Record(n, now_ms(), None, one) for n, one in enumerate(of)])]
        for place, of in values.items()
    }
    extents = builders.staged(cluster, batches) if batches else []
    committer = Coordinator(store_of(cluster).manager, now_ms, adopt_min_bytes=1 << 20, flush=False)
    instead = Overwrite(cluster.topic("events"), 3_600_000) if overwrite else None
    committer.commit(extents, transactional_id=builders.JOB, overwrite=instead)
    committer.discard(extents, builders.JOB)


def rows(
    cluster: Cluster, isolation: str = "read_committed", **bounds: object
) -> dict[int, list[bytes]]:
    """Return the values of the topic `events` by partition."""
    found = cluster.read("events", isolation_level=isolation, **bounds).read_all()  # type: ignore[arg-type]
    by_partition: dict[int, list[bytes]] = {}
    for partition, value in zip(
        found["partition"].to_pylist(), found["value"].to_pylist(), strict=True
    ):
        by_partition.setdefault(partition, []).append(value)
    return by_partition


# Schedules.


class Written(NamedTuple):
    """A record of the model."""

    offset: int
    value: bytes
    client: int | None  # whose transaction is open with it


class Schedule:
    """One partition, to which clients, producers and jobs write; a model of it; and what readers see."""

    def __init__(self, folder: Path, seed: int, replicas: int) -> None:
        self._random, self._folder, self._replicas = random.Random(seed), folder, replicas
        dirs = [folder / f"dir-{number}" for number in range(replicas)] if replicas > 1 else []
        self.cluster = spark_kbatch.open(folder / "cluster", create=True, log_dirs=dirs)
        config = TopicConfig(segment_bytes=400, retention_bytes=self._random.choice([-1, -1, 1200]))
        self.cluster.create_topic("events", replication_factor=replicas, config=config)
        self._clients = {one: ClientTransactions(self.cluster, one) for one in CLIENTS}
        self._open: set[int] = set()
        self._written: list[Written] = []
        self._aborted: set[int] = set()
        self._values = iter(range(1, 10**9))
        self._start = self._end = self._stable = 0
        self.history: list[str] = []

    def step(self) -> None:
        """Do something, and compare what readers see with the model."""
        kinds: list[tuple[int, Callable[[], object]]] = [
            (3, self._send), (2, self._finish), (1, self._produce), (2, self._job),
            (1, self._overwrite), (1, self._overwrite_by_nothing), (1, self._delete),
            (1, self._collect_garbage), (2, self._reopen), (2 * (self._replicas > 1), self._disk),
        ]  # fmt: skip
        weights, steps = zip(*kinds, strict=True)
        (chosen,) = self._random.choices(steps, weights)
        told = chosen()
        self.history.append(f"{chosen.__name__} {told or ''} to {self._end}")
        self._check()

    def _some_values(self) -> list[bytes]:
        return [str(next(self._values)).encode() for _ in range(self._random.randint(1, 3))]

    def _add(self, values: list[bytes], client: int | None = None) -> None:
        self._written += [Written(self._end + n, one, client) for n, one in enumerate(values)]
        self._end += len(values)

    def _send(self) -> int:
        client, values = self._random.choice(CLIENTS), self._some_values()
        assert self._clients[client].send(EVENTS, *values) == self._end
        self._open.add(client)
        self._add(values, client)
        return client

    def _finish(self) -> str:
        if not self._open:
            return "nothing"
        client, aborts = self._random.choice(sorted(self._open)), self._random.random() < 0.5
        (self._clients[client].abort if aborts else self._clients[client].commit)()
        if aborts:
            self._aborted |= {one.offset for one in self._written if one.client == client}
        self._written = [
            one._replace(client=None) if one.client == client else one for one in self._written
        ]
        self._open.remove(client)
        self._end += 1
        return f"{client}, {'abort' if aborts else 'commit'}"

    def _produce(self) -> None:
        (value, *_) = self._some_values()
        with self.cluster.producer() as producer:
            assert producer.send("events", value).result().offset == self._end
        self._add([value])

    def _job(self) -> None:
        values = self._some_values()
        run_job(self.cluster, {EVENTS: values})
        self._add(values)

    def _overwrite(self) -> None:
        values = self._some_values()
        run_job(self.cluster, {EVENTS: values}, overwrite=True)
        self._start = self._end
        self._add(values)

    def _overwrite_by_nothing(self) -> None:
        run_job(self.cluster, {}, overwrite=True)
        self._start = self._end

    def _delete(self) -> None:
        self._start = self._random.randint(self._start, self._end)
        self.cluster.delete_records({EVENTS: self._start})

    def _collect_garbage(self) -> None:
        self.cluster.collect_garbage()

    def _reopen(self) -> None:
        """Go on in a process that knows nothing."""
        self.cluster.close()
        self.cluster = spark_kbatch.open(self._folder / "cluster")
        for client in self._clients.values():
            client.cluster = self.cluster

    def _disk(self) -> str:
        """Take a disk away, or bring it back."""
        (away, *_) = [*self._folder.glob("*.away"), None]
        if away is not None:
            away.rename(away.with_suffix(""))
        else:
            self.cluster.replicate()  # else the last one in sync may go
            away = self._folder / f"dir-{self._random.randrange(self._replicas)}"
            away.rename(away.with_suffix(".away"))
        if self._random.random() < 0.7:
            self._reopen()
        return away.name

    def _check(self) -> None:
        (found,) = self.cluster.describe(["events"])
        assert not found.error
        offsets: LogOffsets = found.offsets
        assert offsets.high_watermark == offsets.log_end_offset == self._end
        assert offsets.log_start_offset >= self._start, "by retention it may be higher"
        self._start = offsets.log_start_offset
        stable = offsets.last_stable_offset
        assert max(self._start, self._stable) <= stable <= self._end, "it never goes back"
        self._stable = stable
        held = [one for one in self._written if one.offset >= self._start]
        assert all(one.client is None for one in held if one.offset < stable)
        assert stable == self._end or self._open, "nothing else holds readers back"
        assert rows(self.cluster, "read_uncommitted").get(0, []) == [one.value for one in held]
        assert rows(self.cluster).get(0, []) == [
            one.value for one in held if one.offset < stable and one.offset not in self._aborted
        ]


@pytest.mark.parametrize(
    ("replicas", "many"),
    [pytest.param(1, 8, id="one replica"), pytest.param(3, 8, id="disks that go and come back")],
)
def test_committed_readers_see_what_is_decided_and_never_less_than_before(
    replicas: int, many: int
) -> None:
    """Before fixes, 2 schedules in 3 with one replica failed, and 3 in 40 with three."""
    for seed in draws.seeds(many):
        with memory_folder() as folder:
            schedule = Schedule(folder, seed, replicas)
            try:
                for _ in range(STEPS):
                    schedule.step()
            except BaseException as error:
                error.add_note("\n".join([*schedule.history, draws.again(seed)]))
                raise
            finally:
                schedule.cluster.close()


def test_without_the_leaders_disk_a_reader_that_cannot_write_sees_what_is_decided(
    tmp_path: Path,
) -> None:
    """A follower learns of the leader's high watermark with the next append."""
    dirs = [tmp_path / "dir-0", tmp_path / "dir-1"]
    cluster = spark_kbatch.open(tmp_path / "cluster", create=True, log_dirs=dirs)
    cluster.create_topic("events", replication_factor=2)
    run_job(cluster, {EVENTS: [b"decided"]})
    ClientTransactions(cluster).send(EVENTS, b"open")
    (leader,) = [one for one in cluster.replicas("events")[EVENTS] if one.is_leader]  # type: ignore[index]
    cluster.close()
    dirs[leader.node_id].rename(tmp_path / "away")

    reader = Cluster(str(tmp_path / "cluster"), files=ReadOnlyFiles())
    assert rows(reader) == {0: [b"decided"]}
    assert rows(reader, "read_uncommitted") == {0: [b"decided", b"open"]}


# Jobs. Partition 0 has an open transaction, and 1 has none.


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    cluster = builders.a_cluster(tmp_path, topics={"events": 2})
    run_job(cluster, {("events", 0): [b"old 0"], ("events", 1): [b"old 1"]})
    return cluster


@pytest.fixture
def client(cluster: Cluster) -> ClientTransactions:
    """Return a client with an open transaction in partition 0."""
    client = ClientTransactions(cluster)
    client.send(EVENTS, b"client's")
    return client


NEW: dict[tuple[str, int], list[bytes]] = {
    ("events", 0): [b"new 0"],
    ("events", 1): [b"new 1"],
}


@pytest.mark.parametrize("aborts", [False, True], ids=["committed", "aborted"])
def test_a_job_is_seen_at_once_where_no_transaction_is_open_and_else_when_that_ends(
    cluster: Cluster, client: ClientTransactions, aborts: bool
) -> None:
    run_job(cluster, NEW)
    before = rows(cluster)
    (client.abort if aborts else client.commit)()

    assert before == {0: [b"old 0"], 1: [b"old 1", b"new 1"]}
    of_client = [] if aborts else [b"client's"]
    assert rows(cluster) == {0: [b"old 0", *of_client, b"new 0"], 1: [b"old 1", b"new 1"]}


def test_readers_of_uncommitted_records_see_all_of_a_job_at_once(
    cluster: Cluster, client: ClientTransactions
) -> None:
    before = rows(cluster, "read_uncommitted")
    run_job(cluster, NEW)

    assert before == {0: [b"old 0", b"client's"], 1: [b"old 1"]}
    assert rows(cluster, "read_uncommitted") == {
        0: [b"old 0", b"client's", b"new 0"],
        1: [b"old 1", b"new 1"],
    }


def test_an_overwrite_leaves_a_partition_empty_until_its_open_transaction_ends(
    cluster: Cluster, client: ClientTransactions
) -> None:
    run_job(cluster, NEW, overwrite=True)
    before = rows(cluster), rows(cluster, "read_uncommitted")
    client.send(EVENTS, b"after it")
    client.commit()

    assert before == ({1: [b"new 1"]}, {0: [b"new 0"], 1: [b"new 1"]})
    assert rows(cluster) == {0: [b"new 0", b"after it"], 1: [b"new 1"]}


def test_a_read_planned_before_an_overwrite_gives_no_record_of_an_aborted_transaction(
    cluster: Cluster, client: ClientTransactions
) -> None:
    client.abort()
    client.send(EVENTS, b"committed")
    client.commit()
    end = {n: one.offsets.last_stable_offset for n, one in enumerate(cluster.describe(["events"]))}
    run_job(cluster, NEW, overwrite=True)

    overwritten = rows(cluster, start=dict.fromkeys(end, 0), end=end)
    assert overwritten == {0: [b"old 0", b"committed"], 1: [b"old 1"]}


def test_a_clients_transaction_is_seen_partition_by_partition(cluster: Cluster) -> None:
    """As in Kafka: its markers are appended one after the other."""
    client = ClientTransactions(cluster)
    for partition in (0, 1):
        client.send(("events", partition), b"both")
    client.end_in(EVENTS, abort=False)
    between = rows(cluster)
    client.commit()

    assert between == {0: [b"old 0", b"both"], 1: [b"old 1"]}
    assert rows(cluster) == {0: [b"old 0", b"both"], 1: [b"old 1", b"both"]}


def test_an_end_that_an_open_transaction_holds_back_is_said_to_be_not_there_yet(
    cluster: Cluster, client: ClientTransactions
) -> None:
    run_job(cluster, NEW)
    (stable, end) = cluster.describe(["events"])[0].offsets[2:]
    with pytest.raises(OffsetOutOfRangeError, match=f"offset {end}.* to {stable}"):
        cluster.read("events", partitions=[0], end=end).read_all()
    del client


# Streams.


def test_a_stream_reads_each_row_of_jobs_and_clients_once(
    cluster: Cluster, client: ClientTransactions
) -> None:
    stream, found = Stream(cluster.path, subscribe="events"), list[bytes]()

    def read() -> list[bytes]:
        new = stream.read(["value"]) or []
        found.extend(new)
        return new

    assert read() == [b"old 0", b"old 1"]
    run_job(cluster, NEW)
    assert read() == [b"new 1"]
    stream.restart()
    assert read() == []
    other = ClientTransactions(cluster, 5002)
    other.send(("events", 1), b"aborted")
    run_job(cluster, {("events", 1): [b"newer 1"]})
    client.commit()
    assert read() == [b"client's", b"new 0"]
    other.abort()
    assert read() == [b"newer 1"]
    assert read() == []
    assert sorted(found) == sorted(value for of in rows(cluster).values() for value in of)


def test_a_stream_goes_on_over_an_overwrite_beside_an_open_transaction(
    cluster: Cluster, client: ClientTransactions
) -> None:
    stream = Stream(cluster.path, subscribe="events")
    first = stream.read(["value"])
    run_job(cluster, NEW, overwrite=True)
    second = stream.read(["value"])
    client.commit()

    assert (first, second) == ([b"old 0", b"old 1"], [b"new 1"])
    assert stream.read(["value"]) == [b"new 0"]


def test_a_stream_that_read_uncommitted_records_goes_on_with_committed_ones(
    cluster: Cluster, client: ClientTransactions
) -> None:
    stream = Stream(cluster.path, subscribe="events", **{"isolation.level": "read_uncommitted"})
    first = stream.read(["value"])
    stream.restart(**{"isolation.level": "read_committed"})
    waiting = stream.read(["value"])
    client.abort()
    run_job(cluster, NEW)

    assert (first, waiting) == ([b"old 0", b"client's", b"old 1"], None)
    assert stream.read(["value"]) == [b"new 0", b"new 1"]
