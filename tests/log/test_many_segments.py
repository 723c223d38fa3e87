"""Work on one segment does not grow with their number, and a dead writer is still noticed."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from spark_kbatch.files import Files
from spark_kbatch.log import retention
from spark_kbatch.log.append import LogAppender
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.truncation import truncate_fully_and_start_at, truncate_to
from spark_kbatch.options.topic import TopicConfig
from tests.log.test_partition_log import read_all
from tests.log.test_producer_state import PARTITION
from tests.log.test_producers import append_data
from tests.support import builders
from tests.support.crashes import sample
from tests.support.faults import Fault, FaultyFiles
from tests.support.log_histories import data_batch
from tests.support.soundness import ensure_sound

BATCH = data_batch(base_offset=0)
ONE_EACH = TopicConfig(segment_bytes=len(BATCH), index_interval_bytes=1)
FEW_EACH = TopicConfig(
    segment_bytes=3 * len(BATCH), index_interval_bytes=1, retention_ms=0, file_delete_delay_ms=0
)
LATER_MS = builders.FIRST_TIMESTAMP_MS + 10**6


class CountingFiles(Files):
    """A disk that counts calls and listed names."""

    def __init__(self) -> None:
        self.calls = self.listed = 0

    def list(self, directory: Path) -> list[str]:
        names = super().list(directory)
        self.listed += len(names)
        return names

    def size(self, path: Path) -> int:
        self.calls += 1
        return super().size(path)

    def sizes(self, directory: Path, names: Iterable[str]) -> Sequence[int]:
        found = super().sizes(directory, names)
        self.calls += len(found)
        return found

    def opened(self, path: Path, *, write: bool = False):  # type: ignore[no-untyped-def]
        self.calls += 1
        return super().opened(path, write=write)

    def taken(self) -> tuple[int, int]:
        """Return the calls and listed names since the last time."""
        found, self.calls, self.listed = (self.calls, self.listed), 0, 0
        return found


def counted(directory: Path, config: TopicConfig) -> tuple[PartitionLog, CountingFiles]:
    files = CountingFiles()
    return PartitionLog(files, directory, PARTITION, config), files


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Return a log with one batch in each segment."""
    found = {}
    for count in (20, 200):
        log = builders.a_log(tmp_path_factory.mktemp(str(count)), batches=0, config=ONE_EACH)
        for _ in range(count):
            append_data(log, BATCH)
        found[count] = log.directory
    return found


def test_rolling_costs_the_same_with_ten_times_the_segments(
    directories: dict[int, Path], tmp_path: Path
) -> None:
    taken = []
    for count, source in directories.items():
        directory = Path(shutil.copytree(source, tmp_path / str(count)))
        log, files = counted(directory, ONE_EACH)
        append_data(log, BATCH)  # the first append lists all of them
        files.taken()
        for _ in range(10):
            append_data(log, BATCH)
        taken.append(files.taken())
        assert len(log.segments.bases(log.state())) == count + 11
    assert taken[0] == taken[1]
    assert taken[0][1] == 0


def test_placing_a_commit_costs_the_same_with_ten_times_the_segments(
    directories: dict[int, Path], tmp_path: Path
) -> None:
    taken = []
    for count, source in directories.items():
        directory = Path(shutil.copytree(source, tmp_path / str(count)))
        log, files = counted(directory, ONE_EACH)
        for number in range(4):
            appender = LogAppender(log, log.discard_unrecorded(log.state()), now_ms=0)
            appender.append(bytearray(BATCH * 2))
            log.write_state(appender.finish(flush=True), flush=True)
            if number == 0:
                files.taken()  # the first append lists all of them, and flushes what was not flushed
        taken.append(files.taken())
    assert taken[0] == taken[1]
    assert taken[0][1] == 0


def test_a_plan_asks_for_the_size_of_each_segment_and_opens_few(
    directories: dict[int, Path],
) -> None:
    for count, directory in directories.items():
        log, files = counted(directory, ONE_EACH)
        state = log.state()
        files.taken()
        cuts = log.split_points(state, 0, state.high_watermark, piece_bytes=count // 4 * len(BATCH))
        calls, listed = files.taken()
        assert 2 <= len(cuts) <= 5
        assert calls <= count + 10 * len(cuts)
        assert listed <= 3 * count + 10


# Whatever process dies, a writer that has listed the directory before continues soundly.


def append_some(log: PartitionLog) -> None:
    """Place a commit that is never decided."""
    appender = LogAppender(log, log.discard_unrecorded(log.state()), now_ms=0)
    appender.append(bytearray(BATCH * 8))
    appender.finish(flush=True)


def roll_at_once(log: PartitionLog) -> None:
    """Place an overwrite."""
    appender = LogAppender(log, log.discard_unrecorded(log.state()), now_ms=0)
    appender.start_segment()
    appender.append(bytearray(BATCH * 5))
    appender.finish(flush=True)


def adopt(log: PartitionLog) -> None:
    staged = log.directory.parent / "staged"
    staged.write_bytes(BATCH * 2)
    appender = LogAppender(log, log.discard_unrecorded(log.state()), now_ms=0)
    appender.adopt(staged, 2 * len(BATCH))
    appender.append(bytearray(BATCH * 3))
    appender.finish(flush=True)


def append_and_show(log: PartitionLog) -> None:
    for _ in range(7):
        append_data(log, BATCH)


def cut_what_is_left(log: PartitionLog) -> None:
    append_some(PartitionLog(Files(), log.directory, PARTITION, FEW_EACH))
    log.discard_unrecorded(log.state())


def expire(log: PartitionLog) -> None:
    retention.delete_old_segments(log, log.state(), LATER_MS)


def truncate(log: PartitionLog) -> None:
    truncate_to(log, log.state(), 4, now_ms=0)


def start_lower(log: PartitionLog) -> None:
    truncate_fully_and_start_at(log, log.state(), 3, now_ms=0)


def start_higher(log: PartitionLog) -> None:
    truncate_fully_and_start_at(log, log.state(), 100, now_ms=0)


WAYS = (
    append_some, roll_at_once, adopt, append_and_show, cut_what_is_left, expire, truncate,
    start_lower, start_higher,
)  # fmt: skip
# The others may leave segments below the log's start, which the next retention run deletes.
LEAVES_WHOLE_SEGMENTS = (*WAYS[:5], truncate)


@pytest.mark.more_in_soak
@pytest.mark.parametrize("batches", [6, 7], ids=["full", "with room"])
@pytest.mark.parametrize("way", WAYS, ids=[way.__name__ for way in WAYS])
def test_an_open_log_continues_soundly_after_a_writer_died_at_any_step(
    tmp_path: Path, way: Callable[[PartitionLog], None], batches: int
) -> None:
    log = builders.a_log(tmp_path / "made", batches=0, config=FEW_EACH)
    for _ in range(batches):
        append_data(log, BATCH)
    counting = FaultyFiles()
    way(
        PartitionLog(
            counting, Path(shutil.copytree(log.directory, tmp_path / "c")), PARTITION, FEW_EACH
        )
    )
    assert len(counting.steps) > 2
    for at in sample(range(len(counting.steps) + 1), 3):
        directory = Path(shutil.copytree(log.directory, tmp_path / f"dies at {at}"))
        survivor = PartitionLog(Files(), directory, PARTITION, FEW_EACH)
        survivor.discard_unrecorded(survivor.state())
        fault = Fault(at=at, error=errno.EIO, lasting=True)
        try:
            way(PartitionLog(FaultyFiles(fault), directory, PARTITION, FEW_EACH))
        except OSError:
            pass
        for _ in range(12):  # rolls past all that may be after the end
            before = survivor.state().log_end_offset
            append_data(survivor, BATCH)
            assert survivor.state().log_end_offset == before + 1
        if way in LEAVES_WHOLE_SEGMENTS:
            ensure_sound(survivor)
        fresh = PartitionLog(Files(), directory, PARTITION, FEW_EACH)
        state = fresh.state()
        offsets = [record.offset for record in read_all(fresh)]
        assert offsets == list(range(state.log_start_offset, state.log_end_offset)), (
            counting.steps[at] if at < len(counting.steps) else "lives"
        )
