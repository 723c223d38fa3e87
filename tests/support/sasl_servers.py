"""The server's side of SASL, for scripted servers: PLAIN, SCRAM and OAUTHBEARER."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from typing import Any

from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import (
    ApiKey,
    Request,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)
from tests.support.wire_servers import metadata_body

USER, PASSWORD = "a=user,x", "pass-word-of-the-test"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
ITERATIONS = 4096


class SaslAnswers:
    """Answers of a server. It does not tell connections apart: once one is authenticated, all are answered."""

    def __init__(
        self,
        answer: Callable[[Request], Any] = lambda request: metadata_body(),
        *,
        mechanisms: tuple[str, ...] = MECHANISMS,
        session_lifetime_ms: int = 0,
        knows_password: bool = True,
        token: str = "",
        iterations: int = ITERATIONS,
    ) -> None:
        self._answer = answer
        self._mechanisms = mechanisms
        self._session_lifetime_ms = session_lifetime_ms
        self._knows_password = knows_password
        self.token = token
        self._iterations = iterations
        self.proofs = 0  # of SCRAM, that clients sent
        self.exchanges = 0  # started
        self._is_open = False
        self._mechanism = ""
        self._scram: _Scram | None = None
        self._refused = False

    def __call__(self, request: Request) -> Any:
        if request.api_key == ApiKey.SASL_HANDSHAKE:
            return self._handshake(request.body.mechanism)
        if request.api_key == ApiKey.SASL_AUTHENTICATE:
            return self._step(bytes(request.body.auth_bytes))
        return self._answer(request) if self._is_open else "hang up"

    def _handshake(self, mechanism: str) -> Any:
        self.exchanges += 1
        self._refused = False
        self._mechanism, self._scram = mechanism, None
        known = mechanism in self._mechanisms
        code = ErrorCode.NONE if known else ErrorCode.UNSUPPORTED_SASL_MECHANISM
        return SaslHandshakeResponse(error_code=int(code), mechanisms=list(self._mechanisms))

    def _step(self, given: bytes) -> Any:
        if self._mechanism == "PLAIN":
            return self._ended(given == f"{USER}\0{USER}\0{PASSWORD}".encode())
        if self._mechanism == "OAUTHBEARER":
            if self._refused:
                return self._ended(False)
            if f"auth=Bearer {self.token}\x01".encode() in given:
                return self._ended(True)
            self._refused = True
            return self._answered(b'{"status":"invalid_token"}')
        if self._scram is None:
            password = PASSWORD if self._knows_password else "another one"
            self._scram = _Scram(self._mechanism, given, password, self._iterations)
            return self._answered(self._scram.first)
        self.proofs += 1
        last = self._scram.last(given)
        if last is None and self._knows_password:
            return self._ended(False)
        return self._answered(last or b"v=" + base64.b64encode(b"not the signature"))

    def _ended(self, accepted: bool) -> Any:
        if accepted:
            return self._answered(b"")
        return SaslAuthenticateResponse(
            error_code=int(ErrorCode.SASL_AUTHENTICATION_FAILED),
            error_message="Authentication failed: Invalid username or password",
            auth_bytes=b"",
            session_lifetime_ms=0,
        )

    def _answered(self, given: bytes) -> Any:
        is_authenticated = not given or given.startswith(b"v=")
        self._is_open |= is_authenticated
        return SaslAuthenticateResponse(
            error_code=0,
            error_message=None,
            auth_bytes=given,
            session_lifetime_ms=self._session_lifetime_ms if is_authenticated else 0,
        )


class _Scram:
    """One exchange, as RFC 5802 has it."""

    def __init__(self, mechanism: str, client_first: bytes, password: str, iterations: int) -> None:
        self._hash = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[mechanism]
        bare = client_first.removeprefix(b"n,,")
        user, nonce = bare.split(b",r=")
        assert user == b"n=" + USER.replace("=", "=3D").replace(",", "=2C").encode()
        salt = b"salt of the test"
        self._nonce = nonce + b"-and-the-servers"
        self.first = b"r=%s,s=%s,i=%d" % (self._nonce, base64.b64encode(salt), iterations)
        self._start = bare + b"," + self.first + b",c=biws,r=" + self._nonce
        self._salting = password.encode(), salt, iterations

    def last(self, client_last: bytes) -> bytes | None:
        """Return the server's last message, None for a wrong password."""
        proof = base64.b64decode(client_last.split(b",p=")[1])
        salted = hashlib.pbkdf2_hmac(self._hash, *self._salting)
        client_key = self._hmac(salted, b"Client Key")
        stored_key = hashlib.new(self._hash, client_key).digest()
        signature = self._hmac(stored_key, self._start)
        found = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        if hashlib.new(self._hash, found).digest() != stored_key:
            return None
        server_key = self._hmac(salted, b"Server Key")
        return b"v=" + base64.b64encode(self._hmac(server_key, self._start))

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)
