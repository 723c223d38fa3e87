"""Jobs commit beside open transactions of clients: what is seen when, and that neither waits for the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.cluster.transactions.state import Status
from spark_kbatch.commit.coordinator import Overwrite
from tests.support import builders
from tests.support.raw_clients import RawClient
from tests.support.raw_transactions import (
    EVENTS,
    OTHER,
    RawProducer,
    committed,
    until_stable,
    until_status,
    values,
)
from tests.support.reference import Record, encode_batch
from tests.support.store import store_of

JOB = [Record(number, 0, None, b"job") for number in range(2)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with builders.a_cluster(tmp_path, topics={"events": 2}) as cluster:
        yield cluster


def run_job(cluster: Cluster, *, overwrite: bool = False) -> None:
    """Commit a job with two records for each partition, as another process does."""
    with Cluster(cluster.path) as other:
        extents = builders.staged(other, {EVENTS: [encode_batch(JOB)], OTHER: [encode_batch(JOB)]})
        replaced = Overwrite(other.topic("events"), 0) if overwrite else None
        builders.coordinator(other).commit(
            extents, transactional_id="job", **({"overwrite": replaced} if replaced else {})
        )


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_job_is_seen_where_no_transaction_is_open_and_elsewhere_when_it_ends(
    cluster: Cluster, client: RawClient, commit: bool
) -> None:
    producer = RawProducer(client).start().write(EVENTS, value=b"client")
    run_job(cluster)
    assert values(cluster, OTHER) == [b"job"] * 2
    assert values(cluster, EVENTS) == []
    assert values(cluster, EVENTS, committed=False) == [b"client", b"job", b"job"]
    assert committed(client).last_stable_offset == 0

    producer.end(commit=commit)
    until_stable(cluster)
    assert values(cluster, EVENTS) == [b"client"] * commit + [b"job"] * 2
    assert committed(client).last_stable_offset == 4


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_job_that_overwrites_removes_what_an_open_transaction_has_written_so_far(
    cluster: Cluster, client: RawClient, commit: bool
) -> None:
    producer = RawProducer(client).start().write(EVENTS, OTHER, value=b"before")
    run_job(cluster, overwrite=True)
    assert values(cluster) == []  # the old records are gone, and the job's are held back
    producer.write(EVENTS, value=b"after").end(commit=commit)
    until_stable(cluster, EVENTS)
    until_stable(cluster, OTHER)

    after = [b"after"] * commit
    assert values(cluster, EVENTS) == [b"job"] * 2 + after
    assert values(cluster, OTHER) == [b"job"] * 2
    producer.write(EVENTS, value=b"next").end(commit=True)
    until_stable(cluster, EVENTS)
    assert values(cluster, EVENTS) == [b"job"] * 2 + after + [b"next"]


def test_transactions_end_while_a_commit_is_going_on_elsewhere(
    cluster: Cluster, client: RawClient
) -> None:
    locks = store_of(Cluster(cluster.path)).manager.locks
    with locks.commit(), locks.partitions([EVENTS]):
        producer = RawProducer(client).start()
        for number in range(10):
            producer.write(OTHER).end(commit=number % 2 == 0)
            until_status(cluster, Status.COMPLETE_ABORT if number % 2 else Status.COMPLETE_COMMIT)
    assert values(cluster, OTHER) == [b"v"] * 5
