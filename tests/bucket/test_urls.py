"""The URLs of buckets, and what they lead to."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_kbatch.bucket import urls
from spark_kbatch.bucket.objects import MemoryObjects
from spark_kbatch.bucket.real_objects import RealObjects
from spark_kbatch.bucket.urls import checked, objects_at, place_in_memory
from spark_kbatch.errors import ConfigError
from spark_kbatch.options.object_store import StoreOptions
from spark_kbatch.options.paths import bucket_scheme


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket", "s3://bucket"),
        ("S3://Bucket/Some/Prefix//", "s3://Bucket/Some/Prefix"),
        ("abfss://c@a.dfs.core.windows.net/x/", "abfss://c@a.dfs.core.windows.net/x"),
        ("file+bucket:///a/b/", "file+bucket:///a/b"),
    ],
)
def test_a_url_has_one_form(url: str, shown: str) -> None:
    assert checked(url) == checked(shown) == shown


@pytest.mark.parametrize(
    "url",
    [
        "s3://", "s3:///", "gs:/bucket", "file+bucket://a/b", "s3://b/a?x=1", "s3://b/#a", "file+bucket:///a\tb",
        "file+bucket:///a%09b", "s3://b/a\nb", "memory+bucket://a\x7f",
    ],
)  # fmt: skip
def test_a_url_without_a_bucket_or_with_more_than_a_name_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"names no|has a"):
        checked(url)


@pytest.mark.parametrize(
    "url",
    [
        "s3://b/x/../y",
        "s3://b/..",
        "s3://b/./x",
        "s3://b/%2E%2e/x",
        "gs://b/a%2Fb",
        "abfss://c@a.dfs.core.windows.net/a%2fb",
        "file+bucket:///tmp/a/../b",
        "memory+bucket://a/..",
    ],
)
def test_a_url_that_would_be_resolved_to_another_place_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="write the path that is meant"):
        checked(url)


@pytest.mark.parametrize(
    "url",
    [
        "s3://user:secret@b/x",
        "s3://secret@b/x",
        "s3://b:9000/x",
        "abfss://c:secret@a.dfs.core.windows.net/x",
    ],
)
def test_a_user_a_password_and_a_port_are_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError, match=r"no user, password or port") as raised:
        checked(url)
    assert "secret" not in str(raised.value)
    assert "store.*" in str(raised.value)


def test_names_that_only_look_so_are_taken() -> None:
    for url in ("s3://b/a..b/...x", "s3://b/a%20b", "s3://b/x:y@z"):
        assert checked(url) == url


def test_other_addresses_are_of_no_bucket(tmp_path: Path) -> None:
    for address in (tmp_path, str(tmp_path), "host:9092", "memory://a", "hdfs://a/b", "s3", None):
        assert bucket_scheme(address) == ""


@pytest.mark.parametrize(
    "url",
    ["s3://bucket/prefix", "s3a://bucket/prefix", "abfss://c@account.dfs.core.windows.net/prefix"],
)
def test_a_store_is_made_without_a_request(url: str) -> None:
    assert isinstance(objects_at(url), RealObjects)


def test_a_process_opens_a_store_once_while_nothing_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = "s3://opened-once/prefix"
    first = objects_at(url)
    assert objects_at(url) is first
    assert objects_at(f"{url}/other") is not first
    assert objects_at(url, StoreOptions(region="eu-north-1")) is not first

    monkeypatch.setenv("AWS_SESSION_TOKEN", "of another session")
    assert objects_at(url) is not first
    monkeypatch.delenv("AWS_SESSION_TOKEN")
    assert objects_at(url) is first
    later_ms = urls.monotonic_ms() + 3_600_000
    monkeypatch.setattr(urls, "monotonic_ms", lambda: later_ms)
    assert objects_at(url) is not first


def test_of_many_stores_the_first_are_forgotten() -> None:
    first = objects_at("s3://forgotten/0")
    for number in range(1, 50):
        objects_at(f"s3://forgotten/{number}")
    assert objects_at("s3://forgotten/49") is objects_at("s3://forgotten/49")
    assert objects_at("s3://forgotten/0") is not first


def test_places_that_do_not_exist_are_not_made_by_looking(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    for url in (f"file+bucket://{folder}", "memory+bucket://nothing-here"):
        with pytest.raises(ConfigError, match=r"no cluster is at .*create=True"):
            objects_at(url)
    assert not folder.exists()

    objects = objects_at(f"file+bucket://{folder}", create=True)
    objects.put("name", b"content")
    assert (folder / "name").read_bytes() == b"content"


def test_tests_may_place_objects_of_their_own() -> None:
    mine = MemoryObjects()
    place_in_memory("memory+bucket://mine", mine)
    assert objects_at("memory+bucket://mine", create=True) is mine
