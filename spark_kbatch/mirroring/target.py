"""Interface of a mirror's target, an embedded or a real cluster, which takes batches and progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol, TypeAlias

from spark_kbatch.consumer.topic_reader import TopicReader
from spark_kbatch.errors import ConfigError
from spark_kbatch.mirroring.batches import MirroredBatch
from spark_kbatch.mirroring.progress import Progress
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import Topic, ensure_not_internal, partitions_of
from spark_kbatch.store.catalog import OwnCatalog
from spark_kbatch.store.store import Store

APPLICATION = "kbatch mirror"  # in the history of commits, and in a ledger


class TargetTopic(NamedTuple):
    """A topic in a mirror's target: its id, partition count and largest batch size."""

    topic_id: str  # empty if the cluster tells none
    partitions: int
    max_message_bytes: int  # the most bytes of one batch


class KeptTopic(NamedTuple):
    """A topic's id, first offsets and settings, which the target is to have as the source has them."""

    topic_id: str  # empty if the source tells none
    first_offsets: tuple[int, ...]  # of each partition
    config: Mapping[str, str]  # settings that were given, by Kafka's keys


EndOffsets: TypeAlias = Mapping[str, Mapping[int, int]]  # by topic and partition


def ensure_no_other_wrote(
    target: str, mirror: str, wanted: EndOffsets, ends_of: Callable[[str], Mapping[int, int]]
) -> None:
    """Raise ConfigError if a topic does not end where a mirror found its end, or left it.

    Args:
        target: its path or bootstrap servers.
        mirror: its name.
        wanted: where the topics are to end.
        ends_of: returns where the partitions of a topic end.
    """
    for topic, ends in wanted.items():
        found = ends_of(topic)
        for partition, end in ends.items():
            if found.get(partition) != end:
                raise ConfigError(
                    f"partition {topic}-{partition} of {target} was written to by another process since "
                    f"mirror {mirror!r} began to copy into it; nothing of this unit is visible there. If "
                    "that is another mirror of the same topic, run only one of them"
                )


class Target(Protocol):
    """Interface of a mirror's target, which commits batches and the mirror's progress together.

    Not thread-safe.

    A unit is what is sent between two commits: all of it is visible and its progress stored, or none.
    """

    @property
    def name(self) -> str:
        """The target's path or bootstrap servers, for messages."""

    @property
    def cluster_id(self) -> str:
        """The target cluster's id; empty if it tells none."""

    def take_over(self) -> Progress:
        """Return the mirror's stored progress, and end a unit that an earlier process started.

        From here on an earlier process with the mirror's name cannot commit any more, or, if it did
        so since, this one cannot.
        """

    def topic(self, name: str) -> TargetTopic | None:
        """Return a topic of the target; None if it does not exist."""

    def create_topic(
        self, name: str, partitions: int, kept: KeptTopic | None = None
    ) -> TargetTopic:
        """Create a topic in the target, with the target's default settings or what is to be kept.

        Raises:
            ConfigError: the target cannot keep it.
        """

    def end_offsets(self, topic: str) -> Mapping[int, int]:
        """Return the log end offset of each partition of a topic, 0 if it never had a record."""

    def has_records(self, topic: str) -> bool:
        """Return True if a topic has records that readers see, or will see if their transaction commits."""

    def start(self, progress: Progress) -> None:
        """Store the mirror's initial progress, if it must be there before the first commit."""

    def send(self, topic_partition: TopicPartition, batches: Iterable[MirroredBatch]) -> None:
        """Write a partition's batches, invisible until `commit`, after those already sent."""

    def is_due(self) -> bool:
        """Return True if progress must be stored again so as not to expire, even without new batches."""

    def commit(self, progress: Progress, ends: EndOffsets) -> None:
        """Make the batches sent since the last commit visible, and store the mirror's progress with them.

        The progress is stored without batches, too.

        Args:
            progress: that is reached with them.
            ends: where topics have to end before: those that the mirror writes to for the first time, and all
                that it writes to if it keeps offsets. If another process has written there, the batches do not
                become visible.

        Raises:
            MirrorFencedError: another process mirrors under the same name.
            ConfigError: another process has written to one of the topics.
        """

    def abandon(self) -> None:
        """Discard the batches sent since the last commit, after an error."""

    def close(self) -> None:
        """Close the target, and discard batches that were not committed."""


class OwnTarget:
    """A store in a folder or a bucket, and topics of it: the common part of the targets of our own."""

    def __init__(self, store: Store, catalog: OwnCatalog) -> None:
        """Set up for a store and its topics."""
        self._catalog, self._topics = catalog, dict[str, Topic]()
        self._reader = TopicReader(store.source)
        self.name = store.address
        self.cluster_id = store.cluster_id

    def topic(self, name: str) -> TargetTopic | None:
        """Return a topic of the target cluster; None if it does not exist."""
        ensure_not_internal(name)
        found = self._catalog.find(name)
        return None if found is None else self._known(found)

    def create_topic(
        self, name: str, partitions: int, kept: KeptTopic | None = None
    ) -> TargetTopic:
        """Create a topic with one replica in the target cluster."""
        if kept is not None:
            return self._known(self._catalog.create_moved_topic(name, *kept))
        made = self._catalog.create_topic(
            name,
            partitions=partitions,
            replication_factor=None,
            config={},
            exist_ok=True,
            implied=True,
        )
        return self._known(made)

    def _known(self, topic: Topic) -> TargetTopic:
        self._topics[topic.name] = topic
        return TargetTopic(topic.topic_id, topic.partitions, topic.batch_bytes_max)

    def end_offsets(self, topic: str) -> Mapping[int, int]:
        """Return the log end offset of each partition of a topic of the target."""
        edges = self._reader.edges(partitions_of(self._topics[topic]))
        return {tp.partition: offsets.log_end_offset for tp, offsets in edges.items()}

    def has_records(self, topic: str) -> bool:
        """Return True if a topic of the target has records."""
        edges = self._reader.edges(partitions_of(self._topics[topic])).values()
        return any(one.log_start_offset < one.log_end_offset for one in edges)

    def start(self, progress: Progress) -> None:
        """Do nothing, as the first commit stores the mirror's progress."""

    def is_due(self) -> bool:
        """Return False, as progress that a commit has stored does not expire."""
        return False
