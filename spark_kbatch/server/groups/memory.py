"""Memory for groups: what members and committed offsets may take, since they outlive their connections.

    a member      1 MiB of metadata, in up to 64 protocols
    a group       4 MiB of members' metadata, and of assignments; 16 MiB of metadata of its offsets
    all groups    64 MiB, with names and ids, and with what Python's objects take

Kafka's limit is that a group has to fit into one record of `__consumer_offsets`, 1 MiB by default; it
notices only when the leader has sent the assignments. Here a JoinGroup is refused at once, with the error
that Kafka gives then.

Source: Kafka group-coordinator/.../GroupMetadataManager.java appendGroupMetadataErrorToResponseError.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

MEMBER_BYTES_MAX = 1 << 20
PROTOCOLS_MAX = 64
GROUP_BYTES_MAX = 4 << 20
OFFSETS_BYTES_MAX = (
    16 << 20
)  # of the metadata of one group's offsets, so of the answer about one group
ANSWER_BYTES_MAX = 16 << 20  # of groups in one answer; for others the client has to ask again
_ALL_BYTES_MAX = 64 << 20
# Of Python's objects, besides bytes of clients.
MEMBER_OBJECTS, OFFSET_OBJECTS, GROUP_OBJECTS, PENDING_OBJECTS = 3000, 700, 2000, 1500

_REST = 20  # between two measurements, in times that the last one took


def size_of_texts(*texts: str | None) -> int:
    """Return the memory that names and ids take, of which each has up to 32 KiB."""
    return sum(sys.getsizeof(one) for one in texts if one)


class GroupMemory:
    """The limit on the memory of all groups together; not thread-safe.

    What is added is counted, and what goes, or was never kept, is not: once the sum is above the
    limit, all that is there is measured. So nothing is refused for what is not there, but for a while
    after a measurement that took long: clients could keep the server busy with these.
    """

    def __init__(self, measure: Callable[[], int], monotonic_ms: Callable[[], int]) -> None:
        """Start with what is there; `measure` returns the size of all that is kept now."""
        self._measure, self._monotonic_ms = measure, monotonic_ms
        self._size_in_bytes = 0
        self._again_ms: int | None = (
            None  # when it may be measured again; None before the first time
        )

    def take(self, size_in_bytes: int) -> bool:
        """Count memory for something that is to be kept; return False if there is not as much."""
        if size_in_bytes <= 0:
            return True
        now_ms = self._monotonic_ms()
        if self._again_ms is None or (
            self._size_in_bytes + size_in_bytes > _ALL_BYTES_MAX and now_ms >= self._again_ms
        ):
            self._size_in_bytes = self._measure()
            self._again_ms = now_ms + (_REST + 1) * (self._monotonic_ms() - now_ms)
        if self._size_in_bytes + size_in_bytes > _ALL_BYTES_MAX:
            return False
        self._size_in_bytes += size_in_bytes
        return True
