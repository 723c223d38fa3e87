"""Fetches of one range: ahead of the reader, from whichever broker has it, in spite of transient errors."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest

from spark_kbatch.clock import monotonic_ms
from spark_kbatch.consumer import reading
from spark_kbatch.consumer.planning import DataLoss
from spark_kbatch.errors import (
    ApiError,
    CorruptRecordError,
    OffsetOutOfRangeError,
    ProtocolError,
    RequestTimedOutError,
    RetriableError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import (
    LATEST,
    AbortedTransaction,
    IsolationLevel,
    LogOffsets,
    OffsetAndTimestamp,
    OffsetRange,
    ReadRange,
)
from spark_kbatch.options.read import Patience
from spark_kbatch.record.header import LogRead
from spark_kbatch.remote.client import Client, close_idle_clients
from spark_kbatch.remote.fetcher import PartitionFetcher
from spark_kbatch.remote.offsets import edges, list_offsets
from spark_kbatch.remote.source import RemoteSource
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import SUPPORTED, ApiKey, FetchResponse, Versions
from tests.support import builders
from tests.support.log_histories import data_batch, marker_batch
from tests.support.scripted_cluster import EVENTS_0, Fetch, ScriptedCluster, answer_of, diverging

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
# Five batches of two records, offsets 0 to 9.
BATCHES = [data_batch(base_offset=2 * n, n=2) for n in range(5)]


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(BATCHES) as cluster:
        yield cluster


class Reader:
    """A fetcher, and a client of its own."""

    def __init__(
        self, cluster: ScriptedCluster, end: int = 10, *, timeout_ms: int = 10_000, **options: str
    ) -> None:
        self.client = Client(cluster.options(retry_backoff_ms="1", **options))
        self.passed_ms = 0
        self.fetcher = PartitionFetcher(
            self.client,
            OffsetRange(EVENTS_0, 0, end),
            timeout_ms=timeout_ms,
            monotonic_ms=lambda: monotonic_ms() + self.passed_ms,
        )

    def fetch(
        self, offset: int, isolation: IsolationLevel = COMMITTED
    ) -> tuple[LogRead, LogOffsets]:
        return self.fetcher.fetch(EVENTS_0, ReadRange(offset, 1, isolation))

    def offsets(self, start: int, end: int) -> list[int]:
        """Return the offsets that a read of a range yields."""
        wanted = OffsetRange(EVENTS_0, start, end)
        rows = reading.read_range(self.fetcher, wanted, ["offset"])
        return [offset for one in rows for offset in one.column("offset").to_pylist()]

    def pass_time_with_each_fetch(self, cluster: ScriptedCluster, ms: int) -> None:
        """Let time pass with each fetch, so that a read ends after as many whatever stalls it."""
        answer = cluster.on_fetch

        def on_fetch(fetch: Fetch) -> Any:
            self.passed_ms += ms
            return answer(fetch)

        cluster.on_fetch = on_fetch

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.client.close()


def once(answer: Any) -> Any:
    """Return a script that gives an answer to the first fetch alone."""
    answers = itertools.chain([answer], itertools.repeat(None))
    return lambda fetch: next(answers)


def test_next_request_is_out_before_the_last_answer_is_read(cluster: ScriptedCluster) -> None:
    with Reader(cluster) as reader:
        read, told = reader.fetch(0)
        cluster.wait_for_fetches(2)

    assert [header.base_offset for _, header in read.batches] == [0]
    assert told == LogOffsets(0, 10, 10, 10)
    assert [fetch.offset for fetch in cluster.fetches] == [0, 2]


def test_nothing_is_asked_for_after_the_end_of_a_range(cluster: ScriptedCluster) -> None:
    with Reader(cluster, end=5) as reader:
        found = reader.offsets(1, 5)
        reader.client.connections.poll(50)

    assert found == [1, 2, 3, 4]
    assert [fetch.offset for fetch in cluster.fetches] == [1, 2, 4]


def test_a_small_range_asks_for_few_bytes_and_a_large_one_for_all_that_it_may() -> None:
    large = [builders.batch(n=100, base_offset=100 * n, value_bytes=2000) for n in range(10)]
    with ScriptedCluster(large) as cluster:
        with Reader(cluster, end=100) as reader:
            reader.offsets(0, 100)
        with Reader(cluster, end=10**9, max_partition_fetch_bytes="3000000") as reader:
            reader.fetch(0)
            cluster.wait_for_fetches(3)

    asked = [fetch.max_bytes for fetch in cluster.fetches]
    assert asked[0] == 100 * 1024 * 1.25
    assert asked[1:] == [1 << 20, 3_000_000]


@pytest.mark.parametrize("version", range(4, 13))
def test_every_version_of_fetch_reads_the_same(version: int) -> None:
    offered = dict(SUPPORTED) | {ApiKey.FETCH: Versions(4, version)}
    with (
        ScriptedCluster(BATCHES, offered=offered) as cluster,
        Reader(cluster, client_rack="a-rack") as reader,
    ):
        found = reader.offsets(0, 10)

    assert found == list(range(10))
    assert {fetch.version for fetch in cluster.fetches} == {version}
    assert {fetch.rack for fetch in cluster.fetches} == {"a-rack" if version >= 11 else ""}
    assert {fetch.leader_epoch for fetch in cluster.fetches} == {0 if version >= 9 else -1}


def test_an_answer_may_wait_for_its_reader_longer_than_a_request_may_take(
    cluster: ScriptedCluster,
) -> None:
    with Reader(cluster, request_timeout_ms="60") as reader:
        reader.fetch(0)
        cluster.wait_for_fetches(2)
        connections = cluster.accepted
        time.sleep(0.15)
        read, _ = reader.fetch(2)

    assert [header.base_offset for _, header in read.batches] == [2]
    assert [fetch.offset for fetch in cluster.fetches][:2] == [0, 2]
    assert cluster.accepted == connections


# Leaders.


def test_range_is_read_on_from_a_new_leader(cluster: ScriptedCluster) -> None:
    def move(fetch: Fetch) -> FetchResponse | None:
        if fetch.offset == 4 and fetch.node == 1:
            cluster.lead(2, epoch=1)
        return None

    cluster.on_fetch = move
    with Reader(cluster) as reader:
        assert reader.offsets(0, 10) == list(range(10))

    assert [fetch.node for fetch in cluster.fetches] == [1, 1, 1, 2, 2, 2]
    assert cluster.fetches[-1].leader_epoch == 1
    # Whether it still has the batches that were read.
    assert cluster.asked(ApiKey.OFFSET_FOR_LEADER_EPOCH) == 1


@pytest.mark.parametrize("end_of_epoch", [3, None], ids=["ends earlier", "unknown"])
def test_log_that_a_new_leader_truncated_is_noticed(
    cluster: ScriptedCluster, end_of_epoch: int | None
) -> None:
    with Reader(cluster) as reader:
        reader.fetch(0)
        cluster.wait_for_fetches(2)
        cluster.lead(2, epoch=2)  # while the answer to the second fetch is on its way
        cluster.epoch_ends = {} if end_of_epoch is None else {0: end_of_epoch}
        reader.fetch(2)

        with pytest.raises(OffsetOutOfRangeError, match="the log was truncated") as caught:
            reader.fetch(4)

    assert (caught.value.log_start_offset, caught.value.log_end_offset) == (0, 10)
    assert ("at offset 3" in str(caught.value)) == (end_of_epoch is not None)


def test_a_read_that_accepts_loss_goes_on_with_what_a_truncated_log_holds(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with Reader(cluster) as reader:

        def lead(fetch: Fetch) -> None:
            if fetch.offset == 4 and cluster.epoch == 0:
                cluster.epoch_ends[0] = 3  # one record was lost, and others came since
                cluster.lead(2, epoch=5)

        cluster.on_fetch = lead
        wanted, loss = OffsetRange(EVENTS_0, 0, 10), DataLoss(fail=False)
        rows = reading.read_range(reader.fetcher, wanted, ["offset"], on_loss=loss.offsets_gone)
        found = [offset for one in rows for offset in one.column("offset").to_pylist()]

    assert found == [*range(10)]
    assert "the log was truncated at offset 3" in caplog.text


def test_an_old_broker_that_cannot_be_asked_for_epochs_is_read_all_the_same() -> None:
    offered = {key: one for key, one in SUPPORTED.items() if key != ApiKey.OFFSET_FOR_LEADER_EPOCH}
    with ScriptedCluster(BATCHES, offered=offered) as cluster, Reader(cluster) as reader:

        def lead(fetch: Fetch) -> None:
            if fetch.offset == 4 and cluster.epoch == 0:
                cluster.lead(2, epoch=5)

        cluster.on_fetch = lead
        assert reader.offsets(0, 10) == [*range(10)]


def test_leader_that_moves_again_while_it_is_asked_for_its_epochs_is_asked_with_the_new_one(
    cluster: ScriptedCluster,
) -> None:
    def move() -> None:
        cluster.lead(1, epoch=2)

    cluster.on_end_of_epoch = move
    with Reader(cluster) as reader:
        reader.fetch(0)
        cluster.wait_for_fetches(2)
        cluster.lead(2, epoch=1)

        assert reader.offsets(2, 10) == list(range(2, 10))

    assert cluster.fetches[-1].leader_epoch == 2


def test_offsets_are_asked_for_with_the_epoch_of_the_leader_that_is_asked(
    cluster: ScriptedCluster,
) -> None:
    with Client(cluster.options(retry_backoff_ms="1")) as client:
        client.leader(EVENTS_0)
        cluster.lead(2, epoch=1)

        assert list_offsets(client, {EVENTS_0: LATEST}) == {EVENTS_0: OffsetAndTimestamp(10, -1)}


def test_leader_that_does_not_tell_where_a_log_ends_has_no_empty_log(
    cluster: ScriptedCluster,
) -> None:
    cluster.log_end = -1

    with (
        Client(cluster.options()) as client,
        pytest.raises(RetriableError, match=r"leader of events-0 .* does not tell where it ends"),
    ):
        edges(client, [EVENTS_0])


def test_broker_that_says_where_logs_differ_is_believed(cluster: ScriptedCluster) -> None:
    cluster.on_fetch = once(answer_of(diverging_epoch=diverging(0, 1)))

    with (
        Reader(cluster) as reader,
        pytest.raises(OffsetOutOfRangeError, match="truncated at offset 1"),
    ):
        reader.fetch(4)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param("hang up", id="lost connection"),
        pytest.param(answer_of(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER), id="leader moved"),
        pytest.param(answer_of(error_code=ErrorCode.FENCED_LEADER_EPOCH), id="old epoch"),
        pytest.param(answer_of(error_code=ErrorCode.UNKNOWN_LEADER_EPOCH), id="new epoch"),
        pytest.param(answer_of(error_code=ErrorCode.KAFKA_STORAGE_ERROR), id="disk failed"),
        pytest.param(answer_of(error_code=ErrorCode.OFFSET_NOT_AVAILABLE), id="offset not available"),
        pytest.param(answer_of(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), id="not known yet"),
        pytest.param(answer_of(error_code=ErrorCode.UNKNOWN_SERVER_ERROR), id="unknown error"),
        pytest.param(answer_of(error_code=ErrorCode.OFFSET_OUT_OF_RANGE), id="range that is not so"),
        pytest.param(FetchResponse(throttle_time_ms=30), id="throttled"),
        pytest.param(answer_of(high_watermark=2, last_stable_offset=2), id="watermark lags"),
        pytest.param(FetchResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR), id="whole request"),
    ],
)  # fmt: skip
def test_what_may_pass_is_tried_again(cluster: ScriptedCluster, answer: Any) -> None:
    cluster.on_fetch = once(answer)

    with Reader(cluster) as reader:
        assert reader.offsets(2, 10) == list(range(2, 10))

    assert [fetch.offset for fetch in cluster.fetches] == [2, 2, 4, 6, 8]


def test_throttled_client_waits_as_long_as_it_is_told(cluster: ScriptedCluster) -> None:
    cluster.on_fetch = once(FetchResponse(throttle_time_ms=120))
    started = time.monotonic()

    with Reader(cluster) as reader:
        reader.fetch(0)

    assert time.monotonic() - started >= 0.12


def test_broker_that_throttles_for_days_is_named_with_the_time(cluster: ScriptedCluster) -> None:
    cluster.on_fetch = lambda _: FetchResponse(throttle_time_ms=2**31 - 1)

    with Reader(cluster, timeout_ms=300) as reader:
        with pytest.raises(RequestTimedOutError, match=r"throttled this client, for 2,147,48\d s"):
            reader.fetch(0)


def test_broker_that_does_not_answer_is_asked_again_over_another_connection(
    cluster: ScriptedCluster,
) -> None:
    answers = itertools.count()
    cluster.on_fetch = lambda fetch: time.sleep(0.3) if next(answers) == 0 else None

    with Reader(cluster, request_timeout_ms="60") as reader:
        connections = cluster.accepted
        read, _ = reader.fetch(0)

    assert [header.base_offset for _, header in read.batches] == [0]
    assert cluster.accepted > connections


def test_what_does_not_pass_in_time_is_an_error_that_says_why(cluster: ScriptedCluster) -> None:
    cluster.on_fetch = lambda fetch: cluster.error(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    with (
        Reader(cluster, timeout_ms=200) as reader,
        pytest.raises(
            RequestTimedOutError, match=r"events-0 of .* from offset 4 on within 200 ms"
        ) as caught,
    ):
        reader.fetch(4)

    assert "NOT_LEADER_OR_FOLLOWER" in str(caught.value)
    assert len(cluster.fetches) > 1


def test_a_read_waits_as_long_as_its_option_says(cluster: ScriptedCluster) -> None:
    cluster.on_fetch = lambda fetch: cluster.error(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    source = RemoteSource(cluster.options(), Patience(poll_timeout_ms=150))

    with pytest.raises(RequestTimedOutError, match="from offset 0 on within 150 ms"):
        source.fetch(EVENTS_0, ReadRange(0, 1))

    close_idle_clients()


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (answer_of(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED), ApiError, "TOPIC_AUTHORIZATION_FAILED"),
        (answer_of(error_code=ErrorCode.CORRUPT_MESSAGE), ApiError, "CORRUPT_MESSAGE"),
        (answer_of(error_code=999), ApiError, "999"),
        (FetchResponse(), ProtocolError, "events-0"),
    ],
    ids=["not authorized", "corrupt on the broker's disk", "unknown code", "another partition"],
)  # fmt: skip
def test_what_does_not_pass_is_raised_at_once(
    cluster: ScriptedCluster, answer: FetchResponse, error: type[Exception], said: str
) -> None:
    cluster.on_fetch = lambda fetch: answer

    with Reader(cluster) as reader, pytest.raises(error, match=said):
        reader.fetch(0)

    assert len(cluster.fetches) == 1


def test_what_was_read_of_another_topic_is_refused_when_the_range_is_complete(
    cluster: ScriptedCluster,
) -> None:
    def refuse() -> None:
        raise UnknownTopicOrPartitionError("another topic")

    with Client(cluster.options()) as client:
        wanted = OffsetRange(EVENTS_0, 0, 4)
        fetcher = PartitionFetcher(client, wanted, timeout_ms=1000, ensure_same=refuse)
        fetcher.fetch(EVENTS_0, ReadRange(0, 1))

        with pytest.raises(UnknownTopicOrPartitionError, match="another topic"):
            fetcher.fetch(EVENTS_0, ReadRange(2, 1))


# Offsets out of range.


@pytest.mark.parametrize("offset", [1, 11])
def test_offset_that_the_leader_does_not_hold_is_an_error(
    cluster: ScriptedCluster, offset: int
) -> None:
    cluster.log_start = 4

    with Reader(cluster, end=20) as reader, pytest.raises(OffsetOutOfRangeError) as caught:
        reader.fetch(offset)

    error = caught.value
    assert (error.offset, error.log_start_offset, error.log_end_offset) == (offset, 4, 10)


def test_range_that_ends_after_the_log_is_told_once_the_leader_says_so(
    cluster: ScriptedCluster,
) -> None:
    with Reader(cluster, end=12) as reader:
        read, told = reader.fetch(10)

    assert read.batches == []
    assert told == LogOffsets(0, 10, 10, 10)


# Answers without records.


def empty(high_watermark: int = 10) -> FetchResponse:
    return answer_of(high_watermark=high_watermark, last_stable_offset=high_watermark)


@pytest.mark.parametrize("nth", range(1, 6))
def test_one_answer_without_records_ends_no_range(cluster: ScriptedCluster, nth: int) -> None:
    calls = itertools.count(1)
    cluster.on_fetch = lambda fetch: empty() if next(calls) == nth else None

    with Reader(cluster) as reader:
        assert reader.offsets(0, 10) == list(range(10))


def test_answers_without_records_end_in_an_error_that_says_what_was_expected(
    cluster: ScriptedCluster,
) -> None:
    cluster.on_fetch = lambda fetch: empty() if fetch.offset >= 4 else None

    said = (
        r"events-0 of 127.* from offset 4 on within 60000 ms: 127.* without records .* offset 10 and "
        r"batches from 4 to 10 were expected; cleanup.policy is delete"
    )
    with Reader(cluster, timeout_ms=60_000) as reader:
        reader.pass_time_with_each_fetch(cluster, 6000)
        with pytest.raises(RequestTimedOutError, match=said):
            reader.offsets(0, 10)


def test_a_later_batch_proves_that_nothing_lies_before_it(cluster: ScriptedCluster) -> None:
    del cluster.batches[3]

    with Reader(cluster, end=7) as reader:
        assert reader.offsets(2, 7) == [2, 3, 4, 5]

    assert [fetch.offset for fetch in cluster.fetches] == [2, 4, 6]


def test_a_batch_of_an_open_transaction_proves_that_nothing_lies_before_it(
    cluster: ScriptedCluster,
) -> None:
    del cluster.batches[2:4]  # 4 to 7, of which no record is left; 8 is not committed
    cluster.last_stable = 8

    with Reader(cluster, end=8) as reader:
        assert reader.offsets(2, 8) == [2, 3]

    assert [(fetch.offset, fetch.isolation) for fetch in cluster.fetches] == [
        (2, 1), (4, 1), (4, 1), (4, 0),
    ]  # fmt: skip


def test_end_of_a_log_that_compaction_emptied_has_no_batches(cluster: ScriptedCluster) -> None:
    del cluster.batches[3:]
    cluster.cleanup_policy, cluster.largest_time_at = "compact", 5

    with Reader(cluster, timeout_ms=60_000) as reader:
        reader.pass_time_with_each_fetch(cluster, 2000)
        assert reader.offsets(2, 10) == [2, 3, 4, 5]

    repeated = [fetch for fetch in cluster.fetches if fetch.offset == 6]
    assert len(repeated) > 2


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"cleanup_policy": "delete"}, "cleanup.policy is delete"),
        ({"cleanup_policy": None}, "may not describe the topic's settings"),
        ({"largest_time_at": 7}, "the largest time has offset 7"),
        ({"local_start": 8}, "offsets below 8 are in remote storage"),
    ],
    ids=["not compacted", "settings hidden", "a record is there", "in remote storage"],
)
def test_end_of_a_log_is_not_taken_for_compacted_without_proof(
    cluster: ScriptedCluster, state: dict[str, Any], said: str
) -> None:
    del cluster.batches[3:]
    for name, value in {"cleanup_policy": "compact,delete", "largest_time_at": 5, **state}.items():
        setattr(cluster, name, value)

    with Reader(cluster, timeout_ms=60_000) as reader:
        reader.pass_time_with_each_fetch(cluster, 6000)
        with pytest.raises(RequestTimedOutError, match=said):
            reader.offsets(2, 10)


# The nearest replica.


class Nearest:
    """A leader, node 1, that sends clients of a rack to node 2."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self._cluster = cluster
        self.at_replica: Any = cluster.records

    def __call__(self, fetch: Fetch) -> FetchResponse | None:
        assert fetch.rack == "b"
        if fetch.node == 1:
            return answer_of(high_watermark=10, last_stable_offset=10, preferred_read_replica=2)
        found: FetchResponse | None = self.at_replica(fetch)
        return found


def test_client_reads_from_the_replica_that_the_leader_names(cluster: ScriptedCluster) -> None:
    cluster.on_fetch = Nearest(cluster)

    with Reader(cluster, client_rack="b") as reader:
        assert reader.offsets(0, 10) == list(range(10))

    assert [fetch.node for fetch in cluster.fetches] == [1, 2, 2, 2, 2, 2]


def test_leader_is_asked_again_when_its_word_is_old(cluster: ScriptedCluster) -> None:
    cluster.on_fetch = Nearest(cluster)

    with Reader(cluster, client_rack="b", metadata_max_age_ms="5000") as reader:
        reader.fetch(0)
        reader.passed_ms = 5000
        reader.fetch(2)
        reader.fetch(4)

    assert [fetch.node for fetch in cluster.fetches][:5] == [1, 2, 2, 1, 2]


@pytest.mark.parametrize(
    "at_replica",
    [
        pytest.param(answer_of(error_code=ErrorCode.OFFSET_OUT_OF_RANGE), id="out of range"),
        pytest.param(answer_of(high_watermark=0, last_stable_offset=0), id="lags"),
        pytest.param(answer_of(high_watermark=10, last_stable_offset=10), id="has no records"),
        pytest.param(answer_of(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER), id="no replica any more"),
        pytest.param("hang up", id="lost"),
    ],
)  # fmt: skip
def test_leader_decides_where_a_replica_cannot_answer(
    cluster: ScriptedCluster, at_replica: Any
) -> None:
    nearest, first = Nearest(cluster), once(at_replica)
    nearest.at_replica = lambda fetch: first(fetch) or cluster.records(fetch)

    def answers_whom_it_cannot_send_elsewhere(fetch: Fetch) -> FetchResponse | None:
        return nearest(fetch) if fetch.rack else None

    cluster.on_fetch = answers_whom_it_cannot_send_elsewhere
    with Reader(cluster, client_rack="b") as reader:
        assert reader.offsets(0, 10) == list(range(10))

    assert [fetch.node for fetch in cluster.fetches][:3] == [1, 2, 1]
    assert cluster.fetches[-1].node == 2  # which is asked again once records have come


# Bytes.


def test_incomplete_last_batch_is_left_out(cluster: ScriptedCluster) -> None:
    cut = BATCHES[0] + BATCHES[1] + BATCHES[2][:-1]
    cluster.on_fetch = once(answer_of(records=cut, high_watermark=10, last_stable_offset=10))

    with Reader(cluster) as reader:
        read, _ = reader.fetch(0)

    assert [header.base_offset for _, header in read.batches] == [0, 2]
    assert len(read.data) == len(BATCHES[0] + BATCHES[1])


@pytest.mark.parametrize(
    ("records", "said"),
    [
        (BATCHES[2][:60], "truncated"),
        (BATCHES[2][:-1], "batch length"),
        (BATCHES[3] + BATCHES[2], "base offset"),
        (BATCHES[0], "last offset"),
        (b"\7" * 100, "magic"),
    ],
    ids=["part of a header", "part of a batch", "going back", "before the offset", "no batch"],
)
def test_bytes_that_are_no_batches_are_an_error_that_says_where_they_came_from(
    cluster: ScriptedCluster, records: bytes, said: str
) -> None:
    cluster.on_fetch = once(answer_of(records=records, high_watermark=10, last_stable_offset=10))

    with Reader(cluster) as reader, pytest.raises(CorruptRecordError, match=said) as caught:
        reader.fetch(4)

    assert "events-0 at 127.0.0.1:" in caught.value.path
    assert caught.value.path.endswith("fetched from offset 4")


def test_a_range_can_end_before_a_damaged_batch(cluster: ScriptedCluster) -> None:
    damaged = b"".join(BATCHES[:2]) + b"\xff" * len(BATCHES[2])
    cluster.on_fetch = lambda fetch: answer_of(
        records=damaged, high_watermark=10, last_stable_offset=10
    )

    with Reader(cluster, end=4) as reader:
        assert reader.offsets(0, 4) == [0, 1, 2, 3]
    with Reader(cluster) as reader, pytest.raises(CorruptRecordError, match="events-0 at"):
        reader.offsets(0, 10)


def test_records_of_aborted_transactions_are_left_out_though_brokers_list_too_many() -> None:
    mine, other = 7, 8
    log = [
        data_batch(base_offset=0, n=2, producer_id=mine, transactional=True),
        data_batch(base_offset=2, n=2, producer_id=other, transactional=True),
        marker_batch(base_offset=4, producer_id=mine, abort=True),
        marker_batch(base_offset=5, producer_id=other, abort=False),
        data_batch(base_offset=6, n=2, producer_id=mine, transactional=True),
        marker_batch(base_offset=8, producer_id=mine, abort=False),
    ]
    with ScriptedCluster(log) as cluster:
        listed = [AbortedTransaction(mine, 20), AbortedTransaction(mine, 0)]

        def all_at_once(fetch: Fetch) -> FetchResponse:
            aborted = listed if fetch.isolation else None
            return cluster.records(fetch, records=b"".join(log), aborted_transactions=aborted)

        cluster.on_fetch = all_at_once
        with Reader(cluster, end=9) as reader:
            committed = reader.offsets(0, 9)
        with Reader(cluster, end=9) as reader:
            wanted = OffsetRange(EVENTS_0, 0, 9)
            rows = reading.read_range(reader.fetcher, wanted, ["offset"], UNCOMMITTED)
            uncommitted = [offset for one in rows for offset in one.column("offset").to_pylist()]

    assert committed == [2, 3, 6, 7]
    assert uncommitted == [0, 1, 2, 3, 6, 7]
