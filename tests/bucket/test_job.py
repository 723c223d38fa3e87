"""Jobs of Spark in a bucket: all or nothing, once, in the order of tasks."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import spark_kbatch
from spark_kbatch import Cluster, TopicConfig, TopicPartition
from spark_kbatch.bucket import reading, staging
from spark_kbatch.consumer.topic_reader import TopicReader
from spark_kbatch.errors import (
    ClusterReplacedError,
    CommitError,
    ConfigError,
    DataLossError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import OffsetRange, ReadRange
from spark_kbatch.opening.stores import open_topics
from spark_kbatch.options.read import parse_read_options
from tests.conftest import REPOSITORY
from tests.support.bucket_jobs import (
    QUERY,
    begun,
    commit_batch,
    commit_micro_batch,
    rows,
    staged,
)
from tests.support.bucket_objects import (
    CountingObjects,
    a_bucket,
    a_url,
    ledger_entries,
    opened_again,
    values,
)

EVENTS = TopicPartition("events", 0)


@pytest.fixture
def objects() -> CountingObjects:
    return CountingObjects()


@pytest.fixture
def cluster(objects: CountingObjects) -> Iterator[Cluster]:
    with a_bucket(objects, "events") as cluster:
        yield cluster


@pytest.fixture
def url(cluster: Cluster) -> str:
    return cluster._store.address


def test_rows_are_visible_once_the_job_commits_in_the_order_of_tasks(
    cluster: Cluster, url: str
) -> None:
    job = begun(url)
    messages = staged(job, ["a", "b"], [], ["c"], ["d"])
    assert [*values(cluster)] == []

    job.commit_batch([messages[3], *messages[:3]])

    assert [*values(cluster)] == ["d", "a", "b", "c"]


def test_a_job_of_many_tasks_puts_one_object_each_and_one_entry(
    url: str, objects: CountingObjects
) -> None:
    job = begun(url)
    objects.taken()
    messages = staged(job, *([f"{at}"] for at in range(5)))
    assert objects.taken() == {"put data": 5}  # a task does not even read the ledger

    job.commit_batch(messages)

    asked = objects.taken()
    assert asked["create ledger"] == 1
    assert "put data" not in asked


def test_where_extents_are_many_an_index_has_them(
    monkeypatch: pytest.MonkeyPatch, cluster: Cluster, url: str, objects: CountingObjects
) -> None:
    monkeypatch.setattr(staging, "INDEX_BYTES_MIN", 0)
    cluster.create_partitions("events", 3)
    job = begun(url)
    some = [job.stage(rows([f"{at}{p}" for p in range(3)], partition=[0, 1, 2])) for at in range(4)]
    objects.taken()
    job.commit_batch(some)
    assert objects.taken()["put data"] == 1
    commit_batch(url, [["last"]])

    again = opened_again(cluster)
    objects.taken()
    assert [one.offsets.high_watermark for one in again.describe("events")] == [5, 4, 4]
    assert objects.taken()["get data"] == 2  # both indexes, each once
    assert [*values(again, partitions=[0])] == ["00", "10", "20", "30", "last"]
    assert [*values(again, partitions=[2])] == ["02", "12", "22", "32"]


def test_a_batch_without_rows_writes_no_entry(url: str, objects: CountingObjects) -> None:
    count = ledger_entries(objects)
    commit_batch(url, [[], []])
    commit_micro_batch(url, 0, [])
    assert ledger_entries(objects) == count


def test_the_log_tells_what_a_commit_has_written(
    cluster: Cluster, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "spark_kbatch")
    commit_micro_batch(url, 3, ["a", "b"], ["c"])
    monkeypatch.setattr(staging, "INDEX_BYTES_MIN", 0)  # of the second, an index has the extents
    commit_batch(url, [["d"]], txnAppId="app", txnVersion=1)

    first, second = (one for one in caplog.messages if one.startswith("commit "))
    newest, oldest = cluster.history()
    assert first.startswith(
        f"commit {oldest.number}, micro-batch 3 of query {QUERY}: 3 records, {oldest.size_in_bytes} bytes, "
        "offsets events-0 0 to 2, in "
    )
    assert second.startswith(f"commit {newest.number}, transaction 1 of app@events: 1 records, ")
    assert "-1 bytes" not in second


# Failures.


def test_a_task_that_fails_leaves_nothing_and_the_job_goes_on_with_its_retry(
    cluster: Cluster, url: str, objects: CountingObjects
) -> None:
    def fails() -> Iterator[pa.RecordBatch]:
        yield from rows(["lost"])
        raise RuntimeError("killed")

    job = begun(url)
    first = staged(job, ["a"])
    with pytest.raises(RuntimeError, match="killed"):
        job.stage(fails())
    assert len(objects.names_of("data")) == 1

    job.commit_batch(first + staged(job, ["b"]))

    assert [*values(cluster)] == ["a", "b"]


def test_an_abort_deletes_nothing_so_that_a_late_commit_is_whole(
    cluster: Cluster, url: str, objects: CountingObjects
) -> None:
    job = begun(url)
    messages = staged(job, ["a"], ["b"])

    job.abort(messages)

    assert len(objects.names_of("data")) == 2
    assert [*values(cluster)] == []
    job.commit_batch(messages)  # of another process, which was not heard of
    assert [*values(cluster)] == ["a", "b"]


def test_a_record_that_is_too_large_fails_the_task_and_says_what_to_raise(url: str) -> None:
    job = begun(url, topic="new", max_message_bytes=1000)
    with pytest.raises(RecordTooLargeError, match=r"max\.message\.bytes") as raised:
        job.stage(rows(["v" * 2000]))
    assert raised.value.is_new


# Once.


def test_a_micro_batch_that_is_repeated_is_skipped(
    cluster: Cluster, url: str, objects: CountingObjects, caplog: pytest.LogCaptureFixture
) -> None:
    commit_micro_batch(url, 0, ["a"])
    commit_micro_batch(url, 1, ["b"])
    count = ledger_entries(objects)
    with caplog.at_level(logging.WARNING):
        commit_micro_batch(url, 1, ["b"])
        with pytest.raises(CommitError, match=f"micro-batch 0 of {QUERY} is no repetition"):
            commit_micro_batch(url, 0, ["a"])
    assert ledger_entries(objects) == count
    assert f"skipping duplicate transaction 1 of {QUERY}" in caplog.text

    commit_micro_batch(url, 2, ["c"])

    assert [*values(cluster)] == ["a", "b", "c"]


def test_of_two_processes_that_commit_one_micro_batch_one_does(cluster: Cluster, url: str) -> None:
    job = begun(url, is_micro_batch=True)
    first, second = (staged(job, [value], query_id=QUERY) for value in "ab")
    threads = [
        threading.Thread(target=begun(url, is_micro_batch=True).commit_micro_batch, args=(one, 0))
        for one in (first, second)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [*values(cluster)] in (["a"], ["b"])


def test_a_version_of_an_application_is_written_once(cluster: Cluster, url: str) -> None:
    for version, value in ((1, "a"), (1, "a"), (0, "older"), (2, "b")):
        commit_batch(url, [[value]], txnAppId="app", txnVersion=version)
    assert [*values(cluster)] == ["a", "b"]


def test_a_micro_batch_without_a_query_is_refused(url: str) -> None:
    job = begun(url, is_micro_batch=True)
    with pytest.raises(spark_kbatch.KBatchError, match="do not know their query"):
        job.commit_micro_batch(staged(job, ["a"]), 0)


# Overwrite.


def test_an_overwrite_replaces_all_partitions_by_one_entry(
    cluster: Cluster, url: str, objects: CountingObjects
) -> None:
    cluster.create_partitions("events", 2)
    job = begun(url)
    job.commit_batch([job.stage(rows(["a", "b"], partition=[0, 1]))])
    count = ledger_entries(objects)

    commit_batch(url, [["c"]], overwrite=True)

    assert ledger_entries(objects) == count + 1
    assert [*values(cluster)] == ["c"]
    edges = [one.offsets for one in cluster.describe("events")]
    assert [(one.log_start_offset, one.high_watermark) for one in edges] == [(1, 2), (1, 1)]
    commit_batch(url, [[]], overwrite=True)
    assert [*values(cluster)] == []


def test_who_reads_while_a_topic_is_overwritten_reads_what_it_began_with(
    cluster: Cluster, url: str
) -> None:
    commit_batch(url, [["a"], ["b"]])
    wanted = OffsetRange(EVENTS, 0, 2)
    source = cluster._store.source
    with source.fetcher(wanted, cluster.topic("events").topic_id) as fetcher:
        commit_batch(url, [["c"]], overwrite=True)
        read, _ = fetcher.fetch(EVENTS, ReadRange(0, 1 << 20))
    assert [header.base_offset for _, header in read.batches] == [0]


def test_a_task_that_runs_again_after_overwrites_reads_what_its_action_began_with(
    cluster: Cluster, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_batch(url, [["a"]])
    commit_batch(url, [["b"]])
    options = parse_read_options({"path": url, "subscribe": "events"})
    tasks = open_topics(options).plan(options)

    def run() -> list[bytes]:
        of_tasks = (
            open_topics(options).read_task(task, ["value"], options, "action") for task in tasks
        )
        return [
            value
            for batches in of_tasks
            for batch in batches
            for value in batch.column(0).to_pylist()
        ]

    assert run() == [b"a", b"b"]
    for number in range(40):  # the newest checkpoints are after them
        commit_batch(url, [[f"{number}"]], overwrite=True)
    assert run() == [b"a", b"b"]
    assert [*values(cluster)] == ["39"]

    with monkeypatch.context() as later:
        later.setattr(reading, "OVERWRITTEN_KEPT_MS", -1)
        with pytest.raises(DataLossError):
            run()
    cluster.delete_records({("events", 0): 42})
    with pytest.raises(DataLossError):
        run()


def test_a_range_over_several_overwrites_is_read_whole(cluster: Cluster, url: str) -> None:
    commit_batch(url, [["a"], ["b"]])
    for value in ("c", "d", "e"):
        commit_batch(url, [[value]], overwrite=True)
    reader = TopicReader(cluster._store.source)

    def read(start: int, end: int) -> list[bytes]:
        batches = reader.read_range(OffsetRange(EVENTS, start, end), ["value"])
        return [value for batch in batches for value in batch.column(0).to_pylist()]

    assert read(0, 5) == [b"a", b"b", b"c", b"d", b"e"]
    assert read(1, 4) == [b"b", b"c", b"d"]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("overwrite_delete_delay_ms", 0),
        ("staging_retention_ms", 60_000),
        ("commits_retention_bytes", -1),
    ],
)
def test_what_cannot_be_chosen_for_a_bucket_is_refused(url: str, option: str, value: int) -> None:
    with pytest.raises(ConfigError, match=option.replace("_", ".")):
        begun(url, **{option: value})


def test_rows_that_come_while_an_overwrite_runs_are_replaced_too(
    cluster: Cluster, url: str
) -> None:
    job = begun(url, overwrite=True)
    messages = staged(job, ["new"])
    commit_batch(url, [["meanwhile"]])
    job.commit_batch(messages)
    assert [*values(cluster)] == ["new"]


# Topics.


def test_a_topic_that_is_missing_is_created_by_the_commit_with_the_options(
    cluster: Cluster, url: str
) -> None:
    job = begun(url, topic="new", num_partitions=2, retention_ms=7)
    messages = staged(job, ["a"])
    assert cluster.topic_names() == ["events"]

    job.commit_batch(messages)

    made = cluster.topic("new")
    assert (made.partitions, made.known_config.retention_ms, made.given) == (
        2, 7, frozenset({"retention.ms"}),
    )  # fmt: skip
    assert [*values(cluster, "new")] == ["a"]
    commit_batch(url, [[]], topic="empty")
    assert cluster.topic_names() == ["empty", "events", "new"]


def test_rows_may_name_their_topics(cluster: Cluster, url: str) -> None:
    job = begun(url, topic=None)
    tasks = [job.stage(rows(["a", "b"], topic=["events", "new"])) for _ in range(2)]
    job.commit_batch(tasks)
    assert [*values(cluster)] == ["a", "a"]
    assert [*values(cluster, "new")] == ["b", "b"]


def test_two_jobs_that_plan_one_topic_share_it_and_other_settings_are_refused(
    cluster: Cluster, url: str
) -> None:
    first, second, third = (begun(url, topic="new", num_partitions=n) for n in (1, 1, 2))
    some = [staged(job, ["v"]) for job in (first, second, third)]
    first.commit_batch(some[0])
    second.commit_batch(some[1])
    with pytest.raises(CommitError, match="other settings"):
        third.commit_batch(some[2])
    assert [*values(cluster, "new")] == ["v", "v"]


def test_a_topic_that_is_deleted_while_a_job_runs_is_not_written_again(
    cluster: Cluster, url: str
) -> None:
    job = begun(url)
    messages = staged(job, ["a"])
    cluster.delete_topic("events")
    cluster.create_topic("events")
    with pytest.raises(UnknownTopicOrPartitionError, match="'events' was deleted while"):
        job.commit_batch(messages)
    assert [*values(cluster)] == []


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"log_dirs": "/a,/b"}, r"log\.dirs"),
        ({"transactional_id_expiration_ms": 1}, r"transactional\.id\.expiration\.ms"),
        ({"topic": "new", "replication_factor": 2}, r"replication\.factor"),
        ({"topic": "new", "message_timestamp_type": "LogAppendTime"}, "LogAppendTime"),
        ({"num_partitions": 7}, r"num\.partitions"),
    ],
)
def test_options_that_do_not_fit_are_refused_on_the_driver(
    url: str, options: dict[str, object], what: str
) -> None:
    with pytest.raises(ConfigError, match=what):
        begun(url, **options)


def test_what_may_not_be_created_is_refused() -> None:
    empty = a_url()
    with pytest.raises(ConfigError, match="no cluster is at"):
        begun(empty, auto_create_topics_enable=False)
    with a_bucket() as cluster, pytest.raises(UnknownTopicOrPartitionError, match="is false"):
        begun(cluster._store.address, auto_create_topics_enable=False)


# Several writers.


def test_writers_at_the_same_time_commit_all_they_have_once(cluster: Cluster, url: str) -> None:
    def write(name: str) -> None:
        for number in range(5):
            commit_batch(url, [[f"{name}-{number}"]])

    threads = [threading.Thread(target=write, args=(f"{at}",)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    found = [*values(cluster)]
    assert sorted(found) == sorted(f"{at}-{number}" for at in range(4) for number in range(5))
    for at in range(4):
        assert [one for one in found if one.startswith(f"{at}-")] == [f"{at}-{n}" for n in range(5)]


def test_processes_at_the_same_time_commit_to_a_folder_of_objects(tmp_path: Path) -> None:
    url = f"file+bucket://{tmp_path}"
    program = [sys.executable, "-m", "tests.support.bucket_writer", url]
    running = [
        subprocess.Popen([*program, name, "4"], cwd=REPOSITORY, stderr=subprocess.PIPE)
        for name in ("a", "b")
    ]
    for one in running:
        _, error = one.communicate(timeout=120)
        assert one.returncode == 0, error.decode()

    with spark_kbatch.open(url) as cluster:
        assert sorted(values(cluster)) == [f"{name}-{n}" for name in "ab" for n in range(4)]


def test_a_job_of_a_cluster_that_was_replaced_does_not_commit(
    cluster: Cluster, url: str, objects: CountingObjects
) -> None:
    job = begun(url)
    messages = staged(job, ["a"])
    objects.delete([one.name for one in objects.list("")])
    with spark_kbatch.open(url, create=True):
        with pytest.raises(ClusterReplacedError):
            job.commit_batch(messages)
    assert [*values(cluster)] == []


def test_a_topic_with_a_setting_that_nobody_could_read_again_is_not_created(
    cluster: Cluster, objects: CountingObjects
) -> None:
    before = ledger_entries(objects)
    with pytest.raises(ConfigError, match=r"segment\.bytes"):
        cluster.create_topic("small", config=TopicConfig(segment_bytes=20_000))
    assert ledger_entries(objects) == before
    assert [topic.name for topic in cluster.topics()] == ["events"]
