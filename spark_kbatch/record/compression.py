"""Kafka's compression codecs: ids, names, libraries, and how Kafka frames each codec's output.

    id  codec   bytes                               meaning
     0  none    records                             as they are
     1  gzip    1f 8b 08 .., deflate, crc32, size   one member
     2  snappy  82 53 4e 41 50 50 59 00             magic of the xerial stream
                00 00 00 01 00 00 00 01             version, oldest version that can read it
                [int32 length, raw block] ..        big-endian; 32 KiB of input each; no end mark
     3  lz4     04 22 4d 18 60 40 82                frame: independent 64 KiB blocks, no sizes or sums
                [uint32 length, block] ..           little-endian; top bit: the block is stored raw
                00 00 00 00                         end mark
     4  zstd    28 b5 2f fd 00 58, blocks           frame: no content size, no checksum

The lz4 header ends with a checksum of the two bytes before it. With magic 0 it is 1a, because the first
clients computed it over the frame's magic too; their readers do not check it. zstd requires magic 2; its
sixth byte is the window, 58 at level 3.

    level   accepted       default
    gzip    1 to 9, -1     -1          zlib's default
    lz4     1 to 17        9           9 is the fast compressor, every other one the high one
    zstd    -131072 to 22  3

Levels are not stored. The options check them; nothing here does.

Accepted when reading, though never written: several gzip members, followed by bytes that are no member;
snappy as one bare block, or with the header repeated between two blocks; lz4 with larger or linked
blocks, checksums or a content size, and bytes after the end mark; several zstd frames.

Input is untrusted: a length is checked before it is used, output stays within a limit, and any fault
raises CorruptRecordError. Its position, if it has one, counts from the first compressed byte.

Source: Kafka clients/.../common/compress; xerial SnappyOutputStream, SnappyInputStream; RFC 1952;
RFC 8878; LZ4 frame format 1.6; KIP-57, KIP-110.
"""

from __future__ import annotations

import functools
import struct
import threading
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import lz4.frame
import zstandard

from spark_kbatch.errors import ConfigError, CorruptRecordError
from spark_kbatch.model import CODEC_NAMES, CODECS
from spark_kbatch.options.write import (
    GZIP_LEVEL_DEFAULT,
    LZ4_LEVEL_DEFAULT,
    MAX_DECOMPRESSED_BATCH_BYTES,
    ZSTD_LEVEL_DEFAULT,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

NONE, GZIP, SNAPPY, LZ4, ZSTD = CODECS.values()

# Decoders return this much at a time, so when a stream is refused it has cost at most this much more than
# its limit. zlib also gets its input in steps: it copies what follows the end of a member, which would be
# quadratic for a stream of many small members.
_STEP_SIZE = 1 << 20
_GZIP_INPUT_STEP_SIZE = 1 << 16

# These constants are part of the wire format and do not change.
_GZIP_WINDOW_BITS = 31  # 15, and 16 for the gzip header and trailer
_GZIP_MEMBER_MAGIC = b"\x1f\x8b\x08"
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_SIZE = 32 * 1024
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_HEADER_OF_MAGIC_0 = _LZ4_MAGIC + b"\x60\x40\x1a"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_HEADER_SIZE_MAX = 18
_ZSTD_RLE_BLOCK = 1


class _ZstdContexts(threading.local):
    """The zstd contexts of a thread; creating one takes longer than compressing a small batch."""

    def __init__(self) -> None:
        self._compressors: dict[int, zstandard.ZstdCompressor] = {}
        self.decompressor = zstandard.ZstdDecompressor()

    def compressor(self, level: int) -> zstandard.ZstdCompressor:
        made = self._compressors.get(level)
        if made is None:
            made = self._compressors[level] = zstandard.ZstdCompressor(
                level=level, write_content_size=False, write_checksum=False
            )
        return made


_zstd = _ZstdContexts()


@functools.cache
def _snappy() -> Any:
    """Return Arrow's codec, which is stateless, so that all threads share it."""
    import pyarrow as pa  # noqa: PLC0415  not needed for anything else here

    return pa.Codec("snappy")


def compress(codec: int, data: Buffer, *, magic: int = 2, level: int | None = None) -> bytes:
    """Compress and frame `data` for a batch of format `magic`.

    Args:
        codec: a value of CODECS.
        data: contiguous bytes, possibly none. Only read; the result is a copy even for NONE.
        magic: 0, 1 or 2.
        level: of the codec, in Kafka's scale; None for Kafka's default. NONE and SNAPPY have none.

    Raises:
        ConfigError: unknown codec, or zstd with a magic below 2.
    """
    view = _bytes_view(data)
    if codec == NONE:
        return bytes(view)
    if codec == GZIP:
        return zlib.compress(
            view, GZIP_LEVEL_DEFAULT if level is None else level, wbits=_GZIP_WINDOW_BITS
        )
    if codec == SNAPPY:
        return _snappy_stream(view)
    if codec == LZ4:
        return _lz4_frame(view, magic, level)
    if codec == ZSTD and magic == 2:
        # Streamed, so that the frame has the window of Kafka's writer; it is as fast.
        stream = _zstd.compressor(ZSTD_LEVEL_DEFAULT if level is None else level).compressobj()
        return stream.compress(view) + stream.flush()
    raise ConfigError(
        f"no batch of magic {magic} is compressed with {CODEC_NAMES.get(codec, codec)}"
    )


def decompress(
    codec: int, data: Buffer, *, magic: int = 2, limit: int = MAX_DECOMPRESSED_BATCH_BYTES
) -> bytes | bytearray | memoryview:
    """Decompress a batch's records as `compress` or another Kafka client wrote them.

    Args:
        codec: the codec id in the batch's attributes.
        data: one whole compressed stream. Only read.
        magic: 0, 1 or 2, of the batch.
        limit: the most bytes to return, inclusive; ignored for NONE.

    Returns:
        New bytes; for NONE a view of `data`.

    Raises:
        CorruptRecordError: unknown codec, broken or short stream, more than `limit` bytes.
    """
    # Most batches are one piece. Larger ones grow in place, so they are never held twice.
    whole: bytes | bytearray | memoryview = b""
    for piece in decompress_pieces(codec, data, magic=magic, limit=limit):
        if not whole:
            whole = piece
        elif isinstance(whole, bytearray):
            whole += piece
        else:
            whole = bytearray(whole) + piece
    return whole


def decompress_pieces(
    codec: int, data: Buffer, *, magic: int = 2, limit: int = MAX_DECOMPRESSED_BATCH_BYTES
) -> Iterator[bytes | memoryview]:
    """Decompress a batch's records like `decompress`, but yield about 1 MiB at a time.

    No more than that is held. Snappy yields its blocks, of 32 KiB or, from a client that does not divide
    them, one. A stream that is broken or too large may have yielded something before that shows.
    """
    if codec not in CODEC_NAMES:
        raise _corrupt("unknown compression codec", -1, f"one of {[*CODEC_NAMES]}", codec)
    view = _bytes_view(data)
    if codec == NONE:
        yield view
        return
    if codec == GZIP:
        pieces = _gunzip(view)
    elif codec == SNAPPY:
        pieces = _unsnappy(view, limit)
    elif codec == LZ4:
        pieces = _unlz4(_with_lz4_checksum(view) if magic == 0 else view)
    elif magic == 2:
        pieces = _unzstd(view)
    else:
        raise _corrupt("batch of an old format is compressed with zstd", -1, "magic 2", magic)
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > limit:
            raise _too_large(CODEC_NAMES[codec], limit, size)
        yield piece


def decompress_at(
    codec: int,
    data: Buffer,
    start: int,
    end: int,
    *,
    magic: int = 2,
    limit: int = MAX_DECOMPRESSED_BATCH_BYTES,
) -> bytes | bytearray | memoryview:
    """Decompress data[start:end] as `decompress` does; error positions count from the start of `data`."""
    try:
        return decompress(codec, memoryview(data)[start:end], magic=magic, limit=limit)
    except CorruptRecordError as error:
        raise error.at("", start) from None


def _bytes_view(data: Buffer) -> memoryview:
    view = memoryview(data)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def _corrupt(what: str, position: int, expected: Any, found: Any) -> CorruptRecordError:
    return CorruptRecordError(what, position=position, expected=expected, found=found)


def _undecodable(name: str, position: int, error: Exception) -> CorruptRecordError:
    return _corrupt(f"{name} stream does not decode", position, "valid data", str(error))


def _truncated(name: str, view: memoryview, end: int | None = None) -> CorruptRecordError:
    expected = "more" if end is None else f"{end} bytes or more"
    return _corrupt(f"{name} stream ends too early", len(view), expected, f"{len(view)} bytes")


def _too_large(name: str, limit: int, size: int) -> CorruptRecordError:
    return _corrupt(
        f"{name} stream is too large when decompressed",
        -1,
        f"{limit} bytes or less, or a higher max.decompressed.batch.bytes",
        f"{size} or more",
    )


def _gunzip(view: memoryview) -> Iterator[bytes]:
    inflater = zlib.decompressobj(_GZIP_WINDOW_BITS)
    position = 0
    while position < len(view):
        chunk = view[position : position + _GZIP_INPUT_STEP_SIZE]
        try:
            yield inflater.decompress(chunk, _STEP_SIZE)
        except zlib.error as error:
            raise _undecodable("gzip", position, error) from error
        position += len(chunk) - len(inflater.unconsumed_tail) - len(inflater.unused_data)
        if inflater.eof:
            if view[position : position + 3].tobytes() != _GZIP_MEMBER_MAGIC:
                return
            inflater = zlib.decompressobj(_GZIP_WINDOW_BITS)
    # No output is lost here: the decoder consumes the trailer only after it has returned everything.
    raise _truncated("gzip", view)


def _snappy_stream(view: memoryview) -> bytes:
    pieces = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_SIZE):
        block = _snappy().compress(view[start : start + _XERIAL_BLOCK_SIZE], asbytes=True)
        pieces += len(block).to_bytes(4, "big"), block
    return b"".join(pieces)


def _unsnappy(view: memoryview, limit: int) -> Iterator[bytes]:
    total_size = 0
    for start, end in _snappy_blocks(view):
        size = _snappy_size(view, start, end)
        total_size += size
        if total_size > limit:
            raise _too_large("snappy", limit, total_size)
        try:
            yield _snappy().decompress(view[start:end], decompressed_size=size, asbytes=True)
        except (OSError, ValueError) as error:
            raise _undecodable("snappy", start, error) from error


def _snappy_blocks(view: memoryview) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each raw block in a snappy stream as Kafka frames it."""
    if len(view) < len(_XERIAL_HEADER) or view[:8].tobytes() != _XERIAL_MAGIC:
        yield 0, len(view)
        return
    # The version is not checked, because some writers write it little-endian.
    position = len(_XERIAL_HEADER)
    while position < len(view):
        if view[position : position + 8].tobytes() == _XERIAL_MAGIC:
            position += len(_XERIAL_HEADER)
            continue
        start = position + 4
        length = int.from_bytes(view[position:start], "big", signed=True)
        if length < 0:
            raise _corrupt("snappy block length is negative", position, "0 or more", length)
        position = max(start, start + length)
        if position <= len(view):
            yield start, position
    if position > len(view):
        raise _truncated("snappy", view, position)


def _snappy_size(view: memoryview, start: int, end: int) -> int:
    """Return the decompressed size that a raw block claims, if that is possible."""
    size = 0
    for index, byte in enumerate(view[start : min(start + 5, end)]):
        size |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            break
    else:
        raise _corrupt("snappy block has no size", start, "a varint", view[start:end][:5].hex())
    size_max = (end - start) * 64 // 3  # the densest element is a copy of 64 bytes, in 3
    if size > size_max:
        raise _corrupt("snappy block claims too large a size", start, f"{size_max} or less", size)
    return size


def _lz4_frame(view: memoryview, magic: int, level: int | None) -> bytes:
    # Kafka's default level selects lz4-java's fast compressor and every other level its high one, which
    # this library uses from level 3 on.
    is_fast = level is None or level == LZ4_LEVEL_DEFAULT
    frame: bytes = lz4.frame.compress(
        view,
        compression_level=0 if is_fast else max(level, lz4.frame.COMPRESSIONLEVEL_MINHC),
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )
    return frame if magic > 0 else _LZ4_HEADER_OF_MAGIC_0 + frame[len(_LZ4_HEADER_OF_MAGIC_0) :]


def _unlz4(view: memoryview) -> Iterator[bytes]:
    if view[:4].tobytes() != _LZ4_MAGIC:  # the library would also accept skippable frames
        raise _corrupt("no lz4 frame", 0, _LZ4_MAGIC.hex(), view[:4].hex())
    context = lz4.frame.create_decompression_context()
    position, at_end = 0, False
    while not at_end:
        try:
            piece, consumed, at_end = lz4.frame.decompress_chunk(
                context, view[position:], max_length=_STEP_SIZE
            )
        except RuntimeError as error:
            raise _undecodable("lz4", position, error) from error
        if not (piece or consumed or at_end):
            raise _truncated("lz4", view)
        yield piece
        position += consumed


def _with_lz4_checksum(view: memoryview) -> memoryview:
    """Return a copy of a V0 message's lz4 frame with the header checksum that the library expects."""
    flags = view[4] if len(view) > 4 else 0
    content_size, dictionary_id = 8 * (flags >> 3 & 1), 4 * (flags & 1)
    end = 6 + content_size + dictionary_id
    if end >= len(view):
        raise _truncated("lz4", view, end + 1)
    frame = bytearray(view)
    frame[end] = _lz4_checksum(frame[4:end])
    return memoryview(frame)


def _lz4_checksum(descriptor: bytes | bytearray) -> int:
    """Return the checksum of an lz4 frame's descriptor: the second byte of its XXH32 with seed 0.

    The descriptor has fewer than 16 bytes.
    """
    words_end = len(descriptor) & ~3
    h = 374761393 + len(descriptor)
    for (word,) in struct.iter_unpack("<I", descriptor[:words_end]):
        h = h + word * 3266489917 & 0xFFFFFFFF
        h = (h << 17 | h >> 15) * 668265263 & 0xFFFFFFFF
    for byte in descriptor[words_end:]:
        h = h + byte * 374761393 & 0xFFFFFFFF
        h = (h << 11 | h >> 21) * 2654435761 & 0xFFFFFFFF
    h = (h ^ h >> 15) * 2246822519 & 0xFFFFFFFF
    h = (h ^ h >> 13) * 3266489917 & 0xFFFFFFFF
    return (h ^ h >> 16) >> 8 & 0xFF


assert _lz4_checksum(b"\x60\x40") == 0x82
assert _lz4_checksum(_LZ4_HEADER_OF_MAGIC_0[:-1]) == _LZ4_HEADER_OF_MAGIC_0[-1]


def _unzstd(view: memoryview) -> Iterator[bytes]:
    start = 0
    while start < len(view) or start == 0:
        end = _zstd_frame_end(view, start)
        try:
            with _zstd.decompressor.stream_reader(view[start:end]) as reader:
                while piece := reader.read(_STEP_SIZE):
                    yield piece
        except zstandard.ZstdError as error:
            raise _undecodable("zstd", start, error) from error
        start = end


def _zstd_frame_end(view: memoryview, start: int) -> int:
    """Follow the block headers of the zstd frame at `start` and return the frame's end.

    The library's reader silently accepts a truncated frame. A frame that its block headers show to
    be whole is either read to its last byte or refused.
    """
    header = view[start : start + _ZSTD_HEADER_SIZE_MAX]
    if header[:4].tobytes() != _ZSTD_MAGIC:
        raise _corrupt("no zstd frame", start, _ZSTD_MAGIC.hex(), header[:4].hex())
    try:
        position = start + zstandard.frame_header_size(header)
        has_checksum = zstandard.get_frame_parameters(header).has_checksum
    except zstandard.ZstdError as error:
        raise _undecodable("zstd", start, error) from error
    is_last = False
    while not is_last:
        # Bits: 0 last block, 1-2 type, 3-23 size. A size past the end is refused before it is followed.
        block = int.from_bytes(view[position : position + 3], "little")
        is_last = bool(block & 1)
        position += 3 + (1 if block >> 1 & 3 == _ZSTD_RLE_BLOCK else block >> 3)
        if position > len(view):
            raise _truncated("zstd", view, position)
    position += 4 if has_checksum else 0
    if position > len(view):
        raise _truncated("zstd", view, position)
    return position
