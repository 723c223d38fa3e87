"""Every notebook runs from top to bottom. They assert in their own cells."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient

from tests.conftest import SHORT_LIVED_SPARK, SPARK_4_1

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))


def read(path: Path) -> nbformat.NotebookNode:
    text = path.read_text(encoding="utf-8")
    notebook: nbformat.NotebookNode = nbformat.reads(text, as_version=4)  # type: ignore[no-untyped-call]
    return notebook


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if SPARK_4_1 and path.stem == "streaming":
        pytest.skip(
            "on Spark 4.1 what is available is one micro-batch, after which Spark closes no window"
        )
    monkeypatch.setenv("MPLBACKEND", "agg")
    for name, value in SHORT_LIVED_SPARK.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    folder = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(read(path), kernel_name="python3", resources=folder, timeout=300)
    kernel = client.create_kernel_manager()
    # Without any folder of registered kernels, "python3" is the interpreter that runs this test.
    kernel.kernel_spec_manager = KernelSpecManager(kernel_dirs=[])
    assert kernel.kernel_spec is not None
    assert kernel.kernel_spec.argv[0] == sys.executable
    client.execute()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_stores_no_outputs(path: Path) -> None:
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert cells
    assert all(cell.outputs == [] and cell.execution_count is None for cell in cells)
