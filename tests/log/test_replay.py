"""Producers rebuilt from a log, from any snapshot on, are those that every record tells of."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.files import Files
from spark_kbatch.log.producers.replay import AbortedSearch, BatchPosition, Rebuilt, rebuild
from spark_kbatch.log.producers.snapshot import pack, snapshot_path, write_snapshot
from spark_kbatch.log.producers.state import PRODUCER_ID_EXPIRATION_MS, ProducerEntry
from spark_kbatch.log.segment import Segment, segment_at
from spark_kbatch.model import AbortedTransaction, TopicPartition
from tests.support.builders import FIRST_TIMESTAMP_MS
from tests.support.log_histories import History, control_batch, data_batch, histories

PARTITION = TopicPartition("events", 0)
END = 2**62


@contextmanager
def folder() -> Iterator[Path]:
    """Return a new directory for every example."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def rebuilt_from(
    directory: Path,
    segments: list[Segment],
    *,
    end: int = END,
    start: int = 0,
    now_ms: int = FIRST_TIMESTAMP_MS,
) -> Rebuilt:
    return rebuild(
        Files(),
        directory,
        PARTITION,
        lambda _: segments,
        log_start_offset=start,
        log_end_offset=end,
        now_ms=now_ms,
    )


def aborted_in(history: History) -> set[tuple[int, int]]:
    """Return (producer id, marker's offset) of the transactions that had data."""
    found = set()
    with_data: set[int] = set()
    for batch in history.written:
        if batch.ends:
            if batch.ends == "abort" and batch.producer_id in with_data:
                found.add((batch.producer_id, batch.base_offset))
            with_data.discard(batch.producer_id)
        elif batch.transactional:
            with_data.add(batch.producer_id)
    return found


@given(histories(), st.data())
def test_a_replay_finds_what_every_record_tells(history: History, data: st.DataObject) -> None:
    with folder() as directory:
        starts = data.draw(st.sets(st.integers(0, len(history.written) - 1), max_size=3))
        rebuilt = rebuilt_from(directory, history.segments(directory, sorted(starts)))
    states = rebuilt.states
    assert states.last_stable_offset(history.end_offset) == history.last_stable_offset()
    assert {(one.producer_id, one.last_offset) for one in rebuilt.aborted} == aborted_in(history)
    for producer_id, entry in states.entries.items():
        assert entry.producer_epoch == history.epochs.get(producer_id, 0)
        assert entry.last_sequence + 1 == history.sequences.get(producer_id, 0)
        assert entry.txn_first_offset == history.open.get(producer_id)


@given(histories(), st.data())
def test_a_snapshot_at_any_batch_and_a_replay_of_the_rest_is_a_replay_of_all(
    history: History, data: st.DataObject
) -> None:
    at = data.draw(st.sampled_from([batch.next_offset for batch in history.written]))
    with folder() as directory:
        starts = data.draw(st.sets(st.integers(0, len(history.written) - 1), max_size=3))
        segments = history.segments(directory, sorted(starts))
        full = rebuilt_from(directory, segments)
        before = rebuilt_from(directory, segments, end=at)
        write_snapshot(Files(), directory, at, before.states.entries)
        resumed = rebuilt_from(directory, segments)
    assert resumed.replayed_from == at
    assert pack(resumed.states.entries) == pack(full.states.entries)
    hw = history.end_offset
    assert resumed.states.last_stable_offset(hw) == full.states.last_stable_offset(hw)
    assert resumed.aborted == [one for one in full.aborted if one.last_offset >= at]


@given(histories(size_max=40), st.data())
def test_a_search_finds_the_aborted_transactions_of_every_range(
    history: History, data: st.DataObject
) -> None:
    """One search serves all ranges, so that what it remembers is used."""
    with folder() as directory:
        starts = data.draw(st.sets(st.integers(0, len(history.written) - 1), max_size=3))
        segments = history.segments(directory, sorted(starts))
        search = AbortedSearch(Files())
        batches = [
            one for one in history.written if one.next_offset <= history.last_stable_offset()
        ]
        for _ in range(3 if batches else 0):
            first, last = sorted(data.draw(st.sampled_from(range(len(batches)))) for _ in range(2))
            start, end = batches[first].base_offset, batches[last].next_offset
            found = search.between(
                segments, start, position_of(segments, history, first), end, history.end_offset
            )
            assert dropped(history, range(first, last + 1), found) == {
                index
                for index in range(first, last + 1)
                if not batches[index].ends and history.outcome(index) == "abort"
            }


def position_of(segments: list[Segment], history: History, index: int) -> BatchPosition:
    offset = history.written[index].base_offset
    base = max(segment.base_offset for segment in segments if segment.base_offset <= offset)
    before = (one for one in history.written[:index] if one.base_offset >= base)
    return BatchPosition(base, sum(len(one.data) for one in before))


def dropped(history: History, indexes: range, aborted: list[AbortedTransaction]) -> set[int]:
    """Return the offsets that a consumer drops by a fetch answer, batch by batch."""
    assert aborted == sorted(aborted, key=lambda one: one.first_offset)
    found, current = set(), set()
    for index in indexes:
        batch = history.written[index]
        current |= {one.producer_id for one in aborted if one.first_offset < batch.next_offset}
        aborted = [one for one in aborted if one.first_offset >= batch.next_offset]
        if batch.ends == "abort":
            current.discard(batch.producer_id)
        elif batch.transactional and batch.producer_id in current and not batch.ends:
            found.add(index)
    return found


def test_a_search_continues_when_the_log_has_grown_and_rolled(tmp_path: Path) -> None:
    history = History()
    history.append(1, transactional=True)
    history.end(1, abort=True)
    search, start = AbortedSearch(Files()), BatchPosition(0, 0)
    first = AbortedTransaction(1, 0, 1)
    assert search.between(history.segments(tmp_path), 0, start, 2, 2) == [first]
    history.append(1, transactional=True)
    history.end(1, abort=True)
    segments = history.segments(tmp_path, [2])
    assert search.between(segments, 0, start, 4, 4) == [first, AbortedTransaction(1, 2, 3)]


class CountingFiles(Files):
    """A disk that counts the bytes that are read."""

    count = 0

    def pread_into(self, descriptor: int, position: int, buffer: memoryview) -> int:
        self.count += 1
        return super().pread_into(descriptor, position, buffer)


def test_a_sequential_reader_does_not_search_twice(tmp_path: Path) -> None:
    history = History()
    for _ in range(50):
        history.append(1, transactional=True, n=100)
    history.end(1, abort=True)
    segments = history.segments(tmp_path)
    files = CountingFiles()
    search = AbortedSearch(files)
    for index, batch in enumerate(history.written[:50]):
        at = position_of(segments, history, index)
        (found,) = search.between(segments, batch.base_offset, at, batch.next_offset, 5001)
        assert (found.producer_id, found.last_offset) == (1, 5000)
    whole = segments[0].log.stat().st_size // 8192 + 1
    assert files.count <= whole + 50


def test_the_last_stable_offset_waits_for_the_marker_to_be_below_the_high_watermark(
    tmp_path: Path,
) -> None:
    history = History()
    history.append(1, transactional=True, n=2)
    history.end(1, abort=False)
    history.append(-1, transactional=False)
    segments = history.segments(tmp_path)
    found = [rebuilt_from(tmp_path, segments).states.last_stable_offset(hw) for hw in range(5)]
    assert found == [0, 0, 0, 3, 4]


def test_an_open_transaction_that_began_before_the_log_start_counts_from_there(
    tmp_path: Path,
) -> None:
    history = History()
    history.append(1, transactional=True, n=5)
    states = rebuilt_from(tmp_path, history.segments(tmp_path)).states
    assert states.last_stable_offset(5, at_least=3) == 3


def test_an_aborted_transaction_names_the_offset_up_to_which_all_was_decided(
    tmp_path: Path,
) -> None:
    history = History()
    for producer_id in (1, 2, 3):
        history.append(producer_id, transactional=True)
    for producer_id in (1, 3, 2):
        history.end(producer_id, abort=True)
    rebuilt = rebuilt_from(tmp_path, history.segments(tmp_path))
    assert [one.last_stable_offset for one in rebuilt.aborted] == [1, 1, 6]


def test_a_snapshot_past_the_end_or_at_the_log_start_is_not_used(tmp_path: Path) -> None:
    history = History()
    history.append(1, transactional=False)
    history.append(1, transactional=False)
    segments = history.segments(tmp_path)
    wrong = {99: ProducerEntry(0, (), last_append_ms=FIRST_TIMESTAMP_MS)}
    for offset in (0, 3):
        write_snapshot(Files(), tmp_path, offset, wrong)
    rebuilt = rebuilt_from(tmp_path, segments, end=2)
    assert (rebuilt.replayed_from, list(rebuilt.states.entries)) == (0, [1])


def test_segments_before_the_snapshot_are_not_opened(tmp_path: Path) -> None:
    history = History()
    for _ in range(3):
        history.append(1, transactional=False)
    segments = history.segments(tmp_path, [1, 2])
    before = rebuilt_from(tmp_path, segments, end=2)
    write_snapshot(Files(), tmp_path, 2, before.states.entries)
    for segment in segments[:2]:
        segment.log.unlink()
    assert rebuilt_from(tmp_path, segments).states.entries[1].last_sequence == 2


def test_idle_producers_of_a_snapshot_are_forgotten_but_for_open_transactions(
    tmp_path: Path,
) -> None:
    history = History()
    history.append(1, transactional=False)
    history.append(2, transactional=True)
    segments = history.segments(tmp_path)
    os.utime(segments[0].log, ns=(FIRST_TIMESTAMP_MS * 1_000_000,) * 2)
    now_ms = FIRST_TIMESTAMP_MS + 1 + PRODUCER_ID_EXPIRATION_MS
    assert list(rebuilt_from(tmp_path, segments, now_ms=now_ms - 2).states.entries) == [1, 2]
    for _ in range(2):
        rebuilt = rebuilt_from(tmp_path, segments, now_ms=now_ms)
        assert list(rebuilt.states.entries) == [2]
        everything = rebuilt_from(tmp_path, segments, now_ms=0).states.entries
        write_snapshot(Files(), tmp_path, 2, everything)


def test_a_compacted_log_with_an_emptied_marker_and_gaps_is_replayed(tmp_path: Path) -> None:
    kept = data_batch(base_offset=10, producer_id=1, transactional=True)
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(kept + control_batch(b"\0\0\0\1", b"\0" * 6, base_offset=20, producer_id=1))
    segment = segment_at(path.parent, 0)
    assert rebuilt_from(tmp_path, [segment]).states.last_stable_offset(21) == 21


SNAPSHOTS = ["itumeleng-ksql-txn/_confluent-ksql-default__command_topic-0"]


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_a_brokers_transaction_is_replayed_to_the_brokers_snapshot(
    shared_data: Path, name: str, tmp_path: Path
) -> None:
    directory = shared_data / "kafka-segments/licensed" / name
    (snapshot,) = directory.glob("*.snapshot")
    shutil.copy(directory / f"{0:020d}.log", tmp_path)
    path = tmp_path / f"{0:020d}.log"
    segment = segment_at(path.parent, 0)
    rebuilt = rebuilt_from(tmp_path, [segment], now_ms=0)
    assert rebuilt.replayed_from == 0
    assert pack(rebuilt.states.entries) == snapshot.read_bytes()
    assert rebuilt.states.last_stable_offset(2) == 2
    assert rebuilt.states.last_stable_offset(1) == 0
    assert snapshot == snapshot_path(directory, 2)


def test_logs_of_brokers_in_every_format_are_walked(shared_data: Path, tmp_path: Path) -> None:
    for path in sorted((shared_data / "kafka-segments/licensed").rglob("*-*/*.log")):
        if path.stem.isdigit() and "kafka-rust" not in str(path):
            segment = segment_at(path.parent, int(path.stem))
            rebuilt = rebuilt_from(tmp_path, [segment], now_ms=0)
            assert rebuilt.states.last_stable_offset(END) == END
            assert rebuilt.aborted == []


@pytest.mark.parametrize("cut", [False, True], ids=["flipped", "cut"])
def test_damage_raises_unless_it_is_in_bytes_that_are_not_read(tmp_path: Path, cut: bool) -> None:
    """Only the headers of data batches are read, but all of a marker, or of what looks like one."""
    history = History()
    history.append(1, transactional=True, n=2)
    history.append(2, transactional=True)
    history.end(1, abort=True)
    history.end(2, abort=False)
    (segment,) = history.segments(tmp_path)
    whole = segment.log.read_bytes()
    _, second, third, fourth = itertools.accumulate(len(one.data) for one in history.written)
    markers = {*range(second + 16, third), *range(third + 16, fourth)}
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        segment.log.write_bytes(damaged[:position] if cut else damaged)
        found = aborted_or_error(segment)
        if isinstance(found, CorruptRecordError):
            assert (found.path, found.position >= 0) == (str(segment.log), True)
        else:
            assert not cut
            assert position not in markers, "a marker's CRC covers it"
            assert len(found) <= 1


def aborted_or_error(segment: Segment) -> list[AbortedTransaction] | CorruptRecordError:
    try:
        AbortedSearch(Files()).between([segment], 0, BatchPosition(0, 0), 5, 5)
        return rebuilt_from(segment.log.parent, [segment]).aborted
    except CorruptRecordError as error:
        return error


def test_a_decreasing_offset_is_an_error(tmp_path: Path) -> None:
    """A base offset lies outside the CRC, but its neighbours show the damage."""
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(
        data_batch(base_offset=5, n=3, producer_id=1) + data_batch(base_offset=7, producer_id=1)
    )
    segment = segment_at(path.parent, 0)
    with pytest.raises(CorruptRecordError, match="base offset: expected 8 or more, found 7"):
        rebuilt_from(tmp_path, [segment])
