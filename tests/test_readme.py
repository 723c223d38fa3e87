"""README and docs are true: their code runs as pasted and prints what they show; their tables are the code's."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import unicodedata
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import click
import pytest

from spark_kbatch.cli.main import cli
from spark_kbatch.cli.parameters import parse_properties
from spark_kbatch.options.remote import parse_cluster_options
from tests.conftest import REPOSITORY, SHORT_LIVED_SPARK, SPARK
from tests.support import more_in_soak
from tests.support.example_project import not_activated
from tests.support.generated_docs import DOCS, GENERATED, section
from tests.support.transactional_cluster import TransactionalCluster

README = REPOSITORY / "README.md"
PAGES = [README, *sorted(DOCS.glob("*.md"))]
DOCUMENTS = [*PAGES, *(REPOSITORY / name for name in ("DESIGN.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"))]  # fmt: skip
_FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_BODY = r"((?:(?!```).*\n)*)```"
_SHELL_EXAMPLE = re.compile(rf"^```sh\n{_BODY}\n```text\n{_BODY}$", re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_SEPARATOR = "---- next block ----"
# Pages with what older Sparks have not: functions of columns, the lag, names of sources.
SHOWN_SINCE = {"values.md": (4, 1), "streams.md": (4, 2), "streams-in-production.md": (4, 2)}

# Runs the blocks of each page in an empty folder, with names of their own. All pages share a process,
# and so the Spark session that the first one makes; Spark counts relative paths from its own folder,
# so the folder is emptied in place of another one being made. A block that starts with a file's name is
# written to that file, and a command `pytest` runs the tests in such files.
RUN_PAGES = f"""
import importlib, json, os, re, shlex, shutil, sys

def run_tests(words):
    import pytest
    importlib.invalidate_caches()
    pytest.main([*words, "-p", "pytest_kbatch", "-p", "no:cacheprovider"])

for page, blocks in json.loads(sys.stdin.read()).items():
    names = {{"__name__": "__main__"}}
    for number, block in enumerate(blocks, start=1):
        file = re.match(r"# (\\w+[.]py)\\n", block)
        if file:
            with open(file[1], "w") as out:
                out.write(block)
        elif block.startswith("pytest "):
            run_tests(shlex.split(block)[1:])
        else:
            exec(compile(block, f"{{page}}, block {{number}}", "exec"), names)
        print({_SEPARATOR!r}, flush=True)
    for name in os.listdir():
        shutil.rmtree(name) if os.path.isdir(name) else os.remove(name)
"""


# What README's stream reads, where it has more partitions than the topic that the stream creates.
MORE_PARTITIONS = """
import spark_kbatch
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
with spark_kbatch.open("my-cluster", create=True) as cluster:
    cluster.create_topic("readings", partitions=4)
    with cluster.producer() as producer:
        sent = [producer.send("readings", key="kitchen", value=value) for value in ("21.5", "21.7")]
    print({future.result().partition for future in sent} & {1, 2, 3} != set())
"""


class Example(NamedTuple):
    code: str
    output: str | None  # None where the page shows none


def examples(markdown: str) -> list[Example]:
    """Find the python blocks and runs of pytest, each with the text block that follows before any other."""
    blocks = [*_FENCED.findall(markdown), ("", "")]
    return [
        Example(body, blocks[number + 1][1] if blocks[number + 1][0] == "text" else None)
        for number, (language, body) in enumerate(blocks)
        if language == "python" or (language == "sh" and body.startswith("pytest "))
    ]


def test_readme_shows_pages_and_a_terminal_before_any_code_of_python() -> None:
    before = README.read_text(encoding="utf-8").partition("```python")[0]

    assert re.findall(r"^!\[.*\]\((.*)\)$", before, re.MULTILINE) == [
        "docs/demo.svg",
        "docs/ui.png",
    ]


def test_examples_pair_each_python_block_with_the_text_block_after_it() -> None:
    markdown = "```python\n1\n```\nand\n```text\none\n```\n```python\n2\n```\n```sh\nls\n```\n"
    assert examples(markdown) == [Example("1\n", "one\n"), Example("2\n", None)]
    assert examples("```sh\npytest -q\n```\n") == [Example("pytest -q\n", None)]


@pytest.mark.spark
@pytest.mark.more_in_soak
def test_python_blocks_run_as_pasted_and_print_what_the_pages_show(tmp_path: Path) -> None:
    """Later blocks of a page use names of earlier ones. Only soak takes all pages; README is always there."""
    found = {
        str(page.relative_to(REPOSITORY)): [
            example
            for example in examples(page.read_text(encoding="utf-8"))
            # Spark 4.0 has no functions of columns.
            if SPARK >= (4, 1) or "_avro(" not in example.code
        ]
        for page in PAGES[:: 1 if more_in_soak.is_soak() else 9]
        if SPARK >= SHOWN_SINCE.get(page.name, (4, 0))
    }
    assert found["README.md"]
    (stream,) = (one for one in found["README.md"] if "writeStream" in one.code)
    found["README.md, of four partitions"] = [Example(MORE_PARTITIONS, "True"), stream]
    printed = run_pages(found, tmp_path)
    shown = [(page, example.output or "") for page, ones in found.items() for example in ones]
    assert len(printed) == len(shown)
    for output, (page, expected) in zip(printed, shown, strict=True):
        assert steady(output) == steady(expected), page


def run_pages(
    found: Mapping[str, Sequence[Example]], tmp_path: Path, brokers: str = ""
) -> list[str]:
    """Run the examples of pages, and return what each prints.

    Args:
        found: the examples, by page.
        tmp_path: an empty folder.
        brokers: HOST:PORT of those that stand for the reader's; by default one in memory.
    """
    environment = not_activated(tmp_path)
    environment |= SHORT_LIVED_SPARK
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "80"}
    folder = tmp_path / "empty"
    folder.mkdir()
    blocks = {page: [example.code for example in shown] for page, shown in found.items()}
    with TransactionalCluster() as in_memory:
        run = subprocess.run(
            [sys.executable, "-c", RUN_PAGES],
            input=json.dumps(blocks),
            cwd=folder,
            env=environment | {"KAFKA_BROKERS": brokers or in_memory.address},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
    assert run.returncode == 0, run.stderr
    return run.stdout.split(f"{_SEPARATOR}\n")[:-1]


def steady(output: str) -> str:
    """Leave out of an output what differs from run to run: how long tests took, and who compiles kernels."""
    output = re.sub(r"(?m)^kbatch: compil.*\n", "", output)
    return re.sub(r"(?<= in )\d+\.\d+s( \(.*\))?", "...", output.strip())


@pytest.mark.parametrize(
    ("page", "name"),
    [
        # Days of streams are run to count what they ask of a store.
        pytest.param(
            *one, marks=[pytest.mark.slow] if one == ("bucket-operations.md", "costs") else []
        )
        for one in GENERATED
    ],
)
def test_generated_parts_are_those_of_the_code(page: str, name: str) -> None:
    found = section(name).search((DOCS / page).read_text(encoding="utf-8"))

    assert found is not None
    assert found[1] == GENERATED[page, name](), "`make docs` writes it again"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_shown_commands_have_words_that_the_command_line_takes(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are parsed, not run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "client.properties").write_text("client.id=a")
    (tmp_path / "kbatch-token").touch()
    there = {"LOG_DIR": str(REPOSITORY)}
    parent = click.Context(cli, info_name="kbatch", **cli.context_settings)
    blocks = _FENCED.findall(path.read_text(encoding="utf-8"))
    lines = (line for language, body in blocks if language == "sh" for line in body.splitlines())
    for line in lines:
        if line.startswith("export "):
            monkeypatch.setenv(*line.removeprefix("export ").split("="))
        for part in line.split(" | "):
            if not part.startswith("kbatch "):
                continue
            _, *words = shlex.split(part.partition(" < ")[0], comments=True)
            words = [there.get(word, word) for word in words]
            for word in words:
                if word.endswith((".csv", ".jsonl", ".parquet")):
                    (tmp_path / word).touch()
            name, command, words = cli.resolve_command(parent, words)
            assert command is not None
            command.make_context(name, words, parent=parent)


def test_shown_shell_examples_print_what_the_page_shows(tmp_path: Path) -> None:
    """Those with output: each in one bash, one after the other."""
    page = (DOCS / "command-line.md").read_text(encoding="utf-8")
    examples = _SHELL_EXAMPLE.findall(page)
    assert examples
    kbatch = Path(sys.executable).with_name("kbatch")
    for script, shown in examples:
        done = subprocess.run(
            ["bash", "-c", f'kbatch() {{ "{kbatch}" "$@"; }}\n{script}'],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            check=False,
        )
        told = [line for line in done.stderr.splitlines() if ": created " not in line]
        assert (done.stdout, told) == (shown, [])


def test_the_shown_pattern_finds_each_write_without_a_mode(tmp_path: Path) -> None:
    (script,) = (body for language, body in _FENCED.findall((DOCS / "from-kafka.md").read_text("utf-8")) if "grep" in body)  # fmt: skip
    calls = 'rows.write.format("kafka").{}save()\n'
    (tmp_path / "job.py").write_text(calls.format("") + calls.format('mode("append").'))

    found = subprocess.check_output(["bash", "-c", script], cwd=tmp_path, text=True)

    assert found == f"./job.py:1:{calls.format('')}"


PROPERTIES = [
    pytest.param(body, id=f"{path.stem} {number}")
    for path in PAGES
    for number, (language, body) in enumerate(_FENCED.findall(path.read_text(encoding="utf-8")))
    if language == "properties"
]


@pytest.mark.parametrize("text", PROPERTIES)
def test_shown_client_properties_are_accepted(text: str) -> None:
    options = parse_cluster_options({"bootstrap.servers": "h:1", **dict(parse_properties(text))}, alone=True)  # fmt: skip

    assert options.security.protocol in text


@pytest.mark.parametrize(
    ("command", "installed"), [("demo", [".[demo]"]), ("test", [".[demo]", ".[dev]"])]
)
def test_the_demo_installs_what_it_needs_and_the_tests_the_tools_of_developers_too(
    command: str, installed: list[str], tmp_path: Path
) -> None:
    done = subprocess.run(
        ["make", "--dry-run", f"VENV={tmp_path}/new", command],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.findall(r"pip install .* -e '(\S+)'", done.stdout) == installed


def test_nothing_advises_to_install_the_package_from_an_index() -> None:
    """It is on none, so whoever takes its name there would be installed. A requirement of a project is no advice."""
    kept = subprocess.run(
        ["git", "ls-files", "*.py", "*.md", "*.ipynb", ".github"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    advice = re.compile(r"pip install[^\n`#]*\bspark[-_]kbatch[\[' \"`\n]")
    named = {
        name
        for name in kept.stdout.splitlines()
        if advice.search((REPOSITORY / name).read_text(encoding="utf-8"))
    }

    assert named == {"CONTRIBUTING.md"}  # which says what to do once it is there
    command = "pip install"
    assert advice.search(f"{command} 'spark-kbatch[spark]'")


def anchors(markdown: str) -> set[str]:
    """Find what links to the headings of a page may name, as GitHub makes it from their text."""
    headings = re.findall(r"^#+ (.*)$", _FENCED.sub("", markdown), re.MULTILINE)
    found = set()
    for heading in headings:
        kept = (c for c in heading.lower() if c in "-_ " or unicodedata.category(c)[0] in "LN")
        found.add("".join(kept).replace(" ", "-"))
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_relative_links_lead_somewhere(path: Path) -> None:
    missing = []
    for link in _LINK.findall(_FENCED.sub("", path.read_text(encoding="utf-8"))):
        target, _, anchor = unquote(link).partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        page = (path.parent / target).resolve() if target else path
        is_there = page.exists() and page.is_relative_to(REPOSITORY)
        if not is_there or (anchor and anchor not in anchors(page.read_text(encoding="utf-8"))):
            missing.append(link)

    assert missing == []


def test_the_design_names_modules_that_exist_and_every_room() -> None:
    text = (REPOSITORY / "DESIGN.md").read_text(encoding="utf-8")
    package = REPOSITORY / "spark_kbatch"
    modules = set(re.findall(r"[\w/]+\.py\b", text))
    rooms = {path.parent.relative_to(package).as_posix() for path in package.rglob("__init__.py")}

    assert [one for one in modules if not any((at / one).is_file() for at in (REPOSITORY, package))] == []  # fmt: skip
    assert [room for room in rooms - {"."} if f"{room}/" not in text] == []


def test_every_dependency_is_listed_with_its_licence() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    required = [
        *project["dependencies"],
        *extras["spark"],
        *extras["registry"],
        *extras["bucket"],
        *extras["metrics"],
        *extras["demo"],
    ]
    names = {re.split(r"[^\w-]", requirement)[0] for requirement in required}
    rows = re.findall(
        r"^\| \[([\w-]+)\]\(\S+\) \| ([^|]+) \|",
        (DOCS / "versions.md").read_text("utf-8"),
        re.MULTILINE,
    )

    assert {name for name, _ in rows} == names - {"spark-kbatch"}
    for name, licence in rows:
        told = metadata.metadata(name)
        claims = [
            told["License-Expression"] or told["License"] or "",
            *(told.get_all("Classifier") or []),
        ]
        family = licence.partition("-")[0]
        assert any(family in claim for claim in claims), name


def test_every_page_and_notebook_is_in_the_contents() -> None:
    linked = set(_LINK.findall((DOCS / "README.md").read_text(encoding="utf-8")))
    pages = {page.name for page in DOCS.glob("*.md")} - {"README.md"}
    notebooks = {f"../notebooks/{path.name}" for path in (REPOSITORY / "notebooks").glob("*.ipynb")}

    assert linked == pages | notebooks
