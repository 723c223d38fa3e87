"""The options of a write through Spark, parsed once into a frozen dataclass.

Source: Kafka clients/producer/ProducerConfig.java, Spark
connector/kafka-0-10-sql/.../KafkaSourceProvider.scala.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_kbatch.errors import ConfigError
from spark_kbatch.model import CODECS, INT_MAX, LONG_MAX, IsolationLevel
from spark_kbatch.options import arguments
from spark_kbatch.options.option import (
    BOOTSTRAP,
    PATH,
    GiB,
    Given,
    MiB,
    Option,
    options_of,
    parse_boolean,
    parse_number,
    refuse,
)
from spark_kbatch.options.remote import ClusterOptions, path_or_cluster_of
from spark_kbatch.options.topic import (
    TOPIC_OPTIONS,
    Topic,
    ensure_valid_topic,
    topic_fields,
    topic_key,
)

logger = logging.getLogger(__name__)

FOREIGN_ENDS = ("log", "checkpoint")
GZIP_LEVEL_DEFAULT, LZ4_LEVEL_DEFAULT, ZSTD_LEVEL_DEFAULT = -1, 9, 3
# A batch's length is an int32, but that bounds only the compressed bytes: 200 KB of zstd can expand to
# 6 GB. 1 GiB is about what deflate, at its best of 1032 : 1, makes of the 1 MiB that message.max.bytes
# allows by default; snappy (21 : 1) and lz4 (255 : 1) make less.
MAX_DECOMPRESSED_BATCH_BYTES = 1 << 30
STAGING_RETENTION_MS = 7 * 24 * 3600 * 1000
COMMITS_RETENTION_BYTES = 256 * MiB
_BUFFER_MEMORY_MIN = 1 * MiB
_TXN_APP_ID_LENGTH_MAX = 1000  # the length of its UTF-8 is a 16-bit number in the log
_DOTTED_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*[.:][^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True)
class WriteOptions:
    """The parsed options of `df.write.format("kbatch")`."""

    path: str  # empty for a real cluster
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
    topic_config: Mapping[str, Any]  # fields of TopicConfig that the options set
    adopt_min_bytes: int
    flush: bool
    staging_retention_ms: int
    txn_app_id: str | None
    txn_version: int | None
    overwrite_delete_delay_ms: int
    transactional_id_expiration_ms: int | None
    commits_retention_bytes: int
    auto_create_topics_enable: bool
    cluster: ClusterOptions | None = None  # a real one, which is written to in place of `path`
    producer: Mapping[str, str] = field(default_factory=dict)  # of Kafka's, with the real cluster

    def ensure_are_of(self, topic: Topic) -> None:
        """Check that an existing topic has the settings that these options ask for.

        Raises:
            ConfigError: it has other settings.
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
            self.ensure_equal(topic.name, key, wanted, existing)

    @staticmethod
    def ensure_equal(topic: str, key: str, wanted: Any, existing: Any) -> None:
        """Check that one setting of an existing topic is as asked for; raises as `ensure_are_of`."""
        if wanted not in (None, existing):
            raise ConfigError(
                f"option {key!r} is {wanted}, but topic {topic!r} exists with {existing}; "
                "leave the option out, or write to a new topic"
            )


def parse_compression_type(key: str, value: str) -> str:
    """Parse a codec's name."""
    text = value.strip().lower()
    if text not in CODECS:
        refuse(key, value, ", ".join(CODECS))
    return text


def parse_dotted_path(key: str, value: str) -> str:
    """Parse a function's dotted path; whether it exists is checked where it is imported."""
    text = value.strip()
    if not _DOTTED_PATH.fullmatch(text):
        refuse(key, value, "package.module.function")
    return text


def parse_acks(key: str, value: str) -> int:
    """Parse the value of `acks`: all, -1, 1 or 0."""
    acks = {"all": -1, "-1": -1, "1": 1, "0": 0}.get(value.strip().lower())
    if acks is None:
        refuse(key, value, "all, -1, 1, 0")
    return acks


def parse_folders(key: str, value: str) -> tuple[str, ...]:
    """Parse folders, separated by commas as in Kafka's log.dirs."""
    folders = tuple(folder.strip() for folder in value.split(","))
    if not all(folders) or len(set(folders)) < len(folders):
        refuse(key, value, "different folders, separated by commas")
    return folders


def parse_foreign_end(key: str, value: str) -> str:
    """Check the value of `foreign.end`: where a read of a real broker's log directory ends."""
    if arguments.text(key, value) not in FOREIGN_ENDS:
        refuse(key, value, ", ".join(FOREIGN_ENDS))
    return value


def ensure_codec_exists(topic: Topic, compression_type: str) -> None:
    """Check that a topic's record format supports a compression codec.

    Raises:
        ConfigError: zstd, which is newer than the formats V0 and V1.
    """
    if topic.message_magic < 2 and compression_type == "zstd":
        raise ConfigError(
            f"option 'compression.type' is 'zstd', but topic {topic.name!r} has "
            f"message.format.version={topic.known_config.message_format_version}, a format without zstd; "
            f"accepted: {', '.join(name for name in CODECS if name != 'zstd')}"
        )


def _gzip_level(key: str, value: str) -> int:
    level = parse_number(-1, 9)(key, value)
    if level == 0:
        refuse(key, value, "-1, 1 to 9")
    return level


def compression_level(value_of: Callable[[str], Any]) -> int | None:
    """Return the compression level that options set for their codec; None for a codec without levels.

    Args:
        value_of: returns the parsed value of an option, by its key.
    """
    wanted = f"compression.{value_of('compression.type')}.level"
    keys = (option.key for option in COMPRESSION_LEVELS)
    return next((value_of(key) for key in keys if key == wanted), None)


def parse_isolation_level(key: str, value: str) -> IsolationLevel:
    """Parse an isolation level's name."""
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
        refuse(key, value, "text without lone surrogates, which UTF-8 cannot encode")
    return value


# One row a line: the tables read as tables.
# fmt: off
COMPRESSION_LEVELS = (
    Option("compression.gzip.level", _gzip_level, "-1, 1 to 9", GZIP_LEVEL_DEFAULT, "Compression level for gzip; -1 is zlib's default."),
    Option("compression.lz4.level", parse_number(1, 17), "1 to 17", LZ4_LEVEL_DEFAULT, "Compression level for lz4. 9 is the fast compressor, any other level the high one; 1 and 2 mean 3, and 13 to 17 mean 12."),
    Option("compression.zstd.level", parse_number(-131072, 22), "-131072 to 22", ZSTD_LEVEL_DEFAULT, "Compression level for zstd."),
)

WRITE_OPTIONS = options_of(
    "a write",
    PATH,
    BOOTSTRAP,
    Option("topic", _topic, "a topic name", None, "Topic that all rows are written to, whatever a `topic` column says. Created if it does not exist; on a real cluster only if `num.partitions` is given.", "the `topic` column"),
    Option("compression.type", parse_compression_type, ", ".join(CODECS), "none", "Compression codec of the record batches."),
    *COMPRESSION_LEVELS,
    Option("batch.size", parse_number(0, 1 * GiB), "0 to 1073741824", 1 * MiB, "Size in bytes at which a partition's batch is full; with a codec, the expected size after compression. 0, like 1, makes each record a batch. Kafka's 16384 suits single sends; a job that writes whole columns gets fewer and better compressed batches. Limited to a quarter of buffer.memory and, with the option `topic`, to what lets every partition of the topic have two open batches."),
    Option("buffer.memory", parse_number(0, 2**40), "0 to 2^40", 32 * MiB, "Bytes of memory that a task may use for open batches; when they are used up, the fullest batch is sent first. Less than 1 MiB is raised to that."),
    Option("linger.ms", parse_number(0), f"0 to {INT_MAX}", None, "How long a batch that is not full waits for more rows. Not set, a batch is sent when it is full, when memory is short, or at the end of the task: no one can read a job's data before its commit, so sending earlier (Kafka's 0) gains nothing. On a real cluster, whose readers see each batch, 0 shows rows of a long task earlier, in smaller batches."),
    Option("partitioner.class", parse_dotted_path, "`package.module.function`", None, "Function that chooses the partition of rows without one: it takes the keys as an Arrow array and the number of partitions, and returns a partition for each row. Executors must be able to import it.", "Kafka's partitioner"),
    Option("partitioner.ignore.keys", parse_boolean, "true, false", False, "Whether to choose partitions without looking at keys, as for rows that have none."),
    Option("auto.create.topics.enable", parse_boolean, "true, false", True, "Whether a write creates what it names and does not exist: the topic, and the cluster in a folder. With false it fails then."),
    Option("num.partitions", parse_number(1, 100_000), "1 to 100000", None, "Number of partitions of a topic that this write creates. An existing topic must have as many.", "1; not set, nothing is created on a real cluster"),
    Option("replication.factor", parse_number(1, 32767), "1 to 32767", None, "Number of replicas, each in a log dir of its own, of a topic that this write creates. An existing topic must have as many.", "1; on a real cluster what its brokers' `default.replication.factor` says"),
    Option("log.dirs", parse_folders, "folders, separated by commas", (), "Folders, usually on different disks, for the logs of a cluster that this write creates; a record can have as many replicas as there are folders. An existing cluster must have the same.", "in PATH"),
    Option("acks", parse_acks, "all, -1, 1, 0", -1, "With all (-1), a commit fails unless every partition it writes to has at least `min.insync.replicas` in sync; with 1 and 0, fewer are enough. In every case all in-sync replicas have the data before the commit. On a real cluster as in Kafka: with 1 the leader alone has a record before it counts as written, with 0 perhaps no broker.", "all"),
    Option("request.timeout.ms", parse_number(0), f"0 to {INT_MAX}", 30_000, "How long a commit waits for enough in-sync replicas before it fails. On a real cluster: how long to wait for the answer to a request before its batches are retried."),
    *TOPIC_OPTIONS,
    Option("adopt.min.bytes", parse_number(0, INT_MAX), "0 to 2147483647", 8 * MiB, "Size from which the file that a task wrote for a partition becomes a segment by renaming; smaller ones are copied."),
    Option("overwrite.delete.delay.ms", parse_number(0, LONG_MAX), "0 or more", 3_600_000, "How long data that `mode(\"overwrite\")` replaced stays on disk, for reads that started before."),
    Option("flush", parse_boolean, "true, false", True, "Whether a commit is flushed to disk before it is acknowledged. With false, a killed process loses nothing, but a power failure may lose the last commits."),
    Option("staging.retention.ms", parse_number(60_000, LONG_MAX), "60000 or more", STAGING_RETENTION_MS, "How long a job's staged files may go without a write before the job counts as dead and the next commit deletes them. Set it higher than the longest time in which no task of a job writes."),
    Option("commits.retention.bytes", parse_number(-1, LONG_MAX), "-1 or more", COMMITS_RETENTION_BYTES, "About how large `__commits`, the history of commits, may grow before its oldest commits are deleted; -1 keeps all. A commit takes 300 bytes, and 8 for each partition of its topics."),
    Option("txnAppId", _txn_app_id, "1 to 1000 characters", None, "With `txnVersion`, makes a batch write idempotent: a unique name of the application, such as a query and one of its sinks, that writes each version once."),
    Option("transactional.id.expiration.ms", parse_number(1, LONG_MAX), "1 or more", None, "How long a stream, or a `txnAppId`, is remembered after its last commit; a retry after that is written again. Not set, each is remembered for good, in about 100 bytes."),
    Option("txnVersion", parse_number(0, LONG_MAX), "0 or more", None, "Version of this write; must increase. A write whose version is not above the last one committed for its `txnAppId` is skipped as a duplicate, with a warning. Batch writes only."),
)
# fmt: on


# Options that mean something in a folder alone.
EMBEDDED_WRITE_KEYS = (
    "auto.create.topics.enable", "log.dirs", "adopt.min.bytes", "overwrite.delete.delay.ms", "flush", "staging.retention.ms",
    "commits.retention.bytes", "txnAppId", "txnVersion", "transactional.id.expiration.ms",
)  # fmt: skip
# Keys of Kafka's producer that mean something with a real cluster alone; as in Spark's connector they need
# the prefix.
CLUSTER_WRITE_KEYS = (
    "delivery.timeout.ms", "enable.idempotence", "max.block.ms",
    "max.in.flight.requests.per.connection", "max.request.size",
    "partitioner.adaptive.partitioning.enable", "retries", "retry.backoff.max.ms", "retry.backoff.ms",
)  # fmt: skip


def _ensure_no_embedded_keys(given: Given, cluster: ClusterOptions) -> None:
    for key in EMBEDDED_WRITE_KEYS:
        if key in given:
            why = (
                "a write to one is at least once"
                if key.startswith("txn")
                else "it means something for an embedded cluster, a folder, alone"
            )
            raise ConfigError(
                f"option {key!r} is not supported with a real cluster ({cluster}): {why}; leave it out"
            )


def _of_the_clusters_producer(options: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, text in options.items():
        key = name.lower().removeprefix("kafka.")
        if key != name.lower() and key in CLUSTER_WRITE_KEYS:
            found[key] = text
    return found


def _enough_memory(buffer_memory: int) -> int:
    if buffer_memory >= _BUFFER_MEMORY_MIN:
        return buffer_memory
    logger.info(
        "option 'buffer.memory' is raised from %d to %d bytes, the least that a task needs",
        buffer_memory,
        _BUFFER_MEMORY_MIN,
    )
    return _BUFFER_MEMORY_MIN


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse and check every option of a write.

    Raises:
        ConfigError: an unknown key, a bad value, or no path; names the key and what is accepted.
    """
    given = Given(options, WRITE_OPTIONS)
    given.ensure_none_forbidden()
    path, cluster = path_or_cluster_of(given, options)
    if cluster is not None:
        _ensure_no_embedded_keys(given, cluster)
    if ("txnAppId" in given) != ("txnVersion" in given):
        raise ConfigError(
            "options 'txnAppId' and 'txnVersion' belong together; give both or neither"
        )
    return WriteOptions(
        path=path,
        cluster=cluster,
        producer={} if cluster is None else _of_the_clusters_producer(options),
        topic=given.get("topic"),
        compression_type=given.get("compression.type"),
        batch_size=max(given.get("batch.size"), 1),
        buffer_memory=_enough_memory(given.get("buffer.memory")),
        linger_ms=given.get("linger.ms"),
        compression_level=compression_level(given.get),
        partitioner_class=given.get("partitioner.class"),
        partitioner_ignore_keys=given.get("partitioner.ignore.keys"),
        num_partitions=given.get("num.partitions"),
        replication_factor=given.get("replication.factor"),
        log_dirs=given.get("log.dirs"),
        acks=given.get("acks"),
        request_timeout_ms=given.get("request.timeout.ms"),
        topic_config=topic_fields(given),
        adopt_min_bytes=given.get("adopt.min.bytes"),
        flush=given.get("flush"),
        staging_retention_ms=given.get("staging.retention.ms"),
        txn_app_id=given.get("txnAppId"),
        txn_version=given.get("txnVersion"),
        overwrite_delete_delay_ms=given.get("overwrite.delete.delay.ms"),
        transactional_id_expiration_ms=given.get("transactional.id.expiration.ms"),
        commits_retention_bytes=given.get("commits.retention.bytes"),
        auto_create_topics_enable=given.get("auto.create.topics.enable"),
    )
