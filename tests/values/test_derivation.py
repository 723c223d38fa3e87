"""Schemas that are made of columns: they hold what the columns hold, and come back as the same columns."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_kbatch.errors import SchemaError
from spark_kbatch.values.avro_decoder import AvroDecoder
from spark_kbatch.values.avro_encoder import encode
from spark_kbatch.values.avro_schema import parse
from spark_kbatch.values.layout import derived, record_name

A_TIME = datetime(2024, 10, 25, 8, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        pytest.param(pa.bool_(), True, id="boolean"),
        pytest.param(pa.int32(), -5, id="int"),
        pytest.param(pa.int64(), 2**62, id="long"),
        pytest.param(pa.float32(), 1.5, id="float"),
        pytest.param(pa.float64(), 1.1, id="double"),
        pytest.param(pa.string(), "é", id="string"),
        pytest.param(pa.binary(), b"\xff", id="bytes"),
        pytest.param(pa.decimal128(9, 2), Decimal("-12.34"), id="decimal"),
        pytest.param(pa.date32(), date(2024, 10, 25), id="date"),
        pytest.param(pa.timestamp("us", "UTC"), A_TIME, id="timestamp"),
        pytest.param(pa.timestamp("us"), A_TIME.replace(tzinfo=None), id="local-timestamp"),
        pytest.param(pa.list_(pa.field("element", pa.int64())), [1, None], id="array"),
        pytest.param(pa.map_(pa.string(), pa.int64()), [("a", 1), ("b", None)], id="map"),
        pytest.param(
            pa.list_(pa.field("element", pa.struct([("a", pa.struct([("b", pa.int32())]))]))),
            [{"a": {"b": 1}}, {"a": None}],
            id="nested-records",
        ),
    ],
)
def test_columns_come_back_as_they_were(kind: pa.DataType, value: Any) -> None:
    rows = pa.array(
        [{"x": value, "y": 1}, {"x": None, "y": 2}, None],
        pa.struct([("x", kind), ("y", pa.int64())]),
    )
    schema = parse(derived(rows.type, "shop.Order"))

    written = encode(rows, schema)
    assert written.errors == ()
    decoder = AvroDecoder(schema)
    decoder.add_writer(0, schema)
    found = decoder.decode(written.values, schema_id=0)

    assert found.errors == ()
    assert found.values.type.field("x").type == kind
    assert found.values.to_pylist() == rows.to_pylist()


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        (pa.int8(), "int"),
        (pa.uint16(), "int"),
        (pa.uint32(), "long"),
        (pa.large_string(), "string"),
        (pa.dictionary(pa.int32(), pa.string()), "string"),
        (pa.binary(4), "bytes"),
        (pa.time32("ms"), {"type": "int", "logicalType": "time-millis"}),
        (pa.time64("us"), {"type": "long", "logicalType": "time-micros"}),
        (pa.timestamp("ms"), {"type": "long", "logicalType": "local-timestamp-millis"}),
    ],
)
def test_other_types_become_the_nearest_of_avro(kind: pa.DataType, schema: Any) -> None:
    assert json.loads(derived(kind, "R")) == schema


def test_records_have_names_of_their_own() -> None:
    inner = pa.struct([("id", pa.int64())])
    schema = json.loads(derived(pa.struct([("a", inner), ("b", inner)]), "shop.Order"))

    names = [one["type"][1]["name"] for one in schema["fields"]]
    assert (schema["name"], names) == ("shop.Order", ["shop.Order.a", "shop.Order.b"])
    assert record_name("orders-value") == "orders_value"
    assert record_name("7-ö") == "_7__"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        pytest.param(pa.struct([("a", pa.struct([("b c", pa.int64())]))]), r"^a\.b c: names of Avro", id="name"),
        pytest.param(pa.struct([("a", pa.int64()), ("a", pa.int64())]), "^a: there are two", id="twice"),
        pytest.param(pa.struct([("a", pa.uint64())]), "^a: a column of type uint64", id="uint64"),
        pytest.param(pa.struct([("a", pa.null())]), "^a: a column of type null", id="null"),
        pytest.param(pa.struct([("a", pa.map_(pa.int64(), pa.int64()))]), "^a: a map with keys of", id="keys"),
    ],
)  # fmt: skip
def test_what_has_no_form_is_refused_by_its_path(kind: pa.DataType, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        derived(kind, "Order")
