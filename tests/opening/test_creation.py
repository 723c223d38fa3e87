"""One rule for all doors: a write creates what is missing and logs it; a read creates nothing."""

from __future__ import annotations

import contextlib
import datetime
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kafka
import pyarrow as pa
import pytest
from click.testing import CliRunner

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.cli.main import cli
from spark_kbatch.errors import ConfigError, KBatchError, UnknownTopicOrPartitionError
from spark_kbatch.opening.stores import begin_job, cluster_to_write
from spark_kbatch.options.paths import StrPath
from spark_kbatch.options.write import parse_write_options
from tests.support.bucket_objects import a_url

FAR_AHEAD = datetime.datetime(2200, 1, 1, tzinfo=datetime.UTC)
VALUES = pa.record_batch({"value": [b"v"]})


def by_producer(path: StrPath, **options: Any) -> None:
    with spark_kbatch.open(path, create=True) as cluster, cluster.producer(**options) as producer:
        producer.send("events", b"v").result()


def by_job(path: StrPath, **options: str) -> None:
    given = {key.replace("_", "."): value for key, value in options.items()}
    job = begin_job(parse_write_options({"path": str(path), "topic": "events", **given}))
    job.commit_batch([job.stage([VALUES])])


def by_rows_of_a_job(path: StrPath, **options: str) -> None:
    given = {key.replace("_", "."): value for key, value in options.items()}
    job = begin_job(parse_write_options({"path": str(path), **given}))
    rows = VALUES.append_column("topic", pa.array(["events"]))
    job.commit_batch([job.stage([rows]), job.stage([rows])])


def by_micro_batch(path: StrPath) -> None:
    options = parse_write_options({"path": str(path), "topic": "events"})
    staged = begin_job(options, is_micro_batch=True).stage([VALUES], query_id="query")
    begin_job(options, is_micro_batch=True).commit_micro_batch([staged], 0)


def by_command(path: StrPath, *words: str) -> None:
    done = CliRunner().invoke(cli, ["produce", str(path), "events", *words], input="v\n")
    if done.exception is not None:
        raise done.exception


def by_create_topic(path: StrPath, *words: str) -> None:
    done = CliRunner().invoke(cli, ["create-topic", str(path), "events", "--if-not-exists", *words])
    if done.exception is not None:
        raise done.exception


def by_client_of_a_server(path: StrPath) -> None:
    with (
        cluster_to_write(path) as cluster,  # as `kbatch serve`
        cluster.serve() as server,
        contextlib.closing(
            kafka.KafkaProducer(bootstrap_servers=server.bootstrap_servers)
        ) as producer,
    ):
        producer.send("events", b"v").get(30)


def by_mirror(path: StrPath) -> None:
    source = f"{path}-source"
    by_producer(source)
    spark_kbatch.mirror(source, path, ["events"])


DOORS_TO_A_BUCKET = [
    by_producer, by_job, by_rows_of_a_job, by_micro_batch, by_command, by_create_topic, by_mirror,
]  # fmt: skip
DOORS = [*DOORS_TO_A_BUCKET, by_client_of_a_server]
ASKED_FOR = {
    by_producer: "created a cluster in",
    by_create_topic: "created topic",
}  # so that it is no warning


@pytest.mark.parametrize("door", DOORS)
def test_what_a_write_names_is_created_and_told_with_its_path(
    tmp_path: Path, door: Callable[[StrPath], None], caplog: pytest.LogCaptureFixture
) -> None:
    ensure_created_and_told(tmp_path / "new", door, caplog)


@pytest.mark.parametrize("door", DOORS_TO_A_BUCKET)
def test_what_a_write_names_in_a_bucket_is_created_and_told_with_its_url(
    door: Callable[[StrPath], None], caplog: pytest.LogCaptureFixture
) -> None:
    ensure_created_and_told(a_url(), door, caplog)


def ensure_created_and_told(
    path: StrPath, door: Callable[[StrPath], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "spark_kbatch")
    monkey = logging.getLogger("spark_kbatch")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(monkey, "setLevel", lambda _level: None)  # by commands
        door(path)
        door(path)

    assert [one.partitions for one in spark_kbatch.open(path).topics()] == [1]
    for said in (
        f"created a cluster in {path}",
        f"created topic 'events' with 1 partition in {path}",
    ):
        (record,) = (one for one in caplog.records if one.getMessage() == said)
        asked_for = door in ASKED_FOR and said.startswith(ASKED_FOR[door])
        assert record.levelno == (logging.INFO if asked_for else logging.WARNING)


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(lambda path: spark_kbatch.open(path), id="open"),
        *(
            pytest.param(lambda path, words=words: command(path, *words), id=words[0])
            for words in (
                ["topics"], ["consume", "events"], ["offsets", "events"], ["groups"],
                ["groups reset", "g", "--to-offset", "0"], ["verify"], ["alter-topic", "events"],
            )
        ),
    ],
)  # fmt: skip
def test_a_read_creates_nothing(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    with pytest.raises(ConfigError, match="no kbatch cluster at"):
        read(tmp_path / "new")

    assert not (tmp_path / "new").exists()


def command(path: Path, name: str, *words: str) -> None:
    done = CliRunner().invoke(cli, [*name.split(" "), str(path), *words])
    assert done.exception is not None
    raise done.exception


@pytest.mark.parametrize(
    "door",
    [
        pytest.param(lambda path: by_job(path, auto_create_topics_enable="false"), id="job"),
        pytest.param(
            lambda path: by_rows_of_a_job(path, auto_create_topics_enable="false"), id="rows"
        ),
        pytest.param(lambda path: by_command(path, "--no-create"), id="command"),
        pytest.param(
            lambda path: by_producer(path, auto_create_topics_enable=False), id="producer"
        ),
        pytest.param(lambda path: by_create_topic(path, "--no-create"), id="create-topic"),
    ],
)
def test_creation_can_be_turned_off(
    tmp_path: Path, door: Callable[[Path], None], request: pytest.FixtureRequest
) -> None:
    path, name = tmp_path / "new", request.node.callspec.id
    if name != "producer":
        with pytest.raises(ConfigError, match="no kbatch cluster at"):
            door(path)
        assert not path.exists()
    if name != "create-topic":
        cluster = spark_kbatch.open(path, create=True)
        with pytest.raises(UnknownTopicOrPartitionError, match="topic 'events' does not exist"):
            door(path)
        assert cluster.topic_names() == []


def test_a_topic_that_is_deleted_under_a_producer_is_not_created_again(tmp_path: Path) -> None:
    with spark_kbatch.open(tmp_path / "new", create=True) as cluster:
        with cluster.producer(linger_ms=60_000) as producer:
            late = producer.send("events", b"v")
            cluster.delete_topic("events")
            producer.flush()
            for _ in range(2):
                with pytest.raises(UnknownTopicOrPartitionError):
                    producer.send("events", b"v").result()
            assert isinstance(late.exception(), UnknownTopicOrPartitionError)
        assert cluster.topic_names() == []


def test_a_real_cluster_creates_topics_only_where_that_is_asked_for(tmp_path: Path) -> None:
    with spark_kbatch.open(tmp_path / "new", create=True) as cluster:
        with cluster.serve(auto_create=False) as server:
            remote = spark_kbatch.connect(server.bootstrap_servers)
            with pytest.raises(ConfigError, match="is for clusters in a folder"):
                remote.producer(auto_create_topics_enable=True)
            with pytest.raises(UnknownTopicOrPartitionError), remote.producer() as producer:
                producer.send("events", b"v").result()
            with pytest.raises(ConfigError, match="not supported with a real cluster"):
                parse_write_options(
                    {
                        "kafka.bootstrap.servers": server.bootstrap_servers,
                        "auto.create.topics.enable": "true",
                    }
                )
            remote.close()
        assert cluster.topic_names() == []


# Rows that a topic to be created would not take.


@pytest.mark.parametrize(
    ("column", "option"),
    [
        ({"value": [b"x" * 2_000_000]}, "max.message.bytes"),
        ({"value": [b"x"], "timestamp": [FAR_AHEAD]}, "message.timestamp.after.max.ms"),
    ],
    ids=["size", "time"],
)
def test_a_row_that_the_new_topic_of_a_write_refuses_is_told_how_the_topic_is_created(
    tmp_path: Path, column: dict[str, list[Any]], option: str
) -> None:
    options = parse_write_options({"path": str(tmp_path / "cluster"), "topic": "events"})
    rows = pa.RecordBatch.from_pydict(column)
    with pytest.raises(KBatchError) as told:
        begin_job(options).stage([rows])
    assert f"give the write the option {option}, or create the topic first" in str(told.value)
    assert f"`kbatch create-topic --config {option}=...`" in str(told.value)
    assert "alter-topic" not in str(told.value)
    Cluster(tmp_path / "cluster").create_topic("events")
    with pytest.raises(KBatchError, match="`kbatch alter-topic`"):
        begin_job(options).stage([rows])
