"""How far a mirror has read its source: by topic, its two ids and the next offset of each partition.

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
    """The ids of a topic in both places; empty where none is known."""

    source_topic_id: str
    target_topic_id: str

    def differ_from(self, others: TopicIds) -> str:
        """Return where the topic is another one now, "source" or "target"; empty if nothing says so."""
        for place, mine, other in zip(("source", "target"), self, others, strict=True):
            if mine and other and mine != other:
                return place
        return ""


class Progress(NamedTuple):
    """The next offset to read of each partition of the source, and the ids of the topics."""

    ids: Mapping[str, TopicIds]
    offsets: Mapping[TopicPartition, int]


NOTHING = Progress({}, {})


def pack(progress: Progress) -> bytes:
    """Return the bytes that an embedded cluster stores."""
    topics = {
        name: {**ids._asdict(), "offsets": _offsets(progress, name)}
        for name, ids in progress.ids.items()
    }
    return json.dumps({"topics": topics}, separators=(",", ":")).encode()


def _offsets(progress: Progress, topic: str) -> dict[str, int]:
    found = sorted((tp, offset) for tp, offset in progress.offsets.items() if tp.topic == topic)
    return {str(tp.partition): offset for tp, offset in found}


def unpack(data: bytes) -> Progress:
    """Return what these bytes say; nothing if there are none.

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
    """Return the metadata of an offset that the mirror's group commits."""
    return json.dumps(ids._asdict(), separators=(",", ":"))


def unpack_ids(metadata: str) -> TopicIds:
    """Return the ids in the metadata of a committed offset.

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
