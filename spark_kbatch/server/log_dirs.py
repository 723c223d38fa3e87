"""DescribeLogDirs: the log dirs, with the room on their disks and the size and lag of each replica.

As in Kafka, a log dir that cannot be read has an error in place of that, and a partition that does not exist,
or cannot be read now, is left out. Replicas on several disks show as one broker's: each log dir lists those
that it holds.

Source: ReplicaManager.describeLogDirs; KIP-113, KIP-827.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from spark_kbatch.catalog.cluster_file import LogDir
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.errors import KafkaStorageError, KBatchError
from spark_kbatch.model import TopicPartition
from spark_kbatch.server.requests import Received, Respond
from spark_kbatch.wire.errors import code_of
from spark_kbatch.wire.protocol import DescribeLogDirsResponse

_Result = DescribeLogDirsResponse.DescribeLogDirsResult
_Topic = _Result.DescribeLogDirsTopic


class _Held(NamedTuple):
    """A replica in a log dir."""

    topic_partition: TopicPartition
    size_in_bytes: int
    lag: int  # offsets that it is behind the high watermark


class LogDirsHandler:
    """Handler of DescribeLogDirs requests; thread-safe."""

    def __init__(self, parts: FolderParts) -> None:
        self._parts = parts

    def describe_log_dirs(self, received: Received, respond: Respond) -> None:
        """Answer DescribeLogDirs, for the partitions that it names, or all, internal ones too."""
        asked = received.body.topics  # None for all
        if asked is None:
            topics = self._parts.metadata.topics.names(internal=True)
            wanted = [tp for name in topics for tp in self._partitions_of(name)]
        else:
            named = {
                TopicPartition(topic.topic, number)
                for topic in asked
                for number in topic.partitions
            }
            wanted = sorted(named - self._parts.manager.unknown(named).keys())
        by_node: dict[int, list[_Held]] = defaultdict(list)
        for topic_partition in wanted:
            with contextlib.suppress(OSError, KBatchError):  # it was deleted, or a disk fails
                for node_id, held in self._replicas_of(topic_partition):
                    by_node[node_id].append(held)
        dirs = self._parts.manager.dirs.all
        respond(
            DescribeLogDirsResponse(
                results=[self._result(one, by_node[one.node_id]) for one in dirs]
            )
        )

    def _partitions_of(self, topic: str) -> Iterable[TopicPartition]:
        try:
            return self._parts.manager.partitions(topic)
        except (OSError, KBatchError):
            return ()

    def _replicas_of(self, topic_partition: TopicPartition) -> Iterator[tuple[int, _Held]]:
        """Yield each replica of a partition that can be read, with its node."""
        view = self._parts.manager.partition(topic_partition).view
        states = {
            node_id: state
            for node_id in view.replicas
            if (state := view.log_state(node_id, to_write=False)) is not None
            and view.is_known(node_id, state)
        }
        high_watermark = max((state.high_watermark for state in states.values()), default=0)
        for node_id, state in states.items():
            size = view.log_of(node_id).size_in_bytes(state)
            lag = max(high_watermark - state.log_end_offset, 0)
            yield node_id, _Held(topic_partition, size, lag)

    def _result(self, log_dir: LogDir, held: Iterable[_Held]) -> Any:
        path, dirs = log_dir.path, self._parts.manager.dirs
        try:
            if not dirs.is_readable(log_dir.node_id):
                raise KafkaStorageError(f"the log dir {path} is offline")
            total, usable = self._parts.files.disk_space(path)
        except (OSError, KBatchError) as error:
            return _Result(log_dir=str(path), error_code=code_of(error), topics=[])
        return _Result(
            log_dir=str(path), topics=_by_topic(held), total_bytes=total, usable_bytes=usable
        )


def _by_topic(held: Iterable[_Held]) -> list[Any]:
    topics: Mapping[str, list[Any]] = defaultdict(list)
    for (topic, number), size, lag in held:
        topics[topic].append(
            _Topic.DescribeLogDirsPartition(
                partition_index=number, partition_size=size, offset_lag=lag
            )
        )
    return [_Topic(name=name, partitions=partitions) for name, partitions in topics.items()]
