"""The options of a server's group coordinator: Kafka's keys and defaults, but for one.

group.initial.rebalance.delay.ms is 100. With Kafka's 3 seconds the first members of each group wait that
long, in each test of each application. With the 0 of Kafka's container images, members that start together
rebalance one after another; and kafka-python, whose first member then divides the partitions before it has
looked up any, can stay in its group without reading.

Source: Kafka group-coordinator/.../GroupCoordinatorConfig.java.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_kbatch.model import INT_MAX, LONG_MAX
from spark_kbatch.options.option import Option, parse_number

METADATA_BYTES_MAX = 32_767  # bytes; more would not fit into the stored format


@dataclass(frozen=True)
class GroupConfig:
    """The parsed options of a group coordinator."""

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 100
    group_max_size: int = INT_MAX
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_minutes: int = 7 * 24 * 60
    offsets_retention_check_interval_ms: int = 600_000
    offsets_commit_timeout_ms: int = 5_000

    @property
    def offsets_retention_ms(self) -> int:
        """Retention of offsets, in ms."""
        return self.offsets_retention_minutes * 60_000


# fmt: off
GROUP_OPTIONS = (
    Option("group.min.session.timeout.ms", parse_number(1), f"1 to {INT_MAX}", GroupConfig.group_min_session_timeout_ms, "Shortest session time-out that a member of a group may ask for."),
    Option("group.max.session.timeout.ms", parse_number(1), f"1 to {INT_MAX}", GroupConfig.group_max_session_timeout_ms, "Longest session time-out that a member of a group may ask for."),
    Option("group.initial.rebalance.delay.ms", parse_number(0), f"0 to {INT_MAX}", GroupConfig.group_initial_rebalance_delay_ms, "Time for which the first rebalance of a group waits for more members. With Kafka's default, 3 seconds, every start of an application would wait that long."),
    Option("group.max.size", parse_number(1), f"1 to {INT_MAX}", GroupConfig.group_max_size, "Maximum number of members of a group.", "not set"),
    Option("offset.metadata.max.bytes", parse_number(0, METADATA_BYTES_MAX), f"0 to {METADATA_BYTES_MAX}", GroupConfig.offset_metadata_max_bytes, "Maximum size of the metadata that a client commits with an offset; in characters, as Kafka counts it."),
    Option("offsets.retention.minutes", parse_number(1), f"1 to {INT_MAX}", GroupConfig.offsets_retention_minutes, "Time for which committed offsets are kept after a group has lost its last member, or after the commit if it never had members."),
    Option("offsets.retention.check.interval.ms", parse_number(1, LONG_MAX), "1 or more", GroupConfig.offsets_retention_check_interval_ms, "Interval at which expired offsets are removed."),
    Option("offsets.commit.timeout.ms", parse_number(1), f"1 to {INT_MAX}", GroupConfig.offsets_commit_timeout_ms, "Time that storing an offset may take before the client gets a retriable error."),
)
# fmt: on
