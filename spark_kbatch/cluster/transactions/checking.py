"""The open transactions of the partitions, compared with the coordinator's log.

The log's record comes before the batches that it allows, so it knows each open transaction. If it does not, it is
lost, damaged, or an older image of its disk; or a partition is, whose marker is lost with what followed. Then
which transactions were committed is not known here:

    a partition has                                               then
    a marker of a coordinator with a higher epoch                 the log is old: nothing is decided by it
    an open transaction, and cluster.json has a higher epoch      likewise
    an open transaction of an unknown producer or a newer epoch   likewise
    one that the log does not have open, of a known producer      it is aborted if this producer has committed
                                                                  nothing in its epoch or since; else left open

If cluster.json has a higher epoch and nothing is open, the log forgets its ids, and goes on (`forget_if_old`). What
neither tells cannot be seen: an image of the log that is younger than the coordinator's last epoch looks like the
newest log.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.cluster.transactions.log import NO_EPOCH, StoredTransactions
from spark_kbatch.cluster.transactions.state import ProducerIdAndEpoch, TransactionMetadata
from spark_kbatch.errors import KafkaStorageError, KBatchError, UnknownTopicOrPartitionError
from spark_kbatch.model import TopicPartition

logger = logging.getLogger(__name__)

_NAMED_MAX = 20  # partitions, in an error


class OpenTransaction(NamedTuple):
    """A transaction that is open in a partition."""

    topic_partition: TopicPartition
    topic_id: str
    producer: ProducerIdAndEpoch
    first_offset: int
    held_back: int  # offsets from there on, which readers of committed records wait for
    last_timestamp: int
    coordinator_epoch: int  # of this producer's last marker in the partition; -1 for none
    owner: TransactionMetadata | None  # that has this producer id, by the coordinator's log
    is_beyond: bool  # whether the coordinator's log is older than what the partition has

    @property
    def is_known(self) -> bool:
        """Whether the coordinator's log has the transaction, and will end it.

        An abort may have a later epoch, by which it fences the producer; what else is of a later one is of
        a later transaction.
        """
        owner = self.owner
        if owner is None or self.is_beyond or not owner.is_active:
            return False
        later = owner.producer.epoch - self.producer.epoch
        is_of_it = later == 0 or (later > 0 and owner.is_decided and not owner.is_commit)
        return is_of_it and owner.partitions.get(self.topic_partition) == self.topic_id

    @property
    def may_abort(self) -> bool:
        """Whether it cannot have been committed, by the coordinator's log.

        All transactions of one epoch look the same, so none of them may have been.
        """
        owner = self.owner
        return owner is not None and not self.is_beyond and self.producer.epoch > owner.commit_epoch


def open_transactions(
    parts: FolderParts,
    stored: StoredTransactions,
    topic_partitions: Iterable[TopicPartition],
    *,
    everywhere: bool = False,
) -> Iterator[OpenTransaction]:
    """Yield the transactions that are open in these partitions.

    If the log is older than the last marker of a producer, that producer is among them, with -1 as first offset.
    So that is noticed where readers are held back, or the log has a partition; with `everywhere`, wherever it is.

    A transaction whose records are all deleted or overwritten is in no producer's state; where readers still wait for
    one, those that may be it are yielded, with where they wait as first offset.

    Takes no lock.

    Raises:
        UnknownTopicOrPartitionError: a partition does not exist.
        KafkaStorageError, CorruptRecordError: a partition cannot be read.
    """
    owners = {one.producer.producer_id: one for one in stored.transactions.values()}
    named = {tp for one in stored.transactions.values() for tp in one.partitions}
    for topic_partition, (_, log, state) in parts.snapshots.replicas(topic_partitions).items():
        is_held = state.last_stable_offset < state.high_watermark
        if not (everywhere or is_held or topic_partition in named):
            continue
        topic_id = parts.manager.partition(topic_partition).topic.topic_id
        producers = log.producers.states_of(state, parts.manager.now_ms())
        first_of_all = state.high_watermark
        for producer_id, entry in producers.entries.items():
            owner, first_offset = owners.get(producer_id), entry.txn_first_offset
            is_beyond = entry.coordinator_epoch > stored.coordinator_epoch or (
                first_offset is not None
                and (stored.is_old or owner is None or owner.producer.epoch < entry.producer_epoch)
            )
            if first_offset is not None:
                first_offset = max(first_offset, state.log_start_offset)  # Retention goes on.
                first_of_all = min(first_of_all, first_offset)
            if first_offset is not None or is_beyond:
                yield OpenTransaction(
                    topic_partition,
                    topic_id,
                    ProducerIdAndEpoch(producer_id, entry.producer_epoch),
                    -1 if first_offset is None else first_offset,
                    0 if first_offset is None else state.high_watermark - first_offset,
                    entry.last_timestamp,
                    entry.coordinator_epoch,
                    owner,
                    is_beyond,
                )
        stable = state.last_stable_offset
        if stable < first_of_all:
            yield from (
                OpenTransaction(
                    topic_partition, topic_id, owner.producer, stable,
                    state.high_watermark - stable, owner.updated_ms, -1, owner, stored.is_old,
                )
                for owner in owners.values()
                if owner.is_active and owner.partitions.get(topic_partition) == topic_id
            )  # fmt: skip


def all_open_transactions(
    parts: FolderParts, stored: StoredTransactions, *, everywhere: bool = False
) -> list[OpenTransaction]:
    """Return the transactions that are open anywhere; topics that cannot be read are left out, with a warning.

    With `everywhere` as in `open_transactions`.
    """
    found: list[OpenTransaction] = []
    for name in parts.metadata.topics.names():
        try:
            partitions = parts.manager.partitions(name)
            found += open_transactions(parts, stored, partitions, everywhere=everywhere)
        except (OSError, KBatchError) as error:
            if not isinstance(error, UnknownTopicOrPartitionError):
                logger.warning("transactions of topic %r are not known: %s", name, error)
    return found


def ensure_newest(found: Collection[OpenTransaction]) -> None:
    """Check that the coordinator's log is not older than what the partitions have.

    Raises:
        KafkaStorageError: it is.
    """
    beyond = [one for one in found if one.is_beyond]
    if beyond:
        raise KafkaStorageError(
            f"the log of transactions is lost, damaged or older than {partitions_of(beyond)}: nothing is decided; "
            "end the server, if one runs, and decide with `kbatch transactions decide`"
        )


def last_epoch(parts: FolderParts) -> int:
    """Return the highest epoch of a coordinator in the markers of all partitions, -1 without any: it reads all."""
    marked = all_open_transactions(parts, StoredTransactions(), everywhere=True)
    return max((one.coordinator_epoch for one in marked), default=NO_EPOCH)


def partitions_of(found: Collection[OpenTransaction]) -> str:
    """Return the names of the partitions, as an error has them."""
    names = sorted({str(one.topic_partition) for one in found})
    more = f" and {len(names) - _NAMED_MAX} others" if len(names) > _NAMED_MAX else ""
    return ", ".join(names[:_NAMED_MAX]) + more
