"""What is believed of a cluster's metadata, and for how long."""

from __future__ import annotations

import uuid
from typing import Any

from spark_kbatch.model import text_of_uuid
from spark_kbatch.remote.metadata import MetadataCache
from spark_kbatch.wire.connections import Node
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import MetadataResponse

TOPIC = MetadataResponse.MetadataResponseTopic
MAX_AGE_MS = 1000
ID, OTHER_ID = uuid.UUID(int=1), uuid.UUID(int=2)
ALL = None


def answer(*topics: Any, nodes: tuple[int, ...] = (1, 2)) -> Any:
    broker = MetadataResponse.MetadataResponseBroker
    return MetadataResponse(
        brokers=[broker(node_id=one, host=f"host-{one}", port=9092) for one in nodes],
        cluster_id="a-cluster",
        controller_id=1,
        topics=list(topics),
    )


def topic(
    name: str, leader: int = 1, epoch: int = 5, *, code: int = 0, topic_id: uuid.UUID = ID
) -> Any:
    partition = TOPIC.MetadataResponsePartition(
        error_code=0, partition_index=0, leader_id=leader, leader_epoch=epoch,
        replica_nodes=[1, 2], isr_nodes=[1],
    )  # fmt: skip
    return TOPIC(
        error_code=code, name=name, topic_id=topic_id, is_internal=False, partitions=[partition]
    )


def updated(*topics: Any, asked: frozenset[str] | None = ALL) -> MetadataCache:
    cache = MetadataCache(MAX_AGE_MS)
    cache.update(asked, answer(*topics), now_ms=0)
    return cache


def leader_of(cache: MetadataCache, name: str) -> Any:
    found = cache.find([name], now_ms=0)
    return found and found.leader_of(name, 0)


def test_nothing_is_known_at_first() -> None:
    cache = MetadataCache(MAX_AGE_MS)

    assert cache.find(None, 0) is None
    assert cache.find([], 0) is None


def test_an_answer_is_believed_until_it_is_too_old() -> None:
    cache = updated(topic("a"))

    assert cache.find(None, MAX_AGE_MS - 1) is not None
    assert cache.find(None, MAX_AGE_MS) is None
    assert cache.find(["a"], MAX_AGE_MS) is None


def test_some_topics_do_not_tell_of_all() -> None:
    cache = updated(topic("a"), asked=frozenset(["a"]))

    assert cache.find(["a"], 0) is not None
    assert cache.find(["a", "b"], 0) is None
    assert cache.find(None, 0) is None


def test_deleted_topic_is_forgotten_whichever_way_it_is_asked_for() -> None:
    for asked in (None, frozenset(["a"])):
        cache = updated(topic("a"), topic("b"))
        gone = [topic("a", code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)] if asked else [topic("b")]
        found, errors = cache.update(asked, answer(*gone), now_ms=1)

        assert "a" not in found.topics
        assert errors.unknown == (asked or frozenset())
        assert cache.find(["a"], 1) is None
        assert cache.find(["b"], 1) is not None


def test_errors_are_divided_into_those_that_pass_and_those_that_do_not() -> None:
    _, errors = MetadataCache(MAX_AGE_MS).update(
        None,
        answer(
            topic("new", code=ErrorCode.LEADER_NOT_AVAILABLE),
            topic("secret", code=ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ),
        now_ms=0,
    )

    assert set(errors.transient) == {"new"}
    assert set(errors.refused) == {"secret"}


def test_broker_that_is_behind_does_not_bring_an_old_leader_back() -> None:
    cache = updated(topic("a", leader=2, epoch=6))
    cache.update(None, answer(topic("a", leader=1, epoch=5)), now_ms=0)
    assert leader_of(cache, "a") == (Node(2, "host-2", 9092), 6)

    cache.update(None, answer(topic("a", leader=1, epoch=0, topic_id=OTHER_ID)), now_ms=0)
    assert leader_of(cache, "a") == (Node(1, "host-1", 9092), 0)


def test_partition_without_leader_or_with_one_at_no_address_has_none() -> None:
    for leader in (-1, 7):
        assert leader_of(updated(topic("a", leader=leader)), "a") is None


def test_topic_id_has_the_form_of_kafkas_tools() -> None:
    found, _ = MetadataCache(MAX_AGE_MS).update(None, answer(topic("a")), now_ms=0)
    assert found.topics["a"].topic_id == text_of_uuid(ID.bytes) == "AAAAAAAAAAAAAAAAAAAAAQ"

    no_id = topic("a", topic_id=uuid.UUID(int=0))
    found, _ = MetadataCache(MAX_AGE_MS).update(None, answer(no_id), now_ms=0)
    assert found.topics["a"].topic_id == ""


def test_invalidated_answers_are_not_believed_and_their_epochs_stay_known() -> None:
    cache = updated(topic("a", leader=2, epoch=6))
    cache.invalidate()
    assert cache.find(["a"], 0) is None
    assert cache.nodes.keys() == {1, 2}

    cache.update(None, answer(topic("a", leader=1, epoch=5)), now_ms=0)
    assert leader_of(cache, "a") == (Node(2, "host-2", 9092), 6)
