"""A check, with few reads, which of many partitions may have changed since they were last looked at.

Fetches wait for partitions that other processes may append to, and those notify no one. So all that is
waited for is looked at again and again, mostly to find that nothing has happened. The bytes of its states
tell that without opening any of them:

    each replica's kbatch.state      an append, a roll, a truncation, the flip of a commit
    partitions/TOPIC/P.json          another leader or ISR; only where there are several replicas
    the state of __transaction_state a commit that is decided, of whatever partitions, or complete

Sequence numbers in them only grow, so the same bytes mean the same state. A topic that was deleted or
recreated has another Partition, or none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from spark_kbatch.errors import KBatchError
from spark_kbatch.files import Files
from spark_kbatch.log.state import read_all_slots
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import TRANSACTION_STATE_TOPIC
from spark_kbatch.replica.partition import Partition
from spark_kbatch.replica.paths import ClusterPaths

_COMMITS = TopicPartition(TRANSACTION_STATE_TOPIC, 0)


class FindPartitions(Protocol):
    """A function that returns the objects for partitions of topics that exist now."""

    def __call__(
        self, topic_partitions: Iterable[TopicPartition], /
    ) -> Mapping[TopicPartition, Partition]:
        """Return the object for each partition; raise UnknownTopicOrPartitionError if one does not exist."""


class WatchedLogs:
    """A watch for changes in the partitions that fetches wait for.

    It is used by one thread at a time.
    """

    def __init__(self, files: Files, paths: ClusterPaths, find: FindPartitions) -> None:
        self._files, self._paths, self._find = files, paths, find
        # Of the last call. A topic that does not exist has no partitions.
        self._partitions: dict[TopicPartition, Partition] = {}
        self._directories: list[str] = []  # of all replicas, in the same order
        self._data: list[object] = []  # bytes of each directory's state, then of what else tells
        self._asked: Collection[TopicPartition] = ()

    def changed(self, topic_partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions that may have changed since the last call, or were not in that call.

        Each is looked at once. If a commit was decided or completed, all may.
        """
        partitions, data = self._partitions, self._data
        asked, self._asked = self._asked, list(topic_partitions)
        try:
            self._look()
        except (OSError, KBatchError):  # a read of them finds out what is wrong
            self._partitions, self._directories, self._data = {}, [], []
            return self._asked
        is_same = self._partitions == partitions
        if is_same and self._data == data and self._asked == asked:
            return []  # nearly always
        before, now = _by_partition(partitions, data), _by_partition(self._partitions, self._data)
        known = set(asked)
        if before.get(_COMMITS) != now.get(_COMMITS):
            return self._asked
        return [tp for tp in self._asked if tp not in known or before.get(tp) != now.get(tp)]

    def _look(self) -> None:
        by_topic: dict[str, list[TopicPartition]] = {_COMMITS.topic: [_COMMITS]}
        for tp in self._asked:
            by_topic.setdefault(tp.topic, []).append(tp)
        found: dict[TopicPartition, Partition] = {}
        for of_topic in by_topic.values():
            with contextlib.suppress(OSError, KBatchError):
                found.update(self._find(of_topic))
        if found != self._partitions:
            self._partitions = found
            self._directories = [path for one in found.values() for path in one.directories]
        data: list[object] = [*read_all_slots(self._files, self._directories)]
        if len(data) > len(self._partitions):  # some have several replicas
            data += [
                self._files.fingerprint(self._paths.partition_file(tp))
                for tp, one in self._partitions.items()
                if one.only_log is None
            ]
        self._data = data


def _by_partition(
    partitions: Mapping[TopicPartition, Partition], data: Sequence[object]
) -> dict[TopicPartition, tuple[object, ...]]:
    """Return, for each partition, the data read from disk whose change shows that the partition changed."""
    found, start = dict[TopicPartition, tuple[object, ...]](), 0
    rest = iter(data[sum(len(one.directories) for one in partitions.values()) :])
    for tp, one in partitions.items():
        end = start + len(one.directories)
        found[tp] = one, *data[start:end], None if one.only_log is not None else next(rest)
        start = end
    return found
