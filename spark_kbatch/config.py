"""What options are, those of topics and writes; strings are parsed once, into frozen dataclasses.

Keys are Kafka's, or those of Spark's Kafka connector, and match in any case. A key of Kafka may
carry the prefix `kafka.`, as Spark's connector wants it. Keys that only concern a remote broker are
accepted with that prefix and ignored; keys that neither know are refused, with the nearest known.

`read_config.py` has the options of reads, `producer_config.py` those of a producer in plain Python.

Source: Kafka clients/producer/ProducerConfig.java, storage/internals/log/LogConfig.java, Spark
connector/kafka-0-10-sql/.../KafkaSourceProvider.scala.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from spark_kbatch.errors import ConfigError, InvalidTimestampError, InvalidTopicError
from spark_kbatch.model import IsolationLevel

MiB, GiB = 1 << 20, 1 << 30
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

COMPRESSION_TYPES = ("none", "gzip", "snappy", "lz4", "zstd")
INTERNAL_PREFIX = "__"
CREATE_TIME, LOG_APPEND_TIME = "CreateTime", "LogAppendTime"
NO_LIMIT = -1  # of retention.ms and retention.bytes
FOREIGN_ENDS = ("log", "checkpoint")

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_TOPIC_NAME_LENGTH_MAX = 249
_VERSION = re.compile(r"(\d)\.(\d{1,2})(\.\d{1,2}){0,2}(-IV\d)?")
_VERSIONS = "a version of Kafka from 0.8 on, such as 0.9.0, 0.10.2 or 3.0"
STAGING_RETENTION_MS = 7 * 24 * 3600 * 1000
_TXN_APP_ID_LENGTH_MAX = 1000  # their UTF-8 has a 16-bit length in the log
_DOTTED_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*[.:][^\W\d]\w*(\.[^\W\d]\w*)*")


def ensure_valid_topic(name: str) -> str:
    """The name, if Kafka would accept it.

    Raises:
        InvalidTopicError: says which rule it breaks.
    Source: Topic.validate.
    """
    if not name:
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

    def replicas_of(self, partition: int) -> tuple[int, ...]:
        """The nodes that hold a partition, in order of preference."""
        return self.replicas[partition] if self.replicas else (0,)

    @property
    def replication_factor(self) -> int:
        """How many copies of each record there are."""
        return len(self.replicas_of(0))


@dataclass(frozen=True)
class WriteOptions:
    """What `df.write.format("kbatch")` was asked for."""

    path: str
    topic: str | None
    compression_type: str
    batch_size: int
    buffer_memory: int
    linger_ms: int | None
    compression_level: int | None
    partitioner_class: str | None
    partitioner_ignore_keys: bool
    num_partitions: int | None
    replication_factor: int | None
    log_dirs: tuple[str, ...]
    acks: int
    request_timeout_ms: int
    topic_config: Mapping[str, Any]  # fields of TopicConfig that the options name
    adopt_min_bytes: int
    flush: bool
    staging_retention_ms: int
    txn_app_id: str | None
    txn_version: int | None
    overwrite_delete_delay_ms: int
    transactional_id_expiration_ms: int | None


@dataclass(frozen=True)
class Option:
    """One row of the options tables."""

    key: str
    parse: Callable[[str, str], Any]
    accepts: str
    default: str
    text: str

    def __call__(self, value: str) -> Any:
        """The parsed value; `ConfigError` names key, value and what is accepted."""
        return self.parse(self.key, value)


def refuse(key: str, value: str, accepts: str) -> NoReturn:
    """Raise for a value that is not accepted."""
    raise ConfigError(f"option {key!r} is {value!r}; accepted: {accepts}")


def parse_number(low: int, high: int = INT_MAX) -> Callable[[str, str], int]:
    """A parser of whole numbers within bounds."""

    def parse(key: str, value: str) -> int:
        text = value.strip()
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", text) or not low <= int(text) <= high:
            refuse(key, value, f"a whole number from {low} to {high}")
        return int(text)

    return parse


def parse_boolean(key: str, value: str) -> bool:
    """The parser of true and false."""
    text = value.strip().lower()
    if text not in ("true", "false"):
        refuse(key, value, "true or false")
    return text == "true"


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


def parse_compression_type(key: str, value: str) -> str:
    """The parser of a codec's name."""
    text = value.strip().lower()
    if text not in COMPRESSION_TYPES:
        refuse(key, value, ", ".join(COMPRESSION_TYPES))
    return text


def parse_dotted_path(key: str, value: str) -> str:
    """The parser of a function's path; whether there is one is seen where it is imported."""
    text = value.strip()
    if not _DOTTED_PATH.fullmatch(text):
        refuse(key, value, "package.module.function")
    return text


def _format_version(key: str, value: str) -> str:
    del key
    message_magic(value)
    return value.strip()


def parse_acks(key: str, value: str) -> int:
    """The parser of acks."""
    acks = {"all": -1, "-1": -1, "1": 1, "0": 0}.get(value.strip().lower())
    if acks is None:
        refuse(key, value, "all, -1, 1, 0")
    return acks


def _folders(key: str, value: str) -> tuple[str, ...]:
    folders = tuple(folder.strip() for folder in value.split(","))
    if not all(folders) or len(set(folders)) < len(folders):
        refuse(key, value, "different folders, with commas between them")
    return folders


def ensure_codec_exists(topic: Topic, compression_type: str) -> None:
    """Check that the format of a topic knows a codec.

    Raises:
        ConfigError: zstd, which came after the formats V0 and V1.
    """
    if topic.config.message_magic < 2 and compression_type == "zstd":
        raise ConfigError(
            f"option 'compression.type' is 'zstd', but topic {topic.name!r} has "
            f"message.format.version={topic.config.message_format_version}, whose format has no zstd; "
            f"accepted: {', '.join(COMPRESSION_TYPES[:-1])}"
        )


def _gzip_level(key: str, value: str) -> int:
    level = parse_number(-1, 9)(key, value)
    if level == 0:
        refuse(key, value, "-1, 1 to 9")
    return level


def compression_level(given: Mapping[str, Any]) -> int | None:
    """The level that parsed options give the codec that they name; None for its default."""
    level: int | None = given.get(f"compression.{given.get('compression.type')}.level")
    return level


def parse_isolation_level(key: str, value: str) -> IsolationLevel:
    """The parser of an isolation level's name."""
    try:
        return IsolationLevel(value.strip().lower())
    except ValueError:
        refuse(key, value, ", ".join(level.value for level in IsolationLevel))


def _topic(_key: str, value: str) -> str:
    return ensure_valid_topic(value.strip())


def _txn_app_id(key: str, value: str) -> str:
    if not 0 < len(value) <= _TXN_APP_ID_LENGTH_MAX:
        refuse(key, value, f"1 to {_TXN_APP_ID_LENGTH_MAX} characters")
    return value


# One row a line: the tables read as tables.
# fmt: off
PATH = Option("path", lambda _key, value: value, "a folder", "", "What `save` and `load` are given: the folder that holds the cluster. Absolute, or taken from the driver's working directory; `file:` is accepted. Driver and executors must share it.")
BOOTSTRAP = Option("kafka.bootstrap.servers", lambda _key, value: value, "a folder: `/...`, `./...` or `file:...`", "", "Stands for `path` where that is not given, so that a function written for `format(\"kafka\")` runs unchanged.")

COMPRESSION_LEVELS = (
    Option("compression.gzip.level", _gzip_level, "-1, 1 to 9", "-1", "Level where the codec is gzip; -1 is zlib's default."),
    Option("compression.lz4.level", parse_number(1, 17), "1 to 17", "9", "Level where the codec is lz4; 9 is the fast compressor, every other one the high one. 1 and 2 are as 3, more than 12 is as 12."),
    Option("compression.zstd.level", parse_number(-131072, 22), "-131072 to 22", "3", "Level where the codec is zstd."),
)

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
    Option("file.delete.delay.ms", parse_number(0, LONG_MAX), "0 or more", "60000", "How long the files of deleted segments stay, named `.deleted`."),
    Option("message.format.version", _format_version, _VERSIONS, "3.0", "Format of the records, by the version of the brokers that wrote it: before 0.10 V0, before 0.11 V1, then V2. V0 and V1 have no headers and no zstd, V0 no timestamps. Producers are not idempotent there."),
    Option("min.insync.replicas", parse_number(1), f"1 to {INT_MAX}", "1", "With acks=all: how many replicas of a partition, the leader among them, must have a record before it counts; with fewer in sync nothing is written. More than there are is as all."),
    Option("cleanup.policy", _cleanup_policy, "delete", "delete", "Compaction is refused: it leaves gaps between offsets."),
)

WRITE_OPTIONS = (
    PATH,
    BOOTSTRAP,
    Option("topic", _topic, "a topic name", "the `topic` column", "The topic for all rows. Created when it does not exist."),
    Option("compression.type", parse_compression_type, "none, gzip, snappy, lz4, zstd", "none", "Codec of the record batches."),
    *COMPRESSION_LEVELS,
    Option("batch.size", parse_number(1, 1 * GiB), "1 to 1073741824", "1048576", "Bytes at which a batch of a partition is full; with a codec, what it is expected to leave. Kafka's 16384 suits single sends; a job that writes whole columns has fewer, better compressed batches. At most a quarter of buffer.memory is used, and at most what lets every partition of the option `topic` have two batches open."),
    Option("buffer.memory", parse_number(1 * MiB, 2**40), "1048576 to 2^40", "33554432", "Bytes a task holds in open batches; when they are in use, the fullest batch goes first."),
    Option("linger.ms", parse_number(0), f"0 to {INT_MAX}", "not set", "How long a batch that is not full waits for more rows. Kafka's 0 sends at once; not set, batches close when they are full, when memory is short and at the end of the task, because nobody can read a job's data earlier."),
    Option("partitioner.class", parse_dotted_path, "`package.module.function`", "Kafka's partitioner", "A function of (keys as an Arrow array, partition count) that gives each row's partition, for rows that name none. Workers must be able to import it."),
    Option("partitioner.ignore.keys", parse_boolean, "true, false", "false", "Whether rows with keys are spread as those without."),
    Option("num.partitions", parse_number(1, 100_000), "1 to 100000", "1", "Partitions of a topic that this write creates. An existing topic must have as many."),
    Option("replication.factor", parse_number(1, 32767), "1 to 32767", "1", "In how many log dirs each record of a topic lies that this write creates. An existing topic must have as many."),
    Option("log.dirs", _folders, "folders, with commas between them", "in PATH", "Where a cluster that this write creates keeps its logs: folders, on disks of their own, so many as a record may have replicas. An existing cluster must have the same."),
    Option("acks", parse_acks, "all, -1, 1, 0", "all", "With all, a job is committed where every partition it writes to has `min.insync.replicas` in sync, and fails otherwise; with 1 and 0 those that are in sync are enough. What is in sync gets the data before the commit in any case."),
    Option("request.timeout.ms", parse_number(0), f"0 to {INT_MAX}", "30000", "How long a commit waits for that, before it fails."),
    *TOPIC_OPTIONS,
    Option("adopt.min.bytes", parse_number(0, INT_MAX), "0 to 2147483647", "8388608", "From this size on, what a task wrote for a partition becomes a segment by renaming; smaller pieces are copied."),
    Option("overwrite.delete.delay.ms", parse_number(0, LONG_MAX), "0 or more", "3600000", "How long what `mode(\"overwrite\")` replaces stays on disk, for readers that began before."),
    Option("flush", parse_boolean, "true, false", "true", "Whether a commit is on disk before it is acknowledged. With false a killed process loses nothing, a power loss may lose the last commits."),
    Option("staging.retention.ms", parse_number(60_000, LONG_MAX), "60000 or more", str(STAGING_RETENTION_MS), "A job is dead when nobody has written to any of its staged files for so long; the next commit removes them. More than the longest time for which all tasks of a job may be silent."),
    Option("txnAppId", _txn_app_id, "1 to 1000 characters", "not set", "With `txnVersion`: names who writes, such as a query and one of its sinks. Of each name a version is written once."),
    Option("transactional.id.expiration.ms", parse_number(1, LONG_MAX), "1 or more", "not set", "After how long without a commit a stream, or a `txnAppId`, is forgotten, so that one which comes again then is written again. Not set, each is kept, in about 100 bytes."),
    Option("txnVersion", parse_number(0, 2**63 - 1), "0 or more", "not set", "Of this write; grows. A write whose version is not above the last one of its `txnAppId` comes again and is dropped, with a warning. Batch writes only."),
)
# fmt: on

# Options of Kafka's clients without meaning here, by the reason; accepted with their prefix and ignored.
IGNORED_KAFKA_KEYS_BY_REASON = {
    "there is no broker to reach": (
        "allow.auto.create.topics bootstrap.controllers client.dns.lookup client.id client.rack "
        "connections.max.idle.ms default.api.timeout.ms metadata.max.age.ms metadata.max.idle.ms "
        "metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy "
        "partitioner.availability.timeout.ms receive.buffer.bytes reconnect.backoff.max.ms "
        "reconnect.backoff.ms security.protocol security.providers "
        "send.buffer.bytes socket.connection.setup.timeout.max.ms "
        "socket.connection.setup.timeout.ms"
    ),
    "there are no consumer groups": (
        "auto.commit.interval.ms group.id group.instance.id group.protocol group.remote.assignor "
        "heartbeat.interval.ms max.poll.interval.ms partition.assignment.strategy "
        "session.timeout.ms"
    ),
    "a task reads its range in large pieces, and checks every CRC": (
        "check.crcs exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes "
        "max.partition.fetch.bytes max.poll.records"
    ),
    "a job is acknowledged and repeated as a whole, and a task waits for no memory but its own": (
        "delivery.timeout.ms enable.idempotence max.block.ms "
        "max.in.flight.requests.per.connection max.request.size "
        "partitioner.adaptive.partitioning.enable retries retry.backoff.max.ms retry.backoff.ms "
        "transaction.timeout.ms"
    ),
    "nothing collects metrics": (
        "auto.include.jmx.reporter enable.metrics.push metric.reporters metrics.num.samples "
        "metrics.recording.level metrics.sample.window.ms"
    ),
}
IGNORED_KAFKA_KEYS = frozenset(" ".join(IGNORED_KAFKA_KEYS_BY_REASON.values()).split())
IGNORED_KAFKA_PREFIXES = ("sasl.", "ssl.")
# With their prefix they are ignored on the side that does not know them, as both often share options.
_KAFKA_KEYS_OF_ONE_SIDE = frozenset(
    "acks batch.size buffer.memory compression.gzip.level compression.lz4.level compression.type "
    "compression.zstd.level isolation.level linger.ms partitioner.class partitioner.ignore.keys "
    "request.timeout.ms".split()
)
FORBIDDEN_KAFKA_KEYS = {
    "auto.offset.reset": "give startingOffsets instead",
    "key.deserializer": "keys are read as binary; cast the column",
    "value.deserializer": "values are read as binary; cast the column",
    "key.serializer": "keys are written as they are, string or binary",
    "value.serializer": "values are written as they are, string or binary",
    "enable.auto.commit": "offsets are given by options, nothing is committed",
    "interceptor.classes": "there is no Java client to intercept",
    "transactional.id": "a job is a transaction, and a stream's id is its query's",
}


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Checks every option of a write.

    Raises:
        ConfigError: an unknown key, a bad value, no path; names the key and what is accepted.
    """
    given = _parse(options, WRITE_OPTIONS)
    if ("txnAppId" in given) != ("txnVersion" in given):
        raise ConfigError("options 'txnAppId' and 'txnVersion' belong together; give both or none")
    return WriteOptions(
        path=path_of(given),
        topic=given.get("topic"),
        compression_type=given.get("compression.type", "none"),
        batch_size=given.get("batch.size", 1 * MiB),
        buffer_memory=given.get("buffer.memory", 32 * MiB),
        linger_ms=given.get("linger.ms"),
        compression_level=compression_level(given),
        partitioner_class=given.get("partitioner.class"),
        partitioner_ignore_keys=given.get("partitioner.ignore.keys", False),
        num_partitions=given.get("num.partitions"),
        replication_factor=given.get("replication.factor"),
        log_dirs=given.get("log.dirs", ()),
        acks=given.get("acks", -1),
        request_timeout_ms=given.get("request.timeout.ms", 30_000),
        topic_config=_topic_fields(given),
        adopt_min_bytes=given.get("adopt.min.bytes", 8 * MiB),
        flush=given.get("flush", True),
        staging_retention_ms=given.get("staging.retention.ms", STAGING_RETENTION_MS),
        txn_app_id=given.get("txnAppId"),
        txn_version=given.get("txnVersion"),
        overwrite_delete_delay_ms=given.get("overwrite.delete.delay.ms", 3_600_000),
        transactional_id_expiration_ms=given.get("transactional.id.expiration.ms"),
    )


def parse_topic_config(options: Mapping[str, object]) -> TopicConfig:
    """A topic's settings by Kafka's keys; numbers may be numbers or text.

    Raises:
        ConfigError: an unknown key or a bad value.
    """
    given = _parse({key: str(value) for key, value in options.items()}, TOPIC_OPTIONS)
    return TopicConfig(**_topic_fields(given))


def _topic_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    keys = (option.key for option in TOPIC_OPTIONS)
    return {topic_field(key): given[key] for key in keys if key in given}


def _parse(options: Mapping[str, str], known: tuple[Option, ...]) -> dict[str, Any]:
    given = Given(options, known)
    given.ensure_none_forbidden()
    return {key: given.get(key) for key in given}


class Given:
    """The options of one call, by their keys as the tables have them; each is parsed when it is asked for.

    Iterates over the keys that are known and given.
    """

    def __init__(self, options: Mapping[str, str], known: tuple[Option, ...]) -> None:
        """Match the keys.

        Raises:
            ConfigError: a key that is unknown, or given twice, as with and without `kafka.`.
        """
        by_key = {option.key.lower(): option for option in known}
        self._options: dict[str, Option] = {}
        self._texts: dict[str, str] = {}
        self._forbidden: list[str] = []
        for given_key, text in options.items():
            key = given_key.lower()
            bare = key.removeprefix("kafka.")
            is_kafkas = bare != key and ("." in bare or bare == "acks")
            option = by_key.get(key) or (by_key.get(bare) if is_kafkas else None)
            if option is not None:
                if self._texts.get(option.key, text) != text:
                    raise ConfigError(
                        f"option {option.key!r} is given twice, as {self._texts[option.key]!r} and "
                        f"{text!r}; give it once"
                    )
                self._options[option.key], self._texts[option.key] = option, text
            elif key != bare and bare in FORBIDDEN_KAFKA_KEYS:
                self._forbidden.append(given_key)
            elif key == bare or not (
                bare in IGNORED_KAFKA_KEYS | _KAFKA_KEYS_OF_ONE_SIDE
                or bare.startswith(IGNORED_KAFKA_PREFIXES)
            ):
                refuse_unknown(given_key, [option.key for option in known])

    def __contains__(self, key: str) -> bool:
        return key in self._texts

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def text(self, key: str) -> str:
        """The value of an option that is given, as it is."""
        return self._texts[key]

    def get(self, key: str, default: Any = None) -> Any:
        """The parsed value; raises `ConfigError` where it is not accepted."""
        return self._options[key](self._texts[key]) if key in self._texts else default

    def ensure_none_forbidden(self) -> None:
        """Check for keys that Spark's connector forbids.

        Raises:
            ConfigError: says what to do instead.
        """
        for key in self._forbidden:
            reason = FORBIDDEN_KAFKA_KEYS[key.lower().removeprefix("kafka.")]
            raise ConfigError(f"option {key!r} is not supported: {reason}")


def refuse_unknown(key: str, known: list[str]) -> NoReturn:
    """Raise for a key that nobody knows, with the nearest that is known."""
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(key.lower(), by_lower, n=1, cutoff=0.0)
    raise ConfigError(
        f"unknown option {key!r}; the nearest known one is {by_lower[near[0]]!r}, "
        f"known are: {', '.join(known)}"
    )


def path_of(given: Given | Mapping[str, Any]) -> str:
    """The folder that options name.

    Raises:
        ConfigError: they name none.
    """
    if given.get("path"):
        return str(given.get("path"))
    servers = str(given.get("kafka.bootstrap.servers", "")).strip()
    if not servers:
        raise ConfigError(
            "no path is given: name the cluster's folder in save(PATH) or load(PATH), or in the "
            "option 'kafka.bootstrap.servers'"
        )
    if not servers.startswith(("/", "./", "../", "file:")):
        raise ConfigError(
            f"option 'kafka.bootstrap.servers' is {servers!r}; kbatch has no servers, so this names "
            "the cluster's folder and begins with '/', './' or 'file:'"
        )
    return servers


def options_markdown(known: tuple[Option, ...]) -> str:
    """The options as a Markdown table, as the README has it."""
    lines = ["| option | accepted | default | meaning |", "|---|---|---|---|"]
    for option in known:
        accepts = option.accepts.replace("|", r"\|")
        lines.append(f"| `{option.key}` | {accepts} | {option.default} | {option.text} |")
    return "\n".join(lines)


def ignored_markdown() -> str:
    """What is ignored, as the README has it."""
    lines = ["| accepted and ignored | because |", "|---|---|"]
    for reason, keys in IGNORED_KAFKA_KEYS_BY_REASON.items():
        named = [f"`kafka.{key}`" for key in keys.split()]
        if "broker" in reason:
            named += [f"`kafka.{prefix}*`" for prefix in IGNORED_KAFKA_PREFIXES]
        lines.append(f"| {', '.join(named)} | {reason} |")
    return "\n".join(lines)
