"""partitions/TOPIC/P.json: a partition's leader and in-sync replicas, once they have changed.

Writers hold the partition's lock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from spark_kbatch.log import state as log_state
from spark_kbatch.log.state import LogState
from spark_kbatch.model import INT_MAX, TopicPartition
from spark_kbatch.replica.cluster_file import NODES_MAX
from spark_kbatch.replica.deletions import DeletedTopics
from spark_kbatch.replica.json_files import JsonFiles
from spark_kbatch.replica.paths import ClusterPaths
from spark_kbatch.stored_json import StoredObject

_HEX = re.compile(r"(?:[0-9a-f]{2})*")
_UNWRITTEN = "kept"


class PartitionState(NamedTuple):
    """A partition's leader, its in-sync replicas, and its leader and partition epochs.

    Source: Kafka metadata/.../PartitionRegistration.java.
    """

    leader: int  # node id
    isr: tuple[int, ...]  # node ids in order of preference; never empty
    leader_epoch: int = 0  # one higher with each new leader, and after a restart of its machine
    partition_epoch: int = 0  # one higher with each change
    # By node, the states that a commit has decided for members of the ISR whose disks failed before the
    # states were written there, if no other member has them. With one replica, only if the cluster has
    # several log dirs.
    unwritten: Mapping[int, LogState] = {}


class PartitionStates:
    """The files partitions/TOPIC/P.json, each with the leader and ISR of a partition."""

    def __init__(self, json_files: JsonFiles, paths: ClusterPaths, deleted: DeletedTopics) -> None:
        self._json_files, self.paths, self._deleted = json_files, paths, deleted
        self.files = json_files.files

    def read(self, topic_partition: TopicPartition, topic_id: str) -> PartitionState | None:
        """Return a partition's stored leader and ISR; None if they have never changed.

        Args:
            topic_partition: which one.
            topic_id: of its topic; what was written for another topic of the same name does not count.

        Raises:
            KafkaStorageError: the file is damaged.
        """
        path = self.paths.partition_file(topic_partition)

        def is_its(found: Mapping[str, Any]) -> bool:
            known = found.get("topic_id")
            if known is None:  # written by an earlier release, which could not delete topics
                return topic_partition.topic not in {one.topic for one in self._deleted.all()}
            return bool(known == topic_id)

        found = self._json_files.read_or_mirrored(path, is_its)
        if found is None or not is_its(found):
            return None
        stored = StoredObject(found, path)
        leader = stored.integer("leader", highest=NODES_MAX)
        isr = stored.integers("isr", highest=NODES_MAX, count_max=NODES_MAX)
        leader_epoch, partition_epoch = (
            stored.integer(key, highest=INT_MAX) for key in ("leader_epoch", "partition_epoch")
        )
        unwritten = stored.object(_UNWRITTEN, default={}).by_number(_log_state, NODES_MAX)
        return PartitionState(leader, isr, leader_epoch, partition_epoch, dict(unwritten))

    def write(self, topic_partition: TopicPartition, state: PartitionState, topic_id: str) -> None:
        """Write a partition's leader and ISR to its file, on disk on return.

        The caller holds the partition's lock.
        """
        path, files = self.paths.partition_file(topic_partition), self.files
        if not files.exists(path.parent):
            files.make_dir(path.parent)
            files.flush([path.parent.parent, self.paths.path])
        value = state._asdict()
        unwritten = {
            str(node): log_state.pack(found).hex() for node, found in value.pop("unwritten").items()
        }
        self._json_files.write(path, value | {_UNWRITTEN: unwritten, "topic_id": topic_id})


def _log_state(states: StoredObject, node: str) -> LogState:
    text = states.text(node, _HEX)
    found = log_state.unpack(bytes.fromhex(text))
    if found is None:
        raise states.damaged(node, text, "a state that matches its checksum")
    return found
