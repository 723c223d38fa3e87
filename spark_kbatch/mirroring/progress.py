"""A mirror's progress: by topic, its ids in source and target and the next offset of each partition.

    {"topics": {"events": {"source_topic_id": "...", "target_topic_id": "...", "offsets": {"0": 12}}}}

In an embedded cluster this JSON is a tagged field of the mirror's records in `__transaction_state`. In a
real cluster each partition's offset is one that the mirror's group has committed, with the two ids, as
JSON, for its metadata. An id is empty where none is known.

By the ids a mirror notices that a topic was deleted and created again: the offsets are not of that one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.model import TopicPartition

_IDS = ("source_topic_id", "target_topic_id")


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


class Progress(NamedTuple):
    """A mirror's progress: the next offset to read of each source partition, and the topics' ids."""

    ids: Mapping[str, TopicIds]
    offsets: Mapping[TopicPartition, int]


NOTHING = Progress({}, {})


def pack(progress: Progress) -> bytes:
    """Return a mirror's progress as JSON, in bytes, as an embedded cluster stores it."""
    topics = {
        name: {**ids._asdict(), "offsets": _offsets(progress, name)}
        for name, ids in progress.ids.items()
    }
    return json.dumps({"topics": topics}, separators=(",", ":")).encode()


def _offsets(progress: Progress, topic: str) -> dict[str, int]:
    found = sorted((tp, offset) for tp, offset in progress.offsets.items() if tp.topic == topic)
    return {str(tp.partition): offset for tp, offset in found}


def unpack(data: bytes) -> Progress:
    """Return the mirror's progress that `pack` has written; an empty one for empty bytes.

    Raises:
        CorruptRecordError: `pack` has not written them.
    """
    if not data:
        return NOTHING
    ids: dict[str, TopicIds] = {}
    offsets: dict[TopicPartition, int] = {}
    try:
        for name, topic in json.loads(data)["topics"].items():
            ids[name] = TopicIds(*(_text(topic[field]) for field in _IDS))
            for partition, offset in topic["offsets"].items():
                offsets[TopicPartition(name, int(partition))] = _offset(offset)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptRecordError(f"progress of a mirror: {error!r}") from None
    return Progress(ids, offsets)


def pack_ids(ids: TopicIds) -> str:
    """Return a mirrored topic's ids as JSON, for the metadata of the offsets that the mirror commits."""
    return json.dumps(ids._asdict(), separators=(",", ":"))


def unpack_ids(metadata: str) -> TopicIds:
    """Return a mirrored topic's ids from the metadata of a committed offset.

    Raises:
        CorruptRecordError: `pack_ids` has not written it.
    """
    try:
        found = json.loads(metadata)
        return TopicIds(*(_text(found[field]) for field in _IDS))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptRecordError(f"metadata of a mirror's offset: {error!r}") from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _offset(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(value)
    return value
