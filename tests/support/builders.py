"""Rows, batches, logs and clusters for tests: valid by default, the same for the same seed."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_kbatch import Cluster
from spark_kbatch.cluster.job import new_staging
from spark_kbatch.commit.coordinator import Coordinator
from spark_kbatch.commit.staging import Extent
from spark_kbatch.files import Buffer, Files
from spark_kbatch.log.append import LogAppender
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.state import LogState
from spark_kbatch.model import CODECS, AppendResult, TopicPartition
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.record import codec
from spark_kbatch.record import columns as arrow
from spark_kbatch.record.builder import RECORD_OVERHEAD_MAX, RecordBatchBuilder
from spark_kbatch.record.header import NO_TIMESTAMP, RECORD_BATCH_OVERHEAD
from tests.support.reference import Record, decode_batches, encode_batch, read_header
from tests.support.store import append_records as append_by
from tests.support.store import reader_of, store_of

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
ROWS_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", pa.int64()),
        ("headers", HEADERS_TYPE),
    ]
)
FIRST_TIMESTAMP_MS = 1_700_000_000_000
JOB = "0123456789abcdef" * 2  # a transaction, as jobs name theirs


def rows(
    *,
    n: int = 3,
    key_bytes: int = 16,
    value_bytes: int = 100,
    nulls: float = 0.0,
    headers: int = 0,
    seed: int = 0,
) -> pa.RecordBatch:
    """Return `n` rows of ROWS_SCHEMA, about a millisecond apart.

    Args:
        n: how many.
        key_bytes: size of every key.
        value_bytes: size of every value; its second half repeats the first, for codecs to find.
        nulls: share of null keys, and of null values, and of null header values.
        headers: headers per row; with none the column is null.
        seed: other seeds give other bytes, times and nulls, of the same sizes.
    """
    rng = random.Random(seed)

    def maybe_null(value: bytes) -> bytes | None:
        return None if rng.random() < nulls else value

    timestamps = [FIRST_TIMESTAMP_MS]
    while len(timestamps) < n:
        timestamps.append(timestamps[-1] + rng.randint(0, 2))
    columns: dict[str, list[Any]] = {
        "key": [maybe_null(_digits(rng, key_bytes)) for _ in range(n)],
        "value": [
            maybe_null((2 * _digits(rng, (value_bytes + 1) // 2))[:value_bytes]) for _ in range(n)
        ],
        "timestamp": timestamps[:n],
        "headers": [
            [{"key": f"h{i}", "value": maybe_null(_digits(rng, 4))} for i in range(headers)] or None
            for _ in range(n)
        ],
    }
    return pa.RecordBatch.from_pydict(columns, schema=ROWS_SCHEMA)


def _digits(rng: random.Random, size: int) -> bytes:
    return rng.randbytes((size + 1) // 2).hex().encode()[:size]


def to_records(rows: pa.RecordBatch, base_offset: int = 0) -> list[Record]:
    """Return the records that these rows are in a log, the first at `base_offset`.

    Columns may be absent, and of Arrow's other string, binary and list types. A null or absent
    timestamp is -1.
    """

    def column(name: str) -> Iterator[Any]:
        if name in rows.schema.names:
            return iter(rows.column(name).to_pylist())
        return iter([None] * rows.num_rows)

    return [
        Record(
            offset,
            -1 if timestamp is None else timestamp,
            _as_bytes(key),
            _as_bytes(value),
            tuple((header["key"], header["value"]) for header in headers or ()),
        )
        for offset, timestamp, key, value, headers in zip(
            range(base_offset, base_offset + rows.num_rows),
            column("timestamp"),
            column("key"),
            column("value"),
            column("headers"),
            strict=True,
        )
    ]


def _as_bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def batch(
    *,
    n: int = 3,
    value_bytes: int = 100,
    compression: str = "none",
    base_offset: int = 0,
    leader_epoch: int = -1,
    seed: int = 0,
) -> bytes:
    """Return one finished batch of `n` rows, as a task stages it."""
    return encode(
        rows(n=n, value_bytes=value_bytes, seed=seed),
        compression=compression,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )


def encode(
    rows: pa.RecordBatch, *, compression: str = "none", base_offset: int = 0, leader_epoch: int = 0
) -> bytes:
    """Encode all rows as one batch.

    Args:
        rows: columns key, value (string or binary), timestamp (int64 ms or timestamp) and headers,
            each optional; a null or absent timestamp is written as -1.
    """

    def column(name: str) -> pa.Array | None:
        return rows.column(name) if name in rows.schema.names else None

    count = rows.num_rows
    columns = arrow.columns(
        count,
        key=column("key"),
        value=column("value"),
        timestamps=arrow.timestamps_ms(column("timestamp"), count, NO_TIMESTAMP),
        headers=column("headers"),
    )
    spans = (columns.key, columns.value, columns.headers)
    size = RECORD_BATCH_OVERHEAD + count * RECORD_OVERHEAD_MAX + sum(len(s.data) for s in spans)
    # Twice, so that there is room for what a codec makes larger.
    builder = RecordBatchBuilder(
        memoryview(bytearray(2 * size)), 0, 2 * size, codec=CODECS[compression] if count else 0
    )
    written = builder.append(columns)
    assert written == count
    builder.close(base_offset=base_offset, leader_epoch=leader_epoch)
    return bytes(builder.data)


def idempotent_batch(
    *,
    base_sequence: int,
    producer_id: int = 7,
    epoch: int = 0,
    n: int = 1,
    key: bytes = b"key",
    value: bytes = b"value",
) -> bytes:
    """Return one finished batch of `n` equal records with sequence numbers, as a producer sends it."""
    return encode_batch(
        [Record(delta, FIRST_TIMESTAMP_MS, key, value) for delta in range(n)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=base_sequence,
    )


def append_records(
    cluster: Cluster,
    entries: Mapping[tuple[str, int], Buffer],
    *,
    required_acks: int = -1,
    flush: bool = False,
    timeout_ms: int = 1000,
    **named: Any,
) -> dict[TopicPartition, AppendResult]:
    """Return what `FolderParts.append_records` answers, and check that it answers once."""
    answers: list[Mapping[TopicPartition, AppendResult]] = []
    append_by(
        store_of(cluster),
        timeout_ms=timeout_ms,
        required_acks=required_acks,
        entries_per_partition={TopicPartition(*place): data for place, data in entries.items()},
        on_complete=answers.append,
        flush=flush,
        **named,
    )
    (answer,) = answers
    return dict(answer)


def a_log(
    tmp_path: Path,
    *,
    batches: int = 3,
    n: int = 3,
    config: TopicConfig | None = None,
    files: Files | None = None,
) -> PartitionLog:
    """Return a log with `batches` batches of `n` records, appended one by one."""
    tp = TopicPartition("events", 0)
    log = PartitionLog(files or Files(), tmp_path / str(tp), tp, config or TopicConfig())
    log.create("a-topic-id-of-22-chars")
    for seed in range(batches):
        append(log, batch(n=n, seed=seed))
    return log


def append(log: PartitionLog, *batches: bytes, now_ms: int = FIRST_TIMESTAMP_MS) -> LogState:
    """Append batches and make them visible, without a flush."""
    appender = LogAppender(log, log.state(), now_ms=now_ms)
    for data in batches:
        appender.append(bytearray(data))
    state = appender.finish(flush=False)
    log.write_state(state, flush=False)
    return state


def a_cluster(
    tmp_path: Path,
    *,
    topics: Mapping[str, int] | None = None,
    config: TopicConfig | None = None,
    files: Files | None = None,
) -> Cluster:
    """Return a cluster with these topics, a partition count by name; by default one topic with one partition."""
    cluster = Cluster(str(tmp_path / "cluster"), create=True, files=files)
    for name, partitions in (topics or {"events": 1}).items():
        cluster.create_topic(name, partitions=partitions, config=config)
    return cluster


def staged(
    cluster: Cluster,
    batches: Mapping[tuple[str, int], Sequence[bytes]],
    *,
    transaction: str = JOB,
    adopt_min_bytes: int = 8 << 20,
    flush: bool = False,
) -> list[Extent]:
    """Return the extents that one task stages for these batches, one partition after the other."""
    staging = new_staging(store_of(cluster), transaction, 8 * adopt_min_bytes, flush=flush)
    try:
        for (topic, partition), parts in batches.items():
            for data in parts:
                count = read_header(data).records_count
                staging.send(store_of(cluster).metadata.topics.topic(topic), partition, data, count)
        return staging.finish()
    except OSError:
        staging.abandon()
        raise


def commit(
    cluster: Cluster,
    extents: Sequence[Extent],
    *,
    transaction: str = JOB,
    adopt_min_bytes: int = 8 << 20,
    flush: bool = False,
) -> None:
    """Commit the staged extents, and clean up."""
    committer = coordinator(cluster, adopt_min_bytes=adopt_min_bytes, flush=flush)
    committer.commit(extents, transactional_id=transaction)
    committer.discard(extents, transaction)


def coordinator(
    cluster: Cluster, *, adopt_min_bytes: int = 8 << 20, flush: bool = False
) -> Coordinator:
    """Return a coordinator that commits staged extents."""
    return Coordinator(
        store_of(cluster).manager,
        lambda: FIRST_TIMESTAMP_MS,
        adopt_min_bytes=adopt_min_bytes,
        flush=flush,
    )


def write(cluster: Cluster, batches: Mapping[tuple[str, int], Sequence[bytes]]) -> None:
    """Run one job of one task."""
    commit(cluster, staged(cluster, batches))


def contents(cluster: Cluster) -> dict[TopicPartition, list[Record]]:
    """Return all records of all topics, each topic from one snapshot."""
    found: dict[TopicPartition, list[Record]] = {}
    for topic in cluster.topics():
        for partition in range(topic.partitions):
            found[TopicPartition(topic.name, partition)] = []
        for wanted in reader_of(cluster).offset_ranges(topic.name):
            for arrow_batch in reader_of(cluster).read_range(wanted, codec.RECORD_SCHEMA.names):
                found[wanted.topic_partition] += as_read(arrow_batch)
    return found


def as_read(arrow_batch: pa.RecordBatch) -> list[Record]:
    """Return the records of a batch with all columns, as decoded or as rows of a read."""
    if pa.types.is_timestamp(arrow_batch.schema.field("timestamp").type):
        times = arrow_batch.column("timestamp").cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
        at = arrow_batch.schema.get_field_index("timestamp")
        arrow_batch = arrow_batch.set_column(at, "timestamp", times)
    return [
        Record(
            row["offset"],
            row["timestamp"],
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"] or ()),
        )
        for row in arrow_batch.to_pylist()
    ]


def read_records(topics: Cluster, topic: str, **bounds: Any) -> list[Record]:
    """Return the records that a read of a topic covers, with any time that a record can have."""
    return [
        record
        for wanted in reader_of(topics).offset_ranges(topic, **bounds)
        for arrow_batch in reader_of(topics).read_range(wanted, codec.RECORD_SCHEMA.names)
        for record in as_read(arrow_batch)
    ]


@functools.cache
def _decoded(data: bytes) -> list[Record]:
    return decode_batches(data)


def records_of(batches: Sequence[bytes]) -> list[Record]:
    """Return the records of a log to which only these batches were written, from offset 0."""
    decoded = [record for data in batches for record in _decoded(data)]
    return [record._replace(offset=offset) for offset, record in enumerate(decoded)]
