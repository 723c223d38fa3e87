"""The image of what exists, and of who committed what, after an entry: the fold of all entries up to it.

It is a pure function of the entries. Nothing else goes in, neither a clock nor an option of a
process, since all processes have to find the same: what expires does so by the times of entries,
and by limits in the ledger. So whoever has the image after entry n can check an entry n + 1
before it is created, and knows that the check holds if the entry gets that number. A check that
fails refuses the entry; one that fails for an entry that is in the ledger means that the ledger
is corrupt.

An entry is checked in full before anything changes.

The rules, of which each is needed; `state` has those of where records lie:

- An entry follows the one before by number and id, and its time is not below that one's.
- A query's number grows, unless a user lets one follow that does not. A mirror's progress names the
  progress that it replaces.
- Epochs of fences and formats grow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from spark_kbatch.errors import (
    CorruptLedgerError,
    KBatchError,
    MirrorFencedError,
    RefusedEntryError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.ledger import names
from spark_kbatch.ledger.entries import (
    FORMAT,
    NO_ENTRY,
    NO_ENTRY_ID,
    OFFSETS_RETENTION_MS,
    PRODUCER_ID_EXPIRATION_MS,
    STAGING_TIMEOUT_MS,
    CommittedGroupOffset,
    Content,
    Entry,
    Fence,
    LedgerCommit,
    LedgerStart,
    NamesById,
    NewFormat,
    Tombstone,
    TopicAlteration,
    TopicCreation,
    TopicDeletion,
    TopicGrowth,
)
from spark_kbatch.model import NO_TRANSACTION_SEQUENCE
from spark_kbatch.options.topic import PARTITIONS_MAX, TopicConfig, parse_topic_options
from spark_kbatch.store.repetitions import Evidence, LastKept

DEFAULT_LIMITS: Mapping[str, int] = {
    STAGING_TIMEOUT_MS: 7 * 86_400_000,
    PRODUCER_ID_EXPIRATION_MS: 86_400_000,
    OFFSETS_RETENTION_MS: 7 * 86_400_000,  # as Kafka's offsets.retention.minutes
}

# What expires is dropped by the first entry of each such interval.
_EXPIRATION_CHECK_MS = 600_000


class TopicHead(NamedTuple):
    """A topic."""

    topic_id: str
    name: str
    created: int  # number of the entry
    config: Mapping[str, str]  # given settings by Kafka's keys
    partitions: int  # how many

    @property
    def settings(self) -> TopicConfig:
        """The topic's settings, with the defaults of those that were not given."""
        return TopicConfig(**parse_topic_options(self.config))


class QueryHead(NamedTuple):
    """The last micro-batch of a query."""

    number: int
    entry: int
    evidence: Evidence | None = None  # of that micro-batch


class GroupHead(NamedTuple):
    """A group's offset in a partition."""

    offset: int
    metadata: str
    time_ms: int


class TombstoneAheadError(CorruptLedgerError):
    """A tombstone is the next entry."""


@dataclass
class MetadataImage:
    """What exists after one entry, and who committed what. Not thread-safe."""

    number: int = NO_ENTRY
    entry_id: str = NO_ENTRY_ID
    time_ms: int = 0
    cluster_id: str = ""
    format: int = FORMAT
    limits: dict[str, int] = field(default_factory=dict)
    topics: dict[str, TopicHead] = field(default_factory=dict)  # by id
    queries: dict[str, QueryHead] = field(default_factory=dict)
    mirrors: dict[str, str] = field(default_factory=dict)  # progress by name
    fences: dict[str, int] = field(default_factory=dict)  # epochs by name
    groups: dict[str, dict[tuple[str, int], GroupHead]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.topic_ids = {topic.name: topic.topic_id for topic in self.topics.values()}

    # Lookups.

    @property
    def topic_names(self) -> NamesById:
        """The names of all topics, by id."""
        return NamesById((topic.topic_id, topic.name) for topic in self.topics.values())

    def topic(self, name: str) -> TopicHead:
        """Return a topic by its name; raises UnknownTopicOrPartitionError."""
        if name not in self.topic_ids:
            raise UnknownTopicOrPartitionError(f"topic {name!r} does not exist")
        return self.topics[self.topic_ids[name]]

    def ensure_topic(self, topic_id: str) -> TopicHead:
        """Return the topic with an id; raises UnknownTopicOrPartitionError."""
        found = self.topics.get(topic_id)
        if found is None:
            raise UnknownTopicOrPartitionError(
                f"there is no topic with the id {topic_id}: it was deleted, or created again"
            )
        return found

    def ensure_partition(self, topic_id: str, partition: int) -> None:
        """Check that the topic with an id has a partition; raises UnknownTopicOrPartitionError."""
        topic = self.ensure_topic(topic_id)
        if not 0 <= partition < topic.partitions:
            raise UnknownTopicOrPartitionError(
                f"topic {topic.name!r} has partitions 0 to {topic.partitions - 1}, not {partition}"
            )

    def last_kept(self, query_id: str) -> LastKept:
        """Return what is kept of the last micro-batch of a query, or version of a name."""
        last = self.queries.get(query_id)
        return (NO_TRANSACTION_SEQUENCE, None) if last is None else (last.number, last.evidence)

    # One entry.

    def apply(self, entry: Entry) -> None:
        """Become the image after the next entry; raises as `check`, and is unchanged then."""
        self.check(entry)
        before_ms = self.time_ms
        self.number, self.entry_id, self.time_ms = entry.number, entry.entry_id, entry.time_ms
        self._change(entry.content)
        if before_ms // _EXPIRATION_CHECK_MS != self.time_ms // _EXPIRATION_CHECK_MS:
            self._expire()

    def check(self, entry: Entry) -> None:
        """Check that an entry may follow.

        Raises:
            RefusedEntryError, UnknownTopicOrPartitionError, TopicAlreadyExistsError, MirrorFencedError,
            OutOfOrderSequenceError, InvalidProducerEpochError: it may not.
        """
        ensure(
            entry.number == self.number + 1,
            f"it has the number {entry.number}, after {self.number}",
        )
        ensure(
            entry.before == self.entry_id,
            f"the entry before it is {self.entry_id}, and it says {entry.before}",
        )
        ensure(
            entry.time_ms >= self.time_ms,
            f"its time is {entry.time_ms}, and {self.time_ms} before it",
        )
        ensure(
            isinstance(entry.content, LedgerStart) == (self.number == NO_ENTRY),
            "the first entry, and no other, starts a ledger",
        )
        self._check(entry.content)

    def follow(self, entry: Entry) -> None:
        """Become the image after the next entry of the ledger, where it is already.

        Raises:
            TombstoneAheadError: it has become a tombstone.
            CorruptLedgerError: it cannot follow.
        """
        name = names.entry_name(entry.number)
        if isinstance(entry.content, Tombstone):
            raise TombstoneAheadError(
                name, "it is a tombstone, and no checkpoint that can be read is after it"
            )
        try:
            self.apply(entry)
        except KBatchError as error:
            raise CorruptLedgerError(name, f"it cannot follow: {error}") from None

    # Checks.

    def _check(self, content: Content) -> None:
        match content:
            case TopicCreation():
                self._check_creation(content)
            case TopicAlteration() | TopicDeletion():
                self.ensure_topic(content.topic_id)
            case TopicGrowth():
                topic = self.ensure_topic(content.topic_id)
                ensure(
                    topic.partitions + len(content.first_offsets) <= PARTITIONS_MAX,
                    f"topic {topic.name!r} would have more than {PARTITIONS_MAX} partitions",
                )
            case LedgerCommit():
                self._check_fence(content)
                self._check_micro_batch(content)
                self._check_mirror(content)
                for offsets in content.groups.values():
                    for one in offsets:
                        self.ensure_partition(one.topic_id, one.partition)
            case Fence(name, epoch):
                current = self.fences.get(name, -1)
                ensure(epoch > current, f"{name!r} has the epoch {current}, and is to get {epoch}")
            case NewFormat():
                ensure(
                    content.format > self.format,
                    f"the format is {self.format}, and is to become {content.format}",
                )
            case Tombstone():
                ensure(False, f"an entry of the kind {content.kind!r} is not written at the end")

    def _check_creation(self, content: TopicCreation) -> None:
        if content.name in self.topic_ids:
            raise TopicAlreadyExistsError(content.name)
        if content.topic_id in self.topics:
            other = self.topics[content.topic_id].name
            raise RefusedEntryError(f"topic {other!r} has the id {content.topic_id}")

    def _check_fence(self, content: LedgerCommit) -> None:
        held = content.fence
        if held is not None:
            epoch = self.fences.get(held.name)
            ensure(
                epoch == held.epoch,
                f"another process has taken over {held.name!r}: it has the epoch {epoch}, and this one {held.epoch}",
            )

    def _check_micro_batch(self, content: LedgerCommit) -> None:
        batch = content.micro_batch
        last = self.queries.get(batch.query_id) if batch else None
        is_resolved = content.evidence is not None and content.evidence.resolved
        if batch and last and not is_resolved:
            ensure(
                batch.number > last.number,
                f"{batch.query_id!r} has committed {last.number}, by entry {last.entry}, and is to commit "
                f"{batch.number}",
            )

    def _check_mirror(self, content: LedgerCommit) -> None:
        step = content.mirror
        if step is not None and self.mirrors.get(step.name, "") != step.before:
            raise MirrorFencedError(step.name, "the bucket")

    # Changes, of what was checked.

    def _change(self, content: Content) -> None:
        match content:
            case LedgerStart():
                self.cluster_id, self.format = content.cluster_id, content.format
                self.limits = dict(content.limits)
            case TopicCreation(topic_id, name):
                count, config = len(content.first_offsets), dict(content.config)
                self.topics[topic_id] = TopicHead(topic_id, name, self.number, config, count)
                self.topic_ids[name] = topic_id
            case TopicAlteration():
                topic = self.topics[content.topic_id]
                changed = {**topic.config, **content.changes}
                config = {key: value for key, value in changed.items() if value is not None}
                self.topics[content.topic_id] = topic._replace(config=config)
            case TopicGrowth():
                topic = self.topics[content.topic_id]
                count = topic.partitions + len(content.first_offsets)
                self.topics[content.topic_id] = topic._replace(partitions=count)
            case TopicDeletion():
                del self.topic_ids[self.topics.pop(content.topic_id).name]
                self._keep_offsets(lambda at, _: at[0] != content.topic_id)
            case LedgerCommit():
                self._commit(content)
            case Fence(name, epoch):
                self.fences[name] = epoch
            case NewFormat():
                self.format = content.format

    def _commit(self, content: LedgerCommit) -> None:
        if content.micro_batch:
            query_id, number = content.micro_batch
            self.queries[query_id] = QueryHead(number, self.number, content.evidence)
        if content.mirror:
            self.mirrors[content.mirror.name] = content.mirror.after
        for group, offsets in content.groups.items():
            self._set_offsets(group, offsets)

    def _set_offsets(self, group: str, offsets: Iterable[CommittedGroupOffset]) -> None:
        held = self.groups.pop(group, {})
        for topic_id, partition, offset, metadata in offsets:
            held.pop((topic_id, partition), None)
            if offset is not None:
                held[topic_id, partition] = GroupHead(offset, metadata, self.time_ms)
        self.groups |= {group: held} if held else {}

    def _keep_offsets(self, is_kept: Callable[[tuple[str, int], GroupHead], bool]) -> None:
        """Drop the offsets of groups of which `is_kept`, given topic id and partition, is false."""
        kept = {
            group: {at: head for at, head in offsets.items() if is_kept(at, head)}
            for group, offsets in self.groups.items()
        }
        self.groups = {group: offsets for group, offsets in kept.items() if offsets}

    # What expires.

    def _expire(self) -> None:
        """Drop what has expired."""
        self._keep_offsets(lambda _, head: not self._is_expired(OFFSETS_RETENTION_MS, head.time_ms))

    def _is_expired(self, limit: str, time_ms: int) -> bool:
        """Return True if what an entry of that time said is older than a limit, where there is one."""
        most_ms = self.limits.get(limit, 0)
        return most_ms > 0 and self.time_ms - time_ms >= most_ms


def ensure(is_allowed: bool, why_not: str) -> None:
    """Check a rule of the fold; raises RefusedEntryError."""
    if not is_allowed:
        raise RefusedEntryError(why_not)
