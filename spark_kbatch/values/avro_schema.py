"""Avro schemas: JSON text in, a graph of named and unnamed types out.

    PrimitiveSchema   null, boolean, int, long, float, double, bytes, string
    FixedSchema       a number of bytes, named
    EnumSchema        one of some symbols, named
    RecordSchema      fields in order, named; the only type that can contain itself
    ArraySchema       items of one type
    MapSchema         values of one type, with strings as keys
    UnionSchema       one of some types

Names are taken as registries have them: with a dash, a dollar or a digit in front too, which some
parsers allow. Comments are left out, as by the parser for Java. A reference to a name is the type
itself, so a recursive record is a circle of objects, and types are compared by identity. A logical type that its type cannot have is dropped, as the specification asks.
Default values stay JSON: a bad one harms only a reader that needs it.

How many bytes a value of a type takes, always or at least, is told by `fixed_size` and `least_size`.

A path in an error names a field as a person would: `Order.customer.names[]`, where `[]` stands for the
items of an array, `{}` for the values of a map and `|2` for a branch of a union.

Source: the Avro specification 1.12, "Schema Declaration", "Names", "Logical Types".
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from spark_kbatch.errors import SchemaError
from spark_kbatch.stored_json import loads_commented

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAMED = frozenset({"record", "error", "enum", "fixed"})
_NAME = re.compile(r"[\w$-]+")  # letters of any language, as in Java
_NAME_HAS = "a name has letters, digits, _, - and $"
_BRANCHES_SHOWN, _PATH_MAX = 5, 1000
NESTING_MAX = 100  # Python's own stack ends at a thousand calls, of which each type takes a few
# No value is as large, so a larger type need not be told from one of this size.
_SIZE_MOST = 2**31
_FIXED_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}


class _Missing(Enum):
    """A marker for a field without a default; None is a default of its own."""

    DEFAULT = "no default"


NO_DEFAULT: Any = _Missing.DEFAULT


class LogicalType(NamedTuple):
    """A meaning of values beyond their type; precision and scale are a decimal's."""

    name: str
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, eq=False)
class PrimitiveSchema:
    """One of the eight types that need no further description."""

    type: str
    logical: LogicalType | None = None


@dataclass(frozen=True, eq=False)
class FixedSchema:
    """A number of bytes that is the same in each value."""

    name: str
    size: int
    aliases: tuple[str, ...] = ()
    logical: LogicalType | None = None


@dataclass(frozen=True, eq=False)
class EnumSchema:
    """One of some symbols; a reader takes `default`, if there is one, for a symbol it does not have."""

    name: str
    symbols: tuple[str, ...]
    default: str | None = None
    aliases: tuple[str, ...] = ()

    @functools.cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each symbol."""
        return {symbol: number for number, symbol in enumerate(self.symbols)}


@dataclass(frozen=True, eq=False)
class ArraySchema:
    """Any number of items."""

    items: Schema


@dataclass(frozen=True, eq=False)
class MapSchema:
    """Any number of values, each with a string as its key."""

    values: Schema


@dataclass(frozen=True, eq=False)
class UnionSchema:
    """One of some types, of which none is a union."""

    branches: tuple[Schema, ...]


@dataclass(frozen=True, eq=False)
class RecordField:
    """A field of a record; `default` is JSON, or NO_DEFAULT."""

    name: str
    type: Schema
    default: Any = NO_DEFAULT
    aliases: tuple[str, ...] = ()
    column: str = ""  # the name of its column, if that is another one


@dataclass(eq=False)
class RecordSchema:
    """Fields in the order in which they are written. They are set once, after the record has its name."""

    name: str
    aliases: tuple[str, ...] = ()
    fields: tuple[RecordField, ...] = field(default=(), repr=False)  # may contain the record itself
    whole: tuple[RecordField, ...] = field(default=(), repr=False)  # of which `fields` are a part


Schema = (
    PrimitiveSchema
    | FixedSchema
    | EnumSchema
    | RecordSchema
    | ArraySchema
    | MapSchema
    | UnionSchema
)
NamedSchema = FixedSchema | EnumSchema | RecordSchema


def short_name(full_name: str) -> str:
    """Return a name without its namespace."""
    return full_name.rpartition(".")[2]


def below(path: str, name: str) -> str:
    """Return the path of a field; a long one without its middle, as there are thousands of them."""
    found = f"{path}.{name}" if path else name
    half = _PATH_MAX // 2
    return found if len(found) <= _PATH_MAX else f"{found[:half]}...{found[-half:]}"


def is_plain_bytes(schema: Schema) -> bool:
    """Return True for bytes that are no decimal."""
    return (
        isinstance(schema, PrimitiveSchema)
        and schema.type == "bytes"
        and (schema.logical is None or schema.logical.name != "decimal")
    )


def described(schema: Schema) -> str:
    """Return a schema in a few words, for errors: `record Order`, `array`, `long (timestamp-millis)`."""
    match schema:
        case RecordSchema():
            return f"record {schema.name}"
        case EnumSchema():
            return f"enum {schema.name}"
        case FixedSchema():
            return f"fixed {schema.name} of {schema.size} bytes{_of_logical(schema.logical)}"
        case ArraySchema():
            return "array"
        case MapSchema():
            return "map"
        case UnionSchema(branches):
            shown = ", ".join(map(described, branches[:_BRANCHES_SHOWN]))
            more = len(branches) - _BRANCHES_SHOWN
            return f"union of {shown}{f' and {more} more' if more > 0 else ''}"
        case _:
            return f"{schema.type}{_of_logical(schema.logical)}"


def _of_logical(logical: LogicalType | None) -> str:
    if logical is None:
        return ""
    digits = f"({logical.precision}, {logical.scale})" if logical.name == "decimal" else ""
    return f" ({logical.name}{digits})"


def fixed_size(schema: Schema) -> int | None:
    """Return the bytes that each value of a type takes, None if that depends on the value."""
    size, is_fixed = _size(schema, {}, 0)
    return size if is_fixed else None


def least_size(schema: Schema) -> int:
    """Return a number of bytes that each value of a type takes at least."""
    return _size(schema, {}, 0)[0]


def _size(
    schema: Schema, known: dict[RecordSchema, tuple[int, bool]], depth: int
) -> tuple[int, bool]:
    """Return the least size of a type's values, and whether all have it."""
    match schema:
        case PrimitiveSchema():
            return _FIXED_SIZES.get(schema.type, 1), schema.type in _FIXED_SIZES
        case FixedSchema():
            return schema.size, True
        case UnionSchema():
            least = (_size(one, known, depth)[0] for one in schema.branches)
            return 1 + min(least, default=0), False
        case RecordSchema() if depth < NESTING_MAX:
            if schema not in known:
                known[schema] = 0, False  # for a record that lies in itself; no value is as small
                sizes = [_size(one.type, known, depth + 1) for one in schema.fields]
                least_of_all = min(sum(size for size, _ in sizes), _SIZE_MOST)
                known[schema] = least_of_all, all(is_fixed for _, is_fixed in sizes)
            return known[schema]
        case RecordSchema():
            return 0, False
        case _:
            return 1, False


def parse(text: str, references: Iterable[str] = ()) -> Schema:
    """Parse an Avro schema.

    Args:
        text: JSON, with comments or without; the bare name of a primitive type is accepted too.
        references: texts of schemas whose named types this one, or each other, refers to; in any order.

    Raises:
        SchemaError: it is not JSON, or no schema; names the path.
    """
    given = [_loaded(one, "a referenced schema") for one in references]
    parser = _Parser({name: one for one in given for name in _top_names(one)})
    parser.define_all()
    return parser.schema(_loaded(text, "the schema"), "", "", 0)


def _loaded(text: str, what: str) -> Any:
    if text.strip() in PRIMITIVES:
        return text.strip()
    try:
        return loads_commented(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError("", f"{what} is not JSON: {error}") from error


def _top_names(tree: Any) -> Iterator[str]:
    """Yield the full names that a whole schema, or a union of such, defines at its top."""
    for one in tree if isinstance(tree, list) else [tree]:
        if isinstance(one, dict) and isinstance(one.get("name"), str):
            yield _full_name(one["name"], one.get("namespace") or "")


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


class _Parser:
    """One call of `parse`: the types that have names so far."""

    def __init__(self, beside: Mapping[str, Any]) -> None:
        self._beside = dict(beside)  # JSON of the references that are not parsed yet, by full name
        self._named: dict[str, NamedSchema] = {}

    def define_all(self) -> None:
        """Parse the references, in their order as far as they do not need later ones."""
        for name in list(self._beside):
            self._define(name, 0)

    def _define(self, name: str, depth: int) -> None:
        tree = self._beside.pop(name, None)
        if tree is not None and name not in self._named:
            self.schema(tree, "", name, depth)

    def schema(self, tree: Any, namespace: str, path: str, depth: int) -> Schema:
        """Parse a schema at `path`, in the namespace of what it lies in."""
        if depth > NESTING_MAX:
            raise SchemaError(path, f"types are nested deeper than {NESTING_MAX}")
        match tree:
            case str():
                return self._by_name(tree, namespace, path, depth)
            case list():
                return self._union(tree, namespace, path, depth)
            case {"type": str() as kind}:
                return self._typed(kind, tree, namespace, path, depth)
            case {"type": dict() | list() as inner}:
                return self.schema(inner, namespace, path, depth + 1)
        raise SchemaError(path, f"a schema is a name, a list or an object with a type, not {_shown(tree)}")  # fmt: skip

    def _by_name(self, name: str, namespace: str, path: str, depth: int) -> Schema:
        if name in PRIMITIVES:
            return PrimitiveSchema(name)
        for full_name in (_full_name(name, namespace), name):
            self._define(full_name, depth + 1)
            if full_name in self._named:
                return self._named[full_name]
        known = ", ".join(sorted({*self._named, *self._beside})) or "none"
        raise SchemaError(
            path,
            f"type {_full_name(name, namespace)!r} is not defined; the named types are: {known}; a schema "
            "that lies in another subject has to be given as a reference",
        )

    def _typed(self, kind: str, tree: Any, namespace: str, path: str, depth: int) -> Schema:
        if kind in PRIMITIVES:
            return PrimitiveSchema(kind, _logical(kind, tree))
        if kind in _NAMED:
            return self._definition(kind, tree, namespace, path, depth)
        if kind == "array":
            items = _required(tree, "items", path)
            return ArraySchema(self.schema(items, namespace, f"{path}[]", depth + 1))
        if kind == "map":
            values = _required(tree, "values", path)
            return MapSchema(self.schema(values, namespace, f"{path}{{}}", depth + 1))
        return self._by_name(kind, namespace, path, depth)

    def _union(self, tree: list[Any], namespace: str, path: str, depth: int) -> Schema:
        branches = tuple(
            self.schema(one, namespace, f"{path}|{index}", depth + 1)
            for index, one in enumerate(tree)
        )
        kinds: set[str] = set()
        for index, kind in enumerate(map(_kind, branches)):
            if kind == "union":
                raise SchemaError(f"{path}|{index}", "a union lies directly in a union")
            if kind in kinds:
                raise SchemaError(f"{path}|{index}", f"the union has {kind} twice")
            kinds.add(kind)
        return UnionSchema(branches)

    def _definition(
        self, kind: str, tree: Any, namespace: str, path: str, depth: int
    ) -> NamedSchema:
        name, inner = _names(tree, namespace, path)
        path = path or short_name(name)
        aliases = tuple(_full_name(one, inner) for one in _texts(tree, "aliases", path))
        if name in self._named:
            raise SchemaError(path, f"type {name!r} is defined twice")
        if kind == "fixed":
            size = _required(tree, "size", path)
            if not _is_count(size):
                raise SchemaError(path, f"the size of fixed {name} is {_shown(size)}")
            made: NamedSchema = FixedSchema(name, size, aliases, _logical("fixed", tree))
            self._named[name] = made
        elif kind == "enum":
            made = self._named[name] = EnumSchema(name, *_symbols(tree, name, path), aliases)
        else:
            # The record is known before its fields, which may contain it.
            made = record = self._named[name] = RecordSchema(name, aliases)
            record.fields = tuple(self._fields(tree, inner, path, depth))
        return made

    def _fields(self, tree: Any, namespace: str, path: str, depth: int) -> Iterator[RecordField]:
        fields, seen = _required(tree, "fields", path), set()
        if not isinstance(fields, list):
            raise SchemaError(path, f"the fields of a record are a list, not {_shown(fields)}")
        for index, one in enumerate(fields):
            if not isinstance(one, dict):
                raise SchemaError(f"{path}.{index}", f"a field is an object, not {_shown(one)}")
            name = one.get("name")
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise SchemaError(
                    f"{path}.{index}", f"a field's name is {_shown(name)}; {_NAME_HAS}"
                )
            at = f"{path}.{name}"
            if name in seen:
                raise SchemaError(at, "the record has two fields of this name")
            seen.add(name)
            yield RecordField(
                name,
                self.schema(_required(one, "type", at), namespace, at, depth + 1),
                one.get("default", NO_DEFAULT),
                tuple(_texts(one, "aliases", at)),
            )


def _names(tree: Any, namespace: str, path: str) -> tuple[str, str]:
    """Return a definition's full name, and the namespace of the types in it."""
    name, given = tree.get("name"), tree.get("namespace")
    if not isinstance(name, str):
        raise SchemaError(path, f"a {tree['type']} needs a name, not {_shown(name)}")
    if given is not None and not isinstance(given, str):
        raise SchemaError(path, f"a namespace is a text, not {_shown(given)}")
    full_name = _full_name(name, namespace if given is None else given)
    if not _NAME.fullmatch(short_name(full_name)):  # a namespace may be any text, as in Java
        raise SchemaError(path, f"{name!r} is not a name; {_NAME_HAS}, and dots")
    if full_name in PRIMITIVES:
        raise SchemaError(path, f"{full_name!r} is the name of a primitive type")
    return full_name, full_name.rpartition(".")[0]


def is_utf8(value: str) -> bool:
    """Return False for half of a surrogate pair, which JSON can have."""
    return not any(0xD800 <= ord(one) < 0xE000 for one in value)


def _symbols(tree: Any, name: str, path: str) -> tuple[tuple[str, ...], str | None]:
    """Return an enum's symbols, and its default or None."""
    _required(tree, "symbols", path)
    symbols, default = tuple(_texts(tree, "symbols", path)), tree.get("default")
    for one in symbols:
        if not is_utf8(one):
            raise SchemaError(
                path, f"enum {name} has the symbol {one!r}, which is no text in UTF-8"
            )
    if len(set(symbols)) < len(symbols):
        twice = Counter(symbols).most_common(1)[0][0]
        raise SchemaError(path, f"enum {name} has the symbol {twice!r} twice")
    if default is not None and default not in symbols:
        raise SchemaError(path, f"the default of enum {name}, {_shown(default)}, is none of its symbols")  # fmt: skip
    return symbols, default


def _texts(tree: Any, key: str, path: str) -> list[str]:
    found = tree.get(key, [])
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise SchemaError(path, f"{key} is a list of names, not {_shown(found)}")
    return found


def _required(tree: Any, key: str, path: str) -> Any:
    if key not in tree:
        raise SchemaError(path, f"{key!r} is missing")
    return tree[key]


def _kind(schema: Schema) -> str:
    """Return what a union may have only once: a type, or a name."""
    match schema:
        case PrimitiveSchema():
            return schema.type
        case ArraySchema():
            return "array"
        case MapSchema():
            return "map"
        case UnionSchema():
            return "union"
        case _:
            return schema.name


_LOGICAL_OF: Mapping[str, frozenset[str]] = {
    "int": frozenset({"date", "time-millis"}),
    "long": frozenset(
        {
            "time-micros",
            *(f"{local}timestamp-{unit}" for local in ("", "local-") for unit in ("millis", "micros", "nanos")),
        }
    ),
    "string": frozenset({"uuid"}),
    "bytes": frozenset({"decimal"}),
    "fixed": frozenset({"decimal", "duration", "uuid"}),
}  # fmt: skip


def _logical(kind: str, tree: Any) -> LogicalType | None:
    """Return a type's logical type, None if it has none or one that does not fit it."""
    name = tree.get("logicalType")
    if not isinstance(name, str) or name not in _LOGICAL_OF.get(kind, ()):
        return None
    if name != "decimal":
        return LogicalType(name)
    precision, scale = tree.get("precision"), tree.get("scale", 0)
    if not _is_count(precision) or not _is_count(scale) or not max(scale, 1) <= precision:
        return None
    if kind == "fixed" and precision > _digits_of(tree["size"]):
        return None
    return LogicalType(name, precision, scale)


def _digits_of(size: int) -> int:
    """Return how many decimal digits every number of that many has in two's complement of `size` bytes."""
    return math.floor((8 * size - 1) * math.log10(2)) if size else 0


def _is_count(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 2**31


def _shown(value: Any) -> str:
    """Return JSON of a value that an error names, cut to what fits a line."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
