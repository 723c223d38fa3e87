"""Bounds-checked reads and writes of the protocol's types, big-endian.

    type            not flexible        flexible
    string          int16 length        varint length + 1
    bytes, records  int32 length        varint length + 1
    array           int32 count         varint count + 1
    null            length -1           length 0
    tagged fields   none                varint count, then each: varint tag, varint size, bytes

Varints here are unsigned, not zigzag: groups of 7 bits, low group first, at most 5 bytes.

A `Reader` trusts nothing: a length past the last byte is an error before anything is allocated, and the
elements of all arrays of a message are counted against a limit, because one byte of an array can become a
hundred bytes of objects.

Source: Kafka clients/.../common/protocol/ByteBufferAccessor.java, Readable.java, types/Type.java.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from spark_kbatch.errors import ProtocolError
from spark_kbatch.record.checksums import Buffer

_BOOLEAN = struct.Struct(">?")
_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")

_UNSIGNED_INT_MAX = 2**32 - 1
_STRING_MAX = 2**15 - 1  # bytes of a string that is not flexible

_NONE_KNOWN: Mapping[int, tuple[str, Any]] = {}

Element = TypeVar("Element")


class Reader:
    """A bounds-checked reader of a frame's fields, in the types of Kafka's protocol.

    Every read names its field, for errors. `flexible` says how lengths are written. Not thread-safe.
    """

    __slots__ = ("_data", "_elements_left", "_end", "_message", "flexible", "position")

    def __init__(
        self, data: memoryview, message: str, *, max_elements: int, flexible: bool = False
    ) -> None:
        """Start at the first byte of `data`.

        Args:
            data: one frame, without its size.
            message: the kind of message, for errors.
            max_elements: limit on the elements of all arrays and tagged fields together.
            flexible: whether lengths are varints.
        """
        self._data = data
        self._end = len(data)
        self._message = message
        self._elements_left = max_elements
        self.position = 0
        self.flexible = flexible

    def describe(self, message: str, *, flexible: bool) -> None:
        """Set the message's name and whether it is flexible, which are known after its header is read."""
        self._message = message
        self.flexible = flexible

    def boolean(self, field: str) -> bool:
        """Read one byte; any value but 0 is true."""
        value: bool = self.unpack(_BOOLEAN, field)[0]
        return value

    def int8(self, field: str) -> int:
        """Read one byte, signed."""
        value: int = self.unpack(_INT8, field)[0]
        return value

    def int16(self, field: str) -> int:
        """Read two bytes, signed."""
        value: int = self.unpack(_INT16, field)[0]
        return value

    def int32(self, field: str) -> int:
        """Read four bytes, signed."""
        value: int = self.unpack(_INT32, field)[0]
        return value

    def int64(self, field: str) -> int:
        """Read eight bytes, signed."""
        value: int = self.unpack(_INT64, field)[0]
        return value

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

    def string(self, field: str) -> str:
        """Read a string that cannot be null; see `nullable_string`."""
        value = self.nullable_string(field)
        if value is None:
            raise self.refuse(field, "a string", "null")
        return value

    def nullable_string(self, field: str) -> str | None:
        """Read a string, or null; what is not UTF-8 becomes U+FFFD, as in Kafka."""
        size_in_bytes = self._length(_INT16, field)
        if size_in_bytes < 0:
            return None
        return str(self.view(size_in_bytes, field), "utf-8", "replace")

    def nullable_view(self, field: str) -> memoryview | None:
        """Read bytes or records without copying them, or null."""
        size_in_bytes = self._length(_INT32, field)
        return None if size_in_bytes < 0 else self.view(size_in_bytes, field)

    def array(
        self, element: Callable[[Reader], Element], min_size_in_bytes: int, field: str
    ) -> list[Element]:
        """Read an array that cannot be null; see `nullable_array`."""
        elements = self.nullable_array(element, min_size_in_bytes, field)
        if elements is None:
            raise self.refuse(field, "an array", "null")
        return elements

    def nullable_array(
        self, element: Callable[[Reader], Element], min_size_in_bytes: int, field: str
    ) -> list[Element] | None:
        """Read an array, or null.

        Args:
            element: reads one element.
            min_size_in_bytes: the smallest size of an element, which bounds the count by the bytes left.
            field: the array's name.
        """
        start = self.position
        count = self._length(_INT32, field)
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
        self, field: str, known: Mapping[int, tuple[str, Callable[[Reader], Any]]] = _NONE_KNOWN
    ) -> dict[str, Any]:
        """Read the tagged fields that end a structure of a flexible version; skip unknown ones.

        Args:
            field: the structure's name.
            known: name and decoder of a field, by tag.
        """
        values: dict[str, Any] = {}
        if not self.flexible:
            return values
        start = self.position
        count = self.varint(field)
        if count:
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
                values[name] = read(self)
                self._end = outer_end
                if self.position != start + size_in_bytes:
                    raise self.refuse(
                        f"tag {tag} of {field}",
                        f"{size_in_bytes} bytes",
                        f"{self.position - start}",
                    )
            else:
                self.position = start + size_in_bytes
        return values

    def refuse(self, field: str, expected: object, found: object) -> ProtocolError:
        """Return the ProtocolError for a field at the current position that is not as expected."""
        return ProtocolError(self._message, field, self.position, expected, found)

    def _count_elements(self, count: int, start: int, field: str) -> None:
        if count > self._elements_left:
            self.position = start
            raise self.refuse(field, f"at most {self._elements_left} more elements", count)
        self._elements_left -= count

    def _length(self, layout: struct.Struct, field: str) -> int:
        """Read a length or a count; -1 for null."""
        start = self.position
        if self.flexible:
            return self.varint(field) - 1
        value: int = self.unpack(layout, field)[0]
        if value < -1:
            self.position = start
            raise self.refuse(field, "a length of -1 or more", value)
        return value

    def _cut(self, field: str, size_in_bytes: int) -> ProtocolError:
        left = self._end - self.position
        return self.refuse(field, f"{size_in_bytes} bytes", f"{left} bytes to the end")


class Writer:
    """A message under construction: a list of pieces; large ones are not copied."""

    __slots__ = ("_pieces", "_tail", "flexible")

    def __init__(self, *, flexible: bool = False) -> None:
        self._pieces: list[Buffer] = []
        self._tail = bytearray()
        self.flexible = flexible

    def boolean(self, value: bool) -> None:
        """Write one byte, 1 or 0."""
        self._tail += _BOOLEAN.pack(value)

    def int8(self, value: int) -> None:
        """Write one byte, signed."""
        self._tail += _INT8.pack(value)

    def int16(self, value: int) -> None:
        """Write two bytes, signed."""
        self._tail += _INT16.pack(value)

    def int32(self, value: int) -> None:
        """Write four bytes, signed."""
        self._tail += _INT32.pack(value)

    def int64(self, value: int) -> None:
        """Write eight bytes, signed."""
        self._tail += _INT64.pack(value)

    def pack(self, layout: struct.Struct, *values: Any) -> None:
        """Write several adjacent fields of fixed size at once."""
        self._tail += layout.pack(*values)

    def varint(self, value: int) -> None:
        """Write an unsigned varint."""
        while value >= 0x80:
            self._tail.append(value & 0x7F | 0x80)
            value >>= 7
        self._tail.append(value)

    def string(self, value: str | None) -> None:
        """Write a string, or null.

        Raises:
            ValueError: it is longer than 32767 bytes, the limit of versions that are not flexible.
        """
        if value is None:
            self._length(_INT16, -1)
            return
        encoded = value.encode()
        if len(encoded) > _STRING_MAX and not self.flexible:
            raise ValueError(f"a string of {len(encoded)} bytes; at most {_STRING_MAX} can be sent")
        self._length(_INT16, len(encoded))
        self._tail += encoded

    def array_length(self, count: int) -> None:
        """Write the number of elements that follow; -1 for null."""
        self._length(_INT32, count)

    def records(self, data: Buffer | None) -> None:
        """Write bytes or records as a separate piece, which must not change until it is sent."""
        self._length(_INT32, -1 if data is None else memoryview(data).nbytes)
        if data:
            self.append(data)

    def append(self, data: Buffer) -> None:
        """Write encoded bytes unchanged, as a separate piece."""
        if self._tail:
            self._pieces.append(self._tail)
            self._tail = bytearray()
        self._pieces.append(data)

    def tagged_fields(self, fields: Mapping[int, bytes] | None = None) -> None:
        """Write the tagged fields that end a structure, from encoded values by tag; none if not flexible."""
        if not self.flexible:
            return
        self.varint(len(fields or {}))
        for tag, value in sorted((fields or {}).items()):
            self.varint(tag)
            self.varint(len(value))
            self._tail += value

    def pieces(self) -> list[Buffer]:
        """Return the pieces, in order."""
        return [*self._pieces, self._tail] if self._tail else list(self._pieces)

    def _length(self, layout: struct.Struct, size: int) -> None:
        if self.flexible:
            self.varint(size + 1)
        else:
            self._tail += layout.pack(size)
