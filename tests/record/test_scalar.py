"""Batches of a few records, encoded and decoded without compiled code."""

from __future__ import annotations

import pytest

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.record import scalar
from spark_kbatch.record.header import unpack
from tests.support import builders


def test_a_compressed_batch_is_refused() -> None:
    batch = builders.batch(compression="lz4")

    with pytest.raises(CorruptRecordError, match="codec") as error:
        scalar.decode(batch, 0, unpack(batch, 0))

    assert (error.value.expected, error.value.found) == (0, 3)
