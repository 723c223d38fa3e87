"""The topics of a cluster in a folder, to create, change and delete; a `store.Catalog`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import Topic, TopicConfig, ensure_not_internal
from spark_kbatch.replica import administration
from spark_kbatch.store.catalog import OwnCatalog, existing

logger = logging.getLogger(__name__)


class FolderCatalog(OwnCatalog):
    """The topics of one cluster in a folder."""

    def __init__(self, parts: FolderParts, *, deadline: float | None = None) -> None:
        """Set up for one cluster, whose locks a creation waits for until `deadline`: by default for ever."""
        self._parts, self._deadline = parts, deadline

    def topics(self, *, internal: bool) -> list[Topic]:
        """Return all topics, sorted by name; internal ones only if asked."""
        topics = self._parts.metadata.topics
        return existing(topics.topic, topics.names(internal=internal))

    def topic(self, name: str) -> Topic:
        """Return a topic with its settings."""
        return self._parts.metadata.topics.topic(name)

    def find(self, name: str) -> Topic | None:
        """Return a topic; None if there is none."""
        return self._parts.metadata.topics.find(name)

    def why_lost(self, name: str) -> str:
        """Return why a topic's records are there without its file; empty if they are not."""
        return self._parts.metadata.topics.why_lost(name)

    def plan(
        self,
        name: str,
        *,
        partitions: int,
        replication_factor: int,
        config: TopicConfig,
        given: Iterable[str],
    ) -> Topic:
        """Return a topic as it would be created now, on which log dirs; missing ones are made."""
        return administration.plan_topic(
            self._parts.manager,
            name,
            partitions=partitions,
            replication_factor=replication_factor,
            config=config,
            given=given,
            deadline=self._deadline,
        )

    def create(
        self, planned: Topic, first_offsets: Sequence[int] = (), *, level: int = logging.WARNING
    ) -> Topic:
        """Create a topic; warn if its replicas lie on one disk."""
        created = administration.create_planned_topic(
            self._parts.manager,
            planned,
            level=level,
            first_offsets=first_offsets,
            deadline=self._deadline,
        )
        path, dirs = self._parts.path, self._parts.metadata.cluster_file.log_dirs()
        in_path = [one for one in dirs if one.path.parent == path]
        if planned.replication_factor > 1 and len(in_path) > 1:
            logger.warning(
                "the %d copies of each record of topic %r lie in folders of %s, on one disk: they "
                "survive the loss of a folder, not of the disk; for that make a cluster with log_dirs, "
                "on disks of their own",
                planned.replication_factor,
                planned.name,
                path,
            )
        return created

    def delete_topic(self, name: str) -> Topic:
        """Delete a topic; its files are removed by the first commit or `gc` after file.delete.delay.ms."""
        ensure_not_internal(name)
        return administration.delete_topic(self._parts.manager, self._parts.commits, name)

    def create_partitions(self, name: str, total_count: int) -> Topic:
        """Add partitions to a topic."""
        ensure_not_internal(name)
        return administration.create_partitions(
            self._parts.manager, self._parts.commits, name, total_count
        )

    def alter_topic(self, name: str, changes: Mapping[str, object]) -> Topic:
        """Change settings of a topic for everything written from now on."""
        ensure_not_internal(name)
        return administration.alter_topic(self._parts.manager, self._parts.commits, name, changes)

    def delete_records(self, below: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records below an offset; disk space is freed by whole segments."""
        for topic_partition in below:
            ensure_not_internal(topic_partition.topic)
        done = self._parts.manager.delete_records(below, self._parts.commits)
        return {tp: deletion.log_start_offset for tp, deletion in done.items()}
