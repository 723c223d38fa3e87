"""The README is true: its code runs as pasted and prints what it shows; its tables are the code's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from spark_kbatch.options.option import Option, ignored_markdown, options_markdown
from spark_kbatch.options.producer import PRODUCER_OPTIONS
from spark_kbatch.options.read import READ_OPTIONS
from spark_kbatch.options.write import WRITE_OPTIONS
from tests.conftest import SHORT_LIVED_SPARK

README = Path(__file__).resolve().parent.parent / "README.md"
_FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SEPARATOR = "---- next block ----"


class Example(NamedTuple):
    code: str
    output: str | None  # None where the README shows none


def examples(markdown: str) -> list[Example]:
    """Find the python blocks, each with the text block that follows before any other block."""
    blocks = [*_FENCED.findall(markdown), ("", "")]
    return [
        Example(body, blocks[number + 1][1] if blocks[number + 1][0] == "text" else None)
        for number, (language, body) in enumerate(blocks)
        if language == "python"
    ]


def test_examples_pair_each_python_block_with_the_text_block_after_it() -> None:
    markdown = "```python\n1\n```\nand\n```text\none\n```\n```python\n2\n```\n```sh\nls\n```\n"
    assert examples(markdown) == [Example("1\n", "one\n"), Example("2\n", None)]


@pytest.mark.spark
def test_python_blocks_run_as_pasted_and_print_what_the_readme_shows(tmp_path: Path) -> None:
    """Later blocks use names of earlier ones, so all are one script, run in an empty folder."""
    found = examples(README.read_text(encoding="utf-8"))
    assert found
    script = f"\nprint({_SEPARATOR!r})\n".join(example.code for example in found)

    # As in an IDE, or from cron: the virtual environment is not active, and the first python3 on PATH
    # has nothing of it.
    environment = {name: value for name, value in os.environ.items() if "PYSPARK" not in name}
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    environment["PATH"] = f"{python.parent}{os.pathsep}{environment['PATH']}"
    environment |= SHORT_LIVED_SPARK
    folder = tmp_path / "empty"
    folder.mkdir()
    run = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr

    printed = run.stdout.split(f"{_SEPARATOR}\n")
    assert len(printed) == len(found)
    for output, example in zip(printed, found, strict=True):
        assert output.strip() == (example.output or "").strip()


@pytest.mark.parametrize(
    ("side", "options"),
    [
        ("read", READ_OPTIONS),
        ("write", WRITE_OPTIONS),
        ("producer", PRODUCER_OPTIONS),
    ],
)
def test_options_tables_are_those_of_the_code(side: str, options: tuple[Option, ...]) -> None:
    marker = rf"<!-- {side} options -->\n(.*?)\n<!-- end -->"
    table = re.search(marker, README.read_text(encoding="utf-8"), re.DOTALL)
    assert table is not None
    assert table[1] == options_markdown(options)


def test_table_of_ignored_options_is_that_of_the_code() -> None:
    table = re.search(
        r"<!-- ignored options -->\n(.*?)\n<!-- end -->",
        README.read_text(encoding="utf-8"),
        re.DOTALL,
    )
    assert table is not None
    assert table[1] == ignored_markdown()
