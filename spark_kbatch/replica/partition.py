"""The replicas of one partition: which one leads, which are in sync, what is committed.

    PATH/partitions/TOPIC/P.json     leader, in-sync replicas (ISR), leader epoch; absent until one of
                                     them changes: the first replica leads and all are in sync
    broker-N/TOPIC-P/kbatch.state    log end and high watermark, of each replica

There is no server. The process that holds the partition's lock does all the work, in this order:

    lead       read the leader's state; if that fails, as when its disk is lost, elect another leader
    replicate  truncate every follower to what the leader has and copy what it lacks: then it is in
               sync. One for which that fails leaves the ISR. Then the high watermark advances
    append     to the leader alone, whose recorded end is never below a follower's; then replicate
               again, while the leader flushes what it has

A process that dies at any point leaves a state from which the next one continues: it starts with `lead`.

The rules, beside those of `elections`:
- The high watermark is the smallest log end offset in the ISR. It stands still while the ISR has fewer
  than min.insync.replicas members, and it advances only after the ISR on disk is the one that it was
  computed from. So every member of the ISR on disk has everything below the leader's high watermark.
- A follower learns the high watermark with the next copy, so what it recorded may be too low: a replica
  that takes over shows the smallest log end offset of all members that are alive. Those have what was
  shown before, and as they are made equal none of it disappears. While the ISR is too small the high
  watermark stands still; when that starts, its value is written to all members.
- A replica outside of the ISR is truncated to where its leader epochs differ from the leader's, and catches
  up in pieces, so that appends need not wait long; it joins once it has everything. One that ends below the
  leader's log start starts over, at the batch that holds that, with the leader's epochs. One that is lost
  or damaged is recreated, but only in a log dir that is ours.
- It joins only if its disk has all changes of the cluster's JSON files, which it may have missed while it was
  away: else what is restored from it alone would bring deleted topics back. They are brought there first.
- What fails on a follower is the follower's. A leader that cannot be read gives way if another member can
  lead; each leads once at most in a call.
- The ISR on disk alone admits a replica. Whoever shows or asks what is in sync looks at the logs too
  (`view.describe`), and what a look contradicts does not count.
- Records are deleted on the followers first and on the leader last. A member for which that fails leaves
  the ISR before. So all members have a deletion that was acknowledged, and the highest log start of those that
  can be read is the partition's: a leader that starts below it, as its deleter died or its disk is an older
  image, is made to start there before anything else, and a follower as it catches up.

A Spark job's data is placed after the recorded ends of all members of the ISR, unseen; the commit then
flips their states. A state that no member took is kept in P.json, and written before the replica is used
again; with several log dirs that holds for a partition with one replica, too. `view` has what readers see; they take no lock except to have a leader elected.
`followers` makes a follower equal to its leader.

Source: Kafka core/.../cluster/Partition.scala, metadata/.../PartitionChangeBuilder.java.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

from spark_kbatch.catalog.log_dirs import LogDirs
from spark_kbatch.catalog.partition_states import PartitionState, PartitionStates
from spark_kbatch.catalog.paths import stray_of
from spark_kbatch.errors import (
    KafkaStorageError,
    KBatchError,
    NotEnoughReplicasError,
)
from spark_kbatch.log import retention
from spark_kbatch.log.append import (
    Ahead,
    append_ahead,
    append_as_leader,
    append_together,
    check_together,
)
from spark_kbatch.log.epochs import LeaderEpochCache
from spark_kbatch.log.partition_log import PartitionLog, holds_records
from spark_kbatch.log.state import (
    LogState,
    valid_slots,
)
from spark_kbatch.log.validator import Accepted
from spark_kbatch.model import AppendOrigin, AppendResult, TopicPartition
from spark_kbatch.options.topic import Topic
from spark_kbatch.record.header import NO_PRODUCER_ID
from spark_kbatch.replica.elections import Elections, Leadership, write_decided
from spark_kbatch.replica.followers import (
    LeaderError,
    ReplicaFetcher,
    delete_on_follower,
)
from spark_kbatch.replica.view import PartitionView, Replica
from spark_kbatch.store.reports import Deletion

logger = logging.getLogger(__name__)

T = TypeVar("T")
Step: TypeAlias = Callable[[], LogState | None]
Start: TypeAlias = Callable[[Step], Step]

_CATCH_UP_BYTES = 64 << 20  # for a replica outside of the ISR, in one hold of the lock


class Appended(NamedTuple):
    """The outcome of appending one batch; until it is decided, the offset that replicas have to reach."""

    result: AppendResult
    is_decided: bool = True
    required_offset: int = -1  # after its last record
    leader_epoch: int = -1  # under which it was appended
    topic_id: str = ""  # of the topic that it was appended to


class Partition:
    """One partition of a topic, for those that write to it; readers use its `view`.

    The caller of a method whose name ends in `_locked` holds the partition's lock. "Ready" means that
    `ready_locked` was called since the lock was taken.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic: Topic,
        states: PartitionStates,
        dirs: LogDirs,
        log_of: Callable[[int], PartitionLog],
        now_ms: Callable[[], int],
        *,
        stale_mirrors: Callable[[], Collection[Path]] = tuple,
        lacking_mirrors: Callable[[], Collection[Path]] = tuple,
        uses_threads: bool = True,
    ) -> None:
        """Set up a partition.

        Args:
            topic_partition: which one.
            topic: its topic.
            states: leaders and in-sync replicas.
            dirs: the log dirs.
            log_of: returns the log of a node's replica.
            now_ms: the clock.
            stale_mirrors: brings what mirrors have missed there, and returns those that still lack some.
            lacking_mirrors: the same, but without those of which it is not known.
            uses_threads: whether disks are flushed side by side.
        """
        self.topic_partition, self.config = topic_partition, topic.known_config
        self.topic = topic  # as it was read last; this partition is the same in both
        self.view = PartitionView(topic_partition, topic, states, dirs, log_of)
        self.replicas, self.min_isr = self.view.replicas, self.view.min_isr
        self.only_log = self.view.only_log
        self.elections = Elections(topic_partition, topic.topic_id, self.view, states, dirs, now_ms)
        self._dirs, self._log_of = dirs, log_of
        self._now_ms, self._uses_threads = now_ms, uses_threads
        self._stale_mirrors, self._lacking_mirrors = stale_mirrors, lacking_mirrors
        self._led: Leadership | None = None  # guarded by the partition's lock

    def is_of(self, topic: Topic) -> bool:
        """Return True if the topic, read again, still has this partition with the same id and settings."""
        return (
            topic.topic_id == self.topic.topic_id
            and topic.config == self.config
            and topic.replicas_of(self.topic_partition.partition) == self.replicas
        )

    @functools.cached_property
    def directories(self) -> list[str]:
        """The directories of the partition's replicas, in order of preference."""
        return [str(self._log_of(node_id).directory) for node_id in self.replicas]

    @property
    def leader(self) -> int:
        """The node id of the partition's leader, for the holder of the partition's lock.

        The partition is ready.
        """
        return self.replicas[0] if self.only_log is not None else self._ready().state.leader

    def ready_locked(self, *, flush: bool) -> Replica:
        """Elect a leader if needed and let its followers catch up; return the leader's replica."""
        if self.only_log is not None:
            self.write_kept_locked()
            log = self.view.usable_only_log()
            return Replica(self.replicas[0], log, log.state())
        led = self._lead_and_replicate_locked(flush=flush)
        return Replica(led.state.leader, led.log, led.log_state)

    def place_locked(self, place: Callable[[Replica], LogState]) -> dict[int, LogState]:
        """Write a commit's batches past the log end of every in-sync replica, where readers do not see them.

        A replica for which that fails leaves the ISR, on disk on return, and all is done again: by another leader
        if it was the leader.

        Args:
            place: writes them there, and returns the state that would show them. Of the given state it
                uses the leader epoch and the end offsets. An OSError that it raises is the replica's, and
                so is any error of one whose disk is gone.

        Returns:
            Those states, by node; `flip_locked` writes them.

        Raises:
            KafkaStorageError: no replica can lead.
            As `place`; an OSError only if no replica has the batches.
        """
        if self.only_log is not None:
            log = self.view.usable_only_log()
            return {
                self.replicas[0]: place(
                    Replica(self.replicas[0], log, log.discard_unrecorded(log.state()))
                )
            }
        led = self._ready()
        for _ in self.replicas:
            placed = self._placed_locked(led, place)
            if tuple(placed) == led.state.isr:
                return placed
            if led.state.leader in placed:
                # It may have written the others' log states, and those that would show the batches come next.
                hw = led.log_state.high_watermark
                state = self.elections.change_isr_locked(led.state, [*placed], hw)
                self._led = led = led._replace(state=state)
            else:
                led = self._lead_and_replicate_locked(flush=True)
        raise self.view.no_usable_replica(led.state)

    def _placed_locked(
        self, led: Leadership, place: Callable[[Replica], LogState]
    ) -> dict[int, LogState]:
        placed: dict[int, LogState] = {}
        failed: OSError | KBatchError | None = None
        for node_id in led.state.isr:
            try:
                placed[node_id] = place(self._in_epoch_locked(node_id, led))
            except (OSError, KBatchError) as error:
                # What is wrong with the staged batches is not the replica's, unless its disk is gone.
                if isinstance(error, KBatchError) and self._dirs.is_online(node_id):
                    raise
                self.view.failed(node_id, error)
                failed = error
        if failed is not None and not placed:
            raise failed
        return placed

    def _in_epoch_locked(self, node_id: int, led: Leadership) -> Replica:
        """Truncate an in-sync replica to its recorded end, bring it to the leader epoch, and return it."""
        log = self._log_of(node_id)
        state = log.discard_unrecorded(log.state())
        if state.leader_epoch < led.state.leader_epoch:
            epochs = LeaderEpochCache.read(log.files, log.directory)
            epochs.assign(led.state.leader_epoch, state.log_end_offset)
            state = state._replace(leader_epoch=led.state.leader_epoch)
        return Replica(node_id, log, state)

    def discard_unrecorded_locked(self) -> None:
        """Remove what dead or failed writers left past the recorded ends of the in-sync replicas.

        The partition is ready.
        """
        if self.only_log is not None:
            logs = [self.view.usable_only_log()]
        else:
            isr = self._ready().state.isr
            logs = [self._log_of(node_id) for node_id in isr if self._dirs.is_online(node_id)]
        errors = []
        for log in logs:
            try:
                log.discard_unrecorded(log.state(), thorough=True)
            except (OSError, KBatchError) as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def ensure_enough_in_sync_locked(self) -> None:
        """Check that the ISR has min.insync.replicas members, as acks=all requires.

        The partition is ready.

        Raises:
            NotEnoughReplicasError: fewer are.
        """
        if self.only_log is None:
            isr = self._ready().state.isr
            if len(isr) < self.min_isr:
                raise NotEnoughReplicasError(str(self.topic_partition), isr, self.min_isr)

    def flip_locked(self, states: Mapping[int, LogState], *, flush: bool) -> None:
        """Make a decided commit's batches visible by writing each replica's new log state; may be repeated.

        A state is only written over one with a lower sequence number.

        A replica for which that fails leaves the ISR. The last one cannot: its state is recorded as
        unwritten, and written before the replica is used again.

        Raises:
            OSError, KBatchError: the state of the only replica cannot be written, in the only log dir.
        """
        if self.only_log is not None:
            ((node_id, state),) = states.items()
            try:
                write_decided(self.view.usable_only_log(), state, flush=flush)
                return
            except (OSError, KBatchError) as error:
                if len(self._dirs.all) == 1:
                    raise
                self.view.failed(node_id, error)
        known = self.view.state()
        # A member that was written further shows that the leader lost records.
        in_order = known.leader_first(states)
        is_last = len(known.isr) == 1
        flipped = [
            n
            for n in in_order
            if self.elections.flipped_locked(n, states[n], is_last=is_last, flush=flush)
        ]
        isr = [node for node in known.isr if node in flipped]
        if not isr:
            unwritten = {node: state for node, state in states.items() if node in known.isr}
            self.elections.write_state(known._replace(unwritten=unwritten))
        elif known.leader not in isr:
            self.elections.elect_locked(known._replace(isr=(known.leader, *isr)))
        elif tuple(isr) != known.isr:
            self.elections.change_isr_locked(known, isr, states[known.leader].high_watermark)

    @contextlib.contextmanager
    def leading_locked(self) -> Iterator[PartitionLog]:
        """Yield the leader's log to write to; with several replicas an OSError takes its log dir offline.

        The partition is ready.
        """
        if self.only_log is not None:
            yield self.view.usable_only_log()
            return
        led = self._ready()
        try:
            yield led.log
        except OSError as error:
            self.view.failed(led.state.leader, error)
            raise

    def publish_locked(self, state: LogState, *, flush: bool) -> LogState:
        """Make batches past the leader's log end visible, once all in-sync replicas have them.

        Args:
            state: the new state; its high watermark is the log end offset.
            flush: whether it is on disk on return.

        Returns:
            The state that was written; its sequence number may be higher.

        Raises:
            KafkaStorageError, OSError: whether it is visible is not known.
        """
        if self.only_log is not None:
            self.view.usable_only_log().write_state(state, flush=flush)
            return state
        led = self._ready()
        held = state._replace(
            high_watermark=led.log_state.high_watermark,
            last_stable_offset=led.log_state.last_stable_offset,
        )
        with self.leading_locked() as log:
            log.write_state(held, flush=flush)
        epoch = led.state.leader_epoch
        self._led = led = self._replicate_locked(
            led._replace(log_state=held), flush=flush, are_plain=True
        )
        if led.log_state.high_watermark < state.high_watermark:
            raise KafkaStorageError(
                f"{self.topic_partition}: not all in-sync replicas {', '.join(map(str, led.state.isr))} have what was written "
                f"in leader epoch {epoch}; the leader epoch is now {led.state.leader_epoch}"
            )
        return led.log_state

    def _ready(self) -> Leadership:
        if self._led is None:
            raise ValueError("call `ready_locked` first")
        return self._led

    def _lead_and_replicate_locked(self, *, flush: bool) -> Leadership:
        is_first = self._led is None
        for _ in self.replicas:
            led = self.elections.lead_locked(self._led)
            if is_first:
                led = self._without_lacking_locked(led)
            self._led = led = self._replicate_locked(led, flush=flush)
            if led.log_state.leader_epoch == led.state.leader_epoch:
                return led
            try:  # A follower has left.
                self._led = self.elections.become_leader_locked(led.state, led.log_state)
                return self._led
            except (OSError, KBatchError) as error:
                self.view.failed(led.state.leader, error)
        raise self.view.no_usable_replica(self.view.state())

    def _replicate_locked(
        self,
        led: Leadership,
        *,
        flush: bool,
        are_plain: bool = False,
        ahead: Ahead | None = None,
        failures: int = 0,
    ) -> Leadership:
        """Make the followers equal to the leader, then update the ISR and the high watermark.

        Args:
            led: the leader.
            flush: whether all of it is on disk on return.
            are_plain: whether the batches above the high watermark have no producer ids.
            ahead: what the leader has to flush, which it does meanwhile.
            failures: of leaders, in this call.
        """
        try:
            led, isr = self._catch_all_up_locked(led, flush=flush, ahead=ahead)
        except LeaderError as error:
            return self._replicate_from_next_locked(led.state, error.cause, flush, failures)
        if led.state.unwritten.keys() & {*isr}:
            # What was kept for them is in their logs by now, and older than these.
            left = {n: kept for n, kept in led.state.unwritten.items() if n not in isr}
            state, _ = self.elections.write_state(led.state._replace(unwritten=left))
            self._led = led = led._replace(state=state)
        state, log, log_state = self._only_in_sync_locked(led, isr)
        if len(state.isr) >= self.min_isr:
            try:
                log_state = log.move_high_watermark(
                    log_state, log_state.log_end_offset,
                    flush=flush, now_ms=self._now_ms(), are_plain=are_plain,
                )  # fmt: skip
            except OSError as error:
                if isinstance(error, KBatchError) or not any(self.view.alive(state)):
                    raise
                return self._replicate_from_next_locked(state, error, flush, failures)
        return Leadership(state, log, log_state)

    def _replicate_from_next_locked(
        self, state: PartitionState, error: Exception, flush: bool, failures: int
    ) -> Leadership:
        """Let another replica lead in place of one that failed, and go on with `_replicate_locked`."""
        self.view.failed(state.leader, error)
        if failures + 1 == len(self.replicas):
            raise error from None  # Each of them has led, and failed.
        self.elections.elect_locked(state)
        return self._replicate_locked(
            self.elections.lead_locked(self._led), flush=flush, failures=failures + 1
        )

    def append_locked(
        self,
        batch: Accepted,
        *,
        origin: AppendOrigin,
        required_acks: int,
        flush: bool,
    ) -> Appended:
        """Append one batch, or a run of them, to the leader, and with acks=all to its followers.

        Raises:
            NotEnoughReplicasError: with acks=all too few replicas are in sync.
            As `append_as_leader`.
        """
        if self.only_log is not None:
            self.write_kept_locked()
            log = self.view.usable_only_log()
            result = append_as_leader(
                log, log.state(), *batch[:2],
                batch_headers=batch.batch_headers, origin=origin, flush=flush, now_ms=self._now_ms(),
            )  # fmt: skip
            return Appended(result)
        led = self._lead_and_replicate_locked(flush=flush)
        for _ in self.replicas:
            if required_acks == -1:
                self.ensure_enough_in_sync_locked()
            try:
                ahead = append_ahead(
                    led.log, led.log_state, *batch[:2],
                    batch_headers=batch.batch_headers, origin=origin, now_ms=self._now_ms(),
                )  # fmt: skip
                waits = required_acks == -1
                log_state = ahead.flush() if flush and not waits else ahead.state
                self._led = led = led._replace(log_state=log_state)
            except OSError as error:
                # No follower has what it has of the batch: it is truncated when the dir is back.
                led = self._lead_without_locked(led, error, flush=flush)
                continue
            result, epoch = ahead.result, led.state.leader_epoch
            required = result.base_offset + batch.header.last_offset_delta + 1
            if not waits:
                return Appended(result, False, required, epoch, self.topic.topic_id)
            self._led = led = self._replicate_locked(
                led,
                flush=flush,
                are_plain=batch.header.producer_id <= NO_PRODUCER_ID,
                ahead=ahead if flush else None,
            )
            # If another replica leads by now, its log is a prefix of the former leader's: it has the batch
            # or not.
            survives = led.log_state.log_end_offset >= required
            if led.state.leader_epoch == epoch or survives:
                is_decided = led.log_state.high_watermark >= required
                epoch, topic_id = led.state.leader_epoch, self.topic.topic_id
                return Appended(result, is_decided, required, epoch, topic_id)
        raise self.view.no_usable_replica(led.state)

    def append_together_locked(
        self,
        batches: Sequence[Accepted],
        *,
        flush: bool,
        answer: Callable[[Exception], AppendResult],
    ) -> list[AppendResult]:
        """Append batches of several producers with one new state, if this is the only replica.

        Args:
            answer: returns what is answered if writing to the log failed.

        Returns:
            The results of those that were taken, from the first on; see `check_together`. None are if the
            log cannot be read: an append of one batch says why.
        """
        try:
            self.write_kept_locked()
            log, now_ms = self.view.usable_only_log(), self._now_ms()
            state = log.state()
            outcomes = check_together(log, state, [one.header for one in batches], now_ms=now_ms)
        except (OSError, KBatchError):
            return []
        pairs = [(one.data, one.header) for one in batches]
        try:
            return append_together(log, state, pairs, outcomes, flush=flush, now_ms=now_ms)
        except Exception as error:
            if not isinstance(error, (OSError, KBatchError)):
                logger.exception("appends to %s failed", self.topic_partition)
            failed = answer(error)
            return [one if one and one.error else failed for one in outcomes]

    # Elections.

    def _only_in_sync_locked(self, led: Leadership, isr: Sequence[int]) -> Leadership:
        """Store the ISR if it is another one.

        If that brings a new epoch, the leader takes it before the next append: now it may have batches past
        its end that a commit has placed.
        """
        if not {*isr} <= {*led.state.isr}:
            lacking = self._dirs.of_mirrors(self._stale_mirrors())
            isr = [node for node in isr if node in led.state.isr or node not in lacking]
        if tuple(isr) != led.state.isr:
            state = self.elections.change_isr_locked(led.state, isr, led.log_state.high_watermark)
            self._led = led = led._replace(state=state)
        return led

    def _without_lacking_locked(self, led: Leadership) -> Leadership:
        """Let followers leave whose disks have no copy of the topic's file: as the last ones they would not know it."""
        lacking = self._dirs.of_mirrors(self._lacking_mirrors())
        isr = [n for n in led.state.isr if n == led.state.leader or n not in lacking]
        return self._only_in_sync_locked(led, isr)

    def look_locked(self) -> None:
        """Take replicas out of the ISR that a look shows not to be in sync: they catch up as others do.

        The partition is ready.
        """
        if self.only_log is None:
            isr = [one.node_id for one in self.view.describe() if one.in_sync or one.is_leader]
            self._only_in_sync_locked(self._ready(), isr)

    def write_kept_locked(self) -> None:
        """Write the states of decided commits that were kept because a disk had failed.

        Raises:
            KafkaStorageError: no in-sync replica has its state.
        """
        if self.only_log is not None and not self.view.kept():
            return
        state = self.elections.without_unwritten_locked(self.view.state())
        kept = state.unwritten
        if set(state.isr) <= set(kept):
            raise KafkaStorageError(
                f"{self.topic_partition} waits for the disk of node {', '.join(map(str, kept))}, which failed "
                "when a job was committed, as it was then: the job's records are there, and shown once it is "
                "back; `kbatch log-dirs` says what is wrong with it. Without it delete the topic, or give "
                "the records up with `kbatch log-dirs --replace NODE --unclean`"
            )

    def elect_unclean_locked(self) -> int | None:
        """Let the replica lead that was written furthest, in sync or not, if no in-sync one can be used.

        Returns:
            Its node; None if there is no need, so nothing has changed.

        Raises:
            KafkaStorageError: no replica can be used.
        """
        with contextlib.suppress(OSError, KBatchError):
            self.ready_locked(flush=True)
            return None
        state = self.view.state()
        best = self.view.furthest()
        if best is None:
            raise self.view.no_usable_replica(state)
        node_id, log_state = best
        logger.warning(
            "%s: node %d leads without having been in sync, from offset %d on; what only node %s had is "
            "given up", self.topic_partition, node_id, log_state.log_end_offset,
            ", ".join(map(str, state.isr)),
        )  # fmt: skip
        kept = state.unwritten.get(node_id)
        is_held = kept is not None and self._log_of(node_id).holds(kept)
        if state.unwritten and not is_held:
            # As an older image it lacks what was kept: that is given up, too.
            self.elections.write_state(state._replace(unwritten={}))
        self.elections.lead_alone_locked(node_id)
        self.ready_locked(flush=True)  # so that all it has is shown
        return node_id

    def give_up_locked(self, node_id: int) -> None:
        """Make an empty log of a replica whose disk was replaced, if no replica may have records.

        A replica whose disk is away is left: it leads again once that is back. The log comes last: as long as
        it is not there this may be done again, and nothing that was kept for the former log is written to it.
        """
        if self.may_have_records():
            return
        logger.warning("%s: records on a disk that was replaced are given up", self.topic_partition)
        if self.view.state().unwritten:
            self.elections.write_state(self.view.state()._replace(unwritten={}))
        if self.only_log is None:
            self.elections.lead_alone_locked(node_id)
        log = self._log_of(node_id)
        log.create(self.topic.topic_id)
        log.forget_batches()

    def may_have_records(self) -> bool:
        """Return False if all log dirs are online, and none has a log of the topic, or but half of an empty one.

        The log of an only replica counts whichever topic it says it is of: appends do not ask either.
        """
        return not all(self._dirs.is_online(node) for node in self.replicas) or any(
            _is_made(log) and (self.only_log is not None or self.view.is_of_topic(log))
            for log in map(self._log_of, self.replicas)
        )

    def settle_high_watermark_locked(self, min_isr: int) -> None:
        """Write the high watermark to all in-sync replicas, if they are fewer than `min_isr`.

        With fewer it stands still once min.insync.replicas is `min_isr`, so call this before that
        changes. The partition is ready.
        """
        if self.only_log is None:
            if len(self._ready().state.isr) < min(min_isr, len(self.replicas)):
                self._tell_followers_locked(self.elections.tell_locked)

    # Followers.

    def _tell_followers_locked(self, tell: Callable[[int, int], bool]) -> None:
        """Tell in-sync followers something, with the high watermark; one for which that fails leaves the ISR."""
        state, _, log_state = led = self._ready()
        told = [
            node
            for node in state.isr
            if node == state.leader or tell(node, log_state.high_watermark)
        ]
        self._only_in_sync_locked(led, told)

    def _catch_all_up_locked(
        self, led: Leadership, *, flush: bool, ahead: Ahead | None
    ) -> tuple[Leadership, list[int]]:
        """Copy to all followers what they lack, while the leader flushes.

        Returns:
            The leader, and the nodes whose logs are equal to its then, itself included.

        Raises:
            LeaderError: the leader could not be flushed, or not be read while another one can lead.
        """
        leader, isr = led.state.leader, led.state.isr
        unless_it_fails = functools.partial(self._unless_it_fails, led.state)
        fetcher = ReplicaFetcher(led.log, led.log_state, self._now_ms)
        states: dict[int, LogState | None] = {leader: led.log_state}
        for node_id in self.replicas:
            if node_id != leader and self._dirs.is_online(node_id):
                truncate = functools.partial(self._truncated_locked, node_id, fetcher, isr)
                states[node_id] = unless_it_fails(node_id, truncate)
        members = {n: state for n, state in states.items() if state and n in isr}
        if not {*isr} <= states.keys():  # One that cannot be written is going to leave.
            members |= dict(self.view.alive(led.state, to_write=False))
        deleted_to = self.view.deleted_to(leader, led.log_state, members)
        if deleted_to > led.log_state.log_start_offset:
            before = led.log_state.log_start_offset
            led = self._deleted_on_leader_locked(led, deleted_to)
            states[leader] = led.log_state
            if led.log_state.log_start_offset > before:  # Some of what was to be copied is gone.
                return self._catch_all_up_locked(led, flush=flush, ahead=ahead)
        with self._side_by_side(flush) as start:
            waits = {}
            if ahead is not None:
                waits[leader] = start(functools.partial(_flushed, ahead))
            is_shown_now = led.log_state.log_end_offset > led.log_state.high_watermark
            for node_id, state in states.items():
                if state is None or node_id == leader:
                    continue
                log, show = self._log_of(node_id), None
                if fetcher.lacks(state):
                    catch_up = functools.partial(
                        fetcher.catch_up, log, state, flush=flush,
                        bytes_max=None if node_id in isr else _CATCH_UP_BYTES,
                    )  # fmt: skip
                    show = unless_it_fails(node_id, catch_up)
                elif flush and is_shown_now:
                    # Its writer may have died before it was flushed.
                    show = functools.partial(_with_state_flushed, log, state)
                if show is not None:
                    waits[node_id] = start(functools.partial(unless_it_fails, node_id, show))
            for node_id, wait in waits.items():
                states[node_id] = wait()
        led = led._replace(log_state=states.pop(leader) or led.log_state)
        self.view.know(states)
        end = led.log_state.log_end_offset
        equal = {
            leader,
            *(n for n, state in states.items() if state and state.log_end_offset == end),
        }
        return led, [node_id for node_id in self.replicas if node_id in equal]

    def _truncated_locked(
        self, node_id: int, fetcher: ReplicaFetcher, isr: Container[int]
    ) -> LogState:
        follower = self._log_of(node_id)
        try:
            before = follower.state()
            if node_id in isr:
                # An image of a deleted topic of the same name may be in its place.
                if not self.view.is_known(node_id, before):
                    raise KafkaStorageError(f"{follower.directory} is of another topic")
            elif not self.view.is_of_topic(follower):
                stray = stray_of(follower.directory)
                follower.files.rename(follower.directory, stray)
                raise KafkaStorageError(f"it was of another topic, and is moved to {stray.name}")
            try:
                return fetcher.truncate(follower, before, is_in_sync=node_id in isr)
            except LeaderError:
                if self.view.is_of_topic(follower):
                    raise
                raise KafkaStorageError(f"{follower.directory} is of another topic") from None
        except KBatchError as error:
            if node_id in isr or not self._dirs.is_online(node_id):
                raise
            logger.warning("recreating %s: %s", follower.directory, error)
            return fetcher.recreate(follower, self.topic.topic_id)

    def _unless_it_fails(
        self, state: PartitionState, node_id: int, step: Callable[[], T]
    ) -> T | None:
        """Run a step on a follower and return its result; if it fails, note the failure and return None.

        A leader that cannot be read is the follower's failure, too, if no other one can lead: what the
        follower lacks is damaged, and appends go on.
        """
        try:
            return step()
        except LeaderError as error:
            if any(self.view.alive(state)):
                raise
            self.view.failed(node_id, error)
        except (OSError, KBatchError) as error:
            self.view.failed(node_id, error)
        return None

    @contextlib.contextmanager
    def _side_by_side(self, flush: bool) -> Iterator[Start]:
        """Yield a function that starts a step on a replica, and returns another that waits for its result.

        Each step is on a disk of its own.
        """
        if flush and self._uses_threads:
            with ThreadPoolExecutor(len(self.replicas)) as pool:
                yield lambda step: pool.submit(step).result
        else:
            yield _done

    # Deletion. Followers come first: the next leader may be any of them.

    def delete_records_locked(self, offset: int, now_ms: int) -> Deletion:
        """Move the log start to `offset` and delete the segments below it, on the in-sync replicas.

        The partition is ready, and `offset` at most the high watermark.
        """
        return self._deleted_on_all_locked(
            lambda _: offset,
            lambda log, state: retention.delete_records(log, state, offset, now_ms),
            now_ms,
        )

    def delete_old_segments_locked(self, now_ms: int) -> Deletion:
        """Delete the leader's expired segments, on the in-sync replicas.

        The partition is ready.
        """
        return self._deleted_on_all_locked(
            lambda led: retention.plan(led.log, led.log_state, now_ms).log_start_offset,
            lambda log, state: retention.delete_old_segments(log, state, now_ms),
            now_ms,
        )

    def _deleted_on_all_locked(
        self,
        planned: Callable[[Leadership], int],
        delete: Callable[[PartitionLog, LogState], Deletion],
        now_ms: int,
    ) -> Deletion:
        """Delete up to the planned offset on the followers, then on the leader; if that fails, on the next one."""
        if self.only_log is not None:
            log = self.view.usable_only_log()
            return delete(log, log.state())
        for _ in self.replicas:
            led = self._ready()
            try:
                offset = planned(led)
            except OSError as error:
                self._lead_without_locked(led, error, flush=True)
                continue
            self._delete_on_followers_locked(offset, now_ms)
            try:
                return delete(led.log, led.log.state())
            except OSError as error:
                self._lead_without_locked(led, error, flush=True)
        raise self.view.no_usable_replica(self._ready().state)

    def _lead_without_locked(self, led: Leadership, error: OSError, *, flush: bool) -> Leadership:
        """Let another replica lead, unless the error is not the disk's."""
        if isinstance(error, KBatchError):
            raise error
        self.view.failed(led.state.leader, error)
        return self._lead_and_replicate_locked(flush=flush)

    def _deleted_on_leader_locked(self, led: Leadership, offset: int) -> Leadership:
        """Finish a deletion that a member has, and the leader has not: its process died, or the disk is an image.

        What was deleted had been shown, so the leader's high watermark goes up to there at least.
        """
        try:
            offset = min(offset, led.log_state.log_end_offset)
            delete_on_follower(led.log, led.log_state, offset, offset, self._now_ms())
            return led._replace(log_state=led.log.state())
        except (OSError, KBatchError) as error:
            raise LeaderError(error) from error

    def _delete_on_followers_locked(self, offset: int, now_ms: int) -> None:
        """Move the log start of in-sync followers; one for which that fails leaves the ISR, on disk on return."""
        self._tell_followers_locked(lambda n, hw: self._deleted_locked(n, offset, hw, now_ms))

    def _deleted_locked(self, node_id: int, offset: int, high_watermark: int, now_ms: int) -> bool:
        log = self._log_of(node_id)
        try:
            delete_on_follower(log, log.state(), offset, high_watermark, now_ms)
        except (OSError, KBatchError) as error:
            self.view.failed(node_id, error)
            return False
        return True


def _is_made(log: PartitionLog) -> bool:
    """Return True if a log has a state, or bytes of batches without one; else its creation was interrupted."""
    try:
        has_state = bool(valid_slots(log.files, log.directory))
    except FileNotFoundError:
        has_state = False
    return has_state or holds_records(log.files, log.directory)


def _done(step: Step) -> Step:
    found = step()
    return lambda: found


def _flushed(ahead: Ahead) -> LogState:
    try:
        return ahead.flush()
    except (OSError, KBatchError) as error:
        raise LeaderError(error) from error


def _with_state_flushed(log: PartitionLog, state: LogState) -> LogState:
    log.flush_state()
    return state
