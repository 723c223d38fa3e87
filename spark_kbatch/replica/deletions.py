"""Topics that were deleted, and what of them is still on the disks.

    1 note      topics/TOPIC.json      written again, with what the next steps need to know
    2 decide    deleted/ID.json        that file, renamed; ID is the topic's. From here on the topic does
                                       not exist, whatever happens next
    3 copies    mirror-N/              the same, in each mirror; partitions/TOPIC/ goes, in PATH too
    4 rename    broker-N/TOPIC-P       to TOPIC-P.HEX-delete, as a broker does, which accepts such
                                       directories in its log.dirs and removes them
    5 remove    those directories      once file.delete.delay.ms have passed
    6 forget    deleted/ID.json        the copies first

    a crash in   leaves                                        who goes on
    note         the topic                                     -
    decide       the topic, or none; only a loss of power may  as of copies, where there is none
                 take the renaming
    copies       no topic                                      the next who deletes or creates a topic,
                                                               or changes one, or `kbatch gc`
    rename       no topic; some directories have its name      the same
    remove       no topic; some directories are there          the same, or the next commit
    forget       no topic                                      the same

All of it is done under the metadata lock, 1 and 2 also under the commit lock and the locks of all the
topic's partitions: so no commit names the topic, and nobody writes to it. Who gets such a lock later
looks for the topic again and finds none. No reader does any of it: one that comes upon files that are
gone looks for the topic, and says that it does not exist.

A topic of the same name may be created once 4 is done in the log dirs that can be used. What is in one
that is offline comes back with it. Hence deleted/ID.json stays until all of it is done everywhere: as
long as it is there neither a mirror nor a directory brings the topic back. A directory is known by the
topic's id, in partition.metadata, so those of another topic of the same name are left alone.

HEX is made from the topic's id, so that nothing has to be noted to find the directories again.

Source: Kafka core/.../log/LogManager.scala asyncDelete, storage/.../log/LocalLog.logDeleteDirName.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path

from spark_kbatch.errors import KafkaStorageError
from spark_kbatch.files import Files
from spark_kbatch.log.checkpoints import read_partition_metadata
from spark_kbatch.options.topic import Topic
from spark_kbatch.replica.log_dirs import LogDirs
from spark_kbatch.replica.metadata import DeletedTopic, Metadata, partition_of

logger = logging.getLogger(__name__)

_NAME_LENGTH_MAX = 255


class Deletions:
    """The deleted topics of one cluster. Thread-safe.

    The caller of a method whose name ends in `_locked` holds the metadata lock, and keeps brokers out of
    the log dirs.
    """

    def __init__(self, files: Files, metadata: Metadata, dirs: LogDirs) -> None:
        self._files, self._metadata, self._dirs = files, metadata, dirs

    def delete_locked(self, topic: Topic, now_ms: int) -> None:
        """Delete a topic; the caller also holds the commit lock and the locks of all its partitions.

        Raises:
            OSError: whether the topic is deleted shows the next look at it.
        """
        nodes = tuple(one.node_id for one in self._metadata.log_dirs(again=True))
        deleted = DeletedTopic(
            topic.name, topic.topic_id, now_ms + topic.config.file_delete_delay_ms, nodes, nodes
        )
        self._metadata.decide_deletion(deleted)
        self._finish(deleted, now_ms, is_new=True)

    def finish_locked(self, now_ms: int) -> list[DeletedTopic]:
        """Go on with every deletion as far as its time and the disks allow; those that are over."""
        deleted = self._metadata.deleted_topics()
        return [one for one in deleted if self._finish(one, now_ms)]

    def due(self, now_ms: int) -> list[DeletedTopic]:
        """Those of which something can be done now. Takes no lock, and changes nothing."""
        return [
            one
            for one in self._metadata.deleted_topics()
            if any(map(self._dirs.is_used, one.nodes if now_ms >= one.delete_ms else one.named))
        ]

    def ensure_name_is_free_locked(self, name: str) -> None:
        """Check that no directory of a deleted topic stands in the way of one that is to be created.

        Raises:
            KafkaStorageError: one in a log dir that can be used could not be renamed.
        """
        for deleted in self._metadata.deleted_topics():
            if deleted.topic == name and any(map(self._dirs.is_used, deleted.named)):
                raise KafkaStorageError(
                    f"topic {name!r} was deleted, and its directories could not be renamed yet: "
                    f"make the log dirs of {self._metadata.path} writable and try again"
                )

    def directories(self, deleted: DeletedTopic) -> Iterator[Path]:
        """The directories of a deleted topic that wait to be removed, where they can be looked at."""
        for node_id in deleted.nodes:
            if self._dirs.is_readable(node_id):
                yield from self._renamed(self._metadata.log_dir(node_id).path, deleted)

    def _finish(self, deleted: DeletedTopic, now_ms: int, *, is_new: bool = False) -> bool:
        """Steps 3 to 6; whether nothing is left of it."""
        left = deleted
        if deleted.named:
            self._metadata.spread_deletion(deleted)
            named = tuple(n for n in deleted.named if not self._rename(n, deleted, is_new=is_new))
            left = left._replace(named=named)
        if now_ms >= left.delete_ms:
            nodes = (
                node for node in left.nodes if node in left.named or not self._remove(node, left)
            )
            left = left._replace(nodes=tuple(nodes))
        if not left.nodes:
            self._metadata.forget_deletion(left)
        elif left != deleted:
            self._metadata.write_deleted(left)
        return not left.nodes

    def _rename(self, node_id: int, deleted: DeletedTopic, *, is_new: bool) -> bool:
        """Take the topic's name from what a log dir and its mirror have; whether that is done."""
        if not self._dirs.is_used(node_id):
            return False
        log_dir = self._metadata.log_dir(node_id).path
        try:
            self._metadata.forget_copies(deleted, node_id)
            for name in self._files.list(log_dir):
                held = partition_of(name)
                if held is None or held.topic != deleted.topic:
                    continue
                if self._is_of(log_dir / name, deleted, is_new=is_new):
                    target = log_dir / delete_dir_name(held.partition, deleted)
                    self._files.remove_dir(target)
                    self._files.rename(log_dir / name, target)
            self._files.flush([log_dir])
        except OSError as error:
            self._failed(node_id, deleted, error)
            return False
        return True

    def _is_of(self, directory: Path, deleted: DeletedTopic, *, is_new: bool) -> bool:
        """Whether a directory that has the topic's name is the topic's."""
        if not self._files.is_dir(directory):
            return False
        try:
            return read_partition_metadata(self._files, directory) == deleted.topic_id
        except (FileNotFoundError, KafkaStorageError):
            return is_new  # Later it may be another topic's, which is to be repaired.

    def _remove(self, node_id: int, deleted: DeletedTopic) -> bool:
        """Remove the directories in a log dir; whether none is left."""
        if not self._dirs.is_used(node_id):
            return False
        log_dir = self._metadata.log_dir(node_id).path
        try:
            for directory in self._renamed(log_dir, deleted):
                self._files.remove_dir(directory)
            self._files.flush([log_dir])
        except OSError as error:
            self._failed(node_id, deleted, error)
            return False
        return True

    def _renamed(self, log_dir: Path, deleted: DeletedTopic) -> Iterator[Path]:
        ending = _ending(deleted)
        return (log_dir / name for name in self._files.list(log_dir) if name.endswith(ending))

    def _failed(self, node_id: int, deleted: DeletedTopic, error: OSError) -> None:
        logger.warning("files of the deleted topic %s stay for now: %s", deleted.topic, error)
        if len(self._dirs.all) > 1:
            self._dirs.failed(node_id, error)


def delete_dir_name(partition: int, deleted: DeletedTopic) -> str:
    """The name that a partition's directory has until it is removed: Kafka's, cut where it is too long."""
    ending = f"-{partition}{_ending(deleted)}"
    return deleted.topic[: _NAME_LENGTH_MAX - len(ending)] + ending


def _ending(deleted: DeletedTopic) -> str:
    unique = hashlib.blake2s(deleted.topic_id.encode(), digest_size=16).hexdigest()
    return f".{unique}-delete"
