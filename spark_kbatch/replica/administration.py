"""What is done to a topic as a whole while others read and write: deleting, adding partitions, altering.

    commit lock      so no commit is under way; one that a dead committer left is finished first
    metadata lock    so no other change is; deletions that were cut off are finished first
    partition locks  so no append is: who gets a partition's lock later finds the topic as it is then

Each change is decided by one step, before which nothing has happened to anybody:

    deleting           topics/TOPIC.json is renamed; `deletions` tells what follows
    adding partitions  topics/TOPIC.json is replaced, once the new logs are there. Logs that a crash before
                       that left are empty, and made again by the next attempt
    altering           topics/TOPIC.json is replaced

Source: Kafka metadata/.../controller/ReplicationControlManager.java createPartitions, deleteTopic;
ConfigurationControlManager.java incrementalAlterConfigs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace

from spark_kbatch.errors import ConfigError
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import Topic, altered
from spark_kbatch.replica.locks import Commits
from spark_kbatch.replica.manager import ReplicaManager


def delete_topic(manager: ReplicaManager, commits: Commits, name: str, *, now_ms: int) -> Topic:
    """Delete a topic; what it was.

    Raises:
        UnknownTopicOrPartitionError: no such topic.
    """
    with _changing(manager, commits, name, now_ms) as topic:
        manager.deletions.delete_locked(topic, now_ms)
    _wake(manager, topic)
    return topic


def create_partitions(
    manager: ReplicaManager, commits: Commits, name: str, total_count: int, *, now_ms: int
) -> Topic:
    """Let a topic have more partitions, with as many replicas as the others have.

    Raises:
        UnknownTopicOrPartitionError: no such topic.
        ConfigError: it has as many already, or there are not enough log dirs.
    """
    with _changing(manager, commits, name, now_ms) as topic:
        if total_count <= topic.partitions:
            raise ConfigError(
                f"topic {name!r} has {_partitions(topic.partitions)}; {total_count} would not be an "
                "increase: give a larger total, partitions cannot be taken away"
            )
        assigned = manager.assign(total_count, topic.replication_factor)
        known = tuple(topic.replicas_of(partition) for partition in range(topic.partitions))
        grown = replace(
            topic, partitions=total_count, replicas=known + assigned[topic.partitions :]
        )
        manager.make_logs(grown, range(topic.partitions, total_count))
        manager.metadata.topics.write(grown)
    return grown


def alter_topic(
    manager: ReplicaManager,
    commits: Commits,
    name: str,
    changes: Mapping[str, object],
    *,
    now_ms: int,
) -> Topic:
    """Change some settings of a topic; None stands for a setting's default.

    Raises:
        UnknownTopicOrPartitionError: no such topic.
        ConfigError: a setting that is unknown, not accepted, or cannot be changed.
    """
    with _changing(manager, commits, name, now_ms) as topic:
        config = altered(topic, changes)
        if config == topic.config:
            return topic
        if config.min_insync_replicas > topic.config.min_insync_replicas:
            for topic_partition in manager.partitions(name):
                partition = manager.partition(topic_partition)
                partition.ready_locked(flush=True)
                partition.settle_high_watermark_locked(config.min_insync_replicas)
        after = replace(topic, config=config)
        manager.metadata.topics.write(after)
    return after


@contextlib.contextmanager
def _changing(manager: ReplicaManager, commits: Commits, name: str, now_ms: int) -> Iterator[Topic]:
    """Hold all locks that a change of a topic needs; the topic as it is now."""
    with commits.settled(), manager.locks.metadata():
        manager.deletions.continue_locked(now_ms)
        topic = manager.metadata.topics.topic(name)
        with manager.locks.partitions(manager.partitions(name)):
            yield topic


def _wake(manager: ReplicaManager, topic: Topic) -> None:
    """Have those answered that wait for something of a topic that is gone."""
    for partition in range(topic.partitions):
        topic_partition = TopicPartition(topic.name, partition)
        manager.delayed_produces.check_and_complete(topic_partition)
        manager.delayed_fetches.check_and_complete(topic_partition)


def _partitions(count: int) -> str:
    return f"{count} partition{'s' * (count != 1)}"
