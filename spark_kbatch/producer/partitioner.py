"""The partitioner: chooses the partition that a row goes to, by the first rule that applies.

    row names a partition                         that partition
    custom partitioner                            the partition that it returns
    key, unless `partitioner.ignore.keys`         murmur2 of the key's bytes; an empty key is a key
    no key, a null key, or an ignored one         the topic's sticky partition

A topic's sticky partition takes rows until about batch.size bytes went there; then another is chosen at
random. So batches are full, and in the long run partitions get equal shares. If the queues of a topic's
partitions have different lengths, partitions with shorter queues are chosen more often
(`partitioner.adaptive.partitioning.enable`): with queues of 0, 3 and 1 batches, the partitions are chosen
4, 1 and 3 times out of 8.

Kafka also delays the switch until a batch is full, up to twice as many bytes; how rows are divided into
batches here does not depend on it.

Source: Kafka clients/producer/internals/BuiltInPartitioner.java.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from spark_kbatch.errors import ConfigError
from spark_kbatch.kernels import routing as kernels
from spark_kbatch.kernels.routing import MURMUR_M, MURMUR_SEED
from spark_kbatch.model import TopicPartition
from spark_kbatch.options import kinds
from spark_kbatch.options.topic import Topic
from spark_kbatch.record.columns import (
    EMPTY_I32,
    EMPTY_U8,
    Array,
    Columns,
    Spans,
    binary_array,
    dictionary,
    frozen,
    integers,
)

_NO_COUNTS = np.empty(0, np.int64)

_KERNEL_BYTES_MIN = 128  # about where the kernel, with all its call costs, becomes as fast
_WORDS = [struct.Struct(f"<{count}I") for count in range(_KERNEL_BYTES_MIN // 4)]  # by their number

# (keys of some rows of one topic, number of its partitions) -> a partition for each row. The keys are
# None if there is no key column.
CustomPartitioner = Callable[[pa.Array | None, int], "pa.Array | Array"]


class Routing(NamedTuple):
    """The partitions that a table's rows go to: a slot for each row, which stands for a partition."""

    slots: Array  # int32[n], read-only
    counts: Array  # int64[slots], the number of rows in each slot
    partitions: Sequence[tuple[Topic, TopicPartition]]  # by slot; may have grown since
    topics: Sequence[Topic]  # of the rows


class Partitioner:
    """Assigns rows to the partitions of any number of topics. Thread-safe."""

    def __init__(
        self,
        find_topic: Callable[[str], Topic],
        *,
        switch_bytes: int,
        seed: int,
        ignore_keys: bool = False,
        adaptive: bool = True,
        queue_sizes: Callable[[Topic], Sequence[int] | None] | None = None,
        custom: CustomPartitioner | None = None,
    ) -> None:
        """Partition the rows of one producer.

        Args:
            find_topic: called whenever a topic occurs; returns the same object as long as the topic has
                not changed.
            switch_bytes: how many bytes a sticky partition takes before another one is chosen.
            seed: of the random choice of sticky partitions.
            ignore_keys: treat all rows as if they had no key.
            adaptive: choose sticky partitions by queue sizes.
            queue_sizes: returns how much waits for each partition of a topic, None if unknown; called at
                most once per call and topic, with the lock held.
            custom: replaces the choice by key and the sticky partition; called without the lock, by
                several threads at once.
        """
        self._find_topic, self._switch_bytes = find_topic, switch_bytes
        self._ignore_keys, self._custom = ignore_keys, custom
        self._queue_sizes = queue_sizes if adaptive else None

        # Guards all below; taken before any lock of `queue_sizes` and `find_topic`. The lists only grow,
        # and _numbers changes last, so that its values can be looked up without the lock. A topic whose
        # partitions have changed gets a new number; rows that were routed before keep their slots.
        self._lock = threading.Lock()
        self._random = np.random.default_rng(seed)
        self._numbers: dict[str, int] = {}
        self._count = 0  # of the numbers given out
        self._known: list[Topic] = []
        self._slots: list[tuple[Topic, TopicPartition]] = []
        self._first_slots = frozen(np.zeros(1, np.int32))
        self._weights = np.empty(0, np.int64)
        self._sticky = np.empty((0, 3), np.int64)

    def partition(
        self,
        columns: Columns,
        topics: pa.Array | str,
        partitions: pa.Array | None,
        keys: pa.Array | None = None,
    ) -> Routing:
        """Route each row to a partition.

        Args:
            topics: one for all rows, or a string array without nulls.
            partitions: integers; a null leaves the choice to the partitioner.
            keys: the key column for a custom partitioner; by default that of `columns`, as binary.

        Raises:
            ConfigError: a null topic; a partition that the topic does not have; a custom partitioner
                that returns anything but a valid partition for each row.
        """
        rows_count = columns.rows_count
        if rows_count == 0:
            return Routing(EMPTY_I32, np.zeros(0, np.int64), (), ())
        key, value, headers = columns.key, columns.value, columns.headers
        is_hashed = len(key.bounds) > 0 and not self._ignore_keys
        have_all_a_key = is_hashed and len(key.valid) == 0
        only_keys_decide = partitions is None and self._custom is None
        if have_all_a_key and only_keys_decide and isinstance(topics, str):
            return self._hashed(key, self._number(topics), rows_count)
        topic_of, numbers = self._topic_numbers(rows_count, topics)
        own, own_valid = (EMPTY_I32, EMPTY_U8) if partitions is None else integers(partitions)
        is_open = len(own) == 0 or len(own_valid) > 0
        if self._custom is not None and is_open:
            if keys is None and len(key.bounds):
                keys = binary_array(*key)
            own, own_valid = self._custom_choice(keys, topic_of, numbers, own, own_valid)
            is_open = False
        hashes = np.empty(rows_count if is_open and is_hashed else 0, np.int32)
        kernels.hash_keys(key.data, key.bounds, 0, hashes, _NO_COUNTS)
        frozen(hashes)
        slots = np.empty(rows_count, np.int32)
        with self._lock:
            counts = np.zeros(len(self._slots), np.int64)
            if is_open and (not is_hashed or len(key.valid)):
                self._weigh_locked(numbers, _size_in_bytes(columns))
            answer = int(
                kernels.assign_slots(
                    topic_of, self._first_slots, own, own_valid, hashes, key.bounds, key.valid,
                    value.bounds, value.valid, headers.bounds, self._weights, self._sticky,
                    self._switch_bytes, slots, counts,
                )
            )  # fmt: skip
        if answer < 0:
            row = -answer - 1
            topic = self._known[topic_of[row]]
            raise ConfigError(
                f"column 'partition' holds {own[row]}, {_but_has(topic)}: leave the column out, by "
                'drop("partition"), so that keys choose partitions again; or give the topic as '
                "many, by the option num.partitions where a write creates it, else by `kbatch "
                "create-partitions`"
            )
        topics_of_rows = [self._known[number] for number in numbers]
        return Routing(frozen(slots), counts, self._slots, topics_of_rows)

    def _hashed(self, key: Spans, number: int, rows_count: int) -> Routing:
        """Route each row of one topic by its key."""
        topic, first_slot = self._known[number], int(self._first_slots[number])
        slots, counts = np.empty(rows_count, np.int32), np.zeros(len(self._slots), np.int64)
        own = counts[first_slot : first_slot + topic.partitions]
        kernels.hash_keys(key.data, key.bounds, first_slot, slots, own)
        return Routing(frozen(slots), counts, self._slots, (topic,))

    def partition_one(
        self, topic_name: str, key: bytes | None, size_in_bytes: int, partition: int | None = None
    ) -> tuple[Topic, int]:
        """Return the topic, and the partition that one record goes to; the same as for a row.

        Args:
            size_in_bytes: of its key and value, and of its headers as encoded after their count.
            partition: the partition that the record names.

        Raises:
            ConfigError: as `partition`.
        """
        number = self._number(topic_name)
        topic = self._known[number]
        if partition is not None:
            if not 0 <= partition < topic.partitions:
                raise ConfigError(f"partition is {partition}, {_but_has(topic)}")
            return topic, partition
        if self._custom is not None:
            keys = pa.array([key], pa.binary())
            return topic, int(self._ask_custom(topic, keys, np.zeros(1, np.int64))[0])
        if key is not None and not self._ignore_keys:
            return topic, _hash(key) % topic.partitions
        with self._lock:
            partition, given, state = self._sticky[number].tolist()
            if given >= self._switch_bytes:
                self._weigh_locked([number], 0)
                first = int(self._first_slots[number])
                weights = self._weights[first : first + topic.partitions]
                state = state * kernels.RANDOM_FACTOR % kernels.RANDOM_MODULUS
                if total := int(weights[-1]):
                    partition = int(np.searchsorted(weights, state % total, side="right"))
                else:
                    partition = state % topic.partitions
                given = 0
            given += size_in_bytes + kernels.STICKY_OVERHEAD
            self._sticky[number] = partition, given, state
        return topic, partition

    def _topic_numbers(self, rows_count: int, topics: pa.Array | str) -> tuple[Array, list[int]]:
        """Return the internal number of each row's topic, and the numbers of all topics that occur."""
        if isinstance(topics, str):
            number = self._number(topics)
            return frozen(np.full(rows_count, number, np.int32)), [number]
        if topics.null_count:
            raise ConfigError(
                "column 'topic' holds a null, and the option 'topic' is not given; each row needs a "
                "topic"
            )
        names, indices = dictionary(topics)
        numbers = [self._number(name) for name in names]
        return frozen(np.array(numbers, np.int32)[indices]), numbers

    def _number(self, name: str) -> int:
        topic = self._find_topic(name)
        number = self._numbers.get(name)
        if number is None or self._known[number] is not topic:
            with self._lock:
                # Looked up again, so that of two threads the last one stores the newer topic.
                topic, number = self._find_topic(name), self._numbers.get(name)
                if number is not None and _has_same_partitions(topic, self._known[number]):
                    self._alter_locked(number, topic)
                else:
                    number = self._add_locked(topic)
                    self._numbers[name] = number
        return number

    def _alter_locked(self, number: int, topic: Topic) -> None:
        """Replace the stored object of a topic that was altered; its partitions keep their slots."""
        first = int(self._first_slots[number])
        self._slots[first : first + topic.partitions] = [
            (topic, topic_partition)
            for _, topic_partition in self._slots[first : first + topic.partitions]
        ]
        self._known[number] = topic

    def _add_locked(self, topic: Topic) -> int:
        number = self._count
        first = int(self._first_slots[number])
        state = int(self._random.integers(1, kernels.RANDOM_MODULUS))
        sticky = np.array([[state % topic.partitions, 0, state]], np.int64)
        # First truncate all lists to the numbered topics: an interrupt may have left some longer.
        self._known[number:] = [topic]
        self._slots[first:] = [
            (topic, TopicPartition(topic.name, partition)) for partition in range(topic.partitions)
        ]
        self._first_slots = frozen(
            np.append(self._first_slots[: number + 1], np.int32(len(self._slots)))
        )
        self._weights = np.append(self._weights[:first], np.zeros(topic.partitions, np.int64))
        self._sticky = np.concatenate([self._sticky[:number], sticky])
        self._count += 1
        return number

    def _weigh_locked(self, numbers: Sequence[int], size_in_bytes: int) -> None:
        """Weigh, by queue length, the partitions of topics that may be about to switch sticky partitions.

        Args:
            numbers: of the topics.
            size_in_bytes: an upper bound of what any of them is about to get.
        """
        if self._queue_sizes is None:
            return
        for number in numbers:
            topic = self._known[number]
            if (
                topic.partitions > 1
                and self._sticky[number, 1] + size_in_bytes >= self._switch_bytes
            ):
                first = int(self._first_slots[number])
                self._weights[first : first + topic.partitions] = _weights(self._queue_sizes(topic))

    def _custom_choice(
        self,
        keys: pa.Array | None,
        topic_of: Array,
        numbers: Sequence[int],
        own: Array,
        own_valid: Array,
    ) -> tuple[Array, Array]:
        """Return each row's own or custom partition, and an empty validity array, since none is null."""
        is_open = own_valid == 0 if len(own) else np.ones(len(topic_of), np.bool_)
        chosen = own.copy() if len(own) else np.empty(len(topic_of), np.int32)
        for number in numbers:
            rows = np.flatnonzero(is_open & (topic_of == number))
            if len(rows) == 0:
                continue
            given = keys
            if keys is not None and len(rows) < len(topic_of):
                given = keys.take(pa.array(rows))
            chosen[rows] = self._ask_custom(self._known[number], given, rows)
        return frozen(chosen), EMPTY_U8

    def _ask_custom(self, topic: Topic, keys: pa.Array | None, rows: Array) -> Array:
        """Return the custom partitioner's partition of `topic` for each row; `rows` are row numbers."""
        custom = self._custom
        assert custom is not None
        try:
            answer = custom(keys, topic.partitions)
        except Exception as error:
            error.add_note(f"raised by the partitioner {_name(custom)}, for topic {topic.name!r}")
            raise
        returned = (
            f"option 'partitioner.class': {_name(custom)}, for topic {topic.name!r}, returned"
        )
        if isinstance(answer, pa.Array | pa.ChunkedArray) and pa.types.is_integer(answer.type):
            if answer.null_count:
                row = rows[answer.is_null().to_numpy(zero_copy_only=False)][0]
                raise ConfigError(f"{returned} a null for row {row}; accepted: {_range(topic)}")
            answer = answer.to_numpy(zero_copy_only=False)
        if not isinstance(answer, np.ndarray) or answer.dtype.kind not in "iu" or answer.ndim != 1:
            kind = getattr(answer, "type", getattr(answer, "dtype", ""))
            raise ConfigError(
                f"{returned} a {type(answer).__name__} {kind}".rstrip()
                + "; accepted: a pyarrow Array or numpy array of integers, one for each row"
            )
        if len(answer) != len(rows):
            raise ConfigError(
                f"{returned} {len(answer)} numbers for {len(rows)} rows; accepted: one for each row"
            )
        wrong = np.flatnonzero((answer < 0) | (answer >= topic.partitions))
        if len(wrong):
            raise ConfigError(
                f"{returned} {answer[wrong[0]]} for row {rows[wrong[0]]}; accepted: {_range(topic)}"
            )
        return answer


def load_partitioner(path: str) -> CustomPartitioner:
    """Import and return the function that the option `partitioner.class` names.

    Args:
        path: "package.module.function", or "package.module:function".

    Raises:
        ConfigError: it cannot be imported, or is not a function.
    """
    key = "partitioner.class"
    accepted = "'package.module.function', a function of (keys, number of partitions)"
    function: CustomPartitioner = kinds.imported(key, path, accepted)
    if isinstance(function, type):
        raise kinds.no_function(key, path, function, accepted)
    return function


def _has_same_partitions(topic: Topic, known: Topic) -> bool:
    return (topic.topic_id, topic.partitions) == (known.topic_id, known.partitions)


def _weights(queue_sizes: Sequence[int] | None) -> Array | int:
    """Return running sums of partition weights, higher for shorter queues; 0 if all have the same length."""
    if queue_sizes is None:
        return 0
    sizes = np.asarray(queue_sizes, np.int64)
    most = sizes.max()
    return 0 if sizes.min() == most else np.cumsum(most + 1 - sizes)


def _size_in_bytes(columns: Columns) -> int:
    """Return an upper bound of the bytes that these rows add to sticky partitions."""
    spans = (columns.key, columns.value, columns.headers)
    total = sum(int(s.bounds[-1]) - int(s.bounds[0]) for s in spans if len(s.bounds))
    return total + columns.rows_count * kernels.STICKY_OVERHEAD


def _hash(key: bytes) -> int:
    """Return Kafka's 32-bit murmur2 of one key, made positive as Kafka does, which is not abs().

    A kernel takes longer for a small key, and releases the GIL: with records sent one by one, the sender's
    thread would run after each of them.
    """
    size = len(key)
    if size >= _KERNEL_BYTES_MIN:
        hashes, bounds = np.empty(1, np.int32), frozen(np.array([0, size], np.int32))
        kernels.hash_keys(np.frombuffer(key, np.uint8), bounds, 0, hashes, _NO_COUNTS)
        return int(hashes[0])
    h = MURMUR_SEED ^ size
    for k in _WORDS[size >> 2].unpack_from(key):
        k = k * MURMUR_M & 0xFFFFFFFF
        k = (k ^ k >> 24) * MURMUR_M
        h = (h * MURMUR_M ^ k) & 0xFFFFFFFF
    tail = key[size & ~3 :]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * MURMUR_M & 0xFFFFFFFF
    h = (h ^ h >> 13) * MURMUR_M & 0xFFFFFFFF
    return (h ^ h >> 15) & 0x7FFFFFFF


def _name(custom: CustomPartitioner) -> str:
    of: Any = custom if hasattr(custom, "__qualname__") else type(custom)
    return f"{of.__module__}.{of.__qualname__}"


def _range(topic: Topic) -> str:
    return f"0 to {topic.partitions - 1}"


def _but_has(topic: Topic) -> str:
    return f"but topic {topic.name!r} has the partitions {_range(topic)}"
