"""The creation of a cluster, or its restoration from mirrors: copies of its JSON files on other disks.

    locks/            made first: a file system that cannot do what we need is refused with nothing else
                      left behind, and processes that create the same cluster take turns
    topics/ broker-N/ staging-N/ snapshots/
    broker-0/...      the cluster's own topics
    cluster.json      from here on the cluster exists
    spare deleted/    room to delete topics once the disk is full; made later if it is too small for now

A creation that was interrupted is taken over by the next one.

PATH is one POSIX file system that driver and executors share.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from spark_kbatch.errors import ConfigError
from spark_kbatch.files import Files
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.replica.administration import create_topic_locked
from spark_kbatch.replica.cluster_file import A_PATH
from spark_kbatch.replica.json_files import Mirrors
from spark_kbatch.replica.manager import ReplicaManager
from spark_kbatch.replica.metadata import Metadata
from spark_kbatch.replica.paths import ClusterPaths, node_dir, staging_of
from spark_kbatch.stored_json import StoredObject, as_bytes

_MIRROR = "mirror-"


def create_cluster(
    manager: ReplicaManager, log_dirs: Sequence[Path], topics: Mapping[str, TopicConfig]
) -> bool:
    """Create a cluster, or restore one from the copies of its JSON files (mirrors) beside its log dirs.

    Returns:
        False if it exists, or was restored.

    Args:
        manager: of a PATH that holds no cluster yet, as far as is known.
        log_dirs: a folder for each log dir; PATH alone if there are none.
        topics: the cluster's own, of one partition, with a replica in each log dir.

    Raises:
        ConfigError: PATH is a file, holds something else, or cannot be written; or a log dir is
            another cluster's.
    """
    metadata = manager.metadata
    cluster_file = metadata.cluster_file
    _ensure_creatable(metadata)
    with manager.locks.metadata():
        if cluster_file.exists() or _restore(metadata, log_dirs):
            return False
        _make_dirs(metadata)
        cluster_file.make_log_dirs(log_dirs)
        with manager.writing():
            for topic, config in topics.items():
                create_topic_locked(
                    manager,
                    topic,
                    partitions=1,
                    config=config,
                    replication_factor=len(cluster_file.log_dirs()),
                )
        cluster_file.create()
        metadata.keep_room()
        return True


def _make_dirs(metadata: Metadata) -> None:
    for directory in (metadata.paths.topics_dir, metadata.paths.snapshots_dir):
        metadata.files.make_dir(directory)


_FOLDERS_OF_DATABRICKS = {"Volumes", "dbfs", "Workspace"}
_ON_DATABRICKS = (
    "; Databricks' folders /Volumes, /dbfs and /Workspace are object stores without all of these: on a "
    "cluster of one machine give a folder on its own disk, such as /local_disk0/events"
)


def _ensure_creatable(metadata: Metadata) -> None:
    """Check that a cluster can be created at PATH, before anything is written.

    Raises:
        ConfigError: a file, a folder that holds something else, or one that cannot be written.
    """
    path = metadata.path
    try:
        if path.exists() and not (path.is_dir() and _is_empty_or_unfinished(metadata)):
            raise ConfigError(
                f"no kbatch cluster can be made at {path}: {metadata.cluster_file.what_is_there()}; "
                "give a new or an empty folder"
            )
        metadata.files.make_dir_on_disk(path)
        _probe(metadata.files, metadata.paths)
    except OSError as error:
        raise ConfigError(
            f"no kbatch cluster can be made at {path}: {error.strerror or error}; the folder "
            "must be on a POSIX file system and writable, with locks, hard links and atomic rename"
            + (_ON_DATABRICKS if path.parts[1] in _FOLDERS_OF_DATABRICKS else "")
        ) from error


def _is_empty_or_unfinished(metadata: Metadata) -> bool:
    """Return True if PATH holds nothing, or only what an unfinished creation makes."""
    paths = metadata.paths
    names = set(metadata.files.list(paths.path))
    if metadata.cluster_file.has_topics():
        return False  # A cluster that has lost its file.
    log_dir = node_dir(paths.path, 0)
    ours = (
        log_dir,
        staging_of(log_dir),
        paths.snapshots_dir,
        paths.locks_dir,
        paths.topics_dir,
        paths.cluster_file,
        paths.cluster_file.with_suffix(".tmp"),
    )
    return not names or (paths.locks_dir.name in names and names <= {path.name for path in ours})


def _probe(files: Files, paths: ClusterPaths) -> None:
    """Check that the file system supports the locks, hard links and renames that a cluster needs."""
    files.make_dir(paths.locks_dir)
    first, second = (paths.locks_dir / f".probe-{uuid.uuid4().hex}{end}" for end in "ab")
    try:
        files.write(first, 1, b"x")
        _probe_locks(files, first)
        if not files.link(first, second) or files.read(second) != b"\0x":
            raise OSError("hard links do not work")
        files.rename(second, first)
    finally:
        files.remove(first)
        files.remove(second)


def _probe_locks(files: Files, path: Path) -> None:
    with files.flock(path) as _:
        other = files.flock(path, wait=False)
        if other is not None:
            other.release()
            raise OSError("flock does not exclude others")
    with files.open_for_locks(path) as first, files.open_for_locks(path) as second:
        files.lock_byte(first, 0)
        if files.lock_byte(second, 0, wait=False):
            raise OSError("record locks do not exclude others")


def _restore(metadata: Metadata, folders: Sequence[Path]) -> bool:
    """Restore a cluster's lost JSON files from mirrors in these folders; return True if it exists then."""
    files, paths = metadata.files, metadata.paths
    found = (
        folder / name
        for folder in folders
        if files.exists(folder)
        for name in files.list(folder)
        if name.startswith(_MIRROR)
    )
    mirrors = Mirrors(files, found)
    name_of_file = PurePath(paths.cluster_file.name)
    cluster = mirrors.read(name_of_file) or {}
    stored = StoredObject({"path": str(paths.path), **cluster}, name_of_file.name)
    home = Path(stored.text("path", A_PATH))
    if home != paths.path and files.exists(ClusterPaths(home).cluster_file):
        return False  # It is still there: with two, neither would see the other's locks.
    deleted_dir = paths.deleted_dir.name
    deleted = {name.name for name in mirrors.names() if name.parts[0] == deleted_dir}

    def counts(value: Mapping[str, Any]) -> bool:
        return f"{value.get('topic_id')}.json" not in deleted

    for name in mirrors.names():
        path = paths.path / name
        value = mirrors.read(name, counts if name.parts[0] != deleted_dir else None)
        if value is not None and not files.exists(path):
            files.make_dir(path.parent)
            files.replace(path, as_bytes(value))
    exists = metadata.cluster_file.exists()
    if exists:
        _make_dirs(metadata)
    return exists
