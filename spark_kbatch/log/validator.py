"""What a leader checks of a batch before it appends it, as far as header and CRC tell.

Records are not opened: offset deltas, sizes and times inside are the producer's word, as they are to
Kafka for an uncompressed batch that it need not rewrite. What would make the log unreadable is
refused though Kafka may accept it: codecs that there are not, more records than bytes for them.

Source: Kafka storage/.../log/LogValidator.java, UnifiedLog.analyzeAndValidateRecords; clients
ProduceRequest.validateRecords.
"""

from __future__ import annotations

from spark_kbatch.config import TopicConfig
from spark_kbatch.errors import InvalidRecordError, RecordTooLargeError
from spark_kbatch.log.files import Buffer
from spark_kbatch.model import AppendOrigin, TopicPartition
from spark_kbatch.record.header import (
    LOG_APPEND_TIME_TYPE,
    MAGIC,
    NO_PRODUCER_ID,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    ensure_valid,
    unpack,
)

_MAGIC_POSITION = 16
_CODEC_MAX = 4


def validate(
    data: Buffer, topic_partition: TopicPartition, config: TopicConfig, origin: AppendOrigin
) -> BatchHeader:
    """The header of the one batch that `data` holds, if a log with this config takes it.

    Raises:
        InvalidRecordError: not one whole batch, or one that such an origin may not send.
        RecordTooLargeError: larger than max.message.bytes or segment.bytes.
        CorruptRecordError: the CRC does not hold; carries both values.
    """

    def refuse(found: str, accepted: str) -> InvalidRecordError:
        return InvalidRecordError(f"a batch for {topic_partition} {found}; accepted: {accepted}")

    size = len(data)
    if size > _MAGIC_POSITION and data[_MAGIC_POSITION] != MAGIC:
        raise refuse(f"has magic {data[_MAGIC_POSITION]}", f"{MAGIC}, Kafka's format since 0.11")
    if size < RECORD_BATCH_OVERHEAD:
        raise refuse(f"has {size} bytes", f"one batch, of {RECORD_BATCH_OVERHEAD} bytes or more")
    header = unpack(data)
    if header.size_in_bytes != size:
        raise refuse(
            f"says that it has {header.size_in_bytes} bytes, where {size} are given",
            "exactly one whole batch",
        )
    if header.base_offset != 0:
        raise refuse(f"has base offset {header.base_offset}", "0, the log assigns offsets")
    for option, limit in (
        ("max.message.bytes", config.max_message_bytes),
        ("segment.bytes", config.segment_bytes),
    ):
        if size > limit:
            raise RecordTooLargeError(f"a batch for {topic_partition}", size, limit, option)
    ensure_valid(data, 0, header)

    count, delta = header.records_count, header.last_offset_delta
    if count < 1 or count != delta + 1:
        raise refuse(
            f"has {count} records and last offset delta {delta}",
            "1 record or more, and a delta of one less",
        )
    if header.codec > _CODEC_MAX:
        raise refuse(f"has codec {header.codec}", f"0 to {_CODEC_MAX}")
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
    return header
