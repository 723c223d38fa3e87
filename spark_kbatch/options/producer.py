"""The options of a producer in plain Python: Kafka's keys, ranges and defaults.

    parse_producer_options({"linger_ms": 5, "acks": "all"})

A key is written with dots or underscores; a value is a string, as in a properties file, or the Python
value it stands for. Keys of Kafka's that only concern a remote broker have no meaning here and are
refused, each with the reason; unknown keys are refused, naming the nearest known one.

Source: Kafka clients/producer/ProducerConfig.java, KafkaProducer.configureDeliveryTimeout,
CommonClientConfigs.warnDisablingExponentialBackoff.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from spark_kbatch.errors import ConfigError
from spark_kbatch.model import BATCHES_REMEMBERED, INT_MAX, LONG_MAX
from spark_kbatch.options import kinds
from spark_kbatch.options.option import MiB, fields_of, made_of, option, refuse_unknown, table_of
from spark_kbatch.options.write import (
    ACKS,
    CODEC,
    COMPRESSION_LEVELS,
    compression_level,
)

logger = logging.getLogger(__name__)

_NAME_LENGTH_MAX = 1000
_BATCH_SIZE_MIN = 16 * 1024  # smaller batches hold too few records to be worth a header


def _name(key: str, value: str) -> str:
    if not 0 < len(value) <= _NAME_LENGTH_MAX or not value.isprintable():
        kinds.refuse(key, value, _NAME.accepts)
    return value


_NAME = kinds.OptionKind(_name, f"a name of 1 to {_NAME_LENGTH_MAX} characters")
_CLIENT_ID = kinds.OptionKind(
    lambda key, value: value and _name(key, value), f"up to {_NAME_LENGTH_MAX} characters"
)


@dataclass(frozen=True)
class ProducerConfig:
    """The parsed options of a producer, checked against each other."""

    # fmt: off
    acks: int = option("acks", ACKS, -1, "When a record counts as sent: once all in-sync replicas have it (all), once the leader has it (1), or at once (0). With 0, offsets stay unknown and errors are not reported.", "all")
    batch_size: int = option("batch.size", kinds.number(0), 16384, "Size in bytes at which a partition's batch is full; limited to a quarter of buffer.memory. 0, like 1, makes each record a batch.")
    linger_ms: int | None = option("linger.ms", kinds.number(0, LONG_MAX), 0, "How long a batch that is not full waits for more records before it is sent. In a bucket, 100 by default.")  # None: no batch is sent because of its age
    buffer_memory: int = option("buffer.memory", kinds.number(0, LONG_MAX), 32 * MiB, "Total bytes of memory for records that wait to be sent. A larger record is refused.")
    max_block_ms: int = option("max.block.ms", kinds.number(0, LONG_MAX), 60_000, "How long `send` waits for free buffer.memory before it fails; in a callback it does not wait.")
    max_request_size: int = option("max.request.size", kinds.number(0), 1 * MiB, "Largest size of a record that `send` takes, and about how many bytes are sent in one request. Rows are bounded by their topic's `max.message.bytes` alone. In a bucket, 8388608 by default.")
    compression_type: str = option("compression.type", CODEC, "none", "Compression codec of the record batches.")
    compression_level: int | None = made_of(*COMPRESSION_LEVELS, default=None)  # None: the codec's default
    delivery_timeout_ms: int = option("delivery.timeout.ms", kinds.number(0), 120_000, "How long after `send` returns a record may take to be delivered, or to fail; at least linger.ms + request.timeout.ms.")
    request_timeout_ms: int = option("request.timeout.ms", kinds.number(0), 30_000, "How long to wait for the answer to a request before its batches are retried.")
    retries: int = option("retries", kinds.number(0), INT_MAX, "Maximum number of retries of a batch after a retriable error. Waiting for a partition that another process has locked is not a retry.")
    retry_backoff_ms: int = option("retry.backoff.ms", kinds.number(0, LONG_MAX), 100, "Pause before the first retry; it doubles with each further one, up to retry.backoff.max.ms.")
    retry_backoff_max_ms: int = option("retry.backoff.max.ms", kinds.number(0, LONG_MAX), 1000, "Longest pause before a retry.")
    max_in_flight_requests_per_connection: int = option("max.in.flight.requests.per.connection", kinds.number(1), 5, "Maximum number of requests that are sent before an answer arrives.")
    enable_idempotence: bool = option("enable.idempotence", kinds.BOOLEAN, True, "Whether retries leave exactly one copy of each record in the log, in order. Requires acks=all, retries of at least 1, and at most 5 requests in flight.")
    transactional_id: str | None = option("transactional.id", _NAME, None, "Name of a producer that writes in transactions: all records of one become visible at once, or none. In a real cluster the last producer that began under a name fences the others. Requires idempotence.", "no transactions")
    transaction_timeout_ms: int = option("transaction.timeout.ms", kinds.number(1), 60_000, "How long a transaction may take until the cluster aborts it and fences its producer; at most the brokers' `transaction.max.timeout.ms`. Ignored in a folder or a bucket.")
    partitioner_class: str | Callable[..., Any] | None = option("partitioner.class", kinds.OptionKind(kinds.parse_dotted_path, "a function, or its path `package.module.function`"), None, "Function that chooses the partition of records without one: it takes the keys as an Arrow array and the number of partitions, and returns a partition for each record.", "Kafka's partitioner")
    partitioner_ignore_keys: bool = option("partitioner.ignore.keys", kinds.BOOLEAN, False, "Whether to choose partitions without looking at keys, as for records that have none.")
    partitioner_adaptive_partitioning_enable: bool = option("partitioner.adaptive.partitioning.enable", kinds.BOOLEAN, True, "Whether records without a key prefer partitions with fewer waiting batches.")
    auto_create_topics_enable: bool = option("auto.create.topics.enable", kinds.BOOLEAN, True, "Whether a topic that does not exist is created, with one partition, when a record is sent to it. A topic that is deleted while the producer runs is not created again. Refused with a real cluster.")
    flush: bool = option("flush", kinds.BOOLEAN, True, "Whether a batch is flushed to disk before it is acknowledged. With false, a killed process loses nothing, but a power failure may lose acknowledged records. Refused with a real cluster.")
    client_id: str = option("client.id", _CLIENT_ID, "", "Name of the producer, for people: in a bucket who wrote, as `kbatch history --all` shows it, and in a real cluster what `spark_kbatch.connect` has by this name, for this producer. Ignored in a folder.", "none")
    maintain_ms: int = option("maintain.ms", kinds.number(0, LONG_MAX), 2000, "In a bucket: how long to merge small objects of the topics that were written to, once in 100 commits; the producer goes on meanwhile, and its process ends after it. The first time is by chance, so that short producers take turns. With 0, `kbatch gc` alone does that. Ignored elsewhere.")
    # fmt: on


PRODUCER_OPTIONS = table_of(ProducerConfig)

_NO_BROKER = "it concerns connections to brokers"
_NO_METRICS = "nothing collects metrics"
_BYTES_ONLY = "records are bytes or text already"
_NO_MEANING = {  # a key that ends in a dot stands for all keys with that prefix
    "auto.include.jmx.reporter": _NO_METRICS,
    "bootstrap.servers": "the cluster is a folder, spark_kbatch.open(PATH)",
    "client.": _NO_BROKER,
    "config.providers": "values are given as they are",
    "config.providers.": "values are given as they are",
    "connections.": _NO_BROKER,
    "enable.metrics.push": _NO_METRICS,
    "interceptor.classes": "there is no Java client to intercept",
    "key.serializer": _BYTES_ONLY,
    "metadata.": "topics are looked up in the cluster's folder",
    "metric.reporters": _NO_METRICS,
    "metrics.": _NO_METRICS,
    "partitioner.availability.timeout.ms": "partitions have no brokers that could be slow",
    "receive.buffer.bytes": _NO_BROKER,
    "reconnect.": _NO_BROKER,
    "sasl.": _NO_BROKER,
    "security.": _NO_BROKER,
    "send.buffer.bytes": _NO_BROKER,
    "socket.": _NO_BROKER,
    "ssl.": _NO_BROKER,
    "transaction.": "no other system takes part in a transaction",
    "value.serializer": _BYTES_ONLY,
}


def parse_producer_options(*options: Mapping[str, Any]) -> ProducerConfig:
    """Parse and check every option of a producer, given by Kafka's keys with dots or underscores.

    Raises:
        ConfigError: an option that is given twice, an unknown key, a key without meaning here, a bad value, or values that contradict
            each other; names the keys and what is accepted.
    """
    known = {option.key: option for option in PRODUCER_OPTIONS}
    given: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, value in (item for mapping in options for item in mapping.items()):
        key = name.replace("_", ".").lower()
        if key in names:
            forms = f", as {names[key]!r} and {name!r}" if names[key] != name else "; give it once"
            raise ConfigError(f"option {key!r} is given twice{forms}")
        names[key] = name
        if key in known:
            is_function = (
                key == "partitioner.class" and callable(value) and not isinstance(value, type)
            )
            given[key] = value if is_function else known[key].parse(value)
        elif (reason := _no_meaning(key)) is not None:
            raise ConfigError(f"option {key!r} has no meaning here: {reason}; leave it out")
        else:
            refuse_unknown(name, list(known))
    values = {key: option.default for key, option in known.items()} | given
    config = ProducerConfig(
        **fields_of(ProducerConfig, given), compression_level=compression_level(values.__getitem__)
    )
    config = replace(
        config,
        batch_size=max(config.batch_size, 1),
        linger_ms=min(config.linger_ms or 0, INT_MAX),
    )
    config = _with_time_to_deliver(config, given)
    _warn_of_a_constant_backoff(config)
    return _with_idempotence_where_possible(config, given)


def fair_batch_size(batch_size: int, buffer_memory: int, partitions: int) -> int:
    """Return a batch size with which each partition of a topic can have an open batch.

    Else batches that are sent to make room for others would hold a record or two.
    """
    each = max(buffer_memory // (2 * partitions), _BATCH_SIZE_MIN)
    return min(batch_size, each)


def _no_meaning(key: str) -> str | None:
    """Return why a key of Kafka's producer has no meaning here; None for any other key."""
    for known, reason in _NO_MEANING.items():
        if key == known or (known.endswith(".") and key.startswith(known)):
            return reason
    return None


def _with_time_to_deliver(config: ProducerConfig, given: Mapping[str, Any]) -> ProducerConfig:
    least = min((config.linger_ms or 0) + config.request_timeout_ms, INT_MAX)
    if config.delivery_timeout_ms >= least:
        return config
    if "delivery.timeout.ms" in given:
        raise ConfigError(
            f"option 'delivery.timeout.ms' is {config.delivery_timeout_ms}; accepted: at least "
            f"'linger.ms' + 'request.timeout.ms', {least}"
        )
    logger.warning("delivery.timeout.ms is raised to linger.ms + request.timeout.ms: %d", least)
    return replace(config, delivery_timeout_ms=least)


def _warn_of_a_constant_backoff(config: ProducerConfig) -> None:
    if config.retry_backoff_ms > config.retry_backoff_max_ms:
        logger.warning(
            "retry.backoff.ms, %d, is greater than retry.backoff.max.ms: every pause is %d ms",
            config.retry_backoff_ms,
            config.retry_backoff_max_ms,
        )


def _with_idempotence_where_possible(
    config: ProducerConfig, given: Mapping[str, Any]
) -> ProducerConfig:
    """Turn idempotence off if another option rules it out, or raise a ConfigError if it was asked for."""
    if not config.enable_idempotence:
        if config.transactional_id is not None:
            raise ConfigError(
                "option 'enable.idempotence' is false and 'transactional.id' is given; accepted with it: true"
            )
        return config
    in_flight = config.max_in_flight_requests_per_connection
    for key, conflicts, wanted, level in (
        ("retries", config.retries == 0, "1 or more", logging.INFO),
        ("acks", config.acks != -1, "all", logging.INFO),
        (
            "max.in.flight.requests.per.connection",
            in_flight > BATCHES_REMEMBERED,
            f"at most {BATCHES_REMEMBERED}",
            logging.WARNING,
        ),
    ):
        if not conflicts:
            continue
        if "enable.idempotence" in given or config.transactional_id is not None:
            asked = (
                "'enable.idempotence' is true"
                if config.transactional_id is None
                else "'transactional.id' is given, which requires idempotence,"
            )
            raise ConfigError(
                f"option {asked} and {key!r} is {given[key]}; accepted with idempotence: {wanted}"
            )
        logger.log(level, "enable.idempotence is off, because %s is %s", key, given[key])
        config = replace(config, enable_idempotence=False)
    return config
