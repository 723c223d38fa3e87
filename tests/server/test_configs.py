"""Admin clients see the settings of topics and of the server, and change those of topics."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from spark_kbatch import Cluster
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.options.server import SERVER_OPTIONS, ServerConfig
from spark_kbatch.options.topic import CONFIG_OPTIONS, TopicConfig
from spark_kbatch.server import configs
from spark_kbatch.server.configs import ConfigsHandler, ResourceType
from spark_kbatch.server.metadata import NewTopics
from spark_kbatch.server.outcomes import Outcomes
from spark_kbatch.server.settings import ConfigSource, ConfigType, server_settings
from spark_kbatch.server.topics import TopicsHandler
from spark_kbatch.wire import protocol
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import ApiKey
from tests.support import builders
from tests.support.asking import ask
from tests.support.store import store_of

OK = ErrorCode.NONE
RESOURCE = protocol.DescribeConfigsRequest.DescribeConfigsResource
CHANGED = protocol.IncrementalAlterConfigsRequest.AlterConfigsResource
SET, DELETE, APPEND, SUBTRACT = range(4)
CONFIG = ServerConfig(num_partitions=4, flush=True)


@pytest.fixture(scope="module")
def one_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with builders.a_cluster(tmp_path_factory.mktemp("configs"), topics={"events": 1}) as cluster:
        yield cluster


@pytest.fixture
def cluster(one_cluster: Cluster) -> Cluster:
    settings = dict.fromkeys(option.key for option in CONFIG_OPTIONS)
    one_cluster.alter_topic("events", {**settings, "retention.ms": 1000})
    return one_cluster


@pytest.fixture
def handler(cluster: Cluster) -> ConfigsHandler:
    def of_the_server(_: Any) -> Any:
        return server_settings(
            CONFIG, log_dirs=["/a", "/b"], listener="0.0.0.0:9092", advertised="127.0.0.1:9092"
        )

    return ConfigsHandler(store_of(cluster), of_the_server, Outcomes())


def describe(
    handler: ConfigsHandler,
    kind: int,
    name: str,
    *,
    version: int = 4,
    keys: list[str] | None = None,
    synonyms: bool = False,
    documentation: bool = False,
) -> Any:
    (result,) = ask(
        handler.describe_configs,
        ApiKey.DESCRIBE_CONFIGS,
        version,
        resources=[RESOURCE(resource_type=kind, resource_name=name, configuration_keys=keys)],
        include_synonyms=synonyms,
        **({"include_documentation": documentation} if version >= 3 else {}),
    ).results
    return result


def by_name(result: Any) -> dict[str, Any]:
    assert result.error_code == OK, result.error_message
    return {one.name: one for one in result.configs}


def alter(
    handler: ConfigsHandler,
    *changes: tuple[str, int, str | None],
    name: str = "events",
    kind: int = ResourceType.TOPIC,
    version: int = 1,
    validate_only: bool = False,
) -> Any:
    asked = [
        CHANGED.AlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    ]
    (result,) = ask(
        handler.incremental_alter_configs,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        version,
        resources=[CHANGED(resource_type=kind, resource_name=name, configs=asked)],
        validate_only=validate_only,
    ).responses
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def test_a_resource_that_is_named_often_is_described_once(handler: ConfigsHandler) -> None:
    named = RESOURCE(
        resource_type=ResourceType.TOPIC, resource_name="events", configuration_keys=None
    )
    answer = ask(handler.describe_configs, ApiKey.DESCRIBE_CONFIGS, resources=[named] * 1000)

    assert [one.resource_name for one in answer.results] == ["events"]


@pytest.mark.parametrize("version", range(1, 5))
def test_all_settings_of_a_topic_are_shown(handler: ConfigsHandler, version: int) -> None:
    found = by_name(describe(handler, ResourceType.TOPIC, "events", version=version))

    assert {option.key for option in CONFIG_OPTIONS} < found.keys()
    retention, size = found["retention.ms"], found["segment.bytes"]
    assert (retention.value, size.value) == ("1000", str(1 << 30))
    assert retention.config_source == ConfigSource.DYNAMIC_TOPIC_CONFIG
    assert size.config_source == ConfigSource.DEFAULT_CONFIG
    assert (retention.read_only, retention.is_sensitive, retention.synonyms) == (False, False, [])
    if version >= 3:
        types = {name: one.config_type for name, one in found.items()}
        assert types["retention.ms"] == types["segment.ms"] == ConfigType.LONG
        assert types["segment.bytes"] == types["min.insync.replicas"] == ConfigType.INT
        assert types["cleanup.policy"] == ConfigType.LIST
        assert types["preallocate"] == ConfigType.BOOLEAN
        assert types["compression.type"] == ConfigType.STRING


def test_every_requested_key_is_answered_with_its_documentation(
    handler: ConfigsHandler,
) -> None:
    keys = ["retention.ms", "cleanup.policy", "no.such.key"]

    found = by_name(describe(handler, ResourceType.TOPIC, "events", keys=keys, documentation=True))

    assert found.keys() == {"retention.ms", "cleanup.policy"}
    texts = {option.key: option.text for option in CONFIG_OPTIONS}
    assert {name: one.documentation for name, one in found.items()} == {
        name: texts[name] for name in found
    }


def test_no_requested_key_stands_for_all(handler: ConfigsHandler) -> None:
    none_asked = by_name(describe(handler, ResourceType.TOPIC, "events", keys=[]))

    assert none_asked.keys() == by_name(describe(handler, ResourceType.TOPIC, "events")).keys()


def test_documentation_is_left_out_unless_it_is_requested(handler: ConfigsHandler) -> None:
    found = by_name(describe(handler, ResourceType.TOPIC, "events"))

    assert {one.documentation for one in found.values()} == {None}


def test_synonyms_are_the_topics_value_and_the_default(handler: ConfigsHandler) -> None:
    found = by_name(describe(handler, ResourceType.TOPIC, "events", synonyms=True))

    default = ConfigSource.DEFAULT_CONFIG
    assert synonyms(found["retention.ms"]) == [
        ("retention.ms", "1000", ConfigSource.DYNAMIC_TOPIC_CONFIG),
        ("log.retention.ms", "-1", default),
    ]
    assert synonyms(found["index.interval.bytes"]) == [
        ("log.index.interval.bytes", "4096", default)
    ]
    assert synonyms(found["preallocate"]) == [("log.preallocate", "false", default)]
    assert synonyms(found["compression.type"]) == [("compression.type", "producer", default)]


def synonyms(setting: Any) -> list[tuple[str, str, int]]:
    return [(one.name, one.value, one.source) for one in setting.synonyms]


def test_synonyms_of_the_nodes_settings_are_its_value_and_a_default_if_there_is_one(
    handler: ConfigsHandler,
) -> None:
    found = by_name(describe(handler, ResourceType.BROKER, "1", synonyms=True))

    static, default = ConfigSource.STATIC_BROKER_CONFIG, ConfigSource.DEFAULT_CONFIG
    assert synonyms(found["log.dirs"]) == [("log.dirs", "/a,/b", static)]
    assert synonyms(found["num.partitions"]) == [
        ("num.partitions", "4", static), ("num.partitions", "1", default)
    ]  # fmt: skip
    assert synonyms(found["max.connections"]) == [("max.connections", "2000", default)]
    assert {"preallocate", "remote.storage.enable"}.isdisjoint(found)  # names of topics' settings


EXPLICIT = {
    "retention.ms": "-1", "cleanup.policy": "delete", "unclean.leader.election.enable": "false",
}  # fmt: skip


def sources(handler: ConfigsHandler, name: str = "events") -> dict[str, int]:
    found = by_name(describe(handler, ResourceType.TOPIC, name, synonyms=True))
    for one in found.values():  # the synonyms say the same
        is_its_own = one.config_source == ConfigSource.DYNAMIC_TOPIC_CONFIG
        assert (one.synonyms[0].source == ConfigSource.DYNAMIC_TOPIC_CONFIG) == is_its_own
    return {key: found[key].config_source for key in EXPLICIT}


def test_a_setting_that_is_given_with_the_defaults_value_is_the_topics_own(
    cluster: Cluster, handler: ConfigsHandler
) -> None:
    alter(handler, *((key, DELETE, None) for key in EXPLICIT))
    assert set(sources(handler).values()) == {ConfigSource.DEFAULT_CONFIG}

    alter(handler, *((key, SET, value) for key, value in EXPLICIT.items()))
    assert set(sources(handler).values()) == {ConfigSource.DYNAMIC_TOPIC_CONFIG}
    with Cluster(str(cluster.path)) as again:  # it is stored
        assert again.topic("events").given >= EXPLICIT.keys()

    alter(handler, *((key, DELETE, None) for key in EXPLICIT))
    assert set(sources(handler).values()) == {ConfigSource.DEFAULT_CONFIG}
    replace(handler, 2, **{key.replace(".", "_"): value for key, value in EXPLICIT.items()})
    assert set(sources(handler).values()) == {ConfigSource.DYNAMIC_TOPIC_CONFIG}
    replace(handler, 2)
    assert set(sources(handler).values()) == {ConfigSource.DEFAULT_CONFIG}


def test_settings_given_to_a_new_topic_are_its_own(
    cluster: Cluster, handler: ConfigsHandler
) -> None:
    topic = protocol.CreateTopicsRequest.CreatableTopic
    configs = [topic.CreatableTopicConfig(name=key, value=value) for key, value in EXPLICIT.items()]
    asked = topic(
        name="new", num_partitions=1, replication_factor=1, assignments=[], configs=configs
    )
    topics = TopicsHandler(store_of(cluster), NewTopics(True, 1, 1), Outcomes())
    (created,) = ask(
        topics.create_topics, ApiKey.CREATE_TOPICS, topics=[asked], timeout_ms=1000,
        validate_only=False,
    ).topics  # fmt: skip
    shown = {one.name: one.config_source for one in created.configs}
    cluster.create_topic("in-python", config={"retention.ms": -1})

    own = ConfigSource.DYNAMIC_TOPIC_CONFIG
    assert {shown[key] for key in EXPLICIT} == set(sources(handler, "new").values()) == {own}
    assert sources(handler, "in-python")["retention.ms"] == own
    for name in ("new", "in-python"):
        cluster.delete_topic(name)


def test_the_node_shows_the_settings_of_the_server(handler: ConfigsHandler) -> None:
    found = by_name(describe(handler, ResourceType.BROKER, "1", documentation=True))

    values = {name: one.value for name, one in found.items()}
    expected = {
        "node.id": "1", "num.partitions": "4", "flush": "true", "auto.create.topics.enable": "true",
        "log.dirs": "/a,/b", "listeners": "PLAINTEXT://0.0.0.0:9092", "log.retention.ms": "-1",
        "advertised.listeners": "PLAINTEXT://127.0.0.1:9092", "process.roles": "broker,controller",
        "log.preallocate": "false", "remote.log.storage.system.enable": "false",
        "log.cleanup.policy": "delete", "message.max.bytes": "1048588", "compression.type": "producer",
        "group.initial.rebalance.delay.ms": "100", "offsets.topic.num.partitions": "1",
    }  # fmt: skip
    assert values | expected == values
    assert {option.key for option in SERVER_OPTIONS} < values.keys()
    assert all(one.read_only for one in found.values())
    assert found["num.partitions"].config_source == ConfigSource.STATIC_BROKER_CONFIG
    assert found["max.connections"].config_source == ConfigSource.DEFAULT_CONFIG
    assert found["max.connections"].documentation
    assert found["log.retention.ms"].config_type == ConfigType.LONG
    assert found["log.dirs"].config_type == found["process.roles"].config_type == ConfigType.LIST


def test_there_are_no_settings_common_to_all_nodes(handler: ConfigsHandler) -> None:
    assert by_name(describe(handler, ResourceType.BROKER, "")) == {}


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        pytest.param(ResourceType.TOPIC, "none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, id="no such topic"),
        pytest.param(ResourceType.TOPIC, "a b", ErrorCode.INVALID_TOPIC_EXCEPTION, id="a bad name"),
        pytest.param(ResourceType.BROKER, "2", ErrorCode.INVALID_REQUEST, id="another node"),
        pytest.param(ResourceType.BROKER, "x", ErrorCode.INVALID_REQUEST, id="no node"),
        pytest.param(8, "1", ErrorCode.INVALID_REQUEST, id="loggers"),
    ],
)  # fmt: skip
def test_settings_of_unknown_resources_are_refused(
    handler: ConfigsHandler, kind: int, name: str, code: int
) -> None:
    described = describe(handler, kind, name)
    altered = alter(handler, ("retention.ms", SET, "5"), kind=kind, name=name)

    assert (described.error_code, described.configs) == (code, [])
    assert altered.error_code == code
    assert (described.resource_type, described.resource_name) == (kind, name)


@pytest.mark.parametrize("version", [0, 1])
def test_settings_are_set_and_reset(
    cluster: Cluster, handler: ConfigsHandler, version: int
) -> None:
    changes = (("retention.ms", DELETE, None), ("segment.bytes", SET, "2097152"))

    result = alter(handler, *changes, version=version)

    assert result.error_code == OK
    assert cluster.topic("events").config == TopicConfig(segment_bytes=2 << 20)


def test_validation_changes_nothing(cluster: Cluster, handler: ConfigsHandler) -> None:
    fine = alter(handler, ("retention.ms", SET, "5"), validate_only=True)
    bad = alter(handler, ("retention.ms", SET, "soon"), validate_only=True)

    assert (fine.error_code, bad.error_code) == (OK, ErrorCode.INVALID_CONFIG)
    assert cluster.topic("events").config == TopicConfig(retention_ms=1000)


@pytest.mark.parametrize(
    ("key", "operation", "value", "code"),
    [
        pytest.param("retention.ms", APPEND, "5", ErrorCode.INVALID_CONFIG, id="append to no list"),
        pytest.param("retention.ms", SUBTRACT, "5", ErrorCode.INVALID_CONFIG, id="subtract from no list"),
        pytest.param("cleanup.policy", APPEND, "compact", ErrorCode.INVALID_CONFIG, id="append compact"),
        pytest.param("cleanup.policy", SUBTRACT, "delete", ErrorCode.INVALID_CONFIG, id="subtract all"),
        pytest.param("cleanup.policy", SET, "compact", ErrorCode.INVALID_CONFIG, id="compact"),
        pytest.param("retention.ms", SET, None, ErrorCode.INVALID_REQUEST, id="no value"),
        pytest.param("retention.ms", 4, "5", ErrorCode.INVALID_REQUEST, id="unknown operation"),
        pytest.param("no.such.key", SET, "5", ErrorCode.INVALID_CONFIG, id="unknown setting"),
        pytest.param("n" * 30_000, SET, "5", ErrorCode.INVALID_CONFIG, id="a long setting"),
        pytest.param("retention.ms", SET, "5" * 30_000, ErrorCode.INVALID_CONFIG, id="a long value"),
        pytest.param("preallocate", SET, "true", ErrorCode.INVALID_CONFIG, id="another value than the one"),
        pytest.param("message.format.version", SET, "0.10.0", ErrorCode.INVALID_CONFIG, id="another format"),
    ],
)  # fmt: skip
def test_an_invalid_change_is_refused_with_all_others_of_its_topic(
    cluster: Cluster,
    handler: ConfigsHandler,
    key: str,
    operation: int,
    value: str | None,
    code: int,
) -> None:
    result = alter(handler, ("segment.bytes", SET, "2097152"), (key, operation, value))

    assert result.error_code == code
    assert 0 < len(result.error_message) < 1100
    assert cluster.topic("events").config == TopicConfig(retention_ms=1000)


@pytest.mark.parametrize(
    ("key", "operation", "value"),
    [
        pytest.param("cleanup.policy", APPEND, "delete", id="append what is there"),
        pytest.param("cleanup.policy", SUBTRACT, "compact", id="subtract what is not there"),
        pytest.param("preallocate", SET, "false", id="the one value"),
        pytest.param("unclean.leader.election.enable", DELETE, None, id="reset to the one value"),
        pytest.param("no.such.key", DELETE, None, id="reset of an unknown setting"),
    ],
)
def test_a_change_without_effect_is_accepted(
    cluster: Cluster, handler: ConfigsHandler, key: str, operation: int, value: str | None
) -> None:
    assert alter(handler, (key, operation, value)).error_code == OK
    assert cluster.topic("events").config == TopicConfig(retention_ms=1000)


def test_a_key_named_twice_is_refused(cluster: Cluster, handler: ConfigsHandler) -> None:
    result = alter(handler, ("retention.ms", SET, "5"), ("retention.ms", DELETE, None))

    assert result.error_code == ErrorCode.INVALID_CONFIG
    assert cluster.topic("events").config.retention_ms == 1000


def test_internal_topics_and_the_server_cannot_be_changed(handler: ConfigsHandler) -> None:
    own = alter(handler, ("retention.ms", SET, "5"), name="__commits")
    server = alter(handler, ("num.partitions", SET, "5"), kind=ResourceType.BROKER, name="1")

    assert own.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert server.error_code == ErrorCode.INVALID_REQUEST
    assert "when it is started" in server.error_message


def test_a_resource_named_twice_is_not_changed(cluster: Cluster, handler: ConfigsHandler) -> None:
    change = CHANGED.AlterableConfig(name="retention.ms", config_operation=SET, value="5")
    resource = CHANGED(resource_type=ResourceType.TOPIC, resource_name="events", configs=[change])

    (result,) = ask(
        handler.incremental_alter_configs,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        resources=[resource, resource],
        validate_only=False,
    ).responses

    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert cluster.topic("events").config.retention_ms == 1000


def replace(handler: ConfigsHandler, version: int, **given: str | None) -> Any:
    """Send an AlterConfigs."""
    replaced = protocol.AlterConfigsRequest.AlterConfigsResource
    configs = [
        replaced.AlterableConfig(name=key.replace("_", "."), value=value)
        for key, value in given.items()
    ]
    (result,) = ask(
        handler.alter_configs,
        ApiKey.ALTER_CONFIGS,
        version,
        resources=[
            replaced(resource_type=ResourceType.TOPIC, resource_name="events", configs=configs)
        ],
        validate_only=False,
    ).responses
    return result


@pytest.mark.parametrize("version", range(3))
def test_the_older_request_gives_defaults_to_what_it_leaves_out(
    cluster: Cluster, handler: ConfigsHandler, version: int
) -> None:
    result = replace(handler, version, segment_bytes="1048576", cleanup_policy="delete")

    assert result.error_code == OK, result.error_message
    assert cluster.topic("events").config == TopicConfig(segment_bytes=1_048_576)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        pytest.param({"retention_ms": None}, ErrorCode.INVALID_REQUEST, id="no-value"),
        pytest.param({"retention_mss": "1"}, ErrorCode.INVALID_CONFIG, id="unknown"),
        pytest.param({"retention_ms": "soon"}, ErrorCode.INVALID_CONFIG, id="no-number"),
        pytest.param({"cleanup_policy": "compact"}, ErrorCode.INVALID_CONFIG, id="refused"),
    ],
)
def test_the_older_request_changes_nothing_if_a_setting_is_wrong(
    cluster: Cluster, handler: ConfigsHandler, given: dict[str, str | None], error: ErrorCode
) -> None:
    result = replace(handler, 2, segment_bytes="1048576", **given)

    assert result.error_code == error
    assert cluster.topic("events").config == TopicConfig(retention_ms=1000)


def test_a_change_waits_for_a_commit_for_a_limited_time(
    cluster: Cluster, handler: ConfigsHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configs, "_TIMEOUT_S", 0.01)

    with FolderParts(cluster.path).manager.locks.commit():
        result = alter(handler, ("retention.ms", SET, "5"))

    assert result.error_code == ErrorCode.REQUEST_TIMED_OUT


def test_versions_are_those_that_are_offered() -> None:
    assert protocol.SUPPORTED[ApiKey.DESCRIBE_CONFIGS] == (1, 4)
    assert protocol.SUPPORTED[ApiKey.ALTER_CONFIGS] == (0, 2)
    assert protocol.SUPPORTED[ApiKey.INCREMENTAL_ALTER_CONFIGS] == (0, 1)


def test_serve_has_the_defaults_of_the_options() -> None:
    """They stand in its signature too, because processes that only plan do not load these options."""
    parameters = inspect.signature(Cluster.serve).parameters
    config = ServerConfig()

    assert {
        "auto_create": config.auto_create_topics_enable,
        "num_partitions": config.num_partitions,
        "replication_factor": config.default_replication_factor,
        "flush": config.flush,
    }.items() <= {name: one.default for name, one in parameters.items()}.items()
