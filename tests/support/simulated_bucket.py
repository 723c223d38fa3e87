"""An object store and processes under a simulated clock: one seed, one run.

Each process is a thread, of which one runs at a time. It hands the baton on wherever it waits: before each
request, and where it sleeps. Who wakes first goes on, so latencies drawn from the seed are what interleaves the
processes, and a stall of days takes no time.

A request may fail in all the ways in which a store's answer can be lost: with its effect, without, or with an
effect that comes later, after the client has given up. A process may be killed before or after the effect of
a request.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from spark_kbatch.bucket.ledger import Timing
from spark_kbatch.bucket.objects import CreateAnswer, ObjectInfo
from spark_kbatch.errors import ObjectStoreError

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
START_MS = 1_700_000_000_000

_PAGE = 4  # names that one request of a list shows


_of_thread = threading.local()


class Killed(BaseException):
    """The end of a process; none of our code may catch it."""


class Stopped(BaseException):
    """The end of all processes, because one has found a fault."""


class Simulation:
    """Processes that take turns."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms: float = START_MS
        self._order = itertools.count()  # of those that wake at the same time
        self._sleepers: list[tuple[float, int, threading.Lock]] = []
        self._is_done = threading.Lock()
        self._is_done.acquire()
        self._error: BaseException | None = None

    def spawn(self, work: Callable[[], object], after_ms: float = 0) -> None:
        """Add a process, which starts when the others wait."""
        baton = threading.Lock()
        baton.acquire()
        self._push(after_ms, baton)
        threading.Thread(target=self._run, args=(work, baton), daemon=True).start()

    def run(self) -> None:
        """Run all processes to their end; raises what one of them raises."""
        self._pass_on()
        self._is_done.acquire()
        if self._error is not None:
            raise self._error

    def sleep(self, ms: float) -> None:
        """Let the others run until it is time for the one that calls this."""
        baton = threading.Lock()
        baton.acquire()
        self._push(ms, baton)
        if self._pass_on() is not baton:
            baton.acquire()
        if self._error is not None:
            raise Stopped

    def _push(self, ms: float, baton: threading.Lock) -> None:
        heapq.heappush(self._sleepers, (self.now_ms + ms, next(self._order), baton))

    def _pass_on(self) -> threading.Lock | None:
        if not self._sleepers:
            self._is_done.release()
            return None
        wake_ms, _, baton = heapq.heappop(self._sleepers)
        self.now_ms = max(self.now_ms, wake_ms)
        baton.release()
        return baton

    def _run(self, work: Callable[[], object], baton: threading.Lock) -> None:
        baton.acquire()
        try:
            if self._error is None:
                work()
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001  raised again by `run`
            self._error = self._error or error
        self._pass_on()


@dataclass
class Weather:
    """How often what goes wrong, as shares of all requests."""

    lost: float = 0.0  # no answer, with or without the effect
    late: float = 0.0  # no answer, and the effect comes later
    conflict: float = 0.0  # of creates: "exists" where nothing is
    killed: float = 0.0
    stalled: float = 0.0  # for hours or days


class Bucket:
    """The objects, and all that ever was in them."""

    def __init__(self, simulation: Simulation, weather: Weather) -> None:
        self.simulation, self.weather = simulation, weather
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.written: dict[str, bytes] = {}  # first content of each name
        self._in_flight: list[tuple[float, int, str, bytes, bool]] = []
        self._order = itertools.count()

    def create(self, name: str, data: bytes) -> bool:
        if name in self.objects:
            return False
        self.put(name, data)
        return True

    def put(self, name: str, data: bytes) -> None:
        self.objects[name] = data, self.simulation.now_ms
        self.written.setdefault(name, data)

    def send_late(self, name: str, data: bytes, *, create: bool, after_ms: float) -> None:
        due_ms = self.simulation.now_ms + after_ms
        heapq.heappush(self._in_flight, (due_ms, next(self._order), name, data, create))

    def land(self) -> None:
        """Let what is due take effect."""
        while self._in_flight and self._in_flight[0][0] <= self.simulation.now_ms:
            _, _, name, data, create = heapq.heappop(self._in_flight)
            (self.create if create else self.put)(name, data)


class ProcessObjects:
    """The bucket as one process has it; `Objects`."""

    def __init__(self, bucket: Bucket, skew_ms: int = 0, requests_max: int = 3000) -> None:
        """Open the bucket in a new process.

        Args:
            bucket: the bucket.
            skew_ms: how far the process's clock is from the store's.
            requests_max: after so many the process counts as blocked.
        """
        self.bucket, self.skew_ms, self._requests_max = bucket, skew_ms, requests_max
        self.requests = 0
        self.simulation = bucket.simulation
        self.rng = random.Random(self.simulation.rng.getrandbits(32))
        _of_thread.objects = self

    @staticmethod
    def current() -> ProcessObjects:
        """Return those of the process that runs."""
        return _of_thread.objects  # type: ignore[no-any-return]

    @property
    def timing(self) -> Timing:
        simulation = self.simulation
        return Timing(
            lambda: int(simulation.now_ms) + self.skew_ms,
            lambda: int(simulation.now_ms),
            simulation.sleep,
            self.rng,
        )

    def get(self, name: str) -> bytes | None:
        self._begin("get", name)
        return self._found(name)

    def get_many(self, names: Sequence[str]) -> list[bytes | None]:
        found: dict[str, bytes | None] = {}
        order = [*names]
        self.rng.shuffle(order)
        for number, name in enumerate(order):
            if number == 0 or self.rng.random() < 0.2:
                self._begin("get", name)
            found[name] = self._found(name)
        return [found[name] for name in names]

    def get_range(self, name: str, position: int, size_in_bytes: int) -> bytes | None:
        data = self.get(name)
        return None if data is None else data[position : position + size_in_bytes]

    def create(self, name: str, data: bytes) -> CreateAnswer:
        self._wait()
        weather, bucket = self.bucket.weather, self.bucket
        self._maybe_end()
        drawn = self.rng.random()
        if drawn < weather.late:
            bucket.send_late(name, data, create=True, after_ms=self._late_ms())
            return CreateAnswer.UNKNOWN
        if drawn < weather.late + weather.conflict and name not in bucket.objects:
            return CreateAnswer.EXISTS
        if drawn < weather.late + weather.conflict + weather.lost:
            if self.rng.random() < 0.7:
                bucket.create(name, data)
            return CreateAnswer.UNKNOWN
        is_created = bucket.create(name, data)
        self._maybe_end()
        return CreateAnswer.CREATED if is_created else CreateAnswer.EXISTS

    def put(self, name: str, data: bytes) -> None:
        self._wait()
        self._maybe_end()
        drawn = self.rng.random()
        if drawn < self.bucket.weather.late:
            self.bucket.send_late(name, data, create=False, after_ms=self._late_ms())
            raise ObjectStoreError("put", name, "late")
        is_lost = drawn < self.bucket.weather.late + self.bucket.weather.lost
        if not is_lost or self.rng.random() < 0.5:
            self.bucket.put(name, data)
        self._maybe_end()
        if is_lost:
            raise ObjectStoreError("put", name, "lost")

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        while True:
            self._begin("list", prefix)
            found = sorted(
                name
                for name in self.bucket.objects
                if name.startswith(prefix) and name > start_after
            )
            for name in found[:_PAGE]:
                data, modified_ms = self.bucket.objects.get(name, (b"", 0))
                yield ObjectInfo(name, len(data), int(modified_ms))
            if len(found) <= _PAGE:
                return
            start_after = found[_PAGE - 1]

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._begin("delete", name)
            self.bucket.objects.pop(name, None)

    def upload(self, name: str):  # type: ignore[no-untyped-def]
        raise NotImplementedError

    # A request.

    def _begin(self, request: str, name: str) -> None:
        self._wait()
        self._maybe_end()
        if self.rng.random() < self.bucket.weather.lost:
            raise ObjectStoreError(request, name, "lost")

    def _found(self, name: str) -> bytes | None:
        found = self.bucket.objects.get(name)
        return found[0] if found else None

    def _wait(self) -> None:
        self.requests += 1
        if self.requests > self._requests_max:
            raise AssertionError(f"blocked: {self.requests} requests")
        is_stalled = self.rng.random() < self.bucket.weather.stalled
        self.simulation.sleep(
            self.rng.choice([HOUR_MS, 3 * DAY_MS, 20 * DAY_MS]) * self.rng.random()
            if is_stalled
            else 1 + 40 * self.rng.random()
        )
        self.bucket.land()

    def _maybe_end(self) -> None:
        if self.rng.random() < self.bucket.weather.killed / 2:
            raise Killed

    def _late_ms(self) -> float:
        return self.rng.choice([50, 500, 20_000, 5 * DAY_MS]) * self.rng.random()
