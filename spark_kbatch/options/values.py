"""The options of keys and values as columns: their format, schema and framing, and what bad ones become.

Each of `value.format`, `value.schema`, `value.subject` and `value.framing` is there for keys too. What they accept is
checked here, with what fits together; a registry is asked for nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from spark_kbatch.errors import ConfigError
from spark_kbatch.model import INT_MAX
from spark_kbatch.options import arguments, kinds
from spark_kbatch.options.option import (
    Given,
    Option,
    made_of,
    nearest,
    option,
    table_of,
)
from spark_kbatch.options.paths import absolute_path
from spark_kbatch.options.registry import (
    PREFIX,
    URL,
    RegistryOptions,
    parse_registry_options,
)

Format: TypeAlias = Literal["binary", "string", "avro"]
Framing: TypeAlias = Literal["confluent", "none"]
Mode: TypeAlias = Literal["FAILFAST", "PERMISSIVE"]
Column: TypeAlias = Literal["key", "value"]

COLUMNS: tuple[Column, ...] = ("key", "value")
PERMISSIVE: Mode = "PERMISSIVE"
_LATER = ("json", "protobuf")
_SCHEMA_ACCEPTS = "latest, id:7, version:3, file:order.avsc, or a schema as JSON"
_FORMAT_ACCEPTS = "binary, string, avro"
_FRAMING_DEFAULT = "confluent for avro with a registry, else none"


class SchemaChoice(NamedTuple):
    """Where the schema is that values are read as: a version of the subject, an id, a file, or here."""

    kind: Literal["latest", "version", "id", "file", "text"] = "latest"
    number: int = 0  # the version or the id
    text: str = ""  # JSON, or the file's absolute path

    @property
    def needs_subject(self) -> bool:
        """Whether the schema is a version of a subject."""
        return self.kind in ("latest", "version")

    @property
    def needs_registry(self) -> bool:
        """Whether the schema is one that a registry has."""
        return self.needs_subject or self.kind == "id"


LATEST_SCHEMA = SchemaChoice()


def _format(key: str, value: str) -> Format:
    if value.strip().lower() in _LATER:
        raise ConfigError(
            f"option {key!r} is {value!r}, which is not supported yet; accepted: {_FORMAT_ACCEPTS}"
        )
    return _WORDS.parse(key, value)


def _schema(key: str, value: str) -> SchemaChoice:
    text = value.strip()
    if text.lower() == "latest":
        return LATEST_SCHEMA
    kind, colon, rest = text.partition(":")
    if colon and kind.lower() in ("id", "version") and rest.strip().isdecimal():
        number = int(rest)
        if number <= INT_MAX and (number or kind.lower() == "id"):
            return SchemaChoice("id" if kind.lower() == "id" else "version", number)
    if text.lower().startswith("file:"):
        return SchemaChoice("file", text=str(absolute_path(text, key)))
    if text.startswith(("{", "[", '"')):
        try:
            json.loads(text)
        except (ValueError, RecursionError) as error:
            kinds.refuse(key, value, f"{_SCHEMA_ACCEPTS}; this is no JSON: {error}")
        return SchemaChoice("text", text=text)
    kinds.refuse(key, value, _SCHEMA_ACCEPTS)


def _fields(key: str, value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    if not names or any(not all(name.split(".")) for name in names):
        kinds.refuse(key, value, "names of fields, such as order_id,customer.id")
    return names


_WORDS: kinds.OptionKind[Format] = kinds.one_of("binary", "string", "avro")
_FORMAT = kinds.OptionKind(_format, _FORMAT_ACCEPTS)
_SCHEMA = kinds.OptionKind(_schema, _SCHEMA_ACCEPTS)
_SUBJECT = kinds.stripped("a name")
_FRAMING: kinds.OptionKind[Framing] = kinds.one_of("confluent", "none")


@dataclass(frozen=True)
class ColumnOptions:
    """What the bytes of a column are, and what they are read as."""

    column: Column
    format: Format = "binary"
    schema: SchemaChoice = LATEST_SCHEMA
    subject: str = ""  # empty where it is neither given nor follows from the topic
    framing: Framing = "none"


def _written_rows(column: Column, *, called: str) -> tuple[Option, ...]:
    # fmt: off
    return (
        Option(f"{column}.format", _FORMAT, "binary", f"What {called} become: bytes or text as they are, or Avro, of columns of any type that fits the schema. See [Values as columns](values.md#write)."),
        Option(f"{column}.schema", _SCHEMA, None, f"The schema that {called} are written with: " + ("the latest of the subject, which only a batch may name, " if column == "value" else "") + "an id, a version, a file on the driver, or the schema itself.", "latest" if column == "value" else "required for avro"),
        Option(f"{column}.subject", _SUBJECT, None, f"The subject that {called} have in the registry.", f"TOPIC-{column}, with the option `topic`"),
        Option(f"{column}.framing", _FRAMING, None, f"Whether {called} get Confluent's five bytes in front, which name their schema, or none.", _FRAMING_DEFAULT),
    )
    # fmt: on


def _rows(column: Column, *, called: str) -> tuple[Option, ...]:
    # fmt: off
    return (
        Option(f"{column}.format", _FORMAT, "binary", f"What {called} are: bytes as they are, text in UTF-8, or Avro. See [Values as columns](values.md)."),
        Option(f"{column}.schema", _SCHEMA, None, f"The schema that {called} are read as: the latest of the subject, an id, a version, a file on the driver, or the schema itself.", "latest"),
        Option(f"{column}.subject", _SUBJECT, None, f"The subject that {called} have in the registry.", f"TOPIC-{column}, if one topic is named"),
        Option(f"{column}.framing", _FRAMING, None, f"Whether {called} have Confluent's five bytes in front, which name the schema that wrote each, or none.", _FRAMING_DEFAULT),
    )
    # fmt: on


@dataclass(frozen=True, kw_only=True)
class ValueOptions:
    """The parsed options of keys and values as columns."""

    # fmt: off
    value: ColumnOptions = made_of(*_rows("value", called="values"), default=ColumnOptions("value"))
    key: ColumnOptions = made_of(*_rows("key", called="keys"), default=ColumnOptions("key"))
    fields: tuple[str, ...] = option("value.fields", kinds.OptionKind(_fields, "names, separated by commas: `order_id,customer.id`"), (), "Fields of the value that are wanted; only these are decoded.", "all of them")
    mode: Mode = option("mode", kinds.one_of("FAILFAST", "PERMISSIVE"), "FAILFAST", "What becomes of a key or a value that cannot be decoded: an error that names its record, or null, with the reason in the column `value_error` or `key_error`.")
    include_schema_id: bool = option("includeSchemaId", kinds.BOOLEAN, False, "Whether to add the id of the schema that wrote each value, as the column `value_schema_id`, and `key_schema_id`.")
    include_bytes: bool = option("includeBytes", kinds.BOOLEAN, False, "Whether to add the bytes that were decoded, as the column `value_bytes`, and `key_bytes`.")
    # fmt: on
    registry: RegistryOptions | None = None

    @property
    def typed(self) -> tuple[ColumnOptions, ...]:
        """The columns that are not binary."""
        return tuple(one for one in (self.key, self.value) if one.format != "binary")


@dataclass(frozen=True, kw_only=True)
class WrittenValueOptions:
    """The parsed options of columns that a write encodes as keys and values."""

    # fmt: off
    value: ColumnOptions = made_of(*_written_rows("value", called="values"), default=ColumnOptions("value"))
    key: ColumnOptions = made_of(*_written_rows("key", called="keys"), default=ColumnOptions("key"))
    auto_register: bool = option("auto.register.schemas", kinds.BOOLEAN, False, "Whether to register a schema that is a file or JSON, where the subject does not have it; otherwise that is an error.")
    # fmt: on
    registry: RegistryOptions | None = None

    @property
    def encoded(self) -> tuple[ColumnOptions, ...]:
        """The columns that a write encodes."""
        return tuple(one for one in (self.key, self.value) if one.format == "avro")


NO_WRITTEN_OPTIONS = WrittenValueOptions()
WRITTEN_VALUE_OPTIONS = table_of(WrittenValueOptions)
NO_VALUE_OPTIONS = ValueOptions()
VALUE_OPTIONS = table_of(ValueOptions)
_KEYWORDS = {row.key.lower().replace(".", "_"): row.key for row in VALUE_OPTIONS} | {
    "include_schema_id": "includeSchemaId",
    "include_bytes": "includeBytes",
}


def without_registry(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options without those of the registry, whose values may be secrets."""
    return {key: value for key, value in options.items() if not key.lower().startswith(PREFIX)}


def parse_value_options(
    given: Given, options: Mapping[str, Any], topics: Sequence[str]
) -> ValueOptions:
    """Parse and check the options of keys and values as columns.

    Args:
        given: the options, matched with those that are known.
        options: the same, as they were given, with those of the registry.
        topics: the topics that are named, from which a subject follows; empty where a pattern names them.

    Raises:
        ConfigError: a bad value, or options that do not fit together. A secret is not repeated.
    """
    registry = parse_registry_options(options)
    columns = {column: _column(column, given, registry, topics) for column in COLUMNS}
    found = ValueOptions(
        **columns,
        fields=given.get("value.fields"),
        mode=given.get("mode"),
        include_schema_id=given.get("includeSchemaId"),
        include_bytes=given.get("includeBytes"),
        registry=registry,
    )
    has_avro = any(one.format == "avro" for one in found.typed)
    for key in ("mode", "includeBytes"):
        if key in given and not found.typed:
            raise _lonely(key, "a column with a format: value.format or key.format")
    if "includeSchemaId" in given and not has_avro:
        raise _lonely("includeSchemaId", "value.format=avro or key.format=avro")
    if registry is not None and not has_avro:
        raise _lonely(URL, "value.format=avro or key.format=avro")
    if found.fields and found.value.format != "avro":
        raise _lonely("value.fields", "value.format=avro")
    return found


def parse_written_value_options(
    given: Given, options: Mapping[str, Any], topics: Sequence[str]
) -> WrittenValueOptions:
    """Parse and check the options of columns that a write encodes; arguments and errors as of `parse_value_options`."""
    registry = parse_registry_options(options)
    columns = {column: _column(column, given, registry, topics) for column in COLUMNS}
    found = WrittenValueOptions(
        **columns, auto_register=given.get("auto.register.schemas"), registry=registry
    )
    if registry is not None and not found.encoded:
        raise _lonely(URL, "value.format=avro or key.format=avro")
    if found.auto_register and registry is None:
        raise _lonely("auto.register.schemas", f"a registry in {URL!r}")
    if found.key in found.encoded and found.key.schema.kind == "latest":
        raise ConfigError(
            "option 'key.schema' is 'latest', or not given: a key's bytes name its schema and decide its partition, so "
            "that a new version would move every key to another one; accepted: id:7, version:3, file:key.avsc, or JSON"
        )
    for column in found.encoded:
        is_ours = column.schema.kind in ("file", "text")
        if is_ours and column.framing == "confluent" and not column.subject:
            raise ConfigError(
                f"option '{column.column}.subject' is not given: the registry has the schema's id under it; or give "
                f"'{column.column}.schema' as id:7"
            )
    return found


def ensure_goes_with_streams(options: WrittenValueOptions) -> None:
    """Check the options of a stream's write, which looks a schema up for each micro-batch.

    Raises:
        ConfigError: the latest version is to be taken.
    """
    for column in options.encoded:
        if column.schema.kind == "latest":
            raise ConfigError(
                f"option '{column.column}.schema' is 'latest', or not given, which a stream looks up for each micro-batch: "
                "a schema that is registered meanwhile would change what it writes; accepted: id:7, version:3, "
                "file:order.avsc, or JSON"
            )


def _lonely(key: str, needs: str) -> ConfigError:
    return ConfigError(f"option {key!r} goes with {needs}, which is not given")


def _column(
    column: Column, given: Given, registry: RegistryOptions | None, topics: Sequence[str]
) -> ColumnOptions:
    kind: Format = given.get(f"{column}.format")
    schema_key, subject_key = f"{column}.schema", f"{column}.subject"
    framing: Framing | None = given.get(f"{column}.framing")
    if kind != "avro":
        for key in (schema_key, subject_key):
            if key in given:
                raise _lonely(key, f"{column}.format=avro")
        if framing == "confluent":
            raise ConfigError(
                f"option '{column}.framing' is 'confluent', which goes with {column}.format=avro alone"
            )
        return ColumnOptions(column, kind)
    schema: SchemaChoice = given.get(schema_key) or LATEST_SCHEMA
    subject: str = given.get(subject_key) or ""
    if framing is None:
        framing = "none" if registry is None else "confluent"
    if registry is None:
        _ensure_needs_no_registry(column, schema, framing, is_given=schema_key in given)
    elif not subject and len(topics) == 1:
        subject = f"{topics[0]}-{column}"
    if schema.needs_subject and not subject:
        why = "several topics are named" if topics else "no topic is named by an option"
        raise ConfigError(
            f"option {subject_key!r} is not given, and {why}: give it, or name the schema in {schema_key!r}: "
            "id:7, file:order.avsc, or JSON"
        )
    return ColumnOptions(column, kind, schema, subject, framing)


def _ensure_needs_no_registry(
    column: Column, schema: SchemaChoice, framing: Framing, *, is_given: bool
) -> None:
    if framing == "confluent":
        raise ConfigError(
            f"option '{column}.framing' is 'confluent', where each {column} names its schema by an id: give "
            f"the registry that knows it, in {URL!r}; a folder will do"
        )
    if not is_given:
        raise ConfigError(
            f"option '{column}.format' is 'avro', and no schema is known: give the registry in {URL!r}, which "
            f"may be a folder; or, for {column}s without framing, '{column}.schema': file:order.avsc, or JSON"
        )
    if schema.needs_registry:
        raise ConfigError(
            f"option '{column}.schema' names a schema of a registry: give that in {URL!r}; or a schema of its "
            "own, file:order.avsc or JSON"
        )


def parse_value_keywords(
    registry: Any, keywords: Mapping[str, Any], topics: Sequence[str]
) -> ValueOptions:
    """Parse the arguments of a read in Python: `value_format="avro", registry="http://localhost:8081"`.

    Args:
        registry: a URL, a folder, or a mapping of options with or without the prefix `schema.registry.`.
        keywords: the options with underscores.
        topics: as for `parse_value_options`.

    Raises:
        ConfigError: as `parse_value_options`.
        TypeError: an argument is unknown.
    """
    options: dict[str, str] = {}
    for name, value in keywords.items():
        key = _KEYWORDS.get(name)
        if key is None:
            near = nearest(name, _KEYWORDS)
            hint = f"did you mean {near!r}?" if near else f"options are: {', '.join(_KEYWORDS)}"
            raise TypeError(f"unexpected keyword argument {name!r}; {hint}")
        row = next(one for one in VALUE_OPTIONS if one.key == key)
        if key == "value.fields" and not isinstance(value, str):
            value = ",".join(arguments.names(name, value, "names of fields"))
        elif key.endswith(".schema") and isinstance(value, Mapping | list):
            value = json.dumps(value)
        row.parse(value)
        options[key] = str(value).lower() if isinstance(value, bool) else value
    options |= registry_keys(registry)
    return parse_value_options(Given(without_registry(options), VALUE_OPTIONS), options, topics)


def registry_keys(registry: Any) -> dict[str, str]:
    """Return the options of a registry that Python's argument `registry` gives.

    Raises:
        ConfigError: it is neither a URL, nor a folder, nor a mapping.
    """
    if registry is None:
        return {}
    if isinstance(registry, Mapping):
        given = arguments.options("registry", registry, '{"url": "http://localhost:8081"}')
        return {
            f"{PREFIX}{key.lower().removeprefix(PREFIX)}": value for key, value in given.items()
        }
    return {URL: arguments.path_text("registry", registry)}
