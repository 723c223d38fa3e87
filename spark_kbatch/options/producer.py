"""The options of a producer in plain Python: Kafka's keys, ranges and defaults.

    parse_producer_options({"linger_ms": 5, "acks": "all"})

A key is written with dots or underscores; a value is a string, as in a properties file, or what it
stands for. Keys of Kafka that only concern a remote broker have no meaning here and are refused, each
with the reason; what neither knows is refused with the nearest known key.

Source: Kafka clients/producer/ProducerConfig.java, KafkaProducer.configureDeliveryTimeout,
CommonClientConfigs.warnDisablingExponentialBackoff.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from spark_kbatch.errors import ConfigError
from spark_kbatch.model import INT_MAX, LONG_MAX
from spark_kbatch.options import arguments
from spark_kbatch.options.option import Option, parse_boolean, parse_number, refuse_unknown
from spark_kbatch.options.write import (
    COMPRESSION_LEVELS,
    compression_level,
    parse_acks,
    parse_compression_type,
    parse_dotted_path,
)

logger = logging.getLogger(__name__)

_IN_FLIGHT_MAX = 5  # batches that a log remembers of an idempotent producer


@dataclass(frozen=True)
class ProducerConfig:
    """What a producer was asked for; every rule between options holds."""

    acks: int = -1  # -1 for all
    batch_size: int = 16384
    buffer_memory: int = 32 * 1024 * 1024
    compression_type: str = "none"
    compression_level: int | None = None  # None: the codec's default
    delivery_timeout_ms: int = 120_000
    enable_idempotence: bool = True
    flush: bool = True
    linger_ms: int | None = 0  # None: time alone sends nothing
    max_block_ms: int = 60_000
    max_in_flight_requests_per_connection: int = 5
    max_request_size: int = 1024 * 1024
    partitioner_adaptive_partitioning_enable: bool = True
    partitioner_class: str | Callable[..., Any] | None = None
    partitioner_ignore_keys: bool = False
    request_timeout_ms: int = 30_000
    retries: int = INT_MAX
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1000


# fmt: off
PRODUCER_OPTIONS = (
    Option("acks", parse_acks, "all, -1, 1, 0", "all", "What a record's future waits for: that all in-sync replicas have it, the leader, or nothing. With 0 offsets stay unknown and errors are not told."),
    Option("batch.size", parse_number(0), f"0 to {INT_MAX}", "16384", "Bytes at which a batch of a partition is full; at most a quarter of buffer.memory. 0 is as 1: each record is a batch."),
    Option("linger.ms", parse_number(0, LONG_MAX), "0 or more", "0", "How long a batch that is not full waits for more records."),
    Option("buffer.memory", parse_number(0, LONG_MAX), "0 or more", "33554432", "Bytes that the producer holds in batches, at most. A record that is larger is refused."),
    Option("max.block.ms", parse_number(0, LONG_MAX), "0 or more", "60000", "How long `send` waits for buffer.memory before its record fails."),
    Option("max.request.size", parse_number(0), f"0 to {INT_MAX}", "1048576", "Largest record, and about what goes to the log at once."),
    Option("compression.type", parse_compression_type, "none, gzip, snappy, lz4, zstd", "none", "Codec of the record batches."),
    *COMPRESSION_LEVELS,
    Option("delivery.timeout.ms", parse_number(0), f"0 to {INT_MAX}", "120000", "How long after `send` a record may still be delivered; at least linger.ms + request.timeout.ms."),
    Option("request.timeout.ms", parse_number(0), f"0 to {INT_MAX}", "30000", "How long the log may take to answer before a batch goes again."),
    Option("retries", parse_number(0), f"0 to {INT_MAX}", str(INT_MAX), "Maximum number of retries of a batch after a retriable error. Waiting for a partition that another process has locked is not one."),
    Option("retry.backoff.ms", parse_number(0, LONG_MAX), "0 or more", "100", "Pause before the first retry; it doubles with each, up to retry.backoff.max.ms."),
    Option("retry.backoff.max.ms", parse_number(0, LONG_MAX), "0 or more", "1000", "Longest pause before a retry."),
    Option("max.in.flight.requests.per.connection", parse_number(1), f"1 to {INT_MAX}", "5", "Requests that wait for an answer at a time."),
    Option("enable.idempotence", parse_boolean, "true, false", "true", "Whether a record that goes again is still in the log once, and in order. Needs acks=all, retries, and at most 5 requests in flight."),
    Option("partitioner.class", parse_dotted_path, "a function, or its path `package.module.function`", "Kafka's partitioner", "Of (keys as an Arrow array, partition count), gives each record's partition, for records that name none."),
    Option("partitioner.ignore.keys", parse_boolean, "true, false", "false", "Whether records with keys are spread as those without."),
    Option("partitioner.adaptive.partitioning.enable", parse_boolean, "true, false", "true", "Whether records without a key avoid partitions with many waiting batches."),
    Option("flush", parse_boolean, "true, false", "true", "Whether a batch is on disk before it is acknowledged. With false a killed process loses nothing, a power loss may."),
)
# fmt: on

_NO_BROKER = "there is no broker to reach"
_NO_METRICS = "nothing collects metrics"
_TRANSACTIONS = "transactions are Spark jobs here"
_BYTES_ONLY = "records are bytes or text already"
_NO_MEANING = {  # with a dot at its end: all keys that begin so
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
    "transaction.": _TRANSACTIONS,
    "transactional.id": _TRANSACTIONS,
    "value.serializer": _BYTES_ONLY,
}


def parse_producer_options(options: Mapping[str, Any]) -> ProducerConfig:
    """Checks every option of a producer.

    Raises:
        ConfigError: an unknown key, one without meaning here, a bad value, values that contradict
            each other; names the keys and what is accepted.
    """
    known = {option.key: option for option in PRODUCER_OPTIONS}
    given: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, value in options.items():
        key = name.replace("_", ".").lower()
        if key in names:
            raise ConfigError(f"option {key!r} is given twice, as {names[key]!r} and {name!r}")
        names[key] = name
        if key in known:
            given[key] = _parsed(known[key], value)
        elif (reason := _no_meaning(key)) is not None:
            raise ConfigError(f"option {key!r} has no meaning here: {reason}; leave it out")
        else:
            refuse_unknown(name, list(known))
    level = compression_level(given)
    for option in COMPRESSION_LEVELS:
        given.pop(option.key, None)
    config = ProducerConfig(
        **{key.replace(".", "_"): value for key, value in given.items()}, compression_level=level
    )
    config = replace(
        config,
        batch_size=max(config.batch_size, 1),
        linger_ms=min(config.linger_ms or 0, INT_MAX),
    )
    config = _with_time_to_deliver(config, given)
    _warn_of_a_constant_backoff(config)
    return _with_idempotence_where_possible(config, given)


def _parsed(option: Option, value: Any) -> Any:
    is_function = callable(value) and not isinstance(value, type)
    if option.key == "partitioner.class" and is_function:
        return value
    if isinstance(value, bool):
        return option(str(value).lower())
    if isinstance(value, (int, str)):
        return option(str(value))
    raise ConfigError(
        f"option {option.key!r} is {arguments.shown(value)} of type {type(value).__name__}; "
        f"accepted: {option.accepts}"
    )


def _no_meaning(key: str) -> str | None:
    """Why a key of Kafka's producer has no meaning here; None for keys that it does not have."""
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
    logger.warning("delivery.timeout.ms is raised to linger.ms + request.timeout.ms, %d", least)
    return replace(config, delivery_timeout_ms=least)


def _warn_of_a_constant_backoff(config: ProducerConfig) -> None:
    if config.retry_backoff_ms > config.retry_backoff_max_ms:
        logger.warning(
            "retry.backoff.ms, %d, is greater than retry.backoff.max.ms: every pause is %d",
            config.retry_backoff_ms,
            config.retry_backoff_max_ms,
        )


def _with_idempotence_where_possible(
    config: ProducerConfig, given: Mapping[str, Any]
) -> ProducerConfig:
    """Off where another option rules it out, unless the user asked for it."""
    if not config.enable_idempotence:
        return config
    in_flight = config.max_in_flight_requests_per_connection
    for key, conflicts, wanted, level in (
        ("retries", config.retries == 0, "1 or more", logging.INFO),
        ("acks", config.acks != -1, "all", logging.INFO),
        (
            "max.in.flight.requests.per.connection",
            in_flight > _IN_FLIGHT_MAX,
            f"at most {_IN_FLIGHT_MAX}",
            logging.WARNING,
        ),
    ):
        if not conflicts:
            continue
        if "enable.idempotence" in given:
            raise ConfigError(
                f"option 'enable.idempotence' is true and {key!r} is {given[key]}; accepted with "
                f"idempotence: {wanted}"
            )
        logger.log(level, "idempotence is off, because %s is %s", key, given[key])
        config = replace(config, enable_idempotence=False)
    return config
