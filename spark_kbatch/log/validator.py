"""The leader's checks of a batch before it appends it, as far as the header and the CRC tell.

Records are not decoded: offset deltas, sizes and timestamps inside are taken from the producer unchecked,
as Kafka does for an uncompressed batch that it need not rewrite. What would make the log unreadable is
refused even if Kafka accepts it: unknown codecs, more records than there are bytes for.

The header has a batch's base and largest timestamps, and a topic's limits are checked against those. Our
producer, which has the timestamps as a column, checks each record before it takes it.

Source: Kafka storage/.../log/LogValidator.java, UnifiedLog.analyzeAndValidateRecords; clients
ProduceRequest.validateRecords.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from spark_kbatch.errors import InvalidRecordError, RecordTooLargeError
from spark_kbatch.files import Buffer
from spark_kbatch.model import CODECS, AppendOrigin, TopicPartition
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.record import codec, columns
from spark_kbatch.record.header import (
    LOG_APPEND_TIME_TYPE,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    MESSAGE_OVERHEADS,
    NO_PRODUCER_ID,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    ensure_valid,
    unpack,
    walk,
)


def validate(
    data: Buffer,
    topic_partition: TopicPartition,
    config: TopicConfig,
    origin: AppendOrigin,
    *,
    now_ms: int,
) -> BatchHeader:
    """Return the header of the one batch in `data`, if a log with this config accepts it.

    In an older format these are uncompressed messages, or one wrapper, with offsets 0, 1, 2 ... They are
    decoded, since each has a CRC of its own and states its size twice.

    Raises:
        InvalidRecordError: not one whole batch, or one that such an origin may not send.
        RecordTooLargeError: larger than max.message.bytes or segment.bytes.
        InvalidTimestampError: a timestamp outside the topic's limits.
        CorruptRecordError: the CRC does not match; carries both values.
    """

    def refuse(found: str, accepted: str) -> InvalidRecordError:
        return InvalidRecordError(f"a batch for {topic_partition} {found}; accepted: {accepted}")

    size, magic = len(data), config.message_magic
    if size > MAGIC_POSITION and data[MAGIC_POSITION] != magic:
        version = config.message_format_version
        raise refuse(
            f"has magic {data[MAGIC_POSITION]}", f"{magic}, of message.format.version={version}"
        )
    if magic < MAGIC:
        return _validate_messages(data, topic_partition, config, refuse, now_ms)
    if size < RECORD_BATCH_OVERHEAD:
        raise refuse(f"has {size} bytes", f"one batch, of {RECORD_BATCH_OVERHEAD} bytes or more")
    header = unpack(data)
    if header.size_in_bytes != size:
        raise refuse(
            f"says that it has {header.size_in_bytes} bytes, but has {size}",
            "exactly one whole batch",
        )
    if header.base_offset != 0:
        raise refuse(f"has base offset {header.base_offset}", "0, the log assigns offsets")
    _ensure_size(size, topic_partition, config)
    ensure_valid(data, 0, header)

    count, delta = header.records_count, header.last_offset_delta
    if count < 1 or count != delta + 1:
        raise refuse(
            f"has {count} records and last offset delta {delta}",
            "1 record or more, and a delta of one less",
        )
    if header.codec not in CODECS.values():
        raise refuse(f"has codec {header.codec}", f"0 to {len(CODECS) - 1}")
    header.ensure_sane(0, size)
    if header.timestamp_type == LOG_APPEND_TIME_TYPE:
        raise refuse("has log append time", "create time, the log's own clock sets the other")
    if origin is AppendOrigin.CLIENT:
        if header.is_transactional:
            raise refuse(
                "is transactional", "batches outside of transactions, which are Spark jobs"
            )
        if header.is_control:
            raise refuse("is a control batch", "data, control batches are the cluster's own")
        epoch, sequence = header.producer_epoch, header.base_sequence
        if header.producer_id > NO_PRODUCER_ID and (epoch < 0 or sequence < 0):
            raise refuse(
                f"of producer {header.producer_id} has epoch {epoch} and base sequence {sequence}",
                "0 or more of both with a producer id",
            )
    for timestamp in (header.base_timestamp, header.max_timestamp):
        config.ensure_time_accepted(topic_partition.topic, timestamp, now_ms)
    return header


def _ensure_size(size: int, topic_partition: TopicPartition, config: TopicConfig) -> None:
    for option, limit in (
        ("max.message.bytes", config.max_message_bytes),
        ("segment.bytes", config.segment_bytes),
    ):
        if size > limit:
            raise RecordTooLargeError(f"a batch for {topic_partition}", size, limit, option)


def _validate_messages(
    data: Buffer,
    topic_partition: TopicPartition,
    config: TopicConfig,
    refuse: Callable[[str, str], InvalidRecordError],
    now_ms: int,
) -> BatchHeader:
    batch_headers = [header for _, header in walk(data)]
    kinds = {(header.magic, header.attributes) for header in batch_headers}
    count = len(batch_headers)
    if len(kinds) != 1 or (batch_headers[0].is_wrapper and count > 1):
        raise refuse(f"has {count} messages of several kinds", "plain ones, or one wrapper")
    first = batch_headers[0]
    if first.timestamp_type == LOG_APPEND_TIME_TYPE:
        raise refuse("has log append time", "create time, the log's own clock sets the other")
    rows = codec.decode(data, columns=("key", "value", "offset", "timestamp"))
    largest = len(data)
    if not first.is_wrapper:
        bounds = (columns.spans(rows.column(name)).bounds for name in ("key", "value"))
        largest = MESSAGE_OVERHEADS[first.magic] + sum(
            int(np.diff(each).max(initial=0)) for each in bounds
        )
    _ensure_size(largest, topic_partition, config)
    if rows.column("offset").to_pylist() != list(range(rows.num_rows)):
        raise refuse("has offsets with gaps", "0, 1, 2 .., the log assigns offsets")
    if config.limits_times:
        for timestamp in rows.column("timestamp").unique().to_pylist():
            config.ensure_time_accepted(topic_partition.topic, timestamp, now_ms)
    return first._replace(
        base_offset=0,
        batch_length=len(data) - LOG_OVERHEAD,
        last_offset_delta=rows.num_rows - 1,
        max_timestamp=max(header.max_timestamp for header in batch_headers),
        records_count=rows.num_rows,
    )
