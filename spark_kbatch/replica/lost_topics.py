"""The recreation of topic files that are lost or damaged, while the topics' logs are there.

    name, partitions    the names of the directories, in all log dirs
    topic id            their partition.metadata
    replicas            the nodes that hold a directory; the one with the highest state leads
    settings            unknown: the defaults, except for the format that the records have. Those of
                        an internal topic are known

A copy in a mirror has all of that, and is put back as it is. Where there are mirrors a user's topic is not made again
from directories, unless its file is there and damaged: one that neither PATH nor a current mirror knows was
deleted, and its directories come from an older image of a disk. An empty log is no sign of a topic: an
interrupted creation leaves such logs. A damaged file is copied to TOPIC.json.damaged first.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from spark_kbatch.errors import KafkaStorageError
from spark_kbatch.files import Files
from spark_kbatch.log.checkpoints import read_partition_metadata
from spark_kbatch.log.partition_log import holds_records
from spark_kbatch.log.segment import base_offset_of
from spark_kbatch.log.state import valid_slots
from spark_kbatch.model import partition_of
from spark_kbatch.options.topic import INTERNAL_PREFIX, Topic, TopicConfig
from spark_kbatch.record.header import MAGIC, MAGIC_POSITION
from spark_kbatch.replica.manager import ReplicaManager

logger = logging.getLogger(__name__)

_VERSION_OF_MAGIC = {0: "0.9.0", 1: "0.10.2"}


class LostTopic(NamedTuple):
    """A topic whose file is lost or damaged, and what the file is recreated from, if it can be."""

    topic: Topic | None  # None if the file cannot be recreated
    # A sentence: what was lost, what it was recreated from, what is not known; or why it cannot be.
    what: str


def restore(
    manager: ReplicaManager, internal: Mapping[str, TopicConfig], *, dry_run: bool
) -> dict[str, LostTopic]:
    """Recreate topic files that are lost or damaged, from mirrors or from the topics' logs.

    Args:
        manager: of the cluster.
        internal: the settings of internal topics.
        dry_run: only look, and take no lock.

    Returns:
        The topics whose files were lost or damaged, by name.
    """
    if dry_run:
        return dict(_lost(manager, internal, dry_run=True))
    found = {}
    with manager.locks.metadata(), manager.writing():
        for name, lost in _lost(manager, internal, dry_run=False):
            if lost.topic is not None:
                manager.metadata.topics.write_again(lost.topic)
                logger.warning("topic %s: %s", name, lost.what)
            found[name] = lost
    return found


def _lost(
    manager: ReplicaManager, internal: Mapping[str, TopicConfig], *, dry_run: bool
) -> Iterator[tuple[str, LostTopic]]:
    topics, topics_dir = manager.metadata.topics, manager.metadata.paths.topics_dir
    own = {name.removesuffix(".json") for name in manager.files.list(topics_dir)}
    directories = {
        name: found
        for name, found in _directories(manager, skip_failing=dry_run).items()
        if name in internal or not name.startswith(INTERNAL_PREFIX)
    }
    for name in sorted({*topics.names(internal=True)}):
        if name.startswith(".") or (name in own and topics.is_sound(name)):
            continue
        fault = f"{topics_dir / name}.json is {'damaged' if name in own else 'lost'}"
        copy = topics.mirrored(name)
        if copy is not None:
            yield name, LostTopic(copy, f"{fault}: recreated from its copy in a mirror")
        elif name in directories:
            yield name, _recreated(manager, name, directories[name], fault, internal.get(name))
        else:
            why = "there is nothing to recreate it from: restore it from a backup"
            yield name, LostTopic(None, f"{fault}, and {why}")
        own.add(name)
    for name, of_topic in sorted(directories.items()):
        if name not in own and _hold_records(manager.files, of_topic):
            if topics.was_deleted(name):
                directory = next(iter(next(iter(of_topic.values())).values()))
                logger.warning(
                    "%s is of topic %r, which was deleted: it is left as it is; a new topic of that name moves "
                    "it aside",
                    directory,
                    name,
                )
                continue
            fault = f"{topics_dir / name}.json is lost"
            yield name, _recreated(manager, name, of_topic, fault, internal.get(name))


_Directories = Mapping[int, Mapping[int, Path]]  # of one topic: by partition and node


def _directories(
    manager: ReplicaManager, *, skip_failing: bool
) -> dict[str, dict[int, dict[int, Path]]]:
    """Return all partitions' directories in the log dirs, by topic, partition and node.

    With `skip_failing` without those of log dirs that fail: a topic might be made again without them.
    """
    found: dict[str, dict[int, dict[int, Path]]] = {}
    for log_dir in manager.dirs.all:
        if manager.dirs.is_readable(log_dir.node_id):
            try:
                names = manager.files.list(log_dir.path)
            except OSError as error:
                if not skip_failing or len(manager.dirs.all) == 1:
                    raise
                manager.dirs.failed(log_dir.node_id, error)
                continue
            for name in names:
                held = partition_of(name)
                directory = log_dir.path / name
                if held is None or manager.metadata.deleted.owns(directory):
                    continue
                if manager.files.is_dir(directory):
                    by_partition = found.setdefault(held.topic, {})
                    by_node = by_partition.setdefault(held.partition, {})
                    by_node[log_dir.node_id] = directory
    return found


def _hold_records(files: Files, directories: _Directories) -> bool:
    return any(
        holds_records(files, directory)
        for by_node in directories.values()
        for directory in by_node.values()
    )


def _recreated(
    manager: ReplicaManager,
    name: str,
    directories: _Directories,
    fault: str,
    config: TopicConfig | None,
) -> LostTopic:
    """Return a lost topic as recreated from its partitions' directories, or why that is impossible.

    Args:
        manager: of the cluster.
        name: of the topic.
        directories: of its partitions.
        fault: what is wrong with its file.
        config: its settings, if they are known.
    """
    try:
        return _from_directories(manager, name, directories, fault, config)
    except KafkaStorageError as error:
        return LostTopic(None, str(error))


def _from_directories(
    manager: ReplicaManager,
    name: str,
    directories: _Directories,
    fault: str,
    config: TopicConfig | None,
) -> LostTopic:
    for log_dir in manager.dirs.all:
        if not manager.dirs.is_readable(log_dir.node_id):
            raise KafkaStorageError(
                f"{fault}, and cannot be recreated while the log dir {log_dir.path} is offline: "
                "it may hold more of the topic"
            )
    partitions = max(directories) + 1
    if len(directories) < partitions:
        missing = next(number for number in range(partitions) if number not in directories)
        raise KafkaStorageError(
            f"{fault}, and so is the directory of partition {missing}, while there are "
            f"{len(directories)} others up to {partitions - 1}: restore that from a backup first"
        )
    files = manager.files
    topic_id = _topic_id(files, fault, directories)
    replicas = tuple(_leader_first(files, directories[number]) for number in range(partitions))
    settings_said = "settings are those of every internal topic"
    if config is None:
        config, settings_said = _guessed_config(files, directories)
    return LostTopic(
        Topic(name, topic_id, partitions, config, replicas),
        f"{fault}: recreated from the directories of {partitions} "
        f"{'partition' if partitions == 1 else 'partitions'}; its {settings_said}",
    )


def _guessed_config(files: Files, directories: _Directories) -> tuple[TopicConfig, str]:
    """Return topic settings with which a lost topic's records can be read, and a text that describes them."""
    magic = _magic(files, directories)
    version = _VERSION_OF_MAGIC.get(magic, TopicConfig().message_format_version)
    format_said = f", except for message.format.version={version}" if magic != MAGIC else ""
    said = f"settings are not known, so they are the defaults{format_said}"
    return TopicConfig(message_format_version=version), said


def _topic_id(files: Files, fault: str, directories: _Directories) -> str:
    found: dict[str, Path] = {}
    for by_node in directories.values():
        for directory in by_node.values():
            try:
                found[read_partition_metadata(files, directory)] = directory
            except (FileNotFoundError, KafkaStorageError):
                continue  # The partition's repair recreates it.
    if len(found) != 1:
        where = " and ".join(f"{topic_id} in {one}" for topic_id, one in sorted(found.items())[:2])
        raise KafkaStorageError(
            f"{fault}, and its directories do not agree on the topic's id: "
            f"{where or 'none of them has one'}; move those of another topic away"
        )
    return next(iter(found))


def _leader_first(files: Files, by_node: Mapping[int, Path]) -> tuple[int, ...]:
    """Return the nodes that hold a partition, by how far their logs reach, so most likely the leader first.

    A file in partitions/ may name another leader.

    No follower's log ends after its leader's, and a follower learns the high watermark later.
    """

    def ends(node_id: int) -> tuple[int, int]:
        try:
            slots = valid_slots(files, by_node[node_id])
        except FileNotFoundError:
            slots = []
        state = max(slots, default=None)
        return (-1, -1) if state is None else (state.log_end_offset, state.high_watermark)

    # Sorting is stable: equal nodes stay in order.
    return tuple(sorted(sorted(by_node), key=ends, reverse=True))


def _magic(files: Files, directories: _Directories) -> int:
    """Return the message format version (magic) of the first batch found in a topic's logs."""
    for by_node in directories.values():
        for directory in by_node.values():
            for name in files.list(directory):
                if base_offset_of(name) is not None:
                    found = files.read(directory / name, MAGIC_POSITION, 1)
                    if found:
                        return found[0]
    return MAGIC
