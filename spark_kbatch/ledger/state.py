"""The state of a cluster in a bucket after an entry: the fold of all entries up to it.

It is a pure function of the entries. Nothing else goes in, neither a clock nor an option of a process, since all
processes have to find the same: what expires does so by the times of entries, and by limits in the ledger. So
whoever has the state after entry n can check an entry n + 1 before it is created, and knows that the check holds
if the entry gets that number. A check that fails refuses the entry; one that fails for an entry that is in the
ledger means that the ledger is corrupt.

An entry is checked in full before anything changes.

The rules, of which each is needed:

- An entry follows the one before by number and id, and its time is not below that one's.
- A commit's stretches begin where their partitions end, so that offsets are dense.
- What an entry refers to began at the horizon or after it, by the number in each object's name, and not after
  the entry before. Everything older that nothing refers to may be deleted at any time.
- A query's number grows, unless a user lets one follow that does not. A mirror's progress names the
  progress that it replaces. A producer's sequences follow each other within its epoch, by partition;
  those of an unknown producer may begin anywhere.
- Start offsets grow, and stay below the end. Epochs of fences, formats and horizons grow.

- What replaces was begun after its topic was created: a topic may be created again with the same id.

What is replaced is not compared with what is there: whoever replaces a range gives the same records, and of two
that do the later counts. Where ranges overlap in part, either is right for the offsets that it covers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple, NoReturn, TypeAlias

from spark_kbatch.errors import (
    InvalidProducerEpochError,
    MirrorFencedError,
    OutOfOrderSequenceError,
    RefusedEntryError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.ledger import names
from spark_kbatch.ledger.codec import form_of, sequence, text, whole
from spark_kbatch.ledger.entries import (
    FORMAT,
    NO_ENTRY,
    NO_ENTRY_ID,
    OFFSETS_RETENTION_MS,
    PRODUCER_ID_EXPIRATION_MS,
    STAGING_TIMEOUT_MS,
    CommittedGroupOffset,
    Entry,
    Fence,
    Horizon,
    LedgerCommit,
    LedgerStart,
    NewFormat,
    ProducedBatch,
    ReplacedRange,
    Replacement,
    StartOffsets,
    TopicAlteration,
    TopicCreation,
    TopicDeletion,
    TopicGrowth,
    TopicName,
)
from spark_kbatch.ledger.extents import Change, Stretch, TopicId, began
from spark_kbatch.model import BATCHES_REMEMBERED, INT_MAX, NO_TRANSACTION_SEQUENCE, TopicPartition
from spark_kbatch.options.topic import PARTITIONS_MAX, TopicConfig, parse_topic_options
from spark_kbatch.record.header import increment_sequence
from spark_kbatch.store.repetitions import Evidence, LastKept

NO_CHECKPOINT = -1  # in place of an entry's number
DEFAULT_LIMITS: Mapping[str, int] = {
    STAGING_TIMEOUT_MS: 7 * 86_400_000,
    PRODUCER_ID_EXPIRATION_MS: 86_400_000,
    OFFSETS_RETENTION_MS: 7 * 86_400_000,  # as Kafka's offsets.retention.minutes
}

# What expires is dropped by the first entry of each such interval.
_EXPIRATION_CHECK_MS = 600_000

_Rule: TypeAlias = Callable[..., None]  # of a state and a content


class PartitionHead(NamedTuple):
    """The start and the end of a partition."""

    start_offset: int
    next_offset: int
    leader_epoch: Annotated[int, whole(0, INT_MAX)] = 0  # of the last commit

    @property
    def fault(self) -> str:
        """What it should be and is not; empty if nothing is wrong with it."""
        return (
            "" if self.start_offset <= self.next_offset else "an end that is not before the start"
        )


@dataclass
class TopicHead:
    """A topic and its partitions."""

    topic_id: Annotated[TopicId, "id"]
    name: TopicName
    created: int  # number of the entry
    config: dict[str, str]  # given settings by Kafka's keys
    partitions: Annotated[
        list[PartitionHead], sequence(form_of(PartitionHead), list, least=1, most=PARTITIONS_MAX)
    ]

    @property
    def settings(self) -> TopicConfig:
        """The topic's settings, with the defaults of those that were not given."""
        return TopicConfig(**parse_topic_options(self.config))

    @property
    def ends(self) -> dict[int, int]:
        """The end offset of each partition."""
        return {number: head.next_offset for number, head in enumerate(self.partitions)}


class RememberedBatch(NamedTuple):
    """A recent batch of a producer, to find duplicates of it."""

    first_sequence: int
    last_sequence: int
    base_offset: int


RememberedBatches: TypeAlias = Annotated[
    tuple[RememberedBatch, ...],
    sequence(form_of(RememberedBatch), least=1, most=BATCHES_REMEMBERED),
]


class ProducerHead(NamedTuple):
    """An idempotent producer in one partition: its epoch and the last batches of that, oldest first."""

    producer_epoch: int
    time_ms: int  # of its last entry
    batches: RememberedBatches


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


class PartRef(NamedTuple):
    """A part of a checkpoint."""

    name: Annotated[str, text(names.PART)]
    size_in_bytes: int
    crc: str


@dataclass
class TopicExtents:
    """The extents of a topic: those in parts of a checkpoint, and then those of later entries."""

    parts: tuple[PartRef, ...] = ()  # in the order of entries
    changes: list[Change] = field(default_factory=list)


@dataclass
class LedgerState:
    """The state after one entry. Not thread-safe."""

    number: int = NO_ENTRY
    entry_id: str = NO_ENTRY_ID
    time_ms: int = 0
    cluster_id: str = ""
    format: int = FORMAT
    horizon: int = 0
    limits: dict[str, int] = field(default_factory=dict)
    topics: dict[str, TopicHead] = field(default_factory=dict)  # by id
    producers: dict[tuple[int, str, int], ProducerHead] = field(default_factory=dict)
    queries: dict[str, QueryHead] = field(default_factory=dict)
    mirrors: dict[str, str] = field(default_factory=dict)  # progress by name
    fences: dict[str, int] = field(default_factory=dict)  # epochs by name
    groups: dict[str, dict[tuple[str, int], GroupHead]] = field(default_factory=dict)

    # The number of the checkpoint that the parts are of; `changes` are of the entries after it.
    checkpoint: int = NO_CHECKPOINT
    extents: dict[str, TopicExtents] = field(default_factory=dict)  # by topic id

    def __post_init__(self) -> None:
        self.topic_ids = {topic.name: topic.topic_id for topic in self.topics.values()}

    # Lookups.

    def topic(self, name: str) -> TopicHead:
        """Return a topic by its name; raises UnknownTopicOrPartitionError."""
        if name not in self.topic_ids:
            raise UnknownTopicOrPartitionError(f"topic {name!r} does not exist")
        return self.topics[self.topic_ids[name]]

    def partition(self, topic_id: str, partition: int) -> PartitionHead:
        """Return a partition of the topic with an id; raises UnknownTopicOrPartitionError."""
        partitions = self.ensure_topic(topic_id).partitions
        if not 0 <= partition < len(partitions):
            raise UnknownTopicOrPartitionError(
                f"topic {self.topics[topic_id].name!r} has partitions 0 to {len(partitions) - 1}, not {partition}"
            )
        return partitions[partition]

    def last_kept(self, query_id: str) -> LastKept:
        """Return what is kept of the last micro-batch of a query, or version of a name."""
        last = self.queries.get(query_id)
        return (NO_TRANSACTION_SEQUENCE, None) if last is None else (last.number, last.evidence)

    def following(self, topic_id: str, stretch: Stretch) -> Stretch:
        """Return a stretch with the offset and the leader epoch that it has behind all of its partition."""
        head = self.partition(topic_id, stretch.partition)
        return stretch._replace(base_offset=head.next_offset, leader_epoch=head.leader_epoch)

    def ensure_topic(self, topic_id: str) -> TopicHead:
        """Return the topic with an id; raises UnknownTopicOrPartitionError."""
        found = self.topics.get(topic_id)
        if found is None:
            raise UnknownTopicOrPartitionError(
                f"there is no topic with the id {topic_id}: it was deleted, or created again"
            )
        return found

    # One entry.

    def apply(self, entry: Entry) -> None:
        """Become the state after the next entry; raises as `check`, and is unchanged then."""
        self.check(entry)
        before_ms = self.time_ms
        self.number, self.entry_id, self.time_ms = entry.number, entry.entry_id, entry.time_ms
        change, _ = self._RULES[type(entry.content)]
        change(self, entry.content)
        self._expire(before_ms)

    def check(self, entry: Entry) -> None:
        """Check that an entry may follow.

        Raises:
            RefusedEntryError, UnknownTopicOrPartitionError, TopicAlreadyExistsError, MirrorFencedError,
            OutOfOrderSequenceError, InvalidProducerEpochError: it may not.
        """
        if entry.number != self.number + 1:
            _refuse(f"it has the number {entry.number}, after {self.number}")
        if entry.before != self.entry_id:
            _refuse(f"the entry before it is {self.entry_id}, and it says {entry.before}")
        if entry.time_ms < self.time_ms:
            _refuse(f"its time is {entry.time_ms}, and {self.time_ms} before it")
        content = entry.content
        if isinstance(content, LedgerStart) != (self.number == NO_ENTRY):
            _refuse("the first entry, and no other, starts a ledger")
        if type(content) not in self._RULES:
            _refuse(f"an entry of the kind {content.kind!r} is not written at the end")
        _, check = self._RULES[type(content)]
        if check is not None:
            check(self, content)

    # Checks.

    def _check_creation(self, content: TopicCreation) -> None:
        if content.name in self.topic_ids:
            raise TopicAlreadyExistsError(content.name)
        if content.topic_id in self.topics:
            other = self.topics[content.topic_id].name
            _refuse(f"topic {other!r} has the id {content.topic_id}")

    def _check_topic(self, content: TopicAlteration | TopicDeletion) -> None:
        self.ensure_topic(content.topic_id)

    def _check_growth(self, content: TopicGrowth) -> None:
        topic = self.ensure_topic(content.topic_id)
        if len(topic.partitions) + len(content.first_offsets) > PARTITIONS_MAX:
            _refuse(f"topic {topic.name!r} would have more than {PARTITIONS_MAX} partitions")

    def _check_commit(self, content: LedgerCommit) -> None:
        self._check_fence(content)
        self._check_micro_batch(content)
        self._check_mirror(content)
        self._check_starts(content)
        for topic_id, stretches in content.stretches.items():
            seen = set()
            for stretch in stretches:
                head = self.partition(topic_id, stretch.partition)
                if stretch.partition in seen or stretch.base_offset != head.next_offset:
                    _refuse(
                        f"{self._name(topic_id, stretch.partition)} ends at {head.next_offset}, and is to "
                        f"go on at {stretch.base_offset}"
                    )
                if stretch.leader_epoch < head.leader_epoch:
                    _refuse(
                        f"{self._name(topic_id, stretch.partition)} has the leader epoch "
                        f"{head.leader_epoch}, and is to get {stretch.leader_epoch}"
                    )
                seen.add(stretch.partition)
        self._check_objects(content.stretches)
        self._check_produced(content)
        for offsets in content.groups.values():
            for one in offsets:
                self.partition(one.topic_id, one.partition)

    def _check_fence(self, content: LedgerCommit) -> None:
        held = content.fence
        if held is not None and self.fences.get(held.name) != held.epoch:
            _refuse(
                f"another process has taken over {held.name!r}: it has the epoch "
                f"{self.fences.get(held.name)}, and this one {held.epoch}"
            )

    def _check_micro_batch(self, content: LedgerCommit) -> None:
        batch = content.micro_batch
        last = self.queries.get(batch.query_id) if batch else None
        is_resolved = content.evidence is not None and content.evidence.resolved
        if batch and last and batch.number <= last.number and not is_resolved:
            _refuse(
                f"{batch.query_id!r} has committed {last.number}, by entry {last.entry}, and is to commit "
                f"{batch.number}"
            )

    def _check_mirror(self, content: LedgerCommit) -> None:
        step = content.mirror
        if step is not None and self.mirrors.get(step.name, "") != step.before:
            raise MirrorFencedError(step.name, "the bucket")

    def _check_starts(self, content: LedgerCommit | StartOffsets) -> None:
        for topic_id, of_topic in content.starts.items():
            for partition, offset in of_topic.items():
                head = self.partition(topic_id, partition)
                if not head.start_offset <= offset <= head.next_offset:
                    _refuse(
                        f"{self._name(topic_id, partition)} has the offsets {head.start_offset} to "
                        f"{head.next_offset}, and is to start at {offset}"
                    )

    def _check_objects(self, stretches: Mapping[str, Iterable[Stretch]]) -> None:
        """Check the number in the name of each object against the horizon."""
        for name, number in began({key: [*found] for key, found in stretches.items()}):
            if number < self.horizon:
                _refuse(
                    f"{name} was begun before entry {self.horizon}, which is the horizon: it took longer than "
                    f"{STAGING_TIMEOUT_MS}, and may be deleted by now"
                )
            if number > self.number:
                _refuse(f"{name} was begun after entry {number}, which there is not yet")

    def _check_produced(self, content: LedgerCommit) -> None:
        ends = {
            (topic_id, stretch.partition): stretch
            for topic_id, of_topic in content.stretches.items()
            for stretch in of_topic
        }
        heads: dict[tuple[int, str, int], ProducerHead] = {}
        for batch in content.produced:
            stretch = ends.get((batch.topic_id, batch.partition))
            if (
                stretch is None
                or not stretch.base_offset <= batch.base_offset < stretch.next_offset
            ):
                _refuse(
                    f"a batch of producer {batch.producer_id} is not in the commit that names it"
                )
            key = _producer_key(batch)
            head = heads.get(key) or self.producers.get(key)
            if head is not None:
                self.check_follows(batch, head)
            heads[key] = _after(head, batch, 0)

    def check_follows(self, batch: ProducedBatch, head: ProducerHead) -> None:
        """Check that a batch is the next one of its producer, given the last ones in its partition.

        Raises:
            InvalidProducerEpochError: another process has the producer id by now.
            OutOfOrderSequenceError: a batch before it is missing.
        """
        where = self._name(batch.topic_id, batch.partition)
        if batch.producer_epoch < head.producer_epoch:
            raise InvalidProducerEpochError(
                where, batch.producer_id, head.producer_epoch, batch.producer_epoch
            )
        is_same = batch.producer_epoch == head.producer_epoch
        expected = increment_sequence(head.batches[-1].last_sequence, 1) if is_same else 0
        if batch.first_sequence != expected:
            raise OutOfOrderSequenceError(where, batch.producer_id, expected, batch.first_sequence)

    def _check_replacement(self, content: Replacement) -> None:
        for topic_id, ranges in content.ranges.items():
            for one in ranges:
                self._check_range(topic_id, one)
        self._check_objects(content.stretches)
        for topic_id, stretches in content.stretches.items():
            created = self.topics[topic_id].created
            for name, number in began({topic_id: stretches}):
                if number < created:
                    _refuse(f"{name} was begun before its topic was created, by entry {created}")

    def _check_range(self, topic_id: str, one: ReplacedRange) -> None:
        head, offset = self.partition(topic_id, one.partition), one.start_offset
        for stretch in one.stretches:
            if (stretch.partition, stretch.base_offset) != (one.partition, offset):
                _refuse(
                    f"{self._name(topic_id, one.partition)} is to be replaced from {offset} on, by what is "
                    f"{stretch.partition}, {stretch.base_offset}"
                )
            offset = stretch.next_offset
        if not one.start_offset < offset == one.next_offset <= head.next_offset:
            _refuse(
                f"{self._name(topic_id, one.partition)} ends at {head.next_offset}, and is to be replaced "
                f"from {one.start_offset} to {one.next_offset}, by what ends at {offset}"
            )

    def _check_new_fence(self, content: Fence) -> None:
        current = self.fences.get(content.name, -1)
        if content.epoch <= current:
            _refuse(f"{content.name!r} has the epoch {current}, and is to get {content.epoch}")

    def _check_horizon(self, content: Horizon) -> None:
        if not self.horizon < content.number <= self.number:
            _refuse(
                f"the horizon is {self.horizon}, the last entry {self.number}: it cannot move to {content.number}"
            )

    def _check_format(self, content: NewFormat) -> None:
        if content.format <= self.format:
            _refuse(f"the format is {self.format}, and is to become {content.format}")

    # Changes, of what was checked.

    def _start(self, content: LedgerStart) -> None:
        self.cluster_id, self.format = content.cluster_id, content.format
        self.limits = dict(content.limits)

    def _create(self, content: TopicCreation) -> None:
        heads = [PartitionHead(offset, offset) for offset in content.first_offsets]
        self.topics[content.topic_id] = TopicHead(
            content.topic_id, content.name, self.number, dict(content.config), heads
        )
        self.topic_ids[content.name] = content.topic_id
        self.extents[content.topic_id] = TopicExtents()

    def _alter(self, content: TopicAlteration) -> None:
        config = self.topics[content.topic_id].config
        for key, value in content.changes.items():
            if value is None:
                config.pop(key, None)
            else:
                config[key] = value

    def _grow(self, content: TopicGrowth) -> None:
        heads = [PartitionHead(offset, offset) for offset in content.first_offsets]
        self.topics[content.topic_id].partitions += heads

    def _delete(self, content: TopicDeletion) -> None:
        topic_id = content.topic_id
        del self.topic_ids[self.topics.pop(topic_id).name]
        del self.extents[topic_id]
        self.producers = {key: head for key, head in self.producers.items() if key[1] != topic_id}
        self._keep_offsets(lambda key, _: key[0] != topic_id)

    def _commit(self, content: LedgerCommit) -> None:
        self._move_starts(content)
        for topic_id, stretches in content.stretches.items():
            for stretch in stretches:
                self._move(
                    topic_id,
                    stretch.partition,
                    next_offset=stretch.next_offset,
                    leader_epoch=stretch.leader_epoch,
                )
        self._read_from(content)
        if content.micro_batch:
            query_id, number = content.micro_batch
            self.queries[query_id] = QueryHead(number, self.number, content.evidence)
        if content.mirror:
            self.mirrors[content.mirror.name] = content.mirror.after
        for batch in content.produced:
            key = _producer_key(batch)
            self.producers[key] = _after(self.producers.get(key), batch, self.time_ms)
        for group, offsets in content.groups.items():
            self._set_offsets(group, offsets)

    def _set_offsets(self, group: str, offsets: Iterable[CommittedGroupOffset]) -> None:
        found = self.groups.get(group, {})
        for topic_id, partition, offset, metadata in offsets:
            if offset is None:
                found.pop((topic_id, partition), None)
            else:
                found[topic_id, partition] = GroupHead(offset, metadata, self.time_ms)
        self._set_group(group, found)

    def _set_group(self, group: str, offsets: dict[tuple[str, int], GroupHead]) -> None:
        if offsets:
            self.groups[group] = offsets
        else:
            self.groups.pop(group, None)

    def _keep_offsets(self, is_kept: Callable[[tuple[str, int], GroupHead], bool]) -> None:
        """Drop the offsets of groups of which `is_kept`, given topic id and partition, is false."""
        for group, offsets in [*self.groups.items()]:
            kept = {key: head for key, head in offsets.items() if is_kept(key, head)}
            self._set_group(group, kept)

    def _move_starts(self, content: LedgerCommit | StartOffsets) -> None:
        for topic_id, of_topic in content.starts.items():
            for partition, offset in of_topic.items():
                self._move(topic_id, partition, start_offset=offset)

    def _move(self, topic_id: str, partition: int, **offsets: int) -> None:
        heads = self.topics[topic_id].partitions
        heads[partition] = heads[partition]._replace(**offsets)

    def _read_from(self, content: LedgerCommit | Replacement) -> None:
        for topic_id, stretches in content.stretches.items():
            self.extents[topic_id].changes += [
                Change(self.number, one.base_offset, one.next_offset, one) for one in stretches
            ]

    def _set_fence(self, content: Fence) -> None:
        self.fences[content.name] = content.epoch

    def _set_horizon(self, content: Horizon) -> None:
        self.horizon = content.number

    def _set_format(self, content: NewFormat) -> None:
        self.format = content.format

    # What expires.

    def _expire(self, before_ms: int) -> None:
        """Drop what has expired, at the first entry of an interval; `before_ms` is the time of the one before."""
        if before_ms // _EXPIRATION_CHECK_MS == self.time_ms // _EXPIRATION_CHECK_MS:
            return
        self.producers = {
            key: head
            for key, head in self.producers.items()
            if not self._is_expired(PRODUCER_ID_EXPIRATION_MS, head.time_ms)
        }
        self._keep_offsets(lambda _, head: not self._is_expired(OFFSETS_RETENTION_MS, head.time_ms))

    def _is_expired(self, limit: str, time_ms: int) -> bool:
        """Return True if what an entry of that time said is older than a limit, where there is one."""
        most_ms = self.limits.get(limit, 0)
        return most_ms > 0 and self.time_ms - time_ms >= most_ms

    def _name(self, topic_id: str, partition: int) -> str:
        return str(TopicPartition(self.topics[topic_id].name, partition))

    # For each kind, what it changes, and what has to hold before.
    _RULES: ClassVar[Mapping[type[Any], tuple[_Rule, _Rule | None]]] = {
        LedgerStart: (_start, None),
        TopicCreation: (_create, _check_creation),
        TopicAlteration: (_alter, _check_topic),
        TopicGrowth: (_grow, _check_growth),
        TopicDeletion: (_delete, _check_topic),
        LedgerCommit: (_commit, _check_commit),
        StartOffsets: (_move_starts, _check_starts),
        Replacement: (_read_from, _check_replacement),
        Fence: (_set_fence, _check_new_fence),
        Horizon: (_set_horizon, _check_horizon),
        NewFormat: (_set_format, _check_format),
    }


def _producer_key(batch: ProducedBatch) -> tuple[int, str, int]:
    return batch.producer_id, batch.topic_id, batch.partition


def _after(head: ProducerHead | None, batch: ProducedBatch, time_ms: int) -> ProducerHead:
    is_same = head is not None and head.producer_epoch == batch.producer_epoch
    batches = head.batches if head is not None and is_same else ()
    one = RememberedBatch(batch.first_sequence, batch.last_sequence, batch.base_offset)
    return ProducerHead(batch.producer_epoch, time_ms, (*batches, one)[-BATCHES_REMEMBERED:])


def _refuse(why: str) -> NoReturn:
    raise RefusedEntryError(why)
