"""A server logs requests that take long by its own doing, and not those that wait for others."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from spark_kbatch import Cluster
from spark_kbatch.model import TopicPartition
from spark_kbatch.server import peers
from spark_kbatch.server.server import Server
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import ApiKey, JoinGroupRequest
from tests.support import builders
from tests.support.raw_clients import RawClient, fetch, produce, produced, request
from tests.support.store import store_of
from tests.support.waiting import until

LIMIT_MS = 100
LINE = re.compile(
    r"slow request: (\w+) of client 'a test' at 127.0.0.1, \d+ bytes: "
    r"(\d+) ms queued, (\d+) ms handled"
)
APPEND = re.compile(r"slow request: Produce, (\d+) ms in the append of 1 batches to events-0")
BATCH = builders.batch(n=1)


@pytest.fixture
def server(cluster: Cluster) -> Iterator[Server]:
    with cluster.serve(
        slow_request_log_ms=LIMIT_MS, group_initial_rebalance_delay_ms=300
    ) as server:
        yield server


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int, int]]:
    """Return the kinds of the slow requests, and how long each was queued and handled."""
    found = map(LINE.fullmatch, lines(caplog))
    return [(one[1], int(one[2]), int(one[3])) for one in found if one]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if line.startswith("slow request")]


def slowly(monkeypatch: pytest.MonkeyPatch, what: Any, name: str, seconds: float) -> None:
    """Let a method take longer."""
    work = getattr(what, name)

    def work_slowly(*given: Any, **named: Any) -> Any:
        time.sleep(seconds)
        return work(*given, **named)

    monkeypatch.setattr(what, name, work_slowly)


def test_a_handler_that_takes_long_is_logged_with_the_client_and_the_times(
    cluster: Cluster, server: Server, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    slowly(monkeypatch, store_of(cluster).snapshots, "replicas", 0.2)
    asked = request(ApiKey.FETCH, 12, fetch(0))
    with RawClient(server) as client:
        client.send(asked)
        client.receive(ApiKey.FETCH, 12)

    until(lambda: lines(caplog))  # the answer comes first
    ((kind, queued_ms, handled_ms),) = told(caplog)
    assert kind == "Fetch"
    assert handled_ms >= 200 > queued_ms
    assert f"{len(asked) - 4} bytes" in caplog.text


def test_an_append_that_takes_long_is_logged(
    cluster: Cluster, server: Server, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    slowly(monkeypatch, store_of(cluster).manager, "append_records", 0.2)
    with RawClient(server) as client:
        assert produced(client.ask(ApiKey.PRODUCE, 9, produce(BATCH))).error_code == 0

    until(lambda: lines(caplog))
    (line,) = lines(caplog)
    found = APPEND.fullmatch(line)
    assert found
    assert int(found[1]) >= 200


def test_requests_in_the_queue_behind_others_are_logged_with_that_time(
    cluster: Cluster, server: Server, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(peers, "_WARNED_EVERY_S", 0.0)
    slowly(monkeypatch, store_of(cluster).snapshots, "replicas", 0.2)
    clients = [RawClient(server) for _ in range(5)]
    for one in clients:
        one.send(request(ApiKey.FETCH, 12, fetch(0)))
    for one in clients:
        one.receive(ApiKey.FETCH, 12)
        one.socket.close()

    until(lambda: len(lines(caplog)) == len(clients))
    assert max(queued_ms for _, queued_ms, _ in told(caplog)) >= 150


def test_waits_for_records_for_members_and_for_locks_are_not_slow(
    cluster: Cluster, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with RawClient(server) as client:
        began_s = time.monotonic()
        client.ask(ApiKey.FETCH, 12, fetch(0, min_bytes=1, max_wait_ms=300))
        assert time.monotonic() - began_s >= 0.25

        with store_of(cluster).manager.locks.partitions([TopicPartition("events", 0)]):
            client.send(request(ApiKey.PRODUCE, 9, produce(BATCH)))
            time.sleep(0.3)
            with RawClient(server) as other:
                late = other.ask(ApiKey.PRODUCE, 9, produce(BATCH, timeout_ms=200))
                assert produced(late).error_code == ErrorCode.REQUEST_TIMED_OUT
        client.receive(ApiKey.PRODUCE, 9)

        joins = JoinGroupRequest(
            group_id="group", session_timeout_ms=30_000, rebalance_timeout_ms=30_000, member_id="",
            group_instance_id="one", protocol_type="consumer",
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
        )  # fmt: skip
        began_s = time.monotonic()
        assert client.ask(ApiKey.JOIN_GROUP, 7, joins).error_code == 0
        assert time.monotonic() - began_s >= 0.25
    assert lines(caplog) == []


def test_no_request_is_slow_without_a_limit(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slowly(monkeypatch, store_of(cluster).snapshots, "replicas", 0.2)
    with cluster.serve(slow_request_log_ms=-1) as server, RawClient(server) as client:
        client.ask(ApiKey.FETCH, 12, fetch(0))

    assert lines(caplog) == []


def test_a_storm_of_slow_requests_is_one_line_a_second(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(peers, "monotonic_s", lambda: now_s)
    slow = peers.SlowWarnings(LIMIT_MS)
    slow.took(0.1, "as long as is allowed")
    for number in range(100):
        slow.took(0.2, "%d", number)
    now_s += 1.0
    slow.took(0.2, "later")

    assert caplog.messages == ["slow request: 0", "slow request: later"]
