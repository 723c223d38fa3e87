"""Kills (kill -9) of drivers and workers that write to a bucket lose nothing, duplicate nothing and mix nothing up.

As in `test_random_kills`, but the cluster is behind moto, and before that is a proxy that does to requests what
networks and stores do to them. Most kills happen in the middle of a request, which may be done before it, after it,
or seconds later beside the next driver.
A round of `tests.support.kill_rounds` is two kills under writes.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kbatch.bucket.history import AuditLog
from spark_kbatch.ledger.entries import LedgerCommit
from tests.support import draws
from tests.support.kill_rounds import (
    Drivers,
    Round,
    all_held,
    check_copies,
    check_in_order,
    each_round,
    some_work,
)
from tests.support.killed_jobs import SOURCE, TOPIC, Work
from tests.support.kills import Victims
from tests.support.object_servers import ObjectServer, moto
from tests.support.store_proxy import ALL_FAULTS, StoreProxy

pytestmark = [pytest.mark.spark, pytest.mark.slow]

KILLS = 2  # of a round
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with moto(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture(scope="module")
def open_proxy(server: ObjectServer) -> Iterator[StoreProxy]:
    """The proxy, of which all processes know from their environment."""
    with (
        StoreProxy(server.address, seed=draws.FIRST) as proxy,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in server.environment(proxy.address).items():
            patch.setenv(name, value)
        yield proxy


@pytest.fixture
def proxy(open_proxy: StoreProxy) -> Iterator[StoreProxy]:
    yield open_proxy
    open_proxy.faults, open_proxy.held = {}, None


@pytest.fixture(scope="module")
def drivers(open_proxy: StoreProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    with Drivers(tmp_path_factory.mktemp("drivers")) as drivers:
        yield drivers


def in_bucket(server: ObjectServer, work: Work) -> Work:
    """Return the same work in a new place."""
    return dataclasses.replace(work, url=f"{server.url}-{next(_numbers)}")


def micro_batches_of(url: str) -> Counter[tuple[str, int]]:
    """Return how often the ledger has each query's micro-batch."""
    contents = [one.entry.content for one in AuditLog(url).newest_first()]
    found = [one.micro_batch for one in contents if isinstance(one, LedgerCommit)]
    return Counter((one.query_id, one.number) for one in found if one is not None)


@each_round
def test_writes_to_a_bucket_survive_random_kills(
    tmp_path: Path,
    server: ObjectServer,
    proxy: StoreProxy,
    drivers: Drivers,
    number: int,
) -> None:
    rng = random.Random(f"bucket-kills-{number}")
    work = in_bucket(server, some_work(rng, f"bucket-kills-{number}", batches=2, micro_batches=4))
    a_round = Round(tmp_path, rng, drivers, work, proxy)
    proxy.faults = ALL_FAULTS

    a_round.run(kills=KILLS, commits=3)

    proxy.faults = {}
    check_in_order(work.url, work, tmp_path)
    assert set(micro_batches_of(work.url).values()) == {1}


@draws.naming_first()
def test_a_micro_batch_whose_driver_died_before_it_knew_is_repeated_and_skipped(
    tmp_path: Path, server: ObjectServer, proxy: StoreProxy, drivers: Drivers
) -> None:
    rng = random.Random(f"skipped-{draws.FIRST}")
    work = in_bucket(server, some_work(rng, f"skipped-{draws.FIRST}", micro_batches=3, rows=90))
    a_round = Round(tmp_path, rng, drivers, work, proxy)

    a_round.run(kills=1, commits=2, victims=[Victims.ALL], request="create entry")

    check_in_order(work.url, work, tmp_path)
    assert [*micro_batches_of(work.url).values()] == [1] * work.micro_batches
    assert drivers.printed().count("skipping duplicate transaction") >= 1


@draws.naming_first()
def test_a_stream_between_topics_of_a_bucket_copies_each_record_once(
    tmp_path: Path, server: ObjectServer, proxy: StoreProxy, drivers: Drivers
) -> None:
    rng = random.Random(f"bucket-copies-{draws.FIRST}")
    work = in_bucket(server, some_work(rng, f"bucket-copies-{draws.FIRST}", copies=6, rows=30))
    a_round = Round(tmp_path, rng, drivers, work, proxy)
    proxy.faults = ALL_FAULTS

    a_round.run(kills=KILLS, commits=3)

    proxy.faults = {}
    check_copies(work.url)
    assert all_held(work.url, TOPIC) == all_held(work.url, SOURCE)
    assert set(micro_batches_of(work.url).values()) == {1}
