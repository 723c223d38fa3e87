"""A Spark job's write to a cluster in a folder: begin on the driver, stage in tasks, commit or abort.

Nothing here knows of Spark.

job = Job.begin(options)                # driver: creates cluster and topic if they do not exist; the
                                        # topic of a micro-batch is created by its first rows
staged = job.stage(rows)                # each task; the job may have been pickled on the way
job.commit([staged, ...])               # driver: all of it becomes visible, or none
job.abort([staged, ...])                # or, after a failure, the staged files are removed
"""

from __future__ import annotations

import contextlib
import getpass
import itertools
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from spark_kbatch.clock import now_ms
from spark_kbatch.cluster.parts import ClusterParts
from spark_kbatch.commit.coordinator import Coordinator, Overwrite
from spark_kbatch.commit.history import Author
from spark_kbatch.commit.staging import Extent, OpenFiles, Probe, ReplicatedStaging, Staging
from spark_kbatch.errors import ConfigError, KafkaStorageError, UnknownTopicOrPartitionError
from spark_kbatch.files import Files
from spark_kbatch.model import NO_TRANSACTION_SEQUENCE
from spark_kbatch.options.topic import Topic, TopicConfig, ensure_not_internal, topic_key
from spark_kbatch.options.write import WriteOptions, ensure_codec_exists

if TYPE_CHECKING:
    from spark_kbatch.cluster.transports import TaskProducer


class Staged(NamedTuple):
    """The file extents that one task staged, and the ids of its job and query.

    The driver may commit with another `Job` object.
    """

    extents: list[Extent]
    transaction: str
    application_id: str | None
    query_id: str | None


class Job:
    """A Spark job that writes to a cluster in a folder: its state, made on the driver and copied to tasks."""

    def __init__(
        self,
        options: WriteOptions,
        transaction: str,
        probe: Probe,
        overwrite: Overwrite | None,
        topic_id: str,
    ) -> None:
        """Store what `begin` has checked and created for the job.

        Args:
            topic_id: of the topic that the options name; empty if it is yet to be created, or each row
                names its own.
        """
        self.options = options
        self._transaction = transaction
        self._probe = probe
        self._overwrite = overwrite
        self._topic_id = topic_id

    @classmethod
    def begin(
        cls, options: WriteOptions, *, overwrite: bool = False, is_micro_batch: bool = False
    ) -> Job:
        """Create cluster and topic if they do not exist, and the job's staging directory.

        A micro-batch leaves the topic to the first task that has rows: else a query that reads its own
        topic would find a new one after each empty micro-batch, once the topic was deleted.

        Raises:
            ConfigError: an overwrite that does not name its topic, or options that do not fit the
                cluster or the topic.
            KafkaStorageError: the cluster cannot be written.
        """
        if overwrite and options.topic is None:
            raise ConfigError(
                "save mode \"overwrite\" needs the option 'topic': it replaces all that the topic holds"
            )
        parts = ClusterParts(options.path, create=True, log_dirs=options.log_dirs)
        options = replace(options, path=str(parts.path))
        transaction = uuid.uuid4().hex
        replaced, topic_id = None, ""
        try:
            if options.topic is not None:
                find = find_topic if is_micro_batch else find_or_create_topic
                topic = find(parts, options.topic, options)
                topic_id = topic.topic_id if topic else ""
                if topic and overwrite:
                    replaced = Overwrite(topic, options.overwrite_delete_delay_ms)
            probe = Probe.leave(parts.files, _staging_dir(parts) / transaction)
        except OSError as error:
            raise KafkaStorageError(
                f"the cluster at {parts.path} cannot be written: {error}"
            ) from error
        return cls(options, transaction, probe, replaced, topic_id)

    def stage(
        self,
        rows: Iterable[pa.RecordBatch],
        *,
        application_id: str | None = None,
        query_id: str | None = None,
    ) -> Staged:
        """Write all rows of one task to staging files, and remove these if anything fails.

        Args:
            application_id: of Spark, for the history.
            query_id: of the streaming query, if there is one.
        """
        self._probe.ensure_seen(Files())
        with_rows = (batch for batch in rows if batch.num_rows)
        first = next(with_rows, None)
        if first is None:
            return Staged([], self._transaction, application_id, query_id)
        parts = ClusterParts(self.options.path)
        producer = task_producer(parts, self._transaction, self.options, self._topic_id)
        done = False
        try:
            for batch in itertools.chain([first], with_rows):
                with _explained():
                    producer.append(batch)
            with _explained():
                extents = producer.finish()
            done = True
        finally:
            if not done:
                producer.abandon()
        return Staged(extents, self._transaction, application_id, query_id)

    def commit(
        self,
        staged: Sequence[Staged],
        *,
        transactional_id: str | None = None,
        sequence: int = NO_TRANSACTION_SEQUENCE,
    ) -> bool:
        """Publish the rows that all tasks staged, in the order of tasks, as one commit.

        Raises the errors of `Coordinator.commit`.

        Args:
            transactional_id: with `sequence`, identifies a job that may be retried, so that it is
                committed once.

        Returns:
            False if it was skipped as a duplicate.
        """
        coordinator = coordinator_for(ClusterParts(self.options.path), self.options)
        is_new = coordinator.commit(
            _extents(staged),
            transactional_id=transactional_id or self._transaction,
            sequence=sequence,
            author=_author(staged),
            overwrite=self._overwrite,
        )
        self._discard(coordinator, staged)
        return is_new

    def commit_batch(self, staged: Sequence[Staged]) -> None:
        """Publish a batch job's rows, unless its `txnVersion` is committed already for its `txnAppId`."""
        options = self.options
        if options.txn_app_id is None or options.txn_version is None:
            self.commit(staged)
        else:
            self.commit(staged, transactional_id=options.txn_app_id, sequence=options.txn_version)

    def commit_micro_batch(self, staged: Sequence[Staged], number: int) -> None:
        """Publish a micro-batch of a stream, unless it is committed already.

        Args:
            staged: what its tasks staged.
            number: of the micro-batch, in its query.
        """
        query_ids = {one.query_id for one in staged if one.extents}
        if not query_ids:
            self.abort(staged)  # no rows
            return
        (query_id,) = query_ids
        if query_id is None:
            raise KafkaStorageError(
                "the tasks of this micro-batch do not know their query, so a duplicate of it could not "
                "be recognised; nothing is visible"
            )
        self.commit(staged, transactional_id=query_id, sequence=number)

    def abort(self, staged: Sequence[Staged]) -> None:
        """Remove the files that finished tasks of a failed job staged; others may still be writing."""
        self._discard(coordinator_for(ClusterParts(self.options.path), self.options), staged)

    def _discard(self, coordinator: Coordinator, staged: Sequence[Staged]) -> None:
        extents = _extents(staged)
        transactions = [*(one.transaction for one in staged), self._transaction]
        for transaction in dict.fromkeys(transactions):
            coordinator.discard(extents, transaction)
            extents = []


def find_topic(parts: ClusterParts, name: str, options: WriteOptions) -> Topic | None:
    """Return the topic that a write goes to; None if it does not exist.

    Raises:
        ConfigError: it exists with other settings than the options name, or it is internal.
    """
    ensure_not_internal(name)
    topic = parts.metadata.topics.find(name)
    if topic is not None:
        _ensure_fits(topic, options)
    return topic


def find_or_create_topic(parts: ClusterParts, name: str, options: WriteOptions) -> Topic:
    """Return the topic that a write goes to, created with its options if it does not exist.

    Raises the errors of `find_topic`.
    """
    topic = find_topic(parts, name, options)
    if topic is None:
        topic = parts.make_topic(
            name,
            TopicConfig(**options.topic_config),
            given=map(topic_key, options.topic_config),
            partitions=options.num_partitions or 1,
            replication_factor=options.replication_factor or 1,
        )
        _ensure_fits(topic, options)  # another job may have been faster
    return topic


def _ensure_fits(topic: Topic, options: WriteOptions) -> None:
    options.ensure_are_of(topic)
    ensure_codec_exists(topic, options.compression_type)


def coordinator_for(parts: ClusterParts, options: WriteOptions) -> Coordinator:
    """Return the coordinator that commits a job's staged rows, with the options of the write."""
    return Coordinator(
        parts.manager,
        now_ms,
        adopt_min_bytes=options.adopt_min_bytes,
        flush=options.flush,
        acks=options.acks,
        replicas_timeout_ms=options.request_timeout_ms,
        staging_retention_ms=options.staging_retention_ms,
        id_expiration_ms=options.transactional_id_expiration_ms,
        commits_retention_bytes=options.commits_retention_bytes,
    )


def task_producer(
    parts: ClusterParts, transaction: str, options: WriteOptions, topic_id: str = ""
) -> TaskProducer:
    """Return the producer that one task of a job writes through.

    Args:
        topic_id: of the topic that the options name, as of the job's begin: a task does not create
            another one in its place.
    """
    # Planning processes, which import this module too, need no producer.
    from spark_kbatch.cluster.transports import TaskProducer  # noqa: PLC0415

    staging = new_staging(
        parts,
        transaction,
        # An eighth, so that little of what could be renamed has to be copied.
        shared_bytes_max=options.adopt_min_bytes // 8,
        flush=options.flush,
    )

    def find(name: str) -> Topic:
        if not topic_id or name != options.topic:
            return find_or_create_topic(parts, name, options)
        topic = parts.metadata.topics.find(name)
        if topic is None or topic.topic_id != topic_id:
            raise UnknownTopicOrPartitionError(
                f"topic {name!r} was deleted while the job ran; "
                + ("create it again and run" if topic is None else "it was created again: run")
                + " the job again"
            )
        return topic

    return TaskProducer(staging, find, options, now_ms)


def new_staging(
    parts: ClusterParts, transaction: str, *, shared_bytes_max: int, flush: bool
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


def _staging_dir(parts: ClusterParts) -> Path:
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
def _explained() -> Iterator[None]:
    """Turn an OSError while a task stages rows into one that says what it means for the job."""
    try:
        yield
    except OSError as error:
        raise KafkaStorageError(
            f"a task cannot stage its rows: {error}; nothing of the job is visible"
        ) from error


def _author(staged: Sequence[Staged]) -> Author:
    first = staged[0] if staged else None
    return Author(
        application_id=(first and first.application_id) or "",
        query_id=(first and first.query_id) or "",
        user=user_name(),
    )


def user_name() -> str:
    """Return the name of the user who runs this process, for the history of commits."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return str(os.getuid())
