"""A reader of committed data gets exactly the records that a scan of the whole log finds committed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import aiokafka.record.default_records as aiokafka  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kbatch.consumer import planning, reading
from spark_kbatch.errors import ConfigError, CorruptRecordError, OffsetOutOfRangeError
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.state import LogState
from spark_kbatch.model import (
    LATEST,
    AbortedTransaction,
    IsolationLevel,
    LogOffsets,
    OffsetRange,
    ReadRange,
    TopicPartition,
)
from spark_kbatch.options.read import parse_read_options
from spark_kbatch.record.header import LogRead, walk
from tests.support import builders
from tests.support.faults import FaultyFiles
from tests.support.log_histories import History, data_batch, histories, marker_batch
from tests.support.numbered_topics import ALog, TopicsInMemory

PARTITION = TopicPartition("events", 0)
COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


class LogFetcher:
    """A fetcher that reads one log, a few bytes at a time."""

    def __init__(self, log: PartitionLog, state: LogState, *, fetch_bytes: int) -> None:
        self._log, self._state, self._fetch_bytes = log, state, fetch_bytes

    def fetch(
        self, topic_partition: TopicPartition, asked: ReadRange
    ) -> tuple[LogRead, LogOffsets]:
        max_bytes = min(asked.max_bytes, self._fetch_bytes)
        read = self._log.read(self._state, asked._replace(max_bytes=max_bytes))
        return read, self._state.offsets


def a_log_of(
    tmp_path: Path, history: History, *, segment_bytes: int = 1 << 20
) -> tuple[PartitionLog, LogState]:
    """Return a log that holds the history, and the log's state."""
    config = builders.TopicConfig(segment_bytes=segment_bytes)
    # FaultyFiles do not wait for the disk.
    log = builders.a_log(tmp_path, batches=0, config=config, files=FaultyFiles())
    state = builders.append(log, *(batch.data for batch in history.written))
    assert state.log_end_offset == history.end_offset
    return log, state._replace(last_stable_offset=history.last_stable_offset())


def read_values(
    log: PartitionLog,
    state: LogState,
    isolation: IsolationLevel,
    *,
    start: int = 0,
    end: int | None = None,
    fetch_bytes: int = 300,
) -> list[int]:
    """Return the offsets of the records read, which their values name too."""
    end = state.offsets.end_offset(isolation) if end is None else end
    fetcher = LogFetcher(log, state, fetch_bytes=fetch_bytes)
    found = []
    for rows in reading.read_range(
        fetcher, OffsetRange(PARTITION, start, end), ["offset", "value"], isolation
    ):
        offsets = rows.column("offset").to_pylist()
        assert [str(offset).encode() for offset in offsets] == rows.column("value").to_pylist()
        found += offsets
    return found


@given(
    history=histories(size_max=30),
    segment_bytes=st.sampled_from([200, 400, 1 << 20]),
    fetch_bytes=st.sampled_from([1, 300, 1 << 20]),
    start=st.integers(0, 20),
)
def test_readers_get_what_the_model_gives(
    history: History, segment_bytes: int, fetch_bytes: int, start: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log, state = a_log_of(Path(folder), history, segment_bytes=segment_bytes)
        for isolation, expected in (
            (COMMITTED, history.committed()),
            (UNCOMMITTED, history.all_data()),
        ):
            found = read_values(
                log,
                state,
                isolation,
                start=min(start, state.log_end_offset),
                fetch_bytes=fetch_bytes,
            )
            assert found == [offset for offset in expected if offset >= start]


@pytest.fixture
def two_transactions() -> History:
    """Producer 1 commits, 2 aborts, and both have a transaction open at the end."""
    history = History()
    history.append(1, transactional=True)  # 0
    history.append(2, transactional=True)  # 1
    history.append(-1, transactional=False)  # 2
    history.end(2, abort=True)  # 3
    history.append(2, transactional=False)  # 4
    history.end(1, abort=False)  # 5
    history.append(2, transactional=True)  # 6
    history.append(-1, transactional=False)  # 7
    history.append(1, transactional=True)  # 8
    return history


def test_committed_data_ends_before_the_first_open_transaction(
    tmp_path: Path, two_transactions: History
) -> None:
    log, state = a_log_of(tmp_path, two_transactions)
    assert state.last_stable_offset == 6
    assert read_values(log, state, COMMITTED) == [0, 2, 4]
    assert read_values(log, state, UNCOMMITTED) == [0, 1, 2, 4, 6, 7, 8]


def test_an_undecided_offset_is_out_of_range_for_a_reader_of_committed_data(
    tmp_path: Path, two_transactions: History
) -> None:
    log, state = a_log_of(tmp_path, two_transactions)
    with pytest.raises(OffsetOutOfRangeError, match="offsets 0 to 6"):
        read_values(log, state, COMMITTED, end=8)
    edges = state.offsets
    topics = TopicsInMemory({PARTITION: ALog(0, edges.high_watermark, stable=6)})
    ask = {"path": "/data", "subscribe": "events", "endingOffsets": '{"events":{"0":8}}'}
    with pytest.raises(OffsetOutOfRangeError, match="option 'endingOffsets': offset 8"):
        planning.ranges(parse_read_options({**ask, "isolation.level": "read_committed"}), topics)
    options = parse_read_options({**ask, "isolation.level": "read_uncommitted"})
    assert planning.ranges(options, topics) == [OffsetRange(PARTITION, -2, 8)]


def test_latest_is_the_end_for_the_isolation_level() -> None:
    edges = LogOffsets(0, 9, 6, 10)
    assert planning.number(LATEST, edges, COMMITTED) == 6
    assert planning.number(LATEST, edges, UNCOMMITTED) == 9


def a_read(*batches: bytes, aborted: list[AbortedTransaction]) -> LogRead:
    data = b"".join(batches)
    return LogRead("log", 0, memoryview(data), list(walk(data)), aborted)


def kept(read: LogRead) -> list[int]:
    return [header.base_offset for _, header in reading.without_aborted(read)]


def batches_of(history: History) -> Iterator[bytes]:
    return (batch.data for batch in history.written)


def test_first_offsets_of_aborted_transactions_are_enough(two_transactions: History) -> None:
    """A broker sends no more: neither the marker's offset nor offsets outside the answer."""
    aborted = [AbortedTransaction(2, 1), AbortedTransaction(9, 3), AbortedTransaction(2, 6)]
    read = a_read(*batches_of(two_transactions), aborted=aborted)
    assert kept(read) == [0, 2, 3, 4, 5, 7, 8]


def test_without_aborted_transactions_no_batch_is_inspected(two_transactions: History) -> None:
    read = a_read(*batches_of(two_transactions), aborted=[])
    assert reading.without_aborted(read) is read.batches


def test_a_transaction_that_begins_within_a_batch_is_left_out() -> None:
    """Its first records may have been deleted with the start of the log."""
    history = History()
    history.append(1, transactional=True, n=3)
    read = a_read(*batches_of(history), aborted=[AbortedTransaction(1, 2)])
    assert kept(read) == []


def test_records_outside_a_producers_aborted_transaction_are_kept() -> None:
    data = [
        data_batch(base_offset=0, producer_id=1, transactional=True),
        data_batch(base_offset=1, producer_id=1, base_sequence=1),
    ]
    assert kept(a_read(*data, aborted=[AbortedTransaction(1, 0)])) == [1]


def test_transactions_of_another_client_are_left_out(tmp_path: Path) -> None:
    def batch(producer_id: int, value: bytes) -> bytes:
        builder = aiokafka.DefaultRecordBatchBuilder(
            magic=2, compression_type=1, is_transactional=1, producer_id=producer_id,
            producer_epoch=0, base_sequence=0, batch_size=1 << 16,
        )  # fmt: skip
        for delta in range(3):
            assert builder.append(delta, builders.FIRST_TIMESTAMP_MS, b"key", value, [])
        return bytes(builder.build())

    log = builders.a_log(tmp_path, batches=0)
    ends = [
        marker_batch(base_offset=0, producer_id=1, abort=False),
        marker_batch(base_offset=0, producer_id=2, abort=True),
    ]
    state = builders.append(log, batch(1, b"kept"), batch(2, b"dropped"), *ends)
    fetcher = LogFetcher(log, state, fetch_bytes=1 << 20)
    for isolation, expected in (
        (COMMITTED, [b"kept"] * 3),
        (UNCOMMITTED, [b"kept"] * 3 + [b"dropped"] * 3),
    ):
        wanted = OffsetRange(PARTITION, 0, 8)
        pieces = reading.read_range(fetcher, wanted, ["value"], isolation)
        assert [value for rows in pieces for value in rows.column(0).to_pylist()] == expected


def test_a_commit_marker_does_not_end_another_producers_transaction() -> None:
    history = History()
    history.append(1, transactional=True)
    commit = marker_batch(base_offset=1, producer_id=2, abort=False)
    more = data_batch(base_offset=2, producer_id=1, base_sequence=1, transactional=True)
    read = a_read(history.written[0].data, commit, more, aborted=[AbortedTransaction(1, 0)])
    assert kept(read) == [1]


@pytest.mark.parametrize(
    ("position", "bit"), [(22, 0x10), (50, 0x02)], ids=["transactional", "producer id"]
)
def test_a_batch_is_not_left_out_because_of_a_damaged_header(position: int, bit: int) -> None:
    """A flipped bit makes the batch look like one that producer 3 aborted."""
    history = History()
    history.append(3 if position == 22 else 1, transactional=position == 50)
    damaged = bytearray(history.written[0].data)
    damaged[position] ^= bit
    read = a_read(bytes(damaged), aborted=[AbortedTransaction(3, 0)])
    with pytest.raises(CorruptRecordError, match="CRC"):
        kept(read)


def test_a_damaged_marker_is_an_error_if_transactions_were_aborted() -> None:
    history = History()
    history.append(1, transactional=True)
    history.end(1, abort=True)
    damaged = bytearray(history.written[1].data)
    damaged[-5] ^= 1
    read = a_read(history.written[0].data, bytes(damaged), aborted=[AbortedTransaction(1, 0)])
    with pytest.raises(CorruptRecordError, match="CRC"):
        kept(read)


def test_an_unknown_isolation_level_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="accepted: read_uncommitted, read_committed"):
        parse_read_options({"path": "/data", "subscribe": "a", "isolation.level": "snapshot"})
    cluster = builders.a_cluster(tmp_path)
    with pytest.raises(ConfigError, match="'isolation_level' is 'none'"):
        list(cluster.read("events", isolation_level="none"))


def test_kafkas_prefix_is_accepted() -> None:
    given = {"path": "/data", "subscribe": "a", "kafka.isolation.level": "READ_UNCOMMITTED"}
    assert parse_read_options(given).isolation_level is UNCOMMITTED
    del given["kafka.isolation.level"]
    assert parse_read_options(given).isolation_level is COMMITTED
