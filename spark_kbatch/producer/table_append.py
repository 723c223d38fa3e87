"""Appends the rows of one table to the queues of all their partitions, in one pass over the table.

Rows are read as they lie in memory, once, and each is written to the last batch of its partition's
queue. A batch that is full is followed by a spare one, made before the pass by what the rows will
probably take. Where none is left the pass ends, and begins again behind the rows that are written.
Spare ones for rows that are larger than batch.size are made by the sizes of the rows that come next:
the first pass of a table cannot know of them, since to look at every row's size costs too much.

Source: Kafka clients/producer/internals/RecordAccumulator.java, append, for one record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from spark_kbatch.kernels import routing as kernels
from spark_kbatch.kernels.records import INDEX, SLOT
from spark_kbatch.options.topic import Topic
from spark_kbatch.producer.batch import ProducerBatch
from spark_kbatch.producer.memory import BatchMemory
from spark_kbatch.producer.partitioner import Routing
from spark_kbatch.record import columns as arrow
from spark_kbatch.record.builder import (
    NOT_TOLD,
    SPARE_SLOT,
    RecordBatchBuilder,
    size_upper_bound,
    size_upper_bounds,
)
from spark_kbatch.record.columns import Array, Columns
from spark_kbatch.record.header import RECORD_BATCH_OVERHEAD

if TYPE_CHECKING:
    from spark_kbatch.producer.accumulator import PartitionQueue

# No more is written at once, roughly, so that full batches are still in the cache when they are closed.
_BYTES_AT_ONCE = 1024 * 1024

# A batch, the index of its first record of these rows, and their numbers (int32).
OnAppended = Callable[[ProducerBatch, int, Array], None]


class TableAppend:
    """One table on its way into the queues. `fill` is called with the queues' locks held."""

    def __init__(
        self,
        columns: Columns,
        routing: Routing,
        queues: Mapping[int, PartitionQueue],
        memory: BatchMemory,
        on_appended: OnAppended | None,
    ) -> None:
        """Set up.

        Args:
            queues: of each slot that rows have.
            on_appended: told every batch that takes rows.
        """
        self._columns, self._routing, self._queues = columns, routing, queues
        self._memory, self._on_appended = memory, on_appended
        # Batches of several topics differ in size: then a queue's next one is made when it is needed.
        self._only_topic = routing.topics[0] if len(routing.topics) == 1 else None
        self._counts = routing.counts.tolist()
        self._row_size = arrow.mean_row_size(columns)
        self._next_row = 0
        # Builders that no row is in, and their slots, SPARE_SLOT for spare ones. Between two calls of
        # `fill` at most the one that was waited for.
        self._unused: list[tuple[int, RecordBatchBuilder]] = []
        # Where the next rows are larger than batch.size: how many batches they are at the most, and
        # bytes that each of them surely fits.
        self._large: tuple[int, int] | None = None

    @property
    def is_done(self) -> bool:
        """Whether every row is in a queue."""
        return self._next_row == self._columns.rows_count

    def wait_for_room(self) -> None:
        """Have memory for the next row, at least; `BatchMemory.builder` says what it raises."""
        slot = int(self._routing.slots[self._next_row])
        size = size_upper_bound(self._columns, self._next_row)
        topic = self._routing.partitions[slot][0]
        self._large = self._large_rows(size) if size > self._memory.write_limit(topic) else None
        builder = self._memory.builder(topic, size)
        self._unused.append((slot, builder))

    def _large_rows(self, size: int) -> tuple[int, int]:
        """As many of the next rows as are to be written at once, and the most that one of them takes."""
        wanted = max(_BYTES_AT_ONCE // size, 1)
        sizes = size_upper_bounds(self._columns, self._next_row, self._next_row + wanted)
        largest = np.maximum.accumulate(sizes)
        count = int(
            np.searchsorted(largest * np.arange(1, len(sizes) + 1), _BYTES_AT_ONCE, "right")
        )
        return max(count, 1), int(largest[max(count, 1) - 1])

    def release_unused(self) -> None:
        """Give back the memory that no row is in, also after an error."""
        while self._unused:
            self._memory.release(self._unused.pop()[1])

    def fill(self, now_ms: int) -> tuple[list[ProducerBatch], list[PartitionQueue]]:
        """Append rows while there is room.

        Returns:
            new batches, which are in their queues now; queues whose first batch is full now.
        """
        last = self._last_batches()
        self._make_builders(last)
        current, spares = [-1] * len(self._counts), []
        for slot, batch in last.items():
            current[slot] = self._memory.number(batch.builder.start)
        for slot, builder in self._unused:
            number = self._memory.number(builder.start)
            if slot == SPARE_SLOT:
                spares.append(number)
            else:
                builder.state[SLOT], current[slot] = slot, number
        is_told = self._on_appended is not None
        counts = self._number_builders(last) if is_told else ()
        batch_of = np.empty(self._columns.rows_count, np.int32) if is_told else NOT_TOLD
        now_current = np.array(current, np.int64)
        first_row = self._next_row
        self._next_row = self._memory.write(
            self._columns, first_row, self._routing.slots, now_current, spares, batch_of
        )
        made = self._queue_builders(now_ms)
        if is_told:
            self._tell([*last.values(), *made], counts, first_row, batch_of)
        fresh = [batch for batch in made if batch is not None]
        after = now_current.tolist()
        if not fresh and after == current:
            return [], []
        changed = {slot for slot, before in enumerate(current) if after[slot] != before}
        changed.update(batch.builder.state[SLOT] for batch in fresh)
        return fresh, [queue for slot in changed if (queue := self._queues[slot]).has_full()]

    def _last_batches(self) -> dict[int, ProducerBatch]:
        """Of each slot whose queue ends in a batch that may take more."""
        # What was sent before, or comes from a split, does not; so all that do lie in the pool. Of a
        # topic that was created again, what is of the former one does not, either.
        last = {
            slot: batches[-1]
            for slot, queue in self._queues.items()
            if (batches := queue.batches)
            and batches[-1].builder.takes_more
            and batches[-1].topic.topic_id == self._routing.partitions[slot][0].topic_id
        }
        if self._unused and (batch := last.get(self._unused[0][0])) is not None:
            # It had no room; somebody else may have added one that has.
            size = size_upper_bound(self._columns, self._next_row) - RECORD_BATCH_OVERHEAD
            if batch.builder.has_room_for(size):
                self.release_unused()
            else:
                del last[self._unused[0][0]]
        return last

    def _make_builders(self, last: Mapping[int, ProducerBatch]) -> None:
        """As many as the rows are likely to need, as far as there is memory."""
        at_most, size = (None, 0) if self._large is None else self._large
        if self._only_topic is not None:
            wanted = self._spares_wanted(self._only_topic, last) if at_most is None else at_most - 1
            for _ in range(wanted):
                builder = self._memory.try_builder(self._only_topic, size)
                if builder is None:
                    break
                self._unused.append((SPARE_SLOT, builder))
            return
        waited_for = {slot for slot, _ in self._unused}
        for slot in self._queues:
            if len(self._unused) == at_most:
                break
            if slot not in last and slot not in waited_for:
                builder = self._memory.try_builder(self._routing.partitions[slot][0], size)
                if builder is None:
                    break
                self._unused.append((slot, builder))

    def _spares_wanted(self, topic: Topic, last: Mapping[int, ProducerBatch]) -> int:
        """How many batches the rows are likely to begin."""
        limit = self._memory.write_limit(topic)
        # Bytes that a row of the table takes, less those that are done: the rest is spread evenly.
        left = self._row_size * (1 - self._next_row / self._columns.rows_count)
        wanted = 0
        for slot in self._queues:
            excess = self._counts[slot] * left
            if slot in last:
                excess -= last[slot].builder.room
            if excess > 0:
                wanted += 1 + int(excess / limit)
        return min(wanted, max(_BYTES_AT_ONCE // limit, len(self._queues)))

    def _number_builders(self, last: Mapping[int, ProducerBatch]) -> list[int]:
        """Number them as `_tell` has them; how many records were in those that are not empty."""
        builders = [batch.builder for batch in last.values()]
        for index, builder in enumerate([*builders, *(builder for _, builder in self._unused)]):
            builder.state[INDEX] = index
        return [builder.records_count for builder in builders]

    def _queue_builders(self, now_ms: int) -> list[ProducerBatch | None]:
        """Put those that took rows into their queues; None for each that did not."""
        unused, self._unused = self._unused, []
        made: list[ProducerBatch | None] = []
        for of, builder in unused:
            batch = None
            if builder.records_count:
                slot = builder.state[SLOT]
                topic, topic_partition = self._routing.partitions[slot]
                batch = ProducerBatch(topic, topic_partition, builder, now_ms, is_pooled=True)
                self._queues[slot].batches.append(batch)
            else:
                self._unused.append((of, builder))
            made.append(batch)
        return made

    def _tell(
        self,
        batches: Sequence[ProducerBatch | None],
        counts: Sequence[int],
        first_row: int,
        batch_of: Array,
    ) -> None:
        """Tell of rows from `first_row` on.

        Args:
            batches: all that `batch_of` counts; None for those without records.
            counts: of records that were in them before; the others were empty.
        """
        assert self._on_appended is not None
        bounds = np.zeros(len(batches) + 1, np.int64)
        rows = np.empty(self._next_row - first_row, np.int32)
        kernels.group_rows(arrow.frozen(batch_of[first_row : self._next_row]), bounds, rows)
        rows += np.int32(first_row)
        for index, batch in enumerate(batches):
            taken = rows[bounds[index] : bounds[index + 1]]
            if batch is not None and len(taken):
                first = counts[index] if index < len(counts) else 0
                self._on_appended(batch, first, taken)
