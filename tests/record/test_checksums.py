from __future__ import annotations

import subprocess
import sys
import zlib

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kbatch.record import checksums

TABLE_ALONE = """
import sys
from spark_kbatch.record import checksums
print(checksums.crc32c_of_few(sys.stdin.buffer.read()), "awscrt" in sys.modules)
"""


@given(data=st.binary(max_size=300))
def test_they_are_those_of_other_libraries(data: bytes) -> None:
    assert checksums.crc32c(data) == checksums.crc32c_of_few(data) == crc32c.crc32c(data)
    assert checksums.crc32c(data[9:], checksums.crc32c(data[:9])) == crc32c.crc32c(data)
    assert checksums.crc32(data) == zlib.crc32(data)


@pytest.mark.parametrize(
    "data", [b"", b"123456789", bytes(range(140))], ids=["none", "nine", "140"]
)
def test_those_of_few_bytes_need_no_library(data: bytes) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TABLE_ALONE], input=data, capture_output=True, check=True
    )
    assert done.stdout.decode().split() == [str(crc32c.crc32c(data)), "False"]


def test_there_are_no_others() -> None:
    with pytest.raises(AttributeError, match="'adler32'"):
        _ = checksums.adler32  # type: ignore[attr-defined]
