"""What a partition's replicas are to who takes no lock and writes nothing: which to read, and up to where.

That is the leader's, as its state has it. Where its log dir is gone and nobody has elected another one,
it is what the one that would be elected would show; `partition.py` has the rules. States that a commit
has decided lie over those that were read.

Source: Kafka core/.../cluster/Partition.scala.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import NamedTuple

from spark_kbatch.errors import (
    KafkaStorageError,
    KBatchError,
    NotEnoughReplicasAfterAppendError,
    NotLeaderOrFollowerError,
)
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.state import LogState
from spark_kbatch.model import OffsetAndTimestamp, TopicPartition
from spark_kbatch.options.topic import Topic
from spark_kbatch.replica.log_dirs import LogDirs
from spark_kbatch.replica.partition_states import PartitionState, PartitionStates

logger = logging.getLogger(__name__)

NOTHING_NEWER: Mapping[int, LogState] = {}


class ReplicaInfo(NamedTuple):
    """One replica, as it stood at one moment; -1 and a reason where it cannot be read."""

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


class Look(NamedTuple):
    """What a reader found of a partition: who leads, and the states of those that can be read.

    That is the leader alone, or without it all other members of the ISR.
    """

    state: PartitionState
    found: Mapping[int, LogState]

    @property
    def has_leader(self) -> bool:
        """Whether it is the leader who was read."""
        return self.state.leader in self.found

    def is_before(self, newer: Mapping[int, LogState]) -> bool:
        """Whether a commit was placed in other replicas than these: then others lead by now."""
        return bool(newer) and newer.keys().isdisjoint(self.found)


class PartitionView:
    """One partition, as readers see it. Thread-safe."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic: Topic,
        states: PartitionStates,
        dirs: LogDirs,
        log_of: Callable[[int], PartitionLog],
    ) -> None:
        self.topic_partition, self.config = topic_partition, topic.config
        self.topic = topic  # as it was read last; this partition is the same in both
        self.replicas = topic.replicas_of(topic_partition.partition)
        # Where there is one replica nothing has to be agreed on.
        self.only_log = log_of(self.replicas[0]) if len(self.replicas) == 1 else None
        self.min_isr = min(topic.config.min_insync_replicas, len(self.replicas))
        self._states, self._dirs, self._log_of = states, dirs, log_of
        self._noted: set[int] = set()  # nodes of which it was said that something is wrong

    def is_of(self, topic: Topic) -> bool:
        """Return True if a topic, as it was read since, has this partition with the same settings."""
        return (
            topic.topic_id == self.topic.topic_id
            and topic.config == self.config
            and topic.replicas_of(self.topic_partition.partition) == self.replicas
        )

    def state(self) -> PartitionState:
        """Who leads and who is in sync, as the disk has it."""
        known = self._states.read(self.topic_partition, self.topic.topic_id)
        if known is None:
            return PartitionState(self.replicas[0], self.replicas)
        if not {known.leader, *known.isr} <= {*self.replicas}:
            raise KafkaStorageError(
                f"{self._states.paths.partition_file(self.topic_partition)} is damaged: it names the leader "
                f"{known.leader} and the in-sync replicas {known.isr}; expected some of the partition's "
                f"replicas {self.replicas}"
            )
        return known

    def readable(self) -> Replica:
        """The replica to read, and its state as readers see it, but for commits not yet flipped.

        Raises:
            KafkaStorageError: no in-sync replica can be read; says why.
        """
        return self.shown(self.look())

    def look(self, avoid: Container[int] = ()) -> Look:
        """What can be read of it now, without some nodes.

        Raises:
            KafkaStorageError: no in-sync replica can be read; says why.
        """
        if self.only_log is not None:
            node_id = self.replicas[0]
            return Look(PartitionState(node_id, self.replicas), {node_id: self.only_log.state()})
        state = self.state()
        if state.leader not in avoid:
            leader = self._log_state(state.leader, to_write=False)
            if leader is not None:
                return Look(state, {state.leader: leader})
        alive = self._alive(state, to_write=False)
        found = {node_id: log_state for node_id, log_state in alive if node_id not in avoid}
        if not found:
            raise self._nobody(state)
        return Look(state, found)

    def shown(self, look: Look, newer: Mapping[int, LogState] = NOTHING_NEWER) -> Replica:
        """The replica to read, and its state as readers see it.

        Args:
            newer: states that a commit has decided, by node; not `Look.is_before`.
        """
        state = look.state
        if look.has_leader and not newer and not state.unwritten:
            return Replica(state.leader, self._log_of(state.leader), look.found[state.leader])
        found = dict(look.found)
        for node_id, decided in (*state.unwritten.items(), *newer.items()):
            if node_id in found and found[node_id].sequence < decided.sequence:
                found[node_id] = self._log_of(node_id).verified(decided)
        if newer:
            # Others have left the ISR since.
            found = {node_id: found[node_id] for node_id in found if node_id in newer}
        node_id, log_state = next(iter(found.items()))
        if node_id != state.leader:  # It stands in, as the leader that it would be.
            end = self._common_end(state, list(found.values()))
            if end > log_state.high_watermark:
                is_stable = log_state.last_stable_offset == log_state.high_watermark
                stable = end if is_stable else log_state.last_stable_offset
                log_state = log_state._replace(high_watermark=end, last_stable_offset=stable)
        return Replica(node_id, self._log_of(node_id), log_state)

    def reading_failed(self, node_id: int, error: Exception) -> None:
        """Note that a replica could not be read, though its state could."""
        self._note(node_id, error)

    def describe(self) -> list[ReplicaInfo]:
        """All replicas, in order of preference."""
        state = self.state()
        found = {node_id: self._log_state(node_id, to_write=False) for node_id in self.replicas}
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
        """Whether an append is decided, and what is wrong with it then.

        Args:
            required_offset: behind its last record.
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
                "had these records; whether they are kept is not known: send them again"
            )
        if log_state.high_watermark < required_offset:
            return False, None
        if len(state.isr) < self.min_isr:
            return True, NotEnoughReplicasAfterAppendError(
                str(self.topic_partition), state.isr, self.min_isr
            )
        return True, None

    def may_join(self) -> bool:
        """Whether a replica outside of the ISR could be used by now."""
        isr = self.state().isr
        return any(self._dirs.is_online(node) for node in self.replicas if node not in isr)

    def _alive(
        self, state: PartitionState, *, to_write: bool = True
    ) -> Iterator[tuple[int, LogState]]:
        """The members of the ISR that can be used, but the leader."""
        for node_id in self.replicas:
            is_behind = to_write and node_id in state.unwritten
            if node_id in state.isr and node_id != state.leader and not is_behind:
                log_state = self._log_state(node_id, to_write=to_write)
                if log_state is not None:
                    yield node_id, log_state

    def _log_state(self, node_id: int, *, to_write: bool = True) -> LogState | None:
        if not (self._dirs.is_online if to_write else self._dirs.is_readable)(node_id):
            return None
        try:
            return self._log_of(node_id).state()
        except (OSError, KBatchError) as error:
            self._note(node_id, error)
            return None

    def _common_end(self, state: PartitionState, alive: Sequence[LogState]) -> int:
        """The high watermark that the members which are alive can show."""
        known = max(log_state.high_watermark for log_state in alive)
        if len(state.isr) < self.min_isr:
            return known
        return max(known, min(log_state.log_end_offset for log_state in alive))

    def _note(self, node_id: int, error: Exception) -> None:
        """A replica failed: with its log dir, or alone where only its own files are not right."""
        if isinstance(error, OSError) and not isinstance(error, KBatchError):
            self._dirs.failed(node_id, error)
        elif node_id not in self._noted:
            self._noted.add(node_id)
            logger.warning("%s on node %d: %s", self.topic_partition, node_id, error)

    def _nobody(self, state: PartitionState) -> KafkaStorageError:
        reasons = "; ".join(
            f"node {node}: {self._dirs.why_offline(node) or 'its log cannot be read'}"
            for node in state.isr
        )
        return KafkaStorageError(
            f"{self.topic_partition} has no in-sync replica that can be used: {reasons}"
        )


class StateView:
    """A log of the cluster as one of its states has it."""

    def __init__(self, log: PartitionLog, state: LogState) -> None:
        self._log, self._state = log, state
        self.offsets = state.offsets

    def offset_for_timestamp(
        self, timestamp_ms: int, *, end_offset: int
    ) -> OffsetAndTimestamp | None:
        """As `PartitionLog.offset_for_timestamp`."""
        return self._log.offset_for_timestamp(self._state, timestamp_ms, end_offset=end_offset)

    def split_points(self, start_offset: int, end_offset: int, *, piece_bytes: int) -> list[int]:
        """As `PartitionLog.split_points`."""
        return self._log.split_points(
            self._state, start_offset, end_offset, piece_bytes=piece_bytes
        )
