"""partitions/TOPIC/P.json: a partition's leader and in-sync replicas, once they have changed.

Writers hold the partition's lock.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from spark_kbatch.catalog.cluster_file import NODES_MAX
from spark_kbatch.catalog.json_files import JsonFiles, Mirrors, number_of
from spark_kbatch.catalog.paths import ClusterPaths
from spark_kbatch.errors import KafkaStorageError
from spark_kbatch.log import state as log_state
from spark_kbatch.log.state import LogState
from spark_kbatch.model import INT_MAX, TopicPartition
from spark_kbatch.stored_json import StoredObject, as_bytes

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

    def leader_first(self, nodes: Iterable[int]) -> list[int]:
        """Return these nodes with the leader before all others."""
        return sorted(nodes, key=lambda node: node != self.leader)


class _KnownState(NamedTuple):
    """One partition as it was read, with the fingerprints of the files it was read from."""

    topic_id: str
    mirrors: Mirrors
    paths: tuple[Path, ...]  # of its file in PATH and in the mirrors
    fingerprints: tuple[object, ...] = ()
    state: PartitionState | None = None
    newest: Path | None = None  # where it was read
    lacking: tuple[Path, ...] = ()  # PATH or mirrors that have an older one, or none


class PartitionStates:
    """The files partitions/TOPIC/P.json, each with the leader and ISR of a partition.

    Of a partition's file and its copies in mirrors the one with the highest partition epoch counts. So
    neither an old PATH nor a disk that missed a change decides who leads. They are read again only once one of
    them was replaced.
    """

    def __init__(self, json_files: JsonFiles, paths: ClusterPaths) -> None:
        self._json_files, self.paths = json_files, paths
        self.files = json_files.files
        self._known: dict[TopicPartition, _KnownState] = {}  # each replaced whole
        # What `spread` has tried last, each guarded by its partition's lock.
        self._tried: dict[TopicPartition, _KnownState] = {}

    def read(self, topic_partition: TopicPartition, topic_id: str) -> PartitionState | None:
        """Return a partition's stored leader and ISR; None if they have never changed.

        Args:
            topic_partition: which one.
            topic_id: of its topic; what was written for another topic of the same name does not count.

        Raises:
            KafkaStorageError: the newest file is damaged, or two have the same number and differ.
        """
        return self._read(topic_partition, topic_id).state

    def _read(self, topic_partition: TopicPartition, topic_id: str) -> _KnownState:
        mirrors, known = self._json_files.mirrors, self._known.get(topic_partition)
        if known is None or known.topic_id != topic_id or known.mirrors is not mirrors:
            path = self.paths.partition_file(topic_partition)
            name = path.relative_to(self.paths.path)
            copies = tuple(folder / name for folder in mirrors.folders)
            known = _KnownState(topic_id, mirrors, (path, *copies))
        # The look comes before the read: a file that is replaced in between is read again next time.
        fingerprints = tuple(map(self._fingerprint, known.paths))
        if known.fingerprints != fingerprints:
            known = _KnownState(topic_id, mirrors, known.paths, fingerprints)
            if any(fingerprints):
                known = self._newest(known.paths[0], known)
            self._known[topic_partition] = known
        return known

    def _fingerprint(self, path: Path) -> tuple[int, ...] | None:
        try:
            return self.files.fingerprint(path)
        except OSError:
            return None  # of a broken disk

    def _newest(self, path: Path, known: _KnownState) -> _KnownState:
        """Read all copies of a partition's file; return what the newest says, and where it is missing."""
        found: dict[Path, dict[str, Any] | None] = {self.paths.path: None}
        with contextlib.suppress(FileNotFoundError):
            found[self.paths.path] = self._json_files.read(path)
        if self._json_files.mirrors.folders:
            name = path.relative_to(self.paths.path)
            found |= self._json_files.reigning_mirrors().each(name)
        own = {
            folder: copy
            for folder, copy in found.items()
            if copy is not None and copy.get("topic_id") == known.topic_id
        }
        if not own:
            return known
        newest = max(own, key=lambda folder: number_of(own[folder]))
        other = [
            folder
            for folder, copy in own.items()
            if number_of(copy) == number_of(own[newest]) and copy != own[newest]
        ]
        newest, *others = (
            folder / path.relative_to(self.paths.path) for folder in (newest, *other)
        )
        if others:
            raise KafkaStorageError(
                f"{newest} and {others[0]} have the same number and differ: two processes with locks of "
                "their own have changed the partition. Move the one away that is wrong"
            )
        value = own[newest.parents[2]]
        lacking = tuple(folder for folder, copy in found.items() if copy != value)
        return known._replace(state=_parsed(value, newest), newest=newest, lacking=lacking)

    def are_equal(self, topic_partition: TopicPartition, topic_id: str) -> bool:
        """Return False if PATH or a mirror that can be read misses a partition's last change."""
        return not self._read(topic_partition, topic_id).lacking

    def spread(self, topic_partition: TopicPartition, topic_id: str) -> None:
        """Write the newest file of a partition wherever it is missing or older, if that can be written.

        The caller holds the partition's lock.
        """
        known = self._read(topic_partition, topic_id)
        if known.newest is None or not known.lacking or known is self._tried.get(topic_partition):
            return
        path, data = self.paths.partition_file(topic_partition), self.files.read(known.newest)
        if self.paths.path in known.lacking:
            self._replace(path, data)
        mirrors = [folder for folder in known.lacking if folder != self.paths.path]
        Mirrors(self.files, mirrors).write(path.relative_to(self.paths.path), data)
        self._tried[topic_partition] = self._read(topic_partition, topic_id)

    def try_again(self) -> None:
        """Have `spread` write where it could not before: a disk that was full may have room by now."""
        self._tried = {}

    def write(
        self, topic_partition: TopicPartition, state: PartitionState, topic_id: str
    ) -> set[Path]:
        """Write a partition's leader and ISR to its file, on disk on return, and to the mirrors.

        The caller holds the partition's lock.

        Returns:
            The mirrors that did not take it.
        """
        path = self.paths.partition_file(topic_partition)
        value = state._asdict()
        unwritten = {
            str(node): log_state.pack(found).hex() for node, found in value.pop("unwritten").items()
        }
        data = as_bytes(value | {_UNWRITTEN: unwritten, "topic_id": topic_id})
        self._replace(path, data)
        if not self._json_files.mirrors.folders:
            return set()
        own = self._json_files.reigning_mirrors()
        missed = own.write(path.relative_to(self.paths.path), data)
        return missed | (set(self._json_files.mirrors.folders) - set(own.folders))

    def _replace(self, path: Path, data: bytes) -> None:
        # The caller's lock lies there. Nothing may be made in place of a folder that is away.
        if not self.files.exists(self.paths.locks_dir):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.paths.path))
        self.files.make_dir(path.parent)
        # Also if another process made them: it may have died before it flushed.
        self.files.flush([self.paths.partitions_dir, self.paths.path])
        self._json_files.replace(path, data)


def _parsed(found: Mapping[str, Any], path: Path) -> PartitionState:
    stored = StoredObject(found, path)
    leader = stored.integer("leader", highest=NODES_MAX)
    isr = stored.integers("isr", highest=NODES_MAX, count_max=NODES_MAX)
    leader_epoch, partition_epoch = (
        stored.integer(key, highest=INT_MAX) for key in ("leader_epoch", "partition_epoch")
    )
    unwritten = stored.object(_UNWRITTEN).by_number(_log_state, NODES_MAX)
    return PartitionState(leader, isr, leader_epoch, partition_epoch, dict(unwritten))


def _log_state(states: StoredObject, node: str) -> LogState:
    text = states.text(node, _HEX)
    found = log_state.unpack(bytes.fromhex(text))
    if found is None:
        raise states.damaged(node, text, "a state that matches its checksum")
    return found
