"""Who is slow with a request or an answer is closed in the end, at once if others need the memory."""

from __future__ import annotations

import contextlib
import time

import pytest

from spark_kbatch import Cluster
from spark_kbatch.server import connection, listener, memory
from spark_kbatch.server.memory import AnswerMemory, RequestMemory
from spark_kbatch.wire.framing import SIZE
from spark_kbatch.wire.protocol import ApiKey
from tests.support import builders
from tests.support.raw_clients import RawClient, fetch, produce, produced, request

MiB = 1 << 20


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server look more often, and have less patience."""
    monkeypatch.setattr(listener, "_LOOKS_EVERY_S", 0.1)
    monkeypatch.setattr(memory, "_PATIENCE_S", 0.3)
    monkeypatch.setattr(connection, "_HELD_FOR_S", 0.3)


@pytest.mark.usefixtures("soon")
def test_a_large_request_is_taken_although_others_trickle_with_all_the_memory(
    cluster: Cluster,
) -> None:
    large = request(ApiKey.PRODUCE, 9, produce(builders.batch(n=1, value_bytes=40_000)))
    with cluster.serve(queued_max_request_bytes=1 * MiB) as server:
        slow = [RawClient(server) for _ in range(3)]
        for one in slow:
            one.send(SIZE.pack(50 * MiB) + bytes(600_000))
        with RawClient(server, timeout_s=20) as client:
            client.send(large)
            for one in slow:
                one.send(b"\0")

            assert produced(client.receive(ApiKey.PRODUCE, 9)).error_code == 0
        for one in slow:
            one.socket.close()


def test_a_request_has_a_time_limit_however_steadily_its_bytes_come(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_STALLED_AFTER_S", 0.5)
    with cluster.serve(connections_max_idle_ms=400) as server, RawClient(server) as slow:
        slow.send(SIZE.pack(10_000))
        began_s = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - began_s < 20:
                slow.send(b"\0")
                time.sleep(0.05)

    assert time.monotonic() - began_s < 10


@pytest.mark.usefixtures("soon")
def test_answers_that_are_not_read_do_not_keep_their_memory(cluster: Cluster) -> None:
    builders.write(cluster, {("events", 0): [builders.batch(n=1, value_bytes=900_000)] * 20})
    asked = request(ApiKey.FETCH, 12, fetch(0, max_bytes=8 * MiB))
    with cluster.serve(fetch_max_bytes=8 * MiB) as server:
        slow = [RawClient(server) for _ in range(2)]
        for one in slow:
            one.send(asked)
        deadline_s = time.monotonic() + 20
        while not server._memory.answers.used_bytes and time.monotonic() < deadline_s:
            time.sleep(0.01)
        while server._memory.answers.used_bytes > 8 * MiB and time.monotonic() < deadline_s:
            time.sleep(0.01)

        assert server._memory.answers.used_bytes <= 8 * MiB
        for one in slow:
            one.socket.close()


class Holder:
    """A connection, whose rate the test sets."""

    def __init__(self, memory_of: RequestMemory, rate: float | None) -> None:
        self._memory, self._rate = memory_of, rate
        self.is_closed = False
        self.resumed = 0

    def rate(self, now_s: float) -> float | None:
        del now_s
        return self._rate

    def close(self) -> None:
        self.is_closed = True
        self._memory.release(self)

    def resume(self) -> None:
        self.resumed += 1
        self._memory.may_receive(self)


def test_the_favour_goes_to_another_when_who_has_it_stalls() -> None:
    requests = RequestMemory(100)
    full, first, second = (Holder(requests, None) for _ in range(3))
    requests.take(full, 100)
    assert requests.may_receive(first)
    assert not requests.may_receive(second)
    requests.look(1.0, [])
    assert not second.resumed

    requests.look(2.0, [])

    assert second.resumed
    assert requests.may_receive(second)
    assert not requests.may_receive(first)


def test_the_slowest_is_closed_first_and_only_while_others_wait() -> None:
    requests = RequestMemory(100)
    slowest, slow, fast = (Holder(requests, rate) for rate in (1.0, 1000.0, 1e9))
    for one in (fast, slow, slowest):
        requests.take(one, 50)
    holders = [fast, slow, slowest]
    requests.look(1.0, holders)
    assert not any(one.is_closed for one in holders)
    waiting = [Holder(requests, None) for _ in range(3)]
    for one in waiting:
        requests.may_receive(one)

    for now_s in (2.0, 3.0, 4.0, 5.0):
        requests.look(now_s, holders)

    assert slowest.is_closed
    assert not fast.is_closed
    assert waiting[2].resumed


def test_slow_readers_keep_half_of_the_memory_for_answers() -> None:
    answers, requests = AnswerMemory(100), RequestMemory(100)
    slow = Holder(requests, 1.0)
    answers.count(50)
    answers.look(1.0, [slow])
    assert not slow.is_closed

    answers.count(1)
    answers.look(2.0, [slow])
    assert slow.is_closed
