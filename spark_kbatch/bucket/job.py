"""A Spark job's write to a cluster in a bucket: begin on the driver, stage in tasks, commit or abort.

Nothing here knows of Spark.

    job = BucketJob.begin(...)              # driver
    staged = job.stage(rows)                # each task; the job may have been pickled on the way
    job.commit_batch([staged, ...])         # driver: one entry of the ledger, for all that the tasks staged
    job.abort([staged, ...])                # or, after a failure: nothing

An abort deletes nothing: a commit whose outcome is unknown may still land, also after Spark has called abort in
another process. What nothing refers to is deleted once it cannot be committed any more.

A topic that does not exist is created by an entry before that of the commit.
"""

from __future__ import annotations

import functools
import logging
import random
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_kbatch.bucket.objects import Folder
from spark_kbatch.bucket.place import ensure_cluster
from spark_kbatch.bucket.shared_ledger import OVERWRITTEN_KEPT_MS, SharedLedger
from spark_kbatch.bucket.staging import (
    DataObjects,
    PartitionOfTopic,
    StagedExtents,
    WriterJob,
    appends_of,
    in_entry,
)
from spark_kbatch.bucket.topics import BucketCatalog
from spark_kbatch.bucket.urls import known_at, objects_at
from spark_kbatch.clock import monotonic_s, now_ms
from spark_kbatch.errors import ConfigError, UnknownTopicOrPartitionError
from spark_kbatch.ledger.commits import JOB, summary_of
from spark_kbatch.ledger.entries import Content, LedgerCommit, MicroBatch
from spark_kbatch.ledger.extents import Appends, DataExtent, PartitionAppend
from spark_kbatch.ledger.state import LedgerState
from spark_kbatch.options.topic import Topic
from spark_kbatch.options.write import (
    COMMITS_RETENTION_BYTES,
    STAGING_RETENTION_MS,
    WriteOptions,
)
from spark_kbatch.store.job import StagedRows, TopicsOfJob, TopicsOfTask, WholeJob, author_of
from spark_kbatch.store.repetitions import Attempt

if TYPE_CHECKING:
    from spark_kbatch.producer.task_producer import TaskProducer

logger = logging.getLogger(__name__)

# Of the state that a commit goes on from. Were others faster, the entry is not written, and the commit goes on
# from theirs.
_COMMIT_AGE_MAX_MS = 1000


class BucketJob(WholeJob):
    """A Spark job that writes to a cluster in a bucket: made on the driver and copied to tasks."""

    def __init__(
        self, cluster_id: str, job: WriterJob, topics: TopicsOfJob, *, is_overwrite: bool
    ) -> None:
        """Store what `begin` has checked for the job."""
        self.options, self._cluster_id, self.id = topics.options, cluster_id, job
        self.topics, self._is_overwrite = topics, is_overwrite

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
        """Note where the ledger is, and see to the job's topic; raises as `TopicsOfJob.begin`.

        Raises:
            ConfigError: options that a bucket does not have.
        """
        _ensure_supported(options)
        topics = TopicsOfJob.begin(
            BucketCatalog(lambda: ledger), replace(options, path=url), is_micro_batch=is_micro_batch
        )
        return cls(ledger.cluster_id, ledger.begin_job(), topics, is_overwrite=overwrite)

    def begin_task(self) -> tuple[TopicsOfTask, TaskProducer[StagedExtents]]:
        """Begin a task with objects of its own."""
        # Planning processes, which import this module too, need no producer.
        from spark_kbatch.producer.task_producer import TaskProducer  # noqa: PLC0415

        place = objects_at(self.options.path, self.options.store)

        @functools.cache
        def ledger() -> SharedLedger:
            cache, known = known_at(self.options.path, self.options.store, self._cluster_id)
            return SharedLedger(self.options.path, place, self._cluster_id, cache, known)

        topics = TopicsOfTask(self.topics, _CatalogOfTask(ledger))
        objects = Folder(place, f"{self._cluster_id}/")
        data = DataObjects(objects, self.id, random.Random())
        return topics, TaskProducer(data.stage, data, topics.find, self.options, now_ms)

    def abort(self, staged: Sequence[StagedRows]) -> None:
        """Leave all as it is: a commit whose outcome is unknown may still land."""
        if count := sum(len(one.extents) for one in staged):
            logger.info("a job failed; what it staged for %d partitions stays unseen", count)

    def commit(self, staged: Sequence[StagedRows], attempt: Attempt | None = None) -> None:
        """Publish what all tasks staged as one entry of the ledger."""
        began_s = monotonic_s()
        with closing(self._ledger()) as ledger:
            with ledger.state(max_age_ms=_COMMIT_AGE_MAX_MS) as state:
                before = attempt and state.queries.get(attempt.id)
                if attempt and attempt.is_repetition(state.last_kept(attempt.id)):
                    return
            ids = self.topics.create(BucketCatalog(lambda: ledger), staged)
            replaced, named = "", self.topics.named
            if self._is_overwrite and named is not None:
                replaced = ids.get(named.topic_id, named.topic_id)
            appends: Appends = _appends(staged, ids)
            if appends:
                # Spark has another job object for the commit of a micro-batch than for its tasks.
                job = next(one.job for one in staged if one.extents)
                appends = in_entry(ledger.objects, job, appends, ledger.rng)
            if not appends and not replaced and attempt is None:
                return
            names = {
                ids.get(topic_id, topic_id): name
                for one in staged
                for topic_id, name in one.names.items()
            }

            def propose(state: LedgerState) -> Content | None:
                last = attempt and state.queries.get(attempt.id)
                # Others may have been faster. If not, the answer is the same, and is logged already.
                if (
                    attempt
                    and last != before
                    and attempt.is_repetition(state.last_kept(attempt.id))
                ):
                    return None
                return LedgerCommit(
                    _with_offsets(state, appends, names),
                    _ends(state, replaced),
                    attempt and MicroBatch(attempt.id, attempt.number),
                    evidence=attempt
                    and attempt.evidence._replace(
                        resolved="yes" if last and attempt.number <= last.number else ""
                    ),
                )

            by = " ".join(filter(None, (JOB, *author_of(staged))))
            entry = ledger.commit(propose, by=by, max_age_ms=_COMMIT_AGE_MAX_MS)
            if entry is not None:
                summary = summary_of(entry, names, (one.extents for one in staged if one.extents))
                logger.info("%s, in %.3f s", summary, monotonic_s() - began_s)
        if entry is not None and appends and self.options.maintain_ms:
            # Few jobs ask for it.
            from spark_kbatch.bucket.maintenance import merge_within  # noqa: PLC0415

            options = self.options
            merge_within(options.path, options.store, options.maintain_ms, [*appends])

    def _ledger(self) -> SharedLedger:
        """Open the ledger to commit, after a look whether the cluster is still there."""
        place = objects_at(self.options.path, self.options.store)
        cache, known = known_at(self.options.path, self.options.store, self._cluster_id)
        # Spark begins another job in the process of a commit, which has looked a moment ago.
        is_followed = known is not None and 0 <= now_ms() - known.followed_ms < _COMMIT_AGE_MAX_MS
        if not is_followed:
            ensure_cluster(place, self._cluster_id)
        return SharedLedger(
            self.options.path, place, self._cluster_id, cache, known, is_followed=is_followed
        )


class _CatalogOfTask(BucketCatalog):
    """The topics for a task, which reads the ledger only for those that its job does not know."""

    def found_again(self, topic: Topic) -> Topic:
        """Return the topic as it was at the job's begin: the commit sees whether it is still there."""
        return topic


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


def _appends(
    staged: Sequence[StagedRows], ids: Mapping[str, str]
) -> dict[str, list[PartitionAppend]]:
    """Return what the tasks staged, in their order, by topic id; all from offset 0."""
    found: dict[PartitionOfTopic, list[DataExtent]] = {}
    for one in staged:
        for (topic_id, partition), extents in dict(one.extents).items():
            found.setdefault((ids.get(topic_id, topic_id), partition), []).extend(extents)
    return appends_of(found)


def _with_offsets(
    state: LedgerState, appends: Mapping[str, Sequence[PartitionAppend]], names: Mapping[str, str]
) -> dict[str, list[PartitionAppend]]:
    """Return appends with the offsets and epochs that follow those of a state."""
    for topic_id in appends:
        if topic_id not in state.topics:
            raise UnknownTopicOrPartitionError(
                f"topic {names[topic_id]!r} was deleted while the job ran; create it again, if it is not there, "
                "and run the job again"
            )
    return {
        topic_id: [state.following(topic_id, one) for one in of_topic]
        for topic_id, of_topic in appends.items()
    }


def _ends(state: LedgerState, topic_id: str) -> dict[str, dict[int, int]]:
    """Return where the partitions of a topic end, as start offsets; of none if the id is empty."""
    if not topic_id:
        return {}
    return {topic_id: state.ends(state.ensure_topic(topic_id).topic_id)}
