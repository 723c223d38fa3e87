"""A model of a log: what producers and coordinators wrote, and which records were committed.

From each record the model looks ahead to its producer's next marker, which no reader of a log can do.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hypothesis import strategies as st

from spark_kbatch.log.segment import Segment, segment_at
from tests.support import reference
from tests.support.builders import FIRST_TIMESTAMP_MS

TRANSACTIONAL, CONTROL = 0x10, 0x20
NO_PRODUCER = -1


def data_batch(
    *,
    base_offset: int,
    n: int = 1,
    producer_id: int = NO_PRODUCER,
    epoch: int = 0,
    base_sequence: int = 0,
    transactional: bool = False,
    leader_epoch: int = 0,
) -> bytes:
    """Return a batch whose values are its offsets, as it is in a log."""
    known = producer_id != NO_PRODUCER
    return reference.encode_batch(
        [
            reference.Record(offset, FIRST_TIMESTAMP_MS + offset, None, str(offset).encode())
            for offset in range(base_offset, base_offset + n)
        ],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=epoch if known else -1,
        base_sequence=base_sequence if known else -1,
        attributes_extra=TRANSACTIONAL if transactional else 0,
    )


def marker_batch(
    *,
    base_offset: int,
    producer_id: int,
    abort: bool,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    leader_epoch: int = 0,
) -> bytes:
    """Return a marker that ends a transaction, as it is in a log."""
    return control_batch(
        struct.pack(">hh", 0, 0 if abort else 1),
        struct.pack(">hi", 0, coordinator_epoch),
        base_offset=base_offset,
        producer_id=producer_id,
        epoch=epoch,
        leader_epoch=leader_epoch,
    )


def control_batch(
    key: bytes | None,
    value: bytes | None,
    *,
    base_offset: int = 0,
    producer_id: int = 7,
    epoch: int = 0,
    leader_epoch: int = 0,
) -> bytes:
    """Return a control batch with any key and value."""
    return reference.encode_batch(
        [reference.Record(base_offset, FIRST_TIMESTAMP_MS + base_offset, key, value)],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=epoch,
        attributes_extra=TRANSACTIONAL | CONTROL,
    )


class Written(NamedTuple):
    """A batch that was written."""

    base_offset: int
    data: bytes
    producer_id: int
    transactional: bool
    ends: str  # "commit" or "abort" for a marker, "" for data
    values: tuple[int, ...]  # offsets of its records; none for a marker

    @property
    def next_offset(self) -> int:
        return self.base_offset + max(len(self.values), 1)


class History:
    """A log that grows batch by batch."""

    def __init__(self) -> None:
        self.written: list[Written] = []
        self.epochs: dict[int, int] = {}
        self.sequences: dict[int, int] = {}
        self.open: dict[int, int] = {}  # base offset of the transaction's first batch

    @property
    def end_offset(self) -> int:
        return self.written[-1].next_offset if self.written else 0

    def append(self, producer_id: int, *, transactional: bool, n: int = 1) -> None:
        base_offset, sequence = self.end_offset, self.sequences.get(producer_id, 0)
        data = data_batch(
            base_offset=base_offset,
            n=n,
            producer_id=producer_id,
            epoch=self.epochs.get(producer_id, 0),
            base_sequence=sequence,
            transactional=transactional,
        )
        self.sequences[producer_id] = sequence + n
        if transactional:
            self.open.setdefault(producer_id, base_offset)
        values = tuple(range(base_offset, base_offset + n))
        self.written.append(Written(base_offset, data, producer_id, transactional, "", values))

    def end(self, producer_id: int, *, abort: bool, new_epoch: bool = False) -> None:
        if new_epoch:
            self.epochs[producer_id] = self.epochs.get(producer_id, 0) + 1
            self.sequences[producer_id] = 0
        data = marker_batch(
            base_offset=self.end_offset,
            producer_id=producer_id,
            abort=abort,
            epoch=self.epochs.get(producer_id, 0),
        )
        self.open.pop(producer_id, None)
        ends = "abort" if abort else "commit"
        self.written.append(Written(self.end_offset, data, producer_id, True, ends, ()))

    def outcome(self, index: int, high_watermark: int = 2**62) -> str:
        """Return "commit" or "abort" for the data batch at `index`, "" if that is undecided.

        A marker decides once it is below the high watermark.
        """
        batch = self.written[index]
        if not batch.transactional:
            return "commit"
        later = [one for one in self.written[index:] if one.base_offset < high_watermark]
        ends = (one.ends for one in later if one.ends and one.producer_id == batch.producer_id)
        return next(ends, "")

    def last_stable_offset(self, high_watermark: int | None = None) -> int:
        end = self.end_offset if high_watermark is None else high_watermark
        undecided = (
            batch.base_offset
            for index, batch in enumerate(self.written)
            if not batch.ends and not self.outcome(index, end)
        )
        return min(next(undecided, end), end)

    def committed(self) -> list[int]:
        """Return the offsets of the records that a read_committed reader gets."""
        return [
            value
            for index, batch in enumerate(self.written)
            for value in batch.values
            if self.outcome(index) == "commit" and value < self.last_stable_offset()
        ]

    def all_data(self) -> list[int]:
        """Return the offsets of all records but control records."""
        return [value for batch in self.written for value in batch.values]

    def segments(self, directory: Path, starts: Sequence[int] = (0,)) -> list[Segment]:
        """Write the log; a segment starts at each of these batches, by number."""
        directory.mkdir(parents=True, exist_ok=True)
        segments = []
        numbers = sorted({0, *starts})
        for first, end in zip(numbers, [*numbers[1:], len(self.written)], strict=True):
            base_offset = self.written[first].base_offset if self.written else 0
            data = b"".join(batch.data for batch in self.written[first:end])
            segment = segment_at(directory, base_offset)
            segment.log.write_bytes(data)
            segments.append(segment._replace(size_in_bytes=len(data)))
        return segments


@st.composite
def histories(draw: st.DrawFn, *, size_max: int = 25) -> History:
    """Draw a history of three producers with transactions, which may all be decided at the end, and one without."""
    history = History()
    for _ in range(draw(st.integers(1, size_max))):
        producer_id = draw(st.sampled_from([1, 2, 3]))
        kind = draw(
            st.sampled_from(["transactional"] * 4 + ["end"] * 3 + ["idempotent", "plain", "empty"])
        )
        n = draw(st.integers(1, 3))
        if kind == "transactional":
            history.append(producer_id, transactional=True, n=n)
        elif kind == "idempotent" and producer_id not in history.open:
            history.append(producer_id, transactional=False, n=n)
        elif kind == "plain":
            history.append(NO_PRODUCER, transactional=False, n=n)
        elif producer_id in history.open or kind == "empty":
            history.end(producer_id, abort=draw(st.booleans()), new_epoch=draw(st.booleans()))
    if draw(st.booleans()):
        for producer_id in list(history.open):
            history.end(producer_id, abort=draw(st.booleans()))
    if not history.written:
        history.append(NO_PRODUCER, transactional=False)
    return history
