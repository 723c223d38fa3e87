"""Start and end of a read in plain Python, checked against what the logs hold.

A bound is an offset, "earliest" or "latest", or one of these for each partition. All partitions are
checked before the first record is read, so that a bound which only some of them have fails early.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spark_kbatch.errors import ConfigError, OffsetOutOfRangeError
from spark_kbatch.model import INT_MAX, IsolationLevel, LogOffsets, OffsetRange, TopicPartition
from spark_kbatch.options import arguments

# Where a range starts or ends: for all partitions, or by their numbers.
OffsetBound = int | str | Mapping[int, int | str]


def ranges(
    edges: Mapping[TopicPartition, LogOffsets],
    start: Any,
    end: Any,
    isolation: IsolationLevel,
    why_unreadable: Callable[[TopicPartition, int], OffsetOutOfRangeError | None],
) -> list[OffsetRange]:
    """Return the range to read of each partition.

    Args:
        edges: of the partitions to read.
        start: first offset to read, or "earliest"; or one for each partition.
        end: offset to stop before, or "latest"; or one for each partition.
        isolation: decides where a log ends.
        why_unreadable: called for an offset below the log start, which may still be there for reads
            that know of it; returns the error if it is not, else None.

    Raises:
        ConfigError: not a bound; or a start that is greater than the end.
        OffsetOutOfRangeError: partitions do not hold these offsets; names all of them.
    """
    starts = _by_partition("start", start, "earliest", list(edges))
    ends = _by_partition("end", end, "latest", list(edges))
    found, lacking = [], []
    for tp, held in edges.items():
        log_end = held.end_offset(isolation)
        wanted = OffsetRange(
            tp,
            held.log_start_offset if starts[tp] is None else starts[tp],
            log_end if ends[tp] is None else ends[tp],
        )
        found.append(wanted)
        if max(wanted.start, wanted.end) > log_end:
            past = wanted.start if wanted.start > log_end else wanted.end
            lacking.append(OffsetOutOfRangeError(str(tp), past, held.log_start_offset, log_end))
            continue
        _ensure_ordered(wanted, starts[tp], ends[tp])
        if wanted.start < min(held.log_start_offset, wanted.end):
            error = why_unreadable(tp, wanted.start)
            lacking += [error] if error is not None else []
    if lacking:
        raise _of_all(lacking)
    return found


def _by_partition(
    name: str, bound: Any, word: str, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, Any]:
    """Return the bound of each partition; None for the word, which stands for the log's own."""
    if not isinstance(bound, Mapping):
        return dict.fromkeys(partitions, _offset(name, bound, word))
    for number in bound:
        arguments.whole_number(f"a partition in {name}", number, 0, INT_MAX)
    numbers = {tp.partition for tp in partitions}
    if set(bound) != numbers:
        raise ConfigError(
            f"{name} names the partitions {_listed(bound)}, but what is read has {_listed(numbers)}: "
            "name each partition that is read, and no other"
        )
    return {tp: _offset(f"{name} of {tp}", bound[tp.partition], word) for tp in partitions}


def _offset(name: str, bound: Any, word: str) -> int | None:
    accepts = f"{word!r}, or an offset from 0 on"
    if isinstance(bound, str):
        if bound != word:
            arguments.refuse(name, bound, accepts)
        return None
    try:
        return arguments.whole_number(name, bound, 0)
    except ConfigError:
        arguments.refuse(name, bound, f"{accepts}; `list_offsets` finds the offset of a time")


def _ensure_ordered(wanted: OffsetRange, start: int | None, end: int | None) -> None:
    if wanted.start <= wanted.end:
        return
    whence = "" if start is not None else ", where its log starts"
    assert end is not None  # at the log's end there is no start after it
    raise ConfigError(
        f"start of {wanted.topic_partition} is {wanted.start}{whence}, after its end, {wanted.end}; "
        "give an end that is the same or greater"
    )


def _of_all(lacking: Sequence[OffsetOutOfRangeError]) -> OffsetOutOfRangeError:
    """Return the first error, with the others named in its text."""
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


def _listed(numbers: Any) -> str:
    return ", ".join(map(str, sorted(numbers))) or "none"
