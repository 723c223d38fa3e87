"""Fetches of several partitions: answered at once if possible, else as soon as there are enough bytes.

A fetch is answered at once if it may not wait, asks for nothing, or gets `min_bytes`, an error or a log
that has diverged. Else it waits until there are that many bytes, until a partition's log is rolled or
truncated, or until `max_wait_ms` have passed.

A consumer of uncommitted records sees those below the high watermark, one of committed records those below
the last stable offset. Followers copy from files (`followers`), and fetch nothing.

All partitions are looked at together, as of one moment, and read as they were then. So a commit is below
the high watermarks of all of them or of none. A fetch that waits is answered with what it read when it was found to have enough;
if its time is up before, with what was there when its partitions changed last. They are read in the order
of the request. The first that has a batch returns it whole, whatever the limits, so that a large batch
blocks no one; all others return only what fits.

Waiting costs next to nothing, and no thread. An append of this process tries the fetches that wait for its
partition, before it returns. What other processes do is found by one thread for all fetches, every 50 ms:
it looks for changed bytes (`WatchedLogs`, which takes turns where partitions are many), then at the
partitions where something changed, together, and tries only fetches of those whose ends moved, all with the
same look.

Source: Kafka core/.../server/ReplicaManager.scala fetchMessages, readFromLog, DelayedFetch.scala.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from spark_kbatch.catalog.paths import ClusterPaths
from spark_kbatch.errors import (
    FencedLeaderEpochError,
    KBatchError,
    OffsetOutOfRangeError,
    UnknownLeaderEpochError,
    without_frames,
)
from spark_kbatch.files import Files
from spark_kbatch.log.checkpoints import EpochEntry
from spark_kbatch.log.epochs import LeaderEpochCache
from spark_kbatch.log.state import LogState, compact, read_all_slots
from spark_kbatch.model import IsolationLevel, LogOffsets, ReadRange, TopicPartition
from spark_kbatch.options.option import MiB
from spark_kbatch.options.topic import TRANSACTION_STATE_TOPIC
from spark_kbatch.record.header import LogRead
from spark_kbatch.replica.partition import Partition
from spark_kbatch.replica.purgatory import DelayedOperation, Purgatory
from spark_kbatch.replica.view import Replica, Replicas

NO_EPOCH = -1

_TRIED_AT_ONCE_MAX = 200  # partitions of the fetches that an append tries before it returns
_LOOKS_MAX = 5  # at the partitions of a fetch, some of which cannot be read
LOOKS_MAX = 64  # partitions of one look: of 4,000 that are idle each has its turn every 4 s
_KEPT_MAX = 10_000  # partitions that are not waited for now, of some 500 bytes
_LATELY_MAX = 14  # partitions that changed lately, and are in each look

_COMMITS = TopicPartition(TRANSACTION_STATE_TOPIC, 0)


class FetchInfo(NamedTuple):
    """One partition's part of a fetch request: offset, size limit, epochs and topic id."""

    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = NO_EPOCH  # that the caller knows; NO_EPOCH if none
    last_fetched_epoch: int = NO_EPOCH  # of the batch before `fetch_offset`, in a follower's log
    topic_id: str = ""  # by default that of the topic which has the name when the fetch starts


class FetchResult(NamedTuple):
    """One partition's part of the answer to a fetch: batches and offsets, or an error.

    Without an error `offsets` is given, and `read` may be empty.
    """

    read: LogRead = LogRead("", 0, memoryview(b""), [])
    offsets: LogOffsets | None = None
    diverging: EpochEntry | None = None  # where the caller's last epoch ends here
    error: Exception | None = None


OnFetched: TypeAlias = Callable[[Mapping[TopicPartition, FetchResult]], object]


@dataclass(frozen=True)
class FetchParams:
    """The parameters of a fetch that hold for all its partitions together; defaults are those of Kafka's consumer."""

    max_wait_ms: int = 500  # when to answer with what there is; 0 or less to wait for nothing
    min_bytes: int = 1  # to wait for
    max_bytes: int = 50 * MiB  # each partition has a limit of its own in its `FetchInfo`
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED

    def end_offset(self, state: LogState) -> int:
        """Return the exclusive end of the offsets that the fetcher may see, such as the high watermark."""
        committed = self.isolation is IsolationLevel.READ_COMMITTED
        return state.last_stable_offset if committed else state.high_watermark


Room: TypeAlias = Callable[[], int]  # bytes that may be read now, besides the first batch
Moment: TypeAlias = Mapping[TopicPartition, Replica | Exception]
ReadReplica: TypeAlias = Callable[[TopicPartition, ReadRange, Replica], tuple[LogRead, LogOffsets]]


class Fetch:
    """One fetch request of several partitions; `DelayedFetch` repeats it until it has enough bytes."""

    def __init__(
        self,
        params: FetchParams,
        fetch_infos: Mapping[TopicPartition, FetchInfo],
        replicas: Replicas,
        read_replica: ReadReplica,
        ensure_same_topic: Callable[[TopicPartition], None],
    ) -> None:
        """Fetch from the partitions of one request.

        Args:
            read_replica: reads from a partition what was there when its replica was looked at.
            ensure_same_topic: raises if another topic has the name of the one that is meant.
        """
        self.params, self._fetch_infos = params, fetch_infos
        self.replicas, self._read_replica = replicas, read_replica
        self._ensure_same_topic = ensure_same_topic

    @property
    def partitions(self) -> Collection[TopicPartition]:
        """The partitions, in the order in which they are read."""
        return self._fetch_infos.keys()

    def look(self) -> Moment:
        """Return the replica to read for each partition of the fetch; see `look_at`."""
        return look_at(self.partitions, self.replicas)

    def read(self, moment: Moment, room: Room | None = None) -> dict[TopicPartition, FetchResult]:
        """Read all partitions as of one moment, within the size limits; errors are in their results."""
        results = {}
        left, min_one_batch = self.params.max_bytes, True
        if room is not None:
            left = min(left, room())
        for topic_partition, info in self._fetch_infos.items():
            seen = moment[topic_partition]
            asked = ReadRange(
                info.fetch_offset,
                max(min(info.max_bytes, left), 0),
                self.params.isolation,
                min_one_batch,
            )
            if isinstance(seen, Exception):
                results[topic_partition] = FetchResult(error=seen)
                continue
            try:
                try:
                    result = self._read_one(seen, info, asked)
                finally:
                    # After the read: if the topic is the same now, it was the same all the time.
                    self._ensure_same_topic(topic_partition)
            except (OSError, KBatchError) as error:
                result = FetchResult(error=without_frames(error))
            size = len(result.read.data)
            left, min_one_batch = left - size, min_one_batch and not size
            results[topic_partition] = result
        return results

    def may_answer(self, results: Mapping[TopicPartition, FetchResult]) -> bool:
        """Return True if the fetch may be answered with these results at once, without a wait."""
        return (
            self.params.max_wait_ms <= 0
            or not results
            or sum(len(result.read.data) for result in results.values()) >= self.params.min_bytes
            or any(result.error or result.diverging for result in results.values())
        )

    def end_offsets(self, moment: Moment) -> dict[TopicPartition, int] | None:
        """Return where each partition's readable records end; None if the fetch is to be answered at once."""
        ends = {}
        same: set[tuple[str, str]] = set()  # topics that are those which are meant
        for topic_partition, info in self._fetch_infos.items():
            seen = moment[topic_partition]
            if isinstance(seen, Exception):
                return None
            try:
                meant = topic_partition.topic, info.topic_id
                if meant not in same:
                    self._ensure_same_topic(topic_partition)
                    same.add(meant)
                _ensure_epoch(seen, info)
            except (OSError, KBatchError):
                return None
            end = ends[topic_partition] = self.params.end_offset(seen.state)
            is_truncated = info.fetch_offset > end
            is_rolled = info.fetch_offset < seen.state.segment_base_offset <= end
            if is_truncated or is_rolled:
                return None
        return ends

    def gain(self, before: Moment, now: Moment) -> float:
        """Return by how many bytes at most a read may find more than one at an earlier moment."""
        total = 0
        for topic_partition in self._fetch_infos:
            old, new = before[topic_partition], now[topic_partition]
            if old is new:
                continue
            if isinstance(old, Exception) or isinstance(new, Exception):
                return math.inf
            is_all_seen = self.params.end_offset(old.state) == old.state.log_end_offset
            if not is_all_seen or old.state.segment_base_offset != new.state.segment_base_offset:
                return math.inf
            total += max(new.state.segment_size - old.state.segment_size, 0)
        return total

    def _read_one(self, seen: Replica, info: FetchInfo, asked: ReadRange) -> FetchResult:
        _ensure_epoch(seen, info)
        diverging = _diverging(seen, info)
        if diverging is not None:
            return FetchResult(offsets=seen.offsets, diverging=diverging)
        if not seen.state.log_start_offset <= asked.offset <= seen.state.log_end_offset:
            return FetchResult(error=_out_of_range(seen, asked.offset))
        return FetchResult(*self._read_replica(seen.log.topic_partition, asked, seen))


def look_at(topic_partitions: Iterable[TopicPartition], replicas: Replicas) -> Moment:
    """Return the replica to read for each partition, all as of one moment, or the error that prevents it."""
    wanted, failed = list(topic_partitions), dict[TopicPartition, Exception]()
    for left in reversed(range(_LOOKS_MAX)):
        try:
            return {**replicas(wanted), **failed}
        except (OSError, KBatchError) as error:
            # If each can be read alone by now, all are looked at together again.
            for topic_partition in wanted:
                cause = _error_of(topic_partition, replicas) if left else error
                if cause is not None:
                    failed[topic_partition] = without_frames(cause)
        wanted = [tp for tp in wanted if tp not in failed]
    return failed


def _error_of(topic_partition: TopicPartition, replicas: Replicas) -> Exception | None:
    try:
        replicas([topic_partition])
    except (OSError, KBatchError) as error:
        return error
    return None


class DelayedFetch(DelayedOperation):
    """A fetch that waits for more bytes."""

    def __init__(
        self,
        fetch: Fetch,
        moment: Moment,
        on_complete: OnFetched,
        room: Room | None = None,
        *,
        is_unchanged: Callable[[], bool],
    ) -> None:
        """Set up the wait of a fetch that found too few bytes at `moment`.

        Args:
            fetch, moment, on_complete, room: as for `ReplicaManager.fetch_messages`.
            is_unchanged: whether no change is known of since before that moment.
        """
        super().__init__(fetch.params.max_wait_ms)
        self._room, self._is_unchanged = room, is_unchanged
        self.fetch, self._answer = fetch, on_complete
        self._moment, self._ends = moment, fetch.end_offsets(moment)  # when it was last looked at
        self._read: tuple[Moment, int] | None = None  # when it was last read, and the bytes found
        self._results: Mapping[TopicPartition, FetchResult] | None = None  # once it has enough

    def is_satisfied(self) -> bool:
        """Return True if the fetch has enough by now; read only if the end of a log has moved."""
        if self._ends is not None and self._is_unchanged():
            return False  # what other processes do is found by the thread
        return self.is_satisfied_at(self.fetch.look())

    def is_satisfied_at(self, moment: Moment) -> bool:
        """Return True if the fetch has enough by now, given a look that several fetches share."""
        ends = self.fetch.end_offsets(moment)
        if ends is not None and ends == self._ends:
            return False
        self._moment, self._ends = moment, ends
        if ends is not None and self._read is not None:
            before, found = self._read
            if found + self.fetch.gain(before, moment) < self.fetch.params.min_bytes:
                return False
        is_limited = self._room is not None and self._room() < self.fetch.params.max_bytes
        results = self.fetch.read(moment, self._room)
        found = sum(len(result.read.data) for result in results.values())
        self._read = None if is_limited else (moment, found)
        if ends is None or self.fetch.may_answer(results):
            self._results = results
        return self._results is not None

    def on_complete(self) -> None:
        """Answer the fetch with the batches found, even if they are too few."""
        results = self._results
        self._answer(self.fetch.read(self._moment, self._room) if results is None else results)


class WatchedLogs:
    """A check, with few reads, which of the partitions that fetches wait for may have changed since the last look.

    Other processes may append to them, and those notify no one. So all that is waited for is looked at again
    and again, mostly to find that nothing has happened. The bytes of its states tell that without opening any
    of them:

        each replica's kbatch.state      an append, a roll, a truncation, the flip of a commit
        partitions/TOPIC/P.json          another leader or ISR; only where there are several replicas
        the state of __transaction_state a commit that is decided, of whatever partitions, or complete

    Sequence numbers in them only grow, so the same bytes mean the same state. A topic that was deleted or
    recreated has another Partition, or none.

    A look reads the states of at most LOOKS_MAX partitions, so that waiting for thousands costs no more than
    waiting for that many: it looks at those that changed lately, and at the next ones in turn. Commits are
    found by each look, whatever their partitions.

    It is used by one thread at a time.
    """

    def __init__(
        self,
        files: Files,
        paths: ClusterPaths,
        find: Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, Partition]],
    ) -> None:
        """Set up for one cluster; `find` returns the objects for partitions, all of which must exist."""
        self._files, self._paths, self._find = files, paths, find
        self._asked: Sequence[TopicPartition] = ()  # of the last call
        self._found: dict[TopicPartition, object] = {}  # what the last look at each found
        self._lately: dict[TopicPartition, None] = {}  # changed; the latest one at the end
        self._next = 0  # position in `_asked` of the first that is next in turn

    def changed(self, topic_partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions that may have changed since the last look at them, or were never looked at.

        The caller does not change the sequence. Of more than LOOKS_MAX a change may be found by a later call
        only. If a commit was decided or completed, all may have changed.
        """
        new = dict.fromkeys(self._ask(topic_partitions))
        looked = new | dict.fromkeys(self._turn())
        try:
            found = self._look([_COMMITS, *looked])
        except (OSError, KBatchError):  # a read of them finds out what is wrong
            self._found = {}
            return [*self._asked]
        before = {tp: self._found.get(tp) for tp in found}
        self._found.update(found)
        if before[_COMMITS] != found[_COMMITS]:
            return [*self._asked]
        changed = [tp for tp in looked if tp not in new and before[tp] != found[tp]]
        for tp in changed:
            self._lately.pop(tp, None)
            self._lately[tp] = None
        while len(self._lately) > _LATELY_MAX:
            del self._lately[next(iter(self._lately))]
        return [*new, *changed]

    def _ask(self, topic_partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Take over what is asked for, and return that of which no earlier look is known.

        What is not asked for now is mostly asked for by the next fetch: what a look at it found is kept.
        """
        if topic_partitions is self._asked:  # nearly always
            return []
        self._asked = topic_partitions
        asked = {*topic_partitions, _COMMITS}
        self._lately = {tp: None for tp in self._lately if tp in asked}
        if len(self._found) > len(asked) + _KEPT_MAX:
            self._found = {tp: found for tp, found in self._found.items() if tp in asked}
        return [tp for tp in topic_partitions if tp not in self._found]

    def _turn(self) -> Sequence[TopicPartition]:
        """Return the partitions to look at: all if they are few, else those of recent changes and the next."""
        asked = self._asked
        if len(asked) <= LOOKS_MAX:
            return asked
        start = self._next if self._next < len(asked) else 0
        self._next = start + LOOKS_MAX - _LATELY_MAX
        return [*self._lately, *asked[start : self._next]]

    def _look(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, object]:
        """Return what is on disk of each partition; None for one that does not exist."""
        by_topic: dict[str, list[TopicPartition]] = {}
        found: dict[TopicPartition, object] = {}
        for tp in topic_partitions:
            by_topic.setdefault(tp.topic, []).append(tp)
            found[tp] = None
        partitions: dict[TopicPartition, Partition] = {}
        for of_topic in by_topic.values():
            with contextlib.suppress(OSError, KBatchError):
                partitions.update(self._find(of_topic))
        directories = {tp: one.directories for tp, one in partitions.items()}
        slots = read_all_slots(
            self._files, [path for all_ in directories.values() for path in all_]
        )
        for tp, one in partitions.items():
            states = tuple(map(compact, itertools.islice(slots, len(directories[tp]))))
            fingerprint = (
                None
                if one.only_log is not None
                else self._files.fingerprint(self._paths.partition_file(tp))
            )
            found[tp] = one, states, fingerprint
        return found


class FetchPurgatory(Purgatory[TopicPartition, DelayedFetch]):
    """The purgatory of this process's fetches that wait for more bytes.

    All of them see partitions in the same way.
    """

    def __init__(
        self, monotonic_ms: Callable[[], int], watched: WatchedLogs, *, has_thread: bool = True
    ) -> None:
        super().__init__(monotonic_ms, has_thread=has_thread)
        self._watched = watched
        self._seen: Moment = {}  # what is waited for, when it was looked at last
        self.version = 0  # grows with each change that is known of; guarded by _mutex
        # What changed since then, by appends that left it to the thread; guarded by _mutex.
        self._changed: dict[TopicPartition, None] = {}

    def check_and_complete(self, key: TopicPartition) -> int:
        """Try the fetches that wait for a partition, which has changed; return how many this call completed.

        An append does not try more than a few partitions' worth: the thread tries fetches of many.
        """
        if self._process_id != os.getpid():
            return 0  # in a fork the lock may be held for ever
        # Before the watchers: a fetch that looked before this change either is one of them, or finds that the
        # version has grown once it is.
        with self._mutex:
            self.version += 1
        if not self._watchers:
            return 0
        now, left = [], _TRIED_AT_ONCE_MAX
        watching = self._watching([key])
        for fetch in sorted(watching, key=lambda one: len(one.fetch.partitions)):
            left -= len(fetch.fetch.partitions)
            if left < 0 and self._has_thread:
                with self._mutex:
                    self._changed[key] = None
                break
            now.append(fetch)
        return self._try(now) if now else 0

    def _look_for_changes(self) -> None:
        with self._mutex:
            keys, waiting = self._watched_keys_locked(), list(self._waiting)
            left, self._changed = [tp for tp in self._changed if tp in self._watchers], {}
        changed = [*dict.fromkeys([*self._watched.changed(keys), *left])]
        if not changed:
            return
        moment = look_at(changed, waiting[0].fetch.replicas) if waiting else {}
        # As an append does: a fetch that looked before our look, and is not among the watchers yet, looks again.
        with self._mutex:
            self.version += 1
        if not waiting:
            return
        moved = [tp for tp in changed if self._seen.get(tp) != moment[tp]]
        seen = {**self._seen, **moment}
        self._seen = {tp: seen[tp] for tp in keys if tp in seen}
        fetches, before = self._watching(moved), set(waiting)
        self._try_at([one for one in fetches if one in before], moment)
        # 1. We look. 2. A batch is appended. 3. A consumer reads it, and fetches from its end on. 4. As of
        # our look that is past the end: so such a fetch gets a new look.
        self._try([one for one in fetches if one not in before])

    def _try(self, operations: Sequence[DelayedFetch]) -> int:
        return self._try_at(operations, {})

    def _try_at(self, fetches: Sequence[DelayedFetch], moment: Moment) -> int:
        """Complete those of these fetches that have enough, by one look at the logs for all of them.

        That look is `moment`, if it has all partitions that they need.
        """
        wanted = dict.fromkeys(tp for one in fetches for tp in one.fetch.partitions)
        if not wanted.keys() <= moment.keys():
            moment = look_at(wanted, fetches[0].fetch.replicas)

        def try_complete(one: DelayedFetch) -> bool:
            return one.try_complete_if(functools.partial(one.is_satisfied_at, moment))

        return self._try_each(fetches, try_complete)


def _ensure_epoch(seen: Replica, info: FetchInfo) -> None:
    """Check a fetch request's current leader epoch, if it has one, against the partition's.

    Raises:
        FencedLeaderEpochError, UnknownLeaderEpochError: it knows an older or a newer one.
    """
    known, current = info.current_leader_epoch, seen.state.leader_epoch
    if known != NO_EPOCH and known < current:
        raise FencedLeaderEpochError(str(seen.log.topic_partition), current, known)
    if known > current:
        raise UnknownLeaderEpochError(str(seen.log.topic_partition), current, known)


def _diverging(seen: Replica, info: FetchInfo) -> EpochEntry | None:
    """Return where the fetcher's last epoch ends in our log, if its log has diverged from ours; else None."""
    if info.last_fetched_epoch == NO_EPOCH:
        return None
    _, log, state = seen
    epochs = LeaderEpochCache.read(log.files, log.directory)
    end = epochs.end_offset_for(info.last_fetched_epoch, state.log_end_offset)
    if end.epoch < 0:
        raise _out_of_range(seen, info.fetch_offset)
    differs = end.epoch < info.last_fetched_epoch or end.start_offset < info.fetch_offset
    return end if differs else None


def _out_of_range(seen: Replica, offset: int) -> OffsetOutOfRangeError:
    start, end = seen.state.log_start_offset, seen.state.log_end_offset
    return OffsetOutOfRangeError(str(seen.log.topic_partition), offset, start, end)
