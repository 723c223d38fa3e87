"""CRC-32C of batches, states and snapshots; CRC-32 of the older formats' messages.

Both take any contiguous buffer, and as a second argument the checksum of the bytes before it. They
release the GIL while they read a large buffer.

Source: RFC 3720, appendix B.4.
"""

from __future__ import annotations

from zlib import crc32 as crc32

from crc32c import crc32c as crc32c

from spark_kbatch.files import Buffer as Buffer
