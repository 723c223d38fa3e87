"""The topics in a consumer's subscription: the only part of members' data that the coordinator decodes.

    int16 version, int32 count, topics (strings), and more

Source: Kafka clients/.../common/message/ConsumerProtocolSubscription.json.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

_TOPICS_MAX = 20_000
_TOPIC_OBJECTS = 110  # bytes that a topic's name takes in a set, besides its characters
_START, _SIZE = struct.Struct(">hi"), struct.Struct(">h")


def decoded_size(protocols: Iterable[tuple[str, bytes]]) -> int:
    """Return the memory that the topics of a member's subscription take once they are decoded, about.

    Args:
        protocols: names, with the metadata of each, of which one will be decoded.
    """
    return max((_TOPIC_OBJECTS * _count(metadata) for _, metadata in protocols), default=0)


def _count(data: bytes) -> int:
    if len(data) < _START.size:
        return 0
    _, count = _START.unpack_from(data)
    return count if 0 <= count <= min(_TOPICS_MAX, len(data) // _SIZE.size) else 0


def topics(data: bytes) -> frozenset[str] | None:
    """Decode the topics of a member's subscription.

    Returns None if it is not in Kafka's consumer format, or names so many that decoding takes long.
    """
    try:
        _, count = _START.unpack_from(data)
        if count > _TOPICS_MAX:
            return None
        position = _START.size
        found = set()
        for _ in range(count):
            (size,) = _SIZE.unpack_from(data, position)
            position += _SIZE.size
            if not 0 <= size <= len(data) - position:
                return None
            found.add(data[position : position + size].decode())
            position += size
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(found) if count >= 0 else None
