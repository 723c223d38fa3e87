"""`__commits`: the history of commits, with their times, authors and the topics' end offsets.

A commit's record is placed and flipped as one more partition of that commit, so it exists exactly if
the data is visible. Its offset is the number of the commit. No decision is based on it.

When there are more than commits.retention.bytes, the oldest commits are deleted, by segments of an
eighth of that size. Numbers are not reused.

    key     transactional id
    value   JSON: version, time (ms), mode ("append", "overwrite"), transactional_id, sequence (-1 for
            none), application_id, query_id, user, records, bytes;
            offsets: for each partition with new records, the first and the one after the last;
            ends: for all partitions of the topics touched, the high watermark with this commit

    {"version": 1, "time": 1700000000000, "mode": "append", ..., "records": 3, "bytes": 421,
     "offsets": {"events": {"0": [7, 10]}}, "ends": {"events": {"0": 10, "1": 4}}}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TypeVar

from spark_kbatch.commit.internal_topics import COMMITS, read_records
from spark_kbatch.errors import ConfigError, CorruptRecordError, KafkaStorageError
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.state import LogState
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import PARTITIONS_MAX
from spark_kbatch.record import scalar
from spark_kbatch.record.scalar import PlainRecord
from spark_kbatch.replica.view import Replica, Replicas
from spark_kbatch.store.commits import ALL_COMMITS, OVERWRITE, Author, Commit
from spark_kbatch.stored_json import StoredObject, parse

_VERSION = 1
_PAGE = 100  # commits read at a time, newest first

_Value = TypeVar("_Value")


class History:
    """The history of one cluster's commits, in the topic `__commits`; a `store.CommitHistory`.

    It is thread-safe.
    """

    def __init__(self, replicas: Replicas) -> None:
        """List a history, as of one moment each time; `replicas` returns the replica to read."""
        self._replicas = replicas

    def numbers(self) -> range:
        """Return the numbers from that of the oldest commit in the history to that of the next one."""
        state = self._replica().state
        return range(state.log_start_offset, state.high_watermark)

    def read(self, topic: str | None = None, numbers: range = ALL_COMMITS) -> Iterator[Commit]:
        """Yield the commits in the history, or only those that touched a topic, newest first."""
        _, log, state = self._replica()
        start = max(numbers.start, state.log_start_offset)
        end = min(numbers.stop, state.high_watermark)
        while end > start:
            first = max(end - _PAGE, start)
            try:
                page = list(_commits(log, state, first, end))
            except (FileNotFoundError, KafkaStorageError):
                kept = self.numbers().start
                if kept <= first:
                    raise
                # The oldest commits were deleted in the meantime; read what is left.
                start, state = kept, state._replace(log_start_offset=kept)
                continue
            yield from (c for c in reversed(page) if topic is None or topic in c.topics)
            end = first

    def find(self, number: int) -> Commit:
        """Return the commit with this number.

        Raises:
            ConfigError: there is none, or it was deleted.
        """
        _, log, state = self._replica()
        start, end = state.log_start_offset, state.high_watermark
        if number < start:
            kept = f"the history keeps commits {start} to {end - 1}" if end > start else "none is"
            raise ConfigError(
                f"commit {number} is no longer kept: {kept}; option 'commits.retention.bytes' of writes "
                "says how much of it"
            )
        if not start <= number < end:
            there_are = (
                f"there are commits {start} to {end - 1}" if end > start else "there is none"
            )
            raise ConfigError(f"there is no commit {number}; {there_are}")
        return next(_commits(log, state, number, number + 1))

    def _replica(self) -> Replica:
        """Return the replica of `__commits` to read."""
        return self._replicas([COMMITS])[COMMITS]


def _commits(log: PartitionLog, state: LogState, first: int, end: int) -> Iterator[Commit]:
    return read_records(log, state._replace(high_watermark=end), first, _unpack)


def pack(commit: Commit) -> bytearray:
    """Encode a commit as a batch with one record, for `__commits`."""
    value = commit.as_json()
    del value["commit"]  # which is its offset
    value["version"] = _VERSION
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    key = _utf8(commit.transactional_id)
    return scalar.encode([(key, _utf8(text))], commit.time_ms)


def _utf8(text: str) -> bytes:
    """Encode text as UTF-8, with lone surrogates, which UTF-8 cannot encode, escaped as in JSON.

    The name of a user or of an application may hold one, and no commit must fail for that. Inside JSON it
    is read back as it was.
    """
    return text.encode(errors="backslashreplace")


def _unpack(record: PlainRecord) -> Commit | None:
    if record.value is None:
        return None
    number = record.offset
    value = parse(record.value, f"commit {number} in {COMMITS.topic}", damaged=CorruptRecordError)
    version = value.integer("version")
    if version != _VERSION:
        raise CorruptRecordError(
            f"version of commit {number} in {COMMITS.topic}", expected=_VERSION, found=version
        )
    return Commit(
        number=number,
        time_ms=value.integer("time"),
        overwrite=value.text("mode") == OVERWRITE,
        transactional_id=value.text("transactional_id"),
        sequence=value.integer("sequence", -1),
        author=Author(*(value.text(field) for field in Author._fields)),
        records_count=value.integer("records"),
        size_in_bytes=value.integer("bytes"),
        offsets=_by_partition(value.object("offsets"), StoredObject.pair),
        ends=_by_partition(value.object("ends"), StoredObject.integer),
    )


def _by_partition(
    topics: StoredObject, read: Callable[[StoredObject, str], _Value]
) -> dict[TopicPartition, _Value]:
    return {
        TopicPartition(topic, partition): value
        for topic in topics.keys()
        for partition, value in topics.object(topic).by_number(read, PARTITIONS_MAX)
    }
