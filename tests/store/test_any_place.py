"""What holds for topics in any place: a folder, a real cluster, this process's memory, a bucket.

A new place is added to PLACES, and everything here has to pass.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest

import spark_kbatch
from spark_kbatch import Cluster, TopicConfig, TopicPartition
from spark_kbatch.bucket.maintenance import Maintenance
from spark_kbatch.bucket.shared_ledger import SharedLedger
from spark_kbatch.errors import (
    ClosedError,
    ConfigError,
    GroupIdNotFoundError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from tests.support.store import reader_of

Place: TypeAlias = Callable[[Path], AbstractContextManager[Cluster]]

TIMES = [1000, 3000, 2000, 4000]
NEW = TopicPartition("events", 0)


def a_folder(path: Path) -> AbstractContextManager[Cluster]:
    return spark_kbatch.open(path / "cluster", create=True)


def in_memory(path: Path) -> AbstractContextManager[Cluster]:
    return spark_kbatch.open(f"memory://{path}", create=True)


def in_a_bucket(path: Path) -> AbstractContextManager[Cluster]:
    return spark_kbatch.open(f"file+bucket://{path / 'bucket'}", create=True)


@contextmanager
def in_a_merged_bucket(path: Path) -> Iterator[Cluster]:
    """Open a bucket in which whatever was committed is merged at once."""
    url, real = f"file+bucket://{path / 'bucket'}", SharedLedger.commit

    def commit(ledger: SharedLedger, *given: Any, **named: Any) -> Any:
        entry = real(ledger, *given, **named)
        maintenance = Maintenance(url)
        maintenance.merge(maintenance.runs(run_extents=2))
        return entry

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SharedLedger, "commit", commit)
        with in_a_bucket(path) as cluster:
            yield cluster


@contextmanager
def a_real_cluster(path: Path) -> Iterator[Cluster]:
    with (
        a_folder(path) as folder,
        folder.serve() as server,
        spark_kbatch.open(server.bootstrap_servers) as cluster,
    ):
        yield cluster


PLACES: dict[str, Place] = {
    "folder": a_folder,
    "real cluster": a_real_cluster,
    "memory": in_memory,
    "bucket": in_a_bucket,
    "bucket that is merged": in_a_merged_bucket,
}


@pytest.fixture(params=PLACES)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    with PLACES[request.param](tmp_path) as cluster:
        yield cluster


def send(cluster: Cluster, topic: str, *values: str, **options: Any) -> None:
    """Send records, each as a batch of its own; their times are TIMES."""
    with cluster.producer(batch_size=1, **options) as producer:
        for value, time_ms in zip(values, TIMES, strict=False):
            producer.send(topic, value, partition=0, timestamp=time_ms).result()


def values(cluster: Cluster, topic: str = "events", **bounds: Any) -> list[str]:
    table = cluster.read(topic, text=True, columns=["value"], **bounds).read_all()
    return table.column("value").to_pylist()


# Topics.


def test_topics_are_created_changed_grown_and_deleted(cluster: Cluster) -> None:
    made = cluster.create_topic("events", 2, config={"retention.ms": 5})
    assert (made.name, made.partitions, made.replication_factor) == ("events", 2, 1)
    assert cluster.topic("events").topic_id == made.topic_id != ""
    assert [one.name for one in cluster.topics()] == cluster.topic_names() == ["events"]
    assert cluster.partitions("events") == [NEW, TopicPartition("events", 1)]
    cluster.alter_topic("events", {"retention.ms": 7})
    assert cluster.create_topic("events", config={"retention.ms": 7}, exist_ok=True).partitions == 2
    assert cluster.create_partitions("events", 3).partitions == 3
    assert len(cluster.describe("events")) == 3
    assert cluster.delete_topic("events").partitions == 3
    assert cluster.topic_names() == []
    again = cluster.create_topic("events")
    assert again.partitions == 1
    assert again.topic_id != made.topic_id


def test_settings_may_be_given_as_an_object(cluster: Cluster) -> None:
    config = TopicConfig(retention_ms=5)
    cluster.create_topic("events", config=config)
    assert cluster.create_topic("events", config=config, exist_ok=True).name == "events"
    with pytest.raises(TopicAlreadyExistsError):
        cluster.create_topic("events", config=TopicConfig(retention_ms=6), exist_ok=True)


def test_what_is_asked_of_no_topic_says_so(cluster: Cluster) -> None:
    cluster.create_topic("events")
    for ask in (
        lambda: cluster.topic("event"),
        lambda: cluster.partitions("event"),
        lambda: cluster.describe("event"),
        lambda: cluster.read("event"),
        lambda: cluster.read("events", partitions=[1]),
        lambda: cluster.delete_topic("event"),
        lambda: cluster.alter_topic("event", {"retention.ms": 1}),
        lambda: cluster.create_partitions("event", 2),
        lambda: cluster.list_offsets({("events", 1): "latest"}),
        lambda: cluster.delete_records({("event", 0): -1}),
    ):
        with pytest.raises(UnknownTopicOrPartitionError, match="event"):
            ask()


def test_what_is_not_accepted_changes_nothing(cluster: Cluster) -> None:
    cluster.create_topic("events", 2)
    with pytest.raises(TopicAlreadyExistsError):
        cluster.create_topic("events", 2)
    with pytest.raises(TopicAlreadyExistsError, match="partitions=2"):
        cluster.create_topic("events", 3, exist_ok=True)
    with pytest.raises(TopicAlreadyExistsError, match=r"retention\.ms"):
        cluster.create_topic("events", config={"retention.ms": 5}, exist_ok=True)
    with pytest.raises(InvalidTopicError):
        cluster.create_topic("a b")
    for refused in (
        lambda: cluster.create_topic("__own"),
        lambda: cluster.create_partitions("events", 2),
        lambda: cluster.alter_topic("events", {"retention.sm": 5}),
        lambda: cluster.producer(linger_sm=5),
    ):
        with pytest.raises(spark_kbatch.KBatchError):
            refused()
    assert cluster.topic_names() == ["events"]
    assert cluster.topic("events").partitions == 2


# Records.


@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
def test_what_is_sent_is_read_as_it_was(cluster: Cluster, codec: str) -> None:
    cluster.create_topic("events", 2)
    rows = pa.table(
        {
            "key": pa.array([b"a", None, b"", b"b"], pa.binary()),
            "value": pa.array([b"1", b"", None, b"4"], pa.binary()),
            "partition": pa.array([0, 0, 1, 0], pa.int32()),
        }
    )
    with cluster.producer(compression_type=codec) as producer:
        producer.send_arrow("events", rows).result()
        sent = producer.send("events", "five", headers=[("h", b"x"), ("h", None)], partition=1)
        assert sent.result().offset == 1
    found = cluster.read("events", columns=["partition", "offset", "key", "value"]).read_all()
    assert found.to_pylist() == [
        {"partition": 0, "offset": 0, "key": b"a", "value": b"1"},
        {"partition": 0, "offset": 1, "key": None, "value": b""},
        {"partition": 0, "offset": 2, "key": b"b", "value": b"4"},
        {"partition": 1, "offset": 0, "key": b"", "value": None},
        {"partition": 1, "offset": 1, "key": None, "value": b"five"},
    ]
    (headers,) = cluster.read("events", partitions=[1], start=1, columns=["headers"]).read_all()[0]
    assert headers.as_py() == [{"key": "h", "value": b"x"}, {"key": "h", "value": None}]
    assert values(cluster, re.compile("^ev"), last=1, partitions=[0]) == ["4"]  # type: ignore[arg-type]


def test_a_read_starts_and_ends_where_it_is_asked_to(cluster: Cluster) -> None:
    cluster.create_topic("events")
    send(cluster, "events", "a", "b", "c", "d")
    at = datetime.datetime.fromtimestamp(2.5, datetime.UTC)
    assert values(cluster) == ["a", "b", "c", "d"]
    assert values(cluster, start=1, end=3) == ["b", "c"]
    assert values(cluster, start=4) == []
    assert values(cluster, start=at) == ["b", "c", "d"]
    assert values(cluster, last=2) == ["c", "d"]
    with pytest.raises(OffsetOutOfRangeError):
        values(cluster, start=5)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("value = 'b' OR value LIKE 'd%'", ["b", "d"]),
        ("partition = 1", []),
        ("topic <> 'events'", []),
        ("offset between 1 and 2", ["b", "c"]),
        ("timestamp >= TIMESTAMP '1970-01-01 00:00:03Z'", ["b", "d"]),
        ("timestamp > TIMESTAMP '1970-01-01 00:00:04Z'", []),
        ("NOT timestamp > TIMESTAMP '1970-01-01 00:00:02.000999Z'", ["a", "c"]),
        ("headers['n'] is null AND key is null AND timestampType = 0", ["a", "b", "c", "d"]),
    ],
)
def test_a_read_with_a_condition_has_the_rows_that_it_is_true_for(
    cluster: Cluster, where: str, expected: list[str]
) -> None:
    cluster.create_topic("events", 2)
    send(cluster, "events", "a", "b", "c", "d")
    assert values(cluster, where=where) == expected
    assert values(cluster, last=2, where=where) == [one for one in expected if one in "cd"]


def test_a_large_range_is_split_where_batches_begin(cluster: Cluster) -> None:
    cluster.create_topic("events")
    with cluster.producer(batch_size=1) as producer:
        for _ in range(40):
            producer.send("events", "v" * 1000, partition=0)
    view = reader_of(cluster).source.views([NEW])[NEW]
    if cluster.is_remote:  # Brokers do not tell sizes.
        assert view.bytes_between(10, 30) is None
        return
    of_all, some = view.bytes_between(0, 40), view.bytes_between(10, 30)
    assert of_all is not None
    assert some is not None
    assert 40_000 < of_all < 50_000
    assert 20_000 - 4096 < some < 25_000 + 4096  # the distance of index entries
    assert view.bytes_between(30, 30) == 0
    points = view.split_points(10, 30, piece_bytes=5_000)
    assert points == sorted({*points})
    sizes = [end - start for start, end in itertools.pairwise([10, *points, 30])]
    assert all(3 <= size <= 8 for size in sizes), sizes
    assert view.split_points(10, 30, piece_bytes=1 << 30) == []


def test_offsets_are_found_by_time(cluster: Cluster) -> None:
    cluster.create_topic("events")
    asked = {"earliest": (0, -1), "latest": (0, -1), 1000: None, "max_timestamp": None}
    for time, expected in asked.items():
        assert cluster.list_offsets({NEW: time}) == {NEW: expected}
    send(cluster, "events", "a", "b", "c")
    asked = {
        "earliest": (0, -1), "latest": (3, -1), 0: (0, 1000), 1000: (0, 1000), 1001: (1, 3000),
        3000: (1, 3000), 3001: None, "max_timestamp": (1, 3000),
    }  # fmt: skip
    for time, expected in asked.items():
        assert cluster.list_offsets({NEW: time}) == {NEW: expected}, time


def test_deleted_records_are_gone_and_offsets_go_on(cluster: Cluster) -> None:
    cluster.create_topic("events")
    send(cluster, "events", "a", "b", "c")
    with pytest.raises(OffsetOutOfRangeError):
        cluster.delete_records({NEW: 4})
    assert cluster.delete_records({NEW: 1}) == {NEW: 1}
    assert values(cluster) == ["b", "c"]
    assert cluster.delete_records({NEW: -1}) == {NEW: 3}
    assert values(cluster) == []
    send(cluster, "events", "d")
    (row,) = cluster.describe("events")
    assert (row.offsets.log_start_offset, row.offsets.high_watermark) == (3, 4)
    assert values(cluster) == ["d"]


def test_a_batch_that_a_topic_does_not_take_is_refused_and_the_rest_is_written(
    cluster: Cluster,
) -> None:
    cluster.create_topic("events", config={"max.message.bytes": 1000})
    with cluster.producer() as producer:
        refused = producer.send("events", "v" * 2000, partition=0)
        with pytest.raises(RecordTooLargeError):
            refused.result()
        for _ in range(30):
            producer.send("events", "v" * 100, partition=0)
    assert len(values(cluster)) == 30


def test_a_topic_that_was_made_again_is_another_one(cluster: Cluster) -> None:
    cluster.create_topic("events")
    send(cluster, "events", "a")
    batches = cluster.read("events")
    with cluster.producer() as producer:
        producer.send("events", "b", partition=0).result()
        cluster.delete_topic("events")
        cluster.create_topic("events")
        with pytest.raises(UnknownTopicOrPartitionError):
            batches.read_all()
    send(cluster, "events", "new")
    assert values(cluster) == ["new"]


# Closing.


def test_a_closed_cluster_does_nothing_and_sends_what_it_was_given(cluster: Cluster) -> None:
    cluster.create_topic("events")
    send(cluster, "events", "a")
    producer = cluster.producer(linger_ms=60_000)
    sent = producer.send("events", "b", partition=0)
    batches = cluster.read("events")
    cluster.close()
    assert sent.result().offset == 1
    for use in (
        cluster.topic_names,
        cluster.topics,
        cluster.producer,
        batches.read_all,
        lambda: cluster.read("events"),
        lambda: cluster.create_topic("more"),
        lambda: cluster.list_offsets({}),
        lambda: cluster.delete_records({}),
        cluster.groups,
        cluster.history,
    ):
        with pytest.raises(ClosedError):
            use()


def test_what_a_place_has_not_is_refused_by_one_error(cluster: Cluster) -> None:
    asked: dict[str, Callable[[], object]] = {
        "groups": cluster.groups,
        "commits": cluster.history,
        "disks": cluster.collect_garbage,
        "upkeep": lambda: [*cluster.verify()],
        "server": cluster.running_server,
    }
    for part, use in asked.items():
        if cluster.has(part):
            use()
            continue
        with pytest.raises(ConfigError) as refused:
            use()
        assert cluster._store.why_not in str(refused.value)


def test_groups_without_members_commit_offsets_where_a_place_has_groups(cluster: Cluster) -> None:
    if not cluster.has("groups"):
        return
    cluster.create_topic("events", 2)
    send(cluster, "events", "a", "b", "c")
    cluster.alter_group_offsets("billing", {NEW: 1, ("events", 1): 0})
    cluster.alter_group_offsets("audit", {NEW: 3})
    cluster.alter_group_offsets("billing", {NEW: 2})

    audit, billing = cluster.groups()
    assert (audit.group_id, billing.group_id) == ("audit", "billing")
    assert (audit.state, audit.members, audit.lag, billing.lag) == ("Empty", (), 0, 1)
    assert {tp: one[:3] for tp, one in billing.offsets.items()} == {
        NEW: (2, 3, 1),
        ("events", 1): (0, 0, 0),
    }
    cluster.delete_group("audit")
    with pytest.raises(GroupIdNotFoundError, match="'audit' does not exist"):
        cluster.delete_group("audit")
    with pytest.raises(UnknownTopicOrPartitionError):
        cluster.alter_group_offsets("billing", {("none", 0): 1})
    assert [one.group_id for one in cluster.groups()] == ["billing"]


def test_a_topic_that_is_created_again_has_no_offsets_of_groups(cluster: Cluster) -> None:
    if not cluster.has("groups"):
        return
    for name in ("events", "others"):
        cluster.create_topic(name)
    cluster.alter_group_offsets("billing", {NEW: 1, ("others", 0): 1})
    cluster.delete_topic("events")
    cluster.create_topic("events")

    (billing,) = cluster.groups()
    assert [*billing.offsets] == [("others", 0)]


def test_what_is_sound_is_verified_and_repaired_where_a_place_has_upkeep(cluster: Cluster) -> None:
    cluster.create_topic("events")
    if cluster.has("upkeep"):
        assert not any(report.found or report.damaged for report in cluster.verify())
        assert not any(report.found or report.damaged for report in cluster.repair())


def test_a_place_tells_where_it_is_or_that_it_has_no_such_address(cluster: Cluster) -> None:
    address = cluster._store.address
    assert address in repr(cluster)
    assert cluster.is_remote == (address == outcome(lambda: cluster.bootstrap_servers))
    for ask in (
        lambda: cluster.path,
        lambda: cluster.bootstrap_servers,
        lambda: cluster.cluster_id,
    ):
        assert outcome(ask) is None or str(outcome(ask))
    if cluster.has("disks"):
        assert (str(cluster.path), bool(cluster.cluster_id)) == (address, True)


def outcome(ask: Callable[[], object]) -> object:
    """Return what is told; None if that is refused."""
    with contextlib.suppress(ConfigError):
        return ask()
    return None


def test_memory_takes_nothing_that_is_for_files() -> None:
    for given in ({"log_dirs": "a,b"}, {"foreign_end": "checkpoint"}, {"without_nodes": [0]}):
        with pytest.raises(ConfigError, match="it has no files"):
            spark_kbatch.open("memory://refused", create=True, **given)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"create it with spark_kbatch\.open"):
        spark_kbatch.open("memory://refused")
    with spark_kbatch.open("memory://refused", create=True) as cluster:
        for setting in (
            {"message.timestamp.type": "LogAppendTime"},
            {"message.format.version": "0.9.0"},
        ):
            with pytest.raises(ConfigError, match="in memory there are no"):
                cluster.create_topic("events", config=setting)
