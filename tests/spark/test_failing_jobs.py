"""Failing jobs: their errors, and that the next job works; the writer is used without a session.

`tests/commit/test_crash_matrix.py` covers every step of a job. These tests check what the errors say, and
jobs whose topic or files change while they run.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_kbatch import Cluster
from spark_kbatch.catalog import folder_clock as clock_module
from spark_kbatch.cluster import job as job_module
from spark_kbatch.cluster.job import Job
from spark_kbatch.commit import coordinator
from spark_kbatch.errors import CommitError, KafkaStorageError, UnknownTopicOrPartitionError
from spark_kbatch.files import Buffer, Files
from spark_kbatch.model import TopicPartition
from spark_kbatch.opening.stores import begin_job
from spark_kbatch.options.write import parse_write_options
from spark_kbatch.store.job import StagedRows
from tests.support import builders
from tests.support.soundness import ensure_sound
from tests.support.store import store_of


def rows(*partitions: int) -> pa.RecordBatch:
    """Make one row for each value."""
    numbers = pa.array(partitions, pa.int32())
    return pa.record_batch({"value": [b"a" * 100] * len(partitions), "partition": numbers})


VALUES = rows(0, 1)
DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    cluster = Cluster(str(tmp_path), create=True)
    cluster.create_topic("events", partitions=2)
    return cluster


def begin(cluster: Cluster, **options: str) -> Job:
    given = {"path": str(cluster.path), "topic": "events", "flush": "false"}
    return begin_job(parse_write_options(given | options))


def stage(job: Job) -> StagedRows:
    return job.stage(iter([VALUES]))


def written(cluster: Cluster) -> int:
    """Return how many jobs of one task are in the topic, each complete."""
    count = sum(map(len, builders.contents(Cluster(str(cluster.path))).values()))
    assert count % VALUES.num_rows == 0
    return count // VALUES.num_rows


def ensure_next_job_works(cluster: Cluster) -> None:
    before = written(cluster)
    job = begin(cluster)
    job.commit([stage(job)])
    assert written(cluster) == before + 1
    for partition in cluster.partitions("events"):
        ensure_sound(store_of(Cluster(str(cluster.path))).manager.log(partition))


def break_files(patch: pytest.MonkeyPatch, where: str, number: int) -> None:
    """Make every write and creation below a folder of this name fail."""
    write_at, create = Files.write_at, Files.create

    def refuse(path: Path) -> None:
        if where in path.parts:
            raise OSError(number, os.strerror(number), str(path))

    def refusing_write(files: Files, descriptor: int, position: int, data: Buffer) -> None:
        refuse(Path(f"/proc/self/fd/{descriptor}").readlink())
        write_at(files, descriptor, position, data)

    def refusing_create(files: Files, path: Path) -> int:
        refuse(path)
        return create(files, path)

    patch.setattr(Files, "write_at", refusing_write)
    patch.setattr(Files, "create", refusing_create)


ERRORS = pytest.mark.parametrize(
    ("number", "words"),
    [
        pytest.param(errno.ENOSPC, "No space left on device", id="disk full"),
        pytest.param(errno.EACCES, "Permission denied", id="permission lost"),
        pytest.param(errno.EROFS, "Read-only file system", id="remounted read-only"),
    ],
)


@ERRORS
def test_a_task_that_cannot_stage_says_why_and_that_nothing_is_visible(
    cluster: Cluster, number: int, words: str
) -> None:
    job = begin(cluster)
    done = stage(job)
    with pytest.MonkeyPatch.context() as patch:
        break_files(patch, "staging-0", number)
        with pytest.raises(KafkaStorageError, match=f"cannot stage.*{words}.*nothing of the job"):
            stage(job)
    job.abort([done])
    assert list((cluster.path / "staging-0").iterdir()) == []
    assert written(cluster) == 0
    ensure_next_job_works(cluster)


@ERRORS
def test_a_commit_that_cannot_place_says_why_and_that_nothing_is_visible(
    cluster: Cluster, number: int, words: str
) -> None:
    job = begin(cluster)
    done = stage(job)
    with pytest.MonkeyPatch.context() as patch:
        break_files(patch, "events-0", number)
        break_files(patch, "events-1", number)
        with pytest.raises(CommitError, match=f"nothing is visible.*{words}"):
            job.commit([done])
    assert written(cluster) == 0
    # Spark aborts a job whose commit failed, but its data can still be committed.
    job.commit([done])
    assert written(cluster) == 1
    ensure_next_job_works(cluster)


def test_a_commit_that_cannot_flip_says_that_the_data_is_committed(cluster: Cluster) -> None:
    job = begin(cluster)
    done = stage(job)
    flips: list[Path] = []
    write_at = Files.write_at

    def refuse_flips(files: Files, descriptor: int, position: int, data: Buffer) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.name == "kbatch.state" and path.parent.name.startswith("events-"):
            flips.append(path)
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        write_at(files, descriptor, position, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Files, "write_at", refuse_flips)
        with pytest.raises(CommitError, match=r"the data is committed.*Input/output error"):
            job.commit([done])
    assert flips
    assert written(cluster) == 1
    job.abort([done])  # as Spark does; it undoes nothing
    assert written(cluster) == 1
    ensure_next_job_works(cluster)


def delete(cluster: Cluster) -> None:
    cluster.delete_topic("events")


def recreate(cluster: Cluster) -> None:
    delete(cluster)
    cluster.create_topic("events", partitions=2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(recreate, "recreated while the job ran.*run the job again", id="recreated"),
        pytest.param(delete, "'events' was deleted while the job ran", id="deleted"),
    ],
)
def test_a_job_whose_topic_is_deleted_or_recreated_fails_and_nothing_is_visible(
    cluster: Cluster, change: Callable[[Cluster], object], words: str
) -> None:
    job = begin(cluster)
    done = stage(job)
    change(cluster)
    with pytest.raises(CommitError, match=words) as error:
        job.commit([done])
    assert error.value.outcome == coordinator.NOTHING_VISIBLE
    job.abort([done])
    if change is delete:
        cluster.create_topic("events", partitions=2)
    assert written(cluster) == 0
    ensure_next_job_works(cluster)


@pytest.mark.parametrize("change", [delete, recreate])
def test_a_task_does_not_recreate_a_deleted_topic(
    cluster: Cluster, change: Callable[[Cluster], object]
) -> None:
    job = begin(cluster)
    change(cluster)
    before = cluster.topic_names()
    with pytest.raises(UnknownTopicOrPartitionError, match="was deleted while the job ran"):
        stage(job)
    assert cluster.topic_names() == before
    job.abort([])
    assert list((cluster.path / "staging-0").iterdir()) == []


@pytest.mark.parametrize("overwrite", [False, True], ids=["append", "overwrite"])
def test_a_job_whose_topic_grows_while_it_runs_is_committed(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, overwrite: bool
) -> None:
    """Its rows stay in the partitions that its tasks chose, like those of any running producer."""
    options = parse_write_options({"path": str(cluster.path), "topic": "events", "flush": "false"})
    job = begin_job(options, overwrite=overwrite)
    done = stage(job)
    cluster.create_partitions("events", 4)
    builders.append_records(cluster, {("events", 3): builders.batch(n=4)})
    job.commit([done])
    counts = [len(records) for records in builders.contents(cluster).values()]
    assert counts == [1, 1, 0, 0 if overwrite else 4]
    assert "got partitions 2 to 3 while the job ran" in caplog.text
    ensure_next_job_works(cluster)


# Topics that do not exist yet.


def test_a_job_that_fails_leaves_no_topic(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, create=True)
    job = begin(cluster, **{"num.partitions": "2"})
    done = stage(job)
    assert cluster.topic_names() == []
    job.abort([done])
    assert cluster.topic_names() == []
    assert list((cluster.path / "staging-0").iterdir()) == []


def write_batch(cluster: Cluster) -> None:
    job = begin(cluster, **{"num.partitions": "2", "txnAppId": "nightly", "txnVersion": "7"})
    job.commit_batch([stage(job)])


def write_micro_batch(cluster: Cluster) -> None:
    options = {"path": str(cluster.path), "topic": "events", "num.partitions": "2"}
    parsed = parse_write_options(options)
    staged = begin_job(parsed, is_micro_batch=True).stage([VALUES], query_id="query")
    begin_job(parsed, is_micro_batch=True).commit_micro_batch([staged], 3)


@pytest.mark.parametrize("write", [write_batch, write_micro_batch])
def test_a_duplicate_does_not_bring_back_a_topic_that_was_deleted(
    tmp_path: Path, write: Callable[[Cluster], None], caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(tmp_path, create=True)
    write(cluster)
    assert written(cluster) == 1
    cluster.delete_topic("events")
    write(cluster)
    assert "skipping duplicate transaction" in caplog.text
    assert cluster.topic_names() == []
    assert list((cluster.path / "staging-0").iterdir()) == []


@pytest.mark.parametrize("overwrite", [False, True], ids=["append", "overwrite"])
def test_jobs_that_begin_together_write_to_the_topic_that_the_first_one_creates(
    tmp_path: Path, overwrite: bool
) -> None:
    cluster = Cluster(tmp_path, create=True)
    first = begin(cluster, **{"num.partitions": "2"})
    options = {"path": str(tmp_path), "topic": "events", "num.partitions": "2"}
    second = begin_job(parse_write_options(options), overwrite=overwrite)
    staged = [stage(second), stage(second)]
    first.commit([stage(first)])
    topic = cluster.topic("events")
    second.commit(staged)
    assert cluster.topic("events") == topic
    assert written(cluster) == (2 if overwrite else 3)


@pytest.mark.parametrize(
    "meanwhile",
    [{"partitions": 3}, {"partitions": 2, "config": {"retention.ms": 5}}],
    ids=["partitions", "settings"],
)
def test_a_job_whose_topic_another_writer_creates_differently_fails_and_nothing_is_visible(
    tmp_path: Path, meanwhile: dict[str, Any]
) -> None:
    cluster = Cluster(tmp_path, create=True)
    job = begin(cluster, **{"num.partitions": "2"})
    done = stage(job)
    cluster.create_topic("events", **meanwhile)
    with pytest.raises(CommitError, match=r"with other settings.*; run the job again") as error:
        job.commit([done])
    assert error.value.outcome == coordinator.NOTHING_VISIBLE
    job.abort([done])
    assert written(cluster) == 0


# Staged files that disappear.


def age(path: Path, days: float) -> None:
    for found in [path, *path.rglob("*")]:
        then_s = (job_module.now_ms() - days * DAY_MS) / 1000
        os.utime(found, (then_s, then_s))


@pytest.mark.parametrize("flush", ["true", "false"])
def test_the_error_for_a_job_whose_files_were_removed_names_the_option(
    cluster: Cluster, flush: str
) -> None:
    job = begin(cluster, flush=flush)
    done = [stage(job), stage(job)]
    shutil.rmtree(cluster.path / "staging-0" / Path(done[1].extents[0].file).parent)
    with pytest.raises(CommitError, match=r"nothing is visible.*staging\.retention\.ms"):
        job.commit(done)
    job.abort(done)
    assert written(cluster) == 0
    ensure_next_job_works(cluster)


@pytest.mark.parametrize("flush", ["true", "false"])
@pytest.mark.parametrize("adopt_min_bytes", ["0", "8388608"], ids=["makes a file", "makes none"])
def test_the_error_for_a_task_whose_files_are_removed_while_it_writes_names_the_option(
    cluster: Cluster, flush: str, adopt_min_bytes: str
) -> None:
    options = {"adopt.min.bytes": adopt_min_bytes, "batch.size": "1000", "flush": flush}
    job = begin(cluster, **options)

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows(*[0] * 100)
        (attempt,) = (cluster.path / "staging-0").glob("*/*/")
        shutil.rmtree(attempt)
        yield rows(*[1] * 100)

    with pytest.raises(KafkaStorageError, match=r"staging\.retention\.ms"):
        job.stage(batches())
    job.abort([])
    assert written(cluster) == 0
    ensure_next_job_works(cluster)


def test_the_error_for_a_file_removed_while_it_is_placed_names_the_option(cluster: Cluster) -> None:
    job = begin(cluster)
    done = stage(job)
    read_into = Files.read_into

    def removing(files: Files, path: Path, position: int, buffer: memoryview) -> int:
        if path.name == "shared":
            path.unlink()
        return read_into(files, path, position, buffer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Files, "read_into", removing)
        with pytest.raises(CommitError, match=r"nothing is visible.*staging\.retention\.ms"):
            job.commit([done])
    assert written(cluster) == 0
    ensure_next_job_works(cluster)


def test_a_commit_removes_staged_files_of_abandoned_jobs(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    dead, silent, alive = (begin(cluster) for _ in range(3))
    for job, days in ((dead, 7.1), (silent, 6.9), (alive, 8)):
        done = stage(job)
        age(store_of(cluster).metadata.cluster_file.log_dir(0).staging / done.job, days)
    newest = cluster.path / "staging-0" / stage(alive).extents[0].file
    age(newest.parent.parent, 8)
    os.utime(newest)  # a task is still writing, so all files of its job stay

    ensure_next_job_works(cluster)
    left = {path.name for path in (cluster.path / "staging-0").iterdir()}
    assert left == {silent.id, alive.id}
    assert f"staged by abandoned job {dead.id}" in caplog.text

    job = begin(cluster, **{"staging.retention.ms": str(6 * DAY_MS)})
    job.commit([stage(job)])
    left = {path.name for path in (cluster.path / "staging-0").iterdir()}
    assert left == {alive.id}


def test_tasks_and_commit_of_a_job_whose_files_were_collected_fail_and_name_the_option(
    cluster: Cluster,
) -> None:
    job = begin(cluster)
    done = stage(job)
    age(store_of(cluster).metadata.cluster_file.log_dir(0).staging / done.job, 8)
    ensure_next_job_works(cluster)
    with pytest.raises(KafkaStorageError, match=r"staging\.retention\.ms"):
        stage(job)
    with pytest.raises(CommitError, match=r"nothing is visible.*staging\.retention\.ms"):
        job.commit([done])
    assert written(cluster) == 1


# A clock that is set back.


def test_a_clock_that_is_set_back_stops_nothing_and_removes_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = begin(cluster)
    staged = stage(other)
    config = {"message.timestamp.type": "LogAppendTime", "retention.ms": str(DAY_MS)}
    cluster.create_topic("stamped", partitions=2, config=config)
    now_ms = job_module.now_ms()
    for number, days in enumerate((0, -400, -200)):
        moment = now_ms + days * DAY_MS
        for module in (job_module, clock_module):
            monkeypatch.setattr(module, "now_ms", lambda moment=moment: moment)
        for topic in ("events", "stamped"):
            job = begin(cluster, topic=topic)
            job.commit([stage(job)])
        records = builders.contents(Cluster(str(cluster.path)))[TopicPartition("stamped", 0)]
        assert [record.timestamp for record in records[number:]] == [moment]
    monkeypatch.undo()
    other.commit([staged])
    assert written(cluster) == 7
    ensure_sound(store_of(Cluster(str(cluster.path))).manager.log(TopicPartition("stamped", 0)))
    ensure_next_job_works(cluster)
