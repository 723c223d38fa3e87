"""cluster.json: the cluster's id and format version, its log dirs with their directory ids.

The version is that of all files of a cluster but its logs. Another one is refused.

Writers hold the metadata lock.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from spark_kbatch.catalog.json_files import JsonFiles
from spark_kbatch.catalog.paths import (
    ClusterPaths,
    mirror_of,
    node_dir,
    staging_of,
)
from spark_kbatch.errors import ConfigError, InvalidReplicationFactorError, KafkaStorageError
from spark_kbatch.log.checkpoints import (
    META_PROPERTIES,
    read_meta_properties,
    write_meta_properties,
)
from spark_kbatch.log.foreign.log_dir import ForeignLogDir
from spark_kbatch.model import LONG_MAX, TopicPartition, partition_of, random_id
from spark_kbatch.options.topic import INTERNAL_PREFIX
from spark_kbatch.stored_json import StoredObject

FORMAT_VERSION = 3
NODES_MAX = 1000  # also the highest node id: a damaged file must not ask for all memory
A_PATH = re.compile(r"[^\0\ud800-\udfff]+")  # of what UTF-8 can encode, see `options/paths`
_NODE_DIR = re.compile(r"broker-\d+")
# In a log dir that is empty otherwise; the last is left by a process that died as it replaced the log dir.
_OF_NO_ONE = {".lock", "lost+found", Path(META_PROPERTIES).with_suffix(".tmp").name}
_NEXT_PRODUCER_ID = "next_producer_id"
_COORDINATOR_EPOCH = "coordinator_epoch"
_IDS_SKIPPED = 2**40  # by a restore: more than were given out since any copy was written


def without_used_producer_ids(cluster: StoredObject) -> dict[str, Any]:
    """Return what a copy of cluster.json holds, with producer ids that were never given out.

    A copy may be older than ids that were taken while its disk was away. If one were given out again, the
    first batch of its new producer could be taken for one that is stored already.
    """
    first = cluster.integer(_NEXT_PRODUCER_ID, highest=LONG_MAX - _IDS_SKIPPED, default=0)
    return cluster.values | {_NEXT_PRODUCER_ID: first + _IDS_SKIPPED}


class LogDir(NamedTuple):
    """A node's log dir: its path and its directory id."""

    node_id: int
    path: Path  # ends in broker-N
    directory_id: str  # of its meta.properties
    is_given_up: bool = False  # PATH was restored without it; it is offline until it is replaced

    @property
    def staging(self) -> Path:
        """The staging folder beside the log dir, on the same file system, which Spark tasks write to."""
        return staging_of(self.path)


class ClusterFile:
    """The file cluster.json in a cluster's folder, PATH.

    It is thread-safe. Each call looks at the disk, except `log_dirs`.
    """

    def __init__(self, json_files: JsonFiles, paths: ClusterPaths) -> None:
        self._json_files, self._files = json_files, json_files.files
        self._paths, self.path = paths, paths.cluster_file
        # Read once, and again by `log_dirs`; replaced whole. None while the cluster does not exist.
        self._log_dirs: tuple[LogDir, ...] | None = None
        self._new_cluster_id = ""  # between `make_log_dirs` and `create`
        self._has_existed = False

    def exists(self) -> bool:
        """Return True if the folder PATH holds a cluster, so has a cluster.json.

        Raises:
            ConfigError: this user may not look there.
        """
        try:
            return self._files.exists(self.path)
        except OSError as error:
            raise ConfigError(
                f"{self._paths.path} cannot be read: {error.strerror or error}"
            ) from error

    def ensure_exists(self) -> None:
        """Check that PATH holds a cluster of this release's format version.

        Raises:
            ConfigError: says what is there instead.
        """
        path = self._paths.path
        if not self.exists():
            raise ConfigError(f"no kbatch cluster at {path}: {self.what_is_there()}")
        cluster = self._read()
        ensure_format_version(cluster)
        self._set_log_dirs(log_dirs_of(cluster, self._paths.path))
        self._ensure_not_copied(cluster)
        self._has_existed = True

    def ensure_not_lost(self) -> None:
        """Check that PATH still holds the cluster that this process has found there, and not an old one.

        If not, a file that is missing tells nothing: no topic was deleted.

        Raises:
            KafkaStorageError: PATH is gone, or an old one that no one has brought up to date yet.
        """
        if not self._has_existed:
            return
        if not self._files.exists(self.path):
            error = KafkaStorageError(
                f"{self.path} is gone: the folder was moved or deleted, or its disk is not mounted"
            )
            # With log dirs elsewhere it can be restored. One that had all the logs is most likely deleted.
            error.is_transient = bool(self._json_files.mirrors.folders)
            raise error
        self._json_files.ensure_newest()

    def ensure_not_inside_a_cluster(self) -> None:
        """Check that PATH is neither a log dir of another cluster nor inside one.

        A log dir alone does not say what is committed.

        Raises:
            ConfigError: names the cluster.
        """
        path = self._paths.path
        for parent in path.parents[:3]:
            inside = parent / path.relative_to(parent).parts[0]
            paths = ClusterPaths(parent)
            if inside == node_dir(parent, 0) and self._files.exists(paths.cluster_file):
                raise ConfigError(
                    f"{path} is a part of the kbatch cluster at {parent}: name that folder"
                )

    def what_is_there(self) -> str:
        """Describe, for an error message, what is at PATH instead of a cluster."""
        path = self._paths.path
        if not path.exists():
            return "there is no such folder; write to it first, or check the path"
        try:
            if ForeignLogDir.find(self._files, path) is not None:
                return (
                    "it is a Kafka broker's, which kbatch only reads; `kbatch export` copies topics "
                    "into a broker's log dir"
                )
            if not path.is_dir():
                return "it is a file, not a folder"
            names = self._files.list(path)
        except OSError as error:
            return f"the folder cannot be read: {error.strerror or error}"
        if not names:
            return "the folder is empty; write to it first"
        if self.has_topics():
            return (
                f"the folder holds topics, but its {self.path.name} is lost; restore it from a backup: "
                "it has the cluster's id and log dirs"
            )
        return f"the folder holds something else ({', '.join(names[:3])}{', ...' if names[3:] else ''})"

    def has_topics(self) -> bool:
        """Return True if the folder PATH holds any topic that is not internal."""
        first_log_dir = self._log_dirs[0].path if self._log_dirs else node_dir(self._paths.path, 0)
        topics, logs = (
            self._files.list(directory) if self._files.exists(directory) else []
            for directory in (self._paths.topics_dir, first_log_dir)
        )
        names = {name.removesuffix(".json") for name in topics if name.endswith(".json")}
        names |= {found.topic for found in map(partition_of, logs) if found is not None}
        return any(not name.startswith(INTERNAL_PREFIX) for name in names)

    def cluster_id(self) -> str:
        """Return the cluster id, which the meta.properties of every log dir repeats."""
        return self._read().text("cluster_id")

    def take_producer_ids(self, count: int) -> range:
        """Allocate `count` producer ids that were never used and never will be again.

        The caller holds the metadata lock.
        """
        cluster = self._read()
        # Absent until someone takes the first.
        first = cluster.integer(_NEXT_PRODUCER_ID, highest=LONG_MAX - count, default=0)
        self._json_files.write_cluster(cluster.values | {_NEXT_PRODUCER_ID: first + count})
        return range(first, first + count)

    def coordinator_epoch(self) -> int:
        """Return the last epoch of a coordinator of clients' transactions; -1 if there was none."""
        return self._read().integer(_COORDINATOR_EPOCH, lowest=-1, default=-1)

    def set_coordinator_epoch(self, epoch: int) -> None:
        """Store the epoch of a coordinator, once its log has it. The caller holds the metadata lock."""
        self._json_files.write_cluster(self._read().values | {_COORDINATOR_EPOCH: epoch})

    # Log dirs.

    def log_dirs(self, *, again: bool = False) -> tuple[LogDir, ...]:
        """Return all log dirs by node id, cached unless `again` has cluster.json read again."""
        if self._log_dirs is None or again:
            self._set_log_dirs(log_dirs_of(self._read(), self._paths.path))
        assert self._log_dirs is not None
        return self._log_dirs

    def log_dir(self, node_id: int) -> LogDir:
        """Return a node's log dir, also one that another process has added since."""
        known = self.log_dirs()
        if node_id >= len(known):
            known = self.log_dirs(again=True)
        if not 0 <= node_id < len(known):
            raise KafkaStorageError(
                f"{self.path} names no log dir of node {node_id}, which has replicas; it has the nodes "
                f"0 to {len(known) - 1}: one of the cluster's files is damaged or old"
            )
        return known[node_id]

    def log_directory(self, topic_partition: TopicPartition, node_id: int = 0) -> Path:
        """Return the directory of a node's replica of a partition."""
        return self.log_dir(node_id).path / str(topic_partition)

    def add_log_dirs(self, count: int) -> None:
        """Add log dirs in PATH until the cluster has `count` of them.

        The caller holds the metadata lock.

        Raises:
            InvalidReplicationFactorError: the cluster was created with log dirs elsewhere, and has no
                others.
        """
        known = self.log_dirs(again=True)
        if count <= len(known):
            return
        if any(one.path.parent != self._paths.path for one in known):
            raise InvalidReplicationFactorError(
                f"replication.factor is {count}, more than the {len(known)} log.dirs that the cluster "
                "was created with"
            )
        added = [
            LogDir(node_id, node_dir(self._paths.path, node_id), random_id())
            for node_id in range(len(known), count)
        ]
        for log_dir in added:
            self._make_log_dir(log_dir, self.cluster_id())
        self._write_log_dirs([*known, *added])

    def replace_log_dir(self, node_id: int) -> None:
        """Let an empty directory take the place of a node's lost log dir, with a new directory id.

        The caller holds the metadata lock.

        Raises:
            ConfigError: no such node, the directory is not empty, or the disk of another node is there.
        """
        known = list(self.log_dirs(again=True))
        if not 0 <= node_id < len(known):
            raise ConfigError(f"there is no node {node_id}; nodes are 0 to {len(known) - 1}")
        log_dir = known[node_id]._replace(directory_id=random_id(), is_given_up=False)
        names = self._files.list(log_dir.path) if self._files.exists(log_dir.path) else []
        if set(names) - _OF_NO_ONE:
            raise ConfigError(
                f"{log_dir.path} is not empty: it holds {', '.join(names[:3])}; move that away first"
            )
        self._ensure_no_other(log_dir, known)
        known[node_id] = log_dir
        if log_dir.path.parent != self._paths.path:
            self._files.remove_dir(mirror_of(log_dir.path))  # what a disk that was given up had
        self._write_log_dirs(known)
        self._make_log_dir(log_dir, self.cluster_id())
        self._json_files.copy_all_to(mirror_of(log_dir.path))

    def _ensure_no_other(self, log_dir: LogDir, known: Collection[LogDir]) -> None:
        """Check that no other log dir is beside this one that does not belong there, as after two were swapped."""
        folder = log_dir.path.parent
        if not self._files.exists(folder):
            return
        for name in self._files.list(folder):
            if not _NODE_DIR.fullmatch(name):
                continue
            try:
                found = read_meta_properties(self._files, folder / name)
                here = self._files.identity_at(folder)
            except (OSError, KafkaStorageError):
                continue
            for one in known:
                if one.directory_id == found.directory_id:
                    if one.node_id == log_dir.node_id or self._is_at(one.path.parent, here):
                        break
                    raise ConfigError(
                        f"{folder} has the disk of node {one.node_id}, which belongs at {one.path.parent}: "
                        "mount each disk where it was"
                    )
            else:
                whose = "another" if found.cluster_id != self.cluster_id() else "this"
                raise ConfigError(
                    f"{folder} has a log dir of {whose} cluster, {name}, that does not belong there: mount the "
                    "right disk, or move that away"
                )

    def _is_at(self, folder: Path, identity: tuple[int, int]) -> bool:
        try:
            return self._files.identity_at(folder) == identity
        except OSError:
            return False

    # Creation.

    def make_log_dirs(self, folders: Sequence[Path]) -> None:
        """Create the log dirs of a new cluster: the first step of its creation.

        The caller holds the metadata lock.

        Args:
            folders: one for each log dir, in which broker-N is made; PATH alone if there are none.

        Raises:
            ConfigError: one of them already holds another cluster's log dir.
        """
        self._set_log_dirs(
            LogDir(node_id, node_dir(folder, node_id), random_id())
            for node_id, folder in enumerate(folders or [self._paths.path])
        )
        self._new_cluster_id = random_id()
        for log_dir in self.log_dirs():
            self._make_log_dir(log_dir, self._new_cluster_id)

    def create(self) -> None:
        """Write a new cluster's cluster.json, which makes the cluster exist: the last step of its creation.

        The caller holds the metadata lock.
        """
        self._json_files.write_cluster(
            {
                "version": FORMAT_VERSION,
                "cluster_id": self._new_cluster_id,
                "log_dirs": log_dirs_as_json(self.log_dirs(), self._paths.path),
            }
        )

    def _make_log_dir(self, log_dir: LogDir, cluster_id: str) -> None:
        files, is_outside = self._files, log_dir.path.parent != self._paths.path
        is_elsewhere = is_outside or files.is_link(log_dir.path)
        if files.exists(log_dir.path / META_PROPERTIES) and is_elsewhere:
            # One whose creation was interrupted holds the cluster's own topics at most.
            found = map(partition_of, files.list(log_dir.path))
            if any(one and not one.topic.startswith(INTERNAL_PREFIX) for one in found):
                raise ConfigError(
                    f"{log_dir.path} is the log dir of another cluster; name an empty folder"
                )
        for directory in (log_dir.path, log_dir.staging):
            files.make_dir_on_disk(directory)
        if is_outside:
            files.make_dir_on_disk(mirror_of(log_dir.path))
        write_meta_properties(
            files, log_dir.path, cluster_id=cluster_id, node_id=log_dir.node_id,
            directory_id=log_dir.directory_id,
        )  # fmt: skip

    # What the file says.

    def _read(self) -> StoredObject:
        return StoredObject(self._json_files.read(self.path), self.path)

    def _write_log_dirs(self, log_dirs: Sequence[LogDir]) -> None:
        self._set_log_dirs(log_dirs)
        self._json_files.write_cluster(
            self._read().values | {"log_dirs": log_dirs_as_json(log_dirs, self._paths.path)}
        )

    def _set_log_dirs(self, log_dirs: Iterable[LogDir]) -> None:
        self._log_dirs = tuple(log_dirs)
        self._json_files.use_mirrors(
            mirror_of(one.path)
            for one in self._log_dirs
            if one.path.parent != self._paths.path and not one.is_given_up
        )

    def _ensure_not_copied(self, cluster: StoredObject) -> None:
        """Check that PATH is not a copy of a cluster that still exists elsewhere and uses the same log dirs.

        Raises:
            ConfigError: one does, and has locks of its own for the same logs.
        """
        path = self._paths.path
        stored = StoredObject({"path": str(path), **cluster.values}, self.path)
        home = Path(stored.text("path", A_PATH))
        if home == path:
            return
        outside = [one.path for one in self.log_dirs() if one.path.parent != path]
        if outside and self._is_elsewhere(home, cluster.values.get("cluster_id")):
            raise ConfigError(
                f"{path} is a copy of the kbatch cluster at {home}, and both use the logs in "
                f"{outside[0]}: with locks of their own they would overwrite each other's records. "
                f"Open {home}; if the copy is to take its place, rename or remove {home} first"
            )

    def _is_elsewhere(self, home: Path, cluster_id: object) -> bool:
        """Return True if the folder `home` holds this cluster too, and is not PATH under another name."""
        try:
            if self._files.identity_at(home) == self._files.identity_at(self._paths.path):
                return False
            other = self._json_files.read(ClusterPaths(home).cluster_file)
            return other.get("cluster_id") == cluster_id
        except (OSError, KafkaStorageError):
            return False  # It was moved, or is mounted elsewhere.


def ensure_format_version(cluster: StoredObject) -> None:
    """Check that the content of a cluster.json has this release's format version.

    Raises:
        ConfigError: it has another one; says how to go on.
        KafkaStorageError: it is damaged.
    """
    version = cluster.integer("version")
    if version != FORMAT_VERSION:
        raise ConfigError(
            f"{cluster.where} has format version {version}, and this release reads {FORMAT_VERSION}: "
            + (
                "upgrade spark-kbatch"
                if version > FORMAT_VERSION
                else "let the version of spark-kbatch that wrote the cluster serve it, with `kbatch serve`, and "
                "copy its topics from there into a new one, with `kbatch mirror`"
            )
        )


def log_dirs_of(cluster: StoredObject, path: Path) -> list[LogDir]:
    """Return the log dirs in the content of the cluster.json of the cluster at `path`, by node id.

    Raises:
        KafkaStorageError: it is damaged.
    """
    found = [
        LogDir(
            log_dir.integer("node_id", highest=NODES_MAX),
            path / log_dir.text("path", A_PATH),
            log_dir.text("directory_id"),
            log_dir.values.get("given_up") is True,
        )
        for log_dir in cluster.objects("log_dirs", count_max=NODES_MAX)
    ]
    if [one.node_id for one in found] != list(range(len(found))) or not found:
        raise KafkaStorageError(
            f"{cluster.where} is damaged: its log dirs have the nodes "
            f"{[one.node_id for one in found]}; expected 0 and so on"
        )
    for one in found:
        # What lies in others, such as a user's own folders, is not ours to write or remove.
        if one.path != node_dir(one.path.parent, one.node_id):
            raise KafkaStorageError(
                f"{cluster.where} is damaged: it gives node {one.node_id} the log dir {one.path}; "
                f"expected a folder that is named broker-{one.node_id}"
            )
    return found


def log_dirs_as_json(log_dirs: Iterable[LogDir], path: Path) -> list[dict[str, object]]:
    """Return log dirs as the cluster.json of the cluster at `path` has them."""
    found: list[dict[str, object]] = []
    for node_id, log_dir, directory_id, is_given_up in log_dirs:
        inside = log_dir.parent == path  # then PATH may be moved
        name = log_dir.name if inside else str(log_dir)
        row: dict[str, object] = {"path": name, "node_id": node_id, "directory_id": directory_id}
        found.append(row | {"given_up": True} if is_given_up else row)
    return found
