"""Transactions of Kafka's clients in the logs of a folder, written as a server's appends are.

    client = ClientTransactions(cluster)
    client.send(("events", 0), b"a", b"b")   # two records, in the log at once
    client.commit()                          # a marker, which takes an offset, in each partition

Nothing coordinates them: a test says what is in the logs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from spark_kbatch import Cluster
from spark_kbatch.model import AppendOrigin, AppendResult, TopicPartition
from tests.support import builders
from tests.support.log_histories import TRANSACTIONAL, marker_batch
from tests.support.reference import Record, encode_batch
from tests.support.store import append_records, store_of

GIVEN = (b"committed 1", b"committed 2", b"not in a transaction")  # what `leave_gaps` leaves
GAPS_OFFSETS = [0, 1, 6]  # theirs
GAPS_END = 7  # offset after what `leave_gaps` writes


class ClientTransactions:
    """A transactional producer of a client, as logs see it."""

    def __init__(self, cluster: Cluster, producer_id: int = 5000) -> None:
        self.cluster, self._producer_id = cluster, producer_id
        self._sequences: dict[TopicPartition, int] = {}
        self._open: dict[TopicPartition, None] = {}

    def send(self, place: tuple[str, int], *values: bytes, time_ms: int | None = None) -> int:
        """Append one batch of the open transaction to a partition; return its first offset."""
        tp, at = TopicPartition(*place), now_ms() if time_ms is None else time_ms
        sequence = self._sequences.get(tp, 0)
        data = encode_batch(
            [Record(delta, at, None, value) for delta, value in enumerate(values)],
            producer_id=self._producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            attributes_extra=TRANSACTIONAL,
        )
        self._sequences[tp] = sequence + len(values)
        self._open[tp] = None
        return _appended(self.cluster, tp, data)

    def commit(self) -> None:
        """Write a COMMIT marker into each partition of the open transaction."""
        for place in [*self._open]:
            self.end_in(place, abort=False)

    def abort(self) -> None:
        """Write an ABORT marker into each partition of the open transaction."""
        for place in [*self._open]:
            self.end_in(place, abort=True)

    def end_in(self, place: tuple[str, int], *, abort: bool) -> None:
        """Write a marker into one partition of the open transaction."""
        data = marker_batch(base_offset=0, producer_id=self._producer_id, abort=abort)
        _appended(self.cluster, TopicPartition(*place), data)
        del self._open[TopicPartition(*place)]


def leave_gaps(cluster: Cluster, topic: str) -> None:
    """Write into each partition of an empty topic seven offsets with three records.

    0 and 1 are a committed transaction and 2 its marker, 3 and 4 an aborted one and 5 its marker, and 6 is
    of a producer without transactions.
    """
    committed, aborted = ClientTransactions(cluster, 5001), ClientTransactions(cluster, 5002)
    partitions = range(cluster.topic(topic).partitions)
    for partition in partitions:
        committed.send((topic, partition), *GIVEN[:2])
    committed.commit()
    for partition in partitions:
        aborted.send((topic, partition), b"aborted 1", b"aborted 2")
    aborted.abort()
    with cluster.producer() as producer:
        for partition in partitions:
            assert producer.send(topic, value=GIVEN[2], partition=partition).result().offset == 6


def with_gaps_and_a_record_held_back(tmp_path: Path) -> Cluster:
    """Return a cluster with gaps in both partitions, and a record behind an open transaction in the first."""
    cluster = builders.a_cluster(tmp_path, topics={"events": 2})
    leave_gaps(cluster, "events")
    ClientTransactions(cluster, 6000).send(("events", 0), b"open 1", b"open 2")
    with cluster.producer() as producer:
        producer.send("events", "behind it", partition=0)
    return cluster


def now_ms() -> int:
    """Return the time in ms."""
    return time.time_ns() // 1_000_000


def _appended(cluster: Cluster, tp: TopicPartition, data: bytes) -> int:
    answers: list[AppendResult] = []
    on_complete: Callable[..., None] = lambda answer: answers.append(answer[tp])  # noqa: E731  one call
    append_records(
        store_of(cluster),
        timeout_ms=10_000,
        required_acks=-1,
        entries_per_partition={tp: data},
        on_complete=on_complete,
        origin=AppendOrigin.COORDINATOR,
        flush=False,
    )
    (answer,) = answers
    if answer.error is not None:
        raise answer.error
    return answer.base_offset
