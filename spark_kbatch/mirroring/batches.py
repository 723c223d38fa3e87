"""Conversion of a mirror's source batches for its target: copied where possible, else encoded again.

A batch is kept if its bytes mean the same in any log: its compressed records are copied, and only its
header is rewritten, with a CRC of that. It is encoded again, with the codec that it had, where

    - its header does not tell all: compaction left out records or a time to delete it, so that offsets
      have gaps or times count from elsewhere
    - its records have the time of a broker's append, which the target's batches could not say
    - it is of the formats V0 and V1
    - the target takes no batch of its size
    - records before a log's start, which no reader sees, lie in it

Batches of aborted transactions are left out, and so are control batches. The record's key, value, headers
and time stay what a reader of the source gets; its offset becomes the next one of the target.

Where the target keeps offsets, a record has that of the source: gaps are filled by batches without
records, as compaction leaves them. Batches with gaps between their records are copied as they are then.

Nothing here reads a log. A batch's CRC is checked before another one is computed.

Source: Kafka clients/.../record/DefaultRecordBatch.java; KIP-534 (the delete horizon in base_timestamp).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_kbatch.consumer.reading import without_aborted
from spark_kbatch.errors import CorruptRecordError, RecordTooLargeError
from spark_kbatch.model import INT_MAX, TopicPartition
from spark_kbatch.record import codec
from spark_kbatch.record import columns as arrow
from spark_kbatch.record.builder import RECORD_OVERHEAD_MAX, RecordBatchBuilder
from spark_kbatch.record.header import (
    CODEC_MASK,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    RECORD_BATCH_OVERHEAD,
    TRANSACTIONAL,
    BatchHeader,
    LogRead,
    assign,
    ensure_valid,
    rewrite,
    unpack,
    without_records,
)

# A large batch that has to be encoded again becomes several of about this size, before compression.
_PIECE_BYTES = 4 * 1024 * 1024


class MirroredBatch(NamedTuple):
    """A record batch for a mirror's target, with base offset 0 and without a producer id."""

    data: bytearray
    attributes: int
    records_count: int
    is_kept: bool  # its records are the bytes of the source

    @property
    def offsets_count(self) -> int:
        """How many offsets it takes, some of which may have no record."""
        return unpack(self.data).last_offset_delta + 1


def batches(
    topic_partition: TopicPartition,
    read: LogRead,
    *,
    start_offset: int,
    max_bytes: int,
    next_offset: int | None = None,
) -> Iterator[MirroredBatch]:
    """Yield the batches to write to a mirror's target for a fetched part of a source log, in order.

    Args:
        topic_partition: where it is from, for errors.
        read: with the aborted transactions among its batches.
        start_offset: records below it are left out.
        max_bytes: the most bytes that the target takes of one batch.
        next_offset: where a target ends in which each record keeps its offset; None for any other.

    Raises:
        CorruptRecordError: a batch is damaged; carries file and position.
        RecordTooLargeError: one record alone is larger than the target takes.
    """
    keeps_offsets, end = next_offset is not None, next_offset or 0
    try:
        for position, header in without_aborted(read):
            if header.is_control or header.next_offset <= start_offset:
                continue
            if header.base_offset >= start_offset and _can_be_kept(
                header, max_bytes, with_gaps=keeps_offsets
            ):
                if keeps_offsets:
                    yield from gap(end, header.base_offset)
                yield _kept(read.data, position, header)
                end = header.next_offset
                continue
            for rows in _decoded(read.data, position, header, start_offset):
                for first, run in _dense_runs(rows) if keeps_offsets else [(end, rows)]:
                    yield from gap(end, first)
                    yield from _encoded(topic_partition, run, header.codec, max_bytes)
                    end = first + run.num_rows
    except CorruptRecordError as error:
        raise error.at(read.path, read.position) from None


def gap(start_offset: int, next_offset: int) -> Iterator[MirroredBatch]:
    """Yield batches without records that have these offsets; none if there are no offsets."""
    while start_offset < next_offset:
        count = min(next_offset - start_offset, INT_MAX)
        yield MirroredBatch(without_records(count), 0, 0, is_kept=False)
        start_offset += count


def _dense_runs(rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows whose offsets follow each other, with the first one's offset."""
    offsets = rows.column("offset").to_numpy()
    starts = [0, *(np.flatnonzero(np.diff(offsets) != 1) + 1).tolist(), len(offsets)]
    for first, end in itertools.pairwise(starts):
        if first < end:
            yield int(offsets[first]), rows[first:end]


def _can_be_kept(header: BatchHeader, max_bytes: int, *, with_gaps: bool) -> bool:
    """Return True if a source batch can be copied to the target without encoding it again."""
    return (
        header.magic == MAGIC
        and not header.attributes & ~(CODEC_MASK | TRANSACTIONAL)
        and header.records_count > 0
        and (with_gaps or header.is_dense)
        and header.size_in_bytes <= max_bytes
    )


def _kept(source: memoryview, position: int, header: BatchHeader) -> MirroredBatch:
    """Return a copy of a source batch with base offset 0 and without its producer id."""
    ensure_valid(source, position, header)
    data = bytearray(source[position : position + header.size_in_bytes])
    attributes = header.attributes & CODEC_MASK
    assign(data, 0, base_offset=0, leader_epoch=NO_LEADER_EPOCH)
    if attributes != header.attributes or header.producer_id != NO_PRODUCER_ID:
        rewrite(
            data,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH,
            base_sequence=NO_SEQUENCE,
            attributes=attributes,
        )
    return MirroredBatch(data, attributes, header.records_count, is_kept=True)


def _decoded(
    source: memoryview, position: int, header: BatchHeader, start_offset: int
) -> Iterator[pa.RecordBatch]:
    return codec.decode_batches(
        source,
        [(position, header)],
        columns=codec.RECORD_SCHEMA.names,
        start_offset=start_offset,
        max_bytes=_PIECE_BYTES,
    )


def _encoded(
    topic_partition: TopicPartition, rows: pa.RecordBatch, codec_id: int, max_bytes: int
) -> Iterator[MirroredBatch]:
    """Yield records as one batch, or halve them until each batch fits the target's size limit."""
    if not rows.num_rows:
        return
    batch = _one_batch(rows, codec_id)
    if len(batch.data) <= max_bytes:
        yield batch
    elif rows.num_rows > 1:
        half = rows.num_rows // 2
        yield from _encoded(topic_partition, rows[:half], codec_id, max_bytes)
        yield from _encoded(topic_partition, rows[half:], codec_id, max_bytes)
    else:
        offset = rows.column("offset")[0].as_py()
        raise RecordTooLargeError(
            f"the record at offset {offset} of {topic_partition}, as a batch of its own,",
            len(batch.data), max_bytes, "max.message.bytes",
        )  # fmt: skip


def _one_batch(rows: pa.RecordBatch, codec_id: int) -> MirroredBatch:
    count = rows.num_rows
    columns = arrow.columns(
        count,
        key=rows.column("key"),
        value=rows.column("value"),
        # As they are: a broker's logs may hold times that no producer of ours writes.
        timestamps=arrow.frozen(np.array(arrow.numbers(rows.column("timestamp")), np.int64)),
        headers=rows.column("headers"),
    )
    spans = (columns.key, columns.value, columns.headers)
    size = RECORD_BATCH_OVERHEAD + count * RECORD_OVERHEAD_MAX + sum(map(_size, spans))
    builder = RecordBatchBuilder(memoryview(bytearray(size)), 0, size, codec=codec_id)
    builder.append(columns)
    builder.close()
    data = bytearray(builder.data)
    return MirroredBatch(data, unpack(data).attributes, count, is_kept=False)


def _size(of: arrow.Spans) -> int:
    return int(of.bounds[-1]) - int(of.bounds[0]) if len(of.bounds) else 0
