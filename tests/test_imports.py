"""What a short run imports: not what takes longer to import than the run has to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

from spark_kbatch import Cluster
from spark_kbatch.cli.main import _COMMANDS
from tests.conftest import REPOSITORY
from tests.support import builders
from tests.support.commands import COMMANDS

# Each takes a tenth of a second or more; numba half a second, with the kernels that are loaded then.
COSTLY = {
    "kafka", "numba", "numpy", "pandas", "pyarrow", "pyarrow.compute", "pyspark", "rich", "spark_kbatch.server",
    "jinja2", "prometheus_client", "starlette", "uvicorn",
}  # fmt: skip

KBATCH = "from spark_kbatch.cli.main import main\nwith contextlib.suppress(SystemExit): main()\n"
WRITE = """
import spark_kbatch
with spark_kbatch.open(sys.argv[1]) as cluster, cluster.producer() as producer:
    for number in range(100):
        producer.send("events", key=f"k{number}", value="v", headers=[("h", b"x")])
"""
READ = """
import spark_kbatch
with spark_kbatch.open(sys.argv[1]) as cluster:
    columns = ["key", "value", "topic", "partition", "offset", "timestampType", "headers"]
    assert cluster.read("events", columns=columns).read_all().num_rows == 1
    assert cluster.read("empty", columns=[]).read_all().num_rows == 0
"""
SERVE = """
import spark_kbatch
with spark_kbatch.open(sys.argv[1]) as cluster, cluster.serve() as server:
    assert server.bootstrap_servers
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    made = builders.a_cluster(tmp_path_factory.mktemp("imports"), topics={"events": 1, "empty": 1})
    builders.append_records(made, {("events", 0): builders.batch(n=1)})
    return made


def imported(program: str, *words: str) -> set[str]:
    """Return what of COSTLY a program in a process of its own has imported."""
    told = "print(json.dumps([*sys.modules]), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", f"import contextlib, json, sys\n{program}\n{told}", *words],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, input="one\ntwo\n",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return COSTLY & set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize("words", [["--help"], ["--version"]])
def test_help_and_version_import_nothing_costly_and_no_cluster(words: list[str]) -> None:
    assert imported(KBATCH + "assert 'spark_kbatch.opening' not in sys.modules", *words) == set()


def test_importing_the_package_imports_no_room_but_options() -> None:
    rooms = "print({n.split('.')[1] for n in sys.modules if n.count('.') > 1 and n.startswith('spark_kbatch.')})"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, spark_kbatch; {rooms}"],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "{'options'}\n"


@pytest.mark.parametrize(
    "command", [["topics"], ["topics", "--json"], ["describe-topic"], ["groups"]]
)
def test_commands_about_topics_import_nothing_costly(cluster: Cluster, command: list[str]) -> None:
    name, *options = command
    assert imported(KBATCH, name, str(cluster.path), *options) == set()


def test_a_server_starts_without_what_reads_records(cluster: Cluster) -> None:
    assert imported(SERVE, str(cluster.path)) == {"spark_kbatch.server"}


@pytest.mark.parametrize(
    ("program", "words"),
    [
        pytest.param(KBATCH, ["consume"], id="consume"),
        pytest.param(KBATCH, ["consume", "--json"], id="consume as JSON"),
        pytest.param(READ, [], id="read"),
        pytest.param(WRITE, [], id="send"),
        pytest.param(KBATCH, ["produce"], id="produce"),
    ],
)
def test_a_few_records_are_read_and_written_without_numba_and_pandas(
    cluster: Cluster, program: str, words: list[str]
) -> None:
    topic = ["empty" if words == ["produce"] else "events"] if words else []
    command, options = words[:1], words[1:]
    found = imported(program, *command, str(cluster.path), *topic, *options)
    assert found - {"numpy", "pyarrow", "pyarrow.compute"} == set()


def test_the_list_of_commands_says_of_each_what_its_own_help_says() -> None:
    assert [*_COMMANDS] == [*COMMANDS]
    for name, (_module, said) in _COMMANDS.items():
        command = COMMANDS[name]
        assert said == command.get_short_help_str(limit=200), name
        assert isinstance(command, click.Command)
        assert (command.name or name) in (name, name.split()[-1]), name


def test_a_command_that_does_not_exist_is_refused_as_such(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "spark_kbatch", "topisc", str(tmp_path)],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "No such command 'topisc'" in done.stderr
