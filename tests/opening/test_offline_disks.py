"""What users are told of partitions that have their only replica on a disk that is away."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spark_kbatch import Cluster
from spark_kbatch.cli.main import cli
from spark_kbatch.errors import KafkaStorageError, RequestTimedOutError
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import TopicConfig
from tests.support.waiting import until

LOST = TopicPartition("t", 1)
OFFLINE = r"node 1, log dir {disk}/broker-1, is offline: \[Errno 2\] No such file or directory"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A cluster on three disks: partition N of `t` lies on disk N alone, and `safe` on all; disk 1 is away."""
    disks = [tmp_path / f"disk-{n}" for n in range(3)]
    with Cluster(tmp_path / "cluster", create=True, log_dirs=disks) as cluster:
        cluster.create_topic("t", 3, config=TopicConfig(segment_bytes=1000))
        cluster.create_topic("safe", 1, replication_factor=3)
        with cluster.producer(flush=False) as producer:
            for number in range(6):
                producer.send("t", f"value {number}".ljust(600), partition=number % 3).result()
            producer.send("safe", "value").result()
        cluster.alter_topic("t", {"retention.bytes": 1})
    disks[1].rename(tmp_path / "away")
    return tmp_path / "cluster"


def told(path: Path) -> str:
    """Return a pattern for what is said of the partition that cannot be used."""
    return f"t-1 cannot be used: its only replica on {OFFLINE.format(disk=path.parent / 'disk-1')}"


def kbatch(command: str, path: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, [command, str(path), *words])


# Where partitions are.


def test_topics_show_the_node_of_each_partition_also_where_its_disk_is_away(path: Path) -> None:
    done = kbatch("topics", path, "-v")
    assert done.exit_code == 1
    heading, *rows = (line.split("\t") for line in done.stdout.splitlines())
    shown = [dict(zip(heading, row, strict=True)) for row in rows]
    assert [(row["topic"], row["leader"], row["isr"], row["lag"]) for row in shown] == [
        ("safe", "0", "0, 2", "0"),
        ("t", "0", "0", "0"),
        ("t", "1", "-", "-"),
        ("t", "2", "2", "0"),
    ]
    assert re.fullmatch(f"kbatch: t-1 cannot be read: {told(path)}.*", done.stderr.strip())
    lost = json.loads(kbatch("topics", path, "t", "--json").stdout)["partitions"][1]
    assert (lost["leader"], lost["isr"], lost["lag"], lost["offline"]) == (1, [], None, [1])


# Writes.


def test_a_record_for_a_disk_that_is_away_waits_for_it(path: Path) -> None:
    cluster = Cluster(path)
    with cluster.producer(flush=False) as producer:
        future = producer.send("t", "late", partition=1)
        other = producer.send("t", "soon", partition=0)
        assert other.result(10).offset == 2
        until(lambda: producer.why_waiting() is not None, "it says why it waits")
        (path.parent / "away").rename(path.parent / "disk-1")
        assert future.result(20).offset == 2
    assert cluster.read("t", partitions=[1]).read_all()["value"].to_pylist()[-1] == b"late"


def test_the_error_of_a_record_for_a_disk_that_stays_away_names_it(path: Path) -> None:
    with Cluster(path).producer(
        flush=False, delivery_timeout_ms=500, request_timeout_ms=100, linger_ms=0
    ) as producer:
        future = producer.send("t", "late", partition=1)
        with pytest.raises(RequestTimedOutError, match=f"the last attempt failed: {told(path)}"):
            future.result(10)
        cause = future.exception().__cause__
    assert isinstance(cause, KafkaStorageError)
    assert cause.is_transient


# Reads.


@pytest.mark.parametrize("words", [[], ["--follow"]], ids=["to the end", "following"])
def test_records_of_other_partitions_are_printed_before_the_one_that_cannot_be_read(
    path: Path, words: list[str]
) -> None:
    done = kbatch("consume", path, "t", "--format", r"%p:%o\n", *words)
    assert done.stdout.split() == ["0:0", "0:1", "2:0", "2:1"]
    (said,) = done.stderr.splitlines()
    assert said.startswith("kbatch: t-1 cannot be read: ")
    assert str(path.parent / "disk-1/broker-1") in said
    assert done.exit_code == 1
    assert kbatch("consume", path, "t", "-p", "0").exit_code == 0


def test_a_read_in_python_names_the_partition_that_cannot_be_read(path: Path) -> None:
    with pytest.raises(KafkaStorageError, match="t-1") as error:
        Cluster(path).read("t")
    assert str(path.parent / "disk-1/broker-1") in str(error.value)


# Upkeep.


@pytest.mark.parametrize("words", [[], ["--dry-run"]], ids=["done", "shown"])
def test_garbage_is_collected_where_disks_are_there_and_the_rest_is_named(
    path: Path, words: list[str]
) -> None:
    done = kbatch("gc", path, *words)
    assert done.exit_code == 1
    outcome = "would be deleted" if words else "deleted"
    for number in (0, 2):
        assert f"t-{number}: 1 segment of" in done.stdout
        assert outcome in done.stdout
    assert done.stderr.startswith("kbatch: t-1 is skipped: ")
    garbage = Cluster(path).collect_garbage(dry_run=bool(words))
    assert list(garbage.skipped) == [LOST]
    (said,) = garbage.skipped.values()
    assert str(path.parent / "disk-1/broker-1") in said
    rows = [json.loads(line) for line in kbatch("gc", path, "--json").stdout.splitlines()]
    assert [row["skipped"] for row in rows if "skipped" in row] == ["t-1"]


def test_a_check_tells_replicas_whose_disk_is_away_from_damage(path: Path) -> None:
    offline = rf"replica on {OFFLINE.format(disk=path.parent / 'disk-1')}"
    done = kbatch("verify", path)
    assert done.exit_code == 1
    assert re.search(f"^t-1: a replica is offline, offsets unknown\n  its {offline}", done.stdout)
    assert re.search(
        f"\nsafe-0: a replica is offline, offsets 0 to 1\n  its {offline}", done.stdout
    )
    assert "damaged" not in done.stdout
    assert done.stdout.endswith(
        "checked: none with faults, 4 partitions with an offline replica.\n"
    )
    rows = [json.loads(line) for line in kbatch("verify", path, "--json").stdout.splitlines()]
    assert {row["topic"]: len(row["offline"]) for row in rows if row["offline"]} == {
        "t": 1, "safe": 1, "__commits": 1, "__transaction_state": 1
    }  # fmt: skip

    (log,) = (path.parent / "disk-2/broker-2/t-2").glob("*1.log")
    log.write_bytes(log.read_bytes()[:-1] + b"?")
    done = kbatch("verify", path, "t")
    assert "t-2: damaged" in done.stdout
    assert done.stdout.endswith(
        "checked: 1 partition with faults, 1 partition with an offline replica.\n"
    )
    done = kbatch("repair", path, "t-0", "t-1")
    assert done.exit_code == 1
    assert "t-0: ok, offsets 0 to 2" in done.stdout
    assert "t-1: a replica is offline" in done.stdout
