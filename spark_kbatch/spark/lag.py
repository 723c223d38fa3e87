"""A listener of streaming queries that tells their lag.

Spark gives a listener the progress of each micro-batch. Of a query that runs none it says only that it is idle, about
every ten seconds (spark.sql.streaming.noDataProgressEventInterval), and the query has the progress: it may be behind
too, if it waits for minOffsetsPerTrigger.

Source: Spark sql/core/.../streaming/runtime/ProgressReporter.scala updateIdleness.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from spark_kbatch.consumer.lag import TOLD_NO_ENDS, Lag, lag, tells_no_log_ends
from spark_kbatch.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


class LagListener(StreamingQueryListener):
    """A listener that logs the lag of a session's streaming queries, and hands it to a function.

        listener = spark_kbatch.LagListener(spark, lambda progress, lag: print(lag))
        spark.streams.addListener(listener)

    Queries that read no topics are passed over. The log has a line of level INFO for each, by the logger
    `spark_kbatch.spark.lag`.
    """

    def __init__(
        self,
        spark: SparkSession,
        on_lag: Callable[[Mapping[str, Any], Lag], object] | None = None,
    ) -> None:
        """Set up for `spark.streams.addListener`.

        Args:
            spark: the session that runs the queries.
            on_lag: is called with a query's progress, as in `query.lastProgress`, and its lag. It should return
                soon, because other listeners wait for it; what it raises, Spark logs.

        Raises:
            ConfigError: Spark is older than 4.2, and does not tell where the logs end.
        """
        if tells_no_log_ends():
            raise ConfigError(TOLD_NO_ENDS)
        if on_lag is not None and not callable(on_lag):
            raise ConfigError(f"on_lag is {on_lag!r}; accepted: a function of a progress and a lag")
        self._session, self._on_lag = spark, on_lag

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: there is no progress yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Tell the lag after a micro-batch."""
        self._tell(event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Tell the lag of a query that has run no micro-batch for a while."""
        for query in self._session.streams.active:
            if query.id == str(event.id):
                self._tell(query.lastProgress)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing: a query that has ended is as far behind as it was."""

    def _tell(self, progress: Mapping[str, Any] | None) -> None:
        found = lag(progress)
        if progress is None or found is None:
            return
        logger.info(
            "query %s, micro-batch %s: %d to %d offsets behind the latest in %d partitions, %.1f on average",
            progress["name"] or progress["id"],
            progress["batchId"],
            found.minOffsetsBehindLatest,
            found.maxOffsetsBehindLatest,
            len(found.by_partition),
            found.avgOffsetsBehindLatest,
        )
        if self._on_lag is not None:
            self._on_lag(progress, found)
