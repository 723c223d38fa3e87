"""Members of groups and their coordinator, with a clock that tests set.

    groups = Coordinated(cluster)
    a = groups.join(version=9)              # asks for an id, and joins with it
    groups.finish([a])                      # it syncs, and is assigned its own name
    groups.advance(10_000)
    groups.restart()

All requests and answers are encoded and decoded in their version.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spark_kbatch import Cluster
from spark_kbatch.cluster.offsets_store import OffsetsStore
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.server import GroupConfig
from spark_kbatch.server.groups.coordinator import GroupCoordinator
from spark_kbatch.server.requests import Handler, Received
from spark_kbatch.server.unwritten_batches import UnwrittenBatches
from spark_kbatch.wire import protocol
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import ApiKey
from tests.support import builders
from tests.support.store import store_of

NOW = builders.FIRST_TIMESTAMP_MS
LOCAL = ("127.0.0.1", 9092)
OK = ErrorCode.NONE
# A text that is sent as so many bytes of no UTF-8: each is read as U+FFFD, so it is too long to be stored.
UNSTORABLE = "?" * 20_000


def subscribed_to(*topics: str) -> bytes:
    """Return a consumer's subscription."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">ii", -1, 0)


def latest(api_key: ApiKey) -> int:
    """Return the highest version that is offered."""
    return protocol.SUPPORTED[api_key].last


def versions(api_key: ApiKey) -> range:
    """Return all versions that are offered."""
    offered = protocol.SUPPORTED[api_key]
    return range(offered.first, offered.last + 1)


class Asked:
    """A request and, once it is answered, its answer."""

    def __init__(self, api_key: ApiKey, version: int) -> None:
        self._api_key, self._version = api_key, version
        self._bodies: list[Any] = []

    def respond(self, body: Any) -> None:
        frame = b"".join(protocol.encode_response(self._api_key, self._version, 7, body))
        answered = protocol.decode_response(self._api_key, self._version, memoryview(frame))
        assert answered.correlation_id == 7
        self._bodies.append(answered.body)

    @property
    def is_answered(self) -> bool:
        return bool(self._bodies)

    @property
    def answer(self) -> Any:
        (body,) = self._bodies
        return body

    @property
    def error(self) -> ErrorCode:
        return ErrorCode(self.answer.error_code)


@dataclass(eq=False)
class Client:
    """A client that joins a group, with what it knows of the group."""

    groups: Coordinated = field(repr=False)
    group: str = "g"
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None
    client_id: str = "client"
    version: int | None = None  # of JoinGroup
    protocols: Sequence[tuple[str, bytes]] = (("range", subscribed_to("events")),)
    protocol_type: str = "consumer"
    session_timeout_ms: int = 10_000
    rebalance_timeout_ms: int = 60_000
    joined: Asked | None = None
    synced: Asked | None = None

    def ask_to_join(self) -> Asked:
        """Send a JoinGroup."""
        protocol_of = protocol.JoinGroupRequest.JoinGroupRequestProtocol
        self.joined = self.groups.ask(
            ApiKey.JOIN_GROUP,
            self.version,
            client_id=self.client_id,
            group_id=self.group,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            protocol_type=self.protocol_type,
            protocols=[protocol_of(name=name, metadata=data) for name, data in self.protocols],
        )
        self.note()
        return self.joined

    def join(self) -> Client:
        """Join as a client does, until its JoinGroup is held or answered."""
        if self.ask_to_join().is_answered and self.joined.error is ErrorCode.MEMBER_ID_REQUIRED:  # type: ignore[union-attr]
            self.ask_to_join()
        return self

    def note(self) -> None:
        """Take over the answer to its JoinGroup."""
        if self.joined is not None and self.joined.is_answered:
            answer = self.joined.answer
            if answer.error_code in (OK, ErrorCode.MEMBER_ID_REQUIRED):
                self.member_id, self.generation = answer.member_id, answer.generation_id

    @property
    def leads(self) -> bool:
        assert self.joined is not None
        return bool(self.joined.answer.leader == self.member_id)

    def sync(
        self,
        assignments: Mapping[str, bytes] | None = None,
        version: int | None = None,
        **given: Any,
    ) -> Asked:
        """Send a SyncGroup; a leader sends `assignments`, by member id."""
        self.note()
        one_of = protocol.SyncGroupRequest.SyncGroupRequestAssignment
        joined = self.joined is not None and self.joined.is_answered and self.joined.answer
        fields = {
            "protocol_type": self.protocol_type,
            "protocol_name": (joined and joined.protocol_name) or self.protocols[0][0],
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
            "assignments": [
                one_of(member_id=one, assignment=data) for one, data in (assignments or {}).items()
            ],
        }
        self.synced = self.groups.ask(ApiKey.SYNC_GROUP, version, **fields | given)
        return self.synced

    def heartbeat(self, version: int | None = None) -> ErrorCode:
        """Send a Heartbeat."""
        self.note()
        return self.groups.ask(
            ApiKey.HEARTBEAT,
            version,
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        ).error

    def leave(self) -> ErrorCode:
        """Send a LeaveGroup."""
        member = protocol.LeaveGroupRequest.MemberIdentity
        asked = self.groups.ask(
            ApiKey.LEAVE_GROUP,
            group_id=self.group,
            members=[member(member_id=self.member_id, group_instance_id=self.instance_id)],
        )
        return ErrorCode(asked.answer.error_code or asked.answer.members[0].error_code)

    def commit(
        self, offsets: Mapping[tuple[str, int], Any], version: int | None = None, **given: Any
    ) -> dict[TopicPartition, ErrorCode]:
        """Send an OffsetCommit as a member."""
        known = {
            "group": self.group,
            "member_id": self.member_id,
            "generation_id_or_member_epoch": self.generation,
            "group_instance_id": self.instance_id,
        }
        return self.groups.commit(offsets, version, **known | given)


class Coordinated:
    """The coordinator of a cluster's groups, and its clock."""

    def __init__(self, backend: Cluster | FolderParts, **config: Any) -> None:
        self.backend = store_of(backend) if isinstance(backend, Cluster) else backend
        self.config = GroupConfig(**{"group_initial_rebalance_delay_ms": 0} | config)
        self.ms = 0  # since the test started
        self.clients: list[Client] = []
        self.restart()

    def restart(self) -> None:
        """Replace the coordinator with a new one, which loads the log. Held requests lose their connection."""
        self.store = OffsetsStore(self.backend, monotonic_ms=lambda: self.ms)
        self.coordinator = GroupCoordinator(
            self.store,
            now_ms=lambda: NOW + self.ms,
            monotonic_ms=lambda: self.ms,
            config=self.config,
        )
        self.coordinator.tick()

    def advance(self, ms: int, step_ms: int = 100) -> None:
        """Let time pass."""
        until = self.ms + ms
        while self.ms < until:
            self.ms = min(self.ms + step_ms, until)
            self.coordinator.tick()
        for client in self.clients:
            client.note()

    def ask(
        self, api_key: ApiKey, version: int | None = None, client_id: str = "client", **fields: Any
    ) -> Asked:
        """Send a request; fields that it does not have are left out."""
        version = latest(api_key) if version is None else version
        kind = protocol.request_class(api_key)
        has = {one.name for one in kind.FIELDS}
        body = kind(**{name: value for name, value in fields.items() if name in has})
        frame = b"".join(protocol.encode_request(api_key, version, 7, client_id, body))
        frame = frame.replace(UNSTORABLE.encode(), b"\xff" * len(UNSTORABLE))
        request = protocol.decode_request(memoryview(frame))
        asked = Asked(api_key, version)
        received = Received(
            api_key, version, client_id, "127.0.0.1", LOCAL, UnwrittenBatches(), request.body
        )
        self.handler(api_key)(received, asked.respond)
        return asked

    def handler(self, api_key: ApiKey) -> Handler:
        """Return the handler of a kind of request."""
        found: Handler = getattr(self.coordinator, api_key.name.lower())
        return found

    def client(self, **fields: Any) -> Client:
        """Return a client that has not joined."""
        client = Client(self, **fields)
        self.clients.append(client)
        return client

    def join(self, **fields: Any) -> Client:
        """Return a client whose JoinGroup is held or answered."""
        return self.client(**fields).join()

    def stable(self, *clients: Client) -> None:
        """Let all of these clients join and sync."""
        for client in clients:
            client.join()
        self.finish(clients)

    def finish(self, clients: Iterable[Client]) -> None:
        """Let clients whose JoinGroups were answered sync; each is assigned its own name."""
        some = list(clients)
        for client in some:
            client.note()
            assert client.joined is not None
            assert client.joined.error is OK
        leaders = [client for client in some if client.leads]
        for client in [*(one for one in some if not one.leads), *leaders]:
            shares = {one.member_id: one.member_id.encode() for one in some}
            client.sync(shares if client.leads else None)
        assert all(one.synced is not None and one.synced.error is OK for one in some)

    def commit(
        self, offsets: Mapping[tuple[str, int], Any], version: int | None = None, **given: Any
    ) -> dict[TopicPartition, ErrorCode]:
        """Send an OffsetCommit of offsets, or of (offset, metadata); by default not as a member."""
        topic_of = protocol.OffsetCommitRequest.OffsetCommitRequestTopic
        topics: dict[str, list[Any]] = {}
        for (topic, partition), value in offsets.items():
            offset, metadata = value if isinstance(value, tuple) else (value, "")
            topics.setdefault(topic, []).append(
                topic_of.OffsetCommitRequestPartition(
                    partition_index=partition,
                    committed_offset=offset,
                    committed_leader_epoch=3,
                    committed_metadata=metadata,
                )
            )
        fields: dict[str, Any] = {
            "group_id": given.pop("group", "g"),
            "topics": [topic_of(name=name, partitions=some) for name, some in topics.items()],
        }
        answer = self.ask(ApiKey.OFFSET_COMMIT, version, **fields | given).answer
        return {
            TopicPartition(topic.name, one.partition_index): ErrorCode(one.error_code)
            for topic in answer.topics
            for one in topic.partitions
        }

    def fetch(
        self,
        partitions: Iterable[tuple[str, int]] | None = None,
        version: int | None = None,
        group: str = "g",
    ) -> dict[TopicPartition, tuple[int, int, str]]:
        """Send an OffsetFetch; return offset, leader epoch and metadata of each partition."""
        version = latest(ApiKey.OFFSET_FETCH) if version is None else version
        topics: dict[str, list[int]] = {}
        for topic, partition in partitions or ():
            topics.setdefault(topic, []).append(partition)
        request = protocol.OffsetFetchRequest
        one_of: Any = request.OffsetFetchRequestGroup.OffsetFetchRequestTopics
        if version < 8:
            one_of = request.OffsetFetchRequestTopic
        wanted = [one_of(name=name, partition_indexes=some) for name, some in topics.items()]
        all_or_wanted = None if partitions is None else wanted
        groups = [request.OffsetFetchRequestGroup(group_id=group, topics=all_or_wanted)]
        answer = self.ask(
            ApiKey.OFFSET_FETCH, version, group_id=group, topics=all_or_wanted, groups=groups
        ).answer
        found = answer if version < 8 else answer.groups[0]
        assert found.error_code == OK
        return {
            TopicPartition(topic.name, one.partition_index): (
                one.committed_offset, one.committed_leader_epoch, one.metadata,
            )
            for topic in found.topics
            for one in topic.partitions
        }  # fmt: skip

    def state(self, group: str = "g") -> str:
        """Return the group's state, as DescribeGroups shows it."""
        return str(self.describe(group).group_state)

    def describe(self, group: str = "g", version: int | None = None) -> Any:
        """Return a group as DescribeGroups shows it."""
        (found,) = self.ask(ApiKey.DESCRIBE_GROUPS, version, groups=[group]).answer.groups
        return found

    def delete_group(self, group: str = "g") -> ErrorCode:
        """Send a DeleteGroups."""
        (result,) = self.ask(ApiKey.DELETE_GROUPS, groups_names=[group]).answer.results
        return ErrorCode(result.error_code)
