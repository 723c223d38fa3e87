"""The rigs themselves, with another make of client: what they claim to do to brokers is done."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from tests.support.kafka_clients import Address, read
from tests.support.kafka_cluster import BrokerCluster
from tests.support.reference import producer_ids
from tests.support.secure_broker import USER, SecureBroker

pytestmark = pytest.mark.interop


def producer(brokers: BrokerCluster) -> Producer:
    settings = {"enable.idempotence": True, "log_level": 0, "linger.ms": 0}
    return Producer({"bootstrap.servers": brokers.servers} | settings)


def sent(client: Producer, topic: str, *, within_s: float = 30) -> bool:
    """Send a record to partition 1, which broker 2 leads; return True if it was acknowledged in time."""
    client.produce(topic, b"v", partition=1)
    return client.flush(within_s) == 0


def test_leaders_are_where_they_were_moved(brokers: BrokerCluster, topic: str) -> None:
    brokers.create_topic(topic, partitions=3)
    assert brokers.leaders(topic) == {0: 1, 1: 2, 2: 3}

    brokers.move_leaders(topic)

    assert brokers.leaders(topic) == {0: 2, 1: 3, 2: 1}


def test_a_killed_broker_loses_its_leaders_and_comes_back_in_sync(
    brokers: BrokerCluster, topic: str
) -> None:
    brokers.create_topic(topic, partitions=3)
    client = producer(brokers)
    assert sent(client, topic)

    brokers.kill(2)
    assert sent(client, topic)
    assert brokers.leaders(topic)[1] != 2
    brokers.restart(2)

    brokers.lead(topic, dict.fromkeys(range(3), 2))
    assert sent(client, topic)
    assert len(read(Address(brokers.direct), topic, [1])[1]) == 3


def test_a_proxy_makes_a_broker_slow_silent_and_unreachable_for_a_time(
    brokers: BrokerCluster, topic: str
) -> None:
    brokers.create_topic(topic, partitions=3)
    client, proxy = producer(brokers), brokers.proxies[2]
    assert sent(client, topic)

    proxy.delay_s = 1.0
    start = time.monotonic()
    assert sent(client, topic)
    assert time.monotonic() - start >= 1.0
    proxy.stall()
    assert not sent(client, topic, within_s=1)
    proxy.go_on()
    assert client.flush(30) == 0
    connections = proxy.connections
    proxy.drop()
    assert sent(client, topic)
    assert proxy.connections > connections


def test_requests_for_producer_ids_are_counted_with_their_process(
    brokers: BrokerCluster, topic: str
) -> None:
    brokers.create_topic(topic, partitions=3)
    assert sent(producer(brokers), topic)

    asked = [one for proxy in brokers.proxies.values() for one in proxy.asked_for_producer_ids]

    assert {one.process for one in asked} == {os.getpid()}
    assert {one.producer_id for one in asked} == {-1}
    assert len(producer_ids(brokers.files(topic))) == 1


@pytest.mark.parametrize(
    ("listener", "given"),
    [
        pytest.param("TLS", {}, id="tls"),
        pytest.param("MTLS", {"certificate": True}, id="mutual-tls"),
        pytest.param("SASL", {"mechanism": "PLAIN"}, id="plain"),
        pytest.param("SASL", {"mechanism": "SCRAM-SHA-512"}, id="scram"),
    ],
)
def test_each_listener_lets_in_who_it_should(
    secured: SecureBroker, listener: str, given: dict[str, Any]
) -> None:
    assert brokers_seen(secured, listener, **given) == 1


@pytest.mark.parametrize(
    ("listener", "given"),
    [
        pytest.param("MTLS", {}, id="no-certificate"),
        pytest.param("EXPIRED", {}, id="expired"),
        pytest.param("WRONGNAME", {}, id="wrong-name"),
        pytest.param("SASL", {"mechanism": "PLAIN", "password": "x"}, id="wrong-password-plain"),
        pytest.param("SASL", {"mechanism": "SCRAM-SHA-512", "password": "x"}, id="wrong-password"),
    ],
)
def test_each_listener_lets_no_one_else_in(
    secured: SecureBroker, listener: str, given: dict[str, Any]
) -> None:
    with pytest.raises(KafkaException):
        brokers_seen(secured, listener, within_s=3, **given)


def brokers_seen(
    secured: SecureBroker, listener: str, *, within_s: float = 30, certificate: bool = False,
    mechanism: str = "", password: str = "",
) -> int:  # fmt: skip
    """Return the number of brokers that librdkafka sees through a listener."""
    settings = {
        "bootstrap.servers": secured.servers(listener),
        "security.protocol": "SASL_SSL" if mechanism else "SSL",
        "ssl.ca.location": str(secured.authority.certificate),
        "log_level": 0,
    }
    if certificate:
        settings["ssl.certificate.location"] = str(secured.client.certificate)
        settings["ssl.key.location"] = str(secured.client.key)
    if mechanism:
        settings |= {
            "sasl.mechanism": mechanism, "sasl.username": USER,
            "sasl.password": password or secured.password,
        }  # fmt: skip
    return len(AdminClient(settings).list_topics(timeout=within_s).brokers)
