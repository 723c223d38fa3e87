"""Partitions as brokers leave them: complete, torn, copied during writes, without their other files."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kbatch.errors import KafkaStorageError, OffsetOutOfRangeError
from spark_kbatch.files import Files
from spark_kbatch.opening.stores import open_for_reading
from tests.support.broker_dirs import (
    INDEX,
    LOG,
    TP,
    a_batch,
    a_partition,
    a_segment,
    batches,
    checkpoint,
    end_of,
    fetch,
    listing,
    read,
    records_in,
)
from tests.support.faults import ReadOnlyFiles
from tests.support.reference import frame_batch
from tests.support.store import reader_of


class CountingFiles(Files):
    """A disk that counts the bytes that are read."""

    def __init__(self) -> None:
        self.bytes_read = 0

    def read(self, path: Path, position: int = 0, size: int | None = None) -> bytes:
        data = super().read(path, position, size)
        self.bytes_read += len(data)
        return data

    def pread_into(self, descriptor: int, position: int, buffer: memoryview) -> int:
        count = super().pread_into(descriptor, position, buffer)
        self.bytes_read += count
        return count


def start_of(path: Path) -> int:
    return reader_of(open_for_reading(str(path))).edges([TP])[TP].log_start_offset


@pytest.mark.parametrize("index", [True, False], ids=["indexes", "no-indexes"])
def test_segments_are_read_in_order_from_any_offset_to_any(tmp_path: Path, index: bool) -> None:
    held = batches(0, 12), batches(12, 20), batches(20, 31)
    a_partition(tmp_path / "t-0", dict(zip((0, 12, 20), held, strict=True)), index=index)
    expected = records_in([data for part in held for data in part])

    for start in range(31):
        assert read(tmp_path, start=start, end=31) == expected[start:]
        assert read(tmp_path, start=start, end=min(start + 5, 31)) == expected[start : start + 5]


@pytest.mark.parametrize("index", [True, False], ids=["indexes", "no-indexes"])
@pytest.mark.parametrize("max_bytes", [1, 300, 1 << 20])
def test_a_fetch_returns_whole_batches_from_the_one_that_holds_the_offset(
    tmp_path: Path, max_bytes: int, index: bool
) -> None:
    held = batches(0, 30, n=3)
    a_partition(tmp_path / "t-0", {0: held}, index=index)
    logs = open_for_reading(str(tmp_path))

    for offset in random.Random(max_bytes).sample(range(30), 30):
        found, edges = fetch(logs, offset, max_bytes=max_bytes)
        first = offset // 3
        count = len(found.batches)
        assert bytes(found.data) == b"".join(held[first : first + count])
        assert found.position == sum(map(len, held[:first]))
        assert count >= 1
        assert count == 1 or len(found.data) <= max_bytes
        assert edges.log_end_offset == 30


def test_a_batch_larger_than_the_read_size_is_read(tmp_path: Path) -> None:
    held = [*batches(0, 4), a_batch(4, 5, value_bytes=700_000), *batches(6, 10)]
    a_partition(tmp_path / "t-0", {0: held}, index=False)

    assert read(tmp_path) == records_in(held)


@pytest.mark.parametrize("index", [True, False], ids=["indexes", "no-indexes"])
def test_gaps_that_compaction_left_are_not_data_loss(tmp_path: Path, index: bool) -> None:
    empty = frame_batch(b"", base_offset=41, last_offset_delta=3, records_count=0)
    held = {
        5: [a_batch(7, 9), a_batch(15)],
        20: [],
        30: [a_batch(33, 37), empty],
        60: [a_batch(61, 65, 66)],
        80: [],
    }
    a_partition(tmp_path / "t-0", held, index=index)
    expected = records_in([data for part in held.values() for data in part])
    assert [record.offset for record in expected] == [7, 9, 15, 33, 37, 61, 65, 66]

    assert (start_of(tmp_path), end_of(tmp_path)) == (5, 80)
    for start in range(5, 81):
        for end in (start, min(start + 4, 80), 80):
            wanted = [record for record in expected if start <= record.offset < end]
            assert read(tmp_path, start=start, end=end) == wanted


def test_the_log_starts_at_the_checkpoint_also_within_a_batch(tmp_path: Path) -> None:
    held = {4: batches(4, 10, n=3), 10: batches(10, 20)}
    a_partition(tmp_path / "t-0", held)
    expected = records_in([*held[4], *held[10]])

    for start, first in ((0, 4), (4, 4), (5, 5), (13, 13), (20, 20)):
        checkpoint(tmp_path, "log-start", {"t 0": start})
        assert start_of(tmp_path) == first
        assert read(tmp_path) == [record for record in expected if record.offset >= first]
    with pytest.raises(OffsetOutOfRangeError):
        read(tmp_path, start=19)


def test_a_log_start_above_the_end_is_an_empty_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a_partition(tmp_path / "t-0", {0: batches(0, 10)})
    checkpoint(tmp_path, "log-start", {"t 0": 25})

    assert (start_of(tmp_path), end_of(tmp_path), read(tmp_path)) == (25, 25, [])
    assert "read as empty" in caplog.messages[0]


def test_a_partition_without_segments_is_empty_at_its_log_start(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / "leader-epoch-checkpoint").write_text("0\n1\n0 14\n")
    checkpoint(tmp_path, "log-start", {"t 0": 14})

    assert (start_of(tmp_path), end_of(tmp_path), read(tmp_path)) == (14, 14, [])


@pytest.mark.parametrize(
    ("high_watermark", "end"),
    [pytest.param(7, 7, id="within-a-batch"), (3, 4), (20, 20), pytest.param(None, 4, id="none")],
)
def test_the_high_watermark_of_the_checkpoint_is_an_end_where_asked_for(
    tmp_path: Path, high_watermark: int | None, end: int
) -> None:
    held = batches(4, 20)
    a_partition(tmp_path / "t-0", {4: held})
    lines = {"t 1": 9} if high_watermark is None else {"t 0": high_watermark}
    checkpoint(tmp_path, "replication", lines)

    assert end_of(tmp_path, foreign_end="checkpoint") == end
    assert read(tmp_path, foreign_end="checkpoint") == records_in(held)[: end - 4]
    assert read(tmp_path) == records_in(held)


@pytest.mark.parametrize("name", ["recovery-point", "log-start"])
@pytest.mark.parametrize("content", [b"", b"\0" * 40, b"0\n5\nt 0 1\n", b"1\n1\nt 0 1\n", b"\xff"])
def test_a_damaged_checkpoint_says_nothing(tmp_path: Path, name: str, content: bytes) -> None:
    a_partition(tmp_path / "t-0", {0: batches(0, 10)})
    (tmp_path / f"{name}-offset-checkpoint").write_bytes(content)

    assert read(tmp_path) == records_in(batches(0, 10))


def test_segments_of_an_interrupted_swap_are_read_as_a_broker_would_after_its_start(
    tmp_path: Path,
) -> None:
    compacted = [a_batch(1), a_batch(17, 18)]
    directory = a_partition(
        tmp_path / "t-0", {0: batches(0, 10), 10: batches(10, 19), 19: batches(19, 25)}
    )
    swap = a_segment(tmp_path / "made", 0, compacted)
    swap.rename(directory / f"{LOG}.swap")
    swap.with_suffix(".index").rename(directory / f"{INDEX}.swap")
    a_segment(tmp_path / "made", 25, batches(25, 30)).rename(directory / f"{25:020d}.log.deleted")

    assert read(tmp_path) == records_in([*compacted, *batches(19, 25)])
    assert end_of(tmp_path) == 25


def test_a_segment_that_is_compacted_while_it_is_read_shows_what_is_left(tmp_path: Path) -> None:
    held = batches(10, 50)
    directory = a_partition(tmp_path / "t-0", {10: held, 50: batches(50, 54)})
    logs = open_for_reading(str(tmp_path))
    first, _ = fetch(logs, 10, max_bytes=1)
    assert first.batches[-1][1].next_offset == 12

    # All have one size, so every position is still that of a batch, but of another one.
    assert len({len(data) for data in held}) == 1
    for path in a_segment(tmp_path / "made", 10, held[10:]).parent.iterdir():
        path.replace(directory / path.name)

    found, _ = fetch(logs, 12, max_bytes=1)
    assert bytes(found.data) == held[10]


def test_a_segment_that_is_removed_while_it_is_read_is_out_of_range(tmp_path: Path) -> None:
    directory = a_partition(tmp_path / "t-0", {0: batches(0, 10), 10: batches(10, 20)})
    logs = open_for_reading(str(tmp_path))
    fetch(logs, 0, max_bytes=1)
    (directory / LOG).rename(directory / f"{LOG}.deleted")

    with pytest.raises(OffsetOutOfRangeError, match="holds offsets 10 to 20"):
        fetch(logs, 2, max_bytes=1)
    assert fetch(logs, 10, max_bytes=1)[0].batches[0][1].base_offset == 10


def test_new_batches_of_a_broker_are_seen_without_reading_the_log_again(tmp_path: Path) -> None:
    held = batches(0, 40, value_bytes=20_000)
    log = a_segment(tmp_path / "t-0", 0, held, index=False)
    files = CountingFiles()
    logs = open_for_reading(str(tmp_path), files=files)
    assert reader_of(logs).edges([TP])[TP].log_end_offset == 40
    assert files.bytes_read >= log.stat().st_size

    files.bytes_read = 0
    with log.open("ab") as file:
        file.write(a_batch(40, 41) + a_batch(42)[:-1])
    assert reader_of(logs).edges([TP])[TP].log_end_offset == 42
    with log.open("ab") as file:
        file.write(a_batch(42)[-1:])
    assert reader_of(logs).edges([TP])[TP].log_end_offset == 43
    a_segment(tmp_path / "t-0", 43, [a_batch(43)], index=False)
    assert reader_of(logs).edges([TP])[TP].log_end_offset == 44
    assert files.bytes_read < log.stat().st_size / 2

    offset, files.bytes_read = 0, 0
    while offset < 44:
        found, _ = fetch(logs, offset, max_bytes=100_000)
        offset = found.batches[-1][1].next_offset
    assert files.bytes_read < 2 * log.stat().st_size


def test_opening_reads_little_where_there_is_an_index(tmp_path: Path) -> None:
    held = {0: batches(0, 40, value_bytes=20_000), 40: batches(40, 80, value_bytes=20_000)}
    a_partition(tmp_path / "t-0", held)
    files = CountingFiles()
    logs = open_for_reading(str(tmp_path), files=files)

    assert reader_of(logs).edges([TP])[TP].log_end_offset == 80
    # All batch headers are read, for transactions, but no records.
    assert files.bytes_read < 80 * len(held[40][-1]) / 2 / 3

    files.bytes_read = 0
    found, _ = fetch(logs, 33, max_bytes=1)
    assert found.batches[0][1].base_offset == 32
    assert files.bytes_read < 5 * len(held[40][-1])


def test_a_truncated_and_rewritten_tail_is_seen(tmp_path: Path) -> None:
    held = batches(0, 20)
    log = a_segment(tmp_path / "t-0", 0, held, index=False)
    logs = open_for_reading(str(tmp_path))
    assert reader_of(logs).edges([TP])[TP].log_end_offset == 20

    size = sum(map(len, held[:5]))
    os.truncate(log, size)
    assert reader_of(logs).edges([TP])[TP].log_end_offset == 10
    with log.open("ab") as file:
        file.write(a_batch(10, 11, 12, value_bytes=7))
    assert reader_of(logs).edges([TP])[TP].log_end_offset == 13
    found, _ = fetch(logs, 10, max_bytes=1 << 20)
    assert bytes(found.data) == a_batch(10, 11, 12, value_bytes=7)


def test_recovery_in_memory_writes_nothing(tmp_path: Path) -> None:
    directory = a_partition(tmp_path / "t-0", {0: batches(0, 10), 10: batches(10, 20)}, index=False)
    with (directory / f"{10:020d}.log").open("ab") as file:
        file.write(bytes(4096))
    (directory / INDEX).write_bytes(bytes(80))
    a_segment(tmp_path / "made", 0, [a_batch(3)]).rename(directory / f"{LOG}.swap")
    (directory / f"{10:020d}.log.cleaned").write_bytes(b"")
    (directory / f"{30:020d}.log.deleted").write_bytes(a_batch(30))
    (tmp_path / "made").rmdir() if not any((tmp_path / "made").iterdir()) else None
    checkpoint(tmp_path, "recovery-point", {"t 0": 0})
    checkpoint(tmp_path, "replication", {"t 0": 15})
    (tmp_path / ".lock").write_bytes(b"")
    before = listing(tmp_path)

    for foreign_end in ("log", "checkpoint"):
        assert read(tmp_path, files=ReadOnlyFiles(), foreign_end=foreign_end)
    assert listing(tmp_path) == before


def test_a_torn_tail_before_an_empty_segment_is_left_out(tmp_path: Path) -> None:
    held = batches(0, 10)
    directory = a_partition(tmp_path / "t-0", {0: held, 10: []})
    log = directory / LOG
    log.write_bytes(log.read_bytes()[:-1])

    assert end_of(tmp_path) == 8
    assert read(tmp_path) == records_in(held[:-1])


def test_a_partition_that_is_gone_is_an_error_with_its_path(tmp_path: Path) -> None:
    directory = a_partition(tmp_path / "t-0", {0: batches(0, 10)})
    logs = open_for_reading(str(tmp_path))
    fetch(logs, 0, max_bytes=1)
    directory.rename(tmp_path / f"t-0.{'0' * 32}-delete")

    with pytest.raises(KafkaStorageError, match=f"{directory} is gone: the topic was deleted"):
        fetch(logs, 2, max_bytes=1)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_log_is_read_as_its_batches_say(data: st.DataObject) -> None:
    """Segments, gaps, indexes with some entries, a tail, and where and how much is read."""
    draw = data.draw
    bases, held, offset = [0], {0: []}, 0  # type: ignore[var-annotated]
    for _ in range(draw(st.integers(0, 12))):
        offset += draw(st.sampled_from([0, 0, 0, 1, 5]))
        if draw(st.integers(0, 3)) == 0 and offset > bases[-1]:
            bases.append(offset)
            held[offset] = []
        offsets = sorted(draw(st.sets(st.integers(0, 6), min_size=1, max_size=4)))
        held[bases[-1]].append(a_batch(*(offset + delta for delta in offsets)))
        offset += offsets[-1] + 1
    tails = [b"", bytes(70), b"\x02" * 100, a_batch(offset)[:-1]]
    # A file that starts with no valid batch is no log, unless it is empty or zero.
    tail = draw(st.sampled_from(tails if held[bases[-1]] else tails[:2]))
    expected = records_in([part for parts in held.values() for part in parts])
    with tempfile.TemporaryDirectory() as folder:
        directory = a_partition(Path(folder) / "t-0", held)
        for index in directory.glob("*.index"):
            entries = index.read_bytes()
            kept = [e for e in range(0, len(entries), 8) if draw(st.booleans())]
            index.write_bytes(b"".join(entries[e : e + 8] for e in kept))
        with (directory / f"{bases[-1]:020d}.log").open("ab") as file:
            file.write(tail)
        logs = open_for_reading(folder)
        assert reader_of(logs).edges([TP])[TP].log_end_offset == offset
        for _ in range(4):
            start = draw(st.integers(0, offset))
            end = draw(st.integers(start, offset))
            wanted = [record for record in expected if start <= record.offset < end]
            assert read(Path(folder), start=start, end=end) == wanted
            found, _ = fetch(logs, start, max_bytes=draw(st.sampled_from([1, 200, 1 << 20])))
            if found.batches:
                next_offset = next(r.offset for r in expected if r.offset >= start)
                first = found.batches[0][1]
                assert first.base_offset <= next_offset <= first.last_offset
            else:
                assert not [record for record in expected if record.offset >= start]
