"""Disks fail and come back under a server with replicas: nothing that was acknowledged is lost or doubled.

An idempotent producer, and a consumer that commits its offsets, run all the time. Disks fail one at a time,
so of three replicas two are always left, as many as min.insync.replicas asks for.

One failure by default, 30 with `make soak`; KBATCH_KILLS_FIRST is the seed.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from spark_kbatch.cluster.cluster import Cluster
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.server.housekeeping import Housekeeping
from tests.support import builders
from tests.support.failing_disks import (
    BROKEN,
    FULL,
    READ_ONLY,
    Disks,
    a_replicated_cluster,
    bytes_of,
    partition,
)
from tests.support.killed_children import SEED, kills
from tests.support.waiting import until

TOPIC, PARTITIONS, REPLICAS = "events", 2, 3
ALL = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
UNACKNOWLEDGED_MAX = 500


class Client:
    """A client with a thread of its own, until it is stopped."""

    def __init__(self) -> None:
        self._is_over = threading.Event()
        self.errors: list[Any] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._is_over.wait(0.002):
                self._work()
            self._finish()
        except BaseException as error:  # noqa: BLE001  the test looks at it
            self.errors.append(error)

    def _work(self) -> None: ...

    def _finish(self) -> None: ...

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        assert self.errors == []


class Producing(Client):
    def __init__(self, address: str) -> None:
        self.places: dict[
            bytes, tuple[int, int]
        ] = {}  # partition and offset of what is acknowledged
        self.sent = 0
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 1,
                "retry.backoff.ms": 20, "retry.backoff.max.ms": 100, "log_level": 0,
            }
        )  # fmt: skip
        super().__init__()

    def _work(self) -> None:
        if self.sent - len(self.places) < UNACKNOWLEDGED_MAX:
            for partition_number in range(PARTITIONS):
                self._producer.produce(
                    TOPIC,
                    b"%d" % self.sent,
                    partition=partition_number,
                    on_delivery=self._delivered,
                )
                self.sent += 1
        self._producer.poll(0)

    def _delivered(self, error: Any, message: Any) -> None:
        if error:
            self.errors.append(error)
        else:
            self.places[message.value()] = message.partition(), message.offset()

    def _finish(self) -> None:
        assert self._producer.flush(60) == 0


class Consuming(Client):
    def __init__(self, address: str) -> None:
        self.records: list[tuple[int, int, bytes]] = []  # partition, offset, value
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": address, "group.id": "g", "auto.offset.reset": "earliest",
                "enable.auto.commit": False, "log_level": 0,
            }
        )  # fmt: skip
        self._consumer.subscribe([TOPIC])
        self.committed = 0
        super().__init__()

    def _work(self) -> None:
        messages = self._consumer.consume(500, timeout=0.05)
        for message in messages:
            if not message.error():
                self.records.append((message.partition(), message.offset(), message.value()))
        if messages:
            try:
                self._consumer.commit(asynchronous=False)
                self.committed += 1
            except confluent_kafka.KafkaException as error:
                if not error.args[0].retriable():  # otherwise the next commit makes up for it
                    raise

    def _finish(self) -> None:
        self._consumer.close()


def ensure_failing_disks_lose_nothing(folder: Path, failures: int) -> None:
    rng, disks = random.Random(SEED), Disks()
    config = TopicConfig(min_insync_replicas=2)
    cluster = a_replicated_cluster(
        folder, disks, partitions=PARTITIONS, replicas=REPLICAS, config=config
    )
    with cluster, cluster.serve(log_retention_check_interval_ms=200) as server:
        producing, consuming = (
            Producing(server.bootstrap_servers),
            Consuming(server.bootstrap_servers),
        )
        until(lambda: producing.places and consuming.committed, "both clients work")
        for _ in range(failures):
            disk = folder / f"disk-{rng.randrange(REPLICAS)}"
            disks.fail(disk, rng.choice((BROKEN, FULL, READ_ONLY)))
            acknowledged, committed = len(producing.places), consuming.committed
            until(lambda n=acknowledged: len(producing.places) > n + 200, "the producer goes on")  # type: ignore[misc]
            until(lambda n=committed: consuming.committed > n, "the consumer goes on")  # type: ignore[misc]
            time.sleep(rng.uniform(0, 0.3))
            disks.mend(disk)
            until(lambda: all(in_sync(cluster)), "all replicas are in sync again")
        producing.stop()
        until(lambda: len(consuming.records) >= producing.sent, "everything is read")
        consuming.stop()
        Housekeeping(cluster._parts, interval_ms=1000).run_once()

        stored = builders.contents(cluster)
        for tp in ALL:
            copies = [bytes_of(cluster, node, tp) for node in range(REPLICAS)]
            assert copies[0] == copies[1] == copies[2] != b""

    log = {(tp.partition, one.offset): one.value for tp in ALL for one in stored[tp]}
    assert len(producing.places) == producing.sent
    assert {log[place]: place for place in producing.places.values()} == producing.places
    assert Counter(log.values()) == Counter([*producing.places])  # each once, and nothing else
    read = Counter(consuming.records)
    assert {*read} == {(*place, value) for place, value in log.items()}
    for number in range(PARTITIONS):
        offsets = [offset for p, offset, _ in dict.fromkeys(consuming.records) if p == number]
        assert offsets == sorted(offsets)


def in_sync(cluster: Cluster) -> list[bool]:
    """Return whether each partition of the topic has all replicas in sync."""
    return [len(partition(cluster, tp).view.state().isr) == REPLICAS for tp in ALL]


def test_a_disk_that_fails_and_comes_back_costs_no_record(tmp_path: Path) -> None:
    with kills(1) as failures:
        ensure_failing_disks_lose_nothing(tmp_path, failures)


@pytest.mark.slow
def test_disks_that_fail_and_come_back_often_cost_no_record(tmp_path: Path) -> None:
    with kills(30) as failures:
        ensure_failing_disks_lose_nothing(tmp_path, failures)
