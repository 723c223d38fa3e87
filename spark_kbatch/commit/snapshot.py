"""The one consistent answer to where partitions begin and end.

    1. read the slot of __transaction_state       commit number: its high watermark
    2. read the state of every partition
    3. read the slot again
    4. each state in a PrepareCommit between the two numbers, one that was pending at 1 included,
       replaces a state of step 2 that has a lower sequence number
    5. all of it again, where the topic was rewritten meanwhile: its log start shows that; or where
       such a commit was placed in other replicas than those whose states were read

A commit whose PrepareCommit is below the number of step 1, and was complete, has flipped every
partition before step 2. One decided later is in step 4 as a whole; and none of its states can have
been read in step 2 without its PrepareCommit being below the number of step 3. So a reader sees
each commit in all partitions and topics or in none, also after a crash between two flips.

Takes no lock and writes nothing, so it works on a read-only mount. But where the leader of one of
several replicas cannot be read, another is elected first: by what its followers have nobody can tell what
it had shown, and when it is back it could not tell what they have shown. Who may not write, or finds no
disk to write to, reads what the followers have; should the leader come back without them, and nobody has
written meanwhile, then what is shown may end earlier again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from typing import NamedTuple

from spark_kbatch.commit.internal_topics import TRANSACTION_STATE, read_records
from spark_kbatch.commit.state_records import (
    NO_TRANSACTION_SEQUENCE,
    PREPARE_COMMIT,
    TransactionValue,
    unpack_key,
    unpack_value,
)
from spark_kbatch.errors import KafkaStorageError
from spark_kbatch.log.state import LogState
from spark_kbatch.model import TopicPartition
from spark_kbatch.record.scalar import PlainRecord
from spark_kbatch.replica.manager import ReplicaManager
from spark_kbatch.replica.partition import Partition
from spark_kbatch.replica.view import NOTHING_NEWER, Replica


class Transaction(NamedTuple):
    """One record of __transaction_state."""

    transactional_id: str
    value: TransactionValue
    offset: int


class Snapshots:
    """Answers for the partitions of one cluster. Thread-safe."""

    def __init__(
        self,
        manager: ReplicaManager,
        elect: Callable[[Collection[TopicPartition]], None],
    ) -> None:
        """`elect` has other replicas lead partitions, if it can; it takes locks."""
        self._manager, self._elect = manager, elect

    def replicas(
        self, topic_partitions: Iterable[TopicPartition], avoid: Container[int] = ()
    ) -> dict[TopicPartition, Replica]:
        """The replicas to read, of one moment, with the states that count.

        Args:
            avoid: nodes that could not be read.

        Raises:
            UnknownTopicOrPartitionError: one of them does not exist.
            KafkaStorageError: of one of them no replica can be read.
        """
        asked = list(topic_partitions)
        while True:
            wanted = self._manager.all_of(asked)
            try:
                found = self._replicas(wanted, avoid)
            except KafkaStorageError:
                # 1. We have looked for the topic. 2. It is deleted. 3. We look for its files.
                if self._manager.all_of(asked) == wanted:
                    raise
            else:
                # Nor is what was found right where another topic has the name by now.
                if self._manager.all_of(asked) == wanted:
                    return found

    def _replicas(
        self, wanted: Mapping[TopicPartition, Partition], avoid: Container[int]
    ) -> dict[TopicPartition, Replica]:
        transaction_state = self._manager.partition(TRANSACTION_STATE).view
        may_elect = True
        while True:
            seen = [transaction_state.look()]
            looks = {tp: partition.view.look(avoid) for tp, partition in wanted.items()}
            seen.append(transaction_state.look())
            lost = [tp for tp, look in looks.items() if not look.has_leader]
            if not all(look.has_leader for look in seen):
                lost.append(TRANSACTION_STATE)
            if lost and may_elect:
                may_elect = False
                self._elect(lost)
                continue
            before, after = (transaction_state.shown(look) for look in seen)
            known = before.state
            first = known.prepare_offset if known.has_pending_commit else known.high_watermark
            if after.state.log_start_offset > first:
                continue
            try:
                newer = self._decided(looks, after, first)
            except (FileNotFoundError, KafkaStorageError):
                now = transaction_state.readable().state
                if now.log_start_offset == after.state.log_start_offset:
                    raise
                continue
            if not any(looks[tp].is_before(states) for tp, states in newer.items()):
                return {
                    tp: partition.view.shown(looks[tp], newer.get(tp, NOTHING_NEWER))
                    for tp, partition in wanted.items()
                }

    def _decided(
        self, of: Container[TopicPartition], after: Replica, first_offset: int
    ) -> dict[TopicPartition, dict[int, LogState]]:
        """The last states that the commits from an offset on have decided, by node."""
        found: dict[TopicPartition, dict[int, LogState]] = {}
        for transaction in transactions(after, first_offset):
            if transaction.value.status == PREPARE_COMMIT:
                for topic_partition, states in transaction.value.states.items():
                    if topic_partition in of:
                        found[topic_partition] = dict(states)
        return found


def transactions(replica: Replica, first_offset: int) -> Iterator[Transaction]:
    """The records of this replica of __transaction_state, to its high watermark."""
    return read_records(replica.log, replica.state, first_offset, _unpack)


def last_of_each_id(replica: Replica) -> dict[str, Transaction]:
    """The last record of each transactional id, of those with sequences."""
    return {
        found.transactional_id: found
        for found in transactions(replica, replica.state.log_start_offset)
        if found.value.sequence != NO_TRANSACTION_SEQUENCE
    }


def _unpack(record: PlainRecord) -> Transaction | None:
    if record.key is None or record.value is None:
        return None
    return Transaction(unpack_key(record.key), unpack_value(record.value), record.offset)
