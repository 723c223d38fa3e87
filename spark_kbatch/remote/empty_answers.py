"""The proof that a range has no records up to its end, where a broker answers a fetch with none.

The rule, for everything that reads a real cluster: reads, streams, `kbatch consume`, mirrors. One answer without
records proves nothing, though it has no error and the true high watermark. Brokers give it while records are
there: remote storage is slow or over its quota, a new leader does not know yet where in its files the high
watermark lies, another implementation has no time left. Taken for the end of the range, it would lose records.

    empty answer                                     then
    its log ends before the range does               the leader's ends are looked up, which decide
    a later batch follows                            there is nothing: proved
    compaction removed all to the end of the log     there is nothing: proved
    else                                             asked again with pauses, as after a retriable error; in
                                                     the end RequestTimedOutError. It is never the end

A later batch is the usual proof, and is in most answers already: a broker skips gaps, and returns markers of
transactions and batches that compaction left without records. A read of committed records sees nothing from
the last stable offset on. So the leader is asked for what follows regardless of transactions.

At the very end of a log there is no later batch. Kafka keeps the last batch that it compacts, since 4.0;
earlier releases removed it, and so may others. Compaction counts as the reason only if all of this holds:

    - cleanup.policy of the topic has `compact`
    - the record with the largest time, which is looked up in another way than records are read, lies before
    - the offset is in the leader's own files; those in remote storage may be slow to come
    - the leader has given this answer and no other for some seconds

A broker that is too old for one of the questions gives the offset of its first record, which contradicts nothing.

Source: Kafka storage/.../internals/log/LocalLog.java (read), Cleaner.java; core/.../server/DelayedRemoteFetch.scala;
KIP-405, KIP-956, KIP-1018, KAFKA-17076.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spark_kbatch.errors import ApiError
from spark_kbatch.model import (
    MAX_TIMESTAMP,
    IsolationLevel,
    OffsetAndTimestamp,
    OffsetRange,
    TopicPartition,
)
from spark_kbatch.record.header import MAGIC, walk, whole_size
from spark_kbatch.remote import offsets, topics
from spark_kbatch.remote.client import Client
from spark_kbatch.wire.connections import Node
from spark_kbatch.wire.protocol import ApiKey
from spark_kbatch.wire.records import fetch_request

_EARLIEST_LOCAL = -4  # in place of a time: the first offset in the leader's own files
_LASTING_MS = 5000
_PROBE_BYTES = 64 << 10  # the first batch comes whole, however large
_POLICY = "cleanup.policy"


class EmptyAnswers:
    """The answers without records to a range's fetches, and what proves them right.

    Not thread-safe.
    """

    def __init__(
        self,
        client: Client,
        wanted: OffsetRange,
        *,
        timeout_ms: int,
        monotonic_ms: Callable[[], int],
    ) -> None:
        """Set up for the fetches of one range.

        Args:
            client: of the fetches.
            wanted: the range.
            timeout_ms: how long an offset is asked for again and again.
            monotonic_ms: the clock.
        """
        self._client = client
        self._topic_partition, _, self._end = wanted
        self._lasting_ms = min(_LASTING_MS, timeout_ms // 2)
        self._monotonic_ms = monotonic_ms
        self._offset = -1  # that such an answer was about
        self._since_ms = 0

    def forget(self) -> None:
        """Note that another answer, or an error, has come."""
        self._offset = -1

    def why_no_proof(self, offset: int) -> str:
        """Return why the leader's answer without records proves nothing; empty if there are none to the end.

        Args:
            offset: that was asked for; the leader's log does not end before the range.

        Raises:
            KBatchError: the cluster could not be asked.
        """
        if offset != self._offset:
            self._offset, self._since_ms = offset, self._monotonic_ms()
            return "it was asked once"
        if self._is_followed(offset):
            return ""
        lasted_ms = self._monotonic_ms() - self._since_ms
        if lasted_ms < self._lasting_ms:
            return f"it has done so for {lasted_ms} ms"
        return self._why_not_compacted(offset)

    def _is_followed(self, offset: int) -> bool:
        """Return True if the first batch from an offset on starts where the range ends, or later."""

        def build(_node: Node, _partitions: list[TopicPartition]) -> Any:
            return fetch_request(
                self._topic_partition,
                offset,
                _PROBE_BYTES,
                offsets.leader_epoch(self._client, self._topic_partition),
                isolation_level=offsets.isolation_number(IsolationLevel.READ_UNCOMMITTED),
            )

        def results(answer: Any) -> dict[TopicPartition, int]:
            # An error leaves it open; the next fetch meets it, too.
            parts = [part for each in answer.responses for part in each.partitions]
            starts = [_starts_at(one.records) for one in parts if not one.error_code]
            return {self._topic_partition: max(starts, default=-1)}

        found = self._client.request_leaders(ApiKey.FETCH, [self._topic_partition], build, results)
        return found[self._topic_partition] >= self._end

    def _why_not_compacted(self, offset: int) -> str:
        topic = self._topic_partition.topic
        policy = topics.settings_of(self._client, [topic]).get(topic, {}).get(_POLICY)
        if policy is None:
            return (
                "whether they were compacted away is not known, because this client may not describe "
                "the topic's settings"
            )
        if "compact" not in policy:
            return f"{_POLICY} is {policy}, so they were not compacted away"
        latest = self._listed(MAX_TIMESTAMP)
        if latest is not None and latest.offset >= offset:
            return f"the record with the largest time has offset {latest.offset}"
        local = self._listed(_EARLIEST_LOCAL)
        if local is not None and local.offset > offset:
            return f"offsets below {local.offset} are in remote storage, which may be slow"
        return ""

    def _listed(self, time_ms: int) -> OffsetAndTimestamp | None:
        """Return the offset that ListOffsets has for one of its special times; None if it knows none."""
        try:
            found = offsets.list_offsets(self._client, {self._topic_partition: time_ms})
        except ApiError:  # such as UNSUPPORTED_VERSION
            return None
        return found[self._topic_partition]


def _starts_at(records: Any) -> int:
    """Return the first offset that fetched batches begin with; -1 if they do not tell."""
    data = memoryview(records or b"")
    for _, header in walk(data, 0, whole_size(data)):
        # The wrapper of an older format names its last offset only.
        return header.base_offset if header.magic == MAGIC else -1
    return -1
