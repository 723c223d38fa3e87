"""Clients that join, leave, die and return, while disks fail and servers restart.

Each client behaves like Kafka's: it rejoins when it has to, and starts over if its id is unknown. Whatever
happens, members of one generation have the assignments of its leader, acknowledged offsets are there, and
in the end all living clients are members.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spark_kbatch import Cluster
from spark_kbatch.cluster.offsets_store import OffsetsStore
from spark_kbatch.errors import KafkaStorageError
from spark_kbatch.model import TopicPartition
from spark_kbatch.wire import protocol
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import ApiKey
from tests.support.disk import Disk, DiskFiles
from tests.support.group_members import OK, Asked, Coordinated, subscribed_to
from tests.support.jobs import PATH

SESSION_MS, REBALANCE_MS = 10_000, 15_000
RANGE, STICKY = ("range", subscribed_to("events")), ("sticky", subscribed_to("events"))
PLACES = [TopicPartition("events", number) for number in range(3)]
UNTIL_ALL_IS_WELL = 60  # steps of 2 s, more than three rebalance time-outs

# Errors after which clients rejoin with the same member id.
JOINS_AGAIN = {
    ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.MEMBER_ID_REQUIRED,
}  # fmt: skip


class Consumer:
    """A client that behaves in groups as Kafka's consumers do."""

    def __init__(self, groups: Coordinated, number: int, instance_id: str | None) -> None:
        self.groups, self.name, self.instance_id = groups, f"c{number}", instance_id
        self.protocols = [RANGE, STICKY] if number % 3 else [STICKY, RANGE]
        self.is_dead = False
        self.member_id, self.generation = "", -1
        self.asked: Asked | None = None  # the JoinGroup or SyncGroup that is not answered yet
        self.is_joining = self.is_stable = False

    def expected(self) -> bytes:
        """The assignment that its leader makes for it."""
        return share(self.generation, self.instance_id or self.member_id)

    def step(self) -> None:
        """Do the next thing that the client has to do."""
        if self.is_dead:
            return
        if self.asked is not None:
            if self.asked.is_answered:
                self.take(self.asked)
        elif self.is_stable:
            self.heed(self.heartbeat())
        else:
            self.join()

    def join(self) -> None:
        one_of = protocol.JoinGroupRequest.JoinGroupRequestProtocol
        self.is_joining, self.is_stable = True, False
        self.asked = self.groups.ask(
            ApiKey.JOIN_GROUP,
            client_id=self.name,
            group_id="g",
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type="consumer",
            protocols=[one_of(name=name, metadata=data) for name, data in self.protocols],
        )

    def take(self, asked: Asked) -> None:
        """Take an answer."""
        self.asked = None
        was_joining, self.is_joining = self.is_joining, False
        answer = asked.answer
        if was_joining and answer.error_code in (OK, ErrorCode.MEMBER_ID_REQUIRED):
            self.member_id, self.generation = answer.member_id, answer.generation_id
        if answer.error_code != OK:
            self.heed(asked.error)
        elif was_joining:
            self.sync(answer)
        else:
            assert bytes(answer.assignment) == self.expected()
            self.is_stable = True

    def sync(self, joined: Any) -> None:
        one_of = protocol.SyncGroupRequest.SyncGroupRequestAssignment
        shares = []
        if joined.leader == self.member_id and not joined.skip_assignment:
            shares = [
                one_of(
                    member_id=one.member_id,
                    assignment=share(self.generation, one.group_instance_id or one.member_id),
                )
                for one in joined.members
            ]
            assert self.member_id in [one.member_id for one in joined.members]
        self.asked = self.groups.ask(
            ApiKey.SYNC_GROUP,
            group_id="g",
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=joined.protocol_type,
            protocol_name=joined.protocol_name,
            assignments=shares,
        )

    def heartbeat(self) -> ErrorCode:
        return self.groups.ask(
            ApiKey.HEARTBEAT,
            group_id="g",
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        ).error

    def heed(self, error: ErrorCode) -> None:
        """React to an error."""
        if error is OK:
            return
        self.is_stable = False
        if error is ErrorCode.FENCED_INSTANCE_ID:
            self.is_dead = True
        elif error is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id, self.generation = "", -1
        else:
            assert error in JOINS_AGAIN

    def commit(self, offsets: dict[TopicPartition, Any]) -> dict[TopicPartition, ErrorCode]:
        return self.groups.commit(
            offsets,
            member_id=self.member_id,
            generation_id_or_member_epoch=self.generation,
            group_instance_id=self.instance_id,
        )


def share(generation: int, name: str) -> bytes:
    return f"{generation}:{name}".encode()


class GroupsAgainstModel(RuleBasedStateMachine):
    """One group, and everything that may happen to it."""

    @initialize(delay_ms=st.sampled_from([0, 3_000]))
    def begin(self, delay_ms: int) -> None:
        files = DiskFiles(Disk())
        cluster = Cluster(PATH, create=True, files=files)
        cluster.create_topic("events", partitions=len(PLACES))
        self.groups = Coordinated(cluster, group_initial_rebalance_delay_ms=delay_ms)
        self.consumers: list[Consumer] = []
        self.committed: dict[TopicPartition, tuple[int, int, str]] = {}
        self.offset = 0

    def alive(self) -> list[Consumer]:
        return [one for one in self.consumers if not one.is_dead]

    @precondition(lambda self: len(self.alive()) < 5)
    @rule(instance=st.sampled_from([None, None, "i-1", "i-2"]))
    def starts(self, instance: str | None) -> None:
        """A client starts; a static one whose predecessor runs will fence it."""
        self.consumers.append(Consumer(self.groups, len(self.consumers), instance))
        self.consumers[-1].step()

    @rule(which=st.integers(0, 9))
    def dies(self, which: int) -> None:
        if self.alive():
            self.alive()[which % len(self.alive())].is_dead = True

    @rule(which=st.integers(0, 9))
    def leaves(self, which: int) -> None:
        free = [one for one in self.alive() if one.asked is None and one.member_id]
        if free:
            leaving = free[which % len(free)]
            one_of = protocol.LeaveGroupRequest.MemberIdentity
            self.groups.ask(
                ApiKey.LEAVE_GROUP,
                group_id="g",
                members=[
                    one_of(member_id=leaving.member_id, group_instance_id=leaving.instance_id)
                ],
            )
            leaving.is_dead = True

    @rule(which=st.integers(0, 9))
    def steps(self, which: int) -> None:
        if self.alive():
            self.alive()[which % len(self.alive())].step()

    @rule()
    def all_step(self) -> None:
        for one in self.alive():
            one.step()

    @rule(seconds=st.integers(1, 4))
    def time_passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.groups.advance(1_000, step_ms=500)
            for one in self.alive():
                one.step()

    @rule(seconds=st.integers(5, 20))
    def clients_pause(self, seconds: int) -> None:
        """Let no client send anything for a while, perhaps longer than sessions last."""
        self.groups.advance(seconds * 1_000, step_ms=1_000)

    @rule()
    def restarts(self) -> None:
        """Restart the server: held requests are lost."""
        before = self.groups.store.contents
        self.groups.restart()
        assert self.groups.store.contents == before
        for one in self.consumers:
            if one.asked is not None and not one.asked.is_answered:
                one.asked, one.is_joining = None, False

    @rule()
    def rewrites(self) -> None:
        if self.groups.backend.metadata.topics.find("__consumer_offsets") is not None:
            self.groups.store._log._rewrite()

    @rule(which=st.integers(0, 9), place=st.sampled_from(PLACES))
    def member_commits(self, which: int, place: TopicPartition) -> None:
        if self.alive():
            one = self.alive()[which % len(self.alive())]
            self._commit(place, one.commit)

    @rule(place=st.sampled_from(PLACES))
    def anyone_commits(self, place: TopicPartition) -> None:
        state = self.groups.state()
        error = self._commit(place, self.groups.commit)
        assert (error is OK) == (state in ("Empty", "Dead"))

    def _commit(self, place: TopicPartition, commit: Any) -> ErrorCode:
        self.offset += 1
        (error,) = commit({place: (self.offset, f"at {self.offset}")}).values()
        if error is OK:
            self.committed[place] = (self.offset, 3, f"at {self.offset}")
        assert isinstance(error, ErrorCode)
        return error

    @rule(which=st.integers(0, 9))
    def steps_while_the_disk_fails(self, which: int) -> None:
        """Let a client step while nothing can be stored."""
        store = self.groups.store._log

        def fail(*_: object) -> None:
            raise KafkaStorageError("no space left on device")

        store._append = fail  # type: ignore[method-assign]
        try:
            if self.alive():
                one = self.alive()[which % len(self.alive())]
                one.step()
                assert one.commit({PLACES[0]: 0}) != {PLACES[0]: OK}
            self.groups.coordinator.tick()
        finally:
            del store._append  # type: ignore[method-assign]

    @rule()
    def all_with_heartbeats_are_of_one_generation(self) -> None:
        found = [
            one.generation
            for one in self.alive()
            if one.is_stable and one.heartbeat() in (OK, ErrorCode.REBALANCE_IN_PROGRESS)
        ]
        assert len(set(found)) <= 1

    @invariant()
    def acknowledged_offsets_are_there(self) -> None:
        assert self.groups.fetch() == self.committed

    def teardown(self) -> None:
        """Let all living clients run undisturbed: they become members of one generation."""
        if not hasattr(self, "groups"):
            return
        for _ in range(UNTIL_ALL_IS_WELL):
            self.groups.advance(2_000, step_ms=1_000)
            for one in self.alive():
                one.step()
                one.step()
        assert all(one.is_stable for one in self.alive())
        assert len({one.generation for one in self.alive()}) <= 1
        members = {one.member_id for one in self.groups.describe().members}
        assert members == {one.member_id for one in self.alive()}
        assert self.groups.state() in (["Stable"] if members else ["Empty", "Dead"])
        stored = OffsetsStore(self.groups.backend).load()
        assert stored == self.groups.store.contents
        self.groups.restart()
        assert all(one.heartbeat() is OK for one in self.alive())


@pytest.mark.more_in_soak
def test_groups_agree_with_the_model(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    GroupsAgainstModel.TestCase.settings = settings(
        max_examples=2 * settings.default.max_examples,  # type: ignore[union-attr]
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    GroupsAgainstModel.TestCase().runTest()
