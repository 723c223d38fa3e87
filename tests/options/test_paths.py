"""Paths of folders as users write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_kbatch.errors import ConfigError
from spark_kbatch.options.paths import absolute_path


@pytest.mark.parametrize(
    ("text", "path"),
    [
        pytest.param("/data/events", "/data/events", id="absolute"),
        pytest.param("/data/../x/./events/", "/x/events", id="with dots"),
        pytest.param("file:/data/events", "/data/events", id="file"),
        pytest.param("file:///data/events", "/data/events", id="file with slashes"),
        pytest.param("file://localhost/data/events", "/data/events", id="file of this host"),
        pytest.param("file:/data/a%20b", "/data/a b", id="file with an escape"),
        pytest.param("/data/a%20b", "/data/a%20b", id="percent in a folder"),
        pytest.param("/data/a:b", "/data/a:b", id="colon in a folder"),
        pytest.param("//data/events", "/data/events", id="two slashes"),
        pytest.param("file:////data/events", "/data/events", id="file with four slashes"),
        pytest.param("FILE:/data/events", "/data/events", id="file in capitals"),
        pytest.param("file:/data/a#b", "/data/a#b", id="file with a hash"),
        pytest.param("file:///data/a?b=c#d", "/data/a?b=c#d", id="file with a question mark"),
        pytest.param("file:/data/a%3Fb%23c%25d", "/data/a?b#c%d", id="file with those escaped"),
        pytest.param("file:/data/%C3%A9", "/data/é", id="file with an escape of UTF-8"),
        pytest.param("file:/data/a;b", "/data/a;b", id="file with a semicolon"),
        pytest.param("/data/a#b?c", "/data/a#b?c", id="hash in a folder"),
    ],
)
def test_path_names_a_folder(text: str, path: str) -> None:
    assert absolute_path(text) == Path(path)


def test_relative_path_is_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert absolute_path("./events") == tmp_path / "events"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("s3://bucket/data", "has the scheme 's3'", id="s3"),
        pytest.param("hdfs://host/data", "has the scheme 'hdfs'", id="hdfs"),
        pytest.param("dbfs:/data", "has the scheme 'dbfs'", id="one slash"),
        pytest.param("file://host/data", "names the host 'host'", id="file of another host"),
        pytest.param("", "the path is empty", id="empty"),
        pytest.param("  ", "the path is empty", id="blank"),
        pytest.param("file:/data/a%2Fb", "the escape %2F", id="escaped slash"),
        pytest.param("file:/data/a%2fb", "the escape %2F", id="escaped slash in small letters"),
        pytest.param("file:/data/a%FF", "escapes that are not UTF-8", id="escape of no character"),
        pytest.param("file:/data/a%00", "a NUL character", id="escaped NUL"),
        pytest.param("/data/a\0b", "a NUL character", id="NUL"),
        pytest.param("/data/a\ud800b", "a character that UTF-8 cannot encode", id="surrogate"),
        pytest.param("/data/a\udcff", "a character that UTF-8 cannot encode", id="byte of a name"),
    ],
)
def test_path_that_names_no_folder_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        absolute_path(text)
