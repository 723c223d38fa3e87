"""How long does `kbatch serve` take for a request, and how many does it answer a second?

Each request is a Produce of one record of 100 bytes with acks=all, as clients send them with linger 0; the
client is a loop over non-blocking sockets that does nothing else. Peers and ceilings take turns, each in a
process of its own but for the second:

    echo        the server's event loop, connections and framing, which answers without a look
    append      the same batch appended to a log by this process, without a server
    the broker  Kafka's own

What is compared with the ceiling is a time: of an echo and an append together.

    one         one connection: from a request to its answer
    100         as many connections, of which each sends its next request once it has an answer
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import spark_kbatch
from spark_kbatch.model import AppendOrigin, TopicPartition
from spark_kbatch.replica.manager import ACKS_ALL
from spark_kbatch.wire.protocol import ApiKey
from tests.benchmarks.bench_server import create, served
from tests.support import builders, echo_server
from tests.support.interleaved import Rates
from tests.support.kafka import Broker, Kafka
from tests.support.raw_clients import produce, request
from tests.support.store import append_records as append_by
from tests.support.store import store_of
from tests.support.targets import Targets

ROUNDS, SECONDS = 7, 2.0
OURS, ECHO, APPEND, PEER = "kbatch serve", "echo", "append", "Kafka's broker"
CEILING = "an echo and an append"
OF_CEILING = 0.8
PRODUCERS = 100


@contextlib.contextmanager
def echoing() -> Iterator[str]:
    command = [sys.executable, "-m", echo_server.__name__]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield f"127.0.0.1:{int(process.stdout.readline())}"
        process.communicate()


def answers_per_s(address: str, connections: int) -> float:
    """Return how many requests are answered a second."""
    host, port = address.split(":")
    sent = request(ApiKey.PRODUCE, echo_server.VERSION, produce(builders.batch(n=1)))
    selector = selectors.DefaultSelector()
    with contextlib.ExitStack() as sockets:
        for _ in range(connections):
            sock = sockets.enter_context(socket.create_connection((host, int(port)), 10))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(sock, selectors.EVENT_READ)
            sock.sendall(sent)
        count, started = 0, time.perf_counter()
        until = started + SECONDS
        while (now := time.perf_counter()) < until:
            for key, _ in selector.select(1):
                sock = key.fileobj  # type: ignore[assignment]
                assert len(sock.recv(4096)) > 40  # an answer is one segment
                count += 1
                sock.sendall(sent)
        return count / (now - started)


def appends_per_s(cluster: spark_kbatch.Cluster) -> float:
    parts, batch, partition = store_of(cluster), builders.batch(n=1), TopicPartition("events", 0)
    count, started = 0, time.perf_counter()
    while time.perf_counter() < started + SECONDS / 4:
        append_by(
            parts,
            timeout_ms=1000,
            required_acks=ACKS_ALL,
            entries_per_partition={partition: batch},
            on_complete=lambda _: None,
            flush=False,
            origin=AppendOrigin.NETWORK,
        )
        count += 1
    return count / (time.perf_counter() - started)


def bench_requests(kafka: Kafka, memory_path: Path, targets: Targets) -> None:
    found: dict[str, dict[str, list[float]]] = {"one": {}, str(PRODUCERS): {}}
    appends: list[float] = []
    with (
        echoing() as echo,
        served(memory_path / "cluster") as (_, ours, _),
        Broker(kafka, memory_path / "kafka") as broker,
        builders.a_cluster(memory_path / "alone", topics={"events": 1}) as alone,
    ):
        create(ours, "events")
        broker.create_topic("events")
        addresses = {OURS: ours, ECHO: echo, PEER: broker.address}
        for number in range(ROUNDS + 1):
            appends.append(appends_per_s(alone))
            for name, address in [*addresses.items()][:: 1 if number % 2 else -1]:
                for what, connections in (("one", 1), (str(PRODUCERS), PRODUCERS)):
                    rate = answers_per_s(address, connections)
                    found[what].setdefault(name, []).append(rate)
    appends = appends[1:]
    for what, rates in found.items():
        rates = {name: rates_of[1:] for name, rates_of in rates.items()}
        rates[CEILING] = [
            1 / (1 / echoes + 1 / appended)
            for echoes, appended in zip(rates[ECHO], appends, strict=True)
        ]
        rates[APPEND] = appends
        targets.rates(
            Rates(rates), f"requests, connections: {what}", "requests/s",
            {(OURS, CEILING): OF_CEILING, (OURS, PEER): OF_CEILING},
        )  # fmt: skip
