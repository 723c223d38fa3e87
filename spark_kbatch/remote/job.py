"""A Spark job's write to a real Kafka cluster: begin on the driver, send in tasks, commit or abort.

Nothing here knows of Spark.

    job = RemoteJob.begin(options)          # driver: checks the options; creates the topic if it may
    sent = job.stage(rows)                  # each task: sends all rows, and waits until each is written
    job.commit_batch([sent, ...])           # driver: counts them
    job.abort([sent, ...])                  # or, after a failure: nothing can be taken back

It is what Spark's own Kafka sink promises: at least once. A row is visible once it is written; a task that fails,
or is run again, or a micro-batch that is repeated, writes its rows again: none is noted anywhere, so
none is skipped, whatever became of its checkpoint. Within a task each record is written
once and in order, whatever becomes of requests, because the producer is idempotent unless options say otherwise.

A worker's connections and its producer id outlive the task (`client`, `transport`).

Where it differs from Spark's sink:

    linger.ms, batch.size       not set and 1 MiB, not 0 and 16 KiB: a batch is sent when it is full, when memory is
                                short, and at the end of the task
    a missing topic             is never made by looking it up; created where `num.partitions` is given (for a
                                micro-batch by its first rows), else refused on the driver, with the names of those
                                that exist
    num.partitions, replication.factor, topic settings
                                an existing topic must have them
    a column `timestamp`        becomes the records' times; Spark's sink ignores it
    partitioner.class           a Python function
    rows of a failed task       as with Spark's sink they stay; their number is logged

Source: Spark connector/kafka-0-10-sql/.../KafkaWriteTask.scala, KafkaBatchWrite.scala, KafkaStreamingWrite.scala.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from spark_kbatch.clock import monotonic_s
from spark_kbatch.errors import (
    ConfigError,
    KBatchError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import TopicPartition, ranges_shown
from spark_kbatch.options.producer import ProducerConfig, fair_batch_size, parse_producer_options
from spark_kbatch.options.remote import ClusterOptions
from spark_kbatch.options.topic import topic_key
from spark_kbatch.options.write import WriteOptions
from spark_kbatch.producer.metrics import Written
from spark_kbatch.remote.client import Client, leased
from spark_kbatch.remote.metadata import TopicMetadata
from spark_kbatch.remote.producer import open_producer
from spark_kbatch.wire.errors import error_of
from spark_kbatch.wire.protocol import ApiKey, DescribeConfigsRequest

logger = logging.getLogger(__name__)

_TOPIC_RESOURCE = 2  # of DescribeConfigs


class Sent(NamedTuple):
    """The records and offsets that one task wrote, by partition, and the seconds it took."""

    records_count: int
    written: Mapping[TopicPartition, Written]
    seconds: float


class RemoteJob:
    """A Spark job that writes to a real cluster: options, checked on the driver and copied to tasks."""

    def __init__(
        self, options: WriteOptions, config: ProducerConfig, *, is_found: bool = False
    ) -> None:
        """Store the options and the producer's configuration that `begin` has checked.

        Args:
            is_found: whether the driver has seen to the topic, which the options then name.
        """
        self.options, self._config, self._is_found = options, config, is_found

    @classmethod
    def begin(
        cls, options: WriteOptions, *, overwrite: bool = False, is_micro_batch: bool = False
    ) -> RemoteJob:
        """Check a write's options on the driver; create a missing topic if `num.partitions` is given.

        A micro-batch leaves that to its first rows.

        Raises:
            ConfigError: save mode "overwrite"; options that contradict each other, or the topic.
            UnknownTopicOrPartitionError: the topic does not exist, and may not be created.
            RequestTimedOutError: no broker answered.
        """
        cluster = _cluster_of(options)
        if overwrite:
            raise ConfigError(
                f'save mode "overwrite" is not supported for a real cluster ({cluster}), as with '
                'format("kafka"): use mode("append"), and delete the topic, or its records, first where '
                "that is meant"
            )
        config = producer_config(options)
        topic = None
        with leased(cluster) as client:
            if options.topic is None:
                client.metadata(())
            else:
                find = find_topic if is_micro_batch else ensure_topic
                topic = find(options, client, options.topic)
                count = len(topic.partitions) if topic else options.num_partitions or 1
                size = fair_batch_size(config.batch_size, config.buffer_memory, count)
                config = replace(config, batch_size=size)
        return cls(options, config, is_found=topic is not None)

    def stage(
        self,
        rows: Iterable[pa.RecordBatch],
        *,
        application_id: str | None = None,
        query_id: str | None = None,
        run_id: str | None = None,
    ) -> Sent:
        """Send all rows of one Spark task to the cluster, and wait until each is written.

        Raises:
            KBatchError: the first row that could not be written; others may be.
        """
        producer = open_producer(
            _cluster_of(self.options),
            self._config,
            ensure_topic=None if self._is_found else partial(ensure_topic, self.options),
        )
        count, done, began_s = 0, False, monotonic_s()
        try:
            for batch in rows:
                producer.append(batch, self.options.topic)
                producer.ensure_delivered()
                count += batch.num_rows
            producer.flush()
            producer.ensure_delivered()
            done = True
        finally:
            producer.close(timeout=None if done else 0)
        return Sent(count, producer.written(), monotonic_s() - began_s)

    def commit_batch(self, staged: Sequence[Sent]) -> None:
        """Log how much a batch job wrote, which is visible in the cluster already."""
        self._report("a batch job", staged)

    def commit_micro_batch(
        self, staged: Sequence[Sent], number: int, read_plan: object = None
    ) -> None:
        """Log how much a micro-batch wrote, which is visible in the cluster already."""
        self._report(f"micro-batch {number}", staged)

    def abort(self, staged: Sequence[Sent]) -> None:
        """Warn how many records of a failed job stay in the cluster, as they cannot be taken back."""
        count = sum(one.records_count for one in staged)
        if count:
            logger.warning(
                "a job failed; the %d records that its finished tasks wrote to %s stay there, and are "
                "written again if it is run again",
                count,
                self.options.cluster,
            )

    def _report(self, what: str, staged: Sequence[Sent]) -> None:
        logger.info(
            "%s to %s: %d records, %d bytes, %s, the longest task in %.3f s",
            what,
            self.options.cluster,
            sum(one.records_count for one in staged),
            sum(part.size_in_bytes for one in staged for part in one.written.values()),
            ranges_shown(_ranges(staged)),
            max((one.seconds for one in staged), default=0.0),
        )


def _ranges(staged: Sequence[Sent]) -> dict[TopicPartition, tuple[int, int]]:
    """Return the range of offsets that a job's tasks wrote in each partition, with an exclusive end."""
    found: dict[TopicPartition, tuple[int, int]] = {}
    for tp, part in (pair for one in staged for pair in one.written.items()):
        if part.first_offset >= 0:
            start, end = found.get(tp, (part.first_offset, 0))
            found[tp] = min(start, part.first_offset), max(end, part.last_offset + 1)
    return found


def producer_config(options: WriteOptions) -> ProducerConfig:
    """Return the producer configuration for a job's tasks, from the options of the write.

    Raises:
        ConfigError: an option has a bad value, or they contradict each other.
    """
    values: dict[str, Any] = {
        "acks": options.acks,
        "batch.size": options.batch_size,
        "buffer.memory": options.buffer_memory,
        "compression.type": options.compression_type,
        "linger.ms": options.linger_ms or 0,
        "partitioner.class": options.partitioner_class,
        "partitioner.ignore.keys": options.partitioner_ignore_keys,
        "request.timeout.ms": options.request_timeout_ms,
        f"compression.{options.compression_type}.level": options.compression_level,
        **options.producer,
    }
    given = {key: value for key, value in values.items() if value is not None}
    config = parse_producer_options(given)
    if options.linger_ms is not None:
        return config
    # A batch waits until it is full, but not so long that it has no time left to be delivered.
    return replace(config, linger_ms=(config.delivery_timeout_ms - config.request_timeout_ms) // 2)


def find_topic(options: WriteOptions, client: Client, name: str) -> TopicMetadata | None:
    """Return a write's topic, checked against the options; None if it does not exist, but may be created.

    Raises:
        ConfigError: it exists with other settings than the options name.
        UnknownTopicOrPartitionError: it does not exist, and may not be created.
    """
    try:
        topic = client.topic(name)
    except UnknownTopicOrPartitionError as error:
        if options.num_partitions is None:
            raise UnknownTopicOrPartitionError(
                f"{error}. A topic is created only if the option 'num.partitions' is given"
            ) from None
        return None
    _ensure_fits(options, client, topic)
    return topic


def ensure_topic(options: WriteOptions, client: Client, name: str) -> TopicMetadata:
    """Return a write's topic, checked against the options, or create it if `num.partitions` is given.

    Raises the errors of `find_topic`.
    """
    topic = find_topic(options, client, name)
    if topic is None:
        topic = _create(options, client, name, options.num_partitions or 1)
        _ensure_fits(options, client, topic)
    return topic


def _ensure_fits(options: WriteOptions, client: Client, topic: TopicMetadata) -> None:
    differs, name = options.ensure_equal, topic.name
    differs(name, "num.partitions", options.num_partitions, len(topic.partitions))
    replicas = len(topic.partitions[0].replicas)
    differs(name, "replication.factor", options.replication_factor, replicas)
    if options.topic_config:
        found = _settings(client, name)
        for field, wanted in options.topic_config.items():
            key = topic_key(field)
            differs(name, key, str(wanted), found.get(key, "not set"))


def _create(options: WriteOptions, client: Client, name: str, partitions: int) -> TopicMetadata:
    settings = {topic_key(field): value for field, value in options.topic_config.items()}
    try:
        if client.create_topic(name, partitions, options.replication_factor or -1, settings):
            logger.info(
                "created topic %r with %d partitions in %s", name, partitions, options.cluster
            )
    except TopicAlreadyExistsError:
        pass  # another task, or another job, was faster
    return client.topic(name)


def _settings(client: Client, name: str) -> dict[str, str]:
    """Return a topic's settings by Kafka's keys, from a DescribeConfigs request."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=_TOPIC_RESOURCE, resource_name=name, configuration_keys=None
    )
    answer = client.request(ApiKey.DESCRIBE_CONFIGS, DescribeConfigsRequest(resources=[resource]))
    (result,) = answer.results
    if result.error_code:
        raise error_of(result.error_code, f"asked for the settings of topic {name!r}")
    return {one.name: one.value for one in result.configs}


def _cluster_of(options: WriteOptions) -> ClusterOptions:
    if options.cluster is None:
        raise KBatchError("the options name no real cluster")
    return options.cluster
