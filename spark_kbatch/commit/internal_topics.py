"""The internal topics of a cluster: how their records are read, without numba, and rewritten.

__transaction_state    which commits are decided, and what they change
__commits              the history of commits, for people to look at
__consumer_offsets     what consumers' groups have committed, and their members; made when a server is
                       first asked to store some
__client_transactions  transactions of Kafka's clients; made when a server is first asked for one

A rewrite keeps such a topic small. It overwrites the topic's own log:

    1. discard what is past the end; then a segment at the log's end: what is kept, followed by an
       empty segment; not visible yet
    2. flush its files and the directory
    3. write and flush the slot: log start, log end and active segment; from here on it counts (with
       several replicas the leader's slot, then the copies)
    4. rename old segments to .deleted; they are removed after their delay

A crash before 3 leaves files past the end, which the next writer discards; a crash after 3 leaves
segments below the log start, which the next rewrite deletes. Offsets never restart, so a reader that
was overtaken notices by the log start, and starts over.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.log import retention
from spark_kbatch.log.append import LogAppender
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.state import LogState
from spark_kbatch.model import INT_MAX, ReadRange, TopicPartition
from spark_kbatch.options.topic import TRANSACTION_STATE_TOPIC, TopicConfig
from spark_kbatch.record import scalar
from spark_kbatch.record.scalar import PlainRecord
from spark_kbatch.replica.partition import Partition

# One record per commit would pass max.message.bytes with a few thousand partitions.
INTERNAL_TOPIC_CONFIG = TopicConfig(max_message_bytes=INT_MAX)
TRANSACTION_STATE = TopicPartition(TRANSACTION_STATE_TOPIC, 0)
COMMITS = TopicPartition("__commits", 0)
CONSUMER_OFFSETS = TopicPartition("__consumer_offsets", 0)
CLIENT_TRANSACTIONS = TopicPartition("__client_transactions", 0)
INTERNAL_TOPICS = {
    one.topic: INTERNAL_TOPIC_CONFIG
    for one in (TRANSACTION_STATE, COMMITS, CONSUMER_OFFSETS, CLIENT_TRANSACTIONS)
}

_FETCH_BYTES = 1 << 20
_BATCH_RECORDS = 1000

_Value = TypeVar("_Value")


def read_records(
    log: PartitionLog,
    state: LogState,
    first_offset: int,
    unpack: Callable[[PlainRecord], _Value | None],
) -> Iterator[_Value]:
    """Yield an internal topic's records as `unpack` decodes them, leaving out None.

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


def rewrite_locked(
    partition: Partition, records: Iterable[tuple[bytes, bytes | None]], now_ms: int
) -> int:
    """Replace all records of an internal topic's log with these; return their size in bytes.

    They lie in an old segment before an empty one.

    The caller holds the partition's lock, and keeps brokers out.
    """
    rest, size = iter(records), 0
    with partition.leading_locked() as log:
        state = log.discard_unrecorded(log.state())
        appender = LogAppender(log, state, now_ms=now_ms)
        appender.start_segment()
        while some := list(itertools.islice(rest, _BATCH_RECORDS)):
            batch = scalar.encode(some, now_ms)
            appender.append(batch)
            size += len(batch)
        # So that the size of the active segment tells how much was appended since.
        appender.start_segment()
        after = appender.finish(flush=True, prepare_offset=-1)
    start = state.log_end_offset
    # Flushed even if the caller does not flush: an older state would name segments that are gone.
    if partition.only_log is not None:
        partition.publish_locked(after._replace(log_start_offset=start), flush=True)
    else:
        # Readers see what is new once all in-sync replicas have it: until then they need what is old.
        partition.publish_locked(after, flush=True)
        partition.delete_records_locked(start, now_ms)
    with partition.leading_locked() as log:
        retention.delete_old_segments(log, log.state(), now_ms)
    return size
