"""Reads with a condition: the same rows as without one and a filter, with less that is read."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.columns.reading import Scan, pinned, pinned_where
from spark_kbatch.condition.binding import Bound
from spark_kbatch.consumer import matching, reading
from spark_kbatch.consumer.rows import ROW_SCHEMA, Rows
from spark_kbatch.consumer.stream_planner import StreamPlanner
from spark_kbatch.errors import (
    ConfigError,
    CorruptRecordError,
    DataLossError,
    RecordDeserializationError,
)
from spark_kbatch.model import OffsetRange
from spark_kbatch.opening.stores import open_for_reading
from spark_kbatch.options.read import parse_read_options, parse_stream_read_options
from spark_kbatch.record.header import LOG_APPEND_TIME
from tests.consumer.test_batch_reads import recreate, write
from tests.consumer.test_reading import A0, ListFetcher
from tests.support import builders, reference
from tests.support.broker_dirs import a_partition
from tests.support.store import reader_of

T = "TIMESTAMP '1970-01-01 00:00:00.{:06}Z'"  # of so many us


class Load:
    """A plan of a batch with a condition, and actions that read it, as Spark does."""

    def __init__(self, topics: Cluster, where: str, **options: str) -> None:
        given = {"path": str(topics.path), "subscribe": "t", **options, "where": where}
        self._options = parse_read_options(given)
        columns = pinned(self._options.values)
        where = pinned_where(self._options.where, columns)
        self._scan = Scan(["partition", "offset"], columns, where)
        self.reader = reader_of(topics)
        self.tasks = self.reader.plan(self._options, self._scan.condition)

    def ranges(self) -> list[tuple[int, int, int]]:
        """Return the pieces of all tasks: partition, start and end."""
        found = [piece.wanted for task in self.tasks for piece in task]
        return [(one.topic_partition.partition, one.start, one.end) for one in found]

    def collect(self, action: str = "1") -> list[tuple[int, int]]:
        """Return partition and offset of all rows."""
        names = self._scan.names
        typed, where = self._scan.decoders()
        return [
            (row["partition"], row["offset"])
            for task in self.tasks
            for batch in self.reader.read_task(task, names, self._options, action, typed, where)
            for row in batch.to_pylist()
        ]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """A cluster whose topic `t` has 10, 7 and 4 records; a record's time is its offset."""
    made = Cluster(str(tmp_path), create=True)
    made.create_topic("t", partitions=3)
    write(made, {0: 10, 1: 7, 2: 4})
    return made


def test_partitions_and_offsets_that_cannot_match_are_no_pieces(cluster: Cluster) -> None:
    assert Load(cluster, "partition = 1").ranges() == [(1, -2, -1)]
    assert Load(cluster, "partition IN (0, 2) AND offset > 3.5").ranges() == [
        (0, 4, -1),
        (2, 4, -1),
    ]
    assert Load(cluster, "topic = 'u'").ranges() == []
    assert Load(cluster, "offset < 0").ranges() == []
    both = {
        "startingOffsets": '{"t":{"0":5,"1":5,"2":1}}',
        "endingOffsets": '{"t":{"0":8,"1":6,"2":3}}',
    }
    load = Load(cluster, "offset BETWEEN 2 AND 6", **both)
    assert load.ranges() == [(0, 5, 7), (1, 5, 6), (2, 2, 3)]
    assert load.collect() == [(0, 5), (0, 6), (1, 5), (2, 2)]
    split = Load(
        cluster, "partition = 0 AND offset >= 4", maxRecordsPerPartition="2", minPartitions="3"
    )
    assert split.collect() == [(0, one) for one in range(4, 10)]
    assert len(split.tasks) == 3


def test_a_plan_that_is_used_again_sees_what_came_since(cluster: Cluster) -> None:
    load = Load(cluster, f"timestamp >= {T.format(8001)}")
    assert load.ranges() == [(0, 9, -1), (1, 7, -1), (2, 4, -1)]
    assert load.collect("1") == [(0, 9)]
    write(cluster, {2: 8})
    assert load.collect("2") == [(0, 9), (2, 9), (2, 10), (2, 11)]
    assert Load(cluster, f"timestamp < {T.format(1000)}").collect() == [(0, 0), (1, 0), (2, 0)]


def test_deleted_records_are_no_loss_to_a_piece_that_starts_later(cluster: Cluster) -> None:
    load = Load(cluster, f"timestamp >= {T.format(4000)} AND partition = 0")
    cluster.delete_records({("t", 0): 6})
    assert load.collect() == [(0, one) for one in range(6, 10)]


def test_a_start_by_time_is_not_used_for_a_topic_that_was_recreated(cluster: Cluster) -> None:
    where = f"timestamp >= {T.format(4000)}"
    strict, lenient = Load(cluster, where), Load(cluster, where, failOnDataLoss="false")
    assert strict.collect() == lenient.collect()
    recreate(cluster)
    with pytest.raises(DataLossError, match="'t' was deleted and created"):
        strict.collect("2")
    assert lenient.collect("2") == []


def test_a_topic_without_an_id_may_be_another_one_when_it_is_read_again(tmp_path: Path) -> None:
    """Such are those of old brokers; then nothing is left out by a time that an index told."""
    folder = a_partition(tmp_path / "t-0", {0: _batches([[1], [2], [9], [3]])}, index=False)
    has_id = Load(open_for_reading(str(tmp_path)), f"timestamp >= {T.format(8000)}")
    assert has_id.ranges() == [(0, 2, -1)]
    (folder / "partition.metadata").unlink()
    load = Load(open_for_reading(str(tmp_path)), f"timestamp >= {T.format(8000)} AND offset < 9")
    assert load.ranges() == [(0, -2, 9)]
    assert load.collect("1") == [(0, 2)]
    (folder / f"{0:020d}.log").write_bytes(b"".join(_batches([[9], [1, 9]])))
    load.reader = reader_of(open_for_reading(str(tmp_path)))
    assert load.collect("2") == [(0, 0), (0, 2)]


def test_topics_that_are_not_read_are_told(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    where = "topic IN ('t', 'u')"
    with caplog.at_level(logging.WARNING):
        assert Load(cluster, where).collect()
    (told,) = caplog.messages
    assert "not read: u; read are: t" in told
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert cluster.read("t", where=where).read_all().num_rows
    (told,) = caplog.messages
    assert "not read: u; read are: t" in told
    caplog.clear()
    planner, condition = _stream(cluster, where, maxOffsetsPerTrigger="5")
    start = planner.initial()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            end = planner.latest(start)
            assert planner.plan(start, end, condition)
            start = end
    (told,) = caplog.messages
    assert "not read: u; read are: t" in told


def _stream(cluster: Cluster, where: str, **given: str) -> tuple[StreamPlanner, Bound]:
    """Return the planner of a stream, and its condition."""
    both = {"path": str(cluster.path), "subscribe": "t", "startingOffsets": "earliest"}
    options = parse_stream_read_options({**both, "where": where, **given})
    found = pinned_where(options.where, pinned(options.values))
    assert found is not None
    return StreamPlanner(options, lambda: reader_of(cluster).source, lambda: 0), found.condition


def test_a_stream_has_pieces_of_what_can_match_and_all_its_offsets(cluster: Cluster) -> None:
    options = parse_stream_read_options(
        {
            "path": str(cluster.path),
            "subscribe": "t",
            "startingOffsets": "earliest",
            "where": "offset > 4",
        }
    )
    columns = pinned(options.values)
    scan = Scan(["offset"], columns, pinned_where(options.where, columns))
    planner = StreamPlanner(options, lambda: reader_of(cluster).source, lambda: 0)
    start = planner.initial()
    end = planner.latest(start)
    tasks = planner.plan(start, end, scan.condition)
    assert [piece.wanted[1:] for pieces in tasks for piece in pieces] == [(5, 10), (5, 7)]
    assert end == planner.latest(end)
    typed, where = scan.decoders()
    read = reader_of(cluster).read_stream_task(tasks[1], scan.names, options, typed, where)
    assert [one for batch in read for one in batch["offset"].to_pylist()] == [5, 6]


# Batches that are left out by their headers.


def _kept(batches: Sequence[bytes], where: str) -> tuple[list[int], ListFetcher]:
    fetcher = ListFetcher(batches, fetch_bytes=1 << 20)
    condition = matching.Where(matching.bound(where, ROW_SCHEMA, "where"))
    rows = Rows(["offset"], where=condition)
    found = reading.read_range(
        fetcher, OffsetRange(A0, 0, fetcher.end), rows.decoded, times_ms=condition.times_ms
    )
    return [one for batch in rows.of(found, A0) for one in batch["offset"].to_pylist()], fetcher


def _batches(times: list[list[int]], *, append_ms: Sequence[int] = ()) -> list[bytes]:
    """Return batches of records with these times; those that have a time of the append have that."""
    found, offset = list[bytes](), 0
    for some, append in itertools.zip_longest(times, append_ms):
        rows = pa.record_batch(
            {
                "offset": pa.array(range(offset, offset + len(some))),
                "timestamp": pa.array(some, pa.int64()),
                "key": pa.nulls(len(some), pa.binary()),
                "value": pa.array([b"v"] * len(some)),
            }
        )
        data = bytearray(builders.encode(rows, base_offset=offset))
        if append is not None:
            data[22] |= LOG_APPEND_TIME
            data[35:43] = append.to_bytes(8)
        found.append(reference.with_crc(bytes(data)))
        offset += len(some)
    return found


@given(
    st.lists(st.lists(st.integers(-1, 9), min_size=1, max_size=3), min_size=1, max_size=5),
    st.integers(-2000, 10_000),
    st.sampled_from(["<", "<=", ">", ">=", "=", "<>"]),
)
@settings(max_examples=60, deadline=None)
def test_times_within_batches_decide(times: list[list[int]], us: int, sign: str) -> None:
    literal = T.format(us) if us >= 0 else f"TIMESTAMP '1969-12-31 23:59:59.{1_000_000 + us:06}Z'"
    flat = [*itertools.chain(*times)]
    python = {"=": "==", "<>": "!="}.get(sign, sign)
    expected = [n for n, one in enumerate(flat) if eval(f"{1000 * one} {python} {us}")]
    assert _kept(_batches(times), f"timestamp {sign} {literal}")[0] == expected


def test_batches_with_the_time_of_their_append_are_left_out_on_both_sides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded = list[int]()
    real = reading.codec.decode_batches

    def decode(data: Any, batches: Any, **how: Any) -> Iterator[pa.RecordBatch]:
        some = [*batches]
        decoded.extend(header.base_offset for _, header in some)
        return real(data, some, **how)

    monkeypatch.setattr(reading.codec, "decode_batches", decode)
    batches = _batches([[9], [9], [1], [1, 2]], append_ms=[3, 5, 7])
    assert _kept(batches, f"timestamp between {T.format(4000)} and {T.format(5000)}")[0] == [1]
    assert decoded == [1]
    decoded.clear()
    assert _kept(batches, f"timestamp <= {T.format(1000)}")[0] == [3]
    assert decoded == [3]  # no header has the least time of its records


def test_a_bad_value_is_an_error_if_the_other_tests_leave_its_row(tmp_path: Path) -> None:
    with Cluster(str(tmp_path), create=True) as cluster:
        cluster.create_topic("t")
        with cluster.producer() as producer:
            for key, value in (("a", b"one"), ("b", b"\xff"), ("c", None), ("a", b"two")):
                producer.send("t", value, key=key, partition=0)

        def read(where: str, **how: Any) -> list[int]:
            rows = cluster.read("t", value_format="string", where=where, columns=["offset"], **how)
            return list(rows.read_all().column("offset").to_pylist())

        assert read("key = 'a' AND value = 'two'") == [3]
        assert read("offset <> 1 AND (value LIKE 't%' OR value IS NULL)") == [2, 3]
        assert read("(key = 'a' AND value = 'one') OR (key = 'c' AND value IS NULL)") == [0, 2]
        with pytest.raises(RecordDeserializationError, match="offset 1"):
            read("key = 'b' AND value = 'x'")
        assert read("key = 'b'") == [1]  # whose value is not decoded
        for where, expected in (
            ("value <> 'one'", [3]),
            ("value <> 'one' OR value_error IS NOT NULL", [1, 3]),
            ("value IS NULL", [1, 2]),
        ):
            assert read(where, mode="PERMISSIVE") == expected
        with pytest.raises(ConfigError, match="where: at character 1, key_error"):
            read("key_error IS NULL", mode="PERMISSIVE")
        rows = cluster.read(
            "t",
            value_format="string",
            where="value = 'two'",
            columns=["value", "value_error"],
            mode="PERMISSIVE",
        )
        assert rows.read_all().to_pylist() == [{"value": "two", "value_error": None}]


def test_fields_of_values_are_tested_though_no_column_has_them(tmp_path: Path) -> None:
    fields = [{"name": "n", "type": ["null", "long"]}, {"name": "room", "type": "string"}]
    schema = json.dumps({"type": "record", "name": "R", "fields": fields})
    how = {"value_format": "avro", "value_schema": schema}
    rows = [{"n": n if n % 3 else None, "room": "ab"[n % 2]} for n in range(9)]
    with Cluster(str(tmp_path), create=True) as cluster:
        cluster.create_topic("t", partitions=1)
        with cluster.producer() as producer:
            values = spark_kbatch.encode_values(pa.array(rows), value_schema=schema)
            producer.send_arrow("t", {"value": values})
        for where, expected in (
            ("value.n >= 4 AND value.room = 'a'", [4, 8]),
            ("NOT value.n < 8 OR offset = 0", [0, 8]),
            ("value.n IS NULL AND value.room LIKE '_'", [0, 3, 6]),
        ):
            found = cluster.read("t", where=where, columns=["offset"], **how)
            assert found.read_all()["offset"].to_pylist() == expected
            load = Load(
                cluster, where, **{one.replace("_", "."): text for one, text in how.items()}
            )
            assert load.collect() == [(0, one) for one in expected]
        only = {**how, "value_fields": "room"}
        with pytest.raises(ConfigError, match=r"value\.n"):
            cluster.read("t", where="value.n = 1", **only)


def test_a_damaged_batch_is_an_error_though_its_header_says_that_it_cannot_match() -> None:
    batches = _batches([[1, 2], [1, 1], [8]])
    damaged = bytearray(batches[1])
    damaged[-1] ^= 1
    with pytest.raises(CorruptRecordError) as error:
        _kept([batches[0], bytes(damaged), batches[2]], f"timestamp > {T.format(5000)}")
    assert (error.value.offset, error.value.next_offset) == (2, 4)
