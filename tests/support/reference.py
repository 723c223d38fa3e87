"""A second, plain encoder and decoder of record batches and message sets, written from the formats.

    position  bytes  field
           0      8  base offset
           8      4  length of what follows
          12      4  partition leader epoch
          16      1  magic, 2
          17      4  CRC-32C of everything from the attributes on
          21      2  attributes: bits 0-2 codec, 3 log append time
          23      4  last offset delta
          27      8  base timestamp
          35      8  max timestamp
          43      8  producer id
          51      2  producer epoch
          53      4  base sequence
          57      4  records count
          61         records, compressed together

    record = length, attributes (one byte, 0), timestamp delta, offset delta,
             key length (-1: null), key, value length (-1: null), value,
             headers count, [key length, key, value length (-1: null), value] ..

Every number of a record is a zigzag varint. Nothing here imports the code that it checks, and plain code
comes before fast code. Any fault raises AssertionError.

Source: Kafka clients/.../record/DefaultRecordBatch.java, DefaultRecord.java, ByteUtils.java.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cramjam
import lz4.frame
import xxhash
import zstandard

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
CODECS = {"none": 0, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08

LOG_OVERHEAD = 12
CRC_START = 21
HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = 61
assert HEADER.size == HEADER_SIZE

NO_PRODUCER_ID = -1

XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)


class Record(NamedTuple):
    """One record as a consumer sees it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class BatchHeader(NamedTuple):
    """The 61 bytes, in their order."""

    base_offset: int
    length: int
    leader_epoch: int
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


def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    codec: int = 0,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes_extra: int = 0,
) -> bytes:
    """Encode one batch; `attributes_extra` is or-ed to the codec. Without records it is Kafka's empty batch."""
    if not records:
        codec = 0
    base_timestamp = records[0].timestamp if records else -1
    body = b"".join(
        encode_record(record, base_offset=base_offset, base_timestamp=base_timestamp)
        for record in records
    )
    return frame_batch(
        compress(codec, body),
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=codec | attributes_extra,
        last_offset_delta=records[-1].offset - base_offset if records else 0,
        base_timestamp=base_timestamp,
        max_timestamp=max((record.timestamp for record in records), default=-1),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        records_count=len(records),
    )


def frame_batch(
    body: bytes,
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    attributes: int = 0,
    last_offset_delta: int = 0,
    base_timestamp: int = 0,
    max_timestamp: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    records_count: int = 1,
) -> bytes:
    """Return any `body` after a header with the right length and CRC."""
    after_crc = (
        struct.pack(
            ">hiqqqhii",
            attributes,
            last_offset_delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            records_count,
        )
        + body
    )
    after_length = struct.pack(">ibI", leader_epoch, 2, crc32c(after_crc)) + after_crc
    return struct.pack(">qi", base_offset, len(after_length)) + after_length


def with_crc(batch: bytes) -> bytes:
    """Return the batch with the right CRC, after it was changed on purpose."""
    return batch[:17] + struct.pack(">I", crc32c(batch[CRC_START:])) + batch[CRC_START:]


def encode_record(record: Record, *, base_offset: int, base_timestamp: int) -> bytes:
    """Encode one record, starting with its length."""
    body = b"\x00"
    body += encode_varint(record.timestamp - base_timestamp)
    body += encode_varint(record.offset - base_offset)
    body += encode_bytes(record.key) + encode_bytes(record.value)
    body += encode_varint(len(record.headers))
    for key, value in record.headers:
        body += encode_bytes(key.encode()) + encode_bytes(value)
    return encode_varint(len(body)) + body


def encode_bytes(value: bytes | None) -> bytes:
    """Encode a length and the bytes, or -1 for null."""
    return encode_varint(-1) if value is None else encode_varint(len(value)) + value


def encode_varint(value: int) -> bytes:
    """Encode as zigzag, then seven bits per byte, the low ones first."""
    rest = value * 2 if value >= 0 else -value * 2 - 1
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def decode_batches(data: bytes, *, strict: bool = True) -> list[Record]:
    """Return every record of whole adjacent batches; check CRC, lengths and counts.

    Unless `strict` is false, it refuses what Kafka's reader accepts though no writer writes it:
    attributes of a record, malformed UTF-8, bare snappy, bytes after a gzip stream.
    """
    return [record for batch in split_batches(data) for record in _decode_batch(batch, strict)]


def split_batches(data: bytes) -> Iterator[bytes]:
    """Split `data` into batches."""
    position = 0
    while position < len(data):
        (length,) = struct.unpack_from(">i", data, position + 8)
        end = position + LOG_OVERHEAD + length
        assert HEADER_SIZE <= end - position <= len(data) - position, "batch length"
        yield data[position:end]
        position = end


def read_header(batch: bytes) -> BatchHeader:
    """Return the header of the first batch in `batch`."""
    return BatchHeader(*HEADER.unpack_from(batch))


def _decode_batch(batch: bytes, strict: bool) -> list[Record]:
    header = read_header(batch)
    assert header.magic == 2, "magic"
    assert header.crc == crc32c(batch[CRC_START:]), "CRC"
    if header.records_count == 0:
        return []
    body = _Body(decompress(header.attributes & CODEC_MASK, batch[HEADER_SIZE:], strict=strict))
    records = [_decode_record(body, header, strict) for _ in range(header.records_count)]
    assert body.position == len(body.data), "bytes after the last record"
    return records


def _decode_record(body: _Body, header: BatchHeader, strict: bool) -> Record:
    length = body.varint()
    end = body.position + length
    assert body.take(1) == b"\x00" or not strict, "record attributes"
    timestamp = header.base_timestamp + body.varint()
    if header.attributes & LOG_APPEND_TIME:
        timestamp = header.max_timestamp
    offset = header.base_offset + body.varint()
    key, value = body.nullable_bytes(), body.nullable_bytes()
    headers = tuple(
        (
            body.take(body.varint()).decode(errors="strict" if strict else "replace"),
            body.nullable_bytes(),
        )
        for _ in range(body.varint())
    )
    assert body.position == end, "record length"
    return Record(offset, timestamp, key, value, headers)


class _Body:
    """Decompressed records and a position in them."""

    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0

    def take(self, size: int) -> bytes:
        assert 0 <= size <= len(self.data) - self.position, "size"
        self.position += size
        return self.data[self.position - size : self.position]

    def varint(self) -> int:
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value // 2 if value % 2 == 0 else -(value // 2) - 1

    def nullable_bytes(self) -> bytes | None:
        size = self.varint()
        return None if size < 0 else self.take(size)


def compress(codec: int, data: bytes) -> bytes:
    """Compress in a framing that Kafka can read, which is not always the one that it writes."""
    compressed: Any = data
    if codec == GZIP:
        compressed = gzip.compress(data)
    if codec == SNAPPY:
        compressed = XERIAL_HEADER
        for start in range(0, len(data), 32 * 1024):
            block = bytes(cramjam.snappy.compress_raw(data[start : start + 32 * 1024]))
            compressed += struct.pack(">i", len(block)) + block
    if codec == LZ4:
        compressed = lz4.frame.compress(data, block_linked=False, store_size=False)
    if codec == ZSTD:
        compressed = zstandard.ZstdCompressor().compress(data)
    return bytes(compressed)


def decompress(codec: int, data: bytes, *, strict: bool = True) -> bytes:
    """Decompress the framings of `compress` and of Kafka."""
    decompressed: Any = data
    if codec == GZIP:
        decompressed = gzip.decompress(data) if strict else _first_members(data)
    if codec == SNAPPY and not strict and not data.startswith(XERIAL_HEADER[:8]):
        decompressed = cramjam.snappy.decompress_raw(data)
    elif codec == SNAPPY:
        assert data.startswith(XERIAL_HEADER) or not strict, "snappy header"
        decompressed, position = b"", len(XERIAL_HEADER)
        while position < len(data):
            (length,) = struct.unpack_from(">i", data, position)
            block = data[position + 4 : position + 4 + length]
            decompressed += bytes(cramjam.snappy.decompress_raw(block))
            position += 4 + length
    if codec == LZ4:
        decompressed = lz4.frame.decompress(data)
    if codec == ZSTD:
        decompressed = cramjam.zstd.decompress(data)
    return bytes(decompressed)


def _first_members(data: bytes) -> bytes:
    """Decompress adjacent gzip streams, up to bytes that are not a stream."""
    out, count = b"", 0
    while data:
        stream = zlib.decompressobj(wbits=31)
        try:
            part = stream.decompress(data)
            assert stream.eof, "end of the gzip stream"
        except (zlib.error, AssertionError):
            if not count:
                raise
            break
        out, data, count = out + part, stream.unused_data, count + 1
    return out


def _crc32c_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC32C_TABLE = _crc32c_table()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli), computed a byte at a time."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC32C_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


# Message sets, in the formats before record batches.
#
#     offset, int64; size of what follows, int32; CRC-32 of everything after it, uint32;
#     magic, 0 or 1; attributes: bits 0-2 codec, 3 log append time; with magic 1 a timestamp, int64;
#     key length, int32 (-1: null), key, value length, int32 (-1: null), value
#
# The value of a message with a codec is a compressed message set.


def encode_message(
    record: Record, *, magic: int, attributes: int = 0, offset: int | None = None
) -> bytes:
    """Encode one message; `offset` replaces the record's own."""
    assert not record.headers, "the format has no headers"
    covered = struct.pack(">bb", magic, attributes)
    covered += struct.pack(">q", record.timestamp) if magic else b""
    for field in (record.key, record.value):
        covered += struct.pack(">i", -1 if field is None else len(field)) + (field or b"")
    after_size = struct.pack(">I", zlib.crc32(covered)) + covered
    at = record.offset if offset is None else offset
    return struct.pack(">qi", at, len(after_size)) + after_size


def with_message_crc(message: bytes) -> bytes:
    """Return the message with the right CRC."""
    return message[:12] + struct.pack(">I", zlib.crc32(message[16:])) + message[16:]


def encode_messages(
    records: Sequence[Record],
    *,
    magic: int,
    codec: int = 0,
    log_append_time: int | None = None,
    wrapper_offset: int | None = None,
) -> bytes:
    """Encode a message set as a broker stores it: plain, or with a codec in one wrapper.

    `log_append_time` is the wrapper's, or every plain message's; `wrapper_offset` replaces the right one.
    """
    attributes = 0 if log_append_time is None else LOG_APPEND_TIME
    if codec == 0:
        if log_append_time is not None:
            records = [record._replace(timestamp=log_append_time) for record in records]
        return b"".join(encode_message(r, magic=magic, attributes=attributes) for r in records)
    first = records[0].offset if magic else 0
    inner = b"".join(encode_message(r, magic=magic, offset=r.offset - first) for r in records)
    timestamp = max(record.timestamp for record in records)
    wrapper = Record(
        records[-1].offset if wrapper_offset is None else wrapper_offset,
        timestamp if log_append_time is None else log_append_time,
        None,
        compress_for(magic, codec, inner),
    )
    return encode_message(wrapper, magic=magic, attributes=attributes | codec)


def compress_for(magic: int, codec: int, data: bytes) -> bytes:
    """Compress; with magic 0, the checksum of an lz4 header covers the frame's magic too."""
    compressed = compress(codec, data)
    if codec == LZ4 and magic == 0:
        return compressed[:6] + _lz4_checksum(compressed[:6]) + compressed[7:]
    return compressed


def _lz4_checksum(covered: bytes) -> bytes:
    return xxhash.xxh32_digest(covered)[2:3]


def decode_messages(data: bytes, *, strict: bool = True) -> list[Record]:
    """Return every record of whole adjacent messages; check CRCs, lengths and nesting.

    `strict` is as for `decode_batches`.
    """
    records = []
    for message, magic, attributes in _split_messages(data, cut_off=False):
        codec = attributes & CODEC_MASK
        if codec == 0:
            records.append(message)
            continue
        assert message.value is not None, "a wrapper's value"
        set_of = _decompress_of(magic, codec, message.value, strict)
        inner = list(_split_messages(set_of, cut_off=True))
        assert {m for _, m, _ in inner} == {magic}, "magic of a message in a wrapper"
        assert not any(a & CODEC_MASK for _, _, a in inner), "a wrapper in a wrapper"
        # No broker assigned an offset to a wrapper at 0.
        shift = message.offset - inner[-1][0].offset if magic and message.offset else 0
        for record, _, _ in inner:
            has_one_time = magic and attributes & LOG_APPEND_TIME
            timestamp = message.timestamp if has_one_time else record.timestamp
            records.append(record._replace(offset=record.offset + shift, timestamp=timestamp))
    return records


def _split_messages(data: bytes, *, cut_off: bool) -> Iterator[tuple[Record, int, int]]:
    """Yield each message as a record, its magic and its attributes; the last one may be incomplete."""
    position = 0
    while position < len(data):
        end = position + LOG_OVERHEAD
        if end <= len(data):
            (size,) = struct.unpack_from(">i", data, position + 8)
            assert size >= 14, "message size"
            end += size
        if end > len(data) and cut_off:
            return
        assert end <= len(data), "message size"
        offset, _, crc, magic, attributes = struct.unpack_from(">qiIbb", data, position)
        assert crc == zlib.crc32(data[position + 16 : end]), "CRC of a message"
        assert magic in (0, 1), "magic of a message"
        position += 18
        timestamp = -1
        if magic:
            (timestamp,) = struct.unpack_from(">q", data, position)
            position += 8
        fields: list[bytes | None] = []
        for _ in ("key", "value"):
            (length,) = struct.unpack_from(">i", data, position)
            position += 4
            fields.append(None if length < 0 else data[position : position + length])
            position += max(length, 0)
        assert position == end, "lengths in a message"
        yield Record(offset, timestamp, *fields), magic, attributes


def _decompress_of(magic: int, codec: int, data: bytes, strict: bool) -> bytes:
    if codec == LZ4 and magic == 0:
        # Flags, block size; then a content size and a dictionary id, if the flags say so.
        end = 6 + 8 * (data[4] >> 3 & 1) + 4 * (data[4] & 1)
        data = data[:end] + _lz4_checksum(data[4:end]) + data[end + 1 :]
    return decompress(codec, data, strict=strict)


def producer_ids(files: Iterable[Path]) -> set[int]:
    """Return the producer ids in the batch headers of segments; those of batches without one are left out."""
    found = set()
    for file in files:
        data = file.read_bytes()
        position = 0
        while position + HEADER_SIZE <= len(data):
            header = BatchHeader(*HEADER.unpack_from(data, position))
            assert header.magic == 2, file
            found.add(header.producer_id)
            position += LOG_OVERHEAD + header.length
    return found - {NO_PRODUCER_ID}
