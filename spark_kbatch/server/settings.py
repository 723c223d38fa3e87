"""The settings of topics and of the server, as Kafka's admin clients see them.

A topic has the settings of `CONFIG_OPTIONS`, which can be changed, and some of Kafka's that have only one
value here: those are shown, and accepted with that value only. All others are refused, and so is another
spelling of a setting, because Kafka knows only one.

The server's settings are shown under the names of a broker's, and cannot be changed while it runs.

Source: Kafka storage/internals/log/LogConfig.java, server/.../config/ServerTopicConfigSynonyms.java,
core/.../server/ConfigHelper.scala; KIP-133, KIP-226, KIP-569.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from spark_kbatch.errors import ConfigError
from spark_kbatch.model import INT_MAX
from spark_kbatch.options.kinds import refuse
from spark_kbatch.options.option import Option, refuse_unknown
from spark_kbatch.options.server import SERVER_OPTIONS, ServerConfig
from spark_kbatch.options.topic import (
    CONFIG_OPTIONS,
    TopicConfig,
    parse_topic_options,
    topic_field,
)


class ConfigType(IntEnum):
    """The type of a setting's value; the numbers are Kafka's."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    LIST = 7


class ConfigSource(IntEnum):
    """Origins of a setting's value; the numbers are Kafka's."""

    DYNAMIC_TOPIC_CONFIG = 1
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5


class Setting(NamedTuple):
    """A setting of a topic or of the server, as DescribeConfigs shows it."""

    name: str
    value: str
    type: ConfigType
    source: ConfigSource
    default: str | None  # None if it has none
    documentation: str
    is_read_only: bool

    @property
    def synonyms(self) -> list[tuple[str, str, ConfigSource]]:
        """Where its value may come from, the first that has one first: names, values and origins.

        A topic's default is a setting of the broker, which may have another name.
        """
        default = ConfigSource.DEFAULT_CONFIG
        own = [] if self.source is default else [(self.name, self.value, self.source)]
        if self.default is None:
            return own
        return [*own, (_NAMES_OF_BROKERS.get(self.name, self.name), self.default, default)]


class Changes(NamedTuple):
    """Changes of a topic's settings by key; None resets one to its default."""

    changes: Mapping[str, str | None]
    fixed: Mapping[str, str | None]  # of settings that have a single possible value here


class _Fixed(NamedTuple):
    """One of Kafka's settings that has a single possible value here."""

    value: str
    type: ConfigType
    documentation: str


_FIXED_OF_TOPICS = {
    "preallocate": _Fixed("false", ConfigType.BOOLEAN, "Segment files grow as they are written."),
    "remote.storage.enable": _Fixed("false", ConfigType.BOOLEAN, "All of a log is in its log dir."),
    "unclean.leader.election.enable": _Fixed("false", ConfigType.BOOLEAN, "A replica that lacks records is never elected."),
}  # fmt: skip

_FIXED_OF_BROKERS = {
    "log.preallocate": _FIXED_OF_TOPICS["preallocate"],
    "remote.log.storage.system.enable": _FIXED_OF_TOPICS["remote.storage.enable"],
    "unclean.leader.election.enable": _FIXED_OF_TOPICS["unclean.leader.election.enable"],
    "delete.topic.enable": _Fixed("true", ConfigType.BOOLEAN, "Topics can be deleted."),
    "offsets.topic.num.partitions": _Fixed("1", ConfigType.INT, "Partitions of `__consumer_offsets`."),
}  # fmt: skip

# Names of topics' defaults among a broker's settings.
_OF_NEW_TOPICS = {
    "compression.type": "compression.type",
    "log.cleanup.policy": "cleanup.policy",
    "log.index.interval.bytes": "index.interval.bytes",
    "log.index.size.max.bytes": "segment.index.bytes",
    "log.message.timestamp.after.max.ms": "message.timestamp.after.max.ms",
    "log.message.timestamp.before.max.ms": "message.timestamp.before.max.ms",
    "log.message.timestamp.type": "message.timestamp.type",
    "log.retention.bytes": "retention.bytes",
    "log.retention.ms": "retention.ms",
    "log.roll.ms": "segment.ms",
    "log.segment.bytes": "segment.bytes",
    "log.segment.delete.delay.ms": "file.delete.delay.ms",
    "message.max.bytes": "max.message.bytes",
    "min.insync.replicas": "min.insync.replicas",
}

_NAMES_OF_BROKERS = {key: name for name, key in _OF_NEW_TOPICS.items()} | {
    "preallocate": "log.preallocate"
}

_LISTS = frozenset(
    {"cleanup.policy", "log.dirs", "listeners", "advertised.listeners", "process.roles"}
)
_LONGS = frozenset(
    {
        "file.delete.delay.ms", "message.timestamp.after.max.ms", "message.timestamp.before.max.ms",
        "retention.bytes", "retention.ms", "segment.ms",
        "connections.max.idle.ms", "queued.max.request.bytes", "slow.request.log.ms",
    }
)  # fmt: skip
_OPTIONS = {option.key: option for option in CONFIG_OPTIONS}


def topic_settings(config: TopicConfig, given: Collection[str]) -> list[Setting]:
    """Return the settings of a topic; the keys in `given` were given, if only with the default's value."""
    of_topic = ConfigSource.DYNAMIC_TOPIC_CONFIG
    found = _given(config, CONFIG_OPTIONS, of_topic)
    return sorted(
        one._replace(source=of_topic) if one.name in given else one
        for one in [*found, *_fixed(_FIXED_OF_TOPICS)]
    )


def server_settings(
    config: ServerConfig, *, log_dirs: Iterable[str], listener: str, advertised: str
) -> list[Setting]:
    """Return the settings of the server, under the names of a broker's.

    Args:
        config: its options.
        log_dirs: the cluster's log dirs.
        listener: HOST:PORT at which it listens.
        advertised: HOST:PORT at which clients reach it.
    """
    static = ConfigSource.STATIC_BROKER_CONFIG
    found = _given(config, SERVER_OPTIONS, static)
    for name, key in _OF_NEW_TOPICS.items():
        option = _OPTIONS[key]
        found.append(_setting(name, option.default, option.default, option.text, static))
    for name, value, text in (
        ("broker.id", 1, "The one node."),
        ("node.id", 1, "The one node."),
        ("process.roles", "broker,controller", "The one node is the controller, too."),
        ("log.dirs", ",".join(log_dirs), "Folders of the logs."),
        ("listeners", f"PLAINTEXT://{listener}", "Address of the server."),
        ("advertised.listeners", f"PLAINTEXT://{advertised}", "Address that clients connect to."),
    ):  # fmt: skip
        found.append(_setting(name, value, None, text, static))
    found += _fixed(_FIXED_OF_BROKERS)
    return sorted(one._replace(is_read_only=True) for one in found)


def parse_new(given: Iterable[tuple[str, str]]) -> tuple[TopicConfig, frozenset[str]]:
    """Parse the settings that a CreateTopics request gives a new topic; return them, and their keys.

    Raises:
        ConfigError: an unknown key, a key that is given twice, or a value that is not accepted.
    """
    changes, fixed = changes_of(given)
    return TopicConfig(**parse_topic_options(changes)), frozenset({*changes, *fixed})


def changes_of(given: Iterable[tuple[str, str | None]]) -> Changes:
    """Check a topic's settings from a client; return them by key.

    None resets a setting. An unknown one has nothing to reset, and is left out, as in Kafka.

    Raises:
        ConfigError: an unknown key, a key that is given twice, or a value other than the only possible one.
    """
    changes: dict[str, str | None] = {}
    of_one_value: dict[str, str | None] = {}
    seen = set()
    for key, value in given:
        if key in seen:
            raise ConfigError(f"option {key!r} is given twice; give it once")
        seen.add(key)
        if key in _FIXED_OF_TOPICS:
            fixed = _FIXED_OF_TOPICS[key].value
            if value not in (None, fixed):
                refuse(key, str(value), f"{fixed}, its one value here")
            of_one_value[key] = value
        elif key in _OPTIONS:
            changes[key] = value
        elif value is not None:
            refuse_unknown(key, [*_OPTIONS, *_FIXED_OF_TOPICS])
    return Changes(changes, of_one_value)


def all_of(given: Iterable[tuple[str, str | None]]) -> Changes:
    """Return all settings that a topic can have by key: those given, and None for all others.

    Raises:
        ConfigError: as `changes_of`.
    """
    changes, fixed = changes_of(given)
    return Changes(
        {**dict.fromkeys(_OPTIONS), **changes}, {**dict.fromkeys(_FIXED_OF_TOPICS), **fixed}
    )


def is_list(key: str) -> bool:
    """Return True if a topic's setting is a list, to which values can be appended."""
    return key in _LISTS


def _given(
    config: TopicConfig | ServerConfig, options: Iterable[Option], source: ConfigSource
) -> list[Setting]:
    return [
        _setting(one.key, getattr(config, topic_field(one.key)), one.default, one.text, source)
        for one in options
    ]


def _fixed(settings: Mapping[str, _Fixed]) -> list[Setting]:
    return [
        Setting(name, one.value, one.type, ConfigSource.DEFAULT_CONFIG, one.value, one.documentation, True)
        for name, one in settings.items()
    ]  # fmt: skip


def _setting(name: str, value: Any, default: Any, text: str, source: ConfigSource) -> Setting:
    """Return a setting; `source` is the origin of its value if that is not the default."""
    is_default = value == default
    return Setting(
        name,
        _shown(value),
        _type_of(name, value),
        ConfigSource.DEFAULT_CONFIG if is_default else source,
        None if default is None else _shown(default),
        text,
        is_read_only=False,
    )


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _type_of(name: str, value: Any) -> ConfigType:
    key = _OF_NEW_TOPICS.get(name, name)
    if isinstance(value, bool):
        return ConfigType.BOOLEAN
    if isinstance(value, int):
        return ConfigType.LONG if key in _LONGS or value > INT_MAX else ConfigType.INT
    return ConfigType.LIST if key in _LISTS else ConfigType.STRING
