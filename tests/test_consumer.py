"""Ranges are planned from what was asked, and read through a fetcher that is only a list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kbatch import consumer
from spark_kbatch.config import ReadOptions
from spark_kbatch.errors import (
    ConfigError,
    CorruptRecordError,
    DataLossError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import (
    EARLIEST,
    LATEST,
    IsolationLevel,
    LogOffsets,
    OffsetRange,
    TopicPartition,
)
from spark_kbatch.record.codec import RECORD_SCHEMA
from spark_kbatch.record.header import LogRead, walk
from tests import builders, reference

A0, A1, A2 = (TopicPartition("a", n) for n in range(3))
B0 = TopicPartition("b", 0)
EDGES = {A0: (5, 20), A1: (0, 0), A2: (0, 7), B0: (3, 3)}


def edges(start: int, end: int) -> LogOffsets:
    return LogOffsets(start, end, end, end)


def partitions_of(topic: str) -> list[TopicPartition]:
    found = [tp for tp in EDGES if tp.topic == topic]
    if not found:
        raise UnknownTopicOrPartitionError(f"topic {topic!r} does not exist")
    return found


def edges_of(topic_partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogOffsets]:
    return {tp: edges(*EDGES[tp]) for tp in topic_partitions}


def no_edges(_: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogOffsets]:
    raise AssertionError("edges are looked up only where there are numbers to check")


def options(
    *topics: str,
    assigned: tuple[TopicPartition, ...] | None = None,
    start: int | Mapping[TopicPartition, int] = EARLIEST,
    end: int | Mapping[TopicPartition, int] = LATEST,
) -> ReadOptions:
    return ReadOptions(
        path="/data",
        topics=topics,
        assigned=assigned,
        starting_offsets=start,
        ending_offsets=end,
        include_headers=False,
    )


def plan(wanted: ReadOptions) -> list[OffsetRange]:
    return consumer.plan(wanted, partitions_of, edges_of)


# Planning.


def test_plan_keeps_earliest_and_latest_and_asks_for_no_edges() -> None:
    planned = consumer.plan(options("b", "a"), partitions_of, no_edges)

    assert planned == [OffsetRange(tp, EARLIEST, LATEST) for tp in (A0, A1, A2, B0)]


def test_plan_of_assign_leaves_out_partitions_that_do_not_exist() -> None:
    planned = plan(options(assigned=(A2, TopicPartition("a", 3), B0, TopicPartition("b", 9))))

    assert planned == [OffsetRange(tp, EARLIEST, LATEST) for tp in (A2, B0)]


@pytest.mark.parametrize(
    ("asked", "option"),
    [
        pytest.param(options("a", "nowhere"), "subscribe", id="subscribe"),
        pytest.param(options(assigned=(A0, TopicPartition("nowhere", 0))), "assign", id="assign"),
    ],
)
def test_plan_of_an_unknown_topic_names_the_option(asked: ReadOptions, option: str) -> None:
    with pytest.raises(UnknownTopicOrPartitionError) as error:
        plan(asked)

    assert str(error.value) == f"option {option!r}: topic 'nowhere' does not exist"


def test_plan_takes_offsets_by_partition() -> None:
    start, end = {A0: 5, A1: EARLIEST, A2: 3}, {A0: LATEST, A1: 0, A2: 7}

    assert plan(options("a", start=start, end=end)) == [
        OffsetRange(A0, 5, LATEST),
        OffsetRange(A1, EARLIEST, 0),
        OffsetRange(A2, 3, 7),
    ]


def test_plan_drops_ranges_that_are_empty_whatever_is_written_later() -> None:
    start, end = {A0: 9, A1: 0, A2: 3}, {A0: 9, A1: 0, A2: 4}

    assert plan(options("a", start=start, end=end)) == [OffsetRange(A2, 3, 4)]


@pytest.mark.parametrize(
    ("named", "words"),
    [
        pytest.param({A0: 5}, "a-0", id="one too few"),
        pytest.param({A0: 5, A1: 0, A2: 0, B0: 3}, "a-0, a-1, a-2, b-0", id="one too many"),
        pytest.param({}, "none", id="none"),
    ],
)
@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_offsets_must_name_exactly_the_partitions_that_are_read(
    option: str, named: dict[TopicPartition, int], words: str
) -> None:
    asked = options("a", start=named) if option == "startingOffsets" else options("a", end=named)
    with pytest.raises(ConfigError) as error:
        plan(asked)

    assert str(error.value) == (
        f"option {option!r} must name exactly the partitions that are read; it names: {words}; "
        "read are: a-0, a-1, a-2; use -2 for earliest and -1 for latest"
    )


@pytest.mark.parametrize("offset", [pytest.param(4, id="below"), pytest.param(21, id="above")])
@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_offset_outside_the_log_is_refused_with_its_option(option: str, offset: int) -> None:
    named = {A0: offset}
    start, end = (named, LATEST) if option == "startingOffsets" else (EARLIEST, named)
    with pytest.raises(OffsetOutOfRangeError) as error:
        plan(options(assigned=(A0,), start=start, end=end))

    found = error.value
    assert (found.option, found.topic_partition, found.offset) == (option, "a-0", offset)
    assert (found.log_start_offset, found.log_end_offset) == (5, 20)
    assert str(found) == (
        f"option {option!r}: offset {offset} of a-0 is out of range: the log holds offsets 5 to 20 "
        "(exclusive)"
    )


@pytest.mark.parametrize("offset", [5, 20], ids=["log start", "high watermark"])
def test_offset_at_the_edge_of_the_log_is_accepted(offset: int) -> None:
    planned = plan(options(assigned=(A0,), start={A0: offset}))

    assert planned == [OffsetRange(A0, offset, LATEST)]


# Resolving.


@pytest.mark.parametrize(
    ("wanted", "resolved"),
    [
        pytest.param(OffsetRange(A0, EARLIEST, LATEST), (5, 20), id="everything"),
        pytest.param(OffsetRange(A0, 7, LATEST), (7, 20), id="to latest"),
        pytest.param(OffsetRange(A0, EARLIEST, 9), (5, 9), id="from earliest"),
        pytest.param(OffsetRange(A0, 7, 9), (7, 9), id="numbers"),
        pytest.param(OffsetRange(B0, EARLIEST, LATEST), (3, 3), id="an empty log"),
        pytest.param(OffsetRange(A0, 20, LATEST), (20, 20), id="an empty range"),
    ],
)
def test_resolve_puts_numbers_in_place_of_earliest_and_latest(
    wanted: OffsetRange, resolved: tuple[int, int]
) -> None:
    found = consumer.resolve([wanted], edges_of([wanted.topic_partition]))

    assert found == {wanted.topic_partition: resolved}


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param(OffsetRange(A0, 21, LATEST), id="past the end"),
        pytest.param(OffsetRange(A0, EARLIEST, 4), id="before the start"),
    ],
)
def test_resolve_of_records_that_are_gone_is_data_loss(wanted: OffsetRange) -> None:
    with pytest.raises(DataLossError, match="available: offsets 5 to 20") as error:
        consumer.resolve([wanted], edges_of([A0]))

    assert error.value.asked.startswith("a-0 from offset ")


# Reading.


class ListFetcher:
    """A log that is a list of batches; a fetch takes as many as `fetch_bytes` allow."""

    def __init__(self, batches: Sequence[bytes], *, fetch_bytes: int = 1) -> None:
        self._batches, self._fetch_bytes = batches, fetch_bytes
        self._last_offsets = [header.last_offset for b in batches for _, header in walk(b)]
        self.end = self._last_offsets[-1] + 1 if batches else 0
        self.fetched: list[int] = []

    def fetch(
        self,
        topic_partition: TopicPartition,
        offset: int,
        *,
        max_bytes: int,
        buffer: bytearray | None,
        isolation: IsolationLevel,
    ) -> tuple[LogRead, LogOffsets]:
        assert topic_partition == A0
        assert max_bytes >= 1
        self.fetched.append(offset)
        first = sum(last < offset for last in self._last_offsets)
        data = b"".join(self._batches[first : first + 1])
        for batch in self._batches[first + 1 :]:
            if len(data) + len(batch) > self._fetch_bytes:
                break
            data += batch
        # As a log does, so that what was read before is overwritten.
        view = memoryview(buffer)[: len(data)] if buffer and len(buffer) >= len(data) else None
        if view is not None:
            view[:] = data
        view = memoryview(data) if view is None else view
        read = LogRead("a-0/0.log", 1_000, view, list(walk(view)))
        return read, edges(0, self.end)


def a_list_of_batches(*counts: int, value_bytes: int = 20) -> list[bytes]:
    """Batches of so many records, from offset 0 on."""
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
    return list(consumer.read_range(fetcher, OffsetRange(A0, start, end), columns))


BATCHES = a_list_of_batches(3, 1, 5, 4)
RECORDS = builders.records_of(BATCHES)


@given(
    bounds=st.tuples(st.integers(0, 13), st.integers(0, 13)).map(sorted),
    fetch_bytes=st.sampled_from([1, 300, 600, 10_000]),
)
@settings(deadline=None)
def test_range_is_cut_at_its_bounds_however_batches_are_fetched(
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


def test_empty_range_fetches_nothing() -> None:
    fetcher = ListFetcher(BATCHES)

    assert read(fetcher, 4, 4) == []
    assert fetcher.fetched == []


def test_next_fetch_begins_where_the_last_batch_ended() -> None:
    fetcher = ListFetcher(BATCHES)
    read(fetcher, 2, 12)

    assert fetcher.fetched == [2, 3, 4, 9]


def test_batch_larger_than_a_fetch_is_read_whole() -> None:
    batches = a_list_of_batches(2, 3, 2, value_bytes=consumer.FETCH_BYTES // 2)
    assert len(batches[1]) > consumer.FETCH_BYTES
    table = pa.Table.from_batches(read(ListFetcher(batches), 0, 7))

    assert table["value"].to_pylist() == [r.value for r in builders.records_of(batches)]


def test_pieces_stay_as_they_are_when_the_buffer_is_used_again() -> None:
    """Rows own their memory: the second fetch writes over the first one's bytes."""
    rows = read(ListFetcher(BATCHES), 0, 13)

    assert len(rows) == len(BATCHES)
    values = [value for piece in rows for value in piece.column("value").to_pylist()]
    assert values == [record.value for record in RECORDS]


@pytest.mark.parametrize(
    "columns",
    [["value"], ["offset"], ["timestamp", "key"], ["headers", "offset"], []],
    ids=["value", "offset", "two turned round", "headers", "none"],
)
def test_only_the_columns_that_are_wanted_are_decoded(columns: list[str]) -> None:
    pieces = read(ListFetcher(BATCHES), 1, 12, columns)
    whole = pa.Table.from_batches(read(ListFetcher(BATCHES), 1, 12))

    assert all(piece.schema.names == columns for piece in pieces)
    assert sum(piece.num_rows for piece in pieces) == 11
    if columns:
        assert pa.Table.from_batches(pieces) == whole.select(columns)


def test_range_past_the_high_watermark_is_out_of_range() -> None:
    fetcher = ListFetcher(BATCHES)
    with pytest.raises(OffsetOutOfRangeError) as error:
        read(fetcher, 9, 15)

    assert (error.value.offset, error.value.log_end_offset) == (15, 13)


def test_damage_is_reported_with_file_and_position_in_it() -> None:
    damaged = bytearray(BATCHES[2])
    damaged[-1] ^= 1
    batches = [*BATCHES[:2], bytes(damaged), BATCHES[3]]
    fetcher = ListFetcher(batches, fetch_bytes=10_000)
    with pytest.raises(CorruptRecordError) as error:
        read(fetcher, 0, 13)

    assert error.value.path == "a-0/0.log"
    assert error.value.position == 1_000 + len(BATCHES[0]) + len(BATCHES[1])
    assert reference.read_header(BATCHES[2]).crc == int(error.value.expected, 16)
