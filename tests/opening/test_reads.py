"""Reads in plain Python: which topics, partitions and records; as text; and what other tools make of them."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import spark_kbatch
from spark_kbatch import Cluster, RecordDeserializationError
from spark_kbatch.consumer.rows import ROW_SCHEMA
from spark_kbatch.errors import ConfigError, UnknownTopicOrPartitionError
from spark_kbatch.opening.stores import ensure_selection_exists, open_stream, open_topics
from spark_kbatch.options.read import parse_read_options, parse_stream_read_options
from tests.support import builders
from tests.support.broker_dirs import a_partition, batches
from tests.support.log_histories import History

SOON = 20.0
NOON = datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.UTC)
HOUR, MICROSECOND = datetime.timedelta(hours=1), datetime.timedelta(microseconds=1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """Topics whose records lie an hour apart: eu-0 and eu-1 have three each, us-0 has four, `none` none."""
    cluster = builders.a_cluster(
        tmp_path_factory.mktemp("reads"), topics={"eu": 2, "us": 1, "none": 1}
    )
    with cluster.producer(flush=False) as producer:
        for topic, count in (("eu", 6), ("us", 4)):
            rows = {
                "key": [f"{topic}{number}" for number in range(count)],
                "value": [f"{number}" for number in range(count)],
                "partition": [number % 2 * (topic == "eu") for number in range(count)],
                "timestamp": pa.array([NOON + HOUR * number for number in range(count)]),
            }
            producer.send_arrow(topic, rows).result(SOON)
    return cluster


def keys(cluster: Cluster, topics: Any, **asked: Any) -> list[str]:
    found = cluster.read(topics, columns=["key"], text=True, **asked).read_all()
    keys: list[str] = found.column("key").to_pylist()
    return keys


# Which records.


@pytest.mark.parametrize(
    ("topics", "asked", "found"),
    [
        (["us", "eu", "us"], {"last": 1}, "us3 eu4 eu5"),
        (re.compile("u"), {"start": NOON + 4 * HOUR}, "eu4 eu5"),
        (re.compile("^.s"), {"end": 2}, "us0 us1"),
        (re.compile("nothing"), {}, ""),
        ([], {}, ""),
        (("eu", "us"), {"partitions": [0], "end": 1}, "eu0 us0"),
        (["eu", "us"], {"start": {("eu", 0): 2, ("eu", 1): "earliest", ("us", 0): NOON + 3 * HOUR}},
         "eu4 eu1 eu3 eu5 us3"),
        ("eu", {"start": {("eu", 0): 1, ("eu", 1): 2}, "end": {0: "latest", 1: 3}}, "eu2 eu4 eu5"),
        ("us", {"start": NOON + HOUR, "end": NOON + 3 * HOUR}, "us1 us2"),
        ("us", {"start": NOON + HOUR + MICROSECOND, "end": NOON + 2 * HOUR + MICROSECOND}, "us2"),
        ("us", {"start": pd.Timestamp("2024-01-01T16:00:01", tz="Europe/Athens"), "end": 4}, "us3"),
        ("us", {"start": NOON + 9 * HOUR}, ""),
        ("us", {"end": NOON + 9 * HOUR, "last": 3}, "us1 us2 us3"),
        ("us", {"start": datetime.datetime.min.replace(tzinfo=datetime.UTC), "end": 1}, "us0"),
        ("eu", {"last": 2, "end": {0: 3, 1: 1}}, "eu2 eu4 eu1"),
        ("eu", {"last": 99, "partitions": [1]}, "eu1 eu3 eu5"),
    ],
    ids=[
        "several topics", "a pattern and a time", "an anchored pattern", "a pattern without match",
        "no topics", "partitions of several", "bounds by topic", "bounds by both", "from time to time",
        "rounded up", "a time of pandas", "after all", "before all that comes", "before 1970",
        "the last of ranges", "more than there are",
    ],
)  # fmt: skip
def test_a_read_takes_topics_and_bounds_of_all_kinds(
    cluster: Cluster, topics: Any, asked: dict[str, Any], found: str
) -> None:
    assert keys(cluster, topics, **asked) == found.split()


@pytest.mark.parametrize(
    ("topics", "asked", "words"),
    [
        (re.compile(b"u"), {}, "topics is re.compile"),
        (["us", 5], {}, "topics is"),
        (["eu", "us"], {"start": {0: 1}}, "a partition in start is 0; accepted: .* several topics"),
        (["eu", "us"], {"end": {("eu", 0): 1}}, "end names the partitions eu-0, but .* eu-1, us-0"),
        ("us", {"start": 1, "last": 2}, "start and last are both given"),
        ("us", {"last": 0}, "last is 0"),
        ("us", {"text": "ignore"}, "text is 'ignore'; accepted: True, False, 'replace'"),
        ("us", {"start": NOON + 3 * HOUR, "end": 1}, "is 3, by its time 2024.*, after its end, 1"),
    ],
    ids=[
        "a pattern of bytes", "a number among names", "numbers for several topics", "too few bounds",
        "two starts", "none of the last", "another error handler", "a time after the end",
    ],
)  # fmt: skip
def test_a_read_refuses_what_it_cannot_mean(
    cluster: Cluster, topics: Any, asked: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        cluster.read(topics, **asked)
    with pytest.raises(UnknownTopicOrPartitionError, match=r"'nothing' does not exist .* eu"):
        cluster.read(["us", "nothing"])


@pytest.mark.parametrize("isolation_level", ["read_committed", "read_uncommitted"])
def test_the_last_records_are_counted_where_offsets_have_none(
    tmp_path: Path, isolation_level: str
) -> None:
    """A transaction's marker has an offset, and an aborted one's records are not read."""
    history = History()
    for number in range(9):
        history.append(number % 3, transactional=number % 3 > 0, n=1 + number % 4)
        if number % 3:
            history.end(number % 3, abort=number % 2 == 0)
    a_partition(tmp_path / "t-0", {0: [one.data for one in history.written]})

    with spark_kbatch.open(tmp_path) as logs:

        def offsets(**asked: Any) -> list[int]:
            rows = logs.read("t", columns=["offset"], isolation_level=isolation_level, **asked)
            found: list[int] = rows.read_all().column("offset").to_pylist()
            return found

        all_of = offsets()
        assert len(all_of) < history.end_offset - 3
        for count in range(1, len(all_of) + 2):
            assert offsets(last=count) == all_of[-count:], count


# As text, and in other tools.


def test_text_that_is_not_utf_8_is_an_error_in_the_middle_of_a_read(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    with cluster.producer(flush=False) as producer:
        producer.send("events", "é", key="k")
        producer.send("events", b"\xff").result(SOON)
    assert keys(cluster, "events") == ["k", None]
    rows = cluster.read("events", columns=["value", "offset"], text=True)
    with pytest.raises(
        RecordDeserializationError,
        match="the value of events-0 at offset 1 cannot be decoded: 0xff is not UTF-8",
    ):
        rows.read_all()
    table = cluster.read("events", columns=["value", "offset"], text="replace").read_all()
    assert table.schema == pa.schema([("value", pa.string()), ("offset", pa.int64())])
    assert table.column("value").to_pylist() == ["é", "\ufffd"]


def of_duckdb(rows: pa.RecordBatchReader) -> pa.Table:
    with duckdb.connect() as database:
        return database.sql("SELECT * FROM rows").to_arrow_table()


def of_dataset(rows: pa.RecordBatchReader) -> pa.Table:
    return ds.Scanner.from_batches(rows).to_table()


@pytest.mark.parametrize(
    "tool",
    [
        lambda rows: pl.from_arrow(rows).to_arrow(),  # type: ignore[union-attr]
        lambda rows: pl.DataFrame(rows).to_arrow(),
        of_duckdb,
        of_dataset,
        lambda rows: pa.Table.from_pandas(rows.read_pandas(), schema=ROW_SCHEMA),
        lambda rows: pa.RecordBatchReader.from_stream(rows).read_all(),
    ],
    ids=["from_arrow of Polars", "a frame of Polars", "DuckDB", "a dataset", "pandas", "a stream"],
)
@pytest.mark.parametrize("topic", ["us", "none"])
def test_other_tools_take_a_read_as_it_is(
    cluster: Cluster, tool: Callable[[pa.RecordBatchReader], pa.Table], topic: str
) -> None:
    """Also one without records: they learn the columns from it."""
    wanted = cluster.read(topic).read_all()
    found = tool(cluster.read(topic))
    assert found.num_rows == wanted.num_rows == (4 if topic == "us" else 0)
    assert found.schema.names == wanted.schema.names == ROW_SCHEMA.names
    assert found.cast(ROW_SCHEMA).to_pylist() == wanted.to_pylist()
    assert found.schema.field("timestamp").type.unit == "us"


def test_a_read_of_nothing_has_one_batch_which_has_the_columns(cluster: Cluster) -> None:
    for columns in (["value", "offset"], []):
        (batch,) = cluster.read("none", columns=columns)
        assert (batch.num_rows, batch.schema.names) == (0, columns)


# As Spark's options say.


@pytest.fixture(params=["a cluster's folder", "a broker's log dir", "a cluster's servers"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Make topics, eu-0 and eu-1 with two records each and us-0 with four; yield how to name them."""
    if request.param == "a broker's log dir":
        for name, count in (("eu-0", 2), ("eu-1", 2), ("us-0", 4)):
            a_partition(tmp_path / name, {0: batches(0, count)})
        yield {"path": str(tmp_path)}
        return
    cluster = builders.a_cluster(tmp_path, topics={"eu": 2, "us": 1})
    with cluster.producer(flush=False) as producer:
        producer.send_arrow("eu", {"value": ["a"] * 4, "partition": [0, 0, 1, 1]}).result(SOON)
        producer.send_arrow("us", {"value": ["a"] * 4}).result(SOON)
    if request.param == "a cluster's folder":
        yield {"path": str(cluster.path)}
        return
    with cluster.serve() as server:
        yield {"kafka.bootstrap.servers": server.bootstrap_servers}


def test_a_word_for_a_topic_is_its_start_or_end_wherever_the_topic_lies(
    place: dict[str, str],
) -> None:
    wanted = {"subscribePattern": "^(eu|us)$", "startingOffsets": '{"eu":"earliest","us":{"0":1}}'}
    ends = {"endingOffsets": '{"eu":{"0":1,"1":2},"us":"latest"}'}
    options = parse_read_options(place | wanted | ends)
    reader = open_topics(options)
    rows = [
        (row["topic"], row["partition"], row["offset"])
        for task in reader.plan(options)
        for batch in reader.read_task(task, ["topic", "partition", "offset"], options, "action")
        for row in batch.to_pylist()
    ]
    assert rows == [
        ("eu", 0, 0),
        ("eu", 1, 0),
        ("eu", 1, 1),
        ("us", 0, 1),
        ("us", 0, 2),
        ("us", 0, 3),
    ]

    starts = {"startingOffsets": '{"eu":"latest","us":"earliest"}'}
    initial = open_stream(parse_stream_read_options(place | wanted | starts)).initial()
    assert {topic: initial[topic] for topic in ("eu", "us")} == {
        "eu": {"0": 2, "1": 2},
        "us": {"0": 0},
    }


def test_a_topic_that_is_not_there_yet_is_refused_at_once_and_waited_for_by_a_pattern(
    place: dict[str, str],
) -> None:
    """`load()` asks this; docs/from-kafka.md says so."""
    with pytest.raises(
        UnknownTopicOrPartitionError, match="'subscribe': topic 'su' does not exist"
    ):
        ensure_selection_exists(parse_read_options(place | {"subscribe": "su"}), is_batch=False)
    waits = parse_read_options(place | {"subscribePattern": "^su$"})
    ensure_selection_exists(waits, is_batch=False)
