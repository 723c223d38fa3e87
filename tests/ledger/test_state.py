"""The fold: what an entry changes, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_kbatch.errors import (
    InvalidProducerEpochError,
    KBatchError,
    MirrorFencedError,
    OutOfOrderSequenceError,
    RefusedEntryError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.ledger import names
from spark_kbatch.ledger.checkpoint_format import pack_heads, unpack_heads
from spark_kbatch.ledger.entries import (
    CommittedGroupOffset,
    Content,
    Entry,
    Fence,
    GcBoundary,
    HeldFence,
    LedgerCommit,
    LedgerStart,
    MicroBatch,
    MirrorStep,
    NewFormat,
    ProducedBatch,
    Replacement,
    Rewrite,
    StartOffsets,
    Tombstone,
    TopicAlteration,
    TopicCreation,
    TopicDeletion,
    TopicGrowth,
)
from spark_kbatch.ledger.state import LedgerState, RememberedBatch
from spark_kbatch.model import NO_TRANSACTION_SEQUENCE
from spark_kbatch.options.topic import PARTITIONS_MAX
from spark_kbatch.store.repetitions import Evidence
from tests.support.bucket_contents import CLUSTER_ID, TOPIC_ID, append_of, data_at

LIMITS = {
    "staging.timeout.ms": 1000,
    "producer.id.expiration.ms": 3_600_000,
}
TOPIC = TopicCreation(TOPIC_ID, "events", (0, 17), {"retention.ms": "5"})


def follow(state: LedgerState, *contents: Content, at_ms: int = 0) -> LedgerState:
    """Apply contents as the next entries of a state."""
    for content in contents:
        number = state.number + 1
        time_ms = max(at_ms, state.time_ms)
        state.apply(Entry(number, f"{number:032x}", state.entry_id, time_ms, content))
    return state


@pytest.fixture
def state() -> LedgerState:
    return follow(LedgerState(), LedgerStart(CLUSTER_ID, LIMITS), TOPIC)


def commit(
    base: int, *, span: int = 3, partition: int = 0, began: int = 1, **more: object
) -> LedgerCommit:
    append = append_of(partition, base, span=span, began=began)
    return LedgerCommit({TOPIC_ID: (append,)}, **more)  # type: ignore[arg-type]


def produced(first: int, *, epoch: int = 0, base: int, count: int = 3) -> ProducedBatch:
    return ProducedBatch(9, epoch, TOPIC_ID, 0, first, first + count - 1, base)


def replacement(start: int, end: int, *, began: int = 1, partition: int = 0) -> Replacement:
    name = names.segment_name(TOPIC_ID, partition, began, "0f" * 16)
    append = append_of(partition, start, span=end - start, name=name)
    return Replacement({TOPIC_ID: (Rewrite(partition, start, end, (append,)),)})


def test_a_topic_has_the_first_offsets_and_the_id_that_it_was_created_with(
    state: LedgerState,
) -> None:
    assert state.topic("events").topic_id == TOPIC_ID
    assert state.partition(TOPIC_ID, 1).start_offset == 17
    assert state.partition(TOPIC_ID, 1).next_offset == 17


def test_commits_make_offsets_dense(state: LedgerState) -> None:
    follow(state, commit(0), commit(3, span=2), commit(17, partition=1))

    assert state.partition(TOPIC_ID, 0).next_offset == 5
    assert state.partition(TOPIC_ID, 1).next_offset == 20
    changes = state.extents[TOPIC_ID].changes
    assert [(one.number, one.start_offset, one.next_offset) for one in changes] == [
        (2, 0, 3),
        (3, 3, 5),
        (4, 17, 20),
    ]


def test_an_overwrite_moves_start_offsets_with_the_commit(state: LedgerState) -> None:
    follow(state, commit(0), commit(3, starts={TOPIC_ID: {0: 3}}))

    assert state.partition(TOPIC_ID, 0).start_offset == 3
    assert state.partition(TOPIC_ID, 0).next_offset == 6


def test_settings_change_by_key_and_go_back_to_the_default(state: LedgerState) -> None:
    follow(state, TopicAlteration(TOPIC_ID, {"retention.ms": None, "max.message.bytes": "7"}))

    assert state.topic("events").config == {"max.message.bytes": "7"}


def test_a_topic_that_is_deleted_leaves_nothing(state: LedgerState) -> None:
    group = {"billing": (CommittedGroupOffset(TOPIC_ID, 0, 3, "mine"),)}
    follow(state, commit(0, produced=(produced(0, base=0),), groups=group), TopicDeletion(TOPIC_ID))

    assert (state.topics, state.extents, state.producers, state.groups) == ({}, {}, {}, {})
    follow(state, TOPIC)
    assert state.partition(TOPIC_ID, 0).next_offset == 0


def test_partitions_are_added_with_first_offsets(state: LedgerState) -> None:
    follow(state, TopicGrowth(TOPIC_ID, (5,)), commit(5, partition=2))

    assert state.partition(TOPIC_ID, 2).next_offset == 8


def test_groups_set_and_delete_offsets(state: LedgerState) -> None:
    both = (CommittedGroupOffset(TOPIC_ID, 0, 3, "mine"), CommittedGroupOffset(TOPIC_ID, 1, 20, ""))
    follow(state, LedgerCommit(groups={"billing": both}), at_ms=50)
    assert state.groups["billing"][TOPIC_ID, 0] == (3, "mine", 50)

    gone = (CommittedGroupOffset(TOPIC_ID, 0, None, ""), CommittedGroupOffset(TOPIC_ID, 1, None, ""))  # fmt: skip
    follow(state, LedgerCommit(groups={"billing": gone}))
    assert state.groups == {}


def test_a_producers_last_five_batches_are_remembered(state: LedgerState) -> None:
    for number in range(7):
        follow(state, commit(3 * number, produced=(produced(3 * number, base=3 * number),)))

    head = state.producers[9, TOPIC_ID, 0]
    assert head.batches == tuple(
        RememberedBatch(first, first + 2, first) for first in (6, 9, 12, 15, 18)
    )
    follow(state, commit(21, produced=(produced(0, epoch=1, base=21),)))
    assert state.producers[9, TOPIC_ID, 0].batches == (RememberedBatch(0, 2, 21),)


def test_several_batches_of_one_producer_in_a_commit_follow_each_other(state: LedgerState) -> None:
    batches = produced(0, base=0, count=1), produced(1, base=1, count=2)
    follow(state, commit(0, produced=batches))

    with pytest.raises(OutOfOrderSequenceError):
        follow(state, commit(3, produced=(produced(3, base=3), produced(3, base=4))))


def test_producers_expire_by_the_times_of_entries_and_queries_do_not(state: LedgerState) -> None:
    follow(state, commit(0, produced=(produced(0, base=0),), micro_batch=MicroBatch("q", 1)))
    follow(state, StartOffsets({}), at_ms=3_599_999)
    assert state.producers
    follow(state, StartOffsets({}), at_ms=3_600_000)
    assert not state.producers
    follow(state, StartOffsets({}), at_ms=10**15)
    assert state.queries


def test_offsets_of_groups_expire_by_the_times_of_entries() -> None:
    limits = {"offsets.retention.ms": 3_600_000}
    state = follow(LedgerState(), LedgerStart(CLUSTER_ID, limits), TOPIC)
    old, young = (CommittedGroupOffset(TOPIC_ID, number, 0, "") for number in (0, 1))
    follow(state, LedgerCommit(groups={"billing": (old,), "audit": (old,)}))
    follow(state, LedgerCommit(groups={"billing": (young,)}), at_ms=1)

    follow(state, StartOffsets({}), at_ms=3_600_000)

    assert {group: [*held] for group, held in state.groups.items()} == {"billing": [(TOPIC_ID, 1)]}


def test_nothing_expires_by_a_limit_that_the_ledger_does_not_have() -> None:
    state = follow(LedgerState(), LedgerStart(CLUSTER_ID, {}), TOPIC)
    follow(state, commit(0, produced=(produced(0, base=0),)))

    follow(state, StartOffsets({}), at_ms=10**15)

    assert state.producers


def test_a_topic_may_grow_to_as_many_partitions_as_there_may_be(state: LedgerState) -> None:
    follow(state, TopicGrowth(TOPIC_ID, (0,) * (PARTITIONS_MAX - 2)))

    assert state.topic("events").partitions == len(state.heads[TOPIC_ID]) == PARTITIONS_MAX


def test_a_topic_that_is_not_there_is_unknown_by_its_name(state: LedgerState) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="'others' does not exist"):
        state.topic("others")


def test_the_last_micro_batch_of_a_query_is_kept_with_its_evidence(state: LedgerState) -> None:
    evidence = Evidence("events", "3 rows", "", "", "", "", "")
    assert state.last_kept("q") == (NO_TRANSACTION_SEQUENCE, None)

    follow(state, commit(0, micro_batch=MicroBatch("q", 5), evidence=evidence))

    assert state.last_kept("q") == (5, evidence)


NotAllowed = tuple[list[Content], Content, type[KBatchError]]
REFUSED: dict[str, NotAllowed] = {
    "a second start": ([], LedgerStart(CLUSTER_ID, {}), RefusedEntryError),
    "a tombstone": ([], Tombstone(), RefusedEntryError),
    "a topic that exists": (
        [],
        TopicCreation("another-id", "events", (0,)),
        TopicAlreadyExistsError,
    ),
    "an id that exists": ([], TopicCreation(TOPIC_ID, "others", (0,)), RefusedEntryError),
    "no such topic": ([], TopicDeletion("no-such"), UnknownTopicOrPartitionError),
    "no topic to alter": ([], TopicAlteration("no-such", {}), UnknownTopicOrPartitionError),
    "no topic to grow": ([], TopicGrowth("no-such", (0,)), UnknownTopicOrPartitionError),
    "too many partitions": ([], TopicGrowth(TOPIC_ID, (0,) * 99_999), RefusedEntryError),
    "a hole": ([commit(0)], commit(4), RefusedEntryError),
    "an overlap": ([commit(0)], commit(2), RefusedEntryError),
    "no such partition": ([], commit(0, partition=2), UnknownTopicOrPartitionError),
    "one partition twice": (
        [],
        LedgerCommit({TOPIC_ID: (append_of(0, 0, began=1), append_of(0, 3, began=1))}),
        RefusedEntryError,
    ),
    "an older leader epoch": (
        [LedgerCommit({TOPIC_ID: (append_of(0, 0, began=1, epoch=3),)})],
        commit(3),
        RefusedEntryError,
    ),
    "data from before the horizon": (
        [commit(0), commit(3), GcBoundary(2)],
        commit(6, began=1),
        RefusedEntryError,
    ),
    "data from the future": ([], commit(0, began=2), RefusedEntryError),
    "a micro-batch again": (
        [commit(0, micro_batch=MicroBatch("q", 5))],
        commit(3, micro_batch=MicroBatch("q", 5)),
        RefusedEntryError,
    ),
    "another mirror's progress": (
        [commit(0, mirror=MirrorStep("m", "", "1"))],
        commit(3, mirror=MirrorStep("m", "", "2")),
        MirrorFencedError,
    ),
    "a sequence too far": (
        [commit(0, produced=(produced(0, base=0),))],
        commit(3, produced=(produced(4, base=3),)),
        OutOfOrderSequenceError,
    ),
    "an old producer epoch": (
        [commit(0, produced=(produced(0, epoch=2, base=0),))],
        commit(3, produced=(produced(3, epoch=1, base=3),)),
        InvalidProducerEpochError,
    ),
    "a new producer epoch that does not start at 0": (
        [commit(0, produced=(produced(0, base=0),))],
        commit(3, produced=(produced(3, epoch=1, base=3),)),
        OutOfOrderSequenceError,
    ),
    "a batch outside the commit": (
        [],
        commit(0, produced=(produced(0, base=3),)),
        RefusedEntryError,
    ),
    "an offset of no partition": (
        [],
        LedgerCommit(groups={"g": (CommittedGroupOffset(TOPIC_ID, 9, 0, ""),)}),
        UnknownTopicOrPartitionError,
    ),
    "a fence that is not held": ([], commit(0, fence=HeldFence("s", 0)), RefusedEntryError),
    "a fence that was lost": (
        [Fence("s", 1), Fence("s", 2)],
        commit(0, fence=HeldFence("s", 1)),
        RefusedEntryError,
    ),
    "a fence that stays": ([Fence("s", 1)], Fence("s", 1), RefusedEntryError),
    "a start offset that goes back": (
        [commit(0), StartOffsets({TOPIC_ID: {0: 2}})],
        StartOffsets({TOPIC_ID: {0: 1}}),
        RefusedEntryError,
    ),
    "a start offset above the end": ([], StartOffsets({TOPIC_ID: {0: 1}}), RefusedEntryError),
    "a horizon that stays": ([commit(0), GcBoundary(2)], GcBoundary(2), RefusedEntryError),
    "a horizon that is not there yet": ([], GcBoundary(2), RefusedEntryError),
    "a format that stays": ([NewFormat(2)], NewFormat(2), RefusedEntryError),
    "what replaces more than there is": ([commit(0)], replacement(0, 4), RefusedEntryError),
    "what replaces from before the horizon": (
        [commit(0), commit(3), GcBoundary(3)],
        replacement(0, 3, began=2),
        RefusedEntryError,
    ),
    "what replaces an earlier topic's offsets": (
        [commit(0), TopicDeletion(TOPIC_ID), TOPIC, commit(0, began=4)],
        replacement(0, 3, began=3),
        RefusedEntryError,
    ),
    "what replaces another partition": (
        [commit(0)],
        Replacement({TOPIC_ID: (Rewrite(1, 0, 3, (append_of(0, 0, began=1),)),)}),
        RefusedEntryError,
    ),
    "what replaces nothing": (
        [commit(0)],
        Replacement({TOPIC_ID: (Rewrite(0, 0, 0, ()),)}),
        RefusedEntryError,
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_may_not_be_is_refused_and_changes_nothing(state: LedgerState, case: str) -> None:
    before, content, error = REFUSED[case]
    follow(state, *before)
    heads, number, extents = pack_heads(state), state.number, repr(state.extents)

    with pytest.raises(error):
        follow(state, content)

    assert (pack_heads(state), state.number, repr(state.extents)) == (heads, number, extents)


@pytest.mark.parametrize("case", REFUSED)
def test_what_comes_before_a_refused_entry_is_allowed(state: LedgerState, case: str) -> None:
    follow(state, *REFUSED[case][0])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda entry: entry._replace(number=3), "number"),
        (lambda entry: entry._replace(before="f" * 32), "before it"),
        (lambda entry: entry._replace(time_ms=99), "time"),
    ],
)
def test_an_entry_that_does_not_follow_is_refused(
    state: LedgerState, change: Callable[[Entry], Entry], why: str
) -> None:
    state.time_ms = 100
    entry = Entry(2, "1" * 32, state.entry_id, 100, commit(0))

    with pytest.raises(RefusedEntryError, match=why):
        state.apply(change(entry))
    state.apply(entry)


def test_data_that_began_at_the_horizon_may_commit(state: LedgerState) -> None:
    follow(state, commit(0), commit(3), GcBoundary(2), commit(6, began=2))

    assert state.partition(TOPIC_ID, 0).next_offset == 9


def test_the_first_entry_starts_the_ledger() -> None:
    with pytest.raises(RefusedEntryError, match="starts a ledger"):
        follow(LedgerState(), TOPIC)


def test_a_state_is_stored_and_read_again(state: LedgerState) -> None:
    follow(
        state,
        Fence("server", 3),
        commit(
            0,
            micro_batch=MicroBatch("q", 5),
            mirror=MirrorStep("m", "", "progress"),
            produced=(produced(0, base=0),),
            groups={"billing": (CommittedGroupOffset(TOPIC_ID, 0, 3, "mine"),)},
            fence=HeldFence("server", 3),
        ),
        GcBoundary(2),
        StartOffsets({TOPIC_ID: {0: 1}}),
        at_ms=77,
    )
    data = pack_heads(state)

    found = unpack_heads(data, "heads")

    assert pack_heads(found) == data
    assert (found.topics, found.heads) == (state.topics, state.heads)
    assert (found.producers, found.queries) == (state.producers, state.queries)  # fmt: skip
    assert (found.mirrors, found.fences, found.groups) == (state.mirrors, state.fences, state.groups)  # fmt: skip
    assert found.topic("events").created == 1
    assert data_at(1) not in data.decode()
