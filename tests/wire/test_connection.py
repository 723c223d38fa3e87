"""One connection: versions, answers in order, and the limit on requests in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kbatch.errors import (
    ApiError,
    DisconnectedError,
    ProtocolError,
    RequestTimedOutError,
    UnsupportedVersionError,
)
from spark_kbatch.model import TopicPartition
from spark_kbatch.wire.channel import Channel
from spark_kbatch.wire.connection import Completion, Connection, ConnectionConfig
from spark_kbatch.wire.protocol import (
    SUPPORTED,
    ApiKey,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
    Versions,
)
from spark_kbatch.wire.records import produce_request
from tests.support.narrow_sockets import narrow_pair
from tests.support.wire_servers import ServerEnd, metadata_body, versions_body


class Pair:
    """A connection and the server's end of it, with a clock that tests set."""

    def __init__(self, capacity: int = 10**6, **config: Any) -> None:
        self.now_ms = 1_000_000
        self.completions: deque[Completion] = deque()
        self.ended: list[tuple[str, Any, Any]] = []
        self.narrow, far = narrow_pair(capacity)
        self.server = ServerEnd(far)
        self.connection = Connection(
            Channel(self.narrow, "localhost:9092"),
            "localhost:9092",
            self.completions,
            config=ConnectionConfig(**config),
            monotonic_ms=lambda: self.now_ms,
        )

    def run(self, turns: int = 3) -> None:
        """Let both sides read and write."""
        for _ in range(turns):
            self.connection.write()
            self.server.step()
            self.connection.read()
            self.deliver()

    def deliver(self) -> None:
        while self.completions:
            self.completions.popleft().deliver()

    def made_ready(self, offered: Mapping[int, Versions] = SUPPORTED) -> Pair:
        self.run()
        self.server.answer(versions_body(offered))
        self.run()
        assert self.connection.is_ready
        return self

    def send(self, name: str, key: int = ApiKey.METADATA, body: Any = None, **given: Any) -> None:
        self.connection.send(
            key,
            MetadataRequest(topics=[]) if body is None else body,
            lambda answer, error: self.ended.append((name, answer, error)),
            **given,
        )


def a_produce(acks: int, records: bytes = b"records") -> ProduceRequest:
    return produce_request(acks, 100, {TopicPartition("t", 0): records})


def test_the_versions_are_requested_first_and_nothing_may_be_sent_before_they_are_known() -> None:
    pair = Pair()
    assert not pair.connection.can_send_more()
    with pytest.raises(ValueError, match="localhost:9092 cannot be sent another request now"):
        pair.send("too early")

    pair.run()
    asked = pair.server.requests[0]
    assert (asked.api_key, asked.version) == (ApiKey.API_VERSIONS, 4)
    assert asked.body.client_software_name == "spark-kbatch"
    assert asked.client_id == "spark-kbatch"

    pair.made_ready()
    assert pair.connection.can_send_more()
    assert pair.ended == []


@pytest.mark.parametrize(
    ("offered", "then"),
    [({ApiKey.API_VERSIONS: Versions(0, 2)}, 2), ({}, 0), ({ApiKey.API_VERSIONS: Versions(0, 99)}, 3)],
    ids=["a_lower_version", "no_list", "a_contradicting_list"],
)  # fmt: skip
def test_an_older_server_is_asked_again_in_a_version_that_it_knows(
    offered: Mapping[int, Versions], then: int
) -> None:
    pair = Pair()
    pair.run()
    pair.server.requests[0] = pair.server.requests[0]._replace(version=0)  # as it answers
    pair.server.answer(versions_body(offered, error_code=35))
    pair.run()

    assert not pair.connection.is_ready
    assert pair.server.requests[0].version == then
    pair.made_ready()


def test_a_server_that_refuses_to_list_its_versions_is_not_used() -> None:
    pair = Pair()
    pair.run()
    pair.server.answer(versions_body({}, error_code=42))
    pair.server.step()

    with pytest.raises(ApiError, match=r"INVALID_REQUEST \(42\)"):
        pair.connection.read()


def test_highest_version_that_both_know_is_used() -> None:
    pair = Pair().made_ready({ApiKey.METADATA: Versions(0, 5), ApiKey.FETCH: Versions(13, 18)})
    pair.send("newest")
    pair.run()
    assert pair.server.requests[0].version == 5
    pair.server.answer(metadata_body())
    pair.send("at most 3", last_version=3)
    pair.run()

    assert pair.server.requests[0].version == 3
    with pytest.raises(UnsupportedVersionError, match=r"version 12 of FETCH .*supported: 13 to 18"):
        pair.send("none", ApiKey.FETCH, object())
    with pytest.raises(UnsupportedVersionError, match="HEARTBEAT"):
        pair.send("unknown", ApiKey.HEARTBEAT, object())


def test_our_client_names_topics_whatever_versions_the_server_has() -> None:
    pair = Pair().made_ready()

    assert {key: pair.connection.version_of(key) for key in (ApiKey.PRODUCE, ApiKey.FETCH)} == {
        ApiKey.PRODUCE: 12, ApiKey.FETCH: 12,
    }  # fmt: skip
    assert pair.connection.version_of(ApiKey.METADATA) == SUPPORTED[ApiKey.METADATA].last


def test_a_message_may_be_built_for_the_version() -> None:
    pair = Pair().made_ready({ApiKey.METADATA: Versions(0, 5)})
    made_for: list[int] = []

    def make(version: int) -> Any:
        made_for.append(version)
        return MetadataRequest(topics=[])

    pair.send("made", body=make)

    assert made_for == [5]


def test_answers_go_to_their_requests_in_order() -> None:
    pair = Pair().made_ready()
    for name in ("one", "two", "three"):
        pair.send(name)
        pair.run()
    for name in ("one", "two", "three"):
        pair.server.answer(metadata_body(name))
    pair.run()

    assert [(name, answer.cluster_id) for name, answer, _ in pair.ended] == [
        ("one", "one"), ("two", "two"), ("three", "three"),
    ]  # fmt: skip


def test_produce_without_acknowledgement_ends_when_it_is_written() -> None:
    pair = Pair(capacity=300).made_ready()
    pair.send("quiet", ApiKey.PRODUCE, a_produce(0, bytes(1000)))
    pair.connection.write()
    pair.deliver()
    assert pair.ended == []

    while pair.connection.is_sending:
        pair.run()

    assert pair.ended == [("quiet", None, None)]
    assert pair.connection.in_flight_count == 0


@pytest.mark.parametrize("found", [0, 99], ids=["an_older_one", "one_that_was_not_sent"])
def test_answer_with_another_correlation_id_is_refused(found: int) -> None:
    pair = Pair().made_ready()
    pair.send("mine")
    pair.run()
    pair.server.answer(metadata_body(), correlation_id=found)
    pair.server.step()

    with pytest.raises(ProtocolError, match=f"correlation_id .*found {found}"):
        pair.connection.read()
    assert_fails_with_the_connection(pair, "mine")


def assert_fails_with_the_connection(pair: Pair, *names: str) -> None:
    pair.connection.close("a fault")
    pair.deliver()
    assert [name for name, _, _ in pair.ended] == list(names)
    assert all(isinstance(error, DisconnectedError) for _, _, error in pair.ended)
    assert pair.narrow.is_closed


def test_answer_to_a_request_that_is_not_written_yet_is_refused() -> None:
    pair = Pair(capacity=400).made_ready()
    pair.send("long", ApiKey.PRODUCE, a_produce(-1, bytes(1000)))
    pair.connection.write()
    pair.narrow.incoming += b"\0\0\0\x04\0\0\0\x02"

    with pytest.raises(ProtocolError, match="correlation_id"):
        pair.connection.read()
    assert_fails_with_the_connection(pair, "long")


def test_answer_without_a_request_is_refused() -> None:
    pair = Pair().made_ready()
    pair.narrow.incoming += b"\0\0\0\x04\0\0\0\x02"

    with pytest.raises(ProtocolError, match="expected none, found 2"):
        pair.connection.read()


def test_garbled_answer_fails_its_request_and_those_after_it_but_not_those_before() -> None:
    pair = Pair().made_ready()
    for name in ("one", "two", "three"):
        pair.send(name)
        pair.run()
    pair.server.answer(metadata_body())
    pair.run()
    pair.narrow.incoming += b"\0\0\0\x05\0\0\0\x03\0"

    with pytest.raises(ProtocolError, match="malformed METADATA response"):
        pair.connection.read()
    pair.deliver()
    assert [(name, error) for name, _, error in pair.ended] == [("one", None)]
    pair.ended.clear()
    assert_fails_with_the_connection(pair, "two", "three")


def test_each_request_has_its_own_time_out_and_the_others_fail_with_the_connection() -> None:
    pair = Pair(request_timeout_ms=1000).made_ready()
    pair.send("patient")
    pair.run()
    pair.send("hasty", timeout_ms=100)
    pair.run()
    assert pair.connection.next_expiry_ms() == pair.now_ms + 100

    pair.now_ms += 99
    assert not pair.connection.has_expired()
    pair.now_ms += 1
    assert pair.connection.has_expired()
    pair.connection.close("a request before was not answered in time")
    pair.deliver()

    (_, _, patient), (_, _, hasty) = pair.ended
    assert isinstance(patient, DisconnectedError)
    assert isinstance(hasty, RequestTimedOutError)
    assert str(hasty) == "localhost:9092 did not answer a METADATA request within 100 ms"


def test_throttled_client_waits_before_the_next_request() -> None:
    pair = Pair().made_ready()
    pair.send("one")
    pair.run()
    pair.server.answer(MetadataResponse(throttle_time_ms=500, brokers=[], topics=[]))
    pair.run()

    assert not pair.connection.can_send_more()
    pair.now_ms += 500
    assert pair.connection.can_send_more()


def test_no_more_requests_are_in_flight_than_allowed() -> None:
    pair = Pair(max_in_flight_requests_per_connection=2).made_ready()
    for name in ("one", "two"):
        assert pair.connection.can_send_more()
        pair.send(name)
        pair.run()

    assert not pair.connection.can_send_more()
    pair.server.answer(metadata_body())
    pair.run()
    assert pair.connection.can_send_more()


@settings(max_examples=200, deadline=None)  # other tests may take the machine
@given(
    capacity=st.sampled_from([3, 150, 400, 5000]),
    max_in_flight=st.integers(1, 4),
    steps=st.lists(
        st.sampled_from(["send", "send quietly", "write", "serve", "answer", "read"]), max_size=60
    ),
)
def test_another_request_may_be_sent_exactly_when_the_model_allows_it(
    capacity: int, max_in_flight: int, steps: list[str]
) -> None:
    """The model knows what was sent, what the other side has read or buffered, and what it answered."""
    pair = Pair(capacity, max_in_flight_requests_per_connection=max_in_flight)
    while not pair.server.requests:
        pair.run()
    pair.server.answer(versions_body({ApiKey.PRODUCE: Versions(3, 9)}))
    while not pair.connection.is_ready:
        pair.run()
    sent: list[bool] = []  # whether an answer is expected
    answered = 0

    for step in steps:
        quiet_done = not pair.connection.is_sending
        loud = sum(sent)
        ended = sum(answer is not None for _, answer, _ in pair.ended)
        unanswered = loud - ended + (1 if sent and not sent[-1] and not quiet_done else 0)
        expected = unanswered == 0 or (
            not pair.connection.is_sending and unanswered < max_in_flight
        )
        assert pair.connection.can_send_more() is expected
        assert pair.connection.in_flight_count == unanswered <= max_in_flight

        match step:
            case "send" | "send quietly" if expected:
                acks = -1 if step == "send" else 0
                sent.append(acks != 0)
                pair.send(str(len(sent)), ApiKey.PRODUCE, a_produce(acks, bytes(300)))
            case "write":
                pair.connection.write()
            case "serve":
                pair.server.step()
            case "answer":
                while pair.server.requests and pair.server.requests[0].body.acks == 0:
                    pair.server.requests.popleft()
                if pair.server.requests:
                    pair.server.answer(ProduceResponse())
                    answered += 1
            case "read":
                pair.connection.read()
                pair.deliver()

    assert len([one for one in pair.ended if one[1] is not None]) <= answered
    assert all(error is None for _, _, error in pair.ended)


def test_correlation_ids_start_again_after_the_last_one() -> None:
    pair = Pair().made_ready()
    pair.connection._correlation_id = 2**31 - 1
    pair.send("one")
    pair.run()

    assert pair.server.requests[0].correlation_id == 1
