"""A Spark job's write to a cluster in a bucket: begin on the driver, stage in tasks, commit or abort.

Nothing here knows of Spark.

    job = BucketJob.begin(...)              # driver
    staged = job.stage(rows)                # each task; the job may have been pickled on the way
    job.commit_batch([staged, ...])         # driver: one entry of the ledger, for all that the tasks staged
    job.abort([staged, ...])                # or, after a failure: nothing

An abort deletes nothing: a commit whose outcome is unknown may still land, also after Spark has called abort in
another process. What nothing refers to is deleted once it cannot be committed any more.

A topic that does not exist is planned first, with an id of its own, by the driver if the options name it, or
else by each task that has rows for it. The commit creates it, by an entry before its own, so that a job that fails
leaves none. If another writer was faster the rows go to its topic, as long as that is the one that was planned in
all but the id.
"""

from __future__ import annotations

import functools
import itertools
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from spark_kbatch.bucket.commits import JOB, summary_of
from spark_kbatch.bucket.entries import Content, LedgerCommit, MicroBatch
from spark_kbatch.bucket.extents import DataExtent, Stretch, Stretches
from spark_kbatch.bucket.objects import Folder, Objects
from spark_kbatch.bucket.overwritten import OVERWRITTEN_KEPT_MS
from spark_kbatch.bucket.place import ensure_cluster
from spark_kbatch.bucket.shared_ledger import SharedLedger
from spark_kbatch.bucket.staging import (
    DataObjects,
    PartitionOfTopic,
    StagedExtents,
    TaskTransport,
    WriterJob,
    in_entry,
    stretches_of,
)
from spark_kbatch.bucket.state import LedgerState
from spark_kbatch.bucket.topics import BucketTopics, planned
from spark_kbatch.bucket.urls import known_at, objects_at
from spark_kbatch.clock import monotonic_s, now_ms
from spark_kbatch.errors import (
    ConfigError,
    InvalidTimestampError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.options.topic import Topic, TopicConfig, topic_key
from spark_kbatch.options.write import (
    COMMITS_RETENTION_BYTES,
    STAGING_RETENTION_MS,
    WriteOptions,
)
from spark_kbatch.store.job import TopicsOfTask, WholeJob, ids_of_created, topic_to_write
from spark_kbatch.store.repetitions import Attempt, RowsOfTask

if TYPE_CHECKING:
    from spark_kbatch.producer.task_producer import TaskProducer

logger = logging.getLogger(__name__)

# Of the state that a commit goes on from. Were others faster, the entry is not written, and the commit goes on
# from theirs.
_COMMIT_AGE_MAX_MS = 1000


class BucketStaged(NamedTuple):
    """The extents that one task staged, for a commit that may have another `BucketJob` object."""

    job: WriterJob
    extents: StagedExtents
    topics: tuple[Topic, ...]  # of the extents
    planned: tuple[Topic, ...]  # that are yet to be created
    rows: RowsOfTask


@dataclass(frozen=True)
class JobTopic:
    """The topic that the options of a job name."""

    topic: Topic
    is_planned: bool  # the commit is to create it, rows or not


class BucketJob(WholeJob):
    """A Spark job that writes to a cluster in a bucket: made on the driver and copied to tasks."""

    def __init__(
        self,
        options: WriteOptions,
        cluster_id: str,
        job: WriterJob,
        topic: JobTopic | None,
        *,
        is_overwrite: bool,
    ) -> None:
        """Store what `begin` has checked for the job.

        Args:
            topic: that the options name; None if it is yet to be created by its first rows, or each row names
                its own.
        """
        self.options, self._cluster_id, self._job = options, cluster_id, job
        self._topic, self._is_overwrite = topic, is_overwrite

    @classmethod
    def begin(
        cls,
        url: str,
        ledger: SharedLedger,
        options: WriteOptions,
        *,
        overwrite: bool = False,
        is_micro_batch: bool = False,
    ) -> BucketJob:
        """Note where the ledger is, and look the job's topic up.

        A micro-batch leaves a topic that does not exist to the first task that has rows, as in a folder.

        Raises:
            ConfigError: options that do not fit the topic, or that a bucket does not have.
            UnknownTopicOrPartitionError: the topic does not exist, and may not be created.
        """
        _ensure_supported(options)
        options = replace(options, path=url)
        topics, found = BucketTopics(ledger), None
        if options.topic is not None:
            topic = topic_to_write(topics.find, options.topic, options)
            if topic is not None:
                found = JobTopic(topic, is_planned=False)
            elif is_micro_batch:
                options.ensure_may_create(options.topic)
            else:
                found = JobTopic(plan_topic(options.topic, options), is_planned=True)
        job = ledger.begin_job()
        return cls(options, ledger.cluster_id, job, found, is_overwrite=overwrite)

    def stage(
        self,
        rows: Iterable[pa.RecordBatch],
        *,
        application_id: str | None = None,
        query_id: str | None = None,
        run_id: str | None = None,
    ) -> BucketStaged:
        """Write all rows of one task to objects of its own, and delete these if anything fails."""
        of_task = RowsOfTask(application_id, query_id, run_id)
        with_rows = (batch for batch in rows if batch.num_rows)
        first = next(with_rows, None)
        if first is None:
            return BucketStaged(self._job, {}, (), (), of_task)
        place = objects_at(self.options.path, self.options.store)
        plan = functools.partial(plan_topic, options=self.options)
        topics = TopicsOfTask(self._planned, self._finder(place), plan)
        try:
            with self._producer(Folder(place, f"{self._cluster_id}/"), topics) as producer:
                for batch in itertools.chain([first], with_rows):
                    producer.append(batch)
                extents = producer.finish()
        except (RecordTooLargeError, InvalidTimestampError) as error:
            raise replace(error, is_new=error.topic in topics.planned) from error.__cause__
        return BucketStaged(
            self._job,
            extents,
            tuple(topics.found.values()),
            tuple(topics.planned.values()),
            of_task._replace(sums=producer.sums),
        )

    @property
    def _planned(self) -> Topic | None:
        of_job = self._topic
        return of_job.topic if of_job is not None and of_job.is_planned else None

    def _finder(self, place: Objects) -> Callable[[str], Topic | None]:
        """Return what finds topics for a task; one whose job knows its topic does not read the ledger."""
        of_job, options, cluster_id = self._topic, self.options, self._cluster_id

        @functools.cache
        def topics() -> BucketTopics:
            cache, known = known_at(options.path, options.store, cluster_id)
            return BucketTopics(SharedLedger(options.path, place, cluster_id, cache, known))

        def find(name: str) -> Topic | None:
            if of_job is not None and name == of_job.topic.name:
                return of_job.topic
            return topic_to_write(topics().find, name, options)

        return find

    def _producer(self, objects: Objects, topics: TopicsOfTask) -> TaskProducer[StagedExtents]:
        # Planning processes, which import this module too, need no producer.
        from spark_kbatch.producer.task_producer import TaskProducer  # noqa: PLC0415

        data = DataObjects(objects, self._job, random.Random())
        return TaskProducer(TaskTransport(data), data, topics.find, self.options, now_ms)

    def abort(self, staged: Sequence[BucketStaged]) -> None:
        """Leave all as it is: a commit whose outcome is unknown may still land."""
        if count := sum(len(one.extents) for one in staged):
            logger.info("a job failed; what it staged for %d partitions stays unseen", count)

    def commit(self, staged: Sequence[BucketStaged], attempt: Attempt | None = None) -> None:
        """Publish what all tasks staged as one entry of the ledger."""
        began_s = monotonic_s()
        with closing(self._ledger()) as ledger:
            with ledger.state(max_age_ms=_COMMIT_AGE_MAX_MS) as state:
                before = attempt and state.queries.get(attempt.id)
                if attempt and attempt.is_repetition(state.last_kept):
                    return
            ids = self._created(ledger, staged)
            replaced = ""
            if self._is_overwrite and self._topic is not None:
                replaced = ids.get(self._topic.topic.topic_id, self._topic.topic.topic_id)
            stretches: Stretches = _stretches(staged, ids)
            if stretches:
                # Spark has another job object for the commit of a micro-batch than for its tasks.
                job = next(one.job for one in staged if one.extents)
                stretches = in_entry(ledger.objects, job, stretches, ledger.rng)
            if not stretches and not replaced and attempt is None:
                return
            names = {ids.get(t.topic_id, t.topic_id): t.name for one in staged for t in one.topics}

            def propose(state: LedgerState) -> Content | None:
                last = attempt and state.queries.get(attempt.id)
                # Others may have been faster. If not, the answer is the same, and is logged already.
                if attempt and last != before and attempt.is_repetition(state.last_kept):
                    return None
                return LedgerCommit(
                    _with_offsets(state, stretches, names),
                    _ends(state, replaced),
                    attempt and MicroBatch(attempt.id, attempt.number),
                    evidence=attempt
                    and attempt.evidence._replace(
                        resolved="yes" if last and attempt.number <= last.number else ""
                    ),
                )

            entry = ledger.commit(propose, by=_author(staged), max_age_ms=_COMMIT_AGE_MAX_MS)
            if entry is not None:
                summary = summary_of(entry, names, (one.extents for one in staged))
                logger.info("%s, in %.3f s", summary, monotonic_s() - began_s)
        if entry is not None and stretches and self.options.maintain_ms:
            # Few jobs ask for it.
            from spark_kbatch.bucket.maintenance import merge_within  # noqa: PLC0415

            options = self.options
            merge_within(options.path, options.store, options.maintain_ms, [*stretches])

    def _ledger(self) -> SharedLedger:
        """Open the ledger to commit, after a look whether the cluster is still there."""
        options, cluster_id = self.options, self._cluster_id
        place = objects_at(options.path, options.store)
        cache, known = known_at(options.path, options.store, cluster_id)
        # Spark begins another job in the process of a commit, which has looked a moment ago.
        is_followed = known is not None and 0 <= now_ms() - known.followed_ms < _COMMIT_AGE_MAX_MS
        if not is_followed:
            ensure_cluster(place, cluster_id)
        return SharedLedger(options.path, place, cluster_id, cache, known, is_followed=is_followed)

    def _created(self, ledger: SharedLedger, staged: Sequence[BucketStaged]) -> dict[str, str]:
        """Create the planned topics that do not exist yet, as `ids_of_created` does."""
        wanted = [] if self._planned is None else [self._planned]
        wanted += (topic for one in staged for topic in one.planned)
        return ids_of_created(wanted, BucketTopics(ledger).create)


def plan_topic(name: str, options: WriteOptions) -> Topic:
    """Return the topic that a write creates, with its options, when it commits; raises as `planned`.

    Raises:
        UnknownTopicOrPartitionError: the options do not let it be created.
    """
    options.ensure_may_create(name)
    config = options.topic_config
    keys = map(topic_key, config)
    partitions = options.num_partitions or 1
    return planned(name, partitions, options.replication_factor, TopicConfig(**config), keys)


def _ensure_supported(options: WriteOptions) -> None:
    if options.log_dirs:
        raise ConfigError(
            "option 'log.dirs' is for a cluster in a folder; leave it out for a bucket"
        )
    if options.transactional_id_expiration_ms is not None:
        raise ConfigError(
            "option 'transactional.id.expiration.ms' is for a cluster in a folder; in a bucket each stream is "
            "remembered for good: leave it out"
        )
    for key, value, default in (
        ("overwrite.delete.delay.ms", options.overwrite_delete_delay_ms, OVERWRITTEN_KEPT_MS),
        ("staging.retention.ms", options.staging_retention_ms, STAGING_RETENTION_MS),
        ("commits.retention.bytes", options.commits_retention_bytes, COMMITS_RETENTION_BYTES),
    ):
        if value != default:
            raise ConfigError(
                f"option {key!r} is {value}, and cannot be chosen for a bucket: leave it out"
            )


def _stretches(staged: Sequence[BucketStaged], ids: Mapping[str, str]) -> dict[str, list[Stretch]]:
    """Return what the tasks staged, in their order, by topic id; all from offset 0."""
    found: dict[PartitionOfTopic, list[DataExtent]] = {}
    for one in staged:
        for (topic_id, partition), extents in one.extents.items():
            found.setdefault((ids.get(topic_id, topic_id), partition), []).extend(extents)
    return stretches_of(found)


def _with_offsets(
    state: LedgerState, stretches: Mapping[str, Sequence[Stretch]], names: Mapping[str, str]
) -> dict[str, list[Stretch]]:
    """Return stretches with the offsets and epochs that follow those of a state."""
    for topic_id in stretches:
        if topic_id not in state.topics:
            raise UnknownTopicOrPartitionError(
                f"topic {names[topic_id]!r} was deleted while the job ran; create it again, if it is not there, "
                "and run the job again"
            )
    return {
        topic_id: [state.following(topic_id, one) for one in of_topic]
        for topic_id, of_topic in stretches.items()
    }


def _ends(state: LedgerState, topic_id: str) -> dict[str, dict[int, int]]:
    """Return where the partitions of a topic end, as start offsets; of none if the id is empty."""
    if not topic_id:
        return {}
    heads = state.ensure_topic(topic_id).partitions
    return {topic_id: {number: head.next_offset for number, head in enumerate(heads)}}


def _author(staged: Sequence[BucketStaged]) -> str:
    first = next(iter(staged), None)
    if first is None:
        return JOB
    return " ".join(filter(None, (JOB, first.rows.application_id, first.rows.query_id)))
