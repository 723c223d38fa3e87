"""A Spark job's write to a cluster in a folder: begin on the driver, stage in tasks, commit or abort.

Nothing here knows of Spark.

job = Job.begin(parts, options)         # driver
staged = job.stage(rows)                # each task; the job may have been pickled on the way
job.commit([staged, ...])               # driver: all of it becomes visible, or none
job.abort([staged, ...])                # or, after a failure, the staged files are removed
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from spark_kbatch.clock import now_ms
from spark_kbatch.cluster.catalog import FolderCatalog
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.commit.coordinator import Coordinator, Overwrite
from spark_kbatch.commit.internal_topics import CLIENT_TRANSACTIONS
from spark_kbatch.commit.staging import Extent, OpenFiles, Probe, ReplicatedStaging, Staging
from spark_kbatch.errors import KafkaStorageError
from spark_kbatch.files import Files
from spark_kbatch.model import NO_TRANSACTION_SEQUENCE
from spark_kbatch.options.topic import Topic
from spark_kbatch.options.write import WriteOptions
from spark_kbatch.store.commits import user_name
from spark_kbatch.store.job import StagedRows, TopicsOfJob, TopicsOfTask, WholeJob, author_of
from spark_kbatch.store.repetitions import Attempt

if TYPE_CHECKING:
    from spark_kbatch.producer.task_producer import TaskProducer


class Job(WholeJob):
    """A Spark job that writes to a cluster in a folder: its state, made on the driver and copied to tasks."""

    def __init__(
        self,
        options: WriteOptions,
        transaction: str,
        topics: TopicsOfJob,
        probe: Probe,
        overwrite: Overwrite | None,
    ) -> None:
        """Store what `begin` has checked and created for the job."""
        self.options = options
        self.id = transaction
        self.topics = topics
        self._probe = probe
        self._overwrite = overwrite

    @classmethod
    def begin(
        cls,
        parts: FolderParts,
        options: WriteOptions,
        *,
        overwrite: bool = False,
        is_micro_batch: bool = False,
    ) -> Job:
        """Create the job's staging directory, and see to its topic; raises as `TopicsOfJob.begin`.

        Raises:
            KafkaStorageError: the cluster cannot be written.
        """
        options = replace(options, path=str(parts.path))
        transaction, replaced = uuid.uuid4().hex, None
        try:
            topics = TopicsOfJob.begin(FolderCatalog(parts), options, is_micro_batch=is_micro_batch)
            if topics.named is not None and overwrite:
                replaced = Overwrite(topics.named, options.overwrite_delete_delay_ms)
            probe = Probe.leave(parts.files, _staging_dir(parts) / transaction)
        except OSError as error:
            raise KafkaStorageError(
                f"the cluster at {parts.path} cannot be written: {error}"
            ) from error
        return cls(options, transaction, topics, probe, replaced)

    def ensure_may_stage(self) -> None:
        """Check that the task sees the driver's folder."""
        self._probe.ensure_seen(Files())

    def begin_task(self) -> tuple[TopicsOfTask, TaskProducer[list[Extent]]]:
        """Begin a task with staging files of its own."""
        parts = FolderParts(self.options.path)
        topics = TopicsOfTask(self.topics, FolderCatalog(parts))
        return topics, task_producer(parts, self.id, self.options, topics.find)

    def commit(self, staged: Sequence[StagedRows], attempt: Attempt | None = None) -> bool:
        """Publish the rows that all tasks staged, in the order of tasks, as one commit.

        Topics that do not exist are created first, unless it is a duplicate with rows: one may have been deleted
        since.
        Raises the errors of `Coordinator.commit`.

        Args:
            attempt: identifies a job that may be retried, so that it is committed once.

        Returns:
            False if it was skipped as a duplicate.
        """
        parts = FolderParts(self.options.path)
        coordinator = coordinator_for(parts, self.options)
        is_new = coordinator.commit(
            _extents(staged),
            transactional_id=self.id if attempt is None else attempt.id,
            sequence=NO_TRANSACTION_SEQUENCE if attempt is None else attempt.number,
            attempt=attempt,
            author=author_of(staged)._replace(user=user_name()),
            overwrite=self._overwrite,
            create_topics=lambda: self.topics.create(FolderCatalog(parts), staged),
        )
        self._discard(coordinator, staged)
        if parts.metadata.topics.find(CLIENT_TRANSACTIONS.topic) is not None:
            # The rows are behind transactions that are open where they are.
            from spark_kbatch.cluster.transactions.administration import (  # noqa: PLC0415  rare
                look_after,
            )

            look_after(parts, {one.topic_partition for one in _extents(staged)})
        return is_new

    def abort(self, staged: Sequence[StagedRows]) -> None:
        """Remove the files that finished tasks of a failed job staged; others may still be writing."""
        self._discard(coordinator_for(FolderParts(self.options.path), self.options), staged)

    def _discard(self, coordinator: Coordinator, staged: Sequence[StagedRows]) -> None:
        extents = _extents(staged)
        transactions = [*(one.job for one in staged), self.id]
        for transaction in dict.fromkeys(transactions):
            coordinator.discard(extents, transaction)
            extents = []


def coordinator_for(parts: FolderParts, options: WriteOptions) -> Coordinator:
    """Return the coordinator that commits a job's staged rows, with the options of the write."""
    return Coordinator(
        parts.manager,
        parts.manager.now_ms,
        adopt_min_bytes=options.adopt_min_bytes,
        flush=options.flush,
        acks=options.acks,
        replicas_timeout_ms=options.request_timeout_ms,
        staging_retention_ms=options.staging_retention_ms,
        id_expiration_ms=options.transactional_id_expiration_ms,
        commits_retention_bytes=options.commits_retention_bytes,
    )


def task_producer(
    parts: FolderParts,
    transaction: str,
    options: WriteOptions,
    find: Callable[[str], Topic],
) -> TaskProducer[list[Extent]]:
    """Return the producer that one task of a job writes through, to topics that `find` returns by name."""
    # Planning processes, which import this module too, need no producer.
    from spark_kbatch.cluster.transports import stage  # noqa: PLC0415
    from spark_kbatch.producer.task_producer import TaskProducer  # noqa: PLC0415

    staging = new_staging(parts, transaction, options.adopt_min_bytes, flush=options.flush)
    stage_one = functools.partial(stage, staging, level=options.compression_level)
    return TaskProducer(stage_one, staging, find, options, now_ms)


def new_staging(
    parts: FolderParts, transaction: str, adopt_min_bytes: int, *, flush: bool
) -> ReplicatedStaging:
    """Return the staging files of one task of a job.

    Args:
        adopt_min_bytes: from which size on a commit renames a file.
        parts, transaction, flush: as for `Staging`.
    """
    open_files = OpenFiles()

    def on_node(node_id: int, attempt: str) -> Staging:
        return Staging(
            parts.files,
            parts.manager.dirs.staging_of(node_id),
            transaction,
            # An eighth, so that little of what could be renamed has to be copied.
            shared_bytes_max=adopt_min_bytes // 8,
            flush=flush,
            node_id=node_id,
            attempt=attempt,
            open_files=open_files,
        )

    return ReplicatedStaging(on_node)


def _staging_dir(parts: FolderParts) -> Path:
    """Return the first staging directory on an online log dir, for a file that all tasks must see.

    Raises:
        KafkaStorageError: all log dirs are offline.
    """
    for staging_dir in parts.manager.dirs.staging().values():
        return staging_dir
    return parts.manager.dirs.staging_of(0)


def _extents(staged: Iterable[StagedRows]) -> list[Extent]:
    return [extent for one in staged for extent in one.extents]
