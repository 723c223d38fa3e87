"""The contents of a cluster's bucket: the length of its ledger, what it refers to, and what it does not.

Everything is listed once, so it takes a request for each thousand objects.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from spark_kbatch.bucket import names
from spark_kbatch.bucket.garbage import References
from spark_kbatch.bucket.merging import is_small
from spark_kbatch.bucket.placement import Placements
from spark_kbatch.bucket.shared_ledger import SharedLedger
from spark_kbatch.model import LONG_MAX, TopicPartition


class Stored(NamedTuple):
    """Some objects."""

    objects: int = 0
    size_in_bytes: int = 0


class BucketDescription(NamedTuple):
    """A cluster in a bucket as it is at one moment."""

    cluster_id: str
    entries: int  # of the ledger
    last_entry_ms: int
    checkpoint: int  # the entry of the newest one; -1 for none
    horizon: int  # what began before that entry commits no more
    topics: int
    partitions: int
    referenced: Stored  # data that readers see
    waiting: Stored  # data that was replaced, deleted or never committed, or is being written
    ledger: Stored  # entries, checkpoints and all else
    most_small: TopicPartition | None  # the partition with the most small pieces
    small_extents: int  # that it has


def describe(ledger: SharedLedger) -> BucketDescription:
    """Describe a cluster; raises as `Ledger` and `Objects.list`."""
    placements = Placements(ledger.objects)
    references, small = References(), Counter[TopicPartition]()
    with ledger.state() as state:
        for topic in [*state.topics.values()]:
            for partition, changes in ledger.changes(topic.topic_id).items():
                placements.load_indexes(changes)
                for change in changes:
                    references.add(change.stretch)
                small[TopicPartition(topic.name, partition)] = sum(
                    map(is_small, placements.of(changes, 0, LONG_MAX))
                )
        partitions = sum(len(topic.partitions) for topic in state.topics.values())
        referenced, waiting, others = Counter[str](), Counter[str](), Counter[str]()
        for one in ledger.objects.list(""):
            found = others
            if one.name.startswith((names.DATA, names.SEGMENTS)):
                found = referenced if one.name in references else waiting
            found.update(objects=1, size_in_bytes=one.size_in_bytes)
        most = max(small, key=small.__getitem__, default=None)
        return BucketDescription(
            ledger.cluster_id,
            state.number + 1,
            state.time_ms,
            state.checkpoint,
            state.horizon,
            len(state.topics),
            partitions,
            Stored(**referenced),
            Stored(**waiting),
            Stored(**others),
            most,
            small[most] if most else 0,
        )
