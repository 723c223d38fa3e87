"""A mirror into a cluster in a bucket: each unit is one entry of its ledger, with the progress reached by it.

A unit's batches are put into objects, and the entry that commits them says how far the mirror is, and how far it
was before. The ledger refuses it if another process of the mirror has gone on meanwhile. So nothing has to be done
to take a mirror over: of two processes, the second to commit ends. What a process has put and not committed is
garbage, as that of a job is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from spark_kbatch.bucket.staging import DataObjects, WriterJob, appends_of, in_entry
from spark_kbatch.clock import monotonic_s
from spark_kbatch.errors import MirrorFencedError
from spark_kbatch.ledger.commits import summary_of
from spark_kbatch.ledger.entries import LedgerCommit, MirrorStep
from spark_kbatch.mirroring import progress as mirror_progress
from spark_kbatch.mirroring.batches import MirroredBatch
from spark_kbatch.mirroring.progress import Progress
from spark_kbatch.mirroring.target import APPLICATION, EndOffsets, OwnTarget, ensure_no_other_wrote
from spark_kbatch.model import TopicPartition

if TYPE_CHECKING:
    from spark_kbatch.bucket.staging import StagedExtents
    from spark_kbatch.bucket.store import BucketStore
    from spark_kbatch.ledger.state import LedgerState

logger = logging.getLogger(__name__)


class BucketTarget(OwnTarget):
    """A cluster in a bucket as the target of a mirror.

    A `target.Target`.
    """

    def __init__(self, store: BucketStore, mirror: str) -> None:
        """Set up for the mirror of this name, which is its name in the ledger."""
        super().__init__(store, store.catalog)
        self._store, self._mirror, self._ledger = store, mirror, store.ledger
        self._committed = ""  # progress, as the ledger has it
        self._job: WriterJob | None = None
        self._data: DataObjects | None = None  # of the unit

    def take_over(self) -> Progress:
        """Return the mirror's committed progress."""
        with self._ledger.state() as state:
            self._committed = state.mirrors.get(self._mirror, "")
        return mirror_progress.unpack(self._committed.encode())

    def send(self, topic_partition: TopicPartition, batches: Iterable[MirroredBatch]) -> None:
        """Put a partition's batches into objects, for the next commit."""
        if self._data is None:
            self._job = self._ledger.begin_job()
            self._data = DataObjects(self._ledger.objects, self._job, self._ledger.rng)
        topic_id = self._topics[topic_partition.topic].topic_id
        for batch in batches:
            self._data.send(topic_id, topic_partition.partition, memoryview(batch.data))

    def commit(self, progress: Progress, ends: EndOffsets) -> None:
        """Commit the batches, if there are any, with the mirror's progress."""
        began_s = monotonic_s()
        extents: StagedExtents = {}
        placed: Mapping[str, Iterable[Any]] = {}  # appends, by topic id
        if self._data is not None and self._job is not None:
            data, self._data = self._data, None
            extents = data.finish()
            staged = appends_of(extents)
            placed = in_entry(self._ledger.objects, self._job, staged, self._ledger.rng)
        after = mirror_progress.pack(progress).decode()
        step = MirrorStep(self._mirror, self._committed, after)

        def content(state: LedgerState) -> LedgerCommit:
            if state.mirrors.get(self._mirror, "") != self._committed:
                raise MirrorFencedError(self._mirror, self.name)
            ensure_no_other_wrote(
                self.name, self._mirror, ends, lambda topic: state.ends(state.topic(topic).topic_id)
            )
            appends = {
                topic_id: tuple(state.following(topic_id, one) for one in of_topic)
                for topic_id, of_topic in placed.items()
            }
            return LedgerCommit(appends, mirror=step)

        entry = self._ledger.commit(content, by=APPLICATION)
        self._committed = after
        if entry is not None:
            names = {topic.topic_id: topic.name for topic in self._topics.values()}
            summary = summary_of(entry, names, [extents])
            logger.info("%s, in %.3f s", summary, monotonic_s() - began_s)

    def abandon(self) -> None:
        """Delete what was put since the last commit, after an error."""
        if self._data is not None:
            self._data.abandon()
            self._data = None

    def close(self) -> None:
        """Delete what was put and not committed, and close the target."""
        try:
            self.abandon()
        finally:
            self._store.close()
