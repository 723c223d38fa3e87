"""Mirrors for tests: sources, targets and runs of one over the other."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_kbatch import Cluster
from spark_kbatch.mirroring.copying import Mirror, MirrorProgress, Settings
from spark_kbatch.mirroring.into_path import PathTarget
from spark_kbatch.mirroring.target import Target
from spark_kbatch.model import TopicPartition
from spark_kbatch.opening.stores import open_for_reading, open_reader
from spark_kbatch.options.mirror import FAIL_ON_DATA_LOSS, UNIT_BYTES, UNIT_SECONDS
from tests.support import builders, reference
from tests.support.broker_dirs import a_batch, a_partition
from tests.support.log_histories import data_batch, marker_batch
from tests.support.reference import Record

MIRROR = "a-mirror"
Contents = dict[TopicPartition, list[Record]]


def mirrored(
    source: Path | str,
    target: Cluster | Target,
    topics: Sequence[str] = ("events",),
    *,
    name: str = MIRROR,
    on_progress: Callable[[MirrorProgress], object] = lambda _progress: None,
    **given: Any,
) -> MirrorProgress:
    """Mirror topics of what lies at a path."""
    if isinstance(target, Cluster):
        target = PathTarget(target._store, name)
    mirror = Mirror(
        open_reader(source).source, target, mirror_settings(name, source, **given), on_progress
    )
    return mirror.run(topics)


def mirror_settings(name: str, source: Path | str, **given: Any) -> Settings:
    """Return the settings of a mirror: those that are given, and defaults."""
    defaults = {
        "follow": False,
        "unit_bytes": UNIT_BYTES,
        "unit_ms": int(UNIT_SECONDS * 1000),
        "fail_on_data_loss": FAIL_ON_DATA_LOSS,
    }
    return Settings(name, str(source), **(defaults | given))


def write(cluster: Cluster) -> None:
    """Append two batches to each partition."""
    for seed in range(2):
        for partition in range(2):
            batch = builders.batch(n=3 + partition, seed=seed, compression="zstd")
            builders.append_records(cluster, {("events", partition): batch})


def with_gaps() -> list[bytes]:
    """Return a broker's batches from offset 5 to 20, with records at 8, 9, 12, 14, 17 and 20, the last one old."""
    return [
        data_batch(base_offset=5, n=3, producer_id=1, transactional=True),
        data_batch(base_offset=8, n=2, producer_id=2, transactional=True),
        marker_batch(base_offset=10, producer_id=1, abort=True),
        marker_batch(base_offset=11, producer_id=2, abort=False),
        a_batch(12, 14, 17),
        reference.encode_messages([reference.Record(20, 7, b"k", b"v")], magic=1, codec=1),
    ]


def ensure_goes_on_after_aborted_records(broker: Path, run: Callable[[], MirrorProgress]) -> None:
    """Check that a mirror goes on where its source deleted aborted records that an earlier run has read.

    Args:
        broker: a log dir to be made, with topic "events".
        run: mirrors it.
    """
    directory = broker / "events-0"
    held = [data_batch(base_offset=0, n=2)]
    a_partition(directory, {0: held}, index=False)
    assert run().records_count == 2

    held += [
        data_batch(base_offset=2, n=3, producer_id=1, transactional=True),
        marker_batch(base_offset=5, producer_id=1, abort=True),
    ]
    a_partition(directory, {0: held}, index=False)
    done = run()
    assert (done.records_count, done.units, done.offsets_left) == (0, 0, 0)

    shutil.rmtree(directory)
    a_partition(directory, {6: [data_batch(base_offset=6)]}, index=False)
    assert run().records_count == 1


def as_mirrored(path: Path | str) -> Contents:
    """Return what an empty target gets of what lies at a path: the records with offsets from 0 on."""
    with open_for_reading(path) as found:
        if isinstance(found, Cluster):
            return with_own_offsets(builders.contents(found))
        return with_own_offsets(
            {
                tp: builders.read_records(found, topic.name, partitions=[tp.partition])
                for topic in found.topics()
                for tp in found.partitions(topic.name)
            }
        )


def with_own_offsets(contents: Mapping[TopicPartition, Sequence[Record]]) -> Contents:
    """Return the records with the offsets that they have in a log that starts with them."""
    return {
        tp: [record._replace(offset=at) for at, record in enumerate(records)]
        for tp, records in contents.items()
    }
