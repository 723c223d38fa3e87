"""An open batch: how much fits, its expected size, and its bytes once it is closed."""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka.record.memory_records as aiokafka  # type: ignore[import-untyped]
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kbatch.kernels.records import SLOT
from spark_kbatch.record import columns as arrow
from spark_kbatch.record.builder import (
    SPARE_SLOT,
    CompressionRatioEstimator,
    RecordBatchBuilder,
    capacity_for,
    fill,
    size_upper_bound,
)
from spark_kbatch.record.columns import Columns
from tests.support import builders, reference, strategies
from tests.support.reference import CODECS, HEADER_SIZE, Record, encode_record

with warnings.catch_warnings():
    # It reads its schemas with a deprecated function of importlib.resources.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.record.memory_records as kafka_python  # type: ignore[import-untyped]

# The first example may compile kernels.

codecs = st.sampled_from(list(CODECS.values()))
CODEC_IDS = [pytest.param(number, id=name) for name, number in CODECS.items()]
COMPRESSING = CODEC_IDS[1:]
NOTHING = 0xA5  # what memory holds that no builder has


def a_builder(capacity: int = 10_000, *, start: int = 0, **named: Any) -> RecordBatchBuilder:
    """A builder in the middle of a larger memory."""
    memory = np.full(start + capacity + 100, NOTHING, np.uint8).data
    return RecordBatchBuilder(memory, start, capacity, **named)


def columns_of(rows: pa.RecordBatch) -> Columns:
    def column(name: str) -> pa.Array | None:
        return rows.column(name) if name in rows.schema.names else None

    return arrow.columns(
        rows.num_rows,
        key=column("key"),
        value=column("value"),
        timestamps=arrow.timestamps_ms(column("timestamp"), rows.num_rows, -1),
        headers=column("headers"),
    )


def with_values(values: list[bytes]) -> pa.RecordBatch:
    timestamps = [builders.FIRST_TIMESTAMP_MS] * len(values)
    return pa.RecordBatch.from_pydict(
        {"value": values, "timestamp": timestamps},
        schema=pa.schema([("value", pa.binary()), ("timestamp", pa.int64())]),
    )


def append(builder: RecordBatchBuilder, rows: pa.RecordBatch) -> int:
    """Append rows; return how many had room."""
    return builder.append(columns_of(rows))


def append_record(builder: RecordBatchBuilder, record: Record) -> bool:
    headers = [(key.encode(), value) for key, value in record.headers]
    return builder.append_record(record.timestamp, record.key, record.value, headers)


def closed(builder: RecordBatchBuilder) -> bytes:
    builder.close()
    return bytes(builder.data)


def size_of(value: bytes, index: int = 0) -> int:
    """The size of a record with the same timestamp as the first of its batch."""
    return len(encode_record(Record(index, 0, None, value), base_offset=0, base_timestamp=0))


# Room


@given(
    sizes=st.lists(st.sampled_from([0, 1, 10, 43, 63, 64, 200]), min_size=1, max_size=20),
    limit=st.integers(0, 700),
    capacity=st.integers(HEADER_SIZE, 1_000),
    codec=codecs,
    ratio=st.sampled_from([0.01, 0.25, 0.5, 1.0, 1.5]),
)
def test_a_record_is_appended_if_it_fits_limit_and_capacity(
    sizes: list[int], limit: int, capacity: int, codec: int, ratio: float
) -> None:
    named: dict[str, Any] = {"write_limit": limit, "codec": codec, "compression_ratio": ratio}
    by_record, by_row = a_builder(capacity, **named), a_builder(capacity, **named)
    rows = with_values([b"v" * size for size in sizes])
    taken, records_size = list[Record](), 0
    scale = ratio * 1.05 if codec else 1.0
    # In uncompressed bytes: where the batch reaches its limit once it is compressed.
    full_size = min(HEADER_SIZE + int(max(limit - HEADER_SIZE, 0) / scale), capacity)
    for at, record in enumerate(builders.to_records(rows)):
        size = size_of(record.value or b"", len(taken))
        estimated = by_record.estimated_size_in_bytes - HEADER_SIZE
        assert estimated == pytest.approx(records_size * scale, abs=1.1)
        has_room = HEADER_SIZE + records_size + size <= (full_size if taken else capacity)
        assert by_record.has_room_for(size) == has_room
        assert by_record.is_full == (bool(taken) and HEADER_SIZE + records_size >= full_size)
        assert append_record(by_record, record) == has_room
        assert append(by_row, rows.slice(at, 1)) == has_room
        if has_room:
            taken.append(record._replace(offset=len(taken)))
            records_size += size
        for builder in (by_record, by_row):
            assert builder.records_count == len(taken)
            assert builder.uncompressed_size == HEADER_SIZE + records_size
    if taken:
        assert closed(by_record) == closed(by_row)
        assert reference.decode_batches(bytes(by_row.data)) == taken


@given(
    sizes=st.lists(st.sampled_from([0, 10, 43, 200]), min_size=1, max_size=20),
    limit=st.integers(0, 700),
)
def test_an_uncompressed_batch_keeps_its_write_limit_unless_it_is_one_record(
    sizes: list[int], limit: int
) -> None:
    builder = a_builder(write_limit=limit)
    written = append(builder, with_values([b"v" * size for size in sizes]))
    assert written == builder.records_count >= 1
    builder.close()
    assert written == 1 or len(builder.data) <= limit
    if written < len(sizes):
        assert len(builder.data) + size_of(b"v" * sizes[written], written) > limit


def append_each(builder: RecordBatchBuilder, rows: pa.RecordBatch) -> int:
    return sum(append_record(builder, record) for record in builders.to_records(rows))


@pytest.mark.parametrize("add", [append, append_each])
def test_the_limit_is_the_capacity_by_default_and_may_be_reached(
    add: Callable[[RecordBatchBuilder, pa.RecordBatch], int],
) -> None:
    builder = a_builder(HEADER_SIZE + 3 * size_of(b""))
    assert add(builder, with_values([b""] * 4)) == 3
    assert builder.is_full


@pytest.mark.parametrize("codec", CODEC_IDS)
@pytest.mark.parametrize("limit", [0, 61, 100])
def test_a_first_record_is_accepted_whatever_its_size_and_leaves_no_room(
    limit: int, codec: int
) -> None:
    value = b"v" * 5_000
    for add in (append, append_each):
        builder = a_builder(write_limit=limit, codec=codec)
        assert builder.has_room_for(size_of(value))
        assert add(builder, with_values([value, b""])) == 1
        assert builder.is_full
        assert not builder.has_room_for(size_of(b""))
        assert [record.value for record in reference.decode_batches(closed(builder))] == [value]


@pytest.mark.parametrize("add", [append, append_each])
def test_no_record_passes_the_capacity_not_even_the_first(
    add: Callable[[RecordBatchBuilder, pa.RecordBatch], int],
) -> None:
    value = b"v" * 100
    capacity = HEADER_SIZE + size_of(value)
    assert add(a_builder(capacity - 1), with_values([value])) == 0
    assert add(a_builder(capacity), with_values([value])) == 1
    assert (
        add(a_builder(capacity + size_of(b"") - 1, write_limit=9_999), with_values([value, b""]))
        == 1
    )
    assert (
        add(a_builder(capacity + size_of(b""), write_limit=9_999), with_values([value, b""])) == 2
    )


def test_a_batch_is_full_at_its_limit_and_not_a_byte_before() -> None:
    size = HEADER_SIZE + size_of(b"v" * 43)
    for limit, is_full in ((size - 1, True), (size, True), (size + 1, False)):
        builder = a_builder(write_limit=limit)
        assert not builder.is_full
        append(builder, with_values([b"v" * 43]))
        assert builder.is_full == is_full


# Rows and records


@given(
    sizes=st.lists(st.sampled_from([0, 1, 43, 63, 64, 200, 500]), min_size=1, max_size=40),
    capacities=st.lists(st.integers(100, 600), min_size=1, max_size=6),
    limit=st.integers(61, 600),
    begun=st.integers(0, 3),
)
def test_builders_are_filled_one_after_the_other(
    sizes: list[int], capacities: list[int], limit: int, begun: int
) -> None:
    rows = with_values([b"v" * size for size in sizes])
    starts = [0, *itertools.accumulate(capacities)]

    def a_row_of_builders() -> list[RecordBatchBuilder]:
        memory = memoryview(bytearray(sum(capacities)))
        made = [
            RecordBatchBuilder(
                memory, start, capacity, write_limit=limit, slot=SPARE_SLOT if start else 0
            )
            for start, capacity in zip(starts, capacities, strict=False)
        ]
        append(made[0], rows.slice(0, begun))
        return made

    one_by_one, together = a_row_of_builders(), a_row_of_builders()
    for builder in one_by_one:
        builder.state[SLOT] = 0
    columns = columns_of(rows)
    next_row = first_row = together[0].records_count
    for builder in one_by_one:
        next_row = builder.append(columns, next_row)
        if builder.records_count == 0:
            break
    assert fill(together, columns, first_row) == next_row
    assert [b.state[:SLOT] for b in together] == [b.state[:SLOT] for b in one_by_one]
    assert [closed(builder) for builder in together] == [closed(builder) for builder in one_by_one]


def scattered(seed: int) -> list[int]:
    """Slots of more rows than the kernel samples to see how often they change."""
    return np.random.default_rng(seed).integers(0, 5, 100).tolist()


@given(
    places=st.lists(st.integers(0, 4), min_size=1, max_size=60) | st.integers(0, 99).map(scattered),
    own=st.lists(st.booleans(), min_size=5, max_size=5),
    spares=st.integers(0, 6),
    capacity=st.sampled_from([400, 3_000]),
    is_told=st.booleans(),
)
def test_each_row_goes_to_the_builder_of_its_slot_or_to_a_spare_one(
    places: list[int], own: list[bool], spares: int, capacity: int, is_told: bool
) -> None:
    rows = builders.rows(n=len(places), seed=len(places))
    memory = memoryview(bytearray(12 * capacity))
    slot_of = [slot for slot in range(5) if own[slot]] + [SPARE_SLOT] * spares
    made = [
        RecordBatchBuilder(memory, capacity * at, capacity, slot=slot)
        for at, slot in enumerate(slot_of)
    ]
    if not made:
        return
    batch_of = np.full(len(places) if is_told else 0, -1, np.int32)
    next_row = fill(
        made,
        columns_of(rows),
        slots=arrow.frozen(np.array(places, np.int32)),
        slots_count=5,
        batch_of=batch_of,
    )
    # A record at a time, to the last batch of its slot, while there are batches.
    held: dict[int, list[list[Record]]] = {
        slot: [[]] if is_own else [] for slot, is_own in enumerate(own)
    }
    left = spares
    for row, (place, record) in enumerate(zip(places, builders.to_records(rows), strict=True)):
        batches = held[place]
        model = a_builder(capacity)
        for other in batches[-1] if batches else ():
            append_record(model, other)
        if not batches or not append_record(model, record):
            if left == 0:
                assert next_row == row
                break
            left -= 1
            batches.append([])
        batches[-1].append(record._replace(offset=len(batches[-1])))
    else:
        assert next_row == len(places)
    found: dict[int, list[list[Record]]] = {slot: [] for slot in range(5)}
    for slot, builder in zip([b.state[SLOT] for b in made], made, strict=True):
        if slot >= 0:
            found[slot].append(reference.decode_batches(closed(builder)))
        else:
            assert builder.records_count == 0
    assert found == held
    counts = [builder.records_count for builder in made]
    assert sum(counts) == next_row
    if is_told:
        assert np.bincount(batch_of[:next_row], minlength=len(made)).tolist() == counts


@given(rows=strategies.arrow_rows(), codec=codecs, data=st.data())
def test_records_one_by_one_are_the_same_bytes_as_rows(
    rows: pa.RecordBatch, codec: int, data: st.DataObject
) -> None:
    records = builders.to_records(rows)
    by_row, by_record, mixed = (a_builder(codec=codec) for _ in range(3))
    assert append(by_row, rows) == rows.num_rows
    assert all(append_record(by_record, record) for record in records)
    first = data.draw(st.integers(0, rows.num_rows))
    last = data.draw(st.integers(first, rows.num_rows))
    assert append(mixed, rows.slice(0, first)) == first
    assert all(append_record(mixed, record) for record in records[first:last])
    assert mixed.append(columns_of(rows), last) == rows.num_rows
    assert by_row.state == by_record.state == mixed.state
    assert by_row.max_timestamp == max((r.timestamp for r in records), default=-1)
    assert closed(by_row) == closed(by_record) == closed(mixed)
    assert reference.decode_batches(bytes(by_row.data)) == records


@given(strategies.arrow_rows().filter(lambda rows: rows.num_rows > 0))
def test_no_batch_of_one_row_is_larger_than_its_upper_bound(rows: pa.RecordBatch) -> None:
    columns = columns_of(rows)
    for row in range(rows.num_rows):
        bound = size_upper_bound(columns, row)
        builder = a_builder(bound)
        assert append(builder, rows.slice(row, 1)) == 1
        assert bound - 40 <= len(closed(builder)) <= bound


# Expected compression ratios


def test_a_better_ratio_makes_room_for_more_records() -> None:
    rows = with_values([b"v" * 100] * 200)
    counts = [
        append(
            a_builder(100_000, write_limit=2_000, codec=CODECS["zstd"], compression_ratio=r), rows
        )
        for r in (1.0, 0.5, 0.25)
    ]
    assert counts == [16, 33, 67]
    uncompressed = a_builder(100_000, write_limit=2_000, compression_ratio=0.25)
    assert append(uncompressed, rows) == 17


@pytest.mark.parametrize("codec", CODEC_IDS)
def test_the_size_is_an_estimate_until_it_is_known(codec: int) -> None:
    builder = a_builder(codec=codec, compression_ratio=0.5)
    assert builder.estimated_size_in_bytes == HEADER_SIZE
    assert builder.actual_compression_ratio() == 1
    append(builder, builders.rows(n=40))
    records_size = builder.uncompressed_size - HEADER_SIZE
    expected = HEADER_SIZE + records_size * (0.5 * 1.05 if codec else 1)
    assert builder.estimated_size_in_bytes == pytest.approx(expected, abs=1)
    data = closed(builder)
    assert builder.estimated_size_in_bytes == len(data)
    assert builder.uncompressed_size == HEADER_SIZE + records_size
    assert builder.actual_compression_ratio() == (len(data) - HEADER_SIZE) / records_size
    assert (builder.actual_compression_ratio() < 0.9) == bool(codec)


@pytest.mark.parametrize(
    ("limit", "ratio", "most", "capacity"),
    [
        (1_000, 1.0, 9_999, 1_000),
        (1_000, 0.5, 9_999, 1_904),
        (1_000, 0.5, 1_500, 1_500),
        (1_000, 0.5, 500, 1_000),
        (1_000, 2.0, 9_999, 1_000),
        (1_000, 0.0, 9_999, 9_999),
    ],
)
def test_capacity_holds_the_uncompressed_records_of_a_full_batch(
    limit: int, ratio: float, most: int, capacity: int
) -> None:
    assert capacity_for(limit, ratio, most) == capacity


def test_the_expected_ratio_gets_worse_quickly_and_better_slowly() -> None:
    ratios = CompressionRatioEstimator()
    assert ratios.estimation("events", 4) == 1.0
    steps = [
        (0.5, 0.995),
        (0.5, 0.99),
        (0.988, 0.988),
        (0.988, 0.988),
        (0.989, 1.038),
        (1.2, 1.2),
        (0.3, 1.195),
    ]
    for observed, expected in steps:
        ratios.update("events", 4, observed)
        assert ratios.estimation("events", 4) == pytest.approx(expected)
    ratios.reset("events", 4, 0.7)
    assert ratios.estimation("events", 4) == 0.7
    assert ratios.estimation("events", 1) == ratios.estimation("others", 4) == 1.0


# Ends


@pytest.mark.parametrize("codec", CODEC_IDS)
def test_after_close_for_appends_a_batch_accepts_nothing_and_can_be_closed(codec: int) -> None:
    rows = builders.rows(n=3)
    builder, expected = a_builder(codec=codec), a_builder(codec=codec)
    append(builder, rows)
    append(expected, rows)
    builder.close_for_appends()
    assert not builder.is_closed
    ensure_takes_nothing(builder)
    assert closed(builder) == closed(expected)


def ensure_takes_nothing(builder: RecordBatchBuilder) -> None:
    before = list(builder.state)
    assert builder.is_full
    assert not builder.has_room_for(1)
    assert not builder.append_record(0, None, None)
    assert append(builder, builders.rows(n=3)) == 0
    assert builder.state == before


@pytest.mark.parametrize("codec", CODEC_IDS)
def test_a_closed_batch_is_final_and_lies_where_it_was_written(codec: int) -> None:
    builder = a_builder(1_000, start=50, codec=codec)
    append(builder, builders.rows(n=2))
    assert len(builder.data) == 0
    builder.close(
        base_offset=9, leader_epoch=3, producer_id=2**40, producer_epoch=5, base_sequence=77
    )
    assert builder.is_closed
    ensure_takes_nothing(builder)
    header = reference.read_header(bytes(builder.data))
    assert (header.base_offset, header.leader_epoch) == (9, 3)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**40, 5, 77)
    assert header.attributes == codec
    assert builder.memory[50 : 50 + len(builder.data)].tobytes() == builder.data
    assert set(builder.memory[:50]) == set(builder.memory[1_050:]) == {NOTHING}


@pytest.mark.parametrize("was_closed", [False, True])
def test_an_aborted_batch_has_no_data(was_closed: bool) -> None:
    builder = a_builder()
    append(builder, builders.rows(n=2))
    if was_closed:
        builder.close()
    builder.abort()
    assert builder.is_closed
    assert len(builder.data) == builder.estimated_size_in_bytes == 0
    ensure_takes_nothing(builder)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_batch_that_would_not_fit_when_compressed_stays_uncompressed(codec: int) -> None:
    noise = random.Random(1).randbytes(500)
    rows = with_values([noise])
    capacity = HEADER_SIZE + size_of(noise)
    expected = a_builder(codec=CODECS["none"])
    append(expected, rows)

    builder = a_builder(capacity, start=7, codec=codec)
    assert append(builder, rows) == 1
    assert closed(builder) == closed(expected)
    assert builder.actual_compression_ratio() == 1
    assert set(builder.memory[7 + capacity :]) == {NOTHING}

    with_room = a_builder(capacity + 50, codec=codec)
    append(with_room, rows)
    data = closed(with_room)
    assert len(data) > capacity
    assert reference.read_header(data).attributes == codec
    assert reference.decode_batches(data) == builders.to_records(rows)


def read_by_kafka_python(data: bytes) -> Iterator[Any]:
    memory_records = kafka_python.MemoryRecords(data)
    while found := memory_records.next_batch():
        assert found.validate_crc()
        yield from found


def read_by_aiokafka(data: bytes) -> Iterator[Any]:
    memory_records = aiokafka.MemoryRecords(data)
    while memory_records.has_next():
        found = memory_records.next_batch()
        assert found.validate_crc()
        yield from found


CLIENTS = [read_by_kafka_python, read_by_aiokafka]


@pytest.mark.parametrize("codec", CODEC_IDS)
@pytest.mark.parametrize("read", CLIENTS)
def test_clients_decode_closed_batches(read: Callable[[bytes], Iterator[Any]], codec: int) -> None:
    rows = builders.rows(n=600, nulls=0.2, headers=2)
    memory = memoryview(bytearray(50_000))
    batches = [
        RecordBatchBuilder(
            memory,
            start,
            10_000,
            codec=codec,
            compression_ratio=0.9,
            slot=SPARE_SLOT if start else 0,
        )
        for start in range(0, 50_000, 10_000)
    ]
    written = fill(batches, columns_of(rows))
    assert 0 < written < rows.num_rows
    expected = builders.to_records(rows)[:written]
    for builder in batches:
        assert builder.records_count > 10
        base_offset = expected[0].offset
        builder.close(base_offset=base_offset)
        found = [
            Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers))
            for r in read(bytes(builder.data))
        ]
        assert found == expected[: builder.records_count]
        del expected[: builder.records_count]
    assert expected == []


@pytest.mark.parametrize("codec", CODEC_IDS)
@pytest.mark.parametrize("read", CLIENTS)
def test_clients_decode_a_batch_without_records(
    read: Callable[[bytes], Iterator[Any]], codec: int
) -> None:
    data = closed(a_builder(codec=codec))
    assert data == reference.encode_batch([])
    assert list(read(data)) == []
