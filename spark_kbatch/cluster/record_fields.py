"""The fields of the keys and values of Kafka's internal topics.

Each starts with an int16, its version. The fields are written as `wire/messages` has those of requests.
"""

from __future__ import annotations

import functools
from typing import Any
from uuid import UUID

from spark_kbatch.errors import CorruptRecordError, ProtocolError
from spark_kbatch.model import INT_MAX, bytes_of_uuid, text_of_uuid
from spark_kbatch.wire.codec import INT16, Codec, Reader, Writer, parse, structure


class RecordFields:
    """The fields of a key or value, in all its versions."""

    def __init__(
        self,
        topic: str,
        what: str,
        text: str,
        *,
        version_max: int | None = None,
        flexible: int = INT_MAX,
    ) -> None:
        """Take the fields of `text`.

        Args:
            topic: the internal topic, for errors.
            what: the name of the key or value, for errors.
            text: the fields.
            version_max: the highest version that is known; None for a key, whose kind is looked at before.
            flexible: the first version that is flexible.
        """
        self.kind: Any = parse(what, text)  # a class for values with these fields
        self._topic, self._what = topic, what
        self._version_max, self._flexible = version_max, flexible

    def pack(self, version: int, value: object) -> bytes:
        """Encode a value that has these fields.

        Raises:
            ValueError: a string is longer than the format can hold.
        """
        writer = Writer()
        writer += INT16.pack(version)
        self._codec(version).encode(writer, value)
        return bytes(writer)

    def unpack(self, data: bytes, *, has_more: bool = False) -> Any:
        """Decode a value, after which only with `has_more` bytes may follow.

        Raises:
            CorruptRecordError: it does not have the format of its version, or has an unknown version.
        """
        what = self._what
        reader = Reader(memoryview(data), f"record in {self._topic}", max_elements=len(data))
        try:
            (version,) = reader.unpack(INT16, f"version of the {what}")
            if self._version_max is not None and not 0 <= version <= self._version_max:
                raise reader.refuse(f"version of the {what}", f"0 to {self._version_max}", version)
            found = self._codec(version).decode(reader)
            if reader.position != len(data) and not has_more:
                left = len(data) - reader.position
                raise reader.refuse(what, "no bytes after the last field", left)
        except ProtocolError as error:
            raise CorruptRecordError(
                f"{error.field} of a {error.message}", expected=error.expected, found=error.found
            ) from None
        return found

    @functools.cache  # noqa: B019  of a few objects, which live as long as the process
    def _codec(self, version: int) -> Codec:
        return structure(self.kind, version, self._what, flexible=version >= self._flexible)


def packed_topic_id(topic_id: str) -> UUID | None:
    """Return a topic's id as it is stored; None for an unknown one."""
    return UUID(bytes=bytes_of_uuid(topic_id)) if topic_id else None


def unpacked_topic_id(topic_id: UUID | None) -> str:
    """Return a topic's id from what is stored; empty if it is unknown."""
    return text_of_uuid(topic_id.bytes) if topic_id else ""
