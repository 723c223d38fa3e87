"""Fetching of a partition's offset range from a broker, with the next request sent ahead of decoding.

    reader   fetch(0)            decode 0      fetch(500)        decode 500        fetch(900) ...
    socket   ask 0 -> answer 0, ask 500 ------> answer 500, ask 900 ----------> answer 900

The answer to the next request arrives while the reader decodes the batches of the last one, which are never
copied: they lie in the frame that was received. How much a request asks for follows from what a record of
this range takes, so that a small range does not fetch what comes after it.

A task that reads several ranges asks for the start of all of them at once, by one request to each leader, and
goes on in each as soon as that is answered: `SeveralFetcher`. So it waits for the network twice, not range
after range. A range of more than some 2 MiB waits again, when it is read, for each further 4 MiB.

A partition is read from its leader, or, if `client.rack` is set, from the replica that the leader names.
Transient errors are retried until the timeout, after a refresh of the metadata: leaders that move, lost
connections, throttling, a replica that lags. If a replica says that an offset is out of range, the leader is
asked, which decides. An answer without records is not believed either, until it is proved: `_EmptyAnswers`.

When the leader epoch changes, the new leader is asked where the epoch of the last batch ends in its log. If that
is below the offset to read, records that were read before are gone from the log: that is an error, and never
goes unnoticed.

Source: Kafka clients/.../consumer/internals/AbstractFetch.java, FetchCollector.java, CompletedFetch.java,
OffsetFetcherUtils.java; storage/.../internals/log/LocalLog.java (read), Cleaner.java;
core/.../server/DelayedRemoteFetch.scala; KIP-320 (truncation), KIP-392 (nearest replica), KIP-405, KIP-956,
KIP-1018, KAFKA-17076.
"""

from __future__ import annotations

import contextlib
import random as random_numbers
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from spark_kbatch.clock import monotonic_ms as clock_monotonic_ms
from spark_kbatch.errors import (
    ApiError,
    CorruptRecordError,
    DisconnectedError,
    KBatchError,
    OffsetOutOfRangeError,
    ProtocolError,
    RequestTimedOutError,
    RetriableError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from spark_kbatch.model import (
    INT_MAX,
    MAX_TIMESTAMP,
    AbortedTransaction,
    IsolationLevel,
    LogOffsets,
    OffsetAndTimestamp,
    OffsetRange,
    ReadRange,
    TopicPartition,
)
from spark_kbatch.options.remote import ClusterOptions
from spark_kbatch.record.header import (
    MAGIC,
    NO_LEADER_EPOCH,
    BatchHeader,
    LogRead,
    walk,
    whole_size,
)
from spark_kbatch.remote import offsets, topics
from spark_kbatch.remote.client import RETRIABLE, Client
from spark_kbatch.wire.backoff import ExponentialBackoff
from spark_kbatch.wire.connections import Node, State
from spark_kbatch.wire.errors import ErrorCode, error_of
from spark_kbatch.wire.protocol import ApiKey, OffsetForLeaderEpochRequest
from spark_kbatch.wire.records import ReadPart, fetch_request

# A first request does not know yet what a record takes.
_FIRST_BYTES_PER_OFFSET = 1024
_FIRST_BYTES_MAX = 1 << 20
_BYTES_MIN = 64 << 10
_SPARE = 1.25  # of what the rest of a range should take
_NO_REPLICA = -1
_BELIEVED_MIN_MS = 1000  # so that a replica that the leader names is asked at all
_CONSUMER = -1  # in place of a follower's id

# Of answers without records.
_EARLIEST_LOCAL = -4  # in place of a time: the first offset in the leader's own files
_LASTING_MS = 5000
_PROBE_BYTES = 64 << 10  # the first batch comes whole, however large
_POLICY = "cleanup.policy"


class _Coming:
    """A Fetch request in flight, and its response once that has arrived."""

    __slots__ = ("answer", "asked", "error", "is_here", "node")

    def __init__(self, node: Node, asked: ReadRange) -> None:
        self.node, self.asked = node, asked
        self.is_here = False
        self.answer: Any = None
        self.error: KBatchError | None = None

    def end(self, answer: Any, error: KBatchError | None) -> None:
        self.answer, self.error, self.is_here = answer, error, True


class PartitionFetcher:
    """Fetcher of the record batches in one offset range of a partition, in order, over the network.

    A `Fetcher`. Not thread-safe.
    """

    def __init__(
        self,
        client: Client,
        wanted: OffsetRange,
        *,
        timeout_ms: int,
        last_epoch: int = NO_LEADER_EPOCH,
        ensure_same: Callable[[], None] = lambda: None,
        monotonic_ms: Callable[[], int] = clock_monotonic_ms,
        random: Callable[[], float] = random_numbers.random,
    ) -> None:
        """Set up to fetch a range of offsets, without sending a request yet.

        Args:
            client: leased for as long as this is used.
            wanted: the range, of known offsets; nothing is asked for after its end.
            timeout_ms: how long one fetch is retried after transient errors.
            last_epoch: leader epoch of the batch before the range, if it was read: then the leader is asked
                whether its log still has it.
            ensure_same: called when the range is complete; raises if what was read is to be refused.
            monotonic_ms: the clock.
            random: returns a uniform number from [0, 1), for jitter.
        """
        self._client = client
        self._connections = client.connections
        self._topic_partition, self._start, self._end = wanted
        self._first: tuple[LogRead, LogOffsets] | None = None  # came with those of other ranges
        self._timeout_ms = timeout_ms
        self._ensure_same = ensure_same
        self._monotonic_ms = monotonic_ms
        self._backoff = ExponentialBackoff(
            client.options.retry_backoff_ms, client.options.retry_backoff_max_ms, random
        )
        self._coming: _Coming | None = None
        self._bytes_per_offset = float(_FIRST_BYTES_PER_OFFSET)
        self._bytes_max = min(_FIRST_BYTES_MAX, client.options.max_partition_fetch_bytes)
        self._replica: Node | None = None  # to read from in place of the leader
        self._replica_until_ms = 0
        self._rack_id = client.options.client_rack
        self._leader_epoch = NO_LEADER_EPOCH  # that the last request named
        self._batch_epoch = last_epoch  # of the last batch before the next offset
        self._empty_answers = _EmptyAnswers(
            client, wanted, timeout_ms=timeout_ms, monotonic_ms=monotonic_ms
        )

    def fetch(
        self, topic_partition: TopicPartition, asked: ReadRange
    ) -> tuple[LogRead, LogOffsets]:
        """Return batches of the range from the asked offset on, as `Fetcher.fetch` does.

        The size asked for is ignored.

        Raises:
            OffsetOutOfRangeError: the log does not hold the offset; or it was truncated below it.
            UnknownTopicOrPartitionError: the topic was deleted or recreated.
            RequestTimedOutError: it could not be read in time; says why.
            CorruptRecordError: impossible sizes, magic bytes or offsets. CRCs are not checked.
        """
        assert topic_partition == self._topic_partition
        first, self._first = self._first, None
        if first is not None and asked.offset == self._start:
            return first
        deadline_ms = self._monotonic_ms() + self._timeout_ms
        attempts = 0
        why: KBatchError | None = None
        while True:
            try:
                found = self._try(asked, deadline_ms)
                if found is not None:
                    return found
            except (_TransientError, RetriableError) as error:
                if not isinstance(error, _UnprovedError):
                    self._empty_answers.forget()
                if why is None or not isinstance(error, RequestTimedOutError):
                    why = error.cause if isinstance(error, _TransientError) else error
                self._forget()
                self._pause(attempts, deadline_ms)
                attempts += 1
            self._ensure_time_left(asked.offset, deadline_ms, why)

    def _try(self, asked: ReadRange, deadline_ms: int) -> tuple[LogRead, LogOffsets] | None:
        """Return the batches that one Fetch request brings, or None if it is to be repeated at once."""
        coming, self._coming = self._coming, None
        if coming is None or coming.asked.offset != asked.offset:
            coming = self._ask(asked, self._broker_for(asked.offset), deadline_ms)
        part = self._part_of(coming, self._answer_of(coming, deadline_ms))
        if part is None:
            return None
        if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(coming)
            return None
        self._ensure_no_error(part, coming)
        if part.preferred_read_replica != _NO_REPLICA and not part.records:
            self._move_to(part.preferred_read_replica)
            return None
        self._bytes_max = self._client.options.max_partition_fetch_bytes
        return self._found(part, coming)

    def _found(self, part: Any, coming: _Coming) -> tuple[LogRead, LogOffsets] | None:
        asked, edges = coming.asked, _edges(part)
        path = f"{self._topic_partition} at {coming.node}, fetched from offset {asked.offset}"
        if not part.records:
            decided = self._without_records(asked, edges, coming.node)
            if decided is None:
                return None
            self._ensure_same()
            return LogRead(path, 0, memoryview(b""), []), decided
        self._empty_answers.forget()
        self._rack_id = self._client.options.client_rack
        data = memoryview(part.records)
        batches = list(_whole_batches(data, asked.offset, self._end, path))
        at, last = batches[-1]
        size = at + last.size_in_bytes
        self._batch_epoch = last.partition_leader_epoch
        self._bytes_per_offset = size / (
            last.next_offset - min(asked.offset, batches[0][1].base_offset)
        )
        if last.next_offset < self._end:
            self._ask_ahead(asked._replace(offset=last.next_offset), coming.node)
        else:
            self._ensure_same()
        aborted = [
            AbortedTransaction(one.producer_id, one.first_offset)
            for one in sorted(part.aborted_transactions or (), key=lambda one: one.first_offset)
        ]
        return LogRead(path, 0, data[:size], batches, aborted), edges

    # Requests.

    def _broker_for(self, offset: int) -> Node:
        """Return the broker to fetch from, after a check for truncation if the leader epoch changed."""
        leader, epoch = self._client.leader(self._topic_partition)
        if epoch != self._leader_epoch and self._batch_epoch >= 0:
            self._ensure_not_truncated(offset)
        self._leader_epoch = epoch
        if self._replica is not None and self._monotonic_ms() >= self._replica_until_ms:
            self._replica = None
        return self._replica or leader

    def _ask(self, asked: ReadRange, node: Node, deadline_ms: int) -> _Coming:
        """Send a Fetch request, as soon as the broker is connected and can take one."""
        connections = self._connections
        while not connections.ready(node):
            left_ms = deadline_ms - self._monotonic_ms()
            failed = connections.last_error(node)
            if failed is not None and connections.state(node) is State.DISCONNECTED:
                raise failed
            if left_ms <= 0:
                raise connections.unsent(node)
            connections.poll(min(left_ms, connections.delay_ms(node)))
        return self._send(asked, node)

    def _ask_ahead(self, asked: ReadRange, node: Node) -> None:
        """Send the Fetch request for the next offset in advance, if the broker can take it now."""
        is_believed = node != self._replica or self._monotonic_ms() < self._replica_until_ms
        if is_believed and self._connections.can_send(node):
            self._coming = self._send(asked, node)

    def first_part(self, asked: ReadRange) -> ReadPart:
        """Return what to ask the leader for, with the starts of other ranges."""
        self._leader_epoch = offsets.leader_epoch(self._client, self._topic_partition)
        return self._part(asked._replace(offset=self._start))

    def take_first(self, part: Any, node: Node, asked: ReadRange) -> None:
        """Keep what a leader answered for the range's start, if it has records, and ask for what follows.

        Otherwise `fetch` asks, which says what is wrong.
        """
        if part.error_code == ErrorCode.NONE and part.records:
            with contextlib.suppress(CorruptRecordError):  # none is whole: the answer had no room
                coming = _Coming(node, asked._replace(offset=self._start))
                self._first = self._found(part, coming)

    def _send(self, asked: ReadRange, node: Node) -> _Coming:
        coming = _Coming(node, asked)
        parts = {self._topic_partition: self._part(asked)}
        request = _fetch_of(parts, asked, self._client.options, self._rack_id)
        # The reader may be busy for long while the answer waits for it: time counts once it waits.
        self._connections.send(node, ApiKey.FETCH, request, coming.end, timeout_ms=INT_MAX)
        return coming

    def _part(self, asked: ReadRange) -> ReadPart:
        rest = int((self._end - asked.offset) * self._bytes_per_offset * _SPARE)
        options_max = self._client.options.max_partition_fetch_bytes
        most = min(max(rest, _BYTES_MIN), self._bytes_max, options_max)
        return ReadPart(asked.offset, most, self._leader_epoch)

    def _answer_of(self, coming: _Coming, deadline_ms: int) -> Any:
        """Wait for the response to a Fetch request, up to request.timeout.ms, and return it.

        The time counts from the call on, not from when the request was sent.
        """
        start_ms = self._monotonic_ms()
        timeout_ms = min(self._client.options.request_timeout_ms, max(deadline_ms - start_ms, 0))
        until_ms = start_ms + timeout_ms
        while not coming.is_here:
            left_ms = until_ms - self._monotonic_ms()
            if left_ms <= 0:
                reason = f"it did not answer a fetch within {timeout_ms} ms"
                self._connections.disconnect(coming.node, reason)
                raise RequestTimedOutError(f"{coming.node}: {reason}")
            self._connections.poll(left_ms)
        if coming.error is not None:
            raise coming.error
        return coming.answer

    def _part_of(self, coming: _Coming, answer: Any) -> Any:
        """Return the partition's part of a Fetch response; None if throttling left the response empty."""
        if answer.error_code != ErrorCode.NONE:
            raise _fetch_error(
                answer.error_code, f"asked {coming.node} for {self._topic_partition}"
            )
        if not answer.responses and answer.throttle_time_ms > 0:
            return None
        topic, partition = self._topic_partition
        for one in answer.responses:
            for part in one.partitions:
                if one.topic == topic and part.partition_index == partition:
                    return part
        raise ProtocolError(
            f"response of {coming.node}",
            "responses.partitions",
            -1,
            str(self._topic_partition),
            "none",
        )

    # Errors, and answers without records.

    def _ensure_no_error(self, part: Any, coming: _Coming) -> None:
        if part.diverging_epoch is not None:
            raise self._truncated(coming.asked.offset, part.diverging_epoch.end_offset)
        if part.error_code != ErrorCode.NONE:
            raise _fetch_error(part.error_code, f"asked {coming.node} for {self._topic_partition}")

    def _move_to(self, replica: int) -> None:
        """Fetch from the leader's preferred read replica (KIP-392), for metadata.max.age.ms.

        For a second at least, so that the replica is asked at all.
        """
        nodes = self._client.metadata([self._topic_partition.topic]).nodes
        if replica not in nodes:
            raise _TransientError(
                DisconnectedError(f"node {replica}", "it is the nearest replica, and not known")
            )
        self._replica = nodes[replica]
        believed_ms = max(self._client.options.metadata_max_age_ms, _BELIEVED_MIN_MS)
        self._replica_until_ms = self._monotonic_ms() + believed_ms

    def _leader_decides(self) -> None:
        """Ask the leader for the next batches, as one that does not name a replica again."""
        self._replica = None
        self._rack_id = ""

    def _out_of_range(self, coming: _Coming) -> None:
        """Handle OFFSET_OUT_OF_RANGE: retry at the leader, or raise if its log lacks the offset."""
        offset = coming.asked.offset
        if coming.node == self._replica:
            self._leader_decides()
            return
        edges = self._leaders_edges()
        if edges.log_start_offset <= offset <= edges.high_watermark:
            raise _TransientError(
                error_of(
                    ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} of {self._topic_partition}"
                )
            )
        raise OffsetOutOfRangeError(
            str(self._topic_partition),
            offset,
            edges.log_start_offset,
            edges.end_offset(coming.asked.isolation),
        )

    def _without_records(
        self, asked: ReadRange, edges: LogOffsets, node: Node
    ) -> LogOffsets | None:
        """Return the log's offsets if nothing comes up to the range's end; None to ask the leader instead.

        They are below that end if the leader's log ends before it.

        Raises:
            _UnprovedError: nothing proves the answer, so it is to be asked again.
        """
        if node == self._replica:
            self._leader_decides()
            return None
        if edges.end_offset(asked.isolation) < self._end:
            # A new leader may not know yet how far the log is committed.
            edges = self._leaders_edges()
            if edges.end_offset(asked.isolation) < self._end:
                return edges
        why = self._empty_answers.why_no_proof(asked.offset)
        if why:
            end = edges.end_offset(asked.isolation)
            raise _UnprovedError(asked.offset, self._end, node, end, why)
        return edges

    def _leaders_edges(self) -> LogOffsets:
        return offsets.edges(self._client, [self._topic_partition])[self._topic_partition]

    def _ensure_not_truncated(self, offset: int) -> None:
        """Raise OffsetOutOfRangeError if the leader's log lacks records already read before `offset`.

        Source: OffsetFetcherUtils, SubscriptionState.maybeCompleteValidation.
        """
        try:
            found = self._end_of_epoch()
        except UnsupportedVersionError:
            return  # The broker is old; Kafka's consumer does not check then either.
        if found < offset:
            raise self._truncated(offset, found)

    def _end_of_epoch(self) -> int:
        """Return the leader's end offset of the last read batch's epoch; -1 if it has no such epoch."""
        topic, partition = self._topic_partition
        wanted = OffsetForLeaderEpochRequest.OffsetForLeaderTopic

        def build(_node: Node, _partitions: list[TopicPartition]) -> Any:
            one = wanted.OffsetForLeaderPartition(
                partition=partition,
                current_leader_epoch=offsets.leader_epoch(self._client, self._topic_partition),
                leader_epoch=self._batch_epoch,
            )
            return OffsetForLeaderEpochRequest(
                replica_id=_CONSUMER, topics=[wanted(topic=topic, partitions=[one])]
            )

        def results(answer: Any) -> dict[TopicPartition, int | KBatchError]:
            return {
                TopicPartition(one.topic, part.partition): part.end_offset
                if part.error_code == ErrorCode.NONE
                else error_of(part.error_code, f"asked for the epochs of {self._topic_partition}")
                for one in answer.topics
                for part in one.partitions
            }

        found: dict[TopicPartition, int] = self._client.request_leaders(
            ApiKey.OFFSET_FOR_LEADER_EPOCH, [self._topic_partition], build, results
        )
        return found[self._topic_partition]

    def _truncated(self, offset: int, end_offset: int) -> OffsetOutOfRangeError:
        self._batch_epoch = NO_LEADER_EPOCH  # a reader that goes on reads what is there now
        edges = self._leaders_edges()
        where = f" at offset {end_offset}" if end_offset >= 0 else ""
        return OffsetOutOfRangeError(
            str(self._topic_partition),
            offset,
            edges.log_start_offset,
            edges.high_watermark,
            why=f"the log was truncated{where} when another broker became its leader, so records before "
            f"offset {offset} that were read are not in it",
        )

    def _forget(self) -> None:
        """Drop the request in flight and the read replica, and refresh the metadata, after an error."""
        self._coming = None
        self._replica = None
        self._client.invalidate()

    def _pause(self, attempts: int, deadline_ms: int) -> None:
        until_ms = min(deadline_ms, self._monotonic_ms() + self._backoff.pause_ms(attempts))
        while (left_ms := until_ms - self._monotonic_ms()) > 0:
            self._connections.poll(left_ms)

    def _ensure_time_left(self, offset: int, deadline_ms: int, why: KBatchError | None) -> None:
        if self._monotonic_ms() < deadline_ms:
            return
        raise RequestTimedOutError(
            f"{self._topic_partition} of {self._client.options} could not be read from offset {offset} "
            f"on within {self._timeout_ms} ms: {why or 'no records came'}"
        )


class SeveralFetcher:
    """Fetcher of the record batches in ranges of several partitions, which are read one after the other.

    A `Fetcher`. With the first fetch, each leader is asked once for the starts of all its ranges. What does not
    come so is asked for when it is read: partitions for which an answer has no room, or has an error, and those
    whose leader does not answer. Not thread-safe.
    """

    def __init__(
        self,
        client: Client,
        wanted: Iterable[OffsetRange],
        *,
        timeout_ms: int,
        ensure_same: Callable[[str], None],
    ) -> None:
        """Set up to fetch ranges of different partitions; arguments are those of `PartitionFetcher`.

        `ensure_same` takes a topic, and is called before the first records of a range are returned.
        """
        self._client, self._timeout_ms, self._has_asked = client, timeout_ms, False
        self._ensure_same = ensure_same
        self._fetchers = {
            one.topic_partition: PartitionFetcher(client, one, timeout_ms=timeout_ms)
            for one in wanted
        }

    def fetch(
        self, topic_partition: TopicPartition, asked: ReadRange
    ) -> tuple[LogRead, LogOffsets]:
        """Return batches of a range from the asked offset on; raises as `PartitionFetcher.fetch` does."""
        if not self._has_asked:
            self._has_asked = True
            # A topic that is gone is the error of its own ranges.
            with contextlib.suppress(UnknownTopicOrPartitionError):
                self._ask_for_starts(asked)
        self._ensure_same(topic_partition.topic)
        return self._fetchers[topic_partition].fetch(topic_partition, asked)

    def _ask_for_starts(self, asked: ReadRange) -> None:
        def build(_node: Node, partitions: list[TopicPartition]) -> Any:
            parts = {tp: self._fetchers[tp].first_part(asked) for tp in partitions}
            # No rack: a leader that names the nearest replica sends no records.
            return _fetch_of(parts, asked, self._client.options, "")

        answers = self._client.ask_leaders(ApiKey.FETCH, self._fetchers, build, self._timeout_ms)
        for node, answer in answers.items():
            told = {
                TopicPartition(topic.topic, part.partition_index): part
                for topic in answer.responses
                for part in topic.partitions
            }
            for tp in told.keys() & self._fetchers.keys():
                self._fetchers[tp].take_first(told[tp], node, asked)


def _fetch_of(
    parts: Mapping[TopicPartition, ReadPart],
    asked: ReadRange,
    options: ClusterOptions,
    rack_id: str,
) -> Any:
    return fetch_request(
        parts,
        max_wait_ms=options.fetch_max_wait_ms,
        min_bytes=options.fetch_min_bytes,
        max_bytes=options.fetch_max_bytes,
        isolation_level=offsets.isolation_number(asked.isolation),
        rack_id=rack_id,
    )


class _EmptyAnswers:
    """The answers without records to a range's fetches, and what proves that there are none up to its end.

    The rule, for everything that reads a real cluster: reads, streams, `kbatch consume`, mirrors.
    One answer without records proves nothing, though it has no error and the true high watermark.
    Brokers give it while records are there: remote storage is slow or over its quota, a new leader
    does not know yet where in its files the high watermark lies, another implementation has no time
    left. Taken for the end of the range, it would lose records.

        empty answer                                     then
        its log ends before the range does               the leader's ends are looked up, which decide
        a later batch follows                            there is nothing: proved
        compaction removed all to the end of the log     there is nothing: proved
        else                                             asked again with pauses, as after a retriable error; in
                                                         the end RequestTimedOutError. It is never the end

    A later batch is the usual proof, and is in most answers already: a broker skips gaps, and
    returns markers of transactions and batches that compaction left without records. A read of
    committed records sees nothing from the last stable offset on. So the leader is asked for what
    follows regardless of transactions.

    At the very end of a log there is no later batch. Kafka keeps the last batch that it compacts,
    since 4.0; earlier releases removed it, and so may others. Compaction counts as the reason only
    if all of this holds:

        - cleanup.policy of the topic has `compact`
        - the record with the largest time, which is looked up in another way than records are read, lies before
        - the offset is in the leader's own files; those in remote storage may be slow to come
        - the leader has given this answer and no other for some seconds

    A broker that is too old for one of the questions gives the offset of its first record, which
    contradicts nothing.
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
            epoch = offsets.leader_epoch(self._client, self._topic_partition)
            return fetch_request(
                {self._topic_partition: ReadPart(offset, _PROBE_BYTES, epoch)},
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


class _TransientError(Exception):
    """A transient error in a Fetch response, after which the fetch is retried."""

    def __init__(self, cause: KBatchError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class _UnprovedError(_TransientError):
    """An answer without records that nothing proves."""

    def __init__(self, offset: int, end: int, node: Node, log_end: int, why: str) -> None:
        super().__init__(
            RetriableError(
                f"{node} answers without records and without an error, though its log goes on to offset "
                f"{log_end} and batches from {offset} to {end} were expected; {why}"
            )
        )


def _fetch_error(code: int, text: str) -> Exception:
    """Return the exception for a Fetch error code: a `_TransientError` to retry, or one for `fetch` to raise.

    As Kafka's consumers do, it goes on after an unknown error, and not after a batch that the broker
    finds damaged on its disk, though producers may send one again.
    """
    error = error_of(code, text)
    if code == ErrorCode.CORRUPT_MESSAGE:
        return ApiError(code, ErrorCode.CORRUPT_MESSAGE.name, text)
    is_transient = code == ErrorCode.UNKNOWN_SERVER_ERROR or isinstance(error, RETRIABLE)
    return _TransientError(error) if is_transient else error


def _edges(part: Any) -> LogOffsets:
    """Return the log start offset, high watermark and last stable offset that a Fetch response has.

    The last stable offset is there only for READ_COMMITTED; otherwise it is the high watermark.
    """
    end, stable = part.high_watermark, part.last_stable_offset
    return LogOffsets(max(part.log_start_offset, 0), end, stable if stable >= 0 else end, end)


def _whole_batches(
    data: memoryview, offset: int, end: int, path: str
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the complete batches of a Fetch response up to `end`, without an incomplete last one.

    Nothing after `end` is looked at, so that a range can end before a damaged batch.

    Raises:
        CorruptRecordError: impossible sizes, magic bytes or offsets; or none is whole, or none reaches `offset`.
    """
    at_least = 0
    try:
        for at, header in walk(data, 0, whole_size(data) or len(data)):
            if header.base_offset < at_least:
                raise CorruptRecordError(
                    "base offset", position=at, expected=f"{at_least} or more",
                    found=header.base_offset,
                )  # fmt: skip
            at_least = header.next_offset
            yield at, header
            if at_least >= max(end, offset + 1):
                break
        if at_least <= offset:
            raise CorruptRecordError(
                "last offset", position=0, expected=f"{offset} or more", found=at_least - 1
            )
    except CorruptRecordError as error:
        raise error.at(path, 0) from None


def _starts_at(records: Any) -> int:
    """Return the first offset that fetched batches begin with; -1 if they do not tell."""
    data = memoryview(records or b"")
    for _, header in walk(data, 0, whole_size(data)):
        # The wrapper of an older format names its last offset only.
        return header.base_offset if header.magic == MAGIC else -1
    return -1
