"""A client that waits longer, as transactions are ended in the background."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_kbatch.server.server import Server
from tests.support.raw_clients import RawClient


@pytest.fixture
def client(server: Server) -> Iterator[RawClient]:
    with RawClient(server, timeout_s=60) as client:
        yield client
