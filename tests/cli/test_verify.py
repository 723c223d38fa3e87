"""`kbatch verify` finds what is wrong, says what repair would do, and changes nothing."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spark_kbatch import Cluster
from spark_kbatch.cli.main import cli
from spark_kbatch.options.topic import TopicConfig
from tests.support import builders

LOG = "00000000000000000000.log"


def verify(*words: Any, **more: Any) -> Result:
    return CliRunner().invoke(cli, ["verify", *map(str, words)], **more)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(one): one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cluster with a topic of two replicas, which have two segments, and one of a single replica."""
    path = tmp_path_factory.mktemp("verify") / "cluster"
    with Cluster(path, create=True) as cluster:
        size = len(builders.batch())
        config = TopicConfig(segment_bytes=3 * size, index_interval_bytes=1)
        cluster.create_topic("kept", replication_factor=2, config=config)
        cluster.create_topic("single", partitions=2)
        for seed in range(5):
            builders.write(cluster, {("kept", 0): [builders.batch(seed=seed)]})
        builders.write(cluster, {("single", 1): [builders.batch()] * 2})
    return path


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "cluster"
    shutil.copytree(made, copy)
    file = copy / "cluster.json"
    file.write_text(file.read_text().replace(str(made), str(copy)))
    return copy


def test_a_sound_cluster_is_sound(path: Path) -> None:
    before = contents(path)
    done = verify(path)
    assert (done.exit_code, done.stdout) == (0, "5 partitions checked: none with faults.\n"), done
    assert contents(path) == before
    rows = [
        json.loads(line) for line in verify(path, "single", "kept-0", "--json").stdout.splitlines()
    ]
    assert [(row["topic"], row["partition"], row["log_end_offset"]) for row in rows] == [
        ("kept", 0, 15), ("single", 0, 0), ("single", 1, 6),
    ]  # fmt: skip
    assert all(row["found"] == row["damaged"] == [] for row in rows)
    drawn = verify(path, env={"FORCE_COLOR": "1"})
    assert drawn.stdout.endswith("5 partitions checked: none with faults.\n")


def flip(position: int) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        data = bytearray(file.read_bytes())
        data[position] ^= 1
        file.write_bytes(data)

    return change


def other_batches(file: Path) -> None:
    """Give a replica other records, in valid batches."""
    data = file.read_bytes()
    other = builders.batch(seed=9, leader_epoch=0)
    file.write_bytes(other + data[len(other) :])


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("broker-1/single-1/" + LOG, flip(70), "single-1: damaged, offsets 0 to 6\n  corrupt record batch at position 0"),
        ("broker-1/single-1/kbatch.state", Path.unlink, "kbatch.state is lost: it is rebuilt from the batches"),
        ("broker-1/single-1/leader-epoch-checkpoint", Path.unlink, "leader-epoch-checkpoint is missing: it is rebuilt"),
        ("broker-0/kept-0/00000000000000000000.index", flip(7), "00000000000000000000.index does not match the batches: it is rebuilt"),
        ("broker-1/kept-0/" + LOG, flip(70), "replica on node 1: corrupt record batch at position 0"),
        ("broker-1/kept-0/" + LOG, other_batches, "replica on node 1: its batch at offset 0 is not that of node 0"),
        ("broker-1/kept-0/00000000000000000000.timeindex", Path.unlink, "replica on node 1: "),
        ("topics/single.json", lambda file: file.write_text("{"), "single-0: "),
        ("broker-0/__commits-0/" + LOG, flip(70), "__commits-0: damaged"),
    ],
    ids=["a batch", "a state", "epochs", "an index", "a batch of a replica", "other batches of a replica", "an index of a replica", "a topic's file", "commits"],
)  # fmt: skip
def test_a_fault_is_found(
    path: Path, file: str, change: Callable[[Path], object], said: str
) -> None:
    change(path / file)
    before = contents(path)

    done = verify(path)
    assert done.exit_code == 1
    assert said in done.stdout.replace(str(path) + "/", "")
    assert contents(path) == before


def test_a_broker_s_logs_are_checked_too(path: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    shutil.copytree(path / "broker-0" / "kept-0", logs / "kept-0")
    for left_out in ("kbatch.state", "kbatch.producers"):
        (logs / "kept-0" / left_out).unlink(missing_ok=True)
    sound = verify(logs)
    assert (sound.exit_code, sound.stdout) == (0, "1 partition checked: none with faults.\n")
    first, second = sorted((logs / "kept-0").glob("*.log"))
    (size,) = struct.unpack_from(">i", first.read_bytes(), 8)
    second.write_bytes(second.read_bytes() + b"torn")  # as a broker that was killed leaves it
    assert verify(logs).exit_code == 0

    flip(70)(first)
    flip(7)(first.with_suffix(".index"))
    done = verify(logs)
    assert done.exit_code == 1
    shown = done.stdout.replace(str(logs) + "/", "")
    assert f"kept-0/{LOG}: position 0: CRC-32C: expected 0x" in shown
    assert "no valid batch at position" in shown
    assert "kept-0: damaged, offsets 0 to 15" in shown
    flip(70)(first)  # back again
    first.write_bytes(first.read_bytes()[12 + size :] + first.read_bytes()[: 12 + size])
    assert "base offset: expected" in verify(logs, "kept").stdout
