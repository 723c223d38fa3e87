"""Validation of every record of a batch that a leader is about to store.

    inspect     one V2 batch --decompress, a piece at a time--> kernel --> the times of its records

What passes is read by `codec` without an error. Memory stays at about one piece, whatever the batch
expands to, unless a single record is larger.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.files import Buffer
from spark_kbatch.kernels import records as record_kernels
from spark_kbatch.model import LONG_MAX
from spark_kbatch.record import compression
from spark_kbatch.record.codec import RECORD_FAULTS
from spark_kbatch.record.columns import Array
from spark_kbatch.record.header import (
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
)

# Of one record in a compressed batch, which is held until all of it is there. Kafka's clients limit it
# to their max.request.size before compression, which is 1 MiB by default.
RECORD_BYTES_MAX = 128 << 20


class Times(NamedTuple):
    """The smallest and largest timestamp of a batch's records."""

    smallest: int  # that is not -1; -1 if none is
    largest: int  # -1 or more, as in Kafka


def inspect(data: Buffer, header: BatchHeader) -> Times:
    """Check every record of the one batch in `data`; return its smallest and largest timestamp.

    Its header and CRC were checked.

    Raises:
        CorruptRecordError: a record that the format does not allow, or whose offset delta is not its
            number; too few or too many records; more bytes than readers decompress by default.
    """
    facts = np.array([0, header.base_timestamp, NO_TIMESTAMP, LONG_MAX, 0], np.int64)
    try:
        _walk(memoryview(data)[RECORD_BATCH_OVERHEAD:], header, facts)
    except CorruptRecordError as error:
        raise error.at("", RECORD_BATCH_OVERHEAD) from None
    largest, smallest = int(facts[2]), int(facts[3])
    return Times(NO_TIMESTAMP if smallest == LONG_MAX else smallest, largest)


def _walk(view: memoryview, header: BatchHeader, facts: Array) -> None:
    """Check each record of a batch in `view`, which may be compressed, a piece at a time.

    Positions in errors count from its start.
    """
    count = header.records_count
    record_bytes_max = RECORD_BYTES_MAX if header.codec else len(view)
    rest = bytearray()  # of a piece, from the first record on that is not whole
    checked = 0  # bytes of the records before that
    for piece in compression.decompress_pieces(header.codec, view):
        if not piece:
            continue
        given: Buffer = piece
        if rest:
            rest += piece
            given = rest
        code = int(record_kernels.check_records(_flat(given), count, record_bytes_max, facts))
        size = int(facts[4])
        checked += size
        if code == count and size < len(given):
            code = record_kernels.TRAILING_BYTES
        if code < 0:
            what = f"record {facts[0]}: {RECORD_FAULTS[code]}"
            if header.codec:
                raise CorruptRecordError(f"{what}, {checked} bytes into the decompressed records")
            raise CorruptRecordError(what, position=checked)
        if given is rest:
            del rest[:size]
        else:
            rest += memoryview(given)[size:]
    found = int(facts[0])
    if found < count:
        raise CorruptRecordError("fewer whole records than it says", expected=count, found=found)


def _flat(data: Buffer) -> Array:
    flat = np.frombuffer(data, np.uint8)
    flat.setflags(write=False)
    return flat
