"""Metadata, DescribeCluster and FindCoordinator: the one node, and the topics that it leads.

Replicas are shown as node 1, whatever log dirs a partition has: which disk leads is internal to the
cluster. A client is given the address that it has reached, unless another one is advertised.

A topic that a client asks for by name and that does not exist is created, if both the request and the
server allow it. That waits for locks, so the administration threads do it, for a while: what is not created
then is answered with LEADER_NOT_AVAILABLE, after which clients ask again.

Source: KafkaApis.handleTopicMetadataRequest, AutoTopicCreationManager, handleFindCoordinatorRequest.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

from spark_kbatch.clock import monotonic_s
from spark_kbatch.cluster.catalog import FolderCatalog
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.errors import (
    InvalidTopicError,
    KBatchError,
    LockTimeoutError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import TopicPartition, bytes_of_uuid
from spark_kbatch.options.topic import INTERNAL_PREFIX, Topic, ensure_valid_topic
from spark_kbatch.server.pools import Pool
from spark_kbatch.server.refusals import refusal
from spark_kbatch.server.requests import Received, Respond
from spark_kbatch.wire import protocol
from spark_kbatch.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

NODE_ID = 1
# What anyone may do, since no one is asked who they are: a bit for each number of Kafka's AclOperation.
TOPIC_OPERATIONS = sum(1 << one for one in (3, 4, 5, 6, 7, 8, 10, 11))
GROUP_OPERATIONS = sum(1 << one for one in (3, 6, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << one for one in (5, 7, 8, 9, 10, 11, 12))
NOT_ASKED = -(2**31)
_GROUP, _TRANSACTION = 0, 1  # kinds of coordinators
_BROKERS, _CONTROLLERS = 1, 2  # types of endpoints
_FIRST_WITH_KEYS = 4
_FIRST_BY_ID = 12  # of Metadata
_NO_ID = uuid.UUID(int=0)
_MAKES_WITHIN_S = 10.0  # the topics of a request, which has no time-out; clients wait for 30 s
_MADE_MAX = 100  # topics that one request creates; for others its client has to ask again


class NewTopics(NamedTuple):
    """Settings of topics that are created because a client asked for them."""

    are_made: bool
    partitions: int
    replication_factor: int


class MetadataHandler:
    """Handler of Metadata, DescribeCluster and FindCoordinator requests; thread-safe."""

    def __init__(
        self,
        parts: FolderParts,
        new_topics: NewTopics,
        advertised: Callable[[Received], tuple[str, int]],
        creators: Pool,
    ) -> None:
        """Show `advertised(request)` as the node's address; create topics in the pool `creators`."""
        self._parts, self._new_topics = parts, new_topics
        self._advertised, self._creators = advertised, creators
        self._cluster_id = parts.metadata.cluster_file.cluster_id()

    def metadata(self, received: Received, respond: Respond) -> None:
        """Answer Metadata."""
        body = received.body
        if received.version < _FIRST_BY_ID and any(
            one.name is None or one.topic_id is not None for one in body.topics or ()
        ):
            # Versions 10 and 11 have ids, but no answer without a name.
            respond(refusal(received, ErrorCode.INVALID_REQUEST))
            return
        may_make = received.version < 4 or body.allow_auto_topic_creation
        names = dict.fromkeys(topic.name for topic in body.topics or ())
        missing = [
            name for name in names if name and self._may_be_made(name) and self._find(name) is None
        ]
        if missing and may_make and self._new_topics.are_made:

            def make_and_answer() -> None:
                deadline = monotonic_s() + _MAKES_WITHIN_S
                late = {name for name in missing[:_MADE_MAX] if not self._make(name, deadline)}
                respond(self._metadata(received, late.union(missing[_MADE_MAX:])))

            self._creators.submit(make_and_answer)
        else:
            respond(self._metadata(received))

    def _may_be_made(self, name: str) -> bool:
        try:
            return not ensure_valid_topic(name).startswith(INTERNAL_PREFIX)
        except InvalidTopicError:
            return False

    def _make(self, name: str, deadline: float) -> bool:
        """Create a topic; return False if locks were not free by the deadline."""
        made = self._new_topics
        try:
            FolderCatalog(self._parts, deadline=deadline).create_topic(
                name,
                partitions=made.partitions,
                replication_factor=made.replication_factor,
                config={},
                exist_ok=True,
                implied=True,
            )
        except (OSError, KBatchError) as error:
            logger.warning("topic %r, which a client asked for, cannot be created: %s", name, error)
            return not isinstance(error, LockTimeoutError)
        return True

    def _metadata(self, received: Received, late: Collection[str] = ()) -> Any:
        """Return the Metadata response; topics in `late` get an error after which clients ask again."""
        response = protocol.MetadataResponse
        body = received.body
        host, port = self._advertised(received)
        # In version 0 an empty list stands for all.
        asks_all = body.topics is None or (received.version == 0 and not body.topics)
        if asks_all:
            topics = [self._topic(topic) for topic in self._all_topics()]
        else:
            # Each is shown once, as in Kafka: otherwise a small request could have an answer of any size.
            ids = {one.topic_id for one in body.topics if one.topic_id is not None}
            names = dict.fromkeys(one.name for one in body.topics if one.name is not None)
            # Kafka overlooks the names beside an id.
            topics = self._of_ids(ids) if ids else [self._asked(name, late) for name in names]
        if body.include_topic_authorized_operations:
            for one in topics:
                if one.name is not None:
                    one.topic_authorized_operations = TOPIC_OPERATIONS
        return response(
            cluster_authorized_operations=_of_cluster(body),
            brokers=[response.MetadataResponseBroker(node_id=NODE_ID, host=host, port=port)],
            cluster_id=self._cluster_id,
            controller_id=NODE_ID,
            topics=topics,
        )

    def _all_topics(self) -> Iterable[Topic]:
        for name in self._parts.metadata.topics.names(internal=True):
            topic = self._find(name)
            if topic is not None:
                yield topic

    def _find(self, name: str) -> Topic | None:
        try:
            return self._parts.metadata.topics.find(name)
        except (OSError, KBatchError) as error:
            logger.warning("topic %r is not shown: %s", name, error)
            return None

    def _of_ids(self, topic_ids: Collection[uuid.UUID]) -> list[Any]:
        """Return the metadata of topics that a client asks for by id."""
        if not topic_ids:
            return []
        response = protocol.MetadataResponse.MetadataResponseTopic
        known = {uuid_of(topic.topic_id): topic for topic in self._all_topics()}
        return [
            self._topic(known[one])
            if one in known
            else response(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=one, partitions=[]
            )
            for one in topic_ids
        ]

    def _asked(self, name: str, late: Collection[str]) -> Any:
        response = protocol.MetadataResponse.MetadataResponseTopic
        try:
            found = self._parts.metadata.topics.find(name)
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if name in late:
                error = ErrorCode.LEADER_NOT_AVAILABLE
            if found is None and name.startswith(INTERNAL_PREFIX):
                error = ErrorCode.INVALID_TOPIC_EXCEPTION
        except InvalidTopicError:
            found, error = None, ErrorCode.INVALID_TOPIC_EXCEPTION
        except (OSError, KBatchError) as problem:
            logger.warning("topic %r is not shown: %s", name, problem)
            found, error = None, ErrorCode.KAFKA_STORAGE_ERROR
        if found is not None:
            return self._topic(found)
        return response(error_code=error, name=name, topic_id=_NO_ID, partitions=[])

    def _topic(self, topic: Topic) -> Any:
        response = protocol.MetadataResponse.MetadataResponseTopic
        return response(
            error_code=0,
            name=topic.name,
            topic_id=uuid_of(topic.topic_id),
            is_internal=topic.name.startswith(INTERNAL_PREFIX),
            partitions=[self._partition(topic, number) for number in range(topic.partitions)],
        )

    def _partition(self, topic: Topic, number: int) -> Any:
        response = protocol.MetadataResponse.MetadataResponseTopic
        error, leader, epoch = 0, NODE_ID, -1
        try:
            epoch = self._parts.manager.replica(
                TopicPartition(topic.name, number)
            ).state.leader_epoch
        except UnknownTopicOrPartitionError:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        except (OSError, KBatchError):
            error, leader = ErrorCode.LEADER_NOT_AVAILABLE, -1
        return response.MetadataResponsePartition(
            error_code=error,
            partition_index=number,
            leader_id=leader,
            leader_epoch=epoch,
            replica_nodes=[NODE_ID],
            isr_nodes=[NODE_ID],
            offline_replicas=[] if leader == NODE_ID else [NODE_ID],
        )

    def describe_cluster(self, received: Received, respond: Respond) -> None:
        """Answer DescribeCluster."""
        response = protocol.DescribeClusterResponse
        host, port = self._advertised(received)
        asked = received.body.endpoint_type if received.version >= 1 else _BROKERS
        if asked != _BROKERS:
            is_known = asked == _CONTROLLERS
            respond(
                response(
                    error_code=(
                        ErrorCode.MISMATCHED_ENDPOINT_TYPE
                        if is_known
                        else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
                    ),
                    error_message=(
                        "this is an endpoint of brokers, and one of controllers is asked for: give the "
                        "address as bootstrap.servers"
                        if is_known
                        else f"there are no endpoints of type {asked}"
                    ),
                )
            )
            return
        respond(
            response(
                error_code=0,
                cluster_authorized_operations=_of_cluster(received.body),
                cluster_id=self._cluster_id,
                controller_id=NODE_ID,
                brokers=[response.DescribeClusterBroker(broker_id=NODE_ID, host=host, port=port)],
            )
        )

    def find_coordinator(self, received: Received, respond: Respond) -> None:
        """Answer FindCoordinator: with this node, for groups and transactions."""
        response = protocol.FindCoordinatorResponse
        body = received.body
        host, port = self._advertised(received)
        keys = body.coordinator_keys if received.version >= _FIRST_WITH_KEYS else [body.key]
        error, message = 0, None
        if body.key_type not in (_GROUP, _TRANSACTION):
            error, message = ErrorCode.INVALID_REQUEST, f"no coordinators of kind {body.key_type}"
        if error:
            host, port = "", -1
        node = {"node_id": -1 if error else NODE_ID, "host": host, "port": port}
        outcome = {"error_code": error, "error_message": message}
        if received.version < _FIRST_WITH_KEYS:
            respond(response(**node, **outcome))
            return
        found = [response.Coordinator(key=key, **node, **outcome) for key in keys]
        respond(response(coordinators=found))


def _of_cluster(body: Any) -> int:
    return CLUSTER_OPERATIONS if body.include_cluster_authorized_operations else NOT_ASKED


def uuid_of(topic_id: str) -> uuid.UUID:
    """Convert a topic's id from base64 text to the UUID of Kafka's protocol."""
    return uuid.UUID(bytes=bytes_of_uuid(topic_id))
