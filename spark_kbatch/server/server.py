"""A server: it listens once it can answer, and ends after it has answered the requests in progress."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
import weakref
from collections.abc import Sized
from types import TracebackType
from typing import Any, NoReturn, Self

from spark_kbatch.catalog.folder_clock import network_file_system
from spark_kbatch.clock import monotonic_ms, now_ms
from spark_kbatch.cluster.offsets_store import OffsetsStore
from spark_kbatch.cluster.ownership import Ownership
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.errors import NotPicklableError
from spark_kbatch.options.server import ServerConfig
from spark_kbatch.server.appends import Appends
from spark_kbatch.server.configs import ConfigsHandler
from spark_kbatch.server.connection import Memory
from spark_kbatch.server.dispatch import Dispatch
from spark_kbatch.server.fetch import FetchHandler
from spark_kbatch.server.groups.coordinator import GroupCoordinator
from spark_kbatch.server.housekeeping import Housekeeping
from spark_kbatch.server.intercepts import Intercept, api_key_of, name_of
from spark_kbatch.server.listener import Listener, is_loopback, listening_socket
from spark_kbatch.server.log_dirs import LogDirsHandler
from spark_kbatch.server.memory import AnswerMemory, RequestMemory
from spark_kbatch.server.metadata import MetadataHandler, NewTopics
from spark_kbatch.server.offsets import OffsetsHandler
from spark_kbatch.server.outcomes import Outcomes
from spark_kbatch.server.peers import SlowWarnings
from spark_kbatch.server.pools import HugeTurn, Pool
from spark_kbatch.server.produce import ProduceHandler
from spark_kbatch.server.requests import Received
from spark_kbatch.server.settings import Setting, server_settings
from spark_kbatch.server.topic_names import TopicNames
from spark_kbatch.server.topics import TopicsHandler
from spark_kbatch.server.transactions.coordinator import TransactionCoordinator
from spark_kbatch.server.transactions.requests import TransactionRequests
from spark_kbatch.store.reports import shown_address
from spark_kbatch.wire.protocol import ApiKey

logger = logging.getLogger(__name__)

_ANSWERED_WITHIN_S = 10.0  # requests in progress when the server ends
_POOL_ENDS_WITHIN_S = 1.0

_HELD_BACK_MAX_MS = 5000  # below the shortest session, by default
_TICK_S = 0.1
_ANSWERS_AT_ONCE = 2  # as large as fetch.max.bytes lets them be
_THREADS = 4


class _Pools:
    """Threads by kind of work, so that one kind of request that waits does not stop another."""

    def __init__(self) -> None:
        huge_turn = HugeTurn()
        self.produce = Pool("produce", 1)
        self.appends = Pool("appends", _THREADS)
        self.producer_ids = Pool("producer-ids", _THREADS, huge_turn=huge_turn)
        self.fetches = Pool("fetches", _THREADS, large_max=2)
        self.lookups = Pool("lookups", _THREADS, huge_turn=huge_turn)
        self.groups = Pool("groups", _THREADS, huge_turn=huge_turn)
        self.transactions = Pool("transactions", _THREADS, huge_turn=huge_turn)
        self.administration = Pool("administration", _THREADS, huge_turn=huge_turn)
        self.intercepts = Pool("intercepts", 1)

    def close(self, timeout_s: float) -> None:
        """Close all thread pools; log a warning for each that is still busy after `timeout_s`."""
        for pool in vars(self).values():
            if not pool.close(timeout_s):
                logger.warning("what the server's %s threads do goes on after its end", pool.name)


_servers: weakref.WeakSet[Server] = weakref.WeakSet()


class Server:
    """A running Kafka server over one cluster; close it, or use it in a `with`. Thread-safe.

    with cluster.serve() as server:
        kafka.KafkaProducer(bootstrap_servers=server.bootstrap_servers)
    """

    def __init__(
        self,
        parts: FolderParts,
        config: ServerConfig,
        *,
        host: str,
        port: int,
        advertised: tuple[str, int] | None = None,
    ) -> None:
        """Start the server: listen, and answer requests in threads of its own.

        Args:
            parts: the cluster.
            config: the options.
            host: address to listen on; empty for all interfaces.
            port: port to listen on; 0 for any free port.
            advertised: address that clients connect to; by default the one that they have reached.

        Raises:
            ServerRunningError: the cluster has a server already.
            ConfigError: it cannot listen there, or the cluster is gone.
        """
        self._parts, self._config, self._advertised = parts, config, advertised
        # Also once the cluster is closed.
        manager = parts.manager
        self._topic_metrics, self._client_reads = manager.topic_metrics, manager.client_reads
        self._purgatories: dict[str, Sized] = {
            "Fetch": manager.delayed_fetches,
            "Produce": manager.delayed_produces,
        }
        self._closing = threading.Lock()  # guards _is_closed
        self._is_closed = False
        self._process_id = os.getpid()
        with contextlib.ExitStack() as undo:
            self._ownership = Ownership(parts.metadata)
            undo.callback(self._ownership.release)
            sock = listening_socket(host, port)
            undo.callback(sock.close)
            self.host, self.port = sock.getsockname()[:2]
            self._pools = _Pools()
            self._memory = Memory(
                RequestMemory(config.queued_max_request_bytes),
                AnswerMemory(_ANSWERS_AT_ONCE * config.fetch_max_bytes),
            )
            self._listener = Listener(sock, config, self._memory)
            undo.callback(self._listener.discard)
            self._housekeeping = Housekeeping(
                parts, interval_ms=config.log_retention_check_interval_ms
            )
            self._register_handlers()
            self._ownership.announce(self.host, self.port, now_ms())
            self._listener.start(self._dispatch.request)
            undo.pop_all()
        self._tick(self._pools.groups, self._groups)
        self._tick(self._pools.transactions, self._transactions)
        self._housekeeping.start()
        _servers.add(self)
        logger.info("serving %s at %s", parts.path, self.bootstrap_servers)
        self._warn_of_other_machines()

    def _warn_of_other_machines(self) -> None:
        """Log a warning if others may use the cluster's file system, and one if others can reach the server."""
        parts = self._parts
        network = network_file_system(parts.path)
        if network:
            logger.warning(
                "%s lies on a network file system (%s): run this server and all jobs that write there on one "
                "machine, unless you have tried that locks on it hold between machines",
                parts.path,
                network,
            )
        if not is_loopback(self.host):
            logger.warning(
                "%s can be reached from other machines at port %d, and asks no one for a password: anyone who "
                "reaches it may read, write and delete",
                parts.path,
                self.port,
            )

    def _register_handlers(self) -> None:
        parts, config, pools = self._parts, self._config, self._pools
        call_later, slow = self._listener.call_later, SlowWarnings(config.slow_request_log_ms)
        names = TopicNames(parts)
        self._dispatch = Dispatch(pools.intercepts, call_later, slow, names)
        appends = Appends(parts, pools.appends, call_later, flush=config.flush, slow=slow)
        self._fetches = FetchHandler(
            parts,
            self._memory.answers,
            names,
            self._advertised_to,
            max_bytes=config.fetch_max_bytes,
        )
        self._groups = GroupCoordinator(
            OffsetsStore(parts, flush=config.flush, timeout_ms=config.offsets_commit_timeout_ms),
            now_ms=parts.manager.now_ms,
            monotonic_ms=monotonic_ms,
            config=config,
            handled_until_ms=self._groups_handled_until_ms,
            term=self._ownership.term,
            pending_of=lambda group_id: self._transactions.pending_of(group_id),
            drop_pending=lambda group_id, some: self._transactions.drop_pending(group_id, some),
        )
        self._transactions = TransactionCoordinator(
            parts, appends, self._groups, pools.transactions, self._listener.call_later,
            flush=config.flush, monotonic_ms=monotonic_ms, term=self._ownership.term,
        )  # fmt: skip
        transactions = TransactionRequests(
            parts,
            self._transactions,
            self._groups,
            timeout_max_ms=config.transaction_max_timeout_ms,
        )
        offsets, groups = OffsetsHandler(parts), self._groups
        new_topics = NewTopics(
            config.auto_create_topics_enable,
            config.num_partitions,
            config.default_replication_factor,
        )
        outcomes = Outcomes()
        metadata = MetadataHandler(parts, new_topics, self._advertised_to, pools.administration)
        topics = TopicsHandler(parts, new_topics, outcomes)
        configs = ConfigsHandler(parts, self._settings, outcomes)
        produce = ProduceHandler(parts, appends, outcomes, names, transactions)
        self._dispatch.register(ApiKey.PRODUCE, produce.produce, pools.produce, by_loop=True)
        for pool, handlers in {
            pools.fetches: {ApiKey.FETCH: self._fetches.handle},
            pools.lookups: {
                ApiKey.METADATA: metadata.metadata,
                ApiKey.DESCRIBE_CLUSTER: metadata.describe_cluster,
                ApiKey.FIND_COORDINATOR: metadata.find_coordinator,
                ApiKey.LIST_OFFSETS: offsets.list_offsets,
                ApiKey.OFFSET_FOR_LEADER_EPOCH: offsets.offset_for_leader_epoch,
                ApiKey.DESCRIBE_CONFIGS: configs.describe_configs,
                ApiKey.DESCRIBE_PRODUCERS: transactions.describe_producers,
            },
            pools.transactions: {
                ApiKey.ADD_PARTITIONS_TO_TXN: transactions.add_partitions,
                ApiKey.ADD_OFFSETS_TO_TXN: transactions.add_offsets,
                ApiKey.TXN_OFFSET_COMMIT: transactions.commit_offsets,
                ApiKey.END_TXN: transactions.end,
                ApiKey.LIST_TRANSACTIONS: transactions.list_transactions,
                ApiKey.DESCRIBE_TRANSACTIONS: transactions.describe_transactions,
            },
            pools.producer_ids: {ApiKey.INIT_PRODUCER_ID: produce.init_producer_id},
            pools.administration: {
                ApiKey.CREATE_TOPICS: topics.create_topics,
                ApiKey.DELETE_TOPICS: topics.delete_topics,
                ApiKey.CREATE_PARTITIONS: topics.create_partitions,
                ApiKey.DELETE_RECORDS: topics.delete_records,
                ApiKey.ALTER_CONFIGS: configs.alter_configs,
                ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.incremental_alter_configs,
                ApiKey.DESCRIBE_LOG_DIRS: LogDirsHandler(parts).describe_log_dirs,
            },
            pools.groups: {
                ApiKey.JOIN_GROUP: groups.join_group,
                ApiKey.SYNC_GROUP: groups.sync_group,
                ApiKey.HEARTBEAT: groups.heartbeat,
                ApiKey.CONSUMER_GROUP_HEARTBEAT: groups.consumer_group_heartbeat,
                ApiKey.LEAVE_GROUP: groups.leave_group,
                ApiKey.OFFSET_COMMIT: groups.offset_commit,
                ApiKey.OFFSET_FETCH: groups.offset_fetch,
                ApiKey.OFFSET_DELETE: groups.offset_delete,
                ApiKey.LIST_GROUPS: groups.list_groups,
                ApiKey.DESCRIBE_GROUPS: groups.describe_groups,
                ApiKey.DELETE_GROUPS: groups.delete_groups,
            },
        }.items():
            for api_key, handler in handlers.items():
                self._dispatch.register(api_key, handler, pool)

    def _groups_handled_until_ms(self) -> int:
        oldest_s, now_ms = self._pools.groups.oldest_s(), monotonic_ms()
        # A request that takes very long holds up no other group's timers for longer than that.
        return now_ms if oldest_s is None else max(int(oldest_s * 1000), now_ms - _HELD_BACK_MAX_MS)

    def _tick(self, pool: Pool, coordinator: GroupCoordinator | TransactionCoordinator) -> None:
        """Run a coordinator's periodic work now, and again after each interval."""

        def tick() -> None:
            try:
                coordinator.tick()
            finally:
                again = functools.partial(self._tick, pool, coordinator)
                self._listener.call_later(_TICK_S, again)

        pool.submit(tick)

    def _settings(self, received: Received) -> list[Setting]:
        log_dirs = self._parts.metadata.cluster_file.log_dirs()
        return server_settings(
            self._config,
            log_dirs=[str(one.path) for one in log_dirs],
            listener=shown_address(self.host, self.port),
            advertised=shown_address(*self._advertised_to(received)),
        )

    def _advertised_to(self, received: Received) -> tuple[str, int]:
        return self._advertised or received.local_address

    def __repr__(self) -> str:
        state = ", closed" if self._is_closed else ""
        return f"Server({str(self._parts.path)!r}, {self.bootstrap_servers!r}{state})"

    @property
    def bootstrap_servers(self) -> str:
        """The address to give to clients, as HOST:PORT."""
        return shown_address(*(self._advertised or (self.host, self.port)))

    def metrics(self) -> dict[str, Any]:
        """Return metrics of requests, topics and connections, by the names of a Kafka broker's metrics.

        "BrokerTopicMetrics" counts what this process has appended and what Kafka clients have read,
        "RequestMetrics" requests by their kind, with the errors they were answered with and their times in ms,
        "socket-server-metrics" connections, "DelayedOperationPurgatory" requests that wait. A "...PerSec" has
        Count, since the server started (of topics: since the cluster was opened), MeanRate and OneMinuteRate;
        of errors Count alone, by their names. `Cluster.metrics` has the replicas and logs.
        """
        requests = {
            name_of(ApiKey(key)): found
            for key, one in sorted(self._dispatch.metrics.items())
            if (found := one.as_dict())["RequestsPerSec"]["Count"]
        }
        return {
            "BrokerTopicMetrics": self._topic_metrics.as_dict() | self._client_reads.as_dict(),
            "RequestMetrics": requests,
            "socket-server-metrics": {
                "connection-count": self._listener.connections_count(),
                "connection-creation-total": self._listener.connections_made,
            },
            "DelayedOperationPurgatory": {
                name: {"PurgatorySize": len(one)} for name, one in self._purgatories.items()
            },
        }

    def intercept(self, api: str, function: Intercept | None) -> None:
        """Let a function see each request of one kind before it is answered, to test a client's errors.

            server.intercept("Produce", lambda request: request.fail("NOT_LEADER_OR_FOLLOWER"))

        Args:
            api: the kind, by Kafka's name.
            function: takes an `InterceptedRequest`, which it may `fail`, `delay` or `drop`; otherwise
                the request is answered as usual. An exception that it raises is logged. None removes
                the function of this kind.

        Raises:
            ConfigError: no such kind.
        """
        self._dispatch.intercept(api_key_of(api), function)

    def __reduce__(self) -> NoReturn:
        raise NotPicklableError("Server", f"use its address, {self.bootstrap_servers!r}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the server."""
        self.close()

    def close(self) -> None:
        """End: accept no more requests, and answer those in progress. Closing again does nothing."""
        if self._process_id != os.getpid():
            return  # It is the parent's.
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
        self._housekeeping.end()
        self._listener.begin_end()
        self._fetches.end()
        self._groups.close()
        self._transactions.close()
        self._listener.finish_end(_ANSWERED_WITHIN_S)
        self._pools.close(_POOL_ENDS_WITHIN_S)
        self._ownership.release()
        logger.info("%s is no longer served at %s", self._parts.path, self.bootstrap_servers)


def _forget_all() -> None:
    """Close the descriptors of the parent's servers in a forked child, without ending their connections."""
    for server in list(_servers):
        server._listener.forget()  # noqa: SLF001  its own module


os.register_at_fork(after_in_child=_forget_all)
