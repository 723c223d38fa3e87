"""Lock-free, read-only view of a partition: which replica to read, and up to where.

That is the leader, as its state has it. If its log dir is gone, or is an older image that lacks what an
in-sync replica has, and no one has elected another leader yet, it is what the next leader would show: from
the highest log start of the in-sync replicas on. `partition` has the rules. States that a commit has decided
replace those that were read.

Source: Kafka core/.../cluster/Partition.scala.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from spark_kbatch.catalog.log_dirs import LogDirs
from spark_kbatch.catalog.partition_states import PartitionState, PartitionStates
from spark_kbatch.errors import (
    KafkaStorageError,
    KBatchError,
    NotEnoughReplicasAfterAppendError,
    NotLeaderOrFollowerError,
)
from spark_kbatch.log.checkpoints import read_partition_metadata
from spark_kbatch.log.epochs import LeaderEpochCache
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.state import LogState, has_more, is_behind, written_to
from spark_kbatch.model import LogOffsets, OffsetAndTimestamp, TopicPartition
from spark_kbatch.options.topic import Topic
from spark_kbatch.store.reports import ReplicaInfo

logger = logging.getLogger(__name__)

NOTHING_NEWER: Mapping[int, LogState] = {}

_LOOKS_MAX = 5  # at a partition whose state changes meanwhile


class Replica(NamedTuple):
    """A replica of a partition: its node, its log, and the log's state as of one moment."""

    node_id: int
    log: PartitionLog
    state: LogState

    @property
    def offsets(self) -> LogOffsets:
        """The start and end offsets of the replica's log, in this state."""
        return self.state.offsets

    def offset_for_timestamp(
        self, timestamp_ms: int, *, end_offset: int
    ) -> OffsetAndTimestamp | None:
        """Return the first record at or after a timestamp, as `PartitionLog.offset_for_timestamp` does."""
        return self.log.offset_for_timestamp(self.state, timestamp_ms, end_offset=end_offset)

    def start_by_time(self, timestamp_ms: int, *, end_offset: int) -> int:
        """Return the first offset of that time or a later one; `end_offset` if there is none."""
        found = self.offset_for_timestamp(timestamp_ms, end_offset=end_offset)
        return end_offset if found is None else found.offset

    def split_points(self, start_offset: int, end_offset: int, *, piece_bytes: int) -> list[int]:
        """Return offsets that divide a range into pieces, as `PartitionLog.split_points` does."""
        return self.log.split_points(self.state, start_offset, end_offset, piece_bytes=piece_bytes)

    def bytes_between(self, start_offset: int, end_offset: int) -> int | None:
        """Return about the size of a range, as `PartitionLog.bytes_between` does."""
        return self.log.bytes_between(self.state, start_offset, end_offset)


class Replicas(Protocol):
    """A function that finds the replicas to read, and shows all commits that are decided."""

    def __call__(
        self, topic_partitions: Iterable[TopicPartition], avoid: Container[int] = (), /
    ) -> Mapping[TopicPartition, Replica]:
        """Return each partition's replica to read, all as of one moment, with decided commits applied.

        Args:
            topic_partitions: whose.
            avoid: nodes that could not be read.

        Raises:
            UnknownTopicOrPartitionError: one of the partitions does not exist.
            KafkaStorageError: no replica of one of them can be read.
        """


class Look(NamedTuple):
    """A reader's findings about a partition: its leader and ISR, and the log states that could be read.

    Those are the leader alone; or all members of the ISR, if it has not begun to lead; or all others, if it
    cannot be read or lost records.
    """

    state: PartitionState
    found: Mapping[int, LogState]
    deleted_to: int = 0  # the highest log start of all members that can be read

    @property
    def has_leader(self) -> bool:
        """Whether the leader's log state was read, and is to be believed."""
        return self.state.leader in self.found

    @property
    def is_deleting(self) -> bool:
        """Whether the leader has records that another member has deleted."""
        leader = self.found.get(self.state.leader)
        return leader is not None and leader.log_start_offset < self.deleted_to

    def is_before(self, newer: Mapping[int, LogState]) -> bool:
        """Return True if a newer commit went to other replicas than those read: others lead by now."""
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
        """Set up a view; `log_of` returns the log of a node's replica."""
        self.topic_partition, self.log_of = topic_partition, log_of
        self.replicas = topic.replicas_of(topic_partition.partition)
        # With one replica there is nothing to agree on.
        self.only_log = log_of(self.replicas[0]) if len(self.replicas) == 1 else None
        self.min_isr = min(topic.known_config.min_insync_replicas, len(self.replicas))
        self._topic_id, self._states, self._dirs = topic.topic_id, states, dirs
        self._reported: set[int] = set()  # nodes whose failure was logged
        # Of logs that are the topic's own, by node: as they were when they were looked at, or written here.
        self._known: dict[int, LogState] = {}

    def state(self) -> PartitionState:
        """Return the partition's leader and in-sync replicas, as the disk has them now."""
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

    def kept(self) -> Mapping[int, LogState]:
        """Return the state of a decided commit that is kept for an only replica, whose disk failed.

        With one log dir nothing is kept. With more of them this is a look at files that are not there.
        """
        return NOTHING_NEWER if len(self._dirs.all) == 1 else self.state().unwritten

    def readable(self) -> Replica:
        """Return the replica to read, without commits that are decided but not yet written to its state.

        Raises:
            KafkaStorageError: no in-sync replica can be read; says why.
        """
        return self.shown(self.look())

    def look(self, avoid: Container[int] = ()) -> Look:
        """Read the partition's leader, or, without one to believe, the other in-sync replicas, except nodes in `avoid`.

        Raises:
            KafkaStorageError: no in-sync replica can be read; says why.
        """
        if self.only_log is not None:
            node_id = self.replicas[0]
            state = PartitionState(node_id, self.replicas, unwritten=self.kept())
            return Look(state, {node_id: self.usable_only_log(to_write=False).state()})
        state, leader, others = self._sound_leader(avoid)
        # Records are deleted on the leader last: one that starts before a member is an older image, or is about to
        # delete them.
        if leader is not None:
            deleted_to = self.deleted_to(state.leader, leader, others)
            found = {state.leader: leader}
            if leader.leader_epoch < state.leader_epoch:
                # It was elected, or one has left, and it has not appended since; or its disk is an image of
                # before its election, which was shown up to where all in-sync replicas end.
                others = {n: s for n, s in others.items() if n not in avoid}
                if {*state.isr} <= found.keys() | others.keys():
                    found |= others
            return Look(state, found, deleted_to)
        found = {n: s for n, s in others.items() if n not in avoid}
        if not found and state.leader not in avoid and self.is_of_topic(self.log_of(state.leader)):
            # It lacks something, but all others fail.
            leader = self.log_state(state.leader, to_write=False)
            found = {} if leader is None else {state.leader: leader}
        if not found:
            raise self.no_usable_replica(state)
        return Look(state, found, self.deleted_to(*_furthest(others), others) if others else 0)

    def _sound_leader(
        self, avoid: Container[int]
    ) -> tuple[PartitionState, LogState | None, Mapping[int, LogState]]:
        """Return the partition's state, its leader's, and those of the other in-sync replicas.

        The leader's is None if it cannot be read, or is not to be believed: a leader is always written
        first, so a member that was written further shows that the leader's disk is an older image. It may
        be the state that was seen last, so the others are read each time.
        """
        looks = 0
        while True:
            state, leader = self.state(), None
            if state.leader not in avoid:
                leader = self.log_state(state.leader, to_write=False)
            others = dict(self.alive(state, to_write=False))
            if leader is None or not self.is_known(state.leader, leader):
                return state, None, others
            further = [one for one in others.values() if has_more(one, leader)]
            if not further:
                return state, leader, others
            again = self.log_state(state.leader, to_write=False)
            looks += 1
            if looks < _LOOKS_MAX and self.state() != state:
                continue
            if again is None or any(has_more(one, again) for one in further):
                return state, None, others
            return state, again, others  # It has got further meanwhile.

    def is_known(self, node_id: int, log_state: LogState) -> bool:
        """Return False if a log is another topic's; looked at unless its state is the last one, and tells."""
        if self._known.get(node_id) != log_state or not log_state.is_distinct:
            if not self.is_of_topic(self.log_of(node_id)):
                return False
            self._known[node_id] = log_state
        return True

    def know(self, written: Mapping[int, LogState | None]) -> None:
        """Note how this process has left logs of the topic; None is one that failed."""
        self._known.update((node, state) for node, state in written.items() if state is not None)

    def shown(self, look: Look, newer: Mapping[int, LogState] = NOTHING_NEWER) -> Replica:
        """Return the replica to read after a `look`, with the log state that readers see.

        Args:
            look: what was read.
            newer: states that a commit has decided, by node; not `Look.is_before`.
        """
        state = look.state
        if look.has_leader and len(look.found) == 1 and not newer and not state.unwritten:
            leader = _starting_at(look.deleted_to, look.found[state.leader])
            return Replica(state.leader, self.log_of(state.leader), leader)
        decided = (*state.unwritten.items(), *newer.items())
        # With newer states, those that they leave out have left the ISR since.
        found = {n: s for n, s in look.found.items() if not newer or n in newer}
        whole, lacking = self._as_decided(found, decided)
        if len(whole) < len(found):
            others = {
                n: s
                for n, s in self.alive(state, to_write=False)
                if n not in found and (not newer or n in newer)
            }
            more, also_lacking = self._as_decided(others, decided)
            whole, lacking = whole | more, lacking | also_lacking
        found = whole or lacking
        if not found:
            raise self.no_usable_replica(state)
        node_id, log_state = _furthest(found)
        if node_id != state.leader or len(found) > 1:  # As the leader that it is going to be.
            end = self.common_end(len(state.isr), found)
            if end > log_state.high_watermark:
                log_state = log_state._replace(high_watermark=end)
                stable = log_state.last_stable_offset
                with contextlib.suppress(OSError):  # A read of records meets it, too.
                    producers = self.log_of(node_id).producers
                    stable = max(stable, producers.last_stable_offset(log_state))
                log_state = log_state._replace(last_stable_offset=stable)
        deleted_to = max(look.deleted_to, self.deleted_to(node_id, log_state, found))
        return Replica(node_id, self.log_of(node_id), _starting_at(deleted_to, log_state))

    def _as_decided(
        self, found: Mapping[int, LogState], decided: Iterable[tuple[int, LogState]]
    ) -> tuple[dict[int, LogState], dict[int, LogState]]:
        """Return log states as commits have decided them: those whose logs have all of it, and the others.

        Of the others the disk is an older image, or the power failed before it was flushed. One that
        cannot be read is in neither: as it was before it would show a commit in part.
        """
        whole, lacking = dict(found), dict[int, LogState]()
        for node_id, state in decided:
            if node_id in whole and whole[node_id].sequence < state.sequence:
                log = self.log_of(node_id)
                del whole[node_id]
                try:
                    verified = log.verified(state)
                    is_whole = verified == state and log.holds(state)
                except (OSError, KBatchError) as error:
                    self.failed(node_id, error)
                else:
                    (whole if is_whole else lacking)[node_id] = verified
        return whole, lacking

    def describe(self) -> list[ReplicaInfo]:
        """Return the status of all replicas of the partition, in order of preference."""
        state = self.state()
        # The leader comes first: what is below its high watermark then is in all logs that are in sync.
        leader = self.log_state(state.leader, to_write=False)
        end = -1 if leader is None else leader.log_end_offset
        rows, members = list[ReplicaInfo](), list[LogState]()
        for node_id in self.replicas:
            is_leader = node_id == state.leader
            log_state = leader if is_leader else self.log_state(node_id, to_write=False)
            own_end = -1 if log_state is None else log_state.log_end_offset
            why = self._dirs.why_offline(node_id)
            if why is None and log_state is None:
                why = "its log cannot be read"
            is_in_sync = node_id in state.isr and why is None
            if is_in_sync and self.only_log is None:
                is_in_sync = self.is_of_topic(self.log_of(node_id))
            if is_in_sync and not is_leader and leader is not None and log_state is not None:
                followed = Replica(state.leader, self.log_of(state.leader), leader)
                is_in_sync = self._follows(
                    Replica(node_id, self.log_of(node_id), log_state), followed
                )
                if is_in_sync and is_behind(leader, log_state):
                    members.append(log_state)
            rows.append(
                ReplicaInfo(
                    node_id, is_leader, is_in_sync, own_end,
                    max(end - own_end, 0) if own_end >= 0 and end >= 0 else -1, why,
                )
            )  # fmt: skip
        if members:
            again = self.log_state(state.leader, to_write=False)  # It may have got further.
            is_image = again is not None and any(is_behind(again, one) for one in members)
            if is_image and self.state() == state:
                rows = [row._replace(in_sync=row.in_sync and not row.is_leader) for row in rows]
        return rows

    def _follows(self, follower: Replica, leader: Replica) -> bool:
        """Return True if a follower has the leader's committed batches, and none that it has deleted.

        The epochs of the batches show which it has.
        """
        start, end = follower.state.log_start_offset, leader.state.high_watermark
        if follower.state.log_end_offset < end or start < leader.state.log_start_offset:
            return False
        return self._shares_start(follower.state, leader.node_id, leader.state) and (
            self._agree_until(follower.node_id, leader.node_id, start, end) == end
        )

    def deleted_to(self, node_id: int, leader: LogState, members: Mapping[int, LogState]) -> int:
        """Return the highest log start of a leader and of members that share its history."""
        counted = [one for one in members.values() if self._shares_start(one, node_id, leader)]
        return max(one.log_start_offset for one in [leader, *counted])

    def _shares_start(self, member: LogState, node_id: int, leader: LogState) -> bool:
        """Return False if what a member deleted is not what a leader has, which was elected unclean since."""
        if (
            member.log_start_offset <= leader.log_start_offset
            or member.leader_epoch >= leader.leader_epoch
        ):
            return True
        log = self.log_of(node_id)
        try:
            epochs = LeaderEpochCache.read(log.files, log.directory)
        except (OSError, KafkaStorageError):
            return True  # It is rebuilt from the batches.
        return epochs.reaches(member.leader_epoch, member.log_start_offset, leader.log_end_offset)

    def are_equal(self) -> bool:
        """Return False if a copy of the partition's file misses its last change; see `PartitionStates`."""
        return self._states.are_equal(self.topic_partition, self._topic_id)

    def shows_all(self) -> bool:
        """Return False if the leader has records that no reader sees yet: their writer copies them, or died."""
        leader = self.log_state(self.state().leader, to_write=False)
        return leader is None or leader.high_watermark == leader.log_end_offset

    def is_of_topic(self, log: PartitionLog) -> bool:
        """Return False if a log is another topic's of the same name; a lost partition.metadata tells nothing."""
        try:
            return read_partition_metadata(log.files, log.directory) == self._topic_id
        except (OSError, KafkaStorageError):
            return True

    def reaches(
        self, required_offset: int, leader_epoch: int
    ) -> tuple[bool, KBatchError | OSError | None]:
        """Return whether an append with acks=all is decided, and its error if there is one.

        Args:
            required_offset: the offset after its last record.
            leader_epoch: under which it was appended.
        """
        try:
            state = self.state()
            log_state = self.readable().state
        except (OSError, KBatchError) as error:
            return True, error
        if state.leader_epoch != leader_epoch and not self._has_up_to(
            required_offset,
            leader_epoch,
            Replica(state.leader, self.log_of(state.leader), log_state),
        ):
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

    def _has_up_to(self, required_offset: int, leader_epoch: int, leader: Replica) -> bool:
        """Return True if a later leader has what was appended in an epoch, up to an offset.

        Where an epoch before all known ones ended tells nothing: the one that took its place may be forgotten.
        """
        try:
            epochs = LeaderEpochCache.read(leader.log.files, leader.log.directory)
        except (OSError, KafkaStorageError):
            return False
        if all(entry.epoch != leader_epoch for entry in epochs.entries):
            return False
        end = epochs.end_offset_for(leader_epoch, leader.state.log_end_offset)
        return end.start_offset >= required_offset

    def may_join(self) -> bool:
        """Return True if a replica outside of the ISR can be used by now."""
        isr = self.state().isr
        return any(self._dirs.is_online(node) for node in self.replicas if node not in isr)

    # Single replicas.

    def usable_only_log(self, *, to_write: bool = True) -> PartitionLog:
        """Return the log of a partition that has one replica.

        Raises:
            KafkaStorageError: its log dir is offline, so what is at its path may be another disk's.
        """
        assert self.only_log is not None
        (node_id,) = self.replicas
        if self._dirs.is_used(node_id) or (not to_write and self._dirs.is_readable(node_id)):
            return self.only_log
        raise self.no_usable_replica(PartitionState(node_id, self.replicas))

    def alive(
        self, state: PartitionState, *, to_write: bool = True
    ) -> Iterator[tuple[int, LogState]]:
        """Yield the usable members of the ISR besides the leader, with their log states.

        A log of another topic of the same name, as an older image has it, is none.
        """
        for node_id in self.replicas:
            is_behind = to_write and node_id in state.unwritten
            if node_id in state.isr and node_id != state.leader and not is_behind:
                log_state = self.log_state(node_id, to_write=to_write)
                if log_state is not None and self.is_known(node_id, log_state):
                    yield node_id, log_state

    def log_state(self, node_id: int, *, to_write: bool = True) -> LogState | None:
        """Return the state of a replica's log; None if it cannot be read.

        With `to_write` it is also None if the log dir cannot be written.
        """
        if not (self._dirs.is_online if to_write else self._dirs.is_readable)(node_id):
            return None
        try:
            return self.log_of(node_id).state()
        except (OSError, KBatchError) as error:
            self.failed(node_id, error)
            return None

    def furthest(self, lost: Container[int] = ()) -> tuple[int, LogState] | None:
        """Return the usable replica that was written furthest, in sync or not, except nodes in `lost`.

        None if none can be used. A log of another topic of the same name is none.
        """
        found = [
            (node_id, log_state)
            for node_id in self.replicas
            if node_id not in lost
            and (log_state := self.log_state(node_id)) is not None
            and self.is_known(node_id, log_state)
        ]
        return max(found, key=lambda one: written_to(one[1]), default=None)

    def common_end(self, members_count: int, alive: Mapping[int, LogState]) -> int:
        """Return the high watermark that a new leader can show, given these ISR members' log states.

        That is up to where all have what the furthest has, as their epochs tell. With fewer members than
        min.insync.replicas, `members_count` before the election, it has stood still.
        """
        known = max(log_state.high_watermark for log_state in alive.values())
        if members_count < self.min_isr:
            return known
        best_id, best = max(alive.items(), key=lambda one: written_to(one[1]))
        end = min(log_state.log_end_offset for log_state in alive.values())
        for node_id, log_state in alive.items():
            if end > known and log_state.leader_epoch != best.leader_epoch:
                end = self._agree_until(node_id, best_id, known, end)
        return max(known, end)

    def _agree_until(self, node_id: int, other_id: int, start: int, end: int) -> int:
        """Return up to where two replicas have the same leader epochs; `end` if a file of them is lost."""
        try:
            ours, theirs = (
                LeaderEpochCache.read(log.files, log.directory)
                for log in (self.log_of(node_id), self.log_of(other_id))
            )
        except (OSError, KafkaStorageError):
            return end  # It is rebuilt from the batches.
        return ours.agree_until(theirs, start, end)

    def failed(self, node_id: int, error: Exception) -> None:
        """Note a replica's failure: an OSError takes its log dir offline, any other error is logged."""
        if isinstance(error, OSError) and not isinstance(error, KBatchError):
            self._dirs.failed(node_id, error)
        elif node_id not in self._reported:
            self._reported.add(node_id)
            logger.warning("%s on node %d: %s", self.topic_partition, node_id, error)

    def recovered(self, nodes: Collection[int]) -> None:
        """Forget the noted failures of these nodes, so that the next ones are logged again."""
        self._reported.difference_update(nodes)

    def no_usable_replica(self, state: PartitionState) -> KafkaStorageError:
        """Return the error for a partition that no one can lead; says why."""
        reasons = "; ".join(
            f"node {node}: {self._dirs.why_offline(node) or 'its log cannot be read, or lacks records'}"
            for node in state.isr
        )
        return KafkaStorageError(
            f"{self.topic_partition} has no in-sync replica that can be used: {reasons}"
        )


def _furthest(states: Mapping[int, LogState]) -> tuple[int, LogState]:
    return max(states.items(), key=lambda one: written_to(one[1]))


def _starting_at(offset: int, state: LogState) -> LogState:
    """Return a log's state without records below an offset, as far as readers see any."""
    start = min(offset, state.high_watermark)
    if start <= state.log_start_offset:
        return state
    stable = max(state.last_stable_offset, start)
    return state._replace(log_start_offset=start, last_stable_offset=stable)
