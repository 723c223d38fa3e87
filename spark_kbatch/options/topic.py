"""Topics, their names and their settings.

Source: Kafka storage/internals/log/LogConfig.java, clients/.../common/internals/Topic.java.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from numbers import Integral
from typing import Any

from spark_kbatch.errors import ConfigError, InvalidTimestampError, InvalidTopicError
from spark_kbatch.model import INT_MAX, LONG_MAX
from spark_kbatch.options import arguments
from spark_kbatch.options.option import (
    GiB,
    Given,
    MiB,
    Option,
    parse_number,
    parse_options,
    refuse,
)

INTERNAL_PREFIX = "__"
CREATE_TIME, LOG_APPEND_TIME = "CreateTime", "LogAppendTime"
NO_LIMIT = -1  # of retention.ms and retention.bytes
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_TOPIC_NAME_LENGTH_MAX = 249
_VERSION = re.compile(r"(\d)\.(\d{1,2})(\.\d{1,2}){0,2}(-IV\d)?")
_VERSIONS = "a version of Kafka from 0.8 on, such as 0.9.0, 0.10.2 or 3.0"


def ensure_valid_topic(name: str) -> str:
    """The name, if Kafka would accept it.

    Raises:
        InvalidTopicError: says which rule it breaks.
    Source: Topic.validate.
    """
    if not arguments.text("topic name", name):
        raise InvalidTopicError(name, "is empty")
    if name in (".", ".."):
        raise InvalidTopicError(name, "is a directory's name")
    if len(name) > _TOPIC_NAME_LENGTH_MAX:
        raise InvalidTopicError(name, f"has {len(name)} characters")
    if not _TOPIC_NAME.fullmatch(name):
        raise InvalidTopicError(name, "has a character that is not accepted")
    return name


@functools.cache
def message_magic(version: str) -> int:
    """The record format, 0 to 2, that Kafka's brokers of a version wrote.

    Raises:
        ConfigError: no such version.
    Source: MetadataVersion.fromVersionString, highestSupportedRecordVersion.
    """
    found = _VERSION.fullmatch(version.strip())
    major, minor = (int(found[1]), int(found[2])) if found else (0, 0)
    if (major == 0 and minor < 8) or major > 4:
        refuse("message.format.version", version, _VERSIONS)
    return 2 if major else (0 if minor < 10 else 1 if minor == 10 else 2)


@dataclass(frozen=True)
class TopicConfig:
    """A topic's own settings, fixed when it is created; stored with it. Each field is a key of Kafka.

    Kafka's defaults, but nothing expires and no segment is rolled by time unless that is asked for:
    events are old by nature, and seven days of retention would delete a backfill at once.

    Raises:
        ConfigError: a timestamp type, a cleanup policy or a version that is not accepted.
    """

    max_message_bytes: int = 1 * MiB + 12
    segment_bytes: int = 1 * GiB
    index_interval_bytes: int = 4096
    segment_index_bytes: int = 10 * MiB
    segment_ms: int = LONG_MAX
    message_timestamp_type: str = CREATE_TIME
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_after_max_ms: int = LONG_MAX
    retention_ms: int = NO_LIMIT
    retention_bytes: int = NO_LIMIT
    file_delete_delay_ms: int = 60_000
    cleanup_policy: str = "delete"
    message_format_version: str = "3.0"
    min_insync_replicas: int = 1

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            if isinstance(setting.default, int):
                arguments.whole_number(setting.name, value, NO_LIMIT)
            else:
                arguments.text(setting.name, value)
        for field, parse in (
            ("message_timestamp_type", _timestamp_type),
            ("cleanup_policy", _cleanup_policy),
        ):
            object.__setattr__(self, field, parse(topic_key(field), getattr(self, field)))
        if self.message_magic == 0 and self.is_log_append_time:
            raise ConfigError(
                "option 'message.timestamp.type' is 'LogAppendTime', which goes with "
                f"message.format.version 0.10.0 and later, not with {self.message_format_version!r}: "
                "its format has no timestamps"
            )

    @property
    def message_magic(self) -> int:
        """Of what is written to the topic: 2 for batches, 0 and 1 for the formats before them."""
        return message_magic(self.message_format_version)

    @property
    def is_log_append_time(self) -> bool:
        """Whether records have the time of their append in place of their own."""
        return self.message_timestamp_type == LOG_APPEND_TIME

    @property
    def limits_times(self) -> bool:
        """Whether `ensure_time_accepted` may refuse one."""
        limits = (self.message_timestamp_before_max_ms, self.message_timestamp_after_max_ms)
        return limits != (LONG_MAX, LONG_MAX) and not self.is_log_append_time

    def ensure_time_accepted(self, topic: str, timestamp_ms: int, now_ms: int) -> None:
        """Check a record's time against the topic's limits; -1, for none, is always accepted.

        Raises:
            InvalidTimestampError: names the option.
        Source: LogValidator.validateTimestamp.
        """
        if timestamp_ms < 0 or not self.limits_times:
            return
        for field, distance in (
            ("message_timestamp_before_max_ms", now_ms - timestamp_ms),
            ("message_timestamp_after_max_ms", timestamp_ms - now_ms),
        ):
            limit = getattr(self, field)
            if distance > limit:
                raise InvalidTimestampError(timestamp_ms, topic, topic_key(field), limit, now_ms)

    @property
    def has_retention(self) -> bool:
        """Whether records are deleted by age or size."""
        return (self.retention_ms, self.retention_bytes) != (NO_LIMIT, NO_LIMIT)


def topic_key(field: str) -> str:
    """Kafka's key for a field of TopicConfig."""
    return field.replace("_", ".")


def topic_field(key: str) -> str:
    """The field of TopicConfig for a key of Kafka."""
    return key.replace(".", "_")


@dataclass(frozen=True)
class Topic:
    """A topic as the cluster knows it."""

    name: str
    topic_id: str
    partitions: int
    config: TopicConfig
    replicas: tuple[tuple[int, ...], ...] = ()  # node ids by partition; the first is preferred

    def __repr__(self) -> str:
        copies = f", replication_factor={self.replication_factor}" if self.replicas else ""
        return f"Topic({self.name!r}, partitions={self.partitions}{copies})"

    def replicas_of(self, partition: int) -> tuple[int, ...]:
        """The nodes that hold a partition, in order of preference."""
        return self.replicas[partition] if self.replicas else (0,)

    @property
    def replication_factor(self) -> int:
        """How many copies of each record there are."""
        return len(self.replicas_of(0))


def _timestamp_type(key: str, value: str) -> str:
    found = {name.lower(): name for name in (CREATE_TIME, LOG_APPEND_TIME)}.get(
        value.strip().lower()
    )
    if found is None:
        refuse(key, value, f"{CREATE_TIME}, {LOG_APPEND_TIME}")
    return found


def _cleanup_policy(key: str, value: str) -> str:
    policies = [policy.strip().lower() for policy in value.split(",")]
    if "compact" in policies:
        refuse(
            key, value,
            "delete; compaction leaves gaps between offsets, and logs written here have none",
        )  # fmt: skip
    if policies != ["delete"]:
        refuse(key, value, "delete")
    return "delete"


def _format_version(key: str, value: str) -> str:
    del key
    message_magic(value)
    return value.strip()


# One row a line: the tables read as tables.
# fmt: off
TOPIC_OPTIONS = (
    Option("max.message.bytes", parse_number(1024, INT_MAX), "1024 to 2147483647", "1048588", "Largest batch, as stored, in a topic that this write creates. An existing topic must have the same."),
    Option("segment.bytes", parse_number(1 * MiB, INT_MAX), "1048576 to 2147483647", "1073741824", "Largest segment file in a topic that this write creates. An existing topic must have the same."),
    Option("segment.ms", parse_number(1, LONG_MAX), "1 or more", "not set", "A record whose time is this long after that of the segment's first batch begins a new segment; without times, the clock counts."),
    Option("segment.index.bytes", parse_number(24, INT_MAX), "24 to 2147483647", "10485760", "Largest index file; a segment with a full one is closed."),
    Option("index.interval.bytes", parse_number(0), f"0 to {INT_MAX}", "4096", "Bytes between index entries. Fewer find an offset sooner and take more space."),
    Option("message.timestamp.type", _timestamp_type, "CreateTime, LogAppendTime", "CreateTime", "With LogAppendTime every record has the time of its append, or of its job's commit."),
    Option("message.timestamp.before.max.ms", parse_number(0, LONG_MAX), "0 or more", "not set", "Records that are older when they are written are refused. Not looked at with LogAppendTime."),
    Option("message.timestamp.after.max.ms", parse_number(0, LONG_MAX), "0 or more", "not set", "Records whose time lies further in the future are refused. Not looked at with LogAppendTime."),
    Option("retention.ms", parse_number(-1, LONG_MAX), "-1 or more", "-1", "Segments whose newest record is older are deleted; -1 keeps all. Kafka's default of seven days would delete old events as soon as they are written."),
    Option("retention.bytes", parse_number(-1, LONG_MAX), "-1 or more", "-1", "The oldest segments of a partition are deleted while it keeps this many bytes without them; -1 keeps all."),
    Option("file.delete.delay.ms", parse_number(0, LONG_MAX), "0 or more", "60000", "How long the files of deleted segments stay, named `.deleted`, and those of a deleted topic."),
    Option("message.format.version", _format_version, _VERSIONS, "3.0", "Format of the records, by the version of the brokers that wrote it: before 0.10 V0, before 0.11 V1, then V2. V0 and V1 have no headers and no zstd, V0 no timestamps. Producers are not idempotent there."),
    Option("min.insync.replicas", parse_number(1), f"1 to {INT_MAX}", "1", "With acks=all: how many replicas of a partition, the leader among them, must have a record before it counts; with fewer in sync nothing is written. More than there are is as all."),
    Option("cleanup.policy", _cleanup_policy, "delete", "delete", "Compaction is refused: it leaves gaps between offsets."),
)
# fmt: on


def parse_topic_config(options: Mapping[str, object]) -> TopicConfig:
    """A topic's settings by Kafka's keys; raises as `parse_topic_options`."""
    return TopicConfig(**topic_fields(parse_topic_options(options)))


def parse_topic_options(options: Any) -> dict[str, Any]:
    """The settings that are given, by Kafka's keys with dots or underscores, parsed.

    A number may be a number or text.

    Raises:
        ConfigError: no settings at all, an unknown key, one that is given twice, or a bad value.
    """
    _ensure_settings(options)
    given: dict[str, str] = {}
    for name, value in options.items():
        key = topic_key(name)
        text = str(value) if isinstance(value, (str, Integral)) else arguments.shown(value)
        if given.setdefault(key, text) != text:
            raise ConfigError(f"config names {key!r} twice, with other values; name it once")
    return parse_options(given, TOPIC_OPTIONS)


def _ensure_settings(options: Any) -> None:
    if not isinstance(options, Mapping) or any(not isinstance(key, str) for key in options):
        arguments.refuse(
            "config",
            options,
            'a dict of settings, such as {"retention.ms": 86400000}, or a TopicConfig',
        )


def altered(topic: Topic, changes: Mapping[str, object]) -> TopicConfig:
    """A topic's settings once some are changed, by Kafka's keys; None stands for the default.

    Raises:
        ConfigError: an unknown key, a bad value, or a setting that a topic keeps for good.
    """
    _ensure_settings(changes)
    given = {key: value for key, value in changes.items() if value is not None}
    reset = {topic_key(key): "" for key, value in changes.items() if value is None}
    settings = topic_fields(parse_topic_options(given))
    defaults = TopicConfig()
    for key in Given(reset, TOPIC_OPTIONS):
        settings[topic_field(key)] = getattr(defaults, topic_field(key))
    config = replace(topic.config, **settings)
    if config.message_magic != topic.config.message_magic:
        raise ConfigError(
            f"option 'message.format.version' of topic {topic.name!r} is "
            f"{topic.config.message_format_version!r} and stays so: its records have that format; "
            "create another topic"
        )
    return config


def topic_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Of the parsed options those of topics, as fields of TopicConfig."""
    keys = (option.key for option in TOPIC_OPTIONS)
    return {topic_field(key): given[key] for key in keys if key in given}
