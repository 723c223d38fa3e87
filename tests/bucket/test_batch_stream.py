"""Batches of extents: few requests, final offsets, and nothing that cannot be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from spark_kbatch.bucket import batch_stream
from spark_kbatch.bucket import objects as objects_module
from spark_kbatch.bucket.batch_stream import WINDOWS_AHEAD, BatchStream, MissingObjectError
from spark_kbatch.bucket.objects import MemoryObjects
from spark_kbatch.bucket.placement import PlacedExtent
from spark_kbatch.errors import CorruptRecordError, ObjectStoreError
from spark_kbatch.ledger.extents import FINAL_EPOCH, DataExtent
from spark_kbatch.model import LONG_MAX
from spark_kbatch.record import codec
from spark_kbatch.record.header import BatchHeader, LogRead
from tests.support.reference import Record, encode_batch

EPOCH = 3


def batch(*values: str, base_offset: int = 0) -> bytes:
    records = [Record(base_offset + at, 1, None, one.encode()) for at, one in enumerate(values)]
    return encode_batch(records, base_offset=base_offset)


def extent_of(*counts: int) -> tuple[bytes, int]:
    """Return batches with so many records each, from offset 0, and how many offsets they have."""
    data, offset = b"", 0
    for count in counts:
        data += batch(*(f"{offset + at}" for at in range(count)), base_offset=offset)
        offset += count
    return data, offset


def placed(
    objects: MemoryObjects, *extents: Sequence[int], name: str = "data", gap: int = 0
) -> list[PlacedExtent]:
    """Put extents with batches of these counts into one object, and return where they are, from offset 0 on."""
    data, offset, found = b"", 0, []
    for counts in extents:
        batches, span = extent_of(*counts)
        where = DataExtent(name, len(data), len(batches), span, span, 1, 1)
        found.append(PlacedExtent(where, offset, EPOCH, offset, offset + span))
        data += batches + bytes(gap)
        offset += span
    objects.put(name, data)
    return found


class Counting(MemoryObjects):
    """Objects that count the ranges that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges: list[tuple[str, int, int]] = []

    def get_range(self, name: str, position: int, size_in_bytes: int) -> bytes | None:
        self.ranges.append((name, position, size_in_bytes))
        return super().get_range(name, position, size_in_bytes)


def taken(stream: BatchStream, max_bytes: int = LONG_MAX) -> list[LogRead]:
    found = []
    while (read := stream.take(max_bytes)) is not None:
        found.append(read)
    return found


def headers(reads: Sequence[LogRead]) -> list[BatchHeader]:
    return [header for read in reads for _, header in read.batches]


def offsets(reads: Sequence[LogRead]) -> list[tuple[int, int]]:
    return [(one.base_offset, one.next_offset) for one in headers(reads)]


def records(reads: Sequence[LogRead]) -> list[tuple[int, bytes]]:
    found = []
    for read in reads:
        rows = codec.decode_batches(
            read.data, read.batches, columns=["offset", "value"], max_bytes=1 << 20
        )
        found += [(row["offset"], row["value"]) for part in rows for row in part.to_pylist()]
    return found


def test_batches_get_final_offsets_and_epochs_and_are_decoded() -> None:
    objects = MemoryObjects()
    stream = BatchStream(objects, placed(objects, [2, 1], [3]), 0)

    reads = taken(stream)

    assert offsets(reads) == [(0, 2), (2, 3), (3, 6)]
    assert {one.partition_leader_epoch for one in headers(reads)} == {EPOCH}
    assert records(reads) == [
        (0, b"0"), (1, b"1"), (2, b"2"), (3, b"0"), (4, b"1"), (5, b"2"),
    ]  # fmt: skip
    assert stream.next_offset == 6


def test_neighbours_are_read_by_one_request_and_small_gaps_are_read_too() -> None:
    for gap, count in ((0, 1), (1000, 1), (100_000, 3)):
        objects = Counting()
        extents = placed(objects, [1], [1], [1], gap=gap)

        assert offsets(taken(BatchStream(objects, extents, 0))) == [(0, 1), (1, 2), (2, 3)]
        assert len(objects.ranges) == count, gap


def test_extents_of_other_objects_and_earlier_positions_are_read_by_themselves() -> None:
    objects = Counting()
    first, second = placed(objects, [1], [1], name="a")
    (other,) = placed(objects, [1], name="b")
    turned = [second._replace(base_offset=0, start_offset=0, next_offset=1),
              first._replace(base_offset=1, start_offset=1, next_offset=2),
              other._replace(base_offset=2, start_offset=2, next_offset=3)]  # fmt: skip

    assert offsets(taken(BatchStream(objects, turned, 0))) == [(0, 1), (1, 2), (2, 3)]
    assert len(objects.ranges) == 3


@pytest.mark.parametrize("window_bytes", [1, 50, 100, 1000])
def test_a_batch_may_be_larger_than_what_one_request_reads(
    monkeypatch: pytest.MonkeyPatch, window_bytes: int
) -> None:
    monkeypatch.setattr(batch_stream, "WINDOW_BYTES", window_bytes)
    objects = Counting()
    extents = placed(objects, [5, 1, 7], [1], [2, 2])

    reads = taken(BatchStream(objects, extents, 0))

    assert [offset for offset, _ in records(reads)] == [*range(18)]
    assert max(size for _, _, size in objects.ranges) <= max(window_bytes, 1)


def test_batches_that_end_before_the_offset_are_left_out() -> None:
    objects = MemoryObjects()
    extents = placed(objects, [2, 2, 2])

    assert offsets(taken(BatchStream(objects, extents, 3))) == [(2, 4), (4, 6)]
    assert offsets(taken(BatchStream(objects, extents, 4))) == [(4, 6)]


def test_a_read_has_as_many_bytes_as_asked_for_and_one_batch_at_least() -> None:
    objects = MemoryObjects()
    size = len(batch("0"))
    extents = placed(objects, [1, 1, 1])

    reads = taken(BatchStream(objects, extents, 0), 2 * size)
    assert [len(read.batches) for read in reads] == [2, 1]
    assert [read.position for read in reads] == [0, 2 * size]
    assert [offset for offset, _ in records(reads)] == [0, 1, 2]

    stream = BatchStream(objects, extents, 0)
    assert [len(read.batches) for read in taken(stream, 1)] == [1, 1, 1]
    refused = BatchStream(objects, extents, 0).take(1, min_one_batch=False)
    assert refused is not None
    assert refused.batches == []


def test_where_ranges_were_replaced_within_a_batch_no_record_is_read_twice() -> None:
    objects = MemoryObjects()
    (before,) = placed(objects, [4], name="old")
    (after,) = placed(objects, [4], name="new")
    extents = [
        before._replace(next_offset=2),
        after._replace(start_offset=2),  # the same records, elsewhere
    ]

    stream = BatchStream(objects, extents, 0)
    first = stream.take(LONG_MAX)
    second = stream.take(LONG_MAX)

    assert first is not None
    assert second is not None
    assert (offsets([first]), offsets([second])) == ([(0, 4)], [(0, 4)])


def test_segments_keep_their_own_offsets_and_epochs() -> None:
    objects = MemoryObjects()
    data = encode_batch([Record(7, 1, None, b"v")], base_offset=7, leader_epoch=9)
    objects.put("segment", data)
    extent = DataExtent("segment", 0, len(data), 3, 1, 1, 1)

    reads = taken(BatchStream(objects, [PlacedExtent(extent, 5, FINAL_EPOCH, 5, 8)], 0))

    assert offsets(reads) == [(7, 8)]
    assert headers(reads)[0].partition_leader_epoch == 9


# Failures.


class CutsShort(MemoryObjects):
    """Objects of which the first answers are too short."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.left = times

    def get_range(self, name: str, position: int, size_in_bytes: int) -> bytes | None:
        data = super().get_range(name, position, size_in_bytes)
        self.left -= 1
        return data[:-1] if data is not None and self.left >= 0 else data


def test_an_answer_that_is_too_short_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects_module, "_PAUSE_MS", 0)
    objects = CutsShort(2)
    assert offsets(taken(BatchStream(objects, placed(objects, [1]), 0))) == [(0, 1)]

    objects = CutsShort(100)
    with pytest.raises(ObjectStoreError, match=r"\d+ bytes came of \d+"):
        taken(BatchStream(objects, placed(objects, [1]), 0))


def test_what_was_read_before_a_missing_object_is_returned_first() -> None:
    objects = MemoryObjects()
    (first,) = placed(objects, [2])
    gone = first.extent._replace(name="gone")
    stream = BatchStream(objects, [first, PlacedExtent(gone, 2, EPOCH, 2, 4)], 0)

    read = stream.take(LONG_MAX)

    assert read is not None
    assert offsets([read]) == [(0, 2)]
    with pytest.raises(MissingObjectError, match="gone"):
        stream.take(LONG_MAX)


def damaged(data: bytes, position: int, value: int) -> bytes:
    return data[:position] + bytes([value]) + data[position + 1 :]


@pytest.mark.parametrize(
    ("position", "value", "what"),
    [
        pytest.param(8, 0x7F, "batch length", id="a length beyond the extent"),
        pytest.param(16, 1, "magic", id="an older format"),
        pytest.param(
            7, 9, "base offset of a batch: expected 2, found 10", id="an offset beyond the extent"
        ),
    ],
)
def test_a_header_that_cannot_be_is_an_error_with_name_and_position(
    position: int, value: int, what: str
) -> None:
    objects = MemoryObjects()
    extents = placed(objects, [1], [1, 1])
    size = len(batch("0"))
    whole = objects.get("data")
    assert whole is not None
    objects.put("data", damaged(whole, 2 * size + position, value))
    stream = BatchStream(objects, extents, 0)

    read = stream.take(LONG_MAX)

    assert read is not None
    assert offsets([read]) == [(0, 1), (1, 2)]
    with pytest.raises(CorruptRecordError, match=what) as raised:
        stream.take(LONG_MAX)
    assert raised.value.path == "data"
    assert 2 * size <= raised.value.position < 3 * size


def test_a_damaged_record_is_found_by_who_decodes_it() -> None:
    objects = MemoryObjects()
    extents = placed(objects, [1])
    whole = objects.get("data")
    assert whole is not None
    objects.put("data", damaged(whole, len(whole) - 2, 0x31))

    with pytest.raises(CorruptRecordError, match="CRC"):
        records(taken(BatchStream(objects, extents, 0)))


# Reading ahead.


class WhenAsked(Executor):
    """Runs a task when its result is asked for, and counts those that are waiting."""

    def __init__(self) -> None:
        self.waiting = self.most = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        executor = self

        class Waiting(Future[Any]):
            def result(self, timeout: float | None = None) -> Any:
                executor.waiting -= 1
                return fn(*args, **kwargs)

        return Waiting()


def test_only_so_many_windows_are_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_stream, "WINDOW_BYTES", 100)
    objects, executor = MemoryObjects(), WhenAsked()
    stream = BatchStream(objects, placed(objects, [1] * 40), 0, executor=executor)

    assert offsets(taken(stream)) == [(at, at + 1) for at in range(40)]

    assert executor.most == WINDOWS_AHEAD + 1
    assert executor.waiting == 0


@pytest.mark.parametrize(
    ("span", "shift", "is_error"),
    [
        pytest.param(6, 1, True, id="dense, forward"),
        pytest.param(6, -1, True, id="dense, back"),
        pytest.param(9, -1, True, id="with gaps, back"),
        pytest.param(9, 1, False, id="with gaps, into one"),
        pytest.param(9, 4, True, id="with gaps, beyond the extent"),
    ],
)
@pytest.mark.parametrize("base", [0, 100], ids=["staged", "final"])
def test_a_batch_begins_where_the_one_before_ended_or_after_it_where_there_are_gaps(
    span: int, shift: int, base: int, *, is_error: bool
) -> None:
    """No CRC covers where a batch begins."""
    objects, batches = MemoryObjects(), (0, 2, 4 + shift)
    data = b"".join(batch("a", "b", base_offset=base + offset) for offset in batches)
    objects.put("data", data)
    extent = DataExtent("data", 0, len(data), span, 6, 1, 1)
    epoch = FINAL_EPOCH if base else EPOCH
    stream = BatchStream(objects, [PlacedExtent(extent, 100, epoch, 100, 100 + span)], 0)

    if is_error:
        assert offsets([stream.take(LONG_MAX)]) == [(100, 102), (102, 104)]  # type: ignore[list-item]
        with pytest.raises(CorruptRecordError, match="offset") as raised:
            stream.take(LONG_MAX)
        assert (raised.value.path, raised.value.position) == ("data", len(data) // 3 * 2)
    else:
        assert offsets(taken(stream))[-1] == (105, 107)


@pytest.mark.parametrize("cut", [1, 61, 100])
def test_what_is_left_of_an_object_that_was_cut_short_is_returned_first(cut: int) -> None:
    objects = MemoryObjects()
    extents = placed(objects, [1], [1])
    data = objects.get("data") or b""
    objects.put("data", data[:-cut])
    stream = BatchStream(objects, extents, 0)

    if cut < len(data) // 2:
        assert offsets([stream.take(LONG_MAX)]) == [(0, 1)]  # type: ignore[list-item]
    with pytest.raises(CorruptRecordError, match="cut short") as raised:
        stream.take(LONG_MAX)
    assert raised.value.found == len(data) - cut


def test_an_object_that_is_cut_where_a_batch_ends_is_not_whole() -> None:
    objects = MemoryObjects()
    (extent,) = placed(objects, [1, 1])
    objects.put("data", batch("0"))
    stream = BatchStream(objects, [extent], 0)

    assert offsets([stream.take(LONG_MAX)]) == [(0, 1)]  # type: ignore[list-item]
    with pytest.raises(CorruptRecordError, match="cut short"):
        stream.take(LONG_MAX)
