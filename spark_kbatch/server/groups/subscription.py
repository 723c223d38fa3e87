"""The topics in a consumer's subscription: the only part of members' data that the coordinator decodes.

    int16 version, int32 count, topics (strings), and more

Source: Kafka clients/.../common/message/ConsumerProtocolSubscription.json.
"""

from __future__ import annotations

import struct

_TOPICS_MAX = 20_000
_START, _SIZE = struct.Struct(">hi"), struct.Struct(">h")


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
