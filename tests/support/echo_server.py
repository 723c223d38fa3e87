"""A server that answers each Produce request as soon as it is whole, without looking at it: a ceiling.

It has the event loop, the connections and the framing of `kbatch serve`, and nothing behind them.

    python -m tests.support.echo_server     prints its port, and runs until its standard input ends
"""

from __future__ import annotations

import struct
import sys

from spark_kbatch.options.server import ServerConfig
from spark_kbatch.server.connection import ClientConnection, Memory
from spark_kbatch.server.listener import Listener, listening_socket
from spark_kbatch.server.memory import AnswerMemory, RequestMemory
from spark_kbatch.wire import protocol
from spark_kbatch.wire.framing import Send
from spark_kbatch.wire.protocol import ApiKey, ProduceResponse

VERSION = 9
_CORRELATION_ID = struct.Struct(">4xi")  # of a request, after its key and version


def answer() -> bytes:
    """Return what a Produce of one batch is answered with, from after its correlation id on."""
    partition = ProduceResponse.TopicProduceResponse.PartitionProduceResponse
    topic = ProduceResponse.TopicProduceResponse(
        name="events", partition_responses=[partition(index=0, base_offset=1)]
    )
    pieces = protocol.encode_response(
        ApiKey.PRODUCE, VERSION, 0, ProduceResponse(responses=[topic])
    )
    return b"".join(bytes(piece) for piece in pieces)[struct.calcsize(">i") :]


def main() -> None:
    """Answer until standard input ends."""
    sock = listening_socket("127.0.0.1", 0)
    config = ServerConfig()
    memory = Memory(RequestMemory(config.queued_max_request_bytes), AnswerMemory(1 << 20))
    listener = Listener(sock, config, memory)
    rest = answer()

    def on_request(connection: ClientConnection, frame: memoryview) -> None:
        (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
        connection.answer(Send([struct.pack(">i", correlation_id) + rest]))

    listener.start(on_request)
    print(sock.getsockname()[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
