"""Entries in words: one sentence for each kind, with the names that topics have."""

from __future__ import annotations

import pytest

from spark_kbatch.ledger.audit import audited, words_of
from spark_kbatch.ledger.entries import (
    KINDS,
    CommittedGroupOffset,
    Content,
    Entry,
    LedgerCommit,
    NamesById,
    Tombstone,
    TopicCreation,
    TopicGrowth,
)
from tests.support.bucket_contents import EVERY_KIND, TOPIC_ID, append_of

WORDS = {
    "start": "the cluster begins",
    "create": "topic events is created with 2 partitions",
    "alter": "settings of events: retention.ms=default, max.message.bytes=7",
    "grow": "topic events gets 2 more partitions",
    "delete": "topic events is deleted",
    "commit": "6 records to events; starts: events-0 at 100; micro-batch 12 of a-query; "
    "progress of mirror nightly; 2 offsets of group billing",
    "starts": "starts: events-0 at 50, events-1 at 7",
    "replace": "other objects have the records of events",
    "fence": "fence server is at epoch 3",
    "horizon": "what began before entry 30 commits no more",
    "format": "writers need format 2",
    "tombstone": "only checkpoints know what it was",
}
NAMES = NamesById({TOPIC_ID: "events"})


def test_there_are_words_for_each_kind() -> None:
    assert WORDS.keys() == KINDS.keys()


@pytest.mark.parametrize("content", EVERY_KIND, ids=lambda content: content.kind)
def test_an_entry_is_told_in_words(content: Content) -> None:
    assert words_of(content, NAMES) == WORDS[content.kind]


def group_of(*offsets: int | None) -> LedgerCommit:
    rows = (CommittedGroupOffset(TOPIC_ID, number, one, "") for number, one in enumerate(offsets))
    return LedgerCommit(groups={"billing": tuple(rows)})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (TopicCreation(TOPIC_ID, "events", (0,)), "topic events is created with 1 partition"),
        (TopicGrowth(TOPIC_ID, (0,)), "topic events gets 1 more partition"),
        (LedgerCommit({TOPIC_ID: (append_of(0, 0, span=1),)}), "1 record to events"),
        (group_of(5), "1 offset of group billing"),
        (group_of(None), "1 offset of group billing is deleted"),
        (group_of(None, None), "2 offsets of group billing are deleted"),
        (group_of(5, None), "2 offsets of group billing"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_one_is_told_otherwise_than_many_and_what_is_deleted_as_that(
    content: Content, words: str
) -> None:
    assert words_of(content, NAMES) == words


def test_entries_are_told_the_newest_first_with_the_names_that_they_give() -> None:
    contents = [
        TopicCreation(TOPIC_ID, "events", (0,)),
        LedgerCommit({TOPIC_ID: (append_of(0, 0), append_of(1, 0))}),
        LedgerCommit({"gone": (append_of(0, 0),)}),
        Tombstone(),
    ]
    entries = [Entry(number, "", "", 0, one) for number, one in enumerate(contents)]
    names = NamesById()

    found = audited(entries, names)

    assert [one.entry.number for one in found] == [3, 2, 1, 0]
    assert [one.records for one in found] == [{}, {"gone": 3}, {"events": 6}, {}]
    assert found[1].what == "3 records to gone"
    assert names == {TOPIC_ID: "events"}


def test_the_first_name_of_an_id_counts() -> None:
    names = NamesById({TOPIC_ID: "now"})

    audited([Entry(0, "", "", 0, TopicCreation(TOPIC_ID, "before", (0,)))], names)

    assert names[TOPIC_ID] == "now"
