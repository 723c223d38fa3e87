"""The partitions in a consumer's assignment, for descriptions of groups.

    int16 version, int32 count, topics: string name, int32 count, int32 partitions; and more

Source: Kafka clients/.../common/message/ConsumerProtocolAssignment.json.
"""

from __future__ import annotations

import struct

from spark_kbatch.model import TopicPartition

_START, _SIZE, _COUNT = struct.Struct(">hi"), struct.Struct(">h"), struct.Struct(">i")
_NUMBER_BYTES = 4


def partitions(data: bytes) -> tuple[TopicPartition, ...]:
    """Decode the partitions of a group member's assignment; none if it is not in Kafka's consumer format."""
    found = []
    try:
        _, topics = _START.unpack_from(data)
        position = _START.size
        for _ in range(topics):
            (size,) = _SIZE.unpack_from(data, position)
            position += _SIZE.size
            if not 0 <= size <= len(data) - position:
                return ()
            topic = data[position : position + size].decode()
            position += size
            (count,) = _COUNT.unpack_from(data, position)
            position += _COUNT.size
            if not 0 <= count * _NUMBER_BYTES <= len(data) - position:
                return ()
            numbers = struct.unpack_from(f">{count}i", data, position)
            position += count * _NUMBER_BYTES
            found += [TopicPartition(topic, number) for number in numbers]
    except (struct.error, UnicodeDecodeError):
        return ()
    return tuple(sorted(found))
