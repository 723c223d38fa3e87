from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.record.util import calc_crc32c
from hypothesis import given
from hypothesis import strategies as st

from spark_kbatch.record import checksums
from tests.support import reference

RELEASES_THE_GIL = 1 << 16  # bytes: the library keeps it for less than 32 KiB


@given(data=st.binary(max_size=300))
def test_crc32c_is_that_of_the_reference_and_of_another_client(data: bytes) -> None:
    assert checksums.crc32c(data) == reference.crc32c(data) == calc_crc32c(data)
    assert checksums.crc32c(data[9:], checksums.crc32c(data[:9])) == checksums.crc32c(data)


def test_the_check_strings_have_the_published_checksums() -> None:
    assert checksums.crc32c(b"123456789") == 0xE3069283
    assert checksums.crc32(b"123456789") == 0xCBF43926


def test_crc32c_of_many_bytes_is_that_of_another_client() -> None:
    data = np.random.default_rng(7).bytes(RELEASES_THE_GIL + 5)

    assert checksums.crc32c(data) == calc_crc32c(data)


@pytest.mark.parametrize("checksum", [checksums.crc32c, checksums.crc32], ids=["crc32c", "crc32"])
@pytest.mark.parametrize("size", [140, RELEASES_THE_GIL])
@pytest.mark.parametrize(
    "buffer",
    [
        bytearray,
        memoryview,
        lambda data: memoryview(bytearray(b"--" + data))[2:],
        lambda data: np.frombuffer(data, np.uint8).data,
        lambda data: memoryview(pa.py_buffer(data)),
    ],
    ids=["bytearray", "memoryview", "slice", "numpy", "arrow"],
)
def test_any_buffer_has_the_checksum_of_its_bytes(
    buffer: Callable[[bytes], Any], size: int, checksum: Callable[..., int]
) -> None:
    data = np.random.default_rng(size).bytes(size)

    assert checksum(buffer(data), 3) == checksum(data, 3)
