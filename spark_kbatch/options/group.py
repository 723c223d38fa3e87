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
from spark_kbatch.options import kinds
from spark_kbatch.options.option import option, table_of

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
