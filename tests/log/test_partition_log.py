"""One partition: what was appended is read, and nothing else ever is."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kbatch import Cluster
from spark_kbatch.errors import CorruptRecordError, KafkaStorageError, OffsetOutOfRangeError
from spark_kbatch.log.append import LogAppender
from spark_kbatch.log.partition_log import PartitionLog, holds_records
from spark_kbatch.log.segment import SegmentIndexer, segment_at
from spark_kbatch.log.state import LogState, empty_state
from spark_kbatch.model import OffsetRange, ReadRange, TopicPartition
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.record.codec import RECORD_SCHEMA
from spark_kbatch.record.header import unpack
from tests.support import builders, reference
from tests.support.builders import a_log, append
from tests.support.crashes import sample
from tests.support.faults import FaultyFiles
from tests.support.reference import Record
from tests.support.soundness import ensure_sound
from tests.support.store import reader_of, store_of

PARTITION = TopicPartition("events", 0)
EVERY_BATCH = TopicConfig(index_interval_bytes=1)  # an index entry for each but the first
FIRST_SEGMENT = f"{0:020d}"


def a_batch(times: Sequence[int], *, value: bytes = b"value") -> bytes:
    """Return a batch with a record at each of these times."""
    records = [Record(offset, time, b"key", value) for offset, time in enumerate(times)]
    return reference.encode_batch(records)


def read_all(log: PartitionLog, *, max_bytes: int = 1 << 20) -> list[Record]:
    """Read fetch by fetch, as a consumer does."""
    state, found = log.state(), []
    offset = state.log_start_offset
    while offset < state.high_watermark:
        read = log.read(state, ReadRange(offset, max_bytes=max_bytes))
        found += reference.decode_batches(bytes(read.data))
        offset = found[-1].offset + 1
    return found


# Creating.


def test_a_log_that_begins_elsewhere_holds_no_records_until_it_has_some(tmp_path: Path) -> None:
    made = a_log(tmp_path)
    log = PartitionLog(
        made.files, tmp_path / "events-7", TopicPartition("events", 7), TopicConfig()
    )
    log.create_unflushed("an-id", 41)

    assert not holds_records(log.files, log.directory)
    assert (log.state().log_start_offset, log.state().log_end_offset) == (41, 41)
    ensure_sound(log)

    append(log, a_batch([1, 2]))
    assert holds_records(log.files, log.directory)
    assert [record.offset for record in read_all(log)] == [41, 42]
    ensure_sound(log)


# Appending.


class Appends:
    """A way to get a list of batches into a log."""

    def __init__(self, log: PartitionLog, folder: Path) -> None:
        self.log, self.folder, self.made = log, folder, 0

    def run(self, batches: Sequence[bytes], how: str) -> None:
        appender = LogAppender(self.log, self.log.state(), now_ms=0)
        data = b"".join(batches)
        if how == "append":
            appender.append(bytearray(data))
        elif how == "one by one":
            for batch in batches:
                appender.append(bytearray(batch))
        else:
            self.made += 1
            source = self.folder / f"staged-{self.made}"
            if how == "adopt":
                source.write_bytes(data)
                appender.adopt(source, len(data))
                assert source.exists() == (len(data) > self.log.config.segment_bytes)
            else:
                source.write_bytes(b"before" + data + b"after")
                appender.append_extent(source, len(b"before"), len(data))
        self.log.write_state(appender.finish(flush=False), flush=False)


@given(
    batches=st.lists(
        st.lists(st.integers(-1, 50), min_size=1, max_size=3)
        | st.just([7]).map(lambda times: times * 40),
        min_size=1,
        max_size=12,
    ),
    cuts=st.lists(st.integers(0, 12), max_size=5),
    ways=st.lists(st.sampled_from(["append", "one by one", "segment", "adopt"]), min_size=6),
    segment_bytes=st.sampled_from([1, 200, 500, 2000, 1 << 20]),
    interval=st.sampled_from([1, 100, 300, 4096]),
    max_bytes=st.sampled_from([1, 300, 1 << 20]),
)
def test_any_split_into_appends_reads_back_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[list[int]],
    cuts: list[int],
    ways: list[str],
    segment_bytes: int,
    interval: int,
    max_bytes: int,
) -> None:
    config = TopicConfig(segment_bytes=segment_bytes, index_interval_bytes=interval)
    folder = tmp_path_factory.mktemp("log")
    log = a_log(folder, batches=0, config=config, files=FaultyFiles())
    encoded = [a_batch(times) for times in batches]
    appends = Appends(log, folder)
    bounds = sorted({0, len(encoded), *(cut for cut in cuts if cut < len(encoded))})
    for first, last, how in zip(bounds, bounds[1:], ways, strict=False):
        appends.run(encoded[first:last], how)

    assert read_all(log, max_bytes=max_bytes) == builders.records_of(encoded)
    ensure_sound(log)
    state = log.state()
    assert log.size_in_bytes(state) == sum(map(len, encoded))
    for offset in range(state.log_end_offset):
        read = log.read(state, ReadRange(offset, max_bytes=1))
        records = reference.decode_batches(bytes(read.data))
        assert offset in [record.offset for record in records]
        assert len(read.batches) == 1


def test_a_segment_is_rolled_before_the_batch_that_would_pass_segment_bytes(tmp_path: Path) -> None:
    batch = builders.batch(n=2)
    config = TopicConfig(segment_bytes=2 * len(batch), index_interval_bytes=1)
    log = a_log(tmp_path, batches=0, config=config)
    append(log, *[batch] * 5)

    assert log.segments.bases(log.state()) == [0, 4, 8]
    sizes = [segment_at(log.directory, base).log.stat().st_size for base in (0, 4, 8)]
    assert sizes == [2 * len(batch), 2 * len(batch), len(batch)]
    ensure_sound(log)


def test_a_batch_larger_than_segment_bytes_has_a_segment_of_its_own(tmp_path: Path) -> None:
    log = a_log(tmp_path, batches=0, config=TopicConfig(segment_bytes=100))
    append(log, builders.batch(n=2), builders.batch(n=3))
    assert log.segments.bases(log.state()) == [0, 2]
    ensure_sound(log)


def test_a_staged_file_becomes_the_active_segment_by_renaming(tmp_path: Path) -> None:
    log = a_log(tmp_path, batches=1, n=3)
    source = tmp_path / "staged"
    source.write_bytes(builders.batch(n=2) + builders.batch(n=4))
    inode = source.stat().st_ino

    appender = LogAppender(log, log.state(), now_ms=0)
    appender.adopt(source, source.stat().st_size)
    log.write_state(appender.finish(flush=True), flush=True)
    assert segment_at(log.directory, 3).log.stat().st_ino == inode
    assert [record.offset for record in read_all(log)] == list(range(9))
    append(log, builders.batch(n=1))  # goes after what was adopted
    assert log.segments.bases(log.state()) == [0, 3]
    ensure_sound(log)


def test_an_empty_log_is_replaced_by_the_file_that_it_adopts(tmp_path: Path) -> None:
    log = a_log(tmp_path, batches=0)
    source = tmp_path / "staged"
    source.write_bytes(builders.batch(n=2))
    appender = LogAppender(log, log.state(), now_ms=0)
    appender.adopt(source, source.stat().st_size)
    log.write_state(appender.finish(flush=False), flush=False)
    assert log.segments.bases(log.state()) == [0]
    ensure_sound(log)


@pytest.mark.parametrize("how", ["append", "segment", "adopt"])
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[:-1], id="cut off"),
        pytest.param(lambda data: data[:40], id="cut in the header"),
        pytest.param(lambda data: data + b"\0" * 70, id="zeros after it"),
        pytest.param(lambda data: data[:16] + b"\1" + data[17:], id="another magic"),
        pytest.param(lambda data: data[:8] + b"\xff" * 4 + data[12:], id="a negative length"),
        pytest.param(lambda data: data[:8] + b"\x7f\xff\xff\xff" + data[12:], id="a huge length"),
    ],
)
def test_what_is_not_whole_batches_is_refused_and_the_log_stays_as_it_was(
    tmp_path: Path, how: str, damage: Callable[[bytes], bytes]
) -> None:
    log = a_log(tmp_path, batches=2)
    before = read_all(log)
    with pytest.raises(CorruptRecordError):
        Appends(log, tmp_path).run([builders.batch(), damage(builders.batch())], how)

    assert read_all(log) == before
    log.discard_unrecorded(log.state())
    append(log, builders.batch())
    ensure_sound(log)


def test_a_staged_file_that_grew_since_is_refused(tmp_path: Path) -> None:
    log = a_log(tmp_path, batches=0)
    source = tmp_path / "staged"
    source.write_bytes(2 * builders.batch())
    with pytest.raises(CorruptRecordError, match="size of a staged file"):
        LogAppender(log, log.state(), now_ms=0).adopt(source, len(builders.batch()))


# Indexes.


def test_index_entries_are_due_once_more_than_the_interval_was_appended(tmp_path: Path) -> None:
    batch = a_batch([5, 6])
    log = a_log(tmp_path, batches=0, config=TopicConfig(index_interval_bytes=2 * len(batch)))
    for _ in range(8):
        append(log, batch)  # each continues the count of the one before

    index = segment_at(log.directory, 0).offset_index.read_bytes()
    # Two batches do not exceed the interval, three do; then the count restarts.
    assert list(struct.iter_unpack(">ii", index)) == [(7, 3 * len(batch)), (13, 6 * len(batch))]
    ensure_sound(log)


def test_time_entries_are_written_only_for_times_that_grow(tmp_path: Path) -> None:
    times = [[10], [30], [20, 25], [30], [40, 35], [40]]
    log = a_log(tmp_path, batches=0, config=EVERY_BATCH)
    append(log, *map(a_batch, times))

    index = segment_at(log.directory, 0).time_index.read_bytes()
    assert list(struct.iter_unpack(">qi", index)) == [(30, 1), (40, 6)]
    assert (log.state().max_timestamp, log.state().max_timestamp_offset) == (40, 6)


def test_a_rolled_segment_ends_with_its_largest_time(tmp_path: Path) -> None:
    first, second = a_batch([10, 90, 20]), a_batch([15])
    log = a_log(tmp_path, batches=0, config=TopicConfig(segment_bytes=len(first)))
    append(log, first, second)

    rolled = segment_at(log.directory, 0).time_index.read_bytes()
    # The offset is the last one of the batch that has the timestamp.
    assert list(struct.iter_unpack(">qi", rolled)) == [(90, 2)]
    assert segment_at(log.directory, 3).time_index.read_bytes() == b""


def test_records_without_a_time_have_no_time_entries(tmp_path: Path) -> None:
    config = TopicConfig(segment_bytes=200, index_interval_bytes=1)
    log = a_log(tmp_path, batches=0, config=config)
    append(log, *[a_batch([-1, -1])] * 5)
    assert len(log.segments.bases(log.state())) > 1
    assert {path.stat().st_size for path in log.directory.glob("*.timeindex")} == {0}
    ensure_sound(log)


def test_a_missing_index_means_reading_from_the_start(tmp_path: Path) -> None:
    log = a_log(tmp_path, batches=4, config=EVERY_BATCH)
    for path in segment_at(log.directory, 0).paths[1:]:
        path.unlink()
    assert log.read(log.state(), ReadRange(7, max_bytes=1)).batches[0][1].base_offset == 6


def test_an_indexer_continues_as_if_it_had_never_stopped() -> None:
    headers, position = [], 0
    for number in range(30):
        header = unpack(a_batch([number % 7] * (number % 3 + 1)))
        headers.append((header, position))
        position += header.size_in_bytes
    whole = SegmentIndexer(0, interval_bytes=150)
    index = time_index = b""
    parts = SegmentIndexer(0, interval_bytes=150)
    last_time = -1
    for header, position in headers:
        whole.add(header, position)
        parts.add(header, position)
        index, time_index = index + parts.index, time_index + parts.time_index
        if parts.time_index:
            last_time = struct.unpack(">qi", parts.time_index[-12:])[0]
        parts = SegmentIndexer(
            0,
            interval_bytes=150,
            max_timestamp=parts.max_timestamp,
            max_timestamp_offset=parts.max_timestamp_offset,
            bytes_since_entry=parts.bytes_since_entry,
            last_indexed_timestamp=last_time,
        )
    assert (index, time_index) == (whole.index, whole.time_index)
    assert index


# Reading.


def test_the_first_batch_is_read_even_when_it_passes_max_bytes(tmp_path: Path) -> None:
    log = a_log(tmp_path, batches=3, n=3)
    size = len(builders.batch(n=3))
    state = log.state()
    for max_bytes, count in ((1, 1), (size, 1), (2 * size - 1, 1), (2 * size, 2), (9 * size, 3)):
        assert len(log.read(state, ReadRange(0, max_bytes=max_bytes)).batches) == count


def test_a_first_batch_that_need_not_be_read_is_read_if_it_fits(tmp_path: Path) -> None:
    log = a_log(tmp_path, batches=3, n=3)
    size = len(builders.batch(n=3))
    for max_bytes, count in ((size - 1, 0), (size, 1), (size + 1, 1)):
        asked = ReadRange(0, max_bytes=max_bytes, min_one_batch=False)
        assert len(log.read(log.state(), asked).batches) == count


def test_another_format_in_the_middle_is_an_error_that_tells_where(tmp_path: Path) -> None:
    log = a_log(tmp_path, batches=3)
    size, file = len(builders.batch()), segment_at(log.directory, 0).log
    data = bytearray(file.read_bytes())
    data[size + 16] = 1
    file.write_bytes(data)
    with pytest.raises(CorruptRecordError) as raised:
        read_all(log)
    assert (raised.value.path, raised.value.position) == (str(file), size + 16)


def test_a_log_holds_what_was_decided_unless_its_file_ends_before(tmp_path: Path) -> None:
    log = a_log(tmp_path, batches=2)
    decided, size = log.state(), len(builders.batch())
    assert log.holds(decided)
    file = segment_at(log.directory, 0).log
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:size])  # what a commit placed after it
    assert log.holds(decided)
    file.write_bytes(whole[:size])
    assert not log.holds(decided)


def test_a_read_fills_the_buffer_that_it_is_given_where_that_is_large_enough(
    tmp_path: Path,
) -> None:
    log = a_log(tmp_path, batches=2)
    size = len(builders.batch())
    for length, used in ((2 * size, True), (2 * size - 1, False)):
        buffer = bytearray(length)
        read = log.read(log.state(), ReadRange(0, max_bytes=2 * size, buffer=buffer))
        assert (read.data.obj is buffer) == used
        assert len(read.data) == 2 * size


def test_a_read_ends_with_its_segment(tmp_path: Path) -> None:
    log = a_log(tmp_path, batches=3, config=TopicConfig(segment_bytes=1))
    read = log.read(log.state(), ReadRange(4, max_bytes=1 << 20))
    assert [header.base_offset for _, header in read.batches] == [3]
    assert read.path.endswith("00000000000000000003.log")


def test_offsets_outside_the_log_are_out_of_range_and_its_end_is_empty(tmp_path: Path) -> None:
    log = a_log(tmp_path, batches=4)
    state = log.state()._replace(log_start_offset=5)
    assert log.read(state, ReadRange(12, max_bytes=1)).batches == []
    for offset in (4, 13, -1):
        with pytest.raises(OffsetOutOfRangeError) as error:
            log.read(state, ReadRange(offset, max_bytes=1))
        found = error.value
        assert (found.offset, found.log_start_offset, found.log_end_offset) == (offset, 5, 12)
    assert log.read(state, ReadRange(5, max_bytes=1)).batches[0][1].last_offset == 5


def test_an_old_state_reads_what_it_says_whatever_was_written_since(tmp_path: Path) -> None:
    config = TopicConfig(segment_bytes=600, index_interval_bytes=1)
    log = a_log(tmp_path, batches=0, config=config)
    states: list[tuple[LogState, int]] = [(log.state(), 0)]
    for seed in range(6):
        append(log, builders.batch(n=2, seed=seed))
        states.append((log.state(), 2 * (seed + 1)))
    assert len(log.segments.bases(log.state())) > 2
    for state, end in states:
        offset, found = 0, 0
        while offset < state.high_watermark:
            read = log.read(state, ReadRange(offset, max_bytes=1 << 20))
            offset = read.batches[-1][1].next_offset
            found += sum(header.records_count for _, header in read.batches)
        assert found == end


# What lies past the recorded ends.


def garbage(directory: Path) -> None:
    """Leave what a dead writer may leave: bytes after every file, and segments."""
    for path in directory.iterdir():
        if path.stem.isdigit():
            with path.open("ab") as file:
                file.write(
                    builders.batch(n=1, base_offset=9) if path.suffix == ".log" else b"\1" * 24
                )
    for base, suffixes in (
        (9, (".log", ".index", ".timeindex")),
        (30, (".index",)),
        (31, (".log",)),
    ):
        for suffix in suffixes:
            (directory / f"{base:020d}{suffix}").write_bytes(builders.batch(n=2, base_offset=base))


def test_what_lies_past_the_recorded_ends_is_never_read(tmp_path: Path) -> None:
    log = a_log(tmp_path, batches=3, config=EVERY_BATCH)
    before, size = read_all(log), log.size_in_bytes(log.state())
    garbage(log.directory)

    assert read_all(log) == read_all(log, max_bytes=1) == before
    assert log.segments.bases(log.state()) == [0]
    assert log.size_in_bytes(log.state()) == size
    for offset in range(9):
        assert (
            log.read(log.state(), ReadRange(offset, max_bytes=1)).batches[0][1].last_offset
            >= offset
        )
    with pytest.raises(OffsetOutOfRangeError):
        log.read(log.state(), ReadRange(10, max_bytes=1))


@pytest.mark.parametrize("batches", [0, 3], ids=["an empty log", "a log"])
def test_the_next_writer_discards_what_lies_past_the_recorded_ends(
    tmp_path: Path, batches: int
) -> None:
    log = a_log(tmp_path, batches=batches, config=EVERY_BATCH)
    before = {path.name: path.read_bytes() for path in log.directory.iterdir()}
    garbage(log.directory)
    for ending in (".snapshot", ".txnindex"):
        (log.directory / f"00000000000000000040{ending}").write_bytes(b"a dead writer's")

    log.discard_unrecorded(log.state())
    assert {path.name: path.read_bytes() for path in log.directory.iterdir()} == before
    append(log, builders.batch())
    ensure_sound(log)


def test_rolling_where_a_dead_writer_rolled_keeps_nothing_of_its_segment(tmp_path: Path) -> None:
    config = TopicConfig(segment_bytes=len(builders.batch()), index_interval_bytes=1)
    log = a_log(tmp_path, batches=1, config=config)
    dead = LogAppender(log, log.state(), now_ms=0)
    for _ in range(4):
        dead.append(bytearray(builders.batch()))
    dead.finish(flush=False)  # its state is never written

    log.discard_unrecorded(log.state())
    append(log, builders.batch(n=1))
    assert [record.offset for record in read_all(log)] == [0, 1, 2, 3]
    ensure_sound(log)


def test_a_file_shorter_than_recorded_is_a_storage_error(tmp_path: Path) -> None:
    log = a_log(tmp_path, batches=3, config=EVERY_BATCH)
    path = segment_at(log.directory, 0).log
    for size in (len(path.read_bytes()) - 1, 70, 10, 0):
        os.truncate(path, size)
        with pytest.raises(KafkaStorageError, match=rf"{path.name} has {size} bytes, fewer than"):
            read_all(log)


def test_a_missing_segment_is_an_error_that_names_it(tmp_path: Path) -> None:
    for missing in (0, 3, 6):
        log = a_log(tmp_path, batches=3, config=TopicConfig(segment_bytes=1))
        segment_at(log.directory, missing).log.unlink()
        with pytest.raises((KafkaStorageError, CorruptRecordError), match=str(log.directory)):
            read_all(log)


def test_a_truncated_rolled_segment_is_an_error(tmp_path: Path) -> None:
    batch = builders.batch()
    config = TopicConfig(segment_bytes=2 * len(batch))
    for size in (2 * len(batch) - 1, len(batch), len(batch) - 1, 0):
        log = a_log(tmp_path, batches=4, config=config)
        os.truncate(segment_at(log.directory, 0).log, size)
        with pytest.raises(CorruptRecordError, match=FIRST_SEGMENT):
            read_all(log)


# Damage.


def rows_until_error(
    pieces: Iterator[pa.RecordBatch],
) -> tuple[list[Record], CorruptRecordError | None]:
    found: list[Record] = []
    try:
        for piece in pieces:
            found += builders.as_read(piece)
    except CorruptRecordError as error:
        return found, error
    return found, None


@pytest.fixture(params=["none", "zstd"], ids=["plain", "compressed"])
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Cluster:
    """Return four batches in two segments, with an index entry for every batch that may have one."""
    batches = [
        builders.batch(n=4, seed=seed, value_bytes=40, compression=request.param)
        for seed in range(4)
    ]
    config = TopicConfig(segment_bytes=len(batches[0]) * 3 + 10, index_interval_bytes=1)
    cluster = builders.a_cluster(tmp_path, config=config)
    builders.write(cluster, {("events", 0): batches})
    assert (
        len(list(store_of(cluster).metadata.cluster_file.log_directory(PARTITION).glob("*.log")))
        == 2
    )
    return cluster


def damaged_positions(data: bytes) -> list[int]:
    """Return every position in a batch header, and some in the records of each."""
    rng = random.Random(1)
    found, start = [], 0
    for batch in reference.split_batches(data):
        found += range(start, start + reference.HEADER_SIZE)
        found += rng.sample(range(start + reference.HEADER_SIZE, start + len(batch)), 20)
        start += len(batch)
    return found


@pytest.mark.more_in_soak
def test_a_flipped_byte_is_reported_with_file_and_position_and_never_returned(
    cluster: Cluster,
) -> None:
    whole = builders.contents(cluster)[PARTITION]
    everything = OffsetRange(PARTITION, 0, len(whole))
    columns = RECORD_SCHEMA.names
    for path in store_of(cluster).metadata.cluster_file.log_directory(PARTITION).glob("*.log"):
        data = path.read_bytes()
        sizes = [len(batch) for batch in reference.split_batches(data)]
        starts = [end - size for end, size in zip(accumulate(sizes), sizes, strict=True)]
        for position in sample(damaged_positions(data), 3):
            start = max(s for s in starts if s <= position)
            for mask in sample((0x01, 0x80, 0xFF), 2):
                flipped = bytearray(data)
                flipped[position] ^= mask
                path.write_bytes(flipped)
                for pieces in (
                    cluster.read("events"),
                    reader_of(cluster).read_range(everything, columns),
                ):
                    found, error = rows_until_error(pieces)
                    message = f"byte {position} of {path.name} ^ {mask}"
                    assert error is not None, message
                    assert error.path == str(path), message
                    end = start + sizes[starts.index(start)]
                    assert start <= error.position < end, f"{message}: {error}"
                    assert found == whole[: len(found)], message
        path.write_bytes(data)


@pytest.mark.more_in_soak
def test_a_flipped_byte_is_not_returned_by_a_read_from_the_middle(cluster: Cluster) -> None:
    whole = builders.contents(cluster)[PARTITION]
    for path in store_of(cluster).metadata.cluster_file.log_directory(PARTITION).glob("*.log"):
        data = path.read_bytes()
        for position in sample(damaged_positions(data), 3):
            flipped = bytearray(data)
            flipped[position] ^= 0x21
            path.write_bytes(flipped)
            for offset in (2, 6, 9, 15):
                wanted = OffsetRange(PARTITION, offset, len(whole))
                found, _ = rows_until_error(
                    reader_of(cluster).read_range(wanted, RECORD_SCHEMA.names)
                )
                assert found == whole[offset : offset + len(found)], f"{position} of {path.name}"
        path.write_bytes(data)


def test_batches_that_changed_places_are_reported(cluster: Cluster) -> None:
    path = store_of(cluster).metadata.cluster_file.log_directory(PARTITION) / f"{FIRST_SEGMENT}.log"
    first, second, *rest = reference.split_batches(path.read_bytes())
    path.write_bytes(b"".join([second, first, *rest]))
    with pytest.raises(CorruptRecordError, match="base offset: expected 0, found 4"):
        list(cluster.read("events"))


@pytest.mark.parametrize(
    "text",
    ["1\n1\n0 0\n", "0\n2\n0 0\n", "0\n1\n0\n", "0\n1\nzero 0\n", "0\n2\n1 0\n0 5\n"],
    ids=["version", "count", "a number", "not a number", "order"],
)
def test_a_damaged_leader_epoch_checkpoint_is_logged_and_rebuilt_by_the_next_writer(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = a_log(tmp_path)
    path = log.directory / "leader-epoch-checkpoint"
    path.write_text(text)

    before = read_all(log)

    assert f"{path} is " in caplog.text
    writer = PartitionLog(log.files, log.directory, log.topic_partition, log.config)
    writer.discard_unrecorded(writer.state())
    assert path.read_text() == "0\n1\n0 0\n"
    assert read_all(writer) == before


# Creation.


def test_a_new_log_has_the_files_of_a_broker_and_is_empty(tmp_path: Path) -> None:
    log = a_log(tmp_path, batches=0)
    assert {path.name: path.stat().st_size for path in log.directory.iterdir()} == {
        "00000000000000000000.log": 0,
        "00000000000000000000.index": 0,
        "00000000000000000000.timeindex": 0,
        "leader-epoch-checkpoint": len("0\n1\n0 0\n"),
        "partition.metadata": len("version: 0\ntopic_id: a-topic-id-of-22-chars"),
        "kbatch.state": 4096 + 144,
    }
    assert (log.directory / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"
    text = (log.directory / "partition.metadata").read_text()
    assert text == "version: 0\ntopic_id: a-topic-id-of-22-chars"
    assert log.state() == empty_state()._replace(sequence=1)
    assert read_all(log) == []


def test_creation_removes_what_an_unfinished_one_left(tmp_path: Path) -> None:
    directory = tmp_path / str(PARTITION)
    directory.mkdir()
    (directory / "00000000000000000007.log").write_bytes(b"left")
    log = a_log(tmp_path, batches=1)
    assert log.segments.bases(log.state()) == [0]
    ensure_sound(log)
