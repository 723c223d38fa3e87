"""Consumers of the newer group protocol (KIP-848), which this server does not have, are told so."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError

from spark_kbatch.server.peers import client_warnings
from tests.support import builders


def test_a_consumer_of_the_newer_group_protocol_fails_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_warnings, "_again_s", 0.0)
    with builders.a_cluster(tmp_path) as cluster, cluster.serve() as server:
        settings = {"bootstrap.servers": server.bootstrap_servers, "group.id": "new-groups"}
        consumer = Consumer({**settings, "group.protocol": "consumer", "log_level": 0})
        consumer.subscribe(["events"])
        message = consumer.poll(60)
        consumer.close()

    assert message is not None
    error = message.error()
    assert error is not None
    assert error.code() == KafkaError._FATAL
    assert "API version not supported" in str(error)
    assert (
        "in group 'new-groups': this server does not have the newer group protocol" in caplog.text
    )
    assert "leave out group.protocol, or set it to classic" in caplog.text
