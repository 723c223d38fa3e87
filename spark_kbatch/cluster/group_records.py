"""The keys and values of `__consumer_offsets`, in Kafka's own formats.

All numbers are big-endian. A key starts with an int16, its kind:

    0, 1   group, topic (strings), partition (int32)                    a committed offset
    2      group (string)                                               a group and its members
    3...   of group protocols that this server does not have, kept unchanged: 3, 11, 17 are groups of the
           protocols "consumer", "share" and "streams", and 5, 10, 19 their members; all start with the
           group (string)

A value starts with an int16 version. A null value is a tombstone: the key no longer has a value. The
fields of an offset's value:

    version   0     1     2     3     4
    int64     x     x     x     x     x     offset
    int32                       x     x     leader epoch of the last consumed record
    string    x     x     x     x     x     metadata, as the client gave it
    int64     x     x     x     x     x     time of the commit, ms
    int64           x                       time of expiry, ms
    uuid                              tag 0 topic id

The fields of a group's value:

    version   0     1     2     3     4
    string    x     x     x     x     x     protocol type, such as "consumer"
    int32     x     x     x     x     x     generation
    string?   x     x     x     x     x     protocol, such as "range"
    string?   x     x     x     x     x     member id of the leader
    int64                 x     x     x     time at which the group entered its state, ms
    array     x     x     x     x     x     members, each of:
      string  x     x     x     x     x       member id
      string?                   x     x       group instance id
      string  x     x     x     x     x       client id
      string  x     x     x     x     x       client's host
      int32         x     x     x     x       rebalance time-out, ms
      int32   x     x     x     x     x       session time-out, ms
      bytes   x     x     x     x     x       subscription
      bytes   x     x     x     x     x       assignment

Version 4 is flexible: lengths are unsigned varints, one higher than the length (0 for null), and tagged
fields end the value and each member. All older versions have int16 lengths of strings and int32 lengths
of bytes and arrays.

Records are written as Kafka 4.1 does: keys 1 and 2; offsets in version 4, or in version 1 if the client
asked for its own time of expiry; groups in version 3. All versions are read.

Source: Kafka group-coordinator/.../common/message/OffsetCommitKey.json, OffsetCommitValue.json,
GroupMetadataKey.json, GroupMetadataValue.json, CoordinatorRecordType; GroupCoordinatorRecordHelpers.java.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple, TypeAlias, TypeVar

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.model import bytes_of_uuid, text_of_uuid
from spark_kbatch.record.scalar import read_unsigned_varint, unsigned_varint

STRING_BYTES_MAX = 2**15 - 1
NO_TIMESTAMP = NO_LEADER_EPOCH = -1

_OFFSET_KEYS, _OFFSET_KEY, _GROUP_KEY = (0, 1), 1, 2
# Protocol and whether it is a member's, by kind.
_NEWER_KEYS = {
    3: ("consumer", False), 5: ("consumer", True), 10: ("share", True), 11: ("share", False),
    17: ("streams", False), 19: ("streams", True),
}  # fmt: skip
_EXPIRING_OFFSET, _OFFSET, _GROUP = 1, 4, 3  # versions of values that are written
_OFFSET_VERSION_MAX = _GROUP_VERSION_MAX = _FLEXIBLE = 4
_TOPIC_ID_TAG, _UUID_BYTES = 0, 16
_NO_TOPIC_ID = bytes(_UUID_BYTES)

_INT16, _INT32, _INT64 = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_T = TypeVar("_T")


class OffsetKey(NamedTuple):
    """The record key, in `__consumer_offsets`, of a group's committed offset of one partition."""

    group: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """The record key, in `__consumer_offsets`, of a group and its members."""

    group: str


Key: TypeAlias = OffsetKey | GroupKey


class CommittedOffset(NamedTuple):
    """The offset in one partition at which a group continues."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp: int = NO_TIMESTAMP
    expire_timestamp: int = NO_TIMESTAMP  # only if the client asked for one
    topic_id: str = ""  # empty if unknown


class MemberMetadata(NamedTuple):
    """A member of a consumer group, as `__consumer_offsets` stores it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupMetadata(NamedTuple):
    """A consumer group's generation and members, as `__consumer_offsets` stores them."""

    protocol_type: str  # empty for a group that never had members
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp: int
    members: tuple[MemberMetadata, ...] = ()


# Writing.


def pack_key(key: Key) -> bytes:
    """Encode the key of a record of `__consumer_offsets`.

    Raises:
        ValueError: a string is longer than the format can hold.
    """
    if isinstance(key, GroupKey):
        return _INT16.pack(_GROUP_KEY) + _string(key.group)
    parts = _INT16.pack(_OFFSET_KEY), _string(key.group), _string(key.topic)
    return b"".join(parts) + _INT32.pack(key.partition)


def pack_offset(value: CommittedOffset) -> bytes:
    """Encode a committed offset as a record's value for `__consumer_offsets`."""
    text = value.metadata.encode()
    if value.expire_timestamp != NO_TIMESTAMP:
        return b"".join(
            (
                _INT16.pack(_EXPIRING_OFFSET),
                _INT64.pack(value.offset),
                _string(value.metadata),
                _INT64.pack(value.commit_timestamp),
                _INT64.pack(value.expire_timestamp),
            )
        )
    tags = b"\0"
    if value.topic_id:
        tags = bytes((1, _TOPIC_ID_TAG, _UUID_BYTES)) + bytes_of_uuid(value.topic_id)
    return b"".join(
        (
            _INT16.pack(_OFFSET),
            _INT64.pack(value.offset),
            _INT32.pack(value.leader_epoch),
            unsigned_varint(len(text) + 1),
            text,
            _INT64.pack(value.commit_timestamp),
            tags,
        )
    )


def pack_group(value: GroupMetadata) -> bytes:
    """Encode a group's generation and members as a record's value for `__consumer_offsets`.

    Raises:
        ValueError: a string is longer than the format can hold.
    """
    parts = [
        _INT16.pack(_GROUP),
        _string(value.protocol_type),
        _INT32.pack(value.generation),
        _nullable_string(value.protocol),
        _nullable_string(value.leader),
        _INT64.pack(value.state_timestamp),
        _INT32.pack(len(value.members)),
    ]
    for member in value.members:
        parts += (
            _string(member.member_id),
            _nullable_string(member.instance_id),
            _string(member.client_id),
            _string(member.client_host),
            _INT32.pack(member.rebalance_timeout_ms),
            _INT32.pack(member.session_timeout_ms),
            _INT32.pack(len(member.subscription)),
            member.subscription,
            _INT32.pack(len(member.assignment)),
            member.assignment,
        )
    return b"".join(parts)


def _string(text: str) -> bytes:
    data = text.encode()
    if len(data) > STRING_BYTES_MAX:
        raise ValueError(
            f"a string of {len(data)} bytes; __consumer_offsets holds at most {STRING_BYTES_MAX}"
        )
    return _INT16.pack(len(data)) + data


def _nullable_string(text: str | None) -> bytes:
    return _INT16.pack(-1) if text is None else _string(text)


# Reading.


def unpack_key(data: bytes) -> Key | None:
    """Decode the key of a record of `__consumer_offsets`; return None for an unknown kind of key.

    Raises:
        CorruptRecordError: the key does not have the format of its version.
    """
    fields = _Fields(data, "key of a record in __consumer_offsets")
    version = fields.int16()
    if version in _OFFSET_KEYS:
        key: Key = OffsetKey(fields.string(), fields.string(), fields.int32())
    elif version == _GROUP_KEY:
        key = GroupKey(fields.string())
    else:
        return None
    fields.ensure_at_end()
    return key


def unpack_newer_key(data: bytes) -> tuple[str, str, bool] | None:
    """Decode the key of a group of a newer protocol, or of one of its members; None for any other.

    Returns:
        The group, its protocol type ("consumer" is KIP-848's), and whether the key is a member's.

    Raises:
        CorruptRecordError: the key does not have the format of its version.
    """
    fields = _Fields(data, "key of a record in __consumer_offsets")
    known = _NEWER_KEYS.get(fields.int16())
    return known and (fields.string(), *known)


def unpack_offset(data: bytes) -> CommittedOffset:
    """Decode a committed offset from a record's value in `__consumer_offsets`.

    Raises:
        CorruptRecordError: the value does not have the format of its version, or has an unknown version.
    """
    fields = _Fields(data, "value of an offset in __consumer_offsets")
    version = fields.version(_OFFSET_VERSION_MAX)
    offset = fields.int64()
    leader_epoch = fields.int32() if version >= 3 else NO_LEADER_EPOCH
    metadata = fields.string()
    commit_timestamp = fields.int64()
    expire_timestamp = fields.int64() if version == _EXPIRING_OFFSET else NO_TIMESTAMP
    topic_id = fields.tagged().get(_TOPIC_ID_TAG, _NO_TOPIC_ID)
    fields.ensure_at_end()
    return CommittedOffset(
        offset, leader_epoch, metadata, commit_timestamp, expire_timestamp,
        "" if topic_id == _NO_TOPIC_ID else text_of_uuid(topic_id),
    )  # fmt: skip


def unpack_group(data: bytes) -> GroupMetadata:
    """Decode a group from a record's value in `__consumer_offsets`; raises as `unpack_offset`."""
    fields = _Fields(data, "value of a group in __consumer_offsets")
    version = fields.version(_GROUP_VERSION_MAX)
    protocol_type, generation = fields.string(), fields.int32()
    protocol, leader = fields.nullable_string(), fields.nullable_string()
    state_timestamp = fields.int64() if version >= 2 else NO_TIMESTAMP
    members = fields.array(lambda: _member(fields, version))
    fields.tagged()
    fields.ensure_at_end()
    return GroupMetadata(
        protocol_type, generation, protocol, leader, state_timestamp, tuple(members)
    )


def _member(fields: _Fields, version: int) -> MemberMetadata:
    member_id = fields.string()
    instance_id = fields.nullable_string() if version >= 3 else None
    client_id, client_host = fields.string(), fields.string()
    rebalance_timeout_ms = fields.int32() if version >= 1 else -1
    session_timeout_ms = fields.int32()
    subscription, assignment = fields.blob(), fields.blob()
    fields.tagged()
    return MemberMetadata(
        member_id, instance_id, client_id, client_host,
        session_timeout_ms if rebalance_timeout_ms == -1 else rebalance_timeout_ms,
        session_timeout_ms, subscription, assignment,
    )  # fmt: skip


class _Fields:
    """A bounds-checked reader of the fields of a key or value of `__consumer_offsets`."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data, self._what = data, what
        self._at = 0
        self._is_flexible = False

    def version(self, most: int) -> int:
        """Read the version in front of a value, which sets the format of all later reads."""
        version = self.int16()
        if not 0 <= version <= most:
            raise CorruptRecordError(
                f"version of the {self._what}", expected=f"0 to {most}", found=version
            )
        self._is_flexible = version >= _FLEXIBLE
        return version

    def int16(self) -> int:
        return int(_INT16.unpack(self._take(_INT16.size))[0])

    def int32(self) -> int:
        return int(_INT32.unpack(self._take(_INT32.size))[0])

    def int64(self) -> int:
        return int(_INT64.unpack(self._take(_INT64.size))[0])

    def string(self) -> str:
        return self.nullable_string() or ""

    def nullable_string(self) -> str | None:
        size = self._varint() - 1 if self._is_flexible else self.int16()
        if size < 0:
            return None
        try:
            return self._take(size).decode()
        except UnicodeDecodeError as error:
            raise self._damaged("text in UTF-8", error.object.hex()) from None

    def blob(self) -> bytes:
        size = self._varint() - 1 if self._is_flexible else self.int32()
        return self._take(max(size, 0))

    def array(self, read: Callable[[], _T]) -> list[_T]:
        count = self._varint() - 1 if self._is_flexible else self.int32()
        if count > len(self._data) - self._at:  # Each takes a byte at least.
            raise self._damaged("a count that its bytes can hold", count)
        return [read() for _ in range(count)]

    def tagged(self) -> dict[int, bytes]:
        """Read the tagged fields, by tag; a version that is not flexible has none."""
        if not self._is_flexible:
            return {}
        found = {}
        for _ in range(self._varint()):
            tag = self._varint()
            found[tag] = self._take(self._varint())
        return found

    def ensure_at_end(self) -> None:
        if self._at != len(self._data):
            raise self._damaged("no bytes after the last field", f"{len(self._data) - self._at}")

    def _varint(self) -> int:
        try:
            number, self._at = read_unsigned_varint(self._data, self._at)
        except IndexError as error:
            raise self._damaged("a varint", str(error)) from None
        return number

    def _take(self, size: int) -> bytes:
        left = len(self._data) - self._at
        if size > left:
            raise self._damaged(f"{size} bytes for the next field", f"{left} bytes")
        self._at += size
        return self._data[self._at - size : self._at]

    def _damaged(self, expected: str, found: object) -> CorruptRecordError:
        return CorruptRecordError(self._what, expected=expected, found=found)
