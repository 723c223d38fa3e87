"""Options of a schema registry: its URLs or folder, credentials, and TLS.

Keys are Confluent's, with the prefix `schema.registry.` as its serializers take them; `ssl.*` is as for Kafka here,
PEM files or PEM text. Credentials are secrets: they are hidden in every `repr` and error, also those in a URL.

Source: schema-registry client/.../client/SchemaRegistryClientConfig.java, security/basicauth/.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import SplitResult, unquote, urlsplit

from spark_kbatch.errors import ConfigError
from spark_kbatch.options import kinds
from spark_kbatch.options.option import (
    Option,
    fields_of,
    made_of,
    option,
    parsed_texts,
    repr_of,
    table_of,
)
from spark_kbatch.options.paths import absolute_path
from spark_kbatch.options.remote import is_address
from spark_kbatch.options.security import (
    IGNORED_SECURITY_KEYS,
    NO_SECRET,
    REFUSED_SECURITY_KEYS,
    SECURITY_OPTIONS,
    Secret,
    Security,
    secret,
    security_of,
)

PREFIX = "schema.registry."
URL = f"{PREFIX}url"
USER_INFO = f"{PREFIX}basic.auth.user.info"
SOURCE = f"{PREFIX}basic.auth.credentials.source"
PASSWORD = f"{PREFIX}basic.auth.password"
TOKEN = f"{PREFIX}bearer.auth.token"

_URL_ACCEPTS = "URLs of http or https, separated by commas; or a folder"
_TOKEN_TEXT = re.compile(r"[\x21-\x7e]+")
# Names of options that errors of TLS give, which are a broker's.
_TLS_KEYS = re.compile(
    r"(?<![\w./-])(?=ssl\.(?:truststore|keystore|key|endpoint|enabled|cipher)\.)"
)


@dataclass(frozen=True, repr=False)
class RegistryAddress:
    """The address of a registry: URLs, any of which will do, or a folder."""

    urls: tuple[str, ...] = ()  # without user and password, and without a slash at the end
    user_info: Secret = NO_SECRET  # USER:PASSWORD that the URLs have
    folder: str = ""  # absolute; empty where URLs are given

    def __str__(self) -> str:
        return self.folder or ",".join(self.urls)

    __repr__ = __str__


def _address(key: str, value: str) -> RegistryAddress:
    text = value.strip()
    is_path = text.startswith(("/", ".", "~")) or text.lower().startswith("file:")
    if is_path or not ("://" in text or "@" in text or is_address(text) or not text.strip(", ")):
        return RegistryAddress(folder=str(absolute_path(text, key)))
    parts = [_split(one.strip()) for one in text.split(",") if one.strip()]
    users = {one.netloc.rpartition("@")[0] for one in parts if one and "@" in one.netloc}
    if None in parts or not parts or len(users) > 1:
        _refuse_address(key, text)
    urls = tuple(dict.fromkeys(_without_user(one) for one in parts if one))
    if not users:
        return RegistryAddress(urls)
    user, _, password = users.pop().partition(":")
    return RegistryAddress(urls, Secret(f"{unquote(user)}:{unquote(password)}"))


def _refuse_address(key: str, text: str) -> NoReturn:
    if "@" not in text:
        kinds.refuse(key, text, f"{_URL_ACCEPTS}, such as http://localhost:8081 or /data/registry")
    raise ConfigError(
        f"option {key!r} is not shown, as it may have a password; accepted: {_URL_ACCEPTS}. All URLs have the "
        "same user and password, or none, in which a comma is written as %2C, a slash as %2F and @ as %40"
    )


def _split(url: str) -> SplitResult | None:
    """Return the parts of a URL, or None if it is none of a registry."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna")
        is_valid = parts.scheme in ("http", "https") and bool(host) and parts.port != 0
    except ValueError:
        return None
    return parts if is_valid and not parts.query and not parts.fragment else None


def _without_user(parts: SplitResult) -> str:
    host = parts.netloc.rpartition("@")[2].lower()
    return f"{parts.scheme}://{host}{parts.path.rstrip('/')}"


_TLS_ROWS = tuple(
    dataclasses.replace(row, key=f"{PREFIX}{row.key}", text=f"As `{row.key}`, for the registry.")
    for row in SECURITY_OPTIONS
    if row.key.startswith("ssl.")
)


@dataclass(frozen=True, repr=False)
class RegistryOptions:
    """A schema registry's address, and how a client proves who it is; each field is a key of Confluent's."""

    # fmt: off
    url: RegistryAddress = made_of(Option(URL, kinds.OptionKind(_address, _URL_ACCEPTS), None, "The schema registry: URLs, which are tried in turn, or a folder that stands in for one, which driver and executors share."))
    basic_auth_credentials_source: str = option(SOURCE, kinds.one_of("URL", "USER_INFO"), "", "Where user and password are: in the URL, or in the option `schema.registry.basic.auth.user.info`.", "where they are given")
    basic_auth_user_info: Secret = option(USER_INFO, secret("USER:PASSWORD, or USER"), NO_SECRET, "User and password for basic authentication; or the user alone, with the password in an option that Spark hides, `schema.registry.basic.auth.password`.", "none")
    basic_auth_password: Secret = option(PASSWORD, secret("a password"), NO_SECRET, "Password of the user in `schema.registry.basic.auth.user.info`.", "none")
    bearer_auth_token: Secret = option(TOKEN, secret("a token"), NO_SECRET, "Token to send in place of user and password.", "none")
    security: Security = made_of(*_TLS_ROWS, default=Security())
    # fmt: on
    retries: bool = True  # of calls; what can be asked for later as well has none

    def __repr__(self) -> str:
        return repr_of(self)

    @property
    def user_info(self) -> Secret:
        """USER:PASSWORD for basic authentication; empty if there is none."""
        user, password = self.basic_auth_user_info, self.basic_auth_password
        if not user:
            return self.url.user_info
        return Secret(f"{user.text}:{password.text}") if password else user


REGISTRY_OPTIONS = table_of(RegistryOptions, "a read")


def parse_registry_options(options: Mapping[str, Any]) -> RegistryOptions | None:
    """Parse and check those options whose keys start with `schema.registry.`; None if there are none.

    Raises:
        ConfigError: an unknown key, a bad value, or options that do not fit together. A secret is not repeated.
    """
    chosen: dict[str, Any] = {}
    for name, value in options.items():
        key = name.lower()
        bare = key.removeprefix(PREFIX)
        if bare in REFUSED_SECURITY_KEYS and bare != key:
            raise ConfigError(f"option {name!r} is not supported: {REFUSED_SECURITY_KEYS[bare]}")
        if bare != key and bare not in IGNORED_SECURITY_KEYS:
            chosen[name] = value
    values = parsed_texts(chosen, REGISTRY_OPTIONS)
    if not values:
        return None
    if URL not in values:
        raise ConfigError(f"option {URL!r} is not given; accepted: {_URL_ACCEPTS}")
    tls = {key.removeprefix(PREFIX): value for key, value in values.items()}
    try:
        security = security_of({key: tls[key] for key in tls if key.startswith("ssl.")})
    except ConfigError as error:
        raise of_registry(error) from None
    found = RegistryOptions(**fields_of(RegistryOptions, values), security=security)
    _ensure_one_way_to_authenticate(found)
    return found


def of_registry(error: ConfigError) -> ConfigError:
    """Return an error about the options `ssl.*` with the names that they have for a registry."""
    return ConfigError(_TLS_KEYS.sub(PREFIX, str(error)))


def _ensure_one_way_to_authenticate(options: RegistryOptions) -> None:
    source, user = options.basic_auth_credentials_source, options.basic_auth_user_info
    if source == "USER_INFO" and not user:
        raise ConfigError(f"option {SOURCE!r} is 'USER_INFO', and {USER_INFO!r} is not given")
    if user and (source == "URL" or options.url.user_info):
        raise ConfigError(
            f"options {URL!r} and {USER_INFO!r} both name a user, or {SOURCE!r} is 'URL'; give the user "
            "and the password once"
        )
    if bool(options.basic_auth_password) != (bool(user) and ":" not in user.text):
        raise ConfigError(
            f"option {USER_INFO!r} is USER:PASSWORD, or it is USER and {PASSWORD!r} is given too; neither "
            "is the case"
        )
    if options.bearer_auth_token:
        if options.user_info:
            raise ConfigError(f"options {TOKEN!r} and a user are both given; give one of them")
        if not _TOKEN_TEXT.fullmatch(options.bearer_auth_token.text):
            raise ConfigError(f"option {TOKEN!r} has characters that no token has")
