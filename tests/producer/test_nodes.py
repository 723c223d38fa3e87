"""A producer whose partitions are led by several nodes."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spark_kbatch.cluster.transports import LocalLog
from spark_kbatch.errors import RequestTimedOutError
from spark_kbatch.model import TopicPartition
from spark_kbatch.producer.producer import Producer
from spark_kbatch.producer.sender import OneNode
from spark_kbatch.store.transport import NEVER_MS
from tests.support import builders, draws
from tests.support.accumulators import (
    BATCH,
    EVERYTHING,
    PARTITIONS,
    RECORDS,
    TOPIC_PARTITIONS,
    an_accumulator,
    append,
    bytes_in_use,
    partitions_of,
    until,
    values,
    values_of,
)
from tests.support.fake_brokers import FakeBrokers
from tests.support.store import producer_to, store_of

ALL = [TopicPartition("events", partition) for partition in range(6)]


# Ready, and drained, node by node.


def check_accumulator(seed: int) -> None:
    """Append and drain at random; compare with lists, and let no ready batch be passed over for long."""
    rng = random.Random(f"accumulator {seed}")
    linger_ms = rng.choice([0, 20])
    accumulator = an_accumulator(linger_ms=linger_ms, buffers=2_000)
    leaders: dict[TopicPartition, int | None] = {tp: rng.randrange(2) for tp in TOPIC_PARTITIONS}
    waiting: dict[int, list[tuple[int, list[bytes]]]] = {p: [] for p in range(PARTITIONS)}
    passed_over: Counter[int] = Counter()
    now = 0

    def left(partition: int) -> int:
        """Return how long the first batch of a partition has to wait."""
        batches = waiting[partition]
        if not batches:
            return NEVER_MS
        is_full = len(batches) > 1 or len(batches[0][1]) >= RECORDS
        return 0 if is_full else max(linger_ms - (now - batches[0][0]), 0)

    for _ in range(200):
        now += rng.randrange(8)
        partition = rng.randrange(PARTITIONS)
        if rng.random() < 0.1:
            leaders[TOPIC_PARTITIONS[partition]] = rng.choice([0, 1, None])
        if rng.random() < 0.6:
            for value in values(rng.randrange(1, 2 * RECORDS)):
                append(accumulator, partition, [value], now)
                if waiting[partition] and len(waiting[partition][-1][1]) < RECORDS:
                    waiting[partition][-1][1].append(value)
                else:
                    waiting[partition].append((now, [value]))

        led = {p: leaders[TOPIC_PARTITIONS[p]] for p in range(PARTITIONS)}
        found = accumulator.ready_nodes(now, leaders.get)
        ready = {p for p in led if led[p] is not None and left(p) == 0}
        assert set(found.nodes) == {led[p] for p in ready}
        others = [left(p) for p in led if led[p] is not None and led[p] not in found.nodes]
        of_any = [left(p) for p in led if led[p] is not None and left(p) > 0]
        assert min(of_any, default=NEVER_MS) <= found.next_check_delay_ms
        assert found.next_check_delay_ms <= min(others, default=NEVER_MS)

        node = rng.randrange(2)
        max_size = rng.choice([1, 2 * BATCH, EVERYTHING])
        drained = accumulator.drain(now, max_size, node, leaders.get)
        taken = partitions_of(drained)
        candidates = {p for p in ready if led[p] == node}
        assert set(taken) <= candidates
        assert len(taken) == len(set(taken))
        assert len(drained) == 1 or sum(len(b.builder.data) for b in drained) <= max_size
        assert bool(taken) == bool(candidates)
        assert max_size < EVERYTHING or set(taken) == candidates
        for batch, of in zip(drained, taken, strict=True):
            assert values_of(batch) == waiting[of].pop(0)[1]
            passed_over[of] = 0
            batch.done(0)
            accumulator.complete(batch)
        passed_over.update(candidates - set(taken))
        assert max(passed_over.values(), default=0) <= 2 * PARTITIONS


@pytest.mark.parametrize("seed", range(5))
def test_each_node_is_sent_what_it_leads_in_turn(seed: int) -> None:
    check_accumulator(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", draws.seeds(60, after=5))
def test_each_node_is_sent_what_it_leads_in_turn_for_many_seeds(seed: int) -> None:
    check_accumulator(seed)


def test_a_partition_whose_leader_is_unknown_waits_and_is_asked_about() -> None:
    accumulator = an_accumulator(linger_ms=50)
    append(accumulator, 0, values(1))
    asked: list[TopicPartition] = []
    found = accumulator.ready_nodes(0, asked.append)  # type: ignore[arg-type]
    assert (list(found.nodes), found.next_check_delay_ms) == ([], NEVER_MS)
    assert asked == [TOPIC_PARTITIONS[0]], "before it may be sent"


def test_nodes_take_turns_by_themselves() -> None:
    accumulator = an_accumulator(linger_ms=0)
    for partition in range(PARTITIONS):
        append(accumulator, partition, values(3 * RECORDS))

    def leader_of(topic_partition: TopicPartition) -> int:
        return topic_partition.partition % 2

    def drained(node: int) -> list[int]:
        return partitions_of(accumulator.drain(0, 1, node, leader_of))

    assert [drained(0), drained(1), drained(0), drained(1), drained(1)] == [[0], [1], [2], [3], [1]]


# The sender, with brokers.


@contextmanager
def producing(tmp_path: Path, **options: Any) -> Iterator[tuple[Producer, FakeBrokers, Any]]:
    brokers_of = {key: options.pop(key) for key in ("seed", "faults", "delay_s") if key in options}
    cluster = builders.a_cluster(tmp_path, topics={"events": len(ALL)})
    log = LocalLog(store_of(cluster), flush=False)
    brokers = FakeBrokers(log, ALL, **brokers_of)
    defaults = {"batch_size": 1, "retry_backoff_ms": 1, "retry_backoff_max_ms": 5}
    producer = producer_to(cluster, brokers, defaults | options, nodes=brokers, seed=1)
    brokers.awaited = lambda node: sum(one.node == node for one in producer._sender._in_flight)
    try:
        yield producer, brokers, cluster
    finally:
        producer.close(timeout=0)


def check_run(tmp_path: Path, seed: int, *, records: int = 150) -> None:
    rng = random.Random(f"run {seed}")
    in_flight = rng.choice([1, 2, 5])
    sent: dict[TopicPartition, list[bytes]] = {tp: [] for tp in ALL}
    with producing(
        tmp_path,
        seed=seed,
        faults=rng.choice([0.1, 0.3]),
        batch_size=rng.choice([1, 200]),
        buffer_memory=32 * 1024,
        enable_idempotence=True,
        max_in_flight_requests_per_connection=in_flight,
        max_request_size=rng.choice([300, 100_000]),
        request_timeout_ms=80,
    ) as (producer, brokers, cluster):
        futures = []
        for number in range(records):
            tp = rng.choice(ALL)
            value = b"%04d" % number + b"v" * 50
            sent[tp].append(value)
            futures.append((tp, value, producer.send("events", value, partition=tp.partition)))
        producer.flush(60)
        found = {tp: [one.value for one in of] for tp, of in builders.contents(cluster).items()}
        assert found == sent
        for tp, value, future in futures:
            offset = future.result(0).offset
            assert found[tp][offset] == value
        until(lambda: bytes_in_use(producer._pool) == 0)
    assert brokers.violations == []
    assert max(brokers.most_in_flight.values()) <= in_flight
    until(lambda: brokers.is_closed)


@pytest.mark.parametrize("seed", range(6))
def test_each_record_is_written_once_and_in_order_whatever_brokers_do(
    tmp_path: Path, seed: int
) -> None:
    check_run(tmp_path, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", draws.seeds(40, after=6))
def test_each_record_is_written_once_for_many_seeds(tmp_path: Path, seed: int) -> None:
    check_run(tmp_path, seed)


def test_a_silent_broker_holds_back_its_own_partitions_alone(tmp_path: Path) -> None:
    with producing(tmp_path, request_timeout_ms=600, delivery_timeout_ms=700) as (
        producer,
        brokers,
        _,
    ):
        brokers.silent.add(0)
        held = [producer.send("events", b"v", partition=0) for _ in range(3)]
        begin = time.monotonic()
        for _ in range(20):
            for partition in (1, 2, 4, 5):
                producer.send("events", b"v", partition=partition)
        last = [producer.send("events", b"v", partition=partition) for partition in (1, 2, 4, 5)]
        assert [future.result(30).offset for future in last] == [20] * 4
        if time.monotonic() - begin < 0.5:
            assert not any(future.done() for future in held)
        assert {type(future.exception(30)) for future in held} == {RequestTimedOutError}


def test_a_full_limit_of_one_broker_keeps_nothing_from_another(tmp_path: Path) -> None:
    with producing(tmp_path, max_in_flight_requests_per_connection=1) as (producer, brokers, _):
        brokers.silent.update((0, 1, 2))
        for node in (0, 1, 2):
            producer.send("events", b"v", partition=node)
            until(lambda asks=node + 1: len(brokers.requests) == asks, timeout_s=20)  # type: ignore[misc]
        assert [node for node, _ in brokers.requests] == [0, 1, 2]


def test_a_request_carries_a_batch_of_each_partition_of_its_broker(tmp_path: Path) -> None:
    with producing(tmp_path, linger_ms=10_000, batch_size=10_000) as (producer, brokers, _):
        for partition in range(len(ALL)):
            producer.send("events", b"v", partition=partition)
        producer.flush(30)
        sent = {
            node: sorted(batch.topic_partition.partition for batch in request.batches)
            for node, request in brokers.requests
        }
    assert sent == {0: [0, 3], 1: [1, 4], 2: [2, 5]}
    assert len(brokers.requests) == 3


def test_an_error_while_waiting_is_logged_and_the_sender_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with producing(tmp_path) as (producer, brokers, _):
        poll = brokers.poll
        broken = iter([True])

        def break_once(timeout_ms: int) -> None:
            if next(broken, False):
                raise ZeroDivisionError
            poll(timeout_ms)

        monkeypatch.setattr(brokers, "poll", break_once)
        with caplog.at_level(logging.ERROR):
            assert producer.send("events", b"v", partition=0).result(30).offset == 0
    assert "the sender continues" in caplog.text


# One node.


def test_a_short_sleep_ends_also_when_the_processor_is_lost_meanwhile() -> None:
    node, rounds = OneNode(), 20_000

    def sleep() -> None:
        for _ in range(rounds):
            node.wake_up()
            node.poll(0)
            node.poll(1e-3)  # type: ignore[arg-type]  so short that a pause of 1 us is too long

    sleeper = threading.Thread(target=sleep, daemon=True)
    sleeper.start()
    sleeper.join(50)
    assert not sleeper.is_alive()


def test_a_wake_up_ends_the_sleep_or_the_next_one() -> None:
    node = OneNode()
    node.wake_up()
    node.wake_up()
    node.poll(NEVER_MS)
    timer = threading.Timer(0.05, node.wake_up)
    timer.start()
    node.poll(NEVER_MS)
    timer.join()
    start = time.monotonic()
    node.poll(20)  # nothing is left of the second wake-up before the first sleep
    assert time.monotonic() - start >= 0.015
