"""Every notebook runs from top to bottom, and prints what it is stored with. They assert in their own cells.

KBATCH_REWRITE_NOTEBOOKS=1 pytest tests/test_notebooks.py, which is `make notebooks`, stores the outputs of the run
in the notebooks; look at them before you keep them. A cell with the tag `noise` prints what differs from run to
run, such as times: only the kinds of its outputs are compared. So are pictures, whose bytes depend on fonts.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

from tests.conftest import SHORT_LIVED_SPARK, SPARK

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
WITHOUT_SPARK = [FOLDER / "a-brokers-directory.ipynb", FOLDER / "inside-a-log.ipynb"]
WITH_SPARK = [path for path in NOTEBOOKS if path not in WITHOUT_SPARK]
LARGEST = 300 * 1024
_REWRITE = bool(os.environ.get("KBATCH_REWRITE_NOTEBOOKS"))


def read(path: Path) -> nbformat.NotebookNode:
    text = path.read_text(encoding="utf-8")
    notebook: nbformat.NotebookNode = nbformat.reads(text, as_version=4)  # type: ignore[no-untyped-call]
    return notebook


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(cell: nbformat.NotebookNode) -> list[Any]:
    """Return what a cell shows, without what is different in each run."""
    is_noise = "noise" in cell.metadata.get("tags", [])
    texts, others = "", []
    for output in cell.outputs:
        if output.get("name") == "stderr":
            # What Java says when Spark starts, what Spark says of a micro-batch that was interrupted by a stop,
            # and which cluster and topics a write has created.
            others_said = [
                one
                for one in output.text.splitlines()
                if "created a cluster" not in one and "created topic" not in one
            ]
            is_spark = "getOrCreate()" in cell.source or "query.stop()" in cell.source
            assert not others_said or is_spark, output.text
        elif output.output_type == "stream":
            texts += output.text  # a run may divide it elsewhere
        else:
            assert output.output_type in ("display_data", "execute_result"), output
            plain = "" if is_noise or "image/png" in output.data else output.data["text/plain"]
            others.append((output.output_type, sorted(output.data), plain))
    return [bool(texts) if is_noise else texts, others]


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KernelManager]:
    """What runs notebooks, as the interpreter that runs this test; in an empty folder but for their data."""
    monkeypatch.delenv("MPLBACKEND", raising=False)  # pictures are outputs
    for name, value in SHORT_LIVED_SPARK.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    for data in FOLDER.glob("*.tar.xz"):
        shutil.copy(data, tmp_path)
    kernel = KernelManager(kernel_name="python3")
    # Without any folder of registered kernels, "python3" is this interpreter.
    kernel.kernel_spec_manager = KernelSpecManager(kernel_dirs=[])
    assert kernel.kernel_spec is not None
    assert kernel.kernel_spec.argv[0] == sys.executable
    kernel.start_kernel(cwd=str(tmp_path))
    yield kernel
    kernel.shutdown_kernel(now=True)


def run(path: Path, kernel: KernelManager) -> None:
    """Run a notebook, and compare what it shows with what it is stored with; or store it."""
    stored, notebook = read(path), read(path)
    notebook.cells.insert(0, nbformat.v4.new_code_cell("%reset -f"))  # type: ignore[no-untyped-call]
    client = NotebookClient(notebook, km=kernel, timeout=600)
    with client.setup_kernel():
        assert client.kc is not None
        try:
            for number, cell in enumerate(notebook.cells):
                client.execute_cell(cell, number)
        finally:
            client.kc.stop_channels()
    del notebook.cells[0]
    if _REWRITE:
        store(notebook, path)
        return
    for cell, before in zip(code_cells(notebook), code_cells(stored), strict=True):
        assert shown(cell) == shown(before), cell.source


def store(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Write a notebook with its outputs, and without what says nothing about it."""
    notebook.metadata.language_info = {"name": "python"}
    for number, cell in enumerate(code_cells(notebook), start=1):
        cell.metadata.pop("execution", None)
        cell.execution_count = number
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        for output in cell.outputs:
            output.pop("transient", None)
            if "execution_count" in output:
                output.execution_count = number
    text = nbformat.writes(notebook)  # type: ignore[no-untyped-call]
    path.write_text(f"{text.rstrip()}\n", encoding="utf-8")


def test_notebooks_without_spark_run_and_show_what_they_are_stored_with(
    kernel: KernelManager,
) -> None:
    """In one process, one after the other: most of the time would be its start."""
    for path in WITHOUT_SPARK:
        run(path, kernel)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("path", WITH_SPARK, ids=lambda path: path.stem)
def test_notebook_runs_and_shows_what_it_is_stored_with(path: Path, kernel: KernelManager) -> None:
    if SPARK < (4, 2) and path.stem == "streaming":
        pytest.skip(
            "before Spark 4.2 the first micro-batch has all there is: there is nothing to watch"
        )
    run(path, kernel)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_as_it_ran_and_is_small(path: Path) -> None:
    cells = code_cells(read(path))
    pictures = [o for cell in cells for o in cell.outputs if "image/png" in o.get("data", {})]

    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert pictures
    assert path.stat().st_size < LARGEST
    assert [o for cell in cells for o in cell.outputs if o.get("name") == "stderr"] == []
