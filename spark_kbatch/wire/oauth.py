"""Tokens for OAUTHBEARER: from an identity provider, a file, a Python function, or unsecured ones for tests.

    sasl.login.callback.handler.class=package.module.function     whatever the function returns
    sasl.oauthbearer.token.endpoint.url=https://...               client id and secret against a token
    sasl.oauthbearer.token.endpoint.url=file:///...               what the file holds
    sasl.jaas.config=... unsecuredLoginStringClaim_sub="NAME"     an unsigned token, as Kafka's default has it

A token of an endpoint is used again by all connections of the process until four fifths of its life are over.

Source: Kafka clients/.../security/oauthbearer/OAuthBearerLoginCallbackHandler.java,
internals/secured/HttpAccessTokenRetriever.java, internals/unsecured/OAuthBearerUnsecuredLoginCallbackHandler.java.
"""

from __future__ import annotations

import base64
import functools
import http.client
import importlib
import json
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from spark_kbatch.errors import ConfigError, DisconnectedError, SaslAuthenticationError
from spark_kbatch.options.security import Security

_URL = "sasl.oauthbearer.token.endpoint.url"
_HANDLER = "sasl.login.callback.handler.class"
_JAVA_PACKAGES = ("org.", "com.", "io.", "software.", "net.")
_TIMEOUT_S = 10
_USED_PART = 0.8
_UNSECURED_LIFETIME_S = 3600
_ANSWER_MAX = 1 << 20


class TokenSource:
    """A source of OAUTHBEARER tokens, configured by Kafka's `sasl.*` options."""

    def __init__(self, security: Security) -> None:
        self._security = security
        self._lock = threading.Lock()
        self._token = ""
        self._until_s = 0.0
        jaas = security.sasl_jaas_config.options
        self.extensions = {
            name.removeprefix("extension_"): value.text
            for name, value in jaas
            if name.startswith("extension_")
        }

    def token(self) -> str:
        """Return a token to log in with: the last one while it is valid, else a new one.

        Raises:
            ConfigError: the options do not say where tokens come from.
            SaslAuthenticationError: the identity provider refused the client.
            DisconnectedError: it cannot be reached.
        """
        handler = self._security.sasl_login_callback_handler_class
        if handler and not handler.startswith(_JAVA_PACKAGES):
            return _called(handler)
        url = self._security.sasl_oauthbearer_token_endpoint_url
        if url.startswith("file:"):
            return _read(url)
        if url:
            with self._lock:
                if time.monotonic() >= self._until_s:
                    self._token, lifetime_s = self._fetched(url)
                    self._until_s = time.monotonic() + _USED_PART * lifetime_s
                return self._token
        return self._unsecured()

    def _fetched(self, url: str) -> tuple[str, float]:
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
        request = urllib.request.Request(
            url,
            urllib.parse.urlencode(fields).encode(),
            {"Authorization": f"Basic {credentials}", "Accept": "application/json"},
        )
        answer = _answer_of(request, url)
        try:
            found = json.loads(answer)
            token = str(found["access_token"])
            lifetime_s = float(found.get("expires_in") or 0)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise SaslAuthenticationError(
                _shown(url), f"its answer has no access_token; look at {_URL!r}"
            ) from None
        return token, lifetime_s

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
    return token


def _read(url: str) -> str:
    path = urllib.request.url2pathname(urllib.parse.urlsplit(url).path)
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"option {_URL!r}: {path} cannot be read: {type(error).__name__}"
        ) from None


def _answer_of(request: urllib.request.Request, url: str) -> bytes:
    if urllib.parse.urlsplit(url).scheme not in ("https", "http"):
        raise ConfigError(f"option {_URL!r} is {_shown(url)!r}; accepted: a URL: https, http, file")
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            return bytes(answer.read(_ANSWER_MAX))
    except urllib.error.HTTPError as error:
        error.close()
        if error.code < 500:
            why = (
                f"it answered {error.code} {error.reason}: look at the client id, secret and scope"
            )
            raise SaslAuthenticationError(_shown(url), why) from None
        raise DisconnectedError(_shown(url), f"it answered {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            why = f"its certificate is not accepted: {error.reason.verify_message}"
            raise SaslAuthenticationError(_shown(url), why) from None
        raise DisconnectedError(_shown(url), str(error.reason)) from None
    except (OSError, http.client.HTTPException) as error:
        raise DisconnectedError(_shown(url), str(error)) from None
    except ValueError as error:  # a host or port in the URL that cannot be
        raise ConfigError(f"option {_URL!r} is {_shown(url)!r}: {error}") from None


def _shown(url: str) -> str:
    """Return a URL without what may be secret in it."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}{parts.path}"


def _part(fields: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(fields).encode()).decode().rstrip("=")
