"""What transactions may take of a server: memory, and the work that one request can make."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_kbatch import Cluster
from spark_kbatch.clock import monotonic_s
from spark_kbatch.cluster.transactions.state import Status
from spark_kbatch.model import AppendOrigin, TopicPartition
from spark_kbatch.server.server import Server
from spark_kbatch.server.transactions import coordinator, requests
from spark_kbatch.wire import protocol
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import ApiKey
from tests.support import builders
from tests.support.raw_clients import RawClient
from tests.support.raw_transactions import EVENTS, OTHER, RawProducer, until_status
from tests.support.waiting import until

OK, REFUSED = ErrorCode.NONE, ErrorCode.POLICY_VIOLATION
LONG = 30_000  # characters of a name
IN = [TopicPartition("in", number) for number in range(30)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with builders.a_cluster(tmp_path, topics={"events": 2, "in": len(IN)}) as cluster:
        yield cluster


@pytest.fixture
def client(server: Server) -> Iterator[RawClient]:
    with RawClient(server, timeout_s=60) as client:
        RawProducer(client, "known").start()  # so that all are loaded
        yield client


def names(client: RawClient) -> set[str]:
    answer = client.ask(ApiKey.LIST_TRANSACTIONS, 0, protocol.ListTransactionsRequest())
    return {one.transactional_id for one in answer.transaction_states}


def test_one_transaction_has_a_bound_past_which_it_can_still_be_ended(
    cluster: Cluster, client: RawClient
) -> None:
    large, other = RawProducer(client, "large").start(), RawProducer(client, "other").start()
    large.write(EVENTS)
    errors = []
    for number in range(15):
        assert large.add_group(f"group-{number}") is OK
        offsets = dict.fromkeys(IN, 1)
        errors += large.commit_offsets(f"group-{number}", offsets, metadata="€" * 4000)

    accepted = errors.index(REFUSED)
    assert {*errors[:accepted]} == {OK}
    assert {*errors[accepted:]} == {REFUSED}
    assert 0.8 < accepted * 12_000 / coordinator.TRANSACTION_BYTES_MAX < 1
    assert large.add_group("g" * LONG) is OK  # there is room for it
    assert large.ask_to_add(EVENTS) == [OK]  # it is there
    assert other.add_group("g") is OK
    large.end(commit=True)
    until_status(cluster, Status.COMPLETE_COMMIT, "large")
    large.write(EVENTS, OTHER).end(commit=True)


def test_partitions_and_offsets_with_their_metadata_count(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "TRANSACTION_BYTES_MAX", 10_000)
    by_partitions = RawProducer(client, "partitions").start()
    assert by_partitions.ask_to_add(*IN) == [REFUSED] * len(IN)
    assert by_partitions.ask_to_add(*IN[:10]) == [OK] * 10

    by_offsets = RawProducer(client, "offsets").start()
    assert by_offsets.add_group("g") is OK
    assert by_offsets.commit_offsets("g", dict.fromkeys(IN, 1)) == [REFUSED] * len(IN)
    assert by_offsets.commit_offsets("g", dict.fromkeys(IN[:5], 1)) == [OK] * 5
    assert by_offsets.commit_offsets("g", dict.fromkeys(IN[:5], 2)) == [OK] * 5

    by_metadata = RawProducer(client, "metadata").start()
    assert by_metadata.add_group("g") is OK
    assert by_metadata.commit_offsets("g", {IN[0]: 1}, metadata="m" * 4000) == [OK]
    assert by_metadata.commit_offsets("g", {IN[1]: 1}, metadata="m" * 4000) == [REFUSED]


def test_all_ids_together_have_a_bound_and_what_is_there_goes_on(
    cluster: Cluster, client: RawClient
) -> None:
    known = RawProducer(client, "known").start()
    before, last, error = [0], "", OK
    for number in range(1200):
        last = f"{number}{'t' * LONG}"
        error = RawProducer(client, last).ask_to_start()
        if error:
            break
        before.append(number)

    assert error is REFUSED
    assert 0.9 < len(before) * LONG / coordinator.BYTES_MAX < 1
    assert last not in names(client)
    assert known.ask_to_start() is OK
    assert RawProducer(client, f"1{'t' * LONG}").ask_to_start() is OK


def test_ids_that_are_not_used_make_room_for_others(
    client: RawClient, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget() -> None:
        server._transactions._expire_after_ms = 0
        until(lambda: server._transactions._expire_after_ms > 0)

    monkeypatch.setattr(coordinator, "UNUSED_MS", 0)
    RawProducer(client, "open").start().add(EVENTS)
    forget()
    assert names(client) == {"known", "open"}  # they take little

    size = server._transactions._size_in_bytes()
    monkeypatch.setattr(coordinator, "BYTES_MAX", size + 100)
    server._transactions._memory.bytes_max = size + 100
    assert RawProducer(client, "new").ask_to_start() is REFUSED
    forget()
    assert names(client) == {"open"}
    until(lambda: RawProducer(client, "new").ask_to_start() is OK)


def test_groups_of_ended_transactions_take_nothing(
    cluster: Cluster, client: RawClient, server: Server
) -> None:
    one, two = RawProducer(client, "one").start(), RawProducer(client, "two").start()
    for commit in (True, False):
        for producer in (one, two):
            until(lambda producer=producer: producer.add_group("g") is OK)  # type: ignore[misc]
            assert producer.commit_offsets("g", {IN[0]: 1}) == [OK]
        assert one.add_group("h") is OK
        one.end(commit=commit)
        until(lambda: server._transactions._pending.keys() == {"g"})
        assert server._transactions.pending_of("g") == {IN[0]}
        two.end(commit=commit)
        until(lambda: not server._transactions._pending)


def test_many_filters_and_many_ids_are_not_compared_each_with_each(
    client: RawClient, server: Server
) -> None:
    every = server._transactions._log.contents.transactions
    every |= {str(number): every["known"] for number in range(40_000)}
    asked = protocol.ListTransactionsRequest(state_filters=[str(one) for one in range(60_000)])
    began_s = monotonic_s()
    answer = client.ask(ApiKey.LIST_TRANSACTIONS, 0, asked)
    took_s = monotonic_s() - began_s

    assert answer.transaction_states == []
    assert took_s < 10


def described(client: RawClient, *numbers: int) -> list[Any]:
    topic_of = protocol.DescribeProducersRequest.TopicRequest
    topics = [topic_of(name="events", partition_indexes=[one]) for one in numbers]
    asked = protocol.DescribeProducersRequest(topics=topics)
    answer = client.ask(ApiKey.DESCRIBE_PRODUCERS, 0, asked)
    return [one for topic in answer.topics for one in topic.partitions]


def test_producers_of_a_partition_that_is_named_often_are_described_once(client: RawClient) -> None:
    RawProducer(client, "open").start().write(EVENTS)

    found, missing = described(client, *[0] * 100, *[9] * 100)
    assert len(found.active_producers) == 1
    assert (missing.partition_index, missing.active_producers) == (9, [])


def test_when_an_answer_has_many_producers_the_client_asks_again_for_other_partitions(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "PRODUCERS_MAX", 1)
    RawProducer(client, "open").start().write(EVENTS, OTHER)

    found = described(client, 0, 1)
    assert sorted(len(one.active_producers) for one in found) == [0, 1]
    again = [one for one in found if one.error_code]
    assert [one.error_code for one in again] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    (rest,) = described(client, again[0].partition_index)
    assert len(rest.active_producers) == 1


def test_markers_are_work_for_the_peer_that_has_decided(
    client: RawClient, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended: list[Any] = []
    append = server._transactions._appends.append

    def noted(topic_partition: TopicPartition, one: Any) -> None:
        appended.append(one)
        append(topic_partition, one)

    monkeypatch.setattr(server._transactions._appends, "append", noted)
    RawProducer(client).start().write(EVENTS).end(commit=True)
    RawProducer(client).start().write(OTHER)
    RawProducer(client).ask_to_start()  # aborts it

    assert [one.peer.host for one in appended if one.origin is AppendOrigin.COORDINATOR] == [
        "127.0.0.1"
    ] * 2
