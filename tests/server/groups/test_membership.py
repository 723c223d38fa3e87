"""Membership in Kafka's classic protocol: members that join, leave, die and return."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_kbatch.server.groups import membership
from spark_kbatch.wire import protocol
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import ApiKey
from tests.support import builders
from tests.support.group_members import (
    OK,
    UNSTORABLE,
    Client,
    Coordinated,
    subscribed_to,
    versions,
)

ROUND_ROBIN = ("roundrobin", subscribed_to("events"))
RANGE = ("range", subscribed_to("events"))


@pytest.fixture
def groups(tmp_path: Path) -> Coordinated:
    return Coordinated(builders.a_cluster(tmp_path, topics={"events": 3}))


def two_members(groups: Coordinated) -> tuple[Client, Client]:
    """Return two members of generation 2 with assignments; the first one leads."""
    first = groups.client()
    groups.stable(first)
    second = groups.join()
    first.join()
    groups.finish([first, second])
    assert first.leads
    return first, second


# Joining.


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
def test_a_client_joins_and_is_assigned_in_all_versions(groups: Coordinated, version: int) -> None:
    client = groups.client(version=version)

    first = client.ask_to_join()
    if version >= 4:
        assert first.error is ErrorCode.MEMBER_ID_REQUIRED
        assert client.member_id.startswith("client-")
        assert client.ask_to_join().error is OK
    assert client.joined is not None
    answer = client.joined.answer

    assert (answer.generation_id, answer.leader) == (1, client.member_id)
    assert answer.protocol_name == "range"
    (member,) = answer.members
    assert (member.member_id, bytes(member.metadata)) == (client.member_id, RANGE[1])
    if version >= 7:
        assert answer.protocol_type == "consumer"


@pytest.mark.parametrize("version", versions(ApiKey.SYNC_GROUP))
def test_assignments_pass_through_in_all_versions(groups: Coordinated, version: int) -> None:
    client = groups.join()

    synced = client.sync({client.member_id: b"\0\xffall of it"}, version)

    assert bytes(synced.answer.assignment) == b"\0\xffall of it"
    assert groups.state() == "Stable"


@pytest.mark.parametrize("version", versions(ApiKey.HEARTBEAT))
def test_heartbeats_are_answered_in_all_versions(groups: Coordinated, version: int) -> None:
    client = groups.client()
    groups.stable(client)

    assert client.heartbeat(version) is OK


@pytest.mark.parametrize("version", versions(ApiKey.LEAVE_GROUP))
def test_a_member_leaves_in_all_versions(groups: Coordinated, version: int) -> None:
    client = groups.client()
    groups.stable(client)
    one = protocol.LeaveGroupRequest.MemberIdentity(member_id=client.member_id)

    asked = groups.ask(
        ApiKey.LEAVE_GROUP, version, group_id="g", member_id=client.member_id, members=[one]
    )

    assert asked.error is OK
    assert groups.state() == "Empty"
    assert client.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", versions(ApiKey.LEAVE_GROUP))
def test_a_client_that_is_not_a_member_cannot_leave(groups: Coordinated, version: int) -> None:
    one = protocol.LeaveGroupRequest.MemberIdentity(member_id="who")

    answer = groups.ask(
        ApiKey.LEAVE_GROUP, version, group_id="g", member_id="who", members=[one]
    ).answer

    found = answer.members[0].error_code if version >= 3 else answer.error_code
    assert found == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_second_member_makes_the_first_one_rejoin(groups: Coordinated) -> None:
    first = groups.client()
    groups.stable(first)

    second = groups.join()

    assert second.joined is not None
    assert not second.joined.is_answered
    assert groups.state() == "PreparingRebalance"
    assert first.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    first.join()
    second.note()
    assert (first.generation, second.generation) == (2, 2)
    assert second.joined.answer.members == []
    assert {one.member_id for one in first.joined.answer.members} == {  # type: ignore[union-attr]
        first.member_id,
        second.member_id,
    }


def test_followers_wait_for_the_leaders_assignment(groups: Coordinated) -> None:
    first, second = two_members(groups)
    first.join()
    second.join()

    waiting = second.sync()

    assert not waiting.is_answered
    first.sync({second.member_id: b"yours"})
    assert bytes(waiting.answer.assignment) == b"yours"
    assert bytes(first.synced.answer.assignment) == b""  # type: ignore[union-attr]


def test_the_leader_stays_as_long_as_it_is_a_member(groups: Coordinated) -> None:
    first, second = two_members(groups)
    third = groups.join()
    second.join()
    first.join()
    for one in (first, second, third):
        one.note()

    assert [one.leads for one in (first, second, third)] == [True, False, False]

    groups.finish([first, second, third])
    first.leave()
    third.join()
    second.join()
    third.note()
    assert [one.leads for one in (second, third)] == [True, False]


def test_the_common_protocol_with_the_most_votes_is_selected(groups: Coordinated) -> None:
    only_one_has_it = ("sticky", b"s")
    clients = [
        groups.client(protocols=some)
        for some in (
            [only_one_has_it, RANGE, ROUND_ROBIN],
            [ROUND_ROBIN, RANGE],
            [ROUND_ROBIN, RANGE],
        )
    ]
    groups.stable(clients[0])
    for client in clients[1:]:
        client.join()
    clients[0].join()

    assert clients[0].joined is not None
    assert clients[0].joined.answer.protocol_name == "roundrobin"


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"protocols": [("sticky", b"")]}, id="no common protocol"),
        pytest.param({"protocol_type": "connect"}, id="another type"),
        pytest.param({"protocols": []}, id="no protocol"),
        pytest.param({"protocol_type": ""}, id="no type"),
    ],
)
@pytest.mark.parametrize("has_members", [True, False], ids=["a group", "no group"])
def test_protocols_that_do_not_match_the_group_are_refused(
    groups: Coordinated, given: dict[str, object], has_members: bool
) -> None:
    if has_members:
        groups.stable(groups.client())
    client = groups.client(**given)
    fits = not has_members and any(given.values())  # the first member decides

    error = client.ask_to_join().error

    assert error is (
        ErrorCode.MEMBER_ID_REQUIRED if fits else ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    )


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        pytest.param("group", "", ErrorCode.INVALID_GROUP_ID, id="no group"),
        pytest.param("group", UNSTORABLE, ErrorCode.INVALID_GROUP_ID, id="a long group"),
        pytest.param("session_timeout_ms", 5_999, ErrorCode.INVALID_SESSION_TIMEOUT, id="short"),
        pytest.param("session_timeout_ms", 1_800_001, ErrorCode.INVALID_SESSION_TIMEOUT, id="long"),
        pytest.param("member_id", "who", ErrorCode.UNKNOWN_MEMBER_ID, id="an unknown id"),
        pytest.param("instance_id", UNSTORABLE, ErrorCode.INVALID_REQUEST, id="a long name"),
    ],
)
def test_an_invalid_join_is_refused(
    groups: Coordinated, field: str, value: object, error: ErrorCode
) -> None:
    assert groups.client(**{field: value}).ask_to_join().error is error
    assert groups.ask(ApiKey.LIST_GROUPS).answer.groups == []


def test_a_full_group_refuses_new_members(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    groups = Coordinated(cluster, group_max_size=1)
    groups.stable(groups.client())

    assert groups.client().ask_to_join().error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert groups.state() == "Stable"


def test_a_group_above_its_new_limit_loses_the_last_members_to_rejoin(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    groups = Coordinated(cluster)
    first, second = two_members(groups)
    groups.config = groups.config.__class__(group_max_size=1)
    groups.restart()

    assert first.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    second.join()
    assert first.ask_to_join().error is ErrorCode.GROUP_MAX_SIZE_REACHED
    second.note()
    assert second.generation == 3
    assert second.leads


def test_the_first_rebalance_waits_for_more_members(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    groups = Coordinated(cluster, group_initial_rebalance_delay_ms=3_000)
    first = groups.join()
    groups.advance(2_900)
    second = groups.join()
    groups.advance(2_900)

    assert first.joined is not None
    assert not first.joined.is_answered
    groups.advance(200)
    assert (first.generation, second.generation) == (1, 1)
    groups.finish([first, second])


def test_the_delay_of_the_first_rebalance_ends_with_the_rebalance_timeout(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    groups = Coordinated(cluster, group_initial_rebalance_delay_ms=3_000)
    clients = [groups.join(rebalance_timeout_ms=7_000)]
    for _ in range(7):
        groups.advance(1_000)
        clients.append(groups.join(rebalance_timeout_ms=7_000))
    groups.advance(200)

    assert {one.generation for one in clients[:7]} == {1}


# Member ids that the coordinator gives out.


def test_a_given_id_is_forgotten_if_no_client_joins_with_it(groups: Coordinated) -> None:
    client = groups.client()
    client.ask_to_join()
    assert groups.state() == "Empty"

    groups.advance(client.session_timeout_ms + 100)

    assert groups.state() == "Dead"
    assert client.ask_to_join().error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_a_client_that_was_given_an_id(groups: Coordinated) -> None:
    first = groups.client()
    groups.stable(first)
    groups.client().ask_to_join()
    second = groups.join()
    first.join()

    assert not first.joined.is_answered  # type: ignore[union-attr]
    groups.advance(first.session_timeout_ms + 100)
    assert second.generation == 2


def test_a_client_that_was_given_an_id_may_leave_without_a_rebalance(groups: Coordinated) -> None:
    first = groups.client()
    groups.stable(first)
    second = groups.client()
    second.ask_to_join()

    assert second.leave() is OK
    assert first.heartbeat() is OK
    assert second.ask_to_join().error is ErrorCode.UNKNOWN_MEMBER_ID


# Sessions and rebalance time-outs.


def test_a_member_without_heartbeats_is_removed(groups: Coordinated) -> None:
    first, second = two_members(groups)
    for _ in range(4):
        groups.advance(5_000)
        assert first.heartbeat() in (OK, ErrorCode.REBALANCE_IN_PROGRESS)

    assert second.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert first.join().generation == 3
    groups.finish([first])
    assert [one.member_id for one in groups.describe().members] == [first.member_id]


def test_a_group_whose_members_all_die_is_empty(groups: Coordinated) -> None:
    two_members(groups)

    groups.advance(11_000)

    assert groups.state() == "Empty"
    groups.restart()
    assert groups.state() == "Empty"


def test_a_member_that_does_not_rejoin_by_the_rebalance_timeout_is_removed(
    groups: Coordinated,
) -> None:
    first, second = two_members(groups)
    second.version = None
    third = groups.join()
    for _ in range(13):
        groups.advance(4_900)
        first.heartbeat()
        second.heartbeat()
    assert third.generation == 3
    assert first.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_waits_in_join_group_needs_no_heartbeats(groups: Coordinated) -> None:
    first, second = two_members(groups)
    first.join()
    for _ in range(6):
        groups.advance(5_000)
        second.heartbeat()

    second.join()
    first.note()
    groups.finish([first, second])


def test_a_new_member_whose_client_is_gone_is_removed_after_five_minutes(
    groups: Coordinated,
) -> None:
    first = groups.client(rebalance_timeout_ms=1_000_000)
    groups.stable(first)
    second = groups.join()
    for _ in range(membership.NEW_MEMBER_JOIN_TIMEOUT_MS // 5_000 + 1):
        groups.advance(5_000, step_ms=5_000)
        first.heartbeat()

    assert second.joined is not None
    assert second.joined.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert [one.member_id for one in groups.describe().members] == [first.member_id]


def test_a_member_that_does_not_sync_by_the_rebalance_timeout_is_removed(
    groups: Coordinated,
) -> None:
    first, second = two_members(groups)
    first.join()
    second.join()
    first.note()
    waiting = first.sync({second.member_id: b"yours"})
    assert waiting.error is OK
    for _ in range(13):
        groups.advance(4_900)
        first.heartbeat()
        second.heartbeat()

    assert second.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert first.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS


def test_time_spent_waiting_for_the_disk_ends_no_session(groups: Coordinated) -> None:
    client = groups.client()
    groups.stable(client)

    groups.ms += 60_000
    groups.store.waited_ms += 60_000
    groups.coordinator.tick()

    assert client.heartbeat() is OK
    assert groups.coordinator.next_deadline_ms is not None
    assert groups.coordinator.next_deadline_ms > 60_000
    groups.advance(11_000)
    assert client.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


# Generations.


def test_requests_of_an_old_generation_are_refused(groups: Coordinated) -> None:
    first, second = two_members(groups)
    first.generation = 1
    first.joined = None

    assert first.heartbeat() is ErrorCode.ILLEGAL_GENERATION
    assert first.sync().error is ErrorCode.ILLEGAL_GENERATION
    assert first.commit({("events", 0): 1}) == {("events", 0): ErrorCode.ILLEGAL_GENERATION}
    assert second.heartbeat() is OK


def test_a_rebalance_answers_members_that_wait_for_assignments(groups: Coordinated) -> None:
    first, second = two_members(groups)
    first.join()
    second.join()
    waiting = second.sync()

    third = groups.join()

    assert waiting.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert first.sync({}).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert second.join().joined is not None
    first.join()
    for one in (first, second, third):
        one.note()
    groups.finish([first, second, third])


def test_a_leader_that_rejoins_starts_a_rebalance_and_a_follower_does_not(
    groups: Coordinated,
) -> None:
    first, second = two_members(groups)

    assert second.ask_to_join().error is OK
    assert second.generation == 2
    assert groups.state() == "Stable"
    assert not first.ask_to_join().is_answered
    assert groups.state() == "PreparingRebalance"


def test_a_follower_with_another_subscription_starts_a_rebalance(groups: Coordinated) -> None:
    first, second = two_members(groups)
    second.protocols = [("range", subscribed_to("events", "more"))]

    assert not second.ask_to_join().is_answered
    assert first.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_whose_answer_is_lost_is_answered_again(groups: Coordinated) -> None:
    first, second = two_members(groups)
    first.join()
    second.join()
    first.note()
    generation = first.generation

    assert first.ask_to_join().error is OK
    assert first.generation == generation
    assert len(first.joined.answer.members) == 2  # type: ignore[union-attr]


def test_another_protocol_than_the_groups_is_refused_in_sync_group(groups: Coordinated) -> None:
    client = groups.join()

    assert client.sync(protocol_name="sticky").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert client.sync(protocol_type="connect").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert client.sync(protocol_name="range", protocol_type="consumer").error is OK


@pytest.mark.parametrize("left_out", ["protocol_name", "protocol_type"])
def test_a_sync_group_has_to_name_the_protocol_from_version_5_on(
    groups: Coordinated, left_out: str
) -> None:
    client = groups.join()
    nothing = {left_out: None}

    refused = client.sync(version=5, **nothing)
    assert refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert client.sync(version=4, **nothing).error is OK
    client.group = ""
    assert client.sync(version=5, **nothing).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_sync_group_and_heartbeat_of_an_unknown_group_are_refused(groups: Coordinated) -> None:
    client = groups.client(member_id="who", generation=1)

    assert client.sync().error is ErrorCode.UNKNOWN_MEMBER_ID
    assert client.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    client.group = ""
    assert client.sync().error is ErrorCode.INVALID_GROUP_ID
    assert client.heartbeat() is ErrorCode.INVALID_GROUP_ID


# Static members.


def static_pair(groups: Coordinated, version: int | None = None) -> tuple[Client, Client]:
    """Return two static members of one generation; the first one leads."""
    first, second = (groups.client(instance_id=name, version=version) for name in ("i-1", "i-2"))
    groups.stable(first)
    second.join()
    first.join()
    groups.finish([first, second])
    return first, second


@pytest.mark.parametrize("version", range(5, 10))
@pytest.mark.parametrize("which", [0, 1], ids=["leader", "follower"])
def test_a_static_member_takes_its_place_without_a_rebalance(
    groups: Coordinated, version: int, which: int
) -> None:
    pair = static_pair(groups, version)
    old = pair[which]
    generation, old_id = old.generation, old.member_id
    assignment = old_id.encode()

    back = groups.client(instance_id=old.instance_id, version=version)
    assert back.ask_to_join().error is OK

    answer = back.joined.answer  # type: ignore[union-attr]
    assert (back.generation, groups.state()) == (generation, "Stable")
    assert back.member_id != old_id
    assert bytes(back.sync().answer.assignment) == assignment
    if which == 0:
        # The leader is told to skip the assignment, or is not told that it leads.
        assert answer.skip_assignment == (version == 9)
        assert (answer.leader == back.member_id) == (version == 9)
        assert len(answer.members) == (2 if version == 9 else 0)
    assert old.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    assert pair[1 - which].heartbeat() is OK


def test_a_static_member_is_known_after_a_restart(groups: Coordinated) -> None:
    first, _ = static_pair(groups)
    back = groups.join(instance_id="i-1")
    groups.restart()

    assert back.heartbeat() is OK
    assert first.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    assert back.sync().error is OK


def test_a_static_member_fences_its_waiting_predecessor(groups: Coordinated) -> None:
    static_pair(groups)
    third = groups.join()
    waiting = groups.client(instance_id="i-1")
    waiting.ask_to_join()
    assert not waiting.joined.is_answered  # type: ignore[union-attr]

    groups.client(instance_id="i-1").ask_to_join()

    assert waiting.joined is not None
    assert waiting.joined.error is ErrorCode.FENCED_INSTANCE_ID
    assert not third.joined.is_answered  # type: ignore[union-attr]


def test_a_static_member_that_joins_during_the_assignment_starts_a_rebalance(
    groups: Coordinated,
) -> None:
    first, second = static_pair(groups)
    first.protocols = [("range", subscribed_to("events", "more"))]
    first.join()
    second.join()
    waiting = second.sync()

    groups.client(instance_id="i-2").ask_to_join()

    assert waiting.error is ErrorCode.FENCED_INSTANCE_ID
    assert groups.state() == "PreparingRebalance"


def test_a_static_member_keeps_its_place_in_a_rebalance_that_it_misses(
    groups: Coordinated,
) -> None:
    first, second = (
        groups.client(instance_id=name, session_timeout_ms=100_000, rebalance_timeout_ms=5_000)
        for name in ("i-1", "i-2")
    )
    groups.stable(first)
    second.join()
    first.join()
    groups.finish([first, second])
    first.join()
    groups.advance(5_100)
    first.note()

    assert first.generation == 3
    assert {one.group_instance_id for one in first.joined.answer.members} == {"i-1", "i-2"}  # type: ignore[union-attr]


def test_a_static_member_is_removed_by_its_instance_id(groups: Coordinated) -> None:
    first, second = static_pair(groups)
    one = protocol.LeaveGroupRequest.MemberIdentity
    away = [one(member_id="", group_instance_id=name) for name in ("i-2", "i-3")]

    answer = groups.ask(ApiKey.LEAVE_GROUP, group_id="g", members=away).answer

    assert [found.error_code for found in answer.members] == [OK, ErrorCode.UNKNOWN_MEMBER_ID]
    assert first.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert second.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_another_member_id_than_the_static_members_is_fenced(groups: Coordinated) -> None:
    first, _ = static_pair(groups)
    first.member_id, first.joined = "who", None

    assert first.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    assert first.ask_to_join().error is ErrorCode.FENCED_INSTANCE_ID
    assert first.commit({("events", 0): 1}) == {("events", 0): ErrorCode.FENCED_INSTANCE_ID}
    first.instance_id = "another"
    assert first.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


# Restarts.


def test_members_go_on_after_a_restart_without_a_rebalance(groups: Coordinated) -> None:
    first, second = two_members(groups)

    groups.restart()

    assert [one.heartbeat() for one in (first, second)] == [OK, OK]
    assert bytes(second.sync().answer.assignment) == second.member_id.encode()
    assert first.commit({("events", 0): 5}) == {("events", 0): OK}
    assert second.ask_to_join().error is OK
    assert groups.state() == "Stable"
    assert not first.ask_to_join().is_answered  # because it leads


def test_sessions_start_again_with_the_restart(groups: Coordinated) -> None:
    first, _ = two_members(groups)
    groups.advance(9_000)
    groups.restart()
    groups.advance(9_000)

    assert first.heartbeat() is OK
    groups.advance(1_100)
    assert groups.state() == "PreparingRebalance"


def test_a_generation_without_assignments_does_not_survive_a_restart(
    groups: Coordinated,
) -> None:
    first, second = two_members(groups)
    first.join()
    second.join()
    first.note()
    assert first.generation == 3

    groups.restart()

    assert first.heartbeat() is ErrorCode.ILLEGAL_GENERATION
    second.joined = None
    second.generation = 2
    assert second.heartbeat() is OK


def test_held_requests_are_answered_when_the_coordinator_ends(groups: Coordinated) -> None:
    first, second = two_members(groups)
    second.ask_to_join()
    third = groups.join()

    groups.coordinator.close()

    assert third.joined is not None
    assert third.joined.error is ErrorCode.NOT_COORDINATOR
    assert first.heartbeat() is ErrorCode.COORDINATOR_NOT_AVAILABLE
