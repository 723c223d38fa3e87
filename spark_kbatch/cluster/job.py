"""A Spark job's write to a cluster in a folder: begin on the driver, stage in tasks, commit or abort.

Nothing here knows of Spark.

job = Job.begin(parts, options)         # driver
staged = job.stage(rows)                # each task; the job may have been pickled on the way
job.commit([staged, ...])               # driver: all of it becomes visible, or none
job.abort([staged, ...])                # or, after a failure, the staged files are removed

A topic that does not exist is planned first, with an id of its own, by the driver if the options name it, or else by
each task that has rows for it. The commit creates it, so that a job that fails leaves none. If another writer
was faster the rows go to its topic, as long as that is the one that was planned in all but the id.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import itertools
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from spark_kbatch.clock import now_ms
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.commit.coordinator import Coordinator, Overwrite
from spark_kbatch.commit.staging import Extent, OpenFiles, Probe, ReplicatedStaging, Staging
from spark_kbatch.errors import (
    CommitError,
    InvalidTimestampError,
    KafkaStorageError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.files import Files
from spark_kbatch.model import NO_TRANSACTION_SEQUENCE
from spark_kbatch.options.topic import Topic, TopicConfig, topic_key
from spark_kbatch.options.write import WriteOptions
from spark_kbatch.replica import administration
from spark_kbatch.store.commits import NOTHING_VISIBLE, Author
from spark_kbatch.store.job import TopicsOfTask, WholeJob, ids_of_created, topic_to_write
from spark_kbatch.store.repetitions import Attempt, RowsOfTask

if TYPE_CHECKING:
    from spark_kbatch.producer.task_producer import TaskProducer


class Staged(NamedTuple):
    """The file extents that one task staged, the ids of its job and query, and topics yet to be created.

    The driver may commit with another `Job` object.
    """

    extents: list[Extent]
    transaction: str
    rows: RowsOfTask
    planned: tuple[Topic, ...]


class Job(WholeJob):
    """A Spark job that writes to a cluster in a folder: its state, made on the driver and copied to tasks."""

    def __init__(
        self,
        options: WriteOptions,
        transaction: str,
        probe: Probe,
        overwrite: Overwrite | None,
        topic_id: str,
        planned: Topic | None = None,
    ) -> None:
        """Store what `begin` has checked and created for the job.

        Args:
            topic_id: of the topic that the options name; empty if it is yet to be created, or each row
                names its own.
            planned: that topic, if the commit is to create it, rows or not.
        """
        self.options = options
        self._transaction = transaction
        self._probe = probe
        self._overwrite = overwrite
        self._topic_id = topic_id
        self._planned = planned

    @classmethod
    def begin(
        cls,
        parts: FolderParts,
        options: WriteOptions,
        *,
        overwrite: bool = False,
        is_micro_batch: bool = False,
    ) -> Job:
        """Create the job's staging directory, and see to its topic.

        A micro-batch leaves the topic to the first task that has rows: else a query that reads its own
        topic would find a new one after each empty micro-batch, once the topic was deleted.

        Raises:
            ConfigError: options that do not fit the topic.
            UnknownTopicOrPartitionError: the topic does not exist, and may not be created.
            KafkaStorageError: the cluster cannot be written.
        """
        options = replace(options, path=str(parts.path))
        transaction = uuid.uuid4().hex
        replaced, topic_id, planned = None, "", None
        try:
            if options.topic is not None:
                topic = topic_to_write(parts.metadata.topics.find, options.topic, options)
                topic_id = topic.topic_id if topic else ""
                if topic is None and not is_micro_batch:
                    topic = planned = plan_topic(parts, options.topic, options)
                if topic and overwrite:
                    replaced = Overwrite(topic, options.overwrite_delete_delay_ms)
            probe = Probe.leave(parts.files, _staging_dir(parts) / transaction)
        except OSError as error:
            raise KafkaStorageError(
                f"the cluster at {parts.path} cannot be written: {error}"
            ) from error
        return cls(options, transaction, probe, replaced, topic_id, planned)

    def stage(
        self,
        rows: Iterable[pa.RecordBatch],
        *,
        application_id: str | None = None,
        query_id: str | None = None,
        run_id: str | None = None,
    ) -> Staged:
        """Write all rows of one task to staging files, and remove these if anything fails."""
        of_task = RowsOfTask(application_id, query_id, run_id)
        self._probe.ensure_seen(Files())
        with_rows = (batch for batch in rows if batch.num_rows)
        first = next(with_rows, None)
        if first is None:
            return Staged([], self._transaction, of_task, ())
        parts = FolderParts(self.options.path)
        plan = functools.partial(plan_topic, parts, options=self.options)
        topics = TopicsOfTask(self._planned, functools.partial(self._find, parts), plan)
        with task_producer(parts, self._transaction, self.options, topics.find) as producer:
            for batch in itertools.chain([first], with_rows):
                with _explained(topics):
                    producer.append(batch)
            with _explained(topics):
                extents = producer.finish()
        planned = tuple(topics.planned.values())
        rows_of_task = of_task._replace(sums=producer.sums)
        return Staged(extents, self._transaction, rows_of_task, planned)

    def _find(self, parts: FolderParts, name: str) -> Topic | None:
        """Return a topic for a task; raises as `topic_to_write`.

        Raises:
            UnknownTopicOrPartitionError: it was deleted since the job's begin; none is created in its place.
        """
        find = parts.metadata.topics.find
        if name != self.options.topic or not self._topic_id:
            return topic_to_write(find, name, self.options)
        topic = find(name)
        if topic is None or topic.topic_id != self._topic_id:
            raise UnknownTopicOrPartitionError(
                f"topic {name!r} was deleted while the job ran; "
                + ("create it again and run" if topic is None else "it was created again: run")
                + " the job again"
            )
        return topic

    def commit(self, staged: Sequence[Staged], attempt: Attempt | None = None) -> bool:
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
        planned = [] if self._planned is None else [self._planned]
        planned += (one for of_task in staged for one in of_task.planned)
        is_new = coordinator.commit(
            _extents(staged),
            transactional_id=self._transaction if attempt is None else attempt.id,
            sequence=NO_TRANSACTION_SEQUENCE if attempt is None else attempt.number,
            attempt=attempt,
            author=_author(staged),
            overwrite=self._overwrite,
            create_topics=lambda: _create(parts, planned),
        )
        self._discard(coordinator, staged)
        return is_new

    def abort(self, staged: Sequence[Staged]) -> None:
        """Remove the files that finished tasks of a failed job staged; others may still be writing."""
        self._discard(coordinator_for(FolderParts(self.options.path), self.options), staged)

    def _discard(self, coordinator: Coordinator, staged: Sequence[Staged]) -> None:
        extents = _extents(staged)
        transactions = [*(one.transaction for one in staged), self._transaction]
        for transaction in dict.fromkeys(transactions):
            coordinator.discard(extents, transaction)
            extents = []


def plan_topic(parts: FolderParts, name: str, options: WriteOptions) -> Topic:
    """Return the topic that a write creates, with its options, when it commits.

    Raises:
        UnknownTopicOrPartitionError: the options do not let it be created.
        ConfigError: the options do not go together.
    """
    options.ensure_may_create(name)
    topic = administration.plan_topic(
        parts.manager,
        name,
        config=TopicConfig(**options.topic_config),
        given=map(topic_key, options.topic_config),
        partitions=options.num_partitions or 1,
        replication_factor=options.replication_factor or 1,
    )
    options.ensure_are_of(topic)
    return topic


def _create(parts: FolderParts, planned: Iterable[Topic]) -> dict[str, str]:
    """Create the planned topics that do not exist yet, as `ids_of_created` does."""
    try:
        return ids_of_created(planned, parts.make_planned_topic)
    except OSError as error:
        raise CommitError(NOTHING_VISIBLE, f"a topic cannot be created: {error}") from error


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
    find: Callable[[str], Topic] | None = None,
) -> TaskProducer[list[Extent]]:
    """Return the producer that one task of a job writes through.

    Args:
        find: returns a topic by name; by default one that exists.
    """
    # Planning processes, which import this module too, need no producer.
    from spark_kbatch.cluster.transports import StagedFiles  # noqa: PLC0415
    from spark_kbatch.producer.task_producer import TaskProducer  # noqa: PLC0415

    staging = new_staging(
        parts,
        transaction,
        # An eighth, so that little of what could be renamed has to be copied.
        shared_bytes_max=options.adopt_min_bytes // 8,
        flush=options.flush,
    )
    transport = StagedFiles(staging, level=options.compression_level)
    return TaskProducer(transport, staging, find or parts.topic_to_write, options, now_ms)


def new_staging(
    parts: FolderParts, transaction: str, *, shared_bytes_max: int, flush: bool
) -> ReplicatedStaging:
    """Return the staging files of one task of a job.

    The arguments are those of `Staging`.
    """
    open_files = OpenFiles()

    def on_node(node_id: int, attempt: str) -> Staging:
        return Staging(
            parts.files,
            parts.manager.dirs.staging_of(node_id),
            transaction,
            shared_bytes_max=shared_bytes_max,
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


def _extents(staged: Iterable[Staged]) -> list[Extent]:
    return [extent for one in staged for extent in one.extents]


@contextlib.contextmanager
def _explained(topics: TopicsOfTask) -> Iterator[None]:
    """Turn an error while a task stages rows into one that says what it means for the job."""
    try:
        yield
    except (RecordTooLargeError, InvalidTimestampError) as error:
        raise replace(error, is_new=error.topic in topics.planned) from error.__cause__
    except OSError as error:
        raise KafkaStorageError(
            f"a task cannot stage its rows: {error}; nothing of the job is visible"
        ) from error


def _author(staged: Sequence[Staged]) -> Author:
    first = staged[0] if staged else None
    return Author(
        application_id=(first and first.rows.application_id) or "",
        query_id=(first and first.rows.query_id) or "",
        user=user_name(),
    )


def user_name() -> str:
    """Return the name of the user who runs this process, for the history of commits."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return str(os.getuid())
