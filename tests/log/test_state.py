"""The two slots: where each field is, and which slot counts if one is damaged."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.files import Files
from spark_kbatch.log import state as log_state
from spark_kbatch.log.state import (
    SLOT_SIZE,
    STATE_FILE,
    LogState,
    boot_id,
    compact,
    create_state,
    empty_state,
    pack,
    read_high_watermarks,
    read_state,
    unpack,
    write_state,
)
from tests.support import reference
from tests.support.faults import Fault, FaultyFiles, died

# Field, position, bytes, as in the module's table.
LAYOUT = [
    ("sequence", 8, 8),
    ("log_start_offset", 16, 8),
    ("log_end_offset", 24, 8),
    ("high_watermark", 32, 8),
    ("last_stable_offset", 40, 8),
    ("leader_epoch", 48, 4),
    ("segment_base_offset", 52, 8),
    ("segment_size", 60, 8),
    ("index_size", 68, 8),
    ("time_index_size", 76, 8),
    ("max_timestamp", 84, 8),
    ("max_timestamp_offset", 92, 8),
    ("bytes_since_index_entry", 100, 8),
    ("recovery_point", 108, 8),
    ("prepare_offset", 116, 8),
    ("boot_id", 124, 16),
]
SECOND_SLOT = 4096


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """No one is writing, so an invalid slot stays invalid."""
    monkeypatch.setattr(log_state, "_PAUSE_S", 0)


def a_state(sequence: int = 5) -> LogState:
    return LogState(sequence, *range(100, 114), b"a boot's identity"[:16])


def a_file(directory: Path, *states: LogState) -> Path:
    create_state(Files(), directory, empty_state())
    for state in states:
        write_state(Files(), directory, state, flush=False)
    return directory / "kbatch.state"


def test_the_layout_lists_every_field_without_a_gap() -> None:
    assert tuple(name for name, _, _ in LAYOUT) == LogState._fields
    ends = [position + size for _, position, size in LAYOUT]
    assert [position for _, position, _ in LAYOUT] == [8, *ends[:-1]]
    assert (ends[-1], SLOT_SIZE) == (140, 144)


@pytest.mark.parametrize(("field", "position", "size"), LAYOUT, ids=[name for name, *_ in LAYOUT])
def test_a_field_lies_where_the_table_says(field: str, position: int, size: int) -> None:
    zero = LogState(*[0] * 15, bytes(16))
    pattern = bytes(range(1, size + 1))
    value = pattern if field == "boot_id" else int.from_bytes(pattern, "big")
    packed = pack(zero._replace(**{field: value}))
    body = bytearray(b"KBST" + struct.pack(">i", 1) + bytes(132))
    body[position : position + size] = pattern

    assert packed == bytes(body) + struct.pack(">I", reference.crc32c(bytes(body)))
    assert unpack(packed) == zero._replace(**{field: value})


def test_negative_numbers_stand_for_none() -> None:
    state = empty_state()
    assert (state.max_timestamp, state.max_timestamp_offset, state.prepare_offset) == (-1, -1, -1)
    assert unpack(pack(state)) == state


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(b"KBSU" + pack(a_state())[4:140], id="magic"),
        pytest.param(b"KBST" + struct.pack(">i", 2) + pack(a_state())[8:140], id="version"),
    ],
)
def test_another_kind_of_slot_is_invalid_even_with_a_good_crc(damaged: bytes) -> None:
    assert unpack(damaged + struct.pack(">I", reference.crc32c(damaged))) is None


def test_fewer_bytes_than_a_slot_are_none() -> None:
    assert all(unpack(pack(a_state())[:size]) is None for size in range(SLOT_SIZE))


def test_a_new_file_has_two_valid_slots(tmp_path: Path) -> None:
    data = a_file(tmp_path).read_bytes()
    assert unpack(data[:SLOT_SIZE]) == empty_state()
    assert unpack(data[SECOND_SLOT:]) == empty_state()._replace(sequence=1)
    assert len(data) == SECOND_SLOT + SLOT_SIZE
    assert read_state(Files(), tmp_path).sequence == 1


def test_states_are_written_in_turn_so_that_the_one_before_stays(tmp_path: Path) -> None:
    path = a_file(tmp_path)
    for sequence in range(2, 7):
        before = path.read_bytes()
        write_state(Files(), tmp_path, a_state(sequence), flush=True)
        data = path.read_bytes()
        start, other = (SECOND_SLOT, 0) if sequence % 2 else (0, SECOND_SLOT)
        assert unpack(data[start:]) == a_state(sequence)
        assert data[other : other + SLOT_SIZE] == before[other : other + SLOT_SIZE]
        assert read_state(Files(), tmp_path) == a_state(sequence)


def test_what_is_kept_to_compare_states_has_both_slots_and_little_more(tmp_path: Path) -> None:
    path = a_file(tmp_path)
    kept = {compact(path.read_bytes())}
    for sequence in range(2, 6):
        write_state(Files(), tmp_path, a_state(sequence), flush=True)
        kept.add(compact(path.read_bytes()))
    assert len(kept) == 5
    assert {len(one) for one in kept} == {2 * SLOT_SIZE}


@pytest.mark.parametrize("sequence", [6, 7], ids=["first slot", "second slot"])
def test_any_flipped_byte_of_the_newer_slot_leaves_the_older_one(
    tmp_path: Path, sequence: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_state, "_ATTEMPTS", 2)
    path = a_file(tmp_path, a_state(sequence - 1), a_state(sequence))
    data = path.read_bytes()
    start = sequence % 2 * SECOND_SLOT
    for position in range(start, start + SLOT_SIZE):
        for mask in (1, 0x80, 0xFF):
            flipped = bytearray(data)
            flipped[position] ^= mask
            path.write_bytes(flipped)
            assert read_state(Files(), tmp_path) == a_state(sequence - 1), position


def test_a_damaged_older_slot_does_not_matter(tmp_path: Path) -> None:
    path = a_file(tmp_path, a_state(4), a_state(5))
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    assert read_state(Files(), tmp_path) == a_state(5)


def test_two_damaged_slots_are_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = a_file(tmp_path)
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    data[SECOND_SLOT + 50] ^= 1
    for damaged in (data, b"", data[:100]):
        path.write_bytes(damaged)
        with pytest.raises(CorruptRecordError) as error:
            read_state(Files(), tmp_path)
        assert error.value.path == str(path)
        assert str(path) in str(error.value)


def test_a_log_that_does_not_exist_is_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_state(Files(), tmp_path)


def test_a_write_that_was_torn_anywhere_leaves_the_state_before(tmp_path: Path) -> None:
    path = a_file(tmp_path, a_state(4), a_state(5))
    before, slot = path.read_bytes(), pack(a_state(6))
    for written in range(SLOT_SIZE):
        torn = slot[:written] + before[written:]
        path.write_bytes(torn)
        # Two slots may have the same last bytes by chance.
        whole = torn[:SLOT_SIZE] == slot
        assert read_state(Files(), tmp_path) == a_state(6 if whole else 5), written


def test_a_writer_killed_within_its_write_leaves_the_state_before(tmp_path: Path) -> None:
    a_file(tmp_path, a_state(4), a_state(5))
    for seed in range(5):
        files = FaultyFiles(Fault(at=0, torn=True, seed=seed))
        assert died(lambda files=files: write_state(files, tmp_path, a_state(6), flush=True))
        assert read_state(Files(), tmp_path) == a_state(5)


class HalfWrittenOnce(Files):
    """A disk that shows a half-written slot the first few times that it is read."""

    def __init__(self, times: int) -> None:
        self.times = times

    def read(self, path: Path, position: int = 0, size: int | None = None) -> bytes:
        data = super().read(path, position, size)
        if self.times:
            self.times -= 1
            return data[:SECOND_SLOT] + random.Random(0).randbytes(60) + data[SECOND_SLOT + 60 :]
        return data


@pytest.mark.parametrize("times", [1, 5, 15])
def test_a_reader_that_finds_a_half_written_slot_reads_again(tmp_path: Path, times: int) -> None:
    a_file(tmp_path, a_state(4), a_state(5))
    assert read_state(HalfWrittenOnce(times), tmp_path) == a_state(5)


def test_the_boot_id_is_this_machines_and_stays() -> None:
    assert len(boot_id()) == 16
    assert empty_state().boot_id == boot_id() == boot_id()


@pytest.mark.parametrize(
    ("told", "again", "is_same"),
    [
        (("kern.bootsessionuuid", "A-1"), ("kern.bootsessionuuid", "A-1"), True),
        (("kern.bootsessionuuid", "A-1"), ("kern.bootsessionuuid", "B-2"), False),
        (("kern.boottime", "{ sec = 7 } Tue"), ("kern.boottime", "{ sec = 7 } mar."), True),
        (("kern.boottime", "{ sec = 7 } Tue"), ("kern.boottime", "{ sec = 8 } Tue"), False),
    ],
    ids=["same session", "another session", "same time", "another time"],
)
def test_without_the_linux_file_the_boot_id_comes_from_sysctl(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    told: tuple[str, str],
    again: tuple[str, str],
    is_same: bool,
) -> None:
    sysctl = tmp_path / "sysctl"
    monkeypatch.setattr(log_state, "_BOOT_ID_FILE", tmp_path / "absent")
    monkeypatch.setattr(log_state, "_SYSCTL", sysctl)
    found = [boot_id.__wrapped__()]
    for name, text in (told, again):
        sysctl.write_text(f"#!/bin/sh\n[ $1 = -n ] && [ $2 = {name} ] && echo '{text}'\n")
        sysctl.chmod(0o755)
        found.append(boot_id.__wrapped__())
    absent, first, second = found
    assert [len(one) for one in found] == [16] * 3
    assert absent not in (first, second)
    assert (first == second) == is_same


def test_a_commit_is_pending_when_its_record_is_the_last() -> None:
    state = empty_state()._replace(log_end_offset=8)
    assert not state.has_pending_commit
    assert state._replace(prepare_offset=7).has_pending_commit
    assert not state._replace(prepare_offset=6).has_pending_commit


@pytest.mark.parametrize("count", [1, 600], ids=["few", "many"])
def test_high_watermarks_of_many_logs_are_those_of_their_states(tmp_path: Path, count: int) -> None:
    expected = []
    for number in range(count):
        directory = tmp_path / str(number)
        directory.mkdir()
        state = empty_state()
        create_state(Files(), directory, state)
        for sequence in range(2, 2 + number % 3):
            state = state._replace(sequence=sequence, high_watermark=10 * number + sequence)
            write_state(Files(), directory, state, flush=False)
        expected.append(read_state(Files(), directory).high_watermark)
    directories = [str(tmp_path / str(number)) for number in range(count)]

    assert list(read_high_watermarks(Files(), directories)) == expected


@pytest.mark.parametrize("damage", ["missing", "cut", "newest slot", "another boot"])
def test_high_watermarks_that_take_more_than_a_read_are_none(tmp_path: Path, damage: str) -> None:
    directory = tmp_path
    create_state(Files(), directory, empty_state())
    state = empty_state()._replace(sequence=2, high_watermark=7)
    if damage == "another boot":
        state = state._replace(boot_id=bytes(16))
    write_state(Files(), directory, state, flush=False)
    path = directory / STATE_FILE
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:100])
    elif damage == "newest slot":
        content = bytearray(path.read_bytes())
        content[39] ^= 1
        path.write_bytes(content)

    assert list(read_high_watermarks(Files(), [str(directory)])) == [None]
