"""Tokens for OAUTHBEARER: from an identity provider, a file, a Python function, or unsecured ones for tests.

    sasl.login.callback.handler.class=package.module.function     whatever the function returns
    sasl.oauthbearer.token.endpoint.url=https://...               client id and secret against a token
    sasl.oauthbearer.token.endpoint.url=file:///...               what the file holds
    sasl.jaas.config=... unsecuredLoginStringClaim_sub="NAME"     an unsigned token, as Kafka's default has it

A token of an endpoint is used again by all connections of the process until four fifths of its life are over.
An endpoint has ten seconds to answer, or request.timeout.ms if that is less, however slowly the bytes come. A
redirect is refused, because the client's secret would go with it.

Source: RFC 6750 (tokens); Kafka clients/.../security/oauthbearer/OAuthBearerLoginCallbackHandler.java,
internals/secured/HttpAccessTokenRetriever.java, internals/unsecured/OAuthBearerUnsecuredLoginCallbackHandler.java.
"""

from __future__ import annotations

import base64
import functools
import http.client
import importlib
import json
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_kbatch import mutexes
from spark_kbatch.clock import monotonic_s
from spark_kbatch.errors import ConfigError, DisconnectedError, SaslAuthenticationError
from spark_kbatch.options.security import Security, without_secrets
from spark_kbatch.terminal import visible
from spark_kbatch.wire.answers import BoundedAnswer

if TYPE_CHECKING:
    import threading

_URL = "sasl.oauthbearer.token.endpoint.url"
_HANDLER = "sasl.login.callback.handler.class"
_JAVA_PACKAGES = ("org.", "com.", "io.", "software.", "net.")
_TIMEOUT_S = 10.0
_USED_PART = 0.8
_LIFETIME_MAX_S = 86_400.0  # an endpoint is asked again after so long, whatever it says
_UNSECURED_LIFETIME_S = 3600
_ANSWER_MAX = 1 << 20
_SHOWN_MAX = 200  # characters of what an endpoint says
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
_NOT_A_TOKEN = "has characters that no token has"
_REQUEST_TIMEOUT, _TOO_MANY_REQUESTS = 408, 429  # the client errors that may pass


class TokenSource:
    """A source of OAUTHBEARER tokens, configured by Kafka's `sasl.*` options."""

    def __init__(self, security: Security) -> None:
        self._security = security
        # Held while a token is requested: others wait for it, and do not ask too.
        self._lock: threading.Lock
        mutexes.make(self, "_lock")
        self._token = ""
        self._until_s = 0.0
        jaas = security.sasl_jaas_config.options
        self.extensions = {
            name.removeprefix("extension_"): value.text
            for name, value in jaas
            if name.startswith("extension_")
        }

    def token(self, timeout_s: float = _TIMEOUT_S) -> str:
        """Return a token to log in with: the last one while it is valid, else a new one.

        Args:
            timeout_s: how long to wait for an identity provider.

        Raises:
            ConfigError: the options do not say where tokens come from, or what they name gives none.
            SaslAuthenticationError: the identity provider refused the client, or gave no token.
            DisconnectedError: it cannot be reached, or does not answer in time.
        """
        handler = self._security.sasl_login_callback_handler_class
        if handler and not handler.startswith(_JAVA_PACKAGES):
            return _called(handler)
        url = self._security.sasl_oauthbearer_token_endpoint_url
        if url.startswith("file:"):
            return _read(url)
        if url:
            return self._of_endpoint(url, min(timeout_s, _TIMEOUT_S))
        return self._unsecured()

    def _of_endpoint(self, url: str, timeout_s: float) -> str:
        lock = self._lock
        if not lock.acquire(timeout=timeout_s):
            raise DisconnectedError(_shown(url), "it has not answered another thread in time")
        try:
            if monotonic_s() >= self._until_s:
                self._token, lifetime_s = self._fetched(url, timeout_s)
                self._until_s = monotonic_s() + _USED_PART * lifetime_s
            return self._token
        finally:
            lock.release()

    def _fetched(self, url: str, timeout_s: float) -> tuple[str, float]:
        """Request a token from an identity provider's endpoint; return it, and its lifetime in seconds."""
        security, jaas = self._security, self._security.sasl_jaas_config
        client_id = security.sasl_oauthbearer_client_id or jaas.get("clientId")
        secret = security.sasl_oauthbearer_client_secret.text or jaas.get("clientSecret")
        scope = security.sasl_oauthbearer_scope or jaas.get("scope")
        if not client_id or secret is None:
            raise ConfigError(
                f"option {_URL!r} needs a client: give 'clientId' and 'clientSecret' in 'sasl.jaas.config', "
                "or 'sasl.oauthbearer.client.credentials.client.id' and '...client.secret'"
            )
        fields = {"grant_type": "client_credentials", **({"scope": scope} if scope else {})}
        credentials = base64.b64encode(f"{client_id}:{secret}".encode()).decode()
        headers = {"Authorization": f"Basic {credentials}", "Accept": "application/json"}
        body = urllib.parse.urlencode(fields).encode()
        answer = _answer_of(url, body, headers, timeout_s, (secret, credentials))
        try:
            found = json.loads(answer)
        except (ValueError, RecursionError):
            found = None
        answered: dict[str, Any] = found if isinstance(found, dict) else {}
        token = answered.get("access_token")
        if not isinstance(token, str):
            raise SaslAuthenticationError(
                _shown(url), f"its answer has no access_token; look at {_URL!r}"
            )
        if not _TOKEN.fullmatch(token):
            why = f"the access_token in its answer {_NOT_A_TOKEN}; look at {_URL!r}"
            raise SaslAuthenticationError(_shown(url), why)
        return token, _lifetime_s(answered.get("expires_in"))

    def _unsecured(self) -> str:
        jaas = self._security.sasl_jaas_config
        subject = jaas.get("unsecuredLoginStringClaim_sub")
        if not subject:
            raise ConfigError(
                f"OAUTHBEARER needs to know where tokens come from: give {_URL!r}, or a Python function as "
                f"{_HANDLER!r}"
            )
        now_s = time.time()
        claims: dict[str, Any] = {"sub": subject, "iat": now_s}
        claims["exp"] = now_s + _UNSECURED_LIFETIME_S
        scope = jaas.get("unsecuredLoginListClaim_scope")
        if scope:
            claims["scope"] = scope[1:].split(scope[0])  # as Kafka writes lists
        return f"{_part({'alg': 'none'})}.{_part(claims)}."


@functools.cache
def token_source_of(security: Security) -> TokenSource:
    """Return the token source for security settings, the same for all connections of the process."""
    return TokenSource(security)


def _called(path: str) -> str:
    module, _, name = path.rpartition(".")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"option {_HANDLER!r} is {path!r}, which cannot be imported: {error}; accepted: a function "
            "`package.module.function`, in a module that Spark's executors have too"
        ) from error
    token = function()
    if not isinstance(token, str):
        raise ConfigError(
            f"option {_HANDLER!r}: {path} returned {type(token).__name__}, not a token"
        )
    if not _TOKEN.fullmatch(token):
        raise ConfigError(f"option {_HANDLER!r}: what {path} returned {_NOT_A_TOKEN}")
    return token


def _read(url: str) -> str:
    path = urllib.request.url2pathname(urllib.parse.urlsplit(url).path)
    try:
        token = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"option {_URL!r}: {path} cannot be read: {type(error).__name__}"
        ) from None
    if not _TOKEN.fullmatch(token):
        raise ConfigError(f"option {_URL!r}: the content of {path} {_NOT_A_TOKEN}, or is empty")
    return token


def _lifetime_s(expires_in: Any) -> float:
    """Return a token's lifetime in seconds; 0, so that it is used once, if the endpoint gives none."""
    try:
        lifetime_s = float(expires_in)
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return min(lifetime_s, _LIFETIME_MAX_S) if lifetime_s > 0 else 0.0


def _answer_of(
    url: str, body: bytes, headers: dict[str, str], timeout_s: float, secrets: Iterable[str]
) -> bytes:
    _ensure_http(url)
    opener = urllib.request.build_opener(_NoRedirects, _Http, _Https)
    try:
        with opener.open(urllib.request.Request(url, body, headers), timeout=timeout_s) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        error.close()
        raise _refusal(error, url, secrets) from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            why = f"its certificate is not accepted: {error.reason.verify_message}"
            raise SaslAuthenticationError(_shown(url), why) from None
        raise DisconnectedError(_shown(url), _start_of(str(error.reason), secrets)) from None
    except http.client.InvalidURL:
        raise _not_a_url(url) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = _start_of(str(error), secrets) or type(error).__name__
        raise DisconnectedError(_shown(url), why) from None


def _refusal(
    error: urllib.error.HTTPError, url: str, secrets: Iterable[str]
) -> SaslAuthenticationError | DisconnectedError:
    """Return the error for an answer with another status than success."""
    said = f"it answered {error.code} {_start_of(str(error.reason), secrets)}"
    if 300 <= error.code < 400:
        why = f"{said}, a redirect, which is not followed: give the endpoint itself as {_URL!r}"
        return SaslAuthenticationError(_shown(url), why)
    may_pass = error.code >= 500 or error.code in (_REQUEST_TIMEOUT, _TOO_MANY_REQUESTS)
    if may_pass:
        return DisconnectedError(_shown(url), said)
    return SaslAuthenticationError(_shown(url), f"{said}: look at the client id, secret and scope")


def _ensure_http(url: str) -> None:
    try:
        parts = urllib.parse.urlsplit(url)
        is_valid = parts.scheme in ("https", "http") and bool((parts.hostname or "").encode("idna"))
    except ValueError:
        is_valid = False
    if not is_valid:
        raise _not_a_url(url)


def _not_a_url(url: str) -> ConfigError:
    return ConfigError(f"option {_URL!r} is {_shown(url)!r}; accepted: a URL: https, http, file")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A handler for which each redirect is an error, since the request's credentials would go with it."""

    def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any | None:
        return None

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


class _BoundedConnection(http.client.HTTPConnection):
    """A connection whose time-out counts from its start, not from the last byte."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        until_s = monotonic_s() + (self.timeout or _TIMEOUT_S)
        self.response_class = functools.partial(  # type: ignore[assignment]
            BoundedAnswer, until_s=until_s, size_max=_ANSWER_MAX
        )


class _BoundedHttpsConnection(_BoundedConnection, http.client.HTTPSConnection):
    """The same, with TLS."""


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_BoundedConnection, req)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_BoundedHttpsConnection, req)


def _start_of(text: str, secrets: Iterable[str]) -> str:
    """Return the start of what an endpoint says, read as Latin-1 by the library, safe to print."""
    return visible(without_secrets(text.encode("latin-1", "replace"), secrets)[:_SHOWN_MAX])


def _shown(url: str) -> str:
    """Return a URL without what may be secret in it."""
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        return "not a URL"
    return f"{parts.scheme}://{parts.hostname}{parts.path}"


def _part(fields: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(fields).encode()).decode().rstrip("=")
