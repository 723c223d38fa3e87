"""A DDL in Spark's syntax becomes an Arrow type without Spark, and errors say where they are and what to write."""

from __future__ import annotations

import random
import re

import pyarrow as pa
import pytest

from spark_kbatch.errors import SchemaError
from spark_kbatch.values import types
from spark_kbatch.values.layout import wanted_fields
from spark_kbatch.values.types import JSON_NAME, parse_ddl, project_type
from tests.support import draws
from tests.support.ddls import WORDS, Ddls, ddl_of

EXAMPLES = 500


@draws.naming_first()
def test_a_ddl_becomes_the_type_that_it_names() -> None:
    for seed in draws.seeds(EXAMPLES):
        text, kind = Ddls(random.Random(seed)).whole()

        found = parse_ddl(text)

        assert found.equals(kind, check_metadata=True), text
        assert parse_ddl(ddl_of(found)).equals(found), text


@draws.naming_first()
def test_a_damaged_ddl_is_refused_or_is_another() -> None:
    refused = 0
    for seed in draws.seeds(EXAMPLES):
        text = Ddls(random.Random(seed)).damaged()
        try:
            found = parse_ddl(text)
        except SchemaError:
            refused += 1
        else:
            assert parse_ddl(ddl_of(found)).equals(found), text
    assert draws.many(EXAMPLES) / 4 < refused < draws.many(EXAMPLES)


def test_the_table_in_the_docstring_has_each_word_and_its_type() -> None:
    lines = (types.__doc__ or "").split("\n\n")[1].splitlines()
    rows = [re.split(r" {2,}", line.strip()) for line in lines]
    shown = {
        word: arrow
        for words, arrow in rows[1:]
        for word in re.sub(r"\([^)]*\)", "", words).split(", ")
        if "<" not in words
    }

    assert rows[0] == ["DDL", "Arrow"]
    assert [words for words, _ in rows if "<" in words] == ["array<T>", "map<string, V>", "struct<a: T, b: U>"]  # fmt: skip
    assert shown.keys() == {re.sub(r" *\(.*", "", " ".join(one.split())) for one in WORDS}
    for word, arrow in shown.items():
        given = f"{word}(7)" if word in ("char", "character", "varchar") else word
        found = str(parse_ddl(given)).replace("(10, 0)", "(p, s)").replace(", tz=", ", ")
        assert found.removesuffix("[day]") == arrow, word


@pytest.mark.parametrize(
    ("text", "path", "place", "words"),
    [
        ("", "", "character 1, where the DDL ends", "a type is missing"),
        ("bool", "", "character 1, where there is 'bool'", "types are boolean, tinyint"),
        ("a bool", ".a", "character 3, where there is 'bool'", "types are boolean, tinyint"),
        ("a interval", ".a", "character 3, where there is 'interval'", "a type is missing"),
        ("a variant", ".a", "character 3", "a type is missing"),
        ("a: struct<\n  b: array<bigin>>", ".a.b[]", "line 2, character 12, where there is 'bigin'", "a type is missing"),
        ("a int not null, b int", "", "character 7, where there is 'not'", "leave NOT NULL out"),
        ("a array<int not null>", ".a", "character 13, where there is 'not'", "leave NOT NULL out"),
        ("unit-price int", ".unit", "character 5, where there is '-'", "stand in backticks: `unit-price`"),
        ("12 int", "", "character 1, where there is '12'", "stand in backticks"),
        ("größe int", ".gr", "character 3, where there is 'ö'", "stand in backticks"),
        ("a int,", "", "character 7, where the DDL ends", "a name is missing"),
        ("a int b int", "", "character 7, where there is 'b'", "a comma is missing"),
        ("a int;", "", "character 6, where there is ';'", "a comma is missing"),
        ("a string collate unicode", "", "character 10, where there is 'collate'", "a comma is missing"),
        ("a int comment 5", "", "character 7, where there is 'comment'", "as in id bigint, tags array<string> COMMENT"),
        ("a int comment text", "", "character 7, where there is 'comment'", "as in id bigint, tags array<string> COMMENT"),
        ("a int end", "", "character 7, where there is 'end'", "a comma is missing"),
        ("a array", ".a", "character 3, where there is 'array'", "array<T>"),
        ("array<int", "", "character 10, where the DDL ends", "'>' is missing"),
        ("map<int, int>", "", "character 5, where there is 'int'", "keys of a map are names in JSON"),
        ("map<string: int>", "", "character 11, where there is ':'", "',' is missing"),
        ("a varchar", ".a", "character 3, where there is 'varchar'", "a type is missing"),
        ("decimal(39, 2)", "", "decimal(39, 2)", "1 to 38 digits"),
        ("a decimal(2, 5)", ".a", "decimal(2, 5)", "1 to 38 digits"),
        ("a decimal(0)", ".a", "decimal(0, 0)", "1 to 38 digits"),
        ("a int, `A` int", "", "'a' and 'A'", "which Spark cannot tell apart"),
        ("s struct<a int, a int>", ".s", "'a' and 'a'", "which Spark cannot tell apart"),
        ("array<" * 101 + "int" + ">" * 101, "[]" * 101, "", "100 in each other"),
        (",".join(f"a{n} int" for n in range(10_001)), ".a10000", "", "more than 10000 columns"),
    ],
)  # fmt: skip
def test_an_error_names_the_place_and_what_to_write(text: str, path: str, place: str, words: str) -> None:  # fmt: skip
    with pytest.raises(SchemaError) as error:
        parse_ddl(text)

    assert error.value.path == path
    assert place in error.value.reason
    assert words in error.value.reason


@pytest.mark.parametrize(
    "kind",
    [
        pa.null(),
        pa.duration("us"),
        pa.time64("us"),
        pa.decimal256(50, 2),
        pa.decimal128(5, 7),
        pa.decimal128(5, -1),
        pa.map_(pa.int32(), pa.int32()),
    ],
    ids=str,
)
def test_a_type_that_json_has_no_form_for_is_refused_with_its_path(kind: pa.DataType) -> None:
    with pytest.raises(SchemaError) as error:
        project_type(pa.struct([("a", pa.list_(pa.struct([("b", kind)])))]), {})

    assert error.value.path == ".a[].b"
    assert "JSON has no form for" in error.value.reason


def test_a_long_gap_is_read_once() -> None:
    with pytest.raises(SchemaError, match="a type is missing"):
        parse_ddl("a array " + "-- /* x */ " * 2_000)


ORDER = "id bigint, customer struct<id bigint, Name string>, lines array<struct<sku string, count int>>, tags map<string, struct<x int, y int>>"


def projected(*paths: str, renames: bool = False) -> pa.DataType:
    return project_type(parse_ddl(ORDER), wanted_fields(paths), renames=renames)


def test_wanted_fields_come_in_the_order_that_is_asked_for() -> None:
    kind = projected("tags.y", "lines.count", "customer.name", "id", "lines.sku")

    assert ddl_of(kind) == (
        "struct<tags map<string, struct<y int>>, lines array<struct<count int, sku string>>, "
        "customer struct<Name string>, id bigint>"
    )
    assert projected() == parse_ddl(ORDER)


def json_names(kind: pa.DataType, *names: str) -> list[str]:
    return [kind.field(name).metadata[JSON_NAME].decode() for name in names]


def test_a_field_that_is_renamed_keeps_its_name_in_json() -> None:
    kind = projected("ID", "customer.name", renames=True)

    assert ddl_of(kind) == "struct<ID bigint, customer struct<name string>>"
    assert json_names(kind, "ID", "customer") == ["id", "customer"]
    assert json_names(kind.field("customer").type, "name") == ["Name"]
    again = project_type(kind, wanted_fields(["Id"]), renames=True)
    assert json_names(again, "Id") == ["id"]
    assert project_type(kind, {}).field("ID").metadata is None


@pytest.mark.parametrize(
    ("path", "where", "words"),
    [
        ("idd", "", "the struct has no field 'idd'; did you mean 'id'?"),
        ("customer.zzz", ".customer", "its fields are: id, Name"),
        ("lines.x", ".lines[]", "has no field 'x'"),
        ("tags.z", ".tags{}", "has no field 'z'"),
        ("id.x", ".id", "bigint has no field 'x'"),
    ],
)
def test_a_field_that_is_not_there_is_an_error_with_its_path(
    path: str, where: str, words: str
) -> None:
    with pytest.raises(SchemaError) as error:
        projected(path)

    assert error.value.path == where
    assert words in error.value.reason
