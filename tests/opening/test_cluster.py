"""A cluster opened by its PATH: topics, reads, descriptions and offsets by time."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_kbatch
from spark_kbatch.cluster.job import coordinator_for
from spark_kbatch.consumer.rows import ROW_SCHEMA
from spark_kbatch.errors import (
    ConfigError,
    CorruptRecordError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.options.write import parse_write_options
from tests.support import builders
from tests.support.builders import batch, to_records
from tests.support.store import store_of
from tests.support.topics_of_writes import find_or_create_topic, task_producer


def write_rows(cluster: spark_kbatch.Cluster, rows: pa.RecordBatch, **options: str) -> None:
    """Write and commit rows as a task of a Spark job and then the driver do."""
    parsed = parse_write_options(
        {"path": str(cluster.path), "flush": "false"}
        | {key.replace("_", "."): value for key, value in options.items()}
    )
    producer = task_producer(store_of(cluster), "job", parsed)
    producer.append(rows)
    extents = producer.finish()
    coordinator_for(store_of(cluster), parsed).commit(extents, transactional_id="job")


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_written_rows_are_read_back(tmp_path: Path, compression: str) -> None:
    rows = builders.rows(n=500, nulls=0.2, headers=2)
    with spark_kbatch.open(str(tmp_path / "cluster"), create=True) as cluster:
        write_rows(
            cluster, rows, topic="events", num_partitions="3", compression_type=compression,
            batch_size="2000", adopt_min_bytes="5000",
        )  # fmt: skip
    found = builders.contents(spark_kbatch.open(str(tmp_path / "cluster")))
    assert len(found) == 3
    for records in found.values():
        assert [record.offset for record in records] == list(range(len(records)))
    everything = [record._replace(offset=0) for records in found.values() for record in records]
    assert sorted(everything, key=repr) == sorted(
        (record._replace(offset=0) for record in to_records(rows)), key=repr
    )


def test_a_task_with_many_partitions_gives_each_one_batch(tmp_path: Path) -> None:
    """There are more partitions than buffer.memory has room for batches of batch.size."""
    cluster = builders.a_cluster(tmp_path, topics={"events": 100})
    numbers = pa.array(list(range(100)) * 10, pa.int32())
    rows = pa.record_batch({"value": [b"v" * 100] * 1000, "partition": numbers})
    options = parse_write_options({"path": str(cluster.path), "topic": "events", "flush": "false"})
    producer = task_producer(store_of(cluster), "job", options)
    producer.append(rows)
    assert [extent.records_count for extent in producer.finish()] == [10] * 100


def test_a_topic_with_the_longest_name_works(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"t" * 249: 2})
    place = ("t" * 249, 1)
    extents = builders.staged(cluster, {place: [batch(), batch()]}, adopt_min_bytes=1)
    builders.commit(cluster, extents, adopt_min_bytes=1)
    assert len(builders.contents(cluster)[TopicPartition(*place)]) == 6


def test_a_dotted_topic_is_not_taken_for_another(tmp_path: Path) -> None:
    names = ["a", "a.b", "a.b.json", "a.tmp", "a-0", "commit", "metadata"]
    cluster = builders.a_cluster(tmp_path, topics=dict.fromkeys(names, 1))
    for number, name in enumerate(names):
        builders.write(cluster, {(name, 0): [batch(n=number + 1)]})
    assert [topic.name for topic in cluster.topics()] == sorted(names)
    found = builders.contents(cluster)
    assert [len(found[TopicPartition(name, 0)]) for name in names] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("name", ["../x", "", ".", "..", "a/b", "a b", "é", "t" * 250, "a\0"])
def test_a_topic_name_that_kafka_refuses_creates_nothing(tmp_path: Path, name: str) -> None:
    cluster = builders.a_cluster(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    options = parse_write_options({"path": str(cluster.path)})
    for use in (
        lambda: cluster.create_topic(name),
        lambda: find_or_create_topic(store_of(cluster), name, options),
        lambda: list(cluster.read(name)),
        lambda: cluster.describe([name]),
    ):
        with pytest.raises(InvalidTopicError, match="topic name"):
            use()
    assert sorted(tmp_path.rglob("*")) == before


def test_internal_topics_cannot_be_created_or_written(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    options = parse_write_options({"path": str(cluster.path)})
    for name in ("__transaction_state", "__new"):
        with pytest.raises(ConfigError, match="is the cluster's own"):
            cluster.create_topic(name)
        with pytest.raises(ConfigError, match="is the cluster's own"):
            find_or_create_topic(store_of(cluster), name, options)
    assert store_of(cluster).metadata.topics.names(internal=True) == [
        "__commits",
        "__transaction_state",
        "events",
    ]


def test_a_topic_is_created_once_and_has_partitions(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    with pytest.raises(ConfigError, match="'events' already exists"):
        cluster.create_topic("events")
    for partitions in (0, -1):
        with pytest.raises(ConfigError, match="a whole number from 1 to"):
            cluster.create_topic("another", partitions=partitions)
    topic = cluster.create_topic("third", partitions=2, config=TopicConfig(segment_bytes=7))
    assert cluster.topics()[1] == topic


def test_a_topic_is_created_with_settings_under_kafkas_keys(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    topic = cluster.create_topic("kept", config={"retention.ms": "1000", "segment.ms": 5})
    assert topic.config == TopicConfig(retention_ms=1000, segment_ms=5)
    with pytest.raises(ConfigError, match=r"unknown option 'retention'.* 'retention\.ms'"):
        cluster.create_topic("another", config={"retention": 1})


def test_a_write_to_a_topic_with_other_settings_is_refused(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    given = {"path": str(cluster.path), "retention.ms": "5", "segment.bytes": "1048576"}
    made = find_or_create_topic(store_of(cluster), "made", parse_write_options(given))
    assert made.config == TopicConfig(retention_ms=5, segment_bytes=1 << 20)
    assert find_or_create_topic(store_of(cluster), "made", parse_write_options(given)) == made
    assert (
        find_or_create_topic(
            store_of(cluster), "made", parse_write_options({"path": given["path"]})
        )
        == made
    )
    for key, existing in (("retention.ms", -1), ("segment.bytes", 1 << 30)):
        options = parse_write_options({"path": given["path"], key: given[key]})
        with pytest.raises(ConfigError) as error:
            find_or_create_topic(store_of(cluster), "events", options)
        assert str(error.value).startswith(
            f"option {key!r} is {given[key]}, but topic 'events' exists with {existing}; leave"
        )


@pytest.fixture
def cluster(tmp_path: Path) -> spark_kbatch.Cluster:
    """A cluster with twelve records in partition 0, three in 1, and none in 2."""
    cluster = builders.a_cluster(tmp_path, topics={"events": 3})
    builders.write(cluster, {("events", 0): [batch()] * 4, ("events", 1): [batch()]})
    return cluster


def offsets(batches: list[pa.RecordBatch]) -> list[tuple[int, int]]:
    return [
        (row["partition"], row["offset"])
        for arrow_batch in batches
        for row in arrow_batch.to_pylist()
    ]


def test_partitions_are_read_one_after_the_other(cluster: spark_kbatch.Cluster) -> None:
    everything = [(0, n) for n in range(12)] + [(1, n) for n in range(3)]
    assert offsets(list(cluster.read("events"))) == everything
    both = ["partition", "offset"]
    assert offsets(list(cluster.read("events", columns=both))) == everything
    assert offsets(list(cluster.read("events", partitions=[1]))) == everything[12:]
    assert offsets(list(cluster.read("events", partitions=[]))) == []


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        (0, 12, range(12)),
        ("earliest", 5, range(5)),
        (7, "latest", range(7, 12)),
        (4, 5, [4]),
        (12, "latest", []),
        (3, 3, []),
    ],
    ids=["all", "earliest", "latest", "one", "at the end", "none"],
)
def test_a_range_includes_its_start_and_excludes_its_end(
    cluster: spark_kbatch.Cluster, start: int | str, end: int | str, found: list[int]
) -> None:
    batches = list(cluster.read("events", partitions=[0], start=start, end=end))
    assert offsets(batches) == [(0, offset) for offset in found]


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        (
            {"start": "latest"},
            "start is 'latest'; accepted: 'earliest', an offset from 0 on, or a time",
        ),
        (
            {"end": "earliest"},
            "end is 'earliest'; accepted: 'latest', an offset from 0 on, or a time",
        ),
        ({"start": -1}, "start is -1"),
        ({"end": -2}, "end is -2"),
    ],
    ids=["a word for the end", "a word for the start", "a sentinel", "the other sentinel"],
)
def test_other_bounds_are_refused(
    cluster: spark_kbatch.Cluster, bounds: dict[str, int | str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        list(cluster.read("events", **bounds))


def test_a_start_past_the_end_of_the_log_is_out_of_range(cluster: spark_kbatch.Cluster) -> None:
    with pytest.raises(OffsetOutOfRangeError, match=r"offset 13 of events-0 .* offsets 0 to 12"):
        list(cluster.read("events", partitions=[0], start=13))


def test_errors_name_topics_and_partitions_that_do_not_exist(cluster: spark_kbatch.Cluster) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match=r"'nothing' does not exist .* events"):
        list(cluster.read("nothing"))
    with pytest.raises(UnknownTopicOrPartitionError, match="partitions 0 to 2"):
        cluster.read("events", partitions=[3])
    with pytest.raises(ConfigError, match=r"a number in partitions is -1; .* from 0 to"):
        cluster.read("events", partitions=[-1])


@pytest.mark.parametrize(
    ("bounds", "found"),
    [
        ({"start": {0: 11, 1: 2, 2: "earliest"}}, [(0, 11), (1, 2)]),
        ({"end": {0: 1, 1: "latest", 2: 0}}, [(0, 0), (1, 0), (1, 1), (1, 2)]),
        ({"start": {1: 1}, "end": {1: 2}, "partitions": [1]}, [(1, 1)]),
        ({"start": {}, "partitions": []}, []),
    ],
    ids=["starts", "ends", "both of one partition", "of no partition"],
)
def test_bounds_may_be_given_by_partition(
    cluster: spark_kbatch.Cluster, bounds: dict[str, Any], found: list[tuple[int, int]]
) -> None:
    assert offsets(list(cluster.read("events", **bounds))) == found


@pytest.mark.parametrize(
    ("bounds", "error", "words"),
    [
        ({"start": {0: 5}}, ConfigError, "start names the partitions events-0, but what is read has events-0, events-1"),
        ({"end": {0: 5, 3: 1}, "partitions": [0]}, ConfigError, "end names the partitions events-0, events-3"),
        ({"start": {0: 5, 1: "latest", 2: 0}}, ConfigError, "start of events-1 is 'latest'"),
        ({"start": {"0": 5}}, ConfigError, "a partition in start is '0'"),
        ({"start": 4, "end": 3}, ConfigError, r"start of events-0 is 4, after its end, 3"),
        (
            {"start": 4},
            OffsetOutOfRangeError,
            r"offset 4 of events-1 .* 0 to 3 \(exclusive\); out of range, too, in events-2 \(0 to 0\)",
        ),
        ({"end": 13}, OffsetOutOfRangeError, r"offset 13 of events-0 .* too, in events-1 .* events-2"),
        ({"columns": ["offset", "partiton"]}, ConfigError, "'partiton'.* nearest is 'partition'"),
        ({"columns": ["timestamp_type"]}, ConfigError, "nearest is 'timestampType'"),
        ({"columns": "value"}, ConfigError, "columns is 'value'; accepted: a list of columns"),
        ({"columns": ["key", "key"]}, ConfigError, "columns names 'key' twice"),
        ({"partitions": 0}, ConfigError, r"partitions is 0; accepted: partition numbers, such as \[0"),
        ({"partitions": ["0"]}, ConfigError, "a number in partitions is '0'"),
        ({"start": datetime.datetime(2024, 1, 1)}, ConfigError, "start is 2024-01-01 00:00:00, which has no time zone"),  # noqa: DTZ001
        ({"start": True}, ConfigError, "start is True"),
        ({"end": 2.0}, ConfigError, "end is 2.0"),
        ({"isolation_level": None}, ConfigError, "isolation_level is None"),
    ],
    ids=[
        "starts of too few", "ends of too many", "a word", "text for a number", "backwards",
        "a start that two lack", "an end that all lack", "a misspelt column", "another name",
        "text for a list", "a column twice", "a number for a list", "text in a list", "a time",
        "a truth", "a fraction", "no isolation",
    ],
)  # fmt: skip
def test_a_read_is_refused_before_its_first_record(
    cluster: spark_kbatch.Cluster, bounds: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        cluster.read("events", **bounds)


def test_a_read_has_sparks_columns_or_only_the_named_ones(
    cluster: spark_kbatch.Cluster,
) -> None:
    rows = cluster.read("events")
    assert rows.schema == ROW_SCHEMA
    table = rows.read_all()
    assert table.schema == ROW_SCHEMA
    assert table.num_rows == 15
    assert table.column("timestamp")[0].as_py() == datetime.datetime.fromtimestamp(
        builders.FIRST_TIMESTAMP_MS / 1000, datetime.UTC
    )
    assert table.column("topic").unique().to_pylist() == ["events"]
    for columns in (["partition"], ["topic"], ["timestampType"], ["value", "key"], ["timestamp"]):
        named = cluster.read("events", columns=columns).read_all()
        assert named == table.select(columns)
    assert sum(b.num_rows for b in cluster.read("events", columns=[])) == 15


def test_a_read_of_nothing_is_a_table_with_all_columns(cluster: spark_kbatch.Cluster) -> None:
    table = cluster.read("events", partitions=[2]).read_all()
    assert table.num_rows == 0
    assert table.schema == ROW_SCHEMA


def test_a_read_is_an_arrow_stream(cluster: spark_kbatch.Cluster) -> None:
    """DuckDB and Polars read such a stream."""
    stream = pa.RecordBatchReader.from_stream(cluster.read("events", columns=["offset"]))
    assert stream.read_all().num_rows == 15


def test_an_error_in_the_middle_of_a_read_is_raised_unchanged(
    cluster: spark_kbatch.Cluster,
) -> None:
    rows = cluster.read("events", columns=["value"])
    (log,) = Path(cluster.path, "broker-0", "events-1").glob("*.log")
    log.write_bytes(log.read_bytes()[:-1] + b"\xff")
    assert next(rows).num_rows == 12
    with pytest.raises(CorruptRecordError, match="CRC") as error:
        next(rows)
    assert error.value.path == str(log)


def test_a_description_has_the_edges_and_sizes_of_every_partition(
    cluster: spark_kbatch.Cluster,
) -> None:
    described = cluster.describe(["events"])
    assert [(str(d.topic_partition), d.offsets.high_watermark) for d in described] == [
        ("events-0", 12),
        ("events-1", 3),
        ("events-2", 0),
    ]
    size = len(batch())
    assert [d.size_in_bytes for d in described] == [4 * size, size, 0]


# Offsets by time.


def test_offsets_are_listed_by_time_and_by_edge(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"events": 2, "empty": 1})
    builders.write(cluster, {("events", 0): [builders.batch(n=40)]})
    records = builders.contents(cluster)[TopicPartition("events", 0)]
    zero, one, empty = (
        TopicPartition("events", 0),
        TopicPartition("events", 1),
        TopicPartition("empty", 0),
    )
    middle = records[20].timestamp
    first = next(record for record in records if record.timestamp >= middle)

    assert cluster.list_offsets({zero: middle, one: middle}) == {
        zero: (first.offset, first.timestamp), one: None,
    }  # fmt: skip
    for words in ("earliest", "latest", "max_timestamp"), (-2, -1, -3):
        found = [cluster.list_offsets({zero: word, empty: word}) for word in words]
        last = max(records, key=lambda record: record.timestamp)
        assert [answer[zero] for answer in found] == [
            (0, -1),
            (40, -1),
            (last.offset, last.timestamp),
        ]
        assert [answer[empty] for answer in found] == [(0, -1), (0, -1), None]


@pytest.mark.parametrize("asked", ["newest", -4])
def test_other_words_and_numbers_are_refused_as_times(tmp_path: Path, asked: int | str) -> None:
    cluster = builders.a_cluster(tmp_path)
    with pytest.raises(ConfigError, match=repr(asked)):
        cluster.list_offsets({TopicPartition("events", 0): asked})
