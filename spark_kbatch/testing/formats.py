"""Keys and values of Avro in tests: Python objects that a topic gets, and those that its records have.

A record of Avro is a dict, an array a list, a map a dict; times are datetimes and dates, decimals are Decimals. Going
in, times and decimals may be text, as `kbatch consume` shows them, and fields with a default may be left out. Each
row is encoded with the columns that it has, so that what is missing takes its default and what is too much is refused.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

import spark_kbatch
from spark_kbatch.errors import ConfigError, InvalidValueError, SchemaError
from spark_kbatch.options import arguments
from spark_kbatch.options.option import nearest
from spark_kbatch.options.values import ColumnOptions, ValueOptions, parse_value_keywords
from spark_kbatch.record.columns import bytes_array

_NO_BYTES = pa.nulls(0, pa.binary())


@dataclass(frozen=True)
class Formats:
    """The formats of one topic's keys and values, besides text, bytes and JSON."""

    registry: Any = None
    keywords: Mapping[str, Any] = field(default_factory=dict)
    options: ValueOptions = field(default_factory=ValueOptions)

    def has(self, column: str) -> bool:
        """Return True if the keys, or the values, are Avro."""
        return column in ("key", "value") and self._column(column).format == "avro"

    def encoded(self, column: str, rows: Sequence[tuple[str, Any]]) -> pa.Array:
        """Return keys or values as bytes.

        Args:
            column: which of them.
            rows: each with words that say where it stands; None is null.

        Raises:
            ConfigError: one is not of its schema.
            SchemaRegistryError: the registry does not have it.
        """
        kind = spark_kbatch.decode_values(_NO_BYTES, **self._arguments(column)).values.type
        values: list[bytes | None] = [None] * len(rows)
        by_kind: dict[str, list[int]] = {}
        kinds: dict[str, pa.DataType] = {}
        for row, (where, value) in enumerate(rows):
            if value is not None:
                own = _present(kind, [value], f"{column} of {where}")
                kinds[str(own)] = own
                by_kind.setdefault(str(own), []).append(row)
        for name, numbers in by_kind.items():
            own = kinds[name]
            arrays = [_array(rows[row][1], own, f"{column} of {rows[row][0]}") for row in numbers]
            try:
                found = self.encoded_column(column, pa.concat_arrays(arrays)).to_pylist()
            except (InvalidValueError, SchemaError) as error:
                row = error.row if isinstance(error, InvalidValueError) else 0
                at = f"{error.path}: " if error.path else ""
                raise ConfigError(
                    f"{column} of {rows[numbers[row]][0]} is not of its schema: {at}{error.reason}"
                ) from None
            for row, data in zip(numbers, found, strict=True):
                values[row] = data
        return bytes_array(values, pa.binary())

    def encoded_column(self, column: str, array: pa.Array | pa.ChunkedArray) -> Any:
        """Return keys or values in columns as bytes; raises as `spark_kbatch.encode_values`."""
        registry = self.options.registry
        # In a folder that is a test's own, and not where others would find it.
        is_folder = registry is not None and bool(registry.url.folder)
        return spark_kbatch.encode_values(
            array,
            # Without a schema, one would be made of the columns.
            auto_register=is_folder and f"{column}_schema" in self.keywords,
            **self._arguments(column),
        )

    def decoded(self, table: pa.Table) -> list[dict[str, Any]]:
        """Return rows that were read with these formats, with maps as dicts, of JSON too."""
        rows: list[dict[str, Any]] = table.to_pylist()
        for column in (one.column for one in self.options.typed):
            kind = table.schema.field(column).type
            for row in rows:
                row[column] = _with_dicts(kind, row[column])
        return rows

    @property
    def of_read(self) -> dict[str, Any]:
        """The arguments of a read."""
        return {**self.keywords, "registry": self.registry}

    def _column(self, column: str) -> ColumnOptions:
        return self.options.key if column == "key" else self.options.value

    def _arguments(self, column: str) -> dict[str, Any]:
        """Return the arguments for an array of keys or values."""
        options = self._column(column)
        found = {
            "registry": self.registry,
            "value_schema": self.keywords.get(f"{column}_schema"),
            "value_subject": options.subject,
            "value_framing": options.framing,
        }
        return {name: value for name, value in found.items() if value}


NO_FORMATS = Formats()


def formats_of(
    topic: str, registry: Any, keywords: Mapping[str, Any], default: Callable[[], str]
) -> Formats:
    """Return the formats of a topic's keys and values.

    Args:
        topic: from which subjects follow.
        registry, keywords: as for `spark_kbatch.Cluster.read`.
        default: the registry of the test.

    Raises:
        ConfigError: an argument is not accepted.
    """
    if not keywords and registry is None:
        return NO_FORMATS
    has_avro = "avro" in (keywords.get("key_format"), keywords.get("value_format"))
    if registry is None and has_avro:
        registry = default()
    return Formats(registry, keywords, parse_value_keywords(registry, keywords, [topic]))


def _present(kind: pa.DataType, values: Iterable[Any], where: str) -> pa.DataType:
    """Return a type with those fields alone that values have."""
    found = [one for one in values if one is not None]
    if not found:
        return kind
    if pa.types.is_struct(kind):
        fields: dict[str, None] = {}
        for one in found:
            if not isinstance(one, Mapping):
                _refuse(where, one, "a dict, as the schema has a record")
            fields |= dict.fromkeys(one)
        known = [one.name for one in kind]
        for name in fields:
            if name not in known:
                near = nearest(str(name), known)
                hint = f"did you mean {near!r}?" if near else f"it has: {', '.join(known)}"
                raise ConfigError(f"{where} has a field {name!r}, which the schema has not; {hint}")
        return pa.struct(
            [
                (
                    one.name,
                    _present(one.type, [v.get(one.name) for v in found], f"{where}, {one.name}"),
                )
                for one in kind
                if one.name in fields
            ]
        )
    if pa.types.is_map(kind):
        for one in found:
            if not isinstance(one, Mapping):
                _refuse(where, one, "a dict, as the schema has a map")
        items = [item for one in found for item in one.values()]
        return pa.map_(pa.string(), _present(kind.item_type, items, where))
    if pa.types.is_list(kind):
        for one in found:
            if not isinstance(one, list | tuple):
                _refuse(where, one, "a list, as the schema has an array")
        items = [item for one in found for item in one]
        return pa.list_(_present(kind.value_type, items, where))
    return kind


def _array(value: Any, kind: pa.DataType, where: str) -> pa.Array:
    try:
        return pa.array([_prepared(value, kind, where)], kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise ConfigError(f"{where} is not of its schema: {error}") from None


def _prepared(value: Any, kind: pa.DataType, where: str) -> Any:
    """Return a value as Arrow takes it, without a loss."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {
            one.name: _prepared(value.get(one.name), one.type, f"{where}, {one.name}")
            for one in kind
        }
    if pa.types.is_map(kind):
        return [(key, _prepared(item, kind.item_type, where)) for key, item in value.items()]
    if pa.types.is_list(kind):
        return [_prepared(item, kind.value_type, where) for item in value]
    if pa.types.is_integer(kind) and (isinstance(value, bool) or not isinstance(value, int)):
        _refuse(where, value, "a whole number")
    try:
        if isinstance(value, str) and pa.types.is_timestamp(kind):
            return datetime.datetime.fromisoformat(value)
        if isinstance(value, str) and pa.types.is_date(kind):
            return datetime.date.fromisoformat(value)
        if isinstance(value, str | float) and pa.types.is_decimal(kind):
            return Decimal(str(value))
    except (ValueError, InvalidOperation):
        _refuse(where, value, f"a {kind}")
    return value


def _refuse(where: str, value: Any, accepted: str) -> Any:
    raise ConfigError(f"{where} is {arguments.shown(value)}; accepted: {accepted}") from None


def _with_dicts(kind: pa.DataType, value: Any) -> Any:
    """Return a value that Arrow gave, with a dict for each list of pairs that stands for a map."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {one.name: _with_dicts(one.type, value[one.name]) for one in kind}
    if pa.types.is_map(kind):
        return {key: _with_dicts(kind.item_type, item) for key, item in value}
    if pa.types.is_list(kind):
        return [_with_dicts(kind.value_type, item) for item in value]
    return value
