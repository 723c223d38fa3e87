"""The offset at which each leader epoch of one replica started: `leader-epoch-checkpoint`.

    epochs = LeaderEpochCache.read(files, directory)
    epochs.assign(3, log_end_offset)            a new leader; replaces the file, flushed
    epochs.end_offset_for(2, log_end_offset)    where a follower's epoch 2 ends here

Epochs and start offsets both increase from entry to entry. A batch belongs to the last entry whose start
offset is not above its base offset.

Source: Kafka storage/.../epoch/LeaderEpochFileCache.java.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from pathlib import Path

from spark_kbatch.files import Files
from spark_kbatch.log.checkpoints import (
    LEADER_EPOCHS,
    EpochEntry,
    read_leader_epochs,
    write_leader_epochs,
)

UNDEFINED_EPOCH = -1
UNDEFINED_EPOCH_OFFSET = -1


class LeaderEpochCache:
    """The leader epochs of one replica, with their start offsets, as in leader-epoch-checkpoint.

    Writers hold the partition's lock; readers need none.
    """

    def __init__(self, files: Files, directory: Path, entries: Iterable[EpochEntry]) -> None:
        self._files, self._directory = files, directory
        # Replaced whole, so that a reader always sees one consistent list.
        self.entries = tuple(entries)

    @classmethod
    def read(cls, files: Files, directory: Path) -> LeaderEpochCache:
        """Read the leader-epoch-checkpoint file of a partition's directory.

        Raises:
            FileNotFoundError: there is no such file.
            KafkaStorageError: the file is damaged.
        """
        return cls(files, directory, read_leader_epochs(files, directory))

    @property
    def latest_epoch(self) -> int:
        """The replica's latest leader epoch; UNDEFINED_EPOCH if there is none."""
        return self.entries[-1].epoch if self.entries else UNDEFINED_EPOCH

    def epoch_for(self, offset: int) -> int:
        """Return the leader epoch of a batch that starts at `offset`; UNDEFINED_EPOCH before the first."""
        at = bisect.bisect_right(self.entries, offset, key=lambda entry: entry.start_offset) - 1
        return self.entries[at].epoch if at >= 0 else UNDEFINED_EPOCH

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEntry:
        """Return the largest known leader epoch up to `epoch`, and its end offset, exclusive.

        Both are UNDEFINED if `epoch` is above all known epochs. An epoch below all of them is returned
        itself, ending where the first one starts.
        Source: LeaderEpochFileCache.endOffsetFor.
        """
        if epoch == UNDEFINED_EPOCH or epoch > self.latest_epoch:
            return EpochEntry(UNDEFINED_EPOCH, UNDEFINED_EPOCH_OFFSET)
        if epoch == self.latest_epoch:
            return EpochEntry(epoch, log_end_offset)
        above = bisect.bisect_right(self.entries, epoch, key=lambda entry: entry.epoch)
        floor = self.entries[above - 1].epoch if above else epoch
        return EpochEntry(floor, self.entries[above].start_offset)

    def reaches(self, epoch: int, offset: int, log_end_offset: int) -> bool:
        """Return False if leader epoch `epoch` ends below an offset: a log with more of it has another history."""
        end = self.end_offset_for(epoch, log_end_offset).start_offset
        return end == UNDEFINED_EPOCH_OFFSET or end >= offset

    def agree_until(self, other: LeaderEpochCache, start: int, end: int) -> int:
        """Return the first offset from `start` on whose leader epoch is another one in `other`; or `end`."""
        # Where one starts that both have, they are equal.
        starts = {entry.start_offset for entry in {*self.entries} ^ {*other.entries}}
        for offset in sorted({start, *(one for one in starts if start < one)}):
            if offset < end and self.epoch_for(offset) != other.epoch_for(offset):
                return offset
        return end

    def take_over(self, leader: LeaderEpochCache, end_offset: int) -> None:
        """Replace the epochs, on disk, by those of a leader with which the log agrees up to its end."""
        self._replace([entry for entry in leader.entries if entry.start_offset <= end_offset])

    def assign(self, epoch: int, start_offset: int) -> None:
        """Record on disk that leader epoch `epoch` starts at `start_offset`; drop entries that contradict it.

        Nothing changes if it is the latest epoch already and starts no later; whoever wrote that may have
        died before it was on disk.

        Raises:
            ValueError: a negative number.
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"epoch {epoch} at offset {start_offset}; both are 0 or more")
        if self.entries and self.latest_epoch == epoch:
            if self.entries[-1].start_offset <= start_offset:
                self.flush()
                return
        kept = list(self.entries)
        while kept and (kept[-1].epoch >= epoch or kept[-1].start_offset >= start_offset):
            kept.pop()
        self._replace([*kept, EpochEntry(epoch, start_offset)])

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove the leader epochs that start at or after `end_offset`, from the file as well."""
        self._replace([entry for entry in self.entries if entry.start_offset < end_offset])

    def truncate_from_start(self, first_offset: int) -> None:
        """Remove the leader epochs whose batches all end at or before `first_offset`, from the file as well.

        The epoch that covers `first_offset` stays, and keeps its start.
        Source: LeaderEpochFileCache.truncateFromStart, which raises that start to `first_offset`.
        """
        before = bisect.bisect_right(self.entries, first_offset, key=lambda one: one.start_offset)
        self._replace(list(self.entries[max(before - 1, 0) :]))

    def flush(self) -> None:
        """Flush the file, whichever process wrote it."""
        self._files.flush([self._directory / LEADER_EPOCHS, self._directory])

    def _replace(self, entries: list[EpochEntry]) -> None:
        if tuple(entries) != self.entries:
            write_leader_epochs(self._files, self._directory, entries)
            self.entries = tuple(entries)
