"""The life of a server: it owns its PATH, is found, does periodic work, and ends without harm to others."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_kbatch import Cluster
from spark_kbatch.cluster.ownership import Ownership, running_server
from spark_kbatch.errors import ConfigError, ServerRunningError
from spark_kbatch.server.groups.coordinator import GroupCoordinator
from spark_kbatch.server.groups.membership import Memberships
from spark_kbatch.server.housekeeping import Housekeeping
from spark_kbatch.server.intercepts import InterceptedRequest
from spark_kbatch.server.server import Server
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import ApiKey, HeartbeatRequest, MetadataRequest
from tests.support import builders
from tests.support.raw_clients import RawClient, fetch, fetched, produce, produced, request
from tests.support.store import store_of
from tests.support.stored_groups import store
from tests.support.waiting import until

BATCH = builders.batch(n=1)
METADATA = MetadataRequest(topics=[])

IN_ANOTHER_PROCESS = """
import sys, time
import spark_kbatch

server = spark_kbatch.open(sys.argv[1]).serve()
print(server.bootstrap_servers, flush=True)
time.sleep(60)
"""


# One server per PATH.


def test_the_address_of_a_server_is_found_as_long_as_it_runs(cluster: Cluster) -> None:
    metadata = store_of(cluster).metadata
    assert running_server(metadata) is None
    with cluster.serve() as server:
        found = running_server(metadata)
        assert found is not None
        assert (found.bootstrap_servers, found.process_id) == (
            server.bootstrap_servers,
            os.getpid(),
        )
    assert running_server(metadata) is None
    assert not (cluster.path / "server.json").exists()


@contextlib.contextmanager
def served_elsewhere(cluster: Cluster) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    program = [sys.executable, "-c", IN_ANOTHER_PROCESS, str(cluster.path)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()


def test_the_file_of_a_killed_server_is_ignored(cluster: Cluster) -> None:
    with served_elsewhere(cluster) as (address, process):
        with pytest.raises(ServerRunningError) as raised:
            cluster.serve()
        assert address in str(raised.value)
        assert raised.value.process_id == process.pid
        process.send_signal(signal.SIGKILL)
        process.wait()
        stale = json.loads((cluster.path / "server.json").read_text())
        assert stale["process_id"] == process.pid
        assert running_server(store_of(cluster).metadata) is None
        with cluster.serve() as server:
            found = running_server(store_of(cluster).metadata)
            assert found is not None
            assert found.port == server.port


def test_a_damaged_server_file_does_not_prevent_serving(cluster: Cluster) -> None:
    (cluster.path / "server.json").write_text("{")

    with cluster.serve() as server, RawClient(server) as client:
        assert client.ask(ApiKey.METADATA, 9, METADATA).controller_id == 1


def test_a_server_owns_its_path_again_once_that_is_restored(tmp_path: Path) -> None:
    path, disks = tmp_path / "cluster", [tmp_path / "disk-0", tmp_path / "disk-1"]
    with Cluster(str(path), create=True, log_dirs=disks) as cluster, cluster.serve():
        path.rename(tmp_path / "lost")
        with Cluster(str(path), create=True, log_dirs=disks) as restored:
            until(restored.running_server)
            with pytest.raises(ServerRunningError):
                restored.serve()


def test_a_server_has_no_groups_once_another_one_owns_its_restored_path(cluster: Cluster) -> None:
    metadata = store_of(cluster).metadata
    former = Ownership(metadata)
    assert former.term() == 0
    metadata.paths.server_lock.unlink()
    current = Ownership(metadata)
    current.announce("127.0.0.1", 9092, 0)
    assert (former.term(), current.term()) == (None, 0)
    former.release()
    assert cluster.running_server() is not None
    current.release()


def test_a_server_starts_after_who_ends_what_another_one_has_left(cluster: Cluster) -> None:
    """That one has no address; of a server that was killed, it removes the address first."""
    metadata = store_of(cluster).metadata
    metadata.paths.server_file.write_text(
        '{"host": "127.0.0.1", "port": 9092, "process_id": 1, "started_ms": 0}'
    )
    ending = Ownership(metadata)
    assert not metadata.paths.server_file.exists()
    with pytest.raises(ServerRunningError, match="just been started"):
        Ownership(metadata, patience_s=0)

    timer = threading.Timer(1, ending.release)
    timer.start()
    with cluster.serve() as server:
        assert cluster.running_server() is not None
        assert server.port
    timer.join()


def test_clients_may_try_again_while_the_path_of_a_server_is_an_old_one(tmp_path: Path) -> None:
    path, disks = tmp_path / "cluster", [tmp_path / "disk-0", tmp_path / "disk-1"]
    with (
        Cluster(str(path), create=True, log_dirs=disks) as cluster,
        cluster.serve() as server,
        RawClient(server) as client,
    ):
        cluster.create_topic("events", replication_factor=2)
        shutil.copytree(path, tmp_path / "backup")
        cluster.create_topic("later")
        path.rename(tmp_path / "lost")
        (tmp_path / "backup").rename(path)
        found = produced(client.ask(ApiKey.PRODUCE, 9, produce(BATCH)))
        assert found.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "open it again" in found.error_message

        Cluster(str(path)).close()
        assert produced(client.ask(ApiKey.PRODUCE, 9, produce(BATCH))).error_code == 0


def test_a_port_in_use_is_refused_and_leaves_the_path_free(cluster: Cluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen at 127.0.0.1:{port}"):
            cluster.serve(port=port)
    with cluster.serve(port=port) as server:
        assert server.port == port


@pytest.mark.parametrize("host", ["a" * 64, "a..b", "127.0.0.1\0x"])
def test_a_name_that_no_host_can_have_is_refused(cluster: Cluster, host: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid host name"):
        cluster.serve(host)


def test_a_port_that_is_taken_at_the_last_moment_is_refused_and_leaves_the_path_free(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(Ownership, "announce", lambda *_: taken.listen())
        with pytest.raises(ConfigError, match=f"cannot listen at 127.0.0.1:{port}"):
            cluster.serve(port=port)
    monkeypatch.undo()
    with cluster.serve(port=port) as server:
        assert server.port == port


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"host": 5}, "host"),
        ({"port": 65_536}, "port"),
        ({"advertise": "nowhere"}, "advertise"),
        ({"num_partitions": 0}, "num.partitions"),
        ({"fetch_max_byte": 1}, "fetch.max.bytes"),
        ({"max_connections": None}, "max.connections"),
        ({"flush": "perhaps"}, "flush"),
    ],
)
def test_the_error_for_a_bad_argument_names_it(
    cluster: Cluster, named: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        cluster.serve(**named)


@pytest.mark.parametrize(
    ("host", "warns"), [("127.0.0.1", False), ("localhost", False), ("", True)]
)
def test_a_server_that_others_can_reach_warns_that_it_has_no_authentication(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, host: str, warns: bool
) -> None:
    with cluster.serve(host):
        assert ("anyone who reaches it may read, write and delete" in caplog.text) == warns


def test_closing_the_cluster_ends_its_server(tmp_path: Path) -> None:
    with builders.a_cluster(tmp_path) as cluster:
        server = cluster.serve()
    with pytest.raises(ConnectionRefusedError):
        RawClient(server)
    assert "closed" in repr(server)
    server.close()


def test_a_forked_child_leaves_connections_and_the_lock_to_its_parent(
    cluster: Cluster, server: Server
) -> None:
    with RawClient(server) as client:
        client.ask(ApiKey.METADATA, 9, METADATA)
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                server.close()
                cluster.close()
                os._exit(0)
            os._exit(1)
        _, status = os.waitpid(child, 0)

        assert status == 0
        assert client.ask(ApiKey.METADATA, 9, METADATA).controller_id == 1
        assert running_server(store_of(cluster).metadata) is not None


def test_a_forked_child_that_outlives_its_parent_keeps_nothing_open(cluster: Cluster) -> None:
    server = cluster.serve()
    client = RawClient(server)
    client.ask(ApiKey.METADATA, 9, METADATA)
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    try:
        server.close()
        assert client.is_closed_by_server()
        with pytest.raises(ConnectionRefusedError):
            RawClient(server)
        with cluster.serve():
            pass
    finally:
        client.socket.close()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


# Intercepting.


def test_a_test_sees_and_refuses_requests(server: Server) -> None:
    seen: list[InterceptedRequest] = []
    numbers = itertools.count()

    def fail_twice(request: InterceptedRequest) -> None:
        seen.append(request)
        if next(numbers) < 2:
            request.fail("NOT_LEADER_OR_FOLLOWER")

    server.intercept("Produce", fail_twice)
    with RawClient(server) as client:
        found = [produced(client.ask(ApiKey.PRODUCE, 9, produce(BATCH))) for _ in range(3)]
        server.intercept("Produce", None)
        client.ask(ApiKey.PRODUCE, 9, produce(BATCH))

    wrong = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [one.error_code for one in found] == [wrong, wrong, 0]
    assert found[-1].base_offset == 0
    assert [(one.api, one.version, one.client_id) for one in seen] == [("Produce", 9, "a test")] * 3


def test_a_test_delays_and_drops_requests(server: Server) -> None:
    with RawClient(server) as delayed, RawClient(server) as other:
        server.intercept("metadata", lambda request: request.delay(2))
        started = time.monotonic()
        delayed.send(request(ApiKey.METADATA, 9, METADATA))
        assert fetched(other.ask(ApiKey.FETCH, 12, fetch(0))).error_code == 0
        assert time.monotonic() - started < 2
        delayed.receive(ApiKey.METADATA, 9)
        assert time.monotonic() - started >= 2

        server.intercept("METADATA", lambda request: request.drop())
        other.send(request(ApiKey.METADATA, 9, METADATA))
        assert other.is_closed_by_server()


def test_a_request_is_answered_as_usual_if_its_intercepting_function_fails(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.intercept("FindCoordinator", lambda request: request.fail("NO_SUCH_ERROR"))
    server.intercept("Metadata", lambda request: 1 // 0)
    with RawClient(server) as client:
        assert client.ask(ApiKey.METADATA, 9, METADATA).controller_id == 1
    assert "Metadata" in caplog.text


def test_an_unknown_kind_of_request_is_refused(server: Server) -> None:
    with pytest.raises(ConfigError, match="'Prodce'; kinds: Produce, Fetch"):
        server.intercept("Prodce", None)


# Failures.


def test_a_request_whose_handler_fails_is_answered_with_an_error(
    cluster: Cluster, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> int:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(store_of(cluster).manager, "fetch_messages", lambda *_, **__: fail())
    with RawClient(server) as client:
        found = client.ask(ApiKey.FETCH, 12, fetch(0, max_wait_ms=1000))
        assert found.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert not server._fetches._waiting
        monkeypatch.undo()
        assert fetched(client.ask(ApiKey.FETCH, 12, fetch(0))).error_code == 0


def test_sessions_of_groups_end_in_time_even_after_a_fault(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    faults, ticks, tick = iter([True]), [0], GroupCoordinator.tick

    def fail_once(coordinator: GroupCoordinator) -> None:
        if next(faults, False):
            raise RuntimeError("a fault of ours")
        ticks[0] += 1
        tick(coordinator)

    monkeypatch.setattr(GroupCoordinator, "tick", fail_once)
    with cluster.serve():
        until(lambda: ticks[0] > 1, "the work goes on")
    assert "a fault of ours" in caplog.text


def test_groups_that_cannot_be_taken_over_are_loaded_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults, load = iter([True]), Memberships.load

    def fail_once(memberships: Memberships, *stored: Any) -> None:
        if next(faults, False):
            raise RuntimeError("a fault of ours")
        load(memberships, *stored)

    monkeypatch.setattr(Memberships, "load", fail_once)
    with cluster.serve() as server, RawClient(server) as client:
        asked = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        refused = client.ask(ApiKey.HEARTBEAT, 4, asked).error_code
        until(lambda: client.ask(ApiKey.HEARTBEAT, 4, asked).error_code != refused)

    assert refused == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_failed_append_is_answered_and_later_ones_go_on(
    cluster: Cluster, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(store_of(cluster).manager, "append_records", fail)
    with RawClient(server) as client:
        found = produced(client.ask(ApiKey.PRODUCE, 9, produce(BATCH)))
        assert found.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        monkeypatch.undo()
        assert produced(client.ask(ApiKey.PRODUCE, 9, produce(BATCH))).error_code == 0


# Housekeeping.


def test_old_segments_of_a_topic_without_appends_are_deleted(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"segment.bytes": 1 << 20, "file.delete.delay.ms": 0}
    cluster.create_topic("old", config=config)
    large = builders.batch(n=1, value_bytes=900_000)
    builders.write(cluster, {("old", 0): [large] * 5})
    cluster.alter_topic("old", {"retention.ms": 1})
    cluster.create_topic("kept", config=config)
    builders.write(cluster, {("kept", 0): [large] * 5})

    Housekeeping(store_of(cluster), interval_ms=1000).run_once()

    (old,), (kept,) = cluster.describe("old"), cluster.describe("kept")
    assert old.offsets.log_start_offset > 0
    assert kept.offsets.log_start_offset == 0
    assert caplog.text == ""


def test_lagging_replicas_are_brought_up_to_date(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    with Cluster(tmp_path / "cluster", create=True, log_dirs=folders) as cluster:
        cluster.create_topic("events", replication_factor=2)
        builders.write(cluster, {("events", 0): [BATCH]})
        away = folders[1].rename(tmp_path / "away")
        builders.append_records(cluster, {("events", 0): BATCH})
        away.rename(folders[1])
        before = [one.in_sync for one in next(iter(cluster.replicas("events").values()))]

        Housekeeping(store_of(cluster), interval_ms=1000).run_once()

        after = [one.in_sync for one in next(iter(cluster.replicas("events").values()))]
    assert (before, after) == ([True, False], [True, True])


def test_groups_that_begin_while_a_disk_is_away_have_a_place_for_their_offsets(
    tmp_path: Path,
) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    with Cluster(tmp_path / "cluster", create=True, log_dirs=folders) as cluster:
        cluster.create_topic("events", replication_factor=2)
        Housekeeping(store_of(cluster), interval_ms=1000).run_once()
        folders[1].rename(tmp_path / "away")

        store(cluster, "a-group", {("events", 0): 1})

        assert [one.group_id for one in cluster.groups()] == ["a-group"]


def test_housekeeping_is_repeated(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[float] = []
    monkeypatch.setattr(Housekeeping, "run_once", lambda _: times.append(time.monotonic()))
    with cluster.serve(log_retention_check_interval_ms=10):
        deadline = time.monotonic() + 5
        while len(times) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    count = len(times)
    time.sleep(0.05)

    assert count >= 3
    assert len(times) == count
