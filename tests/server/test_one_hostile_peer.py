"""One unauthenticated peer with 1 MB/s and 100 connections neither holds others up nor takes the memory.

    KBATCH_SCHEDULES=5 KBATCH_SCHEDULES_FIRST=7 pytest -m slow tests/server/test_one_hostile_peer.py

Others send a request of each kind in turn, each kind from a connection of its own, first alone, then beside
the hostile peer, which has a process and an address of its own.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from spark_kbatch.wire import protocol
from spark_kbatch.wire.protocol import ApiKey
from tests.conftest import REPOSITORY
from tests.support import builders, draws
from tests.support.hostile_peer import OWN, OWN_PARTITIONS
from tests.support.raw_clients import RawClient, fetch, produce, request
from tests.support.served import Served

SECONDS = draws.at_least(240)  # so that the first two are less than a hundredth
SEED = 1 + draws.FIRST
QUIET_S = 10.0
P99_MAX_S = 0.5  # of others beside the peer, on a machine that is busy with both
RSS_MAX = 512 << 20
DESCRIPTORS_MAX = 400  # the peer's connections, and as many that are gone, others', and files
PAUSE_S = 0.02
TOPIC = "victim"

Ask = Callable[[RawClient], Any]


class _At:
    """The address of a server in another process, for `RawClient`."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.host, self.port = host, int(port)


def member(client: RawClient) -> protocol.HeartbeatRequest:
    """Join a new group as its only member; return the heartbeat that it has to send."""
    group_id = f"group-{uuid.uuid4()}"
    join = protocol.JoinGroupRequest
    joined = client.ask(
        ApiKey.JOIN_GROUP, 3,
        join(
            group_id=group_id, session_timeout_ms=6000, rebalance_timeout_ms=6000, member_id="",
            protocol_type="consumer",
            protocols=[join.JoinGroupRequestProtocol(name="range", metadata=b"")],
        ),
    )  # fmt: skip
    sync = protocol.SyncGroupRequest
    client.ask(
        ApiKey.SYNC_GROUP, 3,
        sync(
            group_id=group_id, generation_id=joined.generation_id, member_id=joined.member_id,
            assignments=[],
        ),
    )  # fmt: skip
    return protocol.HeartbeatRequest(
        group_id=group_id, generation_id=joined.generation_id, member_id=joined.member_id
    )


class Others:
    """Clients that send requests one after another, and time each."""

    def __init__(self, address: str) -> None:
        self._at: Any = _At(address)
        self.times_s: dict[str, list[float]] = {}
        self.failures: list[str] = []

    def work(self, seconds: float) -> None:
        """Send requests for some time; a failure ends its client."""
        kinds: Mapping[str, tuple[ApiKey, int, Callable[[RawClient], Any]]] = {
            "produce": (ApiKey.PRODUCE, 9, lambda _: produce(builders.batch(n=1), TOPIC)),
            "fetch": (ApiKey.FETCH, 12, lambda _: fetch(0, TOPIC, partition=1, max_bytes=1000)),
            "heartbeat": (ApiKey.HEARTBEAT, 4, member),
            "metadata": (
                ApiKey.METADATA, 9, lambda _: protocol.MetadataRequest(
                    topics=[protocol.MetadataRequest.MetadataRequestTopic(name=TOPIC)]
                ),
            ),
        }  # fmt: skip
        self.times_s = {kind: [] for kind in kinds}
        threads = [
            threading.Thread(target=self._work, args=(kind, seconds, *how))
            for kind, how in kinds.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(
        self, kind: str, seconds: float, key: ApiKey, version: int, body: Callable[..., Any]
    ) -> None:
        end_s = time.monotonic() + seconds
        try:
            with RawClient(self._at, timeout_s=30) as client:
                data = request(key, version, body(client))
                while (began_s := time.monotonic()) < end_s:
                    client.send(data)
                    answer = client.receive(key, version)
                    self.times_s[kind].append(time.monotonic() - began_s)
                    if getattr(answer, "error_code", 0):
                        raise AssertionError(f"error {answer.error_code}")
                    time.sleep(PAUSE_S)
        except Exception as error:  # noqa: BLE001  told by the test
            self.failures.append(f"{kind}: {type(error).__name__} {error}")

    def p99_s(self) -> dict[str, float]:
        return {kind: sorted(found)[len(found) * 99 // 100] for kind, found in self.times_s.items()}


class Attacked:
    """What a run beside the hostile peer has shown."""

    def __init__(self, tmp_path: Path, seed: int, seconds: float, quiet_s: float) -> None:
        self.peak_rss = self.peak_descriptors = 0
        with builders.a_cluster(tmp_path, topics={TOPIC: 2, OWN: OWN_PARTITIONS}) as cluster:
            builders.write(cluster, {(TOPIC, 1): [builders.batch(n=1, value_bytes=900_000)] * 8})
            path = cluster.path
        with Served(path, tmp_path / "log") as server:
            self._process = psutil.Process(server.pid)
            others = Others(server.address)
            others.work(1)  # loads what is loaded at first use
            others.work(quiet_s)
            self.quiet_s = others.p99_s()
            words = [
                sys.executable, "-m", "tests.support.hostile_peer", server.address, str(seed),
                str(seconds),
            ]  # fmt: skip
            over = threading.Event()
            watcher = threading.Thread(target=self._watch, args=(over,))
            watcher.start()
            hostile = subprocess.Popen(words, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
            try:
                others.work(seconds)
                self.told = hostile.communicate(timeout=60)[0]
            finally:
                over.set()
                watcher.join()
                hostile.kill()
                hostile.wait()
            self.attacked_s, self.times_s = others.p99_s(), others.times_s
            self.failures = others.failures
            self.is_alive = self._process.is_running()
            self.log = (tmp_path / "log").read_text()
            with socket.create_connection(("127.0.0.1", int(server.address.rsplit(":", 1)[1]))):
                pass

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(0.2):
            self.peak_rss = max(self.peak_rss, self._process.memory_info().rss)
            self.peak_descriptors = max(self.peak_descriptors, self._process.num_fds())

    def __str__(self) -> str:
        lines = [
            f"{kind}: quiet {self.quiet_s[kind] * 1000:.1f} ms, attacked {p99 * 1000:.1f} ms, longest "
            f"{max(self.times_s[kind]) * 1000:.0f} ms, {len(self.times_s[kind])} requests"
            for kind, p99 in self.attacked_s.items()
        ]
        held = f"RSS {self.peak_rss >> 20} MiB, {self.peak_descriptors} descriptors"
        return "\n".join([*lines, held, self.told, *self.failures])


@draws.naming_first()
def test_one_hostile_peer_stops_no_one_and_takes_bounded_memory(tmp_path: Path) -> None:
    found = Attacked(tmp_path, seed=SEED, seconds=4, quiet_s=2)

    assert not found.failures, str(found)
    assert found.is_alive
    assert "Traceback" not in found.log
    assert all(max(times) < 5 for times in found.times_s.values()), str(found)
    assert found.peak_rss < RSS_MAX, str(found)
    assert found.peak_descriptors < DESCRIPTORS_MAX, str(found)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a second loopback address is needed")
@draws.naming_first()
def test_one_hostile_peer_holds_others_up_for_half_a_second_at_most(tmp_path: Path) -> None:
    found = Attacked(tmp_path, seed=SEED, seconds=SECONDS, quiet_s=QUIET_S)

    assert not found.failures, str(found)
    assert found.peak_rss < RSS_MAX, str(found)
    assert found.peak_descriptors < DESCRIPTORS_MAX, str(found)
    assert max(found.attacked_s.values()) < P99_MAX_S, str(found)
