"""The format of entries: the same bytes for the same entry, and every damage is found."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kbatch.errors import (
    CorruptLedgerError,
    InvalidTopicError,
    RefusedEntryError,
    UnsupportedLedgerError,
)
from spark_kbatch.ledger import checksummed_json, names
from spark_kbatch.ledger.checksummed_json import sum_of
from spark_kbatch.ledger.entries import (
    ENTRY_BYTES_MAX,
    KINDS,
    NO_ENTRY_ID,
    Content,
    Entry,
    HeldFence,
    LedgerCommit,
    LedgerStart,
    Tombstone,
    TopicCreation,
    decode,
    encode,
    tombstone_of,
)
from spark_kbatch.ledger.extents import (
    Change,
    DataExtent,
    IndexRange,
    PartitionAppend,
    overlaid,
    pack_index,
    unpack_index,
)
from spark_kbatch.model import LONG_MAX
from spark_kbatch.options.topic import PARTITIONS_MAX, ensure_valid_topic
from tests.support.bucket_contents import CLUSTER_ID, EVERY_KIND, TOPIC_ID, append_of, data_at

NAME = names.entry_name(42)


def entry(content: Content, number: int = 42) -> Entry:
    return Entry(number, "41" * 16, "9c" * 16, 1_700_000_000_000, content, by="someone")


def changed(one: Entry, **values: Any) -> bytes:
    """Return the entry with other values in its envelope, and a sum that holds."""
    return checksummed_json.encode({**json.loads(encode(one).splitlines()[0]), **values})


@pytest.mark.parametrize("content", EVERY_KIND, ids=lambda content: content.kind)
def test_what_is_encoded_is_decoded_and_encoded_again_as_the_same_bytes(content: Content) -> None:
    data = encode(entry(content))

    assert decode(data, NAME) == entry(content)
    assert encode(decode(data, NAME)) == data


def test_the_examples_have_every_kind() -> None:
    assert {content.kind for content in EVERY_KIND} == set(KINDS)


def test_an_entry_is_a_line_of_json_and_its_sum() -> None:
    line, crc = encode(entry(Tombstone())).splitlines(keepends=True)

    assert line == (
        b'{"before":"9c9c9c9c9c9c9c9c9c9c9c9c9c9c9c9c","by":"someone","content":{},'
        b'"id":"41414141414141414141414141414141","kind":"tombstone","number":42,'
        b'"time":1700000000000,"v":2}\n'
    )
    assert crc == sum_of(line).encode() + b"\n"


def test_a_commit_leaves_out_what_it_has_not_and_a_topic_does_not() -> None:
    assert LedgerCommit().values() == {}
    assert [*LedgerCommit(fence=HeldFence("server", 3)).values()] == ["fence"]
    assert TopicCreation(TOPIC_ID, "events", (0,)).values() == {
        "config": {},
        "first_offsets": [0],
        "id": TOPIC_ID,
        "name": "events",
    }


@pytest.mark.parametrize("content", EVERY_KIND, ids=lambda content: content.kind)
def test_any_damaged_byte_is_found(content: Content) -> None:
    data = encode(entry(content))
    for at in range(0, len(data), 7):
        damaged = data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]
        with pytest.raises(CorruptLedgerError, match=NAME):
            decode(damaged, NAME)
    for size in (0, 5, 20, len(data) - 1):
        with pytest.raises(CorruptLedgerError, match=NAME):
            decode(data[:size], NAME)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../../evil", "a/b", "a\x1b[2J", "é", "a\n", "a" * 250]
)
def test_a_topic_with_a_name_that_kafka_refuses_is_corrupt(name: str) -> None:
    ensure_valid_topic("a" * 249)
    with pytest.raises(InvalidTopicError):
        ensure_valid_topic(name)
    with pytest.raises(CorruptLedgerError, match=NAME):
        decode(encode(entry(TopicCreation(TOPIC_ID, name, (0,)))), NAME)


@pytest.mark.parametrize("name", ["a", "...", "a" * 249, "A.b_c-9"])
def test_a_topic_with_a_name_that_kafka_accepts_is_read(name: str) -> None:
    content = TopicCreation(TOPIC_ID, ensure_valid_topic(name), (0,))
    assert decode(encode(entry(content)), NAME).content == content


def test_an_entry_under_the_name_of_another_one_is_corrupt() -> None:
    with pytest.raises(CorruptLedgerError, match="it is entry 42"):
        decode(encode(entry(Tombstone())), names.entry_name(43))


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"kind": "rename"}, id="kind"),
        pytest.param({"v": 3}, id="version"),
        pytest.param({"v": 1}, id="an earlier version"),
        pytest.param({"shard": 1}, id="key"),
        pytest.param(
            {"content": {"id": TOPIC_ID, "later": 1}, "kind": "delete"}, id="key of a kind"
        ),
    ],
)
def test_what_only_another_version_knows_stops_a_reader(values: Mapping[str, Any]) -> None:
    with pytest.raises(UnsupportedLedgerError, match=NAME):
        decode(changed(entry(Tombstone()), **values), NAME)


@pytest.mark.parametrize(
    "values",
    [
        {"number": -1},
        {"number": True},
        {"id": "41"},
        {"before": None},
        {"time": -1},
        {"by": 1},
        {"kind": 1},
        {"content": []},
        {"kind": "delete", "content": {"id": "../x"}},
        {"kind": "horizon", "content": {"number": -1}},
        {"kind": "create", "content": {"id": "a", "name": "b", "config": {}, "first_offsets": []}},
        {"kind": "commit", "content": {"query": ["id", -1]}},
        {"kind": "commit", "content": {"query": ["id"]}},
        {"kind": "commit", "content": {"groups": {"g": 1}}},
        {"kind": "commit", "content": {"starts": {"a": [[0]]}}},
        {"kind": "commit", "content": {"objects": ["../../secret"]}},
        {"kind": "commit", "content": {"topics": {"a": [[0, 0, 0, 0, 0, []]]}}},
        {"kind": "commit", "content": {"topics": {"a": [[0, 0, 1, 1, 0, [[0, 0, 9, 1, 1, 0, 0]]]]}}},
        {"kind": "replace", "content": {"objects": [], "topics": {"a": [[0, 0, 1]]}}},
    ],
    ids=json.dumps,
)  # fmt: skip
def test_a_value_that_cannot_be_is_corrupt_whatever_the_sum_says(values: Mapping[str, Any]) -> None:
    with pytest.raises(CorruptLedgerError, match=NAME):
        decode(changed(entry(Tombstone()), **values), NAME)


def test_extents_have_to_add_up_to_their_append() -> None:
    wrong = append_of(0, 10, span=5)._replace(span=6)

    data = encode(entry(LedgerCommit({TOPIC_ID: (wrong,)})))

    with pytest.raises(CorruptLedgerError, match="extents of 6 offsets"):
        decode(data, NAME)


def test_an_entry_that_is_too_large_is_refused() -> None:
    many = LedgerCommit({TOPIC_ID: tuple(append_of(number, 0) for number in range(9000))})

    with pytest.raises(RefusedEntryError, match=f"at most {ENTRY_BYTES_MAX}"):
        encode(entry(many))


def test_a_tombstone_has_number_and_ids_and_is_small() -> None:
    one = entry(LedgerCommit({TOPIC_ID: (append_of(0, 10),)}))
    data = encode(tombstone_of(one))

    assert len(data) < 220
    assert decode(data, NAME)[:3] == one[:3]


def test_the_first_entry_has_zeros_before_it() -> None:
    first = Entry(0, "41" * 16, NO_ENTRY_ID, 0, LedgerStart(CLUSTER_ID, {}))

    assert decode(encode(first), names.entry_name(0)) == first


# Extents in an index.


def index_of(
    *partitions: int,
) -> tuple[str, bytes, dict[str, list[PartitionAppend]], dict[str, list[PartitionAppend]]]:
    name = names.index_name(7, "ab" * 16, "cd" * 16)
    appends = {TOPIC_ID: [append_of(number, 0, span=number + 1) for number in partitions]}
    data, placed = pack_index(name, appends)
    return name, data, appends, placed


def test_an_index_has_each_partitions_extents_in_a_range_of_its_own() -> None:
    _, data, appends, placed = index_of(2, 0, 1)

    assert [one.partition for one in placed[TOPIC_ID]] == [0, 1, 2]
    for one in placed[TOPIC_ID]:
        at = one.placed
        assert isinstance(at, IndexRange)
        (given_one,) = (each for each in appends[TOPIC_ID] if each.partition == one.partition)
        part = data[at.position : at.position + at.size_in_bytes]
        assert unpack_index(part, at) == given_one.placed
    sizes = [one.placed[2] for one in placed[TOPIC_ID]]
    assert sum(sizes) == len(data)


def test_a_range_of_an_index_that_is_not_the_one_that_was_committed_is_corrupt() -> None:
    _, data, _, placed = index_of(0, 1)
    first, second = (one.placed for one in placed[TOPIC_ID])
    assert isinstance(first, IndexRange)
    assert isinstance(second, IndexRange)

    with pytest.raises(CorruptLedgerError, match=first.name):
        unpack_index(data[second.position :], first)


def test_an_index_refers_to_objects_of_its_own_job_alone() -> None:
    _, data, _, placed = index_of(0)
    at = placed[TOPIC_ID][0].placed
    assert isinstance(at, IndexRange)
    elsewhere = at._replace(name=names.index_name(8, "ab" * 16, "cd" * 16))

    with pytest.raises(CorruptLedgerError, match="objects of the job"):
        unpack_index(data, elsewhere)


# What is at each offset.


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)), max_size=20))
def test_the_last_change_that_covers_an_offset_is_what_is_there(
    ranges: list[tuple[int, int]],
) -> None:
    changes = [
        Change(number, base, base + span, append_of(0, base, span=span))
        for number, (base, span) in enumerate(ranges)
    ]
    expected = {
        offset: change.number
        for change in changes
        for offset in range(change.start_offset, change.next_offset)
    }

    found = overlaid(changes).get(0, [])

    covered = [
        (offset, one.number) for one in found for offset in range(one.start_offset, one.next_offset)
    ]
    assert covered == sorted(expected.items())
    assert all(one.start_offset < one.next_offset for one in found)


def test_an_append_refers_to_its_index_or_to_the_objects_of_its_extents_each_once() -> None:
    _, _, appends, placed = index_of(0)
    (listed,), (indexed,) = appends[TOPIC_ID], placed[TOPIC_ID]
    more = (*listed.placed, *append_of(0, 0, began=2).placed, *listed.placed)

    assert listed._replace(placed=more).objects == [data_at(7), data_at(2)]
    assert indexed.objects == [names.index_name(7, "ab" * 16, "cd" * 16)]


def test_changes_of_partitions_do_not_meet() -> None:
    found = overlaid(
        [Change(1, 0, 5, append_of(0, 0, span=5)), Change(2, 0, 5, append_of(1, 0, span=5))]
    )

    assert {partition: [one.number for one in each] for partition, each in found.items()} == {
        0: [1],
        1: [2],
    }


@pytest.mark.parametrize(
    ("name", "number"),
    [
        (data_at(7), 7),
        (names.index_name(7, "ab" * 16, "cd" * 16), 7),
        (names.segment_name(TOPIC_ID, 3, 12, "ab" * 16), 12),
        ("data/ab/7-ab/x", -1),
        (f"{data_at(7)}/../x", -1),
        (names.entry_name(7), -1),
    ],
)
def test_the_number_in_a_name_is_that_of_the_last_entry_when_it_was_begun(
    name: str, number: int
) -> None:
    assert names.start_entry(name) == number


def test_names_sort_as_their_numbers_do() -> None:
    numbers = [0, 9, 10, 99, 100, 10**12]

    assert sorted(map(names.entry_name, numbers)) == [*map(names.entry_name, numbers)]
    assert [names.number_of(names.root_name(number)) for number in numbers] == numbers
    assert names.number_of("ledger/7") == -1


@pytest.mark.parametrize(
    ("base_offset", "span", "records_count", "is_there"),
    [
        (LONG_MAX - 2, 2, 2, True),
        (LONG_MAX - 2, 3, 2, False),
        (0, 2, 3, False),
        (0, 3, 0, True),
    ],
)
def test_an_append_is_within_its_bounds(
    base_offset: int, span: int, records_count: int, is_there: bool
) -> None:
    placed = IndexRange(names.index_name(7, "ab" * 16, "ef" * 16), 10, 20, "c1d04330")
    content = LedgerCommit({TOPIC_ID: (PartitionAppend(0, base_offset, span, records_count, 0, placed),)})  # fmt: skip
    data = encode(entry(content))

    if is_there:
        assert decode(data, NAME).content == content
    else:
        with pytest.raises(CorruptLedgerError, match="an append within its bounds"):
            decode(data, NAME)


@pytest.mark.parametrize(
    ("values", "is_there"),
    [
        ({"records_count": 3}, True),
        ({"records_count": 0, "first_ms": -1, "last_ms": -1}, True),
        ({"records_count": 4}, False),
        ({"first_ms": 2001}, False),
        ({"first_ms": 2000}, True),
        ({"first_ms": -2}, False),
        ({"size_in_bytes": 0}, False),
        ({"size_in_bytes": 1}, True),
        ({"position": -1}, False),
    ],
    ids=str,
)
def test_an_extent_is_within_its_bounds(values: Mapping[str, int], is_there: bool) -> None:
    (extent,) = append_of(0, 0).placed
    assert isinstance(extent, DataExtent)
    changed_extent = extent._replace(**values)  # type: ignore[arg-type]
    append = append_of(0, 0)._replace(placed=(changed_extent,), records_count=changed_extent.records_count)  # fmt: skip
    data = encode(entry(LedgerCommit({TOPIC_ID: (append,)})))

    if is_there:
        assert decode(data, NAME).content == LedgerCommit({TOPIC_ID: (append,)})
    else:
        with pytest.raises(CorruptLedgerError, match=NAME):
            decode(data, NAME)


@pytest.mark.parametrize(("partition", "is_there"), [(PARTITIONS_MAX - 1, True), (PARTITIONS_MAX, False)])  # fmt: skip
def test_a_partition_is_one_of_as_many_as_a_topic_may_have(partition: int, is_there: bool) -> None:
    content = LedgerCommit({TOPIC_ID: (append_of(partition, 0),)})
    data = encode(entry(content))

    if is_there:
        assert decode(data, NAME).content == content
    else:
        with pytest.raises(CorruptLedgerError, match=f"from 0 to {PARTITIONS_MAX - 1}"):
            decode(data, NAME)


def test_an_extent_is_at_least_one_offset() -> None:
    empty = PartitionAppend(0, 0, 1, 1, 0, (DataExtent(data_at(7), 0, 1, 0, 0, 0, 0), *append_of(0, 0, span=1).placed))  # type: ignore[arg-type]  # fmt: skip
    data = encode(entry(LedgerCommit({TOPIC_ID: (empty,)})))

    with pytest.raises(CorruptLedgerError, match="from 1 to"):
        decode(data, NAME)
