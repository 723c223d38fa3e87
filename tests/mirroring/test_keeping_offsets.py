"""A mirror that keeps offsets and ids: folders become buckets and back, and streams go on with their checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.cli.main import cli
from spark_kbatch.errors import ConfigError, DataLossError
from spark_kbatch.mirroring.copying import MirrorProgress
from tests.support import builders
from tests.support.broker_dirs import a_partition
from tests.support.bucket_objects import a_url
from tests.support.log_histories import data_batch, marker_batch
from tests.support.mirrors import with_gaps, write
from tests.support.stream_queries import Query


@pytest.fixture
def folder(tmp_path: Path) -> Cluster:
    """Return a cluster in a folder, whose first records are deleted."""
    cluster = builders.a_cluster(tmp_path / "folder", topics={"events": 2})
    write(cluster)
    cluster.alter_topic(
        "events", {"retention.ms": 123_456_789_000_000, "max.message.bytes": 7_000_000}
    )
    cluster.delete_records({("events", 0): 4})
    return cluster


def send(cluster: Cluster, *values: str) -> None:
    with cluster.producer() as producer:
        for value in values:
            producer.send("events", value, partition=0).result()


def moved(source: object, target: object, *words: str) -> str:
    """Mirror by the command, and return what it said."""
    words = ("mirror", str(source), str(target), "events", "--keep-offsets", *words)
    result = CliRunner().invoke(cli, words, prog_name="kbatch")
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def refused(source: object, target: object, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        spark_kbatch.mirror(str(source), str(target), "events", keep_offsets=True)


def edges(cluster: Cluster) -> list[tuple[int, int]]:
    rows = cluster.describe(["events"])
    return [(row.offsets.log_start_offset, row.offsets.log_end_offset) for row in rows]


def ensure_same(cluster: Cluster, other: Cluster) -> None:
    """Check that two clusters have the same topic with the same records at the same offsets."""
    assert builders.contents(other) == builders.contents(cluster)
    mine, theirs = cluster.topic("events"), other.topic("events")
    assert (theirs.topic_id, theirs.partitions) == (mine.topic_id, mine.partitions)
    assert theirs.config == mine.config
    assert edges(other) == edges(cluster)


def test_a_folder_becomes_a_bucket_and_a_folder_again(folder: Cluster, tmp_path: Path) -> None:
    url = a_url()
    moved(folder.path, url)
    with spark_kbatch.open(url) as bucket:
        assert edges(bucket) == [(4, 6), (0, 8)]
        ensure_same(folder, bucket)
        send(bucket, "a", "b")

        moved(url, tmp_path / "back")

        back = Cluster(tmp_path / "back")
        ensure_same(bucket, back)
    send(back, "c")
    assert edges(back) == [(4, 9), (0, 8)]
    assert not any(report.found or report.damaged for report in back.verify())


def test_what_comes_later_is_copied_to_its_offsets(folder: Cluster) -> None:
    url = a_url()
    moved(folder.path, url)
    write(folder)
    moved(folder.path, url)

    with spark_kbatch.open(url) as bucket:
        ensure_same(folder, bucket)
    assert "Copied 0 records" in moved(folder.path, url)


def test_empty_partitions_begin_where_they_did(folder: Cluster, tmp_path: Path) -> None:
    folder.delete_records({("events", 0): -1, ("events", 1): -1})
    url = a_url()
    moved(folder.path, url)
    moved(url, tmp_path / "back")

    back = Cluster(tmp_path / "back")
    assert edges(back) == [(6, 6), (8, 8)]
    ensure_same(folder, back)
    send(back, "a")
    assert [row.offset for row in builders.read_records(back, "events", partitions=[0])] == [6]


@pytest.mark.parametrize("into", ["bucket", "folder"])
def test_a_stream_goes_on_with_its_checkpoint(folder: Cluster, tmp_path: Path, into: str) -> None:
    query = Query(folder._store, subscribe="events")
    assert query.batch() == {"events-0": (4, 6), "events-1": (0, 8)}
    target = a_url() if into == "bucket" else str(tmp_path / "target")
    moved(folder.path, target)

    with spark_kbatch.open(target) as cluster:
        query.topics = cluster._store
        assert query.restart(path=target).batch() is None
        send(cluster, "a", "b", "c")
        assert query.batch() == {"events-0": (6, 9)}
        query.restart()
        assert query.batch() is None


def test_a_stream_stops_after_a_mirror_that_does_not_keep_offsets(folder: Cluster) -> None:
    query = Query(folder._store, subscribe="events")
    query.batch()
    url = a_url()
    spark_kbatch.mirror(folder.path, url, "events")

    with spark_kbatch.open(url) as bucket:
        query.topics = bucket._store
        query.restart()
        with pytest.raises(DataLossError):
            query.batch()


@pytest.mark.parametrize("into", ["bucket", "folder"])
def test_offsets_without_records_stay_without(tmp_path: Path, into: str) -> None:
    held = [
        *with_gaps(),
        data_batch(base_offset=30, n=1),
        marker_batch(base_offset=31, producer_id=4, abort=False),
    ]
    a_partition(tmp_path / "broker" / "events-0", {5: held}, index=False)
    target = a_url() if into == "bucket" else str(tmp_path / "target")

    moved(tmp_path / "broker", target, "--unit-bytes", "1")

    with spark_kbatch.open(target) as cluster:
        found = builders.read_records(cluster, "events")
        assert [record.offset for record in found] == [8, 9, 12, 14, 17, 20, 30]
        assert [(record.value or b"")[:8] for record in found[2:6]] == [
            b"value 12", b"value 14", b"value 17", b"v",
        ]  # fmt: skip
        assert edges(cluster) == [(5, 32)]
        assert [one.offset for one in builders.read_records(cluster, "events", start=18)] == [
            20,
            30,
        ]
        assert not any(report.found or report.damaged for report in cluster.verify())
        send(cluster, "more")
        assert builders.read_records(cluster, "events")[-1].offset == 32


def test_a_topic_with_another_id_is_refused(folder: Cluster) -> None:
    url = a_url()
    with spark_kbatch.open(url, create=True) as bucket:
        bucket.create_topic("events", 2)

    refused(folder.path, url, "keeps ids too")


def test_a_target_that_someone_else_writes_to_is_refused(folder: Cluster) -> None:
    url = a_url()
    moved(folder.path, url)
    with spark_kbatch.open(url) as bucket:
        send(bucket, "a")

    refused(folder.path, url, "events-0 of .* ends at 7, and was copied up to 6")


@pytest.mark.parametrize("into", ["bucket", "folder"])
def test_a_mirror_stops_when_someone_else_writes_to_what_it_copies(
    folder: Cluster, tmp_path: Path, into: str
) -> None:
    url = a_url() if into == "bucket" else str(tmp_path / "target")
    moved(folder.path, url)
    write(folder)

    def write_too(done: MirrorProgress) -> None:
        if done.units == 1 and not has_written:
            has_written.append(True)
            with spark_kbatch.open(url) as cluster:
                send(cluster, "theirs")

    has_written: list[bool] = []
    with pytest.raises(ConfigError, match="was written to by another process"):
        spark_kbatch.mirror(
            folder.path, url, "events", keep_offsets=True, unit_bytes=1, on_progress=write_too
        )
    with spark_kbatch.open(url) as cluster:
        assert edges(cluster) == [(4, 13), (0, 8)]


@pytest.mark.parametrize("into", ["bucket", "folder"])
def test_a_run_that_does_not_keep_offsets_any_more_is_refused(
    folder: Cluster, tmp_path: Path, into: str
) -> None:
    target = a_url() if into == "bucket" else str(tmp_path / "target")
    moved(folder.path, target)
    write(folder)
    folder.delete_records({("events", 0): 8})

    with pytest.raises(ConfigError, match="as before, by keep_offsets=True"):
        spark_kbatch.mirror(folder.path, target, "events", fail_on_data_loss=False)

    moved(folder.path, target, "--no-fail-on-data-loss")
    with spark_kbatch.open(target) as cluster:
        assert edges(cluster) == [(4, 12), (0, 16)]
        found = [record.offset for record in builders.read_records(cluster, "events")]
        assert found == [4, 5, 8, 9, 10, 11, *range(16)]


def test_a_topic_that_was_only_made_with_its_offsets_is_refused_without(folder: Cluster) -> None:
    folder.delete_records({("events", 0): -1, ("events", 1): -1})
    url = a_url()
    moved(folder.path, url)

    with pytest.raises(ConfigError, match="as before, by keep_offsets=True"):
        spark_kbatch.mirror(folder.path, url, "events")


def test_a_run_that_begins_to_keep_offsets_is_refused(folder: Cluster) -> None:
    url = a_url()
    spark_kbatch.mirror(folder.path, url, "events")

    refused(folder.path, url, "keeps ids too")


def test_a_target_that_ends_before_what_was_copied_is_refused(tmp_path: Path) -> None:
    """The logs of an old broker tell no topic id, by which a run would know how the mirror was begun."""
    directory = a_partition(tmp_path / "broker" / "events-0", {5: with_gaps()[:5]}, index=False)
    (directory / "partition.metadata").unlink()
    url = a_url()
    spark_kbatch.mirror(tmp_path / "broker", url, "events")

    refused(tmp_path / "broker", url, "events-0 of .* ends at 5, and was copied up to 18")


def test_a_mirror_that_died_before_its_first_records_goes_on(
    folder: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = a_url()
    with monkeypatch.context() as failing:
        failing.setattr("spark_kbatch.mirroring.into_bucket.BucketTarget.commit", _die)
        with pytest.raises(KeyboardInterrupt):
            spark_kbatch.mirror(folder.path, url, "events", keep_offsets=True)
    folder.delete_records({("events", 0): 5})  # the target begins at 4

    moved(folder.path, url)

    with spark_kbatch.open(url) as bucket:
        assert builders.contents(bucket) == builders.contents(folder)
        assert edges(bucket) == [(4, 6), (0, 8)]


def _die(*_given: object) -> None:
    raise KeyboardInterrupt


def test_progress_names_what_was_copied(folder: Cluster) -> None:
    url = a_url()
    row = json.loads(moved(folder.path, url, "--json"))
    assert (row["records"], row["topics_created"]) == (10, ["events"])
