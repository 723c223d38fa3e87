"""A job of many tasks that writes: all of it becomes visible at once, where the place can do that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_kbatch.store.repetitions import ReadPlan


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
