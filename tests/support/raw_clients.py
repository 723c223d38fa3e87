"""A client of Kafka's protocol that sends whatever a test wants, byte by byte."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from spark_kbatch.model import TopicPartition
from spark_kbatch.server.server import Server
from spark_kbatch.wire import protocol
from spark_kbatch.wire.framing import SIZE
from spark_kbatch.wire.protocol import ApiKey
from spark_kbatch.wire.records import ReadPart, fetch_request, produce_request

CLIENT_ID, CORRELATION_ID = "a test", 11


def framed(data: bytes) -> bytes:
    """Return the bytes with their size before them."""
    return SIZE.pack(len(data)) + data


def request(
    api_key: ApiKey, version: int, body: Any, correlation_id: int = CORRELATION_ID
) -> bytes:
    """Return a framed request."""
    pieces = protocol.encode_request(api_key, version, correlation_id, CLIENT_ID, body)
    return framed(b"".join(pieces))


def produce(
    batch: bytes | None,
    topic: str = "events",
    partition: int = 0,
    *,
    acks: int = -1,
    timeout_ms: int = 10_000,
    transactional_id: str | None = None,
) -> protocol.ProduceRequest:
    """Return a Produce of one batch."""
    batches = {TopicPartition(topic, partition): batch}
    return produce_request(acks, timeout_ms, batches, transactional_id)


def fetch(
    offset: int,
    topic: str = "events",
    partition: int = 0,
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    current_leader_epoch: int = -1,
    **named: Any,
) -> protocol.FetchRequest:
    """Return a Fetch of one partition."""
    part = ReadPart(offset, max_bytes, current_leader_epoch)
    return fetch_request(
        {TopicPartition(topic, partition): part}, max_wait_ms=max_wait_ms, min_bytes=min_bytes,
        **named,
    )  # fmt: skip


def fetch_several(offsets: Mapping[int, int], topic: str = "events", **named: Any) -> Any:
    """Return a Fetch of several partitions of a topic, from these offsets."""
    whole = fetch(0, topic, **named)
    whole.topics[0].partitions = [
        fetch(offset, topic, partition, **named).topics[0].partitions[0]
        for partition, offset in offsets.items()
    ]
    return whole


class RawClient:
    """One connection, with a blocking socket."""

    def __init__(self, server: Server, *, timeout_s: float = 10.0) -> None:
        self.socket = socket.create_connection((server.host, server.port), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def end_sending(self) -> None:
        """Tell the server that nothing more comes; its answers can still be read.

        Raises:
            ConnectionError: the server has closed already.
        """
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            if error.errno == errno.ENOTCONN:
                raise ConnectionError("the server has closed the connection") from error
            raise

    def receive(self, api_key: ApiKey, version: int, correlation_id: int = CORRELATION_ID) -> Any:
        """Return the body of the next answer, which must be to this request."""
        (size,) = SIZE.unpack(self.read(SIZE.size))
        frame = memoryview(bytearray(self.read(size)))
        answer = protocol.decode_response(api_key, version, frame)
        assert answer.correlation_id == correlation_id
        return answer.body

    def read(self, size: int) -> bytes:
        """Return exactly so many bytes.

        Raises:
            ConnectionError: the connection ends before.
        """
        found = bytearray()
        while len(found) < size:
            some = self.socket.recv(size - len(found))
            if not some:
                raise ConnectionError(f"closed after {len(found)} of {size} bytes")
            found += some
        return bytes(found)

    def ask(self, api_key: ApiKey, version: int, body: Any) -> Any:
        """Send a request; return the body of its answer."""
        self.send(request(api_key, version, body))
        return self.receive(api_key, version)

    def is_closed_by_server(self) -> bool:
        """Return True once the server has closed, False if it sends something."""
        try:
            return not self.socket.recv(1)
        except ConnectionError:
            return True


def produced(answer: protocol.ProduceResponse) -> Any:
    """Return the one partition of an answer."""
    return answer.responses[0].partition_responses[0]


def fetched(answer: protocol.FetchResponse) -> Any:
    """Return the one partition of an answer."""
    return answer.responses[0].partitions[0]
