"""A producer to a real cluster: the embedded cluster's producer, with a transport to brokers.

    with open_producer(cluster_options, producer_config) as producer:
        producer.send_arrow("events", table)

A topic is asked for at its first use, in the caller's thread. After that the sender's thread keeps it up to date,
as Kafka's producer does: every metadata.max.age.ms, and after an error. So nothing waits for a broker but the
first use. A topic that does not exist is never created by that.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_kbatch.clock import now_ms
from spark_kbatch.options.producer import ProducerConfig
from spark_kbatch.options.remote import ClusterOptions
from spark_kbatch.options.topic import Topic
from spark_kbatch.producer.metrics import ProducerMetrics
from spark_kbatch.producer.producer import Producer
from spark_kbatch.remote.client import Client, leased
from spark_kbatch.remote.metadata import TopicMetadata
from spark_kbatch.remote.transactions import Transactions
from spark_kbatch.remote.transport import BrokerTransport


def open_producer(
    options: ClusterOptions,
    config: ProducerConfig,
    *,
    ensure_topic: Callable[[Client, str], object] | None = None,
    transactions: Transactions | None = None,
    metrics: ProducerMetrics | None = None,
    seed: int | None = None,
) -> Producer:
    """Return a producer for a real cluster, with a thread that sends its batches.

    Args:
        options: of the cluster.
        config: of the producer.
        ensure_topic: called with each topic that is looked up for the first time; may create it.
        transactions: that its batches are part of.
        metrics: of an earlier producer, which go on.
        seed: of everything that is random; by default a new one each time.
    """
    transport = BrokerTransport(
        options, request_timeout_ms=config.request_timeout_ms, transactions=transactions
    )
    try:
        return Producer(
            config,
            transport,
            FoundTopics(options, transport, ensure_topic),
            now_ms,
            nodes=transport,
            sequences=transport.sequences,
            metrics=metrics,
            seed=seed,
        )
    except BaseException:
        transport.close()
        raise


class FoundTopics:
    """A producer's topic lookup, which returns the same object until the topic changes.

    Thread-safe.
    """

    def __init__(
        self,
        options: ClusterOptions,
        transport: BrokerTransport,
        ensure_topic: Callable[[Client, str], object] | None = None,
    ) -> None:
        """Start with no topic looked up."""
        self._options, self._transport, self._ensure_topic = options, transport, ensure_topic
        self._found: dict[str, Topic] = {}

    def __call__(self, name: str) -> Topic:
        """Return a topic as last looked up, asking the cluster at its first use.

        Raises:
            UnknownTopicOrPartitionError: it does not exist; names those that do.
        """
        found = self._transport.topic(name) or self._ask(name)
        topic = Topic(name, found.topic_id, len(found.partitions), config=None)
        if topic != self._found.get(name):
            self._found[name] = topic
        return self._found[name]

    def _ask(self, name: str) -> TopicMetadata:
        with leased(self._options) as client:
            if self._ensure_topic is not None:
                self._ensure_topic(client, name)
            found = client.topic(name)
            self._transport.tell(client.metadata([name]))
        return found
