"""Lists of topics while some are damaged, or are deleted meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from spark_kbatch.errors import KafkaStorageError, UnknownTopicOrPartitionError
from spark_kbatch.options.topic import Topic

_Result = TypeVar("_Result")


def existing(find: Callable[[str], Topic], names: Iterable[str]) -> list[Topic]:
    """Return the topics with these names, without those deleted since the names were listed."""
    found = []
    for name in names:
        with contextlib.suppress(UnknownTopicOrPartitionError):
            found.append(find(name))
    return found


def damaged_topics(
    find: Callable[[str], Topic], names: Iterable[str]
) -> dict[str, KafkaStorageError]:
    """Return those of the named topics whose files are damaged, with the errors."""
    found = {}
    for name in names:
        try:
            find(name)
        except UnknownTopicOrPartitionError:
            continue
        except KafkaStorageError as error:
            found[name] = error
    return found


def skipping_deleted(
    find: Callable[[str], Topic], names: Sequence[str], work: Callable[[list[str]], _Result]
) -> _Result:
    """Call `work` with the named topics that exist, again if one is deleted meanwhile; return its result."""
    while True:
        found = existing(find, names)
        try:
            return work([topic.name for topic in found])
        except UnknownTopicOrPartitionError:
            if existing(find, names) == found:
                raise
