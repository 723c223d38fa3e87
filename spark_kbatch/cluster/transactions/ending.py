"""The end of transactions, by a process that holds the server's lock and has no queues.

    with idle_transactions(parts) as transactions:      # no server runs, and none starts meanwhile
        transactions.abort("orders")

A decision, which is on disk before anything follows it, is followed by

    1. offsets        of groups are stored, and the log says that they are: else they would be stored again over
                      newer ones
    2. markers        are appended to all partitions; a second one does no harm
    3. Complete...    in the log

A server does the same with the queues of its partitions (`server/transactions`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping

from spark_kbatch.cluster.group_records import OffsetKey
from spark_kbatch.cluster.offsets_store import Change, OffsetsStore
from spark_kbatch.cluster.ownership import PATIENCE_S, Ownership
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.cluster.state_log import append_and_wait
from spark_kbatch.cluster.transactions.checking import OpenTransaction, last_epoch
from spark_kbatch.cluster.transactions.log import TransactionLog
from spark_kbatch.cluster.transactions.state import (
    ProducerIdAndEpoch,
    TransactionMetadata,
    complete,
    fence,
    without_offsets,
)
from spark_kbatch.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import TopicPartition

logger = logging.getLogger(__name__)

_TIMEOUT_MS = 30_000
# A partition that answers with one of these needs no marker: its topic was deleted, its producer has gone on, or it
# cannot hold a marker, and so no transaction.
NEEDS_NO_MARKER = (
    UnknownTopicOrPartitionError, InvalidProducerEpochError, InvalidRecordError, RecordTooLargeError,
)  # fmt: skip


def changes_of(transaction: TransactionMetadata) -> list[Change]:
    """Return the pending offsets of a transaction as changes of `__consumer_offsets`."""
    return [
        (OffsetKey(group_id, *tp), value)
        for group_id, of_group in transaction.offsets.items()
        for tp, value in of_group.items()
    ]


class IdleTransactions:
    """The transactions of a cluster that no server serves, for the holder of the server's lock."""

    def __init__(self, parts: FolderParts) -> None:
        """Load them; raises as `TransactionLog.load`."""
        self._parts = parts
        self.log = TransactionLog(parts, flush=True)
        self.log.load()

    def abort(self, transactional_id: str) -> None:
        """Abort the open transaction of an id, and fence its producer; one that is decided is ended as decided.

        Raises as `finish`.
        """
        self.log.forget_if_old()
        found = self.log.contents.transactions.get(transactional_id)
        if found is None:
            return
        if found.is_open:
            found = fence(found, self._now_ms())
            self.log.append(found)
        if found.is_decided:
            self.finish(found)

    def finish(self, decided: TransactionMetadata) -> None:
        """Do what follows a decision.

        Raises:
            TransactionCoordinatorFencedError: the log is older than a marker in a partition.
            KBatchError: something is not written; doing it again does no harm.
        """
        # Flushed: who decided may have died before the decision was on disk.
        self.log.start_epoch()
        if decided.offsets:
            store = OffsetsStore(self._parts, flush=True)
            store.append(store.load().not_overtaken(changes_of(decided)))
            decided = without_offsets(decided)
            self.log.append(decided)
        self._end(decided.producer, decided.partitions, is_commit=decided.is_commit)
        self.log.append(complete(decided, self._now_ms()))

    def end_unknown(self, found: OpenTransaction, *, is_commit: bool) -> None:
        """End a transaction in a partition that the log does not have; raises as `finish`.

        If the log is older than the partition, it may be older than any: it forgets all ids first. With a raised
        epoch and one id more it would count as the newest, and the others would be ended as it says.
        """
        log = self.log.contents
        is_new = log.coordinator_epoch > found.coordinator_epoch and not log.transactions
        if found.is_beyond and not is_new:
            for one in log.transactions.values():
                if one.is_active:
                    logger.warning(
                        "the old log of transactions forgets %r, which it had in state %s",
                        one.transactional_id, one.status.shown,
                    )  # fmt: skip
            self.log.start_again(above=last_epoch(self._parts))
        self.log.start_epoch()
        partitions = {found.topic_partition: found.topic_id}
        self._end(found.producer, partitions, is_commit=is_commit)

    def _end(
        self,
        producer: ProducerIdAndEpoch,
        partitions: Mapping[TopicPartition, str],
        *,
        is_commit: bool,
    ) -> None:
        marker = self.log.marker(producer, is_commit=is_commit)
        results = append_and_wait(
            self._parts,
            dict.fromkeys(partitions, marker),
            timeout_ms=_TIMEOUT_MS,
            flush=True,
            topic_ids=partitions,
        )
        for result in results.values():
            if result.error is not None and not isinstance(result.error, NEEDS_NO_MARKER):
                raise result.error

    def _now_ms(self) -> int:
        return self._parts.manager.now_ms()


@contextlib.contextmanager
def idle_transactions(
    parts: FolderParts, *, patience_s: float = PATIENCE_S
) -> Iterator[IdleTransactions]:
    """Hold the server's lock, and yield the transactions of the cluster; `patience_s` as for `Ownership`.

    Raises:
        ServerRunningError: a server runs, and ends transactions itself.
        KafkaStorageError, CorruptRecordError: the log cannot be read.
    """
    # Until this is released no server starts.
    ownership = Ownership(parts.metadata, patience_s=patience_s)
    try:
        yield IdleTransactions(parts)
    finally:
        ownership.release()
