"""What a batch of a source becomes in a target: its own bytes wherever they mean the same there."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from spark_kbatch.errors import CorruptRecordError, RecordTooLargeError
from spark_kbatch.mirroring.batches import MirroredBatch, batches, gap
from spark_kbatch.model import AbortedTransaction, IsolationLevel, ReadRange, TopicPartition
from spark_kbatch.opening.stores import open_for_reading, open_reader
from spark_kbatch.record.header import LogRead, walk
from tests.support import builders, reference
from tests.support.reference import LOG_APPEND_TIME, Record, decode_batches, read_header

TP = TopicPartition("events", 3)
TRANSACTIONAL, CONTROL, DELETE_HORIZON = 0x10, 0x20, 0x40
NO_LIMIT = 2**31 - 1
CODECS = [
    pytest.param(codec, id=name)
    for codec, name in enumerate(("none", "gzip", "snappy", "lz4", "zstd"))
]


def records(*offsets: int, value_bytes: int = 20) -> list[Record]:
    return [
        Record(
            offset,
            builders.FIRST_TIMESTAMP_MS + offset,
            None if offset % 3 == 0 else b"key %d" % offset,
            None if offset % 5 == 0 else (b"%d" % offset * value_bytes)[:value_bytes],
            (("h", b"1"), ("null", None)) if offset % 2 else (),
        )
        for offset in offsets
    ]


def read_of(data: bytes, aborted: Sequence[AbortedTransaction] = ()) -> LogRead:
    return LogRead("a.log", 0, memoryview(data), list(walk(data)), aborted)


def mirrored(
    data: bytes,
    *,
    start_offset: int = 0,
    max_bytes: int = NO_LIMIT,
    aborted: Sequence[AbortedTransaction] = (),
) -> list[MirroredBatch]:
    return list(batches(TP, read_of(data, aborted), start_offset=start_offset, max_bytes=max_bytes))


def contents(found: Sequence[MirroredBatch]) -> list[Record]:
    """Return the records of the batches as one log that starts at 0; each batch must be whole and dense."""
    result: list[Record] = []
    for one in found:
        header = read_header(bytes(one.data))
        assert (header.base_offset, header.leader_epoch) == (0, -1)
        assert header.records_count == one.records_count == header.last_offset_delta + 1
        assert header.attributes == one.attributes
        of_batch = decode_batches(bytes(one.data))
        assert [r.offset for r in of_batch] == list(range(one.records_count))
        result += [r._replace(offset=len(result) + r.offset) for r in of_batch]
    return result


def at_zero(wanted: Sequence[Record]) -> list[Record]:
    """Return the records with the offsets that they have in an empty target."""
    return [record._replace(offset=offset) for offset, record in enumerate(wanted)]


@pytest.mark.parametrize("codec", CODECS)
def test_a_dense_batch_keeps_every_byte_after_its_header(codec: int) -> None:
    source = reference.encode_batch(
        records(*range(7, 12)), base_offset=7, codec=codec, leader_epoch=4
    )

    (batch,) = mirrored(source)

    assert batch.is_kept
    assert batch.data[61:] == source[61:]
    # A batch without a producer keeps its CRC too: only offset and leader epoch differ, outside it.
    assert batch.data[16:] == source[16:]
    assert contents([batch]) == at_zero(records(*range(7, 12)))


@pytest.mark.parametrize("attributes", [0, TRANSACTIONAL], ids=["idempotent", "transactional"])
def test_a_batch_leaves_its_producer_behind(attributes: int) -> None:
    source = reference.encode_batch(
        records(0, 1), codec=1, producer_id=9, producer_epoch=2, base_sequence=50,
        attributes_extra=attributes,
    )  # fmt: skip

    (batch,) = mirrored(source)

    header = read_header(bytes(batch.data))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert header.attributes == 1
    assert batch.data[61:] == source[61:]
    assert contents([batch]) == records(0, 1)


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_with_gaps_is_encoded_again_with_its_codec(codec: int) -> None:
    source = reference.encode_batch(records(2, 3, 7), base_offset=0, codec=codec)

    (batch,) = mirrored(source)

    assert not batch.is_kept
    assert batch.attributes == codec
    assert contents([batch]) == at_zero(records(2, 3, 7))


def test_a_batch_whose_last_records_are_gone_is_encoded_again() -> None:
    source = bytearray(reference.encode_batch(records(0, 1, 2)))
    struct.pack_into(">i", source, 23, 6)  # last_offset_delta

    (batch,) = mirrored(reference.with_crc(bytes(source)))

    assert not batch.is_kept
    assert contents([batch]) == records(0, 1, 2)


def test_an_empty_batch_is_left_out() -> None:
    assert mirrored(reference.encode_batch([], base_offset=4)) == []


@pytest.mark.parametrize("codec", CODECS)
def test_records_with_append_time_get_it_as_their_own(codec: int) -> None:
    source = reference.encode_batch(records(0, 1, 2), codec=codec, attributes_extra=LOG_APPEND_TIME)

    (batch,) = mirrored(source)

    append_time = read_header(source).max_timestamp
    assert batch.attributes == codec
    assert contents([batch]) == [r._replace(timestamp=append_time) for r in records(0, 1, 2)]


def test_a_delete_horizon_does_not_reach_the_target() -> None:
    source = reference.encode_batch(records(0, 1), attributes_extra=DELETE_HORIZON)

    (batch,) = mirrored(source)

    assert not batch.is_kept
    assert batch.attributes == 0
    assert contents([batch]) == records(0, 1)


@pytest.mark.parametrize("magic", [0, 1], ids=["V0", "V1"])
@pytest.mark.parametrize("codec", CODECS[:4])
def test_messages_of_older_formats_become_record_batches(magic: int, codec: int) -> None:
    wanted = [r._replace(headers=()) for r in records(*range(5, 30))]
    source = reference.encode_messages(wanted, magic=magic, codec=codec)

    (batch,) = mirrored(source)

    assert batch.attributes == codec
    if magic == 0:
        wanted = [r._replace(timestamp=-1) for r in wanted]
    assert contents([batch]) == at_zero(wanted)


def test_a_batch_above_the_targets_limit_is_divided() -> None:
    source = reference.encode_batch(records(*range(50), value_bytes=100))

    found = mirrored(source, max_bytes=1000)

    assert len(found) > 5
    assert all(len(batch.data) <= 1000 for batch in found)
    assert contents(found) == records(*range(50), value_bytes=100)


def test_a_batch_of_exactly_the_limit_is_kept() -> None:
    source = reference.encode_batch(records(*range(50), value_bytes=100))

    (batch,) = mirrored(source, max_bytes=len(source))

    assert batch.is_kept


def test_a_record_above_the_targets_limit_is_named() -> None:
    source = reference.encode_batch(records(41, 42, value_bytes=2000), base_offset=41)

    with pytest.raises(RecordTooLargeError, match=r"record at offset 41 of events-3.*=1000"):
        mirrored(source, max_bytes=1000)


def test_records_before_the_start_are_left_out() -> None:
    source = b"".join(
        reference.encode_batch(records(*range(at, at + 4)), base_offset=at) for at in (0, 4, 8)
    )

    found = mirrored(source, start_offset=6)

    assert [batch.is_kept for batch in found] == [False, True]
    assert contents(found) == at_zero(records(*range(6, 12)))


def test_aborted_transactions_and_markers_are_left_out() -> None:
    def batch(at: int, producer_id: int) -> bytes:
        return reference.encode_batch(
            records(at, at + 1), base_offset=at, producer_id=producer_id, producer_epoch=0,
            base_sequence=0, attributes_extra=TRANSACTIONAL,
        )  # fmt: skip

    def marker(at: int, producer_id: int, *, commit: bool) -> bytes:
        record = Record(at, 5, struct.pack(">hh", 0, commit), struct.pack(">hi", 0, 3))
        return reference.encode_batch(
            [record], base_offset=at, producer_id=producer_id, producer_epoch=0,
            attributes_extra=TRANSACTIONAL | CONTROL,
        )  # fmt: skip

    source = b"".join(
        [
            batch(0, 1), batch(2, 2), batch(4, 1), marker(6, 1, commit=False), batch(7, 1),
            marker(9, 2, commit=True), marker(10, 1, commit=True),
        ]
    )  # fmt: skip

    found = mirrored(source, aborted=[AbortedTransaction(1, 0)])

    assert all(batch.is_kept for batch in found)
    assert contents(found) == at_zero(records(2, 3, 7, 8))


@pytest.mark.parametrize("at", [30, 70], ids=["header", "records"])
def test_a_damaged_batch_is_not_given_a_right_crc(at: int) -> None:
    good = reference.encode_batch(records(0, 1))
    bad = bytearray(reference.encode_batch(records(2, 3), base_offset=2, producer_id=3))
    bad[at] ^= 1

    with pytest.raises(CorruptRecordError, match=f"position {len(good)} of a.log: CRC-32C"):
        mirrored(good + bytes(bad))


def test_times_that_no_producer_of_ours_writes_are_kept() -> None:
    odd = [
        Record(offset, time, b"k", b"v")
        for offset, time in zip((0, 2, 4, 6), (-1, -5, 0, 2**62), strict=True)
    ]

    found = mirrored(reference.encode_batch(odd))

    assert contents(found) == at_zero(odd)


def test_logs_of_real_brokers_are_mirrored_record_for_record(shared_data: Path) -> None:
    kept = encoded = 0
    manifest = json.loads((shared_data / "kafka-segments/manifest.json").read_text())
    for about in manifest:
        path = shared_data / "kafka-segments" / about["file"]
        topic, _, partition = path.parent.name.rpartition("-")
        with open_for_reading(str(path)) as logs:
            wanted = [
                record
                for rows in logs.read(topic, partitions=[int(partition)])
                for record in builders.as_read(rows)
            ]
        source = open_reader(str(path)).source
        tp = TopicPartition(topic, int(partition))
        offset = source.views([tp])[tp].offsets.log_start_offset
        found: list[MirroredBatch] = []
        while True:
            asked = ReadRange(offset, 1 << 20, IsolationLevel.READ_COMMITTED)
            read, _ = source.fetch(tp, asked)
            if not read.batches:
                break
            of_read = list(batches(tp, read, start_offset=offset, max_bytes=NO_LIMIT))
            by_data = {bytes(read.data[at + 61 : at + h.size_in_bytes]) for at, h in read.batches}
            assert all(bytes(batch.data[61:]) in by_data for batch in of_read if batch.is_kept)
            found += of_read
            offset = read.batches[-1][1].next_offset
        assert contents(found) == at_zero(wanted), path
        kept += sum(batch.is_kept for batch in found)
        encoded += sum(not batch.is_kept for batch in found)
    assert kept > 100
    assert encoded > 10


# Where offsets are kept.


def kept_in_place(
    data: bytes,
    *,
    next_offset: int = 0,
    start_offset: int = 0,
    aborted: Sequence[AbortedTransaction] = (),
) -> tuple[list[Record], list[MirroredBatch]]:
    """Return the records with the offsets that they get in a log that ends at `next_offset`, and the batches."""
    found = [*batches(TP, read_of(data, aborted), start_offset=start_offset, max_bytes=NO_LIMIT, next_offset=next_offset)]  # fmt: skip
    result, offset = list[Record](), next_offset
    for one in found:
        header = read_header(bytes(one.data))
        assert (header.base_offset, header.records_count) == (0, one.records_count)
        assert one.offsets_count == header.last_offset_delta + 1
        of_batch = decode_batches(bytes(one.data)) if one.records_count else []
        result += [r._replace(offset=offset + r.offset) for r in of_batch]
        offset += one.offsets_count
    return result, found


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_with_gaps_is_copied_to_where_its_offsets_stay(codec: int) -> None:
    source = reference.encode_batch(records(2, 3, 7), base_offset=0, codec=codec)

    found, (batch,) = kept_in_place(source)

    assert batch.is_kept
    assert found == records(2, 3, 7)


def test_gaps_between_batches_are_filled_by_batches_without_records() -> None:
    source = reference.encode_batch(records(4, 5), base_offset=4) + reference.encode_batch(
        records(9), base_offset=9
    )

    found, all_of_them = kept_in_place(source, next_offset=1)

    assert found == records(4, 5, 9)
    assert [(one.records_count, one.offsets_count) for one in all_of_them] == [
        (0, 3), (2, 2), (0, 3), (1, 1),
    ]  # fmt: skip


def test_what_is_encoded_again_keeps_its_offsets_too() -> None:
    source = reference.encode_batch(
        records(2, 3, 7), base_offset=0, attributes_extra=LOG_APPEND_TIME
    )

    found, all_of_them = kept_in_place(source, next_offset=2, start_offset=3)

    assert [one.offset for one in found] == [3, 7]
    assert [one.offsets_count for one in all_of_them] == [1, 1, 3, 1]


def test_a_damaged_batch_that_seems_to_have_no_records_is_not_taken_for_a_gap() -> None:
    data = bytearray(reference.encode_batch(records(2, 3), base_offset=2))
    data[57:61] = bytes(4)  # its count

    with pytest.raises(CorruptRecordError):
        kept_in_place(bytes(data))


def test_a_gap_may_be_longer_than_a_batch_can_tell() -> None:
    counts = [one.offsets_count for one in gap(7, 2**31 + 17)]

    assert counts == [2**31 - 1, 11]
