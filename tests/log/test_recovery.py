"""Recovery: what readers and the next writer do with a log that is not as its state says."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kbatch.errors import CorruptRecordError, KafkaStorageError, KBatchError
from spark_kbatch.files import Files
from spark_kbatch.log import recovery
from spark_kbatch.log import state as log_state
from spark_kbatch.log.append import LogAppender
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.recovery import epochs_of
from spark_kbatch.log.segment import SegmentView, segment_at
from spark_kbatch.log.state import LogState, boot_id, create_state, read_state
from spark_kbatch.model import ReadRange, TopicPartition
from spark_kbatch.options.topic import TopicConfig
from tests.log.test_partition_log import read_all
from tests.support import builders, reference
from tests.support.builders import a_log, append
from tests.support.crashes import another_boot, sample
from tests.support.disk import Disk, DiskFiles
from tests.support.faults import FaultyFiles, ReadOnlyFiles
from tests.support.reference import Record
from tests.support.soundness import ensure_sound

BATCH = builders.batch(n=2, value_bytes=20)
CONFIG = TopicConfig(segment_bytes=4 * len(BATCH), index_interval_bytes=1)
ANOTHER_BOOT = b"another machine!"


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """No one is writing, so an invalid slot stays invalid."""
    monkeypatch.setattr(log_state, "_PAUSE_S", 0)


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    """Segments 0, 8 and 16, of 4, 4 and 3 batches of 2 records; flushed up to offset 4."""
    log = a_log(tmp_path, batches=0, config=CONFIG)
    append(log, *[BATCH] * 11)
    set_state(log, recovery_point=4)
    return log


def set_state(log: PartitionLog, **fields: object) -> LogState:
    """Change the recorded state, in both slots."""
    state = read_state(Files(), log.directory)._replace(**fields)  # type: ignore[arg-type]
    create_state(Files(), log.directory, state)
    return state._replace(sequence=state.sequence + 1)


def reboot(log: PartitionLog) -> PartitionLog:
    """Open the log again after a restart of its machine."""
    set_state(log, boot_id=ANOTHER_BOOT)
    return reopened(log)


def reopened(log: PartitionLog, files: Files | None = None) -> PartitionLog:
    return PartitionLog(files or Files(), log.directory, log.topic_partition, log.config)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def write(log: PartitionLog) -> None:
    """Discard and append, as every writer does."""
    state = log.discard_unrecorded(log.state())
    appender = LogAppender(log, state, now_ms=0)
    appender.append(bytearray(BATCH))
    log.write_state(appender.finish(flush=False), flush=False)


def write_and_read(log: PartitionLog) -> None:
    write(log)
    read_all(log)


class OldSizes(Files):
    """A network file system, whose client tells the sizes that `.log` files had unless it opens them."""

    def __init__(self, log: PartitionLog) -> None:
        self.known = {path.name: path.stat().st_size for path in log.directory.glob("*.log")}

    def size(self, path: Path) -> int:
        return self.known.get(path.name, super().size(path))

    def sizes(self, directory: Path, names: Iterable[str]) -> Sequence[int]:
        names = list(names)
        found = super().sizes(directory, names)
        return [self.known.get(name, size) for name, size in zip(names, found, strict=True)]


def file_of(base: int, kind: str) -> Callable[[PartitionLog], Path]:
    return lambda log: getattr(segment_at(log.directory, base), kind)  # type: ignore[no-any-return]


# The table.


class Case(NamedTuple):
    """A row of the table: damage to a log of 22 records, and what can be read then."""

    damage: Callable[[PartitionLog], object]
    reader: int | type[KBatchError]  # number of records, or the error
    writer: int | type[KBatchError]  # number of records before its own
    sound: bool = True  # after the writer, by Kafka's tools


def cut_at(base: int, kind: str, size: int) -> Callable[[PartitionLog], object]:
    def damage(log: PartitionLog) -> None:
        path = file_of(base, kind)(log)
        path.write_bytes(path.read_bytes()[:size])

    return damage


def missing(base: int, kind: str) -> Callable[[PartitionLog], object]:
    return lambda log: file_of(base, kind)(log).unlink()


def filled(
    base: int, kind: str, content: Callable[[bytes], bytes]
) -> Callable[[PartitionLog], object]:
    def damage(log: PartitionLog) -> None:
        path = file_of(base, kind)(log)
        path.write_bytes(content(path.read_bytes()))

    return damage


def slots(*numbers: int) -> Callable[[PartitionLog], object]:
    def damage(log: PartitionLog) -> None:
        path = log.directory / "kbatch.state"
        data = bytearray(path.read_bytes())
        for number in numbers:
            data[4096 * number + 20] ^= 1
        path.write_bytes(data)

    return damage


def after_reboot(damage: Callable[[PartitionLog], object]) -> Callable[[PartitionLog], object]:
    def both(log: PartitionLog) -> None:
        damage(log)
        set_state(log, boot_id=ANOTHER_BOOT)

    return both


def epochs(text: str | None) -> Callable[[PartitionLog], object]:
    def damage(log: PartitionLog) -> None:
        path = log.directory / "leader-epoch-checkpoint"
        path.unlink()
        if text is not None:
            path.write_text(text)

    return damage


def with_files(*names: str) -> Callable[[PartitionLog], object]:
    def damage(log: PartitionLog) -> None:
        for name in names:
            (log.directory / name).write_bytes(BATCH)

    return damage


def garbage(data: bytes) -> bytes:
    return random.Random(len(data)).randbytes(len(data))


def flipped(base: int, batch: int) -> Callable[[PartitionLog], object]:
    at = batch * len(BATCH) + 80

    def flip(data: bytes) -> bytes:
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    return filled(base, "log", flip)


SIZE = len(BATCH)
TABLE = {
    "past-the-ends": Case(filled(16, "log", lambda data: data + BATCH), 22, 22),
    "past-the-ends-segments": Case(with_files("00000000000000000022.log", "00000000000000000040.index"), 22, 22),
    "reboot": Case(after_reboot(lambda log: None), 22, 22),
    "reboot-all-flushed": Case(
        lambda log: set_state(log, boot_id=ANOTHER_BOOT, recovery_point=22), 22, 22
    ),
    "reboot-torn-tail": Case(after_reboot(cut_at(16, "log", 3 * SIZE - 1)), 20, 20),
    "reboot-zeroed-tail": Case(
        after_reboot(filled(16, "log", lambda data: data[:SIZE] + bytes(2 * SIZE))), 18, 18
    ),
    "reboot-active-lost": Case(after_reboot(missing(16, "log")), 16, 16),
    "reboot-active-empty": Case(after_reboot(cut_at(16, "log", 0)), 16, 16),
    "reboot-bad-batch-in-active": Case(after_reboot(flipped(16, 1)), 18, 18),
    "reboot-bad-batch-in-rolled": Case(after_reboot(flipped(8, 2)), 12, 12),
    "reboot-rolled-cut": Case(after_reboot(cut_at(8, "log", 2 * SIZE)), 12, 12),
    "reboot-rolled-lost": Case(after_reboot(missing(8, "log")), 8, 8),
    "reboot-rolled-and-active-lost": Case(
        after_reboot(lambda log: (missing(8, "log")(log), missing(16, "log")(log))), 8, 8
    ),
    "reboot-indexes-lost": Case(
        after_reboot(lambda log: [missing(base, kind)(log) for base in (8, 16) for kind in ("offset_index", "time_index")]),
        22, 22,
    ),
    "reboot-indexes-garbage": Case(
        after_reboot(lambda log: [filled(base, kind, garbage)(log) for base in (8, 16) for kind in ("offset_index", "time_index")]),
        22, 22,
    ),
    "reboot-flushed-part-cut": Case(after_reboot(cut_at(0, "log", SIZE)), KafkaStorageError, KafkaStorageError),
    "reboot-flushed-part-lost": Case(after_reboot(missing(0, "log")), KafkaStorageError, KafkaStorageError),
    "active-short": Case(cut_at(16, "log", SIZE + 5), KafkaStorageError, 18),
    "active-short-flushed": Case(
        lambda log: (set_state(log, recovery_point=22), cut_at(16, "log", SIZE + 5)(log)),
        KafkaStorageError, KafkaStorageError,
    ),
    "active-index-missing": Case(missing(16, "offset_index"), 22, 22),
    "active-index-short": Case(cut_at(16, "offset_index", 9), 22, 22),
    "active-index-garbage": Case(filled(16, "offset_index", garbage), 22, 22, sound=False),
    "active-timeindex-missing": Case(missing(16, "time_index"), 22, 22),
    "active-timeindex-short": Case(cut_at(16, "time_index", 3), 22, 22),
    "rolled-index-missing": Case(missing(8, "offset_index"), 22, 22),
    "rolled-index-zeroed": Case(filled(8, "offset_index", lambda data: bytes(len(data))), 22, 22, sound=False),
    "rolled-timeindex-missing": Case(missing(0, "time_index"), 22, 22),
    "reboot-rolled-timeindex-zeroed-at-recovery-point": Case(
        after_reboot(lambda log: (set_state(log, recovery_point=16), filled(8, "time_index", lambda data: bytes(len(data)))(log))),
        22, 22,
    ),
    "rolled-log-missing": Case(missing(8, "log"), CorruptRecordError, CorruptRecordError),
    "rolled-log-cut": Case(cut_at(8, "log", 2 * SIZE), CorruptRecordError, CorruptRecordError),
    "rolled-log-torn": Case(cut_at(8, "log", 2 * SIZE + 7), CorruptRecordError, CorruptRecordError),
    "epochs-missing": Case(epochs(None), 22, 22),
    "epochs-empty": Case(epochs(""), 22, 22),
    "epochs-damaged": Case(epochs("0\n7\n"), 22, 22),
    "epochs-garbage": Case(epochs("\x07\x80\n" * 9), 22, 22),
    "epochs-over-long": Case(epochs("0\n1\n0 0\n0 0\n"), 22, 22),
    "metadata-missing": Case(lambda log: (log.directory / "partition.metadata").unlink(), 22, 22),
    "one-slot": Case(slots(0), 22, 22),
    "other-slot": Case(slots(1), 22, 22),
    "both-slots": Case(slots(0, 1), CorruptRecordError, CorruptRecordError),
    "state-missing": Case(lambda log: (log.directory / "kbatch.state").unlink(), KafkaStorageError, KafkaStorageError),
    "directory-missing": Case(
        lambda log: log.directory.rename(log.directory.with_name("gone")), KafkaStorageError, KafkaStorageError
    ),
    "swap-files": Case(
        with_files(*(f"00000000000000000008.{kind}.{end}" for kind in ("log", "index") for end in ("deleted", "cleaned", "swap"))),
        22, 22,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE.keys())
def test_a_reader_does_what_the_table_says_and_writes_nothing(
    log: PartitionLog, case: Case
) -> None:
    case.damage(log)
    before = contents(log.directory) if log.directory.exists() else {}
    log = reopened(log, ReadOnlyFiles())
    if isinstance(case.reader, int):
        assert [record.offset for record in read_all(log)] == list(range(case.reader))
        for offset in range(case.reader):
            batch = log.read(log.state(), ReadRange(offset, max_bytes=1)).batches[0][1]
            assert batch.base_offset <= offset <= batch.last_offset
    else:
        with pytest.raises(case.reader, match=str(log.directory)):
            read_all(log)
    assert (contents(log.directory) if log.directory.exists() else {}) == before


@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE.keys())
def test_the_next_writer_does_what_the_table_says(log: PartitionLog, case: Case) -> None:
    whole = read_all(log)
    case.damage(log)
    log = reopened(log)
    if isinstance(case.writer, int):
        write(log)
        found = read_all(reopened(log))
        assert found[: case.writer] == whole[: case.writer]
        assert [record.offset for record in found] == list(range(case.writer + 2))
        assert log.state().boot_id == boot_id()
        if case.sound:
            for path in log.directory.glob("*.log.*"):
                path.unlink()
            for path in log.directory.glob("*.index.*"):
                path.unlink()
            ensure_sound(log)
    else:
        with pytest.raises(case.writer, match=str(log.directory)):
            write_and_read(log)


def test_the_tables_rows_are_in_the_docstring() -> None:
    for words in (".index, .timeindex", "leader-epoch-checkpoint", "both damaged", "*.swap"):
        assert words in (recovery.__doc__ or "")


# Never worse than the table says.


def whole_records(path: Path, base: int, size: int) -> int:
    """Return the number of records in the whole batches of the first `size` bytes."""
    lengths = list(accumulate(len(batch) for batch in reference.split_batches(path.read_bytes())))
    return base + 2 * sum(end <= size for end in lengths)


@pytest.mark.more_in_soak
def test_for_every_cut_of_the_active_segment_exactly_the_whole_batches_before_it_are_kept(
    tmp_path: Path,
) -> None:
    log = a_log(tmp_path, batches=0, config=CONFIG)
    append(log, *[BATCH] * 6)
    path = segment_at(log.directory, 8).log
    before, data = contents(log.directory), path.read_bytes()
    for size in sample(range(len(data) + 1), 4):
        for name, content in before.items():
            (log.directory / name).write_bytes(content)
        kept = whole_records(path, 8, size)
        path.write_bytes(data[:size])
        again = reopened(reboot(log), FaultyFiles())  # does not wait for the disk
        assert again.state().log_end_offset == kept, f"a reader, cut at {size}"
        state = again.discard_unrecorded(again.state())
        assert state.log_end_offset == state.high_watermark == kept, f"cut at {size}"
        again.write_state(state._replace(sequence=state.sequence + 1), flush=False)
        ensure_sound(again)


@pytest.mark.more_in_soak
def test_for_every_damaged_byte_exactly_the_whole_batches_before_it_are_kept(
    tmp_path: Path,
) -> None:
    log = a_log(tmp_path, batches=0, config=CONFIG)
    append(log, *[BATCH] * 6)
    log = reboot(log)
    for base in (0, 8):
        path = segment_at(log.directory, base).log
        data = path.read_bytes()
        for at in sample(range(len(data)), 3):
            if at % SIZE in range(12, 16):
                continue  # the leader epoch, which no CRC covers
            path.write_bytes(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
            kept = base + at // SIZE * 2
            assert reopened(log).state().log_end_offset == kept, f"byte {at} of {path.name}"
        path.write_bytes(data)


def test_flushed_batches_are_never_discarded_even_if_damaged(log: PartitionLog) -> None:
    flipped(8, 1)(log)
    set_state(log, boot_id=ANOTHER_BOOT, recovery_point=16)
    before = contents(log.directory)
    write(reopened(log))
    after = contents(log.directory)
    name = "00000000000000000008.log"
    assert after[name] == before[name]
    assert reopened(log).state().log_end_offset == 24


@pytest.mark.parametrize("is_flushed", [True, False], ids=["flushed", "not flushed"])
@pytest.mark.parametrize("batches", [1, 3], ids=["active segment", "rolled segment"])
def test_what_another_machine_appended_is_not_lost_where_sizes_of_files_are_old(
    log: PartitionLog, batches: int, is_flushed: bool
) -> None:
    behind = reopened(log, OldSizes(log))
    append(log, *[BATCH] * batches)
    end = 22 + 2 * batches
    set_state(log, boot_id=ANOTHER_BOOT, recovery_point=end if is_flushed else 4)
    assert behind.state().log_end_offset == end
    write(behind)
    assert [one.offset for one in read_all(reopened(log))] == list(range(end + 2))
    ensure_sound(reopened(log))


def test_in_a_sound_log_only_the_boot_id_changes(log: PartitionLog) -> None:
    log = reboot(log)
    before, state = contents(log.directory), read_state(Files(), log.directory)
    assert log.discard_unrecorded(log.state()) == state._replace(boot_id=boot_id())
    assert contents(log.directory) == before


def test_a_loss_is_logged_once_and_with_numbers(
    log: PartitionLog, caplog: pytest.LogCaptureFixture
) -> None:
    cut_at(16, "log", SIZE + 3)(log)
    log = reboot(log)
    with caplog.at_level(logging.WARNING, recovery.__name__):
        for _ in range(3):
            log.state()
    (record,) = caplog.records
    for words in (str(log.directory), "offset 18 instead of 22", "offset 4 on", f"position {SIZE}"):
        assert words in record.getMessage()


def test_a_log_whose_end_falls_below_its_start_is_empty_there(log: PartitionLog) -> None:
    set_state(log, log_start_offset=19, boot_id=ANOTHER_BOOT)
    cut_at(16, "log", SIZE)(log)
    log = reopened(log)
    state = log.state()
    assert (state.log_start_offset, state.log_end_offset, state.high_watermark) == (19, 19, 19)
    assert read_all(log) == []
    write(log)
    assert [record.offset for record in read_all(reopened(log))] == [19, 20]


def test_each_batch_is_checked_once_while_another_machine_appends(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    holds = recovery._ensure_holds

    def counted(files: Files, path: Path, position: int, header, expected, view):  # type: ignore[no-untyped-def]
        seen.append(header.base_offset)
        return holds(files, path, position, header, expected, view)

    monkeypatch.setattr(recovery, "_ensure_holds", counted)
    reader = reboot(log)
    for _ in range(3):
        reader.state()
    assert seen == list(range(4, 22, 2))
    append(log, BATCH)
    set_state(log, boot_id=ANOTHER_BOOT)
    seen.clear()
    assert reader.state().log_end_offset == 24
    assert seen == [22]


def test_a_rebuilt_index_has_the_bytes_that_the_appender_wrote(log: PartitionLog) -> None:
    before = contents(log.directory)
    for path in log.directory.glob("*index"):
        path.unlink()
    log.discard_unrecorded(log.state())
    assert contents(log.directory) == before


def test_leader_epochs_are_rebuilt_from_the_batches(tmp_path: Path) -> None:
    log = a_log(tmp_path, batches=2, config=CONFIG)
    state = log.state()._replace(leader_epoch=3)
    appender = LogAppender(log, state, now_ms=0)
    appender.append(bytearray(BATCH * 3))
    log.write_state(appender.finish(flush=False), flush=False)
    path = log.directory / "leader-epoch-checkpoint"
    path.unlink()
    log.discard_unrecorded(log.state())
    assert path.read_text() == f"0\n2\n0 0\n3 {state.log_end_offset}\n"


@pytest.mark.parametrize(
    ("found", "kept"),
    [
        ([0, 0, 1, 1, 2], [0, 0, 1, 1, 2]),
        ([0, 0, 9, 0, 0], [0, 0, 0, 0]),
        ([0, 9, 0, 1, 1], [0, 0, 1, 1]),
        ([5, 5, 1, 5, 6], [5, 5, 5, 6]),
        ([1, 1, 1, 7], [1, 1, 1]),
        ([9], []),
        ([], []),
    ],
    ids=["sound", "raised", "raised early", "decreased", "above the highest", "alone", "empty"],
)
def test_leader_epochs_count_that_the_most_batches_agree_on(
    tmp_path: Path, found: list[int], kept: list[int]
) -> None:
    log = a_log(tmp_path, batches=0)
    data = bytearray()
    for number, epoch in enumerate(found):
        one = bytearray(BATCH)
        one[:8], one[12:16] = (2 * number).to_bytes(8, "big"), epoch.to_bytes(4, "big")
        data += one
    path = segment_at(log.directory, 0).log
    path.write_bytes(data)
    view = SegmentView(segment_at(log.directory, 0), 2 * len(found), len(data))
    epochs = epochs_of(Files(), [view], highest=6)
    assert [epoch for epoch, _ in epochs.entries] == sorted({*kept})
    assert sorted([*kept, *(epoch for _, _, epoch in epochs.doubtful)]) == sorted(found)


# Power loss.


@given(
    commits=st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=8),
    seed=st.integers(0, 2**32),
)
def test_a_power_loss_takes_nothing_that_was_flushed_and_leaves_whole_batches(
    commits: list[tuple[int, bool]], seed: int
) -> None:
    files = DiskFiles(Disk())
    log = a_log(files.mount, batches=0, config=CONFIG, files=files)
    files.disk.settled()
    written: list[Record] = []
    flushed = 0
    for number, (batches, flush) in enumerate(commits):
        state = log.discard_unrecorded(log.state())
        appender = LogAppender(log, state, now_ms=0)
        for _ in range(batches):
            appender.append(bytearray(builders.batch(n=2, value_bytes=20, seed=number)))
        log.write_state(appender.finish(flush=flush), flush=flush)
        written = read_all(log)
        flushed = len(written) if flush else flushed

    with another_boot():
        files = DiskFiles(files.disk.after_power_loss(random.Random(seed)))
        survivor = PartitionLog(files, log.directory, TopicPartition("events", 0), CONFIG)
        found = read_all(survivor)
        assert flushed <= len(found)
        assert found == written[: len(found)]
        write(survivor)
        assert read_all(survivor)[: len(found)] == found
        ensure_sound(survivor)
