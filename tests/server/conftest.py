"""Third-party clients; those that need more than Python packages run with `make interop`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from spark_kbatch import Cluster
from spark_kbatch.server.server import Server
from tests.support import builders
from tests.support.clients.aio_kafka import AioKafka
from tests.support.clients.interface import Client
from tests.support.clients.java import JavaTools
from tests.support.clients.kafka_python import KafkaPython
from tests.support.clients.kcat import MISSING as KCAT_MISSING
from tests.support.clients.kcat import Kcat
from tests.support.clients.librdkafka import Librdkafka
from tests.support.kafka_fixtures import kafka
from tests.support.raw_clients import RawClient

__all__ = ["kafka"]

Connect: TypeAlias = Callable[[str], Client]

_OF_PYTHON = {one.name: one for one in (Librdkafka, KafkaPython, AioKafka)}


BUT_KCAT = [*_OF_PYTHON, pytest.param(JavaTools.name, marks=pytest.mark.interop)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster in a folder, with a topic; a module may have another one in its place."""
    with builders.a_cluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def server(cluster: Cluster) -> Iterator[Server]:
    """A server of that cluster."""
    with cluster.serve() as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[RawClient]:
    """A client of that server, whose requests a test encodes."""
    with RawClient(server) as client:
        yield client


@pytest.fixture(params=[*BUT_KCAT, pytest.param(Kcat.name, marks=pytest.mark.interop)])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Connect:
    """A function that makes a client for the address of its server."""
    name = request.param
    if name in _OF_PYTHON:
        return _OF_PYTHON[name]
    if name == Kcat.name:
        if not Kcat.is_installed():
            pytest.skip(KCAT_MISSING)
        return Kcat
    kafka = request.getfixturevalue("kafka")
    return lambda address: JavaTools(address, kafka, tmp_path)
