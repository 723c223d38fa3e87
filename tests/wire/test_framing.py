"""Frames in pieces: every split of every message, partial writes, and false sizes."""

from __future__ import annotations

import struct
from random import Random

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kbatch.errors import ProtocolError
from spark_kbatch.wire.framing import Receive, Send

MB = 2**20


def framed(*messages: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(one)) + one for one in messages)


def receive_all(receive: Receive, chunks: list[bytes]) -> list[bytes]:
    """Return the frames of a stream that arrives in these chunks, each in one or more reads."""
    frames = []
    for chunk in chunks:
        rest = chunk
        while rest:
            buffer = receive.buffer()
            count = min(len(rest), len(buffer))
            buffer[:count] = rest[:count]
            receive.received(count)
            rest = rest[count:]
            while (frame := receive.next_frame()) is not None:
                frames.append(bytes(frame))
    return frames


MESSAGES = [b"", b"a", b"one request", b"", b"x" * 30]
STREAM = framed(*MESSAGES)


@pytest.mark.parametrize("read_ahead", [4, 5, 16, 4096])
def test_frames_are_whole_wherever_the_stream_is_split_in_three(read_ahead: int) -> None:
    for first in range(len(STREAM) + 1):
        for second in range(first, len(STREAM) + 1):
            chunks = [STREAM[:first], STREAM[first:second], STREAM[second:]]

            assert receive_all(Receive(read_ahead=read_ahead), chunks) == MESSAGES


@settings(deadline=None)  # other tests may take the machine
@given(
    message_sizes=st.lists(st.integers(0, 40) | st.integers(0, 40_000), max_size=4),
    read_sizes=st.lists(st.integers(1, 50_000), min_size=1, max_size=20),
    read_ahead=st.integers(0, 300),
)
def test_frames_are_whole_however_their_bytes_arrive(
    message_sizes: list[int], read_sizes: list[int], read_ahead: int
) -> None:
    messages = [Random(size).randbytes(size) for size in message_sizes]
    stream, chunks, at = framed(*messages), [], 0
    while at < len(stream):
        size = max(read_sizes[len(chunks) % len(read_sizes)], len(stream) // 1000)
        chunks.append(stream[at : at + size])
        at += size

    assert receive_all(Receive(read_ahead=read_ahead), chunks) == messages


def test_frame_belongs_to_the_caller() -> None:
    receive = Receive()
    frames = []
    for message in (b"first", b"other"):
        buffer = receive.buffer()
        buffer[:9] = framed(message)
        receive.received(9)
        frames.append(receive.next_frame())

    assert [bytes(frame) for frame in frames if frame is not None] == [b"first", b"other"]


@pytest.mark.parametrize("size", [-1, -(2**31), 1001, 2**31 - 1])
def test_a_negative_or_oversized_frame_is_refused_before_its_bytes_arrive(size: int) -> None:
    receive = Receive(max_size=1000)
    receive.buffer()[:4] = struct.pack(">i", size)
    receive.received(4)

    with pytest.raises(ProtocolError, match=f"expected 0 to 1000 bytes, found {size}"):
        receive.next_frame()


@pytest.mark.parametrize("come", [1, 100_000, 2 * MB], ids=["a_byte", "100_kB", "2_MiB"])
def test_announced_frames_cost_little_more_than_the_bytes_that_arrived(come: int) -> None:
    process = psutil.Process()
    receives = [Receive() for _ in range(20)]
    before = process.memory_info().rss

    for receive in receives:
        receive.buffer()[:4] = struct.pack(">i", 100 * MB)
        receive.received(4)
        assert receive.next_frame() is None
        assert receive.announced == 100 * MB
        left = come
        while left:
            buffer = receive.buffer()[:left]
            buffer[:] = bytes(len(buffer))
            receive.received(len(buffer))
            assert receive.next_frame() is None
            left -= len(buffer)
        assert come > MB or len(receive.buffer()) <= 4 * max(come, 64 * 1024)

    assert process.memory_info().rss - before <= 20 * (2 * come + 2.5 * MB if come > MB else 2 * MB)


def test_small_frames_that_arrive_together_take_one_read() -> None:
    receive = Receive()
    buffer = receive.buffer()
    buffer[: len(STREAM)] = STREAM
    receive.received(len(STREAM))

    frames = [receive.next_frame() for _ in range(len(MESSAGES) + 1)]

    assert [frame and bytes(frame) for frame in frames[:-1]] == [b"" or one for one in MESSAGES]
    assert frames[-1] is None


def test_reading_on_before_a_frame_is_taken_is_refused() -> None:
    receive = Receive(read_ahead=4)
    receive.buffer()[:4] = struct.pack(">i", 2)
    receive.received(4)
    assert receive.next_frame() is None
    receive.received(len(receive.buffer()))

    with pytest.raises(ValueError, match="take the frames"):
        receive.buffer()


def write_all(send: Send, sizes: list[int], max_pieces: int) -> bytes:
    """Write a send, each time as many bytes as a size says; 0 for a socket that takes none."""
    written = b""
    turn = 0
    while not send.is_complete:
        offered = b"".join(send.pending(max_pieces))
        assert offered
        taken = offered[: sizes[turn % len(sizes)]]
        turn += 1
        send.advance(len(taken))
        written += taken
        assert send.is_complete == (not send.remaining)
    return written


@settings(deadline=None)  # other tests may take the machine
@given(
    pieces=st.lists(st.binary(max_size=40), max_size=8),
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=10).filter(any),
    max_pieces=st.integers(1, 10),
)
def test_partial_writes_are_resumed_where_they_stopped(
    pieces: list[bytes], sizes: list[int], max_pieces: int
) -> None:
    send = Send(pieces)

    assert write_all(send, sizes, max_pieces) == framed(b"".join(pieces))
    assert not send.pending()


def test_a_send_counts_bytes_of_views_of_larger_items() -> None:
    numbers = memoryview(struct.pack(">3i", 1, 2, 3)).cast("i")

    assert write_all(Send([numbers]), [100], 10) == framed(struct.pack(">3i", 1, 2, 3))


def test_message_too_large_for_a_frame_is_refused() -> None:
    piece = memoryview(bytearray(MB))

    with pytest.raises(ValueError, match="at most 2147483647 can be framed"):
        Send([piece] * 2048)
