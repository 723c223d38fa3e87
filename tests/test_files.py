"""Odd disks: paths that are not regular files, and calls that transfer less than asked."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click.testing
import pytest

import spark_kbatch
from spark_kbatch import Cluster, KBatchError
from spark_kbatch import files as files_module
from spark_kbatch.cli.main import cli
from spark_kbatch.files import Files, private_temporary_dir
from tests.support.broker_dirs import TOPIC_ID, a_partition, batches, checkpoint

FIRST = "00000000000000000000"


@contextlib.contextmanager
def not_waiting(seconds: int = 60) -> Iterator[None]:
    """Fail if something hangs, as opening a FIFO does. Kernels may be compiled meanwhile."""

    def fail(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def a_fifo(path: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    # The path of a socket has at most 107 bytes.
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def a_folder(path: Path) -> None:
    path.mkdir()


def a_link_to_a_fifo(path: Path) -> None:
    a_fifo(path.with_name("the-fifo"))
    path.symlink_to("the-fifo")


NO_FILES = [
    pytest.param(a_fifo, id="fifo"),
    pytest.param(a_socket, id="socket"),
    pytest.param(a_folder, id="folder"),
    pytest.param(a_link_to_a_fifo, id="link-to-a-fifo"),
]


@pytest.mark.parametrize("make", NO_FILES)
def test_reading_what_is_not_a_regular_file_is_an_error_that_names_it(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    path = tmp_path / "no-file"
    make(path)

    with not_waiting():
        for size in (None, 8):
            with pytest.raises(OSError, match=str(path)):
                Files().read(path, 0, size)
        with pytest.raises(OSError, match=str(path)):
            Files().read_into(path, 0, memoryview(bytearray(8)))


@pytest.mark.parametrize("make", NO_FILES)
def test_writing_to_what_is_not_a_regular_file_is_an_error_that_names_it(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    path = tmp_path / "no-file"
    make(path)

    with not_waiting(), pytest.raises(OSError, match=str(path)):
        Files().write(path, 0, b"12345678")


@pytest.mark.parametrize(
    "name",
    [
        "t-0/00000000000000000000.log",
        "t-0/00000000000000000009.log",
        "t-0/00000000000000000000.index",
        "t-0/00000000000000000000.timeindex",
        "t-0/00000000000000000005.snapshot",
        "t-0/partition.metadata",
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "replication-offset-checkpoint",
    ],
)
@pytest.mark.parametrize("make", NO_FILES)
def test_no_fifo_in_a_brokers_directory_hangs_its_readers(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    a_partition(tmp_path / "t-0", {0: batches(0, 3), 9: batches(9, 3)})
    for kind in ("recovery-point", "log-start", "replication"):
        checkpoint(tmp_path, kind, {"t 0": 0})
    path = tmp_path / name
    path.unlink(missing_ok=True)
    make(path)

    with not_waiting():
        for end in ("log", "checkpoint"):
            with contextlib.suppress(KBatchError, OSError):
                logs = spark_kbatch.open(str(tmp_path), foreign_end=end)
                list(logs.read("t"))
                logs.list_offsets({("t", 0): 1, ("t", 1): "max_timestamp"})


@pytest.mark.parametrize("make", NO_FILES)
@pytest.mark.parametrize("first", [True, False], ids=["only-segment", "last-segment"])
def test_a_brokers_log_that_is_not_a_regular_file_is_an_error_that_names_it(
    tmp_path: Path, make: Callable[[Path], None], first: bool
) -> None:
    directory = a_partition(tmp_path / "t-0", {0: batches(0, 3)})
    path = directory / f"{0 if first else 9:020}.log"
    path.unlink(missing_ok=True)
    make(path)

    with not_waiting(), pytest.raises((KBatchError, OSError), match=str(path)):
        list(spark_kbatch.open(str(tmp_path)).read("t"))


@pytest.mark.parametrize("name", ["log", "index", "timeindex", "state", "topic", "cluster"])
@pytest.mark.parametrize("make", NO_FILES)
def test_no_fifo_in_a_cluster_hangs_its_commands(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    cluster = Cluster(str(tmp_path / "c"), create=True)
    cluster.create_topic("t", partitions=1)
    with cluster.producer() as producer:
        for number in range(3):
            producer.send("t", value=b"%d" % number)
    directory = cluster.path / "broker-0" / "t-0"
    path = {
        "log": directory / f"{FIRST}.log",
        "index": directory / f"{FIRST}.index",
        "timeindex": directory / f"{FIRST}.timeindex",
        "state": directory / "kbatch.state",
        "topic": cluster.path / "topics" / "t.json",
        "cluster": cluster.path / "cluster.json",
    }[name]
    path.unlink(missing_ok=True)
    make(path)
    target = tmp_path / "target"
    target.mkdir()
    (target / "meta.properties").write_text(f"version=1\ncluster.id={TOPIC_ID}\nnode.id=1\n")

    with not_waiting():
        for words in (
            ["topics", cluster.path],
            ["consume", cluster.path, "t"],
            ["offsets", cluster.path, "t", "--time", "0"],
            ["log-dirs", cluster.path],
            ["gc", cluster.path],
            ["export", cluster.path, "t", "--log-dir", target],
            ["repair", cluster.path],
        ):
            done = click.testing.CliRunner().invoke(cli, [str(word) for word in words])
            known = done.exception is None or isinstance(done.exception, SystemExit)
            assert known or isinstance(done.exception, (KBatchError, OSError)), done.exception


def test_a_read_continues_after_a_call_that_transfers_less_than_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, data = tmp_path / "file", bytes(range(200))
    monkeypatch.setattr(files_module, "_CALL_BYTES_MAX", 7)

    Files().write(path, 0, data)

    assert path.read_bytes() == data
    assert Files().read(path) == data
    assert Files().read(path, 3) == data[3:]
    assert Files().read(path, 3, 50) == data[3:53]
    assert Files().read(path, 190, 50) == data[190:]
    buffer = bytearray(220)
    assert Files().read_into(path, 0, memoryview(buffer)) == 200
    assert buffer[:200] == data


def test_a_file_of_gigabytes_is_not_read_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    os.truncate(path, 2**40)

    with pytest.raises(OSError, match=str(path)) as raised:
        Files().read(path)
    assert raised.value.errno == errno.EFBIG


# Flushing.


def a_full_flush(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[..., object]
) -> tuple[Callable[[int], object], list[int]]:
    """Return the flush for macOS with such a full flush, and the list of plain flushes."""
    plain: list[int] = []
    monkeypatch.setattr("fcntl.F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr("fcntl.fcntl", answer)
    monkeypatch.setattr("os.fsync", plain.append)
    return files_module.flushing("darwin"), plain


def test_on_macos_a_flush_goes_past_the_disks_own_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []
    flush, plain = a_full_flush(monkeypatch, lambda *what: asked.append(what))
    flush(7)
    assert (asked, plain) == ([(7, 51)], [])


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.EINVAL, errno.ENOTTY])
def test_where_the_full_flush_is_not_known_the_plain_one_does(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(number, os.strerror(number))

    flush, plain = a_full_flush(monkeypatch, refuse)
    flush(7)
    assert plain == [7]


def test_a_full_flush_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    flush, plain = a_full_flush(monkeypatch, fail)
    with pytest.raises(OSError, match="Input/output error"):
        flush(7)
    assert plain == []


def test_on_linux_a_flush_is_fsync() -> None:
    assert files_module.flushing("linux") is os.fsync


def test_the_time_of_another_users_file_is_set_to_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, utime = tmp_path / "file", os.utime
    path.touch()
    utime(path, (0, 0))

    def as_for_one_who_may_only_write(of: Path, **chosen: Any) -> None:
        if "ns" in chosen:
            raise PermissionError(errno.EPERM, "Operation not permitted", str(of))
        utime(of, **chosen)

    monkeypatch.setattr(os, "utime", as_for_one_who_may_only_write)
    before_ms = Files().modified_ms(path)
    Files().set_modified_ms(path, 1000)

    assert before_ms == 0
    assert Files().modified_ms(path) > 1000


def test_a_fifo_among_many_files_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    os.mkfifo(tmp_path / "fifo")
    paths = [str(tmp_path / name) for name in ("file", "fifo", "none", "file")]

    assert list(Files().read_each(paths, 3)) == [b"123", b"", b"", b"123"]


@pytest.mark.parametrize("taken", ["open to others", "a link", "a file"])
def test_a_directory_that_others_can_use_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = tmp_path / f"name-{os.getuid()}"
    if taken == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        path.symlink_to(tmp_path / "elsewhere")
    elif taken == "a file":
        path.touch(mode=0o700)
    else:
        path.mkdir()
        path.chmod(0o777)

    assert private_temporary_dir("name") is None
    assert private_temporary_dir("other") == tmp_path / f"other-{os.getuid()}"
    assert private_temporary_dir("other") == tmp_path / f"other-{os.getuid()}"


def test_a_directory_of_its_own_is_made_on_a_volume_that_belongs_to_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o2770)  # as Kubernetes' `fsGroup` makes it
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    assert private_temporary_dir("name") == tmp_path / f"name-{os.getuid()}"


def test_a_look_for_links_ends_where_the_folder_is_not_below_its_root(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    Files().ensure_no_link(tmp_path / "link", tmp_path / "link")
    Files().ensure_no_link(tmp_path / "a/b", tmp_path / "a")
    with pytest.raises(OSError, match="a symbolic link") as raised:
        Files().ensure_no_link(tmp_path / "link/b", tmp_path)
    assert raised.value.filename == str(tmp_path / "link")
    for root in (tmp_path / "other", tmp_path / "a/b/c", Path("a")):
        with pytest.raises(ValueError, match="is not below"):
            Files().ensure_no_link(tmp_path / "a/b", root)
