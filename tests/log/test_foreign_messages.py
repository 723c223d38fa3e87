"""A broker's logs of the formats V0 and V1, found, recovered and read message by message."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import spark_kbatch
from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.files import Files
from spark_kbatch.log.foreign.log import Checkpoints, ForeignLog
from spark_kbatch.log.producers.replay import producer_batches
from spark_kbatch.log.segment import segment_at
from spark_kbatch.model import ReadRange, TopicPartition
from spark_kbatch.record import codec
from tests.record.test_legacy import records_sha256, segments
from tests.support import builders, reference
from tests.support.reference import Record

EVENTS = TopicPartition("events", 0)
MAGICS = [pytest.param(0, id="v0"), pytest.param(1, id="v1")]
NO_CHECKPOINTS = Checkpoints()


def some_records(n: int, magic: int, base_offset: int = 0) -> list[Record]:
    return [
        Record(offset, offset if magic else -1, b"key", b"value %d" % offset)
        for offset in range(base_offset, base_offset + n)
    ]


def a_foreign_log(
    tmp_path: Path, data: bytes, name: str = "00000000000000000000.log"
) -> ForeignLog:
    (tmp_path / name).write_bytes(data)
    return ForeignLog(Files(), tmp_path, EVENTS, file="" if name[0] == "0" else name)


def contents(log: ForeignLog, offset: int, end_offset: int) -> list[Record]:
    found: list[Record] = []
    while offset < end_offset:
        read, _ = log.read(ReadRange(offset, 10_000), lambda: NO_CHECKPOINTS)
        parts = codec.decode_batches(
            read.data, read.batches, columns=codec.RECORD_SCHEMA.names,
            start_offset=offset, end_offset=end_offset, max_bytes=10_000,
        )  # fmt: skip
        found += [record for part in parts for record in builders.as_read(part)]
        offset = read.batches[-1][1].next_offset
    return found


def ends(records: Sequence[Record], magic: int) -> list[int]:
    """Return where each message ends."""
    found, end = [], 0
    for record in records:
        end += len(reference.encode_message(record, magic=magic))
        found.append(end)
    return found


@pytest.mark.parametrize("magic", MAGICS)
def test_log_ends_after_the_last_whole_message(tmp_path: Path, magic: int) -> None:
    records = some_records(600, magic)
    data = reference.encode_messages(records, magic=magic)
    whole = ends(records, magic)
    for cut in (len(data), len(data) - 1, whole[-2], whole[-2] + 11, whole[300] + 20, whole[0] - 1):
        count = sum(end <= cut for end in whole)
        log = a_foreign_log(tmp_path, data[:cut])
        assert log.look(NO_CHECKPOINTS).end_offset == count
        assert contents(log, 0, count) == records[:count]


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("damaged", [0, 1, 299, 300, 599])
def test_log_that_was_not_closed_ends_before_a_message_that_does_not_hold(
    tmp_path: Path, magic: int, damaged: int
) -> None:
    records = some_records(600, magic)
    data = bytearray(reference.encode_messages(records, magic=magic))
    data[ends(records, magic)[damaged] - 1] ^= 1
    log = a_foreign_log(tmp_path, bytes(data))
    assert log.look(Checkpoints(recovery_point=0)).end_offset == damaged


@pytest.mark.parametrize("magic", MAGICS)
def test_damaged_message_before_the_end_is_an_error_when_it_is_read(
    tmp_path: Path, magic: int
) -> None:
    records = some_records(600, magic)
    data = bytearray(reference.encode_messages(records, magic=magic))
    position = ends(records, magic)[299]
    data[position - 1] ^= 1
    log = a_foreign_log(tmp_path, bytes(data))
    assert log.look(NO_CHECKPOINTS).offsets.log_end_offset == 600
    assert contents(log, 300, 600) == records[300:]
    with pytest.raises(CorruptRecordError, match="CRC-32"):
        contents(log, 0, 600)


@pytest.mark.parametrize("magic", MAGICS)
def test_any_offset_can_be_read_with_an_index_and_without(tmp_path: Path, magic: int) -> None:
    plain, wrapped = some_records(300, magic), some_records(300, magic, 300)
    data = reference.encode_messages(plain, magic=magic)
    for first in range(0, 300, 20):
        data += reference.encode_messages(wrapped[first : first + 20], magic=magic, codec=2)
    records = plain + wrapped
    index = b"".join(
        (at + 1).to_bytes(4, "big") + ends(plain, magic)[at].to_bytes(4, "big")
        for at in range(0, 299, 60)
    )
    for content in (b"", index, b"\1" * 80):
        (tmp_path / "00000000000000000000.index").write_bytes(content)
        for offset in (0, 1, 61, 299, 300, 310, 555, 599):
            log = a_foreign_log(tmp_path, data)
            assert contents(log, offset, 600) == records[offset:]


@pytest.mark.parametrize("magic", MAGICS)
def test_file_without_an_offset_in_its_name_starts_at_the_first_record_of_a_wrapper(
    tmp_path: Path, magic: int
) -> None:
    records = some_records(5, magic, 70)
    data = reference.encode_messages(records, magic=magic, codec=1)
    log = a_foreign_log(tmp_path, data, "saved.log")
    edges = log.look(NO_CHECKPOINTS).offsets
    assert (edges.log_start_offset, edges.log_end_offset) == (70, 75)
    assert contents(log, 70, 75) == records


def test_producers_are_found_after_old_messages(tmp_path: Path) -> None:
    data = reference.encode_messages(some_records(1_000, 1), magic=1)
    data += reference.encode_messages(some_records(10, 1, 1_000), magic=1, codec=1)
    batch = reference.encode_batch(
        some_records(1, 1, 1_010),
        base_offset=1_010,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
    )
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(data + batch)
    segment = segment_at(path.parent, 0)
    found = [header.producer_id for _, header, _ in producer_batches(Files(), [segment], 0)]
    assert found == [7]


def test_directories_of_brokers_are_read_with_every_format(shared_data: Path) -> None:
    seen = set()
    for about, _ in segments(shared_data):
        if about["magic"] == [2] or about["control"]:
            continue
        path = shared_data / "kafka-segments" / about["file"]
        with spark_kbatch.open(str(path.parent.parent)) as logs:
            topic = path.parent.name.rpartition("-")[0]
            records = builders.read_records(logs, topic)
        assert records_sha256(records) == about["records_sha256"]
        seen |= set(about["magic"])
    assert seen == {0, 1, 2}
