"""Commits as entries tell of them, read from the newest one on."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

import pytest

from spark_kbatch.ledger import names
from spark_kbatch.ledger.commits import CommitWalk
from spark_kbatch.ledger.entries import (
    Content,
    Entry,
    LedgerCommit,
    MicroBatch,
    MirrorStep,
    NamesById,
    TopicCreation,
    TopicDeletion,
    TopicGrowth,
)
from spark_kbatch.ledger.extents import IndexRange
from spark_kbatch.model import TopicPartition
from spark_kbatch.store.commits import Author, Commit
from tests.support.bucket_contents import JOB_ID, TOPIC_ID, append_of

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


def the_commit(content: LedgerCommit, by: str) -> Commit | None:
    """Return what an entry with this content is, as a commit."""
    return CommitWalk(NamesById({TOPIC_ID: "events"}), {}).back(Entry(7, "41", "", 99, content, by))


def test_a_commit_is_named_by_its_micro_batch_or_its_mirror_or_its_entry() -> None:
    batch = replace(a_commit((0, 0)), micro_batch=MicroBatch("q", 5))
    mirror = replace(a_commit((0, 0)), mirror=MirrorStep("nightly", "", "1"))
    job = "job app q ann@host"

    found = [
        the_commit(batch, job),
        the_commit(mirror, "mirror"),
        the_commit(a_commit((0, 0)), job),
    ]

    named = [one and (one.transactional_id, one.sequence) for one in found]
    assert named == [("q", 5), ("nightly", -1), ("41", -1)]


@pytest.mark.parametrize(
    ("by", "author"),
    [
        ("job app q ann@host", Author("app", "q", "ann")),
        ("job app ann@host", Author("app", "", "ann")),
        ("job ann@host", Author("", "", "ann")),
        ("job app q", Author("app", "q", "")),
    ],
)
def test_a_jobs_author_is_told_by_its_entry(by: str, author: Author) -> None:
    found = the_commit(a_commit((0, 0)), by)

    assert found is not None
    assert found.author == author


def test_the_bytes_of_a_commit_are_known_unless_an_index_lists_them() -> None:
    one, other = append_of(0, 0), append_of(1, 0)
    placed = IndexRange(names.index_name(7, JOB_ID, "ef" * 16), 0, 9, "c1d04330")
    by = "job app q ann@host"

    known = the_commit(LedgerCommit({TOPIC_ID: (one, other)}), by)
    unknown = the_commit(LedgerCommit({TOPIC_ID: (one, other._replace(placed=placed))}), by)

    assert known is not None
    assert unknown is not None
    assert (known.size_in_bytes, known.records_count) == (600, 6)
    assert (unknown.size_in_bytes, unknown.records_count) == (-1, 6)
    assert known.offsets == {P0: (0, 3), P1: (0, 3)}
