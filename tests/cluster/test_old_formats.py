"""Topics of the formats V0 and V1: written by producers and jobs, and read like any other."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_kbatch import Cluster
from spark_kbatch.clock import now_ms
from spark_kbatch.cluster.job import coordinator_for
from spark_kbatch.errors import (
    ConfigError,
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    KBatchError,
    OffsetsOutOfOrderError,
    RecordTooLargeError,
    UnexpectedAppendOffsetError,
)
from spark_kbatch.files import Files
from spark_kbatch.log.append import append_as_follower
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.truncation import truncate_to
from spark_kbatch.model import ReadRange, TopicPartition
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.options.write import parse_write_options
from spark_kbatch.record import codec
from spark_kbatch.record.header import walk
from tests.support import builders, reference
from tests.support.crashes import sample
from tests.support.reference import Record
from tests.support.store import store_of
from tests.support.topics_of_writes import find_or_create_topic, task_producer

EVENTS = TopicPartition("events", 0)
LOG = "00000000000000000000.log"
MAGICS = [pytest.param(0, id="v0"), pytest.param(1, id="v1")]
CODECS = ["none", "gzip", "snappy", "lz4"]
VERSIONS = {0: "0.9.0", 1: "0.10.2"}


def a_cluster(tmp_path: Path, magic: int, **config: Any) -> Cluster:
    config.setdefault("message_format_version", VERSIONS[magic])
    return builders.a_cluster(tmp_path, config=TopicConfig(**config))


def log_bytes(cluster: Cluster) -> bytes:
    folder = cluster.path / "broker-0" / "events-0"
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


def as_held(rows: pa.RecordBatch, magic: int, base_offset: int = 0) -> list[Record]:
    return [
        record if magic else record._replace(timestamp=-1)
        for record in builders.to_records(rows, base_offset)
    ]


def a_job(cluster: Cluster, *tasks: pa.RecordBatch, **options: str) -> None:
    """Write and commit as a Spark job does, with a task for each table."""
    given = parse_write_options(
        {"path": str(cluster.path), "topic": "events", "flush": "false"}
        | {key.replace("_", "."): value for key, value in options.items()}
    )
    extents = []
    for rows in tasks:
        producer = task_producer(store_of(cluster), "job", given)
        producer.append(rows)
        extents += producer.finish()
    coordinator_for(store_of(cluster), given).commit(extents, transactional_id="job")


# Producers.


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("compression", CODECS)
def test_records_of_a_producer_are_stored_in_the_topics_format(
    tmp_path: Path, magic: int, compression: str
) -> None:
    cluster, rows = a_cluster(tmp_path, magic), builders.rows(n=500, nulls=0.2)
    with cluster.producer(compression_type=compression, batch_size=4_000, flush=False) as producer:
        one = producer.send("events", key=b"k", value=b"v", timestamp=5)
        many = producer.send_arrow("events", rows.drop_columns(["headers"]))
        assert one.result().offset == 0
        assert many.result()["offset"].to_pylist() == list(range(1, 501))

    expected = [Record(0, 5 if magic else -1, b"k", b"v"), *as_held(rows, magic, 1)]
    assert builders.contents(cluster)[EVENTS] == expected
    assert reference.decode_messages(log_bytes(cluster)) == expected
    codecs = {header.codec for _, header in walk(log_bytes(cluster))}
    assert codecs == {reference.CODECS[compression]}


@pytest.mark.parametrize("magic", MAGICS)
def test_a_record_with_headers_is_refused_before_it_is_sent(tmp_path: Path, magic: int) -> None:
    cluster = a_cluster(tmp_path, magic)
    with cluster.producer() as producer:
        with pytest.raises(
            ConfigError, match=r"has headers, which the topic's message.format.version"
        ):
            producer.send("events", b"v", headers=[("h", b"x")])
        with pytest.raises(ConfigError, match="topic 'events' has headers"):
            producer.send_arrow("events", builders.rows(headers=1))
    assert builders.contents(cluster) == {EVENTS: []}


def test_headers_are_accepted_for_another_topic_of_the_same_table(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, 1)
    cluster.create_topic("new")
    rows = builders.rows(n=2, headers=1).to_pylist()
    rows[0]["headers"] = None
    mixed = [row | {"topic": topic} for row, topic in zip(rows, ("events", "new"), strict=True)]
    schema = builders.ROWS_SCHEMA.append(pa.field("topic", pa.string()))
    with cluster.producer() as producer:
        producer.send_arrow(None, pa.RecordBatch.from_pylist(mixed, schema)).result()
        with pytest.raises(ConfigError, match="topic 'events' has headers"):
            producer.send_arrow("events", pa.RecordBatch.from_pylist(mixed, schema))
    found = builders.contents(cluster)
    assert [len(found[TopicPartition(topic, 0)]) for topic in ("events", "new")] == [1, 1]


@pytest.mark.parametrize("magic", MAGICS)
def test_zstd_is_refused_by_name(tmp_path: Path, magic: int) -> None:
    cluster = a_cluster(tmp_path, magic)
    message = "'compression.type' is 'zstd', but topic 'events' has message.format.version"
    with cluster.producer(compression_type="zstd") as producer:
        with pytest.raises(ConfigError, match=message):
            producer.send("events", b"v")
    options = parse_write_options({"path": "/x", "compression.type": "zstd"})
    with pytest.raises(ConfigError, match=message):
        find_or_create_topic(store_of(cluster), "events", options)


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("compression", CODECS)
def test_max_message_bytes_limits_each_entry_of_the_log(
    tmp_path: Path, magic: int, compression: str
) -> None:
    """Plain messages are entries of their own; a wrapper that is too large is split."""
    cluster = a_cluster(tmp_path, magic, max_message_bytes=2_000)
    rows = builders.rows(n=200, value_bytes=200).drop_columns(["headers"])
    with cluster.producer(compression_type=compression, batch_size=50_000) as producer:
        producer.send_arrow("events", rows).result()
        refused = producer.send("events", random.Random(0).randbytes(3_000))
        with pytest.raises(RecordTooLargeError, match=r"more than max.message.bytes=2000"):
            refused.result()

    assert builders.contents(cluster)[EVENTS] == as_held(rows, magic)
    assert max(map(len, entries_of(log_bytes(cluster)))) <= 2_000


def entries_of(data: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(data):
        end = position + 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        yield data[position:end]
        position = end


# Jobs.


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("compression", CODECS)
@pytest.mark.parametrize("adopt_min_bytes", ["0", "8388608"], ids=["own file", "shared file"])
def test_records_of_jobs_are_stored_in_the_topics_format(
    tmp_path: Path, magic: int, compression: str, adopt_min_bytes: str
) -> None:
    cluster = Cluster(str(tmp_path / "cluster"), create=True)
    tasks = [builders.rows(n=400, seed=seed).drop_columns(["headers"]) for seed in range(3)]
    for _ in range(2):
        a_job(
            cluster, *tasks, topic="events", message_format_version=VERSIONS[magic],
            compression_type=compression, batch_size="10000", adopt_min_bytes=adopt_min_bytes,
        )  # fmt: skip

    rows = pa.Table.from_batches(tasks * 2).combine_chunks().to_batches()[0]
    expected = as_held(rows, magic)
    assert builders.contents(cluster)[EVENTS] == expected
    assert reference.decode_messages(log_bytes(cluster)) == expected
    assert {header.magic for _, header in walk(log_bytes(cluster))} == {magic}
    assert (
        store_of(cluster).metadata.topics.topic("events").config.message_format_version
        == VERSIONS[magic]
    )


@pytest.mark.parametrize("magic", MAGICS)
def test_any_range_can_be_read(tmp_path: Path, magic: int) -> None:
    """From index entries, which point at messages, and from the middle of wrappers."""
    cluster = a_cluster(tmp_path, magic, segment_bytes=20_000, index_interval_bytes=500)
    rows = builders.rows(n=600).drop_columns(["headers"])
    for compression in ("none", "gzip"):
        a_job(cluster, rows, topic="events", compression_type=compression, batch_size="3000")
    expected = as_held(rows, magic) + as_held(rows, magic, 600)

    for start in (*range(0, 1_200, 37), 599, 600, 1_199):
        for end in (start, start + 1, start + 150):
            found = [
                record
                for batch in cluster.read("events", start=start, end=min(end, 1_200))
                for record in builders.as_read(batch)
            ]
            assert found == expected[start:end]


@pytest.mark.parametrize("magic", MAGICS)
def test_index_entries_are_those_of_messages_appended_one_by_one(
    tmp_path: Path, magic: int
) -> None:
    """A recovering broker makes such entries: each message and each wrapper counts as a batch."""
    cluster = a_cluster(tmp_path, magic, segment_bytes=8_000, index_interval_bytes=300)
    rows = builders.rows(n=300).drop_columns(["headers"])
    shuffled = rows.take(pa.array(random.Random(1).sample(range(300), 300)))
    a_job(cluster, shuffled, topic="events")
    a_job(cluster, rows, topic="events", compression_type="snappy", batch_size="2000")

    logs = sorted((cluster.path / "broker-0" / "events-0").glob("*.log"))
    assert len(logs) > 3
    for log in logs:
        assert log.stat().st_size <= 8_000
        index, time_index = expected_indexes(log, 300)
        assert list(struct.iter_unpack(">ii", log.with_suffix(".index").read_bytes())) == index
        found = list(struct.iter_unpack(">qi", log.with_suffix(".timeindex").read_bytes()))
        assert found == time_index[: len(found)]
        # The last entry is added when the segment is rolled.
        assert log == logs[-1] or found == time_index


def expected_indexes(
    log: Path, interval_bytes: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    base, position, waiting = int(log.stem), 0, 0
    index, time_index, largest = [], [], (-1, -1)
    for entry in entries_of(log.read_bytes()):
        offset, timestamp = struct.unpack_from(">q10xq", entry)
        if entry[16] and timestamp > largest[0]:
            largest = (timestamp, offset - base)
        if waiting > interval_bytes:
            index.append((offset - base, position))
            if largest[0] > (time_index[-1][0] if time_index else -1):
                time_index.append(largest)
            waiting = 0
        waiting += len(entry)
        position += len(entry)
    if largest[0] > (time_index[-1][0] if time_index else -1):
        time_index.append(largest)
    return index, time_index


# Logs.


@pytest.mark.more_in_soak
@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("compression", CODECS)
def test_a_damaged_byte_of_a_log_is_refused_or_changes_nothing(
    tmp_path: Path, magic: int, compression: str
) -> None:
    cluster, rows = a_cluster(tmp_path, magic), builders.rows(n=9, value_bytes=20)
    rows = rows.drop_columns(["headers"])
    for first in (0, 3, 6):
        a_job(cluster, rows.slice(first, 3), topic="events", compression_type=compression)
    log = store_of(cluster).manager.log(EVENTS)
    path, state = log.directory / LOG, log.state()

    def contents() -> list[Record]:
        found: list[Record] = []
        while len(found) < 9:
            read = log.read(state, ReadRange(len(found), max_bytes=2**20))
            parts = codec.decode_batches(
                read.data, read.batches, columns=codec.RECORD_SCHEMA.names, max_bytes=2**20
            )
            found += [record for part in parts for record in builders.as_read(part)]
        return found

    sound, expected, survivors = path.read_bytes(), contents(), []
    for position in sample(range(len(sound)), 3):
        damaged = bytearray(sound)
        damaged[position] ^= 0x80 >> position % 8
        path.write_bytes(damaged)
        try:
            found = contents()
        except CorruptRecordError:
            continue
        survivors.append((position, found == expected))
    assert [position for position, is_unchanged in survivors if not is_unchanged] == []


def wrapped(records: list[Record], **named: Any) -> bytes:
    return reference.encode_messages(records, magic=1, codec=1, **named)


def records(*offsets: int) -> list[Record]:
    return [Record(offset, 5, b"k", b"v") for offset in offsets]


def test_entries_of_a_client_are_appended(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, 1)
    plain = reference.encode_messages(records(0, 1, 2), magic=1)
    # A client need not give a wrapper an offset.
    for data in (plain, wrapped(records(0, 1)), wrapped(records(0, 1), wrapper_offset=0)):
        answer = builders.append_records(cluster, {("events", 0): data})[EVENTS]
        assert answer.error is None
    assert builders.contents(cluster)[EVENTS] == records(*range(7))


LOG_APPEND_TIME = 8
BAD_ENTRIES = [
    pytest.param(builders.batch(), InvalidRecordError, "has magic 2; accepted: 1", id="batch"),
    pytest.param(reference.encode_messages(records(0), magic=0), InvalidRecordError, "has magic 0", id="v0"),
    pytest.param(b"", InvalidRecordError, "0 messages", id="nothing"),
    pytest.param(wrapped(records(0)) * 2, InvalidRecordError, "several kinds", id="two wrappers"),
    pytest.param(wrapped(records(0)) + reference.encode_messages(records(1), magic=1), InvalidRecordError, "several kinds", id="wrapper and message"),
    pytest.param(reference.encode_messages(records(0, 2), magic=1), InvalidRecordError, "offsets with gaps", id="gap"),
    pytest.param(wrapped(records(0, 2)), InvalidRecordError, "offsets with gaps", id="gap in a wrapper"),
    pytest.param(reference.encode_messages(records(0), magic=1, log_append_time=7), InvalidRecordError, "log append time", id="append time"),
    pytest.param(reference.encode_messages(records(0), magic=1)[:-1] + b"w", CorruptRecordError, "CRC-32", id="wrong crc"),
    pytest.param(reference.encode_messages(records(0), magic=1)[:-1], CorruptRecordError, "length", id="cut off"),
    pytest.param(reference.encode_messages([Record(0, 5, None, b"v" * 3_000)], magic=1), RecordTooLargeError, "takes 3034 bytes", id="too large"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "error", "what"), BAD_ENTRIES)
def test_invalid_entries_are_refused(
    tmp_path: Path, data: bytes, error: type[KBatchError], what: str
) -> None:
    cluster = a_cluster(tmp_path, 1, max_message_bytes=2_000)
    answer = builders.append_records(cluster, {("events", 0): data})[EVENTS]
    assert isinstance(answer.error, error)
    assert what in str(answer.error)
    assert builders.contents(cluster)[EVENTS] == []


def test_a_topic_of_batches_refuses_messages(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    data = reference.encode_messages(records(0), magic=1)
    answer = builders.append_records(cluster, {("events", 0): data})[EVENTS]
    assert "has magic 1; accepted: 2, of message.format.version=3.0" in str(answer.error)


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_a_timestamp_past_a_limit_is_refused(tmp_path: Path, compression: str) -> None:
    cluster = a_cluster(tmp_path, 1, message_timestamp_before_max_ms=1_000)
    codec_id = reference.CODECS[compression]
    old = [Record(0, -1, None, b"v"), Record(1, 5, None, b"v"), Record(2, -1, None, b"v")]
    data = reference.encode_messages(old, magic=1, codec=codec_id)
    answer = builders.append_records(cluster, {("events", 0): data})[EVENTS]
    assert isinstance(answer.error, InvalidTimestampError)


# Followers.


@pytest.mark.parametrize("magic", MAGICS)
def test_a_follower_has_the_bytes_of_its_leader(tmp_path: Path, magic: int) -> None:
    cluster = a_cluster(tmp_path, magic, segment_bytes=5_000)
    rows = builders.rows(n=300).drop_columns(["headers"])
    for compression in ("none", "gzip", "none"):
        a_job(cluster, rows, topic="events", compression_type=compression, batch_size="3000")
    data = log_bytes(cluster)
    follower = PartitionLog(
        Files(), tmp_path / "f", EVENTS, store_of(cluster).manager.log(EVENTS).config
    )
    follower.create("a-topic-id-of-22-chars")

    state = append_as_follower(
        follower, follower.state(), data, high_watermark=900, flush=False, now_ms=0
    ).show()

    assert (state.log_end_offset, state.high_watermark) == (900, 900)
    held = b"".join(path.read_bytes() for path in sorted((tmp_path / "f").glob("*.log")))
    assert held == data
    read = follower.read(state, ReadRange(450, max_bytes=2**20))
    assert read.batches[0][1].base_offset <= 450 <= read.batches[0][1].last_offset


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("codec_id", [0, 1])
@pytest.mark.parametrize("offsets", [(1, 2), (0, 2)], ids=["not the next", "gap"])
def test_a_follower_accepts_only_the_next_offsets(
    tmp_path: Path, magic: int, codec_id: int, offsets: tuple[int, int]
) -> None:
    config = TopicConfig(message_format_version=VERSIONS[magic])
    follower = PartitionLog(Files(), tmp_path / "f", EVENTS, config)
    follower.create("a-topic-id-of-22-chars")
    held = [record._replace(timestamp=-1) for record in records(*offsets)]
    data = reference.encode_messages(held, magic=magic, codec=codec_id)
    with pytest.raises((UnexpectedAppendOffsetError, OffsetsOutOfOrderError)):
        append_as_follower(
            follower, follower.state(), data, high_watermark=2, flush=False, now_ms=0
        )
    assert follower.state().log_end_offset == 0


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("offset", [0, 1, 149, 150, 151, 299, 300, 310, 455])
def test_a_truncated_log_ends_with_a_whole_entry(tmp_path: Path, magic: int, offset: int) -> None:
    cluster = a_cluster(tmp_path, magic, index_interval_bytes=500)
    rows = builders.rows(n=300).drop_columns(["headers"])
    a_job(cluster, rows, topic="events")
    a_job(cluster, rows.slice(0, 160), topic="events", compression_type="lz4", batch_size="3000")
    log = store_of(cluster).manager.log(EVENTS)
    held = reference.decode_messages(log_bytes(cluster))
    ends = [0, *range(1, 301)]
    data = log_bytes(cluster)
    for _, header in walk(data):
        if header.is_wrapper:
            ends.append(header.next_offset)

    state = truncate_to(log, log.state(), offset, now_ms=0)

    assert state.log_end_offset == max(end for end in ends if end <= offset)
    assert reference.decode_messages(log_bytes(cluster)) == held[: state.log_end_offset]
    a_job(cluster, rows.slice(0, 5), topic="events")
    expected = held[: state.log_end_offset] + as_held(rows, magic, state.log_end_offset)[:5]
    assert builders.contents(cluster)[EVENTS] == expected


@pytest.mark.parametrize("together", [False, True])
def test_batch_headers_of_a_segment_are_those_of_its_entries(
    tmp_path: Path, together: bool
) -> None:
    cluster, rows = a_cluster(tmp_path, 1), builders.rows(n=1_000).drop_columns(["headers"])
    a_job(cluster, rows, topic="events")
    a_job(cluster, rows, topic="events", compression_type="gzip")
    log, data = store_of(cluster).manager.log(EVENTS), log_bytes(cluster)

    found = list(log.batch_headers(0, 0, len(data), messages_together=together))

    entries = [header for entry in entries_of(data) for _, header in walk(entry)]
    headers = [header for _, header in found]
    if together:
        assert len(headers) < len(entries) // 50
        assert max(h.max_timestamp for h in headers) == max(h.max_timestamp for h in entries)
        assert headers[-1].last_offset == entries[-1].last_offset
    else:
        assert headers == entries
    assert sum(header.size_in_bytes for _, header in found) == len(data)


# Append times.


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_records_of_v1_may_have_their_append_time(tmp_path: Path, compression: str) -> None:
    cluster = a_cluster(tmp_path, 1, message_timestamp_type="LogAppendTime")
    rows = builders.rows(n=300).drop_columns(["headers"])
    before = now_ms()
    with cluster.producer(compression_type=compression, flush=False) as producer:
        assert producer.send("events", b"v", timestamp=5).result().timestamp >= before
    a_job(cluster, rows, topic="events", compression_type=compression)
    after = now_ms()

    assert builders.contents(cluster)[EVENTS] == reference.decode_messages(log_bytes(cluster))
    (found,) = pa.Table.from_batches(cluster.read("events")).combine_chunks().to_batches()
    assert found.column("timestampType").to_pylist() == [1] * 301
    times = [record.timestamp for record in builders.as_read(found)]
    assert before <= times[0] <= times[1] <= after
    assert set(times[1:]) == {times[1]}
    assert found.column("value").to_pylist() == [b"v", *rows.column("value").to_pylist()]


def test_append_times_are_refused_in_v0() -> None:
    with pytest.raises(ConfigError, match=r"'message.timestamp.type' is 'LogAppendTime'"):
        TopicConfig(message_format_version="0.9.0", message_timestamp_type="LogAppendTime")
