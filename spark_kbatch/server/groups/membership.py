"""Membership of groups: JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

    JoinGroup    A member joins, or rejoins. The group is PREPARING until all members have joined, or the
                 longest of their rebalance time-outs is over: then the missing ones are removed, except
                 static ones, whose sessions go on. A generation starts, and all held JoinGroups are
                 answered; the leader's answer lists all members
    SyncGroup    The leader sends an assignment for each member. It is stored, then all held SyncGroups are
                 answered; the group is STABLE. Members that send none in the rebalance time-out are removed
    Heartbeat    Extends a member's session. The answer says when to rejoin
    LeaveGroup   Ends the membership of the client itself, or of static members by instance id

A client that does not know its member id gets one and has to join with it (KIP-394), so that clients whose
answers are lost leave no members behind. A static member (KIP-345) is known by its instance id: if it
returns without a member id it takes its old place, without a rebalance if the group is STABLE, and a client
that still uses the old id is fenced.

A generation is stored once it has assignments. After a restart the group is in the last stored one, and its
members' sessions start again: the members go on and notice nothing.

Time spent waiting for the disk counts for no time-out: heartbeats that arrive meanwhile have to wait too,
and no member should lose its place because of that.

Source: Kafka group-coordinator/.../GroupMetadataManager.java, everything named classicGroup; KIP-345,
KIP-394, KIP-814 (skip_assignment).
"""

from __future__ import annotations

import functools
import heapq
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from spark_kbatch.cluster.group_records import GroupKey, GroupMetadata
from spark_kbatch.cluster.offsets_store import OffsetsStore
from spark_kbatch.errors import KBatchError
from spark_kbatch.options.server import GroupConfig
from spark_kbatch.server.groups.group import (
    GROUP_BYTES_MAX,
    GROUP_OBJECTS,
    MEMBER_BYTES_MAX,
    MEMBER_OBJECTS,
    NO_MEMBER_ID,
    PENDING_OBJECTS,
    AnswerJoin,
    AnswerSync,
    Group,
    GroupMemory,
    GroupState,
    JoinAnswer,
    Member,
    Protocols,
    SyncAnswer,
    memory_of,
    size_of,
    size_of_texts,
)
from spark_kbatch.server.peers import client_warnings
from spark_kbatch.wire.errors import ErrorCode, code_of

logger = logging.getLogger(__name__)

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000  # the longest that a new member's JoinGroup is held

_SESSION, _JOIN, _SYNC = "session", "join", "sync"
_OUTDATED_MAX = 1000  # entries in the heap of timers

Key: TypeAlias = tuple[str, ...]


class _Due(NamedTuple):
    """A key's entry in the heap of deadlines, outdated if the key's deadline has changed since."""

    deadline_ms: int
    number: int  # orders equal deadlines by the time at which they were set
    key: Key


class Timers:
    """Timers by key, each with a deadline and an action, on a clock that the caller reads; not thread-safe.

    Every heartbeat puts off the end of a member's session. So putting off adds no entry to the heap: an entry
    that comes up too early is put back with the current deadline.
    """

    def __init__(self) -> None:
        self._actions: dict[Key, tuple[int, Callable[[], None]]] = {}  # by key, with its deadline
        self._queued: dict[Key, int] = {}  # the earliest deadline of each key in the heap
        self._heap: list[_Due] = []
        self._numbers = itertools.count()

    def set(self, key: Key, deadline_ms: int, action: Callable[[], None]) -> None:
        """Set a key's timer, which runs the action at the deadline, in place of the key's earlier timer."""
        self._actions[key] = deadline_ms, action
        queued = self._queued.get(key)
        if queued is None or queued > deadline_ms:
            self._push(key, deadline_ms)

    def cancel(self, key: Key) -> None:
        """Cancel a key's timer, if there is one."""
        if self._actions.pop(key, None) is None:
            return
        # Its entry stays in the heap. When most are such, they are dropped.
        if len(self._heap) > 2 * len(self._actions) + _OUTDATED_MAX:
            self._queued = {one: deadline_ms for one, (deadline_ms, _) in self._actions.items()}
            self._heap = [
                _Due(deadline_ms, next(self._numbers), one)
                for one, deadline_ms in self._queued.items()
            ]
            heapq.heapify(self._heap)

    def run_due(self, now_ms: int) -> None:
        """Run the actions that are due, in the order of their deadlines. They may set timers."""
        while self._heap and self._heap[0].deadline_ms <= now_ms:
            due = heapq.heappop(self._heap)
            key = due.key
            if self._queued.get(key) != due.deadline_ms:
                continue  # An earlier entry of the same key has come up.
            del self._queued[key]
            found = self._actions.get(key)
            if found is None:
                continue
            deadline_ms, action = found
            if deadline_ms > now_ms:
                self._push(key, deadline_ms)
                continue
            del self._actions[key]
            action()

    def next_deadline_ms(self) -> int | None:
        """Return when `run_due` should be called next; None if there is nothing to do."""
        return self._heap[0].deadline_ms if self._heap else None

    def __len__(self) -> int:
        return len(self._actions)

    def _push(self, key: Key, deadline_ms: int) -> None:
        self._queued[key] = deadline_ms
        heapq.heappush(self._heap, _Due(deadline_ms, next(self._numbers), key))


class Joining(NamedTuple):
    """The contents of a JoinGroup request."""

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    requires_member_id: bool  # whether the client understands MEMBER_ID_REQUIRED
    can_skip_assignment: bool  # whether a leader can be told to skip the assignment

    @property
    def asks_for_an_id(self) -> bool:
        """Whether the client has to join again, with the member id that it gets."""
        is_dynamic = self.member_id == NO_MEMBER_ID and self.instance_id is None
        return is_dynamic and self.requires_member_id


class Syncing(NamedTuple):
    """The contents of a SyncGroup request."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    protocol_type: str | None
    protocol: str | None
    assignments: Mapping[str, bytes]  # by member id; only from the leader


class Leaving(NamedTuple):
    """A member that leaves, or is removed by an administrator."""

    member_id: str
    instance_id: str | None


class Memberships:
    """All consumer groups in memory, with their rebalances and their members' sessions; not thread-safe."""

    def __init__(
        self,
        store: OffsetsStore,
        timers: Timers,
        config: GroupConfig,
        *,
        memory: GroupMemory,
        now_ms: Callable[[], int],
        session_ms: Callable[[], int],
    ) -> None:
        """Use the clock `session_ms` for time-outs, and `now_ms` for stored times."""
        self._memory = memory
        self.groups: dict[str, Group] = {}
        self._store, self._timers, self._config = store, timers, config
        self._now_ms, self._session_ms = now_ms, session_ms

    def load(self, stored: Mapping[str, GroupMetadata], groups_of_offsets: Iterable[str]) -> None:
        """Restore groups from the store; a group that only has committed offsets has no members."""
        for group_id, metadata in stored.items():
            group = self.groups[group_id] = Group.of(group_id, metadata)
            for member in group.members.values():
                self._expect_heartbeat(group, member)
            if len(group.members) > self._config.group_max_size:
                self._prepare_rebalance(group, "it has more members than group.max.size")
        for group_id in groups_of_offsets:
            self.groups.setdefault(group_id, Group(group_id))

    def size_in_bytes(self) -> int:
        """Return the memory that all groups and their members take, about."""
        return sum(one.size_in_bytes for one in self.groups.values())

    def close(self) -> None:
        """Answer all held JoinGroups and SyncGroups with NOT_COORDINATOR."""
        for group in self.groups.values():
            for member in group.members.values():
                member.answer_join(JoinAnswer(ErrorCode.NOT_COORDINATOR, member.member_id))
                member.answer_sync(SyncAnswer(ErrorCode.NOT_COORDINATOR))

    def forget(self, group_id: str) -> None:
        """Drop a group without members."""
        group = self.groups.pop(group_id)
        for member_id in group.pending_joins:
            self._timers.cancel((_SESSION, group_id, member_id))
        self._timers.cancel((_JOIN, group_id))
        self._timers.cancel((_SYNC, group_id))

    # Joining.

    def join(self, joining: Joining, answer: AnswerJoin) -> None:
        """Let a client join; answer once the next generation starts, or at once."""
        group = self.groups.get(joining.group_id)
        if group is None:
            if joining.member_id != NO_MEMBER_ID:
                answer(JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, joining.member_id))
                return
            group = Group(joining.group_id, state_timestamp=self._now_ms())
        if not self._has_room_for(group, joining.member_id):
            self._take_out(group, joining.member_id)
            self._complete_if_all_joined(group)
            answer(JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED))
        elif not group.supports(joining.protocol_type, joining.protocols):
            answer(JoinAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, joining.member_id))
        # Last, as it takes memory for what is to be kept.
        elif error := _why_unknown(group, joining) or self._why_too_large(group, joining):
            answer(JoinAnswer(error, joining.member_id))
        else:
            self.groups[joining.group_id] = group
            if joining.member_id == NO_MEMBER_ID:
                self._join_new(group, joining, answer)
            else:
                self._join_known(group, joining, answer)

    def _why_too_large(self, group: Group, joining: Joining) -> ErrorCode:
        """Return the error if a member's metadata cannot be kept, as it could not be stored in Kafka."""
        size_in_bytes = size_of(joining.protocols)
        others = sum(
            one.metadata_bytes
            for one in group.members.values()
            if one.member_id != joining.member_id
        )
        if size_in_bytes > MEMBER_BYTES_MAX or others + size_in_bytes > GROUP_BYTES_MAX:
            client_warnings.warn(
                "a member of group %s with %d bytes of metadata is refused: accepted are %d, and %d of a group",
                group.group_id, size_in_bytes, MEMBER_BYTES_MAX, GROUP_BYTES_MAX,
            )  # fmt: skip
            return ErrorCode.UNKNOWN_SERVER_ERROR
        member = group.members.get(joining.member_id)
        added = memory_of(joining.protocols)
        if member is not None:
            added -= memory_of(member.protocols)
        elif joining.asks_for_an_id:
            added = PENDING_OBJECTS
        else:
            names = size_of_texts(joining.member_id, joining.instance_id, joining.client_id)
            added += MEMBER_OBJECTS + names
            if not group.members:
                added += size_of_texts(joining.protocol_type)
        if group.group_id not in self.groups:
            added += GROUP_OBJECTS + size_of_texts(group.group_id)
        if not self._memory.take(added):
            client_warnings.warn(
                "a member of group %s is refused: groups use up their memory", group.group_id
            )
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        return ErrorCode.NONE

    def _has_room_for(self, group: Group, member_id: str) -> bool:
        most = self._config.group_max_size
        member = group.members.get(member_id)
        if group.state is GroupState.EMPTY:
            return True
        if group.state is GroupState.PREPARING:
            # If there were too many members before, the last ones to rejoin are refused.
            is_held = member is not None and member.awaiting_join is not None
            return is_held or group.awaiting_join_count < most
        return member is not None or len(group.members) < most

    def _join_new(self, group: Group, joining: Joining, answer: AnswerJoin) -> None:
        member_id = group.new_member_id(joining.client_id, joining.instance_id)
        if joining.instance_id is not None:
            if joining.instance_id in group.static_members:
                self._rejoin_static(group, joining, member_id, answer)
            else:
                self._add_member(group, joining, member_id, answer)
        elif joining.requires_member_id:
            group.pending_joins.add(member_id)
            self._set_session(group, member_id, joining.session_timeout_ms)
            answer(JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add_member(group, joining, member_id, answer)

    def _join_known(self, group: Group, joining: Joining, answer: AnswerJoin) -> None:
        member_id = joining.member_id
        if member_id in group.pending_joins and joining.instance_id is None:
            self._add_member(group, joining, member_id, answer)
            return
        member = group.members[member_id]
        is_changed = member.protocols != joining.protocols
        # The leader rejoins to assign partitions again: its topics may have grown.
        leads = group.leader == member_id and group.state is GroupState.STABLE
        if group.state is GroupState.PREPARING or is_changed or leads:
            self._update(member, joining, answer)
            self._rebalance_or_complete(group, f"member {member_id} joins again")
        else:
            # The first answer may be lost.
            answer(group.joined(member))

    def _add_member(
        self, group: Group, joining: Joining, member_id: str, answer: AnswerJoin
    ) -> None:
        member = Member(
            member_id,
            joining.instance_id,
            joining.client_id,
            joining.client_host,
            rebalance_timeout_ms=joining.rebalance_timeout_ms,
            session_timeout_ms=joining.session_timeout_ms,
            protocols=joining.protocols,
        )
        member.is_new, member.awaiting_join = True, answer
        if not group.members:
            group.protocol_type = joining.protocol_type
        if (group.state, group.previous_state) == (GroupState.PREPARING, GroupState.EMPTY):
            group.new_member_added = True
        group.add(member)
        # It cannot send heartbeats before it has an answer, so no one would notice if its client were
        # gone, or had given up and retried: the JoinGroup is held for a limited time.
        self._set_session(group, member_id, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance_or_complete(group, f"member {member_id} is new")

    def _update(self, member: Member, joining: Joining, answer: AnswerJoin) -> None:
        member.protocols = joining.protocols
        member.rebalance_timeout_ms = joining.rebalance_timeout_ms
        member.session_timeout_ms = joining.session_timeout_ms
        # The client gave up its last request and sent this one.
        member.answer_join(JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, member.member_id))
        member.awaiting_join = answer

    def _rejoin_static(
        self, group: Group, joining: Joining, member_id: str, answer: AnswerJoin
    ) -> None:
        """Let a static member that lost its member id in a restart take its old place."""
        assert joining.instance_id is not None
        old_id = group.static_members[joining.instance_id]
        before = group.members[old_id]
        kept = before.protocols, before.rebalance_timeout_ms, before.session_timeout_ms
        leader = group.leader
        member = group.replace_static(joining.instance_id, member_id)
        self._timers.cancel((_SESSION, group.group_id, old_id))
        self._expect_heartbeat(group, member)
        self._update(member, joining, answer)
        if group.state is GroupState.PREPARING:
            self._complete_if_all_joined(group)
        elif group.state is GroupState.COMPLETING:
            # The leader may know the old id, and would assign nothing to the new one.
            self._prepare_rebalance(group, f"static member {member_id} joins again")
        elif group.selected_protocol() != group.protocol:
            self._rebalance_or_complete(group, f"static member {member_id} changes the protocol")
        else:
            try:
                self._store.append([(GroupKey(group.group_id), group.stored())])
            except KBatchError as error:
                _warn_unstored(group, error)
                member.awaiting_join = None
                group.replace_static(joining.instance_id, old_id)
                member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms = kept
                self._timers.cancel((_SESSION, group.group_id, member_id))
                self._expect_heartbeat(group, member)
                answer(JoinAnswer(code_of_append(error)))
                return
            joined = group.joined(member, skip_assignment=True)
            if not joining.can_skip_assignment:
                # The answer names the old id as leader, so that a returning leader does not assign again,
                # which is not needed.
                joined = joined._replace(
                    leader=leader or NO_MEMBER_ID, members=(), skip_assignment=False
                )
            member.answer_join(joined)

    # Rebalances.

    def _rebalance_or_complete(self, group: Group, reason: str) -> None:
        if group.state is GroupState.PREPARING:
            self._complete_if_all_joined(group)
        else:
            self._prepare_rebalance(group, reason)

    def _complete_if_all_joined(self, group: Group) -> None:
        is_first = group.previous_state is GroupState.EMPTY  # the first one waits for its delay
        if group.state is GroupState.PREPARING and not is_first and group.have_all_joined:
            self._complete_join(group)

    def _prepare_rebalance(self, group: Group, reason: str) -> None:
        if group.state is GroupState.COMPLETING:
            self._answer_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS)
        group.pending_syncs.clear()
        self._timers.cancel((_SYNC, group.group_id))
        is_first = group.state is GroupState.EMPTY
        group.move_to(GroupState.PREPARING, self._now_ms())
        logger.info(
            "group %s rebalances after generation %d: %s", group.group_id, group.generation, reason
        )
        if is_first:
            delay_ms = self._config.group_initial_rebalance_delay_ms
            left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            self._delay_first_rebalance(group, delay_ms, left_ms)
        elif group.have_all_joined:
            self._complete_join(group)
        else:
            self._expect_joins(group)

    def _expect_joins(self, group: Group) -> None:
        complete = functools.partial(self._complete_join, group)
        self._set_timer(_JOIN, group, group.rebalance_timeout_ms, complete)

    def _delay_first_rebalance(self, group: Group, delay_ms: int, left_ms: int) -> None:
        """Wait for more members; repeat that while new ones join, up to the rebalance time-out."""

        def complete() -> None:
            if group.new_member_added and left_ms:
                group.new_member_added = False
                next_ms = min(self._config.group_initial_rebalance_delay_ms, left_ms)
                self._delay_first_rebalance(group, next_ms, max(left_ms - delay_ms, 0))
            else:
                self._complete_join(group)

        self._set_timer(_JOIN, group, delay_ms, complete)

    def _complete_join(self, group: Group) -> None:
        """Start a generation with the members that have joined."""
        self._timers.cancel((_JOIN, group.group_id))
        for member in list(group.members.values()):
            if member.awaiting_join is None and member.instance_id is None:
                self._take_out(group, member.member_id)
        if not group.elect_joined_leader() and group.members:
            # Only static members are left, and none has joined: wait until their sessions end.
            self._expect_joins(group)
            return
        group.new_member_added = False
        group.start_generation(self._now_ms())
        if group.state is GroupState.EMPTY:
            try:
                self._store.append([(GroupKey(group.group_id), group.stored())])
            except KBatchError as error:
                # Otherwise a restart would bring the last stored generation back until its members'
                # sessions end.
                _warn_unstored(group, error)
            return
        logger.info(
            "group %s is in generation %d, with %d member%s",
            group.group_id, group.generation, len(group.members), "s" * (len(group.members) != 1),
        )  # fmt: skip
        for member in group.members.values():
            member.answer_join(group.joined(member))
            self._expect_heartbeat(group, member)
            member.is_new = False
            group.pending_syncs.add(member.member_id)
        expire = functools.partial(self._expire_syncs, group, group.generation)
        self._set_timer(_SYNC, group, group.rebalance_timeout_ms, expire)

    def _expire_syncs(self, group: Group, generation: int) -> None:
        """Remove the members of a generation that have not sent SyncGroup in time, and rebalance."""
        missing = group.pending_syncs & group.members.keys()
        if group.generation != generation or not missing:
            return
        for member_id in missing:
            self._take_out(group, member_id)
        self._prepare_rebalance(group, f"{len(missing)} members have not sent SyncGroup in time")

    # Assignments.

    def sync(self, syncing: Syncing, answer: AnswerSync) -> None:
        """Answer with the member's assignment, once the leader has sent it."""
        group = self.groups.get(syncing.group_id)
        error = self._why_no_sync(group, syncing)
        if error or group is None:
            answer(SyncAnswer(error))
            return
        member = group.members[syncing.member_id]
        group.pending_syncs.discard(syncing.member_id)
        if not group.pending_syncs:
            self._timers.cancel((_SYNC, group.group_id))
        if group.state is GroupState.STABLE:
            answer(group.synced(member))
            return
        member.answer_sync(SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID))  # to its own earlier request
        member.awaiting_sync = answer
        if group.leader == member.member_id:
            self._assign(group, syncing.assignments)

    def _why_no_sync(self, group: Group | None, syncing: Syncing) -> ErrorCode:
        if group is None or group.state is GroupState.EMPTY:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = group.why_not_a_member(syncing.member_id, syncing.instance_id)
        if error:
            return error
        if syncing.generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if syncing.protocol_type not in (None, group.protocol_type) or (
            syncing.protocol not in (None, group.protocol)
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if group.state is GroupState.PREPARING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        # Others' are dropped.
        is_kept = group.state is GroupState.COMPLETING and group.leader == syncing.member_id
        size_in_bytes = sum(map(len, syncing.assignments.values())) if is_kept else 0
        if size_in_bytes > GROUP_BYTES_MAX or not self._memory.take(size_in_bytes):
            client_warnings.warn(
                "assignments of %d bytes in group %s are refused: accepted are %d, and what is left for groups",
                size_in_bytes, syncing.group_id, GROUP_BYTES_MAX,
            )  # fmt: skip
            return ErrorCode.UNKNOWN_SERVER_ERROR
        return ErrorCode.NONE

    def _assign(self, group: Group, assignments: Mapping[str, bytes]) -> None:
        try:
            stored = group.stored({one: assignments.get(one, b"") for one in group.members})
            self._store.append([(GroupKey(group.group_id), stored)])
        except KBatchError as error:
            _warn_unstored(group, error)
            self._answer_syncs(group, code_of_append(error))
            self._prepare_rebalance(group, "its assignments could not be stored")
            return
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        group.move_to(GroupState.STABLE, self._now_ms())
        for member in group.members.values():
            if member.answer_sync(group.synced(member)):
                self._expect_heartbeat(group, member)

    def _answer_syncs(self, group: Group, error: ErrorCode) -> None:
        for member in group.members.values():
            member.assignment = b""
            if member.answer_sync(SyncAnswer(error)):
                self._expect_heartbeat(group, member)

    # Sessions.

    def heartbeat(
        self, group_id: str, generation: int, member_id: str, instance_id: str | None
    ) -> ErrorCode:
        """Extend a member's session; return the error to answer with."""
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = group.why_not_a_member(member_id, instance_id)
        if not error and generation != group.generation:
            error = ErrorCode.ILLEGAL_GENERATION
        if error:
            return error
        self.keep_session(group, member_id)
        if group.state is GroupState.PREPARING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def keep_session(self, group: Group, member_id: str) -> None:
        """Extend a member's session, as a heartbeat does; do nothing if it is not a member."""
        member = group.members.get(member_id)
        if member is not None:
            self._expect_heartbeat(group, member)

    def _expect_heartbeat(self, group: Group, member: Member) -> None:
        self._set_session(group, member.member_id, member.session_timeout_ms)

    def _set_session(self, group: Group, member_id: str, timeout_ms: int) -> None:
        expire = functools.partial(self._expire_session, group, member_id)
        key = _SESSION, group.group_id, member_id
        self._timers.set(key, self._session_ms() + timeout_ms, expire)

    def _expire_session(self, group: Group, member_id: str) -> None:
        member = group.members.get(member_id)
        if member is None or member.must_send_heartbeats:
            self._take_out(group, member_id)
            reason = f"the session of {member_id} has ended"
            self._after_removal(group, reason, were_members=member is not None)

    def leave(self, group_id: str, leaving: Iterable[Leaving]) -> list[ErrorCode]:
        """Remove the members that leave; return the error for each."""
        group = self.groups.get(group_id)
        if group is None:
            return [ErrorCode.UNKNOWN_MEMBER_ID for _ in leaving]
        errors, were_members = [], False
        for one in leaving:
            member_id, error = one.member_id, ErrorCode.NONE
            if member_id == NO_MEMBER_ID:  # An administrator removes it by its instance id.
                member_id = group.static_members.get(one.instance_id or "", NO_MEMBER_ID)
                if member_id == NO_MEMBER_ID:
                    error = ErrorCode.UNKNOWN_MEMBER_ID
            elif member_id not in group.pending_joins:
                error = group.why_not_a_member(member_id, one.instance_id)
            errors.append(error)
            if not error:
                were_members |= member_id in group.members
                self._take_out(group, member_id)
        self._after_removal(group, "members leave", were_members=were_members)
        return errors

    def _after_removal(self, group: Group, reason: str, *, were_members: bool) -> None:
        """Rebalance a group that has lost members, or drop it if it is empty and was never stored.

        `were_members` is False if all of them were only about to join.
        """
        if group.state is GroupState.PREPARING:
            self._complete_if_all_joined(group)
        elif were_members:
            self._prepare_rebalance(group, reason)
        if group.state is GroupState.EMPTY and not group.pending_joins:
            self._forget_if_unknown(group)

    def _take_out(self, group: Group, member_id: str) -> None:
        member = group.members.get(member_id)
        if member is not None:
            member.answer_join(JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID))
            member.answer_sync(SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID))
        self._timers.cancel((_SESSION, group.group_id, member_id))
        group.remove(member_id)

    def _forget_if_unknown(self, group: Group) -> None:
        """Drop an empty group from memory if `__consumer_offsets` has no record of it."""
        stored = self._store.contents
        if group.group_id not in stored.groups and group.group_id not in stored.offsets:
            self.forget(group.group_id)

    def _set_timer(
        self, kind: str, group: Group, timeout_ms: int, action: Callable[[], None]
    ) -> None:
        self._timers.set((kind, group.group_id), self._session_ms() + timeout_ms, action)


def _why_unknown(group: Group, joining: Joining) -> ErrorCode:
    """Return the error for a client that joins with the id of a member that it is not."""
    is_pending = joining.member_id in group.pending_joins and joining.instance_id is None
    if is_pending or joining.member_id == NO_MEMBER_ID:
        return ErrorCode.NONE
    return group.why_not_a_member(joining.member_id, joining.instance_id)


def _warn_unstored(group: Group, error: KBatchError) -> None:
    logger.warning(
        "generation %d of group %s is not stored: %s", group.generation, group.group_id, error
    )


def code_of_append(error: KBatchError) -> ErrorCode:
    """Return the error code for a client after a failed append to `__consumer_offsets`.

    Source: CoordinatorOperationExceptionHelper, appendGroupMetadataErrorToResponseError.
    """
    code = ErrorCode(code_of(error))
    return _CODES_OF_APPENDS.get(code, ErrorCode.COORDINATOR_NOT_AVAILABLE)


_CODES_OF_APPENDS = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.CORRUPT_MESSAGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.UNKNOWN_SERVER_ERROR: ErrorCode.UNKNOWN_SERVER_ERROR,
}
