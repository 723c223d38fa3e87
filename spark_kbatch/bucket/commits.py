"""The commits of Spark jobs and mirrors to a cluster in a bucket, as its ledger has them.

A commit has the number of its entry. Entries say where their records begin, but not where the other partitions
of the topics end. So they are read from the newest on, beside the state after it: where a commit begins in a
partition is where the one before ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from spark_kbatch.bucket.entries import (
    Entry,
    LedgerCommit,
    Tombstone,
    TopicDeletion,
    TopicGrowth,
    add_names,
)
from spark_kbatch.bucket.extents import IndexRange
from spark_kbatch.bucket.shared_ledger import SharedLedger
from spark_kbatch.bucket.staging import StagedExtents
from spark_kbatch.errors import ConfigError
from spark_kbatch.model import NO_TRANSACTION_SEQUENCE, TopicPartition
from spark_kbatch.store.commits import ALL_COMMITS, UNKNOWN_AUTHOR, Author, Commit

JOB = "job"  # as which entries name one

_WINDOW = 64  # entries that are read at a time
_NO_SIZE = -1  # of what an index lists, which may be gone


class BucketCommits:
    """The commits to one cluster; a `store.CommitHistory`."""

    def __init__(self, ledger: SharedLedger) -> None:
        """Read from a ledger, which is followed."""
        self._ledger = ledger

    def read(self, topic: str | None = None, numbers: range = ALL_COMMITS) -> Iterator[Commit]:
        """Yield the commits, or only those that touched a topic, newest first; ends at what was collected.

        A topic that was deleted may have its id for a name, where it was created long before, and of its
        partitions those count that were written to since.

        Args:
            topic: which they touched.
            numbers: of the entries to look at. Later ones are not read. Where there are some, a commit's
                `ends` have of its topics the partitions that it or a commit after it, among these, wrote to.
        """
        with self._ledger.state() as state:
            last, names = state.number, {one.topic_id: one.name for one in state.topics.values()}
            ends = {one.topic_id: one.ends for one in state.topics.values()}
        if numbers.stop <= last:
            last, ends = numbers.stop - 1, {}
        walk = _Walk(names, ends)
        for entries in self._ledger.windows(last, _WINDOW, numbers.start):
            add_names(names, entries)  # so that most topics that are gone have names
            for entry in reversed(entries):
                if isinstance(entry.content, Tombstone):
                    return
                commit = walk.back(entry)
                if commit is not None and (topic is None or topic in commit.topics):
                    yield commit

    def numbers(self) -> range:
        """Return the numbers from that of the oldest entry that was not collected to that of the next one."""
        with self._ledger.state() as state:
            last = state.number
        return range(self._ledger.first_entry(last), last + 1)

    def find(self, number: int) -> Commit:
        """Return the commit with this number; all that came later are read.

        Raises:
            ConfigError: there is none, or its entry was collected.
        """
        for commit in self.read():
            if commit.number == number:
                return commit
            if commit.number < number:
                break
        first = self.numbers().start
        if number < first:
            raise ConfigError(
                f"commit {number} is no longer kept: the ledger has entries from {first} on, since maintenance "
                "keeps those of about a week"
            )
        raise ConfigError(f"there is no commit {number}: no entry of that number is one")


class _Walk:
    """The ends of all partitions, on the way from the newest entry to the oldest."""

    def __init__(self, names: Mapping[str, str], ends: dict[str, dict[int, int]]) -> None:
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
            for topic_id, stretches in content.stretches.items():
                self._ends.setdefault(topic_id, {}).update(
                    {one.partition: one.next_offset for one in stretches}
                )
            found = _commit_of(entry, content, self._names, self._ends)
            for topic_id, stretches in content.stretches.items():
                self._ends[topic_id].update({one.partition: one.base_offset for one in stretches})
        return found


def _commit_of(
    entry: Entry,
    content: LedgerCommit,
    names: Mapping[str, str],
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
    stretches = [
        (TopicPartition(names.get(topic_id, topic_id), one.partition), one)
        for topic_id, of_topic in content.stretches.items()
        for one in of_topic
    ]
    sizes = [
        _NO_SIZE if isinstance(one.placed, IndexRange) else sum(e.size_in_bytes for e in one.placed)
        for _, one in stretches
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
        records_count=sum(one.records_count for _, one in stretches),
        size_in_bytes=_NO_SIZE if _NO_SIZE in sizes else sum(sizes),
        offsets={tp: (one.base_offset, one.next_offset) for tp, one in stretches},
        ends={
            TopicPartition(names.get(topic_id, topic_id), partition): end
            for topic_id in {*content.stretches, *content.starts}
            for partition, end in ends.get(topic_id, {}).items()
        },
    )


def summary_of(entry: Entry, names: Mapping[str, str], staged: Iterable[StagedExtents]) -> str:
    """Return one line about a commit that was just written: its job, number of records, bytes and offsets.

    Args:
        entry: of a job or a mirror.
        names: of its topics, by id.
        staged: what it commits.
    """
    assert isinstance(entry.content, LedgerCommit)
    commit = _commit_of(entry, entry.content, names, {})
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
