"""Two processes append to the same replicated partitions, and are killed and started again.

Each notes what was acknowledged, as it comes. Nothing of that may be lost or stand elsewhere, no record
may be there twice, no reader may see a torn batch or a high watermark that moves back, and whoever comes
next finds no lock.

KBATCH_KILLS        how many; a few by default, 60 with `make soak`
KBATCH_KILLS_FIRST  the seed; a failure names it
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from spark_kbatch.cluster.cluster import Cluster
from spark_kbatch.model import TopicPartition
from tests.support import builders
from tests.support.builders import append_records
from tests.support.failing_disks import Disks, a_replicated_cluster, bytes_of
from tests.support.faults import FaultyFiles, run_child
from tests.support.reference import Record, encode_batch

SEED = int(os.environ.get("KBATCH_KILLS_FIRST", "0"))
PARTITIONS = [TopicPartition("events", 0), TopicPartition("events", 1)]
PATIENCE_S = 60


def produce(path: Path, name: str, notes: Path) -> None:
    """Append until killed; a line in `notes` for each record that was acknowledged."""
    cluster = Cluster(str(path), files=FaultyFiles())  # kill -9 loses nothing that the disk holds
    with notes.open("a") as file:
        for number in itertools.count():
            key = f"{name}-{number}"
            record = [Record(0, number, key.encode(), b"value" * (number % 7))]
            entries = dict.fromkeys(PARTITIONS, encode_batch(record))
            for tp, result in append_records(cluster, entries).items():
                assert result.error is None, result.error
                file.write(f"{tp.partition} {result.base_offset} {key}\n")
            file.flush()


def acknowledged(notes: Path) -> list[tuple[int, int, str]]:
    """What stands in whole lines."""
    lines = notes.read_text().split("\n")[:-1] if notes.exists() else []
    return [(int(p), int(offset), key) for p, offset, key in map(str.split, lines)]


def ensure_killing_loses_nothing(folder: Path, kills: int) -> None:
    rng = random.Random(SEED)
    cluster = a_replicated_cluster(folder, Disks(), partitions=2)
    names = (f"process-{number}" for number in itertools.count())
    running: dict[int, Path] = {}

    def start() -> None:
        name = next(names)
        notes = folder / name
        running[run_child(lambda: produce(cluster.path, name, notes))] = notes

    start()
    start()
    high_watermarks = dict.fromkeys(PARTITIONS, 0)
    for _ in range(kills):
        victim = rng.choice(sorted(running))
        notes = running.pop(victim)
        wanted = 2 * rng.randrange(1, 12)
        deadline = time.monotonic() + PATIENCE_S
        while len(acknowledged(notes)) < wanted:
            assert time.monotonic() < deadline, "an appender does not get on"
            for tp, edges in cluster._reader.edges(PARTITIONS).items():
                assert edges.high_watermark >= high_watermarks[tp]
                high_watermarks[tp] = edges.high_watermark
            time.sleep(0.002)
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        start()
        found = builders.contents(cluster)
        for tp in PARTITIONS:
            assert [record.offset for record in found[tp]] == list(range(len(found[tp])))
    for child in running:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    assert cluster.replicate(["events"]) == []
    last = append_records(cluster, dict.fromkeys(PARTITIONS, builders.batch(n=1)))
    assert [result.error for result in last.values()] == [None, None]
    found = builders.contents(cluster)
    for tp in PARTITIONS:
        assert len({bytes_of(cluster, node, tp) for node in range(3)}) == 1
        assert Counter(record.key for record in found[tp]).most_common(1)[0][1] == 1
    for notes in folder.glob("process-*"):
        for partition, offset, key in acknowledged(notes):
            assert found[PARTITIONS[partition]][offset].key == key.encode(), (notes.name, key)


def run(folder: Path, kills: int) -> None:
    try:
        ensure_killing_loses_nothing(folder, int(os.environ.get("KBATCH_KILLS", kills)))
    except BaseException as error:
        error.add_note(f"KBATCH_KILLS_FIRST={SEED}")
        raise


def test_processes_that_are_killed_lose_nothing_acknowledged(tmp_path: Path) -> None:
    run(tmp_path, 4)


@pytest.mark.slow
def test_processes_that_are_killed_often_lose_nothing_acknowledged(tmp_path: Path) -> None:
    run(tmp_path, 60)
