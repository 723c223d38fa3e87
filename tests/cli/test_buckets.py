"""The command line on the URL of a bucket: what it does there, and what it refuses by name."""

from __future__ import annotations

import itertools
import json

import pytest
from click.testing import CliRunner, Result

from spark_kbatch.cli.main import cli

_numbers = itertools.count()


@pytest.fixture
def url() -> str:
    return f"memory+bucket://cli-{next(_numbers)}"


def kbatch(*words: str, stdin: str = "") -> Result:
    return CliRunner().invoke(cli, words, prog_name="kbatch", input=stdin)


def done(*words: str, stdin: str = "") -> str:
    result = kbatch(*words, stdin=stdin)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def test_topics_and_records_of_a_bucket(url: str) -> None:
    done("create-topic", url, "events", "--partitions", "2", "--config", "retention.ms=7")
    done("produce", url, "events", "--partition", "1", stdin="a\nb\nc\n")
    assert done("consume", url, "events", "--raw") == "a\nb\nc\n"
    done("delete-records", url, "events", "1:1", "--yes")
    assert done("consume", url, "events", "--raw") == "b\nc\n"
    rows = [json.loads(line) for line in done("offsets", url, "events", "--json").splitlines()]
    assert [row["offset"] for row in rows] == [0, 3]
    done("alter-topic", url, "events", "--config", "retention.ms=9")
    done("create-partitions", url, "events", "3")
    (row,) = done("topics", url, "--json", "events").splitlines()
    assert len(json.loads(row)["partitions"]) == 3
    done("delete-topic", url, "events", "--yes")
    assert done("topics", url, "--json") == ""


def test_a_bucket_without_a_cluster_is_told(url: str) -> None:
    result = kbatch("topics", url)
    assert result.exit_code != 0
    assert f"no cluster is at {url}" in str(result.exception) + result.output


@pytest.mark.parametrize(
    "words",
    [["serve"], ["repair"], ["verify"], ["gc"], ["history"], ["log-dirs"]],
    ids=lambda words: words[0],
)
def test_commands_for_folders_refuse_a_bucket_by_name(url: str, words: list[str]) -> None:
    command, *rest = words
    result = kbatch(command, url, *rest)
    assert result.exit_code == 2
    assert f"'{url}' is the URL of a bucket; `kbatch {command}` works on a folder" in result.stderr


def test_a_mirror_refuses_a_bucket_on_either_side(url: str) -> None:
    for words in (["mirror", url, "h:1", "t"], ["mirror", "h:1", url, "t"]):
        result = kbatch(*words)
        assert result.exit_code != 0
        assert "mirrors of buckets are not supported yet" in str(result.exception) + result.output
    assert "no cluster is at" in str(kbatch("topics", url).exception)  # none was created either
