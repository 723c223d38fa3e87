"""Kafka's messages as values, and their encoders and decoders, compiled from the lines of `messages`.

    type            not flexible        flexible
    string          int16 length        varint length + 1
    bytes, records  int32 length        varint length + 1
    array           int32 count         varint count + 1
    null            length -1           length 0
    tagged fields   none                varint count, then each: varint tag, varint size, bytes

All is big-endian. Varints here are unsigned, not zigzag: groups of 7 bits, low group first, at most 5 bytes.
Records are not copied: decoded ones refer to the frame, encoded ones are pieces of their own.

A `Reader` trusts nothing: a length past the last byte is an error before anything is allocated. A string has
a limit, because what it names is compared and shown, and the elements of all arrays of a message have one
together, because one byte of an array can become a hundred bytes of objects.

A codec is compiled once per message and version, from small functions: one for each field, or for each run
of adjacent fields of fixed size.

Source: Kafka clients/.../common/protocol/ByteBufferAccessor.java, Readable.java, types/Type.java.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import struct
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from spark_kbatch.errors import ProtocolError
from spark_kbatch.model import INT_MAX
from spark_kbatch.record.checksums import Buffer

INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")

_UNSIGNED_INT_MAX = 2**32 - 1
STRING_MAX = 2**15 - 1  # bytes of a string that is not flexible

# Formats of the types with a fixed size; adjacent fields of these types are read and written together.
_FIXED = {
    "bool": "?",
    "float64": "d",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "int8": "b",
    "uint16": "H",
}
_NO_UUID = bytes(16)


class Versions(NamedTuple):
    """A range of versions of a kind of request, both inclusive."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last

    @classmethod
    def parse(cls, text: str) -> Versions:
        """Parse `3+` or `0-7`; nothing stands for all versions."""
        first, _, last = (text or "0+").replace("+", f"-{INT_MAX}").partition("-")
        return cls(int(first), int(last))


class Field(NamedTuple):
    """A field of a structure."""

    name: str
    kind: str  # of an array, the type of its elements
    is_array: bool
    versions: Versions
    nullable: Versions | None  # those in which it can be null
    tag: int | None
    default: Any
    structure: type[Structure] | None  # if it consists of fields itself


class Structure:
    """The base of messages and of the structures in them, each with a slot for every field of any version.

    A field that is not given has its default. A structure's class is an attribute of the class that it
    belongs to, by the name of its type.
    """

    __slots__ = ()
    FIELDS: ClassVar[tuple[Field, ...]] = ()
    DEFAULTS: ClassVar[Mapping[str, Any]] = {}
    HAS_ERROR_CODE: ClassVar[bool] = False
    ARRAYS_WITH_ERRORS: ClassVar[tuple[str, ...]] = ()  # those whose elements may have error codes

    if TYPE_CHECKING:

        def __init__(self, **values: Any) -> None:
            """Set fields by name; any other name is a TypeError."""

    def __getattr__(self, name: str) -> Any:  # called if the slot is empty
        try:
            default = self.DEFAULTS[name]
        except KeyError:
            raise AttributeError(f"{type(self).__qualname__} has no field {name!r}") from None
        value = [] if isinstance(default, list) else default
        setattr(self, name, value)
        return value

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, one.name) == getattr(other, one.name) for one in self.FIELDS)

    def __repr__(self) -> str:
        fields = (f"{one.name}={_shown(one, getattr(self, one.name))}" for one in self.FIELDS)
        return f"{type(self).__qualname__}({', '.join(fields)})"


def _shown(field: Field, value: Any) -> str:
    """Return a value for `repr`: of bytes, which may be secret or many, only how many they are."""
    if field.kind in ("bytes", "records") and value and not field.is_array:
        return f"<{memoryview(value).nbytes} bytes>"
    return repr(value)


def error_codes(part: Structure) -> Iterator[int]:
    """Yield the error codes of an answer, or of a part of it, and of its parts; none for what is no error."""
    if part.HAS_ERROR_CODE and part.error_code:
        yield part.error_code
    for name in part.ARRAYS_WITH_ERRORS:
        for one in getattr(part, name) or ():
            yield from error_codes(one)


def parse(name: str, text: str) -> type[Structure]:
    """Return the class of a message, from its lines in `messages`."""
    return _parse(name, name, deque(text.splitlines()))


def _parse(name: str, qualified: str, lines: deque[str]) -> type[Structure]:
    """Take the lines of a structure, which are all those that are indented as the first is, or more."""
    indent = _indent(lines[0])
    fields: list[Field] = []
    while lines and _indent(lines[0]) == indent:
        fields += [_field(one) for one in lines.popleft().split(",")]
        if lines and _indent(lines[0]) > indent:
            inner = fields[-1].kind
            structure = _parse(inner, f"{qualified}.{inner}", lines)
            fields[-1] = fields[-1]._replace(structure=structure)
    attributes = {
        **{one.kind: one.structure for one in fields if one.structure is not None},
        "__module__": __name__,
        "__qualname__": qualified,
        "FIELDS": tuple(fields),
        "DEFAULTS": {one.name: one.default for one in fields},
        "HAS_ERROR_CODE": any(one.name == "error_code" for one in fields),
        "ARRAYS_WITH_ERRORS": tuple(
            one.name
            for one in fields
            if one.is_array
            and one.structure is not None
            and (one.structure.HAS_ERROR_CODE or one.structure.ARRAYS_WITH_ERRORS)
        ),
    }
    # A dataclass for its constructor, which is compiled and sets every slot.
    return dataclasses.make_dataclass(
        name,
        [(one.name, Any, _with_default(one)) for one in fields],
        bases=(Structure,),
        namespace=attributes,
        kw_only=True,
        slots=True,
        eq=False,
        repr=False,
    )


def _with_default(field: Field) -> Any:
    if isinstance(field.default, list):
        return dataclasses.field(default_factory=list)
    return dataclasses.field(default=field.default)


_FIELD = re.compile(r" *(\w+) (\[])?(\w+)(\?)?([\d+-]*)(?: ([\d+-]+))?(?: @(\d+))?(?: =(\S+))?")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _field(text: str) -> Field:
    matched = _FIELD.fullmatch(text)
    assert matched is not None, text
    name, array, kind, null, null_versions, versions, tag, default = matched.groups()
    return Field(
        name,
        kind,
        array is not None,
        Versions.parse(versions),
        Versions.parse(null_versions) if null else None,
        int(tag) if tag else None,
        [] if array and default is None else _default(kind, default),
        None,
    )


def _default(kind: str, text: str | None) -> Any:
    if text is not None:
        return None if text == "null" else True if text == "true" else int(text, 0)
    others = {"string": "", "bytes": b"", "records": b"", "bool": False, "float64": 0.0}
    return others.get(kind, 0 if kind in _FIXED else None)


class Reader:
    """A bounds-checked reader of a frame's fields, in the types of Kafka's protocol.

    Every read names its field, for errors. Not thread-safe.
    """

    __slots__ = ("_data", "_elements_left", "_end", "_max_string", "message", "position")

    def __init__(
        self, data: memoryview, message: str, *, max_elements: int, max_string: int = INT_MAX
    ) -> None:
        """Start at the first byte of `data`.

        Args:
            data: one frame, without its size.
            message: the kind of message, for errors; set it again once it is known.
            max_elements: limit on the elements of all arrays and tagged fields together.
            max_string: limit on the bytes of each string.
        """
        self._data = data
        self._end = len(data)
        self._elements_left, self._max_string = max_elements, max_string
        self.message = message
        self.position = 0

    def unpack(self, layout: struct.Struct, field: str) -> tuple[Any, ...]:
        """Read several adjacent fields of fixed size at once."""
        position = self.position
        end = position + layout.size
        if end > self._end:
            raise self._cut(field, layout.size)
        self.position = end
        return layout.unpack_from(self._data, position)

    def varint(self, field: str) -> int:
        """Read an unsigned varint of 32 bits."""
        start = position = self.position
        data = self._data
        if start < self._end and data[start] < 0x80:  # most take one byte
            self.position = start + 1
            return data[start]
        end = min(self._end, start + 5)
        value = shift = 0
        while position < end:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > _UNSIGNED_INT_MAX:
                    break
                self.position = position
                return value
            shift += 7
        if position < start + 5:
            raise self._cut(field, position - start + 1)
        raise self.refuse(field, "a varint of 32 bits", bytes(data[start:position]).hex(" "))

    def view(self, size_in_bytes: int, field: str) -> memoryview:
        """Read bytes without copying them: the result refers to the frame."""
        position = self.position
        end = position + size_in_bytes
        if end > self._end:
            raise self._cut(field, size_in_bytes)
        self.position = end
        return self._data[position:end]

    def length(self, layout: struct.Struct | None, field: str) -> int:
        """Read a length or a count, a varint if there is no layout; -1 for null."""
        if layout is None:
            return self.varint(field) - 1
        start = self.position
        value: int = self.unpack(layout, field)[0]
        if value < -1:
            self.position = start
            raise self.refuse(field, "a length of -1 or more", value)
        return value

    def string(self, layout: struct.Struct | None, field: str) -> str | None:
        """Read a string, or null; what is not UTF-8 becomes U+FFFD, as in Kafka."""
        start = self.position
        size_in_bytes = self.length(layout, field)
        if size_in_bytes < 0:
            return None
        if size_in_bytes > self._max_string:
            self.position = start
            expected = f"a string of at most {self._max_string} bytes"
            raise self.refuse(field, expected, size_in_bytes)
        return str(self.view(size_in_bytes, field), "utf-8", "replace")

    def records(self, layout: struct.Struct | None, field: str) -> memoryview | None:
        """Read bytes without copying them, or null."""
        size_in_bytes = self.length(layout, field)
        return None if size_in_bytes < 0 else self.view(size_in_bytes, field)

    def array(
        self,
        layout: struct.Struct | None,
        element: Callable[[Reader], Any],
        min_size_in_bytes: int,
        field: str,
    ) -> list[Any] | None:
        """Read an array, or null.

        Args:
            layout: of its count; see `length`.
            element: reads one element.
            min_size_in_bytes: the smallest size of an element, which bounds the count by the bytes left.
            field: the array's name.
        """
        start = self.position
        count = self.length(layout, field)
        if count < 0:
            return None
        left = self._end - self.position
        if count * min_size_in_bytes > left:
            self.position = start
            raise self.refuse(
                field,
                f"at most {left // min_size_in_bytes} elements in the {left} bytes that are left",
                count,
            )
        self._count_elements(count, start, field)
        return [element(self) for _ in range(count)]

    def tagged_fields(
        self, field: str, known: Mapping[int, tuple[str, Callable[[Reader], Any]]], into: Any
    ) -> None:
        """Read the tagged fields that end a structure of a flexible version; skip unknown ones.

        Args:
            field: the structure's name.
            known: name and decoder of a field, by tag.
            into: the structure, which gets the fields that are known.
        """
        start = self.position
        count = self.varint(field)
        if not count:
            return
        self._count_elements(count, start, f"the tagged fields of {field}")
        for _ in range(count):
            tag = self.varint(f"a tag of {field}")
            size_in_bytes = self.varint(f"the size of tag {tag} of {field}")
            start = self.position
            if start + size_in_bytes > self._end:
                raise self._cut(f"tag {tag} of {field}", size_in_bytes)
            if tag in known:
                name, read = known[tag]
                outer_end, self._end = self._end, start + size_in_bytes
                setattr(into, name, read(self))
                self._end = outer_end
                if self.position != start + size_in_bytes:
                    raise self.refuse(
                        f"tag {tag} of {field}",
                        f"{size_in_bytes} bytes",
                        f"{self.position - start}",
                    )
            else:
                self.position = start + size_in_bytes

    def refuse(self, field: str, expected: object, found: object) -> ProtocolError:
        """Return the ProtocolError for a field at the current position that is not as expected."""
        return ProtocolError(self.message, field, self.position, expected, found)

    def _count_elements(self, count: int, start: int, field: str) -> None:
        if count > self._elements_left:
            self.position = start
            raise self.refuse(field, f"at most {self._elements_left} more elements", count)
        self._elements_left -= count

    def _cut(self, field: str, size_in_bytes: int) -> ProtocolError:
        left = self._end - self.position
        return self.refuse(field, f"{size_in_bytes} bytes", f"{left} bytes to the end")


class Writer(bytearray):
    """A message under construction: its bytes, except for records, which are not copied."""

    def __init__(self) -> None:
        super().__init__()
        self._records: list[tuple[int, Buffer]] = []  # each with its place among the bytes

    def refer(self, records: Buffer) -> None:
        """Add a piece without copying it; it must not change until it is sent."""
        self._records.append((len(self), records))

    def pieces(self) -> list[Buffer]:
        """Return the message in pieces, in order; those that are not records share one buffer."""
        whole, start = memoryview(self), 0
        pieces: list[Buffer] = []
        for position, records in self._records:
            pieces += (whole[start:position], records)
            start = position
        return [*pieces, whole[start:]]


class Codec(NamedTuple):
    """The decoder and encoder of a value, and the value's smallest size in bytes."""

    decode: Callable[[Reader], Any]
    encode: Callable[[Writer, Any], None]
    min_size_in_bytes: int


class _Step(NamedTuple):
    """The same for fields of a structure, which are set and taken from it."""

    read: Callable[[Reader, Any], None]
    write: Callable[[Writer, Any], None]
    min_size_in_bytes: int


def structure(kind: type[Structure], version: int, name: str = "body", *, flexible: bool) -> Codec:
    """Return the codec of a structure in one version; `name` is for errors."""
    present = [one for one in kind.FIELDS if version in one.versions]
    steps: list[_Step] = []
    plain = [one for one in present if one.tag is None]
    for is_fixed, fields in itertools.groupby(plain, _is_fixed):
        if is_fixed:
            steps.append(_run(list(fields), name))
        else:
            steps += [
                _single(one.name, _value(one, version, name, flexible=flexible)) for one in fields
            ]
    reads, writes = [one.read for one in steps], [one.write for one in steps]
    tagged = [
        (one, _value(one, version, name, flexible=flexible))
        for one in sorted(present, key=lambda one: one.tag or 0)
        if one.tag is not None
    ]
    known = {one.tag: (one.name, codec.decode) for one, codec in tagged if one.tag is not None}
    write_tagged = _tagged_writer(tagged) if tagged else None

    def decode(reader: Reader) -> Any:
        value = kind.__new__(kind)
        for read in reads:
            read(reader, value)
        if flexible:
            reader.tagged_fields(name, known, value)
        return value

    def encode(writer: Writer, value: Any) -> None:
        for write in writes:
            write(writer, value)
        if write_tagged is not None:
            write_tagged(writer, value)
        elif flexible:
            writer.append(0)

    return Codec(decode, encode, max(1, sum(one.min_size_in_bytes for one in steps)))


def string(name: str, *, flexible: bool, nullable: bool) -> Codec:
    """Return the codec of a string.

    Its encoder raises ValueError if a string is longer than 32767 bytes, the limit of versions that are not
    flexible.
    """
    layout = None if flexible else INT16
    length = _length(layout)

    def decode(reader: Reader) -> str | None:
        return reader.string(layout, name)

    def encode(writer: Writer, value: str) -> None:
        encoded = value.encode()
        if len(encoded) > STRING_MAX and not flexible:
            raise ValueError(f"a string of {len(encoded)} bytes; at most {STRING_MAX} can be sent")
        writer += length(len(encoded))
        writer += encoded

    return _or_null(Codec(decode, encode, 1), layout, name, "a string", nullable=nullable)


def _value(field: Field, version: int, parent: str, *, flexible: bool) -> Codec:
    name = f"{parent}.{field.name}"
    nullable = field.nullable is not None and version in field.nullable
    if not field.is_array:
        return _element(field, version, name, flexible=flexible, nullable=nullable)
    read, write, size = _element(field, version, name, flexible=flexible, nullable=False)
    layout = None if flexible else _INT32
    length = _length(layout)

    def decode(reader: Reader) -> Any:
        return reader.array(layout, read, size, name)

    def encode(writer: Writer, value: Any) -> None:
        writer += length(len(value))
        for one in value:
            write(writer, one)

    return _or_null(Codec(decode, encode, 1), layout, name, "an array", nullable=nullable)


def _element(field: Field, version: int, name: str, *, flexible: bool, nullable: bool) -> Codec:
    if field.structure is not None:
        return structure(field.structure, version, name, flexible=flexible)
    if field.kind == "string":
        return string(name, flexible=flexible, nullable=nullable)
    if field.kind in ("bytes", "records"):
        return _bytes(name, flexible=flexible, nullable=nullable, copies=field.kind == "bytes")
    if field.kind == "uuid":
        return _uuid(name)
    layout = struct.Struct(">" + _FIXED[field.kind])

    def decode(reader: Reader) -> Any:
        return reader.unpack(layout, name)[0]

    def encode(writer: Writer, value: Any) -> None:
        writer += layout.pack(value)

    return Codec(decode, encode, layout.size)


def _bytes(name: str, *, flexible: bool, nullable: bool, copies: bool) -> Codec:
    layout = None if flexible else _INT32
    length = _length(layout)

    def decode(reader: Reader) -> Buffer | None:
        value = reader.records(layout, name)
        return bytes(value) if copies and value is not None else value

    def encode(writer: Writer, value: Buffer) -> None:
        writer += length(memoryview(value).nbytes)
        if copies:
            writer += value
        elif value:
            writer.refer(value)

    return _or_null(Codec(decode, encode, 1), layout, name, "bytes", nullable=nullable)


def _uuid(name: str) -> Codec:
    def decode(reader: Reader) -> uuid.UUID | None:
        value = reader.view(len(_NO_UUID), name)
        return None if value == _NO_UUID else uuid.UUID(bytes=bytes(value))

    def encode(writer: Writer, value: uuid.UUID | None) -> None:
        writer += _NO_UUID if value is None else value.bytes

    return Codec(decode, encode, len(_NO_UUID))


def _or_null(
    codec: Codec, layout: struct.Struct | None, name: str, kind: str, *, nullable: bool
) -> Codec:
    """Return a codec that refuses to read null if it may not be; it is written as empty then."""
    null = _length(layout)(-1 if nullable else 0)
    decode, encode, size = codec

    def decode_not_null(reader: Reader) -> Any:
        value = decode(reader)
        if value is None:
            raise reader.refuse(name, kind, "null")
        return value

    def encode_or_null(writer: Writer, value: Any) -> None:
        if value is None:
            writer += null
        else:
            encode(writer, value)

    return Codec(decode if nullable else decode_not_null, encode_or_null, size)


def _is_fixed(field: Field) -> bool:
    return field.kind in _FIXED and not field.is_array


def _run(fields: list[Field], parent: str) -> _Step:
    """Return the step of adjacent fields of fixed size."""
    layout = struct.Struct(">" + "".join(_FIXED[one.kind] for one in fields))
    names = [one.name for one in fields]
    where = f"{parent}.{names[0]}" + (f" to {names[-1]}" if len(names) > 1 else "")
    values_of = attrgetter(*names)

    def read(reader: Reader, into: Any) -> None:
        for name, value in zip(names, reader.unpack(layout, where), strict=False):
            setattr(into, name, value)

    def write(writer: Writer, one: Any) -> None:
        writer += layout.pack(*values_of(one))

    def write_single(writer: Writer, one: Any) -> None:
        writer += layout.pack(values_of(one))

    return _Step(read, write if len(names) > 1 else write_single, layout.size)


def _single(name: str, codec: Codec) -> _Step:
    decode, encode, size = codec

    def read(reader: Reader, into: Any) -> None:
        setattr(into, name, decode(reader))

    def write(writer: Writer, one: Any) -> None:
        encode(writer, getattr(one, name))

    return _Step(read, write, size)


def _tagged_writer(fields: list[tuple[Field, Codec]]) -> Callable[[Writer, Any], None]:
    """Return a function that writes those of the tagged fields that have not their defaults."""
    values_of = attrgetter(*(field.name for field, _ in fields))
    defaults = tuple(field.default for field, _ in fields)
    all_defaults = defaults if len(defaults) > 1 else defaults[0]

    def write(writer: Writer, one: Any) -> None:
        values = values_of(one)
        if values == all_defaults:
            writer.append(0)
            return
        found = []
        each = values if len(fields) > 1 else (values,)
        for (field, codec), value in zip(fields, each, strict=True):
            if value != field.default:
                encoded = Writer()
                codec.encode(encoded, value)
                found.append((field.tag or 0, encoded))
        writer += _varint(len(found))
        for tag, encoded in found:
            writer += _varint(tag) + _varint(len(encoded)) + encoded

    return write


def _length(layout: struct.Struct | None) -> Callable[[int], bytes]:
    """Return the encoder of a length or a count; see `Reader.length`."""
    return (lambda size: _varint(size + 1)) if layout is None else layout.pack


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    return bytes((value & 0x7F | 0x80,)) + _varint(value >> 7)
