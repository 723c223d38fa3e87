"""The processes of Spark's jobs, run in one: each knows a registry for itself, in an hour that passes at once.

    processes = Processes(registry, folder, monkeypatch)
    with processes.inside("task 1"):        # a process of its own; the next time it knows what it has learnt
        ...
    processes.time.now_ms += 60_000
    processes.asked                         # who asked what, and when

A process is on a machine of its own, with nothing in its cache, unless a machine is named. A pause between attempts
takes no time but moves the clock.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from spark_kbatch.columns import schemas
from spark_kbatch.columns.reading import NewSchemas
from spark_kbatch.options.registry import RegistryOptions
from spark_kbatch.registry import known
from spark_kbatch.registry.endpoint import Endpoint
from spark_kbatch.registry.known import KnownSchemas, registry_of
from spark_kbatch.registry.schemas import SchemaRegistry
from spark_kbatch.spark import reader
from tests.registry.conftest import TIMEOUTS, Pauses
from tests.support.fake_registry import FakeRegistry


class Asked(NamedTuple):
    """A request to the registry."""

    at_ms: int
    process: str
    request: str


class Processes:
    """The processes of a job, and the time that they share."""

    def __init__(
        self, registry: FakeRegistry, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.time, self.asked = Pauses(), list[Asked]()
        self._registry, self._folder, self._monkeypatch = registry, folder, monkeypatch
        self._current, self._machine = "", ""
        self._registries: dict[tuple[Any, ...], SchemaRegistry] = {}
        now_ms = self.time.monotonic_ms
        quick = functools.partial(
            Endpoint, timeouts=TIMEOUTS, sleep=self.time.sleep, monotonic_ms=now_ms
        )
        monkeypatch.setattr(known, "Endpoint", quick)
        for module, one in ((known, KnownSchemas), (reader, NewSchemas)):
            monkeypatch.setattr(module, one.__name__, functools.partial(one, monotonic_ms=now_ms))
        monkeypatch.setattr(known, "registry_of", self._in_process(registry_of.__wrapped__))
        monkeypatch.setattr(schemas, "registry_of", known.registry_of)

    def _in_process(
        self, make: Callable[[RegistryOptions], SchemaRegistry]
    ) -> Callable[[RegistryOptions], SchemaRegistry]:
        """Return a function that makes a registry once for each process."""

        def found(options: RegistryOptions) -> SchemaRegistry:
            key = (self._current, make, options)
            if key not in self._registries:
                self._registries[key] = make(options)
            return self._registries[key]

        return found

    @contextlib.contextmanager
    def inside(self, process: str, *, machine: str = "") -> Iterator[None]:
        """Be in a process, on a machine whose cache its processes share."""
        before = len(self._registry.asked)
        cache = self._folder / (machine or f"machine of {process}")
        cache.mkdir(exist_ok=True)
        self._monkeypatch.setattr(tempfile, "tempdir", str(cache))
        self._current = process
        try:
            yield
        finally:
            self._current = ""
            new = self._registry.asked[before:]
            self.asked += [Asked(self.time.now_ms, process, one) for one in new]

    def fail_until(self, at_ms: float) -> None:
        """Have the registry answer 500 before a time, which may be infinite."""
        self._monkeypatch.setattr(
            self._registry, "order", lambda: "500" if self.time.now_ms < at_ms else ""
        )

    def most_in_a_minute(self, process: str) -> int:
        """Return how many requests a process sent at most within any minute."""
        times = [one.at_ms for one in self.asked if one.process == process]
        return max((sum(at <= one < at + 60_000 for one in times) for at in times), default=0)
