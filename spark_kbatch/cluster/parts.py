"""The parts of a cluster in a folder, wired together: metadata, replica manager, commit coordinators.

Other processes may change a cluster at any time, so the disk is looked at on every call.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_kbatch.catalog.folder_clock import FolderClock
from spark_kbatch.catalog.metadata import Metadata
from spark_kbatch.clock import monotonic_s, now_ms
from spark_kbatch.commit.coordinator import Coordinator
from spark_kbatch.commit.internal_topics import COMMITS, INTERNAL_TOPIC_CONFIG, TRANSACTION_STATE
from spark_kbatch.commit.snapshot import Snapshots
from spark_kbatch.consumer.same_topic import Closed
from spark_kbatch.errors import (
    ConfigError,
    KafkaStorageError,
    KBatchError,
    LockTimeoutError,
    NotLeaderOrFollowerError,
)
from spark_kbatch.files import Files
from spark_kbatch.model import TopicPartition
from spark_kbatch.options import arguments
from spark_kbatch.options.paths import StrPath, absolute_path
from spark_kbatch.options.write import parse_folders
from spark_kbatch.replica.manager import ReplicaManager
from spark_kbatch.store.reports import GivenUp, ServerAddress

logger = logging.getLogger(__name__)

_DELETER_PATIENCE_S = 0.05
_ELECTION_PATIENCE_S = 0.02  # of readers that can ask again
PRODUCER_IDS_BLOCK_SIZE = 1000


class FolderParts:
    """The parts of a cluster in a folder. Thread-safe; keeps no file open."""

    def __init__(
        self,
        path: StrPath,
        *,
        create: bool = False,
        log_dirs: str | Sequence[StrPath] = (),
        without_nodes: Collection[int] | None = None,
        files: Files | None = None,
        implied: bool = False,
    ) -> None:
        """Open the cluster at `path`, or create it there with `create`.

        Other arguments and errors are those of `Cluster`.

        Args:
            implied: whether no one asked for the creation, which is then logged as a warning.
        """
        files = files or Files()
        folders = _folders(log_dirs)
        self.metadata = Metadata(files, absolute_path(path))
        self.files, self.path = files, self.metadata.path
        clock = FolderClock(files, self.metadata.paths.locks_dir)
        self.manager = ReplicaManager(files, self.metadata, clock.now_ms)
        self.snapshots = Snapshots(self.manager, self._elect, self._finish_deletions)
        self._committers: dict[bool, Coordinator] = {}  # by whether they flush
        # Guarded by the metadata lock, which excludes threads too and which no child inherits.
        self._producer_ids: Iterator[int] = iter(())
        self._process_id = os.getpid()
        if arguments.boolean("create", create) and not self.metadata.cluster_file.exists():
            # Only few processes create one.
            from spark_kbatch.replica.cluster_creation import create_cluster  # noqa: PLC0415

            internal = dict.fromkeys(
                (TRANSACTION_STATE.topic, COMMITS.topic), INTERNAL_TOPIC_CONFIG
            )
            if create_cluster(self.manager, folders, internal, without_nodes):
                level = logging.WARNING if implied else logging.INFO
                logger.log(level, "created a cluster in %s", self.path)
        self.metadata.cluster_file.ensure_exists()
        self._ensure_newest(without_nodes or ())
        if folders:
            self._ensure_log_dirs(folders)

    def close(self) -> None:
        """Make every later call raise ClosedError, including those of reads in progress."""
        for part in ("metadata", "manager", "snapshots"):
            setattr(self, part, Closed(self.path))

    def _ensure_newest(self, without_nodes: Collection[int]) -> None:
        """Bring PATH up to date if it is old, and the copies of its files that missed a change, if possible."""
        if self.metadata.json_files.are_equal():
            return
        if self.metadata.json_files.newer_mirror() is not None:
            from spark_kbatch.replica.cluster_creation import bring_up_to_date  # noqa: PLC0415  as above

            bring_up_to_date(self.manager, without_nodes)
        if self.metadata.json_files.stale_mirrors():
            # Whoever has the lock refreshes them; so does the next who opens the cluster.
            with contextlib.suppress(OSError, LockTimeoutError):
                with self.manager.locks.metadata(deadline=monotonic_s()):
                    self.metadata.json_files.refresh()

    def _ensure_log_dirs(self, folders: Sequence[Path]) -> None:
        """Check that the cluster was created with these log dirs; raises ConfigError, also if they are another's."""
        found = [one.path.parent for one in self.metadata.cluster_file.log_dirs()]
        if folders != found:
            from spark_kbatch.replica.cluster_creation import ensure_of_this_cluster  # noqa: PLC0415  as above

            ensure_of_this_cluster(self.metadata, folders)
            given, has = (",".join(map(str, paths)) for paths in (folders, found))
            raise ConfigError(
                f"option 'log.dirs' is {given!r}, but the cluster at {self.path} exists with {has!r}; "
                "leave the option out, or write to a new cluster"
            )

    def coordinator(self, *, flush: bool) -> Coordinator:
        """Return the commit coordinator, which finishes commits that dead processes left unfinished."""
        known = self._committers.get(flush)
        if known is None:
            known = Coordinator(self.manager, self.manager.now_ms, adopt_min_bytes=0, flush=flush)
            self._committers[flush] = known
        return known

    @property
    def commits(self) -> Coordinator:
        """The coordinator that flushes, for all who only finish what others left unfinished."""
        return self.coordinator(flush=True)

    def running_server(self) -> ServerAddress | None:
        """Return the address at which some process serves this cluster now; None if no one does."""
        from spark_kbatch.cluster import ownership  # noqa: PLC0415  loads options of servers

        return ownership.running_server(self.metadata)

    def new_producer_id(self, *, deadline: float | None = None) -> int:
        """Return a producer id that no other producer of this cluster has had, in any process.

        Each process takes a block of them, a forked child its own, and gives them out one by one. The rest of
        a block is never given out once the process ends.

        Raises:
            LockTimeoutError: the metadata lock was not free by the deadline, a time of `clock.monotonic_s`.
            KafkaStorageError: the cluster's folder cannot be written.

        Source: Kafka transaction-coordinator/.../RPCProducerIdManager.java, ProducerIdsBlock.java.
        """
        try:
            with self.manager.locks.metadata(deadline=deadline):
                if self._process_id != os.getpid():
                    self._producer_ids, self._process_id = iter(()), os.getpid()
                for producer_id in self._producer_ids:
                    return producer_id
                block = self.metadata.cluster_file.take_producer_ids(PRODUCER_IDS_BLOCK_SIZE)
                self._producer_ids = iter(block)
                return next(self._producer_ids)
        except OSError as error:
            raise KafkaStorageError.of(error, "no producer id can be had") from error

    # Elections, for readers.

    def _elect(self, topic_partitions: Collection[TopicPartition]) -> None:
        """Elect new leaders for partitions whose leaders cannot be read or lost records; only log failures."""
        others = [tp for tp in topic_partitions if tp != TRANSACTION_STATE]
        try:
            if len(others) < len(topic_partitions):
                self.commits.roll_forward()
        except (OSError, KBatchError) as error:
            logger.warning("no leader is elected for now: %s", error)
        self.manager.replicate(others, self.commits, flush=True)

    def _finish_deletions(self, topic_partitions: Collection[TopicPartition]) -> None:
        """Have leaders delete what another member has deleted, unless a lock is held: its holder does it."""
        deadline = monotonic_s() + _DELETER_PATIENCE_S
        for topic_partition in topic_partitions:
            try:
                self._lock_once(topic_partition, deadline)
            except (OSError, KBatchError) as error:
                logger.debug("a deletion in %s is left to others: %s", topic_partition, error)

    def elect_soon(self, topic_partitions: Collection[TopicPartition]) -> None:
        """Elect new leaders as `_elect` does, unless a partition's lock is held for longer than a moment.

        Raises:
            NotLeaderOrFollowerError: a lock was held for longer.
        """
        deadline = monotonic_s() + _ELECTION_PATIENCE_S
        for topic_partition in topic_partitions:
            try:
                self._lock_once(topic_partition, deadline)
            except LockTimeoutError as error:
                raise NotLeaderOrFollowerError(
                    f"the leader of {topic_partition} cannot be read, and another one cannot be elected "
                    f"now: {error}; ask again"
                ) from error
            except (OSError, KBatchError) as error:
                logger.warning("no leader of %s is elected for now: %s", topic_partition, error)

    def _lock_once(self, topic_partition: TopicPartition, deadline: float) -> None:
        """Take a partition's lock and let it go: that elects a leader, and finishes a deletion, first."""
        if topic_partition == TRANSACTION_STATE:
            self.commits.roll_forward(deadline=deadline)
            return
        with (
            self.manager.writing(),
            self.manager.locked([topic_partition], self.commits, deadline=deadline),
        ):
            pass


def given_up_by_restore(
    path: StrPath, log_dirs: str | Sequence[StrPath], without_nodes: Collection[int]
) -> list[GivenUp] | None:
    """Return what a restore of `path` without some nodes gives up; see `cluster_creation.given_up_by_restore`."""
    from spark_kbatch.replica import cluster_creation  # noqa: PLC0415  as above

    files = Files()
    manager = ReplicaManager(files, Metadata(files, absolute_path(path)), now_ms)
    return cluster_creation.given_up_by_restore(manager, _folders(log_dirs), without_nodes)


def _folders(log_dirs: Any) -> list[Path]:
    """Return the paths of the log dirs that the argument `log_dirs` lists.

    Raises:
        ConfigError: it names none, or one twice.
    """
    if isinstance(log_dirs, str):
        log_dirs = parse_folders("log_dirs", log_dirs)
    if isinstance(log_dirs, (bytes, Mapping)) or not isinstance(log_dirs, Iterable):
        arguments.refuse(
            "log_dirs", log_dirs, "folders in a list, or text with commas between them"
        )
    folders = [absolute_path(folder, "a folder in log_dirs") for folder in log_dirs]
    if len(set(folders)) < len(folders):
        raise ConfigError(
            f"log_dirs names a folder twice, of {', '.join(map(str, folders))}; each is a disk of its own"
        )
    return folders
