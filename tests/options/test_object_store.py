"""Options of the store of a bucket: which place has which, and that no secret is shown."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from spark_kbatch.errors import ConfigError
from spark_kbatch.options.object_store import NO_STORE_OPTIONS, parse_store_options
from spark_kbatch.options.read import parse_read_options
from spark_kbatch.options.write import parse_write_options

S3 = "s3://bucket/prefix"
AZURE = "abfss://c@account.dfs.core.windows.net/x"
KEYS = {"store.access.key.id": "an-id", "store.secret.access.key": "hidden-key"}


def test_options_become_settings_of_the_stores_library() -> None:
    given = {
        **KEYS,
        "store.session.token": "t",
        "Store.Endpoint": "http://h:9000/",
        "store.region": "eu",
    }
    given["store.checksum.algorithm"] = "sha256"

    assert parse_store_options(given, S3).library_settings(S3) == {
        "aws_endpoint": "http://h:9000", "aws_region": "eu", "aws_access_key_id": "an-id",
        "aws_secret_access_key": "hidden-key", "aws_session_token": "t", "aws_checksum_algorithm": "SHA256",
    }  # fmt: skip

    of_azure = {"store.account.name": "a", "store.sas.token": "sig"}
    settings = {"azure_storage_account_name": "a", "azure_storage_sas_key": "sig"}
    assert parse_store_options(of_azure, AZURE).library_settings(AZURE) == settings
    of_google = {"store.service.account.path": "/key.json"}
    assert parse_store_options(of_google, "gs://b").library_settings("gs://b") == {
        "google_service_account": "/key.json"
    }


def test_reads_and_writes_take_them() -> None:
    read = parse_read_options({"path": S3, "subscribe": "events", **KEYS})
    write = parse_write_options({"path": S3, "topic": "events", **KEYS})

    assert read.store == write.store == parse_store_options(KEYS, S3)
    assert parse_read_options({"path": S3, "subscribe": "events"}).store == NO_STORE_OPTIONS


@pytest.mark.parametrize(
    ("given", "place", "error"),
    [
        ({"store.regoin": "eu"}, S3, "nearest known one is 'store.region'"),
        ({"store.region": "eu"}, "/a/folder", "is for a bucket of a store"),
        ({"store.region": "eu"}, "host:9092", "is for a bucket of a store"),
        ({"store.region": "eu"}, "file+bucket:///a/folder", "is for a bucket of a store"),
        ({"store.region": "eu"}, AZURE, "not one of the store of abfss"),
        ({"store.account.name": "a"}, S3, "accepted: store.endpoint, store.region"),
        ({"store.endpoint": "localhost:9000"}, S3, "accepted: a URL of http or https"),
        ({"store.access.key.id": "a"}, S3, "without 'store.secret.access.key'"),
        ({"store.session.token": "a"}, S3, "without 'store.secret.access.key'"),
        ({**KEYS, "store.credentials": "a:b"}, S3, "are both given"),
        ({"store.credentials": "no"}, S3, r"package\.module\.function"),
        ({"store.region": "a", "STORE.REGION": "b"}, S3, "given twice"),
        ({"store.access.key.id": " "}, S3, "is empty"),
        ({"store.region": 1}, S3, "of type int"),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, Any], place: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        parse_store_options(given, place)


def test_all_are_known_where_they_are_given_alone() -> None:
    with pytest.raises(ConfigError, match=r"unknown option 'client\.id'"):
        parse_store_options({"client.id": "a"}, S3, alone=True)


def test_no_secret_is_shown() -> None:
    read = parse_read_options({"path": S3, "subscribe": "events", **KEYS})

    assert "hidden-key" not in repr(read)
    assert "an-id" not in repr(read)
    assert pickle.loads(pickle.dumps(read)) == read  # as tasks get it
    for value in ("https://user:hidden-key@h", "https://hidden-key@h"):
        with pytest.raises(ConfigError) as raised:
            parse_store_options({"store.endpoint": value}, S3)
        assert "hidden-key" not in str(raised.value)
