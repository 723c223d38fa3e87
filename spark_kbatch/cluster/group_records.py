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
from typing import NamedTuple, TypeAlias

from spark_kbatch.cluster.record_fields import RecordFields, packed_topic_id, unpacked_topic_id
from spark_kbatch.commit.internal_topics import CONSUMER_OFFSETS
from spark_kbatch.wire.codec import INT16, STRING_MAX

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

# Of keys the version is the kind.
_fields_of = functools.partial(RecordFields, CONSUMER_OFFSETS.topic)
_OFFSET_KEY_FIELDS = _fields_of("offset key", "group string, topic string, partition int32")
_GROUP_KEY_FIELDS = _fields_of("group key", "group string")
_OFFSET_FIELDS = _fields_of(
    "offset",
    """\
offset int64, leader_epoch int32 3+ =-1, metadata string, commit_timestamp int64
expire_timestamp int64 1-1 =-1, topic_id uuid 4+ @0""",
    version_max=_VERSION_MAX,
    flexible=_FLEXIBLE,
)
_GROUP_FIELDS = _fields_of(
    "group",
    """\
protocol_type string, generation int32, protocol string?, leader string?
state_timestamp int64 2+ =-1
members []MemberMetadata
    member_id string, instance_id string? 3+ =null, client_id string, client_host string
    rebalance_timeout_ms int32 1+ =-1, session_timeout_ms int32
    subscription bytes, assignment bytes""",
    version_max=_VERSION_MAX,
    flexible=_FLEXIBLE,
)


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
        return _GROUP_KEY_FIELDS.pack(_GROUP_KEY, key)
    return _OFFSET_KEY_FIELDS.pack(_OFFSET_KEY, key)


def pack_offset(value: CommittedOffset) -> bytes:
    """Encode a committed offset as a record's value for `__consumer_offsets`."""
    version = _OFFSET if value.expire_timestamp == NO_TIMESTAMP else _EXPIRING_OFFSET
    fields = value._asdict() | {"topic_id": packed_topic_id(value.topic_id)}
    return _OFFSET_FIELDS.pack(version, _OFFSET_FIELDS.kind(**fields))


def pack_group(value: GroupMetadata) -> bytes:
    """Encode a group's generation and members as a record's value for `__consumer_offsets`.

    Raises:
        ValueError: a string is longer than the format can hold.
    """
    return _GROUP_FIELDS.pack(_GROUP, value)


# Reading.


def unpack_key(data: bytes) -> Key | None:
    """Decode the key of a record of `__consumer_offsets`; return None for an unknown kind of key.

    Raises:
        CorruptRecordError: the key does not have the format of its version.
    """
    kind = int.from_bytes(data[: INT16.size], "big", signed=True)
    if kind in _OFFSET_KEYS:
        found = _OFFSET_KEY_FIELDS.unpack(data)
        return OffsetKey(found.group, found.topic, found.partition)
    return GroupKey(_GROUP_KEY_FIELDS.unpack(data).group) if kind == _GROUP_KEY else None


def unpack_newer_key(data: bytes) -> tuple[str, str, bool] | None:
    """Decode the key of a group of a newer protocol, or of one of its members; None for any other.

    Returns:
        The group, its protocol type ("consumer" is KIP-848's), and whether the key is a member's.

    Raises:
        CorruptRecordError: the key does not have the format of its version.
    """
    known = _NEWER_KEYS.get(int.from_bytes(data[: INT16.size], "big", signed=True))
    return known and (_GROUP_KEY_FIELDS.unpack(data, has_more=True).group, *known)


def unpack_offset(data: bytes) -> CommittedOffset:
    """Decode a committed offset from a record's value in `__consumer_offsets`.

    Raises:
        CorruptRecordError: the value does not have the format of its version, or has an unknown version.
    """
    found = _OFFSET_FIELDS.unpack(data)
    found.topic_id = unpacked_topic_id(found.topic_id)
    return CommittedOffset(*(getattr(found, name) for name in CommittedOffset._fields))


def unpack_group(data: bytes) -> GroupMetadata:
    """Decode a group from a record's value in `__consumer_offsets`; raises as `unpack_offset`."""
    found = _GROUP_FIELDS.unpack(data)
    for one in found.members:
        if one.rebalance_timeout_ms == -1:
            one.rebalance_timeout_ms = one.session_timeout_ms
    found.members = tuple(
        MemberMetadata(*(getattr(one, name) for name in MemberMetadata._fields))
        for one in found.members
    )
    return GroupMetadata(*(getattr(found, name) for name in GroupMetadata._fields))
