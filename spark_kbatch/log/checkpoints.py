"""Kafka's small text files beside the logs: checkpoints, partition.metadata and meta.properties.

    in a partition's directory
      partition.metadata                 version: 0 / topic_id: 22 characters of base64url; no newline
                                         at the end
      leader-epoch-checkpoint            0 / number of entries / epoch start_offset, ascending
    in a log dir
      recovery-point-offset-checkpoint   0 / number of entries / topic partition offset; all below the
                                         offset is on disk
      log-start-offset-checkpoint        the same form; for partitions that start past their first
                                         segment
      replication-offset-checkpoint      the same form; high watermarks
      meta.properties                    version=1, cluster.id, node.id, directory.id, in the form of
                                         Java's properties

A checkpoint is replaced as a whole. An empty file, or one that ends after its version, has no entries.
Whether a damaged one counts as empty is up to the caller.

Source: Kafka storage/.../checkpoint/PartitionMetadataFile.java, OffsetCheckpointFile.java,
LeaderEpochCheckpointFile.java, server-common/.../CheckpointFile.java, metadata/properties/
MetaProperties.java; java.util.Properties.load.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeVar

from spark_kbatch.errors import KafkaStorageError
from spark_kbatch.files import Files
from spark_kbatch.model import INT_MAX, LONG_MAX, TopicPartition

PARTITION_METADATA = "partition.metadata"
LEADER_EPOCHS = "leader-epoch-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
META_PROPERTIES = "meta.properties"

_Entry = TypeVar("_Entry")


class MetaProperties(NamedTuple):
    """The content of meta.properties, which names the cluster and node that own a log dir.

    What the file does not say is None.
    """

    version: int
    cluster_id: str | None
    node_id: int | None  # of version 0: broker.id
    directory_id: str | None


class EpochEntry(NamedTuple):
    """A leader epoch and the offset of the first batch that may have it."""

    epoch: int
    start_offset: int


# partition.metadata


def write_partition_metadata(files: Files, directory: Path, topic_id: str) -> None:
    """Write partition.metadata, the file with the topic id, into a partition's directory."""
    files.replace(directory / PARTITION_METADATA, partition_metadata(topic_id))


def partition_metadata(topic_id: str) -> bytes:
    """Return the content of a partition.metadata file with this topic id."""
    return f"version: 0\ntopic_id: {topic_id}".encode()


def read_partition_metadata(files: Files, directory: Path) -> str:
    """Read the topic id from the partition.metadata file in a partition's directory.

    Raises:
        FileNotFoundError: there is no such file.
        KafkaStorageError: the file is damaged.
    """
    path = directory / PARTITION_METADATA
    text = files.read(path).decode(errors="replace")
    fields = dict(re.split(r":\s+", line, maxsplit=1) for line in text.splitlines() if ": " in line)
    topic_id = fields.get("topic_id", "").strip()
    if not fields.get("version", "").strip().isdecimal() or not _is_topic_id(topic_id):
        raise KafkaStorageError(
            f"{path} does not name a topic: expected 'version: 0' and 'topic_id:' with 22 characters "
            f"of base64url, found {text[:60]!r}"
        )
    return topic_id


def _is_topic_id(text: str) -> bool:
    try:
        data = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return False
    return len(data) == 16 and any(data)


# Checkpoints.


def write_leader_epochs(files: Files, directory: Path, epochs: Iterable[tuple[int, int]]) -> None:
    """Replace leader-epoch-checkpoint with (epoch, start offset) entries, ascending."""
    files.replace(directory / LEADER_EPOCHS, leader_epochs(epochs))


def leader_epochs(epochs: Iterable[tuple[int, int]]) -> bytes:
    """Return the content of a leader-epoch-checkpoint file with these (epoch, start offset) entries."""
    return _checkpoint([f"{epoch} {start}" for epoch, start in epochs])


def read_leader_epochs(files: Files, directory: Path) -> list[EpochEntry]:
    """Read the (epoch, start offset) entries of leader-epoch-checkpoint, ascending.

    Raises:
        FileNotFoundError: there is no such file.
        KafkaStorageError: the file is damaged.
    """
    path = directory / LEADER_EPOCHS
    return list(_parsed_epochs(path, files.read(path)))


@lru_cache(maxsize=16)  # a writer reads each several times
def _parsed_epochs(path: Path, data: bytes) -> tuple[EpochEntry, ...]:
    epochs = _parse_checkpoint(path, data, _epoch_entry)
    for before, after in itertools.pairwise(epochs):
        if before[0] > after[0] or before[1] > after[1]:
            raise KafkaStorageError(
                f"{path} is damaged: expected epochs and offsets to increase, found {before}, {after}"
            )
    return tuple(epochs)


def write_offset_checkpoint(
    files: Files, log_dir: Path, name: str, offsets: Mapping[TopicPartition, int]
) -> None:
    """Write one of a log dir's offset checkpoint files, such as replication-offset-checkpoint.

    `name` is RECOVERY_POINTS, LOG_START_OFFSETS or HIGH_WATERMARKS; the entries are in the order of
    `offsets`.
    """
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    files.replace(log_dir / name, _checkpoint(lines))


def read_offset_checkpoint(files: Files, log_dir: Path, name: str) -> dict[TopicPartition, int]:
    """Read the offset of each partition from an offset checkpoint file; none if there is no such file.

    They are in the file's order.

    Raises:
        KafkaStorageError: the file is damaged.
    """
    path = log_dir / name
    try:
        return dict(_parse_checkpoint(path, files.read(path), _offset_entry))
    except FileNotFoundError:
        return {}


def _epoch_entry(line: str) -> EpochEntry:
    epoch, start = line.split()
    return EpochEntry(_number(epoch, INT_MAX), _number(start, LONG_MAX))


def _offset_entry(line: str) -> tuple[TopicPartition, int]:
    topic, partition, offset = line.split()
    return TopicPartition(topic, _number(partition, INT_MAX)), _number(offset, LONG_MAX)


def _number(text: str, largest: int) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) > largest:
        raise ValueError(text)
    return int(text)


def _checkpoint(entries: list[str]) -> bytes:
    return ("\n".join(["0", str(len(entries)), *entries]) + "\n").encode()


def _parse_checkpoint(path: Path, data: bytes, entry: Callable[[str], _Entry]) -> list[_Entry]:
    lines = data.decode(errors="replace").splitlines()
    try:
        if lines and int(lines[0]) != 0:
            raise ValueError(lines[0])
        entries = [entry(line) for line in lines[2:]]
        if len(lines) > 1 and int(lines[1]) != len(entries):
            raise ValueError(lines[1])
    except ValueError as error:
        raise KafkaStorageError(
            f"{path} is not a checkpoint: expected '0', a count and that many entries, found "
            f"{lines[:3]}{', ...' if lines[3:] else ''} ({error})"
        ) from None
    return entries


# meta.properties


def write_meta_properties(
    files: Files, log_dir: Path, *, cluster_id: str, node_id: int, directory_id: str
) -> None:
    """Write meta.properties, which names the cluster and node that own a log dir."""
    lines = [
        "version=1", f"cluster.id={cluster_id}", f"node.id={node_id}", f"directory.id={directory_id}"
    ]  # fmt: skip
    files.replace(log_dir / META_PROPERTIES, ("\n".join(lines) + "\n").encode())


def read_meta_properties(files: Files, log_dir: Path) -> MetaProperties:
    """Read from meta.properties which cluster and node own a log dir.

    Raises:
        FileNotFoundError: there is no such file.
        KafkaStorageError: the file is damaged.
    """
    path = log_dir / META_PROPERTIES
    found = _properties(files.read(path).decode("latin-1"))
    try:
        version = _number(found.get("version", "0"), 1)
        node_id = found.get("node.id" if version == 1 else "broker.id")
        return MetaProperties(
            version,
            found.get("cluster.id"),
            None if node_id is None else _number(node_id, INT_MAX),
            found.get("directory.id"),
        )
    except ValueError as error:
        raise KafkaStorageError(
            f"{path} is damaged: version is 0 or 1 and a node's id a number, found {error}"
        ) from None


def _properties(text: str) -> dict[str, str]:
    """Parse Java properties: `key=value`, `key: value` or `key value`, # and ! comments, escapes."""
    found = {}
    # A line that ends in an odd number of backslashes continues in the next, without its indent.
    text = re.sub(r"\r\n?", "\n", text)
    text = re.sub(r"(?<!\\)((?:\\\\)*)\\\n[ \t\f]*", r"\1", text)
    for line in text.split("\n"):
        line = line.lstrip(" \t\f")
        if line and line[0] not in "#!":
            parts = re.fullmatch(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", line)
            if parts:
                found[_unescaped(parts[1])] = _unescaped(parts[2])
    return found


def _unescaped(text: str) -> str:
    named = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

    def character(escape: re.Match[str]) -> str:
        return chr(int(escape[1], 16)) if escape[1] else named.get(escape[2], escape[2])

    return re.sub(r"\\(?:u([0-9a-fA-F]{4})|(.))", character, text)
