"""One server per cluster folder: it holds the lock `locks/server`, and writes its address to `server.json`.

    PATH/locks/server     flock, held as long as the server runs; the kernel frees it if the process dies
    PATH/server.json      host, port, process_id, started_ms of the server that wrote it last

If the lock is free the file is stale: a killed server could not remove it.

Other processes may append and commit while a server runs. But the members of a consumer group, and the
times of their last heartbeats, are only in one server's memory.

A folder that was lost and restored has another lock file, which is free. A server that goes on takes it, in a
new term: another process may have changed groups and transactions before that, so they are loaded again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time

from spark_kbatch.catalog.metadata import Metadata
from spark_kbatch.clock import monotonic_s
from spark_kbatch.errors import KafkaStorageError, ServerRunningError
from spark_kbatch.files import Files, LockFile
from spark_kbatch.model import LONG_MAX
from spark_kbatch.options.server import PORT_MAX
from spark_kbatch.store.reports import ServerAddress
from spark_kbatch.stored_json import as_bytes, parse

logger = logging.getLogger(__name__)

# Looking for a running server holds the lock for a moment, and who ends what a server has left for longer.
_MOMENT_S, PATIENCE_S, _PAUSE_S = 0.5, 30.0, 0.02


def running_server(metadata: Metadata) -> ServerAddress | None:
    """Return the address of the server that runs on a cluster's folder; None if there is none.

    A user who may only read cannot try the lock, and gets the address in the file.
    """
    files, paths = metadata.files, metadata.paths
    if not files.exists(paths.server_file):
        return None
    with contextlib.suppress(OSError):
        files.ensure_no_link(paths.locks_dir, paths.path)
        lock = files.flock(paths.server_lock, wait=False)
        if lock is not None:
            lock.release()
            return None
    with contextlib.suppress(FileNotFoundError, KafkaStorageError):
        stored = parse(files.read(paths.server_file), paths.server_file)
        return ServerAddress(
            stored.text("host"),
            stored.integer("port", 1, PORT_MAX),
            stored.integer("process_id", 0, LONG_MAX),
            stored.integer("started_ms", 0, LONG_MAX),
        )
    return None


class Ownership:
    """The exclusive right to serve a cluster's folder, held as a file lock from construction to `release`."""

    def __init__(self, metadata: Metadata, *, patience_s: float = PATIENCE_S) -> None:
        """Take the file lock that only one server of a cluster's folder can hold.

        Args:
            metadata: of the cluster.
            patience_s: how long to wait for a process that has the lock and no address.

        Raises:
            ServerRunningError: another server has it, of this process or another; says where it listens.
            ConfigError: the cluster is gone.
        """
        metadata.cluster_file.ensure_exists()
        self._files: Files = metadata.files
        self._path, self._cluster_file = metadata.paths.server_file, metadata.paths.cluster_file
        began_s = monotonic_s()
        while (lock := self._files.flock(metadata.paths.server_lock, wait=False)) is None:
            waited_s = monotonic_s() - began_s
            found = running_server(metadata) if waited_s >= min(_MOMENT_S, patience_s) else None
            if found is not None or waited_s >= patience_s:
                raise ServerRunningError(
                    str(metadata.path),
                    "" if found is None else found.bootstrap_servers,
                    0 if found is None else found.process_id,
                )
            time.sleep(_PAUSE_S)
        self._lock: LockFile = lock
        with contextlib.suppress(OSError):
            self._files.remove(self._path)  # the address of a server that is gone
        self._address: ServerAddress | None = None
        self._mutex = threading.Lock()  # guards a change of the rest
        self._term = 0
        self._is_lost = False

    def announce(self, host: str, port: int, started_ms: int) -> None:
        """Write the server's address to `server.json`, where other processes find it."""
        self._address = ServerAddress(host, port, os.getpid(), started_ms)
        self._announce()

    def _announce(self) -> None:
        if self._address is not None:
            self._files.replace(self._path, as_bytes(self._address._asdict()))

    def term(self) -> int | None:
        """Return the number of the term in which this server owns the folder; None if another one does."""
        # Without the folder no one can change groups.
        with self._mutex, contextlib.suppress(OSError):
            if (
                not self._is_lost
                and not self._files.is_at(self._lock)
                and self._files.exists(self._cluster_file)  # It may just be being restored.
            ):
                self._is_lost = not self._is_taken_again()
        return None if self._is_lost else self._term

    def _is_taken_again(self) -> bool:
        lock = self._files.flock(self._lock.path, wait=False)
        if lock is None:
            logger.error(
                "%s was restored, and another server serves it: this one has no groups and transactions any "
                "more; close it",
                self._path.parent,
            )
            return False
        former, self._lock = self._lock, lock
        former.release()
        self._term += 1
        logger.warning(
            "%s was restored: its groups and transactions are loaded again", self._path.parent
        )
        self._announce()
        return True

    def release(self) -> None:
        """Remove `server.json` and free the lock; do nothing in a forked child, which does not hold it."""
        if self._lock.descriptor < 0:
            return
        if not self._is_lost:
            with contextlib.suppress(OSError):
                self._files.remove(self._path)
        self._lock.release()
