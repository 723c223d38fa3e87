"""Lock-free, read-only view of a partition: which replica to read, and up to where.

That is the leader, as its state has it. If its log dir is gone and no one has elected another leader yet,
it is what the next leader would show; `partition` has the rules. States that a commit has decided replace
those that were read.

Source: Kafka core/.../cluster/Partition.scala.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from spark_kbatch.errors import (
    KafkaStorageError,
    KBatchError,
    NotEnoughReplicasAfterAppendError,
    NotLeaderOrFollowerError,
)
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.state import LogState
from spark_kbatch.model import LogOffsets, OffsetAndTimestamp, TopicPartition
from spark_kbatch.options.topic import Topic
from spark_kbatch.replica.log_dirs import LogDirs
from spark_kbatch.replica.partition_states import PartitionState, PartitionStates

logger = logging.getLogger(__name__)

NOTHING_NEWER: Mapping[int, LogState] = {}


class ReplicaInfo(NamedTuple):
    """One replica at one moment; -1 and a reason if it cannot be read."""

    node_id: int
    is_leader: bool
    in_sync: bool
    log_end_offset: int
    lag: int  # offsets behind the leader's log end
    why_offline: str | None


class Replica(NamedTuple):
    """One replica's log, and a state of it."""

    node_id: int
    log: PartitionLog
    state: LogState

    @property
    def offsets(self) -> LogOffsets:
        """The log's offsets."""
        return self.state.offsets

    def offset_for_timestamp(
        self, timestamp_ms: int, *, end_offset: int
    ) -> OffsetAndTimestamp | None:
        """Look a time up, as `PartitionLog.offset_for_timestamp`."""
        return self.log.offset_for_timestamp(self.state, timestamp_ms, end_offset=end_offset)

    def split_points(self, start_offset: int, end_offset: int, *, piece_bytes: int) -> list[int]:
        """Divide a range, as `PartitionLog.split_points`."""
        return self.log.split_points(self.state, start_offset, end_offset, piece_bytes=piece_bytes)


class Replicas(Protocol):
    """A reader's look at partitions, with commits that are decided but not yet flipped."""

    def __call__(
        self, topic_partitions: Iterable[TopicPartition], avoid: Container[int] = (), /
    ) -> Mapping[TopicPartition, Replica]:
        """Return the replicas to read, all of one moment, with the states that count.

        Args:
            topic_partitions: whose.
            avoid: nodes that could not be read.

        Raises:
            UnknownTopicOrPartitionError: one of the partitions does not exist.
            KafkaStorageError: no replica of one of them can be read.
        """


class Look(NamedTuple):
    """A reader's findings about a partition: who leads, and the states of those that can be read.

    Those are the leader alone, or without it all other members of the ISR.
    """

    state: PartitionState
    found: Mapping[int, LogState]

    @property
    def has_leader(self) -> bool:
        """Whether the leader was read."""
        return self.state.leader in self.found

    def is_before(self, newer: Mapping[int, LogState]) -> bool:
        """Return True if a commit was placed in other replicas than these: others lead by now."""
        return bool(newer) and newer.keys().isdisjoint(self.found)


class PartitionView:
    """One partition, as its replicas' files have it. Thread-safe; takes no lock and writes nothing."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic: Topic,
        states: PartitionStates,
        dirs: LogDirs,
        log_of: Callable[[int], PartitionLog],
    ) -> None:
        """`log_of` returns the log of a node's replica."""
        self.topic_partition, self.log_of = topic_partition, log_of
        self.replicas = topic.replicas_of(topic_partition.partition)
        # With one replica there is nothing to agree on.
        self.only_log = log_of(self.replicas[0]) if len(self.replicas) == 1 else None
        self.min_isr = min(topic.config.min_insync_replicas, len(self.replicas))
        self._topic_id, self._states, self._dirs = topic.topic_id, states, dirs
        self._reported: set[int] = set()  # nodes whose failure was logged

    def state(self) -> PartitionState:
        """Return who leads and who is in sync, as the disk has it now."""
        known = self._states.read(self.topic_partition, self._topic_id)
        if known is None:
            return PartitionState(self.replicas[0], self.replicas)
        if not {known.leader, *known.isr} <= {*self.replicas}:
            raise KafkaStorageError(
                f"{self._states.paths.partition_file(self.topic_partition)} is damaged: it names the "
                f"leader {known.leader} and the in-sync replicas {known.isr}; expected some of the "
                f"partition's replicas {self.replicas}"
            )
        return known

    def readable(self) -> Replica:
        """Return the replica to read, and its state as readers see it, without commits not yet flipped.

        Raises:
            KafkaStorageError: no in-sync replica can be read; says why.
        """
        return self.shown(self.look())

    def look(self, avoid: Container[int] = ()) -> Look:
        """Return what can be read of the partition now, without the nodes to avoid.

        Raises:
            KafkaStorageError: no in-sync replica can be read; says why.
        """
        if self.only_log is not None:
            node_id = self.replicas[0]
            return Look(PartitionState(node_id, self.replicas), {node_id: self.only_log.state()})
        state = self.state()
        if state.leader not in avoid:
            leader = self.log_state(state.leader, to_write=False)
            if leader is not None:
                return Look(state, {state.leader: leader})
        alive = self.alive(state, to_write=False)
        found = {node_id: log_state for node_id, log_state in alive if node_id not in avoid}
        if not found:
            raise self.no_usable_replica(state)
        return Look(state, found)

    def shown(self, look: Look, newer: Mapping[int, LogState] = NOTHING_NEWER) -> Replica:
        """Return the replica to read, and its state as readers see it.

        Args:
            look: what was read.
            newer: states that a commit has decided, by node; not `Look.is_before`.
        """
        state = look.state
        if look.has_leader and not newer and not state.unwritten:
            return Replica(state.leader, self.log_of(state.leader), look.found[state.leader])
        found = dict(look.found)
        for node_id, decided in (*state.unwritten.items(), *newer.items()):
            if node_id in found and found[node_id].sequence < decided.sequence:
                found[node_id] = self.log_of(node_id).verified(decided)
        if newer:
            # Others have left the ISR since.
            found = {node_id: found[node_id] for node_id in found if node_id in newer}
        node_id, log_state = next(iter(found.items()))
        if node_id != state.leader:  # It stands in, as the leader that it would be.
            end = self.common_end(state, list(found.values()))
            if end > log_state.high_watermark:
                is_stable = log_state.last_stable_offset == log_state.high_watermark
                stable = end if is_stable else log_state.last_stable_offset
                log_state = log_state._replace(high_watermark=end, last_stable_offset=stable)
        return Replica(node_id, self.log_of(node_id), log_state)

    def describe(self) -> list[ReplicaInfo]:
        """Return all replicas, in order of preference."""
        state = self.state()
        found = {node_id: self.log_state(node_id, to_write=False) for node_id in self.replicas}
        leader = found[state.leader]
        end = -1 if leader is None else leader.log_end_offset
        rows = []
        for node_id, log_state in found.items():
            own_end = -1 if log_state is None else log_state.log_end_offset
            why = self._dirs.why_offline(node_id)
            if why is None and log_state is None:
                why = "its log cannot be read"
            rows.append(
                ReplicaInfo(
                    node_id, node_id == state.leader, node_id in state.isr, own_end,
                    max(end - own_end, 0) if own_end >= 0 and end >= 0 else -1, why,
                )
            )  # fmt: skip
        return rows

    def reaches(
        self, required_offset: int, leader_epoch: int
    ) -> tuple[bool, KBatchError | OSError | None]:
        """Return whether an append is decided, and if so what is wrong with it.

        Args:
            required_offset: the offset after its last record.
            leader_epoch: under which it was appended.
        """
        try:
            state = self.state()
            log_state = self.readable().state
        except (OSError, KBatchError) as error:
            return True, error
        if state.leader_epoch != leader_epoch:
            return True, NotLeaderOrFollowerError(
                f"{self.topic_partition} got another leader, node {state.leader}, before its replicas "
                "had these records; whether they survive is not known: send them again"
            )
        if log_state.high_watermark < required_offset:
            return False, None
        if len(state.isr) < self.min_isr:
            return True, NotEnoughReplicasAfterAppendError(
                str(self.topic_partition), state.isr, self.min_isr
            )
        return True, None

    def may_join(self) -> bool:
        """Return True if a replica outside of the ISR can be used by now."""
        isr = self.state().isr
        return any(self._dirs.is_online(node) for node in self.replicas if node not in isr)

    # Single replicas.

    def alive(
        self, state: PartitionState, *, to_write: bool = True
    ) -> Iterator[tuple[int, LogState]]:
        """Yield the members of the ISR that can be used, without the leader, with their states."""
        for node_id in self.replicas:
            is_behind = to_write and node_id in state.unwritten
            if node_id in state.isr and node_id != state.leader and not is_behind:
                log_state = self.log_state(node_id, to_write=to_write)
                if log_state is not None:
                    yield node_id, log_state

    def log_state(self, node_id: int, *, to_write: bool = True) -> LogState | None:
        """Return the state of a replica's log; None if it cannot be read, or with `to_write` not used."""
        if not (self._dirs.is_online if to_write else self._dirs.is_readable)(node_id):
            return None
        try:
            return self.log_of(node_id).state()
        except (OSError, KBatchError) as error:
            self.failed(node_id, error)
            return None

    def common_end(self, state: PartitionState, alive: Sequence[LogState]) -> int:
        """Return the high watermark that these members of the ISR can show."""
        known = max(log_state.high_watermark for log_state in alive)
        if len(state.isr) < self.min_isr:
            return known
        return max(known, min(log_state.log_end_offset for log_state in alive))

    def failed(self, node_id: int, error: Exception) -> None:
        """Handle a replica's failure: its log dir is offline, or its own files alone are damaged."""
        if isinstance(error, OSError) and not isinstance(error, KBatchError):
            self._dirs.failed(node_id, error)
        elif node_id not in self._reported:
            self._reported.add(node_id)
            logger.warning("%s on node %d: %s", self.topic_partition, node_id, error)

    def recovered(self, nodes: Collection[int]) -> None:
        """Log the next failure of these nodes again."""
        self._reported.difference_update(nodes)

    def no_usable_replica(self, state: PartitionState) -> KafkaStorageError:
        """Return the error for a partition that no one can lead; says why."""
        reasons = "; ".join(
            f"node {node}: {self._dirs.why_offline(node) or 'its log cannot be read'}"
            for node in state.isr
        )
        return KafkaStorageError(
            f"{self.topic_partition} has no in-sync replica that can be used: {reasons}"
        )
