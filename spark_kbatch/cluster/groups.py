"""The consumer groups of a cluster: their members, committed offsets and lag.

They are read from `__consumer_offsets`, so it does not matter whether a server runs. What only a server
knows is missing: a rebalance in progress, and members that have died silently since.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence

from spark_kbatch.cluster import offsets_store
from spark_kbatch.cluster.offsets_store import read_groups
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.errors import (
    KafkaStorageError,
    ServerRunningError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import ConsumerGroup, TopicPartition
from spark_kbatch.options.remote import parse_client_options
from spark_kbatch.store.groups import with_ends
from spark_kbatch.store.source import Source
from spark_kbatch.store.store import Groups


class FolderGroups:
    """The consumer groups of one cluster in a folder; `store.Groups`.

    If a server runs, here or in another process, changes are asked of it: it has the groups in memory.
    """

    def __init__(self, parts: FolderParts, source: Source) -> None:
        self._parts, self._source = parts, source

    def groups(self) -> list[ConsumerGroup]:
        """Return all groups, sorted by id; a rebalance that goes on is not in it.

        Raises the errors of `read_groups`.
        """
        return with_ends(read_groups(self._parts), functools.partial(_ends, self._source))

    def alter_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the offsets at which a group without members continues."""
        self._changed(
            lambda: offsets_store.alter_offsets(self._parts, group_id, offsets),
            lambda served: served.alter_offsets(group_id, offsets),
        )

    def delete(self, group_id: str) -> None:
        """Delete a group without members."""
        self._changed(
            lambda: offsets_store.delete_group(self._parts, group_id),
            lambda served: served.delete(group_id),
        )

    def _changed(self, change: Callable[[], object], ask: Callable[[Groups], object]) -> None:
        from spark_kbatch.remote.store import RemoteStore  # noqa: PLC0415  loads the network

        try:
            change()
        except ServerRunningError as error:
            if not error.address:
                raise
            options = parse_client_options(error.address, {})
            with contextlib.closing(RemoteStore(options)) as server:
                ask(server.groups)


def _ends(source: Source, topic_partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the high watermarks of these partitions, without those that are gone or cannot be read."""
    try:
        return {
            tp: view.offsets.high_watermark for tp, view in source.views(topic_partitions).items()
        }
    except (UnknownTopicOrPartitionError, KafkaStorageError):
        if len(topic_partitions) == 1:
            return {}
    found: dict[TopicPartition, int] = {}
    for one in topic_partitions:
        found |= _ends(source, [one])
    return found
