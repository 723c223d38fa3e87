"""Producer ids: no two producers of a cluster have the same."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.cluster.parts import PRODUCER_IDS_BLOCK_SIZE as BLOCK_SIZE
from spark_kbatch.errors import KafkaStorageError
from tests.support import builders
from tests.support.faults import Fault, FaultyFiles, died, run_child
from tests.support.store import store_of


def next_in_file(cluster: Cluster) -> int:
    found = json.loads((cluster.path / "cluster.json").read_text())["next_producer_id"]
    assert isinstance(found, int)
    return found


def test_ids_of_processes_and_threads_differ(tmp_path: Path) -> None:
    """Each uses up a block; the cluster was opened before the processes started."""
    cluster = builders.a_cluster(tmp_path)
    assert store_of(cluster).new_producer_id() == 0

    def work(process: int) -> None:
        found: list[int] = []

        def take() -> None:
            found.extend(store_of(cluster).new_producer_id() for _ in range(600))

        threads = [threading.Thread(target=take) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (tmp_path / f"ids-{process}").write_text(json.dumps(found))

    children = [run_child(lambda n=n: work(n)) for n in range(4)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    found = [json.loads((tmp_path / f"ids-{process}").read_text()) for process in range(4)]
    ids = [producer_id for one in found for producer_id in one]
    assert len(ids) == 4 * 1200
    assert len({*ids, store_of(cluster).new_producer_id()}) == 4 * 1200 + 1
    assert next_in_file(cluster) == 9 * BLOCK_SIZE


def test_a_block_is_taken_once(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    assert [store_of(cluster).new_producer_id() for _ in range(BLOCK_SIZE)] == list(
        range(BLOCK_SIZE)
    )
    assert next_in_file(cluster) == BLOCK_SIZE
    assert store_of(cluster).new_producer_id() == BLOCK_SIZE
    assert next_in_file(cluster) == 2 * BLOCK_SIZE


def test_taking_ids_leaves_the_rest_of_the_file_alone(tmp_path: Path) -> None:
    """Until then there is no such entry."""
    cluster = builders.a_cluster(tmp_path)
    before = json.loads((cluster.path / "cluster.json").read_text())
    store_of(cluster).new_producer_id()
    after = json.loads((cluster.path / "cluster.json").read_text())
    assert after == before | {"next_producer_id": BLOCK_SIZE}
    assert store_of(Cluster(str(cluster.path))).new_producer_id() == BLOCK_SIZE


def test_a_process_killed_while_it_takes_a_block_spoils_nothing(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    dry_run = FaultyFiles()
    last = store_of(Cluster(str(cluster.path), files=dry_run)).new_producer_id()
    for at in range(len(dry_run.steps)):
        for torn in (False, True):
            dying = Cluster(str(cluster.path), files=FaultyFiles(Fault(at, torn=torn)))
            assert died(store_of(dying).new_producer_id)
            following = store_of(Cluster(str(cluster.path))).new_producer_id()
            assert following in (last + BLOCK_SIZE, last + 2 * BLOCK_SIZE)
            last = following


def test_without_a_place_to_write_there_is_no_id(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    full = Cluster(str(cluster.path), files=FaultyFiles(Fault(1, errno.ENOSPC, lasting=True)))
    with pytest.raises(KafkaStorageError, match=r"no producer id can be had: .*No space left"):
        store_of(full).new_producer_id()
    assert store_of(cluster).new_producer_id() == 0
