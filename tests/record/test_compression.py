"""The five codecs: framing, interoperation, and damage."""

from __future__ import annotations

import gzip
import pickle
import random
import struct
import tracemalloc
import warnings
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiokafka.codec  # type: ignore[import-untyped]
import cramjam
import lz4.block
import lz4.frame
import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kbatch.errors import ConfigError, CorruptRecordError
from spark_kbatch.model import CODECS
from spark_kbatch.options.write import MAX_DECOMPRESSED_BATCH_BYTES
from spark_kbatch.record import compression
from spark_kbatch.record.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD
from tests.support import strategies

with warnings.catch_warnings():
    # It reads its schemas with a deprecated function of importlib.resources.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.codec  # type: ignore[import-untyped]

KIB, MIB = 1 << 10, 1 << 20
COMPRESSED = [pytest.param(codec, id=name) for name, codec in CODECS.items() if codec != NONE]
EVERY_CODEC_AND_MAGIC = [
    pytest.param(codec, magic, id=f"{name}-magic-{magic}")
    for name, codec in CODECS.items()
    for magic in (0, 1, 2)
    if codec != ZSTD or magic == 2
]
TEXT = b" ".join(b"%d green bottles" % n for n in range(12_000))
DATA = [
    pytest.param(b"", id="empty"),
    pytest.param(b"k", id="one-byte"),
    pytest.param(TEXT, id="several-blocks"),
    pytest.param(TEXT[: 64 * KIB], id="whole-blocks"),
    pytest.param(random.Random(0).randbytes(100_000), id="incompressible"),
    pytest.param(bytes(3 * MIB), id="several-steps"),
]
NOT_EMPTY = DATA[1:]
# Short, and yet a stream with two snappy blocks, with literals and copies.
SMALL = TEXT[:150] + bytes(33 * KIB) + TEXT[:150]


def decompress(codec: int, data: bytes, **options: Any) -> bytes:
    return bytes(compression.decompress(codec, data, **options))


def snappy_chunks(stream: bytes) -> list[bytes]:
    """The raw blocks after the header of a xerial stream."""
    chunks, position = [], 16
    while position < len(stream):
        (length,) = struct.unpack_from(">i", stream, position)
        chunks.append(stream[position + 4 : position + 4 + length])
        position += 4 + length
    return chunks


def lz4_blocks(frame: bytes) -> list[tuple[bool, bytes]]:
    """(stored, data) of each block of a frame without block checksums; checks the end mark."""
    blocks, position = [], 7
    while length := struct.unpack_from("<I", frame, position)[0]:
        size = length & 0x7FFFFFFF
        blocks.append((length != size, frame[position + 4 : position + 4 + size]))
        position += 4 + size
    assert position + 4 == len(frame)
    return blocks


# Framing


@pytest.mark.parametrize(
    ("codec", "magic", "header"),
    [
        pytest.param(GZIP, 2, "1f8b080000000000", id="gzip"),
        pytest.param(SNAPPY, 2, "82534e41505059000000000100000001", id="snappy"),
        pytest.param(LZ4, 2, "04224d18604082", id="lz4"),
        pytest.param(LZ4, 1, "04224d18604082", id="lz4-magic-1"),
        pytest.param(LZ4, 0, "04224d1860401a", id="lz4-magic-0"),
        pytest.param(ZSTD, 2, "28b52ffd0058", id="zstd"),
    ],
)
@pytest.mark.parametrize("data", NOT_EMPTY)
def test_stream_starts_with_the_header_that_kafka_writes(
    codec: int, magic: int, header: str, data: bytes
) -> None:
    assert compression.compress(codec, data, magic=magic).startswith(bytes.fromhex(header))


def test_snappy_blocks_hold_32_kib_each() -> None:
    chunks = snappy_chunks(compression.compress(SNAPPY, TEXT))
    sizes = [len(bytes(cramjam.snappy.decompress_raw(chunk))) for chunk in chunks]
    assert sizes == [32 * KIB] * (len(TEXT) // (32 * KIB)) + [len(TEXT) % (32 * KIB)]


def test_snappy_of_nothing_is_a_header() -> None:
    assert len(compression.compress(SNAPPY, b"")) == 16


def test_lz4_blocks_are_independent_and_hold_64_kib_each() -> None:
    blocks = lz4_blocks(compression.compress(LZ4, TEXT))
    alone = [lz4.block.decompress(data, uncompressed_size=64 * KIB) for _, data in blocks]
    assert b"".join(alone) == TEXT
    assert {len(block) for block in alone[:-1]} == {64 * KIB}


def test_lz4_stores_blocks_that_do_not_shrink() -> None:
    noise = random.Random(0).randbytes(64 * KIB)
    assert lz4_blocks(compression.compress(LZ4, noise)) == [(True, noise)]


def test_lz4_of_nothing_is_a_header_and_an_end_mark() -> None:
    assert compression.compress(LZ4, b"").hex() == "04224d1860408200000000"


def test_zstd_frame_has_neither_content_size_nor_checksum() -> None:
    parameters = zstandard.get_frame_parameters(compression.compress(ZSTD, TEXT))
    assert parameters.content_size == zstandard.CONTENTSIZE_UNKNOWN
    assert not parameters.has_checksum


def test_none_gives_the_data_itself_on_reading() -> None:
    view = compression.decompress(NONE, TEXT)
    assert isinstance(view, memoryview)
    assert view.obj is TEXT


# Round trips


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize(("codec", "magic"), EVERY_CODEC_AND_MAGIC)
def test_decompress_gives_what_was_compressed(codec: int, magic: int, data: bytes) -> None:
    stream = compression.compress(codec, data, magic=magic)
    assert decompress(codec, stream, magic=magic) == data


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(bytes, id="bytes"),
        pytest.param(bytearray, id="bytearray"),
        pytest.param(memoryview, id="memoryview"),
        pytest.param(pa.py_buffer, id="arrow-buffer"),
        pytest.param(lambda data: np.frombuffer(data, np.uint8), id="numpy-array"),
    ],
)
@pytest.mark.parametrize("data", [pytest.param(b"", id="empty"), pytest.param(TEXT, id="text")])
@pytest.mark.parametrize("codec", COMPRESSED)
def test_any_contiguous_buffer_is_accepted(
    codec: int, data: bytes, make: Callable[..., Any]
) -> None:
    stream = compression.compress(codec, make(data))
    assert bytes(compression.decompress(codec, make(stream))) == data


@pytest.mark.parametrize("codec", COMPRESSED)
def test_threads_do_not_share_a_stream(codec: int) -> None:
    def round_trip(seed: int) -> bool:
        data = random.Random(seed).randbytes(5_000).hex().encode() * 20
        return decompress(codec, compression.compress(codec, data)) == data

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(round_trip, range(40)))


def test_codecs_have_kafkas_ids() -> None:
    assert CODECS == {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


# Other implementations

KAFKA_PYTHON = {
    GZIP: (kafka.codec.gzip_encode, kafka.codec.gzip_decode),
    SNAPPY: (kafka.codec.snappy_encode, kafka.codec.snappy_decode),
    LZ4: (kafka.codec.lz4_encode, kafka.codec.lz4_decode),
    ZSTD: (kafka.codec.zstd_encode, kafka.codec.zstd_decode),
}
AIOKAFKA = {
    GZIP: (aiokafka.codec.gzip_encode, aiokafka.codec.gzip_decode),
    SNAPPY: (aiokafka.codec.snappy_encode, aiokafka.codec.snappy_decode),
    LZ4: (aiokafka.codec.lz4_encode, aiokafka.codec.lz4_decode),
    ZSTD: (aiokafka.codec.zstd_encode, aiokafka.codec.zstd_decode),
}
PEERS = [pytest.param(KAFKA_PYTHON, id="kafka-python"), pytest.param(AIOKAFKA, id="aiokafka")]


# Both peers mistake a snappy stream of 16 bytes, which has no blocks, for a bare block.
@pytest.mark.parametrize("data", NOT_EMPTY)
@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("peer", PEERS)
def test_peers_decompress_what_we_compress(
    peer: dict[int, tuple[Callable[..., Any], ...]], codec: int, data: bytes
) -> None:
    _, decode = peer[codec]
    assert bytes(decode(compression.compress(codec, data))) == data


@pytest.mark.parametrize("data", NOT_EMPTY)
@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("peer", PEERS)
def test_we_decompress_what_peers_compress(
    peer: dict[int, tuple[Callable[..., Any], ...]], codec: int, data: bytes
) -> None:
    encode, _ = peer[codec]
    assert decompress(codec, bytes(encode(data))) == data


ACCEPTED_STREAMS = [
    pytest.param(GZIP, gzip.compress(TEXT[:9]) + gzip.compress(TEXT[9:]), id="gzip-two-members"),
    pytest.param(GZIP, gzip.compress(TEXT) + b"\x1f\x8b and more", id="gzip-bytes-behind"),
    pytest.param(GZIP, gzip.compress(TEXT, 1), id="gzip-level-1"),
    pytest.param(SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT)), id="snappy-bare-block"),
    pytest.param(
        SNAPPY,
        compression.compress(SNAPPY, TEXT[:9]) + compression.compress(SNAPPY, TEXT[9:]),
        id="snappy-header-again",
    ),
    pytest.param(
        SNAPPY,
        b"\x82SNAPPY\x00" + bytes.fromhex("0100000001000000") + compression.compress(SNAPPY, TEXT)[16:],
        id="snappy-little-endian-version",
    ),
    pytest.param(LZ4, compression.compress(LZ4, TEXT) + b"more", id="lz4-bytes-behind"),
    pytest.param(LZ4, lz4.frame.compress(TEXT, block_linked=True), id="lz4-linked-blocks"),
    pytest.param(LZ4, lz4.frame.compress(TEXT, block_size=7, store_size=True), id="lz4-4-mib-blocks"),
    pytest.param(
        LZ4,
        lz4.frame.compress(TEXT, content_checksum=True, block_checksum=True),
        id="lz4-checksums",
    ),
    pytest.param(ZSTD, zstandard.compress(TEXT), id="zstd-content-size"),
    pytest.param(
        ZSTD,
        zstandard.ZstdCompressor(level=19, write_checksum=True).compress(TEXT),
        id="zstd-checksum",
    ),
    pytest.param(ZSTD, zstandard.compress(TEXT[:9]) + zstandard.compress(TEXT[9:]), id="zstd-two-frames"),
    pytest.param(ZSTD, bytes(cramjam.zstd.compress(TEXT)), id="zstd-cramjam"),
]  # fmt: skip


@pytest.mark.parametrize(("codec", "stream"), ACCEPTED_STREAMS)
def test_other_framings_that_kafka_reads_are_read(codec: int, stream: bytes) -> None:
    assert decompress(codec, stream) == TEXT


@pytest.mark.parametrize(
    ("header_size", "options"),
    [
        pytest.param(7, {"block_linked": False, "store_size": False}, id="as-kafka-writes"),
        pytest.param(15, {"store_size": True}, id="content-size"),
        pytest.param(
            7, {"store_size": False, "block_size": 7, "block_checksum": True}, id="others"
        ),
    ],
)
def test_lz4_header_checksum_counts_for_magic_1_and_2_only(
    header_size: int, options: dict[str, Any]
) -> None:
    frame = bytearray(lz4.frame.compress(TEXT, **options))
    frame[header_size - 1] ^= 0x55
    assert decompress(LZ4, bytes(frame), magic=0) == TEXT
    for magic in (1, 2):
        with pytest.raises(CorruptRecordError, match="headerChecksum"):
            compression.decompress(LZ4, frame, magic=magic)


# What is refused


@pytest.mark.parametrize("codec", [-1, 5, 6, 7])
def test_unknown_codec_is_refused(codec: int) -> None:
    with pytest.raises(CorruptRecordError, match=f"codec.*found {codec}"):
        compression.decompress(codec, TEXT)
    with pytest.raises(ConfigError):
        compression.compress(codec, TEXT)


@pytest.mark.parametrize("magic", [0, 1])
def test_zstd_is_refused_in_old_formats(magic: int) -> None:
    with pytest.raises(ConfigError):
        compression.compress(ZSTD, TEXT, magic=magic)
    with pytest.raises(CorruptRecordError, match=f"found {magic}"):
        compression.decompress(ZSTD, compression.compress(ZSTD, TEXT), magic=magic)


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("codec", COMPRESSED)
def test_empty_stream_is_refused(codec: int, magic: int) -> None:
    with pytest.raises(CorruptRecordError):
        compression.decompress(codec, b"", magic=magic)


def _zstd_with_content_size(claimed: int) -> bytes:
    frame = zstandard.compress(bytes(300))  # one byte of flags, then two of content size minus 256
    assert frame[4] == 0x60
    return frame[:5] + struct.pack("<H", claimed - 256) + frame[7:]


def _lz4_with_content_size(claimed: int) -> bytes:
    frame = bytearray(lz4.frame.compress(bytes(300), store_size=True))
    frame[6:14] = struct.pack("<Q", claimed)
    return bytes(frame)


@pytest.mark.parametrize(
    ("codec", "stream", "magic", "position"),
    [
        pytest.param(SNAPPY, b"\x05\x08abc", 2, 0, id="snappy-size-above"),
        pytest.param(SNAPPY, b"\x02\x08abc", 2, 0, id="snappy-size-below"),
        pytest.param(SNAPPY, b"\xff\xff\xff\xff\x0f\x08abc", 2, 0, id="snappy-size-4-gib"),
        pytest.param(SNAPPY, b"\xff\xff\xff\xff\xff\x08abc", 2, 0, id="snappy-size-without-end"),
        pytest.param(SNAPPY, compression.compress(SNAPPY, b"") + bytes(4), 2, 20, id="snappy-no-block"),
        pytest.param(SNAPPY, compression.compress(SNAPPY, b"") + b"\x80\0\0\0\0", 2, 16, id="snappy-negative"),
        pytest.param(SNAPPY, compression.compress(SNAPPY, b"") + b"\x7f\xff\xff\xff\0", 2, 21, id="snappy-2-gib"),
        pytest.param(SNAPPY, compression.compress(SNAPPY, b"") + b"\x82SNAPPY\0\0", 2, 25, id="snappy-half-header"),
        pytest.param(LZ4, _lz4_with_content_size(299), 0, None, id="lz4-content-size-below"),
        pytest.param(LZ4, _lz4_with_content_size(1 << 60), 0, None, id="lz4-content-size-above"),
        pytest.param(LZ4, b"\x04\x22\x4d\x18\x60\x40\x82\xff\xff\xff\x7f", 2, None, id="lz4-block-2-gib"),
        pytest.param(LZ4, b"\x50\x2a\x4d\x18\0\0\0\0", 2, 0, id="lz4-frame-to-skip"),
        pytest.param(LZ4, b"\x04\x22\x4d\x18", 0, 4, id="lz4-magic-alone"),
        pytest.param(LZ4, b"\x04\x22\x4d\x18\x69\x40\x00", 0, 7, id="lz4-header-without-sizes"),
        pytest.param(ZSTD, _zstd_with_content_size(299), 2, 0, id="zstd-content-size-below"),
        pytest.param(ZSTD, _zstd_with_content_size(301), 2, 0, id="zstd-content-size-above"),
        pytest.param(ZSTD, b"\x50\x2a\x4d\x18\0\0\0\0", 2, 0, id="zstd-frame-to-skip"),
        pytest.param(ZSTD, b"\x28\xb5\x2f\xfd\x00\xff\x01\0\0", 2, 0, id="zstd-window-of-terabytes"),
        pytest.param(ZSTD, b"\x28\xb5\x2f\xfd\x00\x58\x07\0\0", 2, 0, id="zstd-reserved-block"),
        pytest.param(ZSTD, zstandard.compress(TEXT) + b"more", 2, None, id="zstd-bytes-behind"),
        pytest.param(GZIP, zlib.compress(TEXT), 2, 0, id="gzip-zlib-stream"),
        pytest.param(GZIP, gzip.compress(TEXT) + b"\x1f\x8b\x08", 2, None, id="gzip-half-a-member"),
    ],
)  # fmt: skip
def test_lies_are_refused(codec: int, stream: bytes, magic: int, position: int | None) -> None:
    with pytest.raises(CorruptRecordError) as raised:
        compression.decompress(codec, stream, magic=magic)
    assert raised.value.position == position if position is not None else raised.value.position >= 0


def test_error_survives_pickling_with_its_fields() -> None:
    with pytest.raises(CorruptRecordError) as raised:
        compression.decompress(GZIP, zlib.compress(TEXT))
    copy = pickle.loads(pickle.dumps(raised.value))
    assert (str(copy), copy.position) == (str(raised.value), 0)


# Damage


@pytest.mark.parametrize(("codec", "magic"), [p for p in EVERY_CODEC_AND_MAGIC if p.values[0]])
def test_every_truncation_is_refused(codec: int, magic: int) -> None:
    stream = compression.compress(codec, SMALL, magic=magic)
    for size in range(len(stream)):
        # A xerial stream has no end mark: truncated between two blocks, it is still valid.
        if codec == SNAPPY and size in (16, 20 + len(snappy_chunks(stream)[0])):
            whole_blocks = (size > 16) * 32 * KIB
            assert decompress(codec, stream[:size], magic=magic) == SMALL[:whole_blocks]
            continue
        with pytest.raises(CorruptRecordError):
            compression.decompress(codec, stream[:size], magic=magic)


@pytest.mark.parametrize(("codec", "magic"), [p for p in EVERY_CODEC_AND_MAGIC if p.values[0]])
def test_a_flipped_bit_is_refused_or_gives_bytes(codec: int, magic: int) -> None:
    stream = compression.compress(codec, SMALL, magic=magic)
    for position in range(len(stream)):
        for bit in range(8):
            flipped = bytearray(stream)
            flipped[position] ^= 1 << bit
            try:
                data = compression.decompress(codec, flipped, magic=magic, limit=MIB)
            except CorruptRecordError:
                continue
            # The other codecs have no checksum; the batch around them has one.
            assert codec != GZIP or data == SMALL
            assert len(data) <= MIB


@pytest.mark.parametrize("codec", COMPRESSED)
@settings(deadline=None)
@given(data=st.data())
def test_damage_is_refused_or_gives_bytes(codec: int, data: st.DataObject) -> None:
    stream = data.draw(strategies.corruptions(compression.compress(codec, SMALL)))
    try:
        assert len(compression.decompress(codec, stream, limit=MIB)) <= MIB
    except CorruptRecordError:
        pass


# Bombs


@pytest.mark.parametrize("data", NOT_EMPTY)
@pytest.mark.parametrize("codec", COMPRESSED)
def test_limit_is_inclusive(codec: int, data: bytes) -> None:
    stream = compression.compress(codec, data)
    assert decompress(codec, stream, limit=len(data)) == data
    with pytest.raises(CorruptRecordError, match=f"expected {len(data) - 1} bytes or less"):
        compression.decompress(codec, stream, limit=len(data) - 1)


def _zstd_bomb(size: int) -> bytes:
    """RLE blocks, the densest that zstd has: 4 bytes for 128 KiB."""
    block = (128 * KIB << 3 | 1 << 1).to_bytes(3, "little") + b"\0"
    return b"\x28\xb5\x2f\xfd\x00\x58" + block * (size // (128 * KIB)) + b"\x01\0\0"


@pytest.mark.parametrize(
    ("codec", "stream"),
    [
        pytest.param(GZIP, gzip.compress(bytes(64 * MIB)), id="gzip"),
        pytest.param(GZIP, gzip.compress(bytes(MIB // 4)) * 256, id="gzip-many-members"),
        pytest.param(SNAPPY, bytes(cramjam.snappy.compress_raw(bytes(64 * MIB))), id="snappy-bare"),
        pytest.param(SNAPPY, compression.compress(SNAPPY, bytes(64 * MIB)), id="snappy"),
        pytest.param(LZ4, lz4.frame.compress(bytes(64 * MIB), block_size=7), id="lz4"),
        pytest.param(ZSTD, _zstd_bomb(2048 * MIB), id="zstd"),
        pytest.param(ZSTD, _zstd_bomb(128 * KIB) * 512, id="zstd-many-frames"),
    ],
)
def test_bomb_is_refused_before_it_takes_memory(codec: int, stream: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecordError, match="too large"):
            compression.decompress(codec, stream, limit=MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MIB


def test_largest_output_fits_what_indexes_it() -> None:
    assert MAX_DECOMPRESSED_BATCH_BYTES < 2**31
