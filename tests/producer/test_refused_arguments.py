"""Refused arguments leave nothing behind: the log has what was acknowledged, and nothing else."""

from __future__ import annotations

import datetime
import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_kbatch
from spark_kbatch.errors import ConfigError, InvalidTimestampError, KBatchError, RecordTooLargeError
from spark_kbatch.model import LONG_MAX, TopicPartition
from spark_kbatch.record import codec
from spark_kbatch.record.builder import RecordBatchBuilder
from spark_kbatch.record.header import unpack
from spark_kbatch.record.scalar import times
from tests.support import builders, draws
from tests.support.reference import Record

PARTITIONS = 3
RECORDS = 150
SIZE_MAX = 2_000
LATEST_MS = (2**63 - 1) // 1000  # that fits into a timestamp in microseconds
SOON = 20
VALID_TIMES = [None, -1, 0, 5, 1_700_000_000_000, LATEST_MS]

REFUSED = {
    "a time past 64 bits": {"timestamp": 2**63},
    "a time past a timestamp": {"timestamp": LATEST_MS + 1},
    "a time far past 64 bits": {"timestamp": 10**21},
    "a time before 1970": {"timestamp": -2},
    "a time far before 1970": {"timestamp": -(10**21)},
    "a time as text": {"timestamp": "5"},
    "a fraction as a time": {"timestamp": 5.0},
    "a datetime without a time zone": {"timestamp": datetime.datetime(2024, 10, 25)},  # noqa: DTZ001
    "a datetime before 1970": {"timestamp": datetime.datetime(1969, 12, 31, tzinfo=datetime.UTC)},
    "a date": {"timestamp": datetime.date(2024, 10, 25)},
    "a number as the value": {"value": 5},
    "a list as the value": {"value": [b"v"]},
    "a value that UTF-8 does not have": {"value": "v\ud800"},
    "a number as the key": {"key": 5},
    "a key that UTF-8 does not have": {"key": "\udfff"},
    "text as headers": {"headers": "hv"},
    "a number as headers": {"headers": 5},
    "text as a header": {"headers": ["hv"]},
    "a header without a value": {"headers": [("h", b"v"), ("h",)]},
    "a header of three": {"headers": [("h", b"v", b"w")]},
    "bytes as a header's key": {"headers": [(b"h", b"v")]},
    "a number as a header": {"headers": [("h", b"v"), ("h", 5)]},
    "a header's key that UTF-8 does not have": {"headers": [("\ud800", b"v")]},
    "no such partition": {"partition": PARTITIONS},
    "a negative partition": {"partition": -1},
    "a huge partition": {"partition": 2**70},
    "a partition as text": {"partition": "0"},
    "a fraction as a partition": {"partition": 0.0},
    "a number as the topic": {"topic": 5},
    "no topic": {"topic": None},
    "a name that no topic has": {"topic": "no/topic"},
    "the cluster's own topic": {"topic": "__commits"},
    "a callback that is no function": {"callback": 5},
    "headers in an old format": {"topic": "old", "headers": [("h", b"v")]},
}

# Columns that replace good ones in the last chunk of a table.
REFUSED_COLUMNS: dict[str, Callable[[int], pa.Array]] = {
    "a time before 1970": lambda n: pa.array([*[5] * (n - 1), -2], pa.timestamp("ms")),
    "seconds past 64 bits of ms": lambda n: pa.array([*[5] * (n - 1), 2**62], pa.timestamp("s")),
    "no such partition": lambda n: pa.array([*[0] * (n - 1), PARTITIONS], pa.int64()),
    "a huge partition": lambda n: pa.array([*[0] * (n - 1), 2**40], pa.int64()),
    "a header without a key": lambda n: pa.array(
        [*[[]] * (n - 1), [{"key": None, "value": b""}]],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    ),
    "no topic": lambda n: pa.array([*["events"] * (n - 1), None], pa.string()),
    "a name that no topic has": lambda n: pa.array([*["events"] * (n - 1), "no/topic"]),
}
_COLUMN = {
    "a time before 1970": "timestamp",
    "seconds past 64 bits of ms": "timestamp",
    "no such partition": "partition",
    "a huge partition": "partition",
    "a header without a key": "headers",
    "no topic": "topic",
    "a name that no topic has": "topic",
}


@pytest.fixture
def cluster(tmp_path: Path) -> spark_kbatch.Cluster:
    made = spark_kbatch.open(str(tmp_path / "cluster"), create=True)
    any_time = {"message.timestamp.after.max.ms": LONG_MAX}
    made.create_topic("events", partitions=PARTITIONS, config=any_time)
    made.create_topic("old", config={"message.format.version": "0.10.0"})
    return made


def a_record(rng: random.Random) -> dict[str, Any]:
    return {
        "topic": "events",
        "value": rng.choice([None, b"", b"v" * rng.randrange(300)]),
        "key": rng.choice([None, b"", b"%d" % rng.randrange(9)]),
        "headers": rng.choice([[], [("h", None)], [("h", b"x" * 70), ("", b"")]]),
        "partition": rng.choice([None, rng.randrange(PARTITIONS)]),
        "timestamp": rng.choice(VALID_TIMES),
    }


def a_table(rng: random.Random, refused: str | None = None) -> pa.Table:
    """Make a table of two chunks, with the refused value in the last row of the second."""
    chunks = []
    for is_last in (False, True):
        rows = [a_record(rng) for _ in range(rng.randrange(1, 6))]
        columns = {
            "topic": pa.array(["events"] * len(rows)),
            "value": pa.array([row["value"] for row in rows], pa.binary()),
            "timestamp": pa.array([row["timestamp"] for row in rows], pa.int64()),
            "partition": pa.array([row["partition"] for row in rows], pa.int64()),
        }
        if refused is not None:
            name, bad = _COLUMN[refused], REFUSED_COLUMNS[refused](len(rows))
            columns[name] = bad if is_last else pa.nulls(len(rows), bad.type)
            if name == "topic" and not is_last:
                columns[name] = pa.array(["events"] * len(rows), pa.string())
        chunks.append(pa.RecordBatch.from_pydict(columns))
    return pa.Table.from_batches(chunks)


def check_run(cluster: spark_kbatch.Cluster, seed: int) -> None:
    rng = random.Random(f"arguments {seed}")
    singles: list[tuple[dict[str, Any], Any]] = []
    tables: list[tuple[pa.Table, Any]] = []
    with cluster.producer(
        flush=False,
        linger_ms=rng.choice([0, 1, 20]),
        batch_size=rng.choice([1, 200, 2_000, 16_384]),
        compression_type=rng.choice(["none", "lz4"]),
        max_request_size=SIZE_MAX,
    ) as producer:
        for _ in range(RECORDS):
            match rng.randrange(8):
                case 0 | 1 | 2:
                    refused = rng.choice(list(REFUSED.values()))
                    with pytest.raises(KBatchError):
                        producer.send(**(a_record(rng) | refused))
                case 3:
                    large = producer.send(**(a_record(rng) | {"value": b"v" * SIZE_MAX}))
                    assert isinstance(large.exception(), RecordTooLargeError)
                case 4:
                    table = a_table(rng, rng.choice(list(REFUSED_COLUMNS)))
                    with pytest.raises(KBatchError):
                        producer.send_arrow(None, table)
                case 5:
                    table = a_table(rng)
                    tables.append((table, producer.send_arrow(None, table)))
                case _:
                    record = a_record(rng)
                    singles.append((record, producer.send(**record)))
    found = builders.contents(cluster)
    logs = {tp: {record.offset: record for record in log} for tp, log in found.items()}
    taken: dict[TopicPartition, set[int]] = defaultdict(set)
    for given, future in singles:
        placed = future.result(SOON)
        tp = TopicPartition(placed.topic, placed.partition)
        time_ms = placed.timestamp if given["timestamp"] is None else given["timestamp"]
        headers = tuple(given["headers"])
        expected = Record(placed.offset, time_ms, given["key"], given["value"], headers)
        assert logs[tp][placed.offset] == expected
        taken[tp].add(placed.offset)
    for table, future in tables:
        for row, placed in zip(table.to_pylist(), future.result(SOON).to_pylist(), strict=True):
            tp = TopicPartition(placed["topic"], placed["partition"])
            record = logs[tp][placed["offset"]]
            assert record.value == row["value"]
            assert row["timestamp"] in (None, record.timestamp)
            assert row["partition"] in (None, tp.partition)
            taken[tp].add(placed["offset"])
    assert {tp: set(log) for tp, log in logs.items() if log} == dict(taken)


@pytest.mark.parametrize("seed", range(6))
def test_what_is_acknowledged_is_in_the_log_as_sent_and_nothing_else(
    cluster: spark_kbatch.Cluster, seed: int
) -> None:
    check_run(cluster, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", draws.seeds(60, after=6))
def test_so_it_is_for_many_seeds(cluster: spark_kbatch.Cluster, seed: int) -> None:
    check_run(cluster, seed)


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_a_refused_record_leaves_its_batch_as_it_was(
    cluster: spark_kbatch.Cluster, refused: dict[str, Any]
) -> None:
    good = {"topic": "events", "partition": 0}
    with cluster.producer(flush=False, linger_ms=60_000, delivery_timeout_ms=120_000) as producer:
        first = producer.send(**good, value="first")
        with pytest.raises(KBatchError):
            producer.send(**({**good, "value": "bad"} | refused))
        last = producer.send(**good, value="last")
    assert [first.result().offset, last.result().offset] == [0, 1]
    found = builders.contents(cluster)
    assert [record.value for record in found[TopicPartition("events", 0)]] == [b"first", b"last"]
    assert sum(map(len, found.values())) == 2


@pytest.mark.parametrize("refused", REFUSED_COLUMNS)
def test_no_chunk_of_a_refused_table_is_sent(cluster: spark_kbatch.Cluster, refused: str) -> None:
    with cluster.producer(flush=False) as producer, pytest.raises(KBatchError):
        producer.send_arrow(None, a_table(random.Random(1), refused))
    assert not any(builders.contents(cluster).values())


def test_what_is_no_table_is_refused_with_what_is(cluster: spark_kbatch.Cluster) -> None:
    with cluster.producer() as producer:
        with pytest.raises(ConfigError, match=r"rows are a int, .* accepted: a pyarrow Table"):
            producer.send_arrow("events", 5)
        with pytest.raises(ConfigError, match="topic is a int; accepted: text"):
            producer.send_arrow(5, pa.table({"value": [b"v"]}))  # type: ignore[arg-type]


def test_a_null_in_place_of_a_header_is_told_from_one_in_place_of_its_key(
    cluster: spark_kbatch.Cluster,
) -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    for header, words in ((None, "a null in place of a header"), ({"value": b"v"}, "key is null")):
        rows = pa.table({"value": [b"v"], "headers": pa.array([[header]], kind)})
        with cluster.producer() as producer, pytest.raises(ConfigError, match=words):
            producer.send_arrow("events", rows)


def test_the_largest_time_is_named_where_one_is_past_it(cluster: spark_kbatch.Cluster) -> None:
    expected = rf"timestamp is {LATEST_MS + 1} ms; accepted: at most {LATEST_MS} ms"
    rows = pa.table({"value": [b"v"], "timestamp": [LATEST_MS + 1]})
    with cluster.producer() as producer:
        with pytest.raises(InvalidTimestampError, match=expected):
            producer.send("events", b"v", timestamp=LATEST_MS + 1)
        with pytest.raises(InvalidTimestampError, match=expected):
            producer.send_arrow("events", rows)


def test_headers_may_be_a_dict_and_integers_those_of_numpy(cluster: spark_kbatch.Cluster) -> None:
    with cluster.producer() as producer:
        sent = producer.send(
            "events",
            headers={"h": b"v", "text": "w"},
            partition=pa.scalar(1).as_py(),
            timestamp=pa.array([7]).to_numpy()[0],
        )
    assert sent.result()[1:] == (1, 0, 7)
    ((record,),) = filter(None, builders.contents(cluster).values())
    assert record.headers == (("h", b"v"), ("text", b"w"))


@pytest.mark.parametrize("order", [(-1, 2**63 - 1), (2**63 - 1, -1)], ids=["rising", "falling"])
def test_times_further_apart_than_64_bits_read_back(order: tuple[int, int]) -> None:
    builder = RecordBatchBuilder(memoryview(bytearray(1_000)), 0, 1_000)
    for time_ms in order:
        assert builder.append_record(time_ms, b"k", b"v")
    builder.close()
    data = bytes(builder.data)
    assert [time_ms for _, time_ms in times(data, 0, unpack(data))] == [*order]
    assert codec.decode(data).column("timestamp").to_pylist() == [*order]


@pytest.mark.parametrize("order", [(-1, LATEST_MS), (LATEST_MS, -1)], ids=["rising", "falling"])
def test_the_least_and_the_latest_time_are_sent_and_read_back(
    cluster: spark_kbatch.Cluster, order: tuple[int, int]
) -> None:
    rows = pa.table({"value": [b"v", b"v"], "timestamp": order, "partition": [1, 1]})
    with cluster.producer(linger_ms=60_000, delivery_timeout_ms=120_000) as producer:
        for time_ms in order:
            producer.send("events", b"v", partition=0, timestamp=time_ms)
        producer.send_arrow("events", rows)
    found = builders.contents(cluster)
    for partition in (0, 1):
        tp = TopicPartition("events", partition)
        assert tuple(record.timestamp for record in found[tp]) == order


def test_a_timestamp_that_is_no_int64_leaves_a_builder_unchanged() -> None:
    builder = RecordBatchBuilder(memoryview(bytearray(1_000)), 0, 1_000)
    assert builder.append_record(5, b"k", b"v")
    before = bytes(builder.memory), [*builder.state]
    with pytest.raises(ValueError, match="does not fit into an int64"):
        builder.append_record(2**63, b"k", b"v")
    assert (bytes(builder.memory), [*builder.state]) == before


# Times in seconds, which are accepted as ms.


@pytest.mark.parametrize("with_table", [False, True], ids=["record", "table"])
def test_a_time_that_looks_like_seconds_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, with_table: bool
) -> None:
    def send(*times: int) -> None:
        if with_table:
            producer.send_arrow("t", {"value": ["v"] * len(times), "timestamp": times}).result()
        else:
            for time in times:
                producer.send("t", value="v", timestamp=time).result()

    with spark_kbatch.open(tmp_path / "cluster", create=True) as cluster:
        cluster.create_topic("t")
        with cluster.producer() as producer:
            send(-1, 0, 86_400, 1_700_000_000_000)
            assert caplog.messages == []
            send(1_700_000_000_000, 1_700_000_000)
            send(1_700_000_001)
    said = "timestamp 1700000000 is 1970-01-20: times are in ms, and this looks like seconds"
    assert caplog.messages == [said]


def test_a_time_with_a_unit_is_not_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    then = datetime.datetime(1970, 1, 20, tzinfo=datetime.UTC)
    with spark_kbatch.open(tmp_path / "cluster", create=True) as cluster:
        cluster.create_topic("t")
        with cluster.producer() as producer:
            producer.send("t", value="v", timestamp=then).result()
            producer.send_arrow("t", {"value": ["v"], "timestamp": [then]}).result()
    assert caplog.messages == []
