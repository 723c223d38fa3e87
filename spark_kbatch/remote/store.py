"""A real cluster as a store of topics: its source, its topics to change, producers and consumer groups."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from spark_kbatch.errors import ConfigError
from spark_kbatch.options import arguments
from spark_kbatch.options.producer import PRODUCER_OPTIONS, parse_producer_options
from spark_kbatch.options.read import DEFAULT_PATIENCE, Patience
from spark_kbatch.options.remote import (
    CLUSTER_OPTIONS,
    ClusterOptions,
    is_address,
    parse_client_options,
)
from spark_kbatch.options.topic import topic_key
from spark_kbatch.options.write import WriteOptions
from spark_kbatch.remote.client import close_idle_clients
from spark_kbatch.remote.groups import RemoteGroups
from spark_kbatch.remote.source import RemoteSource
from spark_kbatch.remote.topics import RemoteCatalog

if TYPE_CHECKING:
    from spark_kbatch.producer.producer import Producer
    from spark_kbatch.remote.exactly_once import ExactlyOnceJob
    from spark_kbatch.remote.job import RemoteJob

_CLUSTER_KEYS = frozenset(option.key for option in CLUSTER_OPTIONS)
_PRODUCER_KEYS = frozenset(option.key for option in PRODUCER_OPTIONS)
_OF_FOLDERS = {
    "auto.create.topics.enable": "what is created in a real cluster is for `create_topic`",
    "flush": "brokers flush by their own settings",
}
# Options of both; those given for the cluster hold for its producers too.
_OF_BOTH = ("client_id", "request_timeout_ms", "retry_backoff_ms", "retry_backoff_max_ms")


class RemoteStore:
    """A real cluster over the network; a `store.Store`. Thread-safe."""

    commits = disks = upkeep = server = ledger = None
    is_remote = True
    why_not = "it is a real Kafka cluster, whose brokers see to that"

    def __init__(self, options: ClusterOptions, patience: Patience = DEFAULT_PATIENCE) -> None:
        """Set up; nothing is asked of the cluster yet."""
        self.options = options
        self.source = RemoteSource(options, patience)
        self.catalog = RemoteCatalog(self.source.client)
        self.groups = RemoteGroups(self.source.client)

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
        with self.source.client() as client:
            return client.metadata([], fresh=True).cluster_id

    def ensure_answers(self) -> None:
        """Ask for the cluster's id, so that what is wrong with the connection is said now.

        Raises the errors of `cluster_id`.
        """
        _ = self.cluster_id

    def producer(self, config: Mapping[str, object], options: Mapping[str, object]) -> Producer:
        """Return a producer, with a thread that sends its batches, or a transactional one.

        Raises:
            ConfigError: an option is not accepted, or one of the whole cluster.
        """
        from spark_kbatch.remote.producer import open_producer  # noqa: PLC0415  reads need none

        self.source.ensure_open()
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
        chosen = parse_producer_options(defaults, config, options)
        cluster = replace(self.options, client_id=chosen.client_id or self.options.client_id)
        if chosen.transactional_id is not None:
            from spark_kbatch.remote.transactional_producer import (  # noqa: PLC0415  as above
                ClusterProducer,
            )

            return ClusterProducer(cluster, chosen)
        return open_producer(cluster, chosen)

    def begin_job(
        self, options: WriteOptions, *, overwrite: bool = False, is_micro_batch: bool = False
    ) -> RemoteJob | ExactlyOnceJob:
        """Begin a job whose rows are visible as they are written, or in one transaction."""
        if options.delivery_guarantee == "exactly-once":
            from spark_kbatch.remote.exactly_once import ExactlyOnceJob  # noqa: PLC0415  as above

            return ExactlyOnceJob.begin(options, overwrite=overwrite, is_micro_batch=is_micro_batch)
        from spark_kbatch.remote.job import RemoteJob  # noqa: PLC0415  as above

        return RemoteJob.begin(options, overwrite=overwrite, is_micro_batch=is_micro_batch)

    def close(self) -> None:
        """Close idle connections; every later call raises ClosedError, and so do reads in progress."""
        if not self.source.is_closed:
            self.source.close()
            close_idle_clients(self.options)


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
