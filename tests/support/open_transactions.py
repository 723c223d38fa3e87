"""Transactions that a server has left open, as old as a test wants them."""

from __future__ import annotations

from spark_kbatch import Cluster
from spark_kbatch.cluster.transactions import administration
from spark_kbatch.cluster.transactions.log import TransactionLog
from spark_kbatch.cluster.transactions.state import TransactionMetadata
from spark_kbatch.model import TopicPartition
from tests.support.raw_clients import RawClient
from tests.support.raw_transactions import RawProducer
from tests.support.store import store_of


def leave_open(
    cluster: Cluster, *partitions: TopicPartition, name: str = "t", n: int = 2
) -> RawProducer:
    """Have a server's client write a transaction of `n` records to each partition, and end the server before it."""
    with cluster.serve() as server, RawClient(server) as client:
        return RawProducer(client, name).start().write(*partitions, n=n)


def change(cluster: Cluster, name: str = "t", **fields: object) -> TransactionMetadata:
    """Append another state of a transactional id to the log, as a server would, and return it."""
    log = TransactionLog(store_of(cluster), flush=False)
    changed = log.load().transactions[name]._replace(**fields)
    log.append(changed)
    return changed


def make_older(cluster: Cluster, by_ms: int, name: str = "t") -> None:
    """Let a transaction have started earlier, and this process look at once for what is due."""
    log = TransactionLog(store_of(cluster), flush=False)
    change(cluster, name, start_ms=log.load().transactions[name].start_ms - by_ms)
    look_again()


def look_again() -> None:
    """Let this process look at open transactions again, and tell of them again."""
    administration._next_look_ms.clear()
    administration._told.clear()
