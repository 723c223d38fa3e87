"""A disk that is full: room is made by deleting topics and records, and nothing else is lost."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.errors import RequestTimedOutError
from tests.support.small_disk import fill, kbatch, on_small_disk, room

MIB = 2**20
SETTINGS = {"segment.bytes": MIB, "retention.bytes": 100 * MIB}


def values(cluster: Cluster, topic: str) -> list[bytes]:
    return cluster.read(topic).read_all().column("value").to_pylist()


def a_full_cluster(disk: Path) -> tuple[Cluster, dict[str, list[bytes]]]:
    """Return a cluster whose topics a, b and c have two segments each, on a disk without room, and its values."""
    cluster = spark_kbatch.open(disk / "cluster", create=True)
    written = {name: [os.urandom(100_000) for _ in range(12)] for name in "abc"}
    for name, some in written.items():
        cluster.create_topic(name, config=SETTINGS)
        with cluster.producer() as producer:
            for value in some:
                producer.send(name, value=value).result()
    fill(disk)
    # What is written now does not fit, and leaves a part of a batch.
    options = {"delivery_timeout_ms": 1000, "request_timeout_ms": 500, "linger_ms": 0}
    with cluster.producer(**options) as producer:
        failed = producer.send("b", value=bytes(100_000))
        with pytest.raises(RequestTimedOutError, match="No space left"):
            failed.result()
    assert room(disk) < 100_000
    return cluster, written


def ensure_all_goes_on(cluster: Cluster, written: dict[str, list[bytes]]) -> None:
    """Check that the topics have these records, and take others, and that new topics can be made."""
    with cluster.producer() as producer:
        for name, some in written.items():
            assert values(cluster, name) == some
            producer.send(name, value="more").result()
            assert values(cluster, name) == [*some, b"more"]
    cluster.create_topic("new")
    assert not [report for report in cluster.verify() if report.found or report.damaged]


@contextlib.contextmanager
def others_taking_all_room(disk: Path) -> Iterator[None]:
    """Let another writer take each block that becomes free, for as long as the block lasts."""
    is_over = threading.Event()

    def take() -> None:
        with (disk / "hog").open("wb", buffering=0) as hog:
            while not is_over.is_set():
                with contextlib.suppress(OSError):
                    hog.write(bytes(4096))

    thread = threading.Thread(target=take)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        (disk / "hog").unlink()


def delete_a_topic(disk: Path) -> None:
    cluster, written = a_full_cluster(disk)
    cluster.delete_topic("b")
    assert room(disk) > MIB
    del written["b"]
    ensure_all_goes_on(cluster, written)


def delete_all_topics_while_others_write(disk: Path) -> None:
    cluster, written = a_full_cluster(disk)
    with others_taking_all_room(disk):
        for name in "bc":
            cluster.alter_topic(name, {"retention.ms": 1})
            cluster.delete_topic(name)
            cluster.alter_topic("a", {"retention.ms": 2**40 + ord(name)})
    assert cluster.topic_names() == ["a"]
    ensure_all_goes_on(cluster, {"a": written["a"]})


def delete_records(disk: Path) -> None:
    cluster, written = a_full_cluster(disk)
    cluster.delete_records({("a", 0): 10})  # its first segment
    assert room(disk) > MIB * 9 // 10
    fill(disk)
    cluster.delete_records({("b", 0): -1})
    assert room(disk) > MIB
    ensure_all_goes_on(cluster, {"a": written["a"][10:], "b": [], "c": written["c"]})


def retain_less(disk: Path) -> None:
    cluster, written = a_full_cluster(disk)
    cluster.alter_topic("a", {"retention.bytes": 100_000})
    cluster.collect_garbage()
    assert room(disk) > MIB * 9 // 10
    ensure_all_goes_on(cluster, written | {"a": written["a"][10:]})


def use_commands(disk: Path) -> None:
    cluster, written = a_full_cluster(disk)
    path = disk / "cluster"
    done = kbatch("delete-topic", path, "b", "--yes")
    assert done.stdout.startswith("topic b deleted: 1 partition, 12 offsets, "), done
    assert room(disk) > MIB
    fill(disk)
    done = kbatch("delete-records", path, "a", "0:11", "--yes")
    assert done.stdout == "a-0 starts at offset 11: 11 offsets deleted\n", done
    assert room(disk) > MIB * 9 // 10
    fill(disk)
    done = kbatch("alter-topic", path, "c", "--config", "retention.bytes=100000")
    assert (done.returncode, done.stderr) == (0, ""), done
    done = kbatch("gc", path)
    assert done.stdout.startswith("c-0: 1 segment of "), done
    assert room(disk) > MIB * 9 // 10
    ensure_all_goes_on(cluster, {"a": written["a"][11:], "c": written["c"][10:]})


def ask_a_server(disk: Path) -> None:
    cluster, written = a_full_cluster(disk)
    (disk / "filler").unlink()
    with cluster.serve() as server, spark_kbatch.connect(server.bootstrap_servers) as remote:
        fill(disk)
        remote.delete_topic("b")
        assert room(disk) > MIB
        fill(disk)
        remote.alter_topic("a", {"retention.bytes": MIB})
        remote.delete_records({("c", 0): 10})
        assert room(disk) > MIB * 9 // 10
    assert cluster.topic("a").config.retention_bytes == MIB
    ensure_all_goes_on(cluster, {"a": written["a"], "c": written["c"][10:]})


def keep_files_while_there_is_room(disk: Path) -> None:
    cluster = spark_kbatch.open(disk / "cluster", create=True)
    cluster.create_topic("a", config=SETTINGS)
    with cluster.producer() as producer:
        for _ in range(12):
            producer.send("a", value=os.urandom(100_000)).result()
    fill(disk, leaving=20 * MIB)
    cluster.delete_records({("a", 0): 10})
    assert list((disk / "cluster/broker-0/a-0").glob("*.log.deleted"))
    cluster.delete_topic("a")
    assert list((disk / "cluster/broker-0").glob("a-0.*-delete"))
    fill(disk)
    garbage = cluster.collect_garbage()
    assert [one.topic for one in garbage.deleted_topics] == ["a"]
    assert room(disk) > MIB


def make_the_spare_again(disk: Path) -> None:
    cluster = spark_kbatch.open(disk / "cluster", create=True)
    cluster.create_topic("a")
    spare = disk / "cluster" / "spare"
    spare.unlink()
    cluster.alter_topic("a", {"retention.ms": 1})
    assert spare.stat().st_size == 2**16
    filler = fill(disk)
    for ms in range(2, 6):
        cluster.alter_topic("a", {"retention.ms": ms})
        assert Cluster(disk / "cluster").topic("a").config.retention_ms == ms
    assert 0 < spare.stat().st_size < 2**12
    filler.unlink()
    cluster.alter_topic("a", {"retention.ms": 6})
    assert spare.stat().st_size == 2**16


@pytest.mark.parametrize(
    "work",
    [
        delete_a_topic,
        pytest.param(delete_all_topics_while_others_write, marks=pytest.mark.slow),
        pytest.param(delete_records, marks=pytest.mark.slow),
        pytest.param(retain_less, marks=pytest.mark.slow),
        use_commands,
        ask_a_server,
    ],
)
def test_room_is_made_on_a_full_disk_and_the_rest_goes_on(work, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    on_small_disk(work, tmp_path)


def test_deleted_files_wait_for_readers_while_there_is_room(tmp_path: Path) -> None:
    on_small_disk(keep_files_while_there_is_room, tmp_path, size="32m")


def test_the_spare_file_of_a_full_disk_is_used_again_and_made_again(tmp_path: Path) -> None:
    on_small_disk(make_the_spare_again, tmp_path)
