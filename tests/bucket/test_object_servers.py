"""Clusters in stores behind real servers, with a proxy between that does what networks and stores do.

`tests.support.draws` has how long sixteen processes commit at once, and how many maintenances are killed.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import spark_kbatch
from spark_kbatch.bucket import shared_ledger, trial
from spark_kbatch.bucket.objects import CreateAnswer, Objects
from spark_kbatch.bucket.probe import probe
from spark_kbatch.bucket.real_objects import UPLOAD_PART_BYTES, RealObjects
from spark_kbatch.bucket.trial import StoreTrial
from spark_kbatch.cli.main import cli
from spark_kbatch.errors import ConfigError, ObjectAccessDeniedError
from spark_kbatch.ledger.entries import STAGING_TIMEOUT_MS
from spark_kbatch.options.object_store import parse_store_options
from tests.bucket.test_objects import (
    test_a_copy_takes_the_place_of_what_was_there,
    test_a_list_shows_a_folder_in_the_order_of_names,
    test_an_abandoned_upload_is_not_seen,
    test_an_object_is_there_once_it_was_put,
    test_an_upload_is_seen_once_it_is_finished,
    test_deleted_objects_are_gone_and_deleting_them_again_is_no_error,
    test_of_two_creates_one_succeeds,
    test_several_objects_are_returned_in_the_order_asked_for,
)
from tests.conftest import REPOSITORY
from tests.support import draws
from tests.support.bucket_objects import opened_again, values
from tests.support.kafka import MissingToolError
from tests.support.object_servers import (
    AZURE_KEY,
    CLIENT,
    KEY,
    SECRET,
    ObjectServer,
    azurite,
    moto,
    s3mock,
    versitygw,
)
from tests.support.store_proxy import ALL_FAULTS, LATE_S_MAX, Held, StoreProxy

__all__ = [  # what every store gives, here with the fixture `objects` of this file
    "test_a_copy_takes_the_place_of_what_was_there",
    "test_a_list_shows_a_folder_in_the_order_of_names",
    "test_an_abandoned_upload_is_not_seen",
    "test_an_object_is_there_once_it_was_put",
    "test_an_upload_is_seen_once_it_is_finished",
    "test_deleted_objects_are_gone_and_deleting_them_again_is_no_error",
    "test_of_two_creates_one_succeeds",
    "test_several_objects_are_returned_in_the_order_asked_for",
]

SERVERS = {"moto": moto, "versitygw": versitygw, "azurite": azurite}
WRITERS_S = 120
SIXTEEN_WRITE_S = draws.at_least(30)  # in which each meets the others many times
REQUESTS = 70  # at which maintenance is killed: each is drawn once before one is drawn again
# How many are killed, and the seed of where, by which more than half are within the first 30 requests, before a run is
# over. `make soak` has the first server.
MAINTENANCES = {"moto": (40, 35), "versitygw": (20, 1), "azurite": (34, 1)}
_numbers = itertools.count()


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[] if name == "moto" else [pytest.mark.interop])
        for name in SERVERS
    ],
)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ObjectServer]:
    with contextlib.ExitStack() as running:
        try:
            start = SERVERS[request.param](tmp_path_factory.mktemp(request.param))
            yield running.enter_context(start)
        except MissingToolError as missing:
            pytest.fail(str(missing), pytrace=False)


@pytest.fixture(scope="module")
def open_proxy(server: ObjectServer) -> Iterator[StoreProxy]:
    with StoreProxy(server.address, seed=1) as proxy:
        yield proxy


@pytest.fixture
def proxy(open_proxy: StoreProxy) -> Iterator[StoreProxy]:
    yield open_proxy
    open_proxy.faults = {}
    open_proxy.seen.clear()


@pytest.fixture
def objects(server: ObjectServer, proxy: StoreProxy) -> Objects:
    return RealObjects(f"{server.url}-{next(_numbers)}", server.config(proxy.address), CLIENT)


@pytest.fixture(scope="module")
def url(server: ObjectServer, open_proxy: StoreProxy) -> Iterator[str]:
    """A cluster, which the probe let be created; what leads to it is in the environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment(open_proxy.address).items():
            patch.setenv(name, value)
        with spark_kbatch.open(server.url, create=True):
            yield server.url


def test_objects_are_put_and_read_whatever_happens_to_requests(
    objects: Objects, proxy: StoreProxy
) -> None:
    proxy.faults = ALL_FAULTS
    contents = {f"data/{number:02d}": b"%d" % number * 999 for number in range(30)}

    for name, content in contents.items():
        objects.put(name, content)

    assert objects.get_many([*contents]) == [*contents.values()]
    assert [one.name for one in objects.list("data/")] == [*contents]


def test_of_many_creates_of_one_name_one_stands_whatever_happens_to_requests(
    objects: Objects, proxy: StoreProxy
) -> None:
    """Those that are told so are the one that is there, also where later creates were lost before."""
    proxy.faults = {**ALL_FAULTS, "late": 0.3, "lost": 0.3}

    with ThreadPoolExecutor(8) as pool:
        for name in ("ledger/1", "ledger/2", "ledger/3"):
            answers = [*pool.map(lambda of, at=name: objects.create(at, b"%d" % of), range(16))]
            winners = [b"%d" % of for of, one in enumerate(answers) if one is CreateAnswer.CREATED]
            time.sleep(LATE_S_MAX)
            there = objects.get(name)
            assert winners in ([], [there])


def test_threads_that_produce_write_each_record_once_whatever_happens_to_requests(
    url: str, proxy: StoreProxy
) -> None:
    sent = [f"{thread}-{number}" for thread in range(3) for number in range(6)]

    def produce(thread: int) -> None:
        with spark_kbatch.open(url) as cluster, cluster.producer() as producer:
            for number in range(6):
                producer.send("produced", f"{thread}-{number}").result()

    with spark_kbatch.open(url) as cluster:
        cluster.create_topic("produced")
        proxy.faults = ALL_FAULTS
        with ThreadPoolExecutor(3) as pool:
            assert [*pool.map(produce, range(3))] == [None] * 3
        proxy.faults = {}
        found = [*values(cluster, "produced")]
    assert sorted(found) == sent
    for thread in "012":
        assert [one for one in found if one[0] == thread] == [f"{thread}-{at}" for at in range(6)]
    assert proxy.seen


def test_processes_that_commit_jobs_write_each_row_once_whatever_happens_to_requests(
    url: str, proxy: StoreProxy
) -> None:
    with spark_kbatch.open(url) as cluster:
        cluster.create_topic("events")
        proxy.faults = ALL_FAULTS
        program = [sys.executable, "-m", "tests.support.bucket_writer", url]
        writers = [subprocess.Popen([*program, name, "2"], cwd=REPOSITORY) for name in "abc"]
        assert [writer.wait(WRITERS_S) for writer in writers] == [0, 0, 0]
        proxy.faults = {}
        assert sorted(values(cluster)) == [f"{name}-{at}" for name in "abc" for at in range(2)]


def test_groups_keep_what_was_answered_last_whatever_happens_to_requests(
    url: str, proxy: StoreProxy
) -> None:
    def commit(group: str) -> None:
        with spark_kbatch.open(url) as cluster:
            for offset in range(6):
                cluster.alter_group_offsets(
                    group, {("grouped", 0): offset, ("grouped", 1): 6 - offset}
                )

    with spark_kbatch.open(url) as cluster:
        cluster.create_topic("grouped", 2)
        proxy.faults = ALL_FAULTS
        with ThreadPoolExecutor(3) as pool:
            assert [*pool.map(commit, "abc")] == [None] * 3
        proxy.faults = {}
        found = {
            one.group_id: [at.committed_offset for at in one.offsets.values()]
            for one in cluster.groups()
        }
    assert found == {group: [5, 1] for group in "abc"}
    assert proxy.seen


def test_a_long_object_is_put_in_parts_whatever_happens_to_requests(
    objects: Objects, proxy: StoreProxy
) -> None:
    proxy.faults = {**ALL_FAULTS, "lost": 0.2}
    piece = bytes(range(256)) * (1 << 12)
    upload = objects.upload("data/1")
    for _ in range(17):
        upload.write(piece)

    upload.finish()

    proxy.faults = {}
    assert objects.get("data/1") == piece * 17


def test_a_long_object_is_there_though_the_answer_to_its_last_request_is_lost(
    objects: Objects, proxy: StoreProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []

    def fault_of(asked: Any) -> str:
        ends = (
            asked.method == "POST" and "uploadId=" in asked.path
        ) or "comp=blocklist" in asked.path
        if not ends or lost:
            return ""
        lost.append(asked.path)
        return "lost"

    monkeypatch.setattr(proxy, "fault_of", fault_of)
    piece = bytes(UPLOAD_PART_BYTES + 1)
    upload = objects.upload("data/1")
    upload.write(piece)

    upload.finish()

    assert lost
    assert objects.get("data/1") == piece


@pytest.mark.parametrize(
    "ask",
    [
        lambda objects: objects.get("a"),
        lambda objects: objects.get_range("a", 0, 1),
        lambda objects: [*objects.list("a/")],
        lambda objects: objects.put("a", b""),
        lambda objects: objects.create("a", b""),
        lambda objects: objects.delete(["a"]),
        lambda objects: objects.delete(["a", "b"]),
        lambda objects: upload_two_parts(objects),
    ],
    ids=["get", "get_range", "list", "put", "create", "delete", "delete-two", "upload"],
)
def test_what_a_store_denies_is_told_as_that(
    objects: Objects, proxy: StoreProxy, ask: Callable[[Objects], object]
) -> None:
    proxy.faults = {"denied": 1.0}
    with pytest.raises(ObjectAccessDeniedError):
        ask(objects)


def upload_two_parts(objects: Objects) -> None:
    upload = objects.upload("a")
    upload.write(bytes(UPLOAD_PART_BYTES + 1))
    upload.finish()


def test_check_names_rights_as_the_store_does(
    server: ObjectServer, proxy: StoreProxy, tmp_path: Path
) -> None:
    settings = tmp_path / "store.properties"
    options = server.options(proxy.address)
    settings.write_text("".join(f"{key}={value}\n" for key, value in options.items()))
    command = ["check", f"{server.url}-checked", "--command-config", str(settings)]

    allowed = CliRunner().invoke(cli, command)
    proxy.faults = {"denied": 1.0}
    denied = CliRunner().invoke(cli, command)

    names = ["blobs/read", "blobs/write"] if server.is_azure else ["s3:ListBucket", "s3:PutObject"]
    assert allowed.exit_code == 0
    assert "The store passed.\nNo cluster is there." in allowed.stdout
    assert denied.exit_code == 1
    for name in names:
        assert f"{name}\tyes" in allowed.stdout
        assert f"{name}\tno" in denied.stdout
        assert f"{name} is missing: the object store refuses to " in denied.stderr
    assert not [secret for secret in (KEY, SECRET, AZURE_KEY) if secret in denied.stderr]


ATOMIC = ["versitygw", "azurite"]


def test_a_trial_of_a_server_loses_answers_and_cleans_up(
    server: ObjectServer,
    proxy: StoreProxy,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setattr(trial, "ROUND_S", 0.01)
    url = f"{server.url}-tried-{next(_numbers)}"
    options = parse_store_options(server.options(proxy.address), url, alone=True)
    found = StoreTrial(url, options)
    found.run(12)

    assert (found.rounds, found.errors, found.left) == (12, {}, "")
    assert found.unanswered > 0
    if (
        request.node.callspec.params["server"] in ATOMIC
    ):  # the other creates what exists now and then
        assert found.faults == {}
    assert [*RealObjects(url, server.config(), CLIENT).list("")] == []


@pytest.mark.interop
@pytest.mark.parametrize("server", ATOMIC, indirect=True)
def test_the_probe_passes_a_server_that_is_atomic_by_itself(server: ObjectServer) -> None:
    objects = RealObjects(f"{server.url}-probed", server.config(), CLIENT)
    assert probe(objects, random.Random(1)) == []


@pytest.mark.interop
def test_the_probe_refuses_a_server_that_is_not_atomic(tmp_path: Path) -> None:
    with s3mock(tmp_path) as server, pytest.raises(ConfigError) as raised:
        spark_kbatch.open(server.url, create=True, store=server.options())
    assert "were told that they did" in str(raised.value)


@pytest.mark.slow
def test_maintenance_may_be_killed_at_any_request(
    request: pytest.FixtureRequest,
    server: ObjectServer,
    proxy: StoreProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it asked for when it was killed is done beside the next one, or was done before."""
    default, seed = MAINTENANCES[request.node.callspec.params["server"]]
    maintenances, numbers = draws.many(default), list[int]()
    for name, value in server.environment(proxy.address).items():
        monkeypatch.setenv(name, value)
    # What is dropped need not wait for a week.
    monkeypatch.setattr(shared_ledger, "DEFAULT_LIMITS", {STAGING_TIMEOUT_MS: 10_000})
    url, rng = f"{server.url}-{next(_numbers)}", random.Random(seed)
    with spark_kbatch.open(url, create=True) as cluster:
        cluster.create_topic("events")
        sent, starts, kills = list[str](), 0, Counter[bool]()
        with cluster.producer(linger_ms=0, maintain_ms=0) as producer:
            for _ in range(maintenances):
                for _ in range(25):
                    sent.append(f"{len(sent)}")
                    producer.send("events", sent[-1]).result()
                starts += rng.randrange(25)
                cluster.delete_records({("events", 0): starts})
                numbers = numbers or rng.sample(range(1, REQUESTS + 1), REQUESTS)
                held = proxy.held = Held("", "", numbers.pop(), is_done=rng.random() < 0.5)
                program = [sys.executable, "-m", "spark_kbatch", "gc", url]
                process = subprocess.Popen(program, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
                while process.poll() is None and not held.reached.is_set():
                    time.sleep(0.005)
                process.kill()
                kills[process.wait() != 0] += 1
                proxy.held = None
                threading.Timer(rng.uniform(0, 1), held.let_go).start()
                assert [*values(cluster)] == sent[starts:]
        time.sleep(1)
        assert subprocess.run([sys.executable, "-m", "spark_kbatch", "gc", url]).returncode == 0
        assert [*values(opened_again(cluster))] == sent[starts:]
        assert subprocess.run([sys.executable, "-m", "spark_kbatch", "verify", url]).returncode == 0
    assert kills[True] > maintenances // 3, "many runs were killed before their end"


@pytest.mark.interop
@pytest.mark.parametrize("server", ATOMIC, indirect=True)
def test_sixteen_processes_commit_at_once_all_of_them_and_nothing_twice(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    url = f"{server.url}-of-many"
    with spark_kbatch.open(url, create=True) as cluster:
        cluster.create_topic("events")
        program = [sys.executable, "-m", "tests.support.bucket_writer", url]
        writers = [
            subprocess.Popen(
                [*program, name, f"{SIXTEEN_WRITE_S}s"], cwd=REPOSITORY, stdout=subprocess.PIPE
            )
            for name in "abcdefghijklmnop"
        ]
        committed = {}
        for name, writer in zip("abcdefghijklmnop", writers, strict=True):
            told, _ = writer.communicate(timeout=600)
            assert writer.returncode == 0
            committed[name] = int(told)
        sent = [f"{name}-{at}" for name, count in committed.items() for at in range(count)]
        assert min(committed.values()) > 0
        assert sorted(values(cluster)) == sorted(sent)
