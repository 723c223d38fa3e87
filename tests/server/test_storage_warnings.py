"""A server says in its log why it cannot store what clients send."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.clock import monotonic_s
from spark_kbatch.errors import CompiledCodeError
from spark_kbatch.files import Files
from spark_kbatch.model import TopicPartition
from spark_kbatch.server import outcomes
from spark_kbatch.server.server import Server
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import ApiKey, InitProducerIdRequest
from tests.support import builders
from tests.support.raw_clients import RawClient, produce
from tests.support.reference import Record, encode_batch
from tests.support.store import store_of


class Disk(Files):
    """A disk on which logs cannot be written while there is an error."""

    error: int | None = None

    def made(self, path: Path):  # type: ignore[no-untyped-def]
        if self.error is not None and path.suffix == ".log" and path.parent.name != "__commits-0":
            raise OSError(self.error, os.strerror(self.error), str(path))
        return super().made(path)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def server(tmp_path: Path, disk: Disk) -> Iterator[Server]:
    with builders.a_cluster(tmp_path, topics={"events": 2}, files=disk) as cluster:
        with cluster.serve() as server:
            yield server


def send(server: Server, partition: int = 0, times: int = 1) -> set[int]:
    """Send a batch some times; return the codes of the answers."""
    with RawClient(server) as client:
        answers = [
            client.ask(ApiKey.PRODUCE, 9, produce(builders.batch(), partition=partition))
            for _ in range(times)
        ]
    return {one.responses[0].partition_responses[0].error_code for one in answers}


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "are not stored" in line]


REMEDIES = {
    errno.ENOSPC: "No space left on device; delete topics or records",
    errno.EACCES: "Permission denied; run as a user who may",
    errno.EFBIG: "File too large; this process has a limit",
    errno.EIO: "Input/output error",
}


@pytest.mark.parametrize("error", REMEDIES, ids=errno.errorcode.get)
def test_a_disk_that_takes_no_records_is_told_once_for_a_partition_with_what_to_do(
    server: Server, disk: Disk, caplog: pytest.LogCaptureFixture, error: int
) -> None:
    disk.error = error
    assert send(server, times=5) == {ErrorCode.KAFKA_STORAGE_ERROR}
    (line,) = lines(caplog)
    assert line.startswith(
        "records of client 'a test' at 127.0.0.1 for events-0 are not stored, KAFKA_STORAGE_ERROR: "
    )
    assert f"events-0/00000000000000000000.log: {REMEDIES[error]}" in line
    assert send(server, partition=1) == {ErrorCode.KAFKA_STORAGE_ERROR}
    assert len(lines(caplog)) == 2

    disk.error = None
    assert send(server) == {ErrorCode.NONE}
    disk.error = errno.EROFS if error != errno.EROFS else errno.EIO
    send(server)
    assert len(lines(caplog)) == 3


def test_it_is_told_again_while_it_lasts(
    server: Server,
    disk: Disk,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk.error = errno.ENOSPC
    later_s = 0.0
    monkeypatch.setattr(outcomes, "monotonic_s", lambda: monotonic_s() + later_s)
    send(server)
    later_s = 599.0
    send(server)
    assert len(lines(caplog)) == 1
    later_s = 601.0
    send(server, times=3)
    assert len(lines(caplog)) == 2


def no_memory() -> None:
    raise CompiledCodeError("cannot allocate memory", 470)


def test_what_is_no_fault_of_a_disk_is_told_too_and_not_tried_again(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def accept(*_: object, **__: object) -> None:
        no_memory()

    monkeypatch.setattr("spark_kbatch.replica.manager.accept", accept)
    assert send(server, times=3) == {ErrorCode.UNKNOWN_SERVER_ERROR}  # which no client repeats
    (line,) = lines(caplog)
    assert "may have 470 MiB of address space" in line
    assert "spark.executor.pyspark.memory" in line


def test_a_first_error_of_a_producer_without_rights_says_what_to_do(tmp_path: Path) -> None:
    class Locked(Files):
        flock: Callable[..., object]

    def flock(path: Path, *, wait: bool = True) -> object:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    files = Locked()
    cluster = builders.a_cluster(tmp_path)
    files.flock = flock  # type: ignore[method-assign]
    with Cluster(str(cluster.path), files=files) as opened, opened.producer() as producer:
        with pytest.raises(Exception, match="run as a user who may, or change the mode"):
            producer.send("events", value="x").result()


# Refusals of what clients send.

FAR_AHEAD_MS = 4_000_000_000_000_000
REFUSED = {
    "INVALID_TIMESTAMP": (
        {"batch": encode_batch([Record(0, FAR_AHEAD_MS, None, b"x")])}, "message.timestamp.after.max.ms"
    ),
    "MESSAGE_TOO_LARGE": ({"batch": builders.batch(n=1, value_bytes=2_000_000)}, "max.message.bytes"),
    "CORRUPT_MESSAGE": ({"batch": builders.batch()[:-1] + b"\xff"}, "CRC-32C"),
    "UNKNOWN_TOPIC_OR_PARTITION": ({"batch": builders.batch(), "topic": "none"}, "'none'"),
    "INVALID_TOPIC_EXCEPTION": ({"batch": builders.batch(), "topic": "__commits"}, "the cluster's own"),
    "INVALID_RECORD": ({"batch": b""}, "there is no batch"),
}  # fmt: skip


@pytest.mark.parametrize("code", REFUSED)
def test_what_a_client_sends_in_vain_is_told_once_for_a_topic_with_the_client_and_why(
    server: Server, caplog: pytest.LogCaptureFixture, code: str
) -> None:
    (named, why) = REFUSED[code]
    with RawClient(server) as client:
        for _ in range(3):
            answer = client.ask(ApiKey.PRODUCE, 9, produce(**named))  # type: ignore[arg-type]
            (one,) = answer.responses[0].partition_responses
            assert one.error_code == ErrorCode[code]

    (line,) = lines(caplog)
    topic = named.get("topic", "events")
    start = f"records of client 'a test' at 127.0.0.1 for {topic}-0 are not stored, {code}: "
    assert line.startswith(start)
    assert why in line


def test_each_reason_and_each_topic_is_told(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with RawClient(server) as client:
        for topic in ("one", "two"):
            for _ in range(2):
                client.ask(ApiKey.PRODUCE, 9, produce(builders.batch(), topic=topic))
                client.ask(ApiKey.PRODUCE, 9, produce(b"", topic=topic))

    assert len(lines(caplog)) == 4


def test_too_few_in_sync_replicas_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    with Cluster(tmp_path / "cluster", create=True, log_dirs=folders) as cluster:
        cluster.create_topic("events", replication_factor=2, config={"min.insync.replicas": 2})
        with cluster.serve() as server:
            assert send(server) == {ErrorCode.NONE}
            folders[1].rename(tmp_path / "away")
            found = send(server, times=2)

    assert found <= {ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
    told = lines(caplog)
    assert len(told) == len({*told})
    assert all("for events-0 are not stored" in one and "replicas" in one for one in told)
    assert told


def test_a_lock_that_is_held_for_too_long_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with builders.a_cluster(tmp_path) as cluster, cluster.serve() as server:
        with store_of(cluster).manager.locks.partitions([TopicPartition("events", 0)]):
            with RawClient(server) as client:
                for _ in range(2):
                    asked = produce(builders.batch(), timeout_ms=50)
                    (one,) = client.ask(ApiKey.PRODUCE, 9, asked).responses[0].partition_responses
                    assert one.error_code == ErrorCode.REQUEST_TIMED_OUT

    (line,) = lines(caplog)
    assert "the partition was locked by another process or thread, most likely a commit" in line


def idempotent(sequence: int) -> bytes:
    """Return a batch of one record of an idempotent producer."""
    record = Record(0, builders.FIRST_TIMESTAMP_MS, None, b"x")
    return encode_batch([record], producer_id=7, producer_epoch=0, base_sequence=sequence)


def test_what_an_idempotent_producer_mends_by_itself_is_not_told(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with RawClient(server) as client:
        client.ask(ApiKey.PRODUCE, 9, produce(idempotent(0)))
        found = client.ask(ApiKey.PRODUCE, 9, produce(idempotent(9)))
        (one,) = found.responses[0].partition_responses

    assert one.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert caplog.messages == []


def test_of_an_idempotent_producer_the_first_batch_that_is_not_stored_is_told(
    server: Server, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.error = errno.ENOSPC
    with RawClient(server) as client:
        for sequence in range(5):
            found = client.ask(ApiKey.PRODUCE, 9, produce(idempotent(sequence)))
            (one,) = found.responses[0].partition_responses
            assert one.error_code == ErrorCode.KAFKA_STORAGE_ERROR

    assert len(lines(caplog)) == 1


def test_why_a_producer_gets_no_id_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with builders.a_cluster(tmp_path) as cluster, cluster.serve() as server:

        def fail(**_: object) -> int:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(cluster.path))

        monkeypatch.setattr(store_of(cluster), "new_producer_id", fail)
        asked = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        with RawClient(server) as client:
            for _ in range(3):
                found = client.ask(ApiKey.INIT_PRODUCER_ID, 4, asked)
                assert found.error_code == ErrorCode.KAFKA_STORAGE_ERROR

    (line,) = [one for one in caplog.messages if "no producer id for 127.0.0.1" in one]
    assert f"Read-only file system: '{cluster.path}'" in line
