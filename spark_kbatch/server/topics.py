"""The handler of CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords.

Each topic of a request succeeds or fails by itself. Changes go through `replica/administration`, as from
Python, under the same locks that Spark jobs take; a request waits for them until its time-out. Topics whose
names start with `__` are internal, and no client changes them.

Clients cannot place replicas: there is one node, and the cluster chooses the log dirs. So an explicit
assignment may name only node 1, and gives the number of partitions.

Source: ControllerApis.createTopics, deleteTopics, createPartitions; ReplicationControlManager of the same
names; ReplicaManager.deleteRecords.
"""

from __future__ import annotations

import functools
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from spark_kbatch.clock import monotonic_s
from spark_kbatch.cluster.catalog import FolderCatalog
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.errors import (
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    KBatchError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import (
    INTERNAL_PREFIX,
    PARTITIONS_MAX,
    Topic,
    TopicConfig,
    ensure_more_partitions,
    ensure_valid_topic,
)
from spark_kbatch.replica import administration
from spark_kbatch.server import settings
from spark_kbatch.server.metadata import NODE_ID, NewTopics, uuid_of
from spark_kbatch.server.outcomes import DONE, Outcomes, RefusedError
from spark_kbatch.server.refusals import refusal
from spark_kbatch.server.requests import Received, Respond
from spark_kbatch.wire import protocol
from spark_kbatch.wire.errors import ErrorCode

_DEFAULT = -1  # stands for the server's own number
_ALL_RECORDS = -1  # in place of an offset
_NO_LOW_WATERMARK = -1
_FIRST_WITH_IDS = 6  # of DeleteTopics
_CREATED_MAX = 10_000  # partitions that one request creates, as in Kafka


class _Wanted(NamedTuple):
    """A topic that a CreateTopics request asks for, with the server's defaults filled in."""

    name: str
    partitions: int
    replication_factor: int
    config: TopicConfig
    given: frozenset[str]  # keys of the settings that it gives


class _TopicsById(NamedTuple):
    """All topics by their ids, as one request finds them."""

    found: Mapping[uuid.UUID, Topic]
    failed: OSError | KBatchError | None  # why one of them could not be read, if so

    def topic(self, topic_id: uuid.UUID) -> Topic:
        """Return the topic with this id; raise an error if there is none, or it could not be read."""
        if topic_id in self.found:
            return self.found[topic_id]
        if self.failed is not None:
            raise self.failed.with_traceback(None)
        raise _unknown_id(topic_id)


class TopicsHandler:
    """Handler of requests that create, grow, empty or delete topics; thread-safe, and waits for locks."""

    def __init__(self, parts: FolderParts, new_topics: NewTopics, outcomes: Outcomes) -> None:
        """Use the defaults in `new_topics` for numbers that a CreateTopics request leaves open."""
        self._parts, self._new_topics, self._outcomes = parts, new_topics, outcomes

    def create_topics(self, received: Received, respond: Respond) -> None:
        """Answer CreateTopics."""
        if _is_over(received, respond):
            return
        body, deadline = received.body, _deadline(received)
        result = protocol.CreateTopicsResponse.CreatableTopicResult
        results = []
        total = sum(map(self._partitions_of, body.topics))
        ensure_may_be_named = self._parts.metadata.topics.check_of_new_names()
        for asked, times in _once(body.topics):
            create = functools.partial(
                self._create, asked, times, total, ensure_may_be_named, deadline, body.validate_only
            )
            created, outcome = self._outcomes.attempt(create)
            if created is None:
                results.append(
                    result(name=asked.name, topic_id=None, configs=[], **outcome._asdict())
                )
            else:
                results.append(created)
        respond(protocol.CreateTopicsResponse(topics=results))

    def _partitions_of(self, asked: Any) -> int:
        if asked.assignments:
            return len(asked.assignments)
        default = self._new_topics.partitions
        return default if asked.num_partitions == _DEFAULT else max(asked.num_partitions, 0)

    def _create(
        self,
        asked: Any,
        times: int,
        total: int,
        ensure_may_be_named: Callable[[str], None],
        deadline: float,
        validate_only: bool,
    ) -> Any:
        """Create one topic of a CreateTopics request; return its entry in the response.

        `total` is the number of partitions that the request asks for in all.
        """
        _ensure_in_time(deadline)
        _ensure_few(total)
        _ensure_once(asked.name, times)
        wanted = self._wanted(asked, ensure_may_be_named)
        if validate_only:
            return _created(wanted, None)
        catalog = FolderCatalog(self._parts, deadline=deadline)
        planned = catalog.plan(
            wanted.name,
            partitions=wanted.partitions,
            replication_factor=wanted.replication_factor,
            config=wanted.config,
            given=wanted.given,
        )
        topic = catalog.create(planned, level=logging.INFO)
        if topic.topic_id != planned.topic_id:
            raise TopicAlreadyExistsError(wanted.name)
        return _created(wanted, uuid_of(topic.topic_id))

    def _wanted(self, asked: Any, ensure_may_be_named: Callable[[str], None]) -> _Wanted:
        """Check one topic of a CreateTopics request; return it with the server's defaults filled in."""
        name = asked.name
        ensure_not_the_clusters(name)
        if self._parts.metadata.topics.find(name) is not None:
            raise TopicAlreadyExistsError(name)
        ensure_may_be_named(name)
        config, given = settings.parse_new(
            (one.name, _not_null(one.name, one.value)) for one in asked.configs
        )
        if asked.assignments:
            partitions, replication_factor = _assigned(asked), 1
        else:
            partitions = self._partitions(asked.num_partitions)
            replication_factor = self._replication_factor(asked.replication_factor)
        return _Wanted(name, partitions, replication_factor, config, given)

    def _partitions(self, asked: int) -> int:
        if asked == _DEFAULT:
            return self._new_topics.partitions
        if not 1 <= asked <= PARTITIONS_MAX:
            raise InvalidPartitionsError(
                f"a topic cannot have {asked} partitions; accepted: 1 to {PARTITIONS_MAX}, or -1 for the "
                f"server's num.partitions, {self._new_topics.partitions}"
            )
        return asked

    def _replication_factor(self, asked: int) -> int:
        default = self._new_topics.replication_factor
        if asked == _DEFAULT:
            return default
        log_dirs = len(self._parts.metadata.cluster_file.log_dirs())
        most = max(log_dirs, default)
        if not 1 <= asked <= most:
            raise InvalidReplicationFactorError(
                f"a topic cannot have replication factor {asked}; accepted: 1 to {most}, or -1 for the "
                f"server's default.replication.factor, {default}. Each replica needs its own log "
                f"dir, and this server has {log_dirs}"
            )
        return asked

    def delete_topics(self, received: Received, respond: Respond) -> None:
        """Answer DeleteTopics."""
        if _is_over(received, respond):
            return
        deadline = _deadline(received)
        topics_by_id = functools.cache(self._topics_by_id)
        if received.version >= _FIRST_WITH_IDS:
            asked = [(one.name, one.topic_id) for one in received.body.topics]
        else:
            asked = [(name, None) for name in received.body.topic_names]
        result = protocol.DeleteTopicsResponse.DeletableTopicResult
        results = []
        for (name, topic_id), times in Counter(asked).items():
            delete = functools.partial(self._delete, name, topic_id, times, topics_by_id, deadline)
            deleted, outcome = self._outcomes.attempt(delete)
            name, topic_id = deleted or (name, topic_id)
            results.append(result(name=name, topic_id=topic_id, **outcome._asdict()))
        respond(protocol.DeleteTopicsResponse(responses=results))

    def _delete(
        self,
        name: str | None,
        topic_id: uuid.UUID | None,
        times: int,
        topics_by_id: Callable[[], _TopicsById],
        deadline: float,
    ) -> tuple[str, uuid.UUID]:
        """Delete a topic by its name, or by its id; return both."""
        _ensure_in_time(deadline)
        _ensure_once(name or str(topic_id), times)
        if (name is None) == (topic_id is None):
            raise RefusedError(
                ErrorCode.INVALID_REQUEST, "give either the name of a topic or its id"
            )
        if topic_id is not None:
            topic = topics_by_id().topic(topic_id)
        else:
            topic = self._existing(str(name))
        ensure_not_the_clusters(topic.name)
        try:
            deleted = administration.delete_topic(
                self._parts.manager,
                self._parts.commits,
                topic.name,
                topic_id=None if topic_id is None else topic.topic_id,
                deadline=deadline,
            )
        except UnknownTopicOrPartitionError:
            if topic_id is None:
                raise
            raise _unknown_id(topic_id) from None
        return deleted.name, uuid_of(deleted.topic_id)

    def _existing(self, name: str) -> Topic:
        """Return the topic that a client names; one of an invalid name does not exist."""
        try:
            return self._parts.metadata.topics.existing(name)
        except InvalidTopicError as error:
            raise UnknownTopicOrPartitionError(str(error)) from None

    def _topics_by_id(self) -> _TopicsById:
        topics = self._parts.metadata.topics
        found: dict[uuid.UUID, Topic] = {}
        failed: OSError | KBatchError | None = None
        for name in topics.names(internal=True):
            try:
                topic = topics.find(name)
            except (OSError, KBatchError) as error:
                failed = error
                continue
            if topic is not None:
                found[uuid_of(topic.topic_id)] = topic
        return _TopicsById(found, failed)

    def create_partitions(self, received: Received, respond: Respond) -> None:
        """Answer CreatePartitions."""
        if _is_over(received, respond):
            return
        body, deadline = received.body, _deadline(received)
        result = protocol.CreatePartitionsResponse.CreatePartitionsTopicResult
        results = []
        for asked, times in _once(body.topics):
            grow = functools.partial(self._grow, asked, times, deadline, body.validate_only)
            _, outcome = self._outcomes.attempt(grow)
            results.append(result(name=asked.name, **outcome._asdict()))
        respond(protocol.CreatePartitionsResponse(results=results))

    def _grow(self, asked: Any, times: int, deadline: float, validate_only: bool) -> None:
        """Add partitions to a topic."""
        _ensure_in_time(deadline)
        _ensure_once(asked.name, times)
        topic = self._existing(asked.name)
        ensure_not_the_clusters(topic.name)
        if asked.count > PARTITIONS_MAX:
            raise InvalidPartitionsError(
                f"a topic cannot have {asked.count} partitions; accepted: up to {PARTITIONS_MAX}"
            )
        ensure_more_partitions(topic.name, topic.partitions, asked.count)
        _ensure_few(asked.count - topic.partitions)
        if asked.assignments is not None:
            added = asked.count - topic.partitions
            if len(asked.assignments) != added:
                raise RefusedError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"topic {asked.name!r} would get {added} partitions, and {len(asked.assignments)} "
                    "assignments are given",
                )
            _ensure_on_this_node(one.broker_ids for one in asked.assignments)
        if not validate_only:
            administration.create_partitions(
                self._parts.manager,
                self._parts.commits,
                asked.name,
                asked.count,
                deadline=deadline,
            )

    def delete_records(self, received: Received, respond: Respond) -> None:
        """Answer DeleteRecords: partition by partition, as Kafka does."""
        deadline = _deadline(received)
        response = protocol.DeleteRecordsResponse
        results: dict[str, list[Any]] = {}
        for topic in received.body.topics:
            for one in topic.partitions:
                topic_partition = TopicPartition(topic.name, one.partition_index)
                delete = functools.partial(
                    self._delete_records, topic_partition, one.offset, deadline
                )
                start, outcome = self._outcomes.attempt(delete)
                results.setdefault(topic.name, []).append(
                    response.DeleteRecordsTopicResult.DeleteRecordsPartitionResult(
                        partition_index=one.partition_index,
                        low_watermark=_NO_LOW_WATERMARK if start is None else start,
                        error_code=outcome.error_code,
                    )
                )
        topics = [
            response.DeleteRecordsTopicResult(name=name, partitions=partitions)
            for name, partitions in results.items()
        ]
        respond(response(topics=topics))

    def _delete_records(self, topic_partition: TopicPartition, offset: int, deadline: float) -> int:
        """Delete a partition's records below an offset; return its new log start offset."""
        topic = self._existing(topic_partition.topic)
        ensure_not_the_clusters(topic.name)
        if not 0 <= topic_partition.partition < topic.partitions:
            raise UnknownTopicOrPartitionError(f"partition {topic_partition} does not exist")
        if offset < _ALL_RECORDS:
            raise RefusedError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{offset} is not an offset; -1 stands for all records",
            )
        done = self._parts.manager.delete_records(
            {topic_partition: offset}, self._parts.commits, deadline=deadline
        )
        return done[topic_partition].log_start_offset


def ensure_not_the_clusters(name: str) -> None:
    """Check that a topic's name is valid and not internal, so that clients may change the topic.

    Raises:
        InvalidTopicError: Kafka would refuse the name.
        RefusedError: the topic is internal.
    """
    if ensure_valid_topic(name).startswith(INTERNAL_PREFIX):
        raise RefusedError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic {name!r} would be one of the cluster's own, whose names start with "
            f"{INTERNAL_PREFIX!r}; choose another name",
        )


def _deadline(received: Received) -> float:
    timeout_ms: int = received.body.timeout_ms
    return monotonic_s() + max(0, timeout_ms) / 1000


def _is_over(received: Received, respond: Respond) -> bool:
    """Refuse a request whose time is up before it begins, as Kafka's controller does; return True if so."""
    is_over: bool = received.body.timeout_ms <= 0
    if is_over:
        respond(refusal(received, ErrorCode.REQUEST_TIMED_OUT))
    return is_over


def _ensure_in_time(deadline: float) -> None:
    """Check that a request's time is not up, so that it ends in time however many topics it names."""
    if monotonic_s() >= deadline:
        raise RefusedError(
            ErrorCode.REQUEST_TIMED_OUT,
            "the request's time was up before this topic had its turn; ask again",
        )


def _once(topics: Sequence[Any]) -> Iterator[tuple[Any, int]]:
    """Yield each topic of a request once by name, with how often the request names it."""
    times = Counter(one.name for one in topics)
    for one in {one.name: one for one in topics}.values():
        yield one, times[one.name]


def _ensure_few(partitions: int) -> None:
    """Check that a request creates no more partitions than Kafka accepts; others wait for its lock.

    Source: ReplicationControlManager.validateTotalNumberOfPartitions.
    """
    if partitions > _CREATED_MAX:
        raise RefusedError(
            ErrorCode.POLICY_VIOLATION,
            f"the request would create {partitions} partitions; at most {_CREATED_MAX} are created "
            "by one request: send several",
        )


def _ensure_once(name: str, times: int) -> None:
    if times > 1:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, f"topic {name!r} is named twice in the request"
        )


def _unknown_id(topic_id: uuid.UUID) -> RefusedError:
    return RefusedError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}")


def _not_null(key: str, value: str | None) -> str:
    if value is None:
        raise RefusedError(ErrorCode.INVALID_CONFIG, f"option {key!r} has no value; give one")
    return value


def _assigned(asked: Any) -> int:
    """Return the number of partitions in an explicit assignment of replicas."""
    if asked.num_partitions != _DEFAULT or asked.replication_factor != _DEFAULT:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            "replicas are assigned, so the number of partitions and the replication factor must be "
            f"-1; they are {asked.num_partitions} and {asked.replication_factor}",
        )
    found = sorted(one.partition_index for one in asked.assignments)
    if found != list(range(len(found))):
        raise RefusedError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"replicas are assigned to the partitions {', '.join(map(str, found))}; they must be "
            "numbered from 0, each once",
        )
    _ensure_on_this_node(one.broker_ids for one in asked.assignments)
    return len(found)


def _ensure_on_this_node(assignments: Iterable[Sequence[int]]) -> None:
    for nodes in assignments:
        if list(nodes) != [NODE_ID]:
            raise RefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"replicas are assigned to the nodes {list(nodes)}; there is one node, {NODE_ID}. "
                "Leave the assignment out, and give a replication factor",
            )


def _created(wanted: _Wanted, topic_id: uuid.UUID | None) -> Any:
    result = protocol.CreateTopicsResponse.CreatableTopicResult
    return result(
        name=wanted.name,
        topic_id=topic_id,
        num_partitions=wanted.partitions,
        replication_factor=wanted.replication_factor,
        configs=[
            result.CreatableTopicConfigs(
                name=one.name,
                value=one.value,
                read_only=one.is_read_only,
                config_source=one.source,
                is_sensitive=False,
            )
            for one in settings.topic_settings(wanted.config, wanted.given)
        ],
        **DONE._asdict(),
    )
