"""Start and end of a read in plain Python, checked against what the logs hold.

A bound is an offset, a time, "earliest" or "latest", or one of these for each partition. All partitions
are checked before the first record is read, so that a bound which only some of them have fails early.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from spark_kbatch.consumer import planning
from spark_kbatch.errors import ConfigError, OffsetOutOfRangeError
from spark_kbatch.model import INT_MAX, IsolationLevel, OffsetRange, TopicPartition
from spark_kbatch.options import arguments
from spark_kbatch.store.source import LogView

# An offset, a time, or a word.
OneBound = int | str | datetime.datetime
# Where a range starts or ends: for all partitions, or for each, by (topic, number), or by number in one topic.
OffsetBound = OneBound | Mapping[Any, OneBound]


def ranges(
    views: Mapping[TopicPartition, LogView],
    start: Any,
    end: Any,
    isolation: IsolationLevel,
    why_unreadable: Callable[[TopicPartition, int], OffsetOutOfRangeError | None],
    why_gone: Callable[[TopicPartition, int], str],
) -> list[OffsetRange]:
    """Return each partition's range of offsets to read, between the start and the end of a read.

    Args:
        views: of the partitions to read.
        start: first offset to read, or "earliest"; or one for each partition. A time stands for the
            first record with that time or a later one, or the end if there is none.
        end: offset to stop before, or "latest"; or one for each partition; times as for `start`.
        isolation: decides where a log ends.
        why_unreadable: called for an offset below the log start, which may still be there for reads
            that know of it; returns the error if it is not, else None.
        why_gone: as `TopicLookup.why_gone`.

    Raises:
        ConfigError: not a bound; or a start that is greater than the end.
        OffsetOutOfRangeError: partitions do not hold these offsets, or all that they ended before was
            overwritten; names all of them.
    """
    starts = _by_partition("start", start, "earliest", list(views))
    ends = _by_partition("end", end, "latest", list(views))
    given = {tp: end for tp, end in ends.items() if isinstance(end, int)}
    from_start = {tp for tp in given if not isinstance(starts[tp], int)}
    lacking = planning.overwritten(given, from_start, views, isolation, why_gone)
    if lacking:
        raise _of_all(lacking)
    found = []
    for tp, view in views.items():
        log_start, log_end = view.offsets.log_start_offset, view.offsets.end_offset(isolation)
        wanted = OffsetRange(
            tp,
            _resolved(starts[tp], log_start, view, log_end),
            _resolved(ends[tp], log_end, view, log_end),
        )
        found.append(wanted)
        if max(wanted.start, wanted.end) > log_end:
            past = wanted.start if wanted.start > log_end else wanted.end
            lacking.append(OffsetOutOfRangeError(str(tp), past, log_start, log_end))
            continue
        _ensure_ordered(wanted, starts[tp], ends[tp])
        if wanted.start < min(log_start, wanted.end):
            error = why_unreadable(tp, wanted.start)
            lacking += [error] if error is not None else []
    if lacking:
        raise _of_all(lacking)
    return found


_Bound = int | datetime.datetime | None  # None is the log's own start or end


def _resolved(bound: _Bound, edge: int, view: LogView, log_end: int) -> int:
    if isinstance(bound, datetime.datetime):
        time_ms = max(arguments.time_ms("a bound", bound, up=True), 0)
        record = view.offset_for_timestamp(time_ms, end_offset=log_end)
        return log_end if record is None else record.offset
    return edge if bound is None else bound


def _by_partition(
    name: str, bound: Any, word: str, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, _Bound]:
    if not isinstance(bound, Mapping):
        return dict.fromkeys(partitions, _one(name, bound, word))
    topics = {tp.topic for tp in partitions}
    given = {_partition(name, key, topics): one for key, one in bound.items()}
    if given.keys() != set(partitions):
        raise ConfigError(
            f"{name} names the partitions {_listed(given)}, but what is read has {_listed(partitions)}: "
            "name each partition that is read, and no other"
        )
    return {tp: _one(f"{name} of {tp}", given[tp], word) for tp in partitions}


def _partition(name: str, key: Any, topics: set[str]) -> TopicPartition:
    what = f"a partition in {name}"
    if isinstance(key, tuple):
        return arguments.topic_partition(what, key)
    number = arguments.whole_number(what, key, 0, INT_MAX)
    if len(topics) > 1:
        arguments.refuse(what, key, 'partitions of several topics as ("topic", number)')
    (topic,) = topics or {""}
    return TopicPartition(topic, number)


def _one(name: str, bound: Any, word: str) -> _Bound:
    accepts = f"{word!r}, an offset from 0 on, or a time as a datetime with a time zone"
    if isinstance(bound, datetime.datetime):
        arguments.time_ms(name, bound)  # has a time zone
        return bound
    if isinstance(bound, str):
        if bound != word:
            arguments.refuse(name, bound, accepts)
        return None
    try:
        return arguments.whole_number(name, bound, 0)
    except ConfigError:
        arguments.refuse(name, bound, accepts)


def _ensure_ordered(wanted: OffsetRange, start: _Bound, end: _Bound) -> None:
    if wanted.start <= wanted.end:
        return
    whence = (
        ", where its log starts" if start is None
        else f", by its time {start}" if isinstance(start, datetime.datetime)
        else ""
    )  # fmt: skip
    until = f", by its time {end}" if isinstance(end, datetime.datetime) else ""
    raise ConfigError(
        f"start of {wanted.topic_partition} is {wanted.start}{whence}, after its end, {wanted.end}{until}; "
        "give an end that is the same or greater"
    )


def _of_all(lacking: Sequence[OffsetOutOfRangeError]) -> OffsetOutOfRangeError:
    """Return the first of several partitions' errors, with the others named in its text."""
    first, *others = lacking
    if not others:
        return first
    rest = ", ".join(
        f"{other.topic_partition} ({other.log_start_offset} to {other.log_end_offset})"
        for other in others
    )
    why = f"{first.why and f'{first.why}; '}out of range, too, in {rest}"
    return OffsetOutOfRangeError(
        first.topic_partition, first.offset, first.log_start_offset, first.log_end_offset, why=why
    )


def _listed(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(partitions))) or "none"
