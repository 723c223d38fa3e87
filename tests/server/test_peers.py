"""Peers share the time that the server works."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_kbatch.server import peers as module
from spark_kbatch.server.peers import Peers


class Loop:
    """Timers that a test runs."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Callable[[], object]]] = []

    def call_later(self, delay_s: float, function: Callable[[], object]) -> None:
        self.timers.append((delay_s, function))

    def run(self) -> float:
        delay_s, function = self.timers.pop(0)
        function()
        return delay_s


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds = [100.0]
    monkeypatch.setattr(module, "monotonic_s", lambda: seconds[0])
    return seconds


def test_a_peer_above_its_share_waits_while_others_are_there(now: list[float]) -> None:
    loop, started = Loop(), list[str]()
    peers = Peers(loop.call_later)
    greedy, other = peers.of("10.0.0.1"), peers.of("10.0.0.2")
    for one in (greedy, other):
        peers.admit(one, lambda: started.append("first"))
    peers.look()
    greedy.charge(1.0)

    peers.admit(greedy, lambda: started.append("greedy"))
    peers.admit(other, lambda: started.append("other"))

    assert started == ["first", "first", "other"]
    now[0] += 2.0
    assert 1.5 < loop.run() < 2.0  # a second of work is half of two
    assert started[-1] == "greedy"


def test_requests_that_waited_are_started_one_after_the_other(now: list[float]) -> None:
    loop, started = Loop(), list[int]()
    peers = Peers(loop.call_later)
    greedy, other = peers.of("10.0.0.1"), peers.of("10.0.0.2")
    peers.admit(greedy, lambda: None)
    peers.admit(other, lambda: None)
    peers.look()
    greedy.charge(1.0)

    def start(number: int) -> None:
        started.append(number)
        greedy.charge(0.5)

    for number in range(3):
        peers.admit(greedy, lambda number=number: start(number))  # type: ignore[misc]
    for number in range(3):
        now[0] += 2.0
        loop.run()
        assert started == list(range(number + 1))


def test_a_peer_that_is_alone_never_waits(now: list[float]) -> None:
    peers = Peers(Loop().call_later)
    only, started = peers.of("127.0.0.1"), list[int]()
    for number in range(3):
        peers.admit(only, lambda number=number: started.append(number))  # type: ignore[misc]
        only.charge(10.0)
        peers.look()
        now[0] += 0.1

    assert started == [0, 1, 2]


def test_no_one_waits_longer_than_a_session_for_work_that_is_done(now: list[float]) -> None:
    peers = Peers(Loop().call_later)
    for host in ("10.0.0.1", "10.0.0.2"):
        peers.admit(peers.of(host), lambda: None)
    peers.look()
    greedy = peers.of("10.0.0.1")
    greedy.charge(1000.0)

    assert greedy.wait_s() < 6.0


def test_a_peer_is_an_address_or_a_network_of_ipv6() -> None:
    peers = Peers(Loop().call_later)

    assert peers.of("::ffff:10.0.0.1") is peers.of("10.0.0.1")
    assert peers.of("2001:db8::1") is peers.of("2001:db8::2:3")
    assert peers.of("2001:db8::1") is not peers.of("2001:db8:0:1::1")
    assert peers.of("fe80::1%eth0") is peers.of("fe80::2")
