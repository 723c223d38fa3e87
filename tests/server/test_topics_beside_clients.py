"""Topics grow, are overwritten, deleted, recreated, and lose old segments under clients that run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from spark_kbatch import Cluster
from spark_kbatch.commit.coordinator import Overwrite
from spark_kbatch.model import TopicPartition
from tests.support import builders
from tests.support.reference import Record, encode_batch
from tests.support.running_clients import Consuming, Producing
from tests.support.waiting import until

TOPIC = "events"


def stored(cluster: Cluster) -> list[tuple[int, int, bytes]]:
    """Return partition, offset and value of all records of the topic."""
    return [
        (tp.partition, one.offset, one.value or b"")
        for tp, records in builders.contents(cluster).items()
        if tp.topic == TOPIC
        for one in records
    ]


def test_clients_use_partitions_that_are_added_while_they_run(tmp_path: Path) -> None:
    with (
        builders.a_cluster(tmp_path, topics={TOPIC: 1}) as cluster,
        cluster.serve() as server,
    ):
        producing = Producing(server.bootstrap_servers, TOPIC)
        consuming = Consuming(server.bootstrap_servers, TOPIC)
        until(lambda: consuming.committed, "both clients work")
        with Cluster(cluster.path) as other:  # as another process does it
            other.create_partitions(TOPIC, 3)
        until(lambda: len({p for p, _ in [*producing.places.values()]}) == 3, "all are written to")
        producing.stop()
        until(lambda: len(consuming.records) >= producing.sent, "all are read")
        consuming.stop()

        assert Counter(consuming.records) == Counter(stored(cluster))
        assert {value: (p, offset) for p, offset, value in stored(cluster)} == producing.places


def test_consumers_go_on_when_their_topic_is_overwritten(tmp_path: Path) -> None:
    with (
        builders.a_cluster(tmp_path, topics={TOPIC: 1}) as cluster,
        cluster.serve() as server,
    ):
        producing = Producing(server.bootstrap_servers, TOPIC, partitions=1)
        current = Consuming(server.bootstrap_servers, TOPIC, "current")
        behind = Consuming(server.bootstrap_servers, TOPIC, "behind")
        until(lambda: current.committed and behind.committed, "both groups read")
        behind.stop()

        job = [Record(n, 0, None, b"job %d" % n) for n in range(20)]
        with Cluster(cluster.path) as other:
            extents = builders.staged(other, {(TOPIC, 0): [encode_batch(job)]})
            builders.coordinator(other).commit(
                extents, transactional_id="job", overwrite=Overwrite(other.topic(TOPIC), 0)
            )
        behind = Consuming(server.bootstrap_servers, TOPIC, "behind")
        sent = producing.sent
        until(lambda: producing.sent > sent + 20, "the producer goes on")
        producing.stop()
        left = stored(cluster)
        for consuming in (current, behind):
            until(lambda one=consuming: one.records and one.records[-1] == left[-1])  # type: ignore[misc]
            consuming.stop()

    assert [value for _, _, value in left[:20]] == [one.value for one in job]
    assert left[0][1] > 0
    assert behind.records == left
    # It may have been overtaken, and then misses records that are gone; it reads nothing twice.
    assert current.records[-len(left) :] == left
    assert [offset for _, offset, _ in current.records] == sorted(
        {offset for _, offset, _ in current.records}
    )


def test_a_consumer_reads_a_topic_that_was_deleted_and_recreated_from_its_start(
    tmp_path: Path,
) -> None:
    with (
        builders.a_cluster(tmp_path, topics={TOPIC: 1}) as cluster,
        cluster.serve(auto_create=False) as server,
        Cluster(cluster.path) as other,
    ):
        builders.append_records(cluster, {(TOPIC, 0): builders.batch(n=50)})
        consuming = Consuming(server.bootstrap_servers, TOPIC)
        until(
            lambda: len(consuming.records) == 50 and consuming.committed, "it reads the first one"
        )
        other.delete_topic(TOPIC)
        (group,) = other.groups()
        assert {one.committed_offset for one in group.offsets.values()} <= {None}
        other.create_topic(TOPIC)
        builders.append_records(other, {(TOPIC, 0): builders.batch(n=5, seed=1)})
        until(lambda: len(consuming.records) == 55, "it reads the second one")
        consuming.stop()

        assert consuming.records[50:] == stored(cluster)
        (group,) = other.groups()
        assert group.lag == 0


def test_clients_go_on_while_old_segments_are_deleted(tmp_path: Path) -> None:
    with builders.a_cluster(tmp_path, topics={"other": 1}) as cluster:
        sizes = {"segment.bytes": 1 << 20, "retention.bytes": 1 << 20, "file.delete.delay.ms": 0}
        cluster.create_topic(TOPIC, config=sizes)
        with cluster.serve(log_retention_check_interval_ms=20) as server:
            producing = Producing(server.bootstrap_servers, TOPIC, partitions=1, value_bytes=50_000)
            consuming = Consuming(server.bootstrap_servers, TOPIC)
            starts: set[int] = set()

            def are_deleted() -> bool:
                (info,) = cluster.describe(TOPIC)
                starts.add(info.offsets.log_start_offset)
                return len(starts) > 3

            until(are_deleted, "segments are deleted again and again")
            producing.stop()
            until(lambda: len(producing.places) == producing.sent)
            left = stored(cluster)
            until(lambda: consuming.records and consuming.records[-1] == left[-1], "all is read")
            consuming.stop()

    assert left[0][1] > 0
    places = {(p, offset): value for value, (p, offset) in producing.places.items()}
    assert all(places[p, offset] == value for p, offset, value in consuming.records)
    offsets = [offset for _, offset, _ in consuming.records]
    assert offsets == sorted({*offsets})
    assert TopicPartition(TOPIC, 0) in builders.contents(Cluster(cluster.path))
