"""Retention: what is deleted from the start of a log, and that nothing else is."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from spark_kbatch.errors import OffsetOutOfRangeError
from spark_kbatch.files import Files
from spark_kbatch.log import retention
from spark_kbatch.log.append import LogAppender
from spark_kbatch.log.checkpoints import read_leader_epochs
from spark_kbatch.log.epochs import LeaderEpochCache
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.segment import segment_at
from spark_kbatch.model import MAX_TIMESTAMP, ReadRange
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.store.reports import Deletion
from tests.support import reference
from tests.support.builders import a_log, append
from tests.support.crashes import sample
from tests.support.faults import CAN_BE_TORN, Fault, FaultyFiles, died
from tests.support.reference import Record
from tests.support.soundness import ensure_sound

NOW = 1_800_000_000_000
DAY = 86_400_000


def a_batch(*times: int, value: bytes = b"value") -> bytes:
    """Return a batch with a record at each of these times."""
    return reference.encode_batch([Record(n, time, None, value) for n, time in enumerate(times)])


SIZE = len(a_batch(0))


def timed_log(
    tmp_path: Path, times: Sequence[int], *, files: Files | None = None, **config: int
) -> PartitionLog:
    """Return a log with a segment for each of these records, the last one active."""
    settings = TopicConfig(**{"segment_bytes": SIZE, **config})
    log = a_log(tmp_path, batches=0, config=settings, files=files)
    for time in times:
        append(log, a_batch(time))
    return log


def bases(log: PartitionLog) -> list[int]:
    return log.segments.bases(log.state())


def offsets(log: PartitionLog) -> list[int]:
    """Return the offsets of the records that can be read."""
    state, found = log.state(), []
    offset = state.log_start_offset
    while offset < state.high_watermark:
        read = log.read(state, ReadRange(offset, max_bytes=1))
        records = reference.decode_batches(bytes(read.data))
        found += [record.offset for record in records if record.offset >= offset]
        offset = found[-1] + 1
    return found


def run(log: PartitionLog, now_ms: int = NOW) -> Deletion:
    """Run retention once; check that it does what it planned."""
    planned = retention.plan(log, log.state(), now_ms)
    done = retention.delete_old_segments(log, log.state(), now_ms)
    assert done == planned
    return done


def set_high_watermark(log: PartitionLog, offset: int) -> None:
    state = log.state()
    log.write_state(state._replace(sequence=state.sequence + 1, high_watermark=offset), flush=False)


# By time.


@pytest.mark.parametrize(
    ("times", "left"),
    [
        pytest.param([NOW - 200, NOW - 150, NOW], [2], id="old ones"),
        pytest.param([NOW - 100, NOW], [0, 1], id="just young enough"),
        pytest.param([NOW - 101, NOW], [1], id="just too old"),
        pytest.param([NOW - 200, NOW, NOW - 200, NOW], [1, 2, 3], id="one that stays keeps all after it"),
        pytest.param([NOW + DAY, NOW - 200, NOW], [0, 1, 2], id="a future time keeps all"),
        pytest.param([NOW - 200, NOW - 200], [2], id="all, the active one too"),
        pytest.param([], [0], id="an empty log"),
    ],
)  # fmt: skip
def test_segments_go_when_their_newest_record_is_too_old(
    tmp_path: Path, times: list[int], left: list[int]
) -> None:
    log = timed_log(tmp_path, times, retention_ms=100)
    done = run(log)

    assert bases(log) == left
    assert done.segments == tuple(range(left[0]))
    assert done.size_in_bytes == left[0] * SIZE
    assert done.log_start_offset == log.state().log_start_offset == left[0]
    assert offsets(log) == list(range(left[0], len(times)))
    ensure_sound(log)
    append(log, a_batch(NOW))
    assert offsets(log) == list(range(left[0], len(times) + 1))
    assert run(log) == Deletion(left[0], (), 0, ())


def test_the_newest_record_of_a_segment_counts_wherever_it_lies(tmp_path: Path) -> None:
    config = TopicConfig(segment_bytes=2 * SIZE, retention_ms=100)
    log = a_log(tmp_path, batches=0, config=config)
    for times in ((NOW, NOW - 999), (NOW - 999, NOW - 1)):
        append(log, *(a_batch(time) for time in times))
    append(log, a_batch(NOW + 50))
    for now_ms, left in ((NOW + 100, [0, 2, 4]), (NOW + 101, [4]), (NOW + 151, [5])):
        run(log, now_ms)
        assert bases(log) == left


def test_without_times_the_age_of_the_file_counts(tmp_path: Path) -> None:
    log = timed_log(tmp_path, [-1, -1, -1], retention_ms=DAY)
    for base, age_ms in ((0, DAY + 1), (1, DAY), (2, 3 * DAY)):
        path = segment_at(log.directory, base).log
        os.utime(path, ns=(0, (NOW - age_ms) * 1_000_000))
    run(log)
    assert bases(log) == [1, 2]


def test_retention_of_nothing_deletes_all_but_this_moment(tmp_path: Path) -> None:
    log = timed_log(tmp_path, [NOW - 1, NOW], retention_ms=0)
    run(log)
    assert bases(log) == [1]


@pytest.mark.parametrize("damage", ["zeros", "cut", "gone"])
def test_a_damaged_time_index_deletes_nothing_that_is_young(tmp_path: Path, damage: str) -> None:
    config = TopicConfig(segment_bytes=2 * SIZE, index_interval_bytes=1, retention_ms=100)
    log = a_log(tmp_path, batches=0, config=config)
    append(log, a_batch(NOW - 500), a_batch(NOW), a_batch(NOW))
    path = segment_at(log.directory, 0).time_index
    data = path.read_bytes()
    path.write_bytes({"zeros": bytes(len(data)), "cut": data[:5]}.get(damage, b""))
    if damage == "gone":
        path.unlink()
    assert run(log, NOW + 100).segments == ()
    assert run(log, NOW + 101).segments == (0, 2)


def test_a_segment_that_cannot_be_followed_stays_and_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = timed_log(tmp_path, [1, 2, NOW], retention_ms=100)
    path = segment_at(log.directory, 0).log
    path.write_bytes(bytes(16) + b"\7" + path.read_bytes()[17:])
    with caplog.at_level(logging.WARNING):
        assert run(log).segments == ()
    assert "retention of events-0 stops at a segment whose age is unknown: " in caplog.text
    assert str(path) in caplog.text


# By size.


@pytest.mark.parametrize(
    ("limit", "left"),
    [
        pytest.param(4 * SIZE, [0, 1, 2, 3], id="as much as there is"),
        pytest.param(4 * SIZE - 1, [0, 1, 2, 3], id="a segment more than wanted at the least"),
        pytest.param(3 * SIZE, [1, 2, 3], id="one too many"),
        pytest.param(2 * SIZE - 1, [2, 3], id="between"),
        pytest.param(1, [3], id="never below the limit"),
        pytest.param(0, [4], id="nothing is to be kept"),
    ],
)
def test_segments_go_while_enough_is_left(tmp_path: Path, limit: int, left: list[int]) -> None:
    log = timed_log(tmp_path, [1, 2, 3, 4], retention_bytes=limit)
    assert run(log).segments == tuple(range(left[0]))
    assert bases(log) == left
    ensure_sound(log)


def test_size_and_time_both_delete(tmp_path: Path) -> None:
    times = [NOW, NOW - 200, NOW - 200, NOW]
    log = timed_log(tmp_path, times, retention_bytes=3 * SIZE, retention_ms=100)
    run(log)
    assert bases(log) == [3]


# What both keep.


def test_without_retention_nothing_is_deleted(tmp_path: Path) -> None:
    log = timed_log(tmp_path, [0, 0, 0])
    before = log.state()
    assert run(log) == Deletion(0, (), 0, ())
    assert log.state() == before


@pytest.mark.parametrize(
    ("high_watermark", "left"),
    [(0, [0, 1, 2]), (1, [1, 2]), (2, [2]), (3, [3])],
)
@pytest.mark.parametrize("limit", ["retention_ms", "retention_bytes"])
def test_nothing_past_the_high_watermark_is_deleted(
    tmp_path: Path, limit: str, high_watermark: int, left: list[int]
) -> None:
    log = timed_log(tmp_path, [0, 0, 0], **{limit: 0})
    set_high_watermark(log, high_watermark)
    run(log)
    assert bases(log) == left
    assert log.state().log_start_offset == left[0] <= high_watermark


def test_an_emptied_log_continues_where_it_ended(tmp_path: Path) -> None:
    log = timed_log(tmp_path, [5, 6, 7], retention_bytes=0)
    run(log)
    state = log.state()
    assert state[1:5] == (3, 3, 3, 3)
    assert (state.segment_base_offset, state.segment_size, state.max_timestamp) == (3, 0, -1)
    assert log.read(state, ReadRange(3, max_bytes=1)).batches == []
    append(log, a_batch(1), a_batch(2))
    assert offsets(log) == [3, 4]
    ensure_sound(log)


def test_what_a_dead_writer_left_is_not_in_an_emptied_log(tmp_path: Path) -> None:
    log = timed_log(tmp_path, [5, 6], retention_bytes=0)
    dead = LogAppender(log, log.state(), now_ms=NOW)
    dead.append(bytearray(a_batch(7)))
    dead.append(bytearray(a_batch(8)))
    dead.finish(flush=False)  # its state is never written
    run(log)
    ensure_sound(log)
    assert offsets(log) == []


# Deleting records.


@pytest.mark.parametrize(
    ("offset", "start", "segments"),
    [
        pytest.param(0, 0, [0, 3, 6], id="none"),
        pytest.param(1, 1, [0, 3, 6], id="within the first batch"),
        pytest.param(3, 3, [3, 6], id="at a segment's start"),
        pytest.param(5, 5, [3, 6], id="within a later batch"),
        pytest.param(9, 9, [9], id="all, and an empty segment is the active one"),
    ],
)
def test_records_below_an_offset_are_deleted(
    tmp_path: Path, offset: int, start: int, segments: list[int]
) -> None:
    log = a_log(tmp_path, batches=3, config=TopicConfig(segment_bytes=1))
    done = retention.delete_records(log, log.state(), offset, NOW)

    assert done.log_start_offset == log.state().log_start_offset == start
    assert bases(log) == segments
    assert offsets(log) == list(range(start, 9))
    if offset > 0:
        with pytest.raises(OffsetOutOfRangeError, match=f"the log holds offsets {start} to 9"):
            log.read(log.state(), ReadRange(offset - 1, max_bytes=1))


def test_the_log_start_never_goes_back_or_past_the_high_watermark(tmp_path: Path) -> None:
    log = a_log(tmp_path, batches=3)
    retention.delete_records(log, log.state(), 5, NOW)
    before = log.state()
    assert retention.delete_records(log, before, 2, NOW).log_start_offset == 5
    assert log.state() == before
    set_high_watermark(log, 7)
    for offset in (8, -1):
        with pytest.raises(OffsetOutOfRangeError, match=f"offset {offset} .* 5 to 7"):
            retention.delete_records(log, log.state(), offset, NOW)


# The files.


def with_epochs(tmp_path: Path, **config: int) -> PartitionLog:
    """Return a log with five segments of a batch each, of leader epochs 0 to 4."""
    log = timed_log(tmp_path, [0], **config)
    for epoch in range(1, 5):
        state = log.state()
        epochs = LeaderEpochCache.read(log.files, log.directory)
        epochs.assign(epoch, state.log_end_offset)
        state = state._replace(sequence=state.sequence + 1, leader_epoch=epoch)
        log.write_state(state, flush=True)
        append(log, a_batch(0))
    return log


def epochs_of(log: PartitionLog) -> list[tuple[int, int]]:
    return read_leader_epochs(log.files, log.directory)


@pytest.mark.parametrize(
    ("offset", "left"), [(0, 0), (1, 1), (3, 3), (5, 4)], ids=["none", "one", "three", "all"]
)
def test_leader_epochs_go_with_their_batches(tmp_path: Path, offset: int, left: int) -> None:
    log = with_epochs(tmp_path)
    retention.delete_records(log, log.state(), offset, NOW)

    assert epochs_of(log) == [(epoch, epoch) for epoch in range(left, 5)]
    ensure_sound(log)
    append(log, a_batch(0))
    assert offsets(log) == [*range(offset, 6)]
    assert LeaderEpochCache.read(log.files, log.directory).latest_epoch == 4


def test_epochs_of_batches_below_the_log_start_stay_with_their_segment(tmp_path: Path) -> None:
    log = with_epochs(tmp_path, segment_bytes=3 * SIZE)
    assert bases(log) == [0, 3]
    retention.delete_records(log, log.state(), 2, NOW)
    assert len(epochs_of(log)) == 5
    assert offsets(log) == [2, 3, 4]
    retention.delete_records(log, log.state(), 4, NOW)
    assert epochs_of(log) == [(3, 3), (4, 4)]
    assert offsets(log) == [4]


def test_a_reader_goes_on_while_the_segment_it_reads_is_deleted(tmp_path: Path) -> None:
    """Its epoch is gone from leader-epoch-checkpoint, which the reader looks at first then."""
    log = with_epochs(tmp_path)
    before = log.state()
    retention.delete_records(log, before, 3, NOW)
    for base in range(3):  # it has found and opened them before
        name = segment_at(log.directory, base).log.name
        (log.directory / f"{name}.deleted").rename(log.directory / name)

    assert len(log.read(before, ReadRange(1, max_bytes=1)).data) == SIZE


def test_files_are_renamed_and_removed_when_their_delay_is_over(tmp_path: Path) -> None:
    log = timed_log(tmp_path, [1, 2, NOW + DAY], retention_ms=100, file_delete_delay_ms=1000)
    aside = ("00000000000000000000.txnindex", "00000000000000000001.snapshot")
    others = ("00000000000000000002.snapshot", "notes.deleted", "0.log.deleted")
    for name in (*aside, *others):
        (log.directory / name).write_bytes(b"x")
    stem = f"{0:020d}", f"{1:020d}"
    names = {f"{s}.{end}" for s in stem for end in ("log", "index", "timeindex")} | set(aside)

    assert run(log).files == ()
    there = {path.name for path in log.directory.iterdir()}
    assert {name + ".deleted" for name in names} <= there
    assert not names & there
    assert run(log, NOW + 999).files == ()
    assert set(run(log, NOW + 1000).files) == {name + ".deleted" for name in names}
    there = {path.name for path in log.directory.iterdir()}
    assert {name for name in there if name.endswith(".deleted")} == set(others[1:])
    assert others[0] in there
    assert run(log, NOW + 1000).files == ()


def test_segments_that_were_half_renamed_are_found_by_the_next_run(tmp_path: Path) -> None:
    """1. The state changes. 2. The process dies before it renames files."""
    log = timed_log(tmp_path, [1, 2, 3])
    state = log.state()
    log.write_state(state._replace(sequence=state.sequence + 1, log_start_offset=2), flush=False)
    done = run(log)
    assert (done.segments, done.log_start_offset) == ((0, 1), 2)
    assert bases(log) == [2]


# A crash.

STEPS = {"retention": {"create", "write", "flush", "touch", "rename", "remove"}}
STEPS["delete records"] = STEPS["retention"] - {"create"}


@pytest.mark.more_in_soak
@pytest.mark.parametrize("torn", [False, True], ids=["between steps", "within a step"])
@pytest.mark.parametrize("how", STEPS)
def test_a_kill_at_any_step_loses_nothing_and_is_finished_by_the_next_run(
    tmp_path: Path, how: str, torn: bool
) -> None:
    def work(log: PartitionLog) -> None:
        if how == "retention":
            retention.delete_old_segments(log, log.state(), NOW)
        else:
            retention.delete_records(log, log.state(), 4, NOW)

    def a_copy(name: str, fault: Fault) -> PartitionLog:
        limit = 100 if how == "retention" else -1
        log = timed_log(tmp_path / name, [1, 2, 3, 4, 5], files=FaultyFiles(), retention_ms=limit)
        old = log.directory / "00000000000000000009.log.deleted"
        old.write_bytes(b"x")
        os.utime(old, (0, 0))
        return PartitionLog(FaultyFiles(fault), log.directory, log.topic_partition, log.config)

    whole = a_copy("whole", Fault(at=1 << 30))
    work(whole)
    steps = whole.files.steps  # type: ignore[attr-defined]
    assert {step.split()[0] for step in steps} == STEPS[how]
    start = 5 if how == "retention" else 4
    outcomes = set()
    for at, step in sample(list(enumerate(steps)), 3):
        if torn and step.split()[0] not in CAN_BE_TORN:
            continue
        log = a_copy(str(at), Fault(at, torn=torn))
        assert died(lambda log=log: work(log))
        log = PartitionLog(Files(), log.directory, log.topic_partition, log.config)
        message = f"killed at {step}"
        assert log.state().log_start_offset in (0, start), message
        outcomes.add(log.state().log_start_offset)
        assert offsets(log) == list(range(log.state().log_start_offset, 5)), message

        # A writer may come first, then the next run.
        log.discard_unrecorded(log.state())
        append(log, a_batch(NOW + DAY))
        assert offsets(log)[-1] == 5, message
        work(log)
        assert offsets(log) == list(range(start, 6)), message
        assert bases(log) == list(range(start, 6)), message
        ensure_sound(log)
        retention.delete_old_segments(log, log.state(), NOW + log.config.file_delete_delay_ms)
        assert not list(log.directory.glob("*.deleted")), message
    assert torn or outcomes == {0, start}


@pytest.mark.parametrize("time", [NOW + 1, NOW + 4, MAX_TIMESTAMP])
def test_a_time_is_found_though_the_first_segments_are_deleted_meanwhile(
    tmp_path: Path, time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TopicConfig(segment_bytes=SIZE, index_interval_bytes=1)
    log = a_log(tmp_path, batches=0, config=config)
    for number in range(6):
        append(log, a_batch(NOW + number))
    reader = PartitionLog(log.files, log.directory, log.topic_partition, config)
    state, find = reader.state(), PartitionLog._timed_segments

    def delete_then(self: PartitionLog, *given: Any) -> Any:
        found = find(self, *given)
        if self is reader and log.state().log_start_offset == 0:
            retention.delete_records(log, log.state(), 3, NOW)
            retention.delete_old_segments(log, log.state(), NOW + 2 * DAY)
        return found

    monkeypatch.setattr(PartitionLog, "_timed_segments", delete_then)
    place = reader.offset_for_timestamp(state, time, end_offset=6)

    assert place is not None
    assert place.offset == {NOW + 1: 3, NOW + 4: 4, MAX_TIMESTAMP: 5}[time]


# In any order.


class LogAndModel(RuleBasedStateMachine):
    """A log beside a list of (offset, time), with a plain version of retention for the list."""

    @initialize(
        segment_records=st.integers(1, 4),
        retention_ms=st.sampled_from([-1, 0, 50, 200]),
        retention_bytes=st.sampled_from([-1, 0, 3 * SIZE, 7 * SIZE + 1]),
    )
    def make(self, segment_records: int, retention_ms: int, retention_bytes: int) -> None:
        config = TopicConfig(
            segment_bytes=segment_records * SIZE,
            index_interval_bytes=1,
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
            file_delete_delay_ms=100,
        )
        self.log = a_log(self.folder, batches=0, config=config, files=FaultyFiles())
        self.now_ms, self.end, self.start, self.full = NOW, 0, 0, segment_records
        self.segments: list[list[int]] = [
            []
        ]  # timestamps of the records in each; the last is active

    @rule(times=st.lists(st.integers(-60, 60), max_size=5))
    def append(self, times: list[int]) -> None:
        for time in times:
            append(self.log, a_batch(self.now_ms + time))
            if len(self.segments[-1]) == self.full:
                self.segments.append([])
            self.segments[-1].append(self.now_ms + time)
            self.end += 1

    @rule(ms=st.integers(0, 150))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule(share=st.sampled_from([0, 0.3, 0.7, 1]))
    def delete_records(self, share: float) -> None:
        self.start += int(share * (self.end - self.start))
        retention.delete_records(self.log, self.log.state(), self.start, self.now_ms)
        self._drop(lambda first, times: first + len(times) <= self.start)

    @rule()
    def delete_old(self) -> None:
        run(self.log, self.now_ms)
        config = self.log.config
        self._drop(lambda first, times: first + len(times) <= self.start)
        if config.retention_bytes >= 0:
            limit = config.retention_bytes
            self._drop(
                lambda first, times: SIZE * (sum(map(len, self.segments)) - len(times)) >= limit
            )
        if config.retention_ms >= 0:
            self._drop(lambda first, times: self.now_ms - max(times) > config.retention_ms)
        self.start = max(self.start, self._first())

    def _first(self) -> int:
        return self.end - sum(map(len, self.segments))

    def _drop(self, goes) -> None:  # type: ignore[no-untyped-def]
        while self.segments[0] and goes(self._first(), self.segments[0]):
            if len(self.segments) == 1:
                self.segments.append([])
            del self.segments[0]

    @invariant()
    def the_log_holds_what_the_model_does(self) -> None:
        state = self.log.state()
        assert (state.log_start_offset, state.log_end_offset) == (self.start, self.end)
        first, expected = self._first(), []
        for times in self.segments:
            expected.append(first)
            first += len(times)
        assert bases(self.log) == expected
        assert offsets(self.log) == list(range(self.start, self.end))
        ensure_sound(self.log)


def test_any_order_of_appends_and_deletions_leaves_what_a_list_would(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    class Machine(LogAndModel):
        def __init__(self) -> None:
            super().__init__()
            self.folder = tmp_path_factory.mktemp("log")

    Machine.TestCase.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)
    Machine.TestCase().runTest()
