"""Two processes append to the same replicated partitions, and are killed and started again.

Each writes down what was acknowledged. Nothing of that may be lost or have moved, no record may be there
twice, no reader may see a torn batch or a high watermark that moves back, and no lock may be left behind.

A few kills by default, 12 with `make soak`; `tests.support.draws` has more, and how to repeat a run.
"""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.model import TopicPartition
from tests.support import builders
from tests.support.builders import append_records
from tests.support.failing_disks import Disks, a_replicated_cluster, bytes_of
from tests.support.faults import FaultyFiles
from tests.support.killed_children import Children, kills, lines
from tests.support.reference import Record, encode_batch
from tests.support.store import reader_of

PARTITIONS = [TopicPartition("events", 0), TopicPartition("events", 1)]


def produce(path: Path, notes: Path) -> None:
    """Append until killed; write a line for each record that was acknowledged."""
    cluster = Cluster(str(path), files=FaultyFiles())  # kill -9 loses nothing that the disk holds
    with notes.open("a") as file:
        for number in itertools.count():
            key = f"{notes.name}-{number}"
            record = [Record(0, number, key.encode(), b"value" * (number % 7))]
            entries = dict.fromkeys(PARTITIONS, encode_batch(record))
            for tp, result in append_records(cluster, entries, timeout_ms=60_000).items():
                assert result.error is None, result.error
                file.write(f"{tp.partition} {result.base_offset} {key}\n")
            file.flush()


def ensure_killing_loses_nothing(folder: Path, count: int) -> None:
    cluster = a_replicated_cluster(folder, Disks(), partitions=2)
    children = Children(folder, cluster.path)
    high_watermarks = dict.fromkeys(PARTITIONS, 0)

    def look() -> None:
        for tp, offsets in reader_of(cluster).edges(PARTITIONS).items():
            assert offsets.high_watermark >= high_watermarks[tp]
            high_watermarks[tp] = offsets.high_watermark

    children.start(produce)
    children.start(produce)
    for _ in range(count):
        children.kill_and_restart(children.rng.choice(sorted(children.running)), look)
        found = builders.contents(cluster)
        for tp in PARTITIONS:
            assert [record.offset for record in found[tp]] == list(range(len(found[tp])))
    children.kill_all()

    assert cluster.replicate(["events"]) == []
    last = append_records(cluster, dict.fromkeys(PARTITIONS, builders.batch(n=1)))
    assert [result.error for result in last.values()] == [None, None]
    found = builders.contents(cluster)
    for tp in PARTITIONS:
        assert len({bytes_of(cluster, node, tp) for node in range(3)}) == 1
        assert Counter(record.key for record in found[tp]).most_common(1)[0][1] == 1
    for notes in folder.glob("produce-*"):
        for number, offset, key in map(str.split, lines(notes)):
            assert found[PARTITIONS[int(number)]][int(offset)].key == key.encode()


def test_processes_that_are_killed_lose_nothing_acknowledged(tmp_path: Path) -> None:
    with kills(4) as count:
        ensure_killing_loses_nothing(tmp_path, count)


@pytest.mark.slow
def test_processes_that_are_killed_often_lose_nothing_acknowledged(tmp_path: Path) -> None:
    with kills(12) as count:
        ensure_killing_loses_nothing(tmp_path, count)
