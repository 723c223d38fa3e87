"""A loop over new records: a read that goes on with what comes, of topics in any place.

    Looks        which offsets are new, look by look, while topics and partitions come and go
    Following    their records, batch by batch; waits between looks; commits of a group

A look asks for the ends of all partitions at once. What it finds is read, a bounded part of each
partition, and then comes the next look, at once; one that finds nothing is followed by a pause.
What happens between two looks:

    a partition or a topic of a pattern came      it is read from its start
    a topic of a pattern is gone                  a warning; it is left out
    a topic of a pattern was recreated            a warning; the new one is read from its start
    a named topic is gone or was recreated        UnknownTopicOrPartitionError
    records were deleted before they were read    a warning; the next ones are read
    a log ends before what was read of it         OffsetOutOfRangeError
    the disk, store or cluster is away            a warning a minute; it is asked until a time-out

A partition that cannot be read waits for the others: those that failed least are read first.

A loop that is asked again after an error, or an interrupt while it waited, goes on after the last
batch that it gave. With a group, its positions are committed when the loop begins, so that a new
one has a start that stays. A batch counts once the next one is asked for, or a `with` is left
without an error: at least once. Where many come with one look, it is committed once a second, and
in a place that is paid for each commit less often. Offsets that have not changed are committed
again each hour, since they expire by the time of their commit. A loop is no member of its group. So
it looks before each commit whether the group stands where it has left it: of two loops of a group
one ends with an error.

Nothing here has a thread. In asyncio each step runs in one of the loop's, and its batch waits here
until it is taken.

Source: Kafka clients/.../consumer/internals/ConsumerCoordinator.java.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import inspect
import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from spark_kbatch.clock import monotonic_ms, now_ms
from spark_kbatch.consumer.group_commits import AGAIN_MS
from spark_kbatch.consumer.same_topic import recreated
from spark_kbatch.consumer.stream_planner import is_another_topic
from spark_kbatch.consumer.topic_reader import (
    OffsetBound,
    TopicChoice,
    TopicReader,
    bounds_of,
    resolved,
    time_of,
)
from spark_kbatch.errors import (
    CorruptRecordError,
    GroupOffsetsMovedError,
    KBatchError,
    OffsetOutOfRangeError,
    RetriableError,
    ServerRunningError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import LONG_MAX, IsolationLevel, OffsetRange, TopicPartition
from spark_kbatch.options import arguments
from spark_kbatch.options.write import parse_isolation_level
from spark_kbatch.store.os_errors import translated
from spark_kbatch.store.source import LogView, Source
from spark_kbatch.store.store import Groups

if TYPE_CHECKING:
    import pyarrow as pa


logger = logging.getLogger(__name__)

_PAUSE_S, _PAUSE_MAX_S = 0.2, 1.0
_IDLE_SHARE = 150  # a pause is that many times as long as its look computed, within these bounds
_FROM_START = -1  # a position, before the first look at a partition that came later
_TURN_OFFSETS = 100_000  # of one partition, before the next one
_COMMIT_MS = 1_000  # between two commits while more batches wait
_WARN_MS = 60_000
_TRUNCATED = (
    "it was read up to there, and has lost records since, or others have taken their place: follow "
    "it again from a start that it holds, which `alter_group_offsets` sets for a group"
)

# Brokers learn of topics one after another, so that one may not know what another tells.
_AWAY = (RetriableError, OSError, ServerRunningError, UnknownTopicOrPartitionError)

Stop = threading.Event | Callable[[], object]
Read = Callable[[OffsetRange, LogView, str], Iterable["pa.RecordBatch"]]
# A partition, the offset from which it was read, the one after them, and them, as rows.
Found = tuple[TopicPartition, int, int, "pa.RecordBatch"]


class Looks:
    """Looks for new records in the partitions that are followed. Not thread-safe."""

    def __init__(
        self,
        polled: Callable[[], Source],
        choose: Callable[[TopicReader], Mapping[TopicPartition, str]],
        is_named: Callable[[str], bool],
        isolation: IsolationLevel,
        ids: Mapping[str, str],
        starts: Mapping[TopicPartition, int],
        stops: Mapping[TopicPartition, int | datetime.datetime] | None = None,
    ) -> None:
        """Set up for topics as they were found.

        Args:
            polled: returns the place for each look, as `Source.polled`.
            choose: returns the partitions to follow by now, with the ids of their topics; raises
                UnknownTopicOrPartitionError for a named topic that is gone.
            is_named: whether a topic is not one of a pattern.
            isolation: decides where logs end.
            ids: of the topics.
            starts: the first offset of each partition.
            stops: where each ends; those that come later are not followed then. None for no end.
        """
        self._polled, self._choose, self._is_named = polled, choose, is_named
        self._isolation, self._stops = isolation, stops
        self.ids, self.positions = dict(ids), dict(starts)  # the next offset to hand out
        self.unreadable: Mapping[TopicPartition, Exception] = {}  # at the last look
        self.is_gone: Exception | None = None
        self._ended = set[TopicPartition]()
        self.source = polled()  # as the last look has found it

    def is_done(self) -> bool:
        """Return True if all partitions are where they end."""
        return self._stops is not None and self.positions.keys() <= self._ended

    def look(self) -> list[tuple[OffsetRange, LogView]]:
        """Return the offsets that are new by now, and the log of each partition.

        Raises:
            UnknownTopicOrPartitionError: a named topic was deleted or recreated; or none knows one
                by now.
            OffsetOutOfRangeError: a log ends before what was read of it.
            KafkaStorageError, OSError: no partition can be read; for some `unreadable` says why.
        """
        self.source = self._polled()
        left = [tp for tp in self.positions if tp not in self._ended]
        views, self.unreadable = TopicReader(self.source).readable(left)
        # After that, so that views are of topics that are followed.
        gone = self._drop_gone(self.source)
        news = [(self._new(tp, view), view) for tp, view in views.items() if tp.topic not in gone]
        return [one for one in news if one[0].start < one[0].end]

    def _new(self, tp: TopicPartition, view: LogView) -> OffsetRange:
        edges, position = view.offsets, self.positions[tp]
        start, end = edges.log_start_offset, edges.end_offset(self._isolation)
        # A loop that reads uncommitted data may have left its group past the last stable offset.
        if edges.high_watermark < position:
            raise OffsetOutOfRangeError(str(tp), position, start, end, why=_TRUNCATED)
        if position < start:
            if position != _FROM_START:
                logger.warning(
                    "offsets %d to %d of %s were deleted before they were read", position, start, tp
                )
            self.positions[tp] = position = start
        stop = LONG_MAX if self._stops is None else _stop_of(self._stops[tp], view, end)
        if position >= stop:
            self._ended.add(tp)
        return OffsetRange(tp, position, min(end, stop, position + _TURN_OFFSETS))

    def ensure_same(self, topic: str) -> None:
        """Raise UnknownTopicOrPartitionError if a topic is gone, or another one has its name, by now."""
        there = self.source.existing_topics([topic])
        ids = {name: one.topic_id for name, one in there.items()}
        if topic not in ids or is_another_topic(topic, self.ids, ids):
            raise recreated(topic)

    @contextlib.contextmanager
    def dropping_gone(self) -> Iterator[None]:
        """Suppress errors of a pattern's topic that is gone, or whose name another one has."""
        try:
            yield
        except (UnknownTopicOrPartitionError, OffsetOutOfRangeError):
            if not self._drop_gone(self._polled()):
                raise

    def _drop_gone(self, source: Source) -> set[str]:
        """Take in new topics and partitions, drop a pattern's that are gone, and return these.

        Raises:
            UnknownTopicOrPartitionError: a named one is gone or was recreated; it is `is_gone`.
        """
        try:
            chosen = self._choose(TopicReader(source))
        except UnknownTopicOrPartitionError as error:
            self.is_gone = UnknownTopicOrPartitionError(
                f"it was deleted while it was followed: {error}"
            )
            raise self.is_gone from None
        ids = {tp.topic: topic_id for tp, topic_id in chosen.items()}
        gone = {one for one in self.ids if one not in ids or is_another_topic(one, self.ids, ids)}
        for name in gone:
            if self._is_named(name):
                self.is_gone = recreated(name)
                raise self.is_gone
            logger.warning(
                "deleted%s: %s",
                " and created again, so followed from the start"
                if name in ids
                else ", and followed no more",
                name,
            )
        kept = {tp: at for tp, at in self.positions.items() if tp.topic not in gone}
        # In this order: an interrupt between the two leaves no old position under a new id.
        self.positions = (
            kept if self._stops is not None else dict.fromkeys(chosen, _FROM_START) | kept
        )
        self.ids = ids
        return gone


def _stop_of(stop: int | datetime.datetime, view: LogView, log_end: int) -> int:
    """Return the offset to stop before, past the log's end if it has not come."""
    found = resolved(stop, log_end, view, log_end)
    is_ahead = isinstance(stop, datetime.datetime) and now_ms() < time_of(stop)
    return LONG_MAX if is_ahead and found == log_end else found


class Following:
    """An iterator over records as they come, which `Cluster.follow` returns, also for `async for`.

        with cluster.follow("orders", group="billing") as records:
            for batch in records:
                ...

    Each batch is a `pyarrow.RecordBatch` of one partition, in offset order. One thread or task
    takes them at a time; `close` may be called by any, and by a signal's handler.
    """

    def __init__(
        self,
        looks: Looks,
        read: Read,
        *,
        schema: pa.Schema | None = None,
        group: tuple[Groups, str] | None = None,
        timeout: float | None = None,
        stop: Stop = bool,
        address: str = "",
    ) -> None:
        """Follow what `looks` finds.

        Args:
            looks: of the place.
            read: returns the records of a range of a topic, by its id, in bounded batches with a
                column `offset`.
            schema: of what iteration returns.
            group: the groups of the place, and the one whose offsets the loop commits.
            timeout: seconds without a record, after which the loop ends.
            stop: ends the loop once it is set, or true.
            address: of the place, for errors.
        """
        self.schema = schema  #: of the batches
        self._looks, self._read, self._group, self._address = looks, read, group, address
        self._timeout_ms = LONG_MAX if timeout is None else timeout * 1000
        self._is_asked_to_stop: Any = getattr(stop, "is_set", stop)
        self._closed = threading.Event()
        self._lock = threading.Lock()  # held by a step
        self._running = self._run()
        self._ready: Found | None = None
        # Where the batch begins that does not count yet.
        self._in_work: Mapping[TopicPartition, int] = {}
        self._failures = Counter[TopicPartition]()  # reads since the last one that ended
        # With the id of its topic: another one of that name may have come as far.
        self._committed: Mapping[TopicPartition, tuple[int, str | None]] = {}
        self._asked: Mapping[TopicPartition, int] = {}  # by the last commit, which may have failed
        self._committed_ms = self._all_ms = -AGAIN_MS  # the last commit, and the last one of all
        self._idle_ms: int | None = None  # since when there is nothing
        self._warned_ms = -_WARN_MS
        self._commit()

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The offset after the last record that was handed out, or looked at, by partition."""
        return {tp: at for tp, at in self._looks.positions.items() if at != _FROM_START}

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self.take()[-1]

    def take(self) -> Found:
        """Wait for the next batch, and return it with its partition; StopIteration at the end."""
        self._in_work = {}
        while (pause_s := self._step()) is not None:
            if self._ready is not None:
                return self._taken(self._ready)
            self._closed.wait(pause_s)
        raise StopIteration

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        # A step whose task is cancelled goes on in its thread: what it finds waits for the next
        # call.
        self._in_work = {}
        while (pause_s := await asyncio.to_thread(self._step)) is not None:
            if self._ready is not None:
                return self._taken(self._ready)[-1]
            await asyncio.sleep(pause_s)
        raise StopAsyncIteration

    def _taken(self, found: Found) -> Found:
        # In this order: an interrupt between two of these hands it out again.
        tp, start, end, rows = found
        self._in_work = {tp: start}
        self._looks.positions[tp] = end
        self._ready = None
        return tp, start, end, rows if self.schema is None else rows.select(self.schema.names)

    def _step(self) -> float | None:
        """Have the next batch ready, or look for it once; return how long to wait; None to end."""
        with self._lock:
            if self._ready is not None:
                return 0.0
            is_over = self._closed.is_set() or self._is_asked_to_stop()
            # By an error or an interrupt.
            if inspect.getgeneratorstate(self._running) == inspect.GEN_CLOSED:
                self._running = self._run()
            try:
                with translated(self._address):
                    pause_s = None if is_over else next(self._running, None)
                    if pause_s is None:
                        self._commit()
                        self._closed.set()
                    return pause_s
            except Exception as error:
                if is_over or not self._may_go_on(error):
                    raise
                return _PAUSE_MAX_S

    def _run(self) -> Generator[float, None, None]:
        """Have one batch after the other ready, and yield when it is, or how long to wait for one.

        After a batch it goes on once that was taken, and the next is asked for.
        """
        while True:
            self._commit(0)
            with self._looks.dropping_gone():  # which ends what this look has found, as ids change
                started_s = time.thread_time()
                news = self._looks.look()
                pause_s = _IDLE_SHARE * (time.thread_time() - started_s)
                for error in self._looks.unreadable.values():
                    if not news:
                        raise error
                    self._warn(error)
                news.sort(key=lambda one: self._failures[one[0].topic_partition])
                for wanted, view in news:
                    yield from self._found(wanted, view)
                if self._looks.is_done() or (not news and self._is_timed_out()):
                    return
                if not news:
                    yield min(max(pause_s, _PAUSE_S), _PAUSE_MAX_S)

    def _found(self, wanted: OffsetRange, view: LogView) -> Iterator[float]:
        """Have the batches of a range ready, one after the other."""
        tp, start, end = wanted
        self._failures[tp] += 1
        for rows in self._read(wanted, view, self._looks.ids[tp.topic]):
            self._idle_ms = None
            if len(rows):
                self._looks.ensure_same(tp.topic)  # A real cluster is asked for records by name.
                after = rows["offset"][-1].as_py() + 1
                self._ready = tp, start, after, rows
                start = after
            yield 0.0
            self._commit(_COMMIT_MS)
        self._idle_ms = None
        self._looks.positions[tp] = end
        del self._failures[tp]

    def _is_timed_out(self) -> bool:
        """Return True if the loop has waited for its time-out; called where there is no record."""
        now = monotonic_ms()
        self._idle_ms = now if self._idle_ms is None else self._idle_ms
        return now - self._idle_ms >= self._timeout_ms

    def _may_go_on(self, error: Exception) -> bool:
        """Return True if an error is none, or passes by itself: with a warning, till a time-out."""
        if isinstance(error, OffsetOutOfRangeError):
            return error.offset < error.log_start_offset  # of which the next look warns
        is_over = error is self._looks.is_gone or isinstance(error, CorruptRecordError)
        if is_over or not isinstance(error, _AWAY) or self._is_timed_out():
            return False
        self._warn(error)
        return True

    def _warn(self, error: Exception) -> None:
        if monotonic_ms() - self._warned_ms >= _WARN_MS:
            logger.warning("%s; it is asked again", error)
            self._warned_ms = monotonic_ms()

    def _commit(self, pause_ms: int | None = None) -> None:
        """Commit for the group what counts and has changed, and each hour all.

        Args:
            pause_ms: since the last commit, before which none is due; None for at once.
        """
        if self._group is None:
            return
        (groups, group_id), now = self._group, monotonic_ms()
        waited_ms = LONG_MAX if pause_ms is None else now - self._committed_ms
        if waited_ms < max(pause_ms or 0, groups.commit_pause_ms):
            return
        counted, ids = {**self.positions, **self._in_work}, self._looks.ids
        stands = {tp: (at, ids.get(tp.topic)) for tp, at in counted.items()}
        is_all = now - self._all_ms >= AGAIN_MS
        due = {
            tp: at for tp, at in counted.items() if is_all or self._committed.get(tp) != stands[tp]
        }
        if not due:
            return
        asked = self._asked

        def ensure_own(found: Mapping[TopicPartition, int]) -> None:
            for tp, at in found.items():
                left, _ = self._committed.get(tp, (at, None))
                if at not in (left, asked.get(tp)):
                    moved = f"{tp} from {left} to {at}"
                    raise GroupOffsetsMovedError(group_id, self._address, moved)
            self._asked = due  # from here on the place may have it, also without an answer

        groups.alter_offsets(group_id, due, ids, ensure_own)
        self._committed, self._committed_ms = stands, now
        self._all_ms = now if is_all else self._all_ms

    def close(self) -> None:
        """End the loop, from anywhere: no batch comes after that; the last one counts once asked."""
        self._closed.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close it, and commit what counts; after an error not the batch that was handed out last.

        Raises:
            KBatchError: it cannot be committed; after another error that is a warning.
        """
        self._closed.set()
        if kind is None:
            self._in_work = {}
        try:
            with self._lock, translated(self._address):
                self._commit()
        except KBatchError as error:
            if kind is None:
                raise
            logger.warning(
                "%s; what the group's last commit left out will be handed out again", error
            )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *why: Any) -> None:
        """Close it as `__exit__` does, in a thread."""
        await asyncio.to_thread(self.__exit__, *why)


def follow(
    reader: TopicReader,
    topics: TopicChoice,
    group: tuple[Groups, str] | None,
    *,
    partitions: Iterable[int] | None,
    start: OffsetBound,
    columns: Iterable[str],
    stop_at: OffsetBound | None,
    timeout: float | None,
    stop: Stop | None,
    address: str,
    **options: Any,
) -> Following:
    """Return the loop that `Cluster.follow` describes, with its other arguments.

    Args:
        reader: of the place.
        topics: which; no iterator.
        group: the groups of the place and a name, if one is given.
        address: of the place, for errors.
        options: of `TopicReader.read`.
    """
    timeout = None if timeout is None else arguments.seconds("timeout", timeout)
    if stop is not None and not callable(getattr(stop, "is_set", stop)):
        arguments.refuse("stop", stop, "a threading.Event, or a function that returns True")
    if partitions is not None:
        partitions = arguments.partition_numbers("partitions", partitions)
    isolation = parse_isolation_level("isolation_level", options["isolation_level"])
    polled = reader.source.polled()
    now = TopicReader(polled())
    chosen = now.chosen(topics, partitions)
    views, ids = now.source.views(chosen), {tp.topic: one for tp, one in chosen.items()}
    if options["where"]:
        options["where"] = reader.where(options["where"], options["typed"], topics=ids)
    read: Callable[..., pa.RecordBatchReader] = functools.partial(
        TopicReader.read, topics=topics, **options
    )
    schema = read(now, columns=columns, of=({}, {}, [])).schema  # which checks these arguments
    looks = Looks(
        polled,
        lambda now: now.chosen(topics, partitions),
        lambda _: not isinstance(topics, re.Pattern),
        isolation,
        ids,
        _starts(now, views, start, isolation, group[0].committed(group[1]) if group else {}),
        None if stop_at is None else _stops(views, stop_at, isolation),
    )
    return Following(
        looks,
        lambda wanted, view, topic_id: read(
            TopicReader(looks.source),
            columns=[*dict.fromkeys([*schema.names, "offset"])],
            of=({wanted.topic_partition: topic_id}, {wanted.topic_partition: view}, [wanted]),
        ),
        schema=schema,
        group=group,
        timeout=timeout,
        stop=stop or bool,
        address=address,
    )


def _starts(
    now: TopicReader,
    views: Mapping[TopicPartition, LogView],
    start: OffsetBound,
    isolation: IsolationLevel,
    committed: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return where a loop begins in each partition: where its group stands, else at `start`."""
    # In a topic that the group has read, a partition without a commit came later.
    known = {tp.topic for tp in committed}
    starts = {tp: committed.get(tp, _FROM_START) for tp in views if tp.topic in known}
    left = {tp: view for tp, view in views.items() if tp not in starts}
    if left or not isinstance(start, Mapping):
        among = views if isinstance(start, Mapping) else left
        ranges = now.ranges(among, start, "latest", isolation)
        starts = {one.topic_partition: one.start for one in ranges} | starts
    return starts


def _stops(
    views: Mapping[TopicPartition, LogView], stop_at: OffsetBound, isolation: IsolationLevel
) -> dict[TopicPartition, int | datetime.datetime]:
    """Return where a loop ends in each partition: where its log ends now, or what is given."""
    return {
        tp: views[tp].offsets.end_offset(isolation) if one is None else one
        for tp, one in bounds_of("stop_at", stop_at, views, "latest").items()
    }
