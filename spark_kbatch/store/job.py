"""A job of many tasks that writes: all of it becomes visible at once, where the place can do that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from spark_kbatch.errors import CommitError
from spark_kbatch.options.topic import Topic
from spark_kbatch.store.commits import NOTHING_VISIBLE

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_kbatch.store.repetitions import ReadPlan


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
