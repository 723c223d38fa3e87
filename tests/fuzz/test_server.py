"""Whatever a peer sends, the server answers or hangs up, stays within its memory and stores nothing invalid."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from spark_kbatch import Cluster
from spark_kbatch.server.server import Server
from spark_kbatch.wire.framing import SIZE
from spark_kbatch.wire.protocol import ApiKey, MetadataRequest
from tests.support import builders, messages
from tests.support.fuzz_rounds import for_each_round, mutated
from tests.support.raw_clients import RawClient, fetch, framed, produce, request

REQUESTS = [case for case in messages.CASES if case[2] == messages.REQUEST]
# These would create topics with any name, and delete those that the rounds use.
LEFT_OUT = {ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS}
BATCHES = [builders.batch(n=3, seed=seed, compression=codec) for seed, codec in enumerate(("none", "zstd", "lz4"))]  # fmt: skip
CONNECTIONS = 11  # of a round, each with some requests: 100,000 arrive in 10,000 rounds
PATIENCE_S = 0.3
MEMORY_BYTES = 300 << 20


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with builders.a_cluster(tmp_path, topics={"events": 2}) as cluster:
        yield cluster


def a_request(rng: random.Random) -> bytes:
    match rng.randrange(4):
        case 0:
            batch = mutated(rng, rng.choice(BATCHES)) if rng.random() < 0.7 else BATCHES[0]
            return request(ApiKey.PRODUCE, rng.randrange(3, 13), produce(batch, acks=rng.choice((-1, 1, 0))))  # fmt: skip
        case 1:
            offset = rng.choice((-1, 0, 1, 2, 5, 10**12))
            return request(ApiKey.FETCH, rng.randrange(4, 13), fetch(offset, max_wait_ms=5))
        case _:
            case = rng.choice([one for one in REQUESTS if one[0] not in LEFT_OUT])
            return framed(messages.a_frame(case, rng))


def sent(rng: random.Random) -> bytes:
    """Return one to eight requests, most of them damaged."""
    frames = []
    for _ in range(rng.choice((1, 2, 4, 8))):
        frame = a_request(rng)
        if rng.random() < 0.7:
            body = mutated(rng, frame[SIZE.size :])
            frame = framed(body) if rng.random() < 0.8 else frame[: SIZE.size] + body
        frames.append(frame)
    data = b"".join(frames)
    return data[: rng.randrange(len(data) + 1)] if rng.random() < 0.2 else data


def send(server: Server, data: bytes) -> None:
    """Send all of the data, and read answers until the server has handled it."""
    with RawClient(server, timeout_s=PATIENCE_S) as client:
        with contextlib.suppress(ConnectionError):
            client.send(data)
            client.end_sending()
            # Some requests are answered late, such as those that wait for a group's members.
            with contextlib.suppress(TimeoutError):
                while client.socket.recv(65_536):
                    pass


def test_any_bytes_are_answered_or_refused(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    with cluster.serve(auto_create=False) as server:
        process = psutil.Process()
        before = process.memory_info().rss

        def run(rng: random.Random) -> None:
            for _ in range(CONNECTIONS):
                send(server, sent(rng))

        for_each_round("server", run)

        assert process.memory_info().rss - before < MEMORY_BYTES
        with RawClient(server) as client:
            answer = client.ask(ApiKey.METADATA, 9, MetadataRequest(topics=[]))
            assert answer.controller_id == 1
    faults = [record.getMessage() for record in caplog.records if record.exc_info]
    assert faults == []
    assert not any(report.found for report in cluster.repair())
    for topic in cluster.topics():
        ends = [info.offsets.high_watermark for info in cluster.describe(topic.name)]
        starts = [info.offsets.log_start_offset for info in cluster.describe(topic.name)]
        assert cluster.read(topic.name).read_all().num_rows == sum(ends) - sum(starts)
