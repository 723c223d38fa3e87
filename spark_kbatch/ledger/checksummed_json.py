"""Objects of one line of JSON and its checksum, which people can read and a store cannot damage unseen.

    {"key":"value",...}     sorted keys, no spaces, ASCII: the same values give the same bytes
    c1d04330                CRC-32C of the first line with its end, eight hex digits

Each line ends with a line feed. A reader checks the sum before it looks at a value.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from spark_kbatch.errors import CorruptLedgerError, UnsupportedLedgerError
from spark_kbatch.record.checksums import crc32c
from spark_kbatch.stored_json import StoredObject, parse

_SUM_SIZE = len("c1d04330\n")


def encode(values: Mapping[str, Any]) -> bytes:
    """Return the bytes of an object."""
    line = json.dumps(values, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    return line + sum_of(line).encode() + b"\n"


def decode(data: bytes, name: str) -> StoredObject:
    """Return the values of an object, to be checked as they are taken.

    Raises:
        CorruptLedgerError: its sum does not hold, or it is no such object; the errors of its values too.
    """
    line = data[:-_SUM_SIZE]
    if data[-_SUM_SIZE:] != sum_of(line).encode() + b"\n":
        raise CorruptLedgerError(
            name, f"its {len(data)} bytes do not have the sum that they end with"
        )
    return parse(line, name, damaged=functools.partial(CorruptLedgerError, name))


def ensure_version(found: StoredObject, known: int) -> None:
    """Check that an object has the version that this package knows.

    Raises:
        UnsupportedLedgerError: it has another one.
    """
    version = found.integer("v", 1)
    if version != known:
        raise UnsupportedLedgerError(f"{found.where}", f"its 'v' is {version}; known is {known}")


def sum_of(data: bytes) -> str:
    """Return the checksum of bytes as text."""
    return f"{crc32c(data):08x}"
