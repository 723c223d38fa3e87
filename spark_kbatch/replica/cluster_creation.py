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

import contextlib
import logging
import uuid
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from spark_kbatch.catalog.cluster_file import (
    A_PATH,
    LogDir,
    ensure_format_version,
    log_dirs_as_json,
    log_dirs_of,
    without_used_producer_ids,
)
from spark_kbatch.catalog.json_files import GENERATION, REIGN, Mirrors, version_of
from spark_kbatch.catalog.metadata import Metadata
from spark_kbatch.catalog.paths import ClusterPaths, mirror_of, node_dir, staging_of
from spark_kbatch.errors import ConfigError, KafkaStorageError, LogDirLockedError
from spark_kbatch.files import Files
from spark_kbatch.log.checkpoints import read_meta_properties
from spark_kbatch.model import random_id
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.replica.administration import create_topic_locked, given_up_without
from spark_kbatch.replica.manager import ReplicaManager
from spark_kbatch.store.reports import GivenUp
from spark_kbatch.stored_json import StoredObject, as_bytes

logger = logging.getLogger(__name__)

_MIRROR, _ASIDE = "mirror-", "old-"


def create_cluster(
    manager: ReplicaManager,
    log_dirs: Sequence[Path],
    topics: Mapping[str, TopicConfig],
    without_nodes: Collection[int] | None = None,
) -> bool:
    """Create a cluster, or restore one from the copies of its JSON files (mirrors) beside its log dirs.

    Args:
        manager: of a PATH that holds no cluster yet, as far as is known.
        log_dirs: a folder for each log dir; PATH alone if there are none.
        topics: the cluster's own, of one partition, with a replica in each log dir.
        without_nodes: nodes that are given up when a cluster is restored; by default none, and a cluster
            is created if there is nothing to restore.

    Returns:
        False if it exists, or was restored.

    Raises:
        ConfigError: PATH is a file, holds something else, or cannot be written; or a log dir is
            another cluster's; or one is missing, without which nothing may be restored.
    """
    metadata = manager.metadata
    cluster_file = metadata.cluster_file
    # A restore that is refused leaves nothing at PATH, so it is looked at before anything is written there.
    planned = _planned_restore(metadata, log_dirs, without_nodes or ())
    if planned is not None:
        _ensure_unused(manager, planned)
    elif without_nodes is not None:
        raise ConfigError(
            f"there is nothing to restore {metadata.path} from: no folder with copies of its files, "
            f"mirror-N, is in {', '.join(map(str, log_dirs)) or 'log_dirs, which names none'}"
        )
    _ensure_creatable(metadata, log_dirs)
    with manager.locks.metadata():
        if cluster_file.exists() or _restore(manager, log_dirs, without_nodes or ()):
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


def _ensure_creatable(metadata: Metadata, log_dirs: Sequence[Path]) -> None:
    """Check that a cluster can be created or restored at PATH, before anything is written.

    Raises:
        ConfigError: a file, a folder that holds something else, or one that cannot be written.
    """
    path = metadata.path
    try:
        is_usable = not path.exists() or (
            path.is_dir()
            and (_is_empty_or_unfinished(metadata) or _is_left_of_a_cluster(metadata, log_dirs))
        )
        if not is_usable:
            if metadata.cluster_file.exists():
                return  # another process has made it meanwhile
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


def _is_left_of_a_cluster(metadata: Metadata, log_dirs: Sequence[Path]) -> bool:
    """Return True if PATH holds nothing but what a restore replaces, as after one that was interrupted."""
    files, paths = metadata.files, metadata.paths
    replaced = {
        paths.locks_dir, paths.server_file, paths.cluster_file.with_suffix(".tmp"),
        *_restored_dirs(paths),
    }  # fmt: skip
    names = {name for name in files.list(paths.path) if not name.startswith(_ASIDE)}
    return names <= {path.name for path in replaced} and bool(_mirrors(files, log_dirs).folders)


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


def bring_up_to_date(manager: ReplicaManager, without_nodes: Collection[int] = ()) -> None:
    """Restore the files of an old PATH from the mirrors of the log dirs that it names.

    Raises:
        ConfigError: a log dir is missing; or this process may not write here.
    """
    metadata = manager.metadata
    try:
        with manager.locks.metadata():
            if metadata.json_files.newer_mirror() is not None:
                folders = [one.path.parent for one in metadata.cluster_file.log_dirs()]
                _restore(manager, folders, without_nodes)
    except OSError as error:
        raise ConfigError(
            f"{metadata.path} is older than the copies of its files on other disks, and cannot be brought up "
            f"to date: {error.strerror or error}"
        ) from error


def given_up_by_restore(
    manager: ReplicaManager, folders: Sequence[Path], without_nodes: Collection[int]
) -> list[GivenUp] | None:
    """Return what a restore without these nodes gives up, as the newest mirror has it.

    Takes no lock and changes nothing.

    Returns:
        None if nothing is restored: the cluster is there and not an old one, there are no mirrors, or the
        nodes' log dirs are there.
    """
    metadata = manager.metadata
    if metadata.cluster_file.exists() and metadata.json_files.newer_mirror() is None:
        return None
    found = _newest_mirrors(metadata.files, folders)
    if found is None:
        return None
    # A mirror has the files of PATH in the same places.
    copy = Metadata(metadata.files, found[1].folders[0])
    as_mirrored = ReplicaManager(metadata.files, copy, manager.now_ms)
    missing = [
        one.node_id
        for one in as_mirrored.dirs.all
        if one.node_id in without_nodes and not as_mirrored.dirs.is_online(one.node_id)
    ]
    return given_up_without(as_mirrored, missing) if missing else None


def ensure_of_this_cluster(metadata: Metadata, folders: Sequence[Path]) -> None:
    """Check that the log dirs in these folders are not those of another cluster than the one at PATH.

    Raises:
        ConfigError: they are; says how to restore that one.
    """
    path = metadata.path
    found = _newest_mirrors(metadata.files, folders)
    if found is None or found[0].get("cluster_id") == metadata.cluster_file.cluster_id():
        return
    named, home = ",".join(map(str, folders)), Path(str(found[0].get("path", path)))
    raise ConfigError(
        f"the log dirs in {named} are not those of the cluster at {path}, but of one that was created at "
        f"{home}. If that was lost and a write has made a new one here, move {path} away, then restore the "
        f"lost one by `kbatch log-dirs {path} --restore {named}`"
    )


class _Restore(NamedTuple):
    """A cluster's JSON files, as they are to be restored."""

    values: dict[str, Any]  # of cluster.json
    log_dirs: list[LogDir]
    missing: Mapping[int, Path]  # log dirs that are given up
    there: list[Path]  # the others
    newest: Mirrors
    all_mirrors: Mirrors


def _planned_restore(
    metadata: Metadata, folders: Sequence[Path], without_nodes: Collection[int]
) -> _Restore | None:
    """Return what is to be restored from mirrors in these folders; None if there are none.

    A disk that is missing may have the newest copy, so each log dir that the newest copy found names has to be
    there, or is given up by name.

    Raises:
        ConfigError: one is missing; or the cluster is at another PATH.
    """
    files, paths = metadata.files, metadata.paths
    found = _newest_mirrors(files, folders)
    if found is None:
        return None
    values, newest, all_mirrors = found
    stored = StoredObject({"path": str(paths.path), **values}, newest.folders[0] / "cluster.json")
    ensure_format_version(stored)
    home, cluster_id = Path(stored.text("path", A_PATH)), stored.text("cluster_id")
    named = ",".join(map(str, folders))
    if home != paths.path and _is_at(metadata, home, cluster_id):
        if metadata.cluster_file.exists():
            raise ConfigError(
                f"{paths.path} is a former PATH of the cluster that is at {home} now: open that"
            )
        # With two, neither would see the other's locks.
        raise ConfigError(
            f"the log dirs in {named} are those of the cluster at {home}: open that, or name other folders. If "
            f"{paths.path} is to take its place, rename or remove {home} first, then run "
            f"`kbatch log-dirs {paths.path} --restore {named}`"
        )
    log_dirs = log_dirs_of(stored, paths.path)
    missing = {
        one.node_id: one.path
        for one in log_dirs
        if not one.is_given_up and not _is_there(files, one, cluster_id)
    }
    lost = {node: path for node, path in missing.items() if node not in without_nodes}
    if lost:
        nodes, options = (
            ", ".join(map(str, lost)),
            "".join(f" --without-node {one}" for one in lost),
        )
        raise ConfigError(
            f"{paths.path} is lost or old, and {' and '.join(map(str, lost.values()))} cannot be used: what was "
            f"changed last may be known there alone. Mount it; or, if it is lost for good, restore without it "
            f"by `kbatch log-dirs {paths.path} --restore {named}{options}` "
            f"(without_nodes=[{nodes}]): records of which it had the only copy are given up"
        )
    given_up = [
        one._replace(directory_id=random_id(), is_given_up=True) if one.node_id in missing else one
        for one in log_dirs
    ]
    there = [one.path for one in log_dirs if one.node_id not in missing and not one.is_given_up]
    # What a disk that is given up knows of leaders and in-sync replicas is given up with its logs.
    of_ours = {mirror_of(path) for path in there}
    all_mirrors = Mirrors(files, [one for one in all_mirrors.folders if one in of_ours])
    return _Restore(values, given_up, missing, there, newest, all_mirrors)


def _is_at(metadata: Metadata, home: Path, cluster_id: str) -> bool:
    """Return True if the cluster with this id is in the folder `home`, or may be."""
    try:
        found = metadata.json_files.read(ClusterPaths(home).cluster_file)
        return bool(found["cluster_id"] == cluster_id)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, KafkaStorageError, KeyError):
        return True


def _ensure_unused(manager: ReplicaManager, planned: _Restore) -> None:
    """Check that no process writes to log dirs that are to be restored from.

    Raises:
        LogDirLockedError: one does.
    """
    try:
        with manager.locks.exclusive_log_dirs(planned.there):
            pass
    except LogDirLockedError:
        if not manager.metadata.cluster_file.exists():  # Else another process has restored it.
            raise


def _restore(
    manager: ReplicaManager, folders: Sequence[Path], without_nodes: Collection[int]
) -> bool:
    """Restore a cluster's lost or old JSON files from mirrors in these folders; return True if it exists then.

    The mirrors get the new reign before PATH has any file: a process that goes on at a former PATH sees it
    before it writes again, since it shares the locks that are held here. Raises as `_planned_restore`.
    """
    metadata = manager.metadata
    planned = _planned_restore(metadata, folders, without_nodes)
    if planned is None:
        return False
    values, log_dirs, missing, there, newest, all_mirrors = planned
    path = metadata.path
    with manager.locks.exclusive_log_dirs(there):
        _put_back(
            metadata,
            values | {"log_dirs": log_dirs_as_json(log_dirs, path)},
            newest,
            all_mirrors,
        )
    for node_id, log_dir in missing.items():
        logger.warning("%s is restored without node %d: %s is given up", path, node_id, log_dir)
    metadata.cluster_file.log_dirs(again=True)
    return True


def _newest_mirrors(
    files: Files, folders: Sequence[Path]
) -> tuple[dict[str, Any], Mirrors, Mirrors] | None:
    """Return the newest cluster.json in mirrors, the mirrors that have it, and all of that cluster."""
    found = _mirrors(files, folders)
    copies = {
        folder: copy
        for folder, copy in found.each(PurePath("cluster.json")).items()
        if copy is not None
    }
    if not copies:
        return None
    ids = {str(copy.get("cluster_id")): folder for folder, copy in copies.items()}
    if len(ids) > 1:
        raise ConfigError(
            f"{' and '.join(map(str, ids.values()))} are of different clusters; name the log dirs of one"
        )
    values = max(copies.values(), key=version_of)
    newest = [folder for folder, copy in copies.items() if copy == values]
    return values, Mirrors(files, newest), Mirrors(files, copies)


def _mirrors(files: Files, folders: Sequence[Path]) -> Mirrors:
    found: list[Path] = []
    for folder in folders:
        with contextlib.suppress(OSError):  # not mounted, or broken
            found += [folder / name for name in files.list(folder) if name.startswith(_MIRROR)]
    return Mirrors(files, found)


def _is_there(files: Files, log_dir: LogDir, cluster_id: str) -> bool:
    """Return True if a log dir is the cluster's and can be written."""
    try:
        found = read_meta_properties(files, log_dir.path)
        if (found.directory_id, found.cluster_id) != (log_dir.directory_id, cluster_id):
            return False
        files.open_for_locks(log_dir.path / ".lock").release()
    except (OSError, KafkaStorageError):
        return False
    return True


def _restored_dirs(paths: ClusterPaths) -> tuple[Path, ...]:
    return (
        paths.topics_dir, paths.partitions_dir, paths.deleted_dir,
        paths.snapshots_dir, paths.transactions_dir,
    )  # fmt: skip


def _put_back(
    metadata: Metadata, values: Mapping[str, Any], newest: Mirrors, all_mirrors: Mirrors
) -> None:
    files, paths = metadata.files, metadata.paths
    reign, generation = version_of(values)
    changed = {REIGN: reign + 1, GENERATION: generation + 1, "path": str(paths.path)}
    stored = StoredObject(values, newest.folders[0] / "cluster.json")
    cluster = as_bytes(without_used_producer_ids(stored) | changed)
    newest.write(PurePath("cluster.json"), cluster)
    old = paths.path / f"{_ASIDE}{uuid.uuid4().hex}"
    for directory in _restored_dirs(paths):
        if files.exists(directory):  # PATH is an old one, or a restore was interrupted.
            files.make_dir(old)
            files.rename(directory, old / directory.name)
    deleted_dir = paths.deleted_dir.name
    deleted = {name.name for name in newest.names() if name.parts[0] == deleted_dir}

    def counts(value: Mapping[str, Any]) -> bool:
        return f"{value.get('topic_id')}.json" not in deleted

    for name in {*newest.names(), *all_mirrors.names()}:
        if len(name.parts) == 1:
            continue
        of_partition = name.parts[0] == paths.partitions_dir.name
        mirrors = all_mirrors if of_partition else newest
        value = mirrors.read(name, counts if name.parts[0] != deleted_dir else None)
        if value is not None:
            files.make_dir_on_disk((paths.path / name).parent)
            files.replace(paths.path / name, as_bytes(value))
    _make_dirs(metadata)
    files.replace(paths.cluster_file, cluster)
