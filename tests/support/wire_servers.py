"""Servers that speak Kafka's protocol and do what a test says: in memory, and on loopback."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from spark_kbatch.record.checksums import Buffer
from spark_kbatch.wire.channel import Channel
from spark_kbatch.wire.connections import Node
from spark_kbatch.wire.protocol import (
    SUPPORTED,
    ApiKey,
    ApiVersionsResponse,
    FetchResponse,
    MetadataResponse,
    Request,
    Versions,
    decode_request,
    encode_response,
)
from tests.support.narrow_sockets import NarrowSocket


def versions_body(offered: Mapping[int, Versions] = SUPPORTED, error_code: int = 0) -> Any:
    """Return the answer to ApiVersions: all that is supported, unless told otherwise."""
    return ApiVersionsResponse(
        error_code=error_code,
        api_keys=[
            ApiVersionsResponse.ApiVersion(
                api_key=int(key), min_version=versions.first, max_version=versions.last
            )
            for key, versions in offered.items()
        ],
    )


def metadata_body(cluster_id: str = "a-cluster") -> Any:
    """Return an answer to Metadata without brokers and topics."""
    return MetadataResponse(brokers=[], cluster_id=cluster_id, controller_id=1, topics=[])


def metadata_answer(
    nodes: list[Node], leaders: dict[str, list[int]], epoch: int = 0, **fields: Any
) -> Any:
    """Return an answer to Metadata; `leaders` has the leader of each partition, by topic."""
    topic, broker = MetadataResponse.MetadataResponseTopic, MetadataResponse.MetadataResponseBroker
    return MetadataResponse(
        brokers=[broker(node_id=one.id, host=one.host, port=one.port) for one in nodes],
        cluster_id="a-cluster",
        controller_id=nodes[0].id,
        topics=[
            topic(
                error_code=0,
                name=name,
                partitions=[
                    topic.MetadataResponsePartition(
                        error_code=0,
                        partition_index=number,
                        leader_id=leader,
                        leader_epoch=epoch,
                        replica_nodes=[1, 2],
                        isr_nodes=[1, 2],
                    )
                    for number, leader in enumerate(of)
                ],
            )
            for name, of in leaders.items()
        ],
        **fields,
    )


class ServerEnd:
    """The server's end of a connection in memory: takes requests, and answers when told."""

    def __init__(self, sock: NarrowSocket) -> None:
        self.channel = Channel(sock, "a client")
        self.requests: deque[Request] = deque()  # not answered
        self.received = 0
        self._unsent: deque[list[Buffer]] = deque()

    def step(self) -> None:
        """Read and write what the buffers hold."""
        for frame in self.channel.read():
            self.requests.append(decode_request(frame))
            self.received += 1
        if not self.channel.is_sending and self._unsent:
            self.channel.start(self._unsent.popleft())
        self.channel.write()

    def answer(self, body: Any, *, correlation_id: int | None = None) -> None:
        """Answer the oldest request."""
        request = self.requests.popleft()
        given = request.correlation_id if correlation_id is None else correlation_id
        self._unsent.append(encode_response(request.api_key, request.version, given, body))


class LoopbackServer:
    """A server on a free port of loopback, which calls `answer` with each request.

    `answer` returns the body of an answer, None for none, or "hang up" to close the connection.
    ApiVersions is answered by itself unless `offered` is None. With `tls` it speaks TLS.
    """

    def __init__(
        self,
        answer: Callable[[Request], Any] = lambda request: metadata_body(),
        *,
        offered: Mapping[int, Versions] | None = SUPPORTED,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self._answer = answer
        self._offered = offered
        self.requests: list[Request] = []
        self.accepted = 0
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", port))
        self.node = Node(-1, *self._listener.getsockname())
        self._start(self._accept)

    def __enter__(self) -> LoopbackServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the listener and all connections, and wait for the threads."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()
        for thread in self._threads:
            thread.join()

    def hang_up(self) -> None:
        """Close all connections."""
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _start(self, run: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=run, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self.accepted += 1
                self._sockets.append(sock)
                self._start(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stack.enter_context(sock)
            if self._tls is not None:
                sock = stack.enter_context(self._tls.wrap_socket(sock, server_side=True))
            while head := _read(sock, 4):
                (size,) = struct.unpack(">i", head)
                request = decode_request(memoryview(_read(sock, size)))
                self.requests.append(request)
                body = self._body(request)
                if isinstance(body, str):
                    return
                if body is not None:
                    pieces = encode_response(
                        request.api_key, request.version, request.correlation_id, body
                    )
                    answer = b"".join(pieces)
                    sock.sendall(struct.pack(">i", len(answer)) + answer)

    def _body(self, request: Request) -> Any:
        if request.api_key == ApiKey.API_VERSIONS and self._offered is not None:
            return versions_body(self._offered)
        return self._answer(request)


def _read(sock: socket.socket, size: int) -> bytes:
    """Return the next bytes; fewer at the end."""
    found = bytearray()
    while len(found) < size and (more := sock.recv(size - len(found))):
        found += more
    return bytes(found)


def fetch_answer(records: bytes) -> Any:
    """Return an answer to Fetch with records of one partition."""
    topic = FetchResponse.FetchableTopicResponse
    return FetchResponse(
        responses=[topic(topic="t", partitions=[topic.PartitionData(records=records)])]
    )
