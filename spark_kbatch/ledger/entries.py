"""The entries of a ledger, and their format.

An entry is an object of one line of JSON and its sum (`checksummed_json`), so that it can be read
with any tool:

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
                [objects, topics]  appends by topic id, in the format of `extents`
                [starts]           by topic id: [[partition, start offset], ..]
                [query]            [id, number]: of the micro-batch
                [evidence]         what tells a repetition of it from others (`store.repetitions`)
                [mirror]           [name, progress before, progress]
                [producers]        [[producer id, epoch, topic id, partition, first sequence, last sequence,
                                   base offset], ..]
                [groups]           by group: [[topic id, partition, offset or null, metadata], ..]
                [fence]            [name, epoch] that the writer holds
    starts      topics: by id: [[partition, start offset], ..]
    replace     objects, topics: by id: [[partition, start, next, [append, ..]], ..]
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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias

from spark_kbatch.errors import CorruptLedgerError, RefusedEntryError, UnsupportedLedgerError
from spark_kbatch.ledger import checksummed_json, names
from spark_kbatch.ledger.checksummed_json import ensure_version
from spark_kbatch.ledger.codec import (
    Form,
    ObjectReader,
    ensure_known,
    form_of,
    record,
    sequence,
    text,
    whole,
)
from spark_kbatch.ledger.extents import Appends, PartitionAppend, Positive, TopicId
from spark_kbatch.options.topic import PARTITIONS_MAX
from spark_kbatch.store.repetitions import Evidence

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

RandomId: TypeAlias = Annotated[str, text(names.RANDOM_ID)]
TopicName: TypeAlias = Annotated[str, text(names.TOPIC_NAME)]
FirstOffsets: TypeAlias = Annotated[
    tuple[int, ...], sequence(whole(), least=1, most=PARTITIONS_MAX)
]  # one for each partition
_PAIRS = form_of(tuple[tuple[int, int], ...])
OffsetsOfTopic: TypeAlias = Annotated[
    Mapping[int, int],
    Form(
        lambda rows, reader: dict(_PAIRS.read(rows, reader)),
        lambda offsets, table: _PAIRS.write(sorted(offsets.items()), table),
    ),
]  # by partition; rows of both
StartOffsetsByTopic: TypeAlias = Mapping[TopicId, OffsetsOfTopic]
KeptEvidence: TypeAlias = Annotated[Evidence, record(Evidence)]


class Content:
    """The content of an entry, by its kind: a dataclass that is stored as `codec` says."""

    kind: ClassVar[str]
    has_objects: ClassVar[bool] = False  # whether their names are in a list beside the keys
    leaves_out: ClassVar[bool] = False  # keys where there is nothing

    def values(self) -> dict[str, Any]:
        """Return the content as JSON."""
        found: dict[str, Any] = form_of(type(self)).write(self, {})
        return found


class Entry(NamedTuple):
    """One entry of a ledger."""

    number: int
    entry_id: str
    before: str  # id of the entry with the number below
    time_ms: int
    content: Content
    by: str = ""


# The kinds.


@dataclass(frozen=True)
class LedgerStart(Content):
    """Entry 0."""

    cluster_id: Annotated[RandomId, "cluster"]
    limits: Mapping[str, int]
    format: Positive = FORMAT

    kind: ClassVar = "start"


@dataclass(frozen=True)
class TopicCreation(Content):
    """A topic, with its settings by Kafka's keys and the first offset of each partition."""

    topic_id: Annotated[TopicId, "id"]
    name: TopicName
    first_offsets: FirstOffsets
    config: Mapping[str, str] = field(default_factory=dict)

    kind: ClassVar = "create"


@dataclass(frozen=True)
class TopicAlteration(Content):
    """Changes of a topic's settings by Kafka's keys, None for the default."""

    topic_id: Annotated[TopicId, "id"]
    changes: Mapping[str, str | None]

    kind: ClassVar = "alter"


@dataclass(frozen=True)
class TopicGrowth(Content):
    """Partitions that are added to a topic, by their first offsets."""

    topic_id: Annotated[TopicId, "id"]
    first_offsets: FirstOffsets

    kind: ClassVar = "grow"


@dataclass(frozen=True)
class TopicDeletion(Content):
    """The end of a topic and of all its records."""

    topic_id: Annotated[TopicId, "id"]

    kind: ClassVar = "delete"


class NamesById(dict[str, str]):
    """Names of topics by id; the id itself for one that no one tells of."""

    def __missing__(self, topic_id: str) -> str:
        return topic_id

    def add(self, entries: Iterable[Entry]) -> None:
        """Add the topics that these entries create, unless there is one of that id."""
        for entry in entries:
            if isinstance(entry.content, TopicCreation):
                self.setdefault(entry.content.topic_id, entry.content.name)


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

    # One of each partition at most.
    appends: Annotated[Appends, "topics"] = field(default_factory=dict)
    starts: StartOffsetsByTopic = field(default_factory=dict)
    micro_batch: Annotated[MicroBatch | None, "query"] = None
    mirror: MirrorStep | None = None
    produced: Annotated[tuple[ProducedBatch, ...], "producers"] = ()
    groups: Mapping[str, tuple[CommittedGroupOffset, ...]] = field(default_factory=dict)
    fence: HeldFence | None = None
    evidence: KeptEvidence | None = None  # of the micro-batch

    kind: ClassVar = "commit"
    has_objects: ClassVar = True
    leaves_out: ClassVar = True


@dataclass(frozen=True)
class StartOffsets(Content):
    """Start offsets of partitions: all before them is gone."""

    starts: Annotated[StartOffsetsByTopic, "topics"]

    kind: ClassVar = "starts"


class Rewrite(NamedTuple):
    """A range of offsets of one partition, and the appends that are read in its place, back to back."""

    partition: int
    start_offset: int
    next_offset: int
    appends: tuple[PartitionAppend, ...]


@dataclass(frozen=True)
class Replacement(Content):
    """Other objects with the same records."""

    ranges: Annotated[Mapping[TopicId, tuple[Rewrite, ...]], "topics"]

    kind: ClassVar = "replace"
    has_objects: ClassVar = True

    @property
    def appends(self) -> Appends:
        """The appends that are read from now on, by topic id."""
        return {
            topic_id: [append for one in ranges for append in one.appends]
            for topic_id, ranges in self.ranges.items()
        }


@dataclass(frozen=True)
class Fence(Content):
    """A fence that is moved: a holder of an earlier epoch commits no more."""

    name: str
    epoch: int

    kind: ClassVar = "fence"


@dataclass(frozen=True)
class GcBoundary(Content):
    """The GC boundary: what began before that entry commits and replaces no more."""

    number: int

    kind: ClassVar = "horizon"


@dataclass(frozen=True)
class NewFormat(Content):
    """Permission to write kinds up to a format; writers that do not know the format write no more."""

    format: Positive

    kind: ClassVar = "format"


@dataclass(frozen=True)
class Tombstone(Content):
    """The rest of an entry whose content is in a checkpoint; its name is not free again."""

    kind: ClassVar = "tombstone"


KINDS: Mapping[str, type[Content]] = {one.kind: one for one in Content.__subclasses__()}


def encode(entry: Entry) -> bytes:
    """Return the bytes of an entry, always the same.

    Raises:
        RefusedEntryError: there are more than ENTRY_BYTES_MAX.
    """
    data = checksummed_json.encode(
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
    found = checksummed_json.decode(data, name)
    ensure_version(found, ENVELOPE_VERSION)
    reader, number = ObjectReader(found), found.integer("number", 0, names.NUMBER_MAX)
    ensure_known(found, found.keys(), _ENVELOPE)
    if names.entry_name(number) != name:
        raise CorruptLedgerError(name, f"it is entry {number}")
    kind = found.text("kind")
    if kind not in KINDS:
        raise UnsupportedLedgerError(name, f"it is of the kind {kind!r}")
    return Entry(
        number,
        found.text("id", names.RANDOM_ID),
        found.text("before", names.RANDOM_ID),
        found.integer("time"),
        reader.at("content", form_of(KINDS[kind]), found.object("content").values),
        found.text("by"),
    )


def tombstone_of(entry: Entry) -> Entry:
    """Return the tombstone that may take the place of an entry."""
    return entry._replace(content=Tombstone(), by="")
