"""A process deletes, creates and grows a topic in a loop, others append; they are killed and started again.

What was acknowledged in a topic that stays is there, once. Whoever looks at the one that comes and goes
finds all of it or that it does not exist. Whoever comes next finds no lock, goes on with what was begun,
and a day later nothing is left of what was deleted.

KBATCH_KILLS        how many; a few by default, 60 with `make soak`
KBATCH_KILLS_FIRST  the seed; a failure names it
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_kbatch.cluster.cluster import Cluster
from spark_kbatch.errors import UnknownTopicOrPartitionError
from spark_kbatch.log.checkpoints import read_partition_metadata
from spark_kbatch.model import AppendResult, TopicPartition
from spark_kbatch.replica import administration
from spark_kbatch.replica.paths import partition_of
from tests.support import builders
from tests.support.builders import append_records
from tests.support.faults import FaultyFiles, run_child
from tests.support.reference import Record, encode_batch
from tests.support.soundness import ensure_sound

SEED = int(os.environ.get("KBATCH_KILLS_FIRST", "0"))
OTHERS, EVENTS = TopicPartition("others", 0), TopicPartition("events", 0)
DAY_MS = 86_400_000
PATIENCE_S = 60


def administrate(path: Path, notes: Path) -> None:
    """Change the topic until killed; a line for each change."""
    cluster = Cluster(str(path), files=FaultyFiles())  # kill -9 loses nothing that the disk holds
    rng = random.Random(notes.name)
    with notes.open("a") as file:
        while True:
            topic = cluster._parts.metadata.topics.find("events")
            if topic is None:
                done = cluster.create_topic("events", partitions=2)
            elif topic.partitions < 5 and rng.random() < 0.5:
                done = cluster.create_partitions("events", topic.partitions + 1)
            else:
                done = cluster.delete_topic("events")
            file.write(f"{done.topic_id}\n")
            file.flush()


def produce(path: Path, notes: Path) -> None:
    """Append to both topics until killed; a line for each record that was acknowledged in one."""
    cluster = Cluster(str(path), files=FaultyFiles())
    with notes.open("a") as file:
        for number in itertools.count():
            key = f"{notes.name}-{number}".encode()
            data = encode_batch([Record(0, number, key, b"value")])
            found: dict[TopicPartition, AppendResult] = {}
            cluster._parts.append_records(
                timeout_ms=PATIENCE_S * 1000,
                required_acks=-1,
                entries_per_partition=dict.fromkeys((EVENTS, OTHERS), data),
                on_complete=found.update,
                flush=False,
            )
            error = found[EVENTS].error
            assert error is None or isinstance(error, UnknownTopicOrPartitionError), error
            assert found[OTHERS].error is None
            file.write(f"{found[OTHERS].base_offset} {key.decode()}\n")
            file.flush()


def lines(notes: Path) -> list[str]:
    """Those that are whole."""
    return notes.read_text().split("\n")[:-1] if notes.exists() else []


def look(cluster: Cluster) -> None:
    """Find all of the topic, or that it does not exist."""
    with contextlib.suppress(UnknownTopicOrPartitionError):
        rows = cluster.describe(["events"])
        assert [row.topic_partition.partition for row in rows] == list(range(len(rows)))
    assert {*cluster.topic_names()} - {"events"} == {"others"}


def ensure_killing_loses_nothing(folder: Path, kills: int) -> None:
    rng = random.Random(SEED)
    cluster = builders.a_cluster(folder, topics={"others": 1})
    names = itertools.count()
    running: dict[int, tuple[Callable[[Path, Path], None], Path]] = {}

    def start(work: Callable[[Path, Path], None]) -> None:
        notes = folder / f"{work.__name__}-{next(names)}"
        running[run_child(lambda: work(cluster.path, notes))] = work, notes

    for work in (administrate, produce, produce):
        start(work)
    for _ in range(kills):
        victim = rng.choice([*running, *(c for c in running if running[c][0] is administrate)])
        work, notes = running.pop(victim)
        wanted, deadline = rng.randrange(1, 12), time.monotonic() + PATIENCE_S
        while len(lines(notes)) < wanted:
            assert time.monotonic() < deadline, f"{notes.name} does not get on"
            look(cluster)
            time.sleep(rng.random() * 0.01)
        os.kill(victim, signal.SIGKILL)
        assert os.waitpid(victim, 0)[1] == signal.SIGKILL, "it ended by itself"
        start(work)
        look(cluster)
    for child in running:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    look(cluster)
    topic = administration.create_topic(
        cluster._parts.manager, "events", partitions=2, config=cluster.topic("others").config
    )
    for tp in [OTHERS, *cluster.partitions("events")]:
        assert append_records(cluster, {tp: builders.batch(n=1)})[tp].error is None
        ensure_sound(cluster._parts.manager.log(tp))
    found = builders.contents(cluster)
    assert [record.offset for record in found[OTHERS]] == list(range(len(found[OTHERS])))
    for notes in folder.glob("produce-*"):
        for offset, key in map(str.split, lines(notes)):
            assert found[OTHERS][int(offset)].key == key.encode(), notes.name

    now_ms = cluster._parts.manager.now_ms
    cluster._parts.manager.now_ms = lambda: now_ms() + DAY_MS
    cluster.collect_garbage()
    assert list((cluster.path / "deleted").iterdir()) == []
    for path in (cluster.path / "broker-0").iterdir():
        assert not path.name.endswith("-delete")
        held = partition_of(path.name)
        if held is not None and held.topic == "events" and held.partition < topic.partitions:
            assert read_partition_metadata(cluster._parts.files, path) == topic.topic_id


def run(folder: Path, kills: int) -> None:
    try:
        ensure_killing_loses_nothing(folder, int(os.environ.get("KBATCH_KILLS", kills)))
    except BaseException as error:
        error.add_note(f"KBATCH_KILLS_FIRST={SEED}")
        raise


def test_processes_that_change_topics_and_are_killed_leave_nothing_half(tmp_path: Path) -> None:
    run(tmp_path, 5)


@pytest.mark.slow
def test_processes_that_change_topics_and_are_killed_often_leave_nothing_half(
    tmp_path: Path,
) -> None:
    run(tmp_path, 60)
