"""A server of ours in the place of a real cluster, and pools that each test finds empty."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import spark_kbatch
from spark_kbatch.remote import transport
from spark_kbatch.remote.client import close_idle_clients
from spark_kbatch.server.server import Server
from tests.support import builders


@pytest.fixture(autouse=True)
def _empty_pools() -> Iterator[None]:
    transport._free_identities.clear()
    yield
    close_idle_clients()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[spark_kbatch.Cluster]:
    with builders.a_cluster(tmp_path, topics={"events": 2}) as cluster:
        yield cluster


@pytest.fixture
def server(cluster: spark_kbatch.Cluster) -> Iterator[Server]:
    with cluster.serve() as server:
        yield server
