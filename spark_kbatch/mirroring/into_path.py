"""A mirror into an embedded cluster, whose commits publish batches together with the mirror's progress.

A unit's batches are staged and committed like those of a Spark job with one task: after a crash all of
it is there or nothing. The commit's record in `__transaction_state` has the source's offsets; it stays when
that topic is rewritten, and transactional.id.expiration.ms does not drop it. The mirror's name is the
transactional id, and units are numbered: of two processes that mirror under one name, the second to commit
a number finds that it is taken.

All staged files of one mirror lie in one folder, which the next process of its name removes.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator

from spark_kbatch.cluster.catalog import FolderCatalog
from spark_kbatch.cluster.job import coordinator_for, new_staging
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.cluster.transports import stage
from spark_kbatch.commit.staging import Extent, ReplicatedStaging
from spark_kbatch.errors import (
    CommitError,
    ConfigError,
    MirrorFencedError,
    StagedFilesGoneError,
)
from spark_kbatch.mirroring import progress as mirror_progress
from spark_kbatch.mirroring.batches import MirroredBatch
from spark_kbatch.mirroring.progress import Progress
from spark_kbatch.mirroring.target import APPLICATION, EndOffsets, OwnTarget, ensure_no_other_wrote
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.write import parse_write_options
from spark_kbatch.store.commits import Author, user_name
from spark_kbatch.store.store import Store
from spark_kbatch.store.transport import ProduceBatch


class PathTarget(OwnTarget):
    """An embedded cluster as the target of a mirror, which stages batches and then commits them.

    A `target.Target`.
    """

    def __init__(self, store: Store, mirror: str) -> None:
        """Set up for the mirror of this name, which is its transactional id in the target, a folder's store."""
        self._parts: FolderParts = store.server
        super().__init__(store, FolderCatalog(self._parts))
        self._mirror = mirror
        # The defaults of a Spark job; with `flush`, since the progress must not outlive the records.
        self._options = parse_write_options({"path": store.address})
        self._coordinator = coordinator_for(self._parts, self._options)
        self._transaction = hashlib.sha256(mirror.encode()).hexdigest()[:32]
        self._author = Author(application_id=APPLICATION, user=user_name())
        self._sequence = -1  # of the last unit
        self._staging: ReplicatedStaging | None = None

    def take_over(self) -> Progress:
        """Return the mirror's committed progress, and remove files that an earlier process staged."""
        self._sequence, progress = self._coordinator.take_over(self._mirror, self._transaction)
        return mirror_progress.unpack(progress)

    def send(self, topic_partition: TopicPartition, batches: Iterable[MirroredBatch]) -> None:
        """Write a partition's batches to staging files, for the next commit."""
        if self._staging is None:
            self._staging = new_staging(
                self._parts,
                self._transaction,
                self._options.adopt_min_bytes,
                flush=self._options.flush,
            )
        topic = self._topics[topic_partition.topic]
        for batch in batches:
            data = memoryview(batch.data)
            # A commit counts offsets, of which a mirror that keeps them may have some without a record.
            one = ProduceBatch(topic, topic_partition, data, batch.offsets_count)
            with self._fenced():
                stage(self._staging, one)

    def commit(self, progress: Progress, ends: EndOffsets) -> None:
        """Commit the staged batches, if there are any, with the mirror's progress."""
        with self._fenced():
            extents: list[Extent] = []
            if self._staging is not None:
                extents, self._staging = self._staging.finish(), None
            try:
                is_new = self._coordinator.commit(
                    extents,
                    transactional_id=self._mirror,
                    sequence=self._sequence + 1,
                    author=self._author,
                    source_progress=mirror_progress.pack(progress),
                    ensure=lambda: ensure_no_other_wrote(
                        self.name, self._mirror, ends, self.end_offsets
                    ),
                )
            except CommitError as error:
                if not isinstance(error.__cause__, ConfigError):
                    raise
                self._coordinator.discard(extents, self._transaction)
                raise error.__cause__ from None
        self._coordinator.discard(extents, self._transaction)
        if not is_new:
            raise MirrorFencedError(self._mirror, self.name)
        self._sequence += 1

    @contextlib.contextmanager
    def _fenced(self) -> Iterator[None]:
        """Raise MirrorFencedError if staged files are gone, because another process took over."""
        try:
            yield
        except (StagedFilesGoneError, CommitError) as error:
            if isinstance(error.__cause__ or error, StagedFilesGoneError):
                why = "its staged files were removed as those of an abandoned job"
                raise MirrorFencedError(self._mirror, self.name, why) from error
            raise

    def abandon(self) -> None:
        """Remove the batches staged since the last commit, after an error."""
        if self._staging is not None:
            self._staging.abandon()
            self._staging = None
            self._coordinator.discard([], self._transaction)

    def close(self) -> None:
        """Remove batches that were staged and not committed."""
        self.abandon()
