"""Kafka, Spark with its own connectors, and a schema registry, once per session."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.conftest import spark_builder
from tests.support.apicurio import apicurio
from tests.support.kafka import Broker, Kafka, MissingToolError, connectors_of_spark
from tests.support.kafka_cluster import BrokerCluster
from tests.support.kafka_fixtures import kafka
from tests.support.parity_sites import InFolder, OnBroker, OnRealCluster, OnServer, Site
from tests.support.secure_broker import SecureBroker, secure_broker

__all__ = ["kafka"]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of the other tests, with `format("kafka")`."""
    folder = tmp_path_factory.mktemp("spark")
    try:
        jars = connectors_of_spark(folder)
    except MissingToolError as missing:
        pytest.fail(str(missing), pytrace=False)
    session = (
        spark_builder(folder / "warehouse").config("spark.jars", jars)
        .config("spark.sql.streaming.numRecentProgressUpdates", "300")  # of micro-batches
        .getOrCreate()
    )  # fmt: skip
    yield session
    session.stop()


@pytest.fixture(scope="session")
def shared_broker(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that the tests of the connector share; each test creates its own topics."""
    # The tests write records that are older than a broker's default retention.
    with Broker(
        kafka, tmp_path_factory.mktemp("broker"), log_retention_ms=-1, log_initial_task_delay_ms=500
    ) as broker:
        yield broker


@pytest.fixture(scope="session", params=["kafka", "served", "kbatch", "remote"])
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """Run each test with Spark's connector on a broker and our server, with our format on a broker and a folder."""
    match request.param:
        case "kafka":
            yield OnBroker(request.getfixturevalue("shared_broker"))
        case "remote":
            yield OnRealCluster(request.getfixturevalue("shared_broker"))
        case "kbatch":
            yield InFolder(tmp_path_factory.mktemp("site") / "cluster")
        case "served":
            served = OnServer(tmp_path_factory.mktemp("served") / "cluster")
            yield served
            served.close()


@pytest.fixture(scope="session")
def secured(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    """A broker with TLS and SASL, for all tests."""
    with secure_broker(kafka, tmp_path_factory.mktemp("secured")) as broker:
        yield broker


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a schema registry; each test has subjects of its own."""
    try:
        with apicurio(tmp_path_factory.mktemp("registry")) as url:
            yield url
    except MissingToolError as missing:
        pytest.fail(str(missing), pytrace=False)


@pytest.fixture(scope="module")
def three_brokers(
    kafka: Kafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerCluster]:
    """Three brokers behind proxies, for the tests of a module; each leaves all of them up."""
    with BrokerCluster(kafka, tmp_path_factory.mktemp("brokers")) as cluster:
        yield cluster


@pytest.fixture
def brokers(three_brokers: BrokerCluster) -> BrokerCluster:
    """Three brokers behind proxies, up and in sync; nothing was counted yet."""
    three_brokers.recover()
    return three_brokers


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test uses."""
    return re.sub(r"\W+", "-", request.node.name)[:200].strip("-")
