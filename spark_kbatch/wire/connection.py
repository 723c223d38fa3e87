"""A client's side of one connection: versions, authentication, requests with their answers, throttling.

The first request asks for the server's versions, in the highest version of that request known here. A
server that does not know that version answers in version 0, and is asked again. From then on each request is
sent in the highest version that both know. Where SASL is used, the client then authenticates itself. If the
server limits the session's lifetime, it does so again shortly before the end: no request is started until
those in flight are answered, and the exchange is over.

A connection does only what its channel allows at the moment, and does not wait. Its owner tells it when the
socket is ready, closes it when it raises, and delivers the `completions`.

Requests in flight are those sent, or being sent, and not yet answered. Answers arrive in the order
of requests. Another request may be sent if none is in flight, or if the last one is written and
fewer than the maximum are in flight. So a connection has one send at a time, and stops sending to a
peer that does not read.

Source: Kafka clients/.../clients/NetworkClient.java, NodeApiVersions.java, InFlightRequests.java.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from spark_kbatch.errors import (
    DisconnectedError,
    KBatchError,
    ProtocolError,
    RequestTimedOutError,
    UnsupportedVersionError,
)
from spark_kbatch.model import INT_MAX
from spark_kbatch.wire.channel import Channel
from spark_kbatch.wire.errors import ErrorCode, error_of
from spark_kbatch.wire.framing import Send
from spark_kbatch.wire.protocol import (
    OF_CLIENTS,
    ApiKey,
    ApiVersionsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
    Versions,
    decode_response,
    encode_request,
)

if TYPE_CHECKING:
    from spark_kbatch.wire.sasl import Authenticator

OnComplete: TypeAlias = Callable[[Any, KBatchError | None], None]

_SOFTWARE_NAME = "spark-kbatch"
_NOT_IN_A_SOFTWARE_VERSION = re.compile(r"[^a-zA-Z0-9.-]")
_MAX_CORRELATION_ID = 2**31 - 1
_SETUP_FRAME_MAX = 2**20  # bytes of an answer before the server and the client know each other
_SASL_STEPS_MAX = 20  # Kerberos, which has the most, needs four


@dataclass(frozen=True)
class ConnectionConfig:
    """Settings that all connections of a client share; the defaults are Kafka's."""

    client_id: str = "spark-kbatch"
    software_version: str = "unknown"  # of this package
    max_in_flight_requests_per_connection: int = 5
    request_timeout_ms: int = 30_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1000
    connections_max_idle_ms: int = 540_000
    socket_connection_setup_timeout_ms: int = 10_000
    socket_connection_setup_timeout_max_ms: int = 30_000


class Completion(NamedTuple):
    """The result of a finished request, its answer or its error, to be delivered to its callback."""

    on_complete: OnComplete
    body: Any
    error: KBatchError | None

    def deliver(self) -> None:
        """Call the request's `on_complete`."""
        self.on_complete(self.body, self.error)


@dataclass(slots=True)
class _InFlightRequest:
    """A request that awaits its answer."""

    api_key: int
    version: int
    correlation_id: int
    send: Send
    sent_at_ms: int  # monotonic
    timeout_ms: int
    expects_response: bool
    on_complete: OnComplete

    @property
    def expires_at_ms(self) -> int:
        """The time at which the request times out, on the monotonic clock."""
        return self.sent_at_ms + self.timeout_ms


class Connection:
    """One connection to a Kafka server. Not thread-safe."""

    def __init__(
        self,
        channel: Channel,
        server: str,
        completions: deque[Completion],
        *,
        config: ConnectionConfig,
        monotonic_ms: Callable[[], int],
        authenticator: Authenticator | None = None,
    ) -> None:
        """Take over a connected channel, and ask for the server's versions.

        Args:
            channel: closed with the connection.
            server: for errors.
            completions: each request is added to it when it ends.
            config: the client's settings.
            monotonic_ms: the clock.
            authenticator: authenticates the client; None where SASL is not used.
        """
        self._channel = channel
        self._server = server
        self._completions = completions
        self._config = config
        self._monotonic_ms = monotonic_ms
        self._in_flight: deque[_InFlightRequest] = deque()  # in the order in which they were sent
        self._correlation_id = 0
        self._versions: Mapping[int, Versions] | None = None
        self._throttled_until_ms = 0
        self._authenticator = authenticator
        self._is_authenticated = authenticator is None
        self._sasl_steps = 0  # of the exchange that goes on
        self._authenticate_again_ms: int | None = None
        self.has_answered = False  # a request of the owner's
        self.last_active_ms = monotonic_ms()
        channel.limit_frames(_SETUP_FRAME_MAX)
        self._ask_versions(OF_CLIENTS[ApiKey.API_VERSIONS].last)

    @property
    def is_ready(self) -> bool:
        """Whether the server's versions are known, and the client is authenticated."""
        return self._versions is not None and self._is_authenticated

    @property
    def is_sending(self) -> bool:
        """Whether a send is in progress, so that `write` is to be called."""
        return self._channel.is_sending

    @property
    def wants_write(self) -> bool:
        """Whether to wait until the socket is writable, and not only until it is readable."""
        return self._channel.wants_write

    @property
    def in_flight_count(self) -> int:
        """Number of requests that are sent, or being sent, and not answered."""
        return len(self._in_flight)

    def can_send_more(self) -> bool:
        """Return True if a request may be sent now."""
        return self._takes_requests() and not self._is_session_over()

    def _takes_requests(self) -> bool:
        """Return True if a request may be sent now, even if it is time to authenticate again."""
        if not self.is_ready or self.throttled_ms():
            return False
        if not self._in_flight:
            return True
        has_room = len(self._in_flight) < self._config.max_in_flight_requests_per_connection
        return has_room and self._in_flight[-1].send.is_complete

    def throttled_ms(self) -> int:
        """Return how many ms are left of the time for which the server has throttled this client."""
        return max(0, self._throttled_until_ms - self._monotonic_ms())

    def version_of(self, api_key: int, last: int | None = None) -> int:
        """Return the highest version of a request that both the client and the server support.

        Args:
            api_key: the kind of request.
            last: do not go above this version.

        Raises:
            UnsupportedVersionError: there is none.
        """
        ours, theirs = OF_CLIENTS[api_key], (self._versions or {}).get(api_key)
        name = ApiKey(api_key).name
        if theirs is None:
            raise UnsupportedVersionError(api_key, name, ours.last, None)
        version = min(ours.last, theirs.last, ours.last if last is None else last)
        if version < max(ours.first, theirs.first):
            raise UnsupportedVersionError(api_key, name, version, (theirs.first, theirs.last))
        return version

    def send(
        self,
        api_key: int,
        body: Any,
        on_complete: OnComplete,
        *,
        last_version: int | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Encode a request and start to send it; `write` writes the bytes.

        Args:
            api_key: its kind.
            body: the message, or a function that returns it for a version.
            on_complete: called with the answer's body, None if there is no answer; or with the error.
            last_version: do not use a higher version.
            timeout_ms: how long to wait for the answer; None for `request_timeout_ms`.

        Raises:
            UnsupportedVersionError: the server knows no version of it that is known here.
            ValueError: no request may be sent now (`can_send_more`), or the message cannot be encoded.
        """
        # A session that has come to its last part since the caller asked still takes a request.
        if not self._takes_requests():
            raise ValueError(f"{self._server} cannot be sent another request now")
        version = self.version_of(api_key, last_version)
        message = body(version) if callable(body) else body
        self._start(api_key, version, message, on_complete, timeout_ms)

    def write(self) -> None:
        """Write as much of the request as the socket takes; one without an answer is complete once written.

        Raises:
            DisconnectedError: the connection is lost.
        """
        if self._channel.write() is None:
            return
        self.last_active_ms = self._monotonic_ms()
        if self._in_flight and not self._in_flight[-1].expects_response:
            ended = self._in_flight.pop()
            self._completions.append(Completion(ended.on_complete, None, None))

    def read(self) -> None:
        """Read the bytes that have arrived, and end the requests that they answer.

        Raises:
            DisconnectedError: the connection is lost.
            ProtocolError: the server sent something that does not answer the next request.
            AuthenticationError: the server or the client was refused.
            KBatchError: the server refused the request for its versions.
        """
        reads = True
        while reads:
            for frame in self._channel.read():
                self._end(frame)
            reads = self._channel.has_decrypted

    def _end(self, frame: memoryview) -> None:
        """End the request that the frame answers."""
        self.last_active_ms = self._monotonic_ms()
        request = self._answered(frame)
        body = decode_response(request.api_key, request.version, frame).body
        self._in_flight.popleft()
        self._note_throttling(body)
        if self._versions is None:
            self._learn_versions(request.version, body)
        elif not self._is_authenticated:
            self._authenticate(request.api_key, body)
        else:
            self.has_answered = True
            self._completions.append(Completion(request.on_complete, body, None))

    def has_expired(self) -> bool:
        """Return True if a request has timed out; close the connection then."""
        now_ms = self._monotonic_ms()
        return any(one.expires_at_ms <= now_ms for one in self._in_flight)

    def next_expiry_ms(self) -> int | None:
        """Return the time of the next time-out; None if no request is in flight."""
        return min((one.expires_at_ms for one in self._in_flight), default=None)

    def maybe_authenticate_again(self) -> bool:
        """Start to authenticate again if the session is almost over and no request is in flight."""
        due = self._is_session_over() and self._is_authenticated and not self._in_flight
        if due:
            self._start_to_authenticate()
        return due

    def close(self, reason: str, error: KBatchError | None = None) -> None:
        """Close the socket, and fail the requests in flight: with `error`, or as lost for a reason."""
        self._channel.close()
        now_ms = self._monotonic_ms()
        while self._in_flight:
            one = self._in_flight.popleft()
            failure = error or self._failure(one, reason, now_ms)
            self._completions.append(Completion(one.on_complete, None, failure))

    def abandon(self) -> None:
        """Close only the socket, in a forked child whose parent goes on with the connection."""
        self._channel.close()

    def fileno(self) -> int:
        """Return the socket's descriptor, for a selector."""
        return self._channel.fileno()

    def _failure(self, request: _InFlightRequest, reason: str, now_ms: int) -> KBatchError:
        if request.expires_at_ms > now_ms:
            return DisconnectedError(self._server, reason)
        name = ApiKey(request.api_key).name
        return RequestTimedOutError(
            f"{self._server} did not answer a {name} request within {request.timeout_ms} ms"
        )

    def _start(
        self, api_key: int, version: int, body: Any, on_complete: OnComplete, timeout_ms: int | None
    ) -> None:
        self._correlation_id = self._correlation_id % _MAX_CORRELATION_ID + 1
        correlation_id = self._correlation_id
        pieces = encode_request(api_key, version, correlation_id, self._config.client_id, body)
        self._in_flight.append(
            _InFlightRequest(
                api_key,
                version,
                correlation_id,
                self._channel.start(pieces),
                self._monotonic_ms(),
                self._config.request_timeout_ms if timeout_ms is None else timeout_ms,
                not (api_key == ApiKey.PRODUCE and body.acks == 0),
                on_complete,
            )
        )

    def _answered(self, frame: memoryview) -> _InFlightRequest:
        """Return the request that the frame answers, after checking the correlation id."""
        request = self._in_flight[0] if self._in_flight else None
        found = int.from_bytes(frame[:4], "big", signed=True)
        expected = "none" if request is None else request.correlation_id
        if request is None or found != request.correlation_id or not request.send.is_complete:
            raise ProtocolError(f"response of {self._server}", "correlation_id", 0, expected, found)
        return request

    def _note_throttling(self, body: Any) -> None:
        pause_ms = getattr(body, "throttle_time_ms", 0)
        if pause_ms > 0:
            until_ms = self._monotonic_ms() + pause_ms
            self._throttled_until_ms = max(self._throttled_until_ms, until_ms)

    def _ask_versions(self, version: int) -> None:
        software_version = _NOT_IN_A_SOFTWARE_VERSION.sub("-", self._config.software_version)
        body = ApiVersionsRequest(
            client_software_name=_SOFTWARE_NAME, client_software_version=software_version
        )
        self._start(ApiKey.API_VERSIONS, version, body, _ignore, None)

    def _learn_versions(self, asked: int, body: Any) -> None:
        theirs = {one.api_key: Versions(one.min_version, one.max_version) for one in body.api_keys}
        if body.error_code == ErrorCode.UNSUPPORTED_VERSION and asked > 0:
            known = theirs.get(ApiKey.API_VERSIONS, Versions(0, 0))
            self._ask_versions(min(max(known.last, 0), asked - 1))
        elif body.error_code:
            raise error_of(body.error_code, f"asked {self._server} for its versions")
        else:
            self._versions = theirs
            if self._authenticator is None:
                self._channel.limit_frames(INT_MAX)
            else:
                self._start_to_authenticate()

    def _is_session_over(self) -> bool:
        again_ms = self._authenticate_again_ms
        return again_ms is not None and self._monotonic_ms() >= again_ms

    def _start_to_authenticate(self) -> None:
        assert self._authenticator is not None
        self._is_authenticated = False
        self._authenticate_again_ms = None
        self._sasl_steps = 0
        self._authenticator.start()
        try:
            version = self.version_of(ApiKey.SASL_HANDSHAKE)
            self.version_of(ApiKey.SASL_AUTHENTICATE)
        except UnsupportedVersionError as error:
            raise self._authenticator.uses_no_sasl(error) from error
        body = SaslHandshakeRequest(mechanism=self._authenticator.name)
        self._start(ApiKey.SASL_HANDSHAKE, version, body, _ignore, None)

    def _authenticate(self, api_key: int, body: Any) -> None:
        """Handle a response of the SASL exchange, and send the next request unless it is complete."""
        authenticator = self._authenticator
        assert authenticator is not None
        if api_key == ApiKey.SASL_HANDSHAKE:
            authenticator.ensure_offered(body.error_code, body.mechanisms)
        else:
            authenticator.ensure_accepted(body.error_code, body.error_message)
            authenticator.receive(body.auth_bytes)
            if authenticator.is_done:
                self._is_authenticated = True
                self._channel.limit_frames(INT_MAX)
                lifetime_ms = getattr(body, "session_lifetime_ms", 0)
                if lifetime_ms > 0:
                    pause_ms = authenticator.lifetime_ms(lifetime_ms)
                    self._authenticate_again_ms = self._monotonic_ms() + pause_ms
                return
        self._sasl_steps += 1
        if self._sasl_steps > _SASL_STEPS_MAX:
            raise authenticator.refused(f"it asks for more than {_SASL_STEPS_MAX} steps")
        version = self.version_of(ApiKey.SASL_AUTHENTICATE)
        step = SaslAuthenticateRequest(auth_bytes=authenticator.next_bytes())
        self._start(ApiKey.SASL_AUTHENTICATE, version, step, _ignore, None)


def _ignore(body: Any, error: KBatchError | None) -> None:
    """Do nothing when a request of the connection's own, such as ApiVersions, is complete."""
