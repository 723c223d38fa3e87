"""Control records, with which a transaction coordinator marks the end of a transaction in the log.

A batch with the control bit holds one record. It has an offset, but consumers never see it:

    key     version  int16  0
            type     int16  0 ABORT, 1 COMMIT; 2 to 6 are the metadata quorum's
    value   version  int16  0                     (of ABORT and COMMIT: the end of a transaction)
            coordinator_epoch  int32              of the coordinator that decided

ABORT and COMMIT end the transaction that the batch's producer id has open in the partition, if it has
one. Their batch is transactional and uncompressed, and its base sequence is -1. A higher version is
read as version 0, and the value of an unknown type is not checked, so that newer brokers may extend
both. Compaction may leave the batch without its record.

Source: Kafka clients/.../record/ControlRecordType.java, EndTransactionMarker.java,
MemoryRecords.writeEndTransactionalMarker.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.record import scalar
from spark_kbatch.record.checksums import Buffer
from spark_kbatch.record.header import (
    CONTROL,
    NO_SEQUENCE,
    RECORD_BATCH_OVERHEAD,
    TRANSACTIONAL,
    BatchHeader,
    rewrite,
)

ABORT, COMMIT = 0, 1

_KEY = struct.Struct(">hh")
_MARKER = struct.Struct(">hi")
_VERSION = 0


class EndTransactionMarker(NamedTuple):
    """An end-of-transaction marker: whether it aborts, and the coordinator's epoch."""

    is_abort: bool
    coordinator_epoch: int  # of the coordinator that decided


def encode_marker(
    marker: EndTransactionMarker, *, producer_id: int, producer_epoch: int, timestamp_ms: int
) -> bytearray:
    """Encode a batch that ends a producer's transaction in a partition."""
    key = _KEY.pack(_VERSION, ABORT if marker.is_abort else COMMIT)
    value = _MARKER.pack(_VERSION, marker.coordinator_epoch)
    batch = scalar.encode([(key, value)], timestamp_ms)
    rewrite(
        batch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=NO_SEQUENCE,
        attributes=TRANSACTIONAL | CONTROL,
    )
    return batch


def read_marker(data: Buffer, position: int, header: BatchHeader) -> EndTransactionMarker | None:
    """Return the transaction marker in the control batch at `position`, all of which lies in `data`.

    None if the record is of another type, or was removed by compaction.

    Raises:
        CorruptRecordError: the CRC does not hold, or the record is malformed.
    """
    records = scalar.decode(data, position, header)
    if not records:
        return None
    key, value = records[0].key or b"", records[0].value or b""
    if len(key) < _KEY.size or (version_and_type := _KEY.unpack_from(key))[0] < 0:
        raise CorruptRecordError(
            "key of a control record", position=position + RECORD_BATCH_OVERHEAD,
            expected=f"{_KEY.size} bytes or more, a version from 0 on", found=key.hex() or "none",
        )  # fmt: skip
    if version_and_type[1] not in (ABORT, COMMIT):
        return None
    if len(value) < _MARKER.size or (version_and_epoch := _MARKER.unpack_from(value))[0] < 0:
        raise CorruptRecordError(
            "value of an end transaction marker", position=position + RECORD_BATCH_OVERHEAD,
            expected=f"{_MARKER.size} bytes or more, a version from 0 on",
            found=value.hex() or "none",
        )  # fmt: skip
    return EndTransactionMarker(version_and_type[1] == ABORT, version_and_epoch[1])
