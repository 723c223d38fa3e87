"""Locks between threads and between processes: who waits for whom."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pickle
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.errors import LockTimeoutError, LogDirLockedError
from spark_kbatch.files import Files, LockFile
from spark_kbatch.model import TopicPartition
from spark_kbatch.replica import locks as locks_module
from spark_kbatch.replica.locks import Locks
from tests.support import builders
from tests.support.faults import open_files, run_child
from tests.support.store import store_of

Take = Callable[[Locks], AbstractContextManager[object]]

LOCKS: dict[str, Take] = {
    "commit": lambda locks: locks.commit(),
    "metadata": lambda locks: locks.metadata(),
    "partition": lambda locks: locks.partitions([TopicPartition("events", 7)]),
    "partitions": lambda locks: locks.partitions(
        TopicPartition(topic, number) for topic in ("events", "a") for number in (7, 0)
    ),
}
FIRST = TopicPartition("a", 0)
every_lock = pytest.mark.parametrize("take", LOCKS.values(), ids=LOCKS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def some_locks(folder: Path) -> Locks:
    return Locks(Files(), folder)


def waits(take: Take, locks: Locks, until: Callable[[], None]) -> None:
    """Check that a thread does not get the lock before `until` was called, and does after."""
    got = threading.Event()

    def work() -> None:
        with take(locks):
            got.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert not got.wait(0.1)
    until()
    assert got.wait(10)
    thread.join()


@contextlib.contextmanager
def held_by_a_process(hold: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
    """Hold it in another process; the lock is released when the process ends."""
    reading, writing = os.pipe()

    def work() -> None:
        with hold():
            os.write(writing, b"held")
            time.sleep(60)

    child = run_child(work)
    os.close(writing)
    assert os.read(reading, 4) == b"held"
    try:
        yield
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(reading)


def processes_that_add(folder: Path, take: Take, *, count: int, times: int) -> int:
    """Have each process increment a number in a file, in two steps; return the final number."""
    number = folder / "number"
    number.write_text("0")

    def work() -> None:
        locks = some_locks(folder)
        for _ in range(times):
            with take(locks):
                before = int(number.read_text())
                time.sleep(0.0005)
                number.write_text(str(before + 1))

    children = [run_child(work) for _ in range(count)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * count
    return int(number.read_text())


@every_lock
def test_processes_exclude_each_other(folder: Path, take: Take) -> None:
    assert processes_that_add(folder, take, count=3, times=30) == 90


@every_lock
def test_a_process_that_is_killed_leaves_its_lock(folder: Path, take: Take) -> None:
    with held_by_a_process(lambda: take(some_locks(folder))):
        pass
    with take(some_locks(folder)):
        pass


@every_lock
@pytest.mark.parametrize("shared", [True, False], ids=["one cluster", "two clusters"])
def test_threads_exclude_each_other(folder: Path, take: Take, shared: bool) -> None:
    first = some_locks(folder)
    second = first if shared else some_locks(folder)
    held = take(first)
    held.__enter__()
    waits(take, second, lambda: held.__exit__(None, None, None))


@every_lock
def test_a_thread_keeps_its_lock_when_another_of_its_process_leaves_the_same_file(
    folder: Path, take: Take
) -> None:
    with take(some_locks(folder)):
        with some_locks(folder).partitions([TopicPartition("events", 3)]):
            pass
        got = folder / "got"
        child = run_child(lambda: take(some_locks(folder)).__enter__() or got.write_text(""))
        time.sleep(0.15)
        assert not got.exists()
    assert os.waitpid(child, 0)[1] == 0
    assert got.exists()


def test_locks_of_more_topics_than_a_process_may_open_files_are_taken_together(
    folder: Path,
) -> None:
    before, highest = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= highest < 1000:
        pytest.skip(f"this process may open only {highest} files")
    most = len(list(Path("/proc/self/fd").iterdir())) + 50
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, highest))
    try:
        many = [TopicPartition(f"topic-{number}", 0) for number in range(200)]
        with some_locks(folder).partitions(many):
            assert len(open_files(folder)) == 200
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert limits[0] > most
        assert limits[1] == highest
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, highest))


def test_other_partitions_and_topics_do_not_wait(folder: Path) -> None:
    others = [("events", 0), ("events", 2), ("event", 1), ("other", 1)]
    with (
        held_by_a_process(lambda: some_locks(folder).partitions([TopicPartition("events", 1)])),
        some_locks(folder).partitions(TopicPartition(*place) for place in others),
    ):
        pass


def test_partitions_are_taken_in_one_order_whatever_is_asked(folder: Path) -> None:
    """Two processes that take the same locks in opposite orders would wait for each other forever."""
    places = [TopicPartition("b", 1), TopicPartition("a", 1), TopicPartition("a", 0)]

    def work(order: int) -> None:
        for _ in range(50):
            with some_locks(folder).partitions(places[::order]):
                pass

    threads = [threading.Thread(target=work, args=(order,)) for order in (1, -1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def wait_until_held(path: Path, position: int) -> None:
    """Another process has to take it."""
    with path.open("rb+") as file:
        file.seek(position)
        while True:
            try:
                os.lockf(file.fileno(), os.F_TEST, 1)
            except OSError:
                return
            time.sleep(0.01)


def test_threads_whose_processes_wait_for_each_other_both_get_their_locks(folder: Path) -> None:
    """A kernel that only knows processes would see a deadlock when the last one starts to wait.

    1. We hold a-1. 2. A process holds a-0 and waits for a-1. 3. Another thread of ours wants a-0.
    """
    first, second = TopicPartition("a", 0), TopicPartition("a", 1)
    got = threading.Event()

    def other_process() -> None:
        with some_locks(folder).partitions([first, second]):
            pass

    def other_thread() -> None:
        with some_locks(folder).partitions([first]):
            got.set()

    with some_locks(folder).partitions([second]):
        child = run_child(other_process)
        assert os.waitpid(run_child(lambda: wait_until_held(folder / "a.lock", 0)), 0)[1] == 0
        time.sleep(0.1)  # for it to wait
        thread = threading.Thread(target=other_thread)
        thread.start()
        assert not got.wait(0.1)
    assert os.waitpid(child, 0)[1] == 0
    assert got.wait(10)
    thread.join()


def test_by_its_deadline_a_lock_is_had_or_none_is(folder: Path) -> None:
    places = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)]
    with some_locks(folder).partitions(places[1:2]):
        begun = time.monotonic()
        with (
            pytest.raises(LockTimeoutError) as caught,
            some_locks(folder).partitions(places, deadline=begun + 0.05),
        ):
            pass
        assert time.monotonic() - begun < 5
        assert (caught.value.lock, caught.value.path) == ("a-1", str(folder / "a.lock"))
        with some_locks(folder).partitions(places[:1] + places[2:], deadline=begun):
            pass  # a free lock is taken even after the deadline
    with some_locks(folder).partitions(places, deadline=begun):
        pass


def test_a_lock_timeout_keeps_its_fields_out_of_a_worker() -> None:
    error = LockTimeoutError("t-0", "/data/locks/t.lock", 1.25)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.lock, copy.path, copy.waited_s) == ("t-0", "/data/locks/t.lock", 1.25)
    assert str(copy) == str(error)
    assert "t-0 was not free within 1.2 s" in str(copy)
    assert "lsof /data/locks/t.lock" in str(copy)


@pytest.mark.parametrize("name", ["commit", "metadata", "partition"])
def test_who_waits_says_so_after_a_while_and_again_later(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(locks_module, "_LOGGED_AFTER_S", 0.02)
    monkeypatch.setattr(locks_module, "_LOGGED_AGAIN_AFTER_S", 0.05)
    held = LOCKS[name](some_locks(folder))
    held.__enter__()

    def let_go_once_it_is_said_twice() -> None:
        until = time.monotonic() + 10
        while len(caplog.messages) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        held.__exit__(None, None, None)

    waits(LOCKS[name], some_locks(folder), let_go_once_it_is_said_twice)
    lock, file = ("events-7", "events.lock") if name == "partition" else (name, name)
    for message in caplog.messages[:2]:
        assert message.startswith(f"the lock of {lock} has not been free for ")
        assert f"lsof {folder / file}" in message


def test_a_reader_who_may_not_write_can_hold_the_commit_lock_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(locks_module, "_LOGGED_AFTER_S", 0.02)
    cluster = builders.a_cluster(tmp_path)
    with store_of(cluster).manager.locks.commit():
        pass
    with (cluster.path / "locks" / "commit").open() as reader:
        fcntl.flock(reader, fcntl.LOCK_EX)

        def let_go() -> None:
            assert "the lock of commit has not been free" in caplog.text
            fcntl.flock(reader, fcntl.LOCK_UN)

        waits(lambda locks: locks.commit(), store_of(cluster).manager.locks, let_go)


@pytest.mark.parametrize("name", ["link", "two slashes", "link to a parent"])
def test_a_cluster_opened_by_another_name_waits_for_the_same_locks(
    tmp_path: Path, name: str
) -> None:
    cluster = builders.a_cluster(tmp_path / "parent")
    links = {"link": cluster.path, "link to a parent": cluster.path.parent}
    other = f"/{cluster.path}"
    if name in links:
        link = tmp_path / "link"
        link.symlink_to(links[name])
        other = str(link / cluster.path.relative_to(links[name]))
    opened = Cluster(other)
    for take in LOCKS.values():
        held = take(store_of(cluster).manager.locks)
        held.__enter__()
        waits(
            take, store_of(opened).manager.locks, lambda held=held: held.__exit__(None, None, None)
        )


def test_a_lock_that_fails_for_another_reason_is_an_error(folder: Path) -> None:
    class NoLocks(Files):
        def lock_byte(self, file: LockFile, position: int, *, wait: bool = True) -> bool:
            raise OSError(errno.ENOLCK, "No locks available")

    with pytest.raises(OSError, match="No locks"), Locks(NoLocks(), folder).partitions([FIRST]):
        pass


def test_a_partition_named_twice_is_taken_once(folder: Path) -> None:
    with some_locks(folder).partitions([TopicPartition("a", 0)] * 2):
        pass


def test_an_error_inside_releases_the_locks(folder: Path) -> None:
    locks = some_locks(folder)
    for take in LOCKS.values():
        with pytest.raises(ValueError, match="inside"), take(locks):
            raise ValueError("inside")
        with take(locks):
            pass


def test_locks_leave_no_file_open(folder: Path) -> None:
    for take in LOCKS.values():
        with take(some_locks(folder)):
            pass
    assert not open_files(folder)


@every_lock
def test_a_lock_on_a_file_that_was_replaced_meanwhile_does_not_count(
    folder: Path, take: Take
) -> None:
    """1. A holds it. 2. B waits. 3. The file is replaced. 4. C locks the new one. 5. A releases it."""

    def replace() -> None:
        for path in folder.iterdir():
            path.unlink()

    first_by_a_process = held_by_a_process(lambda: take(some_locks(folder)))
    with contextlib.ExitStack() as third:

        def go_on() -> None:
            replace()
            third.enter_context(held_by_a_process(lambda: take(some_locks(folder))))
            first_by_a_process.__exit__(None, None, None)
            assert not got.wait(0.1), "the old file's lock was taken for one"
            third.close()

        got = threading.Event()

        def second() -> None:
            with take(some_locks(folder)):
                got.set()

        first_by_a_process.__enter__()
        thread = threading.Thread(target=second)
        thread.start()
        assert not got.wait(0.1)
        go_on()
        assert got.wait(10)
        thread.join()


def test_threads_that_find_a_file_replaced_at_once_use_one_new_file(folder: Path) -> None:
    path, threads_count = folder / "events.lock", 4

    def is_free(number: int) -> bool:
        def look() -> None:
            with path.open("r+") as file:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)

        return os.waitpid(run_quietly(look), 0)[1] == 0

    found, hold = threading.Barrier(threads_count), threading.Barrier(threads_count + 1)
    leave = threading.Event()

    class FoundTogether(Files):
        def is_at(self, file: LockFile) -> bool:
            is_there = super().is_at(file)
            if not is_there:
                found.wait(10)
            return is_there

    def work(number: int) -> None:
        with Locks(FoundTogether(), folder).partitions([TopicPartition("events", number)]):
            hold.wait(10)
            if number:
                leave.wait(10)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(threads_count)]
    with some_locks(folder).partitions([TopicPartition("events", 100)]):
        path.unlink()
        for thread in threads:
            thread.start()
        hold.wait(10)
    threads[0].join()
    assert [is_free(number) for number in range(threads_count)] == [True, False, False, False]
    leave.set()
    for thread in threads:
        thread.join()
    assert not open_files(folder)


def test_a_forked_child_does_not_have_its_parents_locks(folder: Path) -> None:
    parents = some_locks(folder)
    got = folder / "got"

    def work() -> None:
        with parents.commit(), parents.partitions([TopicPartition("events", 7)]):
            got.write_text("")

    with parents.commit(), parents.partitions([TopicPartition("events", 7)]):
        child = run_child(work)
        time.sleep(0.15)
        assert not got.exists()
    assert os.waitpid(child, 0)[1] == 0
    assert got.exists()


def test_a_topic_with_the_longest_name_has_locks(folder: Path) -> None:
    with some_locks(folder).partitions([TopicPartition("t" * 249, 0)]):
        pass


# Brokers.


@contextlib.contextmanager
def a_broker(path: Path) -> Iterator[None]:
    """Lock the whole file exclusively, as a broker does."""
    with (path / ".lock").open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def a_broker_starts(path: Path) -> bool:
    def work() -> None:
        with a_broker(path):
            pass

    return os.waitpid(run_quietly(work), 0)[1] == 0


def run_quietly(work: Callable[[], None]) -> int:
    def quiet() -> None:
        try:
            work()
        except OSError:
            os._exit(3)

    return run_child(quiet)


def test_where_a_broker_is_in_nothing_is_written(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    batches = {("events", 0): [builders.batch()]}
    extents = builders.staged(cluster, batches)
    with held_by_a_process(
        lambda: a_broker(store_of(cluster).metadata.cluster_file.log_dir(0).path)
    ):
        for write in (
            lambda: builders.commit(cluster, extents),
            lambda: cluster.create_topic("another"),
        ):
            with pytest.raises(LogDirLockedError, match=r"broker-0/\.lock is held by another"):
                write()
        assert [topic.name for topic in cluster.topics()] == ["events"]
        assert builders.contents(cluster) == {TopicPartition("events", 0): []}

    builders.commit(cluster, extents)
    assert len(builders.contents(cluster)[TopicPartition("events", 0)]) == 3


def test_a_broker_blocks_only_those_that_write_into_its_log_dir(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    cluster.create_topic("copied", replication_factor=2)
    with held_by_a_process(lambda: a_broker(cluster.path / "broker-1")):
        found = builders.append_records(
            cluster, {("events", 0): builders.batch(), ("copied", 0): builders.batch()}
        )
        assert [type(result.error) for result in found.values()] == [LogDirLockedError] * 2
        found = builders.append_records(cluster, {("events", 0): builders.batch()})
        assert [result.error for result in found.values()] == [None]


def test_while_we_write_no_broker_starts_and_then_one_does(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    log_dir = store_of(cluster).metadata.cluster_file.log_dir(0).path
    with store_of(cluster).manager.writing():
        assert not a_broker_starts(log_dir)
        # Another thread of this process, with a cluster of its own, comes and goes.
        Cluster(str(cluster.path)).create_topic("another")
        assert not a_broker_starts(log_dir)
    assert a_broker_starts(log_dir)


def test_a_log_dirs_lock_that_was_replaced_while_we_write_is_taken_again(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    log_dir = store_of(cluster).metadata.cluster_file.log_dir(0).path
    with store_of(cluster).manager.writing():
        (log_dir / ".lock").unlink()
        assert a_broker_starts(log_dir)  # which cannot be helped
        with store_of(Cluster(str(cluster.path))).manager.writing():
            assert not a_broker_starts(log_dir)
            with store_of(cluster).manager.writing():
                pass
            assert not a_broker_starts(log_dir)
        assert a_broker_starts(log_dir)
    assert not open_files(log_dir)


def test_reading_does_not_keep_a_broker_out_nor_is_it_kept_out(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    builders.write(cluster, {("events", 0): [builders.batch()]})
    rows = cluster.read("events")
    assert next(rows).num_rows == 3
    assert a_broker_starts(store_of(cluster).metadata.cluster_file.log_dir(0).path)
    with held_by_a_process(
        lambda: a_broker(store_of(cluster).metadata.cluster_file.log_dir(0).path)
    ):
        assert len(list(cluster.read("events"))) == 1


def test_two_processes_of_ours_write_at_once(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)

    def work() -> None:
        mine = Cluster(str(cluster.path))
        for _ in range(5):
            name = f"job-{os.getpid()}"
            job = {("events", 0): [builders.batch(n=1)]}
            builders.commit(mine, builders.staged(mine, job, transaction=name), transaction=name)

    children = [run_child(work) for _ in range(3)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    records = builders.contents(cluster)[TopicPartition("events", 0)]
    assert [record.offset for record in records] == list(range(15))
