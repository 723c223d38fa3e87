"""Compiled kernels are cached, and compiled again when what they are made of changes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from importlib import metadata
from pathlib import Path

import pytest
from numpy.lib import NumpyVersion

import spark_kbatch
from spark_kbatch.kernels import jit

PACKAGE = Path(spark_kbatch.__file__).parent

# One kernel, with a helper that has LLVM code and one from another module.
KERNEL = """
import numpy as np
from helper import _twice
from spark_kbatch.kernels import jit, llvm

_copy = llvm.copy


def copied(data, out):
    return np.int64(_copy(data, np.uint64(0), out, np.uint64(0), np.uint64(_twice(data.shape[0]) // 2)))


def unused(data):
    return np.int64(data.shape[0])


def examples():
    data = np.zeros(0, np.uint8)
    return {"copied": (data, data), "unused": (data,)}


load = jit.compile_on_first_call(globals(), ("_copy", "_twice"), examples)
"""
HELPER = """
def _twice(number):
    return 2 * number
"""
PROGRAM = """
import numpy as np
import kernel

out = np.zeros(3, np.uint8)
end = kernel.copied(np.arange(3, dtype=np.uint8), out)
print(end, *out, sum(kernel.copied.stats.cache_hits.values()))
"""


def printed(folder: Path, **environment: str) -> list[int]:
    """Run the program: the end of the copy, the copied bytes, and the number of kernels from the cache."""
    environment = {"NUMBA_CACHE_DIR": str(folder / "cache")} | environment
    environment = os.environ | {"PYTHONPATH": ""} | environment
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [int(text) for text in done.stdout.split()]


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


by_content = NumpyVersion(metadata.version("numba")) >= "0.68.0"  # what numba knows sources by


def test_kernels_are_compiled_again_when_llvm_code_or_a_helper_changes(tmp_path: Path) -> None:
    shutil.copytree(
        PACKAGE, tmp_path / "spark_kbatch", ignore=shutil.ignore_patterns("__pycache__")
    )
    (tmp_path / "kernel.py").write_text(KERNEL)
    (tmp_path / "helper.py").write_text(HELPER)

    assert printed(tmp_path) == [3, 0, 1, 2, 0]
    assert printed(tmp_path) == [3, 0, 1, 2, 1]

    # As a new installation of the same release.
    for module in tmp_path.rglob("*.py"):
        os.utime(module, (0, 0))
    assert printed(tmp_path) == [3, 0, 1, 2, int(by_content)]

    end = "return builder.add(arguments[3], size)"
    llvm = tmp_path / "spark_kbatch" / "kernels" / "llvm.py"
    edit(llvm, end, "return builder.add(arguments[3], builder.add(size, size))")
    assert printed(tmp_path) == [6, 0, 1, 2, 0]

    edit(tmp_path / "helper.py", "2 * number", "number")
    assert printed(tmp_path) == [2, 0, 0, 0, 0]


def test_processes_share_compiled_kernels_where_only_temporary_files_can_be_written(
    tmp_path: Path,
) -> None:
    (tmp_path / "kernel.py").write_text(KERNEL)
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "__pycache__").write_text("in the way")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    nowhere = {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null", "NUMBA_CACHE_DIR": ""}
    nowhere |= {"PYTHONPATH": str(PACKAGE.parent), "TMPDIR": str(temporary)}

    assert printed(tmp_path, **nowhere) == [3, 0, 1, 2, 0]
    assert printed(tmp_path, **nowhere) == [3, 0, 1, 2, 1]

    # What others could have put there is not run.
    (shared,) = temporary.iterdir()
    shared.chmod(0o777)
    assert printed(tmp_path, **nowhere) == [3, 0, 1, 2, 0]
    assert len(list(temporary.iterdir())) == 2


INTERRUPTED = """
import os, signal, sys

class CtrlC:
    came = False

    def find_spec(self, name, path=None, target=None):
        if name == "numba.core.types" and not CtrlC.came:
            CtrlC.came = True
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
import numpy as np
import kernel

data, out = np.arange(3, dtype=np.uint8), np.zeros(3, np.uint8)
try:
    kernel.copied(data, out)
except KeyboardInterrupt:
    print("interrupted")
print(kernel.copied(data, out), *out)
"""


@pytest.mark.slow
def test_kernels_are_loaded_by_the_next_call_after_ctrl_c_while_numba_is_imported(
    tmp_path: Path,
) -> None:
    (tmp_path / "kernel.py").write_text(KERNEL)
    (tmp_path / "helper.py").write_text(HELPER)
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        cwd=tmp_path,
        env=os.environ
        | {"PYTHONPATH": str(PACKAGE.parent), "NUMBA_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["interrupted", "3", "0", "1", "2"], done.stderr


def test_ctrl_c_ends_the_wait_for_kernels_at_once_and_their_loading_goes_on() -> None:
    may_go_on, is_loaded = threading.Event(), threading.Event()

    def load() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        may_go_on.wait(60)
        is_loaded.set()

    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a command may have set its own
    try:
        with pytest.raises(KeyboardInterrupt):
            jit._uninterrupted(load)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not is_loaded.is_set()
    may_go_on.set()
    assert is_loaded.wait(60)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_of_a_kernel_that_cannot_be_loaded_reaches_the_caller() -> None:
    def load(names: object) -> None:
        raise RuntimeError(names)

    with pytest.raises(RuntimeError, match="copied"):
        jit._uninterrupted(load, ["copied"])
