"""The coordinator of all groups of a cluster: it handles their requests and time-outs.

    coordinator = GroupCoordinator(OffsetsStore(backend), now_ms=..., monotonic_ms=..., config=GroupConfig())
    coordinator.join_group(received, respond)       # and other handlers; see `requests`
    coordinator.tick()                              # at least every 100 ms, or at `next_deadline_ms`
    coordinator.close()

It has no thread and no clock of its own. Any threads may call handlers and `tick`, which take turns. A
handler may wait for the disk, up to offsets.commit.timeout.ms, so handlers have a separate pool of threads.
`respond` is called with no lock held, by the handler's thread or by that of a later handler or tick.

The first call loads the stored groups. While that fails, clients get the answer that there is no
coordinator, and retry.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from spark_kbatch.errors import KBatchError
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.group import GroupConfig
from spark_kbatch.server.groups.group import Group, GroupState, JoinAnswer, Member, SyncAnswer
from spark_kbatch.server.groups.membership import Joining, Leaving, Memberships, Syncing
from spark_kbatch.server.groups.offsets import CommittedOffsets, Committing
from spark_kbatch.server.groups.records import (
    NO_LEADER_EPOCH,
    STRING_BYTES_MAX,
    CommittedOffset,
)
from spark_kbatch.server.groups.store import OffsetsStore
from spark_kbatch.server.groups.timers import Timers
from spark_kbatch.server.metadata import GROUP_OPERATIONS
from spark_kbatch.server.requests import Received, Respond
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import (
    DeleteGroupsResponse,
    DescribeGroupsResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    ListGroupsResponse,
    OffsetCommitResponse,
    OffsetDeleteResponse,
    OffsetFetchResponse,
    SyncGroupResponse,
)

logger = logging.getLogger(__name__)

# From these versions on,
_MEMBER_ID_REQUIRED = 4  # JoinGroup: a client knows this error;
_SKIPS_ASSIGNMENT = 9  # JoinGroup: a leader can be told to skip the assignment;
_NULL_PROTOCOL = 7  # JoinGroup: the answer may be without a protocol;
_NAMES_PROTOCOL = 5  # SyncGroup: a client must name the protocol and its type;
_LEAVES_TOGETHER = 3  # LeaveGroup: several members may leave at once;
_FETCHES_TOGETHER = 8  # OffsetFetch: one request may name several groups;
_GROUP_ERRORS = 2  # OffsetFetch: the answer has an error for the group as a whole.

_NO_OFFSET = -1
_DEAD = "Dead"
_FIRST_WITH_OPERATIONS = 3  # of DescribeGroups
_LOAD_AGAIN_AFTER_MS = 1000
_CLEAN_UP = ("clean up",)

# Makes the answer to a request that failed as a whole.
_Failed = Callable[[ErrorCode], Any]


class GroupCoordinator:
    """The coordinator of all consumer groups of one cluster; thread-safe."""

    def __init__(
        self,
        store: OffsetsStore,
        *,
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        config: GroupConfig,
    ) -> None:
        """Start without groups; the first request loads them from the store.

        Args:
            store: where offsets and generations are stored.
            now_ms: the time of day, for stored times.
            monotonic_ms: for time-outs.
            config: settings.
        """
        self._store, self._config = store, config
        self._monotonic_ms = monotonic_ms
        self._mutex = threading.Lock()  # guards all that follows; held while waiting for the disk
        self._timers = Timers()
        self._memberships = Memberships(
            store, self._timers, config, now_ms=now_ms, session_ms=self._session_ms
        )
        self._offsets = CommittedOffsets(store, self._memberships, config, now_ms=now_ms)
        self._answers: list[tuple[Respond, Any]] = []  # to be given once the mutex is free
        self._is_loaded = self._is_closed = False
        self._load_after_ms = monotonic_ms()

    # Time.

    def tick(self) -> None:
        """Complete rebalances whose time is up, end sessions, and drop expired offsets."""
        with self._mutex:
            if self._why_not_ready() is ErrorCode.NONE:
                self._run_due()
            answers = self._taken_answers()
        _give(answers)

    @property
    def next_deadline_ms(self) -> int | None:
        """Time at which to call `tick` next, on the monotonic clock; None if no time-out is pending."""
        with self._mutex:
            deadline_ms = self._timers.next_deadline_ms()
            return None if deadline_ms is None else deadline_ms + self._store.waited_ms

    def close(self) -> None:
        """Answer held and later requests with errors after which clients look for a coordinator."""
        with self._mutex:
            self._is_closed = True
            self._memberships.close()
            answers = self._taken_answers()
        _give(answers)

    def _session_ms(self) -> int:
        return self._monotonic_ms() - self._store.waited_ms

    def _run_due(self) -> None:
        try:
            self._timers.run_due(self._session_ms())
        except Exception:
            logger.exception("a time-out of a group failed")

    def _clean_up(self) -> None:
        self._timers.set(
            _CLEAN_UP,
            self._session_ms() + self._config.offsets_retention_check_interval_ms,
            self._clean_up,
        )
        self._offsets.clean_up()

    # Handling.

    def _handle(self, respond: Respond, failed: _Failed, handle: Callable[[Respond], None]) -> None:
        """Run a group request's handler under the mutex, then send the answers that are ready.

        Args:
            respond: takes the answer.
            failed: makes the answer to a request that fails as a whole.
            handle: handles the request.
        """
        answered = False

        def answer(body: Any) -> None:
            nonlocal answered
            if not answered:
                answered = True
                self._answers.append((respond, body))

        with self._mutex:
            error = self._why_not_ready()
            if error:
                answer(failed(error))
            else:
                try:
                    handle(answer)
                except Exception:
                    logger.exception("a request to the group coordinator failed")
                    answer(failed(ErrorCode.UNKNOWN_SERVER_ERROR))
                self._run_due()
            answers = self._taken_answers()
        _give(answers)

    def _taken_answers(self) -> list[tuple[Respond, Any]]:
        answers, self._answers = self._answers, []
        return answers

    def _why_not_ready(self) -> ErrorCode:
        if self._is_closed:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if self._is_loaded:
            return ErrorCode.NONE
        if self._monotonic_ms() < self._load_after_ms:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        try:
            stored = self._store.load()
            self._memberships.load(stored.groups, stored.offsets)
        except Exception as error:
            known = isinstance(error, (OSError, KBatchError))
            logger.error("the stored groups cannot be loaded: %s", error, exc_info=not known)
            self._load_after_ms = self._monotonic_ms() + _LOAD_AGAIN_AFTER_MS
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._is_loaded = True
        self._timers.set(
            _CLEAN_UP,
            self._session_ms() + self._config.offsets_retention_check_interval_ms,
            self._clean_up,
        )
        return ErrorCode.NONE

    # Membership.

    def join_group(self, received: Received, respond: Respond) -> None:
        """Answer a JoinGroup once the rebalance is over."""
        body, version = received.body, received.version

        def answer_of(answer: JoinAnswer) -> Any:
            protocol = answer.protocol
            if protocol is None and version < _NULL_PROTOCOL:
                protocol = ""
            member = JoinGroupResponse.JoinGroupResponseMember
            return JoinGroupResponse(
                error_code=answer.error,
                member_id=answer.member_id,
                generation_id=answer.generation,
                protocol_type=answer.protocol_type,
                protocol_name=protocol,
                leader=answer.leader,
                skip_assignment=answer.skip_assignment,
                members=[
                    member(member_id=one, group_instance_id=instance_id, metadata=metadata)
                    for one, instance_id, metadata in answer.members
                ],
            )

        def failed(error: ErrorCode) -> Any:
            return answer_of(JoinAnswer(error, body.member_id))

        def handle(respond: Respond) -> None:
            error = self._why_not_join(received)
            if error:
                respond(failed(error))
                return
            rebalance_timeout_ms = body.rebalance_timeout_ms
            joining = Joining(
                body.group_id,
                body.member_id,
                body.group_instance_id,
                received.client_id,
                f"/{received.client_host}",  # as Java shows an address, and Kafka stores it
                body.session_timeout_ms,
                # Version 0 has none.
                body.session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms,
                body.protocol_type,
                tuple((one.name, bytes(one.metadata)) for one in body.protocols),
                requires_member_id=version >= _MEMBER_ID_REQUIRED,
                can_skip_assignment=version >= _SKIPS_ASSIGNMENT,
            )
            self._memberships.join(joining, lambda answer: respond(answer_of(answer)))

        self._handle(respond, failed, handle)

    def _why_not_join(self, received: Received) -> ErrorCode:
        body, config = received.body, self._config
        if not _is_group_id(body.group_id):
            return ErrorCode.INVALID_GROUP_ID
        stored = (
            body.member_id, body.group_instance_id or "", received.client_id, body.protocol_type,
            *(one.name for one in body.protocols),
        )  # fmt: skip
        if not all(map(_can_be_stored, stored)):
            return ErrorCode.INVALID_REQUEST
        least, most = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
        if not least <= body.session_timeout_ms <= most:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        return ErrorCode.NONE

    def sync_group(self, received: Received, respond: Respond) -> None:
        """Answer a SyncGroup once the leader has sent the assignments."""
        body = received.body

        def answer_of(answer: SyncAnswer) -> Any:
            return SyncGroupResponse(
                error_code=answer.error,
                protocol_type=answer.protocol_type,
                protocol_name=answer.protocol,
                assignment=answer.assignment,
            )

        def failed(error: ErrorCode) -> Any:
            return answer_of(SyncAnswer(error))

        def handle(respond: Respond) -> None:
            if received.version >= _NAMES_PROTOCOL and None in (
                body.protocol_type,
                body.protocol_name,
            ):
                respond(failed(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
                return
            if not _is_group_id(body.group_id):
                respond(failed(ErrorCode.INVALID_GROUP_ID))
                return
            syncing = Syncing(
                body.group_id, body.generation_id, body.member_id, body.group_instance_id,
                body.protocol_type, body.protocol_name,
                {one.member_id: bytes(one.assignment) for one in body.assignments},
            )  # fmt: skip
            self._memberships.sync(syncing, lambda answer: respond(answer_of(answer)))

        self._handle(respond, failed, handle)

    def heartbeat(self, received: Received, respond: Respond) -> None:
        """Answer a Heartbeat."""
        body = received.body

        def failed(error: ErrorCode) -> Any:
            return HeartbeatResponse(error_code=error)

        def handle(respond: Respond) -> None:
            if not _is_group_id(body.group_id):
                respond(failed(ErrorCode.INVALID_GROUP_ID))
                return
            error = self._memberships.heartbeat(
                body.group_id, body.generation_id, body.member_id, body.group_instance_id
            )
            respond(failed(error))

        self._handle(respond, failed, handle)

    def leave_group(self, received: Received, respond: Respond) -> None:
        """Answer a LeaveGroup."""
        body = received.body

        def failed(error: ErrorCode) -> Any:
            return LeaveGroupResponse(error_code=error, members=[])

        def handle(respond: Respond) -> None:
            if not _is_group_id(body.group_id):
                respond(failed(ErrorCode.INVALID_GROUP_ID))
            elif received.version < _LEAVES_TOGETHER:
                (error,) = self._memberships.leave(body.group_id, [Leaving(body.member_id, None)])
                respond(failed(error))
            else:
                leaving = [Leaving(one.member_id, one.group_instance_id) for one in body.members]
                errors = self._memberships.leave(body.group_id, leaving)
                member = LeaveGroupResponse.MemberResponse
                members = [
                    member(
                        member_id=one.member_id,
                        group_instance_id=one.instance_id,
                        error_code=error,
                    )
                    for one, error in zip(leaving, errors, strict=True)
                ]
                respond(LeaveGroupResponse(error_code=ErrorCode.NONE, members=members))

        self._handle(respond, failed, handle)

    # Offsets.

    def offset_commit(self, received: Received, respond: Respond) -> None:
        """Answer an OffsetCommit."""
        body = received.body
        asked = {
            TopicPartition(topic.name, one.partition_index): (
                one.committed_offset, one.committed_leader_epoch, one.committed_metadata or "",
            )
            for topic in body.topics
            for one in topic.partitions
        }  # fmt: skip

        def answer_of(errors: Mapping[TopicPartition, ErrorCode]) -> Any:
            topic_of = OffsetCommitResponse.OffsetCommitResponseTopic
            partition_of = topic_of.OffsetCommitResponsePartition
            return OffsetCommitResponse(
                topics=[
                    topic_of(
                        name=topic.name,
                        partitions=[
                            partition_of(
                                partition_index=one.partition_index,
                                error_code=errors[TopicPartition(topic.name, one.partition_index)],
                            )
                            for one in topic.partitions
                        ],
                    )
                    for topic in body.topics
                ]
            )

        def failed(error: ErrorCode) -> Any:
            return answer_of(dict.fromkeys(asked, error))

        def handle(respond: Respond) -> None:
            if not _can_be_stored(body.group_id):
                respond(failed(ErrorCode.INVALID_GROUP_ID))
                return
            committing = Committing(
                received.version, body.group_id, body.generation_id_or_member_epoch,
                body.member_id, body.group_instance_id, body.retention_time_ms, asked,
            )  # fmt: skip
            respond(answer_of(self._offsets.commit(committing)))

        self._handle(respond, failed, handle)

    def offset_fetch(self, received: Received, respond: Respond) -> None:
        """Answer an OffsetFetch, of one group or, from version 8 on, of several."""
        body = received.body
        if received.version < _FETCHES_TOGETHER:
            self._handle(
                respond,
                lambda error: self._fetched_of_one(received, error),
                lambda respond: respond(self._fetched_of_one(received, ErrorCode.NONE)),
            )
            return

        # All offsets of a group are returned once: otherwise a small request could have an answer of any
        # size.
        asked = {
            (one.group_id, None if one.topics is None else number): one
            for number, one in enumerate(body.groups)
        }.values()

        def failed(error: ErrorCode) -> Any:
            group = OffsetFetchResponse.OffsetFetchResponseGroup
            return OffsetFetchResponse(
                groups=[group(group_id=one.group_id, topics=[], error_code=error) for one in asked]
            )

        def handle(respond: Respond) -> None:
            group = OffsetFetchResponse.OffsetFetchResponseGroup
            topic_of = group.OffsetFetchResponseTopics
            partition_of = topic_of.OffsetFetchResponsePartitions
            groups = [
                group(
                    group_id=one.group_id,
                    topics=self._fetched(one.group_id, one.topics, topic_of, partition_of),
                    error_code=ErrorCode.NONE,
                )
                for one in asked
            ]
            respond(OffsetFetchResponse(groups=groups))

        self._handle(respond, failed, handle)

    def _fetched_of_one(self, received: Received, error: ErrorCode) -> Any:
        body = received.body
        topic_of = OffsetFetchResponse.OffsetFetchResponseTopic
        partition_of = topic_of.OffsetFetchResponsePartition
        topics = []
        if not error:
            topics = self._fetched(body.group_id, body.topics, topic_of, partition_of)
        elif received.version < _GROUP_ERRORS:
            topics = _offsets_by_topic(_asked(body.topics), {}, topic_of, partition_of, error)
        return OffsetFetchResponse(topics=topics, error_code=error)

    def _fetched(
        self, group_id: str, topics: Iterable[Any] | None, topic_of: Any, partition_of: Any
    ) -> list[Any]:
        if topics is None:
            found = self._offsets.fetch_all(group_id)
            return _offsets_by_topic(_by_topic(found), found, topic_of, partition_of)
        asked = _asked(topics)
        wanted = (TopicPartition(name, one) for name, numbers in asked for one in numbers)
        return _offsets_by_topic(
            asked, self._offsets.fetch(group_id, wanted), topic_of, partition_of
        )

    def offset_delete(self, received: Received, respond: Respond) -> None:
        """Answer an OffsetDelete."""
        body = received.body

        def failed(error: ErrorCode) -> Any:
            return OffsetDeleteResponse(error_code=error, topics=[])

        def handle(respond: Respond) -> None:
            if not _is_group_id(body.group_id):
                respond(failed(ErrorCode.INVALID_GROUP_ID))
                return
            asked = [
                TopicPartition(topic.name, one.partition_index)
                for topic in body.topics
                for one in topic.partitions
            ]
            errors = self._offsets.delete(body.group_id, asked)
            if isinstance(errors, ErrorCode):
                respond(failed(errors))
                return
            topic_of = OffsetDeleteResponse.OffsetDeleteResponseTopic
            partition_of = topic_of.OffsetDeleteResponsePartition
            topics = [
                topic_of(
                    name=name,
                    partitions=[
                        partition_of(
                            partition_index=number,
                            error_code=errors[TopicPartition(name, number)],
                        )
                        for number in numbers
                    ],
                )
                for name, numbers in _by_topic(errors)
            ]
            respond(OffsetDeleteResponse(error_code=ErrorCode.NONE, topics=topics))

        self._handle(respond, failed, handle)

    # Administration.

    def list_groups(self, received: Received, respond: Respond) -> None:
        """Answer a ListGroups."""
        states = {state.strip().lower() for state in received.body.states_filter or ()}

        def failed(error: ErrorCode) -> Any:
            return ListGroupsResponse(error_code=error, groups=[])

        def handle(respond: Respond) -> None:
            listed = ListGroupsResponse.ListedGroup
            groups = [
                listed(
                    group_id=group_id,
                    protocol_type=group.protocol_type or "",
                    group_state=group.state.value,
                )
                for group_id, group in sorted(self._memberships.groups.items())
                if not states or group.state.value.lower() in states
            ]
            respond(ListGroupsResponse(error_code=ErrorCode.NONE, groups=groups))

        self._handle(respond, failed, handle)

    def describe_groups(self, received: Received, respond: Respond) -> None:
        """Answer a DescribeGroups; a group that does not exist is shown as Dead."""
        asked = dict.fromkeys(received.body.groups)  # each is described once
        may_ask = received.version >= _FIRST_WITH_OPERATIONS
        asks = may_ask and received.body.include_authorized_operations
        operations = set(GROUP_OPERATIONS) if asks else None

        def answer_of(group_id: str, error: ErrorCode) -> Any:
            group = None if error else self._memberships.groups.get(group_id)
            described = DescribeGroupsResponse.DescribedGroup
            if group is None:
                state = "" if error else _DEAD
                return described(
                    error_code=error, group_id=group_id, group_state=state, protocol_type="",
                    protocol_data="", members=[], authorized_operations=operations,
                )  # fmt: skip
            is_stable = group.state is GroupState.STABLE
            return described(
                error_code=ErrorCode.NONE,
                group_id=group_id,
                group_state=group.state.value,
                protocol_type=group.protocol_type or "",
                protocol_data=(group.protocol or "") if is_stable else "",
                members=[_described(group, one) for one in group.members.values()],
                authorized_operations=operations,
            )

        def failed(error: ErrorCode) -> Any:
            return DescribeGroupsResponse(groups=[answer_of(one, error) for one in asked])

        self._handle(respond, failed, lambda respond: respond(failed(ErrorCode.NONE)))

    def delete_groups(self, received: Received, respond: Respond) -> None:
        """Answer a DeleteGroups."""
        asked = received.body.groups_names
        result = DeleteGroupsResponse.DeletableGroupResult

        def failed(error: ErrorCode) -> Any:
            return DeleteGroupsResponse(
                results=[result(group_id=one, error_code=error) for one in asked]
            )

        def handle(respond: Respond) -> None:
            results = [
                result(group_id=one, error_code=self._offsets.delete_group(one))
                for one in dict.fromkeys(asked)
            ]
            respond(DeleteGroupsResponse(results=results))

        self._handle(respond, failed, handle)


def _give(answers: Iterable[tuple[Respond, Any]]) -> None:
    for respond, body in answers:
        try:
            respond(body)
        except Exception:
            logger.exception("an answer of the group coordinator could not be given")


def _is_group_id(group_id: str) -> bool:
    return bool(group_id) and _can_be_stored(group_id)


def _can_be_stored(text: str) -> bool:
    return len(text) <= STRING_BYTES_MAX and len(text.encode()) <= STRING_BYTES_MAX


def _asked(topics: Iterable[Any]) -> list[tuple[str, list[int]]]:
    return [(topic.name, list(topic.partition_indexes)) for topic in topics]


def _by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    found: dict[str, list[int]] = {}
    for topic, partition in partitions:
        found.setdefault(topic, []).append(partition)
    return list(found.items())


def _offsets_by_topic(
    asked: Iterable[tuple[str, Iterable[int]]],
    found: Mapping[TopicPartition, CommittedOffset],
    topic_of: Any,
    partition_of: Any,
    error: ErrorCode = ErrorCode.NONE,
) -> list[Any]:
    nothing = CommittedOffset(_NO_OFFSET, NO_LEADER_EPOCH)

    def answer_of(topic: str, partition: int) -> Any:
        value = found.get(TopicPartition(topic, partition), nothing)
        return partition_of(
            partition_index=partition,
            committed_offset=value.offset,
            committed_leader_epoch=value.leader_epoch,
            metadata=value.metadata,
            error_code=error,
        )

    return [
        topic_of(name=topic, partitions=[answer_of(topic, partition) for partition in partitions])
        for topic, partitions in asked
    ]


def _described(group: Group, member: Member) -> Any:
    is_stable = group.state is GroupState.STABLE
    return DescribeGroupsResponse.DescribedGroup.DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(group.protocol) if is_stable else b"",
        member_assignment=member.assignment,
    )
