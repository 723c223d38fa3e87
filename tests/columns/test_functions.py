"""What the functions of columns do in a task: which rows come back, and which errors are told; without Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_kbatch import clock
from spark_kbatch.columns.functions import decoded_column, encoded_column
from spark_kbatch.errors import (
    ConfigError,
    InvalidValueError,
    SchemaError,
    SchemaNotFoundError,
)
from spark_kbatch.registry.folder import FolderRegistry
from spark_kbatch.registry.schemas import Schema
from tests.support import avro
from tests.support.avro import a_record, framed, parsed

FIRST = a_record(("id", "long"), ("city", ["null", "string"]), name="Order")
SECOND = a_record(
    *FIRST["fields"], {"name": "note", "type": "string", "default": "none"}, name="Order"
)
SUBJECT = "orders-value"


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    (tmp_path / "registry").mkdir()
    assert [register(tmp_path / "registry", one) for one in (FIRST, SECOND)] == [1, 2]
    return tmp_path / "registry"


def register(registry: Path, schema: Any) -> int:
    return FolderRegistry(registry).register(SUBJECT, Schema(json.dumps(schema))).id


def first(number: int) -> bytes:
    return framed(1, avro.encode(parsed(FIRST), {"id": number, "city": (0, None)}))


def second(number: int) -> bytes:
    return framed(2, avro.encode(parsed(SECOND), {"id": number, "city": (1, "Rome"), "note": "n"}))


def decoded(
    batches: list[list[bytes | None]],
    registry: Any = None,
    *,
    include_schema_id: bool = False,
    **given: Any,
) -> list[Any]:
    """Decode batches of one task, which gets the function as Spark sends it."""
    made = decoded_column(registry, given, include_schema_id=include_schema_id)
    sent = pickle.loads(pickle.dumps(made))
    arrays = list(sent.decoded(iter([pa.array(one, pa.binary()) for one in batches])))
    assert all(one.type == made.type for one in arrays)
    return [row for one in arrays for row in one.to_pylist()]


def encoded(rows: list[Any], kind: pa.DataType, registry: Any = None, **given: Any) -> list[Any]:
    """Encode rows, each in a batch of its own."""
    told = {"auto_register": given.pop("auto_register", False), "kind": given.pop("of", None)}
    sent = pickle.loads(pickle.dumps(encoded_column(registry, given, **told)))
    arrays = sent.encoded(iter([pa.array([row], kind) for row in rows]))
    return [row for one in arrays for row in one.to_pylist()]


def test_each_value_is_decoded_with_the_schema_that_its_id_names(registry: Path) -> None:
    batches = [[first(0), second(1), None], [second(3), first(4)]]

    assert decoded(batches, registry, subject=SUBJECT) == [
        {"id": 0, "city": None, "note": "none"},
        {"id": 1, "city": "Rome", "note": "n"},
        None,
        {"id": 3, "city": "Rome", "note": "n"},
        {"id": 4, "city": None, "note": "none"},
    ]
    assert decoded(batches[:1], registry, schema="id:1", fields=["id"]) == [
        {"id": 0},
        {"id": 1},
        None,
    ]


def test_a_schema_that_is_registered_later_is_found_by_the_task(registry: Path) -> None:
    made = decoded_column(registry, {"subject": SUBJECT}, include_schema_id=True)
    third = a_record(*FIRST["fields"], ("extra", "long"), name="Order")
    value = avro.encode(parsed(third), {"id": 5, "city": (0, None), "extra": 1})
    data = framed(register(registry, third), value)

    (found,) = made.decoded(iter([pa.array([data], pa.binary())]))

    assert found.to_pylist() == [{"value": {"id": 5, "city": None, "note": "none"}, "schema_id": 3}]


def test_a_schema_that_no_one_had_is_asked_for_again_a_minute_later(
    registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minutes = 0
    monkeypatch.setattr(clock, "monotonic_ms", lambda: minutes * 60_000)
    options = {"subject": SUBJECT, "mode": "PERMISSIVE"}
    made = decoded_column(registry, options, include_schema_id=False)
    third = a_record(*FIRST["fields"], name="Order", doc="third")
    value = framed(3, avro.encode(parsed(third), {"id": 5, "city": (0, None)}))

    def batches() -> Iterator[pa.Array]:
        nonlocal minutes
        yield pa.array([value])
        assert register(registry, third) == 3
        minutes = 1
        yield pa.array([value])

    before, after = made.decoded(batches())

    assert before.field("value").to_pylist() == [None]
    assert after.field("value").to_pylist() == [{"id": 5, "city": None, "note": "none"}]


def test_what_cannot_be_decoded_is_told_beside_the_value(registry: Path) -> None:
    rows = [first(0), b"{}", None, framed(9, b""), first(0)[:5], first(4) + b"x"]
    found = decoded(
        [rows[:2], rows[2:]], registry, subject=SUBJECT, mode="PERMISSIVE", include_schema_id=True
    )

    assert [row["value"] and row["value"]["id"] for row in found] == [
        0,
        None,
        None,
        None,
        None,
        None,
    ]
    assert [row["schema_id"] for row in found] == [1, None, None, 9, 1, 1]
    errors = [row["error"] for row in found]
    assert (errors[0], errors[2]) == (None, None)
    for error, said in zip(
        [errors[1], *errors[3:]], ["looks like JSON", "9", "id: ", "left over"], strict=True
    ):
        assert said in error


def test_what_cannot_be_decoded_fails_the_task_with_the_number_of_its_row(registry: Path) -> None:
    batches = [[first(0), first(1)], [first(2), first(3)[:5]]]
    with pytest.raises(InvalidValueError) as told:
        decoded(batches, registry, subject=SUBJECT)

    assert (told.value.row, told.value.path, told.value.schema_id) == (3, "id", 1)
    assert str(told.value).endswith(
        '(schema id 1); with mode="PERMISSIVE" the value of such a row is null, and the field error says why'
    )


def test_without_a_registry_one_schema_wrote_all(tmp_path: Path) -> None:
    (tmp_path / "order.avsc").write_text(json.dumps(FIRST))
    value = avro.encode(parsed(FIRST), {"id": 5, "city": (1, "Rome")})
    for schema in (f"file:{tmp_path}/order.avsc", json.dumps(FIRST), FIRST):
        assert decoded([[value]], schema=schema) == [{"id": 5, "city": "Rome"}]


KIND = pa.struct([("id", pa.int64()), ("city", pa.string())])


def test_rows_are_encoded_as_avro_has_them(registry: Path) -> None:
    rows = [{"id": 5, "city": "Rome"}, None]

    assert encoded(rows, KIND, registry, schema="version:1", subject=SUBJECT) == [
        framed(1, avro.encode(parsed(FIRST), {"id": 5, "city": (1, "Rome")})),
        None,
    ]
    bare = encoded(rows, KIND, schema=FIRST)
    assert bare == [avro.encode(parsed(FIRST), {"id": 5, "city": (1, "Rome")}), None]
    found = encoded(rows, KIND, registry, subject=SUBJECT)  # the latest, whose note has a default
    assert decoded([found], registry, subject=SUBJECT)[0] == {
        "id": 5,
        "city": "Rome",
        "note": "none",
    }


def test_a_schema_is_registered_only_if_that_is_asked_for(registry: Path) -> None:
    given: dict[str, Any] = {"schema": a_record(("id", "long"), name="Order"), "subject": SUBJECT}
    kind = pa.struct([("id", pa.int64())])
    with pytest.raises(SchemaNotFoundError, match="with a schema"):
        encoded([{"id": 1}], kind, registry, **given)

    with pytest.raises(
        ConfigError,
        match=r"auto_register is for a schema that is JSON.* give it, such as df\.schema",
    ):
        encoded([{"id": 1}], kind, registry, subject=SUBJECT, auto_register=True)
    (value,) = encoded([{"id": 1}], kind, registry, **given, auto_register=True)
    assert value.startswith(framed(3, b""))


def test_a_schema_is_made_of_the_columns_type_and_registered_if_that_is_asked_for(
    registry: Path,
) -> None:
    kind = pa.struct([("day", pa.date32())])
    rows = [{"day": date(2024, 10, 25)}, None]
    with pytest.raises(SchemaNotFoundError, match="with a schema"):
        encoded(rows, kind, registry, subject="days", of=kind)

    found = encoded(rows, kind, registry, subject="days", of=kind, auto_register=True)
    assert encoded(rows, kind, registry, subject="days", of=kind) == found
    assert decoded([found], registry, subject="days") == rows
    made = json.loads(FolderRegistry(registry).version("days", 1).schema.text)
    assert made["name"] == "days"
    other = pa.struct([("x", pa.uint64())])
    with pytest.raises(ConfigError, match=r"no schema can be made of column 'x': .*uint64"):
        encoded_column(registry, {"subject": "days"}, auto_register=True, kind=other)


@pytest.mark.parametrize(
    ("kind", "row", "error", "said"),
    [
        pytest.param(KIND, {"id": None}, InvalidValueError, "^row 1: id: the value is null.* id 1", id="null"),
        pytest.param(
            pa.struct([("id", pa.int64()), ("town", pa.string())]), {"id": 1}, ConfigError,
            "^column 'town' cannot be written with schema id 1: .* no field for this column", id="surplus",
        ),
        pytest.param(pa.int64(), 1, ConfigError, "^the column cannot be written with schema id 1", id="type"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_by_its_field(
    registry: Path, kind: pa.DataType, row: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        encoded([None, row], kind, registry, schema="id:1")


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({}, ConfigError, "^no schema is known: give the registry in 'registry'"),
        ({"schema": "id:7"}, ConfigError, "'schema' names a schema of a registry: give that in 'registry'"),
        ({"schema": "ltest"}, ConfigError, "option 'schema' is 'ltest'; accepted: latest, id:7"),
        ({"schema": 7}, ConfigError, "accepted: latest, id:7"),
        ({"schema": FIRST, "framing": "confluent"}, ConfigError, "'framing' is 'confluent'.*in 'registry'"),
        ({"schema": FIRST, "framing": "glue"}, ConfigError, "'framing' is 'glue'; accepted: confluent, none"),
        ({"schema": FIRST, "mode": "DROP"}, ConfigError, "'mode' is 'DROP'; accepted: FAILFAST, PERMISSIVE"),
        ({"schema": FIRST, "fields": ["ids"]}, SchemaError, "no field 'ids'; did you mean 'id'"),
        ({"schema": "file:/no/such.avsc"}, ConfigError, "'schema' is 'file:/no/such.avsc', which cannot be read"),
        ({"registry": True}, ConfigError, "^option 'subject' is not given: give it, or name the schema in 'schema'"),
        ({"registry": True, "subject": "none"}, SchemaNotFoundError, "'none'"),
    ],
)  # fmt: skip
def test_arguments_are_checked_before_there_is_a_job(
    registry: Path, given: Mapping[str, Any], error: type[Exception], said: str
) -> None:
    rest = {name: value for name, value in given.items() if name != "registry"}
    with pytest.raises(error, match=said):
        decoded_column(registry if "registry" in given else None, rest, include_schema_id=False)


def test_no_text_has_a_secret() -> None:
    registry = {"url": "http://localhost:1", "basic.auth.user.info": "user:secret-of-the-test"}
    made = decoded_column(registry, {"schema": FIRST}, include_schema_id=False)

    assert "secret-of-the-test" not in repr(made)
