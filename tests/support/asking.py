"""Requests to a handler of the server, without a connection: they go through the bytes of their version."""

from __future__ import annotations

from typing import Any

from spark_kbatch.server.requests import Handler, Received
from spark_kbatch.server.unwritten_batches import UnwrittenBatches
from spark_kbatch.wire import protocol
from spark_kbatch.wire.protocol import ApiKey

LOCAL = ("127.0.0.1", 9092)


def latest(api_key: ApiKey) -> int:
    """The highest version that is offered."""
    return protocol.SUPPORTED[api_key].last


def ask(handler: Handler, api_key: ApiKey, version: int | None = None, **fields: Any) -> Any:
    """The answer to a request, of the latest version by default."""
    version = latest(api_key) if version is None else version
    asked = protocol.request_class(api_key)(**fields)
    frame = b"".join(protocol.encode_request(api_key, version, 7, "tests", asked))
    decoded = protocol.decode_request(memoryview(frame))
    received = Received(
        api_key, version, "tests", LOCAL[0], LOCAL, UnwrittenBatches(), decoded.body
    )
    answers: list[Any] = []
    handler(received, answers.append)
    (answer,) = answers
    encoded = b"".join(protocol.encode_response(api_key, version, 7, answer))
    return protocol.decode_response(api_key, version, memoryview(encoded)).body
