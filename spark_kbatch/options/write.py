"""What writes are asked for; strings are parsed once, into a frozen dataclass.

`read_config.py` has the options of reads, `producer_config.py` those of a producer in plain Python,
`topic_config.py` those of topics, and `options.py` what all of them go by.

Source: Kafka clients/producer/ProducerConfig.java, Spark
connector/kafka-0-10-sql/.../KafkaSourceProvider.scala.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_kbatch.errors import ConfigError
from spark_kbatch.model import INT_MAX, LONG_MAX, IsolationLevel
from spark_kbatch.options import arguments
from spark_kbatch.options.option import (
    BOOTSTRAP,
    PATH,
    GiB,
    MiB,
    Option,
    parse_boolean,
    parse_number,
    parse_options,
    path_of,
    refuse,
)
from spark_kbatch.options.topic import (
    TOPIC_OPTIONS,
    Topic,
    ensure_valid_topic,
    topic_fields,
    topic_key,
)

COMPRESSION_TYPES = ("none", "gzip", "snappy", "lz4", "zstd")
FOREIGN_ENDS = ("log", "checkpoint")
# A batch's length is an int32, but that bounds only what is compressed: 200 KB of zstd can stand for
# 6 GB. 1 GiB is about what deflate, at its best of 1032 : 1, makes of the 1 MiB that message.max.bytes
# allows by default; snappy (21 : 1) and lz4 (255 : 1) make less.
MAX_DECOMPRESSED_BATCH_BYTES = 1 << 30
STAGING_RETENTION_MS = 7 * 24 * 3600 * 1000
COMMITS_RETENTION_BYTES = 256 * MiB
_TXN_APP_ID_LENGTH_MAX = 1000  # their UTF-8 has a 16-bit length in the log
_DOTTED_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*[.:][^\W\d]\w*(\.[^\W\d]\w*)*")


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
    commits_retention_bytes: int

    def ensure_are_of(self, topic: Topic) -> None:
        """Check that a topic which exists is as these would have made it.

        Raises:
            ConfigError: it has other settings than they name.
        """
        given = [
            ("num.partitions", self.num_partitions, topic.partitions),
            ("replication.factor", self.replication_factor, topic.replication_factor),
            *(
                (topic_key(field), wanted, getattr(topic.config, field))
                for field, wanted in self.topic_config.items()
            ),
        ]
        for key, wanted, existing in given:
            if wanted not in (None, existing):
                raise ConfigError(
                    f"option {key!r} is {wanted}, but topic {topic.name!r} exists with {existing}; "
                    "leave the option out, or write to a new topic"
                )


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


def parse_acks(key: str, value: str) -> int:
    """The parser of acks."""
    acks = {"all": -1, "-1": -1, "1": 1, "0": 0}.get(value.strip().lower())
    if acks is None:
        refuse(key, value, "all, -1, 1, 0")
    return acks


def parse_folders(key: str, value: str) -> tuple[str, ...]:
    """The parser of folders, with commas between them as in Kafka's log.dirs."""
    folders = tuple(folder.strip() for folder in value.split(","))
    if not all(folders) or len(set(folders)) < len(folders):
        refuse(key, value, "different folders, with commas between them")
    return folders


def parse_foreign_end(key: str, value: str) -> str:
    """The parser of where a broker's logs end."""
    if arguments.text(key, value) not in FOREIGN_ENDS:
        refuse(key, value, ", ".join(FOREIGN_ENDS))
    return value


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
    text = arguments.text(key, value).strip().lower()
    try:
        return IsolationLevel(text)
    except ValueError:
        refuse(key, value, ", ".join(level.value for level in IsolationLevel))


def _topic(_key: str, value: str) -> str:
    return ensure_valid_topic(value.strip())


def _txn_app_id(key: str, value: str) -> str:
    if not 0 < len(value) <= _TXN_APP_ID_LENGTH_MAX:
        refuse(key, value, f"1 to {_TXN_APP_ID_LENGTH_MAX} characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        refuse(key, value, "text without lone surrogates, which UTF-8 does not have")
    return value


# One row a line: the tables read as tables.
# fmt: off
COMPRESSION_LEVELS = (
    Option("compression.gzip.level", _gzip_level, "-1, 1 to 9", "-1", "Level where the codec is gzip; -1 is zlib's default."),
    Option("compression.lz4.level", parse_number(1, 17), "1 to 17", "9", "Level where the codec is lz4; 9 is the fast compressor, every other one the high one. 1 and 2 are as 3, more than 12 is as 12."),
    Option("compression.zstd.level", parse_number(-131072, 22), "-131072 to 22", "3", "Level where the codec is zstd."),
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
    Option("log.dirs", parse_folders, "folders, with commas between them", "in PATH", "Where a cluster that this write creates keeps its logs: folders, on disks of their own, so many as a record may have replicas. An existing cluster must have the same."),
    Option("acks", parse_acks, "all, -1, 1, 0", "all", "With all, a job is committed where every partition it writes to has `min.insync.replicas` in sync, and fails otherwise; with 1 and 0 those that are in sync are enough. What is in sync gets the data before the commit in any case."),
    Option("request.timeout.ms", parse_number(0), f"0 to {INT_MAX}", "30000", "How long a commit waits for that, before it fails."),
    *TOPIC_OPTIONS,
    Option("adopt.min.bytes", parse_number(0, INT_MAX), "0 to 2147483647", "8388608", "From this size on, what a task wrote for a partition becomes a segment by renaming; smaller pieces are copied."),
    Option("overwrite.delete.delay.ms", parse_number(0, LONG_MAX), "0 or more", "3600000", "How long what `mode(\"overwrite\")` replaces stays on disk, for readers that began before."),
    Option("flush", parse_boolean, "true, false", "true", "Whether a commit is on disk before it is acknowledged. With false a killed process loses nothing, a power loss may lose the last commits."),
    Option("staging.retention.ms", parse_number(60_000, LONG_MAX), "60000 or more", str(STAGING_RETENTION_MS), "A job is dead when nobody has written to any of its staged files for so long; the next commit removes them. More than the longest time for which all tasks of a job may be silent."),
    Option("commits.retention.bytes", parse_number(-1, LONG_MAX), "-1 or more", str(COMMITS_RETENTION_BYTES), "About how much of `__commits`, the history of commits, is kept: the oldest commits go while it has more; -1 keeps all. A commit takes 300 bytes, and 8 for each partition of its topics."),
    Option("txnAppId", _txn_app_id, "1 to 1000 characters", "not set", "With `txnVersion`: names who writes, such as a query and one of its sinks. Of each name a version is written once."),
    Option("transactional.id.expiration.ms", parse_number(1, LONG_MAX), "1 or more", "not set", "After how long without a commit a stream, or a `txnAppId`, is forgotten, so that one which comes again then is written again. Not set, each is kept, in about 100 bytes."),
    Option("txnVersion", parse_number(0, LONG_MAX), "0 or more", "not set", "Of this write; grows. A write whose version is not above the last one of its `txnAppId` comes again and is dropped, with a warning. Batch writes only."),
)
# fmt: on


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Checks every option of a write.

    Raises:
        ConfigError: an unknown key, a bad value, no path; names the key and what is accepted.
    """
    given = parse_options(options, WRITE_OPTIONS)
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
        topic_config=topic_fields(given),
        adopt_min_bytes=given.get("adopt.min.bytes", 8 * MiB),
        flush=given.get("flush", True),
        staging_retention_ms=given.get("staging.retention.ms", STAGING_RETENTION_MS),
        txn_app_id=given.get("txnAppId"),
        txn_version=given.get("txnVersion"),
        overwrite_delete_delay_ms=given.get("overwrite.delete.delay.ms", 3_600_000),
        transactional_id_expiration_ms=given.get("transactional.id.expiration.ms"),
        commits_retention_bytes=given.get("commits.retention.bytes", COMMITS_RETENTION_BYTES),
    )
