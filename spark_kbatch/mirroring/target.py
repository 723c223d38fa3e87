"""The target of a mirror, an embedded cluster or a real one: takes batches and progress in units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from spark_kbatch.mirroring.batches import Batch
from spark_kbatch.mirroring.progress import Progress
from spark_kbatch.model import TopicPartition


class TargetTopic(NamedTuple):
    """A topic in the target."""

    topic_id: str  # empty if the cluster tells none
    partitions: int
    max_message_bytes: int  # the most bytes of one batch


class Target(Protocol):
    """The target of one mirror. Not thread-safe.

    A unit is what is sent between two commits: all of it is visible and its progress stored, or none.
    """

    @property
    def name(self) -> str:
        """PATH or the bootstrap servers, for people."""

    @property
    def cluster_id(self) -> str:
        """The cluster's id; empty if it tells none."""

    def take_over(self) -> Progress:
        """Return the progress that is stored; end a unit that an earlier process began.

        From here on an earlier process with the mirror's name cannot commit any more, or, if it did
        so since, this one cannot.
        """

    def topic(self, name: str) -> TargetTopic | None:
        """Return a topic; None if it does not exist."""

    def create_topic(self, name: str, partitions: int) -> TargetTopic:
        """Create a topic with the target's default settings."""

    def end_offsets(self, topic: str) -> Mapping[int, int]:
        """Return the offset after the last record of each partition, 0 if it never had one."""

    def start(self, progress: Progress) -> None:
        """Store the progress with which a mirror starts, where it must be there before the first unit."""

    def send(self, topic_partition: TopicPartition, batches: Iterable[Batch]) -> None:
        """Add batches to the unit, after those of the partition that it has."""

    def is_due(self) -> bool:
        """Return True if the progress has to be stored again, even without a unit, so that it is kept."""

    def commit(self, progress: Progress) -> None:
        """Make the unit visible, and store the progress with it.

        Raises:
            MirrorFencedError: another process mirrors under the same name.
        """

    def abandon(self) -> None:
        """Drop the unit, after an error."""

    def close(self) -> None:
        """Close; a unit that was not committed is dropped."""
