"""A broker with listeners for each way in: TLS, mutual TLS, SASL over TLS, and certificates that are no good.

with secure_broker(kafka, folder) as secured:
secured.servers("SASL")        # HOST:PORT of a listener
secured.recipes()              # options by the name of a way in
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.support.certificates import Authority, Issued
from tests.support.kafka import Broker, Kafka, Listener

USER = "alice"
SCRAM = ("SCRAM-SHA-512", "SCRAM-SHA-256")
WAYS = ("tls", "mutual-tls", "inline-mutual-tls", "plain", "scram-512", "scram-256")
_LOGIN = "org.apache.kafka.common.security"


class Way(NamedTuple):
    """A way in that is open: the listener, and the options of clients."""

    listener: str
    options: Mapping[str, str]


class SecureBroker:
    """The broker, with its certificates and secrets; none of the secrets may be printed by anyone."""

    def __init__(self, kafka: Kafka, folder: Path) -> None:
        self.password = f"pass-{secrets.token_hex(12)}"
        self.key_password = f"key-{secrets.token_hex(12)}"
        self.authority = Authority(folder / "certificates", password=self.key_password)
        self.stranger = Authority(folder / "stranger", name="stranger")
        self.client = self.authority.issue("client")
        issued = {
            "TLS": self.authority.issue("broker"),
            "EXPIRED": self.authority.issue("expired", days=(-3, -1)),
            "WRONGNAME": self.authority.issue("wrong-name", hosts=["elsewhere.example"]),
        }
        listeners = [Listener(name, "SSL", _store(one)) for name, one in issued.items()]
        trusts = {
            "ssl.truststore.type": "PEM", "ssl.truststore.location": self.authority.certificate,
            "ssl.client.auth": "required",
        }  # fmt: skip
        listeners.append(Listener("MTLS", "SSL", _store(issued["TLS"]) | trusts))
        listeners.append(Listener("SASL", "SASL_SSL", _store(issued["TLS"]) | self._sasl()))
        listeners.append(Listener("SASLPLAINTEXT", "SASL_PLAINTEXT", self._sasl()))
        words = [f"--add-scram={name}=[name={USER},password={self.password}]" for name in SCRAM]
        self.broker = Broker(
            kafka, folder, listeners=listeners, format_words=words,
            log_retention_ms=-1, log_cleaner_dedupe_buffer_size=2**21,
        )  # fmt: skip

    def _sasl(self) -> dict[str, object]:
        plain = f'{_LOGIN}.plain.PlainLoginModule required user_{USER}="{self.password}";'
        token = f'{_LOGIN}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="b";'
        return {
            "sasl.enabled.mechanisms": ",".join(["PLAIN", "OAUTHBEARER", *SCRAM]),
            "plain.sasl.jaas.config": plain,
            "oauthbearer.sasl.jaas.config": token,
        } | {
            f"{name.lower()}.sasl.jaas.config": f"{_LOGIN}.scram.ScramLoginModule required;"
            for name in SCRAM
        }

    def servers(self, listener: str) -> str:
        """Return the address of a listener."""
        return self.broker.address if listener == "PLAINTEXT" else self.broker.addresses[listener]

    @property
    def secrets(self) -> list[str]:
        """Everything that must not be seen: passwords, and a line of each private key of a client."""
        keys = self.client.key, self.client.encrypted_key
        lines = [line for key in keys for line in key.read_text().splitlines()[1:-1]]
        return [self.password, self.key_password, *lines]

    # Options of clients, without the prefix "kafka.".

    def tls(self) -> dict[str, str]:
        """Return options that trust the private authority."""
        return {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.certificate),
        }

    def mutual_tls(self) -> dict[str, str]:
        """Return options with the client's key and certificate in a file."""
        return self.tls() | {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.client.both),
        }

    def inline_mutual_tls(self) -> dict[str, str]:
        """Return options that hold the certificates and the encrypted key themselves."""
        return {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": self.authority.certificate.read_text(),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": self.client.certificate.read_text(),
            "ssl.keystore.key": self.client.encrypted_key.read_text(),
            "ssl.key.password": self.key_password,
        }

    def sasl(self, mechanism: str, password: str | None = None) -> dict[str, str]:
        """Return options of SASL over TLS."""
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        return self.tls() | {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": (
                f'{_LOGIN}.{module} required username="{USER}" password="{password or self.password}";'
            ),
        }

    def ways(self) -> dict[str, Way]:
        """Return the ways in that are open, by name: `WAYS`."""
        return {
            "tls": Way("TLS", self.tls()),
            "mutual-tls": Way("MTLS", self.mutual_tls()),
            "inline-mutual-tls": Way("MTLS", self.inline_mutual_tls()),
            "plain": Way("SASL", self.sasl("PLAIN")),
            "scram-512": Way("SASL", self.sasl("SCRAM-SHA-512")),
            "scram-256": Way("SASL", self.sasl("SCRAM-SHA-256")),
        }


def _store(issued: Issued) -> dict[str, object]:
    return {"ssl.keystore.type": "PEM", "ssl.keystore.location": issued.both}


@contextlib.contextmanager
def secure_broker(kafka: Kafka, folder: Path) -> Iterator[SecureBroker]:
    """Run the broker."""
    secured = SecureBroker(kafka, folder)
    with secured.broker:
        yield secured
