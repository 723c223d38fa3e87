"""The metadata of one cluster: an object for each kind of JSON file."""

from __future__ import annotations

import contextlib
from pathlib import Path

from spark_kbatch.catalog.cluster_file import ClusterFile
from spark_kbatch.catalog.deletions import DeletedTopics
from spark_kbatch.catalog.json_files import JsonFiles
from spark_kbatch.catalog.partition_states import PartitionStates
from spark_kbatch.catalog.paths import ClusterPaths
from spark_kbatch.catalog.topic_files import TopicFiles
from spark_kbatch.files import Files


class Metadata:
    """The metadata of one cluster: everything about it but its logs. Thread-safe."""

    def __init__(self, files: Files, path: Path) -> None:
        self.files, self.path = files, path
        self.paths = ClusterPaths(path)
        self.json_files = JsonFiles(files, path)
        self.cluster_file = ClusterFile(self.json_files, self.paths)
        self.deleted = DeletedTopics(self.json_files, self.paths)
        self.topics = TopicFiles(self.json_files, self.paths, self.cluster_file, self.deleted)
        self.partition_states = PartitionStates(self.json_files, self.paths)

    def keep_room(self) -> None:
        """Make now what it takes to delete topics once the disk is full; see `json_files` and `deletions`.

        The caller holds the metadata lock.
        """
        self.json_files.keep_spare()
        with contextlib.suppress(
            OSError
        ):  # full, read-only, or not a folder: deleting a topic says so
            self.files.make_dir(self.paths.deleted_dir)
