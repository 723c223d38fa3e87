"""Administration of groups, and the errors that clients get when something fails."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from spark_kbatch import Cluster
from spark_kbatch.cluster.offsets_store import StoredGroups
from spark_kbatch.errors import (
    KafkaStorageError,
    KBatchError,
    LockTimeoutError,
    NotEnoughReplicasError,
    RecordTooLargeError,
)
from spark_kbatch.model import TopicPartition
from spark_kbatch.server.groups.membership import Timers
from spark_kbatch.wire import protocol
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import ApiKey
from tests.support import builders
from tests.support.group_members import OK, Coordinated, subscribed_to, versions

PLACE = TopicPartition("events", 0)
FULL = KafkaStorageError("no space left on device")
FAILURES = [
    pytest.param(FULL, ErrorCode.NOT_COORDINATOR, id="the disk"),
    pytest.param(LockTimeoutError("p", "l", 5.0), ErrorCode.COORDINATOR_NOT_AVAILABLE, id="a lock"),
    pytest.param(
        NotEnoughReplicasError("p", (0,), 2), ErrorCode.COORDINATOR_NOT_AVAILABLE, id="replicas"
    ),
    pytest.param(
        RecordTooLargeError("batch", 2, 1, "o"), ErrorCode.UNKNOWN_SERVER_ERROR, id="its size"
    ),
]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return builders.a_cluster(tmp_path, topics={"events": 3})


@pytest.fixture
def groups(cluster: Cluster) -> Coordinated:
    return Coordinated(cluster)


def fail(groups: Coordinated, error: Exception) -> None:
    """Let all appends to the store fail from now on."""

    def append(*_: object) -> None:
        raise error

    groups.store._log._append = append  # type: ignore[method-assign]


def mend(groups: Coordinated) -> None:
    del groups.store._log._append  # type: ignore[method-assign]


# Administration.


@pytest.mark.parametrize("version", versions(ApiKey.LIST_GROUPS))
def test_groups_are_listed_in_all_versions(groups: Coordinated, version: int) -> None:
    groups.stable(groups.client(group="b"))
    groups.commit({PLACE: 1}, group="a")

    listed = groups.ask(ApiKey.LIST_GROUPS, version).answer.groups

    assert [(one.group_id, one.protocol_type) for one in listed] == [("a", ""), ("b", "consumer")]
    if version >= 4:
        assert [one.group_state for one in listed] == ["Empty", "Stable"]


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        pytest.param(["Stable"], ["b"], id="one"),
        pytest.param(["empty", " STABLE "], ["a", "b"], id="two, in other letters"),
        pytest.param(["PreparingRebalance"], [], id="no group's"),
        pytest.param(["what"], [], id="no state"),
    ],
)
def test_groups_are_listed_by_state(
    groups: Coordinated, states: list[str], expected: list[str]
) -> None:
    groups.stable(groups.client(group="b"))
    groups.commit({PLACE: 1}, group="a")

    listed = groups.ask(ApiKey.LIST_GROUPS, states_filter=states).answer.groups

    assert [one.group_id for one in listed] == expected


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_GROUPS))
def test_groups_are_described_in_all_versions(groups: Coordinated, version: int) -> None:
    member = groups.client(instance_id="i-1", client_id="me")
    groups.stable(member)

    found = groups.describe(version=version)

    assert (found.error_code, found.group_state) == (OK, "Stable")
    assert (found.protocol_type, found.protocol_data) == ("consumer", "range")
    (one,) = found.members
    assert (one.member_id, one.client_id, one.client_host) == (
        member.member_id, "me", "/127.0.0.1",
    )  # fmt: skip
    assert bytes(one.member_metadata) == subscribed_to("events")
    assert bytes(one.member_assignment) == member.member_id.encode()
    if version >= 4:
        assert one.group_instance_id == "i-1"


def test_a_group_that_rebalances_is_described_without_protocol(groups: Coordinated) -> None:
    groups.stable(groups.client())
    groups.join()

    found = groups.describe()

    assert (found.group_state, found.protocol_type, found.protocol_data) == (
        "PreparingRebalance", "consumer", "",
    )  # fmt: skip
    assert [bytes(one.member_metadata) for one in found.members] == [b"", b""]


def test_a_group_that_does_not_exist_is_dead(groups: Coordinated) -> None:
    found = groups.describe("none")

    assert (found.error_code, found.group_state, list(found.members)) == (OK, "Dead", [])


def test_a_group_that_is_named_often_is_answered_once(groups: Coordinated) -> None:
    groups.commit({PLACE: 1}, group="a")
    group_of = protocol.OffsetFetchRequest.OffsetFetchRequestGroup
    asked = [group_of(group_id="a", topics=None) for _ in range(1000)]

    described = groups.ask(ApiKey.DESCRIBE_GROUPS, groups=["a"] * 1000).answer.groups
    fetched = groups.ask(ApiKey.OFFSET_FETCH, groups=asked).answer.groups

    assert [one.group_id for one in described] == ["a"]
    assert [one.group_id for one in fetched] == ["a"]


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_GROUPS))
def test_groups_are_deleted_in_all_versions(groups: Coordinated, version: int) -> None:
    groups.stable(groups.client(group="used"))
    groups.commit({PLACE: 1}, group="a")
    names = ["a", "used", "none"]

    results = groups.ask(ApiKey.DELETE_GROUPS, version, groups_names=names).answer.results

    assert {one.group_id: one.error_code for one in results} == {
        "a": OK,
        "used": ErrorCode.NON_EMPTY_GROUP,
        "none": ErrorCode.GROUP_ID_NOT_FOUND,
    }
    assert groups.fetch(group="a") == {}


def test_a_deleted_group_forgets_the_ids_that_it_gave_out(groups: Coordinated) -> None:
    groups.commit({PLACE: 1})
    client = groups.client()
    client.ask_to_join()

    assert groups.delete_group() is OK
    assert client.ask_to_join().error is ErrorCode.UNKNOWN_MEMBER_ID
    groups.advance(20_000)


# Failures.


@pytest.mark.parametrize(("failure", "error"), FAILURES)
def test_offsets_that_cannot_be_stored_are_not_committed(
    groups: Coordinated, failure: KBatchError, error: ErrorCode
) -> None:
    groups.commit({PLACE: 1})
    fail(groups, failure)

    found = groups.commit({PLACE: 2, ("none", 0): 1})

    assert found == {PLACE: error, ("none", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert groups.fetch() == {PLACE: (1, 3, "")}
    mend(groups)
    assert groups.commit({PLACE: 3}) == {PLACE: OK}


@pytest.mark.parametrize(("failure", "error"), FAILURES)
def test_members_rejoin_if_their_assignments_cannot_be_stored(
    groups: Coordinated, failure: KBatchError, error: ErrorCode
) -> None:
    leader = groups.client()
    groups.stable(leader)
    follower = groups.join()
    leader.join()
    follower.note()
    waiting = follower.sync()
    fail(groups, failure)

    assert leader.sync({follower.member_id: b"all"}).error is error
    assert waiting.error is error
    assert groups.state() == "PreparingRebalance"
    mend(groups)
    leader.join()
    follower.join()
    groups.finish([leader, follower])


@pytest.mark.parametrize(("failure", "error"), FAILURES)
def test_a_static_member_keeps_its_old_id_if_the_new_one_cannot_be_stored(
    groups: Coordinated, failure: KBatchError, error: ErrorCode
) -> None:
    member = groups.client(instance_id="i-1")
    groups.stable(member)
    fail(groups, failure)
    back = groups.client(instance_id="i-1", session_timeout_ms=20_000)

    assert back.ask_to_join().error is error
    assert member.heartbeat() is OK
    mend(groups)
    assert back.ask_to_join().error is OK
    assert member.heartbeat() is ErrorCode.FENCED_INSTANCE_ID


def test_a_group_that_cannot_be_deleted_stays(groups: Coordinated) -> None:
    groups.commit({PLACE: 1})
    fail(groups, FULL)

    assert groups.delete_group() is ErrorCode.NOT_COORDINATOR
    assert groups.fetch() == {PLACE: (1, 3, "")}


def test_an_empty_group_goes_on_even_if_that_cannot_be_stored(groups: Coordinated) -> None:
    member = groups.client()
    groups.stable(member)
    fail(groups, FULL)

    assert member.leave() is OK
    assert groups.state() == "Empty"
    mend(groups)
    groups.stable(groups.client())


def test_offsets_stay_until_their_removal_can_be_stored(groups: Coordinated) -> None:
    groups.commit({PLACE: 1})
    fail(groups, FULL)
    groups.advance(8 * 24 * 60 * 60_000, step_ms=600_000)
    assert groups.fetch().keys() == {PLACE}
    mend(groups)
    groups.advance(1_200_000, step_ms=600_000)

    assert groups.fetch() == {}


def test_groups_that_cannot_be_loaded_are_loaded_later(
    groups: Coordinated, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    groups.commit({PLACE: 1})
    member = groups.client()
    groups.stable(member)
    tried = []

    def load(_: object) -> StoredGroups:
        tried.append(groups.ms)
        raise FULL

    with monkeypatch.context() as failing, caplog.at_level(logging.ERROR):
        failing.setattr("spark_kbatch.cluster.offsets_store.OffsetsStore.load", load)
        groups.restart()
        assert member.heartbeat() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert groups.commit({PLACE: 2}) == {PLACE: ErrorCode.COORDINATOR_NOT_AVAILABLE}
        for version in versions(ApiKey.OFFSET_FETCH):
            assert failed_fetch(groups, version) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        groups.advance(2_500)
    assert len(tried) == 3
    assert "cannot be loaded" in caplog.text
    groups.advance(1_000)

    assert member.heartbeat() is OK


def failed_fetch(groups: Coordinated, version: int) -> Any:
    """Return the error from the place where clients of this version look for it."""
    request = protocol.OffsetFetchRequest
    topics = [request.OffsetFetchRequestTopic(name="events", partition_indexes=[0])]
    of_groups = [request.OffsetFetchRequestGroup(group_id="g", topics=None)]
    answer = groups.ask(
        ApiKey.OFFSET_FETCH, version, group_id="g", topics=topics, groups=of_groups
    ).answer
    if version < 2:
        return answer.topics[0].partitions[0].error_code
    return answer.error_code if version < 8 else answer.groups[0].error_code


@pytest.mark.parametrize(
    "api_key",
    [
        ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP,
        ApiKey.OFFSET_DELETE, ApiKey.LIST_GROUPS,
    ],
)  # fmt: skip
def test_all_requests_are_refused_after_the_coordinator_has_ended(
    groups: Coordinated, api_key: ApiKey
) -> None:
    groups.coordinator.close()

    asked = groups.ask(
        api_key, group_id="g", member_id="", protocols=[], assignments=[], members=[], topics=[],
        generation_id=1, session_timeout_ms=10_000, rebalance_timeout_ms=1, protocol_type="",
        protocol_name="",
    )  # fmt: skip

    assert asked.error is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_an_unexpected_error_fails_only_one_request(
    groups: Coordinated, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(*_: object) -> None:
        raise RuntimeError("a fault")

    with monkeypatch.context() as faulty, caplog.at_level(logging.ERROR):
        faulty.setattr("spark_kbatch.server.groups.offsets.CommittedOffsets.commit", fault)
        assert groups.commit({PLACE: 1}) == {PLACE: ErrorCode.UNKNOWN_SERVER_ERROR}
    assert "a fault" in caplog.text

    assert groups.commit({PLACE: 1}) == {PLACE: OK}


def test_an_answer_that_cannot_be_given_does_not_delay_other_answers(
    groups: Coordinated, caplog: pytest.LogCaptureFixture
) -> None:
    first = groups.client()
    groups.stable(first)
    second = groups.join()
    assert second.joined is not None

    def gone(_: object) -> None:
        raise ConnectionError("the client is gone")

    second.joined.respond = gone  # type: ignore[method-assign]
    groups.coordinator._memberships.groups["g"].members[second.member_id].awaiting_join = (
        lambda answer: groups.coordinator._answers.append((gone, answer))
    )
    third = groups.join()
    with caplog.at_level(logging.ERROR):
        first.join()
    third.note()

    assert third.generation == first.generation == 2
    assert "the client is gone" in caplog.text


def test_several_threads_take_turns(groups: Coordinated) -> None:
    """Handlers run in many threads, while time passes."""

    def consume(name: str) -> None:
        for offset in range(20):
            assert groups.commit({PLACE: offset}, group=name) == {PLACE: OK}
            assert groups.fetch(group=name) == {PLACE: (offset, 3, "")}

    with ThreadPoolExecutor(4) as pool:
        consuming = [pool.submit(consume, name) for name in "abcd"]
        while not all(one.done() for one in consuming):
            groups.coordinator.tick()
    for one in consuming:
        one.result()
    assert len(groups.ask(ApiKey.LIST_GROUPS).answer.groups) == 4


# Timers.


def test_a_timer_that_is_put_off_runs_once() -> None:
    timers, done = Timers(), []
    for deadline in range(100, 1_100, 10):
        timers.set(("a",), deadline, lambda: done.append("a"))
    assert len(timers._heap) == 1

    timers.run_due(1_089)
    assert done == []
    assert timers.next_deadline_ms() == 1_090
    timers.run_due(1_090)
    timers.run_due(5_000)
    assert done == ["a"]
    assert (len(timers), timers.next_deadline_ms()) == (0, None)


def test_timers_run_in_order_and_may_be_brought_forward() -> None:
    timers, done = Timers(), []
    for name, deadline in (("a", 30), ("b", 20), ("c", 20), ("d", 40), ("e", 10)):
        timers.set((name,), deadline, lambda name=name: done.append(name))  # type: ignore[misc]
    timers.set(("d",), 5, lambda: done.append("d"))
    timers.cancel(("e",))

    timers.run_due(100)

    assert done == ["d", "b", "c", "a"]


def test_a_timer_may_set_itself_again() -> None:
    timers, done = Timers(), []

    def again() -> None:
        done.append(1)
        timers.set(("a",), 10 * (len(done) + 1), again)

    timers.set(("a",), 10, again)
    for now in range(0, 51, 10):
        timers.run_due(now)

    assert len(done) == 5
