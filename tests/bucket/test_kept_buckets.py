"""A bucket that an earlier version wrote can be read.

`data/buckets/1.json` was written when the format was made: it has every kind of entry. `tests.support.kept_bucket`
says what else is in it, and how it was made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from spark_kbatch.bucket import names
from spark_kbatch.bucket.checkpoints import unpack_heads
from spark_kbatch.bucket.entries import KINDS, Entry, LaterContent, decode, encode
from spark_kbatch.bucket.ledger import Ledger
from spark_kbatch.bucket.objects import MemoryObjects
from spark_kbatch.bucket.place import read_cluster
from spark_kbatch.bucket.sealed import seal, unseal
from spark_kbatch.bucket.state import QueryHead, RememberedBatch
from spark_kbatch.errors import UnsupportedLedgerError
from tests.support.bucket_contents import TOPIC_ID
from tests.support.bucket_ledgers import SetTime
from tests.support.kept_bucket import BURIED, Maker, records_of, restored, stored

KEPT = sorted((Path(__file__).parents[1] / "data/buckets").glob("*.json"))


class Kept:
    """A bucket that is kept, in memory."""

    def __init__(self, path: Path) -> None:
        values: dict[str, Any] = json.loads(path.read_text())
        self.objects: MemoryObjects = restored(values["objects"])
        self.records: dict[str, dict[str, str]] = values["records"]
        cluster = read_cluster(self.objects)
        assert cluster is not None
        self.cluster_id = cluster.cluster_id

    def ledger(self) -> Ledger:
        return Ledger(self.objects, self.cluster_id, SetTime().timing())

    def found(self, folder: str) -> Iterator[tuple[str, bytes]]:
        """Yield the names, within the cluster, and contents of a folder."""
        for one in self.objects.list(f"{self.cluster_id}/{folder}"):
            data = self.objects.get(one.name)
            assert data is not None
            yield one.name.removeprefix(f"{self.cluster_id}/"), data

    def entries(self) -> Iterator[Entry]:
        for name, data in self.found(names.LEDGER):
            yield decode(data, name)


@pytest.fixture(params=KEPT, ids=lambda path: path.stem)
def kept(request: pytest.FixtureRequest) -> Kept:
    return Kept(request.param)


def test_it_has_every_kind_of_entry_and_one_that_only_a_later_version_knows(kept: Kept) -> None:
    assert {entry.content.kind for entry in kept.entries()} == {*KINDS, "later"}
    assert [one.number for one in kept.entries() if isinstance(one.content, LaterContent)] == [14]


def test_its_entries_are_encoded_as_the_same_bytes(kept: Kept) -> None:
    for name, data in kept.found(names.LEDGER):
        assert encode(decode(data, name)) == data


def test_all_that_is_of_one_line_of_json_holds_its_sum(kept: Kept) -> None:
    for folder in (names.LEDGER, names.CHECKPOINTS):
        for name, data in kept.found(folder):
            assert seal(unseal(data, name).values) == data


def test_its_records_are_read_from_a_checkpoint_and_the_entries_after_it(kept: Kept) -> None:
    ledger = kept.ledger()

    assert ledger.state.checkpoint == 12
    assert records_of(ledger) == kept.records
    assert kept.records["events-0"] == {"1": "b", "2": "c", "3": "f", "4": "g"}


def test_its_state_is_that_of_its_entries(kept: Kept) -> None:
    state = kept.ledger().state

    assert (state.number, state.format, state.horizon) == (16, 2, 6)
    assert [*state.topic_ids] == ["events"]
    assert state.topic("events").config == {"compression.type": "zstd", "max.message.bytes": "1000"}
    edges = [(one.start_offset, one.next_offset) for one in state.topics[TOPIC_ID].partitions]
    assert edges == [(1, 5), (22, 23), (100, 101)]
    assert state.queries == {"a-query": QueryHead(0, 7, state.queries["a-query"].time_ms)}
    assert state.producers[9, TOPIC_ID, 0].batches == (RememberedBatch(0, 2, 0),)
    assert state.fences == {"server": 1}
    assert state.mirrors == {"nightly": '{"topics":{}}'}
    assert state.groups["billing"][TOPIC_ID, 1].offset == 20
    assert len(state.limits) == 3


def test_its_tombstones_have_numbers_and_ids(kept: Kept) -> None:
    entries = [*kept.entries()]

    assert [one.number for one in entries if one.content.kind == "tombstone"] == [*BURIED]
    for before, entry in pairwise(entries):
        assert (entry.number, entry.before) == (before.number + 1, before.entry_id)


def test_it_may_not_be_written_as_a_later_version_may_write_there(kept: Kept) -> None:
    with pytest.raises(UnsupportedLedgerError, match="writers need format 2"):
        kept.ledger().commit(lambda _: None)


def test_its_heads_are_stored_as_today(kept: Kept) -> None:
    heads = [data for name, data in kept.found(names.PARTS) if name.endswith("/heads")]

    states = [unpack_heads(unseal(data, "heads")) for data in heads if data != b"never finished"]
    assert len(states) == 2


def test_todays_code_writes_the_same_bucket() -> None:
    maker = Maker()
    maker.make()

    assert stored(maker.place) == json.loads(KEPT[-1].read_text())["objects"]
