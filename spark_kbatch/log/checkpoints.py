"""The small text files beside the logs, as a broker writes and reads them.

    partition.metadata         version: 0 / topic_id: 22 characters of base64url; no newline at the end
    leader-epoch-checkpoint    0 / number of entries / epoch start_offset, ascending
    meta.properties            version=1, cluster.id, node.id, directory.id

Source: Kafka storage/.../log/PartitionMetadataFile.java, CheckpointFile.java,
metadata/properties/MetaProperties.java.
"""

from __future__ import annotations

import base64
import uuid
from pathlib import Path

from spark_kbatch.errors import KafkaStorageError
from spark_kbatch.log.files import Files

PARTITION_METADATA = "partition.metadata"
LEADER_EPOCHS = "leader-epoch-checkpoint"
META_PROPERTIES = "meta.properties"


def random_id() -> str:
    """A UUID as Kafka writes it. One that begins with '-' would look like a flag to its tools."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def write_partition_metadata(files: Files, directory: Path, topic_id: str) -> None:
    """Say which topic the partition directory belongs to."""
    files.replace(directory / PARTITION_METADATA, f"version: 0\ntopic_id: {topic_id}".encode())


def write_leader_epochs(files: Files, directory: Path, epochs: list[tuple[int, int]]) -> None:
    """(epoch, start offset), ascending."""
    lines = ["0", str(len(epochs)), *(f"{epoch} {start}" for epoch, start in epochs)]
    files.replace(directory / LEADER_EPOCHS, ("\n".join(lines) + "\n").encode())


def read_leader_epochs(files: Files, directory: Path) -> list[tuple[int, int]]:
    """(epoch, start offset), ascending.

    Raises:
        KafkaStorageError: the file is not one.
    """
    path = directory / LEADER_EPOCHS
    lines = files.read(path).decode(errors="replace").splitlines()
    try:
        epochs = [(int(epoch), int(start)) for epoch, start in (line.split() for line in lines[2:])]
        if int(lines[0]) != 0 or int(lines[1]) != len(epochs) or sorted(epochs) != epochs:
            raise ValueError(lines[:2])
    except (ValueError, IndexError):
        raise KafkaStorageError(
            f"{path} is not a leader epoch checkpoint: expected '0', a count and that many lines "
            f"of epoch and offset, found {lines[:3]}"
        ) from None
    return epochs


def write_meta_properties(
    files: Files, log_dir: Path, *, cluster_id: str, node_id: int, directory_id: str
) -> None:
    """Name the log dir's owner."""
    lines = [
        "version=1", f"cluster.id={cluster_id}", f"node.id={node_id}", f"directory.id={directory_id}"
    ]  # fmt: skip
    files.replace(log_dir / META_PROPERTIES, ("\n".join(lines) + "\n").encode())
