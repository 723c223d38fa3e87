"""What groups keep is bounded, and small requests have small answers."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_kbatch import Cluster
from spark_kbatch.model import TopicPartition
from spark_kbatch.server.groups import group as memory
from spark_kbatch.server.groups.membership import Timers
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import ApiKey, OffsetFetchRequest
from tests.support import builders
from tests.support.group_members import OK, Client, Coordinated

PLACE = TopicPartition("events", 0)
MiB = 1 << 20


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return builders.a_cluster(tmp_path, topics={"events": 3})


@pytest.fixture
def groups(cluster: Cluster) -> Coordinated:
    return Coordinated(cluster)


def with_metadata(size_in_bytes: int) -> tuple[tuple[str, bytes], ...]:
    return (("range", bytes(size_in_bytes)),)


def test_a_member_with_more_than_a_mebibyte_of_metadata_is_refused_when_it_joins(
    groups: Coordinated,
) -> None:
    assert groups.client(protocols=with_metadata(MiB - 5)).join().joined.error is OK  # type: ignore[union-attr]
    refused = groups.client(group="other", protocols=with_metadata(MiB)).join()

    assert refused.joined is not None
    assert refused.joined.error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "other" not in groups.coordinator._memberships.groups


def test_the_members_of_a_group_have_a_limit_together(groups: Coordinated) -> None:
    members = [groups.client(protocols=with_metadata(MiB - 5)).ask_to_join() for _ in range(2)]
    many = [groups.client(version=3, protocols=with_metadata(MiB - 5)) for _ in range(5)]
    for one in many:
        one.ask_to_join()

    assert {one.error for one in members} == {ErrorCode.MEMBER_ID_REQUIRED}  # not members yet
    assert many[4].joined is not None
    assert many[4].joined.error is ErrorCode.UNKNOWN_SERVER_ERROR


def test_members_of_all_groups_have_a_limit_together_until_some_leave(
    groups: Coordinated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory.GroupMemory, "bytes_max", MiB)
    first = groups.client(group="a", protocols=with_metadata(MiB // 2)).join()
    groups.finish([first])
    second = groups.client(group="b", protocols=with_metadata(MiB // 2)).join()
    assert second.joined is not None
    assert second.joined.error is ErrorCode.GROUP_MAX_SIZE_REACHED

    assert first.leave() is OK
    groups.advance(6_000)
    again = groups.client(group="b", protocols=with_metadata(MiB // 2)).join()
    assert again.joined is not None
    assert again.joined.error is OK


def subscriptions(topics: int) -> tuple[tuple[str, bytes], ...]:
    """Return a subscription of 2 bytes for each topic, which are counted with 110 once they are decoded."""
    return (("range", struct.pack(">hi", 0, topics) + bytes(2 * topics)),)


def joins_as_another(groups: Coordinated, known: Client) -> None:
    other = groups.client(group=known.group, member_id="nobody", protocols=subscriptions(2000))
    assert other.ask_to_join().error is ErrorCode.UNKNOWN_MEMBER_ID


def joins_with_another_protocol(groups: Coordinated, known: Client) -> None:
    ((_, data),) = subscriptions(2000)
    other = groups.client(group=known.group, version=3, protocols=(("unknown", data),))
    assert other.ask_to_join().error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def sends_assignments_again(groups: Coordinated, known: Client) -> None:
    assert known.sync({known.member_id: bytes(200_000)}).error is OK


def joins_and_leaves(groups: Coordinated, known: Client) -> None:
    other = groups.client(group="passing", protocols=subscriptions(2000)).join()
    assert other.joined is not None
    assert other.joined.error is OK
    assert other.leave() is OK


@pytest.mark.parametrize(
    "do",
    [joins_as_another, joins_with_another_protocol, sends_assignments_again, joins_and_leaves],
)
def test_what_is_not_kept_takes_nothing_from_others(
    groups: Coordinated,
    monkeypatch: pytest.MonkeyPatch,
    do: Callable[[Coordinated, Client], None],
) -> None:
    monkeypatch.setattr(memory.GroupMemory, "bytes_max", MiB)
    known = groups.client(group="known")
    groups.stable(known)
    for number in range(20):
        do(groups, known)
        new = groups.client(group=f"new-{number}").join()
        assert new.joined is not None
        assert new.joined.error is OK


def test_a_measurement_that_takes_long_is_not_made_for_each_request() -> None:
    now_ms, measured = 0, 0

    def measure() -> int:
        nonlocal now_ms, measured
        now_ms, measured = now_ms + 100, measured + 1
        return memory.GroupMemory.bytes_max

    groups = memory.GroupMemory(measure, lambda: now_ms)
    for _ in range(10):
        assert not groups.take(1)
    assert measured == 1
    now_ms += 2000
    for _ in range(10):
        assert not groups.take(1)
    assert measured == 2


@pytest.mark.parametrize("field", ["group", "client_id", "instance_id", "protocol_type"])
def test_names_and_ids_of_members_count_for_the_limit_of_all_groups(
    groups: Coordinated, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    monkeypatch.setattr(memory.GroupMemory, "bytes_max", 90_000)

    def join(number: int) -> ErrorCode:
        fields: dict[str, Any] = {"group": str(number), field: f"{number}{'n' * 30_000}"}
        return groups.client(**fields).join().joined.error  # type: ignore[union-attr]

    assert [join(number) for number in range(3)] == [OK, OK, ErrorCode.GROUP_MAX_SIZE_REACHED]
    groups.advance(6_000)  # then all is measured
    assert join(3) is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_topics_of_subscriptions_count_as_they_are_kept(
    groups: Coordinated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory.GroupMemory, "bytes_max", 300_000)
    names = [f"{number:03x}".encode() for number in range(1000)]
    encoded = b"".join(struct.pack(">h", len(name)) + name for name in names)
    subscribed = struct.pack(">hi", 0, len(names)) + encoded

    def join(number: int) -> ErrorCode:
        protocols = (("range", subscribed),)
        return groups.client(group=str(number), protocols=protocols).join().joined.error  # type: ignore[union-attr]

    assert [join(number) for number in range(3)] == [OK, OK, ErrorCode.GROUP_MAX_SIZE_REACHED]
    groups.advance(6_000)
    assert join(3) is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_the_ids_of_groups_with_offsets_alone_count_for_the_limit_of_all_groups(
    groups: Coordinated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory.GroupMemory, "bytes_max", 150_000)

    def commit(number: int) -> ErrorCode:
        return groups.commit({PLACE: 1}, group=f"{number}{'g' * 30_000}")[PLACE]

    assert [commit(number) for number in range(3)] == [
        OK, OK, ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ]  # fmt: skip
    groups.advance(6_000)
    assert commit(3) is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert commit(0) is OK


def test_names_and_ids_count_for_the_size_of_an_answer(
    groups: Coordinated, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups.stable(groups.client(group="g", instance_id="i" * 6_000))
    assert groups.commit({PLACE: 1}, group="h" * 6_000) == {PLACE: OK}
    monkeypatch.setattr("spark_kbatch.server.groups.coordinator.ANSWER_BYTES_MAX", 5000)

    asked = ["g", *(f"none-{number}" for number in range(10))]
    described = groups.ask(ApiKey.DESCRIBE_GROUPS, groups=asked).answer.groups

    assert [described[0].error_code, described[10].error_code] == [
        OK, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ]  # fmt: skip


def test_assignments_above_the_limit_of_a_group_are_refused(groups: Coordinated) -> None:
    member = groups.client().join()
    groups.advance(100)

    refused = member.sync({member.member_id: bytes(memory.GROUP_BYTES_MAX + 1)})

    assert refused.error is ErrorCode.UNKNOWN_SERVER_ERROR


def test_committed_offsets_have_a_limit_but_those_that_are_there_go_on(
    groups: Coordinated, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert groups.commit({PLACE: 1}) == {PLACE: OK}
    monkeypatch.setattr(memory.GroupMemory, "bytes_max", 1000)

    other = TopicPartition("events", 1)
    assert groups.commit({other: (1, "m" * 1000)}) == {other: ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
    assert groups.commit({PLACE: 2}) == {PLACE: OK}


def test_the_metadata_of_one_groups_offsets_has_a_limit_counted_in_bytes(
    groups: Coordinated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_kbatch.server.groups.offsets.OFFSETS_BYTES_MAX", 6000)
    other = TopicPartition("events", 1)
    assert groups.commit({PLACE: (1, "\u20ac" * 1900)}) == {PLACE: OK}  # 5700 bytes

    assert groups.commit({other: (1, "m" * 301)}) == {other: ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
    assert groups.commit({other: (1, "m" * 300)}) == {other: OK}
    assert groups.commit({other: (1, "m" * 301)}, group="another") == {other: OK}
    assert groups.commit({PLACE: (2, "\u20ac" * 1900)}) == {PLACE: OK}  # no more than before
    assert groups.commit({PLACE: (2, "")}) == {PLACE: OK}
    assert groups.commit({other: (1, "m" * 6000)}) == {
        other: ErrorCode.OFFSET_METADATA_TOO_LARGE  # 4096 characters of one offset
    }
    assert groups.commit({other: (1, "m" * 4000)}) == {other: OK}


def test_what_was_loaded_counts_for_the_limit_of_all_groups(
    cluster: Cluster, groups: Coordinated, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert groups.commit({PLACE: (1, "m" * 4000)}) == {PLACE: OK}
    monkeypatch.setattr(memory.GroupMemory, "bytes_max", 6000)

    again = Coordinated(cluster)

    other = TopicPartition("events", 1)
    assert again.commit({other: (1, "m" * 2000)}) == {other: ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
    assert again.commit({PLACE: (2, "m" * 4000)}) == {PLACE: OK}


@pytest.mark.parametrize("version", [7, 8])
def test_an_offset_that_is_named_often_is_answered_once(groups: Coordinated, version: int) -> None:
    groups.commit({PLACE: (1, "m" * 4000)}, group="g")
    if version < 8:
        make = OffsetFetchRequest.OffsetFetchRequestTopic
        topics = [make(name="events", partition_indexes=[0] * 100) for _ in range(100)]
        answer = groups.ask(ApiKey.OFFSET_FETCH, version, group_id="g", topics=topics).answer
        (topic,) = answer.topics
    else:
        make_group = OffsetFetchRequest.OffsetFetchRequestGroup
        make = make_group.OffsetFetchRequestTopics
        topics = [make(name="events", partition_indexes=[0] * 100) for _ in range(10)]
        asked = [make_group(group_id="g", topics=topics) for _ in range(10)]
        (group,) = groups.ask(ApiKey.OFFSET_FETCH, version, groups=asked).answer.groups
        (topic,) = group.topics

    assert [one.partition_index for one in topic.partitions] == [0]


def test_a_group_that_is_named_very_often_is_answered_soon(groups: Coordinated) -> None:
    make = OffsetFetchRequest.OffsetFetchRequestGroup
    topic_of = make.OffsetFetchRequestTopics
    asked = [
        make(group_id="g", topics=[topic_of(name=f"t-{number}", partition_indexes=[number])])
        for number in range(20_000)
    ]
    began_s = time.monotonic()

    (group,) = groups.ask(ApiKey.OFFSET_FETCH, 8, groups=asked).answer.groups

    assert len(group.topics) == len(asked)
    assert time.monotonic() - began_s < 10  # not by the square of how often


def test_groups_that_make_an_answer_too_large_are_to_be_asked_for_again(
    groups: Coordinated, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        groups.commit({PLACE: (1, "m" * 4000)}, group=name)
    monkeypatch.setattr("spark_kbatch.server.groups.coordinator.ANSWER_BYTES_MAX", 5000)
    make = OffsetFetchRequest.OffsetFetchRequestGroup

    asked = [make(group_id=name, topics=None) for name in "abc"]
    answer = groups.ask(ApiKey.OFFSET_FETCH, 8, groups=asked).answer

    assert [ErrorCode(one.error_code) for one in answer.groups] == [
        OK, OK, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ]  # fmt: skip


def test_a_session_does_not_end_while_a_heartbeat_that_arrived_in_time_waits(
    groups: Coordinated,
) -> None:
    member = groups.client().join()
    groups.finish([member])
    # 1. A heartbeat arrives. 2. For longer than the session another request keeps it waiting.
    arrived_ms = groups.ms + 5_000
    groups.coordinator._handled_until_ms = lambda: arrived_ms
    groups.ms += 30_000
    groups.coordinator.tick()

    assert member.heartbeat() is OK
    groups.coordinator._handled_until_ms = lambda: groups.ms
    groups.advance(30_000)
    assert member.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_timers_that_are_set_and_cancelled_leave_little_behind() -> None:
    timers = Timers()
    timers.set(("kept",), 5, lambda: None)
    for number in range(10_000):
        timers.set((str(number),), 10**6, lambda: None)
        timers.cancel((str(number),))

    assert len(timers._heap) < 2_000
    assert timers.next_deadline_ms() == 5
