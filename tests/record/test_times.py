"""Offsets and times of the records of a batch, read without compiled code."""

from __future__ import annotations

import subprocess
import sys

import pytest

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.record.header import walk
from spark_kbatch.record.scalar import times
from tests.support import reference
from tests.support.reference import CODECS, Record

RECORDS = [Record(7 + 2 * n, 1_000 - n, None if n % 3 else b"key", b"value") for n in range(400)]

WITHOUT_NUMBA = """
import sys
from spark_kbatch.record.header import walk
from spark_kbatch.record.scalar import times

data = sys.stdin.buffer.read()
print(sum(len(list(times(data, *batch))) for batch in walk(data)), "numba" in sys.modules)
"""


def encoded(magic: int, codec: int) -> bytes:
    if magic == 2:
        return reference.encode_batch(RECORDS, codec=codec)
    return reference.encode_messages(RECORDS, magic=magic, codec=codec)


@pytest.mark.parametrize(
    "codec", [pytest.param(number, id=name) for name, number in CODECS.items()]
)
@pytest.mark.parametrize("magic", [0, 1, 2], ids=["v0", "v1", "v2"])
def test_times_are_those_of_the_records(magic: int, codec: int) -> None:
    if magic < 2 and codec == CODECS["zstd"]:
        pytest.skip("zstd came with V2")
    data = encoded(magic, codec)

    found = [record for batch in walk(data) for record in times(data, *batch)]

    assert found == [(record.offset, record.timestamp if magic else -1) for record in RECORDS]


@pytest.mark.parametrize("magic", [1, 2], ids=["v1", "v2"])
def test_many_compressed_records_are_read_without_numba(magic: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_NUMBA],
        input=encoded(magic, CODECS["gzip"]),
        capture_output=True,
        check=True,
    )

    assert done.stdout.split() == [b"400", b"False"]


def test_an_impossible_size_in_a_wrapper_is_an_error_with_the_wrappers_position() -> None:
    before = reference.encode_message(Record(0, 5, None, b"v"), magic=1)
    inner = reference.encode_messages(RECORDS[:2], magic=1)
    inner = inner[:8] + bytes(4) + inner[12:]
    wrapper = Record(9, 5, None, reference.compress(CODECS["gzip"], inner))
    data = before + reference.encode_message(wrapper, magic=1, attributes=CODECS["gzip"])
    _, batch = walk(data)

    with pytest.raises(CorruptRecordError, match="message size, 8 bytes into") as raised:
        list(times(data, *batch))

    assert raised.value.position == len(before)
