"""Offsets for timestamps: the same answer as from every record, whatever the indexes say."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kbatch.errors import CorruptRecordError, KBatchError
from spark_kbatch.files import Files
from spark_kbatch.log import lookup
from spark_kbatch.log.lookup import SegmentViews, TimeLookup
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.segment import SegmentView, segment_at
from spark_kbatch.log.state import LogState
from spark_kbatch.model import MAX_TIMESTAMP, IsolationLevel, OffsetAndTimestamp, TopicPartition
from spark_kbatch.opening.stores import open_for_reading
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.record.header import unpack
from spark_kbatch.record.scalar import times
from tests.log.test_partition_log import a_batch, read_all
from tests.support import builders, reference
from tests.support.builders import a_log, append
from tests.support.crashes import sample
from tests.support.reference import Record
from tests.support.store import reader_of

NO_TIMES = [-1, -1]


@pytest.fixture(autouse=True)
def indexes_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use indexes also in segments small enough to be read at once."""
    monkeypatch.setattr(lookup, "WALKED_BYTES", 0)


def naive(records: Sequence[Record], time: int) -> OffsetAndTimestamp | None:
    """Answer by looking at every record."""
    if time == MAX_TIMESTAMP:
        time = max((record.timestamp for record in records), default=-1)
        records = [record for record in records if time >= 0]
    found = (record for record in records if record.timestamp >= time)
    return next((OffsetAndTimestamp(r.offset, r.timestamp) for r in found), None)


def a_log_of(
    folder: Path, batches: Sequence[Sequence[int]], *, interval: int = 1, segment_bytes: int = 600
) -> PartitionLog:
    config = TopicConfig(segment_bytes=segment_bytes, index_interval_bytes=interval)
    log = a_log(folder, batches=0, config=config)
    append(log, *map(a_batch, batches))
    return log


def find(log: PartitionLog, state: LogState, time: int) -> OffsetAndTimestamp | None:
    return log.offset_for_timestamp(state, time, end_offset=state.high_watermark)


TIMES = st.one_of(st.just(-1), st.integers(0, 30), st.integers(0, 2**40))


@given(
    batches=st.lists(st.lists(TIMES, min_size=1, max_size=4), min_size=1, max_size=25),
    interval=st.sampled_from([1, 200, 4096]),
    start=st.integers(0, 30),
    asked=st.lists(st.integers(0, 32), max_size=4),
)
def test_a_time_is_found_as_by_looking_at_every_record(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[list[int]],
    interval: int,
    start: int,
    asked: list[int],
) -> None:
    log = a_log_of(tmp_path_factory.mktemp("times"), batches, interval=interval)
    records = read_all(log)
    state = log.state()
    state = state._replace(log_start_offset=min(start, state.log_end_offset))
    held = records[state.log_start_offset :]
    every = {time for batch in batches for time in batch if time >= 0}
    for time in [*asked, *every, *(time + 1 for time in every), MAX_TIMESTAMP]:
        assert find(log, state, time) == naive(held, time), f"time {time}"


def test_growing_times_are_found_in_many_segments(tmp_path: Path) -> None:
    log = a_log_of(tmp_path, [[10 * n, 10 * n + 5] for n in range(200)])
    state, records = log.state(), read_all(log)
    assert len(log.segments.bases(state)) > 30
    for time in [*range(0, 2000, 7), 1994, 1995, 1996, 10**12]:
        assert find(log, state, time) == naive(records, time)


def test_a_later_append_is_found(tmp_path: Path) -> None:
    log = a_log_of(tmp_path, [[5]] * 10)
    assert find(log, log.state(), 6) is None
    append(log, a_batch([7]))
    assert find(log, log.state(), 6) == OffsetAndTimestamp(10, 7)
    for _ in range(12):  # rolls; what was looked up in the active segment is not remembered
        append(log, a_batch([9]))
    assert find(log, log.state(), 8) == OffsetAndTimestamp(11, 9)


def test_a_bound_below_the_answer_is_none(tmp_path: Path) -> None:
    log = a_log_of(tmp_path, [[5], [6], [7]])
    state = log.state()._replace(high_watermark=2)
    assert find(log, state, 6) == OffsetAndTimestamp(1, 6)
    assert find(log, state, 7) is None
    assert find(log, state, MAX_TIMESTAMP) is None


@pytest.mark.parametrize("batches", [[], [NO_TIMES] * 20], ids=["empty", "no-times"])
def test_without_times_there_is_nothing_to_find(tmp_path: Path, batches: list[list[int]]) -> None:
    log = a_log_of(tmp_path, batches)
    assert find(log, log.state(), 0) is None
    assert find(log, log.state(), MAX_TIMESTAMP) is None


# Indexes are hints.


JUMPING = [[7 * n % 50, -1, 7 * n % 50 + n % 3] for n in range(60)]


def all_answers(log: PartitionLog) -> list[OffsetAndTimestamp | None]:
    fresh = PartitionLog(Files(), log.directory, log.topic_partition, log.config)
    asked = [*range(54), MAX_TIMESTAMP]
    return [find(fresh, fresh.state(), time) for time in asked]


@pytest.mark.more_in_soak
@pytest.mark.parametrize("kind", ["offset_index", "time_index"])
def test_an_index_with_any_byte_damaged_changes_no_answer(tmp_path: Path, kind: str) -> None:
    log = a_log_of(tmp_path, JUMPING, segment_bytes=2500)
    right = [naive(read_all(log), time) for time in [*range(54), MAX_TIMESTAMP]]
    assert all_answers(log) == right
    bases = log.segments.bases(log.state())
    for base in (bases[0], bases[-1]):
        path = getattr(segment_at(log.directory, base), kind)
        whole = path.read_bytes()
        for at in sample(range(len(whole)), 3):
            mask = (0x01, 0x0F, 0x80, 0x02)[at % 4]
            path.write_bytes(whole[:at] + bytes([whole[at] ^ mask]) + whole[at + 1 :])
            assert all_answers(log) == right, f"byte {at} of {path.name} ^ {mask}"
        path.write_bytes(whole)


@pytest.mark.more_in_soak
def test_an_entry_that_is_true_of_another_batch_changes_no_answer(tmp_path: Path) -> None:
    log = a_log_of(tmp_path, JUMPING, segment_bytes=2500)
    right = all_answers(log)
    for base in log.segments.bases(log.state())[:2]:
        segment = segment_at(log.directory, base)
        whole = segment.time_index.read_bytes()
        headers = map(reference.read_header, reference.split_batches(segment.log.read_bytes()))
        batches = [(h.max_timestamp, h.base_offset + h.last_offset_delta - base) for h in headers]
        for at in sample(range(0, len(whole) - 12, 12), 3):
            for time, relative in batches:
                entry = struct.pack(">qi", time, relative)
                segment.time_index.write_bytes(whole[:at] + entry + whole[at + 12 :])
                assert all_answers(log) == right, f"{time} at {relative} in entry {at // 12}"
        segment.time_index.write_bytes(whole)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(None, id="missing"),
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: bytes(len(data)), id="zeroed"),
        pytest.param(lambda data: data[:-5], id="short"),
        pytest.param(lambda data: data + bytes(1200), id="preallocated"),
        pytest.param(lambda data: random.Random(2).randbytes(len(data)), id="garbage"),
        pytest.param(lambda data: b"\x7f" * len(data), id="large"),
        pytest.param(lambda data: data[12:] + data[:12], id="out-of-order"),
    ],
)
def test_damaged_indexes_change_no_answer(
    tmp_path: Path, damage: Callable[[bytes], bytes] | None
) -> None:
    log = a_log_of(tmp_path, JUMPING, segment_bytes=2500)
    right = all_answers(log)
    for path in log.directory.glob("*index"):
        data = path.read_bytes()
        path.unlink()
        if damage is not None:
            path.write_bytes(damage(data))
    assert all_answers(log) == right


def test_a_time_index_truncated_between_entries_changes_no_answer_if_times_grow(
    tmp_path: Path,
) -> None:
    log = a_log_of(tmp_path, [[n] for n in range(54)], segment_bytes=2500)
    right = all_answers(log)
    path = segment_at(log.directory, 0).time_index
    data = path.read_bytes()
    for size in range(0, len(data), 12):
        path.write_bytes(data[:size])
        assert all_answers(log) == right


def test_a_damaged_batch_is_an_error_that_names_file_and_position(tmp_path: Path) -> None:
    log = a_log_of(tmp_path, [[1], [2], [3]])
    path = segment_at(log.directory, 0).log
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError, match=str(path)) as error:
        find(log, log.state(), 3)
    assert error.value.position >= 2 * len(data) // 3


def test_times_in_a_foreign_log_are_found_by_its_files(tmp_path: Path) -> None:
    log = a_log_of(tmp_path, JUMPING, segment_bytes=2500)
    bases = log.segments.bases(log.state())
    ends = [*bases[1:], log.state().log_end_offset]

    def view(at: int) -> SegmentView:
        segment = segment_at(log.directory, bases[at])
        return SegmentView(segment, ends[at], segment.log.stat().st_size)

    # Preallocated, as a broker leaves those of the active segment.
    for path in segment_at(log.directory, bases[-1]).paths[1:]:
        path.write_bytes(path.read_bytes() + bytes(4096 * 12))
    lookup, found = TimeLookup(Files()), []
    for time in range(54):
        found.append(lookup.offset_for(SegmentViews(bases, view), time, 0, ends[-1]))
    found.append(lookup.max_timestamp(SegmentViews(bases, view), 0, ends[-1]))
    assert found == all_answers(log)


def test_rolled_segments_are_looked_at_once(tmp_path: Path) -> None:
    class Counting(Files):
        opened_paths: list[str] = []  # noqa: RUF012

        def opened(self, path: Path, *, write: bool = False):  # type: ignore[no-untyped-def]
            self.opened_paths.append(path.name)
            return super().opened(path, write=write)

    log = a_log_of(tmp_path, [[n] for n in range(200)])
    files = Counting()
    counted = PartitionLog(files, log.directory, log.topic_partition, log.config)
    assert find(counted, counted.state(), 190)
    files.opened_paths.clear()
    assert find(counted, counted.state(), 190)
    assert len(files.opened_paths) < 12


# Records.


@pytest.mark.parametrize("offset", [0, 2**40])
@given(times_ms=st.lists(st.integers(-1, 2**45), min_size=1, max_size=300))
def test_times_of_a_batch_are_those_of_its_records(offset: int, times_ms: list[int]) -> None:
    records = [Record(offset + at, time, b"key", b"v" * at) for at, time in enumerate(times_ms)]
    data = b"before" + reference.encode_batch(records, base_offset=offset)
    found = list(times(data, 6, unpack(data, 6)))
    assert found == [(record.offset, record.timestamp) for record in records]


@pytest.mark.parametrize("name", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_times_are_read_from_every_codec(name: str) -> None:
    data = builders.batch(n=50, compression=name, base_offset=9)
    expected = [(r.offset, r.timestamp) for r in builders.to_records(builders.rows(n=50), 9)]
    assert list(times(data, 0, unpack(data))) == expected


def test_log_append_time_is_the_time_of_every_record() -> None:
    data = bytearray(builders.batch(n=3))
    data[22] |= 0x08
    struct.pack_into(">q", data, 35, 777)
    data = bytearray(reference.with_crc(bytes(data)))
    assert list(times(data, 0, unpack(data))) == [(0, 777), (1, 777), (2, 777)]


def test_records_that_do_not_fit_are_an_error_and_nothing_else() -> None:
    data = builders.batch(n=3, value_bytes=10)
    refused = 0
    for at in range(57, len(data)):
        for mask in (0x01, 0x7F, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[at] ^= mask
            batch = reference.with_crc(bytes(damaged))
            try:
                list(times(batch, 0, unpack(batch)))
            except CorruptRecordError:
                refused += 1
    assert refused > 20


# Directories of brokers.


def test_times_are_found_in_a_brokers_directory_as_in_our_own(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, config=TopicConfig(segment_bytes=2500))
    builders.write(cluster, {("events", 0): list(map(a_batch, JUMPING))})
    copy = tmp_path / "kafka-logs"
    shutil.copytree(cluster.path / "broker-0", copy)
    for path in copy.glob("*/kbatch.state"):
        path.unlink()
    partition = TopicPartition("events", 0)
    brokers = open_for_reading(str(copy))
    for asked in [*range(54), "earliest", "latest", "max_timestamp"]:
        wanted = {partition: asked}
        assert brokers.list_offsets(wanted) == cluster.list_offsets(wanted), asked


def test_times_are_found_in_what_real_brokers_wrote(shared_data: Path) -> None:
    directories = sorted(
        {path.parent for path in (shared_data / "kafka-segments/licensed").rglob("*.timeindex")}
    )
    looked_at = 0
    for directory in directories:
        try:
            brokers = open_for_reading(str(directory))
            (topic,) = brokers.topic_names(internal=True)
            (wanted,) = reader_of(brokers).offset_ranges(topic, isolation_level="read_uncommitted")
            columns = ["offset", "timestamp"]
            batches = list(
                reader_of(brokers).read_range(wanted, columns, IsolationLevel.READ_UNCOMMITTED)
            )
        except (KBatchError, ValueError):
            continue  # not a partition's directory, or of a format that is not read here
        rows = [row for batch in batches for row in batch.to_pylist()]
        times_there = sorted({row["timestamp"] for row in rows if row["timestamp"] >= 0})
        for time in [*times_there[:: max(len(times_there) // 20, 1)], 0]:
            (found,) = brokers.list_offsets(
                dict.fromkeys(brokers.partitions(topic), time), isolation_level="read_uncommitted"
            ).values()
            # Markers have timestamps, too, but are not rows.
            rows_from = [row["offset"] for row in rows if row["timestamp"] >= time]
            if found is None or found.offset in {row["offset"] for row in rows}:
                assert rows_from[:1] == ([] if found is None else [found.offset]), directory
            else:
                assert not rows_from or found.offset < rows_from[0], directory
            looked_at += 1
    assert looked_at > 20
