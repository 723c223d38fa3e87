"""docs/format.md says of our files what the code does."""

from __future__ import annotations

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import spark_kbatch
from spark_kbatch.cluster.transactions.log import TransactionLog
from spark_kbatch.ledger import names
from spark_kbatch.ledger.extents import DataExtent, IndexRange, PartitionAppend, pack_index
from spark_kbatch.log.producers import saved
from spark_kbatch.log.producers.state import BatchMetadata, ProducerEntry
from spark_kbatch.log.state import SLOT_SIZE, LogState
from spark_kbatch.store.commits import Author, Commit
from tests.conftest import REPOSITORY
from tests.support.bucket_contents import EVERY_KIND, JOB_ID, TOPIC_ID, append_of
from tests.support.bucket_ledgers import a_ledger, a_place, cluster_of, grow
from tests.support.store import store_of

PAGE = (REPOSITORY / "docs" / "format.md").read_text(encoding="utf-8")


def rows(section: str) -> list[list[str]]:
    """The rows of the tables of a section, without their heads."""
    (body,) = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    cells = [line.strip("|").split("|") for line in body.splitlines() if line.startswith("|")]
    found = [[cell.strip() for cell in row] for row in cells]
    heads = {number for number, row in enumerate(found) if set(row[0]) == {"-"}}
    return [row for n, row in enumerate(found) if n not in heads and n + 1 not in heads]


def keys(section: str) -> set[str]:
    return {key for row in rows(section) for key in re.findall(r"`(\w+)`", row[0])}


def fields(section: str) -> list[tuple[int, int, str]]:
    return [(int(row[0]), int(row[1]), row[2]) for row in rows(section)]


def test_state_has_these_fields_back_to_back() -> None:
    found = fields("kbatch.state")

    assert [name for _, _, name in found] == ["magic", "version", *LogState._fields, "crc"]
    assert all(at + size == after for (at, size, _), (after, _, _) in pairwise(found))
    assert sum(size for _, size, _ in found) == SLOT_SIZE


def test_producers_have_these_fields_back_to_back() -> None:
    found = fields("kbatch.producers")
    second = next(n for n, (at, _, _) in enumerate(found) if at == 0 and n)
    head, entry = found[:second], found[second:]
    for part in (head, entry):
        assert all(at + size == after for (at, size, _), (after, _, _) in pairwise(part))

    assert [name for _, _, name in head[4:9]] == list(saved.SavedProducers._fields[:5])
    assert {name for _, _, name in entry} - {"producer_id", "batches_count"} == (
        {*ProducerEntry._fields, *BatchMetadata._fields} - {"batches"}
    )
    one = ProducerEntry(0, (BatchMetadata(0, 0, 0, 0, 0),), -1, 0, None, 0)
    packed = saved.pack(saved.SavedProducers(1, 0, 61, 0, b"h" * 61, {7: one}))
    assert len(packed) == sum(size for _, size, _ in found)


@pytest.fixture
def cluster_path(tmp_path: Path) -> Path:
    """A cluster that has a file of each kind: clients had transactions, a disk is lost, and a topic deleted."""
    path = tmp_path / "cluster"
    disks = [tmp_path / "disk-0", tmp_path / "disk-1"]
    with spark_kbatch.open(path, create=True, log_dirs=disks) as cluster:
        cluster.create_topic("events", replication_factor=2, config={"retention.ms": -1})
        cluster.create_topic("old")
        TransactionLog(store_of(cluster), flush=True).start_epoch()
        shutil.rmtree(disks[0])
        with cluster.producer() as producer:
            producer.send("events", value="v").result()
        cluster.delete_topic("old")
    return path


@pytest.mark.parametrize(
    ("section", "glob"),
    [
        pytest.param("cluster.json", "cluster.json", id="cluster"),
        pytest.param("topics/TOPIC.json", "topics/events.json", id="topic"),
        pytest.param("partitions/TOPIC/P.json", "partitions/events/0.json", id="partition"),
        pytest.param("deleted/ID.json", "deleted/*.json", id="deleted"),
    ],
)
def test_json_files_have_these_keys(section: str, glob: str, cluster_path: Path) -> None:
    (path,) = cluster_path.glob(glob)
    assert keys(section) == json.loads(path.read_text()).keys()


def test_commits_have_these_keys() -> None:
    commit = Commit(0, 0, False, "id", -1, Author(), 0, 0, {}, {})

    assert keys("__commits") - {"version"} == commit.as_json().keys() - {"commit"}


# Buckets.


@pytest.fixture(scope="module")
def bucket() -> dict[str, dict[str, Any]]:
    """The JSON of the first line of each sealed object of a bucket, by name in its folder."""
    place = a_place()
    ledger = a_ledger(place, every=2)
    grow(ledger, 4)
    ledger._maybe_put_hint(is_due=True)
    name = names.index_name(7, JOB_ID, "ef" * 16)
    cluster_of(place).put(name, pack_index(name, {TOPIC_ID: [append_of(0, 0)]})[0])
    return {
        one.name.partition("/")[2] or one.name: json.loads(
            (place.get(one.name) or b"").partition(b"\n")[0]
        )
        for one in place.list("")
    }


@pytest.mark.parametrize(
    ("section", "name"),
    [
        pytest.param("The object cluster", "cluster", id="cluster"),
        pytest.param("An entry", names.entry_name(0), id="entry"),
        pytest.param("The root of a checkpoint", names.CHECKPOINTS, id="root"),
        pytest.param("The heads of a checkpoint", "/heads", id="heads"),
        pytest.param("The extents of a topic in a checkpoint", "/extents-", id="extents"),
        pytest.param("hint", "hint", id="hint"),
    ],
)
def test_objects_of_a_bucket_have_these_keys(
    section: str, name: str, bucket: dict[str, dict[str, Any]]
) -> None:
    objects = [values for one, values in bucket.items() if name in one]

    assert objects
    assert all(keys(section) == values.keys() for values in objects)


def test_each_kind_of_entry_is_there_with_its_keys() -> None:
    page = {
        row[0].strip("`"): {*re.findall(r"`(\w+)`", row[1])} for row in rows("Kinds of entries")
    }

    assert page == {content.kind: {*content.values()} for content in EVERY_KIND}


def test_names_appends_and_extents_are_as_the_page_says(bucket: dict[str, Any]) -> None:
    told = dict(row[:2] for row in rows("Appends and extents"))
    counts = [text.partition("`, ")[0].partition("]")[0].count(",") + 1 for text in told.values()]
    assert counts == [
        len(PartitionAppend._fields),
        len(DataExtent._fields),
        len(IndexRange._fields),
    ]
    folders = {cell.strip("`").partition("/")[0] for cell, *_ in rows("A bucket")}
    assert folders == {
        one.strip("/")
        for one in (
            names.CLUSTER, names.LEDGER, names.CHECKPOINTS, names.PARTS, names.DATA, names.SEGMENTS,
            names.AGREEMENTS, names.HINT,
        )
    }  # fmt: skip
    indexes = [values for name, values in bucket.items() if "/index-" in name]
    assert [{*one} for one in indexes] == [{"extents", "objects"}]
