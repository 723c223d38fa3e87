"""A channel over sockets whose buffers hold a few bytes."""

from __future__ import annotations

import errno
import socket
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kbatch.errors import DisconnectedError, ProtocolError
from spark_kbatch.wire.channel import Channel
from spark_kbatch.wire.framing import Receive
from tests.support.messages import CASES, a_frame, case_id
from tests.support.narrow_sockets import NarrowSocket, narrow_pair


def channels(capacity: int) -> tuple[Channel, Channel, NarrowSocket, NarrowSocket]:
    one, other = narrow_pair(capacity)
    return Channel(one, "localhost:9092"), Channel(other, "a client"), one, other


def carried(sender: Channel, receiver: Channel, pieces: list[bytes]) -> list[bytes]:
    """Send a message, and read on the other side until all of it is there."""
    send = sender.start(list(pieces))
    frames: list[bytes] = []
    while not send.is_complete or not frames:
        sender.write()
        frames += map(bytes, receiver.read())
    return frames


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_every_message_is_carried_through_buffers_of_a_few_bytes(
    case: tuple[int, int, int],
) -> None:
    random = Random(case_id(case))
    frame = a_frame(case, random)
    for capacity in (1, 3, 7, 100):
        sender, receiver, _, _ = channels(capacity)
        middle = random.randrange(len(frame))

        assert carried(sender, receiver, [frame[:middle], frame[middle:]]) == [frame]


@settings(deadline=None)  # other tests may use the machine
@given(
    capacity=st.integers(1, 9),
    messages=st.lists(st.lists(st.binary(max_size=30), max_size=4), max_size=4),
    steps=st.lists(st.booleans(), min_size=1, max_size=30).filter(lambda one: len(set(one)) == 2),
)
def test_messages_arrive_in_order_however_writes_and_reads_alternate(
    capacity: int, messages: list[list[bytes]], steps: list[bool]
) -> None:
    sender, receiver, _, _ = channels(capacity)
    waiting, frames, turn = list(messages), [], 0
    while len(frames) < len(messages):
        if steps[turn % len(steps)]:
            if waiting and not sender.is_sending:
                sender.start(list(waiting.pop(0)))
            sender.write()
        else:
            frames += map(bytes, receiver.read())
        turn += 1

    assert frames == [b"".join(pieces) for pieces in messages]


def test_second_send_is_refused_while_one_is_in_progress() -> None:
    channel, other, _, _ = channels(3)
    channel.start([b"first"])
    assert channel.write() is None

    with pytest.raises(ValueError, match="a send to localhost:9092 is in progress"):
        channel.start([b"second"])

    while channel.is_sending:
        other.read()
        channel.write()
    assert carried(channel, other, [b"second"])[-1] == b"second"


def test_reading_stops_at_the_first_frame_so_that_other_connections_have_their_turn() -> None:
    channel, other, _, narrow = channels(10**6)
    for size in (9000, 9000):
        channel.start([bytes(size)])
        assert channel.write() is not None

    assert [len(frame) for frame in other.read()] == [9000]
    assert len(narrow.incoming) == 9004


def test_answers_that_arrived_before_the_end_are_read_first() -> None:
    channel, other, one, _ = channels(100)
    channel.start([b"answer"])
    channel.write()
    one.close()

    assert [bytes(frame) for frame in other.read()] == [b"answer"]
    with pytest.raises(DisconnectedError, match="a client: it closed the connection"):
        other.read()


def test_the_error_for_a_lost_connection_gives_the_reason() -> None:
    channel, _, one, other = channels(100)
    one.error = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
    with pytest.raises(DisconnectedError, match="Connection reset by peer"):
        channel.read()

    other.close()
    channel.start([b"more"])
    with pytest.raises(DisconnectedError, match="Broken pipe"):
        channel.write()


def test_an_interrupted_call_is_repeated_by_the_next() -> None:
    channel, other, one, narrow = channels(100)
    one.error = narrow.error = InterruptedError()
    channel.start([b"once"])

    assert channel.write() is None
    assert other.read() == []
    assert channel.write() is not None
    assert [bytes(frame) for frame in other.read()] == [b"once"]


def test_frame_above_the_limit_is_refused() -> None:
    one, other = narrow_pair(100)
    sender, receiver = Channel(one, "a server"), Channel(other, "a client", Receive(max_size=10))
    sender.start([bytes(11)])
    sender.write()

    with pytest.raises(ProtocolError, match="0 to 10 bytes"):
        receiver.read()


def test_partial_writes_of_the_kernel_are_resumed() -> None:
    """A real socket, whose buffers are as small as the kernel makes them."""
    left, right = socket.socketpair()
    left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    for sock in (left, right):
        sock.setblocking(False)
    sender, receiver = Channel(left, "a server"), Channel(right, "a client")
    pieces = [Random(n).randbytes(1000 * n) for n in range(40)]
    send = sender.start(list(pieces))
    frames: list[bytes] = []
    writes = 0
    while not frames:
        sender.write()
        writes += 1
        frames += map(bytes, receiver.read())
    sender.close()
    receiver.close()

    assert send.is_complete
    assert writes > 10
    assert frames == [b"".join(pieces)]
