"""Values of JSON as columns in plain Python: what a read makes of each, and what chooses their type."""

from __future__ import annotations

import itertools
import json
import pickle
import re
import tempfile
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_kbatch
from spark_kbatch import Cluster, ConfigError, RecordDeserializationError, SchemaNotFoundError
from spark_kbatch.columns.reading import NewSchemas, pinned
from spark_kbatch.columns.writing import written_columns
from spark_kbatch.errors import InvalidValueError, SchemaError
from spark_kbatch.options.registry import URL, parse_registry_options
from spark_kbatch.options.values import parse_value_keywords
from spark_kbatch.options.write import parse_write_options
from spark_kbatch.registry import known
from spark_kbatch.values.json_schema import type_of_json_schema
from spark_kbatch.values.types import parse_ddl
from tests.conftest import REPOSITORY
from tests.support.avro import framed
from tests.support.fake_registry import FakeRegistry

DDL = "id bigint, price decimal(9,2), tags array<string>, at timestamp, customer struct<id: int, city: string>"
GOOD = (
    b'{"id": 1, "price": 1.50, "tags": ["a", null], "at": "2024-01-31T10:00:00+02:00", "customer": {"city": "Rome"},'
    b' "more": [1]}'
)
COLUMN = {
    "id": 1,
    "price": Decimal("1.50"),
    "tags": ["a", None],
    "at": datetime(2024, 1, 31, 8, tzinfo=UTC),
    "customer": {"id": None, "city": "Rome"},
}
ADDRESS = {"type": "object", "properties": {"city": {"type": "string"}}}
ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "day": {"type": ["null", "string"], "format": "date"},
        "to": {"$ref": "address.json"},
        "counts": {"type": "object", "additionalProperties": {"type": "number"}},
    },
}
ORDER_TYPE = pa.struct(
    [
        ("id", pa.int64()),
        ("day", pa.date32()),
        ("to", pa.struct([("city", pa.string())])),
        ("counts", pa.map_(pa.string(), pa.float64())),
    ]
)
ADDRESS_ID, ORDER_ID, AVRO_ID = 3, 7, 9
_topics = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with spark_kbatch.open("memory://json", create=True) as cluster:
        yield cluster


def sent(cluster: Cluster, *values: bytes | None, headers: dict[str, bytes] | None = None) -> str:
    """Send values to a new topic; return its name."""
    topic = f"orders-{next(_topics)}"
    cluster.create_topic(topic)
    with cluster.producer() as producer:
        for number, value in enumerate(values):
            producer.send(topic, value, key=f'{{"n": {number}}}', headers=headers)
    return topic


def read(cluster: Cluster, topic: str, registry: Any = None, **options: Any) -> pa.Table:
    return cluster.read(topic, registry=registry, **{"value_format": "json", **options}).read_all()


def test_values_are_columns_by_a_ddl(cluster: Cluster) -> None:
    topic = sent(cluster, GOOD, None, b"null", b" {}\n")

    table = read(cluster, topic, value_schema=DDL, key_format="json", key_schema="n tinyint")
    assert table["value"].to_pylist() == [COLUMN, None, None, dict.fromkeys(COLUMN)]
    assert table["key"].to_pylist() == [{"n": number} for number in range(4)]
    single = sent(cluster, b"[[1], [], null]")
    assert read(cluster, single, value_schema="array<array<int>>")["value"].to_pylist() == [
        [[1], [], None]
    ]


# What a value is, and what is said of it: the reason, the field, the position.
BAD = [
    pytest.param(b"", "the value is empty", "", 0, id="empty"),
    pytest.param(GOOD + b"x", "left over after the document", "", len(GOOD), id="bytes-left-over"),
    pytest.param(GOOD + GOOD, "left over after the document", "", len(GOOD), id="two-documents"),
    pytest.param(GOOD[:-1], "ends in the middle", "", len(GOOD) - 1, id="cut"),
    pytest.param(b'{"id": 1.5}', "a digit would be lost", ".id", 7, id="fraction"),
    pytest.param(b'{"price": 1.555}', "a digit would be lost", ".price", 10, id="lost-digit"),
    pytest.param(b'{"tags": ["a", "\xff"]}', "not UTF-8", ".tags[]", 16, id="not-UTF-8"),
    pytest.param(b'{"more": "\xff"}', "not UTF-8", "", 10, id="not-UTF-8-where-it-is-passed-over"),
    pytest.param(b'{"id": 1, "id": 2}', "this name twice", ".id", 10, id="a-name-twice"),
    pytest.param(b'{"at": "2024-01-31T10:00:00"}', "the time has no zone", ".at", 7, id="no-zone"),
    pytest.param(b'{"customer": {"id": "7"}}', "a string in place of", ".customer.id", 20, id="text"),
    pytest.param(framed(7, b"{}"), "looks like Confluent's framing", "", 0, id="framed"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "reason", "path", "position"), BAD)
def test_a_value_that_is_not_of_its_type_is_an_error_or_null_beside_its_reason(
    cluster: Cluster, value: bytes, reason: str, path: str, position: int
) -> None:
    topic = sent(cluster, GOOD, None, value, GOOD)

    table = read(cluster, topic, value_schema=DDL, mode="PERMISSIVE", include_bytes=True)
    *_, error, _ = table["value_error"].to_pylist()
    assert table["value"].to_pylist() == [COLUMN, None, None, COLUMN]
    assert table["value_error"].is_null().to_pylist() == [True, True, False, True]
    assert table["value_bytes"].to_pylist() == [GOOD, None, value, GOOD]

    with pytest.raises(RecordDeserializationError) as told:
        read(cluster, topic, value_schema=DDL)
    found = pickle.loads(pickle.dumps(told.value))  # as it leaves a worker of Spark
    assert (found.topic, found.partition, found.offset, found.column) == (topic, 0, 2, "value")
    assert (found.path, found.position, found.schema_id) == (path, position, -1)
    assert reason in found.reason
    assert f"the value of {topic}-0 at offset 2" in error
    assert f"byte {position}" in error
    assert str(found).startswith(error)


def test_a_value_whose_schema_a_header_names_is_read_all_the_same(cluster: Cluster) -> None:
    """JSON says itself what it is; and what is wrong with one is not that."""
    topic = sent(cluster, GOOD, b"{", headers={"__value_schema_id": b"\x01" + bytes(16)})

    table = read(cluster, topic, value_schema=DDL, mode="PERMISSIVE")
    assert table["value"].to_pylist() == [COLUMN, None]
    assert "ends in the middle" in table["value_error"][1].as_py()
    options = {"value_schema": DDL, "value_framing": "confluent", "mode": "PERMISSIVE"}
    for error in read(cluster, topic, **options)["value_error"].to_pylist():
        assert "in the header __value_schema_id" in error


@pytest.mark.parametrize(
    ("leniency", "value", "found"),
    [
        ("zone", b'{"at": "2024-01-31T10:00:00"}', {"at": datetime(2024, 1, 31, 10, tzinfo=UTC)}),
        ("digits", b'{"price": 1.999, "id": 5.5}', {"price": Decimal("1.99"), "id": 5}),
        (["digits"], b'{"id": 5.5}', {"id": 5}),
        (
            "zone,digits",
            b'{"at": "2024-01-31T10:00:00.0000009"}',
            {"at": datetime(2024, 1, 31, 10, tzinfo=UTC)},
        ),
    ],
)
def test_what_is_no_error_is_named(
    cluster: Cluster, leniency: Any, value: bytes, found: dict[str, Any]
) -> None:
    topic = sent(cluster, value)

    with pytest.raises(RecordDeserializationError):
        read(cluster, topic, value_schema=DDL)
    table = read(cluster, topic, value_schema=DDL, json_lenient=leniency)
    assert table["value"].to_pylist() == [{**dict.fromkeys(COLUMN), **found}]


# What chooses the type.


@pytest.fixture(params=["folder", "http"])
def registry(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """A registry with a schema of orders that refers to one of addresses, and a schema of Avro."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # of the machine's cache
    reference = {"name": "address.json", "subject": "address", "version": 1}
    order = {"schemaType": "JSON", "references": [reference]}
    schemas: list[tuple[int, str, Any, dict[str, Any]]] = [
        (ADDRESS_ID, "address", ADDRESS, {"schemaType": "JSON"}),
        (ORDER_ID, "orders-value", ORDER, order),
        (AVRO_ID, "others", "string", {}),
    ]
    known.registry_of.cache_clear()
    if request.param == "http":
        with FakeRegistry() as fake:
            for number, subject, schema, more in schemas:
                fake.add_at(number, subject, json.dumps(schema), **more)
            yield fake.url
    else:
        (tmp_path / "registry/ids").mkdir(parents=True)
        for number, _, schema, more in schemas:
            answer = json.dumps({"schema": json.dumps(schema), **more})
            (tmp_path / f"registry/ids/{number}.json").write_text(answer)
        subjects = {subject: {"1": number} for number, subject, *_ in schemas}
        (tmp_path / "registry/subjects.json").write_text(json.dumps(subjects))
        yield tmp_path / "registry"
    known.registry_of.cache_clear()


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    """A registry that has nothing yet."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    known.registry_of.cache_clear()
    with FakeRegistry() as fake:
        yield fake
    known.registry_of.cache_clear()


def test_a_registrys_schema_is_the_type_with_all_that_it_refers_to(
    cluster: Cluster, registry: Any
) -> None:
    body = b'{"id": 1, "day": "2024-01-31", "to": {"city": "Rome"}, "counts": {"a": 1}}'
    topic = sent(cluster, framed(ORDER_ID, body), None, framed(4711, b"{}"), b"{}", b"\0\0")

    options = {"value_subject": "orders-value", "mode": "PERMISSIVE", "include_schema_id": True}
    table = read(cluster, topic, registry, **options)
    assert table.schema.field("value").type == ORDER_TYPE
    first, *others = table["value"].to_pylist()
    assert (first["to"], first["counts"]) == ({"city": "Rome"}, [("a", 1.0)])
    assert others == [None, dict.fromkeys(first), None, None]
    assert table["value_schema_id"].to_pylist() == [ORDER_ID, None, 4711, None, None]
    *_, unframed, short = table["value_error"].to_pylist()
    assert "the value is not in Confluent's framing: it looks like JSON" in unframed
    assert "only 2 of the 5 bytes" in short


@pytest.mark.parametrize("schema", ["latest", "version:1", f"id:{ORDER_ID}"])
def test_values_without_framing_are_read_as_a_registrys_schema_too(
    cluster: Cluster, registry: Any, schema: str
) -> None:
    topic = sent(cluster, b'{"id": 1}')
    options = {"value_subject": "orders-value", "value_framing": "none", "value_schema": schema}
    table = read(cluster, topic, registry, value_fields="id,to.city", **options)
    assert table["value"].to_pylist() == [{"id": 1, "to": None}]


def test_a_schema_of_another_type_is_refused(registry: Any) -> None:
    for given, said in (
        ({"value_schema": f"id:{AVRO_ID}"}, "id 9: it is a schema of type AVRO, and not of JSON"),
        (
            {"value_schema": f"id:{ORDER_ID}", "value_format": "avro"},
            "id 7: it is a schema of type JSON, and not of Avro",
        ),
    ):
        with pytest.raises(ConfigError, match=said):
            pinned(parse_value_keywords(registry, {"value_format": "json", **given}, []))


def test_a_registry_is_asked_once_for_a_load_and_not_by_its_tasks(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    known.registry_of.cache_clear()
    with FakeRegistry() as fake:
        fake.add_at(ORDER_ID, "orders-value", json.dumps(ADDRESS), schemaType="JSON")
        topic = sent(cluster, framed(ORDER_ID, b'{"city": "Rome"}'), framed(4711, b"{}"))
        rows = cluster.read(
            topic, registry=fake.url, value_format="json", value_subject="orders-value"
        )
        assert len(fake.asked) == 1
        assert rows.read_all()["value"].to_pylist() == [{"city": "Rome"}, {"city": None}]
        found = read(cluster, topic, fake.url, value_schema="city string")
        assert found["value"].to_pylist() == [{"city": "Rome"}, {"city": None}]
        assert len(fake.asked) == 1
        columns = pinned(parse_value_keywords(fake.url, {"value_format": "json"}, ["orders"]))
        asked, minutes = len(fake.asked), itertools.count()
        new = NewSchemas(columns, monotonic_ms=lambda: 60_000 * next(minutes))
        assert (new.found(), new.found()) == ((), ())
        assert len(fake.asked) == asked  # of a stream
    known.registry_of.cache_clear()


def test_a_schema_may_be_a_file_with_others_beside_it_or_text(
    cluster: Cluster, tmp_path: Path
) -> None:
    for name, schema in (("address.json", ADDRESS), ("order.json", ORDER)):
        (tmp_path / name).write_text(json.dumps(schema))
    topic = sent(cluster, b'{"to": {"city": "Rome"}, "id": 1}')

    files = f"file:{tmp_path}/address.json,file:{tmp_path}/order.json"
    table = read(cluster, topic, value_schema=files)
    assert table.schema.field("value").type == ORDER_TYPE
    assert table["value"][0].as_py()["to"] == {"city": "Rome"}
    own = read(cluster, topic, value_schema={"type": "object", "properties": {"to": ADDRESS}})
    assert own["value"].to_pylist() == [{"to": {"city": "Rome"}}]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"value_schema": "id bignt"}, r"^\.id: .* types are boolean, .*\(value_schema\)$"),
        ({"value_schema": "id:-1"}, r"\(value_schema\)$"),
        ({"value_schema": '{"type": "object", "properties": {"a": {"not": {}}}}'}, r"^#/properties/a/not: .not. is not supported; .* \(the schema in value_schema\)$"),
        ({"value_schema": "file:/no/such.json"}, "'file:/no/such.json', which cannot be read: No such file"),
        ({"value_schema": DDL, "value_fields": "idd"}, r"the struct has no field 'idd'; did you mean 'id'\?"),
        ({"value_schema": DDL, "value_fields": "customer.id.x"}, r"^\.customer\.id: int has no field 'x'"),
    ],
)  # fmt: skip
def test_what_is_no_type_is_said_with_its_place(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("value_schema", r"value\.schema")):
        pinned(parse_value_keywords(None, {"value_format": "json", **given}, []))


def test_a_field_whose_schema_is_refused_may_be_left_out(cluster: Cluster) -> None:
    topic = sent(cluster, b'{"id": 1, "any": [2]}')
    schema = {"properties": {"any": {"not": {"type": "null"}}, "id": {"type": "integer"}}}

    with pytest.raises(SchemaError, match=r"#/properties/any/not: .* name the fields that are"):
        read(cluster, topic, value_schema=schema)
    table = read(cluster, topic, value_schema=schema, value_fields="id")
    assert table["value"].to_pylist() == [{"id": 1}]


def test_only_what_is_wanted_is_decoded_and_a_plan_carries_it(cluster: Cluster) -> None:
    topic = sent(cluster, b'{"Id": 1, "customer": {"id": 2, "city": 7.5e0}, "price": "x"}')
    given = {"value_schema": DDL.replace("id bigint", "Id bigint"), "value_fields": "customer,ID"}
    assert read(cluster, topic, **given)["value"].to_pylist() == [
        {"customer": {"id": 2, "city": "7.5e0"}, "Id": 1}
    ]

    options = parse_value_keywords(None, {"value_format": "json", **given}, [])
    columns = pinned(options, {"value": {"ID": {}, "customer": {"City": {}}}})
    carried = pickle.loads(pickle.dumps(columns))
    assert carried == columns
    kind = pa.struct([("ID", pa.int64()), ("customer", pa.struct([("City", pa.string())]))])
    assert carried.columns[0].type() == carried.schema.field("value").type == kind
    found = carried.typed().by_name["value"].decode(pa.array([b'{"Id": 5, "customer": {}}']))
    assert found.values.to_pylist() == [{"ID": 5, "customer": {"City": None}}]


def test_a_condition_sees_the_fields_of_json(cluster: Cluster) -> None:
    rows = [b'{"id": %d, "customer": {"id": %d}}' % (n, n % 3) for n in range(9)]
    topic = sent(cluster, *rows, b"no JSON", None)
    given = {"value_schema": DDL, "mode": "PERMISSIVE", "columns": ["offset", "value_error"]}

    where = "value.customer.id = 2 AND value.id < 8 OR value_error IS NOT NULL"
    found = read(cluster, topic, where=where, **given)
    assert found["offset"].to_pylist() == [2, 5, 9]
    assert found["value_error"].is_valid().to_pylist() == [False, False, True]


def test_the_page_names_the_type_of_each_json_schema() -> None:
    page = (REPOSITORY / "docs/values.md").read_text(encoding="utf-8")
    table = page.partition("| JSON Schema | Spark |\n")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `([^`]+)`.* \| `([^`]+)` \|$", table, re.MULTILINE)
    assert len(rows) == len(table.splitlines()) - 1  # all but the line below the headings

    for schema, shown in rows:
        assert type_of_json_schema(schema) == parse_ddl(shown)


# Arrays without a topic.


def test_an_array_of_any_origin_is_decoded(registry: Any) -> None:
    array = pa.chunked_array([[GOOD, None], [b"[]", GOOD]], pa.large_binary())
    given: dict[str, Any] = {"value_format": "json", "value_schema": DDL}

    found = spark_kbatch.decode_values(array, mode="PERMISSIVE", **given)
    assert found.values.to_pylist() == [COLUMN, None, None, COLUMN]
    assert found.schema_ids.tolist() == [-1] * 4
    assert [(one.row, "an array in place of an object" in str(one)) for one in found.errors] == [
        (2, True)
    ]
    with pytest.raises(InvalidValueError, match="row 2: an array in place of an object") as told:
        spark_kbatch.decode_values(array, **given)
    assert told.value.row == 2
    framing = {"registry": registry, "value_subject": "orders-value"}
    values = pa.array([framed(ORDER_ID, b'{"id": 3}').decode("latin-1")])
    decoded = spark_kbatch.decode_values(values, value_format="json", value_fields="id", **framing)
    assert decoded.values.to_pylist() == [{"id": 3}]
    assert decoded.schema_ids.tolist() == [ORDER_ID]
    with pytest.raises(SchemaError, match=r"^\.id: a type is missing at character 4"):
        spark_kbatch.decode_values(array, value_format="json", value_schema="id bignt")


# Writes.

ROWS = pa.array(
    [{"id": 1, "to": {"city": "Rome"}}, None, {"id": None, "to": None}],
    pa.struct([("id", pa.int32()), ("to", pa.struct([("city", pa.string())]))]),
)
TEXTS = [b'{"id":1,"to":{"city":"Rome"}}', None, b"{}"]


def encoded(array: pa.Array, registry: Any = None, **given: Any) -> list[bytes | None]:
    made = spark_kbatch.encode_values(array, registry=registry, value_format="json", **given)
    values: list[bytes | None] = made.to_pylist()
    return values


def test_columns_become_json_and_null_a_tombstone(cluster: Cluster) -> None:
    values = encoded(ROWS)

    assert values == TEXTS
    table = read(cluster, sent(cluster, *values), value_schema="id int, to struct<city: string>")
    assert table["value"].to_pylist() == [*ROWS[:2].to_pylist(), {"id": None, "to": None}]
    assert (
        encoded(ROWS, value_schema={"properties": {**ORDER["properties"], "to": ADDRESS}}) == TEXTS
    )
    assert encoded(pa.table({"id": [1]})) == [b'{"id":1}']
    assert encoded(pa.chunked_array([ROWS, ROWS.slice(2)])) == [*TEXTS, b"{}"]
    bad = pa.array([date(2024, 1, 31), None], pa.date32())
    bad = pa.concat_arrays([bad, pa.array([10**7], pa.int32()).view(pa.date32())])
    with pytest.raises(InvalidValueError, match=r"^row 2: day: the year is none of 1 to 9999$"):
        encoded(pa.table({"day": bad}))
    with pytest.raises(ConfigError, match=r"^\.span: JSON has no form for duration"):
        encoded(pa.table({"span": pa.array([1], pa.duration("s"))}))


@pytest.mark.parametrize("schema", ["latest", "version:1", f"id:{ORDER_ID}"])
def test_columns_fit_a_registrys_schema_whose_id_is_in_front(registry: Any, schema: str) -> None:
    given = {"value_subject": "orders-value", "value_schema": schema}

    assert encoded(ROWS, registry, **given) == [one and framed(ORDER_ID, one) for one in TEXTS]
    assert encoded(ROWS, registry, **given, value_framing="none") == TEXTS
    with pytest.raises(SchemaError, match=r"^\.more: the schema has no property for this column"):
        encoded(pa.table({"more": [1]}), registry, **given)


def test_a_schema_is_registered_only_if_that_is_asked_for(fake: FakeRegistry) -> None:
    given = {"value_subject": "clicks-value", "value_schema": ADDRESS}
    cities = pa.table({"city": ["Rome"]})
    with pytest.raises(SchemaNotFoundError, match="subject 'clicks-value' with a schema"):
        encoded(cities, fake.url, **given)
    with pytest.raises(SchemaError, match=r"^\.id: the schema has no property"):
        encoded(ROWS, fake.url, auto_register=True, **given)
    with pytest.raises(SchemaNotFoundError, match=r"no such subject|not found"):
        known.registry_of(parse_registry_options({URL: fake.url})).versions("clicks-value")

    (value,) = encoded(cities, fake.url, auto_register=True, **given)
    assert value == framed(1, b'{"city":"Rome"}')
    assert encoded(cities, fake.url, **given) == [value]


def test_a_schema_is_made_of_the_columns(fake: FakeRegistry) -> None:
    given = {"value_subject": "clicks-value"}
    values = encoded(ROWS, fake.url, auto_register=True, **given)

    assert values == [one and framed(1, one) for one in TEXTS]
    assert encoded(ROWS, fake.url, **given) == values  # of the latest
    found = spark_kbatch.decode_values(
        pa.array(values), registry=fake.url, value_format="json", **given
    )
    assert found.values.type == ROWS.type
    times = pa.table({"at": pa.array([1], pa.timestamp("us"))})
    with pytest.raises(ConfigError, match=r"of column 'value\.at': JSON Schema has no form for"):
        encoded(times, fake.url, auto_register=True, **given)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"value.schema": "id bigint"}, "'id bigint'; accepted: latest, .* a schema as JSON; columns .* without a DDL"),
        ({"value.framing": "confluent"}, r"names its schema by an id: give the registry .* 'schema\.registry\.url'"),
        ({"value.schema": "id:7"}, "names a schema of a registry: give that"),
        ({"schema.registry.url": "http://x", "key.format": "json"}, "every key to another one; .* key.framing=none"),
        ({"schema.registry.url": "http://x", "value.format": "string"}, "goes with a format, avro or json"),
    ],
)  # fmt: skip
def test_options_of_a_write_that_do_not_fit_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_write_options({"path": "/d", "topic": "t", "value.format": "json", **options})


def test_keys_are_plain_beside_values_of_a_registry(registry: Any) -> None:
    given = {"value.format": "json", "key.format": "json", "key.framing": "none"}
    options = {"path": "/d", "topic": "orders", "schema.registry.url": str(registry), **given}
    columns = written_columns(
        parse_write_options(options).values, {"key": pa.string(), "value": ROWS.type}
    )

    batch = pa.record_batch({"key": ["a", None, 'b"'], "value": ROWS})
    (found,) = pickle.loads(pickle.dumps(columns)).encoded([batch])
    assert found["key"].to_pylist() == [b'"a"', None, b'"b\\""']
    assert found["value"].to_pylist() == [one and framed(ORDER_ID, one) for one in TEXTS]
    with pytest.raises(ConfigError, match=r"^column 'value\.n' cannot be written with schema id 7"):
        written_columns(
            parse_write_options(options).values, {"value": pa.struct([("n", pa.int8())])}
        )
