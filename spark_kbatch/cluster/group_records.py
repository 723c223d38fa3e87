"""The keys and values of `__consumer_offsets`, in Kafka's own formats.

All numbers are big-endian. A key starts with an int16, its kind:

    0, 1   group, topic (strings), partition (int32)                    a committed offset
    2      group (string)                                               a group and its members
    3...   of group protocols that this server does not have, kept unchanged: 3, 11, 17 are groups
           of the protocols "consumer", "share" and "streams", and 5, 10, 19 their members; all
           start with the group (string)

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
GroupMetadataKey.json, GroupMetadataValue.json, CoordinatorRecordType;
GroupCoordinatorRecordHelpers.java.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from spark_kbatch.errors import CorruptRecordError, ProtocolError
from spark_kbatch.model import bytes_of_uuid, text_of_uuid
from spark_kbatch.wire.codec import (
    INT16,
    STRING_MAX,
    Codec,
    Reader,
    Writer,
    parse,
    structure,
)

STRING_BYTES_MAX = STRING_MAX
NO_TIMESTAMP = NO_LEADER_EPOCH = -1

_OFFSET_KEYS, _OFFSET_KEY, _GROUP_KEY = (0, 1), 1, 2
# Protocol and whether it is a member's, by kind.
_NEWER_KEYS = {
    3: ("consumer", False), 5: ("consumer", True), 10: ("share", True), 11: ("share", False),
    17: ("streams", False), 19: ("streams", True),
}  # fmt: skip
_EXPIRING_OFFSET, _OFFSET, _GROUP = 1, 4, 3  # versions of values that are written
_VERSION_MAX = _FLEXIBLE = 4

# The fields above, as `wire/messages` has those of requests; of keys the version is the kind.
_FIELDS = {
    "offset key": parse("OffsetCommitKey", "group string, topic string, partition int32"),
    "group key": parse("GroupMetadataKey", "group string"),
    "offset": parse(
        "OffsetCommitValue",
        """\
offset int64, leader_epoch int32 3+ =-1, metadata string, commit_timestamp int64
expire_timestamp int64 1-1 =-1, topic_id uuid 4+ @0""",
    ),
    "group": parse(
        "GroupMetadataValue",
        """\
protocol_type string, generation int32, protocol string?, leader string?
state_timestamp int64 2+ =-1
members []MemberMetadata
    member_id string, instance_id string? 3+ =null, client_id string, client_host string
    rebalance_timeout_ms int32 1+ =-1, session_timeout_ms int32
    subscription bytes, assignment bytes""",
    ),
}
_VALUES = ("offset", "group")  # of which some versions are flexible


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
        return _packed(_GROUP_KEY, "group key", key)
    return _packed(_OFFSET_KEY, "offset key", key)


def pack_offset(value: CommittedOffset) -> bytes:
    """Encode a committed offset as a record's value for `__consumer_offsets`."""
    version = _OFFSET if value.expire_timestamp == NO_TIMESTAMP else _EXPIRING_OFFSET
    topic_id = UUID(bytes=bytes_of_uuid(value.topic_id)) if value.topic_id else None
    fields = value._asdict() | {"topic_id": topic_id}
    return _packed(version, "offset", _FIELDS["offset"](**fields))


def pack_group(value: GroupMetadata) -> bytes:
    """Encode a group's generation and members as a record's value for `__consumer_offsets`.

    Raises:
        ValueError: a string is longer than the format can hold.
    """
    return _packed(_GROUP, "group", value)


def _packed(version: int, what: str, value: object) -> bytes:
    writer = Writer()
    writer += INT16.pack(version)
    _codec(what, version).encode(writer, value)
    return bytes(writer)


@functools.cache
def _codec(what: str, version: int) -> Codec:
    is_flexible = what in _VALUES and version >= _FLEXIBLE
    return structure(_FIELDS[what], version, what, flexible=is_flexible)


# Reading.


def unpack_key(data: bytes) -> Key | None:
    """Decode the key of a record of `__consumer_offsets`; return None for an unknown kind of key.

    Raises:
        CorruptRecordError: the key does not have the format of its version.
    """
    kind = int.from_bytes(data[: INT16.size], "big", signed=True)
    if kind in _OFFSET_KEYS:
        found = _unpacked(data, "offset key")
        return OffsetKey(found.group, found.topic, found.partition)
    return GroupKey(_unpacked(data, "group key").group) if kind == _GROUP_KEY else None


def unpack_newer_key(data: bytes) -> tuple[str, str, bool] | None:
    """Decode the key of a group of a newer protocol, or of one of its members; None for any other.

    Returns:
        The group, its protocol type ("consumer" is KIP-848's), and whether the key is a member's.

    Raises:
        CorruptRecordError: the key does not have the format of its version.
    """
    known = _NEWER_KEYS.get(int.from_bytes(data[: INT16.size], "big", signed=True))
    return known and (_unpacked(data, "group key", has_more=True).group, *known)


def unpack_offset(data: bytes) -> CommittedOffset:
    """Decode a committed offset from a record's value in `__consumer_offsets`.

    Raises:
        CorruptRecordError: the value does not have the format of its version, or has an unknown version.
    """
    found = _unpacked(data, "offset")
    found.topic_id = text_of_uuid(found.topic_id.bytes) if found.topic_id else ""
    return CommittedOffset(*(getattr(found, name) for name in CommittedOffset._fields))


def unpack_group(data: bytes) -> GroupMetadata:
    """Decode a group from a record's value in `__consumer_offsets`; raises as `unpack_offset`."""
    found = _unpacked(data, "group")
    for one in found.members:
        if one.rebalance_timeout_ms == -1:
            one.rebalance_timeout_ms = one.session_timeout_ms
    found.members = tuple(
        MemberMetadata(*(getattr(one, name) for name in MemberMetadata._fields))
        for one in found.members
    )
    return GroupMetadata(*(getattr(found, name) for name in GroupMetadata._fields))


def _unpacked(data: bytes, what: str, *, has_more: bool = False) -> Any:
    """Decode a record's key or value by its entry in `_FIELDS`, to which nothing may be added."""
    reader = Reader(memoryview(data), "record in __consumer_offsets", max_elements=len(data))
    try:
        (version,) = reader.unpack(INT16, f"version of the {what}")
        if what in _VALUES and not 0 <= version <= _VERSION_MAX:
            raise reader.refuse(f"version of the {what}", f"0 to {_VERSION_MAX}", version)
        found = _codec(what, version).decode(reader)
        if reader.position != len(data) and not has_more:
            left = len(data) - reader.position
            raise reader.refuse(what, "no bytes after the last field", left)
    except ProtocolError as error:
        raise CorruptRecordError(
            f"{error.field} of a {error.message}", expected=error.expected, found=error.found
        ) from None
    return found
