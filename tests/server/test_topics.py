"""Admin clients create, grow, empty and delete topics."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_kbatch import Cluster
from spark_kbatch.catalog.topic_files import TopicFiles
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.errors import UnknownTopicOrPartitionError
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.replica import administration
from spark_kbatch.server.metadata import NewTopics, uuid_of
from spark_kbatch.server.outcomes import Outcomes
from spark_kbatch.server.topics import TopicsHandler
from spark_kbatch.wire import protocol
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import ApiKey
from tests.support import builders
from tests.support.asking import ask
from tests.support.store import store_of

OK = ErrorCode.NONE
NEW_TOPIC = protocol.CreateTopicsRequest.CreatableTopic
MORE = protocol.CreatePartitionsRequest.CreatePartitionsTopic
RECORDS = protocol.DeleteRecordsRequest.DeleteRecordsTopic
STATE = protocol.DeleteTopicsRequest.DeleteTopicState


def versions_of(api_key: ApiKey) -> range:
    return range(protocol.SUPPORTED[api_key].first, protocol.SUPPORTED[api_key].last + 1)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with builders.a_cluster(tmp_path, topics={"events": 2}) as cluster:
        yield cluster


def handler_of(cluster: Cluster, *, partitions: int = 3, replicas: int = 1) -> TopicsHandler:
    return TopicsHandler(store_of(cluster), NewTopics(True, partitions, replicas), Outcomes())


@pytest.fixture
def handler(cluster: Cluster) -> TopicsHandler:
    return handler_of(cluster)


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster for tests that change nothing."""
    topics = {"events": 2}
    with builders.a_cluster(tmp_path_factory.mktemp("untouched"), topics=topics) as cluster:
        yield cluster


def a_topic(
    name: str = "new",
    *,
    partitions: int = 1,
    replicas: int = 1,
    assignments: dict[int, list[int]] | None = None,
    configs: dict[str, str | None] | None = None,
) -> Any:
    return NEW_TOPIC(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[
            NEW_TOPIC.CreatableReplicaAssignment(partition_index=number, broker_ids=nodes)
            for number, nodes in (assignments or {}).items()
        ],
        configs=[
            NEW_TOPIC.CreatableTopicConfig(name=key, value=value)
            for key, value in (configs or {}).items()
        ],
    )


def create(handler: TopicsHandler, *topics: Any, version: int = 7, **fields: Any) -> list[Any]:
    fields = {"timeout_ms": 1000, "validate_only": False} | fields
    answer = ask(
        handler.create_topics, ApiKey.CREATE_TOPICS, version, topics=list(topics), **fields
    )
    return list(answer.topics)


def delete(handler: TopicsHandler, *names: str, **fields: Any) -> list[Any]:
    topics = [STATE(name=name, topic_id=None) for name in names]
    fields = {"timeout_ms": 1000, "topics": topics} | fields
    return list(ask(handler.delete_topics, ApiKey.DELETE_TOPICS, **fields).responses)


def grow(handler: TopicsHandler, name: str, count: int, **fields: Any) -> Any:
    fields = {"timeout_ms": 1000, "validate_only": False} | fields
    nodes = fields.pop("assignments", None)
    assigned = nodes and [MORE.CreatePartitionsAssignment(broker_ids=one) for one in nodes]
    topics = [MORE(name=name, count=count, assignments=assigned)]
    (result,) = ask(
        handler.create_partitions, ApiKey.CREATE_PARTITIONS, topics=topics, **fields
    ).results
    return result


@pytest.mark.parametrize("version", versions_of(ApiKey.CREATE_TOPICS))
def test_a_topic_is_created_as_requested(
    cluster: Cluster, handler: TopicsHandler, version: int
) -> None:
    asked = a_topic(partitions=4, configs={"retention.ms": "1000", "segment.bytes": "2097152"})

    (result,) = create(handler, asked, version=version)

    topic = cluster.topic("new")
    assert (result.name, result.error_code) == ("new", OK)
    assert (topic.partitions, topic.config.retention_ms) == (4, 1000)
    assert topic.config.segment_bytes == 2 << 20
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (4, 1)
        assert {one.name: one.value for one in result.configs}["retention.ms"] == "1000"
    if version >= 7:
        assert result.topic_id == uuid_of(topic.topic_id)


def test_values_that_a_request_leaves_open_are_the_servers(cluster: Cluster) -> None:
    handler = handler_of(cluster, partitions=5, replicas=2)

    create(handler, a_topic(partitions=-1, replicas=-1))

    topic = cluster.topic("new")
    assert (topic.partitions, topic.replication_factor) == (5, 2)
    assert topic.config == TopicConfig()


def test_a_refused_topic_does_not_stop_others(cluster: Cluster, handler: TopicsHandler) -> None:
    results = create(handler, a_topic("events"), a_topic("a b"), a_topic("fine"))

    assert [one.error_code for one in results] == [
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        OK,
    ]
    assert results[0].error_message == "Topic 'events' already exists."
    assert cluster.topic_names() == ["events", "fine"]


REFUSED = {
    "an internal name": (a_topic("__new"), ErrorCode.INVALID_TOPIC_EXCEPTION, "cluster's own"),
    "our own topic": (a_topic("__commits"), ErrorCode.INVALID_TOPIC_EXCEPTION, "cluster's own"),
    "an empty name": (a_topic(""), ErrorCode.INVALID_TOPIC_EXCEPTION, "is empty"),
    "no partitions": (a_topic(partitions=0), ErrorCode.INVALID_PARTITIONS, "0 partitions"),
    "fewer than none": (a_topic(partitions=-2), ErrorCode.INVALID_PARTITIONS, "-2 partitions"),
    "too many": (a_topic(partitions=10_001), ErrorCode.POLICY_VIOLATION, "at most 10000"),
    "no replicas": (a_topic(replicas=0), ErrorCode.INVALID_REPLICATION_FACTOR, "factor 0"),
    "more replicas than log dirs": (a_topic(replicas=3), ErrorCode.INVALID_REPLICATION_FACTOR, "1 to 1"),
    "compaction": (a_topic(configs={"cleanup.policy": "compact"}), ErrorCode.INVALID_CONFIG, "compaction"),
    "both policies": (a_topic(configs={"cleanup.policy": "compact,delete"}), ErrorCode.INVALID_CONFIG, "compaction"),
    "an unknown setting": (a_topic(configs={"retention.mss": "1"}), ErrorCode.INVALID_CONFIG, "'retention.ms'"),
    "a long unknown setting": (a_topic(configs={"r" * 30_000: "1"}), ErrorCode.INVALID_CONFIG, "known options"),
    "another spelling": (a_topic(configs={"retention_ms": "1"}), ErrorCode.INVALID_CONFIG, "'retention.ms'"),
    "a client's setting": (a_topic(configs={"kafka.group.id": "1"}), ErrorCode.INVALID_CONFIG, "unknown option"),
    "a bad value": (a_topic(configs={"retention.ms": "soon"}), ErrorCode.INVALID_CONFIG, "'soon'"),
    "a long value": (a_topic(configs={"retention.ms": "1" * 30_000}), ErrorCode.INVALID_CONFIG, "a whole number from"),
    "no value": (a_topic(configs={"retention.ms": None}), ErrorCode.INVALID_CONFIG, "no value"),
    "a setting with one value": (a_topic(configs={"preallocate": "true"}), ErrorCode.INVALID_CONFIG, "false"),
    "replicas assigned elsewhere": (a_topic(partitions=-1, replicas=-1, assignments={0: [2]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "[2]"),
    "replicas assigned twice": (a_topic(partitions=-1, replicas=-1, assignments={0: [1, 1]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "[1, 1]"),
    "partitions that are not counted from 0": (a_topic(partitions=-1, replicas=-1, assignments={1: [1]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "from 0"),
    "replicas assigned and counted": (a_topic(replicas=1, assignments={0: [1]}), ErrorCode.INVALID_REQUEST, "must be -1"),
}  # fmt: skip


@pytest.mark.parametrize("validate_only", [False, True], ids=["create", "validate"])
@pytest.mark.parametrize("case", REFUSED)
def test_a_topic_is_refused(untouched: Cluster, case: str, validate_only: bool) -> None:
    asked, code, words = REFUSED[case]

    (result,) = create(handler_of(untouched), asked, validate_only=validate_only)

    assert result.error_code == code
    assert words in result.error_message
    assert len(result.error_message) < 1100
    assert result.topic_id is None
    assert untouched.topic_names() == ["events"]


@pytest.mark.parametrize("validate_only", [False, True], ids=["create", "validate"])
def test_a_topic_whose_name_collides_with_anothers_is_refused(
    cluster: Cluster, handler: TopicsHandler, validate_only: bool
) -> None:
    create(handler, a_topic("a.b"))
    (result,) = create(handler, a_topic("a_b"), validate_only=validate_only)

    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "beside 'a.b'" in result.error_message
    assert cluster.topic_names() == ["a.b", "events"]


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_a_request_without_time_changes_nothing(
    cluster: Cluster, handler: TopicsHandler, timeout_ms: int
) -> None:
    (created,) = create(handler, a_topic(), timeout_ms=timeout_ms)
    (deleted,) = delete(handler, "events", timeout_ms=timeout_ms)
    grown = grow(handler, "events", 9, timeout_ms=timeout_ms)

    errors = {created.error_code, deleted.error_code, grown.error_code}
    assert errors == {ErrorCode.REQUEST_TIMED_OUT}
    assert [(one.name, one.partitions) for one in cluster.topics()] == [("events", 2)]


def test_settings_are_checked_before_numbers(handler: TopicsHandler) -> None:
    (result,) = create(handler, a_topic(partitions=0, configs={"retention.ms": "soon"}))

    assert result.error_code == ErrorCode.INVALID_CONFIG


def test_an_assignment_to_the_one_node_gives_the_number_of_partitions(
    cluster: Cluster, handler: TopicsHandler
) -> None:
    assigned = a_topic(partitions=-1, replicas=-1, assignments={1: [1], 0: [1], 2: [1]})

    (result,) = create(handler, assigned)

    assert (result.error_code, cluster.topic("new").partitions) == (OK, 3)


def test_a_topic_named_twice_is_not_created(cluster: Cluster, handler: TopicsHandler) -> None:
    (result,) = create(handler, a_topic(), a_topic(partitions=2))

    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert cluster.topic_names() == ["events"]


def test_validation_creates_nothing_and_returns_what_would_be_created(
    cluster: Cluster, handler: TopicsHandler
) -> None:
    (result,) = create(handler, a_topic(partitions=-1), validate_only=True)

    assert (result.error_code, result.num_partitions) == (OK, 3)
    assert cluster.topic_names() == ["events"]


def test_one_of_two_concurrent_creators_gets_that_the_topic_exists(cluster: Cluster) -> None:
    """Both check whether it exists before either has created it."""
    looked = threading.Barrier(2)
    codes = []

    class Slow(TopicsHandler):
        def _wanted(self, *asked: Any) -> Any:
            wanted = super()._wanted(*asked)
            looked.wait(5)
            return wanted

    def work() -> None:
        (result,) = create(Slow(store_of(cluster), NewTopics(True, 1, 1), Outcomes()), a_topic())
        codes.append(result.error_code)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(codes) == [OK, ErrorCode.TOPIC_ALREADY_EXISTS]


@pytest.mark.parametrize("version", versions_of(ApiKey.DELETE_TOPICS))
def test_topics_are_deleted_by_name(cluster: Cluster, handler: TopicsHandler, version: int) -> None:
    names = ["events", "none"]
    fields: dict[str, Any] = {"topic_names": names, "topics": []}
    if version >= 6:
        fields = {"topics": [STATE(name=name, topic_id=None) for name in names]}

    answer = ask(
        handler.delete_topics, ApiKey.DELETE_TOPICS, version, timeout_ms=1000, **fields
    ).responses

    found = {one.name: one.error_code for one in answer}
    assert found == {"events": OK, "none": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert cluster.topic_names() == []


def test_a_topic_is_deleted_by_its_id(cluster: Cluster, handler: TopicsHandler) -> None:
    topic_id, unknown = uuid_of(cluster.topic("events").topic_id), uuid.UUID(int=5)

    found = delete(
        handler,
        topics=[STATE(name=None, topic_id=topic_id), STATE(name=None, topic_id=unknown)],
    )

    assert [(one.name, one.topic_id, one.error_code) for one in found] == [
        ("events", topic_id, OK),
        (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID),
    ]


def test_a_recreated_topic_is_not_deleted_by_its_old_id(cluster: Cluster) -> None:
    """By the time the locks are held it is another topic."""
    old = cluster.topic("events").topic_id
    cluster.delete_topic("events")
    cluster.create_topic("events")
    parts = store_of(cluster)

    with pytest.raises(UnknownTopicOrPartitionError, match="created again"):
        administration.delete_topic(
            parts.manager, parts.coordinator(flush=True), "events", topic_id=old
        )

    assert cluster.topic_names() == ["events"]


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        pytest.param(STATE(name="__commits", topic_id=None), ErrorCode.INVALID_TOPIC_EXCEPTION, id="our own"),
        pytest.param(STATE(name="a b", topic_id=None), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, id="a bad name"),
        pytest.param(STATE(name=None, topic_id=None), ErrorCode.INVALID_REQUEST, id="neither name nor id"),
        pytest.param(STATE(name="events", topic_id=uuid.UUID(int=5)), ErrorCode.INVALID_REQUEST, id="both"),
    ],
)  # fmt: skip
def test_a_deletion_is_refused(untouched: Cluster, topic: Any, code: int) -> None:
    (result,) = delete(handler_of(untouched), topics=[topic])

    assert result.error_code == code
    assert untouched.topic_names(internal=True) == ["__commits", "__transaction_state", "events"]


def test_topics_are_listed_once_however_many_a_request_names(
    cluster: Cluster, handler: TopicsHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, names = [0], TopicFiles.names

    def counted(topics: TopicFiles, **named: Any) -> list[str]:
        listed[0] += 1
        return names(topics, **named)

    cluster.create_topic("a_0")
    monkeypatch.setattr(TopicFiles, "names", counted)
    created = create(handler, *(a_topic(f"a.{one}", partitions=0) for one in range(5)))
    deleted = delete(
        handler, topics=[STATE(name=None, topic_id=uuid.UUID(int=one + 5)) for one in range(5)]
    )

    assert listed == [2]
    assert [one.error_code for one in created] == [
        ErrorCode.INVALID_TOPIC_EXCEPTION, *[ErrorCode.INVALID_PARTITIONS] * 4,
    ]  # fmt: skip
    assert {one.error_code for one in deleted} == {ErrorCode.UNKNOWN_TOPIC_ID}


def test_a_topic_is_deleted_by_its_id_beside_one_whose_file_is_damaged(
    cluster: Cluster, handler: TopicsHandler
) -> None:
    topic_id, unknown = uuid_of(cluster.topic("events").topic_id), uuid.UUID(int=5)
    cluster.create_topic("damaged")
    (cluster.path / "topics" / "damaged.json").write_text("{")

    found = delete(
        handler,
        topics=[STATE(name=None, topic_id=unknown), STATE(name=None, topic_id=topic_id)],
    )

    # The unknown id may be that of the damaged file.
    assert [one.error_code for one in found] == [ErrorCode.KAFKA_STORAGE_ERROR, OK]


def test_topics_whose_turn_comes_when_the_time_is_up_are_left_as_they_are(
    cluster: Cluster, handler: TopicsHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = TopicFiles.find

    def slow(topics: TopicFiles, name: str) -> Any:
        time.sleep(0.3)
        return find(topics, name)

    with monkeypatch.context() as slowed:
        slowed.setattr(TopicFiles, "find", slow)
        created = create(handler, a_topic("a"), a_topic("b"), timeout_ms=200, validate_only=True)
        deleted = delete(handler, "none", "events", timeout_ms=200)

    late = ErrorCode.REQUEST_TIMED_OUT
    assert [one.error_code for one in created] == [OK, late]
    assert [one.error_code for one in deleted] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, late]
    assert cluster.topic_names() == ["events"]


def test_an_internal_topic_is_not_deleted_by_its_id_either(
    cluster: Cluster, handler: TopicsHandler
) -> None:
    topic_id = uuid_of(cluster.topic("__commits").topic_id)

    (result,) = delete(handler, topics=[STATE(name=None, topic_id=topic_id)])

    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_topic_named_twice_is_not_deleted(cluster: Cluster, handler: TopicsHandler) -> None:
    (result,) = delete(handler, "events", "events")

    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert cluster.topic_names() == ["events"]


@pytest.mark.parametrize("version", versions_of(ApiKey.CREATE_PARTITIONS))
def test_a_topic_grows(cluster: Cluster, handler: TopicsHandler, version: int) -> None:
    topics = [MORE(name="events", count=5, assignments=None)]

    answer = ask(
        handler.create_partitions,
        ApiKey.CREATE_PARTITIONS,
        version,
        topics=topics,
        timeout_ms=1000,
        validate_only=False,
    )

    assert [(one.name, one.error_code) for one in answer.results] == [("events", OK)]
    assert cluster.topic("events").partitions == 5


@pytest.mark.parametrize("validate_only", [False, True], ids=["create", "validate"])
@pytest.mark.parametrize(
    ("name", "count", "assignments", "code"),
    [
        pytest.param("events", 2, None, ErrorCode.INVALID_PARTITIONS, id="as many"),
        pytest.param("events", 1, None, ErrorCode.INVALID_PARTITIONS, id="fewer"),
        pytest.param("events", 100_001, None, ErrorCode.INVALID_PARTITIONS, id="too many"),
        pytest.param("events", 10_500, None, ErrorCode.POLICY_VIOLATION, id="too many at once"),
        pytest.param("none", 3, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, id="no such topic"),
        pytest.param("__commits", 3, None, ErrorCode.INVALID_TOPIC_EXCEPTION, id="our own"),
        pytest.param("events", 3, [[2]], ErrorCode.INVALID_REPLICA_ASSIGNMENT, id="elsewhere"),
        pytest.param("events", 4, [[1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT, id="too few assigned"),
    ],
)  # fmt: skip
def test_growth_is_refused(
    untouched: Cluster,
    name: str,
    count: int,
    assignments: list[list[int]] | None,
    code: int,
    validate_only: bool,
) -> None:
    result = grow(
        handler_of(untouched), name, count, assignments=assignments, validate_only=validate_only
    )

    assert (result.error_code, bool(result.error_message)) == (code, True)
    assert untouched.topic("events").partitions == 2


def test_validation_of_growth_adds_nothing(cluster: Cluster, handler: TopicsHandler) -> None:
    assert grow(handler, "events", 3, validate_only=True).error_code == OK
    assert cluster.topic("events").partitions == 2


@pytest.mark.parametrize("version", versions_of(ApiKey.DELETE_RECORDS))
def test_records_are_deleted_partition_by_partition(
    cluster: Cluster, handler: TopicsHandler, version: int
) -> None:
    batches = {(topic, p): builders.batch() for topic, p in (("events", 0), ("events", 1))}
    builders.append_records(cluster, batches)
    partition = RECORDS.DeleteRecordsPartition
    topics = [
        RECORDS(name="events", partitions=[
            partition(partition_index=0, offset=2),
            partition(partition_index=1, offset=-1),
            partition(partition_index=2, offset=0),
        ]),
        RECORDS(name="__commits", partitions=[partition(partition_index=0, offset=-1)]),
    ]  # fmt: skip

    answer = ask(
        handler.delete_records, ApiKey.DELETE_RECORDS, version, topics=topics, timeout_ms=1000
    )

    found = {
        (topic.name, one.partition_index): (one.low_watermark, one.error_code)
        for topic in answer.topics
        for one in topic.partitions
    }
    assert found == {
        ("events", 0): (2, OK),
        ("events", 1): (3, OK),
        ("events", 2): (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("__commits", 0): (-1, ErrorCode.INVALID_TOPIC_EXCEPTION),
    }
    starts = {
        info.topic_partition: info.offsets.log_start_offset for info in cluster.describe(["events"])
    }
    assert starts == {TopicPartition("events", 0): 2, TopicPartition("events", 1): 3}


@pytest.mark.parametrize("offset", [1, -2], ids=["above the high watermark", "no offset"])
def test_offsets_outside_the_log_are_refused_for_deletion(
    handler: TopicsHandler, offset: int
) -> None:
    partition = RECORDS.DeleteRecordsPartition(partition_index=0, offset=offset)
    topics = [RECORDS(name="events", partitions=[partition])]

    (topic,) = ask(
        handler.delete_records, ApiKey.DELETE_RECORDS, topics=topics, timeout_ms=1000
    ).topics

    assert topic.partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_changes_wait_for_a_commit_only_until_they_time_out(
    cluster: Cluster, handler: TopicsHandler
) -> None:
    locks = FolderParts(cluster.path).manager.locks
    partition = RECORDS.DeleteRecordsPartition(partition_index=0, offset=0)
    records = [RECORDS(name="events", partitions=[partition])]

    with locks.commit(), locks.metadata(), locks.partitions([TopicPartition("events", 0)]):
        began = time.monotonic()
        (created,) = create(handler, a_topic(), timeout_ms=10)
        (deleted,) = delete(handler, "events", timeout_ms=10)
        grown = grow(handler, "events", 3, timeout_ms=10)
        emptied = ask(
            handler.delete_records, ApiKey.DELETE_RECORDS, topics=records, timeout_ms=10
        ).topics[0]
        waited_s = time.monotonic() - began

    codes = [created.error_code, deleted.error_code, grown.error_code]
    assert [*codes, emptied.partitions[0].error_code] == [ErrorCode.REQUEST_TIMED_OUT] * 4
    assert waited_s < 10
    assert cluster.topic("events").partitions == 2


def test_a_refusal_is_logged_once(handler: TopicsHandler, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        create(handler, a_topic(configs={"cleanup.policy": "compact"}), a_topic("events"))

    (record,) = caplog.records
    assert "INVALID_CONFIG" in record.getMessage()
