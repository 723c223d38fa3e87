"""A partition's leader and in-sync replicas: the state in its file, and the elections that change it.

The caller of a method whose name ends in `_locked` holds the partition's lock. `partition` has what leaders
and followers do.

- A leader is elected from the ISR alone: the one that was written furthest, by epoch and end, of those
  that can be used; of equals the first, in order of preference. It gets a new leader epoch, which starts
  where its log ends, and the other members are truncated to that end.
- A member that was written further than its leader shows that the leader lost records, as from an older
  image of its disk. It is elected, not truncated. If it can be read and not written no one leads: it would
  leave, and lose what it alone has.
- A leader whose state is of another boot takes a new epoch before it appends: a replica that is away may
  have what was not flushed here, and is truncated by that epoch. So may an image of a disk: of an epoch and
  an offset there is one batch, wherever it lies. Machines that append in turn look the same, and take one
  at each turn; deletions drop it with its batches (see `log.retention`).
- A member that leaves brings a new epoch, too, which the leader takes before its next append: what the one
  that left has alone is truncated by it. It may be a batch that the leader never recorded.
- A leader that lost what was shown, as what was not flushed, leads on only if no member is away.
- A member has a copy of the partition's file beside its log, or leaves. Of all copies the newest counts
  (see `partition_states`), and the holder of the lock writes it where it is missing.
- The last member never leaves the ISR: without it no one leads until it is back, or until an operator asks
  for an unclean election.

Source: Kafka core/.../cluster/Partition.scala, metadata/.../PartitionChangeBuilder.java.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Container, Sequence
from typing import NamedTuple

from spark_kbatch.catalog.log_dirs import LogDirs
from spark_kbatch.catalog.partition_states import PartitionState, PartitionStates
from spark_kbatch.errors import KafkaStorageError, KBatchError
from spark_kbatch.log.epochs import LeaderEpochCache
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.state import LogState, boot_id, has_more, read_state, written_to
from spark_kbatch.model import TopicPartition
from spark_kbatch.replica.view import PartitionView

logger = logging.getLogger(__name__)


class Leadership(NamedTuple):
    """A partition's leader with its log and log state, as the last holder of the partition's lock left it."""

    state: PartitionState
    log: PartitionLog  # the leader's
    log_state: LogState


class Elections:
    """The elections of one partition with several replicas, for the holder of its lock."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: str,
        view: PartitionView,
        states: PartitionStates,
        dirs: LogDirs,
        now_ms: Callable[[], int],
    ) -> None:
        """Set up the elections of the partition that `view` shows."""
        self._topic_partition, self._topic_id, self._view = topic_partition, topic_id, view
        self._states, self._dirs, self._log_of = states, dirs, view.log_of
        self._now_ms = now_ms

    def lead_locked(self, left: Leadership | None) -> Leadership:
        """Return the partition's leader, after an election if the known one cannot be used.

        Args:
            left: as this process has left it; None if it did not lead.

        Raises:
            KafkaStorageError: no in-sync replica can be used; says why.
        """
        self._states.spread(self._topic_partition, self._topic_id)
        state, refused = self.without_unwritten_locked(self._view.state()), None
        for _ in self._view.replicas:
            log_state = self._view.log_state(state.leader)
            if log_state is not None and state.leader not in state.unwritten:
                try:
                    log = self._log_of(state.leader)
                    # Before one that cannot be written leaves.
                    refused = self._refused_beside_more(
                        state,
                        state.leader,
                        log_state,
                        functools.partial(self._lacks, state, log_state),
                    )
                    if refused is not None:
                        break
                    if not log.segments.is_as_recorded(log_state):
                        recorded = read_state(log.files, log.directory)
                        others = [one for _, one in self._view.alive(state)]
                        survived = max(log_state, *others, key=written_to) if others else log_state
                        if survived.log_end_offset < recorded.high_watermark:
                            refused = self._refused_to_lead(state, survived, recorded)
                            if refused is not None:
                                break
                        if log_state.boot_id != boot_id():
                            # A replica that is away may have what was not flushed here. What comes in its
                            # place has another epoch, by which that replica is truncated.
                            after = state._replace(leader_epoch=state.leader_epoch + 1)
                            hw = log_state.high_watermark
                            state = self.change_isr_locked(after, state.isr, hw)
                        log_state = log.discard_unrecorded(log_state)
                        if log_state.log_end_offset < recorded.log_end_offset and others:
                            # What was not flushed is gone here, and others may have it.
                            state = self.elect_locked(state)
                            continue
                    if log_state.leader_epoch < state.leader_epoch and any(
                        has_more(other, log_state) for _, other in self._view.alive(state)
                    ):
                        state = self.elect_locked(state)
                        continue
                    if not self._is_of_topic(state, log_state, left):
                        state = self.elect_locked(state)
                        continue
                    return self.become_leader_locked(state, log_state)
                except (OSError, KBatchError) as error:
                    self._view.failed(state.leader, error)
            state = self.elect_locked(state)
        raise refused or self._view.no_usable_replica(state)

    def _is_of_topic(
        self, state: PartitionState, log_state: LogState, left: Leadership | None
    ) -> bool:
        """Return False if the leader's log is another topic's; looked at unless it is as this process left it.

        Sequence numbers tell nothing: an image of a deleted topic of the same name may have higher ones.
        """
        is_as_left = (
            left is not None and left.state.leader == state.leader and left.log_state == log_state
        )
        return (is_as_left and log_state.is_distinct) or self._view.is_of_topic(
            self._log_of(state.leader)
        )

    def _lacks(self, state: PartitionState, leader: LogState, _: int, other: LogState) -> bool:
        """Return True if a leader lacks what a member has, and what it lacks may have been shown.

        A third member that can be written and lacks it as well shows that it was not.
        """
        return has_more(other, leader) and not any(self._view.alive(state))

    def _lack(
        self, state: PartitionState, alive: Collection[LogState], node_id: int, other: LogState
    ) -> bool:
        """Return True if all who may be elected lack what a member has, and what they lack may have been shown.

        A leader knows by its high watermark what was shown. A follower knows it as of its last copy; so what it
        has counts, unless two lack it.
        """
        if node_id != state.leader and len(alive) == 1:
            return all(has_more(other, one) for one in alive)
        return all(other.high_watermark > one.log_end_offset for one in alive)

    def _refused_beside_more(
        self,
        state: PartitionState,
        node_id: int,
        log_state: LogState,
        lacks: Callable[[int, LogState], bool],
    ) -> KafkaStorageError | None:
        """Return why a replica may not lead beside a member that can be read and not written.

        Such a member would leave, and lose what it alone has. `lacks` tells by its node and log state
        whether that is so.
        """
        for other_id in state.isr:
            if other_id == node_id or self._dirs.is_online(other_id):
                continue
            other = self._view.log_state(other_id, to_write=False)
            if (
                other is not None
                and lacks(other_id, other)
                and self._view.is_of_topic(self._log_of(other_id))
            ):
                return KafkaStorageError(
                    f"{self._topic_partition} ends at offset {other.log_end_offset} on node {other_id}, whose "
                    f"log dir cannot be written ({self._dirs.why_offline(other_id)}), and at "
                    f"{log_state.log_end_offset} on node {node_id}, which lost records: mend the former, or "
                    "give what it alone has up with `kbatch log-dirs PATH --elect-unclean "
                    f"{self._topic_partition.topic}`"
                )
        return None

    def _refused_to_lead(
        self, state: PartitionState, survived: LogState, recorded: LogState
    ) -> KafkaStorageError | None:
        """Return why a leader that lost what was shown may not lead; None if no in-sync replica is away.

        Then it leads, and the loss is logged.
        """
        what = f"{self._topic_partition} was shown up to offset {recorded.high_watermark}"
        away = [node for node in state.isr if self._view.log_state(node) is None]
        if not away:
            logger.error(
                "%s, and ends at %d now: what was not flushed is lost",
                what,
                survived.log_end_offset,
            )
            return None
        return KafkaStorageError(
            f"{what}, and what can be read ends at {survived.log_end_offset}: mount the disk of node "
            f"{', '.join(map(str, away))}, or give the rest up with `kbatch log-dirs PATH "
            f"--elect-unclean {self._topic_partition.topic}`"
        )

    def become_leader_locked(self, state: PartitionState, log_state: LogState) -> Leadership:
        """Record the new leader epoch in the leader's log, unless it is there already."""
        log = self._log_of(state.leader)
        if log_state.leader_epoch < state.leader_epoch:
            log_state = log.discard_unrecorded(log_state)
            epochs = LeaderEpochCache.read(log.files, log.directory)
            epochs.assign(state.leader_epoch, log_state.log_end_offset)
            log_state = log_state._replace(
                sequence=log_state.sequence + 1, leader_epoch=state.leader_epoch
            )
            log.write_state(log_state, flush=True)
        return Leadership(state, log, log_state)

    def elect_locked(
        self, state: PartitionState, among: Container[int] | None = None
    ) -> PartitionState:
        """Elect another in-sync replica as leader, one of `among`; on disk on return."""
        alive = dict(
            sorted(
                (one for one in self._view.alive(state) if among is None or one[0] in among),
                key=lambda one: written_to(one[1]),
                reverse=True,
            )
        )
        if not alive:
            raise self._view.no_usable_replica(state)
        end = self._view.common_end(len(state.isr), alive)
        for node_id, log_state in alive.items():
            if log_state.log_end_offset < end:
                break  # It is an older image; one that has all of it cannot be written.
            refused = self._refused_beside_more(
                state,
                node_id,
                log_state,
                functools.partial(self._lack, state, alive.values()),
            )
            if refused is not None:
                raise refused
            log = self._log_of(node_id)
            try:
                log.move_high_watermark(log_state, end, flush=True, now_ms=self._now_ms())
            except (OSError, KBatchError) as error:
                self._view.failed(node_id, error)
                continue
            isr = [other for other in alive if self._dirs.is_online(other)]
            after = state._replace(leader=node_id, leader_epoch=state.leader_epoch + 1)
            return self.change_isr_locked(after, isr, max(end, log_state.high_watermark))
        raise self._view.no_usable_replica(state)

    def lead_among_locked(self, whole: Collection[int]) -> None:
        """Leave only these of the in-sync replicas in the ISR, one of which leads; on disk on return."""
        state = self._view.state()
        if state.leader not in whole:
            self.elect_locked(state, whole)
        elif set(whole) < set(state.isr):
            leader = self._log_of(state.leader).state()
            refused = self._refused_beside_more(
                state,
                state.leader,
                leader,
                lambda _, other: has_more(other, leader) and len(whole) == 1,
            )
            if refused is not None:
                raise refused
            self.change_isr_locked(state, [*whole], leader.high_watermark)

    def lead_alone_locked(self, node_id: int) -> None:
        """Let this replica lead in a new epoch, with no other in sync; on disk on return."""
        state = self._view.state()
        after = state._replace(leader=node_id, leader_epoch=state.leader_epoch + 1)
        self.change_isr_locked(after, [node_id], 0)

    def change_isr_locked(
        self, state: PartitionState, isr: Sequence[int], high_watermark: int
    ) -> PartitionState:
        """Store a partition's new ISR on disk, together with its leader."""
        if len(isr) < self._view.min_isr:
            # The high watermark stands still from now on, and no longer follows from the log ends.
            isr = [
                node
                for node in isr
                if node == state.leader or self.tell_locked(node, high_watermark)
            ]
        stored = self._view.state()
        epoch = state.leader_epoch
        if epoch == stored.leader_epoch and not {*stored.isr} <= {*isr}:
            # One that leaves may have what no one else has: it is truncated by its epoch.
            epoch += 1
        after = state._replace(
            isr=tuple(node for node in self._view.replicas if node in isr),
            leader_epoch=epoch,
            unwritten={node: decided for node, decided in state.unwritten.items() if node in isr},
        )
        after, without_copy = self.write_state(after)
        left = [node for node in after.isr if node == after.leader or node not in without_copy]
        if len(left) < len(after.isr):
            return self.change_isr_locked(after, left, high_watermark)
        self._view.recovered(after.isr)
        logger.warning(
            "%s: leader %d in epoch %d, in sync: %s",
            self._topic_partition, after.leader, after.leader_epoch, ", ".join(map(str, after.isr)),
        )  # fmt: skip
        return after

    def tell_locked(self, node_id: int, high_watermark: int) -> bool:
        """Write the high watermark to a replica's log; return False if that fails."""
        log = self._log_of(node_id)
        try:
            log.move_high_watermark(log.state(), high_watermark, flush=True, now_ms=self._now_ms())
        except (OSError, KBatchError) as error:
            self._view.failed(node_id, error)
            return False
        return True

    def write_state(self, state: PartitionState) -> tuple[PartitionState, Collection[int]]:
        """Store a partition's state under the next number; return it, and the nodes whose disks have no copy."""
        after = state._replace(partition_epoch=state.partition_epoch + 1)
        missed = self._states.write(self._topic_partition, after, self._topic_id)
        return after, self._dirs.of_mirrors(missed)

    def without_unwritten_locked(self, state: PartitionState) -> PartitionState:
        """Write log states of decided commits that replicas missed while their disks were offline."""
        is_last = len(state.isr) == 1
        unwritten = {
            node_id: decided
            for node_id in state.leader_first(state.unwritten)  # as in `flip_locked`
            for decided in [state.unwritten[node_id]]
            if not self.flipped_locked(node_id, decided, is_last=is_last, flush=True)
        }
        if unwritten.keys() != state.unwritten.keys():
            state, _ = self.write_state(state._replace(unwritten=unwritten))
        return state

    def flipped_locked(self, node_id: int, state: LogState, *, is_last: bool, flush: bool) -> bool:
        """Write a decided commit's state; return False if that fails, or the log lacks its batches.

        With `is_last` no other replica has them: it is written all the same, for `repair` to find where
        the log ends.
        """
        if not self._dirs.is_online(node_id):
            return False
        try:
            log = self._log_of(node_id)
            is_newer = log.state().sequence < state.sequence
            if is_newer and not is_last and not log.holds(state):
                raise KafkaStorageError(
                    f"{log.directory} lacks batches of a commit up to offset {state.log_end_offset}, which "
                    "it had: its disk is an older image"
                )
            write_decided(log, state, flush=flush)
        except (OSError, KBatchError) as error:
            self._view.failed(node_id, error)
            return False
        return True


def write_decided(log: PartitionLog, state: LogState, *, flush: bool) -> None:
    """Write a decided commit's state; with `flush` it is on disk on return, whoever wrote it.

    A log that was written further is left as it is: it was caught up since.
    """
    found = log.state()
    if found.sequence < state.sequence and not has_more(found, state):
        log.write_state(state, flush=flush)
    elif flush:
        # Its writer may have died before it was flushed. The commit is complete after this, in this log
        # too: after a power loss no one would write it again.
        log.flush_state()
