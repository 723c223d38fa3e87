"""Topics of Avro in tests: rows become values of a schema, and come back as Python objects."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_kbatch
from spark_kbatch.errors import ConfigError
from spark_kbatch.kernels import avro, avro_encoding, records, routing
from spark_kbatch.registry.folder import FolderRegistry
from spark_kbatch.registry.schemas import Schema
from spark_kbatch.testing.formats import formats_of
from spark_kbatch.testing.rows import from_one_of
from tests.conftest import REPOSITORY
from tests.support.avro import a_record

pytest_plugins = ["pytester"]

PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
LINE = a_record(("price", PRICE), {"name": "count", "type": "int", "default": 1}, name="Line")
ORDER = a_record(
    ("id", "long"),
    {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}], "default": None},
    {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}], "default": None},
    {"name": "tags", "type": {"type": "map", "values": "int"}, "default": {}},
    {"name": "lines", "type": {"type": "array", "items": LINE}, "default": []},
    name="Order",
)  # fmt: skip
A_TIME = datetime.datetime(2024, 10, 25, 8, tzinfo=datetime.UTC)
NOTHING_ELSE = {"at": None, "day": None, "tags": {}, "lines": []}
AVRO = {"value_format": "avro", "value_schema": ORDER}


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    (tmp_path / "registry" / "ids").mkdir(parents=True)
    return tmp_path / "registry"


def round_trip(registry: Path, rows: Any = None, **given: Any) -> list[Any]:
    """Return keys and values as they come back."""
    files = {name: given.pop(name, None) for name in ("json_lines", "csv", "key")}
    formats = formats_of("orders", None, AVRO | given, lambda: str(registry))
    table = from_one_of(rows, *files.values(), formats)
    found = {}
    for name in table.column_names:
        found[name] = table[name]
        if formats.has(name):
            subject = f"orders-{name}"
            found[name] = spark_kbatch.decode_values(
                table[name], registry=registry, value_subject=subject
            ).values
    return formats.decoded(pa.table(found))


def test_rows_become_values_of_a_schema(registry: Path) -> None:
    full = {
        "id": 2, "at": A_TIME, "day": "2024-10-25", "tags": {"x": 1},
        "lines": [{"price": 1.5, "count": 2}, {"price": "2", "count": 3}],
    }  # fmt: skip
    found = round_trip(registry, [("a", {"id": 1}), {"key": "b", "value": full}, (None, None)])

    assert [row["key"] for row in found] == [b"a", b"b", None]
    assert [row["value"] for row in found] == [
        {"id": 1, **NOTHING_ELSE},
        {
            "id": 2, "at": A_TIME, "day": datetime.date(2024, 10, 25), "tags": {"x": 1},
            "lines": [{"price": Decimal("1.50"), "count": 2}, {"price": Decimal("2.00"), "count": 3}],
        },
        None,
    ]  # fmt: skip
    assert FolderRegistry(registry).versions("orders-value") == [1]


def test_rows_are_of_the_latest_version_where_no_schema_is_named(registry: Path) -> None:
    FolderRegistry(registry).register("orders-value", Schema(json.dumps(ORDER)))
    formats = formats_of("orders", registry, {"value_format": "avro"}, str)
    table = from_one_of([("a", {"id": 1})], None, None, None, formats)

    found = spark_kbatch.decode_values(
        table["value"], registry=registry, value_subject="orders-value"
    )
    assert formats.decoded(pa.table({"value": found.values})) == [
        {"value": {"id": 1, **NOTHING_ELSE}}
    ]
    assert FolderRegistry(registry).versions("orders-value") == [1]


def test_keys_have_a_schema_of_their_own(registry: Path) -> None:
    key = a_record(("shop", "string"), name="Key")
    found = round_trip(registry, [({"shop": "a"}, {"id": 1})], key_format="avro", key_schema=key)

    assert found == [{"key": {"shop": "a"}, "value": {"id": 1, **NOTHING_ELSE}}]
    assert FolderRegistry(registry).versions("orders-key") == [1]


def test_files_and_tables_become_values_too(registry: Path, tmp_path: Path) -> None:
    lines, cells = tmp_path / "lines", tmp_path / "cells"
    lines.write_text('{"id": 1, "lines": [{"price": 1.5}], "at": "2024-10-25 08:00:00Z"}\n')
    cells.write_text("id,day\n1,2024-10-25\n2,\n")
    table = pa.table({"value": [{"id": 1}, {"id": 2}]})

    line = {"price": Decimal("1.50"), "count": 1}
    of_lines = {"key": b"1", "value": {"id": 1, **NOTHING_ELSE, "at": A_TIME, "lines": [line]}}
    assert round_trip(registry, json_lines=lines, key="id") == [of_lines]
    day = {"id": 1, **NOTHING_ELSE, "day": datetime.date(2024, 10, 25)}
    assert [row["value"] for row in round_trip(registry, csv=cells)] == [
        day,
        {"id": 2, **NOTHING_ELSE},
    ]
    assert [row["value"]["id"] for row in round_trip(registry, table)] == [1, 2]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        pytest.param({"id": 1, "tag": {}}, "value of row 1 has a field 'tag', .* did you mean 'tags'", id="field"),
        pytest.param({"day": None}, "value of row 1 is not of its schema: id: there is no column", id="missing"),
        pytest.param({"id": None}, "value of row 1 is not of its schema: id: the value is null", id="null"),
        pytest.param({"id": "x"}, "value of row 1, id is 'x'; accepted: a whole number", id="text"),
        pytest.param({"id": 1.5}, "value of row 1, id is 1.5; accepted: a whole number", id="float"),
        pytest.param({"id": 1, "day": "soon"}, "value of row 1, day is 'soon'; accepted: a date32", id="date"),
        pytest.param({"id": 1, "tags": []}, "value of row 1, tags is .*; accepted: a dict", id="map"),
        pytest.param({"id": 1, "lines": {}}, "value of row 1, lines is .*; accepted: a list", id="array"),
        pytest.param("text", "value of row 1 is 'text'; accepted: a dict, as the schema has a record", id="record"),
    ],
)  # fmt: skip
def test_a_row_that_is_not_of_its_schema_is_refused_by_its_number(
    registry: Path, value: Any, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        round_trip(registry, [{"value": {"id": 1}}, {"value": value}])


USE = """
import json
import pytest
from spark_kbatch.errors import ConfigError, RecordDeserializationError

ORDER = {
    "type": "record", "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string", "default": ""}],
}

def test_rows_are_seeded_and_read(kbatch_topic, kbatch_records, kbatch_cluster, kbatch_registry):
    topic = kbatch_topic("orders", [("a", {"id": 1}), ("b", None)], value_format="avro", value_schema=ORDER)
    kbatch_topic.send(topic, [("c", {"id": 2, "note": "n"})], value_format="avro")

    rows = kbatch_records(topic, 3, value_format="avro", include_schema_id=True)
    assert [(row["key"], row["value"], row["value_schema_id"]) for row in rows] == [
        ("a", {"id": 1, "note": ""}, 2), ("b", None, None), ("c", {"id": 2, "note": "n"}, 2)
    ]
    read = kbatch_cluster.read(topic, value_format="avro", registry=kbatch_registry).read_all()
    assert read["value"].to_pylist() == [row["value"] for row in rows]

def test_another_test_has_another_registry(kbatch_topic, kbatch_records, kbatch_registry, tmp_path):
    assert kbatch_registry.startswith(str(tmp_path))
    topic = kbatch_topic(rows=[("a", {"id": 7})], value_format="avro", value_subject="known")
    (row,) = kbatch_records(topic, value_format="avro", value_subject="known")
    assert row["value"] == {"id": 7}
    with pytest.raises(ConfigError, match="value and value_format are given"):
        kbatch_records(topic, value=json.loads, value_format="avro", value_subject="known")
    kbatch_topic.send(topic, ["text"])
    with pytest.raises(RecordDeserializationError, match="not in Confluent's framing"):
        kbatch_records(topic, 2, value_format="avro", value_subject="known")
"""


def test_rows_of_json_come_back_as_dicts() -> None:
    given = {"value_format": "json", "value_schema": "id bigint, tags map<string, int>"}
    rows = [{"id": 1, "tags": {"a": 1}}, None]
    formats = formats_of("orders", None, given, lambda: "no registry")
    table = from_one_of([{"value": one} for one in rows], None, None, None, formats)

    found = spark_kbatch.decode_values(table["value"], **given).values
    assert formats.decoded(pa.table({"value": found})) == [{"value": one} for one in rows]


def test_fixtures_seed_and_read_values_of_a_registry(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Now: afterwards pytester forgets the modules that the inner run has loaded.
    for kernels in (records, routing, avro, avro_encoding):
        kernels.load()
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    schemas = pytester.mkdir("schemas")
    (schemas / "ids").mkdir()
    (schemas / "ids" / "1.json").write_text(
        json.dumps({"schema": a_record(("id", "long"), name="Known")})
    )
    (schemas / "subjects.json").write_text('{"known": {"1": 1}}')
    before = sorted(path.name for path in schemas.rglob("*"))
    pytester.makeini("[pytest]\nkbatch_registry = schemas")
    pytester.makepyfile(USE)

    plugin = ("-p", "pytest_kbatch", "-p", "no:cacheprovider", "-q")
    pytester.runpytest(*plugin).assert_outcomes(passed=2)

    assert sorted(path.name for path in schemas.rglob("*")) == before
    result = pytester.runpytest(*plugin, "--kbatch-registry=none")
    result.stdout.fnmatch_lines(["*--kbatch-registry is *none, which has no folder ids*"])
