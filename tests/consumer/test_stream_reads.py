"""Streams over real logs that change between batches, without Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_kbatch import Cluster
from spark_kbatch.consumer.rows import ROW_SCHEMA
from spark_kbatch.errors import DataLossError
from spark_kbatch.model import StreamPiece
from spark_kbatch.opening.stores import open_reader
from spark_kbatch.store.source import Source
from tests.support import builders
from tests.support.log_histories import History
from tests.support.stream_queries import Query


class Stream(Query):
    """A query whose batches are read; PATH is opened again for each question."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path = path
        super().__init__(self.opened(), **({"subscribe": "t"} | options))

    def opened(self) -> Source:
        return open_reader(str(self.path)).source

    def task(self, piece: StreamPiece, columns: Sequence[str] = ("offset",)) -> Iterator[Any]:
        """Return the rows of one task: tuples, or values if there is only one column."""
        reader = open_reader(str(self.path))
        for batch in reader.read_stream_task((piece,), columns, self.parsed):
            rows = zip(*(batch[name].to_pylist() for name in columns), strict=True)
            yield from (row[0] if len(columns) == 1 else row for row in rows)

    def read(self, columns: Sequence[str] = ("offset",)) -> list[Any] | None:
        """Return the rows of the next batch, partition after partition; None if there is none."""
        if self.next_end() is None:
            return None
        rows = [row for piece in self.plan() for row in self.task(piece, columns)]
        self.commit()
        return rows


def send(cluster: Cluster, count: int, topic: str = "t") -> None:
    """Append `count` records, each a batch of its own."""
    batch = builders.batch(n=1)
    builders.write(cluster, {(topic, 0): [batch] * count})


def recreate(cluster: Cluster, topic: str = "t") -> None:
    cluster.delete_topic(topic)
    Cluster(str(cluster.path)).create_topic(topic)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return builders.a_cluster(tmp_path, topics={"t": 1, "u": 1})


def test_records_without_key_or_value_are_read_with_nulls(cluster: Cluster) -> None:
    records = [(None, None), (b"k", None), (None, b"v"), (b"k", b"v")]
    with cluster.producer() as producer:
        for key, value in records:
            producer.send("t", value, key)

    assert Stream(cluster.path).read(["key", "value"]) == records


def test_a_task_gives_the_columns_that_are_asked_for_in_their_order(cluster: Cluster) -> None:
    send(cluster, 1)
    stream = Stream(cluster.path)
    assert stream.next_end() is not None
    reader = open_reader(str(cluster.path))
    for columns in (ROW_SCHEMA.names, ROW_SCHEMA.names[::-1]):
        (rows,) = (
            rows
            for piece in stream.plan()
            for rows in reader.read_stream_task((piece,), columns, stream.parsed)
        )
        assert rows.schema == pa.schema([ROW_SCHEMA.field(name) for name in columns])
        assert (rows["topic"].to_pylist(), rows["partition"].to_pylist()) == (["t"], [0])


def test_records_that_arrive_during_a_batch_are_in_the_next_one(cluster: Cluster) -> None:
    stream = Stream(cluster.path)
    send(cluster, 3)
    stream.next_end()
    (piece,) = stream.plan()
    task = stream.task(piece)
    found = [next(task)]
    send(cluster, 2)

    assert found + list(task) == [0, 1, 2]
    stream.commit()
    assert stream.read() == [3, 4]


def test_a_commit_to_several_topics_is_in_one_batch_as_a_whole(cluster: Cluster) -> None:
    batch = builders.batch(n=1)
    writing = threading.Event()

    def write() -> None:
        for _ in range(50):
            builders.write(cluster, {("t", 0): [batch], ("u", 0): [batch]})
        writing.set()

    stream = Stream(cluster.path, subscribe="t,u")
    writer = threading.Thread(target=write)
    writer.start()
    batches = 0
    try:
        while not writing.is_set() or stream.next_end() is not None:
            if stream.next_end() is None:
                continue
            counts = {one.wanted.end - one.wanted.start for one in stream.plan()}
            assert len(counts) <= 1
            stream.commit()
            batches += 1
    finally:
        writer.join()

    assert batches > 1
    assert stream.start()["t"] == stream.start()["u"] == {"0": 50}


def test_large_ranges_are_split_by_bytes_and_read_in_full(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_kbatch.consumer.splits.PIECE_BYTES", 16 << 10)
    batch = builders.batch(n=5, value_bytes=1000)
    builders.write(cluster, {("t", 0): [batch] * 20})
    stream = Stream(cluster.path)
    stream.next_end()
    pieces = stream.plan()

    assert len(pieces) > 3
    assert [offset for piece in pieces for offset in stream.task(piece)] == list(range(100))


# Transactions.


@pytest.fixture
def history(tmp_path: Path) -> History:
    """Ten offsets: 0 to 2 committed, then a marker, 4 to 6 aborted, then a marker, 8 and 9 open."""
    made = History()
    for producer, abort in ((1, False), (2, True)):
        for _ in range(3):
            made.append(producer, transactional=True)
        made.end(producer, abort=abort)
    made.append(3, transactional=True)
    made.append(3, transactional=True)
    return made


@pytest.mark.parametrize(
    ("isolation", "batches"),
    [
        ("read_committed", [[0, 1, 2], [], []]),
        ("read_uncommitted", [[0, 1, 2], [4, 5], [6, 8], [9]]),
    ],
)
def test_a_stream_goes_on_over_batches_without_visible_rows(
    tmp_path: Path, history: History, isolation: str, batches: list[list[int]]
) -> None:
    (tmp_path / "t-0").mkdir()
    data = b"".join(one.data for one in history.written)
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(data)
    stream = Stream(tmp_path, maxOffsetsPerTrigger=3, **{"isolation.level": isolation})

    found = []
    while (batch := stream.read()) is not None:
        found.append(batch)
    assert found == batches


# Data loss.


def test_records_deleted_before_a_task_reads_them_are_data_loss(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_kbatch.consumer.reading.FETCH_BYTES", 1)
    stream = Stream(cluster.path)
    send(cluster, 9)
    stream.next_end()
    (piece,) = stream.plan()
    cluster.delete_records({("t", 0): 3})
    with pytest.raises(DataLossError, match=r"t-0 from offset 0 to 3 .*failOnDataLoss"):
        list(stream.task(piece))

    stream.restart(failOnDataLoss="false")
    task = stream.task(piece)
    found = [next(task)]
    cluster.delete_records({("t", 0): 7})
    assert found + list(task) == [3, 7, 8]


def test_reading_while_records_are_deleted_gives_no_record_twice(cluster: Cluster) -> None:
    """Each step deletes more records than it reads, while more are written."""
    stream = Stream(cluster.path, failOnDataLoss="false", maxOffsetsPerTrigger=4)
    found: list[int] = []
    for step in range(10):
        send(cluster, 7)
        found += stream.read() or []
        cluster.delete_records({("t", 0): step * 6})
    while (batch := stream.read()) is not None:
        found += batch

    assert 20 < len(found) < 70
    assert found == sorted(set(found))
    assert found[-1] == 69


def test_a_topic_recreated_before_a_task_reads_it_is_data_loss(cluster: Cluster) -> None:
    stream = Stream(cluster.path)
    send(cluster, 3)
    stream.next_end()
    (piece,) = stream.plan()
    recreate(cluster)
    send(Cluster(str(cluster.path)), 5)
    with pytest.raises(DataLossError, match=r"t-0 from offset 0 to 3 .*deleted and created again"):
        list(stream.task(piece))

    stream.restart(failOnDataLoss="false")
    assert list(stream.task(piece)) == []
    stream.commit()
    assert stream.read() == [0, 1, 2, 3, 4]


def test_a_topic_deleted_before_a_task_reads_it_is_data_loss(cluster: Cluster) -> None:
    stream = Stream(cluster.path)
    send(cluster, 3)
    stream.next_end()
    (piece,) = stream.plan()
    cluster.delete_topic("t")
    with pytest.raises(DataLossError, match="partition t-0"):
        list(stream.task(piece))

    stream.restart(failOnDataLoss="false")
    assert list(stream.task(piece)) == []
