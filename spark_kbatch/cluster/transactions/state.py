"""The state of one transactional id, and what each request makes of it: no I/O, no clock.

    Empty          no transaction yet, or none since its producer started
    Ongoing        partitions or groups were added to a transaction
    Prepare...     it is decided: what follows a decision goes on
    Complete...    all partitions have their marker

A request is a function of the state to the next one, or to the error that the client gets. A state that comes
back unchanged needs no record. The producer's epoch is raised by each start of a producer, which so fences the
one before it, and by an abort that the producer did not ask for.

A transaction's offsets of groups are here until it is decided, and until they are stored. So
`__consumer_offsets` never holds a transactional batch, and a group's offsets are read without its transactions.

Source: Kafka transaction-coordinator/.../TransactionMetadata.java; TransactionCoordinator.scala; KIP-360, KIP-447.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from spark_kbatch.cluster.group_records import CommittedOffset
from spark_kbatch.model import TopicPartition
from spark_kbatch.record.header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from spark_kbatch.wire.errors import ErrorCode

EPOCH_MAX = 2**15 - 2  # that a producer gets; one more is left to fence it
NO_START = -1
EXPIRATION_MS = 7 * 24 * 60 * 60 * 1000  # Kafka's transactional.id.expiration.ms


class Status(IntEnum):
    """The state of a transaction, by Kafka's numbers."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def shown(self) -> str:
        """Kafka's name of it, such as PrepareCommit."""
        return self.name.title().replace("_", "")


_COMPLETE = {
    Status.PREPARE_COMMIT: Status.COMPLETE_COMMIT, Status.PREPARE_ABORT: Status.COMPLETE_ABORT,
}  # fmt: skip


class ProducerIdAndEpoch(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    epoch: int


NO_PRODUCER = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
PendingOffsets: TypeAlias = Mapping[TopicPartition, CommittedOffset]
_NOTHING: Mapping[TopicPartition, str] = {}
_NO_GROUPS: Mapping[str, PendingOffsets] = {}


class TransactionMetadata(NamedTuple):
    """A transactional id with its current or last transaction; replaced whole."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    timeout_ms: int
    status: Status = Status.EMPTY
    partitions: Mapping[TopicPartition, str] = _NOTHING  # with the ids of their topics
    offsets: Mapping[str, PendingOffsets] = _NO_GROUPS  # that are pending, by group
    updated_ms: int = NO_START
    start_ms: int = NO_START  # when the first partition or group was added
    # Before the producer's last start, if that was by the same client.
    former: ProducerIdAndEpoch = NO_PRODUCER
    commit_epoch: int = (
        NO_PRODUCER_EPOCH  # in which this producer id has last committed; -1 for never
    )

    @property
    def is_open(self) -> bool:
        """Whether the transaction is not decided yet."""
        return self.status is Status.ONGOING

    @property
    def is_decided(self) -> bool:
        """Whether the transaction is decided, but not ended in all partitions."""
        return self.status in _COMPLETE

    @property
    def is_active(self) -> bool:
        """Whether the transaction is open, or decided and not ended in all partitions."""
        return self.is_open or self.is_decided

    @property
    def is_commit(self) -> bool:
        """Whether the decision is to commit."""
        return self.status is Status.PREPARE_COMMIT

    def has(
        self, producer: ProducerIdAndEpoch, topic_partition: TopicPartition, topic_id: str
    ) -> bool:
        """Return True if this producer may write to a partition now, in an open transaction."""
        return (
            self.is_open
            and producer == self.producer
            and self.partitions.get(topic_partition) == topic_id
        )

    def is_due(self, now_ms: int) -> bool:
        """Return True if whoever keeps all servers away ends it: it is decided, or its time is up."""
        return self.is_decided or (self.is_open and now_ms - self.start_ms >= self.timeout_ms)

    def is_expired(self, now_ms: int, unused_ms: int = EXPIRATION_MS) -> bool:
        """Return True if nothing was done with this id for so long that it is forgotten."""
        is_idle = now_ms - self.updated_ms >= unused_ms
        return is_idle and not self.is_open and not self.is_decided


Step: TypeAlias = TransactionMetadata | ErrorCode


def needs_producer_id(known: TransactionMetadata | None) -> bool:
    """Return True if the next start of this id's producer needs a new producer id."""
    return known is None or known.producer.epoch >= EPOCH_MAX


def start_producer(
    known: TransactionMetadata | None,
    transactional_id: str,
    timeout_ms: int,
    caller: ProducerIdAndEpoch | None,
    new_producer_id: int,
    now_ms: int,
) -> Step:
    """Give the id to a producer that starts, or to `caller`, which goes on after an error, in a new epoch.

    If a transaction is open, it is aborted: the next state is a decision, and the client asks again. That fences a
    caller, too, as in Kafka: it ends its transaction before it goes on.

    Args:
        known: the state; None for a new id.
        transactional_id: the id.
        timeout_ms: the longest that a transaction may be open.
        caller: the producer that asks, if it has had the id before.
        new_producer_id: for `needs_producer_id`.
        now_ms: the time of day.
    """
    if known is None:
        producer = ProducerIdAndEpoch(new_producer_id, 0)
        return TransactionMetadata(transactional_id, producer, timeout_ms, updated_ms=now_ms)
    if caller is not None and caller not in (known.producer, known.former):
        return ErrorCode.PRODUCER_FENCED
    if known.is_decided:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if known.is_open:
        return fence(known, now_ms)
    if caller == known.former and not needs_producer_id(known):
        return known  # The answer was lost: no one has started since.
    producer = ProducerIdAndEpoch(known.producer.producer_id, known.producer.epoch + 1)
    commit_epoch = known.commit_epoch
    if needs_producer_id(known):
        producer, commit_epoch = ProducerIdAndEpoch(new_producer_id, 0), NO_PRODUCER_EPOCH
    return known._replace(
        producer=producer,
        commit_epoch=commit_epoch,
        timeout_ms=timeout_ms,
        status=Status.EMPTY,
        updated_ms=now_ms,
        start_ms=NO_START,
        former=caller or NO_PRODUCER,
    )


def add_partitions(
    known: TransactionMetadata | None,
    producer: ProducerIdAndEpoch,
    partitions: Mapping[TopicPartition, str],
    now_ms: int,
) -> Step:
    """Add partitions, with the ids of their topics, to the transaction; the first start one."""
    added = _added_to(known, producer, now_ms)
    if isinstance(added, ErrorCode) or partitions.items() <= added.partitions.items():
        return added
    return added._replace(partitions={**added.partitions, **partitions})


def add_group(
    known: TransactionMetadata | None, producer: ProducerIdAndEpoch, group_id: str, now_ms: int
) -> Step:
    """Add a group, whose offsets the transaction will have."""
    added = _added_to(known, producer, now_ms)
    if isinstance(added, ErrorCode) or group_id in added.offsets:
        return added
    return added._replace(offsets={**added.offsets, group_id: {}})


def add_offsets(
    known: TransactionMetadata | None,
    producer: ProducerIdAndEpoch,
    group_id: str,
    offsets: PendingOffsets,
    now_ms: int,
) -> Step:
    """Add offsets of a group that was added to the transaction."""
    added = _added_to(known, producer, now_ms)
    if isinstance(added, ErrorCode):
        return added
    if group_id not in added.offsets:
        return ErrorCode.INVALID_TXN_STATE
    of_group = {**added.offsets[group_id], **offsets}
    return added._replace(offsets={**added.offsets, group_id: of_group}, updated_ms=now_ms)


def decide(
    known: TransactionMetadata | None, producer: ProducerIdAndEpoch, *, is_commit: bool, now_ms: int
) -> Step:
    """Decide the transaction; the next state is the decision. A repetition is answered like the first."""
    owned = _owned(known, producer)
    if isinstance(owned, ErrorCode):
        return owned
    decision = Status.PREPARE_COMMIT if is_commit else Status.PREPARE_ABORT
    if owned.is_open:
        return _decided(owned, decision, now_ms)
    if owned.status is _COMPLETE[decision]:
        return owned
    if owned.status is decision:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return ErrorCode.INVALID_TXN_STATE


def fence(known: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """Abort an open transaction whose producer did not ask for it, and must not write any more."""
    fenced = ProducerIdAndEpoch(known.producer.producer_id, known.producer.epoch + 1)
    decided = _decided(known, Status.PREPARE_ABORT, now_ms)
    return decided._replace(producer=fenced, former=NO_PRODUCER)


def without_offsets(known: TransactionMetadata) -> TransactionMetadata:
    """Return the decided state once its offsets are stored, which are not stored again."""
    return known._replace(offsets=_NO_GROUPS)


def without_offsets_of(
    known: TransactionMetadata, group_id: str, partitions: Collection[TopicPartition]
) -> TransactionMetadata:
    """Return the state once a group's offsets of these partitions are deleted; unchanged if it has none of them."""
    of_group = known.offsets.get(group_id, {})
    left = {tp: value for tp, value in of_group.items() if tp not in partitions}
    if left == of_group:
        return known
    return known._replace(offsets={**known.offsets, group_id: left})


def complete(known: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """Return the state once all that follows the decision is done."""
    status = _COMPLETE[known.status]
    return known._replace(status=status, partitions=_NOTHING, offsets=_NO_GROUPS, updated_ms=now_ms)


def _owned(known: TransactionMetadata | None, producer: ProducerIdAndEpoch) -> Step:
    if known is None or known.producer.producer_id != producer.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    # The last epoch belongs to no producer.
    is_owner = known.producer == producer and producer.epoch <= EPOCH_MAX
    return known if is_owner else ErrorCode.PRODUCER_FENCED


def _added_to(known: TransactionMetadata | None, producer: ProducerIdAndEpoch, now_ms: int) -> Step:
    """Return the open transaction that something is added to: a new one, if none is open."""
    owned = _owned(known, producer)
    if isinstance(owned, ErrorCode) or owned.is_open:
        return owned
    if owned.is_decided:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return owned._replace(status=Status.ONGOING, updated_ms=now_ms, start_ms=now_ms)


def _decided(known: TransactionMetadata, decision: Status, now_ms: int) -> TransactionMetadata:
    decided = known._replace(status=decision, updated_ms=now_ms)
    if decision is Status.PREPARE_COMMIT:
        return decided._replace(commit_epoch=known.producer.epoch)
    return without_offsets(decided)
