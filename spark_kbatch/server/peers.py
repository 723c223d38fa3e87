"""Peers: the time that the server works for each, and whose next request has to wait.

A peer is an address, of IPv6 the first 64 bits, with all its connections. Python runs one thread at a time,
so what one peer asks for slows all others, whichever threads do it. While requests of several peers come
in, each may use half of one core. The next requests of a peer that uses more wait until that is true
again, and are then started one after the other. No answer is held back, and a peer that is alone never
waits.

    work       handlers, decoding, appends: as the CPU time of the threads that do it
    a request  an amount for what the event loop does with it

Source: Kafka's request quotas, which are configured by user and client id: KIP-124, ClientRequestQuotaManager.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from spark_kbatch.clock import monotonic_s

logger = logging.getLogger(__name__)

_SHARE = 0.5  # of a core
_UNCOUNTED_S = 0.1  # how much faster than its share a peer may be for a moment
_DEBT_MAX_S = 4.0  # the longest wait for one's own earlier work; a session is 6 s or longer
_LOOP_S = 100e-6  # of the event loop for a request
_WORKS_MAX = 2  # threads for a peer that has used up its share
_NETWORK_BITS = 64  # of an IPv6 address; the rest is a machine's own
_ACTIVE_S = 10.0  # after its last request a peer still counts as one who may send another
_WARNED_EVERY_S = 1.0  # clients may cause any number of warnings


class Peer:
    """One address, with the work that is done for it; `charge` and `working` are for any thread."""

    def __init__(self, peers: Peers, host: str) -> None:
        self.host, self._peers = host, peers
        self.connections = 0
        self.gone = 0  # connections whose clients have closed, and whose requests still wait
        self.waiting: deque[Callable[[], None]] = deque()  # requests; used by the loop alone
        self.is_scheduled = False  # whether a timer starts the next one; used by the loop alone
        self.last_s = 0.0  # when it sent its last request
        self._mutex = threading.Lock()  # guards what follows; innermost
        self._works = 0  # threads that work for it, or will
        self._free_s = 0.0  # until when it has used up its share

    def charge(self, seconds: float) -> None:
        """Count work that was done for the peer."""
        if not self._peers.are_several:
            return
        now_s = monotonic_s()
        with self._mutex:
            begin_s = max(self._free_s, now_s - _UNCOUNTED_S)
            self._free_s = min(begin_s + seconds / _SHARE, now_s + _DEBT_MAX_S)

    def begin(self) -> None:
        """Note that a thread will do some work for the peer, in `working`."""
        with self._mutex:
            self._works += 1

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Count the CPU time of a `with` as work for the peer, after `begin`."""
        began_s = time.thread_time()
        try:
            yield
        finally:
            self.charge(time.thread_time() - began_s)
            with self._mutex:
                self._works -= 1
            if self.waiting:
                self._peers.call_later(0, lambda: self._peers.start_next(self))

    def wait_s(self) -> float:
        """Return how long the peer's next request has to wait, if nothing is done for it meanwhile."""
        return max(self._free_s - monotonic_s(), 0.0)

    @property
    def is_served(self) -> bool:
        """Whether as many threads work for the peer, or will, as may while it has used up its share.

        One may wait for a lock, so there may be two.
        """
        return self._works >= _WORKS_MAX


class Peers:
    """All peers that have connections or had some lately; the event loop alone calls its methods."""

    def __init__(self, call_later: Callable[[float, Callable[[], object]], object]) -> None:
        """Start without peers; `call_later` is the event loop's, and for any thread."""
        self.call_later = call_later
        self.are_several = False  # whether more than one has sent a request lately
        self._peers: dict[str, Peer] = {}

    def of(self, host: str) -> Peer:
        """Return the peer with an address."""
        name = _network_of(host)
        peer = self._peers.get(name)
        if peer is None:
            peer = self._peers[name] = Peer(self, name)
        return peer

    def admit(self, peer: Peer, start: Callable[[], None]) -> None:
        """Call `start`, which handles a request of the peer: now, or once the peer's share allows it."""
        peer.last_s = monotonic_s()
        if self.are_several and (peer.waiting or peer.wait_s() > 0):
            peer.waiting.append(start)
            self.start_next(peer)
        else:
            peer.charge(_LOOP_S)
            start()

    def withdraw(self, peer: Peer, start: Callable[[], None]) -> None:
        """Forget a request of the peer, if it waits."""
        with contextlib.suppress(ValueError):
            peer.waiting.remove(start)

    def start_next(self, peer: Peer) -> None:
        """Start the next request of a peer, if one waits and it is time."""
        wait_s = peer.wait_s() if self.are_several else 0.0
        if not peer.waiting or peer.is_scheduled:
            return
        if not wait_s and (not peer.is_served or not self.are_several):
            peer.charge(_LOOP_S)
            peer.waiting.popleft()()
            wait_s = peer.wait_s()
        if peer.waiting and not peer.is_served:  # else the end of the work calls this again

            def go_on() -> None:
                peer.is_scheduled = False
                self.start_next(peer)

            peer.is_scheduled = True
            self.call_later(wait_s, go_on)

    def look(self) -> None:
        """Find out whether there are several peers; called every second or so."""
        now_s = monotonic_s()
        recent = {one for one in self._peers.values() if now_s - one.last_s < _ACTIVE_S}
        self.are_several = len(recent) > 1
        self._peers = {
            name: one for name, one in self._peers.items() if one.connections or one in recent
        }


def unmapped(host: str) -> str:
    """Return the IPv4 address that an IPv6 socket shows as ::ffff:a.b.c.d; any other one as it is."""
    if not host.lower().startswith("::ffff:"):
        return host
    address = ipaddress.IPv6Address(host).ipv4_mapped
    return host if address is None else str(address)


def _network_of(host: str) -> str:
    """Return the address of a peer, without what a peer may choose by itself."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _NETWORK_BITS), strict=False))


class ClientWarnings:
    """A rate limit on warnings about clients: at most one per second, however often clients cause them."""

    def __init__(self) -> None:
        self._again_s = 0.0

    def warn(self, message: str, *arguments: object) -> None:
        """Log a warning, or a line for debugging if another was logged just before."""
        is_due = monotonic_s() >= self._again_s
        if is_due:
            self._again_s = monotonic_s() + _WARNED_EVERY_S
        logger.log(logging.WARNING if is_due else logging.DEBUG, message, *arguments)


class SlowWarnings(ClientWarnings):
    """Warnings about requests that take long by the server's own doing: one per second, as a disk that hangs slows all.

    What a request waits for others does not count: a Fetch for records, a JoinGroup for members, a Produce for
    its partition's turn and lock. So a handler and the appends that it queues are timed each by itself.

    Source: Kafka server/.../network/metrics/RequestMetrics.java, RequestQueueTimeMs, LocalTimeMs.
    """

    def __init__(self, limit_ms: int) -> None:
        """Warn of what takes longer than this; of nothing if it is negative."""
        super().__init__()
        self._limit_s = math.inf if limit_ms < 0 else limit_ms / 1000

    def took(self, seconds: float, message: str, *arguments: object) -> None:
        """Warn of a part of a request that took so long, if that is slow."""
        if seconds > self._limit_s:
            self.warn(f"slow request: {message}", *arguments)


client_warnings = ClientWarnings()


@functools.lru_cache(maxsize=1000)
def warn_once(host: str, message: str) -> None:
    """Log a warning about a client; not again for the same host, as clients try again for ever."""
    logger.warning("client at %s: %s", host, message)
