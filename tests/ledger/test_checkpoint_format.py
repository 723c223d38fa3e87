"""The formats of a checkpoint's objects: what is stored is read again, and what does not belong together is corrupt."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from spark_kbatch.errors import CorruptLedgerError, UnsupportedLedgerError
from spark_kbatch.ledger import checksummed_json, names
from spark_kbatch.ledger.checkpoint_format import (
    Root,
    ensure_of,
    pack_changes,
    pack_heads,
    pack_root,
    unpack_changes,
    unpack_heads,
    unpack_root,
)
from spark_kbatch.ledger.entries import Entry, Tombstone
from spark_kbatch.ledger.extents import Change
from spark_kbatch.ledger.image import GroupHead, TopicHead
from spark_kbatch.ledger.state import (
    LedgerState,
    PartitionHead,
    PartRef,
    ProducerHead,
    RememberedBatch,
)
from tests.support.bucket_contents import CLUSTER_ID, TOPIC_ID, append_of, data_at

ID = "41" * 16
PART = PartRef(names.part_name(7, ID, "heads"), 700, "093c742a")
ROOT = Root(7, ID, 1000, PART, {TOPIC_ID: (PART,)})
NAME = names.root_name(7)


def changed(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """Return an object with other values, and a sum that holds."""
    values = json.loads(data.partition(b"\n")[0])
    change(values)
    return checksummed_json.encode(values)


def test_a_root_is_read_as_it_was_stored() -> None:
    assert unpack_root(pack_root(ROOT), NAME, 7) == ROOT
    assert [*ROOT.parts] == [PART, PART]


def test_a_root_under_the_name_of_another_one_is_corrupt() -> None:
    with pytest.raises(CorruptLedgerError, match="its number is 7; expected the number in its name, 8"):  # fmt: skip
        unpack_root(pack_root(ROOT), names.root_name(8), 8)


def test_a_root_of_another_version_is_not_read() -> None:
    with pytest.raises(UnsupportedLedgerError, match="its 'v' is 3"):
        unpack_root(changed(pack_root(ROOT), lambda values: values.update(v=3)), NAME, 7)


@pytest.mark.parametrize("name", ["parts/7/heads", "data/x", ""])
def test_a_root_names_parts_alone(name: str) -> None:
    data = changed(pack_root(ROOT), lambda values: values.update(heads=[name, 1, "c1d04330"]))

    with pytest.raises(CorruptLedgerError, match=r"heads is .*expected text as parts"):
        unpack_root(data, NAME, 7)


def test_a_root_belongs_to_the_entry_that_has_its_id() -> None:
    entry = Entry(7, ID, "9c" * 16, 1000, Tombstone())
    ensure_of(ROOT, entry)

    with pytest.raises(CorruptLedgerError, match=f"{NAME}.*the id {ID}, and that has {'42' * 16}"):
        ensure_of(ROOT, entry._replace(entry_id="42" * 16))


# The extents of a topic.


def test_changes_are_read_in_their_order_as_of_the_checkpoint() -> None:
    second, first = append_of(1, 5, span=4), append_of(0, 100, name=data_at(3))
    data = pack_changes({1: [Change(9, 6, 8, second)], 0: [Change(2, 100, 103, first)]})

    assert json.loads(data.partition(b"\n")[0])["objects"] == [data_at(3), data_at(7)]
    found = unpack_changes(data, PART.name, 7, 2)
    assert found == [Change(7, 100, 103, first), Change(7, 6, 8, second)]


@pytest.mark.parametrize(
    ("start", "end"),
    [(4, 8), (6, 6), (8, 6), (6, 10)],
    ids=["before", "empty", "backward", "after"],
)
def test_a_change_that_its_append_does_not_have_is_corrupt(start: int, end: int) -> None:
    data = pack_changes({0: [Change(0, start, end, append_of(0, 5, span=4))]})

    with pytest.raises(CorruptLedgerError, match="offsets of the append"):
        unpack_changes(data, PART.name, 7, 1)


def test_a_change_of_all_that_its_append_has_is_read() -> None:
    one = Change(7, 5, 9, append_of(0, 5, span=4))

    assert unpack_changes(pack_changes({0: [one]}), PART.name, 7, 1) == [one]


def test_a_change_of_a_partition_that_is_not_there_is_corrupt() -> None:
    data = pack_changes({1: [Change(0, 5, 8, append_of(1, 5))]})

    unpack_changes(data, PART.name, 7, 2)
    with pytest.raises(CorruptLedgerError, match="other partitions than 0 to 0"):
        unpack_changes(data, PART.name, 7, 1)


# The heads.

BATCHES = (RememberedBatch(0, 2, 10),)


@pytest.fixture
def state() -> LedgerState:
    return LedgerState(
        cluster_id=CLUSTER_ID,
        topics={TOPIC_ID: TopicHead(TOPIC_ID, "events", 1, {"retention.ms": "5"}, 2)},
        heads={TOPIC_ID: [PartitionHead(0, 10), PartitionHead(7, 7, 3)]},
        producers={(9, TOPIC_ID, 1): ProducerHead(0, 77, BATCHES)},
        groups={"billing": {(TOPIC_ID, 0): GroupHead(3, "mine", 77)}},
        gc_boundary=1,
    )


def heads_of(state: LedgerState, **values: object) -> bytes:
    return changed(pack_heads(state), lambda heads: heads.update(values))


def test_heads_are_read_as_they_were_stored(state: LedgerState) -> None:
    assert unpack_heads(pack_heads(state), PART.name) == state


OTHER = {"id": "other", "name": "others", "created": 1, "config": {}, "partitions": [[0, 0, 0]]}


@pytest.mark.parametrize(
    "topics",
    [
        pytest.param([OTHER, {**OTHER, "id": "more"}], id="name"),
        pytest.param([OTHER, {**OTHER, "name": "more"}], id="id"),
    ],
)
def test_two_topics_with_the_same_name_or_id_are_corrupt(
    state: LedgerState, topics: list[Mapping[str, object]]
) -> None:
    data = heads_of(state, topics=topics, producers=[], groups={})

    with pytest.raises(CorruptLedgerError, match="the same name or id"):
        unpack_heads(data, PART.name)


@pytest.mark.parametrize(
    "values",
    [
        {"producers": [[9, TOPIC_ID, 2, 0, 77, [[0, 2, 10]]]]},
        {"producers": [[9, "other", 0, 0, 77, [[0, 2, 10]]]]},
        {"groups": {"billing": [[TOPIC_ID, 2, 3, "", 77]]}},
        {"groups": {"billing": [["other", 0, 3, "", 77]]}},
    ],
    ids=json.dumps,
)
def test_what_is_at_a_partition_that_is_not_there_is_corrupt(
    state: LedgerState, values: Mapping[str, object]
) -> None:
    with pytest.raises(CorruptLedgerError, match="a partition that is not there"):
        unpack_heads(heads_of(state, **values), PART.name)


@pytest.mark.parametrize(
    "values",
    [
        {"topics": [{**OTHER, "partitions": []}], "producers": [], "groups": {}},
        {"topics": [{**OTHER, "partitions": [[1, 0, 0]]}], "producers": [], "groups": {}},
        {"producers": [[9, TOPIC_ID, 1, 0, 77, []]]},
        {"producers": [[9, TOPIC_ID, 1, 0, 77, [[0, 2, 10]] * 6]]},
        {"format": 0},
        {"cluster": "c1"},
    ],
    ids=json.dumps,
)
def test_a_head_that_cannot_be_is_corrupt(state: LedgerState, values: Mapping[str, object]) -> None:
    with pytest.raises(CorruptLedgerError, match=PART.name):
        unpack_heads(heads_of(state, **values), PART.name)
