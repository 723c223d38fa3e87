"""The topics of a cluster in a folder, to create, change and delete; a `store.Catalog`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping

from spark_kbatch.commit.coordinator import Coordinator
from spark_kbatch.errors import UnknownTopicOrPartitionError
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import (
    Topic,
    TopicConfig,
    ensure_has_all,
    ensure_not_internal,
    settings_of_a_new_topic,
)
from spark_kbatch.replica import administration
from spark_kbatch.replica.manager import ReplicaManager


class FolderCatalog:
    """The topics of one cluster in a folder."""

    def __init__(
        self,
        manager: ReplicaManager,
        commits: Callable[[], Coordinator],
        make_topic: Callable[..., Topic],
    ) -> None:
        """Set up for one cluster; `make_topic` is `FolderParts.make_topic`."""
        self._manager, self._commits, self._make_topic = manager, commits, make_topic
        self._topics = manager.metadata.topics

    def topics(self, *, internal: bool) -> list[Topic]:
        """Return all topics, sorted by name; internal ones only if asked."""
        return existing(self._topics.topic, self._topics.names(internal=internal))

    def topic(self, name: str) -> Topic:
        """Return a topic with its settings."""
        return self._topics.topic(name)

    def create_topic(
        self,
        name: str,
        *,
        partitions: int | None,
        replication_factor: int | None,
        config: TopicConfig | Mapping[str, object],
        exist_ok: bool,
    ) -> Topic:
        """Create a topic, with one partition and one replica by default."""
        ensure_not_internal(name)
        settings, given = settings_of_a_new_topic(config)
        found = self._topics.find(name)
        if found is None:
            return self._make_topic(
                name,
                TopicConfig(**settings),
                given=given,
                partitions=partitions or 1,
                replication_factor=replication_factor or 1,
                exist_ok=exist_ok,
            )
        ensure_has_all(
            found,
            exist_ok=exist_ok,
            partitions=partitions,
            replication_factor=replication_factor,
            settings=settings,
        )
        return found

    def delete_topic(self, name: str) -> Topic:
        """Delete a topic; its files are removed by the first commit or `gc` after file.delete.delay.ms."""
        ensure_not_internal(name)
        return administration.delete_topic(self._manager, self._commits(), name)

    def create_partitions(self, name: str, total_count: int) -> Topic:
        """Add partitions to a topic."""
        ensure_not_internal(name)
        return administration.create_partitions(self._manager, self._commits(), name, total_count)

    def alter_topic(self, name: str, changes: Mapping[str, object]) -> Topic:
        """Change settings of a topic for everything written from now on."""
        ensure_not_internal(name)
        return administration.alter_topic(self._manager, self._commits(), name, changes)

    def delete_records(self, below: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records below an offset; disk space is freed by whole segments."""
        for topic_partition in below:
            ensure_not_internal(topic_partition.topic)
        done = self._manager.delete_records(below, self._commits())
        return {tp: deletion.log_start_offset for tp, deletion in done.items()}


def existing(find: Callable[[str], Topic], names: Iterable[str]) -> list[Topic]:
    """Return the topics with these names, without those deleted since the names were listed."""
    found = []
    for name in names:
        with contextlib.suppress(UnknownTopicOrPartitionError):
            found.append(find(name))
    return found
