"""A Kafka client that sends requests to any broker, the controller or partition leaders, and retries them.

    with leased(options) as client:
        client.metadata(["events"]).topics["events"].partitions
        client.request(ApiKey.LIST_GROUPS, ListGroupsRequest())
        client.request_leaders(ApiKey.LIST_OFFSETS, partitions, build, results)

A call goes on until it has its answer, or `default.api.timeout.ms` have passed. Lost connections, partitions
whose leader moved and errors that Kafka calls retriable are tried again after a pause that doubles; metadata is
read again first. Whatever else fails is raised at once, above all a refused certificate or password. The error
at the end names the brokers that were tried, and why each failed. Only what may be repeated is sent through
here: a request may have been executed although its connection was lost.

If none of the known brokers can be reached, the bootstrap servers are asked again.

A client and its connections are used by one thread at a time: it is leased from a pool of the process, by its
options, so that the next caller finds connections made. Connections that stayed idle for
`connections.max.idle.ms` are closed when the pool is next used. A forked child starts with an empty pool, and
a client in use at that time goes on there without connections.

Source: Kafka clients/.../clients/NetworkClient.java (leastLoadedNode), admin/KafkaAdminClient.java.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import random as random_numbers
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar

from spark_kbatch.clock import monotonic_ms as clock_monotonic_ms
from spark_kbatch.clock import sleep_ms
from spark_kbatch.errors import (
    ConfigError,
    DisconnectedError,
    KBatchError,
    ProtocolError,
    RequestTimedOutError,
    RetriableError,
    TopicAlreadyExistsError,
    UnknownHostError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import INT_MAX, TopicPartition
from spark_kbatch.options.remote import ClusterOptions, host_and_port
from spark_kbatch.remote.metadata import ClusterMetadata, MetadataCache, TopicMetadata
from spark_kbatch.wire.backoff import ExponentialBackoff
from spark_kbatch.wire.codec import error_codes
from spark_kbatch.wire.connection import ConnectionConfig
from spark_kbatch.wire.connections import Connections, Node, State
from spark_kbatch.wire.errors import ErrorCode, error_of
from spark_kbatch.wire.protocol import ApiKey, CreateTopicsRequest, MetadataRequest

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

# Errors after which the same request may be answered: brokers learn of topics one after another.
RETRIABLE = (RetriableError, UnknownTopicOrPartitionError)
# A broker may not have heard yet of a topic that was just created: how often to ask for one.
_ASKED_FOR_AN_UNKNOWN_TOPIC = 3
_TOPICS_NAMED = 20  # in an error
_TRIED_AGAIN_MS = 200


def bootstrap_nodes(options: ClusterOptions) -> list[Node]:
    """Return the bootstrap servers as nodes, with negative ids because their broker ids are not known."""
    return [
        Node(-1 - number, *host_and_port(server))
        for number, server in enumerate(options.bootstrap_servers)
    ]


def ensure_not_refused(options: ClusterOptions, within_ms: int) -> None:
    """Wait as long as each bootstrap server refuses connections, but not longer than `within_ms`.

    For callers whose user waits: a client goes on for `default.api.timeout.ms`, as a broker may be
    starting. Whatever else is wrong with a server is left to the client.

    Raises:
        DisconnectedError: each of them refuses.
    """
    until_ms = clock_monotonic_ms() + min(within_ms, options.default_api_timeout_ms)
    while all(_refuses(*host_and_port(one)) for one in options.bootstrap_servers):
        if clock_monotonic_ms() >= until_ms:
            raise DisconnectedError(
                str(options), "connection refused: no broker listens there; check host and port"
            )
        sleep_ms(_TRIED_AGAIN_MS)


def _refuses(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError as error:
        return isinstance(error, ConnectionRefusedError)
    return False


class Client:
    """A client of one Kafka cluster, with its connections, cached metadata and retries.

    Not thread-safe.
    """

    def __init__(
        self,
        options: ClusterOptions,
        *,
        monotonic_ms: Callable[[], int] = clock_monotonic_ms,
        random: Callable[[], float] = random_numbers.random,
    ) -> None:
        """Create a client without connections; `leased` yields a pooled one that may have some.

        Args:
            options: of the cluster and the client.
            monotonic_ms: the clock.
            random: returns a uniform number from [0, 1), for jitter.
        """
        self.options = options
        self.connections = Connections(
            ConnectionConfig(
                client_id=options.client_id,
                # Producers count their own, by max.in.flight.requests.per.connection.
                max_in_flight_requests_per_connection=INT_MAX,
                request_timeout_ms=options.request_timeout_ms,
                reconnect_backoff_ms=options.reconnect_backoff_ms,
                reconnect_backoff_max_ms=options.reconnect_backoff_max_ms,
                connections_max_idle_ms=options.connections_max_idle_ms,
                socket_connection_setup_timeout_ms=options.socket_connection_setup_timeout_ms,
                socket_connection_setup_timeout_max_ms=options.socket_connection_setup_timeout_max_ms,
            ),
            security=options.security,
            monotonic_ms=monotonic_ms,
            random=random,
        )
        self.monotonic_ms = monotonic_ms
        self._random = random
        self.backoff = ExponentialBackoff(
            options.retry_backoff_ms, options.retry_backoff_max_ms, random
        )
        self._cache = MetadataCache(options.metadata_max_age_ms)
        self._has_metadata = False  # or had
        self._bootstrap = bootstrap_nodes(options)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; requests in flight fail. Closing again does nothing."""
        self.connections.close()

    # Metadata.

    def metadata(
        self, topics: Iterable[str] | None = None, *, fresh: bool = False
    ) -> ClusterMetadata:
        """Return the cluster's brokers, controller and topics, from the cache or by a Metadata request.

        Topics that do not exist are left out, and none is ever created by this.

        Args:
            topics: the topics asked for, None for all.
            fresh: ask a broker even if the last answer is younger than metadata.max.age.ms.

        Raises:
            KBatchError: a topic is not accessible, or its name is not valid.
            RequestTimedOutError: no broker answered in time.
        """
        names = None if topics is None else frozenset(topics)
        known = None if fresh else self._cache.find(names, self.monotonic_ms())
        return known or self._read_metadata(names, self._retries("METADATA"))

    def existing_topics(self, names: Collection[str]) -> ClusterMetadata:
        """Return fresh metadata of the named topics that exist, asking several times if one is unknown.

        A broker that has just started, or that has not heard of a new topic yet, says that it does not exist.

        Raises as `metadata`.
        """
        retries = self._retries("METADATA")
        found = self._read_metadata(frozenset(names), retries)
        for _ in range(_ASKED_FOR_AN_UNKNOWN_TOPIC - 1):
            if all(name in found.topics for name in names):
                break
            self.wait(self.options.retry_backoff_ms)
            found = self._read_metadata(frozenset(names), retries)
        return found

    def topic(self, name: str, *, fresh: bool = False) -> TopicMetadata:
        """Return the metadata of a topic, asking several times if it is unknown, as it may be new.

        Args:
            name: of the topic.
            fresh: as of `metadata`.

        Raises:
            UnknownTopicOrPartitionError: names the topics that exist.
        """
        if fresh:
            self.metadata([name], fresh=True)
        return self._topics([name], self._retries("METADATA")).topics[name]

    def leader(self, topic_partition: TopicPartition) -> tuple[Node, int]:
        """Return a partition's leader and its epoch (-1 if unknown), waiting until there is a leader.

        Raises:
            UnknownTopicOrPartitionError: there is no such partition.
            RequestTimedOutError: it had no leader in time.
        """
        retries = self._retries("METADATA")
        topic, partition = topic_partition
        while True:
            metadata = self._topics([topic], retries)
            self._ensure_exists(metadata, topic_partition)
            found = metadata.leader_of(topic, partition)
            if found is not None:
                return found
            retries.failed(str(topic_partition), "it has no leader")
            retries.pause()
            self.invalidate()

    @property
    def has_lost_a_connection(self) -> bool:
        """Whether the last connection to some known broker failed or was lost, and was not made again."""
        nodes = [*self._cache.nodes.values(), *self._bootstrap]
        return any(self.connections.last_error(node) is not None for node in nodes)

    def invalidate(self) -> None:
        """Mark the cached metadata as stale, so that its next use asks a broker again."""
        self._cache.invalidate()

    def _topics(self, names: Sequence[str], retries: _Retries) -> ClusterMetadata:
        """Return the metadata of the named topics, or raise an error if one of them does not exist."""
        found = self._cache.find(names, self.monotonic_ms())
        for _ in range(_ASKED_FOR_AN_UNKNOWN_TOPIC):
            if found is None:
                found = self._read_metadata(frozenset(names), retries)
            if all(name in found.topics for name in names):
                return found
            self.wait(self.options.retry_backoff_ms)
            found = None
        self._refuse_unknown_topic(names)

    def _refuse_unknown_topic(self, names: Sequence[str]) -> NoReturn:
        metadata = self.metadata(fresh=True)
        missing = [name for name in names if name not in metadata.topics]
        existing = [one.name for one in metadata.topics.values() if not one.is_internal]
        shown = ", ".join(existing[:_TOPICS_NAMED]) or "none"
        more = len(existing) - _TOPICS_NAMED
        raise UnknownTopicOrPartitionError(
            f"topic {', '.join(map(repr, missing or names))} does not exist in {self.options}, or this "
            f"client may not see it; topics: {shown}{f' and {more} more' if more > 0 else ''}"
        )

    def _ensure_exists(self, metadata: ClusterMetadata, topic_partition: TopicPartition) -> None:
        count = len(metadata.topics[topic_partition.topic].partitions)
        if not 0 <= topic_partition.partition < count:
            raise UnknownTopicOrPartitionError(
                f"partition {topic_partition.partition} of topic {topic_partition.topic!r} does not exist "
                f"in {self.options}: it has {count}, 0 to {count - 1}"
            )

    def _read_metadata(self, names: frozenset[str] | None, retries: _Retries) -> ClusterMetadata:
        body = MetadataRequest(
            topics=None
            if names is None
            else [MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(names)],
            allow_auto_topic_creation=False,
        )
        while True:
            answer = self._ask_any(ApiKey.METADATA, body, retries)
            code = getattr(answer, "error_code", ErrorCode.NONE)
            if code == ErrorCode.REBOOTSTRAP_REQUIRED:
                self._cache.forget_nodes()
            elif code:
                raise error_of(code, f"asked {self.options} for its topics")
            else:
                found, errors = self._cache.update(names, answer, self.monotonic_ms())
                self._has_metadata = True
                for name, refused in errors.refused.items():
                    raise error_of(refused, f"topic {name!r} of {self.options}")
                if found.nodes and not errors.transient:
                    return found
                for name, transient in errors.transient.items():
                    retries.failed(f"topic {name!r}", str(error_of(transient)))
            retries.pause()

    # Requests.

    def request(
        self,
        api_key: int,
        body: Any,
        *,
        node: Node | None = None,
        last_version: int | None = None,
        timeout_ms: int | None = None,
    ) -> Any:
        """Send a request and return its answer; if the connection is lost, send it again.

        Args:
            api_key: its kind.
            body: the message, or a function that returns it for a version.
            node: the broker that is asked, as long as it is in the metadata; None for any.
            last_version: do not use a higher version.
            timeout_ms: for all attempts together; None for default.api.timeout.ms.

        Raises:
            RequestTimedOutError: there was no answer in time; says which brokers were tried.
            DisconnectedError: the broker cannot be reached, and has left the cluster.
            UnsupportedVersionError: the broker does not know the request, or none of its versions here.
        """
        retries = self._retries(ApiKey(api_key).name, timeout_ms)
        if node is None:
            return self._ask_any(api_key, body, retries, last_version)
        while True:
            answer = self._ask_all({node: body}, api_key, retries, last_version)[node]
            if not isinstance(answer, KBatchError):
                return answer
            retries.failed(str(node), answer)
            retries.pause()
            if self._read_metadata(frozenset(), retries).nodes.get(node.id) != node:
                raise DisconnectedError(str(node), f"it has left the cluster; before, {answer}")

    def request_controller(self, api_key: int, body: Any) -> Any:
        """Send a request to the cluster's controller and return its answer.

        Arguments and errors are those of `request`.

        It is sent again if the broker that was asked is no longer the controller.
        """
        return self._ask_controller(api_key, body, self._retries(ApiKey(api_key).name))

    def _ask_controller(self, api_key: int, body: Any, retries: _Retries) -> Any:
        while True:
            node = self._controller(retries)
            answer = self._ask_all({node: body}, api_key, retries)[node]
            if isinstance(answer, KBatchError):
                retries.failed(str(node), answer)
            elif ErrorCode.NOT_CONTROLLER in error_codes(answer):
                retries.failed(str(node), "it is not the controller")
            else:
                return answer
            self.invalidate()
            retries.pause()

    def request_leaders(
        self,
        api_key: int,
        partitions: Iterable[TopicPartition],
        build: Callable[[Node, list[TopicPartition]], Any],
        results: Callable[[Any], Mapping[TopicPartition, Result | KBatchError]],
    ) -> dict[TopicPartition, Result]:
        """Send requests to the leaders of these partitions in parallel; return each partition's result.

        Args:
            api_key: the kind of request.
            partitions: all that are asked about.
            build: returns the request to a node about some of the partitions; or a function that returns it
                for a version.
            results: returns what an answer says of each of its partitions.

        Raises:
            UnknownTopicOrPartitionError: one of them does not exist.
            RequestTimedOutError: some were not answered in time; says which, and why.
            KBatchError: an error of a partition that is not retriable.
        """
        retries = self._retries(ApiKey(api_key).name)
        left = list(dict.fromkeys(partitions))
        found: dict[TopicPartition, Result] = {}
        while left:
            by_leader = self._by_leader(left, retries)
            bodies = {node: build(node, asked) for node, asked in by_leader.items()}
            answers = self._ask_all(bodies, api_key, retries)
            for node, answer in answers.items():
                told = self._results_of(node, answer, by_leader[node], results)
                for topic_partition, result in told.items():
                    if isinstance(result, KBatchError):
                        retries.failed(f"{topic_partition} at {node}", result)
                    else:
                        found[topic_partition] = result
            left = [one for one in left if one not in found]
            if left:
                self.invalidate()
                retries.pause()
        return found

    def ask_leaders(
        self,
        api_key: int,
        partitions: Iterable[TopicPartition],
        build: Callable[[Node, list[TopicPartition]], Any],
        timeout_ms: int,
    ) -> dict[Node, Any]:
        """Send one request to each leader of these partitions in parallel; return the answers that come.

        Nothing is sent again: for what can be asked for in another way.

        Args:
            api_key, partitions, build: as for `request_leaders`.
            timeout_ms: how long answers are waited for, request.timeout.ms at most.

        Raises:
            UnknownTopicOrPartitionError: one of them does not exist.
        """
        retries = self._retries(ApiKey(api_key).name, timeout_ms)
        by_leader = self._by_leader(list(partitions), retries)
        bodies = {node: build(node, asked) for node, asked in by_leader.items()}
        answers = self._ask_all(bodies, api_key, retries)
        return {node: one for node, one in answers.items() if not isinstance(one, KBatchError)}

    def _results_of(
        self,
        node: Node,
        answer: Any,
        asked: list[TopicPartition],
        results: Callable[[Any], Mapping[TopicPartition, Result | KBatchError]],
    ) -> Mapping[TopicPartition, Result | KBatchError]:
        if isinstance(answer, KBatchError):
            return dict.fromkeys(asked, answer)
        told = results(answer)
        missing = [one for one in asked if one not in told]
        if missing:
            raise ProtocolError(f"response of {node}", "partitions", -1, str(missing[0]), "none")
        return {one: told[one] for one in asked}

    def _by_leader(
        self, partitions: list[TopicPartition], retries: _Retries
    ) -> dict[Node, list[TopicPartition]]:
        metadata = self._topics(sorted({one.topic for one in partitions}), retries)
        by_leader: dict[Node, list[TopicPartition]] = {}
        for one in partitions:
            self._ensure_exists(metadata, one)
            leader = metadata.leader_of(*one)
            if leader is None:
                retries.failed(str(one), "it has no leader")
            else:
                by_leader.setdefault(leader[0], []).append(one)
        return by_leader

    def _controller(self, retries: _Retries) -> Node:
        """Return the controller's node, or any broker, which forwards requests, if none is named."""
        metadata = self._cache.find((), self.monotonic_ms())
        metadata = metadata or self._read_metadata(frozenset(), retries)
        found = metadata.nodes.get(metadata.controller)
        return found or self._any_node(retries)

    # Topics.

    def create_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int = -1,
        settings: Mapping[str, Any] | None = None,
    ) -> bool:
        """Create a topic, and wait until all its partitions have leaders.

        Args:
            name: its name.
            partitions: their number; -1 for the cluster's `num.partitions`.
            replication_factor: copies of each record; -1 for the cluster's `default.replication.factor`.
            settings: of the topic, by Kafka's keys; the cluster checks them.

        Returns:
            False if it is there, and who created it is not known: the answer to a request was lost, or says
                that the time was up.

        Raises:
            TopicAlreadyExistsError: it exists.
            KBatchError: the cluster refused it; says why.
        """
        topic = CreateTopicsRequest.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            assignments=[],
            configs=[
                CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(name=key, value=str(value))
                for key, value in (settings or {}).items()
            ],
        )
        timeout_ms = min(self.options.request_timeout_ms, self.options.default_api_timeout_ms)
        body = CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms, validate_only=False)
        retries, is_ours = self._retries("CREATE_TOPICS"), True
        while True:
            (created,) = self._ask_controller(ApiKey.CREATE_TOPICS, body, retries).topics
            if created.error_code in (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT):
                is_ours = created.error_code == ErrorCode.NONE
                break
            if created.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
                if ApiKey.CREATE_TOPICS in retries.unanswered:
                    is_ours = False
                    break
                raise TopicAlreadyExistsError(name)
            why = f"topic {name!r} cannot be created: {created.error_message or 'no reason given'}"
            retries.failed(name, error_of(created.error_code, why))
            retries.pause()
        self._wait_for_topic(name, retries)
        return is_ours

    def _wait_for_topic(self, name: str, retries: _Retries) -> None:
        while True:
            found = self._read_metadata(frozenset([name]), retries)
            topic = found.topics.get(name)
            if topic is None:
                retries.failed(name, "it does not exist yet")
            elif any(found.leader_of(name, one.partition) is None for one in topic.partitions):
                retries.failed(name, "a partition has no leader yet")
            else:
                return
            retries.pause()

    # The loop.

    def _retries(self, what: str, timeout_ms: int | None = None) -> _Retries:
        return _Retries(
            self, what, self.options.default_api_timeout_ms if timeout_ms is None else timeout_ms
        )

    def _ask_any(
        self, api_key: int, body: Any, retries: _Retries, last_version: int | None = None
    ) -> Any:
        while True:
            node = self._any_node(retries)
            answer = self._ask_all({node: body}, api_key, retries, last_version)[node]
            if not isinstance(answer, KBatchError):
                return answer
            retries.failed(str(node), answer)
            retries.pause()

    def _any_node(self, retries: _Retries) -> Node:
        """Return the connected broker with the fewest requests in flight, connecting to one if needed.

        As in Kafka, one connection is made at a time.
        """
        connections = self.connections
        tried: set[Node] = set()
        while True:
            nodes = list(self._cache.nodes.values()) or self._bootstrap
            able = [node for node in nodes if connections.can_send(node)]
            if able:
                return min(able, key=connections.in_flight_count)
            if all(connections.state(node) is State.DISCONNECTED for node in nodes):
                self._note_failures(tried & set(nodes), retries)
                self._ensure_a_name_is_known(nodes)
                start = self._next_to_connect(nodes, tried)
                if start is not None:
                    tried.add(start)
                    connections.ready(start)
                    continue
                if self._cache.nodes and self.options.metadata_recovery_strategy != "none":
                    logger.info(
                        "no known broker of %s can be reached: asking the bootstrap servers again",
                        self.options,
                    )
                    self._cache.forget_nodes()
                else:
                    tried.clear()
                    self.wait(max(1, min(map(connections.connection_delay_ms, nodes))), retries)
            else:
                busy = [one for one in nodes if connections.state(one) is not State.DISCONNECTED]
                self._poll(retries, *busy)
            retries.ensure_time_left()

    def _ensure_a_name_is_known(self, nodes: Sequence[Node]) -> None:
        """Raise ConfigError if no bootstrap server's host name can be resolved, instead of retrying.

        Kafka does so, too.
        """
        errors = [self.connections.last_error(node) for node in nodes]
        if self._has_metadata or not all(isinstance(one, UnknownHostError) for one in errors):
            return
        raise ConfigError(
            f"option 'bootstrap.servers' is '{self.options}', and none of these names can be looked up: "
            f"{'; '.join(map(str, errors))}"
        )

    def _next_to_connect(self, nodes: Sequence[Node], tried: set[Node]) -> Node | None:
        """Return an untried broker to connect to; None if all were tried or are in back-off.

        It is the one that was tried, or failed, the longest ago, as in Kafka: one that is silent costs the
        whole request.timeout.ms.
        """
        connections = self.connections
        first = int(self._random() * len(nodes))
        able = [
            one
            for one in [*nodes[first:], *nodes[:first]]
            if one not in tried and not connections.connection_delay_ms(one)
        ]
        return min(able, key=connections.last_attempt_ms, default=None)

    def _note_failures(self, tried: Iterable[Node], retries: _Retries) -> None:
        for node in tried:
            error = self.connections.last_error(node)
            if error is not None:
                retries.failed(str(node), error)

    def _ask_all(
        self,
        bodies: Mapping[Node, Any],
        api_key: int,
        retries: _Retries,
        last_version: int | None = None,
    ) -> dict[Node, Any]:
        """Send a request to each of these brokers in parallel; return each one's answer or error.

        A connection is attempted once, after its back-off.
        """
        connections = self.connections
        ended: dict[Node, Any] = {}
        unsent, tried = dict(bodies), set[Node]()
        while len(ended) < len(bodies):
            for node, body in list(unsent.items()):
                failed = self._connecting_failed(node, tried)
                if failed is not None:
                    ended[node] = failed
                elif connections.can_send(node):
                    self._send(node, api_key, body, ended, retries, last_version)
                else:
                    continue
                del unsent[node]
            if unsent and retries.left_ms() <= 0:
                for node in unsent:
                    ended[node] = connections.unsent(node)
                break
            if len(ended) < len(bodies):
                self._poll(retries, *unsent)
        return ended

    def _connecting_failed(self, node: Node, tried: set[Node]) -> KBatchError | None:
        connections = self.connections
        if connections.state(node) is State.DISCONNECTED:
            if node in tried:
                return connections.last_error(node)
            if not connections.connection_delay_ms(node):
                tried.add(node)
                connections.ready(node)
                if connections.state(node) is State.DISCONNECTED:
                    return connections.last_error(node)
        return None

    def _send(
        self,
        node: Node,
        api_key: int,
        body: Any,
        ended: dict[Node, Any],
        retries: _Retries,
        last_version: int | None,
    ) -> None:
        def end(answer: Any, error: KBatchError | None) -> None:
            ended[node] = error or answer
            if error is not None:
                retries.unanswered.add(api_key)

        self.connections.send(
            node,
            api_key,
            body,
            end,
            last_version=last_version,
            timeout_ms=max(1, min(self.options.request_timeout_ms, retries.left_ms())),
        )

    def _poll(self, retries: _Retries, *unsent: Node) -> None:
        """Wait for network events, until a broker can be connected to or sent a request, or time is up."""
        delays = map(self.connections.delay_ms, unsent)
        self.connections.poll(max(0, min([*delays, retries.left_ms()])))

    def wait(self, pause_ms: int, retries: _Retries | None = None) -> None:
        """Wait for some milliseconds while the client's connections go on sending and receiving."""
        if retries is not None:
            pause_ms = min(pause_ms, max(0, retries.left_ms()))
        until_ms = self.monotonic_ms() + pause_ms
        while (left_ms := until_ms - self.monotonic_ms()) > 0:
            self.connections.poll(left_ms)


class _Retries:
    """The retries of one client call: its deadline, and how many attempts failed and why."""

    def __init__(self, client: Client, what: str, timeout_ms: int) -> None:
        self._client = client
        self._what = what
        self._timeout_ms = timeout_ms
        self._deadline_ms = client.monotonic_ms() + timeout_ms
        self.attempts = 0  # that failed
        self.unanswered: set[int] = (
            set()
        )  # kinds of requests that were sent, and may have been executed
        self._failures: dict[str, str] = {}

    def left_ms(self) -> int:
        """Return the milliseconds until the call's deadline, 0 or less once it has passed."""
        return self._deadline_ms - self._client.monotonic_ms()

    def failed(self, where: str, why: KBatchError | str) -> None:
        """Note why an attempt failed if its error is retriable; otherwise raise the error."""
        if isinstance(why, KBatchError) and not isinstance(why, RETRIABLE):
            raise why
        reason = why.reason if isinstance(why, DisconnectedError) else str(why)
        if where not in self._failures:
            logger.warning("%s of %s: %s: %s", self._what, self._client.options, where, reason)
        self._failures[where] = reason

    def pause(self) -> None:
        """Wait for the retry back-off before the next attempt.

        Raises:
            RequestTimedOutError: no time is left for one.
        """
        pause_ms = self._client.backoff.pause_ms(self.attempts)
        self.attempts += 1
        self._client.wait(pause_ms, self)
        self.ensure_time_left()

    def ensure_time_left(self) -> None:
        """Raise RequestTimedOutError if the call's deadline has passed."""
        if self.left_ms() <= 0:
            failures = "; ".join(f"{where}: {why}" for where, why in self._failures.items())
            raise RequestTimedOutError(
                f"no answer of {self._client.options} to a {self._what} request within "
                f"{self._timeout_ms} ms: {failures or 'no broker answered'}"
            )


# The pool.


class _Idle(NamedTuple):
    client: Client
    since_ms: int


_idle: dict[ClusterOptions, list[_Idle]] = {}
_lock = threading.Lock()


@contextlib.contextmanager
def leased(options: ClusterOptions) -> Iterator[Client]:
    """Yield a client from the process's pool, or a new one, and put it into the pool afterwards.

    Connections with requests in flight at the end are closed. If anything but an error of this package
    ends the block, the client is closed.
    """
    client = _take(options)
    try:
        yield client
    except (KBatchError, GeneratorExit):
        _put_back(client)
        raise
    except BaseException:
        client.close()
        raise
    else:
        _put_back(client)


def close_idle_clients(options: ClusterOptions | None = None) -> None:
    """Close the pool's idle clients that have these options, or all idle clients without options."""
    with _lock:
        chosen = list(_idle) if options is None else [options]
        clients = [one.client for each in chosen for one in _idle.pop(each, [])]
    for client in clients:
        client.close()


def _take(options: ClusterOptions) -> Client:
    _close_long_idle()
    with _lock:
        idle = _idle.get(options)
        client = idle.pop().client if idle else None
    if client is None:
        return Client(options)
    client.connections.poll(0)  # notices those that a broker has closed
    if client.has_lost_a_connection:
        client.invalidate()  # other brokers, even of another cluster, may be there now
    return client


def _put_back(client: Client) -> None:
    if client.connections.is_closed:
        return
    client.connections.disconnect_busy("its user has ended")
    client.connections.poll(0)
    with _lock:
        _idle.setdefault(client.options, []).append(_Idle(client, client.monotonic_ms()))
    _close_long_idle()


def _close_long_idle() -> None:
    ended: list[Client] = []
    with _lock:
        for options, idle in list(_idle.items()):
            oldest_ms = clock_monotonic_ms() - options.connections_max_idle_ms
            ended += [one.client for one in idle if one.since_ms <= oldest_ms]
            _idle[options] = [one for one in idle if one.since_ms > oldest_ms]
            if not _idle[options]:
                del _idle[options]
    for client in ended:
        client.close()


def _start_empty_in_a_child() -> None:
    global _lock  # a thread of the parent may have held it
    _lock = threading.Lock()
    close_idle_clients()


atexit.register(close_idle_clients)
os.register_at_fork(after_in_child=_start_empty_in_a_child)
