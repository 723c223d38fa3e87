"""Metadata of a Kafka cluster (brokers, topics, partitions, leaders), and a cache of it.

Brokers learn of a new leader one after another. So the cache does not go back: of a partition whose leader epoch
it knows, it refuses an older one, unless the topic was recreated, which its id tells.

Source: Kafka clients/.../clients/Metadata.java, MetadataSnapshot.java.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from spark_kbatch.model import text_of_uuid
from spark_kbatch.wire.connections import Node
from spark_kbatch.wire.errors import ErrorCode

NO_CONTROLLER = -1
# A topic with one of these is being created, or a broker does not know enough of it yet.
_TRANSIENT = (ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_SERVER_ERROR)


class PartitionMetadata(NamedTuple):
    """A partition's leader, leader epoch, replicas and ISR, from a Metadata response."""

    partition: int
    leader: int  # a node's id; -1 if there is none
    leader_epoch: int  # -1 if the cluster does not tell
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class TopicMetadata(NamedTuple):
    """A topic's id and partitions, in order, from a Metadata response."""

    name: str
    topic_id: str  # base64url, as an embedded cluster writes it; empty if the cluster does not tell
    is_internal: bool
    partitions: tuple[PartitionMetadata, ...]


class ClusterMetadata(NamedTuple):
    """A cluster's id, brokers and controller, and the requested topics that exist, from its metadata."""

    cluster_id: str
    nodes: Mapping[int, Node]
    controller: int  # a node's id; -1 if the cluster does not tell
    topics: Mapping[str, TopicMetadata]

    def leader_of(self, topic: str, partition: int) -> tuple[Node, int] | None:
        """Return a partition's leader and leader epoch; None if it has no leader or none that is known."""
        found = self.topics.get(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            return None
        one = found.partitions[partition]
        node = self.nodes.get(one.leader)
        return None if node is None else (node, one.leader_epoch)


class TopicErrors(NamedTuple):
    """Errors of topics in a Metadata response: unknown topics, and others by error code."""

    unknown: frozenset[str]
    transient: Mapping[str, int]  # error codes; the same question may be answered later
    refused: Mapping[str, int]


class MetadataCache:
    """Cache of a cluster's metadata, which keeps a known leader over one of an older epoch.

    Not thread-safe.
    """

    def __init__(self, max_age_ms: int) -> None:
        """Start with an empty cache, whose entries expire after `max_age_ms`."""
        self._max_age_ms = max_age_ms
        self._cluster = ClusterMetadata("", {}, NO_CONTROLLER, {})
        self._topics: dict[str, TopicMetadata] = {}
        self._read_ms: dict[str, int] = {}  # by topic
        self._all_read_ms: int | None = None  # when all topics were asked for
        self._nodes_read_ms: int | None = None

    @property
    def nodes(self) -> Mapping[int, Node]:
        """The cluster's brokers by id; empty before the first Metadata response."""
        return self._cluster.nodes

    def find(self, topics: Iterable[str] | None, now_ms: int) -> ClusterMetadata | None:
        """Return the cached metadata of topics, None for all; None if any is missing or expired."""
        if not self._is_fresh(self._nodes_read_ms, now_ms):
            return None
        if topics is None:
            fresh = self._is_fresh(self._all_read_ms, now_ms)
            return self._cluster._replace(topics=dict(self._topics)) if fresh else None
        names = set(topics)
        if not all(self._is_fresh(self._read_ms.get(name), now_ms) for name in names):
            return None
        return self._cluster._replace(topics={name: self._topics[name] for name in sorted(names)})

    def update(
        self, topics: frozenset[str] | None, body: Any, now_ms: int
    ) -> tuple[ClusterMetadata, TopicErrors]:
        """Store a Metadata response in the cache; return its contents and its topics' errors.

        Args:
            topics: that were asked for; None for all.
            body: of the answer.
            now_ms: the time.

        Returns:
            what it says, topics without an error; and the errors.
        """
        errors = _errors_of(body)
        found = {
            one.name: self._newer(_topic(one))
            for one in body.topics
            if one.error_code == ErrorCode.NONE
        }
        gone = errors.unknown if topics is not None else self._topics.keys() - found.keys()
        for name in gone:
            self._topics.pop(name, None)
            self._read_ms.pop(name, None)
        self._topics.update(found)
        self._read_ms.update(dict.fromkeys(found, now_ms))
        self._nodes_read_ms = now_ms
        if topics is None:
            self._all_read_ms = None if errors.transient else now_ms
        self._cluster = ClusterMetadata(
            body.cluster_id or "",
            {one.node_id: Node(one.node_id, one.host, one.port) for one in body.brokers},
            body.controller_id,
            {},
        )
        return self._cluster._replace(topics=dict(sorted(found.items()))), errors

    def invalidate(self) -> None:
        """Expire everything in the cache, but keep the known leader epochs."""
        self._read_ms.clear()
        self._all_read_ms = self._nodes_read_ms = None

    def forget_nodes(self) -> None:
        """Remove the cluster's brokers from the cache, as none of them can be reached."""
        self.invalidate()
        self._cluster = self._cluster._replace(nodes={})

    def _is_fresh(self, read_ms: int | None, now_ms: int) -> bool:
        return read_ms is not None and now_ms - read_ms < self._max_age_ms

    def _newer(self, topic: TopicMetadata) -> TopicMetadata:
        """Return the topic, with cached partitions in place of those with an older leader epoch."""
        known = self._topics.get(topic.name)
        if known is None or known.topic_id != topic.topic_id:
            return topic
        before = {one.partition: one for one in known.partitions}
        return topic._replace(
            partitions=tuple(
                before[one.partition] if _is_behind(one, before.get(one.partition)) else one
                for one in topic.partitions
            )
        )


def _is_behind(found: PartitionMetadata, known: PartitionMetadata | None) -> bool:
    return known is not None and 0 <= found.leader_epoch < known.leader_epoch


def _topic(body: Any) -> TopicMetadata:
    topic_id = getattr(body, "topic_id", None)
    partitions = sorted(body.partitions, key=lambda one: one.partition_index)
    return TopicMetadata(
        body.name,
        "" if not topic_id or not topic_id.int else text_of_uuid(topic_id.bytes),
        bool(body.is_internal),
        tuple(
            PartitionMetadata(
                one.partition_index,
                one.leader_id,
                getattr(one, "leader_epoch", -1),
                tuple(one.replica_nodes),
                tuple(one.isr_nodes),
            )
            for one in partitions
        ),
    )


def _errors_of(body: Any) -> TopicErrors:
    codes = {one.name: one.error_code for one in body.topics if one.error_code != ErrorCode.NONE}
    unknown = {n for n, code in codes.items() if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    transient = {name: code for name, code in codes.items() if code in _TRANSIENT}
    refused = {n: code for n, code in codes.items() if n not in unknown and n not in transient}
    return TopicErrors(frozenset(unknown), transient, refused)
