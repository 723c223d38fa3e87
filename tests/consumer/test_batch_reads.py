"""Batch reads as Spark runs them: planned once, read again for every action.

They need no Spark: a plan is made from options, and a task reads one piece of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_kbatch import Cluster
from spark_kbatch.consumer.rows import ROW_SCHEMA
from spark_kbatch.errors import DataLossError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from spark_kbatch.model import TopicPartition
from spark_kbatch.opening.stores import open_for_reading
from spark_kbatch.options.read import parse_read_options
from tests.support import builders
from tests.support.log_histories import History
from tests.support.store import reader_of


class Load:
    """A stand-in for `spark.read.load()`: a plan, and actions that read it."""

    def __init__(self, topics: Cluster, **options: Any) -> None:
        texts = {key.replace("_", "."): str(value) for key, value in options.items()}
        self._options = parse_read_options({"path": str(topics.path), **texts})
        self._reader = reader_of(topics)
        self._tasks = self._reader.plan(self._options)
        self.pieces = [piece for task in self._tasks for piece in task]
        self._actions = 0

    def tasks(self, columns: Sequence[str]) -> list[Iterator[pa.RecordBatch]]:
        """Return the tasks of a new action, not started."""
        self._actions += 1
        action = f"{id(self)}-{self._actions}"
        return [
            self._reader.read_task(task, columns, self._options, action) for task in self._tasks
        ]

    def collect(self) -> dict[int, list[int]]:
        """Return the offsets of each partition, in the order in which they are read."""
        found: dict[int, list[int]] = {}
        for piece, task in zip(self.pieces, self.tasks(["offset"]), strict=True):
            offsets = found.setdefault(piece.planned.topic_partition.partition, [])
            for batch in task:
                offsets += batch["offset"].to_pylist()
        return {partition: offsets for partition, offsets in found.items() if offsets}

    def count(self) -> int:
        return sum(map(len, self.collect().values()))


def write(cluster: Cluster, counts: dict[int, int], first_time: int = 0) -> None:
    """Append `counts` records to the partitions of `t`; a record's time is `first_time` plus its offset."""
    for partition, count in counts.items():
        ((_, edges),) = reader_of(cluster).edges([cluster.partitions("t")[partition]]).items()
        start = edges.log_end_offset
        with cluster.producer(flush=False) as producer:
            for offset in range(start, start + count):
                producer.send("t", str(offset), partition=partition, timestamp=first_time + offset)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """A cluster whose topic `t` has 10, 7 and 4 records in its three partitions."""
    made = Cluster(str(tmp_path), create=True)
    made.create_topic("t", partitions=3)
    write(made, {0: 10, 1: 7, 2: 4})
    return made


def test_default_bounds_are_earliest_and_latest(cluster: Cluster) -> None:
    whole = {0: list(range(10)), 1: list(range(7)), 2: list(range(4))}
    assert Load(cluster, subscribe="t").collect() == whole
    bounds = {"startingOffsets": "earliest", "endingOffsets": "latest"}
    assert Load(cluster, subscribePattern="t", **bounds).collect() == whole


def test_a_plan_that_is_used_again_reads_newer_records_too(cluster: Cluster) -> None:
    load = Load(cluster, subscribe="t")
    assert load.count() == 21
    write(cluster, {0: 2, 2: 1})
    assert load.count() == 24
    assert load.collect()[2] == [0, 1, 2, 3, 4]


def test_an_offset_as_bound_is_fixed_and_latest_moves_on(cluster: Cluster) -> None:
    load = Load(
        cluster,
        subscribe="t",
        startingOffsets='{"t":{"0":-2,"1":3,"2":0}}',
        endingOffsets='{"t":{"0":5,"1":-1,"2":-1}}',
    )
    assert load.collect() == {0: [0, 1, 2, 3, 4], 1: [3, 4, 5, 6], 2: [0, 1, 2, 3]}
    write(cluster, {0: 2, 1: 1})
    assert load.collect() == {0: [0, 1, 2, 3, 4], 1: [3, 4, 5, 6, 7], 2: [0, 1, 2, 3]}


@pytest.mark.parametrize("columns", [ROW_SCHEMA.names, ROW_SCHEMA.names[::-1], []])
def test_a_task_gives_the_columns_that_are_asked_for_in_their_order(
    cluster: Cluster, columns: list[str]
) -> None:
    tasks = Load(cluster, subscribe="t", startingOffsets='{"t":{"0":9,"1":7,"2":4}}').tasks(columns)
    (rows,) = [rows for task in tasks for rows in task]

    assert rows.schema == pa.schema([ROW_SCHEMA.field(name) for name in columns])
    assert rows.num_rows == 1
    row = {
        "key": None,
        "value": b"9",
        "topic": "t",
        "partition": 0,
        "offset": 9,
        "timestamp": datetime.fromtimestamp(0.009, UTC),
        "timestampType": 0,
        "headers": None,
    }
    assert rows.to_pylist() == [{name: row[name] for name in columns}]


def test_headers_keep_their_order_and_are_null_if_there_are_none(cluster: Cluster) -> None:
    with cluster.producer(flush=False) as producer:
        pairs = [("a", b"1"), ("b", None), ("a", b"2"), ("a", b"2")]
        producer.send("t", "with", partition=2, headers=pairs)
    load = Load(cluster, assign='{"t":[2]}', startingOffsets='{"t":{"2":3}}')
    (task,) = load.tasks(["headers"])
    assert [row for batch in task for row in batch["headers"].to_pylist()] == [
        None,
        [{"key": key, "value": value} for key, value in pairs],
    ]


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        pytest.param(
            {
                "startingOffsetsByTimestamp": '{"t":{"0":4,"1":0,"2":3}}',
                "endingOffsetsByTimestamp": '{"t":{"0":8,"1":2,"2":4}}',
            },
            {0: [4, 5, 6, 7], 1: [0, 1], 2: [3]}, id="by partition",
        ),
        pytest.param(
            {"startingTimestamp": 2, "endingTimestamp": 5},
            {0: [2, 3, 4], 1: [2, 3, 4], 2: [2, 3]}, id="one for all",
        ),
        pytest.param(
            {"startingTimestamp": 3, "endingOffsets": '{"t":{"0":-1,"1":-1,"2":4}}'},
            {0: [3, 4, 5, 6, 7, 8, 9], 1: [3, 4, 5, 6], 2: [3]}, id="start alone, end by offset",
        ),
        pytest.param(
            {"endingTimestamp": 2}, {0: [0, 1], 1: [0, 1], 2: [0, 1]}, id="end alone",
        ),
        pytest.param(
            {"startingTimestamp": 6, "startingOffsetsByTimestampStrategy": "latest"},
            {0: [6, 7, 8, 9], 1: [6]}, id="no match, start at the end",
        ),
    ],
)  # fmt: skip
def test_times_bound_a_read(
    cluster: Cluster, options: dict[str, Any], offsets: dict[int, list[int]]
) -> None:
    assert Load(cluster, subscribe="t", **options).collect() == offsets


def test_pieces_of_a_plan_may_be_read_concurrently_and_twice(cluster: Cluster) -> None:
    load = Load(cluster, subscribe="t", minPartitions=6)
    twice = [*load.tasks(["offset"]), *load.tasks(["offset"])]
    counts = [0] * len(twice)

    def run(task: int) -> None:
        counts[task] = sum(batch.num_rows for batch in twice[task])

    threads = [threading.Thread(target=run, args=[n]) for n in range(len(twice))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(counts) == 2 * 21
    assert counts[: len(load.pieces)] == counts[len(load.pieces) :]


def test_earliest_is_looked_up_when_the_plan_is_read(cluster: Cluster) -> None:
    load = Load(cluster, subscribe="t")
    cluster.delete_records({("t", partition): -1 for partition in range(3)})
    assert load.collect() == {}
    write(cluster, {0: 1, 1: 2})
    assert load.collect() == {0: [10], 1: [7, 8]}


def test_all_tasks_of_an_action_see_the_same_offsets(cluster: Cluster) -> None:
    load = Load(cluster, subscribe="t")
    first, *others = load.tasks(["offset"])
    assert sum(batch.num_rows for batch in first) == 10
    write(cluster, {1: 5, 2: 5})
    cluster.delete_records({("t", 1): 2})
    with pytest.raises(DataLossError, match="t-1 from offset 0 to 2"):
        list(others[0])
    assert sum(batch.num_rows for batch in others[1]) == 4


@pytest.mark.parametrize("options", [{"minPartitions": 6}, {"minPartitions": 20}, {}])
def test_divided_ranges_cover_all_records_at_the_time_of_the_read(
    cluster: Cluster, options: dict[str, Any]
) -> None:
    """Records are written and deleted after the ranges were planned."""
    load = Load(cluster, subscribe="t", **options)
    assert len(load.pieces) >= min(options.get("minPartitions", 3), 20)
    assert load.count() == 21
    write(cluster, {0: 5, 1: 1})
    cluster.delete_records({("t", 0): 7, ("t", 2): 4})
    assert load.collect() == {0: list(range(7, 15)), 1: list(range(8))}


def test_a_partition_that_was_empty_when_planned_is_read_once_it_has_records(
    cluster: Cluster,
) -> None:
    cluster.delete_records({("t", 2): -1})
    load = Load(cluster, subscribe="t", minPartitions=6)
    write(cluster, {2: 2})
    assert load.collect()[2] == [4, 5]


@pytest.mark.parametrize("most", [1, 3, 4, 100])
def test_no_task_reads_more_than_max_records_per_partition(cluster: Cluster, most: int) -> None:
    load = Load(
        cluster,
        subscribe="t",
        maxRecordsPerPartition=most,
        startingOffsets='{"t":{"0":0,"1":0,"2":0}}',
        endingOffsets='{"t":{"0":10,"1":7,"2":4}}',
    )
    rows = [sum(batch.num_rows for batch in task) for task in load.tasks(["offset"])]
    assert max(rows) <= most
    assert len(rows) == sum(-(-count // most) for count in (10, 7, 4))
    assert sum(rows) == 21


def test_large_ranges_are_split_by_bytes_and_read_in_full(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_kbatch.consumer.splits.PIECE_BYTES", 20_000)
    cluster.create_topic("large", config={"index.interval.bytes": 100, "segment.bytes": 1 << 20})
    batches = [builders.batch(n=10, value_bytes=100, seed=n) for n in range(100)]
    builders.write(cluster, {("large", 0): batches})
    load = Load(cluster, subscribe="large,t")
    sizes = [
        sum(batch.num_rows for batch in task)
        for piece, task in zip(load.pieces, load.tasks(["offset"]), strict=True)
        if piece.planned.topic_partition.topic == "large"
    ]
    assert len(sizes) > 5
    assert sum(sizes) == 1000
    assert max(sizes) < 2 * min(sizes)
    assert load.pieces[0].planned[1:] == (-2, -1)


# Data loss.


def test_a_start_after_the_end_of_an_empty_topic_is_out_of_range(cluster: Cluster) -> None:
    cluster.create_topic("empty")
    start = {"subscribe": "empty", "startingOffsets": '{"empty":{"0":1}}'}
    with pytest.raises(OffsetOutOfRangeError, match="offset 1 of empty-0 is out of range"):
        Load(cluster, **start)
    assert Load(cluster, failOnDataLoss="false", **start).count() == 0


BOUNDED = {
    "startingOffsets": '{"t":{"0":2,"1":0,"2":0}}',
    "endingOffsets": '{"t":{"0":9,"1":-1,"2":3}}',
}


@pytest.mark.parametrize("least", [1, 9], ids=["whole", "divided"])
def test_deleted_records_are_data_loss_if_the_options_name_them(
    cluster: Cluster, least: int
) -> None:
    options = {"subscribe": "t", "minPartitions": least, **BOUNDED}
    strict, lenient = Load(cluster, **options), Load(cluster, failOnDataLoss="false", **options)
    cluster.delete_records({("t", 0): 6, ("t", 2): 4})
    with pytest.raises(DataLossError, match=r"t-0 from offset 2 to .* 'failOnDataLoss'"):
        strict.collect()
    assert lenient.collect() == {0: [6, 7, 8], 1: list(range(7))}


def test_an_end_after_the_last_record_is_read_up_to_the_last_record(cluster: Cluster) -> None:
    load = Load(
        cluster,
        assign='{"t":[2]}',
        endingOffsets=f'{{"t":{{"2":{2**63 - 1}}}}}',
        failOnDataLoss="false",
    )
    assert load.collect() == {2: [0, 1, 2, 3]}
    write(cluster, {2: 1})
    assert load.collect() == {2: [0, 1, 2, 3, 4]}


def in_between(cluster: Cluster, load: Load, happens: Callable[[], object]) -> list[int]:
    """Return the offsets of a read during which something happens."""
    (task,) = load.tasks(["offset"])
    offsets = next(task)["offset"].to_pylist()
    happens()
    return offsets + [offset for batch in task for offset in batch["offset"].to_pylist()]


def test_records_deleted_during_a_read_are_data_loss_or_skipped(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_kbatch.consumer.reading.FETCH_BYTES", 1)
    cluster.create_topic("u")
    builders.write(cluster, {("u", 0): [builders.batch(n=5, seed=n) for n in range(6)]})
    strict = Load(cluster, subscribe="u")
    lenient = Load(cluster, subscribe="u", failOnDataLoss="false")
    with pytest.raises(DataLossError, match="u-0 from offset 5 to 12 cannot be read"):
        in_between(cluster, strict, lambda: cluster.delete_records({("u", 0): 12}))
    found = in_between(cluster, lenient, lambda: cluster.delete_records({("u", 0): 22}))
    assert found == [12, 13, 14, *range(22, 30)]


@pytest.mark.parametrize("bounds", [{}, {"startingOffsets": '{"t":{"0":2,"1":0,"2":0}}'}])
def test_a_deleted_topic_is_data_loss(cluster: Cluster, bounds: dict[str, str]) -> None:
    strict = Load(cluster, subscribe="t", **bounds)
    lenient = Load(cluster, subscribe="t", failOnDataLoss="false", **bounds)
    cluster.delete_topic("t")
    with pytest.raises(
        DataLossError, match=r"partition t-0 cannot be read: .* its topic was deleted"
    ):
        strict.collect()
    assert lenient.collect() == {}


def test_one_deleted_topic_takes_no_other_with_it(cluster: Cluster) -> None:
    cluster.create_topic("u")
    builders.write(cluster, {("u", 0): [builders.batch(n=5)]})
    for named in ({"subscribe": "t,u"}, {"assign": '{"t":[0],"u":[0]}'}):
        cluster.create_topic("t", partitions=3, exist_ok=True)
        strict = Load(cluster, **named)
        lenient = Load(cluster, failOnDataLoss="false", **named)
        cluster.delete_topic("t")
        assert lenient.count() == 5
        with pytest.raises(DataLossError, match="partition t-0 cannot be read"):
            strict.collect()


def recreate(cluster: Cluster, topic: str = "t") -> None:
    """Recreate the topic, with more records than it had."""
    other = Cluster(str(cluster.path))
    other.delete_topic(topic)
    other.create_topic(topic, partitions=3)
    builders.write(other, {(topic, 0): [builders.batch(n=50)] * 2})


@pytest.mark.parametrize(
    "bounds",
    [
        {},
        BOUNDED,
        {"startingOffsetsByTimestamp": '{"t":{"0":3,"1":3,"2":3}}'},
        {"minPartitions": 9},
    ],
    ids=["everything", "offsets", "times", "divided"],
)
def test_a_topic_recreated_since_the_plan_is_data_loss(
    cluster: Cluster, bounds: dict[str, str]
) -> None:
    strict = Load(cluster, subscribe="t", **bounds)
    lenient = Load(cluster, subscribe="t", failOnDataLoss="false", **bounds)
    recreate(cluster)
    for task in strict.tasks(["offset"]):
        with pytest.raises(
            DataLossError, match=r"t-. cannot be read: .*'t' was deleted and created"
        ):
            list(task)
    assert lenient.collect() == {}
    assert Load(cluster, subscribe="t").collect() == {0: list(range(100))}


def test_a_topic_recreated_during_a_read_is_data_loss(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_kbatch.consumer.reading.FETCH_BYTES", 1)
    cluster.create_topic("u")
    builders.write(cluster, {("u", 0): [builders.batch(n=5)] * 6})
    strict = Load(cluster, subscribe="u")
    with pytest.raises(DataLossError, match="topic 'u' was deleted and created again"):
        in_between(cluster, strict, lambda: recreate(cluster, "u"))
    Cluster(str(cluster.path)).delete_topic("u")
    cluster.create_topic("u")
    builders.write(cluster, {("u", 0): [builders.batch(n=5)] * 6})
    lenient = Load(cluster, subscribe="u", failOnDataLoss="false")
    assert in_between(cluster, lenient, lambda: recreate(cluster, "u")) == [0, 1, 2, 3, 4]


def test_a_topic_recreated_during_planning_is_an_error_that_says_so(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = cluster._store.source.views

    def slow_views(partitions: Iterable[TopicPartition]) -> Any:
        recreate(cluster)
        return views(partitions)

    monkeypatch.setattr(cluster._store, "views", slow_views)
    with pytest.raises(
        UnknownTopicOrPartitionError, match="created again while this read was plan"
    ):
        Load(cluster, subscribe="t")


# Isolation.


def a_brokers_log(path: Path) -> Path:
    """Write a log: offset 0 committed, 2 aborted, 4 in no transaction, 5 in one that is open."""
    history = History()
    history.append(1, transactional=True)
    history.end(1, abort=False)
    history.append(2, transactional=True)
    history.end(2, abort=True)
    history.append(-1, transactional=False)
    history.append(3, transactional=True)
    (path / "t-0").mkdir(parents=True)
    (path / "t-0" / f"{0:020d}.log").write_bytes(b"".join(one.data for one in history.written))
    return path


@pytest.mark.parametrize(
    ("isolation", "offsets", "divided"),
    [
        ("read_committed", [0, 4], [(-2, 1), (1, 3), (3, -1)]),
        ("read_uncommitted", [0, 2, 4, 5], [(-2, 2), (2, 4), (4, -1)]),
    ],
)
def test_transactions_are_read_by_their_isolation_level(
    tmp_path: Path, isolation: str, offsets: list[int], divided: list[tuple[int, int]]
) -> None:
    """A piece without rows is no data loss, nor is one whose first or last offset is not visible."""
    logs = open_for_reading(str(a_brokers_log(tmp_path / "logs")))
    options = {"subscribePattern": "t", "isolation.level": isolation}
    whole = Load(logs, **options)
    assert whole.collect() == {0: offsets}
    pieces = Load(logs, minPartitions=3, **options)
    assert [piece.wanted[1:] for piece in pieces.pieces] == divided
    assert pieces.collect() == {0: offsets}


def test_a_read_of_committed_data_may_end_at_the_last_stable_offset_at_most(tmp_path: Path) -> None:
    logs = open_for_reading(str(a_brokers_log(tmp_path / "logs")))
    options = {"subscribe": "t", "endingOffsets": '{"t":{"0":6}}'}
    with pytest.raises(OffsetOutOfRangeError, match=r"offset 6 of t-0 .* offsets 0 to 5"):
        Load(logs, **options)
    assert Load(logs, failOnDataLoss="false", **options).collect() == {0: [0, 4]}
    assert Load(logs, **{"kafka.isolation.level": "read_uncommitted"}, **options).count() == 4


def test_undecided_offsets_are_reported_as_the_options_name_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logs = open_for_reading(str(a_brokers_log(tmp_path / "logs")))
    bounds = {"startingOffsets": '{"t":{"0":6}}', "endingOffsets": '{"t":{"0":8}}'}
    assert Load(logs, subscribe="t", failOnDataLoss="false", **bounds).collect() == {}
    assert "t-0 from offset 6 to 8 cannot be read" in caplog.text
