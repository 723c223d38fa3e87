"""The segments of one log, as its recorded state shows them to recovery and the producer state.

    segments = LogSegments(files, directory, topic_partition, config)
    bases = segments.bases(state)       # base offsets
    segments.view(state, bases, 0)      # the first segment, as far as the state shows it

Nothing is written here, and nothing stays open. A segment before the active one ends where its file
ends; of the active one, as much counts as the state says.

Source: Kafka storage/.../log/LogSegments.java.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from pathlib import Path

from spark_kbatch.errors import KafkaStorageError
from spark_kbatch.files import Files
from spark_kbatch.log.segment import (
    Segment,
    SegmentView,
    base_offset_of,
    first_made_name,
    log_name,
    segment_at,
)
from spark_kbatch.log.state import STATE_FILE, LogState, boot_id
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import TopicConfig


class LogSegments:
    """The segments in a log's directory, as a recorded state of the log shows them.

    Any number of threads may use it.
    """

    def __init__(
        self,
        files: Files,
        directory: Path,
        topic_partition: TopicPartition,
        config: TopicConfig,
    ) -> None:
        self.files = files
        self.directory = directory
        self.topic_partition = topic_partition
        self.config = config
        # What `bases` returned last, and for what; replaced whole.
        self._listed: tuple[object, list[int]] = (None, [])

    def bases(self, state: LogState) -> list[int]:
        """Return the base offsets of the log's segments, ascending; the last is the active segment's.

        Do not change the list. A list is used again while the directory holds the same names and the
        state names the same first offset, active segment and epoch. Either condition alone would do but
        for two cases: a directory that changes twice within the resolution of its clock looks unchanged,
        but a segment was rolled, which the state tells; and a log that was truncated may roll at an old
        offset again, but that takes longer than the clock's resolution.

        Raises:
            KafkaStorageError: the directory is gone.
            OSError: a link is in its place. It may lead to a private log of the reader's.
        """
        known, bases = self._listed
        try:
            version = self.files.version(self.directory)
            key = (version, state.segment_base_offset, state.log_start_offset, state.leader_epoch)
            names = self.files.list(self.directory) if known != key else ()
        except FileNotFoundError as error:
            raise self.gone(self.directory) from error
        if known != key:
            every = map(base_offset_of, names)
            active = state.segment_base_offset
            bases = [base for base in every if base is not None and base <= active]
            self._listed = key, bases
        return bases

    def bases_with_active(self, state: LogState) -> list[int]:
        """Return the base offsets of the log's segments; raise if the active one is missing.

        Raises:
            KafkaStorageError: the active segment is missing.
        """
        bases = self.bases(state)
        if not bases or bases[-1] != state.segment_base_offset:
            raise KafkaStorageError(f"{self.active(state).log} is missing: it has the log's end")
        return bases

    def sizes(self, state: LogState, bases: Sequence[int], *, if_gone: int = 0) -> list[int]:
        """Return the sizes in bytes of the segments at `bases`; `if_gone` for one whose file is gone."""
        active = state.segment_base_offset
        found = self.files.sizes(self.directory, map(log_name, bases))
        return [
            state.segment_size if base == active else size if size >= 0 else if_gone
            for base, size in zip(bases, found, strict=True)
        ]

    def active(self, state: LogState) -> SegmentView:
        """Return a view of the active segment, up to the end that the log's state records."""
        return SegmentView(
            segment_at(self.directory, state.segment_base_offset), state.log_end_offset,
            state.segment_size, state.index_size, state.time_index_size,
        )  # fmt: skip

    def view(self, state: LogState, bases: Sequence[int], at: int) -> SegmentView:
        """Return a view of the segment that starts at bases[at], up to its end in the log's state."""
        base = bases[at]
        if base == state.segment_base_offset:
            return self.active(state)
        segment = segment_at(self.directory, base)
        return SegmentView(segment, bases[at + 1], self.files.size(segment.log))

    def views_from(
        self, state: LogState, bases: Sequence[int], from_offset: int
    ) -> list[SegmentView]:
        """Return views of the segments from the one that holds `from_offset` on, without their indexes.

        Args:
            bases: base offsets in the directory; those past the active segment are left out.
        """
        bases = [base for base in bases if base <= state.segment_base_offset]
        views = []
        for at in range(max(bisect.bisect_right(bases, from_offset) - 1, 0), len(bases)):
            segment = segment_at(self.directory, bases[at])
            next_offset = bases[at + 1] if at + 1 < len(bases) else state.log_end_offset
            active = bases[at] == state.segment_base_offset
            size = state.segment_size if active else self.files.opened_size(segment.log)
            views.append(SegmentView(segment, next_offset, size))
        return views

    def segments_from(self, state: LogState, offset: int) -> Iterator[Segment]:
        """Yield the segments from the one that holds `offset` on, the active one with its recorded size."""
        bases = self.bases(state)
        for base in bases[max(bisect.bisect_right(bases, offset) - 1, 0) :]:
            segment = segment_at(self.directory, base)
            active = base == state.segment_base_offset
            yield segment._replace(size_in_bytes=state.segment_size) if active else segment

    def is_as_recorded(self, state: LogState) -> bool:
        """Return True if the active segment is there in its recorded size, and its state is of this boot.

        Nor may a segment start at the log's end: a writer that died after it started one left that. One that
        died while it truncated the log to below its start left no active segment, and others after it.

        Raises:
            OSError: a link is in place of the directory, and nothing may be written there.
        """
        self.files.ensure_no_link(self.directory, self.directory.parent)
        active, end = state.segment_base_offset, state.log_end_offset
        (size,) = self.files.sizes(self.directory, (log_name(active),))
        return (
            size == state.segment_size
            and state.boot_id == boot_id()
            and (active == end or not self.files.holds(self.directory, first_made_name(end)))
        )

    def gone(self, path: Path) -> KafkaStorageError:
        """Return the error for a file or directory of the log that is gone."""
        if path.name == STATE_FILE and self.files.exists(self.directory):
            return KafkaStorageError(
                f"{path}, of partition {self.topic_partition}, is missing: run `kbatch repair`, which makes "
                "it again from the batches"
            )
        return KafkaStorageError(
            f"{path}, of partition {self.topic_partition}, is gone: it was deleted or unmounted"
        )
