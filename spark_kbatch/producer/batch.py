"""A batch that is being sent, the result that its records' futures share, and a queue of batches.

A batch gets one of three final states, once:

    from        to          by
    none        SUCCEEDED   the answer of a transport
    none        FAILED      an answer that cannot be retried, delivery.timeout.ms, a split, the end of a run
    none        ABORTED     a producer that is closed by force
    FAILED      any         ignored: the answer came late
    ABORTED     any         ignored: the answer came late
    SUCCEEDED   any         RuntimeError: nothing answers twice
    any         ABORTED     RuntimeError

When it ends, its callbacks run in the order of its records; then the threads that wait for its result
continue. A batch that is split hands its callbacks to its children, and its result refers to theirs.

Source: Kafka clients/producer/internals/ProducerBatch.java, ProduceRequestResult.java.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from spark_kbatch.errors import ProducerForkedError
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import Topic
from spark_kbatch.record import codec
from spark_kbatch.record import columns as arrow
from spark_kbatch.record.builder import BuilderRun, RecordBatchBuilder, size_upper_bound
from spark_kbatch.record.header import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    increment_sequence,
    rewrite,
    sequence_after,
)

logger = logging.getLogger(__name__)

NO_OFFSET = -1


class FinalState(Enum):
    """The final state of a batch."""

    ABORTED = "aborted"
    FAILED = "failed"
    SUCCEEDED = "succeeded"


class ProduceResult:
    """The outcome of one batch, shared by the futures of its records."""

    __slots__ = (
        "_listeners", "_pending", "_process_id", "_was_released", "awaiting", "base_offset", "children",
        "error", "log_append_time", "topic_partition",
    )  # fmt: skip

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.base_offset, self.log_append_time = NO_OFFSET, -1
        self.error: Exception | None = None
        self.children: list[
            tuple[int, ProduceResult]
        ] = []  # each with the index of its first record
        # Held until `release`; a thread that waits takes it and releases it again. An Event costs ten
        # times as much, and every batch would have one.
        self._pending = threading.Lock()
        self._pending.acquire()
        self._process_id = os.getpid()
        self._was_released = False  # the lock cannot tell: a thread that waited has it for a moment
        self._listeners: list[Callable[[], object]] = []  # each is popped, and called, once
        self.awaiting: dict[object, Any] | None = None  # by event loop; see `futures`

    def set(self, base_offset: int, log_append_time: int, error: Exception | None) -> None:
        """Set the outcome, for callbacks; `release` then lets waiting threads continue."""
        self.base_offset, self.log_append_time = base_offset, log_append_time
        self.error = error

    def release(self) -> None:
        """Let all waiting threads continue; the outcome is final."""
        self._was_released = True
        with suppress(RuntimeError):  # a thread whose time was up has just released it
            self._pending.release()
        self._tell_listeners()

    def add_listener(self, listener: Callable[[], object]) -> None:
        """Call a function once the outcome is final: in the sender's thread, or now if it is."""
        # 1. this thread finds no outcome. 2. the sender sets it, and tells all listeners. 3. this thread
        # adds another one. So it looks again afterwards; whoever pops a listener calls it.
        self._listeners.append(listener)
        if self._was_released:
            self._tell_listeners()

    def _tell_listeners(self) -> None:
        while self._listeners:
            try:
                listener = self._listeners.pop()
            except IndexError:  # another thread has it
                return
            try:
                listener()
            except BaseException as error:
                if _is_interrupt(error):
                    raise
                logger.exception("a listener for the end of records failed")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds; return whether the batch itself, not its children, has ended.

        Raises:
            ProducerForkedError: it had not ended when this process was forked, which cannot know.
        """
        has_ended = self._was_released
        if not has_ended:
            if self._process_id != os.getpid():
                raise ProducerForkedError(self._process_id, os.getpid())
            left = -1 if timeout is None else min(timeout, threading.TIMEOUT_MAX)
            # The next waiting thread continues, also if this one is interrupted. An interrupt may come
            # as a function of Python starts, so none is called while the lock may be held.
            try:
                self._pending.acquire(timeout=left)
            finally:
                if self._was_released:
                    try:
                        self._pending.release()
                    except RuntimeError:  # no thread holds the lock
                        pass
        return self._was_released

    @property
    def is_done(self) -> bool:
        """Whether the batch, and those that it was split into, have ended."""
        return self.wait(0) and all(child.is_done for _, child in self.children)

    def parts(self, first: int, count: int) -> Iterator[tuple[ProduceResult, int, int]]:
        """Yield (result, first index, count) of each batch, after splits, that has some of these records."""
        if not self.children:
            yield self, first, count
            return
        ends = [start for start, _ in self.children[1:]] + [first + count]
        for (start, child), end in zip(self.children, ends, strict=True):
            low, high = max(first, start), min(first + count, end)
            if low < high:
                yield from child.parts(low - start, high - low)

    def offset(self, index: int) -> int:
        """Return the offset of a record of a batch that succeeded; -1 if acks is 0."""
        return self.base_offset + index if self.base_offset >= 0 else NO_OFFSET


class Thunk(NamedTuple):
    """A callback for `size` records of a batch, starting at `first`."""

    first: int
    size: int
    callback: Callable[[ProduceResult, int, int], None]  # result, first, size


class Run:
    """A run: batches of one partition that are sent together; all of them are written, or none is.

    They were drained together, and are retried together: a log knows a run again by its last batch.
    """

    __slots__ = ("is_dissolved",)

    def __init__(self) -> None:
        self.is_dissolved = False  # whether its batches are sent one by one from now on


class ProducerBatch:
    """A batch of one partition's records, from the first append until it is written or has failed.

    Changing it takes its queue's lock, until it is drained.
    """

    def __init__(
        self,
        topic: Topic,
        topic_partition: TopicPartition,
        builder: RecordBatchBuilder | BuilderRun,
        now_ms: int,
        *,
        is_pooled: bool = False,
        attributes: int | None = None,
    ) -> None:
        """Set up an open batch, full ones that were built together, or one that was encoded elsewhere.

        Args:
            is_pooled: whether its bytes are in the pool.
            attributes: of one from elsewhere, which are set together with its sequence numbers.
        """
        self._attributes = attributes
        self.topic, self.topic_partition, self.builder = topic, topic_partition, builder
        self.created_ms = self.last_attempt_ms = now_ms
        self.is_pooled = is_pooled
        self.readers = 0  # requests that may still read its bytes
        self.heirs: Sequence[ProducerBatch] = ()  # that have its memory since it was taken apart
        self.attempts, self.backoff_ms = 0, 0.0
        self.is_in_doubt = False  # an attempt that failed may be in the log, or may still get there
        self.run: Run | None = None  # that it was sent in
        self.index_in_run = 0  # the number of batches before it, as the log counts them
        self.result = ProduceResult(self.topic_partition)
        self.producer_id, self.producer_epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
        self.base_sequence, self.sequence_was_reset = NO_SEQUENCE, False
        self.error: Exception | None = None  # of closing it, or of the last attempt to send it
        self._thunks: list[Thunk] = []
        self._final_state: FinalState | None = None
        self._lock = threading.Lock()  # guards _final_state: it changes once

    @property
    def records_count(self) -> int:
        """The number of its records."""
        return self.builder.records_count

    @property
    def last_builder(self) -> RecordBatchBuilder:
        """The builder that may take more records, if any does."""
        return self.builder.parts[-1]

    @property
    def is_done(self) -> bool:
        """Whether the batch has ended: succeeded, failed or aborted."""
        return self._final_state is not None

    @property
    def has_sequence(self) -> bool:
        """Whether the batch has sequence numbers, which it keeps over retries."""
        return self.base_sequence != NO_SEQUENCE

    @property
    def must_stay_whole(self) -> bool:
        """Whether a log may have it that would know no part of it by its sequence numbers."""
        return self.is_in_doubt and self.has_sequence

    @property
    def can_be_split(self) -> bool:
        """Whether smaller batches may take its place, which have the attributes of this producer's."""
        return self.records_count > 1 and self._attributes is None and not self.must_stay_whole

    def add_callback(
        self, first: int, count: int, callback: Callable[[ProduceResult, int, int], None]
    ) -> None:
        """Call `callback` when these records are written or have failed."""
        self._thunks.append(Thunk(first, count, callback))

    def set_producer_state(self, producer_id: int, epoch: int, base_sequence: int) -> None:
        """Assign sequence numbers to the records; if the batch is closed, rewrite its bytes.

        Bytes that a request may still read are not changed, but copied first.
        """
        self.sequence_was_reset = self.has_sequence
        self.producer_id, self.producer_epoch = producer_id, epoch
        self.base_sequence = base_sequence
        for part in self.builder.parts:
            if part.is_closed and self.readers:
                part.data = memoryview(bytearray(part.data))
            if part.is_closed:
                rewrite(
                    part.data,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    base_sequence=base_sequence,
                    attributes=self._attributes,
                )
            base_sequence = sequence_after(base_sequence, part.records_count)

    def close(self) -> None:
        """Close the batch to further records and finish its bytes, unless that is done."""
        if not self.builder.is_closed:
            self.builder.close(
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                base_sequence=self.base_sequence,
            )

    def done(
        self, base_offset: int, log_append_time: int = -1, error: Exception | None = None
    ) -> bool:
        """End the batch as SUCCEEDED or FAILED and call its callbacks; return False if it had ended before.

        Raises:
            RuntimeError: it has already succeeded.
        """
        wanted = FinalState.SUCCEEDED if error is None else FinalState.FAILED
        with self._lock:
            before = self._final_state
            if before is None:
                self._final_state = wanted
        if before is None:
            self._complete(base_offset, log_append_time, error)
        elif before is FinalState.SUCCEEDED:
            raise RuntimeError(
                f"a batch of {self.topic_partition} {wanted.value} after it had succeeded"
            )
        else:
            logger.debug(
                "a batch of %s %s after it was %s",
                self.topic_partition, wanted.value, before.value,
            )  # fmt: skip
        return before is None

    def abort(self, error: Exception) -> None:
        """End the batch as ABORTED, and call its callbacks with the error.

        Raises:
            RuntimeError: it has already ended.
        """
        with self._lock:
            before = self._final_state
            self._final_state = before or FinalState.ABORTED
        if before is not None:
            raise RuntimeError(
                f"a batch of {self.topic_partition} is aborted after it {before.value}"
            )
        self._complete(NO_OFFSET, -1, error)

    def split(self, batch_size: int, *, codec_id: int, level: int | None) -> list[ProducerBatch]:
        """Split the batch's records into smaller batches, outside the buffer pool; it then ends as FAILED.

        The children inherit its callbacks and age, and get consecutive sequence numbers. The records
        are decoded from the closed bytes.
        """
        (whole,) = self.builder.parts
        rows = codec.decode(bytes(whole.data))
        columns = arrow.columns(
            rows.num_rows,
            key=rows.column("key"),
            value=rows.column("value"),
            timestamps=arrow.timestamps_ms(rows.column("timestamp"), rows.num_rows, 0),
            headers=rows.column("headers"),
        )
        # No child has more than half of the records, so that splitting ends however badly they compress.
        most = max(rows.num_rows // 2, 1)
        children: list[tuple[int, ProducerBatch]] = []
        next_row = 0
        while next_row < rows.num_rows:
            first = next_row
            # Twice the size: a codec can make the records larger.
            capacity = 2 * max(batch_size, size_upper_bound(columns, first))
            memory = np.empty(capacity, np.uint8).data
            builder = RecordBatchBuilder(
                memory,
                0,
                capacity,
                write_limit=batch_size,
                codec=codec_id,
                level=level,
                attributes=whole.attributes,
            )
            next_row = builder.append(columns.head(first + most), first)
            builder.close_for_appends()
            child = ProducerBatch(self.topic, self.topic_partition, builder, self.created_ms)
            child.attempts, child.last_attempt_ms = self.attempts, self.last_attempt_ms
            if self.has_sequence:
                sequence = increment_sequence(self.base_sequence, first)
                child.set_producer_state(self.producer_id, self.producer_epoch, sequence)
            children.append((first, child))
        self._hand_over(children)
        return [child for _, child in children]

    def take_apart(self) -> Sequence[ProducerBatch]:
        """Make a batch of each of several that were built together; this one then ends as FAILED.

        The children inherit its callbacks, age, memory and sequence numbers.
        """
        children: list[tuple[int, ProducerBatch]] = []
        first = 0
        for part in self.builder.parts:
            child = ProducerBatch(
                self.topic, self.topic_partition, part, self.created_ms, is_pooled=self.is_pooled
            )
            child.attempts, child.last_attempt_ms = self.attempts, self.last_attempt_ms
            child.producer_id, child.producer_epoch = self.producer_id, self.producer_epoch
            child.base_sequence = sequence_after(self.base_sequence, first)
            child.sequence_was_reset, child.is_in_doubt = self.sequence_was_reset, self.is_in_doubt
            child.readers = self.readers
            children.append((first, child))
            first += part.records_count
        self._hand_over(children)
        self.is_pooled, self.heirs = False, [child for _, child in children]
        return self.heirs

    def _hand_over(self, children: list[tuple[int, ProducerBatch]]) -> None:
        with self._lock:
            if self._final_state is not None:
                raise RuntimeError(f"a batch of {self.topic_partition} is split after its end")
            self._final_state = FinalState.FAILED
        for thunk in self._thunks:
            for first, child in children:
                low = max(thunk.first, first)
                high = min(thunk.first + thunk.size, first + child.records_count)
                if low < high:
                    child.add_callback(low - first, high - low, thunk.callback)
        self.result.children = [(first, child.result) for first, child in children]
        self.result.release()

    def _complete(self, base_offset: int, log_append_time: int, error: Exception | None) -> None:
        self.result.set(base_offset, log_append_time, error)
        try:
            for first, size, callback in self._thunks:
                try:
                    callback(self.result, first, size)
                except BaseException as error:
                    if _is_interrupt(error):
                        raise
                    logger.exception("a callback of records of %s failed", self.topic_partition)
        finally:
            self.result.release()


def _is_interrupt(error: BaseException) -> bool:
    """Return True for an interrupt of the main thread; any other error would end the sender's thread, silently."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and isinstance(error, KeyboardInterrupt)


class PartitionQueue:
    """The batches of one partition that wait, oldest first; each queue has a number."""

    __slots__ = ("batches", "is_muted", "lock", "number", "topic_partition")

    def __init__(self, topic_partition: TopicPartition, number: int) -> None:
        self.topic_partition, self.number = topic_partition, number
        # Guards batches, and the builder of the last one. An RLock knows the thread that holds it, so
        # that after an interrupt exactly those locks are released that were taken.
        self.lock = threading.RLock()
        self.batches: deque[ProducerBatch] = deque()
        self.is_muted = False

    def has_full(self) -> bool:
        """Return True if the first batch takes no more records."""
        batches = self.batches
        return len(batches) > 1 or (len(batches) == 1 and batches[0].builder.is_full)
