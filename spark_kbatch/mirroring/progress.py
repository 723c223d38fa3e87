"""A mirror's progress: by topic, its ids in source and target and how far each partition was read.

    {"topics": {"events": {
        "source_topic_id": "...", "target_topic_id": "...",   empty where none is known
        "has_records": true,               false until the mirror has written to the topic
        "offsets": {"0": 12},              the next one of each partition
        "last_batches": {"0": {"base_offset": 10, "records_count": 2, "crc": 7, "leader_epoch": 3}}
    }}}

In an embedded cluster this JSON is a tagged field of the mirror's records in `__transaction_state`. In a
real cluster each partition's offset is one that the mirror's group has committed, with the leader epoch, and
with all else of it as JSON for its metadata. A partition has no last batch if that is not known.

By the ids a mirror notices that a topic was deleted and created again: the offsets are not of that one. By
the last batch it notices that the source lost its end and grew again. While it has not written to a topic,
no one else may have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from typing import Any, NamedTuple

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.model import TopicPartition
from spark_kbatch.record.header import MAGIC, NO_LEADER_EPOCH, BatchHeader
from spark_kbatch.store.groups import OffsetAndMetadata

_IDS = ("source_topic_id", "target_topic_id")
_BATCH = ("base_offset", "records_count", "crc")


class TopicIds(NamedTuple):
    """A mirrored topic's ids in the source and in the target; empty where none is known."""

    source_topic_id: str
    target_topic_id: str

    def differ_from(self, others: TopicIds) -> str:
        """Return the side, "source" or "target", on which the topic has another id now; empty for none."""
        for side, mine, other in zip(("source", "target"), self, others, strict=True):
            if mine and other and mine != other:
                return side
        return ""


class LastBatch(NamedTuple):
    """The source batch before a partition's next offset, by which it is known again."""

    base_offset: int
    records_count: int
    crc: int
    leader_epoch: int  # -1 if the source tells none

    @classmethod
    def of(cls, header: BatchHeader) -> LastBatch | None:
        """Return what is kept of a batch; None for an older format, whose messages have no fixed batches."""
        if header.magic != MAGIC:
            return None
        return cls(
            header.base_offset, header.records_count, header.crc, header.partition_leader_epoch
        )

    def may_be(self, header: BatchHeader, next_offset: int) -> bool:
        """Return True if the source batch found before `next_offset` may be this one.

        Compaction may have removed it, or records of it, or set a time for that; it never moves its offsets.
        """
        if header.base_offset >= next_offset:
            return True
        if (header.base_offset, header.next_offset) != (self.base_offset, next_offset):
            return False
        is_compacted = header.records_count < self.records_count or header.has_delete_horizon
        return is_compacted or header.crc == self.crc


class Progress(NamedTuple):
    """A mirror's progress: the next offset to read of each source partition, and what is known beside."""

    ids: Mapping[str, TopicIds]
    offsets: Mapping[TopicPartition, int]
    last_batches: Mapping[TopicPartition, LastBatch]  # where they are known
    unwritten: Set[str]  # topics to which the mirror has written nothing yet


NOTHING = Progress({}, {}, {}, frozenset())


def pack(progress: Progress) -> bytes:
    """Return a mirror's progress as JSON, in bytes, as an embedded cluster stores it."""
    topics: dict[str, dict[str, Any]] = {
        name: {
            **ids._asdict(),
            "has_records": name not in progress.unwritten,
            "offsets": {},
            "last_batches": {},
        }
        for name, ids in progress.ids.items()
    }
    for tp, offset in sorted(progress.offsets.items()):
        if tp.topic in topics:
            topics[tp.topic]["offsets"][str(tp.partition)] = offset
    for tp, batch in sorted(progress.last_batches.items()):
        if tp.topic in topics:
            topics[tp.topic]["last_batches"][str(tp.partition)] = batch._asdict()
    return json.dumps({"topics": topics}, separators=(",", ":")).encode()


def unpack(data: bytes) -> Progress:
    """Return the mirror's progress that `pack` has written; an empty one for empty bytes.

    Raises:
        CorruptRecordError: `pack` has not written them.
    """
    if not data:
        return NOTHING
    ids: dict[str, TopicIds] = {}
    offsets: dict[TopicPartition, int] = {}
    last_batches: dict[TopicPartition, LastBatch] = {}
    unwritten = set()
    try:
        for name, topic in json.loads(data)["topics"].items():
            ids[name] = TopicIds(*(_text(topic[field]) for field in _IDS))
            if not topic["has_records"]:
                unwritten.add(name)
            for partition, offset in topic["offsets"].items():
                offsets[TopicPartition(name, int(partition))] = _number(offset)
            for partition, batch in topic["last_batches"].items():
                found = _last_batch(batch, batch["leader_epoch"])
                last_batches[TopicPartition(name, int(partition))] = found
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptRecordError(f"progress of a mirror: {error!r}") from None
    return Progress(ids, offsets, last_batches, unwritten)


def pack_partition(progress: Progress, topic_partition: TopicPartition) -> OffsetAndMetadata:
    """Return a partition's progress as a real cluster stores it."""
    topic = topic_partition.topic
    metadata: dict[str, Any] = {
        **progress.ids[topic]._asdict(),
        "has_records": topic not in progress.unwritten,
    }
    batch, epoch = progress.last_batches.get(topic_partition), NO_LEADER_EPOCH
    if batch is not None:
        epoch = batch.leader_epoch
        metadata["last_batch"] = {field: getattr(batch, field) for field in _BATCH}
    packed = json.dumps(metadata, separators=(",", ":"))
    return OffsetAndMetadata(progress.offsets[topic_partition], epoch, packed)


def unpack_partitions(committed: Mapping[TopicPartition, OffsetAndMetadata]) -> Progress:
    """Return a mirror's progress from its partitions, as `pack_partition` has packed them.

    Raises:
        CorruptRecordError: it has not packed one of them.
    """
    ids: dict[str, TopicIds] = {}
    last_batches: dict[TopicPartition, LastBatch] = {}
    written = set()
    try:
        for tp, one in committed.items():
            found = json.loads(one.metadata)
            ids[tp.topic] = TopicIds(*(_text(found[field]) for field in _IDS))
            if found["has_records"]:
                written.add(tp.topic)
            batch = found.get("last_batch")
            if batch is not None:
                last_batches[tp] = _last_batch(batch, one.leader_epoch)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptRecordError(f"metadata of a mirror's offset: {error!r}") from None
    offsets = {tp: one.offset for tp, one in committed.items()}
    return Progress(ids, offsets, last_batches, ids.keys() - written)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _last_batch(fields: Any, leader_epoch: object) -> LastBatch:
    base_offset, records_count, crc = (_number(fields[name]) for name in _BATCH)
    epoch = _number(leader_epoch, NO_LEADER_EPOCH)
    return LastBatch(base_offset, records_count, crc, epoch)


def _number(value: object, at_least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise ValueError(value)
    return value
