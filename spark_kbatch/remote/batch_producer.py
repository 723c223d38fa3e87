"""A transactional producer of finished batches: the producer's sender, in the caller's thread.

    producer = BatchProducer(transactions)              # after transactions.take_over()
    producer.send(topic, 0, data, records_count, attributes)
    producer.flush()                                    # until all is written
    transactions.end(commit=True)                       # or producer.abort()

Order, retries, leaders and time-outs are those of any producer: `sender`, `idempotence`, `transport`. Batches are
sent as they are, with the producer's id, epoch and sequence numbers. A batch has as much time as its transaction,
which the cluster would abort by then.
"""

from __future__ import annotations

import contextlib

from spark_kbatch.errors import (
    KBatchError,
    RequestTimedOutError,
    RetriableError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import BATCHES_REMEMBERED, INT_MAX, TopicPartition
from spark_kbatch.options.topic import Topic
from spark_kbatch.producer.accumulator import AccumulatorConfig, RecordAccumulator
from spark_kbatch.producer.batch import ProducerBatch
from spark_kbatch.producer.memory import BufferPool
from spark_kbatch.producer.sender import Sender, SenderConfig
from spark_kbatch.record.builder import RecordBatchBuilder
from spark_kbatch.record.header import TRANSACTIONAL
from spark_kbatch.remote.transactions import Transactions
from spark_kbatch.remote.transport import BrokerTransport

_MOST_BYTES = 16 * 1024 * 1024  # not yet written, before `send` waits
_REQUEST_BYTES = 8 * 1024 * 1024  # at which a request takes no further batch
_ABORT_TIMEOUT_MS = 5_000


class BatchProducer:
    """A producer of finished batches in one transactional id's transactions, after it has taken over.

    Not thread-safe; shares the transactions' client.
    """

    def __init__(self, transactions: Transactions) -> None:
        """Set up without batches, for the producer id and epoch that the transactions have now."""
        self._transactions, self._client = transactions, transactions.client
        options = self._client.options
        self._transport = BrokerTransport(options, transactions=transactions)
        self._doubtful: set[str] = set()  # topics with an error, which may have been deleted
        sequences = self._transport.sequences
        pool = BufferPool(total_memory=0, poolable_size=0)  # batches have their own memory
        self._accumulator = RecordAccumulator(
            AccumulatorConfig(
                batch_size=0,
                linger_ms=0,
                codec=0,
                level=None,
                delivery_timeout_ms=transactions.timeout_ms,
                retry_backoff_ms=options.retry_backoff_ms,
                retry_backoff_max_ms=options.retry_backoff_max_ms,
                capacity_max=0,
            ),
            pool,
            allocate=lambda size: pool.allocate(size, 0),
            on_ready=lambda: None,
            sequences=sequences,
        )
        self._sender = Sender(
            self._accumulator,
            self._transport,
            SenderConfig(
                acks=-1,
                retries=INT_MAX,
                request_timeout_ms=options.request_timeout_ms,
                max_request_size=_REQUEST_BYTES,
                max_in_flight=BATCHES_REMEMBERED,
            ),
            self._client.monotonic_ms,
            nodes=self._transport,
            sequences=sequences,
            on_topic_error=self._doubtful.add,
        )
        self._bytes = 0  # not yet written
        self._topics: dict[str, Topic] = {}

    def send(
        self, topic: Topic, partition: int, data: bytearray, records_count: int, attributes: int
    ) -> None:
        """Send a batch after others of its partition, and wait while too many bytes are not written.

        Raises:
            as `flush`, also for earlier batches; as Transactions.add_partitions.
        """
        self._topics[topic.name] = topic
        topic_partition, size = TopicPartition(topic.name, partition), len(data)
        self._transactions.add_partitions([topic_partition])
        batch = ProducerBatch(
            topic,
            topic_partition,
            RecordBatchBuilder.finished(memoryview(data), records_count),
            self._client.monotonic_ms(),
            attributes=attributes | TRANSACTIONAL,
        )

        def on_end(*_: object) -> None:
            self._bytes -= size

        batch.add_callback(0, records_count, on_end)
        self._bytes += size
        self._accumulator.put(batch)
        self._sender.run_until(lambda: self._is_below(_MOST_BYTES))

    def flush(self) -> None:
        """Wait until the brokers have written all batches sent so far.

        Raises:
            UnknownTopicOrPartitionError: a topic was deleted meanwhile, and may have been created again.
            RequestTimedOutError: a batch was not written in time; says why.
            KBatchError: a batch was refused.
        """
        self._sender.run_until(lambda: self._is_below(0))

    def abort(self) -> None:
        """Drop what was not sent, and abort the transaction once all requests are answered.

        If that fails, or they are not answered soon, the next producer of the name aborts it, or the cluster when its
        time is up.
        """
        end_ms = self._client.monotonic_ms() + _ABORT_TIMEOUT_MS

        def is_over() -> bool:
            self._accumulator.take_all()
            has_time = self._client.monotonic_ms() < end_ms
            return not (self._sender.requests_in_flight and has_time)

        if not is_over():
            self._sender.run_until(is_over)
        error = self._sender.first_error
        may_come_late = self._sender.requests_in_flight or isinstance(error, RetriableError)
        self._sender.close(0)
        self._client.connections.disconnect_busy("the transaction is aborted")
        # A request that brokers before Kafka 3.6 execute after the end would begin another transaction, which the
        # next producer's commit would commit. Its first request, and the time-out, abort with a new epoch, so that
        # a late one is refused.
        if not may_come_late:
            with contextlib.suppress(KBatchError):
                self._transactions.end(commit=False, timeout_ms=_ABORT_TIMEOUT_MS)

    def _is_below(self, most_bytes: int) -> bool:
        """Return True if no more bytes than this are not written; raise the error of a batch that failed."""
        error = self._sender.first_error
        if isinstance(error, RetriableError):  # the time was up
            why = self._transport.why_unreachable
            raise RequestTimedOutError(
                f"{self._client.options} did not write a batch within the transaction's "
                f"{self._transactions.timeout_ms} ms: {error}{'' if why is None else f'; {why}'}"
            ) from error
        if error is not None:
            raise error
        doubtful = self._doubtful | self._transport.unknown_topics
        self._doubtful.clear()
        for name in doubtful:
            self._ensure_same(name)
        return self._bytes <= most_bytes

    def _ensure_same(self, name: str) -> None:
        """Raise UnknownTopicOrPartitionError if a topic was deleted since its first batch."""
        self._client.invalidate()
        if self._client.topic(name).topic_id != self._topics[name].topic_id:
            raise UnknownTopicOrPartitionError(
                f"topic {name!r} of {self._client.options} was deleted and created again while a "
                "transaction wrote to it"
            )
