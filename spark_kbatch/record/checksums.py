"""CRC-32C of batches and states, CRC-32 of old messages; the only module that imports awscrt.

That is the fastest there is, and takes 50 ms to load: as long as all else that a process needs which
only plans. So until somebody has more than a state to check, a table does.

Source: RFC 3720, appendix B.4.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reflected
_SHORT = 256  # bytes


def crc32c(data: Buffer, crc: int = 0) -> int:
    """CRC-32C of `data`, or of what `crc` is that of and `data` behind it."""
    if len(data) <= _SHORT and "awscrt.checksums" not in sys.modules:
        return _by_table(data, crc)
    found: int = _library().crc32c(data, crc)
    return found


def crc32(data: Buffer) -> int:
    """CRC-32 of `data`."""
    found: int = _library().crc32(data)
    return found


@functools.cache
def _library() -> ModuleType:
    from awscrt import checksums  # noqa: PLC0415  see the module's docstring

    return checksums  # type: ignore[no-any-return]


def _by_table(data: Buffer, crc: int) -> int:
    table = _table()
    crc ^= 0xFFFFFFFF
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
