"""The futures that `send` and `send_arrow` return.

They are `concurrent.futures.Future`s, so that asyncio and `concurrent.futures.wait` take them. What such a future
holds beside its record (a condition, lists of who waits) is as large as many records, and is made only once
it is asked for: `result`, `exception` and `done` do without.

Source: Kafka clients/producer/RecordMetadata.java, internals/FutureRecordMetadata.java.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

import numpy as np
import pyarrow as pa

from spark_kbatch.clock import monotonic_s
from spark_kbatch.errors import NotPicklableError
from spark_kbatch.options import arguments
from spark_kbatch.producer.batch import ProduceResult
from spark_kbatch.record.columns import Array, bytes_array, number_array

if TYPE_CHECKING:
    import asyncio

METADATA_SCHEMA = pa.schema(
    [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
)


class RecordMetadata(NamedTuple):
    """The topic, partition, offset and time of a record that was written."""

    topic: str
    partition: int
    offset: int  #: -1 if acks is 0
    timestamp: int  #: ms


Callback = Callable[[RecordMetadata | None, Exception | None], None]
ArrowCallback = Callable[[pa.RecordBatch | None, Exception | None], None]


_Result = TypeVar("_Result")
_LATE = frozenset(
    vars(Future())
)  # attributes of a Future that ours has only once they are asked for


class _SentFuture(Future[_Result]):
    """The future of something that was sent, which ends by itself."""

    # `Future.__init__` is not called: see the module's docstring.

    def __await__(self) -> Generator[Any, None, _Result]:
        import asyncio  # noqa: PLC0415  few use it

        loop = asyncio.get_running_loop()
        while (pending := self._pending()) is not None:
            yield from _awaiting(pending, loop).future()
        return self.result(0)

    def __reduce__(self) -> NoReturn:
        raise NotPicklableError(type(self).__name__, "wait for its result, and pass that on")

    def cancel(self) -> bool:
        """Return False: what was sent is not taken back."""
        return False

    def cancelled(self) -> bool:
        """Return False."""
        return False

    def running(self) -> bool:
        """Return True until it is done."""
        return not self.done()

    def __getattr__(self, name: str) -> Any:
        if name not in _LATE:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self._pending()  # raises in a fork, where it would never end
        # Threads may do this at the same time: of each attribute the first one stays, in a single step.
        own, made = vars(self), vars(Future())
        is_first = own.setdefault("_condition", made["_condition"]) is made["_condition"]
        for key, value in made.items():
            own.setdefault(key, value)
        if is_first:
            self._follow()
        return own[name]

    def _pending(self) -> ProduceResult | None:
        """Return the outcome of a batch that this waits for; None if it is done."""
        raise NotImplementedError

    def _follow(self) -> None:
        """End as a `Future` when the last batch has ended."""
        pending = self._pending()
        if pending is not None:
            pending.add_listener(self._follow)
            return
        error = self.exception(0)
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(self.result(0))


class _Awaiting:
    """The tasks of one event loop that await a batch: one call from the sender's thread wakes all of them."""

    __slots__ = ("_loop", "_tasks")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: list[asyncio.Future[None]] = []  # changed in the loop's thread alone

    def future(self) -> asyncio.Future[None]:
        """Return a future of the loop that is done when the batch has ended; cancelling it ends no other one."""
        # The batch may end meanwhile: `_wake` is called later, in this thread.
        found: asyncio.Future[None] = self._loop.create_future()
        self._tasks.append(found)
        return found

    def ended(self) -> None:
        """Wake all; called in any thread."""
        with suppress(RuntimeError):  # the loop is closed: no one waits any more
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for task in self._tasks:
            if not task.done():
                task.set_result(None)
        self._tasks.clear()


def _awaiting(batch: ProduceResult, loop: asyncio.AbstractEventLoop) -> _Awaiting:
    """Return who awaits a batch in a loop."""
    if batch.awaiting is None:
        batch.awaiting = {}  # of two that threads make at the same time one is lost: its tasks are woken by themselves
    found: _Awaiting | None = batch.awaiting.get(loop)
    if found is None:
        found = batch.awaiting[loop] = _Awaiting(loop)
        batch.add_listener(found.ended)
    return found


class RecordFuture(_SentFuture[RecordMetadata]):
    """The future of one record that was sent: a `concurrent.futures.Future`, which can be awaited, too."""

    __slots__ = ("_batch", "_index", "_timestamp")

    def __init__(self, batch: ProduceResult, index: int, timestamp: int) -> None:
        self._batch, self._index, self._timestamp = batch, index, timestamp

    def __repr__(self) -> str:
        result, index = self._part()
        if not result.is_done:
            return f"<RecordFuture of {result.topic_partition}, pending>"
        if result.error is not None:
            return f"<RecordFuture of {result.topic_partition}, failed: {result.error}>"
        return f"<RecordFuture of {result.topic_partition}, at offset {result.offset(index)}>"

    def done(self) -> bool:
        """Return True once the record is written or has failed."""
        result, _ = self._part()
        return result.is_done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait, and return the record's metadata.

        Args:
            timeout: in seconds; None waits without limit.

        Raises:
            TimeoutError: the time is up; the record is still being sent.
            KBatchError: the record was not written, or it is unknown whether it was.
        """
        result, index = self._wait(timeout)
        if result.error is not None:
            raise result.error
        return _metadata(result, index, self._timestamp)

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Wait, and return the error that `result` raises, None if it raises none."""
        return self._wait(timeout)[0].error

    def _part(self) -> tuple[ProduceResult, int]:
        result, index, _ = next(self._batch.parts(self._index, 1))
        return result, index

    def _pending(self) -> ProduceResult | None:
        while True:
            result, _ = self._part()
            if not result.wait(0):
                return result
            if not result.children:
                return None

    def _wait(self, timeout: float | None) -> tuple[ProduceResult, int]:
        deadline = _deadline(timeout)
        while True:
            result, index = self._part()
            _wait_for(result, deadline)
            if not result.children:
                return result, index


class FailedFuture(RecordFuture):
    """The future of a record that could not be sent at all."""

    __slots__ = ("_error",)

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __repr__(self) -> str:
        return f"<RecordFuture, failed: {self._error}>"

    def done(self) -> bool:
        """Return True."""
        return True

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Raise the error."""
        _deadline(timeout)
        raise self._error

    def exception(self, timeout: float | None = None) -> Exception:
        """Return the error."""
        _deadline(timeout)
        return self._error

    def _pending(self) -> None:
        return None


class ArrowFuture(_SentFuture[pa.RecordBatch]):
    """The future of all rows of a `send_arrow`: a `concurrent.futures.Future`, which can be awaited, too."""

    def __init__(self, callback: ArrowCallback | None = None) -> None:
        self._callback = callback
        self._pieces: list[tuple[ProduceResult, int, Array]] = []  # result, first index, rows
        self._lock = threading.Lock()  # guards the counts: the callback runs once
        self._rows_count = -1  # unknown until every row is appended
        self._ended = 0

    def __repr__(self) -> str:
        rows = sum(len(rows) for _, _, rows in self._pieces)
        if not self.done():
            return f"<ArrowFuture of {rows} rows, pending>"
        error = self._error()
        return f"<ArrowFuture of {rows} rows, {'written' if error is None else f'failed: {error}'}>"

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in ("add", "close", "count_down")]

    def add(self, result: ProduceResult, first: int, rows: Array) -> None:
        """Record that rows went into a batch, starting at its record `first`."""
        self._pieces.append((result, first, rows))

    def close(self, rows_count: int) -> None:
        """Record that every row is appended."""
        with self._lock:
            self._rows_count = rows_count
            is_last = self._callback is not None and self._ended == rows_count
        if is_last:
            self._call_back()

    def count_down(self, _result: ProduceResult, _first: int, count: int) -> None:
        """Record that `count` more rows are written or have failed; called by their batch."""
        with self._lock:
            self._ended += count
            is_last = self._ended == self._rows_count
        if is_last and self._callback is not None:
            self._call_back()

    def done(self) -> bool:
        """Return True once every row is written or has failed."""
        return all(result.is_done for result, _, _ in self._parts())

    def result(self, timeout: float | None = None) -> pa.RecordBatch:
        """Wait, and return topic, partition and offset of each row, in the order of the rows.

        Args:
            timeout: in seconds; None waits without limit.

        Raises:
            TimeoutError: the time is up; rows are still being sent.
            KBatchError: the error of the first row that was not written; others may be.
        """
        self._wait(timeout)
        error = self._error()
        if error is not None:
            raise error
        return self._metadata()

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Wait, and return the error that `result` raises, None if it raises none."""
        self._wait(timeout)
        return self._error()

    def _wait(self, timeout: float | None) -> None:
        deadline = _deadline(timeout)
        for whole, first, rows in self._pieces:
            # A batch that was split may have children without any of these rows.
            while pending := [r for r, _, _ in whole.parts(first, len(rows)) if not r.is_done]:
                _wait_for(pending[0], deadline)

    def _pending(self) -> ProduceResult | None:
        return next((result for result, _, _ in self._parts() if not result.is_done), None)

    def _parts(self) -> list[tuple[ProduceResult, int, Array]]:
        parts = []
        for whole, first, rows in self._pieces:
            at = 0
            for result, index, count in whole.parts(first, len(rows)):
                parts.append((result, index, rows[at : at + count]))
                at += count
        return parts

    def _error(self) -> Exception | None:
        failed = [(int(rows[0]), r.error) for r, _, rows in self._parts() if r.error is not None]
        return min(failed, key=lambda pair: pair[0])[1] if failed else None

    def _metadata(self) -> pa.RecordBatch:
        parts = self._parts()
        count = sum(len(rows) for _, _, rows in parts)
        topics = np.zeros(count, np.int32)
        partitions, offsets = np.zeros(count, np.int32), np.full(count, -1, np.int64)
        names: dict[str, int] = {}
        for result, first, rows in parts:
            topic, partition = result.topic_partition
            topics[rows] = names.setdefault(topic, len(names))
            partitions[rows] = partition
            if result.base_offset >= 0:
                offsets[rows] = np.arange(len(rows)) + (result.base_offset + first)
        topic_names = bytes_array([name.encode() for name in names], pa.string())
        names_of_rows = topic_names.take(number_array(topics))
        arrays = [names_of_rows, number_array(partitions), number_array(offsets)]
        return pa.RecordBatch.from_arrays(arrays, schema=METADATA_SCHEMA)

    def _call_back(self) -> None:
        assert self._callback is not None
        error = self._error()
        self._callback(None if error else self._metadata(), error)


def _deadline(timeout: float | None) -> float | None:
    """Return when a time-out in seconds is up, by `clock.monotonic_s`; refuse what is none."""
    return None if timeout is None else monotonic_s() + arguments.seconds("timeout", timeout)


def record_callback(
    callback: Callback, timestamp: int
) -> Callable[[ProduceResult, int, int], None]:
    """Return a batch callback that tells a user's callback of `send` how its one record ended."""

    def call(result: ProduceResult, first: int, _count: int) -> None:
        if result.error is not None:
            callback(None, result.error)
        else:
            callback(_metadata(result, first, timestamp), None)

    return call


def _metadata(result: ProduceResult, index: int, timestamp: int) -> RecordMetadata:
    topic, partition = result.topic_partition
    time_ms = result.log_append_time if result.log_append_time >= 0 else timestamp
    return RecordMetadata(topic, partition, result.offset(index), time_ms)


def _wait_for(result: ProduceResult, deadline: float | None) -> None:
    left = None if deadline is None else max(deadline - monotonic_s(), 0)
    if not result.wait(left):
        raise TimeoutError(f"a record for {result.topic_partition} is still being sent")
