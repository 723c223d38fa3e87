"""cluster.json and topics/*.json: what the cluster is and which topics it has.

Each file is replaced whole, so a reader sees an old or a new one and needs no lock. Writers hold the
metadata lock.

    topics/NAME.json     topic_id, partitions, config, and who holds the replicas:
      replica_cycle      version 2: partition p has those at p modulo the length of the list
      replicas           version 1: a list for each partition

The version is the cluster's, in cluster.json. A cluster of version 1 keeps it, and its topics keep their
form, so that the release that made it can go on using it; that release refuses a cluster of version 2.

PATH is one POSIX file system that driver and executors share: `create` probes what we need of it,
and `Probe` lets a task see that it looks at the driver's PATH.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
import logging
import os
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path, PurePath
from typing import Any, NamedTuple
from urllib.parse import unquote

from spark_kbatch.errors import (
    ConfigError,
    InvalidTopicError,
    KafkaStorageError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.files import Files
from spark_kbatch.log import state as log_state
from spark_kbatch.log.checkpoints import (
    META_PROPERTIES,
    random_id,
    read_partition_metadata,
    write_meta_properties,
)
from spark_kbatch.log.foreign.log_dir import BrokerLogDir
from spark_kbatch.log.partition_log import holds_records
from spark_kbatch.log.state import LogState
from spark_kbatch.model import INT_MAX, LONG_MAX, TopicPartition
from spark_kbatch.options import arguments
from spark_kbatch.options.topic import (
    INTERNAL_PREFIX,
    NO_LIMIT,
    Topic,
    TopicConfig,
    ensure_valid_topic,
    topic_field,
    topic_key,
)
from spark_kbatch.replica.mirrors import GENERATION, Mirrors, mirror_of
from spark_kbatch.stored_json import StoredObject, parse

logger = logging.getLogger(__name__)

CLUSTER_FILE = "cluster.json"
FORMAT_VERSION = 2  # of a cluster that is created; one that exists keeps its own
READ_VERSIONS = (1, 2)
PARTITIONS_MAX = 100_000  # of one topic: a damaged file must not ask for all memory
_TOPICS_NAMED_MAX, _NEAREST = 20, 5  # where a topic does not exist: of more only the nearest
NODES_MAX = 1000  # likewise; also the highest number of one
_A_PATH = re.compile(r"[^\0]+")
_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HEX = re.compile(r"(?:[0-9a-f]{2})*")
_LEAST = {
    "index_interval_bytes": 0,
    "message_timestamp_before_max_ms": 0,
    "message_timestamp_after_max_ms": 0,
    "retention_ms": NO_LIMIT,
    "retention_bytes": NO_LIMIT,
    "file_delete_delay_ms": 0,
}  # of settings that may be less than 1
_NAME_BYTES_MAX = 255
_NEXT_PRODUCER_ID = "next_producer_id"
_MIRROR = "mirror-"
_MIRRORED = {CLUSTER_FILE, "topics", "partitions", "deleted"}


def absolute_path(path: str | os.PathLike[str], name: str = "path") -> Path:
    """The folder that `path` names; `file:` is accepted, and `~` for the home folder.

    Args:
        name: of the argument, for errors.

    As in Spark, "#" and "?" are characters of a name like others, also behind `file:`.

    Raises:
        ConfigError: any other scheme, an empty path, one that no file system has, or what is none.
    """
    text = arguments.path_text(name, path)
    named = text
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/", text)
    if scheme:
        if scheme[1].lower() != "file":
            raise ConfigError(
                f"path {text!r} has the scheme {scheme[1]!r}; a cluster lies on a POSIX file system "
                "that driver and executors share: give a folder, such as /data/events or "
                "file:/data/events"
            )
        named = _path_of_file_uri(text)
    if not named.strip():
        raise ConfigError("the path is empty; it names the cluster's folder")
    try:
        named.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"path {text!r} has a character that UTF-8 does not have; rename the folder"
        ) from None
    if "\0" in named:
        raise ConfigError(f"path {text!r} has a NUL character, which no folder's name has")
    longest = max(Path(named).parts, key=lambda part: len(part.encode()), default="")
    if len(longest.encode()) > _NAME_BYTES_MAX:
        raise ConfigError(
            f"path {text!r} has a name of {len(longest.encode())} bytes, and file systems take "
            f"{_NAME_BYTES_MAX}; shorten it"
        )
    if text.startswith("~"):
        try:
            named = str(Path(text).expanduser())
        except RuntimeError:
            raise ConfigError(
                f"path {text!r} begins with '~', and there is no such user with a home folder; a folder "
                f"whose name begins so is written ./{text}"
            ) from None
    # Two slashes at its begin are kept otherwise.
    return Path(f"/{os.path.abspath(named).lstrip('/')}")  # noqa: PTH100  resolve() would follow links that may move


def _path_of_file_uri(text: str) -> str:
    """Behind `file:`, with its escapes undone."""
    path = text.partition(":")[2]
    if path.startswith("//"):
        host, slash, rest = path[2:].partition("/")
        if host.lower() not in ("", "localhost"):
            raise ConfigError(f"path {text!r} names the host {host!r}; write file:/folder")
        path = slash + rest
    if "%2f" in path.lower():
        raise ConfigError(f"path {text!r} has the escape %2F, a slash that no name has; write '/'")
    try:
        return unquote(path, errors="strict")
    except UnicodeDecodeError:
        raise ConfigError(
            f"path {text!r} has escapes that are not UTF-8; write the folder without `file:`"
        ) from None


class LogDir(NamedTuple):
    """One disk's part of a cluster: the directory of a node's logs."""

    node_id: int
    path: Path  # ends in broker-N
    directory_id: str  # of its meta.properties

    @property
    def staging(self) -> Path:
        """What tasks write, on the same file system."""
        return staging_of(self.path)


def staging_of(log_dir: Path) -> Path:
    """Of the log dir broker-N: staging-N beside it."""
    return log_dir.with_name(log_dir.name.replace("broker", "staging"))


class PartitionState(NamedTuple):
    """Who leads a partition, and who has all that was acknowledged."""

    leader: int  # node id
    isr: tuple[int, ...]  # node ids in order of preference; never empty
    leader_epoch: int = 0  # one higher with each new leader
    partition_epoch: int = 0  # one higher with each change
    # What a commit has decided for members of the ISR whose disks failed before it was written there,
    # by node, where no other member has it.
    kept: Mapping[int, LogState] = {}


class DeletedTopic(NamedTuple):
    """A topic that does not exist any more, while something of it is left; see `deletions`."""

    topic: str
    topic_id: str
    delete_ms: int  # when its directories may be removed
    named: tuple[int, ...]  # nodes whose log dir, or mirror, may still have the topic's name
    nodes: tuple[int, ...]  # nodes whose log dir may have something of it


class _Known(NamedTuple):
    """A topic, and the file that it was read from."""

    path: Path
    fingerprint: tuple[int, ...] | None = None  # None where nothing was read
    topic: Topic | None = None


class Metadata:
    """The JSON files of one cluster.

    Each call looks at the disk. A topic's file is read and parsed again only once it was replaced.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self.files = files
        self.path = path
        # Read once, and again by `log_dirs`; replaced whole. None while the cluster does not exist.
        self._log_dirs: tuple[LogDir, ...] | None = None
        self._new_cluster_id = ""  # between `make_dirs` and `create`
        self._topics: dict[str, _Known] = {}  # by name; each replaced whole
        self.snapshots_dir = path / "snapshots"
        self.transactions_dir = path / "transactions"
        self.locks_dir = path / "locks"
        self.topics_dir = path / "topics"
        self._partitions_dir = path / "partitions"
        self._deleted_dir = path / "deleted"

    @property
    def broker_dir(self) -> Path:
        """Node 0's log dir."""
        return self._log_dirs[0].path if self._log_dirs else self.path / "broker-0"

    @property
    def staging_dir(self) -> Path:
        """Beside it."""
        return staging_of(self.broker_dir)

    def log_dirs(self, *, again: bool = False) -> tuple[LogDir, ...]:
        """By node id; what was read before, unless they shall be looked up again."""
        if self._log_dirs is None or again:
            self._log_dirs = self._log_dirs_of(self._read_json(self.path / CLUSTER_FILE))
        return self._log_dirs

    def log_dir(self, node_id: int) -> LogDir:
        """A node's, also where another process has made it since."""
        known = self.log_dirs()
        if node_id >= len(known):
            known = self.log_dirs(again=True)
        if not 0 <= node_id < len(known):
            raise KafkaStorageError(
                f"{self.path / CLUSTER_FILE} names no log dir of node {node_id}, which has replicas; it "
                f"has the nodes 0 to {len(known) - 1}: one of the cluster's files is damaged or old"
            )
        return known[node_id]

    def _log_dirs_of(self, cluster: dict[str, Any]) -> tuple[LogDir, ...]:
        stored = StoredObject(cluster, self.path / CLUSTER_FILE)
        found = [
            LogDir(
                log_dir.integer("node_id", highest=NODES_MAX),
                self.path / log_dir.text("path", _A_PATH),
                log_dir.text("directory_id"),
            )
            for log_dir in stored.objects("log_dirs", count_max=NODES_MAX)
        ]
        if [one.node_id for one in found] != list(range(len(found))) or not found:
            raise KafkaStorageError(
                f"{self.path / CLUSTER_FILE} is damaged: its log dirs have the nodes "
                f"{[one.node_id for one in found]}; expected 0 and so on"
            )
        for one in found:
            # What lies in others, such as somebody's own folders, is not ours to write or remove.
            if one.path.name != f"broker-{one.node_id}":
                raise KafkaStorageError(
                    f"{self.path / CLUSTER_FILE} is damaged: it gives node {one.node_id} the log dir "
                    f"{one.path}; expected a folder that is named broker-{one.node_id}"
                )
        return tuple(found)

    def _ensure_not_copied(self, cluster: dict[str, Any]) -> None:
        """Check that no other folder holds this cluster, where its log dirs lie outside of PATH.

        Raises:
            ConfigError: one does, and it has locks of its own for the same logs.
        """
        stored = StoredObject({"path": str(self.path), **cluster}, self.path / CLUSTER_FILE)
        home = stored.text("path", _A_PATH)
        if Path(home) == self.path:
            return
        outside = [one.path for one in self._log_dirs or () if one.path.parent != self.path]
        if outside and self._is_elsewhere(Path(home), cluster.get("cluster_id")):
            raise ConfigError(
                f"{self.path} is a copy of the kbatch cluster at {home}, and both use the logs in "
                f"{outside[0]}: with locks of their own they would overwrite each other's records. "
                f"Open {home}; where the copy is to take its place, rename {home}, or remove it, first"
            )

    def _is_elsewhere(self, home: Path, cluster_id: object) -> bool:
        """Whether another folder than PATH, by whatever names, holds this cluster too."""
        try:
            if self.files.identity_at(home) == self.files.identity_at(self.path):
                return False
            return self._read_json(home / CLUSTER_FILE).get("cluster_id") == cluster_id
        except (OSError, KafkaStorageError):
            return False  # It was moved, or is mounted elsewhere.

    def exists(self) -> bool:
        """Whether PATH holds a cluster.

        Raises:
            ConfigError: this user may not look there.
        """
        try:
            return self.files.exists(self.path / CLUSTER_FILE)
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be read: {error.strerror or error}") from error

    def ensure_exists(self) -> None:
        """Check that PATH holds a cluster of a version that we read.

        Raises:
            ConfigError: says what is there instead.
        """
        if not self.exists():
            raise ConfigError(f"no kbatch cluster at {self.path}: {self._what_is_there()}")
        cluster = self._read_json(self.path / CLUSTER_FILE)
        version = StoredObject(cluster, self.path / CLUSTER_FILE).integer("version")
        if version not in READ_VERSIONS:
            raise ConfigError(
                f"the cluster at {self.path} has format version {version}; this release reads "
                f"{' and '.join(map(str, READ_VERSIONS))}: upgrade spark-kbatch"
            )
        self._log_dirs = self._log_dirs_of(cluster)
        self._ensure_not_copied(cluster)

    def ensure_not_inside_a_cluster(self) -> None:
        """Check that PATH is not within a log dir of ours, where not all that lies there counts.

        Raises:
            ConfigError: names the cluster.
        """
        for parent in self.path.parents[:3]:
            inside = self.path.relative_to(parent).parts[0]
            if inside == self.broker_dir.name and self.files.exists(parent / CLUSTER_FILE):
                raise ConfigError(
                    f"{self.path} is a part of the kbatch cluster at {parent}: name that folder"
                )

    def _what_is_there(self) -> str:
        if not self.path.exists():
            return "there is no such folder; write to it first, or check the path"
        try:
            if BrokerLogDir.find(self.files, self.path) is not None:
                return (
                    "it is a Kafka broker's, which kbatch only reads; `kbatch export` places topics "
                    "in a broker's log dir"
                )
            if not self.path.is_dir():
                return "it is a file, not a folder"
            names = self.files.list(self.path)
        except OSError as error:
            return f"the folder cannot be read: {error.strerror or error}"
        if not names:
            return "the folder is empty; write to it first"
        if self._has_topics():
            return (
                f"the folder holds topics, but its {CLUSTER_FILE} is lost; put it back from a copy: it "
                "has the cluster's id and log dirs"
            )
        return f"the folder holds something else ({', '.join(names[:3])}{', ...' if names[3:] else ''})"

    def ensure_creatable(self) -> None:
        """Check that a cluster can be made at PATH, before anything is written.

        Raises:
            ConfigError: a file, a folder that holds something else, or one that cannot be written.
        """
        try:
            if self.path.exists() and not (self.path.is_dir() and self._is_empty_or_unfinished()):
                raise ConfigError(
                    f"no kbatch cluster can be made at {self.path}: {self._what_is_there()}; give a "
                    "new or an empty folder"
                )
            self.files.make_dir_on_disk(self.path)
            self._probe()
        except OSError as error:
            raise ConfigError(
                f"no kbatch cluster can be made at {self.path}: {error.strerror or error}; the folder "
                "must be on a POSIX file system and writable, with locks, hard links and atomic rename"
            ) from error

    def _is_empty_or_unfinished(self) -> bool:
        """Whether nothing lies here, or only what a creation makes: one cut off, or one under way."""
        names = set(self.files.list(self.path))
        if self._has_topics():
            return False  # A cluster that has lost its file.
        cluster_file = self.path / CLUSTER_FILE
        ours = (
            self.broker_dir,
            self.staging_dir,
            self.snapshots_dir,
            self.locks_dir,
            self.topics_dir,
            cluster_file,
            cluster_file.with_suffix(".tmp"),
        )
        return not names or (self.locks_dir.name in names and names <= {path.name for path in ours})

    def _has_topics(self) -> bool:
        """Whether there is more than the topics that a creation makes."""
        topics, logs = (
            self.files.list(directory) if self.files.exists(directory) else []
            for directory in (self.topics_dir, self.broker_dir)
        )
        names = {name.removesuffix(".json") for name in topics if name.endswith(".json")}
        names |= {found.topic for found in map(partition_of, logs) if found is not None}
        return any(not name.startswith(INTERNAL_PREFIX) for name in names)

    def _probe(self) -> None:
        """Use each thing once that the file system must be able to do."""
        files = self.files
        files.make_dir(self.locks_dir)
        first, second = (self.locks_dir / f".probe-{uuid.uuid4().hex}{end}" for end in "ab")
        try:
            files.write(first, 1, b"x")
            self._probe_locks(first)
            if not files.link(first, second) or files.read(second) != b"\0x":
                raise OSError("hard links do not work")
            files.rename(second, first)
        finally:
            files.remove(first)
            files.remove(second)

    def _probe_locks(self, path: Path) -> None:
        files = self.files
        with files.flock(path) as _:
            other = files.flock(path, wait=False)
            if other is not None:
                other.release()
                raise OSError("flock excludes nobody")
        with files.open_for_locks(path) as first, files.open_for_locks(path) as second:
            files.lock_byte(first, 0)
            if files.lock_byte(second, 0, wait=False):
                raise OSError("record locks exclude nobody")

    def make_dirs(self, folders: Sequence[Path] = ()) -> None:
        """The first step of making a cluster. The caller holds the metadata lock.

        Args:
            folders: one for each log dir, in which broker-N is made; PATH alone by default.

        Raises:
            ConfigError: one of them holds another cluster's log dir already.
        """
        planned = [
            LogDir(node_id, folder / f"broker-{node_id}", random_id())
            for node_id, folder in enumerate(folders or [self.path])
        ]
        self._log_dirs = tuple(planned)
        for directory in (self.topics_dir, self.snapshots_dir):
            self.files.make_dir(directory)
        self._new_cluster_id = random_id()
        for log_dir in planned:
            self._make_log_dir(log_dir, self._new_cluster_id)

    def _make_log_dir(self, log_dir: LogDir, cluster_id: str) -> None:
        if self.files.exists(log_dir.path / META_PROPERTIES) and log_dir.path.parent != self.path:
            # One that was cut off while it was made holds the cluster's own topics at most.
            found = map(partition_of, self.files.list(log_dir.path))
            if any(one and not one.topic.startswith(INTERNAL_PREFIX) for one in found):
                raise ConfigError(
                    f"{log_dir.path} is the log dir of another cluster; name an empty folder"
                )
        for directory in (log_dir.path, log_dir.staging):
            self.files.make_dir_on_disk(directory)
        if log_dir.path.parent != self.path:
            self.files.make_dir_on_disk(mirror_of(log_dir.path))
        write_meta_properties(
            self.files, log_dir.path, cluster_id=cluster_id, node_id=log_dir.node_id,
            directory_id=log_dir.directory_id,
        )  # fmt: skip

    def create(self) -> None:
        """The last step: from here on the cluster exists. The caller holds the metadata lock."""
        self._write_json(
            self.path / CLUSTER_FILE,
            {
                "version": FORMAT_VERSION,
                "cluster_id": self._new_cluster_id,
                "log_dirs": self._as_json(self.log_dirs()),
            },
        )

    def _as_json(self, log_dirs: Sequence[LogDir]) -> list[dict[str, object]]:
        found: list[dict[str, object]] = []
        for node_id, path, directory_id in log_dirs:
            inside = path.parent == self.path  # then PATH may be moved
            name = path.name if inside else str(path)
            found.append({"path": name, "node_id": node_id, "directory_id": directory_id})
        return found

    def cluster_id(self) -> str:
        """What all log dirs carry."""
        path = self.path / CLUSTER_FILE
        return StoredObject(self._read_json(path), path).text("cluster_id")

    def add_log_dirs(self, count: int) -> None:
        """Have so many log dirs, new ones in PATH. The caller holds the metadata lock.

        Raises:
            ConfigError: the cluster was made with log dirs elsewhere, so those are all there are.
        """
        known = self.log_dirs(again=True)
        if count <= len(known):
            return
        if any(one.path.parent != self.path for one in known):
            raise ConfigError(
                f"replication.factor is {count}, more than the {len(known)} log.dirs that the cluster "
                "was made with"
            )
        added = [
            LogDir(node_id, self.path / f"broker-{node_id}", random_id())
            for node_id in range(len(known), count)
        ]
        for log_dir in added:
            self._make_log_dir(log_dir, self.cluster_id())
        self._write_log_dirs([*known, *added])

    def replace_log_dir(self, node_id: int) -> LogDir:
        """Take an empty directory for what a node had. The caller holds the metadata lock.

        Raises:
            ConfigError: no such node, or something is in the directory.
        """
        known = list(self.log_dirs(again=True))
        if not 0 <= node_id < len(known):
            raise ConfigError(f"there is no node {node_id}; nodes are 0 to {len(known) - 1}")
        log_dir = known[node_id]._replace(directory_id=random_id())
        names = self.files.list(log_dir.path) if self.files.exists(log_dir.path) else []
        if set(names) - {".lock", "lost+found"}:
            raise ConfigError(
                f"{log_dir.path} is not empty: it holds {', '.join(names[:3])}; move that away first"
            )
        known[node_id] = log_dir
        self._write_log_dirs(known)
        self._make_log_dir(log_dir, self.cluster_id())
        self._copy_to_mirror(mirror_of(log_dir.path))
        return log_dir

    def _write_log_dirs(self, log_dirs: Sequence[LogDir]) -> None:
        path = self.path / CLUSTER_FILE
        self._log_dirs = tuple(log_dirs)
        self._write_json(path, self._read_json(path) | {"log_dirs": self._as_json(log_dirs)})

    def take_producer_ids(self, count: int) -> range:
        """Ids that nobody has had nor will have. The caller holds the metadata lock."""
        path = self.path / CLUSTER_FILE
        cluster = self._read_json(path)
        # Absent until somebody takes the first.
        stored = StoredObject(cluster, path)
        first = stored.integer(_NEXT_PRODUCER_ID, highest=LONG_MAX - count, default=0)
        self._write_json(path, cluster | {_NEXT_PRODUCER_ID: first + count})
        return range(first, first + count)

    def topic_names(self, *, internal: bool = False) -> list[str]:
        """Sorted; internal topics where asked."""
        own, mirrored = (
            {name.removesuffix(".json") for name in files if name.endswith(".json")}
            for files in (self.files.list(self.topics_dir), self._mirrors().list("topics"))
        )
        # A copy that only a mirror has may be of a topic that was deleted.
        own |= {name for name in mirrored - own if self.find_topic(name) is not None}
        return sorted(name for name in own if internal or not name.startswith(INTERNAL_PREFIX))

    def find_topic(self, name: str) -> Topic | None:
        """Return the topic as the disk has it now; None if it does not exist.

        The same object is returned until its file is replaced.

        Raises:
            KafkaStorageError: the file is damaged.
        """
        known = self._topics.get(name) or _Known(self._topic_file(name))
        # The look comes before the read: a file that is replaced in between is read again next time.
        fingerprint = self.files.fingerprint(known.path)
        if fingerprint is not None and fingerprint == known.fingerprint:
            return known.topic
        found = self._read_or_mirrored(known.path, self._is_alive)
        if found is not None and self._ignores_case and name not in self._all_names():
            found = None  # It is another topic's.
        topic = None if found is None else self._topic_of(name, known.path, found)
        self._topics[name] = known._replace(fingerprint=fingerprint, topic=topic)
        return topic

    def ensure_may_be_named(self, name: str) -> None:
        """Check that a new topic of this name has files of its own.

        Raises:
            ConfigError: another topic's name differs by case only, which is the same name here.
        """
        if self._ignores_case:
            for other in self._all_names():
                if other != name and other.lower() == name.lower():
                    raise ConfigError(
                        f"topic {name!r} cannot be made beside {other!r}: the file system of "
                        f"{self.path} takes both for one name; choose another one"
                    )

    @functools.cached_property
    def _ignores_case(self) -> bool:
        return self.files.exists(self.path / CLUSTER_FILE.upper())

    def _all_names(self) -> list[str]:
        return self.topic_names(internal=True)

    def _topic_of(self, name: str, path: Path, found: dict[str, Any]) -> Topic:
        stored = StoredObject(found, path)
        partitions = stored.integer("partitions", 1, PARTITIONS_MAX)
        key = "replicas" if "replicas" in stored else "replica_cycle"
        cycle = stored.lists_of_integers(key, 0, NODES_MAX, counts_max=(PARTITIONS_MAX, NODES_MAX))
        if key == "replicas" and len(cycle) != partitions:
            raise stored.damaged(key, found[key], f"a list for each of {partitions} partitions")
        return Topic(
            name,
            stored.text("topic_id", _TOPIC_ID),
            partitions,
            _config_of(stored.object("config")),
            tuple(cycle[p % len(cycle)] for p in range(partitions)),
        )

    def topic(self, name: str) -> Topic:
        """The topic.

        Raises:
            UnknownTopicOrPartitionError: names those that exist.
        """
        topic = self.find_topic(name)
        if topic is None:
            self._ensure_not_lost(name)
            names = self.topic_names()
            known = f"its topics: {', '.join(names) or 'none'}"
            if len(names) > _TOPICS_NAMED_MAX:
                near = difflib.get_close_matches(name, names, n=_NEAREST, cutoff=0.0)
                known = f"of its {len(names)} topics the nearest are: {', '.join(near)}"
            raise UnknownTopicOrPartitionError(
                f"topic {name!r} does not exist in {self.path}; {known}"
            )
        return topic

    def _ensure_not_lost(self, name: str) -> None:
        for log_dir in self.log_dirs():
            directory = log_dir.path / f"{name}-0"
            is_there = self.files.exists(directory) and not self.is_of_deleted_topic(directory)
            if is_there and holds_records(self.files, directory):
                raise UnknownTopicOrPartitionError(
                    f"topic {name!r} does not exist in {self.path}: {self._topic_file(name)} is not "
                    f"there, though {directory} holds records; `kbatch repair {self.path}` makes the "
                    "file again"
                )

    def write_topic(self, topic: Topic) -> None:
        """Make the topic exist. The caller holds the metadata lock and has made its logs."""
        replicas = [topic.replicas_of(p) for p in range(topic.partitions)]
        if self._version() == 1:
            assignment = {"replicas": replicas}
        else:
            assignment = {"replica_cycle": _cycle_of(replicas)}
        path = self._topic_file(topic.name)
        before = self._read_or_mirrored(path, self._is_alive) or {GENERATION: -1}
        generation = StoredObject(before, path).integer(GENERATION, -1, LONG_MAX - 1, default=0)
        self._write_json(
            path,
            {
                GENERATION: generation + 1,
                "topic_id": topic.topic_id,
                "partitions": topic.partitions,
                "config": {topic_key(k): v for k, v in asdict(topic.config).items()},
                **assignment,
            },
        )

    def _version(self) -> int:
        """Of the cluster; of a new one before it exists."""
        if not self.exists():
            return FORMAT_VERSION
        path = self.path / CLUSTER_FILE
        return StoredObject(self._read_json(path), path).integer("version")

    def decide_deletion(self, deleted: DeletedTopic) -> None:
        """Have the topic not exist from here on, whatever happens next.

        The caller holds the metadata lock and the locks of all the topic's partitions.
        """
        path = self._topic_file(deleted.topic)
        found = self._read_or_mirrored(path, self._is_alive) or {}
        self.files.make_dir(self._deleted_dir)
        self.files.flush([self.path])
        # One file has all that is to be known, and one step decides: it changes its place.
        self.files.replace(path, _as_bytes(found | deleted._asdict()))
        self.files.rename(path, self._deleted_file(deleted))
        self.files.flush([self._deleted_dir, path.parent])

    def deleted_topics(self) -> list[DeletedTopic]:
        """Return the deleted topics of which something is left; a damaged file is left out."""
        try:
            names = self.files.list(self._deleted_dir)
        except FileNotFoundError:
            return []
        found = []
        for path in (self._deleted_dir / name for name in names if name.endswith(".json")):
            try:
                found.append(_deleted_of(StoredObject(self._read_json(path), path)))
            except FileNotFoundError:
                continue  # since it was listed
            except (KafkaStorageError, InvalidTopicError) as error:
                logger.warning("%s is damaged, and what it names stays: %s", path, error)
        return found

    def write_deleted(self, deleted: DeletedTopic) -> None:
        """Note how far a deletion has come. The caller holds the metadata lock."""
        self._write_json(self._deleted_file(deleted), deleted._asdict())

    def spread_deletion(self, deleted: DeletedTopic) -> None:
        """Tell the mirrors that a topic is deleted, and forget its partitions."""
        path = self._deleted_file(deleted)
        self._mirrors().write(path.relative_to(self.path), self.files.read(path))
        self._forget_in(self.path, deleted)

    def forget_copies(self, deleted: DeletedTopic, node_id: int) -> None:
        """Remove what the mirror beside a log dir has of a deleted topic, but that it is deleted."""
        log_dir = self.log_dir(node_id)
        if log_dir.path.parent != self.path:
            self._forget_in(mirror_of(log_dir.path), deleted)

    def forget_deletion(self, deleted: DeletedTopic) -> None:
        """Forget a topic of which nothing is left. The caller holds the metadata lock."""
        path = self._deleted_file(deleted)
        # PATH's own goes last: it is what is looked at.
        for folder in (*self._mirrors().folders, self.path):
            copy = folder / path.relative_to(self.path)
            # The first is of one who died while it wrote.
            found = [one for one in (copy.with_suffix(".tmp"), copy) if self.files.exists(one)]
            for one in found:
                self.files.remove(one)
            if found:
                self.files.flush([copy.parent])

    def _forget_in(self, folder: Path, deleted: DeletedTopic) -> None:
        """Remove a deleted topic's files in PATH or in a mirror, and none of another topic's."""
        topics, partitions = folder / "topics", folder / "partitions" / deleted.topic
        names = self.files.list(partitions) if self.files.exists(partitions) else []
        paths = [topics / f"{deleted.topic}.json", *(partitions / name for name in names)]
        gone = [path for path in paths if self._is_of(path, deleted)]
        for path in gone:
            self.files.remove(path)
        self.files.flush({path.parent for path in gone})
        if names and not self.files.list(partitions):
            self.files.remove_dir(partitions)
            self.files.flush([partitions.parent])

    def _is_of(self, path: Path, deleted: DeletedTopic) -> bool:
        if not self.files.exists(path):
            return False
        try:
            return bool(self._read_json(path).get("topic_id", deleted.topic_id) == deleted.topic_id)
        except KafkaStorageError:
            return path.parent.name != "topics"  # damaged, and of no use to anyone

    def is_of_deleted_topic(self, directory: Path) -> bool:
        """Return True for a partition's directory that was left behind when its topic was deleted."""
        try:
            topic_id = read_partition_metadata(self.files, directory)
        except (OSError, KafkaStorageError):
            return False  # Nothing says so.
        return not self._is_alive({"topic_id": topic_id})

    def _is_alive(self, found: Mapping[str, Any]) -> bool:
        """Return False for what a mirror has of a topic that was deleted since."""
        topic_id = found.get("topic_id")
        if not isinstance(topic_id, str) or not _TOPIC_ID.fullmatch(topic_id):
            return True  # and damaged: who reads it says so
        for folder in (self.path, *self._mirrors().folders):
            with contextlib.suppress(OSError):  # of a disk that is broken
                if self.files.exists(folder / f"deleted/{topic_id}.json"):
                    return False
        return True

    def _deleted_file(self, deleted: DeletedTopic) -> Path:
        return self._deleted_dir / f"{deleted.topic_id}.json"

    def partition_state(
        self, topic_partition: TopicPartition, topic_id: str
    ) -> PartitionState | None:
        """What was written last; None while nothing has happened to the partition's replicas.

        Args:
            topic_id: of the topic; what was written for another one of its name does not count.

        Raises:
            KafkaStorageError: the file is damaged.
        """
        path = self.partition_file(topic_partition)

        def is_its(found: Mapping[str, Any]) -> bool:
            known = found.get("topic_id")
            if known is None:  # written by an earlier release, which could not delete topics
                return topic_partition.topic not in {one.topic for one in self.deleted_topics()}
            return bool(known == topic_id)

        found = self._read_or_mirrored(path, is_its)
        if found is None or not is_its(found):
            return None
        stored = StoredObject(found, path)
        leader = stored.integer("leader", highest=NODES_MAX)
        isr = stored.integers("isr", highest=NODES_MAX, count_max=NODES_MAX)
        leader_epoch, partition_epoch = (
            stored.integer(key, highest=INT_MAX) for key in ("leader_epoch", "partition_epoch")
        )
        kept = dict(stored.object("kept", default={}).by_number(_kept_state, NODES_MAX))
        return PartitionState(leader, isr, leader_epoch, partition_epoch, kept)

    def write_partition_state(
        self, topic_partition: TopicPartition, state: PartitionState, topic_id: str
    ) -> None:
        """On disk on return. The caller holds the partition's lock."""
        path = self.partition_file(topic_partition)
        if not self.files.exists(path.parent):
            self.files.make_dir(path.parent)
            self.files.flush([path.parent.parent, self.path])
        kept = {str(node): log_state.pack(decided).hex() for node, decided in state.kept.items()}
        self._write_json(path, state._asdict() | {"kept": kept, "topic_id": topic_id})

    def partition_file(self, topic_partition: TopicPartition) -> Path:
        """The file that says who leads a partition; it may not be there."""
        topic, partition = topic_partition
        return self._partitions_dir / ensure_valid_topic(topic) / f"{partition}.json"

    def log_directory(self, topic_partition: TopicPartition, node_id: int = 0) -> Path:
        """Of a node's replica."""
        log_dir = self.log_dir(node_id).path if node_id else self.broker_dir
        return log_dir / str(topic_partition)

    def _topic_file(self, name: str) -> Path:
        return self.topics_dir / f"{ensure_valid_topic(name)}.json"

    def _write_json(self, path: Path, value: dict[str, Any]) -> None:
        mirrors = self._mirrors()
        if mirrors.folders and path.name == CLUSTER_FILE:
            generation = StoredObject(value, path).integer(
                GENERATION, highest=LONG_MAX - 1, default=0
            )
            value = value | {GENERATION: generation + 1, "path": str(self.path)}
        data = _as_bytes(value)
        self.files.replace(path, data)
        mirrors.write(path.relative_to(self.path), data)

    def _mirrors(self) -> Mirrors:
        outside = (one.path for one in self._log_dirs or () if one.path.parent != self.path)
        return Mirrors(self.files, map(mirror_of, outside))

    def _read_or_mirrored(
        self, path: Path, counts: Callable[[Mapping[str, Any]], bool]
    ) -> dict[str, Any] | None:
        """Return a file of PATH, or its newest copy that counts if PATH does not have it."""
        try:
            return self._read_json(path)
        except FileNotFoundError:
            return self._mirrors().read(path.relative_to(self.path), counts)

    def restore(self, folders: Sequence[Path]) -> bool:
        """Put back what mirrors in these folders have; whether PATH holds a cluster then.

        The caller holds the metadata lock.
        """
        found = (
            folder / name
            for folder in folders
            if self.files.exists(folder)
            for name in self.files.list(folder)
            if name.startswith(_MIRROR)
        )
        mirrors = Mirrors(self.files, found)
        cluster = mirrors.read(PurePath(CLUSTER_FILE)) or {}
        deleted = {name.name for name in mirrors.names() if name.parts[0] == "deleted"}
        stored = StoredObject({"path": str(self.path), **cluster}, CLUSTER_FILE)
        home = Path(stored.text("path", _A_PATH))
        if home != self.path and self.files.exists(home / CLUSTER_FILE):
            return False  # It is there: two would not see each other's locks.

        def counts(value: Mapping[str, Any]) -> bool:
            return f"{value.get('topic_id')}.json" not in deleted

        for name in mirrors.names():
            path = self.path / name
            value = mirrors.read(name, counts if name.parts[0] != "deleted" else None)
            if value is not None and not self.files.exists(path):
                self.files.make_dir(path.parent)
                self.files.replace(path, _as_bytes(value))
        if self.exists():
            for directory in (self.topics_dir, self.snapshots_dir):
                self.files.make_dir(directory)
        return self.exists()

    def _copy_to_mirror(self, folder: Path) -> None:
        """All of PATH's files, to a mirror that is new."""
        if self.files.exists(folder):  # not where the log dir lies in PATH
            mirror = Mirrors(self.files, [folder])
            for name in Mirrors(self.files, [self.path]).names():
                if name.parts[0] in _MIRRORED:
                    mirror.write(name, self.files.read(self.path / name))

    def _read_json(self, path: Path) -> dict[str, Any]:
        return parse(self.files.read(path), path).values


class Probe:
    """A file with which a task finds out that it sees the driver's PATH."""

    NAME = "driver"

    def __init__(self, transaction_dir: Path, mark: str) -> None:
        self.transaction_dir, self.mark = transaction_dir, mark

    @classmethod
    def leave(cls, files: Files, transaction_dir: Path) -> Probe:
        """On the driver, once per job."""
        probe = cls(transaction_dir, uuid.uuid4().hex)
        files.make_dir(transaction_dir)
        files.write(transaction_dir / cls.NAME, 0, probe.mark.encode())
        return probe

    def ensure_seen(self, files: Files) -> None:
        """In a task, before it writes.

        Raises:
            KafkaStorageError: the driver's file is not here.
        """
        path = self.transaction_dir / self.NAME
        try:
            seen = files.read(path).decode() == self.mark
        except OSError:
            seen = False
        if not seen:
            raise KafkaStorageError(
                f"this executor does not see {path}, which the driver made: the folder is not shared "
                "between driver and executors, or the job has ended, or was silent for longer than "
                "staging.retention.ms; give a path on a file system that all of them mount at the "
                "same place"
            )


def partition_of(directory: str) -> TopicPartition | None:
    """Return the partition that a directory with this name in a log dir holds; None if none."""
    found = re.fullmatch(r"(.+)-(0|[1-9][0-9]{0,9})", directory)
    return TopicPartition(found[1], int(found[2])) if found else None


def _cycle_of(replicas: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the shortest list that, repeated, gives the replicas of all partitions."""
    for size in range(1, len(replicas)):
        if replicas[size] == replicas[0]:
            # Nodes are given in turn, so it is the first one or none.
            return replicas[:size] if replicas[size:] == replicas[:-size] else replicas
    return replicas


def _deleted_of(stored: StoredObject) -> DeletedTopic:
    named, nodes = (
        stored.integers(key, highest=NODES_MAX, count_max=NODES_MAX, least=0)
        for key in ("named", "nodes")
    )
    return DeletedTopic(
        ensure_valid_topic(stored.text("topic")),
        stored.text("topic_id", _TOPIC_ID),
        stored.integer("delete_ms"),
        named,
        nodes,
    )


def _as_bytes(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def _kept_state(states: StoredObject, node: str) -> LogState:
    text = states.text(node, _HEX)
    found = log_state.unpack(bytes.fromhex(text))
    if found is None:
        raise states.damaged(node, text, "a state that matches its checksum")
    return found


def _config_of(stored: StoredObject) -> TopicConfig:
    """A topic's settings: of the right types, and within what the code can do with them."""
    defaults = asdict(TopicConfig())
    given: dict[str, int | str] = {}
    for key in stored.keys():
        field = topic_field(key)  # Earlier releases wrote the fields' names.
        if field not in defaults:
            raise stored.damaged(key, stored.values[key], "a setting that this release knows")
        if isinstance(defaults[field], str):
            given[field] = stored.text(key)
        else:
            given[field] = stored.integer(key, _LEAST.get(field, 1), LONG_MAX)
    try:
        return TopicConfig(**given)  # type: ignore[arg-type]
    except ConfigError as error:
        raise stored.damaged("message.timestamp.type", given, str(error)) from error
