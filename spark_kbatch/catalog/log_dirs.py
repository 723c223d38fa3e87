"""The log dirs of a cluster, and which of them are online.

Node N's is broker-N; each may be on a disk of its own.

    online     a directory whose meta.properties has the directory id that cluster.json gives its node
    offline    any other, and any in which an operation has failed, for RETRY_MS: then it is looked
               at again, and used until the next failure. One that is full or read-only is offline for
               writers alone

So a disk that is not mounted, whose mount point is an empty directory, is offline, and so is one that
was replaced, until the operator says that it belongs to the cluster. Whether a directory is still the
one that was looked at is seen by the fingerprint of its meta.properties, with one look before each use:
two disks can have the same device number and the same inode there, one after the other.

A process does not tell others what it finds out: files say which replicas lead and are in sync, and each process
finds by itself what it cannot use.

Source: Kafka storage/.../log/LogDirFailureChannel.java, LogManager.handleLogDirFailure.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import uuid
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from spark_kbatch import mutexes
from spark_kbatch.catalog.cluster_file import ClusterFile, LogDir
from spark_kbatch.catalog.paths import mirror_of
from spark_kbatch.errors import KafkaStorageError
from spark_kbatch.files import NO_ROOM, Files
from spark_kbatch.log.checkpoints import META_PROPERTIES, read_meta_properties

logger = logging.getLogger(__name__)

RETRY_MS = 1000

ONLINE, FULL, READ_ONLY, OFFLINE = "online", "full", "read-only", "offline"

_PROBE_BYTES = 4096
_AT_ONCE = -(2**63)  # before any time of a monotonic clock
_WRITES_FAIL = {errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EACCES, errno.EPERM}


class _Offline(NamedTuple):
    until_ms: int  # when it is looked at again, by the monotonic clock
    why: str
    only_for_writers: bool


class LogDirs:
    """A cluster's log dirs, and which of them this process finds online.

    It is thread-safe.
    """

    def __init__(
        self, files: Files, cluster_file: ClusterFile, monotonic_ms: Callable[[], int]
    ) -> None:
        self._files, self._cluster_file, self._monotonic_ms = files, cluster_file, monotonic_ms
        self._folder = cluster_file.path.parent
        self._mutex: threading.Lock  # guards the next two; innermost
        mutexes.make(self, "_mutex")
        self._offline: dict[int, _Offline] = {}
        # Of meta.properties in directories that were looked at.
        self._fingerprints: dict[int, tuple[int, ...] | None] = {}

    @property
    def all(self) -> tuple[LogDir, ...]:
        """All log dirs, by node id."""
        return self._cluster_file.log_dirs()

    def of_mirrors(self, mirrors: Collection[Path]) -> set[int]:
        """Return the nodes on whose disks these mirrors are."""
        return {one.node_id for one in self.all if mirror_of(one.path) in mirrors}

    def is_online(self, node_id: int) -> bool:
        """Return True if a node's log dir can be used.

        After a failure it is looked at again once RETRY_MS have passed.
        """
        with self._mutex:
            offline = self._offline.get(node_id)
            known = self._fingerprints.get(node_id)
        if offline is not None and self._monotonic_ms() < offline.until_ms:
            return False
        try:
            log_dir = self._cluster_file.log_dir(node_id)
            found = self._files.fingerprint(log_dir.path / META_PROPERTIES)
            if offline is None and found is not None and found == known:
                return True
            self.ensure_ours(log_dir)
        except (OSError, KafkaStorageError) as error:
            self.failed(node_id, error)
            return False
        with self._mutex:
            self._fingerprints[node_id] = found
            self._offline.pop(node_id, None)
        if offline is not None:
            logger.info("trying log dir %s again", log_dir.path)
        return True

    def is_readable(self, node_id: int) -> bool:
        """Return True if readers can use a log dir; it may be full or read-only."""
        if self.is_online(node_id):
            return True
        with self._mutex:
            offline = self._offline.get(node_id)
        return offline is not None and offline.only_for_writers

    def failed(self, node_id: int, error: Exception) -> None:
        """Take a log dir offline: an operation on it failed."""
        with self._mutex:
            is_new = node_id not in self._offline
            self._offline[node_id] = _Offline(
                self._monotonic_ms() + RETRY_MS,
                str(error),
                isinstance(error, OSError) and error.errno in _WRITES_FAIL,
            )
        if is_new:
            logger.error("the log dir of node %d is offline: %s", node_id, error)

    def why_offline(self, node_id: int) -> str | None:
        """Return what is wrong with a log dir; None if it is online."""
        if self.is_online(node_id):
            return None
        with self._mutex:
            return self._offline[node_id].why if node_id in self._offline else "it is gone"

    def offline(self, node_id: int) -> str | None:
        """Return words for a log dir that is offline: its node, its path and why; None if it is used."""
        why = None if self.is_used(node_id) else self.why_offline(node_id)
        if why is None:
            return None
        path = self._cluster_file.log_dir(node_id).path
        return f"node {node_id}, log dir {path}, is offline: {why}"

    def probe(self, node_id: int, *, writes: bool = True) -> tuple[str, str | None]:
        """Return the state of a log dir, as a look and a write tell now, and why if it is not online.

        The state is one of ONLINE, FULL, READ_ONLY and OFFLINE. Without a write it is what the system says,
        which may not know yet that a disk fails.
        """
        try:
            log_dir = self._cluster_file.log_dir(node_id)
            self.ensure_ours(log_dir)
        except (OSError, KafkaStorageError) as error:
            return OFFLINE, str(error)
        probe = log_dir.path / f".probe-{uuid.uuid4().hex}"
        try:
            if writes:
                self._files.write(probe, 0, bytes(_PROBE_BYTES))
            elif not self._files.may_write(log_dir.path):
                return READ_ONLY, "this process may not write there"
        except OSError as error:
            state = FULL if error.errno in NO_ROOM else OFFLINE
            if error.errno in _WRITES_FAIL - NO_ROOM:
                state = READ_ONLY
            return state, error.strerror or str(error)
        finally:
            with contextlib.suppress(OSError):
                self._files.remove(probe)
        if self._files.is_full(log_dir.path):
            return FULL, "less than 16 MiB of room is left"
        return ONLINE, None

    def staging(self) -> dict[int, Path]:
        """Return the staging folders for Spark tasks, by node, whose disks can be used."""
        dirs = self.all
        return {one.node_id: one.staging for one in dirs if self.is_used(one.node_id)}

    def staging_of(self, node_id: int) -> Path:
        """Return a node's staging folder for Spark tasks.

        Raises:
            KafkaStorageError: its log dir is offline.
        """
        log_dir = self._cluster_file.log_dir(node_id)
        if not self.is_used(node_id):
            raise KafkaStorageError(
                f"the log dir {log_dir.path} is offline: {self.why_offline(node_id)}"
            )
        return log_dir.staging

    def is_used(self, node_id: int) -> bool:
        """Return True if a log dir is online, or the only one there is, a folder in PATH."""
        # Nothing can stand in for the only one, so the caller that uses it finds out what is wrong.
        # Only a link, or cluster.json, could lead to the log dir of another cluster.
        (path, *others) = (one.path for one in self.all)
        is_only = not others and str(path) == f"{self._folder}{os.sep}{path.name}"
        return (is_only and not self._files.is_link(path)) or self.is_online(node_id)

    def look_again(self) -> None:
        """Have each offline log dir checked again on its next use, without waiting for its retry time."""
        with self._mutex:
            self._offline = {
                node: offline._replace(until_ms=_AT_ONCE) for node, offline in self._offline.items()
            }

    def ensure_ours(self, log_dir: LogDir) -> None:
        """Check that the directory at a log dir's path is that of the cluster.

        Raises:
            KafkaStorageError: it is another.
        """
        found = read_meta_properties(self._files, log_dir.path)
        with contextlib.suppress(OSError, KafkaStorageError):  # PATH may be lost, and this one not
            # It may have been replaced since: then it is the former disk that has the id known here.
            log_dir = self._cluster_file.log_dirs(again=True)[log_dir.node_id]
        if found.directory_id != log_dir.directory_id:
            raise KafkaStorageError(
                f"{log_dir.path} has the directory id {found.directory_id}; expected "
                f"{log_dir.directory_id}: another disk is mounted there, or it was replaced. Empty it "
                f"and run `kbatch log-dirs PATH --replace {log_dir.node_id}`"
            )
