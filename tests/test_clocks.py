"""Clocks: each use of the time of day has a row in docs/operations.md, and does what the row says when it is wrong."""

from __future__ import annotations

import ast
import datetime
import functools
import itertools
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import spark_kbatch
from spark_kbatch import clock
from spark_kbatch.bucket.maintenance import Maintenance
from spark_kbatch.bucket.objects import CreateAnswer, MemoryObjects
from spark_kbatch.bucket.real_objects import FunctionCredentials
from spark_kbatch.bucket.urls import ledger_at
from spark_kbatch.catalog import folder_clock
from spark_kbatch.cluster.folder_store import KEPT_MS, Agreements
from spark_kbatch.consumer.topic_reader import TopicReader
from spark_kbatch.errors import (
    InvalidTimestampError,
    ObjectAccessDeniedError,
    ObjectStoreError,
    OffsetOutOfRangeError,
)
from spark_kbatch.files import Files
from spark_kbatch.log import steps as log_steps
from spark_kbatch.log.steps import expiring_ms
from spark_kbatch.machine_files import MachineFiles
from spark_kbatch.model import OffsetRange, TopicPartition
from spark_kbatch.opening.stores import begin_job
from spark_kbatch.options.write import parse_write_options
from tests.conftest import REPOSITORY
from tests.support.bucket_objects import AgingObjects, a_bucket, opened_again, values
from tests.test_layout import PACKAGE

DAY_MS, HOUR_MS, MINUTE_MS = 86_400_000, 3_600_000, 60_000

# Rows of the table.
RETENTION = "`retention.ms` in a bucket"
PRODUCERS = "what a bucket knows of producers and groups, until `producer.id.expiration.ms` and `offsets.retention.ms`"
GARBAGE = "garbage of a bucket"
ENTRIES = "times of entries, in `kbatch history` of a bucket"
OVERWRITTEN = "records that an overwrite replaced in a bucket, readable for an hour"
EXPIRY = "what expires in a folder: records, producers, transactional ids, offsets of groups, transactions that no server ends"
KEPT = "what is deleted and kept for a while in a folder: segments, topics, overwritten records, staged files"
NETWORK = "the same two on a network disk"
TIMES = (
    "times of records, commits and groups, and what `segment.ms` rolls by where records have none"
)
REFUSED = "records that a server refuses by `message.timestamp.after.max.ms`"
AGREED = "offsets that the tasks of a batch read agree on"
REMEMBERED = "what a machine remembers of a bucket, and of files that it has read"
FOLLOWED = "the time at which a loop over new records ends"
ENDING = "credentials and tokens with an end"
SHOWN = ""  # only shown, or what reads a clock for one of the rows

USES = {
    "bucket/job.py": {"BucketJob._ledger": REMEMBERED},
    "bucket/ledger.py": {
        "Ledger.__init__": REMEMBERED,
        "Ledger._is_there": REMEMBERED,
        "Ledger._read": REMEMBERED,
        "Ledger._try_to_ask": PRODUCERS,
        "Ledger._may_be_ahead": PRODUCERS,
        "Ledger.store_now_ms": PRODUCERS,
        "Ledger._proposed": ENTRIES,
    },
    "bucket/maintenance.py": {"Maintenance.retain": RETENTION, "Maintenance.collect": GARBAGE},
    "bucket/objects.py": {"MemoryObjects._put": GARBAGE},
    "bucket/reading.py": {"PartitionReader._go_back": OVERWRITTEN},
    "bucket/real_objects.py": {"FunctionCredentials.__call__": ENDING},
    "bucket/recovery.py": {"Recovery._try_to_close": ENTRIES},
    "bucket/shared_ledger.py": {"SharedLedger._remember": REMEMBERED},
    "bucket/store.py": {"BucketStore.agreed_offsets": AGREED},
    "bucket/trial.py": {"StoreTrial._overwrite": SHOWN},
    "catalog/folder_clock.py": {
        "FolderClock.now_ms": NETWORK,
        "FolderClock._measured": NETWORK,
    },
    "cli/upkeep.py": {"_kept": SHOWN},
    "clock.py": {
        "now_ms": SHOWN,
        "latest_ms": REFUSED,
    },
    "cluster/folder_store.py": {
        "Agreements._read": AGREED,
        "Agreements._folder": AGREED,
        "Agreements._remove_old": AGREED,
        "Agreements._remove_if_old": AGREED,
    },
    "cluster/groups.py": {"FolderGroups.alter_offsets.changes": TIMES},
    "cluster/state_log.py": {
        "StateLog.append": TIMES,
        "StateLog._rewrite": TIMES,
    },
    "cluster/transactions/administration.py": {"_look_after": EXPIRY},
    "cluster/transactions/checking.py": {"open_transactions": EXPIRY},
    "cluster/transactions/ending.py": {
        "IdleTransactions._now_ms": TIMES,
        "IdleTransactions.abort": TIMES,
        "IdleTransactions.finish": TIMES,
    },
    "cluster/transactions/log.py": {"TransactionLog.marker": TIMES},
    "commit/coordinator.py": {
        "Coordinator._publish_locked": TIMES,
        "Coordinator.elect_unclean": TIMES,
        "Coordinator._prepare": KEPT,
        "Coordinator._roll_forward_locked": TIMES,
        "Coordinator._discard": KEPT,
        "Coordinator._maybe_rewrite": EXPIRY,
    },
    "commit/staging.py": {"_size_and_time": KEPT},
    "consumer/following.py": {"_stop_of": FOLLOWED},
    "files.py": {
        "Files.version": REMEMBERED,
        "Files.fingerprint": REMEMBERED,
        "Files._write_whole": REMEMBERED,
        "Files.modified_ms": SHOWN,
    },
    "kernels/jit.py": {"_fingerprint": REMEMBERED},
    "log/append.py": {"LogAppender._made_ms": TIMES},
    "log/producers/replay.py": {"_AppendTimes.of": EXPIRY},
    "log/producers/state.py": {
        "ProducerStates.load": EXPIRY,
        "ProducerStates.remove_expired": EXPIRY,
    },
    "log/repair.py": {"LogRepair._check_indexes": KEPT},
    "log/steps.py": {"_Steps.expiring_ms": EXPIRY},
    "log/retention.py": {
        "_is_older": EXPIRY,
        "_old_deleted_files": KEPT,
        "waiting_files": KEPT,
        "waiting_overwritten": KEPT,
    },
    "cluster/disks.py": {"_jobs": KEPT},
    "replica/administration.py": {"delete_topic": KEPT},
    "replica/elections.py": {"Elections.elect_locked": TIMES, "Elections.tell_locked": TIMES},
    "replica/followers.py": {
        "ReplicaFetcher._truncated": KEPT,
        "ReplicaFetcher._started_over": KEPT,
        "ReplicaFetcher.catch_up": TIMES,
        "ReplicaFetcher.catch_up.finish": KEPT,
    },
    "replica/manager.py": {
        "ReplicaManager.append_records": REFUSED,
        "ReplicaManager._append_one": REFUSED,
        "ReplicaManager.check": REFUSED,
        "ReplicaManager.delete_old_segments": EXPIRY,
        "ReplicaManager._maybe_delete_old_segments": EXPIRY,
        "ReplicaManager.planned_deletions": EXPIRY,
        "ReplicaManager.planned_removals": KEPT,
        "ReplicaManager.remove_deleted_topics": KEPT,
        "ReplicaManager.waiting": KEPT,
        "ReplicaManager.delete_records": KEPT,
    },
    "replica/partition.py": {
        "Partition._replicate_locked": TIMES,
        "Partition.append_locked": TIMES,
        "Partition.append_together_locked": TIMES,
        "Partition._deleted_on_leader_locked": KEPT,
    },
    "store/repetitions.py": {"Evidence.of_tasks": TIMES, "Evidence._of": TIMES},
    "server/groups/membership.py": {
        "Memberships.join": TIMES,
        "Memberships._prepare_rebalance": TIMES,
        "Memberships._complete_join": TIMES,
        "Memberships._assign": TIMES,
    },
    "server/groups/offsets.py": {
        "CommittedOffsets._accepted": TIMES,
        "CommittedOffsets._has_expired": EXPIRY,
    },
    "server/server.py": {"Server.__init__": SHOWN},
    "server/transactions/coordinator.py": {
        "TransactionCoordinator.step": TIMES,
        "TransactionCoordinator.tick": TIMES,
        "TransactionCoordinator._complete.work": TIMES,
        "TransactionCoordinator._forget_expired": EXPIRY,
    },
    "server/transactions/requests.py": {
        "TransactionRequests.list_transactions": SHOWN,
        "TransactionRequests._producers": EXPIRY,
    },
    "web/history.py": {"Samples.__init__": SHOWN},
    "wire/oauth.py": {"TokenSource._unsecured": ENDING},
}

_CALLED = {"now_ms", "_now_ms", "expiring_ms", "latest_ms", "store_now_ms", "modified_ms"}
_OF_LIBRARY = {"time", "time_ns", "now", "utcnow", "today", "localtime", "gmtime", "ctime"}
_MONOTONIC = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"}


def table() -> dict[str, list[str]]:
    """The cells of each row of the page's table, by the first one."""
    page = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")
    lines = page.partition("<!-- clocks")[2].splitlines()[3:]
    rows = [line.strip("| ").split(" | ") for line in lines[: lines.index("")]]
    return {first: cells for first, *cells in rows}


@functools.cache
def trees() -> dict[str, ast.Module]:
    """The modules of the package, by their files in it."""
    files = [*PACKAGE.rglob("*.py"), REPOSITORY / "pytest_kbatch.py"]
    return {
        path.relative_to(PACKAGE).as_posix()
        if path.is_relative_to(PACKAGE)
        else path.name: ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(files)
    }


def reads_time(node: ast.AST) -> bool:
    """Whether a node reads the time of day, or the time of a file."""
    if isinstance(node, ast.Attribute):
        return node.attr.startswith(("st_mtime", "st_ctime"))
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    name = getattr(called, "attr", getattr(called, "id", ""))
    of = getattr(getattr(called, "value", None), "id", "")
    is_librarys = of in ("time", "datetime", "date") and name in _OF_LIBRARY
    is_real = name.startswith("clock_gettime") and "_REALTIME" in ast.unparse(node)
    return name in _CALLED or is_librarys or is_real


def users(tree: ast.AST, names: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the functions in a module that read the time of day, or the time of a file."""
    for node in ast.iter_child_nodes(tree):
        is_named = isinstance(node, ast.FunctionDef | ast.ClassDef)
        inside = (*names, node.name) if is_named else names
        if reads_time(node):
            yield ".".join(inside)
        yield from users(node, inside)


def test_each_use_of_the_time_of_day_has_a_row() -> None:
    found = {file: names for file, tree in trees().items() if (names := {*users(tree)})}

    assert found == {module: {*functions} for module, functions in USES.items()}
    rows = {row for functions in USES.values() for row in functions.values()} - {SHOWN}
    assert rows == {*table()}


def test_durations_are_read_from_the_clock_that_no_test_freezes() -> None:
    found = []
    for file, tree in trees().items():
        for node in ast.walk(tree):
            named = getattr(node, "attr", getattr(node, "id", getattr(node, "name", "")))
            # The demo shows how long things take, and is frozen by no test.
            if named in _MONOTONIC and file != "spark/demo.py":
                found.append(f"{file}: {named}")

    assert found == []


# What happens where it is wrong. Each case has something young, which must not go, and something old, which must.


class Wrong:
    """A wrong clock of this machine; the stores' and the disks' are right."""

    def __init__(self, kind: str) -> None:
        self._time_ns, self._gettime_ns = time.time_ns, time.clock_gettime_ns
        self._began_ns = time.time_ns()
        self._kind, self.ahead_ms = kind, {"a day ahead": DAY_MS}.get(kind, -DAY_MS)

    def time_ns(self) -> int:
        real = self._began_ns if self._kind == "stopped" else self._time_ns()
        return real + self.ahead_ms * 1_000_000

    def gettime_ns(self, number: int) -> int:
        return self.time_ns() if number == clock._REALTIME else self._gettime_ns(number)

    @contextmanager
    def on(self, *, is_new: bool = True) -> Iterator[None]:
        """Let this machine's clock be wrong inside the block; by default since its start."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "time_ns", self.time_ns)
            patch.setattr(time, "clock_gettime_ns", self.gettime_ns)
            patch.setattr(time, "time", lambda: self.time_ns() / 1e9)
            steps = expiring_ms.__self__
            for name, value in vars(steps).items():
                patch.setattr(steps, name, value)  # so that it is as before after the block
            patch.setattr(steps, "_files", MachineFiles("", "", folder=Path("/none")))
            if is_new:
                patch.setattr(steps, "_ahead_ms", clock.now_ms() - clock.since_boot_ms())
                patch.setattr(steps, "_until_ms", 0)
            yield

    @contextmanager
    def on_network(self) -> Iterator[None]:
        """Let folders be on a network disk inside the block while this clock is on."""
        real = self.on

        @contextmanager
        def on() -> Iterator[None]:
            with real(), pytest.MonkeyPatch.context() as patch:
                patch.setattr(folder_clock, "network_file_system", lambda _path: "nfs4")
                yield

        self.on = on  # type: ignore[method-assign]
        yield
        self.on = real  # type: ignore[method-assign]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@contextmanager
def at(ago_ms: int) -> Iterator[None]:
    """Let it be earlier inside the block."""
    with pytest.MonkeyPatch.context() as patch:
        real = time.time_ns
        patch.setattr(time, "time_ns", lambda: real() - ago_ms * 1_000_000)
        yield


def outcome(*, is_young_gone: bool, is_old_gone: bool) -> str:
    return "early" if is_young_gone else "right" if is_old_gone else "late"


class Realistic(MemoryObjects):
    """A store whose clock is right."""

    def __init__(self) -> None:
        super().__init__(real_ms)


class LosesOne(Realistic):
    """A store that one thread cannot reach any more once the answer to an entry of it was lost."""

    def __init__(self) -> None:
        super().__init__()
        self.is_losing = self.is_cut = False
        self.has_lost = threading.Event()
        self._of: int | None = None

    def create(self, name: str, data: bytes) -> CreateAnswer:
        if self.is_cut and threading.get_ident() == self._of:
            return CreateAnswer.UNKNOWN
        answer = super().create(name, data)
        if self.is_losing and "/ledger/" in name:
            self.is_losing, self.is_cut, self._of = False, True, threading.get_ident()
            self.has_lost.set()
            return CreateAnswer.UNKNOWN
        return answer

    def get(self, name: str) -> bytes | None:
        if self.is_cut and threading.get_ident() == self._of:
            raise ObjectStoreError("get", name, "as the test says")
        return super().get(name)


_REAL_NS = time.time_ns


def real_ms() -> int:
    return _REAL_NS() // 1_000_000


def retention(wrong: Wrong, _path: Path) -> str:
    cluster = a_bucket(Realistic(), "events")
    cluster.alter_topic("events", {"retention.ms": DAY_MS // 2})
    with cluster.producer(linger_ms=0) as producer:
        for age_ms in (DAY_MS // 2 + HOUR_MS, HOUR_MS):
            producer.send("events", f"{age_ms}", timestamp=now_ms() - age_ms).result()
    with wrong.on():
        Maintenance(cluster._store.address).run()
    left = [*values(opened_again(cluster))]
    return outcome(is_young_gone=len(left) < 1, is_old_gone=len(left) < 2)


def producers(wrong: Wrong, _path: Path) -> str:
    def is_gone(age_ms: int) -> bool:
        cluster = a_bucket(Realistic())
        with at(age_ms):
            cluster = a_bucket(Realistic(), "events")
            with cluster.producer(linger_ms=0) as producer:
                producer.send("events", "x").result()
        with wrong.on():
            cluster.create_topic("others")
        return not ledger_at(cluster._store.address).state.producers

    return outcome(is_young_gone=is_gone(HOUR_MS), is_old_gone=is_gone(DAY_MS + HOUR_MS))


def garbage(wrong: Wrong, _path: Path) -> str:
    def is_moved(age_ms: int) -> bool:
        objects = AgingObjects()
        cluster = a_bucket(objects, "events", "others")
        objects.clock_ms += age_ms
        with wrong.on():
            Maintenance(cluster._store.address).run()
        return ledger_at(cluster._store.address).state.gc_boundary > 0

    week_ms = 7 * DAY_MS
    return outcome(is_young_gone=is_moved(week_ms - HOUR_MS), is_old_gone=is_moved(9 * DAY_MS))


def entries(wrong: Wrong, _path: Path) -> str:
    with at(DAY_MS // 2):
        cluster = a_bucket(Realistic(), "events")
    with wrong.on():
        cluster.create_topic("others")
    written_ms = ledger_at(cluster._store.address).state.time_ms
    return "right" if abs(written_ms - now_ms()) < HOUR_MS else "wrong"


def expiry(wrong: Wrong, path: Path) -> str:
    with spark_kbatch.open(path, create=True) as cluster:
        cluster.create_topic("events", config={"segment.ms": 1})
        with cluster.producer(linger_ms=0) as producer:
            for age_ms in (DAY_MS // 2 + HOUR_MS, HOUR_MS, 0):
                producer.send("events", f"{age_ms}", timestamp=now_ms() - age_ms).result()
        cluster.alter_topic("events", {"retention.ms": DAY_MS // 2})
    with wrong.on(), spark_kbatch.open(path) as cluster:
        cluster.collect_garbage()
        left = cluster.read("events").read_all().num_rows
    return outcome(is_young_gone=left < 2, is_old_gone=left < 3)


def kept(wrong: Wrong, path: Path) -> str:
    def is_gone(age_ms: int) -> bool:
        with spark_kbatch.open(path / f"{age_ms}", create=True) as cluster, at(age_ms):
            cluster.create_topic("events", config={"file.delete.delay.ms": DAY_MS // 2})
            cluster.delete_topic("events")
        with wrong.on(), spark_kbatch.open(path / f"{age_ms}") as cluster:
            cluster.collect_garbage()
        return not [*path.glob(f"{age_ms}/broker-0/events*")]

    return outcome(is_young_gone=is_gone(HOUR_MS), is_old_gone=is_gone(DAY_MS // 2 + HOUR_MS))


def network(wrong: Wrong, path: Path) -> str:
    with wrong.on_network():
        found = {expiry(wrong, path / "expiry"), kept(wrong, path)}
    assert not [*path.rglob("clock-*")]
    return found.pop() if len(found) == 1 else f"{found}"


def overwritten(wrong: Wrong, _path: Path) -> str:
    def is_gone(age_ms: int, *, has_entry: bool) -> bool:
        with at(age_ms):
            cluster = a_bucket(Realistic(), "events")
            for value in ("old", "new"):
                options = parse_write_options({"path": cluster.address, "topic": "events"})
                job = begin_job(options, overwrite=value == "new")
                row = pa.RecordBatch.from_pydict({"value": [value]})
                job.commit_batch([job.stage(iter([row]), application_id="a", query_id=None)])
        if has_entry:
            cluster.create_topic("others")
        of_old = OffsetRange(TopicPartition("events", 0), 0, 1)
        with wrong.on():
            try:
                reader = TopicReader(opened_again(cluster)._store.source)
                return [batch.num_rows for batch in reader.read_range(of_old, ["value"])] != [1]
            except OffsetOutOfRangeError:
                return True

    if wrong.ahead_ms > 0:
        assert is_gone(2 * HOUR_MS, has_entry=True)
    return outcome(
        is_young_gone=is_gone(HOUR_MS // 2, has_entry=True),
        is_old_gone=is_gone(2 * HOUR_MS, has_entry=False),
    )


def times(wrong: Wrong, path: Path) -> str:
    with wrong.on(), spark_kbatch.open(path, create=True) as cluster:
        with cluster.producer(linger_ms=0) as producer:
            written_ms = producer.send("events", "x").result().timestamp
    return "right" if abs(written_ms - now_ms()) < HOUR_MS else "wrong"


def refused(wrong: Wrong, path: Path) -> str:
    def is_taken(ahead_ms: int) -> bool:
        time_ms = real_ms() + ahead_ms
        with wrong.on(), spark_kbatch.open(path, create=True) as cluster:
            if "events" not in cluster.topic_names():
                cluster.create_topic("events")
            try:
                with cluster.producer(linger_ms=0) as producer:
                    producer.send("events", "x", timestamp=time_ms).result()
            except InvalidTimestampError:
                return False
            return True

    return outcome(is_young_gone=not is_taken(0), is_old_gone=not is_taken(2 * HOUR_MS))


def agreed(wrong: Wrong, path: Path) -> str:
    def is_asked_again(age_ms: int) -> bool:
        agreements = Agreements(Files(), path / f"{age_ms}", clock.now_ms)
        asked = []

        def ask() -> dict[TopicPartition, tuple[int, int]]:
            asked.append(1)
            return {TopicPartition("t", 0): (0, 1)}

        with at(age_ms):
            agreements.agree("a", ask)
        for file in (path / f"{age_ms}").rglob("*"):
            Files().set_modified_ms(file, now_ms() - age_ms)
        with wrong.on():
            agreements.agree("another", ask)  # which removes what is old
            agreements.agree("a", ask)
        return len(asked) > 2

    return outcome(
        is_young_gone=is_asked_again(KEPT_MS - HOUR_MS),
        is_old_gone=is_asked_again(KEPT_MS + HOUR_MS),
    )


def followed(wrong: Wrong, path: Path) -> str:
    def is_over(ahead_ms: int) -> bool:
        stop_at = datetime.datetime.fromtimestamp((real_ms() + ahead_ms) / 1000, datetime.UTC)
        with wrong.on(), spark_kbatch.open(path, create=True) as cluster:
            cluster.create_topic("events", exist_ok=True)
            records = cluster.follow("events", stop_at=stop_at, timeout=0)
            assert list(records) == []
            return records._looks.is_done()

    return outcome(is_young_gone=is_over(HOUR_MS), is_old_gone=is_over(-HOUR_MS))


def ending(wrong: Wrong, _path: Path) -> str:
    """Right: what is given to the library ends before the real end, or at the latest by the wrong clock."""
    end = datetime.datetime.fromtimestamp(real_ms() / 1000, datetime.UTC) + datetime.timedelta(
        hours=1
    )
    credentials = FunctionCredentials.__new__(FunctionCredentials)
    credentials._url, credentials._path = "s3://b", "m:f"
    credentials._function = lambda _url: {
        "access_key_id": "id",
        "secret_access_key": "key",
        "expires_at": end,
    }
    with wrong.on():
        given = credentials()
    return "right" if given["expires_at"] <= end else "wrong"


# Rows that tests of their own have, with a clock that is set: in tests/bucket/test_ledger_cache.py
# and tests/test_files.py.
TESTED_ELSEWHERE = {REMEMBERED}

CASES: dict[str, Callable[[Wrong, Path], str]] = {
    RETENTION: retention,
    PRODUCERS: producers,
    GARBAGE: garbage,
    ENTRIES: entries,
    EXPIRY: expiry,
    KEPT: kept,
    NETWORK: network,
    OVERWRITTEN: overwritten,
    TIMES: times,
    REFUSED: refused,
    AGREED: agreed,
    FOLLOWED: followed,
    ENDING: ending,
}
KINDS = ("a day ahead", "a day behind", "stopped")


def test_each_row_has_a_case() -> None:
    assert {*CASES} | TESTED_ELSEWHERE == {*table()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("row", CASES, ids=[case.__name__ for case in CASES.values()])
def test_a_wrong_clock_does_what_the_table_says(row: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / "at").mkdir()
    told = table()[row][KINDS.index(kind)]

    assert CASES[row](Wrong(kind), tmp_path / "at") == told.partition(":")[0]


# Steps, in a process that runs.


def test_nothing_expires_by_a_step_forward_for_ten_minutes_and_it_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Wrong("a day ahead")
    with spark_kbatch.open(tmp_path / "c", create=True) as cluster:
        cluster.create_topic("events", config={"segment.ms": 1, "retention.ms": DAY_MS // 2})
        with cluster.producer(linger_ms=0) as producer:
            for value in ("a", "b", "c"):
                producer.send("events", value).result()
                time.sleep(0.002)
        expiring_ms(0)
        with step.on(is_new=False):
            cluster.collect_garbage()
            assert cluster.read("events").read_all().num_rows == 3
            assert "the clock was set by 86" in caplog.text

            elapsed_ms = clock.since_boot_ms()
            monkeypatch.setattr(log_steps, "since_boot_ms", lambda: elapsed_ms + 11 * MINUTE_MS)
            monkeypatch.setattr(step, "_began_ns", step._began_ns)
            real = step._time_ns
            monkeypatch.setattr(step, "_time_ns", lambda: real() + 11 * MINUTE_MS * 1_000_000)
            cluster.collect_garbage()
            assert cluster.read("events").read_all().num_rows < 3


def test_a_step_back_is_logged_and_holds_nothing(caplog: pytest.LogCaptureFixture) -> None:
    expiring_ms(0)
    with Wrong("a day behind").on(is_new=False):
        assert expiring_ms(7) == 7
    assert "the clock was set by -86" in caplog.text


# Runs a command while the clock is some seconds ahead, and some seconds later, maybe after another start.
COMMAND = """
import pathlib, sys, time, uuid
wall_ns, gettime_ns = time.time_ns, time.clock_gettime_ns
ahead_ns, later_ns, is_restarted = (int(one) * 10**9 for one in sys.argv.pop(1).split(","))
time.time_ns = lambda: wall_ns() + ahead_ns + later_ns
time.clock_gettime_ns = lambda number: (
    gettime_ns(number) + later_ns + ahead_ns * (number in (time.CLOCK_REALTIME, 5))  # 5: CLOCK_REALTIME_COARSE
)
if is_restarted:
    from spark_kbatch.log import state
    state._BOOT_ID_FILE = pathlib.Path(sys.argv.pop(1))
from spark_kbatch.cli.main import main
main()
"""


class OfCron:
    """Commands that each begin a process, on a machine of their own, with twelve hours of retention."""

    def __init__(self, path: Path) -> None:
        self.cluster, self._path = path / "c", path
        (path / "boot").write_text("c0ffee00-0000-4000-8000-000000000000\n")
        with spark_kbatch.open(self.cluster, create=True) as cluster:
            config = {"segment.ms": 1, "retention.ms": DAY_MS // 2}
            cluster.create_topic("events", config=config)
            with cluster.producer(linger_ms=0) as producer:
                for value in ("a", "b", "c"):
                    producer.send("events", value).result()
                    time.sleep(0.002)

    def run(
        self, *words: str, ahead_ms: int = 0, later_ms: int = 0, is_restarted: bool = False
    ) -> str:
        """Run a command, and return what it says on stderr."""
        (self._path / "tmp").mkdir(exist_ok=True)
        how = f"{ahead_ms // 1000},{later_ms // 1000},{int(is_restarted)}"
        boot = [f"{self._path / 'boot'}"] if is_restarted else []
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, how, *boot, *words],
            env={**os.environ, "TMPDIR": f"{self._path / 'tmp'}"},
            input="d\n", capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stderr

    def left(self) -> int:
        with spark_kbatch.open(self.cluster) as cluster:
            return cluster.read("events").read_all().num_rows


def test_a_collection_of_cron_keeps_what_a_step_since_the_last_one_makes_old(
    tmp_path: Path,
) -> None:
    cron = OfCron(tmp_path)
    gc = ("gc", f"{cron.cluster}")

    assert "the clock was set" not in cron.run(*gc)
    assert "the clock was set by 86" in cron.run(*gc, ahead_ms=DAY_MS)
    assert "the clock was set" not in cron.run(*gc, ahead_ms=DAY_MS)  # it is logged once
    assert cron.left() == 3
    cron.run(*gc, ahead_ms=DAY_MS, later_ms=11 * MINUTE_MS)
    assert cron.left() < 3


def test_a_command_that_writes_keeps_what_a_step_makes_old(tmp_path: Path) -> None:
    cron = OfCron(tmp_path)
    produce = ("produce", f"{cron.cluster}", "events")

    cron.run(*produce)
    assert "the clock was set by 86" in cron.run(*produce, ahead_ms=DAY_MS)
    assert cron.left() == 5


def test_a_step_back_is_seen_by_the_next_process_and_time_that_passed_is_none(
    tmp_path: Path,
) -> None:
    cron = OfCron(tmp_path)
    gc = ("gc", f"{cron.cluster}")

    cron.run(*gc)
    assert "the clock was set" not in cron.run(*gc, later_ms=6 * HOUR_MS)
    assert "the clock was set by -86" in cron.run(*gc, ahead_ms=-DAY_MS)


def test_after_another_start_of_the_machine_there_is_nothing_to_compare(tmp_path: Path) -> None:
    cron = OfCron(tmp_path)
    gc = ("gc", f"{cron.cluster}")

    cron.run(*gc)
    assert "the clock was set" not in cron.run(*gc, ahead_ms=DAY_MS, is_restarted=True)
    assert cron.left() < 3


def test_a_process_in_which_time_is_frozen_tells_no_other_of_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", f"{tmp_path}")
    frozen, after = log_steps._Steps(), log_steps._Steps()
    frozen.expiring_ms(0)

    with at(-2 * DAY_MS):
        assert frozen.expiring_ms(3 * DAY_MS) < 2 * DAY_MS
    assert after.expiring_ms(7) == 7


def test_an_idempotent_producer_is_known_after_a_step(tmp_path: Path) -> None:
    with spark_kbatch.open(tmp_path / "c", create=True) as cluster:
        with cluster.producer(linger_ms=0) as producer:
            producer.send("events", "a", partition=0).result()
            expiring_ms(0)
            with Wrong("a day ahead").on(is_new=False):
                with cluster.producer(linger_ms=0) as other:
                    other.send("events", "b", partition=0).result()
                log = cluster._store.parts.manager.partition(
                    TopicPartition("events", 0)
                ).view.usable_only_log()
                log.producers.read(log.state(), clock.now_ms() + HOUR_MS)
                assert len(log.producers.states) == 2


def test_a_writer_asks_the_stores_clock_only_where_its_own_may_be_ahead() -> None:
    objects = AgingObjects()
    objects.clock_ms = real_ms()
    cluster = a_bucket(objects, "events")

    numbers = itertools.count()

    def requests() -> int:
        objects.taken()
        cluster.create_topic(f"topic-{next(numbers)}")
        return sum(objects.taken().values())

    usual = requests()
    with at(-HOUR_MS - MINUTE_MS):  # as the next one of an hourly job is
        assert requests() == usual
    with at(-4 * HOUR_MS):
        assert requests() > usual
        assert requests() == usual  # it knows by how much it is ahead
    assert requests() == usual
    assert "clock" not in "".join(one.name for one in objects.list(""))


def test_a_writer_that_may_not_delete_asks_too(caplog: pytest.LogCaptureFixture) -> None:
    class NoDeletes(Realistic):
        def delete(self, names: object) -> None:
            raise ObjectAccessDeniedError("delete", "x", "as the test says")

    cluster = a_bucket(NoDeletes(), "events")
    with at(-2 * DAY_MS):
        cluster.create_topic("others")
    assert abs(ledger_at(cluster._store.address).state.time_ms - real_ms()) < MINUTE_MS
    assert re.search(r"clock is 1727\d\d s ahead of the store's: set it right", caplog.text) or (
        "clock is 172800 s ahead" in caplog.text
    )


def test_a_writer_that_may_not_put_what_has_the_time_commits_and_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class NoAgreements(Realistic):
        def put(self, name: str, data: bytes) -> None:
            if "/agreements/" in name:
                raise ObjectAccessDeniedError("put", name, "as the test says")
            super().put(name, data)

    cluster = a_bucket(NoAgreements(), "events")
    with at(-3 * HOUR_MS):
        cluster.create_topic("others")
        assert "entries go by this machine's clock" in caplog.text
        caplog.clear()
        cluster.create_topic("more")
    assert "this machine's clock" not in caplog.text
    assert {"others", "more"} <= {*opened_again(cluster).topic_names()}


def test_a_record_is_written_once_though_another_writers_clock_is_days_ahead() -> None:
    """The answer to a producer's entry is lost, and it sends again after the other has written."""
    objects = LosesOne()
    cluster = a_bucket(objects, "events", "others")
    other = opened_again(cluster)
    with cluster.producer(
        linger_ms=0, request_timeout_ms=300, delivery_timeout_ms=60_000
    ) as producer:
        producer.send("events", "first").result()
        objects.is_losing = True
        second = producer.send("events", "second")
        assert objects.has_lost.wait(30)
        time.sleep(0.5)  # the request has timed out
        with at(-2 * DAY_MS), other.producer(linger_ms=0) as ahead:
            ahead.send("others", "x").result()
        objects.is_cut = False
        second.result()

    assert [*values(opened_again(cluster))] == ["first", "second"]
