"""Transactions of a producer in a folder and in a bucket: each is one commit, or nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.bucket.job import BucketJob
from spark_kbatch.cluster.job import Job
from spark_kbatch.commit.coordinator import Coordinator
from spark_kbatch.errors import (
    CommitError,
    ConfigError,
    KafkaStorageError,
    KBatchError,
    ProducerFencedError,
    RecordTooLargeError,
    TransactionAbortedError,
)
from spark_kbatch.producer.transactional import TransactionalProducer

EVENTS = ("events", 0)


@pytest.fixture(params=["folder", "bucket"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    url = tmp_path / "cluster" if request.param == "folder" else f"file+bucket://{tmp_path}/bucket"
    with spark_kbatch.open(url, create=True) as cluster:
        cluster.create_topic("events", 2)
        yield cluster


@pytest.fixture
def producer(cluster: Cluster) -> Iterator[TransactionalProducer]:
    with cluster.producer(transactional_id="orders") as producer:
        yield producer


def visible(cluster: Cluster, topic: str = "events") -> list[bytes]:
    rows = cluster.read(topic).read_all().sort_by([("partition", "ascending")])
    found: list[bytes] = rows["value"].to_pylist()
    return found


def files(cluster: Cluster) -> set[str]:
    """Return all staged files of a cluster in a folder."""
    found = Path(cluster.address).rglob("*staging*/**/*")
    return {str(one) for one in found if one.is_file()}


def test_records_are_visible_once_their_transaction_is_committed_as_one_commit(
    cluster: Cluster, producer: TransactionalProducer
) -> None:
    producer.begin_transaction()
    future = producer.send("events", "a", "k", headers={"h": b"x"}, partition=0)
    rows = producer.send_arrow("events", pa.table({"value": ["b", "c"], "partition": [1, 1]}))
    producer.flush()
    assert future.result(0).offset == -1
    assert rows.result(0).column("offset").to_pylist() == [-1, -1]
    assert visible(cluster) == []

    producer.commit_transaction()

    assert visible(cluster) == [b"a", b"b", b"c"]
    (commit,) = cluster.history()
    assert (commit.records_count, commit.sequence) == (3, 0)
    assert (commit.transactional_id, commit.author.application_id) == ("orders@/producer", "orders")


def test_transactions_follow_each_other_and_those_that_are_aborted_leave_nothing(
    cluster: Cluster, producer: TransactionalProducer
) -> None:
    for number in range(4):
        producer.begin_transaction()
        producer.send("events", f"{number}", partition=0)
        if number % 2:
            producer.flush()
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    with producer.transaction():
        pass

    assert visible(cluster) == [b"0", b"2"]
    assert [one.sequence for one in cluster.history()] == [1, 0]
    assert cluster.address.startswith("file+") or not files(cluster)


def test_what_was_not_staged_fails_with_the_abort(cluster: Cluster) -> None:
    with cluster.producer(transactional_id="orders", linger_ms=60_000) as producer:
        producer.begin_transaction()
        future = producer.send("events", "a", partition=0)
        producer.abort_transaction()

    with pytest.raises(TransactionAbortedError, match="the transaction was aborted"):
        future.result(0)


def test_a_topic_that_does_not_exist_is_created_by_the_commit(
    cluster: Cluster, producer: TransactionalProducer
) -> None:
    producer.begin_transaction()
    producer.send("new", "a")
    producer.flush()
    producer.abort_transaction()
    assert cluster.topic_names() == ["events"]
    with producer.transaction():
        producer.send("new", "b")
        producer.send("newer", "c")
    assert (visible(cluster, "new"), visible(cluster, "newer")) == ([b"b"], [b"c"])


def test_offsets_of_groups_are_refused_by_name(
    cluster: Cluster, producer: TransactionalProducer
) -> None:
    with pytest.raises(ConfigError, match="offsets of groups in a real cluster: in "):
        producer.committed_offsets("readers")
    producer.begin_transaction()
    with pytest.raises(ConfigError, match="offsets of groups in a real cluster: in "):
        producer.send_offsets_to_transaction({EVENTS: 7}, "readers")
    producer.send("events", "a")
    producer.commit_transaction()

    assert visible(cluster) == [b"a"]


# Another producer.


def test_a_producer_whose_name_has_committed_since_is_fenced(
    cluster: Cluster, producer: TransactionalProducer
) -> None:
    with producer.transaction():
        producer.send("events", "1", partition=0)
    producer.begin_transaction()
    producer.send("events", "old", partition=0)
    with cluster.producer(transactional_id="orders") as other, other.transaction():
        other.send("events", "2", partition=0)
    with pytest.raises(ProducerFencedError, match="has committed a transaction since; nothing is"):
        producer.commit_transaction()
    producer.abort_transaction()
    with pytest.raises(ProducerFencedError):
        producer.begin_transaction()
    with cluster.producer(transactional_id="others") as third, third.transaction():
        third.send("events", "3", partition=0)

    assert visible(cluster) == [b"1", b"2", b"3"]


def test_a_name_goes_on_where_the_last_process_ended(cluster: Cluster) -> None:
    for number in range(3):
        with cluster.producer(transactional_id="orders") as producer, producer.transaction():
            producer.send("events", f"{number}", partition=0)

    assert visible(cluster) == [b"0", b"1", b"2"]
    assert [one.sequence for one in cluster.history()] == [2, 1, 0]


# What cannot be committed.


def job_of(cluster: Cluster) -> type[Job] | type[BucketJob]:
    return BucketJob if cluster.address.startswith("file+") else Job


@pytest.mark.parametrize("is_done", [False, True])
def test_a_commit_whose_outcome_is_unknown_is_repeated_and_written_once(
    cluster: Cluster,
    producer: TransactionalProducer,
    monkeypatch: pytest.MonkeyPatch,
    is_done: bool,
) -> None:
    kind = job_of(cluster)
    real: Callable[..., Any] = kind.commit

    def commit(job: Any, *given: Any) -> Any:
        monkeypatch.setattr(kind, "commit", real)
        if is_done:
            real(job, *given)
        raise CommitError("unknown", "no answer")

    producer.begin_transaction()
    producer.send("events", "a", partition=0)
    monkeypatch.setattr(kind, "commit", commit)
    with pytest.raises(CommitError, match="whether the transaction is committed is not known"):
        producer.commit_transaction()
    with pytest.raises(CommitError, match="cannot be aborted: call commit_transaction"):
        producer.abort_transaction()
    producer.commit_transaction()
    with producer.transaction():
        producer.send("events", "b", partition=0)

    assert visible(cluster) == [b"a", b"b"]
    assert [one.sequence for one in cluster.history()] == [1, 0]


def test_a_record_that_cannot_be_staged_can_only_be_aborted(
    cluster: Cluster, producer: TransactionalProducer
) -> None:
    cluster.alter_topic("events", {"max.message.bytes": 1000})
    producer.begin_transaction()
    producer.send("events", "a", partition=0)
    future = producer.send("events", os.urandom(5000), partition=1)
    assert isinstance(future.exception(10), RecordTooLargeError)
    for _ in range(2):
        with pytest.raises(CommitError, match=r"nothing is visible, and abort_transaction\(\) is"):
            producer.commit_transaction()
    producer.abort_transaction()
    with producer.transaction():
        producer.send("events", "b")

    assert visible(cluster) == [b"b"]


def test_a_disk_that_fails_within_a_commit_leaves_a_transaction_to_abort(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(5, "no such disk")

    with spark_kbatch.open(tmp_path / "cluster", create=True) as cluster:
        producer = cluster.producer(transactional_id="orders")
        producer.begin_transaction()
        producer.send("events", "a", partition=0)
        with monkeypatch.context() as patched:
            patched.setattr(Coordinator, "_publish_locked", fail)
            with pytest.raises(CommitError, match=r"nothing is visible: .*no such disk"):
                producer.commit_transaction()
        producer.abort_transaction()
        assert not files(cluster)
        with monkeypatch.context() as patched:
            patched.setattr(Job, "begin", fail)
            with pytest.raises(KafkaStorageError, match="no such disk"):
                producer.begin_transaction()
        with producer.transaction():
            producer.send("events", "b")

        assert visible(cluster) == [b"b"]


def test_places_without_transactions_refuse_the_option_by_name() -> None:
    with (
        spark_kbatch.open("memory://transactions", create=True) as cluster,
        pytest.raises(
            ConfigError, match=r"'transactional.id' is 'a'; memory://transactions has no"
        ),
    ):
        cluster.producer(transactional_id="a")


def test_closing_the_cluster_aborts_what_is_open(tmp_path: Path) -> None:
    with spark_kbatch.open(tmp_path / "cluster", create=True) as cluster:
        producer = cluster.producer(transactional_id="orders")
        producer.begin_transaction()
        producer.send("events", "a")
        producer.flush()
    with spark_kbatch.open(tmp_path / "cluster") as cluster:
        assert cluster.topic_names() == []
        assert not files(cluster)
    with pytest.raises(KBatchError, match="the producer is closed"):
        producer.begin_transaction()
