"""Saved producers give the same answers as the batches, and are used only with those batches."""

from __future__ import annotations

import errno
import os
import random
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kbatch.files import Buffer, Files
from spark_kbatch.log.append import append_as_follower
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.producers import manager
from spark_kbatch.log.producers import saved as saved_producers
from spark_kbatch.log.producers.saved import PRODUCERS_FILE, SavedProducers, pack, unpack
from spark_kbatch.log.producers.state import BatchMetadata, ProducerEntry
from spark_kbatch.log.state import create_state
from spark_kbatch.log.truncation import truncate_to
from spark_kbatch.options.topic import TopicConfig
from tests.log.test_producer_state import (
    Model,
    Sent,
    answer_of,
    append_to,
    as_another_process_has_it,
    conversations,
)
from tests.log.test_producers import append_data, append_written, rebuilt_up_to
from tests.support import builders
from tests.support.faults import FaultyFiles
from tests.support.log_histories import History, data_batch, histories
from tests.support.soundness import ensure_sound

NOW_MS = builders.FIRST_TIMESTAMP_MS
SMALL = TopicConfig(segment_bytes=400)
ENTRY = ProducerEntry(
    2, (BatchMetadata(0, 4, 10, 4, NOW_MS), BatchMetadata(5, 5, 11, 0, NOW_MS)), 3, NOW_MS, 10, 77
)
SAVED = SavedProducers(12, 8, 400, 300, bytes(range(61)), {7: ENTRY, 9: ProducerEntry(0)})


@pytest.fixture
def every_batch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Producers are saved after each batch."""
    monkeypatch.setattr(manager, "SAVED_AFTER_BATCHES", 0)
    monkeypatch.setattr(manager.ProducerStates, "__len__", lambda self: 0)
    return


def saved_in(log: PartitionLog) -> SavedProducers | None:
    return saved_producers.read(Files(), log.directory)


# The file.


def test_each_field_lies_where_the_table_says() -> None:
    data = pack(SAVED)
    assert data[:4] == b"KBPR"
    assert struct.unpack_from(">ii", data, 8) == (1, len(data))
    assert struct.unpack_from(">qqqq", data, 16) == (12, 8, 400, 300)
    assert data[48:109] == bytes(range(61))
    assert struct.unpack_from(">i", data, 109) == (2,)
    assert struct.unpack_from(">qhiqqqi", data, 113) == (7, 2, 3, NOW_MS, 77, 10, 2)
    assert struct.unpack_from(">iiqiq", data, 155) == (0, 4, 10, 4, NOW_MS)


def test_what_was_packed_is_unpacked_also_in_front_of_older_bytes() -> None:
    assert unpack(pack(SAVED)) == SAVED
    assert unpack(pack(SAVED) + b"older") == SAVED


@pytest.mark.parametrize("kind", ["a directory", "a loop of links", "a FIFO", "too large"])
def test_an_unreadable_file_stops_no_append(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = builders.a_log(tmp_path, batches=0)
    append_to(log, Sent(3, 0, 0, 1))
    path = log.directory / PRODUCERS_FILE
    if kind == "a directory":
        path.mkdir()
    elif kind == "a loop of links":
        path.symlink_to(path)
    elif kind == "a FIFO":
        os.mkfifo(path)
    else:
        path.touch()
        os.truncate(path, (1 << 30) + 1)
    fresh = as_another_process_has_it(log)
    assert append_to(fresh, Sent(3, 0, 0, 1)) == ("duplicate", 0)
    assert append_to(fresh, Sent(3, 0, 1, 1)) == ("appended", 1)
    assert str(path) in caplog.text
    truncate_to(fresh, fresh.state(), 1, now_ms=NOW_MS)
    assert append_to(fresh, Sent(3, 0, 1, 1)) == ("appended", 1)


def test_damaged_bytes_are_not_such_a_file() -> None:
    data = pack(SAVED)
    for at in range(len(data)):
        assert unpack(data[:at]) is None
        assert unpack(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) is None


@pytest.mark.parametrize(
    ("position", "count"), [(109, 3), (109, 2**31 - 1), (151, 6), (151, -1), (151, 5)]
)
def test_impossible_counts_are_refused_whatever_the_checksum_says(
    position: int, count: int
) -> None:
    data = bytearray(pack(SAVED))
    struct.pack_into(">i", data, position, count)
    struct.pack_into(">I", data, 4, saved_producers.checksums.crc32c(bytes(data[8:])))
    assert unpack(bytes(data)) is None


# Answers.


@pytest.mark.usefixtures("every_batch")
@pytest.mark.parametrize("config", [TopicConfig(), SMALL], ids=["one segment", "rolled"])
@given(sent=conversations(size_max=15))
def test_saved_producers_give_every_answer(config: TopicConfig, sent: list[Sent]) -> None:
    """Another process appends each batch, and recognises duplicates up to five batches back."""
    with tempfile.TemporaryDirectory() as folder:
        log = builders.a_log(Path(folder), batches=0, config=config, files=FaultyFiles())
        model = Model()
        for one in sent:
            log = as_another_process_has_it(log)
            found = answer_of(lambda log=log, one=one: append_to(log, one, now_ms=NOW_MS))
            assert found == model.append(one)
        ensure_sound(log)


@pytest.mark.usefixtures("every_batch")
@given(history=histories(), data=st.data())
def test_saved_producers_have_the_transactions(history: History, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = builders.a_log(Path(folder), batches=0, config=SMALL, files=FaultyFiles())
        so_far = History()
        for one in history.written:
            append_written(data.draw(st.sampled_from([log, as_another_process_has_it(log)])), one)
            so_far.written.append(one)
            assert log.state().last_stable_offset == so_far.last_stable_offset()
        left = data.draw(st.integers(0, len(history.written) - 1))
        offset = history.written[left].base_offset
        state = truncate_to(as_another_process_has_it(log), log.state(), offset, now_ms=NOW_MS)
        kept = History()
        kept.written = history.written[:left]
        assert state.last_stable_offset == kept.last_stable_offset()


@pytest.mark.usefixtures("every_batch")
@given(history=histories(), data=st.data())
def test_a_follower_loads_the_transactions_it_saved(history: History, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = builders.a_log(Path(folder), batches=0, config=SMALL, files=FaultyFiles())
        so_far, high_watermark, rest = History(), 0, list(history.written)
        while rest:
            count = data.draw(st.integers(1, 4))
            piece, rest = rest[:count], rest[count:]
            so_far.written += piece
            high_watermark = data.draw(st.integers(high_watermark, so_far.end_offset))
            by = as_another_process_has_it(log)
            state = append_as_follower(
                by, by.state(), b"".join(one.data for one in piece),
                high_watermark=high_watermark, flush=False, now_ms=NOW_MS,
            ).show()  # fmt: skip
            assert state.last_stable_offset == so_far.last_stable_offset(high_watermark)


# Which batches are read.


class CountingFiles(Files):
    """A disk that counts the bytes that are read from logs."""

    def __init__(self) -> None:
        self.read_bytes = 0

    def pread_into(self, descriptor: int, position: int, buffer: memoryview) -> int:
        count = super().pread_into(descriptor, position, buffer)
        self.read_bytes += count
        return count


def read_by_the_next_append(log: PartitionLog, producer_id: int) -> int:
    files = CountingFiles()
    fresh = PartitionLog(files, log.directory, log.topic_partition, log.config)
    assert append_to(fresh, Sent(producer_id, 0, 0, 1))[0] == "appended"
    return files.read_bytes


def test_the_first_append_of_a_process_reads_no_more_with_more_batches(tmp_path: Path) -> None:
    read = []
    for number, count in enumerate((3000, 9000)):
        log = builders.a_log(tmp_path / str(number), batches=0)
        builders.append(log, *[data_batch(base_offset=0)] * count)
        for producer_id in range(20, 24):
            read.append(read_by_the_next_append(log, producer_id))
    small, large = read[1:4], read[5:8]
    assert max(large) <= 1.2 * max(small)
    assert max(large) < 20_000 < read[0] < read[4]


def test_a_process_saves_after_so_many_batches_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "SAVED_AFTER_BATCHES", 10)
    log = builders.a_log(tmp_path, batches=0)
    for sequence in range(9):
        append_to(log, Sent(3, 0, sequence, 1))
    assert saved_in(log) is None
    for sequence in range(9, 25):
        append_to(log, Sent(3, 0, sequence, 1))
    saved = saved_in(log)
    assert saved is not None
    assert saved.offset == 20
    assert [batch.last_sequence for batch in saved.entries[3].batches] == [15, 16, 17, 18, 19]
    assert append_to(as_another_process_has_it(log), Sent(3, 0, 20, 1)) == ("duplicate", 20)


# With other batches it is not used.


@pytest.mark.usefixtures("every_batch")
def test_producers_saved_before_a_log_diverged_are_not_used(tmp_path: Path) -> None:
    """A power loss took batches that were not flushed, and left the file."""
    log = builders.a_log(tmp_path, batches=0)
    append_to(log, Sent(3, 0, 0, 1))
    before, data = log.state(), (log.directory / f"{0:020d}.log").read_bytes()
    append_to(log, Sent(3, 0, 1, 1))
    append_to(log, Sent(3, 0, 2, 1))
    saved = (log.directory / PRODUCERS_FILE).read_bytes()
    (log.directory / f"{0:020d}.log").write_bytes(data)
    create_state(Files(), log.directory, before)

    fresh = as_another_process_has_it(log)
    for _ in range(4):
        append_data(fresh, data_batch(base_offset=0))
    (log.directory / PRODUCERS_FILE).write_bytes(saved)
    assert append_to(as_another_process_has_it(log), Sent(3, 0, 1, 1)) == ("appended", 5)


@pytest.mark.usefixtures("every_batch")
@pytest.mark.parametrize(
    "change", ["missing", "torn", "garbage", "past the end", "another segment"]
)
def test_a_file_that_does_not_hold_costs_a_replay_and_nothing_else(
    tmp_path: Path, change: str
) -> None:
    log = builders.a_log(tmp_path, batches=0)
    for sequence in range(5):
        append_to(log, Sent(3, 0, sequence, 1))
    path, saved = log.directory / PRODUCERS_FILE, saved_in(log)
    assert saved is not None
    data = path.read_bytes()
    wrong = saved._replace(entries={3: ProducerEntry(7)})
    match change:
        case "missing":
            path.unlink()
        case "torn":
            path.write_bytes(data[:-7])
        case "garbage":
            path.write_bytes(random.Random(1).randbytes(len(data)))
        case "past the end":
            path.write_bytes(pack(wrong._replace(offset=99)))
        case "another segment":
            path.write_bytes(pack(wrong._replace(segment_base_offset=2**40)))
    assert append_to(as_another_process_has_it(log), Sent(3, 0, 4, 1)) == ("duplicate", 4)
    assert append_to(as_another_process_has_it(log), Sent(3, 0, 5, 1)) == ("appended", 5)


@pytest.mark.usefixtures("every_batch")
def test_truncating_removes_saved_producers(tmp_path: Path) -> None:
    log = builders.a_log(tmp_path, batches=0)
    for sequence in range(5):
        append_to(log, Sent(3, 0, sequence, 1))
    truncate_to(log, log.state(), 3, now_ms=NOW_MS)
    assert saved_in(log) is None
    assert append_to(as_another_process_has_it(log), Sent(3, 0, 3, 1)) == ("appended", 3)


@pytest.mark.usefixtures("every_batch")
def test_saved_producers_count_after_others_rolled_their_segment(tmp_path: Path) -> None:
    log = builders.a_log(tmp_path, batches=0, config=SMALL)
    for sequence in range(3):
        append_to(log, Sent(3, 0, sequence, 1))
    other = as_another_process_has_it(log)
    for _ in range(12):
        append_data(other, data_batch(base_offset=0))
    active = log.state().segment_base_offset
    assert active > 3
    fresh = as_another_process_has_it(log)
    assert append_to(fresh, Sent(3, 0, 2, 1)) == ("duplicate", 2)
    snapshot = (log.directory / f"{active:020d}.snapshot").read_bytes()
    assert snapshot == rebuilt_up_to(log, active)


class FullFiles(Files):
    """A disk with no space for kbatch.producers."""

    def write(self, path: Path, position: int, data: Buffer) -> None:
        if path.name == PRODUCERS_FILE:
            raise OSError(errno.ENOSPC, "no space left", str(path))
        super().write(path, position, data)


@pytest.mark.usefixtures("every_batch")
def test_an_append_succeeds_where_producers_cannot_be_saved(tmp_path: Path) -> None:
    log = builders.a_log(tmp_path, batches=0)
    full = PartitionLog(FullFiles(), log.directory, log.topic_partition, log.config)
    assert append_to(full, Sent(3, 0, 0, 1)) == ("appended", 0)
    assert append_to(full, Sent(3, 0, 1, 1)) == ("appended", 1)
    assert saved_in(log) is None
    assert append_to(as_another_process_has_it(log), Sent(3, 0, 0, 1)) == ("duplicate", 0)
