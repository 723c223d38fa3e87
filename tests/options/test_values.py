"""The options of keys and values as columns: what is accepted, what follows, and what does not fit together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_kbatch.errors import ConfigError
from spark_kbatch.options.read import parse_read_options, parse_stream_read_options
from spark_kbatch.options.values import (
    ColumnOptions,
    SchemaChoice,
    ValueOptions,
    ensure_goes_with_streams,
    parse_value_keywords,
)
from spark_kbatch.options.write import parse_write_options

READ = {"path": "/data", "subscribe": "orders"}
AVRO = {"value.format": "avro", "schema.registry.url": "http://localhost:8081"}
TEXT = '{"type": "map", "values": "long"}'
DDL = "id bigint, tags array<string>"
JSON = {"value.format": "json", "value.schema": DDL}
# The options of values of the topic "orders" whose schema is that.
OF_TEXT = ColumnOptions(
    "value", "avro", SchemaChoice("text", text=TEXT), "orders-value", "confluent", topic="orders"
)


def read(**options: str) -> ValueOptions:
    """The options of a read; dots are written as underscores."""
    dotted = {key.replace("_", "."): value for key, value in options.items()}
    return parse_read_options(READ | dotted).values


def avro(**options: str) -> ColumnOptions:
    dotted = {key.replace("_", "."): value for key, value in options.items()}
    return parse_read_options(READ | AVRO | dotted).values.value


def test_a_read_of_avro_needs_a_format_and_a_registry() -> None:
    found = parse_stream_read_options(READ | AVRO).values

    assert found.value == ColumnOptions(
        "value", "avro", SchemaChoice(), "orders-value", "confluent", topic="orders"
    )
    assert found.key == ColumnOptions("key")
    assert (found.mode, found.fields, found.typed) == ("FAILFAST", (), (found.value,))
    assert found.registry is not None
    assert parse_read_options(READ).values == ValueOptions()


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("LATEST", SchemaChoice()),
        ("id:7", SchemaChoice("id", 7)),
        ("id:0", SchemaChoice("id", 0)),
        (" Version:3 ", SchemaChoice("version", 3)),
        ("file:/data/order.avsc", SchemaChoice("file", text="/data/order.avsc")),
        ("File:order.avsc", SchemaChoice("file", text=str(Path("order.avsc").resolve()))),
        (
            "file:a.avsc, file:/b.avsc",
            SchemaChoice("file", text="/b.avsc", beside=(str(Path("a.avsc").resolve()),)),
        ),
        (TEXT, SchemaChoice("text", text=TEXT)),
        ('"string"', SchemaChoice("text", text='"string"')),
    ],
)
def test_a_schema_is_chosen(text: str, choice: SchemaChoice) -> None:
    assert avro(value_schema=text).schema == choice


@pytest.mark.parametrize(
    "text", ["", "7", "version:0", "id:-1", "id:99999999999", "{", "order.avsc"]
)
def test_another_choice_of_a_schema_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"accepted: latest, id:7, version:3, file:order\.avsc"):
        avro(value_schema=text)


def test_a_subject_follows_from_the_one_topic_that_is_named() -> None:
    assign = {"path": "/data", "assign": '{"orders":[0,1]}'}
    assert parse_read_options(assign | AVRO).values.value.subject == "orders-value"
    assert avro(value_subject=":.staging:a").subject == ":.staging:a"
    for selection in ({"subscribe": "orders,more"}, {"subscribePattern": "or"}):
        options = {"path": "/data", **selection, **AVRO}
        with pytest.raises(ConfigError, match=r"'value\.subject' is not given"):
            parse_read_options(options)
        assert parse_read_options(options | {"value.schema": "id:7"}).values.value.subject == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key.format": "Protobuf"}, "not supported yet; accepted: binary, string, avro, json"),
        ({"value.format": "avor"}, "accepted: binary, string, avro, json"),
        ({"value.format": "avro"}, "no schema is known: give the registry in 'schema.registry.url'"),
        ({"value.format": "avro", "value.schema": "id:7"}, "names a schema of a registry"),
        ({"value.format": "avro", "value.framing": "confluent", "value.schema": TEXT}, "the registry that knows it"),
        ({"value.format": "avro", "value.schema": DDL}, r"accepted: latest, id:7, version:3, file:order\.avsc, or a schema as JSON$"),
        ({"value.format": "json"}, "is 'json', and no schema is known: give the registry .*: id bigint, file:order"),
        ({"value.format": "json", "value.schema": "id:7"}, "names a schema of a registry: .* of its own, id bigint"),
        ({"value.format": "json", "value.schema": "version:0"}, "'version:0'; accepted: latest, id:7"),
        ({"value.format": "json", "value.framing": "confluent"}, "is 'json', and no schema is known"),
        ({"value.format": "string", "value.framing": "confluent"}, "goes with value.format=avro or json alone"),
        ({"value.schema": TEXT}, "goes with value.format=avro or json"),
        ({"key.format": "string", "value.subject": "a"}, "goes with value.format=avro or json"),
        ({"mode": "PERMISSIVE"}, "goes with a column with a format"),
        ({"value.format": "string", "mode": "DROPMALFORMED"}, "accepted: FAILFAST, PERMISSIVE"),
        ({"includeBytes": "true"}, "goes with a column with a format"),
        ({"value.format": "string", "includeSchemaId": "true"}, "whose values name schemas: avro, or json with framing"),
        (JSON | {"includeSchemaId": "true"}, "goes with a format whose values name schemas"),
        ({"value.format": "string", "value.fields": "a"}, "goes with value.format=avro or json"),
        (JSON | {"json.lenient": "zone,zones"}, "accepted: names, separated by commas: zone, digits"),
        (JSON | {"json.lenient": ""}, "accepted: names"),
        (AVRO | {"json.lenient": "zone"}, "'json.lenient' goes with value.format=json or key.format=json"),
        (AVRO | {"value.fields": "a,,b..c"}, "names of fields"),
        ({"schema.registry.url": "http://localhost:8081"}, "goes with a format, avro or json: value.format or key.format"),
        (AVRO | {"schema.registry.basic.auth.password": "secret-of-the-test"}, "neither is the case"),
        (AVRO | {"schema.registry.urls": "x"}, "the nearest known one is 'schema.registry.url'"),
        (AVRO | {"value.shema": "x"}, "the nearest known one is 'value.schema'"),
        ({"kafka.value.deserializer": "x"}, "the option 'value.format' says what values are"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as told:
        parse_read_options(READ | options)
    assert "secret-of-the-test" not in str(told.value)


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        pytest.param(f" {DDL}\n", SchemaChoice("ddl", text=DDL), id="columns"),
        pytest.param("array<bigint>", SchemaChoice("ddl", text="array<bigint>"), id="a-type"),
        pytest.param("id: bigint", SchemaChoice("ddl", text="id: bigint"), id="colon"),
        pytest.param("version:3", SchemaChoice("version", 3), id="version"),
        pytest.param("latest", SchemaChoice(), id="latest"),
        pytest.param('{"type": "object"}', SchemaChoice("text", text='{"type": "object"}'), id="text"),
        pytest.param(
            "file:/a/address.json,file:/b/order.json",
            SchemaChoice("file", text="/b/order.json", beside=("/a/address.json",)),
            id="files",
        ),
    ],
)  # fmt: skip
def test_a_schema_of_json_is_a_ddl_too(given: str, choice: SchemaChoice) -> None:
    options = AVRO | {"value.format": "json", "value.schema": given}
    assert parse_read_options(READ | options).values.value == ColumnOptions(
        "value", "json", choice, "orders-value", "confluent", topic="orders"
    )


def test_json_has_confluents_framing_with_a_registry_and_without_one_where_that_is_said() -> None:
    def found(**options: str) -> tuple[str, str]:
        values = read(value_format="json", **options).value
        return values.framing, values.schema.kind

    url = "http://localhost:8081"
    assert found(value_schema=DDL) == ("none", "ddl")
    assert found(value_schema=DDL, value_framing="confluent") == ("confluent", "ddl")
    assert found(schema_registry_url=url) == ("confluent", "latest")
    assert found(schema_registry_url=url, value_framing="none") == ("none", "latest")
    several = {"subscribe": "orders,more", "schema.registry.url": url}
    parse_read_options({"path": "/data", **several, **JSON})
    with pytest.raises(ConfigError, match=r"'value\.subject' is not given.*: id:7, id bigint"):
        parse_read_options({"path": "/data", **several, "value.format": "json"})


def test_leniency_is_named_one_by_one() -> None:
    options = READ | JSON | {"json.lenient": "Zone, digits,zone"}
    assert parse_stream_read_options(options).values.lenient == ("zone", "digits")
    given = {
        "key_format": "json",
        "key_schema": "bigint",
        "json_lenient": ["digits", "zone"],
    }
    assert parse_value_keywords(None, given, []).lenient == ("digits", "zone")
    with pytest.raises(ConfigError, match="accepted: names: zone, digits"):
        parse_value_keywords(None, given | {"json_lenient": [7]}, [])


# Of a write.

WRITE = {"path": "/data", "topic": "orders"}
STRATEGY = "value.subject.name.strategy"
NAMED = {"value.record.name": "shop.Order"}


def test_a_write_has_the_same_options_but_for_those_of_what_cannot_be_decoded() -> None:
    found = parse_write_options(
        WRITE | AVRO | {"auto.register.schemas": "true", "value.schema": TEXT}
    ).values

    assert found.value == OF_TEXT
    assert (found.auto_register, found.encoded) == (True, (found.value,))
    for key in ("mode", "value.fields", "includeBytes"):
        with pytest.raises(ConfigError, match=rf"'{key}'; it is an option of a read"):
            parse_write_options(WRITE | AVRO | {key: "x"})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"value.format": "protobuf"}, "not supported yet; accepted: binary, string, avro, json$"),
        (AVRO | {"value.schema": DDL}, "accepted: latest, id:7"),
        (AVRO | {"key.format": "avro"}, "a new version would move every key to another one"),
        ({"auto.register.schemas": "true"}, "goes with a registry in 'schema.registry.url'"),
        ({"schema.registry.url": "http://localhost:8081"}, "goes with a format, avro or json"),
        ({"value.format": "avro"}, "no schema is known"),
        (AVRO | {STRATEGY: "NameStrategy"}, "accepted: TopicNameStrategy, RecordNameStrategy, TopicRecordNameStrategy"),
        (AVRO | {STRATEGY: "RecordNameStrategy"}, r"give the record's name in 'value\.record\.name'"),
        (AVRO | {STRATEGY: "RecordNameStrategy", "auto.register.schemas": "true"}, r"in 'value\.record\.name'"),
        (AVRO | {STRATEGY: "RecordNameStrategy", "value.subject": "a"}, "are given; accepted: one of them"),
        (AVRO | NAMED, r"'value\.record\.name' goes with a schema that is made of columns"),
        (AVRO | NAMED | {STRATEGY: "RecordNameStrategy", "value.schema": TEXT}, "goes with a schema that is made of columns"),
        (AVRO | {"value.record.name": "shop.2nd"}, r"a name of Avro, such as com\.shop\.Order"),
        ({STRATEGY: "RecordNameStrategy"}, r"goes with value\.format=avro"),
        ({"value.format": "avro", "value.schema": TEXT, STRATEGY: "RecordNameStrategy"}, "goes with a registry"),
    ],
)  # fmt: skip
def test_what_does_not_fit_a_write_is_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_write_options(WRITE | options)


@pytest.mark.parametrize(
    ("options", "subject"),
    [
        pytest.param({}, "orders-value", id="topic"),
        pytest.param({STRATEGY: "recordNameStrategy", **NAMED}, "shop.Order", id="record"),
        pytest.param(
            {STRATEGY: "io.confluent.kafka.serializers.subject.TopicRecordNameStrategy", **NAMED},
            "orders-shop.Order",
            id="class-of-java",
        ),
        pytest.param({STRATEGY: "RecordNameStrategy", "value.schema": TEXT}, "", id="of-a-schema"),
    ],
)
def test_a_subject_follows_from_topic_and_record(options: dict[str, str], subject: str) -> None:
    found = parse_write_options(WRITE | AVRO | options).values.value

    assert found.subject == subject
    assert found.subject_of("Other") == subject or "Other"


def test_a_schema_is_made_of_the_columns_only_where_it_may_be_registered() -> None:
    registers = AVRO | {"auto.register.schemas": "true"}
    made = parse_write_options(WRITE | registers)
    assert made.values.value.schema.kind == "columns"
    ensure_goes_with_streams(made.values)
    for options in (AVRO, registers | {"value.schema": "latest"}):
        assert parse_write_options(WRITE | options).values.value.schema.kind == "latest"
    with pytest.raises(ConfigError, match="a new version would move every key"):
        parse_write_options(WRITE | registers | {"key.format": "avro"})


def test_a_write_to_several_topics_names_a_subject_or_an_id() -> None:
    for schema in ("latest", "version:3", TEXT):
        with pytest.raises(ConfigError, match=r"'value\.subject' is not given"):
            parse_write_options({"path": "/data", "value.schema": schema, **AVRO})
    strategy = {STRATEGY: "TopicRecordNameStrategy"}
    with pytest.raises(ConfigError, match=r"give the topic in 'topic'; or 'value\.subject'"):
        parse_write_options({"path": "/data", "value.schema": TEXT, **strategy, **AVRO})
    parse_write_options({"path": "/data", "value.schema": "id:7", **AVRO})


def test_a_stream_does_not_write_with_the_latest_schema() -> None:
    ensure_goes_with_streams(
        parse_write_options(WRITE | AVRO | {"value.schema": "version:3"}).values
    )
    with pytest.raises(ConfigError, match="a stream looks up for each micro-batch"):
        ensure_goes_with_streams(parse_write_options(WRITE | AVRO).values)


# In Python.


def test_keywords_are_the_options_with_underscores(tmp_path: Path) -> None:
    found = parse_value_keywords(
        {"url": "http://localhost:8081", "basic.auth.user.info": "user:secret-of-the-test"},
        {
            "value_format": "avro", "value_schema": {"type": "map", "values": "long"}, "key_format": "string",
            "value_fields": ["a", "b.c"], "mode": "permissive", "include_schema_id": True, "include_bytes": False,
        },
        ["orders"],
    )  # fmt: skip

    assert found.value == OF_TEXT
    assert (found.key.format, found.fields, found.mode) == ("string", ("a", "b.c"), "PERMISSIVE")
    assert (found.include_schema_id, found.include_bytes) == (True, False)
    assert "secret-of-the-test" not in repr(found)
    folder = parse_value_keywords(tmp_path, {"value_format": "avro"}, ["orders"]).registry
    assert folder is not None
    assert folder.url.folder == str(tmp_path)


@pytest.mark.parametrize(
    ("registry", "keywords", "said"),
    [
        (None, {"value_format": 7}, "accepted: binary, string, avro"),
        (None, {"value_format": None}, "accepted: binary, string, avro"),
        (None, {"value_format": "avro", "value_fields": [1]}, "names of fields"),
        (7, {"value_format": "avro"}, "registry is 7"),
        ({"url": 7}, {"value_format": "avro"}, "accepted: text"),
    ],
)
def test_an_argument_that_is_not_accepted_is_named(
    registry: Any, keywords: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_value_keywords(registry, keywords, ["orders"])


def test_an_unknown_argument_is_a_type_error_as_everywhere_in_python() -> None:
    with pytest.raises(TypeError, match="'value_fromat'; did you mean 'value_format'"):
        parse_value_keywords(None, {"value_fromat": "avro"}, ["orders"])
    with pytest.raises(TypeError, match="options are: value_format, "):
        parse_value_keywords(None, {"zzz": 1}, ["orders"])
    with pytest.raises(TypeError, match="options are: value_format, "):
        parse_value_keywords(None, {"offset": 1}, ["orders"])


def test_a_schema_may_lie_in_several_files_and_have_comments(tmp_path: Path) -> None:
    def choice(text: str) -> SchemaChoice:
        return avro(value_framing="none", value_schema=text).schema

    files = [str(tmp_path / name) for name in ("a,b.avsc", "c.avsc", "d.avsc")]
    assert choice(f"file:{files[0]}") == SchemaChoice("file", text=files[0])
    several = choice(f"file:{files[0]},file:{files[1]} , FILE:{files[2]}")
    assert several == SchemaChoice("file", text=files[2], beside=(files[0], files[1]))
    for text in ('/* a licence */ "long"', '// one\n["null", "long"]', '"long" /* end */'):
        assert choice(text) == SchemaChoice("text", text=text)
    assert choice('\ufeff"long"') == SchemaChoice("text", text='"long"')
    with pytest.raises(ConfigError, match="this is no JSON"):
        choice("// nothing but a comment")
