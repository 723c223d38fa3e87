"""Options of a secure connection to a real cluster: Kafka's keys `security.protocol`, `ssl.*` and `sasl.*`.

Passwords, private keys and `sasl.jaas.config` are secrets. They are hidden wherever an option is shown: in a
`repr`, a log line, an error. An error of a value here never repeats it.

Stores are PEM files, or PEM text in an option, as Kafka has them with the type PEM. Java's key stores are
refused, with the command that converts them.

Source: Kafka clients/.../common/config/SslConfigs.java, SaslConfigs.java, security/JaasConfig.java,
security/ssl/DefaultSslEngineFactory.java.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn
from urllib.parse import unquote, unquote_plus

from spark_kbatch.errors import ConfigError
from spark_kbatch.options import kinds
from spark_kbatch.options.option import fields_of, option, repr_of, table_of

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = (
    "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM",
)  # fmt: skip
TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")
HIDDEN = "[hidden]"
_LOOKED_AT = 8 << 10  # bytes of what a server says; less is shown
_SECRET_MIN = 4  # characters: a shorter one is a part of ordinary words
_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})|\\(.)")  # of JSON


@dataclass(frozen=True, repr=False)
class Secret:
    """A secret such as a password, hidden in its `repr`; `text` holds the value."""

    text: str = ""

    def __repr__(self) -> str:
        return HIDDEN

    def __bool__(self) -> bool:
        return bool(self.text)


NO_SECRET = Secret()


def without_secrets(said: bytes, secrets: Iterable[str]) -> str:
    """Return the start of what a server said, without the secrets that it was asked with.

    A secret in another form, such as HTML, JSON, a URL or Latin-1, hides all that it says.
    """
    secrets, said = [one for one in secrets if one], said[:_LOOKED_AT]
    for secret in secrets:
        said = said.replace(secret.encode(errors="replace"), HIDDEN.encode())
    text = said.decode(errors="replace")
    forms = {text, said.decode("latin-1")}
    for _ in range(2):  # such as JSON in a page
        forms.update([undone for form in forms for undone in _undone(form)])
    long = (one for one in secrets if len(one) >= _SECRET_MIN)
    return HIDDEN if any(secret in form for secret in long for form in forms) else text


def _undone(text: str) -> list[str]:
    """Return what a text stands for if it is HTML, of a URL, JSON, or UTF-8 read as Latin-1."""
    halves = _ESCAPED.sub(lambda found: chr(int(found[1], 16)) if found[1] else found[2], text)
    of_json = halves.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    of_utf8 = text.encode("latin-1", "ignore").decode(errors="ignore")
    return [html.unescape(text), unquote(text), unquote_plus(text), of_json, of_utf8]


class Jaas(NamedTuple):
    """A login module of `sasl.jaas.config`, and its options."""

    module: str = ""  # its class, without the package
    options: tuple[tuple[str, Secret], ...] = ()

    def get(self, name: str) -> str | None:
        """Return the value of a login module's option; None if it is not given."""
        return next((value.text for key, value in self.options if key == name), None)


NO_JAAS = Jaas()


def secret(accepts: str) -> kinds.OptionKind[Secret]:
    """Return the kind of any text that is hidden."""
    return kinds.OptionKind(lambda _key, value: Secret(value), accepts)


def _identification(key: str, value: str) -> str:
    found = value.strip().lower()
    if found not in ("https", ""):
        kinds.refuse(key, value, "https, or empty to accept a certificate of any name")
    return found


def _tls_versions(key: str, value: str) -> tuple[str, ...]:
    by_name = {one.lower(): one for one in TLS_VERSIONS}
    found = [by_name.get(one.lower()) for one in _split(value)]
    if not found or None in found:
        kinds.refuse(key, value, f"{', '.join(TLS_VERSIONS)}, separated by commas")
    return tuple(one for one in found if one is not None)


def _listed(_key: str, value: str) -> tuple[str, ...]:
    return tuple(_split(value))


def _split(value: str) -> list[str]:
    return [one.strip() for one in value.split(",") if one.strip()]


def _pem_location(key: str, value: str) -> str:
    location = value.strip()
    if location.lower().endswith((".jks", ".p12", ".pfx", ".keystore", ".truststore")):
        refuse_store(key, location)
    return location


def _store_type(key: str, value: str) -> str:
    found = value.strip().upper()
    if found != "PEM":
        refuse_store(key, value)
    return found


def refuse_store(key: str, value: str) -> NoReturn:
    """Raise for a key store that is not PEM, with the command that converts it."""
    store = value if value.endswith((".jks", ".p12", ".pfx")) else "STORE"
    source = store
    convert = ""
    if not store.endswith((".p12", ".pfx")):
        source = "store.p12"
        convert = f"`keytool -importkeystore -srckeystore {store} -destkeystore {source} -deststoretype PKCS12`, then "
    if "truststore" in key:
        convert += f"`openssl pkcs12 -in {source} -nokeys -out ca.pem`"
        then = "ssl.truststore.location=ca.pem"
    else:
        convert += f"`openssl pkcs12 -in {source} -out client.pem`"
        then = "ssl.keystore.location=client.pem, and the key's password as ssl.key.password"
    raise ConfigError(
        f"option {key!r} is {value!r}: key stores of Java (JKS, PKCS12) cannot be read; convert it to PEM "
        f"with {convert}, and give {then}"
    )


_JAAS_ACCEPTS = (
    "a login module with its options, such as `org.apache.kafka.common.security.plain.PlainLoginModule "
    'required username="NAME" password="PASSWORD";`'
)
_JAAS_TOKEN = re.compile(
    r"""\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"';=]+)|([;=]))""", re.DOTALL
)
_JAAS_FLAGS = ("required", "requisite", "sufficient", "optional")


def parse_jaas(key: str, value: str) -> Jaas:
    """Parse the text of `sasl.jaas.config`: a class, a flag, NAME=VALUE pairs, and a semicolon.

    Raises:
        ConfigError: it is something else; the text, which holds a password, is not repeated.
    """
    tokens = _jaas_tokens(value)
    shape = "".join("w" if token.mark is None else token.mark for token in tokens or ())
    if not re.fullmatch("ww(w=w)*;", shape):
        _refuse_jaas(key, "it is not one module with NAME=VALUE pairs and a semicolon at the end")
    module, flag, *pairs = (token.text for token in tokens or () if token.mark is None)
    if flag.lower() not in _JAAS_FLAGS:
        _refuse_jaas(key, "the module is not followed by `required`")
    options = zip(pairs[::2], map(Secret, pairs[1::2]), strict=True)
    return Jaas(module.rpartition(".")[2], tuple(options))


class _Token(NamedTuple):
    """A token of `sasl.jaas.config`: a word, or one of the marks `=` and `;`."""

    text: str
    mark: str | None  # "=" or ";" outside of quotes


def _jaas_tokens(value: str) -> list[_Token] | None:
    """Split the value of `sasl.jaas.config` into tokens; return None if a quote is not closed."""
    tokens: list[_Token] = []
    position, text = 0, value.rstrip()
    while position < len(text):
        found = _JAAS_TOKEN.match(text, position)
        if found is None:
            return None
        double, single, bare, mark = found.groups()
        quoted = double if double is not None else single
        if quoted is not None:
            tokens.append(_Token(re.sub(r"\\(.)", r"\1", quoted), None))
        else:
            tokens.append(_Token(bare or "", mark))
        position = found.end()
    return tokens


def _refuse_jaas(key: str, why: str) -> NoReturn:
    raise ConfigError(f"option {key!r} is not valid: {why}; accepted: {_JAAS_ACCEPTS}")


@dataclass(frozen=True, repr=False)
class Security:
    """A client's identity, and the protection of its connections; each field is a key of Kafka's."""

    # fmt: off
    protocol: str = option("security.protocol", kinds.one_of(*PROTOCOLS), "PLAINTEXT", "How connections are secured: with SSL they are encrypted, with SASL the client authenticates itself.")
    ssl_truststore_location: str = option("ssl.truststore.location", kinds.OptionKind(_pem_location, "a PEM file"), "", "File with the certificates of the authorities that brokers' certificates are checked against. Executors read it too, at the same path.", "the system's authorities")
    ssl_truststore_certificates: str = option("ssl.truststore.certificates", kinds.stripped("PEM text"), "", "The same certificates as text, in place of a file.", "none")  # PEM
    ssl_truststore_type: str = option("ssl.truststore.type", kinds.OptionKind(_store_type, "PEM"), "PEM", "Format of the certificates. Key stores of Java are refused, with the command that converts them.")
    ssl_keystore_location: str = option("ssl.keystore.location", kinds.OptionKind(_pem_location, "a PEM file"), "", "File with the client's private key and certificate chain, for brokers that ask for a client certificate.", "none")
    ssl_keystore_certificate_chain: str = option("ssl.keystore.certificate.chain", kinds.stripped("PEM text"), "", "The certificate chain as text, in place of a file; with ssl.keystore.key.", "none")  # PEM
    ssl_keystore_key: Secret = option("ssl.keystore.key", secret("PEM text"), NO_SECRET, "The private key as text, in place of a file; with ssl.keystore.certificate.chain.", "none")  # PEM
    ssl_keystore_type: str = option("ssl.keystore.type", kinds.OptionKind(_store_type, "PEM"), "PEM", "Format of the private key.")
    ssl_key_password: Secret = option("ssl.key.password", secret("a password"), NO_SECRET, "Password of the private key, if it is encrypted.", "none")
    ssl_endpoint_identification_algorithm: str = option("ssl.endpoint.identification.algorithm", kinds.OptionKind(_identification, "https, or empty"), "https", "How to check that a certificate is for the broker's host name. Empty accepts any name, so that any holder of a certificate from the same authority can pass for the broker.")  # empty: names are not checked
    ssl_enabled_protocols: tuple[str, ...] = option("ssl.enabled.protocols", kinds.OptionKind(_tls_versions, ", ".join(TLS_VERSIONS)), TLS_VERSIONS, "Versions of TLS to offer.", "TLSv1.2,TLSv1.3")
    ssl_cipher_suites: tuple[str, ...] = option("ssl.cipher.suites", kinds.OptionKind(_listed, "names of OpenSSL or IANA, separated by commas"), (), "Cipher suites to offer, for TLS 1.2.", "OpenSSL's")
    sasl_mechanism: str = option("sasl.mechanism", kinds.one_of(*MECHANISMS), "GSSAPI", "How the client authenticates itself. GSSAPI needs the package `gssapi` and a ticket, from `kinit` or a keytab in the environment variable `KRB5_CLIENT_KTNAME`; AWS_MSK_IAM needs the package `botocore`.")
    sasl_jaas_config: Jaas = option("sasl.jaas.config", kinds.OptionKind(parse_jaas, 'as for Kafka: `org.apache.kafka.common.security.scram.ScramLoginModule required username="NAME" password="PASSWORD";`'), NO_JAAS, "Login module and credentials, as one would give them to a Java client. Only the user name, the password and other options are used, the classes are not.", "none")
    sasl_kerberos_service_name: str = option("sasl.kerberos.service.name", kinds.stripped("a name"), "", "Name of the Kerberos principal that brokers run as.", "none")
    sasl_login_callback_handler_class: str = option("sasl.login.callback.handler.class", kinds.stripped("a class of Kafka, or a function `package.module.function`"), "", "Where tokens come from, for OAUTHBEARER: a Python function without arguments that returns a token. Classes of Kafka are accepted; which of its ways is used follows from the other options.", "none")
    sasl_oauthbearer_token_endpoint_url: str = option("sasl.oauthbearer.token.endpoint.url", kinds.stripped("a URL: https, http, file"), "", "Where OAUTHBEARER gets tokens: the identity provider's endpoint, or a file that holds one.", "none")
    sasl_oauthbearer_scope: str = option("sasl.oauthbearer.scope", kinds.stripped("text"), "", "Scope to ask the token endpoint for.", "none")
    sasl_oauthbearer_client_id: str = option("sasl.oauthbearer.client.credentials.client.id", kinds.stripped("text"), "", "Client id for the token endpoint; `clientId` of sasl.jaas.config does the same.", "none")
    sasl_oauthbearer_client_secret: Secret = option("sasl.oauthbearer.client.credentials.client.secret", secret("a password"), NO_SECRET, "Client secret for the token endpoint; `clientSecret` of sasl.jaas.config does the same.", "none")
    # fmt: on

    def __repr__(self) -> str:
        return repr_of(self)

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether the client authenticates itself by SASL."""
        return self.protocol.startswith("SASL")


SECURITY_OPTIONS = table_of(Security)

# Keys that Kafka's clients know and that change nothing here.
IGNORED_SECURITY_KEYS = frozenset(
    "security.providers ssl.keymanager.algorithm ssl.protocol ssl.provider "
    "ssl.secure.random.implementation ssl.trustmanager.algorithm sasl.client.callback.handler.class "
    "sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin "
    "sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor sasl.login.class "
    "sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds "
    "sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor "
    "sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms".split()
)
REFUSED_SECURITY_KEYS = {
    "ssl.engine.factory.class": "there is no Java to run it; use the other ssl options",
    "ssl.keystore.password": "PEM files have no store password; give ssl.key.password",
    "ssl.truststore.password": "PEM files have no store password; leave it out",
}


def security_of(values: Mapping[str, Any]) -> Security:
    """Return a client's security options from values by key, after checking that they fit together.

    Raises:
        ConfigError: names the options that do not fit.
    """
    security = Security(**fields_of(Security, values))
    _ensure_one_of_each_store(security)
    if security.uses_sasl:
        _ensure_credentials(security)
    return security


def _ensure_one_of_each_store(security: Security) -> None:
    if security.ssl_truststore_location and security.ssl_truststore_certificates:
        raise ConfigError(
            "options 'ssl.truststore.location' and 'ssl.truststore.certificates' are both given; give "
            "one of them"
        )
    inline = (bool(security.ssl_keystore_key), bool(security.ssl_keystore_certificate_chain))
    if security.ssl_keystore_location and any(inline):
        raise ConfigError(
            "option 'ssl.keystore.location' is given together with 'ssl.keystore.key' or "
            "'ssl.keystore.certificate.chain'; give the file, or the two texts"
        )
    if any(inline) and not all(inline):
        raise ConfigError(
            "options 'ssl.keystore.key' and 'ssl.keystore.certificate.chain' are only useful together; "
            "give both"
        )


_MECHANISMS_OF_MODULES = {
    "PlainLoginModule": ("PLAIN",),
    "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "OAuthBearerLoginModule": ("OAUTHBEARER",),
    "IAMLoginModule": ("AWS_MSK_IAM",),
    "Krb5LoginModule": ("GSSAPI",),
}


def _ensure_credentials(security: Security) -> None:
    mechanism, jaas = security.sasl_mechanism, security.sasl_jaas_config
    fitting = _MECHANISMS_OF_MODULES.get(jaas.module)
    if fitting and mechanism not in fitting:
        raise ConfigError(
            f"option 'sasl.mechanism' is {mechanism!r}, and 'sasl.jaas.config' has {jaas.module}, which is "
            f"for {' and '.join(fitting)}; give 'sasl.mechanism' as {fitting[-1]!r}, or another module"
        )
    if mechanism == "PLAIN" or mechanism.startswith("SCRAM"):
        if jaas.get("username") is None or jaas.get("password") is None:
            raise ConfigError(
                f"option 'sasl.jaas.config' has no user name and password, which {mechanism} needs; "
                f"accepted: {_JAAS_ACCEPTS}"
            )
    elif mechanism == "AWS_MSK_IAM" and not security.uses_tls:
        raise ConfigError(
            f"option 'security.protocol' is {security.protocol!r}; AWS_MSK_IAM needs 'SASL_SSL'"
        )
