"""The metrics of a producer, by the names of Kafka's producer metrics.

The sender alone writes, for each batch or request and not for each record, so nothing is locked. Readers may see
a batch counted in one number and not yet in the next.

As in Kafka, rates, averages and maxima are of the last 30 to 60 seconds: of two samples, each of which takes what
comes for 30 seconds, and is dropped 30 seconds later. A rate is per second of at least 30.

Source: Kafka clients/producer/internals/SenderMetricsRegistry.java, Sender.java (SenderMetrics),
clients/.../common/metrics/stats/Rate.java.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from spark_kbatch.model import TopicPartition
from spark_kbatch.producer.batch import NO_OFFSET, ProducerBatch

_SAMPLE_MS = 30_000  # metrics.sample.window.ms


class Written(NamedTuple):
    """The records that a producer wrote to one partition: their number, bytes, first and last offset.

    Others may have written between these offsets, too.
    """

    records_count: int
    size_in_bytes: int
    first_offset: int  # -1 where the answer has none
    last_offset: int


class _Sample:
    """Sums and maxima of about 30 seconds."""

    __slots__ = (
        "answers",
        "batch_bytes_max",
        "batches",
        "bytes",
        "errors",
        "latency_ms",
        "latency_ms_max",
        "plain_bytes",
        "queue_ms",
        "queue_ms_max",
        "records",
        "requests",
        "retries",
        "splits",
        "started_ms",
    )  # fmt: skip

    def __init__(self, started_ms: int) -> None:
        self.started_ms = started_ms
        self.requests = self.answers = self.batches = self.records = 0
        self.errors = self.retries = self.splits = 0
        self.bytes = self.plain_bytes = self.batch_bytes_max = 0
        self.latency_ms = self.latency_ms_max = self.queue_ms = self.queue_ms_max = 0


class ProducerMetrics:
    """Counts of one producer, written by its sender."""

    def __init__(self, now_ms: int) -> None:
        """Set up metrics that count from `now_ms` on."""
        self._samples = [_Sample(now_ms)]  # at most two, the latest last
        self.records = self.errors = self.retries = self.splits = self.requests = self.bytes = 0
        self._written: dict[TopicPartition, list[int]] = {}  # fields of Written

    def sent(self, batches: Iterable[ProducerBatch], now_ms: int) -> None:
        """Count a request with these batches."""
        sample = self._sample(now_ms)
        sample.requests += 1
        self.requests += 1
        count = records = size = plain_size = queue_ms = 0
        size_max, queue_ms_max = sample.batch_bytes_max, sample.queue_ms_max
        for batch in batches:
            waited_ms = now_ms - batch.created_ms
            records += batch.records_count
            for part in batch.builder.parts:
                batch_size = len(part.data)
                count += 1
                size += batch_size
                plain_size += part.uncompressed_size
                queue_ms += waited_ms
                if batch_size > size_max:
                    size_max = batch_size
            if waited_ms > queue_ms_max:
                queue_ms_max = waited_ms
        sample.batches += count
        sample.records += records
        sample.bytes += size
        sample.plain_bytes += plain_size
        sample.queue_ms += queue_ms
        sample.batch_bytes_max, sample.queue_ms_max = size_max, queue_ms_max
        self.records += records
        self.bytes += size

    def answered(self, latency_ms: int, now_ms: int) -> None:
        """Count an answer to a request."""
        sample = self._sample(now_ms)
        sample.answers += 1
        sample.latency_ms += latency_ms
        sample.latency_ms_max = max(sample.latency_ms_max, latency_ms)

    def written(self, batch: ProducerBatch, base_offset: int) -> None:
        """Count a batch that was written, at an offset that may be unknown."""
        count, size = batch.records_count, batch.builder.estimated_size_in_bytes
        last_offset = base_offset + count - 1 if base_offset >= 0 else NO_OFFSET
        known = self._written.get(batch.topic_partition)
        if known is None:
            self._written[batch.topic_partition] = [count, size, base_offset, last_offset]
            return
        known[0] += count
        known[1] += size
        if known[2] < 0:
            known[2] = base_offset
        if last_offset > known[3]:
            known[3] = last_offset

    def failed(self, records_count: int, now_ms: int) -> None:
        """Count records that could not be written."""
        self._sample(now_ms).errors += records_count
        self.errors += records_count

    def retried(self, records_count: int, now_ms: int) -> None:
        """Count records that will be sent again."""
        self._sample(now_ms).retries += records_count
        self.retries += records_count

    def split(self, now_ms: int) -> None:
        """Count a batch that was too large."""
        self._sample(now_ms).splits += 1
        self.splits += 1

    def by_partition(self) -> dict[TopicPartition, Written]:
        """Return what was written, by partition."""
        return {tp: Written(*fields) for tp, fields in self._written.copy().items()}

    def as_dict(self, now_ms: int) -> dict[str, float | None]:
        """Return the metrics by Kafka's names, except those of memory and connections.

        None stands for an average or a maximum of nothing.
        """
        samples = [one for one in self._samples if now_ms - one.started_ms < 2 * _SAMPLE_MS]
        ages_ms = [now_ms - one.started_ms for one in samples]
        seconds = max(*ages_ms, _SAMPLE_MS, 0) / 1000

        def total(name: str) -> int:
            return sum(getattr(sample, name) for sample in samples)

        def rate(name: str) -> float:
            return total(name) / seconds

        def average(name: str, of: str) -> float | None:
            return total(name) / total(of) if total(of) else None

        def largest(name: str, of: str) -> int | None:
            return max(getattr(sample, name) for sample in samples) if total(of) else None

        return {
            "record-send-rate": rate("records"),
            "record-send-total": self.records,
            "record-error-rate": rate("errors"),
            "record-error-total": self.errors,
            "record-retry-rate": rate("retries"),
            "record-retry-total": self.retries,
            "record-size-avg": average("plain_bytes", "records"),
            "records-per-request-avg": average("records", "requests"),
            "record-queue-time-avg": average("queue_ms", "batches"),
            "record-queue-time-max": largest("queue_ms_max", "batches"),
            "batch-size-avg": average("bytes", "batches"),
            "batch-size-max": largest("batch_bytes_max", "batches"),
            "batch-split-rate": rate("splits"),
            "batch-split-total": self.splits,
            "compression-rate-avg": average("bytes", "plain_bytes"),
            "request-rate": rate("requests"),
            "request-total": self.requests,
            "request-latency-avg": average("latency_ms", "answers"),
            "request-latency-max": largest("latency_ms_max", "answers"),
            "outgoing-byte-rate": rate("bytes"),
            "outgoing-byte-total": self.bytes,
        }

    def _sample(self, now_ms: int) -> _Sample:
        """Return the current metrics sample, a new one once 30 seconds have passed."""
        latest = self._samples[-1]
        if now_ms - latest.started_ms >= _SAMPLE_MS:
            # Replaced, not changed: others read it.
            latest = _Sample(now_ms)
            self._samples = [self._samples[-1], latest]
        return latest
