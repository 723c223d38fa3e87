"""The producer: rows and records in, batches out to a transport.

    send, send_arrow -> Partitioner -> RecordAccumulator (BufferPool) -> Sender -> Transport

A producer has a thread that sends batches when they are due. With `inline` there is none: the caller's
append sends full batches, and the fullest batch when memory runs out. That suits a caller that appends
as fast as it can and waits for no answer, as a Spark task does, and a transport that answers at once.

Source: Kafka clients/producer/KafkaProducer.java.
"""

from __future__ import annotations

import datetime
import difflib
import inspect
import logging
import operator
import os
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, NamedTuple, Never, NoReturn, Self

import numpy as np
import pyarrow as pa

from spark_kbatch.clock import monotonic_ms
from spark_kbatch.errors import (
    BufferExhaustedError,
    ConfigError,
    InvalidTimestampError,
    KafkaStorageError,
    KBatchError,
    NotPicklableError,
    ObjectStoreError,
    ProducerClosedError,
    ProducerForkedError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import CODECS, INT_MAX, TIMESTAMP_MS_MAX, TopicPartition
from spark_kbatch.options import arguments
from spark_kbatch.options.columns import warn_of_misspelt
from spark_kbatch.options.producer import ProducerConfig
from spark_kbatch.options.topic import Topic
from spark_kbatch.options.write import ensure_codec_exists
from spark_kbatch.producer.accumulator import AccumulatorConfig, RecordAccumulator
from spark_kbatch.producer.batch import ProducerBatch
from spark_kbatch.producer.futures import (
    ArrowCallback,
    ArrowFuture,
    Callback,
    FailedFuture,
    RecordFuture,
    record_callback,
)
from spark_kbatch.producer.idempotence import Sequences
from spark_kbatch.producer.memory import BufferPool
from spark_kbatch.producer.metrics import ProducerMetrics, Written
from spark_kbatch.producer.partitioner import Partitioner, Routing, load_partitioner
from spark_kbatch.producer.sender import Sender, SenderConfig
from spark_kbatch.record import columns as arrow
from spark_kbatch.record.builder import RECORD_OVERHEAD_MAX
from spark_kbatch.record.columns import HEADER_OVERHEAD_MAX, Array, Columns
from spark_kbatch.record.header import (
    MAGIC,
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD,
    TRANSACTIONAL,
)
from spark_kbatch.record.scalar import Header
from spark_kbatch.store.transport import Nodes, Transport

logger = logging.getLogger(__name__)

Bytes = bytes | bytearray | memoryview | str
REFRESH_MS = 100


class RoutedRows(NamedTuple):
    """Checked rows: each is a record that its topic accepts."""

    columns: Columns
    routing: Routing


class _KnownTopic(NamedTuple):
    topic: Topic
    next_look_ms: int


class KnownTopics:
    """The cache of a producer's topics, each looked up again once it is old.

    Other processes may add partitions to a topic, alter it, delete it and recreate it while a producer runs.
    So a topic is looked up again when REFRESH_MS have passed since the last time, and at once after one of
    its batches got an error. If nothing has changed that costs one `stat`.

    Kafka's producer does the same, every five minutes (metadata.max.age.ms): it has to ask a broker.

    Source: Kafka clients/producer/internals/ProducerMetadata.java.

    It is thread-safe: each operation on the dict is atomic.
    """

    def __init__(
        self,
        find_topic: Callable[[str], Topic],
        ensure_accepted: Callable[[Topic], None],
        monotonic_ms: Callable[[], int],
    ) -> None:
        """Start without any topic; `find_topic` is asked for each one that is missing or old.

        Args:
            find_topic: returns a topic as it is now; the same object as long as it has not changed.
            ensure_accepted: raises if the producer cannot write to a topic; called for each new object.
        """
        self._find_topic, self._ensure_accepted = find_topic, ensure_accepted
        self._monotonic_ms = monotonic_ms
        self._known: dict[str, _KnownTopic] = {}

    def __call__(self, name: str) -> Topic:
        """Return a topic as it was when last looked up; the same object as long as it has not changed.

        Raises:
            UnknownTopicOrPartitionError: it does not exist, or no longer exists.
        """
        known = self._known.get(name)
        now_ms = self._monotonic_ms()
        if known is not None and now_ms < known.next_look_ms:
            return known.topic
        try:
            topic = self._find_topic(name)
        except UnknownTopicOrPartitionError:
            self._known.pop(name, None)
            raise
        except (KafkaStorageError, ObjectStoreError, OSError) as error:
            if known is None:
                raise
            # The error may be transient; the transport will find out whether records can be written.
            logger.warning(
                "cannot look up topic %r, assuming that it is unchanged: %s", name, error
            )
            topic = known.topic
        if known is None or topic is not known.topic:
            self._ensure_accepted(topic)
        self._known[name] = _KnownTopic(topic, now_ms + REFRESH_MS)
        return topic

    def look_again(self, name: str) -> None:
        """Look a topic up again when it is next asked for, because an error concerned it."""
        known = self._known.get(name)
        if known is not None:
            self._known[name] = known._replace(next_look_ms=-(2**63))


class Producer:
    """A producer of records for any topics. Thread-safe; with `inline`, for one thread.

        with cluster.producer(linger_ms=5) as producer:
            future = producer.send("events", key=b"k", value=b"v", headers=[("h", b"x")])
            producer.send_arrow("events", table)
            future.result().offset

    Data is copied: the caller may change it once a call returns. A producer belongs to the process that
    created it: a fork, which lacks its thread, must create its own.
    """

    def __init__(
        self,
        config: ProducerConfig,
        transport: Transport,
        find_topic: Callable[[str], Topic],
        clock_ms: Callable[[], int],
        *,
        monotonic_ms: Callable[[], int] = monotonic_ms,
        new_producer_id: Callable[[], int] | None = None,
        nodes: Nodes | None = None,
        sequences: Sequences | None = None,
        metrics: ProducerMetrics | None = None,
        takes_runs: bool = False,
        inline: bool = False,
        seed: int | None = None,
    ) -> None:
        """Set up, and start the thread unless `inline`.

        Args:
            find_topic: called on first use of a topic and now and then; returns the same object as
                long as the topic has not changed.
            clock_ms: the time of day, for records without a time.
            monotonic_ms: the clock that batches wait by.
            new_producer_id: required for idempotence, or `sequences`.
            nodes: of the transport; one by default, which answers by itself.
            sequences: that an earlier producer passed on.
            metrics: of an earlier producer, which go on.
            takes_runs: whether the transport takes several batches of a partition together.
            inline: whether the caller's thread sends.
            seed: of everything that is random; by default a new one each time.
        """
        self._config, self._inline = config, inline
        self._misspelt: set[str] = set()  # columns that were warned of; each is once
        self._clock_ms, self._monotonic_ms = clock_ms, monotonic_ms
        self._has_warned_of_seconds = False
        codec = CODECS[config.compression_type]
        # At least four buffers, so that four partitions can have a batch, whatever batch.size is.
        batch_size = max(min(config.batch_size, config.buffer_memory // 4), RECORD_BATCH_OVERHEAD)
        # Before compression a batch may be several times as large. A compressor's result needs memory
        # of its own, beside the buffers, until it is copied back, one at a time.
        capacity_max = max(batch_size, config.buffer_memory // 16)
        scratch = capacity_max + capacity_max // 128 + 1024 if codec else 0
        self._pool = BufferPool(
            total_memory=max(config.buffer_memory - scratch, 1),
            poolable_size=batch_size,
            # Once a thread waits, the sender also takes batches that are not full.
            on_wait=self._wake_up,
        )
        if not config.enable_idempotence:
            sequences = None
        elif sequences is None and new_producer_id is not None:
            sequences = Sequences(new_producer_id)
        seed = uuid.uuid4().int if seed is None else seed
        self._accumulator = RecordAccumulator(
            AccumulatorConfig(
                batch_size=self._pool.poolable_size,
                linger_ms=config.linger_ms,
                codec=codec,
                level=config.compression_level,
                delivery_timeout_ms=config.delivery_timeout_ms,
                retry_backoff_ms=config.retry_backoff_ms,
                retry_backoff_max_ms=config.retry_backoff_max_ms,
                capacity_max=capacity_max,
                attributes=TRANSACTIONAL if config.transactional_id else 0,
                run_bytes_max=config.max_request_size if takes_runs else 0,
            ),
            self._pool,
            allocate=self._make_room if inline else self._wait_for_memory,
            on_ready=self._pump if inline else self._wake_up,
            sequences=sequences,
            seed=seed,
        )
        topics = KnownTopics(
            find_topic,
            lambda topic: ensure_codec_exists(topic, config.compression_type),
            monotonic_ms,
        )
        self._sender = Sender(
            self._accumulator,
            transport,
            SenderConfig(
                acks=config.acks,
                retries=config.retries,
                request_timeout_ms=config.request_timeout_ms,
                max_request_size=config.max_request_size,
                max_in_flight=config.max_in_flight_requests_per_connection,
            ),
            monotonic_ms,
            nodes=nodes,
            sequences=sequences,
            on_topic_error=topics.look_again,
            metrics=metrics,
        )
        custom = config.partitioner_class
        self._partitioner = Partitioner(
            topics,
            switch_bytes=config.batch_size,
            seed=seed,
            ignore_keys=config.partitioner_ignore_keys,
            adaptive=config.partitioner_adaptive_partitioning_enable,
            queue_sizes=self._accumulator.queue_sizes,
            custom=load_partitioner(custom) if isinstance(custom, str) else custom,
        )
        self._is_closed = False
        self._process_id = os.getpid()
        if not inline:
            self._sender.start()

    # Sending.

    def send(
        self,
        topic: str,
        value: Bytes | None = None,
        key: Bytes | None = None,
        *,
        headers: Iterable[tuple[str, Bytes | None]] | Mapping[str, Bytes | None] = (),
        partition: int | None = None,
        timestamp: int | datetime.datetime | None = None,
        callback: Callback | None = None,
        **unknown: Never,
    ) -> RecordFuture:
        """Send one record; text is written as UTF-8.

        Args:
            headers: pairs of a name and bytes, or a dict of them.
            partition: chosen by the partitioner by default.
            timestamp: in ms since 1970, or a `datetime` with a time zone; now by default.
            callback: called with the record's metadata, or with None and an error, once the record is
                written or has failed; in the sender's thread, in the order of a partition's records. For a
                record whose future fails at once, in this thread.
            unknown: refused; an error says how another client's argument is named here.

        Returns:
            A future. If the record is too large, or finds no memory within max.block.ms, the future
            fails.

        Raises:
            ConfigError: an argument has a wrong type or value.
            InvalidTimestampError: the time is before 1970, does not fit into a timestamp in
                microseconds, or passes the topic's limits.
            UnknownTopicOrPartitionError: the topic does not exist.
            ProducerClosedError: the producer is closed.
            ProducerForkedError: called in a fork of the process that created the producer.
        """
        self._ensure_open()
        now_ms = self._clock_ms()
        # Every argument is checked before anything changes.
        if unknown:
            _refuse_argument(next(iter(unknown)))
        _ensure_topic(topic)
        if timestamp is None:
            time_ms = now_ms
        else:
            time_ms = _time_ms(timestamp)
            if arguments.looks_like_seconds(time_ms) and not isinstance(
                timestamp, datetime.datetime
            ):
                self._warn_of_seconds(time_ms)
        if not NO_TIMESTAMP <= time_ms <= TIMESTAMP_MS_MAX:
            raise InvalidTimestampError(time_ms)
        key_bytes, value_bytes = _bytes("key", key), _bytes("value", value)
        header_bytes = [] if isinstance(headers, tuple) and not headers else _headers(headers)
        if partition is not None:
            partition = _integer("partition", partition)
        if callback is not None and not callable(callback):
            raise ConfigError(f"callback is a {type(callback).__name__}; accepted: a function")
        size = len(key_bytes or b"") + len(value_bytes or b"")
        size += sum(HEADER_OVERHEAD_MAX + len(k) + len(v or b"") for k, v in header_bytes)
        found, partition = self._partitioner.partition_one(topic, key_bytes, size, partition)
        found.ensure_time_accepted(time_ms, now_ms)
        if header_bytes:
            _ensure_headers_exist(found)
        size += RECORD_BATCH_OVERHEAD + RECORD_OVERHEAD_MAX
        futures: list[RecordFuture] = []

        def on_appended(batch: ProducerBatch, index: int) -> None:
            futures.append(RecordFuture(batch.result, index, time_ms))
            if callback is not None:
                batch.add_callback(index, 1, record_callback(callback, time_ms))

        try:
            self._ensure_size(size)
            record = time_ms, key_bytes, value_bytes, header_bytes
            self._accumulator.append_record(
                found, partition, record, size, self._monotonic_ms(), on_appended
            )
        except (BufferExhaustedError, RecordTooLargeError) as error:
            self._sender.first_error = self._sender.first_error or error
            if callback is not None:
                try:
                    callback(None, error)
                except Exception:
                    logger.exception("the callback of a record for topic %s failed", topic)
            return FailedFuture(error)
        return futures[0]

    def send_arrow(
        self, topic: str | None, rows: Any, *, callback: ArrowCallback | None = None
    ) -> ArrowFuture:
        """Send every row of a table.

        Args:
            topic: of all rows; None if they have a column `topic`.
            rows: a pyarrow RecordBatch or Table, or anything that pyarrow can make one of: a dict of
                columns, a reader, a Polars or pandas DataFrame, any Arrow stream or array. The columns
                are those of Spark's Kafka sink: value; optionally key, topic, partition, headers and
                timestamp. Others are ignored, with a warning for a name that looks like one of these.
            callback: called with a RecordBatch of topic, partition and offset for every row, or with
                None and an error, once all rows are written or have failed; in the sender's thread.

        Returns:
            A future of each row's offset.

        Raises:
            ConfigError: a column has a wrong type, or a value that no record can have; no row is sent.
            InvalidTimestampError: a time is before 1970, or passes its topic's limits; no row is sent.
            UnknownTopicOrPartitionError: a topic does not exist; no row is sent.
            BufferExhaustedError, RecordTooLargeError: rows before the one that failed may be sent.
            ProducerClosedError: the producer is closed.
            ProducerForkedError: called in a fork of the process that created the producer.
        """
        self._ensure_open()
        if topic is not None:
            _ensure_topic(topic)
        if callback is not None and not callable(callback):
            raise ConfigError(f"callback is a {type(callback).__name__}; accepted: a function")
        table = arrow.sendable(_table(rows), has_topic=topic is not None)
        warn_of_misspelt(table.schema.names, self._misspelt)
        batches = table.to_batches() if isinstance(table, pa.Table) else [table]
        # Every row is checked before the first one is added.
        checked = [one for batch in batches for one in self._checked(batch, topic)]
        future = ArrowFuture(callback)
        first_row = 0
        for one in checked:
            self._append(one, first_row, future)
            first_row += one.columns.rows_count
        future.close(first_row)
        return future

    def append(self, rows: pa.RecordBatch, topic: str | None) -> list[RoutedRows]:
        """Send rows as `send_arrow` does, without a future, and return them.

        The caller has checked the columns.
        """
        routed = self._checked(rows, topic)
        for one in routed:
            self._append(one, 0, None)
        return routed

    def ensure_delivered(self) -> None:
        """Raise the error of the first record that failed, if any."""
        if self._sender.first_error is not None:
            raise self._sender.first_error

    def flush(self, timeout: float | None = None) -> None:
        """Send everything that is waiting, and wait until each record is written or has failed.

        Args:
            timeout: in seconds; None waits without limit.

        Raises:
            RequestTimedOutError: the time is up; the rest is still being sent.
            ProducerForkedError: called in a fork of the process that created the producer.
            KBatchError: called by a callback, whose own batch it would wait for.
        """
        timeout = None if timeout is None else arguments.seconds("timeout", timeout)
        self._ensure_not_forked()
        self.ensure_no_callback("flush()")
        self._accumulator.begin_flush()
        try:
            if self._inline:
                self._pump()
            else:
                self._wake_up()
            self._accumulator.await_flush(timeout)
        finally:
            self._accumulator.end_flush()

    def close(self, timeout: float | None = None) -> None:
        """Send everything that is waiting, within `timeout` seconds, and stop. Safe to call again, from any thread.

        Futures of records that were not delivered by then fail with ProducerClosedError. The process
        keeps the memory, up to 64 MiB, for its next producer. In a fork this does nothing: records from
        before the fork are the parent's to send.
        """
        timeout = None if timeout is None else arguments.seconds("timeout", timeout)
        if self._process_id == os.getpid():
            self._is_closed = True
            self._sender.close(timeout)

    def ensure_no_callback(self, what: str) -> None:
        """Raise KBatchError if a callback calls what waits for batches to end."""
        if self._sender.is_current_thread:
            raise KBatchError(
                f"{what} in a callback would wait for the callback's own batch; call it elsewhere"
            )

    def abandon(self, error: KBatchError, timeout: float) -> None:
        """Stop without sending what is waiting; no callback may call this.

        Returns when no thread sends any more.

        Args:
            error: of the records that are not sent.
            timeout: in seconds, for answers to requests in flight; records without an answer by then fail as for
                `close`.
        """
        self._sender.why_given_up = error
        self.close(timeout)
        self._sender.close(None)

    def metrics(self) -> dict[str, float | None]:
        """Return what was sent, by the names of Kafka's producer metrics; sizes are bytes, times ms.

        Totals are since the producer was made. Rates per second, averages and maxima are of the last 30 to
        60 seconds; None is an average or a maximum of nothing.
        """
        return {
            **self._sender.metrics.as_dict(self._monotonic_ms()),
            "requests-in-flight": self._sender.requests_in_flight,
            "buffer-total-bytes": len(self._pool.memory),
            "buffer-available-bytes": self._pool.available,
            "waiting-threads": self._pool.queued,
        }

    def written(self) -> dict[TopicPartition, Written]:
        """Return what was written so far, by partition."""
        return self._sender.metrics.by_partition()

    def why_waiting(self) -> Exception | None:
        """Return the error for which records wait to be sent again, such as a full disk; None if none do."""
        return self._sender.why_waiting

    def __repr__(self) -> str:
        acks = "all" if self._config.acks == -1 else self._config.acks
        return f"<Producer with acks={acks}, {'closed' if self._is_closed else 'open'}>"

    def __reduce__(self) -> NoReturn:
        raise NotPicklableError(
            "Producer", "open the cluster and its producer in the function, in each task"
        )

    def __dir__(self) -> list[str]:
        return [
            name
            for name in super().__dir__()
            if name not in ("abandon", "append", "ensure_no_callback", "written")  # our own
        ]

    def __enter__(self) -> Self:
        self._ensure_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; if the block raised, at once, without sending the rest."""
        self.close(timeout=None if error is None else 0)

    # Inside.

    def _checked(self, batch: pa.RecordBatch, topic: str | None) -> list[RoutedRows]:
        """Check and route the rows, split so that each column's bounds fit into int32."""
        arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
        now_ms = self._clock_ms()
        try:
            columns = arrow.columns(
                batch.num_rows,
                key=arrays.get("key"),
                value=arrays.get("value"),
                timestamps=arrow.timestamps_ms(arrays.get("timestamp"), batch.num_rows, now_ms),
                headers=arrays.get("headers"),
            )
        except OverflowError:
            # More than 2 GiB in one column of an Arrow batch, which int32 bounds cannot address.
            half = batch.num_rows // 2
            if half == 0:
                raise RecordTooLargeError(
                    "a record", INT_MAX + 1, INT_MAX, "max.message.bytes"
                ) from None
            halves = batch.slice(0, half), batch.slice(half)
            return [one for part in halves for one in self._checked(part, topic)]
        routing = self._partitioner.partition(
            columns,
            arrays.get("topic") if topic is None else topic,
            arrays.get("partition"),
            arrays.get("key"),
        )
        _ensure_times_accepted(columns.timestamps, routing, now_ms)
        times = arrays.get("timestamp")
        # A column of times has a unit.
        if times is not None and times.type == pa.int64() and not self._has_warned_of_seconds:
            for timestamp in (
                (columns.timestamps.min(), columns.timestamps.max()) if len(times) else ()
            ):
                if arguments.looks_like_seconds(int(timestamp)):
                    self._warn_of_seconds(int(timestamp))
        if len(columns.headers.bounds):
            _ensure_rows_fit(columns.headers.bounds, routing)
        return [RoutedRows(columns, routing)]

    def _warn_of_seconds(self, time_ms: int) -> None:
        """Warn about a time that looks like one in seconds; once."""
        if not self._has_warned_of_seconds:
            self._has_warned_of_seconds = True
            logger.warning("%s", arguments.in_seconds("timestamp", time_ms))

    def _append(self, rows: RoutedRows, first_row: int, future: ArrowFuture | None) -> None:
        def on_appended(to: ProducerBatch, first: int, taken: Array) -> None:
            assert future is not None
            future.add(to.result, first, taken + np.int32(first_row) if first_row else taken)
            to.add_callback(first, len(taken), future.count_down)

        told = None if future is None else on_appended
        try:
            self._accumulator.append(rows.columns, rows.routing, self._monotonic_ms(), told)
        except (BufferExhaustedError, RecordTooLargeError) as error:
            self._sender.first_error = self._sender.first_error or error
            raise

    def _wait_for_memory(self, size: int) -> int:
        is_callback = self._sender.is_current_thread
        try:
            return self._pool.allocate(size, 0 if is_callback else self._config.max_block_ms)
        except BufferExhaustedError as error:
            if is_callback:
                raise replace(error, is_in_callback=True) from None
            why = self._sender.why_waiting
            raise error if why is None else replace(error, why=str(why)) from why

    def _make_room(self, size: int) -> int:
        start = self._pool.try_allocate(size)
        while start is None:
            self._accumulator.send_fullest()
            self._pump()
            start = self._pool.try_allocate(size)
        return start

    def _pump(self) -> None:
        self._sender.send_ready()
        self.ensure_delivered()

    def _wake_up(self) -> None:
        self._sender.wake_up()

    def _ensure_not_forked(self) -> None:
        # Before any lock is taken: in the fork it may be locked for ever, by a thread of the parent.
        if self._process_id != os.getpid():
            raise ProducerForkedError(self._process_id, os.getpid())

    def _ensure_open(self) -> None:
        self._ensure_not_forked()
        if self._is_closed:
            raise ProducerClosedError("the producer is closed")

    def _ensure_size(self, size: int) -> None:
        if size > self._config.max_request_size:
            raise RecordTooLargeError(
                "a record", size, self._config.max_request_size, "max.request.size"
            )


def _ensure_times_accepted(timestamps: Array, routing: Routing, now_ms: int) -> None:
    """Check every row's time against its topic's limits."""
    for topic in routing.topics:
        if topic.limits_times:
            times = timestamps[_is_of(topic, routing) & (timestamps >= 0)]
            for timestamp in (times.min(), times.max()) if len(times) else ():
                topic.ensure_time_accepted(int(timestamp), now_ms)


def _is_of(topic: Topic, routing: Routing) -> Array:
    """Return bool[n]: whether each row goes to the topic."""
    # By name: the topic's object may have been replaced meanwhile.
    is_its = [other.name == topic.name for other, _ in routing.partitions[: len(routing.counts)]]
    found: Array = np.array(is_its, np.bool_)[routing.slots]
    return found


def _ensure_headers_exist(topic: Topic) -> None:
    if topic.message_magic < MAGIC:
        raise ConfigError(
            f"a record for topic {topic.name!r} has headers, which the topic's "
            f"message.format.version={topic.known_config.message_format_version} does not support; leave them "
            "out, or write to a topic with version 0.11.0 or later"
        )


def _ensure_rows_fit(headers_bounds: Array, routing: Routing) -> None:
    """Check that no row with headers goes to a topic whose format has no headers."""
    for topic in routing.topics:
        if topic.message_magic < MAGIC:
            # The headers of a row without any take one byte, their count.
            has_headers = np.diff(headers_bounds) > 1
            if has_headers[_is_of(topic, routing)].any():
                _ensure_headers_exist(topic)


def _table(rows: Any) -> pa.Table | pa.RecordBatch:
    if isinstance(rows, (pa.RecordBatch, pa.Table)):
        return rows
    if isinstance(rows, pa.RecordBatchReader):
        return rows.read_all()
    try:
        return pa.table(rows)
    except (TypeError, ValueError, OverflowError, OSError, pa.ArrowException) as error:
        raise ConfigError(
            f"rows are a {type(rows).__name__}, which pyarrow.table does not accept ({error}); accepted: "
            "a pyarrow Table or RecordBatch, a dict of columns, a DataFrame, or an Arrow stream"
        ) from error


def _ensure_topic(topic: Any) -> None:
    if not isinstance(topic, str):
        raise ConfigError(f"topic is a {type(topic).__name__}; accepted: text")


def _integer(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise ConfigError(
            f"{name} is a {type(value).__name__}, {arguments.shown(value)}; accepted: a whole number"
        ) from None


def _time_ms(timestamp: Any) -> int:
    if isinstance(timestamp, datetime.datetime):
        return arguments.time_ms("timestamp", timestamp)
    try:
        return operator.index(timestamp)
    except TypeError:
        accepts = "milliseconds since 1970 as a whole number, or a datetime with a time zone"
        arguments.refuse("timestamp", timestamp, accepts)


# What other clients for Python call arguments of `send`.
_OTHER_NAMES = {"on_delivery": "callback", "timestamp_ms": "timestamp"}


def _refuse_argument(name: str) -> NoReturn:
    """Raise Python's error for an argument that `send` does not have, with the name that it has here."""
    known = [*inspect.signature(Producer.send).parameters][1:-1]
    nearest = difflib.get_close_matches(name, known, n=1)
    meant = _OTHER_NAMES.get(name, *nearest[:1])
    hint = f"did you mean {meant!r}?" if meant else f"accepted: {', '.join(known)}"
    raise TypeError(f"send() got an unexpected keyword argument {name!r}; {hint}")


def _bytes(name: str, value: Bytes | None) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return _utf8(name, value)
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise ConfigError(f"{name} is a {type(value).__name__}; accepted: bytes, text or None")


def _utf8(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{name} is text with a lone surrogate at position {error.start}, which UTF-8 cannot "
            "encode; accepted: bytes, or text without lone surrogates"
        ) from None


def _headers(headers: Any) -> list[Header]:
    if headers is None:
        return []
    if isinstance(headers, Mapping):
        headers = headers.items()
    if isinstance(headers, Iterable) and not isinstance(headers, (str, bytes)):
        return [_header(header) for header in headers]
    raise ConfigError(
        f"headers are a {type(headers).__name__}; accepted: pairs of a name and bytes, or a dict"
    )


def _header(header: Any) -> Header:
    if not isinstance(header, (tuple, list)) or len(header) != 2:
        raise ConfigError(
            f"a header is {arguments.shown(header)}; accepted: a pair of a name and bytes"
        )
    key, value = header
    if not isinstance(key, str):
        raise ConfigError(f"a header's key is {arguments.shown(key)}; accepted: text")
    return _utf8("a header's key", key), _bytes(f"header {key!r}", value)
