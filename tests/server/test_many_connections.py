"""A server with a thousand connections: what they cost while they wait, and what is left after they worked.

The server is a process of its own, so that only its memory, descriptors, threads and time are measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.wire import protocol
from spark_kbatch.wire.framing import SIZE
from spark_kbatch.wire.protocol import (
    ApiKey,
    FindCoordinatorRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetCommitRequest,
)
from tests.support import builders
from tests.support.raw_clients import CORRELATION_ID, fetch, produce, request
from tests.support.served import Served

MiB = 1 << 20
CONNECTIONS, BUSY = 1000, 200
PARTITIONS = 20

SOAK_S, WARM_S = 300, 60
REQUESTS_PER_CONNECTION = 50  # of a busy client, before it connects again
LONGEST_ANSWER_S = 15.0
GROWTH_MAX_BYTES = 16 * MiB

IDLE_S = 20
CORE_SHARE_MAX = 0.03

BATCH = builders.batch(n=10)


class Peer:
    """One connection."""

    def __init__(self, address: str) -> None:
        self._host, port = address.rsplit(":", 1)
        self._port = int(port)

    async def connect(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def receive(self, api_key: ApiKey, version: int) -> Any:
        (size,) = SIZE.unpack(await self._reader.readexactly(SIZE.size))
        frame = memoryview(bytearray(await self._reader.readexactly(size)))
        answer = protocol.decode_response(api_key, version, frame)
        assert answer.correlation_id == CORRELATION_ID
        return answer.body

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


class Kind(NamedTuple):
    """A request that busy clients send, encoded once for each partition."""

    api_key: ApiKey
    version: int
    frames: list[bytes]


def kinds() -> list[Kind]:
    offsets = ListOffsetsRequest.ListOffsetsTopic
    commits = OffsetCommitRequest.OffsetCommitRequestTopic
    of_partitions: dict[tuple[ApiKey, int], Any] = {
        (ApiKey.PRODUCE, 9): lambda p: produce(BATCH, partition=p, acks=-1),
        (ApiKey.FETCH, 12): lambda p: fetch(0, partition=p, max_bytes=8192),
        (ApiKey.METADATA, 9): lambda _: MetadataRequest(topics=None),
        (ApiKey.FIND_COORDINATOR, 3): lambda _: FindCoordinatorRequest(key="g", key_type=0),
        (ApiKey.LIST_OFFSETS, 5): lambda p: ListOffsetsRequest(
            replica_id=-1,
            isolation_level=0,
            topics=[
                offsets(
                    name="events",
                    partitions=[
                        offsets.ListOffsetsPartition(
                            partition_index=p, current_leader_epoch=-1, timestamp=-1
                        )
                    ],
                )
            ],
        ),
        (ApiKey.OFFSET_COMMIT, 7): lambda p: OffsetCommitRequest(
            group_id=f"group-{p}",
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            topics=[
                commits(
                    name="events",
                    partitions=[
                        commits.OffsetCommitRequestPartition(
                            partition_index=p,
                            committed_offset=1,
                            committed_leader_epoch=-1,
                            committed_metadata="",
                        )
                    ],
                )
            ],
        ),
    }  # fmt: skip
    return [
        Kind(api_key, version, [request(api_key, version, body(p)) for p in range(PARTITIONS)])
        for (api_key, version), body in of_partitions.items()
    ]


def errors_of(body: Any) -> set[int]:
    """Return all error codes in an answer."""
    found = {getattr(body, "error_code", 0) or 0}
    for topic in getattr(body, "topics", ()):
        for part in (topic, *topic.partitions):
            found.add(getattr(part, "error_code", 0) or 0)
    return found


class Load:
    """Busy clients and waiting ones, until a time."""

    def __init__(self, address: str, until_s: float) -> None:
        self._address, self._until_s = address, until_s
        self._kinds = kinds()
        self.answers: Counter[ApiKey] = Counter()
        self.longest_s = 0.0
        self.connected = 0

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._until_s

    async def run(self, watch: Any) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(CONNECTIONS):
                work = self._busy if number < BUSY else self._waiting
                group.create_task(work(random.Random(number)))
            group.create_task(watch(self))

    @contextlib.asynccontextmanager
    async def _peer(self) -> Any:
        peer = Peer(self._address)
        await peer.connect()
        self.connected += 1
        try:
            yield peer
        finally:
            self.connected -= 1
            await peer.close()

    async def _busy(self, rng: random.Random) -> None:
        while not self.is_over:
            async with self._peer() as peer:
                for _ in range(REQUESTS_PER_CONNECTION):
                    kind = rng.choice(self._kinds)
                    started_s = time.monotonic()
                    peer.send(rng.choice(kind.frames))
                    body = await peer.receive(kind.api_key, kind.version)
                    assert errors_of(body) == {0}, body
                    self.longest_s = max(self.longest_s, time.monotonic() - started_s)
                    self.answers[kind.api_key] += 1
                    if self.is_over:
                        return
                # A client that dies in the middle of a request, and one that does not wait for its answer.
                frame = rng.choice(self._kinds).frames[0]
                peer.send(frame[: rng.choice((len(frame), len(frame) // 2))])

    async def _waiting(self, rng: random.Random) -> None:
        async with self._peer() as peer:
            while not self.is_over:
                asked = fetch(0, "quiet", rng.randrange(PARTITIONS), max_wait_ms=5000)
                peer.send(request(ApiKey.FETCH, 12, asked))
                assert errors_of(await peer.receive(ApiKey.FETCH, 12)) == {0}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    topics = {"events": PARTITIONS, "quiet": PARTITIONS}
    config = TopicConfig(retention_ms=-1)
    with builders.a_cluster(tmp_path, topics=topics, config=config) as cluster:
        pass
    with Served(cluster.path, tmp_path / "server.log") as server:
        yield server


@pytest.mark.slow
def test_a_thousand_connections_leave_nothing_behind(server: Served) -> None:
    process = psutil.Process(server.pid)
    # All threads of the pools are started by a first round of requests, and stay.
    asyncio.run(Load(server.address, time.monotonic() + 2).run(_nothing))
    descriptors, threads = settled(process)
    resident: list[int] = []

    async def watch(load: Load) -> None:
        while not load.is_over:
            await asyncio.sleep(1)
            resident.append(process.memory_info().rss)
            most = max(most_connected[0], load.connected)
            most_connected[0] = most

    most_connected = [0]
    load = Load(server.address, time.monotonic() + SOAK_S)
    asyncio.run(load.run(watch))

    after = settled(process)
    third = (len(resident) - WARM_S) // 3
    early, late = max(resident[WARM_S:][:third]), max(resident[WARM_S:][-third:])
    print(
        f"{load.answers.total()} answers, the slowest after {load.longest_s:.2f} s; resident "
        f"{early / MiB:.1f} MiB, at the end {late / MiB:.1f}; descriptors and threads "
        f"{descriptors} and {threads}, after it {after}"
    )
    assert most_connected[0] == CONNECTIONS
    assert min(load.answers.values()) > 1000
    assert load.longest_s < LONGEST_ANSWER_S
    assert late - early < GROWTH_MAX_BYTES
    assert after == (descriptors, threads)


async def _nothing(_: Load) -> None:
    pass


def settled(process: psutil.Process) -> tuple[int, int]:
    """Return the number of descriptors and threads once they no longer fall."""
    found = process.num_fds(), process.num_threads()
    for _ in range(20):
        time.sleep(0.5)
        before, found = found, (process.num_fds(), process.num_threads())
        if before == found:
            break
    return found


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [1, PARTITIONS], ids=["one partition", "many partitions"])
def test_a_thousand_waiting_fetches_cost_next_to_nothing(server: Served, partitions: int) -> None:
    process = psutil.Process(server.pid)

    async def wait() -> float:
        peers = [Peer(server.address) for _ in range(CONNECTIONS)]
        for number, peer in enumerate(peers):
            await peer.connect()
            asked = fetch(0, "quiet", number % partitions, max_wait_ms=600_000)
            peer.send(request(ApiKey.FETCH, 12, asked))
        await asyncio.sleep(3)
        before, started_s = process.cpu_times(), time.monotonic()
        await asyncio.sleep(IDLE_S)
        after, elapsed_s = process.cpu_times(), time.monotonic() - started_s
        for peer in peers:
            await peer.close()
        return (after.user + after.system - before.user - before.system) / elapsed_s

    share = asyncio.run(wait())

    print(f"{share:.2%} of a core")
    assert share <= CORE_SHARE_MAX
