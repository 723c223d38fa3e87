"""Random requests of any kind and version, made from the protocol's schemas, with a bias to sensible values.

    requests = Requests(world)
    asked = requests.make(number, ApiKey.PRODUCE, 9)    # the same for both servers, but for
    frame = asked.frame_for(side)                       # the ids that each of them has given out

Most requests are ones that a client could send: they name topics, groups and members that exist, and offsets
in their logs. In the others each field may have a value at a border, or one that no client sends.
"""

from __future__ import annotations

import functools
import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from spark_kbatch.wire.codec import Field, Structure
from spark_kbatch.wire.protocol import SUPPORTED, ApiKey, encode_request, request_class
from tests.support.reference import Record, encode_batch

INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
BASE_TIME = 1_700_000_000_000
FAR_AHEAD = 4_000_000_000_000_000  # milliseconds that are microseconds
LONG_MS = 1_700_000  # time-outs that do not end while the requests are sent

OF_TRANSACTIONS = "tx-topic"  # alone has markers, which come a moment after an answer
BAD_TOPICS = ("", ".", "..", "a b", "é", "x" * 250, "__consumer_offsets")
TOPIC_SETTINGS = (
    ("retention.ms", "1000000000000"), ("retention.ms", "-1"), ("cleanup.policy", "delete"),
    ("max.message.bytes", "1048588"), ("max.message.bytes", "500"), ("segment.bytes", "1048576"),
    ("min.insync.replicas", "1"), ("compression.type", "producer"), ("preallocate", "false"),
    ("message.timestamp.after.max.ms", "3600000"), ("unclean.leader.election.enable", "false"),
)  # fmt: skip
BAD_SETTINGS = (
    ("retention.ms", "soon"), ("retention.ms", "-2"), ("retention.ms", ""), ("max.message.bytes", "-1"),
    ("segment.bytes", "1"), ("no.such.key", "1"), ("", "1"), ("compression.type", "rar"),
    ("min.insync.replicas", "0"), ("cleanup.policy", ""), ("cleanup.policy", "compact"),
    ("message.timestamp.type", "NoTime"), ("index.interval.bytes", "-1"),
)  # fmt: skip


@dataclass
class Group:
    """A group of consumers, as both servers should have it."""

    members: list[str] = field(default_factory=list)  # symbols, see `Ids`
    joining: set[str] = field(
        default_factory=set
    )  # those of them that have an id, and did not join yet
    generation: int = -1
    protocol: str | None = None
    leader: str = ""


@dataclass
class World:
    """The topics, groups and producers that both servers should have by now."""

    topics: dict[str, int] = field(default_factory=dict)  # counts of partitions, by name
    ends: dict[tuple[str, int], int] = field(default_factory=dict)  # of logs
    groups: dict[str, Group] = field(default_factory=dict)
    given_up: dict[str, int] = field(
        default_factory=dict
    )  # how many groups, by the name of the first
    sequences: dict[tuple[str, int, str], int] = field(default_factory=dict)
    producers: list[str] = field(default_factory=list)  # symbols
    transactional_id: str = "tx"
    owner: tuple[str, int] | None = None  # who has that id: a producer's symbol, and its epoch

    def give_up_transactions(self) -> None:
        """Let requests name another transactional id in place of this one."""
        self.transactional_id, self.owner = self.transactional_id + "+", None

    def give_up_group(self, name: str) -> None:
        """Let requests name another group in place of this one."""
        self.groups.pop(name, None)
        first = name.rstrip("+")
        self.given_up[first] = len(name) - len(first) + 1

    def forget_topic(self, name: str) -> None:
        """Take a topic for one that does not exist."""
        self.topics.pop(name, None)
        self.ends = {key: end for key, end in self.ends.items() if key[0] != name}
        self.sequences = {key: n for key, n in self.sequences.items() if key[0] != name}


class Ids:
    """The ids that one server has given out, by symbols that are the same for both."""

    def __init__(self) -> None:
        self.topics: dict[str, uuid.UUID] = {}
        self.members: dict[str, str] = {}
        self.producers: dict[str, int] = {}
        self.epochs: dict[tuple[str, int], int] = {}  # of leaders


class Asked(NamedTuple):
    """A request, before it is sent to a server."""

    number: int
    api_key: ApiKey
    version: int
    fields: Callable[[Ids], dict[str, Any]]
    client_id: bytes
    tail: bytes  # after the body
    cut: int  # bytes that are missing at the end

    def frame_for(self, ids: Ids) -> bytes:
        """Return the request, framed, with a server's own ids."""
        version = min(self.version, SUPPORTED[self.api_key].last)
        body = _object(request_class(self.api_key), self.fields(ids))
        encoded = b"".join(encode_request(self.api_key, version, self.number, "", body))
        head = struct.pack(">hhih", self.api_key, self.version, self.number, len(self.client_id))
        frame = head + self.client_id + encoded[len(head) :] + self.tail
        frame = frame[: len(frame) - self.cut]
        return struct.pack(">i", len(frame)) + frame


def _object(kind: type[Structure], values: dict[str, Any]) -> Structure:
    made = dict(values)
    for one in kind.FIELDS:
        if one.structure is not None and made.get(one.name) is not None:
            value, make = made[one.name], functools.partial(_object, one.structure)
            made[one.name] = [*map(make, value)] if one.is_array else make(value)
    return kind(**made)


class Requests:
    """A source of random requests about one world."""

    def __init__(self, world: World, seed: int) -> None:
        self._world, self._seed = world, seed

    def make(self, number: int, api_key: ApiKey, version: int) -> Asked:
        """Return a request; the same seed, number and world make the same one."""
        random = Random(f"{self._seed}/{number}")
        is_wild = random.random() < 0.35
        client_id = random.choice((b"judge", b"judge", b"", "jüdge".encode("latin-1")))
        damage = random.random()
        seed = random.getrandbits(64)

        def fields(ids: Ids) -> dict[str, Any]:
            making = _Making(self._world, ids, api_key, version, Random(seed), number, is_wild)
            return making.fields()

        cut = random.choice((1, 2, 5)) if damage > 0.99 else 0
        tail = b"\7" * 3 if damage < 0.01 else b""
        return Asked(number, api_key, version, fields, client_id, tail, cut)


class _Making:
    """The making of one request: values by the names of fields."""

    def __init__(
        self, world: World, ids: Ids, api_key: ApiKey, version: int, random: Random, number: int,
        is_wild: bool,
    ) -> None:  # fmt: skip
        self.world, self.ids, self.key, self.version = world, ids, api_key, version
        self.random, self.number, self.is_wild = random, number, is_wild
        self.last: dict[str, Any] = {}  # the values chosen last, by field
        self.path: list[str] = []  # names of the structures around a field
        # Few groups at a time, so that requests meet.
        group = f"g{number // 300}-{random.choice((0, 0, 0, 1, 1, 2))}"
        if api_key in _NAMES_GROUPS_OF_TRANSACTIONS or (
            api_key in _MAY_NAME_GROUPS_OF_TRANSACTIONS and random.random() < 0.4
        ):
            group = f"tx-{number // 300}"
        self.group = group + "+" * world.given_up.get(group, 0)

    def fields(self) -> dict[str, Any]:
        return self._structure(request_class(self.key))

    def _structure(self, kind: type[Structure]) -> dict[str, Any]:
        values = {}
        for one in kind.FIELDS:
            if self.version in one.versions:
                values[one.name] = self.last[one.name] = self._value(one)
        return values

    def _is_nullable(self, one: Field) -> bool:
        return one.nullable is not None and self.version in one.nullable

    def _value(self, one: Field) -> Any:
        if one.is_array:
            if self._is_nullable(one) and self._is_null(one.name):
                return None
            return self._without_repetition(
                [self._element(one) for _ in range(self._count(one.name))]
            )
        return self._element(one)

    def _without_repetition(self, elements: list[Any]) -> list[Any]:
        """Leave out most elements that are named twice."""
        found: dict[str, Any] = {}
        for one in elements:
            name = repr(_name_of(one))
            if name in found and self.is_wild and self.random.random() < 0.1:
                name += " again"
            found.setdefault(name, one)
        return list(found.values())

    def _is_null(self, name: str) -> bool:
        return self.random.random() < (0.8 if name == "assignments" else 0.3)

    def _count(self, name: str) -> int:
        if name in ("assignments", "forgotten_topics_data") and self.key is not ApiKey.SYNC_GROUP:
            return self.pick((0,), (1, 2))
        if name in ("states_filter", "state_filters", "producer_id_filters", "configs"):
            return self.random.choice((0, 1, 1, 2))
        return self.pick((1, 1, 2), (0, 1, 2, 3))

    def _element(self, one: Field) -> Any:
        if one.structure is not None:
            self.path.append(one.name)
            values = self._structure(one.structure)
            self.path.pop()
            return values
        choose = getattr(self, f"of_{one.name}", None)
        if choose is None:
            raise LookupError(f"no values for {self.key.name}.{one.name}")
        value = choose()
        if value is None and not one.is_array and not self._is_nullable(one):
            # A UUID of zeros is none.
            return None if one.kind == "uuid" else ""
        return value

    def pick(self, sensible: Any, odd: Any) -> Any:
        """Choose one of the sensible values, or in a wild request perhaps an odd one."""
        if self.is_wild and self.random.random() < 0.4:
            return self.random.choice(odd)
        return self.random.choice(sensible)

    # Topics.

    def _a_topic(self) -> str:
        existing = sorted(self.world.topics) or ["none"]
        return str(self.pick(existing, ("none", f"new-{self.number}", *BAD_TOPICS)))

    def of_name(self) -> Any:
        if self.path[-1] == "protocols":
            return self.pick(("range", "roundrobin"), ("", "r" * 300))
        if self.path[-1] == "configs":
            self.last["setting"] = self.pick(TOPIC_SETTINGS, BAD_SETTINGS)
            return self.last["setting"][0]
        if self.key is ApiKey.CREATE_TOPICS:
            recent = self.number // 100
            fresh = (f"t{self.number}", f"t{self.number}", f"c.{recent}", f"c_{recent}")
            return self.pick(fresh, (*sorted(self.world.topics), *BAD_TOPICS[:-1], "__mine"))
        if self.key is ApiKey.DELETE_TOPICS:
            self.last["by_id"] = self.random.random() < 0.3
            return None if self.last["by_id"] else self._a_deletable()
        if self.key is ApiKey.METADATA and self.last.get("has_id"):
            return None
        if self.key is ApiKey.CREATE_PARTITIONS:
            return self._a_deletable()
        if self.key is ApiKey.ADD_PARTITIONS_TO_TXN:
            return self.pick((OF_TRANSACTIONS,), ("none", *BAD_TOPICS[:-1]))
        return self._a_topic()

    def of_value(self) -> str | None:
        return self.pick((self.last["setting"][1],), (None, self.last["setting"][1]))  # type: ignore[no-any-return]

    def of_count(self) -> int:
        now = self.world.topics.get(str(self.last["name"]), 1)
        # Of 100,001 a broker makes all, one after the other.
        return int(self.pick((now + 1,), (now, 0, -1, INT32_MAX)))

    def _a_deletable(self) -> str:
        existing = sorted(self.world.topics) or ["none"]
        return str(self.pick(existing[-3:], ("none", *BAD_TOPICS[:-1])))

    def of_topic_names(self) -> str:
        return self._a_deletable()

    def of_topic(self) -> str:
        return self._a_topic()

    def of_topic_id(self) -> uuid.UUID | None:
        if self.key in (ApiKey.PRODUCE, ApiKey.FETCH):
            name = self.last["topic"] = self._a_topic()
            unknown = self.pick((uuid.UUID(int=9),), (uuid.UUID(int=9), None))
            return self.ids.topics[name] if name in self.world.topics else unknown
        known = [self.ids.topics[name] for name in sorted(self.world.topics)] or [uuid.UUID(int=9)]
        if self.key is ApiKey.METADATA:  # the id comes first
            has_id = self.random.random() < 0.3
            self.last["has_id"] = has_id
            at = self.random.randrange(len(known))
            return self.pick((known[at],), (uuid.UUID(int=9), None)) if has_id else None
        at = self.random.randrange(len(known[-3:]))
        if self.last.get("by_id"):
            return self.pick((known[-3:][at],), (uuid.UUID(int=9), None))
        return self.pick((None,), (None, uuid.UUID(int=9)))

    def of_partition_index(self) -> int:
        count = self.world.topics.get(str(self._topic_now()), 1)
        return int(self.pick(range(count), (-1, count, INT32_MAX, -(2**31))))

    of_partition = of_index = of_partitions = of_partition_indexes = of_partition_index

    def _topic_now(self) -> Any:
        return self.last.get("topic", self.last.get("name"))

    def _end(self) -> int:
        for name in ("partition_index", "partition", "index"):
            if name in self.last:
                return self.world.ends.get((str(self._topic_now()), self.last[name]), 0)
        return 0

    def of_offset(self) -> int:
        end = self._end()
        return int(self.pick((0, 0, end // 2, end), (-1, -2, end + 1, INT64_MAX, -(2**63))))

    of_fetch_offset = of_committed_offset = of_offset

    def of_current_leader_epoch(self) -> int:
        for name in ("partition_index", "partition"):
            if name in self.last:
                at = (str(self._topic_now()), self.last[name])
                now = self.ids.epochs.get(at, 0)
                self.last["epoch_now"] = now
                return int(self.pick((-1, now), (now + 1, -2, INT32_MAX)))
        return -1

    def of_leader_epoch(self) -> int:
        now = self.last["epoch_now"]
        return int(self.pick((now,), (now + 1, now + 100, -1, -2, INT32_MAX)))

    def of_last_fetched_epoch(self) -> int:
        now = self.last["epoch_now"]
        return int(self.pick((-1,), (now, now + 1, -2)))

    def of_timestamp(self) -> int:
        some = (-1, -2, -3, BASE_TIME, BASE_TIME + 3, BASE_TIME + 10**9)
        return int(self.pick(some, (-4, -5, -6, -7, 0, INT64_MAX, -(2**63))))

    # Produce and Fetch.

    def of_records(self) -> bytes | None:
        random = self.random
        topic, partition = str(self._topic_now()), self.last["index"]
        n = random.choice((1, 2, 5))
        records = [
            Record(i, BASE_TIME + i, b"k", b"v" * random.choice((1, 40)), (("h", None),) * (i % 2))
            for i in range(n)
        ]
        codec, numbers = random.choice((0, 0, 1, 2, 3, 4)), {}
        if self.world.producers and random.random() < 0.4:
            name = random.choice(self.world.producers)
            at = (topic, partition, name)
            following = self.world.sequences.get(at, 0)
            numbers = {
                "producer_id": self.ids.producers[name],
                "producer_epoch": self.pick((0,), (1, -1)),
                "base_sequence": self.pick(
                    (following,), (following + 1, max(following - 1, 0), -1)
                ),
            }
            self.last["producer"] = name
        fault = self.pick((None,), _FAULTS)
        if fault == "far ahead":
            records[-1] = records[-1]._replace(timestamp=FAR_AHEAD)
        if fault == "no time":
            records = [one._replace(timestamp=-1) for one in records]
        if fault == "large":
            records[0] = records[0]._replace(value=random.randbytes(700))
        batch = encode_batch(
            records, codec=codec, base_offset=0, attributes_extra=_ATTRIBUTES.get(fault or "", 0),
            **numbers,
        )  # fmt: skip
        match fault:
            case "empty":
                return b""
            case "crc":
                return batch[:-1] + bytes([batch[-1] ^ 1])
            case "magic 1":
                return batch[:16] + b"\1" + batch[17:]
            case "magic 3":
                return batch[:16] + b"\3" + batch[17:]
            case "two batches":
                return batch * 2
            case "cut":
                return batch[:-3]
            case "tail":
                return batch + b"\0\0\0"
            case "base offset":
                return struct.pack(">q", 5) + batch[8:]
            case "leader epoch":
                return batch[:12] + struct.pack(">i", 7) + batch[16:]
        return batch

    def of_transactional_id(self) -> str | None:
        known = self.world.transactional_id
        if self.key in OF_TRANSACTION:
            return self.pick((known,), ("none", ""))  # type: ignore[no-any-return]
        usual = (None, known) if self.key is ApiKey.INIT_PRODUCER_ID else (None,)
        return self.pick(usual, (None, None, "", known))  # type: ignore[no-any-return]

    of_v3_and_below_transactional_id = of_transactional_id

    def of_committed(self) -> bool:
        return self.random.random() < 0.6

    def of_acks(self) -> int:
        return int(self.pick((-1, 1), (0, 2, -2)))

    def of_timeout_ms(self) -> int:
        return int(self.pick((30_000,), (0, -1, INT32_MAX)))

    def of_replica_id(self) -> int:
        return int(self.pick((-1,), (-2, -3, 1, 5)))

    def of_replica_epoch(self) -> int:
        return int(self.pick((-1,), (0, 3)))

    def of_replica_directory_id(self) -> uuid.UUID | None:
        return self.pick((None,), (None, uuid.UUID(int=9)))  # type: ignore[no-any-return]

    def of_high_watermark(self) -> int:
        return int(self.pick((INT64_MAX,), (0, 3, -1)))

    def of_max_wait_ms(self) -> int:
        return int(self.random.choice((0, 0, 0, 400)))

    def of_min_bytes(self) -> int:
        return int(self.pick((0, 1, 1, 1_000_000), (-1, INT32_MAX)))

    def of_max_bytes(self) -> int:
        return int(self.pick((1 << 20,), (0, 1, 100, -1, INT32_MAX)))

    of_partition_max_bytes = of_max_bytes

    def of_isolation_level(self) -> int:
        return int(self.pick((0, 1), (2, -1)))

    def of_session_id(self) -> int:
        return int(self.pick((0,), (0, 5, -1)))

    def of_session_epoch(self) -> int:
        return int(self.pick((-1,), (0, 1, -2)))

    def of_log_start_offset(self) -> int:
        return int(self.pick((-1,), (0, 5)))

    def of_rack_id(self) -> str:
        return str(self.pick(("",), ("r",)))

    def of_cluster_id(self) -> None:
        return None

    # Groups.

    def of_group_id(self) -> str:
        return str(self.pick((self.group,), (f"none-{self.number}", "", self.group, "é" * 20)))

    of_groups = of_groups_names = of_coordinator_keys = of_key = of_group_id

    def _known_group(self) -> Group:
        return self.world.groups.get(str(self.last.get("group_id", self.group)), Group())

    def of_member_id(self) -> str:
        known = self._known_group().members
        if self.key is ApiKey.OFFSET_FETCH:
            return str(self.pick(("",), ("who",)))
        if self.key is ApiKey.JOIN_GROUP and (len(known) > 2 or self.random.random() < 0.6):
            known = known or [""]
        elif self.key is ApiKey.JOIN_GROUP:
            known = [""]
        symbol = self.pick(known or ("",), ("", "who"))
        return self.ids.members.get(symbol, symbol)

    def of_generation_id(self) -> int:
        now = self._known_group().generation
        return int(self.pick((now,), (now + 1, now - 1, -1, -2, INT32_MAX)))

    def of_generation_id_or_member_epoch(self) -> int:
        return self.of_generation_id()

    def of_member_epoch(self) -> int:
        return int(self.pick((-1,), (0, 5)))

    def of_group_instance_id(self) -> str | None:
        return self.pick((None,), (None, "i1", "i2", ""))  # type: ignore[no-any-return]

    def of_session_timeout_ms(self) -> int:
        return int(self.pick((LONG_MS,), (0, -1, 5_999, 1_800_001, 1_800_000)))

    def of_rebalance_timeout_ms(self) -> int:
        return LONG_MS

    def of_protocol_type(self) -> str:
        return str(self.pick(("consumer",), ("connect", "")))

    def of_protocol_name(self) -> str | None:
        protocol = self._known_group().protocol
        return self.pick((protocol,), ("range", "nope", "", None))  # type: ignore[no-any-return]

    def of_metadata(self) -> bytes:
        return bytes(self.pick((_SUBSCRIPTION,), (b"", b"\0")))

    def of_assignment(self) -> bytes:
        return bytes(self.pick((_ASSIGNMENT,), (b"", b"\0")))

    def of_reason(self) -> str | None:
        return self.pick((None, "bye"), ("", "b" * 300))  # type: ignore[no-any-return]

    def of_retention_time_ms(self) -> int:
        return int(self.pick((-1,), (1_000_000, INT64_MAX)))

    def of_committed_leader_epoch(self) -> int:
        return int(self.pick((-1, 0), (7, -2, INT32_MAX)))

    def of_committed_metadata(self) -> str | None:
        odd = (None, "m" * 4096, "m" * 4097, "✓" * 1365, "✓" * 1366)
        return self.pick(("", "m"), odd)  # type: ignore[no-any-return]

    def of_require_stable(self) -> bool:
        return self.random.random() < 0.5

    def of_key_type(self) -> int:
        return int(self.pick((0,), (1, 2, -1, 5)))

    def of_states_filter(self) -> str:
        return str(self.pick(("Stable", "Empty", "PreparingRebalance"), ("stable", "?", "")))

    # Transactions.

    def of_state_filters(self) -> str:
        return str(self.pick(("Empty", "Ongoing", "CompleteAbort"), ("ongoing", "?", "")))

    def of_producer_id_filters(self) -> int:
        return int(self.pick((self._a_producer_id(),), (-1, INT64_MAX)))

    def of_duration_filter(self) -> int:
        return int(self.pick((-1,), (0, 1_000, INT64_MAX)))

    def of_transactional_ids(self) -> str:
        return str(self.pick((self.world.transactional_id, "none"), ("", "t" * 300)))

    # The rest.

    def of_client_software_name(self) -> str:
        return str(self.pick(("judge",), ("", "a b", "-x", "é")))

    of_client_software_version = of_client_software_name

    def of_num_partitions(self) -> int:
        return int(self.pick((1, 2, 3, -1), (0, -2, INT32_MAX)))

    def of_replication_factor(self) -> int:
        return int(self.pick((1, -1), (0, 2, -2, 32_767)))

    def of_broker_ids(self) -> int:
        return int(self.pick((1,), (0, 2)))

    def of_validate_only(self) -> bool:
        # A broker would keep its new settings, and with some of them it does not start again.
        return self.random.random() < 0.3 or bool(self.last.get("names_a_broker"))

    def of_resource_type(self) -> int:
        kind = int(self.pick((2, 2, 4), (0, 1, 8, 16, 32, 99)))
        if kind == _BROKER:
            self.last["names_a_broker"] = True
        return kind

    def of_resource_name(self) -> str:
        if self.last["resource_type"] == _BROKER:
            return str(self.pick(("1", ""), ("2", "x")))
        return self._a_deletable()

    def of_configuration_keys(self) -> str:
        return str(self.pick(("retention.ms", "cleanup.policy"), ("nope", "")))

    def of_config_operation(self) -> int:
        return int(self.pick((0, 0, 1), (2, 3, 4, -1)))

    def of_endpoint_type(self) -> int:
        return int(self.pick((1,), (2, 0, 3)))

    def of_allow_auto_topic_creation(self) -> bool:
        return self.random.random() < 0.5

    def of_include(self) -> bool:
        return self.random.random() < 0.3

    of_include_cluster_authorized_operations = of_include_topic_authorized_operations = of_include
    of_include_authorized_operations = of_include_fenced_brokers = of_include
    of_include_synonyms = of_include_documentation = of_include

    def of_transaction_timeout_ms(self) -> int:
        return int(self.pick((60_000,), (0, -1, INT32_MAX)))

    def of_producer_id(self) -> int:
        owner = self.world.owner
        if self.key in OF_TRANSACTION and owner is not None:
            known = self.ids.producers[owner[0]]
            return int(self.pick((known,), (-1, self._a_producer_id(), INT64_MAX)))
        return int(self.pick((-1,), (-1, self._a_producer_id(), INT64_MAX)))

    of_v3_and_below_producer_id = of_producer_id

    def _a_producer_id(self) -> int:
        known = [self.ids.producers[one] for one in self.world.producers]
        return self.random.choice(known or [INT64_MAX])

    def of_producer_epoch(self) -> int:
        owner = self.world.owner
        if owner is not None and (self.key in OF_TRANSACTION or self.last["producer_id"] >= 0):
            return int(self.pick((owner[1],), (owner[1] + 1, max(owner[1] - 1, 0))))
        return int(self.pick((-1,), (-1, 0, 3)))

    of_v3_and_below_producer_epoch = of_producer_epoch


def _name_of(element: Any) -> Any:
    if not isinstance(element, dict):
        return element
    return next(iter(element.values())), element.get("name")


_BROKER = 4  # a type of resources
OF_TRANSACTION = {
    ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN,
}  # fmt: skip
_NAMES_GROUPS_OF_TRANSACTIONS = {ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT}
_MAY_NAME_GROUPS_OF_TRANSACTIONS = {
    ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_DELETE, ApiKey.DELETE_GROUPS,
}  # fmt: skip
# Without null: the broker does not answer a request with a partition that exists and has no records.
_FAULTS = (
    "empty", "crc", "magic 1", "magic 3", "two batches", "cut", "tail", "base offset",
    "leader epoch", "far ahead", "no time", "large", "log append time", "transactional", "control",
    "codec",
)  # fmt: skip
_ATTRIBUTES = {"log append time": 0x08, "transactional": 0x10, "control": 0x20, "codec": 7}
_SUBSCRIPTION = b"\0\1\0\0\0\1\0\2t0\xff\xff\xff\xff\0\0\0\0"
_ASSIGNMENT = b"\0\1\0\0\0\1\0\2t0\0\0\0\1\0\0\0\0\xff\xff\xff\xff"
