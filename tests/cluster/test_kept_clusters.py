"""Clusters that earlier versions wrote, kept as archives, go on working with today's code.

`data/clusters/NAME.tar.xz` is a cluster that the code of commit NAME wrote, `NAME.json` lists its records: every
codec and format, several segments, replicas, an overwrite, deleted records, idempotent producers, a
job that never committed, and, last, a commit that was decided and whose committer died. In 9f43e0a
topics were also deleted, recreated, grown and altered.
"""

from __future__ import annotations

import base64
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from spark_kbatch import Cluster
from spark_kbatch.commit.coordinator import Coordinator
from spark_kbatch.errors import OffsetOutOfRangeError
from spark_kbatch.model import TopicPartition
from tests.support import builders
from tests.support.reference import Record
from tests.support.soundness import ensure_sound
from tests.support.store import reader_of, store_of

ARCHIVES = sorted((Path(__file__).parents[1] / "data/clusters").glob("*.tar.xz"))
NEVER_COMMITTED = "d" * 32


class Kept:
    """An unpacked archive."""

    def __init__(self, archive: Path, folder: Path) -> None:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        self.path = folder / "cluster"
        self.expected: dict[str, Any] = json.loads(
            archive.with_name(archive.name.replace(".tar.xz", ".json")).read_text()
        )

    def open(self) -> Cluster:
        return Cluster(str(self.path))

    def records(self) -> dict[TopicPartition, list[Record]]:
        """Return the records that the cluster held when it was archived."""
        return {
            TopicPartition(topic, int(partition)): [_record(row) for row in rows]
            for topic, found in self.expected["topics"].items()
            for partition, rows in found["partitions"].items()
        }


def _record(row: list[Any]) -> Record:
    offset, timestamp, key, value, headers = row
    pairs = tuple((name, _bytes(text)) for name, text in headers)
    return Record(offset, timestamp, _bytes(key), _bytes(value), pairs)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


@pytest.fixture(params=ARCHIVES, ids=lambda archive: archive.name.split(".")[0])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    return Kept(request.param, tmp_path)


def test_there_are_archives() -> None:
    assert ARCHIVES


def test_all_records_are_read_as_they_were_written(kept: Kept) -> None:
    cluster = kept.open()

    assert builders.contents(cluster) == kept.records()
    found = {topic.name: topic.topic_id for topic in cluster.topics()}
    assert found == {name: topic["topic_id"] for name, topic in kept.expected["topics"].items()}
    assert sum(1 for _ in cluster.history()) == kept.expected["commits"]


def test_appends_and_commits_follow_the_existing_records(kept: Kept) -> None:
    before, new = kept.records(), builders.batch(n=3, seed=1)
    places = [tp for tp in before if not tp.topic.startswith(("format", "stamped"))]

    results = builders.append_records(kept.open(), {tuple(tp): new for tp in places})
    builders.write(kept.open(), {tuple(tp): [new] for tp in places})

    assert all(result.error is None for result in results.values())
    after = builders.contents(kept.open())
    added = builders.records_of([new, new])
    for tp, records in before.items():
        start = _log_end(kept, tp) - len(added)
        here = [one._replace(offset=start + one.offset) for one in added] if tp in places else []
        assert after[tp] == records + here
    for tp in places:
        ensure_sound(store_of(kept.open()).manager.log(tp))


def _log_end(kept: Kept, topic_partition: TopicPartition) -> int:
    (edges,) = reader_of(kept.open()).edges([topic_partition]).values()
    return edges.log_end_offset


def test_a_decided_commit_is_finished_and_its_retry_skipped(kept: Kept) -> None:
    before, new = kept.records(), builders.batch(n=3, seed=1)
    cluster = kept.open()
    extents = builders.staged(cluster, {("plain", 0): [new]})
    coordinator = Coordinator(
        store_of(cluster).manager,
        lambda: builders.FIRST_TIMESTAMP_MS,
        adopt_min_bytes=0,
        flush=False,
    )

    assert not coordinator.commit(extents, transactional_id="the-query", sequence=2)
    assert builders.contents(kept.open()) == before

    assert coordinator.commit(extents, transactional_id="the-query", sequence=3)
    assert len(builders.contents(kept.open())["plain", 0]) == len(before["plain", 0]) + 3


def test_deleted_records_stay_deleted(kept: Kept) -> None:
    with pytest.raises(OffsetOutOfRangeError):
        list(kept.open().read("zstd", start=0))


def test_repair_finds_nothing_to_do_and_changes_no_record(kept: Kept) -> None:
    cluster = kept.open()
    cluster.replicate()  # finishes the commit first, as every writer does

    for report in cluster.repair():
        assert (report.found, report.damaged) == ((), ()), report
    assert builders.contents(kept.open()) == kept.records()


def test_an_abandoned_job_is_removed_as_garbage(kept: Kept) -> None:
    garbage = kept.open().collect_garbage(staging_retention_ms=0)

    assert NEVER_COMMITTED in {abandoned.transaction for abandoned in garbage.abandoned_jobs}
    assert builders.contents(kept.open()) == kept.records()


def test_grown_altered_deleted_and_recreated_topics_are_as_they_were(tmp_path: Path) -> None:
    [archive] = (one for one in ARCHIVES if one.name.startswith("9f43e0a"))
    kept = Kept(archive, tmp_path)
    cluster = kept.open()
    cluster.replicate()

    topics = {topic.name: topic for topic in cluster.topics()}
    assert topics["grown"].partitions == 4
    assert topics["altered"].config.segment_bytes == 1 << 20
    assert topics["recreated"].partitions == 3
    assert "deleted" not in topics
    deleted = sorted(kept.path.glob("broker-*/*-delete"))
    assert len(deleted) == 4
    cluster.collect_garbage()
    assert not any(folder.exists() for folder in deleted)
