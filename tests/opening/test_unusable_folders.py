"""A folder that is read-only, gone or full: the Python API raises KBatchErrors that name the path."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.errors import FileSystemError, KBatchError
from tests.support.small_disk import fill, on_small_disk

CALLS: dict[str, Callable[[Cluster], Any]] = {
    "create_topic": lambda cluster: cluster.create_topic("more"),
    "create_partitions": lambda cluster: cluster.create_partitions("events", 3),
    "alter_topic": lambda cluster: cluster.alter_topic("events", {"retention.ms": 5}),
    "delete_topic": lambda cluster: cluster.delete_topic("events"),
    "delete_records": lambda cluster: cluster.delete_records({("events", 0): 1}),
    "collect_garbage": lambda cluster: cluster.collect_garbage(),
    "serve": lambda cluster: cluster.serve().close(),
    "replicate": lambda cluster: cluster.replicate(),
    "repair": lambda cluster: list(cluster.repair()),
    "produce": lambda cluster: _produce(cluster),
    "read": lambda cluster: cluster.read("events").read_all(),
    "topics": lambda cluster: cluster.topics(),
    "describe": lambda cluster: cluster.describe("events"),
    "history": lambda cluster: list(cluster.history()),
    "log_dirs": lambda cluster: cluster.log_dirs(),
    "verify": lambda cluster: list(cluster.verify()),
    "open": lambda cluster: spark_kbatch.open(cluster.path),
}
READING = {"read", "topics", "describe", "history", "log_dirs", "verify", "open"}


def _produce(cluster: Cluster) -> None:
    times = {"delivery_timeout_ms": 200, "request_timeout_ms": 100, "linger_ms": 0}
    with cluster.producer(**times) as producer:
        producer.send("events", value=bytes(10_000)).result()


def a_cluster(path: Path) -> Cluster:
    cluster = spark_kbatch.open(path, create=True)
    cluster.create_topic("events")
    with cluster.producer() as producer:
        producer.send("events", value="v").result()
    return cluster


def error_of(call: Callable[[Cluster], Any], cluster: Cluster) -> KBatchError | None:
    """Return the KBatchError that a call raises; any other exception fails the test."""
    raised: KBatchError | None = None
    try:
        call(cluster)
    except KBatchError as error:
        raised = error
    if raised is not None:
        assert str(cluster.path) in str(raised), raised
        copy = pickle.loads(pickle.dumps(raised))
        assert (type(copy), str(copy)) == (type(raised), str(raised))
    return raised


def be_read_only(disk: Path) -> None:
    cluster = a_cluster(disk / "cluster")
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    failed = {name: error_of(call, cluster) for name, call in CALLS.items()}
    assert {name for name, error in failed.items() if error is None} == READING, failed
    error = failed["alter_topic"]
    assert isinstance(error, OSError), failed
    assert "Read-only file system" in str(error), failed


def be_full(disk: Path) -> None:
    cluster = a_cluster(disk / "cluster")
    fill(disk)
    failed = {name: error_of(CALLS[name], cluster) for name in ["create_topic", "serve", "produce"]}
    assert all(failed.values()), failed
    assert isinstance(failed["create_topic"], OSError), failed
    assert "No space left on device" in str(failed["create_topic"]), failed
    for name in READING:
        assert error_of(CALLS[name], cluster) is None, name


@pytest.mark.parametrize("work", [be_read_only, be_full])
def test_a_folder_that_cannot_be_written_raises_a_kbatch_error_with_the_path(  # type: ignore[no-untyped-def]
    work, tmp_path: Path
) -> None:
    on_small_disk(work, tmp_path)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_folder_that_is_gone_raises_a_kbatch_error_with_the_path(
    tmp_path: Path, name: str
) -> None:
    cluster = a_cluster(tmp_path / "cluster")
    shutil.rmtree(tmp_path / "cluster")
    assert error_of(CALLS[name], cluster) is not None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_folder_that_is_forbidden_raises_a_kbatch_error_with_the_path(
    tmp_path: Path, name: str
) -> None:
    cluster = a_cluster(tmp_path / "cluster")
    (tmp_path / "cluster").chmod(0)
    try:
        assert error_of(CALLS[name], cluster) is not None
    finally:
        (tmp_path / "cluster").chmod(0o755)


def test_the_error_is_an_os_error_too(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path / "cluster")
    (tmp_path / "cluster/topics/events.json").unlink()
    (tmp_path / "cluster/topics/events.json").mkdir()
    with pytest.raises(FileSystemError, match=r"topics/events\.json: Is a directory") as caught:
        cluster.describe("events")
    assert caught.value.errno == 21
    assert isinstance(caught.value.__cause__, IsADirectoryError)
