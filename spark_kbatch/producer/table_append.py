"""Appending a table: its rows go to the queues of all their partitions in one pass over the table.

Rows are read once, in the order in which they lie in memory, and each is written to the last batch of
its partition's queue. When a batch is full a spare one follows it, created before the pass by an estimate
of what the rows need. When no spare batch is left the pass ends, and the next one starts after the rows
that are written. Spare batches for rows larger than batch.size are created by the sizes of the next rows;
the first pass cannot know of such rows, because looking at every row's size costs too much.

Source: Kafka clients/producer/internals/RecordAccumulator.java, append, for one record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import TypeAlias

import numpy as np

from spark_kbatch.kernels import routing as kernels
from spark_kbatch.kernels.records import INDEX, SLOT
from spark_kbatch.options.topic import Topic
from spark_kbatch.producer.batch import PartitionQueue, ProducerBatch
from spark_kbatch.producer.memory import BatchMemory
from spark_kbatch.producer.partitioner import Routing
from spark_kbatch.record import columns as arrow
from spark_kbatch.record.builder import (
    NO_BATCH_INDEXES,
    SPARE_SLOT,
    BuilderRun,
    RecordBatchBuilder,
    size_upper_bound,
    size_upper_bounds,
)
from spark_kbatch.record.columns import Array, Columns
from spark_kbatch.record.header import MAGIC, RECORD_BATCH_OVERHEAD

# About the most to write in one pass, so that full batches are still in the cache when they are closed.
_BYTES_AT_ONCE = 1024 * 1024

_Numbered: TypeAlias = tuple[int, RecordBatchBuilder]  # with its index

# A batch, the index of its first record of these rows, and their numbers (int32).
OnAppended = Callable[[ProducerBatch, int, Array], None]


class TableAppend:
    """One table that is being appended to the queues. `fill` needs the queues' locks."""

    def __init__(
        self,
        columns: Columns,
        routing: Routing,
        queues: Mapping[int, PartitionQueue],
        memory: BatchMemory,
        on_appended: OnAppended | None,
        run_bytes_max: int,
    ) -> None:
        """Append the rows of one table.

        Args:
            queues: by the slots that rows go to.
            on_appended: called for every batch that takes rows.
            run_bytes_max: the most bytes of several batches of a partition in a request.
        """
        self._run_bytes_max = run_bytes_max
        self._columns, self._routing, self._queues = columns, routing, queues
        self._memory, self._on_appended = memory, on_appended
        # Batches of several topics differ in size: then a queue's next batch is created when needed.
        self._only_topic = routing.topics[0] if len(routing.topics) == 1 else None
        self._counts = routing.counts.tolist()
        self._row_size = arrow.mean_row_size(columns)
        self._next_row = 0
        # Empty builders with their slots, SPARE_SLOT for spare ones. Between two calls of `fill` at most
        # the one that `wait_for_room` got.
        self._unused: list[tuple[int, RecordBatchBuilder]] = []
        # If the next rows are larger than batch.size: the largest number of batches for them, and the
        # bytes that each batch needs.
        self._large: tuple[int, int] | None = None

    @property
    def is_done(self) -> bool:
        """Whether every row is in a queue."""
        return self._next_row == self._columns.rows_count

    def wait_for_room(self) -> None:
        """Get memory for at least the next row; raises as `BatchMemory.builder`."""
        slot = int(self._routing.slots[self._next_row])
        size = size_upper_bound(self._columns, self._next_row)
        topic = self._routing.partitions[slot][0]
        self._large = self._large_rows(size) if size > self._memory.write_limit(topic) else None
        builder = self._memory.builder(topic, size)
        self._unused.append((slot, builder))

    def _large_rows(self, size: int) -> tuple[int, int]:
        """Return how many of the next rows to write in one pass, and the largest size of one of them."""
        wanted = max(_BYTES_AT_ONCE // size, 1)
        sizes = size_upper_bounds(self._columns, self._next_row, self._next_row + wanted)
        largest = np.maximum.accumulate(sizes)
        count = int(
            np.searchsorted(largest * np.arange(1, len(sizes) + 1), _BYTES_AT_ONCE, "right")
        )
        return max(count, 1), int(largest[max(count, 1) - 1])

    def release_unused(self) -> None:
        """Release the memory of empty builders; also for use after an error."""
        while self._unused:
            self._memory.release(self._unused.pop()[1])

    def fill(self, now_ms: int) -> tuple[list[ProducerBatch], list[PartitionQueue]]:
        """Append rows while there is room.

        Returns:
            The new batches, which are in their queues now, and the queues whose first batch is now full.
        """
        last = self._last_batches()
        self._make_builders(last)
        current, spares = [-1] * len(self._counts), []
        for slot, batch in last.items():
            current[slot] = self._memory.number(batch.last_builder.start)
        for slot, builder in self._unused:
            number = self._memory.number(builder.start)
            if slot == SPARE_SLOT:
                spares.append(number)
            else:
                builder.state[SLOT], current[slot] = slot, number
        is_told = self._on_appended is not None
        counts = self._number_builders(last) if is_told else ()
        batch_of = np.empty(self._columns.rows_count, np.int32) if is_told else NO_BATCH_INDEXES
        now_current = np.array(current, np.int64)
        first_row = self._next_row
        self._next_row = self._memory.write(
            self._columns, first_row, self._routing.slots, now_current, spares, batch_of
        )
        fresh, numbers, slots = self._queue_builders(now_ms)
        if is_told:
            numbers = [*range(len(last)), *(len(last) + number for number in numbers)]
            batches = np.array(numbers, np.int32)[batch_of[first_row : self._next_row]]
            self._tell([*last.values(), *fresh], counts, first_row, batches)
        after = now_current.tolist()
        if not fresh and after == current:
            return [], []
        changed = {slot for slot, before in enumerate(current) if after[slot] != before}
        changed |= slots
        return fresh, [queue for slot in changed if (queue := self._queues[slot]).has_full()]

    def _last_batches(self) -> dict[int, ProducerBatch]:
        """Return the last batch in each partition's queue, by slot, if it takes more rows."""
        # Batches that were sent before, or come from a split, take no more rows: so those that do are all
        # in the pool. A batch of a topic that was recreated since takes none, either.
        last = {
            slot: batches[-1]
            for slot, queue in self._queues.items()
            if (batches := queue.batches)
            and batches[-1].builder.takes_more
            and batches[-1].topic.topic_id == self._routing.partitions[slot][0].topic_id
        }
        if self._unused and (batch := last.get(self._unused[0][0])) is not None:
            # It had no room, but another thread may have added a batch that has.
            size = size_upper_bound(self._columns, self._next_row) - RECORD_BATCH_OVERHEAD
            if batch.last_builder.has_room_for(size):
                self.release_unused()
            else:
                del last[self._unused[0][0]]
        return last

    def _make_builders(self, last: Mapping[int, ProducerBatch]) -> None:
        """Create as many batch builders as the rows are likely to need, if there is memory for them."""
        at_most, size = (None, 0) if self._large is None else self._large
        if self._only_topic is not None:
            wanted = self._spares_wanted(self._only_topic, last) if at_most is None else at_most - 1
            spares = self._memory.try_builders(self._only_topic, size, wanted)
            self._unused += [(SPARE_SLOT, builder) for builder in spares]
            return
        waited_for = {slot for slot, _ in self._unused}
        for slot in self._queues:
            if len(self._unused) == at_most:
                break
            if slot not in last and slot not in waited_for:
                builders = self._memory.try_builders(self._routing.partitions[slot][0], size, 1)
                if not builders:
                    break
                self._unused.append((slot, builders[0]))

    def _spares_wanted(self, topic: Topic, last: Mapping[int, ProducerBatch]) -> int:
        """Estimate how many new batches the rows need."""
        limit = self._memory.write_limit(topic)
        # Bytes per row of the table that are still to be written, as if the rest were spread evenly.
        left = self._row_size * (1 - self._next_row / self._columns.rows_count)
        wanted = 0
        for slot in self._queues:
            excess = self._counts[slot] * left
            if slot in last:
                excess -= last[slot].last_builder.room
            if excess > 0:
                wanted += 1 + int(excess / limit)
        return min(wanted, max(_BYTES_AT_ONCE // limit, len(self._queues)))

    def _number_builders(self, last: Mapping[int, ProducerBatch]) -> list[int]:
        """Assign numbers to a pass's batch builders for `_tell`; return record counts of those in `last`."""
        builders = [batch.last_builder for batch in last.values()]
        for index, builder in enumerate([*builders, *(builder for _, builder in self._unused)]):
            builder.state[INDEX] = index
        return [builder.records_count for builder in builders]

    def _queue_builders(self, now_ms: int) -> tuple[list[ProducerBatch], list[int], Set[int]]:
        """Queue the builders that took rows.

        Full ones of a partition become one batch, as far as a request takes them.

        Returns:
            The new batches; for each builder the index of its batch, -1 for empty ones; the slots of
            the batches.
        """
        unused, self._unused = self._unused, []
        made, numbers = list[ProducerBatch](), [-1] * len(unused)
        by_slot: dict[int, list[tuple[int, RecordBatchBuilder]]] = {}
        for index, (of, builder) in enumerate(unused):
            if builder.records_count:
                by_slot.setdefault(builder.state[SLOT], []).append((index, builder))
            else:
                self._unused.append((of, builder))
        for slot, builders in by_slot.items():
            topic, topic_partition = self._routing.partitions[slot]
            for run in self._runs(topic, builders):
                for index, _ in run:
                    numbers[index] = len(made)
                parts = [builder for _, builder in run]
                whole = parts[0] if len(parts) == 1 else BuilderRun(parts)
                batch = ProducerBatch(topic, topic_partition, whole, now_ms, is_pooled=True)
                self._queues[slot].batches.append(batch)
                made.append(batch)
        return made, numbers, by_slot.keys()

    def _runs(self, topic: Topic, builders: Sequence[_Numbered]) -> Iterator[Sequence[_Numbered]]:
        """Yield a slot's builders in groups: those that are one batch together. The last one may take more rows."""
        most = 1
        if topic.message_magic >= MAGIC:
            most = max(self._run_bytes_max // self._memory.write_limit(topic), 1)
        if self._large is not None:
            most = 1
        full = len(builders) - 1
        for first in range(0, full, most):
            yield builders[first : min(first + most, full)]
        yield builders[full:]

    def _tell(
        self,
        batches: Sequence[ProducerBatch],
        counts: Sequence[int],
        first_row: int,
        batch_of: Array,
    ) -> None:
        """Call `on_appended` for each batch that took rows in this pass.

        The pass started at `first_row`.

        Args:
            batches: by the numbers in `batch_of`.
            counts: how many records the first of them had before; the others were empty.
        """
        assert self._on_appended is not None
        bounds = np.zeros(len(batches) + 1, np.int64)
        rows = np.empty(self._next_row - first_row, np.int32)
        kernels.group_rows(arrow.frozen(batch_of), bounds, rows)
        rows += np.int32(first_row)
        for index, batch in enumerate(batches):
            taken = rows[bounds[index] : bounds[index + 1]]
            if len(taken):
                first = counts[index] if index < len(counts) else 0
                self._on_appended(batch, first, taken)
