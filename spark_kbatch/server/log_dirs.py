"""DescribeLogDirs: the log dirs, with the room on their disks and the size and lag of each replica.

As in Kafka, a log dir that cannot be read has an error in place of that, and a partition that does not exist,
or cannot be read now, is left out. Replicas on several disks show as one broker's: each log dir lists those
that it holds.

Source: ReplicaManager.describeLogDirs; KIP-113, KIP-827.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from spark_kbatch.catalog.cluster_file import LogDir
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.errors import KBatchError
from spark_kbatch.model import TopicPartition
from spark_kbatch.server.requests import Received, Respond
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import DescribeLogDirsResponse

_Result = DescribeLogDirsResponse.DescribeLogDirsResult
_Topic = _Result.DescribeLogDirsTopic

_ByNode: TypeAlias = defaultdict[int, dict[str, list[Any]]]  # replicas for the answer, by topic


class LogDirsHandler:
    """Handler of DescribeLogDirs requests; thread-safe."""

    def __init__(self, parts: FolderParts) -> None:
        self._parts = parts

    def describe_log_dirs(self, received: Received, respond: Respond) -> None:
        """Answer DescribeLogDirs, for the partitions that it names, or all, internal ones too."""
        if received.body.topics is None:
            wanted = dict.fromkeys(self._parts.metadata.topics.names(internal=True))
        else:
            wanted = {one.topic: {*one.partitions} for one in received.body.topics}
        by_node: _ByNode = defaultdict(lambda: defaultdict(list))
        for name, numbers in wanted.items():
            with contextlib.suppress(OSError, KBatchError):  # it was deleted, or a disk fails
                for topic_partition in self._parts.manager.partitions(name):
                    if numbers is None or topic_partition.partition in numbers:
                        for node_id, replica in self._replicas_of(topic_partition):
                            by_node[node_id][name].append(replica)
        dirs = self._parts.manager.dirs.all
        results = [self._result(one, by_node[one.node_id]) for one in dirs]
        respond(DescribeLogDirsResponse(results=results))

    def _replicas_of(self, topic_partition: TopicPartition) -> Iterator[tuple[int, Any]]:
        """Yield each replica of a partition that can be read, for the answer, with its node."""
        view = self._parts.manager.partition(topic_partition).view
        states = {
            node_id: state
            for node_id in view.replicas
            if (state := view.log_state(node_id, to_write=False)) is not None
            and view.is_known(node_id, state)
        }
        high_watermark = max((state.high_watermark for state in states.values()), default=0)
        for node_id, state in states.items():
            yield (
                node_id,
                _Topic.DescribeLogDirsPartition(
                    partition_index=topic_partition.partition,
                    partition_size=view.log_of(node_id).size_in_bytes(state),
                    offset_lag=max(high_watermark - state.log_end_offset, 0),
                ),
            )

    def _result(self, log_dir: LogDir, by_topic: Mapping[str, list[Any]]) -> Any:
        path = str(log_dir.path)
        if not self._parts.manager.dirs.is_readable(log_dir.node_id):
            return _Result(log_dir=path, error_code=ErrorCode.KAFKA_STORAGE_ERROR, topics=[])
        total, usable = self._parts.files.disk_space(log_dir.path)
        topics = [_Topic(name=name, partitions=some) for name, some in by_topic.items()]
        return _Result(log_dir=path, topics=topics, total_bytes=total, usable_bytes=usable)
