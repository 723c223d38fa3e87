"""A real broker as the judge of our server: both get the same requests, and their answers are compared.

    with Judge(broker_address, server_address, seed=1, auto_create=False) as judge:
        for number in range(2000):
            judge.ask(number)
        judge.differences

An answer becomes plain values: ids become symbols, times become signs, records are decoded, and arrays whose
order means nothing are sorted. What one server takes and the other refuses leaves them with different logs
or groups: then the topic or group is given up, and others take its place.
"""

from __future__ import annotations

import base64
import itertools
import re
import socket
import struct
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from random import Random
from types import TracebackType
from typing import Any, NamedTuple, Self

from spark_kbatch.errors import KBatchError
from spark_kbatch.server import settings
from spark_kbatch.wire import protocol
from spark_kbatch.wire.codec import Structure
from spark_kbatch.wire.protocol import SUPPORTED, ApiKey
from tests.support.any_request import (
    OF_TRANSACTION,
    OF_TRANSACTIONS,
    Asked,
    Group,
    Ids,
    Requests,
    World,
)
from tests.support.reference import Record, decode_batches, split_batches
from tests.support.waiting import until

CLOSED, SILENT = "closed", "no answer"
ANSWERED_WITHIN_S = 30.0
HELD_AFTER_S = 0.4  # a JoinGroup or SyncGroup without an answer waits for other members
SETTLED_WITHIN_S = 10.0
TOPICS_AT_LEAST = 3
OPEN_S = 20.0  # for which a transaction is open, before its time-out could end it

# Each belongs to connections or groups of another kind.
_OF_TOPIC = 1  # the source of a setting
_SHARED_SETTINGS = {*settings._OPTIONS, *settings._FIXED_OF_TOPICS} - {"message.format.version"}
_INTERNAL = {
    "__client_transactions", "__commits", "__consumer_offsets", "__transaction_state",
}  # fmt: skip
NOT_ASKED = {
    ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.CONSUMER_GROUP_HEARTBEAT,
}  # fmt: skip
HELD = {ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP}
OF_GROUPS = {
    *HELD, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH,
    ApiKey.OFFSET_DELETE, ApiKey.DELETE_GROUPS, ApiKey.DESCRIBE_GROUPS, ApiKey.TXN_OFFSET_COMMIT,
}  # fmt: skip
CHANGES_TOPICS = {
    ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.METADATA,
    ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS,
}  # fmt: skip
_WITH_EPOCHS = {ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH}
CHANGES_LOGS = {ApiKey.PRODUCE, ApiKey.DELETE_RECORDS}


class Difference(NamedTuple):
    """A field in which two answers differ."""

    number: int
    api_key: ApiKey
    version: int
    path: str  # without the numbers of elements; empty for the answer as a whole
    broker: Any
    server: Any
    fields: Mapping[str, Any]  # of the request
    context: Mapping[str, Any]  # the scalars beside the field, in the broker's answer

    def __str__(self) -> str:
        where = f"#{self.number} {self.api_key.name} {self.version}: {self.path or 'the answer'}"
        return f"{where}: broker {self.broker!r}, server {self.server!r}; asked {self.fields!r}"


class Side:
    """One of the two servers, with the ids that it has given out."""

    def __init__(self, address: str) -> None:
        self.host, port = address.split(":")
        self.port = int(port)
        self.ids = Ids()
        self._socket: socket.socket | None = None

    def connect(self) -> socket.socket:
        """Return a connection of its own."""
        return socket.create_connection((self.host, self.port), ANSWERED_WITHIN_S)

    def exchange(self, frame: bytes, *, is_answered: bool = True) -> bytes | str:
        """Send a request on the connection of all others; return its answer, without its size."""
        if self._socket is None:
            self._socket = self.connect()
        probe = b"" if is_answered else _framed(struct.pack(">hhih", ApiKey.API_VERSIONS, 0, 0, -1))
        try:
            self._socket.sendall(frame + probe)
            answer = received(self._socket, ANSWERED_WITHIN_S)
        except ConnectionError:
            answer = CLOSED
        if answer in (CLOSED, SILENT):
            self.disconnect()
        return answer if is_answered or answer == CLOSED else SILENT

    def warm_up(self) -> None:
        """Wait until it coordinates groups and transactions, and gives out producer ids."""
        find = protocol.FindCoordinatorRequest(key="warm-up", key_type=0)
        find_other = protocol.FindCoordinatorRequest(key="warm-up", key_type=1)
        inits = [
            protocol.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
            for name in (None, "warm-up")
        ]
        beat = protocol.HeartbeatRequest(group_id="none", generation_id=0, member_id="")
        for asked, ready in (
            ((ApiKey.FIND_COORDINATOR, 3, find), 0), ((ApiKey.FIND_COORDINATOR, 3, find_other), 0),
            *(((ApiKey.INIT_PRODUCER_ID, 1, init), 0) for init in inits), ((ApiKey.HEARTBEAT, 0, beat), 25),
        ):  # fmt: skip
            until(lambda asked=asked, ready=ready: self.ask(*asked).error_code == ready)

    def ask(self, api_key: ApiKey, version: int, body: Any) -> Any:
        """Return the decoded answer to a request that this module needs for itself."""
        pieces = protocol.encode_request(api_key, version, 0, "judge", body)
        answer = self.exchange(_framed(b"".join(pieces)))
        assert isinstance(answer, bytes), (api_key, answer)
        return protocol.decode_response(api_key, version, memoryview(answer)).body

    def disconnect(self) -> None:
        """Close the connection; the next request opens another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def versions(self) -> dict[int, tuple[int, int]]:
        """Return the versions that it offers, by api key."""
        found = self.ask(ApiKey.API_VERSIONS, 0, protocol.ApiVersionsRequest()).api_keys
        return {one.api_key: (one.min_version, one.max_version) for one in found}

    def topics(self) -> dict[str, int]:
        """Return the counts of partitions of all topics that are ready; note their ids and epochs."""
        body = protocol.MetadataRequest(topics=None, allow_auto_topic_creation=False)
        found = {}
        for topic in self.ask(ApiKey.METADATA, 12, body).topics:
            if topic.error_code or any(one.error_code for one in topic.partitions):
                continue
            self.ids.topics[topic.name] = topic.topic_id
            if topic.name in _INTERNAL or topic.name == OF_TRANSACTIONS:
                continue
            found[topic.name] = len(topic.partitions)
            for one in topic.partitions:
                self.ids.epochs[topic.name, one.partition_index] = one.leader_epoch
        return found

    def end_of(self, topic: str, partition: int) -> int:
        """Return a partition's log end offset; -1 if it has none."""
        return self._offset_at(topic, partition, -1)

    def span_of(self, topic: str, partition: int) -> tuple[int, int]:
        """Return a partition's log start and log end offset."""
        return self._offset_at(topic, partition, -2), self._offset_at(topic, partition, -1)

    def state_of(self, group: str) -> str:
        """Return the state of a group."""
        body = protocol.DescribeGroupsRequest(groups=[group])
        return str(self.ask(ApiKey.DESCRIBE_GROUPS, 0, body).groups[0].group_state)

    def end_transaction(self, transactional_id: str, owner: tuple[str, int] | None) -> None:
        """Abort the open transaction of an id, if there is one."""
        if owner is not None:
            asked = protocol.EndTxnRequest(
                transactional_id=transactional_id, producer_id=self.ids.producers[owner[0]],
                producer_epoch=owner[1], committed=False,
            )  # fmt: skip
            self.ask(ApiKey.END_TXN, 3, asked)
        self.wait_for_end(transactional_id)

    def wait_for_end(self, transactional_id: str) -> None:
        """Wait until a transaction that is decided is ended."""
        asked = protocol.DescribeTransactionsRequest(transactional_ids=[transactional_id])

        def state() -> str:
            (found,) = self.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, asked).transaction_states
            return str(found.transaction_state)

        until(lambda: not state().startswith("Prepare"))

    def _offset_at(self, topic: str, partition: int, timestamp: int) -> int:
        request = protocol.ListOffsetsRequest
        part = request.ListOffsetsTopic.ListOffsetsPartition(
            partition_index=partition, timestamp=timestamp, current_leader_epoch=-1
        )
        topics = [request.ListOffsetsTopic(name=topic, partitions=[part])]
        body = request(replica_id=-1, isolation_level=0, topics=topics)
        answer = self.ask(ApiKey.LIST_OFFSETS, 7, body)
        return int(answer.topics[0].partitions[0].offset)

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        state = protocol.DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=None)
        body = protocol.DeleteTopicsRequest(topics=[state], timeout_ms=30_000)
        self.ask(ApiKey.DELETE_TOPICS, 6, body)

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic, without an end to the age of its records."""
        topic = protocol.CreateTopicsRequest.CreatableTopic
        config = topic.CreatableTopicConfig(name="retention.ms", value="-1")
        asked = topic(
            name=name, num_partitions=partitions, replication_factor=1, assignments=[],
            configs=[config],
        )  # fmt: skip
        body = protocol.CreateTopicsRequest(topics=[asked], timeout_ms=30_000, validate_only=False)
        (answer,) = self.ask(ApiKey.CREATE_TOPICS, 5, body).topics
        assert answer.error_code == 0, answer


class _Pending(NamedTuple):
    """A request that waits for other members of its group."""

    asked: Asked
    group: str
    sockets: tuple[socket.socket, socket.socket]
    answers: list[bytes | str]


class Judge:
    """The two servers, what they should hold, and in what their answers differ."""

    def __init__(self, broker: str, server: str, *, seed: int) -> None:
        self.sides = self.broker, self.server = Side(broker), Side(server)
        self.world = World()
        self.differences: list[Difference] = []
        self.asked: dict[tuple[ApiKey, int], int] = {}  # how often, by kind and version
        self._requests, self._random = Requests(self.world, seed), Random(seed)
        self._pending: list[_Pending] = []
        self._opened = time.monotonic()  # before any transaction that is open
        self._turn: list[tuple[ApiKey, int]] = []
        self._kinds = [
            (ApiKey(key), version)
            for key, (first, last) in sorted(self._offered().items())
            for version in range(first, last + 1)
            if key not in NOT_ASKED and not (key == ApiKey.PRODUCE and version < 3)
        ]

    def _offered(self) -> dict[int, tuple[int, int]]:
        broker, server = (side.versions() for side in self.sides)
        return {
            key: (max(broker[key][0], first), min(broker[key][1], last))
            for key, (first, last) in server.items()
            if key in broker and key in SUPPORTED
        }

    def __enter__(self) -> Self:
        for side in self.sides:
            side.warm_up()
            side.create_topic(OF_TRANSACTIONS, 2)
        self._refill()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.disconnect()

    def before_restart(self) -> None:
        """Give up groups in a rebalance, of which each server stores something else; end the open transaction."""
        self._end_transaction()
        for name, group in [*self.world.groups.items()]:
            if group.joining or any(
                side.state_of(name) not in ("Stable", "Empty", "Dead") for side in self.sides
            ):
                self.world.give_up_group(name)
        self.disconnect()

    def after_restart(self) -> None:
        """Wait until both serve again; give up logs of which one lacks something."""
        for side in self.sides:
            side.warm_up()
        self.settle()
        for name, count in [*self.world.topics.items()]:
            for number in range(count):
                starts, ends = zip(
                    *(side.span_of(name, number) for side in self.sides), strict=True
                )
                assert ends[0] == ends[1], (name, number, ends)
                # The broker may have lost where a log starts, and have its deleted records again.
                if starts[0] != starts[1]:
                    self._give_up(name)
                    break

    def disconnect(self) -> None:
        """Close all connections; no one waits any more."""
        for one in self._pending:
            self.world.give_up_group(one.group)
            for sock in one.sockets:
                sock.close()
        self._pending.clear()
        for side in self.sides:
            side.disconnect()

    def settle(self) -> None:
        """Wait until both have the same topics, as after a change or a restart; delete what only one has."""
        deadline = time.monotonic() + SETTLED_WITHIN_S
        while True:
            broker, server = (side.topics() for side in self.sides)
            if broker == server:
                break
            if time.monotonic() > deadline or (
                set(broker) == set(server) and time.monotonic() > deadline - SETTLED_WITHIN_S / 2
            ):
                for side, topics, others in (
                    (self.broker, broker, server), (self.server, server, broker)
                ):  # fmt: skip
                    for name in topics:
                        if topics[name] != others.get(name):
                            side.delete_topic(name)
                deadline = time.monotonic() + SETTLED_WITHIN_S
            time.sleep(0.02)
        for name, count in broker.items():
            if name not in self.world.topics:  # its leaders may not be ready yet
                for side, number in itertools.product(self.sides, range(count)):
                    until(lambda at=(name, number), side=side: side.end_of(*at) >= 0)
        for name in [*self.world.topics]:
            if self.world.topics[name] != broker.get(name):
                self.world.forget_topic(name)
        self.world.topics.update(broker)

    def _refill(self) -> None:
        self.settle()
        while len(self.world.topics) < TOPICS_AT_LEAST:
            name = f"topic-{self._random.getrandbits(32):08x}"
            for side in self.sides:
                side.create_topic(name, 2)
            self.settle()

    def _end_transaction(self) -> None:
        for side in self.sides:
            side.end_transaction(self.world.transactional_id, self.world.owner)
        self._opened = time.monotonic()

    def ask(self, number: int) -> None:
        """Send the next request to both, and compare the answers."""
        if time.monotonic() - self._opened > OPEN_S:
            self._end_transaction()
        if not self._turn:
            self._turn = self._random.sample(self._kinds, len(self._kinds))
        api_key, version = self._turn.pop()
        asked = self._requests.make(number, api_key, version)
        self.asked[api_key, version] = self.asked.get((api_key, version), 0) + 1
        if api_key in HELD:
            self._ask_held(asked)
        else:
            is_answered = (
                api_key is not ApiKey.PRODUCE or asked.fields(self.broker.ids)["acks"] != 0
            )
            if api_key in _WITH_EPOCHS:
                for side in self.sides:
                    side.topics()  # a broker's leader epochs go on rising for a while after a restart
            answers = []
            for side in self.sides:
                started = time.monotonic()
                answer = side.exchange(asked.frame_for(side.ids), is_answered=is_answered)
                answers.append((answer, time.monotonic() - started))
            self._compare(asked, *answers)
        self._look_at_pending()

    def _ask_held(self, asked: Asked) -> None:
        sockets = self.broker.connect(), self.server.connect()
        for side, sock in zip(self.sides, sockets, strict=True):
            sock.sendall(asked.frame_for(side.ids))
        group = asked.fields(self.broker.ids)["group_id"]
        one = _Pending(asked, group, sockets, [SILENT, SILENT])
        self._pending.append(one)
        self._receive(one, HELD_AFTER_S)

    def _receive(self, one: _Pending, patience_s: float) -> None:
        for at in (0, 1):
            if one.answers[at] == SILENT:
                # Once one has answered, so must the other.
                other = one.answers[1 - at] != SILENT
                one.answers[at] = received(one.sockets[at], 5.0 if other else patience_s)
        if one.answers[0] == SILENT and one.answers[1] != SILENT:
            one.answers[0] = received(one.sockets[0], 5.0)
        if one.answers != [SILENT, SILENT]:
            self._pending.remove(one)
            for sock in one.sockets:
                sock.close()
            self._compare(one.asked, (one.answers[0], 0), (one.answers[1], 0))

    def _look_at_pending(self) -> None:
        for one in [*self._pending]:
            self._receive(one, 0.005)

    def _compare(
        self, asked: Asked, broker: tuple[bytes | str, float], server: tuple[bytes | str, float]
    ) -> None:
        fields = asked.fields(self.broker.ids)
        plain, bodies = [], []
        for side, (answer, took_s) in zip(self.sides, (broker, server), strict=True):
            body, value = self._decoded(asked, side, answer)
            bodies.append(body)
            if asked.api_key is ApiKey.FETCH and isinstance(value, dict):
                value["waited"] = took_s > 0.3
            plain.append(value)
        found = [
            Difference(asked.number, asked.api_key, asked.version, path, one, other, fields, beside)
            for path, one, other, beside in differences("", plain[0], plain[1], {})
        ]
        self.differences += found
        self._note(asked, fields, bodies, bool(found))

    def _decoded(self, asked: Asked, side: Side, answer: bytes | str) -> tuple[Any, Any]:
        if isinstance(answer, str):
            return None, answer
        try:
            decoded = protocol.decode_response(asked.api_key, asked.version, memoryview(answer))
        except KBatchError as error:
            return None, f"not to be decoded: {error}"
        assert decoded.correlation_id == asked.number
        if asked.api_key is ApiKey.JOIN_GROUP and decoded.body.member_id:
            known = side.ids.members.values()
            if decoded.body.member_id not in known and decoded.body.error_code in (0, 79):
                side.ids.members[f"member-{asked.number}"] = decoded.body.member_id
        return decoded.body, Plain(side.ids).of(asked.api_key, decoded.body)

    # What both hold after an answer.

    def _note(
        self, asked: Asked, fields: Mapping[str, Any], bodies: list[Any], differs: bool
    ) -> None:
        key = asked.api_key
        if key in OF_GROUPS or key is ApiKey.LIST_GROUPS:
            self._note_group(asked, fields, bodies[0], differs)
        is_answered = bodies[0] is not None and not differs
        if key in OF_TRANSACTION or key is ApiKey.INIT_PRODUCER_ID:
            self._note_transaction(differs)
        if key is ApiKey.INIT_PRODUCER_ID and is_answered and not bodies[0].error_code:
            symbol = f"producer-{asked.number}"
            for side, body in zip(self.sides, bodies, strict=True):
                side.ids.producers[symbol] = body.producer_id
            if fields["transactional_id"] == self.world.transactional_id:
                self.world.owner = symbol, bodies[0].producer_epoch
            self.world.producers = [*self.world.producers, symbol][-3:]
        if key in CHANGES_LOGS:
            self._note_logs(asked, fields, differs)
        if key in CHANGES_TOPICS:
            self._refill()

    def _note_transaction(self, differs: bool) -> None:
        if differs:
            self._end_transaction()
            self.world.give_up_transactions()
            return
        for side in self.sides:
            side.wait_for_end(self.world.transactional_id)

    def _note_group(
        self, asked: Asked, fields: Mapping[str, Any], body: Any, differs: bool
    ) -> None:
        names = [fields.get("group_id"), *fields.get("groups_names", ()), *fields.get("groups", ())]
        for name in (one for one in names if isinstance(one, str)):
            if differs:
                self.world.give_up_group(name)
        if differs or body is None or "group_id" not in fields:
            return
        group = self.world.groups.setdefault(fields["group_id"], Group())
        ids = {member: symbol for symbol, member in self.broker.ids.members.items()}
        if asked.api_key is ApiKey.LEAVE_GROUP:
            leaving = [
                fields.get("member_id"),
                *(one["member_id"] for one in fields.get("members", ())),
            ]
            if group.joining & {ids.get(one) for one in leaving}:
                # The broker rebalances a group for it.
                self.world.give_up_group(fields["group_id"])
        if asked.api_key is ApiKey.JOIN_GROUP and body.error_code in (0, 79):
            symbol = ids.get(body.member_id)
            if symbol is not None and symbol not in group.members:
                group.members.append(symbol)
            if symbol is not None and body.error_code:
                group.joining.add(symbol)
            if body.error_code == 0:
                group.joining.discard(symbol or "")
                group.generation, group.protocol = body.generation_id, body.protocol_name

    def _note_logs(self, asked: Asked, fields: Mapping[str, Any], differs: bool) -> None:
        topics = fields["topic_data"] if asked.api_key is ApiKey.PRODUCE else fields["topics"]
        names = {topic_id: name for name, topic_id in self.broker.ids.topics.items()}
        topics = [{"name": names.get(topic.get("topic_id"), "none"), **topic} for topic in topics]
        for name in dict.fromkeys(topic["name"] for topic in topics):
            if name not in self.world.topics:
                continue
            for partition in range(self.world.topics[name]):
                ends = [side.end_of(name, partition) for side in self.sides]
                before = self.world.ends.get((name, partition), 0)
                if ends[0] != ends[1]:
                    assert differs or asked.api_key is ApiKey.PRODUCE, (asked.number, ends)
                    self._give_up(name)
                    break
                self.world.ends[name, partition] = ends[0]
                if ends[0] > before and asked.api_key is ApiKey.PRODUCE:
                    self._note_sequences(name, partition, topics)

    def _note_sequences(self, name: str, partition: int, topics: Any) -> None:
        by_id = {number: symbol for symbol, number in self.broker.ids.producers.items()}
        for topic in topics:
            for one in topic["partition_data"]:
                data = one["records"]
                if topic["name"] != name or one["index"] != partition or not data:
                    continue
                producer_id, _, sequence, count = struct.unpack_from(">qhii", data, 43)
                if producer_id in by_id:
                    self.world.sequences[name, partition, by_id[producer_id]] = sequence + count

    def _give_up(self, name: str) -> None:
        for side in self.sides:
            side.delete_topic(name)
        self._refill()


def received(sock: socket.socket, patience_s: float) -> bytes | str:
    """Return the next answer of a connection, without its size."""
    try:
        sock.settimeout(patience_s)
        start = sock.recv(1)
        if not start:
            return CLOSED
        sock.settimeout(ANSWERED_WITHIN_S)
        (size,) = struct.unpack(">i", start + _exactly(sock, 3))
        return _exactly(sock, size)
    except TimeoutError:
        return SILENT
    except ConnectionError:
        return CLOSED


def _exactly(sock: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        some = sock.recv(size - len(found))
        if not some:
            raise ConnectionError
        found += some
    return bytes(found)


def _framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


# Fields that say nothing about how a request was answered, or that must differ.
_LEFT_OUT = {
    "throttle_time_ms", "host", "port", "cluster_id", "documentation", "session_id",
    "coordinator_id", "log_dir", "total_bytes", "usable_bytes",
}  # fmt: skip
_NEW_MEMBER = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_GIVEN_OUT_FROM = 2**64  # of topic ids
_BROKER = 4  # a type of resources
_TIMES = {"log_append_time_ms", "transaction_start_time_ms"}
_TOPIC, _PARTITION = {"name", "topic"}, {"partition", "partition_index", "index"}


class Plain:
    """The conversion of one server's answers to plain values that can be compared."""

    def __init__(self, ids: Ids) -> None:
        self._members = {member: symbol for symbol, member in ids.members.items()}
        self._topics = {topic_id: name for name, topic_id in ids.topics.items()}
        self._epochs, self._names, self._numbers = ids.epochs, list[str](), list[int]()
        self._producers = {number: symbol for symbol, number in ids.producers.items()}

    def of(self, api_key: ApiKey, body: Any) -> Any:
        """Return a decoded answer as plain values."""
        value = self._value("", body)
        if api_key is ApiKey.API_VERSIONS:
            return {"error_code": value["error_code"]}
        return value

    def _value(self, name: str, value: Any) -> Any:
        if isinstance(value, Structure):
            return self._structure(value)
        if name == "records":
            return _records(value)
        if isinstance(value, (list, tuple)):
            elements = [self._value("", one) for one in value]
            return sorted(_merged(elements) if name == "responses" else elements, key=repr)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return base64.b64encode(value).decode()
        if isinstance(value, str):
            return self._members.get(value) or _NEW_MEMBER.sub("a new id", value)
        if isinstance(value, uuid.UUID):
            is_named = value.int < _GIVEN_OUT_FROM  # by the client alone
            return self._topics.get(value, str(value) if is_named else "a new id")
        if name == "leader_epoch" and value >= 0 and self._names and self._numbers:
            # Of another generation of leaders on each side.
            return f"now {value - self._epochs.get((self._names[-1], self._numbers[-1]), 0):+d}"
        if name in _TIMES:
            return value if value < 0 else "a time"
        return value

    def _structure(self, body: Structure) -> dict[str, Any]:
        names = [one.name for one in body.FIELDS]
        by_id = self._value("", getattr(body, "topic_id", None)) or ""
        for name in (one for one in names if one in _TOPIC):
            setattr(body, name, getattr(body, name) or by_id)  # it may be known by its id alone
        for key, stack in ((_TOPIC, self._names), (_PARTITION, self._numbers)):
            stack += [getattr(body, name) for name in names if name in key]
        made = {
            name: self._value(name, getattr(body, name)) for name in names if name not in _LEFT_OUT
        }
        for key, stack in ((_TOPIC, self._names), (_PARTITION, self._numbers)):
            del stack[len(stack) - sum(name in key for name in names) :]
        if made.get("error_code") or made.get("error_message") in ("", "NONE"):
            made["error_message"] = None  # each has words of its own
        if made.get("batch_index_error_message"):
            made["batch_index_error_message"] = "some words"
        if isinstance(made.get("configs"), list):
            is_broker = made.get("resource_type") == _BROKER
            made["configs"] = [] if is_broker else _shared(made["configs"])
        if made.get("producer_id", -1) >= 0:
            made["producer_id"] = self._producers.get(made["producer_id"], "an id")
        return made


def _merged(topics: list[Any]) -> list[Any]:
    """Put together what an answer says of a topic in several places: a broker names those in error apart."""
    found: dict[Any, Any] = {}
    for one in topics:
        key = one.get("topic") if isinstance(one, dict) and "partitions" in one else None
        if key is None or key not in found:
            found[key or len(found)] = one
        else:
            both = [*found[key]["partitions"], *one["partitions"]]
            found[key] = {**found[key], "partitions": sorted(both, key=repr)}
    return list(found.values())


def _shared(configs: list[Any]) -> list[Any]:
    """Return the settings of a topic that both servers have, with what is said of the topic's own values."""
    found = []
    for one in configs:
        if one["name"] in _SHARED_SETTINGS:
            is_its_own = one["config_source"] == _OF_TOPIC
            of_topic = [each for each in one.get("synonyms", ()) if each["source"] == _OF_TOPIC]
            found.append({**one, "config_source": is_its_own, "synonyms": of_topic})
    return found


def _records(data: Any) -> Any:
    """Return the records of the whole batches that a Fetch has; a broker may cut the last one off."""
    if not data:
        return []
    data = bytes(data)
    whole = 0
    while whole + 12 <= len(data):
        (length,) = struct.unpack_from(">i", data, whole + 8)
        if whole + 12 + length > len(data):
            break
        whole += 12 + length
    found = []
    for batch in split_batches(data[:whole]):
        records: list[Record] = decode_batches(batch, strict=False)
        found.append(
            (struct.unpack_from(">q", batch)[0], [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in records])
        )  # fmt: skip
    return found


def differences(
    path: str, broker: Any, server: Any, beside: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any, Mapping[str, Any]]]:
    """Yield the fields in which two plain answers differ: path, both values, the scalars beside it."""
    if isinstance(broker, dict) and isinstance(server, dict):
        if broker.get("error_code") != server.get("error_code"):  # the rest follows from it
            broker, server = (
                {"error_code": one.get("error_code")} | _named(one) for one in (broker, server)
            )
        scalars = {key: one for key, one in broker.items() if not isinstance(one, (dict, list))}
        for key in dict.fromkeys((*broker, *server)):
            inner = f"{path}.{key}" if path else key
            yield from differences(inner, broker.get(key), server.get(key), {**beside, **scalars})
    elif isinstance(broker, list) and isinstance(server, list) and _are_structures(broker, server):
        yield from _of_lists(path, broker, server, beside)
    elif broker != server:
        yield path, broker, server, beside


def _named(one: Mapping[str, Any]) -> dict[str, Any]:
    return {key: one[key] for key in _KEYS if key in one and key not in ("topic_id", "producer_id")}


def _are_structures(*lists: list[Any]) -> bool:
    return all(isinstance(one, dict) for each in lists for one in each)


_KEYS = (
    "name", "topic", "partition_index", "partition", "index", "group_id", "member_id", "key",
    "resource_name", "resource_type", "broker_id", "source", "batch_index", "producer_id", "topic_id",
)  # fmt: skip


def _of_lists(
    path: str, broker: list[Any], server: list[Any], beside: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any, Mapping[str, Any]]]:
    def key_of(one: Mapping[str, Any]) -> str:
        keys = _KEYS if one.get("name") is None else _KEYS[:-1]  # an id may be new
        return repr([one.get(name) for name in keys])

    ones, others = _by_key(broker, key_of), _by_key(server, key_of)
    for key in dict.fromkeys((*ones, *others)):
        yield from differences(path, ones.get(key), others.get(key), beside)


def _by_key(found: list[Any], key_of: Callable[[Any], str]) -> dict[tuple[str, int], Any]:
    made: dict[tuple[str, int], Any] = {}
    for one in found:
        key, number = key_of(one), 0
        while (key, number) in made:
            number += 1
        made[key, number] = one
    return made
