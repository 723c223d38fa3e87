"""Transactions that a server has left open when it was killed, as old as a test wants them."""

from __future__ import annotations

from spark_kbatch import Cluster
from spark_kbatch.clock import now_ms
from spark_kbatch.cluster.transactions import administration
from spark_kbatch.cluster.transactions.ending import idle_transactions
from spark_kbatch.cluster.transactions.log import TransactionLog
from spark_kbatch.cluster.transactions.state import ProducerIdAndEpoch, Status, TransactionMetadata
from spark_kbatch.model import AppendOrigin, TopicPartition
from tests.support.log_histories import data_batch
from tests.support.store import append_records, store_of

TIMEOUT_MS = 3_600_000  # so that a slow test is none that it passes in


def leave_open(
    cluster: Cluster, *partitions: TopicPartition, name: str = "t", n: int = 2, age_ms: int = 0
) -> TransactionMetadata:
    """Write a transaction of `n` records to each partition, as a server does for a new producer of this id.

    What the one before it has left is aborted. With `age_ms` it has begun so long ago; this process looks at once.
    """
    parts = store_of(cluster)
    with idle_transactions(parts) as transactions:
        known = transactions.log.contents.transactions.get(name)
        if known is not None:
            transactions.abort(name)
            last = transactions.log.contents.transactions[name].producer
            producer = last._replace(epoch=last.epoch + 1)
        else:
            producer = ProducerIdAndEpoch(parts.new_producer_id(), 0)
    ids = {tp: parts.manager.partition(tp).topic.topic_id for tp in partitions}
    began_ms = now_ms() - age_ms
    left = TransactionMetadata(
        name, producer, TIMEOUT_MS, Status.ONGOING, ids, {}, began_ms, began_ms
    )
    store(cluster, left)
    errors = []
    batch = data_batch(
        base_offset=0, n=n, producer_id=producer.producer_id, epoch=producer.epoch,
        transactional=True,
    )  # fmt: skip
    append_records(
        parts, flush=False, timeout_ms=1000, required_acks=1, origin=AppendOrigin.COORDINATOR,
        entries_per_partition=dict.fromkeys(partitions, batch),
        on_complete=lambda results: errors.extend(one.error for one in results.values()),
    )  # fmt: skip
    assert errors == [None] * len(partitions)
    look_again()
    return left


def store(cluster: Cluster, state: TransactionMetadata) -> None:
    """Append a state of a transactional id to the log, as a server does."""
    log = TransactionLog(store_of(cluster), flush=False)
    log.load()
    log.append(state)


def look_again() -> None:
    """Let this process look at open transactions at once, and tell of them again."""
    administration._next_look_ms.clear()
    administration._told.clear()
