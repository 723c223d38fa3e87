"""PATH on the command line: given, or from KBATCH_PATH; and the command run in its other ways."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner, Result

from spark_kbatch import Cluster
from spark_kbatch.cli.main import cli
from tests.support import builders


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    folder = tmp_path_factory.mktemp("paths")
    return builders.a_cluster(folder, topics={"events": 2, "more": 1, "doomed": 1})


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def default(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("KBATCH_PATH", str(cluster.path))
    return cluster


def kbatch(*words: str) -> Result:
    return CliRunner().invoke(cli, words, prog_name="kbatch")


def topics_of(done: Result) -> list[str]:
    assert done.exit_code == 0, (done.output, done.exception)
    return [json.loads(line)["topic"] for line in done.stdout.splitlines()]


@pytest.mark.usefixtures("default")
@pytest.mark.parametrize(
    ("words", "topics"),
    [
        ([], ["doomed", "events", "more"]),
        (["events"], ["events"]),
        (["--foreign-end", "log", "more", "events"], ["more", "events"]),
        (["--", "events"], ["events"]),
    ],
    ids=["none", "a topic", "options first", "after two dashes"],
)
def test_path_may_be_left_out_where_the_environment_has_it(
    words: list[str], topics: list[str]
) -> None:
    assert topics_of(kbatch("topics", "--json", *words)) == topics


@pytest.mark.usefixtures("default")
def test_a_path_that_is_given_goes_over_the_environment(tmp_path: Path) -> None:
    builders.a_cluster(tmp_path / "other", topics={"here": 1})
    (path,) = (file.parent for file in tmp_path.rglob("cluster.json"))
    relative = f"./{path.relative_to(tmp_path)}"
    for word in (str(path), relative):
        assert topics_of(kbatch("topics", word, "--json")) == ["here"]
    done = kbatch("history", "127.0.0.1:1", "0")
    assert "is the address of a real cluster" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["create-topic", "memory://m", "t"],
        ["produce", "memory://m", "t"],
        ["topics", "memory://m"],
        ["mirror", "./here", "memory://m", "t"],
    ],
    ids=lambda words: words[0],
)
def test_topics_in_memory_are_refused_since_they_are_gone_when_the_command_ends(
    words: list[str],
) -> None:
    done = kbatch(*words)
    said = f"'memory://m' is in the memory of one process, and gone when `kbatch {words[0]}` ends"
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())


@pytest.mark.usefixtures("default")
def test_a_bare_name_that_is_also_a_folder_is_refused(cluster: Cluster, empty_folder: Path) -> None:
    (empty_folder / "doomed").mkdir()
    for command, *rest in (["topics"], ["delete-topic", "--yes"], ["consume"]):
        done = kbatch(command, "doomed", *rest)
        assert done.exit_code == 2
        assert "accepted: './doomed' for the folder, or PATH and then 'doomed'" in done.stderr
    assert "doomed" in cluster.topic_names()
    assert topics_of(kbatch("topics", str(cluster.path), "doomed", "--json")) == ["doomed"]


@pytest.mark.usefixtures("default")
def test_a_command_that_takes_nothing_but_path_takes_any_word_for_it() -> None:
    done = kbatch("log-dirs", "nowhere")
    assert "nowhere: there is no such folder" in str(done.exception)
    assert kbatch("log-dirs").exit_code == 0


def test_without_a_path_the_error_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KBATCH_PATH", "")
    done = kbatch("topics")
    assert (done.exit_code, "Missing argument 'PATH'" in done.stderr) == (2, True)


def test_the_package_runs_as_a_module(cluster: Cluster) -> None:
    command = [sys.executable, "-m", "spark_kbatch", "topics"]
    done = subprocess.run([*command, cluster.path, "--json"], capture_output=True, text=True)
    assert [json.loads(line)["topic"] for line in done.stdout.splitlines()] == cluster.topic_names()
    done = subprocess.run([*command, "absent"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.startswith("kbatch: ")) == (1, True)
    usage = subprocess.run([*command, "-h"], capture_output=True, text=True, check=True).stdout
    assert usage.startswith("Usage: python -m spark_kbatch topics [OPTIONS] [PATH] [TOPIC]...")


@pytest.mark.parametrize(
    ("words", "word", "found"),
    [
        ([], "des", {"describe", "describe-topic"}),
        (["describe-topic", "{path}"], "", {"events", "more", "doomed"}),
        (["delete-topic", "{path}", "events"], "m", {"more"}),
        (["produce"], "ev", {"events"}),
        (["topics", "localhost:1"], "e", set()),
        (["topics", "./absent"], "e", set()),
        (["groups"], "--com", {"--command-config"}),
    ],
    ids=["command", "topics", "several", "of KBATCH_PATH", "real cluster", "no cluster", "option"],
)
def test_shells_complete_commands_options_and_topics(
    default: Cluster, words: list[str], word: str, found: set[str]
) -> None:
    shell = BashComplete(cli, {}, "kbatch", "_KBATCH_COMPLETE")
    given = [one.replace("{path}", str(default.path)) for one in words]
    assert {item.value for item in shell.get_completions(given, word)} == found


def test_no_summary_of_a_command_is_cut() -> None:
    assert "..." not in kbatch("--help").stdout.partition("Records:")[2]
