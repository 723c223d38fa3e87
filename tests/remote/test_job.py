"""Spark's writes to a real cluster, without Spark: what a job checks, what its tasks write, what stays."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import spark_kbatch
from spark_kbatch.errors import (
    ApiError,
    ConfigError,
    InvalidTopicError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.write import (
    CLUSTER_WRITE_KEYS,
    EMBEDDED_WRITE_KEYS,
    EXACTLY_ONCE_KEYS,
    TRANSACTION_KEYS,
    parse_write_options,
)
from spark_kbatch.remote.job import RemoteJob, producer_config
from spark_kbatch.server.server import Server
from tests.support import builders
from tests.support.kafka import free_ports


def options_of(server: Server, **options: str) -> Any:
    """Parse options whose names are written with underscores."""
    given = {key.replace("_", "."): value for key, value in options.items()}
    return parse_write_options({"kafka.bootstrap.servers": server.bootstrap_servers} | given)


def rows(*values: bytes, **columns: Any) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pydict({"value": [*values], **columns})]


def values(cluster: spark_kbatch.Cluster, topic: str = "events") -> list[bytes | None]:
    found = builders.contents(cluster)
    return sorted(
        (record.value for tp, records in found.items() if tp.topic == topic for record in records),
        key=repr,
    )


# Writing.


def test_what_tasks_wrote_is_there_before_the_commit_and_is_counted(
    cluster: spark_kbatch.Cluster, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    job = RemoteJob.begin(options_of(server, topic="events"))
    task = pickle.loads(pickle.dumps(job))
    sent = [task.stage(rows(b"a", b"b")), task.stage(rows(b"c")), task.stage([])]
    assert values(cluster) == [b"a", b"b", b"c"]
    with caplog.at_level(logging.INFO, "spark_kbatch.remote.job"):
        job.commit_batch(sent)
        job.commit_micro_batch(sent, 7)
    held = [one for one in cluster.describe("events") if one.size_in_bytes]
    ranges = ", ".join(f"{tp} 0 to {edges.high_watermark - 1}" for tp, edges, *_ in held)
    wrote = (
        f"3 records, {sum(one.size_in_bytes for one in held)} bytes, offsets {ranges}, the longest"
    )
    assert f"a batch job to {server.bootstrap_servers}: {wrote}" in caplog.text
    assert f"micro-batch 7 to {server.bootstrap_servers}: {wrote}" in caplog.text


def test_rows_name_their_topics_and_partitions(
    cluster: spark_kbatch.Cluster, server: Server
) -> None:
    cluster.create_topic("other", partitions=1)
    job = RemoteJob.begin(options_of(server))
    partition = pa.array([1, None], pa.int32())
    job.stage(rows(b"a", b"b", topic=["events", "other"], partition=partition))
    found = builders.contents(cluster)
    assert [one.value for one in found[TopicPartition("events", 1)]] == [b"a"]
    assert [one.value for one in found[TopicPartition("other", 0)]] == [b"b"]


def test_task_fails_with_the_error_of_a_record_and_what_was_written_stays(
    cluster: spark_kbatch.Cluster, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    job = RemoteJob.begin(options_of(server, topic="events"))
    sent = job.stage(rows(b"a"))
    server.intercept("Produce", lambda request: request.fail("TOPIC_AUTHORIZATION_FAILED"))
    with pytest.raises(ApiError, match="TOPIC_AUTHORIZATION_FAILED"):
        job.stage(rows(b"b"))
    job.abort([sent])
    assert values(cluster) == [b"a"]
    assert "1 records" in caplog.text


def test_task_whose_rows_end_in_an_error_raises_that(
    cluster: spark_kbatch.Cluster, server: Server
) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from rows(b"a")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        RemoteJob.begin(options_of(server, topic="events")).stage(broken())


def test_hundred_tasks_of_a_worker_take_one_producer_id(
    cluster: spark_kbatch.Cluster, server: Server
) -> None:
    asked: list[Any] = []
    server.intercept("InitProducerId", asked.append)
    for number in range(100):
        job = RemoteJob.begin(options_of(server, topic="events"))
        job.commit_micro_batch([job.stage(rows(b"%03d" % number))], number)
    assert len(asked) <= 1
    assert values(cluster) == [b"%03d" % number for number in range(100)]


# Topics.


def test_topic_is_created_only_where_its_partitions_are_named(
    cluster: spark_kbatch.Cluster, server: Server
) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match=r"'new'.*'num\.partitions' is given"):
        RemoteJob.begin(options_of(server, topic="new"))
    assert cluster.topic_names() == ["events"]
    options = options_of(server, topic="new", num_partitions="3", max_message_bytes="5000")
    for _ in range(2):
        RemoteJob.begin(options)
    (topic,) = [one for one in cluster.topics() if one.name == "new"]
    assert (topic.partitions, topic.config.max_message_bytes) == (3, 5000)


def test_topics_that_rows_name_are_created_where_partitions_are_named(
    cluster: spark_kbatch.Cluster, server: Server
) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="'new'"):
        RemoteJob.begin(options_of(server)).stage(rows(b"a", topic=["new"]))
    RemoteJob.begin(options_of(server, num_partitions="3")).stage(rows(b"a", topic=["new"]))
    assert values(cluster, "new") == [b"a"]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"num_partitions": "3"}, "2"),
        ({"replication_factor": "2"}, "1"),
        ({"max_message_bytes": "5000"}, "1048588"),
    ],
    ids=["partitions", "replicas", "setting"],
)
def test_topic_with_other_settings_than_the_options_name_is_refused(
    server: Server, options: dict[str, str], found: str
) -> None:
    (key,) = options
    with pytest.raises(ConfigError, match=f"{key.replace('_', '.')}.*exists with {found}"):
        RemoteJob.begin(options_of(server, topic="events", **options))


# Options.


def test_overwrite_is_refused_as_by_sparks_sink(server: Server) -> None:
    with pytest.raises(ConfigError, match=r'"overwrite".*use mode\("append"\)'):
        RemoteJob.begin(options_of(server, topic="events"), overwrite=True)


def test_options_of_kafkas_producer_reach_it(server: Server) -> None:
    wanted = {
        "kafka.delivery.timeout.ms": "50000",
        "kafka.enable.idempotence": "false",
        "kafka.max.block.ms": "5",
        "kafka.max.in.flight.requests.per.connection": "2",
        "kafka.max.request.size": "4000",
        "kafka.partitioner.adaptive.partitioning.enable": "false",
        "kafka.retries": "3",
        "kafka.retry.backoff.max.ms": "20",
        "kafka.retry.backoff.ms": "10",
        "kafka.acks": "1",
        "kafka.batch.size": "1000",
        "kafka.compression.type": "zstd",
        "kafka.compression.zstd.level": "7",
        "kafka.request.timeout.ms": "40000",
    }
    assert {f"kafka.{key}" for key in CLUSTER_WRITE_KEYS} <= wanted.keys()
    config = producer_config(options_of(server, topic="events", **wanted))
    # Full batches are sent at once; the others in time to be delivered.
    assert config.linger_ms == (config.delivery_timeout_ms - config.request_timeout_ms) // 2
    for key, value in wanted.items():
        if "level" not in key:
            found = getattr(config, key.removeprefix("kafka.").replace(".", "_"))
            assert str(found).lower() == value, key
    assert config.compression_level == 7


def test_defaults_are_idempotent_with_all_acks(server: Server) -> None:
    config = producer_config(options_of(server, topic="events"))
    assert (config.acks, config.enable_idempotence) == (-1, True)


def test_contradicting_options_of_the_producer_are_refused_on_the_driver(server: Server) -> None:
    options = {"kafka.acks": "1", "kafka.enable.idempotence": "true"}
    with pytest.raises(ConfigError, match=r"'enable\.idempotence' is true and 'acks' is"):
        RemoteJob.begin(options_of(server, topic="events", **options))


_VALUES = {"log.dirs": "/a,/b", "flush": "false"}


@pytest.mark.parametrize("key", EMBEDDED_WRITE_KEYS)
def test_options_that_mean_nothing_to_a_cluster_are_refused(key: str) -> None:
    given = {"kafka.bootstrap.servers": "host:9092", key: _VALUES.get(key, "60000")}
    with pytest.raises(ConfigError, match=r"real cluster \(host:9092\)"):
        parse_write_options(given)


_ONCE = {"txnAppId": "app", "txnVersion": "1", "resolve.micro.batch": "skip query 1"}


@pytest.mark.parametrize("guarantee", [{}, {"delivery.guarantee": "at-least-once"}], ids=str)
@pytest.mark.parametrize("key", [*EXACTLY_ONCE_KEYS, *TRANSACTION_KEYS])
def test_options_of_exactly_once_need_that_guarantee(key: str, guarantee: dict[str, str]) -> None:
    given = {"kafka.bootstrap.servers": "host:9092", key: _ONCE.get(key, "60000")} | guarantee
    with pytest.raises(ConfigError, match=rf"{key}' needs 'delivery\.guarantee' = 'exactly-once'"):
        parse_write_options(given)


def test_exactly_once_needs_a_prefix() -> None:
    given = {"kafka.bootstrap.servers": "host:9092", "delivery.guarantee": "exactly-once"}
    with pytest.raises(ConfigError, match=r"'transactional\.id\.prefix' is not given"):
        parse_write_options(given)
    for bad in ("", " ", "a\n", "p" * 250):
        with pytest.raises(ConfigError, match=r"accepted: 1 to 249 characters"):
            parse_write_options(given | {"transactional.id.prefix": bad})
    once = parse_write_options(given | _ONCE | {"kafka.transactional.id.prefix": "p"})
    assert (once.transactional_id_prefix, once.transaction_timeout_ms) == ("p", 60_000)


def test_guarantee_none_waits_for_no_acknowledgement_unless_it_is_asked_for() -> None:
    given = {"kafka.bootstrap.servers": "host:9092", "delivery.guarantee": "none"}
    config = producer_config(parse_write_options(given))
    assert (config.acks, config.enable_idempotence) == (0, False)
    assert parse_write_options(given | {"kafka.acks": "all"}).acks == -1


@pytest.mark.parametrize("path", ["/data", "s3://bucket/data"])
def test_folder_and_bucket_take_exactly_once_alone(path: str) -> None:
    given = {"path": path, "transactional.id.prefix": "p", "delivery.guarantee": "exactly-once"}
    assert parse_write_options(given).delivery_guarantee == "exactly-once"
    for other in ("at-least-once", "none"):
        said = f"'{other}', but a write to {path} is always exactly-once"
        with pytest.raises(ConfigError, match=said):
            parse_write_options(given | {"delivery.guarantee": other})
    with pytest.raises(ConfigError, match=r"'transactional\.id\.prefix' needs"):
        parse_write_options({"path": path, "transactional.id.prefix": "p"})


def test_transactional_id_is_refused_as_by_sparks_connector() -> None:
    given = {"kafka.bootstrap.servers": "host:9092", "kafka.transactional.id": "t"}
    with pytest.raises(ConfigError, match=r"transactional\.id"):
        parse_write_options(given)


def test_bad_topic_name_is_refused_before_a_broker_is_asked() -> None:
    with pytest.raises(InvalidTopicError):
        parse_write_options({"kafka.bootstrap.servers": "host:9092", "topic": "a b"})


def test_cluster_that_does_not_answer_fails_the_job_with_its_address() -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    options = parse_write_options(
        {
            "kafka.bootstrap.servers": address,
            "kafka.default.api.timeout.ms": "300",
            "topic": "events",
        }
    )
    with pytest.raises(RequestTimedOutError, match=address):
        RemoteJob.begin(options)
