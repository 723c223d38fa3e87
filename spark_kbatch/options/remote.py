"""The options of a client of a real Kafka cluster: bootstrap servers, time-outs, security.

    parse_cluster_options({"kafka.bootstrap.servers": "host:9092", "kafka.client.id": "reports"})

Keys are Kafka's, with or without the prefix `kafka.`, in any case; defaults are Kafka's, but for
max.partition.fetch.bytes: a task reads one partition, and larger answers cost less for each record. The result
is hashable and can be pickled: it travels to Spark's tasks, where clients are shared by it. Its `repr` has no
secrets.

Source: Kafka clients/.../clients/CommonClientConfigs.java, ClientUtils.java, consumer/ConsumerConfig.java,
admin/AdminClientConfig.java.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_kbatch.errors import ConfigError
from spark_kbatch.model import LONG_MAX
from spark_kbatch.options import kinds
from spark_kbatch.options.option import (
    FORBIDDEN_KAFKA_KEYS,
    IGNORED_KAFKA_KEYS,
    Given,
    MiB,
    Option,
    fields_of,
    made_of,
    option,
    path_of,
    refuse_unknown,
    repr_of,
    table_of,
)
from spark_kbatch.options.security import (
    IGNORED_SECURITY_KEYS,
    REFUSED_SECURITY_KEYS,
    SECURITY_OPTIONS,
    Security,
    security_of,
)

_PORT_MAX = 65_535
_SERVER = re.compile(
    r"(?:(?P<scheme>[A-Za-z_]+)://)?(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[A-Za-z0-9_][A-Za-z0-9_.\-]*):(?P<port>\d{1,5})"
)
_SERVERS_ACCEPTED = (
    "HOST:PORT, such as localhost:9092 or [::1]:9092, or several separated by commas"
)


def is_address(text: str) -> bool:
    """Return True if a text names servers, as HOST:PORT separated by commas, and not a folder."""
    servers = [one.strip() for one in text.split(",") if one.strip()]
    return bool(servers) and all(
        _SERVER.fullmatch(one) and not one.lower().startswith("file:") for one in servers
    )


def host_and_port(server: str) -> tuple[str, int]:
    """Return host and port of one of `ClusterOptions.bootstrap_servers`."""
    host, _, port = server.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _bootstrap_servers(key: str, value: str) -> tuple[str, ...]:
    if not is_address(value):
        kinds.refuse(key, value, _SERVERS_ACCEPTED)
    found = [_SERVER.fullmatch(one.strip()) for one in value.split(",") if one.strip()]
    if any(one and str(one["scheme"]).lower() in ("http", "https") for one in found):
        kinds.refuse(key, value, _SERVERS_ACCEPTED, ", and a Kafka broker speaks no HTTP")
    servers = [f"{one['host']}:{one['port']}" for one in found if one]
    if any(not 1 <= host_and_port(one)[1] <= _PORT_MAX for one in servers):
        kinds.refuse(key, value, f"ports from 1 to {_PORT_MAX}")
    return tuple(dict.fromkeys(servers))


@dataclass(frozen=True, repr=False)
class ClusterOptions:
    """The parsed options of a client of a real Kafka cluster."""

    # fmt: off
    bootstrap_servers: tuple[str, ...] = made_of(Option("bootstrap.servers", kinds.OptionKind(_bootstrap_servers, _SERVERS_ACCEPTED), None, "Servers to ask first; they name all others of the cluster.", "required"))  # HOST:PORT each
    client_id: str = option("client.id", kinds.stripped("text"), "spark-kbatch", "Name of the client in the brokers' logs, metrics and quotas.")
    client_rack: str = option("client.rack", kinds.stripped("text"), "", "Rack of the client: brokers with `replica.selector.class` let it read from the nearest replica.", "none")
    request_timeout_ms: int = option("request.timeout.ms", kinds.number(1), 30_000, "How long to wait for the answer to one request; then the connection is closed, and the request fails or is retried.")
    default_api_timeout_ms: int = option("default.api.timeout.ms", kinds.number(1), 60_000, "How long to retry what may fail transiently, such as a lost connection or a partition without a leader, before it fails.")
    metadata_max_age_ms: int = option("metadata.max.age.ms", kinds.number(0, LONG_MAX), 300_000, "Time after which topics, partitions and leaders are looked up again, even if nothing failed.")
    metadata_recovery_strategy: str = option("metadata.recovery.strategy", kinds.one_of("rebootstrap", "none"), "rebootstrap", "What to do if none of the known brokers can be reached: ask the bootstrap servers again, or go on with the known ones.")
    retry_backoff_ms: int = option("retry.backoff.ms", kinds.number(0, LONG_MAX), 100, "Pause before the first retry; it doubles with each further one, up to retry.backoff.max.ms.")
    retry_backoff_max_ms: int = option("retry.backoff.max.ms", kinds.number(0, LONG_MAX), 1000, "Longest pause before a retry.")
    reconnect_backoff_ms: int = option("reconnect.backoff.ms", kinds.number(0, LONG_MAX), 50, "Pause before the first attempt to connect to a broker again; it doubles with each further one, up to reconnect.backoff.max.ms.")
    reconnect_backoff_max_ms: int = option("reconnect.backoff.max.ms", kinds.number(0, LONG_MAX), 1000, "Longest pause before an attempt to connect again.")
    connections_max_idle_ms: int = option("connections.max.idle.ms", kinds.number(1, LONG_MAX), 540_000, "Time after which an idle connection is closed.")
    socket_connection_setup_timeout_ms: int = option("socket.connection.setup.timeout.ms", kinds.number(1, LONG_MAX), 10_000, "How long a connection may take to be made, TLS included; it doubles with each failure, up to socket.connection.setup.timeout.max.ms.")
    socket_connection_setup_timeout_max_ms: int = option("socket.connection.setup.timeout.max.ms", kinds.number(1, LONG_MAX), 30_000, "Longest time that a connection may take to be made.")
    fetch_max_bytes: int = option("fetch.max.bytes", kinds.number(0), 50 * MiB, "Maximum bytes of records in one answer to a fetch. The first batch is sent even if it is larger.")
    fetch_min_bytes: int = option("fetch.min.bytes", kinds.number(0), 1, "Bytes that a broker waits for before it answers a fetch.")
    fetch_max_wait_ms: int = option("fetch.max.wait.ms", kinds.number(0), 500, "How long a broker waits for fetch.min.bytes.")
    max_partition_fetch_bytes: int = option("max.partition.fetch.bytes", kinds.number(0), 4 * MiB, "Maximum bytes of one partition in an answer to a fetch. The first batch is sent even if it is larger. A task holds two answers; one that reads several small ranges also holds, of each of them, two of at most 1 MiB. Kafka's default is 1 MiB.")
    check_crcs: bool = option("check.crcs", kinds.BOOLEAN, True, "Ignored: the CRC of each batch is always checked.")
    security: Security = made_of(*SECURITY_OPTIONS, default=Security())
    # fmt: on

    def __repr__(self) -> str:
        return repr_of(self)

    def __str__(self) -> str:
        return ",".join(self.bootstrap_servers)


CLUSTER_OPTIONS = table_of(ClusterOptions)
_KEYS = {option.key: option for option in CLUSTER_OPTIONS}


def parse_cluster_options(options: Mapping[str, Any], *, alone: bool = False) -> ClusterOptions:
    """Parse and check the options of a client of a real Kafka cluster.

    Args:
        options: of a read, a write or a client. Keys of Spark's connector, and keys of Kafka's that do not
            concern the connection, are left to others.
        alone: whether these are all options of the caller, so that any other key is unknown; keys are
            then accepted with underscores too.

    Raises:
        ConfigError: an unknown or forbidden key, a bad value, or options that do not fit together. A
            secret's value is not repeated.
    """
    values: dict[str, Any] = {}
    texts: dict[str, Any] = {}
    for name, value in options.items():
        key = _bare(name, alone=alone)
        option = _KEYS.get(key)
        if option is None:
            _ensure_known(name, key, alone=alone)
        elif texts.setdefault(key, value) != value:
            raise ConfigError(f"option {key!r} is given twice, with different values; give it once")
        else:
            values[key] = option.kind.parse(key, _as_text(key, value))
    if "bootstrap.servers" not in values:
        raise ConfigError(
            f"option 'kafka.bootstrap.servers' is not given; accepted: {_SERVERS_ACCEPTED}"
        )
    return ClusterOptions(**fields_of(ClusterOptions, values), security=security_of(values))


def parse_client_options(servers: Any, *given: Mapping[str, Any]) -> ClusterOptions:
    """Parse all options of a client, from the servers to ask first and from mappings of other keys.

    Raises the errors of `parse_cluster_options`, and ConfigError if a key is given twice.
    """
    options: dict[str, Any] = {"bootstrap.servers": servers}
    for name, value in (item for mapping in given for item in mapping.items()):
        key = name.replace("_", ".").lower().removeprefix("kafka.")
        if options.setdefault(key, value) is not value:
            raise ConfigError(f"option {key!r} is given twice; give it once")
    return parse_cluster_options(options, alone=True)


def _bare(name: str, *, alone: bool) -> str:
    key = name.lower().removeprefix("kafka.")
    return key.replace("_", ".") if alone else key


def _as_text(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, str)):
        return str(value)
    if isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value):
        return ",".join(value)
    raise ConfigError(f"option {key!r} is of type {type(value).__name__}; accepted: text")


def _ensure_known(name: str, key: str, *, alone: bool) -> None:
    """Raise a ConfigError for a key that a client of a real Kafka cluster does not know or support."""
    is_kafkas = name.lower() != key or alone
    if key in REFUSED_SECURITY_KEYS:
        raise ConfigError(f"option {name!r} is not supported: {REFUSED_SECURITY_KEYS[key]}")
    if is_kafkas and key in FORBIDDEN_KAFKA_KEYS:
        reason = FORBIDDEN_KAFKA_KEYS[key]
        if alone and key == "auto.offset.reset":
            reason = "each read says where it starts, by `start` in Python, `kbatch consume --start` in a shell"
        raise ConfigError(f"option {name!r} is not supported: {reason}")
    if key in IGNORED_SECURITY_KEYS or (is_kafkas and key in IGNORED_KAFKA_KEYS):
        return
    if alone or key.startswith(("ssl.", "sasl.")):
        refuse_unknown(name, list(_KEYS))


def path_or_cluster_of(
    given: Given, options: Mapping[str, str]
) -> tuple[str, ClusterOptions | None]:
    """Return the path that options name and None, or an empty path and the options of a real cluster.

    An address as path, as in `load("host:9092")`, is that of a real cluster.

    Args:
        given: the options, matched with those that are known.
        options: the same, as they were given.

    Raises:
        ConfigError: they name neither; or the options of the cluster are not accepted.
    """
    servers, path = (str(given.get(key) or "") for key in ("kafka.bootstrap.servers", "path"))
    if not servers and is_address(path):
        options, servers, path = {**options, "kafka.bootstrap.servers": path}, path, ""
    if path or not is_address(servers):
        if is_address(path):
            raise ConfigError(
                f"path is {path!r}, the address of a real cluster, and the option "
                f"'kafka.bootstrap.servers' is {servers!r}: give one of them; a folder of this name "
                f"is './{path}'"
            )
        return path_of(given), None
    return "", parse_cluster_options(options)
