"""Messages of the formats V0 and V1: as the reference, Kafka clients and brokers write them."""

from __future__ import annotations

import hashlib
import json
import struct
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiokafka.record.legacy_records as aiokafka_records  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.record import codec, scalar
from spark_kbatch.record import header as batch_header
from spark_kbatch.record.header import walk, whole_size
from spark_kbatch.record.scalar import times
from tests.support import builders, reference, strategies
from tests.support.reference import Record

with warnings.catch_warnings():
    # It reads its schemas with a deprecated function of importlib.resources.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.record.legacy_records as kafka_python_records  # type: ignore[import-untyped]

MAGICS = [pytest.param(0, id="v0"), pytest.param(1, id="v1")]
CODECS = [
    pytest.param(codec, id=name) for name, codec in reference.CODECS.items() if name != "zstd"
]
COMPRESSED = [param for param in CODECS if param.id != "none"]
magics = st.sampled_from([0, 1])
codecs = st.sampled_from([reference.CODECS[name] for name in ("none", "gzip", "snappy", "lz4")])
# The first example may compile kernels.
relaxed = settings(deadline=None)

V1_MESSAGE = bytes.fromhex("e4e321bc 01 00 00000000000003e8 00000001 6b 00000001 76")
V0_MESSAGE = bytes.fromhex("1fecd70a 00 00 00000001 6b 00000001 76")
ALL_COLUMNS, OFFSETS = codec.RECORD_SCHEMA.names, ["offset"]


def entry(message: bytes, offset: int) -> bytes:
    return struct.pack(">qi", offset, len(message)) + message


def some_records(n: int = 5, *, magic: int = 1, base_offset: int = 0, gap: int = 1) -> list[Record]:
    """Records that the format can hold, with nulls, `gap` offsets apart."""
    found = builders.to_records(builders.rows(n=n, value_bytes=40, nulls=0.2))
    return [
        record._replace(
            offset=base_offset + gap * index, timestamp=record.timestamp if magic else -1
        )
        for index, record in enumerate(found)
    ]


def decoded(data: bytes, **named: Any) -> list[Record]:
    found = codec.decode(data, **named)
    found.validate(full=True)
    assert found.schema == codec.RECORD_SCHEMA
    return builders.as_read(found)


def timestamp_types(data: bytes) -> list[int]:
    found: list[int] = codec.decode(data).column("timestamp_type").to_pylist()
    return found


@st.composite
def message_sets(draw: st.DrawFn) -> tuple[bytes, list[Record]]:
    """Entries of either format, plain and wrapped, with gaps, and their records."""
    data, records, offset = b"", [], draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(1, 4))):
        magic, compressed = draw(magics), draw(codecs)
        rows = draw(strategies.arrow_rows())
        held = []
        for record in builders.to_records(rows):
            offset += draw(st.integers(1, 3))
            timestamp = record.timestamp if magic else -1
            held.append(record._replace(offset=offset, timestamp=timestamp, headers=()))
        if held:
            data += reference.encode_messages(held, magic=magic, codec=compressed)
            records += held
    return data, records


# Reading


@pytest.mark.parametrize(
    ("message", "timestamp"),
    [pytest.param(V0_MESSAGE, -1, id="v0"), pytest.param(V1_MESSAGE, 1_000, id="v1")],
)
def test_known_message_is_read(message: bytes, timestamp: int) -> None:
    record = Record(7, timestamp, b"k", b"v")
    assert decoded(entry(message, 7)) == [record]
    assert reference.encode_message(record, magic=message[4]) == entry(message, 7)


@relaxed
@given(message_sets())
def test_we_decode_what_the_reference_encodes(given_set: tuple[bytes, list[Record]]) -> None:
    data, records = given_set
    assert decoded(data) == records
    assert reference.decode_messages(data) == records


@relaxed
@given(message_sets(), st.integers(-1, 10), st.integers(-1, 10))
def test_a_range_of_offsets_is_selected(
    given_set: tuple[bytes, list[Record]], first: int, last: int
) -> None:
    data, records = given_set
    base = records[0].offset if records else 0
    start, end = base + first, base + last
    wanted = [record for record in records if start <= record.offset < end]
    assert decoded(data, start_offset=start, end_offset=end) == wanted
    alone = codec.decode(data, columns=OFFSETS, start_offset=start, end_offset=end)
    assert alone.column(0).to_pylist() == [record.offset for record in wanted]


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("codec_id", CODECS)
def test_batches_and_messages_are_read_from_one_log(magic: int, codec_id: int) -> None:
    old = some_records(magic=magic, base_offset=3)
    batch = builders.encode(builders.rows(n=2, headers=1), base_offset=8)
    later = some_records(magic=1, base_offset=10)
    data = (
        reference.encode_messages(old, magic=magic, codec=codec_id)
        + batch
        + reference.encode_messages(later, magic=1)
    )
    assert decoded(data) == [*old, *reference.decode_batches(batch), *later]
    assert timestamp_types(data) == [-1 if magic == 0 else 0] * 5 + [0] * 7


def test_records_of_messages_have_no_headers() -> None:
    data = reference.encode_messages(some_records(), magic=1)
    assert codec.decode(data).column("headers").to_pylist() == [None] * 5


@pytest.mark.parametrize("codec_id", CODECS)
def test_log_append_time_of_v1_counts(codec_id: int) -> None:
    records = some_records(base_offset=4)
    data = reference.encode_messages(records, magic=1, codec=codec_id, log_append_time=99)
    assert decoded(data) == [record._replace(timestamp=99) for record in records]
    assert timestamp_types(data) == [1] * 5


def test_plain_messages_keep_their_own_append_times() -> None:
    records = [Record(offset, 100 + offset, None, b"v") for offset in range(4)]
    data = b"".join(reference.encode_message(r, magic=1, attributes=8) for r in records)
    assert decoded(data) == records


def test_timestamp_type_means_nothing_in_v0() -> None:
    data = reference.encode_message(Record(0, -1, None, b"v"), magic=0, attributes=8)
    assert decoded(data) == [Record(0, -1, None, b"v")]
    assert timestamp_types(data) == [-1]


@pytest.mark.parametrize("codec_id", COMPRESSED)
def test_v1_wrapper_without_an_offset_counts_from_0(codec_id: int) -> None:
    data = reference.encode_messages(some_records(), magic=1, codec=codec_id, wrapper_offset=0)
    assert decoded(data) == some_records()


@pytest.mark.parametrize("codec_id", COMPRESSED)
def test_offsets_in_a_v0_wrapper_are_absolute(codec_id: int) -> None:
    records = some_records(magic=0, base_offset=20, gap=2)
    data = reference.encode_messages(records, magic=0, codec=codec_id, wrapper_offset=0)
    assert decoded(data) == records


@pytest.mark.parametrize("magic", MAGICS)
def test_bare_snappy_block_is_read(magic: int) -> None:
    inner = reference.encode_messages(some_records(magic=magic), magic=magic)
    block = bytes(reference.cramjam.snappy.compress_raw(inner))
    wrapper = reference.encode_message(Record(4, 0, None, block), magic=magic, attributes=2)
    assert decoded(wrapper) == some_records(magic=magic)


def test_wrong_checksum_of_an_lz4_header_is_accepted_only_in_v0() -> None:
    inner = reference.encode_messages(some_records(magic=1), magic=1)
    value = reference.compress_for(0, reference.LZ4, inner)
    wrapper = reference.encode_message(Record(4, 0, None, value), magic=1, attributes=3)
    with pytest.raises(CorruptRecordError, match="lz4"):
        codec.decode(wrapper)


@pytest.mark.parametrize("cut", [1, 20, 30])
def test_truncated_message_at_the_end_of_a_wrapper_does_not_count(cut: int) -> None:
    records = some_records(base_offset=6)
    inner = reference.encode_messages(some_records(), magic=1)
    wrapper = reference.encode_message(
        Record(9, 0, None, reference.compress(1, inner[:-cut])), magic=1, attributes=1
    )
    assert decoded(wrapper) == records[:-1]
    found = times(wrapper, 0, batch_header.unpack(wrapper, 0))
    assert [time for _, time in found] == [record.timestamp for record in records[:-1]]


def test_wrapper_may_have_a_key() -> None:
    inner = reference.encode_messages(some_records(), magic=1)
    wrapper = Record(4, 0, b"a key", reference.compress(1, inner))
    assert decoded(reference.encode_message(wrapper, magic=1, attributes=1)) == some_records()


def test_negative_lengths_are_null() -> None:
    message = struct.pack(">bbqii", 1, 0, 5, -7, -(2**31))
    data = reference.with_message_crc(entry(b"\0\0\0\0" + message, 0))
    assert decoded(data) == [Record(0, 5, None, None)]


# Walking


def test_plain_messages_are_walked_as_one_batch_while_offsets_grow() -> None:
    first, second = some_records(4, base_offset=10, gap=2), some_records(3)
    one, two = (reference.encode_messages(part, magic=1) for part in (first, second))

    (begin, header), (then, other) = walk(one + two)

    assert (begin, then, len(one + two)) == (0, len(one), then + other.size_in_bytes)
    assert (header.base_offset, header.last_offset, header.records_count) == (10, 16, 4)
    assert header.max_timestamp == max(record.timestamp for record in first)
    assert (other.base_offset, other.next_offset, other.records_count) == (0, 3, 3)


def test_messages_of_different_kinds_are_different_batches() -> None:
    record = some_records(1)[0]
    kinds = [(0, 0), (1, 0), (1, 8), (1, 1)]
    data = b"".join(
        reference.encode_message(record._replace(offset=at), magic=magic, attributes=attributes)
        for at, (magic, attributes) in enumerate(kinds)
    )
    found = [(header.magic, header.attributes) for _, header in walk(data)]
    assert found == kinds


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("n", [255, 256, 257, 20_000])
def test_long_runs_are_walked_as_short_ones(magic: int, n: int) -> None:
    records = [
        Record(offset, 5 * offset % 7 if magic else -1, None, b"value" * 20)
        for offset in range(3, 3 + n)
    ]
    data = reference.encode_messages(records, magic=magic)

    headers = [header for _, header in walk(data)]

    assert sum(header.size_in_bytes for header in headers) == len(data) == whole_size(data)
    assert sum(header.records_count for header in headers) == n
    assert headers[0].max_timestamp == (6 if magic else -1)
    assert all(header.size_in_bytes <= 2**20 for header in headers)
    assert decoded(data) == records


def test_whole_size_counts_a_last_batch_without_records() -> None:
    empty = reference.frame_batch(b"", records_count=0)
    assert whole_size(empty) == len(empty) == 61


@pytest.mark.parametrize("magic", MAGICS)
def test_whole_size_ends_before_a_truncated_message(magic: int) -> None:
    records = some_records(600, magic=magic)
    data = reference.encode_messages(records, magic=magic)
    size = len(reference.encode_messages(records[:-1], magic=magic))
    assert {whole_size(data[:end]) for end in range(size, len(data))} == {size}
    assert whole_size(data) == len(data)


def test_a_message_that_is_larger_than_a_run_is_one() -> None:
    records = [Record(0, 1, None, b"v"), Record(1, 1, None, b"v" * 2**21), Record(2, 1, None, b"")]
    data = reference.encode_messages(records, magic=1)
    assert [header.records_count for _, header in walk(data)] == [1, 1, 1]
    assert decoded(data) == records


# Clients


def build(builder: Any, records: Sequence[Record], *, magic: int, codec_id: int) -> bytes:
    made = builder(magic=magic, compression_type=codec_id, batch_size=2**30)
    for record in records:
        made.append(record.offset, record.timestamp, record.key, record.value)
    return bytes(made.build())


KAFKA_PYTHON = kafka_python_records.LegacyRecordBatchBuilder
BUILDERS = [
    pytest.param(KAFKA_PYTHON, id="kafka-python"),
    pytest.param(aiokafka_records._LegacyRecordBatchBuilderPy, id="plain-aiokafka"),
    pytest.param(aiokafka_records.LegacyRecordBatchBuilder, id="aiokafka"),
]


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("codec_id", CODECS)
@pytest.mark.parametrize("builder", BUILDERS)
@pytest.mark.parametrize("n", [1, 500])
def test_we_decode_what_clients_encode(builder: Any, magic: int, codec_id: int, n: int) -> None:
    if magic == 0 and codec_id == reference.LZ4 and builder is not KAFKA_PYTHON:
        pytest.skip("aiokafka has no lz4 for V0")
    records = some_records(n, magic=magic)
    assert decoded(build(builder, records, magic=magic, codec_id=codec_id)) == records


# Brokers


def segments(shared_data: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    folder = shared_data / "kafka-segments"
    for about in json.loads((folder / "manifest.json").read_text()):
        yield about, (folder / about["file"]).read_bytes()


def records_sha256(records: Sequence[Record]) -> str:
    """A digest of all keys, values, offsets, timestamps and headers, as described in the data's README."""
    digest = hashlib.sha256()

    def add(value: bytes | None) -> None:
        digest.update(struct.pack(">i", -1 if value is None else len(value)) + (value or b""))

    for record in records:
        add(record.key)
        add(record.value)
        digest.update(struct.pack(">qq", record.offset, record.timestamp))
        for key, value in record.headers:
            add(key.encode())
            add(value)
    return digest.hexdigest()


def with_control_records(data: bytes) -> list[Record]:
    """All records, including control records, which readers do not see."""
    found = decoded(data)
    for position, header in walk(data):
        if header.is_control:
            for key_value in scalar.decode(data, position, header):
                found.append(Record(key_value.offset, header.base_timestamp, *key_value[1:]))
    return sorted(found)


def test_segments_of_brokers_hold_what_two_other_decoders_found(shared_data: Path) -> None:
    wrong, magics_seen = [], set()
    for about, data in segments(shared_data):
        magics_seen |= set(about["magic"])
        records = with_control_records(data)
        if (len(records), records_sha256(records)) != (about["records"], about["records_sha256"]):
            wrong.append(about["file"])
    assert wrong == []
    assert magics_seen == {0, 1, 2}


# Damage


def samples() -> Iterator[tuple[int, bytes, list[Record]]]:
    """A message set of three entries in every format and codec: magic, bytes, records."""
    for magic in (0, 1):
        for codec_id in range(4):
            records = some_records(12, magic=magic, base_offset=2**20)
            parts = (records[:4], records[4:8], records[8:])
            entries = (reference.encode_messages(p, magic=magic, codec=codec_id) for p in parts)
            yield magic, b"".join(entries), records


SAMPLES = [
    pytest.param(data, records, id=f"v{magic}-{list(reference.CODECS)[data[17]]}")
    for magic, data, records in samples()
]


def outside_crc(data: bytes) -> set[int]:
    """Positions of the offsets of entries, which no CRC covers."""
    found: set[int] = set()
    position = 0
    while position < len(data):
        found |= set(range(position, position + 8))
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    return found


@pytest.mark.parametrize(("data", "records"), SAMPLES)
def test_flipped_byte_is_refused_or_changes_only_offsets(
    data: bytes, records: list[Record]
) -> None:
    may_survive = outside_crc(data)
    without_offsets = [record._replace(offset=0) for record in records]
    for position in range(len(data)):
        for mask in (0x01, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[position] ^= mask
            try:
                found = decoded(bytes(damaged))
            except CorruptRecordError:
                continue
            assert position in may_survive
            assert [record._replace(offset=0) for record in found] == without_offsets


@pytest.mark.parametrize(("data", "records"), SAMPLES)
@pytest.mark.parametrize("columns", [ALL_COLUMNS, OFFSETS], ids=["all", "offset"])
def test_prefix_is_refused_unless_it_ends_with_an_entry(
    data: bytes, records: list[Record], columns: Sequence[str]
) -> None:
    ends = {position for position in outside_crc(data) if position - 1 not in outside_crc(data)}
    for size in range(len(data)):
        if size in ends:
            found = codec.decode(data[:size], columns=columns).num_rows
            assert found == len(reference.decode_messages(data[:size]))
        else:
            with pytest.raises(CorruptRecordError, match=r"truncated|length"):
                codec.decode(data[:size], columns=columns)


@relaxed
@given(message_sets(), st.data())
def test_damage_gives_an_error_and_nothing_worse(
    given_set: tuple[bytes, list[Record]], data: st.DataObject
) -> None:
    sound, records = given_set
    if not sound:
        return
    damaged = data.draw(strategies.corruptions(sound))
    try:
        found = decoded(damaged)
    except CorruptRecordError:
        return
    known = {record._replace(offset=0) for record in records}
    assert {record._replace(offset=0) for record in found} <= known


def wrapper(value: bytes | None, *, magic: int = 1, codec_id: int = 1, offset: int = 9) -> bytes:
    return reference.encode_message(
        Record(offset, 5, None, value), magic=magic, attributes=codec_id
    )


def message(*, magic: int = 1, offset: int = 0, value: bytes = b"v") -> bytes:
    return reference.encode_message(Record(offset, 5, b"k", value), magic=magic)


def lying(change: dict[int, bytes], data: bytes = message()) -> bytes:
    """The message with other bytes at these positions and the right CRC."""
    for position, put in change.items():
        data = data[:position] + put + data[position + len(put) :]
    return reference.with_message_crc(data)


def gzipped(*parts: bytes) -> bytes:
    return reference.compress(1, b"".join(parts))


HUGE, NEGATIVE = b"\x7f\xff\xff\xff", b"\xff\xff\xff\xfe"
LIES = [
    pytest.param(lying({26: HUGE}), "size differs", id="key of 2 GiB"),
    pytest.param(lying({31: HUGE}), "size differs", id="value of 2 GiB"),
    pytest.param(lying({26: b"\0\0\0\2"}), "size differs", id="key too long by one"),
    pytest.param(lying({31: b"\0\0\0\0"}), "size differs", id="value too short by one"),
    pytest.param(lying({31: NEGATIVE}), "size differs", id="null with bytes after it"),
    pytest.param(message()[:8] + b"\0\0\0\x15" + message()[12:], "length", id="size below the least"),
    pytest.param(message()[:8] + NEGATIVE + message()[12:], "length", id="negative size"),
    pytest.param(message()[:8] + HUGE + message()[12:], "length", id="size of 2 GiB"),
    pytest.param(b"\xff" * 8 + message()[8:], "offset", id="negative offset"),
    pytest.param(message(value=b"v" * 30)[:16] + b"\3" + message(value=b"v" * 30)[17:], "magic", id="magic 3"),
    pytest.param(wrapper(None), "value length", id="wrapper of null"),
    pytest.param(wrapper(b""), "gzip", id="wrapper of no bytes"),
    pytest.param(wrapper(gzipped()), "messages in it", id="wrapper of no messages"),
    pytest.param(wrapper(gzipped(message()[:-1])), "messages in it", id="wrapper of a cut message"),
    pytest.param(wrapper(gzipped(message()), codec_id=4), "zstd", id="zstd"),
    pytest.param(wrapper(gzipped(message()), codec_id=4, magic=0), "zstd", id="zstd in v0"),
    pytest.param(wrapper(gzipped(message()), codec_id=5), "codec", id="unknown codec"),
    pytest.param(wrapper(gzipped(wrapper(gzipped(message())))), "no codec", id="wrapper in a wrapper"),
    pytest.param(wrapper(gzipped(message(magic=0))), "the wrapper's magic", id="other magic inside"),
    pytest.param(wrapper(gzipped(message(), message())), "above the one before", id="equal offsets inside"),
    pytest.param(wrapper(gzipped(message(offset=3), message(offset=1))), "above the one before", id="falling offsets inside"),
    pytest.param(wrapper(gzipped(message(offset=-1))), "0 or more", id="negative offset inside"),
    pytest.param(wrapper(gzipped(message(offset=7)), offset=6), "wrapper's offset", id="offset below the last inside"),
    pytest.param(wrapper(gzipped(message()[:8] + b"\0" * 4 + message()[12:])), "size", id="size of 0 inside"),
    pytest.param(wrapper(gzipped(message()[:-1] + b"w")), "CRC-32, 0 bytes into", id="wrong crc inside"),
    pytest.param(wrapper(gzipped(lying({26: HUGE}))), "size differs", id="key of 2 GiB inside"),
    pytest.param(lying({26: HUGE}, wrapper(gzipped(message()))), "key length of a wrapper", id="wrapper with a key of 2 GiB"),
    pytest.param(lying({30: HUGE}, wrapper(gzipped(message()))), "value length of a wrapper", id="wrapper with a value of 2 GiB"),
]  # fmt: skip


@pytest.mark.parametrize(("lie", "what"), LIES)
def test_wrong_number_is_refused_at_its_position(lie: bytes, what: str) -> None:
    before = message()
    with pytest.raises(CorruptRecordError, match=what) as raised:
        codec.decode(before + lie)
    assert raised.value.position >= len(before)


def test_error_tells_which_message_is_damaged_and_both_crcs() -> None:
    one = message()
    damaged = one + message(offset=1) + message(offset=2)[:-1] + b"w"
    with pytest.raises(CorruptRecordError, match="CRC-32") as raised:
        codec.decode(damaged)
    assert raised.value.position == 2 * len(one)
    assert raised.value.expected == f"{int.from_bytes(one[12:16], 'big'):#010x}"
    assert raised.value.found != raised.value.expected


def test_crc_of_every_message_of_a_run_is_checked() -> None:
    data = bytearray(reference.encode_messages(some_records(), magic=1))
    ((position, header),) = walk(data)
    batch_header.ensure_valid(data, position, header)
    data[-1] ^= 1
    with pytest.raises(CorruptRecordError, match="CRC-32"):
        batch_header.ensure_valid(data, position, header)


def test_wrappers_count_with_their_decompressed_size() -> None:
    """A piece ends when it has enough bytes, so a reader never holds many wrappers open."""
    plain = reference.encode_messages(some_records(20), magic=1)
    data = b"".join(
        reference.encode_messages(some_records(20, base_offset=20 * at), magic=1, codec=1)
        for at in range(10)
    )
    parts = list(codec.decode_batches(data, walk(data), columns=ALL_COLUMNS, max_bytes=len(plain)))
    assert [part.num_rows for part in parts] == [20] * 10
    assert pa.Table.from_batches(parts).column("offset").to_pylist() == list(range(200))
