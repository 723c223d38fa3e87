"""Logs of brokers with torn tails, damaged batches and indexes that mislead."""

from __future__ import annotations

import logging
import os
import random
import struct
from pathlib import Path

import pytest

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.files import Files
from spark_kbatch.log import segment_scan
from spark_kbatch.opening.stores import open_for_reading
from tests.support.broker_dirs import (
    LOG,
    TP,
    a_batch,
    a_partition,
    a_segment,
    batches,
    checkpoint,
    end_of,
    fetch,
    read,
    records_in,
    whole_batches,
)
from tests.support.reference import Record, encode_batch
from tests.support.store import reader_of


def test_every_cut_of_the_tail_keeps_the_whole_batches_before_it(tmp_path: Path) -> None:
    held = batches(0, 8)
    log = a_segment(tmp_path / "t-0", 0, held)
    whole = log.read_bytes()

    for size in range(len(whole) - len(held[-1]) - len(held[-2]), len(whole) + 1):
        log.write_bytes(whole[:size])
        kept = records_in(whole_batches(whole[:size]))
        assert end_of(tmp_path) == kept[-1].offset + 1
        assert read(tmp_path) == kept


@pytest.mark.parametrize(
    "tail",
    [
        pytest.param(b"\0", id="a-zero"),
        pytest.param(bytes(5000), id="zeros"),
        pytest.param(bytes(3 << 20), id="preallocated"),
        pytest.param(random.Random(1).randbytes(3000), id="garbage"),
        pytest.param(a_batch(8, 9)[:-1], id="torn"),
        pytest.param(a_batch(8, 9)[:-10] + bytes(10), id="zeros-within-the-last-batch"),
        pytest.param(a_batch(8, 9)[:-10] + bytes(5000), id="zeros-from-within-the-last-batch"),
        pytest.param(a_batch(2, 3), id="offsets-that-do-not-grow"),
        pytest.param(a_batch(2**31, 2**31 + 1), id="offsets-too-far-from-the-segments"),
    ],
)
@pytest.mark.parametrize("index", [True, False], ids=["indexes", "no-indexes"])
def test_an_invalid_tail_is_left_out_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, tail: bytes, index: bool
) -> None:
    held = batches(0, 8)
    log = a_segment(tmp_path / "t-0", 0, held, index=index)
    log.write_bytes(log.read_bytes() + tail)
    logs = open_for_reading(str(tmp_path))

    assert [reader_of(logs).edges([TP])[TP].high_watermark for _ in range(3)] == [8, 8, 8]
    assert read(tmp_path, end=8) == records_in(held)

    with caplog.at_level(logging.WARNING):
        caplog.clear()
        logs = open_for_reading(str(tmp_path))
        for _ in range(3):
            reader_of(logs).edges([TP])
    (said,) = caplog.messages
    assert f"the last {len(tail)} bytes of {log} are left out" in said
    assert "read up to offset 8" in said


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda _: None, id="missing"),
        pytest.param(lambda _: b"", id="empty"),
        pytest.param(lambda data: bytes(len(data)), id="zeroed"),
        pytest.param(lambda data: data + bytes(10_485_760 - len(data)), id="preallocated"),
        pytest.param(lambda data: data[:-3], id="cut"),
        pytest.param(lambda data: random.Random(2).randbytes(len(data)), id="garbage"),
        pytest.param(lambda data: data[:16] + bytes(8) + data[24:], id="a-zero-entry"),
        pytest.param(lambda data: data[8:] + data[:8], id="out-of-order"),
        pytest.param(lambda data: data + struct.pack(">ii", 2000, 3000), id="past-the-end"),
        pytest.param(lambda data: data + struct.pack(">ii", -5, -7), id="negative"),
        pytest.param(
            lambda data: b"".join(
                struct.pack(">ii", offset, position + 1)
                for offset, position in struct.iter_unpack(">ii", data)
            ),
            id="positions-within-batches",
        ),
        pytest.param(
            lambda data: b"".join(
                struct.pack(">ii", offset + 1, position)
                for offset, position in struct.iter_unpack(">ii", data)
            ),
            id="offsets-of-a-larger-append",
        ),
        pytest.param(
            lambda data: b"".join(
                struct.pack(">ii", max(offset - 9, number), position)
                for number, (offset, position) in enumerate(struct.iter_unpack(">ii", data))
            ),
            id="offsets-of-batches-before",
        ),
    ],
)
def test_an_index_is_a_hint_that_never_changes_what_is_read(tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    held = batches(0, 40)
    directory = a_partition(tmp_path / "t-0", {0: held, 40: batches(40, 60)})
    expected = records_in([*held, *batches(40, 60)])
    for index in directory.glob("*.index"):
        data = damage(index.read_bytes())
        if data is None:
            index.unlink()
        else:
            index.write_bytes(data)

    assert end_of(tmp_path) == 60
    assert read(tmp_path) == expected
    for start in range(0, 60, 7):
        assert read(tmp_path, start=start, end=start + 1) == expected[start : start + 1]


def test_an_index_entry_that_leads_to_what_looks_like_a_batch_is_not_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inner = bytearray(a_batch(3))
    inner[-1] ^= 1
    outer = encode_batch(
        [Record(offset, 0, None, bytes(inner)) for offset in (0, 1, 2)], base_offset=0
    )
    held = [outer, a_batch(3, 4), a_batch(5, 6)]
    log = a_segment(tmp_path / "t-0", 0, held, index=False)
    position = outer.rindex(bytes(inner))
    log.with_suffix(".index").write_bytes(struct.pack(">ii", 4, position))

    assert end_of(tmp_path) == 7
    assert read(tmp_path, start=4) == records_in(held)[4:]
    assert caplog.messages == []


def test_no_changed_byte_of_an_index_changes_what_is_read(tmp_path: Path) -> None:
    held = batches(0, 10)
    index = a_segment(tmp_path / "t-0", 0, held).with_suffix(".index")
    whole = index.read_bytes()
    expected = records_in(held)

    for position in range(len(whole)):
        changed = bytearray(whole)
        changed[position] ^= 0x41
        index.write_bytes(changed)
        assert end_of(tmp_path) == 10
        assert read(tmp_path, start=7, end=10) == expected[7:]


def test_a_changed_byte_is_an_error_or_recognised_and_never_wrong_data(tmp_path: Path) -> None:
    held = batches(0, 4)
    log = a_segment(tmp_path / "t-0", 0, held, index=False)
    whole = log.read_bytes()
    expected = [record[1:] for record in records_in(held)]
    errors = []

    for position in range(len(whole)):
        changed = bytearray(whole)
        changed[position] ^= 0x10
        log.write_bytes(changed)
        try:
            found = [record[1:] for record in read(tmp_path)]
        except CorruptRecordError as error:
            errors.append(error)
        else:
            # The tail starts at the last batch; no one can tell if an epoch is damaged.
            assert found in (expected, expected[:-2])
    assert {error.path for error in errors} == {str(log)}
    assert len(errors) > len(whole) // 3


def test_a_damaged_batch_in_the_middle_is_an_error_and_what_is_before_it_can_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    held = batches(0, 20)
    log = a_segment(tmp_path / "t-0", 0, held, index=False)
    position = sum(map(len, held[:5]))
    with log.open("r+b") as file:
        file.seek(position + 100)
        file.write(b"\xff")

    assert end_of(tmp_path) == 20
    assert "reading it is an error" in caplog.messages[0]
    with pytest.raises(CorruptRecordError) as caught:
        read(tmp_path)
    assert (caught.value.path, caught.value.position) == (str(log), position)
    assert read(tmp_path, end=10) == records_in(held[:5])
    assert read(tmp_path, start=12) == records_in(held[6:])


@pytest.mark.parametrize(
    ("position", "value"),
    [
        pytest.param(16, b"\x07", id="magic"),
        pytest.param(8, b"\x7f", id="length"),
        pytest.param(11, b"\x00", id="length-low-byte"),
    ],
)
def test_an_impossible_header_in_the_middle_is_an_error_after_an_index_entry_that_skips_it(
    tmp_path: Path, position: int, value: bytes
) -> None:
    held = batches(0, 20)
    log = a_segment(tmp_path / "t-0", 0, held)
    start = sum(map(len, held[:5]))
    with log.open("r+b") as file:
        file.seek(start + position)
        file.write(value)

    assert read(tmp_path, end=10) == records_in(held[:5])
    assert read(tmp_path, start=14) == records_in(held[7:])
    with pytest.raises(CorruptRecordError, match=LOG):
        read(tmp_path)


@pytest.mark.parametrize("max_bytes", [1, 1 << 20])
def test_a_base_offset_that_hides_the_batches_after_it_is_an_error(
    tmp_path: Path, max_bytes: int
) -> None:
    held = batches(0, 20)
    log = a_segment(tmp_path / "t-0", 0, held)
    with log.open("r+b") as file:
        file.seek(sum(map(len, held[:5])) + 6)
        file.write(b"\x01")  # 256 more
    logs = open_for_reading(str(tmp_path))

    found, _ = fetch(logs, 0, max_bytes=max_bytes)
    assert found.batches[-1][1].next_offset <= 10
    with pytest.raises(CorruptRecordError, match="base offset"):
        fetch(logs, 10, max_bytes=max_bytes)


@pytest.mark.parametrize(
    ("hole", "end"), [pytest.param(1 << 20, 20, id="small"), pytest.param(20 << 20, 10, id="large")]
)
def test_a_hole_of_zeros_ends_the_log_unless_a_batch_follows_closely(
    tmp_path: Path, hole: int, end: int, caplog: pytest.LogCaptureFixture
) -> None:
    held = batches(0, 20)
    log = a_segment(tmp_path / "t-0", 0, held[:5], index=False)
    size = log.stat().st_size
    os.truncate(log, size + hole)
    with log.open("ab") as file:
        file.write(b"".join(held[5:]))

    assert end_of(tmp_path) == end
    assert read(tmp_path, end=10) == records_in(held[:5])
    if end > 10:
        assert read(tmp_path) == records_in(held), "no offset is missing"
        assert f"position {size + 8} of {log}" in caplog.text


def test_a_base_offset_that_is_too_high_does_not_move_the_logs_end(tmp_path: Path) -> None:
    held = batches(0, 20)
    log = a_segment(tmp_path / "t-0", 0, held, index=False)
    with log.open("r+b") as file:
        file.seek(len(held[0]) + 5)
        file.write(b"\x01")  # 65,536 more

    assert end_of(tmp_path) == 20
    assert read(tmp_path, end=2) == records_in(held[:1])
    with pytest.raises(CorruptRecordError, match="base offset"):
        read(tmp_path)


def test_a_segment_that_runs_into_the_next_one_is_an_error(tmp_path: Path) -> None:
    held = batches(0, 12)
    a_partition(tmp_path / "t-0", {0: held, 11: batches(11, 15)})

    with pytest.raises(CorruptRecordError, match="expected 11 or less, found 12"):
        read(tmp_path)


def test_past_the_recovery_point_the_first_damaged_batch_ends_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    held = {0: batches(0, 10), 10: batches(10, 20), 20: batches(20, 30)}
    directory = a_partition(tmp_path / "t-0", held, index=False)
    log = directory / f"{10:020d}.log"
    whole = log.read_bytes()
    log.write_bytes(whole[:-1])

    checkpoint(tmp_path, "recovery-point", {"t 0": 10})
    assert end_of(tmp_path) == 18
    assert read(tmp_path) == records_in([*held[0], *held[10][:-1]])
    assert "and the segments after it, from offset 20 on, are left out" in caplog.messages[0]

    log.write_bytes(whole[:100] + b"\xff" + whole[101:])
    assert end_of(tmp_path) == 10
    assert read(tmp_path) == records_in(held[0])

    # Below it, and after a clean shutdown, a broker checks only the end.
    checkpoint(tmp_path, "recovery-point", {"t 0": 20})
    assert end_of(tmp_path) == 30
    checkpoint(tmp_path, "recovery-point", {"t 0": 10})
    (tmp_path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":1}')
    assert end_of(tmp_path) == 30
    with pytest.raises(CorruptRecordError, match=f"{10:020d}.log"):
        read(tmp_path)


def test_an_old_recovery_point_changes_nothing_in_a_sound_log(tmp_path: Path) -> None:
    held = {0: batches(0, 10), 10: batches(10, 20)}
    a_partition(tmp_path / "t-0", held)
    checkpoint(tmp_path, "recovery-point", {"t 0": 0, "other 1": 7})

    assert read(tmp_path) == records_in([*held[0], *held[10]])


class CountedFiles(Files):
    """A disk that counts the bytes that are read."""

    bytes_read = 0

    def pread_into(self, descriptor: int, position: int, buffer: memoryview) -> int:
        count = super().pread_into(descriptor, position, buffer)
        self.bytes_read += count
        return count


def hostile(size: int) -> bytes:
    """Bytes of which every 17th looks like the start of a batch that is half as long as all of them."""
    candidate = struct.pack(">qi", 9, size // 2) + bytes(4) + b"\2"
    return (bytes(5) + candidate * (size // len(candidate) + 1))[:size]


def test_a_tail_of_fake_batches_is_searched_in_linear_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_scan, "_TRIED_BYTES", 0)
    size = 500_000
    log = a_segment(tmp_path / "t-0", 0, batches(0, 8), index=False)
    log.write_bytes(log.read_bytes() + hostile(size))
    files = CountedFiles()

    logs = open_for_reading(str(tmp_path), files=files)
    assert reader_of(logs).edges([TP])[TP].high_watermark == 8
    assert files.bytes_read < 10 * size


def test_a_batch_after_fake_batches_is_found(tmp_path: Path) -> None:
    held = batches(0, 20)
    log = a_segment(tmp_path / "t-0", 0, held[:5], index=False)
    log.write_bytes(log.read_bytes() + hostile(20_000) + b"".join(held[5:]))

    assert end_of(tmp_path) == 20
    assert read(tmp_path) == records_in(held), "no offset is missing"


def test_damage_everywhere_takes_a_bounded_search_each_time(tmp_path: Path) -> None:
    held = [bytearray(a_batch(at)) for at in range(600)]
    for damaged in held[1:-1:2]:
        damaged[-1] ^= 1
    log = a_segment(tmp_path / "t-0", 0, [bytes(data) for data in held], index=False)
    files = CountedFiles()

    logs = open_for_reading(str(tmp_path), files=files)
    assert reader_of(logs).edges([TP])[TP].high_watermark == 600
    assert log.stat().st_size > 60_000
    assert files.bytes_read < 300 * 3 * 4096 + 10 * log.stat().st_size
