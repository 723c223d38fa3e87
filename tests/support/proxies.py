"""TCP proxies in front of brokers: a broker is made slow, silent or unreachable, and its requests are counted.

    with Proxies() as proxies:
        proxy = proxies.open()                  # listens
        proxy.target = broker.address
        proxy.delay_s = 0.5                     # each answer comes so much later
        proxy.stall(); proxy.go_on()            # answers are kept back, and then given
        proxy.drop()                            # closes all connections
        proxy.asked_for_producer_ids            # one for each request, with the client's process

One thread serves them all. A delay holds each answer, but not those that follow it: it makes a broker slow to
answer, not narrow.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, NamedTuple, Self

import psutil

from spark_kbatch.wire.protocol import ApiKey, decode_request

_CHUNK = 256 * 1024
_HELD_CHUNKS = 256  # of one connection, while a broker is slow


class Asked(NamedTuple):
    """A request for a producer id."""

    process: int
    producer_id: int  # which the client has already, or -1


class Proxy:
    """A proxy in front of one broker; its attributes may be set from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._going = asyncio.Event()
        self._going.set()
        self.target = ""  # HOST:PORT
        self.address = ""
        self.delay_s = 0.0
        self.refuses = False  # new connections are closed at once
        self.connections = 0  # so many were accepted
        self.requests: Counter[int] = Counter()  # by api key
        self.asked_for_producer_ids: list[Asked] = []

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_CHUNK)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Close the listener and all connections."""
        assert self._server is not None
        self._server.close()
        self._drop()

    def stall(self) -> None:
        """Keep all answers back."""
        self._call(self._going.clear)

    def go_on(self) -> None:
        """Give the answers that were kept back, and all others at once."""
        self.delay_s, self.refuses = 0.0, False
        self._call(self._going.set)

    def forget(self) -> None:
        """Count from zero again."""
        self.connections = 0
        self.requests = Counter()
        self.asked_for_producer_ids = []

    def drop(self) -> None:
        """Close all connections."""
        self._call(self._drop)

    def _drop(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def _call(self, function: Callable[[], None]) -> None:
        done = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (function(), done.set()))
        assert done.wait(10)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            if not self.refuses:
                await self._forward(reader, writer)
        except OSError:
            pass  # the broker is down
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.target.rpartition(":")
        upstream, broker = await asyncio.open_connection(host, int(port), limit=_CHUNK)
        self._writers.add(broker)
        client = writer.get_extra_info("peername")[1]
        held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_HELD_CHUNKS)
        pumps = [
            asyncio.ensure_future(one)
            for one in (
                self._requests(reader, broker, client), self._receive(upstream, held), self._answer(held, writer)
            )
        ]  # fmt: skip
        try:
            done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.exception()
        finally:
            self._writers.discard(broker)
            broker.transport.abort()
            for one in pumps:
                one.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _requests(
        self, reader: asyncio.StreamReader, broker: asyncio.StreamWriter, client: int
    ) -> None:
        """Forward request by request."""
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readexactly(6)
                size, key = int.from_bytes(head[:4]), int.from_bytes(head[4:])
                self.requests[key] += 1
                broker.write(head)
                left = size - 2
                if key == ApiKey.INIT_PRODUCER_ID:
                    body = await reader.readexactly(left)
                    request = decode_request(memoryview(head[4:] + body)).body
                    self.asked_for_producer_ids.append(
                        Asked(process_of(client), request.producer_id)
                    )
                    broker.write(body)
                    left = 0
                while left:
                    data = await reader.read(min(left, _CHUNK))
                    if not data:
                        return
                    left -= len(data)
                    broker.write(data)
                    await broker.drain()

    async def _receive(
        self, upstream: asyncio.StreamReader, held: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        while data := await upstream.read(_CHUNK):
            await held.put((self._loop.time(), data))
        await held.put((0.0, b""))

    async def _answer(
        self, held: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        while (one := await held.get())[1]:
            came, data = one
            while (wait := came + self.delay_s - self._loop.time()) > 0:
                await asyncio.sleep(min(wait, 0.05))  # the delay may have ended
            await self._going.wait()
            writer.write(data)
            await writer.drain()


def process_of(port: int) -> int:
    """Return the process that has this end of a connection on loopback, -1 if it is gone."""
    for one in psutil.net_connections("tcp"):
        if one.laddr and one.laddr.port == port and one.raddr and one.pid is not None:
            return int(one.pid)
    return -1


class Proxies:
    """Proxies, with the thread that serves them."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._open: list[Proxy] = []

    def open(self) -> Proxy:
        """Return a new proxy, which listens."""
        proxy = Proxy(self._loop)
        self._run(proxy.start())
        self._open.append(proxy)
        return proxy

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for proxy in self._open:
            self._run(proxy.close())
        self._run(_all_ended())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


async def _all_ended() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for one in others:
        one.cancel()
    await asyncio.gather(*others, return_exceptions=True)
