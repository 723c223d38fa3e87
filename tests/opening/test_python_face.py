"""Using the package from Python for the first time: paths, topics, records, closing, help."""

from __future__ import annotations

import inspect
import logging
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import spark_kbatch
from spark_kbatch import Cluster, TopicConfig, TopicPartition
from spark_kbatch.errors import (
    ClosedError,
    ConfigError,
    ProducerClosedError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.opening.stores import begin_job
from spark_kbatch.options.option import PATH
from spark_kbatch.options.values import FOLLOW_ARGUMENTS, READ_ARGUMENTS
from spark_kbatch.options.write import parse_write_options
from tests.support import builders

SOON = 20.0


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return builders.a_cluster(tmp_path)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# Paths.


def test_a_path_may_be_a_pathlib_path(tmp_path: Path) -> None:
    disks = [tmp_path / "a", str(tmp_path / "b")]
    with spark_kbatch.open(tmp_path / "cluster", create=True, log_dirs=disks) as cluster:
        assert [one.path for one in cluster.log_dirs()] == [
            str(tmp_path / name / f"broker-{node}") for node, name in enumerate("ab")
        ]
        cluster.create_topic("events")
    with spark_kbatch.open(tmp_path / "a" / "broker-0") as logs:
        assert not logs.has("producer")
        assert "events" in logs.topic_names()


def test_a_tilde_is_the_home_folder_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, working = tmp_path / "home", tmp_path / "working"
    home.mkdir()
    working.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(working)
    assert spark_kbatch.open("~/cluster", create=True, log_dirs=["~/disk"]).path == home / "cluster"
    assert spark_kbatch.open(Path("~/cluster")).path == home / "cluster"
    options = parse_write_options({"path": "~/jobs", "log.dirs": "~/disk-of-jobs"})
    assert begin_job(options).options.path == str(home / "jobs")
    assert names(home) == ["cluster", "disk", "disk-of-jobs", "jobs"]
    assert names(working) == []
    with pytest.raises(ConfigError, match=r"no such user .* give \./~nobody-at-all/x"):
        spark_kbatch.open("~nobody-at-all/x", create=True)
    assert spark_kbatch.open("./~x", create=True).path == working / "~x"
    assert "`~`" in PATH.text


def test_log_dirs_are_split_at_commas_like_kafkas(tmp_path: Path) -> None:
    text = f"{tmp_path / 'diskA'}, {tmp_path / 'diskB'}"
    cluster = spark_kbatch.open(tmp_path / "cluster", create=True, log_dirs=text)
    assert names(tmp_path) == ["cluster", "diskA", "diskB"]
    assert len(cluster.log_dirs()) == 2


@pytest.mark.parametrize(
    ("log_dirs", "words"),
    [
        ("", "'log_dirs' is ''; accepted: different folders"),
        ("a,,b", "different folders"),
        ("a,a", "different folders"),
        (["a", "./a"], "log_dirs names a folder twice"),
        (["a", ""], "the path is empty"),
        (["a", b"b"], r"a folder in log_dirs is b'b' \(bytes\); accepted: a path, as text or pathlib"),
        (b"a", "log_dirs is b'a'"),
        (Path("a"), "log_dirs is .*accepted: folders in a list"),
        (3, "log_dirs is 3; accepted: folders"),
        ({"a": 1}, "log_dirs is"),
        (["a", "s3://b/c"], "scheme 's3'"),
    ],
    ids=[
        "empty text", "an empty name", "a name twice", "a folder twice", "an empty folder",
        "bytes in a list", "bytes", "a path alone", "a number", "a dict", "a bucket",
    ],
)  # fmt: skip
def test_invalid_log_dirs_are_refused_and_create_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_dirs: Any, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=words):
        spark_kbatch.open("cluster", create=True, log_dirs=log_dirs)
    assert names(tmp_path) == []


def test_log_dirs_of_an_existing_cluster_must_be_the_same(tmp_path: Path) -> None:
    path = tmp_path / "cluster"
    spark_kbatch.open(path, create=True, log_dirs=[tmp_path / "a"])
    spark_kbatch.open(path, create=True, log_dirs=str(tmp_path / "a"))
    with pytest.raises(ConfigError, match="exists with"):
        spark_kbatch.open(path, create=True, log_dirs=[tmp_path / "b"])
    with pytest.raises(ConfigError, match="goes with create=True"):
        spark_kbatch.open(path, log_dirs=[tmp_path / "a"])
    assert names(tmp_path) == ["a", "cluster"]


@pytest.mark.parametrize("path", [b"x", 5, None, ["x"], "", "a\0b", "a\ud800"])
def test_a_value_that_is_not_a_path_is_refused(path: Any) -> None:
    with pytest.raises(ConfigError, match="path"):
        spark_kbatch.open(path)


# Topics.


def test_creating_an_existing_topic_raises_its_own_error(cluster: Cluster) -> None:
    with pytest.raises(
        TopicAlreadyExistsError, match=r"'events' already exists; .*exist_ok"
    ) as told:
        cluster.create_topic("events")
    assert isinstance(told.value, ConfigError)
    again = pickle.loads(pickle.dumps(told.value))
    assert (again.topic, str(again)) == ("events", str(told.value))


def test_exist_ok_accepts_an_existing_topic_with_the_same_settings(cluster: Cluster) -> None:
    made = cluster.create_topic("t", partitions=3, config={"retention_ms": 5}, exist_ok=True)
    assert (made.partitions, made.config) == (3, TopicConfig(retention_ms=5))
    for given in (
        {},
        {"partitions": 3},
        {"config": {"retention.ms": "5"}},
        {"replication_factor": 1, "num_partitions": 3, "config": TopicConfig(retention_ms=5)},
    ):
        assert cluster.create_topic("t", exist_ok=True, **given) == made  # type: ignore[arg-type]
    with pytest.raises(
        TopicAlreadyExistsError, match=r"with partitions=3, retention\.ms=5; choose another name"
    ):
        cluster.create_topic("t", partitions=4, config={"retention_ms": 6}, exist_ok=True)


def test_partitions_may_be_called_num_partitions(cluster: Cluster) -> None:
    assert cluster.create_topic("t", num_partitions=2).partitions == 2
    with pytest.raises(ConfigError, match=r"partitions is 1, and num_partitions, .* is 2"):
        cluster.create_topic("u", partitions=1, num_partitions=2)
    with pytest.raises(ConfigError, match="partitions is 0; accepted: a whole number from 1 to"):
        cluster.create_topic("u", num_partitions=0)


def test_settings_are_named_with_dots_or_underscores(cluster: Cluster) -> None:
    for name, config in enumerate(({"retention_ms": 5}, {"retention.ms": 5}, {"Retention.MS": 5})):
        topic = cluster.create_topic(f"t{name}", config=config)  # type: ignore[arg-type]
        assert topic.config == TopicConfig(retention_ms=5)
    for bad, words in (
        ({"retention_ms": 5, "retention.ms": 6}, "'retention.ms' twice"),
        ({"retention_m": 5}, "nearest known one is 'retention.ms'"),
        ({5: 5}, "config is .*accepted: a dict of settings"),
        ([("retention.ms", 5)], "config is .*accepted: a dict of settings"),
        ({"retention.ms": None}, "'retention.ms' is 'None'"),
    ):
        with pytest.raises(ConfigError, match=words):
            cluster.create_topic("u", config=bad)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="segment_bytes is '5'; accepted: a whole number"):
        TopicConfig(segment_bytes="5")  # type: ignore[arg-type]


def test_replicas_on_one_disk_are_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "spark_kbatch"):
        one_disk = spark_kbatch.open(tmp_path / "one", create=True)
        one_disk.create_topic("t")
        assert caplog.messages == []
        one_disk.create_topic("u", replication_factor=3)
        (message,) = caplog.messages
        assert "the 3 copies of each record of topic 'u' lie in folders of" in message
        assert "log_dirs" in message
        caplog.clear()
        disks = [tmp_path / "a", tmp_path / "b"]
        spark_kbatch.open(tmp_path / "two", create=True, log_dirs=disks).create_topic(
            "u", replication_factor=2
        )
        assert caplog.messages == []


def test_a_single_topic_need_not_be_in_a_list(cluster: Cluster) -> None:
    assert cluster.describe("events") == cluster.describe(["events"])
    assert cluster.replicas("events").keys() == {TopicPartition("events", 0)}
    assert cluster.replicate("events") == []
    with pytest.raises(UnknownTopicOrPartitionError, match="topic 'u1' does not exist"):
        cluster.describe("u1")


def test_internal_topics_are_listed_if_asked(cluster: Cluster) -> None:
    with cluster.serve() as server, spark_kbatch.connect(server.bootstrap_servers) as remote:
        for one in (cluster, remote):
            for internal in (False, True):
                listed = [topic.name for topic in one.topics(internal=internal)]
                assert listed == one.topic_names(internal=internal)
            assert "__commits" in listed


def test_a_servers_options_are_given_once(cluster: Cluster) -> None:
    with cluster.serve(config={"connections.max.idle.ms": 1234, "num.partitions": "3"}) as server:
        server.close()
    with pytest.raises(ConfigError, match=r"'num\.partitions' is given twice"):
        cluster.serve(num_partitions=2, config={"num.partitions": 3})
    with pytest.raises(ConfigError, match=r"'auto\.create\.topics\.enable' is given twice"):
        cluster.serve(auto_create=False, auto_create_topics_enable=True)


def test_partitions_are_named_by_tuples(cluster: Cluster) -> None:
    builders.write(cluster, {("events", 0): [builders.batch()]})
    assert cluster.list_offsets({("events", 0): "latest"}) == {TopicPartition("events", 0): (3, -1)}
    assert cluster.delete_records({("events", 0): 1}) == {TopicPartition("events", 0): 1}
    assert [report.found for report in cluster.repair([("events", 0)])] == [()]
    for use in (
        lambda: cluster.list_offsets({"events": 5}),  # type: ignore[dict-item]
        lambda: cluster.delete_records({("events", "0"): 5}),  # type: ignore[dict-item]
        lambda: cluster.repair(["events"]),  # type: ignore[list-item]
    ):
        with pytest.raises(ConfigError, match="partition in"):
            use()


# Records.


TEXT, BYTES = pa.array(["a", "b", None, "b"]), pa.array([b"a", b"b", None, b"b"])


class Stream:
    """An Arrow stream, as another library's DataFrame gives it."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


class OneArray:
    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return self._batch.__arrow_c_array__(requested_schema)


@pytest.mark.parametrize(
    "column",
    [
        TEXT.cast(pa.string_view()),
        BYTES.cast(pa.binary_view()),
        TEXT.cast(pa.large_string()),
        BYTES.cast(pa.large_binary()),
        BYTES.cast(pa.binary(1)),
        TEXT.dictionary_encode(),
        TEXT.cast(pa.dictionary(pa.int8(), pa.large_string())),
        pc.run_end_encode(TEXT),
        pc.run_end_encode(BYTES),
        pa.DictionaryArray.from_arrays(
            pa.array([1, 0, 2, 0], pa.uint8()), pa.array(["b", "a", None], pa.string_view())
        ),
        pa.RunEndEncodedArray.from_arrays(
            pa.array([2, 3, 4, 5, 9], pa.int32()),
            pa.array(["x", "a", "b", None, "b"], pa.binary_view()).dictionary_encode(),
        )[2:6],
    ],
    ids=[
        "string view",
        "binary view",
        "large string",
        "large binary",
        "fixed size",
        "dictionary",
        "dictionary of large ones",
        "runs of text",
        "runs of bytes",
        "dictionary of views with a null in it",
        "part of the runs of a dictionary",
    ],
)
@pytest.mark.parametrize(
    "wrapped",
    [
        lambda table: table,
        lambda table: table.to_batches()[0],
        lambda table: pa.concat_tables([table.slice(0, 1), table.slice(1)]),
        lambda table: table.to_reader(1),
        Stream,
        lambda table: OneArray(table.to_batches()[0]),
    ],
    ids=["table", "batch", "chunks", "reader", "stream", "array"],
)
def test_every_arrow_type_of_text_or_bytes_can_be_sent(
    cluster: Cluster, column: pa.Array, wrapped: Callable[[pa.Table], Any]
) -> None:
    with cluster.producer(flush=False) as producer:
        rows = wrapped(pa.table({"key": column, "value": column}))
        assert producer.send_arrow("events", rows).result(SOON)["offset"].to_pylist() == [
            0,
            1,
            2,
            3,
        ]
    found = cluster.read("events", columns=["key", "value"]).read_all()
    assert found == pa.table({"key": BYTES, "value": BYTES})


@pytest.mark.parametrize(
    "kind",
    [
        pa.large_list(pa.struct([("key", pa.string_view()), ("value", pa.binary_view())])),
        pa.list_view(pa.struct([("key", pa.string()), ("value", pa.large_binary())])),
        pa.map_(pa.string(), pa.binary()),
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])),
        pa.list_(
            pa.struct(
                [
                    ("key", pa.dictionary(pa.int8(), pa.string())),
                    ("value", pa.dictionary(pa.int8(), pa.binary())),
                ]
            )
        ),
    ],
    ids=["as polars has them", "list view", "map", "text", "dictionaries"],
)
def test_headers_of_every_list_type_can_be_sent(cluster: Cluster, kind: pa.DataType) -> None:
    given = [[("h", b"1"), ("g", None)], None, []]
    if not pa.types.is_map(kind):
        text = pa.types.is_string(kind.value_type[1].type)
        given = [
            row and [{"key": k, "value": v.decode() if v and text else v} for k, v in row]  # type: ignore[misc]
            for row in given
        ]
    headers = pa.array([[], *given], kind)[1:]
    with cluster.producer(flush=False) as producer:
        producer.send_arrow("events", {"value": ["a", "b", "c"], "headers": headers}).result(SOON)
    found = cluster.read("events", columns=["headers"]).read_all()
    assert found.column("headers").to_pylist() == [
        [{"key": "h", "value": b"1"}, {"key": "g", "value": None}],
        None,
        None,
    ]


def test_other_columns_may_be_dictionary_encoded_too(cluster: Cluster) -> None:
    cluster.create_topic("other", partitions=2)
    table = pa.table(
        {
            "value": ["a", "b"],
            "topic": pa.array(["events", "other"], pa.string_view()),
            "partition": pa.array([0, 1]).dictionary_encode(),
            "timestamp": pc.run_end_encode(pa.array([5, 5])),
        }
    )
    with cluster.producer(flush=False) as producer:
        found = producer.send_arrow(None, table).result(SOON).to_pydict()
    assert found == {"topic": ["events", "other"], "partition": [0, 1], "offset": [0, 0]}


@pytest.mark.parametrize(
    "kind", [pl.String, pl.Categorical, pl.Enum(["a", "b"])], ids=["text", "categories", "an enum"]
)
def test_a_frame_of_polars_can_be_sent_and_read(cluster: Cluster, kind: Any) -> None:
    headers = pl.List(pl.Struct({"key": pl.Categorical, "value": pl.Binary}))
    given = {
        "key": ["a", None, "b"],
        "value": [b"1", None, b"\xff"],
        "headers": [[{"key": "h", "value": b"x"}], [], None],
    }
    frame = pl.DataFrame(given, schema={"key": kind, "value": pl.Binary, "headers": headers})
    with cluster.producer(flush=False) as producer:
        producer.send_arrow("events", frame[1:]).result(SOON)
        producer.send_arrow("events", frame[:1]).result(SOON)
    found = pl.from_arrow(cluster.read("events", columns=["key", "value", "headers"]))
    assert isinstance(found, pl.DataFrame)
    assert found.to_dict(as_series=False) == {
        "key": [None, b"b", b"a"],
        "value": [None, b"\xff", b"1"],
        "headers": [None, None, given["headers"][0]],
    }


def test_rows_that_were_read_can_be_sent_unchanged(cluster: Cluster) -> None:
    cluster.create_topic("copy")
    builders.write(cluster, {("events", 0): [builders.batch()]})
    with cluster.producer(flush=False) as producer:
        producer.send_arrow("copy", cluster.read("events")).result(SOON)
    there, here = (
        [record._replace(offset=0) for record in builders.read_records(cluster, name)]
        for name in ("events", "copy")
    )
    assert there == here


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ({"value": pa.array([1.5])}, "column 'value' is double"),
        ({"value": pa.array([1]).dictionary_encode()}, "column 'value' is int64"),
        (
            {"value": pa.array([bytes(16)], pa.uuid())},
            r"column 'value' is extension<arrow.uuid>; .* stored as, fixed_size_binary\[16\]",
        ),
        (
            {"value": pa.DictionaryArray.from_arrays([0], pa.array(["1"], pa.json_()))},
            "'value' is extension<arrow.json>",
        ),
        ([{"value": "a"}], "rows are a list"),
        ("rows", "rows are a str"),
        (None, "rows are a NoneType"),
        (pa.Table.from_arrays([TEXT, TEXT], ["value", "value"]), "two columns 'value'"),
        ({"value": ["a"], "headers": pa.array([[1]])}, "column 'headers' is list<"),
    ],
    ids=[
        "numbers",
        "encoded numbers",
        "an extension",
        "an encoded extension",
        "a list",
        "text",
        "none",
        "a column twice",
        "no headers",
    ],
)
def test_the_error_for_rows_that_cannot_be_sent_says_what_they_are(
    cluster: Cluster, rows: Any, words: str
) -> None:
    with cluster.producer(flush=False) as producer:
        with pytest.raises(ConfigError, match=words):
            producer.send_arrow("events", rows)
        assert producer.send_arrow("events", {"value": ["a"]}).result(SOON)[
            "offset"
        ].to_pylist() == [0]


def test_a_column_that_looks_misspelt_is_warned_about_once_by_each_producer(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    rows = {"value": ["a"], "kye": ["k"], "offset": [7], "colour": ["red"]}
    with cluster.producer(flush=False) as producer:
        for _ in range(2):
            producer.send_arrow("events", rows).result(SOON)
        with pytest.raises(ConfigError, match="the columns are: vale; did you mean 'vale'"):
            producer.send_arrow("events", {"vale": ["a"]})
    assert [record.getMessage() for record in caplog.records] == [
        "column 'kye' is ignored; did you mean 'key'? The columns of a write are: topic, key, value, "
        "headers, partition, timestamp"
    ]


# Open and closed.


def test_closed_objects_say_that_they_are_closed(tmp_path: Path) -> None:
    with spark_kbatch.open(tmp_path / "cluster", create=True) as cluster:
        cluster.create_topic("events")
        with cluster.producer(flush=False) as producer:
            producer.send("events", "a").result(SOON)
        rows = cluster.read("events")
        shutil.copytree(tmp_path / "cluster/broker-0", tmp_path / "broker")
    with spark_kbatch.open(tmp_path / "broker") as logs:
        assert "events" in logs.topic_names()
    logs.close()
    cluster.close()
    uses: list[Callable[[], object]] = [
        cluster.topics,
        cluster.__enter__,
        cluster.producer,
        lambda: cluster.create_topic("t"),
        lambda: list(rows),
        lambda: list(cluster.history()),
        logs.topics,
        lambda: logs.read("events"),
    ]
    for use in uses:
        with pytest.raises(ClosedError, match=r"is closed; open it again"):
            use()
    again = pickle.loads(pickle.dumps(ClosedError("x")))
    assert str(again) == str(ClosedError("x"))


def test_closing_a_cluster_sends_its_producers_records(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    producer = cluster.producer(linger_ms=60_000, flush=False)
    future = producer.send("events", "a")
    cluster.close()
    assert future.result(0).offset == 0
    with pytest.raises(ProducerClosedError):
        producer.send("events", "b")


def test_a_failed_with_block_drops_its_producers_unsent_records(tmp_path: Path) -> None:
    futures = []

    def fail() -> None:
        with builders.a_cluster(tmp_path) as cluster:
            futures.append(cluster.producer(linger_ms=60_000, flush=False).send("events", "a"))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert isinstance(futures[0].exception(0), ProducerClosedError)


def test_every_object_has_a_helpful_repr(tmp_path: Path) -> None:
    with spark_kbatch.open(tmp_path / "cluster", create=True) as cluster:
        path = str(cluster.path)
        assert repr(cluster) == f"Cluster({path!r})"
        topic = cluster.create_topic("events", partitions=2)
        assert repr(topic) == "Topic('events', partitions=2, replication_factor=1)"
        with cluster.producer(flush=False, linger_ms=60_000) as producer:
            assert repr(producer) == "<Producer with acks=all, open>"
            sent = producer.send("events", "a", partition=1)
            table = producer.send_arrow("events", {"value": ["b"], "partition": [1]})
            assert repr(sent) == "<RecordFuture of events-1, pending>"
            assert repr(table) == "<ArrowFuture of 1 rows, pending>"
            too_large = producer.send("events", bytes(2 << 20))
            assert repr(too_large).startswith("<RecordFuture, failed: a record takes")
        assert isinstance(too_large, spark_kbatch.RecordFuture)
        assert repr(producer) == "<Producer with acks=all, closed>"
        assert repr(sent) == "<RecordFuture of events-1, at offset 0>"
        assert repr(table) == "<ArrowFuture of 1 rows, written>"
        shutil.copytree(tmp_path / "cluster/broker-0", tmp_path / "broker")
    assert repr(cluster) == f"Cluster({path!r}, closed)"
    assert repr(spark_kbatch.open(tmp_path / "broker")) == f"Cluster({str(tmp_path / 'broker')!r})"


def test_a_brokers_logs_refuse_methods_that_need_a_cluster(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    shutil.copytree(cluster.path / "broker-0", tmp_path / "broker")
    logs = spark_kbatch.open(tmp_path / "broker")
    for use in (
        lambda: logs.history(),
        lambda: logs.create_topic("t"),
        lambda: logs.delete_records({("events", 0): 1}),
        lambda: logs.producer(acks=1),
    ):
        with pytest.raises(ConfigError, match=r"which kbatch only reads; write to a cluster"):
            use()


def test_the_module_docstring_is_short_and_shows_use() -> None:
    assert spark_kbatch.__doc__ is not None
    assert "spark_kbatch.open(" in spark_kbatch.__doc__
    assert len(spark_kbatch.__doc__.splitlines()) < 30
    assert "transaction/coordinator" not in spark_kbatch.__doc__


def ensure_answered(method: Callable[..., object], word: str, said: str) -> None:
    wrong: dict[str, Any] = {word: 5}
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{word}'; {said}"):
        method("events", **wrong)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("offset", "here it is start: "),
        ("from_offset", "here it is start: "),
        ("timestamp", "here it is start: "),
        ("limit", "here it is last, "),
        ("max_records", "here it is last, "),
        ("tail", "here it is last, "),
        ("follow", r"here it is cluster\.follow\(\.\.\.\)"),
        ("group", r"here it is cluster\.follow\(\.\.\.\)"),
        ("starts", r"did you mean 'start'\?"),
        ("partition", r"did you mean 'partitions'\?"),
        ("value_fromat", r"did you mean 'value_format'\?"),
        ("zzz", "options are: partitions, start, end, last, columns, text, .* value_format, "),
    ],
)
def test_a_word_that_a_read_does_not_take_is_answered_by_its_own(
    cluster: Cluster, word: str, said: str
) -> None:
    ensure_answered(cluster.read, word, said)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("auto_offset_reset", "here it is start: an offset, a datetime, 'earliest' or 'latest'"),
        ("end", "here it is stop_at: "),
        ("until", "here it is stop_at: "),
        ("last", "here it is start, an offset or a datetime: last is not there"),
        ("max_records", "here it is a break in the loop, or stop_at: "),
        ("group_id", "here it is group: "),
        ("timeout_ms", "here it is timeout, in seconds"),
        ("filter", "here it is where, "),
        (
            "follow",
            "options are: partitions, start, .* group, stop_at, timeout, stop, value_format, ",
        ),
        ("stop_att", r"did you mean 'stop_at'\?"),
    ],
)
def test_a_word_that_a_loop_does_not_take_is_answered_by_its_own(
    cluster: Cluster, word: str, said: str
) -> None:
    ensure_answered(cluster.follow, word, said)


@pytest.mark.parametrize(
    ("method", "named"), [(Cluster.read, READ_ARGUMENTS), (Cluster.follow, FOLLOW_ARGUMENTS)]
)
def test_the_arguments_that_errors_name_are_those_that_there_are(
    method: Callable[..., object], named: tuple[str, ...]
) -> None:
    kinds = inspect.signature(method).parameters.values()
    assert [one.name for one in kinds if one.kind is one.KEYWORD_ONLY] == [*named]
