"""Consistent snapshots of where partitions start and end: each commit is seen in all of them or none.

    1. Read the slot of __transaction_state; its high watermark is the commit number.
    2. Read the state of every partition.
    3. Read the slot again.
    4. For each PrepareCommit between the two numbers, including one that was pending at 1: its states
       replace those of step 2 that have a lower sequence number.
    5. Start over if the topic was rewritten in between (its log start shows that), or if such a commit
       was placed in other replicas than those whose states were read.

A commit that was complete at step 1 had flipped every partition before step 2. A commit decided later
is applied as a whole in step 4: if one of its states was read in step 2, then its PrepareCommit is
below the number of step 3. So the high watermarks show each commit in all partitions and topics or in none, also
after a crash between two flips.

This takes no lock and writes nothing, so it works on a read-only mount. There is one exception: if the
leader of a partition with several replicas cannot be read, or has lost records, another leader is elected
first, and one that has records that others have deleted deletes them. The followers alone do not show how
far the old leader's readers had seen, and when it is back it would not know what the followers have shown
since. A process that may not write, or finds no disk to write to, reads what the followers have; if the
leader then comes back without it, and no one has written in the meantime, the log may appear to end, or
start, earlier again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from spark_kbatch.commit.internal_topics import TRANSACTION_STATE, read_records
from spark_kbatch.commit.state_records import (
    PREPARE_COMMIT,
    TransactionValue,
    unpack_key,
    unpack_value,
)
from spark_kbatch.errors import KafkaStorageError
from spark_kbatch.log.state import LogState
from spark_kbatch.model import NO_TRANSACTION_SEQUENCE, TopicPartition
from spark_kbatch.record.scalar import PlainRecord
from spark_kbatch.replica.manager import ReplicaManager
from spark_kbatch.replica.partition import Partition
from spark_kbatch.replica.view import NOTHING_NEWER, Replica

Elect: TypeAlias = Callable[[Collection[TopicPartition]], None]


class Transaction(NamedTuple):
    """One record of __transaction_state."""

    transactional_id: str
    value: TransactionValue
    offset: int


class Snapshots:
    """Consistent views of the partitions of one cluster. Thread-safe."""

    def __init__(
        self,
        manager: ReplicaManager,
        elect: Elect,
        finish_deletions: Callable[[Collection[TopicPartition]], None],
    ) -> None:
        """Take snapshots of one cluster.

        Args:
            manager: of the cluster.
            elect: elects other leaders for partitions, if it can; takes locks.
            finish_deletions: has leaders delete what another member has deleted, unless someone is at work on
                their partitions.
        """
        self._manager, self._elect = manager, elect
        self._finish_deletions = finish_deletions

    def replicas(
        self,
        topic_partitions: Iterable[TopicPartition],
        avoid: Container[int] = (),
        elect: Elect | None = None,
    ) -> dict[TopicPartition, Replica]:
        """Return each partition's replica to read, with all log states as of one moment.

        Args:
            topic_partitions: which.
            avoid: nodes that could not be read.
            elect: elects other leaders here, for a caller that can ask again and does not wait; may raise
                NotLeaderOrFollowerError.

        Raises:
            UnknownTopicOrPartitionError: one of them does not exist.
            KafkaStorageError: no replica of one of them can be read.
        """
        asked = list(topic_partitions)
        while True:
            wanted = self._manager.all_of(asked)
            try:
                found = self._replicas(wanted, avoid, elect or self._elect)
            except KafkaStorageError:
                # 1. We look up the topic. 2. It is deleted. 3. We look for its files.
                if self._manager.all_of(asked) == wanted:
                    raise
            else:
                # What was found is not right either if another topic has the name by now.
                if self._manager.all_of(asked) == wanted:
                    return found

    def _replicas(
        self,
        wanted: Mapping[TopicPartition, Partition],
        avoid: Container[int],
        elect: Elect,
    ) -> dict[TopicPartition, Replica]:
        transaction_state = self._manager.partition(TRANSACTION_STATE).view
        may_elect, failed = True, set[int]()
        last: tuple[object, object] | None = None  # what was seen, where one was behind a commit
        while True:
            seen = [transaction_state.look()]
            looks = {tp: partition.view.look(avoid) for tp, partition in wanted.items()}
            seen.append(transaction_state.look())
            lost = [tp for tp, look in looks.items() if not look.has_leader]
            if not all(look.has_leader for look in seen):
                lost.append(TRANSACTION_STATE)
            # What is shown as deleted has to stay so, whatever becomes of the disks that show it.
            deleting = [tp for tp, look in looks.items() if look.is_deleting]
            if any(look.is_deleting for look in seen):
                deleting.append(TRANSACTION_STATE)
            if (lost or deleting) and may_elect:
                may_elect = False
                if lost:
                    elect(lost)
                if deleting:
                    self._finish_deletions(deleting)
                continue
            before, after = (transaction_state.shown(look) for look in seen)
            known = before.state
            first = known.prepare_offset if known.has_pending_commit else known.high_watermark
            if after.state.log_start_offset > first:
                continue
            try:
                newer = self._decided(looks, after, first)
            except (FileNotFoundError, KafkaStorageError):
                now = transaction_state.readable()
                was = (after.node_id, after.state.log_start_offset)
                if (now.node_id, now.state.log_start_offset) == was:
                    raise
                continue
            except OSError as error:
                if transaction_state.only_log is not None or after.node_id in failed:
                    raise
                failed.add(after.node_id)
                transaction_state.failed(after.node_id, error)
                continue
            behind = [tp for tp, states in newer.items() if looks[tp].is_before(states)]
            if behind and (looks, newer) != last:
                last = looks, newer
                continue
            # Elected unclean since: the commit's part there was given up.
            newer = {tp: states for tp, states in newer.items() if tp not in behind}
            return {
                tp: partition.view.shown(looks[tp], newer.get(tp, NOTHING_NEWER))
                for tp, partition in wanted.items()
            }

    def _decided(
        self, of: Container[TopicPartition], after: Replica, first_offset: int
    ) -> dict[TopicPartition, dict[int, LogState]]:
        """Return the last log states that commits from an offset on have decided, by partition and node."""
        found: dict[TopicPartition, dict[int, LogState]] = {}
        for transaction in transactions(after, first_offset):
            if transaction.value.status == PREPARE_COMMIT:
                decided = transaction.value.states_in(self._manager.is_current)
                for topic_partition, states in decided.items():
                    if topic_partition in of:
                        found[topic_partition] = dict(states)
        return found


def transactions(replica: Replica, first_offset: int) -> Iterator[Transaction]:
    """Yield the records of this replica of __transaction_state, up to its high watermark."""
    return read_records(replica.log, replica.state, first_offset, _unpack)


def last_of_each_id(replica: Replica, first_offset: int = 0) -> dict[str, Transaction]:
    """Return the last record in __transaction_state, from an offset on, of each id that has sequences."""
    return {
        found.transactional_id: found
        for found in transactions(replica, first_offset)
        if found.value.sequence != NO_TRANSACTION_SEQUENCE
    }


def last_prepare(replica: Replica) -> int | None:
    """Return the offset of the last PrepareCommit in this replica of __transaction_state; None if it has none."""
    found = None
    for transaction in transactions(replica, replica.state.log_start_offset):
        if transaction.value.status == PREPARE_COMMIT:
            found = transaction.offset
    return found


def _unpack(record: PlainRecord) -> Transaction | None:
    if record.key is None or record.value is None:
        return None
    return Transaction(unpack_key(record.key), unpack_value(record.value), record.offset)
