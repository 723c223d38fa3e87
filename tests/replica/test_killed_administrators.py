"""A process deletes, creates and grows a topic in a loop, others append; they are killed and started again.

What was acknowledged in a topic that stays is there, once. A process that looks at the topic that comes and goes
finds all of it or that it does not exist. The next process finds no lock and continues what was started,
and a day later nothing is left of what was deleted.

A few kills by default, 12 with `make soak`; `tests.support.draws` has more, and how to repeat a run.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.errors import UnknownTopicOrPartitionError
from spark_kbatch.log.checkpoints import read_partition_metadata
from spark_kbatch.model import AppendResult, TopicPartition, partition_of
from spark_kbatch.replica import administration
from tests.support import builders
from tests.support.builders import append_records
from tests.support.faults import FaultyFiles
from tests.support.killed_children import PATIENCE_S, Children, kills, lines
from tests.support.reference import Record, encode_batch
from tests.support.soundness import ensure_sound
from tests.support.store import append_records as append_by
from tests.support.store import store_of

OTHERS, EVENTS = TopicPartition("others", 0), TopicPartition("events", 0)
DAY_MS = 86_400_000


def administrate(path: Path, notes: Path) -> None:
    """Change the topic until killed; write a line for each change."""
    cluster = Cluster(str(path), files=FaultyFiles())  # kill -9 loses nothing that the disk holds
    rng = random.Random(notes.name)
    with notes.open("a") as file:
        while True:
            topic = store_of(cluster).metadata.topics.find("events")
            if topic is None:
                done = cluster.create_topic("events", partitions=2)
            elif topic.partitions < 5 and rng.random() < 0.5:
                done = cluster.create_partitions("events", topic.partitions + 1)
            else:
                done = cluster.delete_topic("events")
            file.write(f"{done.topic_id}\n")
            file.flush()


def produce(path: Path, notes: Path) -> None:
    """Append to both topics until killed; write a line for each acknowledged record of the one that stays."""
    cluster = Cluster(str(path), files=FaultyFiles())
    with notes.open("a") as file:
        for number in itertools.count():
            key = f"{notes.name}-{number}".encode()
            data = encode_batch([Record(0, number, key, b"value")])
            found: dict[TopicPartition, AppendResult] = {}
            append_by(
                store_of(cluster),
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


def look(cluster: Cluster) -> None:
    """Find all of the topic, or that it does not exist."""
    with contextlib.suppress(UnknownTopicOrPartitionError):
        rows = cluster.describe(["events"])
        assert [row.topic_partition.partition for row in rows] == list(range(len(rows)))
    assert {*cluster.topic_names()} - {"events"} == {"others"}


def ensure_killing_loses_nothing(folder: Path, count: int) -> None:
    cluster = builders.a_cluster(folder, topics={"others": 1})
    children = Children(folder, cluster.path)
    for work in (administrate, produce, produce):
        children.start(work)
    for _ in range(count):
        running = children.running
        twice = [child for child, (work, _) in running.items() if work is administrate]
        children.kill_and_restart(children.rng.choice([*running, *twice]), lambda: look(cluster))
        look(cluster)
    children.kill_all()

    look(cluster)
    topic = administration.create_topic(
        store_of(cluster).manager, "events", partitions=2, config=cluster.topic("others").config
    )
    for tp in [OTHERS, *cluster.partitions("events")]:
        assert append_records(cluster, {tp: builders.batch(n=1)})[tp].error is None
        ensure_sound(store_of(cluster).manager.log(tp))
    found = builders.contents(cluster)
    assert [record.offset for record in found[OTHERS]] == list(range(len(found[OTHERS])))
    for notes in folder.glob("produce-*"):
        for offset, key in map(str.split, lines(notes)):
            assert found[OTHERS][int(offset)].key == key.encode(), notes.name

    now_ms = store_of(cluster).manager.now_ms
    store_of(cluster).manager.now_ms = lambda: now_ms() + DAY_MS
    cluster.collect_garbage()
    assert list((cluster.path / "deleted").iterdir()) == []
    for path in (cluster.path / "broker-0").iterdir():
        assert not path.name.endswith("-delete")
        held = partition_of(path.name)
        if held is not None and held.topic == "events" and held.partition < topic.partitions:
            assert read_partition_metadata(store_of(cluster).files, path) == topic.topic_id


def test_processes_that_change_topics_and_are_killed_leave_nothing_half(tmp_path: Path) -> None:
    with kills(5) as count:
        ensure_killing_loses_nothing(tmp_path, count)


@pytest.mark.slow
def test_processes_that_change_topics_and_are_killed_often_leave_nothing_half(
    tmp_path: Path,
) -> None:
    with kills(12) as count:
        ensure_killing_loses_nothing(tmp_path, count)
