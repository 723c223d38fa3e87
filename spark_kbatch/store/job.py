"""A job of many tasks that writes: all of it becomes visible at once, where the place can do that."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from spark_kbatch.errors import (
    CommitError,
    InvalidTimestampError,
    KafkaStorageError,
    RecordTooLargeError,
)
from spark_kbatch.options.topic import Topic, TopicConfig, ensure_not_internal, topic_key
from spark_kbatch.options.write import WriteOptions
from spark_kbatch.store.catalog import OwnCatalog
from spark_kbatch.store.commits import NOTHING_VISIBLE, UNKNOWN_AUTHOR, Author
from spark_kbatch.store.repetitions import Attempt, RowsOfTask

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_kbatch.store.repetitions import ReadPlan


class StagedRows(NamedTuple):
    """The staged rows of one task of a job, for a commit that may have another job object."""

    job: Any  # the id of the job
    extents: Any  # where its batches lie, as the place has it; nothing if there were no rows
    names: Mapping[str, str]  # of the topics that they are for, by id
    planned: tuple[Topic, ...]  # of these topics, those that the commit is to create
    rows: RowsOfTask


def author_of(staged: Sequence[StagedRows]) -> Author:
    """Return the application and query that some tasks know, for the history; of none if there were no tasks."""
    if not staged:
        return UNKNOWN_AUTHOR
    rows = staged[0].rows
    return Author(rows.application_id or "", rows.query_id or "")


@dataclass(frozen=True)
class TopicsOfJob:
    """The topics that a job writes to: the one that its options name, and those that rows name."""

    options: WriteOptions
    named: Topic | None = (
        None  #: by the options; None if its first rows create it, or each row names its own
    )
    is_planned: bool = False  #: whether the commit is to create the named one, rows or not

    @classmethod
    def begin(
        cls, catalog: OwnCatalog, options: WriteOptions, *, is_micro_batch: bool
    ) -> TopicsOfJob:
        """Find the topic that the options name, or plan it.

        A micro-batch leaves that to the first task that has rows: else a query that reads its own topic would
        find a new one after each empty micro-batch, once the topic was deleted.

        Raises:
            ConfigError: options that do not fit the topic.
            UnknownTopicOrPartitionError: the topic does not exist, and may not be created.
        """
        topics = cls(options)
        name = options.topic
        if name is None:
            return topics
        found = topics.find(catalog, name)
        if found is not None:
            return cls(options, found)
        if is_micro_batch:
            options.ensure_may_create(name)
            return topics
        return cls(options, topics.plan(catalog, name), is_planned=True)

    @property
    def planned(self) -> list[Topic]:
        """The named topic, if it is planned."""
        return [] if self.named is None or not self.is_planned else [self.named]

    def find(self, catalog: OwnCatalog, name: str) -> Topic | None:
        """Return a topic to write to; None if it does not exist.

        Raises:
            ConfigError: it exists with other settings than the options name, or it is internal.
        """
        ensure_not_internal(name)
        topic = catalog.find(name)
        if topic is not None:
            self.options.ensure_are_of(topic)
        return topic

    def plan(self, catalog: OwnCatalog, name: str) -> Topic:
        """Return the topic that the commit creates, with the options of the write.

        Raises:
            UnknownTopicOrPartitionError: the options do not let it be created.
            ConfigError: the options do not go together.
        """
        options = self.options
        options.ensure_may_create(name)
        topic = catalog.plan(
            name,
            partitions=options.num_partitions or 1,
            replication_factor=options.replication_factor or 1,
            config=TopicConfig(**options.topic_config),
            given=map(topic_key, options.topic_config),
        )
        options.ensure_are_of(topic)
        return topic

    def create(self, catalog: OwnCatalog, staged: Iterable[StagedRows]) -> dict[str, str]:
        """Create planned topics where there are none; return the ids they have now, by planned ids.

        Args:
            catalog: of the place.
            staged: by the tasks, which may have planned one of a name each.

        Raises:
            CommitError: another writer created one with other settings, so that staged rows do not fit; or
                one cannot be created.
        """
        made, ids = dict[str, Topic](), dict[str, str]()
        for topic in itertools.chain(self.planned, *(one.planned for one in staged)):
            if topic.name not in made:
                try:
                    made[topic.name] = catalog.create(topic)
                except OSError as error:
                    raise CommitError(
                        NOTHING_VISIBLE, f"a topic cannot be created: {error}"
                    ) from error
            found = made[topic.name]
            ids[topic.topic_id] = found.topic_id
            if replace(found, topic_id=topic.topic_id, given=topic.given) != topic:
                raise CommitError(
                    NOTHING_VISIBLE,
                    f"topic {topic.name!r} was created with other settings, partitions or replicas "
                    "while the job ran; run the job again",
                )
        return ids


class TopicsOfTask:
    """The topics that the rows of one task go to: found, or planned if they do not exist."""

    def __init__(self, job: TopicsOfJob, catalog: OwnCatalog) -> None:
        """Set up for a task of a job."""
        self.found: dict[str, Topic] = {}
        self.planned = {topic.name: topic for topic in job.planned}
        self._job, self._catalog = job, catalog

    def find(self, name: str) -> Topic:
        """Return a topic; raises as `OwnCatalog.found_again`, `TopicsOfJob.find` and `TopicsOfJob.plan`."""
        topic = self.planned.get(name)
        if topic is None:
            named = self._job.named
            if named is not None and named.name == name:
                topic = self._catalog.found_again(named)
            else:
                topic = self._job.find(self._catalog, name)
        if topic is None:
            topic = self.planned[name] = self._job.plan(self._catalog, name)
        self.found[name] = topic
        return topic

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turn an error while the task stages rows into one that says what it means for the job."""
        try:
            yield
        except (RecordTooLargeError, InvalidTimestampError) as error:
            raise replace(error, is_new=error.topic in self.planned) from error.__cause__
        except OSError as error:
            raise KafkaStorageError(
                f"a task cannot stage its rows: {error}; nothing of the job is visible"
            ) from error


class WriteJob(Protocol):
    """Interface of a write shared by tasks and driver; each place that takes jobs has one, in its module `job`."""

    def stage(
        self,
        rows: Iterable[pa.RecordBatch],
        *,
        application_id: str | None = None,
        query_id: str | None = None,
        run_id: str | None = None,
    ) -> Any:
        """Write all rows of one Spark task, and return the result that the commit needs."""

    def commit_batch(self, staged: Sequence[Any]) -> None:
        """Commit a batch job, from the results of its tasks."""

    def commit_micro_batch(
        self, staged: Sequence[Any], number: int, read_plan: ReadPlan | None = None
    ) -> None:
        """Commit a micro-batch of a stream, from the results of its tasks.

        Args:
            staged: the results.
            number: of the micro-batch in its query.
            read_plan: returns what the query's checkpoint says of it.
        """

    def abort(self, staged: Sequence[Any]) -> None:
        """Clean up after a failed job, from the results of its finished tasks."""


class WholeJob(WriteJob, Protocol):
    """A job whose rows are published together, and not again if they are a repetition.

    A topic that does not exist is planned first, with an id of its own, by the driver if the options name it, or
    else by each task that has rows for it. The commit creates it, so that a job that fails leaves none. If another
    writer was faster the rows go to its topic, as long as that is the one that was planned in all but the id.
    """

    options: WriteOptions
    topics: TopicsOfJob
    id: Any  # of the job, for what its tasks stage

    def ensure_may_stage(self) -> None:
        """Check, in each task, that it sees the job's place as the driver does."""

    def begin_task(self) -> tuple[TopicsOfTask, Any]:
        """Begin a task that has rows: return its topics, and the `TaskProducer` that it writes through."""

    def stage(
        self,
        rows: Iterable[pa.RecordBatch],
        *,
        application_id: str | None = None,
        query_id: str | None = None,
        run_id: str | None = None,
    ) -> StagedRows:
        """Write all rows of one task where only the commit finds them, and remove these if anything fails."""
        of_task = RowsOfTask(application_id, query_id, run_id)
        self.ensure_may_stage()
        with_rows = (batch for batch in rows if batch.num_rows)
        first = next(with_rows, None)
        if first is None:
            return StagedRows(self.id, (), {}, (), of_task)
        topics, producer = self.begin_task()
        with producer:
            for batch in itertools.chain([first], with_rows):
                with topics.explained():
                    producer.append(batch)
            return self.finish_task(topics, producer, of_task)

    def finish_task(self, topics: TopicsOfTask, producer: Any, of_task: RowsOfTask) -> StagedRows:
        """End the staging of a task, and return what the commit needs."""
        with topics.explained():
            extents = producer.finish()
        names = {topic.topic_id: topic.name for topic in topics.found.values()}
        planned = tuple(topics.planned.values())
        return StagedRows(self.id, extents, names, planned, of_task._replace(sums=producer.sums))

    def commit(self, staged: Sequence[StagedRows], attempt: Attempt | None = None) -> object:
        """Publish what all tasks staged, in their order; `attempt` identifies what may be a repetition."""

    def commit_batch(self, staged: Sequence[StagedRows]) -> None:
        """Publish a batch job's rows, unless its `txnVersion` is committed already for its `txnAppId`."""
        self.commit(staged, Attempt.of_batch([one.rows for one in staged], self.options))

    def commit_micro_batch(
        self, staged: Sequence[StagedRows], number: int, read_plan: ReadPlan | None = None
    ) -> None:
        """Publish a micro-batch of a stream, unless it is committed already, or has no rows."""
        rows = [one.rows for one in staged]
        attempt = Attempt.of_micro_batch(rows, number, self.options, read_plan)
        if attempt is None:
            self.abort(staged)
        else:
            self.commit(staged, attempt)
