"""The planner of a streaming query: where each micro-batch starts and ends; topics that are new, gone or left out.

    initial()           where it starts, by the options
    latest(start)       where the next micro-batch ends: what there is, within the limits
    plan(start, end)    the ranges of that micro-batch

Each looks at the logs once and answers as of that moment: a commit is in a micro-batch as a whole or
not at all, unless a limit splits it. Between two looks, topics appear, grow, and are deleted or
recreated. New ones are read from their start; what cannot be read any more is data loss, which
failOnDataLoss makes an error or a warning.

A planner lives as long as one run of the query; what must outlive the run is in the offsets. Spark keeps
them in its checkpoint, as JSON:

    {"flights": {"0": 7, "1": 12},               next offset to read, by topic and partition
     "@kbatch": {"ids": {"flights": "1BGx..."},  ids of topics: a recreated topic has the same name
                                                 and another id
                 "initial": {"flights": {"0": 3, "1": 0}}}}    where the query started

If Spark has not committed its first batch, it asks for the initial offset again after a restart, and
pairs it with the end that it has logged; by then `latest` is elsewhere. So the first end carries where
the query started, and so do those after it until data has moved. The options may not fit any more by
then, because partitions were added. So `initial` returns {} in place of an error, which is raised where
no end says where the query started.

`ids` and `initial` are left out if there are none: an offset of Spark's own connector is one of ours.
`@kbatch` cannot be a topic, because topic names have no `@`. The logs' ends that a query's progress shows have
`"log_ends": true` in it too; they are in no checkpoint.

An end without partitions that the query has read loses their offsets. If the options of a restarted
query leave some out, `latest` fails before Spark logs such an end. Before Spark 4.2 it cannot, because it
is not told where the query stands. If the options name them again, an end that was logged is planned as
it is, and the micro-batch after it reads nothing: it ends with all partitions, each where it was, and says so
as `initial`. Until Spark logs that end, only this run knows where they were.

Spark compares offsets as text and runs an empty batch for any difference, so the order is fixed:
topics by name, partitions by number, `@kbatch` last.

maxOffsetsPerTrigger, minOffsetsPerTrigger and maxTriggerDelay limit how much a micro-batch takes.
They count offsets, not records: where transactions or compaction leave gaps there are fewer rows.

Source: Spark connector/kafka-0-10-sql/.../KafkaMicroBatchStream.scala rateLimit, delayBatch;
KafkaOffsetReaderAdmin.scala getOffsetRangesFromResolvedOffsets; JsonUtils.scala,
KafkaSourceOffset.scala.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from spark_kbatch.consumer import planning, splits
from spark_kbatch.consumer.planning import DataLoss
from spark_kbatch.errors import (
    ConfigError,
    DataLossError,
    InvalidTopicError,
    KafkaStorageError,
    KBatchError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import (
    INT_MAX,
    LONG_MAX,
    LogOffsets,
    OffsetRange,
    StreamPiece,
    TopicPartition,
)
from spark_kbatch.options.read import ReadOptions, Subscribe
from spark_kbatch.options.topic import ensure_valid_topic
from spark_kbatch.store.source import LogView, TopicLookup

if TYPE_CHECKING:
    from spark_kbatch.condition.binding import Bound

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_LOOKS_MAX = 10


class Seen(NamedTuple):
    """Views of partitions' logs as of one moment, the ids of their topics, and whose they are."""

    views: Mapping[TopicPartition, LogView]
    ids: Mapping[str, str]
    source: TopicLookup


class StreamPlanner:
    """The planner of micro-batches in one run of a streaming query.

    Offsets of a query are JSON objects. It is not thread-safe: Spark asks one question at a time.
    """

    def __init__(
        self,
        options: ReadOptions,
        open_topics: Callable[[], TopicLookup],
        monotonic_ms: Callable[[], int],
        on_processed: OnProcessed | None = None,
    ) -> None:
        """Plan for one query.

        Args:
            options: of the stream.
            open_topics: opens what lies at PATH; called again for each question.
            monotonic_ms: the clock.
            on_processed: called with the offsets up to which the query has processed what it planned.
        """
        self._options, self._open_topics = options, open_topics
        self._monotonic_ms, self._on_processed = monotonic_ms, on_processed
        self._loss = DataLoss(fail=options.fail_on_data_loss)
        self._delay = TriggerDelay(
            options.min_offsets_per_trigger or 0, options.max_trigger_delay_ms
        )
        self._initial: StreamOffset | None = None
        self._told_initial: StreamOffset | None = None  # what Spark was told in this run
        self._initial_error: KBatchError | None = None  # why that is {}
        self._position: StreamOffset | None = None  # where Spark is, as far as it has said so
        self._planned: StreamOffset | None = None  # the last end in this run that had ranges
        # A logged end without partitions that the options name again, and the same end with them.
        self._rejoined: tuple[StreamOffset, StreamOffset] | None = None
        self._latest: StreamOffset | None = None
        self._was_asked = False  # in this run, by a Spark that does not say where it is
        self._is_available_now = False
        self._available: Seen | None = None  # up to which an AvailableNow run goes

    def initial(self) -> dict[str, Any]:
        """Return where the query starts, the same on every call; {} if the options do not tell it.

        Then `latest` and `plan` raise the error, unless an earlier run has logged where it starts.

        Raises:
            As `planning.initial_offsets`, before Spark 4.2 if it has an end that does not say it.
        """
        try:
            self._told_initial, self._initial_error = self._resolved_initial(), None
        except KBatchError as error:
            if self._was_asked:  # Spark has an end by now, which does not say where it starts
                raise
            self._told_initial, self._initial_error = StreamOffset({}), error
        return self._told_initial.to_json()

    def latest(self, start: dict[str, Any] | None, *, limited: bool = True) -> dict[str, Any]:
        """Return the end of the micro-batch that starts at `start`; `start` if there is nothing to read.

        Args:
            start: None before Spark 4.2, which does not say where it is.
            limited: whether the limits in the options apply.

        Raises:
            ConfigError: `start` is no offset of such a query.
            UnknownTopicOrPartitionError: a named topic was deleted, and data loss is not accepted.
            DataLossError: the options leave out what the query has read, and data loss is not accepted.
            As `planning.initial_offsets`, if `start` is what `initial` returned.
        """
        known = None if start is None else StreamOffset.from_json(start)
        if self._initial_error is not None and known == self._told_initial:
            raise self._initial_error
        end = self._end_after(known, limited=limited)
        # Spark has run the last micro-batch before it asks for the next one. Where it does not say where it is, an
        # end is not enough that it had planned without ranges: at a restart it may be yet to be processed.
        if (processed := known or self._planned) is not None and self._latest is not None:
            self._tell_processed(
                processed,
                self._latest.offsets,
                self._latest.ids,
                is_last=self._is_available_now and end == processed,
            )
        # Spark compares texts: to show that nothing is new, return exactly the one it passed.
        return start if start is not None and end == known else end.to_json()

    def _end_after(self, start: StreamOffset | None, *, limited: bool) -> StreamOffset:
        if start is None:
            start, limited = self._unsaid_start(limited=limited)
        rejoined = self._with_rejoined(start)
        if rejoined != start:
            return rejoined
        seen = self._available or self._selected()
        if self._is_available_now:
            self._available = seen
        if self._options.fail_on_data_loss:
            left_out = start.offsets.keys() - seen.views.keys()
            self._lose_left_out(self._still_there(left_out, start.ids), seen)
        known = {
            tp: offset
            for tp, offset in start.offsets.items()
            if tp in seen.views and not is_another_topic(tp.topic, start.ids, seen.ids)
        }
        ends: Offsets = {tp: self._end(v.offsets, known.get(tp)) for tp, v in seen.views.items()}
        self._latest = StreamOffset(ends, seen.ids)
        if not ends or (limited and self._waits(known, ends)):
            return start
        if limited and self._options.max_offsets_per_trigger is not None:
            starts = {tp: known.get(tp, v.offsets.log_start_offset) for tp, v in seen.views.items()}
            ends = rate_limited(self._options.max_offsets_per_trigger, starts, ends)
        if (ends, seen.ids) == (start.offsets, start.ids):
            return start
        return StreamOffset(ends, seen.ids, _carried(start, seen))

    def plan(
        self, start: dict[str, Any], end: dict[str, Any], condition: Bound | None = None
    ) -> list[tuple[StreamPiece, ...]]:
        """Return the ranges of the micro-batch between two offsets, for each task, as the options say.

        Ranges that cannot match a condition, by their partition or their offsets, are left out. Offsets,
        errors and checks are the same as without a condition.

        Raises:
            ConfigError: `start` or `end` is no offset of such a query.
            DataLossError: part of it is gone, or not there yet, and data loss is not accepted; or an
                AvailableNow run cannot reach its target any more.
            UnknownTopicOrPartitionError: as `latest`, if `end` leaves out what the query has read.
            As `planning.initial_offsets`, if neither the options nor `end` tell where the query starts.
        """
        first, last = StreamOffset.from_json(start), StreamOffset.from_json(end)
        self._position = last
        if self._rejoined is not None and first == self._rejoined[1]:
            self._rejoined = None  # Spark has it now.
        first = self._with_rejoined(first)
        if first == last:
            return []
        if first == self._told_initial:
            if last.initial is not None:
                # An earlier run of the query planned this batch, from an initial offset of its own.
                first = StreamOffset(last.initial, last.ids)
            elif self._initial_error is not None:
                raise self._initial_error
        seen = self._existing(last.offsets)
        if self._available is not None and self._latest is not None:
            self._ensure_available(last, self._latest, seen)
        ranges = [one for one in self._ranges(first, last, seen) if one.start < one.end]
        self._tell_processed(first, seen.views, seen.ids)
        # A query that comes from a place without ids goes on with those of this one.
        ids = {**seen.ids, **last.ids}
        within = None
        if condition is not None:
            from spark_kbatch.consumer import matching  # noqa: PLC0415  for reads that have one

            if self._planned is None:
                matching.warn_of_other_topics(condition, {tp.topic for tp in last.offsets})
            within = matching.windows(ranges, {}, condition)
        self._planned = last
        return [
            tuple(
                StreamPiece(one.wanted, ids.get(one.wanted.topic_partition.topic, ""))
                for one in task
            )
            for task in splits.tasks(ranges, seen.views, self._options, seen.source, within)
        ]

    def prepare_for_available_now(self) -> None:
        """Make this run end, as Trigger.AvailableNow asks, at what the next call of `latest` finds."""
        self._is_available_now = True

    def report_latest(self) -> dict[str, Any] | None:
        """Return the logs' ends that the last call of `latest` found, ignoring limits; None if none.

        They have a mark, because before 4.2 Spark reports other offsets in their place.
        """
        if self._latest is None or not self._latest.offsets:
            return None
        found = self._latest.to_json()
        return found | {KBATCH_KEY: {**found.get(KBATCH_KEY, {}), LOG_ENDS: True}}

    def _tell_processed(
        self,
        position: StreamOffset,
        there: Collection[TopicPartition],
        ids: Mapping[str, str],
        *,
        is_last: bool = False,
    ) -> None:
        """Tell `on_processed` where the query has got to in those partitions that are still there."""
        if self._on_processed is not None:
            offsets = {
                tp: offset
                for tp, offset in position.offsets.items()
                if tp in there and not is_another_topic(tp.topic, position.ids, ids)
            }
            self._on_processed(offsets, is_last)

    # What is there.

    def _resolved_initial(self) -> StreamOffset:
        if self._initial is None:
            offsets, ids, _ = self._look(
                lambda topics: planning.initial_offsets(self._options, topics)
            )
            self._initial = StreamOffset(offsets, ids, initial=offsets)
        return self._initial

    def _selected(self) -> Seen:
        selection, strict = self._options.selection, self._options.fail_on_data_loss

        def ask(topics: TopicLookup) -> Mapping[TopicPartition, LogView]:
            return topics.views(planning.selected(selection, topics, strict=strict))

        return Seen(*self._look(ask))

    def _existing(self, partitions: Iterable[TopicPartition]) -> Seen:
        wanted = set(partitions)
        topics_of_all = Subscribe(tuple({tp.topic for tp in wanted}))

        def ask(topics: TopicLookup) -> Mapping[TopicPartition, LogView]:
            there = planning.selected(topics_of_all, topics, strict=False)
            return topics.views(tp for tp in there if tp in wanted)

        return Seen(*self._look(ask))

    def _look(self, ask: Callable[[TopicLookup], _T]) -> tuple[_T, Mapping[str, str], TopicLookup]:
        """Return the result of `ask`, the topics' ids then, and the source; ask again if topics change meanwhile."""
        changed = ""
        for _ in range(_LOOKS_MAX):
            source = self._open_topics()
            topics = _TopicsSeen(source)
            try:
                return ask(topics), topics.seen, source
            except _ChangedError as error:
                changed = str(error)
        raise KafkaStorageError(
            f"topics are deleted and created faster than they can be looked at: {changed}"
        )

    def _end(self, edges: LogOffsets, start: int | None) -> int:
        end = edges.end_offset(self._options.isolation_level)
        # A query that read uncommitted data before its restart may be past the last stable offset.
        is_past = start is not None and end < start <= edges.high_watermark
        return start if is_past and start is not None else end

    # How much a micro-batch takes.

    def _unsaid_start(self, *, limited: bool) -> tuple[StreamOffset, bool]:
        """Return the query's position for a Spark that does not pass it on, and whether limits apply.

        A run that goes on from a checkpoint has asked for a plan before. The first call of a run must
        return everything: an AvailableNow run does not call a second time.
        """
        limited, self._was_asked = limited and self._was_asked, True
        if self._position is not None:
            return self._position, limited
        try:
            return self._resolved_initial(), False
        except KBatchError as error:
            # With a checkpoint it does not matter; without one `initial` raises it.
            logger.info("cannot tell where the query would start: %s", error)
            return StreamOffset({}), False

    def _waits(self, start: Offsets, end: Offsets) -> bool:
        if self._options.min_offsets_per_trigger is None or self._is_available_now:
            return False
        return self._delay.waits(start, end, self._monotonic_ms())

    # What lies between two offsets.

    def _ranges(self, start: StreamOffset, end: StreamOffset, seen: Seen) -> list[OffsetRange]:
        """Return the offset ranges between two stream offsets, and report lost partitions as data loss.

        The start of a range may lie after its end.
        """
        missing = set(_missing(end, seen))
        left_out = start.offsets.keys() - end.offsets.keys()
        still_there = self._still_there(left_out, start.ids)
        self._lose_partitions((left_out - still_there) | missing, seen, "they are gone")
        if still_there:
            named_again = still_there & self._selected().views.keys()
            self._lose_left_out(still_there - named_again, seen)
            self._rejoin(named_again, start, end)
        found = []
        for tp in sorted(end.offsets.keys() - missing):
            edges, last = seen.views[tp].offsets, end.offsets[tp]
            first = edges.log_start_offset
            if tp not in start.offsets and end.initial is not None and tp in end.initial:
                first = end.initial[tp]
            elif tp not in start.offsets:
                if first > 0:
                    self._lose(f"new partition {tp} from offset 0", edges, f"it starts at {first}")
            elif is_another_topic(tp.topic, start.ids, end.ids):
                why = "its topic was deleted and created again"
                self._lose(f"{tp} from offset {start.offsets[tp]}", edges, why)
            else:
                first = start.offsets[tp]
                if last < first:
                    why = f"its offset was changed from {first} to {last}"
                    self._lose(f"{tp} from offset {first}", edges, why)
            found.append(OffsetRange(tp, first, last))
        return found

    def _still_there(
        self, partitions: Collection[TopicPartition], ids: Mapping[str, str]
    ) -> set[TopicPartition]:
        """Return the partitions whose topics exist and were not recreated."""
        if not partitions:
            return set()
        found = self._existing(partitions)
        return {tp for tp in found.views if not is_another_topic(tp.topic, ids, found.ids)}

    def _rejoin(
        self, partitions: Collection[TopicPartition], start: StreamOffset, end: StreamOffset
    ) -> None:
        """Go on after `end`, which leaves these partitions out, with their offsets of `start`."""
        if partitions:
            offsets = {tp: start.offsets[tp] for tp in partitions}
            ids = {tp.topic: start.ids[tp.topic] for tp in partitions if tp.topic in start.ids}
            # As `initial`, which tells another run that plans up to it where they were.
            self._rejoined = (
                end,
                StreamOffset({**offsets, **end.offsets}, {**ids, **end.ids}, offsets),
            )

    def _with_rejoined(self, offset: StreamOffset) -> StreamOffset:
        """Return the offset with the partitions that the run which logged it has left out."""
        if self._rejoined is None or offset != self._rejoined[0]:
            return offset
        return self._rejoined[1]

    def _lose_partitions(self, lost: Collection[TopicPartition], seen: Seen, why: str) -> None:
        if lost:
            self._loss.report(_names(lost), _names(seen.views), why)

    def _lose_left_out(self, lost: Collection[TopicPartition], seen: Seen) -> None:
        self._lose_partitions(
            lost,
            seen,
            "the checkpoint has offsets of them, and the options of this run leave them out: name "
            "them again, or start with a new checkpoint",
        )

    def _lose(self, asked: str, edges: LogOffsets, why: str) -> None:
        self._loss.report(asked, self._left(edges), why)

    def _left(self, edges: LogOffsets) -> str:
        end_offset = edges.end_offset(self._options.isolation_level)
        return f"offsets {edges.log_start_offset} to {end_offset}"

    def _ensure_available(self, end: StreamOffset, target: StreamOffset, seen: Seen) -> None:
        """Check that an AvailableNow run, which ends at `target`, can still get there.

        Source: KafkaMicroBatchStream.verifyEndOffsetForTriggerAvailableNow.
        """
        run = "the run up to what is available now"
        if end.offsets.keys() != target.offsets.keys():
            found = _names(target.offsets)
            raise DataLossError(_names(end.offsets), found, f"{run} found other partitions")
        lost = _missing(end, seen)
        if lost:
            why = f"{run} needs partitions that have been lost"
            raise DataLossError(_names(lost), _names(seen.views), why)
        for tp, last in sorted(end.offsets.items()):
            if last > target.offsets[tp]:
                found = f"up to offset {target.offsets[tp]}"
                raise DataLossError(f"{tp} up to offset {last}", found, f"{run} ends before that")
            edges = seen.views[tp].offsets
            if last > self._end(edges, last):
                why = f"{run} found an available offset which is less than its end offset"
                raise DataLossError(f"{tp} up to offset {last}", self._left(edges), why)


def rate_limited(
    limit: int, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return end offsets for a micro-batch of about `limit` offsets, in proportion to partitions' backlogs.

    A share below one is rounded up, so that a small partition does not starve; so the sum may exceed
    the limit by the number of partitions.

    Args:
        limit: 1 or more.
        start: next offset of every partition in `end`.
        end: exclusive. A partition without new data keeps it, even if it lies before the start.
    """
    sizes = {tp: end[tp] - start[tp] for tp in end if end[tp] > start[tp]}
    total = float(sum(sizes.values()))
    limited = dict(end)
    for topic_partition, size in sizes.items():
        share = limit * (size / total)
        taken = math.ceil(share) if share < 1 else math.floor(share)
        limited[topic_partition] = min(end[topic_partition], start[topic_partition] + taken)
    return limited


class TriggerDelay:
    """A delay of micro-batches: each waits for minOffsetsPerTrigger, but no longer than maxTriggerDelay.

    The first one never waits.
    """

    def __init__(self, min_offsets: int, max_delay_ms: int) -> None:
        self._min_offsets, self._max_delay_ms = min_offsets, max_delay_ms
        self._last_trigger_ms: int | None = None

    def waits(
        self, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], now_ms: int
    ) -> bool:
        """Return True if the micro-batch between these offsets has to wait for more data.

        A partition that is not in `start` counts from offset 0.
        """
        last_ms = self._last_trigger_ms
        if last_ms is not None and now_ms - last_ms < self._max_delay_ms:
            if sum(end[tp] - start.get(tp, 0) for tp in end) < self._min_offsets:
                return True
        self._last_trigger_ms = now_ms
        return False


def _carried(start: StreamOffset, seen: Seen) -> Offsets | None:
    """Return where the query started, to be kept in its next offset; None once the query has read data.

    Offsets of a deleted topic say nothing about the one that has its name now.
    """
    if start.initial is None or start.has_moved:
        return None
    return {
        tp: offset
        for tp, offset in start.initial.items()
        if not is_another_topic(tp.topic, start.ids, seen.ids)
    }


def _missing(end: StreamOffset, seen: Seen) -> list[TopicPartition]:
    return [
        tp
        for tp in sorted(end.offsets)
        if tp not in seen.views or is_another_topic(tp.topic, end.ids, seen.ids)
    ]


def _names(partitions: Iterable[TopicPartition]) -> str:
    names = [str(tp) for tp in sorted(partitions)]
    return f"topic-partitions {', '.join(names)}" if names else "no topic-partitions"


class _ChangedError(Exception):
    """An error that a topic was deleted or recreated while its partitions were looked up."""


class _TopicsSeen(planning.TopicsLookedUp):
    """Topics that must stay the same while their logs are looked at; `seen` has their ids then."""

    seen: Mapping[str, str] = {}

    def views(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogView]:
        wanted = list(partitions)
        names = sorted({tp.topic for tp in wanted})
        self.seen = {name: self.ids[name] for name in names if self.ids.get(name)}
        try:
            views = super().views(wanted)
        except UnknownTopicOrPartitionError as error:
            raise _ChangedError(str(error)) from error
        after = self._topics.existing_topics(names)
        if after.keys() != set(names) or self.seen != {
            name: one.topic_id for name, one in after.items() if one.topic_id
        }:
            raise _ChangedError(", ".join(names))
        return views


KBATCH_KEY = "@kbatch"
_PARTITION = re.compile("[0-9]{1,10}")
_IDS, _INITIAL, LOG_ENDS = "ids", "initial", "log_ends"

Offsets = Mapping[TopicPartition, int]
# Takes the next offsets, and whether a run ends with them.
OnProcessed = Callable[[Offsets, bool], object]


@dataclass(frozen=True)
class StreamOffset:
    """An offset in every partition that a query reads."""

    offsets: Offsets  # next to read
    ids: Mapping[str, str] = field(default_factory=dict)  # of topics that have one
    initial: Offsets | None = None

    @property
    def has_moved(self) -> bool:
        """Whether the query has read anything since it started."""
        return self.offsets != self.initial

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form of this offset; equal offsets have equal forms, key order included."""
        found = _by_topic(self.offsets)
        ours: dict[str, Any] = {}
        if self.ids:
            ours[_IDS] = dict(sorted(self.ids.items()))
        if self.initial is not None:
            ours[_INITIAL] = _by_topic(self.initial)
        return found | ({KBATCH_KEY: ours} if ours else {})

    @classmethod
    def from_json(cls, value: object) -> StreamOffset:
        """Parse a stream offset from the JSON that `to_json` or Spark's Kafka connector wrote.

        Raises:
            ConfigError: it is neither.
        """
        if not isinstance(value, dict):
            _refuse(value)
        ours = value.get(KBATCH_KEY, {})
        if not isinstance(ours, dict) or not ours.keys() <= {_IDS, _INITIAL, LOG_ENDS}:
            _refuse(value, "was it written by a later release?")
        ids = ours.get(_IDS, {})
        if not isinstance(ids, dict) or not all(isinstance(one, str) for one in ids.values()):
            _refuse(value)
        return cls(
            _offsets(
                {topic: found for topic, found in value.items() if topic != KBATCH_KEY}, value
            ),
            ids,
            _offsets(ours[_INITIAL], value) if _INITIAL in ours else None,
        )


def is_another_topic(topic: str, ids: Mapping[str, str], later: Mapping[str, str]) -> bool:
    """Return True if a topic was recreated between two looks; False if an id is missing."""
    return topic in ids and topic in later and ids[topic] != later[topic]


def _by_topic(offsets: Offsets) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for topic, partition in sorted(offsets):
        by_partition = found.setdefault(topic, {})
        by_partition[str(partition)] = offsets[TopicPartition(topic, partition)]
    return found


def _offsets(by_topic: object, whole: object) -> dict[TopicPartition, int]:
    if not isinstance(by_topic, dict):
        _refuse(whole)
    offsets = {}
    for topic, by_partition in by_topic.items():
        try:
            ensure_valid_topic(topic)
        except InvalidTopicError as error:
            _refuse(whole, f"{error}.")
        if not isinstance(by_partition, dict):
            _refuse(whole)
        for text, offset in by_partition.items():
            if not _PARTITION.fullmatch(text) or int(text) > INT_MAX:
                _refuse(whole)
            # A bool is an int to Python.
            if type(offset) is not int or not 0 <= offset <= LONG_MAX:
                _refuse(whole)
            offsets[TopicPartition(topic, int(text))] = offset
    return offsets


def _refuse(value: object, why: str = "is it the checkpoint of another query?") -> NoReturn:
    raise ConfigError(
        f"the checkpoint holds {json.dumps(value)}, which is not an offset of this source: {why} An offset "
        'looks like {"events":{"0":23}}'
    )
