"""Topics, their names and their settings.

Source: Kafka storage/internals/log/LogConfig.java, clients/.../common/internals/Topic.java.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from numbers import Integral
from typing import Any

from spark_kbatch.errors import (
    ConfigError,
    InvalidPartitionsError,
    InvalidTimestampError,
    InvalidTopicError,
    RecordTooLargeError,
    TopicAlreadyExistsError,
)
from spark_kbatch.model import CODECS, INT_MAX, LONG_MAX, TopicPartition
from spark_kbatch.options import arguments, kinds
from spark_kbatch.options.option import GiB, Given, MiB, Option, option, table_of

INTERNAL_PREFIX = "__"
TRANSACTION_STATE_TOPIC = "__transaction_state"
PARTITIONS_MAX = 100_000  # of one topic: a damaged file must not ask for all memory
REPLICATION_FACTOR_MAX = 32_767
CREATE_TIME, LOG_APPEND_TIME = "CreateTime", "LogAppendTime"
PRODUCER, UNCOMPRESSED = "producer", "uncompressed"  # of compression.type
NO_LIMIT = -1  # of retention.ms and retention.bytes
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_TOPIC_NAME_LENGTH_MAX = 249
_VERSION = re.compile(r"(\d)\.(\d{1,2})(\.\d{1,2}){0,2}(-IV\d)?")
_NEWEST_MAGIC = 2
_OF_FORMATS = ("message.format.version", "message.timestamp.type")
_NO_CHANGES: Mapping[str, object] = {}
_VERSIONS = "a version of Kafka, 0.8 or later, such as 0.9.0, 0.10.2 or 3.0"


def ensure_valid_topic(name: str) -> str:
    """Check a topic's name by Kafka's rules, and return it.

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


def ensure_not_internal(name: str) -> None:
    """Check that a topic's name is not that of an internal topic, which starts with `__`.

    Raises:
        ConfigError: it is, so only the cluster may change it.
    """
    if arguments.text("topic", name).startswith(INTERNAL_PREFIX):
        raise ConfigError(
            f"topic {name!r} is the cluster's own, which alone changes it; choose another"
        )


def numbers_of_a_new_topic(
    partitions: int | None, num_partitions: int | None, replication_factor: int | None
) -> dict[str, int]:
    """Check a new topic's numbers of partitions and replicas; return those that are given, by name.

    Args:
        partitions: how many.
        num_partitions: another name for `partitions`.
        replication_factor: how many replicas each has.

    Raises:
        ConfigError: a number is not accepted, or both names are given with different numbers.
    """
    given = {
        key: arguments.whole_number(key, value, 1, most)
        for key, value, most in (
            ("partitions", partitions, PARTITIONS_MAX),
            ("num_partitions", num_partitions, PARTITIONS_MAX),
            ("replication_factor", replication_factor, REPLICATION_FACTOR_MAX),
        )
        if value is not None
    }
    count = given.pop("num_partitions", None)
    if count is not None and given.setdefault("partitions", count) != count:
        raise ConfigError(
            f"partitions is {partitions}, and num_partitions, another name for it, is {count}; give one"
        )
    return given


@functools.cache
def message_magic(version: str) -> int:
    """Return the record format, magic 0 to 2, that brokers of a version of Kafka wrote.

    Raises:
        ConfigError: no such version.
    Source: MetadataVersion.fromVersionString, highestSupportedRecordVersion.
    """
    found = _VERSION.fullmatch(version.strip())
    major, minor = (int(found[1]), int(found[2])) if found else (0, 0)
    if (major == 0 and minor < 8) or major > 4:
        kinds.refuse("message.format.version", version, _VERSIONS)
    return 2 if major else (0 if minor < 10 else 1 if minor == 10 else 2)


def _cleanup_policy(key: str, value: str) -> str:
    policies = [policy.strip().lower() for policy in value.split(",")]
    if "compact" in policies:
        kinds.refuse(
            key, value,
            "delete; compaction leaves gaps between batches, and logs written here have none",
        )  # fmt: skip
    if policies != ["delete"]:
        kinds.refuse(key, value, "delete")
    return "delete"


def _format_version(key: str, value: str) -> str:
    del key
    message_magic(value)
    return value.strip()


@dataclass(frozen=True)
class TopicConfig:
    """A topic's settings, stored with it. Each field is a key of Kafka's.

    The defaults are Kafka's, except that nothing expires and no segment is rolled by time unless asked
    for: events are old by nature, and seven days of retention would delete a backfill at once.

    Raises:
        ConfigError: a timestamp type, a cleanup policy, a codec or a version that is not accepted.
    """

    # fmt: off
    max_message_bytes: int = option("max.message.bytes", kinds.number(0), 1 * MiB + 12, "Largest record batch, after compression, that the topic accepts.")
    segment_bytes: int = option("segment.bytes", kinds.number(1 * MiB), 1 * GiB, "Largest size of a segment file.")
    index_interval_bytes: int = option("index.interval.bytes", kinds.number(0), 4096, "How many bytes lie between two index entries. More entries find an offset faster, but make the index larger.")
    segment_index_bytes: int = option("segment.index.bytes", kinds.number(24), 10 * MiB, "Largest size of an index file; a segment with a full index is rolled.")
    segment_ms: int = option("segment.ms", kinds.number(1, LONG_MAX), LONG_MAX, "How long a segment takes records before the next one is rolled, by the records' times: from the first batch of the segment to the new record; by the clock where records have no times.", "not set")
    message_timestamp_type: str = option("message.timestamp.type", kinds.one_of(CREATE_TIME, LOG_APPEND_TIME), CREATE_TIME, "Whether a record has the time of its creation or of its append to the log (in a Spark job: of the commit).")
    message_timestamp_before_max_ms: int = option("message.timestamp.before.max.ms", kinds.number(0, LONG_MAX), LONG_MAX, "How far a record's time may lie before the time of writing; records older than that are refused. Ignored with LogAppendTime.", "not set")
    message_timestamp_after_max_ms: int = option("message.timestamp.after.max.ms", kinds.number(0, LONG_MAX), 3_600_000, "How far a record's time may lie after the time of writing; records later than that are refused: most often such a time is in microseconds by mistake. Ignored with LogAppendTime.")
    retention_ms: int = option("retention.ms", kinds.number(NO_LIMIT, LONG_MAX), NO_LIMIT, "How long records are kept: segments whose newest record is older are deleted; -1 keeps all. Kafka's default of seven days would delete old events as soon as they are written.")
    retention_bytes: int = option("retention.bytes", kinds.number(NO_LIMIT, LONG_MAX), NO_LIMIT, "How large a partition may grow: its oldest segments are deleted as long as the rest still has this many bytes; -1 keeps all.")
    file_delete_delay_ms: int = option("file.delete.delay.ms", kinds.number(0, LONG_MAX), 60_000, "How long the files of deleted segments, renamed to `.deleted`, and those of a deleted topic stay on disk.")
    cleanup_policy: str = option("cleanup.policy", kinds.OptionKind(_cleanup_policy, "delete"), "delete", "What happens to old segments. Compaction is refused: it leaves gaps between batches.")
    message_format_version: str = option("message.format.version", kinds.OptionKind(_format_version, _VERSIONS), "3.0", "Record format, named by a version of Kafka that wrote it: V0 before 0.10, V1 before 0.11, then V2. V0 and V1 have no headers, no zstd and no idempotent producers; V0 has no timestamps.")
    min_insync_replicas: int = option("min.insync.replicas", kinds.number(1), 1, "How many replicas of a partition, the leader included, must be in sync for a write with acks=all to succeed; with fewer, nothing is written. A number above the replication factor means all replicas.")
    compression_type: str = option("compression.type", kinds.one_of(PRODUCER, UNCOMPRESSED, *(name for name, codec in CODECS.items() if codec)), PRODUCER, "The codec that record batches are stored with. With `producer` that is the one that the producer has chosen; with any other it is this one, at its default level: writers of ours use it instead of their own, and what other clients send is compressed again.")
    # fmt: on

    def __post_init__(self) -> None:
        for setting in CONFIG_OPTIONS:
            field = topic_field(setting.key)
            value = getattr(self, field)
            if isinstance(setting.default, int):
                arguments.whole_number(field, value, NO_LIMIT)
            else:
                object.__setattr__(self, field, setting.parse(arguments.text(field, value)))
        if self.message_magic == 0 and self.is_log_append_time:
            raise ConfigError(
                "option 'message.timestamp.type' is 'LogAppendTime', which needs "
                f"message.format.version 0.10.0 or later; it is {self.message_format_version!r}, whose "
                "format has no timestamps"
            )
        if self.message_magic < 2 and self.compression_type != PRODUCER:
            raise ConfigError(
                f"option 'compression.type' is {self.compression_type!r}, which needs "
                "message.format.version 0.11.0 or later; it is "
                f"{self.message_format_version!r}, which goes with 'producer' alone"
            )

    def __dir__(self) -> list[str]:
        names = {setting.name for setting in fields(self)}
        return [name for name in super().__dir__() if name in names or name.startswith("_")]

    @property
    def message_magic(self) -> int:
        """Magic of the records written to the topic: 2 for record batches, 0 and 1 for the older formats."""
        return message_magic(self.message_format_version)

    @property
    def is_log_append_time(self) -> bool:
        """Whether records get the time of their append (LogAppendTime) in place of their own."""
        return self.message_timestamp_type == LOG_APPEND_TIME

    def stored_codec(self, sent_codec: int) -> int:
        """Return the codec that a batch is stored with, given the one that its producer used."""
        if self.compression_type == PRODUCER:
            return sent_codec
        return CODECS.get(self.compression_type, 0)

    @property
    def limits_times(self) -> bool:
        """Whether the topic limits records' timestamps, so that `ensure_time_accepted` may refuse one."""
        limits = (self.message_timestamp_before_max_ms, self.message_timestamp_after_max_ms)
        return limits != (LONG_MAX, LONG_MAX) and not self.is_log_append_time

    def accepted_times(self, now_ms: int) -> tuple[int, int]:
        """Return the earliest and latest time that a record written now may have, both inclusive.

        -1, for no time, is accepted besides.
        """
        if not self.limits_times:
            return -LONG_MAX, LONG_MAX
        return (
            now_ms - self.message_timestamp_before_max_ms,
            min(now_ms + self.message_timestamp_after_max_ms, LONG_MAX),
        )

    def ensure_time_accepted(self, topic: str, timestamp_ms: int, now_ms: int) -> None:
        """Check a record's time against the topic's limits; -1, for no time, is always accepted.

        Raises:
            InvalidTimestampError: the time passes a limit; names the option.
        Source: LogValidator.validateTimestamp.
        """
        if not self.limits_times:
            return
        earliest, latest = self.accepted_times(now_ms)
        if earliest <= timestamp_ms <= latest or timestamp_ms == -1:
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


# All settings of a topic; a write's options have all but the last, where the key is the producer's.
CONFIG_OPTIONS = table_of(TopicConfig)
TOPIC_OPTIONS = CONFIG_OPTIONS[:-1]


def topic_key(field: str) -> str:
    """Return Kafka's key for a field of TopicConfig."""
    return field.replace("_", ".")


def topic_field(key: str) -> str:
    """Return the field of TopicConfig for a key of Kafka's."""
    return key.replace(".", "_")


@dataclass(frozen=True)
class Topic:
    """A topic: its name, id, partitions, settings and replicas."""

    name: str
    topic_id: str
    partitions: int
    config: TopicConfig | None  #: None where the place does not tell it
    replicas: tuple[tuple[int, ...], ...] = ()  #: node ids by partition; the first is preferred
    given: frozenset[str] = frozenset()  #: keys of settings given, if only with the default

    def __repr__(self) -> str:
        copies = f", replication_factor={self.replication_factor}" if self.replicas else ""
        return f"Topic({self.name!r}, partitions={self.partitions}{copies})"

    def __dir__(self) -> list[str]:
        shown = {setting.name for setting in fields(self)} | {"replicas_of", "replication_factor"}
        return [name for name in super().__dir__() if name in shown or name.startswith("_")]

    def replicas_of(self, partition: int) -> tuple[int, ...]:
        """Return the nodes that hold a partition, in order of preference."""
        return self.replicas[partition] if self.replicas else (0,)

    @property
    def replication_factor(self) -> int:
        """The number of copies of each record."""
        return len(self.replicas_of(0))

    @property
    def known_config(self) -> TopicConfig:
        """The topic's settings, which a cluster in a folder always tells.

        Raises:
            ConfigError: the place does not tell them.
        """
        if self.config is None:
            raise ConfigError(f"the settings of topic {self.name!r} are not known here")
        return self.config

    # What a writer has to know; where the settings are not known, those who store the records say no.

    @property
    def message_magic(self) -> int:
        """Magic of the records that are written to the topic."""
        return _NEWEST_MAGIC if self.config is None else self.config.message_magic

    @property
    def batch_bytes_max(self) -> int:
        """Size in bytes of the largest record batch that the topic takes."""
        if self.config is None:
            return INT_MAX
        return min(self.config.max_message_bytes, self.config.segment_bytes)

    @property
    def limits_times(self) -> bool:
        """Whether `ensure_time_accepted` may refuse a record's timestamp."""
        return self.config is not None and self.config.limits_times

    def ensure_time_accepted(self, timestamp_ms: int, now_ms: int) -> None:
        """Check a record's time as `TopicConfig.ensure_time_accepted` does."""
        if self.config is not None:
            self.config.ensure_time_accepted(self.name, timestamp_ms, now_ms)

    def stored_codec(self, sent_codec: int) -> int:
        """Return the codec that a batch is stored with, given the one that its producer used."""
        return sent_codec if self.config is None else self.config.stored_codec(sent_codec)


def partitions_of(topic: Topic) -> list[TopicPartition]:
    """Return all partitions of a topic, in order."""
    return list(map(TopicPartition, itertools.repeat(topic.name), range(topic.partitions)))


def ensure_record_fits(topic: Topic, size: int) -> None:
    """Check that a topic takes a record whose batch, or message of an older format, has this size in bytes.

    Raises:
        RecordTooLargeError: it does not; a producer splits a batch of several records.
        ConfigError: the settings are not known.
    """
    config = topic.known_config
    limit, option = min(
        (config.max_message_bytes, "max.message.bytes"),
        (config.segment_bytes, "segment.bytes"),
    )
    if size > limit:
        what = f"a record for topic {topic.name!r}, as a batch of its own,"
        raise RecordTooLargeError(what, size, limit, option, topic.name)


def parse_topic_options(options: Any) -> dict[str, Any]:
    """Parse a topic's settings, given by Kafka's keys, to fields of TopicConfig.

    Args:
        options: by Kafka's keys, with dots or underscores; a number may be an int or text.

    Raises:
        ConfigError: not a mapping, an unknown key, a key that is given twice, or a bad value.
    """
    return topic_fields(_given_settings(options), CONFIG_OPTIONS)


def topic_fields(given: Given, options: tuple[Option, ...] = TOPIC_OPTIONS) -> dict[str, Any]:
    """Return the topic settings among the given options, parsed, as fields of TopicConfig."""
    return {
        topic_field(option.key): given.get(option.key) for option in options if option.key in given
    }


def settings_of_a_new_topic(
    config: TopicConfig | Mapping[str, object],
) -> tuple[dict[str, Any], list[str]]:
    """Return the settings of a new topic, by fields of TopicConfig, and the keys of those that are given.

    A TopicConfig has all of them, and none counts as given. Raises as `parse_topic_options`.
    """
    if isinstance(config, TopicConfig):
        return vars(config), []
    settings = parse_topic_options(config)
    return settings, [*map(topic_key, settings)]


def _given_settings(options: Any) -> Given:
    _ensure_settings(options)
    given: dict[str, str] = {}
    for name, value in options.items():
        key = topic_key(name)
        text = str(value) if isinstance(value, (str, Integral)) else arguments.shown(value)
        if given.setdefault(key, text) != text:
            raise ConfigError(f"config names {key!r} twice, with different values; name it once")
    settings = Given(given, CONFIG_OPTIONS)
    settings.ensure_none_forbidden()
    return settings


def _ensure_settings(options: Any) -> None:
    if not isinstance(options, Mapping) or any(not isinstance(key, str) for key in options):
        arguments.refuse(
            "config",
            options,
            'a dict of settings, such as {"retention.ms": 86400000}, or a TopicConfig',
        )


def ensure_more_partitions(name: str, has: int, total_count: int) -> None:
    """Check that `total_count` is more partitions than a topic has now.

    Raises:
        InvalidPartitionsError: it already has as many.
    """
    if total_count <= has:
        raise InvalidPartitionsError(
            f"topic {name!r} has {has} partition{'s' * (has != 1)}; {total_count} would not be an "
            "increase: give a larger total, partitions cannot be taken away"
        )


def ensure_not_alike(name: str, other: str) -> None:
    """Check that a topic's name differs from another one's in more than `.` and `_`; the same name may pass.

    Raises:
        InvalidTopicError: it does not.
    Source: Topic.hasCollision.
    """
    if other != name and other.replace(".", "_") == name.replace(".", "_"):
        raise InvalidTopicError(name, "Kafka's metrics write '.' as '_'", other)


def settings_to_keep(topic: Topic) -> dict[str, str]:
    """Return the settings that a topic has in another place to which it moves, by Kafka's keys.

    Older formats and a broker's times are left out: what is stored there is of the newest format, with the times that
    the records have here. Of a place that does not tell settings there are none.
    """
    if topic.config is None:
        return {}
    found = {
        option.key: getattr(topic.config, topic_field(option.key)) for option in CONFIG_OPTIONS
    }
    default = TopicConfig()
    return {
        key: str(value)
        for key, value in found.items()
        if key not in _OF_FORMATS
        and (key in topic.given or value != getattr(default, topic_field(key)))
    }


def ensure_has_all(
    topic: Topic,
    *,
    exist_ok: bool,
    partitions: int | None,
    replication_factor: int | None,
    settings: Mapping[str, object],
) -> None:
    """Check that a topic which is to be created, and exists, may exist and has what is given.

    Args:
        topic: which exists, with known settings.
        exist_ok: whether it may.
        partitions: how many; None if that is not given.
        replication_factor: copies of each record; None if that is not given.
        settings: by fields of TopicConfig.

    Raises:
        TopicAlreadyExistsError: it may not, or it differs; says how.
    """
    if not exist_ok:
        raise TopicAlreadyExistsError(topic.name)
    given = {"partitions": partitions, "replication_factor": replication_factor}
    differs = [
        f"{key}={has}"
        for key, value in given.items()
        if value is not None and (has := getattr(topic, key)) != value
    ]
    differs += [
        f"{topic_key(field)}={has}"
        for field, value in settings.items()
        if (has := getattr(topic.known_config, field)) != value
    ]
    if differs:
        raise TopicAlreadyExistsError(topic.name, ", ".join(differs))


def altered(
    topic: Topic, changes: Mapping[str, object], fixed: Mapping[str, object] = _NO_CHANGES
) -> Topic:
    """Return a topic after changes of its settings, by Kafka's keys; None resets one to its default.

    Args:
        topic: as it is.
        changes: the new values.
        fixed: changes of settings with one possible value, of which only the keys are kept.

    Raises:
        ConfigError: an unknown key, a bad value, or a setting that cannot be changed.
    """
    _ensure_settings(changes)
    given = {key: value for key, value in changes.items() if value is not None}
    reset = {topic_key(key): "" for key, value in changes.items() if value is None}
    for key in sorted(reset.keys() & {topic_key(key) for key in given}):
        raise ConfigError(f"config names {key!r} twice, to set it and to reset it; name it once")
    settings = parse_topic_options(given)
    for key in Given(reset, CONFIG_OPTIONS):
        settings[topic_field(key)] = getattr(TopicConfig, topic_field(key))
    config = replace(topic.known_config, **settings)
    if config.message_magic != topic.message_magic:
        raise ConfigError(
            f"option 'message.format.version' of topic {topic.name!r} is "
            f"{topic.known_config.message_format_version!r} and cannot be changed: its records have that "
            "format; create another topic"
        )
    keys = {topic_key(key) for key in given} | {key for key in fixed if fixed[key] is not None}
    left = topic.given - reset.keys() - fixed.keys()
    return replace(topic, config=config, given=left | keys)
