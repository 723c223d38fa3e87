"""A producer in plain Python: what callers pass, get back, and find in the log."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import random
import re
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

import spark_kbatch
from spark_kbatch.clock import now_ms
from spark_kbatch.cluster.catalog import FolderCatalog
from spark_kbatch.cluster.transports import LocalLog
from spark_kbatch.errors import (
    BufferExhaustedError,
    ConfigError,
    InvalidTimestampError,
    ProducerClosedError,
    RecordTooLargeError,
    RequestTimedOutError,
)
from spark_kbatch.kernels import records as record_kernels
from spark_kbatch.kernels import routing
from spark_kbatch.options.producer import parse_producer_options
from spark_kbatch.producer.futures import RecordFuture, RecordMetadata
from spark_kbatch.producer.producer import Producer
from spark_kbatch.record import compression
from tests.support import builders, draws
from tests.support.accumulators import bytes_in_use
from tests.support.faulty_transport import Gate, Silent
from tests.support.store import producer_to, store_of

PARTITIONS = 4
SOON = 20  # seconds: what does not end by then hangs


@pytest.fixture
def cluster(tmp_path: Path) -> spark_kbatch.Cluster:
    made = spark_kbatch.open(str(tmp_path / "cluster"), create=True)
    made.create_topic("events", partitions=PARTITIONS)
    return made


def values(cluster: spark_kbatch.Cluster, topic: str = "events") -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    for batch in cluster.read(topic):
        found.update(batch.column("value").to_pylist())
    return found


def gated(cluster: spark_kbatch.Cluster, gate: Gate, **options: Any) -> Producer:
    return producer_to(cluster, gate, options)


# What goes in comes out.


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_every_row_of_a_table_lies_where_its_future_says(
    cluster: spark_kbatch.Cluster, compression: str
) -> None:
    cluster.create_topic("other", partitions=2)
    rows = builders.rows(n=3000, seed=4, nulls=0.2, headers=2)
    topics = pa.array(random.Random(1).choices(["events", "other"], k=rows.num_rows))
    told: list[pa.RecordBatch | None] = []
    with cluster.producer(batch_size=2000, compression_type=compression) as producer:
        future = producer.send_arrow(
            None,
            pa.Table.from_batches([rows.slice(0, 1000), rows.slice(1000)]).append_column(
                "topic", topics
            ),
            callback=lambda placed, error: told.append(placed if error is None else None),
        )
        placed = future.result(SOON)
    assert future.done()
    assert told == [placed]
    assert placed.column("topic").to_pylist() == topics.to_pylist()
    found = builders.contents(cluster)
    for row, (topic, partition, offset) in enumerate(
        zip(*(placed.column(name).to_pylist() for name in placed.schema.names), strict=True)
    ):
        record = found[spark_kbatch.model.TopicPartition(topic, partition)][offset]
        assert record == builders.to_records(rows.slice(row, 1), base_offset=offset)[0]
    assert sum(map(len, found.values())) == rows.num_rows


def test_a_record_is_as_it_was_given(cluster: spark_kbatch.Cluster) -> None:
    with cluster.producer() as producer:
        future = producer.send(
            "events",
            "vätska",
            key=bytearray(b"k"),
            headers=[("h", b"x"), ("h", None)],
            partition=3,
            timestamp=7,
        )
        deleted = producer.send("events", None, key="k", partition=3)
    assert future.result() == RecordMetadata("events", 3, 0, 7)
    assert deleted.result().offset == 1
    (batch,) = cluster.read("events", partitions=[3])
    first, second = batch.to_pylist()
    assert (first["key"], first["value"]) == (b"k", "vätska".encode())
    assert first["headers"] == [{"key": "h", "value": b"x"}, {"key": "h", "value": None}]
    assert (second["key"], second["value"], second["headers"]) == (b"k", None, None)
    assert abs(deleted.result().timestamp - now_ms()) < SOON * 1000


def test_options_are_given_by_kafkas_keys_or_as_keyword_arguments(
    cluster: spark_kbatch.Cluster,
) -> None:
    topic = cluster.create_topic("wide", 8)
    with cluster.producer({"linger.ms": "60000", "batch.size": 65_536}, acks=1) as producer:
        waiting = producer.send("wide", "v", key="k")
        assert not waiting.done(), "it lingers"
        assert repr(producer) == "<Producer with acks=1, open>"

    assert (topic.partitions, waiting.result().topic) == (8, "wide")
    for given, again in (({"linger.ms": 1}, {"linger_ms": 1}), ({"acks": 1}, {"acks": 1})):
        with pytest.raises(ConfigError, match="is given twice"):
            cluster.producer(given, **again)
    with pytest.raises(ConfigError, match="config is 5; accepted: a dict of text keys, such as"):
        cluster.producer(5)  # type: ignore[arg-type]


def test_keys_meet_in_one_partition_however_they_are_sent(cluster: spark_kbatch.Cluster) -> None:
    keys = [b"%d" % (n % 50) for n in range(500)]
    with cluster.producer() as producer:
        singles = [producer.send("events", b"", key=key) for key in keys]
        table = producer.send_arrow("events", {"key": keys, "value": [b""] * len(keys)})
    one_by_one = [future.result().partition for future in singles]
    assert table.result().column("partition").to_pylist() == one_by_one
    assert len(set(one_by_one)) == PARTITIONS


def test_a_records_time_is_a_datetime_or_milliseconds(cluster: spark_kbatch.Cluster) -> None:
    moment = datetime(2024, 10, 25, 10, 0, 0, 7_999, tzinfo=timezone(timedelta(hours=2)))
    with cluster.producer() as producer:
        by_datetime = producer.send("events", "v", partition=0, timestamp=moment)
        by_ms = producer.send("events", "v", partition=0, timestamp=1_729_843_200_008)

    assert by_datetime.result().timestamp == 1_729_843_200_007
    assert by_ms.result().timestamp == 1_729_843_200_008
    found = cluster.list_offsets({("events", 0): moment})
    assert found == {("events", 0): (1, 1_729_843_200_008)}, "the first with that time or later"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("timestamp_ms", "did you mean 'timestamp'?"),
        ("on_delivery", "did you mean 'callback'?"),
        ("vlaue", "did you mean 'value'?"),
        ("x", "accepted: topic, value, key, headers, partition, timestamp, callback"),
    ],
)
def test_an_argument_that_send_has_not_is_refused_with_the_name_that_is_meant(
    cluster: spark_kbatch.Cluster, name: str, meant: str
) -> None:
    with (
        cluster.producer() as producer,
        pytest.raises(TypeError, match=rf"{name}'; {re.escape(meant)}$"),
    ):
        producer.send("events", **{name: 5})
    assert not values(cluster)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"topic": "__transaction_state"}, ConfigError, "__transaction_state"),
        ({"value": 5}, ConfigError, "value is a int; accepted: bytes, text or None"),
        ({"key": 5}, ConfigError, "key is a int"),
        ({"partition": PARTITIONS}, ConfigError, f"partition is {PARTITIONS}"),
        ({"timestamp": -2}, InvalidTimestampError, "-2 ms"),
        ({"timestamp": "5"}, ConfigError, "accepted: milliseconds since 1970 .*, or a datetime"),
        ({"timestamp": datetime(2024, 10, 25)}, ConfigError, "timestamp is 2024-.* no time zone"),  # noqa: DTZ001
        ({"headers": [(b"h", b"")]}, ConfigError, "header's key is b'h'"),
        ({"headers": [("h", 1)]}, ConfigError, "header 'h' is a int"),
    ],
)
def test_what_no_record_can_have_is_refused_at_once(
    cluster: spark_kbatch.Cluster, given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with cluster.producer() as producer, pytest.raises(error, match=message):
        producer.send(**({"topic": "events", "value": b"v"} | given))
    assert not values(cluster)


def test_a_record_over_max_request_size_fails_alone(cluster: spark_kbatch.Cluster) -> None:
    told: list[Exception | None] = []
    with cluster.producer(max_request_size=1000) as producer:
        large = producer.send(
            "events", b"v" * 1000, callback=lambda _place, error: told.append(error)
        )
        small = producer.send("events", b"v")
        error = large.exception()
        assert isinstance(error, RecordTooLargeError)
        assert "max.request.size=1000" in str(error)
        assert large.done()
        assert told == [error]
        with pytest.raises(RecordTooLargeError):
            large.result()
    assert small.result().offset == 0


# When batches are sent.


def test_a_lone_record_goes_after_linger_ms_without_another(cluster: spark_kbatch.Cluster) -> None:
    with cluster.producer(linger_ms=200, flush=False) as producer:
        started = time.monotonic()
        assert producer.send("events", b"v").result(SOON).offset == 0
        assert time.monotonic() - started >= 0.2


def test_a_time_of_day_that_is_set_back_keeps_no_record_waiting(
    cluster: spark_kbatch.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    time_ns = time.time_ns
    with cluster.producer(linger_ms=200, flush=False) as producer:
        future = producer.send("events", b"v")
        monkeypatch.setattr(time, "time_ns", lambda: time_ns() - 3600 * 10**9)
        assert future.result(SOON).offset == 0


def test_flush_sends_what_lingers_and_waits_for_it(cluster: spark_kbatch.Cluster) -> None:
    told: list[int] = []
    with cluster.producer(linger_ms=3_600_000, delivery_timeout_ms=2**31 - 1) as producer:
        futures = [
            producer.send(
                "events", b"%d" % n, partition=0, callback=lambda m, _: told.append(m.offset)
            )  # type: ignore[union-attr]
            for n in range(100)
        ]
        assert not any(future.done() for future in futures)
        producer.flush(SOON)
        assert all(future.done() for future in futures)
        # In the order of the records, and before waiting threads continue.
        assert told == list(range(100))


def test_flush_gives_up_in_time(cluster: spark_kbatch.Cluster) -> None:
    gate = Gate(LocalLog(store_of(cluster), flush=False))
    with gated(cluster, gate) as producer:
        future = producer.send("events", b"v")
        with pytest.raises(RequestTimedOutError, match=r"flush waited 0\.05 s"):
            producer.flush(0.05)
        with pytest.raises(TimeoutError):
            future.result(0.01)
        gate.open()
        producer.flush(SOON)
        assert future.done()


def test_a_callback_that_fails_for_a_record_that_is_refused_is_logged(
    cluster: spark_kbatch.Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_place: RecordMetadata | None, _error: Exception | None) -> None:
        raise ValueError("of the callback")

    with cluster.producer(max_request_size=1000) as producer:
        future = producer.send("events", b"v" * 2000, callback=fail)

    assert isinstance(future.exception(0), RecordTooLargeError)
    assert "of the callback" in caplog.text


def test_a_callback_does_not_wait_for_memory_that_only_its_own_thread_makes_free(
    cluster: spark_kbatch.Cluster,
) -> None:
    more: list[RecordFuture] = []

    def send_more(_place: RecordMetadata | None, _error: Exception | None) -> None:
        more.extend(
            producer.send("events", b"w" * 15_000, partition=n % PARTITIONS) for n in range(3)
        )

    with cluster.producer(
        buffer_memory=32 * 1024, batch_size=16 * 1024, linger_ms=3_600_000,
        delivery_timeout_ms=2**31 - 1, max_block_ms=SOON * 1000,
    ) as producer:  # fmt: skip
        producer.send("events", b"v" * 15_000, partition=0, callback=send_more)
        began = time.monotonic()
        producer.flush()
        assert time.monotonic() - began < SOON / 2

    assert [type(one.exception(0)) for one in more][-1] is BufferExhaustedError


def test_a_callback_that_fails_is_logged_and_harms_no_one(
    cluster: spark_kbatch.Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_place: RecordMetadata | None, _error: Exception | None) -> None:
        raise ValueError("of the user's own")

    with cluster.producer(linger_ms=20) as producer, caplog.at_level(logging.ERROR):
        futures = [producer.send("events", b"v", partition=0, callback=fail) for _ in range(3)]
        assert [future.result(SOON).offset for future in futures] == [0, 1, 2]
    assert caplog.text.count("ValueError: of the user's own") == 3


def test_a_partition_that_an_answer_leaves_out_was_not_answered(
    cluster: spark_kbatch.Cluster,
) -> None:
    config = parse_producer_options({"retries": 0})
    with Producer(
        config, Silent(), FolderCatalog(store_of(cluster)).finder(create=False), now_ms
    ) as producer:
        error = producer.send("events", b"v", partition=2).exception(SOON)
    assert isinstance(error, RequestTimedOutError)
    assert "events-2" in str(error)


def test_a_producer_without_records_takes_no_id(cluster: spark_kbatch.Cluster) -> None:
    taken: list[int] = []

    def new_producer_id() -> int:
        taken.append(store_of(cluster).new_producer_id())
        return taken[-1]

    transport = LocalLog(store_of(cluster), flush=False)
    with producer_to(cluster, transport, {}, new_producer_id=new_producer_id) as producer:
        producer.flush(SOON)
        assert taken == []
        producer.send("events", b"v").result(SOON)
        assert len(taken) == 1


# Memory.


def test_who_finds_no_memory_is_told_after_max_block_ms(cluster: spark_kbatch.Cluster) -> None:
    gate = Gate(LocalLog(store_of(cluster), flush=False))
    options = {"buffer_memory": 64 * 1024, "batch_size": 16 * 1024, "max_block_ms": 100}
    with gated(cluster, gate, **options) as producer:
        futures = [producer.send("events", b"v" * 15_000) for _ in range(6)]
        errors = [future.exception(0) for future in futures if future.done()]
        assert errors
        assert all(isinstance(error, BufferExhaustedError) for error in errors)
        assert "max.block.ms=100" in str(errors[0])
        with pytest.raises(BufferExhaustedError):
            producer.send_arrow("events", {"value": [b"v" * 15_000]})
        gate.open()
        producer.flush(SOON)
        assert producer.send("events", b"later").result(SOON)
    assert sum(values(cluster).values()) == 6 - len(errors) + 1
    assert bytes_in_use(producer._pool) == 0


def sent_by_threads(
    cluster: spark_kbatch.Cluster, records: int, *, threads: int, window: int
) -> tuple[Producer, list[int]]:
    """Send each thread's share through a pool of 1 MiB.

    Returns:
        The producer, and how far each thread was when the first one ended.
    """
    sent = [0] * threads
    at_first_end: list[int] = []
    share = records // threads
    producer = cluster.producer(buffer_memory=1024 * 1024, batch_size=16 * 1024, flush=False)

    def work(thread: int) -> None:
        under_way = []
        for number in range(share):
            value = b"%d-%d" % (thread, number)
            under_way.append(producer.send("events", value.ljust(40 + number % 200), key=value))
            sent[thread] += 1
            if len(under_way) == window:
                for future in under_way:
                    future.result(SOON)
                under_way.clear()
        at_first_end[:] = at_first_end or sent
        for future in under_way:
            future.result(SOON)

    with producer, ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, thread) for thread in range(threads)]:
            done.result()
    return producer, at_first_end


def check_threads(cluster: spark_kbatch.Cluster, records: int) -> None:
    process = psutil.Process()
    record_kernels.load()
    routing.load()
    gc.collect()
    before = process.memory_info().rss
    most = before
    stop = threading.Event()

    def watch() -> None:
        nonlocal most
        while not stop.wait(0.02):
            most = max(most, process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        producer, at_first_end = sent_by_threads(cluster, records, threads=8, window=2000)
    finally:
        stop.set()
        watcher.join()
    assert bytes_in_use(producer._pool) == 0
    # The pool, futures of 8 windows, and what allocators keep.
    assert most - before < 64 * 1024 * 1024
    # No thread starves.
    assert min(at_first_end) > records // 8 // 10

    seen: dict[bytes, list[int]] = defaultdict(list)
    offsets = 0
    for batch in cluster.read("events", columns=["value"]):
        for value in batch.column("value").to_pylist():
            thread, number = value.split(b"-")
            seen[thread].append(int(number))
        offsets += batch.num_rows
    assert offsets == records
    assert all(sorted(numbers) == list(range(records // 8)) for numbers in seen.values())


def test_threads_share_a_small_pool(cluster: spark_kbatch.Cluster) -> None:
    check_threads(cluster, 40_000)


@pytest.mark.slow
def test_a_million_records_of_8_threads_share_a_pool_of_1_mib(
    cluster: spark_kbatch.Cluster,
) -> None:
    check_threads(cluster, 1_000_000)


def test_tables_of_threads_keep_their_order_and_lie_where_their_futures_say(
    cluster: spark_kbatch.Cluster,
) -> None:
    """Appends hold several queues' locks at once, in crossing sets, and memory is short."""
    cluster.create_topic("other", partitions=PARTITIONS)

    def work(thread: int) -> list[tuple[pa.Table, pa.RecordBatch]]:
        places = random.Random(thread)
        sent = []
        for first in range(0, 2000, 100):
            table = pa.table(
                {
                    "topic": places.choices(["events", "other"], k=100),
                    "partition": pa.array(places.choices(range(PARTITIONS), k=100), pa.int32()),
                    "value": [b"%d-%d" % (thread, first + n) for n in range(100)],
                }
            )
            sent.append((table, producer.send_arrow(None, table)))
        return [(table, future.result(SOON)) for table, future in sent]

    with (
        cluster.producer(buffer_memory=16 * 1024, batch_size=1024, flush=False) as producer,
        ThreadPoolExecutor(6) as pool,
    ):
        sent = [pair for pairs in pool.map(work, range(6)) for pair in pairs]
    held = {}
    for topic, partition in itertools.product(["events", "other"], range(PARTITIONS)):
        last = dict.fromkeys(range(6), -1)
        for batch in cluster.read(topic, partitions=[partition]):
            for row in batch.to_pylist():
                thread, number = map(int, row["value"].split(b"-"))
                assert number > last[thread]
                last[thread] = number
                held[topic, partition, row["offset"]] = row["value"]
    assert len(held) == 12_000
    for table, placed in sent:
        for value, place in zip(table.column("value").to_pylist(), placed.to_pylist(), strict=True):
            assert held[place["topic"], place["partition"], place["offset"]] == value


# Ends.


def test_close_sends_what_is_left_and_takes_no_more(cluster: spark_kbatch.Cluster) -> None:
    producer = cluster.producer(linger_ms=3_600_000, delivery_timeout_ms=2**31 - 1)
    futures = [producer.send("events", b"%d" % n) for n in range(1000)]
    producer.close()
    producer.close()
    assert all(future.result(0) for future in futures)
    with pytest.raises(ProducerClosedError):
        producer.send("events", b"late")
    with pytest.raises(ProducerClosedError):
        producer.send_arrow("events", {"value": [b"late"]})
    assert values(cluster).total() == 1000
    assert bytes_in_use(producer._pool) == 0


def test_who_closes_while_another_thread_does_waits_for_the_end_too(
    cluster: spark_kbatch.Cluster,
) -> None:
    gate = Gate(LocalLog(store_of(cluster), flush=False))
    producer = gated(cluster, gate)
    future = producer.send("events", b"v")
    assert gate.arrived.wait(SOON)
    with ThreadPoolExecutor(2) as pool:
        closes = [pool.submit(producer.close) for _ in range(2)]
        time.sleep(0.05)
        assert not any(one.done() for one in closes)
        gate.open()
        for one in closes:
            one.result(SOON)
    assert future.exception(0) is None
    assert values(cluster).total() == 1


def test_the_memory_of_a_batch_that_is_compressed_while_its_producer_is_closed_is_no_later_ones(
    cluster: spark_kbatch.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    compresses, go_on = threading.Event(), threading.Event()
    compress = compression.compress

    def compress_late(*arguments: Any, **options: Any) -> Any:
        found = compress(*arguments, **options)
        compresses.set()
        assert go_on.wait(SOON)
        return found

    monkeypatch.setattr(compression, "compress", compress_late)
    closed = cluster.producer(compression_type="lz4", linger_ms=0)
    failed = closed.send("events", b"a" * 1000, partition=0)
    assert compresses.wait(SOON)
    closed.close(0)
    assert isinstance(failed.exception(0), ProducerClosedError)

    with cluster.producer(linger_ms=3_600_000, delivery_timeout_ms=2**31 - 1) as producer:
        for number in range(1000):
            producer.send("events", b"%d" % number, partition=0)
        go_on.set()
        thread = closed._sender._thread
        assert thread is not None
        thread.join(SOON)

    assert values(cluster) == Counter(b"%d" % number for number in range(1000))


def test_close_at_once_fails_what_was_not_sent(cluster: spark_kbatch.Cluster) -> None:
    told: list[Exception | None] = []
    producer = cluster.producer(linger_ms=3_600_000, delivery_timeout_ms=2**31 - 1)
    futures = [
        producer.send("events", b"v", callback=lambda _place, error: told.append(error))
        for _ in range(10)
    ]
    table = producer.send_arrow("events", {"value": [b"v"] * 10})
    producer.close(timeout=0)
    assert all(isinstance(future.exception(0), ProducerClosedError) for future in futures)
    assert isinstance(table.exception(0), ProducerClosedError)
    assert len(told) == 10
    assert not values(cluster)
    assert bytes_in_use(producer._pool) == 0


def test_a_block_that_fails_closes_its_producer_at_once(cluster: spark_kbatch.Cluster) -> None:
    futures = []

    def block() -> None:
        with cluster.producer(linger_ms=3_600_000, delivery_timeout_ms=2**31 - 1) as producer:
            futures.append(producer.send("events", b"v"))
            raise ValueError("of the block")

    with pytest.raises(ValueError, match="of the block"):
        block()
    assert isinstance(futures[0].exception(0), ProducerClosedError)


def test_a_callback_may_close_the_producer(cluster: spark_kbatch.Cluster) -> None:
    producer = cluster.producer()
    closed = threading.Event()

    def close(_place: RecordMetadata | None, _error: Exception | None) -> None:
        producer.close()
        closed.set()

    producer.send("events", b"v", callback=close)
    assert closed.wait(SOON)


def test_all_of_an_answer_counts_though_a_callback_of_it_closes_the_producer(
    cluster: spark_kbatch.Cluster,
) -> None:
    producer = cluster.producer(linger_ms=200)
    futures = [
        producer.send("events", b"v", partition=number, callback=lambda *_: producer.close())
        for number in range(PARTITIONS)
    ]

    assert [future.result(SOON).offset for future in futures] == [0] * PARTITIONS


def test_who_waits_for_memory_is_told_that_the_producer_is_closed(
    cluster: spark_kbatch.Cluster,
) -> None:
    gate = Gate(LocalLog(store_of(cluster), flush=False))
    producer = gated(cluster, gate, buffer_memory=32 * 1024, batch_size=16 * 1024)
    with ThreadPoolExecutor(4) as pool:
        sends = [
            pool.submit(producer.send, "events", b"v" * 15_000, partition=n % PARTITIONS)
            for n in range(8)
        ]
        assert gate.arrived.wait(SOON)
        while producer._pool.queued == 0:
            time.sleep(0.001)
        producer.close(0.05)
        errors = [send.exception(SOON) for send in sends]
        gate.open()
    assert any(isinstance(error, ProducerClosedError) for error in errors)
    for send, error in zip(sends, errors, strict=True):
        if error is None:
            assert isinstance(send.result().exception(SOON), (ProducerClosedError, type(None)))


@pytest.mark.parametrize("seed", range(8))
def test_a_producer_closed_while_threads_send_leaves_no_future_open(
    cluster: spark_kbatch.Cluster, seed: int
) -> None:
    timeout = [None, 0, 0.001, 0.05][seed % 4]
    producer = cluster.producer(
        buffer_memory=128 * 1024, batch_size=2048, flush=False, linger_ms=seed % 3
    )
    accepted = []

    def work(thread: int) -> None:
        for number in itertools.count():
            value = b"%d-%d" % (thread, number)
            try:
                if number % 5:
                    accepted.append(([value], producer.send("events", value)))
                else:
                    many = [value + b"-%d" % n for n in range(20)]
                    accepted.append((many, producer.send_arrow("events", {"value": many})))
            except ProducerClosedError:
                return

    with ThreadPoolExecutor(4) as pool:
        threads = [pool.submit(work, thread) for thread in range(4)]
        time.sleep(random.Random(seed).uniform(0.01, 0.2))
        producer.close(timeout)
        for thread in threads:
            thread.result(SOON)
    delivered: Counter[bytes] = Counter()
    for sent, future in accepted:
        error = future.exception(SOON)
        if error is None:
            delivered.update(sent)
        else:
            assert isinstance(error, ProducerClosedError)
    found = values(cluster)
    assert delivered <= found
    assert max(found.values(), default=1) == 1
    assert bytes_in_use(producer._pool) == 0


def _produce_until_killed(path: str, acknowledged: int, seed: int) -> None:
    with spark_kbatch.open(path) as cluster:
        producer = cluster.producer(
            linger_ms=seed % 2, batch_size=500, buffer_memory=20_000, flush=False
        )
        for number in itertools.count():
            value = b"%d-%d" % (seed, number)
            producer.send(
                "events",
                value,
                callback=lambda place, _, value=value: os.write(
                    acknowledged, b"%d %d %s\n" % (place.partition, place.offset, value)
                ),
            )


def killed_producers(path: str, seeds: range) -> Iterator[tuple[int, int, bytes]]:
    """Return what producers reported as acknowledged before they were killed: partition, offset, value."""
    for seed in seeds:
        told, acknowledged = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                _produce_until_killed(path, acknowledged, seed)
            finally:
                os._exit(1)
        os.close(acknowledged)
        with os.fdopen(told, "rb") as lines:
            first = lines.readline()
            time.sleep(random.Random(seed).uniform(0, 0.1))
            os.kill(child, signal.SIGKILL)
            rest = lines.read().splitlines()
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
        # The last line may be incomplete.
        for line in [first, *rest[:-1]]:
            partition, offset, value = line.split()
            yield int(partition), int(offset), value


def check_killed_producers(cluster: spark_kbatch.Cluster, seeds: range) -> None:
    told = list(killed_producers(str(cluster.path), seeds))
    with cluster.producer() as producer:
        assert producer.send("events", b"after").result(SOON)
    held = {}
    for partition in range(PARTITIONS):
        offsets: list[int] = []
        for batch in cluster.read("events", partitions=[partition]):
            offsets += batch.column("offset").to_pylist()
            for offset, value in zip(
                batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True
            ):
                held[partition, offset] = value
        assert offsets == list(range(len(offsets)))
    assert len(told) >= len(seeds)
    for partition, offset, value in told:
        assert held[partition, offset] == value
    assert max(Counter(held.values()).values()) == 1


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_killed_producer_leaves_what_it_acknowledged_once(cluster: spark_kbatch.Cluster) -> None:
    check_killed_producers(cluster, range(4))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_many_killed_producers_leave_what_they_acknowledged_once(
    cluster: spark_kbatch.Cluster,
) -> None:
    check_killed_producers(cluster, draws.seeds(20))
