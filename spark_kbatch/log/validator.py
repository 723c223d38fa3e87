"""A leader's checks of a record batch before it appends it to its log.

    sender                 origin        what is checked
    our own producers      CLIENT        header, CRC; they check their records when they take them
    clients of a server    NETWORK       header, CRC and every record
    the cluster itself     COORDINATOR   header, CRC; it may write control batches

Records from the network are walked by compiled code, decompressed a piece at a time: lengths, varints,
offset deltas, count, headers and times. So every batch that is accepted can be read. That is more than
Kafka's own leader checks of batches that are not compressed; where it refuses one, so does this:

    in the batch                         Kafka's error
    other than one batch of magic 2      INVALID_RECORD
    base offset other than 0             INVALID_RECORD
    larger than max.message.bytes        MESSAGE_TOO_LARGE
    CRC                                  CORRUPT_MESSAGE
    count, offsets, a record's fields    INVALID_RECORD
    control batch                        INVALID_RECORD
    a time outside the topic's limits    INVALID_TIMESTAMP
    log append time                      INVALID_TIMESTAMP
    a topic of an older format           UNSUPPORTED_FOR_MESSAGE_FORMAT

A largest timestamp that is not that of the records is set right, as in Kafka, with the CRC. A batch is
compressed again only if the topic's compression.type is not `producer` and names another codec.

Whether a transactional batch is of an open transaction is asked under the partition's lock
(`replica/manager`).

Unlike Kafka, an offset delta that is not its record's number is refused in every batch, though Kafka
takes it in a batch that is not compressed and numbers the records of another again; and log append time
is refused in every topic, though Kafka takes it where times are the producer's. No client sends either.

Source: Kafka storage/.../log/LogValidator.java, UnifiedLog.analyzeAndValidateRecords; clients
ProduceRequest.validateRecords.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from spark_kbatch.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTimestampTypeError,
    InvalidTxnStateError,
    RecordTooLargeError,
    UnsupportedForMessageFormatError,
)
from spark_kbatch.files import Buffer
from spark_kbatch.model import CODECS, AppendOrigin, TopicPartition
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.record.header import (
    LOG_APPEND_TIME_TYPE,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    MESSAGE_OVERHEADS,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    ensure_all_valid,
    ensure_follow,
    ensure_valid,
    increment_sequence,
    size_of_first,
    together,
    unpack,
    walk,
    with_max_timestamp,
)

# Of a batch's records when they are decompressed as a whole.
_RECOMPRESSED_BYTES_MAX = 128 << 20
# Of those that keep a batch from being appended: an error names no more of them.
_NAMED_RECORDS_MAX = 1000
_DECODED_BYTES = 1 << 20  # at once, to find them


class Accepted(NamedTuple):
    """A validated batch as the log stores it, or a run of them, with the header of the batch or run."""

    data: Buffer
    header: BatchHeader
    batch_headers: Sequence[BatchHeader] = ()  # of the batches of a run


def accept(
    data: Buffer,
    topic_partition: TopicPartition,
    config: TopicConfig,
    origin: AppendOrigin,
    *,
    now_ms: int,
) -> Accepted:
    """Validate the batch, or run of batches, in `data`; return it as a log with this config stores it.

    Its bytes stay as they are where that is possible. A producer of ours may send a run: several batches
    back to back, whose sequences follow each other. It is taken or refused as a whole.

    Raises:
        As `validate`, for each batch; from the network also:
        InvalidRecordError: a record that does not decode; says which and why. From any producer: a batch
            that is to be compressed again and is too large for that.
    """
    if origin is AppendOrigin.CLIENT and config.message_magic == MAGIC:
        first_size = size_of_first(data)
        if first_size < len(data):
            return _accept_run(data, topic_partition, config, now_ms)
    header = validate(data, topic_partition, config, origin, now_ms=now_ms)
    if origin is AppendOrigin.NETWORK:
        data, header, _ = _inspected(data, header, topic_partition, config, now_ms)
    stored_codec = config.stored_codec(header.codec)
    if stored_codec != header.codec and origin.is_client and header.magic == MAGIC:
        data = _recompressed(data, header, stored_codec, topic_partition)
        _ensure_size(len(data), topic_partition, config)
        header = unpack(data)
    return Accepted(data, header)


def _accept_run(
    data: Buffer, topic_partition: TopicPartition, config: TopicConfig, now_ms: int
) -> Accepted:
    batch_headers = _sound_batch_headers(data, config, now_ms)
    if batch_headers is not None:
        return Accepted(data, together(batch_headers), batch_headers)
    view, batches, are_as_sent = memoryview(data), list[Accepted](), True
    while len(view):
        size = size_of_first(view)
        sent, view = view[:size], view[size:]
        one = accept(sent, topic_partition, config, AppendOrigin.CLIENT, now_ms=now_ms)
        batches.append(one)
        are_as_sent &= one.data is sent
    batch_headers = [batch.header for batch in batches]
    ensure_follow(topic_partition, batch_headers)
    if not are_as_sent:
        data = bytearray().join(batch.data for batch in batches)
    return Accepted(data, together(batch_headers), batch_headers)


def _sound_batch_headers(
    data: Buffer, config: TopicConfig, now_ms: int
) -> list[BatchHeader] | None:
    """Check a run of batches quickly: return their batch headers, or None if `validate` has to look closer.

    In a fifth of the time of `validate`: most runs are of many small batches.
    """
    earliest, latest = config.accepted_times(now_ms)
    limit = min(config.max_message_bytes, config.segment_bytes)
    follows: tuple[int, int, int] | None = None
    try:
        batches = list(walk(data))
        ensure_all_valid(data, batches)
    except CorruptRecordError:
        return None
    batch_headers = [header for _, header in batches]
    codec_id = config.stored_codec(batch_headers[0].codec)
    for header in batch_headers:
        base_offset, length, _, magic, _, attributes, delta, base, largest, *numbers, count = header
        producer_id, epoch, sequence = numbers
        if (
            magic != MAGIC
            or base_offset != 0
            or length + LOG_OVERHEAD > limit
            or attributes != codec_id
            or count != delta + 1
            or follows not in (None, (producer_id, epoch, sequence))
            or (producer_id > NO_PRODUCER_ID and (epoch < 0 or sequence < 0))
            or base < earliest
            or largest > latest
        ):
            return None
        if producer_id > NO_PRODUCER_ID:
            sequence = increment_sequence(sequence, count)
        follows = producer_id, epoch, sequence
    return batch_headers


def _inspected(
    data: Buffer,
    header: BatchHeader,
    topic_partition: TopicPartition,
    config: TopicConfig,
    now_ms: int,
) -> Accepted:
    from spark_kbatch.record import codec  # noqa: PLC0415  a server starts, and a log is read, without it

    try:
        times = codec.inspect(data, header)
    except CorruptRecordError as error:
        raise InvalidRecordError(f"a batch for {topic_partition} is not sound: {error}") from None
    for timestamp in times:
        try:
            config.ensure_time_accepted(topic_partition.topic, timestamp, now_ms)
        except InvalidTimestampError as error:
            records: tuple[tuple[int, int], ...] = ()
            with contextlib.suppress(CorruptRecordError):  # too large to be decoded as a whole
                records = tuple(_not_accepted(data, header, config, now_ms))
            raise dataclasses.replace(error, records=records) from None
    if times.largest != header.max_timestamp and not config.is_log_append_time:
        data = with_max_timestamp(data, times.largest)
        header = unpack(data)
    return Accepted(data, header)


def _not_accepted(
    data: Buffer, header: BatchHeader, config: TopicConfig, now_ms: int
) -> Iterator[tuple[int, int]]:
    """Yield numbers and times of the first records of a checked batch that its topic refuses for their times."""
    import numpy as np  # noqa: PLC0415  as in the caller

    from spark_kbatch.record import codec, columns  # noqa: PLC0415  likewise

    pieces = codec.decode_batches(
        data,
        [(0, header)],
        columns=("offset", "timestamp"),
        max_bytes=_DECODED_BYTES,
        max_decompressed_batch_bytes=_RECOMPRESSED_BYTES_MAX,
    )
    earliest, latest = config.accepted_times(now_ms)
    left = _NAMED_RECORDS_MAX
    for rows in pieces:
        numbers, times = (columns.numbers(rows.column(name)) for name in ("offset", "timestamp"))
        is_bad = (times != NO_TIMESTAMP) & ((times < earliest) | (times > latest))
        for index in np.flatnonzero(is_bad)[:left]:
            yield int(numbers[index]), int(times[index])
            left -= 1
        if not left:
            return


def _recompressed(
    data: Buffer, header: BatchHeader, codec_id: int, topic_partition: TopicPartition
) -> bytearray:
    from spark_kbatch.record import codec  # noqa: PLC0415  as above

    try:
        return codec.recompress(data, header, codec_id, limit=_RECOMPRESSED_BYTES_MAX)
    except CorruptRecordError as error:
        raise InvalidRecordError(
            f"a batch for {topic_partition}, whose topic has a compression.type of its own, cannot be "
            f"compressed again: {error}"
        ) from None


def validate(
    data: Buffer,
    topic_partition: TopicPartition,
    config: TopicConfig,
    origin: AppendOrigin,
    *,
    now_ms: int,
) -> BatchHeader:
    """Check that a log with this config accepts the one batch in `data`; return its header.

    In an older format these are uncompressed messages, or one wrapper, with offsets 0, 1, 2 ... They are
    decoded, since each has a CRC of its own and states its size twice.

    Raises:
        InvalidRecordError: not one whole batch, or one that such an origin may not send.
        RecordTooLargeError: larger than max.message.bytes or segment.bytes.
        InvalidTimestampError: a timestamp outside the topic's limits, or log append time.
        InvalidTxnStateError: it is transactional, and not of a server's client.
        UnsupportedForMessageFormatError: a client of the network writes to a topic of an older format.
        CorruptRecordError: the CRC does not match; carries both values.
    """

    def refuse(found: str, accepted: str) -> InvalidRecordError:
        return InvalidRecordError(f"a batch for {topic_partition} {found}; accepted: {accepted}")

    size, magic = len(data), config.message_magic
    from_network = origin is AppendOrigin.NETWORK
    if from_network and magic < MAGIC:
        if size > MAGIC_POSITION and data[MAGIC_POSITION] < MAGIC:
            raise refuse(f"has magic {data[MAGIC_POSITION]}", f"{MAGIC}")
        raise UnsupportedForMessageFormatError(str(topic_partition), config.message_format_version)
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
    if header.timestamp_type == LOG_APPEND_TIME_TYPE:
        raise InvalidTimestampTypeError(header.max_timestamp, topic_partition.topic)
    if origin.is_client:
        if header.is_control:
            raise refuse("is a control batch", "data, control batches are the cluster's own")
        if header.is_transactional and not from_network:
            raise InvalidTxnStateError(str(topic_partition), header.producer_id)
        epoch, sequence = header.producer_epoch, header.base_sequence
        if header.producer_id > NO_PRODUCER_ID and (epoch < 0 or sequence < 0):
            raise refuse(
                f"of producer {header.producer_id} has epoch {epoch} and base sequence {sequence}",
                "0 or more of both with a producer id",
            )
    if from_network:
        return header  # `accept` looks at the records themselves
    header.ensure_sane(0, size)
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
    import numpy as np  # noqa: PLC0415  as above

    from spark_kbatch.record import codec, columns  # noqa: PLC0415  likewise

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
