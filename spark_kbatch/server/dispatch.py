"""The dispatch of requests to handlers: a table by api key of handlers, versions and thread pools.

If a handler raises, its request is answered with the error's code. A request that cannot be decoded, or
has a key or version that was not offered, ends the connection, as in Kafka: no one knows where its fields
are. ApiVersions, which is answered here, is the exception: it is every client's first request, sent before
the client knows which versions the server supports. So a request of an unknown version is answered in
version 0, with the error and the list.

Source: KIP-511; ApiVersionsRequest.isValid.
"""

from __future__ import annotations

import functools
import logging
import re
import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple

from spark_kbatch.clock import monotonic_s
from spark_kbatch.errors import ProtocolError, UnsupportedVersionError
from spark_kbatch.server.connection import ClientConnection, Exchange, RequestMetrics
from spark_kbatch.server.intercepts import Intercept, InterceptedRequest, name_of
from spark_kbatch.server.memory import SMALL_REQUEST_BYTES
from spark_kbatch.server.peers import SlowWarnings, warn_once
from spark_kbatch.server.pools import CallLater, Pool
from spark_kbatch.server.refusals import refusal
from spark_kbatch.server.requests import HANG_UP, NAME_SHOWN_MAX, Handler, Received, Respond
from spark_kbatch.server.topic_names import TopicNames
from spark_kbatch.wire import protocol
from spark_kbatch.wire.errors import ErrorCode, code_of
from spark_kbatch.wire.protocol import ApiKey, Versions

logger = logging.getLogger(__name__)

_START = struct.Struct(">hhi")  # of every request's header: key, version, correlation id
# The loop handles smaller requests only, and those that name little: others would have to wait for it.
_HANDLED_BY_LOOP_MAX = 65_536  # bytes
_HUGE_BYTES = 131_072
_ELEMENTS_MAX = 32  # of all arrays, such as partitions
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_FIRST_WITH_SOFTWARE = 3  # of ApiVersions
_NO_SASL = "it asks for SASL, and this server has no users: give it security.protocol=PLAINTEXT"


class ApiHandler(NamedTuple):
    """An api key's entry in the dispatch table: its handler, and the threads that may call it."""

    handler: Handler
    pool: Pool | None
    by_loop: bool  # whether the loop calls it for a small request: it waits for nothing then


class Dispatch:
    """The dispatch table: it decodes each request, and has the handler of its api key answer it.

    It is filled before the server listens; `intercept` is for any thread.
    """

    def __init__(
        self, intercepting: Pool, call_later: CallLater, slow: SlowWarnings, names: TopicNames
    ) -> None:
        """Start with ApiVersions and a refusal of SASL; `intercepting` runs what intercepts."""
        self._intercepting, self._call_later = intercepting, call_later
        self._slow, self._names = slow, names
        self._intercepts: Mapping[int, Intercept] = {}  # replaced whole
        self._entries: dict[int, ApiHandler] = {}
        self.metrics: dict[int, RequestMetrics] = {}  # by api key
        self.register(ApiKey.API_VERSIONS, self._api_versions, None)
        self.register(ApiKey.SASL_HANDSHAKE, _refuse_sasl, None)

    def register(
        self, api_key: int, handler: Handler, pool: Pool | None, *, by_loop: bool = False
    ) -> None:
        """Register the handler of an api key, for all its versions that `protocol` supports.

        Args:
            api_key: the kind of request.
            handler: answers it.
            pool: whose threads call the handler; None for the loop alone.
            by_loop: whether the loop calls it if the request is small.
        """
        self._entries[api_key] = ApiHandler(handler, pool, by_loop or pool is None)
        self.metrics[api_key] = RequestMetrics()

    def intercept(self, api_key: int, function: Intercept | None) -> None:
        """Let a function see each request of an api key first; None removes the function."""
        others = {key: one for key, one in self._intercepts.items() if key != api_key}
        self._intercepts = others if function is None else {**others, api_key: function}

    def supported(self) -> Mapping[int, Versions]:
        """Return the supported versions, by api key."""
        return {key: protocol.SUPPORTED[key] for key in self._entries}

    def _api_versions(self, received: Received, respond: Respond) -> None:
        """Answer an ApiVersions request, which has no decoded body if its version is unknown."""
        body = received.body
        error = ErrorCode.NONE
        if body is None:
            error = ErrorCode.UNSUPPORTED_VERSION
        elif received.version >= _FIRST_WITH_SOFTWARE:
            software = (body.client_software_name, body.client_software_version)
            if not all(_SOFTWARE.fullmatch(text or "") for text in software):
                error = ErrorCode.INVALID_REQUEST
        response = protocol.ApiVersionsResponse
        keys = [
            response.ApiVersion(api_key=key, min_version=one.first, max_version=one.last)
            for key, one in sorted(self.supported().items())
        ]
        respond(response(error_code=error, api_keys=keys))

    def request(self, connection: ClientConnection, frame: memoryview) -> None:
        """Decode a request and have its handler answer it; called in the event loop's thread.

        Raises:
            ProtocolError, UnsupportedVersionError: it is not one that this server answers.
        """
        api_key, version, correlation_id = _START.unpack_from(frame)
        entry = self._entries.get(api_key)
        if entry is None:
            raise UnsupportedVersionError(api_key, "", version, None, correlation_id)
        metrics = self.metrics[api_key]
        exchange = Exchange(connection, api_key, version, correlation_id, metrics, len(frame))
        versions = protocol.SUPPORTED[api_key]
        if api_key == ApiKey.API_VERSIONS and version not in versions:
            exchange = Exchange(connection, api_key, 0, correlation_id, metrics, len(frame))
            self._run(entry.handler, _received(connection, api_key, version, "", None), exchange)
        elif entry.pool is None:
            received = self._decoded(connection, frame, _ELEMENTS_MAX)
            self._begin(entry, received, exchange)
        elif not self._is_done_by_loop(entry, connection, frame, exchange):
            self._submit(
                entry.pool,
                functools.partial(self._decode_and_begin, entry, connection, frame, exchange),
                exchange,
            )

    def _is_done_by_loop(
        self, entry: ApiHandler, connection: ClientConnection, frame: memoryview, exchange: Exchange
    ) -> bool:
        """Handle a request at once, if that takes little; return False if it is for the handler's threads."""
        if (
            not entry.by_loop
            or len(frame) > _HANDLED_BY_LOOP_MAX
            or exchange.api_key in self._intercepts
        ):
            return False
        try:
            received = self._decoded(connection, frame, _ELEMENTS_MAX)
        except ProtocolError:
            return False  # It names more, or its bytes make no sense, which shows again.
        if not self._names.fill(received, looks=False):
            return False
        self._run(entry.handler, received, exchange)
        return True

    def _submit(self, pool: Pool, task: Callable[[], object], exchange: Exchange) -> None:
        """Let a pool run a task for a request, as work for its peer."""
        peer = exchange.peer

        def work() -> None:
            with peer.working():
                task()

        peer.begin()
        size = exchange.size_in_bytes
        pool.submit(work, peer, is_large=size > SMALL_REQUEST_BYTES, is_huge=size > _HUGE_BYTES)

    def _decoded(
        self,
        connection: ClientConnection,
        frame: memoryview,
        max_elements: int = protocol.MAX_REQUEST_ELEMENTS,
    ) -> Received:
        request = protocol.decode_request(frame, max_elements)
        return _received(
            connection, request.api_key, request.version, request.client_id or "", request.body
        )

    def _decode_and_begin(
        self, entry: ApiHandler, connection: ClientConnection, frame: memoryview, exchange: Exchange
    ) -> None:
        try:
            received = self._decoded(connection, frame)
            self._names.fill(received, looks=True)
        except Exception as error:  # noqa: BLE001  logged as the server's fault, if it is
            exchange.fail(error)
            return
        self._begin(entry, received, exchange)

    def _begin(self, entry: ApiHandler, received: Received, exchange: Exchange) -> None:
        """Call the handler of a decoded request, after the function that intercepts it, if any."""
        go_on = functools.partial(self._run, entry.handler, received, exchange)
        intercept = self._intercepts.get(received.api_key)
        if intercept is None:
            go_on()
            return
        if entry.pool is not None:
            go_on = functools.partial(self._submit, entry.pool, go_on, exchange)
        self._intercepting.submit(
            functools.partial(self._intercepted, intercept, go_on, received, exchange)
        )

    def _intercepted(
        self,
        intercept: Intercept,
        go_on: Callable[[], None],
        received: Received,
        exchange: Exchange,
    ) -> None:
        request = InterceptedRequest(received)
        try:
            intercept(request)
        except BaseException:  # such as that of pytest.fail; the request is answered all the same
            logger.exception("the function that intercepts %s failed", request.api)
        if request.is_dropped:
            go_on = functools.partial(exchange.respond, HANG_UP)
        elif request.error is not None:
            go_on = functools.partial(_refuse, received, exchange, request.error)
        if request.delay_s > 0:
            self._call_later(request.delay_s, go_on)
        else:
            go_on()

    def _run(self, handler: Handler, received: Received, exchange: Exchange) -> None:
        began_s = monotonic_s()
        try:
            handler(received, exchange.respond)
        except Exception as error:
            logger.exception("a request failed: %s", ApiKey(received.api_key).name)
            if not exchange.is_answered:
                _refuse(received, exchange, code_of(error))
        queued_s, handled_s = began_s - exchange.began_s, monotonic_s() - began_s
        self._slow.took(
            queued_s + handled_s, "%s of client %r at %s, %d bytes: %d ms queued, %d ms handled",
            name_of(ApiKey(received.api_key)), received.client_id[:NAME_SHOWN_MAX],
            received.client_host, exchange.size_in_bytes, 1000 * queued_s, 1000 * handled_s,
        )  # fmt: skip


def _refuse_sasl(received: Received, respond: Respond) -> None:
    """Refuse a SaslHandshake as a broker's listener without SASL does, and log the client.

    Source: KafkaApis.handleSaslHandshakeRequest.
    """
    warn_once(received.client_host, _NO_SASL)
    respond(protocol.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE))


def _refuse(received: Received, exchange: Exchange, error: ErrorCode) -> None:
    if received.api_key == ApiKey.PRODUCE:
        received.unwritten.refused(received.body, error)
    hangs_up = received.body is None or received.unwritten.is_full
    exchange.respond(HANG_UP if hangs_up else refusal(received, error))


def _received(
    connection: ClientConnection, api_key: int, version: int, client_id: str, body: object
) -> Received:
    return Received(
        api_key,
        version,
        client_id,
        connection.client_host,
        connection.local_address,
        connection.unwritten,
        body,
        connection.peer,
    )
