"""The coordinator of all groups of a cluster: it handles their requests and time-outs.

    coordinator = GroupCoordinator(OffsetsStore(parts), now_ms=..., monotonic_ms=..., config=GroupConfig())
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

import functools
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from spark_kbatch.cluster.group_records import (
    NO_LEADER_EPOCH,
    STRING_BYTES_MAX,
    CommittedOffset,
)
from spark_kbatch.cluster.offsets_store import Change, OffsetsStore, TopicsOfRequest
from spark_kbatch.errors import KBatchError
from spark_kbatch.model import TopicPartition, numbers_by_topic
from spark_kbatch.options.server import GroupConfig
from spark_kbatch.server.groups.group import (
    ANSWER_BYTES_MAX,
    PROTOCOLS_MAX,
    Group,
    GroupMemory,
    GroupState,
    JoinAnswer,
    Member,
    SyncAnswer,
    size_of_texts,
)
from spark_kbatch.server.groups.membership import (
    Joining,
    Leaving,
    Memberships,
    Syncing,
    Timers,
    code_of_append,
)
from spark_kbatch.server.groups.offsets import (
    CommittedOffsets,
    Committing,
    DropPending,
    PendingOf,
    Store,
    metadata_size,
)
from spark_kbatch.server.metadata import GROUP_OPERATIONS, NOT_ASKED
from spark_kbatch.server.peers import client_warnings
from spark_kbatch.server.requests import Received, Respond
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import (
    ConsumerGroupHeartbeatResponse,
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

_NO_NEW_GROUPS = (
    "this server does not have the newer group protocol (KIP-848): leave out group.protocol, or set "
    "it to classic"
)
_NO_OFFSET = -1
_DEAD = "Dead"
_LOAD_AGAIN_AFTER_MS = 1000
_CLEAN_UP = ("clean up",)

# A request that names more is handled in parts, between which others have their turn.
_PARTITIONS_AT_ONCE, _GROUPS_AT_ONCE = 1000, 10
_TURN_S = 0.001
_NONE_COMMITTED: Mapping[TopicPartition, CommittedOffset] = {}

# Makes the answer to a request that failed as a whole.
_Failed = Callable[[ErrorCode], Any]
Numbers: TypeAlias = Mapping[str, Collection[int]]  # of partitions, by topic
_Asked: TypeAlias = dict[str, dict[int, None]]  # the same, while they are gathered
_Listed: TypeAlias = tuple[str, str, str]  # a group's id, protocol type and state
_Committed: TypeAlias = tuple[
    ErrorCode, Mapping[TopicPartition, CommittedOffset], Collection[TopicPartition]
]

_One = TypeVar("_One")
_Result = TypeVar("_Result")


class GroupCoordinator:
    """The coordinator of all consumer groups of one cluster; thread-safe."""

    def __init__(
        self,
        store: OffsetsStore,
        *,
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        config: GroupConfig,
        handled_until_ms: Callable[[], int] | None = None,
        term: Callable[[], int | None] = lambda: 0,
        pending_of: PendingOf = lambda _: (),
        drop_pending: DropPending = lambda *_: ErrorCode.NONE,
    ) -> None:
        """Start without groups; the first request loads them from the store.

        Args:
            store: where offsets and generations are stored.
            now_ms: the time of day, for stored times.
            monotonic_ms: for time-outs.
            config: settings.
            handled_until_ms: the time on the monotonic clock until which all requests that have arrived
                are handled; by default now. A session does not end while its heartbeat waits to be handled.
            term: the number of the term in which this server has all groups, which are loaded again in
                each; None if it has them no more.
            pending_of: the partitions of which transactions that are not decided have offsets of a group, or why
                they are not known.
            drop_pending: drops a group's offsets of partitions from transactions, or returns why not.
        """
        self._store, self._config = store, config
        self._now_ms, self._monotonic_ms, self._term = now_ms, monotonic_ms, term
        self._pending_of, self._drop_pending = pending_of, drop_pending
        self._mutex = threading.Lock()  # guards all that follows; held while waiting for the disk
        self._handled_until_ms = handled_until_ms or monotonic_ms
        self._start_empty()
        self._answers: list[tuple[Respond, Any]] = []  # to be given once the mutex is free
        self._is_closed = False
        self._load_after_ms = monotonic_ms()

    def _start_empty(self) -> None:
        self._timers = Timers()
        memory = GroupMemory(self._size_in_bytes, self._monotonic_ms)
        self._memberships = Memberships(
            self._store, self._timers, self._config,
            memory=memory, now_ms=self._now_ms, session_ms=self._session_ms,
        )  # fmt: skip
        self._offsets = CommittedOffsets(
            self._store, self._memberships, self._config, memory=memory, now_ms=self._now_ms,
            pending_of=self._pending_of, drop_pending=self._drop_pending,
        )  # fmt: skip
        self._is_loaded, self._loaded_in = False, 0

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

    def _size_in_bytes(self) -> int:
        return self._memberships.size_in_bytes() + self._offsets.size_in_bytes()

    def _run_due(self) -> None:
        try:
            self._timers.run_due(self._handled_until_ms() - self._store.waited_ms)
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

    def _handle(
        self,
        respond: Respond,
        failed: _Failed,
        handle: Callable[[Respond], None],
        group_id: str | None = None,
    ) -> None:
        """Run a group request's handler under the mutex, then send the answers that are ready.

        Args:
            respond: takes the answer.
            failed: makes the answer to a request that fails as a whole.
            handle: handles the request.
            group_id: of a group that may be kept, which it has to be an id for; None where that is
                not asked.
        """
        answered = False

        def answer(body: Any) -> None:
            nonlocal answered
            if not answered:
                answered = True
                self._answers.append((respond, body))

        with self._mutex:
            error = self._why_not_ready()
            if not error and group_id is not None and not _is_group_id(group_id):
                error = ErrorCode.INVALID_GROUP_ID
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

    def _handled(
        self, failed: Callable[[ErrorCode], _Result], handle: Callable[[], _Result]
    ) -> _Result:
        """Run a part of a request that holds no answer back, as `_handle` does; return its result."""
        results: list[Any] = []
        self._handle(results.append, failed, lambda respond: respond(handle()))
        result: _Result = results[0]
        return result

    def _taken_answers(self) -> list[tuple[Respond, Any]]:
        answers, self._answers = self._answers, []
        return answers

    def _why_not_ready(self) -> ErrorCode:
        if self._is_closed:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        term = self._term()
        if self._is_loaded and term == self._loaded_in:
            return ErrorCode.NONE
        if self._is_loaded:
            self._memberships.close()
            self._start_empty()
        if term is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
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
        self._is_loaded, self._loaded_in = True, term
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

        self._handle(respond, failed, handle, body.group_id)

    def _why_not_join(self, received: Received) -> ErrorCode:
        body, config = received.body, self._config
        stored = (
            body.member_id, body.group_instance_id or "", received.client_id, body.protocol_type,
            *(one.name for one in body.protocols),
        )  # fmt: skip
        if not all(map(_can_be_stored, stored)) or len(body.protocols) > PROTOCOLS_MAX:
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

        named = (body.protocol_type, body.protocol_name)
        if received.version >= _NAMES_PROTOCOL and None in named:  # a broker looks at this first
            respond(failed(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
            return

        def handle(respond: Respond) -> None:
            syncing = Syncing(
                body.group_id, body.generation_id, body.member_id, body.group_instance_id,
                body.protocol_type, body.protocol_name,
                {one.member_id: bytes(one.assignment) for one in body.assignments},
            )  # fmt: skip
            self._memberships.sync(syncing, lambda answer: respond(answer_of(answer)))

        self._handle(respond, failed, handle, body.group_id)

    def heartbeat(self, received: Received, respond: Respond) -> None:
        """Answer a Heartbeat."""
        body = received.body

        def failed(error: ErrorCode) -> Any:
            return HeartbeatResponse(error_code=error)

        def handle(respond: Respond) -> None:
            error = self._memberships.heartbeat(
                body.group_id, body.generation_id, body.member_id, body.group_instance_id
            )
            respond(failed(error))

        self._handle(respond, failed, handle, body.group_id)

    def consumer_group_heartbeat(self, received: Received, respond: Respond) -> None:
        """Refuse a ConsumerGroupHeartbeat, the first request of the newer group protocol."""
        asked = received.client_id, received.body.group_id, _NO_NEW_GROUPS
        client_warnings.warn("client %.100r is refused in group %.100r: %s", *asked)
        code = ErrorCode.UNSUPPORTED_VERSION
        respond(ConsumerGroupHeartbeatResponse(error_code=code, error_message=_NO_NEW_GROUPS))

    def leave_group(self, received: Received, respond: Respond) -> None:
        """Answer a LeaveGroup."""
        body = received.body

        def failed(error: ErrorCode) -> Any:
            return LeaveGroupResponse(error_code=error, members=[])

        def handle(respond: Respond) -> None:
            if received.version < _LEAVES_TOGETHER:
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

        self._handle(respond, failed, handle, body.group_id)

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

        committing = Committing(
            received.version, body.group_id, body.generation_id_or_member_epoch,
            body.member_id, body.group_instance_id, body.retention_time_ms, asked,
        )  # fmt: skip
        respond(answer_of(self.commit(committing)))

    def commit(
        self, committing: Committing, store: Store | None = None
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Store offsets, or have `store` keep those of a transaction until its end; return errors by partition.

        Others have a turn between parts of them. While a part is stored no request to a group is handled:
        no member that is new can read an offset before it is pending.
        """
        asked = committing.offsets
        is_valid = _is_group_id if committing.is_transactional else _can_be_stored
        if not is_valid(committing.group_id):
            return dict.fromkeys(asked, ErrorCode.INVALID_GROUP_ID)
        topics = self._store.topics()
        topics.look_up(asked)
        errors: dict[TopicPartition, ErrorCode] = {}
        for part in _parts(asked):
            of_part = committing._replace(offsets={one: asked[one] for one in part})
            found: ErrorCode | dict[TopicPartition, ErrorCode] = self._handled(
                _same, functools.partial(self._offsets.commit, of_part, topics, store)
            )
            errors |= dict.fromkeys(part, found) if isinstance(found, ErrorCode) else found
        return errors

    def store_decided(self, changes: Sequence[Change], then: Callable[[], ErrorCode]) -> ErrorCode:
        """Store the offsets of a transaction that was committed, and call `then`, as one step of all groups.

        An offset stays if its group has committed it since the transaction was sent its own.
        """

        def store() -> ErrorCode:
            try:
                return self._offsets.store(self._store.contents.not_overtaken(changes)) or then()
            except KBatchError as error:
                logger.warning("offsets of a transaction are not stored for now: %s", error)
                return code_of_append(error)

        return self._handled(lambda error: error, store)

    def offset_fetch(self, received: Received, respond: Respond) -> None:
        """Answer an OffsetFetch, of one group or, from version 8 on, of several."""
        body = received.body
        if received.version < _FETCHES_TOGETHER:
            respond(self._fetched_of_one(received))
            return

        # Each partition of a group is answered once: otherwise a small request could have an answer of any size.
        asked: dict[str, _Asked | None] = {}
        for one in body.groups:
            before = asked.get(one.group_id, {})
            if one.topics is None or before is None:
                asked[one.group_id] = None
            else:
                asked[one.group_id] = _asked(one.topics, before)
        group = OffsetFetchResponse.OffsetFetchResponseGroup
        topic_of = group.OffsetFetchResponseTopics
        partition_of = topic_of.OffsetFetchResponsePartitions
        topics = self._store.topics()
        groups, left = [], ANSWER_BYTES_MAX
        for group_id, numbers in asked.items():
            # When the answer is large already, its client is to ask again for the other groups.
            error, found = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, _NONE_COMMITTED
            pending: Collection[TopicPartition] = ()
            if left > 0:
                error, found, pending = self._committed(received, group_id, numbers, topics)
            left -= sum(metadata_size(value.metadata) for value in found.values())
            answered: Numbers = numbers_by_topic(found) if numbers is None else numbers
            groups.append(
                group(
                    group_id=group_id,
                    topics=[]
                    if error
                    else _offsets_by_topic(answered, found, pending, topic_of, partition_of),
                    error_code=error,
                )
            )
        respond(OffsetFetchResponse(groups=groups))

    def _fetched_of_one(self, received: Received) -> Any:
        body = received.body
        numbers = None if body.topics is None else _asked(body.topics, {})
        error, found, pending = self._committed(
            received, body.group_id, numbers, self._store.topics()
        )
        answered: Numbers = numbers_by_topic(found) if numbers is None else numbers
        topic_of = OffsetFetchResponse.OffsetFetchResponseTopic
        partition_of = topic_of.OffsetFetchResponsePartition
        topics = []
        if not error or received.version < _GROUP_ERRORS:
            topics = _offsets_by_topic(answered, found, pending, topic_of, partition_of, error)
        return OffsetFetchResponse(topics=topics, error_code=error)

    def _committed(
        self,
        received: Received,
        group_id: str,
        numbers: Numbers | None,
        topics: TopicsOfRequest,
    ) -> _Committed:
        """Return a group's offsets of some partitions, or all, sorted; those of deleted topics are left out.

        The last are the partitions of which a transaction may change the offset, if the client wants none of
        those.
        """
        wanted = None
        if numbers is not None:
            wanted = [TopicPartition(name, one) for name, ones in numbers.items() for one in ones]

        def failed(error: ErrorCode) -> _Committed:
            return error, _NONE_COMMITTED, ()

        def stored() -> _Committed:
            pending = self._pending_of(group_id) if received.body.require_stable else ()
            if isinstance(pending, ErrorCode):
                return failed(pending)
            return ErrorCode.NONE, self._offsets.stored(group_id, wanted), pending

        error, found, pending = self._handled(failed, stored)
        kept = {tp: found[tp] for tp in sorted(found) if not topics.is_gone(tp, found[tp])}
        return error, kept, pending

    def offset_delete(self, received: Received, respond: Respond) -> None:
        """Answer an OffsetDelete."""
        body = received.body

        def failed(error: ErrorCode) -> Any:
            return OffsetDeleteResponse(error_code=error, topics=[])

        if not _is_group_id(body.group_id):
            respond(failed(ErrorCode.INVALID_GROUP_ID))
            return
        asked = dict.fromkeys(
            TopicPartition(topic.name, one.partition_index)
            for topic in body.topics
            for one in topic.partitions
        )
        topics = self._store.topics()
        topics.look_up(asked)
        errors: dict[TopicPartition, ErrorCode] = {}
        for part in _parts(asked) if asked else [[]]:
            found = self._handled(
                lambda error: error,
                functools.partial(self._offsets.delete, body.group_id, part, topics),
            )
            if isinstance(found, ErrorCode):
                respond(failed(found))
                return
            errors |= found
        topic_of = OffsetDeleteResponse.OffsetDeleteResponseTopic
        partition_of = topic_of.OffsetDeleteResponsePartition
        answered = [
            topic_of(
                name=name,
                partitions=[
                    partition_of(
                        partition_index=number, error_code=errors[TopicPartition(name, number)]
                    )
                    for number in numbers
                ],
            )
            for name, numbers in numbers_by_topic(errors).items()
        ]
        respond(OffsetDeleteResponse(error_code=ErrorCode.NONE, topics=answered))

    # Administration.

    def list_groups(self, received: Received, respond: Respond) -> None:
        """Answer a ListGroups."""
        states = {state.strip().lower() for state in received.body.states_filter or ()}

        def known(error: ErrorCode = ErrorCode.NONE) -> tuple[ErrorCode, list[_Listed]]:
            if error:
                return error, []
            return error, [
                (group_id, group.protocol_type or "", group.state.value)
                for group_id, group in self._memberships.groups.items()
                if not states or group.state.value.lower() in states
            ]

        error, found = self._handled(known, known)
        listed = ListGroupsResponse.ListedGroup
        groups = [
            listed(group_id=group_id, protocol_type=kind, group_state=state)
            for group_id, kind, state in sorted(found)
        ]
        respond(ListGroupsResponse(error_code=error, groups=groups))

    def describe_groups(self, received: Received, respond: Respond) -> None:
        """Answer a DescribeGroups; a group that does not exist is shown as Dead."""
        asked = dict.fromkeys(received.body.groups)  # each is described once
        asks = received.body.include_authorized_operations
        operations = GROUP_OPERATIONS if asks else NOT_ASKED
        described = DescribeGroupsResponse.DescribedGroup
        answered, left = [], ANSWER_BYTES_MAX

        def answer_of(group_id: str) -> Any:
            group = self._memberships.groups.get(group_id)
            if group is None:
                return described(
                    error_code=ErrorCode.NONE, group_id=group_id, group_state=_DEAD,
                    protocol_type="", protocol_data="", members=[], authorized_operations=operations,
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

        def failed(group_id: str, error: ErrorCode) -> Any:
            return described(
                error_code=error, group_id=group_id, group_state="", protocol_type="",
                protocol_data="", members=[],
            )  # fmt: skip

        for part in _parts(asked, _GROUPS_AT_ONCE):
            # When the answer is large already, its client is to ask again for the other groups.
            if left <= 0:
                error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                answered += [failed(one, error) for one in part]
                continue
            found = self._handled(
                functools.partial(_each, part, failed), functools.partial(_each, part, answer_of)
            )
            left -= sum(
                size_of_texts(member.member_id, member.group_instance_id, member.client_id)
                + len(member.member_metadata)
                + len(member.member_assignment)
                for group in found
                for member in group.members
            )
            answered += found
        respond(DescribeGroupsResponse(groups=answered))

    def delete_groups(self, received: Received, respond: Respond) -> None:
        """Answer a DeleteGroups."""
        asked = received.body.groups_names
        result = DeleteGroupsResponse.DeletableGroupResult

        results = []
        for part in _parts(dict.fromkeys(asked), _GROUPS_AT_ONCE):
            errors = self._handled(
                functools.partial(_each, part, lambda _, error: error),
                functools.partial(_each, part, self._offsets.delete_group),
            )
            results += [
                result(group_id=one, error_code=error)
                for one, error in zip(part, errors, strict=True)
            ]
        respond(DeleteGroupsResponse(results=results))


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


def _parts(asked: Iterable[_One], size: int = _PARTITIONS_AT_ONCE) -> Iterator[list[_One]]:
    """Yield what a request names in parts, with a pause before each but the first."""
    all_asked = list(asked)
    for start in range(0, len(all_asked), size):
        if start:
            time.sleep(_TURN_S)
        yield all_asked[start : start + size]


def _same(error: ErrorCode) -> Any:
    return error


def _each(
    part: Iterable[str], answer_of: Callable[..., _Result], *error: ErrorCode
) -> list[_Result]:
    return [answer_of(one, *error) for one in part]


def _asked(topics: Iterable[Any], gathered: _Asked) -> _Asked:
    """Add the numbers of partitions by topic, each once, to those that were asked for before; return all."""
    for topic in topics:
        gathered.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return gathered


def _offsets_by_topic(
    asked: Numbers,
    found: Mapping[TopicPartition, CommittedOffset],
    pending: Collection[TopicPartition],
    topic_of: Any,
    partition_of: Any,
    error: ErrorCode = ErrorCode.NONE,
) -> list[Any]:
    nothing = CommittedOffset(_NO_OFFSET, NO_LEADER_EPOCH)

    def answer_of(topic: str, partition: int) -> Any:
        one = TopicPartition(topic, partition)
        is_pending = one in pending
        value = nothing if is_pending else found.get(one, nothing)
        return partition_of(
            partition_index=partition,
            committed_offset=value.offset,
            committed_leader_epoch=value.leader_epoch,
            metadata=value.metadata,
            error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT if is_pending else error,
        )

    return [
        topic_of(name=topic, partitions=[answer_of(topic, partition) for partition in partitions])
        for topic, partitions in asked.items()
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
