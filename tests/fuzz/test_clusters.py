"""Any file of a cluster is damaged: its topics read as they were written, or an error says why not."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kbatch.cluster import Cluster
from spark_kbatch.errors import KBatchError
from spark_kbatch.log import state as log_state
from spark_kbatch.model import TopicPartition
from tests import builders
from tests.fuzz.rounds import for_each_round, mutated


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody writes meanwhile, so that reading a slot again finds the same."""
    monkeypatch.setattr(log_state, "_PAUSE_S", 0.0)


def files_of(path: Path) -> Iterator[Path]:
    yield from (found for found in sorted(path.rglob("*")) if found.is_file())


@pytest.mark.parametrize("kind", ["json", "transaction log", "other"])
def test_a_damaged_file_of_a_cluster_never_changes_what_is_read(tmp_path: Path, kind: str) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"events": 2})
    places = [("events", 0), ("events", 1)]
    first, second = ({place: [builders.batch(seed=seed)] for place in places} for seed in (1, 2))
    builders.write(cluster, first)
    builders.write(cluster, second)
    # A commit in one partition is a commit in both: nobody sees the second without the first.
    whole = {
        TopicPartition(*place): builders.records_of([*first[place], *second[place]])
        for place in places
    }
    kinds = {path: _kind(path.relative_to(cluster.path)) for path in files_of(cluster.path)}
    paths = [path for path, found in kinds.items() if found == kind]
    assert paths

    def one(rng: random.Random) -> None:
        path = rng.choice(paths)
        sound = path.read_bytes()
        path.write_bytes(mutated(rng, sound))
        try:
            found = builders.contents(Cluster(str(cluster.path)))
        except KBatchError:
            return
        finally:
            path.write_bytes(sound)
        if path.name == "kbatch.state":  # the slot before it may be the only one that is valid
            for place, records in whole.items():
                assert found[place] == records[: len(found[place])]
        else:
            assert found in ({}, whole)  # a topic whose name changed is another one

    for_each_round(f"clusters-{kind}", one)
    assert builders.contents(Cluster(str(cluster.path))) == whole


def _kind(path: Path) -> str:
    if path.suffix == ".json":
        return "json"
    return "transaction log" if "__transaction_state-0" in path.parts else "other"
