"""What takes offsets: topics with a marker, and aborted records, in each partition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.consumer.stream_planner import rate_limited
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.read import parse_read_options
from tests.consumer.test_stream_reads import Stream
from tests.support import builders
from tests.support.client_transactions import (
    GAPS_END,
    GAPS_OFFSETS,
    GIVEN,
    with_gaps_and_a_record_held_back,
)
from tests.support.store import reader_of
from tests.support.waiting import until

OPEN_FROM = GAPS_END  # the first offset of the open transaction in partition 0
ENDS = [GAPS_END + 3, GAPS_END]  # the high watermarks


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """Return a cluster whose topic has gaps in both partitions, and an open transaction in the first."""
    return with_gaps_and_a_record_held_back(tmp_path)


def rows_of(table: pa.Table | pa.RecordBatch) -> list[tuple[int, int]]:
    return list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


ROWS = [(partition, offset) for partition in (0, 1) for offset in GAPS_OFFSETS]


def test_reads_give_the_records_and_no_marker(cluster: Cluster) -> None:
    table = cluster.read("events").read_all()

    assert rows_of(table) == ROWS
    assert table["value"].to_pylist() == [*GIVEN, *GIVEN]
    everything = rows_of(cluster.read("events", isolation_level="read_uncommitted").read_all())
    assert everything == [(0, n) for n in (0, 1, 3, 4, 6, 7, 8, 9)] + [
        (1, n) for n in (0, 1, 3, 4, 6)
    ]


def test_transactions_of_a_client_leave_the_gaps_that_are_tested_here(tmp_path: Path) -> None:
    with (
        builders.a_cluster(tmp_path, topics={"events": 2}) as cluster,
        cluster.serve() as server,
    ):
        client = confluent_kafka.Producer(
            {"bootstrap.servers": server.bootstrap_servers, "transactional.id": "a client"}
        )
        client.init_transactions()
        for values, end in (
            (GIVEN[:2], client.commit_transaction),
            ((b"aborted 1", b"aborted 2"), client.abort_transaction),
        ):
            client.begin_transaction()
            for value in values:
                for partition in (0, 1):
                    client.produce("events", value, partition=partition)
            client.flush()
            end()
        until(lambda: {one.offsets.last_stable_offset for one in cluster.describe("events")} == {6})
        with cluster.producer() as producer:
            for partition in (0, 1):
                producer.send("events", GIVEN[2], partition=partition)

        table = cluster.read("events").read_all()
        assert rows_of(table) == ROWS
        assert table["value"].to_pylist() == [*GIVEN, *GIVEN]


@pytest.mark.parametrize("start", range(GAPS_END + 1))
@pytest.mark.parametrize("end", [2, 3, 5, GAPS_END])
def test_a_read_may_start_and_end_at_each_offset(cluster: Cluster, start: int, end: int) -> None:
    if start > end:
        return
    table = cluster.read("events", start=start, end=end).read_all()
    assert rows_of(table) == [(p, n) for p, n in ROWS if start <= n < end]


def test_the_last_records_are_counted_and_not_the_offsets(cluster: Cluster) -> None:
    assert rows_of(cluster.read("events", last=2).read_all()) == [
        (p, n) for p, n in ROWS if n in GAPS_OFFSETS[-2:]
    ]


def test_described_offsets_are_at_least_as_many_as_records(cluster: Cluster) -> None:
    found = [one.offsets for one in cluster.describe("events")]

    assert [one.offsets_count for one in found] == ENDS
    assert [one.last_stable_offset for one in found] == [OPEN_FROM, GAPS_END]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 7])
def test_a_peek_has_as_many_records_as_are_asked_for(cluster: Cluster, count: int) -> None:
    newest = cluster.peek("events", count=count)
    oldest = cluster.peek("events", start=0, count=count)

    for found in (newest, oldest):
        assert found.rows.num_rows == min(count, len(ROWS))
        within = {one.topic_partition.partition: range(*one[1:]) for one in found.ranges}
        assert sorted(rows_of(found.rows)) == [(p, n) for p, n in ROWS if n in within[p]]
    assert newest.has_older is (count < len(ROWS))
    assert not newest.has_newer


def test_pages_of_a_peek_lead_over_gaps_to_each_record_once(cluster: Cluster) -> None:
    found: list[tuple[int, int]] = []
    starts: Any = 0
    while True:
        page = cluster.peek("events", start=starts, count=1)
        found += rows_of(page.rows)
        starts = {one.topic_partition.partition: one.end for one in page.ranges}
        if not page.has_newer:
            break
    assert sorted(found) == ROWS


def test_a_loop_follows_up_to_an_open_transaction_and_its_group_stands_after_the_markers(
    cluster: Cluster,
) -> None:
    with cluster.follow("events", group="loop", start="earliest", timeout=0.1) as batches:
        assert [row for batch in batches for row in rows_of(batch)] == ROWS

    (group,) = cluster.groups()
    assert [one.committed_offset for one in group.offsets.values()] == [OPEN_FROM, GAPS_END]
    assert group.lag == ENDS[0] - OPEN_FROM, "offsets, and up to the high watermark, as in Kafka"


def test_offsets_that_a_loop_ends_before_may_be_markers(cluster: Cluster) -> None:
    for stop_at, expected in ((2, 2), (3, 2), (GAPS_END, 3)):
        with cluster.follow("events", partitions=[1], start="earliest", stop_at=stop_at) as found:
            assert sum(len(batch) for batch in found) == expected


@pytest.mark.parametrize("keep_offsets", [False, True], ids=["own offsets", "same offsets"])
def test_mirrors_copy_what_is_committed_once(
    cluster: Cluster, tmp_path: Path, keep_offsets: bool
) -> None:
    how: dict[str, Any] = {"keep_offsets": keep_offsets}
    done = spark_kbatch.mirror(cluster.path, tmp_path / "target", "events", **how)
    again = spark_kbatch.mirror(cluster.path, tmp_path / "target", "events", **how)

    assert (done.records_count, again.records_count) == (len(ROWS), 0)
    with spark_kbatch.open(tmp_path / "target") as target:
        found = target.read("events").read_all()
        assert found["value"].to_pylist() == [*GIVEN, *GIVEN]
        assert found["offset"].to_pylist() == ([*GAPS_OFFSETS] if keep_offsets else [0, 1, 2]) * 2


def test_records_are_deleted_up_to_any_offset(cluster: Cluster) -> None:
    for below in (3, 4, 6, OPEN_FROM + 1):
        cluster.delete_records({("events", 0): below})
        expected = [n for n in GAPS_OFFSETS if n >= below]
        assert cluster.read("events", partitions=[0]).read_all()["offset"].to_pylist() == expected
    with pytest.raises(spark_kbatch.OffsetOutOfRangeError):
        cluster.delete_records({("events", 0): ENDS[0] + 1})


# Spark's plans.


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
def test_a_limit_counts_offsets_and_streams_get_over_the_gaps(cluster: Cluster, limit: int) -> None:
    stream = Stream(cluster.path, subscribe="events", maxOffsetsPerTrigger=limit)
    found: list[Any] = []
    for _ in range(2 * GAPS_END + 2):
        found += stream.read(["partition", "offset"]) or []

    assert sorted(found) == ROWS
    assert stream.start()["events"] == {"0": OPEN_FROM, "1": GAPS_END}


def test_a_limit_may_take_nothing_but_a_marker(cluster: Cluster) -> None:
    marker = TopicPartition("events", 0)
    assert rate_limited(1, {marker: 2}, {marker: GAPS_END}) == {marker: 3}
    starts = f'{{"events":{{"0":2,"1":{GAPS_END}}}}}'
    stream = Stream(
        cluster.path, subscribe="events", startingOffsets=starts, maxOffsetsPerTrigger=1
    )

    assert stream.read() == []
    assert stream.start()["events"] == {"0": 3, "1": GAPS_END}


@pytest.mark.parametrize("option", ["minPartitions", "maxRecordsPerPartition"])
@pytest.mark.parametrize("number", [1, 2, 3, 20])
def test_pieces_of_a_read_have_each_record_once(cluster: Cluster, option: str, number: int) -> None:
    ends = f'{{"events":{{"0":{OPEN_FROM},"1":{GAPS_END}}}}}'
    options = parse_read_options(
        {
            "path": str(cluster.path), "subscribe": "events", option: str(number),
            "startingOffsets": '{"events":{"0":0,"1":0}}', "endingOffsets": ends,
        }
    )  # fmt: skip
    reader = reader_of(cluster)
    found = [
        row
        for pieces in reader.plan(options)
        for batch in reader.read_task(pieces, ["partition", "offset"], options, "an action")
        for row in rows_of(batch)
    ]
    assert sorted(found) == ROWS
