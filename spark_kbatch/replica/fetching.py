"""Fetches of several partitions at once: an answer now where there is one, or once there is.

An answer is given at once where the fetch may not wait, asks for nothing, has `min_bytes`, or where
there is an error or a log that has gone another way. Else it waits until there are that many bytes,
until a partition's log is rolled or cut, or until `max_wait_ms` is over.

    who fetches                     replica_id     sees records up to
    a follower                      0 or more      the log end
    a follower of another dir       -3             the log end
    a consumer, read_uncommitted    -1             the high watermark
    a consumer, read_committed      -1             the last stable offset

All partitions are looked at once, as of one moment, and read as they stood then: a commit is seen in all
of them or in none. They are read in the order of the request. The first that has a batch gives it whole, whatever
the limits are, so that a large batch stops nobody; all others only what fits.

Source: Kafka core/.../server/ReplicaManager.scala fetchMessages, readFromLog, DelayedFetch.scala.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from spark_kbatch.errors import KBatchError, OffsetOutOfRangeError
from spark_kbatch.log.epochs import EpochEntry
from spark_kbatch.log.state import LogState
from spark_kbatch.model import IsolationLevel, LogOffsets, ReadRange, TopicPartition
from spark_kbatch.record.header import LogRead
from spark_kbatch.replica.purgatory import DelayedOperation
from spark_kbatch.replica.view import Replica

CONSUMER_REPLICA_ID, FUTURE_REPLICA_ID = -1, -3
NO_EPOCH = -1


class FetchInfo(NamedTuple):
    """What is wanted of one partition."""

    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = NO_EPOCH  # that the caller knows of; NO_EPOCH where it does not
    last_fetched_epoch: int = NO_EPOCH  # of the batch before `fetch_offset`, as a follower has it


class FetchResult(NamedTuple):
    """What became of one partition. Without an error `offsets` is given, and `read` may be empty."""

    read: LogRead = LogRead("", 0, memoryview(b""), [])
    offsets: LogOffsets | None = None
    diverging: EpochEntry | None = None  # where the caller's last epoch ends here
    error: Exception | None = None


OnFetched: TypeAlias = Callable[[Mapping[TopicPartition, FetchResult]], object]


@dataclass(frozen=True)
class FetchParams:
    """What one fetch asks of all its partitions."""

    max_wait_ms: int
    replica_id: int
    min_bytes: int
    max_bytes: int
    hard_max_bytes_limit: bool
    isolation: IsolationLevel

    @property
    def to_log_end(self) -> bool:
        """Whether a replica asks, which copies what is not committed yet."""
        return self.replica_id >= 0 or self.replica_id == FUTURE_REPLICA_ID

    def end_offset(self, state: LogState) -> int:
        """Exclusive end of what such a caller is given."""
        if self.to_log_end:
            return state.log_end_offset
        committed = self.isolation is IsolationLevel.READ_COMMITTED
        return state.last_stable_offset if committed else state.high_watermark


Moment: TypeAlias = Mapping[TopicPartition, Replica | Exception]


class Reading(Protocol):
    """How partitions are read: the replica manager's part of a fetch."""

    def look(self, topic_partitions: Iterable[TopicPartition]) -> Moment:
        """The replicas to read, all of one moment, or what is wrong with one."""

    def state_for_fetch(self, seen: Replica, info: FetchInfo) -> LogState:
        """The state that counts; raises where the leader epochs do not agree."""

    def read_for_fetch(
        self, seen: Replica, info: FetchInfo, params: FetchParams, asked: ReadRange
    ) -> FetchResult:
        """The batches from an offset on; raises what is wrong with the partition."""


def read_partitions(
    reading: Reading,
    params: FetchParams,
    fetch_infos: Mapping[TopicPartition, FetchInfo],
    moment: Moment | None = None,
) -> dict[TopicPartition, FetchResult]:
    """All partitions, within the limits; what is wrong with one stands in its result.

    Args:
        moment: at which they are looked at; now by default. Of one moment, so that a commit is seen in
            all of them or in none.
    """
    results = {}
    left, first_batch_whole = params.max_bytes, not params.hard_max_bytes_limit
    if moment is None:
        moment = reading.look(fetch_infos)
    for topic_partition, info in fetch_infos.items():
        seen = moment[topic_partition]
        try:
            if isinstance(seen, Exception):
                raise seen
            asked = ReadRange(
                info.fetch_offset,
                max(min(info.max_bytes, left), 0),
                params.isolation,
                first_batch_whole,
            )
            result = reading.read_for_fetch(seen, info, params, asked)
        except (OSError, KBatchError) as error:
            result = FetchResult(error=error)
        size = len(result.read.data)
        left, first_batch_whole = left - size, first_batch_whole and not size
        results[topic_partition] = result
    return results


def may_answer(params: FetchParams, results: Mapping[TopicPartition, FetchResult]) -> bool:
    """Whether these results are an answer without any wait."""
    return (
        params.max_wait_ms <= 0
        or not results
        or sum(len(result.read.data) for result in results.values()) >= params.min_bytes
        or any(result.error or result.diverging for result in results.values())
    )


class DelayedFetch(DelayedOperation):
    """A fetch that waits for more bytes."""

    def __init__(
        self,
        reading: Reading,
        params: FetchParams,
        fetch_infos: Mapping[TopicPartition, FetchInfo],
        on_complete: OnFetched,
    ) -> None:
        super().__init__(params.max_wait_ms)
        self._reading, self._params, self._fetch_infos = reading, params, fetch_infos
        self._answer = on_complete
        self._seen: dict[TopicPartition, int] | None = None  # ends, when it was last read

    def is_satisfied(self) -> bool:
        """Look at the ends; read only where one of them has moved."""
        ends = {}
        moment = self._reading.look(self._fetch_infos)
        for topic_partition, info in self._fetch_infos.items():
            seen = moment[topic_partition]
            if isinstance(seen, Exception):
                return True
            try:
                state = self._reading.state_for_fetch(seen, info)
            except (OSError, KBatchError):
                return True
            end = ends[topic_partition] = self._params.end_offset(state)
            is_cut = info.fetch_offset > end
            is_rolled = info.fetch_offset < state.segment_base_offset <= end
            if is_cut or is_rolled:
                return True
        if ends == self._seen:
            return False
        self._seen = ends
        results = read_partitions(self._reading, self._params, self._fetch_infos, moment)
        return may_answer(self._params, results)

    def on_complete(self) -> None:
        """Read once more, and answer with what there is."""
        self._answer(read_partitions(self._reading, self._params, self._fetch_infos))


def ensure_in_range(topic_partition: TopicPartition, state: LogState, offset: int) -> None:
    """Check that a log holds an offset, or ends there.

    Raises:
        OffsetOutOfRangeError: it does not.
    """
    if not state.log_start_offset <= offset <= state.log_end_offset:
        raise OffsetOutOfRangeError(
            str(topic_partition), offset, state.log_start_offset, state.log_end_offset
        )
