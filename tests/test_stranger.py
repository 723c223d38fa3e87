"""A stranger's hour: what README, docs, help texts and notebooks show, followed with the wheel alone.

The wheel, and what the pages say to install, go into a new environment. It is not activated: its programs are
called by their full paths, from empty folders, and nothing of this repository is on any path. What is shown
as output must be what comes out.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

from tests import test_notebooks
from tests.conftest import REPOSITORY, SHORT_LIVED_SPARK
from tests.support.distributions import build_wheel
from tests.support.follower import SEPARATOR
from tests.support.transactional_cluster import TransactionalCluster
from tests.test_readme import PAGES, steady

pytestmark = [pytest.mark.slow, pytest.mark.spark]

FOLLOWER = (REPOSITORY / "tests" / "support" / "follower.py").read_text(encoding="utf-8")
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INSTALLED = re.compile(r"pip install((?: (?:'[^']+'|[\w.\[\],-]+))+)")

# Anyone who opens a notebook or writes a test has these.
OF_THE_READER = ("ipykernel", "pytest")

# Shell lines that need a clone, a Kafka broker's own tools, or another program.
NOT_FOLLOWED = {
    "make demo": "in a clone",
    "make test": "in a clone",
    "pip install": "the environment has it already",
    "pip wheel": "in a clone; tests/spark/test_shipped.py does so",
    "mv spark_kbatch-": "as above",
    "spark-submit --py-files spark_kbatch.zip": "as above",
    "kafka-acls.sh ": "a Kafka broker's own tool",
    "make dist": "in a clone; tests/test_running_a_server.py has what docs/running-a-server.md runs",
    "sudo ": "as above",
    "openssl rand -hex 32 | sudo ": "as above",
    "openssl rand -hex 32 | podman ": "as above",
    "podman ": "as above",
    "kubectl ": "as above",
    "kbatch transactions ": "on transactions that hang, or whose log is lost: as in tests/cli/test_transactions.py",
}
if not shutil.which("kcat"):
    NOT_FOLLOWED["kcat "] = "is not installed"

# What stands for the reader's own folders, files and brokers in the commands of a page.
BROKER = """
broker = write("broker", {topic!r}).serve(port=0)
STANDS_FOR["broker-1:9092,broker-2:9092"] = broker.bootstrap_servers
STANDS_FOR["broker-1:9092"] = broker.bootstrap_servers
"""
STAGES = {
    "README.md": BROKER.format(topic="readings"),
    "docs/bucket.md": """
broker = write("broker", "readings").serve(port=0)
STANDS_FOR["broker:9092"] = broker.bootstrap_servers
write("my-cluster", "readings")
for shown, folder in [("my-bucket/history", "history"), ("my-bucket/moved", "moved")]:
    STANDS_FOR[f"s3://{shown}"] = f"file+bucket://{Path(folder).absolute()}"
""",
    "docs/bucket-operations.md": """
STANDS_FOR["s3://my-bucket/events"] = f"file+bucket://{Path('bucket').absolute()}"
write(STANDS_FOR["s3://my-bucket/events"], "events")
""",
    "docs/metrics.md": """
STANDS_FOR["s3://my-bucket/events"] = f"file+bucket://{Path('bucket').absolute()}"
STANDS_FOR["sponge /var/lib/node_exporter"] = "tee ."  # which not every reader has
for place in (STANDS_FOR["s3://my-bucket/events"], "my-cluster"):
    write(place, "events")
""",
    "docs/bucket-accidents.md": """
for shown, folder in [("my-bucket/events", "bucket"), ("my-replica/events", "replica")]:
    STANDS_FOR[f"s3://{shown}"] = f"file+bucket://{Path(folder).absolute()}"
    write(STANDS_FOR[f"s3://{shown}"], "readings")
sorted(Path("replica").glob("*/ledger/*"))[-2].unlink()  # which never came to the replica
""",
    "docs/broker-logs.md": """
STANDS_FOR["/var/lib/kafka-logs"] = "kafka-logs"
STANDS_FOR["/mnt/backup/clicks-0"] = "kafka-logs/clicks-0"
STANDS_FOR["/mnt/backup/kafka-logs"] = "saved"
write("lost", "clicks").alter_group_offsets("billing", {("clicks", 0): 1})
Path("lost/broker-0").rename("saved")
Path("00000000000000000007-aBc_dEf.log").touch()  # as tiered storage names a segment
""",
    "docs/command-line.md": """
readings = write("PATH", "readings", partitions=2)
for group in ["billing", "reports"]:
    readings.alter_group_offsets(group, {("readings", 0): 1})
write("PATH", "clicks-web")
write("PATH", "orders")
write("SOURCE", "clicks")
write("other", "readings")
STANDS_FOR["/data/my-cluster"] = "PATH"
for shown, folder in [("my-bucket/events", "bucket"), ("my-replica/events", "replica")]:
    STANDS_FOR[f"s3://{shown}"] = f"file+bucket://{Path(folder).absolute()}"
    write(STANDS_FOR[f"s3://{shown}"], "readings")
write_broker_dir("LOG_DIR", "readings", partitions=2)
write_files()
broker = write("broker", "readings")
broker.create_topic("copy", partitions=2)
broker = broker.serve(port=0)
STANDS_FOR["broker:9092"] = broker.bootstrap_servers
STANDS_FOR["broker-1:9092"] = broker.bootstrap_servers
""",
    "docs/from-kafka.md": """
Path("job.py").write_text('orders.write.format("kafka").save()')
""",
    "docs/exactly-once.md": """
STANDS_FOR["broker-1:9092"] = os.environ["KAFKA_BROKERS"]
""",
    "docs/kafka-cluster.md": BROKER.format(topic="orders")
    + """
commit_offset(broker.bootstrap_servers, "billing", "orders")
Path("client.properties").write_text("client.id=me")
""",
}


class Block(NamedTuple):
    language: str  # python or sh
    code: str
    output: str | None  # None where the page shows none


def blocks(markdown: str) -> list[Block]:
    """Find what a reader can run, each with the text block below it."""
    found = list(_FENCED.finditer(markdown))
    below: dict[int, str] = {
        one.end(): two[2]
        for one, two in pairwise(found)
        if two[1] == "text" and not markdown[one.end() : two.start()].strip()
    }
    return [Block(one[1], one[2], below.get(one.end())) for one in found if one[1] in ("python", "sh")]  # fmt: skip


class Stranger(NamedTuple):
    """An environment with the wheel, and the variables of a shell in which it is not activated."""

    bin: Path
    variables: dict[str, str]

    def run(
        self, *words: str, folder: Path, given: str = "", **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, by its full path."""
        return subprocess.run(
            [str(self.bin / words[0]), *words[1:]],
            cwd=folder,
            env=self.variables | more,
            input=given,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )


def said_to_install(wheel: Path) -> list[str]:
    """Return the requirements that pages and notebooks name, with the wheel in place of a clone."""
    texts = [path.read_text(encoding="utf-8") for path in (*PAGES, *test_notebooks.NOTEBOOKS)]
    extras, others = set(), set()
    for text in texts:
        for words in _INSTALLED.findall(text):
            for word in shlex.split(words):
                name, _, extra = word.partition("[")
                if name in (".", "spark-kbatch"):
                    extras |= set(filter(None, extra.rstrip("]").split(",")))
                # Not an older Spark in place of the newest.
                elif not name.startswith(("-", "pyspark==")):
                    others.add(word)
    return [f"{wheel}[{','.join(sorted(extras))}]", *sorted(others)]


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Stranger:
    folder = tmp_path_factory.mktemp("stranger")
    venv.create(folder / "env", with_pip=True)
    programs = folder / "env" / "bin"
    wanted = said_to_install(build_wheel(folder / "dist"))
    subprocess.run(
        [programs / "python", "-m", "pip", "install", "--quiet", *wanted, *OF_THE_READER],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        check=True,
    )

    ours = ("PYTHON", "PYSPARK", "SPARK", "KBATCH", "VIRTUAL_ENV", "PYTEST", "NUMBA", "HYPOTHESIS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    path = [one for one in kept["PATH"].split(os.pathsep) if not one.startswith(sys.prefix)]
    home = folder / "home"
    home.mkdir()
    return Stranger(
        programs,
        kept | SHORT_LIVED_SPARK | {"PATH": os.pathsep.join(path), "HOME": str(home), "COLUMNS": "80"},
    )  # fmt: skip


def test_the_package_comes_from_the_wheel_with_its_command(
    stranger: Stranger, tmp_path: Path
) -> None:
    found = stranger.run("python", "-c", "import spark_kbatch as k; print(k.__file__, k.__version__)", folder=tmp_path)  # fmt: skip
    file, version = found.stdout.split()
    assert Path(file).is_relative_to(stranger.bin.parent), found.stderr

    for command in (["kbatch"], ["python", "-m", "spark_kbatch"]):
        assert stranger.run(*command, "--version", folder=tmp_path).stdout.split()[-1] == version


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_a_page_shows_what_comes_out(stranger: Stranger, page: Path, tmp_path: Path) -> None:
    """Python as pasted, and commands as typed, in the page's order and in one folder."""
    name = str(page.relative_to(REPOSITORY))
    found = blocks(page.read_text(encoding="utf-8"))
    task = {
        "page": name,
        "bin": str(stranger.bin),
        "stage": STAGES.get(name, ""),
        "blocks": [(block.language, block.code) for block in found],
        "not_followed": list(NOT_FOLLOWED),
    }
    with TransactionalCluster() as brokers:  # for a reader who has some
        done = stranger.run(
            "python",
            "-c",
            FOLLOWER,
            folder=tmp_path,
            given=json.dumps(task),
            KAFKA_BROKERS=brokers.address,
        )
    assert done.returncode == 0, done.stderr

    printed = done.stdout.split(f"{SEPARATOR}\n")[:-1]
    assert len(printed) == len(found)
    for output, block in zip(printed, found, strict=True):
        if block.output is not None or block.language == "python":
            assert steady(output) == steady(block.output or ""), block.code


def test_the_help_of_each_command_is_what_the_page_shows(
    stranger: Stranger, tmp_path: Path
) -> None:
    page = (REPOSITORY / "docs" / "command-line.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^## kbatch ([\w-]+)\n\n```text\n(.*?)```$", page, re.MULTILINE | re.DOTALL))  # fmt: skip
    commands = stranger.run("kbatch", "--help", folder=tmp_path).stdout.partition("Records:")[2]
    assert set(re.findall(r"^  ([\w-]+)", commands, re.MULTILINE)) == set(shown)

    for name, text in shown.items():
        told = stranger.run("kbatch", name, "--help", folder=tmp_path, COLUMNS="100").stdout
        assert [line.rstrip() for line in told.splitlines()] == text.splitlines(), name


@pytest.fixture
def kernel(
    stranger: Stranger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[KernelManager]:
    """What runs notebooks: the stranger's Python, in a folder that has their data alone."""
    for name in os.environ.keys() - stranger.variables.keys():
        monkeypatch.delenv(name)
    for name, value in stranger.variables.items():
        monkeypatch.setenv(name, value)
    for data in test_notebooks.FOLDER.glob("*.tar.xz"):
        shutil.copy(data, tmp_path)
    kernel = KernelManager()
    command = [str(stranger.bin / "python"), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel._kernel_spec = KernelSpec(argv=command, language="python")
    kernel.start_kernel(cwd=str(tmp_path))
    yield kernel
    kernel.shutdown_kernel(now=True)


@pytest.mark.parametrize("path", test_notebooks.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_it_is_stored_with(path: Path, kernel: KernelManager) -> None:
    test_notebooks.run(path, kernel)
