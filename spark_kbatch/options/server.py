"""The options of a server: Kafka's keys, and Kafka's defaults if they suit one process on one machine.

Source: Kafka server/.../config/ServerConfigs.java, SocketServerConfigs.java.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_kbatch.errors import ConfigError
from spark_kbatch.model import INT_MAX, LONG_MAX
from spark_kbatch.options import arguments
from spark_kbatch.options.group import GROUP_OPTIONS, GroupConfig
from spark_kbatch.options.option import MiB, Option, parse_boolean, parse_number, refuse_unknown
from spark_kbatch.options.topic import PARTITIONS_MAX, REPLICATION_FACTOR_MAX

PORT_MAX = 65_535


@dataclass(frozen=True)
class ServerConfig(GroupConfig):
    """The parsed options of a server."""

    auto_create_topics_enable: bool = True
    num_partitions: int = 1
    default_replication_factor: int = 1
    flush: bool = False
    max_connections: int = 2000
    connections_max_idle_ms: int = 600_000
    socket_request_max_bytes: int = 100 * MiB
    queued_max_request_bytes: int = 128 * MiB
    fetch_max_bytes: int = 55 * MiB
    log_retention_check_interval_ms: int = 300_000


# fmt: off
SERVER_OPTIONS = (
    Option("auto.create.topics.enable", parse_boolean, "true, false", ServerConfig.auto_create_topics_enable, "Whether a topic that does not exist is created when a client asks for it and allows that."),
    Option("num.partitions", parse_number(1, PARTITIONS_MAX), f"1 to {PARTITIONS_MAX}", ServerConfig.num_partitions, "Number of partitions of topics that are created so, or by a client that leaves the number open (-1)."),
    Option("default.replication.factor", parse_number(1, REPLICATION_FACTOR_MAX), f"1 to {REPLICATION_FACTOR_MAX}", ServerConfig.default_replication_factor, "Number of replicas of such topics, each in its own log dir."),
    Option("flush", parse_boolean, "true, false", ServerConfig.flush, "Whether a batch is flushed to disk before it is acknowledged. With false, as in Kafka, a killed process loses nothing, but a power failure may lose acknowledged records."),
    Option("max.connections", parse_number(1), f"1 to {INT_MAX}", ServerConfig.max_connections, "Maximum number of open connections; further ones are closed as soon as they are accepted. The server raises its limit of open files for them; where it may not, it logs how many connections are possible."),
    Option("connections.max.idle.ms", parse_number(1, LONG_MAX), "1 or more", ServerConfig.connections_max_idle_ms, "Time after which an idle connection is closed."),
    Option("socket.request.max.bytes", parse_number(1024), f"1024 to {INT_MAX}", ServerConfig.socket_request_max_bytes, "Largest size of a request; a connection that announces a larger one is closed."),
    Option("queued.max.request.bytes", parse_number(1 * MiB, LONG_MAX), "1048576 or more", ServerConfig.queued_max_request_bytes, "Memory for requests in progress, of all connections together. While it is used up, further requests are not read, except those of up to 16 KiB."),
    Option("fetch.max.bytes", parse_number(1024), f"1024 to {INT_MAX}", ServerConfig.fetch_max_bytes, "Maximum bytes of records in one answer to a fetch. All answers together may use twice as much memory; a fetch gets what is left of it. The first batch of an answer is sent even if it is larger."),
    Option("log.retention.check.interval.ms", parse_number(1, LONG_MAX), "1 or more", ServerConfig.log_retention_check_interval_ms, "Interval at which old segments of partitions without appends are deleted, and lagging replicas are brought up to date."),
    *GROUP_OPTIONS,
)
# fmt: on


def parse_server_options(*options: Mapping[str, Any]) -> ServerConfig:
    """Parse and check the options of a server, keys with dots or underscores.

    Raises:
        ConfigError: an unknown key, a key given twice with different values, or a bad value.
    """
    known = {option.key: option for option in SERVER_OPTIONS}
    given: dict[str, Any] = {}
    for name, value in (one for some in options for one in some.items()):
        key = name.replace("_", ".").lower()
        if key not in known:
            refuse_unknown(name, list(known))
        parsed = _parsed(known[key], value)
        if given.setdefault(key, parsed) != parsed:
            raise ConfigError(f"option {key!r} is given twice, with different values; give it once")
    return ServerConfig(**{key.replace(".", "_"): value for key, value in given.items()})


def parse_address(name: str, value: str, *, any_port: bool = False) -> tuple[str, int]:
    """Return host and port of HOST:PORT; an IPv6 address is in brackets.

    Args:
        name: for errors.
        value: the text to parse.
        any_port: whether port 0 is accepted, which stands for any free port.

    Raises:
        ConfigError: `value` is something else.
    """
    host, colon, port = arguments.text(name, value).rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    is_number = port.isascii() and port.isdecimal() and len(port) <= len(str(PORT_MAX))
    if not (host and colon and is_number and (0 if any_port else 1) <= int(port) <= PORT_MAX):
        arguments.refuse(name, value, "HOST:PORT, such as localhost:9092 or [::1]:9092")
    return host, int(port)


def _parsed(option: Option, value: Any) -> Any:
    if isinstance(value, bool):
        return option.parse(option.key, str(value).lower())
    if isinstance(value, (int, str)):
        return option.parse(option.key, str(value))
    raise ConfigError(
        f"option {option.key!r} is {arguments.shown(value)} of type {type(value).__name__}; "
        f"accepted: {option.accepts}"
    )
