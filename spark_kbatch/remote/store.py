"""A real cluster as a store of topics: its source, its topics to change, producers and consumer groups."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from spark_kbatch.errors import ClosedError, ConfigError
from spark_kbatch.model import ConsumerGroup, TopicPartition
from spark_kbatch.options import arguments
from spark_kbatch.options.producer import PRODUCER_OPTIONS, parse_producer_options
from spark_kbatch.options.read import DEFAULT_PATIENCE, Patience
from spark_kbatch.options.remote import (
    CLUSTER_OPTIONS,
    ClusterOptions,
    is_address,
    parse_client_options,
)
from spark_kbatch.options.topic import TopicConfig, ensure_valid_topic, topic_key
from spark_kbatch.options.write import WriteOptions
from spark_kbatch.remote import groups, topics
from spark_kbatch.remote.client import Client, close_idle_clients, leased
from spark_kbatch.remote.source import RemoteSource
from spark_kbatch.remote.topics import RemoteTopic

if TYPE_CHECKING:
    from spark_kbatch.producer.producer import Producer
    from spark_kbatch.remote.job import RemoteJob

_CLUSTER_KEYS = frozenset(option.key for option in CLUSTER_OPTIONS)
_PRODUCER_KEYS = frozenset(option.key for option in PRODUCER_OPTIONS)
_OF_FOLDERS = {
    "auto.create.topics.enable": "what is created in a real cluster is for `create_topic`",
    "flush": "brokers flush by their own settings",
}
# Options of both; those given for the cluster hold for its producers too.
_OF_BOTH = ("request_timeout_ms", "retry_backoff_ms", "retry_backoff_max_ms")


class RemoteStore:
    """A real cluster over the network; a `store.Store`. Thread-safe."""

    commits = disks = upkeep = server = None
    is_remote = True
    why_not = "it is a real Kafka cluster, whose brokers see to that"

    def __init__(self, options: ClusterOptions, patience: Patience = DEFAULT_PATIENCE) -> None:
        """Set up; nothing is asked of the cluster yet."""
        self.options = options
        self.source = RemoteSource(options, patience)
        self.catalog, self.groups = RemoteCatalog(self), RemoteGroups(self)
        self._is_closed = False

    @property
    def address(self) -> str:
        """The bootstrap servers, separated by commas."""
        return str(self.options)

    @functools.cached_property
    def cluster_id(self) -> str:
        """The cluster's id, which is asked for once.

        Raises:
            RequestTimedOutError: none of its brokers answered in time; says why.
        """
        with self.client() as client:
            return client.metadata([], fresh=True).cluster_id

    def ensure_answers(self) -> None:
        """Ask for the cluster's id, so that what is wrong with the connection is said now.

        Raises the errors of `cluster_id`.
        """
        _ = self.cluster_id

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        """Lease a client of the cluster."""
        self._ensure_open()
        with leased(self.options) as client:
            yield client

    def producer(self, config: Mapping[str, object], options: Mapping[str, object]) -> Producer:
        """Return a producer, with a thread that sends its batches.

        Raises:
            ConfigError: an option is not accepted, or one of the whole cluster.
        """
        from spark_kbatch.remote.producer import open_producer  # noqa: PLC0415  reads need none

        self._ensure_open()
        keys = dict.fromkeys(topic_key(name).lower() for name in (*config, *options))
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
            field: getattr(self.options, field)
            for field in _OF_BOTH
            if topic_key(field) not in keys
            and getattr(self.options, field) != getattr(ClusterOptions, field)
        }
        return open_producer(self.options, parse_producer_options(defaults, config, options))

    def begin_job(
        self, options: WriteOptions, *, overwrite: bool = False, is_micro_batch: bool = False
    ) -> RemoteJob:
        """Begin a job whose rows are visible as they are written, as with Spark's own sink."""
        from spark_kbatch.remote.job import RemoteJob  # noqa: PLC0415  as above

        return RemoteJob.begin(options, overwrite=overwrite, is_micro_batch=is_micro_batch)

    def close(self) -> None:
        """Close idle connections; every later call raises ClosedError, and so do reads in progress."""
        if not self._is_closed:
            self._is_closed = True
            self.source.close()
            close_idle_clients(self.options)

    def _ensure_open(self) -> None:
        if self._is_closed:
            raise ClosedError(self.address)


class RemoteCatalog:
    """The topics of one real cluster; a `store.Catalog`.

    Brokers learn of a change one after another: for a moment some may still show what was before.
    """

    def __init__(self, store: RemoteStore) -> None:
        self._client = store.client

    def topics(self, *, internal: bool) -> list[RemoteTopic]:
        """Return all topics, sorted by name; internal ones only if asked."""
        with self._client() as client:
            return topics.all_topics(client, internal=internal)

    def topic(self, name: str) -> RemoteTopic:
        """Return a topic with its replicas and settings."""
        with self._client() as client:
            return topics.find_topic(client, name)

    def create_topic(
        self,
        name: str,
        *,
        partitions: int | None,
        replication_factor: int | None,
        config: TopicConfig | Mapping[str, object],
        exist_ok: bool,
    ) -> RemoteTopic:
        """Create a topic, and wait until its partitions have leaders."""
        ensure_valid_topic(name)
        settings = {key: _set(key, value) for key, value in _settings(config).items()}
        with self._client() as client:
            return topics.create_topic(
                client,
                name,
                partitions=partitions,
                replication_factor=replication_factor,
                settings=settings,
                exist_ok=exist_ok,
            )

    def delete_topic(self, name: str) -> RemoteTopic:
        """Delete a topic with all its records."""
        with self._client() as client:
            return topics.delete_topic(client, name)

    def create_partitions(self, name: str, total_count: int) -> RemoteTopic:
        """Add partitions to a topic."""
        with self._client() as client:
            return topics.create_partitions(client, name, total_count)

    def alter_topic(self, name: str, changes: Mapping[str, object]) -> RemoteTopic:
        """Change settings of a topic, which the cluster checks."""
        settings = {
            key: None if value is None else _set(key, value)
            for key, value in _settings(changes).items()
        }
        with self._client() as client:
            return topics.alter_topic(client, name, settings)

    def delete_records(self, below: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records below an offset in each partition."""
        with self._client() as client:
            return topics.delete_records(client, below) if below else {}


class RemoteGroups:
    """The consumer groups of one real cluster; a `store.Groups`."""

    def __init__(self, store: RemoteStore) -> None:
        self._client = store.client

    def groups(self) -> list[ConsumerGroup]:
        """Return the groups that this client may see; generations and times of commits are -1."""
        with self._client() as client:
            return groups.all_groups(client)

    def alter_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the offsets at which a group without members continues."""
        with self._client() as client:
            groups.alter_offsets(client, group_id, offsets)

    def delete(self, group_id: str) -> None:
        """Delete a group without members."""
        with self._client() as client:
            groups.delete_group(client, group_id)


def parse_connection(
    bootstrap_servers: Any, config: Any, options: Mapping[str, Any]
) -> ClusterOptions:
    """Parse the arguments of `spark_kbatch.connect`."""
    given = arguments.options("config", config, '{"security.protocol": "SSL"}')
    if isinstance(bootstrap_servers, (str, os.PathLike)) and not is_address(str(bootstrap_servers)):
        raise ConfigError(
            f"bootstrap_servers is {arguments.shown(bootstrap_servers)}; accepted: HOST:PORT of a real "
            "cluster, or several separated by commas; a cluster in a folder is opened by spark_kbatch.open"
        )
    return parse_client_options(bootstrap_servers, given, options)


def _settings(config: Any) -> dict[str, object]:
    """Return a topic's settings by Kafka's keys, such as retention.ms; the cluster checks the values."""
    if isinstance(config, TopicConfig):
        config = {
            field: value
            for field, value in vars(config).items()
            if value != getattr(TopicConfig, field)
        }
    if not isinstance(config, Mapping) or any(not isinstance(key, str) for key in config):
        arguments.refuse("config", config, 'a dict of settings, such as {"retention.ms": 86400000}')
    found: dict[str, object] = {}
    for name, value in config.items():
        key = topic_key(name)
        if key in found:
            raise ConfigError(f"config names {key!r} twice; name it once")
        found[key] = value
    return found


def _set(key: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value
    try:
        return str(arguments.whole_number(key, value, -(2**63)))
    except ConfigError:
        arguments.refuse(f"option {key!r} in config", value, "text, a number, True or False")
