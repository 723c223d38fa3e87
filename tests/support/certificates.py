"""Certificates for a broker and its clients, as an authority of one's own issues them; PEM files in a folder.

authority = Authority(folder)
authority.certificate                       # what clients trust
server = authority.issue("broker")          # for localhost and 127.0.0.1
server.both                                 # key and certificate in one file, as Kafka's stores take it
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LOOPBACK = ("localhost", "127.0.0.1")
DAY = timedelta(days=1)


class Issued(NamedTuple):
    """A certificate with its key."""

    certificate: Path
    key: Path  # PKCS 8
    encrypted_key: Path  # the same, behind the authority's password
    both: Path


class Authority:
    """A private certificate authority."""

    def __init__(self, folder: Path, *, name: str = "authority", password: str = "") -> None:
        """`password` is of the keys of what it issues."""
        self._folder, self._password = folder, password.encode()
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        now = datetime.now(UTC)
        self._own = (
            _builder(self._name, self._name, self._key, now - DAY, now + DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), False)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = folder / f"{name}.pem"
        self.certificate.write_bytes(_pem(self._own))

    def issue(
        self, name: str, *, hosts: Sequence[str] = LOOPBACK, days: tuple[float, float] = (-1, 1)
    ) -> Issued:
        """Issue a certificate to `name`, for these hosts, valid in these days from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        first, last = (now + timedelta(days=day) for day in days)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            _builder(_named(name), self._name, key, first, last)
            .add_extension(x509.SubjectAlternativeName([_host(one) for one in hosts]), False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage(
                    [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
                ),
                False,
            )
            .add_extension(issuer, False)
            .sign(self._key, hashes.SHA256())
        )
        names = ("certificate", "key", "encrypted-key", "both")
        issued = Issued(*(self._folder / f"{name}-{what}.pem" for what in names))
        plain = _pem_of_key(key, serialization.NoEncryption())
        issued.certificate.write_bytes(_pem(certificate))
        issued.key.write_bytes(plain)
        issued.both.write_bytes(plain + _pem(certificate))
        if self._password:
            encryption = serialization.BestAvailableEncryption(self._password)
            issued.encrypted_key.write_bytes(_pem_of_key(key, encryption))
        return issued


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    first: datetime,
    last: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject).issuer_name(issuer).public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(first).not_valid_after(last)
    )  # fmt: skip


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs, key_cert_sign=signs, crl_sign=signs,
        content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem_of_key(
    key: ec.EllipticCurvePrivateKey, encryption: serialization.KeySerializationEncryption
) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )
