"""Which of many partitions may have changed since they were looked at last, found with few reads.

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
import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol, TypeAlias

from spark_kbatch.errors import KBatchError
from spark_kbatch.files import Files
from spark_kbatch.log.state import read_all_slots
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import TRANSACTION_STATE_TOPIC
from spark_kbatch.replica.partition import Partition
from spark_kbatch.replica.paths import ClusterPaths

_COMMITS = TopicPartition(TRANSACTION_STATE_TOPIC, 0)


class FindPartitions(Protocol):
    """The partitions of the topics that the disk has now."""

    def __call__(
        self, topic_partitions: Iterable[TopicPartition], /
    ) -> Mapping[TopicPartition, Partition]:
        """Return them; raise UnknownTopicOrPartitionError if one does not exist."""


# A partition, and the bytes that tell of its changes; nothing if its topic does not exist.
_Seen: TypeAlias = tuple[object, ...]
_NOTHING: _Seen = ()


class WatchedLogs:
    """The partitions that someone waits for. Used by one thread at a time."""

    def __init__(self, files: Files, paths: ClusterPaths, find: FindPartitions) -> None:
        self._files, self._paths, self._find = files, paths, find
        self._seen: dict[TopicPartition, _Seen] = {}  # of the last call

    def changed(self, topic_partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Return those that may show something else than in the last call, or were not in that.

        Each is looked at once. If a commit was decided or completed, all may.
        """
        try:
            found = self._look({_COMMITS, *topic_partitions})
        except (OSError, KBatchError):  # whoever reads them finds out what is wrong
            self._seen = {}
            return list(topic_partitions)
        before, self._seen = self._seen, found
        if before.get(_COMMITS) != found[_COMMITS]:
            return list(topic_partitions)
        return [tp for tp in topic_partitions if before.get(tp) != found[tp]]

    def _look(self, wanted: Collection[TopicPartition]) -> dict[TopicPartition, _Seen]:
        by_topic: dict[str, list[TopicPartition]] = {}
        for tp in wanted:
            by_topic.setdefault(tp.topic, []).append(tp)
        partitions: dict[TopicPartition, Partition] = {}
        for of_topic in by_topic.values():
            with contextlib.suppress(OSError, KBatchError):
                partitions.update(self._find(of_topic))
        directories = [path for one in partitions.values() for path in one.directories]
        slots = read_all_slots(self._files, directories)
        found: dict[TopicPartition, _Seen] = dict.fromkeys(wanted, _NOTHING)
        for tp, one in partitions.items():
            if one.only_log is not None:
                found[tp] = one, next(slots)
            else:
                of_replicas = itertools.islice(slots, len(one.directories))
                leadership = self._files.fingerprint(self._paths.partition_file(tp))
                found[tp] = one, leadership, *of_replicas
        return found
