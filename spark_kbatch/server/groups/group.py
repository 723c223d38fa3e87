"""A consumer group in memory: its members, generation and state.

    EMPTY        no members. A group that only commits offsets is never in another state
    PREPARING    members must join again; their JoinGroups are held until all have joined, or time is up
    COMPLETING   a new generation: JoinGroups are answered, SyncGroups held until the leader assigns
    STABLE       all members have their assignments

Nothing here waits, writes or answers on its own: `membership` does.

Source: Kafka group-coordinator/.../classic/ClassicGroup.java, ClassicGroupMember.java,
ClassicGroupState.java.
"""

from __future__ import annotations

import struct
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from enum import Enum
from typing import NamedTuple, TypeAlias

from spark_kbatch.cluster.group_records import NO_TIMESTAMP, GroupMetadata, MemberMetadata
from spark_kbatch.wire.errors import ErrorCode

CONSUMER = "consumer"  # the protocol type of Kafka's consumers
NO_MEMBER_ID = ""
NO_GENERATION = -1
_NAME_LENGTH_MAX = 255  # of the client's id within a member id
_TOPICS_MAX = 20_000
_TOPIC_OBJECTS = 110  # bytes that a topic's name takes in a set, besides its characters
_START, _SIZE = struct.Struct(">hi"), struct.Struct(">h")  # of a subscription, of a topic in it

# Memory: see GroupMemory.
MEMBER_BYTES_MAX = 1 << 20
PROTOCOLS_MAX = 64
GROUP_BYTES_MAX = 4 << 20
OFFSETS_BYTES_MAX = (
    16 << 20
)  # of the metadata of one group's offsets, so of the answer about one group
ANSWER_BYTES_MAX = 16 << 20  # of groups in one answer; for others the client has to ask again
# Of Python's objects, besides bytes of clients.
MEMBER_OBJECTS, OFFSET_OBJECTS, GROUP_OBJECTS, PENDING_OBJECTS = 3000, 700, 2000, 1500

_REST = 20  # between two measurements, in times that the last one took


def size_of_texts(*texts: str | None) -> int:
    """Return the memory that names and ids take, of which each has up to 32 KiB."""
    return sum(sys.getsizeof(one) for one in texts if one)


class GroupMemory:
    """The limit on the memory of all groups together, since they outlive their connections; not thread-safe.

    Transactions have such a limit, too, of their own.

        a member      1 MiB of metadata, in up to 64 protocols
        a group       4 MiB of members' metadata, and of assignments; 16 MiB of metadata of its offsets
        all groups    64 MiB, with names and ids, and with what Python's objects take

    Kafka's limit is that a group has to fit into one record of `__consumer_offsets`, 1 MiB by default; it
    notices only when the leader has sent the assignments. Here a JoinGroup is refused at once, with the error
    that Kafka gives then.

    What is added is counted, and what goes, or was never kept, is not: once the sum is above the
    limit, all that is there is measured. So nothing is refused for what is not there, but for a while
    after a measurement that took long: clients could keep the server busy with these.

    Source: Kafka group-coordinator/.../GroupMetadataManager.java appendGroupMetadataErrorToResponseError.
    """

    bytes_max = 64 << 20

    def __init__(self, measure: Callable[[], int], monotonic_ms: Callable[[], int]) -> None:
        """Start with what is there; `measure` returns the size of all that is kept now."""
        self._measure, self._monotonic_ms = measure, monotonic_ms
        self._size_in_bytes = 0
        self._again_ms: int | None = (
            None  # when it may be measured again; None before the first time
        )

    def take(self, size_in_bytes: int) -> bool:
        """Count memory for something that is to be kept; return False if there is not as much."""
        if size_in_bytes <= 0:
            return True
        now_ms = self._monotonic_ms()
        if self._again_ms is None or (
            self._size_in_bytes + size_in_bytes > self.bytes_max and now_ms >= self._again_ms
        ):
            self._size_in_bytes = self._measure()
            self._again_ms = now_ms + (_REST + 1) * (self._monotonic_ms() - now_ms)
        if self._size_in_bytes + size_in_bytes > self.bytes_max:
            return False
        self._size_in_bytes += size_in_bytes
        return True


class GroupState(Enum):
    """The state of a group, by Kafka's name for it."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


Protocols: TypeAlias = tuple[tuple[str, bytes], ...]  # names in order of preference, with metadata


def size_of(protocols: Protocols) -> int:
    """Return the size in bytes of the names and metadata of protocols."""
    return sum(len(name) + len(metadata) for name, metadata in protocols)


def memory_of(protocols: Protocols) -> int:
    """Return the memory that a member's protocols take, about, with the topics of the one that will be decoded."""
    decoded = max((_TOPIC_OBJECTS * _topic_count(metadata) for _, metadata in protocols), default=0)
    return size_of(protocols) + decoded


# A consumer's subscription: int16 version, int32 count, topics (strings), and more. The topics are the only part of
# members' data that the coordinator decodes. Source: Kafka clients/.../common/message/ConsumerProtocolSubscription.json.


def _topic_count(data: bytes) -> int:
    if len(data) < _START.size:
        return 0
    _, count = _START.unpack_from(data)
    return count if 0 <= count <= min(_TOPICS_MAX, len(data) // _SIZE.size) else 0


def _subscribed_topics(data: bytes) -> frozenset[str] | None:
    """Decode the topics of a member's subscription.

    Returns None if it is not in Kafka's consumer format, or names so many that decoding takes long.
    """
    try:
        _, count = _START.unpack_from(data)
        if count > _TOPICS_MAX:
            return None
        position = _START.size
        found = set()
        for _ in range(count):
            (size,) = _SIZE.unpack_from(data, position)
            position += _SIZE.size
            if not 0 <= size <= len(data) - position:
                return None
            found.add(data[position : position + size].decode())
            position += size
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(found) if count >= 0 else None


class JoinAnswer(NamedTuple):
    """The answer to a JoinGroup."""

    error: ErrorCode = ErrorCode.NONE
    member_id: str = NO_MEMBER_ID
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = NO_MEMBER_ID
    members: tuple[tuple[str, str | None, bytes], ...] = ()  # id, instance id, metadata
    skip_assignment: bool = False


class SyncAnswer(NamedTuple):
    """The answer to a SyncGroup."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


AnswerJoin: TypeAlias = Callable[[JoinAnswer], object]
AnswerSync: TypeAlias = Callable[[SyncAnswer], object]


class Member:
    """One member of a group."""

    __slots__ = (
        "assignment", "awaiting_join", "awaiting_sync", "client_host", "client_id", "instance_id",
        "is_new", "member_id", "protocols", "rebalance_timeout_ms", "session_timeout_ms",
    )  # fmt: skip

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        *,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.member_id, self.instance_id = member_id, instance_id
        self.client_id, self.client_host = client_id, client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols, self.assignment = protocols, assignment
        self.awaiting_join: AnswerJoin | None = None
        self.awaiting_sync: AnswerSync | None = None
        self.is_new = False  # not yet in any generation

    @property
    def must_send_heartbeats(self) -> bool:
        """Whether the member must send heartbeats: not while a request of it is held, unless it is new.

        A held request is a JoinGroup or SyncGroup that is not answered yet.
        """
        return self.is_new or (self.awaiting_join is None and self.awaiting_sync is None)

    @property
    def metadata_bytes(self) -> int:
        """Size of the metadata of all its protocols."""
        return size_of(self.protocols)

    @property
    def size_in_bytes(self) -> int:
        """Memory that it takes, about."""
        names = size_of_texts(self.member_id, self.instance_id, self.client_id)
        return MEMBER_OBJECTS + names + memory_of(self.protocols) + len(self.assignment)

    def metadata(self, protocol: str | None) -> bytes:
        """Return the member's metadata for a protocol; empty if it does not support it."""
        return dict(self.protocols).get(protocol or "", b"")

    def vote(self, candidates: Iterable[str]) -> str:
        """Return the one of the candidate assignment protocols that the member prefers."""
        known = set(candidates)
        return next(name for name, _ in self.protocols if name in known)

    def answer_join(self, answer: JoinAnswer) -> None:
        """Answer the member's JoinGroup, if one is held."""
        held, self.awaiting_join = self.awaiting_join, None
        if held is not None:
            held(answer)

    def answer_sync(self, answer: SyncAnswer) -> bool:
        """Answer the member's SyncGroup; return False if none is held."""
        held, self.awaiting_sync = self.awaiting_sync, None
        if held is not None:
            held(answer)
        return held is not None


class Group:
    """A consumer group: its members, generation and state."""

    def __init__(self, group_id: str, *, state_timestamp: int = NO_TIMESTAMP) -> None:
        """Make a group without members."""
        self.group_id = group_id
        self.state = self.previous_state = GroupState.EMPTY
        self.state_timestamp = state_timestamp
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}  # by id, in the order in which they joined
        self.static_members: dict[str, str] = {}  # member ids by instance id
        self.pending_joins: set[str] = set()  # member ids given to clients that have not joined yet
        self.pending_syncs: set[str] = (
            set()
        )  # members that have not sent SyncGroup in this generation
        self.subscribed_topics: frozenset[str] | None = None  # None if unknown
        self.new_member_added = False  # during the delay of the first rebalance

    @classmethod
    def of(cls, group_id: str, stored: GroupMetadata) -> Group:
        """Return a group restored from its value in `__consumer_offsets`."""
        group = cls(group_id, state_timestamp=stored.state_timestamp)
        group.generation = stored.generation
        group.protocol_type = stored.protocol_type or None
        group.protocol, group.leader = stored.protocol, stored.leader
        for one in stored.members:
            group.add(
                Member(
                    one.member_id, one.instance_id, one.client_id, one.client_host,
                    rebalance_timeout_ms=one.rebalance_timeout_ms,
                    session_timeout_ms=one.session_timeout_ms,
                    protocols=((stored.protocol or "", one.subscription),),
                    assignment=one.assignment,
                )
            )  # fmt: skip
        if group.members:
            group.state = GroupState.STABLE
            if group.leader not in group.members:
                group.leader = next(iter(group.members))
        group.subscribed_topics = group._subscriptions()
        return group

    def stored(self, assignments: dict[str, bytes] | None = None) -> GroupMetadata:
        """Return the current generation as a value of `__consumer_offsets`.

        Its members have the given assignments, or their current ones.
        """
        return GroupMetadata(
            self.protocol_type or "", self.generation, self.protocol, self.leader,
            self.state_timestamp,
            tuple(
                MemberMetadata(
                    one.member_id, one.instance_id, one.client_id, one.client_host,
                    one.rebalance_timeout_ms, one.session_timeout_ms,
                    one.metadata(self.protocol),
                    one.assignment if assignments is None else assignments.get(one.member_id, b""),
                )
                for one in self.members.values()
            ),
        )  # fmt: skip

    # Facts.

    @property
    def size_in_bytes(self) -> int:
        """Memory that the group takes, about."""
        names = size_of_texts(self.group_id, self.protocol_type)
        members = sum(one.size_in_bytes for one in self.members.values())
        return GROUP_OBJECTS + names + members + PENDING_OBJECTS * len(self.pending_joins)

    @property
    def rebalance_timeout_ms(self) -> int:
        """Time for which a rebalance waits for members to join: the longest that a member asks for."""
        return max((one.rebalance_timeout_ms for one in self.members.values()), default=0)

    @property
    def awaiting_join_count(self) -> int:
        """Number of members whose JoinGroup is held, to be answered when the rebalance is over."""
        return sum(one.awaiting_join is not None for one in self.members.values())

    @property
    def have_all_joined(self) -> bool:
        """Whether all members have joined the rebalance."""
        return not self.pending_joins and all(
            one.awaiting_join is not None for one in self.members.values()
        )

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Return True if a client with these protocols may become a member."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type and protocols)
        if protocol_type != self.protocol_type:
            return False
        candidates = self._candidates()
        return any(not self.members or name in candidates for name, _ in protocols)

    def selected_protocol(self) -> str:
        """Return the protocol with the most votes among those that all members support."""
        candidates = self._candidates()
        votes = Counter(one.vote(candidates) for one in self.members.values())
        return votes.most_common(1)[0][0]

    def is_subscribed_to(self, topic: str) -> bool:
        """Return True if a member subscribes to the topic, or may, because subscriptions are unknown."""
        if self.subscribed_topics is None:
            return self.protocol_type == CONSUMER
        return topic in self.subscribed_topics

    def why_not_a_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return the error for a client that claims to be this member; NONE if it is."""
        if instance_id is not None:
            known = self.static_members.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE

    def joined(self, member: Member, *, skip_assignment: bool = False) -> JoinAnswer:
        """Return the answer to a member's JoinGroup in this generation."""
        leads = self.leader == member.member_id
        return JoinAnswer(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader or NO_MEMBER_ID,
            members=tuple(
                (one.member_id, one.instance_id, one.metadata(self.protocol))
                for one in self.members.values()
            )
            if leads
            else (),
            skip_assignment=skip_assignment and leads,
        )

    def synced(self, member: Member) -> SyncAnswer:
        """Return the answer to a member's SyncGroup."""
        return SyncAnswer(
            protocol_type=self.protocol_type, protocol=self.protocol, assignment=member.assignment
        )

    # Changes.

    def move_to(self, state: GroupState, now_ms: int) -> None:
        """Move the group to another state, and note the time."""
        self.previous_state, self.state = self.state, state
        self.state_timestamp = now_ms

    def new_member_id(self, client_id: str, instance_id: str | None) -> str:
        """Return an unused member id."""
        name = client_id if instance_id is None else instance_id
        return f"{name[:_NAME_LENGTH_MAX]}-{uuid.uuid4()}"

    def add(self, member: Member) -> None:
        """Add a member; the first one leads."""
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.pending_joins.discard(member.member_id)

    def remove(self, member_id: str) -> None:
        """Remove a member; if it led, another one leads."""
        removed = self.members.pop(member_id, None)
        if removed is not None and removed.instance_id is not None:
            self.static_members.pop(removed.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.pending_joins.discard(member_id)
        self.pending_syncs.discard(member_id)

    def replace_static(self, instance_id: str, member_id: str) -> Member:
        """Give the member with this instance id another member id; clients with the old one are fenced."""
        old_id = self.static_members[instance_id]
        member = self.members[old_id]
        member.answer_join(JoinAnswer(ErrorCode.FENCED_INSTANCE_ID, old_id))
        member.answer_sync(SyncAnswer(ErrorCode.FENCED_INSTANCE_ID))
        # Keep the order of members.
        self.members = {
            member_id if one == old_id else one: found for one, found in self.members.items()
        }
        member.member_id = self.static_members[instance_id] = member_id
        if self.leader == old_id:
            self.leader = member_id
        if old_id in self.pending_syncs:
            self.pending_syncs = self.pending_syncs - {old_id} | {member_id}
        return member

    def elect_joined_leader(self) -> bool:
        """Keep or elect a leader that has joined the rebalance; return False if no member has joined."""
        leader = self.members.get(self.leader or "")
        if leader is None or leader.awaiting_join is None:
            joined = (one for one in self.members.values() if one.awaiting_join is not None)
            found = next(joined, None)
            if found is None:
                return False
            self.leader = found.member_id
        return True

    def start_generation(self, now_ms: int) -> None:
        """Start the next generation with the current members."""
        self.generation = self.generation % (2**31 - 1) + 1
        self.protocol = self.selected_protocol() if self.members else None
        self.subscribed_topics = self._subscriptions()
        self.move_to(GroupState.COMPLETING if self.members else GroupState.EMPTY, now_ms)
        self.pending_syncs.clear()

    def _candidates(self) -> set[str]:
        """Return the protocols that all members support."""
        every = Counter(name for one in self.members.values() for name in dict(one.protocols))
        return {name for name, count in every.items() if count == len(self.members)}

    def _subscriptions(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER or (self.members and self.protocol is None):
            return None
        found = [_subscribed_topics(one.metadata(self.protocol)) for one in self.members.values()]
        known = [topics for topics in found if topics is not None]
        return frozenset().union(*known) if len(known) == len(found) else None
