"""The history of a cluster in a bucket: the commits of Spark jobs and mirrors, and all entries in words."""

from __future__ import annotations

from collections.abc import Iterator

from spark_kbatch.bucket.shared_ledger import SharedLedger
from spark_kbatch.bucket.urls import checked, ledger_at
from spark_kbatch.errors import ConfigError
from spark_kbatch.ledger.audit import AuditEntry, audited
from spark_kbatch.ledger.commits import CommitWalk
from spark_kbatch.ledger.entries import Tombstone
from spark_kbatch.options.object_store import NO_STORE_OPTIONS, StoreOptions
from spark_kbatch.store.commits import ALL_COMMITS, Commit

_WINDOW = 64  # entries that are read at a time
_SHOWN_WINDOW = 16  # entries, of which each window is shown from its end


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
            last, names = state.number, state.topic_names
            ends = {topic_id: state.ends(topic_id) for topic_id in state.topics}
        if numbers.stop <= last:
            last, ends = numbers.stop - 1, {}
        walk = CommitWalk(names, ends)
        for entries in self._ledger.windows(last, _WINDOW, numbers.start):
            names.add(entries)  # so that most topics that are gone have names
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
        found = next((one for one in self.read() if one.number <= number), None)
        if found is not None and found.number == number:
            return found
        first = self.numbers().start
        if number < first:
            raise ConfigError(
                f"commit {number} is no longer kept: the ledger has entries from {first} on, since maintenance "
                "keeps those of about a week"
            )
        raise ConfigError(f"there is no commit {number}: no entry of that number is one")


class AuditLog:
    """The entries of the cluster at one URL, as they are when it is opened."""

    def __init__(self, url: str, options: StoreOptions = NO_STORE_OPTIONS) -> None:
        """Read the ledger; raises as `BucketStore`."""
        self.address = checked(url)
        self._ledger = ledger_at(self.address, options)
        self.last = self._ledger.state.number  # of the newest entry; -1 if there is none
        self._names = self._ledger.state.topic_names

    def newest_first(self) -> Iterator[AuditEntry]:
        """Yield all entries; raises CorruptLedgerError for one that is missing or damaged."""
        for entries in self._ledger.windows(self.last, _SHOWN_WINDOW):
            yield from audited(entries, self._names)

    def at(self, number: int) -> AuditEntry | None:
        """Return the entry with a number; None if the ledger ends before it."""
        if number > self.last:
            return None
        return audited([*self._ledger.entries(number, number)], self._names)[0]

    def of_id(self, entry_id: str) -> AuditEntry | None:
        """Return the entry with an id, for which all are looked at; None if none has it."""
        return next((one for one in self.newest_first() if one.entry.entry_id == entry_id), None)


def newest_of(ledger: SharedLedger, count: int) -> list[AuditEntry]:
    """Return the newest entries of an open cluster, newest first, by a request for each.

    Raises as `AuditLog.newest_first`.
    """
    with ledger.state() as state:
        topics = state.topic_names
    return audited(next(ledger.windows(state.number, count), []), topics)
