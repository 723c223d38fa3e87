"""The internal topics of a cluster, and how their records are read: without numba.

__transaction_state    which commits are decided, and what they change
__commits              the history of commits, for people to look at
__consumer_offsets     what consumers' groups have committed, and their members; made when a server is
                       first asked to store some
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.state import LogState
from spark_kbatch.model import INT_MAX, ReadRange, TopicPartition
from spark_kbatch.options.topic import TRANSACTION_STATE_TOPIC, TopicConfig
from spark_kbatch.record import scalar
from spark_kbatch.record.scalar import PlainRecord

# One record per commit would pass max.message.bytes with a few thousand partitions.
INTERNAL_TOPIC_CONFIG = TopicConfig(max_message_bytes=INT_MAX)
TRANSACTION_STATE = TopicPartition(TRANSACTION_STATE_TOPIC, 0)
COMMITS = TopicPartition("__commits", 0)
CONSUMER_OFFSETS = TopicPartition("__consumer_offsets", 0)
INTERNAL_TOPICS = {
    one.topic: INTERNAL_TOPIC_CONFIG for one in (TRANSACTION_STATE, COMMITS, CONSUMER_OFFSETS)
}

_FETCH_BYTES = 1 << 20

_Value = TypeVar("_Value")


def read_records(
    log: PartitionLog,
    state: LogState,
    first_offset: int,
    unpack: Callable[[PlainRecord], _Value | None],
) -> Iterator[_Value]:
    """Yield what `unpack` makes of each record, leaving out None.

    Args:
        log: of the internal topic.
        state: its high watermark is where to stop.
        first_offset: where to start, or the log's start if that is higher.
        unpack: takes a record.

    Raises:
        CorruptRecordError: from the log or from `unpack`; with file and position.
    """
    offset = max(first_offset, state.log_start_offset)
    while offset < state.high_watermark:
        read = log.read(state, ReadRange(offset, _FETCH_BYTES))
        for position, header in read.batches:
            try:
                values = [
                    unpack(record)
                    for record in scalar.decode(read.data, position, header)
                    if offset <= record.offset < state.high_watermark
                ]
            except CorruptRecordError as error:
                raise error.at(read.path, read.position) from None
            yield from (value for value in values if value is not None)
            offset = header.next_offset
