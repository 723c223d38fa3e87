"""A real cluster in plain Python, as `spark_kbatch.connect` gives it; the cluster is a server of ours."""

from __future__ import annotations

import datetime
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spark_kbatch
from spark_kbatch import Cluster, TopicPartition
from spark_kbatch.errors import (
    ClosedError,
    ConfigError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    ProducerClosedError,
    RequestTimedOutError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import GroupMember, GroupOffset, LogOffsets
from spark_kbatch.remote import client as clients
from tests.opening.test_odd_arguments import (
    INTERNAL_OF_CLUSTERS,
    ODD,
    SOON,
    ensure_named,
    in_rounds,
    outcome,
    public_methods,
    with_odd,
)
from tests.support import builders, stored_groups
from tests.support.kafka import free_ports

E0, E1 = TopicPartition("events", 0), TopicPartition("events", 1)
SECOND_MS = builders.records_of([builders.batch()])[1].timestamp


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with a topic of three records in partition 0 and none in partition 1, and two groups."""
    folder = tmp_path_factory.mktemp("served")
    with builders.a_cluster(folder, topics={"events": 2}) as cluster:
        builders.append_records(cluster, {E0: builders.batch()})
        app = stored_groups.member("app", {"events": [0, 1]})
        stored_groups.store(cluster, "billing", {E0: 1}, [app])
        stored_groups.store(cluster, "audit", {E0: 3})
        yield cluster


@pytest.fixture(scope="module")
def servers(embedded: Cluster) -> Iterator[str]:
    with embedded.serve() as server:
        yield server.bootstrap_servers


@pytest.fixture
def cluster(servers: str) -> Iterator[Cluster]:
    with spark_kbatch.connect(servers) as cluster:
        yield cluster


# Connecting.


@pytest.mark.parametrize(
    "given",
    [
        {"config": {"client.id": "a", "kafka.client.rack": "r"}},
        {"config": {"client_id": "a"}, "client_rack": "r"},
        {"client_id": "a", "client.rack": "r"},
    ],
    ids=["dict", "both", "keywords"],
)
def test_options_are_kafkas_with_dots_or_underscores(servers: str, given: dict[str, Any]) -> None:
    with spark_kbatch.connect([servers], **given) as cluster:
        assert (cluster._store.options.client_id, cluster._store.options.client_rack) == ("a", "r")
        assert cluster.bootstrap_servers == servers


@pytest.mark.parametrize(
    ("servers", "options", "words"),
    [
        ("./cluster", {}, r"opened by spark_kbatch\.open"),
        (None, {}, "bootstrap.servers"),
        ([], {}, "bootstrap.servers"),
        ("h:1", {"securty_protocol": "SSL"}, r"unknown option .*nearest known one is 'security.protocol'"),
        ("h:1", {"config": ["client.id"]}, "config is"),
        ("h:1", {"config": {"client.id": "a"}, "client_id": "b"}, "'client.id' is given twice"),
        ("h:1", {"bootstrap.servers": "i:1"}, "'bootstrap.servers' is given twice"),
        ("h:1", {"auto_offset_reset": "latest"}, r"auto\.offset\.reset.*`kbatch consume --start`"),
    ],
    ids=["a folder", "nothing", "no servers", "a typing error", "a list", "twice", "servers twice",
         "a key that Spark's connector refuses"],
)  # fmt: skip
def test_options_that_are_not_accepted_are_refused(
    servers: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        spark_kbatch.connect(servers, **options)


def test_a_cluster_that_cannot_be_reached_is_an_error_at_once() -> None:
    (port,) = free_ports(1)
    with pytest.raises(RequestTimedOutError, match=rf"127\.0\.0\.1:{port}: .*refused"):
        spark_kbatch.connect(f"127.0.0.1:{port}", default_api_timeout_ms=200)


def test_open_takes_an_address(servers: str) -> None:
    with spark_kbatch.open(servers) as cluster:
        assert cluster.is_remote
        assert cluster.topic_names() == ["events"]
    with pytest.raises(ConfigError, match=r"spark_kbatch\.connect"):
        spark_kbatch.open(servers, create=True)


def test_no_secret_is_shown(servers: str) -> None:
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="s3cret";'
    with spark_kbatch.connect(servers, sasl_jaas_config=login) as cluster:
        shown = f"{cluster!r} {cluster} {cluster._store.options!r}"
    assert "s3cret" not in shown
    assert shown.startswith(f"Cluster({servers!r})")
    with pytest.raises(ConfigError) as caught:
        spark_kbatch.connect(servers, sasl_jaas_config=login + "s3cret")
    assert "s3cret" not in str(caught.value)


# The words are an embedded cluster's.

ONLY_IN_FOLDERS: dict[str, dict[str, Any]] = {
    "collect_garbage": {}, "elect_unclean": {"topic": "events"}, "export": {"topic": "events", "to": "x"},
    "commit_numbers": {}, "find_commit": {"number": 0}, "first_commit": {}, "history": {}, "log_dirs": {}, "metrics": {},
    "repair": {}, "replace_log_dir": {"node_id": 0}, "replicas": {"topics": "events"}, "replicate": {},
    "running_server": {}, "serve": {}, "verify": {},
}  # fmt: skip


@pytest.mark.parametrize("method", ONLY_IN_FOLDERS)
def test_what_only_a_folder_has_is_refused(cluster: Cluster, method: str) -> None:
    with pytest.raises(ConfigError, match="it is a real Kafka cluster, whose brokers see to that"):
        getattr(cluster, method)(**ONLY_IN_FOLDERS[method])


# Records.


def test_reads_are_those_of_the_folder(cluster: Cluster, embedded: Cluster) -> None:
    assert cluster.read("events").read_all() == embedded.read("events").read_all()
    for asked in (
        {"partitions": [0], "start": 1, "columns": ["offset", "value"]},
        {"start": {0: 1, 1: "earliest"}, "end": {0: 2, 1: "latest"}},
        {"isolation_level": "read_uncommitted"},
        {"last": 2, "text": "replace"},
        {
            "start": datetime.datetime.fromtimestamp(SECOND_MS / 1000, datetime.UTC),
            "end": {E0: 3, E1: 0},
        },
    ):
        assert (
            cluster.read("events", **asked).read_all()  # type: ignore[arg-type]
            == embedded.read("events", **asked).read_all()  # type: ignore[arg-type]
        )
    both = cluster.read(re.compile("^ev"), columns=["topic", "offset"]).read_all()
    assert both == cluster.read(["events"], columns=["topic", "offset"]).read_all()
    assert both.num_rows == 3
    with pytest.raises(OffsetOutOfRangeError, match="holds offsets 0 to 3"):
        cluster.read("events", partitions=[0], start=4)
    with pytest.raises(UnknownTopicOrPartitionError, match="topics: events"):
        cluster.read("nothing")


def test_a_loop_gets_what_comes_and_moves_its_group(cluster: Cluster) -> None:
    cluster.create_topic("followed")
    with (
        cluster.producer(linger_ms=0) as producer,
        cluster.follow(
            "followed", group="loop", columns=["value"], stop_at=2, timeout=SOON
        ) as records,
    ):
        for value in "ab":
            producer.send("followed", value)
        found = [value for batch in records for value in batch["value"].to_pylist()]

    assert found == [b"a", b"b"]
    (group,) = [one for one in cluster.groups() if one.group_id == "loop"]
    assert (group.offsets[TopicPartition("followed", 0)].committed_offset, group.lag) == (2, 0)
    cluster.delete_group("loop")
    cluster.delete_topic("followed")


def test_offsets_are_found_by_time_as_in_the_folder(cluster: Cluster, embedded: Cluster) -> None:
    first = builders.FIRST_TIMESTAMP_MS
    for time in ("earliest", "latest", "max_timestamp", -3, 0, first, first + 1, 2**62):
        wanted = {E0: time, E1: time}
        assert cluster.list_offsets(wanted) == embedded.list_offsets(wanted), time
    assert cluster.list_offsets({}) == {}
    assert cluster.partitions("events") == [E0, E1]
    assert [one.offsets for one in cluster.describe("events")] == [
        LogOffsets(0, 3, 3, 3),
        LogOffsets(0, 0, 0, 0),
    ]


def test_a_producer_sends_records_and_tables(cluster: Cluster, embedded: Cluster) -> None:
    cluster.create_topic("sent", 2)
    with cluster.producer({"linger.ms": "5"}, compression_type="zstd") as producer:
        assert producer._config.linger_ms == 5
        one = producer.send("sent", key="k", value="v", headers={"h": b"x"}, partition=1)
        rows = producer.send_arrow("sent", pa.table({"value": ["a", "b"], "partition": [0, 1]}))
    assert one.result(SOON).offset == 0
    assert rows.exception(SOON) is None
    read = embedded.read("sent", columns=["partition", "key", "value"]).read_all().to_pylist()
    assert read == [
        {"partition": 0, "key": None, "value": b"a"},
        {"partition": 1, "key": b"k", "value": b"v"},
        {"partition": 1, "key": None, "value": b"b"},
    ]
    cluster.delete_topic("sent")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"flush": True}, "for clusters in a folder"),
        ({"sasl.mechanism": "PLAIN"}, r"'sasl.mechanism' .*spark_kbatch\.connect"),
        ({"linger": 5}, "nearest known one is 'linger.ms'"),
    ],
    ids=["flush", "security", "a typing error"],
)
def test_options_of_the_connection_are_not_a_producers(
    cluster: Cluster, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        cluster.producer(**options)
    with pytest.raises(ConfigError, match=words):
        cluster.producer(options)


def test_producers_wait_as_long_as_the_cluster_does(servers: str) -> None:
    with spark_kbatch.connect(servers, request_timeout_ms=2345, retry_backoff_ms=7) as cluster:
        config = cluster.producer()._config
        assert (config.request_timeout_ms, config.retry_backoff_ms) == (2345, 7)
        assert cluster.producer(request_timeout_ms=99)._config.request_timeout_ms == 99
        given = {"request.timeout.ms": 99}
        assert cluster.producer(given)._config.request_timeout_ms == 99
        with pytest.raises(ConfigError, match=r"'request\.timeout\.ms' is given twice"):
            cluster.producer(given, request_timeout_ms=99)


def test_a_producer_has_its_own_client_id_or_the_clusters(servers: str) -> None:
    with spark_kbatch.connect(servers, client_id="reports") as cluster:
        for options, expected in (({}, "reports"), ({"client_id": "billing"}, "billing")):
            transport = cluster.producer(**options)._sender._transport
            assert transport._options.client_id == expected


def test_closing_sends_what_producers_were_given_and_closes_connections(
    servers: str, embedded: Cluster
) -> None:
    cluster = spark_kbatch.connect(servers, client_id="closing")
    cluster.create_topic("last")
    producer = cluster.producer(linger_ms=60_000)
    future = producer.send("last", value="v")
    cluster.close()
    cluster.close()
    assert future.result(0).offset == 0
    with pytest.raises(ProducerClosedError):
        producer.send("last", value="v")
    assert cluster._store.options not in clients._idle
    with pytest.raises(ClosedError, match=servers):
        cluster.__enter__()
    embedded.delete_topic("last")


def test_reads_in_progress_end_when_the_cluster_is_closed(servers: str) -> None:
    cluster = spark_kbatch.connect(servers)
    batches = cluster.read("events")
    cluster.close()
    with pytest.raises(ClosedError):
        batches.read_all()


# Topics.


def test_topics_are_created_changed_and_deleted(cluster: Cluster, embedded: Cluster) -> None:
    made = cluster.create_topic(
        "t", partitions=2, config={"retention_ms": 5, "segment.bytes": "1048576"}
    )
    assert (made.name, made.partitions, made.replication_factor) == ("t", 2, 1)
    assert (made.settings["retention.ms"], made.settings["segment.bytes"]) == ("5", "1048576")
    assert (made.leaders, made.replicas, made.isr) == ((1, 1), ((1,), (1,)), ((1,), (1,)))
    assert made.topic_id == embedded.topic("t").topic_id
    assert embedded.topic("t").config.retention_ms == 5

    assert cluster.create_partitions("t", 4).partitions == 4
    changed = cluster.alter_topic("t", {"retention.ms": None, "segment_bytes": 2**21})
    assert (changed.settings["retention.ms"], changed.settings["segment.bytes"]) == (
        "-1",
        "2097152",
    )
    assert cluster.topic("t") == changed == cluster.alter_topic("t", {})
    assert cluster.topics() == [cluster.topic("events"), changed]
    assert cluster.topic_names() == ["events", "t"]
    assert "__consumer_offsets" in cluster.topic_names(internal=True)

    assert cluster.delete_topic("t") == changed
    with pytest.raises(UnknownTopicOrPartitionError):
        cluster.topic("t")
    with pytest.raises(UnknownTopicOrPartitionError):
        cluster.delete_topic("t")


def test_exist_ok_accepts_a_topic_that_has_all_that_is_asked_for(cluster: Cluster) -> None:
    config = {"retention.ms": 5}
    made = cluster.create_topic("kept", partitions=2, config=config)
    for asked in (
        {},
        {"partitions": 2},
        {"num_partitions": 2, "replication_factor": 1, "config": config},
    ):
        assert cluster.create_topic("kept", exist_ok=True, **asked) == made  # type: ignore[arg-type]
    with pytest.raises(TopicAlreadyExistsError, match="exist_ok=True"):
        cluster.create_topic("kept")
    for asked, differs in (({"partitions": 3}, "partitions=2"), ({"config": {"retention_ms": 6}}, "retention.ms=5")):  # fmt: skip
        with pytest.raises(TopicAlreadyExistsError, match=differs):
            cluster.create_topic("kept", exist_ok=True, **asked)  # type: ignore[arg-type]
    cluster.delete_topic("kept")


def test_what_the_cluster_refuses_is_an_error_with_its_words(cluster: Cluster) -> None:
    for call, kind, words in (
        (lambda: cluster.create_topic("a/b"), InvalidTopicError, "a/b"),
        (lambda: cluster.create_topic("x", config={"nothing": 1}), ConfigError, "nothing"),
        (lambda: cluster.create_topic("x", replication_factor=2), ConfigError, "replication factor 2"),
        (lambda: cluster.alter_topic("events", {"retention.ms": "soon"}), ConfigError, "retention.ms"),
        (lambda: cluster.alter_topic("nothing", {}), UnknownTopicOrPartitionError, "'nothing'"),
        (lambda: cluster.create_partitions("events", 2), ConfigError, "has 2 partitions; 2 would not be an increase"),
        (lambda: cluster.delete_topic("__consumer_offsets"), ConfigError, "the cluster's own"),
        (lambda: cluster.delete_records({E0: 4}), OffsetOutOfRangeError, "offsets 0 to 3"),
        (lambda: cluster.delete_records({("events", 2): 0}), UnknownTopicOrPartitionError, "it has 2"),
    ):  # fmt: skip
        with pytest.raises(kind, match=words):
            call()
    assert cluster.topic_names() == ["events"]


def test_records_are_deleted_below_an_offset(cluster: Cluster) -> None:
    cluster.create_topic("old", partitions=2)
    with cluster.producer() as producer:
        producer.send_arrow("old", {"value": list("abcd"), "partition": [0, 0, 1, 1]})
    assert cluster.delete_records({("old", 0): 1, ("old", 1): -1}) == {("old", 0): 1, ("old", 1): 2}
    assert cluster.delete_records({("old", 0): 0}) == {("old", 0): 1}
    assert cluster.delete_records({}) == {}
    assert cluster.read("old").read_all()["value"].to_pylist() == [b"b"]
    cluster.delete_topic("old")


# Groups.


def test_groups_are_those_of_the_folder_but_for_what_no_broker_tells(
    cluster: Cluster, embedded: Cluster
) -> None:
    untold = {"generation": -1}
    expected = [
        one._replace(
            **untold,
            offsets={tp: at._replace(commit_timestamp=-1) for tp, at in one.offsets.items()},
        )
        for one in embedded.groups()
    ]
    found = cluster.groups()

    assert found == expected
    assert [(one.group_id, one.state, one.lag) for one in found] == [
        ("audit", "Empty", 0),
        ("billing", "Stable", 2),
    ]
    assert found[1].members == (GroupMember("app-1", None, "app", "127.0.0.1", (E0, E1)),)
    assert found[1].offsets[E1] == GroupOffset(None, 0, None, "", -1)


# Invalid arguments.

CALLS: dict[str, dict[str, Any]] = {
    "alter_group_offsets": {"group_id": "app", "offsets": {E0: 0}},
    "alter_topic": {"name": "events", "config": {"retention.ms": 5}},
    "close": {},
    "delete_group": {"group_id": "app"},
    "create_partitions": {"name": "events", "total_count": 4},
    "create_topic": {
        "name": "new", "partitions": 1, "replication_factor": 1, "config": {}, "exist_ok": True,
        "num_partitions": None,
    },
    "delete_records": {"offsets": {E0: 0}},
    "delete_topic": {"name": "nothing"},
    "describe": {"topics": ["events"]},
    "follow": {
        "topics": "events", "partitions": [0], "start": "earliest", "columns": ["value", "offset"],
        "text": "replace", "isolation_level": "read_committed",
        "max_decompressed_batch_bytes": 1 << 20, "registry": None, "where": "offset >= 0",
        "group": "loop", "stop_at": "latest", "timeout": 0.1, "stop": None,
    },
    "groups": {},
    "has": {"part": "groups"},
    "list_offsets": {"wanted": {E0: "latest"}, "isolation_level": "read_committed"},
    "partitions": {"topic": "events"},
    "peek": {
        "topic": "events", "partitions": [0], "start": None, "end": 3, "count": 2, "where": "offset >= 0",
        "isolation_level": "read_committed", "max_bytes": 1 << 20, "registry": None,
    },
    "producer": {},
    "read": {
        "topics": "events", "partitions": [0], "start": "earliest", "end": 3, "last": 2,
        "columns": ["value", "offset"], "text": "replace",
        "isolation_level": "read_committed", "max_decompressed_batch_bytes": 1 << 20, "registry": None,
        "where": "offset >= 0",
    },
    "topic": {"name": "events"},
    "topic_names": {"internal": False},
    "topics": {"internal": False},
}  # fmt: skip
ARGUMENTS = [(method, name) for method, call in CALLS.items() for name in call]


def test_every_public_method_is_called() -> None:
    assert public_methods(Cluster) - INTERNAL_OF_CLUSTERS == CALLS.keys() | ONLY_IN_FOLDERS.keys()
    for name, call in CALLS.items():
        parameters = inspect.signature(getattr(Cluster, name)).parameters.values()
        named = {p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.POSITIONAL_ONLY)} - {
            "self"
        }
        assert named == call.keys(), name


@pytest.fixture(scope="module")
def odd_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with (
        builders.a_cluster(tmp_path_factory.mktemp("odd"), topics={"events": 2}) as cluster,
        cluster.serve() as server,
    ):
        yield server.bootstrap_servers


@pytest.mark.parametrize(("method", "name"), ARGUMENTS, ids=[" ".join(pair) for pair in ARGUMENTS])
@in_rounds
@given(value=st.sampled_from(ODD))
def test_an_invalid_argument_is_refused_and_changes_nothing(
    odd_servers: str, method: str, name: str, value: Any
) -> None:
    with spark_kbatch.connect(odd_servers) as cluster:
        before = cluster.topics(), cluster.topic_names(internal=True), cluster.describe("events")
        arguments = with_odd(CALLS[method], name, value)
        if name == "num_partitions":
            arguments.pop("partitions", None)
        error = outcome(getattr(cluster, method), arguments)
        if error is not None:
            ensure_named(error, name, value)
            after = cluster.topics(), cluster.topic_names(internal=True), cluster.describe("events")
            assert after == before
        for gone in {*cluster.topic_names()} - {"events"}:
            cluster.delete_topic(gone)
        if "events" not in cluster.topic_names() or method in ("alter_topic", "create_partitions"):
            if "events" in cluster.topic_names():
                cluster.delete_topic("events")
            cluster.create_topic("events", partitions=2)


@pytest.mark.parametrize("name", ["bootstrap_servers", "config"])
@in_rounds
@given(value=st.sampled_from(ODD))
def test_connect_refuses_an_invalid_argument(odd_servers: str, name: str, value: Any) -> None:
    arguments = with_odd({"bootstrap_servers": odd_servers, "config": None}, name, value)
    error = outcome(spark_kbatch.connect, arguments)
    if error is not None:
        assert isinstance(error, ConfigError)
        if name == "bootstrap_servers":
            assert "bootstrap" in str(error)


@pytest.mark.parametrize("method", CALLS)
def test_a_closed_cluster_does_nothing(odd_servers: str, method: str) -> None:
    cluster = spark_kbatch.connect(odd_servers)
    cluster.close()
    error = outcome(getattr(cluster, method), CALLS[method])
    assert error is None if method == "close" else isinstance(error, ClosedError)
