"""Which partition a row goes to: its own choice, else its key's hash, else the sticky one.

A null or absent key goes to one partition until about batch.size bytes went there, then to another
at random: so batches are full, and partitions even in the long run.

Source: Kafka clients/producer/internals/BuiltInPartitioner.java.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from spark_kbatch import kernels
from spark_kbatch.config import Topic
from spark_kbatch.errors import ConfigError
from spark_kbatch.record.columns import (
    EMPTY_I32,
    EMPTY_U8,
    Array,
    Columns,
    dictionary,
    frozen,
    integers,
)


class Partitioner:
    """Assigns rows to the partitions of any number of topics. Not thread-safe."""

    def __init__(self, find_topic: Callable[[str], Topic], *, switch_bytes: int, seed: int) -> None:
        """Set up.

        Args:
            find_topic: asked once for each topic that occurs.
            switch_bytes: after as many bytes null keys go to another partition.
            seed: of the random choice of that partition.
        """
        self._find_topic, self._switch_bytes = find_topic, switch_bytes
        self._random = np.random.default_rng(seed)
        self._topics: dict[str, int] = {}
        self._known: list[Topic] = []
        self._slots: list[tuple[Topic, int]] = []
        self._counts = self._first_slots = EMPTY_I32
        self._sticky = np.empty((0, 3), np.int64)

    def partition(
        self, columns: Columns, topics: pa.Array | str, partitions: pa.Array | None
    ) -> Iterator[tuple[Topic, int, Array]]:
        """Each partition that gets rows, with their numbers (int32, read-only) in order.

        Args:
            topics: one for all rows, or a string array without nulls.
            partitions: int32 array; a null leaves the choice to the key.

        Raises:
            ConfigError: a null topic, a partition that the topic does not have.
        """
        if columns.rows_count == 0:
            return
        topic_of = self._topic_numbers(columns.rows_count, topics)
        chosen, chosen_valid = EMPTY_I32, EMPTY_U8
        if partitions is not None:
            chosen, chosen_valid = integers(partitions)
        hashes = np.empty(columns.rows_count if len(columns.key.bounds) else 0, np.int32)
        kernels.hash_keys(columns.key.data, columns.key.bounds, hashes)
        slots = np.empty(columns.rows_count, np.int32)
        answer = int(
            kernels.assign_slots(
                topic_of, self._counts, self._first_slots, chosen, chosen_valid,
                frozen(hashes), columns.key.valid, columns.value.bounds, self._sticky, self._switch_bytes, slots,
            )
        )  # fmt: skip
        if answer < 0:
            row = -answer - 1
            topic = self._known[topic_of[row]]
            raise ConfigError(
                f"column 'partition' holds {chosen[row]}, but topic {topic.name!r} has the partitions "
                f"0 to {topic.partitions - 1}"
            )
        bounds = np.zeros(len(self._slots) + 1, np.int64)
        rows = np.empty(columns.rows_count, np.int32)
        kernels.group_rows(frozen(slots), bounds, rows)
        frozen(rows)
        for slot in np.flatnonzero(bounds[1:] > bounds[:-1]):
            topic, partition = self._slots[slot]
            yield topic, partition, rows[bounds[slot] : bounds[slot + 1]]

    def _topic_numbers(self, rows_count: int, topics: pa.Array | str) -> Array:
        if isinstance(topics, str):
            return frozen(np.full(rows_count, self._number(topics), np.int32))
        if topics.null_count:
            raise ConfigError(
                "column 'topic' holds a null, and the option 'topic' is not given; each row needs a "
                "topic"
            )
        names, indices = dictionary(topics)
        numbers = np.array([self._number(name) for name in names], np.int32)
        return frozen(numbers[indices])

    def _number(self, name: str) -> int:
        number = self._topics.get(name)
        if number is None:
            topic = self._find_topic(name)
            number = self._topics[name] = len(self._known)
            self._known.append(topic)
            first_slot = len(self._slots)
            self._slots += [(topic, partition) for partition in range(topic.partitions)]
            self._counts = frozen(np.append(self._counts, np.int32(topic.partitions)))
            self._first_slots = frozen(np.append(self._first_slots, np.int32(first_slot)))
            sticky = [self._random.integers(topic.partitions), 0, self._random.integers(2**31)]
            self._sticky = np.vstack([self._sticky, np.array([sticky], np.int64)])
        return number
