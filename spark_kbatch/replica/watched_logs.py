"""A check, with few reads, which of many partitions may have changed since they were last looked at.

Fetches wait for partitions that other processes may append to, and those notify no one. So all that is
waited for is looked at again and again, mostly to find that nothing has happened. The bytes of its states
tell that without opening any of them:

    each replica's kbatch.state      an append, a roll, a truncation, the flip of a commit
    partitions/TOPIC/P.json          another leader or ISR; only where there are several replicas
    the state of __transaction_state a commit that is decided, of whatever partitions, or complete

Sequence numbers in them only grow, so the same bytes mean the same state. A topic that was deleted or
recreated has another Partition, or none.

A look reads the states of at most LOOKS_MAX partitions, so that waiting for thousands costs no more than
waiting for that many: it looks at those that changed lately, and at the next ones in turn. Commits are
found by each look, whatever their partitions.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from spark_kbatch.catalog.paths import ClusterPaths
from spark_kbatch.errors import KBatchError
from spark_kbatch.files import Files
from spark_kbatch.log.state import compact, read_all_slots
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import TRANSACTION_STATE_TOPIC
from spark_kbatch.replica.partition import Partition

LOOKS_MAX = 64  # partitions of one look: of 4,000 that are idle each has its turn every 4 s
_KEPT_MAX = 10_000  # partitions that are not waited for now, of some 500 bytes
_LATELY_MAX = 14  # partitions that changed lately, and are in each look

_COMMITS = TopicPartition(TRANSACTION_STATE_TOPIC, 0)


# Returns the object for each partition; raises UnknownTopicOrPartitionError if one does not exist now.
FindPartitions: TypeAlias = Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, Partition]]


class WatchedLogs:
    """A watch for changes in the partitions that fetches wait for.

    It is used by one thread at a time.
    """

    def __init__(self, files: Files, paths: ClusterPaths, find: FindPartitions) -> None:
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
