"""The options of a server: Kafka's keys, and Kafka's defaults if they suit one process on one machine.

For groups, group.initial.rebalance.delay.ms is 100. With Kafka's 3 seconds the first members of
each group wait that long, in each test of each application. With the 0 of Kafka's container images,
members that start together rebalance one after another; and kafka-python, whose first member then
divides the partitions before it has looked up any, can stay in its group without reading.

Source: Kafka server/.../config/ServerConfigs.java, SocketServerConfigs.java;
group-coordinator/.../GroupCoordinatorConfig.java.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_kbatch.errors import ConfigError
from spark_kbatch.model import INT_MAX, LONG_MAX
from spark_kbatch.options import arguments, kinds
from spark_kbatch.options.option import MiB, fields_of, option, refuse_unknown, table_of
from spark_kbatch.options.topic import PARTITIONS_MAX, REPLICATION_FACTOR_MAX

PORT_MAX = 65_535
METADATA_BYTES_MAX = 32_767  # bytes; more would not fit into the stored format


@dataclass(frozen=True)
class GroupConfig:
    """The parsed options of a group coordinator."""

    # fmt: off
    group_min_session_timeout_ms: int = option("group.min.session.timeout.ms", kinds.number(1), 6_000, "Shortest session time-out that a member of a group may ask for.")
    group_max_session_timeout_ms: int = option("group.max.session.timeout.ms", kinds.number(1), 1_800_000, "Longest session time-out that a member of a group may ask for.")
    group_initial_rebalance_delay_ms: int = option("group.initial.rebalance.delay.ms", kinds.number(0), 100, "Time for which the first rebalance of a group waits for more members. With Kafka's default, 3 seconds, every start of an application would wait that long.")
    group_max_size: int = option("group.max.size", kinds.number(1), INT_MAX, "Maximum number of members of a group.", "not set")
    offset_metadata_max_bytes: int = option("offset.metadata.max.bytes", kinds.number(0, METADATA_BYTES_MAX), 4_096, "Maximum size of the metadata that a client commits with an offset; in characters, as Kafka counts it.")
    offsets_retention_minutes: int = option("offsets.retention.minutes", kinds.number(1), 7 * 24 * 60, "Time for which committed offsets are kept after a group has lost its last member, or after the commit if it never had members.")
    offsets_retention_check_interval_ms: int = option("offsets.retention.check.interval.ms", kinds.number(1, LONG_MAX), 600_000, "Interval at which expired offsets are removed.")
    offsets_commit_timeout_ms: int = option("offsets.commit.timeout.ms", kinds.number(1), 5_000, "Time that storing an offset may take before the client gets a retriable error.")
    # fmt: on

    @property
    def offsets_retention_ms(self) -> int:
        """Retention of offsets, in ms."""
        return self.offsets_retention_minutes * 60_000


GROUP_OPTIONS = table_of(GroupConfig)


@dataclass(frozen=True)
class ServerConfig(GroupConfig):
    """The parsed options of a server."""

    # fmt: off
    auto_create_topics_enable: bool = option("auto.create.topics.enable", kinds.BOOLEAN, True, "Whether a topic that does not exist is created when a client asks for it and allows that.")
    num_partitions: int = option("num.partitions", kinds.number(1, PARTITIONS_MAX), 1, "Number of partitions of topics that are created so, or by a client that leaves the number open (-1).")
    default_replication_factor: int = option("default.replication.factor", kinds.number(1, REPLICATION_FACTOR_MAX), 1, "Number of replicas of such topics, each in its own log dir.")
    flush: bool = option("flush", kinds.BOOLEAN, False, "Whether a batch is flushed to disk before it is acknowledged. With false, as in Kafka, a killed process loses nothing, but a power failure may lose acknowledged records.")
    max_connections: int = option("max.connections", kinds.number(1), 2000, "Maximum number of open connections; further ones are closed as soon as they are accepted. The server raises its limit of open files for them; where it may not, it logs how many connections are possible.")
    connections_max_idle_ms: int = option("connections.max.idle.ms", kinds.number(1, LONG_MAX), 600_000, "Time after which an idle connection is closed.")
    socket_request_max_bytes: int = option("socket.request.max.bytes", kinds.number(1024), 100 * MiB, "Largest size of a request; a connection that announces a larger one is closed.")
    queued_max_request_bytes: int = option("queued.max.request.bytes", kinds.number(1 * MiB, LONG_MAX), 128 * MiB, "Memory for requests in progress, of all connections together. While it is used up, further requests are not read, except those of up to 16 KiB.")
    fetch_max_bytes: int = option("fetch.max.bytes", kinds.number(1024), 55 * MiB, "Maximum bytes of records in one answer to a fetch. All answers together may use twice as much memory; a fetch gets what is left of it. The first batch of an answer is sent even if it is larger.")
    transaction_max_timeout_ms: int = option("transaction.max.timeout.ms", kinds.number(1), 60_000, "Longest time for which a producer may ask to have a transaction open. Until it is ended, readers of committed records wait at its first one, Spark's first.")
    log_retention_check_interval_ms: int = option("log.retention.check.interval.ms", kinds.number(1, LONG_MAX), 300_000, "Interval at which old segments of partitions without appends are deleted, and lagging replicas are brought up to date.")
    slow_request_log_ms: int = option("slow.request.log.ms", kinds.number(-1, LONG_MAX), 1_000, "Time after which a request is logged as slow, once a second at most: what it was queued and handled, without what it waited for others. -1 for never.")
    # fmt: on


SERVER_OPTIONS = tuple(sorted(table_of(ServerConfig), key=GROUP_OPTIONS.__contains__))  # those last


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
        parsed = known[key].parse(value)
        if given.setdefault(key, parsed) != parsed:
            raise ConfigError(f"option {key!r} is given twice, with different values; give it once")
    return ServerConfig(**fields_of(ServerConfig, given))


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
