"""The settings of the group coordinator, under Kafka's names."""

from __future__ import annotations

from dataclasses import dataclass

from spark_kbatch.model import INT_MAX


@dataclass(frozen=True)
class GroupConfig:
    """Settings of a broker's group coordinator. Each field is a key of Kafka's, with its default.

    One default differs: group.initial.rebalance.delay.ms is 0, as in Kafka's container images. With
    Kafka's 3 seconds every first member of a group waits that long, in each test of each application;
    what is saved is a rebalance where several start at once.
    """

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 0
    group_max_size: int = INT_MAX
    offset_metadata_max_bytes: int = 4_096  # in characters, as Kafka counts
    offsets_retention_minutes: int = 7 * 24 * 60
    offsets_retention_check_interval_ms: int = 600_000
    offsets_commit_timeout_ms: int = 5_000

    @property
    def offsets_retention_ms(self) -> int:
        """How long offsets are kept, in ms."""
        return self.offsets_retention_minutes * 60_000
