"""Repair keeps the batches that are there, and rebuilds the rest as it was."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest

from spark_kbatch.errors import KafkaStorageError
from spark_kbatch.files import Files
from spark_kbatch.log import retention
from spark_kbatch.log import state as log_state
from spark_kbatch.log.checkpoints import write_leader_epochs
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.repair import LogRepair
from spark_kbatch.log.segment import segment_at
from spark_kbatch.log.state import LogState
from spark_kbatch.model import ReadRange
from spark_kbatch.store.reports import RepairReport
from tests.log.test_partition_log import read_all
from tests.log.test_recovery import (
    BATCH,
    CONFIG,
    OldSizes,
    contents,
    cut_at,
    epochs,
    filled,
    flipped,
    garbage,
    missing,
    reopened,
    set_state,
    slots,
    write,
)
from tests.support import reference
from tests.support.builders import a_log, append
from tests.support.crashes import sample
from tests.support.faults import Fault, FaultyFiles, ReadOnlyFiles, died
from tests.support.soundness import ensure_sound

TOPIC_ID = "nyBBbFDuTeu_f1pLaD4Tcg"
SIZE = len(BATCH)
LOST = slots(0, 1)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """No one is writing, so an invalid slot stays invalid."""
    monkeypatch.setattr(log_state, "_PAUSE_S", 0)


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    """Segments 0, 8 and 16, of 4, 4 and 3 batches of 2 records, as its writer left it."""
    log = a_log(tmp_path, batches=0, config=CONFIG)
    (log.directory / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}")
    append(log, *[BATCH] * 11)
    return log


def repair(
    log: PartitionLog,
    *,
    files: Files | None = None,
    known: LogState | None = None,
    dry_run: bool = False,
) -> RepairReport:
    return LogRepair(reopened(log, files), dry_run=dry_run).run(TOPIC_ID, known)


def test_a_sound_log_is_left_as_it_is(log: PartitionLog) -> None:
    before = contents(log.directory)
    assert repair(log, files=ReadOnlyFiles()) == RepairReport(log.topic_partition, 0, 22, (), ())
    assert contents(log.directory) == before


@pytest.mark.parametrize("is_lost", [False, True], ids=["as recorded", "state is lost"])
@pytest.mark.parametrize("batches", [1, 3], ids=["active segment", "rolled segment"])
def test_a_log_is_repaired_up_to_its_end_where_sizes_of_files_are_old(
    log: PartitionLog, batches: int, is_lost: bool
) -> None:
    files = OldSizes(log)
    append(log, *[BATCH] * batches)
    if is_lost:
        LOST(log)
    report = repair(log, files=files)
    assert (report.log_end_offset, report.damaged) == (22 + 2 * batches, ())
    assert len(read_all(reopened(log))) == report.log_end_offset
    ensure_sound(reopened(log))


def test_an_empty_log_without_leader_epochs_is_sound(tmp_path: Path) -> None:
    log = a_log(tmp_path, batches=0, config=CONFIG)
    (log.directory / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}")
    write_leader_epochs(log.files, log.directory, [])
    assert repair(log, dry_run=True) == RepairReport(log.topic_partition, 0, 0, (), ())


def test_a_deletion_that_a_crash_interrupted_is_no_damage(log: PartitionLog) -> None:
    retention.delete_records(log, log.state(), 8, now_ms=0)
    left = segment_at(log.directory, 0).log  # which goes last
    left.with_name(f"{left.name}.deleted").rename(left)
    assert log.segments.bases(log.state())[0] == 0
    assert repair(log) == RepairReport(log.topic_partition, 8, 22, (), ())


@pytest.mark.parametrize("interval", [0, 2 * SIZE, 1 << 20])
def test_indexes_made_before_the_interval_was_altered_are_sound(
    log: PartitionLog, interval: int
) -> None:
    """Segments 0, 8 and the start of 16 have an entry for each batch."""
    config = replace(CONFIG, index_interval_bytes=interval)
    altered = PartitionLog(log.files, log.directory, log.topic_partition, config)
    append(altered, *[BATCH] * 7)
    before = contents(log.directory)
    report = LogRepair(altered, dry_run=False).run(TOPIC_ID, None)
    assert (report.found, report.damaged) == ((), ())
    assert contents(log.directory) == before
    index = segment_at(log.directory, 24).offset_index
    index.write_bytes(bytes(8))
    time_index = segment_at(log.directory, 24).time_index
    time_index.write_bytes(time_index.read_bytes()[:-1])
    found = LogRepair(altered, dry_run=False).run(TOPIC_ID, None).found
    assert len(found) == 2
    ensure_sound(altered)


REBUILT = {
    "index-missing": (missing(0, "offset_index"), ["000.index is missing"]),
    "index-garbage": (filled(8, "offset_index", garbage), ["008.index does not match"]),
    "index-zeroed": (filled(8, "offset_index", lambda d: bytes(len(d))), ["008.index does not match"]),
    "index-preallocated": (filled(0, "offset_index", lambda d: d + bytes(80)), ["000.index does not"]),
    "timeindex-missing": (missing(8, "time_index"), ["008.timeindex is missing"]),
    "timeindex-cut": (filled(0, "time_index", lambda d: d[:-12]), ["000.timeindex does not match"]),
    "active-index-garbage": (filled(16, "offset_index", garbage), ["016.index does not match"]),
    "epochs-missing": (epochs(None), ["leader-epoch-checkpoint is missing"]),
    "epochs-damaged": (epochs("zero"), ["leader-epoch-checkpoint is damaged"]),
    "metadata-missing": (
        lambda log: (log.directory / "partition.metadata").unlink(), ["partition.metadata is missing"],
    ),
    "metadata-damaged": (
        lambda log: (log.directory / "partition.metadata").write_text("?"), ["metadata is damaged"],
    ),
    "metadata-of-another": (
        lambda log: (log.directory / "partition.metadata").write_text(
            "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"
        ),
        ["names another topic"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "said"), REBUILT.values(), ids=REBUILT.keys())
def test_what_is_rebuilt_from_batches_is_as_it_was(
    log: PartitionLog, damage: Callable[[PartitionLog], object], said: list[str]
) -> None:
    before = contents(log.directory)
    damage(log)
    damaged = contents(log.directory)
    looked = repair(log, files=ReadOnlyFiles(), dry_run=True)
    assert contents(log.directory) == damaged
    done = repair(log)
    assert done == looked
    assert len(done.found) == len(said)
    for words, sentence in zip(said, done.found, strict=True):
        assert words in sentence
    assert contents(log.directory) == before
    assert repair(log).found == ()


@pytest.mark.parametrize("number", [0, 1])
def test_a_damaged_slot_is_written_over(log: PartitionLog, number: int) -> None:
    write(log)
    write(log)  # so that neither slot is as before
    slots(number)(log)
    end = log.state().log_end_offset
    report = repair(log)
    assert "one of its two slots is damaged" in report.found[0]
    assert log_state.is_whole(Files(), log.directory)
    assert reopened(log).state().log_end_offset == report.log_end_offset == end
    ensure_sound(reopened(log))


@pytest.mark.parametrize(
    "lose",
    [LOST, lambda log: (log.directory / "kbatch.state").unlink()],
    ids=["damaged", "missing"],
)
def test_a_lost_state_is_rebuilt_from_the_batches(
    log: PartitionLog, lose: Callable[[PartitionLog], object]
) -> None:
    before, records = log.state(), read_all(log)
    lose(log)
    report = repair(log)
    assert (report.log_start_offset, report.log_end_offset, report.damaged) == (0, 22, ())
    assert len(report.found) == 1
    log = reopened(log)
    assert log.state() == before._replace(sequence=1, recovery_point=22)
    assert read_all(log) == records
    write(log)
    ensure_sound(log)


@pytest.mark.more_in_soak
def test_for_every_cut_of_a_log_without_state_exactly_the_whole_batches_are_kept(
    log: PartitionLog,
) -> None:
    before = contents(log.directory)
    for base in (8, 16):
        name = f"{base:020d}.log"
        ends = [0, *accumulate(map(len, reference.split_batches(before[name])))]
        for size in (*sample(range(SIZE + 4), 3), *range(SIZE + 4, len(before[name]) + 1, 29)):
            for path in log.directory.iterdir():
                path.unlink()
            for other, content in before.items():
                (log.directory / other).write_bytes(content)
            (log.directory / name).write_bytes(before[name][:size])
            LOST(log)
            whole = sum(end <= size for end in ends[1:])
            kept = 22 if size == len(before[name]) else base + 2 * whole
            report = repair(log, files=FaultyFiles())  # does not wait for the disk
            assert report.log_end_offset == kept, f"{name} cut at {size}"
            for path in log.directory.glob("*.damaged"):
                path.unlink()
            ensure_sound(reopened(log))


def test_what_follows_the_first_bad_batch_is_kept_under_other_names(log: PartitionLog) -> None:
    flipped(8, 1)(log)
    LOST(log)
    before = contents(log.directory)
    looked = repair(log, files=ReadOnlyFiles(), dry_run=True)
    assert contents(log.directory) == before
    report = repair(log)
    assert report == looked
    assert report.log_end_offset == 10
    assert "CRC-32C" in report.damaged[0]
    after, name = contents(log.directory), "00000000000000000008.log"
    assert after[name] + after[f"{name}.damaged"] == before[name]
    for end in ("log", "index", "timeindex"):
        assert after[f"00000000000000000016.{end}.damaged"] == before[f"00000000000000000016.{end}"]
        assert f"00000000000000000016.{end}" not in after
    write(reopened(log))
    assert len(read_all(reopened(log))) == 12


def test_retention_leaves_what_a_repair_set_aside(log: PartitionLog) -> None:
    flipped(8, 1)(log)
    LOST(log)
    for path in log.directory.iterdir():
        os.utime(path, (1, 1))
    repair(log)
    there = {path.name for path in log.directory.glob("*.damaged")}
    assert len(there) == 4
    again = reopened(log)
    retention.delete_old_segments(again, again.state(), 1 << 50)
    assert {path.name for path in log.directory.glob("*.damaged")} == there


def test_a_rebuilt_state_keeps_what_commits_recorded(log: PartitionLog) -> None:
    known = log.state()._replace(sequence=40, log_start_offset=5, leader_epoch=3)
    LOST(log)
    repair(log, known=known)
    state = reopened(log).state()
    assert (state.log_start_offset, state.leader_epoch) == (5, 3)
    assert state.sequence > 40


def raised(log: PartitionLog, *batches: int, epoch: int) -> None:
    """Damage the leader epochs of these batches of the last segment, which no CRC covers."""
    path = segment_at(log.directory, 16).log
    data = bytearray(path.read_bytes())
    for number in batches:
        data[number * SIZE + 12 : number * SIZE + 16] = epoch.to_bytes(4, "big")
    path.write_bytes(data)


@pytest.mark.parametrize("batch", [0, 1, 2], ids=["first", "amid", "last"])
@pytest.mark.parametrize(
    "text", [None, "0\n0\n", "0\n2\n0 0\n65536 18\n"], ids=["missing", "empty", "with it"]
)
def test_a_leader_epoch_that_is_too_high_is_damage_and_not_in_the_checkpoint(
    log: PartitionLog, batch: int, text: str | None
) -> None:
    raised(log, batch, epoch=1 << 16)
    epochs(text)(log)
    report = repair(log)
    (damage,) = report.damaged
    assert f"the batch at offset {16 + 2 * batch} has leader epoch 65536" in damage
    assert (log.directory / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"
    assert reopened(log).state().leader_epoch == 0


def test_a_leader_epoch_above_later_ones_is_not_in_a_rebuilt_state(
    log: PartitionLog,
) -> None:
    raised(log, 1, epoch=1 << 16)
    epochs(None)(log)
    LOST(log)
    repair(log)
    assert reopened(log).state().leader_epoch == 0
    assert (log.directory / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"


def test_a_rebuilt_state_may_include_batches_that_were_not_committed(log: PartitionLog) -> None:
    path = segment_at(log.directory, 16).log
    placed = reference.encode_batch(reference.decode_batches(BATCH), leader_epoch=0)
    path.write_bytes(path.read_bytes() + (22).to_bytes(8, "big") + placed[8:])
    assert len(read_all(reopened(log))) == 22
    LOST(log)
    assert repair(log).log_end_offset == 24


def test_a_short_active_segment_ends_with_its_last_whole_batch(log: PartitionLog) -> None:
    set_state(log, recovery_point=22)
    cut_at(16, "log", SIZE + 9)(log)
    with pytest.raises(KafkaStorageError, match="kbatch repair"):
        read_all(reopened(log))
    looked = repair(log, files=ReadOnlyFiles(), dry_run=True)
    report = repair(log)
    assert looked.log_end_offset == report.log_end_offset == 18
    assert "offset 18 instead of 22" in report.found[0]
    assert len(read_all(reopened(log))) == 18
    write(reopened(log))
    ensure_sound(reopened(log))


def test_bad_batches_in_a_log_with_a_state_are_reported_and_left(log: PartitionLog) -> None:
    flipped(0, 2)(log)
    flipped(16, 1)(log)
    before = contents(log.directory)
    report = repair(log)
    assert (report.found, report.log_end_offset) == ((), 22)
    for base, sentence in zip((0, 16), report.damaged, strict=True):
        assert f"{base:020d}.log" in sentence
    assert contents(log.directory) == before
    assert log.read(log.state(), ReadRange(8, max_bytes=1)).batches


def test_a_log_without_its_directory_is_an_error(log: PartitionLog) -> None:
    log.directory.rename(log.directory.with_name("gone"))
    with pytest.raises(KafkaStorageError, match=f"{log.directory} is gone"):
        repair(log)


def test_a_log_without_segments_starts_where_it_was_recorded_to_start(log: PartitionLog) -> None:
    known = log.state()._replace(log_start_offset=7)
    for path in log.directory.glob("0*"):
        path.unlink()
    LOST(log)
    repair(log, known=known)
    state = reopened(log).state()
    assert (state.log_start_offset, state.log_end_offset) == (7, 7)
    write(reopened(log))
    assert [record.offset for record in read_all(reopened(log))] == [7, 8]


def test_a_repair_that_was_killed_is_finished_by_the_next(log: PartitionLog) -> None:
    flipped(8, 1)(log)
    LOST(log)
    before = contents(log.directory)
    steps = FaultyFiles()
    repair(log, files=steps)
    wanted = {
        name: data for name, data in contents(log.directory).items() if name != "kbatch.state"
    }
    for at in range(len(steps.steps)):
        for path in log.directory.iterdir():
            path.unlink()
        for name, content in before.items():
            (log.directory / name).write_bytes(content)
        assert died(lambda at=at: repair(log, files=FaultyFiles(Fault(at))))  # type: ignore[misc]
        assert repair(log).log_end_offset == 10, steps.steps[at]
        after = {n: data for n, data in contents(log.directory).items() if n != "kbatch.state"}
        tail = "00000000000000000008.log.damaged"
        assert after == wanted or (
            after.get(tail) == wanted[tail] and after.keys() >= wanted.keys()
        )
