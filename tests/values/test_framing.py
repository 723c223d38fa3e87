"""Schema ids are read from Confluent's framing, and other framings are named."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_kbatch.values import framing
from spark_kbatch.values.flat import strings_of


def ids_of(array: pa.Array) -> list[int]:
    ids: list[int] = framing.schema_ids_of(strings_of(array)).tolist()
    return ids


def test_ids_of_framed_rows_are_read_wherever_the_rows_lie_in_a_buffer() -> None:
    rows = [b"\0\0\0\0\x07abc", None, b"\0\x7f\xff\xff\xff", b"", b"\x01\0\0\0\x07a", b"\0\0\0\x07"]
    array = pa.array([b"skipped", *rows, b"\0\0\0\0\x09"], pa.large_binary()).slice(1, len(rows))

    assert ids_of(array) == [7, -1, 2**31 - 1, -1, -1, -1]


def test_rows_that_are_all_short_or_null_have_no_ids() -> None:
    assert ids_of(pa.array([b"", None, b"\0"])) == [-1, -1, -1]
    assert ids_of(pa.array([], pa.binary())) == []
    assert ids_of(pa.nulls(2)) == [-1, -1]


def test_a_negative_id_is_none() -> None:
    value = b"\0\xff\xff\xff\xffabc"

    assert ids_of(pa.array([value])) == [-1]
    assert framing.described(value) == "its schema id is negative"


def test_a_header_is_read_as_its_own_id() -> None:
    assert ids_of(pa.array([framing.header(1234567)])) == [1234567]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"", "empty"),
        (b"\0\0\0\x01", "only 4 of the 5 bytes"),
        (b'{"id": 1}', "JSON"),
        (b"[1]", "JSON"),
        (b"\xc3\x01" + bytes(8), "single-object"),
        (b"Obj\x01rest", "Avro file"),
        (b"\x03\x00" + bytes(16), "AWS Glue"),
        (b"\x03\x05" + bytes(16), "AWS Glue"),
        (b"\x01" + bytes(16), "GUID"),
        (b"text", "0x74"),
    ],
)
def test_an_error_names_what_bytes_look_like(value: bytes, words: str) -> None:
    assert words in framing.described(value)
