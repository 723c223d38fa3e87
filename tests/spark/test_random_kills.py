"""Kills (kill -9) at random moments lose nothing, duplicate nothing and mix nothing up.

In each round several writers fill one topic of three partitions while drivers, workers and the
producer are killed and started again, and tasks fail:

    batch writes with a name and version (`txnAppId`), repeated until they are acknowledged
    batch writes without them: each run is in the topic as a whole or not at all
    a stream of micro-batches
    in the second test a producer in plain Python, beside the stream

`tests.support.draws` says how to run more rounds, and how to repeat one.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import spark_kbatch
from tests.conftest import SPARK
from tests.support import draws
from tests.support.kill_rounds import (
    Drivers,
    Round,
    all_held,
    check_in_order,
    each_round,
    is_producers,
    some_work,
)
from tests.support.killed_jobs import SOURCE, TOPIC, Work

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    with Drivers(tmp_path_factory.mktemp("drivers")) as drivers:
        yield drivers


@each_round
def test_writes_survive_random_kills(tmp_path: Path, drivers: Drivers, number: int) -> None:
    rng = random.Random(f"kills-{number}")
    work = some_work(rng, f"kills-{number}", batches=2, micro_batches=3)
    Round(tmp_path, rng, drivers, work).run(kills=1 + number % 4)
    check_all(tmp_path, work)


@each_round
def test_a_stream_and_a_producer_survive_random_kills(
    tmp_path: Path, drivers: Drivers, number: int
) -> None:
    rng = random.Random(f"concurrent-{number}")
    work = some_work(rng, f"concurrent-{number}", micro_batches=5)
    Round(tmp_path, rng, drivers, work).run(kills=1 + number % 4, with_producer=True)
    check_all(tmp_path, work)
    held = all_held(tmp_path / "cluster", TOPIC)
    for partition, last in enumerate(json.loads((tmp_path / "producer.done").read_text())):
        sent = [f"producer-{partition}-{number}" for number in range(last + 1)]
        assert [value for value in held[partition] if is_producers(value)] == sent


@pytest.mark.parametrize(("micro_batches", "kills"), [(4, 1), (120, draws.many(4))])
@draws.naming_first()
def test_a_stream_between_topics_copies_each_record_once(
    tmp_path: Path, drivers: Drivers, micro_batches: int, kills: int
) -> None:
    seed = f"copies-{draws.FIRST}"
    rng = random.Random(seed)
    work = some_work(rng, seed, copies=micro_batches, rows=30)
    commits = max(1, micro_batches // kills)
    Round(tmp_path, rng, drivers, work).run(kills=kills, commits=commits)
    path = tmp_path / "cluster"
    assert all_held(path, TOPIC) == all_held(path, SOURCE)
    assert sum(map(len, all_held(path, TOPIC))) == micro_batches * work.rows
    # Spark keeps the last hundred commits. Before 4.2 it has no limits here: everything is in one batch.
    batch_ids = [int(one.name) for one in (tmp_path / "checkpoint" / "commits").glob("[0-9]*")]
    assert max(batch_ids) + 1 >= (1 if SPARK < (4, 2) else micro_batches)


def check_all(folder: Path, work: Work) -> None:
    """Check what a round has left, and that nothing is found to collect or to repair."""
    path = folder / "cluster"
    check_in_order(path, work, folder)
    with spark_kbatch.open(str(path)) as cluster:
        before = all_held(path, TOPIC)
        cluster.collect_garbage(staging_retention_ms=0)
        assert list((path / "staging-0").iterdir()) == []
        for report in cluster.repair():
            assert report.damaged == ()
            assert report.found == ()
        assert all_held(path, TOPIC) == before
