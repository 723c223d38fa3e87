"""The records of one range: fetched, checked and decoded, without those of aborted transactions.

Source: Spark connector/kafka-0-10-sql/.../KafkaDataConsumer.scala; Kafka clients/consumer/internals/
CompletedFetch.java.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import pyarrow as pa

from spark_kbatch.errors import CorruptRecordError, KBatchError, OffsetOutOfRangeError, going_on
from spark_kbatch.model import IsolationLevel, OffsetRange, ReadRange, TopicPartition
from spark_kbatch.options.write import MAX_DECOMPRESSED_BATCH_BYTES
from spark_kbatch.record import codec
from spark_kbatch.record.control import read_marker
from spark_kbatch.record.header import (
    LOG_APPEND_TIME,
    MAGIC,
    NO_PRODUCER_ID,
    BatchHeader,
    LogRead,
    ensure_valid,
)
from spark_kbatch.store.source import Fetcher

FETCH_BYTES = 4 * 1024 * 1024
PIECE_BYTES = 4 * 1024 * 1024
_LIMIT = "max.decompressed.batch.bytes"


OnLoss: TypeAlias = Callable[[OffsetRange, OffsetOutOfRangeError], None]


def _fail(_lost: OffsetRange, error: OffsetOutOfRangeError) -> None:
    raise error


def read_range(
    fetcher: Fetcher,
    wanted: OffsetRange,
    columns: Sequence[str],
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    *,
    on_loss: OnLoss = _fail,
    max_decompressed_batch_bytes: int = MAX_DECOMPRESSED_BATCH_BYTES,
    times_ms: tuple[int, int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range of known offsets, in offset order, in bounded pieces.

    Control records are left out, and for READ_COMMITTED so are aborted ones.

    Args:
        fetcher: where batches come from.
        wanted: the range.
        columns: names of `codec.RECORD_SCHEMA`; only those are decoded.
        isolation: which records to read, and where the log ends.
        on_loss: called with offsets of the range that the log does not hold; raises, or returns for
            the read to go on after them.
        max_decompressed_batch_bytes: a compressed batch that holds more is an error.
        times_ms: the first and the last time of records that are needed: batches that can have
            none of them may be left out.

    Raises:
        OffsetOutOfRangeError: the log does not hold the range, unless `on_loss` accepts that.
        CorruptRecordError: with file and position, with the offsets that are damaged, and where to go on;
            after all records before them.
    """
    topic_partition, offset, end = wanted
    told_at = -1  # the last offset before which records were lost

    def decoded(
        read: LogRead, batches: Iterable[tuple[int, BatchHeader]]
    ) -> Iterator[pa.RecordBatch]:
        needed = batches if times_ms is None else _of_times(read, batches, *times_ms)
        return codec.decode_batches(
            read.data, needed, columns=columns,
            start_offset=offset, end_offset=end, max_bytes=PIECE_BYTES,
            max_decompressed_batch_bytes=max_decompressed_batch_bytes,
        )  # fmt: skip

    fetched = ReadRange(offset, FETCH_BYTES, isolation, buffer=bytearray(FETCH_BYTES))
    while offset < end:
        try:
            read, edges = fetcher.fetch(topic_partition, fetched._replace(offset=offset))
        except OffsetOutOfRangeError as error:
            is_held = error.log_start_offset <= offset < error.log_end_offset
            if is_held and offset != told_at:
                # What was read before is not in the log any more, but what comes next is.
                on_loss(OffsetRange(topic_partition, wanted.start, offset), error)
                told_at = offset
                continue
            held_from = error.log_start_offset if offset < error.log_start_offset else end
            on_loss(OffsetRange(topic_partition, offset, min(held_from, end)), error)
            offset = held_from
            continue
        except CorruptRecordError as error:
            raise going_on(error, topic_partition) from None
        if not read.batches:
            log_end = edges.end_offset(isolation)
            if end > log_end:
                past_the_end = OffsetOutOfRangeError(
                    str(topic_partition), end, edges.log_start_offset, log_end
                )
                on_loss(OffsetRange(topic_partition, max(offset, log_end), end), past_the_end)
            return
        # Nothing after the range is looked at, so that a range can end before a damaged batch.
        read = read.below(end)
        if not read.batches:
            return
        count = 0
        try:
            for piece in decoded(read, without_aborted(read)):
                yield piece
                count += len(piece)
        except CorruptRecordError:
            with contextlib.suppress(KBatchError):  # A second answer of its store may be sound.
                again, _ = fetcher.fetch(topic_partition, fetched._replace(offset=offset))
                read = again.below(end) if again.batches else read
            yield from _before_damage(read, decoded, topic_partition, skipping=count)
        offset = read.batches[-1][1].next_offset


def _before_damage(
    read: LogRead,
    decoded: Callable[[LogRead, Iterable[tuple[int, BatchHeader]]], Iterator[pa.RecordBatch]],
    topic_partition: TopicPartition,
    *,
    skipping: int,
) -> Iterator[pa.RecordBatch]:
    """Yield the records before the first damaged batch, but for the first `skipping`.

    Then raise, if a batch is damaged.

    Raises:
        CorruptRecordError: with the offsets of the damaged batches that follow each other.
    """
    batches, damage = read.batches, None
    try:
        kept = without_aborted(read)
    except CorruptRecordError as error:
        damage = error
        batches = [one for one in batches if one[0] + one[1].size_in_bytes <= error.position]
        kept = without_aborted(read._replace(batches=batches))
    first = len(batches)
    for position, header in kept:
        try:
            for piece in decoded(read, [(position, header)]):
                yield piece[skipping:]
                skipping = max(skipping - len(piece), 0)
        except CorruptRecordError as error:
            damage, first = error, read.batches.index((position, header))
            break
    if damage is None:
        return
    _, damaged = read.batches[first]
    next_offset = damaged.next_offset
    for position, header in read.batches[first + 1 :]:
        if _is_valid(read, position, header):
            break
        next_offset = header.next_offset
    damage = damage.at(read.path, read.position)
    if _LIMIT not in str(damage.expected):  # Else it is sound.
        damage = replace(damage, offset=damaged.base_offset, next_offset=next_offset)
    raise going_on(damage, topic_partition) from None


def _of_times(
    read: LogRead, batches: Iterable[tuple[int, BatchHeader]], first_ms: int, last_ms: int
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield batches, without those whose header says that no record is of these times.

    It has the greatest time, which all records have that got the time of the append. No header has
    the least one: what looks like it is that of the first record, or of a compaction. Headers of
    legacy batches are not believed.

    Raises:
        CorruptRecordError: the CRC of a batch that is left out does not match.
    """
    for position, header in batches:
        is_after = header.attributes & LOG_APPEND_TIME and header.max_timestamp > last_ms
        if header.magic == MAGIC and (header.max_timestamp < first_ms or is_after):
            ensure_valid(read.data, position, header)
            continue
        yield position, header


def _is_valid(read: LogRead, position: int, header: BatchHeader) -> bool:
    try:
        ensure_valid(read.data, position, header)
    except CorruptRecordError:
        return False
    return True


def without_aborted(read: LogRead) -> list[tuple[int, BatchHeader]]:
    """Return the batches that do not belong to aborted transactions.

    Raises:
        CorruptRecordError: the CRC of a batch that is left out, or of a marker, does not match: without
            it their headers cannot be trusted.
    Source: CompletedFetch.nextFetchedRecord, consumeAbortedTransactionsUpTo.
    """
    if not read.aborted:
        return read.batches
    left: list[tuple[int, BatchHeader]] = []
    coming = deque(read.aborted)
    aborting: set[int] = set()  # producers whose transaction here was aborted
    for position, header in read.batches:
        if header.producer_id > NO_PRODUCER_ID:
            while coming and coming[0].first_offset <= header.last_offset:
                aborting.add(coming.popleft().producer_id)
            if header.is_control:
                marker = read_marker(read.data, position, header)
                if marker is not None and marker.is_abort:
                    aborting.discard(header.producer_id)
            elif header.is_transactional and header.producer_id in aborting:
                ensure_valid(read.data, position, header)
                continue
        left.append((position, header))
    return left
