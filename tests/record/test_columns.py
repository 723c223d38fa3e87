"""Columns of rows to be sent, cast to plain types."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_kbatch.record.columns import sendable

TEXT, BYTES = pa.array(["a", "b", None, "b"]), pa.array([b"a", b"b", None, b"b"])


@pytest.mark.parametrize(
    "encode", [pa.Array.dictionary_encode, pc.run_end_encode], ids=["dictionary", "runs"]
)
def test_repeated_values_are_decoded_to_types_that_hold_over_2_gib(
    encode: Callable[[pa.Array], pa.Array],
) -> None:
    rows = pa.table({"topic": encode(TEXT), "key": encode(TEXT), "value": encode(BYTES)})
    assert sendable(rows, has_topic=False) == pa.table(
        {
            "topic": TEXT.cast(pa.large_string()),
            "key": TEXT.cast(pa.large_string()),
            "value": BYTES.cast(pa.large_binary()),
        }
    )


def test_repeated_values_in_headers_are_decoded_to_types_that_hold_over_2_gib() -> None:
    fields = [
        ("key", pa.dictionary(pa.int8(), pa.string())),
        ("value", pa.dictionary(pa.int8(), pa.binary())),
    ]
    given = [[{"key": "h", "value": b"1"}, {"key": "g", "value": None}], None, []]
    headers = pa.array(given, pa.list_(pa.struct(fields)))
    plain = pa.struct([("key", pa.large_string()), ("value", pa.large_binary())])
    rows = sendable(pa.table({"value": ["a", "b", "c"], "headers": headers}), has_topic=True)
    assert rows.column("headers").type == pa.large_list(plain)
    assert rows.column("headers").to_pylist() == given
