"""The state of a cluster in a bucket after an entry: the image of what exists, and where its records lie.

Both are one fold of the entries, as `image` says. Its rules for records, of which each is needed:

- A commit's appends begin where their partitions end, so that offsets are dense.
- What an entry refers to began at the GC boundary or after it, by the number in each object's
  name, and not after the entry before. Everything older that nothing refers to may be deleted at
  any time.
- A producer's sequences follow each other within its epoch, by partition; those of an unknown
  producer may begin anywhere.
- Start offsets grow, and stay below the end. The GC boundary grows.
- What replaces was begun after its topic was created: a topic may be created again with the same id.

What is replaced is not compared with what is there: whoever replaces a range gives the same records, and of two
that do the later counts. Where ranges overlap in part, either is right for the offsets that it covers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple, TypeAlias

from spark_kbatch.errors import (
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
    RefusedEntryError,
)
from spark_kbatch.ledger import names
from spark_kbatch.ledger.codec import form_of, sequence, text, whole
from spark_kbatch.ledger.entries import (
    PRODUCER_ID_EXPIRATION_MS,
    STAGING_TIMEOUT_MS,
    Content,
    GcBoundary,
    LedgerCommit,
    ProducedBatch,
    Replacement,
    Rewrite,
    StartOffsets,
    TopicCreation,
    TopicDeletion,
    TopicGrowth,
)
from spark_kbatch.ledger.extents import Change, PartitionAppend, start_entries
from spark_kbatch.ledger.image import MetadataImage, ensure
from spark_kbatch.model import BATCHES_REMEMBERED, INT_MAX, TopicPartition
from spark_kbatch.record.header import increment_sequence

NO_CHECKPOINT = -1  # in place of an entry's number


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
class LedgerState(MetadataImage):
    """The state after one entry. Not thread-safe."""

    gc_boundary: int = 0
    heads: dict[str, list[PartitionHead]] = field(default_factory=dict)  # by topic id
    producers: dict[tuple[int, str, int], ProducerHead] = field(default_factory=dict)

    # The number of the checkpoint that the parts are of; `changes` are of the entries after it.
    checkpoint: int = NO_CHECKPOINT
    extents: dict[str, TopicExtents] = field(default_factory=dict)  # by topic id

    # Lookups.

    def partition(self, topic_id: str, partition: int) -> PartitionHead:
        """Return a partition of the topic with an id; raises UnknownTopicOrPartitionError."""
        self.ensure_partition(topic_id, partition)
        return self.heads[topic_id][partition]

    def ends(self, topic_id: str) -> dict[int, int]:
        """Return the end offset of each partition of the topic with an id."""
        return {number: head.next_offset for number, head in enumerate(self.heads[topic_id])}

    def following(self, topic_id: str, append: PartitionAppend) -> PartitionAppend:
        """Return an append with the offset and the leader epoch that it has behind all of its partition."""
        head = self.partition(topic_id, append.partition)
        return append._replace(base_offset=head.next_offset, leader_epoch=head.leader_epoch)

    # Checks.

    def _check(self, content: Content) -> None:
        super()._check(content)
        match content:
            case LedgerCommit():
                self._check_starts(content)
                self._check_appends(content)
                self._check_objects(content.appends)
                self._check_produced(content)
            case StartOffsets():
                self._check_starts(content)
            case Replacement():
                self._check_replacement(content)
            case GcBoundary(number):
                ensure(
                    self.gc_boundary < number <= self.number,
                    f"the horizon is {self.gc_boundary}, the last entry {self.number}: it cannot move to {number}",
                )

    def _check_starts(self, content: LedgerCommit | StartOffsets) -> None:
        for topic_id, of_topic in content.starts.items():
            for partition, offset in of_topic.items():
                head = self.partition(topic_id, partition)
                ensure(
                    head.start_offset <= offset <= head.next_offset,
                    f"{self._name(topic_id, partition)} has the offsets {head.start_offset} to "
                    f"{head.next_offset}, and is to start at {offset}",
                )

    def _check_appends(self, content: LedgerCommit) -> None:
        for topic_id, appends in content.appends.items():
            seen = set[int]()
            for one in appends:
                head = self.partition(topic_id, one.partition)
                if one.partition in seen or one.base_offset != head.next_offset:
                    raise RefusedEntryError(
                        f"{self._name(topic_id, one.partition)} ends at {head.next_offset}, and is to "
                        f"go on at {one.base_offset}"
                    )
                if one.leader_epoch < head.leader_epoch:
                    raise RefusedEntryError(
                        f"{self._name(topic_id, one.partition)} has the leader epoch "
                        f"{head.leader_epoch}, and is to get {one.leader_epoch}"
                    )
                seen.add(one.partition)

    def _check_objects(self, appends: Mapping[str, Iterable[PartitionAppend]]) -> None:
        """Check the number in the name of each object against the GC boundary."""
        for name, number in start_entries(appends):
            if number < self.gc_boundary:
                raise RefusedEntryError(
                    f"{name} was begun before entry {self.gc_boundary}, which is the horizon: it took longer than "
                    f"{STAGING_TIMEOUT_MS}, and may be deleted by now"
                )
            ensure(
                number <= self.number,
                f"{name} was begun after entry {number}, which there is not yet",
            )

    def _check_produced(self, content: LedgerCommit) -> None:
        ends = {
            (topic_id, append.partition): append
            for topic_id, of_topic in content.appends.items()
            for append in of_topic
        }
        heads: dict[tuple[int, str, int], ProducerHead] = {}
        for batch in content.produced:
            append = ends.get((batch.topic_id, batch.partition))
            ensure(
                append is not None and append.base_offset <= batch.base_offset < append.next_offset,
                f"a batch of producer {batch.producer_id} is not in the commit that names it",
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
        self._check_objects(content.appends)
        for topic_id, appends in content.appends.items():
            created = self.topics[topic_id].created
            for name, number in start_entries({topic_id: appends}):
                ensure(
                    number >= created,
                    f"{name} was begun before its topic was created, by entry {created}",
                )

    def _check_range(self, topic_id: str, one: Rewrite) -> None:
        head, offset = self.partition(topic_id, one.partition), one.start_offset
        name = self._name(topic_id, one.partition)
        for append in one.appends:
            ensure(
                (append.partition, append.base_offset) == (one.partition, offset),
                f"{name} is to be replaced from {offset} on, by what is {append.partition}, {append.base_offset}",
            )
            offset = append.next_offset
        ensure(
            one.start_offset < offset == one.next_offset <= head.next_offset,
            f"{name} ends at {head.next_offset}, and is to be replaced "
            f"from {one.start_offset} to {one.next_offset}, by what ends at {offset}",
        )

    # Changes, of what was checked.

    def _change(self, content: Content) -> None:
        super()._change(content)
        match content:
            case TopicCreation() | TopicGrowth():
                heads = self.heads.setdefault(content.topic_id, [])
                heads += [PartitionHead(offset, offset) for offset in content.first_offsets]
                self.extents.setdefault(content.topic_id, TopicExtents())
            case TopicDeletion(topic_id):
                del self.heads[topic_id], self.extents[topic_id]
                self.producers = {
                    key: head for key, head in self.producers.items() if key[1] != topic_id
                }
            case LedgerCommit():
                self._move_starts(content)
                self._add_appends(content)
                self._read_from(content)
                for batch in content.produced:
                    key = _producer_key(batch)
                    self.producers[key] = _after(self.producers.get(key), batch, self.time_ms)
            case StartOffsets():
                self._move_starts(content)
            case Replacement():
                self._read_from(content)
            case GcBoundary(number):
                self.gc_boundary = number

    def _move_starts(self, content: LedgerCommit | StartOffsets) -> None:
        for topic_id, of_topic in content.starts.items():
            heads = self.heads[topic_id]
            for partition, offset in of_topic.items():
                heads[partition] = heads[partition]._replace(start_offset=offset)

    def _add_appends(self, content: LedgerCommit) -> None:
        for topic_id, appends in content.appends.items():
            heads = self.heads[topic_id]
            for one in appends:
                start_offset = heads[one.partition].start_offset
                heads[one.partition] = PartitionHead(
                    start_offset, one.next_offset, one.leader_epoch
                )

    def _read_from(self, content: LedgerCommit | Replacement) -> None:
        for topic_id, appends in content.appends.items():
            self.extents[topic_id].changes += [
                Change(self.number, one.base_offset, one.next_offset, one) for one in appends
            ]

    # What expires.

    def _expire(self) -> None:
        super()._expire()
        self.producers = {
            key: head
            for key, head in self.producers.items()
            if not self._is_expired(PRODUCER_ID_EXPIRATION_MS, head.time_ms)
        }

    def _name(self, topic_id: str, partition: int) -> str:
        return str(TopicPartition(self.topics[topic_id].name, partition))


def _producer_key(batch: ProducedBatch) -> tuple[int, str, int]:
    return batch.producer_id, batch.topic_id, batch.partition


def _after(head: ProducerHead | None, batch: ProducedBatch, time_ms: int) -> ProducerHead:
    is_same = head is not None and head.producer_epoch == batch.producer_epoch
    batches = head.batches if head is not None and is_same else ()
    one = RememberedBatch(batch.first_sequence, batch.last_sequence, batch.base_offset)
    return ProducerHead(batch.producer_epoch, time_ms, (*batches, one)[-BATCHES_REMEMBERED:])
