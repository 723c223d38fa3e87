"""Credentials that a function returns: asked for in each process, and again before they expire."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner

import spark_kbatch
from spark_kbatch.bucket import real_objects
from spark_kbatch.bucket.real_objects import FunctionCredentials, RealObjects
from spark_kbatch.bucket.urls import objects_at
from spark_kbatch.cli.main import cli
from spark_kbatch.errors import (
    ConfigError,
    NoCredentialsError,
    ObjectAccessDeniedError,
    ObjectStoreError,
)
from spark_kbatch.options.object_store import parse_store_options
from tests.support.rough_store import ADDRESS_VARIABLE, RoughStore

URL = "s3://bucket/prefix"
HERE = "tests.bucket.test_credentials"
LIFE_S = {"short": 2, "long": 3600}

calls: list[str] = []  # of the functions below


def short(url: str) -> dict[str, Any]:
    return returned(url, "short")


def long(url: str) -> dict[str, Any]:
    return returned(url, "long")


def returned(url: str, life: str) -> dict[str, Any]:
    calls.append(url)
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=LIFE_S[life])
    return {
        "access_key_id": f"id-{len(calls)}", "secret_access_key": "the-secret-key", "token": "the-token",
        "expires_at": until,
    }  # fmt: skip


def failing(url: str) -> dict[str, Any]:
    raise RuntimeError("the vault is closed")


def odd(url: str) -> Any:
    return {"access_key_id": "a", "password": "the-secret-key"}


class _Store(BaseHTTPRequestHandler):
    """A store that has nothing, and denies those whose key's id is denied, repeating what they sent."""

    asked: list[str]
    denied: set[str]
    refusal: tuple[int, str] = 403, "AccessDenied"  # status and code

    def do_GET(self) -> None:
        sent = self.headers.get("Authorization", "")
        key_id = sent.partition("Credential=")[2].partition("/")[0]
        self.asked.append(key_id)
        status, code = self.refusal if key_id in self.denied else (404, "NoSuchKey")
        # As S3 does: in lines of their own, and with what was sent.
        body = (
            f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>no</Message>'
            f"<AWSAccessKeyId>{key_id}</AWSAccessKeyId><Token-0>the-token</Token-0></Error>"
        )
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *words: object) -> None:
        """Say nothing."""


@pytest.fixture
def store() -> Iterator[str]:
    """The address of a store."""
    _Store.asked, _Store.denied, _Store.refusal = [], set(), (403, "AccessDenied")
    calls.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Store)
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def opened(store: str, function: str) -> Any:
    given = {"store.endpoint": store, "store.credentials": f"{HERE}:{function}"}
    return objects_at(URL, parse_store_options(given, URL))


def test_credentials_that_last_are_asked_for_once_for_each_client(store: str) -> None:
    objects = opened(store, "long")
    assert not calls

    for _ in range(3):
        assert objects.get("cluster") is None

    assert calls == [URL]
    assert _Store.asked == ["id-1"] * 3


def test_credentials_are_asked_for_again_before_they_expire(store: str) -> None:
    objects = opened(store, "short")
    objects.get("cluster")
    asked = len(calls)

    time.sleep(0.9 * LIFE_S["short"])
    objects.get("cluster")

    assert _Store.asked == [f"id-{asked}", f"id-{asked + 1}"]


@pytest.mark.parametrize(
    "refusal",
    [
        (403, "AccessDenied"),
        (401, "NoAuthenticationInformation"),
        (400, "ExpiredToken"),
        (400, "InvalidToken"),
        (400, "TokenRefreshRequired"),
        (400, "RequestExpired"),
        (400, "InvalidAuthenticationInfo"),
    ],
    ids=lambda refusal: refusal[1],
)
def test_credentials_are_asked_for_again_after_they_were_denied(
    store: str, refusal: tuple[int, str]
) -> None:
    objects = opened(store, "long")
    _Store.denied, _Store.refusal = {"id-1"}, refusal

    assert objects.get("cluster") is None
    assert _Store.asked == ["id-1", "id-2"]

    _Store.denied = {"id-2", "id-3"}
    with pytest.raises(ObjectAccessDeniedError) as raised:
        objects.get("cluster")
    assert objects.get("cluster") is None

    assert _Store.asked == ["id-1", "id-2", "id-2", "id-3", "id-4"]
    assert not any(secret in str(raised.value) for secret in ("id-1", "the-token", "the-secret"))
    assert refusal[0] == 401 or refusal[1] in str(
        raised.value
    )  # the library hides the body of some


def test_another_answer_of_400_is_a_failure_of_the_store(store: str) -> None:
    objects = opened(store, "long")
    _Store.denied, _Store.refusal = {"id-1"}, (400, "MalformedXML")

    with pytest.raises(ObjectStoreError, match="MalformedXML"):
        objects.get("cluster")

    assert calls == [URL]


@pytest.mark.parametrize("status", [403, 404, 500])
def test_a_service_that_gives_no_credentials_says_nothing_of_rights(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    class Metadata(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_PUT  # noqa: N815

        def log_message(self, *words: object) -> None:
            """Say nothing."""

    for variable in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setattr(real_objects, "_READS_MAX", 1)
    with ThreadingHTTPServer(("127.0.0.1", 0), Metadata) as server:
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", address)
        url = "s3://no-such-bucket/latest"  # a word in the paths of that service
        objects = RealObjects(url, {"aws_region": "us-east-1"})
        objects._store = objects._client({"retry_config": {"max_retries": 0}})
        kind = NoCredentialsError if status < 500 else ObjectStoreError
        with pytest.raises(kind, match="no credentials were found") as raised:
            objects.get("cluster")
        # Else the library asks for three minutes.
        told = CliRunner().invoke(cli, ["check", url]) if status < 500 else None
        server.shutdown()
        thread.join()

    for looked_at in ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", address):
        assert looked_at in str(raised.value)
    if told is not None:
        assert isinstance(told.exception, NoCredentialsError)
        assert "is missing" not in told.output


@pytest.mark.parametrize(
    ("asked", "url", "is_stores"),
    [
        ("http://169.254.169.254/latest/api/token", "s3://no-such-bucket/latest", False),
        ("http://169.254.169.254/latest/api/token", "s3://no.such.254/api/token", False),
        ("https://sts.amazonaws.com/?Action=Assume", "s3://logs.example.com/sts", False),
        ("https://s3.us-east-1.amazonaws.com/b/latest/cluster", "s3://b/latest", True),
        (
            "https://s3.us-east-1.amazonaws.com/b?list-type=2&prefix=latest%2F",
            "s3://b/latest",
            True,
        ),
        ("https://logs.example.com.s3.amazonaws.com/x", "s3://logs.example.com/x", True),
        ("http://127.0.0.1:9000/b/x/cluster", "http://127.0.0.1:9000/b/x", True),
        ("https://a.blob.core.windows.net/box/x", "abfss://box@a.dfs.core.windows.net/x", True),
        ("http://169.254.169.254/metadata/identity/oauth2/token?r=1", "az://box/metadata", False),
        ("http://metadata.google.internal/computeMetadata/v1/x", "gs://box/v1", False),
        ("https://storage.googleapis.com/box/v1/cluster", "gs://box/v1", True),
    ],
)
def test_a_request_for_credentials_is_told_from_one_to_the_store(
    asked: str, url: str, is_stores: bool
) -> None:
    assert real_objects._is_of(asked, url) == is_stores


def test_whatever_is_asked_of_a_store_is_asked_again_after_a_session_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the midst of a list too."""
    with RoughStore() as rough:
        monkeypatch.setenv(ADDRESS_VARIABLE, rough.address)
        rough.order(refusals=[403])
        objects = objects_at(rough.url, parse_store_options(rough.options, rough.url))
        names = [f"data/{number:04d}" for number in range(1002)]  # two requests of a list
        with ThreadPoolExecutor(8) as pool:
            [*pool.map(lambda name: objects.put(name, b"a"), names)]

        listed = objects.list("data/")
        next(listed)
        rough.order(expire=True)
        assert len([*listed]) == len(names) - 1
        rough.order(expire=True)
        assert objects.copy(names[0], "copied")
        rough.order(expire=True)
        objects.delete(names)
        rough.order(expire=True)
        assert [one.name for one in objects.list("")] == ["copied"]
        assert rough.seen()["expired"] >= 4


def test_a_function_that_fails_or_returns_something_else_is_named(store: str) -> None:
    for function, found in (("failing", "the vault is closed"), ("odd", "the key 'password'")):
        with pytest.raises(ObjectAccessDeniedError, match=found) as raised:
            opened(store, function).get("cluster")
        assert f"{HERE}:{function}" in str(raised.value)
        assert "the-secret-key" not in str(raised.value)
    for path in (f"{HERE}:missing", "no_such_module:f", f"{HERE}:URL"):
        with pytest.raises(ConfigError, match=r"'store.credentials' is"):
            FunctionCredentials(URL, path)


def test_python_takes_options_of_the_store(store: str) -> None:
    options = {"store.endpoint": store, "store.credentials": f"{HERE}:long"}
    with pytest.raises(ConfigError, match="no cluster is at s3"):
        spark_kbatch.open(URL, store=options)
    assert {*_Store.asked} == {"id-1"}
    with pytest.raises(ConfigError, match="is no bucket's URL"):
        spark_kbatch.open("a-folder", store=options)


def test_the_command_line_takes_options_of_the_store_from_a_file(
    store: str, tmp_path: Path
) -> None:
    settings = tmp_path / "store.properties"
    settings.write_text(f"store.endpoint={store}\nstore.credentials={HERE}:long\n")

    done = CliRunner().invoke(cli, ["topics", URL, "--command-config", str(settings)])

    assert "no cluster is at s3://bucket/prefix" in str(done.exception) + done.output
    assert {*_Store.asked} == {"id-1"}


def test_a_mirror_takes_options_of_the_store_of_each_side(store: str, tmp_path: Path) -> None:
    options = {"store.endpoint": store, "store.credentials": f"{HERE}:long"}
    with pytest.raises(ConfigError, match="no cluster is at s3"):
        spark_kbatch.mirror(URL, tmp_path / "target", "events", source_config=options)
    assert {*_Store.asked} == {"id-1"}

    with spark_kbatch.open(tmp_path / "source", create=True) as source:
        source.create_topic("events")
    settings = tmp_path / "store.properties"
    settings.write_text("".join(f"{key}={value}\n" for key, value in options.items()))
    words = ["mirror", str(tmp_path / "source"), URL, "events", "--target-config", str(settings)]
    done = CliRunner().invoke(cli, words)
    assert isinstance(done.exception, ObjectStoreError)
    assert len(_Store.asked) > 1


def test_errors_show_no_secret_of_options_or_of_the_environment(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _Store.denied = {"an-id-of-options", "an-id-of-variables"}
    keys = {"store.access.key.id": "an-id-of-options", "store.secret.access.key": "a-key"}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "an-id-of-variables")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-key-of-variables")
    for given in (keys, {}):
        options = parse_store_options({"store.endpoint": store, **given}, URL)
        objects = objects_at(URL, options)
        with pytest.raises(ObjectAccessDeniedError) as raised:
            objects.get("cluster")
        assert "an-id" not in str(raised.value)
        assert "a-key" not in repr(objects) + repr(vars(objects))
