"""With any file of a cluster damaged, reads return what was written, or an error says why not."""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_kbatch import Cluster
from spark_kbatch.catalog.partition_states import PartitionState
from spark_kbatch.errors import KBatchError
from spark_kbatch.log import state as log_state
from spark_kbatch.model import TopicPartition
from tests.support import builders
from tests.support.fuzz_rounds import for_each_round, mutated
from tests.support.store import store_of


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait before a slot is read again: no one writes to it meanwhile."""
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
    # A commit is visible in both partitions or in none.
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
        if path.name == "kbatch.state":  # only the slot before may be valid
            for place, records in whole.items():
                assert found[place] == records[: len(found[place])]
        else:
            assert found in ({}, whole)  # a topic with a changed name is another topic

    for_each_round(f"clusters-{kind}", one)
    assert builders.contents(Cluster(str(cluster.path))) == whole


# Values of right and wrong types, too small, too large, and too many.
EVIL = (
    None, True, -1, 0, 1, 7, 1.5, 1e400, 10**6, 2**31, 2**63, 10**30, "", "x", "0", "\0", "/", "../..",
    "broker-0", "\ud800", [], [[]], [0], [-1], [[0, 0]], [["x"]], {}, {"": {}}, {"0": 0}, {"x": [0, 0]},
)  # fmt: skip


@pytest.mark.parametrize("disks", [0, 2], ids=["in its folder", "on two disks"])
def test_an_evil_value_in_json_ends_in_an_error_of_the_package(tmp_path: Path, disks: int) -> None:
    home = tmp_path / "home"
    folders = [home / f"disk-{number}" for number in range(disks)]
    for folder in folders:
        folder.mkdir(parents=True)
    cluster = Cluster(str(home / "cluster"), create=True, log_dirs=folders)
    cluster.create_topic("others")
    cluster.create_topic("events", partitions=2, replication_factor=max(disks, 1))
    builders.write(cluster, {("events", p): [builders.batch(seed=p)] for p in range(2)})
    state = PartitionState(0, (0,), 0, 0, {0: log_state.empty_state()})
    others = cluster.topic("others").topic_id
    store_of(cluster).metadata.partition_states.write(TopicPartition("others", 0), state, others)
    sound = {
        path: path.read_bytes()
        for path in files_of(cluster.path)
        if path.suffix == ".json" and "by-" not in str(path)
    }
    assert {path.parent.name for path in sound} >= {"cluster", "topics", "others"}
    texts = {path: data for path, data in sound.items() if data.startswith(b"{")}
    shutil.copytree(home, tmp_path / "kept")
    count = 0

    def one(rng: random.Random) -> None:
        nonlocal count
        count += 1
        if count % 50 == 0:  # else each round reads what all before it have appended
            shutil.rmtree(home)
            shutil.copytree(tmp_path / "kept", home)
        path = rng.choice([*texts])
        value = json.loads(texts[path])
        holder, key = rng.choice([*_places(value)])
        holder[key] = copy.deepcopy(rng.choice(EVIL))
        if rng.random() < 0.1:
            del holder[key]
        path.write_text(json.dumps(value))
        try:
            for use in USES:
                try:
                    use(Cluster(str(cluster.path)))
                except KBatchError:
                    continue
        finally:
            for each, data in sound.items():
                each.write_bytes(data)

    for_each_round(f"clusters-evil-{disks}", one)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in `value` with its keys."""
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


USES: tuple[Callable[[Cluster], object], ...] = (
    builders.contents,
    lambda cluster: cluster.replicas(["events", "others"]),
    lambda cluster: cluster.log_dirs(),
    lambda cluster: store_of(cluster).new_producer_id(),
    lambda cluster: builders.append_records(cluster, {("events", 0): builders.batch(n=1)}),
    lambda cluster: list(cluster.history()),
)


def _kind(path: Path) -> str:
    if path.suffix == ".json":
        return "json"
    return "transaction log" if "__transaction_state-0" in path.parts else "other"
