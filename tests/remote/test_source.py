"""Reads of a real cluster find what its topics hold; the cluster is a server of ours over a folder."""

from __future__ import annotations

import logging
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.consumer.topic_reader import TopicReader
from spark_kbatch.errors import (
    ClosedError,
    ConfigError,
    DataLossError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import (
    MAX_TIMESTAMP,
    LogOffsets,
    OffsetAndTimestamp,
    OffsetRange,
    StreamPiece,
    TopicPartition,
)
from spark_kbatch.opening.stores import open_topics
from spark_kbatch.options.read import Patience, parse_read_options
from spark_kbatch.options.remote import parse_cluster_options
from spark_kbatch.record.codec import RECORD_SCHEMA
from spark_kbatch.remote.source import SIZE_UNKNOWN, RemoteSource
from tests.support import builders
from tests.support.kafka import free_ports
from tests.support.logs_for_kafka import FORMATS, a_cluster_of_all_codecs
from tests.support.network_reads import source_of
from tests.support.reference import Record
from tests.support.stream_queries import Query

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
TIMES_MS = [builders.FIRST_TIMESTAMP_MS + 1000 * n for n in range(5)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose topic `a` has five records in partition 0, and none in partition 1."""
    with builders.a_cluster(tmp_path, topics={"a": 2, "b": 1}) as cluster:
        with cluster.producer(linger_ms=0) as producer:
            for n, time_ms in enumerate(TIMES_MS):
                producer.send("a", value=b"v%d" % n, partition=0, timestamp=time_ms).result()
        yield cluster


@pytest.fixture
def servers(cluster: Cluster) -> Iterator[str]:
    """Where the cluster is served."""
    with cluster.serve() as server:
        yield server.bootstrap_servers


def records_of(source: RemoteSource, topic: str, **bounds: object) -> list[Record]:
    reader = TopicReader(source)
    return [
        record
        for wanted in reader.offset_ranges(topic, **bounds)  # type: ignore[arg-type]
        for rows in reader.read_range(wanted, RECORD_SCHEMA.names)
        for record in builders.as_read(rows)
    ]


def read(servers: str, **options: object) -> list[tuple[int, int]]:
    """Return partition and offset of each record of a batch read, planned and run as Spark does it."""
    parsed = parse_read_options(
        {"kafka.bootstrap.servers": servers, "subscribe": "a"}
        | {key.replace("__", "."): str(value) for key, value in options.items()}
    )
    reader = open_topics(parsed)
    return [
        (task[0].wanted.topic_partition.partition, offset)
        for task in reader.plan(parsed)
        for rows in reader.read_task(task, ["offset"], parsed, "an action")
        for offset in rows.column("offset").to_pylist()
    ]


def test_topics_partitions_and_ids_are_those_of_the_cluster(cluster: Cluster, servers: str) -> None:
    source = source_of(servers)

    assert source.topic_names() == ["a", "b"]
    assert "__transaction_state" in source.topic_names(internal=True)
    assert source.topic("a").topic_id == cluster.topic("a").topic_id
    assert source.topic("a").replication_factor == 1
    assert source.partitions("a") == [A0, A1]
    with pytest.raises(UnknownTopicOrPartitionError, match=f"'c' does not exist in {servers}"):
        source.partitions("c")


def test_edges_are_those_of_the_logs(cluster: Cluster, servers: str) -> None:
    cluster.delete_records({A0: 2})
    source = source_of(servers)

    views = source.views([A0, A1])

    assert views[A0].offsets == LogOffsets(2, 5, 5, 5)
    assert views[A1].offsets == LogOffsets(0, 0, 0, 0)
    assert source.views([]) == {}
    assert [one.size_in_bytes for one in source.describe(["a"])] == [SIZE_UNKNOWN] * 2
    with pytest.raises(UnknownTopicOrPartitionError, match="partition 2 of topic 'a'"):
        source.views([A0, TopicPartition("a", 2)])


def test_times_are_looked_up_in_all_partitions_at_once_and_then_singly(servers: str) -> None:
    views = source_of(servers).views([A0, A1])

    def found(tp: TopicPartition, time_ms: int, end_offset: int = 5) -> OffsetAndTimestamp | None:
        return views[tp].offset_for_timestamp(time_ms, end_offset=end_offset)

    assert found(A0, TIMES_MS[2]) == (2, TIMES_MS[2])
    assert found(A1, TIMES_MS[2]) is None
    assert found(A0, TIMES_MS[2] + 1) == (3, TIMES_MS[3])
    assert found(A0, TIMES_MS[2] + 1, end_offset=3) is None
    assert found(A0, TIMES_MS[4] + 1) is None
    assert found(A0, MAX_TIMESTAMP) == (4, TIMES_MS[4])


@pytest.mark.parametrize("format_name", FORMATS)
def test_records_of_all_codecs_are_read_from_the_start_and_from_inside_a_batch(
    tmp_path: Path, format_name: str
) -> None:
    cluster, held = a_cluster_of_all_codecs(tmp_path, n=300, format_name=format_name)
    with cluster, cluster.serve() as server:
        # So small that each batch takes a fetch.
        source = source_of(server.bootstrap_servers, max_partition_fetch_bytes="1")

        found = records_of(source, "events")
        rest = records_of(source, "events", start=123, end=250)

    assert found == [record for records in held for record in records]
    assert rest == [record for records in held for record in records[123:250]]


def test_a_batch_larger_than_all_limits_is_read_whole(tmp_path: Path) -> None:
    value = bytes(range(256)) * 8000
    with builders.a_cluster(tmp_path, topics={"a": 1}) as cluster:
        cluster.alter_topic("a", {"max.message.bytes": 4 << 20})
        with cluster.producer(max_request_size=4 << 20) as producer:
            producer.send("a", value=value)
            producer.send("a", value=b"after it")
        with cluster.serve() as server:
            limits = {"max_partition_fetch_bytes": "1000", "fetch_max_bytes": "1000"}
            found = records_of(source_of(server.bootstrap_servers, **limits), "a")

    assert [record.value for record in found] == [value, b"after it"]


def test_a_plan_that_is_run_again_sees_what_was_written_since(
    cluster: Cluster, servers: str
) -> None:
    options = parse_read_options({"kafka.bootstrap.servers": servers, "subscribe": "a"})
    reader = open_topics(options)
    tasks = reader.plan(options)

    def offsets() -> list[int]:
        return [
            offset
            for task in tasks
            for rows in reader.read_task(task, ["offset"], options, "")
            for offset in rows.column("offset").to_pylist()
        ]

    assert offsets() == [0, 1, 2, 3, 4]
    with cluster.producer() as producer:
        producer.send("a", value=b"new", partition=1)
    assert offsets() == [0, 1, 2, 3, 4, 0]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({}, [0, 1, 2, 3, 4], id="all"),
        pytest.param({"startingTimestamp": TIMES_MS[3] - 1, "startingOffsetsByTimestampStrategy": "latest"}, [3, 4], id="from a time"),
        pytest.param({"endingTimestamp": TIMES_MS[3]}, [0, 1, 2], id="to a time"),
        pytest.param({"startingOffsets": '{"a":{"0":1,"1":-2}}', "endingOffsets": '{"a":{"0":4,"1":-1}}'}, [1, 2, 3], id="by offsets"),
        pytest.param({"maxRecordsPerPartition": 2, "startingOffsets": '{"a":{"0":0,"1":-2}}', "endingOffsets": '{"a":{"0":5,"1":-1}}'}, [0, 1, 2, 3, 4], id="divided by records"),
        pytest.param({"minPartitions": 6}, [0, 1, 2, 3, 4], id="divided by count"),
        pytest.param({"kafka__isolation__level": "read_uncommitted"}, [0, 1, 2, 3, 4], id="uncommitted"),
    ],
)  # fmt: skip
def test_options_of_a_batch_read_mean_what_they_mean_for_a_folder(
    servers: str, options: dict[str, object], expected: list[int]
) -> None:
    assert read(servers, **options) == [(0, offset) for offset in expected]


def test_range_that_is_not_divided_by_the_user_is_one_task(cluster: Cluster, servers: str) -> None:
    del cluster
    options = parse_read_options({"kafka.bootstrap.servers": servers, "subscribe": "a"})

    tasks = open_topics(options).plan(options)

    assert [piece.wanted for (piece,) in tasks] == [
        OffsetRange(A0, -2, -1),
        OffsetRange(A1, -2, -1),
    ]


def test_deleted_records_are_data_loss(cluster: Cluster, servers: str) -> None:
    source = source_of(servers)
    reader, wanted = TopicReader(source), OffsetRange(A0, 0, 5)
    cluster.delete_records({A0: 3})

    with pytest.raises(OffsetOutOfRangeError, match=r"offset 0 of a-0 .* 3 to 5"):
        list(reader.read_range(wanted, ["offset"]))
    with pytest.raises(OffsetOutOfRangeError, match=r"offset 0 of a-0 .* 3 to 5"):
        reader.offset_ranges("a", start=0)


def test_range_past_the_end_is_data_loss_at_once(
    servers: str, caplog: pytest.LogCaptureFixture
) -> None:
    def run(*, fail: bool) -> list[int]:
        options = parse_read_options(
            {"kafka.bootstrap.servers": servers, "subscribe": "a", "failOnDataLoss": str(fail)}
        )
        reader = open_topics(options)
        piece = StreamPiece(OffsetRange(A0, 3, 9), reader.source.topic("a").topic_id)
        batches = reader.read_stream_task((piece,), ["offset"], options)
        return [offset for rows in batches for offset in rows.column("offset").to_pylist()]

    with pytest.raises(DataLossError, match=r"a-0 from offset 5 to 9 .* offsets 0 to 5"):
        run(fail=True)
    with caplog.at_level(logging.WARNING):
        assert run(fail=False) == [3, 4]
    assert "a-0 from offset 5 to 9" in caplog.text


def test_topic_that_was_recreated_while_it_was_read_is_not_mixed_with_the_new_one(
    cluster: Cluster, servers: str
) -> None:
    limits = {"max_partition_fetch_bytes": "1"}
    reader = TopicReader(source_of(servers, **limits))
    batches = reader.read_range(OffsetRange(A0, 0, 5), ["offset"])
    next(batches)
    cluster.delete_topic("a")
    cluster.create_topic("a", partitions=2)
    with cluster.producer() as producer:
        for _ in range(5):
            producer.send("a", value=b"other", partition=0)

    with pytest.raises(UnknownTopicOrPartitionError, match=r"'a' .* deleted and created again"):
        list(batches)


def test_a_reader_that_stops_in_the_middle_leaves_a_client_that_others_can_use(
    servers: str,
) -> None:
    source = source_of(servers, max_partition_fetch_bytes="1")
    batches = TopicReader(source).read_range(OffsetRange(A0, 0, 5), ["offset"])
    next(batches)

    batches.close()  # type: ignore[attr-defined]

    assert [record.offset for record in records_of(source, "a")] == [0, 1, 2, 3, 4]


def test_closed_source_refuses_every_call(servers: str) -> None:
    source = source_of(servers)
    batches = TopicReader(source).read_range(OffsetRange(A0, 0, 5), ["offset"], topic_id="an id")

    source.close()

    for call in (source.topic_names, lambda: source.views([A0]), lambda: list(batches)):
        with pytest.raises(ClosedError, match=f"{servers} is closed"):
            call()


def test_look_up_without_an_answer_is_repeated_as_often_as_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (port,) = free_ports(1)
    options = {"bootstrap.servers": f"127.0.0.1:{port}", "default.api.timeout.ms": "50"}
    patience = Patience(look_ups_repeated=2, pause_ms=1)
    source = RemoteSource(parse_cluster_options(options), patience)

    with (
        caplog.at_level(logging.WARNING, "spark_kbatch.remote.source"),
        pytest.raises(RequestTimedOutError, match=f"127.0.0.1:{port}"),
    ):
        source.topic_names()

    assert re.findall(r"asking again, at most (\d) times", caplog.text) == ["2", "1"]


def test_starting_offset_outside_the_log_is_refused_as_for_a_folder(servers: str) -> None:
    with pytest.raises(OffsetOutOfRangeError, match="option 'startingOffsets': offset 9 of a-0"):
        read(servers, startingOffsets='{"a":{"0":9,"1":0}}')
    with pytest.raises(ConfigError, match="No offset matched"):
        read(servers, startingTimestamp=TIMES_MS[4] + 1)


# Streams, without Spark.


def stream(servers: str, **options: str) -> Query:
    return Query(source_of(servers), **{"path": None, "kafka.bootstrap.servers": servers} | options)


def test_stream_reads_what_is_new_within_its_limits(cluster: Cluster, servers: str) -> None:
    query = stream(servers, maxOffsetsPerTrigger="3")

    assert query.batches() == [{"a-0": (0, 3)}, {"a-0": (3, 5)}]
    with cluster.producer() as producer:
        producer.send("a", value=b"new", partition=1)
    cluster.create_partitions("a", 3)
    with cluster.producer() as producer:
        producer.send("a", value=b"new", partition=2)
    assert query.restart().batches() == [{"a-1": (0, 1), "a-2": (0, 1)}]


def test_stream_notices_that_a_topic_was_recreated_by_its_id(
    cluster: Cluster, servers: str
) -> None:
    query = stream(servers)
    query.batches()
    cluster.delete_topic("a")
    cluster.create_topic("a", partitions=2)
    with cluster.producer() as producer:
        for _ in range(7):  # more than the query has read of the old one
            producer.send("a", value=b"other", partition=0)

    with pytest.raises(DataLossError, match=r"a-0 from offset 5 .* deleted and created again"):
        query.batches()
    assert query.restart(failOnDataLoss=False).batches() == [{"a-0": (0, 7)}]


def test_planning_a_stream_asks_as_often_for_many_topics_as_for_one(tmp_path: Path) -> None:
    asked: list[str] = []
    names = [f"t{n}" for n in range(8)]
    with (
        builders.a_cluster(tmp_path, topics=dict.fromkeys(names, 2)) as cluster,
        cluster.serve() as server,
    ):
        with cluster.producer() as producer:
            for name in names:
                producer.send(name, value=b"v", partition=0)
        for api in ("Metadata", "ListOffsets"):
            server.intercept(api, lambda request: asked.append(request.api))

        def requests(*, subscribe: str) -> list[str]:
            asked.clear()
            assert stream(server.bootstrap_servers, subscribe=subscribe).batch()
            return list(asked)

        requests(subscribe="t0")  # connects
        assert requests(subscribe=",".join(names)) == requests(subscribe="t0")


# Options.


def test_a_folder_is_read_even_if_options_of_a_cluster_are_given(tmp_path: Path) -> None:
    of_a_cluster = {"kafka.bootstrap.servers": "host:9092", "kafka.ssl.key.password": "p"}

    options = parse_read_options({"path": str(tmp_path), "subscribe": "a"} | of_a_cluster)

    assert options == parse_read_options({"path": str(tmp_path), "subscribe": "a"})


def test_options_of_a_cluster_are_parsed_where_it_is_named() -> None:
    options = parse_read_options(
        {
            "kafka.bootstrap.servers": "one:9092,two:9093",
            "kafka.client.rack": "b",
            "KAFKA.MAX.PARTITION.FETCH.BYTES": "7",
            "kafka.fetch.max.wait.ms": "8",
            "kafkaConsumer.pollTimeoutMs": "1000",
            "fetchOffset.numRetries": "5",
            "fetchOffset.retryIntervalMs": "10",
            "subscribe": "a",
        }
    )

    assert options.path == ""
    assert options.cluster is not None
    assert options.cluster.bootstrap_servers == ("one:9092", "two:9093")
    assert options.cluster.client_rack == "b"
    assert options.cluster.max_partition_fetch_bytes == 7
    assert options.cluster.fetch_max_wait_ms == 8
    assert options.patience == Patience(1000, 5, 10)


@pytest.mark.parametrize("key", ["auto.offset.reset", "enable.auto.commit", "key.deserializer"])
def test_options_that_sparks_connector_forbids_are_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"option 'kafka.{key}' is not supported"):
        parse_read_options(
            {"kafka.bootstrap.servers": "h:1", "subscribe": "a", f"kafka.{key}": "x"}
        )


def test_secrets_are_not_among_the_options_that_are_shown() -> None:
    secured = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="u" password="s3cret";',
    }

    options = parse_read_options({"kafka.bootstrap.servers": "h:1", "subscribe": "a"} | secured)

    assert "s3cret" not in f"{options} {options!r}"
    assert pickle.loads(pickle.dumps(options)) == options
