"""Both kinds of lock files, between threads, processes, forked children and brokers."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_kbatch import files
from spark_kbatch.files import LockFile, RecordLocks, WholeFile
from tests.support.faults import open_files, run_child

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="record locks are Linux's")

# What a broker does, as any other program that uses POSIX locks.
POSIX = """
import fcntl, sys
file = open(sys.argv[1], "r+")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, *map(int, sys.argv[2:]))
except OSError:
    print("held by another", flush=True)
else:
    print("got it", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=[RecordLocks, WholeFile], ids=["record locks", "whole files"])
def kind(request: pytest.FixtureRequest) -> type[LockFile]:
    found: type[LockFile] = request.param
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.lock"


@pytest.fixture
def posix(path: Path) -> Iterator[Callable[..., str]]:
    """Start programs that lock bytes of the file, (length, start), or all of it, and report."""
    started = []

    def start(*record: int) -> str:
        command = [sys.executable, "-c", POSIX, str(path), *map(str, record)]
        program = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(program)
        assert program.stdout is not None
        return program.stdout.readline().strip()

    yield start
    for program in started:
        program.communicate()


def is_free(kind: type[LockFile], path: Path, byte: int = 0) -> bool:
    """Return True if a new process gets the lock."""

    def look() -> None:
        with kind(path) as file:
            assert file.take(byte, wait=False)

    return os.waitpid(run_child(look), 0)[1] == 0


def test_two_openings_of_a_file_exclude_each_other_under_any_names(
    kind: type[LockFile], path: Path
) -> None:
    folder = path.parent.with_name(f"{path.parent.name}-link")
    folder.symlink_to(path.parent)
    with kind(path) as first:
        assert first.take(0, wait=False)
        for name in (path, folder / path.name, Path(f"/{path}")):
            with kind(name) as second:
                assert not second.take(0, wait=False)
    with kind(folder / path.name) as second:
        assert second.take(0, wait=False)


def test_a_thread_that_waits_gets_the_lock_when_it_is_let_go(
    kind: type[LockFile], path: Path
) -> None:
    got = threading.Event()

    def work() -> None:
        with kind(path) as second:
            second.take(0)
            got.set()

    thread = threading.Thread(target=work)
    with kind(path) as first:
        first.take(0)
        thread.start()
        assert not got.wait(0.05)
    assert got.wait(10)
    thread.join()


def test_other_code_that_reads_and_closes_the_file_drops_no_lock(
    kind: type[LockFile], path: Path
) -> None:
    with kind(path) as file:
        file.take(0)
        path.read_bytes()
        assert not is_free(kind, path)
    assert is_free(kind, path)


def test_shared_locks_exclude_an_exclusive_one_alone(kind: type[LockFile], path: Path) -> None:
    with kind(path) as first, kind(path) as second, kind(path) as third:
        assert first.take(shared=True, wait=False)
        assert second.take(shared=True, wait=False)
        assert not third.take(wait=False)
        second.release()
        first.release()
        assert third.take(wait=False)


def test_a_forked_child_neither_keeps_nor_drops_its_parents_lock(
    kind: type[LockFile], path: Path
) -> None:
    with kind(path) as file:
        file.take(0)

        def child_leaves_the_block() -> None:
            assert file.descriptor == -1
            with path.open() as own:  # gets the number that the lock file had
                file.release()
                own.read()

        assert os.waitpid(run_child(child_leaves_the_block), 0)[1] == 0
        assert not is_free(kind, path), "the child has dropped it"
        sleeper = run_child(lambda: time.sleep(60))
    try:
        assert is_free(kind, path), "the child keeps it"
    finally:
        os.kill(sleeper, signal.SIGKILL)
        os.waitpid(sleeper, 0)


def test_a_lock_ends_with_its_process_also_where_a_child_of_that_lives_on(
    kind: type[LockFile], path: Path
) -> None:
    reading, writing = os.pipe()

    def parent() -> None:
        kind(path).take(0)
        grandchild = os.fork()
        if grandchild == 0:
            os.write(writing, f"{os.getpid()}\n".encode())
            time.sleep(60)
        time.sleep(60)

    holder = run_child(parent)
    grandchild = int(os.read(reading, 20))
    try:
        assert not is_free(kind, path)
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
        assert is_free(kind, path)
    finally:
        os.kill(grandchild, signal.SIGKILL)
        os.close(reading)
        os.close(writing)


def test_forks_while_other_threads_take_locks_leave_none_behind(
    kind: type[LockFile], path: Path
) -> None:
    is_over = threading.Event()

    def work(byte: int) -> None:
        while not is_over.is_set():
            with kind(path) as file:
                file.take(byte)

    threads = [threading.Thread(target=work, args=(byte,)) for byte in range(3)]
    for thread in threads:
        thread.start()

    def look() -> None:
        assert not open_files(path.parent)

    children = [run_child(look) for _ in range(30)]
    is_over.set()
    for thread in threads:
        thread.join()
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)
    assert not files._open_lock_files


def test_a_posix_lock_keeps_record_locks_out_and_the_other_way_round(
    path: Path, posix: Callable[..., str]
) -> None:
    with RecordLocks(path) as file:
        assert file.take(7, wait=False)
        assert posix(1, 7) == "held by another"
        assert posix() == "held by another"
        assert posix(1, 6) == "got it"
        assert not file.take(6, wait=False)
        assert file.take(5, wait=False)
        file.release()
    assert posix(1, 7) == "got it"
    with RecordLocks(path) as file:
        assert not file.take(wait=False)
        assert not file.take(shared=True, wait=False)


def test_a_shared_lock_keeps_a_broker_out(path: Path, posix: Callable[..., str]) -> None:
    with RecordLocks(path) as file:
        assert file.take(shared=True, wait=False)
        assert posix() == "held by another"
    assert posix() == "got it"


def test_whole_files_are_few_for_any_number_of_partitions(tmp_path: Path) -> None:
    topic = "t" * 249
    places = {WholeFile.location(topic, partition) for partition in range(1000)}
    assert len(places) == 16
    for name, byte in places:
        with WholeFile(tmp_path / name) as file:
            assert file.take(byte, wait=False)


def test_no_descriptor_is_left_open(kind: type[LockFile], path: Path) -> None:
    for _ in range(3):
        with kind(path) as file:
            file.take(0)
            file.release()
    assert not open_files(path.parent)


def test_another_error_than_a_held_lock_is_raised(path: Path) -> None:
    path.touch()
    with RecordLocks(path) as file:
        read_only = os.open(path, os.O_RDONLY)
        os.dup2(read_only, file.descriptor)
        os.close(read_only)
        with pytest.raises(OSError, match="Bad file descriptor"):
            file.take(0, wait=False)


def test_flock_of_a_reader_does_not_touch_record_locks(path: Path) -> None:
    with RecordLocks(path) as file, path.open() as reader:
        fcntl.flock(reader, fcntl.LOCK_EX)
        assert file.take(0, wait=False)
