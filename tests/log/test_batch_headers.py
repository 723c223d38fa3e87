"""Indexes are hints: a damaged, truncated, zeroed or missing one only makes a read slower."""

from __future__ import annotations

import logging
import random
import struct
from pathlib import Path

import pytest

from spark_kbatch.errors import CorruptRecordError, KafkaStorageError
from spark_kbatch.files import Files
from spark_kbatch.log import batch_headers
from spark_kbatch.log.batch_headers import walk_batch_headers
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.segment import INDEX_ENTRY, IndexEntries, candidates, segment_at
from spark_kbatch.model import ReadRange
from spark_kbatch.options.topic import TopicConfig
from tests.support import builders, reference
from tests.support.builders import a_log, append

SEGMENTS = (0, 40)  # 20 batches of 2 records in each


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    """Two segments, with an index entry for every batch that may have one."""
    batches = [builders.batch(n=2, seed=seed, value_bytes=10) for seed in range(40)]
    config = TopicConfig(segment_bytes=20 * len(batches[0]), index_interval_bytes=1)
    log = a_log(tmp_path, batches=0, config=config)
    append(log, *batches)
    assert log.segments.bases(log.state()) == list(SEGMENTS)
    return log


def found_at(log: PartitionLog) -> list[int]:
    """Return for every offset the base offset of the first batch that a read of it returns."""
    state = log.state()
    return [
        log.read(state, ReadRange(offset, max_bytes=1)).batches[0][1].base_offset
        for offset in range(state.high_watermark)
    ]


RIGHT = [offset - offset % 2 for offset in range(80)]


def test_an_index_with_any_byte_damaged_changes_nothing_that_is_read(log: PartitionLog) -> None:
    for base in SEGMENTS:
        path = segment_at(log.directory, base).offset_index
        whole = path.read_bytes()
        for at in range(len(whole)):
            for mask in (0x01, 0x80, 0xFF):
                path.write_bytes(whole[:at] + bytes([whole[at] ^ mask]) + whole[at + 1 :])
                state = log.state()
                for offset in (base, base + 7, base + 20, base + 39):
                    first = log.read(state, ReadRange(offset, max_bytes=1)).batches[0][1]
                    assert first.base_offset == RIGHT[offset], f"byte {at} ^ {mask}"
        path.write_bytes(whole)


def test_an_entry_that_leads_to_another_batch_changes_nothing_that_is_read(
    log: PartitionLog,
) -> None:
    path = segment_at(log.directory, 0).offset_index
    whole = path.read_bytes()
    positions = [position for _, position in struct.iter_unpack(">ii", whole)]
    for at in range(0, len(whole), 8):
        for position in positions:
            path.write_bytes(whole[: at + 4] + struct.pack(">i", position) + whole[at + 8 :])
            first = log.read(log.state(), ReadRange(at // 4 + 3, max_bytes=1)).batches[0][1]
            assert first.base_offset == RIGHT[at // 4 + 3], f"entry {at // 8} to {position}"


@pytest.mark.parametrize("base", SEGMENTS, ids=["rolled", "active"])
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(None, id="missing"),
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: bytes(len(data)), id="zeroed"),
        pytest.param(lambda data: data[:-13], id="short"),
        pytest.param(lambda data: data + bytes(1000), id="preallocated"),
        pytest.param(lambda data: bytes(8) + data[8:], id="first-zeroed"),
        pytest.param(lambda data: data[:72] + bytes(len(data) - 72), id="second-half-zeroed"),
        pytest.param(lambda data: random.Random(1).randbytes(len(data)), id="garbage"),
        pytest.param(lambda data: b"\xff" * len(data), id="ones"),
        pytest.param(lambda data: data[8:] + data[:8], id="out-of-order"),
    ],
)
def test_a_damaged_index_changes_nothing_that_is_read(log, base, damage) -> None:  # type: ignore[no-untyped-def]
    path = segment_at(log.directory, base).offset_index
    data = path.read_bytes()
    path.unlink()
    if damage is not None:
        path.write_bytes(damage(data))
    assert found_at(log) == RIGHT


def test_an_entry_that_leads_nowhere_is_logged_once(
    log: PartitionLog, caplog: pytest.LogCaptureFixture
) -> None:
    path = segment_at(log.directory, 0).offset_index
    data = bytearray(path.read_bytes())
    data[4:8] = struct.pack(">i", 5)
    path.write_bytes(data)
    with caplog.at_level(logging.WARNING, batch_headers.__name__):
        found_at(log)
        found_at(log)
    (record,) = caplog.records
    assert str(path) in record.getMessage()
    assert "position 5" in record.getMessage()


def test_the_entry_before_serves_where_one_is_damaged(log: PartitionLog) -> None:
    segment = segment_at(log.directory, 0)
    data = segment.offset_index.read_bytes()
    entries = list(struct.iter_unpack(">ii", data))
    tried = list(candidates(Files(), segment, 39))
    assert tried == [*(entries[at] for at in (18, 17, 15, 11, 3)), (-1, 0)]


def test_entries_are_found_by_reading_few(log: PartitionLog, tmp_path: Path) -> None:
    class Counting(Files):
        reads = 0

        def pread_into(self, descriptor: int, position: int, buffer: memoryview) -> int:
            Counting.reads += 1
            return super().pread_into(descriptor, position, buffer)

    path = tmp_path / "index"
    path.write_bytes(b"".join(INDEX_ENTRY.pack(2 * at, at) for at in range(1, 2**17)) + bytes(80))
    files = Counting()
    with files.opened(path) as descriptor:
        entries = IndexEntries(files, descriptor, INDEX_ENTRY, None)
        for wanted, count in ((1, 0), (2, 1), (99_999, 49_999), (2**31, 2**17 - 1)):
            Counting.reads = 0
            assert entries.bisect(wanted) == count
            assert Counting.reads <= 18


@pytest.mark.parametrize("value_bytes", [1, 40_000], ids=["small", "larger-than-a-look"])
def test_walking_finds_every_batch(tmp_path: Path, value_bytes: int) -> None:
    log = a_log(tmp_path, batches=0)
    batches = [builders.batch(n=1, value_bytes=value_bytes, seed=seed) for seed in range(200)]
    append(log, *batches[: 200 if value_bytes == 1 else 9])
    path = segment_at(log.directory, 0).log
    data = path.read_bytes()
    with Files().opened(path) as descriptor:
        found = list(walk_batch_headers(Files(), descriptor, path, 0, len(data)))
    assert [header.base_offset for _, header in found] == list(range(len(found)))
    sizes = [len(batch) for batch in reference.split_batches(data)]
    assert [position for position, _ in found] == [sum(sizes[:at]) for at in range(len(sizes))]


def test_walking_a_truncated_batch_is_an_error(log: PartitionLog) -> None:
    path = segment_at(log.directory, 0).log
    size = path.stat().st_size
    with Files().opened(path) as descriptor:
        for short in (1, 60, 100):
            with pytest.raises(CorruptRecordError, match=str(path)):
                list(walk_batch_headers(Files(), descriptor, path, 0, size - short))
        with pytest.raises(KafkaStorageError, match=f"{path} has {size} bytes"):
            list(walk_batch_headers(Files(), descriptor, path, 0, size + 1))


def test_a_segment_list_is_read_again_only_when_the_directory_or_the_state_changed(
    log: PartitionLog,
) -> None:
    state = log.state()
    first = log.segments.bases(state)
    assert log.segments.bases(log.state()) is first
    append(log, *[builders.batch(n=2, value_bytes=10)] * 30)  # rolls
    assert log.segments.bases(log.state()) == [0, 40, 80, 120]
    assert log.segments.bases(state) == first
    segment_at(log.directory, 0).log.rename(log.directory / "00000000000000000000.log.deleted")
    assert log.segments.bases(log.state()) == [40, 80, 120]


def test_a_log_whose_directory_is_gone_is_a_storage_error_that_names_it(log: PartitionLog) -> None:
    state = log.state()
    log.directory.rename(log.directory.with_name("elsewhere"))
    for use in (
        log.state,
        lambda: log.segments.bases(state),
        lambda: log.read(state, ReadRange(0, max_bytes=1)),
    ):
        with pytest.raises(KafkaStorageError, match=f"{log.directory}.* is gone"):
            use()
