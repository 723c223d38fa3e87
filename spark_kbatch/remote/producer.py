"""A producer to a real cluster: the embedded cluster's producer, with a transport to brokers.

    with open_producer(cluster_options, producer_config) as producer:
        producer.send_arrow("events", table)

Topics are looked up as Kafka's producer does: at first use, every metadata.max.age.ms, and after an error. A topic
that does not exist is never created by that.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_kbatch.clock import now_ms
from spark_kbatch.options.producer import ProducerConfig
from spark_kbatch.options.remote import ClusterOptions
from spark_kbatch.options.topic import Topic, TopicConfig
from spark_kbatch.producer.producer import Producer
from spark_kbatch.remote.client import Client, leased
from spark_kbatch.remote.metadata import ClusterMetadata
from spark_kbatch.remote.transport import BrokerTransport


def open_producer(
    options: ClusterOptions,
    config: ProducerConfig,
    *,
    ensure_topic: Callable[[Client, str], None] | None = None,
    seed: int | None = None,
) -> Producer:
    """Return a producer; it has a thread that sends.

    Args:
        options: of the cluster.
        config: of the producer.
        ensure_topic: called with each topic that is looked up for the first time; may create it.
        seed: of everything that is random; by default a new one each time.
    """
    transport = BrokerTransport(options, request_timeout_ms=config.request_timeout_ms)
    try:
        return Producer(
            config,
            transport,
            FoundTopics(options, transport.tell, ensure_topic),
            now_ms,
            nodes=transport,
            sequences=transport.sequences,
            topics_max_age_ms=options.metadata_max_age_ms,
            seed=seed,
        )
    except BaseException:
        transport.close()
        raise


class FoundTopics:
    """Finds topics for a producer, each as the same object as long as it has not changed. Thread-safe."""

    def __init__(
        self,
        options: ClusterOptions,
        tell: Callable[[ClusterMetadata], None],
        ensure_topic: Callable[[Client, str], None] | None = None,
    ) -> None:
        """Start without any topic; `tell` gets the metadata of each that is found, with its leaders."""
        self._options, self._tell, self._ensure_topic = options, tell, ensure_topic
        self._found: dict[str, Topic] = {}

    def __call__(self, name: str) -> Topic:
        """Return a topic as it is now.

        Raises:
            UnknownTopicOrPartitionError: it does not exist; names those that do.
        """
        known = self._found.get(name)
        with leased(self._options) as client:
            if known is not None:
                client.invalidate()
            elif self._ensure_topic is not None:
                self._ensure_topic(client, name)
            found = client.topic(name)
            self._tell(client.metadata([name]))
        topic = Topic(name, found.topic_id, len(found.partitions), TopicConfig())
        if topic != known:
            self._found[name] = topic
        return self._found[name]
