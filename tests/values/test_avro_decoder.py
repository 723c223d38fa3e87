"""Rows decode into one Arrow array, in order; a bad row is an error of its own, and harms no neighbour."""

from __future__ import annotations

import pickle
import tracemalloc
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_kbatch.values import avro_decoder, flat, slots
from spark_kbatch.values.avro_decoder import AvroDecoder, decode
from spark_kbatch.values.decoded import DecodedValues
from tests.support import avro
from tests.support.avro import a_record, framed, parsed, varint

_NESTED = a_record(("x", "double"), ("y", ["null", "string"]), name="Nested")
_SCHEMA = a_record(
    ("number", "long"),
    ("text", "string"),
    ("inner", ["null", _NESTED]),
    ("items", ["null", {"type": "array", "items": "Nested"}]),
    ("counts", {"type": "map", "values": {"type": "array", "items": "int"}}),
    name="Order",
)
_PARSED = parsed(_SCHEMA)
_TOO_MUCH = "take more memory than 64 times the value"


def _list_of(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def a_row(number: int, *, items: int = 2) -> dict[str, Any]:
    nested = {"x": number / 2, "y": (1, f"y{number}")}
    return {
        "number": number,
        "text": f"text {number}",
        "inner": (1, nested) if number % 2 else (0, None),
        "items": (1, [nested] * items) if number % 3 else (0, None),
        "counts": {"a": [number] * items, "b": []},
    }


def in_column(row: dict[str, Any]) -> dict[str, Any]:
    nested = {"x": row["number"] / 2, "y": f"y{row['number']}"}
    has_items, items = row["items"]
    return {
        "number": row["number"],
        "text": row["text"],
        "inner": nested if row["inner"][0] else None,
        "items": [nested] * len(items) if has_items else None,
        "counts": list(row["counts"].items()),
    }


def written(row: dict[str, Any], schema_id: int = 1) -> bytes:
    return framed(schema_id, avro.encode(_PARSED, row))


def decoded(rows: list[bytes | None]) -> DecodedValues:
    found = decode(pa.array(rows, pa.binary()), _PARSED, {1: _PARSED})
    found.values.validate(full=True)
    return found


def bare(schema: Any, *data: bytes) -> DecodedValues:
    return decode(pa.array(data, pa.binary()), parsed(schema), framing="none")


def error_of(schema: Any, data: bytes) -> str:
    """The error of a row, whose neighbours have none."""
    found = bare(schema, data)
    assert found.values.to_pylist() == [None]
    (error,) = found.errors
    return str(error)


# A bad row: what is wrong with it, and its neighbours.


def good() -> bytes:
    return written(a_row(1))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (good()[:-1], "counts: the value ends in the middle of the field"),
        (good()[:7], "text: the value ends"),
        (good() + b"\0", "bytes are left over after the value"),
        (framed(1, varint(5) + varint(1) + b"\xff" + b"\0\0\0"), "text: a string is not UTF-8 (byte 6, schema id 1)"),
        (framed(1, varint(5) + varint(-1)), "text: a length is negative"),
        (framed(1, varint(5) + varint(0) + varint(2)), "inner: a union has no branch of this number"),
        (framed(1, varint(5) + varint(0) + varint(-1)), "inner: a union has no branch of this number"),
        (framed(1, b"\xff" * 11), "number: a number has more than 64 bits"),
        (framed(2, b"\0"), "the schema is not known (schema id 2)"),
        (framed(0, bytes(3) + b"\7" + b"data"), "Apicurio's framing"),
        (b"", "not in Confluent's framing: it is empty"),
        (b"\0\0\0\0", "only 4 of the 5 bytes"),
        (b'{"number": 5}', "it looks like JSON"),
        (b"\xc3\x01" + bytes(8), "single-object"),
        (b"\x03\x00" + bytes(16), "AWS Glue"),
    ],
)  # fmt: skip
def test_a_bad_row_is_null_with_an_error_and_its_neighbours_are_right(data: bytes, words: str) -> None:  # fmt: skip
    found = decoded([written(a_row(7)), data, None, written(a_row(8))])

    assert found.values.to_pylist() == [in_column(a_row(7)), None, None, in_column(a_row(8))]
    (error,) = found.errors
    assert error.row == 1
    assert words in str(error)
    assert found.error_texts().to_pylist() == [None, str(error), None, None]


def test_a_null_row_is_null_without_an_error_or_an_id() -> None:
    found = decoded([None, written(a_row(1)), None])

    assert found.values.to_pylist() == [None, in_column(a_row(1)), None]
    assert found.errors == ()
    assert found.schema_ids.tolist() == [-1, 1, -1]


def test_a_null_value_has_an_id_and_a_null_row_has_none() -> None:
    union = parsed(["null", "string"])
    found = decode(pa.array([framed(5, varint(0)), None, framed(5, varint(1) + varint(0))]), union, {5: union})  # fmt: skip

    assert found.values.to_pylist() == [None, None, ""]
    assert found.schema_ids.tolist() == [5, -1, 5]
    assert found.errors == ()


def test_every_truncation_is_an_error_of_its_row() -> None:
    whole = good()
    found = decoded([part for size in range(len(whole)) for part in (whole[:size], whole)])

    assert [error.row for error in found.errors] == list(range(0, 2 * len(whole), 2))
    assert found.values.to_pylist()[1::2] == [in_column(a_row(1))] * len(whole)


def test_a_bad_row_takes_back_the_items_that_it_has_stored() -> None:
    found = decoded([written(a_row(1)), written(a_row(4, items=50))[:-1], written(a_row(2))])

    assert found.values.to_pylist() == [in_column(a_row(1)), None, in_column(a_row(2))]
    items = found.values.field("items")
    assert len(items.values) == 4
    assert items.null_count == 1
    assert found.values.field("text").to_pylist() == ["text 1", None, "text 2"]


def test_a_bad_row_with_items_that_are_passed_over_takes_back_nothing_else() -> None:
    reader = parsed(a_record(("number", "long"), name="Order"))
    rows = [written(a_row(1)), written(a_row(2, items=9)) + b"\0", written(a_row(3))]

    found = decode(pa.array(rows), reader, {1: _PARSED})

    assert found.values.to_pylist() == [{"number": 1}, None, {"number": 3}]


def test_a_reason_can_be_given_for_a_schema_that_is_not_avro() -> None:
    decoder = AvroDecoder(_PARSED)
    decoder.add_writer(1, _PARSED)
    decoder.add_unreadable(2, "its schema is PROTOBUF, not AVRO")
    decoder.add_unreadable(1, "never heard of")

    found = decoder.decode(pa.array([good(), framed(2, b"a"), framed(3, b"a")]))

    assert [str(error) for error in found.errors] == [
        "its schema is PROTOBUF, not AVRO (schema id 2)",
        "the schema is not known (schema id 3)",
    ]
    assert decoder.missing(pa.array([framed(3, b""), framed(1, b""), framed(2, b""), b"", None, framed(3, b"")])) == [3]  # fmt: skip


# Many schemas.


def test_rows_of_many_schemas_in_turn_keep_their_order() -> None:
    old = parsed(a_record(("number", "int"), name="Order"))
    other = parsed(
        a_record(("text", "string"), ("number", "long"), ("more", "bytes"), name="Order")
    )
    reader = parsed(a_record(("number", "long"), {"name": "text", "type": "string", "default": "?"}, name="Order"))  # fmt: skip
    rows = []
    for number in range(30):
        schema_id = (7, 3, 2**31 - 1)[number % 3]
        value = {"number": number, "text": f"t{number}", "more": b"zzz"}
        rows.append(framed(schema_id, avro.encode({7: old, 3: other, 2**31 - 1: reader}[schema_id], value)))  # fmt: skip

    found = decode(pa.array(rows), reader, {7: old, 3: other, 2**31 - 1: reader})

    assert found.errors == ()
    assert found.values.field("number").to_pylist() == list(range(30))
    assert found.values.field("text").to_pylist() == [f"t{n}" if n % 3 else "?" for n in range(30)]
    assert found.schema_ids.tolist() == [7, 3, 2**31 - 1] * 10


def test_of_schemas_that_no_one_has_only_some_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_decoder, "_UNREADABLE_MAX", 3)
    decoder = AvroDecoder(parsed("int"))
    decoder.add_writer(1, parsed("int"))
    array = pa.array([framed(schema_id, b"\x02") for schema_id in (9, 1, 8, 7, 6, 5)])
    for schema_id in decoder.missing(array):
        decoder.add_unreadable(schema_id, f"nobody has {schema_id}")

    found = decoder.decode(array)
    assert found.values.to_pylist() == [None, 1, None, None, None, None]
    assert [one.reason for one in found.errors] == [
        "nobody has 9", "nobody has 8", "nobody has 7", *["the schema is not known"] * 2,
    ]  # fmt: skip
    assert decoder.missing(array) == [5, 6]
    decoder.forget_unreadable()
    assert decoder.missing(array) == [5, 6, 7, 8, 9]


def test_a_writer_can_be_added_between_calls() -> None:
    decoder = AvroDecoder(parsed("long"))
    decoder.add_writer(1, parsed("int"))
    assert decoder.decode(pa.array([framed(1, b"\x02")])).values.to_pylist() == [1]

    decoder.add_writer(2, parsed(["null", "long"]))
    found = decoder.decode(pa.array([framed(1, b"\x02"), framed(2, b"\x02\x04"), framed(2, b"\0")]))

    assert found.values.to_pylist() == [1, 2, None]
    assert [error.row for error in found.errors] == [2]


def test_a_pickled_decoder_decodes_and_takes_more_writers() -> None:
    reader = parsed(a_record(("number", "long"), name="Order"))
    decoder = AvroDecoder(reader)
    decoder.add_writer(1, _PARSED)
    copy: AvroDecoder = pickle.loads(pickle.dumps(decoder))
    schemas = [parsed(_SCHEMA) for _ in range(20)]  # of which one may lie where another one did
    for schema_id, schema in enumerate(schemas, 2):
        copy.add_writer(schema_id, schema)

    found = copy.decode(pa.array([written(a_row(schema_id), schema_id) for schema_id in range(1, 22)]))  # fmt: skip

    assert found.errors == ()
    assert found.values.field("number").to_pylist() == list(range(1, 22))


# Every form of Arrow array.


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()], ids=str)
def test_a_slice_decodes_as_a_copy_of_it(kind: pa.DataType) -> None:
    rows = [None if n % 4 == 3 else written(a_row(n)) for n in range(20)]
    array = pa.array(rows, kind)

    found = decode(array.slice(5, 11), _PARSED, {1: _PARSED})

    assert found.errors == ()
    assert found.values.to_pylist() == [None if n % 4 == 3 else in_column(a_row(n)) for n in range(5, 16)]  # fmt: skip


def test_chunks_decode_one_by_one_and_errors_count_rows_of_all() -> None:
    chunks = [[good(), b"bad"], [], [None, b"bad", good()]]
    array = pa.chunked_array([pa.array(one, pa.binary()) for one in chunks])

    found = decode(array, _PARSED, {1: _PARSED})

    assert isinstance(found.values, pa.ChunkedArray)
    assert [value is not None for value in found.values.to_pylist()] == [True, False, False, False, True]  # fmt: skip
    assert [error.row for error in found.errors] == [1, 3]
    assert found.schema_ids.tolist() == [1, -1, -1, -1, 1]


@pytest.mark.parametrize("array", [pa.array([], pa.binary()), pa.chunked_array([], pa.binary()), pa.nulls(0)])  # fmt: skip
def test_no_rows_are_an_empty_array_of_the_type(array: Any) -> None:
    found = decode(array, _PARSED, {1: _PARSED})

    assert len(found.values) == 0
    assert found.values.type == AvroDecoder(_PARSED).type
    assert found.schema_ids.tolist() == []


def test_rows_that_are_all_null_decode_whatever_their_type() -> None:
    assert decode(pa.nulls(3), _PARSED, {1: _PARSED}).values.to_pylist() == [None] * 3


def test_an_array_that_is_not_of_bytes_is_refused() -> None:
    with pytest.raises(TypeError, match="binary or string array, not int64"):
        decode(pa.array([1]), _PARSED, {1: _PARSED})
    with pytest.raises(ValueError, match="framing"):
        decode(pa.array([b""]), _PARSED, {1: _PARSED}, framing="glue")


def test_pieces_of_an_array_decode_as_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [None if n % 5 == 4 else written(a_row(n)) for n in range(12)]
    array = pa.array(rows, pa.large_binary()).slice(1)
    monkeypatch.setattr(flat, "PIECE_BYTES_MAX", 150)

    assert sum(1 for _ in flat.pieces(array)) > 3
    found = decode(array, _PARSED, {1: _PARSED})
    assert isinstance(found.values, pa.Array)
    assert found.values.to_pylist() == decoded(rows[1:]).values.to_pylist()


def test_a_row_that_is_larger_than_positions_reach_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(flat, "PIECE_BYTES_MAX", 20)

    with pytest.raises(OverflowError, match="a single value has more than 2 GiB"):
        decode(pa.array([b"", bytes(40)], pa.large_binary()), _PARSED, {1: _PARSED})


def test_rows_whose_column_would_be_too_large_decode_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    rows = [b"bad" if n == 4 else written(a_row(n)) for n in range(9)]
    expected = decoded(rows)
    monkeypatch.setattr(flat, "INT32_MAX", 20)

    found = decode(pa.chunked_array([rows]), _PARSED, {1: _PARSED})

    assert found.values.num_chunks > 2
    assert found.values.to_pylist() == expected.values.to_pylist()
    assert found.errors == expected.errors
    monkeypatch.setattr(flat, "INT32_MAX", 3)
    with pytest.raises(OverflowError, match="a single value"):
        decode(pa.array(rows), _PARSED, {1: _PARSED})


_WIDE = a_record(*((f"f{n}", ["null", "long"], None) for n in range(400)), name="Wide")
_SYMBOLS = {"type": "enum", "name": "E", "symbols": ["x" * 100_000, "y"]}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        pytest.param(_WIDE, None, id="tombstones of a wide record"),
        pytest.param({"type": "array", "items": ["null", _WIDE]}, b"\x08\0\0\0\0\0", id="items of no size"),
        pytest.param(_SYMBOLS, b"\0", id="a long symbol"),
    ],
)  # fmt: skip
def test_rows_of_few_bytes_that_would_take_much_memory_are_refused_together_and_not_alone(
    schema: Any, value: bytes | None
) -> None:
    writer = parsed(schema)
    decoder = AvroDecoder(writer)
    decoder.add_writer(1, writer)
    rows = pa.array([value] * 3000, pa.binary())

    whole = decoder.decode(rows, schema_id=1)
    with pytest.raises(OverflowError, match="pass fewer rows"):
        decoder.decode(rows, schema_id=1, memory_max=1 << 20)
    parts = [decoder.decode(rows.slice(at, 10), schema_id=1, memory_max=2 << 20) for at in (0, 10)]
    assert [part.values for part in parts] == [
        whole.values.slice(0, 10),
        whole.values.slice(10, 10),
    ]
    one = decoder.decode(rows.slice(0, 1), schema_id=1, memory_max=1)
    assert one.values == whole.values.slice(0, 1)


def test_a_string_of_over_16_mib_is_whole() -> None:
    data = b"x" * (2**24 + 3)

    found = bare("string", varint(5) + b"short", varint(len(data)) + data)

    assert [len(value) for value in found.values.to_pylist()] == [5, 2**24 + 3]


def test_rows_beyond_2_gib_of_a_large_array_are_read_where_they_are() -> None:
    data = np.zeros(2**31 + 100, np.uint8)  # of which the system gives only what is written to
    row = np.frombuffer(good(), np.uint8)
    start = len(data) - len(row)
    data[start:] = row
    bounds = np.array([0, start, start, len(data)], np.int64)
    array = pa.Array.from_buffers(pa.large_binary(), 3, [None, pa.py_buffer(bounds), pa.py_buffer(data)])  # fmt: skip

    found = decode(array.slice(1), _PARSED, {1: _PARSED})

    assert found.values.to_pylist() == [None, in_column(a_row(1))]
    assert [str(error) for error in found.errors] == ["the value is not in Confluent's framing: it is empty"]  # fmt: skip


def test_the_decoded_values_own_their_memory() -> None:
    row = np.frombuffer(bytearray(good()), np.uint8)
    array = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(np.array([0, len(row)], np.int32)), pa.py_buffer(row)])  # fmt: skip
    found = decode(array, _PARSED, {1: _PARSED})
    row[:] = 0xFF

    assert found.values.to_pylist() == [in_column(a_row(1))]


# Values.


def test_a_nullable_record_that_is_null_is_null_with_all_in_it() -> None:
    found = decoded([written(a_row(2))])

    assert found.values.to_pylist()[0]["inner"] is None
    assert found.values.field("inner").field("x").to_pylist() == [None]


def test_lists_grow_as_large_as_they_are() -> None:
    found = decoded([written(a_row(n, items=items)) for n, items in ((1, 0), (2, 3000), (4, 1), (5, 70))])  # fmt: skip

    assert found.values.to_pylist() == [in_column(a_row(n, items=items)) for n, items in ((1, 0), (2, 3000), (4, 1), (5, 70))]  # fmt: skip


@pytest.mark.parametrize(
    "data",
    [b"\x00\x7f", b"\xc2\x80", b"\xdf\xbf", b"\xe0\xa0\x80", b"\xed\x9f\xbf", b"\xee\x80\x80", b"\xf0\x90\x80\x80", b"\xf4\x8f\xbf\xbf"],
)  # fmt: skip
def test_the_first_and_last_text_of_each_length_is_utf8(data: bytes) -> None:
    for text in (data, b"ab" + data + b"c"):
        assert bare("string", varint(len(text)) + text).values.to_pylist() == [text.decode()]


@pytest.mark.parametrize(
    "data",
    [
        b"\x80", b"\xbf", b"\xc0\x80", b"\xc1\xbf", b"\xc2", b"\xc2\x7f", b"\xc2\xc0", b"\xe0\x9f\xbf", b"\xe1\x80", b"\xe1\x80\x7f",
        b"\xed\xa0\x80", b"\xf0\x8f\xbf\xbf", b"\xf1\x80\x80", b"\xf1\x80\x80\xc0", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xff",
    ],
)  # fmt: skip
def test_what_is_not_utf8_is_an_error(data: bytes) -> None:
    with pytest.raises(UnicodeDecodeError):
        data.decode()
    for text in (data, b"ab" + data, data + b"\x80"):
        if text == b"\xc2\x80" or text == b"\xe1\x80\x80" or text == b"\xf1\x80\x80\x80":
            continue
        assert "not UTF-8" in error_of("string", varint(len(text)) + text)
    assert "not UTF-8" in error_of({"type": "map", "values": "null"}, varint(1) + varint(len(data)) + data + b"\0")  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ("int", varint(2**31)),
        ("int", varint(-(2**31) - 1)),
        ({"type": "long", "logicalType": "timestamp-millis"}, varint(2**63 // 1000 + 1)),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, varint(-(2**63))),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2}, varint(1) + b"\x64"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2}, varint(1) + b"\x9c"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 38}, varint(17) + b"\0" + b"\xff" * 16),
        ({"type": "bytes", "logicalType": "decimal", "precision": 38}, varint(17) + b"\xff" + bytes(16)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 38}, varint(17) + b"\x01" + bytes(16)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 38}, varint(16) + (10**38).to_bytes(16, "big")),
    ],
    ids=str,
)  # fmt: skip
def test_a_value_outside_its_type_is_an_error_of_the_row(schema: Any, data: bytes) -> None:
    assert "outside the range of its type" in error_of(schema, data)


@pytest.mark.parametrize("unscaled", [0, 1, -1, 127, 128, -128, -129, 2**63, -(2**63) - 1, 2**64 - 1, 2**64, 10**38 - 1, 1 - 10**38])  # fmt: skip
@pytest.mark.parametrize("padding", [0, 1, 5, 17])
def test_a_decimal_is_read_with_any_number_of_bytes(unscaled: int, padding: int) -> None:
    size = unscaled.bit_length() // 8 + 1 + padding
    data = unscaled.to_bytes(size, "big", signed=True)
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0}
    fixed = {**schema, "type": "fixed", "name": "F", "size": size, "precision": 1}

    assert bare(schema, varint(size) + data).values.to_pylist() == [Decimal(unscaled)]
    if abs(unscaled) < 10:
        assert bare(fixed, data).values.to_pylist() == [Decimal(unscaled)]


def test_a_decimal_without_bytes_is_0() -> None:
    assert bare({"type": "bytes", "logicalType": "decimal", "precision": 3}, b"\0").values.to_pylist() == [0]  # fmt: skip


def test_a_boolean_is_0_or_1() -> None:
    assert bare("boolean", b"\0", b"\1").values.to_pylist() == [False, True]
    assert "neither 0 nor 1" in error_of("boolean", b"\2")
    assert "ends in the middle" in error_of("boolean", b"")


def test_floats_keep_their_bits() -> None:
    values = [
        0.0,
        -0.0,
        float("inf"),
        float("-inf"),
        float("nan"),
        1.5,
        1e-45,
        -3.4028234663852886e38,
    ]
    for schema, dtype in (("float", np.float32), ("double", np.float64)):
        expected = np.array(values, dtype)
        found = bare(schema, *(one.tobytes() for one in expected))

        assert np.array(found.values).view(f"u{expected.itemsize}").tolist() == expected.view(f"u{expected.itemsize}").tolist()  # fmt: skip


@pytest.mark.parametrize(
    "number", [0, -1, 63, -64, 64, 8191, 8192, 2**31, 2**62, 2**63 - 1, -(2**63)]
)
def test_a_long_is_read_at_every_length_of_its_varint(number: int) -> None:
    assert bare("long", varint(number)).values.to_pylist() == [number]


def test_a_varint_of_ten_bytes_has_64_bits_at_most() -> None:
    assert "more than 64 bits" in error_of("long", b"\xff" * 9 + b"\x02")
    assert "more than 64 bits" in error_of("long", b"\x80" * 10 + b"\x00")
    assert "ends in the middle" in error_of("long", b"\x80" * 3)
    assert bare("long", b"\x80\x80\x00").values.to_pylist() == [0]


def test_a_symbol_that_no_writer_can_mean_is_an_error() -> None:
    enum = {"type": "enum", "name": "E", "symbols": ["A", "B"]}

    assert bare(enum, varint(1)).values.to_pylist() == ["B"]
    assert "no symbol of this number" in error_of(enum, varint(2))
    assert "no symbol of this number" in error_of(enum, varint(-1))


# What hostile bytes can cost.


def test_items_of_no_bytes_are_bounded_by_the_size_of_the_row() -> None:
    nulls = {"type": "array", "items": "null"}
    assert _TOO_MUCH in error_of(nulls, varint(2**31) + varint(0))
    assert _TOO_MUCH in error_of(nulls, varint(-(2**62)) + varint(0) + varint(0))
    assert _TOO_MUCH in error_of(nulls, varint(1000) * 100 + varint(0))
    assert bare(nulls, varint(60) + varint(60) + varint(0)).values.to_pylist() == [[None] * 120]
    empty = _list_of(a_record())
    assert _TOO_MUCH in error_of(empty, varint(5000) + varint(0))


def test_a_count_that_the_bytes_cannot_hold_is_refused_before_room_is_made() -> None:
    for schema in ({"type": "array", "items": "int"}, {"type": "map", "values": "null"}):
        assert "passes its end" in error_of(schema, varint(2**40) + b"\0" * 20)
        assert "passes its end" in error_of(schema, varint(-(2**40)) + varint(0) + b"\0" * 20)
    doubles = {"type": "array", "items": {"type": "array", "items": "double"}}
    assert "[]: " in error_of(doubles, varint(1) + varint(3) + bytes(16))
    assert "not one" in error_of(doubles, varint(-(2**63)))


def test_a_row_pays_for_the_defaults_of_its_items_and_not_for_its_own() -> None:
    """Items that take no bytes once made 642 MB of 10 KB, with a default of 1,000 characters each."""
    text = {"name": "text", "type": "string", "default": "x" * 300}
    texts = {"name": "texts", "type": _list_of("string"), "default": ["y" * 100, "y" * 100]}
    kinds = ("null", "int")
    writer = a_record(
        *((kind, _list_of(a_record(("n", kind), name=f"of_{kind}"))) for kind in kinds)
    )
    reader = a_record(
        *(
            (kind, _list_of(a_record(("n", kind), text, texts, name=f"of_{kind}")))
            for kind in kinds
        ),
        {"name": "own", "type": "string", "default": "z" * 10_000},
        {"name": "owns", "type": _list_of("string"), "default": ["z" * 10_000] * 2},
    )

    def read(nulls: int, numbers: int) -> DecodedValues:
        row = b"".join(
            varint(one) + b"\0" * size + b"\0" * (one > 0)
            for one, size in ((nulls, 0), (numbers, numbers))
        )
        return decode(pa.array([framed(1, row)]), parsed(reader), {1: parsed(writer)})

    (value,) = read(1, 1).values.to_pylist()
    assert value["int"] == [{"n": 0, "text": "x" * 300, "texts": ["y" * 100] * 2}]
    assert value["null"] == [{"n": None, "text": "x" * 300, "texts": ["y" * 100] * 2}]
    assert (value["own"], value["owns"]) == ("z" * 10_000, ["z" * 10_000] * 2)
    for nulls, numbers in ((1000, 0), (0, 10_000), (1, 10_000)):
        (error,) = read(nulls, numbers).errors
        assert _TOO_MUCH in str(error)


@pytest.mark.parametrize(
    "items",
    ["int", "string", {"type": "array", "items": "long"}, {"type": "bytes", "logicalType": "decimal", "precision": 9}],
    ids=str,
)  # fmt: skip
def test_items_of_a_byte_each_take_at_most_64_times_their_bytes(items: Any) -> None:
    count = 100_000
    schema, data = {"type": "array", "items": items}, varint(count) + bytes(count + 1)
    bare(schema, data)
    tracemalloc.start()
    try:
        found = bare(schema, data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(found.values[0]) == count
    assert peak < 64 * len(data)


def test_items_of_many_columns_take_at_most_64_times_their_bytes_and_some() -> None:
    """Once 300 nulls of one byte each made 2.4 MB, of a record of 1,000 numbers."""
    wide = a_record(*((f"n{number}", "long") for number in range(1000)))
    schema = _list_of(["null", wide])

    assert bare(schema, varint(2) + bytes(2) + varint(0)).values.to_pylist() == [[None, None]]
    assert _TOO_MUCH in error_of(schema, varint(300) + bytes(300) + varint(0))
    full = varint(100) + (varint(1) + bytes(1000)) * 100 + varint(0)
    assert len(bare(schema, full).values[0]) == 100


def test_items_may_have_defaults_that_take_more_than_their_bytes() -> None:
    text = {"name": "text", "type": "string", "default": "x" * 67}
    texts = {"name": "texts", "type": _list_of("string"), "default": ["old"]}
    writer, reader = (_list_of(a_record(("n", "int"), *more)) for more in ((), (text, texts)))
    data = varint(100) + bytes(101)

    found = decode(pa.array([data]), parsed(reader), {1: parsed(writer)}, framing="none")

    assert found.errors == ()
    assert found.values.to_pylist() == [[{"n": 0, "text": "x" * 67, "texts": ["old"]}] * 100]


def test_records_of_no_bytes_that_hold_ever_more_of_their_kind_end_in_an_error() -> None:
    records = [a_record(name="A0")]
    for depth in range(150):
        records.append(a_record(("a", f"A{depth}"), ("b", f"A{depth}"), name=f"A{depth + 1}"))
    writer = a_record(("defined", ["null", *records]), ("x", "A150"), ("y", "int"), name="W")

    found = decode(
        pa.array([varint(0) + varint(7)]),
        parsed(a_record(("y", "int"), name="W")),
        {1: parsed(writer)},
        framing="none",
    )

    (error,) = found.errors
    assert "nested too deep" in str(error)


def test_many_lists_make_room_together() -> None:
    """Each makes room of its own, and all that is there is copied for it."""
    fields = [(f"list{number}", _list_of("int")) for number in range(20)]
    row = (varint(16) + bytes(16) + varint(0)) * 20
    grown = []

    with pytest.MonkeyPatch.context() as patch:
        make_room = slots.SlotArrays._make_room
        patch.setattr(
            slots.SlotArrays,
            "_make_room",
            lambda self, capacity: (grown.append(1), make_room(self, capacity)),
        )
        found = bare(a_record(*fields), *[row] * 500)

    assert found.errors == ()
    assert found.values.to_pylist()[499] == {name: [0] * 16 for name, _ in fields}
    assert len(grown) < 40


def test_a_block_may_say_its_size_which_is_not_relied_upon() -> None:
    array = {"type": "array", "items": "int"}
    block = varint(-2) + varint(999) + varint(5) + varint(6)

    assert bare(array, block + varint(1) + varint(7) + varint(0)).values.to_pylist() == [[5, 6, 7]]


def test_lengths_beyond_the_row_do_not_reach_its_neighbour() -> None:
    found = bare("bytes", varint(2) + b"a", varint(2) + b"bc", varint(2**62), varint(2**31) + b"x")

    assert found.values.to_pylist() == [None, b"bc", None, None]
    assert len(found.errors) == 3


def test_an_error_of_a_row_survives_pickling() -> None:
    (error,) = decoded([b"bad"]).errors

    assert pickle.loads(pickle.dumps(error)) == error
