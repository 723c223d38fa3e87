"""A job of many tasks that writes: all of it becomes visible at once, where the place can do that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from spark_kbatch.errors import CommitError
from spark_kbatch.options.topic import Topic, ensure_not_internal
from spark_kbatch.options.write import WriteOptions
from spark_kbatch.store.commits import NOTHING_VISIBLE
from spark_kbatch.store.repetitions import Attempt

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_kbatch.store.repetitions import ReadPlan


class TopicsOfTask:
    """The topics that the rows of one task go to: found, or planned if they do not exist.

    The commit creates the planned ones.
    """

    def __init__(
        self,
        planned: Topic | None,
        find: Callable[[str], Topic | None],
        plan: Callable[[str], Topic],
    ) -> None:
        """Take the topic that the job itself has planned, and how its place finds and plans others."""
        self.found: dict[str, Topic] = {}
        self.planned = {} if planned is None else {planned.name: planned}
        self._find, self._plan = find, plan

    def find(self, name: str) -> Topic:
        """Return a topic; raises as the place's functions."""
        topic = self.planned.get(name) or self._find(name)
        if topic is None:
            topic = self.planned[name] = self._plan(name)
        self.found[name] = topic
        return topic


def topic_to_write(
    find: Callable[[str], Topic | None], name: str, options: WriteOptions
) -> Topic | None:
    """Return the topic that a write goes to, which `find` returns; None if it does not exist.

    Raises:
        ConfigError: it exists with other settings than the options name, or it is internal.
    """
    ensure_not_internal(name)
    topic = find(name)
    if topic is not None:
        options.ensure_are_of(topic)
    return topic


def ids_of_created(planned: Iterable[Topic], create: Callable[[Topic], Topic]) -> dict[str, str]:
    """Create planned topics where there are none; return the ids they have now, by planned ids.

    Args:
        planned: those of the tasks, in which a name may occur again.
        create: creates a topic, or returns the one that there is.

    Raises:
        CommitError: another writer created one with other settings, so that staged rows do not fit.
    """
    made, ids = dict[str, Topic](), dict[str, str]()
    for topic in planned:
        if topic.name not in made:
            made[topic.name] = create(topic)
        found = made[topic.name]
        ids[topic.topic_id] = found.topic_id
        if replace(found, topic_id=topic.topic_id, given=topic.given) != topic:
            raise CommitError(
                NOTHING_VISIBLE,
                f"topic {topic.name!r} was created with other settings, partitions or replicas "
                "while the job ran; run the job again",
            )
    return ids


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

    What a task stages has `rows`, a `RowsOfTask`.
    """

    options: WriteOptions

    def commit(self, staged: Sequence[Any], attempt: Attempt | None = None) -> object:
        """Publish what all tasks staged, in their order; `attempt` identifies what may be a repetition."""

    def commit_batch(self, staged: Sequence[Any]) -> None:
        """Publish a batch job's rows, unless its `txnVersion` is committed already for its `txnAppId`."""
        self.commit(staged, Attempt.of_batch([one.rows for one in staged], self.options))

    def commit_micro_batch(
        self, staged: Sequence[Any], number: int, read_plan: ReadPlan | None = None
    ) -> None:
        """Publish a micro-batch of a stream, unless it is committed already, or has no rows."""
        rows = [one.rows for one in staged]
        attempt = Attempt.of_micro_batch(rows, number, self.options, read_plan)
        if attempt is None:
            self.abort(staged)
        else:
            self.commit(staged, attempt)
