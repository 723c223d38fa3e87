"""Ranges, read through a fetcher over a list of batches."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kbatch.consumer import reading
from spark_kbatch.consumer.planning import DataLoss
from spark_kbatch.errors import CorruptRecordError, DataLossError, OffsetOutOfRangeError
from spark_kbatch.model import LogOffsets, OffsetRange, ReadRange, TopicPartition
from spark_kbatch.record.codec import RECORD_SCHEMA
from spark_kbatch.record.header import LogRead, walk
from tests.support import builders, reference

A0 = TopicPartition("a", 0)


class ListFetcher:
    """A log that is a list of batches; a fetch returns as many as fit in `fetch_bytes`."""

    def __init__(self, batches: Sequence[bytes], *, fetch_bytes: int = 1) -> None:
        self._batches, self._fetch_bytes = batches, fetch_bytes
        self._last_offsets = [header.last_offset for b in batches for _, header in walk(b)]
        self.end = self._last_offsets[-1] + 1 if batches else 0
        self.fetched: list[int] = []

    def fetch(
        self, topic_partition: TopicPartition, asked: ReadRange
    ) -> tuple[LogRead, LogOffsets]:
        assert topic_partition == A0
        assert asked.max_bytes >= 1
        offset, buffer = asked.offset, asked.buffer
        self.fetched.append(offset)
        first = sum(last < offset for last in self._last_offsets)
        data = b"".join(self._batches[first : first + 1])
        for batch in self._batches[first + 1 :]:
            if len(data) + len(batch) > self._fetch_bytes:
                break
            data += batch
        # Reuse one buffer as a log does, which overwrites what was read before.
        view = memoryview(buffer)[: len(data)] if buffer and len(buffer) >= len(data) else None
        if view is not None:
            view[:] = data
        view = memoryview(data) if view is None else view
        read = LogRead("a-0/0.log", 1_000, view, list(walk(view)))
        return read, LogOffsets(0, self.end, self.end, self.end)


def a_list_of_batches(*counts: int, value_bytes: int = 20) -> list[bytes]:
    """Return batches with these counts of records, from offset 0 on."""
    starts = [sum(counts[:i]) for i in range(len(counts))]
    return [
        builders.batch(n=n, seed=start, base_offset=start, value_bytes=value_bytes)
        for n, start in zip(counts, starts, strict=True)
    ]


def read(
    fetcher: ListFetcher,
    start: int,
    end: int,
    columns: Sequence[str] = tuple(RECORD_SCHEMA.names),
) -> list[pa.RecordBatch]:
    return list(reading.read_range(fetcher, OffsetRange(A0, start, end), columns))


BATCHES = a_list_of_batches(3, 1, 5, 4)
RECORDS = builders.records_of(BATCHES)


@given(
    bounds=st.tuples(st.integers(0, 13), st.integers(0, 13)).map(sorted),
    fetch_bytes=st.sampled_from([1, 300, 600, 10_000]),
)
@settings(deadline=None)
def test_a_range_is_cut_at_its_bounds_however_batches_are_fetched(
    bounds: list[int], fetch_bytes: int
) -> None:
    start, end = bounds
    table = pa.Table.from_batches(
        read(ListFetcher(BATCHES, fetch_bytes=fetch_bytes), start, end), RECORD_SCHEMA
    )

    assert table["offset"].to_pylist() == list(range(start, end))
    assert table["key"].to_pylist() == [record.key for record in RECORDS[start:end]]
    assert table["value"].to_pylist() == [record.value for record in RECORDS[start:end]]
    assert table["timestamp"].to_pylist() == [record.timestamp for record in RECORDS[start:end]]


def test_an_empty_range_fetches_nothing() -> None:
    fetcher = ListFetcher(BATCHES)

    assert read(fetcher, 4, 4) == []
    assert fetcher.fetched == []


def test_the_next_fetch_starts_where_the_last_batch_ended() -> None:
    fetcher = ListFetcher(BATCHES)
    read(fetcher, 2, 12)

    assert fetcher.fetched == [2, 3, 4, 9]


def test_a_batch_larger_than_a_fetch_is_read_whole() -> None:
    batches = a_list_of_batches(2, 3, 2, value_bytes=reading.FETCH_BYTES // 2)
    assert len(batches[1]) > reading.FETCH_BYTES
    table = pa.Table.from_batches(read(ListFetcher(batches), 0, 7))

    assert table["value"].to_pylist() == [r.value for r in builders.records_of(batches)]


def test_rows_stay_unchanged_when_the_buffer_is_reused() -> None:
    """Rows own their memory: the second fetch overwrites the first one's bytes."""
    rows = read(ListFetcher(BATCHES), 0, 13)

    assert len(rows) == len(BATCHES)
    values = [value for piece in rows for value in piece.column("value").to_pylist()]
    assert values == [record.value for record in RECORDS]


@pytest.mark.parametrize(
    "columns",
    [["value"], ["offset"], ["timestamp", "key"], ["headers", "offset"], []],
    ids=["value", "offset", "two in reverse order", "headers", "none"],
)
def test_only_the_requested_columns_are_decoded(columns: list[str]) -> None:
    pieces = read(ListFetcher(BATCHES), 1, 12, columns)
    whole = pa.Table.from_batches(read(ListFetcher(BATCHES), 1, 12))

    assert all(piece.schema.names == columns for piece in pieces)
    assert sum(piece.num_rows for piece in pieces) == 11
    if columns:
        assert pa.Table.from_batches(pieces) == whole.select(columns)


def test_a_range_past_the_high_watermark_is_out_of_range() -> None:
    fetcher = ListFetcher(BATCHES)
    with pytest.raises(OffsetOutOfRangeError) as error:
        read(fetcher, 9, 15)

    assert (error.value.offset, error.value.log_end_offset) == (15, 13)


def test_the_error_for_damage_has_the_file_and_the_position_in_it() -> None:
    damaged = bytearray(BATCHES[2])
    damaged[-1] ^= 1
    batches = [*BATCHES[:2], bytes(damaged), BATCHES[3]]
    fetcher = ListFetcher(batches, fetch_bytes=10_000)
    with pytest.raises(CorruptRecordError) as error:
        read(fetcher, 0, 13)

    assert error.value.path == "a-0/0.log"
    assert error.value.position == 1_000 + len(BATCHES[0]) + len(BATCHES[1])
    assert reference.read_header(BATCHES[2]).crc == int(error.value.expected, 16)


class ShrinkingFetcher(ListFetcher):
    """A log whose start moves while it is read."""

    def __init__(self, batches: Sequence[bytes], *log_starts: int) -> None:
        super().__init__(batches)
        self._log_starts = list(log_starts)

    def fetch(
        self, topic_partition: TopicPartition, asked: ReadRange
    ) -> tuple[LogRead, LogOffsets]:
        log_start = self._log_starts.pop(0) if len(self._log_starts) > 1 else self._log_starts[0]
        if not log_start <= asked.offset <= self.end:
            raise OffsetOutOfRangeError(str(topic_partition), asked.offset, log_start, self.end)
        return super().fetch(topic_partition, asked)


@pytest.mark.parametrize(
    ("log_starts", "asked_for", "left", "lost"),
    [
        pytest.param([4], (0, 13), range(4, 13), [(0, 4)], id="the first records"),
        pytest.param([0, 0, 9], (0, 13), [0, 1, 2, 3, *range(9, 13)], [(4, 9)], id="while it is read"),
        pytest.param([9], (0, 5), [], [(0, 5)], id="all of it"),
        pytest.param([0], (9, 15), range(9, 13), [(13, 15)], id="past the end"),
        pytest.param([0], (20, 25), [], [(20, 25)], id="all of it past the end"),
        pytest.param([4, 4, 9], (0, 20), [4, 5, 6, 7, 8, *range(9, 13)], [(0, 4), (13, 20)], id="both"),
        pytest.param([0], (2, 13), range(2, 13), [], id="nothing"),
    ],
)  # fmt: skip
def test_if_loss_is_accepted_the_rest_is_read_once_and_the_lost_offsets_are_reported(
    log_starts: list[int],
    asked_for: tuple[int, int],
    left: Sequence[int],
    lost: list[tuple[int, int]],
) -> None:
    reported: list[tuple[int, int]] = []
    pieces = reading.read_range(
        ShrinkingFetcher(BATCHES, *log_starts),
        OffsetRange(A0, *asked_for),
        ["offset"],
        on_loss=lambda gone, _: reported.append((gone.start, gone.end)),
    )

    assert [offset for piece in pieces for offset in piece["offset"].to_pylist()] == list(left)
    assert reported == lost


def test_data_loss_is_an_error_that_names_lost_and_available_offsets() -> None:
    pieces = reading.read_range(
        ShrinkingFetcher(BATCHES, 4),
        OffsetRange(A0, 1, 13),
        ["offset"],
        on_loss=DataLoss(fail=True).offsets_gone,
    )
    with pytest.raises(DataLossError) as error:
        list(pieces)

    assert str(error.value) == (
        "a-0 from offset 1 to 4 cannot be read: they were deleted, by retention or on request; "
        "available: offsets 4 to 13, which option 'failOnDataLoss' set to 'false' reads without this "
        "error"
    )


def test_accepted_data_loss_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    loss = DataLoss(fail=False)
    with caplog.at_level(logging.WARNING):
        list(
            reading.read_range(
                ShrinkingFetcher(BATCHES, 0), OffsetRange(A0, 12, 14), [], on_loss=loss.offsets_gone
            )
        )

    assert "a-0 from offset 13 to 14 cannot be read: the log ends before them" in caplog.text
