"""Several batches of a partition go into an embedded log together: in order, all or none, and once."""

from __future__ import annotations

import errno
import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_kbatch import Cluster
from spark_kbatch.clock import now_ms
from spark_kbatch.cluster.transports import LocalLog
from spark_kbatch.errors import (
    InvalidRecordError,
    KafkaStorageError,
    OutcomeUnknownError,
    ProducerClosedError,
    RecordTooLargeError,
)
from spark_kbatch.files import Buffer, Files
from spark_kbatch.log.producers.snapshot import snapshot_offsets
from spark_kbatch.log.state import STATE_FILE
from spark_kbatch.log.validator import accept
from spark_kbatch.model import CODECS, AppendOrigin, AppendResult, TopicPartition
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.producer import idempotence
from spark_kbatch.producer.producer import Producer
from spark_kbatch.record import compression
from spark_kbatch.record.header import unpack
from spark_kbatch.store.transport import Answer, SendRequest
from tests.support import builders
from tests.support.accumulators import bytes_in_use
from tests.support.faulty_transport import HeldTransport
from tests.support.store import producer_to, store_of
from tests.support.waiting import until

PLACE = TopicPartition("events", 0)
ROWS = 200
SOON = 30
VALUES = [b"%06d" % number * 10 for number in range(ROWS)]


class Unreliable:
    """A local log whose first requests meet their fates: "lost" answers, "unsent" requests."""

    def __init__(self, cluster: Cluster, *fates: str) -> None:
        self._log = LocalLog(store_of(cluster), flush=False)
        self._fates = list(fates)
        self.runs: list[int] = []  # batches of each partition in each request

    def send(self, request: SendRequest, on_answer: Callable[[Answer], None]) -> None:
        self.runs += Counter(one.topic_partition for one in request.batches).values()
        fate = self._fates.pop(0) if self._fates else "answered"
        if fate != "unsent":
            self._log.send(request, on_answer if fate == "answered" else lambda _: None)
        if fate != "answered":
            raise KafkaStorageError(f"the request is {fate}")


@contextmanager
def producing(
    cluster: Cluster, transport: Unreliable | None = None, **options: Any
) -> Iterator[tuple[Producer, Unreliable]]:
    transport = transport or Unreliable(cluster)
    defaults = {"batch_size": 300, "retry_backoff_ms": 1, "retry_backoff_max_ms": 2}
    with producer_to(cluster, transport, defaults | options, takes_runs=True) as producer:
        # A first batch, so that the log knows the producer.
        producer.send("events", b"first", partition=0).result(SOON)
        yield producer, transport


def a_log(cluster: Cluster) -> LocalLog:
    return LocalLog(store_of(cluster), flush=False)


@contextmanager
def opened(cluster: Cluster, transport: HeldTransport, **options: Any) -> Iterator[Producer]:
    """Open a producer whose log knows it; the first request is delivered."""
    defaults = {"batch_size": 300, "retry_backoff_ms": 1, "retry_backoff_max_ms": 2}
    with producer_to(cluster, transport, defaults | options, takes_runs=True) as producer:
        future = producer.send("events", b"first", partition=0)
        transport.request(0).deliver()
        future.result(SOON)
        yield producer


def delivered(transport: HeldTransport, number: int, *futures: Any) -> None:
    """Deliver every request from this number on, until all futures are done."""
    while not all(future.done() for future in futures):
        until(lambda at=number: transport.count > at or all(one.done() for one in futures))  # type: ignore[misc]
        if transport.count > number:
            transport.request(number).deliver()
            number += 1


def rows(partitions: int = 1) -> pa.Table:
    numbers = pa.array([number % partitions for number in range(ROWS)], pa.int32())
    return pa.table({"value": VALUES, "partition": numbers})


def values(cluster: Cluster, partition: int = 0) -> list[bytes | None]:
    return [r.value for r in builders.contents(cluster)[TopicPartition("events", partition)]]


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_table_is_written_in_runs_and_each_row_gets_its_offset(
    tmp_path: Path, partitions: int, idempotent: bool
) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"events": partitions})
    with producing(cluster, enable_idempotence=idempotent) as (producer, transport):
        found = producer.send_arrow("events", rows(partitions)).result(SOON).to_pydict()
        single = producer.send("events", b"last", partition=0).result(SOON)
    for partition in range(partitions):
        first = [b"first"] if partition == 0 else []
        last = [b"last"] if partition == 0 else []
        assert values(cluster, partition) == first + VALUES[partition::partitions] + last
        offsets = [found["offset"][row] for row in range(partition, ROWS, partitions)]
        assert offsets == list(range(len(first), len(first) + len(offsets)))
    assert single.offset == len(values(cluster)) - 1
    assert max(transport.runs) > 5
    assert sum(transport.runs) >= ROWS / 4


@pytest.mark.parametrize("fates", [["lost"], ["unsent", "lost", "lost"]], ids=" ".join)
def test_a_run_whose_answer_is_lost_is_written_once(tmp_path: Path, fates: list[str]) -> None:
    cluster = builders.a_cluster(tmp_path)
    with producing(cluster, Unreliable(cluster, "answered", *fates)) as (producer, transport):
        found = producer.send_arrow("events", rows()).result(SOON)
        second = producer.send_arrow("events", rows()).result(SOON)
    assert values(cluster) == [b"first", *VALUES, *VALUES]
    assert found.column("offset").to_pylist() == list(range(1, ROWS + 1))
    assert second.column("offset").to_pylist() == list(range(ROWS + 1, 2 * ROWS + 1))
    tried = transport.runs[1 : 2 + len(fates)]
    assert tried == [tried[0]] * len(tried)
    assert tried[0] > 5  # more than a log remembers of a producer


def test_a_run_gets_the_time_of_its_append_and_the_codec_of_its_topic(tmp_path: Path) -> None:
    config = TopicConfig(message_timestamp_type="LogAppendTime", compression_type="zstd")
    cluster = builders.a_cluster(tmp_path, config=config)
    table = rows().append_column("timestamp", pa.array([5] * ROWS))
    before = now_ms()
    with producing(cluster, compression_type="lz4") as (producer, transport):
        producer.send_arrow("events", table).result(SOON)
    assert max(transport.runs) > 5
    found = builders.contents(cluster)[PLACE]
    assert [record.value for record in found] == [b"first", *VALUES]
    assert all(before <= record.timestamp <= now_ms() for record in found[1:])
    log = store_of(cluster).manager.log(PLACE)
    headers = [header for _, header in log.batch_headers(0, 0, log.state().segment_size)]
    assert {header.codec for header in headers} == {CODECS["zstd"]}


def test_a_retried_run_keeps_its_order_without_sequences(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    transport = Unreliable(cluster, "answered", "unsent", "unsent")
    options = {"enable_idempotence": False, "max_in_flight_requests_per_connection": 1}
    with producing(cluster, transport, **options) as (producer, _):
        producer.send_arrow("events", rows()).result(SOON)
    assert values(cluster) == [b"first", *VALUES]


class Unknowing(Unreliable):
    """A log that has written a run, and does not know it."""

    def send(self, request: SendRequest, on_answer: Callable[[Answer], None]) -> None:
        is_run = len(request.batches) > 1
        super().send(request, (lambda _: None) if is_run else on_answer)
        if is_run:
            raise OutcomeUnknownError("outcome unknown", "no answer", 7, "id")


def test_a_run_of_which_no_one_knows_whether_it_was_written_is_not_sent_again(
    tmp_path: Path,
) -> None:
    cluster = builders.a_cluster(tmp_path)
    transport = Unknowing(cluster)
    options = {"enable_idempotence": False, "retries": 0}
    with producing(cluster, transport, **options) as (producer, _):
        with pytest.raises(OutcomeUnknownError):
            producer.send_arrow("events", rows()).result(SOON)
    written = Counter(values(cluster))
    assert max(written.values()) == 1
    assert max(transport.runs) > 5


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_batch_that_is_refused_does_not_take_its_run_with_it(
    tmp_path: Path, idempotent: bool
) -> None:
    cluster = builders.a_cluster(tmp_path, config=TopicConfig(max_message_bytes=400))
    table = pa.table({"value": [*VALUES[:100], b"large" * 200, *VALUES[100:]]})
    with producing(cluster, enable_idempotence=idempotent) as (producer, transport):
        future = producer.send_arrow("events", table)
        assert isinstance(future.exception(SOON), RecordTooLargeError)
        producer.send("events", b"last", partition=0).result(SOON)
    assert values(cluster) == [b"first", *VALUES, b"last"]
    assert max(transport.runs) > 5


@pytest.mark.parametrize("idempotent", [True, False])
def test_offsets_are_known_of_a_run_from_which_a_batch_was_refused(
    tmp_path: Path, idempotent: bool
) -> None:
    cluster = builders.a_cluster(tmp_path, config=TopicConfig(max_message_bytes=400))
    large = pa.table({"value": [b"a", b"large" * 200, b"b"]})
    transport, told = HeldTransport(a_log(cluster)), list[int]()
    with opened(cluster, transport, enable_idempotence=idempotent) as producer:
        future = producer.send("events", b"held", partition=0)
        held = transport.request(1)
        tables = [producer.send_arrow("events", one) for one in (rows(), large, rows())]
        tables[0].add_done_callback(lambda _: told.append(len(told)))
        held.deliver()
        delivered(transport, 2, *tables)
        assert future.result(SOON).offset == 1
        assert isinstance(tables[1].exception(SOON), RecordTooLargeError)
        found = [tables[n].result(SOON).column("offset").to_pylist() for n in (0, 2)]
    written = values(cluster)
    for offsets in found:
        assert [written[offset] for offset in offsets] == VALUES
    assert sorted(written) == sorted([b"first", b"held", b"a", b"b", *VALUES, *VALUES])
    assert told == [0]


def test_a_run_waits_for_what_is_in_flight_before_it(tmp_path: Path) -> None:
    """A log that takes a run forgets what it had of the producer: a batch could not be known again."""
    cluster = builders.a_cluster(tmp_path)
    transport = HeldTransport(a_log(cluster))
    with opened(cluster, transport) as producer:
        before = producer.send("events", b"before", partition=0)
        held = transport.request(1)
        held.write()
        table = producer.send_arrow("events", rows())
        time.sleep(0.05)
        assert transport.count == 2
        held.fail(KafkaStorageError("its answer is lost"))
        delivered(transport, 2, table, before)
        assert before.result(SOON).offset == 1
        assert table.result(SOON).column("offset").to_pylist() == list(range(2, ROWS + 2))
    assert values(cluster) == [b"first", b"before", *VALUES]


def test_a_run_that_may_be_written_fails_as_a_whole_if_its_retry_is_refused(
    tmp_path: Path,
) -> None:
    """Of its parts the log may know none."""
    cluster = builders.a_cluster(tmp_path)
    transport = HeldTransport(a_log(cluster))
    with opened(cluster, transport) as producer:
        table = producer.send_arrow("events", rows())
        transport.request(1).write()
        transport.request(1).fail(KafkaStorageError("its answer is lost"))
        transport.request(2).fail(InvalidRecordError("refused"))
        last = producer.send("events", b"last", partition=0)
        delivered(transport, 3, table, last)
        assert isinstance(table.exception(SOON), InvalidRecordError)
        assert last.result(SOON).offset == ROWS + 1
    assert values(cluster) == [b"first", *VALUES, b"last"]


def test_the_memory_of_a_refused_run_is_free_once_no_request_reads_it(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    transport = HeldTransport(a_log(cluster))
    options = {
        "enable_idempotence": False, "request_timeout_ms": 2000,
        "max_in_flight_requests_per_connection": 1,
    }  # fmt: skip
    with opened(cluster, transport, **options) as producer:
        table = producer.send_arrow("events", rows())
        late = transport.request(1)  # not answered in time
        transport.request(2).fail(InvalidRecordError("refused"))
        delivered(transport, 3, table)
        assert bytes_in_use(producer._pool) > 0
        assert late.is_unchanged
        late.fail(KafkaStorageError("late"))
        until(lambda: bytes_in_use(producer._pool) == 0)
    assert values(cluster) == [b"first", *VALUES]


@pytest.mark.parametrize("refused", [True, False])
def test_numbers_go_on_at_0_within_a_run(
    tmp_path: Path, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = builders.a_cluster(tmp_path)

    class NearTheEnd(idempotence._Partition):
        def __init__(self, producer_id: int, epoch: int) -> None:
            super().__init__(producer_id, epoch)
            self.next_sequence = 2**31 - 20

    monkeypatch.setattr(idempotence, "_Partition", NearTheEnd)
    transport = HeldTransport(a_log(cluster))
    with opened(cluster, transport) as producer:
        table = producer.send_arrow("events", rows())
        if refused:
            transport.request(1).fail(InvalidRecordError("refused"))
        else:
            transport.request(1).write()
            transport.request(1).fail(KafkaStorageError("its answer is lost"))
        delivered(transport, 2, table)
        assert table.result(SOON).column("offset").to_pylist() == list(range(1, ROWS + 1))
    assert values(cluster) == [b"first", *VALUES]


def test_a_batch_that_cannot_be_compressed_fails_its_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = builders.a_cluster(tmp_path)
    compress, calls = compression.compress, itertools.count()

    def fails_once(*args: Any, **named: Any) -> bytes:
        if next(calls) == 3:
            raise MemoryError("for a test")
        return compress(*args, **named)

    with producing(cluster, compression_type="lz4") as (producer, _):
        monkeypatch.setattr(compression, "compress", fails_once)
        assert isinstance(producer.send_arrow("events", rows()).exception(SOON), MemoryError)
        found = producer.send_arrow("events", rows()).result(SOON)
        until(lambda: bytes_in_use(producer._pool) == 0)
    written = values(cluster)
    assert [written[offset] for offset in found.column("offset").to_pylist()] == VALUES
    assert set(written) == {b"first", *VALUES}
    assert (
        max(Counter(written).values()) == 2
    )  # what was in other requests than the run that failed
    assert len(written) < 1 + 2 * ROWS


def test_a_run_takes_no_more_than_a_request_may_have(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    sizes: list[int] = []

    class Measured(Unreliable):
        def send(self, request: SendRequest, on_answer: Callable[[Answer], None]) -> None:
            sizes.append(sum(len(batch.data) for batch in request.batches))
            super().send(request, on_answer)

    with producing(cluster, Measured(cluster), max_request_size=1500) as (producer, transport):
        producer.send_arrow("events", rows()).result(SOON)
    assert 900 < max(sizes) <= 1500
    assert 1 < max(transport.runs) <= 5
    assert values(cluster) == [b"first", *VALUES]


@pytest.mark.parametrize("takes_runs", [True, False])
def test_metrics_count_batches_whether_they_are_sent_together_or_not(
    tmp_path: Path, takes_runs: bool
) -> None:
    cluster = builders.a_cluster(tmp_path)
    with producer_to(
        cluster, Unreliable(cluster), {"batch_size": 300}, takes_runs=takes_runs
    ) as producer:
        producer.send_arrow("events", rows()).result(SOON)
        metrics = producer.metrics()
        until(lambda: bytes_in_use(producer._pool) == 0)
    log = store_of(cluster).manager.log(PLACE)
    batches = list(log.batch_headers(0, 0, log.state().segment_size))
    assert metrics["record-send-total"] == ROWS
    assert metrics["batch-size-avg"] == pytest.approx(
        log.state().segment_size / len(batches), rel=0.01
    )


def test_a_forced_close_fails_runs_and_frees_their_memory_once(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    transport = HeldTransport(a_log(cluster))
    with opened(cluster, transport) as producer:
        tables = [producer.send_arrow("events", rows()) for _ in range(3)]
        in_flight = transport.request(1)
        producer.close(timeout=0)
        assert {type(one.exception(SOON)) for one in tables} == {ProducerClosedError}
        assert bytes_in_use(producer._pool) == 300 * len(in_flight.batches)
        in_flight.fail(KafkaStorageError("late"))


@pytest.mark.parametrize("settings", [{"segment_bytes": 1000}, {"segment_index_bytes": 40}])
@pytest.mark.parametrize("lost", [True, False])
def test_a_run_goes_on_in_the_next_segment(
    tmp_path: Path, settings: dict[str, int], lost: bool
) -> None:
    config = TopicConfig(**{"index_interval_bytes": 0} | settings)  # type: ignore[arg-type]
    cluster = builders.a_cluster(tmp_path, config=config)
    transport = Unreliable(cluster, "answered", *["lost"] * lost)
    with producing(cluster, transport) as (producer, _):
        producer.send_arrow("events", rows()).result(SOON)
        log = store_of(cluster).manager.log(PLACE)
        bases = log.segments.bases(log.state())
        assert len(bases) > 10
        # The producers are saved as of each segment, and a new process knows the last batch.
        assert set(bases[1:]) <= set(snapshot_offsets(log.files, log.directory))
        other = Cluster(str(tmp_path / "cluster"))
        producers = store_of(other).manager.log(PLACE).producers
        producers.read(log.state(), now_ms())
        (known,), (mine,) = producers.states.entries.values(), log.producers.states.entries.values()
        assert known.batches[-1] == mine.batches[-1]
    assert values(cluster) == [b"first", *VALUES]


class FailsToWriteTheState(Files):
    """Fails writes of a log's state, before or after they are done."""

    failures = 0

    def write_at(self, descriptor: int, position: int, data: Buffer) -> None:
        is_state = str(Path(f"/proc/self/fd/{descriptor}").readlink()).endswith(STATE_FILE)
        if is_state and self.failures:
            self.failures -= 1
            if self.failures % 2:
                super().write_at(descriptor, position, data)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().write_at(descriptor, position, data)


@pytest.mark.parametrize("segment_bytes", [1000, 1 << 20], ids=["rolled", "in one segment"])
def test_a_run_whose_state_may_not_be_written_is_written_once(
    tmp_path: Path, segment_bytes: int
) -> None:
    files = FailsToWriteTheState()
    config = TopicConfig(segment_bytes=segment_bytes)
    cluster = builders.a_cluster(tmp_path, files=files, config=config)
    with producing(cluster) as (producer, _):
        files.failures = 4
        found = producer.send_arrow("events", rows()).result(SOON)
    assert values(cluster) == [b"first", *VALUES]
    assert found.column("offset").to_pylist() == list(range(1, ROWS + 1))


def test_every_replica_gets_the_runs(tmp_path: Path) -> None:
    dirs = [str(tmp_path / f"disk{number}") for number in range(3)]
    cluster = Cluster(str(tmp_path / "cluster"), create=True, log_dirs=dirs)
    cluster.create_topic("events", partitions=1, replication_factor=3)
    with producing(cluster, acks="all") as (producer, transport):
        producer.send_arrow("events", rows()).result(SOON)
    assert max(transport.runs) > 5
    assert values(cluster) == [b"first", *VALUES]
    log_directory = store_of(cluster).metadata.cluster_file.log_directory
    logs = [log_directory(PLACE, node) / f"{0:020}.log" for node in range(3)]
    assert len({log.read_bytes() for log in logs}) == 1


class Unanswered:
    """A transport whose requests the test answers."""

    def __init__(self) -> None:
        self.requests: list[tuple[SendRequest, Callable[[Answer], None]]] = []

    def send(self, request: SendRequest, on_answer: Callable[[Answer], None]) -> None:
        self.requests.append((request, on_answer))

    def numbers(self, at: int) -> list[int]:
        """Return the sequence numbers of the batches of a request, once it is there."""
        until(lambda: len(self.requests) > at)
        return [unpack(one.data).base_sequence for one in self.requests[at][0].batches]

    def answer(self, at: int, error: Exception | None = None) -> None:
        result = AppendResult(-1, error=error) if error else AppendResult(100 + at)
        self.requests[at][1]({PLACE: result})


def test_no_batch_is_in_flight_between_two_of_a_run(tmp_path: Path) -> None:
    cluster, transport = builders.a_cluster(tmp_path), Unanswered()
    options = {"linger_ms": 0, "retry_backoff_ms": 1, "retry_backoff_max_ms": 2}
    with producer_to(cluster, transport, options, takes_runs=True) as producer:
        producer.send("events", b"0", partition=0)
        assert transport.numbers(0) == [0]
        transport.answer(0)
        for at in (1, 2, 3):
            producer.send("events", b"%d" % at, partition=0)
            assert transport.numbers(at) == [at]
        transport.answer(2, KafkaStorageError("for a test"))
        producer.send("events", b"4", partition=0)  # waits behind the one that is sent again
        transport.answer(1)
        assert transport.numbers(4) == [2]
        for at in (3, 4, 5):
            transport.numbers(at)
            transport.answer(at)


def test_a_batch_that_was_sent_alone_is_sent_again_alone(tmp_path: Path) -> None:
    """It may be in the log, which would know it again by itself, and not in a run."""
    cluster, transport = builders.a_cluster(tmp_path), Unanswered()
    options = {"linger_ms": 0, "retry_backoff_ms": 1, "retry_backoff_max_ms": 2}
    with producer_to(cluster, transport, options, takes_runs=True) as producer:
        producer.send("events", b"0", partition=0)
        assert transport.numbers(0) == [0]
        transport.answer(0)
        for at in (1, 2):
            producer.send("events", b"%d" % at, partition=0)
            assert transport.numbers(at) == [at]
        transport.answer(2, KafkaStorageError("for a test"))
        producer.send("events", b"3", partition=0)  # waits behind the one that is sent again
        transport.answer(1)
        assert transport.numbers(3) == [2]
        transport.answer(3)
        assert transport.numbers(4) == [3]
        transport.answer(4)


def test_a_run_is_taken_as_a_whole_or_refused() -> None:
    def taken(*batches: bytes, origin: AppendOrigin = AppendOrigin.CLIENT) -> int:
        found = accept(b"".join(batches), PLACE, TopicConfig(), origin, now_ms=now_ms())
        assert len(found.batch_headers) == len(batches)
        return found.header.records_count

    first = builders.idempotent_batch(producer_id=7, base_sequence=5, n=3)
    second = builders.idempotent_batch(producer_id=7, base_sequence=8, n=2)
    other = builders.idempotent_batch(producer_id=8, base_sequence=8, n=2)
    damaged = second[:-1] + bytes([second[-1] ^ 1])
    assert taken(first, second) == 5
    assert taken(builders.batch(n=1), builders.batch(n=2)) == 3
    for run, words in (
        ([first, first], r"goes on with .* \(7, 0, 5\); accepted: \(7, 0, 8\)"),
        ([first, other], r"\(8, 0, 8\); accepted: \(7, 0, 8\)"),
        ([first, builders.batch(n=1)], r"\(-1, -1, -1\); accepted: \(7, 0, 8\)"),
        ([first, second[:-1]], "but has"),
        ([first, second, b"\0"], "has 1 bytes"),
    ):
        with pytest.raises(InvalidRecordError, match=words):
            taken(*run)
    with pytest.raises(Exception, match="CRC-32C"):
        taken(first, damaged)
    with pytest.raises(InvalidRecordError, match="exactly one whole batch"):
        taken(first, second, origin=AppendOrigin.NETWORK)
