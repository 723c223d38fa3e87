"""How soon is a page there, and what do looks cost the clients of the server beside it?

A cluster has 1,000 topics with 10,000,000 records. Rounds alternate.

    topics    a page of topics, to its first byte, by `kbatch ui` in a process of its own. The ceiling is a page that
              shows nothing of the cluster, /health, and the peer `Cluster.describe` of as many topics in this process
    fetches   a consumer's fetches of 1 MiB from `kbatch serve --http`, one after the other with a pause between; with
              ten looks a second beside them, and without: at pages of topics; of records as text, as JSON with a
              hundred of them, and by a condition that few records meet; and at /metrics. No two looks within two
              seconds are at the same page, or the second one would get what the first one found; but scrapes are

The pages are made in the process that answers the fetches. What a scrape of /metrics costs is in bench_metrics.py.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

import spark_kbatch
from spark_kbatch.wire.protocol import ApiKey
from tests.support.raw_clients import RawClient, fetch, fetched
from tests.support.targets import Targets

TOPICS, RECORDS = 1_000, 10_000
ROUNDS, LOOKS, FETCHES = 7, 20, 300
LOOKS_A_SECOND, PAUSE_S = 10, 0.005
FIRST_BYTE_MS = 300.0
# What is looked at, with the number of the look in place of N: and how many times as long the p99 may be.
LOOKED_AT = {
    "topics": ("?page=N", 1.5),
    "records": ("topics/topic-000N/records", 3.0),
    "records as JSON": ("topics/topic-000N/records?show=json&count=100", 3.0),
    "records by a condition": ("topics/topic-000N/records?where=key+LIKE+%27%2599%27", 3.0),
    "/metrics": ("metrics", 3.0),
}


def cluster_with(path: Path, topics: int, records: int) -> None:
    rows = pa.record_batch({"key": [str(n) for n in range(records)], "value": [f"value {n}" * 4 for n in range(records)]})  # fmt: skip
    with spark_kbatch.open(path, create=True) as cluster, cluster.producer() as producer:
        for number in range(topics):
            cluster.create_topic(f"topic-{number:04}", partitions=1)
            producer.send_arrow(f"topic-{number:04}", rows)


@contextlib.contextmanager
def running(*words: str) -> Iterator[tuple[psutil.Process, dict[str, object]]]:
    """Run a command that prints a line of JSON once it is ready; yield its process, and the line."""
    run = "from spark_kbatch.cli.main import main; main()"
    command = [sys.executable, "-c", run, *words, "--no-token", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield psutil.Process(process.pid), json.loads(process.stdout.readline())
        finally:
            process.kill()


def first_byte_ms(url: str) -> float:
    started = time.perf_counter()
    with urllib.request.urlopen(url, timeout=60) as answer:
        answer.read(1)
        return (time.perf_counter() - started) * 1000


def fetch_times_ms(address: str, topic: str) -> list[float]:
    found = []
    host, _, port = address.rpartition(":")
    with RawClient(_At(host, int(port))) as client:  # type: ignore[arg-type]
        for _ in range(FETCHES):
            started = time.perf_counter()
            answer = client.ask(ApiKey.FETCH, 12, fetch(0, topic))
            found.append((time.perf_counter() - started) * 1000)
            assert fetched(answer).records
            time.sleep(PAUSE_S)
    return found


class _At:
    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port


@contextlib.contextmanager
def looked_at(url: str) -> Iterator[None]:
    """Look at pages again and again, from another process; N in the address is the last digit of a look's number."""
    looks = (
        "import itertools, sys, time, urllib.request\n"
        "for number in itertools.count():\n"
        "    started = time.monotonic()\n"
        "    urllib.request.urlopen(sys.argv[1].replace('N', str(number % 10))).read()\n"
        f"    time.sleep(max(0, {1 / LOOKS_A_SECOND} - (time.monotonic() - started)))\n"
    )
    with subprocess.Popen([sys.executable, "-c", looks, url]) as process:
        try:
            yield
        finally:
            process.kill()


def p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "cluster"
    cluster_with(path, TOPICS, RECORDS)
    return path


def bench_topics_page(large: Path, targets: Targets) -> None:
    with (
        running("ui", str(large), "--listen", "127.0.0.1:0") as (_, told),
        spark_kbatch.open(large) as cluster,
    ):
        url = str(told["url"])
        names = cluster.topic_names()[:100]
        found: dict[str, list[float]] = {"a page of topics": [], "/health": [], "describe": []}
        for number in range(LOOKS):
            time.sleep(2.1)  # or the page would show what it found before
            found["a page of topics"].append(first_byte_ms(f"{url}?page={number % 10 + 1}"))
            found["/health"].append(first_byte_ms(f"{url}health"))
            found["describe"].append(_ms(lambda: cluster.describe(names)))
    for name, times in found.items():
        targets.say(
            f"{name}: {statistics.median(times):.1f} ms ({min(times):.1f} to {max(times):.1f})"
        )
    targets.at_most("a page of topics, first byte", max(found["a page of topics"]), FIRST_BYTE_MS, " ms")  # fmt: skip


def _ms(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1000


@pytest.mark.parametrize("what", LOOKED_AT)
def bench_fetches_beside_looks(large: Path, targets: Targets, what: str) -> None:
    address_of_look, ratio_max = LOOKED_AT[what]
    with running("serve", str(large), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0") as (
        _,
        told,
    ):
        address, url = str(told["bootstrap_servers"]), str(told["url"])
        fetch_times_ms(address, "topic-0000")
        ratios = []
        for _ in range(ROUNDS):
            alone = p99(fetch_times_ms(address, "topic-0000"))
            with looked_at(url + address_of_look):
                time.sleep(1)
                beside = p99(fetch_times_ms(address, "topic-0000"))
            targets.say(f"p99 of a fetch: {alone:.2f} ms, beside looks at {what} {beside:.2f} ms")
            ratios.append(beside / alone)
    name = f"p99 of a fetch beside ten looks a second at {what}, times alone"
    targets.at_most(name, statistics.median(ratios), ratio_max)
