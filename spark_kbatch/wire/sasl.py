"""Authentication by SASL: mechanisms of kafka-python, which do no I/O, from Kafka's `sasl.*` options.

    client                       server
    SaslHandshake: mechanism ->
                              <- the mechanisms that it has
    SaslAuthenticate: bytes  ->
                              <- bytes, or an error; and so on, until the mechanism is done

A broker may limit a session's lifetime, as for tokens that expire; then the client authenticates again on the
same connection, shortly before.

GSSAPI needs the package `gssapi`, and takes its ticket from the cache that `kinit` fills. AWS_MSK_IAM needs the
package `botocore`, which finds credentials as all of Amazon's tools do. Both are tested without a Kerberos
realm and without Amazon; all others against a real broker.

Source: Kafka clients/.../common/security/authenticator/SaslClientAuthenticator.java.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from spark_kbatch.errors import ConfigError, KBatchError, SaslAuthenticationError
from spark_kbatch.options.security import Security, without_secrets
from spark_kbatch.terminal import visible
from spark_kbatch.wire.errors import ErrorCode, error_of
from spark_kbatch.wire.oauth import token_source_of

with warnings.catch_warnings():
    # The library reads its schemas in a way that Python 3.11 and 3.12 warn about.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.net.sasl import get_sasl_mechanism
    from kafka.net.sasl.oauth import AbstractTokenProvider

# Of a session's lifetime, for the network and clocks that differ; Kafka's numbers.
_LEAST_PART, _MORE_PART = 0.85, 0.10
_SHORTEST_MS = 100
_SHOWN_MAX = 500  # characters of what a server says
# Of SCRAM. A million take a second; Kafka's tools give a user 16,384 at most.
_ITERATIONS_MIN, _ITERATIONS_MAX = 4096, 1_000_000

_PACKAGES = {"GSSAPI": "gssapi", "AWS_MSK_IAM": "botocore"}
_CREDENTIALS = {
    "OAUTHBEARER": "'sasl.oauthbearer.token.endpoint.url' and the client id and secret",
    "GSSAPI": (
        "'sasl.kerberos.service.name', and with `klist` whether there is a ticket (from `kinit`, or a keytab in "
        "KRB5_CLIENT_KTNAME: that of 'sasl.jaas.config' is not read)"
    ),
    "AWS_MSK_IAM": "the credentials and the region that botocore finds",
}


class Authenticator:
    """The client's side of the SASL exchange on one connection."""

    def __init__(
        self, security: Security, host: str, server: str, *, timeout_ms: int = 30_000
    ) -> None:
        """Store the security settings; `start` starts a SASL exchange.

        Args:
            security: whose mechanism and credentials are used.
            host: of the server.
            server: for errors.
            timeout_ms: how long to wait for a token.
        """
        self._security = security
        self._host = host
        self._server = server
        self._timeout_s = timeout_ms / 1000
        self._mechanism: Any = None
        self._has_received = False  # in this exchange
        self.name = security.sasl_mechanism

    def start(self) -> None:
        """Start a SASL exchange, for the first authentication or a later one.

        Raises:
            ConfigError: a package that the mechanism needs is missing.
            KBatchError: credentials cannot be had.
        """
        self._mechanism = self._guarded(self._new_mechanism)
        self._has_received = False

    @property
    def is_done(self) -> bool:
        """Whether the SASL exchange is complete."""
        return bool(self._mechanism.is_done())

    def next_bytes(self) -> bytes:
        """Return the SASL bytes to send to the server next."""
        return bytes(self._guarded(self._mechanism.auth_bytes))

    def receive(self, answer: bytes) -> None:
        """Process the SASL bytes that the server has sent.

        Raises:
            SaslAuthenticationError: the server is not the one that knows the password; or it asks for a
                proof of it that is too easy to guess it from.
        """
        if self.name.startswith("SCRAM") and not self._has_received:
            self._guarded(lambda: self._ensure_iterations(answer))
        self._has_received = True
        self._guarded(lambda: self._mechanism.receive(answer))
        if self.is_done and not self._mechanism.is_authenticated():
            raise self.refused("it did not accept the credentials")

    def _ensure_iterations(self, first: bytes) -> None:
        """Check that a SCRAM server's first message asks for as many iterations as Kafka's clients demand.

        Whoever plays the server gets a proof, and tries passwords on it until one fits. Each try takes these
        iterations. So does the proof: billions of them would hold this process for an hour.

        Source: Kafka clients/.../security/scram/internals/ScramSaslClient.java, ScramMechanism.java; RFC 7677.
        """
        # As the library reads it: of an attribute that is there twice, the last one counts.
        attributes = dict(pair.split("=", 1) for pair in first.decode().split(","))
        iterations = int(attributes["i"])
        if iterations < _ITERATIONS_MIN:
            raise SaslAuthenticationError(
                self._server,
                f"it asks for {iterations} iterations of {self.name}, and {_ITERATIONS_MIN} are the least that is "
                "safe. Give the user at least as many on the brokers, or see whether this is a broker",
            )
        if iterations > _ITERATIONS_MAX:
            raise SaslAuthenticationError(
                self._server,
                f"it asks for {iterations} iterations of {self.name}, and {_ITERATIONS_MAX} are the most that are "
                "done. Give the user fewer on the brokers, or see whether this is a broker",
            )

    def ensure_offered(self, error_code: int, mechanisms: Iterable[str]) -> None:
        """Check the SaslHandshake response: whether the server has the client's mechanism.

        Raises:
            SaslAuthenticationError: the server does not have the mechanism, or does not use SASL.
        """
        if error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            offered = _shown(", ".join(sorted(mechanisms))) or "none"
            raise SaslAuthenticationError(
                self._server,
                f"it does not have the mechanism {self.name}; it has: {offered}; look at 'sasl.mechanism'",
            )
        if error_code:
            raise self.uses_no_sasl(error_of(error_code))

    def ensure_accepted(self, error_code: int, message: str | None) -> None:
        """Check a SaslAuthenticate response for an error.

        Raises:
            SaslAuthenticationError: the response has one.
        """
        if error_code:
            raise self.refused(self._without_secrets(message or str(error_of(error_code))))

    def uses_no_sasl(self, error: KBatchError) -> SaslAuthenticationError:
        """Return the error for a server that does not expect SASL."""
        return SaslAuthenticationError(
            self._server,
            f"it does not use SASL here ({error}); look at 'security.protocol' and at the port in "
            "'bootstrap.servers'",
        )

    def refused(self, why: str) -> SaslAuthenticationError:
        """Return the error for credentials that were not accepted."""
        look_at = _CREDENTIALS.get(
            self.name, "the user name and the password in 'sasl.jaas.config'"
        )
        return SaslAuthenticationError(self._server, f"{why} ({self.name}); look at {look_at}")

    def lifetime_ms(self, session_lifetime_ms: int) -> int:
        """Return after how long to authenticate again, a random part of the session's lifetime.

        However short that is, there is time to send the request that the session was opened for.
        """
        part = _LEAST_PART + _MORE_PART * random.random()
        return max(_SHORTEST_MS, int(session_lifetime_ms * part))

    def _new_mechanism(self) -> Any:
        security = self._security
        jaas = security.sasl_jaas_config
        user, password = jaas.get("username") or "", jaas.get("password") or ""
        if self.name.startswith("SCRAM"):
            user = user.replace("=", "=3D").replace(",", "=2C")  # which the library leaves out
        given: dict[str, Any] = {
            "sasl_mechanism": self.name,
            "sasl_plain_username": user,
            "sasl_plain_password": password,
            "host": self._host,
        }
        if self.name == "AWS_MSK_IAM":
            given["security_protocol"] = security.protocol
        if self.name == "GSSAPI":
            given["sasl_kerberos_service_name"] = _kerberos_service(security)
        if self.name == "OAUTHBEARER":
            given["sasl_oauth_token_provider"] = _Tokens(security, self._timeout_s)
        return get_sasl_mechanism(self.name)(**given)

    def _guarded(self, step: Callable[[], Any]) -> Any:
        """Run a step of a kafka-python mechanism, and turn any error into a KBatchError without secrets."""
        try:
            return step()
        except KBatchError:
            raise
        except RuntimeError as error:
            package = _PACKAGES.get(self.name)
            if package is None or self._mechanism is not None:
                raise self.refused(type(error).__name__) from None
            raise ConfigError(
                f"option 'sasl.mechanism' is {self.name!r}, which needs the package `{package}`: install "
                f"it where Spark's driver and executors run (`pip install {package}`)"
            ) from None
        except Exception as error:  # noqa: BLE001  see above
            raise self.refused(self._without_secrets(f"{type(error).__name__}: {error}")) from None

    def _without_secrets(self, text: str) -> str:
        security = self._security
        secrets = [value.text for _, value in security.sasl_jaas_config.options]
        secrets.append(security.sasl_oauthbearer_client_secret.text)
        return _shown(without_secrets(text.encode(errors="replace"), secrets))


def _shown(text: str) -> str:
    """Return the start of a server's text, safe to print."""
    return visible(text[:_SHOWN_MAX]) + ("..." if len(text) > _SHOWN_MAX else "")


class _Tokens(AbstractTokenProvider):  # type: ignore[misc]  # the library has no types
    """The adapter that gives OAUTHBEARER tokens to kafka-python's mechanism."""

    def __init__(self, security: Security, timeout_s: float) -> None:
        super().__init__()
        self._source = token_source_of(security)
        self._timeout_s = timeout_s

    def token(self) -> str:
        return self._source.token(self._timeout_s)

    def extensions(self) -> dict[str, str]:
        return self._source.extensions


def _kerberos_service(security: Security) -> str:
    found = security.sasl_kerberos_service_name or security.sasl_jaas_config.get("serviceName")
    if not found:
        raise ConfigError(
            "option 'sasl.kerberos.service.name' is not given, which GSSAPI needs: the name of the "
            "brokers' Kerberos principal, most often 'kafka'"
        )
    return found
