"""The 61 bytes in front of every record batch, big-endian.

    position  bytes  field                   type
           0      8  base_offset             int64   set by the leader on append
           8      4  batch_length            int32   bytes after this field
          12      4  partition_leader_epoch  int32   outside the CRC, so that the leader can set it
          16      1  magic                   int8    2
          17      4  crc                     uint32  CRC-32C of position 21 to the end
          21      2  attributes              int16   0-2 codec, 3 timestamp type, 4 transactional,
                                                     5 control, 6 delete horizon
          23      4  last_offset_delta       int32
          27      8  base_timestamp          int64   ms; of the first record, -1 for none
          35      8  max_timestamp           int64   ms; append time where bit 3 is set
          43      8  producer_id             int64   -1 for none
          51      2  producer_epoch          int16   -1 for none
          53      4  base_sequence           int32   -1 for none
          57      4  records_count           int32
          61         records

Nothing here reads record bodies or touches a file.
Source: Kafka clients/.../record/DefaultRecordBatch.java; KIP-98, KIP-534.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from awscrt import checksums

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.model import AbortedTransaction

Buffer: TypeAlias = bytes | bytearray | memoryview

LOG_OVERHEAD = 12
RECORD_BATCH_OVERHEAD = 61
CRC_POSITION = 17
CRC_COVERS_FROM = 21
MAGIC = 2
MIN_RECORD_SIZE = 7  # null key, null value, no headers

MAX_OFFSET = 2**63 - 1
NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

CREATE_TIME_TYPE = 0
LOG_APPEND_TIME_TYPE = 1

_HEADER = struct.Struct(">qiibIhiqqqhii")
_BASE_OFFSET_TO_EPOCH = struct.Struct(">qii")
_LENGTH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_PRODUCER, _PRODUCER_POSITION = struct.Struct(">qhi"), 43
_SEQUENCE_MAX = 2**31 - 1
assert _HEADER.size == RECORD_BATCH_OVERHEAD


_LENGTH_MIN = RECORD_BATCH_OVERHEAD - LOG_OVERHEAD


class BatchHeader(NamedTuple):
    """One batch's header; the fields in the order of their bytes."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size_in_bytes(self) -> int:
        """The whole batch, header included."""
        return LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        """Inclusive."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Exclusive end of the batch's offsets."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """Compression id, 0 to 4 where valid."""
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        """0 CreateTime, 1 LogAppendTime."""
        return (self.attributes & LOG_APPEND_TIME) >> 3

    @property
    def is_control(self) -> bool:
        """Whether it holds a control record, which consumers never see."""
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        """Whether it belongs to a transaction, or ends one."""
        return bool(self.attributes & TRANSACTIONAL)

    def ensure_sane(self, position: int, room: int) -> None:
        """Check what can be checked without the records.

        Args:
            position: where the batch begins; errors count from it.
            room: how many bytes there are from there on.

        Raises:
            CorruptRecordError: a magic, size or count that cannot be.
        """
        size, section = self.size_in_bytes, self.batch_length - _LENGTH_MIN
        if self.magic != MAGIC:
            raise CorruptRecordError(
                "magic byte", position=position + 16, expected=MAGIC, found=self.magic
            )
        if not RECORD_BATCH_OVERHEAD <= size <= room:
            raise CorruptRecordError(
                "batch length",
                position=position + 8,
                expected=f"{_LENGTH_MIN} to {room - LOG_OVERHEAD}",
                found=self.batch_length,
            )
        if self.records_count < 0 or self.last_offset_delta < 0:
            raise CorruptRecordError(
                "records count or last offset delta",
                position=position,
                expected="0 or more",
                found=f"{self.records_count} and {self.last_offset_delta}",
            )
        if not 0 <= self.base_offset <= MAX_OFFSET - self.last_offset_delta:
            raise CorruptRecordError(
                "base offset",
                position=position,
                expected=f"0 to {MAX_OFFSET - self.last_offset_delta}",
                found=self.base_offset,
            )
        if not self.attributes & CODEC_MASK and self.records_count * MIN_RECORD_SIZE > section:
            raise CorruptRecordError(
                "records count for the bytes there are",
                position=position + 57,
                expected=f"at most {section // MIN_RECORD_SIZE}",
                found=self.records_count,
            )


class LogRead(NamedTuple):
    """Whole batches as they lie in a file. `data` may be a view of the reader's buffer."""

    path: str
    position: int
    data: memoryview
    batches: list[tuple[int, BatchHeader]]
    # Of which something may be among the batches, by first offset; where committed data was asked for.
    aborted: Sequence[AbortedTransaction] = ()

    def below(self, end_offset: int) -> LogRead:
        """Without the batches that begin at `end_offset` or above."""
        count = len(self.batches)
        while count and self.batches[count - 1][1].base_offset >= end_offset:
            count -= 1
        if count == len(self.batches):
            return self
        size = self.batches[count][0]
        return self._replace(data=self.data[:size], batches=self.batches[:count])


def unpack(data: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`; the caller has checked that 61 bytes are there."""
    return BatchHeader._make(_HEADER.unpack_from(data, position))


def seal(
    out: memoryview,
    records_count: int,
    base_timestamp: int,
    max_timestamp: int,
    attributes: int = 0,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> None:
    """Write header and CRC of a batch whose records already lie at out[61:]."""
    _HEADER.pack_into(
        out, 0,
        base_offset, len(out) - LOG_OVERHEAD, leader_epoch, MAGIC, 0, attributes,
        records_count - 1 if records_count else 0, base_timestamp, max_timestamp,
        producer_id, producer_epoch, base_sequence, records_count,
    )  # fmt: skip
    _CRC.pack_into(out, CRC_POSITION, checksums.crc32c(out[CRC_COVERS_FROM:]))


def rewrite(data: memoryview, *, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
    """Set the producer's numbers of a whole batch, and the CRC, which covers them."""
    _PRODUCER.pack_into(data, _PRODUCER_POSITION, producer_id, producer_epoch, base_sequence)
    _CRC.pack_into(data, CRC_POSITION, checksums.crc32c(data[CRC_COVERS_FROM:]))


def increment_sequence(sequence: int, count: int) -> int:
    """`count` further, within [0, 2^31 - 1]: 0 follows the largest."""
    return (sequence + count) & _SEQUENCE_MAX


def assign(
    data: bytearray | memoryview, position: int, *, base_offset: int, leader_epoch: int
) -> None:
    """Set what the leader sets, as absolute values; both lie outside the CRC."""
    length = _LENGTH.unpack_from(data, position + 8)[0]
    _BASE_OFFSET_TO_EPOCH.pack_into(data, position, base_offset, length, leader_epoch)


def whole_size(data: Buffer) -> int:
    """How many bytes of `data`, from its begin, are whole batches as far as their sizes say.

    A size that cannot be counts as the least a batch has; `walk` says what is wrong with it.
    """
    end = 0
    while len(data) - end >= RECORD_BATCH_OVERHEAD:
        size = max(unpack(data, end).size_in_bytes, RECORD_BATCH_OVERHEAD)
        if size > len(data) - end:
            break
        end += size
    return end


def walk(
    data: Buffer, position: int = 0, end: int | None = None
) -> Iterator[tuple[int, BatchHeader]]:
    """The batches that lie back to back in data[position:end], as (position, header).

    Checks sizes and magic before they are used, not the CRC. A partial batch at the end is an
    error: whoever may meet one bounds `end` first.

    Raises:
        CorruptRecordError: a size, magic or count that cannot be; carries the position in `data`.
    Source: ByteBufferLogInputStream.nextBatch.
    """
    end = len(data) if end is None else end
    while position < end:
        if end - position < RECORD_BATCH_OVERHEAD:
            raise CorruptRecordError(
                "batch is cut off",
                position=position,
                expected=f"{RECORD_BATCH_OVERHEAD} bytes or more",
                found=end - position,
            )
        header = BatchHeader._make(_HEADER.unpack_from(data, position))
        header.ensure_sane(position, end - position)
        yield position, header
        position += LOG_OVERHEAD + header.batch_length


def ensure_valid(data: Buffer, position: int, header: BatchHeader) -> None:
    """Check the CRC of the batch at `position`.

    Raises:
        CorruptRecordError: carries both values.
    """
    end = position + LOG_OVERHEAD + header.batch_length
    found = checksums.crc32c(memoryview(data)[position + CRC_COVERS_FROM : end])
    if found != header.crc:
        raise CorruptRecordError(
            "CRC-32C", position=position, expected=f"{header.crc:#010x}", found=f"{found:#010x}"
        )
