"""Options of writes and of topics: accepted values, how they are parsed, and error messages."""

from __future__ import annotations

from typing import Any

import pytest

from spark_kbatch.errors import ConfigError, InvalidTopicError
from spark_kbatch.options.option import (
    FORBIDDEN_KAFKA_KEYS,
    IGNORED_KAFKA_KEYS,
    Option,
)
from spark_kbatch.options.producer import parse_producer_options
from spark_kbatch.options.read import READ_OPTIONS, ReadOptions, parse_read_options
from spark_kbatch.options.remote import parse_client_options
from spark_kbatch.options.server import parse_server_options
from spark_kbatch.options.topic import (
    TopicConfig,
    ensure_valid_topic,
    parse_topic_options,
)
from spark_kbatch.options.write import WRITE_OPTIONS, WriteOptions, parse_write_options
from tests.support.generated_docs import options_markdown

WRITE = {"path": "/data"}
READ = {"path": "/data", "subscribe": "events"}


def write(key: str, value: str) -> WriteOptions:
    return parse_write_options(WRITE | {key: value})


def read(key: str, value: str) -> ReadOptions:
    base = {"path": "/data"} if key in ("subscribe", "assign") else READ
    return parse_read_options(base | {key: value})


def _settings(key: str, value: str) -> object:
    return parse_topic_options({key: value})


def _producer(key: str, value: str) -> object:
    return parse_producer_options({key: value})


def _server(key: str, value: str) -> object:
    return parse_server_options({key: value})


def _client(key: str, value: str) -> object:
    return parse_client_options("localhost:9092", {key: value})


# Defaults, and values that are accepted.


def test_a_write_needs_no_option_but_a_path() -> None:
    assert parse_write_options(WRITE) == WriteOptions(
        path="/data", compression_level=None, topic_config={}
    )


@pytest.mark.parametrize(("codec", "level"), [("gzip", -1), ("lz4", 17), ("zstd", -131072)])
def test_a_level_counts_for_the_codec_that_it_names(codec: str, level: int) -> None:
    key = f"compression.{codec}.level"
    assert parse_write_options(WRITE | {key: str(level)}).compression_level is None
    found = parse_write_options(WRITE | {key: str(level), "compression.type": codec})
    assert found.compression_level == level


@pytest.mark.parametrize(
    ("key", "value", "field", "parsed"),
    [
        pytest.param("kafka.linger.ms", "0", "linger_ms", 0, id="linger.ms of Kafka"),
        pytest.param("topic", " clicks ", "topic", "clicks", id="topic in blanks"),
        pytest.param("compression.type", " ZSTD ", "compression_type", "zstd", id="codec in capitals"),
        pytest.param("COMPRESSION.Type", "lz4", "compression_type", "lz4", id="key in capitals"),
        pytest.param("batch.size", "1", "batch_size", 1, id="smallest batch"),
        pytest.param("kafka.batch.size", "0", "batch_size", 1, id="Kafka's smallest batch"),
        pytest.param("batch.size", "1073741824", "batch_size", 1 << 30, id="largest batch"),
        pytest.param("batch.size", " +16384 ", "batch_size", 16384, id="number with a sign"),
        pytest.param("flush", " True ", "flush", True, id="flush in capitals"),
    ],
)  # fmt: skip
def test_write_option_is_parsed(key: str, value: str, field: str, parsed: object) -> None:
    assert getattr(write(key, value), field) == parsed


@pytest.mark.parametrize(
    ("version", "magic"),
    [
        ("0.8.0", 0), ("0.8.2.2", 0), ("0.9.0", 0), ("0.10.0-IV1", 1), ("0.10.2", 1), ("0.11.0-IV2", 2),
        ("1.0", 2), ("1.1.1", 2), ("2.8", 2), ("3.0-IV1", 2), ("3.9.0", 2), ("4.0", 2),
    ],
)  # fmt: skip
def test_version_of_brokers_says_which_format_they_wrote(version: str, magic: int) -> None:
    assert TopicConfig(message_format_version=version).message_magic == magic


def test_topics_codec_is_a_setting_of_the_topic_and_none_of_a_write() -> None:
    assert parse_topic_options({"compression.type": " LZ4 "}) == {"compression_type": "lz4"}
    assert write("compression.type", "lz4").topic_config == {}
    for value in ("none", "brotli", ""):
        with pytest.raises(ConfigError, match="producer, uncompressed, gzip, snappy, lz4, zstd"):
            parse_topic_options({"compression.type": value})
    with pytest.raises(ConfigError, match=r"'compression\.type' is 'gzip', which needs"):
        TopicConfig(message_format_version="0.10.2", compression_type="gzip")


def test_topic_with_a_version_that_kafka_has_not_had_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'message.format.version' is '0.7'"):
        TopicConfig(message_format_version="0.7")


@pytest.mark.parametrize(
    ("key", "value", "field", "parsed"),
    [
        pytest.param("message.format.version", " 0.10.2 ", "message_format_version", "0.10.2", id="format"),
        pytest.param("segment.ms", str(2**63 - 1), "segment_ms", 2**63 - 1, id="no roll by time"),
        pytest.param("message.timestamp.type", " createtime", "message_timestamp_type", "CreateTime", id="create time"),
        pytest.param("retention.ms", "-1", "retention_ms", -1, id="no retention by age"),
        pytest.param("kafka.retention.bytes", "0", "retention_bytes", 0, id="retention with prefix"),
        pytest.param("cleanup.policy", "Delete", "cleanup_policy", "delete", id="policy"),
    ],
)  # fmt: skip
def test_topic_option_is_parsed_for_a_write_and_for_create_topic(
    key: str, value: str, field: str, parsed: object
) -> None:
    assert write(key, value).topic_config == {field: parsed}
    assert parse_topic_options({key: value}) == {field: parsed}


def test_numbers_of_a_topic_may_be_numbers() -> None:
    assert parse_topic_options({"retention.ms": 5}) == {"retention_ms": 5}


@pytest.mark.parametrize(
    ("key", "value", "accepted"),
    [
        pytest.param("cleanup.policy", "compact", "delete; compaction leaves gaps", id="compact"),
        pytest.param("cleanup.policy", "compact,delete", "delete; compaction", id="both"),
        pytest.param("cleanup.policy", "none", "delete", id="unknown policy"),
        pytest.param("message.timestamp.type", "now", "CreateTime, LogAppendTime", id="type"),
    ],
)
def test_topic_option_is_refused_wherever_it_is_given(key: str, value: str, accepted: str) -> None:
    for use in (
        lambda: write(key, value),
        lambda: parse_topic_options({key: value}),
        lambda: TopicConfig(**{key.replace(".", "_"): value}),
    ):
        with pytest.raises(ConfigError) as error:
            use()
        assert str(error.value).startswith(f"option {key!r} is {value!r}; accepted: {accepted}")


def test_an_option_that_is_no_topics_is_refused_there() -> None:
    with pytest.raises(
        ConfigError,
        match=r"unknown option 'batch\.size'; it is an option of a write; known options: max",
    ):
        parse_topic_options({"batch.size": 1})


# Values that are refused.


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("-1", id="below"),
        pytest.param(str((1 << 30) + 1), id="above"),
        pytest.param("", id="empty"),
        pytest.param("many", id="a word"),
        pytest.param("1.5", id="a fraction"),
        pytest.param("16q", id="an unknown unit"),
        pytest.param("1e6", id="an exponent"),
        pytest.param("1_000_000", id="an underscore"),
        pytest.param("0x1000000", id="hexadecimal"),
        pytest.param("\N{ARABIC-INDIC DIGIT THREE}", id="a digit of another script"),
        pytest.param("9" * 5000, id="more digits than any number has"),
    ],
)
def test_bad_number_is_refused(value: str) -> None:
    with pytest.raises(ConfigError) as error:
        write("batch.size", value)

    assert str(error.value) == (
        f"option 'batch.size' is {value!r}; accepted: a whole number from 0 to 1073741824"
    )


@pytest.mark.parametrize(
    ("parse", "key", "value", "accepted"),
    [
        pytest.param(write, "compression.type", "brotli", "none, gzip, snappy, lz4, zstd", id="codec"),
        pytest.param(write, "compression.type", "", "none, gzip, snappy, lz4, zstd", id="no codec"),
        pytest.param(write, "message.format.version", "0.7.2", "a version of Kafka, 0.8 or later", id="version before 0.8"),
        pytest.param(write, "message.format.version", "5.0", "a version of Kafka, 0.8 or later", id="version to come"),
        pytest.param(write, "message.format.version", "v1", "a version of Kafka, 0.8 or later", id="no version"),
        pytest.param(write, "flush", "yes", "true or false", id="flush"),
    ],
)  # fmt: skip
def test_refusal_names_the_option_what_came_and_what_is_accepted(
    parse: Any, key: str, value: str, accepted: str
) -> None:
    with pytest.raises(ConfigError) as error:
        parse(key, value)

    assert str(error.value).startswith(f"option {key!r} is {value!r}; accepted: {accepted}")


# Keys.


@pytest.mark.parametrize(
    ("parse", "key", "nearest"),
    [
        pytest.param(parse_write_options, "compresion.type", "compression.type", id="a typo"),
        pytest.param(parse_write_options, "kafka.compresion.type", "compression.type", id="with prefix"),
        pytest.param(parse_write_options, "batchSize", "batch.size", id="in another spelling"),
        pytest.param(parse_read_options, "startingOffset", "startingOffsets", id="one letter short"),
        pytest.param(parse_read_options, "subscribePatern", "subscribePattern", id="of a pattern"),
        pytest.param(parse_write_options, "retries", None, id="of a client without prefix"),
        pytest.param(parse_write_options, "kafka.topic", "topic", id="no key of Kafka"),
        pytest.param(parse_read_options, "kafka.subscribe", "subscribe", id="of Spark with prefix"),
        pytest.param(parse_write_options, "", None, id="empty"),
        pytest.param(parse_write_options, "kafka.", None, id="prefix only"),
        pytest.param(parse_write_options, "kafka.kafka.acks", None, id="prefix twice"),
    ],
)  # fmt: skip
def test_unknown_option_is_refused_with_the_nearest_known(
    parse: Any, key: str, nearest: str | None
) -> None:
    options = READ if parse is parse_read_options else WRITE
    known = READ_OPTIONS if parse is parse_read_options else WRITE_OPTIONS
    with pytest.raises(ConfigError) as error:
        parse(options | {key: "x"})

    hint = f"the nearest known one is {nearest!r}; " if nearest else ""
    assert str(error.value) == (
        f"unknown option {key!r}; {hint}known options: {', '.join(option.key for option in known)}"
    )


def test_several_paths_are_refused_with_what_load_takes() -> None:
    """As Spark passes on `load(["a", "b"])`."""
    with pytest.raises(ConfigError, match="load takes one path, and several are given"):
        parse_read_options({"subscribe": "t", "paths": '["/a","/b"]'})


@pytest.mark.parametrize(
    ("parse", "key", "meant"),
    [
        pytest.param(parse_read_options, "topic", "subscribe", id="topic-of-a-read"),
        pytest.param(parse_read_options, "Topics", "subscribe", id="topics-of-a-read"),
        pytest.param(parse_write_options, "topics", "topic", id="topics-of-a-write"),
        pytest.param(parse_write_options, "subscribe", "topic", id="subscribe-of-a-write"),
        pytest.param(parse_read_options, "bootstrap.servers", "path", id="servers"),
    ],
)
def test_an_option_with_another_name_here_is_refused_with_that(
    parse: Any, key: str, meant: str
) -> None:
    options = READ if parse is parse_read_options else WRITE
    with pytest.raises(ConfigError, match=f"unknown option '{key}'; use '{meant}' here"):
        parse(options | {key: "x"})


@pytest.mark.parametrize("key", ["kafka.compression.type", "KAFKA.Compression.TYPE"])
def test_key_of_kafka_may_have_a_prefix(key: str) -> None:
    assert write(key, "gzip").compression_type == "gzip"


def test_bad_value_of_a_prefixed_key_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"option 'compression\.type' is 'zip'; accepted: none"):
        write("kafka.compression.type", "zip")


@pytest.mark.parametrize("value", ["", "-1", "all"])
@pytest.mark.parametrize("key", [*sorted(IGNORED_KAFKA_KEYS)[::7], "sasl.mechanism", "ssl.x.y"])
def test_key_of_a_remote_broker_is_accepted_with_prefix_and_ignored(key: str, value: str) -> None:
    assert write(f"kafka.{key}", value) == parse_write_options(WRITE)
    assert read(f"Kafka.{key.upper()}", value) == parse_read_options(READ)


def test_keys_of_the_other_side_are_ignored_with_prefix_and_refused_without() -> None:
    """One set of options often goes to both the reader and the writer."""
    assert read("kafka.linger.ms", "x") == parse_read_options(READ)
    assert write("kafka.isolation.level", "x") == parse_write_options(WRITE)
    said = "it is an option of a {}, which is ignored here as 'kafka.{}'; known options: "
    with pytest.raises(ConfigError, match=said.format("write", "linger.ms")):
        read("linger.ms", "5")
    with pytest.raises(ConfigError, match=said.format("read", "isolation.level")):
        write("isolation.level", "read_committed")


@pytest.mark.parametrize(
    ("use", "key", "taker"),
    [
        pytest.param(read, "num.partitions", "a write", id="partitions-for-a-read"),
        pytest.param(read, "kafka.num.partitions", "a write", id="the-same-with-the-prefix"),
        pytest.param(read, "TXNAPPID", "a write", id="an-id-for-a-read"),
        pytest.param(write, "startingOffsets", "a read", id="offsets-for-a-write"),
        pytest.param(_settings, "num.partitions", "a write", id="partitions-as-a-setting"),
        pytest.param(_settings, "failOnDataLoss", "a read", id="loss-as-a-setting"),
        pytest.param(_producer, "retention.ms", "a write", id="retention-for-a-producer"),
        pytest.param(_server, "subscribe", "a read", id="topics-for-a-server"),
        pytest.param(_client, "replication.factor", "a write", id="replicas-for-a-client"),
    ],
)
def test_an_option_that_something_else_takes_is_refused_with_what_that_is(
    use: Any, key: str, taker: str
) -> None:
    with pytest.raises(ConfigError) as error:
        use(key, "1")

    said = str(error.value)
    assert said.startswith(f"unknown option {key!r}; it is an option of {taker}; ")
    assert ("`kbatch create-partitions`; known options: " in said) == ("num.partitions" in key)


def test_less_memory_than_a_task_needs_is_raised_with_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Kafka's producer takes any number. It is a warning: Spark's Python processes show no less."""
    assert write("kafka.buffer.memory", "16384").buffer_memory == 1024 * 1024

    (line,) = caplog.messages
    assert line == (
        "option 'buffer.memory' is raised from 16384 to 1048576 bytes, the least that a task needs"
    )


@pytest.mark.parametrize("key", FORBIDDEN_KAFKA_KEYS)
def test_key_that_would_change_the_result_is_forbidden_and_says_what_to_do(key: str) -> None:
    for parse, options in ((parse_write_options, WRITE), (parse_read_options, READ)):
        with pytest.raises(ConfigError) as error:
            parse(options | {f"kafka.{key}": "x"})

        assert (
            str(error.value)
            == f"option 'kafka.{key}' is not supported: {FORBIDDEN_KAFKA_KEYS[key]}"
        )


def test_no_key_is_both_known_and_ignored_or_forbidden() -> None:
    known = {option.key.lower() for option in (*READ_OPTIONS, *WRITE_OPTIONS)}

    assert not known & (IGNORED_KAFKA_KEYS | FORBIDDEN_KAFKA_KEYS.keys())
    assert not IGNORED_KAFKA_KEYS & FORBIDDEN_KAFKA_KEYS.keys()


# The cluster's path.


@pytest.mark.parametrize(
    "servers",
    ["/data", "./data", "../data", "file:/data", "file:///data", " /data ", "s3://bucket/data"],
    ids=["absolute", "relative", "parent", "file", "file with slashes", "in blanks", "bucket"],
)
def test_bootstrap_servers_stand_for_the_path(servers: str) -> None:
    for parse, rest in ((parse_write_options, {}), (parse_read_options, {"subscribe": "events"})):
        assert parse({"kafka.bootstrap.servers": servers, **rest}).path == servers.strip()


def test_path_goes_before_bootstrap_servers() -> None:
    assert parse_write_options({"path": "/a", "kafka.bootstrap.servers": "/b"}).path == "/a"
    assert parse_write_options({"path": "/a", "kafka.bootstrap.servers": "host:9092"}).path == "/a"


@pytest.mark.parametrize(
    "servers",
    ["host", "a:9092,b", "data", "~/data", "hdfs://bucket/data"],
    ids=["no port", "no second port", "a word", "a home", "no bucket"],
)
def test_bootstrap_servers_that_are_neither_a_folder_nor_brokers_are_refused(servers: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_write_options({"kafka.bootstrap.servers": servers})

    assert f"option 'kafka.bootstrap.servers' is {servers!r}" in str(error.value)
    assert "starts with '/', './' or 'file:'" in str(error.value)


@pytest.mark.parametrize(
    "options",
    [{}, {"path": ""}, {"kafka.bootstrap.servers": ""}, {"kafka.bootstrap.servers": " "}],
    ids=["none", "empty path", "empty servers", "blank servers"],
)
def test_a_path_is_needed(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"no path is given: name the cluster's folder in save"):
        parse_write_options(options)


# Topic names.

BAD_TOPICS = [
    pytest.param("", "is empty", id="empty"),
    pytest.param(".", "is a directory's name", id="this folder"),
    pytest.param("..", "is a directory's name", id="parent folder"),
    pytest.param("a" * 250, "has 250 characters", id="too long"),
    pytest.param("../x", "has a character that is not accepted", id="path to the parent"),
    pytest.param("a/b", "has a character that is not accepted", id="slash"),
    pytest.param("a\\b", "has a character that is not accepted", id="backslash"),
    pytest.param("a b", "has a character that is not accepted", id="blank"),
    pytest.param("a\n", "has a character that is not accepted", id="line end"),
    pytest.param("a\0", "has a character that is not accepted", id="null byte"),
    pytest.param("höhe", "has a character that is not accepted", id="umlaut"),
    pytest.param("a:b", "has a character that is not accepted", id="colon"),
    pytest.param("a,b", "has a character that is not accepted", id="comma"),
]


@pytest.mark.parametrize(("name", "reason"), BAD_TOPICS)
def test_topic_name_that_kafka_refuses_is_refused(name: str, reason: str) -> None:
    with pytest.raises(InvalidTopicError) as error:
        ensure_valid_topic(name)

    assert (error.value.topic, error.value.reason) == (name, reason)
    assert str(error.value).startswith(f"topic name {name!r} {reason}; a topic name has 1 to 249")


@pytest.mark.parametrize(
    "name",
    ["a", "a" * 249, "A-z_0.9", "...", "-", "__internal", "events.v1"],
    ids=["one", "longest", "every kind", "three dots", "a dash", "underscores", "a dot"],
)
def test_topic_name_that_kafka_accepts_is_accepted(name: str) -> None:
    assert ensure_valid_topic(name) == name


@pytest.mark.parametrize(
    ("parse", "key", "value"),
    [
        pytest.param(write, "topic", "../x", id="topic"),
        pytest.param(read, "subscribe", "events,../x", id="subscribe"),
        pytest.param(read, "assign", '{"../x":[0]}', id="assign"),
        pytest.param(read, "assign", '{"../x":[]}', id="assign of nothing"),
        pytest.param(read, "startingOffsets", '{"../x":{"0":1}}', id="startingOffsets"),
    ],
)
def test_every_option_with_a_topic_checks_its_name(parse: Any, key: str, value: str) -> None:
    with pytest.raises(InvalidTopicError, match=r"topic name '\.\./x' has a character"):
        parse(key, value)


# The tables in docs/options.md.


@pytest.mark.parametrize("known", [WRITE_OPTIONS, READ_OPTIONS], ids=["write", "read"])
def test_the_table_has_one_row_for_each_option(known: tuple[Option, ...]) -> None:
    lines = options_markdown(known).splitlines()

    assert lines[0] == "| option | accepted | default | meaning |"
    assert [line.split("`")[1] for line in lines[2:]] == [option.key for option in known]
    assert all(line.replace(r"\|", "").count("|") == 5 for line in lines)


def test_a_name_of_a_writer_that_utf8_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'txnAppId'.*lone surrogates"):
        parse_write_options({"path": "/logs", "txnAppId": "caf\udce9", "txnVersion": "1"})
