"""The consumer groups of a real Kafka broker, as its partitions of `__consumer_offsets` have them.

The last record of each key counts, up to the high watermark, as for a broker that loads them. Offsets that were
committed in a transaction count once its commit marker is there, so one that is still open hides nothing behind
it. Offsets past their time of expiry are there until the broker has removed them.

A partition of another topic that is not at this path may be on another disk or broker: its end is not known.

Source: Kafka group-coordinator/.../OffsetMetadataManager.java replay, replayEndTransactionMarker;
coordinator-common/.../CoordinatorLoaderImpl.java.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from spark_kbatch.cluster.group_records import CommittedOffset
from spark_kbatch.cluster.groups import described, ends
from spark_kbatch.cluster.offsets_store import StoredGroups
from spark_kbatch.commit.internal_topics import CONSUMER_OFFSETS
from spark_kbatch.errors import ConfigError, CorruptRecordError
from spark_kbatch.log.foreign.log_dir import ForeignLogDir
from spark_kbatch.model import ConsumerGroup, ReadRange, TopicPartition
from spark_kbatch.record import codec
from spark_kbatch.record.control import read_marker
from spark_kbatch.record.header import BatchHeader, LogRead
from spark_kbatch.record.scalar import PlainRecord
from spark_kbatch.store.groups import with_ends
from spark_kbatch.store.source import Source

logger = logging.getLogger(__name__)

_FETCH_BYTES = 1 << 20


class ForeignGroups:
    """The consumer groups in a broker's log dir, which are only read; a `store.Groups`."""

    def __init__(self, path: Path, log_dir: ForeignLogDir, source: Source) -> None:
        self._path, self._log_dir, self._source = path, log_dir, source

    def groups(self) -> list[ConsumerGroup]:
        """Return all groups of the partitions of `__consumer_offsets` at this path, sorted by id.

        Raises:
            CorruptRecordError: records of `__consumer_offsets` are missing or damaged.
        """
        contents = StoredGroups()
        held = self._log_dir.partitions(CONSUMER_OFFSETS.topic)
        count = held[-1].partition + 1
        if len(held) < count:
            logger.warning(
                "%s has %d of at least %d partitions of %s: groups in the others are not shown, which are "
                "in other log dirs of the broker or the cluster",
                self._path, len(held), count, CONSUMER_OFFSETS.topic,
            )  # fmt: skip
        for topic_partition in held:
            for record in self._last_of_each_key(topic_partition):
                try:
                    contents.apply_record(record)
                except CorruptRecordError as error:
                    where = f"{topic_partition} in {self._path}, offset {record.offset}"
                    raise replace(error, path=where) from None
        there = frozenset(self._log_dir.partitions())
        topic_id = functools.cache(self._log_dir.topic_id)

        def is_gone(tp: TopicPartition, at: CommittedOffset) -> bool:
            """Return True if the topic was deleted and created again since."""
            return tp in there and bool(at.topic_id) and topic_id(tp) not in ("", at.topic_id)

        def ends_here(wanted: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
            return ends(self._source, [tp for tp in wanted if tp in there])

        return with_ends(described(contents, is_gone), ends_here)

    def alter_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> NoReturn:
        """Raise ConfigError: a broker's logs are only read."""
        raise ConfigError(
            f"group {group_id!r} cannot be changed in {self._path}: it is a Kafka broker's log directory, which "
            "kbatch only reads; copy its topics with `kbatch mirror --keep-offsets`, and set offsets in the copy "
            "with `kbatch groups reset`, or hand the topics to a broker and use Kafka's kafka-consumer-groups; "
            "docs/broker-logs.md shows how to take all groups along"
        )

    def delete(self, group_id: str) -> NoReturn:
        """Raise ConfigError: a broker's logs are only read."""
        self.alter_offsets(group_id, {})

    def _last_of_each_key(self, topic_partition: TopicPartition) -> list[PlainRecord]:
        """Return the last record of each key in a partition, in the order of their offsets."""
        latest: dict[bytes, PlainRecord] = {}
        pending: dict[int, dict[bytes, PlainRecord]] = {}  # of open transactions, by producer id
        view = self._source.views([topic_partition])[topic_partition]
        offset, end = view.offsets.log_start_offset, view.offsets.high_watermark
        while offset < end:
            read, _ = self._source.fetch(topic_partition, ReadRange(offset, _FETCH_BYTES))
            read = read.below(end)
            if not read.batches:
                break
            for (producer_id, is_control), run in itertools.groupby(read.batches, _transaction):
                if not is_control:
                    into = latest if producer_id is None else pending.setdefault(producer_id, {})
                    into.update(_records(read, run, end))
                    continue
                for position, header in run:
                    marker = read_marker(read.data, position, header)
                    decided = {} if marker is None else pending.pop(header.producer_id, {})
                    if marker is not None and not marker.is_abort:
                        # What was committed outside of the transaction meanwhile is newer.
                        latest.update(
                            (key, record)
                            for key, record in decided.items()
                            if key not in latest or latest[key].offset < record.offset
                        )
            offset = read.batches[-1][1].next_offset
        return sorted(latest.values())


def _transaction(batch: tuple[int, BatchHeader]) -> tuple[int | None, bool]:
    """Return the producer whose transaction a batch belongs to, or None; and whether it is a control batch."""
    header = batch[1]
    return header.producer_id if header.is_transactional else None, header.is_control


def _records(
    read: LogRead, batches: Iterable[tuple[int, BatchHeader]], end_offset: int
) -> Iterator[tuple[bytes, PlainRecord]]:
    """Yield the records of batches by their keys; raises CorruptRecordError with file and position."""
    columns = ["offset", "key", "value"]
    try:
        for rows in codec.decode_batches(
            read.data, batches, columns=columns, end_offset=end_offset, max_bytes=_FETCH_BYTES
        ):
            for offset, key, value in zip(*(column.to_pylist() for column in rows), strict=True):
                if key is not None:
                    yield key, PlainRecord(offset, key, value)
    except CorruptRecordError as error:
        raise error.at(read.path, read.position) from None
