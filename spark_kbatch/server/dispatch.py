"""The table of requests: who answers which, in which versions and threads; and the way to there.

A request that cannot be decoded, or is of a key or version that was not offered, ends the connection, as
in Kafka: nothing tells where its fields are. ApiVersions is the exception.
"""

from __future__ import annotations

import functools
import logging
import struct
from collections.abc import Mapping
from typing import NamedTuple

from spark_kbatch.errors import KBatchError, UnsupportedVersionError
from spark_kbatch.server.api_versions import ApiVersionsHandler
from spark_kbatch.server.connection import Connection, Exchange
from spark_kbatch.server.pools import Pool
from spark_kbatch.server.requests import HANG_UP, Handler, Received
from spark_kbatch.wire import protocol
from spark_kbatch.wire.protocol import ApiKey, Versions

logger = logging.getLogger(__name__)

_START = struct.Struct(">hhi")  # of every request's header: key, version, correlation id
_DECODED_BY_LOOP_MAX = 65_536  # bytes; a larger request would keep the loop from others


class Entry(NamedTuple):
    """One kind of request."""

    handler: Handler
    pool: Pool | None
    by_loop: (
        bool  # whether the handler of a small request is called by the loop: it waits for nothing
    )


class Dispatch:
    """The handlers by api key. Filled before the server listens."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self.register(ApiKey.API_VERSIONS, ApiVersionsHandler(self.supported).handle, None)

    def register(
        self, api_key: int, handler: Handler, pool: Pool | None, *, by_loop: bool = False
    ) -> None:
        """Have requests of this key answered, in all versions that `protocol` knows.

        Args:
            api_key: the kind of request.
            handler: answers it.
            pool: whose threads call the handler; None for the loop alone.
            by_loop: whether the loop calls it where the request is small.
        """
        self._entries[api_key] = Entry(handler, pool, by_loop or pool is None)

    def supported(self) -> Mapping[int, Versions]:
        """Return the versions of what is answered, by api key."""
        return {key: protocol.SUPPORTED[key] for key in self._entries}

    def request(self, connection: Connection, frame: memoryview) -> None:
        """Have a request answered; called by the loop.

        Raises:
            ProtocolError, UnsupportedVersionError: it is not one that this server answers.
        """
        api_key, version, correlation_id = _START.unpack_from(frame)
        exchange = Exchange(connection, api_key, version, correlation_id)
        entry = self._entries.get(api_key)
        if entry is None:
            raise UnsupportedVersionError(api_key, "", version, None, correlation_id)
        versions = protocol.SUPPORTED[api_key]
        if api_key == ApiKey.API_VERSIONS and version not in versions:
            exchange = Exchange(connection, api_key, 0, correlation_id)
            self._run(entry.handler, _received(connection, api_key, version, "", None), exchange)
        elif entry.pool is not None and len(frame) > _DECODED_BY_LOOP_MAX:
            entry.pool.submit(
                functools.partial(self._decode_and_run, entry.handler, connection, frame, exchange)
            )
        elif entry.pool is None or entry.by_loop:
            self._run(entry.handler, self._decoded(connection, frame), exchange)
        else:
            received = self._decoded(connection, frame)
            entry.pool.submit(functools.partial(self._run, entry.handler, received, exchange))

    def _decoded(self, connection: Connection, frame: memoryview) -> Received:
        request = protocol.decode_request(frame)
        return _received(
            connection, request.api_key, request.version, request.client_id or "", request.body
        )

    def _decode_and_run(
        self, handler: Handler, connection: Connection, frame: memoryview, exchange: Exchange
    ) -> None:
        try:
            received = self._decoded(connection, frame)
        except KBatchError as error:
            exchange.fail(error)
            return
        self._run(handler, received, exchange)

    def _run(self, handler: Handler, received: Received, exchange: Exchange) -> None:
        try:
            handler(received, exchange.respond)
        except Exception:
            logger.exception("a request of key %d failed", received.api_key)
            if not exchange.is_answered:
                exchange.respond(HANG_UP)


def _received(
    connection: Connection, api_key: int, version: int, client_id: str, body: object
) -> Received:
    return Received(
        api_key, version, client_id, connection.client_host, connection.local_address, body
    )
