"""Deleted topics, and what is left of them on the disks.

    1 record   topics/TOPIC.json      rewritten, with what the next steps need to know
    2 decide   deleted/ID.json        that file, renamed; ID is the topic's. From here on the topic does
                                      not exist, whatever happens next
    3 copies   mirror-N/              the same, in each mirror; partitions/TOPIC/ goes, in PATH too
    4 rename   broker-N/TOPIC-P       to TOPIC-P.HEX-delete, as a broker does, which accepts such
                                      directories in its log.dirs and removes them
    5 remove   those directories      once file.delete.delay.ms have passed; with no lock held
    6 forget   deleted/ID.json        the copies first

    a crash in   leaves                                        continued by
    record       the topic                                     -
    decide       the topic, or none; only a power loss may     from copies on, if there is none
                 undo the rename
    copies       no topic                                      the next process that creates, changes or
                                                               deletes a topic, or `kbatch gc`
    rename       no topic; some directories have its name      the same
    remove       no topic; some directories are there          the next commit or deletion of a topic, or
                                                               `kbatch gc`
    forget       no topic                                      the same

All of it but 5 happens under the metadata lock, 1 and 2 also under the commit lock and the locks of all
the topic's partitions: so no commit names the topic, and no one writes to it. Who gets such a lock later
looks for the topic again and finds none. Step 5 takes longer the more files there are, so it holds up no
one: a renamed directory is of no use to anyone, and several processes may remove it at once. The log dir
is listed again before 6. On a disk that is full it does not wait: what was deleted to make room makes
room at once. Steps 1 to 6 need none: see the spare file in `json_files`. No reader does any of it: a reader that finds files gone looks
for the topic, and says that it does not exist.

A topic of the same name may be created once 4 is done in the log dirs that can be used. What is in an
offline log dir comes back with it. Hence deleted/ID.json stays until everything is done everywhere: as
long as it is there neither a mirror nor a directory brings the topic back. A directory is known by the
topic id in its partition.metadata, so those of another topic of the same name are left alone. A topic with
the same id, as a mirror that keeps ids makes it, is created only once 5 and 6 are done, and its creation
does them at once.

HEX is derived from the topic's id, so nothing has to be stored to find the directories again.

Source: Kafka core/.../log/LogManager.scala asyncDelete, storage/.../log/LocalLog.logDeleteDirName.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
from collections.abc import Container, Mapping
from contextlib import AbstractContextManager
from itertools import repeat
from pathlib import Path
from typing import Any

from spark_kbatch.catalog.cluster_file import NODES_MAX, ClusterFile
from spark_kbatch.catalog.json_files import JsonFiles
from spark_kbatch.catalog.log_dirs import LogDirs
from spark_kbatch.catalog.paths import ClusterPaths, mirror_of
from spark_kbatch.clock import sleep_ms
from spark_kbatch.errors import InvalidTopicError, KafkaStorageError
from spark_kbatch.files import Files
from spark_kbatch.log.checkpoints import read_partition_metadata
from spark_kbatch.model import LONG_MAX, partition_of
from spark_kbatch.options.topic import Topic, ensure_valid_topic
from spark_kbatch.store.reports import DeletedTopic, Waiting
from spark_kbatch.stored_json import StoredObject, as_bytes

logger = logging.getLogger(__name__)

TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NAME_LENGTH_MAX = 255
_REMOVAL_ATTEMPTS, _REMOVAL_PAUSE_MS = 20, 50


class DeletedTopics:
    """The files deleted/ID.json, each of which records a deleted topic.

    Writers hold the metadata lock.
    """

    def __init__(self, json_files: JsonFiles, paths: ClusterPaths) -> None:
        self._json_files, self._files, self._paths = json_files, json_files.files, paths
        self._skipped: set[Path] = set()  # files that were logged

    def all(self) -> list[DeletedTopic]:
        """Return the deleted topics that still have something on disk; skip damaged and stray files."""
        try:
            names = self._files.list(self._paths.deleted_dir)
        except FileNotFoundError:
            return []
        except NotADirectoryError as error:
            self._skip(self._paths.deleted_dir, str(error))
            return []
        found = []
        for path in (self._paths.deleted_dir / name for name in names if name.endswith(".json")):
            try:
                deleted = _deleted_of(StoredObject(self._json_files.read(path), path))
            except FileNotFoundError:
                continue  # since it was listed
            except (OSError, KafkaStorageError, InvalidTopicError) as error:
                self._skip(path, str(error))
                continue
            if path.stem == deleted.topic_id:
                found.append(deleted)
            else:  # a copy, which may be out of date
                self._skip(path, f"it is not named as its topic id, {deleted.topic_id}")
        return found

    def _skip(self, path: Path, why: str) -> None:
        if path not in self._skipped:
            self._skipped.add(path)
            logger.warning("%s is skipped, so what it names is not removed: %s", path, why)

    def is_alive(self, found: Mapping[str, Any]) -> bool:
        """Return True unless a JSON file's copy in a mirror belongs to a topic that was deleted since."""
        topic_id = found.get("topic_id")
        if not isinstance(topic_id, str) or not TOPIC_ID.fullmatch(topic_id):
            return True  # Damaged: reading it says so.
        name = self._paths.deleted_file(topic_id).relative_to(self._paths.path)
        for folder in (self._paths.path, *self._json_files.mirrors.folders):
            with contextlib.suppress(OSError):  # of a broken disk
                if self._files.exists(folder / name):
                    return False
        return True

    def owns(self, directory: Path) -> bool:
        """Return True if a partition's directory belongs to a deleted topic."""
        try:
            topic_id = read_partition_metadata(self._files, directory)
        except (OSError, KafkaStorageError):
            return False  # Nothing says so.
        return not self.is_alive({"topic_id": topic_id})

    def changing(self) -> AbstractContextManager[None]:
        """Raise the generation of PATH's files around steps of a deletion; see `JsonFiles.changing`."""
        return self._json_files.changing()

    def decide(self, deleted: DeletedTopic) -> None:
        """Delete a topic for good by moving its file from topics/ to deleted/: steps 1 and 2.

        The caller also holds the locks of all the topic's partitions.
        """
        path = self._paths.topic_file(deleted.topic)
        found = self._json_files.read_or_mirrored(path, self.is_alive) or {}
        self._files.ensure_no_link(self._paths.deleted_dir, self._paths.path)
        try:
            self._files.make_dir(self._paths.deleted_dir)
        except FileExistsError:
            raise KafkaStorageError(
                f"no topic can be deleted: {self._paths.deleted_dir} is not a folder; move it away"
            ) from None
        self._files.flush([self._paths.path])
        # One file holds all that is to be known, and one step decides: its rename.
        self._json_files.replace(path, as_bytes(found | deleted._asdict()))
        target = self._paths.deleted_file(deleted.topic_id)
        self._files.rename(path, target)
        self._files.flush([target.parent, path.parent])

    def write(self, deleted: DeletedTopic) -> None:
        """Record how far a deletion has come."""
        self._json_files.write(self._paths.deleted_file(deleted.topic_id), deleted._asdict())

    def spread(self, deleted: DeletedTopic) -> None:
        """Record a topic's deletion in all mirrors, and remove its remaining JSON files in PATH."""
        path = self._paths.deleted_file(deleted.topic_id)
        self._json_files.copy(path, self._files.read(path))
        self._forget_in(self._paths.path, deleted)

    def forget_copies(self, deleted: DeletedTopic, log_dir: Path) -> None:
        """Remove a deleted topic's JSON files from a log dir's mirror, except the record of its deletion."""
        if log_dir.parent != self._paths.path:
            mirror = mirror_of(log_dir)
            try:
                self._forget_in(mirror, deleted)
            except OSError:
                self._json_files.missed(mirror)
                raise

    def forget(self, deleted: DeletedTopic) -> None:
        """Remove all records of a deleted topic of which nothing is left on any disk: step 6."""
        path = self._paths.deleted_file(deleted.topic_id)
        with self.changing():
            # PATH's own file goes last: it is the one that is looked at.
            for folder in (*self._json_files.mirrors.folders, self._paths.path):
                # A disk that was put back as an older image would bring the topic back once no record is left.
                self._forget_in(folder, deleted)
                copy = folder / path.relative_to(self._paths.path)
                # The first is left by a process that died while it wrote.
                found = [one for one in (copy.with_suffix(".tmp"), copy) if self._files.exists(one)]
                for one in found:
                    self._files.remove(one)
                if found:
                    self._files.flush([copy.parent])

    def _forget_in(self, folder: Path, deleted: DeletedTopic) -> None:
        """Remove a deleted topic's JSON files in PATH or a mirror, but not those of a recreated topic."""
        paths = ClusterPaths(folder)
        topic_file, states = paths.topic_file(deleted.topic), paths.partitions_dir / deleted.topic
        self._files.ensure_no_link(states, folder)
        names = self._files.list(states) if self._files.exists(states) else []
        gone = [
            path
            for path in (topic_file, *(states / name for name in names))
            if self._is_of(path, deleted, is_useless_if_damaged=path != topic_file)
        ]
        for path in gone:
            self._files.remove(path)
        self._files.flush({path.parent for path in gone})
        if names and not self._files.list(states):
            self._files.remove_dir(states)
            self._files.flush([states.parent])

    def _is_of(self, path: Path, deleted: DeletedTopic, *, is_useless_if_damaged: bool) -> bool:
        if not self._files.exists(path):
            return False
        try:
            topic_id = self._json_files.read(path).get("topic_id")
        except KafkaStorageError:
            return is_useless_if_damaged
        return bool(topic_id == deleted.topic_id)


def _deleted_of(stored: StoredObject) -> DeletedTopic:
    named, nodes = (
        stored.integers(key, highest=NODES_MAX, count_max=NODES_MAX, least=0)
        for key in ("named", "nodes")
    )
    return DeletedTopic(
        ensure_valid_topic(stored.text("topic")),
        stored.text("topic_id", TOPIC_ID),
        stored.integer("delete_ms"),
        named,
        nodes,
    )


class Deletions:
    """The steps of deleting topics, on all disks of one cluster. Thread-safe.

    The caller of a method whose name ends in `_locked` holds the metadata lock, and keeps brokers out of
    the log dirs.
    """

    def __init__(
        self, files: Files, deleted: DeletedTopics, cluster_file: ClusterFile, dirs: LogDirs
    ) -> None:
        self._files, self._deleted, self._dirs = files, deleted, dirs
        self._cluster_file = cluster_file

    def delete_locked(self, topic: Topic, now_ms: int) -> None:
        """Delete a topic; the caller also holds the commit lock and the locks of all its partitions.

        Raises:
            OSError: whether the topic is deleted is seen when it is next looked up.
        """
        nodes = tuple(one.node_id for one in self._cluster_file.log_dirs(again=True))
        delete_ms = min(now_ms + topic.known_config.file_delete_delay_ms, LONG_MAX)
        deleted = DeletedTopic(topic.name, topic.topic_id, delete_ms, nodes, nodes)
        with self._deleted.changing():
            self._deleted.decide(deleted)
            self._free_name(deleted, is_new=True)

    def continue_locked(self) -> None:
        """Free the names of deleted topics by renaming their directories, on usable disks: steps 3 and 4."""
        for deleted in self._deleted.all():
            if deleted.named:
                self._free_name(deleted)

    def remove(self, now_ms: int, directories_max: int = LONG_MAX) -> dict[str, set[int]]:
        """Remove at most `directories_max` directories of deleted topics whose delay is over: step 5.

        Needs no metadata lock.

        Returns:
            The nodes on which nothing is left, by topic id, for `forget_locked`.
        """
        done: dict[str, set[int]] = {}
        for deleted in self._deleted.all():
            for node_id in deleted.nodes:
                if node_id in deleted.named or not self._dirs.is_used(node_id):
                    continue
                if self.is_due(deleted, node_id, now_ms):
                    removed, is_done = self._remove(node_id, deleted, directories_max)
                    directories_max -= removed
                    if is_done:
                        done.setdefault(deleted.topic_id, set()).add(node_id)
        return done

    def forget_locked(self, done: Mapping[str, Container[int]]) -> list[DeletedTopic]:
        """Remove the records of deleted topics that `remove` has finished; return these topics: step 6."""
        finished = []
        for deleted in self._deleted.all():
            gone = done.get(deleted.topic_id, ())
            nodes = tuple(n for n in deleted.nodes if n in deleted.named or n not in gone)
            if not nodes:
                self._deleted.forget(deleted)
                finished.append(deleted)
            elif nodes != deleted.nodes:
                self._deleted.write(deleted._replace(nodes=nodes))
        return finished

    def due(self, now_ms: int) -> list[DeletedTopic]:
        """Return the deleted topics whose removal can be continued now.

        Takes no lock, and changes nothing.
        """
        return [
            one
            for one in self._deleted.all()
            if any(
                self._dirs.is_used(node) and (node in one.named or self.is_due(one, node, now_ms))
                for node in one.nodes
            )
        ]

    def waiting(self, now_ms: int) -> list[Waiting]:
        """Return the deleted topics whose directories are kept for now."""
        found = []
        for one in self._deleted.all():
            size_in_bytes = 0
            nodes = [node for node in one.nodes if not self.is_due(one, node, now_ms)]
            for node in filter(self._dirs.is_used, nodes):
                with contextlib.suppress(OSError):
                    log_dir = self._cluster_file.log_dir(node).path
                    for name in self._left_in(log_dir, one):
                        names = self._files.list(log_dir / name)
                        size_in_bytes += sum(
                            map(max, self._files.sizes(log_dir / name, names), repeat(0))
                        )
            if nodes:
                until_ms = one.delete_ms
                found.append(Waiting("deleted topic", one.topic, size_in_bytes, -1, until_ms))
        return found

    def is_due(self, deleted: DeletedTopic, node_id: int, now_ms: int) -> bool:
        """Return True if a deleted topic's directories on one node may be removed.

        Their delay is over, or the node's disk is full.
        """
        if now_ms >= deleted.delete_ms:
            return True
        try:
            return self._files.is_full(self._cluster_file.log_dir(node_id).path)
        except OSError:
            return False  # of a broken disk

    def free_id_locked(self, topic: Topic) -> None:
        """Finish the deletion of a topic that had a new topic's id, whatever its delay: steps 5 and 6.

        Otherwise that deletion would go on with the new topic.

        Raises:
            KafkaStorageError: some of its directories are in log dirs that are away.
        """
        for deleted in self._deleted.all():
            if deleted.topic_id != topic.topic_id:
                continue
            if not all(self._is_removed(node, deleted) for node in deleted.nodes):
                raise KafkaStorageError(
                    f"topic {topic.name!r} was deleted, and with its id {topic.topic_id} it cannot be "
                    "there again before its files are deleted: mount the log dirs that are away, and "
                    "see `kbatch gc`"
                )
            self._deleted.forget(deleted)

    def _is_removed(self, node_id: int, deleted: DeletedTopic) -> bool:
        """Remove a deleted topic's directories on one node; return True if none is left there."""
        if node_id in deleted.named:
            return False
        for _ in range(_REMOVAL_ATTEMPTS):
            if not self._dirs.is_used(node_id):
                return False
            _, is_done = self._remove(node_id, deleted, LONG_MAX)
            if is_done:
                return True
            sleep_ms(_REMOVAL_PAUSE_MS)  # another process may be removing the same directory
        return False

    def ensure_name_is_free_locked(self, name: str) -> None:
        """Check that no directory of a deleted topic is in the way of a new one.

        Raises:
            KafkaStorageError: one in a log dir that can be used could not be renamed.
        """
        for deleted in self._deleted.all():
            if deleted.topic == name and any(map(self._dirs.is_used, deleted.named)):
                raise KafkaStorageError(
                    f"topic {name!r} was deleted, but its directories could not be renamed yet: make "
                    f"the log dirs of {self._cluster_file.path.parent} writable and try again"
                )

    def _free_name(self, deleted: DeletedTopic, *, is_new: bool = False) -> None:
        """Remove the mirrored metadata of a deleted topic, and rename its directories: steps 3 and 4."""
        with self._deleted.changing():
            self._deleted.spread(deleted)
            named = tuple(n for n in deleted.named if not self._rename(n, deleted, is_new=is_new))
            if named != deleted.named:
                self._deleted.write(deleted._replace(named=named))

    def _rename(self, node_id: int, deleted: DeletedTopic, *, is_new: bool) -> bool:
        """Rename a deleted topic's directories on one node to `-delete`; return True if all is done.

        The topic's files in the node's mirror are removed first.
        """
        if not self._dirs.is_used(node_id):
            return False
        log_dir = self._cluster_file.log_dir(node_id).path
        try:
            self._deleted.forget_copies(deleted, log_dir)
            for name in self._files.list(log_dir):
                held = partition_of(name)
                if held is None or held.topic != deleted.topic:
                    continue
                if self._is_of(log_dir / name, deleted, is_new=is_new):
                    target = log_dir / _delete_dir_name(held.partition, deleted)
                    self._files.remove_dir(target)
                    self._files.rename(log_dir / name, target)
            self._files.flush([log_dir])
        except OSError as error:
            self._failed(node_id, deleted, error)
            return False
        return True

    def _is_of(self, directory: Path, deleted: DeletedTopic, *, is_new: bool) -> bool:
        """Return True if a directory with a deleted topic's name is that topic's, not a recreated one's."""
        if not self._files.is_dir(directory):
            return False
        try:
            return read_partition_metadata(self._files, directory) == deleted.topic_id
        except (FileNotFoundError, KafkaStorageError):
            return is_new  # Later it may be another topic's, which needs repair.

    def _remove(
        self, node_id: int, deleted: DeletedTopic, directories_max: int
    ) -> tuple[int, bool]:
        """Remove a deleted topic's directories in a log dir; return how many, and whether none is left."""
        log_dir = self._cluster_file.log_dir(node_id).path
        try:
            names = self._left_in(log_dir, deleted)[:directories_max]
            for name in names:
                self._files.remove_dir(log_dir / name)
            # A removal ends early where another process removes the same directory.
            is_done = not self._left_in(log_dir, deleted)
            if is_done:
                self._files.flush([log_dir])
        except OSError as error:
            self._failed(node_id, deleted, error)
            return 0, False
        return len(names), is_done

    def _left_in(self, log_dir: Path, deleted: DeletedTopic) -> list[str]:
        ending = _ending(deleted)
        return [name for name in self._files.list(log_dir) if name.endswith(ending)]

    def _failed(self, node_id: int, deleted: DeletedTopic, error: OSError) -> None:
        logger.warning(
            "files of the deleted topic %s cannot be removed for now: %s", deleted.topic, error
        )
        if len(self._dirs.all) > 1:
            self._dirs.failed(node_id, error)


def _delete_dir_name(partition: int, deleted: DeletedTopic) -> str:
    """Return the `-delete` name, like Kafka's, of a directory to be removed, shortened if it is too long."""
    ending = f"-{partition}{_ending(deleted)}"
    return deleted.topic[: _NAME_LENGTH_MAX - len(ending)] + ending


def _ending(deleted: DeletedTopic) -> str:
    unique = hashlib.blake2s(deleted.topic_id.encode(), digest_size=16).hexdigest()
    return f".{unique}-delete"
