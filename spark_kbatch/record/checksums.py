"""CRC-32C of batches and states, CRC-32 of old messages; the only module that imports awscrt.

That is the fastest there is, and takes 50 ms to load: as long as all else that a process needs which
only plans. So it is loaded when one of its functions is first asked for, and before that the checksum
of a state is taken from a table.

Source: RFC 3720, appendix B.4.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reflected

if TYPE_CHECKING:

    def crc32c(data: Buffer, previous: int = 0) -> int:
        """CRC-32C of `data`, or of what `previous` is that of and `data` behind it."""

    def crc32(data: Buffer, previous: int = 0) -> int:
        """CRC-32, likewise."""


def __getattr__(name: str) -> Any:
    if name not in ("crc32c", "crc32"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from awscrt import checksums  # noqa: PLC0415  see the module's docstring

    # Who asks again finds them without coming here.
    globals().update(crc32c=checksums.crc32c, crc32=checksums.crc32)
    return globals()[name]


def crc32c_of_few(data: Buffer) -> int:
    """CRC-32C of a hundred bytes or so: 0.1 us for each until the library is loaded."""
    if "crc32c" in globals():
        return crc32c(data)
    table, crc = _table(), 0xFFFFFFFF
    for byte in memoryview(data):
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


@functools.cache
def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table
