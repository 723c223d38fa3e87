"""Whatever happens to requests, futures tell the truth, and with idempotence each record is written once."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_kbatch
from spark_kbatch.clock import monotonic_ms, now_ms
from spark_kbatch.cluster.catalog import FolderCatalog
from spark_kbatch.cluster.transports import LocalLog
from spark_kbatch.errors import (
    CorruptRecordError,
    InvalidRecordError,
    KafkaStorageError,
    LockTimeoutError,
    NotEnoughReplicasError,
    OutOfOrderSequenceError,
    ProducerClosedError,
    ProducerForkedError,
    RecordTooLargeError,
    RequestTimedOutError,
)
from spark_kbatch.model import CODECS, TopicPartition
from spark_kbatch.options.producer import parse_producer_options
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.producer import batch, idempotence
from spark_kbatch.producer.accumulator import RecordAccumulator
from spark_kbatch.producer.futures import ArrowFuture, FailedFuture, RecordFuture
from spark_kbatch.producer.memory import BufferPool
from spark_kbatch.producer.producer import Producer
from spark_kbatch.record import compression
from spark_kbatch.store.transport import Answer, SendRequest, Transport
from tests.support import builders, draws, reference
from tests.support.accumulators import bytes_in_use
from tests.support.faults import run_child
from tests.support.faulty_transport import (
    FINAL,
    TRANSIENT,
    Fate,
    FaultyTransport,
    HeldTransport,
    drawn_fates,
)
from tests.support.store import producer_to, store_of
from tests.support.waiting import until

PARTITIONS = 2
RECORDS = 120
INT_MAX = 2**31 - 1

Future = RecordFuture | FailedFuture


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Overwrite released memory at once, so that a late read of it shows."""
    deallocate = BufferPool.deallocate_several

    def poisoned(pool: BufferPool, allocated: Iterable[tuple[int, int]]) -> None:
        allocated = list(allocated)
        for start, size_in_bytes in allocated:
            pool.memory[start : start + size_in_bytes] = b"\xdd" * size_in_bytes
        deallocate(pool, allocated)

    monkeypatch.setattr(BufferPool, "deallocate_several", poisoned)


@pytest.fixture(autouse=True)
def errors_are_answers(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail tests in which the sender logs an error of its own: it would log it and continue."""
    yield
    assert [one for one in caplog.get_records("call") if one.levelno >= logging.ERROR] == []


@pytest.fixture
def cluster(tmp_path: Path) -> spark_kbatch.Cluster:
    return a_cluster(tmp_path)


def a_cluster(tmp_path: Path, **config: Any) -> spark_kbatch.Cluster:
    cluster = spark_kbatch.open(str(tmp_path / "cluster"), create=True)
    cluster.create_topic("events", partitions=PARTITIONS, config=TopicConfig(**config))
    return cluster


def a_log(cluster: spark_kbatch.Cluster) -> LocalLog:
    return LocalLog(store_of(cluster), flush=False)


@contextmanager
def producing(
    cluster: spark_kbatch.Cluster,
    transport: Transport | None = None,
    *,
    clock_ms: Callable[[], int] = monotonic_ms,
    takes_runs: bool = False,
    **options: Any,
) -> Iterator[Producer]:
    """Open a producer; by default each record is a batch, and a request has one of a partition."""
    defaults = {"batch_size": 1, "retry_backoff_ms": 1, "retry_backoff_max_ms": 5}
    transport = transport or a_log(cluster)
    options = defaults | options
    producer = producer_to(
        cluster, transport, options, monotonic_ms=clock_ms, seed=1, takes_runs=takes_runs
    )
    try:
        yield producer
    finally:
        producer.close(timeout=0)


class Clock:
    """A clock that stands still until the test sets it, however slow the machine is."""

    def __init__(self) -> None:
        self.ms, self.reads = 0, 0

    def __call__(self) -> int:
        self.reads += 1
        return self.ms

    def set(self, ms: int, producer: Producer) -> None:
        """Set the time, and return when the sender has done what is due by then."""
        self.ms, self.reads = ms, 0
        deadline = time.monotonic() + 30
        while self.reads < 4:  # It reads the clock when it looks, and before it waits.
            assert time.monotonic() < deadline
            producer._wake_up()
            time.sleep(0.001)


def send(producer: Producer, *records: bytes) -> list[Future]:
    return [producer.send("events", value, partition=0) for value in records]


def values(cluster: spark_kbatch.Cluster, partition: int = 0) -> list[bytes]:
    found = builders.contents(cluster)[TopicPartition("events", partition)]
    return [record.value or b"" for record in found]


def headers(cluster: spark_kbatch.Cluster) -> list[reference.BatchHeader]:
    """Return the batch headers of partition 0."""
    directory = store_of(cluster).metadata.cluster_file.log_directory(TopicPartition("events", 0))
    data = (directory / f"{0:020}.log").read_bytes()
    return [reference.read_header(batch) for batch in reference.split_batches(data)]


def numbered(count: int) -> list[bytes]:
    return [b"%04d" % number for number in range(count)]


def offsets(futures: Sequence[Future]) -> list[int]:
    return [future.result(30).offset for future in futures]


def delivered_in_the_end(
    transport: HeldTransport,
    number: int,
    futures: list[Future],
    clock: Clock | None = None,
    producer: Producer | None = None,
) -> None:
    """Deliver every request from `number` on, until all futures are done; time goes on meanwhile."""
    deadline = time.monotonic() + 30
    while not all(future.done() for future in futures):
        assert time.monotonic() < deadline
        if clock is not None and producer is not None and transport.count <= number:
            clock.set(clock.ms + 10, producer)
        if transport.count > number:
            transport.request(number).deliver()
            number += 1
        time.sleep(0.001)


# Random faults.


def check_run(tmp_path: Path, seed: int, *, idempotent: bool) -> None:
    rng = random.Random(f"run {seed}")
    has_final, is_hurried = rng.random() < 0.5, rng.random() < 0.3
    cluster = a_cluster(tmp_path)
    fates = drawn_fates(seed, TRANSIENT + FINAL * has_final)
    transport = FaultyTransport(a_log(cluster), fates, seed=seed)
    sent: dict[tuple[int, bytes], Future] = {}
    tables: list[tuple[int, list[bytes], ArrowFuture]] = []
    takes_runs = rng.random() < 0.5
    with producing(
        cluster,
        transport,
        takes_runs=takes_runs,
        batch_size=rng.choice([100, 400, 1000]),
        # A request without an answer keeps its memory, of all its batches.
        buffer_memory=(1024 if takes_runs else 64) * 1024,
        compression_type=rng.choice(["none", "lz4"]),
        delivery_timeout_ms=60 if is_hurried else 30_000,
        enable_idempotence=idempotent,
        linger_ms=rng.choice([0, 2]),
        request_timeout_ms=30,
    ) as producer:
        for number in range(RECORDS):
            partition = rng.randrange(PARTITIONS)
            value = b"%04d" % number + b"v" * 50
            sent[partition, value] = producer.send("events", value, partition=partition)
            if takes_runs and rng.random() < 0.1:
                several = [b"%04d~%02d" % (number, row) + b"v" * 50 for row in range(30)]
                table = pa.table(
                    {"value": several, "partition": pa.array([partition] * 30, pa.int32())}
                )
                tables.append((partition, several, producer.send_arrow("events", table)))
            if rng.random() < 0.3:
                time.sleep(rng.uniform(0, 0.002))
        producer.close(timeout=60)
    transport.close()
    assert not transport.overwritten

    logs = [values(cluster, partition) for partition in range(PARTITIONS)]
    for (partition, value), future in sent.items():
        assert future.done()
        error = future.exception()
        if error is None:
            assert logs[partition][future.result().offset] == value
        elif value not in transport.doomed:
            assert is_hurried, f"failed for no good reason: {error!r}"
            transient = KafkaStorageError, OutOfOrderSequenceError, RequestTimedOutError
            assert isinstance(error, transient)
    for partition, several, table_future in tables:
        error = table_future.exception(0)
        if error is None:
            found = table_future.result(0).column("offset").to_pylist()
            assert [logs[partition][offset] for offset in found] == several
        elif transport.doomed.isdisjoint(several):
            assert is_hurried, f"failed for no good reason: {error!r}"
    of_tables = {(partition, value) for partition, several, _ in tables for value in several}
    for partition, log in enumerate(logs):
        assert {(partition, value) for value in log} <= {*sent, *of_tables}
        if idempotent:
            assert [value for value, count in Counter(log).items() if count > 1] == []
            assert log == sorted(log)


@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])
@pytest.mark.parametrize("seed", range(5))
def test_futures_tell_the_truth_whatever_becomes_of_requests(
    tmp_path: Path, seed: int, idempotent: bool
) -> None:
    check_run(tmp_path, seed, idempotent=idempotent)


@pytest.mark.slow
@pytest.mark.parametrize("seed", draws.seeds(60))
def test_futures_tell_the_truth_for_many_seeds(tmp_path: Path, seed: int) -> None:
    check_run(tmp_path, seed, idempotent=seed % 4 > 0)


@pytest.mark.parametrize("seed", range(3))
def test_one_request_in_flight_keeps_the_order_without_numbers(
    cluster: spark_kbatch.Cluster, seed: int
) -> None:
    transport = FaultyTransport(a_log(cluster), drawn_fates(seed, TRANSIENT), seed=seed)
    with producing(
        cluster,
        transport,
        enable_idempotence=False,
        max_in_flight_requests_per_connection=1,
        request_timeout_ms=20,
    ) as producer:
        futures = send(producer, *numbered(30))
        assert [future.exception(30) for future in futures] == [None] * 30
    transport.close()
    assert list(dict.fromkeys(values(cluster))) == numbered(30)


def test_with_one_request_in_flight_other_partitions_wait_too(
    cluster: spark_kbatch.Cluster,
) -> None:
    transport = HeldTransport(a_log(cluster))
    with producing(cluster, transport, max_in_flight_requests_per_connection=1) as producer:
        futures = send(producer, b"v")
        first = transport.request(0)
        futures.append(producer.send("events", b"v", partition=1))
        time.sleep(0.02)
        assert transport.count == 1
        first.deliver()
        delivered_in_the_end(transport, 1, futures)


def test_two_processes_take_no_batch_of_each_other_for_their_own(
    cluster: spark_kbatch.Cluster,
) -> None:
    """They use the same sequence numbers, but different producer ids."""
    reading, writing = os.pipe()

    def work(process: int) -> None:
        os.close(writing)
        os.read(reading, 1)
        with producing(cluster) as producer:
            for number in range(150):
                value = b"%d-%04d" % (process, number)
                for future in send(producer, value):
                    future.result(30)

    children = [run_child(lambda n=n: work(n)) for n in range(2)]
    os.close(reading)
    os.close(writing)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    found = values(cluster)
    assert len(found) == 300
    for process in (b"0-", b"1-"):
        assert [value[2:] for value in found if value.startswith(process)] == numbered(150)


# One fault at a time.


@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])
def test_records_of_a_batch_that_was_split_know_their_offsets(
    tmp_path: Path, idempotent: bool
) -> None:
    cluster = a_cluster(tmp_path, max_message_bytes=2000)
    rng = random.Random(1)
    records = [rng.randbytes(300) for _ in range(60)]
    with (
        ThreadPoolExecutor() as threads,
        producing(
            cluster,
            batch_size=2000,
            compression_type="zstd",
            enable_idempotence=idempotent,
            linger_ms=10_000,
        ) as producer,
    ):
        producer._accumulator._memory._ratios.reset("events", CODECS["zstd"], 0.1)
        futures = send(producer, *records[:40])
        rows = pa.table({"value": records[40:], "partition": pa.array([0] * 20, pa.int32())})
        of_table = producer.send_arrow("events", rows)
        waiting = threads.submit(offsets, futures)
        producer.flush(10)
        assert waiting.result() == list(range(40))
        assert of_table.result(30).column("offset").to_pylist() == list(range(40, 60))
    assert values(cluster) == records


@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])
def test_a_batch_that_cannot_be_split_fails_with_the_reason_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, idempotent: bool
) -> None:
    cluster = a_cluster(tmp_path, max_message_bytes=2000)

    def damaged(_: bytes) -> pa.RecordBatch:
        raise CorruptRecordError("a length")

    with producing(
        cluster,
        batch_size=2000,
        compression_type="zstd",
        enable_idempotence=idempotent,
        linger_ms=10_000,
    ) as producer:
        producer._accumulator._memory._ratios.reset("events", CODECS["zstd"], 0.1)
        futures = send(producer, *(random.Random(n).randbytes(300) for n in range(40)))
        other = producer.send("events", b"other", partition=1)
        monkeypatch.setattr(batch.codec, "decode", damaged)
        producer.flush(10)
        assert {type(future.exception(0)) for future in futures} == {CorruptRecordError}
        monkeypatch.undo()
        futures = send(producer, b"later")
        producer.flush(10)
        assert [other.result(0).offset, *offsets(futures)] == [0, 0]
        until(lambda: bytes_in_use(producer._pool) == 0)  # freed after the answer


def test_a_batch_that_may_be_in_the_log_is_not_split(cluster: spark_kbatch.Cluster) -> None:
    transport = HeldTransport(a_log(cluster))
    with producing(cluster, transport, batch_size=2000, linger_ms=10_000) as producer:
        futures = send(producer, b"a", b"b")
        flushed = threading.Thread(target=producer.flush, args=[10])
        flushed.start()
        first = transport.request(0)
        first.write()
        first.fail(KafkaStorageError("its answer is lost"))
        transport.request(1).split()
        flushed.join()
        later = send(producer, b"c")
        flushed = threading.Thread(target=producer.flush, args=[10])
        flushed.start()
        transport.request(2).deliver()
        flushed.join()

    assert {type(one.exception(0)) for one in futures} == {RecordTooLargeError}
    assert offsets(later) == [2]
    assert values(cluster) == [b"a", b"b", b"c"]


def test_a_batch_that_too_few_replicas_refused_may_be_split(
    cluster: spark_kbatch.Cluster,
) -> None:
    """It is not in the log; only an error after the append leaves that open."""
    transport = HeldTransport(a_log(cluster))
    with producing(cluster, transport, batch_size=2000, linger_ms=10_000) as producer:
        futures = send(producer, b"a", b"b")
        flushed = threading.Thread(target=producer.flush, args=[10])
        flushed.start()
        transport.request(0).fail(NotEnoughReplicasError("events-0", (0,), 2))
        transport.request(1).split()
        transport.request(2).deliver()
        transport.request(3).deliver()
        flushed.join()
    assert offsets(futures) == [0, 1]
    assert values(cluster) == [b"a", b"b"]


def test_closing_leaves_to_the_sender_the_memory_of_a_batch_that_it_is_compressing(
    cluster: spark_kbatch.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived, is_open, read = threading.Event(), threading.Event(), list[bytes]()

    def compress(_: int, data: memoryview, **__: Any) -> bytes:
        arrived.set()
        assert is_open.wait(20)
        read.append(bytes(data))
        return bytes(data)

    monkeypatch.setattr(compression, "compress", compress)
    with producing(cluster, batch_size=2000, compression_type="zstd") as producer:
        (future,) = send(producer, b"value")
        assert arrived.wait(10)
        producer.close(timeout=0)
        assert isinstance(future.exception(0), ProducerClosedError)
        is_open.set()
        until(lambda: bytes_in_use(producer._pool) == 0)
    assert b"value" in read[0]


@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])
def test_a_batch_that_cannot_be_closed_fails_with_the_reason_and_others_go_on(
    cluster: spark_kbatch.Cluster, monkeypatch: pytest.MonkeyPatch, idempotent: bool
) -> None:
    def no_memory(*_: Any, **__: Any) -> bytes:
        raise MemoryError("too little of it")

    with producing(
        cluster, batch_size=2000, compression_type="zstd", enable_idempotence=idempotent,
        linger_ms=10_000,
    ) as producer:  # fmt: skip
        futures = send(producer, *numbered(3))
        monkeypatch.setattr(compression, "compress", no_memory)
        producer.flush(10)
        assert {type(future.exception(0)) for future in futures} == {MemoryError}
        monkeypatch.undo()
        futures = send(producer, b"later")
        producer.flush(10)
        assert offsets(futures) == [0]
        until(lambda: bytes_in_use(producer._pool) == 0)  # freed after the answer


def test_batches_behind_one_that_is_refused_are_delivered(cluster: spark_kbatch.Cluster) -> None:
    transport = HeldTransport(a_log(cluster))
    with producing(cluster, transport) as producer:
        futures = send(producer, b"first")
        transport.request(0).deliver()
        futures += send(producer, b"refused", b"behind", b"further")
        transport.request(3)
        transport.request(1).fail(InvalidRecordError("refused"))
        futures += send(producer, b"later")
        delivered_in_the_end(transport, 2, futures)
        assert isinstance(futures[1].exception(), InvalidRecordError)
        del futures[1]
        assert offsets(futures) == [0, 1, 2, 3]
    assert values(cluster) == [b"first", b"behind", b"further", b"later"]
    found = [(header.producer_epoch, header.base_sequence) for header in headers(cluster)]
    assert found == [(0, 0), (1, 0), (1, 1), (1, 2)]


@pytest.mark.parametrize("then", ["refused", "overtaken"])
def test_a_new_epoch_waits_for_batches_whose_answers_were_lost(
    cluster: spark_kbatch.Cluster, then: str
) -> None:
    """The log has them under their old numbers."""
    transport, clock = HeldTransport(a_log(cluster)), Clock()
    with producing(cluster, transport, clock_ms=clock, request_timeout_ms=300) as producer:
        futures = send(producer, b"first")
        transport.request(0).deliver()
        futures += send(producer, b"unanswered", b"second", b"third")
        third = transport.request(3)
        transport.request(1).write()
        if then == "refused":
            transport.request(2).fail(InvalidRecordError("refused"))
            third.deliver()
        else:
            refusal = third.write()
            transport.request(2).deliver()
            third.answer(refusal)
        delivered_in_the_end(transport, 4, futures, clock, producer)
    expected = [b"first", b"unanswered", b"second", b"third"]
    if then == "refused":
        del expected[2], futures[2]
    assert values(cluster) == expected
    assert offsets(futures) == list(range(len(expected)))


def test_a_first_batch_that_is_retried_is_not_overtaken(cluster: spark_kbatch.Cluster) -> None:
    """A log accepts any number from a producer that it does not know."""
    transport = FaultyTransport(a_log(cluster), [Fate.FAILED_LATE])
    with producing(cluster, transport, request_timeout_ms=200) as producer:
        assert offsets(send(producer, *numbered(5))) == list(range(5))
    assert values(cluster) == numbered(5)


def test_a_batch_whose_answer_was_lost_is_remembered_when_it_is_retried(
    cluster: spark_kbatch.Cluster,
) -> None:
    """A log remembers the last five."""
    transport = FaultyTransport(a_log(cluster), [Fate.DELIVERED, Fate.UNANSWERED])
    with producing(cluster, transport, request_timeout_ms=50) as producer:
        assert offsets(send(producer, *numbered(12))) == list(range(12))
    assert values(cluster) == numbered(12)


def test_numbers_go_on_at_0_behind_the_largest(
    cluster: spark_kbatch.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Partition(idempotence._Partition):
        def __init__(self, producer_id: int, epoch: int) -> None:
            super().__init__(producer_id, epoch)
            self.next_sequence = INT_MAX - 8

    monkeypatch.setattr(idempotence, "_Partition", Partition)
    fates = [Fate.DELIVERED, Fate.FAILED, Fate.RAISED, Fate.UNANSWERED, Fate.TWICE] * 4
    transport = FaultyTransport(a_log(cluster), fates)
    with producing(cluster, transport, batch_size=100, request_timeout_ms=30) as producer:
        futures = []
        for record in numbered(40):
            futures += send(producer, record)
            time.sleep(0.0005)
        assert offsets(futures) == list(range(40))
    assert values(cluster) == numbered(40)
    found = headers(cluster)
    assert {header.producer_epoch for header in found} == {0}
    assert found[0].base_sequence > found[-1].base_sequence
    for before, after in itertools.pairwise(found):
        expected = (before.base_sequence + before.records_count) % 2**31
        assert after.base_sequence == expected


def test_a_producer_that_has_no_more_epochs_takes_a_new_id(
    cluster: spark_kbatch.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotence, "_EPOCH_MAX", 1)
    transport = FaultyTransport(
        a_log(cluster), [Fate.DELIVERED, Fate.REFUSED, Fate.DELIVERED, Fate.REFUSED]
    )
    with producing(cluster, transport) as producer:
        for record in numbered(5):
            send(producer, record)[0].exception(30)
    assert values(cluster) == [b"0000", b"0002", b"0004"]
    first, second, third = headers(cluster)
    assert (first.producer_epoch, second.producer_epoch, third.producer_epoch) == (0, 1, 0)
    assert first.producer_id == second.producer_id != third.producer_id
    assert third.base_sequence == 0


def test_without_acks_a_future_knows_no_offset(cluster: spark_kbatch.Cluster) -> None:
    transport = FaultyTransport(a_log(cluster), [Fate.DELIVERED, Fate.FAILED, Fate.RAISED])
    with producing(cluster, transport, acks=0) as producer:
        assert offsets(send(producer, *numbered(4))) == [-1] * 4
        producer.close(30)
        until(lambda: bytes_in_use(producer._pool) == 0)  # freed after the answer
    assert values(cluster) == [b"0000", b"0002", b"0003"]


# Times.


def test_a_record_without_an_answer_fails_in_time(cluster: spark_kbatch.Cluster) -> None:
    """Its time may end before that of the request it is in."""
    transport, clock = HeldTransport(a_log(cluster)), Clock()
    with producing(
        cluster, transport, clock_ms=clock, request_timeout_ms=400, delivery_timeout_ms=500
    ) as producer:
        (future,) = send(producer, b"v")
        transport.request(0)
        clock.set(399, producer)
        assert transport.count == 1
        for ms in (400, 450):  # The request is given up, and after a pause there is another one.
            clock.set(ms, producer)
        transport.request(1)
        clock.set(499, producer)
        assert not future.done()
        clock.set(500, producer)
        with pytest.raises(
            RequestTimedOutError, match=r"1 records for events-0 .* within delivery\.timeout\.ms"
        ):
            future.result(30)
    assert transport.count == 2


def test_a_record_that_waits_to_go_again_fails_in_time(cluster: spark_kbatch.Cluster) -> None:
    transport, clock = FaultyTransport(a_log(cluster), [Fate.FAILED]), Clock()
    with producing(
        cluster,
        transport,
        clock_ms=clock,
        retry_backoff_ms=10_000,
        retry_backoff_max_ms=10_000,
        request_timeout_ms=100,
        delivery_timeout_ms=100,
    ) as producer:
        (future,) = send(producer, b"v")
        clock.set(99, producer)
        assert not future.done()
        clock.set(100, producer)
        assert isinstance(future.exception(30), RequestTimedOutError)
    assert values(cluster) == []


def test_retries_without_a_pause_end_in_time(cluster: spark_kbatch.Cluster) -> None:
    fates = iter(lambda: Fate.FAILED, None)
    transport = FaultyTransport(a_log(cluster), fates)
    with producing(
        cluster, transport, retry_backoff_ms=0, request_timeout_ms=100, delivery_timeout_ms=100
    ) as producer:
        (future,) = send(producer, b"v")
        assert isinstance(future.exception(30), KafkaStorageError | RequestTimedOutError)


class FailsOnce:
    """A transport that fails the first request with a batch of partition 0."""

    def __init__(self, log: Transport) -> None:
        self._log, self._has_failed = log, False

    def send(self, request: SendRequest, on_answer: Callable[[Answer], None]) -> None:
        if not self._has_failed and any(
            batch.topic_partition.partition == 0 for batch in request.batches
        ):
            self._has_failed = True
            raise KafkaStorageError("not written")
        self._log.send(request, on_answer)


def test_a_busy_partition_does_not_keep_others_from_going_again(
    cluster: spark_kbatch.Cluster,
) -> None:
    is_over = threading.Event()

    def send_another(*_: object) -> None:
        if not is_over.is_set():
            producer.send("events", b"v", partition=1, callback=send_another)

    with producing(cluster, FailsOnce(a_log(cluster))) as producer:
        for _ in range(3):
            send_another()
        try:
            assert offsets(send(producer, b"v")) == [0]
        finally:
            is_over.set()


@pytest.mark.parametrize("linger_ms", [4, 5])
def test_what_has_lingered_does_not_wait_for_the_answer_of_another(
    cluster: spark_kbatch.Cluster, linger_ms: int
) -> None:
    """The clock moves on at each call, so also between looking and waiting."""
    transport = HeldTransport(a_log(cluster))
    clock_ms = itertools.count(1)
    with producing(
        cluster, transport, clock_ms=clock_ms.__next__, batch_size=1000, linger_ms=linger_ms
    ) as producer:
        for number, partition in enumerate((1, 0)):
            producer.send("events", b"v", partition=partition)
            assert [
                batch.topic_partition.partition for batch in transport.request(number).batches
            ] == [partition]


# Memory.


def test_nothing_lies_where_a_request_is_read_that_no_one_waits_for(
    cluster: spark_kbatch.Cluster,
) -> None:
    transport, clock = HeldTransport(a_log(cluster)), Clock()
    with producing(
        cluster,
        transport,
        clock_ms=clock,
        batch_size=100,
        buffer_memory=500,
        request_timeout_ms=100,
    ) as producer:
        futures = send(producer, b"late")
        late = transport.request(0)
        delivered_in_the_end(transport, 1, futures, clock, producer)
        for record in numbered(20):
            before = transport.count
            futures += send(producer, record)
            transport.request(before).deliver()
            futures[-1].result(30)
            assert late.is_unchanged
        late.deliver()
        producer.close(30)
        until(lambda: bytes_in_use(producer._pool) == 0)  # freed after the answer
    assert values(cluster) == [b"late", *numbered(20)]


def test_a_late_request_keeps_its_numbers_when_its_batch_gets_new_ones(
    cluster: spark_kbatch.Cluster,
) -> None:
    transport, clock = HeldTransport(a_log(cluster)), Clock()
    with producing(cluster, transport, clock_ms=clock, request_timeout_ms=200) as producer:
        futures = send(producer, b"first")
        transport.request(0).deliver()
        futures += send(producer, b"refused", b"late")
        late = transport.request(2)
        transport.request(1).fail(InvalidRecordError("refused"))
        # After the lost one in the old epoch, and again once the first is given up.
        delivered_in_the_end(transport, 3, futures, clock, producer)
        assert [header.producer_epoch for header in headers(cluster)] == [0, 1]
        assert late.is_unchanged
        late.deliver()
    assert values(cluster) == [b"first", b"late"]


def test_a_record_that_comes_while_the_sender_looks_is_numbered(
    cluster: spark_kbatch.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    futures: list[Future] = []
    armed = threading.Event()
    look = RecordAccumulator.has_undrained.fget
    assert look is not None

    def look_and_append(accumulator: RecordAccumulator) -> bool:
        found = look(accumulator)
        if armed.is_set() and not futures:
            futures.extend(send(producer, b"v"))
        return found

    monkeypatch.setattr(RecordAccumulator, "has_undrained", property(look_and_append))
    with producing(cluster) as producer:
        armed.set()
        producer._wake_up()
        deadline = time.monotonic() + 30
        while not futures:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert offsets(futures) == [0]
    (header,) = headers(cluster)
    assert (header.producer_id, header.base_sequence) == (0, 0)


# Errors that waiting cannot cure, and locks that others hold.


def damage(directory: Path, how: str) -> None:
    if how == "removed":
        shutil.rmtree(directory)
    elif how == "replaced by a file":
        shutil.rmtree(directory)
        directory.write_bytes(b"")
    else:
        (directory / "kbatch.state").write_bytes(b"\xff" * 8192)


@pytest.mark.parametrize("how", ["removed", "replaced by a file", "a damaged state"])
def test_a_log_that_is_gone_or_damaged_fails_records_at_once_with_the_reason(
    cluster: spark_kbatch.Cluster, how: str
) -> None:
    with producing(cluster) as producer:
        assert offsets(send(producer, b"first")) == [0]
        other = producer.send("events", b"other", partition=1)
        other.result(30)
        directory = store_of(cluster).metadata.cluster_file.log_directory(
            TopicPartition("events", 0)
        )
        damage(directory, how)
        (failed,) = send(producer, b"second")
        error = failed.exception(30)
        assert isinstance(error, KafkaStorageError)
        assert str(directory) in str(error)
        assert producer.send("events", b"other", partition=1).result(30).offset == 1


def test_a_cluster_that_is_deleted_fails_records_at_once(cluster: spark_kbatch.Cluster) -> None:
    with producing(cluster) as producer:
        assert offsets(send(producer, b"first")) == [0]
        shutil.rmtree(cluster.path)
        (failed,) = send(producer, b"second")
        assert isinstance(failed.exception(30), KafkaStorageError)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EPERM], ids=os.strerror)
def test_what_one_may_not_write_fails_at_once_with_its_cause(
    cluster: spark_kbatch.Cluster, number: int
) -> None:
    transport = HeldTransport(a_log(cluster))
    with producing(cluster, transport) as producer:
        (future,) = send(producer, b"v")
        transport.request(0).fail(KafkaStorageError.of(OSError(number, os.strerror(number))))
        error = future.exception(30)
        assert error is not None
        assert os.strerror(number) in str(error)
        assert isinstance(error.__cause__, OSError)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EMFILE], ids=os.strerror)
def test_a_transient_error_is_retried_until_the_timeout_which_has_it_as_its_cause(
    cluster: spark_kbatch.Cluster, number: int
) -> None:
    class Failing:
        def send(self, request: SendRequest, on_answer: Callable[[Answer], None]) -> None:
            raise KafkaStorageError.of(OSError(number, os.strerror(number)))

    with producing(cluster, Failing(), delivery_timeout_ms=150, request_timeout_ms=100) as producer:
        (future,) = send(producer, b"v")
        error = future.exception(30)
        # An attempt that is answered after the timeout fails the batch with its own error, as in Kafka.
        last = error.__cause__ if isinstance(error, RequestTimedOutError) else error
        assert isinstance(last, KafkaStorageError)
        assert os.strerror(number) in str(error)


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC], ids=os.strerror)
def test_why_there_is_no_producer_id_is_said(cluster: spark_kbatch.Cluster, number: int) -> None:
    def no_id() -> int:
        raise KafkaStorageError.of(OSError(number, os.strerror(number)), "no producer id")

    producer = Producer(
        parse_producer_options({"delivery_timeout_ms": 300, "request_timeout_ms": 200}),
        a_log(cluster),
        FolderCatalog(store_of(cluster)).finder(create=False),
        now_ms,
        new_producer_id=no_id,
    )
    with producer:
        error = producer.send("events", b"v").exception(30)
    assert isinstance(error, KafkaStorageError if number == errno.EROFS else RequestTimedOutError)
    assert os.strerror(number) in str(error)
    assert error.__cause__ is not None


def test_a_partition_that_others_have_locked_holds_no_other_up_and_fails_in_time(
    cluster: spark_kbatch.Cluster,
) -> None:
    elsewhere = spark_kbatch.Cluster(str(cluster.path))
    with producing(cluster, delivery_timeout_ms=1500, request_timeout_ms=1000) as producer:
        with store_of(elsewhere).manager.locks.partitions([TopicPartition("events", 0)]):
            (held,) = send(producer, b"held")
            for offset in range(3):
                free = producer.send("events", b"free", partition=1)
                assert free.result(1).offset == offset
            error = held.exception(30)
        assert isinstance(error, RequestTimedOutError)
        assert isinstance(error.__cause__, LockTimeoutError)
        assert "the lock of events-0 was not free" in str(error)
        assert offsets(send(producer, b"later")) == [0]


@pytest.mark.parametrize("acks", ["all", "0"])
def test_a_lock_that_others_hold_for_a_while_is_no_attempt(
    cluster: spark_kbatch.Cluster, acks: str
) -> None:
    elsewhere = spark_kbatch.Cluster(str(cluster.path))
    held = store_of(elsewhere).manager.locks.partitions([TopicPartition("events", 0)])
    held.__enter__()
    timer = threading.Timer(0.6, held.__exit__, (None, None, None))
    timer.start()
    with producing(cluster, retries=0, acks=acks, enable_idempotence=False) as producer:
        assert [future.exception(30) for future in send(producer, b"v")] == [None]
        producer.close(30)
    timer.join()
    assert values(cluster) == [b"v"]


def test_a_forked_child_is_told_that_the_producer_is_its_parents(
    cluster: spark_kbatch.Cluster,
) -> None:
    transport = HeldTransport(a_log(cluster))
    with producing(cluster, transport) as producer:
        (pending,) = send(producer, b"v")
        transport.request(0)

        def use() -> None:
            for refused in (
                lambda: producer.send("events", b"v"),
                lambda: producer.send_arrow("events", {"value": [b"v"]}),
                producer.flush,
                pending.result,
            ):
                with pytest.raises(ProducerForkedError, match="create a producer in each process"):
                    refused()
            producer.close()

        # Locks of the parent's threads stay taken in the child.
        with producer._accumulator._lock, producer._pool._lock:
            child = run_child(use)
        _, status = os.waitpid(child, 0)
        assert status == 0
        transport.request(0).deliver()
        assert offsets([pending]) == [0]
