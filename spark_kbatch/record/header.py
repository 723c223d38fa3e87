"""The 61-byte header in front of every record batch, big-endian.

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
          35      8  max_timestamp           int64   ms; the append time if bit 3 is set
          43      8  producer_id             int64   -1 for none
          51      2  producer_epoch          int16   -1 for none
          53      4  base_sequence           int32   -1 for none
          57      4  records_count           int32
          61         records

A message of the formats V0 and V1 (`legacy` has their table) has the same header tuple, with the
sentinels above for fields that it does not have. Plain messages that lie back to back are walked as one
batch. A wrapper, whose value holds other messages, compressed, does not say how many they are or at
which offset they start; until it is opened, its records_count is -1 and its base_offset its last offset.

Nothing here reads record bodies or touches a file.

Source: Kafka clients/.../record/DefaultRecordBatch.java, AbstractLegacyRecordBatch.java; KIP-98,
KIP-534.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_kbatch.errors import CorruptRecordError, InvalidRecordError
from spark_kbatch.model import AbortedTransaction, TopicPartition
from spark_kbatch.record import checksums
from spark_kbatch.record.checksums import Buffer

if TYPE_CHECKING:
    import numpy as np

LOG_OVERHEAD = 12
RECORD_BATCH_OVERHEAD = 61
LENGTH_POSITION = 8
MAGIC_POSITION = 16
CRC_POSITION = 17
ATTRIBUTES_POSITION = CRC_COVERS_FROM = 21
RECORDS_COUNT_POSITION = 57
MAGIC = 2
MIN_RECORD_SIZE = 7  # null key, null value, no headers

# Bytes of a message of magic 0 and 1 in addition to its key and value.
MESSAGE_OVERHEADS = (26, 34)
MESSAGE_CRC_COVERS_FROM = 16

MAX_OFFSET = 2**63 - 1
NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1
UNKNOWN_COUNT = -1

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
_DELETE_HORIZON = 0x40

NO_TIMESTAMP_TYPE = -1
LOG_APPEND_TIME_TYPE = 1

_HEADER = struct.Struct(">qiibIhiqqqhii")
_BASE_OFFSET_TO_EPOCH = struct.Struct(">qii")
_LENGTH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_MESSAGE = struct.Struct(">qiIbb")  # offset, size, CRC, magic, attributes
_TIMESTAMP = struct.Struct(">q")
_PRODUCER, PRODUCER_ID_POSITION = struct.Struct(">qhi"), 43
_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP, _MAX_TIMESTAMP_POSITION = struct.Struct(">q"), 35
SEQUENCE_MAX = 2**31 - 1
assert _HEADER.size == RECORD_BATCH_OVERHEAD


_LENGTH_MIN = RECORD_BATCH_OVERHEAD - LOG_OVERHEAD

# Plain messages that are walked as one batch have at most RUN_BYTES_MAX bytes, unless the first is
# larger. The first _PLAIN_WALK_MAX of them are walked in plain Python: fewer lie between two index
# entries, so looking for a position does not load numba.
RUN_BYTES_MAX = 1024 * 1024
_PLAIN_WALK_MAX = 256


class BatchHeader(NamedTuple):
    """The header of one batch, with its fields in the order of their bytes."""

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
        """Size of the whole batch, header included."""
        return LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        """Offset of the last record, inclusive."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Exclusive end of the batch's offsets."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """Id of the batch's compression codec, 0 to 4 where valid."""
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        """The timestamp type: 0 for CreateTime, 1 for LogAppendTime, -1 for V0, which has no times."""
        if self.magic == 0:
            return NO_TIMESTAMP_TYPE
        return (self.attributes & LOG_APPEND_TIME) >> 3

    def with_log_append_time(self, time_ms: int) -> BatchHeader:
        """Return the header with LogAppendTime and this time set, as by `set_log_append_time`.

        Its CRC is still the old one.
        """
        return self._replace(attributes=self.attributes | LOG_APPEND_TIME, max_timestamp=time_ms)

    @property
    def is_control(self) -> bool:
        """Whether the batch holds a control record, which consumers never see."""
        return self.magic == MAGIC and bool(self.attributes & CONTROL)

    @property
    def is_wrapper(self) -> bool:
        """Whether this is one message of V0 or V1 that holds others, compressed."""
        return self.magic < MAGIC and bool(self.attributes & CODEC_MASK)

    @property
    def has_delete_horizon(self) -> bool:
        """Whether compaction has set a time from which its deleting records may go, in base_timestamp."""
        return bool(self.attributes & _DELETE_HORIZON)

    @property
    def is_dense(self) -> bool:
        """Whether the batch has a record at each offset; False for a V0 or V1 wrapper not opened yet."""
        return self.records_count == self.last_offset_delta + 1

    def opened(self, base_offset: int) -> BatchHeader:
        """Return a V0 or V1 wrapper's header with its messages' first offset and count; they have no gaps."""
        delta = self.last_offset - base_offset
        return self._replace(
            base_offset=base_offset, last_offset_delta=delta, records_count=delta + 1
        )

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction, or ends one."""
        return self.magic == MAGIC and bool(self.attributes & TRANSACTIONAL)

    def with_base_offset(self, base_offset: int, leader_epoch: int) -> BatchHeader:
        """Return the header with the base offset and leader epoch that `assign` writes.

        It takes a third of the time of `_replace`.
        """
        return _make((base_offset, self[1], leader_epoch, *self[3:]))

    def ensure_sane(self, position: int, room: int) -> None:
        """Check the header's magic, length, counts and offsets, which needs no records.

        Args:
            position: where the batch starts; positions of errors count from the same origin.
            room: number of bytes from there on.

        Raises:
            CorruptRecordError: an impossible magic, size, count or offset.
        """
        # Unpacked at once: this runs for every batch, and naming a field takes as long as testing it.
        base_offset, length, _, magic, _, attributes, delta, _, _, _, _, _, count = self
        if not 0 <= magic <= MAGIC:
            raise CorruptRecordError(
                "magic byte",
                position=position + MAGIC_POSITION,
                expected=f"0 to {MAGIC}",
                found=magic,
            )
        length_min = _LENGTH_MIN if magic == MAGIC else MESSAGE_OVERHEADS[magic] - LOG_OVERHEAD
        if not length_min <= length <= room - LOG_OVERHEAD:
            raise CorruptRecordError(
                "batch length",
                position=position + LENGTH_POSITION,
                expected=f"{length_min} to {room - LOG_OVERHEAD}",
                found=length,
            )
        if magic == MAGIC:
            if count < 0 or delta < 0:
                raise CorruptRecordError(
                    "records count or last offset delta",
                    position=position,
                    expected="0 or more",
                    found=f"{count} and {delta}",
                )
            if not attributes & CODEC_MASK and count * MIN_RECORD_SIZE > length - _LENGTH_MIN:
                raise CorruptRecordError(
                    "records count that the bytes cannot hold",
                    position=position + RECORDS_COUNT_POSITION,
                    expected=f"at most {(length - _LENGTH_MIN) // MIN_RECORD_SIZE}",
                    found=count,
                )
        if not 0 <= base_offset <= MAX_OFFSET - delta:
            raise CorruptRecordError(
                "base offset",
                position=position,
                expected=f"0 to {MAX_OFFSET - delta}",
                found=base_offset,
            )


# BatchHeader._make without its check of the number of fields, which `_HEADER` guarantees.
_make = functools.partial(tuple.__new__, BatchHeader)


def together(headers: Sequence[BatchHeader]) -> BatchHeader:
    """Return one header for a run of consecutive batches, as if they were one batch.

    It is the first one's, with the counts of all.

    Args:
        headers: of batches that lie back to back; of one producer, if they have sequences.
    """
    first = headers[0]
    records_count = sum(header.records_count for header in headers)
    return first._replace(
        batch_length=sum(header.size_in_bytes for header in headers) - LOG_OVERHEAD,
        last_offset_delta=records_count - 1,
        max_timestamp=max(header.max_timestamp for header in headers),
        records_count=records_count,
    )


class LogRead(NamedTuple):
    """Whole record batches as read from a `.log` file, with their positions and headers.

    `data` may be a view of the reader's buffer.
    """

    path: str
    position: int
    data: memoryview
    batches: list[tuple[int, BatchHeader]]
    # Aborted transactions that may have data in the batches, by first offset, if the reader asked for
    # committed data.
    aborted: Sequence[AbortedTransaction] = ()

    def below(self, end_offset: int) -> LogRead:
        """Return the read without the batches that are known to start at `end_offset` or above."""
        count = len(self.batches)
        while count and self._first_offset(count - 1) >= end_offset:
            count -= 1
        if count == len(self.batches):
            return self
        size = self.batches[count][0]
        return self._replace(data=self.data[:size], batches=self.batches[:count])

    def _first_offset(self, index: int) -> int:
        """Return a lower bound of the offsets in batch number `index`.

        For a wrapper it is from the batch before it.
        """
        header = self.batches[index][1]
        if not header.is_wrapper or header.is_dense:
            return header.base_offset
        return self.batches[index - 1][1].next_offset if index else 0


def unpack(data: Buffer, position: int = 0) -> BatchHeader:
    """Parse the header of the record batch, or of the V0 or V1 message, at `position`.

    The caller has checked that there are 61 bytes, or 26 if the magic is below 2.
    """
    if data[position + MAGIC_POSITION] < MAGIC:
        return _message(data, position)
    return _make(_HEADER.unpack_from(data, position))


def _message(data: Buffer, position: int) -> BatchHeader:
    offset, size, crc, magic, attributes = _MESSAGE.unpack_from(data, position)
    timestamp = NO_TIMESTAMP
    if magic > 0:
        (timestamp,) = _TIMESTAMP.unpack_from(data, position + _MESSAGE.size)
    return BatchHeader(
        base_offset=offset,
        batch_length=size,
        partition_leader_epoch=NO_LEADER_EPOCH,
        magic=magic,
        crc=crc,
        attributes=attributes,
        last_offset_delta=0,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
        records_count=UNKNOWN_COUNT if attributes & CODEC_MASK else 1,
    )


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
    """Write the header and CRC of a batch whose records are already at out[61:]."""
    _HEADER.pack_into(
        out, 0,
        base_offset, len(out) - LOG_OVERHEAD, leader_epoch, MAGIC, 0, attributes,
        records_count - 1 if records_count else 0, base_timestamp, max_timestamp,
        producer_id, producer_epoch, base_sequence, records_count,
    )  # fmt: skip
    _CRC.pack_into(out, CRC_POSITION, checksums.crc32c(out[CRC_COVERS_FROM:]))


def without_records(offsets_count: int) -> bytearray:
    """Return a batch that has offsets and no records, as compaction leaves it where all of them are gone."""
    data = bytearray(RECORD_BATCH_OVERHEAD)
    _HEADER.pack_into(
        data, 0,
        0, RECORD_BATCH_OVERHEAD - LOG_OVERHEAD, NO_LEADER_EPOCH, MAGIC, 0, 0, offsets_count - 1,
        NO_TIMESTAMP, NO_TIMESTAMP, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE, 0,
    )  # fmt: skip
    _CRC.pack_into(data, CRC_POSITION, checksums.crc32c(memoryview(data)[CRC_COVERS_FROM:]))
    return data


def seal_message(out: memoryview, magic: int, offset: int, attributes: int, timestamp: int) -> None:
    """Write the header and CRC of one message of V0 or V1 whose key and value are already in place."""
    if magic > 0:
        _TIMESTAMP.pack_into(out, _MESSAGE.size, timestamp)
    _MESSAGE.pack_into(out, 0, offset, len(out) - LOG_OVERHEAD, 0, magic, attributes)
    _CRC.pack_into(out, LOG_OVERHEAD, checksums.crc32(out[MESSAGE_CRC_COVERS_FROM:]))


def rewrite(
    data: bytearray | memoryview,
    *,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    attributes: int | None = None,
) -> None:
    """Set a batch's producer id, epoch and sequence in place, and update its CRC, which covers them.

    Args:
        attributes: to set as well; None leaves them as they are.
    """
    data = memoryview(data)
    if attributes is not None:
        _ATTRIBUTES.pack_into(data, ATTRIBUTES_POSITION, attributes)
    _PRODUCER.pack_into(data, PRODUCER_ID_POSITION, producer_id, producer_epoch, base_sequence)
    _CRC.pack_into(data, CRC_POSITION, checksums.crc32c(data[CRC_COVERS_FROM:]))


def size_of_first(data: Buffer) -> int:
    """Return the size in bytes that the first batch in `data` states; all of `data` if it cannot be right."""
    if len(data) < RECORD_BATCH_OVERHEAD:
        return len(data)
    size: int = LOG_OVERHEAD + _LENGTH.unpack_from(data, LENGTH_POSITION)[0]
    return size if RECORD_BATCH_OVERHEAD <= size <= len(data) else len(data)


def increment_sequence(sequence: int, count: int) -> int:
    """Return the producer sequence number `count` later, wrapping from 2^31 - 1 to 0."""
    return (sequence + count) & SEQUENCE_MAX


def sequence_after(base_sequence: int, count: int) -> int:
    """Return the first sequence number of the batch that follows one of `count` records, if they have any."""
    return base_sequence if base_sequence < 0 else increment_sequence(base_sequence, count)


def ensure_follow(topic_partition: TopicPartition, headers: Sequence[BatchHeader]) -> None:
    """Check that the batches of a run are of one producer, and their sequences follow each other.

    Raises:
        InvalidRecordError: they do not.
    """
    for before, header in itertools.pairwise(headers):
        expected = before.producer_id, before.producer_epoch, before.base_sequence
        if before.producer_id > NO_PRODUCER_ID:
            following = increment_sequence(before.base_sequence, before.records_count)
            expected = *expected[:2], following
        found = header.producer_id, header.producer_epoch, header.base_sequence
        if found != expected:
            raise InvalidRecordError(
                f"a run of batches for {topic_partition} goes on with (producer id, epoch, sequence) "
                f"{found}; accepted: {expected}, which follows"
            )


def assign(
    data: bytearray | memoryview, position: int, *, base_offset: int, leader_epoch: int
) -> None:
    """Set the base offset and leader epoch of a batch; both lie outside the CRC."""
    length = _LENGTH.unpack_from(data, position + LENGTH_POSITION)[0]
    _BASE_OFFSET_TO_EPOCH.pack_into(data, position, base_offset, length, leader_epoch)


def assign_all(
    data: bytearray | memoryview,
    headers: Iterable[BatchHeader],
    *,
    base_offset: int,
    leader_epoch: int,
) -> list[BatchHeader]:
    """Do as `assign` for batches that lie back to back from the start of `data` on; return their new headers.

    Args:
        headers: theirs.
        base_offset: of the first; each of the others starts where the one before it ends.
    """
    position, assigned = 0, []
    for header in headers:
        length = header[1]
        _BASE_OFFSET_TO_EPOCH.pack_into(data, position, base_offset, length, leader_epoch)
        assigned.append(header.with_base_offset(base_offset, leader_epoch))
        position += LOG_OVERHEAD + length
        base_offset += header[6] + 1
    return assigned


def with_section(data: Buffer, section: bytes | bytearray | memoryview, codec: int) -> bytearray:
    """Return a copy of a batch with `section`, compressed by `codec`, as its records and with a new CRC."""
    out = bytearray(memoryview(data)[:RECORD_BATCH_OVERHEAD])
    out += section
    (attributes,) = _ATTRIBUTES.unpack_from(out, ATTRIBUTES_POSITION)
    _ATTRIBUTES.pack_into(out, ATTRIBUTES_POSITION, attributes & ~CODEC_MASK | codec)
    _LENGTH.pack_into(out, LENGTH_POSITION, len(out) - LOG_OVERHEAD)
    _CRC.pack_into(out, CRC_POSITION, checksums.crc32c(memoryview(out)[CRC_COVERS_FROM:]))
    return out


def with_max_timestamp(data: Buffer, max_timestamp: int) -> bytearray:
    """Return a copy of a batch with another largest timestamp, and the CRC that goes with it."""
    out = bytearray(data)
    _MAX_TIMESTAMP.pack_into(out, _MAX_TIMESTAMP_POSITION, max_timestamp)
    _CRC.pack_into(out, CRC_POSITION, checksums.crc32c(memoryview(out)[CRC_COVERS_FROM:]))
    return out


def set_log_append_time(head: bytearray | memoryview, records: Buffer, time_ms: int) -> None:
    """Stamp a batch with a log append time, which counts for all its records, and update its CRC.

    Args:
        head: the batch's first 61 bytes, written to.
        records: the bytes after them, only read.
    Source: DefaultRecordBatch.setMaxTimestamp.
    """
    (attributes,) = _ATTRIBUTES.unpack_from(head, CRC_COVERS_FROM)
    _ATTRIBUTES.pack_into(head, CRC_COVERS_FROM, attributes | LOG_APPEND_TIME)
    _MAX_TIMESTAMP.pack_into(head, _MAX_TIMESTAMP_POSITION, time_ms)
    crc = checksums.crc32c(memoryview(head)[CRC_COVERS_FROM:RECORD_BATCH_OVERHEAD])
    _CRC.pack_into(head, CRC_POSITION, checksums.crc32c(records, crc))


def whole_size(data: Buffer) -> int:
    """Return how many bytes at the start of `data` are whole batches, judging by their sizes alone.

    An impossible size counts as the smallest possible one; `walk` raises for it.
    """
    end, room = 0, len(data)
    while room > MAGIC_POSITION:
        if data[end + MAGIC_POSITION] < MAGIC:
            size_min = MESSAGE_OVERHEADS[data[end + MAGIC_POSITION]]
        else:
            size_min = RECORD_BATCH_OVERHEAD
        if room < size_min:
            break
        size = LOG_OVERHEAD + _LENGTH.unpack_from(data, end + LENGTH_POSITION)[0]
        if size > room:
            break
        if size < size_min:
            size = size_min
        elif size_min < RECORD_BATCH_OVERHEAD:
            size = _messages(data, end, len(data), RUN_BYTES_MAX).size_in_bytes
        end += size
        room -= size
    return end


def walk(
    data: Buffer,
    position: int = 0,
    end: int | None = None,
    *,
    run_bytes_max: int = RUN_BYTES_MAX,
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of the batches that lie back to back in data[position:end].

    Sizes and magic are checked before they are used; CRCs are not checked. A partial batch at the end is
    an error, so a caller that may have one limits `end` by `whole_size`. Plain messages form one batch
    while their offsets grow and they have at most `run_bytes_max` together.

    Raises:
        CorruptRecordError: an impossible size, magic, count or offset; carries the position in `data`.
    Source: ByteBufferLogInputStream.nextBatch.
    """
    end = len(data) if end is None else end
    while position < end:
        room = end - position
        if room >= RECORD_BATCH_OVERHEAD and data[position + MAGIC_POSITION] == MAGIC:
            header = _make(_HEADER.unpack_from(data, position))
            header.ensure_sane(position, room)
        else:
            header_at(data, position, end)
            header = _messages(data, position, end, run_bytes_max)
        yield position, header
        position += LOG_OVERHEAD + header.batch_length


def header_at(data: Buffer, position: int, end: int, *, room: int | None = None) -> BatchHeader:
    """Return the checked header of the record batch, or of the V0 or V1 message, at `position`.

    Args:
        end: end of the readable bytes in `data`, of which a header needs 61 at most.
        room: number of bytes from `position` on, if `data` does not hold the whole batch.

    Raises:
        CorruptRecordError: as `walk`.
    """
    held, size_min = end - position, RECORD_BATCH_OVERHEAD
    if held > MAGIC_POSITION and data[position + MAGIC_POSITION] < MAGIC:
        size_min = MESSAGE_OVERHEADS[0]
    if held < size_min:
        raise CorruptRecordError(
            "batch is truncated",
            position=position,
            expected=f"{size_min} bytes or more",
            found=held,
        )
    header = unpack(data, position)
    header.ensure_sane(position, held if room is None else room)
    return header


def _messages(data: Buffer, position: int, end: int, run_bytes_max: int) -> BatchHeader:
    """Return one header for the V0 or V1 message at `position` and the plain ones of its kind after it."""
    first = _message(data, position)
    if first.attributes & CODEC_MASK:
        return first
    mask = CODEC_MASK | LOG_APPEND_TIME if first.magic else CODEC_MASK
    kind = first.attributes & mask
    stop = min(end, position + max(run_bytes_max, first.size_in_bytes))
    run_end, count = position, 0
    last_offset, max_timestamp = first.base_offset - 1, first.max_timestamp
    with contextlib.suppress(CorruptRecordError):  # which the next step of the walk raises
        for at, size, offset, timestamp, magic, attributes in walk_messages(data, position, stop):
            if magic != first.magic or attributes & mask != kind or offset <= last_offset:
                break
            last_offset, max_timestamp = offset, max(max_timestamp, timestamp)
            run_end, count = at + size, count + 1
            if count == _PLAIN_WALK_MAX:
                run = MessageRun(run_end, count, last_offset, max_timestamp)
                run = scan_messages(data, run, stop, magic, kind, mask)
                run_end, count, last_offset, max_timestamp, _ = run
                break
    return first._replace(
        batch_length=run_end - position - LOG_OVERHEAD,
        last_offset_delta=last_offset - first.base_offset,
        max_timestamp=max_timestamp,
        records_count=count,
    )


def walk_messages(
    data: Buffer, position: int, end: int
) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Yield position, size in bytes, offset, timestamp, magic and attributes of each V0 or V1 message.

    Only whole messages count. In plain Python, for a few messages.

    Raises:
        CorruptRecordError: an impossible size.
    """
    while end - position >= _MESSAGE.size:
        offset, length, _, magic, attributes = _MESSAGE.unpack_from(data, position)
        size, size_min = LOG_OVERHEAD + length, MESSAGE_OVERHEADS[1 if magic else 0]
        if size < size_min:
            raise CorruptRecordError(
                "message size", position=position + LENGTH_POSITION,
                expected=f"{size_min - LOG_OVERHEAD} or more", found=length,
            )  # fmt: skip
        if size > end - position:
            return
        timestamp = NO_TIMESTAMP
        if magic:
            (timestamp,) = _TIMESTAMP.unpack_from(data, position + _MESSAGE.size)
        yield position, size, offset, timestamp, magic, attributes
        position += size


class MessageRun(NamedTuple):
    """A run of uncompressed V0 or V1 messages of one kind that lie back to back."""

    end_position: int
    records_count: int = 0
    last_offset: int = -1
    max_timestamp: int = NO_TIMESTAMP
    max_timestamp_offset: int = -1  # of the first message that has it


def scan_messages(
    data: Buffer,
    run: MessageRun,
    stop: int,
    magic: int,
    attributes: int = 0,
    mask: int = CODEC_MASK,
) -> MessageRun:
    """Extend a run of V0 or V1 messages by those after it, while they are whole and their offsets grow.

    In compiled code, for many messages.

    Args:
        stop: a position that no message may pass.
        attributes: the value of all messages' attributes in the bits of `mask`.
    """
    import numpy as np  # noqa: PLC0415  few logs have such messages; it takes a fifth of a second

    from spark_kbatch.kernels import legacy as legacy_kernels  # noqa: PLC0415  likewise

    facts = np.array([*run, magic, attributes, mask], np.int64)
    legacy_kernels.scan_messages(_flat(data), stop, facts)
    return MessageRun(*facts[: len(run)].tolist())


def _flat(data: Buffer) -> np.ndarray[Any, Any]:
    """Return a buffer's bytes as a read-only numpy array, the form that kernels take."""
    import numpy as np  # noqa: PLC0415  as above

    flat = np.frombuffer(data, np.uint8)
    flat.setflags(write=False)
    return flat


def ensure_valid(data: Buffer, position: int, header: BatchHeader) -> None:
    """Check the CRC of the batch at `position`, or the CRCs of messages that are walked as one batch.

    Raises:
        CorruptRecordError: carries both values, and the position of the batch or of the message.
    """
    end = position + LOG_OVERHEAD + header.batch_length
    if header.magic == MAGIC:
        found = checksums.crc32c(memoryview(data)[position + CRC_COVERS_FROM : end])
        if found != header.crc:
            raise _wrong_crc("CRC-32C", position, header.crc, found)
        return
    if header.records_count > _PLAIN_WALK_MAX:
        from spark_kbatch.kernels import legacy as legacy_kernels  # noqa: PLC0415  as above

        position = int(legacy_kernels.check_messages(_flat(data), position, end))
    while position < end:
        expected, found = message_crcs(data, position)
        if found != expected:
            raise _wrong_crc("CRC-32", position, expected, found)
        position += LOG_OVERHEAD + _LENGTH.unpack_from(data, position + LENGTH_POSITION)[0]


def ensure_all_valid(data: Buffer, batches: Iterable[tuple[int, BatchHeader]]) -> None:
    """Check the CRCs of many batches of V2; raise as `ensure_valid`."""
    view, crc32c = memoryview(data), checksums.crc32c
    for position, header in batches:
        end = position + LOG_OVERHEAD + header[1]
        if crc32c(view[position + CRC_COVERS_FROM : end]) != header[4]:
            ensure_valid(data, position, header)  # raises


def message_crcs(data: Buffer, position: int) -> tuple[int, int]:
    """Return the stored and the actual CRC of the message at `position`, whose size was checked."""
    _, size, crc, _, _ = _MESSAGE.unpack_from(data, position)
    end = position + LOG_OVERHEAD + size
    return crc, checksums.crc32(memoryview(data)[position + MESSAGE_CRC_COVERS_FROM : end])


def _wrong_crc(name: str, position: int, expected: int, found: int) -> CorruptRecordError:
    return CorruptRecordError(
        name, position=position, expected=f"{expected:#010x}", found=f"{found:#010x}"
    )
