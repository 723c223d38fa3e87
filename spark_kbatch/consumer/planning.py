"""Which partitions a read covers, from which offset to which.

    option                                what becomes of it             when
    subscribe, subscribePattern, assign   partitions that exist          when it is planned
    offsets, by partition, for topics     the same offsets, by partition;
    or for all                            EARLIEST and LATEST stay as they
                                          are
    times                                 offsets                        when it is planned
    EARLIEST, LATEST                      offsets                        when the range is read

EARLIEST and LATEST are looked up that late so that a plan which is used again sees what was written
since. Everything looked up for one plan is as of one moment.

With `failOnDataLoss`, a read fails when offsets that it names are gone, or not there yet; otherwise
it goes on. Offsets that never held a record for this reader are not lost: gaps left by compaction,
markers, and data of aborted transactions.

Source: Spark connector/kafka-0-10-sql/.../KafkaOffsetReaderAdmin.scala, ConsumerStrategy.scala,
KafkaBatchPartitionReader.scala, KafkaDataConsumer.scala throwOnDataLoss, logOnDataLoss.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from spark_kbatch.errors import (
    ConfigError,
    DataLossError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import (
    EARLIEST,
    LATEST,
    IsolationLevel,
    LogOffsets,
    OffsetAndTimestamp,
    OffsetRange,
    TopicPartition,
)
from spark_kbatch.options.read import (
    Assign,
    Bound,
    NoMatch,
    Offsets,
    ReadOptions,
    Selection,
    Subscribe,
    SubscribePattern,
    Timestamps,
)
from spark_kbatch.record.header import NO_TIMESTAMP
from spark_kbatch.store.source import FoundTopic, LogView, TopicLookup

logger = logging.getLogger(__name__)

_NUMBERS = {"earliest": EARLIEST, "latest": LATEST}


class DataLoss:
    """One read's reaction to lost data: fail, or warn and go on."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail

    def report(self, asked: str, left: str, why: str) -> None:
        """Raise DataLossError, or, if data loss is accepted, log a warning and return.

        Raises:
            DataLossError: the read is to fail on data loss.
        """
        if self._fail:
            left += ", which option 'failOnDataLoss' set to 'false' reads without this error"
            raise DataLossError(asked, left, why)
        logger.warning("%s; it is skipped", DataLossError(asked, left, why))

    def offsets_gone(self, lost: OffsetRange, error: OffsetOutOfRangeError) -> None:
        """Report offsets that a log does not hold; raises as `report`."""
        topic_partition, start, end = lost
        why = error.why or (
            "they were deleted, by retention or on request"
            if start < error.log_start_offset
            else "the log ends before them; if the topic was recreated, its offsets restart at 0"
        )
        self.report(
            f"{topic_partition} from offset {start} to {end}",
            f"offsets {error.log_start_offset} to {error.log_end_offset}",
            why,
        )


class TopicsLookedUp:
    """A `TopicLookup` that remembers the ids of topics whose partitions were looked up."""

    def __init__(self, topics: TopicLookup) -> None:
        self._topics = topics
        self.ids = defaultdict[str, str](str)  # empty for a topic that has none, or is gone again

    def topic_names(self, *, internal: bool = False) -> list[str]:
        """Return the names of all topics, sorted."""
        return self._topics.topic_names(internal=internal)

    def existing_topics(self, names: Iterable[str]) -> Mapping[str, FoundTopic]:
        """Return those of the named topics that exist."""
        found = self._topics.existing_topics(names)
        self.ids |= {name: one.topic_id for name, one in found.items()}
        return found

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return a topic's partitions, in order; raises UnknownTopicOrPartitionError."""
        found = self.existing_topics([topic]).get(topic)  # the id and the partitions of one topic
        return list(found.partitions) if found else self._topics.partitions(topic)

    def views(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogView]:
        """Return views of these partitions' logs, all as of one moment."""
        return self._topics.views(partitions)

    def why_gone(self, topic_partition: TopicPartition, offset: int) -> str:
        """Return why a log does not show an offset below its start; empty if that is not known."""
        return self._topics.why_gone(topic_partition, offset)

    def common_cuts(
        self, wanted: Iterable[OffsetRange], *, piece_bytes: int
    ) -> Sequence[Mapping[TopicPartition, int]]:
        """Return where to cut ranges whose batches are stored together."""
        return self._topics.common_cuts(wanted, piece_bytes=piece_bytes)


def selected(
    selection: Selection, topics: TopicLookup, *, strict: bool = True
) -> list[TopicPartition]:
    """Return the partitions to read, ordered by topic and number.

    Args:
        selection: from the options.
        topics: those at PATH.
        strict: whether topics that are named must exist.

    Raises:
        UnknownTopicOrPartitionError: a named topic does not exist; names the option.
    Source: ConsumerStrategy.assignedTopicPartitions.
    """
    match selection:
        case Subscribe(names):
            return _partitions("subscribe", names, topics, strict=strict)
        case Assign(wanted):
            names = tuple(tp.topic for tp in wanted)
            existing = _partitions("assign", names, topics, strict=strict)
            chosen = set(wanted)
            return [tp for tp in existing if tp in chosen]
        case SubscribePattern(pattern):
            search = re.compile(pattern).search
            matching = [name for name in topics.topic_names() if search(name)]
            # Others were deleted since the names were listed.
            return sorted(
                tp for one in topics.existing_topics(matching).values() for tp in one.partitions
            )


def _partitions(
    option: str, names: Iterable[str], topics: TopicLookup, *, strict: bool
) -> list[TopicPartition]:
    wanted = sorted(set(names))
    there = topics.existing_topics(wanted)
    found: list[TopicPartition] = []
    for name in wanted:
        try:
            if name in there or strict:
                found += there[name].partitions if name in there else topics.partitions(name)
        except UnknownTopicOrPartitionError as error:
            raise UnknownTopicOrPartitionError(f"option {option!r}: {error}") from None
    return found


def current_offsets(
    options: ReadOptions, topics: TopicLookup
) -> dict[TopicPartition, tuple[int, int]]:
    """Return start and end offset of each partition to read, as of one moment.

    Named topics that do not exist have none: one that was deleted must not fail the others.
    """
    views = topics.views(selected(options.selection, topics, strict=False))
    return {
        tp: (view.offsets.log_start_offset, view.offsets.end_offset(options.isolation_level))
        for tp, view in views.items()
    }


def ranges(options: ReadOptions, topics: TopicLookup) -> list[OffsetRange]:
    """Return the offset ranges of a batch read, ordered by partition, without those known to be empty.

    Raises:
        UnknownTopicOrPartitionError: as `selected`.
        ConfigError: start or end names other partitions than those to read, a time that no record
            has, or a start after the end.
        OffsetOutOfRangeError: an offset outside the log, or all that the read ends before was
            overwritten, unless data loss is accepted.
    """
    partitions = selected(options.selection, topics)
    starting = _by_partition(options.starting, partitions, "earliest")
    ending = _by_partition(options.ending, partitions, "latest")
    match starting, ending:
        case Offsets(offsets=int(start)), Offsets(offsets=int(end)):
            return [OffsetRange(tp, start, end) for tp in partitions]
    views = topics.views(partitions)
    starts = _offsets_of(starting, partitions, views, options, no_match=options.no_match)
    ends = _offsets_of(ending, partitions, views, options, no_match="latest")
    wanted_of = {tp: OffsetRange(tp, starts[tp], ends[tp]) for tp in partitions}
    _ensure_not_overwritten(starting, ending, wanted_of, views, topics, options)
    found = []
    for tp, wanted in wanted_of.items():
        _ensure_held(starting.option, tp, wanted.start, views[tp].offsets, topics, options)
        _ensure_held(ending.option, tp, wanted.end, views[tp].offsets, topics, options)
        if 0 <= wanted.end < wanted.start:
            raise ConfigError(
                f"option {starting.option!r}: the resolved start offset {wanted.start} is "
                f"greater than the resolved end offset {wanted.end}, of {ending.option!r}, "
                f"for topic {tp.topic} partition {tp.partition}"
            )
        if wanted.start == EARLIEST and 0 < wanted.end <= views[tp].offsets.log_start_offset:
            continue  # Of those that are left, one that is empty later has lost records.
        if wanted.start < 0 or wanted.end < 0 or wanted.start < wanted.end:
            found.append(wanted)
    return found


def initial_offsets(options: ReadOptions, topics: TopicLookup) -> dict[TopicPartition, int]:
    """Return where a stream without a checkpoint starts: an offset per partition, as of one moment.

    Raises:
        UnknownTopicOrPartitionError, ConfigError, OffsetOutOfRangeError: as `ranges`.
    """
    partitions = selected(options.selection, topics)
    starting = _by_partition(options.starting, partitions, "earliest", "latest")
    views = topics.views(partitions)
    starts = _offsets_of(starting, partitions, views, options, no_match=options.no_match)
    for tp, offset in starts.items():
        _ensure_held(starting.option, tp, offset, views[tp].offsets, topics, options)
    return {
        tp: number(offset, views[tp].offsets, options.isolation_level)
        for tp, offset in starts.items()
    }


def number(offset: int, edges: LogOffsets, isolation: IsolationLevel) -> int:
    """Return what EARLIEST or LATEST stands for; any other offset as it is."""
    if offset == EARLIEST:
        return edges.log_start_offset
    return edges.end_offset(isolation) if offset == LATEST else offset


def _by_partition(side: Bound, partitions: Sequence[TopicPartition], *words: str) -> Bound:
    """Return a start or an end with the topics that it gives as a whole spread over their partitions.

    Args:
        words: those that this side of the read takes in place of an offset.

    Raises:
        ConfigError: it names other partitions than those that are read.
    Source: KafkaOffsetRangeLimit.scala.
    """
    topics: Mapping[str, int] = {}
    if isinstance(side, Timestamps):
        named, hint = side.timestamps, ""
    else:
        named, topics = side.offsets, side.topics
        hint = f"; use {' and '.join(f'{_NUMBERS[word]} for {word}' for word in words)}"
    if isinstance(named, int):
        return side
    spread = {tp: topics[tp.topic] for tp in partitions if tp.topic in topics}
    found = {**spread, **named}
    unknown = topics.keys() - {tp.topic for tp in spread}
    if found.keys() == set(partitions) and not unknown:
        return replace(side, offsets=found) if isinstance(side, Offsets) else side
    specified = ", ".join([*map(str, sorted(found)), *sorted(unknown)]) or "none"
    read = ", ".join(map(str, partitions)) or "none"
    raise ConfigError(
        f"option {side.option!r} must name exactly the partitions that are read; it names: "
        f"{specified}; read are: {read}{hint}"
    )


def _offsets_of(
    side: Bound,
    partitions: Sequence[TopicPartition],
    views: Mapping[TopicPartition, LogView],
    options: ReadOptions,
    *,
    no_match: NoMatch,
) -> Mapping[TopicPartition, int]:
    """Return each partition's offset for the start or the end of a read, with times looked up.

    They are EARLIEST or LATEST only if the user gave these.

    Source: KafkaOffsetReaderAdmin.readTimestampOffsets.
    """
    if isinstance(side, Offsets):
        offsets = side.offsets
        return dict.fromkeys(partitions, offsets) if isinstance(offsets, int) else offsets
    found = {}
    for tp in partitions:
        time = side.timestamps if isinstance(side.timestamps, int) else side.timestamps[tp]
        end_offset = views[tp].offsets.end_offset(options.isolation_level)
        record = views[tp].offset_for_timestamp(time, end_offset=end_offset)
        if record is None and no_match == "error":
            raise ConfigError(
                f"No offset matched from request of topic-partition {tp} and timestamp {time} in "
                f"option {side.option!r}: all its records are older, or it has none; with option "
                "'startingOffsetsByTimestampStrategy' set to 'latest' the read starts at its end"
            )
        found[tp] = end_offset if record is None else record.offset
    return found


def _ensure_held(
    option: str,
    tp: TopicPartition,
    offset: int,
    edges: LogOffsets,
    topics: TopicLookup,
    options: ReadOptions,
) -> None:
    log_start, log_end = edges.log_start_offset, edges.end_offset(options.isolation_level)
    if offset < 0 or log_start <= offset <= log_end:
        return
    why = topics.why_gone(tp, offset) if offset < log_start else ""
    error = OffsetOutOfRangeError(str(tp), offset, log_start, log_end, option, why)
    if options.fail_on_data_loss:
        raise error
    logger.warning("%s; reading what is there", error)


def _ensure_not_overwritten(
    starting: Bound,
    ending: Bound,
    wanted: Mapping[TopicPartition, OffsetRange],
    views: Mapping[TopicPartition, LogView],
    topics: TopicLookup,
    options: ReadOptions,
) -> None:
    if not isinstance(ending, Offsets):
        return
    ends = {tp: one.end for tp, one in wanted.items() if one.end >= 0}
    by_time = isinstance(starting, Timestamps)
    from_start = {tp for tp in ends if by_time or wanted[tp].start == EARLIEST}
    isolation = options.isolation_level
    for error in overwritten(ends, from_start, views, isolation, topics.why_gone):
        error = replace(error, option=ending.option)
        if options.fail_on_data_loss:
            raise error
        logger.warning("%s; reading what is there", error)


def overwritten(
    ends: Mapping[TopicPartition, int],
    from_start: Collection[TopicPartition],
    views: Mapping[TopicPartition, LogView],
    isolation: IsolationLevel,
    why_gone: Callable[[TopicPartition, int], str],
) -> list[OffsetOutOfRangeError]:
    """Return errors for partitions that a read from the start finds empty because of an overwrite.

    The read ends where a commit ended that a later one has overwritten. That is the log start by now, or
    below it, so the read would be empty without a word. The ends of the commit that has overwritten, or
    of a later one, are no error, also where it left a partition empty: one of the topic's ends is above
    the log start then, or all are where the logs end now.

    Args:
        ends: the offsets that were given as ends, by partition.
        from_start: those of the partitions for which no offset was given as start.
        views: of these partitions.
        isolation: decides where a log ends.
        why_gone: as `TopicLookup.why_gone`.
    """
    by_topic: dict[str, list[tuple[TopicPartition, int, LogOffsets]]] = {}
    for tp, end in ends.items():
        by_topic.setdefault(tp.topic, []).append((tp, end, views[tp].offsets))
    found = []
    for rows in by_topic.values():
        is_later = any(end > edges.log_start_offset for _, end, edges in rows)
        if is_later or all(end == edges.end_offset(isolation) for _, end, edges in rows):
            continue
        for tp, end, edges in rows:
            why = why_gone(tp, end - 1) if tp in from_start and end > 0 else ""
            if why:
                start, log_end = edges.log_start_offset, edges.end_offset(isolation)
                found.append(OffsetOutOfRangeError(str(tp), end - 1, start, log_end, why=why))
    return found


def resolve(
    wanted: OffsetRange,
    planned: OffsetRange,
    earliest: int,
    latest: int,
    loss: DataLoss,
    why_gone: Callable[[TopicPartition, int], str],
) -> OffsetRange:
    """Return the offset range of a piece of a split range, with EARLIEST and LATEST looked up.

    It is the part of the range that lies within the piece.

    So what a range has lost by the time it is read is no loss to its pieces, unless the user gave
    that offset.

    Args:
        wanted: the piece.
        planned: the range that was planned; the same if it was not split.
        earliest: of the partition when it is read.
        latest: of the partition then, exclusive.
        loss: reports a range that starts after its end, or whose records a commit has overwritten;
            nothing of it is read.
        why_gone: as `TopicLookup.why_gone`.

    Raises:
        DataLossError: data loss is not accepted.
    """
    first = {EARLIEST: earliest, LATEST: latest}.get(planned.start, planned.start)
    last = latest if planned.end == LATEST else planned.end
    is_gone = planned.start == EARLIEST and 0 < planned.end <= first
    why = why_gone(planned.topic_partition, last - 1) if is_gone else ""
    if first > last or why:
        loss.report(
            f"{planned.topic_partition} from offset {first} to {last}",
            f"offsets {earliest} to {latest}",
            why or "it starts after its end, so records that it named are gone",
        )
        return OffsetRange(wanted.topic_partition, first, first)
    start = first if wanted.start < 0 else min(max(wanted.start, first), last)
    end = last if wanted.end < 0 else max(min(wanted.end, last), start)
    return OffsetRange(wanted.topic_partition, start, end)


def list_offsets(
    views: Mapping[TopicPartition, LogView],
    times: Mapping[TopicPartition, int],
    isolation: IsolationLevel,
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """Look up offsets by time in views of logs, as `Source.list_offsets` does."""
    found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
    for tp, view in views.items():
        if times[tp] in (EARLIEST, LATEST):
            edge = number(times[tp], view.offsets, isolation)
            found[tp] = OffsetAndTimestamp(edge, NO_TIMESTAMP)
        else:
            end_offset = view.offsets.end_offset(isolation)
            found[tp] = view.offset_for_timestamp(times[tp], end_offset=end_offset)
    return found
