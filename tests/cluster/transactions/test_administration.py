"""Readers and committers end what no server does, at its time-out and not before, and tell what they wait for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.cluster.transactions import administration
from spark_kbatch.cluster.transactions.administration import FolderTransactions
from spark_kbatch.cluster.transactions.state import Status
from spark_kbatch.log.steps import expiring_ms
from tests.server.transactions.test_beside_jobs import run_job
from tests.support import builders
from tests.support.open_transactions import TIMEOUT_MS, leave_open, look_again, store
from tests.support.raw_clients import RawClient
from tests.support.raw_transactions import EVENTS, OTHER, RawProducer, state_of, values
from tests.support.store import store_of

LATE_MS, MINUTE_MS = TIMEOUT_MS + 1000, 60_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with builders.a_cluster(tmp_path, topics={"events": 2}) as cluster:
        yield cluster


def status(cluster: Cluster) -> Status:
    return state_of(cluster).status


def read(cluster: Cluster) -> None:
    assert values(cluster) == []


def follow(cluster: Cluster) -> None:
    assert [*cluster.follow("events", start="earliest", timeout=0.1)] == []


def commit(cluster: Cluster) -> None:
    with cluster.producer(transactional_id="job") as producer:
        producer.begin_transaction()
        producer.send("events", "of the job", partition=EVENTS.partition)
        producer.commit_transaction()


def collect_garbage(cluster: Cluster) -> None:
    cluster.collect_garbage()


@pytest.mark.parametrize("act", [read, follow, commit, collect_garbage])
def test_who_finds_a_transaction_past_its_time_out_ends_it(
    cluster: Cluster, act: Callable[[Cluster], None], caplog: pytest.LogCaptureFixture
) -> None:
    leave_open(cluster, EVENTS, OTHER, age_ms=LATE_MS)

    act(cluster)

    assert status(cluster) is Status.COMPLETE_ABORT
    assert "'t' is ended, as no server runs" in caplog.text
    assert values(cluster) == ([b"of the job"] if act is commit else [])
    ends = store_of(cluster).snapshots.replicas([EVENTS, OTHER])
    assert [one.offsets.held_back for one in ends.values()] == [0, 0]


def overwrite(cluster: Cluster) -> None:
    run_job(cluster, overwrite=True)


def delete_records(cluster: Cluster) -> None:
    cluster.delete_records({EVENTS: 1})
    with cluster.producer() as producer:
        producer.send("events", b"job", partition=EVENTS.partition)


@pytest.mark.parametrize("drop", [overwrite, delete_records])
@pytest.mark.parametrize("act", [values, commit, collect_garbage])
def test_who_finds_a_transaction_whose_records_are_gone_ends_it_too(
    cluster: Cluster,
    drop: Callable[[Cluster], None],
    act: Callable[[Cluster], object],
) -> None:
    """Its partition still waits for its end, and knows no producer of it any more."""
    with cluster.serve() as server, RawClient(server, timeout_s=60) as client:
        RawProducer(client).start().write(EVENTS)
        drop(cluster)
    shown = FolderTransactions(store_of(cluster)).shown()
    assert [(one.transactional_id, [*at]) for one, at in shown] == [("t", [EVENTS])]
    assert values(cluster, EVENTS) == []
    left = state_of(cluster)
    store(cluster, left._replace(start_ms=left.start_ms - LATE_MS))
    look_again()

    act(cluster)

    assert status(cluster) is Status.COMPLETE_ABORT
    assert values(cluster, EVENTS)[:1] == [b"job"]


def test_a_reader_sees_at_once_what_was_behind_a_transaction_that_it_has_ended(
    cluster: Cluster,
) -> None:
    leave_open(cluster, EVENTS)
    commit(cluster)
    assert values(cluster) == []

    left = state_of(cluster)
    store(cluster, left._replace(start_ms=left.start_ms - LATE_MS))
    look_again()

    assert values(cluster) == [b"of the job"]


def test_before_its_time_out_nothing_is_ended_and_it_is_looked_at_again_then(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    leave_open(cluster, EVENTS, age_ms=TIMEOUT_MS - MINUTE_MS // 2)
    read(cluster)
    assert status(cluster) is Status.ONGOING

    (at_ms,) = administration._next_look_ms.values()
    now_ms = administration.monotonic_ms()
    assert 0 < at_ms - now_ms <= MINUTE_MS // 2
    left = state_of(cluster)
    store(cluster, left._replace(start_ms=left.start_ms - MINUTE_MS))
    read(cluster)
    assert status(cluster) is Status.ONGOING  # It was not looked at.
    monkeypatch.setattr(administration, "monotonic_ms", lambda: at_ms)
    read(cluster)
    assert status(cluster) is Status.COMPLETE_ABORT


def test_a_process_that_reads_several_topics_ends_each_transaction_at_its_own_time_out(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_open(cluster, EVENTS, name="long")
    leave_open(cluster, OTHER, name="short", age_ms=TIMEOUT_MS - MINUTE_MS // 2)
    values(cluster, EVENTS)
    (at_ms,) = administration._next_look_ms.values()
    assert at_ms - administration.monotonic_ms() <= MINUTE_MS // 2
    short = state_of(cluster, "short")
    store(cluster, short._replace(start_ms=short.start_ms - MINUTE_MS))
    monkeypatch.setattr(administration, "monotonic_ms", lambda: at_ms)
    values(cluster, EVENTS)

    assert state_of(cluster, "short").status is Status.COMPLETE_ABORT
    assert state_of(cluster, "long").status is Status.ONGOING


def test_what_is_decided_is_ended_at_once(cluster: Cluster) -> None:
    store(cluster, leave_open(cluster, EVENTS)._replace(status=Status.PREPARE_COMMIT))

    assert values(cluster) == [b"0", b"1"]
    assert status(cluster) is Status.COMPLETE_COMMIT


def test_a_transaction_of_a_server_that_runs_is_left_to_it(cluster: Cluster) -> None:
    leave_open(cluster, EVENTS, age_ms=LATE_MS)
    with cluster.serve():
        look_again()
        read(cluster)
        assert status(cluster) is Status.ONGOING  # The server gives it its time once more.


def test_a_step_of_the_clock_forward_aborts_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    leave_open(cluster, EVENTS)
    read(cluster)
    parts, real = store_of(cluster), store_of(cluster).manager.now_ms
    steps = expiring_ms.__self__
    monkeypatch.setattr(parts.manager, "now_ms", lambda: real() + 2 * TIMEOUT_MS)
    monkeypatch.setattr("spark_kbatch.log.steps.now_ms", lambda: real() + 2 * TIMEOUT_MS)
    look_again()
    read(cluster)

    assert "the clock was set by 7" in caplog.text
    assert status(cluster) is Status.ONGOING
    steps._until_ms = 0  # ten minutes later
    look_again()
    read(cluster)
    assert status(cluster) is Status.COMPLETE_ABORT


# What readers are told.


def waits(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        text for text in caplog.messages if text.startswith("readers of committed records wait")
    ]


def test_a_reader_that_waits_for_more_than_a_minute_tells_once_for_what(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    leave_open(cluster, EVENTS, name="billing", age_ms=2 * MINUTE_MS)

    for _ in range(2):
        read(cluster)
        administration._next_look_ms.clear()

    (told,) = waits(caplog)
    assert re.fullmatch(
        "readers of committed records wait in events-0 from offset 0 on: a transaction of producer id 0, epoch 0, "
        r"transactional id 'billing', is open for 1\d\d s; see `kbatch transactions`",
        told,
    )


def test_a_young_transaction_is_not_told_of(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    leave_open(cluster, EVENTS)
    read(cluster)

    assert waits(caplog) == []


def test_a_log_that_is_lost_is_told_and_nothing_is_aborted(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    late = leave_open(cluster, EVENTS, age_ms=LATE_MS)
    store(cluster, late._replace(producer=late.producer._replace(producer_id=999)))
    leave_open(cluster, OTHER, name="late", age_ms=LATE_MS)
    assert values(cluster, EVENTS) == []
    look_again()
    assert values(cluster, OTHER) == []

    assert "transactional id not known, is hanging; see" in waits(caplog)[0]
    assert "the log of transactions is lost, damaged or older than events-0" in caplog.text
    assert [state_of(cluster, name).status for name in ("t", "late")] == [Status.ONGOING] * 2
