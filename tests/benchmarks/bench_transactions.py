"""How long do requests of transactional producers take while a job's commit goes on for ten seconds?

The job writes to other partitions. Its commit holds the commit lock and the locks of its partitions all the time,
as the copying of much data would; it waits there, so that no processor is taken. Clients write small transactions
meanwhile, one after the other, each of them to partitions of its own.

    InitProducerId, AddPartitionsToTxn, EndTxn    each request, also one that is asked again
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from spark_kbatch import Cluster
from spark_kbatch.files import Buffer, Files
from spark_kbatch.model import TopicPartition
from spark_kbatch.wire.errors import ErrorCode
from tests.benchmarks.bench_server import served
from tests.support import builders
from tests.support.faults import is_commit_point
from tests.support.raw_clients import RawClient
from tests.support.raw_transactions import RawProducer
from tests.support.targets import Targets

COMMIT_S, CLIENTS, P99_MS = 10.0, 4, 50.0
_DONE = ErrorCode.NONE


class SlowCommit(Files):
    """A disk on which a commit is decided ten seconds late."""

    def __init__(self) -> None:
        self.begun, self._is_done = threading.Event(), False

    def write_at(self, descriptor: int, position: int, data: Buffer) -> None:
        if is_commit_point(descriptor) and not self._is_done:
            self._is_done = True
            self.begun.set()
            time.sleep(COMMIT_S)
        super().write_at(descriptor, position, data)


class _At(NamedTuple):
    host: str
    port: int


def commit(path: Path, files: SlowCommit) -> None:
    cluster = Cluster(str(path), files=files)
    batches = {("jobs", number): [builders.batch(n=100)] for number in range(CLIENTS)}
    builders.commit(cluster, builders.staged(cluster, batches))


def transactions(
    address: str, number: int, is_over: Callable[[], bool], took_ms: dict[str, list[float]]
) -> None:
    """Write transactions until it is over; note how long each request takes."""
    host, port = address.split(":")
    partition = TopicPartition("events", number)

    def timed(name: str, ask: Callable[[], Any]) -> None:
        while True:
            started = time.perf_counter()
            found = ask()
            took_ms[name].append((time.perf_counter() - started) * 1000)
            if RawProducer.retried(found[0] if isinstance(found, list) else found) is _DONE:
                return
            time.sleep(0.002)

    with RawClient(_At(host, int(port)), timeout_s=60) as client:  # type: ignore[arg-type]
        producer = RawProducer(client, f"id-{number}")
        while not is_over():
            timed("InitProducerId", producer.ask_to_start)
            for _ in range(10):
                timed("AddPartitionsToTxn", lambda: producer.ask_to_add(partition))
                assert producer.produce(partition) is _DONE
                timed("EndTxn", lambda: producer.ask_to_end(commit=True))


def measured(address: str, path: Path, files: SlowCommit | None) -> dict[str, list[float]]:
    """Return how long requests take, in milliseconds: beside a commit, or for as long without one."""
    took_ms: dict[str, list[float]] = defaultdict(list)
    until_s = time.monotonic() + COMMIT_S
    work = threading.Thread(target=commit, args=(path, files)) if files else None
    if work:
        work.start()
        assert files is not None
        assert files.begun.wait(60)

    def is_over() -> bool:
        return time.monotonic() > until_s if work is None else not work.is_alive()

    threads = [
        threading.Thread(target=transactions, args=(address, number, is_over, took_ms))
        for number in range(CLIENTS)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return took_ms


def bench_transactions_beside_a_commit(memory_path: Path, targets: Targets) -> None:
    path = memory_path / "cluster"
    with served(path) as (_, address, _):
        for topic in ("events", "jobs"):
            Cluster(str(path)).create_topic(topic, partitions=CLIENTS)
        alone = measured(address, path, None)
        beside = measured(address, path, SlowCommit())
    for name, took in beside.items():
        assert len(took) > 100
        targets.at_most(f"p99 of {name} beside a commit", p99(took), P99_MS, " ms")
        targets.say(f"without one: {p99(alone[name]):.1f} ms; requests beside it: {len(took)}")


def p99(took_ms: list[float]) -> float:
    return sorted(took_ms)[int(0.99 * len(took_ms))]
