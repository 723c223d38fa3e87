"""The options of keys and values as columns: their format, schema and framing, and what bad ones become.

Each of `value.format`, `value.schema`, `value.subject` and `value.framing` is there for keys too. What they accept is
checked here, with what fits together; a registry is asked for nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from spark_kbatch.stored_json import loads_commented

Format: TypeAlias = Literal["binary", "string", "avro", "json"]
Framing: TypeAlias = Literal["confluent", "header", "none"]
Mode: TypeAlias = Literal["FAILFAST", "PERMISSIVE"]
Strategy: TypeAlias = Literal["TopicNameStrategy", "RecordNameStrategy", "TopicRecordNameStrategy"]
Column: TypeAlias = Literal["key", "value", ""]

COLUMNS: tuple[Column, ...] = ("key", "value")
ANY_COLUMN: Column = ""  # of another origin: what is given for it has no prefix
PERMISSIVE: Mode = "PERMISSIVE"
LENIENT = ("zone", "digits")
_SCHEMA_ACCEPTS = "latest, id:7, version:3, file:order.avsc, or a schema as JSON"
_WRITTEN_ACCEPTS = f"{_SCHEMA_ACCEPTS}; columns that are written have types without a DDL"
_DDL_ACCEPTS = f"{_SCHEMA_ACCEPTS}; for json also a DDL, such as `id bigint, tags array<string>`"
_FRAMING_DEFAULT = "confluent for avro and json with a registry, else none"
_FORMATTED = "a format, avro or json: value.format or key.format"
# What a schema may be that no registry has, by format.
_OWN_SCHEMA = {
    "avro": "file:order.avsc, or JSON",
    "json": "file:order.json, or a JSON Schema",
}
_STRATEGIES: tuple[Strategy, ...] = (
    "TopicNameStrategy",
    "RecordNameStrategy",
    "TopicRecordNameStrategy",
)
# Arguments of `Cluster.read` and `Cluster.follow` besides these options, and other words for them.
READ_ARGUMENTS = tuple(
    "partitions start end last columns text isolation_level max_decompressed_batch_bytes registry "
    "where".split()
)
FOLLOW_ARGUMENTS = tuple(
    "partitions start columns text isolation_level max_decompressed_batch_bytes registry where "
    "group stop_at timeout stop".split()
)
# Words, what each is in a read, and in a loop; "" for nothing.
_MEANT = (
    (
        "offset offsets from_offset starting_offsets auto_offset_reset begin timestamp from_time "
        "since seek",
        "start: an offset, a datetime or 'earliest'",
        "start: an offset, a datetime, 'earliest' or 'latest'",
    ),
    (
        "end stop_at stop until to to_offset ending_offsets to_time",
        "end: an offset, a datetime or 'latest'",
        "stop_at: an offset, a datetime or 'latest'",
    ),
    (
        "limit max max_records max_messages count n head",
        "last, the last records of each partition, or where, such as where='offset < 5'",
        "a break in the loop, or stop_at: an offset",
    ),
    (
        "last tail",
        "last, the last records of each partition",
        "start, an offset or a datetime: last is not there",
    ),
    ("follow stream", "cluster.follow(...), a loop over new records", ""),
    (
        "group group_id consumer_group",
        "cluster.follow(...), a loop over new records, with a group",
        "group: a name",
    ),
    (
        "timeout timeout_ms consumer_timeout_ms",
        "cluster.follow(...), a loop over new records, with a timeout",
        "timeout, in seconds",
    ),
    ("schema format json", *["value_format with value_schema"] * 2),
    ("filter key keys", *["where, such as where=\"key = 'a'\""] * 2),
)
_OURS = {
    own: {word: row[place] for row in _MEANT for word in row[0].split()}
    for place, own in enumerate((READ_ARGUMENTS, FOLLOW_ARGUMENTS), 1)
}
_NEXT_FILE = re.compile(r"\s*,\s*(?=file:)", re.IGNORECASE)
_RECORD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*", re.ASCII)


class SchemaChoice(NamedTuple):
    """The source of the schema of values: a version of the subject, an id, a file, text, or a write's columns."""

    kind: Literal["latest", "version", "id", "file", "text", "ddl", "columns"] = "latest"
    number: int = 0  # the version or the id
    text: str = ""  # JSON, a DDL, or the file's absolute path
    beside: tuple[str, ...] = ()  # absolute paths of files with types that the file's schema uses

    @property
    def needs_subject(self) -> bool:
        """Whether the schema is a version of a subject."""
        return self.kind in ("latest", "version")

    @property
    def needs_registry(self) -> bool:
        """Whether the schema is one that a registry has."""
        return self.needs_subject or self.kind == "id"


LATEST_SCHEMA, SCHEMA_OF_COLUMNS = SchemaChoice(), SchemaChoice("columns")


def _schema(key: str, value: str) -> SchemaChoice:
    text = value.strip().removeprefix("\ufeff")
    if text.lower() == "latest":
        return LATEST_SCHEMA
    kind, colon, rest = text.partition(":")
    if colon and kind.lower() in ("id", "version") and rest.strip().isdecimal():
        number = int(rest)
        if not (kind.lower() == "version") <= number <= INT_MAX:
            kinds.refuse(key, value, _SCHEMA_ACCEPTS)
        return SchemaChoice("id" if kind.lower() == "id" else "version", number)
    if text.lower().startswith("file:"):
        # Of a URI the slashes are needed.
        names = [re.sub("^file:(?!/)", "", one, flags=re.I) for one in _NEXT_FILE.split(text)]
        *beside, path = (str(absolute_path(one, key)) for one in names)
        return SchemaChoice("file", text=path, beside=tuple(beside))
    if text.startswith(("{", "[", '"', "/*", "//")):
        try:
            loads_commented(text)
        except (ValueError, RecursionError) as error:
            kinds.refuse(key, value, f"{_SCHEMA_ACCEPTS}; this is no JSON: {error}")
        return SchemaChoice("text", text=text)
    return SchemaChoice("ddl", text=text)


def _strategy(key: str, value: str) -> Strategy:
    # Java's clients are given classes.
    return _STRATEGY_NAMES.parse(
        key, value.strip().removeprefix("io.confluent.kafka.serializers.subject.")
    )


def _record_name(key: str, value: str) -> str:
    if not _RECORD_NAME.fullmatch(value.strip()):
        kinds.refuse(key, value, "a name of Avro, such as com.shop.Order")
    return value.strip()


def _fields(key: str, value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    if not names or any(not all(name.split(".")) for name in names):
        kinds.refuse(key, value, "names of fields, such as order_id,customer.id")
    return names


def _lenient(key: str, value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip().lower() for name in value.split(",")))
    if not set(names) <= set(LENIENT):
        kinds.refuse(key, value, f"names, separated by commas: {', '.join(LENIENT)}")
    return names


_FORMAT: kinds.OptionKind[Format] = kinds.one_of(
    "binary", "string", "avro", "json", later=["protobuf"]
)
_SCHEMA = kinds.OptionKind(_schema, _DDL_ACCEPTS)
_WRITTEN_SCHEMA = kinds.OptionKind(_schema, _SCHEMA_ACCEPTS)
_SUBJECT = kinds.stripped("a name")
_FRAMING: kinds.OptionKind[Framing] = kinds.one_of("confluent", "header", "none")
# Of writes, and of functions, whose rows have no headers.
_FIXED_FRAMING: kinds.OptionKind[Framing] = kinds.one_of("confluent", "none", later=["header"])
_STRATEGY_NAMES: kinds.OptionKind[Strategy] = kinds.one_of(*_STRATEGIES)
_STRATEGY = kinds.OptionKind(_strategy, _STRATEGY_NAMES.accepts)


def key_of(column: Column, part: str) -> str:
    """Return the key of an option of a column, such as value.schema."""
    return f"{column}.{part}" if column else part


@dataclass(frozen=True)
class ColumnOptions:
    """The format and schema of a column's bytes."""

    column: Column
    format: Format = "binary"
    schema: SchemaChoice = LATEST_SCHEMA
    subject: str = ""  # empty where it is neither given nor follows from the topic
    framing: Framing = "none"
    # What a subject follows from, where it is not given.
    strategy: Strategy = "TopicNameStrategy"
    topic: str = ""  # empty where not exactly one is named
    record_name: str = ""  # that is given

    @property
    def schema_key(self) -> str:
        """The key of the option that names the schema."""
        return key_of(self.column, "schema")

    @property
    def has_schema_ids(self) -> bool:
        """Whether it is known of each value which schema wrote it, by an id."""
        return self.format == "avro" or self.framing != "none"

    @property
    def has_versions(self) -> bool:
        """Whether values name their schemas, which are versions of a subject that is known."""
        return self.framing != "none" and bool(self.subject)

    def path_of(self, path: str) -> str:
        """Return the path of a field with the column's name in front, if it has one."""
        return ".".join(filter(None, (self.column, path.removeprefix("."))))

    def subject_of(self, record_name: str) -> str:
        """Return the subject of a record, or that which is given; empty if it does not follow.

        Args:
            record_name: its full name; empty if it is not known.
        """
        parts = {
            "TopicNameStrategy": (self.topic, self.column),
            "RecordNameStrategy": (record_name,),
            "TopicRecordNameStrategy": (self.topic, record_name),
        }[self.strategy]
        return self.subject or ("-".join(parts) if all(parts) else "")


def _written_rows(column: Column, *, called: str) -> tuple[Option, ...]:
    # fmt: off
    return (
        Option(f"{column}.format", _FORMAT, "binary", f"What {called} become: bytes or text as they are, or Avro or JSON, of columns of any type that fits the schema; JSON needs none. See [Values as columns](values.md#write)."),
        Option(f"{column}.schema", _WRITTEN_SCHEMA, None, f"The schema that {called} are written with: " + ("the latest of the subject, which only a batch may name, " if column == "value" else "") + "an id, a version, a file on the driver, or the schema itself.", "latest; with auto.register.schemas, one that is made of the columns; json without a registry needs none" if column == "value" else "required for avro, and for json with a registry and framing confluent"),
        Option(f"{column}.subject", _SUBJECT, None, f"The subject that {called} have in the registry.", f"TOPIC-{column}, with the option `topic`"),
        Option(f"{column}.framing", _FIXED_FRAMING, None, f"Whether {called} get Confluent's five bytes in front, which name their schema, or none.", _FRAMING_DEFAULT),
        Option(f"{column}.subject.name.strategy", _STRATEGY, "TopicNameStrategy", f"What the subject of {called} follows from where it is not given: the topic, the name of the schema's record, or both, `TOPIC-RECORD`. The names are Confluent's; a Java class will do."),
        Option(f"{column}.record.name", kinds.OptionKind(_record_name, "a name, such as `com.shop.Order`"), None, f"The name of the record that {called} are: of a schema that is made of columns, and for the subject of one that is looked up." if column == "value" else f"The name of the record that {called} are, for the subject of a schema that is looked up.", "made of the subject" if column == "value" else "the schema's"),
    )
    # fmt: on


def _rows(column: Column, *, called: str) -> tuple[Option, ...]:
    # fmt: off
    return (
        Option(key_of(column, "format"), _FORMAT, "binary", f"What {called} are: bytes as they are, text in UTF-8, Avro, or JSON. See [Values as columns](values.md)."),
        Option(key_of(column, "schema"), _SCHEMA, None, f"The schema that {called} are read as: the latest of the subject, an id, a version, a file on the driver, or the schema itself.", "latest, of a registry"),
        Option(key_of(column, "subject"), _SUBJECT, None, f"The subject that {called} have in the registry.", f"TOPIC-{column}, if one topic is named"),
        Option(key_of(column, "framing"), _FRAMING if column else _FIXED_FRAMING, None, f"What names the schema that wrote each of the {called}: Confluent's five bytes in front, a [header of the record](values.md#ids-in-headers), or nothing.", _FRAMING_DEFAULT),
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
    include_schema_id: bool = option("includeSchemaId", kinds.BOOLEAN, False, "Whether to add the id of the schema that wrote each value, as the column `value_schema_id`, and `key_schema_id`. JSON has ids in Confluent's framing and in headers alone.")
    include_bytes: bool = option("includeBytes", kinds.BOOLEAN, False, "Whether to add the bytes that were decoded, as the column `value_bytes`, and `key_bytes`.")
    lenient: tuple[str, ...] = option("json.lenient", kinds.OptionKind(_lenient, "names, separated by commas: `zone`, `digits`"), (), "What is no error in JSON: a [time without a zone, digits that are lost](values.md#json).", "none of them")
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
    auto_register: bool = option("auto.register.schemas", kinds.BOOLEAN, False, "Whether to register a schema that is a file, JSON, or made of the columns, where the subject does not have it; otherwise that is an error.")
    # fmt: on
    registry: RegistryOptions | None = None

    @property
    def encoded(self) -> tuple[ColumnOptions, ...]:
        """The columns that a write encodes."""
        return tuple(one for one in (self.key, self.value) if one.format in _OWN_SCHEMA)


NO_WRITTEN_OPTIONS = WrittenValueOptions()
WRITTEN_VALUE_OPTIONS = table_of(WrittenValueOptions)
NO_VALUE_OPTIONS = ValueOptions()
VALUE_OPTIONS = table_of(ValueOptions)
_LISTS = {"fields": "names of fields", "lenient": f"names: {', '.join(LENIENT)}"}
_ARGUMENTS = (
    *_rows(ANY_COLUMN, called="values"),
    *(
        replace(row, key=row.key.removeprefix("value."))
        for row in VALUE_OPTIONS
        if row.key in ("value.fields", "mode")
    ),
)  # of functions over any column


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
        lenient=given.get("json.lenient"),
        registry=registry,
    )
    formats = {one.format for one in found.typed}
    for key in ("mode", "includeBytes"):
        if key in given and not found.typed:
            raise _lonely(key, "a column with a format: value.format or key.format")
    if "includeSchemaId" in given and not any(one.has_schema_ids for one in found.typed):
        raise _lonely(
            "includeSchemaId",
            "a format whose values name schemas: avro, or json with framing confluent or header",
        )
    if registry is not None and formats.isdisjoint(_OWN_SCHEMA):
        raise _lonely(URL, _FORMATTED)
    if found.fields and found.value.format not in _OWN_SCHEMA:
        raise _lonely("value.fields", "value.format=avro or json")
    if found.lenient and "json" not in formats:
        raise _lonely("json.lenient", "value.format=json or key.format=json")
    return found


def parse_written_value_options(
    given: Given, options: Mapping[str, Any], topics: Sequence[str]
) -> WrittenValueOptions:
    """Parse and check the options of columns that a write encodes; arguments and errors as of `parse_value_options`."""
    registry = parse_registry_options(options)
    auto_register = given.get("auto.register.schemas")
    columns = {
        column: _column(column, given, registry, topics, auto_register=auto_register)
        for column in COLUMNS
    }
    found = WrittenValueOptions(**columns, auto_register=auto_register, registry=registry)
    if registry is not None and not found.encoded:
        raise _lonely(URL, _FORMATTED)
    if found.auto_register and registry is None:
        raise _lonely("auto.register.schemas", f"a registry in {URL!r}")
    if found.key in found.encoded and found.key.schema.kind == "latest":
        raise ConfigError(
            "option 'key.schema' is 'latest', or not given: a key's bytes name its schema and decide its partition, so "
            "that a new version would move every key to another one; accepted: id:7, version:3, file:key.avsc, or a "
            "schema; of JSON also key.framing=none, which needs no schema"
        )
    for column in found.encoded:
        is_ours = column.schema.kind in ("file", "text", "columns")
        # A file's record is not known yet.
        record = column.record_name or ("" if column.schema.kind == "columns" else "its")
        if is_ours and column.framing == "confluent" and not column.subject_of(record):
            raise _no_subject(column, record)
    return found


def _no_subject(column: ColumnOptions, record: str) -> ConfigError:
    """Return the error of a schema whose subject does not follow; the record's name is empty if it is not known."""
    name = column.column
    if column.strategy == "TopicNameStrategy":
        return ConfigError(
            f"option '{name}.subject' is not given: the registry has the schema's id under it; or give "
            f"'{name}.schema' as id:7"
        )
    needs = (
        [] if column.topic or column.strategy == "RecordNameStrategy" else ["the topic in 'topic'"]
    )
    needs += [] if record else [f"the record's name in '{name}.record.name'"]
    return ConfigError(
        f"option '{name}.subject.name.strategy' is {column.strategy!r}, and the subject does not follow from what is "
        f"given: give {' and '.join(needs)}; or '{name}.subject'"
    )


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
                "file:order.avsc, or JSON; or set auto.register.schemas to true, for a schema that is made of the columns"
            )


def _lonely(key: str, needs: str) -> ConfigError:
    return ConfigError(f"option {key!r} goes with {needs}, which is not given")


def _column(
    column: Column,
    given: Given,
    registry: RegistryOptions | None,
    topics: Sequence[str],
    *,
    auto_register: bool | None = None,
) -> ColumnOptions:
    """Parse the options of a column: of a read where `auto_register` is None, else of a write."""
    is_written = auto_register is not None
    kind: Format = given.get(key_of(column, "format"))
    schema_key, subject_key = key_of(column, "schema"), key_of(column, "subject")
    strategy_key, name_key = f"{column}.subject.name.strategy", f"{column}.record.name"
    framing: Framing | None = given.get(key_of(column, "framing"))
    if kind not in _OWN_SCHEMA:
        for key in (schema_key, subject_key, strategy_key, name_key):
            if key in given:
                raise _lonely(key, f"{column}.format=avro or json")
        if framing in ("confluent", "header"):
            raise ConfigError(
                f"option '{column}.framing' is {framing!r}, which goes with {column}.format=avro or json alone"
            )
        return ColumnOptions(column, kind)
    schema: SchemaChoice = given.get(schema_key) or LATEST_SCHEMA
    if schema.kind == "ddl" and (kind != "json" or is_written):
        kinds.refuse(
            schema_key, schema.text, _WRITTEN_ACCEPTS if kind == "json" else _SCHEMA_ACCEPTS
        )
    if framing is None:
        framing = "none" if registry is None else "confluent"
    # JSON without an id in front says itself what it is.
    is_plain = is_written and kind == "json" and framing == "none"
    is_made = is_plain or (auto_register and column == "value")
    if is_made and schema_key not in given:
        schema = SCHEMA_OF_COLUMNS
    found = ColumnOptions(
        column,
        kind,
        schema,
        given.get(subject_key) or "",
        framing,
        given.get(strategy_key) if strategy_key in given else "TopicNameStrategy",
        topics[0] if len(topics) == 1 else "",
        given.get(name_key) if name_key in given else "",
    )
    if registry is None:
        is_known = schema_key in given or is_plain
        _ensure_needs_no_registry(found, is_given=is_known, is_written=is_written)
        if strategy_key in given:
            raise _lonely(strategy_key, f"a registry in {URL!r}")
        return found
    if found.subject and strategy_key in given:
        raise ConfigError(
            f"options {subject_key!r} and {strategy_key!r} are given; accepted: one of them"
        )
    is_named = schema.kind == "columns" or (
        schema.needs_subject and found.strategy != "TopicNameStrategy"
    )
    if found.record_name and not is_named:
        raise _lonely(
            name_key, f"a schema that is made of columns, or is looked up by {strategy_key}"
        )
    found = replace(found, subject=found.subject_of(found.record_name))
    if schema.needs_subject and not found.subject:
        if found.strategy != "TopicNameStrategy":
            raise _no_subject(found, found.record_name)
        why = ", and several topics are named" if topics else ", and no topic is named by an option"
        raise ConfigError(
            f"option {subject_key!r} is not given{why if column else ''}: give it, or name the schema in "
            f"{schema_key!r}: id:7, {_own_schema(kind, is_written=is_written)}"
        )
    return found


def _own_schema(kind: Format, *, is_written: bool) -> str:
    """Return what to name as a schema in an error."""
    return ("id bigint, " if kind == "json" and not is_written else "") + _OWN_SCHEMA[kind]


def _ensure_needs_no_registry(column: ColumnOptions, *, is_given: bool, is_written: bool) -> None:
    url, schema_key = URL if column.column else "registry", column.schema_key
    called, own = column.column or "value", _own_schema(column.format, is_written=is_written)
    if column.framing != "none" and (column.format == "avro" or is_written):
        raise ConfigError(
            f"option {key_of(column.column, 'framing')!r} is {column.framing!r}, where each {called} names its schema "
            f"by an id: give the registry that knows it, in {url!r}; a folder will do"
        )
    if not is_given:
        is_of = f"option '{called}.format' is {column.format!r}, and " if column.column else ""
        framed = f"for {called}s without framing, " if column.format == "avro" else ""
        raise ConfigError(
            f"{is_of}no schema is known: give the registry in {url!r}, which may be a folder; or, {framed}"
            f"{schema_key!r}: {own}"
        )
    if column.schema.needs_registry:
        raise ConfigError(
            f"option {schema_key!r} names a schema of a registry: give that in {url!r}; or a schema of its own, {own}"
        )


def parse_value_keywords(
    registry: Any,
    keywords: Mapping[str, Any],
    topics: Sequence[str],
    *,
    has_headers: bool = True,
    own: tuple[str, ...] = (),
) -> ValueOptions:
    """Parse the arguments of a read in Python: `value_format="avro", registry="http://localhost:8081"`.

    Args:
        registry: a URL, a folder, or a mapping of options with or without the prefix `schema.registry.`.
        keywords: the options with underscores.
        topics: as for `parse_value_options`.
        has_headers: whether values are of records, which may have headers.
        own: the other arguments of the read, for the error about an unknown one.

    Raises:
        ConfigError: as `parse_value_options`.
        TypeError: an argument is unknown.
    """
    options = _as_options(registry, keywords, VALUE_OPTIONS, own)
    if not has_headers and options.get("value.framing", "").strip().lower() == "header":
        raise ConfigError(
            "value_framing is 'header', which goes with records of topics alone: an array has no headers; "
            "accepted: confluent, none"
        )
    return parse_value_options(Given(without_registry(options), VALUE_OPTIONS), options, topics)


def parse_written_value_keywords(registry: Any, keywords: Mapping[str, Any]) -> WrittenValueOptions:
    """Parse the arguments of `spark_kbatch.encode_values`; errors as of `parse_value_keywords`."""
    options = _as_options(registry, keywords, WRITTEN_VALUE_OPTIONS)
    given = Given(without_registry(options), WRITTEN_VALUE_OPTIONS)
    return parse_written_value_options(given, options, [])


def _as_options(
    registry: Any, keywords: Mapping[str, Any], table: Sequence[Option], own: tuple[str, ...] = ()
) -> dict[str, str]:
    rows = {re.sub(r"\.|(?=[A-Z])", "_", row.key).lower(): row for row in table}
    options: dict[str, str] = {}
    for name, value in keywords.items():
        if name not in rows:
            known = [*own, *rows]
            near = nearest(name, known)
            hint = f"did you mean {near!r}?" if near else f"options are: {', '.join(known)}"
            if own and _OURS[own].get(name):
                hint = f"here it is {_OURS[own][name]}"
            raise TypeError(f"unexpected keyword argument {name!r}; {hint}")
        options[rows[name].key] = _as_text(name, value, rows[name])
    return options | registry_keys(registry)


def parse_function_arguments(registry: Any, given: Mapping[str, Any]) -> ValueOptions:
    """Parse the arguments of a function that decodes or encodes a column of Avro, of any origin.

    Args:
        registry: as for `parse_value_keywords`.
        given: schema, subject, framing, fields and mode, by these names; None is left out.

    Returns:
        The options of ANY_COLUMN, as those of the value.

    Raises:
        ConfigError: as `parse_value_options`.
    """
    rows = {row.key: row for row in _ARGUMENTS}
    texts = {
        name: _as_text(name, value, rows[name])
        for name, value in given.items()
        if value is not None
    }
    parsed = Given({"format": "avro", **texts}, _ARGUMENTS)
    its_registry = parse_registry_options(registry_keys(registry))
    return ValueOptions(
        value=_column(ANY_COLUMN, parsed, its_registry, []),
        fields=parsed.get("fields"),
        mode=parsed.get("mode"),
        registry=its_registry,
    )


def _as_text(name: str, value: Any, row: Option) -> Any:
    """Return an argument as an option has it; raises ConfigError if that is not accepted."""
    part = row.key.rpartition(".")[2]
    if part in _LISTS and not isinstance(value, str):
        value = ",".join(arguments.names(name, value, _LISTS[part]))
    elif part == "schema" and isinstance(value, Mapping | list):
        value = json.dumps(value)
    row.parse(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


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
