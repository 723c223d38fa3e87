"""What becomes of a read when offsets that it names are gone, or not there yet: failOnDataLoss.

Not lost is what never was a record of this reader: gaps that compaction left, markers, data of
transactions that were aborted.

Source: Spark connector/kafka-0-10-sql/.../KafkaDataConsumer.scala throwOnDataLoss, logOnDataLoss.
"""

from __future__ import annotations

import logging

from spark_kbatch.errors import DataLossError, OffsetOutOfRangeError
from spark_kbatch.model import OffsetRange

logger = logging.getLogger(__name__)


class DataLoss:
    """What a read was told to do about it."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail

    def report(self, asked: str, left: str, why: str) -> None:
        """Fail, or say what is not read and let the read go on with what is left.

        Raises:
            DataLossError: data loss is not accepted.
        """
        if self._fail:
            left += ", which option 'failOnDataLoss' set to 'false' reads without this error"
            raise DataLossError(asked, left, why)
        logger.warning("%s; it is left out", DataLossError(asked, left, why))

    def offsets_gone(self, lost: OffsetRange, error: OffsetOutOfRangeError) -> None:
        """Report offsets that a log does not hold; as `report`."""
        topic_partition, start, end = lost
        why = error.why or (
            "they were deleted, by retention or on request"
            if start < error.log_start_offset
            else "the log ends before them; a topic that is made anew begins at 0 again"
        )
        self.report(
            f"{topic_partition} from offset {start} to {end}",
            f"offsets {error.log_start_offset} to {error.log_end_offset}",
            why,
        )
