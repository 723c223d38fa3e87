"""Checkpoints: when they are made, what they name, and what is read without them."""

from __future__ import annotations

import pytest

from spark_kbatch.bucket.checkpoints import LedgerCheckpoints, LostPartError
from spark_kbatch.bucket.ledger import Ledger
from spark_kbatch.bucket.objects import CreateAnswer
from spark_kbatch.errors import CorruptLedgerError, UnsupportedLedgerError
from spark_kbatch.ledger import checksummed_json, names
from spark_kbatch.ledger.checkpoint_format import Root
from spark_kbatch.ledger.entries import (
    StartOffsets,
    TopicCreation,
    TopicDeletion,
    decode,
    encode,
    tombstone_of,
)
from tests.support.bucket_contents import TOPIC_ID
from tests.support.bucket_ledgers import (
    ScriptedObjects,
    a_ledger,
    a_place,
    cluster_of,
    commit_of,
    grow,
)


@pytest.fixture
def objects() -> ScriptedObjects:
    return a_place()


def roots(objects: ScriptedObjects) -> dict[int, Root]:
    found = LedgerCheckpoints(cluster_of(objects), objects.time.timing().rng)
    return {number: root for number in found.numbers() if (root := found.root(number))}


def ranges(ledger: Ledger, partition: int = 0) -> list[tuple[int, int]]:
    changes = ledger.changes(TOPIC_ID).get(partition, [])
    return [(one.start_offset, one.next_offset) for one in changes]


def test_who_commits_a_certain_number_makes_a_checkpoint(objects: ScriptedObjects) -> None:
    grow(a_ledger(objects, every=4), 7)

    assert [*roots(objects)] == [4, 8]


def test_who_commits_makes_a_checkpoint_that_is_overdue(objects: ScriptedObjects) -> None:
    both = [a_ledger(objects, every=4, seed=seed) for seed in (1, 2)]
    # They take turns, so that one never commits a number that the other has to.
    objects.failing = {"put"}
    for _ in range(20):
        for ledger in both:
            grow(ledger, 1)
    objects.failing = set()
    grow(both[0], 1)

    assert len(roots(objects)) == 1


def test_a_checkpoint_has_all_that_was_committed(objects: ScriptedObjects) -> None:
    writer = a_ledger(objects, every=4)
    grow(writer, 15)

    reader = a_ledger(objects)

    assert reader.state.checkpoint == 16
    assert reader.state.topics == writer.state.topics
    assert ranges(reader) == ranges(writer) == [(number, number + 1) for number in range(8)]


def test_a_reader_makes_no_checkpoint(objects: ScriptedObjects) -> None:
    grow(a_ledger(objects, every=10**6), 10)
    objects.requests.clear()

    a_ledger(objects, every=1).follow()

    assert {request for request, _ in objects.requests} == {"get", "list"}


def test_what_did_not_change_is_named_again(objects: ScriptedObjects) -> None:
    ledger = a_ledger(objects, every=10)
    grow(ledger, 9)
    ledger.commit(lambda _: TopicCreation("other", "others", (0,)))
    for _ in range(9):
        ledger.commit(lambda _: StartOffsets({"other": {0: 0}}))

    first, second = roots(objects).values()

    assert first.extents[TOPIC_ID] == second.extents[TOPIC_ID]
    assert first.heads != second.heads


def test_a_topic_has_few_parts_however_many_checkpoints_there_were(
    objects: ScriptedObjects,
) -> None:
    ledger = a_ledger(objects, every=4)
    grow(ledger, 400)

    (*_, last) = roots(objects).values()
    written = [one for one in cluster_of(objects).list(names.PARTS) if "extents" in one.name]

    assert len(last.extents[TOPIC_ID]) <= 8
    # Each change is written again about as often as the number of changes can be halved.
    size = sum(part.size_in_bytes for part in last.extents[TOPIC_ID])
    assert sum(one.size_in_bytes for one in written) <= 8 * size
    assert len(ranges(a_ledger(objects))) == 200


def test_what_is_before_the_start_offset_is_not_kept(objects: ScriptedObjects) -> None:
    ledger = a_ledger(objects, every=10)
    grow(ledger, 6)
    ledger.commit(lambda _: StartOffsets({TOPIC_ID: {0: 2, 1: 3}}))
    grow(ledger, 1)

    reader = a_ledger(objects)

    assert ranges(reader) == [(2, 3), (3, 4)]
    assert ranges(reader, 1) == []


def test_a_topic_that_was_created_again_with_its_id_has_nothing_of_the_first_one(
    objects: ScriptedObjects,
) -> None:
    ledger = a_ledger(objects, every=4)
    grow(ledger, 3)
    ledger.commit(lambda _: TopicDeletion(TOPIC_ID))
    ledger.commit(lambda _: TopicCreation(TOPIC_ID, "events", (0, 0)))
    grow(ledger, 2)

    reader = a_ledger(objects)

    assert reader.state.checkpoint == 8
    assert ranges(reader) == [(0, 1)]


def test_a_builder_that_rests_on_anothers_checkpoint_names_nothing_of_an_earlier_topic(
    objects: ScriptedObjects,
) -> None:
    builder = a_ledger(objects, every=10**6, seed=2)
    grow(a_ledger(objects, every=4), 3)
    builder.commit(lambda _: TopicDeletion(TOPIC_ID))
    builder.commit(lambda _: TopicCreation(TOPIC_ID, "events", (0, 0)))
    grow(builder, 2)

    assert builder._checkpoints.build(builder.state)

    assert [*roots(objects)] == [4, 8]
    assert ranges(a_ledger(objects)) == ranges(builder) == [(0, 1)]


def test_a_builder_goes_on_from_the_newest_checkpoint_and_not_from_its_own(
    objects: ScriptedObjects,
) -> None:
    first = a_ledger(objects, every=5, seed=1)
    grow(first, 4)  # makes 5
    other = a_ledger(objects, every=8, seed=2)
    grow(other, 3)  # makes 8
    # What only the first names is gone.
    five, eight = roots(objects).values()
    kept = {part.name for part in (eight.heads, *eight.extents[TOPIC_ID])}
    parts = {part.name for part in (five.heads, *five.extents[TOPIC_ID])}
    cluster_of(objects).delete([names.root_name(5), *(parts - kept)])

    grow(first, 2)  # makes 10

    assert [*roots(objects)] == [8, 10]
    assert len(ranges(a_ledger(objects))) == 5


def test_of_two_who_make_the_same_checkpoint_one_does(
    objects: ScriptedObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, other = (a_ledger(objects, every=10**6, seed=seed) for seed in (1, 2))
    grow(ledger, 3)
    other.follow()
    real = ScriptedObjects.create

    def create(self: ScriptedObjects, name: str, data: bytes) -> CreateAnswer:
        monkeypatch.setattr(ScriptedObjects, "create", real)
        assert other._checkpoints.build(other.state)
        return real(self, name, data)

    monkeypatch.setattr(ScriptedObjects, "create", create)

    assert not ledger._checkpoints.build(ledger.state)
    assert [*roots(objects)] == [4]
    grow(ledger, 1)
    assert len(ranges(a_ledger(objects))) == 3


def test_a_commit_stands_where_no_checkpoint_can_be_made(objects: ScriptedObjects) -> None:
    ledger = a_ledger(objects, every=4)
    objects.failing = {"put"}

    grow(ledger, 3)

    assert roots(objects) == {}
    assert a_ledger(objects).state.number == 4


# What is missing.


def test_a_root_that_is_deleted_after_it_was_listed_is_looked_up_again(
    objects: ScriptedObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(a_ledger(objects, every=4), 7)
    real = ScriptedObjects.get_many

    def get_many(self: ScriptedObjects, wanted: list[str]) -> list[bytes | None]:
        monkeypatch.setattr(ScriptedObjects, "get_many", real)
        grow(a_ledger(self, every=4, seed=5), 4)
        cluster_of(self).delete([names.root_name(8)])
        return real(self, wanted)

    monkeypatch.setattr(ScriptedObjects, "get_many", get_many)

    assert a_ledger(objects).state.checkpoint == 12


@pytest.mark.parametrize("count", [3, 7])  # entries, with one checkpoint and with two
def test_a_checkpoint_that_is_deleted_after_its_root_was_read_is_left_for_a_newer_one(
    objects: ScriptedObjects, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    grow(a_ledger(objects, every=4), count)
    read = [*roots(objects).values()][-1]
    cluster_of(objects).delete([names.HINT])
    real = ScriptedObjects.get

    def get(self: ScriptedObjects, name: str) -> bytes | None:
        if name.endswith(read.heads.name):
            monkeypatch.setattr(ScriptedObjects, "get", real)
            grow(a_ledger(self, every=4, seed=5), 8)
            cluster_of(self).delete([names.root_name(read.number), read.heads.name])
        return real(self, name)

    monkeypatch.setattr(ScriptedObjects, "get", get)

    assert a_ledger(objects).state.checkpoint == read.number + 8


@pytest.mark.parametrize("what", ["heads", "extents"])
def test_a_checkpoint_without_a_part_is_left_for_the_one_before(
    objects: ScriptedObjects, what: str
) -> None:
    grow(a_ledger(objects, every=4), 13)
    last = roots(objects)[12]
    part = last.heads if what == "heads" else last.extents[TOPIC_ID][-1]
    cluster_of(objects).delete([part.name])

    reader = a_ledger(objects, every=4)

    assert ranges(reader) == [(number, number + 1) for number in range(7)]
    assert reader.state.checkpoint == 8
    # And the next one is whole again.
    grow(reader, 2)
    assert a_ledger(objects).state.checkpoint == 16
    assert len(ranges(a_ledger(objects))) == 8


def test_one_who_has_a_checkpoint_that_is_gone_goes_on_from_a_newer_one(
    objects: ScriptedObjects,
) -> None:
    grow(a_ledger(objects, every=4), 3)
    reader = a_ledger(objects)
    grow(a_ledger(objects, every=4, seed=5), 40)
    four, *_, last = roots(objects).values()
    kept = {part.name for part in last.extents[TOPIC_ID]}
    gone = [part.name for part in four.extents[TOPIC_ID] if part.name not in kept]
    assert gone
    cluster_of(objects).delete([names.root_name(4), *gone])

    assert len(ranges(reader)) == 22
    assert reader.state.checkpoint == last.number


def test_where_no_checkpoint_can_be_read_entries_are(objects: ScriptedObjects) -> None:
    grow(a_ledger(objects, every=4), 13)
    cluster_of(objects).delete([root.heads.name for root in roots(objects).values()])

    assert a_ledger(objects).state.checkpoint == -1
    assert ranges(a_ledger(objects)) == [(number, number + 1) for number in range(7)]

    bury(objects, 0)
    with pytest.raises(CorruptLedgerError, match="no checkpoint that can be read is after it"):
        a_ledger(objects)


def bury(objects: ScriptedObjects, last: int) -> None:
    """Put tombstones in place of the entries up to `last`."""
    for number in range(last + 1):
        name = names.entry_name(number)
        entry = decode(cluster_of(objects).get(name) or b"", name)
        cluster_of(objects).put(name, encode(tombstone_of(entry)))


@pytest.mark.parametrize("what", ["root", "heads", "extents"])
def test_a_damaged_checkpoint_is_left_for_entries_and_told_where_there_are_none(
    objects: ScriptedObjects, what: str
) -> None:
    grow(a_ledger(objects, every=4), 5)
    root = roots(objects)[4]
    name = {
        "root": names.root_name(4),
        "heads": root.heads.name,
        "extents": root.extents[TOPIC_ID][0].name,
    }[what]
    data = cluster_of(objects).get(name) or b""
    cluster_of(objects).put(name, data[:-20] + data[-19:])

    assert len(ranges(a_ledger(objects))) == 3

    bury(objects, 4)
    with pytest.raises(CorruptLedgerError) as raised:
        ranges(a_ledger(objects))
    assert raised.value.name == (name if what == "extents" else names.entry_name(0))


def test_a_part_is_read_from_its_copy(objects: ScriptedObjects) -> None:
    grow(a_ledger(objects, every=4), 5)
    root = roots(objects)[4]
    LedgerCheckpoints(cluster_of(objects), objects.time.timing().rng).double(4)
    bury(objects, 4)
    (part,) = root.extents[TOPIC_ID]
    cluster_of(objects).delete([part.name])
    cluster_of(objects).put(root.heads.name, b"?")

    reader = a_ledger(objects, every=4)

    assert reader.state.checkpoint == 4
    assert len(ranges(reader)) == 3
    # And the next checkpoint, which merges the part, is whole by itself.
    grow(reader, 2)
    cluster_of(objects).delete([part.name + names.COPY])
    assert len(ranges(a_ledger(objects))) == 4


def test_a_part_that_is_lost_in_all_checkpoints_takes_its_topic_alone(
    objects: ScriptedObjects,
) -> None:
    writer = a_ledger(objects, every=4)
    writer.commit(lambda _: TopicCreation("other", "others", (0,)))
    grow(writer, 4)
    for root in roots(objects).values():
        cluster_of(objects).delete([part.name for part in root.extents[TOPIC_ID]])
    bury(objects, 4)

    reader = a_ledger(objects, every=4)
    for _ in range(2):
        with pytest.raises(LostPartError, match=f"extents-{TOPIC_ID}"):
            reader.changes(TOPIC_ID)
        assert reader.changes("other") == {}
        assert reader.state.number == writer.state.number
    # Writers go on, and make checkpoints, which name the lost part again.
    grow(reader, 6)
    assert max(roots(objects)) == 12
    assert a_ledger(objects).changes("other") == {}


def test_a_checkpoint_of_a_later_version_stops_readers(objects: ScriptedObjects) -> None:
    grow(a_ledger(objects, every=4), 5)
    name = names.root_name(4)
    values = checksummed_json.decode(cluster_of(objects).get(name) or b"", name).values
    cluster_of(objects).put(name, checksummed_json.encode({**values, "v": 3}))

    with pytest.raises(UnsupportedLedgerError, match=name):
        a_ledger(objects)


def test_parts_that_no_root_names_are_not_read(objects: ScriptedObjects) -> None:
    writer = a_ledger(objects, every=4)
    grow(writer, 3)
    cluster_of(objects).delete([names.root_name(4)])

    reader = a_ledger(objects)

    assert reader.state.checkpoint == -1
    assert ranges(reader) == ranges(writer)
    assert commit_of(1)(reader.state) is not None
