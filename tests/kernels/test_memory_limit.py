"""Under a limit of address space, compiled code that does not fit is an error that names the limit."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from spark_kbatch.errors import ADDRESS_SPACE_MIB, CompiledCodeError, KafkaStorageError
from tests.conftest import REPOSITORY

# The limit leaves room for what is loaded so far, and for less than compiled code takes.
ENCODE = """
import resource
from pathlib import Path

import pyarrow

from spark_kbatch.kernels import jit
from tests.support import builders

jit._Spent.plain_us_max = 0
rows = builders.rows()
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + (40 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    builders.encode(rows)
except Exception as error:
    print(limit >> 20, type(error).__name__, error)
    raise
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds processes to this limit")
def test_compiled_code_that_does_not_fit_is_told_with_the_limit() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", ENCODE], capture_output=True, text=True, cwd=REPOSITORY
    )
    limit, kind, error = ran.stdout.split(maxsplit=2)
    assert kind == "CompiledCodeError", ran.stderr
    assert error.startswith("compiled code cannot be loaded (")
    assert f"may have {limit} MiB of address space" in error
    assert "spark.executor.pyspark.memory" in error


@pytest.mark.parametrize("limit_mib", [512, None])
def test_the_error_survives_pickling_and_is_none_of_a_disk(limit_mib: int | None) -> None:
    error = CompiledCodeError("no room", limit_mib)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert not isinstance(again, (OSError, KafkaStorageError))
    assert ("ulimit -v" in str(error)) is (limit_mib is not None)
    assert (f"needs about {ADDRESS_SPACE_MIB}" in str(error)) is (limit_mib is not None)
