"""Options of the store of a bucket: its endpoint, region and credentials.

    spark.read.format("kbatch").option("store.endpoint", "http://localhost:9000").load("s3://bucket/prefix")

What is not given a process takes from its environment, as the store's other programs do. The keys of secrets are
such that Spark hides their values where it shows options, and they are hidden in every `repr` and error here; but
options travel in plans, to every process of a job. `store.credentials` does not: each process calls the function that
it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from spark_kbatch.errors import ConfigError
from spark_kbatch.options import kinds
from spark_kbatch.options.option import (
    STORE_PREFIX,
    fields_of,
    option,
    parsed_texts,
    repr_of,
    table_of,
)
from spark_kbatch.options.paths import bucket_scheme
from spark_kbatch.options.security import NO_SECRET, Secret

CREDENTIALS = f"{STORE_PREFIX}credentials"

_S3, _AZURE, _GOOGLE = "s3", "azure", "google"
_PROVIDERS = {
    "s3": _S3, "s3a": _S3, "gs": _GOOGLE, "abfss": _AZURE, "abfs": _AZURE, "az": _AZURE,
}  # fmt: skip
# The settings of the library that options are, by store.
_SETTINGS = {
    _S3: {
        "store.endpoint": "aws_endpoint",
        "store.region": "aws_region",
        "store.access.key.id": "aws_access_key_id",
        "store.secret.access.key": "aws_secret_access_key",
        "store.session.token": "aws_session_token",
        "store.checksum.algorithm": "aws_checksum_algorithm",
    },
    _AZURE: {
        "store.endpoint": "azure_storage_endpoint",
        "store.account.name": "azure_storage_account_name",
        "store.account.access.key": "azure_storage_account_key",
        "store.sas.token": "azure_storage_sas_key",
    },
    _GOOGLE: {"store.service.account.path": "google_service_account"},
}
_KEYS_BESIDE_FUNCTION = (
    "store.access.key.id", "store.secret.access.key", "store.session.token",
    "store.account.access.key", "store.sas.token", "store.service.account.path",
)  # fmt: skip
_ENDPOINT_ACCEPTS = "a URL of http or https"


def _endpoint(key: str, value: str) -> str:
    text = value.strip().rstrip("/")
    if "@" in text:
        raise ConfigError(
            f"option {key!r} is not shown, as it may have a password; accepted: {_ENDPOINT_ACCEPTS}, without a user"
        )
    try:
        parts = urlsplit(text)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        kinds.refuse(key, value, f"{_ENDPOINT_ACCEPTS}, such as http://localhost:9000")
    return text


def _secret(key: str, value: str) -> Secret:
    if not value.strip():
        raise ConfigError(f"option {key!r} is empty; give its value, or leave it out")
    return Secret(value.strip())


@dataclass(frozen=True, repr=False)
class StoreOptions:
    """The options of a bucket's store, parsed."""

    # fmt: off
    endpoint: str = option("store.endpoint", kinds.OptionKind(_endpoint, _ENDPOINT_ACCEPTS), "", "Address of the store, where it is not Amazon's or Azure's own. With `http` there is no TLS.", "the store's own")
    region: str = option("store.region", kinds.stripped("a region's name"), "", "S3: the region of the bucket.", "from the environment, or us-east-1")
    access_key_id: Secret = option("store.access.key.id", kinds.OptionKind(_secret, "text"), NO_SECRET, "S3: the key's id.", "from the environment")
    secret_access_key: Secret = option("store.secret.access.key", kinds.OptionKind(_secret, "text"), NO_SECRET, "S3: the key.", "from the environment")
    session_token: Secret = option("store.session.token", kinds.OptionKind(_secret, "text"), NO_SECRET, "S3: the token of a session, which ends: a stream needs `store.credentials` instead.", "from the environment")
    checksum_algorithm: str = option("store.checksum.algorithm", kinds.one_of("SHA256"), "", "S3: checksum that each put is sent with, which a bucket with object lock requires.", "none")
    account_name: str = option("store.account.name", kinds.stripped("a name"), "", "Azure: the storage account, where the URL does not name it.", "from the URL or the environment")
    account_access_key: Secret = option("store.account.access.key", kinds.OptionKind(_secret, "text"), NO_SECRET, "Azure: a key of the account.", "from the environment")
    sas_token: Secret = option("store.sas.token", kinds.OptionKind(_secret, "text"), NO_SECRET, "Azure: a shared access signature.", "from the environment")
    service_account_path: str = option("store.service.account.path", kinds.stripped("a file"), "", "Google: file with the key of a service account, on every machine.", "from the environment")
    credentials: str = option(CREDENTIALS, kinds.OptionKind(kinds.parse_dotted_path, "`package.module:function`"), "", "Function that returns credentials. Each process calls it, and again before they expire.", "none")
    # fmt: on

    def __repr__(self) -> str:
        return repr_of(self)

    def library_settings(self, url: str) -> dict[str, str]:
        """Return the settings that the library of stores has for these options."""
        settings = _SETTINGS[store_kind(url)]
        given = {row.key: getattr(self, _FIELDS[row.key]) for row in STORE_OPTIONS}
        return {
            setting: value.text if isinstance(value, Secret) else value
            for key, setting in settings.items()
            if (value := given[key])
        }

    def shown(self) -> dict[str, str]:
        """Return the values that are no secrets, by key."""
        given = {row.key: getattr(self, _FIELDS[row.key]) for row in STORE_OPTIONS}
        return {key: value for key, value in given.items() if value and isinstance(value, str)}

    def secrets(self) -> list[Secret]:
        """Return the values that are shown nowhere."""
        values = [getattr(self, name) for name in _FIELDS.values()]
        return [value for value in values if isinstance(value, Secret) and value]


STORE_OPTIONS = table_of(StoreOptions)
NO_STORE_OPTIONS = StoreOptions()
_FIELDS = dict(
    zip((row.key for row in STORE_OPTIONS), StoreOptions.__dataclass_fields__, strict=True)
)


def store_kind(url: str) -> str:
    """Return "s3", "azure" or "google", the kind of store that a bucket's URL names; empty for any other place."""
    return _PROVIDERS.get(bucket_scheme(url), "")


def parse_store_options(
    options: Mapping[str, Any], address: object, *, alone: bool = False
) -> StoreOptions:
    """Parse and check those options whose keys start with `store.`.

    Args:
        options: of a read or a write, or of a client.
        address: the URL of the bucket, or another place, for which there are no such options.
        alone: whether these are all options of the caller, so that any other key is unknown.

    Raises:
        ConfigError: an unknown key, a bad value, options that the place does not have, or that do not fit
            together. A secret is not repeated.
    """
    chosen = {
        name: value
        for name, value in options.items()
        if alone or name.lower().startswith(STORE_PREFIX)
    }
    values = parsed_texts(chosen, STORE_OPTIONS)
    _ensure_of_place(values, address)
    _ensure_one_way(values)
    return StoreOptions(**fields_of(StoreOptions, values))


def _ensure_of_place(values: Mapping[str, Any], address: object) -> None:
    provider = store_kind(str(address))
    known = [*_SETTINGS.get(provider, ()), *([CREDENTIALS] if provider else ())]
    for key in values:
        if not provider:
            raise ConfigError(
                f"option {key!r} is for a bucket of a store, such as s3://BUCKET/PREFIX; leave it out for "
                f"{str(address)!r}"
            )
        if key not in known:
            raise ConfigError(
                f"option {key!r} is not one of the store of {address}; accepted: {', '.join(known)}"
            )


def _ensure_one_way(values: Mapping[str, Any]) -> None:
    for key in _KEYS_BESIDE_FUNCTION:
        if key in values and CREDENTIALS in values:
            raise ConfigError(f"options {key!r} and {CREDENTIALS!r} are both given; give one")
    for one, other in (
        ("store.access.key.id", "store.secret.access.key"),
        ("store.session.token", "store.secret.access.key"),
        ("store.secret.access.key", "store.access.key.id"),
    ):
        if one in values and other not in values:
            raise ConfigError(f"option {one!r} is given without {other!r}; give both")
    if "store.account.access.key" in values and "store.sas.token" in values:
        raise ConfigError(
            "options 'store.account.access.key' and 'store.sas.token' are both given; give one"
        )
