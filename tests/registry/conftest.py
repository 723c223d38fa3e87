"""What tests of registries share: a fake one, a client of it, and time that passes only in pauses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_kbatch.options.registry import RegistryOptions, parse_registry_options
from spark_kbatch.registry.endpoint import Endpoint, RegistryClient, RegistryTimeouts
from tests.support.fake_registry import FakeRegistry

# A machine that is busy with something else answers late.
TIMEOUTS = RegistryTimeouts(request_timeout_ms=120_000)


class Pauses:
    """A clock that only pauses move, and the pauses so far, in seconds."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.taken: list[float] = []

    def monotonic_ms(self) -> int:
        return self.now_ms

    def sleep(self, seconds: float) -> None:
        self.taken.append(seconds)
        self.now_ms += round(seconds * 1000)


def options_of(url: str | Path, **given: str) -> RegistryOptions:
    keys = {f"schema.registry.{key.replace('_', '.')}": value for key, value in given.items()}
    found = parse_registry_options({"schema.registry.url": str(url), **keys})
    assert found is not None
    return found


def endpoint_of(
    url: str, pauses: Pauses, *, timeouts: RegistryTimeouts = TIMEOUTS, **given: str
) -> Endpoint:
    return Endpoint(
        options_of(url, **given),
        timeouts=timeouts,
        monotonic_ms=pauses.monotonic_ms,
        sleep=pauses.sleep,
    )


def client_of(url: str, pauses: Pauses | None = None, **given: Any) -> RegistryClient:
    return RegistryClient(endpoint_of(url, pauses or Pauses(), **given))


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with FakeRegistry() as registry:
        yield registry
