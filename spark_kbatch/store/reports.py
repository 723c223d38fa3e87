"""Reports of places on their data: replicas, log dirs, what was deleted, repaired, exported or given up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from spark_kbatch.model import TopicPartition

UNKNOWN_OFFSET = -1


class ReplicaInfo(NamedTuple):
    """A replica's status at one moment: its role, log end and lag, or why it is offline.

    If it cannot be read, numbers are -1. It is in sync if the ISR on disk names it and a look at its log
    agrees: that is there, the topic's own, has the leader's epochs, reaches the high watermark, and has no
    records that the leader has deleted; and the leader lacks nothing that another member has.
    """

    node_id: int
    is_leader: bool
    in_sync: bool
    log_end_offset: int
    lag: int  # offsets behind the leader's log end
    why_offline: str | None


class LogDirInfo(NamedTuple):
    """A log dir's node, path, state and counts of replicas, as this process sees it."""

    node_id: int
    path: str
    why_offline: str | None  # or why it cannot be written; None if it is online
    replicas: int  # partitions of which it holds a replica
    leaders: int  # of those it leads
    not_in_sync: int  # of those it lacks something
    only_copies: int  # of those it has the only replica
    state: str  # online, full, read-only or offline
    staged_size_in_bytes: int  # of jobs that have not committed, beside it


class GivenUp(NamedTuple):
    """The offsets of one partition that are given up, and the nodes that alone may have their records."""

    topic_partition: TopicPartition
    first_offset: int | None  # None for all records: no replica is left
    end_offset: int | None  # exclusive; None if it is not known
    nodes: tuple[int, ...]


class RepairReport(NamedTuple):
    """The damage in one log, and what was done about it, or would be."""

    topic_partition: TopicPartition  # NO_PARTITION for what all logs of a bucket share, its ledger
    log_start_offset: int  # UNKNOWN_OFFSET if nothing can be read, as is the next
    log_end_offset: int
    found: tuple[str, ...]  # sentences
    damaged: tuple[str, ...]  # batches that cannot be repaired
    offline: tuple[str, ...] = ()  # replicas that were not looked at, because their disks are away


class Deletion(NamedTuple):
    """The data deleted, or to be deleted, from the start of one partition."""

    log_start_offset: int  # after the deletion
    segments: tuple[int, ...]  # base offsets
    size_in_bytes: int  # of these segments' batches
    files: tuple[str, ...]  # of segments deleted earlier, now removed for good


class DeletedTopic(NamedTuple):
    """A deleted topic of which names or files are still left in log dirs."""

    topic: str
    topic_id: str
    delete_ms: int  # when its directories may be removed
    named: tuple[int, ...]  # nodes whose log dir, or mirror, may still have the topic's name
    nodes: tuple[int, ...]  # nodes whose log dir may hold something of it


class AbandonedJob(NamedTuple):
    """Staged files of a job that never committed."""

    transaction: str
    size_in_bytes: int
    age_ms: int  # since the last write to it


class NotRemoved(NamedTuple):
    """Something in a staging directory that was not removed."""

    path: Path
    why: str


class Waiting(NamedTuple):
    """Files that are kept for now, and go with a later run of gc."""

    what: str  # "staged", "overwritten", "deleted topic" or "deleted segments"
    name: str  # of the transaction, topic or partition
    size_in_bytes: int
    written_ms: int  # when it was last written or, unless it was overwritten, deleted
    until_ms: int  # how long it is kept


class Garbage(NamedTuple):
    """Result of `collect_garbage`: everything that it deleted, or would delete."""

    partitions: Mapping[TopicPartition, Deletion]
    abandoned_jobs: Sequence[AbandonedJob]
    not_removed: Sequence[NotRemoved] = ()  # left among the staged files; why
    deleted_topics: Sequence[DeletedTopic] = ()  # topics whose files were due for deletion
    damaged_topics: Mapping[str, str] = {}  # left out; the reason by name
    waiting: Sequence[Waiting] = ()  # what is kept for now, and until when
    skipped: Mapping[TopicPartition, str] = {}  # partitions that cannot be used; why


class ExportedPartition(NamedTuple):
    """A partition exported into a broker's log dir: its offsets, segments and size."""

    topic_partition: TopicPartition
    log_start_offset: int
    log_end_offset: int
    segments_count: int
    size_in_bytes: int


class ServerAddress(NamedTuple):
    """The address and process of the server that serves a cluster's folder."""

    host: str
    port: int
    process_id: int
    started_ms: int

    @property
    def bootstrap_servers(self) -> str:
        """The server's address as HOST:PORT, for a client's `bootstrap.servers`."""
        return shown_address(self.host, self.port)


def shown_address(host: str, port: int) -> str:
    """Return HOST:PORT, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
