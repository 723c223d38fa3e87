"""The commits of Spark jobs and mirrors, as a ledger has them.

A commit has the number of its entry. Entries say where their records begin, but not where the other partitions
of the topics end. So they are read from the newest on, beside the state after it: where a commit begins in a
partition is where the one before ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spark_kbatch.ledger.entries import Entry, LedgerCommit, NamesById, TopicDeletion, TopicGrowth
from spark_kbatch.ledger.extents import DataExtent, IndexRange
from spark_kbatch.model import NO_TRANSACTION_SEQUENCE, TopicPartition
from spark_kbatch.store.commits import UNKNOWN_AUTHOR, Author, Commit

JOB = "job"  # as which entries name one

_NO_SIZE = -1  # of what an index lists, which may be gone


class CommitWalk:
    """The ends of all partitions, on the way from the newest entry to the oldest."""

    def __init__(self, names: NamesById, ends: dict[str, dict[int, int]]) -> None:
        """Begin after the newest entry, with names of topics by id, and what is known of their ends."""
        self._names, self._ends = names, ends  # by topic id, then partition

    def back(self, entry: Entry) -> Commit | None:
        """Go to before an entry; return the commit that it is, None if it is none."""
        content, found = entry.content, None
        if isinstance(content, TopicDeletion):
            self._ends[content.topic_id] = {}  # one of that id may have been created since
        elif isinstance(content, TopicGrowth):
            of_topic = self._ends.get(content.topic_id, {})
            for number in sorted(of_topic)[-len(content.first_offsets) :]:
                del of_topic[number]
        elif isinstance(content, LedgerCommit):
            for topic_id, starts in content.starts.items():
                # Where nothing is known of a partition, it ends at its start, or after it.
                self._ends[topic_id] = {**starts, **self._ends.get(topic_id, {})}
            for topic_id, appends in content.appends.items():
                self._ends.setdefault(topic_id, {}).update(
                    {one.partition: one.next_offset for one in appends}
                )
            found = _commit_of(entry, content, self._names, self._ends)
            for topic_id, appends in content.appends.items():
                self._ends[topic_id].update({one.partition: one.base_offset for one in appends})
        return found


def _commit_of(
    entry: Entry,
    content: LedgerCommit,
    names: NamesById,
    ends: Mapping[str, Mapping[int, int]],
) -> Commit | None:
    """Return the commit that an entry is; None if it is a producer's.

    Args:
        entry: which.
        content: of the entry.
        names: of topics, by id.
        ends: of all partitions after the entry, by topic id, as far as known.
    """
    author = _author_of(entry.by)
    if author is None and content.mirror is None:
        return None
    appends = [
        (TopicPartition(names[topic_id], one.partition), one)
        for topic_id, of_topic in content.appends.items()
        for one in of_topic
    ]
    sizes = [
        _NO_SIZE if isinstance(one.placed, IndexRange) else sum(e.size_in_bytes for e in one.placed)
        for _, one in appends
    ]
    transactional_id, sequence = entry.entry_id, NO_TRANSACTION_SEQUENCE
    if content.micro_batch is not None:
        transactional_id, sequence = content.micro_batch
    elif content.mirror is not None:
        transactional_id = content.mirror.name
    return Commit(
        number=entry.number,
        time_ms=entry.time_ms,
        overwrite=bool(content.starts),
        transactional_id=transactional_id,
        sequence=sequence,
        author=author or UNKNOWN_AUTHOR,
        records_count=sum(one.records_count for _, one in appends),
        size_in_bytes=_NO_SIZE if _NO_SIZE in sizes else sum(sizes),
        offsets={tp: (one.base_offset, one.next_offset) for tp, one in appends},
        ends={
            TopicPartition(names[topic_id], partition): end
            for topic_id in {*content.appends, *content.starts}
            for partition, end in ends.get(topic_id, {}).items()
        },
    )


def summary_of(
    entry: Entry, names: Mapping[str, str], staged: Iterable[Mapping[Any, Sequence[DataExtent]]]
) -> str:
    """Return one line about a commit that was just written: its job, number of records, bytes and offsets.

    Args:
        entry: of a job or a mirror.
        names: of its topics, by id.
        staged: what it commits.
    """
    assert isinstance(entry.content, LedgerCommit)
    commit = _commit_of(entry, entry.content, NamesById(names), {})
    assert commit is not None
    size = sum(e.size_in_bytes for one in staged for extents in one.values() for e in extents)
    return commit._replace(size_in_bytes=size).summary()


def _author_of(by: str) -> Author | None:
    """Return the author that a job's entry names; None if no job wrote the entry."""
    who, *words = by.split(" ")
    if who != JOB:
        return None
    user = words.pop().rpartition("@")[0] if "@" in by else ""  # no earlier entry has it
    return Author(*words[:2])._replace(user=user)
