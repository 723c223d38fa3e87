"""The entries of a ledger, and their format.

An entry is an object of one sealed line of JSON (`sealed`), so that it can be read with any tool:

    {"before":"9c..","by":"","content":{..},"id":"41..","kind":"commit","number":42,"time":1700000000000,"v":2}

    v         version of this envelope
    number    of the entry, which is in its name too
    id        random, chosen once by who wants to write the entry, whatever number it gets in the end
    before    the id of the entry with the number below; 32 zeros in entry 0
    time      ms: the writer's clock, or the time of the entry before, if that is later
    by        who wrote it, for people: [what it is and is called] USER@HOST
    kind      what happened, which says what is in `content`

    kind        content: keys in brackets are left out where there is nothing
    start       cluster, format, limits, which are numbers that the fold goes by, by name: entry 0, and no other
    create      id, name, config, first_offsets: a topic; one first offset for each partition
    alter       id, changes: settings of a topic by Kafka's keys; null for the default
    grow        id, first_offsets: of the partitions that are added
    delete      id: a topic with all its records
    commit      of records, of groups' offsets, or both:
                [objects, topics]  stretches by topic id, in the format of `extents`
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
those that it had.

A kind that is not listed here may be written only after an entry `format`. A reader of this version stops at
it, as at a key or a version that it does not know.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

from spark_kbatch.errors import CorruptLedgerError, RefusedEntryError, UnsupportedLedgerError
from spark_kbatch.ledger import names
from spark_kbatch.ledger.checksummed_json import checked_rows, ensure_version, seal, unseal
from spark_kbatch.ledger.extents import NameTable, Stretch, Stretches, StretchReader, packed
from spark_kbatch.model import LONG_MAX
from spark_kbatch.options.topic import PARTITIONS_MAX
from spark_kbatch.store.repetitions import Evidence
from spark_kbatch.stored_json import StoredObject

FORMAT = 1  # of what this version writes
CLOSED = 2**53 - 1  # in place of a format: no one writes after it; see `recovery`
ENVELOPE_VERSION = 2
ENTRY_BYTES_MAX = 256 << 10
NO_ENTRY = -1  # the number before the first one
NO_ENTRY_ID = "0" * names.ID_DIGITS

# Names of limits.
STAGING_TIMEOUT_MS = "staging.timeout.ms"
PRODUCER_ID_EXPIRATION_MS = "producer.id.expiration.ms"
OFFSETS_RETENTION_MS = "offsets.retention.ms"

_ENVELOPE = {"before", "by", "content", "id", "kind", "number", "time", "v"}

StartOffsetsByTopic = Mapping[str, Mapping[int, int]]  # by topic id, then partition


# What reads a key of a content, and what writes it, with the names of objects in a table.
_Read: TypeAlias = Callable[[StoredObject, str], Any]
_Write: TypeAlias = Callable[[Any, NameTable], Any]


def _as_it_is(value: Any, _table: NameTable) -> Any:
    return value


class _Key(NamedTuple):
    """A key of a content: the field that it is of, and how it is read and written."""

    field: str
    read: _Read
    write: _Write = _as_it_is


class Content:
    """The content of an entry, by its kind; its format is a table of keys."""

    kind: ClassVar[str]
    keys: ClassVar[Mapping[str, _Key]] = {}
    has_objects: ClassVar[bool] = False  # whether their names are in a list beside the keys
    leaves_out: ClassVar[bool] = False  # keys where there is nothing

    def values(self) -> dict[str, Any]:
        """Return the content as JSON."""
        table = NameTable()
        found = {key: one.write(getattr(self, one.field), table) for key, one in self.keys.items()}
        if self.has_objects:
            found["objects"] = table.names
        return {key: value for key, value in found.items() if value or not self.leaves_out}

    @classmethod
    def of(cls, found: StoredObject) -> Self:
        """Return the content that is read."""
        _ensure_known(found, *cls.keys, *(["objects"] if cls.has_objects else []))
        return cls(**{one.field: one.read(found, key) for key, one in cls.keys.items()})


class Entry(NamedTuple):
    """One entry of a ledger."""

    number: int
    entry_id: str
    before: str  # id of the entry with the number below
    time_ms: int
    content: Content
    by: str = ""


# How keys are read and written.


def _text(pattern: re.Pattern[str]) -> _Read:
    return lambda found, key: found.text(key, pattern)


def _integer(lowest: int, highest: int = LONG_MAX) -> _Read:
    return lambda found, key: found.integer(key, lowest, highest)


def _texts(found: StoredObject, key: str) -> dict[str, str]:
    values = found.object(key)
    return {one: values.text(one) for one in values.keys()}


def _changes(found: StoredObject, key: str) -> dict[str, str | None]:
    values = found.object(key)
    return {one: None if values.values[one] is None else values.text(one) for one in values.keys()}


def _numbers(found: StoredObject, key: str) -> dict[str, int]:
    values = found.object(key)
    return {one: values.integer(one) for one in values.keys()}


def _offsets(found: StoredObject, key: str) -> tuple[int, ...]:
    values = found.values.get(key)
    if not isinstance(values, list) or not 0 < len(values) <= PARTITIONS_MAX:
        raise found.damaged(key, values, f"a list of 1 to {PARTITIONS_MAX} offsets")
    return tuple(row[0] for row in checked_rows(found, key, [[value] for value in values], int))


def _rows(make: Callable[..., Any], *types: type[Any]) -> _Read:
    """Return what reads a list of lists of these types; of none if it is missing."""
    return lambda found, key: tuple(
        make(*row) for row in checked_rows(found, key, found.values.get(key, []), *types)
    )


def _row(make: Callable[..., Any], *types: type[Any]) -> _Read:
    """Return what reads one list of these types; None if it is missing."""

    def read(found: StoredObject, key: str) -> Any:
        if key not in found:
            return None
        return make(*checked_rows(found, key, [found.values[key]], *types)[0])

    return read


def _by_topic(found: StoredObject, key: str) -> dict[str, list[Any]]:
    """Return the lists at a key, by topic id; none if it is missing."""
    topics = found.object(key, default={})
    for topic_id in topics.keys():
        if not names.TOPIC_ID.fullmatch(topic_id) or not isinstance(topics.values[topic_id], list):
            raise found.damaged(key, topic_id, "lists by topic id")
    return topics.values


def _starts(found: StoredObject, key: str) -> dict[str, dict[int, int]]:
    return {
        topic_id: dict(map(tuple, checked_rows(found, key, rows, int, int)))
        for topic_id, rows in _by_topic(found, key).items()
    }


def _packed_starts(starts: StartOffsetsByTopic, _table: NameTable) -> dict[str, list[list[int]]]:
    return {
        topic_id: [[partition, offset] for partition, offset in sorted(of_topic.items())]
        for topic_id, of_topic in sorted(starts.items())
    }


def _stretches(found: StoredObject, key: str) -> dict[str, tuple[Stretch, ...]]:
    reader = StretchReader(found, key)
    return {
        topic_id: tuple(map(reader.stretch, of_topic))
        for topic_id, of_topic in _by_topic(found, key).items()
    }


def _packed_stretches(stretches: Stretches, table: NameTable) -> dict[str, list[Any]]:
    return {
        topic_id: [packed(stretch, table) for stretch in of_topic]
        for topic_id, of_topic in sorted(stretches.items())
    }


def _groups(found: StoredObject, key: str) -> dict[str, tuple[CommittedGroupOffset, ...]]:
    groups = found.object(key, default={})
    return {group: _group_offsets(groups, group) for group in groups.keys()}


def _group_offsets(groups: StoredObject, group: str) -> tuple[CommittedGroupOffset, ...]:
    rows = []
    for row in groups.values[group] if isinstance(groups.values[group], list) else [None]:
        is_deleted = isinstance(row, list) and len(row) == 4 and row[2] is None
        types = (str, int, type(None) if is_deleted else int, str)
        rows += checked_rows(groups, group, [row], *types)
    return tuple(CommittedGroupOffset(*row) for row in rows)


_TOPIC = _Key("topic_id", _text(names.TOPIC_ID))
_FIRST_OFFSETS = _Key("first_offsets", _offsets)


# The kinds.


@dataclass(frozen=True)
class LedgerStart(Content):
    """Entry 0."""

    cluster_id: str
    limits: Mapping[str, int]
    format: int = FORMAT

    kind: ClassVar[str] = "start"
    keys: ClassVar = {
        "cluster": _Key("cluster_id", _text(names.RANDOM_ID)),
        "format": _Key("format", _integer(1)),
        "limits": _Key("limits", _numbers),
    }


@dataclass(frozen=True)
class TopicCreation(Content):
    """A topic, with its settings by Kafka's keys and the first offset of each partition."""

    topic_id: str
    name: str
    first_offsets: tuple[int, ...]
    config: Mapping[str, str] = field(default_factory=dict)

    kind: ClassVar[str] = "create"
    keys: ClassVar = {
        "config": _Key("config", _texts),
        "first_offsets": _FIRST_OFFSETS,
        "id": _TOPIC,
        "name": _Key("name", _text(names.TOPIC_NAME)),
    }


@dataclass(frozen=True)
class TopicAlteration(Content):
    """Changes of a topic's settings by Kafka's keys, None for the default."""

    topic_id: str
    changes: Mapping[str, str | None]

    kind: ClassVar[str] = "alter"
    keys: ClassVar = {"changes": _Key("changes", _changes), "id": _TOPIC}


@dataclass(frozen=True)
class TopicGrowth(Content):
    """Partitions that are added to a topic, by their first offsets."""

    topic_id: str
    first_offsets: tuple[int, ...]

    kind: ClassVar[str] = "grow"
    keys: ClassVar = {"first_offsets": _FIRST_OFFSETS, "id": _TOPIC}


@dataclass(frozen=True)
class TopicDeletion(Content):
    """The end of a topic and of all its records."""

    topic_id: str

    kind: ClassVar[str] = "delete"
    keys: ClassVar = {"id": _TOPIC}


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
class LedgerCommit(Content):
    """Data, and what goes with it, or offsets of groups alone: all of it at once."""

    stretches: Stretches = field(default_factory=dict)  # one of each partition at most
    starts: StartOffsetsByTopic = field(default_factory=dict)
    micro_batch: MicroBatch | None = None
    mirror: MirrorStep | None = None
    produced: tuple[ProducedBatch, ...] = ()
    groups: Mapping[str, tuple[CommittedGroupOffset, ...]] = field(default_factory=dict)
    fence: HeldFence | None = None
    evidence: Evidence | None = None  # of the micro-batch

    kind: ClassVar[str] = "commit"
    keys: ClassVar = {
        "topics": _Key("stretches", _stretches, _packed_stretches),
        "starts": _Key("starts", _starts, _packed_starts),
        "query": _Key("micro_batch", _row(MicroBatch, str, int)),
        "evidence": _Key(
            "evidence",
            lambda found, key: Evidence.of(found.object(key)) if key in found else None,
            lambda evidence, _table: evidence and evidence._asdict(),
        ),
        "mirror": _Key("mirror", _row(MirrorStep, str, str, str)),
        "producers": _Key("produced", _rows(ProducedBatch, int, int, str, int, int, int, int)),
        "groups": _Key("groups", _groups),
        "fence": _Key("fence", _row(HeldFence, str, int)),
    }
    has_objects: ClassVar[bool] = True
    leaves_out: ClassVar[bool] = True


@dataclass(frozen=True)
class StartOffsets(Content):
    """Start offsets of partitions: all before them is gone."""

    starts: StartOffsetsByTopic

    kind: ClassVar[str] = "starts"
    keys: ClassVar = {"topics": _Key("starts", _starts, _packed_starts)}


class ReplacedRange(NamedTuple):
    """A range of offsets of one partition, and the stretches that are read in its place, back to back."""

    partition: int
    start_offset: int
    next_offset: int
    stretches: tuple[Stretch, ...]


def _ranges(found: StoredObject, key: str) -> dict[str, tuple[ReplacedRange, ...]]:
    reader = StretchReader(found, key)
    return {
        topic_id: tuple(
            ReplacedRange(number, start, end, tuple(map(reader.stretch, stretches)))
            for number, start, end, stretches in checked_rows(
                found, key, of_topic, int, int, int, list
            )
        )
        for topic_id, of_topic in _by_topic(found, key).items()
    }


def _packed_ranges(
    ranges: Mapping[str, Sequence[ReplacedRange]], table: NameTable
) -> dict[str, list[Any]]:
    return {
        topic_id: [[*edges, [packed(one, table) for one in stretches]] for *edges, stretches in of_topic]
        for topic_id, of_topic in sorted(ranges.items())
    }  # fmt: skip


@dataclass(frozen=True)
class Replacement(Content):
    """Other objects with the same records."""

    ranges: Mapping[str, tuple[ReplacedRange, ...]]  # by topic id

    kind: ClassVar[str] = "replace"
    keys: ClassVar = {"topics": _Key("ranges", _ranges, _packed_ranges)}
    has_objects: ClassVar[bool] = True

    @property
    def stretches(self) -> Stretches:
        """The stretches that are read from now on, by topic id."""
        return {
            topic_id: [stretch for one in ranges for stretch in one.stretches]
            for topic_id, ranges in self.ranges.items()
        }


@dataclass(frozen=True)
class Fence(Content):
    """A fence that is moved: a holder of an earlier epoch commits no more."""

    name: str
    epoch: int

    kind: ClassVar[str] = "fence"
    keys: ClassVar = {
        "epoch": _Key("epoch", _integer(0)),
        "name": _Key("name", StoredObject.text),
    }


@dataclass(frozen=True)
class Horizon(Content):
    """The horizon: what began before that entry commits and replaces no more."""

    number: int

    kind: ClassVar[str] = "horizon"
    keys: ClassVar = {"number": _Key("number", _integer(0))}


@dataclass(frozen=True)
class NewFormat(Content):
    """Permission to write kinds up to a format; writers that do not know the format write no more."""

    format: int

    kind: ClassVar[str] = "format"
    keys: ClassVar = {"format": _Key("format", _integer(1))}


@dataclass(frozen=True)
class Tombstone(Content):
    """The rest of an entry whose content is in a checkpoint; its name is not free again."""

    kind: ClassVar[str] = "tombstone"


KINDS: Mapping[str, type[Content]] = {
    kind.kind: kind
    for kind in (
        LedgerStart, TopicCreation, TopicAlteration, TopicGrowth, TopicDeletion, LedgerCommit,
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
    kind = found.text("kind")
    if kind not in KINDS:
        raise UnsupportedLedgerError(f"{found.where}", f"it is of the kind {kind!r}")
    return KINDS[kind].of(found.object("content"))


def tombstone_of(entry: Entry) -> Entry:
    """Return the tombstone that may take the place of an entry."""
    return entry._replace(content=Tombstone(), by="")


def _ensure_known(found: StoredObject, *keys: str) -> None:
    unknown = [key for key in found.keys() if key not in keys]
    if unknown:
        raise UnsupportedLedgerError(f"{found.where}", f"it has the key {unknown[0]!r}")
