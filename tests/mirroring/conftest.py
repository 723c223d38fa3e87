"""A pool of clients that each test finds empty, and leaves so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_kbatch.remote.client import close_idle_clients


@pytest.fixture(autouse=True)
def _empty_pool() -> Iterator[None]:
    yield
    close_idle_clients()
