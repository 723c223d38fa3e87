"""A truncated log is as if the truncated batches had never been appended."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kbatch.errors import (
    CorruptRecordError,
    OffsetsOutOfOrderError,
    UnexpectedAppendOffsetError,
)
from spark_kbatch.files import Files
from spark_kbatch.log.append import append_as_follower, append_as_leader
from spark_kbatch.log.checkpoints import read_leader_epochs, write_leader_epochs
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.segment import segment_at
from spark_kbatch.log.state import LogState
from spark_kbatch.log.truncation import truncate_fully_and_start_at, truncate_to
from spark_kbatch.log.validator import validate
from spark_kbatch.model import AppendOrigin, ReadRange
from spark_kbatch.options.topic import TopicConfig
from tests.support import builders, reference
from tests.support.builders import a_log, append
from tests.support.crashes import sample
from tests.support.faults import CAN_BE_TORN, Fault, FaultyFiles, died
from tests.support.reference import Record
from tests.support.soundness import ensure_sound

NOW = 1_800_000_000_000


def a_batch(times: Sequence[int]) -> bytes:
    """Return a batch with a record at each of these times."""
    return reference.encode_batch(
        [Record(n, time, b"k", b"v" * 20) for n, time in enumerate(times)]
    )


def held(log: PartitionLog) -> list[Record]:
    """Return the records, from the log start on."""
    state, found = log.state(), []
    offset = state.log_start_offset
    while offset < state.high_watermark:
        read = log.read(state, ReadRange(offset, max_bytes=1))
        found += [r for r in reference.decode_batches(bytes(read.data)) if r.offset >= offset]
        offset = found[-1].offset + 1
    return found


def content(log: PartitionLog) -> dict[str, bytes]:
    """Return all files but the state, and snapshots, which a crash may tear and no one needs."""
    return {
        path.name: path.read_bytes()
        for path in log.directory.iterdir()
        if path.name != "kbatch.state" and path.suffix != ".snapshot"
    }


def cut_to(log: PartitionLog, offset: int) -> LogState:
    return truncate_to(log, log.state(), offset, now_ms=NOW)


def of_the_segment(state: LogState) -> tuple[int, ...]:
    """Return the fields of the state with which the next batch continues."""
    return (
        state.segment_size,
        state.index_size,
        state.max_timestamp,
        state.max_timestamp_offset,
        state.bytes_since_index_entry,
    )


@given(
    batches=st.lists(st.lists(st.integers(-1, 50), min_size=1, max_size=3), max_size=12),
    offset=st.integers(0, 40),
    segment_bytes=st.sampled_from([1, 300, 1 << 20]),
    interval=st.sampled_from([0, 150, 4096]),
    more=st.lists(st.lists(st.integers(-1, 80), min_size=1, max_size=2), max_size=6),
)
def test_a_truncated_log_is_the_log_of_the_batches_that_are_left(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[list[int]],
    offset: int,
    segment_bytes: int,
    interval: int,
    more: list[list[int]],
) -> None:
    config = TopicConfig(segment_bytes=segment_bytes, index_interval_bytes=interval)
    folder = tmp_path_factory.mktemp("log")
    log = a_log(folder, batches=0, config=config, files=FaultyFiles())
    model = a_log(folder / "model", batches=0, config=config, files=FaultyFiles())
    end = 0
    for times in batches:
        append(log, a_batch(times))
        if end + len(times) <= offset:
            append(model, a_batch(times))
        else:
            offset = min(offset, end)
        end += len(times)

    state = cut_to(log, offset)
    assert state == log.state()
    assert state.log_end_offset == state.high_watermark == model.state().log_end_offset
    assert held(log) == held(model)
    ensure_sound(log)
    if log.state().segment_base_offset == model.state().segment_base_offset:
        assert of_the_segment(log.state()) == of_the_segment(model.state())
    for times in more:
        append(log, a_batch(times))
        append(model, a_batch(times))
    assert held(log) == held(model)
    ensure_sound(log)


@pytest.mark.parametrize(
    ("offset", "end", "segments"),
    [
        pytest.param(11, 9, [0, 3, 6, 9], id="within the last batch"),
        pytest.param(9, 9, [0, 3, 6, 9], id="at a segment's start"),
        pytest.param(8, 6, [0, 3, 6], id="at a batch's last offset"),
        pytest.param(1, 0, [0], id="within the first batch"),
        pytest.param(0, 0, [0], id="at the start"),
        pytest.param(12, 12, [0, 3, 6, 9], id="at the end"),
        pytest.param(99, 12, [0, 3, 6, 9], id="past the end"),
    ],
)
def test_batches_that_hold_the_offset_go_entirely(
    tmp_path: Path, offset: int, end: int, segments: list[int]
) -> None:
    log = a_log(tmp_path, batches=4, config=TopicConfig(segment_bytes=1))
    before = log.state()
    after = cut_to(log, offset)

    assert (after == before) == (end == 12)
    assert after.log_end_offset == end
    assert log.segments.bases(after) == segments
    names = {path.name for path in log.directory.glob("0*")}
    assert names == {
        path.name for base in segments for path in segment_at(log.directory, base).paths
    }
    assert [record.offset for record in held(log)] == list(range(end))


def test_high_watermark_and_log_start_go_back_with_the_end(tmp_path: Path) -> None:
    log = a_log(tmp_path, batches=4, config=TopicConfig(segment_bytes=1))
    state = log.state()
    for start, high_watermark, expected in ((2, 5, (2, 5)), (2, 8, (2, 6)), (7, 8, (6, 6))):
        changed = state._replace(log_start_offset=start, high_watermark=high_watermark)
        log.write_state(changed._replace(sequence=log.state().sequence + 1), flush=False)
        after = cut_to(log, 6)
        assert (after.log_start_offset, after.high_watermark) == expected
        for seed in (2, 3):  # what is truncated
            append(log, builders.batch(seed=seed))


def test_an_offset_before_all_segments_empties_the_log(tmp_path: Path) -> None:
    log = a_log(tmp_path, batches=3, config=TopicConfig(segment_bytes=1))
    for path in segment_at(log.directory, 0).paths:
        path.unlink()
    after = cut_to(log, 2)
    assert after[1:5] == (2, 2, 2, 2)
    assert log.segments.bases(after) == [2]


def test_leader_epochs_go_with_their_batches(tmp_path: Path) -> None:
    log = a_log(tmp_path, batches=4)
    write_leader_epochs(Files(), log.directory, [(0, 0), (3, 6), (5, 9), (6, 12)])
    for offset, expected in (
        (12, [(0, 0), (3, 6), (5, 9), (6, 12)]),
        (9, [(0, 0), (3, 6), (5, 9)]),
    ):
        after = cut_to(log, offset)
        assert read_leader_epochs(Files(), log.directory) == expected
    assert after.leader_epoch == 5


def test_index_entries_of_truncated_batches_are_removed(tmp_path: Path) -> None:
    log = a_log(tmp_path, batches=0, config=TopicConfig(index_interval_bytes=0))
    for time in (10, 30, 20, 40):
        append(log, a_batch([time]))
    after = cut_to(log, 3)

    segment, size = segment_at(log.directory, 0), len(a_batch([10]))
    entries = list(struct.iter_unpack(">ii", segment.offset_index.read_bytes()))
    assert entries == [(1, size), (2, 2 * size)]
    assert list(struct.iter_unpack(">qi", segment.time_index.read_bytes())) == [(30, 1)]
    assert (after.max_timestamp, after.max_timestamp_offset) == (30, 1)


@pytest.mark.parametrize("position", [3, 1], ids=["within a batch", "at another batch"])
def test_an_index_that_leads_elsewhere_changes_nothing(tmp_path: Path, position: int) -> None:
    log = a_log(tmp_path, batches=0, config=TopicConfig(index_interval_bytes=0))
    for time in range(5):
        append(log, a_batch([time]))
    index, size = segment_at(log.directory, 0).offset_index, len(a_batch([0]))
    entry = struct.pack(">ii", 2, position if position == 3 else size)
    index.write_bytes(index.read_bytes()[:8] + entry + index.read_bytes()[16:])
    after = cut_to(log, 3)
    assert (after.log_end_offset, after.segment_size) == (3, 3 * size)


@pytest.mark.parametrize("offset", [0, 2, 3, 5, 12, 700])
def test_a_log_can_be_emptied_and_restarted_at_any_offset(tmp_path: Path, offset: int) -> None:
    config = TopicConfig(segment_bytes=500, index_interval_bytes=1, file_delete_delay_ms=0)
    log = a_log(tmp_path, batches=4, config=config)
    assert len(log.segments.bases(log.state())) > 1
    after = truncate_fully_and_start_at(log, log.state(), offset, now_ms=NOW)

    assert after == log.state()
    assert after[1:5] == (offset,) * 4
    assert log.segments.bases(after) == [offset]
    assert log.size_in_bytes(after) == 0
    append(log, a_batch([5, 6]))
    assert [record.offset for record in held(log)] == [offset, offset + 1]
    ensure_sound(log)


def test_producers_are_forgotten_with_their_batches(tmp_path: Path) -> None:
    log = a_log(tmp_path, batches=0)
    data = builders.idempotent_batch(base_sequence=0)

    def produce() -> int:
        header = validate(data, log.topic_partition, log.config, AppendOrigin.CLIENT, now_ms=NOW)
        result = append_as_leader(
            log, log.state(), data, header, origin=AppendOrigin.CLIENT, flush=False, now_ms=NOW
        )
        return result.base_offset

    for _ in range(2):
        assert (produce(), produce()) == (0, 0), "the second is a duplicate"
        cut_to(log, 0)
    # Another process truncates.
    produce()
    other = PartitionLog(Files(), log.directory, log.topic_partition, log.config)
    cut_to(other, 0)
    assert produce() == 0
    assert log.state().log_end_offset == 1


# A crash.


@pytest.fixture
def original(tmp_path: Path) -> PartitionLog:
    config = TopicConfig(segment_bytes=500, index_interval_bytes=1)
    log = a_log(tmp_path / "original", batches=6, config=config)
    write_leader_epochs(Files(), log.directory, [(0, 0), (1, 18)])
    state = log.state()
    log.write_state(state._replace(sequence=state.sequence + 1, leader_epoch=1), flush=False)
    return log


def copies(original: PartitionLog, folder: Path, faults: Sequence[Fault]) -> Iterator[PartitionLog]:
    for number, fault in enumerate(faults):
        directory = folder / str(number) / original.directory.name
        directory.mkdir(parents=True)
        for path in original.directory.iterdir():
            (directory / path.name).write_bytes(path.read_bytes())
        yield PartitionLog(FaultyFiles(fault), directory, original.topic_partition, original.config)


@pytest.mark.more_in_soak
@pytest.mark.parametrize("torn", [False, True], ids=["between steps", "within a step"])
@pytest.mark.parametrize("how", ["to an offset", "fully"])
def test_a_kill_at_any_step_leaves_the_old_log_or_the_new_one(
    tmp_path: Path, original: PartitionLog, how: str, torn: bool
) -> None:
    def truncate(log: PartitionLog) -> None:
        if how == "fully":
            truncate_fully_and_start_at(log, log.state(), 40, now_ms=NOW)
        else:
            truncate_to(log, log.state(), 7, now_ms=NOW)

    before = held(original)
    end = 40 if how == "fully" else 6
    after = [] if how == "fully" else before[:6]
    (whole,) = copies(original, tmp_path / "whole", [Fault(at=1 << 30)])
    truncate(whole)
    assert held(whole) == after
    steps = whole.files.steps  # type: ignore[attr-defined]
    assert {"write", "rename" if how == "fully" else "truncate"} <= {s.split()[0] for s in steps}
    faults = [
        Fault(at, torn=torn)
        for at, s in enumerate(steps)
        if not torn or s.split()[0] in CAN_BE_TORN
    ]
    seen = set()
    faults = sample(faults, 3)
    for fault, log in zip(faults, copies(original, tmp_path / "killed", faults), strict=True):
        assert died(lambda log=log: truncate(log))
        message = f"killed at {steps[fault.at]}"
        log = PartitionLog(Files(), log.directory, log.topic_partition, log.config)
        assert held(log) in (before, after), message
        seen.add(held(log) == after)
        if held(log) == after:
            log.discard_unrecorded(log.state())
            append(log, a_batch([9, 9]))
            offsets = [*(record.offset for record in after), end, end + 1]
            assert [record.offset for record in held(log)] == offsets, message
            active = segment_at(log.directory, log.state().segment_base_offset)
            assert all(path.exists() for path in active.paths), message
        truncate(log)
        assert held(log) == after, message
        ensure_sound(log)
    assert torn or seen == {False, True}


class DiesBeforeSegmentsGo(Files):
    """Kills before the first file of a segment is removed."""

    def remove(self, path: Path) -> None:
        if path.name.partition(".")[0].isdigit():
            raise SystemExit
        super().remove(path)


def test_a_kill_on_the_way_to_a_lower_start_leaves_no_segment_for_a_later_roll(
    tmp_path: Path,
) -> None:
    """The active segment is made by the append after it; so the append looks for others."""
    log = a_log(tmp_path, batches=0, config=TopicConfig(segment_bytes=500))
    truncate_fully_and_start_at(log, log.state(), 1000, now_ms=NOW)
    append(log, *(a_batch([n] * 5) for n in range(8)))
    log.discard_unrecorded(log.state())  # now it looks no more unless there is a sign
    dying = PartitionLog(DiesBeforeSegmentsGo(), log.directory, log.topic_partition, log.config)
    with pytest.raises(SystemExit):
        truncate_fully_and_start_at(dying, dying.state(), 0, now_ms=NOW)
    assert len(list(log.directory.glob("*.log"))) > 1

    data = a_batch([5, 6])
    header = validate(data, log.topic_partition, log.config, AppendOrigin.CLIENT, now_ms=NOW)
    origin = AppendOrigin.CLIENT
    append_as_leader(log, log.state(), data, header, origin=origin, flush=False, now_ms=NOW)
    assert [path.name for path in log.directory.glob("*.log")] == [f"{0:020d}.log"]


# A follower's copy.


def as_led(*batches: bytes, base_offset: int = 0, epochs: Sequence[int] = ()) -> bytes:
    """Return batches as a leader has them, with consecutive offsets; of epoch 0 by default."""
    out = bytearray()
    for number, data in enumerate(batches):
        epoch = epochs[number] if epochs else 0
        out += struct.pack(">q", base_offset) + data[8:12] + struct.pack(">i", epoch) + data[16:]
        base_offset += reference.read_header(data).records_count
    return bytes(out)


def follow(log: PartitionLog, data: bytes, high_watermark: int = 0) -> LogState:
    return append_as_follower(
        log, log.state(), data, high_watermark=high_watermark, flush=False, now_ms=NOW
    ).show()


def test_a_follower_has_the_bytes_of_its_leader(tmp_path: Path) -> None:
    config = TopicConfig(
        segment_bytes=600, index_interval_bytes=1, message_timestamp_type="LogAppendTime"
    )
    leader = a_log(tmp_path / "leader", batches=6, config=config)
    log = a_log(tmp_path / "follower", batches=0, config=config)
    offset = 0
    while offset < 18:
        read = leader.read(leader.state(), ReadRange(offset, max_bytes=1))
        offset = follow(log, bytes(read.data), offset).log_end_offset
    assert content(log) == content(leader)
    assert len(log.segments.bases(log.state())) > 1


def test_the_high_watermark_follows_the_leaders_up_to_the_logs_end(tmp_path: Path) -> None:
    log = a_log(tmp_path, batches=0)
    for base, leaders, expected in ((0, 0, 0), (3, 2, 2), (6, 99, 9), (9, 4, 9)):
        state = follow(log, as_led(builders.batch(), base_offset=base), leaders)
        assert (state.high_watermark, state.log_end_offset) == (expected, base + 3)
    assert [record.offset for record in held(log)] == list(range(9))


@pytest.mark.parametrize("found", [2, 4])
def test_a_copy_that_does_not_go_on_at_the_end_is_refused(tmp_path: Path, found: int) -> None:
    log = a_log(tmp_path, batches=1)
    before = content(log)
    with pytest.raises(UnexpectedAppendOffsetError) as error:
        follow(log, as_led(builders.batch(), base_offset=found))
    assert (error.value.expected, error.value.found) == (3, found)
    assert f"start at offset {found}, but its log ends at 3" in str(error.value)
    assert content(log) == before


@pytest.mark.parametrize("second", [2, 4], ids=["overlap", "gap"])
def test_a_copy_whose_batches_do_not_follow_each_other_is_refused(
    tmp_path: Path, second: int
) -> None:
    log = a_log(tmp_path, batches=0)
    before = content(log)
    data = as_led(builders.batch()) + as_led(builders.batch(), base_offset=second)
    with pytest.raises(OffsetsOutOfOrderError, match=f"starts at offset {second}, but .* at 3"):
        follow(log, data)
    assert content(log) == before


def test_a_damaged_copy_is_refused(tmp_path: Path) -> None:
    log = a_log(tmp_path, batches=0)
    before = content(log)
    data = as_led(builders.batch(), builders.batch())
    for position in (len(data) - 1, len(data) // 2 + 30):
        damaged = bytearray(data)
        damaged[position] ^= 1
        with pytest.raises(CorruptRecordError, match="CRC-32C"):
            follow(log, bytes(damaged))
    with pytest.raises(CorruptRecordError):
        follow(log, data[:-1])
    assert content(log) == before


def test_a_follower_learns_the_epochs_of_its_leaders(tmp_path: Path) -> None:
    log = a_log(tmp_path, batches=1)
    follow(log, as_led(*[builders.batch()] * 3, base_offset=3, epochs=[0, 2, 2]), 99)
    state = follow(log, as_led(builders.batch(), base_offset=12, epochs=[4]), 99)
    assert read_leader_epochs(Files(), log.directory) == [(0, 0), (2, 6), (4, 12)]
    assert state.leader_epoch == 4
    assert [record.offset for record in held(log)] == list(range(15))
    for epoch in (3, -1):
        with pytest.raises(CorruptRecordError, match=f"epoch: expected 4 or more, found {epoch}"):
            follow(log, as_led(builders.batch(), base_offset=15, epochs=[epoch]))


def test_after_a_truncation_the_batches_of_another_epoch_are_read(tmp_path: Path) -> None:
    log = a_log(tmp_path, batches=2)
    follow(log, as_led(builders.batch(), base_offset=6, epochs=[1]), 99)
    held(log)  # so that the epochs are loaded
    cut_to(log, 6)
    follow(log, as_led(builders.batch(seed=5), base_offset=6, epochs=[2]), 99)
    assert read_leader_epochs(Files(), log.directory) == [(0, 0), (2, 6)]
    expected = builders.records_of([builders.batch(seed=seed) for seed in (0, 1, 5)])
    assert held(log) == expected


def test_a_follower_discards_what_a_dead_one_left(tmp_path: Path) -> None:
    log = a_log(tmp_path, batches=1)
    path = segment_at(log.directory, 0).log
    path.write_bytes(path.read_bytes() + random.Random(0).randbytes(99))
    follow(log, as_led(builders.batch(), base_offset=3), 99)
    ensure_sound(log)


@pytest.mark.more_in_soak
def test_a_follower_that_is_killed_at_any_step_continues_where_it_was(tmp_path: Path) -> None:
    data = as_led(*[builders.batch()] * 3, base_offset=6, epochs=[0, 2, 2])
    original = a_log(tmp_path / "original", batches=2, config=TopicConfig(segment_bytes=1))
    before = held(original)
    (whole,) = copies(original, tmp_path / "whole", [Fault(at=1 << 30)])
    after = follow(whole, data, 99)
    steps = whole.files.steps  # type: ignore[attr-defined]
    faults = [Fault(at, torn=torn) for at in range(len(steps)) for torn in (False, True)]
    faults = sample(faults, 3)
    for fault, log in zip(faults, copies(original, tmp_path / "killed", faults), strict=True):
        assert died(lambda log=log: follow(log, data, 99))
        log = PartitionLog(Files(), log.directory, log.topic_partition, log.config)
        message = f"killed at {steps[fault.at]}"
        assert held(log) in (before, held(whole)), message
        if held(log) == before:
            assert follow(log, data, 99) == after, message
        assert content(log) == content(whole), message
