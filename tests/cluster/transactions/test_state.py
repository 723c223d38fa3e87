"""What each request makes of the state of a transactional id."""

from __future__ import annotations

import itertools
import random

import pytest

from spark_kbatch.cluster.group_records import CommittedOffset
from spark_kbatch.cluster.transactions import state
from spark_kbatch.cluster.transactions.state import (
    EPOCH_MAX,
    EXPIRATION_MS,
    ProducerIdAndEpoch,
    Status,
    Step,
    TransactionMetadata,
)
from spark_kbatch.model import TopicPartition
from spark_kbatch.wire.errors import ErrorCode
from tests.support.draws import seeds

NOW = 1_700_000_000_000
A, B = TopicPartition("a", 0), TopicPartition("b", 3)
OWNER, OTHER = ProducerIdAndEpoch(7, 4), ProducerIdAndEpoch(9, 0)
ZOMBIE = ProducerIdAndEpoch(7, 3)


def known(
    status: Status = Status.EMPTY, producer: ProducerIdAndEpoch = OWNER
) -> TransactionMetadata:
    is_active = status in (Status.ONGOING, Status.PREPARE_COMMIT, Status.PREPARE_ABORT)
    partitions = {A: "id-a"} if is_active else {}
    return TransactionMetadata(
        "t", producer, 60_000, status, partitions, updated_ms=NOW, start_ms=NOW
    )


def started(
    before: TransactionMetadata | None,
    caller: ProducerIdAndEpoch | None = None,
    new_producer_id: int = 100,
) -> Step:
    return state.start_producer(before, "t", 30_000, caller, new_producer_id, NOW + 1)


def gone_on(step: Step) -> TransactionMetadata:
    assert isinstance(step, TransactionMetadata)
    return step


def test_a_new_id_gets_a_new_producer_id() -> None:
    found = gone_on(started(None))

    assert (found.producer, found.status, found.timeout_ms) == (
        ProducerIdAndEpoch(100, 0),
        Status.EMPTY,
        30_000,
    )
    assert not state.needs_producer_id(found)


@pytest.mark.parametrize("status", [Status.EMPTY, Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT])
def test_a_start_raises_the_epoch_and_fences_the_producer_before_it(status: Status) -> None:
    found = gone_on(started(known(status)))

    assert (found.producer, found.status) == (ProducerIdAndEpoch(7, 5), Status.EMPTY)
    assert state.add_partitions(found, OWNER, {A: "id-a"}, NOW) is ErrorCode.PRODUCER_FENCED
    assert started(found, caller=OWNER) is ErrorCode.PRODUCER_FENCED


def test_a_start_during_a_transaction_aborts_it_and_is_to_be_asked_again() -> None:
    aborted = gone_on(started(known(Status.ONGOING)))

    assert (aborted.status, aborted.producer) == (Status.PREPARE_ABORT, ProducerIdAndEpoch(7, 5))
    assert aborted.partitions == {A: "id-a"}
    assert started(aborted) is ErrorCode.CONCURRENT_TRANSACTIONS
    again = gone_on(started(state.complete(aborted, NOW)))
    assert again.producer == ProducerIdAndEpoch(7, 6)


def test_a_producer_that_goes_on_after_an_error_gets_the_next_epoch_and_a_lost_answer_again() -> (
    None
):
    found = gone_on(started(known(), caller=OWNER))

    assert found.producer == ProducerIdAndEpoch(7, 5)
    assert started(found, caller=OWNER) is found
    assert gone_on(started(found, caller=found.producer)).producer == ProducerIdAndEpoch(7, 6)
    assert started(found, caller=ZOMBIE) is ErrorCode.PRODUCER_FENCED
    assert started(found, caller=OTHER) is ErrorCode.PRODUCER_FENCED


def test_a_producer_that_goes_on_during_its_transaction_is_fenced_by_the_abort() -> None:
    aborted = gone_on(started(known(Status.ONGOING), caller=OWNER))
    ended = state.complete(aborted, NOW)

    assert (ended.status, ended.producer) == (Status.COMPLETE_ABORT, ProducerIdAndEpoch(7, 5))
    assert started(ended, caller=OWNER) is ErrorCode.PRODUCER_FENCED


def test_a_zombie_that_goes_on_does_not_abort_the_transaction_of_its_successor() -> None:
    assert started(known(Status.ONGOING), caller=ZOMBIE) is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("caller", [None, ProducerIdAndEpoch(7, EPOCH_MAX)], ids=["new", "goes on"])
def test_a_producer_id_without_epochs_is_replaced(caller: ProducerIdAndEpoch | None) -> None:
    before = known(producer=ProducerIdAndEpoch(7, EPOCH_MAX))
    assert state.needs_producer_id(before)
    found = gone_on(started(before, caller=caller))

    assert found.producer == ProducerIdAndEpoch(100, 0)
    lost = started(found, caller=ProducerIdAndEpoch(7, EPOCH_MAX))
    assert lost == (found if caller else ErrorCode.PRODUCER_FENCED)


def test_the_last_epoch_of_a_producer_id_can_be_fenced() -> None:
    fenced = state.fence(known(Status.ONGOING, ProducerIdAndEpoch(7, EPOCH_MAX)), NOW)

    assert fenced.producer == ProducerIdAndEpoch(7, 2**15 - 1)
    ended = state.complete(fenced, NOW)
    assert state.add_partitions(ended, ended.producer, {A: "x"}, NOW) is ErrorCode.PRODUCER_FENCED
    assert gone_on(started(ended)).producer == ProducerIdAndEpoch(100, 0)


def test_the_first_partition_starts_a_transaction_and_others_are_added() -> None:
    first = gone_on(state.add_partitions(known(), OWNER, {A: "id-a"}, NOW + 5))
    assert (first.status, first.start_ms, first.partitions) == (
        Status.ONGOING,
        NOW + 5,
        {A: "id-a"},
    )

    second = gone_on(state.add_partitions(first, OWNER, {B: "id-b"}, NOW + 9))
    assert (second.start_ms, second.partitions) == (NOW + 5, {A: "id-a", B: "id-b"})
    assert state.add_partitions(second, OWNER, {A: "id-a"}, NOW + 10) is second


def test_a_partition_of_a_topic_that_was_created_again_is_added_again() -> None:
    again = gone_on(state.add_partitions(known(Status.ONGOING), OWNER, {A: "new"}, NOW))

    assert again.has(OWNER, A, "new")
    assert not again.has(OWNER, A, "id-a")


def test_offsets_are_taken_of_groups_that_were_added() -> None:
    offset = CommittedOffset(5, commit_timestamp=NOW)
    assert (
        state.add_offsets(known(Status.ONGOING), OWNER, "g", {A: offset}, NOW)
        is ErrorCode.INVALID_TXN_STATE
    )
    added = gone_on(state.add_group(known(), OWNER, "g", NOW))
    assert (added.status, added.offsets) == (Status.ONGOING, {"g": {}})
    assert state.add_group(added, OWNER, "g", NOW + 1) is added
    first = gone_on(state.add_offsets(added, OWNER, "g", {A: offset}, NOW))
    second = gone_on(state.add_offsets(first, OWNER, "g", {B: offset}, NOW))
    assert second.offsets == {"g": {A: offset, B: offset}}

    decided = gone_on(state.decide(second, OWNER, is_commit=True, now_ms=NOW))
    assert decided.offsets == second.offsets
    assert state.without_offsets(decided).offsets == {}
    assert gone_on(state.decide(second, OWNER, is_commit=False, now_ms=NOW)).offsets == {}


# What a client is answered; a status is the next state.
ENDS: dict[tuple[Status, bool], Status | ErrorCode] = {
    (Status.EMPTY, True): ErrorCode.INVALID_TXN_STATE,
    (Status.EMPTY, False): ErrorCode.INVALID_TXN_STATE,
    (Status.ONGOING, True): Status.PREPARE_COMMIT,
    (Status.ONGOING, False): Status.PREPARE_ABORT,
    (Status.PREPARE_COMMIT, True): ErrorCode.CONCURRENT_TRANSACTIONS,
    (Status.PREPARE_COMMIT, False): ErrorCode.INVALID_TXN_STATE,
    (Status.PREPARE_ABORT, True): ErrorCode.INVALID_TXN_STATE,
    (Status.PREPARE_ABORT, False): ErrorCode.CONCURRENT_TRANSACTIONS,
    (Status.COMPLETE_COMMIT, True): Status.COMPLETE_COMMIT,
    (Status.COMPLETE_COMMIT, False): ErrorCode.INVALID_TXN_STATE,
    (Status.COMPLETE_ABORT, True): ErrorCode.INVALID_TXN_STATE,
    (Status.COMPLETE_ABORT, False): Status.COMPLETE_ABORT,
}


@pytest.mark.parametrize(("status", "is_commit"), [*itertools.product(Status, (True, False))])
def test_each_state_is_ended_as_by_a_broker(status: Status, is_commit: bool) -> None:
    step = state.decide(known(status), OWNER, is_commit=is_commit, now_ms=NOW)

    assert (step.status if isinstance(step, TransactionMetadata) else step) == ENDS[
        status, is_commit
    ]


@pytest.mark.parametrize("status", [*Status])
def test_nothing_is_added_while_a_decision_is_carried_out(status: Status) -> None:
    before = known(status)
    added = state.add_partitions(before, OWNER, {B: "id-b"}, NOW)

    if before.is_decided:
        assert added is ErrorCode.CONCURRENT_TRANSACTIONS
    else:
        assert gone_on(added).status is Status.ONGOING


@pytest.mark.parametrize(
    ("before", "producer", "error"),
    [
        pytest.param(None, OWNER, ErrorCode.INVALID_PRODUCER_ID_MAPPING, id="unknown id"),
        pytest.param(known(), OTHER, ErrorCode.INVALID_PRODUCER_ID_MAPPING, id="other producer id"),
        pytest.param(known(), ZOMBIE, ErrorCode.PRODUCER_FENCED, id="older epoch"),
        pytest.param(
            known(), ProducerIdAndEpoch(7, 5), ErrorCode.PRODUCER_FENCED, id="newer epoch"
        ),
    ],
)
def test_only_the_owner_of_an_id_is_served(
    before: TransactionMetadata | None, producer: ProducerIdAndEpoch, error: ErrorCode
) -> None:
    assert state.add_partitions(before, producer, {A: "id-a"}, NOW) is error
    assert state.add_group(before, producer, "g", NOW) is error
    assert state.add_offsets(before, producer, "g", {}, NOW) is error
    assert state.decide(before, producer, is_commit=True, now_ms=NOW) is error


@pytest.mark.parametrize("status", [*Status])
def test_only_an_id_without_a_transaction_expires(status: Status) -> None:
    before = known(status)

    assert not before.is_expired(NOW + EXPIRATION_MS - 1)
    assert before.is_expired(NOW + EXPIRATION_MS) == (not before.is_open and not before.is_decided)


@pytest.mark.parametrize("seed", seeds(20))
def test_in_any_order_of_requests_one_producer_owns_an_id_and_epochs_rise(seed: int) -> None:
    rng = random.Random(seed)
    current = gone_on(started(None))
    new_ids = itertools.count(101)
    producers, committed = [current.producer], -1
    for _ in range(400):
        if rng.random() < 0.02 and current.producer.epoch < EPOCH_MAX:  # so that epochs run out
            current = current._replace(
                producer=ProducerIdAndEpoch(current.producer.producer_id, EPOCH_MAX)
            )
            producers.append(current.producer)
        producer, before = rng.choice(producers), current
        match rng.randrange(6):
            case 0:
                caller = rng.choice([None, producer])
                step = started(before, caller, next(new_ids))
            case 1:
                step = state.add_partitions(before, producer, {rng.choice([A, B]): "x"}, NOW)
            case 2:
                step = state.add_group(before, producer, "g", NOW)
            case 3:
                step = state.decide(before, producer, is_commit=rng.random() < 0.5, now_ms=NOW)
            case 4:
                step = state.complete(before, NOW) if before.is_decided else before
            case _:
                step = state.fence(before, NOW) if before.is_open else before
        if isinstance(step, ErrorCode):
            continue
        current = step
        if current.producer != before.producer:
            assert current.producer > before.producer
            producers.append(current.producer)
            if current.producer.producer_id != before.producer.producer_id:
                committed = -1
        assert 0 <= current.producer.epoch < 2**15
        if before.is_decided and current is not before:
            assert current.status - before.status == 2
        if current.is_commit and not before.is_commit:
            assert producer == before.producer
            committed = producer.epoch
        assert current.commit_epoch == committed
