"""The numbers that batches get, the order in which they may be sent, and when there is a new epoch."""

from __future__ import annotations

import itertools

import pytest

from spark_kbatch.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    KafkaStorageError,
    OutOfOrderSequenceError,
    RequestTimedOutError,
    UnknownProducerIdError,
)
from spark_kbatch.model import AppendResult, TopicPartition
from spark_kbatch.options.topic import Topic, TopicConfig
from spark_kbatch.producer.batch import ProducerBatch
from spark_kbatch.producer.idempotence import Sequences
from spark_kbatch.record.builder import RecordBatchBuilder

INT_MAX = 2**31 - 1
EPOCH_MAX = 2**15 - 1
TOPIC = Topic("events", "id", 2, TopicConfig())
REFUSED = AppendResult(error=OutOfOrderSequenceError("events-0", 0, 0, 1))


def a_batch(records_count: int = 1, partition: int = 0) -> ProducerBatch:
    builder = RecordBatchBuilder(memoryview(bytearray(10_000)), 0, 10_000)
    for _ in range(records_count):
        assert builder.append_record(0, None, b"v" * 100)
    return ProducerBatch(TOPIC, TopicPartition(TOPIC.name, partition), builder, 0)


def some_sequences(*, next_sequence: int = 0, epoch: int = 0) -> Sequences:
    """Make sequences with producer ids 100, 101 and so on; partition 0 continues at `next_sequence`."""
    ids = itertools.count(100)
    sequences = Sequences(lambda: next(ids))
    sequences.prepare()
    sequences._epoch = epoch
    sequences._partition(TopicPartition("events", 0)).next_sequence = next_sequence
    return sequences


def sent(sequences: Sequences, *batches: ProducerBatch) -> list[ProducerBatch]:
    """Drain the batches that may be sent, and return them."""
    for batch in batches:
        assert sequences.may_drain(batch)
        sequences.assign(batch)
        batch.close()
    return [*batches]


def acknowledged(sequences: Sequences, *batches: ProducerBatch) -> None:
    for batch in batches:
        sequences.completed(batch)


def numbers(*batches: ProducerBatch) -> list[tuple[int, int, int]]:
    return [(batch.producer_id, batch.producer_epoch, batch.base_sequence) for batch in batches]


def test_each_partition_counts_its_records() -> None:
    sequences = some_sequences()
    first, other = sent(sequences, a_batch(2), a_batch(7, partition=1))
    acknowledged(sequences, first, other)
    behind = sent(sequences, a_batch(3), a_batch(), a_batch(partition=1))
    assert numbers(first, other) == [(100, 0, 0), (100, 0, 0)]
    assert numbers(*behind) == [(100, 0, 2), (100, 0, 5), (100, 0, 7)]


def test_a_batch_keeps_its_number_when_it_goes_again() -> None:
    sequences = some_sequences()
    (batch,) = sent(sequences, a_batch())
    assert sequences.can_retry(batch, AppendResult(error=RequestTimedOutError()))
    sequences.prepare()
    sent(sequences, batch)
    assert numbers(batch) == [(100, 0, 0)]
    assert not batch.sequence_was_reset


def test_errors_that_stay_are_not_retried() -> None:
    sequences = some_sequences()
    (batch,) = sent(sequences, a_batch())
    assert sequences.can_retry(batch, AppendResult(error=KafkaStorageError("")))
    assert not sequences.can_retry(batch, AppendResult(error=InvalidRecordError("")))


def test_in_transactions_no_batch_gets_another_epoch() -> None:
    sequences = Sequences(lambda: 7, transactional_epoch=3)
    sequences.prepare()
    acknowledged(sequences, *sent(sequences, a_batch()))
    first, second = sent(sequences, a_batch(), a_batch())
    assert sequences.can_retry(second, REFUSED), "the first may still be written"
    assert not sequences.can_retry(first, REFUSED)

    sequences.failed(first)
    sequences.failed(second)
    sequences.prepare()

    assert not sequences.may_drain(a_batch())
    assert numbers(*sent(sequences, a_batch(partition=1))) == [(7, 3, 0)]


def test_the_first_batch_goes_alone() -> None:
    sequences = some_sequences()
    first = sent(sequences, a_batch())
    assert not sequences.may_drain(a_batch())
    assert sequences.may_drain(a_batch(partition=1))
    acknowledged(sequences, *first)
    assert sequences.may_drain(a_batch())


def test_four_batches_go_behind_one_that_has_not_ended() -> None:
    sequences = some_sequences()
    acknowledged(sequences, *sent(sequences, a_batch()))
    oldest, second, *others = sent(sequences, *(a_batch() for _ in range(5)))
    assert not sequences.may_drain(a_batch())
    acknowledged(sequences, *others)
    assert not sequences.may_drain(a_batch())
    acknowledged(sequences, oldest)
    sent(sequences, a_batch())
    assert not sequences.may_drain(a_batch())
    acknowledged(sequences, second)
    sent(sequences, a_batch(), a_batch(), a_batch())


def test_batches_that_go_again_go_in_their_order() -> None:
    sequences = some_sequences()
    acknowledged(sequences, *sent(sequences, a_batch()))
    first, second = sent(sequences, a_batch(), a_batch())
    fresh = a_batch()
    assert sequences.position(second, [fresh]) == 0
    assert sequences.position(first, [second, fresh]) == 0
    assert sequences.position(second, [first, fresh]) == 1
    assert (sequences.may_drain(first), sequences.may_drain(second)) == (True, False)
    acknowledged(sequences, first)
    assert sequences.may_drain(second)


@pytest.mark.parametrize("start", [10, INT_MAX - 5, INT_MAX - 2, INT_MAX])
def test_children_of_a_split_go_in_the_place_of_their_parent(start: int) -> None:
    sequences = some_sequences(next_sequence=start - 1)
    acknowledged(sequences, *sent(sequences, a_batch()))
    before, parent, behind = sent(sequences, a_batch(2), a_batch(4), a_batch())
    sequences.remove(parent)
    children = parent.split(1, codec_id=0, level=None)
    sequences.add_in_flight(children)
    found = sequences._partition(parent.topic_partition).in_flight
    assert found == [before, *children, behind]
    assert [batch.base_sequence for batch in found] == [
        (start + count) % 2**31 for count in (0, 2, 3, 4, 5, 6)
    ]


def test_without_a_gap_the_epoch_stays() -> None:
    """The log had the batch that seemed lost: its answer came late, after the numbers wrapped around."""
    sequences = some_sequences(next_sequence=INT_MAX - 3)
    acknowledged(sequences, *sent(sequences, a_batch(2)))
    lost, behind = sent(sequences, a_batch(), a_batch(2))
    sequences.failed(lost)
    assert not sequences.may_drain(a_batch())
    sequences.completed(behind)
    sequences.completed(lost)
    sequences.prepare()
    assert numbers(*sent(sequences, a_batch())) == [(100, 0, 1)]


def test_with_a_gap_there_is_a_new_epoch() -> None:
    sequences = some_sequences()
    acknowledged(sequences, *sent(sequences, a_batch()))
    (lost,) = sent(sequences, a_batch())
    sequences.failed(lost)
    sequences.prepare()
    assert numbers(*sent(sequences, a_batch())) == [(100, 1, 0)]


def test_what_is_behind_a_lost_batch_gets_new_numbers_when_it_is_refused() -> None:
    sequences = some_sequences()
    acknowledged(sequences, *sent(sequences, a_batch()))
    lost, second, third = sent(sequences, a_batch(), a_batch(3), a_batch())
    sequences.failed(lost)
    sequences.prepare()
    assert numbers(second, third) == [(100, 0, 2), (100, 0, 5)]
    for batch in (third, second):
        assert sequences.can_retry(batch, REFUSED)
    sequences.prepare()
    assert numbers(second, third) == [(100, 1, 0), (100, 1, 3)]
    # The answer for its old number comes late.
    assert sequences.can_retry(second, REFUSED)
    sequences.prepare()
    assert numbers(second, third) == [(100, 1, 0), (100, 1, 3)]


def test_a_batch_that_waits_for_one_before_it_keeps_its_number() -> None:
    sequences = some_sequences()
    acknowledged(sequences, *sent(sequences, a_batch()))
    _, second = sent(sequences, a_batch(), a_batch())
    assert sequences.can_retry(second, REFUSED)
    sequences.prepare()
    assert numbers(second) == [(100, 0, 2)]


def test_a_new_epoch_waits_for_what_is_older_than_the_lost_batch() -> None:
    sequences = some_sequences()
    acknowledged(sequences, *sent(sequences, a_batch()))
    older, lost, behind = sent(sequences, a_batch(), a_batch(), a_batch())
    sequences.failed(lost)
    assert sequences.can_retry(behind, REFUSED)
    sequences.prepare()
    assert numbers(older, behind) == [(100, 0, 1), (100, 0, 3)]
    acknowledged(sequences, older)
    assert sequences.can_retry(behind, REFUSED)
    sequences.prepare()
    assert numbers(behind) == [(100, 1, 0)]


def test_other_partitions_end_what_they_began_before_they_take_the_new_epoch() -> None:
    sequences = some_sequences()
    (first,) = sent(sequences, a_batch(partition=1))
    acknowledged(sequences, first)
    (other,) = sent(sequences, a_batch(partition=1))
    sequences.failed(*sent(sequences, a_batch()))
    sequences.prepare()
    assert not sequences.may_drain(a_batch(partition=1))
    assert sequences.may_drain(other)
    acknowledged(sequences, other)
    assert numbers(other, *sent(sequences, a_batch(partition=1))) == [(100, 0, 1), (100, 1, 0)]


def test_behind_the_last_epoch_there_is_a_new_id() -> None:
    sequences = some_sequences(epoch=EPOCH_MAX - 1)
    for expected in ((100, EPOCH_MAX, 0), (101, 0, 0), (101, 1, 0)):
        acknowledged(sequences, *sent(sequences, a_batch()))
        sequences.failed(*sent(sequences, a_batch()))
        sequences.prepare()
        sequences.prepare()
        (batch,) = sent(sequences, a_batch())
        assert numbers(batch) == [expected]
        acknowledged(sequences, batch)


def test_an_id_that_cannot_be_had_is_asked_for_again() -> None:
    ids: list[int] = []

    def new_id() -> int:
        if not ids:
            raise KafkaStorageError("no id")
        return ids.pop()

    sequences = Sequences(new_id)
    with pytest.raises(KafkaStorageError):
        sequences.prepare()
    ids.append(7)
    sequences.prepare()
    assert numbers(*sent(sequences, a_batch())) == [(7, 0, 0)]


# Errors of brokers.

FORGOTTEN = AppendResult(error=UnknownProducerIdError("events-0", 100))
OLD_EPOCH = AppendResult(error=InvalidProducerEpochError("events-0", 100, -1, 0))


@pytest.mark.parametrize("answer", [FORGOTTEN, OLD_EPOCH], ids=["forgotten", "old-epoch"])
def test_a_producer_that_a_broker_does_not_know_takes_a_new_epoch(answer: AppendResult) -> None:
    sequences = some_sequences()
    acknowledged(sequences, *sent(sequences, a_batch()))
    oldest, second = sent(sequences, a_batch(2), a_batch())
    assert sequences.can_retry(second, answer)
    sequences.prepare()
    assert numbers(oldest, second) == [(100, 0, 1), (100, 0, 3)], "a log may have the oldest"
    assert sequences.can_retry(oldest, answer)
    sequences.prepare()
    assert numbers(oldest, second) == [(100, 1, 0), (100, 1, 2)]


# The next producer.


def test_the_next_producer_goes_on_with_the_same_id_and_numbers() -> None:
    sequences = some_sequences()
    acknowledged(sequences, *sent(sequences, a_batch(2), a_batch(3, partition=1)))
    following = sequences.passed_on(lambda: pytest.fail("it has an id"))
    following.prepare()
    found = sent(following, a_batch(), a_batch(), a_batch(partition=1))
    assert numbers(*found) == [(100, 0, 2), (100, 0, 3), (100, 0, 3)]


def test_the_next_producer_takes_a_new_epoch_where_a_batch_may_or_may_not_be_written() -> None:
    sequences = some_sequences()
    acknowledged(sequences, *sent(sequences, a_batch(), a_batch(partition=1)))
    sent(sequences, a_batch())
    following = sequences.passed_on(lambda: 101)
    following.prepare()
    assert numbers(*sent(following, a_batch(), a_batch(partition=1))) == [(100, 1, 0)] * 2


def test_the_next_producer_takes_an_id_where_there_was_none() -> None:
    following = Sequences(lambda: pytest.fail("not asked")).passed_on(lambda: 7)
    following.prepare()
    assert numbers(*sent(following, a_batch())) == [(7, 0, 0)]
