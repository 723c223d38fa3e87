"""The entries of a ledger, and their format.

An entry is an object of one sealed line of JSON (`sealed`), so that it can be read with any tool:

    {"before":"9c..","by":"","content":{..},"id":"41..","kind":"commit","number":42,"skip":false,
     "time":1700000000000,"v":1}

    v         version of this envelope
    number    of the entry, which is in its name too
    id        random, chosen once by who wants to write the entry, whatever number it gets in the end
    before    the id of the entry with the number below; 32 zeros in entry 0
    time      ms: the writer's clock, or the time of the entry before, if that is later
    by        who wrote it, for people
    kind      what happened, which says what is in `content`
    skip      whether a reader that does not know the kind may go on as if nothing had happened

    kind        content: keys in brackets are left out where there is nothing
    start       cluster, ledgers, format, limits: entry 0, and no other
    limits      limits: numbers that the fold goes by, by name, in place of those of the same name
    create      id, name, config, ledger, first_offsets: a topic; one first offset for each partition
    alter       id, changes: settings of a topic by Kafka's keys; null for the default
    grow        id, first_offsets: of the partitions that are added
    delete      id: a topic with all its records
    commit      [objects, topics]  stretches by topic id, in the format of `extents`
                [starts]           by topic id: [[partition, start offset], ..]
                [query]            [id, number]: of the micro-batch
                [evidence]         what tells a repetition of it from others (`store.repetitions`)
                [mirror]           [name, progress before, progress]
                [producers]        [[producer id, epoch, topic id, partition, first sequence, last sequence,
                                   base offset], ..]
                [groups]           by group: [[topic id, partition, offset or null, metadata], ..]
                [fence]            [name, epoch] that the writer holds
    starts      topics: by id: [[partition, start offset], ..]
    replace     objects, topics: by id: [[partition, start, next, [stretch, ..]], ..]
    fence       name, epoch: what holds an earlier epoch of the name commits no more
    horizon     number: what began before that entry commits and replaces no more
    format      format: kinds up to that format may follow
    tombstone   nothing: what the entry said is in a checkpoint; number, id and before are as they were

The first offsets and the id of a topic are chosen by who creates it, so that a topic can be moved in with
those that it had. `ledger` is 0, and `ledgers` 1: there is one ledger.

A kind that is not listed here may be written only after an entry `format`. A reader of this version goes on
after one with `skip`, and stops at one without. Keys and versions that it does not know stop it as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

from spark_kbatch.bucket import names
from spark_kbatch.bucket.extents import NameTable, Stretch, Stretches, StretchReader, packed
from spark_kbatch.bucket.sealed import checked_rows, ensure_version, seal, unseal
from spark_kbatch.errors import CorruptLedgerError, RefusedEntryError, UnsupportedLedgerError
from spark_kbatch.options.topic import PARTITIONS_MAX
from spark_kbatch.store.repetitions import Evidence
from spark_kbatch.stored_json import StoredObject

FORMAT = 1  # of what this version writes
CLOSED = 2**53 - 1  # in place of a format: no one writes after it; see `closing`
ENVELOPE_VERSION = 1
ENTRY_BYTES_MAX = 256 << 10
NO_ENTRY = -1  # the number before the first one
NO_ENTRY_ID = "0" * names.ID_DIGITS

# Names of limits.
STAGING_TIMEOUT_MS = "staging.timeout.ms"
PRODUCER_ID_EXPIRATION_MS = "producer.id.expiration.ms"
TRANSACTIONAL_ID_EXPIRATION_MS = "transactional.id.expiration.ms"

_ENVELOPE = {"before", "by", "content", "id", "kind", "number", "skip", "time", "v"}

StartOffsetsByTopic = Mapping[str, Mapping[int, int]]  # by topic id, then partition


class Content(Protocol):
    """The content of an entry, by its kind."""

    @property
    def kind(self) -> str:
        """Its kind."""

    @property
    def may_be_skipped(self) -> bool:
        """Whether a reader that does not know the kind may go on."""

    def values(self) -> dict[str, Any]:
        """Return the content as JSON."""


class Entry(NamedTuple):
    """One entry of a ledger."""

    number: int
    entry_id: str
    before: str  # id of the entry with the number below
    time_ms: int
    content: Content
    by: str = ""


@dataclass(frozen=True)
class LedgerStart:
    """Entry 0."""

    cluster_id: str
    limits: Mapping[str, int]
    format: int = FORMAT
    ledgers: int = 1

    kind: ClassVar[str] = "start"
    may_be_skipped: ClassVar[bool] = False

    def values(self) -> dict[str, Any]:
        """Return the content as JSON."""
        return {
            "cluster": self.cluster_id,
            "format": self.format,
            "ledgers": self.ledgers,
            "limits": dict(self.limits),
        }

    @classmethod
    def of(cls, found: StoredObject) -> LedgerStart:
        """Return the content that is read."""
        _ensure_known(found, "cluster", "format", "ledgers", "limits")
        ensure_version(found, 1, key="ledgers")
        return cls(
            found.text("cluster", names.RANDOM_ID),
            _numbers(found.object("limits")),
            found.integer("format", 1),
        )


@dataclass(frozen=True)
class NewLimits:
    """Limits that replace those of the same name."""

    limits: Mapping[str, int]

    kind: ClassVar[str] = "limits"
    may_be_skipped: ClassVar[bool] = False

    def values(self) -> dict[str, Any]:
        """Return the content as JSON."""
        return {"limits": dict(self.limits)}

    @classmethod
    def of(cls, found: StoredObject) -> NewLimits:
        """Return the content that is read."""
        _ensure_known(found, "limits")
        return cls(_numbers(found.object("limits")))


@dataclass(frozen=True)
class TopicCreation:
    """A topic, with its settings by Kafka's keys and the first offset of each partition."""

    topic_id: str
    name: str
    first_offsets: tuple[int, ...]
    config: Mapping[str, str] = field(default_factory=dict)
    ledger: int = 0

    kind: ClassVar[str] = "create"
    may_be_skipped: ClassVar[bool] = False

    def values(self) -> dict[str, Any]:
        """Return the content as JSON."""
        return {
            "config": dict(self.config),
            "first_offsets": [*self.first_offsets],
            "id": self.topic_id,
            "ledger": self.ledger,
            "name": self.name,
        }

    @classmethod
    def of(cls, found: StoredObject) -> TopicCreation:
        """Return the content that is read."""
        _ensure_known(found, "config", "first_offsets", "id", "ledger", "name")
        config = found.object("config")
        return cls(
            found.text("id", names.TOPIC_ID),
            found.text("name", names.TOPIC_NAME),
            _offsets(found, "first_offsets"),
            {key: config.text(key) for key in config.keys()},
            found.integer("ledger", 0, 0),
        )


@dataclass(frozen=True)
class TopicAlteration:
    """Changes of a topic's settings by Kafka's keys, None for the default."""

    topic_id: str
    changes: Mapping[str, str | None]

    kind: ClassVar[str] = "alter"
    may_be_skipped: ClassVar[bool] = False

    def values(self) -> dict[str, Any]:
        """Return the content as JSON."""
        return {"changes": dict(self.changes), "id": self.topic_id}

    @classmethod
    def of(cls, found: StoredObject) -> TopicAlteration:
        """Return the content that is read."""
        _ensure_known(found, "changes", "id")
        changes = found.object("changes")
        return cls(
            found.text("id", names.TOPIC_ID),
            {
                key: None if changes.values[key] is None else changes.text(key)
                for key in changes.keys()
            },
        )


@dataclass(frozen=True)
class TopicGrowth:
    """Partitions that are added to a topic, by their first offsets."""

    topic_id: str
    first_offsets: tuple[int, ...]

    kind: ClassVar[str] = "grow"
    may_be_skipped: ClassVar[bool] = False

    def values(self) -> dict[str, Any]:
        """Return the content as JSON."""
        return {"first_offsets": [*self.first_offsets], "id": self.topic_id}

    @classmethod
    def of(cls, found: StoredObject) -> TopicGrowth:
        """Return the content that is read."""
        _ensure_known(found, "first_offsets", "id")
        return cls(found.text("id", names.TOPIC_ID), _offsets(found, "first_offsets"))


@dataclass(frozen=True)
class TopicDeletion:
    """The end of a topic and of all its records."""

    topic_id: str

    kind: ClassVar[str] = "delete"
    may_be_skipped: ClassVar[bool] = False

    def values(self) -> dict[str, Any]:
        """Return the content as JSON."""
        return {"id": self.topic_id}

    @classmethod
    def of(cls, found: StoredObject) -> TopicDeletion:
        """Return the content that is read."""
        _ensure_known(found, "id")
        return cls(found.text("id", names.TOPIC_ID))


def add_names(names: dict[str, str], entries: Iterable[Entry]) -> None:
    """Add the names of topics that these entries create, by id, where there are none."""
    for entry in entries:
        if isinstance(entry.content, TopicCreation):
            names.setdefault(entry.content.topic_id, entry.content.name)


class MicroBatch(NamedTuple):
    """The micro-batch of a query, or the version of an application, that a commit is."""

    query_id: str
    number: int


class MirrorStep(NamedTuple):
    """A mirror's progress in its source before a commit and after it, in the mirror's own format."""

    name: str
    before: str  # empty at first
    after: str


class ProducedBatch(NamedTuple):
    """A batch of an idempotent producer in a commit."""

    producer_id: int
    producer_epoch: int
    topic_id: str
    partition: int
    first_sequence: int
    last_sequence: int
    base_offset: int


class CommittedGroupOffset(NamedTuple):
    """The offset that a group has committed for a partition, None where it is deleted."""

    topic_id: str
    partition: int
    offset: int | None
    metadata: str


class HeldFence(NamedTuple):
    """A fence that a writer holds."""

    name: str
    epoch: int


@dataclass(frozen=True)
class LedgerCommit:
    """Data, and what goes with it: all of it at once."""

    stretches: Stretches = field(default_factory=dict)  # one of each partition at most
    starts: StartOffsetsByTopic = field(default_factory=dict)
    micro_batch: MicroBatch | None = None
    mirror: MirrorStep | None = None
    produced: tuple[ProducedBatch, ...] = ()
    groups: Mapping[str, tuple[CommittedGroupOffset, ...]] = field(default_factory=dict)
    fence: HeldFence | None = None
    evidence: Evidence | None = None  # of the micro-batch

    kind: ClassVar[str] = "commit"
    may_be_skipped: ClassVar[bool] = False

    def values(self) -> dict[str, Any]:
        """Return the content as JSON."""
        table = NameTable()
        found: dict[str, Any] = {
            "topics": {
                topic_id: [packed(stretch, table) for stretch in of_topic]
                for topic_id, of_topic in sorted(self.stretches.items())
            },
            "starts": _packed_starts(self.starts),
            "query": self.micro_batch,
            "evidence": None if self.evidence is None else self.evidence._asdict(),
            "mirror": self.mirror,
            "producers": [[*one] for one in self.produced],
            "groups": {group: [[*one] for one in rows] for group, rows in self.groups.items()},
            "fence": self.fence,
        }
        found["objects"] = table.names
        return {key: value for key, value in found.items() if value}

    @classmethod
    def of(cls, found: StoredObject) -> LedgerCommit:
        """Return the content that is read."""
        _ensure_known(
            found, "evidence", "fence", "groups", "mirror", "objects", "producers", "query",
            "starts", "topics",
        )  # fmt: skip
        rows = _ContentRows(found)
        reader = StretchReader(found, "topics")
        groups = found.object("groups", default={})
        return cls(
            {
                topic_id: tuple(map(reader.stretch, of_topic))
                for topic_id, of_topic in rows.by_topic("topics").items()
            },
            rows.starts("starts"),
            rows.row("query", MicroBatch, str, int),
            rows.row("mirror", MirrorStep, str, str, str),
            tuple(
                ProducedBatch(*one)
                for one in rows.rows("producers", int, int, str, int, int, int, int)
            ),
            {group: _group_offsets(groups, group) for group in groups.keys()},
            rows.row("fence", HeldFence, str, int),
            Evidence.of(found.object("evidence")) if "evidence" in found else None,
        )


@dataclass(frozen=True)
class StartOffsets:
    """Start offsets of partitions: all before them is gone."""

    starts: StartOffsetsByTopic

    kind: ClassVar[str] = "starts"
    may_be_skipped: ClassVar[bool] = False

    def values(self) -> dict[str, Any]:
        """Return the content as JSON."""
        return {"topics": _packed_starts(self.starts)}

    @classmethod
    def of(cls, found: StoredObject) -> StartOffsets:
        """Return the content that is read."""
        _ensure_known(found, "topics")
        return cls(_ContentRows(found).starts("topics"))


class ReplacedRange(NamedTuple):
    """A range of offsets of one partition, and the stretches that are read in its place, back to back."""

    partition: int
    start_offset: int
    next_offset: int
    stretches: tuple[Stretch, ...]


@dataclass(frozen=True)
class Replacement:
    """Other objects with the same records."""

    ranges: Mapping[str, tuple[ReplacedRange, ...]]  # by topic id

    kind: ClassVar[str] = "replace"
    may_be_skipped: ClassVar[bool] = False

    def values(self) -> dict[str, Any]:
        """Return the content as JSON."""
        table = NameTable()
        topics = {
            topic_id: [[*one[:-1], [packed(stretch, table) for stretch in one.stretches]] for one in of_topic]
            for topic_id, of_topic in sorted(self.ranges.items())
        }  # fmt: skip
        return {"objects": table.names, "topics": topics}

    @classmethod
    def of(cls, found: StoredObject) -> Replacement:
        """Return the content that is read."""
        _ensure_known(found, "objects", "topics")
        reader, rows = StretchReader(found, "topics"), _ContentRows(found)
        return cls(
            {
                topic_id: tuple(
                    ReplacedRange(one[0], one[1], one[2], tuple(map(reader.stretch, one[3])))
                    for one in checked_rows(found, "topics", of_topic, int, int, int, list)
                )
                for topic_id, of_topic in rows.by_topic("topics").items()
            }
        )


@dataclass(frozen=True)
class Fence:
    """A fence that is moved: a holder of an earlier epoch commits no more."""

    name: str
    epoch: int

    kind: ClassVar[str] = "fence"
    may_be_skipped: ClassVar[bool] = False

    def values(self) -> dict[str, Any]:
        """Return the content as JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, found: StoredObject) -> Fence:
        """Return the content that is read."""
        _ensure_known(found, "epoch", "name")
        return cls(found.text("name"), found.integer("epoch"))


@dataclass(frozen=True)
class Horizon:
    """The horizon: what began before that entry commits and replaces no more."""

    number: int

    kind: ClassVar[str] = "horizon"
    may_be_skipped: ClassVar[bool] = False

    def values(self) -> dict[str, Any]:
        """Return the content as JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, found: StoredObject) -> Horizon:
        """Return the content that is read."""
        _ensure_known(found, "number")
        return cls(found.integer("number"))


@dataclass(frozen=True)
class NewFormat:
    """Permission to write kinds up to a format; writers that do not know the format write no more."""

    format: int

    kind: ClassVar[str] = "format"
    may_be_skipped: ClassVar[bool] = False

    def values(self) -> dict[str, Any]:
        """Return the content as JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, found: StoredObject) -> NewFormat:
        """Return the content that is read."""
        _ensure_known(found, "format")
        return cls(found.integer("format", 1))


@dataclass(frozen=True)
class Tombstone:
    """The rest of an entry whose content is in a checkpoint; its name is not free again."""

    kind: ClassVar[str] = "tombstone"
    may_be_skipped: ClassVar[bool] = False

    def values(self) -> dict[str, Any]:
        """Return the content as JSON."""
        return {}

    @classmethod
    def of(cls, found: StoredObject) -> Tombstone:
        """Return the content that is read."""
        _ensure_known(found)
        return cls()


@dataclass(frozen=True)
class LaterContent:
    """Content of a kind that only a later version knows, and that may be skipped."""

    kind: str
    content: Mapping[str, Any]

    may_be_skipped: ClassVar[bool] = True

    def values(self) -> dict[str, Any]:
        """Return the content as JSON."""
        return dict(self.content)


KINDS: Mapping[str, Callable[[StoredObject], Content]] = {
    kind.kind: kind.of
    for kind in (
        LedgerStart, NewLimits, TopicCreation, TopicAlteration, TopicGrowth, TopicDeletion, LedgerCommit,
        StartOffsets, Replacement, Fence, Horizon, NewFormat, Tombstone,
    )
}  # fmt: skip


def encode(entry: Entry) -> bytes:
    """Return the bytes of an entry, always the same.

    Raises:
        RefusedEntryError: there are more than ENTRY_BYTES_MAX.
    """
    data = seal(
        {
            "before": entry.before,
            "by": entry.by,
            "content": entry.content.values(),
            "id": entry.entry_id,
            "kind": entry.content.kind,
            "number": entry.number,
            "skip": entry.content.may_be_skipped,
            "time": entry.time_ms,
            "v": ENVELOPE_VERSION,
        }
    )
    if len(data) > ENTRY_BYTES_MAX:
        raise RefusedEntryError(
            f"entry {entry.number} has {len(data)} bytes, and an entry has at most {ENTRY_BYTES_MAX}: it names "
            "too many partitions at once; write to fewer of them in one commit"
        )
    return data


def decode(data: bytes, name: str) -> Entry:
    """Return the entry in the object with this name.

    Raises:
        CorruptLedgerError: it is damaged, or is not the entry that the name says.
        UnsupportedLedgerError: it has a version or a kind that this version does not know.
    """
    found = unseal(data, name)
    ensure_version(found, ENVELOPE_VERSION)
    _ensure_known(found, *_ENVELOPE)
    number = found.integer("number", 0, names.NUMBER_MAX)
    if names.entry_name(number) != name:
        raise CorruptLedgerError(name, f"it is entry {number}")
    return Entry(
        number,
        found.text("id", names.RANDOM_ID),
        found.text("before", names.RANDOM_ID),
        found.integer("time"),
        _content(found),
        found.text("by"),
    )


def _content(found: StoredObject) -> Content:
    kind, content = found.text("kind"), found.object("content")
    if kind in KINDS:
        return KINDS[kind](content)
    if found.values.get("skip") is True:
        return LaterContent(kind, content.values)
    raise UnsupportedLedgerError(f"{found.where}", f"it is of the kind {kind!r}")


def tombstone_of(entry: Entry) -> Entry:
    """Return the tombstone that may take the place of an entry."""
    return entry._replace(content=Tombstone(), by="")


def _ensure_known(found: StoredObject, *keys: str) -> None:
    unknown = [key for key in found.keys() if key not in keys]
    if unknown:
        raise UnsupportedLedgerError(f"{found.where}", f"it has the key {unknown[0]!r}")


def _numbers(found: StoredObject) -> dict[str, int]:
    return {key: found.integer(key) for key in found.keys()}


def _offsets(found: StoredObject, key: str) -> tuple[int, ...]:
    values = found.values.get(key)
    if not isinstance(values, list) or not 0 < len(values) <= PARTITIONS_MAX:
        raise found.damaged(key, values, f"a list of 1 to {PARTITIONS_MAX} offsets")
    return tuple(row[0] for row in checked_rows(found, key, [[value] for value in values], int))


def _packed_starts(starts: StartOffsetsByTopic) -> dict[str, list[list[int]]]:
    return {
        topic_id: [[partition, offset] for partition, offset in sorted(of_topic.items())]
        for topic_id, of_topic in sorted(starts.items())
    }


def _group_offsets(groups: StoredObject, group: str) -> tuple[CommittedGroupOffset, ...]:
    rows = []
    for row in groups.values[group] if isinstance(groups.values[group], list) else [None]:
        is_deleted = isinstance(row, list) and len(row) == 4 and row[2] is None
        types = (str, int, type(None) if is_deleted else int, str)
        rows += checked_rows(groups, group, [row], *types)
    return tuple(CommittedGroupOffset(*row) for row in rows)


class _ContentRows:
    """Lists of values in an object, each checked for its types."""

    def __init__(self, found: StoredObject) -> None:
        self._found = found

    def rows(self, key: str, *types: type[Any]) -> list[list[Any]]:
        """Return the list of lists at a key; none if it is missing."""
        return checked_rows(self._found, key, self._found.values.get(key, []), *types)

    def row(self, key: str, make: Callable[..., Any], *types: type[Any]) -> Any:
        """Return what `make` makes of the list at a key; None if it is missing."""
        if key not in self._found:
            return None
        return make(*checked_rows(self._found, key, [self._found.values[key]], *types)[0])

    def by_topic(self, key: str) -> dict[str, list[Any]]:
        """Return the lists at a key, by topic id; none if it is missing."""
        topics = self._found.object(key, default={})
        for topic_id in topics.keys():
            if not names.TOPIC_ID.fullmatch(topic_id) or not isinstance(
                topics.values[topic_id], list
            ):
                raise self._found.damaged(key, topic_id, "lists by topic id")
        return topics.values

    def starts(self, key: str) -> dict[str, dict[int, int]]:
        """Return start offsets at a key, by topic id and partition."""
        found = {}
        for topic_id, rows in self.by_topic(key).items():
            found[topic_id] = dict(map(tuple, checked_rows(self._found, key, rows, int, int)))
        return found
