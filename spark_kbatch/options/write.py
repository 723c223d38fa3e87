"""The options of a write through Spark, parsed once into a frozen dataclass.

Source: Kafka clients/producer/ProducerConfig.java, Spark
connector/kafka-0-10-sql/.../KafkaSourceProvider.scala.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from spark_kbatch.errors import ConfigError, UnknownTopicOrPartitionError
from spark_kbatch.model import CODECS, LONG_MAX, IsolationLevel
from spark_kbatch.options import arguments, kinds
from spark_kbatch.options.object_store import NO_STORE_OPTIONS, StoreOptions, parse_store_options
from spark_kbatch.options.option import (
    BOOTSTRAP,
    PATH,
    GiB,
    Given,
    MiB,
    Option,
    fields_of,
    made_of,
    option,
    table_of,
)
from spark_kbatch.options.remote import ClusterOptions, path_or_cluster_of
from spark_kbatch.options.topic import (
    PARTITIONS_MAX,
    REPLICATION_FACTOR_MAX,
    TOPIC_OPTIONS,
    Topic,
    ensure_valid_topic,
    topic_fields,
    topic_key,
)
from spark_kbatch.options.values import (
    NO_WRITTEN_OPTIONS,
    WRITTEN_VALUE_OPTIONS,
    WrittenValueOptions,
    parse_written_value_options,
    without_registry,
)

logger = logging.getLogger(__name__)

# A decision about a micro-batch: "skip" or "write", its query or NAME@TOPIC, its number.
Resolution: TypeAlias = tuple[str, str, int]

Guarantee: TypeAlias = Literal["exactly-once", "at-least-once", "none"]
_GUARANTEES: tuple[Guarantee, ...] = get_args(Guarantee)

FOREIGN_ENDS = ("log", "checkpoint")
GZIP_LEVEL_DEFAULT, LZ4_LEVEL_DEFAULT, ZSTD_LEVEL_DEFAULT = -1, 9, 3
# A batch's length is an int32, but that bounds only the compressed bytes: 200 KB of zstd can expand to
# 6 GB. 1 GiB is about what deflate, at its best of 1032 : 1, makes of the 1 MiB that message.max.bytes
# allows by default; snappy (21 : 1) and lz4 (255 : 1) make less.
MAX_DECOMPRESSED_BATCH_BYTES = 1 << 30
STAGING_RETENTION_MS = 7 * 24 * 3600 * 1000
COMMITS_RETENTION_BYTES = 256 * MiB
_BUFFER_MEMORY_MIN = 1 * MiB
_PREFIX_LENGTH_MAX = 249
_TXN_APP_ID_LENGTH_MAX = 1000  # the length of its UTF-8 is a 16-bit number in the log


def parse_folders(key: str, value: str) -> tuple[str, ...]:
    """Parse folders, separated by commas as in Kafka's log.dirs."""
    folders = tuple(folder.strip() for folder in value.split(","))
    if not all(folders) or len(set(folders)) < len(folders):
        kinds.refuse(key, value, "different folders, separated by commas")
    return folders


def parse_foreign_end(key: str, value: str | None) -> None:
    """Check the value of `foreign.end`, if it is given: where a read of a broker's logs ends."""
    if value is not None and arguments.text(key, value) not in FOREIGN_ENDS:
        kinds.refuse(key, value, ", ".join(FOREIGN_ENDS))


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
    level = kinds.number(-1, 9).parse(key, value)
    if level == 0:
        kinds.refuse(key, value, "-1, 1 to 9")
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
        kinds.refuse(key, value, ", ".join(level.value for level in IsolationLevel))


def _topic(_key: str, value: str) -> str:
    return ensure_valid_topic(value.strip())


def _txn_app_id(key: str, value: str) -> str:
    if not 0 < len(value) <= _TXN_APP_ID_LENGTH_MAX:
        kinds.refuse(key, value, f"1 to {_TXN_APP_ID_LENGTH_MAX} characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        kinds.refuse(key, value, "text without lone surrogates, which UTF-8 cannot encode")
    return value


def _resolution(key: str, value: str) -> Resolution:
    found = re.fullmatch(r"(skip|write)\s+(\S.*)\s+([0-9]{1,18})", value.strip(), re.DOTALL)
    if found is None:
        kinds.refuse(key, value, "skip QUERY NUMBER, write QUERY NUMBER")
    return found[1], found[2], int(found[3])


def _acks(key: str, value: str) -> int:
    acks = {"all": -1, "-1": -1, "1": 1, "0": 0}.get(value.strip().lower())
    if acks is None:
        kinds.refuse(key, value, "all, -1, 1, 0")
    return acks


def _prefix(key: str, value: str) -> str:
    if not 0 < len(value) <= _PREFIX_LENGTH_MAX or not value.isprintable() or value.isspace():
        kinds.refuse(
            key, value, f"1 to {_PREFIX_LENGTH_MAX} characters, none of them a control character"
        )
    return value


ACKS = kinds.OptionKind(_acks, "all, -1, 1, 0")
CODEC = kinds.one_of(*CODECS)

# fmt: off
COMPRESSION_LEVELS = (
    Option("compression.gzip.level", kinds.OptionKind(_gzip_level, "-1, 1 to 9"), GZIP_LEVEL_DEFAULT, "Compression level for gzip; -1 is zlib's default."),
    Option("compression.lz4.level", kinds.number(1, 17), LZ4_LEVEL_DEFAULT, "Compression level for lz4. 9 is the fast compressor, any other level the high one; 1 and 2 mean 3, and 13 to 17 mean 12."),
    Option("compression.zstd.level", kinds.number(-131072, 22), ZSTD_LEVEL_DEFAULT, "Compression level for zstd."),
)
# fmt: on


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """The parsed options of `df.write.format("kbatch")`."""

    # fmt: off
    path: str = made_of(PATH, BOOTSTRAP)  # empty for a real cluster
    topic: str | None = option("topic", kinds.OptionKind(_topic, "a topic name"), None, "Topic that all rows are written to, whatever a `topic` column says. Created if it does not exist; on a real cluster only if `num.partitions` is given.", "the `topic` column")
    compression_type: str = option("compression.type", CODEC, "none", "Compression codec of the record batches.")
    compression_level: int | None = made_of(*COMPRESSION_LEVELS)
    batch_size: int = option("batch.size", kinds.number(0, 1 * GiB), 1 * MiB, "Size in bytes at which a partition's batch is full; with a codec, the expected size after compression. 0, like 1, makes each record a batch. Kafka's 16384 suits single sends; a job that writes whole columns gets fewer and better compressed batches. Limited to a quarter of buffer.memory and, with the option `topic`, to what lets every partition of the topic have two open batches.")
    buffer_memory: int = option("buffer.memory", kinds.number(0, 2**40, "0 to 2^40"), 32 * MiB, "Bytes of memory that a task may use for open batches; when they are used up, the fullest batch is sent first. Less than 1 MiB is raised to that.")
    linger_ms: int | None = option("linger.ms", kinds.number(0), None, "How long a batch that is not full waits for more rows. Not set, a batch is sent when it is full, when memory is short, or at the end of the task: no one can read a job's data before its commit, so sending earlier (Kafka's 0) gains nothing. On a real cluster, whose readers see each batch, 0 shows rows of a long task earlier, in smaller batches.")
    partitioner_class: str | None = option("partitioner.class", kinds.OptionKind(kinds.parse_dotted_path, "`package.module.function`"), None, "Function that chooses the partition of rows without one: it takes the keys as an Arrow array and the number of partitions, and returns a partition for each row. Executors must be able to import it.", "Kafka's partitioner")
    partitioner_ignore_keys: bool = option("partitioner.ignore.keys", kinds.BOOLEAN, False, "Whether to choose partitions without looking at keys, as for rows that have none.")
    auto_create_topics_enable: bool = option("auto.create.topics.enable", kinds.BOOLEAN, True, "Whether a write creates what it names and does not exist: the topic, and the cluster in a folder or a bucket. With false it fails then. Refused with a real cluster.")
    num_partitions: int | None = option("num.partitions", kinds.number(1, PARTITIONS_MAX), None, "Number of partitions of a topic that this write creates. An existing topic must have as many.", "1; not set, nothing is created on a real cluster")
    replication_factor: int | None = option("replication.factor", kinds.number(1, REPLICATION_FACTOR_MAX), None, "Number of replicas, each in a log dir of its own, of a topic that this write creates. An existing topic must have as many.", "1; on a real cluster what its brokers' `default.replication.factor` says")
    log_dirs: tuple[str, ...] = option("log.dirs", kinds.OptionKind(parse_folders, "folders, separated by commas"), (), "Folders, usually on different disks, for the logs of a cluster that this write creates; a record can have as many replicas as there are folders. An existing cluster must have the same.", "in PATH")
    acks: int = option("acks", ACKS, -1, "With all (-1), a commit fails unless every partition it writes to has at least `min.insync.replicas` in sync; with 1 and 0, fewer are enough. In every case all in-sync replicas have the data before the commit. On a real cluster as in Kafka: with 1 the leader alone has a record before it counts as written, with 0 perhaps no broker.", "all")
    request_timeout_ms: int = option("request.timeout.ms", kinds.number(0), 30_000, "How long a commit waits for enough in-sync replicas before it fails. On a real cluster: how long to wait for the answer to a request before its batches are retried.")
    topic_config: Mapping[str, Any] = made_of(*TOPIC_OPTIONS)  # fields of TopicConfig that the options set
    adopt_min_bytes: int = option("adopt.min.bytes", kinds.number(0), 8 * MiB, "Size from which the file that a task wrote for a partition becomes a segment by renaming; smaller ones are copied. Ignored in a bucket.")
    overwrite_delete_delay_ms: int = option("overwrite.delete.delay.ms", kinds.number(0, LONG_MAX), 3_600_000, "How long data that `mode(\"overwrite\")` replaced stays on disk, for reads that started before. It cannot be chosen for a bucket, where it is an hour.")
    flush: bool = option("flush", kinds.BOOLEAN, True, "Whether a commit is flushed to disk before it is acknowledged. With false, a killed process loses nothing, but a power failure may lose the last commits. Ignored in a bucket.")
    staging_retention_ms: int = option("staging.retention.ms", kinds.number(60_000, LONG_MAX), STAGING_RETENTION_MS, "How long a job's staged files may go without a write before the job counts as dead and the next commit deletes them. Set it higher than the longest time in which no task of a job writes. It cannot be chosen for a bucket, where a job may take a week.")
    commits_retention_bytes: int = option("commits.retention.bytes", kinds.number(-1, LONG_MAX), COMMITS_RETENTION_BYTES, "About how large `__commits`, the history of commits, may grow before its oldest commits are deleted; -1 keeps all. A commit takes 300 bytes, and 8 for each partition of its topics. It cannot be chosen for a bucket, where commits are kept for about a week.")
    maintain_ms: int = option("maintain.ms", kinds.number(0, LONG_MAX), 0, "In a bucket: how long a commit may take to merge small objects of the topics that it wrote to, after it is visible. With 0, `kbatch gc` alone does that. Ignored elsewhere.")
    txn_app_id: str | None = option("txnAppId", kinds.OptionKind(_txn_app_id, "1 to 1000 characters"), None, "With `txnVersion`, makes a batch write idempotent: a unique name of the application, such as that of a query, that writes each version once to each `topic`.")
    transactional_id_expiration_ms: int | None = option("transactional.id.expiration.ms", kinds.number(1, LONG_MAX), None, "How long a stream, or a `txnAppId`, is remembered after its last commit; a retry after that is written again. Not set, each is remembered for good, in about 500 bytes, and up to 4 KiB more for a stream.")
    txn_version: int | None = option("txnVersion", kinds.number(0, LONG_MAX), None, "Version of this write; must increase. A write whose version is below the last one committed for its `txnAppId` and `topic` is skipped as a duplicate, with a warning, and refused within a streaming query. One of the same version is skipped if it has the same number of rows and bytes, and [refused if not](streams.md#checkpoints-are-never-copied-nor-restored). Batch writes only.")
    resolve_micro_batch: Resolution | None = option("resolve.micro.batch", kinds.OptionKind(_resolution, "skip QUERY NUMBER, write QUERY NUMBER"), None, "Decides about one micro-batch that is refused, because its [checkpoint was restored, copied or is shared](streams.md#checkpoints-are-never-copied-nor-restored), or about a version of a `txnAppId` that is refused: whether it is left out, or written. The error says what to give. No other micro-batch is touched.")
    delivery_guarantee: Guarantee | None = option("delivery.guarantee", kinds.one_of(*_GUARANTEES), None, "What a write promises of each row. On a real cluster: with at-least-once, as with Spark's own sink, a task that runs again, or a micro-batch that is repeated, writes its rows again; with [exactly-once](exactly-once.md) a job or a micro-batch is one transaction; with none, acknowledgements (`acks`=0) are not waited for unless `acks` is given, and rows may be lost. A folder or a bucket knows exactly-once alone.", "at-least-once on a real cluster; exactly-once in a folder or a bucket")
    transactional_id_prefix: str | None = option("transactional.id.prefix", kinds.OptionKind(_prefix, "1 to 249 characters"), None, "With exactly-once on a real cluster: the transactional id, and the group whose offsets are the progress of the write. One query at a time may have it; the client needs the rights to write and describe that id, to read that group and to read and write the topics. Ignored in a folder or a bucket.", "required with exactly-once on a real cluster")
    exactly_once_driver_bytes: int = option("exactly.once.driver.bytes", kinds.number(1), 64 * MiB, "With exactly-once on a real cluster: the most bytes of finished batches that a job or a micro-batch may have. They go through the driver, which holds them all in memory. Ignored in a folder or a bucket.")
    transaction_timeout_ms: int = option("transaction.timeout.ms", kinds.number(1), 60_000, "With exactly-once on a real cluster: how long the driver may take to send a job or a micro-batch; then the brokers abort it. At most their `transaction.max.timeout.ms`. So long may a driver that died within its commit hold back readers of committed records. Ignored elsewhere.")
    # fmt: on
    values: WrittenValueOptions = made_of(*WRITTEN_VALUE_OPTIONS, default=NO_WRITTEN_OPTIONS)
    cluster: ClusterOptions | None = None  # a real one, which is written to in place of `path`
    store: StoreOptions = NO_STORE_OPTIONS  # of the bucket
    producer: Mapping[str, str] = field(default_factory=dict)  # of Kafka's, with the real cluster

    def ensure_may_create(self, name: str) -> None:
        """Check that a topic that does not exist may be created.

        Raises:
            UnknownTopicOrPartitionError: these options do not let it be.
        """
        if not self.auto_create_topics_enable:
            raise UnknownTopicOrPartitionError(
                f"topic {name!r} does not exist in {self.path}, and option 'auto.create.topics.enable' is false"
            )

    def ensure_are_of(self, topic: Topic) -> None:
        """Check that an existing topic has the settings that these options ask for.

        Raises:
            ConfigError: it has other settings, or a format without the codec.
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
        ensure_codec_exists(topic, self.compression_type)

    @staticmethod
    def ensure_equal(topic: str, key: str, wanted: Any, existing: Any) -> None:
        """Check that one setting of an existing topic is as asked for; raises as `ensure_are_of`."""
        if wanted not in (None, existing):
            raise ConfigError(
                f"option {key!r} is {wanted}, but topic {topic!r} exists with {existing}; "
                "leave the option out, or write to a new topic"
            )


WRITE_OPTIONS = table_of(WriteOptions, "a write")

# Options that mean something in a folder alone.
EMBEDDED_WRITE_KEYS = (
    "auto.create.topics.enable", "log.dirs", "adopt.min.bytes", "overwrite.delete.delay.ms", "flush", "staging.retention.ms",
    "commits.retention.bytes", "transactional.id.expiration.ms",
)  # fmt: skip
# Options of places that write each row once; those of transactions in a real cluster.
EXACTLY_ONCE_KEYS = ("txnAppId", "txnVersion", "resolve.micro.batch")
TRANSACTION_KEYS = ("transactional.id.prefix", "exactly.once.driver.bytes")
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
            raise ConfigError(
                f"option {key!r} is not supported with a real cluster ({cluster}): it means something "
                "for a cluster in a folder or a bucket alone; leave it out"
            )


def _ensure_guarantee_fits(given: Given, place: ClusterOptions | str) -> None:
    """Check `delivery.guarantee` and what belongs to it.

    Raises:
        ConfigError: the place has another guarantee, or an option is missing or too much.
    """
    guarantee, is_remote = given.get("delivery.guarantee"), not isinstance(place, str)
    if guarantee == "exactly-once":
        if is_remote and "transactional.id.prefix" not in given:
            raise ConfigError(
                "option 'delivery.guarantee' is 'exactly-once', and 'transactional.id.prefix' is not "
                f"given: it names the transactional id and the consumer group in {place} for this query "
                "alone"
            )
    elif guarantee and not is_remote:
        raise ConfigError(
            f"option 'delivery.guarantee' is {guarantee!r}, but a write to {place} is always "
            "exactly-once: leave the option out"
        )
    else:
        for key in (*(EXACTLY_ONCE_KEYS if is_remote else ()), *TRANSACTION_KEYS):
            if key in given:
                raise ConfigError(
                    f"option {key!r} needs 'delivery.guarantee' = 'exactly-once'"
                    + (f": other writes to {place}, a real cluster, may repeat rows" * is_remote)
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
    logger.warning(
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
    given = Given(without_registry(options), WRITE_OPTIONS)
    given.ensure_none_forbidden()
    path, cluster = path_or_cluster_of(given, options)
    if cluster is not None:
        _ensure_no_embedded_keys(given, cluster)
    _ensure_guarantee_fits(given, cluster or path)
    if ("txnAppId" in given) != ("txnVersion" in given):
        raise ConfigError(
            "options 'txnAppId' and 'txnVersion' belong together; give both or neither"
        )
    values = fields_of(WriteOptions, given)
    values["batch_size"] = max(given.get("batch.size"), 1)
    if values.get("delivery_guarantee") == "none" and "acks" not in given:
        values["acks"] = 0
    values["buffer_memory"] = _enough_memory(given.get("buffer.memory"))
    return WriteOptions(
        path=path,
        cluster=cluster,
        store=parse_store_options(options, cluster or path),
        producer={} if cluster is None else _of_the_clusters_producer(options),
        compression_level=compression_level(given.get),
        topic_config=topic_fields(given),
        values=parse_written_value_options(
            given, options, [values["topic"]] if values.get("topic") else []
        ),
        **values,
    )
