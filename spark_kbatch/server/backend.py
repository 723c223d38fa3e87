"""The part of the cluster's interface that the server uses; `cluster/folder_store.py` implements it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from spark_kbatch.commit.coordinator import Coordinator
from spark_kbatch.commit.snapshot import Snapshots
from spark_kbatch.files import Buffer, Files
from spark_kbatch.model import AppendOrigin, OnAppended, TopicPartition
from spark_kbatch.options.topic import Topic, TopicConfig
from spark_kbatch.replica.delayed_fetch import FetchInfo, FetchParams, OnFetched, Room
from spark_kbatch.replica.manager import ReplicaManager
from spark_kbatch.replica.metadata import Metadata
from spark_kbatch.replica.view import Replicas


class Backend(Protocol):
    """The interface of the embedded cluster behind a server, for the server's handlers; thread-safe."""

    path: Path
    files: Files
    metadata: Metadata
    manager: ReplicaManager
    snapshots: Snapshots
    prompt_snapshots: Snapshots  # raises NotLeaderOrFollowerError rather than wait for an election

    def make_topic(
        self,
        name: str,
        config: TopicConfig,
        *,
        given: Iterable[str] = (),
        partitions: int,
        replication_factor: int,
        exist_ok: bool = True,
        deadline: float | None = None,
        implied: bool = False,
    ) -> Topic:
        """Create a topic, as `FolderStore.make_topic` does."""

    def append_records(
        self,
        *,
        timeout_ms: int,
        required_acks: int,
        entries_per_partition: Mapping[TopicPartition, Buffer],
        on_complete: OnAppended,
        flush: bool,
        internal_topics_allowed: bool = False,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        lock_timeout_ms: int | None = None,
        topic_ids: Mapping[TopicPartition, str] | None = None,
    ) -> None:
        """Append batches to partitions, after finishing any commit that a dead process left unfinished.

        Otherwise as `ReplicaManager.append_records`.
        """

    def fetch_messages(
        self,
        params: FetchParams,
        fetch_infos: Mapping[TopicPartition, FetchInfo],
        on_complete: OnFetched,
        *,
        room: Room | None = None,
        replicas: Replicas | None = None,
    ) -> None:
        """Read batches from partitions, now or when there are `min_bytes`.

        As `ReplicaManager.fetch_messages`.
        """

    def coordinator(self, *, flush: bool) -> Coordinator:
        """Return a commit coordinator, which finishes commits that dead processes left unfinished."""

    def new_producer_id(self, *, deadline: float | None = None) -> int:
        """Return a producer id that is unused in this cluster, in any process."""
