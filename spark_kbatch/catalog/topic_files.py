"""topics/TOPIC.json: the topics that exist, and the nodes that hold their replicas.

    topic_id, partitions, config
    given              keys of the settings that were given, also with a default's value
    replica_cycle      partition p has the replicas at p modulo the length of the list

A topic exists once its file does. Where log dirs lie on other disks each of them has a copy: a topic of which
neither PATH nor a current copy has the file was deleted, and a log of it is of an older image of a disk.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from spark_kbatch.catalog.cluster_file import NODES_MAX, ClusterFile
from spark_kbatch.catalog.deletions import TOPIC_ID, DeletedTopics
from spark_kbatch.catalog.json_files import GENERATION, JsonFiles
from spark_kbatch.catalog.paths import ClusterPaths
from spark_kbatch.errors import (
    ConfigError,
    InvalidTopicError,
    KafkaStorageError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.log.partition_log import holds_records
from spark_kbatch.model import LONG_MAX, partition_of
from spark_kbatch.options.topic import (
    INTERNAL_PREFIX,
    NO_LIMIT,
    PARTITIONS_MAX,
    Topic,
    TopicConfig,
    ensure_not_alike,
    topic_field,
    topic_key,
)
from spark_kbatch.stored_json import StoredObject

_TOPICS_NAMED_MAX, _NEAREST = 20, 5  # in an error; of more topics only the nearest
_GIVEN_MAX = 1000  # a damaged file must not ask for all memory
_LEAST = {
    "max_message_bytes": 0,
    "index_interval_bytes": 0,
    "message_timestamp_before_max_ms": 0,
    "message_timestamp_after_max_ms": 0,
    "retention_ms": NO_LIMIT,
    "retention_bytes": NO_LIMIT,
    "file_delete_delay_ms": 0,
}  # of settings that may be less than 1


class _KnownFile(NamedTuple):
    """A cached topic, with the path and fingerprint of the file that it was read from."""

    path: Path
    fingerprint: tuple[int, ...] | None = None  # None if nothing was read
    topic: Topic | None = None


_NOT_KNOWN = _KnownFile(Path())


class TopicFiles:
    """The topics of one cluster, as its files topics/TOPIC.json have them.

    It is thread-safe.

    Each call looks at the disk. A topic's file is read again only once it was replaced.
    """

    def __init__(
        self,
        json_files: JsonFiles,
        paths: ClusterPaths,
        cluster_file: ClusterFile,
        deleted: DeletedTopics,
    ) -> None:
        self._json_files, self._files, self._paths = json_files, json_files.files, paths
        self._cluster_file, self._deleted = cluster_file, deleted
        self._known: dict[str, _KnownFile] = {}  # by name; each replaced whole
        self._names: dict[str, str] = {}  # of those, by id

    def names(self, *, internal: bool = False) -> list[str]:
        """Return the names of all topics, sorted, with the cluster's internal ones if `internal` is set."""
        mirrors, topics_dir = self._json_files.mirrors, self._paths.topics_dir
        self._cluster_file.ensure_not_lost()
        own, mirrored = (
            {name.removesuffix(".json") for name in files if name.endswith(".json")}
            for files in (self._files.list(topics_dir), mirrors.list(topics_dir.name))
        )
        # A copy that only a mirror has may be of a deleted topic.
        own |= {name for name in mirrored - own if self.find(name) is not None}
        return sorted(name for name in own if internal or not name.startswith(INTERNAL_PREFIX))

    def find(self, name: str) -> Topic | None:
        """Return the topic with this name, as its file is now; None if it does not exist.

        The same object is returned until its file is replaced.

        Raises:
            InvalidTopicError: Kafka would refuse the name.
            KafkaStorageError: the file is damaged; says how to recreate it. Or PATH is gone, or an old one.
        """
        known = self._known.get(name) or _KnownFile(self._paths.topic_file(name))
        # The look comes before the read: a file that is replaced in between is read again next time.
        fingerprint = self._files.fingerprint(known.path)
        if fingerprint is not None and fingerprint == known.fingerprint:
            return known.topic
        try:
            found = self._json_files.read_or_mirrored(known.path, self._deleted.is_alive)
            if found is not None and self._ignores_case and name not in self.names(internal=True):
                found = None  # It is another topic's.
            topic = None if found is None else _topic_of(name, StoredObject(found, known.path))
        except KafkaStorageError as error:
            raise KafkaStorageError(
                f"{error}; `kbatch repair {self._paths.path}` recreates the file"
            ) from None
        if known.topic is not None and known.topic is not topic:
            self._names.pop(known.topic.topic_id, None)
        if topic is None:
            self._cluster_file.ensure_not_lost()
            if fingerprint is None and self._files.fingerprint(known.path) is not None:
                return self.find(name)  # It was created meanwhile, or PATH is back.
            self._known.pop(name, None)  # Any number of names may be asked for.
        else:
            self._known[name] = known._replace(fingerprint=fingerprint, topic=topic)
            self._names[topic.topic_id] = name
        return topic

    def known(self, topic_id: str) -> Topic | None:
        """Return the topic that had this id when its file was read last; look at no disk."""
        topic = self._known.get(self._names.get(topic_id, ""), _NOT_KNOWN).topic
        return topic if topic is not None and topic.topic_id == topic_id else None

    def mirrored(self, name: str) -> Topic | None:
        """Return a topic as read from the newest copy of its file in a mirror; None if no copy is sound."""
        path = self._paths.topic_file(name)
        found = self._mirrored(path)
        try:
            return None if found is None else _topic_of(name, StoredObject(found, path))
        except KafkaStorageError:
            return None

    def topic(self, name: str) -> Topic:
        """Return the topic with this name, as its file is now; raise an error if it does not exist.

        Raises:
            UnknownTopicOrPartitionError: names the topics that exist.
            InvalidTopicError, KafkaStorageError: as `find`.
        """
        topic = self.find(name)
        if topic is None:
            why_lost = self.why_lost(name)
            if why_lost:
                raise UnknownTopicOrPartitionError(why_lost)
            topic = self.find(name)  # it may have been created meanwhile
        if topic is None:
            names = self.names()
            known = f"its topics: {', '.join(names) or 'none'}"
            if len(names) > _TOPICS_NAMED_MAX:
                near = difflib.get_close_matches(name, names, n=_NEAREST, cutoff=0.0)
                known = f"of its {len(names)} topics the nearest are: {', '.join(near)}"
            raise UnknownTopicOrPartitionError(
                f"topic {name!r} does not exist in {self._paths.path}; {known}"
            )
        return topic

    def existing(self, name: str) -> Topic:
        """Return the topic with this name, as `topic` does, at the same cost whether it exists or not.

        Raises:
            UnknownTopicOrPartitionError: it does not exist; names no others, which takes long if there are many.
            InvalidTopicError, KafkaStorageError: as `find`.
        """
        topic = self.find(name)
        if topic is None:
            raise UnknownTopicOrPartitionError(f"topic {name!r} does not exist")
        return topic

    def write(self, topic: Topic) -> None:
        """Write a topic's file, which makes the topic exist or changes it.

        The caller holds the metadata lock and has made the topic's logs.
        """
        replicas = [topic.replicas_of(p) for p in range(topic.partitions)]
        path = self._paths.topic_file(topic.name)
        try:
            generation = _generation(self._json_files.read(path), path)
        except (FileNotFoundError, KafkaStorageError):  # It is lost or damaged.
            generation = _generation(self._mirrored(path) or {GENERATION: -1}, path)
        self._json_files.write(
            path,
            {
                GENERATION: generation + 1,
                "topic_id": topic.topic_id,
                "partitions": topic.partitions,
                "config": {
                    topic_key(field): value for field, value in asdict(topic.known_config).items()
                },
                "given": sorted(topic.given),
                "replica_cycle": _cycle_of(replicas),
            },
        )

    def _mirrored(self, path: Path) -> dict[str, Any] | None:
        name = path.relative_to(self._paths.path)
        return self._json_files.mirrors.read(name, self._deleted.is_alive)

    def is_sound(self, name: str) -> bool:
        """Return False if the topic's file is damaged."""
        try:
            self.find(name)
        except KafkaStorageError:
            return False
        return True

    def write_again(self, topic: Topic) -> None:
        """Write the lost or damaged file of a topic again, keeping a copy of a damaged one."""
        path = self._paths.topic_file(topic.name)
        if self._files.exists(path):
            damaged = path.with_name(f"{path.name}.damaged")
            self._json_files.replace(damaged, self._files.read(path))
        self.write(topic)

    def ensure_may_be_named(self, name: str) -> None:
        """Check that a new topic's name is not too much like that of another topic.

        Raises:
            InvalidTopicError: the names differ only in `.` and `_`, as in Kafka; or only by case, and the
                file system ignores case.
        Source: Topic.hasCollision, ReplicationControlManager.createTopic.
        """
        self.check_of_new_names()(name)

    def check_of_new_names(self) -> Callable[[str], None]:
        """Return `ensure_may_be_named` for several names: topics are listed once, and only if need be."""
        return functools.partial(
            self._ensure_unlike_others, functools.cache(self._names_by_likeness)
        )

    def _names_by_likeness(self) -> Mapping[str, Sequence[str]]:
        found: dict[str, list[str]] = {}
        for name in self.names(internal=True):
            found.setdefault(_likeness(name), []).append(name)
        return found

    def _ensure_unlike_others(
        self, by_likeness: Callable[[], Mapping[str, Sequence[str]]], name: str
    ) -> None:
        if "." not in name and "_" not in name and not self._ignores_case:
            return
        for other in by_likeness().get(_likeness(name), ()):
            if other == name:
                continue
            ensure_not_alike(name, other)
            if self._ignores_case and other.lower() == name.lower():
                reason = f"the file system of {self._paths.path} does not tell the two names apart"
                raise InvalidTopicError(name, reason, other)

    @functools.cached_property
    def _ignores_case(self) -> bool:
        path = self._cluster_file.path
        return self._files.exists(path.with_name(path.name.upper()))

    def was_deleted(self, name: str) -> bool:
        """Return True if a topic without a file was deleted if it ever was, since other disks have copies of files.

        The cluster's own topics are never deleted.
        """
        return bool(self._json_files.mirrors.folders) and not name.startswith(INTERNAL_PREFIX)

    def why_lost(self, name: str) -> str:
        """Return an error text if a missing topic still has a log, so has lost its file; else nothing."""
        if self.was_deleted(name):
            return ""
        for log_dir in self._cluster_file.log_dirs():
            directory = log_dir.path / f"{name}-0"
            # Records come after the file: one that is there by now was created since it was missed. A deletion
            # takes the file before the directory.
            if (
                self._is_left(directory)
                and holds_records(self._files, directory)
                and self.find(name) is None
                and self._is_left(directory)
            ):
                return (
                    f"topic {name!r} does not exist in {self._paths.path}: "
                    f"{self._paths.topic_file(name)} is not there, though {directory} holds records; "
                    f"`kbatch repair {self._paths.path}` recreates the file"
                )
        return ""

    def has_logs(self, name: str) -> bool:
        """Return True if a log dir has a log of a topic, and not as one of a deleted topic."""
        return any(
            (held := partition_of(entry)) is not None
            and held.topic == name
            and self._is_left(log_dir.path / entry)
            for log_dir in self._cluster_file.log_dirs()
            for entry in self._files.list(log_dir.path)
        )

    def _is_left(self, directory: Path) -> bool:
        """Return True if a partition's directory is there, and not of a deleted topic."""
        # In this order: a deleted topic's directory is renamed, and then nothing says whose it was.
        return not self._deleted.owns(directory) and self._files.exists(directory)


def _likeness(name: str) -> str:
    """Return what names have in common that differ only in `.` and `_`, or only by case."""
    return name.replace(".", "_").lower()


def _topic_of(name: str, stored: StoredObject) -> Topic:
    partitions = stored.integer("partitions", 1, PARTITIONS_MAX)
    counts_max = PARTITIONS_MAX, NODES_MAX
    cycle = stored.lists_of_integers("replica_cycle", 0, NODES_MAX, counts_max=counts_max)
    return Topic(
        name,
        stored.text("topic_id", TOPIC_ID),
        partitions,
        _config_of(stored.object("config")),
        tuple(cycle[p % len(cycle)] for p in range(partitions)),
        frozenset(stored.texts("given", count_max=_GIVEN_MAX)),
    )


def _generation(values: Mapping[str, Any], path: Path) -> int:
    return StoredObject(values, path).integer(GENERATION, -1, LONG_MAX - 1)


def _config_of(stored: StoredObject) -> TopicConfig:
    """Parse the settings in a topic's file, checking their types and ranges."""
    defaults = {topic_key(field): value for field, value in asdict(TopicConfig()).items()}
    given: dict[str, int | str] = {}
    for key in stored.keys():
        if key not in defaults:
            raise stored.damaged(key, stored.values[key], "a setting that this release knows")
        field = topic_field(key)
        if isinstance(defaults[key], str):
            given[field] = stored.text(key)
        else:
            given[field] = stored.integer(key, _LEAST.get(field, 1), LONG_MAX)
    try:
        return TopicConfig(**given)  # type: ignore[arg-type]
    except ConfigError as error:
        raise stored.damaged("message.timestamp.type", given, str(error)) from error


def _cycle_of(replicas: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the shortest list that, repeated, gives the replicas of all partitions."""
    for size in range(1, len(replicas)):
        if replicas[size] == replicas[0]:
            # Nodes are assigned in turn, so it is the first one or none.
            return replicas[:size] if replicas[size:] == replicas[:-size] else replicas
    return replicas
