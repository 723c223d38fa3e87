"""How far a streaming query has got: what Spark keeps in its checkpoint, as JSON.

    {"flights": {"0": 7, "1": 12},               next offset to read, by topic and partition
     "@kbatch": {"ids": {"flights": "1BGx..."},  ids of topics: a recreated topic has the same name
                                                 and another id
                 "initial": {"flights": {"0": 3, "1": 0}}}}    where the query started

If Spark has not committed its first batch, it asks for the initial offset again after a restart, and
pairs it with the end that it has logged; by then `latest` is elsewhere. So the first end carries where
the query started, and so do those after it until data has moved. `ids` and `initial` are left out if
there are none: an offset of Spark's own connector is one of ours. `@kbatch` cannot be a topic, because
topic names have no `@`.

Spark compares offsets as text and runs an empty batch for any difference, so the order is fixed:
topics by name, partitions by number, `@kbatch` last.

Source: Spark connector/kafka-0-10-sql/.../JsonUtils.scala, KafkaSourceOffset.scala.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from spark_kbatch.errors import ConfigError, InvalidTopicError
from spark_kbatch.model import INT_MAX, LONG_MAX, TopicPartition
from spark_kbatch.options.topic import ensure_valid_topic

KBATCH_KEY = "@kbatch"
_PARTITION = re.compile("[0-9]{1,10}")
_IDS, _INITIAL = "ids", "initial"

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True)
class StreamOffset:
    """An offset in every partition that a query reads."""

    offsets: Offsets  # next to read
    ids: Mapping[str, str] = field(default_factory=dict)  # of topics that have one
    initial: Offsets | None = None

    @property
    def has_moved(self) -> bool:
        """Whether the query has read anything since it started."""
        return self.offsets != self.initial

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form of this offset; equal offsets have equal forms, key order included."""
        found = _by_topic(self.offsets)
        ours: dict[str, Any] = {}
        if self.ids:
            ours[_IDS] = dict(sorted(self.ids.items()))
        if self.initial is not None:
            ours[_INITIAL] = _by_topic(self.initial)
        return found | ({KBATCH_KEY: ours} if ours else {})

    @classmethod
    def from_json(cls, value: object) -> StreamOffset:
        """Parse what `to_json` or Spark's Kafka connector made.

        Raises:
            ConfigError: it is neither.
        """
        if not isinstance(value, dict):
            _refuse(value)
        ours = value.get(KBATCH_KEY, {})
        if not isinstance(ours, dict) or not ours.keys() <= {_IDS, _INITIAL}:
            _refuse(value, "was it written by a later release?")
        ids = ours.get(_IDS, {})
        if not isinstance(ids, dict) or not all(isinstance(one, str) for one in ids.values()):
            _refuse(value)
        return cls(
            _offsets(
                {topic: found for topic, found in value.items() if topic != KBATCH_KEY}, value
            ),
            ids,
            _offsets(ours[_INITIAL], value) if _INITIAL in ours else None,
        )


def is_another_topic(topic: str, ids: Mapping[str, str], later: Mapping[str, str]) -> bool:
    """Return True if a topic was recreated between two looks; False if an id is missing."""
    return topic in ids and topic in later and ids[topic] != later[topic]


def _by_topic(offsets: Offsets) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for topic, partition in sorted(offsets):
        by_partition = found.setdefault(topic, {})
        by_partition[str(partition)] = offsets[TopicPartition(topic, partition)]
    return found


def _offsets(by_topic: object, whole: object) -> dict[TopicPartition, int]:
    if not isinstance(by_topic, dict):
        _refuse(whole)
    offsets = {}
    for topic, by_partition in by_topic.items():
        try:
            ensure_valid_topic(topic)
        except InvalidTopicError as error:
            _refuse(whole, f"{error}.")
        if not isinstance(by_partition, dict):
            _refuse(whole)
        for text, offset in by_partition.items():
            if not _PARTITION.fullmatch(text) or int(text) > INT_MAX:
                _refuse(whole)
            # A bool is an int to Python.
            if type(offset) is not int or not 0 <= offset <= LONG_MAX:
                _refuse(whole)
            offsets[TopicPartition(topic, int(text))] = offset
    return offsets


def _refuse(value: object, why: str = "is it the checkpoint of another query?") -> NoReturn:
    raise ConfigError(
        f"the checkpoint holds {json.dumps(value)}, which is not an offset of this source: {why} An offset "
        'looks like {"events":{"0":23}}'
    )
