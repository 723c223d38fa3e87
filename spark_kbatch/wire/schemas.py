"""Decoders for kafka-python's messages, built from the library's schemas.

The library decodes valid messages fast, but trusts invalid ones: a varint may never end, each structure
with tagged fields copies the rest of the message, and a length past the end gives a shorter value. So
`primitives.Reader` reads the bytes, and the library's classes only hold the values.

A decoder is built once per message and version, from small functions, one per field.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any, Protocol

from spark_kbatch.wire.primitives import Reader

Decoder = Callable[[Reader], Any]

# Formats of the types with a fixed size; adjacent fields of these types are read together.
_FIXED = {
    "bool": "?",
    "float64": "d",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "int8": "b",
    "uint16": "H",
}
_SIZES = {"bitfield": 4, "uuid": 16, "string": 1, "bytes": 1, "records": 1}  # the least, in bytes
_NO_UUID = bytes(16)
_BITFIELD = struct.Struct(">I")
_ABSENT_BITFIELD = {31}  # the library shows it as None


class Field(Protocol):
    """A field of kafka-python's schemas."""

    name: str
    tag: int | None
    fields: Any
    data_class: Callable[..., Any]

    @property
    def type_str(self) -> str:
        """The field's type; of an array, the type of its elements, with or without `[]` before it."""

    def is_array(self) -> bool:
        """Return True if the field is an array, of structures or of anything else."""

    def is_struct(self) -> bool:
        """Return True if the field is a structure."""

    def is_struct_array(self) -> bool:
        """Return True if the field is an array of structures."""

    def for_version_q(self, version: int) -> bool:
        """Return True if this version of the message has the field."""

    def nullable_for_version_q(self, version: int) -> bool:
        """Return True if the field can be null in this version of the message."""

    def tagged_field_q(self, version: int) -> bool:
        """Return True if the field is a tagged field in this version of the message."""


def structure(
    fields: list[Field], version: int, data_class: Callable[..., Any], name: str
) -> tuple[Decoder, int]:
    """Return the decoder of a structure, and its smallest size in bytes.

    Args:
        fields: its fields, of all versions.
        version: of the message.
        data_class: called with `version` and the fields by name.
        name: for errors.
    """
    present = [field for field in fields if field.for_version_q(version)]
    steps, size = _steps([one for one in present if not one.tagged_field_q(version)], version, name)
    tagged = {
        one.tag: (one.name, _nullable_value(one, version, name)[0])
        for one in present
        if one.tagged_field_q(version) and one.tag is not None
    }

    def decode(reader: Reader) -> Any:
        values: dict[str, Any] = {}
        for step in steps:
            step(reader, values)
        if reader.flexible:
            values.update(reader.tagged_fields(name, tagged))
        return data_class(version=version, **values)

    return decode, max(size, 1)


def _steps(
    fields: list[Field], version: int, name: str
) -> tuple[list[Callable[[Reader, dict[str, Any]], None]], int]:
    """Return steps that read these fields in order into a mapping, and the fields' smallest size."""
    steps: list[Callable[[Reader, dict[str, Any]], None]] = []
    size = 0
    run: list[Field] = []
    for field in fields:
        if not field.is_array() and field.type_str in _FIXED:
            run.append(field)
            continue
        if run:
            size += _add_run(steps, run, name)
            run = []
        decoder, least = _nullable_value(field, version, name)
        steps.append(_single(field.name, decoder))
        size += least
    if run:
        size += _add_run(steps, run, name)
    return steps, size


def _add_run(
    steps: list[Callable[[Reader, dict[str, Any]], None]], fields: list[Field], name: str
) -> int:
    """Add a step that reads fields of fixed size together; return their size."""
    layout = struct.Struct(">" + "".join(_FIXED[field.type_str] for field in fields))
    names = [field.name for field in fields]
    where = f"{name}.{names[0]}" + (f" to {names[-1]}" if len(names) > 1 else "")

    def step(reader: Reader, values: dict[str, Any]) -> None:
        values.update(zip(names, reader.unpack(layout, where), strict=True))

    steps.append(step)
    return layout.size


def _single(key: str, decoder: Decoder) -> Callable[[Reader, dict[str, Any]], None]:
    def step(reader: Reader, values: dict[str, Any]) -> None:
        values[key] = decoder(reader)

    return step


def _nullable_value(field: Field, version: int, parent: str) -> tuple[Decoder, int]:
    """Return the decoder of one field, and its smallest size in bytes."""
    name = f"{parent}.{field.name}"
    nullable = field.nullable_for_version_q(version)
    if field.is_array():
        element, size = _element(field, version, name)
        return _array(element, size, nullable, name), 1
    if field.is_struct():
        decoder, size = structure(list(field.fields.values()), version, field.data_class, name)
        return (_maybe(decoder, name), 1) if nullable else (decoder, size)
    return _simple(field.type_str, nullable, name)


def _element(field: Field, version: int, name: str) -> tuple[Decoder, int]:
    if field.is_struct_array():
        return structure(list(field.fields.values()), version, field.data_class, name)
    return _simple(field.type_str.removeprefix("[]"), False, name)


def _array(element: Decoder, size: int, nullable: bool, name: str) -> Decoder:
    if nullable:
        return lambda reader: reader.nullable_array(element, size, name)
    return lambda reader: reader.array(element, size, name)


def _maybe(decoder: Decoder, name: str) -> Decoder:
    """Return the decoder of a nullable structure, which is a negative byte if it is null."""
    return lambda reader: None if reader.int8(name) < 0 else decoder(reader)


def _simple(type_str: str, nullable: bool, name: str) -> tuple[Decoder, int]:
    if type_str in _FIXED:
        layout = struct.Struct(">" + _FIXED[type_str])
        return lambda reader: reader.unpack(layout, name)[0], layout.size
    decoders: dict[str, Decoder] = {
        "string": lambda reader: reader.nullable_string(name) if nullable else reader.string(name),
        "bytes": lambda reader: _bytes(reader, nullable, name),
        "uuid": lambda reader: _uuid(reader.view(16, name)),
        "bitfield": lambda reader: _bitfield(reader.unpack(_BITFIELD, name)[0]),
    }
    return decoders[type_str], _SIZES[type_str]


def _bytes(reader: Reader, nullable: bool, name: str) -> bytes | None:
    value = reader.nullable_view(name)
    if value is None and not nullable:
        raise reader.refuse(name, "bytes", "null")
    return None if value is None else bytes(value)


def _uuid(value: memoryview) -> uuid.UUID | None:
    return None if value == _NO_UUID else uuid.UUID(bytes=bytes(value))


def _bitfield(value: int) -> set[int] | None:
    found = {bit for bit in range(32) if value >> bit & 1}
    return None if found == _ABSENT_BITFIELD else found
