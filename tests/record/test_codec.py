"""Batches are encoded and decoded as the reference and Kafka clients do it."""

from __future__ import annotations

import itertools
import tracemalloc
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import aiokafka.record.default_records as aiokafka_records  # type: ignore[import-untyped]
import aiokafka.record.memory_records as aiokafka  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.record import codec
from tests.support import builders, reference, strategies
from tests.support.reference import Record

with warnings.catch_warnings():
    # It reads its schemas with a deprecated function of importlib.resources.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.record.default_records as kafka_python_records  # type: ignore[import-untyped]
    import kafka.record.memory_records as kafka_python  # type: ignore[import-untyped]

CODEC_NAMES = list(reference.CODECS)
COLUMNS = codec.RECORD_SCHEMA.names
codec_names = st.sampled_from(CODEC_NAMES)
# The first example may compile kernels.
relaxed = settings(deadline=None)

TWO_ROWS = pa.RecordBatch.from_pylist(
    [
        {
            "key": b"k",
            "value": b"v",
            "timestamp": 1_700_000_000_000,
            "headers": [{"key": "h", "value": None}],
        },
        {"key": None, "value": b"", "timestamp": 1_700_000_000_005, "headers": None},
    ],
    schema=builders.ROWS_SCHEMA,
)
TWO_ROWS_BATCH = bytes.fromhex(
    "0000000000000000 00000044 ffffffff 02 534caa82 0000 00000001 0000018bcfe56800 0000018bcfe56805"
    "ffffffffffffffff ffff ffffffff 00000002 16 00 00 00 026b 0276 02 0268 01 0c 00 0a 02 01 00 00"
)
COMMIT_MARKER_BATCH = bytes.fromhex(
    "000000000000002a 00000042 ffffffff 02 113078b4 0030 00000000 00000000000003e8 00000000000003e8"
    "0000000000002328 0003 ffffffff 00000001 20 00 00 00 08 00000001 0c 000000000007 00"
)
RECORD = bytes.fromhex("0c 00 00 00 01 01 00")


def records_of(decoded: pa.RecordBatch) -> list[Record]:
    """All decoded rows as records of the reference."""
    decoded.validate(full=True)
    assert decoded.schema == codec.RECORD_SCHEMA
    assert [] not in decoded.column("headers").to_pylist(), "a record without headers has null"
    return builders.as_read(decoded)


def spread(records: Iterable[Record], gaps: Iterable[int]) -> list[Record]:
    """The same records, with `gaps` offsets skipped before each."""
    shifts = itertools.accumulate(gaps)
    return [
        record._replace(offset=record.offset + shift)
        for record, shift in zip(records, shifts, strict=True)
    ]


# Rows to bytes and back


@relaxed
@given(strategies.arrow_rows(), codec_names, st.integers(0, 2**62))
def test_decode_gives_the_rows_that_were_encoded(
    rows: pa.RecordBatch, compression: str, base_offset: int
) -> None:
    batch = builders.encode(rows, compression=compression, base_offset=base_offset)
    assert records_of(codec.decode(batch)) == builders.to_records(rows, base_offset)


@pytest.mark.parametrize("compression", CODEC_NAMES)
def test_decode_gives_the_columns_that_were_encoded(compression: str) -> None:
    rows = builders.rows(n=5_000, nulls=0.2, headers=2)
    decoded = codec.decode(builders.encode(rows, compression=compression))
    assert decoded.select(rows.schema.names).equals(rows)


@relaxed
@given(strategies.arrow_rows(), st.integers(0, 2**62), st.integers(-1, 2**31 - 1))
def test_encode_writes_the_bytes_of_the_reference(
    rows: pa.RecordBatch, base_offset: int, leader_epoch: int
) -> None:
    assert builders.encode(
        rows, base_offset=base_offset, leader_epoch=leader_epoch
    ) == reference.encode_batch(
        builders.to_records(rows, base_offset), base_offset=base_offset, leader_epoch=leader_epoch
    )


@relaxed
@given(strategies.arrow_rows(), codec_names)
def test_reference_decodes_what_we_encode(rows: pa.RecordBatch, compression: str) -> None:
    batch = builders.encode(rows, compression=compression)
    assert reference.decode_batches(batch) == builders.to_records(rows)
    used = reference.read_header(batch).attributes
    assert used == (reference.CODECS[compression] if rows.num_rows else 0)


@relaxed
@given(strategies.arrow_rows(), codec_names, st.data())
def test_we_decode_what_the_reference_encodes(
    rows: pa.RecordBatch, compression: str, data: st.DataObject
) -> None:
    gaps = st.lists(st.integers(0, 1_000), min_size=rows.num_rows, max_size=rows.num_rows)
    records = spread(builders.to_records(rows), data.draw(gaps))
    batch = reference.encode_batch(records, codec=reference.CODECS[compression], producer_id=7)
    assert records_of(codec.decode(batch)) == records


@relaxed
@given(strategies.arrow_rows())
def test_slice_is_encoded_as_its_copy_is(rows: pa.RecordBatch) -> None:
    copy = pa.RecordBatch.from_pydict(rows.to_pydict(), schema=rows.schema)
    assert builders.encode(rows) == builders.encode(copy)


def test_spans_of_any_length_are_copied_and_nothing_next_to_them() -> None:
    data = bytes(range(1, 256)) * 2
    records = [Record(n, 0, data[:n], data[n : 2 * n]) for n in range(256)]
    batch = reference.encode_batch(records, leader_epoch=0)
    rows = codec.decode(batch, columns=["key", "value", "timestamp"])
    assert builders.encode(rows) == batch
    assert records_of(codec.decode(batch)) == records


@pytest.mark.parametrize("size", [0, 1, 62, 63, 64, 65, 8_190, 8_191, 8_192, 2**20 - 1, 2**20])
def test_sizes_around_the_steps_of_a_varint_are_decoded(size: int) -> None:
    rows = builders.rows(n=2, key_bytes=size, value_bytes=size, headers=1)
    batch = builders.encode(rows)
    assert batch == reference.encode_batch(builders.to_records(rows), leader_epoch=0)
    assert codec.decode(batch).select(rows.schema.names).equals(rows)


@pytest.mark.parametrize("n", [0, 1, 2, 7, 8, 9, 63, 64, 65, 1_000])
def test_any_number_of_records_is_decoded(n: int) -> None:
    rows = builders.rows(n=n, nulls=0.5)
    assert records_of(codec.decode(builders.encode(rows))) == builders.to_records(rows)


def test_decoded_rows_own_their_memory() -> None:
    rows = builders.rows(n=10, headers=1)
    batch = bytearray(builders.encode(rows))
    decoded = codec.decode(batch)
    batch[:] = bytes(len(batch))
    assert decoded.select(rows.schema.names).equals(rows)


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
def test_any_bytes_are_decoded(make: Callable[[bytes], Any]) -> None:
    assert records_of(codec.decode(make(builders.encode(builders.rows())))) == builders.to_records(
        builders.rows()
    )


# Known bytes


def test_two_records_have_the_known_bytes() -> None:
    assert builders.encode(TWO_ROWS, leader_epoch=-1) == TWO_ROWS_BATCH
    assert records_of(codec.decode(TWO_ROWS_BATCH)) == builders.to_records(TWO_ROWS)


def test_control_records_are_left_out() -> None:
    assert codec.decode(COMMIT_MARKER_BATCH).num_rows == 0
    decoded = codec.decode(TWO_ROWS_BATCH + COMMIT_MARKER_BATCH)
    assert records_of(decoded) == builders.to_records(TWO_ROWS)


# Batches that compaction rewrote


@pytest.mark.parametrize("columns", [COLUMNS, ["offset"], []], ids=["all", "offset", "none"])
def test_empty_batch_gives_no_rows(columns: Sequence[str]) -> None:
    empty = reference.frame_batch(
        b"", base_offset=10, last_offset_delta=4, base_timestamp=-1, records_count=0
    )
    decoded = codec.decode(empty, columns=columns)
    assert (decoded.num_rows, decoded.schema.names) == (0, columns)
    assert codec.decode(empty + TWO_ROWS_BATCH, columns=columns).num_rows == 2


def test_no_bytes_give_no_rows() -> None:
    assert records_of(codec.decode(b"")) == []


@pytest.mark.parametrize("compression", CODEC_NAMES)
def test_log_append_time_replaces_every_timestamp(compression: str) -> None:
    records = builders.to_records(builders.rows(n=4))
    batches = [
        reference.encode_batch(
            records, codec=reference.CODECS[compression], attributes_extra=attributes
        )
        for attributes in (0, reference.LOG_APPEND_TIME)
    ]
    decoded = codec.decode(b"".join(batches))
    assert decoded.column("timestamp_type").to_pylist() == [0] * 4 + [1] * 4
    assert decoded.column("timestamp").to_pylist() == [
        *(record.timestamp for record in records),
        *[max(record.timestamp for record in records)] * 4,
    ]


@pytest.mark.parametrize("columns", [COLUMNS, ["offset"]], ids=["all", "offset"])
@pytest.mark.parametrize("compression", CODEC_NAMES)
def test_offsets_with_gaps_are_kept(compression: str, columns: Sequence[str]) -> None:
    records = spread(builders.to_records(builders.rows(n=4), 100), [5, 0, 70_000, 1])
    batch = reference.encode_batch(records, base_offset=100, codec=reference.CODECS[compression])
    # Compaction also removes last records, and keeps the batch's last offset.
    for data in (batch, _with_last_offset_delta(batch, 99_999)):
        offsets = codec.decode(data, columns=columns).column("offset").to_pylist()
        assert offsets == [record.offset for record in records]


def _with_last_offset_delta(batch: bytes, delta: int) -> bytes:
    return reference.with_crc(batch[:23] + delta.to_bytes(4, "big") + batch[27:])


# Columns and bounds


@st.composite
def logs(draw: st.DrawFn) -> tuple[bytes, list[Record]]:
    """Batches back to back, some empty, of all codecs, with gaps in them and between them."""
    data, records, next_offset = b"", list[Record](), 0
    for rows in draw(st.lists(strategies.arrow_rows(rows_max=4), max_size=4)):
        base_offset = next_offset + draw(st.integers(0, 3))
        gaps = draw(
            st.lists(st.integers(0, 2), min_size=rows.num_rows, max_size=rows.num_rows)
            | st.just([0] * rows.num_rows)
        )
        batch = spread(builders.to_records(rows, base_offset), gaps)
        data += reference.encode_batch(
            batch, base_offset=base_offset, codec=reference.CODECS[draw(codec_names)]
        )
        records += batch
        next_offset = max(base_offset, *(record.offset for record in batch), 0) + 1
    return data, records


@relaxed
@given(logs())
def test_batches_back_to_back_give_all_their_records(log: tuple[bytes, list[Record]]) -> None:
    data, records = log
    assert records_of(codec.decode(data)) == records


@relaxed
@given(logs(), st.lists(st.sampled_from(COLUMNS), unique=True))
def test_decoding_some_columns_is_selecting_them(
    log: tuple[bytes, list[Record]], columns: list[str]
) -> None:
    data, records = log
    decoded = codec.decode(data, columns=columns)
    decoded.validate(full=True)
    assert decoded.num_rows == len(records)
    assert decoded.schema.names == columns
    if columns:
        assert decoded.equals(codec.decode(data).select(columns))


@relaxed
@given(logs(), st.integers(-1, 30), st.integers(-1, 30))
def test_offset_bounds_cut_records(
    log: tuple[bytes, list[Record]], start_offset: int, end_offset: int
) -> None:
    data, records = log
    inside = [record for record in records if start_offset <= record.offset < end_offset]
    decoded = codec.decode(data, start_offset=start_offset, end_offset=end_offset)
    assert records_of(decoded) == inside
    offsets = codec.decode(
        data, columns=["offset"], start_offset=start_offset, end_offset=end_offset
    )
    assert offsets.column("offset").to_pylist() == [record.offset for record in inside]


@pytest.mark.parametrize(("start_offset", "end_offset"), [(1, 1), (2, 1), (5, 0), (3, 3)])
def test_bounds_that_hold_nothing_give_no_rows(start_offset: int, end_offset: int) -> None:
    batch = builders.encode(builders.rows(n=3))
    assert records_of(codec.decode(batch, start_offset=start_offset, end_offset=end_offset)) == []


# Other clients


def read_by_kafka_python(batch: bytes) -> Iterator[Any]:
    memory_records = kafka_python.MemoryRecords(batch)
    while found := memory_records.next_batch():
        assert found.validate_crc()
        yield from found


def read_by_aiokafka(batch: bytes) -> Iterator[Any]:
    memory_records = aiokafka.MemoryRecords(batch)
    while memory_records.has_next():
        found = memory_records.next_batch()
        assert found.validate_crc()
        yield from found


def read_by_plain_aiokafka(batch: bytes) -> Iterator[Any]:
    for one in reference.split_batches(batch):
        found = aiokafka_records._DefaultRecordBatchPy(one)
        assert found.validate_crc()
        yield from found


@pytest.mark.parametrize("compression", CODEC_NAMES)
@pytest.mark.parametrize("read", [read_by_kafka_python, read_by_aiokafka, read_by_plain_aiokafka])
@given(data=st.data())
def test_clients_decode_what_we_encode(
    read: Callable[[bytes], Iterable[Any]], compression: str, data: st.DataObject
) -> None:
    rows = data.draw(strategies.arrow_rows().filter(lambda rows: rows.num_rows > 0))
    batch = builders.encode(rows, compression=compression, base_offset=9)
    found = [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in read(batch)]
    assert found == builders.to_records(rows, 9)


BUILDERS = [
    pytest.param(kafka_python_records.DefaultRecordBatchBuilder, id="kafka-python"),
    pytest.param(aiokafka_records.DefaultRecordBatchBuilder, id="aiokafka"),
    pytest.param(aiokafka_records._DefaultRecordBatchBuilderPy, id="plain-aiokafka"),
]


@pytest.mark.parametrize("compression", CODEC_NAMES)
@pytest.mark.parametrize("builder", BUILDERS)
@pytest.mark.parametrize("n", [1, 500])
def test_we_decode_what_clients_encode(builder: Any, compression: str, n: int) -> None:
    # Long values, because the clients do not compress what would not shrink.
    rows = builders.rows(n=n, value_bytes=2_000, nulls=0.0 if n == 1 else 0.3, headers=3)
    records = builders.to_records(rows)
    made = builder(
        magic=2,
        compression_type=reference.CODECS[compression],
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=2**30,
    )
    for record in records:
        made.append(
            record.offset,
            timestamp=record.timestamp,
            key=record.key,
            value=record.value,
            headers=list(record.headers),
        )
    batch = bytes(made.build())
    assert reference.read_header(batch).attributes == reference.CODECS[compression]
    assert records_of(codec.decode(batch)) == records


# Damage


@relaxed
@given(strategies.arrow_rows(), codec_names, st.data())
def test_damage_is_refused_or_lies_outside_the_crc(
    rows: pa.RecordBatch, compression: str, data: st.DataObject
) -> None:
    batch = builders.encode(rows, compression=compression)
    damaged = data.draw(strategies.corruptions(batch).filter(bool))
    if len(damaged) == len(batch) and _inside_crc(damaged) == _inside_crc(batch):
        # The CRC does not cover what the leader sets: base offset and leader epoch.
        base_offset = reference.read_header(damaged).base_offset
        try:
            found = records_of(codec.decode(damaged, start_offset=-(2**63)))
        except CorruptRecordError:
            assert not 0 <= base_offset <= 2**63 - 1 - rows.num_rows
        else:
            assert found == builders.to_records(rows, base_offset)
    else:
        with pytest.raises(CorruptRecordError):
            codec.decode(damaged)


def _inside_crc(batch: bytes) -> bytes:
    """The positions of the CRC, of what it covers, and of what a reader needs to find both."""
    return batch[8:12] + batch[16:]


@pytest.mark.parametrize("compression", CODEC_NAMES)
def test_every_flipped_bit_inside_the_crc_is_refused(compression: str) -> None:
    batch = builders.encode(builders.rows(headers=1, nulls=0.3), compression=compression)
    survived = []
    for position in [*range(8, 12), *range(16, len(batch))]:
        for bit in range(8):
            damaged = bytearray(batch)
            damaged[position] ^= 1 << bit
            try:
                codec.decode(damaged)
            except CorruptRecordError:
                continue
            survived.append((position, bit))
    assert survived == []


@pytest.mark.parametrize("columns", [COLUMNS, ["offset"]], ids=["all", "offset"])
def test_partial_batch_is_refused_at_its_start(columns: Sequence[str]) -> None:
    whole = TWO_ROWS_BATCH * 2
    for size in range(len(TWO_ROWS_BATCH) + 1, len(whole)):
        with pytest.raises(CorruptRecordError) as raised:
            codec.decode(whole[:size], columns=columns)
        # The batch, or its length.
        assert raised.value.position - len(TWO_ROWS_BATCH) in (0, 8)


def test_error_tells_which_batch_is_damaged() -> None:
    damaged = bytearray(TWO_ROWS_BATCH * 3)
    damaged[2 * len(TWO_ROWS_BATCH) - 1] ^= 1
    with pytest.raises(CorruptRecordError, match="CRC") as raised:
        codec.decode(damaged)
    assert raised.value.position == len(TWO_ROWS_BATCH)


# Lies under a right CRC

varint = reference.encode_varint


def record(fields: bytes, *, length: int | None = None) -> bytes:
    """A record with these bytes after its length, which is theirs or the given one."""
    return varint(len(fields) if length is None else length) + fields


# Attributes, timestamp delta and offset delta, all 0.
PREFIX = b"\0\0\0"
LIES = [
    pytest.param(record(PREFIX + b"\x01\x01\x00", length=7), id="length-above"),
    pytest.param(record(PREFIX + b"\x01\x01\x00", length=5), id="length-below"),
    pytest.param(record(PREFIX + b"\x01\x01\x00", length=-1), id="length-negative"),
    pytest.param(record(PREFIX + b"\x01\x01\x00", length=2**31 - 1), id="length-2-gib"),
    pytest.param(b"\xff" * 5 + PREFIX + b"\x01\x01\x00", id="length-varint-of-6-bytes"),
    pytest.param(b"\x8c\x80\x80\x80\x80\x00" + PREFIX + b"\x01\x01\x00", id="length-padded-to-6-bytes"),
    pytest.param(record(b"\0" + b"\xff" * 10 + b"\x01\0\x01\x01\x00"), id="timestamp-varint-of-11-bytes"),
    pytest.param(record(b"\0\0" + b"\xff" * 5 + b"\x01\x01\x01\x00"), id="offset-varint-of-6-bytes"),
    pytest.param(record(PREFIX + varint(100) + b"\x01\x00"), id="key-past-the-end"),
    pytest.param(record(PREFIX + varint(2**31 - 1) + b"\x01\x00"), id="key-2-gib"),
    pytest.param(record(PREFIX + b"\xff" * 6 + b"\x01\x00"), id="key-varint-of-6-bytes"),
    pytest.param(record(PREFIX + b"\x01" + varint(100) + b"\x00"), id="value-past-the-end"),
    pytest.param(record(PREFIX + b"\x01" + varint(2**31 - 1) + b"\x00"), id="value-2-gib"),
    pytest.param(record(PREFIX + b"\x01\x01"), id="no-headers-count"),
    pytest.param(record(PREFIX + b"\x01\x01" + varint(-1)), id="headers-count-negative"),
    pytest.param(record(PREFIX + b"\x01\x01" + varint(1)), id="headers-count-above"),
    pytest.param(record(PREFIX + b"\x01\x01" + varint(2**31 - 1)), id="headers-count-2-gib"),
    pytest.param(record(PREFIX + b"\x01\x01" + varint(1) + b"\x01\x01"), id="header-key-null"),
    pytest.param(record(PREFIX + b"\x01\x01" + varint(1) + varint(9) + b"\x01"), id="header-key-past-the-end"),
    pytest.param(record(PREFIX + b"\x01\x01" + varint(1) + b"\x02h" + varint(9)), id="header-value-past-the-end"),
    pytest.param(record(PREFIX + b"\x01\x01" + varint(1) + b"\x02h\x01\0"), id="bytes-after-the-headers"),
    pytest.param(b"", id="no-record"),
    pytest.param(b"\x00", id="record-of-nothing"),
    pytest.param(RECORD[:-1], id="record-cut"),
    pytest.param(RECORD + b"\0", id="bytes-after-the-record"),
    pytest.param(RECORD * 2, id="record-after-the-record"),
]  # fmt: skip


@pytest.mark.parametrize("compression", CODEC_NAMES)
@pytest.mark.parametrize("body", LIES)
def test_lie_under_a_right_crc_is_refused(body: bytes, compression: str) -> None:
    compressed = reference.CODECS[compression]
    section = reference.compress(compressed, body)
    batch = reference.frame_batch(section, attributes=compressed)
    with pytest.raises(CorruptRecordError) as raised:
        codec.decode(TWO_ROWS_BATCH + batch)
    assert raised.value.position >= len(TWO_ROWS_BATCH)


def test_malformed_utf_8_in_a_header_key_is_replaced_as_java_does() -> None:
    fields = PREFIX + b"\x01\x01" + varint(1) + b"\x02\xff\x01"
    rows = codec.decode(reference.frame_batch(record(fields)))
    assert rows.column("headers").to_pylist() == [[{"key": "\ufffd", "value": None}]]


@pytest.mark.parametrize("columns", [COLUMNS, ["offset"]], ids=["all", "offset"])
def test_offsets_past_int64_are_refused(columns: Sequence[str]) -> None:
    # The CRC does not cover the base offset, so one damaged field is enough.
    with pytest.raises(CorruptRecordError):
        codec.decode((2**63 - 1).to_bytes(8, "big") + TWO_ROWS_BATCH[8:], columns=columns)


def test_negative_lengths_of_key_and_value_are_null() -> None:
    batch = reference.frame_batch(record(PREFIX + varint(-7) + varint(-(2**31)) + b"\x00"))
    assert records_of(codec.decode(batch)) == [Record(0, 0, None, None)]


@pytest.mark.parametrize("columns", [COLUMNS, ["offset"]], ids=["all", "offset"])
@pytest.mark.parametrize("compression", CODEC_NAMES)
@pytest.mark.parametrize("records_count", [2, 1_000_000, 2**31 - 1, -1, -(2**31)])
def test_count_that_the_bytes_cannot_hold_is_refused_before_it_takes_memory(
    records_count: int, compression: str, columns: Sequence[str]
) -> None:
    compressed = reference.CODECS[compression]
    batch = reference.frame_batch(
        reference.compress(compressed, RECORD),
        attributes=compressed,
        records_count=records_count,
        last_offset_delta=max(records_count, 0),
    )
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecordError):
            codec.decode(batch, columns=columns)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * 2**20


@pytest.mark.parametrize("compressed", [5, 6, 7])
def test_unknown_codec_is_refused(compressed: int) -> None:
    with pytest.raises(CorruptRecordError, match="codec"):
        codec.decode(reference.frame_batch(RECORD, attributes=compressed))


@pytest.mark.parametrize("compression", [name for name in CODEC_NAMES if name != "none"])
def test_section_that_does_not_decompress_is_refused(compression: str) -> None:
    compressed = reference.CODECS[compression]
    section = reference.compress(compressed, RECORD)[:-1]
    with pytest.raises(CorruptRecordError) as raised:
        codec.decode(TWO_ROWS_BATCH + reference.frame_batch(section, attributes=compressed))
    assert raised.value.position >= len(TWO_ROWS_BATCH)
