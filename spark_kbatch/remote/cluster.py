"""`RemoteCluster`, the Python API of a real Kafka cluster, as `spark_kbatch.connect` returns it.

    with spark_kbatch.connect("host:9092", security_protocol="SSL") as cluster:
        for arrow_batch in cluster.read("events"):
            ...
        with cluster.producer() as producer:
            producer.send("events", key="k", value="v")

The words are those of an embedded cluster, `spark_kbatch.Cluster`. What only a folder has (commits, log dirs,
replicas to repair, a server) is not here.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

from spark_kbatch.consumer.topic_reader import ReadableTopics
from spark_kbatch.errors import ClosedError, ConfigError
from spark_kbatch.model import (
    ConsumerGroup,
    IsolationLevel,
    OffsetAndTimestamp,
    PartitionInfo,
    PartitionKey,
    TopicPartition,
)
from spark_kbatch.options import arguments
from spark_kbatch.options.producer import PRODUCER_OPTIONS, parse_producer_options
from spark_kbatch.options.remote import (
    CLUSTER_OPTIONS,
    ClusterOptions,
    is_address,
    parse_client_options,
)
from spark_kbatch.options.topic import (
    PARTITIONS_MAX,
    ensure_valid_topic,
    numbers_of_a_new_topic,
    topic_key,
)
from spark_kbatch.producer.producer import Producer
from spark_kbatch.remote import groups, offsets, topics
from spark_kbatch.remote.client import Client, close_idle_clients, leased
from spark_kbatch.remote.producer import open_producer
from spark_kbatch.remote.source import RemoteSource
from spark_kbatch.remote.topics import RemoteTopic

_CLUSTER_KEYS = frozenset(option.key for option in CLUSTER_OPTIONS)
_PRODUCER_KEYS = frozenset(option.key for option in PRODUCER_OPTIONS)
_OF_FOLDERS = {
    "auto.create.topics.enable": "what is created in a real cluster is for `create_topic`",
    "flush": "brokers flush by their own settings",
}
# Options of both; those given for the cluster hold for its producers too.
_OF_BOTH = ("request_timeout_ms", "retry_backoff_ms", "retry_backoff_max_ms")


class RemoteCluster(ReadableTopics):
    """A real Kafka cluster over the network: its topics, their records, and its consumer groups.

    Thread-safe.

        with spark_kbatch.connect("host:9092") as cluster:
            cluster.create_topic("events", partitions=4, replication_factor=3)
            with cluster.producer() as producer:
                producer.send("events", key="k", value="v")
            table = cluster.read("events").read_all()

    - Topics: create_topic, alter_topic, create_partitions, delete_topic, topics, topic_names, topic,
      partitions, describe.
    - Records: producer, read, list_offsets, delete_records.
    - Kafka clients: groups, alter_group_offsets, delete_group.

    A call that cannot reach the cluster is tried again until default.api.timeout.ms have passed.
    """

    _opened_by = "spark_kbatch.connect"

    def __init__(self, options: ClusterOptions) -> None:
        """Connect to the cluster, and ask for its cluster id.

        Raises:
            RequestTimedOutError: none of its brokers answered in time; says why.
            AuthenticationError: it, or the cluster, does not trust the other side.
        """
        super().__init__(RemoteSource(options), str(options))
        self._options = options
        self._producers: weakref.WeakSet[Producer] = weakref.WeakSet()
        with self._client() as client:
            self.cluster_id = client.metadata([], fresh=True).cluster_id

    @property
    def bootstrap_servers(self) -> str:
        """The cluster's bootstrap servers, separated by commas."""
        return str(self._options)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the cluster and its producers; after an error, producers give up unsent records at once."""
        self._close_producers(timeout=None if error is None else 0)
        self.close()

    def close(self) -> None:
        """Close this object's producers, once they have sent all their records, and idle connections.

        Every later call raises ClosedError, and so do reads in progress.
        """
        self._close_producers(timeout=None)
        if not self.is_closed:
            super().close()
            close_idle_clients(self._options)

    def _close_producers(self, timeout: float | None) -> None:
        for producer in list(self._producers):
            producer.close(timeout)

    @contextlib.contextmanager
    def _client(self) -> Iterator[Client]:
        self._ensure_open()
        with leased(self._options) as client:
            yield client

    def _ensure_open(self) -> None:
        if self.is_closed:
            raise ClosedError(self.bootstrap_servers)

    # Topics.

    def topics(self, *, internal: bool = False) -> list[RemoteTopic]:
        """Return all topics, sorted by name; internal ones only if asked."""
        arguments.boolean("internal", internal)
        with self._client() as client:
            return topics.all_topics(client, internal=internal)

    def topic(self, name: str) -> RemoteTopic:
        """Return a topic: its id, partitions, replicas and settings.

        Raises:
            UnknownTopicOrPartitionError: no such topic; names those that exist.
        """
        arguments.text("topic", name)
        with self._client() as client:
            return topics.find_topic(client, name)

    def describe(self, topics: str | Iterable[str]) -> list[PartitionInfo]:
        """Return start and end offsets of all partitions of these topics, with the size unknown (-1).

        Partitions are looked at one leader after another, not at one moment.
        """
        return super().describe(topics)

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        replication_factor: int | None = None,
        config: Mapping[str, object] | None = None,
        exist_ok: bool = False,
        num_partitions: int | None = None,
    ) -> RemoteTopic:
        """Create a topic, and wait until its partitions have leaders.

        Args:
            name: its name.
            partitions: how many; by default the cluster's `num.partitions`.
            replication_factor: how many brokers hold each record; by default the cluster's
                `default.replication.factor`.
            config: its settings, by Kafka's keys: `{"retention.ms": 86_400_000}`, or `retention_ms`.
                Which there are, and what they mean, is for the cluster to say.
            exist_ok: whether to return the topic if it exists already with all that is given here.
            num_partitions: another name for `partitions`.

        Raises:
            TopicAlreadyExistsError: it exists; with `exist_ok`, it differs from what is given here.
            ConfigError: an argument or setting is not accepted.
            InvalidTopicError: Kafka would refuse the name.
        """
        ensure_valid_topic(name)
        arguments.boolean("exist_ok", exist_ok)
        given = numbers_of_a_new_topic(partitions, num_partitions, replication_factor)
        settings = _settings({} if config is None else config)
        with self._client() as client:
            return topics.create_topic(
                client,
                name,
                partitions=given.get("partitions"),
                replication_factor=given.get("replication_factor"),
                settings={key: _set("config", key, value) for key, value in settings.items()},
                exist_ok=exist_ok,
            )

    def delete_topic(self, name: str) -> RemoteTopic:
        """Delete a topic with all its records, and return the topic as it was before.

        Brokers learn of it one after another: for a moment some may still answer for it.

        Raises:
            ConfigError: the topic is internal.
            UnknownTopicOrPartitionError: no such topic.
        """
        arguments.text("topic", name)
        with self._client() as client:
            return topics.delete_topic(client, name)

    def create_partitions(self, name: str, total_count: int) -> RemoteTopic:
        """Add partitions to a topic, up to `total_count` in all, and return the topic.

        Existing records stay where they are. Keys of new records are spread over all partitions, so
        records with the same key may lie in two partitions.

        Raises:
            ConfigError: it has that many already, or is internal.
            UnknownTopicOrPartitionError: no such topic.
        """
        arguments.text("topic", name)
        total_count = arguments.whole_number("total_count", total_count, 1, PARTITIONS_MAX)
        with self._client() as client:
            return topics.create_partitions(client, name, total_count)

    def alter_topic(self, name: str, config: Mapping[str, object]) -> RemoteTopic:
        """Change settings of a topic for everything written from now on, and return the topic.

        Args:
            name: the topic.
            config: the settings to change, by Kafka's keys: `{"retention.ms": 86_400_000}`. None
                resets a setting to the cluster's default.

        Raises:
            ConfigError: a setting is unknown to the cluster, or not accepted.
            UnknownTopicOrPartitionError: no such topic.
        """
        arguments.text("topic", name)
        changes = {
            key: None if value is None else _set("config", key, value)
            for key, value in _settings(config).items()
        }
        with self._client() as client:
            return topics.alter_topic(client, name, changes)

    # Records.

    def _find_offsets(
        self, times: Mapping[TopicPartition, int], isolation: IsolationLevel
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        with self._client() as client:
            return offsets.list_offsets(client, times, isolation) if times else {}

    def delete_records(self, offsets: Mapping[PartitionKey, int]) -> dict[TopicPartition, int]:
        """Delete the records below a given offset in each partition; offset -1 deletes all of them.

        The keys are (topic, partition) pairs.

        Returns:
            The log start offset of each partition: the given offset, or the old one if higher.

        Raises:
            OffsetOutOfRangeError: an offset is above the high watermark; nothing is deleted.
            UnknownTopicOrPartitionError: a partition does not exist.
            KBatchError: the cluster refuses it, for an internal or a compacted topic.
        """
        accepts = 'an offset for each partition, such as {("topic", 0): 1500}'
        wanted = {
            tp: arguments.whole_number(f"the offset of {tp}", offset, topics.ALL_RECORDS)
            for tp, offset in arguments.by_partition("offsets", offsets, accepts).items()
        }
        with self._client() as client:
            return topics.delete_records(client, wanted) if wanted else {}

    def producer(self, config: Mapping[str, object] | None = None, /, **options: Any) -> Producer:
        """Return a producer of records; close it, or use it in a `with`.

        Args:
            config: options of Kafka's producer by Kafka's keys: `{"linger.ms": 5, "acks": "all"}`; see
                `PRODUCER_OPTIONS`. Those of the connection are the cluster's.
            options: the same, as keyword arguments: `linger_ms=5`, `compression_type="zstd"`.

        Raises:
            ConfigError: an option is unknown, has no meaning here, or has a bad value.
        """
        self._ensure_open()
        given = arguments.options("config", config, '{"linger.ms": 5}')
        keys = dict.fromkeys(topic_key(name).lower() for name in (*given, *options))
        for key in keys:
            if key in _CLUSTER_KEYS - _PRODUCER_KEYS:
                raise ConfigError(
                    f"option {key!r} is one of the whole cluster: give it to spark_kbatch.connect"
                )
            if key in _OF_FOLDERS:
                raise ConfigError(
                    f"option {key!r} is for clusters in a folder: {_OF_FOLDERS[key]}; leave it out"
                )
        defaults = {
            field: getattr(self._options, field)
            for field in _OF_BOTH
            if topic_key(field) not in keys
            and getattr(self._options, field) != getattr(ClusterOptions, field)
        }
        producer = open_producer(self._options, parse_producer_options(defaults, given, options))
        self._producers.add(producer)
        return producer

    # Kafka clients.

    def groups(self) -> list[ConsumerGroup]:
        """Return the consumer groups that this client may see, with members, offsets and lag.

        A cluster does not tell a group's generation, nor when an offset was committed: these are -1.
        Members of groups of the newer protocol (`group.protocol=consumer`) are not shown.
        """
        with self._client() as client:
            return groups.all_groups(client)

    def alter_group_offsets(self, group_id: str, offsets: Mapping[PartitionKey, int]) -> None:
        """Set the offsets at which a consumer group continues; it may not have members, nor need it exist.

        Args:
            group_id: the group.
            offsets: of the next record to read, by (topic, partition); they may lie outside the log.

        Raises:
            GroupNotEmptyError: the group has members.
            UnknownTopicOrPartitionError: a partition does not exist.
        """
        group_id, wanted = arguments.group_offsets(group_id, offsets)
        with self._client() as client:
            groups.alter_offsets(client, group_id, wanted)

    def delete_group(self, group_id: str) -> None:
        """Delete a consumer group without members, with its offsets.

        Raises:
            GroupNotEmptyError: the group has members.
            GroupIdNotFoundError: there is no such group.
        """
        group_id = arguments.group(group_id)
        with self._client() as client:
            groups.delete_group(client, group_id)


def connect_to(bootstrap_servers: Any, config: Any, options: Mapping[str, Any]) -> RemoteCluster:
    """Connect to a real Kafka cluster with the arguments of `spark_kbatch.connect`."""
    given = arguments.options("config", config, '{"security.protocol": "SSL"}')
    if isinstance(bootstrap_servers, (str, os.PathLike)) and not is_address(str(bootstrap_servers)):
        raise ConfigError(
            f"bootstrap_servers is {arguments.shown(bootstrap_servers)}; accepted: HOST:PORT of a real "
            "cluster, or several separated by commas; a cluster in a folder is opened by spark_kbatch.open"
        )
    return RemoteCluster(parse_client_options(bootstrap_servers, given, options))


def _settings(config: Any) -> dict[str, object]:
    """Return a topic's settings by Kafka's keys, such as retention.ms; the cluster checks the values."""
    if not isinstance(config, Mapping) or any(not isinstance(key, str) for key in config):
        arguments.refuse("config", config, 'a dict of settings, such as {"retention.ms": 86400000}')
    found: dict[str, object] = {}
    for name, value in config.items():
        key = topic_key(name)
        if key in found:
            raise ConfigError(f"config names {key!r} twice; name it once")
        found[key] = value
    return found


def _set(name: str, key: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value
    try:
        return str(arguments.whole_number(key, value, -(2**63)))
    except ConfigError:
        arguments.refuse(f"option {key!r} in {name}", value, "text, a number, True or False")
