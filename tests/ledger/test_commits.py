"""Commits as entries tell of them, read from the newest one on."""

from __future__ import annotations

from collections.abc import Container

from spark_kbatch.ledger.commits import CommitWalk
from spark_kbatch.ledger.entries import (
    Content,
    Entry,
    LedgerCommit,
    NamesById,
    TopicCreation,
    TopicDeletion,
    TopicGrowth,
)
from spark_kbatch.model import TopicPartition
from tests.support.bucket_contents import TOPIC_ID, append_of

P0, P1, P2 = (TopicPartition("events", number) for number in range(3))


def a_commit(*edges: tuple[int, int]) -> LedgerCommit:
    """Return a commit of three records to each partition, from an offset on."""
    return LedgerCommit({TOPIC_ID: tuple(append_of(*edge) for edge in edges)})


def ends_of(
    contents: list[Content], ends: dict[int, int], *, of_producers: Container[int] = ()
) -> list[dict[TopicPartition, int] | None]:
    """Return the ends after each content, the newest first; None for what is no commit.

    Args:
        contents: in their order.
        ends: of the partitions after the last one.
        of_producers: which of them no job wrote.
    """
    walk = CommitWalk(NamesById({TOPIC_ID: "events"}), {TOPIC_ID: dict(ends)})
    entries = [
        Entry(number, "", "", 0, one, "" if number in of_producers else "job app a-query ann@host")
        for number, one in enumerate(contents)
    ]
    found = [walk.back(entry) for entry in reversed(entries)]
    return [None if one is None else dict(one.ends) for one in found]


def test_a_commit_ends_where_the_next_one_begins() -> None:
    contents: list[Content] = [a_commit((0, 0)), a_commit((0, 3), (1, 0))]

    assert ends_of(contents, {0: 6, 1: 3}) == [{P0: 6, P1: 3}, {P0: 3, P1: 0}]


def test_before_partitions_were_added_there_were_none_of_them() -> None:
    contents: list[Content] = [a_commit((0, 0)), TopicGrowth(TOPIC_ID, (0, 0)), a_commit((2, 0))]

    assert ends_of(contents, {0: 3, 1: 0, 2: 3}) == [{P0: 3, P1: 0, P2: 3}, None, {P0: 3}]


def test_of_a_topic_that_was_deleted_those_partitions_count_that_were_written_to() -> None:
    again = TopicCreation(TOPIC_ID, "events", (0, 0))
    contents: list[Content] = [a_commit((0, 0)), TopicDeletion(TOPIC_ID), again, a_commit((1, 0))]

    assert ends_of(contents, {0: 0, 1: 3}) == [{P0: 0, P1: 3}, None, None, {P0: 3}]


def test_an_overwrite_of_a_partition_of_which_nothing_is_known_ends_at_its_start() -> None:
    overwrite = LedgerCommit(a_commit((1, 5)).appends, {TOPIC_ID: {0: 7, 1: 5}})

    assert ends_of([overwrite], {}) == [{P0: 7, P1: 8}]


def test_what_no_job_wrote_is_no_commit_but_moves_the_ends() -> None:
    contents: list[Content] = [a_commit((0, 0)), a_commit((0, 3))]

    assert ends_of(contents, {0: 6}, of_producers={1}) == [None, {P0: 3}]
