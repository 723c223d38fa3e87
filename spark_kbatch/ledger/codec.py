"""The codec of what a ledger stores: the annotation of a field says how its value is JSON.

    int                     a whole number from 0 on; `whole()` for another range
    str                     a text; `text()` for one that matches a pattern
    X | None                X, or null
    tuple[X, ...], list[X]  a list
    tuple[X, Y]             a list of X and Y
    a NamedTuple            a list of its fields; what its `fault` says must not be
    a dataclass             an object of its fields
    Mapping[str, X]         an object
    Annotated[X, ...]       as a form in it says; a text in it is the key of a field, where that is not its name

A form reads and writes the values of one annotation. Names of objects (`STORED_NAME`) are
replaced by their place in a list, which is at the key "objects" of the object that they are in.

A value is checked as it is read: its type, its range, its length. A failed check raises
CorruptLedgerError, with the path of the value, what was found and what was expected; a key that
is not known, UnsupportedLedgerError.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Container, Iterable, Mapping
from typing import (
    Annotated,
    Any,
    NamedTuple,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from spark_kbatch.errors import UnsupportedLedgerError
from spark_kbatch.ledger import checksummed_json, names
from spark_kbatch.ledger.checksummed_json import ensure_version
from spark_kbatch.model import LONG_MAX
from spark_kbatch.stored_json import StoredObject

_OBJECTS = "objects"
_ROWS_MAX = 100_000_000

_Stored = TypeVar("_Stored")


class ObjectReader:
    """An object that is read: the path to the value that is read now, and the names in its list."""

    def __init__(self, found: StoredObject, *path: str) -> None:
        """Begin at a path."""
        self.found, self._path, self.names = found, [*path], list[str]()

    def at(self, key: str, form: Form, value: Any) -> Any:
        """Return the value at a key of the value that is read now."""
        self._path.append(key)
        read = form.read(value, self)
        self._path.pop()
        return read

    def ensure(self, is_right: bool, value: Any, expected: str) -> None:
        """Check what is read now; raises CorruptLedgerError."""
        if not is_right:
            raise self.found.damaged(".".join(self._path) or "it", value, expected)


NameTable: TypeAlias = dict[str, int]  # names by their places in the list
Read: TypeAlias = Callable[[Any, ObjectReader], Any]
Write: TypeAlias = Callable[[Any, NameTable], Any]


def _as_it_is(value: Any, _table: object = None) -> Any:
    return value


class Form(NamedTuple):
    """How the values of one annotation are read from JSON, and written."""

    read: Read
    write: Write = _as_it_is


# Forms.


def plain(is_right: Callable[[Any], bool], expected: str) -> Form:
    """Return the form of a value that is as it is in JSON."""

    def read(value: Any, reader: ObjectReader) -> Any:
        if not is_right(value):
            reader.ensure(False, value, expected)
        return value

    return Form(read)


def whole(lowest: int = 0, highest: int = LONG_MAX) -> Form:
    """Return the form of a whole number within a range."""
    expected = f"a whole number from {lowest} to {highest}"

    def read(value: Any, reader: ObjectReader) -> Any:
        # Not by `plain`: an index has millions of these.
        if type(value) is not int or not lowest <= value <= highest:
            reader.ensure(False, value, expected)
        return value

    return Form(read)


def text(pattern: re.Pattern[str]) -> Form:
    """Return the form of a text that matches a pattern as a whole."""
    return plain(
        lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None,
        f"text as {pattern.pattern}",
    )


def _read_name(number: Any, reader: ObjectReader) -> Any:
    is_there = type(number) is int and 0 <= number < len(reader.names)
    reader.ensure(is_there, number, "the place of a name in the list of objects")
    return reader.names[number]


STORED_NAME = Form(_read_name, lambda name, table: table.setdefault(name, len(table)))


def sequence(
    item: Form, make: Callable[..., Any] = tuple, least: int = 0, most: int = _ROWS_MAX
) -> Form:
    """Return the form of a list with `least` to `most` items."""
    expected = f"a list of {least} to {most}"

    def read(values: Any, reader: ObjectReader) -> Any:
        reader.ensure(isinstance(values, list) and least <= len(values) <= most, values, expected)
        return make([item.read(one, reader) for one in values])

    return Form(read, lambda values, table: [item.write(one, table) for one in values])


def row(fields: tuple[Form, ...], kind: type[Any]) -> Form:
    """Return the form of a list with a value of each form, as a tuple or a NamedTuple."""
    make: Callable[[Iterable[Any]], Any] = getattr(kind, "_make", tuple)
    has_fault = hasattr(kind, "fault")
    count, expected = len(fields), f"a list of {len(fields)}"
    reads = [one.read for one in fields]
    writes = [(at, one.write) for at, one in enumerate(fields) if one.write is not _as_it_is]

    def read(values: Any, reader: ObjectReader) -> Any:
        if type(values) is not list or len(values) != count:
            reader.ensure(False, values, expected)
        found = make([read(value, reader) for read, value in zip(reads, values, strict=True)])
        if has_fault and found.fault:
            reader.ensure(False, values, found.fault)
        return found

    def write(values: Iterable[Any], table: NameTable) -> list[Any]:
        found = [*values]
        for at, write in writes:
            found[at] = write(found[at], table)
        return found

    return Form(read, write)


def optional(form: Form) -> Form:
    """Return the form of a value or null."""
    return Form(
        lambda value, reader: None if value is None else form.read(value, reader),
        lambda value, table: None if value is None else form.write(value, table),
    )


def by_key(key: Form, item: Form) -> Form:
    """Return the form of an object in which each key has the same form, and so has what is there."""

    def read(values: Any, reader: ObjectReader) -> dict[str, Any]:
        reader.ensure(isinstance(values, dict), values, "a JSON object")
        return {key.read(at, reader): reader.at(at, item, one) for at, one in values.items()}

    return Form(
        read,
        lambda values, table: {at: item.write(one, table) for at, one in sorted(values.items())},
    )


_NAMES = sequence(
    plain(lambda one: isinstance(one, str) and names.start_entry(one) >= 0, "names of data, indexes and segments"), list
)  # fmt: skip


def ensure_known(found: StoredObject, keys: Iterable[str], known: Container[str]) -> None:
    """Check that an object has no keys but known ones; raises UnsupportedLedgerError."""
    for key in keys:
        if key not in known:
            raise UnsupportedLedgerError(str(found.where), f"it has the key {key!r}")


@functools.cache
def record(kind: type[Any]) -> Form:
    """Return the form of a dataclass, or of another class with named fields, as an object.

    Its class says whether names of objects are in a list (`has_objects`), and whether keys are
    left out where there is nothing (`leaves_out`).
    """
    fields = {
        next((one for one in get_args(hint) if isinstance(one, str)), name): (name, form_of(hint))
        for name, hint in _hints(kind).items()
    }
    listed = [_OBJECTS] if getattr(kind, "has_objects", False) else []
    may_lack = getattr(kind, "leaves_out", False)

    def read(values: Any, reader: ObjectReader) -> Any:
        reader.ensure(isinstance(values, dict), values, "a JSON object")
        ensure_known(reader.found, values, [*fields, *listed])
        for key in listed:
            reader.names = reader.at(key, _NAMES, values.get(key, []))
        found = {}
        for key, (name, form) in fields.items():
            reader.ensure(may_lack or key in values, values, f"an object with the key {key!r}")
            if key in values:
                found[name] = reader.at(key, form, values[key])
        return kind(**found)

    def write(value: Any, table: NameTable) -> dict[str, Any]:
        found = {at: form.write(getattr(value, name), table) for at, (name, form) in fields.items()}
        found |= {key: [*table] for key in listed}
        return {key: one for key, one in found.items() if one or not may_lack}

    return Form(read, write)


# Annotations.

_PLAIN: Mapping[type[Any], Form] = {
    int: whole(),
    str: plain(lambda value: isinstance(value, str), "text"),
}


def form_of(hint: Any) -> Form:
    """Return the form of an annotation."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return next((one for one in inner[1:] if isinstance(one, Form)), None) or form_of(inner[0])
    if type(None) in inner:
        return optional(form_of(inner[0]))
    if len(inner) == 1 or Ellipsis in inner:
        return sequence(form_of(inner[0]), list if origin is list else tuple)
    if origin is tuple:
        return row(tuple(map(form_of, inner)), tuple)
    if inner:
        return by_key(*map(form_of, inner))
    if issubclass(hint, tuple):
        return row(tuple(map(form_of, _hints(hint).values())), hint)
    if hint in _PLAIN:
        return _PLAIN[hint]
    return record(hint)


def _hints(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {name: hint for name, hint in hints.items() if name in kind.__match_args__}


# Objects.


def pack(value: Any, *, version: int | None = None) -> bytes:
    """Return a dataclass as the bytes of an object, with a version or without."""
    values = form_of(type(value)).write(value, {})
    return checksummed_json.encode(values if version is None else {**values, "v": version})


def unpack(kind: type[_Stored], data: bytes, name: str, *, version: int | None = None) -> _Stored:
    """Return the dataclass that is in an object.

    Raises:
        CorruptLedgerError: it is damaged.
        UnsupportedLedgerError: it has another version, or a key that this version does not know.
    """
    found = checksummed_json.decode(data, name)
    if version is not None:
        ensure_version(found, version)
        del found.values["v"]
    read: _Stored = form_of(kind).read(found.values, ObjectReader(found))
    return read
