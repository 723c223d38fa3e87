"""`failOnDataLoss`: fail or go on when offsets that a read names are gone, or not there yet.

Offsets that never held a record for this reader are not lost: gaps left by compaction, markers, and
data of aborted transactions.

Source: Spark connector/kafka-0-10-sql/.../KafkaDataConsumer.scala throwOnDataLoss, logOnDataLoss.
"""

from __future__ import annotations

import logging

from spark_kbatch.errors import DataLossError, OffsetOutOfRangeError
from spark_kbatch.model import OffsetRange

logger = logging.getLogger(__name__)


class DataLoss:
    """One read's reaction to lost data: fail, or warn and go on."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail

    def report(self, asked: str, left: str, why: str) -> None:
        """Raise DataLossError, or, if data loss is accepted, log a warning and return.

        Raises:
            DataLossError: the read is to fail on data loss.
        """
        if self._fail:
            left += ", which option 'failOnDataLoss' set to 'false' reads without this error"
            raise DataLossError(asked, left, why)
        logger.warning("%s; it is skipped", DataLossError(asked, left, why))

    def offsets_gone(self, lost: OffsetRange, error: OffsetOutOfRangeError) -> None:
        """Report offsets that a log does not hold; raises as `report`."""
        topic_partition, start, end = lost
        why = error.why or (
            "they were deleted, by retention or on request"
            if start < error.log_start_offset
            else "the log ends before them; if the topic was recreated, its offsets restart at 0"
        )
        self.report(
            f"{topic_partition} from offset {start} to {end}",
            f"offsets {error.log_start_offset} to {error.log_end_offset}",
            why,
        )
