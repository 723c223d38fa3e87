"""A server: it listens once it can answer, and ends when what it was asked is answered."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from types import TracebackType
from typing import Self

from spark_kbatch.clock import now_ms
from spark_kbatch.options.server import ServerConfig
from spark_kbatch.server.backend import Backend
from spark_kbatch.server.dispatch import Dispatch
from spark_kbatch.server.listener import Listener, listening_socket
from spark_kbatch.server.metadata import MetadataHandler, NewTopics
from spark_kbatch.server.ownership import Ownership, shown_address
from spark_kbatch.server.pools import Pool
from spark_kbatch.server.requests import Received
from spark_kbatch.wire.protocol import ApiKey

logger = logging.getLogger(__name__)

_ANSWERED_WITHIN_S = 10.0  # what is in progress when the server ends
_POOL_ENDS_WITHIN_S = 1.0

_servers: weakref.WeakSet[Server] = weakref.WeakSet()


class Server:
    """A running Kafka server over one cluster; close it, or use it in a `with`. Thread-safe.

    with cluster.serve() as server:
        kafka.KafkaProducer(bootstrap_servers=server.bootstrap_servers)
    """

    def __init__(
        self,
        backend: Backend,
        config: ServerConfig,
        *,
        host: str,
        port: int,
        advertised: tuple[str, int] | None = None,
    ) -> None:
        """Start.

        Args:
            backend: the cluster.
            config: the options.
            host: where to listen; empty for all interfaces.
            port: where to listen; 0 for any that is free.
            advertised: where clients are told to connect to; by default where they have.

        Raises:
            ServerRunningError: the cluster has a server already.
            ConfigError: it cannot listen there.
        """
        self._backend, self._config, self._advertised = backend, config, advertised
        self._closing = threading.Lock()  # guards _is_closed
        self._is_closed = False
        self._process_id = os.getpid()
        self._ownership = Ownership(backend.metadata)
        try:
            self._lookups = Pool("lookups", 2)
            self._administration = Pool("administration", 2)
            self._pools = (self._lookups, self._administration)
            self._dispatch = Dispatch()
            self._register_handlers()
            sock = listening_socket(host, port)
            self.host, self.port = sock.getsockname()[:2]
            self._listener = Listener(sock, config, self._dispatch.request)
            self._listener.start()
            self._ownership.announce(self.host, self.port, now_ms())
        except BaseException:
            self._ownership.release()
            raise
        _servers.add(self)
        logger.info("serving %s at %s", backend.path, self.bootstrap_servers)

    def _register_handlers(self) -> None:
        config, register = self._config, self._dispatch.register
        new_topics = NewTopics(
            config.auto_create_topics_enable,
            config.num_partitions,
            config.default_replication_factor,
        )
        metadata = MetadataHandler(
            self._backend, new_topics, self._advertised_to, self._administration
        )
        register(ApiKey.METADATA, metadata.metadata, self._lookups)
        register(ApiKey.DESCRIBE_CLUSTER, metadata.describe_cluster, self._lookups)
        register(ApiKey.FIND_COORDINATOR, metadata.find_coordinator, self._lookups)

    def _advertised_to(self, received: Received) -> tuple[str, int]:
        return self._advertised or received.local_address

    def __repr__(self) -> str:
        state = ", closed" if self._is_closed else ""
        return f"Server({str(self._backend.path)!r}, {self.bootstrap_servers!r}{state})"

    @property
    def bootstrap_servers(self) -> str:
        """The address to give to clients, as HOST:PORT."""
        return shown_address(*(self._advertised or (self.host, self.port)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """End: accept no request more, and answer those in progress. Closing again does nothing."""
        with self._closing:
            if self._is_closed or self._process_id != os.getpid():
                return
            self._is_closed = True
        self._listener.end(_ANSWERED_WITHIN_S)
        for pool in self._pools:
            if not pool.close(_POOL_ENDS_WITHIN_S):
                logger.warning("something that was asked of the server goes on: pool %s", pool.name)
        self._ownership.release()
        logger.info("%s is no longer served at %s", self._backend.path, self.bootstrap_servers)

    def _forget(self) -> None:
        self._listener.forget()


def _forget_all() -> None:
    """Close, in a forked child, what belongs to its parent's servers, without a word to their clients."""
    for server in list(_servers):
        server._forget()  # noqa: SLF001  its own module


os.register_at_fork(after_in_child=_forget_all)
