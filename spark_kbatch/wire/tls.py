"""TLS on a non-blocking socket, by the standard library, from Kafka's `ssl.*` options.

The library reads certificates and keys from files only. Those given as text go through a file in memory, or where
there is none through a file that only its owner can read, which is removed at once.

What fails in a handshake is final: a certificate of another name, an expired one, one of an unknown authority,
a client certificate that the broker does not accept. The error says which option to look at. With TLS 1.3 a
broker refuses a client's certificate only after the client's side of the handshake is over, so that the error
may come from the first read or write. Any other failure after the handshake, such as a damaged record, is a
connection that is lost: a new one may do.

Source: Kafka clients/.../common/network/SslTransportLayer.java, security/ssl/DefaultSslEngineFactory.java.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from spark_kbatch.errors import ConfigError, SslAuthenticationError
from spark_kbatch.options.security import Security, refuse_store

Result = TypeVar("Result")

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CHUNK = 256 * 1024  # bytes given to one write, which must be repeated with the same bytes
_RECORD = 16 * 1024  # the largest record of TLS; pieces below it are joined
_JKS_MAGIC = b"\xfe\xed\xfe\xed"
_LOOKED_AT = 1 << 20  # bytes of a file, to explain what is wrong with it
_PKCS12_START = b"\x02\x01\x03"  # its version, after the length of the whole

_PEM = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_PEM_WIDTH = 64

# By what OpenSSL calls them; the last column says what to look at.
_UNKNOWN_AUTHORITY = (
    "its certificate is not signed by an authority that is known here: give the authority's certificate "
    "as 'ssl.truststore.location' or 'ssl.truststore.certificates'"
)
_VERIFICATION_FAILURES = {
    9: "its certificate is not valid yet: compare the clocks of this machine and of the broker",
    10: "its certificate has expired: renew it at the broker, or correct the clock of this machine",
    18: _UNKNOWN_AUTHORITY,
    19: _UNKNOWN_AUTHORITY,
    20: _UNKNOWN_AUTHORITY,
    21: _UNKNOWN_AUTHORITY,
}
_OTHER_NAME = (62, 64)  # a host's name, an address
_CLIENT_REFUSED = (
    "the broker does not accept this client's certificate, or got none ({alert}): look at "
    "'ssl.keystore.location', or 'ssl.keystore.key' and 'ssl.keystore.certificate.chain'"
)
_CLIENT_ALERTS = (
    "CERTIFICATE_REQUIRED", "BAD_CERTIFICATE", "UNKNOWN_CA", "CERTIFICATE_EXPIRED",
    "CERTIFICATE_REVOKED", "CERTIFICATE_UNKNOWN", "UNSUPPORTED_CERTIFICATE", "ACCESS_DENIED",
    "DECRYPT_ERROR",
)  # fmt: skip
_NOTHING_IN_COMMON = (
    "the two sides have no version of TLS or no cipher suite in common, or the broker asks for a client "
    "certificate ({alert}): look at 'ssl.enabled.protocols', 'ssl.cipher.suites' and "
    "'ssl.keystore.location'"
)
_NOT_TLS_REASONS = ("WRONG_VERSION_NUMBER", "UNEXPECTED", "HTTP", "LENGTH", "RECORD", "TOO_MANY")
_NOT_TLS = "it does not speak TLS ({alert}): look at 'security.protocol' and at the port in 'bootstrap.servers'"


def tls_context(security: Security) -> ssl.SSLContext:
    """Return the SSLContext for all connections of a client, from Kafka's `ssl.*` options.

    Raises:
        ConfigError: a file cannot be read, or is not what its option says; a password is wrong.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = bool(security.ssl_endpoint_identification_algorithm)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as Java: any certificate may be trusted
    context.options |= ssl.OP_NO_RENEGOTIATION  # as Kafka
    versions = [_VERSIONS[one] for one in security.ssl_enabled_protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    if security.ssl_cipher_suites:
        _set_ciphers(context, security.ssl_cipher_suites)
    _load_authorities(context, security)
    _load_client_certificate(context, security)
    return context


def _set_ciphers(context: ssl.SSLContext, suites: tuple[str, ...]) -> None:
    """Offer the given cipher suites of TLS 1.2, and leave out TLS 1.2 or 1.3 if none is given for it.

    Python's `ssl` module cannot choose among the suites of TLS 1.3.
    """
    older = [one for one in suites if not one.startswith(("TLS_AES_", "TLS_CHACHA20_"))]
    if not older:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return
    if len(older) == len(suites):
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.set_ciphers(":".join(map(_openssl_name, older)))
    except ssl.SSLError as error:
        raise ConfigError(
            f"option 'ssl.cipher.suites' is {','.join(suites)!r}; OpenSSL here knows none of these suites"
        ) from error


def _openssl_name(suite: str) -> str:
    """Return OpenSSL's name of a cipher suite, which may be given by its IANA name, as in Java."""
    if not suite.startswith("TLS_"):
        return suite
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    cipher = re.sub(r"AES_(\d+)_(GCM|CCM|CBC)", r"AES\1-\2", cipher).replace("AES128-CBC", "AES128")
    cipher = cipher.replace("AES256-CBC", "AES256").replace(
        "CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"
    )
    name = f"{exchange}_{cipher}" if exchange != "RSA" else cipher
    return name.replace("_", "-")


def _load_authorities(context: ssl.SSLContext, security: Security) -> None:
    location, text = security.ssl_truststore_location, security.ssl_truststore_certificates
    if not location and not text:
        context.load_default_certs()
        return
    key = "ssl.truststore.location" if location else "ssl.truststore.certificates"
    with _explained(key, location):
        if location:
            context.load_verify_locations(cafile=location)
        else:
            context.load_verify_locations(cadata=_wrapped_pem(key, text))


def _load_client_certificate(context: ssl.SSLContext, security: Security) -> None:
    password = security.ssl_key_password.text
    location = security.ssl_keystore_location
    if location:
        with _explained("ssl.keystore.location", location, password=password):
            context.load_cert_chain(location, password=lambda: password)
    elif security.ssl_keystore_key:
        chain_key, key_key = "ssl.keystore.certificate.chain", "ssl.keystore.key"
        chain = _wrapped_pem(chain_key, security.ssl_keystore_certificate_chain)
        key = _wrapped_pem(key_key, security.ssl_keystore_key.text)
        with (
            _explained(f"{key_key}' or '{chain_key}", text=key, password=password),
            _readable_file(f"{key}\n{chain}".encode()) as path,
        ):
            context.load_cert_chain(path, password=lambda: password)


@contextlib.contextmanager
def _explained(
    option: str, location: str = "", *, text: str = "", password: str = ""
) -> Iterator[None]:
    """Turn an error about a certificate or key into a ConfigError that names the option, not its content."""
    where = f" names {location!r}, which" if location else ""
    try:
        yield
    except ssl.SSLError as error:
        start = _start_of(location) if location else text.encode()
        if start.startswith(_JKS_MAGIC) or (start[:1] == b"0" and _PKCS12_START in start[:9]):
            refuse_store(option, location)
        if "KEY_VALUES_MISMATCH" in (error.reason or ""):
            why = "holds a private key that does not belong to its certificate"
        elif b"ENCRYPTED" in start:
            wrong = "is wrong" if password else "is not given"
            why = f"holds an encrypted key, and 'ssl.key.password' {wrong}"
        else:
            why = (
                f"is not PEM with what is needed ({error.reason or 'no certificate or key found'})"
            )
        raise ConfigError(f"option '{option}'{where} {why}") from None
    except OSError as error:
        raise ConfigError(
            f"option '{option}'{where} cannot be read: {error.strerror or type(error).__name__}; Spark's "
            "executors read it too, so each of their machines needs it at this path"
        ) from None
    except ValueError as error:  # text with a character that no PEM has
        raise ConfigError(f"option '{option}'{where} is not PEM: {type(error).__name__}") from None


def _start_of(location: str) -> bytes:
    with contextlib.suppress(OSError), Path(location).open("rb") as file:
        return file.read(_LOOKED_AT)
    return b""


def _wrapped_pem(option: str, text: str) -> str:
    """Return PEM text with line breaks; given as an option it is often a single line."""
    blocks = _PEM.findall(text.replace("\\n", "\n"))
    if not blocks:
        raise ConfigError(f"option {option!r} is not PEM: it has no '-----BEGIN ...-----' block")
    return "\n".join(_wrapped_block(label, body) for label, body in blocks)


def _wrapped_block(label: str, body: str) -> str:
    if ":" not in body:  # older encrypted keys have headers, whose lines matter
        packed = "".join(body.split())
        lines = [packed[i : i + _PEM_WIDTH] for i in range(0, len(packed), _PEM_WIDTH)]
        body = "\n" + "\n".join(lines) + "\n"
    return f"-----BEGIN {label}-----{body}-----END {label}-----\n"


@contextlib.contextmanager
def _readable_file(content: bytes) -> Iterator[str]:
    """Yield the path of a temporary file with a secret, such as a key, that no other user can read."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("kbatch-key", os.MFD_CLOEXEC)
        try:
            os.write(fd, content)
            yield f"/proc/self/fd/{fd}"
        finally:
            os.close(fd)
        return
    fd, path = tempfile.mkstemp()  # readable by its owner alone
    try:
        os.write(fd, content)
        os.close(fd)
        yield path
    finally:
        Path(path).unlink()


class TlsSocket:
    """A connected TLS socket, non-blocking; a socket for `Channel`.

    OpenSSL may need the other direction first: to read before it can write, or to write before it can read.
    """

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext, host: str, server: str
    ) -> None:
        """Take over a connected socket.

        Args:
            sock: non-blocking.
            context: of `tls_context`.
            host: the name that the server's certificate must be for.
            server: for errors.
        """
        self._host = host.partition("%")[0]  # without the zone of an IPv6 address
        self._server = server
        self._wants_write = (
            False  # what the last call could not go on for; otherwise it wants to read
        )
        self.write_waits_for_read = False
        self.read_waits_for_write = False
        self._is_agreed = False  # the handshake is complete
        self._has_received = False  # so that the server has accepted the client, too
        self._socket = context.wrap_socket(
            sock, server_hostname=self._host, do_handshake_on_connect=False
        )

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._socket.fileno()

    def handshake(self) -> bool:
        """Go on with the handshake; return True once it is complete.

        While it is not, `read_waits_for_write` says what for.

        Raises:
            SslAuthenticationError: it failed.
            OSError: the connection is lost.
        """
        try:
            self._call(lambda: self._socket.do_handshake())
        except BlockingIOError:
            self.read_waits_for_write = self._wants_write
            return False
        self.read_waits_for_write = False
        self._is_agreed = True
        return True

    def sendmsg(self, buffers: list[memoryview], /) -> int:
        """Write some bytes; return how many."""
        chunk = buffers[0][:_CHUNK]
        if len(chunk) < _RECORD and len(buffers) > 1:
            chunk = _joined(buffers)
        try:
            count = self._call(lambda: self._socket.send(chunk))
        except BlockingIOError:
            self.write_waits_for_read = not self._wants_write
            raise
        except ConnectionError:
            self._raise_what_the_server_said()
            raise
        self.write_waits_for_read = False
        return count

    def recv_into(self, buffer: memoryview, /) -> int:
        """Read and decrypt the TLS records that have arrived; return how many bytes, 0 at the end."""
        count = 0
        while count < len(buffer):
            try:
                read = self._read(buffer[count:])
            except OSError:  # nothing more for now, or the connection is lost
                if count:
                    break
                raise
            if not read:
                break
            count += read
        return count

    def _read(self, buffer: memoryview) -> int:
        """Read and decrypt bytes of one TLS record; return how many."""
        try:
            count = self._call(lambda: self._socket.recv_into(buffer))
        except BlockingIOError:
            self.read_waits_for_write = self._wants_write
            raise
        self.read_waits_for_write = False
        self._has_received |= count > 0
        return count

    def pending(self) -> int:
        """Return how many decrypted bytes are still to be read, which a selector does not see."""
        return self._socket.pending()

    def close(self) -> None:
        """Close the descriptor, without ending a connection that another process still uses."""
        self._socket.close()

    def _call(self, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            self._wants_write = isinstance(error, ssl.SSLWantWriteError)
            raise BlockingIOError from None
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError):
            raise ConnectionResetError(0, "it closed the connection") from None
        except ssl.SSLError as error:
            alert = error.reason or str(error)
            if self._has_received or (self._is_agreed and "ALERT" not in alert):
                raise ConnectionResetError(0, f"TLS failed ({alert})") from None
            raise SslAuthenticationError(self._server, self._reason(error)) from None

    def _raise_what_the_server_said(self) -> None:
        """Raise the TLS alert that a server sent before it closed the connection, if there is one."""
        with contextlib.suppress(OSError):
            self._call(lambda: self._socket.recv_into(bytearray(1)))

    def _reason(self, error: ssl.SSLError) -> str:
        if isinstance(error, ssl.SSLCertVerificationError):
            if error.verify_code in _OTHER_NAME:
                return (
                    f"its certificate is not valid for {self._host!r}: give the name of the certificate in "
                    "'bootstrap.servers' and in the broker's advertised.listeners, or, to accept any name, "
                    "an empty 'ssl.endpoint.identification.algorithm'"
                )
            known = _VERIFICATION_FAILURES.get(error.verify_code)
            return known or (
                f"its certificate is not accepted: {error.verify_message}; look at "
                "'ssl.truststore.location'"
            )
        alert = error.reason or str(error)
        if any(word in alert for word in _CLIENT_ALERTS):
            return _CLIENT_REFUSED.format(alert=alert)
        if any(word in alert for word in _NOT_TLS_REASONS):
            return _NOT_TLS.format(alert=alert)
        if "INTERNAL_ERROR" in alert:
            return f"the broker failed ({alert}): look at its log"
        return _NOTHING_IN_COMMON.format(alert=alert)


def _joined(buffers: list[memoryview]) -> memoryview:
    """Join the first bytes of several pieces, up to the size of one TLS record."""
    taken: list[memoryview] = []
    room = _RECORD
    for one in buffers:
        taken.append(one[:room])
        room -= len(taken[-1])
        if not room:
            break
    return memoryview(b"".join(taken))
