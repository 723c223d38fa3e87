"""Mirrors for tests: sources, targets and runs of one over the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_kbatch import Cluster
from spark_kbatch.mirroring.copying import Mirror, MirrorProgress, Settings
from spark_kbatch.mirroring.into_path import PathTarget
from spark_kbatch.mirroring.target import Target
from spark_kbatch.model import TopicPartition
from spark_kbatch.opening.readers import open_for_reading, open_reader
from tests.support import builders
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
    **settings: Any,
) -> MirrorProgress:
    """Mirror topics of what lies at a path."""
    if isinstance(target, Cluster):
        target = PathTarget(target._parts, name)
    mirror = Mirror(
        open_reader(source).source, target, Settings(name, str(source), **settings), on_progress
    )
    return mirror.run(topics)


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
