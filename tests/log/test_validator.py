"""Which batches a leader accepts, which it refuses, and with which message."""

from __future__ import annotations

import contextlib
import pickle
from typing import Any

import pyarrow as pa
import pytest

from spark_kbatch.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTimestampTypeError,
    InvalidTxnStateError,
    KBatchError,
    RecordTooLargeError,
    UnsupportedForMessageFormatError,
)
from spark_kbatch.log import validator
from spark_kbatch.log.validator import accept, validate
from spark_kbatch.model import AppendOrigin, TopicPartition
from spark_kbatch.options.topic import TopicConfig
from tests.support import builders, reference
from tests.support.reference import HEADER_SIZE, BatchHeader, Record, read_header

PARTITION = TopicPartition("events", 0)
NOW = builders.FIRST_TIMESTAMP_MS + 10_000
GOOD = builders.batch(n=3)
IDEMPOTENT = builders.idempotent_batch(producer_id=7, base_sequence=5, n=3)
SIZE = len(GOOD)
CONTROL, TRANSACTIONAL = 0x20, 0x10


def changed(data: bytes = GOOD, **fields: int) -> bytes:
    """Return the batch with other header fields and a matching CRC."""
    header = read_header(data)._replace(**fields)
    return reference.with_crc(reference.HEADER.pack(*header) + data[reference.HEADER_SIZE :])


def check(
    data: bytes, *, config: TopicConfig | None = None, origin: AppendOrigin = AppendOrigin.CLIENT
) -> BatchHeader:
    return BatchHeader._make(validate(data, PARTITION, config or TopicConfig(), origin, now_ms=NOW))


@pytest.mark.parametrize("codec", reference.CODECS)
def test_a_batch_of_every_codec_is_taken(codec: str) -> None:
    data = builders.batch(compression=codec)
    assert check(data) == read_header(data)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_batch_may_lie_in_any_buffer(kind: type) -> None:
    assert check(kind(GOOD)) == read_header(GOOD)


def test_a_batch_of_an_idempotent_producer_is_taken() -> None:
    assert check(IDEMPOTENT).base_sequence == 5


def test_a_leader_epoch_does_not_matter_since_the_leader_sets_it() -> None:
    assert check(changed(leader_epoch=77)).leader_epoch == 77


@pytest.mark.parametrize(
    ("data", "words"),
    [
        pytest.param(b"", "has 0 bytes; accepted: one batch, of 61 bytes or more", id="nothing"),
        pytest.param(GOOD[:60], "has 60 bytes", id="less than a header"),
        pytest.param(GOOD[:-1], f"says that it has {SIZE} bytes, but has {SIZE - 1}", id="cut"),
        pytest.param(GOOD + b"\0", f"bytes, but has {SIZE + 1}", id="a byte more"),
        pytest.param(GOOD * 2, "accepted: exactly one whole batch", id="two batches"),
        pytest.param(changed(length=-1), "says that it has 11 bytes", id="a length below 0"),
        pytest.param(
            changed(magic=1),
            "has magic 1; accepted: 2, of message.format.version=3.0",
            id="magic 1",
        ),
        pytest.param(GOOD[:16] + b"\0", "has magic 0", id="magic 0 and few bytes"),
        pytest.param(changed(base_offset=4), "has base offset 4; accepted: 0", id="base offset"),
        pytest.param(
            changed(records_count=0, last_offset_delta=-1), "has 0 records and", id="no records"
        ),
        pytest.param(
            changed(records_count=-1, last_offset_delta=-2), "has -1 records", id="fewer than none"
        ),
        pytest.param(
            changed(last_offset_delta=3),
            "has 3 records and last offset delta 3; accepted: 1 record or more",
            id="a delta too large",
        ),
        pytest.param(changed(records_count=2), "has 2 records", id="a count too small"),
        pytest.param(changed(attributes=5), "has codec 5; accepted: 0 to 4", id="codec"),
        pytest.param(changed(attributes=CONTROL), "is a control batch", id="control batch"),
        pytest.param(
            changed(IDEMPOTENT, base_sequence=-1),
            "of producer 7 has epoch 0 and base sequence -1; accepted: 0 or more of both",
            id="no sequence",
        ),
        pytest.param(changed(IDEMPOTENT, producer_epoch=-1), "has epoch -1 and", id="no epoch"),
    ],
)
def test_what_is_refused_is_named_with_what_is_accepted(data: bytes, words: str) -> None:
    with pytest.raises(InvalidRecordError) as error:
        check(data)
    assert str(error.value).startswith("a batch for events-0 ")
    assert words in str(error.value)


def test_a_transactional_batch_of_our_own_producer_is_refused() -> None:
    with pytest.raises(InvalidTxnStateError, match="it has no transaction open") as error:
        check(changed(IDEMPOTENT, attributes=TRANSACTIONAL), origin=AppendOrigin.CLIENT)
    assert (error.value.producer_id, error.value.first_offset) == (7, -1)


def test_a_transactional_batch_of_the_network_is_sound_and_its_transaction_is_asked_for_later() -> (
    None
):
    check(changed(IDEMPOTENT, attributes=TRANSACTIONAL), origin=AppendOrigin.NETWORK)


@pytest.mark.parametrize("origin", [AppendOrigin.CLIENT, AppendOrigin.NETWORK])
@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
def test_log_append_time_is_refused_from_a_producer(
    origin: AppendOrigin, timestamp_type: str
) -> None:
    config = TopicConfig(message_timestamp_type=timestamp_type)
    with pytest.raises(InvalidTimestampTypeError, match="topic 'events' has log append time"):
        check(changed(attributes=8), origin=origin, config=config)


def test_more_records_than_bytes_for_them_are_refused() -> None:
    """A reader would fail at them, and never reach those after them."""
    with pytest.raises(CorruptRecordError, match="records count that the bytes cannot hold"):
        check(changed(records_count=1000, last_offset_delta=999))


@pytest.mark.parametrize("position", [21, 61, SIZE - 1], ids=["header", "first", "last"])
def test_a_flipped_bit_is_found(position: int) -> None:
    data = bytearray(GOOD)
    data[position] ^= 1
    with pytest.raises(CorruptRecordError, match=r"CRC-32C: expected 0x[0-9a-f]{8}, found"):
        check(bytes(data))


@pytest.mark.parametrize("option", ["max.message.bytes", "segment.bytes"])
def test_a_batch_may_be_as_large_as_the_topic_allows_and_no_larger(option: str) -> None:
    field = option.replace(".", "_")
    assert check(GOOD, config=TopicConfig(**{field: SIZE}))
    with pytest.raises(RecordTooLargeError) as error:
        check(GOOD, config=TopicConfig(**{field: SIZE - 1}))
    assert (error.value.size_in_bytes, error.value.limit) == (SIZE, SIZE - 1)
    assert f"raise the topic's {option} with" in str(error.value)


def test_the_cluster_itself_may_write_control_batches_and_any_sequence() -> None:
    for data in (changed(attributes=CONTROL), changed(IDEMPOTENT, base_sequence=-1)):
        assert check(data, origin=AppendOrigin.COORDINATOR)
        with pytest.raises(InvalidRecordError):
            check(data)


@pytest.mark.parametrize("position", range(reference.HEADER_SIZE))
def test_any_other_byte_of_the_header_is_taken_or_refused_on_purpose(position: int) -> None:
    for mask in (0x01, 0x80, 0xFF):
        data = bytearray(GOOD)
        data[position] ^= mask
        for one in (bytes(data), reference.with_crc(bytes(data))):
            with contextlib.suppress(KBatchError):
                check(one)


# From the network.

FIRST = builders.FIRST_TIMESTAMP_MS


def taken(data: bytes, **settings: Any) -> bytes:
    """Return the batch as it is appended."""
    accepted = accept(data, PARTITION, TopicConfig(**settings), AppendOrigin.NETWORK, now_ms=NOW)
    assert BatchHeader._make(accepted.header) == read_header(bytes(accepted.data))
    return bytes(accepted.data)


def with_times(*times: int, **fields: int) -> bytes:
    records = [Record(at, time, None, b"v") for at, time in enumerate(times)]
    return changed(reference.encode_batch(records), **fields)


@pytest.mark.parametrize("codec", reference.CODECS)
def test_a_sound_batch_from_the_network_is_taken_as_it_is(codec: str) -> None:
    data = bytearray(builders.batch(n=50, compression=codec))
    accepted = accept(data, PARTITION, TopicConfig(), AppendOrigin.NETWORK, now_ms=NOW)
    assert accepted.data is data
    assert accepted.header == read_header(bytes(data))
    assert taken(IDEMPOTENT) == IDEMPOTENT


@pytest.mark.parametrize("claimed", [0, -1, 2**62, FIRST + 1])
def test_a_wrong_largest_timestamp_is_set_right_with_the_crc(claimed: int) -> None:
    right = with_times(FIRST, FIRST + 9, FIRST + 2)
    assert taken(changed(right, max_timestamp=claimed)) == right


def test_with_log_append_time_a_wrong_largest_timestamp_does_not_matter() -> None:
    wrong = with_times(FIRST, FIRST + 9, max_timestamp=4)
    assert taken(wrong, message_timestamp_type="LogAppendTime") == wrong


@pytest.mark.parametrize(
    ("times", "option"),
    [
        pytest.param([NOW - 101, NOW], "message.timestamp.before.max.ms", id="the first too old"),
        pytest.param([NOW, NOW - 101, NOW], "message.timestamp.before.max.ms", id="one too old"),
        pytest.param([NOW, NOW + 11, NOW], "message.timestamp.after.max.ms", id="one too new"),
        pytest.param([NOW, -5], "message.timestamp.before.max.ms", id="before 1970"),
    ],
)
@pytest.mark.parametrize("claimed", [None, NOW])
def test_each_record_is_held_to_the_topics_limits_of_times(
    times: list[int], option: str, claimed: int | None
) -> None:
    data = with_times(*times, **({} if claimed is None else {"max_timestamp": claimed}))
    limits = {"message_timestamp_before_max_ms": 100, "message_timestamp_after_max_ms": 10}
    with pytest.raises(InvalidTimestampError, match=option):
        taken(data, **limits)
    assert taken(data, **limits, message_timestamp_type="LogAppendTime") == data


def test_times_are_refused_in_a_batch_that_is_too_large_to_be_decoded_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its records are not named."""
    late = reference.encode_batch(
        [reference.Record(i, NOW + 20, None, b"v" * 100) for i in range(3)], codec=4
    )
    with pytest.raises(InvalidTimestampError) as error:
        taken(late, message_timestamp_after_max_ms=10)
    assert [number for number, _ in error.value.records] == [0, 1, 2]
    assert pickle.loads(pickle.dumps(error.value)).records == error.value.records

    monkeypatch.setattr(validator, "_RECOMPRESSED_BYTES_MAX", 10)
    with pytest.raises(InvalidTimestampError) as error:
        taken(late, message_timestamp_after_max_ms=10)
    assert error.value.records == ()


@pytest.mark.parametrize("late", [0, 1])
def test_each_batch_of_a_run_is_held_to_the_limits(late: int) -> None:
    def run(distance: int) -> bytes:
        times = [NOW, NOW]
        times[late] += distance
        return b"".join(map(with_times, times))

    config, origin = TopicConfig(message_timestamp_after_max_ms=10), AppendOrigin.CLIENT
    assert accept(run(10), PARTITION, config, origin, now_ms=NOW).data == run(10)
    with pytest.raises(InvalidTimestampError, match="11 ms after now"):
        accept(run(11), PARTITION, config, origin, now_ms=NOW)


def test_times_within_the_limits_and_none_are_taken() -> None:
    data = with_times(NOW - 100, -1, NOW + 10)
    assert taken(data, message_timestamp_before_max_ms=100, message_timestamp_after_max_ms=10)


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_a_record_that_does_not_decode_is_refused_as_invalid_not_as_corrupt(codec: str) -> None:
    """A client sends a corrupt batch again, for the bytes may have changed on their way."""
    sound = builders.batch(n=3, compression=codec)
    for wrong in (
        changed(sound, records_count=2, last_offset_delta=1),
        changed(sound, records_count=1000, last_offset_delta=999),
        reference.with_crc(sound[:HEADER_SIZE] + sound[HEADER_SIZE:][::-1]),
    ):
        with pytest.raises(InvalidRecordError, match="a batch for events-0 is not sound: "):
            taken(wrong)
    flipped = bytearray(sound)
    flipped[-1] ^= 1
    with pytest.raises(CorruptRecordError, match="CRC-32C"):
        taken(bytes(flipped))


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("version", ["0.9.0", "0.10.0", "3.0"])
def test_older_formats_are_refused_from_the_network(magic: int, version: str) -> None:
    data = reference.encode_messages([Record(0, 5 if magic else -1, b"k", b"v")], magic=magic)
    with pytest.raises(InvalidRecordError, match=f"has magic {magic}; accepted: 2"):
        taken(data, message_format_version=version)


@pytest.mark.parametrize("version", ["0.9.0", "0.10.0"])
def test_a_topic_of_an_older_format_takes_no_batch_from_the_network(version: str) -> None:
    with pytest.raises(UnsupportedForMessageFormatError) as error:
        taken(GOOD, message_format_version=version)
    assert f"message.format.version={version}" in str(error.value)
    assert "use a topic with message.format.version=3.0" in str(error.value)


def test_what_is_refused_in_a_header_is_refused_from_the_network_too() -> None:
    for data, words in (
        (b"", "has 0 bytes"),
        (GOOD * 2, "exactly one whole batch"),
        (changed(base_offset=4), "has base offset 4; accepted: 0"),
        (changed(records_count=0, last_offset_delta=-1), "has 0 records"),
        (changed(attributes=CONTROL), "is a control batch"),
        (changed(attributes=7), "has codec 7"),
        (changed(IDEMPOTENT, base_sequence=-1), "of producer 7"),
    ):
        with pytest.raises(InvalidRecordError, match=words):
            taken(data)
    with pytest.raises(RecordTooLargeError, match=r"more than max\.message\.bytes=100"):
        taken(GOOD, max_message_bytes=100)


# Topics with a codec of their own.


@pytest.mark.parametrize("origin", [AppendOrigin.CLIENT, AppendOrigin.NETWORK])
@pytest.mark.parametrize("stored", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("sent", reference.CODECS)
def test_a_batch_is_compressed_again_only_into_another_codec(
    sent: str, stored: str, origin: AppendOrigin
) -> None:
    rows = builders.rows(n=30, nulls=0.2, headers=2)
    data = changed(
        builders.encode(rows, compression=sent), producer_id=7, producer_epoch=1, base_sequence=5
    )
    config = TopicConfig(compression_type=stored)
    accepted = accept(data, PARTITION, config, origin, now_ms=NOW)
    header = read_header(bytes(accepted.data))
    assert BatchHeader._make(accepted.header) == header
    assert header.attributes == reference.CODECS.get(stored, 0)
    assert reference.decode_batches(bytes(accepted.data)) == reference.decode_batches(data)
    unchanged = {"length": 0, "crc": 0, "attributes": 0}
    assert header._replace(**unchanged) == read_header(data)._replace(**unchanged)
    if header.attributes == reference.CODECS[sent]:
        assert accepted.data is data


def test_by_default_a_batch_keeps_its_producers_codec() -> None:
    assert TopicConfig().compression_type == "producer"
    for codec in reference.CODECS:
        data = builders.batch(compression=codec)
        assert taken(data, compression_type="Producer") == data


def test_what_is_too_large_only_once_it_is_stored_is_refused() -> None:
    data = builders.encode(pa.RecordBatch.from_pydict({"value": [b"v" * 5000]}), compression="zstd")
    assert taken(data, max_message_bytes=1024) == data
    with pytest.raises(RecordTooLargeError) as error:
        taken(data, max_message_bytes=1024, compression_type="uncompressed")
    assert error.value.size_in_bytes > 5000


def test_what_expands_too_much_to_be_compressed_again_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(validator, "_RECOMPRESSED_BYTES_MAX", 4000)
    data = builders.encode(pa.RecordBatch.from_pydict({"value": [b"v" * 5000]}), compression="zstd")
    assert taken(data) == data
    with pytest.raises(
        InvalidRecordError, match=r"cannot be compressed again: .*4000 bytes or less"
    ):
        taken(data, compression_type="gzip")


def test_control_batches_of_the_cluster_are_not_compressed() -> None:
    data = changed(attributes=CONTROL)
    config = TopicConfig(compression_type="zstd")
    assert accept(data, PARTITION, config, AppendOrigin.COORDINATOR, now_ms=NOW).data is data
