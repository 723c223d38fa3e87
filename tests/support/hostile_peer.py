"""A hostile peer: with a seed it chooses among many attacks on a server, within a rate and 100 connections.

    python -m tests.support.hostile_peer ADDRESS SEED SECONDS

It sends at most 1 MB/s, and reads no more than that. It does not delete what others made. On Linux it
comes from an address of its own, 127.0.0.2.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import struct
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from spark_kbatch.model import TopicPartition
from spark_kbatch.wire import protocol as p
from spark_kbatch.wire.framing import SIZE
from spark_kbatch.wire.protocol import ApiKey
from spark_kbatch.wire.records import produce_request
from tests.support import builders
from tests.support.raw_clients import fetch, fetch_several, produce, request
from tests.support.store import reader_of
from tests.support.worst_requests import CASES, bomb, worst

RATE = 1_000_000  # bytes/s
CONNECTIONS = 100
HOST = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"
OWN, OWN_PARTITIONS = "hostile", 2000  # a topic that is there
_PIECE = 16_384
_MiB = 1 << 20


class Bucket:
    """A token bucket of bytes."""

    def __init__(self) -> None:
        self._free_s = 0.0

    async def take(self, size_in_bytes: int) -> None:
        """Wait until so many bytes may pass."""
        now_s = time.monotonic()
        self._free_s = max(self._free_s, now_s - 0.1) + size_in_bytes / RATE
        if self._free_s > now_s:
            await asyncio.sleep(self._free_s - now_s)


class Line:
    """One connection of the hostile peer."""

    def __init__(self, peer: Peer, reader: Any, writer: Any) -> None:
        self._peer, self._reader, self._writer = peer, reader, writer

    async def send(self, data: bytes, pause_s: float = 0.0) -> None:
        for start in range(0, len(data), _PIECE):
            piece = data[start : start + _PIECE]
            await self._peer.sending.take(len(piece))
            self._writer.write(piece)
            await self._writer.drain()
            if pause_s:
                await asyncio.sleep(pause_s)

    async def read_answer(self) -> None:
        (left,) = SIZE.unpack(await self._reader.readexactly(SIZE.size))
        while left:
            got = await self._reader.read(min(left, _PIECE))
            if not got:
                raise ConnectionError
            left -= len(got)
            await self._peer.reading.take(len(got))

    async def ask(self, data: bytes) -> None:
        await self.send(data)
        await self.read_answer()


class Peer:
    """The hostile peer: workers that attack, each with one connection at a time."""

    def __init__(self, address: str, seed: int, seconds: float) -> None:
        host, port = address.rsplit(":", 1)
        self._host, self._port = host, int(port)
        self.rng = random.Random(seed)
        self._until_s = time.monotonic() + seconds
        self.sending, self.reading = Bucket(), Bucket()
        self.counts: Counter[str] = Counter()

    async def run(self) -> None:
        await asyncio.gather(*(self._work() for _ in range(CONNECTIONS)))

    @contextlib.asynccontextmanager
    async def _line(self) -> Any:
        await self.sending.take(200)
        reader, writer = await asyncio.open_connection(
            self._host, self._port, local_addr=(HOST, 0), limit=_PIECE
        )
        try:
            yield Line(self, reader, writer)
        finally:
            writer.transport.abort()

    async def _work(self) -> None:
        while (left_s := self._until_s - time.monotonic()) > 0:
            attack = self.rng.choice(ATTACKS)
            self.counts[attack.__name__] += 1
            lasts_s = min(left_s, self.rng.choice((1, 3, 10, 40)))
            with contextlib.suppress(OSError, EOFError, TimeoutError):
                async with asyncio.timeout(lasts_s), self._line() as line:
                    await attack(self, line)
            await asyncio.sleep(0.01)


@functools.cache
def frame(case: tuple[ApiKey, int], count: int, topic: str) -> bytes:
    return worst(*case, count, topic)


def _any(peer: Peer, *, large: bool) -> bytes:
    """Return a request of any kind that names much; few of the sizes there are, so that they are made once."""
    topic = peer.rng.choice((OWN, "nowhere"))
    count = peer.rng.choice((20_000, 60_000) if large else (1, 30, 1000))
    case = peer.rng.choice(CASES)
    if topic == OWN and case[0] in (ApiKey.PRODUCE, ApiKey.OFFSET_COMMIT, ApiKey.DELETE_RECORDS):
        count = min(count, OWN_PARTITIONS)
    return frame(case, count, topic)


async def huge_requests(peer: Peer, line: Line) -> None:
    while True:
        await line.ask(_any(peer, large=True))


async def middling_requests(peer: Peer, line: Line) -> None:
    while True:
        await line.ask(_any(peer, large=False))


async def a_flood_of_small_ones(peer: Peer, line: Line) -> None:
    data = frame(peer.rng.choice(CASES), 1, OWN)
    while True:
        await line.send(data * 50)
        for _ in range(50):
            await line.read_answer()


async def unread_answers(peer: Peer, line: Line) -> None:
    asked = peer.rng.choice(
        (
            request(ApiKey.METADATA, 9, p.MetadataRequest(topics=None)),
            request(ApiKey.FETCH, 12, fetch(0, "victim", max_bytes=50 * _MiB)),
            request(ApiKey.LIST_GROUPS, 4, p.ListGroupsRequest(states_filter=[])),
            frame((ApiKey.OFFSET_FETCH, 7), 20_000, OWN),
        )
    )
    await line.send(asked * 20)
    await asyncio.sleep(40)


async def slow_answers(peer: Peer, line: Line) -> None:
    await line.send(request(ApiKey.FETCH, 12, fetch(0, "victim", max_bytes=50 * _MiB)) * 5)
    while True:
        await asyncio.sleep(peer.rng.choice((0.1, 1, 5)))
        await reader_of(line).read(peer.rng.choice((1, 1000)))


async def trickles(peer: Peer, line: Line) -> None:
    size = peer.rng.choice((20_000, _MiB, 100_000_000))
    await line.send(SIZE.pack(size) + struct.pack(">hhi", 0, 9, 1))
    await line.send(bytes(min(size // 2, peer.rng.choice((0, 16_000, 3 * _MiB)))))
    while True:
        await line.send(b"\0")
        await asyncio.sleep(peer.rng.choice((0.01, 0.5, 5)))


async def halves(peer: Peer, line: Line) -> None:
    data = _any(peer, large=peer.rng.random() < 0.3)
    await line.send(data[: len(data) // 2])
    await asyncio.sleep(peer.rng.choice((0, 1, 40)))


async def connections(peer: Peer, line: Line) -> None:
    while True:
        async with peer._line():
            pass


async def garbage(peer: Peer, line: Line) -> None:
    data = bytearray(peer.rng.choice((_any(peer, large=False), peer.rng.randbytes(5000))))
    for _ in range(peer.rng.choice((0, 1, 10))):
        data[peer.rng.randrange(4, len(data))] ^= 1 << peer.rng.randrange(8)
    await line.ask(bytes(data))


async def bombs(peer: Peer, line: Line) -> None:
    compression = peer.rng.choice(("zstd", "gzip", "snappy", "lz4"))
    data = _bomb(compression, peer.rng.choice((1, 16, 128)) * _MiB)
    while True:
        number = peer.rng.randrange(OWN_PARTITIONS)
        await line.ask(request(ApiKey.PRODUCE, 9, produce(data, OWN, number)))


@functools.cache
def _bomb(compression: str, size_in_bytes: int) -> bytes:
    return bomb(compression, size_in_bytes)


async def small_batches(peer: Peer, line: Line) -> None:
    batch = builders.batch(n=1, value_bytes=10)
    while True:
        numbers = peer.rng.sample(range(OWN_PARTITIONS), peer.rng.choice((1, 20, 200)))
        batches = {TopicPartition(OWN, number): batch for number in numbers}
        acks = peer.rng.choice((-1, 1))
        await line.ask(request(ApiKey.PRODUCE, 9, produce_request(acks, 5000, batches)))


async def long_polls(peer: Peer, line: Line) -> None:
    count = peer.rng.choice((1, 1000, OWN_PARTITIONS))
    wait_ms = peer.rng.choice((50, 60_000))
    body = fetch(10**6, "victim", max_wait_ms=wait_ms)
    if peer.rng.random() < 0.8:
        at_start = dict.fromkeys(range(count), 0)
        body = fetch_several(at_start, OWN, max_wait_ms=wait_ms, min_bytes=2**31 - 1, max_bytes=0)
    while True:
        await line.ask(request(ApiKey.FETCH, 12, body))


async def fetches_in_a_loop(peer: Peer, line: Line) -> None:
    while True:
        await line.ask(request(ApiKey.FETCH, 12, fetch(0, "victim", max_bytes=_MiB)))


async def times(peer: Peer, line: Line) -> None:
    while True:
        await line.ask(frame((ApiKey.LIST_OFFSETS, 7), OWN_PARTITIONS, OWN))


async def joins(peer: Peer, line: Line) -> None:
    make = p.JoinGroupRequest.JoinGroupRequestProtocol
    while True:
        body = p.JoinGroupRequest(
            group_id=f"h{peer.rng.randrange(10 ** peer.rng.choice((1, 6)))}",
            session_timeout_ms=1_800_000, rebalance_timeout_ms=peer.rng.choice((1, 2**31 - 1)),
            member_id="", protocol_type="consumer",
            protocols=[make(name="range", metadata=bytes(peer.rng.choice((0, 1000, 900_000))))],
        )  # fmt: skip
        await line.ask(request(ApiKey.JOIN_GROUP, peer.rng.choice((3, 7)), body))


async def commits(peer: Peer, line: Line) -> None:
    make = p.OffsetCommitRequest.OffsetCommitRequestTopic
    while True:
        numbers = range(peer.rng.choice((1, 200)))
        text = "m" * peer.rng.choice((0, 4096))
        body = p.OffsetCommitRequest(
            group_id=f"c{peer.rng.randrange(10 ** peer.rng.choice((1, 6)))}",
            generation_id_or_member_epoch=-1, member_id="", group_instance_id=None,
            retention_time_ms=-1,
            topics=[
                make(
                    name=OWN,
                    partitions=[
                        make.OffsetCommitRequestPartition(
                            partition_index=one, committed_offset=1, committed_leader_epoch=-1,
                            committed_metadata=text,
                        )
                        for one in numbers
                    ],
                )
            ],
        )  # fmt: skip
        await line.ask(request(ApiKey.OFFSET_COMMIT, 8, body))


async def new_topics(peer: Peer, line: Line) -> None:
    make = p.CreateTopicsRequest.CreatableTopic
    while True:
        count = peer.rng.choice((1, 1, 1, 10, 100_000))
        topics = [
            make(
                name=f"h-{peer.rng.randrange(10**9)}", num_partitions=count, replication_factor=1,
                assignments=[], configs=[],
            )
            for _ in range(peer.rng.choice((1, 10)))
        ]  # fmt: skip
        body = p.CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=False)
        await line.ask(request(ApiKey.CREATE_TOPICS, 5, body))


async def topics_by_metadata(peer: Peer, line: Line) -> None:
    make = p.MetadataRequest.MetadataRequestTopic
    topics = [make(name=f"h-{peer.rng.randrange(10**9)}") for _ in range(20)]
    await line.ask(
        request(
            ApiKey.METADATA, 9, p.MetadataRequest(topics=topics, allow_auto_topic_creation=True)
        )
    )


async def producer_ids(peer: Peer, line: Line) -> None:
    while True:
        name = peer.rng.choice((None, f"t{peer.rng.random()}"))
        body = p.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1000)
        await line.ask(request(ApiKey.INIT_PRODUCER_ID, 4, body))


ATTACKS: tuple[Callable[[Peer, Line], Awaitable[None]], ...] = (
    huge_requests, huge_requests, middling_requests, a_flood_of_small_ones, unread_answers,
    slow_answers, trickles, halves, connections, garbage, bombs, small_batches, long_polls,
    fetches_in_a_loop, times, joins, commits, new_topics, topics_by_metadata, producer_ids,
)  # fmt: skip


def main(address: str, seed: str, seconds: str) -> None:
    peer = Peer(address, int(seed), float(seconds))
    asyncio.run(peer.run())
    sys.stdout.write(f"{dict(peer.counts)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
